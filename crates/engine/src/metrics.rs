//! Counters of what the engine has done. Cheap enough to be always on; read by `trunkline ls`, and later by exporters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

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
#[derive(Debug)]
pub struct Metrics {
    /// When the counters were set to zero: what `received_at` counts from.
    epoch: Instant,
    /// Milliseconds from `epoch` to the last bytes that came in.
    received_at: AtomicU64,
    /// The round-trip time in nanoseconds; 0: not known.
    rtt: AtomicU64,
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

impl Default for Metrics {
    fn default() -> Self {
        Self {
            epoch: Instant::now(),
            received_at: AtomicU64::new(0),
            rtt: AtomicU64::new(0),
            bytes_sent: Counter::default(),
            bytes_received: Counter::default(),
            connections_started: Counter::default(),
            connections_authenticated: Counter::default(),
            channels_opened: Counter::default(),
        }
    }
}

impl Metrics {
    /// Bytes have come in.
    pub(crate) fn received(&self, bytes: u64, now: Instant) {
        self.bytes_received.add(bytes);
        let elapsed = now.saturating_duration_since(self.epoch).as_millis();
        self.received_at
            .store(u64::try_from(elapsed).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The round-trip time has been measured.
    pub(crate) fn set_rtt(&self, rtt: Option<Duration>) {
        let nanos = rtt.map_or(0, |rtt| u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX));
        self.rtt.store(nanos, Ordering::Relaxed);
    }

    /// The round-trip time of a connection, where an answer of its server has shown it.
    pub fn rtt(&self) -> Option<Duration> {
        match self.rtt.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }

    /// How long nothing has come in.
    pub fn since_received(&self) -> Duration {
        let at = Duration::from_millis(self.received_at.load(Ordering::Relaxed));
        self.epoch.elapsed().saturating_sub(at)
    }
}
