//! Packets and the values in them (draft-ietf-secsh-filexfer-02 section 3; RFC 4251 section 5).
//!
//! [`Reader`] hands out slices of a received packet and never reads past its end; [`Writer`] appends one packet to a
//! buffer. Neither allocates by a length that it has not checked against the bytes at hand.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::error::Error;

/// The largest packet, without its length field, that either side accepts: SFTP_MAX_MSG_LENGTH of OpenSSH's
/// sftp-common.h. sftp-server exits on a larger one.
pub(crate) const MAX_PACKET: usize = 256 * 1024;
/// The most data of one read or write. sftp-server offers the same: SFTP_MAX_MSG_LENGTH less 1 KiB for the rest of the
/// packet.
pub(crate) const MAX_DATA: u32 = 255 * 1024;

/// Packet types (section 3 of the draft).
pub(crate) mod kind {
    pub(crate) const INIT: u8 = 1;
    pub(crate) const VERSION: u8 = 2;
    pub(crate) const OPEN: u8 = 3;
    pub(crate) const CLOSE: u8 = 4;
    pub(crate) const READ: u8 = 5;
    pub(crate) const WRITE: u8 = 6;
    pub(crate) const LSTAT: u8 = 7;
    pub(crate) const FSTAT: u8 = 8;
    pub(crate) const SETSTAT: u8 = 9;
    pub(crate) const FSETSTAT: u8 = 10;
    pub(crate) const OPENDIR: u8 = 11;
    pub(crate) const READDIR: u8 = 12;
    pub(crate) const REMOVE: u8 = 13;
    pub(crate) const MKDIR: u8 = 14;
    pub(crate) const RMDIR: u8 = 15;
    pub(crate) const REALPATH: u8 = 16;
    pub(crate) const STAT: u8 = 17;
    pub(crate) const RENAME: u8 = 18;
    pub(crate) const READLINK: u8 = 19;
    pub(crate) const SYMLINK: u8 = 20;
    pub(crate) const STATUS: u8 = 101;
    pub(crate) const HANDLE: u8 = 102;
    pub(crate) const DATA: u8 = 103;
    pub(crate) const NAME: u8 = 104;
    pub(crate) const ATTRS: u8 = 105;
    pub(crate) const EXTENDED: u8 = 200;
    pub(crate) const EXTENDED_REPLY: u8 = 201;
}

/// A packet ended in the middle of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Truncated;

impl From<Truncated> for Error {
    fn from(_: Truncated) -> Self {
        Self::misbehavior("a packet ends in the middle of a value")
    }
}

/// Takes values from the front of a packet's payload.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    rest: Bytes,
}

impl Reader {
    pub(crate) fn new(payload: Bytes) -> Self {
        Self { rest: payload }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Truncated> {
        self.rest.try_get_u32().map_err(|_| Truncated)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Truncated> {
        self.rest.try_get_u64().map_err(|_| Truncated)
    }

    /// Takes a `string`, as a slice of the packet.
    pub(crate) fn string(&mut self) -> Result<Bytes, Truncated> {
        let n = usize::try_from(self.u32()?).map_err(|_| Truncated)?;
        if n > self.rest.len() {
            return Err(Truncated);
        }
        Ok(self.rest.split_to(n))
    }
}

/// Appends one packet to a buffer; [`Self::finish`] puts its length in front.
pub(crate) struct Writer<'a> {
    buf: &'a mut BytesMut,
    start: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn packet(buf: &'a mut BytesMut, kind: u8) -> Self {
        let start = buf.len();
        buf.put_u32(0);
        buf.put_u8(kind);
        Self { buf, start }
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.buf.put_u32(value);
        self
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.buf.put_u64(value);
        self
    }

    pub(crate) fn string(self, bytes: &[u8]) -> Self {
        let len =
            u32::try_from(bytes.len()).expect("the size of a request was checked against the packet size");
        self.buf.put_u32(len);
        self.buf.put_slice(bytes);
        self
    }

    /// Appends the bytes that `append` writes.
    pub(crate) fn append(self, append: impl FnOnce(&mut BytesMut)) -> Self {
        append(self.buf);
        self
    }

    /// Ends the packet; its length includes `outside` bytes, which follow separately.
    pub(crate) fn finish(self, outside: usize) {
        let len = self.buf.len() - self.start - 4 + outside;
        let len = u32::try_from(len).expect("the size of a request was checked against the packet size");
        self.buf[self.start..self.start + 4].copy_from_slice(&len.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_length_past_the_end_is_truncation() {
        assert_eq!(
            Reader::new(Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 1])).string(),
            Err(Truncated)
        );
    }

    #[test]
    fn a_packet_counts_what_follows_it_by_another_way() {
        let mut buf = BytesMut::new();
        Writer::packet(&mut buf, kind::WRITE).u32(7).finish(100);
        assert_eq!(&buf[..4], 105u32.to_be_bytes());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(a: Vec<u8>, b: u32, c: u64) {
            let mut buf = BytesMut::new();
            Writer::packet(&mut buf, 9).string(&a).u32(b).u64(c).finish(0);
            let mut reader = Reader::new(buf.freeze());
            prop_assert_eq!(reader.u32().unwrap() as usize, reader.remaining());
            let mut reader = Reader::new(reader.rest.slice(1..));
            prop_assert_eq!(&reader.string().unwrap()[..], &a[..]);
            prop_assert_eq!(reader.u32().unwrap(), b);
            prop_assert_eq!(reader.u64().unwrap(), c);
        }
    }
}
