//! Tuning: how a path is to be measured, how far that is, what was measured, and what was found best and is remembered.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use trunkline_text::count_of;

/// The best settings for moving data on one path. Kept in host memory as JSON.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Choice {
    /// Seconds since 1970 when it was measured.
    pub measured: u64,
    /// The cipher, by SSH's name.
    pub cipher: String,
    /// The cipher that the engine takes on its own.
    pub usual_cipher: String,
    /// Whether to compress whatever is moved.
    pub compression: bool,
    /// The largest SFTP request, in bytes; `None` for as large as the server takes.
    pub request_size: Option<u32>,
    /// Sessions for a large file from the server, and towards it; `None` where it was not measured.
    pub streams_down: Option<usize>,
    /// See `streams_down`.
    pub streams_up: Option<usize>,
    /// The rates of one session with these settings, and with the ones that it would have had.
    pub rates: Rates,
    /// See `rates`.
    pub usual_rates: Rates,
    /// rsync's own options that paid for whatever it copies.
    pub rsync: Vec<String>,
}

impl Choice {
    /// Sessions for a large file towards the server, or from it.
    pub fn streams(&self, upload: bool) -> Option<usize> {
        if upload {
            self.streams_up
        } else {
            self.streams_down
        }
    }

    /// In words, for people.
    pub fn describe(&self) -> String {
        let mut parts = vec![
            self.cipher.clone(),
            if self.compression {
                "compressed"
            } else {
                "not compressed"
            }
            .into(),
        ];
        if let Some(size) = self.request_size {
            parts.push(format!("requests of {} KiB", f64::from(size) / 1024.0));
        }
        let sessions = |streams: usize, direction: Direction| {
            format!("{} {}", count_of(streams, "session"), direction.as_str())
        };
        parts.extend(
            self.streams_down
                .map(|streams| sessions(streams, Direction::Down)),
        );
        parts.extend(self.streams_up.map(|streams| sessions(streams, Direction::Up)));
        parts.join(", ")
    }
}

/// Bytes a second in each direction; `None` where it was not measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// From the server to here.
    pub down: Option<f64>,
    /// From here to the server.
    pub up: Option<f64>,
}

impl Rates {
    /// The rate of as many bytes down as up, one after the other; that of one direction where the other was not measured.
    pub fn both(self) -> Option<f64> {
        match (self.down, self.up) {
            (Some(down), Some(up)) => Some(2.0 / (1.0 / down + 1.0 / up)),
            (one, other) => one.or(other),
        }
    }
}

/// The options of tuning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TuneOptions {
    /// More sizes, more depths, more sessions, and everything three times.
    pub full: bool,
    /// The time limit. What is under way when it is over is waited for.
    pub time: Duration,
    /// Bytes of payload that may be moved.
    pub bytes: u64,
    /// The directory on the server for three files, removed in the end; where the session begins if there is none.
    pub directory: Option<String>,
}

impl TuneOptions {
    /// A short tuning, or one of everything.
    pub fn new(full: bool) -> Self {
        let (seconds, gigabytes) = if full { (240, 64) } else { (28, 8) };
        Self {
            full,
            time: Duration::from_secs(seconds),
            bytes: gigabytes << 30,
            directory: None,
        }
    }
}

/// The progress of a tuning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The part: "link", "ciphers", "compression", "request sizes", "sessions".
    pub stage: String,
    /// Measurements of the part that are done, and how many there are.
    pub done: usize,
    /// See `done`.
    pub of: usize,
    /// The current measurement.
    pub what: String,
}

/// The results of tuning on one path. Rates are bytes of payload a second, before compression.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The host as it was asked for.
    pub host: String,
    /// `user@hostname:port`.
    pub address: String,
    /// The server's identification.
    pub server: String,
    /// Seconds since 1970 when it was measured.
    pub measured: u64,
    /// The total time.
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
    /// The best settings for copies, as they are remembered.
    pub choice: Choice,
    /// Advice for plain ssh, scp and rsync.
    pub advice: Vec<Advice>,
    /// Measurements that were impossible, and why.
    pub notes: Vec<String>,
    /// The difference between measurements of the same thing, as a part of the larger: the median. `None` where nothing
    /// was measured twice.
    pub noise: Option<f64>,
    /// The conclusion from the figures.
    pub verdict: Verdict,
    /// The version of trunkline that measured.
    pub program: String,
    /// The machine that measured: its CPU, as the system tells it.
    pub machine: String,
}

/// The conclusion from the figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The changes by which `cp` gains; empty if nothing clearly gains.
    pub changes: Vec<Change>,
    /// The least gain, as a factor, that counts.
    pub worth: f64,
    /// The reliability of the verdict.
    pub certainty: Certainty,
}

/// Something that `cp` does otherwise than it would on its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// A description for people.
    pub what: String,
    /// The measured gain, as a factor.
    pub gain: f64,
}

/// The reliability of a verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Certainty {
    /// Nothing was measured twice, or what was differed so much that it is not known what gains.
    #[default]
    Low,
    /// Repeated measurements differed, and some gain is not far above the difference.
    Fair,
    /// Gains are far above what differed, or there is none and little differed.
    High,
}

impl Certainty {
    /// The word that people see.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Fair => "fair",
            Self::High => "high",
        }
    }
}

impl Report {
    /// The verdict in two lines: what to do, and how certain that is.
    pub fn verdict_lines(&self) -> [String; 2] {
        let Verdict {
            changes,
            worth,
            certainty,
        } = &self.verdict;
        let is_low = *certainty == Certainty::Low;
        let first = if changes.is_empty() && is_low {
            format!(
                "{}: not certain; no gain was found that is larger than chance.",
                self.host
            )
        } else if changes.is_empty() {
            format!(
                "{}: nothing to change; `trunkline cp` is as fast as it gets.",
                self.host
            )
        } else {
            let changes = changes
                .iter()
                .map(|Change { what, gain }| format!("{what} ({gain:.2} times as fast)"));
            let changes = changes.collect::<Vec<_>>().join(", ");
            format!("{}: `trunkline cp` uses {changes} from now on.", self.host)
        };
        let threshold = (worth - 1.0) * 100.0;
        let second = match self.noise {
            None => format!(
                "Certainty: {}; nothing was measured twice, and gains below {threshold:.0} % do not count.",
                certainty.as_str()
            ),
            Some(noise) => format!(
                "Certainty: {}; repeated measurements differed by {:.1} %, and gains below {threshold:.0} % do not count.",
                certainty.as_str(),
                noise * 100.0
            ),
        };
        let advice = if is_low {
            " Measure again when the machine and the link are quiet."
        } else {
            ""
        };
        [first, second + advice]
    }
}

/// A path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// The shortest of several round trips, in seconds.
    pub rtt: f64,
    /// The rates of one session with the settings of ssh_config, for data that does not compress.
    pub rates: Rates,
}

/// The direction of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the server to here.
    Down,
    /// From here to the server.
    Up,
}

impl Direction {
    /// Both directions.
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
    /// Their rates.
    pub rates: Rates,
}

/// So many SFTP sessions at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StreamsRow {
    /// The number of streams.
    pub streams: usize,
    /// The rates of all together.
    pub rates: Rates,
}

/// Runs of rsync with the same options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RsyncRow {
    /// The kind of copy: "new file" or "changed file".
    pub work: String,
    /// The options that the runs had beside `-t` and the `-e` of plain ssh.
    pub options: Vec<String>,
    /// The file's length.
    pub bytes: u64,
    /// The time of each run.
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

/// Advice for another program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// "ssh", "scp" or "rsync".
    pub tool: String,
    /// For what kind of data: "any", "text" or "changed files".
    pub data: String,
    /// Options for its command line; empty where its defaults are best.
    pub options: Vec<String>,
    /// The measured gain over its defaults, as a factor.
    pub gain: f64,
}

/// The work that this machine does in a second, on one core.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LocalReport {
    /// The CPU's name, where the system tells it.
    pub cpu: String,
    /// Of the CPU's features, those that cryptography uses.
    pub features: Vec<String>,
    /// Packets sealed, with ciphers and the MACs that go with them.
    pub ciphers: Vec<LocalRow>,
    /// MACs on their own.
    pub macs: Vec<LocalRow>,
    /// Signatures, by key type.
    pub signatures: Vec<SignatureRow>,
}

/// One algorithm at several sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LocalRow {
    /// SSH's name of it; a cipher that needs a MAC with that of the MAC.
    pub algorithm: String,
    /// Sizes of payload in bytes, and bytes of payload a second.
    pub rates: Vec<(usize, f64)>,
}

/// One key type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SignatureRow {
    /// SSH's name of the signature, and the length of an RSA key.
    pub algorithm: String,
    /// Signatures a second.
    pub signed: f64,
    /// Verifications a second.
    pub verified: f64,
}

/// Sizes of payload: from a keystroke to sshd's largest packet.
pub const SIZES: [usize; 7] = [16, 64, 256, 1024, 4096, 16 * 1024, 32 * 1024];
