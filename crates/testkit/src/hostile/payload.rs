//! Messages of hostile servers, written and read field by field without checks.

use std::io;

/// Message numbers (RFC 4250 section 4.1, RFC 5656 section 7.1, RFC 8308 section 2.3).
#[allow(missing_docs)] // they are the RFCs' names
pub mod number {
    pub const DISCONNECT: u8 = 1;
    pub const IGNORE: u8 = 2;
    pub const UNIMPLEMENTED: u8 = 3;
    pub const DEBUG: u8 = 4;
    pub const SERVICE_REQUEST: u8 = 5;
    pub const SERVICE_ACCEPT: u8 = 6;
    pub const EXT_INFO: u8 = 7;
    pub const KEXINIT: u8 = 20;
    pub const NEWKEYS: u8 = 21;
    pub const KEX_ECDH_INIT: u8 = 30;
    pub const KEX_ECDH_REPLY: u8 = 31;
    pub const USERAUTH_REQUEST: u8 = 50;
    pub const USERAUTH_FAILURE: u8 = 51;
    pub const USERAUTH_SUCCESS: u8 = 52;
    pub const USERAUTH_BANNER: u8 = 53;
    pub const USERAUTH_PK_OK: u8 = 60;
    pub const USERAUTH_INFO_REQUEST: u8 = 60;
    pub const USERAUTH_INFO_RESPONSE: u8 = 61;
    pub const GLOBAL_REQUEST: u8 = 80;
    pub const REQUEST_SUCCESS: u8 = 81;
    pub const REQUEST_FAILURE: u8 = 82;
    pub const CHANNEL_OPEN: u8 = 90;
    pub const CHANNEL_OPEN_CONFIRMATION: u8 = 91;
    pub const CHANNEL_OPEN_FAILURE: u8 = 92;
    pub const CHANNEL_WINDOW_ADJUST: u8 = 93;
    pub const CHANNEL_DATA: u8 = 94;
    pub const CHANNEL_EXTENDED_DATA: u8 = 95;
    pub const CHANNEL_EOF: u8 = 96;
    pub const CHANNEL_CLOSE: u8 = 97;
    pub const CHANNEL_REQUEST: u8 = 98;
    pub const CHANNEL_SUCCESS: u8 = 99;
    pub const CHANNEL_FAILURE: u8 = 100;
}

/// A message under construction, in the data types of RFC 4251 section 5. Its content is not checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload(Vec<u8>);

impl Payload {
    /// Starts a message with its number.
    #[must_use]
    pub fn message(number: u8) -> Payload {
        Payload(vec![number])
    }

    /// Starts an empty payload, without a message number.
    #[must_use]
    pub fn empty() -> Payload {
        Payload(Vec::new())
    }

    /// Appends one byte.
    #[must_use]
    pub fn byte(self, value: u8) -> Payload {
        self.raw(&[value])
    }

    /// Appends a boolean.
    #[must_use]
    pub fn boolean(self, value: bool) -> Payload {
        self.byte(value.into())
    }

    /// Appends a uint32.
    #[must_use]
    pub fn uint32(self, value: u32) -> Payload {
        self.raw(&value.to_be_bytes())
    }

    /// Appends a string, or a name-list, with its length in front.
    ///
    /// # Panics
    /// When it is longer than 4 GiB, which does not fit in its length field.
    #[must_use]
    pub fn string(self, value: impl AsRef<[u8]>) -> Payload {
        let value = value.as_ref();
        let length = u32::try_from(value.len()).expect("tests send no strings of 4 GiB");
        self.uint32(length).raw(value)
    }

    /// Appends a non-negative integer, given as big-endian bytes, as an mpint.
    #[must_use]
    pub fn mpint(self, magnitude: &[u8]) -> Payload {
        let leading_zeros = magnitude.iter().take_while(|&&byte| byte == 0).count();
        let mut value = magnitude[leading_zeros..].to_vec();
        // The first bit is the sign.
        if value.first().is_some_and(|&byte| byte >= 0x80) {
            value.insert(0, 0);
        }
        self.string(value)
    }

    /// Appends bytes unchanged.
    #[must_use]
    pub fn raw(mut self, bytes: &[u8]) -> Payload {
        self.0.extend_from_slice(bytes);
        self
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Reads a received message field by field. Every method fails at the end of the message.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Starts after the message number.
    #[must_use]
    pub fn parse(payload: &'a [u8]) -> Fields<'a> {
        Fields(payload.get(1..).unwrap_or_default())
    }

    /// Reads the next byte.
    ///
    /// # Errors
    /// `InvalidData` at the end of the message, as in the methods below.
    pub fn byte(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }

    /// Reads the next boolean.
    ///
    /// # Errors
    /// At the end of the message.
    pub fn boolean(&mut self) -> io::Result<bool> {
        Ok(self.byte()? != 0)
    }

    /// Reads the next uint32.
    ///
    /// # Errors
    /// At the end of the message.
    pub fn uint32(&mut self) -> io::Result<u32> {
        let bytes = self.take(4)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Reads the next string.
    ///
    /// # Errors
    /// At the end of the message.
    pub fn string(&mut self) -> io::Result<&'a [u8]> {
        let length = self.uint32()?;
        self.take(length as usize)
    }

    /// Reads the next string as text, with replacement characters for invalid UTF-8.
    ///
    /// # Errors
    /// At the end of the message.
    pub fn text(&mut self) -> io::Result<String> {
        Ok(String::from_utf8_lossy(self.string()?).into_owned())
    }

    /// Reads the next `length` bytes.
    ///
    /// # Errors
    /// At the end of the message.
    pub fn take(&mut self, length: usize) -> io::Result<&'a [u8]> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a message ends within a field"))?;
        self.0 = rest;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_as_they_went_in() {
        let payload = Payload::message(number::CHANNEL_OPEN)
            .string("session")
            .uint32(7)
            .boolean(true)
            .byte(9);
        let mut fields = Fields::parse(payload.as_ref());
        assert_eq!(fields.text().unwrap(), "session");
        assert_eq!(fields.uint32().unwrap(), 7);
        assert!(fields.boolean().unwrap());
        assert_eq!(fields.byte().unwrap(), 9);
        assert!(fields.byte().is_err());
    }

    #[test]
    fn mpints_are_minimal_and_never_negative() {
        // The examples of RFC 4251 section 5 that are not negative.
        for (magnitude, encoded) in [
            (&[0, 0][..], &[0, 0, 0, 0][..]),
            (&[0, 0x80], &[0, 0, 0, 2, 0, 0x80]),
            (&[9, 0xa3, 0x78], &[0, 0, 0, 3, 9, 0xa3, 0x78]),
        ] {
            assert_eq!(Payload::empty().mpint(magnitude).as_ref(), encoded);
        }
    }
}
