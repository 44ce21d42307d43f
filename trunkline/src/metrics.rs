//! Counters of what the engine has done. Cheap enough to be always on; read by `trunkline ls`, and later by exporters.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The present value.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of an engine, or of one connection.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Bytes that left through sockets.
    pub bytes_sent: Counter,
    /// Bytes that came in through sockets.
    pub bytes_received: Counter,
    /// Connections that were begun.
    pub connections_started: Counter,
    /// Connections that were authenticated.
    pub connections_authenticated: Counter,
    /// Channels that were asked for.
    pub channels_opened: Counter,
}
