//! Many control machines ("nodes") that share hosts and jobs over NATS JetStream, so that nothing runs twice.
//!
//! [`state`] makes all decisions and does no I/O: it receives the entries of the fleet's bucket, the answers to its
//! writes, and the time, and returns the entries to write, the intents to note on disk and the commands to execute.
//! [`running`] does that work for it. [`submitting`] is for people with jobs, [`watching`] for those who watch the
//! fleet, and [`metrics`] are a node's numbers. docs/adr/0017-a-fleet-on-jetstream.md gives the reasons for this
//! design.

pub mod allow;
pub mod bucket;
pub mod input;
pub mod intents;
pub mod metrics;
pub mod order;
pub mod report;
pub mod running;
pub mod signed;
pub mod state;
pub mod streaming;
pub mod submitting;
mod waiting;
pub mod watching;
