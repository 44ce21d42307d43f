//! The end of the daemon, as everything that serves somebody hears of it.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::TaskTracker;

/// The time that a client may take to make its request once the daemon is ending.
const LAST_REQUEST: Duration = Duration::from_secs(1);

/// Whether the daemon is to end: `Some(at_once)`.
#[derive(Debug, Clone)]
pub(crate) struct Stop {
    asked: watch::Sender<Option<bool>>,
    /// Copies under way.
    copies: TaskTracker,
}

impl Stop {
    /// Not yet.
    pub(crate) fn new() -> Self {
        Self {
            asked: watch::Sender::new(None),
            copies: TaskTracker::new(),
        }
    }

    /// The daemon is to end; `at_once`: without waiting for sessions.
    pub(crate) fn ask(&self, at_once: bool) {
        self.asked.send_replace(Some(at_once));
    }

    /// Whether it is to end, and so.
    pub(crate) fn requested(&self) -> Option<bool> {
        *self.asked.borrow()
    }

    /// Done when it is to end.
    pub(crate) async fn wait(&self) {
        drop(self.asked.subscribe().wait_for(Option::is_some).await);
    }

    /// Copies, unless the daemon is to end at once: then a copy is dropped, while its connections can still remove what it leaves.
    pub(crate) async fn copy<T>(&self, copying: impl Future<Output = T>) -> Option<T> {
        let _under_way = self.copies.token();
        let mut asked = self.asked.subscribe();
        tokio::select! {
            biased;
            copied = copying => Some(copied),
            _ = asked.wait_for(|asked| *asked == Some(true)) => None,
        }
    }

    /// Done when every copy has ended or was dropped.
    pub(crate) async fn copies_ended(&self) {
        self.copies.close();
        self.copies.wait().await;
    }

    /// Done when it is to end and a client that was just welcomed has had the time to say what it wants.
    pub(crate) async fn after_last_request(&self) {
        self.wait().await;
        tokio::time::sleep(LAST_REQUEST).await;
    }
}
