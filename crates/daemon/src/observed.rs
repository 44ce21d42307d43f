//! What is noted of the daemon and of who does what through it, and who is told: what goes on, recordings of terminals,
//! numbers.

pub(crate) mod activities;
pub(crate) mod metrics;
pub(crate) mod process;
pub(crate) mod recording;
pub(crate) mod subscription;
