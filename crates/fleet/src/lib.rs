//! Many control machines ("nodes") that share hosts and jobs over NATS JetStream, so that nothing runs twice.
//!
//! [`state`] decides everything and does no I/O: it is fed with what the fleet's bucket says, with the answers to what it
//! wrote there, and with the time, and says what to write, to note on disk and to execute. [`running`] does that for it,
//! [`submitting`] is for those who have jobs, [`watching`] for those who look at the fleet; [`metrics`] are a node's numbers.
//! docs/adr/0017-a-fleet-on-jetstream.md says why it is built like this.

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
