//! A destination in the daemon, which has the connections of all of a user's programs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWriteExt as _, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::oneshot;
use trunkline::Error;
use trunkline::config::{ForwardTarget, Listen};
use trunkline::prompt::Answerer;
use trunkline::sftp::Sftp;
use trunkline_control::client::{Client, ClientError, Starter};
use trunkline_control::place::Place;
use trunkline_control::protocol::{
    HostRequest, Program, Reply, Request, SessionRequest, Stdio, TerminalInfo, Tty,
};
use trunkline_control::sink::ListeningSocket;
use trunkline_request::connection::ConnectionReport;
use trunkline_request::failure::{ErrorKind, Failure};
use trunkline_request::ssh_options::NO_FORWARDINGS;

use crate::control;
use crate::conversation::{self, Control, End};
use crate::destination::{Destination, Preference};
use crate::route::{Route, Routed, RoutedInput};
use crate::session::{self, Input, Output, Session, SessionOptions, Tunnel};
use crate::stream::{Reader, Writer};

/// A destination in the daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    place: Place,
    starter: Option<Starter>,
    destination: Destination,
}

impl Daemon {
    /// Returns `None` if the engine has to be used.
    pub(crate) async fn find(destination: &Destination) -> Result<Option<Self>, Failure> {
        let starter = match &destination.preference {
            Preference::Engine => return Ok(None),
            Preference::RunningDaemon => None,
            Preference::Daemon(starter) => Some(starter.clone()),
        };
        let world = &destination.request.world;
        let place = match Place::find(|name| world.var(name).map(PathBuf::from)) {
            Err(_) if starter.is_none() => return Ok(None),
            place => place.map_err(ClientError::from)?,
        };
        match Client::connect(&place, starter.as_ref()).await {
            Ok(_) => {}
            // It would reach other hosts, or read other files. The engine connects, as ssh would.
            Err(ClientError::Elsewhere(what)) => {
                tracing::info!("the daemon runs in another {what}; connecting without it");
                return Ok(None);
            }
            // None runs, or none that this program can talk to.
            Err(_) if starter.is_none() => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        Ok(Some(Self {
            place,
            starter,
            destination: destination.clone(),
        }))
    }

    async fn client(&self) -> Result<Client, Failure> {
        Ok(Client::connect(&self.place, self.starter.as_ref()).await?)
    }

    fn host(&self) -> HostRequest {
        let request = &self.destination.request;
        HostRequest {
            destination: request.destination.clone(),
            ssh_args: request.ssh_args.clone(),
            world: (*request.world).clone(),
            answers_at_hand: self.destination.interaction.prompter().answerer() == Answerer::Program,
        }
    }

    /// Returns a request for a session, without the forwardings in ssh_config: a program only has those that it asks
    /// for.
    fn session_request(&self, program: Program, stdio: [Stdio; 3]) -> SessionRequest {
        let mut host = self.host();
        host.ssh_args.extend(NO_FORWARDINGS.map(OsString::from));
        SessionRequest {
            answers: self.destination.answers,
            on_behalf: self.destination.on_behalf.clone(),
            ..SessionRequest::new(host, program, stdio)
        }
    }

    async fn start(
        &self,
        request: SessionRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Control, End), Failure> {
        let client = self.client().await?;
        conversation::start(client, request, fds, &self.destination.interaction).await
    }

    /// Sends a request that needs no session, and returns the daemon's answer.
    async fn ask(&self, request: &Request) -> Result<Reply, Failure> {
        conversation::ask(&mut self.client().await?, request, &self.destination.interaction).await
    }

    pub(crate) async fn connect(&self) -> Result<(), Failure> {
        let host = self.host();
        self.ask(&Request::Warm { host, pin: false }).await.map(drop)
    }

    /// Connects, and keeps the connection until the result is dropped. The session ends with the connection.
    pub(crate) async fn hold(&self) -> Result<(Control, End), Failure> {
        let request = self.session_request(Program::Nothing, [Stdio::Null; 3]);
        let (control, mut end) = self.start(request, &[]).await?;
        end.wait_for_start().await?;
        Ok((control, end))
    }

    /// Closes the account's connections once their sessions have ended, and returns their number.
    pub(crate) async fn disconnect(&self) -> Result<usize, Failure> {
        let request = Request::Close {
            host: Some(self.host()),
            at_once: false,
        };
        match self.ask(&request).await? {
            Reply::Closed(closed) => Ok(closed.count()),
            _ => Err(unexpected_reply()),
        }
    }

    pub(crate) async fn connections(&self) -> Result<Vec<ConnectionReport>, Failure> {
        match self.ask(&Request::Explain(self.host())).await? {
            Reply::Explained(explanation) => Ok(explanation.connections),
            _ => Err(unexpected_reply()),
        }
    }

    pub(crate) async fn session(
        &self,
        options: &SessionOptions,
        routes: [Route; 3],
        limit: Option<Duration>,
    ) -> Result<Session, Failure> {
        let program = match &options.program {
            session::Program::Shell => Program::Configured,
            session::Program::Exec(line) => Program::Exec(line.clone()),
            session::Program::Subsystem(name) => Program::Subsystem(name.clone()),
        };
        let [stdin, stdout, stderr] = routes;
        let ends = [
            Far::from_route(stdin)?,
            Far::from_route(stdout)?,
            Far::from_route(stderr)?,
        ];
        let mut request = self.session_request(program, [ends[0].kind(), ends[1].kind(), ends[2].kind()]);
        request.limit = limit;
        request.tell_exit = true;
        if let Some(pty) = &options.pty {
            request.tty = Tty::Force;
            request.terminal = Some(TerminalInfo {
                term: pty.term.clone(),
                size: (pty.size.columns, pty.size.rows, pty.size.width, pty.size.height),
                modes: pty.modes.clone(),
            });
        }
        request.env = variables(options.env.clone());
        let fds: Vec<_> = ends.iter().filter_map(Far::descriptor).collect();
        let (control, end) = self.start(request, &fds).await?;
        let course = end.course();
        let [stdin, stdout, stderr] = ends;
        let output = |far| match far {
            Far::Pair(near, _) => Output::Program(Reader::of_daemon(near.into_split().0, course.clone())),
            Far::Routed(route) => Output::Routed(Routed::Elsewhere(route)),
        };
        Ok(Session {
            stdin: match stdin {
                Far::Pair(near, _) => Input::Program(Writer::of_daemon(near.into_split().1, course.clone())),
                Far::Routed(_) => Input::Routed(RoutedInput::Elsewhere),
            },
            stdout: output(stdout),
            stderr: output(stderr),
            control: control::Control::of_daemon(control, course),
            end: control::End::of_daemon(end),
        })
    }

    /// Opens a tunnel over two sockets, so that each direction can end by itself.
    pub(crate) async fn tunnel(&self, program: Program) -> Result<Tunnel, Failure> {
        let (writer, input) = pair()?;
        let (reader, output) = pair()?;
        let request = self.session_request(program, [Stdio::Passed, Stdio::Passed, Stdio::Null]);
        let (control, mut end) = self.start(request, &[input.as_fd(), output.as_fd()]).await?;
        // The streams' far ends are the daemon's.
        drop((input, output));
        end.wait_for_start().await?;
        let course = end.course();
        Ok(Tunnel {
            reader: Reader::of_daemon(reader.into_split().0, course.clone()),
            writer: Writer::of_daemon(writer.into_split().1, course.clone()),
            control: control::Control::of_daemon(control, course),
            end: control::End::of_begun(end),
        })
    }

    /// Makes the server listen while the result exists. Also returns the TCP port.
    pub(crate) async fn listen(&self, listen: &Listen) -> Result<(Control, End, Option<u16>), Failure> {
        let program = match listen {
            Listen::Tcp { host, port } => Program::Listen(host.clone(), *port),
            Listen::Socket(path) => Program::ListenSocket(path.to_string_lossy().into_owned()),
        };
        let request = self.session_request(program, [Stdio::Null; 3]);
        let (control, mut end) = self.start(request, &[]).await?;
        end.wait_for_start().await?;
        match end.next().await {
            Some(Reply::Listening { port }) => Ok((control, end, port)),
            _ => Err(unexpected_reply()),
        }
    }

    /// Makes the daemon connect a socket to a session's program.
    async fn carry(
        &self,
        program: Program,
        env: Vec<(String, Vec<u8>)>,
        socket: &impl AsFd,
    ) -> Result<(Control, End), Failure> {
        let mut request = self.session_request(program, [Stdio::Passed, Stdio::Passed, Stdio::Null]);
        request.env = variables(env);
        self.start(request, &[socket.as_fd(), socket.as_fd()]).await
    }

    /// Listens on a Unix socket, and makes the daemon connect each client to the target. Only returns after a failure.
    pub(crate) async fn forward_socket(
        &self,
        path: &Path,
        target: &ForwardTarget,
        listening: impl FnOnce(),
    ) -> Result<std::convert::Infallible, Failure> {
        let program = match target {
            ForwardTarget::Tcp { host, port } => Program::Stdio(host.clone(), *port),
            ForwardTarget::Socket(path) => Program::StdioSocket(path.to_string_lossy().into_owned()),
            ForwardTarget::Socks => {
                return Err(Failure::new(
                    ErrorKind::Configuration,
                    "a socket leads to one place",
                ));
            }
        };
        let socket = ListeningSocket::bind(path)
            .await
            .map_err(|error| Error::local(format!("listening on {}", path.display()), error))?;
        listening();
        loop {
            let mut client = socket.accept().await;
            // A client that the daemon cannot carry finds its connection closed.
            let Ok((control, mut end)) = self.carry(program.clone(), Vec::new(), &client).await else {
                continue;
            };
            tokio::spawn(async move {
                // The daemon has one socket for both directions, and leaves closing one of them to this side.
                if *end.course().output.wait().await {
                    let _ = client.shutdown().await;
                }
                let _ = end.wait().await;
                drop(control);
            });
        }
    }

    /// Opens an SFTP session, which keeps the daemon's session while it is used.
    pub(crate) async fn sftp(&self, env: Vec<(String, Vec<u8>)>) -> Result<Sftp, Failure> {
        let (near, far) = pair()?;
        let program = Program::Subsystem("sftp".into());
        let (control, mut end) = self.carry(program, env, &far).await?;
        drop(far);
        // The daemon's failure says more than the end of the streams would.
        end.wait_for_start().await?;
        let (reader, writer) = near.into_split();
        let (over, why) = oneshot::channel();
        tokio::spawn(async move {
            // Until the SFTP session closes its input and the server ends.
            let ended = end.wait().await;
            drop(control);
            let _ = over.send(ended.err());
        });
        let name = self.destination.request.destination.host.clone();
        let why = Some(why);
        Ok(Sftp::from_streams(Answers { reader, why }, writer, name))
    }
}

/// Converts variables for requests.
fn variables(env: Vec<(String, Vec<u8>)>) -> BTreeMap<OsString, OsString> {
    env.into_iter()
        .map(|(name, value)| (name.into(), OsString::from_vec(value)))
        .collect()
}

/// The server's answers in an SFTP session. The stream also ends when the daemon or its connection is lost; then the
/// end is an error with the reason.
struct Answers {
    reader: OwnedReadHalf,
    /// Receives the reason why the session ended, if not by the server; `None` once reported.
    why: Option<oneshot::Receiver<Option<Failure>>>,
}

impl AsyncRead for Answers {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.reader).poll_read(cx, buffer));
        let is_over = read.is_err() || buffer.filled().len() == before;
        if is_over && let Some(why) = &mut self.why {
            let why = ready!(Pin::new(why).poll(cx));
            self.why = None;
            if let Ok(Some(failure)) = why {
                return Poll::Ready(Err(io::Error::other(failure)));
            }
        }
        Poll::Ready(read)
    }
}

/// The daemon's end of one of a session's streams.
enum Far {
    /// The program has the near end.
    Pair(UnixStream, OwnedFd),
    Routed(Route),
}

impl Far {
    fn from_route(route: Route) -> Result<Self, Failure> {
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

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Pair(_, far) => Some(far.as_fd()),
            Self::Routed(route) => route.descriptor(),
        }
    }
}

/// Returns a socket pair: one end for this process, one for the daemon.
fn pair() -> Result<(UnixStream, OwnedFd), Failure> {
    let made = || {
        let (near, far) = std::os::unix::net::UnixStream::pair()?;
        near.set_nonblocking(true)?;
        Ok((UnixStream::from_std(near)?, far.into()))
    };
    made().map_err(|error| Error::local("making a socket", error).into())
}

fn unexpected_reply() -> Failure {
    Failure::new(ErrorKind::Local, "the daemon answered something else")
}
