//! A TCP connection that gathers data while much of it comes: the kernel wakes the reader for a large piece, and not for
//! each packet.
//!
//! sshd writes 32 KiB at a time (CHANNEL_MAX_READ in channels.h), and each write wakes a reader that waits: on loopback
//! some 25,000 times for each GiB. That costs as much CPU as the decryption, and takes it from the server and the command
//! whose output it is. SO_RCVLOWAT leaves most of it out.
//!
//! When data is gathered, and for how long, is decided by [`Rhythm`]. What comes alone is never waited for: gathering
//! begins after a burst, and ends when too little came in a wait.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use nix::sys::socket::SetSockOpt as _;
use nix::{libc, setsockopt_impl, sockopt_impl};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep_until};

use crate::connection::socket::Socket;
use crate::connection::socket::acknowledge::Acknowledging;

/// The least amount that is gathered. A quarter of a channel's smallest window: the server never waits for credit
/// meanwhile.
const LOW_WATER: libc::c_int = 512 * 1024;

/// By then the kernel has woken a reader for whom there is something.
const WAKING: Duration = Duration::from_millis(1);

sockopt_impl!(
    /// The low-water mark: the least that must have come before a reader is woken. When it is lowered, Linux wakes a
    /// reader for whom there is enough already (`tcp_set_rcvlowat`).
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
    rhythm: Rhythm,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Every packet wakes the reader.
    Watching,
    /// The reader is woken when there is enough, or `until`, once it waits.
    Gathering { until: Pin<Box<Sleep>>, waiting: bool },
    /// It has waited for long enough: what has come wakes it, at once if there is something. Nothing had come when it has not
    /// been woken `until`. Keeps the timer for the next time.
    Collecting { until: Pin<Box<Sleep>>, empty: bool },
}

impl Gathering {
    pub(crate) fn new(stream: Acknowledging) -> Self {
        Self {
            stream,
            rhythm: Rhythm::new(Instant::now()),
            state: State::Watching,
        }
    }

    /// `n` bytes have come.
    fn count_received(&mut self, n: u64) {
        let now = Instant::now();
        let gathers = match &self.state {
            State::Watching => self.rhythm.is_burst(n, now),
            State::Gathering { .. } => true,
            State::Collecting { .. } => self.rhythm.goes_on(n, now),
        };
        self.state = match std::mem::replace(&mut self.state, State::Watching) {
            State::Gathering { until, .. } => State::Gathering {
                until,
                waiting: false,
            },
            // Elsewhere a reader is not known to be woken when the mark is lowered.
            before
                if gathers && cfg!(target_os = "linux") && LowWater.set(&self.stream, &LOW_WATER).is_ok() =>
            {
                let until = match before {
                    State::Collecting { until, .. } => until,
                    _ => Box::pin(sleep_until(now.into())),
                };
                State::Gathering {
                    until,
                    waiting: false,
                }
            }
            _ => State::Watching,
        };
    }

    /// Nothing is there that is worth waking up for. Ready when it has been waited for long enough.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.state {
            State::Watching | State::Collecting { empty: true, .. } => return Poll::Pending,
            State::Collecting { until, empty } => {
                ready!(until.as_mut().poll(cx));
                *empty = true;
                return Poll::Pending;
            }
            State::Gathering { until, waiting } => {
                if !std::mem::replace(waiting, true) {
                    let now = Instant::now();
                    until.as_mut().reset((now + self.rhythm.patience(now)).into());
                }
                ready!(until.as_mut().poll(cx));
            }
        }
        if let State::Gathering { mut until, .. } = std::mem::replace(&mut self.state, State::Watching) {
            until.as_mut().reset((Instant::now() + WAKING).into());
            self.state = State::Collecting { until, empty: false };
        }
        Poll::Ready(LowWater.set(&self.stream, &1).map_err(io::Error::from))
    }
}

impl Socket for Gathering {
    fn abandon(&mut self) {
        let _ = rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO));
    }

    fn asked(&mut self) {
        let now = Instant::now();
        self.rhythm.asked = Some(now);
        if let State::Gathering { until, waiting: true } = &mut self.state {
            let soon = (now + ANSWERS.patience).into();
            if soon < until.deadline() {
                until.as_mut().reset(soon);
            }
        }
    }

    fn is_drained(&self) -> bool {
        match self.state {
            State::Watching => true,
            State::Gathering { .. } => false,
            State::Collecting { empty, .. } => empty,
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
                this.count_received((buf.filled().len() - before) as u64);
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

/// Decides when data is gathered, and for how long, on the time that it is told.
#[derive(Debug)]
struct Rhythm {
    /// The time at which the server was last asked for something, or waited for credit.
    asked: Option<Instant>,
    /// The bytes received since `since`.
    received: u64,
    since: Instant,
    /// The next burst of [`ANSWERS`].
    burst: u64,
}

/// The manner in which gathered data comes.
struct Manner {
    /// So much must come in `burst_time` before anything is gathered.
    burst: u64,
    burst_time: Duration,
    /// Received data is read after this at the latest (tokio's timer may add its tick, a millisecond).
    patience: Duration,
}

/// Somebody may wait for an answer. At the rate of this burst, [`LOW_WATER`] takes two milliseconds. Each time that it took
/// longer than the patience, the next burst must be twice as long, up to [`BURST_MAX`].
const ANSWERS: Manner = Manner {
    burst: 8 * 1024 * 1024,
    burst_time: Duration::from_millis(32),
    patience: Duration::from_millis(1),
};
/// The server sends of its own accord, 8 MB/s and more. Each of 20 streams on two cores has some 15 to 20 MB/s: a few packets
/// in this time.
const OUTPUT: Manner = Manner {
    burst: 1024 * 1024,
    burst_time: Duration::from_millis(128),
    patience: Duration::from_millis(8),
};
/// With less output than this in a wait gathering ends.
const LEAST: u64 = 48 * 1024;
/// Data that comes later than this after a question counts as output. An answer that took longer may be some
/// milliseconds later.
const QUESTION: Duration = Duration::from_millis(500);
/// One that pauses after each request's answer (SFTP with few requests in flight) so loses a millisecond or two in a quarter
/// of a second at most.
const BURST_MAX: u64 = 64 * 1024 * 1024;

impl Rhythm {
    fn new(now: Instant) -> Self {
        Self {
            asked: None,
            received: 0,
            since: now,
            burst: ANSWERS.burst,
        }
    }

    fn is_output(&self, now: Instant) -> bool {
        self.asked
            .is_none_or(|asked| now.saturating_duration_since(asked) >= QUESTION)
    }

    /// Returns the time that received data may wait.
    fn patience(&self, now: Instant) -> Duration {
        if self.is_output(now) {
            OUTPUT.patience
        } else {
            ANSWERS.patience
        }
    }

    /// `n` bytes have come, each packet by itself. Whether much comes.
    fn is_burst(&mut self, n: u64, now: Instant) -> bool {
        self.received += n;
        // A burst that must be longer may take longer.
        let (burst, time) = if self.is_output(now) {
            (OUTPUT.burst, OUTPUT.burst_time)
        } else {
            let times = u32::try_from(self.burst / ANSWERS.burst).unwrap_or(u32::MAX);
            (self.burst, ANSWERS.burst_time * times)
        };
        if self.received < burst {
            return false;
        }
        let fast = now.saturating_duration_since(self.since) <= time;
        (self.received, self.since) = (0, now);
        fast
    }

    /// `n` bytes have come in a wait. Whether that is worth another one.
    fn goes_on(&mut self, n: u64, now: Instant) -> bool {
        (self.received, self.since) = (0, now);
        if self.is_output(now) {
            return n >= LEAST;
        }
        self.burst = (2 * self.burst).min(BURST_MAX);
        false
    }
}

#[cfg(test)]
mod tests;
