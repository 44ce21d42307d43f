//! Errors as JavaScript sees them: a message with `level` and `code` as ssh2 has them, and the engine's own words.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};
use trunkline::{Error, ErrorKind, Execution};
use trunkline_daemon::protocol::Failure;
use trunkline_daemon::sink::SinkError;

/// What went wrong, on its way to an `Error` of JavaScript.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    message: String,
    /// Where ssh2's users look first: "client-socket", "client-authentication", …
    level: &'static str,
    /// The system's name of the error, or `ERR_` and the kind; of a file operation the server's status, a number.
    code: Code,
    kind: ErrorKind,
    execution: Execution,
    /// RFC 4254's reason for a refused channel.
    reason: Option<u32>,
    /// The server's words on what it refused.
    words: Option<String>,
    /// RFC 4253's reason for a disconnection, and the server's words.
    disconnect: Option<Box<(u32, String)>>,
    /// The address that was connected to, and the system's number of the error.
    address: Option<Box<SocketAddr>>,
    errno: Option<i32>,
}

/// How programs tell errors apart.
#[derive(Debug, Clone, Copy)]
enum Code {
    Name(&'static str),
    /// A file operation's status (draft-ietf-secsh-filexfer-02 section 7).
    Status(u32),
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

    /// A file of this machine.
    pub(crate) fn file(doing: &str, path: &Path, error: &io::Error) -> Self {
        let message = format!("{doing} {}: {error}", path.display());
        let mut fault = Self::own(&message, "local", ErrorKind::Local);
        if let Some(code) = system_code(error) {
            fault.code = Code::Name(code);
        }
        fault
    }

    /// What a file of the server says as a stream.
    pub(crate) fn of_stream(error: io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(inner) => inner.into(),
            None => Self::own(&error.to_string(), "sftp", ErrorKind::File),
        }
    }

    /// The same end, seen by a command that may have begun.
    pub(crate) fn after_start(mut self) -> Self {
        if self.execution == Execution::DidNotStart {
            self.execution = Execution::MayHaveStarted;
        }
        self
    }

    /// A client that has been closed.
    pub(crate) fn closed() -> Self {
        Self {
            code: Code::Name("ERR_CLOSED"),
            ..Self::own("the client was closed", "client", ErrorKind::Local)
        }
    }

    fn own(message: &str, level: &'static str, kind: ErrorKind) -> Self {
        Self {
            message: message.to_owned(),
            level,
            code: Code::Name(code_of(kind)),
            kind,
            execution: Execution::DidNotStart,
            reason: None,
            words: None,
            disconnect: None,
            address: None,
            errno: None,
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let code: Value = match self.code {
            Code::Name(name) => name.into(),
            Code::Status(number) => number.into(),
        };
        let mut value = json!({
            "message": self.message,
            "level": self.level,
            "code": code,
            "kind": self.kind.as_str(),
            "execution": self.execution.as_str(),
            "mayPass": self.kind.may_pass(),
        });
        if let Some(reason) = self.reason {
            value["reason"] = reason.into();
        }
        if let Some(words) = &self.words {
            value["words"] = words.as_str().into();
        }
        if let Some((reason, words)) = self.disconnect.as_deref() {
            value["disconnect"] = json!({ "reason": reason, "words": words });
        }
        if let Some(address) = &self.address {
            value["address"] = address.ip().to_string().into();
            value["port"] = address.port().into();
        }
        if let Some(errno) = self.errno {
            value["errno"] = (-errno).into();
        }
        value
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<SinkError> for Fault {
    fn from(SinkError { doing, source }: SinkError) -> Self {
        Self::from(&Error::Local { doing, source })
    }
}

impl From<&Error> for Fault {
    fn from(error: &Error) -> Self {
        let kind = error.kind();
        if let Error::File { status, .. } = error {
            // As ssh2 has them: the server's words, or the code's, and the code.
            let message = match status.message.as_str() {
                "" => status_words(status.code.0),
                words => words,
            };
            let mut fault = Self::own(message, "sftp", kind);
            fault.code = Code::Status(status.code.0);
            fault.execution = error.execution();
            return fault;
        }
        let (level, code) = match error.root() {
            Error::Lookup { source, .. } => ("client-dns", system_code(source).unwrap_or("ENOTFOUND")),
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
        let reason = match error.root() {
            Error::Refused { reason, .. } if *reason != 0 => Some(*reason),
            _ => None,
        };
        let words = match error.root() {
            Error::Refused { description, .. } => Some(description.to_string()),
            _ => None,
        };
        let (address, errno) = match error.root() {
            Error::Network { address, source, .. } => (address.map(Box::new), source.raw_os_error()),
            Error::Lookup { source, .. } => (None, source.raw_os_error()),
            _ => (None, None),
        };
        let disconnect = error
            .disconnect()
            .map(|(reason, words)| Box::new((reason, words.to_string())));
        Self {
            message: error.to_string(),
            level,
            code: Code::Name(code),
            kind,
            execution: error.execution(),
            reason,
            words,
            disconnect,
            address,
            errno,
        }
    }
}

/// What the daemon says went wrong. The system's name of the error stays with the daemon.
impl From<&Failure> for Fault {
    fn from(failure: &Failure) -> Self {
        let kinds = [
            (ErrorKind::Peer, "protocol"),
            (ErrorKind::Network, "client-socket"),
            (ErrorKind::Timeout, "client-timeout"),
            (ErrorKind::HostKey, "handshake"),
            (ErrorKind::Authentication, "client-authentication"),
            (ErrorKind::Configuration, "client"),
            (ErrorKind::Limit, "client-ssh"),
            (ErrorKind::File, "sftp"),
        ];
        let kind = ErrorKind::from_name(&failure.kind).unwrap_or(ErrorKind::Local);
        let level = kinds
            .into_iter()
            .find_map(|(named, level)| (named == kind).then_some(level))
            .unwrap_or("client");
        let mut fault = Self::own(&failure.message, level, kind);
        fault.execution = [Execution::DidNotStart, Execution::Finished]
            .into_iter()
            .find(|execution| execution.as_str() == failure.execution)
            .unwrap_or(Execution::MayHaveStarted);
        fault
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self::from(&failure)
    }
}

impl From<Fault> for napi::Error {
    fn from(fault: Fault) -> Self {
        Self::new(napi::Status::GenericFailure, fault.message)
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
