//! Everything that observes a session: the audit trail, its client's log, the recording of its terminal, the metrics.

use std::sync::OnceLock;

use bytes::Bytes;
use trunkline::config::{self, HostConfig, LogLevel};
use trunkline::metrics::Metrics;
use trunkline::{Engine, Error, ExitStatus, Pty};
use trunkline_audit::Entry;

use super::log::Log;
use crate::observed::activities::OfClient;
use crate::observed::recording::{Recording, Recordings};
use crate::protocol::Program;

pub(crate) struct Observers<'a> {
    /// The session's entry in the audit trail.
    pub(crate) audit: &'a Entry,
    /// The client's activity, for those who watch the daemon.
    activity: &'a OfClient,
    /// The log of a client that stands for ssh.
    pub(crate) log: Option<&'a Log>,
    recordings: &'a Recordings,
    /// The recording of its terminal, if there is one.
    recording: OnceLock<Recording>,
    metrics: &'a Metrics,
}

impl<'a> Observers<'a> {
    pub(crate) fn new(
        (audit, activity): (&'a Entry, &'a OfClient),
        log: Option<&'a Log>,
        recordings: &'a Recordings,
        engine: &'a Engine,
    ) -> Self {
        Self {
            audit,
            activity,
            log,
            recordings,
            recording: OnceLock::new(),
            metrics: engine.metrics(),
        }
    }

    /// Logs a line with the current time.
    pub(crate) fn say(&self, level: LogLevel, text: impl Into<String>) {
        if let Some(log) = self.log {
            log.say(level, text);
        }
    }

    /// Starts passing on the client's log, up to a level, and logs the request.
    pub(crate) fn log_from(&self, level: LogLevel, asked: &config::Request) {
        if let Some(log) = self.log {
            log.begin(level);
            log.request(asked);
        }
    }

    /// Starts a recording, if required, of a session that is about to start on a terminal.
    pub(crate) fn record_terminal(&self, host: &HostConfig, pty: &Pty, program: &Program) {
        if let Some(recording) = self.recordings.begin(host, (&pty.term, pty.size), program) {
            self.recording.get_or_init(|| recording);
        }
    }

    /// Records the server's standard output.
    pub(crate) fn note_output(&self, piece: &Bytes) {
        if let Some(recording) = self.recording.get() {
            recording.output(piece);
        }
    }

    /// Records a new size of the terminal.
    pub(crate) fn note_size(&self, columns: u32, rows: u32) {
        if let Some(recording) = self.recording.get() {
            recording.resize(columns, rows);
        }
    }

    /// Counts and records that the session was resumed on a new connection.
    pub(crate) fn note_resumption(&self) {
        self.metrics.counters.sftp_resumed.add(1);
        self.audit.note_resumed();
        self.activity.note_resumption();
    }

    /// Counts a session that could not be resumed.
    pub(crate) fn note_loss(&self) {
        self.metrics.counters.sftp_given_up.add(1);
    }

    /// Records the session's end.
    pub(crate) fn note_end(&self, ended: &Result<ExitStatus, Error>) {
        if let Some(recording) = self.recording.get() {
            recording.record_end(ended);
        }
    }
}
