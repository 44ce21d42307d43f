//! The interrupted action of a failure, as a value to decide by; only its [`Display`](fmt::Display) has English.

use std::fmt;
use std::net::IpAddr;

/// An interrupted action.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Doing {
    /// Connecting to a server by TCP.
    Connect {
        /// The name or address.
        host: String,
        /// The port.
        port: u16,
    },
    /// Logging in to a server.
    LogIn {
        /// The stage that was reached.
        stage: LogInStage,
        /// The host.
        host: String,
    },
    /// Looking up BindAddress.
    LookUpBindAddress(String),
    /// Binding a connection to BindAddress.
    Bind(IpAddr),
    /// Looking up the name for a forwarding to listen on.
    LookUpListener(String),
    /// An action that no code decides by, as text that a colon and the reason follow.
    Other(String),
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect { host, port } => write!(f, "connecting to {host} port {port}"),
            Self::LogIn { stage, host } => write!(f, "{stage} with {host}"),
            Self::LookUpBindAddress(name) => write!(f, "looking up BindAddress {name}"),
            Self::Bind(address) => write!(f, "bind {address}"),
            // ssh's message (channels.c, channel_setup_fwd_listener_tcpip), which scripts look for.
            Self::LookUpListener(name) => {
                write!(f, "channel_setup_fwd_listener_tcpip: getaddrinfo({name})")
            }
            Self::Other(words) => f.write_str(words),
        }
    }
}

impl From<String> for Doing {
    fn from(words: String) -> Self {
        Self::Other(words)
    }
}

impl From<&str> for Doing {
    fn from(words: &str) -> Self {
        Self::Other(words.to_owned())
    }
}

/// The stage of a log-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogInStage {
    /// The server has not identified itself.
    Identification,
    /// Its host key is not known.
    KeyExchange,
    /// The user is not logged in.
    Authentication,
}

impl fmt::Display for LogInStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Identification => "the exchange of identifications",
            Self::KeyExchange => "key exchange",
            Self::Authentication => "authentication",
        })
    }
}

/// A request to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerRequest {
    /// A session whose purpose is not known yet.
    Session,
    /// To run a command.
    Exec,
    /// To start the user's shell.
    Shell,
    /// To start a subsystem.
    Subsystem(String),
    /// To connect to an address or a path.
    Connect(String),
    /// A connection that the server had forwarded to this side.
    Incoming,
    /// To listen on an address.
    Listen(String),
}

impl fmt::Display for ServerRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session => f.write_str("another session"),
            Self::Exec => f.write_str("to run the command"),
            Self::Shell => f.write_str("to start a shell"),
            Self::Subsystem(name) => write!(f, "to start the subsystem {name}"),
            Self::Connect(target) => write!(f, "to connect to {target}"),
            Self::Incoming => f.write_str("a forwarded connection"),
            Self::Listen(place) => write!(f, "to listen on {place}"),
        }
    }
}
