//! Requests (draft-ietf-secsh-filexfer-02 section 6; OpenSSH's PROTOCOL, section 4).

use bytes::{Bytes, BytesMut};

use crate::attributes::FileAttributes;
use crate::extension::{
    COPY_DATA, EXPAND_PATH, FSTATVFS, FSYNC, HARDLINK, HOME_DIRECTORY, LIMITS, LSETSTAT, POSIX_RENAME,
    STATVFS, USERS_GROUPS,
};
use crate::packet::{Reader, Truncated, Writer, kind};
use crate::reply::{Expect, Handle};

/// The purposes of opening a file: the pflags of section 6.3. Combine them with `|`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct OpenFlags(pub u32);

impl OpenFlags {
    /// SSH_FXF_READ
    pub const READ: Self = Self(0x01);
    /// SSH_FXF_WRITE
    pub const WRITE: Self = Self(0x02);
    /// SSH_FXF_APPEND: writes go to the end, whatever their offset.
    pub const APPEND: Self = Self(0x04);
    /// SSH_FXF_CREAT: makes a missing file.
    pub const CREATE: Self = Self(0x08);
    /// SSH_FXF_TRUNC: empties the file; with [`Self::CREATE`].
    pub const TRUNCATE: Self = Self(0x10);
    /// SSH_FXF_EXCL: fails if the file exists; with [`Self::CREATE`].
    pub const EXCLUSIVE: Self = Self(0x20);
}

impl std::ops::BitOr for OpenFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A request to the server. Each names the [`Reply`](crate::Reply) of its success.
///
/// Paths are the server's bytes; a relative one starts at the user's home.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "names say it")]
pub enum Request {
    /// Opens a file: [`Reply::Handle`](crate::Reply::Handle).
    Open {
        path: Bytes,
        /// The purposes.
        flags: OpenFlags,
        /// Permissions of a new file, before the server's umask. OpenSSH ignores the rest.
        attributes: FileAttributes,
    },
    /// Closes a file or directory: [`Reply::Done`](crate::Reply::Done). The handle is invalid whatever the answer.
    Close { handle: Handle },
    /// Reads: [`Reply::Data`](crate::Reply::Data), which may be shorter, or the status [`EOF`](crate::StatusCode::EOF).
    Read {
        /// An open file.
        handle: Handle,
        offset: u64,
        /// The length. It is cut to 255 KiB, because no larger reply is accepted.
        length: u32,
    },
    /// Writes: [`Reply::Done`](crate::Reply::Done).
    Write {
        /// An open file.
        handle: Handle,
        /// The place to write.
        offset: u64,
        /// At most [`Limits::max_write`](crate::Limits::max_write) bytes, which are not copied from 1 KiB on.
        data: Bytes,
    },
    /// Reads attributes of a path, of the link itself if it is one: [`Reply::Attributes`](crate::Reply::Attributes).
    Lstat { path: Bytes },
    /// Reads attributes of a path, through links: [`Reply::Attributes`](crate::Reply::Attributes).
    Stat { path: Bytes },
    /// Reads attributes of an open file: [`Reply::Attributes`](crate::Reply::Attributes).
    Fstat {
        /// An open file.
        handle: Handle,
    },
    /// Sets attributes of a path, through links: [`Reply::Done`](crate::Reply::Done).
    Setstat {
        path: Bytes,
        /// The attributes to set.
        attributes: FileAttributes,
    },
    /// Sets attributes of an open file: [`Reply::Done`](crate::Reply::Done).
    Fsetstat {
        /// An open file.
        handle: Handle,
        /// The attributes to set.
        attributes: FileAttributes,
    },
    /// Opens a directory: [`Reply::Handle`](crate::Reply::Handle).
    Opendir { path: Bytes },
    /// Reads the next names of a directory: [`Reply::Entries`](crate::Reply::Entries), or the status
    /// [`EOF`](crate::StatusCode::EOF).
    Readdir {
        /// An open directory.
        handle: Handle,
    },
    /// Removes a file: [`Reply::Done`](crate::Reply::Done).
    Remove { path: Bytes },
    /// Makes a directory: [`Reply::Done`](crate::Reply::Done).
    Mkdir {
        path: Bytes,
        /// Its permissions, before the server's umask.
        attributes: FileAttributes,
    },
    /// Removes an empty directory: [`Reply::Done`](crate::Reply::Done).
    Rmdir { path: Bytes },
    /// Makes a path absolute and resolves its links: [`Reply::Path`](crate::Reply::Path).
    Realpath { path: Bytes },
    /// Renames; fails if the target exists: [`Reply::Done`](crate::Reply::Done).
    Rename {
        /// The old path.
        from: Bytes,
        /// The new path.
        to: Bytes,
    },
    /// Reads a symbolic link: [`Reply::Path`](crate::Reply::Path).
    Readlink { path: Bytes },
    /// Makes a symbolic link: [`Reply::Done`](crate::Reply::Done). The target goes first on the wire, as in OpenSSH
    /// (PROTOCOL, section 4.1), against the draft.
    Symlink {
        /// The target of the link.
        target: Bytes,
        /// The link to make.
        link: Bytes,
    },
    /// `posix-rename@openssh.com`: renames and replaces the target: [`Reply::Done`](crate::Reply::Done).
    PosixRename {
        /// The old path.
        from: Bytes,
        /// The new path.
        to: Bytes,
    },
    /// `hardlink@openssh.com`: [`Reply::Done`](crate::Reply::Done).
    Hardlink {
        from: Bytes,
        /// The new name.
        to: Bytes,
    },
    /// `fsync@openssh.com`: [`Reply::Done`](crate::Reply::Done) once the file is on the disk.
    Fsync {
        /// An open file.
        handle: Handle,
    },
    /// `statvfs@openssh.com`: [`Reply::StatVfs`](crate::Reply::StatVfs).
    Statvfs {
        /// A path in the file system.
        path: Bytes,
    },
    /// `fstatvfs@openssh.com`: [`Reply::StatVfs`](crate::Reply::StatVfs).
    Fstatvfs {
        /// An open file in the file system.
        handle: Handle,
    },
    /// `lsetstat@openssh.com`: sets attributes of a link itself: [`Reply::Done`](crate::Reply::Done).
    Lsetstat {
        path: Bytes,
        /// The attributes to set; the server ignores the size.
        attributes: FileAttributes,
    },
    /// `limits@openssh.com`: [`Reply::Limits`](crate::Reply::Limits). The client asks on its own.
    Limits,
    /// `expand-path@openssh.com`: as [`Self::Realpath`], with `~` and `~user`: [`Reply::Path`](crate::Reply::Path).
    ExpandPath { path: Bytes },
    /// `copy-data`: copies on the server: [`Reply::Done`](crate::Reply::Done). OpenSSH does nothing else meanwhile.
    CopyData {
        /// The open source file.
        from: Handle,
        /// The start in the source.
        from_offset: u64,
        /// The length; 0 copies up to the end.
        length: u64,
        /// The open target file, which must be another one.
        to: Handle,
        /// The start in the target.
        to_offset: u64,
    },
    /// `home-directory`: a user's home: [`Reply::Path`](crate::Reply::Path).
    HomeDirectory {
        /// The user's name. An empty one means the present user in the specification; OpenSSH 9.2 fails on it.
        user: Bytes,
    },
    /// `users-groups-by-id@openssh.com`: [`Reply::Names`](crate::Reply::Names).
    UsersGroupsById {
        /// The users.
        uids: Vec<u32>,
        /// The groups.
        gids: Vec<u32>,
    },
}

/// Matches the handles in a request, for any kind of borrow.
macro_rules! handles_in {
    ($request:expr) => {
        match $request {
            Self::Close { handle }
            | Self::Read { handle, .. }
            | Self::Write { handle, .. }
            | Self::Fstat { handle }
            | Self::Fsetstat { handle, .. }
            | Self::Readdir { handle }
            | Self::Fsync { handle }
            | Self::Fstatvfs { handle } => [Some(handle), None],
            Self::CopyData { from, to, .. } => [Some(from), Some(to)],
            _ => [None, None],
        }
    };
}

impl Request {
    /// Returns the extension that the server must have announced, with its version.
    pub fn extension(&self) -> Option<(&'static str, &'static str)> {
        Some(match self {
            Self::PosixRename { .. } => POSIX_RENAME,
            Self::Hardlink { .. } => HARDLINK,
            Self::Fsync { .. } => FSYNC,
            Self::Statvfs { .. } => STATVFS,
            Self::Fstatvfs { .. } => FSTATVFS,
            Self::Lsetstat { .. } => LSETSTAT,
            Self::Limits => LIMITS,
            Self::ExpandPath { .. } => EXPAND_PATH,
            Self::CopyData { .. } => COPY_DATA,
            Self::HomeDirectory { .. } => HOME_DIRECTORY,
            Self::UsersGroupsById { .. } => USERS_GROUPS,
            _ => return None,
        })
    }

    pub(crate) fn handles(&self) -> [Option<&Handle>; 2] {
        handles_in!(self)
    }

    /// Returns the handles, mutable.
    pub(crate) fn handles_mut(&mut self) -> [Option<&mut Handle>; 2] {
        handles_in!(self)
    }

    /// Returns whether success uses one of the server's handles.
    pub(crate) fn opens(&self) -> bool {
        matches!(self, Self::Open { .. } | Self::Opendir { .. })
    }

    /// Returns an upper bound of the packet's size.
    pub(crate) fn encoded_len(&self) -> usize {
        const FIXED: usize = 128;
        FIXED
            + match self {
                Self::Open { path, attributes, .. }
                | Self::Setstat { path, attributes }
                | Self::Mkdir { path, attributes }
                | Self::Lsetstat { path, attributes } => path.len() + attributes.encoded_len(),
                Self::Fsetstat { handle, attributes } => handle.0.len() + attributes.encoded_len(),
                Self::Close { handle }
                | Self::Read { handle, .. }
                | Self::Fstat { handle }
                | Self::Readdir { handle }
                | Self::Fsync { handle }
                | Self::Fstatvfs { handle } => handle.0.len(),
                Self::Write { handle, data, .. } => handle.0.len() + data.len(),
                Self::Lstat { path }
                | Self::Stat { path }
                | Self::Opendir { path }
                | Self::Remove { path }
                | Self::Rmdir { path }
                | Self::Realpath { path }
                | Self::Readlink { path }
                | Self::Statvfs { path }
                | Self::ExpandPath { path }
                | Self::HomeDirectory { user: path } => path.len(),
                Self::Rename { from, to }
                | Self::PosixRename { from, to }
                | Self::Hardlink { from, to }
                | Self::Symlink {
                    target: from,
                    link: to,
                } => from.len() + to.len(),
                Self::CopyData { from, to, .. } => from.0.len() + to.0.len(),
                Self::UsersGroupsById { uids, gids } => 4 * (uids.len() + gids.len()),
                Self::Limits => 0,
            }
    }

    /// Returns the kind of reply that the request expects.
    pub(crate) fn expects(&self) -> Expect {
        match self {
            Self::Open { .. } | Self::Opendir { .. } => Expect::Handle,
            Self::Read { length, .. } => Expect::Data { most: *length },
            Self::Lstat { .. } | Self::Stat { .. } | Self::Fstat { .. } => Expect::Attributes,
            Self::Readdir { .. } => Expect::Entries,
            Self::Realpath { .. }
            | Self::Readlink { .. }
            | Self::ExpandPath { .. }
            | Self::HomeDirectory { .. } => Expect::Path,
            Self::Statvfs { .. } | Self::Fstatvfs { .. } => Expect::StatVfs,
            Self::Limits => Expect::Limits,
            Self::UsersGroupsById { uids, gids } => Expect::Names {
                users: uids.len(),
                groups: gids.len(),
            },
            _ => Expect::Done,
        }
    }

    /// Appends the packet to `buf`, without a write's data, which the packet's length includes.
    pub(crate) fn encode(&self, id: u32, buf: &mut BytesMut) {
        let packet = |buf, kind| Writer::packet(buf, kind).u32(id);
        let one = |buf, kind, path: &[u8]| packet(buf, kind).string(path).finish(0);
        let two = |buf, kind, a: &[u8], b: &[u8]| packet(buf, kind).string(a).string(b).finish(0);
        let with = |buf, kind, path: &[u8], attributes: &FileAttributes| {
            packet(buf, kind)
                .string(path)
                .append(|buf| attributes.encode(buf))
                .finish(0);
        };
        let extended = |buf, (name, _): (&str, &str)| packet(buf, kind::EXTENDED).string(name.as_bytes());
        match self {
            Self::Open {
                path,
                flags,
                attributes,
            } => {
                packet(buf, kind::OPEN)
                    .string(path)
                    .u32(flags.0)
                    .append(|buf| attributes.encode(buf))
                    .finish(0);
            }
            Self::Close { handle } => one(buf, kind::CLOSE, &handle.0),
            Self::Read {
                handle,
                offset,
                length,
            } => {
                packet(buf, kind::READ)
                    .string(&handle.0)
                    .u64(*offset)
                    .u32(*length)
                    .finish(0);
            }
            Self::Write { handle, offset, data } => {
                let len = u32::try_from(data.len()).expect("the size of a request was checked");
                packet(buf, kind::WRITE)
                    .string(&handle.0)
                    .u64(*offset)
                    .u32(len)
                    .finish(data.len());
            }
            Self::Lstat { path } => one(buf, kind::LSTAT, path),
            Self::Stat { path } => one(buf, kind::STAT, path),
            Self::Fstat { handle } => one(buf, kind::FSTAT, &handle.0),
            Self::Setstat { path, attributes } => with(buf, kind::SETSTAT, path, attributes),
            Self::Fsetstat { handle, attributes } => with(buf, kind::FSETSTAT, &handle.0, attributes),
            Self::Opendir { path } => one(buf, kind::OPENDIR, path),
            Self::Readdir { handle } => one(buf, kind::READDIR, &handle.0),
            Self::Remove { path } => one(buf, kind::REMOVE, path),
            Self::Mkdir { path, attributes } => with(buf, kind::MKDIR, path, attributes),
            Self::Rmdir { path } => one(buf, kind::RMDIR, path),
            Self::Realpath { path } => one(buf, kind::REALPATH, path),
            Self::Rename { from, to } => two(buf, kind::RENAME, from, to),
            Self::Readlink { path } => one(buf, kind::READLINK, path),
            Self::Symlink { target, link } => two(buf, kind::SYMLINK, target, link),
            Self::PosixRename { from, to } => extended(buf, POSIX_RENAME).string(from).string(to).finish(0),
            Self::Hardlink { from, to } => extended(buf, HARDLINK).string(from).string(to).finish(0),
            Self::Fsync { handle } => extended(buf, FSYNC).string(&handle.0).finish(0),
            Self::Statvfs { path } => extended(buf, STATVFS).string(path).finish(0),
            Self::Fstatvfs { handle } => extended(buf, FSTATVFS).string(&handle.0).finish(0),
            Self::Lsetstat { path, attributes } => {
                extended(buf, LSETSTAT)
                    .string(path)
                    .append(|buf| attributes.encode(buf))
                    .finish(0);
            }
            Self::Limits => extended(buf, LIMITS).finish(0),
            Self::ExpandPath { path } => extended(buf, EXPAND_PATH).string(path).finish(0),
            Self::CopyData {
                from,
                from_offset,
                length,
                to,
                to_offset,
            } => extended(buf, COPY_DATA)
                .string(&from.0)
                .u64(*from_offset)
                .u64(*length)
                .string(&to.0)
                .u64(*to_offset)
                .finish(0),
            Self::HomeDirectory { user } => extended(buf, HOME_DIRECTORY).string(user).finish(0),
            Self::UsersGroupsById { uids, gids } => {
                let pack = |ids: &[u32]| ids.iter().flat_map(|id| id.to_be_bytes()).collect::<Vec<u8>>();
                extended(buf, USERS_GROUPS)
                    .string(&pack(uids))
                    .string(&pack(gids))
                    .finish(0);
            }
        }
    }

    /// Decodes a client's request of type `kind` after its number. Returns `None` for an unknown one.
    pub(crate) fn decode(kind: u8, reader: &mut Reader) -> Result<Option<Self>, Truncated> {
        // The bytes are copied, because they may live as long as a file is open and must not pin a receive buffer.
        let string = |reader: &mut Reader| reader.string().map(|bytes| Bytes::copy_from_slice(&bytes));
        let handle = |reader: &mut Reader| string(reader).map(Handle);
        Ok(Some(match kind {
            kind::OPEN => Self::Open {
                path: string(reader)?,
                flags: OpenFlags(reader.u32()?),
                attributes: FileAttributes::decode(reader)?,
            },
            kind::CLOSE => Self::Close {
                handle: handle(reader)?,
            },
            kind::READ => Self::Read {
                handle: handle(reader)?,
                offset: reader.u64()?,
                length: reader.u32()?,
            },
            kind::LSTAT => Self::Lstat {
                path: string(reader)?,
            },
            kind::STAT => Self::Stat {
                path: string(reader)?,
            },
            kind::FSTAT => Self::Fstat {
                handle: handle(reader)?,
            },
            kind::SETSTAT => Self::Setstat {
                path: string(reader)?,
                attributes: FileAttributes::decode(reader)?,
            },
            kind::FSETSTAT => Self::Fsetstat {
                handle: handle(reader)?,
                attributes: FileAttributes::decode(reader)?,
            },
            kind::OPENDIR => Self::Opendir {
                path: string(reader)?,
            },
            kind::READDIR => Self::Readdir {
                handle: handle(reader)?,
            },
            kind::REMOVE => Self::Remove {
                path: string(reader)?,
            },
            kind::MKDIR => Self::Mkdir {
                path: string(reader)?,
                attributes: FileAttributes::decode(reader)?,
            },
            kind::RMDIR => Self::Rmdir {
                path: string(reader)?,
            },
            kind::REALPATH => Self::Realpath {
                path: string(reader)?,
            },
            kind::RENAME => Self::Rename {
                from: string(reader)?,
                to: string(reader)?,
            },
            kind::READLINK => Self::Readlink {
                path: string(reader)?,
            },
            kind::SYMLINK => Self::Symlink {
                target: string(reader)?,
                link: string(reader)?,
            },
            kind::EXTENDED => return decode_extended(&reader.string()?, reader),
            _ => return Ok(None),
        }))
    }
}

fn decode_extended(name: &[u8], reader: &mut Reader) -> Result<Option<Request>, Truncated> {
    let string = |reader: &mut Reader| reader.string().map(|bytes| Bytes::copy_from_slice(&bytes));
    let is = |(known, _): (&str, &str)| name == known.as_bytes();
    Ok(Some(if is(POSIX_RENAME) {
        Request::PosixRename {
            from: string(reader)?,
            to: string(reader)?,
        }
    } else if is(HARDLINK) {
        Request::Hardlink {
            from: string(reader)?,
            to: string(reader)?,
        }
    } else if is(FSYNC) {
        Request::Fsync {
            handle: Handle(string(reader)?),
        }
    } else if is(STATVFS) {
        Request::Statvfs {
            path: string(reader)?,
        }
    } else if is(FSTATVFS) {
        Request::Fstatvfs {
            handle: Handle(string(reader)?),
        }
    } else if is(LSETSTAT) {
        Request::Lsetstat {
            path: string(reader)?,
            attributes: FileAttributes::decode(reader)?,
        }
    } else if is(LIMITS) {
        Request::Limits
    } else if is(EXPAND_PATH) {
        Request::ExpandPath {
            path: string(reader)?,
        }
    } else if is(HOME_DIRECTORY) {
        Request::HomeDirectory {
            user: string(reader)?,
        }
    } else if is(COPY_DATA) {
        Request::CopyData {
            from: Handle(string(reader)?),
            from_offset: reader.u64()?,
            length: reader.u64()?,
            to: Handle(string(reader)?),
            to_offset: reader.u64()?,
        }
    } else {
        return Ok(None);
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symlinks_target_goes_first() {
        let mut buf = BytesMut::new();
        let request = Request::Symlink {
            target: "t".into(),
            link: "ln".into(),
        };
        request.encode(5, &mut buf);
        assert_eq!(&buf[..], b"\0\0\0\x10\x14\0\0\0\x05\0\0\0\x01t\0\0\0\x02ln");
    }

    #[test]
    fn a_write_counts_its_data_and_leaves_it_out() {
        let mut buf = BytesMut::new();
        let request = Request::Write {
            handle: Handle("h".into()),
            offset: 1,
            data: vec![0; 5000].into(),
        };
        request.encode(5, &mut buf);
        assert_eq!(buf.len(), 4 + 1 + 4 + 5 + 8 + 4);
        assert_eq!(&buf[..4], (22u32 + 5000).to_be_bytes());
    }
}
