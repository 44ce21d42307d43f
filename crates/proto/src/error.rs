//! The errors that end a connection, sorted by who is to blame.

use std::fmt;

use trunkline_text::Printable;

use crate::crypto::cipher::CipherError;
use crate::crypto::kex::KexError;
use crate::message::DisconnectReason;
use crate::wire::WireError;

/// The error that ended a connection, which must then be dropped. Text from the server is always [`Printable`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server broke the protocol. It cannot be trusted any further.
    #[error("the server broke the SSH protocol: {0}")]
    PeerMisbehaved(#[from] PeerMisbehaved),
    /// The two sides have no algorithm of a kind in common.
    #[error("no {what} in common with the server: it offers {theirs}; we allow {ours}")]
    NothingInCommon {
        /// The kind of algorithm.
        what: AlgorithmKind,
        /// Our names, comma-separated.
        ours: String,
        /// The server's names, comma-separated.
        theirs: Printable,
    },
    /// The other end does not speak SSH-2.
    #[error("the other end does not speak SSH-2: {0}")]
    NotSsh(Printable),
    /// A packet failed its integrity check: it was corrupted or tampered with.
    #[error("a packet was corrupted on its way here (message authentication failed)")]
    Corrupted,
    /// The server has not proved that it has a key: its signature over the key exchange is wrong.
    #[error("the server's signature over the key exchange is wrong: {0}")]
    BadHostSignature(Printable),
    /// The server ended the connection with SSH_MSG_DISCONNECT.
    #[error("the server ended the connection: {description} (reason {})", .reason.0)]
    Disconnected {
        /// Its reason code.
        reason: DisconnectReason,
        /// Its description.
        description: Printable,
    },
    /// This side failed, for example without randomness.
    #[error("{0}")]
    Local(String),
}

impl Error {
    /// Returns the reason code if this error should be reported with SSH_MSG_DISCONNECT before closing.
    pub fn wants_disconnect(&self) -> Option<DisconnectReason> {
        match self {
            Self::PeerMisbehaved(_) | Self::NothingInCommon { .. } | Self::Corrupted => {
                Some(DisconnectReason::PROTOCOL_ERROR)
            }
            Self::BadHostSignature(_) => Some(DisconnectReason::HOST_KEY_NOT_VERIFIABLE),
            Self::NotSsh(_) | Self::Disconnected { .. } | Self::Local(_) => None,
        }
    }
}

/// A kind of negotiated algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

impl fmt::Display for AlgorithmKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kex => "key exchange",
            Self::HostKey => "host key",
            Self::Cipher => "cipher",
            Self::Mac => "MAC",
            Self::Compression => "compression",
        })
    }
}

/// A server's violation of the protocol. [`Display`](std::fmt::Display) follows "the server broke the SSH protocol:".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerMisbehaved {
    /// It makes this side queue answers without reading them.
    #[error("it keeps asking and does not read the answers")]
    OwedTooMuch,
    /// A message of authentication after its end.
    #[error("message {0} of authentication came after its end")]
    AuthAfterSuccess(u8),
    /// It accepted another service than the requested one.
    #[error("it accepted the service \"{0}\", and ssh-userauth was asked for")]
    WrongService(Printable),
    /// A message of authentication before its service was accepted.
    #[error("message {0} of authentication came before its service")]
    AuthBeforeService(u8),
    /// An answer without an authentication request.
    #[error("message {0} of authentication came without a request")]
    AuthWithoutRequest(u8),
    /// A message that the authentication method does not have.
    #[error("message {0} came in the middle of authentication")]
    AuthOutOfTurn(u8),
    /// More prompts in one SSH_MSG_USERAUTH_INFO_REQUEST than anybody can answer.
    #[error("it asks {0} questions at once")]
    TooManyPrompts(u32),
    /// A message of the connection protocol before authentication.
    #[error("message {0} came before authentication was over")]
    BeforeAuthentication(u8),
    /// It refused the authentication but not the messages sent along with it.
    #[error("it said neither yes nor no to what was sent with the authentication")]
    EarlyUnanswered,
    /// An undefined message number of the connection protocol.
    #[error("message {0} is unknown")]
    UnknownMessage(u8),
    /// A message about a channel that does not exist.
    #[error("it sent a message about channel {0}, which is not open")]
    ChannelNotOpen(u32),
    /// A confirmation for a channel that was not requested.
    #[error("it opened a channel that was not asked for")]
    UnrequestedChannel,
    /// A second confirmation.
    #[error("it opened a channel twice")]
    ChannelOpenedTwice,
    /// A refusal of a channel that was not requested.
    #[error("it refused a channel that was not asked for")]
    UnrequestedRefusal,
    /// A packet of data beyond the channel's maximum packet size.
    #[error("it sent more in a packet than was allowed")]
    DataTooLarge,
    /// Data after SSH_MSG_CHANNEL_EOF.
    #[error("it sent data behind the end of the data")]
    DataAfterEof,
    /// Data beyond the receive window.
    #[error("it sent more than the window allowed")]
    WindowExceeded,
    /// A window beyond the bound of RFC 4254 section 5.2.
    #[error("it opened a window beyond 2^32 - 1 bytes")]
    WindowOverflow,
    /// A name in an offered channel that is longer than any real one.
    #[error("it offers a connection with a name of {0} bytes")]
    NameTooLong(usize),
    /// A reply without a channel request.
    #[error("it answered a request that was not made")]
    UnrequestedReply,
    /// A reply without a global request.
    #[error("it answered a global request that was not made")]
    UnrequestedGlobalReply,
    /// A granted forwarding of port 0 without the port (RFC 4254 section 7.1).
    #[error("it does not say which port it chose to listen on; ask for one")]
    PortNotTold,
    /// A message that is forbidden during key exchange (RFC 4253 section 7.1).
    #[error("message {0} came in the middle of a key exchange")]
    DuringKex(u8),
    /// A second SSH_MSG_KEXINIT.
    #[error("it sent SSH_MSG_KEXINIT in the middle of a key exchange")]
    KexInitDuringKex,
    /// Packets before KEXINIT under strict key exchange (OpenSSH's PROTOCOL 1.10).
    #[error("packets came before its SSH_MSG_KEXINIT, which strict key exchange forbids")]
    NotStrict,
    /// A message of the method while no method runs.
    #[error("a key exchange reply came that was not asked for")]
    UnrequestedKexReply,
    /// SSH_MSG_NEWKEYS out of turn.
    #[error("it sent SSH_MSG_NEWKEYS before the key exchange was over")]
    EarlyNewKeys,
    /// Another host key at rekeying.
    #[error("its host key changed in the middle of the connection")]
    HostKeyChanged,
    /// The key exchange method cannot continue.
    #[error("{0}")]
    Kex(KexError),
    /// Bytes that are not a valid packet.
    #[error("{0}")]
    Cipher(CipherError),
    /// An invalid compressed payload.
    #[error("a packet cannot be decompressed: {0}")]
    Compression(Printable),
    /// A packet without a message.
    #[error("it sent an empty packet")]
    EmptyPacket,
    /// A malformed message.
    #[error("{0}")]
    Malformed(WireError),
}

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        PeerMisbehaved::Malformed(error).into()
    }
}

impl From<KexError> for Error {
    fn from(error: KexError) -> Self {
        match error {
            KexError::Local => Self::Local(error.to_string()),
            error => PeerMisbehaved::Kex(error).into(),
        }
    }
}

impl From<CipherError> for Error {
    fn from(error: CipherError) -> Self {
        match error {
            CipherError::Forged => Self::Corrupted,
            error => PeerMisbehaved::Cipher(error).into(),
        }
    }
}
