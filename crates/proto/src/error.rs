//! What ends a connection, sorted by who is to blame.

use trunkline_text::Printable;

use crate::message::DisconnectReason;
use crate::wire::WireError;

/// What an error holds of a server's words is [`Printable`]: there is no other way in.
///
/// A connection's end. Every variant is final: the connection must be dropped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server broke the protocol. Nothing more can be believed of it.
    #[error("the server broke the SSH protocol: {0}")]
    PeerMisbehaved(Printable),
    /// No algorithm of a kind is common to both sides.
    #[error("no {what} in common with the server: it offers {theirs}; we allow {ours}")]
    NothingInCommon {
        /// The kind of algorithm: "key exchange", "host key", "cipher", "MAC", "compression".
        what: &'static str,
        /// Our names, comma-separated.
        ours: String,
        /// The server's names, comma-separated.
        theirs: Printable,
    },
    /// The other end speaks, but not SSH-2.
    #[error("the other end does not speak SSH-2: {0}")]
    NotSsh(Printable),
    /// A packet failed its integrity check: corrupted or tampered with under way.
    #[error("a packet was corrupted on its way here (message authentication failed)")]
    Corrupted,
    /// The server proved possession of no key: its signature over the key exchange is wrong.
    #[error("the server's signature over the key exchange is wrong: {0}")]
    BadHostSignature(Printable),
    /// The server ended the connection with SSH_MSG_DISCONNECT.
    #[error("the server ended the connection: {description} (reason {})", .reason.0)]
    Disconnected {
        /// Its reason code.
        reason: DisconnectReason,
        /// Its words.
        description: Printable,
    },
    /// This side failed (no randomness, out of channel numbers).
    #[error("{0}")]
    Local(String),
}

impl Error {
    pub(crate) fn misbehaved(what: impl Into<Printable>) -> Self {
        Self::PeerMisbehaved(what.into())
    }

    /// Whether this side should say SSH_MSG_DISCONNECT with this error before it closes.
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

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        Self::PeerMisbehaved(error.to_string().into())
    }
}
