//! [`Mark`]: how sessions recognize the file that one of them has created, where somebody else can give its name to another file.

use std::time::Instant;

use crate::attributes::{FileAttributes, FileType, Owner, Times};

/// A time of last access that nobody would guess. Only the file's owner can set it, and writing to the file does not change it. A
/// file with this time and this owner is therefore the created file. (Version 3 has no inode numbers. The owner alone would not
/// do: a link may lead to any file of the same user.)
#[derive(Debug)]
pub(super) struct Mark {
    accessed: u32,
    /// The time at which the file was created, by our clock and by the server's.
    made: Option<(Instant, u32)>,
    /// The file's owner; `None` until the file is seen to have kept the mark.
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

    /// Notes the attributes of the new file.
    pub(super) fn note_made(&mut self, found: &FileAttributes, now: Instant) {
        self.made = found.times.map(|times| (now, times.modified));
    }

    /// Notes the attributes of the marked file. Some file systems do not keep such a time.
    pub(super) fn note_set(&mut self, found: &FileAttributes) {
        self.owner = found.owner.filter(|_| self.is_shown(found));
    }

    /// Returns whether the file was seen to have the mark, so that other sessions can look for it.
    pub(super) fn is_kept(&self) -> bool {
        self.owner.is_some()
    }

    /// Returns whether the file that was opened by name is the created file.
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
