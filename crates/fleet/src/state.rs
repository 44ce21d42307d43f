//! A node of a fleet as a state machine: which hosts it owns, which it may start, what became of each.
//!
//! **What flows:** entries of the fleet's bucket in (`Node::handle_entry`), with the answers to what was written
//! (`Node::handle_written`), noted on disk (`Node::handle_intended`) and executed (`Node::handle_executed`); actions out
//! (`Node::poll_action`). Time is an argument everywhere: a monotonic clock that goes on while the machine sleeps.
//!
//! **What holds, whatever is lost, delayed or delivered twice**, as long as the bucket compares and sets truthfully:
//! a host of a job is executed at most once; its fate says `finished` only with what its execution returned, and `did not
//! start` only where nobody has started it or can; each host that has an owner gets a fate. A host of a [`stream`] is run by
//! one owner at a time, and again until the stream is cancelled or its command has ended.

pub mod entry;
pub mod job;
pub mod lease;
pub(crate) mod node;
pub mod shard;
pub mod stream;

pub use entry::{Claim, Entry, Exit, Fate, Gate, Holder, JobId, Key, Lease, Member, Returned, Value};
pub use job::{Limits, Plan, PlannedHost};
pub use lease::Terms;
pub(crate) use node::{Action, Intended, Intent, Node, NodeSettings, Observed, Token, Written};
pub use shard::{Unit, Zones};
pub use stream::{
    Restart, Resuming, Run, RunEnd, RunNumber, StreamAction, StreamEnd, StreamId, StreamPlan, StreamShare,
};

/// Time since some moment in the past, by a monotonic clock of this machine. Two machines' times have nothing in common.
pub type Time = std::time::Duration;

#[cfg(test)]
mod tests;
