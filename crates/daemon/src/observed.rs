//! Observation of the daemon and its clients: running work, recordings of terminals, metrics.

pub(crate) mod activities;
pub(crate) mod metrics;
pub(crate) mod process;
pub(crate) mod recording;
pub(crate) mod subscription;
