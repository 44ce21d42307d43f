//! The cipher of hostile servers: `aes128-gcm@openssh.com`.

use std::io;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

/// The size of an AES-128 key.
pub(super) const KEY_LEN: usize = 16;

/// The size of GCM's tag.
pub(super) const TAG_LEN: usize = 16;

/// One direction of `aes128-gcm@openssh.com` (RFC 5647 section 7, with OpenSSH's PROTOCOL section 1.6).
pub(super) struct Gcm {
    key: LessSafeKey,
    /// Four fixed bytes and an invocation counter of eight bytes (RFC 5647 section 7.1).
    nonce: [u8; NONCE_LEN],
}

impl Gcm {
    pub(super) fn new(key: &[u8; KEY_LEN], nonce: [u8; NONCE_LEN]) -> Gcm {
        let key = UnboundKey::new(&AES_128_GCM, key).expect("a key of 16 bytes is an AES-128 key");
        Gcm {
            key: LessSafeKey::new(key),
            nonce,
        }
    }

    /// Encrypts a packet, whose length field comes before it, and appends the tag.
    pub(super) fn seal(&mut self, length: [u8; 4], mut packet: Vec<u8>) -> io::Result<Vec<u8>> {
        let nonce = self.next_nonce();
        self.key
            .seal_in_place_append_tag(nonce, Aad::from(length), &mut packet)
            .map_err(|_| io::Error::other("this packet cannot be sealed"))?;
        Ok(packet)
    }

    /// Decrypts a packet that ends with its tag.
    pub(super) fn open(&mut self, length: [u8; 4], mut sealed: Vec<u8>) -> io::Result<Vec<u8>> {
        let nonce = self.next_nonce();
        let opened = self
            .key
            .open_in_place(nonce, Aad::from(length), &mut sealed)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the client's packet is not authentic"))?
            .len();
        sealed.truncate(opened);
        Ok(sealed)
    }

    fn next_nonce(&mut self) -> Nonce {
        let nonce = Nonce::assume_unique_for_key(self.nonce);
        let counter = &mut self.nonce[NONCE_LEN - 8..];
        for byte in counter.iter_mut().rev() {
            *byte = byte.wrapping_add(1);
            if *byte != 0 {
                break;
            }
        }
        nonce
    }
}
