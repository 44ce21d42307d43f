//! [`Rate`]: holds copies to so many bytes a second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Holds copies to a rate: one, or several together.
pub struct Rate {
    pub(super) limit: Option<u64>,
    /// When what was taken so far is through.
    free: Mutex<Instant>,
}

impl Rate {
    /// So many bytes a second at most; `None` for as many as there may be.
    pub fn new(limit: Option<u64>) -> Self {
        Self {
            limit: limit.filter(|limit| *limit > 0),
            free: Mutex::new(Instant::now()),
        }
    }

    /// Waits until so many bytes more keep to the rate.
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
