//! Failures, sorted by who is to blame, and their meaning for the requested command.
//!
//! Decisions depend on values, never on an error's text: only `Display` has English.

mod doing;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use trunkline_proto::DisconnectReason;
pub use trunkline_request::failure::{Absence, ErrorKind, Execution, Invalid};
use trunkline_request::{Waiting, not_shared, words_of};
use trunkline_sftp::StatusCode;
use trunkline_text::Printable;

use crate::config::{ConfigError, HostConfig};
use crate::hosts::InventoryError;
use crate::known_hosts::KnownHostsError;

pub use doing::{Doing, LogInStage, ServerRequest};

/// An error of the engine. Cheap to clone, because everyone who waits for a connection gets its end.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "names say it")]
pub enum Error {
    /// The network failed.
    #[error("{doing}: {}", io_words(.source))]
    Network {
        /// The interrupted action.
        doing: Doing,
        /// The address that could not be connected to.
        address: Option<SocketAddr>,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// A host's name has no address, or could not be looked up.
    #[error("looking up {name}: {}", io_words(.source))]
    Lookup {
        name: String,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The server closed the connection without a message.
    #[error("the connection to {host} was closed by the other end{}", stage(*.during))]
    ClosedByPeer {
        host: String,
        /// The stage of the log-in; `None` when in use.
        during: Option<LogInStage>,
        /// It was reset instead of closed.
        reset: bool,
    },
    /// There was no answer in time.
    #[error("{doing}: no answer within {}", seconds(.after))]
    Timeout {
        /// The interrupted action.
        doing: Doing,
        /// The time limit.
        after: Duration,
    },
    /// A command did not end within its time limit.
    #[error("{command} did not end within {}", seconds(.after))]
    TimeUp {
        /// The command: "the command on web1".
        command: String,
        /// The time limit.
        after: Duration,
    },
    /// The protocol failed.
    #[error("{host}: {source}")]
    Protocol {
        host: String,
        source: trunkline_proto::Error,
    },
    /// The host key cannot be trusted. Nothing was signed or sent.
    #[error(transparent)]
    HostKey(Arc<crate::host_key::HostKeyError>),
    /// No authentication method succeeded.
    #[error("{user}@{host}: permission denied ({}){}", .allowed.join(","), colon(.advice))]
    Authentication {
        user: String,
        host: String,
        /// The methods with which the server would have continued.
        allowed: Vec<String>,
        /// The last attempt succeeded, and the server also wants one of these.
        partial: bool,
        /// The attempts and omissions, with reasons; may be empty.
        advice: String,
        /// The part of `advice` that was not reported during the attempts.
        untold: Box<str>,
        /// The configuration allows ssh what the engine cannot do: a key of another type, a signature with SHA-1.
        only_ssh: bool,
        /// An agent's user refused the signature, and ssh only has keys to try.
        declined: bool,
    },
    /// The log-in waits for another client's answer, and this client cannot wait for that.
    #[error("{}, and nobody can be asked here", .0.why())]
    Unanswered(Waiting),
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(Arc<ConfigError>),
    /// The host needs what only the system's ssh can do.
    #[error("{host} needs the system's ssh: {}", list(.reasons))]
    NeedsSystemSsh {
        host: String,
        /// The directives that require it.
        reasons: Vec<crate::config::Reason>,
    },
    /// The host's configuration forbids the request, or contradicts itself.
    #[error("{host}: {problem}")]
    Configuration {
        /// The host as the user calls it.
        host: String,
        /// The directive, and what to do about it.
        problem: String,
    },
    /// The request is malformed or impossible.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The user was asked to confirm the use of a connection, and did not.
    #[error("{host}: the use of its connection {why}")]
    Denied {
        host: String,
        /// "was not allowed", or why nobody could be asked.
        why: &'static str,
    },
    /// A local name, path or port is currently in use.
    #[error("{0}")]
    Busy(String),
    /// A mux socket whose connections another request has made.
    #[error("{0} is in use for connections with other settings")]
    OtherSettings(String),
    /// The caller stopped it; the text says what that means for the finished part.
    #[error("stopped before it finished; {0}")]
    Cancelled(&'static str),
    /// There is no connection, and none may be made.
    #[error("{host}: {why}")]
    NotConnected { host: String, why: Absence },
    /// The system's ssh failed.
    #[error("{about}: {said}")]
    SystemSsh {
        /// The host, or the socket of a master.
        about: String,
        /// Its message.
        said: String,
        /// It had nobody to ask.
        unattended: bool,
    },
    /// A bug in this library.
    #[error("{0}; this is a bug in trunkline, please report it")]
    Bug(&'static str),
    /// The server refused a session, a forwarding or a request.
    #[error("{host} refused {what}{}", colon(.description))]
    Refused {
        host: String,
        /// The refused request.
        what: ServerRequest,
        /// RFC 4254's reason code, if any.
        reason: u32,
        /// The server's text, or empty.
        description: Printable,
    },
    /// The connection failed after the server had sent text before its identification, which may be the reason (RFC
    /// 4253 section 4.2; "Exceeded MaxStartups").
    #[error("{cause}; the server said: {greeting}")]
    Greeted {
        cause: Arc<Error>,
        /// The last line of that text.
        greeting: Printable,
    },
    /// The connection failed after this address had been reached.
    #[error("{cause}")]
    At {
        /// The server's address.
        address: SocketAddr,
        cause: Arc<Error>,
    },
    /// The connection failed after the ProxyCommand had written to its standard error, which may give the reason.
    #[error("{cause}; the ProxyCommand said: {words}")]
    Proxy {
        cause: Arc<Error>,
        /// The last line that it wrote.
        words: Printable,
    },
    /// The host was not reached, because a jump host failed or refused.
    #[error("jump host {}: {cause}", .jump.original_host)]
    Jump {
        /// The configuration of the jump host.
        jump: Arc<HostConfig>,
        cause: Arc<Error>,
    },
    /// The connection was lost while a command was running.
    #[error("{cause}; the command {execution}")]
    Lost {
        /// The command's execution, as far as it is known.
        execution: Execution,
        /// The reason of the loss.
        cause: Arc<Error>,
    },
    /// The server ended the connection when it was sent a request with much text, which may be the reason.
    #[error("{cause} when it was sent {length} bytes, and may take no command so long")]
    LongText {
        /// The bytes of text in the request.
        length: usize,
        cause: Arc<Error>,
    },
    /// This side closed the connection.
    #[error("the connection to {host} was closed on this side: {why}")]
    Closed {
        host: String,
        /// The reason, or who closed it.
        why: String,
    },
    /// The server refused an operation on a file.
    #[error("{host}:{}: {}", show(.path), words_of_status(.doing, .status))]
    File {
        host: String,
        /// The interrupted action: "opening", "removing".
        doing: &'static str,
        /// The path on the server.
        path: bytes::Bytes,
        /// The server's code and message.
        status: trunkline_sftp::Status,
    },
    /// The session ended before the server had answered an operation on a file.
    #[error("{cause}; {doing} {} may have happened", show(.path))]
    FileLost {
        /// The interrupted action.
        doing: &'static str,
        /// The path on the server.
        path: bytes::Bytes,
        /// The reason of the session's end.
        cause: Arc<Error>,
    },
    /// An SFTP session failed.
    #[error("{host}: {source}")]
    Sftp {
        host: String,
        source: trunkline_sftp::Error,
    },
    /// A client's SFTP session could not be carried over to a new connection.
    #[error("the SFTP session on {host} was lost, and could not be carried over: {why}")]
    SftpLost { host: String, why: String },
    /// The server refused a terminal to a session that needs one.
    #[error("{host}: the server does not give the session a terminal")]
    TerminalRefused { host: String },
    /// The server's SFTP has stopped answering, while its connection is alive.
    #[error("{host}: its SFTP server has not answered for {} s, though the connection is alive; the session was ended", .after.as_secs())]
    SftpSilent {
        host: String,
        /// The time waited.
        after: Duration,
    },
    /// The server's SFTP program ended before it began: it cannot be started, or refuses to.
    #[error("{host}: sftp-server on the server ended before it began{}{}", how(*.status, .signal.as_deref()), colon(.words.as_ref()))]
    SftpUnstarted {
        host: String,
        /// Its exit status, if the server sent one.
        status: Option<u32>,
        /// The signal that ended it, without "SIG".
        signal: Option<String>,
        /// The end of its standard error; may be empty.
        words: Printable,
    },
    /// Something on this machine failed.
    #[error("{doing}: {}", io_words(.source))]
    Local {
        /// The interrupted action, with the path.
        doing: Doing,
        /// The system's error.
        source: Arc<io::Error>,
    },
}

impl Error {
    /// Returns whether the path does not exist on the server.
    pub(crate) fn is_no_such_file(&self) -> bool {
        matches!(self, Self::File { status, .. } if status.code == trunkline_sftp::StatusCode::NO_SUCH_FILE)
    }

    /// Returns whether the server ended the connection by itself.
    pub(crate) fn is_hang_up(&self) -> bool {
        matches!(
            self,
            Self::ClosedByPeer { .. }
                | Self::Protocol {
                    source: trunkline_proto::Error::Disconnected { .. },
                    ..
                }
        )
    }

    /// Returns whether the connection existed and the other end's system accepted no more data.
    pub(crate) fn is_reset(&self) -> bool {
        let Self::Network { source, .. } = self else {
            return false;
        };
        matches!(
            source.kind(),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
        )
    }

    /// Returns the length of a request for which the server may have ended the connection.
    pub fn long_text(&self) -> Option<usize> {
        match self {
            Self::LongText { length, .. } => Some(*length),
            Self::Lost { cause, .. } => cause.long_text(),
            _ => None,
        }
    }

    /// Returns whether the host cannot be reached at present, so that an immediate retry would fail the same way.
    pub(crate) fn is_no_way(&self) -> bool {
        match self.root() {
            Self::Lookup { .. } | Self::Authentication { .. } | Self::HostKey(_) => true,
            Self::Network { doing, .. } | Self::Timeout { doing, .. } => {
                matches!(doing, Doing::Connect { .. })
            }
            Self::ClosedByPeer { during, .. } => during.is_some(),
            _ => false,
        }
    }

    /// Returns whether only somebody's action can resolve it, for a changed host key or a refused log-in.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self.root(), Self::Authentication { .. } | Self::HostKey(_))
    }

    /// Returns whether an agent's user refused the log-in: ssh has nothing else to try, and would ask again.
    pub fn is_declined(&self) -> bool {
        matches!(self.root(), Self::Authentication { declined: true, .. })
    }

    /// Returns the original error without later additions, such as its meaning for a command or the server's earlier
    /// text.
    pub fn root(&self) -> &Self {
        match self {
            Self::Lost { cause, .. }
            | Self::LongText { cause, .. }
            | Self::FileLost { cause, .. }
            | Self::Greeted { cause, .. }
            | Self::At { cause, .. }
            | Self::Proxy { cause, .. }
            | Self::Jump { cause, .. } => cause.root(),
            error => error,
        }
    }

    /// Returns the address that was reached although no connection could be made. A jump host's is in its own error.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::At { address, .. } => Some(*address),
            Self::Lost { cause, .. }
            | Self::FileLost { cause, .. }
            | Self::Greeted { cause, .. }
            | Self::Proxy { cause, .. } => cause.address(),
            _ => None,
        }
    }

    /// Returns the reason code and the text of a server that ended the connection with SSH_MSG_DISCONNECT.
    pub fn disconnect(&self) -> Option<(u32, &Printable)> {
        match self.root() {
            Self::Protocol {
                source: trunkline_proto::Error::Disconnected { reason, description },
                ..
            } => Some((reason.0, description)),
            _ => None,
        }
    }

    /// As [`ErrorKind::may_pass`].
    pub fn may_pass(&self) -> bool {
        self.kind().may_pass()
    }

    /// Returns the party to blame.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Network { .. }
            | Self::Lookup { .. }
            | Self::ClosedByPeer { .. }
            | Self::Closed { .. }
            | Self::NotConnected { .. }
            | Self::SftpLost { .. }
            | Self::SystemSsh { .. } => ErrorKind::Network,
            Self::Timeout { .. } | Self::TimeUp { .. } => ErrorKind::Timeout,
            Self::Protocol {
                source: trunkline_proto::Error::Local(_),
                ..
            }
            | Self::Local { .. }
            | Self::Busy(_)
            | Self::OtherSettings(_)
            | Self::Bug(_) => ErrorKind::Local,
            Self::Protocol {
                source: trunkline_proto::Error::Disconnected { reason, description },
                ..
            } => {
                // sshd's text when MaxAuthTries is reached, with the code of a protocol error (auth.c,
                // auth_maxtries_exceeded).
                let refused = *reason == DisconnectReason::NO_MORE_AUTH_METHODS_AVAILABLE
                    || *reason == DisconnectReason::ILLEGAL_USER_NAME
                    || description.starts_with("Too many authentication failures");
                if refused {
                    ErrorKind::Authentication
                } else {
                    ErrorKind::Network
                }
            }
            Self::Protocol { .. } => ErrorKind::Peer,
            Self::HostKey(_) => ErrorKind::HostKey,
            Self::Authentication { .. } | Self::Unanswered(_) => ErrorKind::Authentication,
            Self::Config(error) => match **error {
                ConfigError::Start { .. } | ConfigError::NoAccount(_) | ConfigError::AccountUnread { .. } => {
                    ErrorKind::Local
                }
                ConfigError::TimedOut(_) => ErrorKind::Timeout,
                _ => ErrorKind::Configuration,
            },
            Self::NeedsSystemSsh { .. }
            | Self::Configuration { .. }
            | Self::Invalid(_)
            | Self::Denied { .. }
            | Self::Cancelled(_) => ErrorKind::Configuration,
            Self::Refused { .. } | Self::SftpUnstarted { .. } | Self::TerminalRefused { .. } => {
                ErrorKind::Limit
            }
            Self::File { .. } => ErrorKind::File,
            Self::Sftp {
                source: trunkline_sftp::Error::Closed,
                ..
            } => ErrorKind::Network,
            Self::Sftp { .. } => ErrorKind::Peer,
            Self::SftpSilent { .. } => ErrorKind::Timeout,
            Self::Lost { cause, .. }
            | Self::LongText { cause, .. }
            | Self::FileLost { cause, .. }
            | Self::Greeted { cause, .. }
            | Self::At { cause, .. }
            | Self::Proxy { cause, .. }
            | Self::Jump { cause, .. } => cause.kind(),
        }
    }

    /// Returns the meaning for the requested command, or operation on a file. All errors but a lost connection precede
    /// the start; a file's error is the server's final answer.
    pub fn execution(&self) -> Execution {
        match self {
            Self::Lost { execution, .. } => *execution,
            Self::FileLost { .. } => Execution::MayHaveStarted,
            Self::File { .. } => Execution::Finished,
            Self::Greeted { cause, .. } | Self::At { cause, .. } | Self::Proxy { cause, .. } => {
                cause.execution()
            }
            _ => Execution::DidNotStart,
        }
    }

    /// Returns this machine's errno for the error of the system, or of a file's server: `ENOENT` for SFTP's "no such
    /// file".
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self.root() {
            Self::Invalid(Invalid::NotADirectory { is_missing, .. }) => Some(match is_missing {
                true => Errno::NOENT.raw_os_error(),
                false => Errno::NOTDIR.raw_os_error(),
            }),
            Self::File { status, .. } => match status.code {
                StatusCode::NO_SUCH_FILE => Some(Errno::NOENT),
                StatusCode::PERMISSION_DENIED => Some(Errno::ACCESS),
                StatusCode::OP_UNSUPPORTED => Some(Errno::OPNOTSUPP),
                _ => None,
            }
            .map(Errno::raw_os_error),
            Self::Network { source, .. } | Self::Lookup { source, .. } | Self::Local { source, .. } => {
                errno(source)
            }
            _ => None,
        }
    }

    /// Returns the system's message without the interrupted action; `None` for other errors.
    #[must_use]
    pub fn system_words(&self) -> Option<String> {
        match self.root() {
            Self::Network { source, .. } | Self::Lookup { source, .. } | Self::Local { source, .. } => {
                Some(io_words(source))
            }
            _ => None,
        }
    }

    /// Returns the error of a session without the terminal that it needs, although its command may have started.
    #[must_use]
    pub fn terminal_refused(host: &str) -> Self {
        Self::Lost {
            cause: Arc::new(Self::TerminalRefused {
                host: host.to_owned(),
            }),
            execution: Execution::MayHaveStarted,
        }
    }

    pub(crate) fn network(doing: impl Into<Doing>, source: io::Error) -> Self {
        Self::Network {
            doing: doing.into(),
            address: None,
            source: Arc::new(source),
        }
    }

    pub(crate) fn sftp(host: impl Into<String>, source: trunkline_sftp::Error) -> Self {
        Self::Sftp {
            host: host.into(),
            source,
        }
    }

    pub(crate) fn lookup(name: impl Into<String>, source: io::Error) -> Self {
        Self::Lookup {
            name: name.into(),
            source: Arc::new(source),
        }
    }

    /// Returns an error of this machine, during `doing`.
    pub fn local(doing: impl Into<Doing>, source: io::Error) -> Self {
        Self::Local {
            doing: doing.into(),
            source: Arc::new(source),
        }
    }

    /// Returns the error for something that `host`'s configuration forbids.
    pub fn configuration(host: &HostConfig, problem: impl Into<String>) -> Self {
        Self::Configuration {
            host: host.original_host.clone(),
            problem: problem.into(),
        }
    }

    /// Returns the error for a host that requires shared connections, with the reason why none can be used.
    pub fn not_shared(host: &str, why: impl std::fmt::Display) -> Self {
        Self::Configuration {
            host: host.to_owned(),
            problem: not_shared(why),
        }
    }

    pub(crate) fn agent_not_forwarded(host: &HostConfig) -> Self {
        Invalid::AgentNotForwarded(host.original_host.clone()).into()
    }

    /// Adds the server's text before its identification, if there was any.
    pub(crate) fn with_greeting(self, greeting: &Printable) -> Self {
        if greeting.is_empty() {
            return self;
        }
        Self::Greeted {
            cause: Arc::new(self),
            greeting: greeting.clone(),
        }
    }

    /// Adds the address that was reached, if it is known.
    pub(crate) fn with_address(self, address: Option<SocketAddr>) -> Self {
        match (self, address) {
            (
                cause @ (Self::ClosedByPeer { .. }
                | Self::Network { .. }
                | Self::Timeout { .. }
                | Self::Protocol { .. }),
                Some(address),
            ) => Self::At {
                address,
                cause: Arc::new(cause),
            },
            (error, _) => error,
        }
    }

    /// Adds the last line of a proxy command, if it wrote any.
    pub(crate) fn of_proxy(self, words: Printable) -> Self {
        if words.is_empty() {
            return self;
        }
        Self::Proxy {
            cause: Arc::new(self),
            words,
        }
    }

    /// Adds the jump host that failed. The need for the system's ssh is unchanged: the host behind it needs ssh, too.
    pub(crate) fn of_jump(self, jump: &Arc<HostConfig>) -> Self {
        match self {
            Self::NeedsSystemSsh { .. } => self,
            cause => Self::Jump {
                jump: jump.clone(),
                cause: Arc::new(cause),
            },
        }
    }

    /// Adds the length of an unanswered request that may have caused the end.
    pub(crate) fn with_long_text(self, length: usize) -> Self {
        let cause = Arc::new(self);
        Self::LongText { length, cause }
    }

    /// Adds what the error means for a command.
    #[must_use]
    pub fn with_execution(self, execution: Execution) -> Self {
        match (self, execution) {
            (error, Execution::DidNotStart) => error,
            (Self::Lost { cause, .. }, execution) => Self::Lost { execution, cause },
            (error, execution) => Self::Lost {
                execution,
                cause: Arc::new(error),
            },
        }
    }
}

impl From<crate::host_key::HostKeyError> for Error {
    fn from(error: crate::host_key::HostKeyError) -> Self {
        Self::HostKey(Arc::new(error))
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Config(Arc::new(error))
    }
}

impl From<KnownHostsError> for Error {
    fn from(error: KnownHostsError) -> Self {
        match error {
            KnownHostsError::Io { action, file, source } => {
                Self::local(format!("cannot {action} {}", file.display()), source)
            }
            error => Invalid::KnownHosts(error.to_string()).into(),
        }
    }
}

impl From<InventoryError> for Error {
    fn from(error: InventoryError) -> Self {
        match error {
            InventoryError::File { file, error } => {
                Self::local(format!("cannot read the inventory {}", file.display()), error)
            }
            error => Invalid::Hosts(error.to_string()).into(),
        }
    }
}

/// Streams over remote files fail as those over local ones do; the [`Error`] is inside.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        use trunkline_sftp::StatusCode;
        let kind = match &error {
            Error::File { status, .. } => match status.code {
                StatusCode::NO_SUCH_FILE => io::ErrorKind::NotFound,
                StatusCode::PERMISSION_DENIED => io::ErrorKind::PermissionDenied,
                StatusCode::OP_UNSUPPORTED => io::ErrorKind::Unsupported,
                StatusCode::EOF => io::ErrorKind::UnexpectedEof,
                _ => io::ErrorKind::Other,
            },
            Error::Timeout { .. } | Error::TimeUp { .. } => io::ErrorKind::TimedOut,
            Error::Local { source, .. } => source.kind(),
            error if error.kind() == ErrorKind::Network => io::ErrorKind::ConnectionReset,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// Returns a server's error about a file in the words of ssh's tools, or the interrupted action if it says nothing.
fn words_of_status(doing: &str, status: &trunkline_sftp::Status) -> String {
    // The path, which would follow "setting the attributes of", is named before.
    let doing = doing.trim_end_matches(" of");
    let words = match status.code {
        StatusCode::NO_SUCH_FILE => "No such file or directory",
        StatusCode::PERMISSION_DENIED => "Permission denied",
        StatusCode::FAILURE if status.has_own_words() => return status.message.to_string(),
        StatusCode::FAILURE => return format!("{doing} failed"),
        _ => return format!("{doing} failed: {status}"),
    };
    match status.has_own_words() && !status.message.eq_ignore_ascii_case(words) {
        true => format!("{words} ({})", status.message),
        false => words.to_owned(),
    }
}

fn show(path: &[u8]) -> Printable {
    Printable::line(path)
}

/// Returns the errno of an error that may have been passed on without its number.
pub(crate) fn errno(error: &io::Error) -> Option<i32> {
    use io::ErrorKind as Kind;
    error.raw_os_error().or_else(|| {
        let number = match error.kind() {
            Kind::NotFound => Errno::NOENT,
            Kind::PermissionDenied => Errno::ACCESS,
            Kind::AlreadyExists => Errno::EXIST,
            Kind::IsADirectory => Errno::ISDIR,
            Kind::NotADirectory => Errno::NOTDIR,
            Kind::DirectoryNotEmpty => Errno::NOTEMPTY,
            Kind::ReadOnlyFilesystem => Errno::ROFS,
            Kind::StorageFull => Errno::NOSPC,
            Kind::QuotaExceeded => Errno::DQUOT,
            Kind::FileTooLarge => Errno::FBIG,
            _ => return None,
        };
        Some(number.raw_os_error())
    })
}

/// Returns the system's message, without std's additions.
pub(crate) fn io_words(error: &io::Error) -> String {
    let text = words_of(error);
    // std adds this prefix to every failure of getaddrinfo.
    match text.strip_prefix("failed to lookup address information: ") {
        Some(reason) => reason.to_owned(),
        None => text,
    }
}

fn stage(stage: Option<LogInStage>) -> String {
    stage.map_or_else(String::new, |stage| format!(" during {stage}"))
}

fn list(reasons: &[crate::config::Reason]) -> String {
    reasons
        .iter()
        .map(|reason| format!("{} {} ({})", reason.directive, reason.value, reason.why))
        .collect::<Vec<_>>()
        .join("; ")
}

fn how(status: Option<u32>, signal: Option<&str>) -> String {
    match (status, signal) {
        (Some(status), _) => format!(", with exit status {status}"),
        (None, Some(signal)) => format!(", by SIG{}", Printable::line(signal)),
        (None, None) => String::new(),
    }
}

fn colon(text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else {
        format!(": {text}")
    }
}

fn seconds(duration: &Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds.fract() == 0.0 {
        format!("{seconds} s")
    } else {
        format!("{seconds:.1} s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_or_the_system_said_of_a_file_has_its_errno() {
        let of_server = |code| Error::File {
            host: "db1".into(),
            doing: "reading",
            path: "notes".into(),
            status: trunkline_sftp::Status {
                code,
                message: String::new().into(),
            },
        };
        assert_eq!(of_server(StatusCode::NO_SUCH_FILE).errno(), Some(2));
        assert_eq!(of_server(StatusCode::PERMISSION_DENIED).errno(), Some(13));
        assert_eq!(of_server(StatusCode::FAILURE).errno(), None);
        let local = Error::local("reading", io::Error::from_raw_os_error(28));
        assert_eq!(local.errno(), Some(28));
        let retold = Error::local(
            "reading",
            io::Error::new(io::ErrorKind::IsADirectory, "it is a directory"),
        );
        assert_eq!(retold.errno(), Some(21));
    }

    #[test]
    fn a_lost_connection_says_whether_the_command_may_have_run() {
        let lost = Error::ClosedByPeer {
            host: "db1".into(),
            during: None,
            reset: false,
        }
        .with_execution(Execution::MayHaveStarted);
        assert_eq!(lost.execution(), Execution::MayHaveStarted);
        assert_eq!(lost.kind(), ErrorKind::Network);
        assert_eq!(
            lost.to_string(),
            "the connection to db1 was closed by the other end; the command may have started"
        );
    }

    #[test]
    fn there_is_no_way_where_connecting_failed_whatever_it_is_called() {
        let refused = || io::Error::from_raw_os_error(111);
        let connect = Doing::Connect {
            host: "db1".into(),
            port: 22,
        };
        assert!(Error::network(connect.clone(), refused()).is_no_way());
        assert!(!Error::network(connect.to_string(), refused()).is_no_way());
    }

    #[test]
    fn system_errors_are_told_without_numbers() {
        let refused = Error::network(
            "connecting to 127.0.0.1 port 9",
            io::Error::from_raw_os_error(111),
        );
        assert_eq!(
            refused.to_string(),
            "connecting to 127.0.0.1 port 9: Connection refused"
        );
    }
}
