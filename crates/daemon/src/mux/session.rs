//! A client's session, or its connection through the server, on the descriptors that it passed.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use trunkline::config::ForwardAgent;
use trunkline::{ChannelStream, Command, Error, Execution, ExitStatus, Host, Pty, Session, TerminalSize};
use trunkline_request::not_shared;

use super::client::{Client, Door, Dropped};
use super::wire::{Address, NewSession, Reply};
use crate::observed::metrics::{Decline, Stock};
use crate::observed::recording::Recording;
use crate::protocol::{self, Escapes, Program, Stdio};
use crate::session::streams::carry::Resumption;
use crate::session::streams::terminal_input::TerminalInput;
use crate::session::streams::{self, Streams, Terms};
use crate::stdio::Output;
use crate::terminal::modes::{self, WindowSize};
use trunkline_audit::{Entry, Subject};

impl Client<'_> {
    /// Runs a session (PROTOCOL.mux section 2). Until it has begun, a failure lets the client make a connection of its
    /// own; from then on it waits for the exit message or the socket's end.
    pub(super) async fn session(&mut self, id: u32, request: NewSession) -> Result<ControlFlow<()>, Dropped> {
        let Some(fds) = self.packets.descriptors(3).await? else {
            return self.without_descriptors(id).await;
        };
        // Open for as long as the session, to tell its user why it ended.
        let stderr = fds[2].try_clone().map_err(Dropped::Descriptors)?;
        let terminal = match request.tty {
            true => Some(Terminal::new(&fds[0]).map_err(Dropped::Descriptors)?),
            false => None,
        };
        let command = command(&request, terminal.as_ref());
        // All that can go wrong on this side goes wrong before the command is on its way: a client that gets no answer
        // would run it again.
        let (begins, typing) = oneshot::channel();
        let passed = vec_of(&fds).map_err(Dropped::Descriptors)?;
        let mut streams = Streams::new([Stdio::Passed; 3], passed)?;
        let mut disconnected = Arc::default();
        let typed = self.typed(&request, &fds, typing).map_err(Dropped::Descriptors)?;
        if let Some(typed) = typed {
            disconnected = typed.disconnected();
            streams = streams.typed(typed);
        }
        drop(fds);
        // Before the command is on its way, which must not wait for whoever reads it.
        let stderr = match self.door.host().await {
            Ok(host) => self.warn(&host, stderr).await?,
            Err(_) => stderr,
        };
        let entry = self.entry_for(&request);
        let started = tokio::select! {
            started = start(self.door, &request, command, &entry) => started,
            () = self.packets.left() => return Ok(ControlFlow::Break(())),
        };
        let (host, session, resumption) = match started {
            Ok(started) => started,
            Err(error) => {
                entry.failed(&error);
                let is_final = entry.is_refused();
                return self.fail(id, &error, stderr, is_final).await;
            }
        };
        let control = entry.counted(&session.control);
        // A master of OpenSSH's would not tell the command either.
        control.leave_running();
        let (replies, mut said) = mpsc::channel(1);
        let (inputs, heard) = mpsc::channel(1);
        let begin = begun(&request);
        let parts = session.into_parts();
        let recording = terminal
            .as_ref()
            .and_then(|terminal| self.recording(&request, terminal.size, &host));
        let terms = Terms {
            recording: recording.as_ref(),
            entry: Some(&entry),
            ..Terms::default()
        };
        let running = streams::move_data(parts, begin, streams, &replies, heard, terms, &host, resumption);
        let mut running = Box::pin(running);
        let mut resizing = Box::pin(resize(terminal, inputs));
        let mut begins = Some(begins);
        // A client whose master dies before it has an answer runs the command itself. So it has one before the server
        // can have begun, as from OpenSSH's master (`mux_session_confirm`); where a connection is still to be made, and
        // may be refused, it waits with it.
        let mut opened = !control.is_waiting();
        if opened {
            self.opened(id).await?;
        }
        let ended = loop {
            tokio::select! {
                biased;
                Some(_) = said.recv() => {
                    if !std::mem::replace(&mut opened, true) {
                        self.opened(id).await?;
                    }
                    if control.is_terminal_refused() {
                        self.without_terminal(id, &stderr).await?;
                    }
                    if let Some(begins) = begins.take() {
                        let _ = begins.send(());
                    }
                }
                ended = &mut running => break ended,
                // A client that was interrupted or has died takes its session with it.
                () = self.packets.left() => return Ok(ControlFlow::Break(())),
                never = &mut resizing => match never {},
            }
        };
        entry.end_session(&ended);
        recording.iter().for_each(|recording| recording.ended(&ended));
        // Whoever reads from the client's streams is to see their end when the client has exited.
        drop((running, resizing));
        match ended {
            Ok(status) => {
                drop(stderr);
                if !opened {
                    self.opened(id).await?;
                }
                // As OpenSSH's master: what a signal has ended has no status, and the client exits with 255.
                if let ExitStatus::Exited(status) = status {
                    self.packets.reply(id, &Reply::Exit(status)).await?;
                }
                Ok(ControlFlow::Break(()))
            }
            // Its user has ended it.
            Err(_) if disconnected.load(Ordering::Acquire) => Ok(ControlFlow::Break(())),
            Err(error) if opened => self.complain(&error, stderr).await,
            Err(error) => self.fail(id, &error, stderr, false).await,
        }
    }

    /// The input of a session whose escape sequences are obeyed: also in what a terminal's session is given from elsewhere
    /// (mux.c registers the filter for any session that wants a terminal).
    fn typed(
        &self,
        request: &NewSession,
        fds: &[OwnedFd],
        begun: oneshot::Receiver<()>,
    ) -> std::io::Result<Option<TerminalInput>> {
        if !request.tty || (request.escape.is_none() && !rustix::termios::isatty(&fds[0])) {
            return Ok(None);
        }
        let forwards = self.door.socket.forwards.clone();
        let list = move || {
            let forwards = forwards.clone();
            async move { forwards.list().await }.boxed()
        };
        TerminalInput::new(&fds[0], &fds[2], request.escape, Box::new(list), begun).map(Some)
    }

    /// The server gives it no terminal: the client is to leave raw mode, and its user learns of it as from OpenSSH's master
    /// (clientloop.c, `client_status_confirm`).
    async fn without_terminal(&mut self, id: u32, stderr: &OwnedFd) -> Result<(), Dropped> {
        let told = stderr.try_clone().map_err(Dropped::Descriptors)?;
        self.tell(told, "PTY allocation request failed").await;
        self.packets.reply(id, &Reply::TtyAllocFail).await?;
        Ok(())
    }

    /// Ends a session that gets nothing, so that its client does not go on by itself.
    pub(super) async fn shut_out(&mut self, id: u32) -> Result<ControlFlow<()>, Dropped> {
        let Some(fds) = self.packets.descriptors(3).await? else {
            return self.without_descriptors(id).await;
        };
        let [_, _, stderr]: [OwnedFd; 3] = fds
            .try_into()
            .map_err(|_| Dropped::Descriptors(std::io::ErrorKind::InvalidData.into()))?;
        let why = self.shut_out.take();
        let error = why.unwrap_or(Error::Bug("nobody was shut out"));
        self.failed(&error);
        // Counted as declined when that was decided.
        self.tell_not_shared(id, &error, stderr).await
    }

    /// Ends a session that did not begin, and whose client must not connect by itself.
    async fn tell_not_shared(
        &mut self,
        id: u32,
        error: &Error,
        stderr: OwnedFd,
    ) -> Result<ControlFlow<()>, Dropped> {
        self.opened(id).await?;
        self.tell(stderr, &format!("trunkline: {}", not_shared(error)))
            .await;
        Ok(ControlFlow::Break(()))
    }

    /// What is recorded of a session, before it is known what the socket's host means.
    fn entry_for(&self, request: &NewSession) -> Entry {
        let subject = Subject::session(&self.door.socket.name(), &program(request));
        self.entry(subject.on_terminal(request.tty))
    }

    /// A recording of a session's terminal, if there is to be one.
    fn recording(&self, request: &NewSession, size: TerminalSize, host: &Host) -> Option<Recording> {
        let recordings = self.door.recordings();
        recordings.begin(host.config(), (&request.term, size), &program(request))
    }

    /// Where one request ends and the next begins is not certain any more.
    async fn without_descriptors(&self, id: u32) -> Result<ControlFlow<()>, Dropped> {
        let reply = Reply::Failure("the file descriptors did not come along".into());
        self.packets.reply(id, &reply).await?;
        Ok(ControlFlow::Break(()))
    }

    /// Ends a session that did not begin. Only where it is certain that nothing has run may the client try again by
    /// itself; else it is made to exit with 255, and also where that is `is_final`: the client must not run it either.
    async fn fail(
        &mut self,
        id: u32,
        error: &Error,
        stderr: OwnedFd,
        is_final: bool,
    ) -> Result<ControlFlow<()>, Dropped> {
        self.failed(error);
        if error.execution() == Execution::DidNotStart && !is_final {
            if !self.must_share() {
                return self.refuse(id, Stock::Session, error).await;
            }
            self.door.declined(Stock::Session, Decline::Failed(error.kind()));
            return self.tell_not_shared(id, error, stderr).await;
        }
        self.opened(id).await?;
        self.complain(error, stderr).await
    }

    /// Tells the client's user that the server was not verified, as their ssh would have.
    async fn warn(&mut self, host: &Host, stderr: OwnedFd) -> Result<OwnedFd, Dropped> {
        for warning in host.warnings() {
            let told = stderr.try_clone().map_err(Dropped::Descriptors)?;
            self.tell(told, &warning).await;
        }
        Ok(stderr)
    }

    /// Tells the client's user why the session has ended, which the protocol has no words for.
    async fn complain(&mut self, error: &Error, stderr: OwnedFd) -> Result<ControlFlow<()>, Dropped> {
        self.failed(error);
        self.tell(stderr, &format!("trunkline: {error}")).await;
        Ok(ControlFlow::Break(()))
    }

    /// Shows the client's user a line. Their terminal may be raw; one that takes no more is told nothing.
    async fn tell(&mut self, stderr: OwnedFd, line: &str) {
        let telling = async {
            if let Ok(mut output) = Output::new(stderr) {
                let _ = output.write_all(vec![format!("{line}\r\n").into()]).await;
            }
        };
        tokio::select! {
            () = telling => {}
            () = self.packets.left() => {}
        }
    }

    /// Connects from the server to somewhere (section 3). A refusal is the end of the client (mux.c,
    /// `mux_client_request_stdio_fwd`), so that a connection that has just been lost is replaced first.
    pub(super) async fn stdio_forward(
        &mut self,
        id: u32,
        target: &Address,
    ) -> Result<ControlFlow<()>, Dropped> {
        let Some(fds) = self.packets.descriptors(2).await? else {
            return self.without_descriptors(id).await;
        };
        let door = self.door;
        let entry = self.entry(Subject::of("tunnel", &door.socket.name()).to(target.to_string()));
        let connected = async {
            match connect(door, target, &entry).await {
                Err(error) if !matches!(error, Error::Refused { .. }) && !entry.is_refused() => {
                    tracing::info!("{error}; trying once more");
                    connect(door, target, &entry).await
                }
                result => result,
            }
        };
        let connected = tokio::select! {
            connected = connected => connected,
            () = self.packets.left() => return Ok(ControlFlow::Break(())),
        };
        let (_host, stream) = match connected {
            Ok(connected) => connected,
            Err(error) => {
                entry.failed(&error);
                self.failed(&error);
                return self.refuse(id, Stock::Tunnel, &error).await;
            }
        };
        let channel = stream.closer();
        entry.carries(move || channel.carried());
        let streams = Streams::new([Stdio::Passed, Stdio::Passed, Stdio::Null], fds)?;
        self.opened(id).await?;
        let (replies, mut said) = mpsc::channel(1);
        let (_inputs, heard) = mpsc::channel(1);
        tokio::select! {
            _ = streams::tunnel(streams, stream, &replies, heard) => {}
            // The server's end. Whoever reads from the client sees it when the client ends.
            _ = said.recv() => {}
            () = self.packets.left() => {}
        }
        Ok(ControlFlow::Break(()))
    }
}

async fn start<'a>(
    door: Door<'a>,
    request: &NewSession,
    command: Result<Command, Error>,
    entry: &Entry,
) -> Result<(Host, Session, Option<Resumption<'a>>), Error> {
    let host = door.host().await?;
    let refuse = |why: &str| Err(Error::Invalid(why.into()));
    if request.x11 {
        return refuse("trunkline does not forward X11");
    }
    // sshd lends the agent to every session of a connection, so that those which want it and those which do not must
    // not share one.
    match (request.agent, host.config().forward_agent != ForwardAgent::No) {
        (true, false) => return refuse("this connection does not forward the agent"),
        (false, true) => return refuse("this connection forwards the agent, which was not asked for"),
        _ => {}
    }
    let command = command?;
    entry.begin(|subject| subject.at(host.config())).await?;
    let session = host.start(&command).await?;
    let resumption = Resumption::of(door.engine(), &host, &program(request), &command);
    let resumption = resumption
        .filter(|_| !request.tty)
        .map(Resumption::leaving_running);
    Ok((host, session, resumption))
}

async fn connect(door: Door<'_>, target: &Address, entry: &Entry) -> Result<(Host, ChannelStream), Error> {
    let host = door.host().await?;
    entry.begin(|subject| subject.at(host.config())).await?;
    let stream = match target {
        Address::Tcp { host: name, port } => host.direct_tcpip(name, *port, ("127.0.0.1", 0)).await?,
        Address::Socket(path) => host.direct_streamlocal(path).await?,
    };
    Ok((host, stream))
}

/// What says that it has begun.
fn begun(request: &NewSession) -> protocol::Reply {
    protocol::Reply::Begun {
        tty: request.tty,
        escapes: Escapes {
            character: request.escape,
            ..Escapes::default()
        },
        warm: true,
        hostname: String::new(),
        predict: None,
    }
}

fn program(request: &NewSession) -> Program {
    if request.subsystem {
        Program::Subsystem(String::from_utf8_lossy(&request.command).into_owned())
    } else if request.command.is_empty() {
        Program::Configured
    } else {
        Program::Exec(request.command.clone())
    }
}

fn vec_of(fds: &[OwnedFd]) -> std::io::Result<Vec<OwnedFd>> {
    fds.iter().map(OwnedFd::try_clone).collect()
}

/// The client's terminal. It is the client that has it as its controlling terminal and is told of a new size; it passes
/// the signal on (mux.c, `control_client_sigrelay`), to the process that `MUX_S_ALIVE` named.
struct Terminal {
    fd: OwnedFd,
    size: TerminalSize,
    changes: Signal,
}

impl Terminal {
    fn new(fd: &OwnedFd) -> std::io::Result<Self> {
        // Before the size is read, so that no change is missed.
        let changes = signal(SignalKind::window_change())?;
        Ok(Self {
            fd: fd.try_clone()?,
            size: size(fd),
            changes,
        })
    }
}

fn size(fd: &OwnedFd) -> TerminalSize {
    let size = WindowSize::of(fd);
    TerminalSize {
        columns: size.cols,
        rows: size.rows,
        width: size.xpixel,
        height: size.ypixel,
    }
}

/// Tells the session of every new size. Each session's terminal is looked at when any client passes the signal on.
async fn resize(terminal: Option<Terminal>, session: mpsc::Sender<protocol::Request>) -> Infallible {
    let Some(mut terminal) = terminal else {
        return std::future::pending().await;
    };
    loop {
        terminal.changes.recv().await;
        let now = size(&terminal.fd);
        if now != terminal.size {
            terminal.size = now;
            let request = protocol::Request::Resize(now.columns, now.rows, now.width, now.height);
            // A session that has ended needs no size.
            let _ = session.send(request).await;
        }
    }
}

fn command(request: &NewSession, terminal: Option<&Terminal>) -> Result<Command, Error> {
    let mut command = if request.subsystem {
        let name = str::from_utf8(&request.command)
            .map_err(|_| Error::Invalid("the subsystem's name is not UTF-8".into()))?;
        Command::subsystem(name)
    } else if request.command.is_empty() {
        Command::shell()
    } else {
        Command::exec(request.command.clone())
    };
    for (name, value) in &request.env {
        command = command.env(name, value.clone());
    }
    if let Some(terminal) = terminal {
        command = command.pty(Pty {
            term: request.term.clone(),
            size: terminal.size,
            modes: modes::of(&terminal.fd),
        });
    }
    Ok(command.agent_forwarding(request.agent))
}
