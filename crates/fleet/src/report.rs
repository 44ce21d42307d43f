//! The state of a fleet and its changes, as those are told who look at it, in parts of a bounded size.

use serde::Serialize;

/// The most nodes, jobs or streams in one [`FleetUpdate`].
pub const IN_A_PART: usize = 200;

/// The changes. All texts are printable lines, and bounded.
#[derive(Debug, Clone, Default, Serialize)]
pub struct FleetUpdate {
    /// Nodes that are new or have changed.
    pub nodes: Vec<NodeReport>,
    /// Zones of which a shard has moved, whole.
    pub zones: Vec<ZoneReport>,
    /// Moves that are new, or of which more shards are known now.
    pub moves: Vec<MoveReport>,
    /// Jobs that are new or have changed.
    pub jobs: Vec<JobReport>,
    /// Names of jobs that the fleet does not keep any more.
    pub jobs_gone: Vec<String>,
    /// Streams that are new or have changed.
    pub streams: Vec<StreamReport>,
    /// Names of streams that the fleet does not keep any more.
    pub streams_gone: Vec<String>,
    /// The fleet itself, in the last part of what is told of a moment.
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
    /// The seconds since the connection to NATS was lost, if it was: the reports are as old as that.
    pub cut_off: Option<u64>,
    /// The time, in seconds since 1970, by this machine's clock.
    pub now: u64,
    /// The bucket's highest sequence number that was seen.
    pub sequence: u64,
    /// Jobs that the fleet keeps and that are too old to be told of.
    pub older_jobs: u32,
    /// Streams that the fleet keeps and that are too old to be told of.
    pub older_streams: u32,
}

/// The state of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// It was not heard of for as long as a lease lasts.
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
    /// Returns the word that people read.
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

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NodeReport {
    /// Its name.
    pub name: String,
    /// Its site label.
    pub site: Option<String>,
    /// Its state.
    pub state: NodeState,
    /// The version of its program.
    pub version: String,
    /// Hosts on which it runs something.
    pub running: u32,
    /// Shards that are its.
    pub shards: u32,
    /// The time when it was last heard of, in seconds since 1970, by this machine's clock.
    pub heard: u64,
    /// The reason why it starts nothing, if there is one.
    pub trouble: Option<String>,
}

/// The shards of a site, or of all hosts that no site claims.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ZoneReport {
    /// The site.
    pub site: Option<String>,
    /// The names of the nodes that own shards of it.
    pub nodes: Vec<String>,
    /// For each shard the place of its owner in `nodes`.
    pub owners: Vec<Option<u16>>,
}

/// The reason why shards moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveReason {
    /// Nobody had them before.
    New,
    /// Their owner left, or drains.
    Left,
    /// Their owner was not heard of any more.
    Lost,
    /// A node has come or gone, and they were divided anew.
    Divided,
}

impl MoveReason {
    /// Returns the word that people read.
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
    /// Numbers them, in their order.
    pub id: u64,
    /// The time of the first move, in seconds since 1970, by this machine's clock.
    pub at: u64,
    /// The zone.
    pub site: Option<String>,
    /// The former owner.
    pub from: Option<String>,
    /// The present owner.
    pub to: String,
    /// The reason.
    pub reason: MoveReason,
    /// The number of shards.
    pub shards: u32,
}

/// A job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct JobReport {
    /// Its name.
    pub job: String,
    /// The public nkey of who submitted it.
    pub submitter: String,
    /// The time of its submission, in seconds since 1970, by the submitter's clock.
    pub at: u64,
    /// All of its hosts.
    pub hosts: u32,
    /// Those that are being executed.
    pub running: u32,
    /// Those that returned 0.
    pub succeeded: u32,
    /// Those that did not.
    pub failed: u32,
    /// Those that were not and will not be started.
    pub not_started: u32,
    /// Those that may have started.
    pub unknown: u32,
    /// Somebody has said that it is to end.
    pub cancelled: bool,
    /// Some of the hosts that did not succeed, and why, in words.
    pub failures: Vec<(String, String)>,
}

impl JobReport {
    /// Hosts whose fate is settled.
    pub fn settled_hosts(&self) -> u32 {
        let counts = [self.succeeded, self.failed, self.not_started, self.unknown];
        counts.into_iter().fold(0, u32::saturating_add)
    }

    /// Returns its state, in one word.
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

/// A stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StreamReport {
    /// Its name.
    pub stream: String,
    /// The public nkey of who submitted it.
    pub submitter: String,
    /// The time of its submission, in seconds since 1970, by the submitter's clock.
    pub at: u64,
    /// The subject of JetStream that it writes to, if it does.
    pub subject: Option<String>,
    /// All of its hosts.
    pub hosts: u32,
    /// Those on which the command runs.
    pub running: u32,
    /// Those on which it has ended for good.
    pub ended: u32,
    /// Of these, the ones on which it did not return 0.
    pub failed: u32,
    /// Those whose node does not run it because it may not.
    pub refused: u32,
    /// The number of times that nodes have started a command again.
    pub restarts: u64,
    /// Somebody has said that it is to end.
    pub cancelled: bool,
    /// The nodes' work for it, the busiest first.
    pub nodes: Vec<StreamNode>,
    /// Nodes that do something for it and are not told of.
    pub more_nodes: u32,
}

/// A node's work for a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StreamNode {
    /// Its name.
    pub name: String,
    /// Hosts on which it runs the command.
    pub running: u32,
    /// Hosts on which it does not, because it may not.
    pub refused: u32,
    /// The reason, for one of them.
    pub why: Option<String>,
}

impl StreamReport {
    /// Returns its state, in one word.
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
