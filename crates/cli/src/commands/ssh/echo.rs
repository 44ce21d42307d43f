//! Predicted echo of keys on the terminal of a session.

use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Instant;

use trunkline_control::protocol::Predict;
use trunkline_control::terminal::modes::WindowSize;
use trunkline_predict::{Mode, Predictor, Size};

/// The session's output on this terminal.
#[derive(Debug, Default)]
pub(super) struct Echo {
    /// `None` if nothing is predicted.
    predictor: Option<Predictor>,
}

impl Echo {
    /// Starts prediction for a session on a terminal; `term` is the terminal's name.
    pub(super) fn begin(&mut self, predict: Option<Predict>, term: &str) {
        let size = size();
        let knows_how = predict.filter(|_| size.is_usable() && obeys_sequences(term) && is_one_terminal());
        self.predictor = knows_how.map(|Predict { always, round_trip }| {
            let mode = if always { Mode::Always } else { Mode::Adaptive };
            Predictor::new(mode, size, round_trip)
        });
    }

    /// Writes the session's output.
    pub(super) fn output(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (before, after) = match &mut self.predictor {
            Some(predictor) => predictor.output(bytes, Instant::now()),
            None => Default::default(),
        };
        match before.is_empty() && after.is_empty() {
            true => write(bytes),
            // In one write, so that the terminal hardly ever shows the state in between.
            false => write(&[&before, bytes, &after].concat()),
        }
    }

    /// Shows the predicted echo of typed bytes.
    pub(super) fn type_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.draw(|predictor| predictor.handle_input(bytes, Instant::now()))
    }

    /// Handles a new size of the window.
    pub(super) fn resize(&mut self) -> io::Result<()> {
        self.draw(|predictor| predictor.handle_resize(size(), Instant::now()))
    }

    /// Prepares for other output on the terminal.
    pub(super) fn set_aside(&mut self) -> io::Result<()> {
        self.draw(|predictor| predictor.set_aside(Instant::now()))
    }

    /// Handles other output that has already been written.
    pub(super) fn lose_track(&mut self) {
        // If the terminal cannot be written to, the next output reports that.
        _ = self.set_aside();
    }

    /// Ends prediction: the session has ended or is no longer shown.
    pub(super) fn end(&mut self) {
        self.lose_track();
        self.predictor = None;
    }

    /// Waits until the display changes with time alone, and updates it.
    pub(super) async fn time_passes(&mut self) -> io::Result<()> {
        match self.predictor.as_ref().and_then(Predictor::deadline) {
            Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
            None => std::future::pending().await,
        }
        self.draw(|predictor| predictor.timed_out(Instant::now()))
    }

    fn draw(&mut self, bytes: impl FnOnce(&mut Predictor) -> Vec<u8>) -> io::Result<()> {
        let bytes = self.predictor.as_mut().map(bytes).unwrap_or_default();
        if bytes.is_empty() {
            return Ok(());
        }
        write(&bytes)
    }
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut terminal = io::stdout().lock();
    terminal.write_all(bytes)?;
    terminal.flush()
}

/// Returns true if input and output are on one terminal, as far as can be determined.
fn is_one_terminal() -> bool {
    let (input, output) = (io::stdin(), io::stdout());
    let device = |stream: BorrowedFd<'_>| rustix::fs::fstat(stream).map(|found| found.st_rdev).ok();
    rustix::termios::isatty(&input)
        && rustix::termios::isatty(&output)
        && device(input.as_fd()) == device(output.as_fd())
}

/// Returns true if a terminal of this name moves its cursor and erases like xterm.
fn obeys_sequences(term: &str) -> bool {
    let family = term.split(['-', '.', '+']).next().unwrap_or_default();
    !matches!(
        family,
        "" | "dumb"
            | "unknown"
            | "network"
            | "emacs"
            | "vt52"
            | "ansi"
            | "cons25"
            | "9term"
            | "sun"
            | "wyse50"
            | "tvi920"
    )
}

fn size() -> Size {
    let WindowSize { cols, rows, .. } = WindowSize::read_from(io::stdin());
    let count = |count| usize::try_from(count).unwrap_or(0);
    Size {
        rows: count(rows),
        columns: count(cols),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_without_sequences_are_left_alone() {
        for term in ["", "dumb", "dumb-emacs-ansi", "unknown", "vt52"] {
            assert!(!obeys_sequences(term), "{term}");
        }
        for term in [
            "xterm-256color",
            "tmux-256color",
            "screen.xterm",
            "linux",
            "alacritty",
            "foot",
            "vt100",
        ] {
            assert!(obeys_sequences(term), "{term}");
        }
    }
}
