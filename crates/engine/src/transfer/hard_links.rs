//! Makes the names of one file at the source names of one file at the target.
//!
//! The first name that is found is copied like any file; the others are made when everything else has been copied.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::StreamExt as _;
use trunkline_request::copy::Changes;

use super::compare::{Beside, Verdict, verdict};
use super::delete;
use super::item::{Item, Kind};
use super::job::Job;
use super::part;
use super::path::{self, shown};
use super::place::{Location, Place};
use super::sessions::Sessions;
use super::sources::Other;
use crate::error::{Error, Invalid};
use crate::sftp::{FileAttributes, Sftp};

/// Names that are made at once.
const AT_ONCE: usize = 64;

/// Fails if hard links cannot be kept: SFTP does not report whether a file has other names.
pub(super) async fn check(wanted: bool, to: &Place, sources: &[Location]) -> Result<(), Error> {
    if !wanted {
        return Ok(());
    }
    let is_here = |source: &Location| matches!(source, Location::Local(_) | Location::Stream(_));
    let Place::Server(sessions) = to else {
        return Err(Invalid::HardLinksOfServer.into());
    };
    if !sources.iter().all(is_here) {
        return Err(Invalid::HardLinksOfServer.into());
    }
    let link = trunkline_sftp::Request::Hardlink {
        from: Bytes::new(),
        to: Bytes::new(),
    };
    let sftp = sessions.first();
    match sftp.link().supports(&link).await? {
        true => Ok(()),
        false => Err(Invalid::HardLinks(sftp.host().to_owned()).into()),
    }
}

/// Makes the other names, after the first names were copied.
pub(super) async fn make(job: &Arc<Job>, to: &Place, root: &Bytes) -> Result<(), Error> {
    let Place::Server(sessions) = to else {
        return Ok(());
    };
    let links = job.hard_links.take().into_iter();
    let links = links.map(|other| make_one(job, sessions, root, other));
    let mut links = futures_util::stream::iter(links).buffer_unordered(AT_ONCE);
    while let Some(made) = links.next().await {
        made?;
    }
    Ok(())
}

async fn make_one(job: &Arc<Job>, sessions: &Arc<Sessions>, root: &Bytes, other: Other) -> Result<(), Error> {
    let Other { mut item, first } = other;
    let (path, first_path) = (path::in_root(root, &item.target), path::in_root(root, &first));
    if job.is_over() {
        job.report_left(item.target);
        return Ok(());
    }
    if job.tree.parent(&item.target).is_none() {
        job.progress.report_below(item.target, &shown(&path));
        return Ok(());
    }
    let found = look(sessions, &path).await;
    let (mut found, of) = match (found, look(sessions, &first_path).await) {
        (Ok(found), Ok(of)) => (found, of),
        (Err(error), _) | (_, Err(error)) => return job.go_on_after(item.target, error),
    };
    let is_directory = |found: &FileAttributes| Beside::from(found).kind == Kind::Directory;
    if job.options.delete && found.as_ref().is_some_and(is_directory) {
        item.changes = Changes::KIND;
        let target = delete::Target::Server(sessions.clone(), root.clone());
        delete::make_way(job, &target, &item).await?;
        if job.options.dry_run {
            report_link(job, item);
            return Ok(());
        }
        found = match look(sessions, &path).await {
            Ok(found) => found,
            Err(error) => return job.go_on_after(item.target, error),
        };
    }
    let verdict = found
        .as_ref()
        .map(|found| verdict(&job.options, &item, &Beside::from(found)));
    if matches!(verdict, Some(Verdict::Left)) || found.is_some() && job.options.ignore_existing {
        job.progress.report_skipped(&item);
        return Ok(());
    }
    let is_replaced = |found: &FileAttributes| matches!(Beside::from(found).kind, Kind::File | Kind::Link);
    if !found.as_ref().is_none_or(is_replaced) {
        let message = format!("{} is not a file, and is not replaced", shown(&path));
        job.report_failed(item.target, message);
        return Ok(());
    }
    item.changes = match found {
        None if item.changes.has(Changes::KIND) => Changes::KIND,
        None => Changes::NEW,
        Some(_) => Changes::LINK,
    };
    if job.options.dry_run {
        // A dry run cannot see whether both names belong to one file: files that are alike are taken for one.
        match verdict {
            Some(Verdict::Stays(_) | Verdict::Content(_)) => job.progress.report_skipped(&item),
            _ => report_link(job, item),
        }
        return Ok(());
    }
    if of.as_ref().and_then(|of| of.size) != Some(item.size) {
        let message = format!(
            "{} was not made: {}, whose file it is to be, is not as it was",
            shown(&path),
            shown(&first_path)
        );
        job.report_failed(item.target, message);
        return Ok(());
    }
    // Both names most likely belong to one file already.
    let is_alike = found == of;
    if found.is_some()
        && !is_alike
        && let Err(error) = job.backups.keep(sessions, root, (&path, &item.target)).await
    {
        return job.go_on_after(item.target, error);
    }
    // Making a link changes the directory, even if the name belongs to the file already.
    job.tree.touch(&item.target);
    let link = async |sftp: Sftp| link(&sftp, &first_path, &path, found.is_some()).await;
    match sessions.retry(link).await {
        Ok(true) => report_link(job, item),
        Ok(false) => job.progress.report_skipped(&item),
        Err(error) => return job.go_on_after(item.target, error),
    }
    Ok(())
}

fn report_link(job: &Job, item: Item) {
    job.tree.touch(&item.target);
    // The content is not sent.
    job.progress.total_bytes.fetch_sub(item.size, Ordering::Relaxed);
    job.progress.report_copied(item.target, 0, item.changes);
}

async fn look(sessions: &Sessions, path: &Bytes) -> Result<Option<FileAttributes>, Error> {
    match sessions.retry(async |sftp: Sftp| sftp.lstat(path).await).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_no_such_file() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes `path` another name of `file`. Returns `false` if it was one before.
async fn link(sftp: &Sftp, file: &Bytes, path: &Bytes, is_there: bool) -> Result<bool, Error> {
    let new = part::random(path);
    sftp.hardlink(file, &new).await?;
    let renamed = match is_there {
        true => sftp.rename_posix(&new, path).await,
        false => sftp.rename(&new, path).await,
    };
    // rename(2) does nothing for two names of one file, and leaves both.
    let removed = sftp.remove(&new).await;
    renamed?;
    match removed {
        Ok(()) => Ok(false),
        Err(error) if error.is_no_such_file() => Ok(true),
        Err(error) => Err(error),
    }
}
