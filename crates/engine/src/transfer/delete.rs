//! Deletion of names that the target has and the source does not have.
//!
//! Nothing is deleted unless everything was copied: a source that could not be listed completely may have more names than were
//! seen. Names that the filters leave out stay, with the directories that they are in.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::Semaphore;
use trunkline_request::copy::CopyEvent;
use trunkline_sftp::transfer::LeftOut;

use super::blocking::blocking;
use super::compare::split;
use super::directory::LocalDirectory;
use super::item::Item;
use super::job::Job;
use super::path::{self, shown};
use super::place::Place;
use super::reason::Reason;
use super::sessions::Sessions;
use super::sources::{SourceDirectory, WHOLE, parent};
use super::spool::Held;
use super::tree::{KnownNames, Origin};
use crate::error::Error;
use crate::sftp::{FileType, Sftp};

/// Directories in which names are deleted at once.
const DIRECTORIES: u16 = 64;
/// Requests for single names of a directory in flight.
const AT_ONCE: usize = 256;
/// The memory of a path in addition to its bytes, in a list that grows by doubling.
const A_PATH: usize = 128;
/// The number of names in a directory that need no room in the budget, and of paths of a whole directory.
const LEAST: usize = 256;
/// The longest path of a directory that is emptied name by name: servers take no longer paths.
const LONGEST: usize = 4096;

/// Deletes the names in the copied directories at the target that no source has.
pub(super) async fn delete(job: &Arc<Job>, to: &Place, root: &Bytes) -> Result<(), Error> {
    if !job.deletion.is_wanted() {
        return Ok(());
    }
    if job.progress.failed.load(Ordering::Relaxed) > 0 {
        let message = "nothing was deleted, because not everything could be copied";
        job.progress.report_failed(root.clone(), message.to_owned());
        return Ok(());
    }
    let target = match to {
        Place::Local => {
            let path = std::path::PathBuf::from(path::os(root));
            let here = job.clone();
            match blocking(move || here.open_directory(&path)).await {
                Ok(local) => Target::Local(Arc::new(local)),
                // A dry run has not created the directory.
                Err(_) if job.options.dry_run => return Ok(()),
                Err(error) => {
                    job.progress
                        .report_failed(root.clone(), Reason::local(root, &error));
                    return Ok(());
                }
            }
        }
        Place::Server(sessions) => Target::Server(sessions.clone(), root.clone()),
    };
    let (target, turns) = (&target, &Semaphore::new(DIRECTORIES.into()));
    let directories = std::iter::from_fn(|| job.deletion.pop().transpose());
    let deletions = futures_util::stream::iter(directories).map(|directory| async move {
        let SourceDirectory {
            target: directory,
            below,
        } = directory?;
        Extraneous::new(job, target, directory, below).delete(turns).await
    });
    let mut deletions = std::pin::pin!(deletions.buffer_unordered(DIRECTORIES.into()));
    while let Some(deleted) = deletions.next().await {
        deleted?;
    }
    Ok(())
}

/// Deletes a directory that is in the way of an item. Names that the filters protect stay, and the directory with them.
pub(super) async fn make_way(job: &Arc<Job>, target: &Target, item: &Item) -> Result<(), Error> {
    let (directory, name) = split(&item.target);
    let sources = job.deletion.paths_below(&directory, item.below);
    Extraneous::new(job, target, directory, sources)
        .delete_tree(&name)
        .await
        .map(drop)
}

#[derive(Clone)]
pub(super) enum Target {
    Local(Arc<LocalDirectory>),
    Server(Arc<Sessions>, Bytes),
}

/// The deletion of one directory's names that no source has.
#[derive(Clone)]
struct Extraneous {
    job: Arc<Job>,
    target: Target,
    directory: Bytes,
    /// The directory's path below each source that has it, for matching patterns.
    sources: Arc<HashSet<Bytes>>,
}

/// The search for names in a directory at the target that no source has.
struct Sieve {
    extraneous: Extraneous,
    known: Arc<KnownNames>,
    held: Held,
    /// Names that were found, with their hashes: the first ones in this order if there is no room for all of them.
    found: BinaryHeap<(u64, Bytes, bool)>,
    /// The last name that was found before: names after it are looked for.
    after: Option<(u64, Bytes)>,
    least: usize,
    /// All names were found. Otherwise the rest are found when the directory is listed again.
    is_all: bool,
    /// No other names stay in the directory.
    is_bare: bool,
    /// The number of the directory's names that were copied.
    copied: usize,
}

impl Sieve {
    fn new(
        extraneous: &Extraneous,
        known: &Arc<KnownNames>,
        after: Option<(u64, Bytes)>,
        least: usize,
    ) -> Self {
        Self {
            extraneous: extraneous.clone(),
            known: known.clone(),
            held: Held::new(&extraneous.job.names),
            found: BinaryHeap::new(),
            after,
            least,
            is_all: true,
            is_bare: true,
            copied: 0,
        }
    }

    fn begin_anew(&mut self) {
        let after = self.after.take();
        *self = Self::new(&self.extraneous, &self.known, after, self.least);
    }

    fn add(&mut self, name: &[u8], is_directory: bool) {
        match self.known.is_copied(name) {
            Some(is_copied) => self.copied += usize::from(is_copied),
            None if self.extraneous.is_kept(name, is_directory) => self.is_bare = false,
            None => self.add_unknown(name, is_directory),
        }
    }

    fn add_unknown(&mut self, name: &[u8], is_directory: bool) {
        let hash = self.known.hash(name);
        let is_before = |(last, last_name): &(u64, Bytes)| (hash, name) <= (*last, &last_name[..]);
        if self.after.as_ref().is_some_and(is_before) {
            return;
        }
        self.found
            .push((hash, Bytes::copy_from_slice(name), is_directory));
        self.is_all &= self.found.len() <= self.least || self.held.grow(A_PATH + name.len());
        if !self.is_all {
            self.found.pop();
        }
    }
}

/// The paths of a directory and its content, as far as there is room for them.
struct Found {
    held: Held,
    names: Vec<(Bytes, bool)>,
    is_all: bool,
}

impl Found {
    fn new(job: &Job) -> Self {
        Self {
            held: Held::new(&job.names),
            names: Vec::new(),
            is_all: true,
        }
    }

    fn begin_anew(&mut self) {
        self.held.clear();
        self.names.clear();
        self.is_all = true;
    }

    /// Adds a path if there is room for it.
    fn add(&mut self, path: Bytes, is_directory: bool) {
        self.is_all &= self.names.len() < LEAST || self.held.grow(A_PATH + path.len());
        if self.is_all {
            self.names.push((path, is_directory));
        }
    }
}

/// A directory that is being emptied.
struct Level {
    at: Extraneous,
    known: Arc<KnownNames>,
    /// The number of names that need no room in the budget.
    least: usize,
    /// Names to be deleted, directories before files, and the room that they take.
    names: Vec<(u64, Bytes, bool)>,
    held: Held,
    /// The last name found so far, in the order of the hashes.
    after: Option<(u64, Bytes)>,
    is_listed: bool,
    /// Nothing else stays in the directory.
    is_bare: bool,
    /// The number of levels further in at which there may be room for a whole directory. Each time that there is none, twice as
    /// many levels as before are emptied name by name.
    untried: usize,
    step: usize,
    /// There was no room for one of the directories beside the others, so each is tried alone.
    is_crowded: bool,
}

impl Level {
    fn new(at: Extraneous, known: KnownNames, least: usize) -> Self {
        Self {
            held: Held::new(&at.job.names),
            at,
            known: Arc::new(known),
            least,
            names: Vec::new(),
            after: None,
            is_listed: false,
            is_bare: true,
            untried: 0,
            step: 1,
            is_crowded: false,
        }
    }

    /// Finds the names to be deleted next.
    async fn list(&mut self) {
        let Extraneous {
            job,
            target,
            directory,
            ..
        } = &self.at;
        self.held.clear();
        self.is_crowded = false;
        let sieve = Sieve::new(&self.at, &self.known, self.after.take(), self.least);
        let sieve = match target.sift(sieve).await {
            Ok(sieve) => sieve,
            Err(reason) => {
                // A dry run has not created the directory.
                if !job.options.dry_run {
                    job.progress.report_failed(directory.clone(), reason);
                }
                (self.is_listed, self.is_bare) = (true, false);
                return;
            }
        };
        // All names were copied, and some do not exist: the file system takes another name for the same, as case-insensitive ones
        // do. Names that seem extraneous may be copies.
        if sieve.copied < self.known.count_copied() && !job.options.dry_run && !sieve.found.is_empty() {
            let message = format!(
                "nothing was deleted in {}: names there are not those that were copied",
                target.format_path(directory)
            );
            job.progress.report_failed(directory.clone(), message);
            (self.is_listed, self.is_bare) = (true, false);
            return;
        }
        self.is_listed = sieve.is_all;
        self.is_bare &= sieve.is_bare;
        self.names = sieve.found.into_sorted_vec();
        self.held = sieve.held;
        self.after = self.names.last().map(|(hash, name, _)| (*hash, name.clone()));
        self.names.sort_by_key(|(_, _, is_directory)| !is_directory);
    }

    /// Takes the files among the names to be deleted.
    fn take_files(&mut self) -> Vec<(u64, Bytes, bool)> {
        let directories = self.names.partition_point(|(_, _, is_directory)| *is_directory);
        self.names.split_off(directories)
    }

    /// Deletes the directories with all their content, several at once. Returns one that is too large even alone.
    async fn delete_whole(&mut self) -> Result<Option<Bytes>, Error> {
        let alone = self.is_crowded;
        let first = if alone { self.names.len() - 1 } else { 0 };
        let at = &self.at;
        let deletions = self.names.drain(first..).map(|found| async move {
            let path = path::join(&at.directory, &found.1);
            (at.delete_whole(&found.1, &path).await, found)
        });
        let mut deletions = futures_util::stream::iter(deletions).buffer_unordered(WHOLE);
        let mut left = Vec::new();
        while let Some((whole, found)) = deletions.next().await {
            match whole? {
                Some(is_gone) => self.is_bare &= is_gone,
                None => left.push(found),
            }
        }
        drop(deletions);
        if alone {
            return Ok(left.pop().map(|(_, name, _)| name));
        }
        self.is_crowded = !left.is_empty();
        self.names = left;
        Ok(None)
    }
}

impl Extraneous {
    fn new(job: &Arc<Job>, target: &Target, directory: Bytes, sources: HashSet<Bytes>) -> Self {
        Self {
            job: job.clone(),
            target: target.clone(),
            directory,
            sources: Arc::new(sources),
        }
    }

    async fn delete(&self, turns: &Semaphore) -> Result<(), Error> {
        /// Directories with more names than this are in memory one at a time.
        const MANY: usize = 16 * 1024;
        // A new directory has only names of the sources. So has one whose listing was used up: later names come from the sources,
        // too.
        let is_new = self.job.tree.parent(&path::join(&self.directory, b"name")) == Some(Origin::Made);
        if is_new || self.job.there.is_used_up(&self.directory) {
            return Ok(());
        }
        // The semaphore is never closed.
        let turn = turns.acquire().await.ok();
        let known = self.job.tree.names_in(&self.directory)?;
        if known.len() <= MANY {
            return self.delete_unknown(known).await.map(drop);
        }
        drop((known, turn));
        let _all = turns.acquire_many(DIRECTORIES.into()).await.ok();
        let known = self.job.tree.names_in(&self.directory)?;
        self.delete_unknown(known).await.map(drop)
    }

    /// Deletes the names in the directory that are not known, as many at a time as there is room for. Returns whether none of
    /// them stays.
    async fn delete_unknown(&self, known: KnownNames) -> Result<bool, Error> {
        // A list rather than recursion: somebody else may have nested the directories.
        let mut levels = vec![Level::new(self.clone(), known, LEAST)];
        let mut is_bare = true;
        while let Some(level) = levels.last_mut() {
            let files = level.take_files();
            if !files.is_empty() {
                let directory = level.at.directory.clone();
                let paths = files
                    .into_iter()
                    .map(move |(_, name, _)| path::join(&directory, &name));
                level.is_bare &= level.at.delete_all(paths, false).await?;
                continue;
            }
            if level.names.is_empty() {
                if level.is_listed {
                    is_bare = level.is_bare;
                    let inner = levels.pop();
                    if let (Some(inner), Some(outer)) = (inner, levels.last_mut()) {
                        let path = inner.at.directory.clone();
                        outer.is_bare &= is_bare && inner.at.delete_one(path, true).await?;
                    }
                } else {
                    level.list().await;
                }
                continue;
            }
            let is_tried = level.untried == 0;
            let next = match is_tried {
                true => level.delete_whole().await?,
                false => level.names.pop().map(|(_, name, _)| name),
            };
            let Some(name) = next else { continue };
            let path = path::join(&level.at.directory, &name);
            if path.len() > LONGEST {
                let message = format!(
                    "{}: the directories are nested too deep",
                    self.target.format_path(&path)
                );
                self.job.progress.report_failed(path, message);
                level.is_bare = false;
            } else {
                let inner = level.at.inner(&name, path);
                let mut inner = Level::new(inner, self.job.tree.no_names(), 1);
                (inner.step, inner.untried) = match is_tried {
                    true => (level.step * 2, level.step),
                    false => (level.step, level.untried - 1),
                };
                levels.push(inner);
            }
        }
        Ok(is_bare)
    }

    /// Returns the deletion for a directory in this one that no source has.
    fn inner(&self, name: &Bytes, directory: Bytes) -> Self {
        let sources = self.sources.iter().map(|source| path::join(source, name));
        Self::new(&self.job, &self.target, directory, sources.collect())
    }

    /// Returns whether a name in the directory stays although no source has it.
    fn is_kept(&self, name: &[u8], is_directory: bool) -> bool {
        self.is_backup(&path::join(&self.directory, name)) || self.is_protected(name, is_directory)
    }

    /// Returns whether the filters leave out a path below the directory.
    fn is_protected(&self, path: &[u8], is_directory: bool) -> bool {
        is_protected(&self.job, &self.sources, path, is_directory)
    }

    /// Returns whether a path belongs to a backup, which stays.
    fn is_backup(&self, path: &[u8]) -> bool {
        is_backup(&self.job, &self.target, path)
    }

    /// Deletes a directory and its content, except protected names and the directories that they are in. Returns whether nothing
    /// of it stays.
    async fn delete_tree(&self, name: &Bytes) -> Result<bool, Error> {
        let root = path::join(&self.directory, name);
        if let Some(is_gone) = self.delete_whole(name, &root).await? {
            return Ok(is_gone);
        }
        let inner = self.inner(name, root.clone());
        let is_bare = inner.delete_unknown(self.job.tree.no_names()).await?;
        Ok(is_bare && self.delete_one(root, true).await?)
    }

    /// Deletes a directory with all its content. Returns whether nothing of it stays; `None` if there is no room for so many
    /// names.
    async fn delete_whole(&self, name: &Bytes, root: &Bytes) -> Result<Option<bool>, Error> {
        // The semaphore is never closed.
        let _turn = self.job.deletion.whole.acquire().await.ok();
        let protected = Arc::new(Mutex::new(HashSet::new()));
        let left_out = {
            let (job, sources, protected) = (self.job.clone(), self.sources.clone(), protected.clone());
            let (top, name, target) = (root.clone(), name.clone(), self.target.clone());
            move |path: &[u8], is_directory: bool| {
                let left_out = is_backup(&job, &target, &path::join(&top, path))
                    || is_protected(&job, &sources, &path::join(&name, path), is_directory);
                if left_out {
                    protect(&mut lock(&protected), &top, &path::join(&top, path));
                }
                left_out
            }
        };
        let found = match self.target.tree(root, Found::new(&self.job), left_out).await {
            Ok(found) => found,
            Err(reason) => {
                self.job.progress.report_failed(root.clone(), reason);
                return Ok(Some(false));
            }
        };
        if !found.is_all {
            return Ok(None);
        }
        let mut protected = std::mem::take(&mut *lock(&protected));
        let (mut directories, files): (Vec<_>, Vec<_>) = found
            .names
            .into_iter()
            .partition(|(_, is_directory)| *is_directory);
        if self.keeps_backups_beside() {
            for (path, _) in &files {
                protect(&mut protected, root, path);
            }
        }
        let mut is_gone = protected.is_empty();
        is_gone &= self
            .delete_all(files.into_iter().map(|(path, _)| path), false)
            .await?;
        // Those that are in others come before them.
        let depth = |(path, _): &(Bytes, bool)| Reverse(path.iter().filter(|byte| **byte == b'/').count());
        directories.sort_by_key(depth);
        for alike in directories.chunk_by(|one, two| depth(one) == depth(two)) {
            let paths = alike.iter().map(|(path, _)| path.clone());
            let paths: Vec<_> = paths.filter(|path| !protected.contains(path)).collect();
            is_gone &= self.delete_all(paths.into_iter(), true).await?;
        }
        Ok(Some(is_gone))
    }

    /// Deletes names of which none is in another, several at once. Returns whether nothing of them stays.
    async fn delete_all(
        &self,
        paths: impl Iterator<Item = Bytes>,
        are_directories: bool,
    ) -> Result<bool, Error> {
        let deletions = paths.map(|path| self.delete_one(path, are_directories));
        let mut deletions = futures_util::stream::iter(deletions).buffer_unordered(AT_ONCE);
        let mut is_gone = true;
        while let Some(is_deleted) = deletions.next().await {
            is_gone &= is_deleted?;
        }
        Ok(is_gone)
    }

    /// Returns whether deleted files stay in their directory under other names.
    fn keeps_backups_beside(&self) -> bool {
        let backup = self.job.options.backup.as_ref();
        backup.is_some_and(|backup| backup.directory.is_none())
    }

    /// Deletes one name. Returns whether nothing of it stays.
    async fn delete_one(&self, path: Bytes, is_directory: bool) -> Result<bool, Error> {
        if !self.job.options.dry_run
            && let Err(reason) = self.target.delete(&self.job, &path, is_directory).await?
        {
            self.job.progress.report_failed(path, reason);
            return Ok(false);
        }
        self.job.tree.touch(&path);
        self.job.progress.report(CopyEvent::Deleted { path });
        Ok(is_directory || !self.keeps_backups_beside())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Protects the directories that a path is in.
fn protect(protected: &mut HashSet<Bytes>, top: &Bytes, path: &Bytes) {
    let mut directory = parent(path);
    while directory.len() >= top.len() && protected.insert(directory.clone()) {
        directory = parent(&directory);
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
    /// Passes the names in a sieve's directory to the sieve.
    async fn sift(&self, mut sieve: Sieve) -> Result<Sieve, Reason> {
        let directory = sieve.extraneous.directory.clone();
        match self {
            Self::Local(local) => {
                let local = local.clone();
                blocking(move || {
                    let listed =
                        local.each_name(&directory, |name, is_directory| sieve.add(name, is_directory));
                    listed.map_err(|error| words(&local, &directory, &error))?;
                    Ok(sieve)
                })
                .await
            }
            Self::Server(sessions, root) => {
                let (directory, shared) = (&path_there(root, &directory), Mutex::new(sieve));
                let sieve = &shared;
                let list = |sftp: Sftp| async move {
                    lock(sieve).begin_anew();
                    let mut listing = sftp.read_dir(directory);
                    while let Some(entry) = listing.next().await {
                        let entry = entry?;
                        let is_directory = entry.attributes.file_type() == Some(FileType::Directory);
                        lock(sieve).add(&entry.path, is_directory);
                    }
                    Ok(())
                };
                sessions.retry(list).await?;
                Ok(shared.into_inner().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }

    /// Returns the paths of a directory and its content, each directory before its content.
    async fn tree(
        &self,
        top: &Bytes,
        mut found: Found,
        left_out: impl Fn(&[u8], bool) -> bool + Send + Sync + 'static,
    ) -> Result<Found, Reason> {
        match self {
            Self::Local(local) => {
                let (local, top) = (local.clone(), top.clone());
                blocking(move || {
                    found.add(top.clone(), true);
                    // The list grows during the loop.
                    let mut at = 0;
                    while let Some((directory, is_directory)) = found.names.get(at).cloned()
                        && found.is_all
                    {
                        at += 1;
                        if !is_directory {
                            continue;
                        }
                        let each = |name: &[u8], is_directory| {
                            let path = path::join(&directory, name);
                            if !left_out(&path[top.len() + 1..], is_directory) {
                                found.add(path, is_directory);
                            }
                        };
                        let listed = local.each_name(&directory, each);
                        listed.map_err(|error| words(&local, &directory, &error))?;
                    }
                    Ok(found)
                })
                .await
            }
            Self::Server(sessions, root) => {
                let (there, left_out) = (&path_there(root, top), &LeftOut::new(left_out));
                let shared = Mutex::new(found);
                let found = &shared;
                let list = |sftp: Sftp| async move {
                    lock(found).begin_anew();
                    lock(found).add(top.clone(), true);
                    let mut walk = sftp.walk_without(there, left_out.clone());
                    while let Some(entry) = walk.next().await {
                        let entry = entry?;
                        let is_directory = entry.attributes.file_type() == Some(FileType::Directory);
                        let mut found = lock(found);
                        found.add(path::join(top, &entry.path), is_directory);
                        if !found.is_all {
                            break;
                        }
                    }
                    Ok(())
                };
                sessions.retry(list).await?;
                Ok(shared.into_inner().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }

    /// Deletes one name. Fails if there is no session; returns a reason if the name stays.
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
                match sessions.retry(delete).await {
                    Ok(()) => Ok(Ok(())),
                    // A session that was lost may have deleted the name.
                    Err(error) if error.is_no_such_file() => Ok(Ok(())),
                    Err(error @ Error::File { .. }) => Ok(Err(error.into())),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Formats a path below the target's root for people.
    fn format_path(&self, path: &Bytes) -> String {
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
