//! Errors as JavaScript sees them: a message with `level` and `code` as ssh2 has them, and the engine's own words.

use std::io;
use std::path::Path;

use rustix::io::Errno;
use serde_json::{Value, json};
use trunkline::Error;
use trunkline::sftp::StatusCode;
use trunkline_embed::{Cause, ErrorKind, Failure};

/// A failure, on its way to an `Error` of JavaScript.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    failure: Box<Failure>,
    /// The level that ssh2's users look at first, if the failure has another: "client-timeout", "local", …
    level: Option<&'static str>,
}

impl Fault {
    fn own(message: impl Into<String>, level: &'static str, kind: ErrorKind) -> Self {
        Self {
            failure: Box::new(Failure::new(kind, message)),
            level: Some(level),
        }
    }

    /// Something on this machine.
    pub(crate) fn local(message: &str) -> Self {
        Self::own(message, "client-socket", ErrorKind::Local)
    }

    /// The request is impossible.
    pub(crate) fn usage(message: &str) -> Self {
        Self::own(message, "client", ErrorKind::Configuration)
    }

    /// The handshake took longer than `readyTimeout`.
    pub(crate) fn not_ready_in_time() -> Self {
        // ssh2's words, which programs compare.
        let message = "Timed out while waiting for handshake";
        Self::own(message, "client-timeout", ErrorKind::Timeout)
    }

    /// A file of this machine.
    pub(crate) fn file(doing: &str, path: &Path, error: &io::Error) -> Self {
        let mut fault = Self::own(
            format!("{doing} {}: {error}", path.display()),
            "local",
            ErrorKind::Local,
        );
        fault.failure.errno = error.raw_os_error();
        fault
    }

    /// A server's error about a file, in our words.
    pub(crate) fn of_file(status: StatusCode, message: &str) -> Self {
        let mut fault = Self::own(message, "sftp", ErrorKind::File);
        fault.failure.cause = Cause::File {
            status: status.0,
            words: message.to_owned(),
        };
        fault
    }

    /// An error of a file of the server as a stream.
    pub(crate) fn of_stream(error: io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(inner) => Failure::from(inner).into(),
            None => Self::own(error.to_string(), "sftp", ErrorKind::File),
        }
    }

    /// A client that has been closed.
    pub(crate) fn closed_client() -> Self {
        Self {
            level: Some("client"),
            ..Failure::closed_locally("client").into()
        }
    }

    /// The same end, seen by a command that may have begun.
    pub(crate) fn after_start(self) -> Self {
        Self {
            failure: Box::new(self.failure.after_start()),
            ..self
        }
    }

    pub(crate) fn is_timeout(&self) -> bool {
        self.failure.kind == ErrorKind::Timeout
    }

    /// The object of which `lib/errors.js` makes an `Error`.
    pub(crate) fn to_json(&self) -> Value {
        let Failure {
            kind,
            execution,
            errno,
            cause,
            ..
        } = &*self.failure;
        let system = errno.and_then(system_code);
        let (level, code): (_, Value) = match cause {
            Cause::Lookup => ("client-dns", system.unwrap_or("ENOTFOUND").into()),
            Cause::Network { .. } => ("client-socket", system.unwrap_or("ECONNRESET").into()),
            // In good order: no error to ssh2's users, once the client was ready.
            Cause::ClosedByPeer | Cause::LongText => ("client-socket", "ERR_CLOSED".into()),
            Cause::Closed => ("client", "ERR_CLOSED".into()),
            Cause::File { status, .. } => ("sftp", (*status).into()),
            Cause::Disconnected { .. } => ("protocol", code_of(*kind).into()),
            Cause::Authentication { .. }
            | Cause::NothingInCommon(_)
            | Cause::Refused { .. }
            | Cause::SftpUnstarted { .. }
            | Cause::Invalid(_)
            | Cause::NotConnected(_)
            | Cause::OtherSettings
            | Cause::Unattended
            | Cause::Other => (level_of(*kind), system.unwrap_or(code_of(*kind)).into()),
        };
        let mut value = json!({
            "message": self.failure.to_string(),
            "level": self.level.unwrap_or(level),
            "code": code,
            "kind": kind.as_str(),
            "execution": execution.as_str(),
            "mayPass": kind.may_pass(),
        });
        match cause {
            // As ssh2 has them: the server's words, or the code's.
            Cause::File { status, words } => {
                value["message"] = match words.as_str() {
                    "" => status_words(*status).into(),
                    words => words.into(),
                };
            }
            Cause::Refused { reason, words } => {
                if *reason != 0 {
                    value["reason"] = (*reason).into();
                }
                value["words"] = words.as_str().into();
            }
            Cause::SftpUnstarted { status, signal } => {
                value["unstarted"] = json!({ "status": status, "signal": signal });
            }
            Cause::NothingInCommon(lacking) => value["lacking"] = json!(lacking),
            Cause::Disconnected { reason, words } => {
                value["disconnect"] = json!({ "reason": reason, "words": words });
            }
            Cause::Network { address: Some(to) } => {
                value["address"] = to.ip().to_string().into();
                value["port"] = to.port().into();
            }
            _ => {}
        }
        if let (Cause::Network { .. } | Cause::Lookup, Some(errno)) = (cause, errno) {
            value["errno"] = (-errno).into();
        }
        value
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self {
            failure: Box::new(failure),
            level: None,
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Failure::from(error).into()
    }
}

impl From<Fault> for napi::Error {
    fn from(fault: Fault) -> Self {
        Self::new(napi::Status::GenericFailure, fault.failure.message)
    }
}

/// ssh2's words for a status without any.
fn status_words(code: u32) -> &'static str {
    match code {
        0 => "No error",
        1 => "End of file",
        2 => "No such file or directory",
        3 => "Permission denied",
        5 => "Bad message",
        6 => "No connection",
        7 => "Connection lost",
        8 => "Operation unsupported",
        _ => "Failure",
    }
}

fn level_of(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Peer => "protocol",
        ErrorKind::Timeout => "client-timeout",
        ErrorKind::HostKey => "handshake",
        ErrorKind::Authentication => "client-authentication",
        ErrorKind::Limit => "client-ssh",
        ErrorKind::File => "sftp",
        ErrorKind::Local => "client-socket",
        _ => "client",
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
        ErrorKind::File => "ERR_FILE",
        _ => "ERR_LOCAL",
    }
}

/// The name that Node gives the system's error.
fn system_code(errno: i32) -> Option<&'static str> {
    Some(match Errno::from_raw_os_error(errno) {
        Errno::CONNREFUSED => "ECONNREFUSED",
        Errno::CONNRESET => "ECONNRESET",
        Errno::CONNABORTED => "ECONNABORTED",
        Errno::HOSTUNREACH => "EHOSTUNREACH",
        Errno::NETUNREACH => "ENETUNREACH",
        Errno::NETDOWN => "ENETDOWN",
        Errno::TIMEDOUT => "ETIMEDOUT",
        Errno::ADDRINUSE => "EADDRINUSE",
        Errno::ADDRNOTAVAIL => "EADDRNOTAVAIL",
        Errno::PIPE => "EPIPE",
        Errno::ACCESS => "EACCES",
        Errno::PERM => "EPERM",
        Errno::NOENT => "ENOENT",
        Errno::EXIST => "EEXIST",
        Errno::ISDIR => "EISDIR",
        Errno::NOTDIR => "ENOTDIR",
        Errno::NOSPC => "ENOSPC",
        Errno::DQUOT => "EDQUOT",
        Errno::ROFS => "EROFS",
        _ => return None,
    })
}
