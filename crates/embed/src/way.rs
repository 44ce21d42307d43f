//! The way to a host: through an engine in this process, or the daemon.

use std::future::Future;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use trunkline::config::{Forward, ForwardAgent, ForwardTarget, HostConfig, Listen, World};
use trunkline::sftp::Sftp;
use trunkline::transfer::{self, CopyOptions, Location, Progress, Snapshot};
use trunkline::{Engine, ForwardHandle, Host};
use trunkline_audit::{Entry, Recorder, Subject};
use trunkline_control::protocol::{self, ForwardKind};
use trunkline_request::connection::ConnectionReport;
use trunkline_request::failure::{ErrorKind, Failure};

use crate::daemon::Daemon;
use crate::destination::Destination;
use crate::engine::ProgramEngine;
use crate::held::ConnectionHold;
use crate::listener::Listener;
use crate::recorded::{record, unless_failed};
use crate::route::Route;
use crate::session::{Program, Ran, Session, SessionOptions, Tunnel, timed_out};

/// The way to open sessions and tunnels on a host.
#[derive(Debug)]
pub struct Way(Reach);

#[derive(Debug)]
enum Reach {
    /// An engine of this process.
    Engine {
        host: Box<Host>,
        recorder: Recorder,
        /// The resolver and the environment; `None` for a host that the program has described itself.
        resolved: Option<(Engine, Arc<World>)>,
    },
    Daemon(Arc<Daemon>),
}

impl Way {
    /// Returns the way to a host of this engine that the program has described itself.
    pub fn to_host(host: Host, engine: &ProgramEngine) -> Self {
        Self(Reach::Engine {
            host: Box::new(host),
            recorder: engine.recorder().clone(),
            resolved: None,
        })
    }

    /// Finds the way to a destination. `engine` is called if the daemon is not wanted or cannot be used, because it
    /// runs in namespaces where the same names mean other hosts.
    ///
    /// # Errors
    /// The daemon cannot be reached, or the destination cannot be resolved.
    pub async fn find(
        destination: &Destination,
        engine: impl AsyncFnOnce() -> Result<ProgramEngine, Failure>,
    ) -> Result<Self, Failure> {
        if let Some(daemon) = Daemon::find(destination).await? {
            return Ok(Self(Reach::Daemon(Arc::new(daemon))));
        }
        Self::through_engine(destination, engine().await?).await
    }

    /// Returns the way to a destination through an engine of this process.
    ///
    /// # Errors
    /// The destination cannot be resolved.
    pub async fn through_engine(destination: &Destination, engine: ProgramEngine) -> Result<Self, Failure> {
        let request = &destination.request;
        Ok(Self(Reach::Engine {
            host: Box::new(engine.host_for(request, &destination.interaction).await?),
            recorder: engine.recorder().clone(),
            resolved: Some((Engine::clone(&engine), request.world.clone())),
        }))
    }

    /// Returns the host if this process's engine reaches it.
    pub fn host(&self) -> Option<&Host> {
        match &self.0 {
            Reach::Engine { host, .. } => Some(host),
            Reach::Daemon(_) => None,
        }
    }

    /// Connects, unless there is a connection.
    ///
    /// # Errors
    /// It cannot be connected to.
    pub async fn connect(&self) -> Result<(), Failure> {
        match &self.0 {
            Reach::Engine { host, .. } => Ok(host.warm().await?),
            Reach::Daemon(daemon) => daemon.connect().await,
        }
    }

    /// Connects, and keeps a connection open.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn hold(&self) -> Result<ConnectionHold<'_>, Failure> {
        match &self.0 {
            Reach::Engine { host, .. } => ConnectionHold::of_engine(host).await,
            Reach::Daemon(daemon) => ConnectionHold::of_daemon(daemon).await,
        }
    }

    /// Starts a session with its input, output and error output routed by `routes`.
    ///
    /// # Errors
    /// Nothing was started.
    pub async fn session(&self, options: &SessionOptions, routes: [Route; 3]) -> Result<Session, Failure> {
        self.start(options, routes, None).await
    }

    /// Opens a session without a command, with the engine of this process.
    ///
    /// # Errors
    /// The server refuses, or the host is the daemon's, which opens sessions only together with their commands.
    pub async fn open_session(&self) -> Result<OpenedSession, Failure> {
        let Reach::Engine { host, .. } = &self.0 else {
            let why = "the daemon opens a session together with its command";
            return Err(Failure::new(ErrorKind::Configuration, why));
        };
        Ok(OpenedSession(host.open_session().await?))
    }

    /// Starts a session with a time limit. The daemon enforces `limit`, because it knows how far the command got. With
    /// an engine of this process, the caller does.
    ///
    /// # Errors
    /// Nothing was started.
    pub async fn start(
        &self,
        options: &SessionOptions,
        routes: [Route; 3],
        limit: Option<Duration>,
    ) -> Result<Session, Failure> {
        self.start_in(None, options, routes, limit).await
    }

    /// Starts a session like [`Self::start`], in an opened one if there is one.
    ///
    /// # Errors
    /// Nothing was started.
    pub async fn start_in(
        &self,
        opened: Option<OpenedSession>,
        options: &SessionOptions,
        routes: [Route; 3],
        limit: Option<Duration>,
    ) -> Result<Session, Failure> {
        match &self.0 {
            Reach::Engine {
                host,
                recorder,
                resolved,
            } => {
                let options = match resolved {
                    Some((_, world)) => &configure(options, host, world)?,
                    None => options,
                };
                let subject = || options.subject(host.config());
                let recorded = record(recorder, host, subject).await?;
                let command = options.command();
                let started = match opened {
                    Some(OpenedSession(session)) => host.start_in(session, &command),
                    None => host.start(&command).await,
                };
                let session = unless_failed(&recorded, started)?;
                Session::of_engine(session.into_parts(), routes, recorded)
            }
            Reach::Daemon(daemon) => daemon.session(options, routes, limit).await,
        }
    }

    /// Runs a command to its end, for at most `limit`. Without `input`, its standard input is empty.
    pub async fn run(&self, options: &SessionOptions, input: Option<Bytes>, limit: Option<Duration>) -> Ran {
        let deadline = limit.map(|limit| (Instant::now() + limit, limit));
        let stdin = if input.is_some() {
            Route::Pipe
        } else {
            Route::Ignore
        };
        let starting = self.start(options, [stdin, Route::Pipe, Route::Pipe], limit);
        let started = match deadline {
            Some((at, limit)) => tokio::time::timeout_at(at, starting)
                .await
                .unwrap_or_else(|_| Err(timed_out(limit).into())),
            None => starting.await,
        };
        let deadline = deadline.filter(|_| matches!(self.0, Reach::Engine { .. }));
        match started {
            Ok(session) => session.run(input.unwrap_or_default(), deadline).await,
            Err(failure) => failure.into(),
        }
    }

    /// Opens a tunnel to a TCP port as seen from the server, on behalf of a client at `from`.
    ///
    /// # Errors
    /// The server refuses, or cannot be connected to.
    pub async fn tcp(&self, host: &str, port: u16, from: (&str, u16)) -> Result<Tunnel, Failure> {
        match &self.0 {
            Reach::Engine {
                host: reached,
                recorder,
                ..
            } => {
                let subject = || tunnel(&protocol::Program::Stdio(host.to_owned(), port));
                let recorded = record(recorder, reached, subject).await?;
                let opened = unless_failed(&recorded, reached.direct_tcpip(host, port, from).await)?;
                Ok(Tunnel::of_engine(opened, recorded))
            }
            Reach::Daemon(daemon) => {
                let program = protocol::Program::Stdio(host.to_owned(), port);
                daemon.tunnel(program).await
            }
        }
    }

    /// Opens a tunnel to a Unix socket of the server.
    ///
    /// # Errors
    /// As [`Self::tcp`].
    pub async fn socket(&self, path: &str) -> Result<Tunnel, Failure> {
        match &self.0 {
            Reach::Engine { host, recorder, .. } => {
                let subject = || tunnel(&protocol::Program::StdioSocket(path.to_owned()));
                let recorded = record(recorder, host, subject).await?;
                let opened = unless_failed(&recorded, host.direct_streamlocal(path).await)?;
                Ok(Tunnel::of_engine(opened, recorded))
            }
            Reach::Daemon(daemon) => {
                let program = protocol::Program::StdioSocket(path.to_owned());
                daemon.tunnel(program).await
            }
        }
    }

    /// Makes the server listen on a TCP port or a Unix socket.
    ///
    /// # Errors
    /// As [`Self::tcp`].
    pub async fn listen(&self, listen: &Listen) -> Result<Listener, Failure> {
        match &self.0 {
            Reach::Engine { host, recorder, .. } => Listener::of_engine(recorder, host, listen).await,
            Reach::Daemon(daemon) => Listener::of_daemon(daemon, listen).await,
        }
    }

    /// Listens on a local Unix socket and connects its clients to the target through the server, until `cancelled`.
    /// Calls `listening` once it listens.
    ///
    /// # Errors
    /// The socket cannot be listened on.
    pub async fn forward_socket(
        &self,
        path: PathBuf,
        target: ForwardTarget,
        listening: impl FnOnce(),
        cancelled: impl Future<Output = ()>,
    ) -> Result<(), Failure> {
        match &self.0 {
            Reach::Engine { .. } => {
                let listen = Listen::Socket(path);
                let forward = Forward { listen, target };
                let forwarding = self.forward(ForwardKind::Local, &forward).await?;
                listening();
                cancelled.await;
                forwarding.close().await;
                Ok(())
            }
            Reach::Daemon(daemon) => tokio::select! {
                failed = daemon.forward_socket(&path, &target, listening) => failed.map(|never| match never {}),
                () = cancelled => Ok(()),
            },
        }
    }

    /// Starts a forwarding with this process's engine.
    ///
    /// # Errors
    /// The address cannot be listened on, or the daemon has the host: its forwardings end with the client that asks for
    /// them.
    pub async fn forward(&self, kind: ForwardKind, forward: &Forward) -> Result<Forwarding, Failure> {
        let Reach::Engine { host, recorder, .. } = &self.0 else {
            let why = "the daemon makes no forwarding that a program holds";
            return Err(Failure::new(ErrorKind::Configuration, why));
        };
        let entry = recorder.entry(Subject::forwarding(host.config(), kind, forward));
        let handle = trunkline_audit::open(host, kind, forward, &entry).await?;
        Ok(Forwarding { handle, entry })
    }

    /// Copies between the host and this machine.
    ///
    /// # Errors
    /// As [`trunkline::transfer::copy`].
    pub async fn copy(
        &self,
        sources: &[Location],
        target: &Location,
        options: &CopyOptions,
        progress: &Arc<Progress>,
    ) -> Result<Snapshot, Failure> {
        let recorded = match &self.0 {
            Reach::Engine { host, recorder, .. } => {
                let subject = || Subject::transfer(host.config(), sources, target);
                record(recorder, host, subject).await?
            }
            // The daemon records the SFTP session that carries the copy.
            Reach::Daemon(_) => None,
        };
        if let Some(entry) = &recorded {
            entry.counts_copy(sources, target, progress);
        }
        let copied = transfer::copy(sources, target, options, progress).await;
        if let Some(entry) = &recorded {
            entry.end_copy(&copied);
        }
        Ok(copied?)
    }

    /// Opens an SFTP session.
    ///
    /// # Errors
    /// As [`Self::tcp`].
    pub async fn sftp(&self) -> Result<Sftp, Failure> {
        self.sftp_with(Vec::new()).await
    }

    /// Opens an SFTP session with environment variables for its server, which accepts only those in its AcceptEnv.
    ///
    /// # Errors
    /// As [`Self::tcp`].
    pub async fn sftp_with(&self, env: Vec<(String, Vec<u8>)>) -> Result<Sftp, Failure> {
        match &self.0 {
            Reach::Engine { host, recorder, .. } => {
                let sftp = recorded_sftp(host, recorder, env.clone()).await?;
                let (host, recorder) = (host.clone(), recorder.clone());
                Ok(sftp.reopened_by(move || {
                    let (host, recorder, env) = (host.clone(), recorder.clone(), env.clone());
                    async move { recorded_sftp(&host, &recorder, env).await }
                }))
            }
            Reach::Daemon(daemon) => {
                let sftp = daemon.sftp(env.clone()).await?;
                let daemon = daemon.clone();
                Ok(sftp.reopened_by(move || {
                    let (daemon, env) = (daemon.clone(), env.clone());
                    async move { daemon.sftp(env).await }
                }))
            }
        }
    }

    /// Returns the connections of the host.
    ///
    /// # Errors
    /// The daemon cannot be reached.
    pub async fn connections(&self) -> Result<Vec<ConnectionReport>, Failure> {
        match &self.0 {
            Reach::Engine { host, .. } => Ok(host.lanes().into_iter().map(|lane| lane.report).collect()),
            Reach::Daemon(daemon) => daemon.connections().await,
        }
    }

    /// Closes the connections to the host's account once their sessions have ended, and returns their number. Later
    /// requests connect again.
    ///
    /// # Errors
    /// The daemon cannot be reached.
    pub async fn disconnect(&self) -> Result<usize, Failure> {
        match &self.0 {
            Reach::Engine { host, resolved, .. } => Ok(match resolved {
                Some((engine, _)) => {
                    let same = |other: &HostConfig| host.config().is_same_account(other);
                    engine.close(false, same).count()
                }
                None => 0,
            }),
            Reach::Daemon(daemon) => daemon.disconnect().await,
        }
    }
}

/// A session of this process's engine without a command so far. Dropping it closes it.
#[derive(Debug)]
pub struct OpenedSession(trunkline::Session);

/// Opens an SFTP session with this process's engine, recorded in the audit trail until its end.
async fn recorded_sftp(
    host: &Host,
    recorder: &Recorder,
    env: Vec<(String, Vec<u8>)>,
) -> Result<Sftp, Failure> {
    let subject = || SessionOptions::new(Program::Subsystem("sftp".into())).subject(host.config());
    let Some(entry) = record(recorder, host, subject).await?.map(Arc::new) else {
        return Ok(host.sftp_with(env).await?);
    };
    let witness = entry.clone();
    let opened = host.sftp_witnessed(env, move |control| {
        witness.lasts();
        witness.count_session(control);
        Some(Box::new(move |ended| witness.end_session(ended)))
    });
    Ok(opened.await.inspect_err(|error| entry.fail(error))?)
}

/// A forwarding of this process's engine. Dropping it closes its listener, like [`ForwardHandle`].
pub struct Forwarding {
    handle: ForwardHandle,
    /// The forwarding's record in the audit trail, which ends with it.
    entry: Entry,
}

impl Forwarding {
    /// As [`ForwardHandle::close`].
    pub async fn close(self) {
        let Self { handle, entry } = self;
        handle.close().await;
        drop(entry);
    }

    /// As [`ForwardHandle::abort`].
    pub async fn abort(self) {
        self.handle.abort().await;
    }
}

impl Deref for Forwarding {
    type Target = ForwardHandle;

    fn deref(&self) -> &ForwardHandle {
        &self.handle
    }
}

fn tunnel(program: &protocol::Program) -> Subject {
    Subject::default().running(program)
}

/// Applies ssh_config's settings for a host's sessions to a session's program and options, as the daemon does.
fn configure(options: &SessionOptions, host: &Host, world: &World) -> Result<SessionOptions, Failure> {
    let config = host.config();
    let mut options = options.clone();
    let has_command = matches!(options.program, Program::Exec(_));
    let instead = config
        .remote_command(has_command)
        .map_err(trunkline::Error::from)?;
    if let (Program::Shell, Some(command)) = (&options.program, instead) {
        options.program = Program::Exec(command.into());
    }
    let sent = config
        .session_env(world)
        .map(|(name, value)| (name.to_owned(), value.to_vec()));
    // If there are two values, sshd takes the last.
    options.env = sent.chain(options.env).collect();
    options.agent_forwarding = config.forward_agent != ForwardAgent::No;
    Ok(options)
}
