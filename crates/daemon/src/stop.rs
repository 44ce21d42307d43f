//! The end of the daemon, as everything that serves somebody hears of it.

use std::time::Duration;

use tokio::sync::watch;

/// The time that a client may take to make its request once the daemon is ending.
const LAST_REQUEST: Duration = Duration::from_secs(1);

/// Whether the daemon is to end: `Some(at_once)`.
#[derive(Debug, Clone)]
pub(crate) struct Stop(watch::Sender<Option<bool>>);

impl Stop {
    /// Not yet.
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// The daemon is to end; `at_once`: without waiting for sessions.
    pub(crate) fn ask(&self, at_once: bool) {
        self.0.send_replace(Some(at_once));
    }

    /// Whether it is to end, and so.
    pub(crate) fn requested(&self) -> Option<bool> {
        *self.0.borrow()
    }

    /// Done when it is to end.
    pub(crate) async fn wait(&self) {
        drop(self.0.subscribe().wait_for(Option::is_some).await);
    }

    /// Done when it is to end and a client that was just welcomed has had the time to say what it wants.
    pub(crate) async fn after_last_request(&self) {
        self.wait().await;
        tokio::time::sleep(LAST_REQUEST).await;
    }
}
