//! What was measured: the figures of one path.

use serde::{Deserialize, Serialize};

use crate::tuned::{Choice, Rates};

/// What [`tune`](super::tune) found on one path. Rates are bytes of payload a second, before compression.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// The host as it was asked for.
    pub host: String,
    /// `user@hostname:port`.
    pub address: String,
    /// The server's identification.
    pub server: String,
    /// Seconds since 1970 when it was measured.
    pub measured: u64,
    /// How long all of it took.
    pub seconds: f64,
    /// Bytes of payload that were moved for it.
    pub bytes: u64,
    /// The path itself.
    pub link: Link,
    /// Ciphers, with and without compression.
    pub ciphers: Vec<CipherRow>,
    /// Sizes of SFTP requests, and how many were under way at once.
    pub requests: Vec<RequestRow>,
    /// Numbers of SFTP sessions.
    pub streams: Vec<StreamsRow>,
    /// Runs of rsync over the system's ssh.
    pub rsync: Vec<RsyncRow>,
    /// What is best for copies, as it is remembered.
    pub choice: Choice,
    /// What to tell plain ssh, scp and rsync.
    pub advice: Vec<Advice>,
    /// What could not be measured, and why.
    pub notes: Vec<String>,
}

/// A path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// The shortest of several round trips, in seconds.
    pub rtt: f64,
    /// What one session moves that is set up as ssh_config says, with data that does not compress.
    pub rates: Rates,
}

/// Keeps the better of what is there and what was measured again: whatever disturbs a measurement slows it.
pub(super) fn keep(rates: &mut Rates, direction: Direction, rate: f64) {
    let kept = match direction {
        Direction::Down => &mut rates.down,
        Direction::Up => &mut rates.up,
    };
    *kept = Some(kept.map_or(rate, |kept| kept.max(rate)));
}

/// Which way data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the server to here.
    Down,
    /// From here to the server.
    Up,
}

impl Direction {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Down, Self::Up];

    /// "down" or "up".
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Up => "up",
        }
    }
}

/// One cipher, with or without compression.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CipherRow {
    /// SSH's name of it.
    pub cipher: String,
    /// Whether payloads are compressed (zlib).
    pub compression: bool,
    /// With log lines, which compress to about a fifth.
    pub compressible: Rates,
    /// With random bytes.
    pub incompressible: Rates,
}

/// SFTP requests of one size, so many under way at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestRow {
    /// Bytes that each reads or writes.
    pub size: u32,
    /// Requests under way at once.
    pub depth: usize,
    /// What they moved.
    pub rates: Rates,
}

/// So many SFTP sessions at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StreamsRow {
    /// How many.
    pub streams: usize,
    /// What they moved together.
    pub rates: Rates,
}

/// Runs of rsync with the same options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RsyncRow {
    /// What is copied: "new file" or "changed file".
    pub work: String,
    /// The options that the runs had beside `-t` and the `-e` of plain ssh.
    pub options: Vec<String>,
    /// The file's length.
    pub bytes: u64,
    /// How long each run took.
    pub seconds: Vec<f64>,
}

impl RsyncRow {
    /// The median of the runs, in seconds.
    pub fn median(&self) -> Option<f64> {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }
}

/// What to tell another program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// "ssh", "scp" or "rsync".
    pub tool: String,
    /// For what kind of data: "any", "text" or "changed files".
    pub data: String,
    /// Options for its command line; empty where its defaults are best.
    pub options: Vec<String>,
    /// How many times as fast as its defaults it was measured to be.
    pub gain: f64,
}
