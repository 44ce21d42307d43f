//! The daemon's shutdown, for everything that serves clients.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::TaskTracker;

/// The time that a client has to make its request once the daemon is ending.
const LAST_REQUEST: Duration = Duration::from_secs(1);

/// The request to end the daemon: `Some(at_once)` once there is one.
#[derive(Debug, Clone)]
pub(crate) struct Stop {
    asked: watch::Sender<Option<bool>>,
    /// Running copies.
    copies: TaskTracker,
}

impl Stop {
    pub(crate) fn new() -> Self {
        Self {
            asked: watch::Sender::new(None),
            copies: TaskTracker::new(),
        }
    }

    /// Ends the daemon; `at_once`: without waiting for sessions.
    pub(crate) fn ask(&self, at_once: bool) {
        self.asked.send_replace(Some(at_once));
    }

    /// Returns the request to end, if there is one.
    pub(crate) fn request(&self) -> Option<bool> {
        *self.asked.borrow()
    }

    /// Waits for the request to end.
    pub(crate) async fn wait(&self) {
        drop(self.asked.subscribe().wait_for(Option::is_some).await);
    }

    /// Runs a copy, unless the daemon must end at once: then the copy is dropped while its connections can still
    /// remove what it leaves.
    pub(crate) async fn copy<T>(&self, copying: impl Future<Output = T>) -> Option<T> {
        let _under_way = self.copies.token();
        let mut asked = self.asked.subscribe();
        tokio::select! {
            biased;
            copied = copying => Some(copied),
            _ = asked.wait_for(|asked| *asked == Some(true)) => None,
        }
    }

    /// Waits until every copy has ended or was dropped.
    pub(crate) async fn copies_ended(&self) {
        self.copies.close();
        self.copies.wait().await;
    }

    /// Waits for the request to end, and until a client that was just welcomed had time to make its request.
    pub(crate) async fn after_last_request(&self) {
        self.wait().await;
        tokio::time::sleep(LAST_REQUEST).await;
    }
}
