//! Failures, sorted by who is to blame, and their meaning for the requested command.
//!
//! Decisions are made by values, never by what an error says: only `Display` has English.

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

/// An error of the engine. Cheap to clone, because everyone who waits for one connection is told of its end.
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
    /// A host's name has no address, or nobody could be asked for it.
    #[error("looking up {name}: {}", io_words(.source))]
    Lookup {
        name: String,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The server closed the connection without a word.
    #[error("the connection to {host} was closed by the other end{}", stage(*.during))]
    ClosedByPeer {
        host: String,
        /// The stage of the log-in; `None` when in use.
        during: Option<LogInStage>,
        /// Whether it was reset, instead of ended.
        reset: bool,
    },
    /// Time is up.
    #[error("{doing}: no answer within {}", seconds(.after))]
    Timeout {
        /// The interrupted action.
        doing: Doing,
        /// The bound that was hit.
        after: Duration,
    },
    /// A command has not ended in the time that it was given.
    #[error("{command} did not end within {}", seconds(.after))]
    TimeUp {
        /// The command: "the command on web1".
        command: String,
        /// The time that it was given.
        after: Duration,
    },
    /// The protocol failed.
    #[error("{host}: {source}")]
    Protocol {
        host: String,
        source: trunkline_proto::Error,
    },
    /// The host key cannot be trusted. Nothing was signed and nothing sent.
    #[error(transparent)]
    HostKey(Arc<crate::host_key::HostKeyError>),
    /// No authentication method led in.
    #[error("{user}@{host}: permission denied ({}){}", .allowed.join(","), colon(.advice))]
    Authentication {
        user: String,
        host: String,
        /// Methods with which the server would have continued.
        allowed: Vec<String>,
        /// Whether the last attempt was right, and the server wants one of these besides.
        partial: bool,
        /// The attempts and omissions, with reasons; may be empty.
        advice: String,
        /// The part of that which was not reported while it was tried.
        untold: Box<str>,
        /// The configuration lets ssh try what the engine cannot: a key of another type, a signature with SHA-1.
        only_ssh: bool,
        /// An agent's user did not allow the signature, and ssh has nothing but keys to try.
        declined: bool,
    },
    /// The log-in waits for an answer of somebody else's, and this client has nobody who would wait for that.
    #[error("{}, and nobody can be asked here", .0.why())]
    Unanswered(Waiting),
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(Arc<ConfigError>),
    /// The host needs what only the system's ssh can do.
    #[error("{host} needs the system's ssh: {}", list(.reasons))]
    NeedsSystemSsh {
        host: String,
        /// The directives that ask for it.
        reasons: Vec<crate::config::Reason>,
    },
    /// The host's configuration does not allow what was asked for, or contradicts itself.
    #[error("{host}: {problem}")]
    Configuration {
        /// The host, as the user calls it.
        host: String,
        /// The directive, and what to do about it.
        problem: String,
    },
    /// The request is malformed, or impossible as it is.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The user was to confirm the use of a connection, and did not.
    #[error("{host}: the use of its connection {why}")]
    Denied {
        host: String,
        /// "was not allowed", or why nobody could be asked.
        why: &'static str,
    },
    /// A name, a path or a port of this machine that is somebody else's for the time being.
    #[error("{0}")]
    Busy(String),
    /// A mux socket whose connections another request has made.
    #[error("{0} is in use for connections with other settings")]
    OtherSettings(String),
    /// The caller stopped it; the text says what that means for what had been done.
    #[error("stopped before it finished; {0}")]
    Cancelled(&'static str),
    /// There is no connection, and none was to be made.
    #[error("{host}: {why}")]
    NotConnected { host: String, why: Absence },
    /// The system's ssh failed.
    #[error("{about}: {said}")]
    SystemSsh {
        /// The host, or the socket of a master.
        about: String,
        /// Its complaint.
        said: String,
        /// It could ask nobody.
        unattended: bool,
    },
    /// A mistake in this library.
    #[error("{0}; this is a bug in trunkline, please report it")]
    Bug(&'static str),
    /// The server refused a session, a forwarding or a request.
    #[error("{host} refused {what}{}", colon(.description))]
    Refused {
        host: String,
        /// The refused request.
        what: ServerRequest,
        /// RFC 4254's reason code, where there is one.
        reason: u32,
        /// The server's words, or empty.
        description: Printable,
    },
    /// The connection could not be made, and in front of its identification the server had said something, which may be
    /// the reason (RFC 4253 section 4.2; "Exceeded MaxStartups").
    #[error("{cause}; the server said: {greeting}")]
    Greeted {
        cause: Arc<Error>,
        /// The last line of what the server said.
        greeting: Printable,
    },
    /// The connection could not be made, though there was a way to this address.
    #[error("{cause}")]
    At {
        /// The server's.
        address: SocketAddr,
        cause: Arc<Error>,
    },
    /// The connection could not be made, and the ProxyCommand on the way had written to its standard error, which may be
    /// the reason.
    #[error("{cause}; the ProxyCommand said: {words}")]
    Proxy {
        cause: Arc<Error>,
        /// The last line that it wrote.
        words: Printable,
    },
    /// The host was not reached, because a jump host on the way failed or refused.
    #[error("jump host {}: {cause}", .jump.original_host)]
    Jump {
        /// The configuration of the jump host.
        jump: Arc<HostConfig>,
        cause: Arc<Error>,
    },
    /// The connection was lost while a command was under way.
    #[error("{cause}; the command {execution}")]
    Lost {
        /// Whether it may have run.
        execution: Execution,
        /// The reason why the connection is gone.
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
        /// By whom or why.
        why: String,
    },
    /// The server did not do something to a file.
    #[error("{host}:{}: {}", show(.path), words_of_status(.doing, .status))]
    File {
        host: String,
        /// The interrupted action: "opening", "removing".
        doing: &'static str,
        /// The path on the server.
        path: bytes::Bytes,
        /// The server's code and words.
        status: trunkline_sftp::Status,
    },
    /// The session ended before the server had said what became of an operation on a file.
    #[error("{cause}; {doing} {} may have happened", show(.path))]
    FileLost {
        /// The interrupted action.
        doing: &'static str,
        /// The path on the server.
        path: bytes::Bytes,
        /// The reason why the session is gone.
        cause: Arc<Error>,
    },
    /// An SFTP session failed.
    #[error("{host}: {source}")]
    Sftp {
        host: String,
        source: trunkline_sftp::Error,
    },
    /// An SFTP session of a client's could not be carried over to a new connection.
    #[error("the SFTP session on {host} was lost, and could not be carried over: {why}")]
    SftpLost { host: String, why: String },
    /// The server gives a session no terminal that needs one.
    #[error("{host}: the server does not give the session a terminal")]
    TerminalRefused { host: String },
    /// The server's SFTP has stopped answering, while its connection goes on.
    #[error("{host}: its SFTP server has not answered for {} s, though the connection is alive; the session was ended", .after.as_secs())]
    SftpSilent {
        host: String,
        /// The time that was waited.
        after: Duration,
    },
    /// The server's SFTP program ended before it began: it cannot be started there, or refuses to.
    #[error("{host}: sftp-server on the server ended before it began{}{}", how(*.status, .signal.as_deref()), colon(.words.as_ref()))]
    SftpUnstarted {
        host: String,
        /// Its exit status, if the server told one.
        status: Option<u32>,
        /// The signal that ended it, without "SIG".
        signal: Option<String>,
        /// The end of what it said on standard error; may be empty.
        words: Printable,
    },
    /// Something on this machine.
    #[error("{doing}: {}", io_words(.source))]
    Local {
        /// The interrupted action, with the path.
        doing: Doing,
        /// The system's error.
        source: Arc<io::Error>,
    },
}

impl Error {
    /// Returns whether there is nothing on the server under the path that was asked about.
    pub(crate) fn is_no_such_file(&self) -> bool {
        matches!(self, Self::File { status, .. } if status.code == trunkline_sftp::StatusCode::NO_SUCH_FILE)
    }

    /// Returns whether the server ended the connection of its own accord.
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

    /// Returns whether the connection was there, and the other end's system took no more on it.
    pub(crate) fn is_reset(&self) -> bool {
        let Self::Network { source, .. } = self else {
            return false;
        };
        matches!(
            source.kind(),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
        )
    }

    /// The bytes of a request that the server may have ended the connection for.
    pub fn long_text(&self) -> Option<usize> {
        match self {
            Self::LongText { length, .. } => Some(*length),
            Self::Lost { cause, .. } => cause.long_text(),
            _ => None,
        }
    }

    /// Returns whether there is no way to the host as things are: what would only say the same if it were tried again
    /// at once.
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

    /// Returns whether it stays as it is until somebody does something about it: another host key, a log-in that is
    /// refused.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self.root(), Self::Authentication { .. } | Self::HostKey(_))
    }

    /// Returns whether an agent's user did not allow the log-in: ssh, which has nothing else to try, would ask them once more.
    pub fn is_declined(&self) -> bool {
        matches!(self.root(), Self::Authentication { declined: true, .. })
    }

    /// Returns the original error, without what was learnt around it: its meaning for a command, the server's earlier
    /// words.
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

    /// The address at which a connection could not be made, where there was a way to it. A jump host's is in its own error.
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

    /// The reason code and the words of a server that ended the connection with SSH_MSG_DISCONNECT.
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
                // sshd's words when MaxAuthTries is reached, with the code of a protocol error (auth.c,
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
                ConfigError::Start { .. } | ConfigError::NoAccount(_) => ErrorKind::Local,
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

    /// Returns the meaning for the requested command, or operation on a file. Every error but a lost connection comes
    /// before the start; a file's is the server's answer, after which nothing more will happen.
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

    /// The errno of this machine that says what the system, or a server of a file, said: `ENOENT` for SFTP's "no such
    /// file". `None` where there is none.
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

    /// The words of the system that failed, without what was being done. `None` where it was not the system.
    #[must_use]
    pub fn system_words(&self) -> Option<String> {
        match self.root() {
            Self::Network { source, .. } | Self::Lookup { source, .. } | Self::Local { source, .. } => {
                Some(io_words(source))
            }
            _ => None,
        }
    }

    /// A session without the terminal that it needs, whose command the server may have begun all the same.
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

    /// Something on this machine that failed while `doing` was done.
    pub fn local(doing: impl Into<Doing>, source: io::Error) -> Self {
        Self::Local {
            doing: doing.into(),
            source: Arc::new(source),
        }
    }

    /// Returns the error for something that `host`'s configuration does not allow.
    pub fn configuration(host: &HostConfig, problem: impl Into<String>) -> Self {
        Self::Configuration {
            host: host.original_host.clone(),
            problem: problem.into(),
        }
    }

    /// A host may be reached over shared connections only, and this is `why` none can be used.
    pub fn not_shared(host: &str, why: impl std::fmt::Display) -> Self {
        Self::Configuration {
            host: host.to_owned(),
            problem: not_shared(why),
        }
    }

    pub(crate) fn agent_not_forwarded(host: &HostConfig) -> Self {
        Invalid::AgentNotForwarded(host.original_host.clone()).into()
    }

    /// With what the server had said in front of its identification, if it had.
    pub(crate) fn greeted(self, greeting: &Printable) -> Self {
        if greeting.is_empty() {
            return self;
        }
        Self::Greeted {
            cause: Arc::new(self),
            greeting: greeting.clone(),
        }
    }

    /// Returns the error with the address that was reached, if it is known.
    pub(crate) fn at(self, address: Option<SocketAddr>) -> Self {
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

    /// With the last line of what a proxy command had said, if it had said anything.
    pub(crate) fn of_proxy(self, words: Printable) -> Self {
        if words.is_empty() {
            return self;
        }
        Self::Proxy {
            cause: Arc::new(self),
            words,
        }
    }

    /// The same, of a jump host on the way. That it needs the system's ssh is left as it is: so does what is behind it.
    pub(crate) fn of_jump(self, jump: &Arc<HostConfig>) -> Self {
        match self {
            Self::NeedsSystemSsh { .. } => self,
            cause => Self::Jump {
                jump: jump.clone(),
                cause: Arc::new(cause),
            },
        }
    }

    /// The same end, seen by a request of `length` bytes of text that the server had not answered.
    pub(crate) fn with_long_text(self, length: usize) -> Self {
        let cause = Arc::new(self);
        Self::LongText { length, cause }
    }

    /// The same end, seen by a command that may have begun.
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

/// Streams over files on a server fail as streams over local ones do; the [`Error`] is inside.
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

/// Returns a server's error about a file, in the words of ssh's tools, or the interrupted action if its own say
/// nothing.
fn words_of_status(doing: &str, status: &trunkline_sftp::Status) -> String {
    // The path, which "setting the attributes of" has behind it, is said before.
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

/// A server's path for people.
fn show(path: &[u8]) -> Printable {
    Printable::line(path)
}

/// The system's number for an error that may have been told on in other words.
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

/// The system's words, without what std says before and after them.
pub(crate) fn io_words(error: &io::Error) -> String {
    let text = words_of(error);
    // std puts the same words before every answer of getaddrinfo.
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
