//! A daemon's reports to those who watch it ([`Request::Subscribe`](super::Request::Subscribe)): first everything, then
//! the changes.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use trunkline_request::failure::{ErrorKind, Execution};

use super::HostReport;

/// The differences from the previous update. The first moment tells everything, in as many updates as that takes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// The time since the daemon began to serve. Of the updates of one moment, all have the same.
    pub at: Duration,
    /// The daemon itself; in the last update of a moment.
    pub pulse: Option<Pulse>,
    /// New and changed hosts. A shorter time until a connection is closed does not count as a change.
    pub hosts: Vec<HostReport>,
    /// Hosts that have nothing any more, by [`HostReport::sharing`].
    pub hosts_gone: Vec<String>,
    /// Activities that have begun or changed.
    pub activities: Vec<Activity>,
    /// Activities that have ended, by [`Activity::id`].
    pub activities_gone: Vec<u64>,
    /// The failures, oldest first. The first moment has the last 100.
    pub failures: Vec<FailureReport>,
    /// The times that sessions took to start, if they have changed.
    pub starts: Option<Starts>,
}

/// The daemon itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pulse {
    pub pid: u32,
    /// Bytes of memory that it has in use; `None` where the system does not tell.
    pub memory: Option<u64>,
    /// Descriptors that it has open.
    pub descriptors: usize,
    /// The maximum number of descriptors; `None` for any number.
    pub descriptor_limit: Option<u64>,
}

/// Something that a client has asked the daemon for, and that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// A number that no other has while the daemon runs.
    pub id: u64,
    pub kind: ActivityKind,
    /// The host, as the client named it. A copy between two has both.
    pub host: String,
    /// The command, the paths, the address: one line of at most 512 characters.
    pub runs: String,
    /// The requester.
    pub asker: Asker,
    /// The time of the request, on the clock of [`Update::at`].
    pub since: Duration,
    /// The time that it took to start; `None` until then.
    pub started: Option<Duration>,
    /// The progress of a copy.
    pub transfer: Option<TransferReport>,
    /// The times that it was carried over to a new connection.
    pub resumed: u32,
    /// The one that the program acts for, if that is not the user: an assistant, or who gave a job to this machine. One line.
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
    /// Nothing but a connection that is held open, with its forwardings (`-N`).
    Hold,
    /// A connection through the server (`-W`).
    Tunnel,
    /// The server listens, or a connection from there is carried.
    Listener,
    /// Stock ssh in proxy mode, with channels of its own.
    Proxy,
    /// Files are copied.
    Copy,
    /// The path to a host is measured.
    Tune,
    /// A connection is made ahead of time.
    Warm,
}

impl ActivityKind {
    /// The word that people see.
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
    /// Its process; `None` where the system does not tell.
    pub pid: Option<u32>,
    /// Its name, and after that the name of the program that ran it, where they can be told: `ssh`, `git`.
    pub programs: Vec<String>,
    /// Whether it is stock ssh, or what runs it, on a mux socket.
    pub stock_ssh: bool,
}

/// The progress of a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferReport {
    /// Bytes of files that have arrived.
    pub bytes: u64,
    /// Bytes that are known to have to.
    pub total_bytes: u64,
    /// Names that are done.
    pub files: u64,
    /// Names that were found.
    pub total_files: u64,
    /// Names that failed.
    pub failed: u64,
    /// Whether all names have been found, so that the totals are final.
    pub counted: bool,
    /// The name that was begun last: one line of at most 512 characters.
    pub current: String,
}

/// Something that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureReport {
    /// The time, in seconds since 1970.
    pub at: u64,
    pub activity: ActivityKind,
    /// The host, as the client named it.
    pub host: String,
    /// The party to blame.
    pub kind: ErrorKind,
    /// Whether the command may have run.
    pub execution: Execution,
    /// A sentence for the user: one line of at most 512 characters.
    pub message: String,
}

/// The times that sessions took to start, since the daemon began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Starts {
    /// On a connection that was there.
    pub warm: Histogram,
    /// With a connection that was made first.
    pub cold: Histogram,
}

/// A count of durations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// The number of times that it took less than 1, 2, 4 … ms, and not less than the bound before: the last one also
    /// counts longer times.
    pub counts: [u64; Self::BUCKETS],
}

impl Histogram {
    /// The bounds go up to 131 s.
    const BUCKETS: usize = 18;

    /// Counts one that took so long.
    pub fn observe(&mut self, took: Duration) {
        let bits = u128::BITS - took.as_millis().leading_zeros();
        self.counts[(bits as usize).min(Self::BUCKETS - 1)] += 1;
    }

    /// The upper bound of a bucket: what it counts took less.
    pub fn upper_bound(bucket: usize) -> Duration {
        Duration::from_millis(1 << bucket)
    }

    /// All that were counted.
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
