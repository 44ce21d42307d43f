//! The way to a client's host: an engine in this process, or the daemon.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use trunkline::config::{ForwardAgent, ForwardTarget, Listen, Request, World};
use trunkline::sftp::Sftp;
use trunkline::{Command, Engine, Execution, Host, IncomingConnection, Interaction, RemoteListener};
use trunkline_daemon::client::session::{self, Control};
use trunkline_daemon::client::{Client, ClientError, Starter};
use trunkline_daemon::place::Place;
use trunkline_daemon::protocol::{
    self, ConnectionReport, HostRequest, Program, Reply, SessionRequest, Stdio, TerminalInfo, Tty,
};
use trunkline_daemon::sink::ListeningSocket;

use crate::fault::Fault;
use crate::options::Wanted;
use crate::stdio::{Route, Routes};
use crate::stream::{Opened, Opening, Source};

/// Where a client's sessions and tunnels are opened.
pub(crate) enum Way {
    /// An engine of this process. `own`: nobody else uses the host's connections.
    Engine {
        host: Host,
        own: bool,
        /// Where SendEnv finds variables; `None` for a host that the program has described itself.
        world: Option<Arc<World>>,
    },
    Daemon(Box<Daemon>),
}

/// Which of them a destination of ssh_config takes.
pub(crate) enum Preference {
    /// The engine.
    Engine,
    /// The daemon, where one runs.
    RunningDaemon,
    /// The daemon, which is started where none runs.
    Daemon(Starter),
}

impl Way {
    /// Finds the way to a destination.
    pub(crate) async fn find(
        request: &Request,
        preference: &Preference,
        engine: &Engine,
        interaction: &Interaction,
        answers: bool,
    ) -> Result<Self, Fault> {
        if let Some(daemon) = Daemon::find(request, preference, interaction, answers).await? {
            return Ok(Self::Daemon(Box::new(daemon)));
        }
        Ok(Self::Engine {
            host: engine.host_for(request, interaction).await?,
            own: false,
            world: Some(request.world.clone()),
        })
    }

    /// Starts a session with its streams where `routes` say.
    pub(crate) async fn session(&self, wanted: &Wanted, routes: Routes) -> Result<Opened, Fault> {
        match self {
            Self::Engine { host, world, .. } => {
                let config = host.config();
                let mut command = Command::from(wanted);
                if let Some(world) = world {
                    for (name, value) in config.session_env(world) {
                        command = command.env(name, value);
                    }
                    command = command.agent_forwarding(config.forward_agent != ForwardAgent::No);
                }
                let parts = host.start(&command).await?.into_parts();
                Opened::from_engine(parts, routes)
            }
            Self::Daemon(daemon) => daemon.session(wanted, routes).await,
        }
    }

    /// Opens a tunnel to a TCP port as seen from the server.
    pub(crate) async fn tcp(&self, host: &str, port: u16, from: (&str, u16)) -> Result<Opening, Fault> {
        match self {
            Self::Engine { host: reached, .. } => Ok(reached.direct_tcpip(host, port, from).await?.into()),
            Self::Daemon(daemon) => daemon.tunnel(Program::Stdio(host.to_owned(), port)).await,
        }
    }

    /// Opens a tunnel to a Unix socket of the server.
    pub(crate) async fn socket(&self, path: &str) -> Result<Opening, Fault> {
        match self {
            Self::Engine { host, .. } => Ok(host.direct_streamlocal(path).await?.into()),
            Self::Daemon(daemon) => daemon.tunnel(Program::StdioSocket(path.to_owned())).await,
        }
    }

    /// Has the server listen on a TCP port or a Unix socket.
    pub(crate) async fn listen(&self, listen: &Listen) -> Result<Listener, Fault> {
        match self {
            Self::Engine { host, .. } => Ok(Listener::Engine(host.listen_remote(listen).await?)),
            Self::Daemon(daemon) => daemon.listen(listen).await,
        }
    }

    /// Takes a client of such a listener.
    pub(crate) async fn accept(&self, incoming: Incoming) -> Result<Opening, Fault> {
        match (self, incoming) {
            (_, Incoming::Engine(connection)) => Ok(connection.accept().into()),
            (Self::Daemon(daemon), Incoming::Daemon(offered)) => {
                daemon.tunnel(Program::Incoming(offered.take())).await
            }
            (Self::Engine { .. }, Incoming::Daemon(_)) => Err(Fault::closed()),
        }
    }

    /// Opens an SFTP session.
    pub(crate) async fn sftp(&self) -> Result<Sftp, Fault> {
        match self {
            Self::Engine { host, .. } => Ok(host.sftp().await?),
            Self::Daemon(daemon) => daemon.sftp().await,
        }
    }

    /// The connections, and whose they are.
    pub(crate) async fn stats(&self) -> Result<Value, Fault> {
        match self {
            Self::Engine { host, .. } => Ok(json!({ "daemon": false, "lanes": lanes(host) })),
            Self::Daemon(daemon) => Ok(json!({ "daemon": true, "lanes": reports(&daemon.lanes().await?) })),
        }
    }
}

/// The connections of a host of this process's engine.
pub(crate) fn lanes(host: &Host) -> Value {
    let lanes = host.lanes().into_iter().map(|lane| {
        json!({
            "server": lane.info.as_ref().map(|info| info.server.clone()),
            "cipher": lane.info.as_ref().map(|info| info.cipher),
            "rtt": lane.rtt.map(|rtt| rtt.as_secs_f64() * 1000.0),
            "sessions": lane.sessions,
            "tunnels": lane.tunnels,
            "busy": lane.busy,
            "rate": lane.rate,
            "bytesSent": lane.bytes.0,
            "bytesReceived": lane.bytes.1,
        })
    });
    lanes.collect()
}

/// The same, of the daemon's.
pub(crate) fn reports(lanes: &[ConnectionReport]) -> Value {
    lanes.iter().map(report).collect()
}

fn report(lane: &ConnectionReport) -> Value {
    let cipher = lane.algorithms.rsplit(", ").next();
    json!({
        "server": lane.ready.then_some(&lane.server),
        "cipher": cipher.filter(|_| lane.ready),
        "rtt": lane.rtt.map(|rtt| rtt.as_secs_f64() * 1000.0),
        "sessions": lane.sessions,
        "tunnels": lane.tunnels,
        "busy": lane.busy,
        "rate": lane.rate,
        "bytesSent": lane.sent,
        "bytesReceived": lane.received,
    })
}

/// A destination in the daemon.
pub(crate) struct Daemon {
    place: Place,
    starter: Option<Starter>,
    request: Request,
    interaction: Interaction,
    /// Whether there is somebody to ask.
    answers: bool,
}

impl Daemon {
    /// `None` where the engine is to do it.
    async fn find(
        request: &Request,
        preference: &Preference,
        interaction: &Interaction,
        answers: bool,
    ) -> Result<Option<Self>, Fault> {
        let starter = match preference {
            Preference::Engine => return Ok(None),
            Preference::RunningDaemon => None,
            Preference::Daemon(starter) => Some(starter.clone()),
        };
        let world = &request.world;
        let place = match Place::find(|name| world.var(name).map(PathBuf::from)) {
            Err(_) if starter.is_none() => return Ok(None),
            place => place.map_err(|error| Fault::local(&error.to_string()))?,
        };
        match Client::connect(&place, starter.as_ref()).await {
            Ok(_) => {}
            // It would reach other hosts, or read other files.
            Err(ClientError::Elsewhere(_)) => return Ok(None),
            // None runs, or none that this program can talk to.
            Err(_) if starter.is_none() => return Ok(None),
            Err(error) => return Err(not_reached(&error)),
        }
        Ok(Some(Self {
            place,
            starter,
            request: request.clone(),
            interaction: interaction.clone(),
            answers,
        }))
    }

    async fn client(&self) -> Result<Client, Fault> {
        Client::connect(&self.place, self.starter.as_ref())
            .await
            .map_err(|error| not_reached(&error))
    }

    fn host(&self) -> HostRequest {
        HostRequest {
            destination: self.request.destination.clone(),
            ssh_args: self.request.ssh_args.clone(),
            world: (*self.request.world).clone(),
        }
    }

    fn session_request(&self, program: Program, stdio: [Stdio; 3]) -> SessionRequest {
        SessionRequest {
            host: self.host(),
            program,
            env: BTreeMap::new(),
            tty: Tty::No,
            terminal: None,
            stdio,
            answers: self.answers,
            ssh: None,
            limit: None,
        }
    }

    async fn start(
        &self,
        request: SessionRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Control, session::End), Fault> {
        let client = self.client().await?;
        Ok(session::start(client, request, fds, &self.interaction).await?)
    }

    /// Connects, and keeps the connection until what is returned is dropped. It ends when the connection does.
    pub(crate) async fn hold(&self) -> Result<(Control, session::End), Fault> {
        let mut request = self.session_request(Program::Nothing, [Stdio::Null; 3]);
        // A client has the tunnels that it asks for.
        request
            .host
            .ssh_args
            .extend(["-o".into(), "ClearAllForwardings=yes".into()]);
        let (control, mut end) = self.start(request, &[]).await?;
        end.started().await?;
        Ok((control, end))
    }

    async fn session(&self, wanted: &Wanted, routes: Routes) -> Result<Opened, Fault> {
        let program = match wanted.kind.as_str() {
            "shell" => Program::Configured,
            "subsystem" => Program::Subsystem(wanted.text.clone()),
            _ => Program::Exec(wanted.text.clone().into_bytes()),
        };
        let [stdin, stdout, stderr] = [
            End::of(routes.stdin)?,
            End::of(routes.stdout)?,
            End::of(routes.stderr)?,
        ];
        let stdio = [stdin.kind(), stdout.kind(), stderr.kind()];
        let mut request = self.session_request(program, stdio);
        if let Some(pty) = &wanted.pty {
            request.tty = Tty::Force;
            request.terminal = Some(TerminalInfo {
                term: pty.term.clone(),
                size: (pty.size.columns, pty.size.rows, pty.size.width, pty.size.height),
                modes: pty.modes.clone(),
            });
        }
        request
            .host
            .ssh_args
            .extend(["-o".into(), "ClearAllForwardings=yes".into()]);
        for pair in &wanted.env {
            if let [name, value] = &pair[..] {
                request.env.insert(name.into(), value.into());
            }
        }
        let fds: Vec<_> = [&stdin, &stdout, &stderr]
            .into_iter()
            .filter_map(End::passed)
            .collect();
        let (control, end) = self.start(request, &fds).await?;
        Ok(Opened::from_daemon(
            stdin.into_writer(),
            [stdout, stderr].map(End::into_kept),
            control,
            end,
        ))
    }

    async fn listen(&self, listen: &Listen) -> Result<Listener, Fault> {
        let program = match listen {
            Listen::Tcp { host, port } => Program::Listen(host.clone(), *port),
            Listen::Socket(path) => Program::ListenSocket(path.to_string_lossy().into_owned()),
        };
        let request = self.session_request(program, [Stdio::Null; 3]);
        let (control, mut end) = self.start(request, &[]).await?;
        end.started().await?;
        match end.next().await {
            Some(Reply::Listening { port }) => Ok(Listener::Daemon { control, end, port }),
            _ => Err(Fault::closed()),
        }
    }

    /// Two sockets, so that each direction can end by itself.
    async fn tunnel(&self, program: Program) -> Result<Opening, Fault> {
        let (writer, input) = pair()?;
        let (reader, output) = pair()?;
        let request = self.session_request(program, [Stdio::Passed, Stdio::Passed, Stdio::Null]);
        let (control, mut end) = self.start(request, &[input.as_fd(), output.as_fd()]).await?;
        // The streams' far ends are the daemon's.
        drop((input, output));
        end.started().await?;
        let streams = (reader.into_split().0, writer.into_split().1);
        Ok(Opening::from_daemon(streams, (control, end)))
    }

    /// Has the daemon carry a socket's bytes to and from a tunnel.
    pub(crate) async fn carry(
        &self,
        program: Program,
        socket: &impl AsFd,
    ) -> Result<(Control, session::End), Fault> {
        let request = self.session_request(program, [Stdio::Passed, Stdio::Passed, Stdio::Null]);
        self.start(request, &[socket.as_fd(), socket.as_fd()]).await
    }

    /// Listens on a Unix socket, and has the daemon carry each client to the target. Does not return but with a fault.
    pub(crate) async fn forward_socket(
        &self,
        path: &Path,
        target: &ForwardTarget,
        listening: impl FnOnce(),
    ) -> Result<(), Fault> {
        let program = match target {
            ForwardTarget::Tcp { host, port } => Program::Stdio(host.clone(), *port),
            ForwardTarget::Socket(path) => Program::StdioSocket(path.to_string_lossy().into_owned()),
            ForwardTarget::Socks => return Err(Fault::usage("a socket leads to one place")),
        };
        let socket = ListeningSocket::bind(path)
            .await
            .map_err(|error| Fault::file("listening on", path, &error))?;
        listening();
        loop {
            let mut client = socket.accept().await;
            let started = self.carry(program.clone(), &client).await;
            // A client that the daemon cannot carry finds its connection closed.
            if let Ok((control, mut end)) = started {
                tokio::spawn(async move {
                    // The daemon has one socket for both directions, and leaves it to this side to end one of them.
                    if end.is_complete().await {
                        let _ = client.shutdown().await;
                    }
                    let _ = end.wait().await;
                    drop(control);
                });
            }
        }
    }

    async fn sftp(&self) -> Result<Sftp, Fault> {
        let (near, far) = pair()?;
        let (control, mut end) = self.carry(Program::Subsystem("sftp".into()), &far).await?;
        drop(far);
        // What the daemon says of a failure is more than the streams' end would be.
        end.started().await?;
        let (reader, writer) = near.into_split();
        tokio::spawn(async move {
            // Until the SFTP session closes its input, and the server ends.
            let _ = end.wait().await;
            drop(control);
        });
        let name = self.request.destination.host.clone();
        Ok(Sftp::over(reader, writer, name))
    }

    /// The connections of this host.
    pub(crate) async fn lanes(&self) -> Result<Vec<ConnectionReport>, Fault> {
        let request = protocol::Request::Explain(self.host());
        match session::ask(&mut self.client().await?, &request, &self.interaction).await? {
            Reply::Explained(explanation) => Ok(explanation.connections),
            _ => Err(Fault::local("the daemon answered something else")),
        }
    }
}

/// What the server listens on. Dropping it ends that.
pub(crate) enum Listener {
    Engine(RemoteListener),
    Daemon {
        control: Control,
        end: session::End,
        port: Option<u16>,
    },
}

impl Listener {
    /// The TCP port.
    pub(crate) fn port(&self) -> Option<u16> {
        match self {
            Self::Engine(listener) => match listener.listening() {
                Listen::Tcp { port, .. } => Some(*port),
                Listen::Socket(_) => None,
            },
            Self::Daemon { port, .. } => *port,
        }
    }

    /// The next client; `None` when the connection has ended. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Incoming> {
        match self {
            Self::Engine(listener) => listener.next().await.map(Incoming::Engine),
            Self::Daemon { control, end, .. } => loop {
                if let Reply::Incoming { number, originator } = end.next().await? {
                    let control = Some(control.clone());
                    return Some(Incoming::Daemon(Offered {
                        number,
                        originator,
                        control,
                    }));
                }
            },
        }
    }

    /// Ends the listening, and returns when the server has said so.
    pub(crate) async fn close(self) {
        match self {
            Self::Engine(listener) => listener.close().await,
            Self::Daemon { control, mut end, .. } => {
                control.send(protocol::Request::Input(Vec::new()));
                while let Some(told) = end.next().await {
                    match told {
                        Reply::Incoming { number, .. } => control.send(protocol::Request::Refuse(number)),
                        Reply::Output(_) => break,
                        _ => {}
                    }
                }
                // Until the program has taken or refused those that it has been told of.
                tokio::spawn(async move {
                    let _ = end.wait().await;
                    drop(control);
                });
            }
        }
    }
}

/// A client of a listener. Dropping it refuses it.
pub(crate) enum Incoming {
    Engine(IncomingConnection),
    Daemon(Offered),
}

impl Incoming {
    /// Who connected, as `address:port` in the server's words; empty for a Unix socket.
    pub(crate) fn originator(&self) -> &str {
        match self {
            Self::Engine(connection) => connection.originator(),
            Self::Daemon(offered) => &offered.originator,
        }
    }
}

/// The daemon's offer of one.
pub(crate) struct Offered {
    number: u64,
    originator: String,
    /// `None` once it has been taken.
    control: Option<Control>,
}

impl Offered {
    fn take(mut self) -> u64 {
        self.control = None;
        self.number
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        if let Some(control) = &self.control {
            control.send(protocol::Request::Refuse(self.number));
        }
    }
}

/// One of a session's streams on its way to the daemon.
enum End {
    /// JavaScript has the near end.
    Pair(UnixStream, OwnedFd),
    Routed(Route),
}

impl End {
    fn of(route: Route) -> Result<Self, Fault> {
        match route {
            Route::Pipe => {
                let (near, far) = pair()?;
                Ok(Self::Pair(near, far))
            }
            route => Ok(Self::Routed(route)),
        }
    }

    fn kind(&self) -> Stdio {
        match self {
            Self::Routed(Route::Ignore) => Stdio::Null,
            _ => Stdio::Passed,
        }
    }

    fn passed(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Pair(_, far) => Some(far.as_fd()),
            Self::Routed(route) => route.descriptor(),
        }
    }

    /// What JavaScript writes to.
    fn into_writer(self) -> Option<OwnedWriteHalf> {
        match self {
            Self::Pair(near, _) => Some(near.into_split().1),
            Self::Routed(_) => None,
        }
    }

    /// What JavaScript reads, or the route that is to last as long as the session.
    fn into_kept(self) -> Result<Source, Route> {
        match self {
            Self::Pair(near, _) => Ok(Source::Socket(near.into_split().0)),
            Self::Routed(route) => Err(route),
        }
    }
}

/// Two ends of a socket: one for this process, one for the daemon.
fn pair() -> Result<(UnixStream, OwnedFd), Fault> {
    let failed = |error: std::io::Error| Fault::local(&format!("making a socket: {error}"));
    let (near, far) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
    near.set_nonblocking(true).map_err(failed)?;
    Ok((UnixStream::from_std(near).map_err(failed)?, far.into()))
}

fn not_reached(error: &ClientError) -> Fault {
    Fault::from(session::failure(error, Execution::DidNotStart))
}
