//! The live line below the output while a run lasts.

use super::{HostResult, seconds};
use crate::terminal::live;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A line on standard error that shows the progress of a run. Hidden without a terminal, so that callers need not
/// check.
#[derive(Debug, Clone)]
pub(crate) struct Progress {
    bar: ProgressBar,
    tally: Arc<Mutex<Tally>>,
}

impl Progress {
    /// Makes the bar for a run over `total` hosts. It is shown if standard error is a terminal (`on_terminal`).
    pub(crate) fn new(total: usize, on_terminal: bool) -> Self {
        let target = if on_terminal {
            live::target()
        } else {
            ProgressDrawTarget::hidden()
        };
        let progress = Self::drawn_on(total, target);
        if on_terminal {
            // Updates the time of the slowest host while nothing ends.
            progress.bar.enable_steady_tick(Duration::from_millis(250));
        }
        progress
    }

    fn drawn_on(total: usize, target: ProgressDrawTarget) -> Self {
        let tally = Arc::new(Mutex::new(Tally {
            total,
            ..Tally::default()
        }));
        let shown = Arc::clone(&tally);
        let line = move |_: &ProgressState, to: &mut dyn fmt::Write| {
            // Errors are ignored, since the next tick draws again.
            _ = to.write_str(&live::fit(&lock_tally(&shown).line(Instant::now())));
        };
        let style = ProgressStyle::with_template("{tally}").expect("a template with one key is well-formed");
        let bar = ProgressBar::with_draw_target(None, target).with_style(style.with_key("tally", line));
        Self { bar, tally }
    }

    /// Returns the line itself.
    pub(crate) fn bar(&self) -> &ProgressBar {
        &self.bar
    }

    /// Notes that work on `host` begins.
    pub(crate) fn start(&self, host: &str) {
        lock_tally(&self.tally).start(host, Instant::now());
        self.bar.tick();
    }

    /// Notes that a host has ended.
    pub(crate) fn finish(&self, result: &HostResult) {
        lock_tally(&self.tally).finish(result);
        self.bar.tick();
    }

    /// Shows that the commands were told to end, which may take a while.
    pub(crate) fn show_interrupt(&self) {
        lock_tally(&self.tally).is_interrupted = true;
        self.bar.tick();
    }

    /// Writes to `out` while the line is hidden.
    ///
    /// # Errors
    /// Writing to `out` fails, or the pipe is closed.
    pub(crate) fn write(&self, out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
        self.bar.suspend(|| {
            out.write_all(bytes)?;
            out.flush()
        })
    }

    /// Removes the line, like dropping the last clone.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// The counts in the line.
#[derive(Debug, Clone, Default)]
struct Tally {
    total: usize,
    done: usize,
    unsuccessful: usize,
    /// Running hosts, with their start.
    running: HashMap<String, Instant>,
    is_interrupted: bool,
}

impl Tally {
    fn start(&mut self, host: &str, now: Instant) {
        self.running.insert(host.to_owned(), now);
    }

    fn finish(&mut self, result: &HostResult) {
        self.running.remove(&result.host);
        self.done += 1;
        self.unsuccessful += usize::from(!result.outcome.is_success());
    }

    /// Returns, for example, `12/200 done, 1 failed, 8 running, slowest web07 (12.0 s)`, or after Ctrl-C `12/200 done,
    /// 1 failed, ending 8; Ctrl-C again leaves at once`.
    fn line(&self, now: Instant) -> String {
        let mut line = format!("{}/{} done", self.done, self.total);
        if self.unsuccessful > 0 {
            line += &format!(", {} failed", self.unsuccessful);
        }
        if self.is_interrupted {
            return line + &format!(", ending {}; Ctrl-C again leaves at once", self.running.len());
        }
        // Among hosts that began together, the first by name, so that the line does not flicker.
        if let Some((host, since)) = self.running.iter().min_by_key(|&(host, since)| (since, host)) {
            let time = seconds(now.saturating_duration_since(*since));
            line += &format!(", {} running, slowest {host} ({time})", self.running.len());
        }
        line
    }
}

/// Locks even after a panic elsewhere.
fn lock_tally(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::super::tests::result;
    use super::*;

    #[test]
    fn the_line_counts_and_names_the_slowest() {
        let start = Instant::now();
        let mut tally = Tally {
            total: 3,
            ..Tally::default()
        };
        assert_eq!(tally.line(start), "0/3 done");
        for (host, after) in [("web2", 1), ("web1", 1), ("web3", 5)] {
            tally.start(host, start + Duration::from_secs(after));
        }
        let now = start + Duration::from_secs(13);
        assert_eq!(tally.line(now), "0/3 done, 3 running, slowest web1 (12.0 s)");
        tally.finish(&result("web1", Outcome::Exited(0), ""));
        tally.finish(&result("web2", Outcome::Exited(1), ""));
        assert_eq!(
            tally.line(now),
            "2/3 done, 1 failed, 1 running, slowest web3 (8.0 s)"
        );
        tally.is_interrupted = true;
        assert_eq!(
            tally.line(now),
            "2/3 done, 1 failed, ending 1; Ctrl-C again leaves at once"
        );
        tally.is_interrupted = false;
        tally.finish(&result("web3", Outcome::Exited(0), ""));
        assert_eq!(tally.line(now), "3/3 done, 1 failed");
    }

    #[test]
    fn without_a_terminal_only_the_output_is_written() {
        let progress = Progress::new(1, false);
        progress.start("web1");
        let mut out = Vec::new();
        progress
            .write(&mut out, b"web1: x\n")
            .expect("a Vec takes everything");
        progress.finish(&result("web1", Outcome::Exited(0), ""));
        progress.clear();
        assert_eq!(out, b"web1: x\n");
        assert_eq!(lock_tally(&progress.tally).done, 1);
    }
}
