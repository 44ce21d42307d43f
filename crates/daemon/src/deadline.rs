//! [`Deadline`]: the time limit of a command.

use std::time::Duration;

use trunkline::Error;

/// The time at which a session must be over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    /// `None` if it is beyond the clock's range.
    at: Option<tokio::time::Instant>,
    limit: Duration,
}

impl Deadline {
    pub(crate) fn from_limit(limit: Duration) -> Self {
        Self {
            at: tokio::time::Instant::now().checked_add(limit),
            limit,
        }
    }

    /// Waits until time is up, which may be never.
    pub(crate) async fn wait(deadline: Option<Self>, host: &str) -> Error {
        let Some(Self { at: Some(at), limit }) = deadline else {
            return std::future::pending().await;
        };
        tokio::time::sleep_until(at).await;
        Error::TimeUp {
            command: format!("the command on {host}"),
            after: limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_time_that_no_clock_reaches_is_never_up() {
        let deadline = Deadline::from_limit(Duration::MAX);
        let waiting = Deadline::wait(Some(deadline), "h");
        let waited = tokio::time::timeout(Duration::from_millis(10), waiting).await;
        assert!(waited.is_err());
    }
}
