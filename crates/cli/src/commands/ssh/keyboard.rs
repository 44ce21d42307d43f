//! Input from this side's terminal: for the session, for the command line that `~C` opens, or for a command that runs
//! here meanwhile.

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
    /// Held while somebody reads.
    reader: Arc<Mutex<()>>,
    line_is_open: Arc<AtomicBool>,
}

impl Keyboard {
    /// Reads the terminal in a thread of its own, which ends with the process: a read of a terminal cannot be taken back.
    /// The end of input is an empty piece, and that of an open line as well, after which there may be more.
    pub(super) fn read(&self, typed: mpsc::Sender<Vec<u8>>) {
        let (reader, line_is_open) = (Arc::clone(&self.reader), Arc::clone(&self.line_is_open));
        std::thread::spawn(move || {
            let stdin = io::stdin();
            loop {
                // Waits without reading, so that the terminal can be lent; whoever it was lent to may have read it all.
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
                // Looked at first: who gets the piece may close the line.
                let is_end = n == 0 && !line_is_open.load(Ordering::Acquire);
                if typed.blocking_send(bytes).is_err() || is_end {
                    return;
                }
            }
        });
    }

    /// From now on what is typed is a line for this side.
    ///
    /// # Errors
    /// The system's: signals cannot be listened for.
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

    /// Reads nothing for as long as what this returns lives.
    pub(super) async fn lend(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.reader).lock_owned().await
    }
}

/// A line that is being typed.
#[derive(Debug)]
pub(super) struct Line {
    typed: Vec<u8>,
    continued: Signal,
}

impl Line {
    /// Takes a piece. Once the line is whole, it is returned with what comes after it; an empty piece is its end as well.
    pub(super) fn take(&mut self, mut piece: Vec<u8>) -> Option<(Vec<u8>, Vec<u8>)> {
        // What was typed before the terminal left raw mode ends with a carriage return.
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

/// The process was stopped and continued while a line was typed: the terminal has forgotten it. Cancel-safe.
pub(super) async fn wait_for_continue(line: &mut Option<Line>) {
    match line {
        Some(line) => {
            _ = line.continued.recv().await;
            line.typed.clear();
        }
        None => std::future::pending().await,
    }
}

/// Returns whether a read would return at once, after at most `limit`.
fn is_readable(stdin: &io::Stdin, limit: Option<&Timespec>) -> bool {
    let mut asked = [PollFd::new(stdin, PollFlags::IN)];
    // Where that cannot be found out, the read says why.
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
