//! Replies (draft-ietf-secsh-filexfer-02 section 7).

use bytes::Bytes;

use crate::attributes::FileAttributes;
use crate::data::Data;
use crate::error::Error;
use crate::extension::{Limits, Names, StatVfs};
use crate::packet::{Reader, kind};
use crate::status::{Status, StatusCode};

/// An open file or directory, in the server's own bytes. Valid in the session that opened it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Handle(pub(crate) Bytes);

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name as the server gave it, unchecked: it may be `..` or contain a `/`. [`Walk`](crate::transfer::Walk)
    /// checks.
    pub name: Bytes,
    /// A line as `ls -l` prints it, in no guaranteed form.
    pub longname: Bytes,
    /// Attributes, of the link itself if it is one.
    pub attributes: FileAttributes,
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// The request was carried out.
    Done,
    /// A file or directory is open. Close it.
    Handle(Handle),
    /// Data of a file; never empty and never longer than requested.
    Data(Data),
    /// Names in a directory.
    Entries(Vec<DirEntry>),
    /// A path.
    Path(Bytes),
    /// Attributes of a file.
    Attributes(FileAttributes),
    /// A file system's state.
    StatVfs(StatVfs),
    /// The server's limits.
    Limits(Limits),
    /// Names of users and groups.
    Names(Names),
}

/// The outcome of a request: its result, or the status with the reason for the failure.
pub type Outcome = Result<Reply, Status>;

/// The kind of reply that a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    Done,
    Handle,
    Data { most: u32 },
    Entries,
    Path,
    Attributes,
    StatVfs,
    Limits,
    Names { users: usize, groups: usize },
}

/// The longest handle (section 6.3: "MUST NOT exceed 256 bytes").
const MAX_HANDLE: usize = 256;

impl Expect {
    /// Decodes a reply of type `reply`; [`Self::check_data`] handles SSH_FXP_DATA.
    pub(crate) fn decode(self, reply: u8, mut reader: Reader) -> Result<Outcome, Error> {
        let reader = &mut reader;
        if reply == kind::STATUS {
            let status = Status::decode(reader)?;
            return match (status.code, self) {
                (StatusCode::OK, Self::Done) => Ok(Ok(Reply::Done)),
                (StatusCode::OK, _) => Err(Error::misbehavior("it said OK where something was asked for")),
                _ => Ok(Err(status)),
            };
        }
        Ok(Ok(match (reply, self) {
            (kind::HANDLE, Self::Handle) => {
                let handle = reader.string()?;
                if handle.len() > MAX_HANDLE {
                    return Err(Error::misbehavior("it gave a handle of more than 256 bytes"));
                }
                // The bytes are copied, because they live as long as the file is open and must not pin a receive
                // buffer.
                Reply::Handle(Handle(Bytes::copy_from_slice(&handle)))
            }
            (kind::NAME, Self::Entries) => Reply::Entries(entries(reader)?),
            (kind::NAME, Self::Path) => match <[DirEntry; 1]>::try_from(entries(reader)?) {
                Ok([entry]) => Reply::Path(entry.name),
                Err(_) => {
                    return Err(Error::misbehavior(
                        "it gave more or less than one name for a path",
                    ));
                }
            },
            (kind::ATTRS, Self::Attributes) => Reply::Attributes(FileAttributes::decode(reader)?),
            (kind::EXTENDED_REPLY, Self::StatVfs) => Reply::StatVfs(StatVfs::decode(reader)?),
            (kind::EXTENDED_REPLY, Self::Limits) => Reply::Limits(Limits::decode(reader)?),
            (kind::EXTENDED_REPLY, Self::Names { users, groups }) => {
                Reply::Names(Names::decode(reader, users, groups)?)
            }
            _ => {
                return Err(Error::misbehavior(format!(
                    "it answered with a packet of type {reply}"
                )));
            }
        }))
    }

    /// Checks that data of this length answers the request. Some servers mark the end of a file with empty data.
    pub(crate) fn check_data(self, data: Data) -> Result<Outcome, Error> {
        match self {
            Self::Data { .. } if data.is_empty() => Ok(Err(Status::local(StatusCode::EOF, ""))),
            Self::Data { most } if data.len() <= most as usize => Ok(Ok(Reply::Data(data))),
            Self::Data { .. } => Err(Error::misbehavior("it sent more data than was asked for")),
            _ => Err(Error::misbehavior("it answered with data that was not asked for")),
        }
    }
}

pub(crate) fn entries(reader: &mut Reader) -> Result<Vec<DirEntry>, Error> {
    /// The smallest entry: two empty strings and no attributes.
    const SMALLEST: usize = 12;
    let count = reader.u32()? as usize;
    if count > reader.remaining() / SMALLEST {
        return Err(Error::misbehavior(
            "it announced more names than a packet can hold",
        ));
    }
    (0..count)
        .map(|_| {
            let (name, longname) = (reader.string()?, reader.string()?);
            Ok(DirEntry {
                name,
                longname,
                attributes: FileAttributes::decode(reader)?,
            })
        })
        .collect()
}
