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

/// A process that is a node. Two processes with the same name differ in their incarnation.
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

/// A key of the bucket that the state machine uses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A node.
    Member(String),
    /// The ownership of a unit.
    Lease(Unit),
    /// The progress of a job.
    Gate(JobId),
    /// A request to end a job, from the owner of this public nkey.
    Cancel(JobId, String),
    /// The fate of a host of a job.
    Fate(JobId, u32),
    /// Present while nothing may be started.
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

/// A key that the state machine does not use.
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
    /// Under [`Key::Cancel`]. The caller has checked the signature.
    Cancel(Signed),
    /// Under [`Key::Fate`].
    Fate(Fate),
    /// Under [`Key::Frozen`]: the reason, as a sentence.
    Frozen(String),
}

/// A node, as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The process; `None` if it has left.
    pub holder: Option<Holder>,
    /// Its site label.
    pub site: Option<String>,
    /// True if it takes no more hosts and gives away those that it has.
    pub draining: bool,
    /// The number of hosts on which it runs something.
    pub running: u32,
    /// The reason why it starts nothing, if there is one.
    pub trouble: Option<String>,
    /// The version of its program.
    pub version: String,
}

/// The owner of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The owner; `None` if the unit was given back.
    pub holder: Option<Holder>,
}

/// The progress of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    /// The number of hosts that may start, counted from the first.
    pub released: u32,
    /// The reason why no more hosts are to start, if there is one.
    pub stop: Option<String>,
}

/// The fate of a host of a job. The key is created once and never deleted: the node that creates it decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    /// This process will execute it, or has executed it, at most once. No other process does.
    Claimed(Claim),
    /// It was executed.
    Ended {
        claim: Claim,
        /// The result.
        returned: Returned,
    },
    /// It was not executed, and never will be.
    NotStarted {
        /// The reason, as a sentence.
        why: String,
    },
    /// It was claimed, and its owner was lost: it may have been executed. Only the lost owner can replace this, if it
    /// comes back with the result.
    Unknown {
        /// The claim.
        claim: Claim,
    },
}

impl Fate {
    /// Returns true if nothing more will happen.
    pub fn is_settled(&self) -> bool {
        !matches!(self, Self::Claimed(_))
    }

    /// Returns the claim, if there is one.
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
    /// The number of the intent in the log on its disk.
    pub intent: u64,
    /// The revision of the lease under which the claim was made: the fencing token.
    pub fence: u64,
}

/// The result of an execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Returned {
    /// Its end.
    pub exit: Exit,
    /// The number of messages that hold its output.
    pub output: u64,
}

/// The end of an execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// The command's exit status.
    Status(u32),
    /// A signal ended it, named without "SIG".
    Signal(String),
    /// The execution failed.
    Failed {
        /// The kind of failure, which names the responsible party.
        kind: ErrorKind,
        /// The error.
        message: String,
        /// Says if the command may have run.
        execution: Execution,
    },
}

impl Exit {
    /// Returns the result for a host if NATS holds something that no node wrote.
    pub(crate) fn tampered_exit() -> Self {
        Self::Failed {
            kind: ErrorKind::Peer,
            message: "what NATS has of its result cannot be read: somebody has overwritten it".into(),
            execution: Execution::MayHaveStarted,
        }
    }

    /// Returns true if the command succeeded.
    pub fn is_success(&self) -> bool {
        *self == Self::Status(0)
    }
}

/// A key with its value, as the bucket reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub key: Key,
    /// The bucket's sequence number of this value. Later values of all keys have higher numbers.
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
