//! Observation of the daemon and of its clients: work under way, recordings of terminals,
//! numbers.

pub(crate) mod activities;
pub(crate) mod metrics;
pub(crate) mod process;
pub(crate) mod recording;
pub(crate) mod subscription;
