//! Events of a connection's channels for the application.

use bytes::Bytes;
use trunkline_text::Printable;

use super::channel::{ChannelId, Stream};
use super::request::{GlobalRequestId, IncomingKind, OpenFailure};

/// Something happened to a channel, or to the connection as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "names say it")]
pub enum ChannelEvent {
    /// The server opened the channel that we asked for.
    Opened(ChannelId),
    /// The server refused to open it. It is gone; nothing ran.
    OpenFailed {
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
        /// The kind of connection.
        kind: IncomingKind,
    },
    /// Data arrived. Its size must be returned by `consumed` once read.
    Data {
        id: ChannelId,
        stream: Stream,
        data: Bytes,
    },
    /// The server sends no more data.
    Eof(ChannelId),
    /// The answer to a request that wanted one.
    Reply {
        id: ChannelId,
        /// Whether it was granted.
        success: bool,
        /// Whether it was the exec, shell or subsystem request.
        started: bool,
    },
    /// `exit-status` (RFC 4254 section 6.10).
    ExitStatus {
        id: ChannelId,
        /// The command's status.
        status: u32,
    },
    /// `exit-signal`.
    ExitSignal {
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
        id: ChannelId,
        /// The number of bytes.
        len: usize,
    },
    /// The channel is closed in both directions and gone.
    Closed(ChannelId),
    /// The answer to a global request.
    GlobalReply {
        id: GlobalRequestId,
        /// Whether it was granted.
        success: bool,
        /// The answer's body.
        data: Bytes,
    },
    /// `hostkeys-00@openssh.com`: all host keys that the server has, as strings in a row.
    HostKeys(Bytes),
}
