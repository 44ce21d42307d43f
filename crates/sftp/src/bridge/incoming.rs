//! The packets from a client and a server.

use bytes::{BufMut as _, Bytes, BytesMut};

use crate::attributes::FileAttributes;
use crate::data::{Data, Inbox};
use crate::error::Error;
use crate::packet::{MAX_PACKET, Reader, Truncated, kind};
use crate::reply::{DirEntry, Handle};
use crate::request::Request;
use crate::status::{Status, StatusCode};

/// A packet without its length.
pub(super) struct Packet {
    pub(super) kind: u8,
    pub(super) body: Data,
}

/// Splits a stream of bytes into packets.
#[derive(Default)]
pub(super) struct Packets {
    inbox: Inbox,
    declared: Option<usize>,
}

/// An impossible length of a packet.
pub(super) struct BadLength {
    pub(super) length: usize,
    /// The bytes of the length, and the bytes after it.
    pub(super) start: Vec<u8>,
}

impl Packets {
    pub(super) fn push(&mut self, bytes: Bytes) {
        self.inbox.push(bytes);
    }

    pub(super) fn len(&self) -> usize {
        self.inbox.len()
    }

    pub(super) fn next(&mut self) -> Result<Option<Packet>, BadLength> {
        let declared = match self.declared {
            Some(declared) => declared,
            None if self.inbox.len() < 4 => return Ok(None),
            None => {
                let field: [u8; 4] = self.inbox.take_array();
                let length = u32::from_be_bytes(field) as usize;
                if !(1..=MAX_PACKET).contains(&length) {
                    let mut start = field.to_vec();
                    start.extend_from_slice(&self.inbox.take(self.inbox.len().min(200)).into_bytes());
                    return Err(BadLength { length, start });
                }
                *self.declared.insert(length)
            }
        };
        if self.inbox.len() < declared {
            return Ok(None);
        }
        self.declared = None;
        let [kind] = self.inbox.take_array();
        let body = self.inbox.take(declared - 1);
        Ok(Some(Packet { kind, body }))
    }
}

/// A client's request, with the client's handles.
#[derive(Debug)]
pub(super) enum Order {
    /// A write, with its data in the slices in which it came.
    Write { handle: Handle, offset: u64, data: Data },
    /// Any other request that this crate knows.
    Known(Request),
    /// An unknown or malformed packet: the bytes after the request's number.
    Other { kind: u8, body: Bytes },
}

impl Order {
    /// Decodes a request after its number.
    pub(super) fn decode(kind: u8, body: Data) -> Self {
        if kind == kind::WRITE
            && let Some(write) = decode_write(&body)
        {
            return write;
        }
        let body = body.into_bytes();
        match Request::decode(kind, &mut Reader::new(body.clone())) {
            Ok(Some(request)) => Self::Known(request),
            Ok(None) | Err(Truncated) => Self::Other { kind, body },
        }
    }
}

/// Decodes a write, with its data in slices.
fn decode_write(body: &Data) -> Option<Order> {
    /// The lengths of handle and data, the longest handle, and the offset.
    const LONGEST_HEAD: usize = 4 + 256 + 8 + 4;
    let head = body.part(0, LONGEST_HEAD).into_bytes();
    let mut reader = Reader::new(head.clone());
    let handle = Handle(Bytes::copy_from_slice(&reader.string().ok()?));
    let offset = reader.u64().ok()?;
    let len = reader.u32().ok()? as usize;
    let start = head.len() - reader.remaining();
    (len <= body.len() - start).then(|| Order::Write {
        handle,
        offset,
        data: body.part(start, len),
    })
}

impl Packet {
    /// Makes a status of the bridge's own.
    pub(super) fn of_status(code: StatusCode, text: &str) -> Self {
        let mut body = BytesMut::new();
        body.put_u32(code.0);
        body.put_u32(text.len() as u32);
        body.put_slice(text.as_bytes());
        // The text has no language.
        body.put_u32(0);
        Self {
            kind: kind::STATUS,
            body: Data::from(body.freeze()),
        }
    }

    pub(super) fn of_data(data: Data) -> Self {
        let mut body = Data::from(Bytes::copy_from_slice(&(data.len() as u32).to_be_bytes()));
        data.into_chunks().into_iter().for_each(|chunk| body.push(chunk));
        Self {
            kind: kind::DATA,
            body,
        }
    }

    pub(super) fn of_names(names: &[DirEntry]) -> Self {
        let mut body = BytesMut::new();
        body.put_u32(names.len() as u32);
        for DirEntry {
            name,
            longname,
            attributes,
        } in names
        {
            for text in [name, longname] {
                body.put_u32(text.len() as u32);
                body.put_slice(text);
            }
            attributes.encode(&mut body);
        }
        Self {
            kind: kind::NAME,
            body: Data::from(body.freeze()),
        }
    }

    pub(super) fn status(&self) -> Option<Status> {
        (self.kind == kind::STATUS)
            .then(|| Status::decode(&mut Reader::new(self.body.clone().into_bytes())).ok())
            .flatten()
    }

    pub(super) fn is_ok(&self) -> bool {
        self.kind == kind::STATUS && self.body.len() >= 4 && self.body.part(0, 4).into_bytes()[..] == [0; 4]
    }

    pub(super) fn attributes(&self) -> Option<FileAttributes> {
        (self.kind == kind::ATTRS)
            .then(|| FileAttributes::decode(&mut Reader::new(self.body.clone().into_bytes())).ok())
            .flatten()
    }

    pub(super) fn handle(&self) -> Result<Handle, Error> {
        let handle = Reader::new(self.body.clone().into_bytes()).string()?;
        Ok(Handle(Bytes::copy_from_slice(&handle)))
    }

    /// Returns the data of a DATA packet; `None` for another packet, or if the data is longer than the packet.
    pub(super) fn data(&self) -> Option<Data> {
        if self.kind != kind::DATA {
            return None;
        }
        let len = Reader::new(self.body.part(0, 4).into_bytes()).u32().ok()? as usize;
        (len <= self.body.len() - 4).then(|| self.body.part(4, len))
    }
}

impl Order {
    pub(super) fn handles(&self) -> impl Iterator<Item = &Handle> {
        match self {
            Self::Write { handle, .. } => [Some(handle), None],
            Self::Known(request) => request.handles(),
            Self::Other { .. } => [None, None],
        }
        .into_iter()
        .flatten()
    }

    /// Returns whether its answer may consist of several answers of the server.
    pub(super) fn brings_pieces(&self) -> bool {
        matches!(self, Self::Known(Request::Read { .. } | Request::Readdir { .. }))
    }

    pub(super) fn truncates(&self) -> bool {
        matches!(self, Self::Known(Request::Open { flags, .. }) if flags.truncates())
    }

    pub(super) fn is_read(&self) -> bool {
        matches!(self, Self::Known(Request::Read { .. }))
    }

    /// Returns whether it changes or closes a file, and is harmless to repeat.
    pub(super) fn is_repeatable_change(&self) -> bool {
        match self {
            Self::Write { .. } => true,
            Self::Known(request) => matches!(
                request,
                Request::Setstat { .. }
                    | Request::Lsetstat { .. }
                    | Request::Fsetstat { .. }
                    | Request::Fsync { .. }
                    | Request::Close { .. }
            ),
            Self::Other { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(request: &Request) -> Packet {
        let mut buf = BytesMut::new();
        request.encode(7, &mut buf);
        let mut packets = Packets::default();
        packets.push(buf.freeze());
        packets.next().ok().flatten().expect("a packet")
    }

    #[test]
    fn what_a_client_encodes_is_read_again() {
        let (a, b) = (Bytes::from_static(b"a/b"), Bytes::from_static(b"c"));
        let h = Handle("h".into());
        let attributes = FileAttributes {
            size: Some(3),
            ..FileAttributes::default()
        };
        let requests = [
            Request::Open {
                path: a.clone(),
                flags: crate::request::OpenFlags(0x1b),
                attributes: attributes.clone(),
            },
            Request::Close { handle: h.clone() },
            Request::Read {
                handle: h.clone(),
                offset: 9,
                length: 4,
            },
            Request::Lstat { path: a.clone() },
            Request::Fsetstat {
                handle: h.clone(),
                attributes: attributes.clone(),
            },
            Request::Rename {
                from: a.clone(),
                to: b.clone(),
            },
            Request::Symlink {
                target: a.clone(),
                link: b.clone(),
            },
            Request::PosixRename {
                from: a.clone(),
                to: b.clone(),
            },
            Request::Fsync { handle: h.clone() },
            Request::Lsetstat {
                path: a.clone(),
                attributes,
            },
            Request::Limits,
            Request::CopyData {
                from: h.clone(),
                from_offset: 1,
                length: 2,
                to: h.clone(),
                to_offset: 3,
            },
        ];
        for request in requests {
            let Packet { kind, body } = encode(&request);
            let body = body.part(4, body.len());
            match Order::decode(kind, body) {
                Order::Known(read) => assert_eq!(read, request),
                other => panic!("{request:?} became {other:?}"),
            }
        }
    }

    #[test]
    fn a_write_that_ends_early_is_left_to_the_server() {
        let mut body = Data::from(Bytes::from_static(b"\0\0\0\x01h\0\0\0\0\0\0\0\0\0\0\0\x05abcd"));
        assert!(matches!(
            Order::decode(kind::WRITE, body.clone()),
            Order::Other { .. }
        ));
        body.push("e".into());
        match Order::decode(kind::WRITE, body) {
            Order::Write { data, .. } => assert_eq!(&data.into_bytes()[..], b"abcde"),
            other => panic!("{other:?}"),
        }
    }
}
