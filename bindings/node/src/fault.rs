//! Errors as JavaScript sees them: a message with `level` and `code` as ssh2 has them, and the engine's own words.

use std::io;

use serde_json::{Value, json};
use trunkline::{Error, ErrorKind, Execution};

/// What went wrong, on its way to an `Error` of JavaScript.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    message: String,
    /// Where ssh2's users look first: "client-socket", "client-authentication", …
    level: &'static str,
    /// The system's name of the error, or `ERR_` and the kind.
    code: String,
    kind: &'static str,
    execution: Execution,
    /// RFC 4254's reason for a refused channel.
    reason: Option<u32>,
}

impl Fault {
    /// Something on this machine.
    pub(crate) fn local(message: &str) -> Self {
        Self::own(message, "client-socket", ErrorKind::Local)
    }

    /// What was asked for cannot be done.
    pub(crate) fn usage(message: &str) -> Self {
        Self::own(message, "client", ErrorKind::Configuration)
    }

    /// The handshake took longer than `readyTimeout`.
    pub(crate) fn not_ready_in_time() -> Self {
        // ssh2's words, which programs compare.
        Self::own(
            "Timed out while waiting for handshake",
            "client-timeout",
            ErrorKind::Timeout,
        )
    }

    fn own(message: &str, level: &'static str, kind: ErrorKind) -> Self {
        Self {
            message: message.to_owned(),
            level,
            code: code_of(kind).to_owned(),
            kind: kind.as_str(),
            execution: Execution::DidNotStart,
            reason: None,
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut value = json!({
            "message": self.message,
            "level": self.level,
            "code": self.code,
            "kind": self.kind,
            "execution": self.execution.as_str(),
        });
        if let Some(reason) = self.reason {
            value["reason"] = reason.into();
        }
        value
    }
}

impl From<&Error> for Fault {
    fn from(error: &Error) -> Self {
        let kind = error.kind();
        let (level, code) = match root(error) {
            Error::Network { source, doing } if doing.starts_with("looking up") => {
                ("client-dns", system_code(source).unwrap_or("ENOTFOUND"))
            }
            Error::Network { source, .. } => ("client-socket", system_code(source).unwrap_or("ECONNRESET")),
            // In good order: no error to ssh2's users, once the client was ready.
            Error::ClosedByPeer { .. } => ("client-socket", "ERR_CLOSED"),
            Error::Local { source, .. } => ("client-socket", system_code(source).unwrap_or(code_of(kind))),
            Error::Timeout { .. } => ("client-timeout", "ETIMEDOUT"),
            Error::Authentication { .. } => ("client-authentication", code_of(kind)),
            Error::HostKey(_) => ("handshake", code_of(kind)),
            Error::Protocol { .. } => ("protocol", code_of(kind)),
            Error::Refused { .. } => ("client-ssh", code_of(kind)),
            _ => ("client", code_of(kind)),
        };
        let reason = match root(error) {
            Error::Refused { reason, .. } if *reason != 0 => Some(*reason),
            _ => None,
        };
        Self {
            message: error.to_string(),
            level,
            code: code.to_owned(),
            kind: kind.as_str(),
            execution: error.execution(),
            reason,
        }
    }
}

impl From<Fault> for napi::Error {
    fn from(fault: Fault) -> Self {
        Self::new(napi::Status::GenericFailure, fault.message)
    }
}

/// What is behind a lost connection.
fn root(error: &Error) -> &Error {
    match error {
        Error::Lost { cause, .. } => root(cause),
        error => error,
    }
}

fn code_of(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Peer => "ERR_PEER",
        ErrorKind::Network => "ERR_NETWORK",
        ErrorKind::Timeout => "ETIMEDOUT",
        ErrorKind::HostKey => "ERR_HOST_KEY",
        ErrorKind::Authentication => "ERR_AUTHENTICATION",
        ErrorKind::Configuration => "ERR_CONFIGURATION",
        ErrorKind::Limit => "ERR_REFUSED",
        _ => "ERR_LOCAL",
    }
}

/// The name that Node gives the system's error.
fn system_code(error: &io::Error) -> Option<&'static str> {
    use io::ErrorKind as Kind;
    Some(match error.kind() {
        Kind::ConnectionRefused => "ECONNREFUSED",
        Kind::ConnectionReset => "ECONNRESET",
        Kind::ConnectionAborted => "ECONNABORTED",
        Kind::HostUnreachable => "EHOSTUNREACH",
        Kind::NetworkUnreachable => "ENETUNREACH",
        Kind::NetworkDown => "ENETDOWN",
        Kind::TimedOut => "ETIMEDOUT",
        Kind::AddrInUse => "EADDRINUSE",
        Kind::AddrNotAvailable => "EADDRNOTAVAIL",
        Kind::BrokenPipe => "EPIPE",
        Kind::PermissionDenied => "EACCES",
        Kind::NotFound => "ENOENT",
        Kind::AlreadyExists => "EEXIST",
        _ => return None,
    })
}
