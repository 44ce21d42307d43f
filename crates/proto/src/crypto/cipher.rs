//! Sealing and opening of packets: RFC 4253 section 6, RFC 4344 (AES-CTR), RFC 5647 as OpenSSH does it
//! (`aes*-gcm@openssh.com`) and PROTOCOL.chacha20poly1305.
//!
//! A [`Sealer`] works on a whole packet in the connection's send buffer, an [`Opener`] on one in the receive buffer.
//! Both work in place and allocate nothing: every byte of every transfer goes through here.

use std::fmt;
use std::ops::Range;

use aws_lc_rs::aead::{self, chacha20_poly1305_openssh as chacha};
use aws_lc_rs::cipher as block_cipher;
use aws_lc_rs::iv::FixedLength;
use zeroize::Zeroizing;

use super::mac::{Mac, MacKey};

/// The length of the `packet_length` field.
const LENGTH_LEN: usize = 4;
/// The smallest padding (RFC 4253 section 6).
const MIN_PADDING: usize = 4;
/// The smallest `packet_length`: the padding's length and the smallest padding.
const MIN_PACKET_LENGTH: usize = 1 + MIN_PADDING;
/// The block size for padding if the cipher has none or a smaller one (RFC 4253 section 6).
const MIN_BLOCK: usize = 8;
const AES_BLOCK: usize = 16;
const AEAD_TAG_LEN: usize = 16;
const GCM_NONCE_LEN: usize = 12;

/// An encryption algorithm of SSH's transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cipher {
    /// `aes128-gcm@openssh.com`.
    Aes128Gcm,
    /// `aes256-gcm@openssh.com`.
    Aes256Gcm,
    /// `chacha20-poly1305@openssh.com`.
    ChaCha20Poly1305,
    /// `aes128-ctr`.
    Aes128Ctr,
    /// `aes192-ctr`.
    Aes192Ctr,
    /// `aes256-ctr`.
    Aes256Ctr,
}

impl Cipher {
    /// The ciphers that trunkline offers, in the order for a CPU with AES instructions.
    pub const DEFAULT: &[Self] = &[
        Self::Aes128Gcm,
        Self::Aes256Gcm,
        Self::ChaCha20Poly1305,
        Self::Aes128Ctr,
        Self::Aes192Ctr,
        Self::Aes256Ctr,
    ];

    /// Returns the name in a KEXINIT.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "aes128-gcm@openssh.com",
            Self::Aes256Gcm => "aes256-gcm@openssh.com",
            Self::ChaCha20Poly1305 => "chacha20-poly1305@openssh.com",
            Self::Aes128Ctr => "aes128-ctr",
            Self::Aes192Ctr => "aes192-ctr",
            Self::Aes256Ctr => "aes256-ctr",
        }
    }

    /// Returns the cipher with that name, if trunkline offers it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::DEFAULT.iter().copied().find(|cipher| cipher.name() == name)
    }

    /// Returns the bytes of key to derive.
    pub fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm | Self::Aes128Ctr => 16,
            Self::Aes192Ctr => 24,
            Self::Aes256Gcm | Self::Aes256Ctr => 32,
            Self::ChaCha20Poly1305 => chacha::KEY_LEN,
        }
    }

    /// Returns the bytes of initial value to derive; chacha20-poly1305 uses the sequence number instead.
    pub fn iv_len(self) -> usize {
        match self {
            Self::Aes128Gcm | Self::Aes256Gcm => GCM_NONCE_LEN,
            Self::ChaCha20Poly1305 => 0,
            Self::Aes128Ctr | Self::Aes192Ctr | Self::Aes256Ctr => AES_BLOCK,
        }
    }

    /// Returns the number that packets are padded to a multiple of.
    pub fn block_len(self) -> usize {
        match self {
            Self::ChaCha20Poly1305 => MIN_BLOCK,
            _ => AES_BLOCK,
        }
    }

    /// Returns whether the cipher authenticates by itself, so that no MAC is negotiated.
    pub fn is_aead(self) -> bool {
        matches!(self, Self::Aes128Gcm | Self::Aes256Gcm | Self::ChaCha20Poly1305)
    }

    /// Returns the bytes in one direction after which keys must be renewed: 2^(L/4) blocks of L bits (RFC 4344 section
    /// 3.2), and 1 GiB for short blocks, as in OpenSSH.
    pub fn rekey_bytes(self) -> u64 {
        match self {
            Self::ChaCha20Poly1305 => 1 << 30,
            _ => (1 << 32) * AES_BLOCK as u64,
        }
    }
}

impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The keys of one direction (RFC 4253 section 7.2), wiped when dropped.
pub struct PacketKeys {
    /// [`Cipher::iv_len`] bytes.
    pub iv: Zeroizing<Vec<u8>>,
    /// [`Cipher::key_len`] bytes.
    pub key: Zeroizing<Vec<u8>>,
    /// [`Mac::key_len`] bytes; empty for an AEAD cipher.
    pub mac_key: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for PacketKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PacketKeys(..)")
    }
}

/// The reason why received bytes are not a valid packet. Each of them ends the connection, whose stream cannot
/// continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CipherError {
    /// `packet_length` is below the 5 bytes of padding, or above the maximum.
    #[error("the server sent a packet of length {length}; between 5 and {max} are allowed")]
    LengthOutOfRange {
        /// The length that the packet names.
        length: usize,
        /// The caller's maximum.
        max: usize,
    },
    /// The packet is not a multiple of the cipher's block size.
    #[error("the server sent a packet of length {length}, which does not fill blocks of {block} bytes")]
    LengthNotAligned {
        /// The length that the packet names.
        length: usize,
        /// The cipher's block size.
        block: usize,
    },
    /// The tag or MAC is wrong: the packet was altered, or the two sides have different keys.
    #[error("a packet from the server failed its integrity check")]
    Forged,
    /// The padding is shorter than 4 bytes or leaves no payload.
    #[error("a packet from the server has impossible padding")]
    BadPadding,
    /// [`Opener::open`] was called with a packet whose size [`Opener::packet_len`] had not returned.
    #[error("a packet was opened before its length was known; this is a bug in the caller")]
    NotMeasured,
}

/// Seals packets for sending.
pub struct Sealer(Sealing);

enum Sealing {
    Plaintext,
    Gcm(Gcm),
    ChaCha(Box<chacha::SealingKey>),
    Ctr(Box<Ctr>, Box<MacKey>),
}

impl Sealer {
    /// Returns the state before the first NEWKEYS: no encryption, no tag.
    pub fn plaintext() -> Self {
        Self(Sealing::Plaintext)
    }

    /// Seals with `keys` derived for `cipher` and `mac`. An AEAD cipher ignores `mac`.
    ///
    /// # Panics
    /// If the keys do not have the algorithms' lengths, or an AES-CTR cipher has no MAC.
    pub fn new(cipher: Cipher, mac: Option<Mac>, keys: &PacketKeys) -> Self {
        Self(match cipher {
            Cipher::Aes128Gcm | Cipher::Aes256Gcm => Sealing::Gcm(Gcm::new(cipher, keys)),
            Cipher::ChaCha20Poly1305 => Sealing::ChaCha(Box::new(chacha::SealingKey::new(chacha_key(keys)))),
            Cipher::Aes128Ctr | Cipher::Aes192Ctr | Cipher::Aes256Ctr => Sealing::Ctr(
                Box::new(Ctr::new(cipher, keys)),
                Box::new(mac_key(cipher, mac, keys)),
            ),
        })
    }

    /// Returns the number that packets are padded to a multiple of.
    pub fn block_len(&self) -> usize {
        match &self.0 {
            Sealing::Plaintext | Sealing::ChaCha(_) => MIN_BLOCK,
            Sealing::Gcm(_) | Sealing::Ctr(..) => AES_BLOCK,
        }
    }

    /// Returns the bytes of tag or MAC after each packet.
    pub fn tag_len(&self) -> usize {
        match &self.0 {
            Sealing::Plaintext => 0,
            Sealing::Gcm(_) | Sealing::ChaCha(_) => AEAD_TAG_LEN,
            Sealing::Ctr(_, mac) => mac.mac().tag_len(),
        }
    }

    /// Returns whether the 4 length bytes count towards the padding. They do not if they are authenticated data before
    /// the ciphertext (AEAD, encrypt-then-MAC).
    pub fn length_is_padded(&self) -> bool {
        match &self.0 {
            Sealing::Plaintext => true,
            Sealing::Gcm(_) | Sealing::ChaCha(_) => false,
            Sealing::Ctr(_, mac) => !mac.mac().is_etm(),
        }
    }

    /// Returns the smallest padding (4 to 19 bytes) for a payload of `payload_len` bytes.
    pub fn padding_len(&self, payload_len: usize) -> usize {
        let counted = usize::from(self.length_is_padded()) * LENGTH_LEN + 1 + payload_len + MIN_PADDING;
        MIN_PADDING + counted.next_multiple_of(self.block_len()) - counted
    }

    /// Seals one packet in place. `packet` is the length field, the padding's length, the payload, the padding (its
    /// length by [`Self::padding_len`], filled by the caller) and [`Self::tag_len`] spare bytes for the tag.
    ///
    /// # Panics
    /// If `packet` is too short, or its body does not fill AES-CTR's blocks.
    pub fn seal(&mut self, sequence: u32, packet: &mut [u8]) {
        let body_end = packet
            .len()
            .checked_sub(self.tag_len())
            .expect("the caller leaves room for the tag");
        let (clear, tag) = packet.split_at_mut(body_end);
        assert!(
            clear.len() >= LENGTH_LEN + MIN_PACKET_LENGTH,
            "a packet has a length, a padding length and padding"
        );
        match &mut self.0 {
            Sealing::Plaintext => {}
            Sealing::Gcm(gcm) => {
                let (length, body) = clear.split_at_mut(LENGTH_LEN);
                let sealed = gcm
                    .key
                    .seal_in_place_separate_tag(gcm.nonce.advance(), aead::Aad::from(length), body)
                    .expect("AES-GCM seals up to 64 GiB at once; a packet is far smaller");
                tag.copy_from_slice(sealed.as_ref());
            }
            Sealing::ChaCha(key) => {
                let tag = tag
                    .first_chunk_mut()
                    .expect("tag_len() is the length of a Poly1305 tag");
                key.seal_in_place(sequence, clear, tag);
            }
            Sealing::Ctr(ctr, mac) if mac.mac().is_etm() => {
                ctr.apply(&mut clear[LENGTH_LEN..]);
                tag.copy_from_slice(mac.sign(sequence, clear).as_ref());
            }
            Sealing::Ctr(ctr, mac) => {
                tag.copy_from_slice(mac.sign(sequence, clear).as_ref());
                ctr.apply(clear);
            }
        }
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer")
            .field("tag_len", &self.tag_len())
            .finish_non_exhaustive()
    }
}

/// Opens received packets. For each, call [`Self::packet_len`] as bytes arrive until it returns the size, then
/// [`Self::open`] once the whole packet has arrived.
pub struct Opener {
    opening: Opening,
    /// The size on the wire of the packet to open, as found by `packet_len`.
    measured: Option<usize>,
}

enum Opening {
    Plaintext,
    Gcm(Gcm),
    ChaCha(Box<chacha::OpeningKey>),
    Ctr(Box<Ctr>, Box<MacKey>),
}

impl Opener {
    /// Returns the state before the first NEWKEYS: no encryption, no tag.
    pub fn plaintext() -> Self {
        Self {
            opening: Opening::Plaintext,
            measured: None,
        }
    }

    /// Opens with `keys` derived for `cipher` and `mac`. An AEAD cipher ignores `mac`.
    ///
    /// # Panics
    /// If the keys do not have the algorithms' lengths, or an AES-CTR cipher has no MAC.
    pub fn new(cipher: Cipher, mac: Option<Mac>, keys: &PacketKeys) -> Self {
        let opening = match cipher {
            Cipher::Aes128Gcm | Cipher::Aes256Gcm => Opening::Gcm(Gcm::new(cipher, keys)),
            Cipher::ChaCha20Poly1305 => Opening::ChaCha(Box::new(chacha::OpeningKey::new(chacha_key(keys)))),
            Cipher::Aes128Ctr | Cipher::Aes192Ctr | Cipher::Aes256Ctr => Opening::Ctr(
                Box::new(Ctr::new(cipher, keys)),
                Box::new(mac_key(cipher, mac, keys)),
            ),
        };
        Self {
            opening,
            measured: None,
        }
    }

    /// Returns the size on the wire of the packet at the start of `buf` (length field, body and tag), or `None` if more
    /// bytes are needed. `max` bounds the packet's `packet_length` field, which counts neither itself nor the tag.
    ///
    /// AES-CTR without encrypt-then-MAC hides the length in the first block. That block of `buf` is then decrypted in
    /// place, once, and must reach [`Self::open`] like that. Further calls change nothing.
    ///
    /// # Errors
    /// The length is below 5, above `max` or not a multiple of the block size.
    pub fn packet_len(
        &mut self,
        sequence: u32,
        buf: &mut [u8],
        max: usize,
    ) -> Result<Option<usize>, CipherError> {
        if self.measured.is_some() {
            return Ok(self.measured);
        }
        let block = self.block_len();
        let prefix = if self.hides_length() { block } else { LENGTH_LEN };
        let Some(first) = buf.get_mut(..prefix) else {
            return Ok(None);
        };
        if let Opening::Ctr(ctr, mac) = &mut self.opening
            && !mac.mac().is_etm()
        {
            ctr.apply(first);
        }
        let mut field = [0; LENGTH_LEN];
        field.copy_from_slice(&first[..LENGTH_LEN]);
        if let Opening::ChaCha(key) = &self.opening {
            field = key.decrypt_packet_length(sequence, field);
        }

        // A length over usize::MAX (16-bit targets only) exceeds every maximum.
        let length = usize::try_from(u32::from_be_bytes(field)).unwrap_or(usize::MAX);
        if length < MIN_PACKET_LENGTH || length > max {
            return Err(CipherError::LengthOutOfRange { length, max });
        }
        let unpadded = if self.length_is_padded() { LENGTH_LEN } else { 0 };
        let whole = LENGTH_LEN
            .checked_add(length)
            .and_then(|n| n.checked_add(self.tag_len()))
            .ok_or(CipherError::LengthOutOfRange { length, max })?;
        if (unpadded + length) % block != 0 {
            return Err(CipherError::LengthNotAligned { length, block });
        }
        self.measured = Some(whole);
        Ok(self.measured)
    }

    /// Opens one whole packet in place; `packet` has exactly the size returned by [`Self::packet_len`]. Returns the
    /// payload's range in it, which is never empty, so that there is a message number.
    ///
    /// # Errors
    /// The packet fails its integrity check, or its padding is impossible. The content of `packet` is then unspecified.
    /// Nothing shows the sender which check of the decrypted text failed: padding is checked only if the packet is
    /// authentic.
    pub fn open(&mut self, sequence: u32, packet: &mut [u8]) -> Result<Range<usize>, CipherError> {
        if self.measured != Some(packet.len()) {
            return Err(CipherError::NotMeasured);
        }
        self.measured = None;
        let body_end = packet.len() - self.tag_len();
        match &mut self.opening {
            Opening::Plaintext => {}
            Opening::Gcm(gcm) => {
                let (length, body_and_tag) = packet.split_at_mut(LENGTH_LEN);
                gcm.key
                    .open_in_place(gcm.nonce.advance(), aead::Aad::from(length), body_and_tag)
                    .map_err(|_| CipherError::Forged)?;
            }
            Opening::ChaCha(key) => {
                let (sealed, tag) = packet.split_at_mut(body_end);
                let tag = tag.first_chunk().ok_or(CipherError::Forged)?;
                key.open_in_place(sequence, sealed, tag)
                    .map_err(|_| CipherError::Forged)?;
            }
            Opening::Ctr(ctr, mac) if mac.mac().is_etm() => {
                let (sealed, tag) = packet.split_at_mut(body_end);
                if !mac.matches(sequence, sealed, tag) {
                    return Err(CipherError::Forged);
                }
                ctr.apply(&mut sealed[LENGTH_LEN..]);
            }
            Opening::Ctr(ctr, mac) => {
                let (sealed, tag) = packet.split_at_mut(body_end);
                ctr.apply(&mut sealed[AES_BLOCK..]);
                if !mac.matches(sequence, sealed, tag) {
                    return Err(CipherError::Forged);
                }
            }
        }
        payload_range(&packet[..body_end])
    }

    fn block_len(&self) -> usize {
        match &self.opening {
            Opening::Plaintext | Opening::ChaCha(_) => MIN_BLOCK,
            Opening::Gcm(_) | Opening::Ctr(..) => AES_BLOCK,
        }
    }

    fn tag_len(&self) -> usize {
        match &self.opening {
            Opening::Plaintext => 0,
            Opening::Gcm(_) | Opening::ChaCha(_) => AEAD_TAG_LEN,
            Opening::Ctr(_, mac) => mac.mac().tag_len(),
        }
    }

    fn length_is_padded(&self) -> bool {
        matches!(self.opening, Opening::Plaintext) || self.hides_length()
    }

    /// Returns whether the length is encrypted together with the body's first bytes.
    fn hides_length(&self) -> bool {
        matches!(&self.opening, Opening::Ctr(_, mac) if !mac.mac().is_etm())
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener")
            .field("measured", &self.measured)
            .finish_non_exhaustive()
    }
}

/// Returns the payload's range in a decrypted packet (without tag).
fn payload_range(packet: &[u8]) -> Result<Range<usize>, CipherError> {
    let start = LENGTH_LEN + 1;
    let padding = usize::from(*packet.get(LENGTH_LEN).ok_or(CipherError::BadPadding)?);
    match packet.len().checked_sub(padding) {
        Some(end) if padding >= MIN_PADDING && end > start => Ok(start..end),
        _ => Err(CipherError::BadPadding),
    }
}

fn chacha_key(keys: &PacketKeys) -> &[u8; chacha::KEY_LEN] {
    keys.key
        .as_slice()
        .try_into()
        .expect("the key was derived for chacha20-poly1305")
}

fn mac_key(cipher: Cipher, mac: Option<Mac>, keys: &PacketKeys) -> MacKey {
    let mac = mac.unwrap_or_else(|| panic!("{cipher} is never negotiated without a MAC"));
    MacKey::new(mac, &keys.mac_key)
}

/// AES-GCM and its next nonce.
struct Gcm {
    key: aead::LessSafeKey,
    nonce: GcmNonce,
}

impl Gcm {
    fn new(cipher: Cipher, keys: &PacketKeys) -> Self {
        let algorithm = if cipher == Cipher::Aes128Gcm {
            &aead::AES_128_GCM
        } else {
            &aead::AES_256_GCM
        };
        let key = aead::UnboundKey::new(algorithm, &keys.key).expect("the key was derived for this cipher");
        let nonce = keys
            .iv
            .as_slice()
            .try_into()
            .expect("the IV was derived for AES-GCM");
        Self {
            key: aead::LessSafeKey::new(key),
            nonce: GcmNonce(nonce),
        }
    }
}

/// RFC 5647 section 7.1: 4 fixed bytes and an invocation counter in the last 8, which starts at the derived IV. Keys
/// are renewed long before the counter wraps.
struct GcmNonce([u8; GCM_NONCE_LEN]);

impl GcmNonce {
    /// Returns the nonce for this packet, and advances to the next.
    fn advance(&mut self) -> aead::Nonce {
        let nonce = aead::Nonce::assume_unique_for_key(self.0);
        let (_, counter) = self.0.split_last_chunk_mut::<8>().expect("a nonce has 12 bytes");
        *counter = u64::from_be_bytes(*counter).wrapping_add(1).to_be_bytes();
        nonce
    }
}

/// AES in counter mode over a stream of whole blocks (RFC 4344 section 4).
struct Ctr {
    key: block_cipher::EncryptingKey,
    counter: u128,
}

impl Ctr {
    fn new(cipher: Cipher, keys: &PacketKeys) -> Self {
        let algorithm = match cipher.key_len() {
            16 => &block_cipher::AES_128,
            24 => &block_cipher::AES_192,
            _ => &block_cipher::AES_256,
        };
        let key = block_cipher::UnboundCipherKey::new(algorithm, &keys.key)
            .and_then(block_cipher::EncryptingKey::ctr)
            .expect("the key was derived for this cipher");
        let iv = keys
            .iv
            .as_slice()
            .try_into()
            .expect("the IV was derived for AES-CTR");
        Self {
            key,
            counter: u128::from_be_bytes(iv),
        }
    }

    /// Encrypts or decrypts the stream's next blocks in place. `blocks` is a whole number of them: packets are padded,
    /// and an opener rejects others.
    fn apply(&mut self, blocks: &mut [u8]) {
        assert_eq!(
            blocks.len() % AES_BLOCK,
            0,
            "AES-CTR packets are padded to whole blocks"
        );
        let iv = block_cipher::EncryptionContext::Iv128(FixedLength::from(self.counter.to_be_bytes()));
        self.key
            .less_safe_encrypt(blocks, iv)
            .expect("AES-CTR takes any number of bytes and a 16-byte IV");
        self.counter = self.counter.wrapping_add((blocks.len() / AES_BLOCK) as u128);
    }
}

#[cfg(test)]
mod tests;
