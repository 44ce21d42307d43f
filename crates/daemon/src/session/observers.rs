//! Those who see what becomes of a session: the audit trail, its client's log, the recording of its terminal, the metrics.

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

    /// Logs a line of now.
    pub(crate) fn say(&self, level: LogLevel, text: impl Into<String>) {
        if let Some(log) = self.log {
            log.say(level, text);
        }
    }

    /// From now on the client's log is passed on to it, up to a level. It begins with what is asked for.
    pub(crate) fn log_from(&self, level: LogLevel, asked: &config::Request) {
        if let Some(log) = self.log {
            log.begin(level);
            log.request(asked);
        }
    }

    /// It is about to start on a terminal.
    pub(crate) fn record_terminal(&self, host: &HostConfig, pty: &Pty, program: &Program) {
        if let Some(recording) = self.recordings.begin(host, (&pty.term, pty.size), program) {
            self.recording.get_or_init(|| recording);
        }
    }

    /// The server has written this to its standard output.
    pub(crate) fn note_output(&self, piece: &Bytes) {
        if let Some(recording) = self.recording.get() {
            recording.output(piece);
        }
    }

    /// Its terminal has another size.
    pub(crate) fn note_size(&self, columns: u32, rows: u32) {
        if let Some(recording) = self.recording.get() {
            recording.resize(columns, rows);
        }
    }

    /// It was carried over to a new connection.
    pub(crate) fn note_resumption(&self) {
        self.metrics.counters.sftp_resumed.add(1);
        self.audit.note_resumed();
        self.activity.note_resumption();
    }

    /// It could not be carried over any more.
    pub(crate) fn note_loss(&self) {
        self.metrics.counters.sftp_given_up.add(1);
    }

    /// The session has ended so.
    pub(crate) fn note_end(&self, ended: &Result<ExitStatus, Error>) {
        if let Some(recording) = self.recording.get() {
            recording.record_end(ended);
        }
    }
}
