//! [`Tree`]: the names that a copy makes below its target, in either direction; [`Finish`]: the directories that get their
//! attributes in the end.
//!
//! A name is made once, and only in a directory that this copy made, or looked at and found to be a directory. No name is made
//! below a link, even if the source lists a name twice (a link, then a directory), the target has the link, or the target's file
//! system takes two names for the same.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use trunkline_sftp::transfer::NameBudget;

use super::compare::split;
use super::item::Item;
use super::spool::{Held, Names, Spool};
use crate::error::Error;
use crate::sftp::Owner;

/// The memory of a directory, or of a name in the target itself, in a table that grows by doubling.
const AN_ENTRY: usize = 40;

/// Names and directories below the target, as hashes of their paths. The keys are random, so that nobody can choose two paths
/// with the same hash.
#[derive(Debug)]
pub(super) struct Tree {
    hasher: RandomState,
    /// Names are kept: another source or a repeated walk may report one again, or `--delete` looks for them at the end.
    keeps_names: bool,
    /// Guards the tables; held for one look-up at a time.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The names in directories.
    names: Names,
    /// Sources that go into the target under names of their own, and whether they are directories.
    tops: HashMap<u64, bool>,
    directories: HashMap<u64, Directory>,
    held: Held,
    sources: usize,
    /// The number of sources whose content goes into the target itself.
    roots: usize,
    /// The walk through the present source began anew.
    is_anew: bool,
    /// The names that were looked up last: those in a directory, and the present source's in a directory that other sources have,
    /// too.
    known: [Option<(u64, Vec<u64>)>; 2],
}

#[derive(Debug, Clone, Copy, Default)]
struct Directory {
    origin: Option<Origin>,
    /// The directory was reported more than once, so its content may be reported again.
    is_again: bool,
    /// Something in the directory changes, which changes the directory's times.
    is_touched: bool,
}

/// The origin of a directory at the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// This copy made the directory: only this copy puts anything in it.
    Made,
    /// The directory existed, and is not a link.
    Found,
}

/// The decision whether to copy a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameClaim {
    /// The name is new, and is copied.
    New,
    /// The name was reported before, by the same source or as the same directory of another source.
    Again,
    /// Another source has put something else there.
    Taken,
}

/// Flags of a name's hash: the name is a directory's; the name is not copied.
const IS_DIRECTORY: u64 = 1;
const IS_LEFT: u64 = 2;

impl Tree {
    pub(super) fn new(budget: &NameBudget, keeps_names: bool) -> Self {
        Self {
            hasher: RandomState::new(),
            keeps_names,
            state: Mutex::new(State {
                names: Names::new(budget),
                tops: HashMap::new(),
                directories: HashMap::new(),
                held: Held::new(budget),
                sources: 0,
                roots: 0,
                is_anew: false,
                known: [None, None],
            }),
        }
    }

    /// Begins a further source.
    pub(super) fn source(&self) {
        let mut state = self.state();
        state.sources += 1;
        state.is_anew = false;
        state.seal();
    }

    /// Returns the number of sources.
    pub(super) fn sources(&self) -> usize {
        self.state().sources
    }

    /// Notes that the present source's content goes into the target itself. Returns whether this is the first such source.
    pub(super) fn enter_root(&self) -> bool {
        let mut state = self.state();
        state.roots += 1;
        let is_again = state.roots > 1;
        let root = state.directories.entry(self.hash(b"")).or_default();
        root.is_again |= is_again;
        !is_again
    }

    /// Notes that the present source's names are reported again from the start.
    pub(super) fn begin_anew(&self) {
        let mut state = self.state();
        state.is_anew = true;
        state.seal();
    }

    /// Notes that the present source has a name for this path; `is_source`: the name is that of the source itself.
    ///
    /// # Errors
    /// There is no room, neither in memory nor in a file.
    pub(super) fn tell(&self, path: &Bytes, is_source: bool, is_directory: bool) -> Result<NameClaim, Error> {
        let (directory, name) = self.hashes(path);
        let state = &mut *self.state();
        let is_again = state
            .directories
            .get(&directory)
            .is_some_and(|directory| directory.is_again);
        // The key of the names that the present source has in a directory that other sources have, too.
        let own = directory ^ self.hash(&state.sources.to_ne_bytes());
        let is_top = !path.contains(&b'/');
        let top = state.tops.get(&name).copied().filter(|_| is_top);
        let mut found = top;
        if found.is_none() && (is_again || state.is_anew && !is_source || is_source && state.roots > 0) {
            found = state
                .find(directory, name, 0)?
                .map(|flags| flags & IS_DIRECTORY != 0);
        }
        if let Some(was_directory) = found {
            if state.is_anew && !is_source && top.is_none() {
                let is_own = !is_again || state.find(own, name, 1)?.is_some();
                if is_own {
                    return Ok(NameClaim::Again);
                }
            }
            if !was_directory || !is_directory {
                return Ok(NameClaim::Taken);
            }
            state.directories.entry(self.hash(path)).or_default().is_again = true;
            return Ok(NameClaim::Again);
        }
        if is_directory {
            state.held.must_grow(AN_ENTRY)?;
        }
        if is_source {
            state.held.must_grow(AN_ENTRY)?;
            state.tops.insert(name, is_directory);
        } else if self.keeps_names {
            let name = name | if is_directory { IS_DIRECTORY } else { 0 };
            state.names.push(directory, name)?;
            if is_again {
                state.names.push(own, name)?;
            }
        }
        Ok(NameClaim::New)
    }

    /// Notes that a source has something at this path that is not copied, even if it was reported as copied before.
    ///
    /// # Errors
    /// As [`Self::tell`].
    pub(super) fn leave(&self, path: &Bytes) -> Result<(), Error> {
        let (directory, name) = self.hashes(path);
        match self.keeps_names {
            true => self.state().names.push(directory, name | IS_LEFT),
            false => Ok(()),
        }
    }

    /// Returns the names that the sources have in a directory.
    ///
    /// # Errors
    /// The names cannot be read from their temporary file.
    pub(super) fn names_in(&self, directory: &[u8]) -> Result<KnownNames, Error> {
        let mut state = self.state();
        state.names.seal();
        let mut names = state.names.names_in(self.hash(directory))?;
        if directory.is_empty() {
            names.extend(state.tops.keys());
            Names::order(&mut names);
        }
        Ok(KnownNames {
            names,
            ..self.no_names()
        })
    }

    /// Returns no names, for a directory that no source has.
    pub(super) fn no_names(&self) -> KnownNames {
        KnownNames {
            hasher: self.hasher.clone(),
            names: Vec::new(),
        }
    }

    /// Notes that a directory exists at the target.
    pub(super) fn hold(&self, path: &[u8], origin: Origin) {
        let hash = self.hash(path);
        self.state().directories.entry(hash).or_default().origin = Some(origin);
    }

    /// Notes that a directory does not exist after all.
    pub(super) fn lose(&self, path: &[u8]) {
        let hash = self.hash(path);
        self.state().directories.entry(hash).or_default().origin = None;
    }

    /// Returns the origin of a path's directory; `None` if nothing may be made there.
    pub(super) fn parent(&self, path: &[u8]) -> Option<Origin> {
        match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => self.state().directories.get(&self.hash(&path[..at]))?.origin,
            // The target itself, which the user named.
            None => Some(Origin::Found),
        }
    }

    /// Notes that something changes in a path's directory.
    pub(super) fn touch(&self, path: &Bytes) {
        let parent = self.hash(&split(path).0);
        self.state().directories.entry(parent).or_default().is_touched = true;
    }

    fn is_touched(&self, directory: &[u8]) -> bool {
        let hash = self.hash(directory);
        self.state()
            .directories
            .get(&hash)
            .is_some_and(|directory| directory.is_touched)
    }

    fn hash(&self, path: &[u8]) -> u64 {
        self.hasher.hash_one(path)
    }

    /// Returns the hashes of a path's directory and of its name there.
    fn hashes(&self, path: &Bytes) -> (u64, u64) {
        let (directory, name) = split(path);
        (self.hash(&directory), self.hash(&name) & !Names::FLAGS)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Lets the names that were reported so far be found: from now on they may be reported again.
    fn seal(&mut self) {
        if self.names.seal() {
            self.known = [None, None];
        }
    }

    /// Looks for a name among those of earlier sources, or those reported before the walk began anew. Returns its flags.
    fn find(&mut self, directory: u64, name: u64, which: usize) -> Result<Option<u64>, Error> {
        let known = match self.known[which].take() {
            Some((of, known)) if of == directory => known,
            _ => self.names.names_in(directory)?,
        };
        let found = Names::find(&known, name);
        self.known[which] = Some((directory, known));
        Ok(found)
    }
}

/// The names that sources have in a directory.
pub(super) struct KnownNames {
    hasher: RandomState,
    /// Hashes with flags, in order.
    names: Vec<u64>,
}

impl KnownNames {
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns the number of names that were copied.
    pub(super) fn count_copied(&self) -> usize {
        self.names.iter().filter(|name| **name & IS_LEFT == 0).count()
    }

    /// Returns whether a source's name was copied; `None` if no source has it.
    pub(super) fn is_copied(&self, name: &[u8]) -> Option<bool> {
        Names::find(&self.names, self.hash(name)).map(|flags| flags & IS_LEFT == 0)
    }

    /// Returns the hash of a name, which nobody else can know.
    pub(super) fn hash(&self, name: &[u8]) -> u64 {
        self.hasher.hash_one(name)
    }
}

/// The directories that get their attributes in the end.
#[derive(Debug)]
pub(super) struct Finish {
    /// Guards the list; held to add or take one directory at a time.
    directories: Mutex<Directories>,
}

#[derive(Debug)]
struct Directories {
    /// Each directory before the directories in it.
    made: Spool,
    /// The source that is copied into the target itself.
    root: Option<FinishedDirectory>,
}

/// A directory that gets its attributes in the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FinishedDirectory {
    /// The path below the target's root; empty for the root itself.
    pub(super) target: Bytes,
    pub(super) mode: Option<u32>,
    pub(super) times: Option<(u32, u32)>,
    pub(super) owner: Option<Owner>,
    /// The attributes are right already, unless something changes in the directory.
    is_right: bool,
}

impl From<&Item> for FinishedDirectory {
    fn from(item: &Item) -> Self {
        Self {
            target: item.target.clone(),
            mode: item.mode,
            times: item.times,
            owner: item.owner,
            is_right: item.is_right,
        }
    }
}

impl FinishedDirectory {
    fn to_record(&self) -> Vec<u8> {
        let mut record = Vec::with_capacity(21 + self.target.len());
        let is_there = [
            self.is_right,
            self.mode.is_some(),
            self.times.is_some(),
            self.owner.is_some(),
        ];
        record.push(
            (0..)
                .zip(is_there)
                .fold(0, |flags, (bit, is)| flags | u8::from(is) << bit),
        );
        let (accessed, modified) = self.times.unwrap_or_default();
        let owner = self.owner.unwrap_or(Owner { uid: 0, gid: 0 });
        for number in [self.mode.unwrap_or(0), accessed, modified, owner.uid, owner.gid] {
            record.extend_from_slice(&number.to_ne_bytes());
        }
        record.extend_from_slice(&self.target);
        record
    }

    fn from_record(record: &[u8]) -> Option<Self> {
        let (flags, rest) = record.split_first()?;
        let (numbers, target) = rest.split_at_checked(20)?;
        let number = |nth: usize| {
            let bytes = numbers[4 * nth..].first_chunk();
            bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
        };
        let is = |bit: u8| flags & 1 << bit != 0;
        Some(Self {
            target: Bytes::copy_from_slice(target),
            mode: is(1).then(|| number(0)),
            times: is(2).then(|| (number(1), number(2))),
            owner: is(3).then(|| Owner {
                uid: number(3),
                gid: number(4),
            }),
            is_right: is(0),
        })
    }
}

impl Finish {
    pub(super) fn new(budget: &NameBudget) -> Self {
        Self {
            directories: Mutex::new(Directories {
                made: Spool::new(budget),
                root: None,
            }),
        }
    }

    /// Adds a directory that was made or found, before the directories in it.
    ///
    /// # Errors
    /// There is no room, neither in memory nor in a file.
    pub(super) fn add(&self, item: &Item) -> Result<(), Error> {
        let record = FinishedDirectory::from(item).to_record();
        self.directories().made.push(&record)
    }

    /// Notes a source whose content goes into the target itself; the first one counts. Returns whether it is the first.
    pub(super) fn root(&self, source: &Item) -> bool {
        let mut directories = self.directories();
        let is_first = directories.root.is_none();
        directories.root.get_or_insert_with(|| source.into());
        is_first
    }

    /// Returns the next directory, inner ones before outer ones: a directory's times must be set after the last change in it.
    /// Skips directories whose attributes are right and stay so.
    ///
    /// # Errors
    /// The directory cannot be read from its temporary file.
    pub(super) fn next(&self, tree: &Tree, keeps_root: bool) -> Result<Option<FinishedDirectory>, Error> {
        let mut directories = self.directories();
        loop {
            let next = match directories.made.pop()? {
                Some(record) => FinishedDirectory::from_record(&record),
                None => match directories.root.take().filter(|_| keeps_root) {
                    Some(root) => Some(root),
                    None => return Ok(None),
                },
            };
            let wanted = next.filter(|next| !next.is_right || tree.is_touched(&next.target));
            if wanted.is_some() {
                return Ok(wanted);
            }
        }
    }

    fn directories(&self) -> MutexGuard<'_, Directories> {
        self.directories.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        Tree::new(&NameBudget::default(), true)
    }

    fn tell(tree: &Tree, path: &'static str, is_directory: bool) -> NameClaim {
        let path = Bytes::from_static(path.as_bytes());
        let is_source = !path.contains(&b'/');
        tree.tell(&path, is_source, is_directory).unwrap()
    }

    #[test]
    fn a_path_is_told_once_and_only_directories_of_two_sources_meet() {
        let tree = tree();
        tree.source();
        assert_eq!(tell(&tree, "d", true), NameClaim::New);
        assert_eq!(tell(&tree, "d/f", false), NameClaim::New);
        assert_eq!(tell(&tree, "d/e", true), NameClaim::New);
        assert_eq!(tell(&tree, "d/e/f", false), NameClaim::New);
        tree.source();
        assert_eq!(tell(&tree, "d", false), NameClaim::Taken);
        tree.source();
        assert_eq!(tell(&tree, "d", true), NameClaim::Again);
        assert_eq!(tell(&tree, "d/f", false), NameClaim::Taken);
        assert_eq!(tell(&tree, "d/e", true), NameClaim::Again);
        assert_eq!(tell(&tree, "d/e/f", false), NameClaim::Taken);
        assert_eq!(tell(&tree, "d/e/g", false), NameClaim::New);
    }

    #[test]
    fn what_is_told_anew_is_not_told_again() {
        let tree = tree();
        tree.source();
        for path in ["d", "d/e", "d/e/f"] {
            assert_eq!(tell(&tree, path, path != "d/e/f"), NameClaim::New);
        }
        tree.begin_anew();
        assert_eq!(tell(&tree, "d/e", true), NameClaim::Again);
        assert_eq!(tell(&tree, "d/e/f", false), NameClaim::Again);
        assert_eq!(tell(&tree, "d/e/g", false), NameClaim::New);
    }

    #[test]
    fn what_another_source_has_is_not_what_was_told_before() {
        let tree = tree();
        tree.source();
        for path in ["d", "d/e", "d/f", "d/g"] {
            assert_eq!(tell(&tree, path, matches!(path, "d" | "d/e")), NameClaim::New);
        }
        tree.begin_anew();
        assert_eq!(tell(&tree, "d/e", true), NameClaim::Again);
        tree.source();
        assert_eq!(tell(&tree, "d", true), NameClaim::Again);
        assert_eq!(tell(&tree, "d/f", false), NameClaim::Taken);
        assert_eq!(tell(&tree, "d/h", false), NameClaim::New);
        for _ in 0..2 {
            tree.begin_anew();
            assert_eq!(tell(&tree, "d/h", false), NameClaim::Again);
            assert_eq!(tell(&tree, "d/g", false), NameClaim::Taken);
            assert_eq!(tell(&tree, "d/e", true), NameClaim::Again);
            assert_eq!(tell(&tree, "d/e", false), NameClaim::Taken);
        }
    }

    #[test]
    fn a_source_that_is_not_copied_is_known_once() {
        let tree = tree();
        tree.source();
        tell(&tree, "link", false);
        tree.leave(&Bytes::from_static(b"link")).unwrap();
        let names = tree.names_in(b"").unwrap();
        assert_eq!((names.len(), names.count_copied()), (1, 0));
        assert_eq!(names.is_copied(b"link"), Some(false));
    }

    #[test]
    fn what_is_in_a_source_meets_other_sources_in_the_target() {
        let root =
            |tree: &Tree, name: &'static str| tree.tell(&Bytes::from_static(name.as_bytes()), false, false);
        let tree = tree();
        tree.source();
        assert_eq!(tell(&tree, "f", false), NameClaim::New);
        for (name, claim) in [("f", NameClaim::Taken), ("g", NameClaim::New)] {
            tree.source();
            tree.enter_root();
            assert_eq!(root(&tree, name).unwrap(), claim);
        }
        tree.source();
        assert_eq!(tell(&tree, "g", false), NameClaim::Taken);
        tree.source();
        tree.enter_root();
        assert_eq!(root(&tree, "g").unwrap(), NameClaim::Taken);
    }

    #[test]
    fn what_is_not_copied_is_known() {
        let tree = tree();
        tree.source();
        tell(&tree, "d", true);
        tell(&tree, "d/f", false);
        tell(&tree, "d/link", false);
        for left in ["d/link", "d/pipe"] {
            tree.leave(&Bytes::from_static(left.as_bytes())).unwrap();
        }
        let names = tree.names_in(b"d").unwrap();
        assert_eq!((names.len(), names.count_copied()), (3, 1));
        for (name, is_copied) in [
            ("f", Some(true)),
            ("link", Some(false)),
            ("pipe", Some(false)),
            ("x", None),
        ] {
            assert_eq!(names.is_copied(name.as_bytes()), is_copied, "{name}");
        }
        assert_eq!(tree.names_in(b"").unwrap().is_copied(b"d"), Some(true));
    }

    #[test]
    fn nothing_is_made_in_a_directory_that_nobody_has_seen() {
        let tree = tree();
        assert_eq!(tree.parent(b"top"), Some(Origin::Found));
        assert_eq!(tree.parent(b"link/x"), None);
        tree.touch(&Bytes::from_static(b"link/x"));
        assert_eq!(tree.parent(b"link/x"), None);
        tree.hold(b"d", Origin::Made);
        assert_eq!(tree.parent(b"d/x"), Some(Origin::Made));
        assert_eq!(tree.parent(b"d/e/x"), None);
        tree.lose(b"d");
        assert_eq!(tree.parent(b"d/x"), None);
    }

    #[test]
    fn directories_are_finished_as_they_were_told_from_the_deepest_on() {
        let (tree, finish) = (tree(), Finish::new(&NameBudget::default()));
        let directories: Vec<_> = [("d", false), ("d/e", true), ("d/touched", true)]
            .into_iter()
            .map(|(target, is_right)| FinishedDirectory {
                target: Bytes::from_static(target.as_bytes()),
                mode: Some(0o2750),
                times: (target != "d").then_some((1, u32::MAX)),
                owner: (target == "d").then_some(Owner { uid: 7, gid: 0 }),
                is_right,
            })
            .collect();
        for directory in &directories {
            finish.directories().made.push(&directory.to_record()).unwrap();
        }
        tree.touch(&Bytes::from_static(b"d/touched/f"));
        let next = || finish.next(&tree, false).unwrap();
        assert_eq!(next().as_ref(), directories.last());
        assert_eq!(next().as_ref(), directories.first());
        assert_eq!(next(), None);
    }
}
