//! The ends of an SFTP session.

use trunkline_text::Printable;

/// A session's end. Every variant is final: the [`Client`](crate::Client) must be dropped and its channel closed.
/// Requests without a reply may or may not have been carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server broke the protocol. Nothing more can be believed of it.
    #[error("the server broke the SFTP protocol: {0}")]
    PeerMisbehaved(Printable),
    /// The first bytes are text, not SFTP: usually from a login script of the remote user that prints something even
    /// without a terminal.
    #[error(
        "the server printed \"{0}\" where SFTP should begin; make its shell's startup files silent for sessions \
         without a terminal"
    )]
    NotSftp(Printable),
    /// The server speaks another version of the protocol.
    #[error("the server speaks SFTP version {0}, and this program only version 3")]
    Version(u32),
    /// The server gave a file the handle of another one that was still open. What was asked of one may have reached the
    /// other: nothing of either is to be believed. A session with [`Config::max_handles`](crate::Config::max_handles) of 1
    /// avoids it.
    #[error(
        "the server gave two open files the same handle, so that it cannot tell them apart; what was open there is given \
         up"
    )]
    SharedHandles,
    /// The server closed the session.
    #[error("the server closed the SFTP session")]
    Closed,
}

impl Error {
    pub(crate) fn misbehavior(what: impl Into<Printable>) -> Self {
        Self::PeerMisbehaved(what.into())
    }
}
