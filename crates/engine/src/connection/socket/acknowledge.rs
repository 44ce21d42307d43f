//! A TCP connection that acknowledges data at once if it has no answer to send, while it is young.
//!
//! sshd sets TCP_NODELAY when a connection's first command starts (seen with strace, 9.2p1). Before that, the second of
//! two small messages waits until the first is acknowledged, which Linux delays by 40 ms if no data carries it. That
//! delayed SERVICE_ACCEPT to USERAUTH_SUCCESS, and requests for two channels. On loopback (medians of four), a log-in
//! took 72 ms with the delays and 47 without, the start of its first command 44 and 4.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The received bytes that end a connection's youth: some five times what sshd sends before the first command's output.
const YOUNG: usize = 16 * 1024;

/// A TCP connection that acknowledges at once; see the module.
#[derive(Debug)]
pub(crate) struct Acknowledging {
    stream: TcpStream,
    /// Bytes received, counted up to [`YOUNG`].
    received: usize,
    /// Something was received, and nothing sent since.
    unanswered: bool,
}

impl Acknowledging {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            received: 0,
            unanswered: false,
        }
    }
}

impl AsFd for Acknowledging {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl AsyncRead for Acknowledging {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        if this.received < YOUNG {
            if read.is_ready() {
                this.received += buf.filled().len() - before;
                this.unanswered = true;
            } else if std::mem::take(&mut this.unanswered) {
                // Linux forgets this with the next packet. If it fails, the acknowledgement is late.
                #[cfg(target_os = "linux")]
                let _ = this.stream.set_quickack(true);
            }
        }
        read
    }
}

impl AsyncWrite for Acknowledging {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.unanswered &= written.is_pending();
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Receives a byte, waits for more, and returns whether acknowledgements are sent at once.
    async fn acknowledges(client: &mut Acknowledging, server: &mut TcpStream) -> bool {
        server.write_all(b"x").await.unwrap();
        client.read_exact(&mut [0]).await.unwrap();
        let mut more = [0];
        let mut reading = std::pin::pin!(client.read(&mut more));
        std::future::poll_fn(|cx| {
            assert!(reading.as_mut().poll(cx).is_pending(), "nothing more was sent");
            Poll::Ready(())
        })
        .await;
        client.stream.quickack().unwrap()
    }

    /// Exchanges messages until Linux delays acknowledgements.
    async fn converse(client: &mut Acknowledging, server: &mut TcpStream) {
        client.stream.set_quickack(false).unwrap();
        assert!(!client.stream.quickack().unwrap());
        server.write_all(b"?").await.unwrap();
        client.read_exact(&mut [0]).await.unwrap();
        client.write_all(b"!").await.unwrap();
        server.read_exact(&mut [0]).await.unwrap();
    }

    #[tokio::test]
    async fn only_a_young_connection_acknowledges_what_it_has_no_answer_to() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (mut client, mut server) = (Acknowledging::new(client.unwrap()), accepted.unwrap().0);

        converse(&mut client, &mut server).await;
        assert!(acknowledges(&mut client, &mut server).await);

        server.write_all(&[0; YOUNG]).await.unwrap();
        client.read_exact(&mut [0; YOUNG]).await.unwrap();
        converse(&mut client, &mut server).await;
        assert!(!acknowledges(&mut client, &mut server).await);
    }
}
