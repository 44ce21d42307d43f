//! The data types of RFC 4251 section 5: how SSH encodes values.
//!
//! [`Reader`] takes values from a payload and never reads past its end; [`Writer`] appends them to a buffer. Neither
//! allocates from a length that was not checked against the bytes at hand.

use bytes::{BufMut, Bytes, BytesMut};

/// An invalid payload: it ended within a value, or has a value that its type does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The value's declared or implied size exceeds the payload.
    #[error("the message ends in the middle of a value")]
    Truncated,
    /// A name or a text is not the ASCII or UTF-8 that its type requires.
    #[error("a text in the message is not valid {0}")]
    NotText(&'static str),
    /// An mpint that is not positive, or has superfluous leading bytes.
    #[error("a number in the message is not a proper positive mpint")]
    BadNumber,
    /// Bytes were left after the last value of a message.
    #[error("the message has extra data after its last value")]
    Trailing,
}

/// Takes values from the front of a payload.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `payload`.
    pub fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload }
    }

    /// Returns the bytes not yet read.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns whether everything has been read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Fails unless everything has been read.
    pub fn finish(self) -> Result<(), WireError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(WireError::Trailing)
        }
    }

    /// Reads `n` raw bytes.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], WireError> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    /// Reads a `byte[N]`.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    /// Reads a `byte`.
    pub fn u8(&mut self) -> Result<u8, WireError> {
        self.array::<1>().map(|[b]| b)
    }

    /// Reads a `boolean`: every value but 0 is true.
    pub fn bool(&mut self) -> Result<bool, WireError> {
        self.u8().map(|b| b != 0)
    }

    /// Reads a `uint32`.
    pub fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_be_bytes)
    }

    /// Reads a `uint64`.
    pub fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads a `string`, as raw bytes.
    pub fn string(&mut self) -> Result<&'a [u8], WireError> {
        let n = self.u32()?;
        self.take(usize::try_from(n).map_err(|_| WireError::Truncated)?)
    }

    /// Reads a `string` of UTF-8 text.
    pub fn utf8(&mut self) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.string()?).map_err(|_| WireError::NotText("UTF-8"))
    }

    /// Reads a `string` with an algorithm, method or request name: US-ASCII (RFC 4251 section 6).
    pub fn name(&mut self) -> Result<&'a str, WireError> {
        let text = self.utf8().map_err(|e| match e {
            WireError::NotText(_) => WireError::NotText("US-ASCII"),
            other => other,
        })?;
        if text.is_ascii() {
            Ok(text)
        } else {
            Err(WireError::NotText("US-ASCII"))
        }
    }

    /// Reads a `name-list`: comma-separated names; an empty list has no names.
    pub fn name_list(&mut self) -> Result<Vec<&'a str>, WireError> {
        let list = self.name()?;
        Ok(list.split(',').filter(|name| !name.is_empty()).collect())
    }

    /// Reads an `mpint` of a positive number or zero, as minimal big-endian bytes (no leading zero; empty for 0).
    pub fn mpint(&mut self) -> Result<&'a [u8], WireError> {
        let bytes = self.string()?;
        match bytes {
            [] => Ok(bytes),
            [0, next, ..] if next & 0x80 != 0 => Ok(&bytes[1..]),
            [first, ..] if first & 0x80 == 0 && *first != 0 => Ok(bytes),
            _ => Err(WireError::BadNumber),
        }
    }
}

/// Appends values to a growing buffer.
#[derive(Debug, Default)]
pub struct Writer {
    buf: BytesMut,
}

impl Writer {
    /// Creates an empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a buffer that starts with a message number.
    pub fn message(number: u8) -> Self {
        let mut writer = Self {
            buf: BytesMut::with_capacity(64),
        };
        writer.buf.put_u8(number);
        writer
    }

    /// Appends a `byte`.
    pub fn u8(mut self, value: u8) -> Self {
        self.buf.put_u8(value);
        self
    }

    /// Appends a `boolean`.
    pub fn bool(self, value: bool) -> Self {
        self.u8(u8::from(value))
    }

    /// Appends a `uint32`.
    pub fn u32(mut self, value: u32) -> Self {
        self.buf.put_u32(value);
        self
    }

    /// Appends a `uint64`.
    pub fn u64(mut self, value: u64) -> Self {
        self.buf.put_u64(value);
        self
    }

    /// Appends bytes without a length before them.
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.buf.put_slice(bytes);
        self
    }

    /// Appends a `string`. Strings over 4 GiB cannot be encoded and never arise: callers bound them by packets.
    pub fn string(mut self, bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        let len = u32::try_from(bytes.len()).expect("a string that goes into one packet is far below 4 GiB");
        self.buf.put_u32(len);
        self.buf.put_slice(bytes);
        self
    }

    /// Appends a `name-list`.
    pub fn name_list<S: AsRef<str>>(self, names: &[S]) -> Self {
        let joined = names.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(",");
        self.string(joined)
    }

    /// Appends an `mpint` of a positive number given as big-endian bytes (leading zeros allowed).
    pub fn mpint(mut self, bytes: &[u8]) -> Self {
        let start = bytes.iter().position(|&b| b != 0).unwrap_or(bytes.len());
        let bytes = &bytes[start..];
        let sign = usize::from(bytes.first().is_some_and(|b| b & 0x80 != 0));
        let len =
            u32::try_from(bytes.len() + sign).expect("numbers of key exchanges have a few thousand bits");
        self.buf.put_u32(len);
        self.buf.put_bytes(0, sign);
        self.buf.put_slice(bytes);
        self
    }

    /// Returns the bytes written.
    pub fn finish(self) -> Bytes {
        self.buf.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mpints_are_those_of_rfc_4251() {
        // The examples of RFC 4251 section 5.
        assert_eq!(&Writer::new().mpint(&[]).finish()[..], [0, 0, 0, 0]);
        assert_eq!(&Writer::new().mpint(&[0x80]).finish()[..], [0, 0, 0, 2, 0, 0x80]);
        let long = [0x09, 0xa3, 0x78, 0xf9, 0xb2, 0xe3, 0x32, 0xa7];
        let encoded = Writer::new().mpint(&long).finish();
        assert_eq!(Reader::new(&encoded).mpint(), Ok(&long[..]));
    }

    #[test]
    fn negative_and_padded_mpints_are_refused() {
        assert_eq!(
            Reader::new(&[0, 0, 0, 1, 0x80]).mpint(),
            Err(WireError::BadNumber)
        );
        assert_eq!(
            Reader::new(&[0, 0, 0, 2, 0, 1]).mpint(),
            Err(WireError::BadNumber)
        );
    }

    #[test]
    fn a_length_past_the_end_is_truncation() {
        assert_eq!(
            Reader::new(&[0xff, 0xff, 0xff, 0xff, 1]).string(),
            Err(WireError::Truncated)
        );
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(a: Vec<u8>, b: u32, c: bool, d: u64, number: Vec<u8>) {
            let bytes = Writer::new().string(&a).u32(b).bool(c).u64(d).mpint(&number).finish();
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(reader.string().unwrap(), &a[..]);
            prop_assert_eq!(reader.u32().unwrap(), b);
            prop_assert_eq!(reader.bool().unwrap(), c);
            prop_assert_eq!(reader.u64().unwrap(), d);
            let start = number.iter().position(|&x| x != 0).unwrap_or(number.len());
            prop_assert_eq!(reader.mpint().unwrap(), &number[start..]);
            prop_assert!(reader.finish().is_ok());
        }

        #[test]
        fn no_input_panics(bytes: Vec<u8>) {
            let mut reader = Reader::new(&bytes);
            while reader.name_list().is_ok() && !reader.is_empty() {}
            let mut reader = Reader::new(&bytes);
            while reader.mpint().is_ok() && !reader.is_empty() {}
        }
    }
}
