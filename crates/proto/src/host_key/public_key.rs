//! Public keys in their blobs (RFC 4253 section 6.6, RFC 5656, RFC 8709, OpenSSH's PROTOCOL.u2f).

use crate::wire::{Reader, WireError};

const ED25519_KEY_LEN: usize = 32;

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
    pub(crate) const ALL: [Self; 7] = [
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

    /// Returns the type of a certificate for such a key.
    pub(crate) fn certified_name(self) -> &'static str {
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

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub(crate) fn from_certified_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.certified_name() == name)
    }
}

/// A public key as encoded in its blob.
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
    /// Parses a plain key, not a certificate.
    pub(crate) fn parse(blob: &'a [u8]) -> Result<Self, PublicKeyError> {
        let mut reader = Reader::new(blob);
        let name = reader.name()?;
        let kind = KeyKind::from_name(name).ok_or_else(|| PublicKeyError::UnsupportedType {
            name: name.to_owned(),
        })?;
        let key = Self::read(kind, &mut reader)?;
        reader.finish()?;
        Ok(key)
    }

    /// Reads the fields that follow the type's name in a key, and the nonce in a certificate.
    pub(crate) fn read(kind: KeyKind, reader: &mut Reader<'a>) -> Result<Self, PublicKeyError> {
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
                Err(PublicKeyError::BadKey)
            }
            key => Ok(key),
        }
    }

    fn read_ecdsa(curve: Curve, reader: &mut Reader<'a>) -> Result<Self, PublicKeyError> {
        Ok(Self::Ecdsa {
            curve,
            point: curve.read_point(reader)?,
        })
    }

    pub(crate) fn rsa_bits(&self) -> Option<usize> {
        match self {
            Self::Rsa { n, .. } => Some(n.len() * 8 - n.first().map_or(0, |b| b.leading_zeros() as usize)),
            _ => None,
        }
    }
}

/// The reason why a blob is not a valid key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PublicKeyError {
    UnsupportedType {
        name: String,
    },
    Malformed(WireError),
    /// The key's numbers do not have its type's size, or are on another curve than the type says.
    BadKey,
}

impl From<WireError> for PublicKeyError {
    fn from(error: WireError) -> Self {
        Self::Malformed(error)
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
    /// Reads the curve's name again and an uncompressed point (RFC 5656 section 3.1).
    fn read_point<'a>(self, reader: &mut Reader<'a>) -> Result<&'a [u8], PublicKeyError> {
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
            Err(PublicKeyError::BadKey)
        }
    }

    /// Returns the bytes of a coordinate, and of each half of a signature.
    pub(crate) fn number_len(self) -> usize {
        match self {
            Self::P256 => 32,
            Self::P384 => 48,
            Self::P521 => 66,
        }
    }
}
