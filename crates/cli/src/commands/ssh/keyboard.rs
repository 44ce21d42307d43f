//! Input from this terminal: for the session, for the command line that `~C` opens, or for a local command meanwhile.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::SIGCONT;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc};

/// The reader of the terminal.
#[derive(Debug, Default)]
pub(super) struct Keyboard {
    /// Locked while the terminal is read.
    reader: Arc<Mutex<()>>,
    line_is_open: Arc<AtomicBool>,
}

impl Keyboard {
    /// Reads the terminal in a thread that ends with the process, since a read of a terminal cannot be cancelled. An
    /// empty piece is the end of input, or that of an open line, after which more may come.
    pub(super) fn read(&self, typed: mpsc::Sender<Vec<u8>>) {
        let (reader, line_is_open) = (Arc::clone(&self.reader), Arc::clone(&self.line_is_open));
        std::thread::spawn(move || {
            let stdin = io::stdin();
            loop {
                // Waits without reading, so that the terminal can be lent. The borrower may have read everything.
                if !is_readable(&stdin, None) {
                    continue;
                }
                let turn = reader.blocking_lock();
                if !is_readable(&stdin, Some(&Timespec::default())) {
                    continue;
                }
                let mut bytes = vec![0; 4096];
                let n = match rustix::io::read(&stdin, &mut bytes) {
                    Ok(n) => n,
                    Err(Errno::INTR | Errno::AGAIN) => continue,
                    Err(_) => 0,
                };
                drop(turn);
                bytes.truncate(n);
                // Checked first: the receiver of the piece may close the line.
                let is_end = n == 0 && !line_is_open.load(Ordering::Acquire);
                if typed.blocking_send(bytes).is_err() || is_end {
                    return;
                }
            }
        });
    }

    /// Opens a command line, which gets the typed input.
    ///
    /// # Errors
    /// The system's: signals cannot be watched.
    pub(super) fn open_line(&self) -> io::Result<Line> {
        let line = Line {
            typed: Vec::new(),
            continued: signal(SignalKind::from_raw(SIGCONT))?,
        };
        self.line_is_open.store(true, Ordering::Release);
        Ok(line)
    }

    /// Returns the input to the session.
    pub(super) fn close_line(&self) {
        self.line_is_open.store(false, Ordering::Release);
    }

    /// Stops reading until the guard is dropped.
    pub(super) async fn lend(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.reader).lock_owned().await
    }
}

/// A line that is typed.
#[derive(Debug)]
pub(super) struct Line {
    typed: Vec<u8>,
    continued: Signal,
}

impl Line {
    /// Takes a piece of input. Returns a complete line and the input after it. An empty piece ends the line, too.
    pub(super) fn take(&mut self, mut piece: Vec<u8>) -> Option<(Vec<u8>, Vec<u8>)> {
        // Input from before the terminal left raw mode ends with a carriage return.
        let end = piece.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
        match end {
            Some(end) => self.typed.extend(piece.drain(..=end).take(end)),
            None if piece.is_empty() => {}
            None => {
                self.typed.append(&mut piece);
                return None;
            }
        }
        Some((std::mem::take(&mut self.typed), piece))
    }
}

/// Waits until the process was stopped and continued while a line was typed, and clears the line, since the terminal
/// has forgotten it. Cancel-safe.
pub(super) async fn wait_for_continue(line: &mut Option<Line>) {
    match line {
        Some(line) => {
            _ = line.continued.recv().await;
            line.typed.clear();
        }
        None => std::future::pending().await,
    }
}

/// Returns true if a read would not block, after waiting for at most `limit`.
fn is_readable(stdin: &io::Stdin, limit: Option<&Timespec>) -> bool {
    let mut asked = [PollFd::new(stdin, PollFlags::IN)];
    // If poll fails, the read reports the error.
    poll(&mut asked, limit).map_or_else(|error| error != Errno::INTR, |ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_ends_with_a_return_a_line_feed_or_the_end_of_input() {
        let mut line = Keyboard::default().open_line().unwrap();
        assert_eq!(line.take(b"-L 1".to_vec()), None);
        assert_eq!(
            line.take(b"2\rls\n".to_vec()),
            Some((b"-L 12".to_vec(), b"ls\n".to_vec()))
        );
        assert_eq!(line.take(b"x\n".to_vec()), Some((b"x".to_vec(), Vec::new())));
        assert_eq!(line.take(b"y".to_vec()), None);
        assert_eq!(line.take(Vec::new()), Some((b"y".to_vec(), Vec::new())));
    }
}
