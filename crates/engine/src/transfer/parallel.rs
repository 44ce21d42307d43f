//! The number of sessions that a copy's files are worth.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::sessions::NEAR;
use crate::memory::tuned::MOST_STREAMS;

/// Sessions for a file of so many bytes as far away as this, where nothing else was found to be best.
pub(crate) fn usual_streams(rtt: Duration, size: u64, upload: bool) -> usize {
    streams_for(WANTED_RATE, rtt, size, upload)
}

/// The same for a copy that is to move so many bytes a second, of [`WANTED_RATE`] at most.
pub(super) fn streams_for(rate: f64, rtt: Duration, size: u64, upload: bool) -> usize {
    let wanted = if rtt < NEAR {
        // A connection is a core on the server, which carries what a limit leaves by itself.
        if size >= NEAR_STRIPED && rate >= WANTED_RATE {
            2
        } else {
            1
        }
    } else {
        // sshd takes 2 MiB a round trip on each channel; towards us our own windows grow to 15 MiB.
        let window: f64 = if upload { 2e6 } else { 8e6 };
        let product = rate * rtt.as_secs_f64();
        (product / window).ceil() as usize
    };
    wanted.clamp(1, MOST_STREAMS)
}

/// The rate, in bytes a second, that sessions are to be enough for: what one client core moves.
pub(super) const WANTED_RATE: f64 = 300e6;

/// On loopback a second connection costs 10 ms and its sshd's start; it pays for files that take longer.
const NEAR_STRIPED: u64 = 128 * 1024 * 1024;

/// A jump host that takes less in a round trip on each connection (dropbear: 24 KiB) is what bounds an upload.
pub(super) const NARROW: u64 = 256 * 1024;

/// Connections through such a one at most: fewer than the log-ins at once that sshd begins to refuse (MaxStartups).
pub(super) const MOST_NARROW: usize = 8;

/// Sessions at once for small files at most.
pub(super) const MOST_SMALL_SESSIONS: usize = 4;

/// How many small files there are, for sessions that are opened when there are enough.
#[derive(Debug)]
pub(super) struct Plenty {
    counted: AtomicU64,
    /// A permit for each session beside the first; closed when all have been counted.
    more: Semaphore,
}

impl Plenty {
    /// Small files that a further session is worth: opening it takes as long as some hundred of them.
    const FILES: u64 = 1000;

    pub(super) fn count(&self) {
        let counted = self.counted.fetch_add(1, Ordering::Relaxed) + 1;
        if counted.is_multiple_of(Self::FILES) {
            self.more.add_permits(1);
        }
    }

    /// No more files come.
    pub(super) fn end(&self) {
        self.more.close();
    }

    /// Waits until there are enough files for one more session; `false` when there are not going to be.
    pub(super) async fn suffices(&self) -> bool {
        self.more.acquire().await.map(SemaphorePermit::forget).is_ok()
    }
}

impl Default for Plenty {
    fn default() -> Self {
        Self {
            counted: AtomicU64::new(0),
            more: Semaphore::new(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limited_rate_takes_the_sessions_that_carry_it() {
        let far = Duration::from_millis(20);
        assert_eq!(usual_streams(far, u64::MAX, true), 3);
        assert_eq!(streams_for(10e6, far, u64::MAX, true), 1);
        assert_eq!(streams_for(200e6, far, u64::MAX, true), 2);
        let near = Duration::from_micros(100);
        assert_eq!(usual_streams(near, u64::MAX, false), 2);
        assert_eq!(streams_for(10e6, near, u64::MAX, false), 1);
    }
}
