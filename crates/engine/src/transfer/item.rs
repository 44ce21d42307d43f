//! [`Item`]: a name to copy.

use std::sync::Arc;

use bytes::Bytes;
use trunkline_request::copy::Changes;

use super::part::Own;
use super::stream::Stream;
use crate::sftp::{FileType, Owner, Status};

/// A name to copy.
#[derive(Debug, Clone)]
pub(super) struct Item {
    /// Its path at the source.
    pub(super) source: Bytes,
    /// Its path below the target's root; empty for the root itself.
    pub(super) target: Bytes,
    /// The offset in the path at which its path from its source begins, which patterns are matched with.
    pub(super) below: usize,
    pub(super) kind: Kind,
    /// A file's length as far as is known.
    pub(super) size: u64,
    pub(super) mode: Option<u32>,
    pub(super) times: Option<(u32, u32)>,
    pub(super) owner: Option<Owner>,
    /// Device and number of a file of this machine that has other names, too.
    pub(super) inode: Option<(u64, u64)>,
    /// The user gave its name at the target, and no server did: a link there leads on.
    pub(super) named: bool,
    /// Where its bytes come from, when that is not a regular file.
    pub(super) stream: Option<Stream>,
    /// The state of its name on the target's server.
    pub(super) there: There,
    /// The attributes at the target that differ from the source's.
    pub(super) changes: Changes,
    /// A directory that is as it should be, unless something changes in it.
    pub(super) is_right: bool,
}

impl Item {
    /// Returns a source, empty and without attributes, for this path below the target's root.
    pub(super) fn new(source: Bytes, target: Bytes, kind: Kind) -> Self {
        Self {
            source,
            below: target.len(),
            target,
            kind,
            size: 0,
            mode: None,
            times: None,
            owner: None,
            inode: None,
            named: false,
            stream: None,
            there: There::default(),
            changes: Changes::default(),
            is_right: false,
        }
    }

    pub(super) fn is_large(&self) -> bool {
        self.size > LARGE || self.stream.is_some() || self.there.special.is_some() || self.there.in_place
    }
}

/// Files from this length on are copied by themselves, over all sessions; they can be resumed.
pub(super) const LARGE: u64 = 2 * 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    Link,
    /// A device, a pipe or a socket.
    Other,
}

impl Kind {
    pub(super) fn of(kind: std::fs::FileType) -> Self {
        if kind.is_dir() {
            Self::Directory
        } else if kind.is_symlink() {
            Self::Link
        } else if kind.is_file() {
            Self::File
        } else {
            Self::Other
        }
    }
}

/// The state of a file's name on the target's server.
#[derive(Debug, Clone, Default)]
pub(super) struct There {
    /// Its path, where links have led to another one.
    pub(super) path: Option<Bytes>,
    /// The file that it replaces.
    pub(super) existing: Option<Existing>,
    /// A file that cannot be replaced as it is, and is written where it is.
    pub(super) in_place: bool,
    /// The server's answer when the written file had disappeared.
    pub(super) moved: Option<Status>,
    /// The server's answer when it made no file of a temporary name.
    pub(super) unmade: Option<Box<Status>>,
    /// The type of a target that is written to and is not a regular file.
    pub(super) special: Option<FileType>,
    /// The name that it has until it is whole, and how many attempts there were to have it.
    pub(super) own: Option<Arc<Own>>,
    pub(super) attempts: u8,
}

/// A file on the server that another one is to replace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Existing {
    /// Its permissions, when it has another content.
    pub(super) mode: u32,
    pub(super) owner: Option<Owner>,
    pub(super) size: u64,
    /// Its owner may read it, as far as its permissions tell.
    pub(super) is_readable: bool,
}

/// Follows the reason if a file failed while it was written in place.
pub(super) const INCOMPLETE: &str = "; it was written in place, and is incomplete now";

/// Set-user-ID and set-group-ID.
pub(super) const SET_ID: u32 = 0o6000;

/// The permissions of a file that somebody other than root has written to. As the system does it, what runs with the rights
/// of its user or group no longer does: its content is another one.
pub(super) fn rewritten(mode: u32) -> u32 {
    match mode & 0o010 {
        // Set-group-ID without the group's right to run it is another thing: mandatory locking.
        0 => mode & !0o4000,
        _ => mode & !SET_ID,
    }
}
