//! Symbolic links at the target.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use trunkline_request::copy::Changes;

use super::super::blocking::blocking;
use super::super::compare::{Beside, Verdict, verdict};
use super::super::item::Item;
use super::super::part::Own;
use super::super::path::os;
use super::super::place::Place;
use super::super::reason::Reason;
use super::{Up, link_text, name, times};
use crate::error::Error;
use crate::sftp::{FileAttributes, FileType, Sftp};

impl Up<'_> {
    pub(super) async fn link(&self, item: &mut Item, found: Option<&FileAttributes>) -> Result<(), Error> {
        match found.and_then(FileAttributes::file_type) {
            None | Some(FileType::Regular | FileType::Symlink) => {}
            Some(kind) => {
                let path = self.format_path(&self.path(&item.target));
                let message = format!("{path} is {}, which a copy does not replace", name(kind));
                self.job.report_failed(item.target.clone(), message);
                return Ok(());
            }
        }
        let verdict = found.map(|found| verdict(&self.job.options, item, &Beside::from(found)));
        item.changes = match verdict {
            None if item.changes.is_empty() => Changes::NEW,
            None => item.changes,
            Some(Verdict::Left) => {
                self.job.progress.report_skipped(item);
                return Ok(());
            }
            Some(Verdict::Stays(changes) | Verdict::Content(changes) | Verdict::Copy(changes)) => changes,
        };
        let path = self.path(&item.target);
        let is_read = self.job.options.safe_links || !self.job.options.dry_run;
        if !is_read && !matches!(verdict, Some(Verdict::Content(_))) {
            self.job.progress.would_copy(item.clone());
            return Ok(());
        }
        let target = match self.from {
            Place::Server(sessions) => link_text(sessions, &item.source).await?,
            Place::Local => {
                let source = item.source.clone();
                match blocking(move || std::fs::read_link(Path::new(os(&source)))).await {
                    Ok(target) => Bytes::copy_from_slice(target.as_os_str().as_encoded_bytes()),
                    Err(error) => {
                        self.job
                            .report_failed(item.target.clone(), Reason::local(&item.source, &error));
                        return Ok(());
                    }
                }
            }
        };
        if self.job.is_unsafe(item, &target)? {
            return Ok(());
        }
        if let Some(Verdict::Content(mut looks)) = verdict {
            if link_text(self.sessions, &path).await? == target {
                if !self.sessions.first().link().is_sftp_server() {
                    // Other servers have no way to set a link's attributes.
                    looks = Changes::default();
                }
                return self.adjust(item, looks).await;
            }
            item.changes = Changes::CONTENT;
        }
        self.job.tree.touch(&item.target);
        if self.job.options.dry_run {
            self.job.progress.would_copy(item.clone());
            return Ok(());
        }
        let looks = FileAttributes {
            times: item.times.filter(|_| self.job.options.preserve).map(times),
            owner: item.owner.filter(|_| self.job.options.owners),
            ..FileAttributes::default()
        };
        let (path, target, is_there, looks) = (&path, &target, found.is_some(), &looks);
        let attempts = &AtomicUsize::new(0);
        let own = self.names.own(&item.source, path);
        let own = own.as_ref();
        let make = |sftp: Sftp| async move {
            // An attempt whose session was lost may have made the link.
            let attempt = attempts.fetch_add(1, Ordering::Relaxed);
            let attempt = u8::try_from(attempt).unwrap_or(u8::MAX);
            let part = Own::name(own, path, attempt);
            make_link(&sftp, target, path, part, looks, is_there || attempt > 0).await
        };
        let turn = self.turn().await;
        if is_there {
            self.job
                .backups
                .keep(self.sessions, self.root, (path, &item.target))
                .await?;
        }
        let made = self.sessions.retry(make).await;
        drop(turn);
        let progress = &self.job.progress;
        match made {
            Ok(_) => progress.report_copied(item.target.clone(), 0, item.changes),
            Err(Error::File {
                host, doing, status, ..
            }) => {
                // Name the link's own path, and not the temporary one.
                let error = Error::File {
                    host,
                    doing,
                    path: path.clone(),
                    status,
                };
                let reason = self.with_room(item, path, None, error.into()).await;
                self.job.report_failed(item.target.clone(), reason);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Makes a link, which replaces an existing name.
async fn make_link(
    sftp: &Sftp,
    target: &Bytes,
    path: &Bytes,
    part: Bytes,
    looks: &FileAttributes,
    is_there: bool,
) -> Result<(), Error> {
    if !sftp.is_sftp_server().await? {
        // Other servers rename the target of an existing link, or do not replace a link.
        if is_there
            && let Err(error) = sftp.remove(path).await
            && !error.is_no_such_file()
        {
            return Err(error);
        }
        return sftp.symlink_exactly(target, path).await;
    }
    if let Err(error) = sftp.symlink(target, &part).await {
        // A killed copy's leftover makes way. Should that copy still rename the new link later, it is a complete link all the
        // same.
        sftp.remove(&part).await.map_err(|_| error)?;
        sftp.symlink(target, &part).await?;
    }
    let set = async {
        // Older versions cannot set a link's attributes.
        if !looks.is_empty() {
            let _ = sftp.lsetstat(&part, looks.clone()).await;
        }
    };
    // Both requests are in flight at once.
    let ((), renamed) = tokio::join!(set, sftp.rename(&part, path));
    if renamed.is_err() {
        let _ = sftp.remove(&part).await;
    }
    renamed
}
