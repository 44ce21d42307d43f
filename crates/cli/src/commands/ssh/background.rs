//! `-f`: ssh forks once the session can continue without its user. A process with threads cannot, so this program is started
//! once more before anything is done: what was started asks its questions, and stays; what the user has started waits until
//! the session has begun there.

use std::ffi::OsString;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitCode, Stdio};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::OWN_ERROR;
use crate::backend::Backend;
use crate::terminal::interrupts::status_of;

/// Before `ssh` on the command line of the process that stays. What follows is as it was typed, for those who look for it
/// with pgrep(1).
pub(crate) const IN_BACKGROUND: &str = "--in-background";

/// The byte that says that the session has begun.
const BEGUN: u8 = b'B';

/// Starts the process that stays, and returns when its session has begun, or as it has ended before.
pub(super) fn launch(arguments: &[OsString], backend: &Backend) -> ExitCode {
    match try_launch(arguments, backend) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("trunkline: going to the background: {error}");
            ExitCode::from(OWN_ERROR)
        }
    }
}

fn try_launch(arguments: &[OsString], backend: &Backend) -> io::Result<ExitCode> {
    let (mut ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0("trunkline");
    if backend.is_private() {
        command.arg("--no-daemon");
    }
    // Standard input is the one stream that a session of -f has no use for.
    command
        .arg(IN_BACKGROUND)
        .arg("ssh")
        .args(arguments)
        .stdin(Stdio::from(OwnedFd::from(theirs)));
    let mut child = command.spawn()?;
    // It holds the other end still.
    drop(command);
    let mut said = [0];
    if let Ok(1) = ours.read(&mut said) {
        return Ok(ExitCode::SUCCESS);
    }
    let ended = child.wait()?;
    let code = match (ended.code(), ended.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(OWN_ERROR),
        (None, Some(signal)) => status_of(signal),
        (None, None) => OWN_ERROR,
    };
    Ok(ExitCode::from(code))
}

/// The process that waits until the session has begun, seen from the one that stays.
pub(super) struct Launcher {
    stream: UnixStream,
    /// The same in the hands of the runtime that last used it.
    watched: Option<tokio::net::UnixStream>,
}

impl Launcher {
    /// Takes it from standard input.
    ///
    /// # Errors
    /// Standard input is not a socket.
    pub(super) fn of_this_process() -> io::Result<Self> {
        let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        stream.peer_addr()?;
        Ok(Self {
            stream,
            watched: None,
        })
    }

    fn watch(&mut self) -> io::Result<&mut tokio::net::UnixStream> {
        if self.watched.is_none() {
            let stream = self.stream.try_clone()?;
            stream.set_nonblocking(true)?;
            self.watched = Some(tokio::net::UnixStream::from_std(stream)?);
        }
        self.watched
            .as_mut()
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Waits until it has gone, as when Ctrl-C or a signal has ended it. Cancel-safe.
    pub(super) async fn wait_until_left(&mut self) {
        match self.watch() {
            Ok(stream) => drop(stream.read(&mut [0]).await),
            Err(_) => std::future::pending().await,
        }
    }

    /// Leaves the terminal and its session of processes, and lets it go: with it, where nothing runs that writes to them,
    /// standard output, and standard error if nothing is logged there (ssh.c, `fork_postauth`). Whoever reads them waits for
    /// their end.
    pub(super) async fn release(mut self, runs_nothing: bool, logs_to_stderr: bool) {
        // Fails for the leader of a group only, which is nobody's job but its own.
        let _ = rustix::process::setsid();
        if let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") {
            let _ = rustix::stdio::dup2_stdin(&null);
            if runs_nothing {
                let _ = rustix::stdio::dup2_stdout(&null);
            }
            if runs_nothing && !logs_to_stderr {
                let _ = rustix::stdio::dup2_stderr(&null);
            }
        }
        if let Ok(stream) = self.watch() {
            let _ = stream.write_all(&[BEGUN]).await;
        }
    }
}
