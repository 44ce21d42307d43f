//! The storage formats of private keys.
//!
//! | PEM label | format |
//! |---|---|
//! | `OPENSSH PRIVATE KEY` | PROTOCOL.key, plain or encrypted (bcrypt) |
//! | `RSA PRIVATE KEY`, `EC PRIVATE KEY` | PKCS#1 (RFC 8017) and SEC 1 (RFC 5915), plain or with OpenSSL's old `DEK-Info` encryption |
//! | `PRIVATE KEY`, `ENCRYPTED PRIVATE KEY` | PKCS#8 (RFC 5958), plain or with PBES2 |
//!
//! This module reads the frame around the base64 itself, because the available crates either copy the secret without
//! wiping it or refuse `DEK-Info` headers and all line lengths but one (Go's programs write 64 columns, ssh-keygen 70).
//! It also reads PROTOCOL.key's private section itself: ssh-key 0.6 refuses comments that are not UTF-8 and ECDSA keys
//! whose number starts with a zero byte, which every fourth on P-521 does. Crates do all key derivation and decryption.

use super::curve::Curve;
use super::{KEY_TYPES, PublicKey};
use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, DecryptionContext, PaddedBlockDecryptingKey, UnboundCipherKey,
};
use aws_lc_rs::encoding::{AsBigEndian as _, EcPrivateKeyBin};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::signature::{EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest as _, Md5};
use pkcs8::EncryptedPrivateKeyInfoRef;
use ssh_key::{Cipher, Kdf};
use trunkline_proto::wire::Reader;
use zeroize::Zeroizing;

/// The numbers of a private key, big-endian.
pub(super) enum Secret {
    Ed25519 {
        seed: Zeroizing<[u8; 32]>,
        public: [u8; 32],
    },
    Ecdsa {
        curve: Curve,
        scalar: Zeroizing<Vec<u8>>,
        point: Vec<u8>,
    },
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
        d: Wiped,
        iqmp: Wiped,
        p: Wiped,
        q: Wiped,
    },
}

type Wiped = Zeroizing<Vec<u8>>;

/// The reason why a key could not be read; [`KeyError`](super::KeyError) without the file's name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Malformed(&'static str),
    PassphraseNeeded,
    WrongPassphrase,
    Cipher(String),
    Cost(String),
    SecurityKey,
    Unsupported(String),
    RsaSize(usize),
}

/// A private key file without its frame.
pub(super) struct Sealed {
    format: Format,
    body: Wiped,
}

enum Format {
    OpenSsh,
    Pkcs1,
    Sec1,
    /// PKCS#1 or SEC 1, encrypted as OpenSSL did before 1.0.
    Legacy {
        dek_info: String,
        is_rsa: bool,
    },
    Pkcs8,
    EncryptedPkcs8,
}

impl Sealed {
    /// Finds the private key in a file's content.
    pub(super) fn parse(content: &[u8]) -> Result<Self, Fault> {
        if content.starts_with(b"PuTTY-User-Key-File") {
            return Err(Fault::Malformed(
                "it is a PuTTY key; convert it with: puttygen KEY -O private-openssh -o NEWKEY",
            ));
        }
        // A file of `openssl ecparam -genkey` begins with an EC PARAMETERS block.
        let mut rest = content;
        while let Some(block) = PemBlock::next(&mut rest)? {
            let format = match (block.label, block.dek_info) {
                (b"OPENSSH PRIVATE KEY", _) => Format::OpenSsh,
                (b"RSA PRIVATE KEY", Some(dek_info)) => Format::Legacy {
                    dek_info,
                    is_rsa: true,
                },
                (b"EC PRIVATE KEY", Some(dek_info)) => Format::Legacy {
                    dek_info,
                    is_rsa: false,
                },
                (b"RSA PRIVATE KEY", None) => Format::Pkcs1,
                (b"EC PRIVATE KEY", None) => Format::Sec1,
                (b"PRIVATE KEY", _) => Format::Pkcs8,
                (b"ENCRYPTED PRIVATE KEY", _) => Format::EncryptedPkcs8,
                (b"DSA PRIVATE KEY", _) => return Err(Fault::Unsupported("ssh-dss".to_owned())),
                _ => continue,
            };
            return Ok(Self {
                format,
                body: block.body,
            });
        }
        Err(Fault::Malformed("it has no private key in a known format"))
    }

    /// Returns whether the key needs a passphrase.
    pub(super) fn is_encrypted(&self) -> bool {
        match self.format {
            Format::OpenSsh => Envelope::parse(&self.body).is_ok_and(|envelope| envelope.cipher != b"none"),
            Format::Legacy { .. } | Format::EncryptedPkcs8 => true,
            Format::Pkcs1 | Format::Sec1 | Format::Pkcs8 => false,
        }
    }

    /// Returns the name of the cipher or key derivation, if it is unsupported and shows without a passphrase.
    pub(super) fn foreign_cipher(&self) -> Option<String> {
        match self.format {
            Format::OpenSsh => Envelope::parse(&self.body).ok()?.cipher().err(),
            _ => None,
        }
    }

    /// Returns the public half if the format keeps it in the clear, as OpenSSH's does.
    pub(super) fn clear_public_key(&self) -> Option<PublicKey> {
        let Format::OpenSsh = self.format else { return None };
        let envelope = Envelope::parse(&self.body).ok()?;
        let algorithm = Reader::new(envelope.public).name().ok()?.to_owned();
        let blob = envelope.public.to_vec().into();
        Some(PublicKey {
            algorithm,
            blob,
            comment: String::new(),
        })
    }

    /// Decrypts the key and its comment.
    pub(super) fn open(&self, passphrase: Option<&[u8]>) -> Result<(Secret, String), Fault> {
        let der = &self.body[..];
        let secret = match &self.format {
            Format::OpenSsh => return open_openssh(der, passphrase),
            Format::Pkcs1 => open_pkcs1(der)?,
            Format::Sec1 => open_ec(der)?,
            Format::Legacy { dek_info, is_rsa } => {
                let der = open_legacy(der, dek_info, passphrase.ok_or(Fault::PassphraseNeeded)?)?;
                // A wrong passphrase yields correct padding once in 256 times.
                let opened = if *is_rsa { open_pkcs1(&der) } else { open_ec(&der) };
                opened.map_err(|_| Fault::WrongPassphrase)?
            }
            Format::Pkcs8 => open_pkcs8(der)?,
            Format::EncryptedPkcs8 => {
                let opened = open_pbes(der, passphrase.ok_or(Fault::PassphraseNeeded)?)?;
                open_pkcs8(opened.as_bytes())?
            }
        };
        Ok((secret, String::new()))
    }
}

/// One block of PEM (RFC 7468, with RFC 1421's headers).
struct PemBlock<'a> {
    label: &'a [u8],
    /// The value of a `DEK-Info` header.
    dek_info: Option<String>,
    body: Wiped,
}

impl<'a> PemBlock<'a> {
    /// Takes the next block from the front of `content`; returns `None` at the end.
    fn next(content: &mut &'a [u8]) -> Result<Option<Self>, Fault> {
        const BROKEN: Fault = Fault::Malformed("its PEM frame is damaged");
        let mut lines = content.split_inclusive(|&b| b == b'\n');
        let marked = |line: &'a [u8], word: &[u8]| {
            let line = line.trim_ascii().strip_prefix(b"-----")?.strip_suffix(b"-----")?;
            line.strip_prefix(word)
        };
        let mut read = 0;
        let Some(label) = lines.find_map(|line| {
            read += line.len();
            marked(line, b"BEGIN ")
        }) else {
            return Ok(None);
        };
        let mut dek_info = None;
        let mut encoded = Zeroizing::new(Vec::with_capacity(content.len()));
        for line in lines {
            read += line.len();
            if marked(line, b"END ") == Some(label) {
                let mut body = Zeroizing::new(vec![0; base64::decoded_len_estimate(encoded.len())]);
                let len = STANDARD.decode_slice(&encoded, &mut body).map_err(|_| BROKEN)?;
                body.truncate(len);
                *content = &content[read..];
                return Ok(Some(Self {
                    label,
                    dek_info,
                    body,
                }));
            }
            let line = line.trim_ascii();
            match line.iter().position(|b| *b == b':') {
                Some(colon) if &line[..colon] == b"DEK-Info" => {
                    dek_info = Some(String::from_utf8_lossy(line[colon + 1..].trim_ascii()).into_owned());
                }
                Some(_) => {}
                None => encoded.extend_from_slice(line),
            }
        }
        Err(BROKEN)
    }
}

/// The clear part of an OpenSSH key (PROTOCOL.key section 1).
struct Envelope<'a> {
    cipher: &'a [u8],
    kdf: &'a [u8],
    kdf_options: &'a [u8],
    public: &'a [u8],
    private: &'a [u8],
    /// The authentication tag of an AEAD cipher, which follows the private section.
    tag: &'a [u8],
}

impl<'a> Envelope<'a> {
    fn parse(body: &'a [u8]) -> Result<Self, Fault> {
        let damaged = |_| Fault::Malformed("its OpenSSH envelope is damaged");
        let mut reader = Reader::new(body);
        if reader.take(15).map_err(damaged)? != b"openssh-key-v1\0" {
            return Err(Fault::Malformed("it is of a newer OpenSSH key format"));
        }
        let cipher = reader.string().map_err(damaged)?;
        let kdf = reader.string().map_err(damaged)?;
        let kdf_options = reader.string().map_err(damaged)?;
        // ssh-keygen never writes more keys, and ssh reads no more.
        if reader.u32().map_err(damaged)? != 1 {
            return Err(Fault::Malformed("it holds more than one key"));
        }
        let public = reader.string().map_err(damaged)?;
        let private = reader.string().map_err(damaged)?;
        Ok(Self {
            cipher,
            kdf,
            kdf_options,
            public,
            private,
            tag: reader.rest(),
        })
    }

    /// Returns the cipher of the private section, or the name of an unsupported one.
    fn cipher(&self) -> Result<Cipher, String> {
        let name = String::from_utf8_lossy(self.cipher);
        let cipher: Cipher = name.parse().map_err(|_| name.clone().into_owned())?;
        // The name parses although ssh-key is built without DES.
        if cipher == Cipher::TDesCbc {
            return Err(name.into_owned());
        }
        if cipher != Cipher::None && self.kdf != b"bcrypt" {
            return Err(String::from_utf8_lossy(self.kdf).into_owned());
        }
        Ok(cipher)
    }

    /// Decrypts the private section.
    fn decrypt(&self, passphrase: Option<&[u8]>) -> Result<Wiped, Fault> {
        let mut section = Zeroizing::new(self.private.to_vec());
        if self.cipher == b"none" {
            return Ok(section);
        }
        let cipher = self.cipher().map_err(Fault::Cipher)?;
        let passphrase = passphrase.ok_or(Fault::PassphraseNeeded)?;
        // The crate has its own error for an empty passphrase; to the user it is a wrong one.
        if passphrase.is_empty() {
            return Err(Fault::WrongPassphrase);
        }
        let mut options = Reader::new(self.kdf_options);
        let damaged = |_| Fault::Malformed("its key derivation options are damaged");
        let salt = options.string().map_err(damaged)?.to_vec();
        let rounds = options.u32().map_err(damaged)?;
        let tag = match cipher.has_tag() {
            true => Some(
                self.tag
                    .try_into()
                    .map_err(|_| Fault::Malformed("its authentication tag is damaged"))?,
            ),
            false => None,
        };
        if !section.len().is_multiple_of(cipher.block_size()) {
            return Err(Fault::Malformed("its private section is cut off"));
        }
        if rounds > MOST_ROUNDS {
            return Err(Fault::Cost(format!("{rounds} rounds of bcrypt")));
        }
        let (key, iv) = Kdf::Bcrypt { salt, rounds }
            .derive_key_and_iv(cipher, passphrase)
            .map_err(|_| Fault::Malformed("its key derivation options are damaged"))?;
        cipher
            .decrypt(&key, &iv, &mut section, tag)
            .map_err(|_| Fault::WrongPassphrase)?;
        Ok(section)
    }
}

fn open_openssh(body: &[u8], passphrase: Option<&[u8]>) -> Result<(Secret, String), Fault> {
    let envelope = Envelope::parse(body)?;
    let algorithm = Reader::new(envelope.public)
        .name()
        .map_err(|_| Fault::Malformed("its public key is damaged"))?;
    // A security key's file is useless without the token, so it needs no passphrase to be recognized.
    if algorithm.starts_with("sk-") {
        return Err(Fault::SecurityKey);
    }
    if !KEY_TYPES.iter().any(|(known, _)| *known == algorithm) || algorithm == "ssh-dss" {
        return Err(Fault::Unsupported(algorithm.to_owned()));
    }
    let section = envelope.decrypt(passphrase)?;
    let mut reader = Reader::new(&section);
    // PROTOCOL.key section 3: two equal random numbers prove the passphrase.
    let (first, second) = (reader.u32(), reader.u32());
    if first.is_err() || first != second {
        let encrypted = envelope.cipher != b"none";
        return Err(if encrypted {
            Fault::WrongPassphrase
        } else {
            Fault::Malformed("its check fails")
        });
    }
    let secret = read_openssh_secret(&mut reader).map_err(|fault| match fault {
        Some(fault) => fault,
        None => Fault::Malformed("its private section is damaged"),
    })?;
    let comment = reader
        .string()
        .map_err(|_| Fault::Malformed("its comment is damaged"))?;
    Ok((secret, String::from_utf8_lossy(comment).into_owned()))
}

/// Reads the numbers of the private section, type name first; returns `Err(None)` for damage.
fn read_openssh_secret(reader: &mut Reader<'_>) -> Result<Secret, Option<Fault>> {
    let algorithm = reader.name().map_err(|_| None)?;
    let mut number = || reader.mpint().map(<[u8]>::to_vec).map_err(|_| None);
    match algorithm {
        "ssh-rsa" => Ok(Secret::Rsa {
            n: number()?,
            e: number()?,
            d: number()?.into(),
            iqmp: number()?.into(),
            p: number()?.into(),
            q: number()?.into(),
        }),
        "ssh-ed25519" => {
            let public = reader.string().map_err(|_| None)?;
            // The secret is the seed followed by the public key (RFC 8032's key pair, as NaCl keeps it).
            let pair = reader.string().map_err(|_| None)?;
            let (seed, again) = pair.split_first_chunk::<32>().ok_or(None)?;
            if again != public {
                return Err(None);
            }
            Ok(Secret::Ed25519 {
                seed: Zeroizing::new(*seed),
                public: public.try_into().map_err(|_| None)?,
            })
        }
        _ => {
            let curve = reader.string().map_err(|_| None)?;
            let curve = Curve::from_name(curve).filter(|curve| curve.key_type() == algorithm);
            let curve = curve.ok_or_else(|| Some(Fault::Unsupported(algorithm.to_owned())))?;
            let point = reader.string().map_err(|_| None)?.to_vec();
            let scalar = Zeroizing::new(reader.mpint().map_err(|_| None)?.to_vec());
            Ok(Secret::Ecdsa { curve, scalar, point })
        }
    }
}

fn open_pkcs1(der: &[u8]) -> Result<Secret, Fault> {
    let key =
        pkcs1::RsaPrivateKeyRef::try_from(der).map_err(|_| Fault::Malformed("its PKCS#1 is damaged"))?;
    let secret = |number: &[u8]| Zeroizing::new(number.to_vec());
    Ok(Secret::Rsa {
        n: key.modulus.as_bytes().to_vec(),
        e: key.public_exponent.as_bytes().to_vec(),
        d: secret(key.private_exponent.as_bytes()),
        iqmp: secret(key.coefficient.as_bytes()),
        p: secret(key.prime1.as_bytes()),
        q: secret(key.prime2.as_bytes()),
    })
}

/// Opens an EC key in SEC 1 or PKCS#8. Computes its public half, which SEC 1 may omit.
fn open_ec(der: &[u8]) -> Result<Secret, Fault> {
    let (curve, key) = Curve::ALL
        .into_iter()
        .find_map(|curve| {
            Some((
                curve,
                EcdsaKeyPair::from_private_key_der(curve.signing(), der).ok()?,
            ))
        })
        .ok_or(Fault::Malformed(
            "it is not an EC key on nistp256, nistp384 or nistp521",
        ))?;
    let scalar: EcPrivateKeyBin<'static> = key
        .private_key()
        .as_be_bytes()
        .map_err(|_| Fault::Malformed("its number cannot be read"))?;
    Ok(Secret::Ecdsa {
        curve,
        scalar: Zeroizing::new(scalar.as_ref().to_vec()),
        point: key.public_key().as_ref().to_vec(),
    })
}

/// The most rounds of bcrypt that a key file may ask for (`ssh-keygen -a`; the default is 16 or 24). A round takes some
/// 5 ms: a user who wants a minute for each guess gets it, but no file can block a program forever.
const MOST_ROUNDS: u32 = 10_000;
/// The most iterations of PBKDF2, which RFC 8018 section 4.2 has for "especially critical keys".
const MOST_ITERATIONS: u32 = 10_000_000;
/// The most bytes of memory for scrypt, sixteen times what OpenSSL writes.
const MOST_SCRYPT: u64 = 256 << 20;
const MOST_PASSES: u16 = 16;

/// Checks that the key of a PKCS#8 envelope can be derived in bearable time and memory.
fn is_bearable(kdf: &pkcs8::pkcs5::pbes2::Kdf) -> Result<(), Fault> {
    use pkcs8::pkcs5::pbes2::Kdf;
    match kdf {
        Kdf::Pbkdf2(params) if params.iteration_count > MOST_ITERATIONS => Err(Fault::Cost(format!(
            "{} iterations of PBKDF2",
            params.iteration_count
        ))),
        Kdf::Scrypt(params) => {
            let memory = params
                .cost_parameter
                .saturating_mul(params.block_size.into())
                .saturating_mul(128);
            match memory > MOST_SCRYPT || params.parallelization > MOST_PASSES {
                true => Err(Fault::Cost(format!(
                    "scrypt over {memory} bytes, {} times",
                    params.parallelization
                ))),
                false => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// Decrypts an encrypted PKCS#8 envelope (RFC 8018, PBES2).
fn open_pbes(der: &[u8], passphrase: &[u8]) -> Result<pkcs8::SecretDocument, Fault> {
    use pkcs8::{Error, pkcs5};
    // PBES1 and the schemes of PKCS#12, which `openssl pkcs8 -v1` still writes, do not even parse.
    let unknown = |_| Fault::Cipher("a scheme other than PBES2 with AES".to_owned());
    let info = EncryptedPrivateKeyInfoRef::try_from(der).map_err(unknown)?;
    if let Some(parameters) = info.encryption_algorithm.pbes2() {
        is_bearable(&parameters.kdf)?;
    }
    info.decrypt(passphrase).map_err(|error| match error {
        Error::EncryptedPrivateKey(pkcs5::Error::UnsupportedAlgorithm { oid }) => {
            Fault::Cipher(oid.to_string())
        }
        Error::EncryptedPrivateKey(pkcs5::Error::NoPbes1CryptSupport) => Fault::Cipher("PBES1".to_owned()),
        _ => Fault::WrongPassphrase,
    })
}

fn open_pkcs8(der: &[u8]) -> Result<Secret, Fault> {
    let info =
        pkcs8::PrivateKeyInfoRef::try_from(der).map_err(|_| Fault::Malformed("its PKCS#8 is damaged"))?;
    match info.algorithm.oid.to_string().as_str() {
        // RFC 8017 appendix A.1, RFC 5480 section 2.1.1, RFC 8410 section 3.
        "1.2.840.113549.1.1.1" => open_pkcs1(info.private_key.as_bytes()),
        "1.2.840.10045.2.1" => open_ec(der),
        "1.3.101.112" => {
            let damaged = |_| Fault::Malformed("its Ed25519 key is damaged");
            let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der)
                .map_err(|_| Fault::Malformed("its Ed25519 key is damaged"))?;
            let seed = key.seed().and_then(|seed| seed.as_be_bytes()).map_err(damaged)?;
            Ok(Secret::Ed25519 {
                seed: Zeroizing::new(
                    seed.as_ref()
                        .try_into()
                        .map_err(|_| Fault::Malformed("its Ed25519 key is damaged"))?,
                ),
                public: key
                    .public_key()
                    .as_ref()
                    .try_into()
                    .map_err(|_| Fault::Malformed("its Ed25519 key is damaged"))?,
            })
        }
        oid => Err(Fault::Unsupported(format!("PKCS#8 ({oid})"))),
    }
}

/// Decrypts a body with the header `DEK-Info: CIPHER,IV`: CBC under a key from OpenSSL's `EVP_BytesToKey` with MD5, one
/// round, and the first half of the IV as the salt.
fn open_legacy(ciphertext: &[u8], dek_info: &str, passphrase: &[u8]) -> Result<Wiped, Fault> {
    let (name, iv) = dek_info.split_once(',').unwrap_or((dek_info, ""));
    let (algorithm, key_len) = match name {
        "AES-128-CBC" => (&AES_128, 16),
        "AES-192-CBC" => (&AES_192, 24),
        "AES-256-CBC" => (&AES_256, 32),
        other => return Err(Fault::Cipher(other.to_owned())),
    };
    let iv = parse_iv(iv.trim()).ok_or(Fault::Malformed("its DEK-Info header is damaged"))?;
    let mut key = Zeroizing::new(Vec::with_capacity(48));
    let mut block = Zeroizing::new([0; 16]);
    while key.len() < key_len {
        let mut hash = Md5::new();
        if !key.is_empty() {
            hash.update(&block[..]);
        }
        hash.update(passphrase);
        hash.update(&iv[..8]);
        block.copy_from_slice(&hash.finalize());
        key.extend_from_slice(&block[..]);
    }
    let failed = |_| Fault::WrongPassphrase;
    let key = UnboundCipherKey::new(algorithm, &key[..key_len]).map_err(failed)?;
    let cipher = PaddedBlockDecryptingKey::cbc_pkcs7(key).map_err(failed)?;
    let mut buffer = Zeroizing::new(ciphertext.to_vec());
    let len = cipher
        .decrypt(&mut buffer, DecryptionContext::Iv128(FixedLength::from(iv)))
        .map_err(failed)?
        .len();
    buffer.truncate(len);
    Ok(buffer)
}

/// Parses 16 bytes in hexadecimal.
fn parse_iv(text: &str) -> Option<[u8; 16]> {
    let digits = text.as_bytes();
    if digits.len() != 32 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut iv = [0; 16];
    for (byte, pair) in iv.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(iv)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(label: &str, body: &[u8]) -> Vec<u8> {
        format!(
            "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
            STANDARD.encode(body)
        )
        .into_bytes()
    }

    #[test]
    fn a_frame_with_other_line_lengths_and_ends_is_read() {
        let text =
            b"noise\r\n-----BEGIN PRIVATE KEY-----\r\nAA\r\nEC\r\nAwQ=\r\n-----END PRIVATE KEY-----\r\n";
        let block = PemBlock::next(&mut &text[..]).unwrap().unwrap();
        assert_eq!(
            (block.label, &block.body[..]),
            (&b"PRIVATE KEY"[..], &[0, 1, 2, 3, 4][..])
        );
    }

    #[test]
    fn a_frame_without_end_is_damage() {
        let text = b"-----BEGIN PRIVATE KEY-----\nAAEC\n-----END RSA PRIVATE KEY-----\n";
        assert!(matches!(Sealed::parse(text), Err(Fault::Malformed(_))));
    }

    #[test]
    fn a_putty_key_is_named() {
        let fault = Sealed::parse(b"PuTTY-User-Key-File-3: ssh-ed25519\r\n").err();
        assert!(matches!(fault, Some(Fault::Malformed(why)) if why.contains("puttygen")));
    }

    proptest! {
        #[test]
        fn no_file_panics(content: Vec<u8>) {
            if let Ok(sealed) = Sealed::parse(&content) {
                let _ = (sealed.is_encrypted(), sealed.clear_public_key());
            }
        }

        #[test]
        fn no_body_panics(body: Vec<u8>, kind in 0..5_usize, magic: bool) {
            let label = ["OPENSSH PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "PRIVATE KEY",
                "ENCRYPTED PRIVATE KEY"][kind];
            let magic: &[u8] = if magic { b"openssh-key-v1\0" } else { b"" };
            let sealed = Sealed::parse(&frame(label, &[magic, &body].concat())).ok().unwrap();
            let _ = (sealed.is_encrypted(), sealed.clear_public_key(), sealed.open(None).is_ok());
        }

        #[test]
        fn no_openssh_private_section_panics(section: Vec<u8>, kind in 0..3_usize, check: u32) {
            let name = ["ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256"][kind];
            use trunkline_proto::wire::Writer;
            let public = Writer::new().string(name).string(&section).finish();
            let section = Writer::new().u32(check).u32(check).string(name).raw(&section).finish();
            let body = Writer::new().raw(b"openssh-key-v1\0").string("none").string("none").string("")
                .u32(1).string(public).string(section).finish();
            if let Ok((secret, comment)) = open_openssh(&body, None) {
                let _ = super::super::PrivateKey::from_secret(&secret, comment);
            }
        }

        #[test]
        fn no_legacy_header_panics(dek_info: String, body: Vec<u8>) {
            let _ = open_legacy(&body, &dek_info, b"x");
            let _ = open_legacy(&body, &format!("AES-128-CBC,{dek_info}"), b"x");
            let _ = open_legacy(&body, "AES-128-CBC,00112233445566778899AABBCCDDEEFF", b"x");
        }
    }
}
