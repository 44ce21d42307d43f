//! Paths of either side, which are bytes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use bytes::Bytes;
use trunkline_text::Printable;

use crate::error::Error;
use crate::sftp::Sftp;

/// Converts a path for this machine's functions.
pub(super) fn os(path: &[u8]) -> &OsStr {
    OsStr::from_bytes(path)
}

/// Converts a path for people.
pub(super) fn shown(path: &[u8]) -> String {
    Printable::line(path).into_string()
}

/// Returns the path of a name in a directory; either may be empty.
pub(super) fn join(directory: &[u8], name: &[u8]) -> Bytes {
    match (directory, name) {
        (b"", name) => Bytes::copy_from_slice(name),
        (directory, b"") => Bytes::copy_from_slice(directory),
        (directory, name) => [directory.strip_suffix(b"/").unwrap_or(directory), name]
            .join(&b'/')
            .into(),
    }
}

/// Returns a path in a copy's root; `.` is where the session starts.
pub(super) fn in_root(root: &[u8], path: &[u8]) -> Bytes {
    match root {
        b"." => Bytes::copy_from_slice(path),
        root => join(root, path),
    }
}

/// Returns the path's directory, and its last part.
pub(super) fn directory_and_name(path: &Bytes) -> (Bytes, Bytes) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (Bytes::from_static(b"/"), path.slice(1..)),
        Some(at) => (path.slice(..at), path.slice(at + 1..)),
        None => (Bytes::from_static(b"."), path.clone()),
    }
}

/// Returns whether a part of a path is a pattern.
pub(super) fn is_pattern(path: &[u8]) -> bool {
    path.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// A server's path with its leading `~` expanded as a shell would.
pub(super) struct Expanded {
    /// The user's home as the server names it; empty if the path has no `~`.
    pub(super) home: Bytes,
    /// The typed text after it. Only this part has patterns, and names for this side: a server may name a home anything.
    pub(super) typed: Bytes,
}

impl Expanded {
    pub(super) async fn of(sftp: &Sftp, path: &Bytes) -> Result<Self, Error> {
        if !path.starts_with(b"~") {
            return Ok(Self {
                home: Bytes::new(),
                typed: path.clone(),
            });
        }
        let end = path.iter().position(|byte| *byte == b'/').unwrap_or(path.len());
        let home = match &path[..end] {
            b"~" => Bytes::from_static(b"."),
            user => sftp.expand_path(user).await?,
        };
        Ok(Self {
            home,
            typed: path.slice((end + 1).min(path.len())..),
        })
    }

    pub(super) fn path(&self) -> Bytes {
        join(&self.home, &self.typed)
    }
}
