//! [`GiveUp`]: why a session cannot be carried on.

use trunkline_text::Printable;

use crate::error::Error;
use crate::status::Status;

/// The reason why a session cannot be carried on. The client's connection is to be broken, so that it knows.
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
    /// An open file is not the one that the server has there now.
    #[error(
        "{path} is not the file that was open before the connection was lost: {why}. What the server had acknowledged was \
         written to the file that was there then"
    )]
    Changed { path: Printable, why: &'static str },
    /// An open file or directory cannot be opened any more.
    #[error("{path} was open when the connection was lost, and cannot be opened again: {status}")]
    Gone {
        path: Printable,
        /// The server's answer.
        status: Status,
    },
    /// An open file is of a kind that is not carried over.
    #[error("{path} was open when the connection was lost, and cannot be opened again: {why}")]
    NotCarried { path: Printable, why: &'static str },
}
