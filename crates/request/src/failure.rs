//! Failures, classified by the party to blame, and their meaning for the command.

mod invalid;

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::LogLevel;

pub use invalid::Invalid;

/// A failure, as reported over the control socket and to programs in other languages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The party to blame.
    pub kind: ErrorKind,
    /// The furthest state that the command may have reached.
    pub execution: Execution,
    /// A sentence for the user, without the command's state.
    pub message: String,
    /// True if a command was running. Then `Display` adds its state.
    pub was_under_way: bool,
    /// The errno of this machine for the error of the system or of a file's server.
    pub errno: Option<i32>,
    /// The value by which programs distinguish failures of one kind.
    pub cause: Cause,
    /// The lines that ssh(1) would print, for a client that stands for it; `None` if ssh has none.
    pub in_words_of_ssh: Option<Vec<WordsOfSsh>>,
}

/// One or more lines of ssh(1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WordsOfSsh {
    /// The level. `None` for lines on standard error at any level: those that ssh does not log, and the output of
    /// another ssh for a jump host.
    pub level: Option<LogLevel>,
    /// The lines.
    pub text: String,
}

impl Failure {
    /// Returns a failure before the start, without details.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            execution: Execution::DidNotStart,
            message: words_of(message.into()),
            was_under_way: false,
            errno: None,
            cause: Cause::Other,
            in_words_of_ssh: None,
        }
    }

    /// Returns the failure for a use of something that was closed on this side.
    pub fn closed_locally(what: &str) -> Self {
        Self {
            cause: Cause::Closed,
            ..Self::new(ErrorKind::Local, format!("the {what} is closed"))
        }
    }

    /// Returns true if it needs a user's action before trying again: another host key, a refused log-in.
    pub fn is_final(&self) -> bool {
        matches!(self.kind, ErrorKind::HostKey | ErrorKind::Authentication)
    }

    /// Marks the failure as one after a possible start of the command.
    #[must_use]
    pub fn after_start(mut self) -> Self {
        if self.execution == Execution::DidNotStart {
            self.execution = Execution::MayHaveStarted;
        }
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.was_under_way {
            true => write!(f, "; the command {}", self.execution),
            false => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

/// A kind of algorithm that client and server agree on (RFC 4253 section 7.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlgorithmKind {
    /// Key exchange.
    Kex,
    /// The server's key.
    HostKey,
    /// Encryption.
    Cipher,
    /// Message authentication.
    Mac,
    /// Compression.
    Compression,
}

/// The cause of a failure, with facts for programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// The kind is all that is known.
    Other,
    /// The request is malformed or impossible.
    Invalid(Invalid),
    /// A host's name has no address, or could not be looked up.
    Lookup,
    /// The network failed.
    Network {
        /// The address that could not be connected to.
        address: Option<SocketAddr>,
    },
    /// The server closed the connection without a message.
    ClosedByPeer,
    /// The server ended the connection with SSH_MSG_DISCONNECT.
    Disconnected {
        /// RFC 4253 section 11.1.
        reason: u32,
        /// The server's message, or empty.
        words: String,
    },
    /// The server shares no algorithm of this kind with us.
    NothingInCommon(AlgorithmKind),
    /// All authentication methods failed.
    Authentication {
        /// Methods with which the server would have continued.
        allowed: Vec<String>,
        /// True if the last attempt succeeded, but the server requires another method.
        partial: bool,
    },
    /// The server refused a channel or a request.
    Refused {
        /// RFC 4254 section 5.1; 0 if there is none.
        reason: u32,
        /// The server's message, or empty.
        words: String,
    },
    /// The server refused an operation on a file.
    File {
        /// SSH_FX_… (draft-ietf-secsh-filexfer-02 section 7).
        status: u32,
        /// The server's message, or empty.
        words: String,
    },
    /// The server's SFTP program ended before it began. Both fields are empty if the server did not say how.
    SftpUnstarted {
        /// Its exit status.
        status: Option<u32>,
        /// The signal that ended it, without "SIG".
        signal: Option<String>,
    },
    /// A mux socket serves connections with other settings.
    OtherSettings,
    /// The system's ssh failed, and had no one to ask.
    Unattended,
    /// There is no connection, and the request does not allow a new one.
    NotConnected(Absence),
    /// The server ended the connection after a long request, which may be the reason.
    LongText,
    /// Something was used after it was closed on this side.
    Closed,
}

/// The reason why there is no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Absence {
    /// It was never made, or has ended.
    #[error("no connection")]
    Unmade,
    /// The master of the system's ssh has died.
    #[error("its master has died")]
    Dead,
    /// The master of the system's ssh does not answer.
    #[error("its master does not answer")]
    Silent,
    /// The server forwarded it, and has closed it.
    #[error("the forwarded connection has been closed")]
    ForwardingClosed,
}

/// The meaning of a failure for a command: may it have run?
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Execution {
    /// It did not start. Trying again is safe.
    DidNotStart,
    /// It was sent to the server and may have started; its end is not known.
    MayHaveStarted,
    /// It ran to its end.
    Finished,
}

impl Execution {
    /// Returns the words for messages and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DidNotStart => "did not start",
            Self::MayHaveStarted => "may have started",
            Self::Finished => "finished",
        }
    }
}

impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The party to blame. The names are stable: exit codes, exceptions and JSON derive from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The server broke the protocol, or shares no algorithm with us.
    Peer,
    /// The network: unreachable, refused, reset, closed.
    Network,
    /// A time limit was exceeded.
    Timeout,
    /// The host key is unknown, changed or revoked.
    HostKey,
    /// The server accepted none of our authentication methods.
    Authentication,
    /// The configuration or the request.
    Configuration,
    /// The server refused: a session, a forwarding, a command.
    Limit,
    /// The server could not handle a file: it is missing, forbidden, or the disk is full.
    File,
    /// This machine: a file, a socket, memory.
    Local,
}

impl ErrorKind {
    /// Returns true if the cause may be temporary, so that trying again later makes sense. Everything that is kept
    /// running (a stream, a remote forwarding) decides by this alone. It does not say whether the command ran; see
    /// `Error::execution`.
    ///
    /// Errors of host keys, log-ins and configurations persist until someone fixes them, and servers penalise further
    /// attempts (PerSourcePenalties, locked accounts). A server's answer about a file is final. This machine may run
    /// out of descriptors or memory temporarily.
    pub fn may_pass(self) -> bool {
        match self {
            Self::Peer | Self::Network | Self::Timeout | Self::Limit | Self::Local => true,
            Self::HostKey | Self::Authentication | Self::Configuration | Self::File => false,
        }
    }

    /// Returns the name in JSON and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Network => "network",
            Self::Timeout => "timeout",
            Self::HostKey => "host_key",
            Self::Authentication => "authentication",
            Self::Configuration => "configuration",
            Self::Limit => "limit",
            Self::File => "file",
            Self::Local => "local",
        }
    }
}

/// Formats an error without the "(os error 2)" that std appends, which tells a user nothing.
///
/// ```
/// let missing = std::io::Error::from_raw_os_error(2);
/// let words = trunkline_request::words_of(format_args!("reading x: {missing}"));
///
/// assert_eq!(words, "reading x: No such file or directory");
/// ```
#[must_use]
pub fn words_of(error: impl fmt::Display) -> String {
    const CODE: &str = " (os error ";
    let mut text = error.to_string();
    let mut from = 0;
    while let Some(start) = text[from..].find(CODE).map(|found| from + found) {
        let number = start + CODE.len();
        let digits = text[number..].bytes().take_while(u8::is_ascii_digit).count();
        let end = number + digits;
        if digits > 0 && text[end..].starts_with(')') {
            text.replace_range(start..=end, "");
            from = start;
        } else {
            from = number;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_text_says_what_became_of_a_command_that_was_under_way() {
        let mut failure = Failure::new(ErrorKind::Network, "connection lost");
        assert_eq!(failure.to_string(), "connection lost");
        failure.was_under_way = true;
        failure.execution = Execution::MayHaveStarted;
        assert_eq!(failure.message, "connection lost");
        assert_eq!(
            failure.to_string(),
            "connection lost; the command may have started"
        );
    }

    #[test]
    fn an_error_is_told_without_its_number() {
        for (error, words) in [
            ("reading a: gone (os error 2)", "reading a: gone"),
            ("gone (os error 2): bad (os error 13); done", "gone: bad; done"),
            (
                "(os error 2) (os error x) (os error ",
                "(os error 2) (os error x) (os error ",
            ),
            ("é (os error 5)é", "éé"),
            ("", ""),
        ] {
            assert_eq!(words_of(error), words);
            assert_eq!(Failure::new(ErrorKind::Local, error).message, words);
        }
    }
}
