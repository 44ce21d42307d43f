//! A destination reached through the daemon, which holds the connections of all of a user's programs.

use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use pyo3::prelude::*;
use tokio::net::UnixStream;
use trunkline::config::Request;
use trunkline_daemon::client::{self, Client, ClientError, session};
use trunkline_daemon::place::Place;
use trunkline_daemon::protocol::{
    self, HostRequest, Program, Reply, SessionRequest, Stdio, TerminalInfo, Tty,
};

use crate::error::Failure;
use crate::reach::{Reach, Wanted, Way};
use crate::session::{Control, Ending, Incoming, Outgoing, Parts, Source};

/// Whether a daemon of this user listens.
#[pyfunction]
pub(crate) fn daemon_runs() -> bool {
    Place::find(|name| std::env::var_os(name).map(PathBuf::from))
        .is_ok_and(|place| std::os::unix::net::UnixStream::connect(place.socket()).is_ok())
}

impl Reach {
    async fn client(&self) -> Result<Client, Failure> {
        match &self.way {
            Way::Daemon {
                place,
                starter,
                process,
            } => {
                let process = process.clone();
                client::connect_from_here(place, starter.as_ref(), async move || {
                    // Python is waited for where that holds up no connection.
                    let engine = move || Python::attach(|_| process.engine().clone());
                    tokio::task::spawn_blocking(engine)
                        .await
                        .map_err(|_| Failure::local("the interpreter is ending"))
                })
                .await
            }
            Way::Engine { .. } => Err(ClientError::NotRunning.into()),
        }
    }

    /// The destination in this process's world.
    pub(crate) fn host_request(&self) -> HostRequest {
        let Request {
            destination,
            ssh_args,
            world,
            // Only `trunkline ssh` does.
            runs_local_command: _,
        } = self.request.clone();
        HostRequest {
            destination,
            ssh_args,
            world: Arc::unwrap_or_clone(world),
        }
    }

    /// The daemon's answer to a request without a session.
    pub(crate) async fn answer(&self, request: &protocol::Request) -> Result<Reply, Failure> {
        let mut client = self.client().await?;
        Ok(session::ask(&mut client, request, &self.interaction).await?)
    }

    /// Starts a session in the daemon, which gets the far ends of sockets for its streams.
    pub(crate) async fn start_in_daemon(
        &self,
        wanted: &Wanted,
        with_input: bool,
        limit: Option<Duration>,
    ) -> Result<Parts, Failure> {
        let client = self.client().await?;
        let pair = || UnixStream::pair().map_err(|error| Failure::local(format!("making a socket: {error}")));
        let (stdin, far_stdin) = pair()?;
        let (stdout, far_stdout) = pair()?;
        let (stderr, far_stderr) = pair()?;
        let request = SessionRequest {
            host: self.host_request(),
            env: wanted
                .env
                .iter()
                .map(|(name, value)| (name.into(), OsString::from_vec(value.clone())))
                .collect(),
            program: match (&wanted.program, wanted.subsystem) {
                (Some(name), true) => Program::Subsystem(String::from_utf8_lossy(name).into_owned()),
                (Some(line), false) => Program::Exec(line.clone()),
                (None, _) => Program::Configured,
            },
            tty: match wanted.terminal {
                Some(_) => Tty::Force,
                None => Tty::No,
            },
            terminal: wanted
                .terminal
                .as_ref()
                .map(|(term, columns, rows)| TerminalInfo {
                    term: term.clone(),
                    size: (*columns, *rows, 0, 0),
                    modes: Vec::new(),
                }),
            stdio: [
                if with_input { Stdio::Passed } else { Stdio::Null },
                Stdio::Passed,
                Stdio::Passed,
            ],
            answers: self.answers,
            ssh: None,
            limit,
        };
        let fds = [far_stdin.as_fd(), far_stdout.as_fd(), far_stderr.as_fd()];
        let fds = if with_input { &fds[..] } else { &fds[1..] };
        let (control, end) = session::start(client, request, fds, &self.interaction).await?;
        Ok(Parts {
            stdin: if with_input {
                Outgoing::Socket(stdin)
            } else {
                Outgoing::Ended
            },
            stdout: Incoming::Socket(stdout, BytesMut::new()),
            stderr: Incoming::Socket(stderr, BytesMut::new()),
            control: Control::Daemon(std::sync::Mutex::new(Some(control))),
            end: Ending::new(Source::Daemon(end)),
        })
    }
}

/// An SFTP session on the streams of a session of the daemon's, which it keeps as it is used.
pub(crate) async fn sftp_over(parts: Parts, host: &str) -> Result<trunkline::sftp::Sftp, Failure> {
    let Parts {
        stdin: Outgoing::Socket(stdin),
        stdout: Incoming::Socket(stdout, _),
        control,
        mut end,
        ..
    } = parts
    else {
        return Err(Failure::local("the daemon gave no streams"));
    };
    // What the daemon says of a failure is more than the streams' end would be.
    end.started().await?;
    tokio::spawn(async move {
        // Until the SFTP session closes its input, and the server ends.
        let _ = end.wait().await;
        drop(control);
    });
    Ok(trunkline::sftp::Sftp::over(stdout, stdin, host))
}
