//! What one line of the audit trail says, but for its place in the chain.

use std::time::SystemTime;

use serde::Serialize;
use trunkline::Printable;

use super::hash::Hash;

/// One event. Fields that do not apply are left out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Record {
    /// When it happened: UTC, in RFC 3339's form, with milliseconds.
    pub(super) time: String,
    pub(super) event: Event,
    /// What a beginning and its end have in common.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) asker: Option<Asker>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) subject: Option<Subject>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) outcome: Option<Outcome>,
    /// Of a daemon that starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) daemon: Option<Daemon>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<Note>,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Event {
    /// A daemon began to write to the trail.
    Start,
    /// It ended in good order.
    Stop,
    /// Something is about to be handed to a server.
    Begin,
    /// It has ended, or was not begun.
    End,
    /// Something about the trail itself.
    Note,
}

/// Who asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Asker {
    /// The uid of the process that connected to the daemon.
    pub(super) uid: u32,
    /// Its number at that moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pid: Option<u32>,
    /// Its program: the file's path, or the process's name where that cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) program: Option<String>,
    /// The program that started it, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) started_by: Option<String>,
    /// Who had logged in to this machine, where the kernel knows (`/proc/PID/loginuid`): with accounts that several people
    /// use, it tells them apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) login_uid: Option<u32>,
}

/// What was asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Subject {
    /// "session", "tunnel", "incoming", "listener", "forwarding", "copy", "tune", "listing".
    pub(super) kind: &'static str,
    /// The destination, as it was typed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) host: Option<String>,
    /// The account on the server, where the configuration could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<String>,
    /// What the destination means: the name or address that is connected to, and its port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) port: Option<u16>,
    /// "command", "shell", "subsystem" or "none" for sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) program: Option<&'static str>,
    /// The command line, the subsystem's name, or where a tunnel or a forwarding leads to.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) command: Option<Exact>,
    /// Where a connection through a forwarding comes from, of a remote one in the server's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) from: Option<String>,
    /// Whether the session has a terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) terminal: Option<bool>,
    /// What a copy reads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) sources: Vec<String>,
    /// What a copy writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<String>,
    /// The public nkey of who asked for it through a fleet, as the asker says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) submitter: Option<String>,
    /// The job that it is part of, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) job: Option<String>,
    /// Set to "ssh" where the system's ssh was left to do it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) transport: Option<&'static str>,
}

/// Bytes as printable text, and what identifies them where the text is not exactly that.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Exact {
    command: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    command_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command_sha256: Option<String>,
}

impl Exact {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let shown = Printable::line(bytes).into_string();
        let differs = shown.as_bytes() != bytes;
        Self {
            command: shown,
            command_bytes: differs.then_some(bytes.len()),
            command_sha256: differs.then(|| Hash::of(bytes).to_string()),
        }
    }
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Outcome {
    /// "did not start", "may have started", "finished", or "not known" for what was left to the system's ssh.
    pub(super) execution: &'static str,
    /// The command's exit status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<u32>,
    /// The signal that ended it, without "SIG".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) signal: Option<String>,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// Names that a copy could not copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failed_files: Option<u64>,
    /// Bytes to the server, of the command's input, a tunnel, a forwarding or a copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sent_bytes: Option<u64>,
    /// Bytes from the server, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) received_bytes: Option<u64>,
    /// From the beginning on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) seconds: Option<f64>,
}

/// A daemon that writes to the trail.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Daemon {
    pub(super) pid: u32,
    pub(super) version: &'static str,
    /// "on" or "strict".
    pub(super) mode: &'static str,
}

/// What is told about the trail itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Note {
    /// A sentence.
    pub(super) note: String,
    /// Records that had been written are not there any more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) broken: bool,
    /// The bytes of an incomplete line in front of this one, and their hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) torn_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) torn_sha256: Option<String>,
}

impl Record {
    pub(super) fn new(event: Event) -> Self {
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

    /// The note that records which had been written are not there any more.
    pub(super) fn broken(text: impl Into<String>) -> Self {
        let mut record = Self::note(text);
        if let Some(note) = &mut record.note {
            note.broken = true;
        }
        record
    }

    pub(super) fn note(text: impl Into<String>) -> Self {
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
