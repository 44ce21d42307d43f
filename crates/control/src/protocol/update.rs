//! Reports for those who watch the daemon ([`Request::Subscribe`](super::Request::Subscribe)): the whole state first,
//! then the changes.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use trunkline_request::failure::{ErrorKind, Execution};

use super::HostReport;

/// The differences from the previous update. The first moment has the whole state, in as many updates as needed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// The time since the daemon began to serve; the same in all updates of one moment.
    pub at: Duration,
    /// The daemon's own state; in the last update of a moment.
    pub pulse: Option<Pulse>,
    /// New and changed hosts. A shorter time until a connection closes is not a change.
    pub hosts: Vec<HostReport>,
    /// Hosts that have nothing to show any more, by [`HostReport::sharing`].
    pub hosts_gone: Vec<String>,
    /// Activities that have started or changed.
    pub activities: Vec<Activity>,
    /// Activities that have ended, by [`Activity::id`].
    pub activities_gone: Vec<u64>,
    /// The failures, oldest first. The first moment has the last 100.
    pub failures: Vec<FailureReport>,
    /// The start times of sessions, if they have changed.
    pub starts: Option<Starts>,
}

/// The daemon's own state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pulse {
    pub pid: u32,
    /// Memory in use, in bytes; `None` if unknown.
    pub memory: Option<u64>,
    /// Open descriptors.
    pub descriptors: usize,
    /// The maximum number of descriptors; `None` if unlimited.
    pub descriptor_limit: Option<u64>,
}

/// A running request of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// A number, unique while the daemon runs.
    pub id: u64,
    pub kind: ActivityKind,
    /// The host as the client named it. A copy between two has both.
    pub host: String,
    /// The command, paths or address: one line of at most 512 characters.
    pub runs: String,
    /// The requester.
    pub asker: Asker,
    /// The time of the request, on the clock of [`Update::at`].
    pub since: Duration,
    /// The time it took to start; `None` before that.
    pub started: Option<Duration>,
    /// The progress of a copy.
    pub transfer: Option<TransferReport>,
    /// The number of times that it was resumed on a new connection.
    pub resumed: u32,
    /// The one for whom the program acts, if not the user: an assistant, or the submitter of a job. One line.
    pub on_behalf: String,
}

/// The kind of a client's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActivityKind {
    Shell,
    Command,
    /// A subsystem, such as sftp.
    Subsystem,
    /// Only an open connection with its forwardings (`-N`).
    Hold,
    /// A connection through the server (`-W`).
    Tunnel,
    /// A listener on the server, or one of its connections.
    Listener,
    /// Stock ssh in proxy mode, with channels of its own.
    Proxy,
    /// A copy of files.
    Copy,
    /// A measurement of the path to a host.
    Tune,
    /// A connection made ahead of time.
    Warm,
}

impl ActivityKind {
    /// Returns the word for display.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Shell => "shell",
            Self::Command => "command",
            Self::Subsystem => "subsystem",
            Self::Hold => "hold",
            Self::Tunnel => "tunnel",
            Self::Listener => "listener",
            Self::Proxy => "proxy",
            Self::Copy => "copy",
            Self::Tune => "tune",
            Self::Warm => "warm",
        }
    }
}

/// The program that asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asker {
    /// Its process id; `None` if unknown.
    pub pid: Option<u32>,
    /// Its name and that of the program that ran it, if known: `ssh`, `git`.
    pub programs: Vec<String>,
    /// True if it is stock ssh on a mux socket.
    pub stock_ssh: bool,
}

/// The progress of a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferReport {
    /// Bytes of files that have arrived.
    pub bytes: u64,
    /// Bytes of files found so far.
    pub total_bytes: u64,
    /// Names that are done.
    pub files: u64,
    /// Names that were found.
    pub total_files: u64,
    /// Names that failed.
    pub failed: u64,
    /// True if all names have been found, so that the totals are final.
    pub counted: bool,
    /// The name that was started last: one line of at most 512 characters.
    pub current: String,
}

/// A failed request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureReport {
    /// The time, in seconds since 1970.
    pub at: u64,
    pub activity: ActivityKind,
    /// The host as the client named it.
    pub host: String,
    /// The party to blame.
    pub kind: ErrorKind,
    /// The furthest state that the command may have reached.
    pub execution: Execution,
    /// A sentence for the user: one line of at most 512 characters.
    pub message: String,
}

/// The start times of sessions since the daemon began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Starts {
    /// On an existing connection.
    pub warm: Histogram,
    /// On a connection that was made first.
    pub cold: Histogram,
}

/// A count of durations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// The number of durations below 1, 2, 4 … ms, and not below the previous bound. The last one also counts longer
    /// ones.
    pub counts: [u64; Self::BUCKETS],
}

impl Histogram {
    /// The bounds go up to 131 s.
    const BUCKETS: usize = 18;

    /// Counts a duration.
    pub fn observe(&mut self, took: Duration) {
        let bits = u128::BITS - took.as_millis().leading_zeros();
        self.counts[(bits as usize).min(Self::BUCKETS - 1)] += 1;
    }

    /// Returns the exclusive upper bound of a bucket.
    pub fn upper_bound(bucket: usize) -> Duration {
        Duration::from_millis(1 << bucket)
    }

    /// Returns the number of durations.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_counted_below_its_bound_and_not_below_the_one_before() {
        for micros in [0, 999, 1_000, 1_999, 2_000, 65_000, 131_071_999] {
            let took = Duration::from_micros(micros);
            let mut histogram = Histogram::default();
            histogram.observe(took);
            let bucket = histogram.counts.iter().position(|count| *count == 1).unwrap();
            assert!(took < Histogram::upper_bound(bucket), "{took:?}");
            assert!(
                bucket == 0 || took >= Histogram::upper_bound(bucket - 1),
                "{took:?}"
            );
        }
        let mut histogram = Histogram::default();
        histogram.observe(Duration::MAX);
        assert_eq!(histogram.counts[Histogram::BUCKETS - 1], 1);
    }
}
