//! A TCP connection that gathers data while much of it arrives: the kernel wakes the reader for large pieces instead of
//! each packet.
//!
//! sshd writes 32 KiB at a time (CHANNEL_MAX_READ in channels.h), and each write wakes a waiting reader: on loopback
//! some 25,000 times per GiB. That costs as much CPU as the decryption, and takes it from the server and the command.
//! SO_RCVLOWAT avoids most of it.
//!
//! [`Rhythm`] decides when data is gathered, and for how long. Single messages are never delayed: gathering begins
//! after a burst, and ends when too little came in a wait.

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

/// The least amount that is gathered. It is a quarter of a channel's smallest window, so that the server never waits
/// for credit.
const LOW_WATER: libc::c_int = 512 * 1024;

/// By then the kernel has woken a reader that has data.
const WAKING: Duration = Duration::from_millis(1);

sockopt_impl!(
    /// The low-water mark: the least data that wakes a reader. When it is lowered, Linux wakes a reader that has enough
    /// data already (`tcp_set_rcvlowat`).
    LowWater,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_RCVLOWAT,
    libc::c_int
);

/// A TCP connection that gathers data; see the module.
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
    /// The reader is woken when there is enough data or, once it waits, at `until`.
    Gathering { until: Pin<Box<Sleep>>, waiting: bool },
    /// The wait is over, and any data wakes the reader, at once if there is some. If it is not woken by `until`,
    /// nothing had come. The timer is kept for the next time.
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

    /// Counts `n` received bytes, and decides whether to gather.
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
            // Other systems may not wake the reader when the mark is lowered.
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

    /// Polls the wait for more data. Ready when it has lasted long enough.
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

    fn expect_reply(&mut self) {
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

/// Decides when data is gathered, and for how long. Takes the time as an argument.
#[derive(Debug)]
struct Rhythm {
    /// The time at which the server was last sent a request, or waited for credit.
    asked: Option<Instant>,
    /// The bytes received since `since`.
    received: u64,
    since: Instant,
    /// The next burst of [`ANSWERS`].
    burst: u64,
}

/// The parameters of gathering.
struct Manner {
    /// The bytes that must come within `burst_time` before data is gathered.
    burst: u64,
    burst_time: Duration,
    /// The longest delay of received data (tokio's timer may add its tick, a millisecond).
    patience: Duration,
}

/// For data that may be an awaited answer. At the rate of this burst, [`LOW_WATER`] takes two milliseconds. Each time
/// it takes longer than the patience, the next burst must be twice as long, up to [`BURST_MAX`].
const ANSWERS: Manner = Manner {
    burst: 8 * 1024 * 1024,
    burst_time: Duration::from_millis(32),
    patience: Duration::from_millis(1),
};
/// For data that the server sends by itself, at 8 MB/s and more. Each of 20 streams on two cores has 15 to 20 MB/s, a
/// few packets in this time.
const OUTPUT: Manner = Manner {
    burst: 1024 * 1024,
    burst_time: Duration::from_millis(128),
    patience: Duration::from_millis(8),
};
/// Gathering ends if a wait brings less output than this.
const LEAST: u64 = 48 * 1024;
/// Data later than this after a question counts as output. A slower answer may be delayed by some milliseconds.
const QUESTION: Duration = Duration::from_millis(500);
/// The longest burst. A client that pauses after each answer (SFTP with few requests in flight) therefore loses a
/// millisecond or two per quarter of a second at most.
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

    /// Returns how long received data may wait.
    fn patience(&self, now: Instant) -> Duration {
        if self.is_output(now) {
            OUTPUT.patience
        } else {
            ANSWERS.patience
        }
    }

    /// Counts `n` bytes that came packet by packet, and returns whether they were a burst.
    fn is_burst(&mut self, n: u64, now: Instant) -> bool {
        self.received += n;
        // A longer burst may take longer.
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

    /// Counts `n` bytes that came in a wait, and returns whether another wait is worthwhile.
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
