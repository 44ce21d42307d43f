//! The log of one session, for a client that stands for ssh(1) (`-v`): what is being done for it, as it is done.
//!
//! Lines wait until it is known how much the client wants to hear, which its ssh_config may say. There are no more than the
//! making of a connection and the session itself write; they are never more than what the user's own files and answers cause.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::{mpsc, watch};
use trunkline::config::{self, HostConfig, World};
use trunkline::interaction::{LogLevel, LogLine};
use trunkline::{Host, Interaction, Printable};

use crate::protocol::{Program, Reply};

/// Lines that may wait: more are dropped.
const MOST_WAITING: usize = 1024;

/// Where lines are written.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    lines: mpsc::Sender<LogLine>,
    level: Arc<watch::Sender<Option<LogLevel>>>,
}

/// The text.
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

    /// Returns whether the client wants to hear lines of this level; not before [`Self::begin`].
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

    pub(crate) fn write(&self, line: LogLine) {
        let unwanted = self.level.borrow().is_some_and(|wanted| wanted < line.level);
        if !unwanted {
            let _ = self.lines.try_send(line);
        }
    }

    /// Logs what is asked for, and by which files.
    pub(crate) fn request(&self, asked: &config::Request) {
        if !self.wants(LogLevel::Debug1) {
            return;
        }
        let (program, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
        self.say(LogLevel::Debug1, format!("trunkline {program}, process {pid}"));
        for file in asked.files().unwrap_or_default() {
            self.say(
                LogLevel::Debug1,
                format!("Reading configuration data {}", file.display()),
            );
        }
    }

    /// Logs what is shared, and how it was made, unless it is made for this client.
    pub(crate) fn host(&self, host: &Host, interaction: &Interaction) {
        for remark in &host.config().remarks {
            // ssh prints them before it knows how much it is to log.
            self.say(LogLevel::Quiet, remark);
        }
        if !self.wants(LogLevel::Debug1) {
            return;
        }
        let config = host.config();
        let address = crate::reports::address(config);
        self.say(
            LogLevel::Debug2,
            format!("resolved {} to {address}", config.original_host),
        );
        for (name, value) in config
            .explain_sharing()
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
        {
            self.say(
                LogLevel::Debug3,
                format!("shared by the same {name} only: {value}"),
            );
        }
        let lanes = host.lanes();
        let known: Vec<_> = lanes
            .iter()
            .filter_map(|lane| Some((lane, lane.info.as_ref()?)))
            .collect();
        if known.is_empty() {
            for objection in host.objections() {
                let text = format!("Not sharing a connection to {address} that is there: {objection}");
                self.say(LogLevel::Debug1, text);
            }
            self.say(
                LogLevel::Debug1,
                format!("No connection to {address} to share: making one"),
            );
        }
        for (lane, info) in known {
            if info.was_made_for(interaction) {
                continue;
            }
            let age = info.since.elapsed().unwrap_or_default().as_secs();
            let sessions = lane.report.sessions;
            self.say(
                LogLevel::Debug1,
                format!("Sharing a connection to {address}, {age} s old, with {sessions} other sessions. This is how it was made:"),
            );
            info.log.iter().cloned().for_each(|line| self.write(line));
        }
    }

    /// Logs what is run.
    pub(crate) fn program(&self, program: &Program, config: &HostConfig, world: &World) {
        if !self.wants(LogLevel::Debug1) {
            return;
        }
        for (name, _) in config.session_env(world) {
            self.say(LogLevel::Debug1, format!("channel: setting env {name}"));
        }
        self.say(
            LogLevel::Debug1,
            match program {
                Program::Exec(command) => format!("Sending command: {}", Printable::line(command)),
                Program::Subsystem(name) => format!("Sending subsystem: {}", Printable::line(name)),
                _ => "Entering interactive session.".into(),
            },
        );
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
