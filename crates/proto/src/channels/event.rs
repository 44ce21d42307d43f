//! Events of a connection's channels for the application.

use bytes::Bytes;
use trunkline_text::Printable;

use super::channel::{ChannelId, Stream};
use super::request::{GlobalRequestId, IncomingKind, OpenFailure};

/// An event of a channel, or of the connection as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "names say it")]
pub enum ChannelEvent {
    /// The server opened the channel that we requested.
    Opened(ChannelId),
    /// The server refused to open the channel. It is gone; nothing ran.
    OpenFailed {
        id: ChannelId,
        /// The reason code.
        reason: OpenFailure,
        /// The server's description.
        description: Printable,
    },
    /// The server offers a channel: answer with `accept` or `reject`.
    Incoming {
        /// This side's number for it.
        id: ChannelId,
        /// The kind of connection.
        kind: IncomingKind,
    },
    /// Data arrived. Return its size with `consume` once it is read.
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
        /// The server granted it.
        success: bool,
        /// It answers the exec, shell or subsystem request.
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
        /// It dumped core.
        core_dumped: bool,
        /// The server's text.
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
        /// The server granted it.
        success: bool,
        /// The answer's body.
        data: Bytes,
    },
    /// `hostkeys-00@openssh.com`: the server's host keys, as consecutive strings.
    HostKeys(Bytes),
}
