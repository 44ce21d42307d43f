//! A TCP connection that gathers data while much of it comes: the kernel wakes the reader for half a megabyte, and not
//! for each packet.
//!
//! sshd writes 32 KiB at a time (CHANNEL_MAX_READ in channels.h), and each write wakes a reader that waits: on loopback
//! some 25,000 times for each GiB. That costs as much CPU as the decryption, and takes it from the command whose output
//! it is. SO_RCVLOWAT leaves most of it out.
//!
//! Nothing waits for long. Data is gathered only after [`BURST`] has come within [`BURST_TIME`], a rate at which
//! [`LOW_WATER`] takes two milliseconds. When it takes longer than [`PATIENCE`], what has come is read, and nothing is
//! gathered before a longer burst. An answer that comes alone is never waited for.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nix::sys::socket::SetSockOpt as _;
use nix::{libc, setsockopt_impl, sockopt_impl};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::connection::acknowledge::Acknowledging;

/// What is gathered. A quarter of a channel's smallest window: the server never waits for credit meanwhile.
const LOW_WATER: libc::c_int = 512 * 1024;
/// So much must come in [`BURST_TIME`] before anything is gathered.
const BURST: u64 = 8 * 1024 * 1024;
const BURST_TIME: Duration = Duration::from_millis(32);
/// Each time that gathering waited in vain, the next burst must be twice as long, up to this. One that pauses after each
/// request's answer (SFTP with few requests in flight) so loses a millisecond or two in a quarter of a second at most.
const BURST_MAX: u64 = 64 * 1024 * 1024;
/// What has come is read after this at the latest (tokio's timer may add its tick, a millisecond).
const PATIENCE: Duration = Duration::from_millis(1);

sockopt_impl!(
    /// What must have come before a reader is woken. When it is lowered, Linux wakes a reader for whom there is enough
    /// already (`tcp_set_rcvlowat`).
    LowWater,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_RCVLOWAT,
    libc::c_int
);

/// See the module.
#[derive(Debug)]
pub(crate) struct Gathering {
    stream: Acknowledging,
    state: State,
    burst: u64,
    burst_time: Duration,
}

#[derive(Debug)]
enum State {
    /// Every packet wakes the reader. `received` came since `since`.
    Watching { since: Instant, received: u64 },
    /// The reader is woken when there is enough, or `until`, once it waits.
    Gathering { until: Pin<Box<Sleep>>, waiting: bool },
}

impl Gathering {
    pub(crate) fn new(stream: Acknowledging) -> Self {
        Self {
            stream,
            state: State::watching(),
            burst: BURST,
            burst_time: BURST_TIME,
        }
    }

    /// `n` bytes have come.
    fn received(&mut self, n: u64) {
        match &mut self.state {
            State::Gathering { waiting, .. } => *waiting = false,
            State::Watching { since, received } => {
                *received += n;
                // Elsewhere a reader is not known to be woken when the mark is lowered.
                if *received < self.burst || !cfg!(target_os = "linux") {
                    return;
                }
                // A burst that must be longer may take longer.
                let allowed = self.burst_time * u32::try_from(self.burst / BURST).unwrap_or(u32::MAX);
                let fast = since.elapsed() <= allowed;
                self.state = if fast && LowWater.set(&self.stream, &LOW_WATER).is_ok() {
                    State::Gathering {
                        until: Box::pin(sleep_until(Instant::now())),
                        waiting: false,
                    }
                } else {
                    State::watching()
                };
            }
        }
    }

    /// Nothing is there that is worth waking up for. Ready when it has been waited for long enough.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let State::Gathering { until, waiting } = &mut self.state else {
            return Poll::Pending;
        };
        if !std::mem::replace(waiting, true) {
            until.as_mut().reset(Instant::now() + PATIENCE);
        }
        ready!(until.as_mut().poll(cx));
        self.state = State::watching();
        self.burst = (2 * self.burst).min(BURST_MAX);
        Poll::Ready(LowWater.set(&self.stream, &1).map_err(io::Error::from))
    }
}

impl State {
    fn watching() -> Self {
        Self::Watching {
            since: Instant::now(),
            received: 0,
        }
    }
}

impl AsyncRead for Gathering {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        loop {
            if let Poll::Ready(read) = Pin::new(&mut this.stream).poll_read(cx, buf) {
                read?;
                this.received((buf.filled().len() - before) as u64);
                return Poll::Ready(Ok(()));
            }
            ready!(this.poll_patience(cx))?;
        }
    }
}

impl AsyncWrite for Gathering {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::thread::JoinHandle;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    const LONG: Duration = Duration::from_secs(24 * 60 * 60);

    /// A connection to a server that sends `bytes`, and "end" when it is asked to.
    async fn connection(bytes: u64, burst_time: Duration) -> (Gathering, JoinHandle<()>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let sent = std::io::copy(&mut std::io::repeat(7).take(bytes), &mut client).unwrap();
            assert_eq!(sent, bytes);
            client.read_exact(&mut [0]).unwrap();
            client.write_all(b"end").unwrap();
            client.read_exact(&mut [0]).unwrap();
        });
        let gathering = Gathering {
            burst_time,
            ..Gathering::new(Acknowledging::new(TcpStream::connect(address).await.unwrap()))
        };
        (gathering, server)
    }

    async fn read(connection: &mut Gathering, bytes: u64) {
        let mut buffer = vec![0; usize::try_from(bytes).unwrap()];
        connection.read_exact(&mut buffer).await.unwrap();
        assert!(buffer.iter().all(|byte| *byte == 7));
    }

    fn is_gathering(connection: &Gathering) -> bool {
        matches!(connection.state, State::Gathering { .. })
    }

    #[tokio::test]
    async fn what_comes_alone_after_a_burst_is_read_and_ends_the_gathering() {
        let (mut connection, server) = connection(BURST, LONG).await;
        read(&mut connection, BURST).await;
        assert!(is_gathering(&connection));

        let mut answer = [0; 3];
        let waits = {
            let mut reading = std::pin::pin!(connection.read(&mut answer));
            std::future::poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx).is_pending())).await
        };
        assert!(waits, "nothing was sent yet");
        connection.write_all(b"?").await.unwrap();
        connection.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"end");
        assert!(!is_gathering(&connection));
        assert_eq!(connection.burst, 2 * BURST);

        connection.write_all(b"!").await.unwrap();
        server.join().unwrap();
    }

    #[tokio::test]
    async fn a_burst_is_gathered_whole() {
        let bytes = 5 * BURST + 12_345;
        let (mut connection, server) = connection(bytes, LONG).await;
        read(&mut connection, bytes).await;
        connection.write_all(b"?!").await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "end");
        server.join().unwrap();
    }

    #[tokio::test]
    async fn what_comes_slowly_is_not_gathered() {
        let (mut connection, server) = connection(4 * BURST, Duration::ZERO).await;
        for _ in 0..4 {
            read(&mut connection, BURST).await;
            assert!(!is_gathering(&connection));
        }
        connection.write_all(b"?!").await.unwrap();
        server.join().unwrap();
    }
}
