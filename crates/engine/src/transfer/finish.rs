//! [`Finish`]: directories get their permissions and times when nothing changes in them any more.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::StreamExt as _;

use super::compare::split;
use super::folder::{Folder, Looks};
use super::path::{self, os};
use super::sessions::Sessions;
use super::{Item, Job, Place, blocking, down, up};
use crate::error::Error;
use crate::sftp::FileAttributes;

/// The directories that want to be finished.
#[derive(Debug, Default)]
pub(super) struct Finish {
    /// Guards the lists for as long as it takes to add to them.
    directories: Mutex<Directories>,
}

#[derive(Debug, Default)]
struct Directories {
    /// Each before what is in it.
    made: Vec<Item>,
    /// What is copied into the target itself, whose directory that is.
    root: Option<Item>,
    /// Those in which something changes, which changes their times.
    touched: HashSet<Bytes>,
}

/// Requests for single names in flight.
const AT_ONCE: usize = 256;

impl Finish {
    pub(super) fn add(&self, made: Vec<Item>) {
        self.directories().made.extend(made);
    }

    /// A source whose names go into the target itself; the first one counts. Whether it is the first.
    pub(super) fn root(&self, source: &Item) -> bool {
        let mut directories = self.directories();
        let is_first = directories.root.is_none();
        directories.root.get_or_insert_with(|| source.clone());
        is_first
    }

    /// Something is going to change in the directory that a path is in.
    pub(super) fn touch(&self, path: &Bytes) {
        let parent = split(path).0;
        let mut directories = self.directories();
        if !directories.touched.contains(&parent) {
            directories.touched.insert(parent);
        }
    }

    /// What is deepest first: setting a directory's times must come behind the last change in it. One that is as it should be
    /// and stays so is left alone.
    fn take(&self, job: &Job) -> Vec<Item> {
        let Directories { made, root, touched } = std::mem::take(&mut *self.directories());
        let root = root.filter(|_| job.options.preserve && !job.options.dry_run);
        let all = root.into_iter().chain(made);
        let mut wanted: Vec<Item> = all
            .filter(|item| !item.is_right || touched.contains(&item.target))
            .collect();
        wanted.reverse();
        wanted
    }

    fn directories(&self) -> MutexGuard<'_, Directories> {
        self.directories.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Finishes the directories of a copy.
pub(super) async fn directories(job: &Arc<Job>, to: &Place, root: &Bytes) -> Result<(), Error> {
    let directories = job.finish.take(job);
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
    let folder = Folder::open(root).map_err(|error| Error::local(root.display().to_string(), error))?;
    for item in directories {
        let looks = Looks {
            mode: Some(job.local_mode(item.mode, 0o777)),
            times: item.times.filter(|_| job.options.preserve),
            owner: item.owner.filter(|_| job.options.numeric_ids),
            preserve: job.options.preserve,
            keeps_ids: job.options.kept_bits() != 0o1777,
        };
        if let Err(error) = folder.finish_directory(&item.target, looks) {
            let reason = down::unwritten(&folder, &item, &error, 0);
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
                owner: item.owner.filter(|_| job.options.numeric_ids),
                ..up::looks(job, &item)
            };
            let result = up::set_looks(sessions, &path, &looks, is_root).await;
            (item, result)
        })
        .buffered(AT_ONCE);
    let mut setting = std::pin::pin!(setting);
    while let Some((item, result)) = setting.next().await {
        if let Err(error) = result {
            job.go_on_after(item.target, error)?;
        }
    }
    Ok(())
}
