//! The socket below a transport.

pub(super) mod acknowledge;
pub(super) mod gather;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::connection::channel::ChannelStream;

/// TCP, a proxy command's pipes, a jump host's channel, or a program's stream.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {
    /// Notes that the server was sent a request, or waits for credit: its next message may be awaited.
    fn expect_reply(&mut self) {}

    /// Discards data that the network has not taken. Otherwise the system would try for minutes, and a server that
    /// becomes reachable again would act on it after newer requests on another connection.
    fn abandon(&mut self) {}

    /// Returns whether nothing was left to read when the last read had to wait.
    fn is_drained(&self) -> bool {
        true
    }
}

impl Socket for ChannelStream {}

/// Bytes in both directions.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Socket for Box<dyn Stream> {}
