//! ATTRS: a file's attributes (draft-ietf-secsh-filexfer-02 section 5).

use bytes::{BufMut, Bytes, BytesMut};

use crate::packet::{Reader, Truncated};

const ATTR_SIZE: u32 = 0x0000_0001;
const ATTR_UIDGID: u32 = 0x0000_0002;
const ATTR_PERMISSIONS: u32 = 0x0000_0004;
const ATTR_ACMODTIME: u32 = 0x0000_0008;
const ATTR_EXTENDED: u32 = 0x8000_0000;

/// A file's attributes. `None` means that the server did not send one, or that a request does not change it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileAttributes {
    /// The size in bytes. In a request that sets attributes: truncates or extends the file.
    pub size: Option<u64>,
    /// Owner and group.
    pub owner: Option<Owner>,
    /// Permissions and type.
    pub permissions: Option<Permissions>,
    /// Times of last access and modification.
    pub times: Option<Times>,
    /// Pairs of type and data that the draft leaves to vendors. This crate's own requests have none.
    pub extended: Vec<(Bytes, Bytes)>,
}

/// A file's numeric owner and group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// A file's times in whole seconds since 1970-01-01 UTC; version 3 has 32 bits for each, to the year 2106.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Times {
    /// Last access.
    pub accessed: u32,
    /// Last modification.
    pub modified: u32,
}

/// `st_mode` as POSIX defines it: the permission bits and the type of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Permissions(pub u32);

impl Permissions {
    /// Returns the bits that chmod(2) sets: 07777.
    pub fn bits(self) -> u32 {
        self.0 & 0o7777
    }

    /// Returns the type, if POSIX knows it.
    pub fn file_type(self) -> Option<FileType> {
        Some(match self.0 & 0o170_000 {
            0o100_000 => FileType::Regular,
            0o040_000 => FileType::Directory,
            0o120_000 => FileType::Symlink,
            0o010_000 => FileType::Fifo,
            0o140_000 => FileType::Socket,
            0o020_000 => FileType::CharacterDevice,
            0o060_000 => FileType::BlockDevice,
            _ => return None,
        })
    }
}

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A Unix socket.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
}

impl FileAttributes {
    /// Returns the type, if the server sent it.
    pub fn file_type(&self) -> Option<FileType> {
        self.permissions.and_then(Permissions::file_type)
    }

    /// Returns whether every attribute is missing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<Self, Truncated> {
        let flags = reader.u32()?;
        let mut attributes = Self::default();
        if flags & ATTR_SIZE != 0 {
            attributes.size = Some(reader.u64()?);
        }
        if flags & ATTR_UIDGID != 0 {
            attributes.owner = Some(Owner {
                uid: reader.u32()?,
                gid: reader.u32()?,
            });
        }
        if flags & ATTR_PERMISSIONS != 0 {
            attributes.permissions = Some(Permissions(reader.u32()?));
        }
        if flags & ATTR_ACMODTIME != 0 {
            attributes.times = Some(Times {
                accessed: reader.u32()?,
                modified: reader.u32()?,
            });
        }
        if flags & ATTR_EXTENDED != 0 {
            // Each pair takes at least eight bytes, so a false count soon meets the packet's end.
            for _ in 0..reader.u32()? {
                attributes.extended.push((reader.string()?, reader.string()?));
            }
        }
        Ok(attributes)
    }

    pub(crate) fn encode(&self, buf: &mut BytesMut) {
        let flag = |present: bool, flag: u32| if present { flag } else { 0 };
        buf.put_u32(
            flag(self.size.is_some(), ATTR_SIZE)
                | flag(self.owner.is_some(), ATTR_UIDGID)
                | flag(self.permissions.is_some(), ATTR_PERMISSIONS)
                | flag(self.times.is_some(), ATTR_ACMODTIME)
                | flag(!self.extended.is_empty(), ATTR_EXTENDED),
        );
        if let Some(size) = self.size {
            buf.put_u64(size);
        }
        if let Some(Owner { uid, gid }) = self.owner {
            buf.put_u32(uid);
            buf.put_u32(gid);
        }
        if let Some(Permissions(mode)) = self.permissions {
            buf.put_u32(mode);
        }
        if let Some(Times { accessed, modified }) = self.times {
            buf.put_u32(accessed);
            buf.put_u32(modified);
        }
        if !self.extended.is_empty() {
            // The request's size was checked, so no count or length here comes near 2^32.
            buf.put_u32(self.extended.len() as u32);
            for part in self.extended.iter().flat_map(|(kind, data)| [kind, data]) {
                buf.put_u32(part.len() as u32);
                buf.put_slice(part);
            }
        }
    }

    /// Returns an upper bound of the length that [`Self::encode`] appends.
    pub(crate) fn encoded_len(&self) -> usize {
        64 + self
            .extended
            .iter()
            .map(|(kind, data)| 8 + kind.len() + data.len())
            .sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn attributes() -> impl Strategy<Value = FileAttributes> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from);
        (
            any::<Option<u64>>(),
            any::<Option<(u32, u32)>>(),
            any::<Option<u32>>(),
            any::<Option<(u32, u32)>>(),
            prop::collection::vec((bytes(), bytes()), 0..3),
        )
            .prop_map(|(size, owner, mode, times, extended)| FileAttributes {
                size,
                owner: owner.map(|(uid, gid)| Owner { uid, gid }),
                permissions: mode.map(Permissions),
                times: times.map(|(accessed, modified)| Times { accessed, modified }),
                extended,
            })
    }

    #[test]
    fn a_false_count_of_extended_pairs_ends_with_the_packet() {
        let packet = Bytes::from_static(&[0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        assert_eq!(FileAttributes::decode(&mut Reader::new(packet)), Err(Truncated));
    }

    #[test]
    fn the_type_is_in_the_mode() {
        assert_eq!(Permissions(0o100_644).file_type(), Some(FileType::Regular));
        assert_eq!(Permissions(0o041_777).file_type(), Some(FileType::Directory));
        assert_eq!(Permissions(0o041_777).bits(), 0o1777);
        assert_eq!(Permissions(0o644).file_type(), None);
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(attributes in attributes()) {
            let mut buf = BytesMut::new();
            attributes.encode(&mut buf);
            prop_assert!(buf.len() <= attributes.encoded_len());
            let mut reader = Reader::new(buf.freeze());
            prop_assert_eq!(FileAttributes::decode(&mut reader).unwrap(), attributes);
            prop_assert_eq!(reader.remaining(), 0);
        }
    }
}
