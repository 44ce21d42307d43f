//! [`Seen`]: a finding about a path.

use bytes::Bytes;

use super::incoming::Packet;
use crate::attributes::FileAttributes;
use crate::packet::{Reader, kind};
use crate::reply::entries;
use crate::status::StatusCode;

/// A finding about a path.
pub(super) enum Seen {
    Missing,
    There(FileAttributes),
    /// The target of a symbolic link.
    Link(Bytes),
    /// The server did not tell.
    Untold,
}

impl Seen {
    pub(super) fn from_answer(answer: &Packet) -> Self {
        let link = || {
            let names = entries(&mut Reader::new(answer.body.clone().into_bytes())).ok()?;
            names
                .into_iter()
                .next()
                .map(|entry| Bytes::copy_from_slice(&entry.name))
        };
        match (answer.attributes(), answer.status()) {
            (Some(attributes), _) => Self::There(attributes),
            (_, Some(status)) if status.code == StatusCode::NO_SUCH_FILE => Self::Missing,
            _ if answer.kind == kind::NAME => link().map_or(Self::Untold, Self::Link),
            _ => Self::Untold,
        }
    }
}
