//! SIGINT, SIGTERM and SIGHUP, for commands that have something to end before they end themselves.

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

/// The signals, from when it is made on.
#[derive(Debug)]
pub struct Interrupts {
    streams: Vec<(i32, Signal)>,
}

impl Interrupts {
    /// Handles the signals instead of the system from now on, but for those that the process was started to ignore
    /// (nohup).
    ///
    /// # Errors
    /// The system's.
    pub fn watch() -> io::Result<Self> {
        signals_are_handled();
        Self::catch(&[SIGINT, SIGTERM, SIGHUP])
    }

    /// Handles SIGINT instead of the system from now on, as [`Self::watch`] does, where it may be meant for a line that the
    /// user types: whoever calls this also restores the terminal if it is meant for the process.
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

    /// Forgets those that have come.
    pub(crate) fn forget(&mut self) {
        while self.next().now_or_never().is_some() {}
    }

    /// Returns the result of `other`, or the number of a signal that comes before that; with the signal `other` is
    /// dropped.
    ///
    /// If both are there, it is the signal: Ctrl-C at a question also ends the question, and the failure that follows from
    /// that may be there in the same moment. After Ctrl-C what is printed next begins a line.
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

    /// The next one's number. Cancel-safe.
    pub(crate) async fn next(&mut self) -> i32 {
        self.take().await.0
    }

    /// The next one's number, and whether it came while a question was on the terminal.
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

/// The last signal that came; 0 for none.
static TAKEN: LazyLock<watch::Sender<i32>> = LazyLock::new(|| watch::Sender::new(0));

/// The next signal that somebody takes from [`Interrupts`], for a question on the terminal, one at a time. There the terminal shows
/// no `^C`, and the question leaves its line by itself.
pub(crate) struct Upcoming(watch::Receiver<i32>);

/// Whether there is one.
static IS_UPCOMING: AtomicBool = AtomicBool::new(false);

impl Upcoming {
    /// Of a signal that this process was sent: a thread that is busy or asleep may be the one that gets it, and whoever sent it
    /// goes on meanwhile. Nobody takes one that nobody watches for.
    const LIMIT: Duration = Duration::from_secs(1);

    /// From now on.
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

/// Ends the program: if a signal has ended its work, by that signal. A shell ends a loop around a command only if
/// SIGINT has ended the command, and not for a status that says so.
pub(crate) fn end(code: ExitCode) -> ExitCode {
    let signal = *TAKEN.borrow();
    if signal != 0 && code == ExitCode::from(status_of(signal)) {
        // Nothing more of this process runs.
        let _ = io::stdout().flush();
        let _ = emulate_default_handler(signal);
    }
    code
}

/// The exit status of a command that a signal has ended, as shells have it.
pub fn status_of(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
