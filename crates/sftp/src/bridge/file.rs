//! A client's open file, and the means to recognize it.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};

use bytes::Bytes;

use super::give_up::GiveUp;
use super::paths::Knowledge;
use crate::attributes::{FileAttributes, FileType};
use crate::reply::Handle;
use crate::request::OpenFlags;
use trunkline_text::Printable;

/// The most names of a directory that are kept, each in 32 bytes, so that no name is repeated after a loss.
const MOST_NAMES: usize = 200_000;

/// An open file or directory.
pub(super) struct File {
    pub(super) path: Bytes,
    /// The server's handle in its present session.
    pub(super) handle: Option<Handle>,
    pub(super) kind: Kind,
    /// The server's attributes at the opening.
    pub(super) known: Option<FileAttributes>,
    /// The client has asked to close it and may not use it any more.
    pub(super) is_closing: bool,
    /// The client has read from it or written to it.
    pub(super) is_used: bool,
    /// The reason why it is unusable in the present session.
    pub(super) dead: Option<GiveUp>,
    /// Its name may have been taken away, so the name may lead to another file.
    pub(super) has_lost_name: bool,
}

pub(super) enum Kind {
    Regular(Content),
    Directory(Names),
}

/// The state of a file's content.
pub(super) struct Content {
    pub(super) flags: OpenFlags,
    /// Another opening of the client's also writes to it.
    pub(super) is_shared: bool,
    /// The client has set its times, or may have.
    pub(super) sets_times: bool,
    /// The file is at least this long, because the server acknowledged it.
    pub(super) least: u64,
    /// The file is at most this long, if its size at the start is known.
    pub(super) most: u64,
    /// The offset of the first write, and the end of the last one if there are no gaps.
    appended: Option<(u64, u64)>,
    /// The writes did not follow each other without gaps.
    has_gaps: bool,
}

/// The names of a directory that the client has got, as hashes of 128 bits.
#[derive(Default)]
pub(super) struct Names {
    told: HashSet<(u64, u64)>,
    keys: (RandomState, RandomState),
    has_too_many: bool,
}

impl File {
    pub(super) fn regular(path: Bytes, handle: Handle, flags: OpenFlags) -> Self {
        Self::new(
            path,
            handle,
            Kind::Regular(Content {
                flags,
                is_shared: false,
                sets_times: false,
                least: 0,
                most: 0,
                appended: None,
                has_gaps: false,
            }),
        )
    }

    pub(super) fn directory(path: Bytes, handle: Handle) -> Self {
        Self::new(path, handle, Kind::Directory(Names::default()))
    }

    fn new(path: Bytes, handle: Handle, kind: Kind) -> Self {
        Self {
            path,
            handle: Some(handle),
            kind,
            known: None,
            is_closing: false,
            is_used: false,
            dead: None,
            has_lost_name: false,
        }
    }

    pub(super) fn content(&mut self) -> Option<&mut Content> {
        match &mut self.kind {
            Kind::Regular(content) => Some(content),
            Kind::Directory(_) => None,
        }
    }

    pub(super) fn is_written(&self) -> bool {
        matches!(&self.kind, Kind::Regular(content) if content.flags.writes())
    }

    /// Returns the sizes between which the file ends, if they are known.
    pub(super) fn sizes(&self) -> Option<(u64, u64)> {
        let Kind::Regular(content) = &self.kind else {
            return None;
        };
        let base = match self.known.as_ref().and_then(|known| known.size) {
            Some(size) => size,
            None if content.flags.truncates() => 0,
            None => return None,
        };
        let least = if content.least == Content::CUT {
            0
        } else {
            content.least.max(base)
        };
        Some((least, content.most.max(base)))
    }

    /// Returns the knowledge of its name.
    pub(super) fn knowledge(&self) -> Knowledge {
        Knowledge::Present {
            sizes: self.sizes(),
            modified: None,
        }
    }

    /// Returns the flags to open it again, or the reason why that is impossible.
    pub(super) fn reopening(&self) -> Result<OpenFlags, GiveUp> {
        let stuck = |why| {
            Err(GiveUp::NotCarried {
                path: Printable::line(&self.path),
                why,
            })
        };
        if self.has_lost_name {
            return stuck("its name was removed, or now names another file");
        }
        match &self.kind {
            Kind::Directory(names) if names.has_too_many => stuck("the directory has too many names"),
            Kind::Directory(_) => Ok(OpenFlags::default()),
            Kind::Regular(content) => {
                let known = self.known.as_ref();
                if known
                    .and_then(FileAttributes::file_type)
                    .is_some_and(|kind| kind != FileType::Regular)
                {
                    return stuck("it is not a regular file");
                }
                if content.flags.appends() && !content.appends_where_told(known) {
                    return stuck("it was opened to append to, and where the data went is not known");
                }
                Ok(content.flags.for_reopening())
            }
        }
    }

    /// Checks that a file opened again is the same, as far as attributes tell.
    pub(super) fn compare(&self, now: &FileAttributes) -> Result<(), &'static str> {
        let Kind::Regular(content) = &self.kind else {
            return Ok(());
        };
        if now.file_type().is_some_and(|kind| kind != FileType::Regular) {
            return Err("it is not a regular file any more");
        }
        let before = self.known.clone().unwrap_or_default();
        if before.owner.is_some() && now.owner.is_some() && before.owner != now.owner {
            return Err("it belongs to another user or group");
        }
        if content.is_shared {
            return Ok(());
        }
        if content.flags.writes() {
            let Some((least, most)) = self.sizes() else {
                return if self.is_used {
                    Err("its size was never known")
                } else {
                    Ok(())
                };
            };
            if now.size.is_none_or(|size| !(least..=most).contains(&size)) {
                return Err("its size is not what was written");
            }
            let is_older = |before, now: Option<crate::Times>| matches!((before, now), (Some(before), Some(now)) if now.modified < before);
            let modified = before.times.map(|times| times.modified);
            if !content.sets_times && is_older(modified, now.times) {
                return Err("it is older than before");
            }
            return Ok(());
        }
        if self.known.is_none() {
            return if self.is_used {
                Err("nothing was known of it")
            } else {
                Ok(())
            };
        }
        if before.size != now.size {
            return Err("its size has changed");
        }
        let modified = |attributes: &FileAttributes| attributes.times.map(|times| times.modified);
        if !content.sets_times && modified(&before) != modified(now) {
            return Err("it was modified");
        }
        Ok(())
    }
}

impl Content {
    /// The value of `least` for a file that the client may have truncated.
    const CUT: u64 = u64::MAX;

    pub(super) fn write_is_sent(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        self.most = self.most.max(end);
        match &mut self.appended {
            Some((_, next)) if *next == offset => *next = end,
            Some(_) => self.has_gaps = true,
            None => self.appended = Some((offset, end)),
        }
    }

    pub(super) fn write_is_done(&mut self, offset: u64, len: u64) {
        if self.least != Self::CUT {
            self.least = self.least.max(offset.saturating_add(len));
        }
    }

    pub(super) fn attributes_are_sent(&mut self, attributes: &FileAttributes) {
        self.sets_times |= attributes.times.is_some();
        if let Some(size) = attributes.size {
            self.least = Self::CUT;
            self.most = self.most.max(size);
        }
    }

    /// Returns whether an append's data went to the offsets in its writes, which some servers ignore.
    fn appends_where_told(&self, known: Option<&FileAttributes>) -> bool {
        let size = known.and_then(|known| known.size);
        match self.appended {
            None => size.is_some(),
            Some((start, _)) => !self.has_gaps && size == Some(start),
        }
    }
}

impl Names {
    /// Returns whether a name is new to the client.
    pub(super) fn is_new(&mut self, name: &[u8]) -> bool {
        if self.told.len() >= MOST_NAMES {
            self.has_too_many = true;
            return true;
        }
        self.told
            .insert((self.keys.0.hash_one(name), self.keys.1.hash_one(name)))
    }
}

impl OpenFlags {
    fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    pub(super) fn writes(self) -> bool {
        self.has(Self::WRITE) || self.has(Self::APPEND)
    }

    pub(super) fn appends(self) -> bool {
        self.has(Self::APPEND)
    }

    pub(super) fn truncates(self) -> bool {
        self.has(Self::TRUNCATE)
    }

    pub(super) fn is_exclusive(self) -> bool {
        self.has(Self::EXCLUSIVE)
    }

    pub(super) fn makes(self) -> bool {
        self.has(Self::CREATE) || self.has(Self::TRUNCATE)
    }

    /// Removes the flags that make or empty a file, for one that has just been made.
    pub(super) fn without_making(self) -> Self {
        Self(self.0 & !(Self::CREATE.0 | Self::EXCLUSIVE.0 | Self::TRUNCATE.0))
    }

    /// Removes the flags that make or empty a file, and APPEND: a repeated write must go to the same place.
    fn for_reopening(self) -> Self {
        let write = if self.appends() { Self::WRITE.0 } else { 0 };
        Self(self.0 & (Self::READ.0 | Self::WRITE.0) | write)
    }
}
