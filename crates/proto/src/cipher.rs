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

use crate::mac::{Mac, MacKey};

/// Bytes of the `packet_length` field.
const LENGTH_LEN: usize = 4;
/// The smallest padding (RFC 4253 section 6).
const MIN_PADDING: usize = 4;
/// The smallest `packet_length`: the padding's length and the smallest padding.
const MIN_PACKET_LENGTH: usize = 1 + MIN_PADDING;
/// The block size that packets are padded to when the cipher has none or a smaller one (RFC 4253 section 6).
const MIN_BLOCK: usize = 8;
const AES_BLOCK: usize = 16;
const AEAD_TAG_LEN: usize = 16;
const GCM_NONCE_LEN: usize = 12;

/// Packets after which keys must be renewed whatever their size, because sequence numbers wrap at 2^32
/// (RFC 4344 section 3.1; OpenSSH's `MAX_PACKETS`).
pub const REKEY_PACKETS: u32 = 1 << 31;

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
    /// What trunkline offers, in the order for a CPU with AES instructions.
    pub const DEFAULT: &[Self] = &[
        Self::Aes128Gcm,
        Self::Aes256Gcm,
        Self::ChaCha20Poly1305,
        Self::Aes128Ctr,
        Self::Aes192Ctr,
        Self::Aes256Ctr,
    ];

    /// The name in a KEXINIT.
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

    /// The cipher of that name, if it is one of ours.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::DEFAULT.iter().copied().find(|cipher| cipher.name() == name)
    }

    /// Bytes of key to derive.
    pub fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm | Self::Aes128Ctr => 16,
            Self::Aes192Ctr => 24,
            Self::Aes256Gcm | Self::Aes256Ctr => 32,
            Self::ChaCha20Poly1305 => chacha::KEY_LEN,
        }
    }

    /// Bytes of initial value to derive; chacha20-poly1305 takes the sequence number instead.
    pub fn iv_len(self) -> usize {
        match self {
            Self::Aes128Gcm | Self::Aes256Gcm => GCM_NONCE_LEN,
            Self::ChaCha20Poly1305 => 0,
            Self::Aes128Ctr | Self::Aes192Ctr | Self::Aes256Ctr => AES_BLOCK,
        }
    }

    /// The number that packets are padded to a multiple of.
    pub fn block_len(self) -> usize {
        match self {
            Self::ChaCha20Poly1305 => MIN_BLOCK,
            _ => AES_BLOCK,
        }
    }

    /// Whether the cipher authenticates by itself, so that no MAC is negotiated.
    pub fn is_aead(self) -> bool {
        matches!(self, Self::Aes128Gcm | Self::Aes256Gcm | Self::ChaCha20Poly1305)
    }

    /// Bytes in one direction after which keys must be renewed: 2^(L/4) blocks of L bits (RFC 4344 section 3.2),
    /// and 1 GiB where blocks are short, as in OpenSSH.
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

/// Why received bytes are no packet. Every one of these ends the connection: the stream cannot be resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CipherError {
    /// `packet_length` is below the 5 bytes that padding takes, or above what we accept.
    #[error("the server sent a packet of length {length}; between 5 and {max} are allowed")]
    LengthOutOfRange {
        /// What the packet says.
        length: usize,
        /// The caller's maximum.
        max: usize,
    },
    /// The packet is no multiple of the cipher's block size.
    #[error("the server sent a packet of length {length}, which does not fill blocks of {block} bytes")]
    LengthNotAligned {
        /// What the packet says.
        length: usize,
        /// The cipher's block size.
        block: usize,
    },
    /// The tag or MAC does not match: the packet was altered, or the two sides do not hold the same keys.
    #[error("a packet from the server failed its integrity check")]
    Forged,
    /// The padding is shorter than 4 bytes or leaves no payload.
    #[error("a packet from the server has impossible padding")]
    BadPadding,
    /// [`Opener::open`] was called with a packet whose size [`Opener::packet_len`] had not told.
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
    /// What goes before the first NEWKEYS: no encryption, no tag.
    pub fn plaintext() -> Self {
        Self(Sealing::Plaintext)
    }

    /// Seals with `keys` derived for `cipher` and `mac`. An AEAD cipher ignores `mac`.
    ///
    /// # Panics
    /// When the keys have other lengths than the algorithms ask for, or an AES-CTR cipher comes without a MAC.
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

    /// The number that packets are padded to a multiple of.
    pub fn block_len(&self) -> usize {
        match &self.0 {
            Sealing::Plaintext | Sealing::ChaCha(_) => MIN_BLOCK,
            Sealing::Gcm(_) | Sealing::Ctr(..) => AES_BLOCK,
        }
    }

    /// Bytes of tag or MAC behind each packet.
    pub fn tag_len(&self) -> usize {
        match &self.0 {
            Sealing::Plaintext => 0,
            Sealing::Gcm(_) | Sealing::ChaCha(_) => AEAD_TAG_LEN,
            Sealing::Ctr(_, mac) => mac.mac().tag_len(),
        }
    }

    /// Whether the 4 length bytes count in the padding multiple: not where they are authenticated data in front of
    /// the ciphertext (AEAD, encrypt-then-MAC).
    pub fn length_is_padded(&self) -> bool {
        match &self.0 {
            Sealing::Plaintext => true,
            Sealing::Gcm(_) | Sealing::ChaCha(_) => false,
            Sealing::Ctr(_, mac) => !mac.mac().is_etm(),
        }
    }

    /// The smallest padding (4 to 19 bytes) that a payload of `payload_len` bytes may have.
    pub fn padding_len(&self, payload_len: usize) -> usize {
        let counted = usize::from(self.length_is_padded()) * LENGTH_LEN + 1 + payload_len + MIN_PADDING;
        MIN_PADDING + counted.next_multiple_of(self.block_len()) - counted
    }

    /// Seals one packet in place. `packet` is the length field, the padding's length, the payload, the padding (as
    /// [`Self::padding_len`] says, filled by the caller) and [`Self::tag_len`] spare bytes for the tag.
    ///
    /// # Panics
    /// When `packet` is too short to be one, or its body does not fill AES-CTR's blocks.
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

/// Opens received packets. For each: [`Self::packet_len`] as bytes arrive until it tells the size, then
/// [`Self::open`] once the whole packet is there.
pub struct Opener {
    opening: Opening,
    /// What `packet_len` found out about the packet that `open` is due for: its size on the wire.
    measured: Option<usize>,
}

enum Opening {
    Plaintext,
    Gcm(Gcm),
    ChaCha(Box<chacha::OpeningKey>),
    Ctr(Box<Ctr>, Box<MacKey>),
}

impl Opener {
    /// What comes before the first NEWKEYS: no encryption, no tag.
    pub fn plaintext() -> Self {
        Self {
            opening: Opening::Plaintext,
            measured: None,
        }
    }

    /// Opens with `keys` derived for `cipher` and `mac`. An AEAD cipher ignores `mac`.
    ///
    /// # Panics
    /// When the keys have other lengths than the algorithms ask for, or an AES-CTR cipher comes without a MAC.
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

    /// The size on the wire of the packet that `buf` starts with (length field, body and tag), or `None` if more
    /// bytes are needed to tell. `max` bounds the packet's own `packet_length` field, which counts neither itself
    /// nor the tag.
    ///
    /// AES-CTR without encrypt-then-MAC hides the length in the first block: that block of `buf` is then decrypted
    /// in place, once, and must reach [`Self::open`] like that. Asking again is free and changes nothing.
    ///
    /// # Errors
    /// When the length is below 5, above `max` or no multiple of the block size.
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

        // A length over usize::MAX (16-bit targets only) is over every maximum as well.
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

    /// Opens one whole packet in place; `packet` has exactly the size that [`Self::packet_len`] told. Returns where
    /// the payload lies in it: never empty, so that there is a message number.
    ///
    /// # Errors
    /// When the packet fails its integrity check or its padding is impossible. What `packet` then holds is
    /// unspecified, and nothing tells the sender which check of the decrypted text failed: padding is looked at only
    /// when the packet is known to be authentic.
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

    /// Whether the length is encrypted together with the body's first bytes.
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

/// Where the payload of a clear packet (without tag) lies.
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

/// RFC 5647 section 7.1: 4 fixed bytes and a counter of invocations in the last 8, which starts where the derived
/// IV says. Keys are renewed long before the counter has gone round.
struct GcmNonce([u8; GCM_NONCE_LEN]);

impl GcmNonce {
    /// The nonce for this packet; the next packet gets the next one.
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

    /// Encrypts or decrypts the stream's next blocks in place. `blocks` is a whole number of them: packets are
    /// padded, and an opener takes none that is not.
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Enough for every packet that the tests make.
    const MAX: usize = 256 * 1024;

    #[test]
    fn every_name_leads_back_to_its_cipher() {
        for &cipher in Cipher::DEFAULT {
            assert_eq!(Cipher::from_name(cipher.name()), Some(cipher));
        }
        assert_eq!(Cipher::from_name("3des-cbc"), None);
    }

    #[test]
    fn keys_are_renewed_where_openssh_renews_them() {
        assert_eq!(Cipher::Aes128Gcm.rekey_bytes(), 64 << 30);
        assert_eq!(Cipher::ChaCha20Poly1305.rekey_bytes(), 1 << 30);
    }

    #[test]
    fn counter_mode_gives_the_published_blocks() {
        // NIST SP 800-38A, F.5.1 (AES-128) and F.5.5 (AES-256), the first two blocks.
        let counter = "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff";
        let plain = "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51";
        for (cipher, key, sealed) in [
            (
                Cipher::Aes128Ctr,
                "2b7e151628aed2a6abf7158809cf4f3c",
                "874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff",
            ),
            (
                Cipher::Aes256Ctr,
                "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
                "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5",
            ),
        ] {
            let keys = PacketKeys {
                iv: Zeroizing::new(hex(counter)),
                key: Zeroizing::new(hex(key)),
                mac_key: Zeroizing::default(),
            };
            // Block by block, so that the counter's progress between packets is tested too.
            let mut ctr = Ctr::new(cipher, &keys);
            let mut blocks = hex(plain);
            let (first, second) = blocks.split_at_mut(AES_BLOCK);
            ctr.apply(first);
            ctr.apply(second);
            assert_eq!(blocks, hex(sealed));
        }
    }

    #[test]
    fn the_gcm_counter_wraps_within_its_eight_bytes() {
        let mut nonce = GcmNonce([0xff; GCM_NONCE_LEN]);
        nonce.advance();
        assert_eq!(nonce.0, [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_plaintext_packet_is_left_as_it_is() {
        let mut sealer = Sealer::plaintext();
        let clear = framed(&sealer, b"hello");
        let mut wire = clear.clone();
        sealer.seal(0, &mut wire);
        assert_eq!(wire, clear);
        assert_eq!(wire.len(), 16);
        assert_eq!(receive(&mut Opener::plaintext(), 0, &mut wire).unwrap(), b"hello");
    }

    #[test]
    fn a_length_outside_the_bounds_is_refused() {
        for length in [0, 4, 40_001, u32::MAX] {
            let mut wire = length.to_be_bytes();
            let refused = Opener::plaintext().packet_len(0, &mut wire, 40_000);
            assert!(
                matches!(refused, Err(CipherError::LengthOutOfRange { max: 40_000, .. })),
                "{refused:?}"
            );
        }
        let refused = Opener::plaintext().packet_len(0, &mut 13u32.to_be_bytes(), 40_000);
        assert_eq!(
            refused,
            Err(CipherError::LengthNotAligned { length: 13, block: 8 })
        );
    }

    #[test]
    fn impossible_padding_is_refused() {
        for padding in [0, 3, 11, 12, 255] {
            let mut wire = [0, 0, 0, 12, padding, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
            let refused = receive(&mut Opener::plaintext(), 0, &mut wire);
            assert_eq!(refused, Err(CipherError::BadPadding), "{padding}");
        }
    }

    #[test]
    fn a_packet_that_was_not_measured_is_not_opened() {
        for (_, _, mut opener) in pairs() {
            assert_eq!(opener.open(0, &mut [0; 64]), Err(CipherError::NotMeasured));
            assert_eq!(opener.open(0, &mut []), Err(CipherError::NotMeasured));
        }
    }

    #[test]
    fn a_sequence_number_or_a_key_that_differs_is_refused() {
        for ((name, mut sealer, _), (_, _, mut opener)) in pairs().into_iter().zip(pairs()) {
            let mut wire = framed(&sealer, b"in order");
            sealer.seal(7, &mut wire);
            // The GCM nonce counts by itself and knows no sequence numbers.
            if !name.contains("gcm") {
                assert!(receive(&mut opener, 8, &mut wire.clone()).is_err(), "{name}");
            }
            let (mut other, _) = pair_keyed(&name, 99);
            let mut foreign = framed(&other, b"in order");
            other.seal(7, &mut foreign);
            let (_, mut opener) = pair_keyed(&name, 1);
            assert!(receive(&mut opener, 7, &mut foreign).is_err(), "{name}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn what_is_sealed_is_opened(payloads in proptest::collection::vec(payload(), 1..4), first: u32) {
            for (name, mut sealer, mut opener) in pairs() {
                let mut sequence = first;
                for payload in &payloads {
                    let mut wire = framed(&sealer, payload);
                    sealer.seal(sequence, &mut wire);
                    let opened = receive(&mut opener, sequence, &mut wire);
                    prop_assert_eq!(opened.as_deref(), Ok(&payload[..]), "{}", name);
                    sequence = sequence.wrapping_add(1);
                }
            }
        }

        #[test]
        fn the_size_is_told_whenever_enough_bytes_are_there(payload in payload()) {
            for (name, mut sealer, mut opener) in pairs() {
                let mut wire = framed(&sealer, &payload);
                sealer.seal(3, &mut wire);
                let whole = wire.len();
                for have in 0..whole.min(40) {
                    match opener.packet_len(3, &mut wire[..have], MAX) {
                        Ok(None) => prop_assert!(have < AES_BLOCK, "{} with {} bytes", name, have),
                        told => prop_assert_eq!(told, Ok(Some(whole)), "{}", name),
                    }
                }
                prop_assert_eq!(receive(&mut opener, 3, &mut wire), Ok(payload.clone()), "{}", name);
            }
        }

        #[test]
        fn a_flipped_bit_anywhere_is_refused(payload in payload(), position: prop::sample::Index, bit in 0u8..8) {
            for (name, mut sealer, mut opener) in pairs() {
                let mut wire = framed(&sealer, &payload);
                sealer.seal(3, &mut wire);
                let byte = position.index(wire.len());
                wire[byte] ^= 1 << bit;
                // A longer length makes the opener wait for bytes that never come; a shorter one cuts the tag wrong.
                match opener.packet_len(3, &mut wire, MAX) {
                    Ok(Some(whole)) if whole <= wire.len() => {
                        prop_assert!(opener.open(3, &mut wire[..whole]).is_err(), "{} at byte {}", name, byte);
                    }
                    Ok(Some(_)) => prop_assert!(byte < LENGTH_LEN, "{} at byte {}", name, byte),
                    Ok(None) => prop_assert!(false, "{} has a whole packet and does not know its size", name),
                    Err(_) => {}
                }
            }
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), sequence: u32, length in 0u32..200) {
            let mut plausible = bytes.clone();
            if let Some(field) = plausible.first_chunk_mut() {
                *field = length.to_be_bytes();
            }
            for bytes in [bytes, plausible] {
                let openers = pairs().into_iter().map(|(_, _, opener)| opener).chain([Opener::plaintext()]);
                for mut opener in openers {
                    let mut bytes = bytes.clone();
                    if let Ok(Some(whole)) = opener.packet_len(sequence, &mut bytes, 150)
                        && let Some(packet) = bytes.get_mut(..whole)
                    {
                        let _ = opener.open(sequence, packet);
                    }
                }
            }
        }
    }

    fn payload() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            proptest::collection::vec(any::<u8>(), 1..100),
            proptest::collection::vec(any::<u8>(), 32_700..32_800),
        ]
    }

    /// Both ends of every combination of cipher and MAC, with its name.
    fn pairs() -> Vec<(String, Sealer, Opener)> {
        let mut pairs = Vec::new();
        for &cipher in Cipher::DEFAULT {
            let macs = if cipher.is_aead() {
                vec![None]
            } else {
                Mac::DEFAULT.iter().copied().map(Some).collect()
            };
            for mac in macs {
                let name = mac.map_or(cipher.to_string(), |mac: Mac| format!("{cipher} {mac}"));
                let (sealer, opener) = pair_keyed(&name, 1);
                pairs.push((name, sealer, opener));
            }
        }
        pairs
    }

    fn pair_keyed(name: &str, seed: u8) -> (Sealer, Opener) {
        let (cipher, mac) = name.split_once(' ').unwrap_or((name, ""));
        let (cipher, mac) = (Cipher::from_name(cipher).unwrap(), Mac::from_name(mac));
        let bytes = |n: usize, salt: u8| Zeroizing::new((0..n).map(|i| i as u8 ^ seed ^ salt).collect());
        let keys = PacketKeys {
            // All but at the end of its range, so that carries are tested.
            iv: Zeroizing::new(vec![0xff; cipher.iv_len()]),
            key: bytes(cipher.key_len(), 0x55),
            mac_key: bytes(mac.map_or(0, Mac::key_len), 0xaa),
        };
        (Sealer::new(cipher, mac, &keys), Opener::new(cipher, mac, &keys))
    }

    /// A packet as `seal` takes it.
    fn framed(sealer: &Sealer, payload: &[u8]) -> Vec<u8> {
        let padding = sealer.padding_len(payload.len());
        assert!((MIN_PADDING..MIN_PADDING + sealer.block_len()).contains(&padding));
        let length = 1 + payload.len() + padding;
        let mut packet = u32::try_from(length).unwrap().to_be_bytes().to_vec();
        packet.push(u8::try_from(padding).unwrap());
        packet.extend_from_slice(payload);
        packet.resize(LENGTH_LEN + length + sealer.tag_len(), 0x5a);
        packet
    }

    fn receive(opener: &mut Opener, sequence: u32, wire: &mut [u8]) -> Result<Vec<u8>, CipherError> {
        match opener.packet_len(sequence, wire, MAX)? {
            Some(whole) if whole == wire.len() => {
                opener.open(sequence, wire).map(|payload| wire[payload].to_vec())
            }
            // The length is another one than was sent.
            _ => Err(CipherError::Forged),
        }
    }

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap())
            .collect()
    }
}
