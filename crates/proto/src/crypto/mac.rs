//! Message authentication codes for ciphers that do not authenticate by themselves (RFC 4253 section 6.4, RFC 6668, and
//! the encrypt-then-MAC forms of OpenSSH's PROTOCOL section 1.5).

use std::fmt;

use aws_lc_rs::hmac;

/// A MAC for an AES-CTR cipher. The AEAD ciphers have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mac {
    /// `hmac-sha2-256`: over the plaintext packet.
    HmacSha256,
    /// `hmac-sha2-512`: over the plaintext packet.
    HmacSha512,
    /// `hmac-sha2-256-etm@openssh.com`: over the clear length and the ciphertext.
    HmacSha256Etm,
    /// `hmac-sha2-512-etm@openssh.com`: over the clear length and the ciphertext.
    HmacSha512Etm,
}

impl Mac {
    /// The algorithms that trunkline offers, best first: OpenSSH's own order without SHA-1 and UMAC.
    pub const DEFAULT: &[Self] = &[
        Self::HmacSha256Etm,
        Self::HmacSha512Etm,
        Self::HmacSha256,
        Self::HmacSha512,
    ];

    /// Returns the name in a KEXINIT.
    pub fn name(self) -> &'static str {
        match self {
            Self::HmacSha256 => "hmac-sha2-256",
            Self::HmacSha512 => "hmac-sha2-512",
            Self::HmacSha256Etm => "hmac-sha2-256-etm@openssh.com",
            Self::HmacSha512Etm => "hmac-sha2-512-etm@openssh.com",
        }
    }

    /// Returns the MAC with that name, if trunkline offers it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::DEFAULT.iter().copied().find(|mac| mac.name() == name)
    }

    /// Returns the bytes of key to derive.
    pub fn key_len(self) -> usize {
        self.tag_len()
    }

    /// Returns the bytes that the MAC adds after each packet.
    pub fn tag_len(self) -> usize {
        match self {
            Self::HmacSha256 | Self::HmacSha256Etm => 32,
            Self::HmacSha512 | Self::HmacSha512Etm => 64,
        }
    }

    /// Returns whether the MAC covers the ciphertext, with an unencrypted length, instead of the plaintext.
    pub fn is_etm(self) -> bool {
        matches!(self, Self::HmacSha256Etm | Self::HmacSha512Etm)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A MAC with its key.
pub(crate) struct MacKey {
    mac: Mac,
    key: hmac::Key,
}

impl MacKey {
    /// Creates a MAC from a `key` of its key length.
    pub(crate) fn new(mac: Mac, key: &[u8]) -> Self {
        assert_eq!(
            key.len(),
            mac.key_len(),
            "the MAC key was derived for another MAC"
        );
        let algorithm = match mac {
            Mac::HmacSha256 | Mac::HmacSha256Etm => hmac::HMAC_SHA256,
            Mac::HmacSha512 | Mac::HmacSha512Etm => hmac::HMAC_SHA512,
        };
        Self {
            mac,
            key: hmac::Key::new(algorithm, key),
        }
    }

    pub(crate) fn mac(&self) -> Mac {
        self.mac
    }

    /// Returns the tag over the sequence number and `data`: RFC 4253 section 6.4.
    pub(crate) fn sign(&self, sequence: u32, data: &[u8]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&sequence.to_be_bytes());
        context.update(data);
        context.sign()
    }

    /// Returns whether `tag` is the one over the sequence number and `data`, compared in constant time.
    pub(crate) fn matches(&self, sequence: u32, data: &[u8], tag: &[u8]) -> bool {
        let expected = self.sign(sequence, data);
        aws_lc_rs::constant_time::verify_slices_are_equal(expected.as_ref(), tag).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_back_to_its_mac() {
        for &mac in Mac::DEFAULT {
            assert_eq!(Mac::from_name(mac.name()), Some(mac));
        }
        assert_eq!(Mac::from_name("hmac-sha1"), None);
    }

    #[test]
    fn the_sequence_number_is_part_of_what_is_authenticated() {
        for &mac in Mac::DEFAULT {
            let key = MacKey::new(mac, &vec![7; mac.key_len()]);
            let tag = key.sign(5, b"packet");
            assert_eq!(tag.as_ref().len(), mac.tag_len());
            assert!(key.matches(5, b"packet", tag.as_ref()));
            assert!(!key.matches(6, b"packet", tag.as_ref()));
            assert!(!key.matches(5, b"packer", tag.as_ref()));
            assert!(!key.matches(5, b"packet", &tag.as_ref()[1..]));
        }
    }
}
