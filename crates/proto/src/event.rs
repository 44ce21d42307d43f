//! What a connection tells the application.

use bytes::Bytes;
use trunkline_text::Printable;

use crate::channel::{ChannelId, Stream};
use crate::request::{GlobalRequestId, IncomingKind, OpenFailure};

/// Something for the application to know or to decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The server proved that it owns this host key. Nothing else happens before [`Connection::accept_host_key`](crate::Connection::accept_host_key).
    HostKey(Bytes),
    /// The server waits for an authentication request.
    Authenticate(AuthTurn),
    /// The key of the last probe would be accepted.
    PublicKeyAccepted,
    /// The password is right but must be changed: answer with [`Connection::authenticate_password`](crate::Connection::authenticate_password) and a new one.
    PasswordExpired {
        /// The server's words.
        prompt: String,
    },
    /// Questions of keyboard-interactive: answer with [`Connection::answer_questions`](crate::Connection::answer_questions), also when there are none.
    Questions {
        /// A title, or empty.
        name: String,
        /// Instructions, or empty.
        instruction: String,
        /// The questions.
        prompts: Vec<KeyboardPrompt>,
    },
    /// Text to show to the user before authentication is over.
    Banner(String),
    /// Authentication succeeded.
    Authenticated,
    /// About channels and global requests.
    Channel(ChannelEvent),
    /// The answer to [`Connection::ping`](crate::Connection::ping).
    Pong,
}

/// The server waits for an authentication request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuthTurn {
    /// Methods that can continue, in the server's order; `None` before the first request was answered.
    pub methods: Option<Vec<String>>,
    /// The request before was right, but the server wants one more method.
    pub partial_success: bool,
}

/// One question of keyboard-interactive authentication (RFC 4256 section 3.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyboardPrompt {
    /// The text to show, safe for a terminal.
    pub text: String,
    /// Whether the answer may be seen while it is typed.
    pub echo: bool,
}

/// Something happened to a channel, or to the connection as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChannelEvent {
    /// The server opened the channel that we asked for.
    Opened(ChannelId),
    /// The server refused to open it. It is gone; nothing ran.
    OpenFailed {
        /// The channel.
        id: ChannelId,
        /// The reason code.
        reason: OpenFailure,
        /// The server's words.
        description: Printable,
    },
    /// The server wants to open a channel: answer with `accept` or `reject`.
    Incoming {
        /// Its number here.
        id: ChannelId,
        /// What it is.
        kind: IncomingKind,
    },
    /// Data arrived. Its size must be returned by `consumed` once read.
    Data {
        /// The channel.
        id: ChannelId,
        /// Which stream.
        stream: Stream,
        /// The bytes.
        data: Bytes,
    },
    /// The server sends no more data.
    Eof(ChannelId),
    /// The answer to a request that wanted one.
    Reply {
        /// The channel.
        id: ChannelId,
        /// Whether it was granted.
        success: bool,
        /// Whether it was the exec, shell or subsystem request.
        started: bool,
    },
    /// `exit-status` (RFC 4254 section 6.10).
    ExitStatus {
        /// The channel.
        id: ChannelId,
        /// The command's status.
        status: u32,
    },
    /// `exit-signal`.
    ExitSignal {
        /// The channel.
        id: ChannelId,
        /// Signal name without "SIG".
        signal: String,
        /// Whether it left a core.
        core_dumped: bool,
        /// The server's words.
        message: Printable,
    },
    /// Data of the channel was handed to the transport, so that there is room for as much.
    Sent {
        /// The channel.
        id: ChannelId,
        /// Bytes.
        len: usize,
    },
    /// The channel is closed in both directions and gone.
    Closed(ChannelId),
    /// The answer to a global request.
    GlobalReply {
        /// Which request.
        id: GlobalRequestId,
        /// Whether it was granted.
        success: bool,
        /// The answer's body.
        data: Bytes,
    },
    /// `hostkeys-00@openssh.com`: all host keys that the server has, as strings in a row.
    HostKeys(Bytes),
}
