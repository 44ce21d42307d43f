//! A node of a fleet as a state machine: the hosts that it owns and may start, and their fates.
//!
//! **Inputs and outputs:** The inputs are entries of the fleet's bucket (`Node::handle_entry`) and the outcomes of
//! writes (`Node::handle_written`), of notes on disk (`Node::handle_intended`) and of executions
//! (`Node::handle_executed`). The outputs are actions (`Node::poll_action`). Time is an argument everywhere: a
//! monotonic clock that continues while the machine sleeps.
//!
//! **Guarantees, whatever is lost, delayed or delivered twice**, as long as the bucket's compare-and-set is correct: a
//! host of a job is executed at most once. Its fate is `finished` only with the result of its execution, and `did not
//! start` only if nobody has started it or can start it. Each host that has an owner gets a fate. A host of a
//! [`stream`] is run by one owner at a time, again and again until the stream is cancelled or its command has ended.

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

/// The time since some moment in the past, by a monotonic clock of this machine. The times of two machines cannot be
/// compared.
pub type Time = std::time::Duration;

#[cfg(test)]
mod tests;
