//! `-f`: ssh forks once the session can continue without its user. A process with threads cannot fork, so this program
//! first starts another copy of itself. The copy asks questions and stays; the original waits until the session has
//! begun in the copy.

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

/// Precedes `ssh` on the command line of the process that stays. The rest is as typed, for use with pgrep(1).
pub(crate) const IN_BACKGROUND: &str = "--in-background";

/// The byte that reports the session's start.
const BEGUN: u8 = b'B';

/// Starts the process that stays, and returns when its session has started or the process has ended.
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
    // Standard input is the one stream that a session of -f does not use.
    command
        .arg(IN_BACKGROUND)
        .arg("ssh")
        .args(arguments)
        .stdin(Stdio::from(OwnedFd::from(theirs)));
    let mut child = command.spawn()?;
    // The command still holds the other end.
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

/// The process that waits for the session's start, as seen from the one that stays.
pub(super) struct Launcher {
    stream: UnixStream,
    /// The same stream, registered with the current runtime.
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

    /// Waits until the process has ended, by Ctrl-C or another signal. Cancel-safe.
    pub(super) async fn wait_until_left(&mut self) {
        match self.watch() {
            Ok(stream) => drop(stream.read(&mut [0]).await),
            Err(_) => std::future::pending().await,
        }
    }

    /// Leaves the terminal and its process session, and releases the waiting process. If no command runs, also closes
    /// standard output, and standard error unless messages are logged there (ssh.c, `fork_postauth`), because their
    /// readers wait for the end.
    pub(super) async fn release(mut self, runs_nothing: bool, logs_to_stderr: bool) {
        // Fails only for the leader of a process group, which is then independent of the caller's job.
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
