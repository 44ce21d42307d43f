//! The state of a fleet and its changes, as reported to watchers, in parts of a bounded size.

use serde::Serialize;

/// The maximum number of nodes, jobs or streams in one [`FleetUpdate`].
pub const IN_A_PART: usize = 200;

/// The changes. All texts are printable lines, and bounded.
#[derive(Debug, Clone, Default, Serialize)]
pub struct FleetUpdate {
    /// Nodes that are new or have changed.
    pub nodes: Vec<NodeReport>,
    /// Zones with a shard that has moved. Each is complete.
    pub zones: Vec<ZoneReport>,
    /// Moves that are new, or that include more shards now.
    pub moves: Vec<MoveReport>,
    /// Jobs that are new or have changed.
    pub jobs: Vec<JobReport>,
    /// Names of jobs that the fleet no longer keeps.
    pub jobs_gone: Vec<String>,
    /// Streams that are new or have changed.
    pub streams: Vec<StreamReport>,
    /// Names of streams that the fleet no longer keeps.
    pub streams_gone: Vec<String>,
    /// The fleet itself, in the last part of each report.
    pub fleet: Option<FleetReport>,
}

/// The fleet itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FleetReport {
    /// The prefix of its names in NATS.
    pub name: String,
    /// The servers, as fleet.toml names them.
    pub servers: String,
    /// The reason why nothing is started, if there is one.
    pub frozen: Option<String>,
    /// The number of seconds since the connection to NATS was lost, if it is lost. The reports are that old.
    pub cut_off: Option<u64>,
    /// The time, in seconds since 1970, by this machine's clock.
    pub now: u64,
    /// The highest sequence number of the bucket seen.
    pub sequence: u64,
    /// The number of jobs that the fleet keeps but that are too old to be reported.
    pub older_jobs: u32,
    /// The number of streams that the fleet keeps but that are too old to be reported.
    pub older_streams: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// It was not heard from for as long as a lease lasts.
    Lost,
    /// It starts nothing.
    InTrouble,
    /// It takes no more hosts.
    Draining,
    /// It works.
    #[default]
    Up,
    /// It has given everything back and ended.
    Left,
}

impl NodeState {
    /// Returns the word for display.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::InTrouble => "in trouble",
            Self::Draining => "draining",
            Self::Up => "up",
            Self::Left => "has left",
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NodeReport {
    pub name: String,
    /// Its site label.
    pub site: Option<String>,
    pub state: NodeState,
    /// The version of its program.
    pub version: String,
    /// The number of hosts on which it runs something.
    pub running: u32,
    /// The number of shards that it owns.
    pub shards: u32,
    /// The time when it was last heard from, in seconds since 1970, by this machine's clock.
    pub heard: u64,
    /// The reason why it starts nothing, if there is one.
    pub trouble: Option<String>,
}

/// The shards of a site, or of all hosts that no site claims.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ZoneReport {
    pub site: Option<String>,
    /// The names of the nodes that own shards of it.
    pub nodes: Vec<String>,
    /// The index in `nodes` of each shard's owner.
    pub owners: Vec<Option<u16>>,
}

/// The reason why shards moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveReason {
    /// Nobody owned them before.
    New,
    /// Their owner left, or is draining.
    Left,
    /// Their owner was no longer heard from.
    Lost,
    /// A node came or left, and the shards were divided anew.
    Divided,
}

impl MoveReason {
    /// Returns the word for display.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Left => "left",
            Self::Lost => "lost",
            Self::Divided => "divided anew",
        }
    }
}

/// Shards of one zone that moved together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MoveReport {
    /// The number of the move, in order.
    pub id: u64,
    /// The time of the first move, in seconds since 1970, by this machine's clock.
    pub at: u64,
    /// The zone.
    pub site: Option<String>,
    /// The former owner.
    pub from: Option<String>,
    /// The current owner.
    pub to: String,
    pub reason: MoveReason,
    /// The number of shards.
    pub shards: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct JobReport {
    /// Its name.
    pub job: String,
    /// The public nkey of the submitter.
    pub submitter: String,
    /// The time of its submission, in seconds since 1970, by the submitter's clock.
    pub at: u64,
    /// The number of its hosts.
    pub hosts: u32,
    /// The number of hosts where it is being executed.
    pub running: u32,
    /// The number of hosts that returned 0.
    pub succeeded: u32,
    /// The number of hosts that did not.
    pub failed: u32,
    /// The number of hosts that were not started and will not be.
    pub not_started: u32,
    /// The number of hosts that may have started.
    pub unknown: u32,
    /// True if somebody has requested its end.
    pub cancelled: bool,
    /// Some of the hosts that did not succeed, each with the reason for display.
    pub failures: Vec<(String, String)>,
}

impl JobReport {
    /// Returns the number of hosts with a settled fate.
    pub fn settled_hosts(&self) -> u32 {
        let counts = [self.succeeded, self.failed, self.not_started, self.unknown];
        counts.into_iter().fold(0, u32::saturating_add)
    }

    /// Returns the job's state in one word.
    pub fn state(&self) -> &'static str {
        match () {
            () if self.settled_hosts() >= self.hosts => "done",
            () if self.cancelled => "cancelled",
            () if self.running > 0 => "running",
            () if self.settled_hosts() > 0 => "waiting",
            () => "new",
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StreamReport {
    /// Its name.
    pub stream: String,
    /// The public nkey of the submitter.
    pub submitter: String,
    /// The time of its submission, in seconds since 1970, by the submitter's clock.
    pub at: u64,
    /// The subject of JetStream that it writes to, if any.
    pub subject: Option<String>,
    /// The number of its hosts.
    pub hosts: u32,
    /// The number of hosts where the command runs.
    pub running: u32,
    /// The number of hosts where it has ended for good.
    pub ended: u32,
    /// The number of ended hosts where it did not return 0.
    pub failed: u32,
    /// The number of hosts where their node does not run it because that is not allowed.
    pub refused: u32,
    /// The number of times that nodes have started a command again.
    pub restarts: u64,
    /// True if somebody has requested its end.
    pub cancelled: bool,
    /// The nodes' work for it, with the busiest node first.
    pub nodes: Vec<StreamNode>,
    /// The number of nodes that work for it but are not listed.
    pub more_nodes: u32,
}

/// A node's work for a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StreamNode {
    pub name: String,
    /// The number of hosts where it runs the command.
    pub running: u32,
    /// The number of hosts where it does not run it because that is not allowed.
    pub refused: u32,
    /// The reason, for one of those hosts.
    pub why: Option<String>,
}

impl StreamReport {
    /// Returns the stream's state in one word.
    pub fn state(&self) -> &'static str {
        match () {
            () if self.ended >= self.hosts => "ended",
            () if self.cancelled => "cancelled",
            () if self.running > 0 => "running",
            () if self.refused > 0 && self.ended + self.refused >= self.hosts => "refused",
            () => "waiting",
        }
    }
}
