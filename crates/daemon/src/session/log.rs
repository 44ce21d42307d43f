//! The log of one session, for a client that stands for ssh(1) (`-v`): what is being done for it, as it is done.
//!
//! Lines wait until it is known how much the client wants to hear, which its ssh_config may say. There are no more than the
//! making of a connection and the session itself write; they are never more than what the user's own files and answers cause.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::{mpsc, watch};
use trunkline::interaction::{LogLevel, LogLine};

use crate::protocol::Reply;

/// Lines that may wait: more are dropped.
const MOST_WAITING: usize = 1024;

/// Where lines are written.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    lines: mpsc::Sender<LogLine>,
    level: Arc<watch::Sender<Option<LogLevel>>>,
}

/// What was written.
#[derive(Debug)]
pub(crate) struct Lines {
    lines: mpsc::Receiver<LogLine>,
    level: watch::Receiver<Option<LogLevel>>,
}

impl Log {
    pub(crate) fn new() -> (Self, Lines) {
        let (lines, written) = mpsc::channel(MOST_WAITING);
        let (level, known) = watch::channel(None);
        let log = Self {
            lines,
            level: Arc::new(level),
        };
        let lines = Lines {
            lines: written,
            level: known,
        };
        (log, lines)
    }

    /// From now on it is known how much the client wants to hear.
    pub(crate) fn begin(&self, level: LogLevel) {
        self.level.send_replace(Some(level));
    }

    /// Whether the client wants to hear lines of this level; not before [`Self::begin`].
    pub(crate) fn wants(&self, level: LogLevel) -> bool {
        self.level.borrow().is_some_and(|wanted| wanted >= level)
    }

    /// Writes a line of now.
    pub(crate) fn say(&self, level: LogLevel, text: impl Into<String>) {
        self.write(LogLine {
            at: SystemTime::now(),
            level,
            text: text.into(),
        });
    }

    /// Writes a line.
    pub(crate) fn write(&self, line: LogLine) {
        let unwanted = self.level.borrow().is_some_and(|wanted| wanted < line.level);
        if !unwanted {
            let _ = self.lines.try_send(line);
        }
    }
}

impl Lines {
    /// Sends lines to the client as they are written.
    pub(crate) async fn pass_on(&mut self, replies: &mpsc::Sender<Reply>) -> Infallible {
        let level = self.level.wait_for(Option::is_some).await.map(|level| *level);
        let Ok(level) = level else {
            return std::future::pending().await;
        };
        while let Some(line) = self.lines.recv().await {
            if Some(line.level) <= level {
                let _ = replies.send(Reply::Log(line)).await;
            }
        }
        std::future::pending().await
    }

    /// Sends the lines that were written and not sent.
    pub(crate) async fn pass_on_rest(&mut self, replies: &mpsc::Sender<Reply>) {
        let level = *self.level.borrow();
        while let Ok(line) = self.lines.try_recv() {
            if Some(line.level) <= level {
                let _ = replies.send(Reply::Log(line)).await;
            }
        }
    }
}
