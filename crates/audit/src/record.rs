//! The content of one line of the audit trail, except for its place in the chain.

use std::time::SystemTime;

use serde::Serialize;
use trunkline::{Error, Execution, Printable};

use crate::asker::Asker;
use crate::subject::Subject;

/// One event. Fields that do not apply are omitted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Record {
    /// The time of the event: UTC, in RFC 3339's form, with milliseconds.
    pub(crate) time: String,
    pub(crate) event: Event,
    /// The id that a beginning and its end share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) asker: Option<Asker>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) subject: Option<Subject>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) outcome: Option<Outcome>,
    /// The daemon, in its start event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) daemon: Option<Daemon>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<Note>,
}

/// The kind of event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Event {
    /// A daemon has started to write to the trail.
    Start,
    /// A daemon has ended normally.
    Stop,
    /// Work is about to be sent to a server.
    Begin,
    /// Work has ended, or was not started.
    End,
    /// A note about the trail itself.
    Note,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Outcome {
    /// "did not start", "may have started", "finished", or "not known" for work left to the system's ssh.
    pub(crate) execution: &'static str,
    /// The command's exit status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u32>,
    /// The signal that ended it, without "SIG".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) signal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Names that a copy could not copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failed_files: Option<u64>,
    /// Bytes to the server: of a command's input, a tunnel, a forwarding or a copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sent_bytes: Option<u64>,
    /// Bytes from the server, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) received_bytes: Option<u64>,
    /// The number of times that an SFTP session was resumed on a new connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resumed: Option<u64>,
    /// The duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seconds: Option<f64>,
}

/// A daemon that writes to the trail.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Daemon {
    pub(crate) pid: u32,
    pub(crate) version: &'static str,
    /// "on" or "strict".
    pub(crate) mode: &'static str,
}

/// A note about the trail itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Note {
    pub(crate) note: String,
    /// True if written records are missing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) broken: bool,
    /// The length of an incomplete line before this one, and its hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) torn_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) torn_sha256: Option<String>,
}

impl Record {
    pub(crate) fn new(event: Event) -> Self {
        Self {
            time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            event,
            id: None,
            asker: None,
            subject: None,
            outcome: None,
            daemon: None,
            note: None,
        }
    }

    /// Returns the note that written records are missing.
    pub(crate) fn chain_broken(text: impl Into<String>) -> Self {
        let mut record = Self::note(text);
        if let Some(note) = &mut record.note {
            note.broken = true;
        }
        record
    }

    pub(crate) fn note(text: impl Into<String>) -> Self {
        Self {
            note: Some(Note {
                note: text.into(),
                broken: false,
                torn_bytes: None,
                torn_sha256: None,
            }),
            ..Self::new(Event::Note)
        }
    }
}

impl Outcome {
    pub(crate) fn new(execution: Execution) -> Self {
        Self {
            execution: execution.as_str(),
            status: None,
            signal: None,
            error: None,
            failed_files: None,
            sent_bytes: None,
            received_bytes: None,
            resumed: None,
            seconds: None,
        }
    }

    /// Returns the outcome of work whose owner is gone.
    pub(crate) fn abandoned_by(who: &str, execution: Execution) -> Self {
        Self {
            error: Some(who.into()),
            ..Self::new(execution)
        }
    }

    pub(crate) fn exit_status(status: u32) -> Self {
        Self {
            status: Some(status),
            ..Self::new(Execution::Finished)
        }
    }

    pub(crate) fn signal(signal: &str) -> Self {
        Self {
            signal: Some(Printable::line(signal).into_string()),
            ..Self::new(Execution::Finished)
        }
    }

    pub(crate) fn failure(error: &Error) -> Self {
        Self {
            error: Some(error.to_string()),
            ..Self::new(error.execution())
        }
    }
}
