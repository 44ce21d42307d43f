//! The errors that end an SFTP session.

use trunkline_text::Printable;

/// The reason for a session's end. Every variant is final: drop the [`Client`](crate::Client) and close its channel.
/// The server may or may not have carried out the requests without a reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server broke the protocol, so none of its answers can be trusted.
    #[error("the server broke the SFTP protocol: {0}")]
    PeerMisbehaved(Printable),
    /// The first bytes are text, not SFTP: usually the output of a login script that prints even without a terminal.
    #[error(
        "the server printed \"{0}\" where SFTP should begin; make its shell's startup files silent for sessions \
         without a terminal"
    )]
    NotSftp(Printable),
    /// The server speaks another version of the protocol.
    #[error("the server speaks SFTP version {0}, and this program only version 3")]
    Version(u32),
    /// The server gave a file the handle of another open file. A request for one may have reached the other, so neither
    /// file's answers can be trusted. A session with [`Config::max_handles`](crate::Config::max_handles) of 1 avoids
    /// this.
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
