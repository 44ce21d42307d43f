//! Verification of host key signatures (RFC 4253 section 6.6, RFC 5656, RFC 8332, RFC 8709, OpenSSH's PROTOCOL.u2f),
//! and what can be read from a public key's blob without trusting it.

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{self as algorithms, RsaPublicKeyComponents, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use super::certificate::{Certificate, CertificateError};
use super::public_key::{Curve, KeyKind, PublicKey, PublicKeyError};
use crate::wire::{Reader, WireError};

/// The smallest RSA key that is ever accepted, as in OpenSSH (sshkey.h, `SSH_RSA_MINIMUM_MODULUS_SIZE`); the user's
/// RequiredRSASize may require more.
const MIN_RSA_BITS: usize = 1024;
/// The largest RSA key that aws-lc verifies with.
const MAX_RSA_BITS: usize = 8192;

/// Verifies that `signature_blob` is a signature of `data` by the key in `key_blob`, made with `expected_algorithm`.
///
/// `expected_algorithm` is a name from a KEXINIT: `ssh-ed25519`, `ecdsa-sha2-nistp256`/`384`/`521`, `rsa-sha2-256`,
/// `rsa-sha2-512`, `sk-ssh-ed25519@openssh.com`, `sk-ecdsa-sha2-nistp256@openssh.com`, or one of their
/// `-cert-v01@openssh.com` forms. With such a form the blob is a certificate, and the certified key has signed; whether
/// to trust the certificate is a separate question ([`Certificate::verify_ca_signature`]).
///
/// For security keys (`sk-`) the flags and the counter are verified, but no flag is required: OpenSSH does not require
/// a touch from a host either.
///
/// # Errors
/// The key is not of the algorithm's type, the signature names another algorithm (an `ssh-rsa` signature after
/// `rsa-sha2-512` was agreed on is a downgrade), either blob is malformed, an RSA key is smaller than 1024 bits or
/// larger than 8192, or the signature is wrong.
pub fn verify(
    key_blob: &[u8],
    expected_algorithm: &str,
    signature_blob: &[u8],
    data: &[u8],
) -> Result<(), SignatureError> {
    let (algorithm, certified) =
        Algorithm::from_name(expected_algorithm).ok_or_else(|| SignatureError::UnsupportedAlgorithm {
            name: expected_algorithm.to_owned(),
        })?;

    let kind = algorithm.key_kind();
    let wanted = if certified {
        kind.certified_name()
    } else {
        kind.name()
    };
    let found = key_type(key_blob)?;
    if found != wanted {
        return Err(SignatureError::WrongKeyType {
            expected: wanted,
            got: found.to_owned(),
        });
    }

    let mut signature = Reader::new(signature_blob);
    let named = signature.name()?;
    if named != algorithm.name() {
        return Err(SignatureError::WrongAlgorithm {
            expected: algorithm.name(),
            got: named.to_owned(),
        });
    }
    if certified {
        let certificate = Certificate::parse(key_blob)?;
        PublicKey::parse(certificate.key_blob())?.verify(algorithm, signature, data)
    } else {
        PublicKey::parse(key_blob)?.verify(algorithm, signature, data)
    }
}

/// Returns the key type that a public key or certificate names, such as `ssh-ed25519`.
///
/// # Errors
/// `blob` does not start with a name.
pub fn key_type(blob: &[u8]) -> Result<&str, SignatureError> {
    Ok(Reader::new(blob).name()?)
}

/// Returns the size of the RSA key in a public key or certificate, in bits; `None` for other key types.
///
/// # Errors
/// `blob` is not a well-formed key or certificate of a type that [`verify`] supports.
pub fn rsa_bits(blob: &[u8]) -> Result<Option<usize>, SignatureError> {
    let bits = |blob: &[u8]| Ok(PublicKey::parse(blob)?.rsa_bits());
    if KeyKind::from_certified_name(key_type(blob)?).is_some() {
        bits(Certificate::parse(blob)?.key_blob())
    } else {
        bits(blob)
    }
}

/// Returns the fingerprint as `ssh-keygen -l` prints it: `SHA256:` and the hash of the blob in base64 without padding.
/// As in OpenSSH, the fingerprint of a certificate is that of its [`Certificate::key_blob`].
pub fn fingerprint(blob: &[u8]) -> String {
    format!("SHA256:{}", STANDARD_NO_PAD.encode(digest(&SHA256, blob)))
}

/// The reason why a signature or its key is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// [`verify`] does not support the algorithm (SHA-1 and DSA are excluded on purpose).
    #[error("the signature algorithm {name:?} is not supported")]
    UnsupportedAlgorithm {
        /// The algorithm.
        name: String,
    },
    /// [`verify`] does not support the key type.
    #[error("the key type {name:?} is not supported")]
    UnsupportedKey {
        /// The key type.
        name: String,
    },
    /// The key is not of the algorithm's type.
    #[error("the key is of type {got:?} where {expected} was agreed on")]
    WrongKeyType {
        /// The type that belongs to the algorithm.
        expected: &'static str,
        /// The type of the key.
        got: String,
    },
    /// The signature names another algorithm than was agreed on.
    #[error("the signature was made with {got:?} where {expected} was agreed on")]
    WrongAlgorithm {
        /// The negotiated algorithm.
        expected: &'static str,
        /// The algorithm that the signature names.
        got: String,
    },
    /// A blob is malformed.
    #[error("the key or signature is malformed: {0}")]
    Malformed(#[from] WireError),
    /// The key's numbers do not have its type's size, or are on another curve than the type says.
    #[error("the public key does not fit its type")]
    BadKey,
    /// The certificate cannot be parsed.
    #[error(transparent)]
    BadCertificate(#[from] CertificateError),
    /// The RSA key is too small to be safe or too large to be verified with.
    #[error("the RSA key has {bits} bits; between 1024 and 8192 are accepted")]
    RsaSize {
        /// The size of its modulus.
        bits: usize,
    },
    /// The signature is not the key's signature of the data.
    #[error("the signature is wrong")]
    BadSignature,
}

impl From<PublicKeyError> for SignatureError {
    fn from(error: PublicKeyError) -> Self {
        match error {
            PublicKeyError::UnsupportedType { name } => Self::UnsupportedKey { name },
            PublicKeyError::Malformed(error) => Self::Malformed(error),
            PublicKeyError::BadKey => Self::BadKey,
        }
    }
}

impl Certificate {
    /// Verifies that [`Self::ca_key`] has signed the certificate.
    ///
    /// # Errors
    /// It has not, or with an unsupported algorithm (`ssh-rsa`, that is SHA-1), or with a too small RSA key.
    pub fn verify_ca_signature(&self) -> Result<(), SignatureError> {
        verify(
            &self.ca_key,
            &self.ca_signature_algorithm,
            &self.signature,
            &self.signed,
        )
    }
}

/// A signature algorithm. RSA keys have several; every other key type has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    RsaSha256,
    RsaSha512,
    /// The only algorithm of a key type, with the key type's name.
    Of(KeyKind),
}

impl Algorithm {
    /// Returns the algorithm with that name, and whether the name is that for certificates.
    fn from_name(name: &str) -> Option<(Self, bool)> {
        match name {
            "rsa-sha2-256" => Some((Self::RsaSha256, false)),
            "rsa-sha2-512" => Some((Self::RsaSha512, false)),
            "rsa-sha2-256-cert-v01@openssh.com" => Some((Self::RsaSha256, true)),
            "rsa-sha2-512-cert-v01@openssh.com" => Some((Self::RsaSha512, true)),
            _ => {
                let plain = KeyKind::from_name(name).map(|kind| (kind, false));
                let (kind, certified) =
                    plain.or_else(|| KeyKind::from_certified_name(name).map(|kind| (kind, true)))?;
                // As an algorithm, "ssh-rsa" means SHA-1.
                (kind != KeyKind::Rsa).then_some((Self::Of(kind), certified))
            }
        }
    }

    /// Returns the name in a signature; the same whether or not the key is certified.
    fn name(self) -> &'static str {
        match self {
            Self::RsaSha256 => "rsa-sha2-256",
            Self::RsaSha512 => "rsa-sha2-512",
            Self::Of(kind) => kind.name(),
        }
    }

    fn key_kind(self) -> KeyKind {
        match self {
            Self::RsaSha256 | Self::RsaSha512 => KeyKind::Rsa,
            Self::Of(kind) => kind,
        }
    }
}

impl PublicKey<'_> {
    /// Verifies `signature`, which starts after the algorithm's name. The algorithm must be for this type of key.
    fn verify(
        &self,
        algorithm: Algorithm,
        mut signature: Reader<'_>,
        data: &[u8],
    ) -> Result<(), SignatureError> {
        let bytes = signature.string()?;
        match *self {
            Self::Rsa { e, n } => {
                signature.finish()?;
                let bits = self.rsa_bits().unwrap_or(0);
                if !(MIN_RSA_BITS..=MAX_RSA_BITS).contains(&bits) {
                    return Err(SignatureError::RsaSize { bits });
                }
                verify_rsa(algorithm, e, n, bytes, data)
            }
            Self::Ed25519 { key } => {
                signature.finish()?;
                verify_ed25519(key, bytes, data)
            }
            Self::Ecdsa { curve, point } => {
                signature.finish()?;
                curve.verify(point, bytes, data)
            }
            Self::SkEd25519 { key, application } => {
                verify_ed25519(key, bytes, &security_key_data(application, signature, data)?)
            }
            Self::SkEcdsa { point, application } => {
                Curve::P256.verify(point, bytes, &security_key_data(application, signature, data)?)
            }
        }
    }
}

impl Curve {
    /// Verifies a signature that consists of r and s as mpints (RFC 5656 section 3.1.2).
    fn verify(self, point: &[u8], signature: &[u8], data: &[u8]) -> Result<(), SignatureError> {
        let algorithm = match self {
            Self::P256 => &algorithms::ECDSA_P256_SHA256_FIXED,
            Self::P384 => &algorithms::ECDSA_P384_SHA384_FIXED,
            Self::P521 => &algorithms::ECDSA_P521_SHA512_FIXED,
        };
        let mut reader = Reader::new(signature);
        let (r, s) = (reader.mpint()?, reader.mpint()?);
        reader.finish()?;
        let fixed = [pad(r, self.number_len())?, pad(s, self.number_len())?].concat();
        UnparsedPublicKey::new(algorithm, point)
            .verify(data, &fixed)
            .map_err(|_| SignatureError::BadSignature)
    }
}

/// Verifies as in RFC 8332 section 3.
fn verify_rsa(
    algorithm: Algorithm,
    e: &[u8],
    n: &[u8],
    signature: &[u8],
    data: &[u8],
) -> Result<(), SignatureError> {
    let parameters = match algorithm {
        Algorithm::RsaSha256 => &algorithms::RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY,
        _ => &algorithms::RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY,
    };
    // Some implementations strip the signature's leading zeros; like OpenSSH, put them back.
    let signature = pad(signature, n.len())?;
    RsaPublicKeyComponents { n, e }
        .verify(parameters, data, &signature)
        .map_err(|_| SignatureError::BadSignature)
}

/// Verifies as in RFC 8709 section 6.
fn verify_ed25519(key: &[u8], signature: &[u8], data: &[u8]) -> Result<(), SignatureError> {
    UnparsedPublicKey::new(&algorithms::ED25519, key)
        .verify(data, signature)
        .map_err(|_| SignatureError::BadSignature)
}

/// Returns the data that a security key signs (PROTOCOL.u2f, "SSH U2F Signatures"), from the flags and counter after
/// its signature.
fn security_key_data(
    application: &[u8],
    mut signature: Reader<'_>,
    data: &[u8],
) -> Result<Vec<u8>, SignatureError> {
    let flags = signature.u8()?;
    let counter = signature.u32()?;
    signature.finish()?;
    let application = digest(&SHA256, application);
    let data = digest(&SHA256, data);
    Ok([
        application.as_ref(),
        &[flags],
        &counter.to_be_bytes(),
        data.as_ref(),
    ]
    .concat())
}

/// Pads the number with leading zeros to `len` bytes.
fn pad(number: &[u8], len: usize) -> Result<Vec<u8>, SignatureError> {
    let zeros = len
        .checked_sub(number.len())
        .ok_or(SignatureError::BadSignature)?;
    let mut bytes = vec![0; zeros];
    bytes.extend_from_slice(number);
    Ok(bytes)
}

/// Real keys, certificates and signatures for the tests here and in `certificate`.
#[cfg(test)]
pub(crate) mod ssh_keygen {
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio};

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    /// The types that `ssh-keygen -t` and `-b` make without a security key, RSA in its smallest and a usual size.
    pub(crate) const TYPES: [&[&str]; 6] = [
        &["-t", "ed25519"],
        &["-t", "ecdsa", "-b", "256"],
        &["-t", "ecdsa", "-b", "384"],
        &["-t", "ecdsa", "-b", "521"],
        &["-t", "rsa", "-b", "2048"],
        &["-t", "rsa", "-b", "1024"],
    ];

    /// Runs `ssh-keygen` in `dir`, which must succeed.
    pub(crate) fn run(dir: &Path, args: &[&str]) -> String {
        let output = Command::new("ssh-keygen")
            .current_dir(dir)
            .args(args)
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|error| panic!("this test needs ssh-keygen (openssh-client): {error}"));
        assert!(
            output.status.success(),
            "ssh-keygen {args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Generates a key without passphrase; returns the private key's file in `dir`.
    pub(crate) fn key(dir: &Path, name: &str, of_type: &[&str]) -> PathBuf {
        run(
            dir,
            &[of_type, &["-q", "-N", "", "-C", "test", "-f", name]].concat(),
        );
        dir.join(name)
    }

    /// Returns the blob in a `.pub` file.
    pub(crate) fn blob(path: impl AsRef<Path>) -> Vec<u8> {
        let line = std::fs::read_to_string(path).unwrap();
        STANDARD.decode(line.split(' ').nth(1).unwrap()).unwrap()
    }
}

#[cfg(test)]
mod tests;
