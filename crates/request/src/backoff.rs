//! Pauses between attempts.

use std::time::Duration;

/// The delay before a failed action is tried again: doubled each time, up to a bound.
///
/// ```
/// use std::time::Duration;
///
/// use trunkline_request::Backoff;
///
/// let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
/// let pauses: Vec<u64> = (0..5).map(|failures| backoff.pause_after(failures).as_secs()).collect();
/// assert_eq!(pauses, [0, 1, 2, 4, 5]);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// Returns a backoff with `first` after the first failure, and at most `longest`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// Returns the pause after this many consecutive failures; zero after none.
    #[must_use]
    pub fn pause_after(self, failures: u32) -> Duration {
        let Some(doubled) = failures.checked_sub(1) else {
            return Duration::ZERO;
        };
        let pause = 2u32
            .checked_pow(doubled)
            .and_then(|times| self.first.checked_mul(times));
        pause.map_or(self.longest, |pause| pause.min(self.longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_without_end_wait_for_the_longest_time() {
        let backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
        assert_eq!(backoff.pause_after(u32::MAX), Duration::from_secs(30));
        assert_eq!(backoff.pause_after(7), Duration::from_secs(30));
        assert_eq!(backoff.pause_after(6), Duration::from_secs(16));
    }
}
