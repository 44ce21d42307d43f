//! A private key that is ready to sign.

use super::curve::trim_zeros;
use super::formats::{Fault, Secret};
use super::{KeyError, PublicKey, fingerprint, public_key_algorithms};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPairComponents, PublicKeyComponents};
use aws_lc_rs::signature::{EcdsaKeyPair, Ed25519KeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA512, RsaKeyPair};
use bytes::Bytes;
use crypto_bigint::{BoxedUint, NonZero};
use std::fmt;
use trunkline_proto::wire::{Reader, Writer};
use zeroize::Zeroizing;

/// The smallest RSA key in bits: a smaller one is not safe, whatever `RequiredRSASize` allows.
pub(super) const MIN_RSA_BITS: usize = 2048;

/// The largest RSA key in bits with which the cryptographic library signs.
pub(super) const MAX_RSA_BITS: usize = 8192;

/// An opened private key. Its secret is wiped from memory when it is dropped.
pub struct PrivateKey {
    public: PublicKey,
    signer: Signer,
    /// The secret numbers in the form of the agent protocol; see [`agent_encoding`](Self::agent_encoding).
    secret: Zeroizing<Vec<u8>>,
}

enum Signer {
    Ed25519(Ed25519KeyPair),
    Ecdsa(EcdsaKeyPair),
    Rsa(Box<RsaKeyPair>),
}

impl PrivateKey {
    /// Returns the public half: type, blob and the file's comment.
    pub fn public_key(&self) -> &PublicKey {
        &self.public
    }

    /// Returns the public half as a wire blob.
    pub fn public_blob(&self) -> &Bytes {
        &self.public.blob
    }

    /// Returns the key's type: `ssh-ed25519`, `ecdsa-sha2-nistp256`, `-nistp384`, `-nistp521` or `ssh-rsa`.
    pub fn algorithm(&self) -> &str {
        &self.public.algorithm
    }

    /// Returns the algorithms with which this key can [`sign`](Self::sign), best first.
    pub fn signature_algorithms(&self) -> Vec<&str> {
        public_key_algorithms(self.algorithm())
    }

    /// Signs `data` with `algorithm`, one of [`signature_algorithms`](Self::signature_algorithms).
    ///
    /// Returns an SSH signature (RFC 4253 section 6.6): `string` algorithm, `string` signature. An RSA
    /// signature of 4096 bits takes some milliseconds of CPU.
    ///
    /// # Errors
    /// [`KeyError::Algorithm`] for an algorithm of another key type (SHA-1's `ssh-rsa` included).
    pub fn sign(&self, algorithm: &str, data: &[u8]) -> Result<Vec<u8>, KeyError> {
        if !self.signature_algorithms().contains(&algorithm) {
            return Err(KeyError::Algorithm {
                key: self.algorithm().to_owned(),
                algorithm: algorithm.to_owned(),
            });
        }
        let failed = || KeyError::Signing {
            key: self.algorithm().to_owned(),
        };
        let raw = match &self.signer {
            // RFC 8709 section 6: the 64 bytes of RFC 8032.
            Signer::Ed25519(key) => Bytes::copy_from_slice(key.sign(data).as_ref()),
            // RFC 5656 section 3.1.2: mpint r, mpint s.
            Signer::Ecdsa(key) => {
                let fixed = key.sign(&SystemRandom::new(), data).map_err(|_| failed())?;
                let (r, s) = fixed.as_ref().split_at(fixed.as_ref().len() / 2);
                Writer::new().mpint(r).mpint(s).finish()
            }
            // RFC 8332 section 3: RSASSA-PKCS1-v1_5, as long as the modulus.
            Signer::Rsa(key) => {
                let padding = if algorithm == "rsa-sha2-512" {
                    &RSA_PKCS1_SHA512
                } else {
                    &RSA_PKCS1_SHA256
                };
                let mut signature = vec![0; key.public_modulus_len()];
                key.sign(padding, &SystemRandom::new(), data, &mut signature)
                    .map_err(|_| failed())?;
                signature.into()
            }
        };
        Ok(Writer::new().string(algorithm).string(raw).finish().into())
    }

    /// Encodes the key for SSH_AGENTC_ADD_IDENTITY, without the comment (draft-ietf-sshm-ssh-agent section 5.2.1 and,
    /// with a certificate, PROTOCOL.certkeys and sshkey.c's `sshkey_private_serialize`).
    pub fn agent_encoding(&self, certificate: Option<&PublicKey>) -> Zeroizing<Vec<u8>> {
        let public = match certificate {
            Some(certificate) => Writer::new()
                .string(&certificate.algorithm)
                .string(&certificate.blob)
                .finish(),
            None => match &self.signer {
                Signer::Ed25519(_) => Writer::new().string(self.algorithm()).finish(),
                Signer::Ecdsa(_) => self.public.blob.clone(),
                Signer::Rsa(_) => swapped_rsa_blob(&self.public.blob),
            },
        };
        // The buffer has the exact size: growing would leave unwiped copies behind.
        let mut encoding = Zeroizing::new(Vec::with_capacity(public.len() + self.secret.len()));
        encoding.extend_from_slice(&public);
        encoding.extend_from_slice(&self.secret);
        encoding
    }

    /// Makes a key from the numbers in a file, and checks that they belong together.
    pub(super) fn from_secret(secret: &Secret, comment: String) -> Result<Self, Fault> {
        const INCONSISTENT: Fault = Fault::Malformed("its numbers do not belong together");
        let (algorithm, blob, signer, encoded) = match secret {
            Secret::Ed25519 { seed, public } => {
                let key =
                    Ed25519KeyPair::from_seed_and_public_key(&seed[..], public).map_err(|_| INCONSISTENT)?;
                let pair = Zeroizing::new([&seed[..], &public[..]].concat());
                let blob = Writer::new().string("ssh-ed25519").string(public).finish();
                let encoded = secret_fields(&[Field::String(public), Field::String(&pair)]);
                ("ssh-ed25519", blob, Signer::Ed25519(key), encoded)
            }
            Secret::Ecdsa { curve, scalar, point } => {
                let padded = curve.pad_scalar(scalar).ok_or(INCONSISTENT)?;
                let key = EcdsaKeyPair::from_private_key_and_public_key(curve.signing(), &padded, point)
                    .map_err(|_| INCONSISTENT)?;
                let blob = Writer::new()
                    .string(curve.key_type())
                    .string(curve.name())
                    .string(point)
                    .finish();
                (
                    curve.key_type(),
                    blob,
                    Signer::Ecdsa(key),
                    secret_fields(&[Field::Mpint(scalar)]),
                )
            }
            Secret::Rsa { n, e, d, iqmp, p, q } => {
                let (n, e) = (trim_zeros(n), trim_zeros(e));
                let bits = n.len() * 8 - n.first().map_or(0, |top| top.leading_zeros() as usize);
                if !(MIN_RSA_BITS..=MAX_RSA_BITS).contains(&bits) {
                    return Err(Fault::RsaSize(bits));
                }
                let key = RsaKeyPair::from_components(&KeyPairComponents {
                    public_key: PublicKeyComponents { n, e },
                    d: &d[..],
                    p: &p[..],
                    q: &q[..],
                    dP: &crt_exponent(d, p).ok_or(INCONSISTENT)?[..],
                    dQ: &crt_exponent(d, q).ok_or(INCONSISTENT)?[..],
                    qInv: &iqmp[..],
                })
                .map_err(|_| INCONSISTENT)?;
                let blob = Writer::new().string("ssh-rsa").mpint(e).mpint(n).finish();
                let encoded = secret_fields(&[
                    Field::Mpint(d),
                    Field::Mpint(iqmp),
                    Field::Mpint(p),
                    Field::Mpint(q),
                ]);
                ("ssh-rsa", blob, Signer::Rsa(Box::new(key)), encoded)
            }
        };
        let public = PublicKey {
            algorithm: algorithm.to_owned(),
            blob,
            comment,
        };
        Ok(Self {
            public,
            signer,
            secret: encoded,
        })
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivateKey")
            .field("algorithm", &self.algorithm())
            .field("fingerprint", &fingerprint(&self.public.blob))
            .finish_non_exhaustive()
    }
}

/// Computes `d mod (prime - 1)`, which PKCS#1 stores and OpenSSH's format does not (sshkey.c,
/// `ssh_rsa_complete_crt_parameters`).
fn crt_exponent(d: &[u8], prime: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let bytes = d.len().max(prime.len());
    let bits = u32::try_from(bytes).ok()?.checked_mul(8)?;
    let d = Zeroizing::new(BoxedUint::from_be_slice(d, bits).ok()?);
    let prime = Zeroizing::new(BoxedUint::from_be_slice(prime, bits).ok()?);
    let less_one = prime.wrapping_sub(BoxedUint::one_with_precision(bits));
    let less_one = Zeroizing::new(NonZero::new(less_one).into_option()?);
    let exponent = Zeroizing::new(d.rem(&less_one));
    Some(Zeroizing::new(exponent.to_be_bytes().into_vec()))
}

/// Returns an RSA key's blob with n before e, as the agent wants it.
fn swapped_rsa_blob(blob: &[u8]) -> Bytes {
    let own = "from_secret wrote the blob";
    let mut reader = Reader::new(blob);
    let name = reader.string().expect(own);
    let (e, n) = (reader.string().expect(own), reader.string().expect(own));
    Writer::new().string(name).string(n).string(e).finish()
}

enum Field<'a> {
    String(&'a [u8]),
    Mpint(&'a [u8]),
}

/// Writes secret fields into a buffer that never grows, so that no unwiped copy stays behind.
fn secret_fields(fields: &[Field<'_>]) -> Zeroizing<Vec<u8>> {
    let room = |field: &Field<'_>| match field {
        Field::String(bytes) | Field::Mpint(bytes) => bytes.len() + 5,
    };
    let mut buffer = Zeroizing::new(Vec::with_capacity(fields.iter().map(room).sum()));
    for field in fields {
        let (pad, bytes): (&[u8], &[u8]) = match field {
            Field::String(bytes) => (&[], bytes),
            Field::Mpint(number) => {
                let number = trim_zeros(number);
                // RFC 4251 section 5: a leading zero keeps a set top bit from being a sign.
                if number.first().is_some_and(|top| top & 0x80 != 0) {
                    (&[0], number)
                } else {
                    (&[], number)
                }
            }
        };
        let len = u32::try_from(pad.len() + bytes.len()).expect("a number of a key has at most 2 KiB");
        buffer.extend_from_slice(&len.to_be_bytes());
        buffer.extend_from_slice(pad);
        buffer.extend_from_slice(bytes);
    }
    buffer
}
