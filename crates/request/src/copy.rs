//! How to copy, and what is told of a copy.

use std::path::Path;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Whether a path leads to a descriptor of the process that opens it, as /dev/stdin does.
pub fn is_descriptor(path: &Path) -> bool {
    let names = ["/dev/stdin", "/dev/stdout", "/dev/stderr"];
    names.iter().any(|name| path == Path::new(name))
        || path.starts_with("/dev/fd")
        || path.starts_with("/proc/self/fd")
}

/// How to copy.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CopyOptions {
    /// Directories too, with all that is in them.
    pub recursive: bool,
    /// Keep modification times and permissions; set-user-ID and set-group-ID are for an owner, who is not kept.
    pub preserve: bool,
    /// Leave out what the target has in the same version or a newer one, by its time.
    pub update: bool,
    /// Leave out what the target has with the same content, by hash.
    pub checksum: bool,
    /// Keep what was copied of a large file when the copy ends in its middle, and go on from there: from what both ends'
    /// hashes show to be right.
    pub partial: bool,
    /// Have each file on its disk before it gets its name.
    pub sync: bool,
    /// Show what would be copied, and copy nothing.
    pub dry_run: bool,
    /// Patterns of names to leave out; one with a slash is matched with the whole path below the source.
    pub exclude: Vec<String>,
    /// Bytes a second at most.
    pub limit: Option<u64>,
    /// Sessions for large files; `None` for as many as the distance is worth.
    pub streams: Option<usize>,
    /// The mask for permissions of new files on this machine.
    pub umask: u32,
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self {
            recursive: false,
            preserve: false,
            update: false,
            checksum: false,
            partial: true,
            sync: false,
            dry_run: false,
            exclude: Vec::new(),
            limit: None,
            streams: None,
            umask: 0o022,
        }
    }
}

/// What became of a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyEvent {
    /// It was copied, or would be.
    Copied {
        /// The target's path.
        #[serde(with = "path")]
        path: Bytes,
        /// Its length; 0 for what is no file.
        length: u64,
    },
    /// The target has it already.
    Skipped {
        /// The target's path.
        #[serde(with = "path")]
        path: Bytes,
    },
    /// It could not be copied. The others go on.
    Failed {
        /// The path that could not be read or written.
        #[serde(with = "path")]
        path: Bytes,
        /// Why not, in a sentence that names it.
        message: String,
        /// The same as an errno of this machine; `None` where there is none that says it, or the server did not say.
        #[serde(default)]
        errno: Option<i32>,
    },
}

/// Paths as serde's byte strings.
mod path {
    use bytes::Bytes;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(path: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(path)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        serde_bytes::ByteBuf::deserialize(deserializer).map(|path| path.into_vec().into())
    }
}

/// A copy's state at a moment, and its summary at the end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Bytes of files that have arrived.
    pub bytes: u64,
    /// Bytes that are known to have to.
    pub total_bytes: u64,
    /// Names that are done: files, directories and links.
    pub files: u64,
    /// Names that were found.
    pub total_files: u64,
    /// Names left out because the target has them.
    pub skipped: u64,
    /// Names that failed.
    pub failed: u64,
    /// Bytes that were there from an earlier attempt, and not sent again.
    pub resumed: u64,
    /// The most sessions there were at once.
    pub streams: u64,
    /// Whether the copy found out on its way that compression pays, and goes over connections that compress.
    pub compressed: bool,
    /// Whether all names have been found, so that the totals are final.
    pub counted: bool,
    /// The target's path of what was begun last.
    #[serde(with = "path")]
    pub current: Bytes,
}
