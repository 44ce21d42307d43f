//! What is noted of who does what through the daemon: who asks, what goes on, the audit trail, recordings of terminals.

pub(crate) mod activities;
pub(crate) mod asker;
pub(crate) mod audit;
pub(crate) mod recording;
