//! [`GiveUp`]: the reason why a session cannot go on.

use trunkline_text::Printable;

use crate::error::Error;
use crate::status::Status;

/// The reason why a session cannot go on. Break the client's connection, so that the client learns of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "names say it")]
pub enum GiveUp {
    /// The server broke the protocol, or does not speak it.
    #[error(transparent)]
    Server(#[from] Error),
    /// The client broke the protocol.
    #[error("the SFTP client broke the protocol: {0}")]
    Client(Printable),
    /// The server has another file now in the place of an open one.
    #[error(
        "{path} is not the file that was open before the connection was lost: {why}. What the server had acknowledged was \
         written to the file that was there then"
    )]
    Changed { path: Printable, why: &'static str },
    /// An open file or directory cannot be opened again.
    #[error("{path} was open when the connection was lost, and cannot be opened again: {status}")]
    Gone {
        path: Printable,
        /// The server's answer.
        status: Status,
    },
    /// An open file is of a kind that cannot be carried over.
    #[error("{path} was open when the connection was lost, and cannot be opened again: {why}")]
    NotCarried { path: Printable, why: &'static str },
}
