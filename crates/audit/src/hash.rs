//! Hashes of lines.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest::{SHA256, digest};

/// The SHA-256 of a line, without its line feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Hash([u8; 32]);

impl Hash {
    pub(crate) fn digest(bytes: &[u8]) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
        Self(hash)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A text that is not a hash.
#[derive(Debug, thiserror::Error)]
#[error("expected NUMBER:HASH, with a hash of 64 hexadecimal digits")]
pub(crate) struct NoHead;

impl FromStr for Hash {
    type Err = NoHead;

    fn from_str(text: &str) -> Result<Self, NoHead> {
        let mut hash = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return Err(NoHead);
        }
        for (index, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).map_err(|_| NoHead)?;
        }
        Ok(Self(hash))
    }
}
