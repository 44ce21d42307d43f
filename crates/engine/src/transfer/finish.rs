//! Directories get their permissions and times when nothing changes in them any more.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;

use super::blocking::blocking;
use super::directory::{LocalDirectory, Looks};
use super::job::Job;
use super::path::{self, os};
use super::place::Place;
use super::sessions::Sessions;
use super::tree::FinishedDirectory;
use super::{down, up};
use crate::error::Error;
use crate::sftp::{FileAttributes, Permissions};

/// Requests for single names in flight.
const AT_ONCE: usize = 256;

/// Finishes the directories of a copy.
pub(super) async fn directories(job: &Arc<Job>, to: &Place, root: &Bytes) -> Result<(), Error> {
    if job.options.dry_run {
        return Ok(());
    }
    match to {
        Place::Local => {
            let (job, root) = (job.clone(), PathBuf::from(os(root)));
            blocking(move || here(&job, &root)).await
        }
        Place::Server(sessions) => there(job, sessions, root).await,
    }
}

fn next(job: &Job) -> Result<Option<FinishedDirectory>, Error> {
    job.finish.next(&job.tree, job.options.preserve)
}

fn here(job: &Job, root: &std::path::Path) -> Result<(), Error> {
    let Some(mut item) = next(job)? else { return Ok(()) };
    let directory =
        LocalDirectory::open(root).map_err(|error| Error::local(root.display().to_string(), error))?;
    loop {
        let looks = Looks {
            mode: Some(job.local_mode(item.mode, 0o777)),
            times: item.times.filter(|_| job.options.preserve),
            owner: item.owner.filter(|_| job.options.owners),
            preserve: job.options.preserve,
            keeps_ids: job.options.kept_bits() != 0o1777,
        };
        if let Err(error) = directory.finish_directory(&item.target, looks)
            && !job.is_over()
        {
            let reason = down::unwritten(&directory, (&item.target, 0), &error, 0);
            job.report_failed(item.target, reason);
        }
        match next(job)? {
            Some(next) => item = next,
            None => return Ok(()),
        }
    }
}

async fn there(job: &Job, sessions: &Sessions, root: &Bytes) -> Result<(), Error> {
    let bits = match job.options.preserve {
        true => job.options.kept_bits(),
        false => 0o777,
    };
    let directories = std::iter::from_fn(|| next(job).transpose());
    // In order on one session.
    let setting = futures_util::stream::iter(directories)
        .map(|item| async {
            let item = item?;
            let is_root = item.target.is_empty();
            let path = if is_root {
                root.clone()
            } else {
                path::in_root(root, &item.target)
            };
            let looks = FileAttributes {
                owner: item.owner.filter(|_| job.options.owners),
                permissions: item.mode.map(|mode| Permissions(mode & bits)),
                times: item.times.filter(|_| job.options.preserve).map(up::times),
                ..FileAttributes::default()
            };
            let result = up::set_looks(sessions, &path, &looks, is_root).await;
            Ok::<_, Error>((item, result))
        })
        .buffered(AT_ONCE);
    let mut setting = std::pin::pin!(setting);
    while let Some(set) = setting.next().await {
        let (item, result) = set?;
        match result {
            // Why nothing more can be written was said.
            Err(Error::File { .. }) if job.is_over() => {}
            Err(error) => job.go_on_after(item.target, error)?,
            Ok(()) => {}
        }
    }
    Ok(())
}
