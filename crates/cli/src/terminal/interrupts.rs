//! SIGINT, SIGTERM and SIGHUP, for commands with work to end before they exit.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::emulate_default_handler;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::live::leave_interrupted_line;
use super::raw::{ignored_signals, interrupt_is_handled, signals_are_handled};

/// The signals that arrive after creation.
#[derive(Debug)]
pub struct Interrupts {
    streams: Vec<(i32, Signal)>,
}

impl Interrupts {
    /// Handles the signals instead of the system from now on, except for those that the process was started to ignore
    /// (nohup).
    ///
    /// # Errors
    /// The system's.
    pub fn watch() -> io::Result<Self> {
        signals_are_handled();
        Self::catch(&[SIGINT, SIGTERM, SIGHUP])
    }

    /// Handles SIGINT instead of the system from now on, like [`Self::watch`], for input in which it may apply to a
    /// line that is typed. The caller restores the terminal if the signal is meant for the process.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn watch_typing() -> io::Result<Self> {
        interrupt_is_handled();
        Self::catch(&[SIGINT])
    }

    fn catch(signals: &[i32]) -> io::Result<Self> {
        let ignored = ignored_signals();
        let heeded = signals
            .iter()
            .copied()
            .filter(|number| ignored & (1 << (number - 1)) == 0);
        let streams = heeded.map(|number| Ok((number, signal(SignalKind::from_raw(number))?)));
        Ok(Self {
            streams: streams.collect::<io::Result<_>>()?,
        })
    }

    /// Discards signals that have arrived.
    pub(crate) fn forget(&mut self) {
        while self.next().now_or_never().is_some() {}
    }

    /// Returns the result of `other`, or drops it and returns the number of a signal that arrives first.
    ///
    /// If both are ready, the signal wins: Ctrl-C at a question also ends the question, and the resulting failure may
    /// be ready at the same moment. After Ctrl-C, output begins on a new line.
    ///
    /// # Errors
    /// The signal's number.
    pub async fn or<T>(&mut self, other: impl Future<Output = T>) -> Result<T, i32> {
        tokio::select! {
            biased;
            (signal, at_question) = self.take() => {
                if signal == SIGINT && !at_question {
                    leave_interrupted_line();
                }
                Err(signal)
            }
            outcome = other => Ok(outcome),
        }
    }

    /// Returns the next signal's number. Cancel-safe.
    pub(crate) async fn next(&mut self) -> i32 {
        self.take().await.0
    }

    /// Returns the next signal's number, and true if a question was on the terminal.
    async fn take(&mut self) -> (i32, bool) {
        std::future::poll_fn(|cx| {
            for (number, stream) in &mut self.streams {
                if stream.poll_recv(cx).is_ready() {
                    TAKEN.send_replace(*number);
                    return Poll::Ready((*number, IS_UPCOMING.load(Ordering::Relaxed)));
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The last signal taken; 0 for none.
static TAKEN: LazyLock<watch::Sender<i32>> = LazyLock::new(|| watch::Sender::new(0));

/// The next signal taken from [`Interrupts`], for a question on the terminal, one at a time. The terminal shows no `^C`
/// then, and the question ends its line itself.
pub(crate) struct Upcoming(watch::Receiver<i32>);

/// True while an [`Upcoming`] exists.
static IS_UPCOMING: AtomicBool = AtomicBool::new(false);

impl Upcoming {
    /// The time to wait for a signal that this process was sent: the thread that gets it may be busy or asleep while
    /// the sender continues. A signal that is not watched is never taken.
    const LIMIT: Duration = Duration::from_secs(1);

    /// Watches from now on.
    pub(crate) fn new() -> Self {
        IS_UPCOMING.store(true, Ordering::Relaxed);
        Self(TAKEN.subscribe())
    }

    pub(crate) async fn take(mut self) {
        let _ = tokio::time::timeout(Self::LIMIT, self.0.changed()).await;
    }
}

impl Drop for Upcoming {
    fn drop(&mut self) {
        IS_UPCOMING.store(false, Ordering::Relaxed);
    }
}

/// Ends the program, by the signal that ended its work, if any. A shell ends a loop around a command only if SIGINT
/// killed the command; a status is not enough.
pub(crate) fn end(code: ExitCode) -> ExitCode {
    let signal = *TAKEN.borrow();
    if signal != 0 && code == ExitCode::from(status_of(signal)) {
        // Nothing else of this process runs after this.
        let _ = io::stdout().flush();
        let _ = emulate_default_handler(signal);
    }
    code
}

/// Returns the exit status for a signal, as in shells.
pub fn status_of(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
