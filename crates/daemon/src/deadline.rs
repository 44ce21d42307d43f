//! [`Deadline`]: the time that a command is given.

use std::time::Duration;

use trunkline::Error;

/// When a session must be over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    at: tokio::time::Instant,
    limit: Duration,
}

impl Deadline {
    pub(crate) fn after(limit: Duration) -> Self {
        Self {
            at: tokio::time::Instant::now() + limit,
            limit,
        }
    }

    /// Waits until time is up, if it ever is.
    pub(crate) async fn wait(deadline: Option<Self>, host: &str) -> Error {
        let Some(Self { at, limit }) = deadline else {
            return std::future::pending().await;
        };
        tokio::time::sleep_until(at).await;
        Error::TimeUp {
            command: format!("the command on {host}"),
            after: limit,
        }
    }
}
