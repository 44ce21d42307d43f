//! The chain: each line has the next number, and the hash of the previous line.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::hash::{Hash, NoHead};
use crate::record::Record;

/// The end of a chain: the number and hash of its last line. Both are zero before the first line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Head {
    pub(crate) number: u64,
    pub(crate) hash: Hash,
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.number, self.hash)
    }
}

impl FromStr for Head {
    type Err = NoHead;

    fn from_str(text: &str) -> Result<Self, NoHead> {
        let (number, hash) = text.trim().split_once(':').ok_or(NoHead)?;
        Ok(Self {
            number: number.parse().map_err(|_| NoHead)?,
            hash: hash.parse()?,
        })
    }
}

#[derive(Serialize)]
struct Line<'a> {
    number: u64,
    #[serde(flatten)]
    record: &'a Record,
    previous: String,
}

impl Head {
    /// Adds a record's line to `lines`, and advances.
    pub(crate) fn add(&mut self, record: &Record, lines: &mut Vec<u8>) -> std::io::Result<()> {
        let number = self.number + 1;
        let line = Line {
            number,
            record,
            previous: self.hash.to_string(),
        };
        let line = serde_json::to_vec(&line)?;
        *self = Self {
            number,
            hash: Hash::digest(&line),
        };
        lines.extend_from_slice(&line);
        lines.push(b'\n');
        Ok(())
    }
}

/// A line's fields about its place in the chain.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Link {
    pub(crate) number: u64,
    pub(crate) previous: String,
    pub(crate) time: String,
    pub(crate) event: String,
    #[serde(default)]
    pub(crate) id: Option<String>,
    #[serde(default)]
    pub(crate) torn_sha256: Option<String>,
    #[serde(default)]
    pub(crate) broken: bool,
    #[serde(default)]
    pub(crate) note: Option<String>,
}

impl Link {
    /// Parses a line without its line feed; `None` if it is not one of the trail's.
    pub(crate) fn read(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }

    /// Returns the chain's end after this line.
    pub(crate) fn head(&self, line: &[u8]) -> Head {
        Head {
            number: self.number,
            hash: Hash::digest(line),
        }
    }
}
