//! The curves of RFC 5656 section 10.1.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING,
    EcdsaSigningAlgorithm,
};
use zeroize::Zeroizing;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Curve {
    P256,
    P384,
    P521,
}

impl Curve {
    pub(super) const ALL: [Self; 3] = [Self::P256, Self::P384, Self::P521];

    pub(super) fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|curve| curve.name().as_bytes() == name)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::P256 => "nistp256",
            Self::P384 => "nistp384",
            Self::P521 => "nistp521",
        }
    }

    pub(super) fn key_type(self) -> &'static str {
        match self {
            Self::P256 => "ecdsa-sha2-nistp256",
            Self::P384 => "ecdsa-sha2-nistp384",
            Self::P521 => "ecdsa-sha2-nistp521",
        }
    }

    pub(super) fn signing(self) -> &'static EcdsaSigningAlgorithm {
        match self {
            Self::P256 => &ECDSA_P256_SHA256_FIXED_SIGNING,
            Self::P384 => &ECDSA_P384_SHA384_FIXED_SIGNING,
            Self::P521 => &ECDSA_P521_SHA512_FIXED_SIGNING,
        }
    }

    /// Pads `scalar` to the curve's full length: files keep it without its leading zero bytes.
    pub(super) fn pad_scalar(self, scalar: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let scalar = trim_zeros(scalar);
        let len = match self {
            Self::P256 => 32,
            Self::P384 => 48,
            Self::P521 => 66,
        };
        let mut padded = Zeroizing::new(vec![0; len]);
        padded[len.checked_sub(scalar.len())?..].copy_from_slice(scalar);
        Some(padded)
    }
}

/// Strips leading zero bytes from a number.
pub(super) fn trim_zeros(number: &[u8]) -> &[u8] {
    &number[number.iter().position(|b| *b != 0).unwrap_or(number.len())..]
}
