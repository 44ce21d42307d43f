//! The server's statements about paths, and the requests that concern the same name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::attributes::FileAttributes;
use crate::request::Request;

/// The state of a path when the server last reported it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Knowledge {
    Missing,
    Present {
        /// The sizes between which it ends.
        sizes: Option<(u64, u64)>,
        modified: Option<u32>,
    },
}

impl Knowledge {
    pub(super) fn from_attributes(attributes: &FileAttributes) -> Self {
        Self::Present {
            sizes: attributes.size.map(|size| (size, size)),
            modified: attributes.times.map(|times| times.modified),
        }
    }

    /// Returns whether a file with these attributes may be the known one.
    pub(super) fn is(&self, attributes: &FileAttributes) -> bool {
        let Self::Present { sizes, modified } = self else {
            return false;
        };
        let size = match (sizes, attributes.size) {
            (Some((least, most)), Some(size)) => (*least..=*most).contains(&size),
            _ => true,
        };
        let time = match (modified, attributes.times) {
            (Some(modified), Some(times)) => *modified == times.modified,
            _ => true,
        };
        size && time
    }
}

/// The latest statements of a server about paths, shared by all sessions of one account, because some clients write a
/// file in one session and rename it in another.
#[derive(Debug, Clone, Default)]
pub struct KnownPaths(Arc<Mutex<Paths>>);

impl KnownPaths {
    pub(super) fn lock(&self) -> MutexGuard<'_, Paths> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The paths with recent statements.
#[derive(Debug, Default)]
pub(super) struct Paths {
    known: HashMap<Bytes, (Knowledge, u64)>,
    now: u64,
}

/// The most paths that are remembered, and the longest path.
const MOST: usize = 1024;
const LONGEST: usize = 4096;
/// The number of answers after which an exclusive OPEN no longer trusts one.
pub(super) const RECENT: u64 = 64;

impl Paths {
    /// Returns the knowledge of a path, and the number of answers since then.
    pub(super) fn about(&self, path: &[u8]) -> Option<(Knowledge, u64)> {
        self.known
            .get(path)
            .map(|(knowledge, at)| (*knowledge, self.now - at))
    }

    pub(super) fn learn(&mut self, path: &Bytes, knowledge: Knowledge) {
        self.now += 1;
        if path.len() > LONGEST {
            return;
        }
        if self.known.len() >= MOST && !self.known.contains_key(path) {
            // The older half goes.
            let middle = self.now.saturating_sub(MOST as u64 / 2);
            self.known.retain(|_, (_, at)| *at > middle);
        }
        self.known.insert(path.clone(), (knowledge, self.now));
    }

    /// Forgets all knowledge that a change of `changed` may have made false, however the path is spelled.
    pub(super) fn forget(&mut self, changed: &[u8]) {
        self.known.retain(|path, _| !overlap(path, changed));
    }
}

/// The effect of a request on names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// It concerns an open file, or no name at all.
    None,
    Looks,
    /// It makes a name or changes its file, and is harmless to repeat.
    Sets,
    /// It makes, moves or takes away a name, and must not be repeated.
    Moves,
}

/// Returns a request's effect, and the paths that it names.
pub(super) fn effect(request: &Request) -> (Effect, [Option<&Bytes>; 2]) {
    match request {
        Request::Open { path, flags, .. } => {
            let effect = match (flags.is_exclusive(), flags.makes()) {
                (true, _) => Effect::Moves,
                (false, true) => Effect::Sets,
                (false, false) => Effect::Looks,
            };
            (effect, [Some(path), None])
        }
        Request::Setstat { path, .. } | Request::Lsetstat { path, .. } => (Effect::Sets, [Some(path), None]),
        Request::Remove { path } | Request::Mkdir { path, .. } | Request::Rmdir { path } => {
            (Effect::Moves, [Some(path), None])
        }
        Request::Symlink { link, .. } => (Effect::Moves, [Some(link), None]),
        Request::Rename { from, to } | Request::PosixRename { from, to } | Request::Hardlink { from, to } => {
            (Effect::Moves, [Some(from), Some(to)])
        }
        Request::Lstat { path }
        | Request::Stat { path }
        | Request::Opendir { path }
        | Request::Realpath { path }
        | Request::Readlink { path }
        | Request::Statvfs { path }
        | Request::ExpandPath { path } => (Effect::Looks, [Some(path), None]),
        _ => (Effect::None, [None, None]),
    }
}

/// Returns the path whose file a request takes away or truncates.
pub(super) fn victim(request: &Request) -> Option<&Bytes> {
    match request {
        Request::Open { path, flags, .. } if flags.truncates() => Some(path),
        Request::Setstat { path, attributes } if attributes.size.is_some() => Some(path),
        Request::Remove { path } | Request::Rmdir { path } => Some(path),
        Request::PosixRename { to, .. } | Request::Rename { to, .. } => Some(to),
        _ => None,
    }
}

/// Returns whether a request has to wait for another one's answer, because the paths could not tell after a loss what
/// each of them has done.
pub(super) fn conflict(new: &Request, old: &Request) -> bool {
    let ((new, of_new), (old, of_old)) = (effect(new), effect(old));
    match (new, old) {
        (Effect::Moves, Effect::Looks | Effect::Sets | Effect::Moves)
        | (Effect::Sets, Effect::Looks | Effect::Moves) => {}
        _ => return false,
    }
    of_new
        .iter()
        .flatten()
        .any(|a| of_old.iter().flatten().any(|b| overlap(a, b)))
}

/// Returns whether two paths may lead through the same name. Compares only names, because one path has many spellings.
pub(super) fn overlap(a: &[u8], b: &[u8]) -> bool {
    let names =
        |path| <[u8]>::split(path, |byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    let is_in = |a, b| match names(a).next_back() {
        None | Some(b"..") => true,
        Some(last) => names(b).any(|name| name == last || name == b".."),
    };
    is_in(a, b) || is_in(b, a)
}

/// Returns whether two paths may lead to one file from different starting points.
pub(super) fn may_be_same(a: &[u8], b: &[u8]) -> bool {
    let names =
        |path| <[u8]>::split(path, |byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    let has_dots = |path| names(path).any(|name| name == b"..");
    has_dots(a) || has_dots(b) || names(a).rev().zip(names(b).rev()).all(|(a, b)| a == b)
}

/// Returns the path after the renaming of a part of it.
pub(super) fn move_path(path: &Bytes, from: &[u8], to: &Bytes) -> Option<Bytes> {
    let rest = path.strip_prefix(from)?;
    match rest.first() {
        None => Some(to.clone()),
        Some(b'/') => Some([&to[..], rest].concat().into()),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_overlap_by_the_names_in_them() {
        assert!(overlap(b"a/b", b"/home/u/a/b"));
        assert!(overlap(b"/srv/d", b"d/x"));
        assert!(overlap(b"x", b"."));
        assert!(overlap(b"x/..", b"y"));
        assert!(!overlap(b"a/b", b"a/c"));
    }

    #[test]
    fn one_file_has_several_paths() {
        assert!(may_be_same(b"/home/u/x", b"x"));
        assert!(may_be_same(b"./d//x", b"d/x"));
        assert!(!may_be_same(b"c/x", b"d/x"));
    }

    #[test]
    fn a_renamed_directory_moves_what_is_in_it() {
        let to = Bytes::from_static(b"new");
        let path = |text: &'static str| Bytes::from_static(text.as_bytes());
        assert_eq!(move_path(&path("old/x"), b"old", &to), Some(path("new/x")));
        assert_eq!(move_path(&path("old"), b"old", &to), Some(path("new")));
        assert_eq!(move_path(&path("older"), b"old", &to), None);
    }
}
