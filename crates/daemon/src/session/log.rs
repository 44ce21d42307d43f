//! The log of one session, for a client that stands for ssh(1) (`-v`), written as things happen.
//!
//! Lines wait until the client's log level is known, which its ssh_config may set. Their number is limited by what a
//! connection and the session itself write: only the user's own files and answers add more.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::{mpsc, watch};
use trunkline::config::{self, HostConfig, World};
use trunkline::interaction::{LogLevel, LogLine};
use trunkline::{Host, Interaction, Printable};

use crate::protocol::{Program, Reply};

/// The most lines that wait. Excess lines are dropped.
const MOST_WAITING: usize = 1024;

/// The side that writes lines.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    lines: mpsc::Sender<LogLine>,
    level: Arc<watch::Sender<Option<LogLevel>>>,
}

/// The side that sends lines to the client.
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

    /// Sets the client's log level, which lets lines through.
    pub(crate) fn begin(&self, level: LogLevel) {
        self.level.send_replace(Some(level));
    }

    /// Returns true if the client wants lines of this level. Always false before [`Self::begin`].
    pub(crate) fn wants(&self, level: LogLevel) -> bool {
        self.level.borrow().is_some_and(|wanted| wanted >= level)
    }

    /// Writes a line with the current time.
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

    /// Logs the request and its configuration files.
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

    /// Logs the host's settings and, if an existing connection is shared, how it was made.
    pub(crate) fn host(&self, host: &Host, interaction: &Interaction) {
        for remark in &host.config().remarks {
            // ssh prints them before it knows its log level.
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

    /// Logs the program that is run.
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

    /// Sends the remaining lines.
    pub(crate) async fn pass_on_rest(&mut self, replies: &mpsc::Sender<Reply>) {
        let level = *self.level.borrow();
        while let Ok(line) = self.lines.try_recv() {
            if Some(line.level) <= level {
                let _ = replies.send(Reply::Log(line)).await;
            }
        }
    }
}
