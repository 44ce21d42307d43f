//! A client's session, or its tunnel through the server, on the descriptors that it passed.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use trunkline::config::ForwardAgent;
use trunkline::{ChannelStream, Error, Execution, ExitStatus, Host, Invalid, Pty, TerminalSize};
use trunkline_request::not_shared;

use super::client::{Client, Door, Dropped};
use super::packets::{Answers, PacketError};
use super::wire::{Address, NewSession, Reply};
use crate::observed::activities::OfClient;
use crate::observed::metrics::{Decline, Stock};
use crate::protocol::{self, Program, Stdio};
use crate::session::events::{Events, Inputs};
use crate::session::observers::Observers;
use crate::session::running::Running;
use crate::session::running::carry::Started;
use crate::session::spec::Spec;
use crate::session::streams::terminal_input::{TerminalInput, Typing};
use crate::session::streams::{Streams, tunnel};
use crate::stdio::Output;
use crate::terminal::modes::{self, WindowSize};
use trunkline_audit::{Entry, Subject};

impl Client<'_> {
    /// Runs a session (PROTOCOL.mux section 2). Until it has started, a failure lets the client make a connection of
    /// its own; from then on it waits for the exit message or the socket's end.
    pub(super) async fn session(&mut self, id: u32, request: NewSession) -> Result<ControlFlow<()>, Dropped> {
        let Some(fds) = self.packets.descriptors(3).await? else {
            return self.without_descriptors(id).await;
        };
        // Everything that can fail on this side comes before the command is sent: a client that gets no answer would
        // run the command again.
        let (ends, stderr) = self.ends(&request, fds)?;
        let spec = spec(&request, ends.terminal.as_ref());
        let door = self.door;
        // Warned now, since a command on its way must not wait for a slow reader.
        if let Ok(host) = door.host().await {
            self.warn(&host, &stderr).await?;
        }
        let entry = self.entry_for(&request);
        let observers = Observers::new((&entry, &self.activity), None, door.recordings(), door.engine());
        let started = tokio::select! {
            started = start(door, &request, spec, &observers) => started,
            () = self.packets.wait_until_left() => return Ok(ControlFlow::Break(())),
        };
        let (host, started) = match started {
            Ok(started) => started,
            Err(error) => {
                entry.fail(&error);
                let is_final = entry.is_refused() || error.is_declined();
                return self.fail(id, &error, stderr, is_final).await;
            }
        };
        let Ends {
            streams,
            terminal,
            typing,
        } = ends;
        let (answers, mut arrivals) = self.packets.split();
        let events = OverMuxSocket {
            stderr: Some(&stderr),
            typing: typing.clone(),
            ..OverMuxSocket::new(id, answers, &self.activity)
        };
        // A client whose master dies before answering runs the command itself. So it is answered before the server can
        // have started the command, as OpenSSH's master does (`mux_session_confirm`). While a connection is still being
        // made and may be refused, the answer waits for it.
        if !started.parts.control.is_waiting() {
            events.open().await?;
        }
        let running = Running::new(&host, &events, &observers);
        let ended = tokio::select! {
            biased;
            ended = Box::pin(running.run(started, streams, Resizes(terminal))) => ended,
            // A client that was interrupted or has died ends its session.
            () = arrivals.wait_until_left() => return Ok(ControlFlow::Break(())),
        };
        entry.end_session(&ended);
        let is_open = events.is_open();
        match ended {
            // The user has disconnected with `~.`.
            Err(_) if typing.is_disconnected() => Ok(ControlFlow::Break(())),
            ended => self.end(id, ended, stderr, is_open).await,
        }
    }

    /// Tells the client how its session ended. `is_open`: the client was told that it had started.
    async fn end(
        &mut self,
        id: u32,
        ended: Result<ExitStatus, Error>,
        stderr: OwnedFd,
        is_open: bool,
    ) -> Result<ControlFlow<()>, Dropped> {
        match ended {
            Ok(status) => {
                // Closed first, so that readers of the client's streams see their end when the client exits.
                drop(stderr);
                if !is_open {
                    self.report_opened(id).await?;
                }
                // As with OpenSSH's master: after a signal there is no status, and the client exits with 255.
                if let ExitStatus::Exited(status) = status {
                    self.packets.reply(id, &Reply::Exit(status)).await?;
                }
                Ok(ControlFlow::Break(()))
            }
            Err(error) if is_open => self.complain(&error, stderr).await,
            Err(error) => self.fail(id, &error, stderr, false).await,
        }
    }

    /// Returns this side's ends of the client's descriptors, and a copy of its standard error on which to tell the user
    /// why the session ended.
    fn ends(&self, request: &NewSession, fds: Vec<OwnedFd>) -> Result<(Ends, OwnedFd), Dropped> {
        let failed = Dropped::Descriptors;
        let stderr = fds[2].try_clone().map_err(failed)?;
        let terminal = match request.tty {
            true => Some(Terminal::new(&fds[0]).map_err(failed)?),
            false => None,
        };
        let typing = Arc::<Typing>::default();
        let typed = self.with_escapes(request, &fds, typing.clone()).map_err(failed)?;
        let mut streams = Streams::new([Stdio::Passed; 3], fds)?;
        if let Some(typed) = typed {
            streams = streams.with_terminal(typed);
        }
        let ends = Ends {
            streams,
            terminal,
            typing,
        };
        Ok((ends, stderr))
    }

    /// Returns the input of a session that obeys escape sequences. A terminal session obeys them also if its input
    /// comes from elsewhere (mux.c registers the filter for any session that wants a terminal).
    fn with_escapes(
        &self,
        request: &NewSession,
        fds: &[OwnedFd],
        typing: Arc<Typing>,
    ) -> io::Result<Option<TerminalInput>> {
        if !request.tty || (request.escape.is_none() && !rustix::termios::isatty(&fds[0])) {
            return Ok(None);
        }
        let forwards = self.door.socket.forwards.clone();
        let list = move || {
            let forwards = forwards.clone();
            async move { forwards.list().await }.boxed()
        };
        TerminalInput::new(&fds[0], &fds[2], request.escape, Box::new(list), typing).map(Some)
    }

    /// Ends a session without serving it, so that its client does not connect by itself.
    pub(super) async fn shut_out(&mut self, id: u32) -> Result<ControlFlow<()>, Dropped> {
        let Some(fds) = self.packets.descriptors(3).await? else {
            return self.without_descriptors(id).await;
        };
        let [_, _, stderr]: [OwnedFd; 3] = fds
            .try_into()
            .map_err(|_| Dropped::Descriptors(io::ErrorKind::InvalidData.into()))?;
        let why = self.shut_out.take();
        let error = why.unwrap_or(Error::Bug("nobody was shut out"));
        self.report_failure(&error);
        // Counted as declined when that was decided.
        self.tell_not_shared(id, &error, stderr).await
    }

    /// Ends a session that did not begin and whose client must not connect by itself.
    async fn tell_not_shared(
        &mut self,
        id: u32,
        error: &Error,
        stderr: OwnedFd,
    ) -> Result<ControlFlow<()>, Dropped> {
        self.report_opened(id).await?;
        let why = match error.is_declined() {
            true => error.to_string(),
            false => not_shared(error),
        };
        self.tell(stderr, &format!("trunkline: {why}")).await;
        Ok(ControlFlow::Break(()))
    }

    /// Returns the audit entry of a session, before the socket's host is resolved.
    fn entry_for(&self, request: &NewSession) -> Entry {
        let subject = Subject::session(&self.door.socket.name(), &program(request));
        self.entry(subject.on_terminal(request.tty))
    }

    /// Ends a client whose descriptors are missing: the boundary to its next request is no longer certain.
    async fn without_descriptors(&self, id: u32) -> Result<ControlFlow<()>, Dropped> {
        let reply = Reply::Failure("the file descriptors did not come along".into());
        self.packets.reply(id, &reply).await?;
        Ok(ControlFlow::Break(()))
    }

    /// Ends a session that did not begin. The client may try again by itself only if nothing can have run and the error
    /// is not `is_final`. Otherwise it is made to exit with 255.
    async fn fail(
        &mut self,
        id: u32,
        error: &Error,
        stderr: OwnedFd,
        is_final: bool,
    ) -> Result<ControlFlow<()>, Dropped> {
        self.report_failure(error);
        if error.execution() == Execution::DidNotStart && !is_final {
            if !self.must_share() {
                return self.refuse(id, Stock::Session, error).await;
            }
            self.door
                .count_declined(Stock::Session, Decline::Failed(error.kind()));
            return self.tell_not_shared(id, error, stderr).await;
        }
        self.report_opened(id).await?;
        self.complain(error, stderr).await
    }

    /// Warns the client's user, as their ssh would, that the server was not verified.
    async fn warn(&mut self, host: &Host, stderr: &OwnedFd) -> Result<(), Dropped> {
        for warning in host.warnings() {
            let told = stderr.try_clone().map_err(Dropped::Descriptors)?;
            self.tell(told, &warning).await;
        }
        Ok(())
    }

    /// Tells the client's user why the session ended. The protocol has no message for that.
    async fn complain(&mut self, error: &Error, stderr: OwnedFd) -> Result<ControlFlow<()>, Dropped> {
        self.report_failure(error);
        self.tell(stderr, &format!("trunkline: {error}")).await;
        Ok(ControlFlow::Break(()))
    }

    /// Shows the client's user a line, unless the client leaves first.
    async fn tell(&mut self, stderr: OwnedFd, line: &str) {
        tokio::select! {
            () = show(stderr, line) => {}
            () = self.packets.wait_until_left() => {}
        }
    }

    /// Opens a tunnel from the server (section 3). A client whose request is refused exits (mux.c,
    /// `mux_client_request_stdio_fwd`), so a connection that has just been lost is replaced first.
    pub(super) async fn stdio_forward(
        &mut self,
        id: u32,
        target: &Address,
    ) -> Result<ControlFlow<()>, Dropped> {
        let Some(fds) = self.packets.descriptors(2).await? else {
            return self.without_descriptors(id).await;
        };
        let door = self.door;
        let entry = self.entry(Subject::new("tunnel", &door.socket.name()).with_target(target.to_string()));
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
            () = self.packets.wait_until_left() => return Ok(ControlFlow::Break(())),
        };
        let (_host, stream) = match connected {
            Ok(connected) => connected,
            Err(error) => {
                entry.fail(&error);
                self.report_failure(&error);
                return self.refuse(id, Stock::Tunnel, &error).await;
            }
        };
        let streams = Streams::new([Stdio::Passed, Stdio::Passed, Stdio::Null], fds)?;
        let (answers, mut arrivals) = self.packets.split();
        let events = OverMuxSocket::new(id, answers, &self.activity);
        tokio::select! {
            _ = tunnel(streams, stream, Resizes(None), &events, &entry) => {}
            // The server has sent its end. The client's reader sees it when the client exits.
            () = events.said.notified() => {}
            () = arrivals.wait_until_left() => {}
        }
        Ok(ControlFlow::Break(()))
    }
}

/// This side's ends of the client's descriptors.
struct Ends {
    streams: Streams,
    terminal: Option<Terminal>,
    typing: Arc<Typing>,
}

/// A client of a mux socket. The protocol has messages for the start and the end of its session, none in between.
struct OverMuxSocket<'a> {
    id: u32,
    answers: Answers<'a>,
    activity: &'a OfClient,
    is_open: AtomicBool,
    /// The client's standard error, which its user reads.
    stderr: Option<&'a OwnedFd>,
    typing: Arc<Typing>,
    /// Notified when a message would have been sent.
    said: Notify,
}

impl<'a> OverMuxSocket<'a> {
    fn new(id: u32, answers: Answers<'a>, activity: &'a OfClient) -> Self {
        Self {
            id,
            answers,
            activity,
            is_open: AtomicBool::new(false),
            stderr: None,
            typing: Arc::default(),
            said: Notify::new(),
        }
    }

    /// Returns true if the client was told that its session has started.
    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Tells the client, once, that its session has started.
    async fn open(&self) -> Result<(), PacketError> {
        if self.is_open.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.activity.note_start(true);
        self.answers.reply(self.id, &Reply::SessionOpened).await
    }
}

impl Events for OverMuxSocket<'_> {
    /// Makes the client leave raw mode if it lacks a terminal, and tells its user, as OpenSSH's master does
    /// (clientloop.c, `client_status_confirm`).
    async fn tell_begun(&self, lacks_terminal: bool) {
        // The task that waits for the client to leave notices a failure.
        let _ = self.open().await;
        if lacks_terminal {
            if let Some(Ok(stderr)) = self.stderr.map(OwnedFd::try_clone) {
                show(stderr, "PTY allocation request failed").await;
            }
            let _ = self.answers.reply(self.id, &Reply::TtyAllocFail).await;
        }
        self.typing.begin();
    }

    async fn tell(&self, _: protocol::Reply) -> io::Result<()> {
        self.said.notify_one();
        Ok(())
    }
}

/// The inputs of a client of a mux socket: new sizes of its terminal. Every session checks its size when any client
/// relays the signal.
struct Resizes(Option<Terminal>);

impl Inputs for Resizes {
    async fn next(&mut self) -> Option<protocol::Request> {
        let Some(terminal) = &mut self.0 else {
            return std::future::pending().await;
        };
        loop {
            terminal.changes.recv().await;
            let now = size(&terminal.fd);
            if std::mem::replace(&mut terminal.size, now) != now {
                return Some(protocol::Request::Resize(
                    now.columns,
                    now.rows,
                    now.width,
                    now.height,
                ));
            }
        }
    }
}

/// Shows a line on a terminal that may be raw. Failures are ignored.
async fn show(stderr: OwnedFd, line: &str) {
    if let Ok(mut output) = Output::new(stderr) {
        let _ = output.write_all(vec![format!("{line}\r\n").into()]).await;
    }
}

async fn start(
    door: Door<'_>,
    request: &NewSession,
    spec: Result<Spec, Error>,
    observers: &Observers<'_>,
) -> Result<(Host, Started), Error> {
    let host = door.host().await?;
    if request.x11 {
        return Err(Invalid::X11.into());
    }
    // sshd lends the agent to every session of a connection, so sessions with and without it must not share one.
    let forwarded = host.config().forward_agent != ForwardAgent::No;
    if request.agent != forwarded {
        return Err(Invalid::Agent { forwarded }.into());
    }
    let spec = spec?;
    observers
        .audit
        .begin(|subject| subject.with_host(host.config()))
        .await?;
    let started = spec.start(&host, door.engine(), observers).await?;
    Ok((host, started))
}

async fn connect(door: Door<'_>, target: &Address, entry: &Entry) -> Result<(Host, ChannelStream), Error> {
    let host = door.host().await?;
    entry.begin(|subject| subject.with_host(host.config())).await?;
    let stream = match target {
        Address::Tcp { host: name, port } => host.direct_tcpip(name, *port, ("127.0.0.1", 0)).await?,
        Address::Socket(path) => host.direct_streamlocal(path).await?,
    };
    Ok((host, stream))
}

/// Returns the session that a client asks for. Like OpenSSH's master, it leaves a command running when its session is
/// closed.
fn spec(request: &NewSession, terminal: Option<&Terminal>) -> Result<Spec, Error> {
    let pty = terminal.map(|terminal| Pty {
        term: request.term.clone(),
        size: terminal.size,
        modes: modes::read_from(&terminal.fd),
    });
    if request.subsystem && str::from_utf8(&request.command).is_err() {
        return Err(Invalid::NotUtf8("the subsystem's name".into()).into());
    }
    Ok(Spec {
        leaves_running: true,
        ..Spec::new(program(request), pty, request.env.iter().cloned(), request.agent)
    })
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

/// The client's terminal. The system tells only the client of a new size, since the terminal is the client's
/// controlling one. The client relays the signal (mux.c, `control_client_sigrelay`) to the process in `MUX_S_ALIVE`.
struct Terminal {
    fd: OwnedFd,
    size: TerminalSize,
    changes: Signal,
}

impl Terminal {
    fn new(fd: &OwnedFd) -> io::Result<Self> {
        // Registered before the size is read, so that no change is missed.
        let changes = signal(SignalKind::window_change())?;
        Ok(Self {
            fd: fd.try_clone()?,
            size: size(fd),
            changes,
        })
    }
}

fn size(fd: &OwnedFd) -> TerminalSize {
    let size = WindowSize::read_from(fd);
    TerminalSize {
        columns: size.cols,
        rows: size.rows,
        width: size.xpixel,
        height: size.ypixel,
    }
}
