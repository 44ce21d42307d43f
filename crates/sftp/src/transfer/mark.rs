//! [`Mark`]: how sessions know the file that one of them has made, where somebody else can give its name to another one.

use std::time::Instant;

use crate::attributes::{FileAttributes, FileType, Owner, Times};

/// A time of last access that nobody would guess. Only the file's owner can set it, and writing to the file leaves it: a file
/// that has it and this owner is the one that was made. (Version 3 tells no inode. The owner alone would not do: a link may
/// lead to any file of the user's own.)
#[derive(Debug)]
pub(super) struct Mark {
    accessed: u32,
    /// The time at which the file was made, by both clocks.
    made: Option<(Instant, u32)>,
    /// Its owner; `None` until the file was seen to have kept the mark.
    owner: Option<Owner>,
}

impl Mark {
    pub(super) fn new(accessed: u32) -> Self {
        Self {
            accessed,
            made: None,
            owner: None,
        }
    }

    /// Returns the times that mark a file.
    pub(super) fn times(&self) -> FileAttributes {
        let times = Times {
            accessed: self.accessed,
            modified: self.accessed,
        };
        FileAttributes {
            times: Some(times),
            ..FileAttributes::default()
        }
    }

    /// The file is new, and looks like this.
    pub(super) fn is_made(&mut self, found: &FileAttributes, now: Instant) {
        self.made = found.times.map(|times| (now, times.modified));
    }

    /// It was marked, and looks like this: some file systems keep no such time.
    pub(super) fn is_set(&mut self, found: &FileAttributes) {
        self.owner = found.owner.filter(|_| self.is_shown(found));
    }

    /// Returns whether the file was seen to have it, so that others can look for it.
    pub(super) fn is_kept(&self) -> bool {
        self.owner.is_some()
    }

    /// Returns whether what was opened under the file's name is that file.
    pub(super) fn is_on(&self, found: &FileAttributes) -> bool {
        self.is_kept() && self.is_shown(found) && found.owner == self.owner
    }

    fn is_shown(&self, found: &FileAttributes) -> bool {
        found.file_type() == Some(FileType::Regular)
            && found.times.is_some_and(|times| times.accessed == self.accessed)
    }

    /// Returns the times that the file would have by now without the mark, by the server's clock.
    pub(super) fn usual_times(&self, now: Instant) -> Option<Times> {
        let (begun, made) = self.made?;
        let passed = u32::try_from(now.saturating_duration_since(begun).as_secs()).unwrap_or(u32::MAX);
        let modified = made.saturating_add(passed);
        Some(Times {
            accessed: modified,
            modified,
        })
    }
}
