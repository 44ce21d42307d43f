//! Directories get their permissions and times when nothing changes in them any more.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;

use super::blocking::blocking;
use super::directory::{LocalDirectory, Looks};
use super::item::Item;
use super::job::Job;
use super::path::{self, os};
use super::place::Place;
use super::sessions::Sessions;
use super::{down, up};
use crate::error::Error;
use crate::sftp::FileAttributes;

/// Requests for single names in flight.
const AT_ONCE: usize = 256;

/// Finishes the directories of a copy.
pub(super) async fn directories(job: &Arc<Job>, to: &Place, root: &Bytes) -> Result<(), Error> {
    let directories = job.finish.take(job.options.preserve && !job.options.dry_run);
    if directories.is_empty() {
        return Ok(());
    }
    match to {
        Place::Local => {
            let (job, root) = (job.clone(), PathBuf::from(os(root)));
            blocking(move || here(&job, &root, directories)).await
        }
        Place::Server(sessions) => there(job, sessions, root, directories).await,
    }
}

fn here(job: &Job, root: &std::path::Path, directories: Vec<Item>) -> Result<(), Error> {
    let directory =
        LocalDirectory::open(root).map_err(|error| Error::local(root.display().to_string(), error))?;
    for item in directories {
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
            let reason = down::unwritten(&directory, &item, &error, 0);
            job.failed(item.target, reason);
        }
    }
    Ok(())
}

async fn there(job: &Job, sessions: &Sessions, root: &Bytes, directories: Vec<Item>) -> Result<(), Error> {
    // In order on one session.
    let setting = futures_util::stream::iter(directories)
        .map(|item| async {
            let is_root = item.target.is_empty();
            let path = if is_root {
                root.clone()
            } else {
                path::in_root(root, &item.target)
            };
            let looks = FileAttributes {
                owner: item.owner.filter(|_| job.options.owners),
                ..up::looks(job, &item)
            };
            let result = up::set_looks(sessions, &path, &looks, is_root).await;
            (item, result)
        })
        .buffered(AT_ONCE);
    let mut setting = std::pin::pin!(setting);
    while let Some((item, result)) = setting.next().await {
        match result {
            // Why nothing more can be written was said.
            Err(Error::File { .. }) if job.is_over() => {}
            Err(error) => job.go_on_after(item.target, error)?,
            Ok(()) => {}
        }
    }
    Ok(())
}
