//! Tuning: the options of measuring a path, its progress, its results, and the choice that is remembered.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use trunkline_text::count_of;

/// The best settings for moving data on one path. Kept in host memory as JSON.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Choice {
    /// The time of the measurement, in seconds since 1970.
    pub measured: u64,
    /// The cipher, by SSH's name.
    pub cipher: String,
    /// The cipher that the engine would use by default.
    pub usual_cipher: String,
    /// True to compress all data.
    pub compression: bool,
    /// The largest SFTP request in bytes; `None` for the server's maximum.
    pub request_size: Option<u32>,
    /// The number of sessions for a large file from the server, and to it; `None` if not measured.
    pub streams_down: Option<usize>,
    /// See `streams_down`.
    pub streams_up: Option<usize>,
    /// The rates of one session with these settings, and with the defaults.
    pub rates: Rates,
    /// See `rates`.
    pub usual_rates: Rates,
    /// rsync's options that improve every copy.
    pub rsync: Vec<String>,
}

impl Choice {
    /// Returns the number of sessions for a large file to the server, or from it.
    pub fn streams(&self, upload: bool) -> Option<usize> {
        if upload {
            self.streams_up
        } else {
            self.streams_down
        }
    }

    /// Describes the choice for display.
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

/// Bytes per second in each direction; `None` if not measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// From the server to this machine.
    pub down: Option<f64>,
    /// From this machine to the server.
    pub up: Option<f64>,
}

impl Rates {
    /// Returns the rate for as many bytes down as up, one after the other. If one direction was not measured, that of
    /// the other.
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
    /// More sizes, depths and sessions, each measured three times.
    pub full: bool,
    /// The time limit. A measurement that is running at its end is completed.
    pub time: Duration,
    /// The most bytes of payload to move.
    pub bytes: u64,
    /// The directory on the server for three temporary files; the session's start directory if there is none.
    pub directory: Option<String>,
}

impl TuneOptions {
    /// Returns the options of a short tuning, or a full one.
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
    /// The stage: "link", "ciphers", "compression", "request sizes", "sessions".
    pub stage: String,
    /// The number of measurements done in this stage, and their total.
    pub done: usize,
    /// See `done`.
    pub of: usize,
    /// The current measurement.
    pub what: String,
}

/// The results of tuning on one path. Rates are bytes of payload per second, before compression.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The host as requested.
    pub host: String,
    /// `user@hostname:port`.
    pub address: String,
    /// The server's identification.
    pub server: String,
    /// The time of the measurement, in seconds since 1970.
    pub measured: u64,
    /// The total time.
    pub seconds: f64,
    /// Bytes of payload that were moved.
    pub bytes: u64,
    /// The path itself.
    pub link: Link,
    /// Ciphers, with and without compression.
    pub ciphers: Vec<CipherRow>,
    /// Sizes of SFTP requests, and numbers of concurrent requests.
    pub requests: Vec<RequestRow>,
    /// Numbers of SFTP sessions.
    pub streams: Vec<StreamsRow>,
    /// Runs of rsync over the system's ssh.
    pub rsync: Vec<RsyncRow>,
    /// The best settings for copies, which are remembered.
    pub choice: Choice,
    /// Advice for plain ssh, scp and rsync.
    pub advice: Vec<Advice>,
    /// Measurements that were impossible, and why.
    pub notes: Vec<String>,
    /// The median difference between repeated measurements, as a fraction of the larger. `None` if nothing was measured
    /// twice.
    pub noise: Option<f64>,
    /// The conclusion from the figures.
    pub verdict: Verdict,
    /// The version of trunkline.
    pub program: String,
    /// The CPU of the machine that measured.
    pub machine: String,
}

/// The conclusion from the figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The changes from which `cp` gains; empty if nothing clearly gains.
    pub changes: Vec<Change>,
    /// The smallest gain, as a factor, that counts.
    pub worth: f64,
    /// The reliability of the verdict.
    pub certainty: Certainty,
}

/// A setting that `cp` changes from its default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// A description for display.
    pub what: String,
    /// The measured gain, as a factor.
    pub gain: f64,
}

/// The reliability of a verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Certainty {
    /// Nothing was measured twice, or the differences were too large to tell what gains.
    #[default]
    Low,
    /// Repeated measurements differed, and some gains are close to the difference.
    Fair,
    /// Gains are far above the differences, or there are none and little differed.
    High,
}

impl Certainty {
    /// Returns the word for display.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Fair => "fair",
            Self::High => "high",
        }
    }
}

impl Report {
    /// Returns the verdict in two lines: what to do, and how certain that is.
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
    /// The rates of one session with the settings of ssh_config, for incompressible data.
    pub rates: Rates,
}

/// The direction of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the server to this machine.
    Down,
    /// From this machine to the server.
    Up,
}

impl Direction {
    /// Both directions.
    pub const BOTH: [Self; 2] = [Self::Down, Self::Up];

    /// Returns "down" or "up".
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
    /// The cipher's name in SSH.
    pub cipher: String,
    /// True if payloads are compressed (zlib).
    pub compression: bool,
    /// For log lines, which compress to about a fifth.
    pub compressible: Rates,
    /// For random bytes.
    pub incompressible: Rates,
}

/// SFTP requests of one size and concurrency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestRow {
    /// Bytes that each reads or writes.
    pub size: u32,
    /// The number of concurrent requests.
    pub depth: usize,
    /// Their rates.
    pub rates: Rates,
}

/// A number of concurrent SFTP sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StreamsRow {
    /// The number of streams.
    pub streams: usize,
    /// The total rates.
    pub rates: Rates,
}

/// Runs of rsync with the same options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RsyncRow {
    /// The kind of copy: "new file" or "changed file".
    pub work: String,
    /// The options beside `-t` and the `-e` of plain ssh.
    pub options: Vec<String>,
    /// The file's length.
    pub bytes: u64,
    /// The time of each run.
    pub seconds: Vec<f64>,
}

impl RsyncRow {
    /// Returns the median of the runs, in seconds.
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
    /// The kind of data: "any", "text" or "changed files".
    pub data: String,
    /// Options for its command line; empty if its defaults are best.
    pub options: Vec<String>,
    /// The measured gain over its defaults, as a factor.
    pub gain: f64,
}

/// The speed of this machine, on one core.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LocalReport {
    /// The CPU's name, if known.
    pub cpu: String,
    /// The CPU's features that cryptography uses.
    pub features: Vec<String>,
    /// Packets sealed, with ciphers and their MACs.
    pub ciphers: Vec<LocalRow>,
    /// MACs alone.
    pub macs: Vec<LocalRow>,
    /// Signatures, by key type.
    pub signatures: Vec<SignatureRow>,
}

/// One algorithm at several sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LocalRow {
    /// The algorithm's name in SSH; for a cipher with a separate MAC, both names.
    pub algorithm: String,
    /// Sizes of payload in bytes, and bytes of payload per second.
    pub rates: Vec<(usize, f64)>,
}

/// One key type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SignatureRow {
    /// The signature's name in SSH, and the length of an RSA key.
    pub algorithm: String,
    /// Signatures per second.
    pub signed: f64,
    /// Verifications per second.
    pub verified: f64,
}

/// Sizes of payload: from a keystroke to sshd's largest packet.
pub const SIZES: [usize; 7] = [16, 64, 256, 1024, 4096, 16 * 1024, 32 * 1024];
