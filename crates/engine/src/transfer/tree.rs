//! [`Tree`]: what a copy makes below its target, whichever way it goes; [`Finish`]: the directories of it that get their
//! looks in the end.
//!
//! A name is made once, and only in a directory that this copy made, or looked at and found to be one: never below a link,
//! whether the source lists a name twice (a link, then a directory), the target has the link, or the file system there takes
//! two names for one.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use trunkline_sftp::transfer::NameBudget;

use super::compare::split;
use super::item::Item;
use crate::error::{Error, Invalid};

/// The memory for the names that servers tell, out of the budget that all copies share: a server may make up names without end.
#[derive(Debug)]
pub(super) struct HeldNames {
    budget: NameBudget,
    bytes: AtomicUsize,
}

/// The memory of a name's hash in tables that grow by doubling, and of a path beside its bytes.
const A_HASH: usize = 48;
const A_PATH: usize = 128;

impl HeldNames {
    /// None yet, out of this budget.
    pub(super) fn new(budget: NameBudget) -> Self {
        Self {
            budget,
            bytes: AtomicUsize::new(0),
        }
    }

    /// Counts one more name, with so many bytes of a path where that is kept.
    ///
    /// # Errors
    /// The names of all copies take more than they may together.
    pub(super) fn hold(&self, path: usize) -> Result<(), Error> {
        self.take(if path == 0 { A_HASH } else { A_PATH + path })
    }

    /// Counts a directory, which is kept until it gets its looks in the end, with so many bytes of paths.
    ///
    /// # Errors
    /// As [`Self::hold`].
    pub(super) fn hold_directory(&self, paths: usize) -> Result<(), Error> {
        // It is known as a directory as well, and perhaps as one in which something changes.
        self.take(size_of::<Item>() + paths + A_HASH + A_PATH)
    }

    fn take(&self, taken: usize) -> Result<(), Error> {
        self.bytes.fetch_add(taken, Ordering::Relaxed);
        match self.budget.keep(taken) {
            true => Ok(()),
            false => Err(Invalid::TooManyNames.into()),
        }
    }
}

impl Drop for HeldNames {
    fn drop(&mut self) {
        self.budget.give_back(*self.bytes.get_mut());
    }
}

/// Names and directories below the target, as hashes of their paths. The keys are random: nobody can choose two paths of one
/// hash.
#[derive(Debug, Default)]
pub(super) struct Tree {
    hasher: RandomState,
    /// Guards the tables for as long as a look-up takes.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    names: HashMap<u64, Name>,
    directories: HashMap<u64, Origin>,
    sources: u32,
}

#[derive(Debug, Clone, Copy)]
struct Name {
    source: u32,
    is_directory: bool,
}

/// How a directory came to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// This copy made it: there is nothing in it but what this copy puts there.
    Made,
    /// It was there, and is not a link.
    Found,
}

/// Whether a name is to be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameClaim {
    /// Yes: it is new.
    New,
    /// It was told before, by the same source or as the same directory of another one.
    Again,
    /// Another source has put something else there.
    Taken,
}

impl Tree {
    /// A number for one more source.
    pub(super) fn source(&self) -> u32 {
        let mut state = self.state();
        state.sources += 1;
        state.sources
    }

    /// Notes that a source has a name for this path.
    pub(super) fn tell(&self, path: &[u8], source: u32, is_directory: bool) -> NameClaim {
        let name = Name { source, is_directory };
        match self.state().names.entry(self.hasher.hash_one(path)) {
            Entry::Vacant(place) => {
                place.insert(name);
                NameClaim::New
            }
            Entry::Occupied(known) => {
                let known = known.get();
                if known.source == source || known.is_directory && is_directory {
                    NameClaim::Again
                } else {
                    NameClaim::Taken
                }
            }
        }
    }

    /// Whether a source has a name for this path.
    pub(super) fn knows(&self, path: &[u8]) -> bool {
        self.state().names.contains_key(&self.hasher.hash_one(path))
    }

    /// Notes that a directory is there.
    pub(super) fn hold(&self, path: &[u8], origin: Origin) {
        self.state()
            .directories
            .insert(self.hasher.hash_one(path), origin);
    }

    /// Notes that a directory is not there after all.
    pub(super) fn lose(&self, path: &[u8]) {
        self.state().directories.remove(&self.hasher.hash_one(path));
    }

    /// Returns the origin of the directory that a path is in; `None` if nothing may be made there.
    pub(super) fn parent(&self, path: &[u8]) -> Option<Origin> {
        match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => {
                let hash = self.hasher.hash_one(&path[..at]);
                self.state().directories.get(&hash).copied()
            }
            // The user named it.
            None => Some(Origin::Found),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
    /// The source that is copied into the target itself.
    root: Option<Item>,
    /// Those in which something changes, which changes their times.
    touched: HashSet<Bytes>,
}

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

    /// Takes the directories, the deepest first: a directory's times must be set after the last change in it. One that is
    /// right and stays so is left out.
    pub(super) fn take(&self, keeps_root: bool) -> Vec<Item> {
        let Directories { made, root, touched } = std::mem::take(&mut *self.directories());
        let root = root.filter(|_| keeps_root);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_share_what_their_names_may_take_and_give_it_back() {
        let budget = NameBudget::new(1024);
        let [one, other] = [(); 2].map(|()| HeldNames::new(budget.clone()));
        let room = |names: &HeldNames| (0..).take_while(|_| names.hold(0).is_ok()).count();
        let most = budget.most_kept() / A_HASH;
        assert_eq!(room(&one), most);
        assert!(other.hold(100).is_err());
        drop(one);
        assert!(other.hold(100).is_ok());
        drop(other);
        assert_eq!(room(&HeldNames::new(budget)), most);
    }

    #[test]
    fn a_directory_takes_what_is_kept_of_it() {
        let budget = NameBudget::new(1024);
        let names = HeldNames::new(budget.clone());
        let most = (0..).take_while(|_| names.hold_directory(100).is_ok()).count();
        assert!(
            most > 0 && most * (size_of::<Item>() + 100) <= budget.most_kept(),
            "{most}"
        );
    }

    #[test]
    fn a_path_is_told_once_and_only_directories_of_two_sources_meet() {
        let tree = Tree::default();
        let (one, two) = (tree.source(), tree.source());
        assert_eq!(tree.tell(b"d", one, true), NameClaim::New);
        assert_eq!(tree.tell(b"d", one, false), NameClaim::Again);
        assert_eq!(tree.tell(b"d", two, true), NameClaim::Again);
        assert_eq!(tree.tell(b"d", two, false), NameClaim::Taken);
        assert_eq!(tree.tell(b"d/f", one, false), NameClaim::New);
        assert_eq!(tree.tell(b"d/f", two, false), NameClaim::Taken);
    }

    #[test]
    fn nothing_is_made_in_a_directory_that_nobody_has_seen() {
        let tree = Tree::default();
        assert_eq!(tree.parent(b"top"), Some(Origin::Found));
        assert_eq!(tree.parent(b"link/x"), None);
        tree.hold(b"d", Origin::Made);
        assert_eq!(tree.parent(b"d/x"), Some(Origin::Made));
        assert_eq!(tree.parent(b"d/e/x"), None);
    }
}
