//! A copy's memory of its sources: [`Deletion`], which directories they have; [`HardLinks`], which names are one file.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Semaphore;
use trunkline_sftp::transfer::NameBudget;

use super::item::Item;
use super::spool::{Held, Spool};
use crate::error::Error;

/// Directories that are deleted with all their content at once. The first paths of each take no room of the budget.
pub(super) const WHOLE: usize = 256;

/// The names of the sources, which a copy with `delete` remembers.
#[derive(Debug)]
pub(super) struct Deletion {
    /// Whether it was asked for.
    wanted: bool,
    /// Guards the lists for as long as it takes to add to them.
    directories: Mutex<Directories>,
    /// Turns for deleting a directory with all its content.
    pub(super) whole: Semaphore,
}

#[derive(Debug)]
struct Directories {
    /// Directories of the sources.
    listed: Spool,
    /// Directories of the same target in further sources: their paths from each source.
    further: HashMap<Bytes, HashSet<Bytes>>,
    held: Held,
}

/// A directory of the sources.
#[derive(Debug)]
pub(super) struct SourceDirectory {
    /// Below the target's root.
    pub(super) target: Bytes,
    /// Its paths below each source that has it, which is what patterns are matched with.
    pub(super) below: HashSet<Bytes>,
}

impl Deletion {
    pub(super) fn new(wanted: bool, budget: &NameBudget) -> Self {
        Self {
            wanted,
            directories: Mutex::new(Directories {
                listed: Spool::new(budget),
                further: HashMap::new(),
                held: Held::new(budget),
            }),
            whole: Semaphore::new(WHOLE),
        }
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Notes that a source has a directory, whose path from there begins in that of its target.
    ///
    /// # Errors
    /// There is no place for it, neither in memory nor in a file.
    pub(super) fn enter(&self, target: &Bytes, below: usize) -> Result<(), Error> {
        if !self.wanted {
            return Ok(());
        }
        let below = u32::try_from(below).unwrap_or(u32::MAX);
        let record = [&below.to_ne_bytes(), &target[..]].concat();
        self.directories().listed.push(&record)
    }

    /// Notes that a further source has a directory that one before has, too.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn enter_again(&self, target: &Bytes, below: usize) -> Result<(), Error> {
        /// Of both paths, in tables.
        const A_DIRECTORY: usize = 256;
        if !self.wanted {
            return Ok(());
        }
        let directories = &mut *self.directories();
        let below = target.slice(below.min(target.len())..);
        if directories
            .further
            .entry(target.clone())
            .or_default()
            .insert(below)
        {
            directories.held.must_grow(A_DIRECTORY + target.len())?;
        }
        Ok(())
    }

    /// The paths that a directory has below each source.
    pub(super) fn paths_below(&self, target: &Bytes, below: usize) -> HashSet<Bytes> {
        let further = self.directories().further.get(target).cloned();
        let mut all = further.unwrap_or_default();
        all.insert(target.slice(below.min(target.len())..));
        all
    }

    /// The directory that was noted last.
    ///
    /// # Errors
    /// It cannot be read from the file that it is in.
    pub(super) fn pop(&self) -> Result<Option<SourceDirectory>, Error> {
        let record = self.directories().listed.pop()?;
        Ok(record.and_then(|record| {
            let (below, target) = record.split_first_chunk()?;
            let target = Bytes::copy_from_slice(target);
            let below = self.paths_below(&target, u32::from_ne_bytes(*below) as usize);
            Some(SourceDirectory { target, below })
        }))
    }

    fn directories(&self) -> MutexGuard<'_, Directories> {
        self.directories.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The path that a path below the target's root is in.
pub(super) fn parent(path: &Bytes) -> Bytes {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => path.slice(..at),
        None => Bytes::new(),
    }
}

/// The files with several names that a copy has met.
#[derive(Debug, Default)]
pub(super) struct HardLinks {
    /// Whether that was asked for.
    wanted: bool,
    /// Guards the tables for as long as a look-up takes.
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    /// The first name of each, below the target's root, by device and inode.
    first: HashMap<(u64, u64), Bytes>,
    others: Vec<Other>,
}

/// Another name of a file.
#[derive(Debug)]
pub(super) struct Other {
    pub(super) item: Item,
    pub(super) first: Bytes,
}

impl HardLinks {
    pub(super) fn new(wanted: bool) -> Self {
        Self {
            wanted,
            ..Self::default()
        }
    }

    /// Keeps a name for later that is another one of a file which was found before.
    pub(super) fn keep(&self, item: &Item) -> bool {
        let Some(inode) = item.inode.filter(|_| self.wanted) else {
            return false;
        };
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(first) = found.first.get(&inode).cloned() else {
            found.first.insert(inode, item.target.clone());
            return false;
        };
        let item = item.clone();
        found.others.push(Other { item, first });
        true
    }

    pub(super) fn take(&self) -> Vec<Other> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut found.others)
    }
}
