//! Sleeps that are exact to some tens of microseconds.

use std::io;
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

/// Sleeps that are accurate to some tens of microseconds. tokio's own timer counts whole milliseconds, which would add
/// up to one millisecond in each direction to every round trip that is measured through a relay.
#[derive(Debug, Default)]
pub(super) struct PreciseTimer {
    /// A timerfd, made on first use: a relay without delay needs none.
    ///
    /// For its reader it is like a pipe that yields eight bytes each time it expires (timerfd_create(2)), so tokio's
    /// pipe can wait for it. `AsyncFd` would need `unsafe`.
    timer: Option<pipe::Receiver>,
}

impl PreciseTimer {
    pub(super) async fn sleep_until(&mut self, deadline: Instant) -> io::Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.sleep(left).await?;
        }
    }

    /// Sleeps once. If it is cancelled and called again, it starts over: setting a timerfd discards an expiry that was
    /// not read.
    async fn sleep(&mut self, duration: Duration) -> io::Result<()> {
        let timer = match &mut self.timer {
            Some(timer) => timer,
            unmade => {
                let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
                let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
                unmade.insert(pipe::Receiver::from_owned_fd_unchecked(timer)?)
            }
        };
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let it_value = Timespec::try_from(duration).map_err(|_| io::ErrorKind::InvalidInput)?;
        let once = Itimerspec {
            it_interval: zero,
            it_value,
        };
        timerfd_settime(&*timer, TimerfdTimerFlags::empty(), &once)?;
        let mut expirations = [0; 8];
        timer.read_exact(&mut expirations).await.map(drop)
    }
}
