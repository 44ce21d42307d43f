//! Requests between the two sides (RFC 4254): channels, requests in them, and global requests.

use bytes::{Bytes, BytesMut};

use super::channel::{ChannelId, MAX_DATA};
use super::window::INITIAL_WINDOW;
use crate::message;
use crate::wire::{Reader, Writer};

/// A terminal's size, in characters, and in pixels if known (RFC 4254 section 6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TerminalSize {
    /// Columns.
    pub columns: u32,
    /// Rows.
    pub rows: u32,
    /// Width in pixels, or 0.
    pub width: u32,
    /// Height in pixels, or 0.
    pub height: u32,
}

/// Requests for a session channel (RFC 4254 section 6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChannelRequest {
    /// `pty-req`.
    Pty {
        /// TERM.
        term: String,
        /// The terminal's size.
        size: TerminalSize,
        /// Encoded terminal modes (section 8).
        modes: Vec<u8>,
    },
    /// `env`.
    Env {
        /// The variable's name.
        name: String,
        /// Its value.
        value: Vec<u8>,
    },
    /// `exec`: runs a command.
    Exec(Vec<u8>),
    /// `shell`: runs the login shell.
    Shell,
    /// `subsystem`.
    Subsystem(String),
    /// `window-change`.
    WindowChange(TerminalSize),
    /// `signal`, by name without "SIG".
    Signal(String),
    /// `break` (RFC 4335), for this many milliseconds.
    Break(u32),
    /// `auth-agent-req@openssh.com`: forwards the agent.
    AgentForwarding,
    /// `eow@openssh.com` (OpenSSH's PROTOCOL, section 2.1): the command's output is no longer read.
    EndOfWrite,
    /// Any other request that starts no program, as it is sent.
    Other {
        /// The request's name.
        name: String,
        /// The server should answer.
        wants_reply: bool,
        /// The rest of the message.
        body: Bytes,
    },
}

impl ChannelRequest {
    /// Returns whether this starts the session's program.
    pub fn starts(&self) -> bool {
        matches!(self, Self::Exec(_) | Self::Shell | Self::Subsystem(_))
    }

    /// Returns whether this gives the server the use of something on this side: the agent, a display.
    pub fn lends(&self) -> bool {
        match self {
            Self::AgentForwarding => true,
            Self::Other { name, .. } => {
                matches!(name.split('@').next(), Some("x11-req" | "auth-agent-req"))
            }
            _ => false,
        }
    }

    /// Returns whether the server should answer. As in OpenSSH's client, window changes, signals and variables want no
    /// answer.
    pub fn wants_reply(&self) -> bool {
        match self {
            Self::WindowChange(_) | Self::Signal(_) | Self::Env { .. } | Self::EndOfWrite => false,
            Self::Other { wants_reply, .. } => *wants_reply,
            _ => true,
        }
    }

    /// Returns the length of its text: everything but fields of a fixed size.
    pub fn text_len(&self) -> usize {
        match self {
            Self::Pty { term, modes, .. } => term.len() + modes.len(),
            Self::Env { name, value } => name.len() + value.len(),
            Self::Exec(command) => command.len(),
            Self::Subsystem(name) | Self::Signal(name) => name.len(),
            Self::Other { name, body, .. } => name.len() + body.len(),
            Self::Shell
            | Self::WindowChange(_)
            | Self::Break(_)
            | Self::AgentForwarding
            | Self::EndOfWrite => 0,
        }
    }

    /// Returns whether sshd would end the connection over it: a NUL in a text, or truncated terminal modes.
    pub fn is_malformed(&self) -> bool {
        match self {
            Self::Pty { term, modes, .. } => nul_in(term) || !are_whole(modes),
            Self::Env { name, value } => nul_in(name) || nul_in(value),
            Self::Exec(command) => nul_in(command),
            Self::Subsystem(name) | Self::Signal(name) => nul_in(name),
            Self::Other { name, body, .. } => nul_in(name) || !is_whole(name, body),
            Self::Shell
            | Self::WindowChange(_)
            | Self::Break(_)
            | Self::AgentForwarding
            | Self::EndOfWrite => false,
        }
    }

    /// Encodes the message, with the recipient's number left at zero.
    pub(crate) fn encode(&self) -> BytesMut {
        let (name, body) = match self {
            Self::Pty { term, size, modes } => (
                "pty-req",
                encode_size(Writer::new().string(term), *size).string(modes),
            ),
            Self::Env { name, value } => ("env", Writer::new().string(name).string(value)),
            Self::Exec(command) => ("exec", Writer::new().string(command)),
            Self::Shell => ("shell", Writer::new()),
            Self::Subsystem(name) => ("subsystem", Writer::new().string(name)),
            Self::WindowChange(size) => ("window-change", encode_size(Writer::new(), *size)),
            Self::Signal(name) => ("signal", Writer::new().string(name)),
            Self::Break(milliseconds) => ("break", Writer::new().u32(*milliseconds)),
            Self::AgentForwarding => ("auth-agent-req@openssh.com", Writer::new()),
            Self::EndOfWrite => ("eow@openssh.com", Writer::new()),
            Self::Other { name, body, .. } => (name.as_str(), Writer::new().raw(body)),
        };
        let message = Writer::message(message::CHANNEL_REQUEST)
            .u32(0)
            .string(name)
            .bool(self.wants_reply());
        BytesMut::from(message.raw(&body.finish()).finish())
    }
}

fn nul_in(text: impl AsRef<[u8]>) -> bool {
    text.as_ref().contains(&0)
}

/// Returns whether the body of a request has all of its fields, and nothing after them. Unknown requests pass, because
/// sshd does not read them.
fn is_whole(name: &str, body: &[u8]) -> bool {
    let mut reader = Reader::new(body);
    let text = |reader: &mut Reader<'_>| reader.string().is_ok_and(|text| !nul_in(text));
    let size = |reader: &mut Reader<'_>| (0..4).all(|_| reader.u32().is_ok());
    let has_fields = match name {
        "pty-req" => text(&mut reader) && size(&mut reader) && reader.string().is_ok_and(are_whole),
        "env" => text(&mut reader) && text(&mut reader),
        "exec" | "subsystem" | "signal" => text(&mut reader),
        "window-change" => size(&mut reader),
        "break" => reader.u32().is_ok(),
        "shell" | "auth-agent-req@openssh.com" | "eow@openssh.com" => true,
        _ => return true,
    };
    has_fields && reader.rest().is_empty()
}

/// Returns whether encoded terminal modes are complete (RFC 4254 section 8); no modes are, too.
fn are_whole(modes: &[u8]) -> bool {
    let mut rest = modes;
    loop {
        rest = match rest {
            // TTY_OP_END or an undefined code: the rest is not read.
            [0 | 160.., ..] => return true,
            [_, _, _, _, _, rest @ ..] => rest,
            _ => return modes.is_empty(),
        };
    }
}

fn encode_size(writer: Writer, size: TerminalSize) -> Writer {
    writer
        .u32(size.columns)
        .u32(size.rows)
        .u32(size.width)
        .u32(size.height)
}

/// A channel to open (RFC 4254 sections 6.1 and 7.2; OpenSSH's PROTOCOL, section 2.4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChannelKind {
    /// `session`.
    Session,
    /// `direct-tcpip`: a TCP connection from the server to a host.
    DirectTcpip {
        /// The host to connect to, as the server resolves it.
        host: String,
        /// Its port.
        port: u16,
        /// The origin of the connection on this side.
        originator: (String, u16),
    },
    /// `direct-streamlocal@openssh.com`: a Unix socket on the server.
    DirectStreamlocal {
        /// The socket's path.
        path: String,
    },
}

impl ChannelKind {
    /// Returns the channel type (RFC 4250 section 4.9.1).
    pub fn name(&self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::DirectTcpip { .. } => "direct-tcpip",
            Self::DirectStreamlocal { .. } => "direct-streamlocal@openssh.com",
        }
    }

    /// Returns the length of its text, as [`ChannelRequest::text_len`].
    pub fn text_len(&self) -> usize {
        match self {
            Self::Session => 0,
            Self::DirectTcpip { host, originator, .. } => host.len() + originator.0.len(),
            Self::DirectStreamlocal { path } => path.len(),
        }
    }

    /// Returns whether it contains a NUL, as [`ChannelRequest::is_malformed`].
    pub fn is_malformed(&self) -> bool {
        match self {
            Self::Session => false,
            Self::DirectTcpip { host, originator, .. } => nul_in(host) || nul_in(&originator.0),
            Self::DirectStreamlocal { path } => nul_in(path),
        }
    }

    pub(crate) fn encode(&self, id: ChannelId) -> Bytes {
        let open = Writer::message(message::CHANNEL_OPEN)
            .string(self.name())
            .u32(id.0)
            .u32(INITIAL_WINDOW)
            .u32(MAX_DATA);
        match self {
            Self::Session => open.finish(),
            Self::DirectTcpip {
                host,
                port,
                originator,
            } => open
                .string(host)
                .u32(u32::from(*port))
                .string(&originator.0)
                .u32(u32::from(originator.1))
                .finish(),
            // The two reserved fields keep the layout of direct-tcpip's originator.
            Self::DirectStreamlocal { path } => open.string(path).string("").u32(0).finish(),
        }
    }
}

/// A channel that the server wants to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IncomingKind {
    /// `forwarded-tcpip` (RFC 4254 section 7.2): a connection to a port that we asked the server to listen on.
    ForwardedTcpip {
        /// The listening address as requested.
        address: String,
        /// The listening port.
        port: u32,
        /// The origin of the connection.
        originator: (String, u32),
    },
    /// `forwarded-streamlocal@openssh.com` (OpenSSH's PROTOCOL, section 2.4).
    ForwardedStreamlocal {
        /// The listening socket's path.
        path: String,
    },
    /// `auth-agent@openssh.com`: a connection to the forwarded agent.
    Agent,
}

/// The reason why a channel was not opened (RFC 4254 section 5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFailure(pub u32);

impl OpenFailure {
    /// SSH_OPEN_ADMINISTRATIVELY_PROHIBITED
    pub const ADMINISTRATIVELY_PROHIBITED: Self = Self(1);
    /// SSH_OPEN_CONNECT_FAILED; also sshd's answer beyond MaxSessions.
    pub const CONNECT_FAILED: Self = Self(2);
    /// SSH_OPEN_UNKNOWN_CHANNEL_TYPE
    pub const UNKNOWN_CHANNEL_TYPE: Self = Self(3);
    /// SSH_OPEN_RESOURCE_SHORTAGE
    pub const RESOURCE_SHORTAGE: Self = Self(4);
}

/// A request to the server that is not about a channel (RFC 4254 sections 4 and 7.1; OpenSSH's PROTOCOL).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GlobalRequest {
    /// `tcpip-forward`; answered with the port if 0 was requested.
    TcpipForward {
        /// The address to listen on; "" and "*" mean all, "localhost" loopback.
        address: String,
        /// The port to listen on, 0 for any.
        port: u32,
    },
    /// `cancel-tcpip-forward`.
    CancelTcpipForward {
        /// The address as requested.
        address: String,
        /// The port in use.
        port: u32,
    },
    /// `streamlocal-forward@openssh.com`.
    StreamlocalForward {
        /// The socket's path on the server.
        path: String,
    },
    /// `cancel-streamlocal-forward@openssh.com`.
    CancelStreamlocalForward {
        /// The socket's path on the server.
        path: String,
    },
    /// `keepalive@openssh.com`: any answer will do.
    Keepalive,
    /// `hostkeys-prove-00@openssh.com`: requests a signature with each of these keys, given as consecutive strings.
    HostKeysProve(Bytes),
}

impl GlobalRequest {
    /// Returns the length of its text, as [`ChannelRequest::text_len`].
    pub fn text_len(&self) -> usize {
        match self {
            Self::TcpipForward { address, .. } | Self::CancelTcpipForward { address, .. } => address.len(),
            Self::StreamlocalForward { path } | Self::CancelStreamlocalForward { path } => path.len(),
            Self::Keepalive => 0,
            Self::HostKeysProve(keys) => keys.len(),
        }
    }

    /// Returns whether it contains a NUL, as [`ChannelRequest::is_malformed`].
    pub fn is_malformed(&self) -> bool {
        match self {
            Self::TcpipForward { address, .. } | Self::CancelTcpipForward { address, .. } => nul_in(address),
            Self::StreamlocalForward { path } | Self::CancelStreamlocalForward { path } => nul_in(path),
            Self::Keepalive | Self::HostKeysProve(_) => false,
        }
    }

    pub(crate) fn encode(&self) -> Bytes {
        let request = |name: &str| Writer::message(message::GLOBAL_REQUEST).string(name).bool(true);
        match self {
            Self::TcpipForward { address, port } => {
                request("tcpip-forward").string(address).u32(*port).finish()
            }
            Self::CancelTcpipForward { address, port } => request("cancel-tcpip-forward")
                .string(address)
                .u32(*port)
                .finish(),
            Self::StreamlocalForward { path } => {
                request("streamlocal-forward@openssh.com").string(path).finish()
            }
            Self::CancelStreamlocalForward { path } => request("cancel-streamlocal-forward@openssh.com")
                .string(path)
                .finish(),
            Self::Keepalive => request("keepalive@openssh.com").finish(),
            Self::HostKeysProve(keys) => request("hostkeys-prove-00@openssh.com").raw(keys).finish(),
        }
    }
}

/// Identifies a global request and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GlobalRequestId(pub(crate) u64);

#[cfg(test)]
mod tests {
    use super::*;

    fn other(name: &str, body: Writer) -> ChannelRequest {
        ChannelRequest::Other {
            name: name.into(),
            wants_reply: false,
            body: body.finish(),
        }
    }

    #[test]
    fn what_stops_in_the_middle_or_goes_on_behind_its_end_is_malformed() {
        let size = |writer: Writer| encode_size(writer, TerminalSize::default());
        let whole = [
            other("pty-req", size(Writer::new().string("vt100")).string("")),
            other(
                "pty-req",
                size(Writer::new().string("vt100")).string([53, 0, 0, 0, 1, 0]),
            ),
            other("env", Writer::new().string("A").string("b")),
            other("window-change", size(Writer::new())),
            other("break", Writer::new().u32(0)),
            other("signal", Writer::new().string("HUP")),
            other("eow@openssh.com", Writer::new()),
            other("what@example.com", Writer::new().raw(b"any\0thing")),
        ];
        for request in whole {
            assert!(!request.is_malformed(), "{request:?}");
        }
        let malformed = [
            other("pty-req", size(Writer::new().string("vt100")).string([53, 0, 0])),
            other("pty-req", Writer::new().string("vt100")),
            other("env", Writer::new().string("A")),
            other("env", Writer::new().string("A").string("\0")),
            other("window-change", Writer::new().u32(0)),
            other("break", Writer::new()),
            other("signal", Writer::new().string("HUP").u32(0)),
            other("eow@openssh.com", Writer::new().u32(0)),
            other("what\0", Writer::new()),
        ];
        for request in malformed {
            assert!(request.is_malformed(), "{request:?}");
        }
    }
}
