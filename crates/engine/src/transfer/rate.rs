//! [`Rate`] limits the bytes a second of copies.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A limit on the rate of one copy, or of several together.
pub struct Rate {
    pub(super) limit: Option<u64>,
    /// The moment when all bytes taken so far are due.
    free: Mutex<Instant>,
}

impl Rate {
    /// Makes a limit in bytes a second; `None` is unlimited.
    pub fn new(limit: Option<u64>) -> Self {
        Self {
            limit: limit.filter(|limit| *limit > 0),
            free: Mutex::new(Instant::now()),
        }
    }

    /// Waits until `bytes` more keep within the limit.
    pub(super) async fn take(&self, bytes: u64) {
        let Some(limit) = self.limit else { return };
        let wait = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            *free = (*free).max(now) + Duration::from_secs_f64(bytes as f64 / limit as f64);
            free.saturating_duration_since(now)
        };
        tokio::time::sleep(wait).await;
    }
}
