//! Deletion of what the target has and the source has not.
//!
//! Nothing is deleted unless everything was copied: a source that could not be listed to its end would have more names than
//! were seen. What the filters leave out stays, with the directories that it is in.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::StreamExt as _;
use trunkline_request::copy::CopyEvent;
use trunkline_sftp::transfer::LeftOut;

use super::blocking::blocking;
use super::compare::split;
use super::directory::LocalDirectory;
use super::job::Job;
use super::path::{self, shown};
use super::place::Place;
use super::reason::Reason;
use super::sessions::Sessions;
use super::sources::{Directories, parent};
use super::tree::{HeldNames, Origin};
use crate::error::Error;
use crate::sftp::{FileType, Sftp};

/// Requests for single names in flight.
const AT_ONCE: usize = 64;

/// Deletes what the target has in the directories that were copied and no source has.
pub(super) async fn delete(job: &Arc<Job>, to: &Place, root: &Bytes) -> Result<(), Error> {
    if !job.deletion.is_wanted() {
        return Ok(());
    }
    if job.progress.failed.load(Ordering::Relaxed) > 0 {
        let message = "nothing was deleted, because not everything could be copied";
        job.progress.failed(root.clone(), message.to_owned());
        return Ok(());
    }
    let Directories {
        listed,
        names,
        passed_over,
    } = std::mem::take(&mut *job.deletion.directories());
    let target = match to {
        Place::Local => {
            let path = std::path::PathBuf::from(path::os(root));
            let here = job.clone();
            match blocking(move || here.open_directory(&path)).await {
                Ok(local) => Target::Local(Arc::new(local)),
                // A dry run has not made it.
                Err(_) if job.options.dry_run => return Ok(()),
                Err(error) => {
                    job.progress.failed(root.clone(), Reason::local(root, &error));
                    return Ok(());
                }
            }
        }
        Place::Server(sessions) => Target::Server(sessions.clone(), root.clone()),
    };
    let (target, names, passed_over) = (&target, &names, &passed_over);
    let deletions = listed.into_iter().map(|(directory, sources)| async move {
        let expected = names.get(&directory).copied().unwrap_or(0);
        let extraneous = Extraneous {
            job,
            target,
            directory: &directory,
            sources: Arc::new(sources),
            expected,
            passed_over,
        };
        extraneous.delete().await
    });
    let mut deletions = futures_util::stream::iter(deletions).buffer_unordered(AT_ONCE);
    while let Some(deleted) = deletions.next().await {
        deleted?;
    }
    Ok(())
}

/// Deletes a directory that is in the way of something else, where that was asked for. What the filters protect stays, and
/// the directory with it.
pub(super) async fn make_way(job: &Arc<Job>, target: &Target, path: &Bytes) -> Result<(), Error> {
    let (directory, name) = split(path);
    let sources = job.deletion.directories().listed.get(&directory).cloned();
    let in_the_way = Extraneous {
        job,
        target,
        directory: &directory,
        sources: Arc::new(sources.unwrap_or_default()),
        expected: 0,
        passed_over: &HashSet::new(),
    };
    in_the_way.delete_tree(&name).await
}

#[derive(Clone)]
pub(super) enum Target {
    Local(Arc<LocalDirectory>),
    Server(Arc<Sessions>, Bytes),
}

/// The deletion of one directory's names that no source has.
struct Extraneous<'a> {
    job: &'a Arc<Job>,
    target: &'a Target,
    directory: &'a Bytes,
    /// The directory's path below each source that has it, which patterns are matched with.
    sources: Arc<HashSet<Bytes>>,
    /// How many of its names the sources have.
    expected: u64,
    passed_over: &'a HashSet<Bytes>,
}

impl Extraneous<'_> {
    async fn delete(&self) -> Result<(), Error> {
        // Listed before the copy, it had nothing but what the sources have, and what was made since is theirs, too.
        let is_new = self.job.tree.parent(&path::join(self.directory, b"name")) == Some(Origin::Made);
        if is_new || self.job.there.is_used_up(self.directory) {
            return Ok(());
        }
        let there = match self.target.names(self.directory, &self.job.names).await {
            Ok(there) => there,
            // What a dry run has not made is not there.
            Err(_) if self.job.options.dry_run => return Ok(()),
            Err(reason) => {
                self.job.progress.failed(self.directory.clone(), reason);
                return Ok(());
            }
        };
        let (known, extraneous): (Vec<_>, Vec<_>) = there
            .into_iter()
            .partition(|(name, _)| self.job.tree.knows(&path::join(self.directory, name)));
        // All names were copied, and some are not there: the file system takes another name for the same, as those do
        // that know no case. What seems to be too much may be what was copied.
        if (known.len() as u64) < self.expected && !self.job.options.dry_run && !extraneous.is_empty() {
            let message = format!(
                "nothing was deleted in {}: names there are not those that were copied",
                self.target.shown(self.directory)
            );
            self.job.progress.failed(self.directory.clone(), message);
            return Ok(());
        }
        for (name, is_directory) in extraneous {
            let path = path::join(self.directory, &name);
            let is_kept = self.passed_over.contains(&path) || self.is_backup(&path);
            if is_kept || self.is_protected(&name, is_directory) {
                continue;
            }
            if is_directory {
                self.delete_tree(&name).await?;
            } else {
                self.delete_one(path, false).await?;
            }
        }
        Ok(())
    }

    /// Whether the filters leave a path below the directory out.
    fn is_protected(&self, path: &[u8], is_directory: bool) -> bool {
        is_protected(self.job, &self.sources, path, is_directory)
    }

    /// Whether a path is one of a backup, which stays.
    fn is_backup(&self, path: &[u8]) -> bool {
        is_backup(self.job, self.target, path)
    }

    /// Deletes a directory and what is in it, but for what is protected and the directories that it is in.
    async fn delete_tree(&self, name: &Bytes) -> Result<(), Error> {
        let root = path::join(self.directory, name);
        let protected = Arc::new(Mutex::new(HashSet::new()));
        let left_out = {
            let (job, sources, protected) = (self.job.clone(), self.sources.clone(), protected.clone());
            let (top, name, target) = (root.clone(), name.clone(), self.target.clone());
            move |path: &[u8], is_directory: bool| {
                let left_out = is_backup(&job, &target, &path::join(&top, path))
                    || is_protected(&job, &sources, &path::join(&name, path), is_directory);
                if left_out {
                    let mut protected = protected.lock().unwrap_or_else(PoisonError::into_inner);
                    let mut directory = parent(&path::join(&top, path));
                    while directory.len() >= top.len() && protected.insert(directory.clone()) {
                        directory = parent(&directory);
                    }
                }
                left_out
            }
        };
        let found = match self.target.tree(&root, &self.job.names, left_out).await {
            Ok(found) => found,
            Err(reason) => {
                self.job.progress.failed(root, reason);
                return Ok(());
            }
        };
        let mut protected = std::mem::take(&mut *protected.lock().unwrap_or_else(PoisonError::into_inner));
        let (directories, files): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|(_, is_directory)| *is_directory);
        let backup = self.job.options.backup.as_ref();
        if backup.is_some_and(|backup| backup.directory.is_none()) {
            // Their backups are going to be there.
            for (path, _) in &files {
                let mut directory = parent(path);
                while directory.len() >= root.len() && protected.insert(directory.clone()) {
                    directory = parent(&directory);
                }
            }
        }
        let deletions = files.into_iter().map(|(path, _)| self.delete_one(path, false));
        let mut deletions = futures_util::stream::iter(deletions).buffer_unordered(AT_ONCE);
        while let Some(deleted) = deletions.next().await {
            deleted?;
        }
        // A directory was found before what is in it.
        for (path, _) in directories.into_iter().rev() {
            if !protected.contains(&path) {
                self.delete_one(path, true).await?;
            }
        }
        Ok(())
    }

    async fn delete_one(&self, path: Bytes, is_directory: bool) -> Result<(), Error> {
        if !self.job.options.dry_run
            && let Err(reason) = self.target.delete(self.job, &path, is_directory).await?
        {
            self.job.progress.failed(path, reason);
            return Ok(());
        }
        self.job.finish.touch(&path);
        self.job.progress.tell(CopyEvent::Deleted { path });
        Ok(())
    }
}

fn is_backup(job: &Job, target: &Target, path: &[u8]) -> bool {
    let root: &[u8] = match target {
        Target::Local(local) => local.path().as_os_str().as_encoded_bytes(),
        Target::Server(_, root) => root,
    };
    let backup = job.options.backup.as_ref();
    backup.is_some_and(|backup| backup.has(root, path))
}

fn is_protected(job: &Job, sources: &HashSet<Bytes>, path: &[u8], is_directory: bool) -> bool {
    let mut below = sources.iter().map(|source| path::join(source, path));
    below.any(|below| match job.options.delete_excluded {
        true => job.filters.is_unlisted(&below, is_directory),
        false => job.filters.leave_out(&below, is_directory),
    })
}

impl Target {
    /// The names in a directory, and which of them are directories.
    async fn names(&self, directory: &Bytes, held: &HeldNames) -> Result<Vec<(Bytes, bool)>, Reason> {
        match self {
            Self::Local(local) => {
                let (local, directory) = (local.clone(), directory.clone());
                blocking(move || {
                    let names = local.names(&directory);
                    names.map_err(|error| words(&local, &directory, &error))
                })
                .await
            }
            Self::Server(sessions, root) => {
                let directory = &path_there(root, directory);
                let list = |sftp: Sftp| async move {
                    let mut listing = sftp.read_dir(directory);
                    let mut names = Vec::new();
                    while let Some(entry) = listing.next().await {
                        let entry = entry?;
                        held.hold(entry.path.len())?;
                        let is_directory = entry.attributes.file_type() == Some(FileType::Directory);
                        names.push((entry.path, is_directory));
                    }
                    Ok(names)
                };
                Ok(sessions.with(list).await?)
            }
        }
    }

    /// The paths of a directory and what is in it, each directory before what is in it.
    async fn tree(
        &self,
        top: &Bytes,
        held: &HeldNames,
        left_out: impl Fn(&[u8], bool) -> bool + Send + Sync + 'static,
    ) -> Result<Vec<(Bytes, bool)>, Reason> {
        match self {
            Self::Local(local) => {
                let (local, top) = (local.clone(), top.clone());
                blocking(move || {
                    let mut found = vec![(top.clone(), true)];
                    // Grows while it is gone through.
                    let mut at = 0;
                    while let Some((path, is_directory)) = found.get(at).cloned() {
                        at += 1;
                        if !is_directory {
                            continue;
                        }
                        let names = local.names(&path);
                        for (name, is_directory) in names.map_err(|error| words(&local, &path, &error))? {
                            let path = path::join(&path, &name);
                            let below = path.slice(top.len() + 1..);
                            if !left_out(&below, is_directory) {
                                found.push((path, is_directory));
                            }
                        }
                    }
                    Ok(found)
                })
                .await
            }
            Self::Server(sessions, root) => {
                let (there, left_out) = (&path_there(root, top), &LeftOut::new(left_out));
                let list = |sftp: Sftp| async move {
                    let mut found = vec![(top.clone(), true)];
                    let mut walk = sftp.walk_without(there, left_out.clone());
                    while let Some(entry) = walk.next().await {
                        let entry = entry?;
                        held.hold(top.len() + entry.path.len())?;
                        let is_directory = entry.attributes.file_type() == Some(FileType::Directory);
                        found.push((path::join(top, &entry.path), is_directory));
                    }
                    Ok(found)
                };
                Ok(sessions.with(list).await?)
            }
        }
    }

    /// Deletes one name. Fails when there is no session; gives a sentence when the name stays.
    async fn delete(&self, job: &Job, path: &Bytes, is_directory: bool) -> Result<Result<(), Reason>, Error> {
        match self {
            Self::Local(local) => {
                let (local, path) = (local.clone(), path.clone());
                let deleted = blocking(move || {
                    let deleted = local.delete(&path, is_directory);
                    deleted.map_err(|error| words(&local, &path, &error))
                });
                Ok(deleted.await)
            }
            Self::Server(sessions, root) => {
                let (target, path) = (path, path_there(root, path));
                if !is_directory {
                    match job.backups.keep(sessions, root, (&path, target)).await {
                        Ok(()) => {}
                        Err(error @ Error::File { .. }) if !error.is_no_such_file() => {
                            return Ok(Err(error.into()));
                        }
                        Err(Error::File { .. }) => return Ok(Ok(())),
                        Err(error) => return Err(error),
                    }
                }
                let delete = |sftp: Sftp| {
                    let path = path.clone();
                    async move {
                        match is_directory {
                            true => sftp.rmdir(path).await,
                            false => sftp.remove(path).await,
                        }
                    }
                };
                match sessions.with(delete).await {
                    // Of a session that was lost, the server may have heard.
                    Ok(()) => Ok(Ok(())),
                    Err(error) if error.is_no_such_file() => Ok(Ok(())),
                    Err(error @ Error::File { .. }) => Ok(Err(error.into())),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// A path below the target's root, for people.
    fn shown(&self, path: &Bytes) -> String {
        match self {
            Self::Local(local) => shown(local.shown(path).as_os_str().as_encoded_bytes()),
            Self::Server(sessions, root) => {
                let host = sessions.first().host().to_owned();
                format!("{host}: {}", shown(&path_there(root, path)))
            }
        }
    }
}

fn path_there(root: &Bytes, path: &Bytes) -> Bytes {
    match path.is_empty() {
        true => root.clone(),
        false => path::in_root(root, path),
    }
}

fn words(directory: &LocalDirectory, path: &[u8], error: &std::io::Error) -> Reason {
    Reason::local(directory.shown(path).as_os_str().as_encoded_bytes(), error)
}
