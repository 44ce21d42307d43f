//! A destination reached through the daemon, which holds the connections of all of a user's programs.

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use pyo3::prelude::*;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use trunkline::config::Request;
use trunkline::prompt::{Prompt, PromptKind};
use trunkline::{ExitStatus, Interaction};
use trunkline_daemon::client::{Client, ClientError, ReplyReader, RequestWriter};
use trunkline_daemon::place::Place;
use trunkline_daemon::protocol::{
    self, Exit, HostRequest, Program, Reply, SessionRequest, Stdio, TerminalInfo, Tty,
};

use crate::error::Failure;
use crate::reach::{Reach, Wanted, Way};
use crate::session::{Control, Ending, Incoming, Outgoing, Parts, Source, Status};

/// Whether a daemon of this user listens.
#[pyfunction]
pub(crate) fn daemon_runs() -> bool {
    Place::find(|name| std::env::var_os(name).map(PathBuf::from))
        .is_ok_and(|place| std::os::unix::net::UnixStream::connect(place.socket()).is_ok())
}

impl Reach {
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        match &self.way {
            Way::Daemon { place, starter } => Ok(Client::connect(place, starter.as_ref()).await?),
            Way::Engine { .. } => Err(ClientError::NotRunning.into()),
        }
    }

    /// The destination in this process's world, with further variables of a session, which SendEnv lets through.
    pub(crate) fn host_request(&self, env: &[(String, Vec<u8>)]) -> HostRequest {
        let Request {
            destination,
            ssh_args,
            world,
        } = self.request.clone();
        let mut host = HostRequest {
            destination,
            ssh_args,
            world: Arc::unwrap_or_clone(world),
        };
        for (name, value) in env {
            host.ssh_args
                .extend(["-o".into(), format!("SendEnv={name}").into()]);
            let value = std::os::unix::ffi::OsStringExt::from_vec(value.clone());
            host.world.env.insert(name.into(), value);
        }
        host
    }

    /// The daemon's answer to a request without a session.
    pub(crate) async fn answer(&self, client: &mut Client) -> Result<Reply, Failure> {
        loop {
            match client.next().await? {
                Reply::Welcome { .. } => {}
                Reply::Notice(text) => self.interaction.notice(&text),
                Reply::Ask { text, echo, kind } => {
                    let answer = ask(&self.interaction, text, echo, &kind).await;
                    client.send(&protocol::Request::Answer(answer)).await?;
                }
                Reply::Failed(failure) => return Err(failure.into()),
                Reply::UseSystemSsh { reasons, .. } => return Err(needs_system_ssh(&reasons)),
                reply => return Ok(reply),
            }
        }
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
            host: self.host_request(&wanted.env),
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
            detached: false,
            limit,
        };
        let fds = [far_stdin.as_fd(), far_stdout.as_fd(), far_stderr.as_fd()];
        let fds = if with_input { &fds[..] } else { &fds[1..] };
        client
            .send_with(&protocol::Request::Session(Box::new(request)), fds)
            .await?;
        let (replies, requests) = client.into_split();
        let (control, commands) = mpsc::unbounded_channel();
        let (started, when_started) = oneshot::channel();
        let (done, when_done) = oneshot::channel();
        let attended = Attended {
            replies,
            requests,
            started: Some(started),
            interaction: self.interaction.clone(),
        };
        tokio::spawn(async move {
            let outcome = attended.attend(commands).await;
            let _ = done.send(outcome);
        });
        Ok(Parts {
            stdin: if with_input {
                Outgoing::Socket(stdin)
            } else {
                Outgoing::Ended
            },
            stdout: Incoming::Socket(stdout, BytesMut::new()),
            stderr: Incoming::Socket(stderr, BytesMut::new()),
            control: Control::Daemon(std::sync::Mutex::new(Some(control))),
            end: Ending::new(Source::Daemon {
                started: when_started,
                done: when_done,
            }),
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

async fn ask(interaction: &Interaction, text: String, echo: bool, kind: &str) -> Option<String> {
    let kind = match kind {
        "passphrase" => PromptKind::Passphrase,
        "password" => PromptKind::Password,
        "host key" => PromptKind::HostKey,
        "keyboard-interactive" => PromptKind::KeyboardInteractive,
        _ => PromptKind::Confirm,
    };
    let prompt = Prompt { text, echo, kind };
    let answer = interaction.prompter().ask(&prompt).await;
    answer.map(|answer| answer.to_string())
}

fn needs_system_ssh(reasons: &[String]) -> Failure {
    Failure::usage(format!(
        "this host needs the system's ssh: {}",
        reasons.join("; ")
    ))
}

/// A session of the daemon, looked after until it has ended.
struct Attended {
    replies: ReplyReader,
    requests: RequestWriter,
    started: Option<oneshot::Sender<Result<(), Failure>>>,
    interaction: Interaction,
}

impl Attended {
    /// Passes on what Python says of the session, until it is closed: `commands` end. The daemon then closes the channel,
    /// because its client has left.
    async fn attend(
        mut self,
        mut commands: mpsc::UnboundedReceiver<protocol::Request>,
    ) -> Result<Status, Failure> {
        let outcome = loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.requests.send(&command).await?,
                    None => break Err(Failure::closed("session").after_start()),
                },
                reply = self.replies.next() => match reply {
                    Ok(Reply::Exit(exit)) => break Ok(told(exit)),
                    Ok(Reply::Failed(failure)) => break Err(failure.into()),
                    Ok(Reply::UseSystemSsh { reasons, .. }) => break Err(needs_system_ssh(&reasons)),
                    Ok(Reply::Notice(text)) => self.interaction.notice(&text),
                    Ok(Reply::Begun { .. }) => self.tell_start(Ok(())),
                    Ok(Reply::Ask { text, echo, kind }) => {
                        let answer = ask(&self.interaction, text, echo, &kind).await;
                        self.requests.send(&protocol::Request::Answer(answer)).await?;
                    }
                    Ok(_) => {}
                    Err(error) => break Err(error.into()),
                },
            }
        };
        self.tell_start(outcome.as_ref().map(drop).map_err(Clone::clone));
        outcome
    }

    fn tell_start(&mut self, outcome: Result<(), Failure>) {
        if let Some(started) = self.started.take() {
            let _ = started.send(outcome);
        }
    }
}

fn told(exit: Exit) -> Status {
    crate::session::told(&match exit {
        Exit::Status(status) => ExitStatus::Exited(status),
        Exit::Signal(signal, core_dumped) => ExitStatus::Signaled { signal, core_dumped },
        Exit::Unknown => ExitStatus::Unknown,
    })
}
