//! Chooses the number of sessions for a copy's files.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::sessions::NEAR;
use crate::memory::tuned::MOST_STREAMS;

/// Returns the number of sessions for a file of `size` bytes at this distance, if no other was measured as best.
pub(crate) fn usual_streams(rtt: Duration, size: u64, upload: bool) -> usize {
    streams_for(WANTED_RATE, rtt, size, upload)
}

/// Returns the number of sessions for a copy that is to move `rate` bytes a second, at most [`WANTED_RATE`].
pub(super) fn streams_for(rate: f64, rtt: Duration, size: u64, upload: bool) -> usize {
    let wanted = if rtt < NEAR {
        // A connection uses one core of the server. With a limit on the rate one core is enough.
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

/// The rate in bytes a second that the sessions should reach: that of one client core.
pub(super) const WANTED_RATE: f64 = 300e6;

/// The least size for a second connection on loopback, which costs 10 ms and the start of an sshd.
const NEAR_STRIPED: u64 = 128 * 1024 * 1024;

/// A jump host that accepts less than this in a round trip on each connection bounds an upload (dropbear: 24 KiB).
pub(super) const NARROW: u64 = 256 * 1024;

/// The most connections through such a jump host: fewer than the concurrent log-ins that sshd starts to refuse (MaxStartups).
pub(super) const MOST_NARROW: usize = 8;

/// The most sessions at once for small files.
pub(super) const MOST_SMALL_SESSIONS: usize = 4;

/// Counts small files, to open further sessions once there are enough.
#[derive(Debug)]
pub(super) struct Plenty {
    counted: AtomicU64,
    /// A permit for each session beside the first; closed when all files have been counted.
    more: Semaphore,
}

impl Plenty {
    /// Small files for each further session: opening one takes as long as some hundred files.
    const FILES: u64 = 1000;

    pub(super) fn count(&self) {
        let counted = self.counted.fetch_add(1, Ordering::Relaxed) + 1;
        if counted.is_multiple_of(Self::FILES) {
            self.more.add_permits(1);
        }
    }

    /// Notes that no more files come.
    pub(super) fn end(&self) {
        self.more.close();
    }

    /// Waits until there are enough files for one more session; returns `false` if there never will be.
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
