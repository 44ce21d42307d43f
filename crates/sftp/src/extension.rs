//! The server's abilities beyond the draft: extensions in SSH_FXP_VERSION and replies to SSH_FXP_EXTENDED (OpenSSH's
//! PROTOCOL, section 4).

use bytes::Bytes;

use crate::error::Error;
use crate::packet::{MAX_DATA, MAX_PACKET, Reader};
use trunkline_text::Printable;

/// The names of extended requests, each with the version that this crate speaks.
pub(crate) const POSIX_RENAME: (&str, &str) = ("posix-rename@openssh.com", "1");
pub(crate) const STATVFS: (&str, &str) = ("statvfs@openssh.com", "2");
pub(crate) const FSTATVFS: (&str, &str) = ("fstatvfs@openssh.com", "2");
pub(crate) const HARDLINK: (&str, &str) = ("hardlink@openssh.com", "1");
pub(crate) const FSYNC: (&str, &str) = ("fsync@openssh.com", "1");
pub(crate) const LSETSTAT: (&str, &str) = ("lsetstat@openssh.com", "1");
pub(crate) const LIMITS: (&str, &str) = ("limits@openssh.com", "1");
pub(crate) const EXPAND_PATH: (&str, &str) = ("expand-path@openssh.com", "1");
pub(crate) const COPY_DATA: (&str, &str) = ("copy-data", "1");
pub(crate) const HOME_DIRECTORY: (&str, &str) = ("home-directory", "1");
pub(crate) const USERS_GROUPS: (&str, &str) = ("users-groups-by-id@openssh.com", "1");

/// The extensions that a server announced, with their versions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extensions {
    announced: Vec<(Bytes, Bytes)>,
}

impl Extensions {
    /// Returns whether the server announced the extension in this version. It may announce several versions of one.
    pub fn has(&self, name: &str, version: &str) -> bool {
        self.announced
            .iter()
            .any(|(n, v)| n == name.as_bytes() && v == version.as_bytes())
    }

    /// Returns whether they are those of OpenSSH's own sftp-server, which begins with the same three since version 5.1.
    /// Other servers order its extensions differently. The server's name says less: OpenSSH's sftp-server also runs
    /// behind dropbear and tinysshd, and sshd runs other subsystems.
    pub fn are_sftp_servers(&self) -> bool {
        let first = self.announced.iter().take(3);
        let first = first.map(|(name, version)| (&name[..], &version[..]));
        first
            .eq([POSIX_RENAME, STATVFS, FSTATVFS]
                .map(|(name, version)| (name.as_bytes(), version.as_bytes())))
    }

    /// Returns the names and versions as announced.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.announced
            .iter()
            .map(|(name, version)| (&name[..], &version[..]))
    }

    /// Decodes the extensions after the version number in SSH_FXP_VERSION.
    pub(crate) fn decode(reader: &mut Reader) -> Result<Self, Error> {
        let mut announced = Vec::new();
        while reader.remaining() > 0 {
            announced.push((reader.string()?, reader.string()?));
        }
        Ok(Self { announced })
    }
}

/// A server's limits: the reply to `limits@openssh.com`, or OpenSSH's assumption about servers without it. The values
/// need no further check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes to ask for in one read: 4 to 255 KiB.
    pub max_read: u32,
    /// The most bytes to send in one write: 4 to 255 KiB.
    pub max_write: u32,
    /// The most files and directories that may be open at once; at least 1.
    pub max_handles: usize,
}

/// The smallest limit of a read or write that is accepted from a server.
const LEAST: u64 = 4096;

impl Default for Limits {
    /// Returns 32 KiB, as sftp-client.c's DEFAULT_COPY_BUFLEN, and 100 handles, as every sftp-server since 2001 has.
    fn default() -> Self {
        Self {
            max_read: 32 * 1024,
            max_write: 32 * 1024,
            max_handles: 100,
        }
    }
}

impl Limits {
    /// Returns the limits with reads and writes of at most `largest` bytes.
    pub(crate) fn cap(self, largest: Option<u32>) -> Self {
        let largest = largest.unwrap_or(u32::MAX).max(1);
        Self {
            max_read: self.max_read.min(largest),
            max_write: self.max_write.min(largest),
            ..self
        }
    }

    /// Decodes the limits. Zero means no limit; then this client keeps its default, as OpenSSH's does. A limit below
    /// [`LEAST`] comes from no honest server: the draft (section 3) requires packets of 34,000 bytes. Following it
    /// could cost a request for each byte.
    pub(crate) fn decode(reader: &mut Reader) -> Result<Self, Error> {
        let packet = reader.u64()?;
        let (read, write, handles) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let default = Self::default();
        // A write's data must fit into a packet with its header, for which sftp-server leaves 1 KiB.
        let room = if packet == 0 { MAX_PACKET as u64 } else { packet }.saturating_sub(1024);
        let bounded = |value: u64, default: u32| match value {
            0 => default,
            n if n.min(room) < LEAST => default,
            n => u32::try_from(n.min(room)).unwrap_or(MAX_DATA).min(MAX_DATA),
        };
        Ok(Self {
            max_read: bounded(read, default.max_read),
            max_write: bounded(write, default.max_write),
            max_handles: match handles {
                0 => default.max_handles,
                n => usize::try_from(n).unwrap_or(usize::MAX),
            },
        })
    }
}

/// A file system's state: the reply to `statvfs@openssh.com`, with the fields of statvfs(3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatVfs {
    /// File system block size in bytes.
    pub block_size: u64,
    /// Fundamental block size in bytes: the unit of the three block counts.
    pub fragment_size: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for users other than root.
    pub blocks_available: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Free inodes for users other than root.
    pub files_available: u64,
    /// The file system's number.
    pub id: u64,
    /// SSH_FXE_STATVFS_ST_RDONLY (1), SSH_FXE_STATVFS_ST_NOSUID (2).
    pub flags: u64,
    /// The longest name in bytes.
    pub name_max: u64,
}

impl StatVfs {
    /// Returns the number of bytes that users other than root can still write.
    pub fn available_bytes(&self) -> u64 {
        self.blocks_available.saturating_mul(self.fragment_size)
    }

    /// Returns whether the file system is mounted read-only.
    pub fn is_read_only(&self) -> bool {
        self.flags & 1 != 0
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<Self, Error> {
        Ok(Self {
            block_size: reader.u64()?,
            fragment_size: reader.u64()?,
            blocks: reader.u64()?,
            blocks_free: reader.u64()?,
            blocks_available: reader.u64()?,
            files: reader.u64()?,
            files_free: reader.u64()?,
            files_available: reader.u64()?,
            id: reader.u64()?,
            flags: reader.u64()?,
            name_max: reader.u64()?,
        })
    }
}

/// Names of users and groups: the reply to `users-groups-by-id@openssh.com`, in the order of the request. A name is
/// empty if the server does not know it; all are safe to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// Names of the users.
    pub users: Vec<String>,
    /// Names of the groups.
    pub groups: Vec<String>,
}

impl Names {
    pub(crate) fn decode(reader: &mut Reader, users: usize, groups: usize) -> Result<Self, Error> {
        let list = |packed: Bytes, asked: usize| {
            let mut reader = Reader::new(packed);
            let mut names = Vec::new();
            while reader.remaining() > 0 {
                names.push(Printable::line(reader.string()?).into_string());
            }
            if names.len() != asked {
                return Err(Error::misbehavior(format!(
                    "it gave {} names for {asked} numbers",
                    names.len()
                )));
            }
            Ok(names)
        };
        Ok(Self {
            users: list(reader.string()?, users)?,
            groups: list(reader.string()?, groups)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::{BufMut, BytesMut};

    fn limits(values: [u64; 4]) -> Limits {
        let mut buf = BytesMut::new();
        values.into_iter().for_each(|value| buf.put_u64(value));
        Limits::decode(&mut Reader::new(buf.freeze())).unwrap()
    }

    #[test]
    fn the_limits_of_openssh_are_taken_as_they_are() {
        // The limits that sftp-server of OpenSSH 9.2 sends with 20,000 file descriptors.
        let expected = Limits {
            max_read: 261_120,
            max_write: 261_120,
            max_handles: 19_995,
        };
        assert_eq!(limits([262_144, 261_120, 261_120, 19_995]), expected);
    }

    #[test]
    fn absent_limits_are_the_defaults_and_absurd_ones_are_bounded() {
        assert_eq!(limits([0; 4]), Limits::default());
        let bounded = limits([u64::MAX; 4]);
        assert_eq!((bounded.max_read, bounded.max_write), (MAX_DATA, MAX_DATA));
        assert_eq!(
            limits([1; 4]),
            Limits {
                max_handles: 1,
                ..Limits::default()
            },
            "a request for each byte"
        );
        assert_eq!(
            limits([0, 4095, 4096, 0]),
            Limits {
                max_write: 4096,
                ..Limits::default()
            }
        );
        assert_eq!(
            limits([2000, 32_768, 32_768, 0]),
            Limits::default(),
            "no room in a packet"
        );
    }
}
