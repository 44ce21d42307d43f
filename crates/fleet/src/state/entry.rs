//! The entries of the fleet's bucket: keys and values.
//!
//! | key | value | who writes it |
//! |---|---|---|
//! | `member.NODE` | [`Member`] | the node, every five seconds |
//! | `lease.SITE.SHARD` | [`Lease`] | its owner, every five seconds |
//! | `job.ID.gate` | [`Gate`] | the owner of the job's own shard |
//! | `job.ID.cancel.KEY` | [`Signed`] | whose public nkey this is; nodes check the signature |
//! | `job.ID.fate.N` | [`Fate`] of the job's Nth host, from 0 | the host's owner |
//! | `frozen` | why nothing is started any more | the node that noticed |

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use trunkline_request::failure::{ErrorKind, Execution};

use super::shard::Unit;
use crate::signed::Signed;

/// A process that is a node: two that have one name differ in their incarnation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Holder {
    /// The node's name: letters, digits, `-` and `_`.
    pub node: String,
    /// A random number of the process.
    pub incarnation: u64,
}

/// The name of a job: lower-case letters and digits, made from its order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId(pub String);

impl From<String> for JobId {
    fn from(name: String) -> Self {
        Self(name)
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A key of the bucket that the state machine knows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A node.
    Member(String),
    /// The ownership of a unit.
    Lease(Unit),
    /// The progress of a job.
    Gate(JobId),
    /// That a job is to end, says the one who has this public nkey.
    Cancel(JobId, String),
    /// A host of a job.
    Fate(JobId, u32),
    /// That nothing is to be started.
    Frozen,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Member(node) => write!(f, "member.{node}"),
            Self::Lease(unit) => write!(f, "lease.{unit}"),
            Self::Gate(job) => write!(f, "job.{job}.gate"),
            Self::Cancel(job, who) => write!(f, "job.{job}.cancel.{who}"),
            Self::Fate(job, host) => write!(f, "job.{job}.fate.{host}"),
            Self::Frozen => f.write_str("frozen"),
        }
    }
}

/// A key that the state machine does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a key of the fleet's state")]
pub struct NotAKey;

impl FromStr for Key {
    type Err = NotAKey;

    fn from_str(text: &str) -> Result<Self, NotAKey> {
        let (kind, rest) = text.split_once('.').unwrap_or((text, ""));
        match kind {
            "frozen" if rest.is_empty() => return Ok(Self::Frozen),
            "member" if !rest.is_empty() => return Ok(Self::Member(rest.to_owned())),
            "lease" => return rest.parse().map(Self::Lease).map_err(|_| NotAKey),
            "job" => {}
            _ => return Err(NotAKey),
        }
        let (job, what) = rest.split_once('.').ok_or(NotAKey)?;
        let job = JobId(job.to_owned());
        match what.split_once('.') {
            None if what == "gate" => Ok(Self::Gate(job)),
            Some(("cancel", who)) => Ok(Self::Cancel(job, who.to_owned())),
            Some(("fate", host)) => Ok(Self::Fate(job, host.parse().map_err(|_| NotAKey)?)),
            _ => Err(NotAKey),
        }
    }
}

/// A value of the bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Value {
    /// Under [`Key::Member`].
    Member(Member),
    /// Under [`Key::Lease`].
    Lease(Lease),
    /// Under [`Key::Gate`].
    Gate(Gate),
    /// Under [`Key::Cancel`]. Whoever feeds the state machine has checked who says so.
    Cancel(Signed),
    /// Under [`Key::Fate`].
    Fate(Fate),
    /// Under [`Key::Frozen`]: why, as a sentence.
    Frozen(String),
}

/// A node, as it says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The process; `None` where it has left.
    pub holder: Option<Holder>,
    /// Its site label.
    pub site: Option<String>,
    /// It takes no more hosts, and gives away those that it has.
    pub draining: bool,
    /// Hosts on which it runs something.
    pub running: u32,
    /// The reason why it starts nothing, if there is one.
    pub trouble: Option<String>,
    /// The version of its program.
    pub version: String,
}

/// The owner of a unit; nobody if it was given back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The owner.
    pub holder: Option<Holder>,
}

/// The progress of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    /// The first so many hosts may start.
    pub released: u32,
    /// The reason why no more hosts are to start, if there is one.
    pub stop: Option<String>,
}

/// The fate of a host of a job. The key is created once and never deleted: whoever creates it decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    /// Somebody will execute it, or has: only this process, and at most once.
    Claimed(Claim),
    /// It was executed.
    Ended {
        /// The claim.
        claim: Claim,
        /// The result.
        returned: Returned,
    },
    /// It was not executed, and never will be.
    NotStarted {
        /// The reason, as a sentence.
        why: String,
    },
    /// It was claimed, and its owner has been lost since: it may have been executed. Only the lost owner, should it return
    /// with the result, replaces this.
    Unknown {
        /// The claim.
        claim: Claim,
    },
}

impl Fate {
    /// Returns whether nothing more is going to happen.
    pub fn is_settled(&self) -> bool {
        !matches!(self, Self::Claimed(_))
    }

    /// The claim, where there is one.
    pub fn claim(&self) -> Option<&Claim> {
        match self {
            Self::Claimed(claim) | Self::Ended { claim, .. } | Self::Unknown { claim } => Some(claim),
            Self::NotStarted { .. } => None,
        }
    }
}

/// The node that executes a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The process.
    pub holder: Holder,
    /// The number of the intent that its disk has.
    pub intent: u64,
    /// The revision of the lease under which it was made: the fencing token.
    pub fence: u64,
}

/// The result of an execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Returned {
    /// Its end.
    pub exit: Exit,
    /// In how many messages its output is.
    pub output: u64,
}

/// The end of an execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// The command's exit status.
    Status(u32),
    /// It was ended by a signal, named without "SIG".
    Signal(String),
    /// It did not work.
    Failed {
        /// The party to blame.
        kind: ErrorKind,
        /// The error.
        message: String,
        /// Whether the command may have run.
        execution: Execution,
    },
}

impl Exit {
    /// That of a host of which NATS has what no node has written.
    pub(crate) fn tampered_exit() -> Self {
        Self::Failed {
            kind: ErrorKind::Peer,
            message: "what NATS has of its result cannot be read: somebody has overwritten it".into(),
            execution: Execution::MayHaveStarted,
        }
    }

    /// Returns whether all went well.
    pub fn is_success(&self) -> bool {
        *self == Self::Status(0)
    }
}

/// A key with what stands there, as the bucket tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// The bucket's sequence number of this value. Later ones are higher, over all keys.
    pub revision: u64,
    /// The value; `None` where the key was deleted.
    pub value: Option<Value>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written() {
        let unit = Unit {
            site: Some("eu".into()),
            shard: 7,
        };
        let job = JobId("abc".into());
        for key in [
            Key::Member("n1".into()),
            Key::Lease(unit),
            Key::Gate(job.clone()),
            Key::Cancel(job.clone(), "UA".into()),
            Key::Fate(job, 12),
            Key::Frozen,
        ] {
            assert_eq!(key.to_string().parse(), Ok(key));
        }
        for other in [
            "",
            "job.a",
            "job.a.spec",
            "job.a.cancel",
            "job.a.fate.x",
            "lease.eu",
            "frozen.x",
            "else",
        ] {
            assert_eq!(other.parse::<Key>(), Err(NotAKey), "{other}");
        }
    }
}
