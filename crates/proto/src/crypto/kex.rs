//! The client's side of every key exchange method (RFC 4253 sections 7 and 8).
//!
//! [`KexMethod::generate`] makes the client's secret half, at any time and on any thread. [`Ephemeral::handle`] takes
//! the server's messages and consumes its state, until it is [`Agreed`]: a shared secret, the host key and its
//! signature over the [`ExchangeHash`], which the caller verifies before it uses any derived key.

mod dh;
#[cfg(feature = "sntrup761")]
mod sntrup761;

use std::fmt;

use aws_lc_rs::agreement::{self, EphemeralPrivateKey, UnparsedPublicKey};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::{digest, kem};
use bytes::Bytes;
use zeroize::Zeroizing;

use super::cipher::{Cipher, PacketKeys};
use super::mac::Mac;
use crate::wire::{Reader, WireError, Writer};

/// `SSH_MSG_KEXDH_INIT`, `SSH_MSG_KEX_ECDH_INIT` (RFC 4253 section 8, RFC 5656 section 7.1).
const MSG_KEX_INIT: u8 = 30;
/// `SSH_MSG_KEXDH_REPLY`, `SSH_MSG_KEX_ECDH_REPLY`.
const MSG_KEX_REPLY: u8 = 31;
/// `SSH_MSG_KEX_DH_GEX_GROUP` (RFC 4419 section 5).
const MSG_GEX_GROUP: u8 = 31;
/// `SSH_MSG_KEX_DH_GEX_INIT`.
const MSG_GEX_INIT: u8 = 32;
/// `SSH_MSG_KEX_DH_GEX_REPLY`.
const MSG_GEX_REPLY: u8 = 33;
/// `SSH_MSG_KEX_DH_GEX_REQUEST`.
const MSG_GEX_REQUEST: u8 = 34;

const X25519_LEN: usize = 32;
const MLKEM768_CIPHERTEXT_LEN: usize = 1088;

/// A key exchange method. Those with sntrup761 need the feature of that name, on by default. Without it, this crate
/// builds without CMake and libclang.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KexMethod {
    /// `mlkem768x25519-sha256` (draft-ietf-sshm-mlkem-hybrid-kex).
    MlKem768X25519Sha256,
    /// `sntrup761x25519-sha512` (draft-ietf-sshm-ntruprime-ssh).
    #[cfg(feature = "sntrup761")]
    Sntrup761X25519Sha512,
    /// `sntrup761x25519-sha512@openssh.com`: the same under its first name, the only one in OpenSSH before 9.9.
    #[cfg(feature = "sntrup761")]
    Sntrup761X25519Sha512OpenSsh,
    /// `curve25519-sha256` (RFC 8731).
    Curve25519Sha256,
    /// `curve25519-sha256@libssh.org`: the same under its first name.
    Curve25519Sha256LibSsh,
    /// `ecdh-sha2-nistp256` (RFC 5656).
    EcdhNistP256,
    /// `ecdh-sha2-nistp384`.
    EcdhNistP384,
    /// `ecdh-sha2-nistp521`.
    EcdhNistP521,
    /// `diffie-hellman-group-exchange-sha256` (RFC 4419): the server chooses the group.
    DhGroupExchangeSha256,
    /// `diffie-hellman-group16-sha512` (RFC 8268).
    DhGroup16Sha512,
    /// `diffie-hellman-group18-sha512` (RFC 8268).
    DhGroup18Sha512,
    /// `diffie-hellman-group14-sha256` (RFC 8268).
    DhGroup14Sha256,
}

impl KexMethod {
    /// The methods that trunkline offers, best first: post-quantum hybrids, elliptic curves, finite fields.
    pub const DEFAULT: &[Self] = &[
        Self::MlKem768X25519Sha256,
        #[cfg(feature = "sntrup761")]
        Self::Sntrup761X25519Sha512,
        #[cfg(feature = "sntrup761")]
        Self::Sntrup761X25519Sha512OpenSsh,
        Self::Curve25519Sha256,
        Self::Curve25519Sha256LibSsh,
        Self::EcdhNistP256,
        Self::EcdhNistP384,
        Self::EcdhNistP521,
        Self::DhGroupExchangeSha256,
        Self::DhGroup16Sha512,
        Self::DhGroup18Sha512,
        Self::DhGroup14Sha256,
    ];

    /// Returns the name in a KEXINIT.
    pub fn name(self) -> &'static str {
        match self {
            Self::MlKem768X25519Sha256 => "mlkem768x25519-sha256",
            #[cfg(feature = "sntrup761")]
            Self::Sntrup761X25519Sha512 => "sntrup761x25519-sha512",
            #[cfg(feature = "sntrup761")]
            Self::Sntrup761X25519Sha512OpenSsh => "sntrup761x25519-sha512@openssh.com",
            Self::Curve25519Sha256 => "curve25519-sha256",
            Self::Curve25519Sha256LibSsh => "curve25519-sha256@libssh.org",
            Self::EcdhNistP256 => "ecdh-sha2-nistp256",
            Self::EcdhNistP384 => "ecdh-sha2-nistp384",
            Self::EcdhNistP521 => "ecdh-sha2-nistp521",
            Self::DhGroupExchangeSha256 => "diffie-hellman-group-exchange-sha256",
            Self::DhGroup16Sha512 => "diffie-hellman-group16-sha512",
            Self::DhGroup18Sha512 => "diffie-hellman-group18-sha512",
            Self::DhGroup14Sha256 => "diffie-hellman-group14-sha256",
        }
    }

    /// Returns the method with that name, if trunkline offers it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::DEFAULT.iter().copied().find(|method| method.name() == name)
    }

    /// Returns the hash for the exchange hash and all keys.
    pub fn hash(self) -> KexHash {
        match self {
            Self::MlKem768X25519Sha256
            | Self::Curve25519Sha256
            | Self::Curve25519Sha256LibSsh
            | Self::EcdhNistP256
            | Self::DhGroupExchangeSha256
            | Self::DhGroup14Sha256 => KexHash::Sha256,
            Self::EcdhNistP384 => KexHash::Sha384,
            Self::EcdhNistP521 | Self::DhGroup16Sha512 | Self::DhGroup18Sha512 => KexHash::Sha512,
            #[cfg(feature = "sntrup761")]
            Self::Sntrup761X25519Sha512 | Self::Sntrup761X25519Sha512OpenSsh => KexHash::Sha512,
        }
    }

    /// Returns whether recorded traffic stays secret from a quantum computer.
    pub fn is_post_quantum(self) -> bool {
        match self {
            Self::MlKem768X25519Sha256 => true,
            #[cfg(feature = "sntrup761")]
            Self::Sntrup761X25519Sha512 | Self::Sntrup761X25519Sha512OpenSsh => true,
            _ => false,
        }
    }

    /// Makes the client's secret half of one exchange. It needs nothing from the server, so that it can be done while
    /// TCP connects, on another thread, or ahead of time. Measured: at most 0.7 ms, but 2, 5 and 20 ms for groups 14,
    /// 16 and 18, which take as long again to handle the reply.
    ///
    /// # Errors
    /// [`KexError::Local`] if the system gives no randomness.
    pub fn generate(self) -> Result<Ephemeral, KexError> {
        let (secret, public) = match self {
            Self::MlKem768X25519Sha256 => {
                let key = kem::DecapsulationKey::generate(&kem::ML_KEM_768).map_err(|_| KexError::Local)?;
                let public = key
                    .encapsulation_key()
                    .and_then(|key| key.key_bytes())
                    .map_err(|_| KexError::Local)?;
                hybrid(Encapsulation::MlKem768(key), public.as_ref())?
            }
            #[cfg(feature = "sntrup761")]
            Self::Sntrup761X25519Sha512 | Self::Sntrup761X25519Sha512OpenSsh => {
                let (key, public) = sntrup761::DecapsulationKey::generate()?;
                hybrid(Encapsulation::Sntrup761(key), &public)?
            }
            Self::Curve25519Sha256 | Self::Curve25519Sha256LibSsh => {
                let (key, public) = point(&agreement::X25519)?;
                (Secret::X25519(key), public)
            }
            Self::EcdhNistP256 => ecdh(&agreement::ECDH_P256)?,
            Self::EcdhNistP384 => ecdh(&agreement::ECDH_P384)?,
            Self::EcdhNistP521 => ecdh(&agreement::ECDH_P521)?,
            Self::DhGroup14Sha256 => finite_field(dh::Group::group14())?,
            Self::DhGroup16Sha512 => finite_field(dh::Group::group16())?,
            Self::DhGroup18Sha512 => finite_field(dh::Group::group18())?,
            Self::DhGroupExchangeSha256 => (Secret::AwaitingGroup, Bytes::new()),
        };
        Ok(Ephemeral {
            method: self,
            secret,
            public,
            group_bits: dh::MAX_BITS,
        })
    }
}

impl fmt::Display for KexMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The hash of a key exchange method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KexHash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl KexHash {
    fn algorithm(self) -> &'static digest::Algorithm {
        match self {
            Self::Sha256 => &digest::SHA256,
            Self::Sha384 => &digest::SHA384,
            Self::Sha512 => &digest::SHA512,
        }
    }
}

/// The reason why a key exchange failed. Each ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KexError {
    /// The server sent a message that does not belong at this point of the method.
    #[error("the server sent message {number} in the middle of the key exchange")]
    UnexpectedMessage {
        /// Its message number; 0 for an empty message.
        number: u8,
    },
    /// The server's message is malformed.
    #[error("the server's key exchange message is malformed: {0}")]
    Malformed(#[from] WireError),
    /// The server's public value does not have the method's size.
    #[error("the server's public key has {got} bytes instead of {expected}")]
    PublicKeyLength {
        /// The length that the method requires.
        expected: usize,
        /// The received length.
        got: usize,
    },
    /// The server's public value is not on the curve, or would make the secret guessable.
    #[error("the server's public key is not valid for the key exchange method")]
    BadPublicKey,
    /// The server proposed a group outside of the requested sizes.
    #[error("the server proposed a Diffie-Hellman prime of {bits} bits; between 2048 and 8192 are allowed")]
    GroupSize {
        /// The size of its prime.
        bits: u32,
    },
    /// The server proposed an even modulus or a generator out of range.
    #[error("the server proposed an unusable Diffie-Hellman group")]
    BadGroup,
    /// This side failed: no randomness, or no memory.
    #[error("the system gave no randomness for the key exchange")]
    Local,
}

/// The client's secret half of one key exchange, wiped when dropped.
pub struct Ephemeral {
    method: KexMethod,
    secret: Secret,
    /// Our public value: the KEM's key and the X25519 point, a point, or a big-endian number.
    public: Bytes,
    /// The size that a group exchange requests.
    group_bits: u32,
}

enum Secret {
    Hybrid(Encapsulation, EphemeralPrivateKey),
    X25519(EphemeralPrivateKey),
    Ecdh(EphemeralPrivateKey),
    FiniteField(dh::Exponent),
    /// Group exchange, before the server has named the group.
    AwaitingGroup,
    /// Group exchange, in the server's group.
    Proposed(dh::Exponent),
}

enum Encapsulation {
    MlKem768(kem::DecapsulationKey),
    #[cfg(feature = "sntrup761")]
    Sntrup761(sntrup761::DecapsulationKey),
}

/// The result of a server's message.
#[derive(Debug)]
#[must_use]
pub enum Step {
    /// Send this payload and pass the server's next key exchange message to `next`.
    Send {
        /// The message to send.
        payload: Bytes,
        /// The state that awaits the answer.
        next: Ephemeral,
    },
    /// Both sides have the secret.
    Done(Box<Agreed>),
}

impl Ephemeral {
    /// Returns the method.
    pub fn method(&self) -> KexMethod {
        self.method
    }

    /// Makes a group exchange request a group for keys of `strength` bytes. By default it requests the strongest.
    #[must_use]
    pub fn for_strength(self, strength: usize) -> Self {
        Self {
            group_bits: dh::estimate(strength),
            ..self
        }
    }

    /// Returns the payload that starts the exchange: `SSH_MSG_KEXDH_INIT`, `SSH_MSG_KEX_ECDH_INIT` or
    /// `SSH_MSG_KEX_DH_GEX_REQUEST`.
    pub fn init_message(&self) -> Bytes {
        match self.secret {
            Secret::Hybrid(..) | Secret::X25519(_) | Secret::Ecdh(_) => {
                Writer::message(MSG_KEX_INIT).string(&self.public).finish()
            }
            Secret::FiniteField(_) => Writer::message(MSG_KEX_INIT).mpint(&self.public).finish(),
            Secret::Proposed(_) => Writer::message(MSG_GEX_INIT).mpint(&self.public).finish(),
            Secret::AwaitingGroup => {
                group_request(Writer::message(MSG_GEX_REQUEST), self.group_bits).finish()
            }
        }
    }

    /// Handles one key exchange message (numbers 30 to 49) of the server, given as payload with message number.
    ///
    /// # Errors
    /// The message is unexpected or malformed, or the server's public value or group must not be used.
    pub fn handle(self, payload: &[u8]) -> Result<Step, KexError> {
        let mut reader = Reader::new(payload);
        let number = reader.u8().unwrap_or(0);
        let expected = match self.secret {
            Secret::AwaitingGroup => MSG_GEX_GROUP,
            Secret::Proposed(_) => MSG_GEX_REPLY,
            _ => MSG_KEX_REPLY,
        };
        if number != expected {
            return Err(KexError::UnexpectedMessage { number });
        }
        if let Secret::AwaitingGroup = self.secret {
            return self.handle_group(reader);
        }
        self.handle_reply(reader)
    }

    /// Handles `SSH_MSG_KEX_DH_GEX_GROUP`: RFC 4419 section 3.
    fn handle_group(self, mut reader: Reader<'_>) -> Result<Step, KexError> {
        let prime = reader.mpint()?;
        let generator = reader.mpint()?;
        reader.finish()?;
        let exponent = dh::Exponent::generate(dh::Group::from_proposal(prime, generator)?)?;
        let public = Bytes::from(exponent.public());
        let next = Self {
            method: self.method,
            secret: Secret::Proposed(exponent),
            public,
            group_bits: self.group_bits,
        };
        Ok(Step::Send {
            payload: next.init_message(),
            next,
        })
    }

    /// Handles `SSH_MSG_KEXDH_REPLY`, `SSH_MSG_KEX_ECDH_REPLY` and `SSH_MSG_KEX_DH_GEX_REPLY`, which share one format:
    /// the host key, the server's public value and the signature.
    fn handle_reply(self, mut reader: Reader<'_>) -> Result<Step, KexError> {
        let host_key = Bytes::copy_from_slice(reader.string()?);
        let theirs = match self.secret {
            Secret::FiniteField(_) | Secret::Proposed(_) => reader.mpint()?,
            _ => reader.string()?,
        };
        let signature = Bytes::copy_from_slice(reader.string()?);
        reader.finish()?;

        let hash = self.method.hash();
        let strings = Writer::new().string(&self.public).string(theirs);
        let numbers = |before: Writer| before.mpint(&self.public).mpint(theirs);
        let (shared_secret, exchanged) = match self.secret {
            Secret::Hybrid(encapsulation, key) => (agree_hybrid(&encapsulation, key, theirs, hash)?, strings),
            Secret::X25519(key) => {
                check_len(theirs, X25519_LEN)?;
                (agree_point(key, theirs, encoded_mpint)?, strings)
            }
            Secret::Ecdh(key) => {
                check_len(theirs, self.public.len())?;
                // RFC 5656 also allows compressed points, but OpenSSH does not (PROTOCOL section 1.4).
                if theirs.first() != Some(&4) {
                    return Err(KexError::BadPublicKey);
                }
                (agree_point(key, theirs, encoded_mpint)?, strings)
            }
            Secret::FiniteField(exponent) => {
                (encoded_mpint(&exponent.agree(theirs)?), numbers(Writer::new()))
            }
            Secret::Proposed(exponent) => {
                let group = exponent.group();
                let proposal = group_request(Writer::new(), self.group_bits)
                    .mpint(&group.prime())
                    .mpint(&group.generator());
                (encoded_mpint(&exponent.agree(theirs)?), numbers(proposal))
            }
            Secret::AwaitingGroup => {
                return Err(KexError::UnexpectedMessage {
                    number: MSG_GEX_GROUP,
                });
            }
        };
        let exchanged = exchanged.finish();
        Ok(Step::Done(Box::new(Agreed {
            host_key,
            signature,
            hash,
            exchanged,
            shared_secret,
        })))
    }
}

impl fmt::Debug for Ephemeral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ephemeral")
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

/// The outcome of a key exchange. It must not be trusted until `signature` has been verified with `host_key` over
/// [`Self::exchange_hash`], and the host key is known to be the host's.
pub struct Agreed {
    /// `K_S`: the server's public key or certificate.
    pub host_key: Bytes,
    /// The server's signature over the exchange hash.
    pub signature: Bytes,
    hash: KexHash,
    /// The part of the exchange hash between `K_S` and `K`: the public values, and a group exchange's parameters.
    exchanged: Bytes,
    /// `K` as it is hashed: an mpint, or a string for the hybrid methods.
    shared_secret: Zeroizing<Vec<u8>>,
}

impl Agreed {
    /// Returns `H` (RFC 4253 section 8), over both identification lines (without line ends), both KEXINIT payloads, the
    /// host key, the public values and the secret. The first exchange's `H` is the session identifier.
    pub fn exchange_hash(
        &self,
        client_id: &[u8],
        server_id: &[u8],
        client_kexinit: &[u8],
        server_kexinit: &[u8],
    ) -> ExchangeHash {
        let mut context = digest::Context::new(self.hash.algorithm());
        for part in [
            client_id,
            server_id,
            client_kexinit,
            server_kexinit,
            &self.host_key,
        ] {
            let len = u32::try_from(part.len())
                .expect("each part came in or went out in a packet, far below 4 GiB");
            context.update(&len.to_be_bytes());
            context.update(part);
        }
        context.update(&self.exchanged);
        context.update(&self.shared_secret);
        ExchangeHash(context.finish())
    }

    /// Derives `len` bytes of the key for `letter` ('A' to 'F'): RFC 4253 section 7.2.
    pub fn derive(&self, h: &ExchangeHash, session_id: &[u8], letter: u8, len: usize) -> Zeroizing<Vec<u8>> {
        let mut start = digest::Context::new(self.hash.algorithm());
        start.update(&self.shared_secret);
        start.update(h.as_bytes());

        // Room for the whole last block, so that the vector never moves and leaves a copy behind.
        let block = self.hash.algorithm().output_len();
        let mut key = Zeroizing::new(Vec::with_capacity(len.next_multiple_of(block)));
        while key.len() < len {
            let mut context = start.clone();
            if key.is_empty() {
                context.update(&[letter]);
                context.update(session_id);
            } else {
                context.update(&key);
            }
            key.extend_from_slice(context.finish().as_ref());
        }
        key.truncate(len);
        key
    }

    /// Derives the keys of one direction for the negotiated algorithms. An AEAD cipher has no MAC, whatever `mac` is.
    pub fn packet_keys(
        &self,
        h: &ExchangeHash,
        session_id: &[u8],
        direction: Direction,
        cipher: Cipher,
        mac: Option<Mac>,
    ) -> PacketKeys {
        let [iv, key, mac_key] = match direction {
            Direction::ClientToServer => *b"ACE",
            Direction::ServerToClient => *b"BDF",
        };
        let mac_len = if cipher.is_aead() {
            0
        } else {
            mac.map_or(0, Mac::key_len)
        };
        PacketKeys {
            iv: self.derive(h, session_id, iv, cipher.iv_len()),
            key: self.derive(h, session_id, key, cipher.key_len()),
            mac_key: self.derive(h, session_id, mac_key, mac_len),
        }
    }
}

impl fmt::Debug for Agreed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agreed")
            .field("hash", &self.hash)
            .finish_non_exhaustive()
    }
}

/// The direction of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Packets that we send.
    ClientToServer,
    /// Packets that we receive.
    ServerToClient,
}

/// `H`: signed by the host key, and the session identifier if it is a connection's first.
#[derive(Debug, Clone, Copy)]
pub struct ExchangeHash(digest::Digest);

impl ExchangeHash {
    /// Returns 32, 48 or 64 bytes, depending on the method's hash.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl AsRef<[u8]> for ExchangeHash {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

/// Combines a KEM's key with a new X25519 key.
fn hybrid(encapsulation: Encapsulation, kem_public: &[u8]) -> Result<(Secret, Bytes), KexError> {
    let (key, point) = point(&agreement::X25519)?;
    Ok((
        Secret::Hybrid(encapsulation, key),
        [kem_public, &point].concat().into(),
    ))
}

fn ecdh(curve: &'static agreement::Algorithm) -> Result<(Secret, Bytes), KexError> {
    let (key, public) = point(curve)?;
    Ok((Secret::Ecdh(key), public))
}

fn point(curve: &'static agreement::Algorithm) -> Result<(EphemeralPrivateKey, Bytes), KexError> {
    let key = EphemeralPrivateKey::generate(curve, &SystemRandom::new()).map_err(|_| KexError::Local)?;
    let public = key.compute_public_key().map_err(|_| KexError::Local)?;
    Ok((key, Bytes::copy_from_slice(public.as_ref())))
}

fn finite_field(group: dh::Group) -> Result<(Secret, Bytes), KexError> {
    let exponent = dh::Exponent::generate(group)?;
    let public = Bytes::from(exponent.public());
    Ok((Secret::FiniteField(exponent), public))
}

/// Appends the group sizes that we request (RFC 4419 section 3), for the request and the exchange hash.
fn group_request(writer: Writer, bits: u32) -> Writer {
    writer.u32(dh::MIN_BITS).u32(bits).u32(dh::MAX_BITS)
}

/// Computes `K = HASH(K_PQ || K_CL)`, encoded as a string, by both hybrid drafts.
fn agree_hybrid(
    encapsulation: &Encapsulation,
    key: EphemeralPrivateKey,
    theirs: &[u8],
    hash: KexHash,
) -> Result<Zeroizing<Vec<u8>>, KexError> {
    let ciphertext_len = match encapsulation {
        Encapsulation::MlKem768(_) => MLKEM768_CIPHERTEXT_LEN,
        #[cfg(feature = "sntrup761")]
        Encapsulation::Sntrup761(_) => sntrup761::CIPHERTEXT_LEN,
    };
    check_len(theirs, ciphertext_len + X25519_LEN)?;
    let (ciphertext, point) = theirs.split_at(ciphertext_len);
    let mut context = digest::Context::new(hash.algorithm());
    match encapsulation {
        Encapsulation::MlKem768(key) => {
            let secret = key
                .decapsulate(ciphertext.into())
                .map_err(|_| KexError::BadPublicKey)?;
            context.update(secret.as_ref());
        }
        #[cfg(feature = "sntrup761")]
        Encapsulation::Sntrup761(key) => {
            context.update(&key.decapsulate(ciphertext)?);
        }
    }
    agree_point(key, point, |secret| {
        context.update(secret);
        let hashed = context.finish();
        encoded_string(hashed.as_ref())
    })
}

/// Agrees on a curve. aws-lc rejects points that are not on it, and X25519's all-zero result (RFC 8731 section 3).
fn agree_point(
    key: EphemeralPrivateKey,
    theirs: &[u8],
    encode: impl FnOnce(&[u8]) -> Zeroizing<Vec<u8>>,
) -> Result<Zeroizing<Vec<u8>>, KexError> {
    let theirs = UnparsedPublicKey::new(key.algorithm(), theirs);
    agreement::agree_ephemeral(key, theirs, KexError::BadPublicKey, |secret| Ok(encode(secret)))
}

fn check_len(theirs: &[u8], expected: usize) -> Result<(), KexError> {
    if theirs.len() == expected {
        Ok(())
    } else {
        Err(KexError::PublicKeyLength {
            expected,
            got: theirs.len(),
        })
    }
}

/// Encodes a secret number as `mpint`, in memory that is wiped.
fn encoded_mpint(number: &[u8]) -> Zeroizing<Vec<u8>> {
    let start = number.iter().position(|&b| b != 0).unwrap_or(number.len());
    let number = &number[start..];
    let sign = usize::from(number.first().is_some_and(|b| b & 0x80 != 0));
    let mut encoded = Zeroizing::new(Vec::with_capacity(4 + sign + number.len()));
    let len = u32::try_from(sign + number.len()).expect("shared secrets have at most 8192 bits");
    encoded.extend_from_slice(&len.to_be_bytes());
    encoded.extend_from_slice(&[0][..sign]);
    encoded.extend_from_slice(number);
    encoded
}

/// Encodes secret bytes as `string`, in memory that is wiped.
fn encoded_string(bytes: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut encoded = Zeroizing::new(Vec::with_capacity(4 + bytes.len()));
    let len = u32::try_from(bytes.len()).expect("a hash has at most 64 bytes");
    encoded.extend_from_slice(&len.to_be_bytes());
    encoded.extend_from_slice(bytes);
    encoded
}

#[cfg(test)]
mod tests;
