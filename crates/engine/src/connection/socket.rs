//! The socket below a transport.

pub(super) mod acknowledge;
pub(super) mod gather;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::connection::channel::ChannelStream;

/// TCP, a proxy command's pipes, a channel of a jump host, a stream of the program's.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {
    /// The server was asked for something, or waits for credit itself: somebody may wait for what comes next.
    fn asked(&mut self) {}

    /// Has nothing sent any more that the network has not taken: the system would try for minutes, and a server that can be reached
    /// again would do it after what it was asked since, over another connection.
    fn abandon(&mut self) {}

    /// Returns whether nothing was there to be read, when a read had to wait.
    fn is_drained(&self) -> bool {
        true
    }
}

impl Socket for ChannelStream {}

/// Bytes in both directions, of whatever kind.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Socket for Box<dyn Stream> {}
