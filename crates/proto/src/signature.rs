//! Verification of host key signatures (RFC 4253 section 6.6, RFC 5656, RFC 8332, RFC 8709, OpenSSH's PROTOCOL.u2f),
//! and what can be read from a public key's blob without trusting it.

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{self as algorithms, RsaPublicKeyComponents, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use crate::certificate::{Certificate, CertificateError};
use crate::wire::{Reader, WireError};

/// The smallest RSA key that is accepted at all; the user's RequiredRSASize may ask for more.
const MIN_RSA_BITS: usize = 2048;
/// The largest RSA key that aws-lc verifies with.
const MAX_RSA_BITS: usize = 8192;
const ED25519_KEY_LEN: usize = 32;

/// Checks that `signature_blob` is a signature of `data` by the key in `key_blob`, made with `expected_algorithm`.
///
/// `expected_algorithm` is a name from a KEXINIT: `ssh-ed25519`, `ecdsa-sha2-nistp256`/`384`/`521`, `rsa-sha2-256`,
/// `rsa-sha2-512`, `sk-ssh-ed25519@openssh.com`, `sk-ecdsa-sha2-nistp256@openssh.com`, or one of their
/// `-cert-v01@openssh.com` forms. With such a form the blob is a certificate and the key that it certifies has
/// signed; whether to believe the certificate is another question ([`Certificate::verify_ca_signature`]).
///
/// For security keys (`sk-`) the flags and the counter are part of what is verified, but no flag is demanded: OpenSSH
/// asks for no touch from a host either.
///
/// # Errors
/// When the key is of another type than the algorithm's, the signature names another algorithm (an `ssh-rsa`
/// signature where `rsa-sha2-512` was agreed on is a downgrade), either blob is malformed, an RSA key is smaller than
/// 2048 bits or larger than 8192, or the signature is wrong.
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

/// The key type that a public key or certificate says it has, such as `ssh-ed25519`.
///
/// # Errors
/// When `blob` does not start with a name.
pub fn key_type(blob: &[u8]) -> Result<&str, SignatureError> {
    Ok(Reader::new(blob).name()?)
}

/// The size of the RSA key in a public key or certificate, in bits; `None` for a key of another type.
///
/// # Errors
/// When `blob` is not a well-formed key or certificate of a type that [`verify`] knows.
pub fn rsa_bits(blob: &[u8]) -> Result<Option<usize>, SignatureError> {
    let bits = |blob: &[u8]| PublicKey::parse(blob).map(|key| key.rsa_bits());
    if KeyKind::from_certified_name(key_type(blob)?).is_some() {
        bits(Certificate::parse(blob)?.key_blob())
    } else {
        bits(blob)
    }
}

/// What `ssh-keygen -l` prints for the key: `SHA256:` and the hash of the blob in base64 without padding. The
/// fingerprint of a certificate, as OpenSSH shows it, is that of its [`Certificate::key_blob`].
pub fn fingerprint(blob: &[u8]) -> String {
    format!("SHA256:{}", STANDARD_NO_PAD.encode(digest(&SHA256, blob)))
}

/// Why a signature, or the key that should have made it, is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// The algorithm is none of those that [`verify`] knows (SHA-1 and DSA are left out on purpose).
    #[error("the signature algorithm {name:?} is not supported")]
    UnsupportedAlgorithm {
        /// The algorithm.
        name: String,
    },
    /// The key type is none of those that [`verify`] knows.
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
        /// What was agreed on.
        expected: &'static str,
        /// What the signature names.
        got: String,
    },
    /// A blob does not have its type's form.
    #[error("the key or signature is malformed: {0}")]
    Malformed(#[from] WireError),
    /// The key's numbers do not have its type's size, or are on another curve than the type says.
    #[error("the public key does not fit its type")]
    BadKey,
    /// The certificate in the key's place cannot be read.
    #[error(transparent)]
    BadCertificate(#[from] CertificateError),
    /// The RSA key is too small to be safe or too large to be verified with.
    #[error("the RSA key has {bits} bits; between 2048 and 8192 are accepted")]
    RsaSize {
        /// The size of its modulus.
        bits: usize,
    },
    /// The signature is not the key's signature of the data.
    #[error("the signature is wrong")]
    BadSignature,
}

/// How a signature is made. RSA keys have several; every other key type has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    RsaSha256,
    RsaSha512,
    /// The one algorithm of a key type, which has the key type's name.
    Of(KeyKind),
}

impl Algorithm {
    /// The algorithm of that name, and whether the name is that for certificates.
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

    /// The name that a signature carries; the same whether or not the key is certified.
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

/// A type of public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyKind {
    Rsa,
    Ed25519,
    EcdsaP256,
    EcdsaP384,
    EcdsaP521,
    SkEd25519,
    SkEcdsaP256,
}

impl KeyKind {
    const ALL: [Self; 7] = [
        Self::Rsa,
        Self::Ed25519,
        Self::EcdsaP256,
        Self::EcdsaP384,
        Self::EcdsaP521,
        Self::SkEd25519,
        Self::SkEcdsaP256,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rsa => "ssh-rsa",
            Self::Ed25519 => "ssh-ed25519",
            Self::EcdsaP256 => "ecdsa-sha2-nistp256",
            Self::EcdsaP384 => "ecdsa-sha2-nistp384",
            Self::EcdsaP521 => "ecdsa-sha2-nistp521",
            Self::SkEd25519 => "sk-ssh-ed25519@openssh.com",
            Self::SkEcdsaP256 => "sk-ecdsa-sha2-nistp256@openssh.com",
        }
    }

    /// The type of a certificate for such a key.
    fn certified_name(self) -> &'static str {
        match self {
            Self::Rsa => "ssh-rsa-cert-v01@openssh.com",
            Self::Ed25519 => "ssh-ed25519-cert-v01@openssh.com",
            Self::EcdsaP256 => "ecdsa-sha2-nistp256-cert-v01@openssh.com",
            Self::EcdsaP384 => "ecdsa-sha2-nistp384-cert-v01@openssh.com",
            Self::EcdsaP521 => "ecdsa-sha2-nistp521-cert-v01@openssh.com",
            Self::SkEd25519 => "sk-ssh-ed25519-cert-v01@openssh.com",
            Self::SkEcdsaP256 => "sk-ecdsa-sha2-nistp256-cert-v01@openssh.com",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub(crate) fn from_certified_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.certified_name() == name)
    }
}

/// A public key, as its blob holds it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PublicKey<'a> {
    /// Exponent and modulus, big-endian without leading zeros.
    Rsa {
        e: &'a [u8],
        n: &'a [u8],
    },
    Ed25519 {
        key: &'a [u8],
    },
    Ecdsa {
        curve: Curve,
        point: &'a [u8],
    },
    SkEd25519 {
        key: &'a [u8],
        application: &'a [u8],
    },
    SkEcdsa {
        point: &'a [u8],
        application: &'a [u8],
    },
}

impl<'a> PublicKey<'a> {
    /// Reads a plain key, which is no certificate.
    pub(crate) fn parse(blob: &'a [u8]) -> Result<Self, SignatureError> {
        let mut reader = Reader::new(blob);
        let name = reader.name()?;
        let kind = KeyKind::from_name(name).ok_or_else(|| SignatureError::UnsupportedKey {
            name: name.to_owned(),
        })?;
        let key = Self::read(kind, &mut reader)?;
        reader.finish()?;
        Ok(key)
    }

    /// Reads the fields that follow the type's name in a key, and the nonce in a certificate.
    pub(crate) fn read(kind: KeyKind, reader: &mut Reader<'a>) -> Result<Self, SignatureError> {
        let key = match kind {
            KeyKind::Rsa => Self::Rsa {
                e: reader.mpint()?,
                n: reader.mpint()?,
            },
            KeyKind::Ed25519 => Self::Ed25519 {
                key: reader.string()?,
            },
            KeyKind::EcdsaP256 => Self::read_ecdsa(Curve::P256, reader)?,
            KeyKind::EcdsaP384 => Self::read_ecdsa(Curve::P384, reader)?,
            KeyKind::EcdsaP521 => Self::read_ecdsa(Curve::P521, reader)?,
            KeyKind::SkEd25519 => Self::SkEd25519 {
                key: reader.string()?,
                application: reader.string()?,
            },
            KeyKind::SkEcdsaP256 => {
                let point = Curve::P256.read_point(reader)?;
                Self::SkEcdsa {
                    point,
                    application: reader.string()?,
                }
            }
        };
        match key {
            Self::Ed25519 { key } | Self::SkEd25519 { key, .. } if key.len() != ED25519_KEY_LEN => {
                Err(SignatureError::BadKey)
            }
            key => Ok(key),
        }
    }

    fn read_ecdsa(curve: Curve, reader: &mut Reader<'a>) -> Result<Self, SignatureError> {
        Ok(Self::Ecdsa {
            curve,
            point: curve.read_point(reader)?,
        })
    }

    fn rsa_bits(&self) -> Option<usize> {
        match self {
            Self::Rsa { n, .. } => Some(n.len() * 8 - n.first().map_or(0, |b| b.leading_zeros() as usize)),
            _ => None,
        }
    }

    /// `signature` stands behind the algorithm's name, which belongs to a key of this type.
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

/// A curve of RFC 5656.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Curve {
    P256,
    P384,
    P521,
}

impl Curve {
    /// RFC 5656 section 3.1: the curve's name once more, and an uncompressed point.
    fn read_point<'a>(self, reader: &mut Reader<'a>) -> Result<&'a [u8], SignatureError> {
        let name = reader.string()?;
        let point = reader.string()?;
        let wanted: &[u8] = match self {
            Self::P256 => b"nistp256",
            Self::P384 => b"nistp384",
            Self::P521 => b"nistp521",
        };
        if name == wanted && point.len() == 1 + 2 * self.number_len() && point[0] == 4 {
            Ok(point)
        } else {
            Err(SignatureError::BadKey)
        }
    }

    /// Bytes of a coordinate, and of each half of a signature.
    fn number_len(self) -> usize {
        match self {
            Self::P256 => 32,
            Self::P384 => 48,
            Self::P521 => 66,
        }
    }

    /// RFC 5656 section 3.1.2: the signature holds r and s as mpints.
    fn verify(self, point: &[u8], signature: &[u8], data: &[u8]) -> Result<(), SignatureError> {
        let algorithm = match self {
            Self::P256 => &algorithms::ECDSA_P256_SHA256_FIXED,
            Self::P384 => &algorithms::ECDSA_P384_SHA384_FIXED,
            Self::P521 => &algorithms::ECDSA_P521_SHA512_FIXED,
        };
        let mut reader = Reader::new(signature);
        let (r, s) = (reader.mpint()?, reader.mpint()?);
        reader.finish()?;
        let fixed = [padded(r, self.number_len())?, padded(s, self.number_len())?].concat();
        UnparsedPublicKey::new(algorithm, point)
            .verify(data, &fixed)
            .map_err(|_| SignatureError::BadSignature)
    }
}

/// RFC 8332 section 3.
fn verify_rsa(
    algorithm: Algorithm,
    e: &[u8],
    n: &[u8],
    signature: &[u8],
    data: &[u8],
) -> Result<(), SignatureError> {
    let parameters = match algorithm {
        Algorithm::RsaSha256 => &algorithms::RSA_PKCS1_2048_8192_SHA256,
        _ => &algorithms::RSA_PKCS1_2048_8192_SHA512,
    };
    // Some implementations strip the signature's leading zeros; OpenSSH puts them back, and so do we.
    let signature = padded(signature, n.len())?;
    RsaPublicKeyComponents { n, e }
        .verify(parameters, data, &signature)
        .map_err(|_| SignatureError::BadSignature)
}

/// RFC 8709 section 6.
fn verify_ed25519(key: &[u8], signature: &[u8], data: &[u8]) -> Result<(), SignatureError> {
    UnparsedPublicKey::new(&algorithms::ED25519, key)
        .verify(data, signature)
        .map_err(|_| SignatureError::BadSignature)
}

/// What a security key signs (PROTOCOL.u2f, "SSH U2F Signatures"), from the flags and counter behind its signature.
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

/// The number with zeros in front, `len` bytes in all.
fn padded(number: &[u8], len: usize) -> Result<Vec<u8>, SignatureError> {
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

    /// The types that `ssh-keygen -t` and `-b` make without a security key at hand.
    pub(crate) const TYPES: [&[&str]; 5] = [
        &["-t", "ed25519"],
        &["-t", "ecdsa", "-b", "256"],
        &["-t", "ecdsa", "-b", "384"],
        &["-t", "ecdsa", "-b", "521"],
        &["-t", "rsa", "-b", "2048"],
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

    /// Makes a key without passphrase: the private key's file in `dir`.
    pub(crate) fn key(dir: &Path, name: &str, of_type: &[&str]) -> PathBuf {
        run(
            dir,
            &[of_type, &["-q", "-N", "", "-C", "test", "-f", name]].concat(),
        );
        dir.join(name)
    }

    /// The blob in a `.pub` file.
    pub(crate) fn blob(path: impl AsRef<Path>) -> Vec<u8> {
        let line = std::fs::read_to_string(path).unwrap();
        STANDARD.decode(line.split(' ').nth(1).unwrap()).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Writer;
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::signature::{EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;
    use std::sync::OnceLock;

    /// A real signature with what it takes to verify it.
    #[derive(Debug, Clone)]
    struct Sample {
        key: Vec<u8>,
        algorithm: String,
        signature: Vec<u8>,
        data: Vec<u8>,
    }

    impl Sample {
        fn verify(&self) -> Result<(), SignatureError> {
            verify(&self.key, &self.algorithm, &self.signature, &self.data)
        }
    }

    /// Signatures that `ssh-keygen -Y sign` made with every type of key, and of security keys made here.
    fn samples() -> &'static [Sample] {
        static SAMPLES: OnceLock<Vec<Sample>> = OnceLock::new();
        SAMPLES.get_or_init(|| {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("message"), "signed by OpenSSH").unwrap();
            let mut samples = Vec::new();
            for (i, of_type) in ssh_keygen::TYPES.into_iter().enumerate() {
                let name = i.to_string();
                ssh_keygen::key(dir.path(), &name, of_type);
                ssh_keygen::run(
                    dir.path(),
                    &["-q", "-Y", "sign", "-n", "test", "-f", &name, "message"],
                );
                let armored = std::fs::read_to_string(dir.path().join("message.sig")).unwrap();
                std::fs::remove_file(dir.path().join("message.sig")).unwrap();
                samples.push(sshsig(&armored));
            }
            samples.extend([security_key_ed25519(), security_key_ecdsa()]);
            samples
        })
    }

    /// Takes OpenSSH's PROTOCOL.sshsig apart.
    fn sshsig(armored: &str) -> Sample {
        let lines: String = armored.lines().filter(|line| !line.starts_with('-')).collect();
        let blob = STANDARD.decode(lines).unwrap();
        let mut reader = Reader::new(&blob);
        assert_eq!(reader.take(6).unwrap(), b"SSHSIG");
        assert_eq!(reader.u32().unwrap(), 1);
        let key = reader.string().unwrap().to_vec();
        assert_eq!(reader.string().unwrap(), b"test");
        reader.string().unwrap();
        assert_eq!(reader.string().unwrap(), b"sha512");
        let signature = reader.string().unwrap().to_vec();
        reader.finish().unwrap();
        let hash = digest(&aws_lc_rs::digest::SHA512, b"signed by OpenSSH");
        let data = Writer::new()
            .raw(b"SSHSIG")
            .string("test")
            .string("")
            .string("sha512")
            .string(hash)
            .finish();
        let algorithm = Reader::new(&signature).name().unwrap().to_owned();
        Sample {
            key,
            algorithm,
            signature,
            data: data.to_vec(),
        }
    }

    fn security_key_ed25519() -> Sample {
        let name = "sk-ssh-ed25519@openssh.com";
        let pair = Ed25519KeyPair::generate().unwrap();
        let signed = pair.sign(&security_key_message(b"exchange hash"));
        Sample {
            key: Writer::new()
                .string(name)
                .string(pair.public_key())
                .string("ssh:")
                .finish()
                .to_vec(),
            algorithm: name.to_owned(),
            signature: Writer::new()
                .string(name)
                .string(signed)
                .u8(5)
                .u32(77)
                .finish()
                .to_vec(),
            data: b"exchange hash".to_vec(),
        }
    }

    fn security_key_ecdsa() -> Sample {
        let name = "sk-ecdsa-sha2-nistp256@openssh.com";
        let pair = EcdsaKeyPair::generate(&algorithms::ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let signed = pair
            .sign(&SystemRandom::new(), &security_key_message(b"exchange hash"))
            .unwrap();
        let (r, s) = signed.as_ref().split_at(32);
        let signed = Writer::new().mpint(r).mpint(s).finish();
        let key = Writer::new()
            .string(name)
            .string("nistp256")
            .string(pair.public_key())
            .string("ssh:");
        Sample {
            key: key.finish().to_vec(),
            algorithm: name.to_owned(),
            signature: Writer::new()
                .string(name)
                .string(signed)
                .u8(5)
                .u32(77)
                .finish()
                .to_vec(),
            data: b"exchange hash".to_vec(),
        }
    }

    /// PROTOCOL.u2f from scratch: flags 5, counter 77.
    fn security_key_message(data: &[u8]) -> Vec<u8> {
        let (application, data) = (digest(&SHA256, b"ssh:"), digest(&SHA256, data));
        [application.as_ref(), &[5, 0, 0, 0, 77], data.as_ref()].concat()
    }

    #[test]
    fn every_algorithm_leads_back_to_its_name() {
        for kind in KeyKind::ALL {
            assert_eq!(KeyKind::from_name(kind.name()), Some(kind));
            assert_eq!(KeyKind::from_certified_name(kind.certified_name()), Some(kind));
            if kind != KeyKind::Rsa {
                assert_eq!(
                    Algorithm::from_name(kind.name()),
                    Some((Algorithm::Of(kind), false))
                );
                assert_eq!(
                    Algorithm::from_name(kind.certified_name()),
                    Some((Algorithm::Of(kind), true))
                );
            }
        }
        for sha1 in ["ssh-rsa", "ssh-rsa-cert-v01@openssh.com", "ssh-dss"] {
            assert_eq!(Algorithm::from_name(sha1), None);
        }
    }

    #[test]
    fn signatures_of_every_key_type_are_verified() {
        let algorithms: Vec<&str> = samples().iter().map(|sample| sample.algorithm.as_str()).collect();
        let expected = [
            "ssh-ed25519",
            "ecdsa-sha2-nistp256",
            "ecdsa-sha2-nistp384",
            "ecdsa-sha2-nistp521",
            "rsa-sha2-512",
            "sk-ssh-ed25519@openssh.com",
            "sk-ecdsa-sha2-nistp256@openssh.com",
        ];
        assert_eq!(algorithms, expected);
        for sample in samples() {
            assert_eq!(sample.verify(), Ok(()), "{}", sample.algorithm);
        }
    }

    #[test]
    fn a_signature_of_other_data_is_wrong() {
        for sample in samples() {
            let other = Sample {
                data: b"something else".to_vec(),
                ..sample.clone()
            };
            assert_eq!(
                other.verify(),
                Err(SignatureError::BadSignature),
                "{}",
                sample.algorithm
            );
        }
    }

    #[test]
    fn a_signature_must_name_the_algorithm_that_was_agreed_on() {
        let rsa = samples()
            .iter()
            .find(|sample| sample.algorithm == "rsa-sha2-512")
            .unwrap();
        let weaker = Sample {
            algorithm: "rsa-sha2-256".into(),
            ..rsa.clone()
        };
        assert!(matches!(
            weaker.verify(),
            Err(SignatureError::WrongAlgorithm {
                expected: "rsa-sha2-256",
                ..
            })
        ));

        let mut reader = Reader::new(&rsa.signature);
        reader.string().unwrap();
        let sha1 = Writer::new()
            .string("ssh-rsa")
            .raw(reader.rest())
            .finish()
            .to_vec();
        let downgraded = Sample {
            signature: sha1,
            ..rsa.clone()
        };
        assert!(matches!(
            downgraded.verify(),
            Err(SignatureError::WrongAlgorithm { .. })
        ));
        let sha1_agreed = Sample {
            algorithm: "ssh-rsa".into(),
            ..downgraded
        };
        assert!(matches!(
            sha1_agreed.verify(),
            Err(SignatureError::UnsupportedAlgorithm { .. })
        ));
    }

    #[test]
    fn a_key_of_another_type_is_refused() {
        for key in samples() {
            for signature in samples()
                .iter()
                .filter(|signature| signature.algorithm != key.algorithm)
            {
                let mixed = Sample {
                    key: key.key.clone(),
                    ..signature.clone()
                };
                assert!(matches!(mixed.verify(), Err(SignatureError::WrongKeyType { .. })));
            }
            let certified = KeyKind::from_name(key_type(&key.key).unwrap())
                .unwrap()
                .certified_name();
            if certified != "ssh-rsa-cert-v01@openssh.com" {
                let plain = Sample {
                    algorithm: certified.into(),
                    ..key.clone()
                };
                assert!(matches!(plain.verify(), Err(SignatureError::WrongKeyType { .. })));
            }
        }
    }

    #[test]
    fn a_certified_key_signs_under_the_certificates_algorithm() {
        let dir = tempfile::tempdir().unwrap();
        ssh_keygen::key(dir.path(), "ca", ssh_keygen::TYPES[0]);
        ssh_keygen::key(dir.path(), "host", ssh_keygen::TYPES[4]);
        std::fs::write(dir.path().join("message"), "signed by OpenSSH").unwrap();
        ssh_keygen::run(
            dir.path(),
            &["-q", "-Y", "sign", "-n", "test", "-f", "host", "message"],
        );
        let plain = sshsig(&std::fs::read_to_string(dir.path().join("message.sig")).unwrap());
        ssh_keygen::run(
            dir.path(),
            &[
                "-q",
                "-s",
                "ca",
                "-h",
                "-I",
                "id",
                "-n",
                "host.example",
                "host.pub",
            ],
        );
        let certified = Sample {
            key: ssh_keygen::blob(dir.path().join("host-cert.pub")),
            algorithm: "rsa-sha2-512-cert-v01@openssh.com".into(),
            ..plain.clone()
        };
        assert_eq!(certified.verify(), Ok(()));
        assert_eq!(rsa_bits(&certified.key), Ok(Some(2048)));
        let uncertified = Sample {
            algorithm: plain.algorithm,
            ..certified
        };
        assert!(matches!(
            uncertified.verify(),
            Err(SignatureError::WrongKeyType { .. })
        ));
    }

    #[test]
    fn small_rsa_keys_are_refused_by_their_size() {
        let dir = tempfile::tempdir().unwrap();
        let path = ssh_keygen::key(dir.path(), "small", &["-t", "rsa", "-b", "1024"]);
        let key = ssh_keygen::blob(path.with_extension("pub"));
        assert_eq!(rsa_bits(&key), Ok(Some(1024)));
        let signature = Writer::new().string("rsa-sha2-512").string([1; 128]).finish();
        assert_eq!(
            verify(&key, "rsa-sha2-512", &signature, b""),
            Err(SignatureError::RsaSize { bits: 1024 })
        );
        assert_eq!(rsa_bits(&samples()[0].key), Ok(None));
    }

    #[test]
    fn stripped_zeros_are_put_back_and_longer_numbers_refused() {
        assert_eq!(padded(&[1, 2], 4), Ok(vec![0, 0, 1, 2]));
        assert_eq!(padded(&[1, 2], 1), Err(SignatureError::BadSignature));
    }

    #[test]
    fn fingerprints_are_those_of_ssh_keygen() {
        let dir = tempfile::tempdir().unwrap();
        let path = ssh_keygen::key(dir.path(), "key", ssh_keygen::TYPES[0]);
        let listed = ssh_keygen::run(dir.path(), &["-l", "-f", "key.pub"]);
        assert_eq!(
            listed.split(' ').nth(1).unwrap(),
            fingerprint(&ssh_keygen::blob(path.with_extension("pub")))
        );
    }

    proptest! {
        #[test]
        fn a_flipped_bit_anywhere_is_refused(position: prop::sample::Index, bit in 0u8..8, part in 0..3) {
            for sample in samples() {
                let mut altered = sample.clone();
                let bytes = match part {
                    0 => &mut altered.key,
                    1 => &mut altered.signature,
                    _ => &mut altered.data,
                };
                let byte = position.index(bytes.len());
                bytes[byte] ^= 1 << bit;
                prop_assert!(altered.verify().is_err(), "{} part {part} byte {byte}", sample.algorithm);
            }
        }

        #[test]
        fn no_bytes_panic(key: Vec<u8>, signature: Vec<u8>, cut: prop::sample::Index, data: Vec<u8>) {
            for sample in samples() {
                let random_key = Sample { key: key.clone(), ..sample.clone() };
                let named = |bytes: &[u8], name: &str| Writer::new().string(name).raw(bytes).finish().to_vec();
                let named_key = Sample {
                    key: named(&key, key_type(&sample.key).unwrap()),
                    ..sample.clone()
                };
                let named_signature = Sample { signature: named(&signature, &sample.algorithm), ..sample.clone() };
                let mut cut_short = sample.clone();
                cut_short.signature.truncate(cut.index(sample.signature.len()));
                for altered in [random_key, named_key, named_signature, cut_short] {
                    prop_assert!(altered.verify().is_err());
                    let _ = rsa_bits(&altered.key);
                }
            }
            let _ = (key_type(&data), rsa_bits(&data), fingerprint(&data));
        }
    }
}
