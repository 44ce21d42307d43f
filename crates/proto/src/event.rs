//! Events of a connection for the application.

use bytes::Bytes;

use crate::channels::channel::ChannelId;
use crate::channels::event::ChannelEvent;

/// An event that the application has to know or decide about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The server proved that it owns this host key. Nothing else happens before
    /// [`Connection::accept_host_key`](crate::Connection::accept_host_key).
    HostKey(Bytes),
    /// The server waits for an authentication request.
    Authenticate(AuthTurn),
    /// The key of the last probe would be accepted.
    PublicKeyAccepted,
    /// The password is right but must be changed: answer with a new one and
    /// [`Connection::authenticate_password`](crate::Connection::authenticate_password).
    PasswordExpired {
        /// The server's text.
        prompt: String,
    },
    /// Questions of keyboard-interactive: answer with
    /// [`Connection::answer_questions`](crate::Connection::answer_questions), even if there are none.
    Questions {
        /// The title; may be empty.
        name: String,
        /// The instructions; may be empty.
        instruction: String,
        /// The questions.
        prompts: Vec<KeyboardPrompt>,
    },
    /// Text to show to the user before authentication is over.
    Banner(String),
    /// Authentication succeeded.
    Authenticated,
    /// An event of channels or global requests.
    Channel(ChannelEvent),
    /// The answer to [`Connection::ping`](crate::Connection::ping).
    Pong,
    /// The outcome of [`Connection::open_with_log_in`](crate::Connection::open_with_log_in): the session is open, or it
    /// was refused, dropped, or lost with the request that it followed.
    EarlySession(Option<ChannelId>),
    /// The server has started the command that was sent with the log-in: it processes its packets in order.
    EarlyCommand,
}

/// The server waits for an authentication request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuthTurn {
    /// Methods that can continue, in the server's order; `None` before the first answer.
    pub methods: Option<Vec<String>>,
    /// The last request was right, but the server wants another method.
    pub partial_success: bool,
}

/// One question of keyboard-interactive authentication (RFC 4256 section 3.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyboardPrompt {
    /// The text to show, safe for a terminal.
    pub text: String,
    /// The answer may be seen while it is typed.
    pub echo: bool,
}
