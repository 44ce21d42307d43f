//! [`Shells`]: shells on a server, each of which runs one script after another.
//!
//! Scripts come as input, so that only a POSIX shell ever reads them, whatever the user's login shell is. A shell's output is
//! cut into records, which end with a NUL.

use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::sync::Notify;

use crate::connection::channel::ChannelReader;
use crate::connection::session::{Command, Session};
use crate::engine::Host;

/// The most shells that run scripts of a copy at once: the server's cores bound them, and each takes one of MaxSessions.
const MOST: usize = 4;
/// The number of starts that a script waits before another shell is started, and between two starts.
const WORTH: u32 = 2;
/// The time that a shell may take to begin: a server may run something else instead, which waits for input.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most bytes that login scripts may print.
const NOISE: usize = 64 * 1024;
/// The record that ends the output of login scripts.
const MARK: &[u8] = b"here begins";

/// A POSIX shell on a server.
#[derive(Debug)]
pub(super) struct Shell {
    session: Session,
    records: Records,
}

impl Shell {
    /// Starts a shell. Whether the server has one is known when it has run something.
    pub(super) async fn start(host: &Host) -> Option<Self> {
        let session = host.start(&Command::exec("exec sh")).await.ok()?;
        let mut shell = Self {
            session,
            records: Records::default(),
        };
        let begin = "exec 2>/dev/null; printf '\\0%s %s\\0' here begins\n";
        shell.send(Bytes::from_static(begin.as_bytes())).await?;
        Some(shell)
    }

    /// Sends lines for the shell to run.
    pub(super) async fn send(&mut self, lines: Bytes) -> Option<()> {
        self.session.stdin.send(lines).await.ok()
    }

    /// Returns the next record; `None` if the shell ends before or the record has more than `most` bytes. Cancel-safe.
    pub(super) async fn next(&mut self, most: usize) -> Option<BytesMut> {
        begin(&mut self.session.stdout, &mut self.records).await?;
        self.read(most, |_| ()).await
    }

    async fn read(&mut self, most: usize, mut seen: impl FnMut(&[u8])) -> Option<BytesMut> {
        seen(&self.records.buffer);
        loop {
            if let Some(record) = self.records.next(most)? {
                return Some(record);
            }
            let output = self.session.stdout.chunk().await?;
            self.records.add(&output);
            seen(&output);
        }
    }

    /// Asks for a script to be run, and waits until login scripts have ended.
    async fn ask(&mut self, script: &[u8]) -> Option<()> {
        // What a script's programs read is not the next script.
        let script = [b"(\n", script, b"\n) </dev/null; printf '\\0%s\\0' $?\n"].concat();
        let (stdin, stdout) = (&mut self.session.stdin, &mut self.session.stdout);
        let sends = async { stdin.send(script.into()).await.ok().ok_or(()) };
        let begins = tokio::time::timeout(PATIENCE, begin(stdout, &mut self.records));
        let begins = async { begins.await.ok().flatten().ok_or(()) };
        tokio::try_join!(sends, begins).ok().map(|_| ())
    }

    /// Returns the output of the script, if it has no more than `most` bytes, and its status.
    async fn answer(&mut self, most: usize, seen: impl FnMut(&[u8])) -> Option<(BytesMut, BytesMut)> {
        let output = self.read(most, seen).await?;
        Some((output, self.read(NOISE, |_| ()).await?))
    }
}

async fn begin(stdout: &mut ChannelReader, records: &mut Records) -> Option<()> {
    loop {
        records.skip_noise()?;
        if records.has_begun {
            return Some(());
        }
        records.add(&stdout.chunk().await?);
    }
}

/// Output, cut into records.
#[derive(Debug, Default)]
struct Records {
    buffer: BytesMut,
    has_begun: bool,
    /// The bytes before the mark.
    noise: usize,
    /// The bytes at the buffer's beginning that have no end of a record.
    searched: usize,
}

impl Records {
    fn add(&mut self, output: &[u8]) {
        self.buffer.extend_from_slice(output);
    }

    /// Drops records to the mark. Returns `None` if they are longer than login scripts' output may be.
    fn skip_noise(&mut self) -> Option<()> {
        while !self.has_begun
            && let Some(record) = self.cut()
        {
            self.has_begun = record == MARK;
            self.noise += record.len() + 1;
        }
        (self.has_begun || self.noise + self.buffer.len() <= NOISE).then_some(())
    }

    /// Returns the next record, with `None` within if it is not complete yet; `None` if it has more than `most` bytes.
    fn next(&mut self, most: usize) -> Option<Option<BytesMut>> {
        match self.cut() {
            Some(record) => (record.len() <= most).then_some(Some(record)),
            None => (self.buffer.len() <= most).then_some(None),
        }
    }

    fn cut(&mut self) -> Option<BytesMut> {
        let unsearched = CStr::from_bytes_until_nul(&self.buffer[self.searched..]);
        let Ok(rest) = unsearched else {
            self.searched = self.buffer.len();
            return None;
        };
        let end = std::mem::take(&mut self.searched) + rest.count_bytes();
        let mut record = self.buffer.split_to(end + 1);
        record.truncate(end);
        Some(record)
    }
}

/// The shells of a copy on one server. A login shell may take longer to start than a script to run, so a shell goes on with a
/// script that waits, and another one is started only for a script that has waited for [`WORTH`] starts. A shell without a
/// script ends, since it takes one of the sessions that others may want.
#[derive(Debug, Default)]
pub(super) struct Shells {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Shells for scripts that wait.
    idle: Vec<Shell>,
    /// The scripts that wait.
    waiting: usize,
    /// The shells that run a script or are being started.
    running: usize,
    /// The time that a shell has taken to begin.
    start: Option<Duration>,
    /// The time at which the last one was asked for.
    started: Option<Instant>,
}

/// A script's turn.
struct Turn<'a>(&'a Shells);

/// A script's place among those that wait.
struct Waiting<'a>(&'a Shells);

impl Shells {
    /// Returns the output of a script; `None` if there is no shell, the script fails, or it prints more than `most` bytes.
    /// Calls `seen` for output as it arrives, and again from its beginning if the shell had been lost.
    pub(super) async fn run(
        &self,
        host: &Host,
        script: &[u8],
        most: usize,
        mut seen: impl FnMut(&[u8]),
    ) -> Option<BytesMut> {
        let (_turn, kept) = self.wait_for_turn().await;
        let kept = async {
            let mut shell = kept?;
            shell.ask(script).await?;
            let answer = shell.answer(most, &mut seen).await?;
            Some((shell, answer))
        };
        let (shell, (output, status)) = match kept.await {
            Some(ran) => ran,
            // There was none, or its connection was lost meanwhile.
            None => {
                let asked = Instant::now();
                let mut shell = Shell::start(host).await?;
                shell.ask(script).await?;
                self.state().start = Some(asked.elapsed());
                self.changed.notify_waiters();
                let answer = shell.answer(most, seen).await?;
                (shell, answer)
            }
        };
        let unwanted = self.state().keep(shell);
        if let Some(mut shell) = unwanted {
            // Some servers never tell a command that its input has ended.
            shell.send(Bytes::from_static(b"exit\n")).await;
        }
        if status != b"0"[..] {
            let host = &host.config().original_host;
            tracing::debug!("a script failed on {host}: {}", String::from_utf8_lossy(&status));
            return None;
        }
        Some(output)
    }

    /// Waits until a script may run. Returns the shell to run it, or `None` to start another one.
    async fn wait_for_turn(&self) -> (Turn<'_>, Option<Shell>) {
        let asked = Instant::now();
        self.state().waiting += 1;
        let _waiting = Waiting(self);
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let begun = self.state().begin(asked);
            let wait = match begun {
                Ok(shell) => return (Turn(self), shell),
                Err(wait) => wait,
            };
            let patience = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changed => {}
                () = patience => {}
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Begins the turn of a script that waits since `asked`. Returns the shell to run it, or `None` to start another one; the
    /// error is the time after which to try again, or `None` for the next change.
    fn begin(&mut self, asked: Instant) -> Result<Option<Shell>, Option<Duration>> {
        let wait = match self.running {
            0 => Some(Duration::ZERO),
            MOST.. => None,
            _ => self.start.map(|start| {
                let since = self.started.map_or(asked, |started| started.max(asked));
                (WORTH * start).saturating_sub(since.elapsed())
            }),
        };
        let shell = self.idle.pop();
        if shell.is_none() {
            if wait != Some(Duration::ZERO) {
                return Err(wait);
            }
            self.started = Some(Instant::now());
        }
        self.running += 1;
        Ok(shell)
    }

    /// Keeps a shell for a script that waits, or returns it.
    fn keep(&mut self, shell: Shell) -> Option<Shell> {
        if self.idle.len() >= self.waiting {
            return Some(shell);
        }
        self.idle.push(shell);
        None
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state().waiting -= 1;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state().running -= 1;
        self.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_login_scripts_print_is_not_a_record() {
        let mut records = Records::default();
        records.add(b"welcome\n\0E 0\0");
        records.skip_noise().unwrap();
        assert!(!records.has_begun);
        records.add(&[MARK, b"\0one\0tw"].concat());
        records.skip_noise().unwrap();
        assert!(records.has_begun);
        assert_eq!(records.next(9), Some(Some("one".into())));
        assert_eq!(records.next(9), Some(None));
        records.add(b"o\0");
        assert_eq!(records.next(9), Some(Some("two".into())));
    }

    #[test]
    fn words_without_end_are_no_records() {
        let mut noise = Records::default();
        noise.add(&vec![0; 2 * NOISE]);
        assert!(noise.skip_noise().is_none());
        let mut record = Records::default();
        record.add(&[b"\0", MARK, b"\0", &b"x".repeat(10)[..]].concat());
        record.skip_noise().unwrap();
        assert!(record.next(9).is_none());
    }
}
