//! The arithmetic of a path: the time when bytes that arrive now leave at the other end.

use std::time::{Duration, Instant};

/// The maximum size of one read, and so of the largest chunk.
pub(super) const CHUNK: usize = 256 * 1024;

/// A narrow link queues data for this much time before it stops reading, like a router without bufferbloat.
const BOTTLENECK_QUEUE: Duration = Duration::from_millis(20);

/// The resolution with which a narrow link paces data: a chunk takes at most this much of its time.
const PACING: Duration = Duration::from_millis(1);

/// The TCP data in one Ethernet frame: a narrow link's smallest chunk.
const SEGMENT: usize = 1448;

/// One direction of the path.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Link {
    pub(super) delay: Duration,
    pub(super) rate: Option<u64>,
    pub(super) stalled: bool,
}

/// The state of the link and the data on it: the arithmetic of one direction.
pub(super) struct Line {
    free_at: Instant,
    last_due: Instant,
}

impl Line {
    /// Makes a line that carries nothing before `opened`.
    pub(super) fn from(opened: Instant) -> Line {
        Line {
            free_at: opened,
            last_due: opened,
        }
    }

    /// Returns the time when the link will take more data: when its queue is short enough. `None` means long ago.
    pub(super) fn takes_more_at(&self) -> Option<Instant> {
        self.free_at.checked_sub(BOTTLENECK_QUEUE)
    }

    /// Returns the time when a chunk that arrived at `arrived` leaves at the other end.
    pub(super) fn due(&mut self, arrived: Instant, length: usize, link: Link) -> Instant {
        let carried = match link.rate {
            // In nanoseconds, which do not overflow a u64 for chunks up to 2^64 / 10^9 bytes, 16 GiB.
            Some(rate) => Duration::from_nanos(length as u64 * 1_000_000_000 / rate),
            None => Duration::ZERO,
        };
        self.free_at = arrived.max(self.free_at) + carried;
        // When a delay was lowered, later bytes must not overtake earlier ones.
        self.last_due = self.last_due.max(self.free_at + link.delay);
        self.last_due
    }
}

impl Link {
    pub(super) fn chunk_size(self) -> usize {
        match self.rate {
            // At very low rates a whole segment would take longer than the intended length of the queue.
            Some(rate) => {
                let at_least = usize::try_from(rate / 50).unwrap_or(SEGMENT).clamp(1, SEGMENT);
                let paced = u128::from(rate) * PACING.as_nanos() / 1_000_000_000;
                usize::try_from(paced).unwrap_or(CHUNK).clamp(at_least, CHUNK)
            }
            None => CHUNK,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prop_assert, proptest};

    use super::*;

    proptest! {
        #[test]
        fn bytes_keep_their_order_and_never_arrive_early(
            chunks in proptest::collection::vec(
                (0..5_000_u64, 0..CHUNK, 0..200_000_u64, proptest::option::of(1..u64::MAX)), 1..50)
        ) {
            let mut arrived = Instant::now();
            let mut line = Line::from(arrived);
            let mut last_due = arrived;
            for (gap, length, delay, rate) in chunks {
                arrived += Duration::from_micros(gap);
                let link = Link { delay: Duration::from_micros(delay), rate, stalled: false };
                let due = line.due(arrived, length, link);
                prop_assert!(due >= arrived + link.delay);
                prop_assert!(due >= last_due);
                last_due = due;
            }
        }

        #[test]
        fn a_chunk_is_never_empty_and_never_above_the_limit(rate in proptest::option::of(1..u64::MAX)) {
            let size = Link { rate, ..Link::default() }.chunk_size();
            prop_assert!((1..=CHUNK).contains(&size));
        }
    }
}
