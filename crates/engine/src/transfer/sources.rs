//! A copy's memory of its sources: [`Deletion`], which names they have; [`HardLinks`], which names are one file.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::item::Item;

/// The names of the sources, which a copy with `delete` remembers.
#[derive(Debug, Default)]
pub(super) struct Deletion {
    /// Whether it was asked for.
    wanted: bool,
    /// Guards the tables for as long as a look-up takes.
    directories: Mutex<Directories>,
}

#[derive(Debug, Default)]
pub(super) struct Directories {
    /// Directories of the sources: their paths below the target's root, and below each source that has them.
    pub(super) listed: BTreeMap<Bytes, HashSet<Bytes>>,
    /// How many names the sources have in each.
    pub(super) names: HashMap<Bytes, u64>,
    /// Paths of what the sources have and is not copied.
    pub(super) passed_over: HashSet<Bytes>,
}

impl Deletion {
    pub(super) fn new(wanted: bool) -> Self {
        Self {
            wanted,
            ..Self::default()
        }
    }

    /// Whether paths are kept, to compare them with the target's.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Notes that a source has a directory.
    pub(super) fn enter(&self, target: &Bytes, below: &[u8]) {
        if self.wanted {
            let mut directories = self.directories();
            let listed = directories.listed.entry(target.clone()).or_default();
            listed.insert(Bytes::copy_from_slice(below));
        }
    }

    /// Notes that a source has a name which the target will have.
    pub(super) fn expect(&self, target: &Bytes) {
        if self.wanted {
            *self.directories().names.entry(parent(target)).or_default() += 1;
        }
    }

    /// Notes that a source has something that is not copied.
    pub(super) fn pass_over(&self, target: &Bytes) {
        if self.wanted {
            self.directories().passed_over.insert(target.clone());
        }
    }

    /// Notes that such a name is not copied after all.
    pub(super) fn leave(&self, target: &Bytes) {
        if self.wanted {
            let mut directories = self.directories();
            if let Some(expected) = directories.names.get_mut(&parent(target)) {
                *expected = expected.saturating_sub(1);
            }
            directories.passed_over.insert(target.clone());
        }
    }

    pub(super) fn directories(&self) -> MutexGuard<'_, Directories> {
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
