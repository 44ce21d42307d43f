//! One session of a client: what its request means, and the streams between its descriptors and the channel.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use trunkline::config::{HostConfig, Listen, LocalCommand, LogLevel, Reason, RequestTty, SessionType};
use trunkline::{
    ChannelReader, ChannelStream, ChannelWriter, Command, Engine, Error, Execution, ExitStatus, Host,
    Interaction, Pty, SessionControl, SessionParts, TerminalSize,
};

use crate::forwards::Forwards;
use crate::listening::Waiting;
use crate::mux::Typed;
use crate::openssh::Masters;
use crate::protocol::{
    Escapes, Exit, Program, Reply, Request, SessionRequest, SshClient, Stdio, TerminalInfo, Tty,
};
use crate::pump;
use crate::reports::connection_report;
use crate::reports::failure;
use crate::stdio::{Input, Output};

/// A command whose output nobody takes any more, or that was sent a signal, gets this long to end before its session is
/// closed.
const GRACE: Duration = Duration::from_secs(2);

/// Who wants a session, and can be spoken to.
pub(crate) struct Client<'a> {
    pub(crate) interaction: &'a Interaction,
    pub(crate) replies: &'a mpsc::Sender<Reply>,
    /// What it says about its session. The end of it means that it is gone.
    pub(crate) inputs: mpsc::Receiver<Request>,
    /// It wants the session to end, which it says among its inputs, too: nobody reads those before the session has begun.
    pub(crate) terminated: &'a CancellationToken,
    /// Whether the session goes on then.
    pub(crate) detached: &'a AtomicBool,
}

/// The end-of-file character that a terminal has by default, for a session whose user has left it.
const END_OF_TRANSMISSION: u8 = 4;

/// Runs a session to its end and returns the last frame.
pub(crate) async fn run(
    engine: &Engine,
    masters: Option<&Masters>,
    waiting: &Waiting,
    request: SessionRequest,
    fds: Vec<OwnedFd>,
    client: Client<'_>,
) -> Reply {
    match try_run(engine, masters, waiting, request, fds, client).await {
        Ok(reply) => reply,
        Err(error) => Reply::Failed(failure(&error)),
    }
}

async fn try_run(
    engine: &Engine,
    masters: Option<&Masters>,
    waiting: &Waiting,
    request: SessionRequest,
    fds: Vec<OwnedFd>,
    client: Client<'_>,
) -> Result<Reply, Error> {
    let Client {
        interaction,
        replies,
        mut inputs,
        terminated,
        detached,
    } = client;
    if let Program::Incoming(number) = request.program {
        return waiting.carry(number, request.stdio, fds, replies, inputs).await;
    }
    let mut asked = crate::reports::engine_request(&request.host);
    asked.runs_local_command = request.ssh.is_some();
    let opening = Opening {
        host: &request.host.destination.host,
        deadline: request.limit.map(Deadline::after),
        terminated,
    };
    let host = if moves_data(&request.program) {
        opening
            .may_end(Box::pin(engine.host_for_copies(&asked, interaction)))
            .await
    } else {
        opening
            .may_end(Box::pin(engine.host_for(&asked, interaction)))
            .await
    };
    let host = match host.and_then(|host| goes_to_the_background_itself(host, request.ssh)) {
        Ok(host) => host,
        Err(Error::NeedsSystemSsh { reasons, .. }) => {
            let config = engine.resolve(&asked).await?;
            let forks = reasons.iter().any(|reason| reason.directive == FORKS);
            let (options, warm) = match masters {
                // A master that persists would keep the command from running (ssh.c, `need_controlpersist_detach`).
                _ if forks => (Vec::new(), false),
                Some(masters) => (
                    masters.options(&config, &asked.world)?,
                    masters.is_warm(&config, &asked.world).await,
                ),
                None => (Vec::new(), false),
            };
            if !request.answers {
                return crate::openssh::session(options, warm, request, fds, replies, inputs).await;
            }
            let reasons = reasons.iter().map(ToString::to_string).collect();
            return Ok(Reply::UseSystemSsh { reasons, options });
        }
        Err(error) => return Err(error),
    };
    let mut streams = Streams::new(request.stdio, fds)?;
    let config = host.config().clone();
    let warm = host.is_warm();
    if let Some(ssh) = request.ssh {
        if ssh.log_level.is_none() && config.log_level != LogLevel::Info {
            let level = Reply::LogLevel(config.log_level);
            if config.log_level >= LogLevel::Debug1 {
                return Ok(level);
            }
            let _ = replies.send(level).await;
        }
        if config.stdin_null {
            streams.stdin = Source::Null;
        }
    }
    let program = program(&config, &request)?;
    {
        let question = match &program {
            Program::Stdio(target, port) => format!("Allow forward to {target}:{port}? "),
            Program::StdioSocket(path) => format!("Allow forward to {path}? "),
            Program::Listen(..) | Program::ListenSocket(_) => {
                format!("Open remote forward on {}? ", config.original_host)
            }
            _ => format!("Allow shared connection to {}? ", config.original_host),
        };
        opening.may_end(Box::pin(host.confirm_use(&question))).await?;
    }
    let local_command = config.local_command.as_ref().filter(|_| request.ssh.is_some());
    let is_tunnel = matches!(program, Program::Stdio(..) | Program::StdioSocket(_));
    if let Some(command) = local_command.filter(|_| is_tunnel) {
        opening
            .may_end(Box::pin(run_local_command(&host, command, replies, &mut inputs)))
            .await?;
    }
    let tunnelled = match &program {
        Program::Stdio(target, port) => {
            let tunnel = host.direct_tcpip(target, *port, ("127.0.0.1", 0));
            Some(opening.may_end(Box::pin(tunnel)).await?)
        }
        Program::StdioSocket(path) => Some(opening.may_end(Box::pin(host.direct_streamlocal(path))).await?),
        _ => None,
    };
    if let Some(stream) = tunnelled {
        let _ = replies.send(begun(warm)).await;
        return Ok(tunnel(streams, stream, replies, inputs).await);
    }
    let listen = match &program {
        Program::Listen(host, port) => Some(Listen::Tcp {
            host: host.clone(),
            port: *port,
        }),
        Program::ListenSocket(path) => Some(Listen::Socket(path.into())),
        _ => None,
    };
    if let Some(listen) = listen {
        opening.may_end(Box::pin(host.warm())).await?;
        return waiting.listen(&host, &listen, replies, inputs).await;
    }
    let forwards = Forwards::start(engine, &host, interaction, request.host.clone());
    let forwards = opening.may_end(Box::pin(forwards)).await?;
    if let Some(command) = local_command {
        opening
            .may_end(Box::pin(run_local_command(&host, command, replies, &mut inputs)))
            .await?;
    }
    let terms = Terms {
        deadline: opening.deadline,
        detached: Some(detached),
        forwards: Some(&forwards),
    };
    if program == Program::Nothing {
        opening.may_end(Box::pin(host.warm())).await?;
        if request.ssh.is_some() {
            show_banner(&host, interaction).await;
        }
        let _ = replies.send(begun(warm)).await;
        return Ok(hold(&host, inputs, replies, terms).await);
    }
    let pty = pty(&config, &request, &program);
    let tty = pty.is_some();
    let command = command(&config, &request, &program, pty);
    let session = opening.may_end(Box::pin(host.start(&command))).await?;
    let escapes = Escapes {
        character: config.escape_char.filter(|_| tty),
        command_line: config.enable_escape_commandline,
        local_commands: config.permit_local_command,
    };
    let begun = Reply::Begun {
        tty,
        escapes,
        warm,
        hostname: config.hostname.clone(),
    };
    let parts = session.into_parts();
    let running = pump(parts, begun, streams, replies, inputs, terms, &host);
    let banner = async {
        if request.ssh.is_some() {
            show_banner(&host, interaction).await;
        }
        std::future::pending().await
    };
    let ended = tokio::select! {
        biased;
        never = banner => never,
        ended = running => ended?,
    };
    Ok(Reply::Exit(match ended {
        ExitStatus::Exited(status) => Exit::Status(status),
        ExitStatus::Signaled { signal, core_dumped } => Exit::Signal(signal, core_dumped),
        ExitStatus::Unknown => Exit::Unknown,
    }))
}

const FORKS: &str = "forkafterauthentication";

/// Refuses a host that a client stands for ssh at, and whose ssh_config has ssh fork when the client cannot any more.
fn goes_to_the_background_itself(host: Host, ssh: Option<SshClient>) -> Result<Host, Error> {
    let forks = host.config().fork_after_authentication;
    if !forks || ssh.is_none_or(|ssh| ssh.background) {
        return Ok(host);
    }
    Err(Error::NeedsSystemSsh {
        host: host.config().original_host.clone(),
        reasons: vec![Reason {
            directive: FORKS.into(),
            value: "yes".into(),
            why: "trunkline ssh goes to the background where its own options say so (-f)".into(),
        }],
    })
}

/// Has the client run LocalCommand, once the host is connected, and waits for its end.
async fn run_local_command(
    host: &Host,
    LocalCommand(command): &LocalCommand,
    replies: &mpsc::Sender<Reply>,
    inputs: &mut mpsc::Receiver<Request>,
) -> Result<(), Error> {
    host.warm().await?;
    let _ = replies.send(Reply::LocalCommand(command.clone())).await;
    loop {
        match inputs.recv().await {
            Some(Request::LocalCommandDone) => return Ok(()),
            // Nothing has begun that another request could be about.
            None => return Err(closed(&host.config().original_host, "the client left")),
            Some(_) => {}
        }
    }
}

/// Shows the banner of the host's connection to somebody who has not seen it while the connection was made.
async fn show_banner(host: &Host, interaction: &Interaction) {
    if host.warm().await.is_err() || interaction.has_shown_banner() {
        return;
    }
    let info = host.lanes().into_iter().find_map(|lane| lane.info);
    if let Some(info) = info.filter(|info| !info.banner.is_empty()) {
        interaction.banner(&info.banner);
    }
}

/// The beginning of what has no terminal.
pub(crate) fn begun(warm: bool) -> Reply {
    Reply::Begun {
        tty: false,
        escapes: Escapes::default(),
        warm,
        hostname: String::new(),
    }
}

/// On what terms a session runs.
#[derive(Clone, Copy, Default)]
pub(crate) struct Terms<'a> {
    deadline: Option<Deadline>,
    /// Whether the session goes on when its client leaves; never, where that is not said.
    detached: Option<&'a AtomicBool>,
    /// Its forwardings, where its client may ask for more.
    forwards: Option<&'a Forwards<'a>>,
}

impl Terms<'_> {
    fn detached(self) -> bool {
        self.detached
            .is_some_and(|detached| detached.load(Ordering::Relaxed))
    }
}

/// A session that has not begun: nothing of its command has been sent.
#[derive(Clone, Copy)]
struct Opening<'a> {
    host: &'a str,
    deadline: Option<Deadline>,
    terminated: &'a CancellationToken,
}

impl Opening<'_> {
    /// Does one of its steps, unless its client wants it to end first, or its time is up. Boxed: all of them together are more
    /// than a thread's stack holds in a build without optimisation.
    async fn may_end<T>(self, step: Pin<Box<impl Future<Output = Result<T, Error>>>>) -> Result<T, Error> {
        tokio::select! {
            biased;
            done = step => done,
            () = self.terminated.cancelled() => Err(closed(self.host, TERMINATED)),
            error = Deadline::wait(self.deadline, self.host) => Err(error),
        }
    }
}

/// Why a session is closed whose client wanted that.
const TERMINATED: &str = "the command was ended before it was done";

/// When a session must be over.
#[derive(Debug, Clone, Copy)]
struct Deadline {
    at: tokio::time::Instant,
    limit: Duration,
}

impl Deadline {
    fn after(limit: Duration) -> Self {
        Self {
            at: tokio::time::Instant::now() + limit,
            limit,
        }
    }

    /// Waits until time is up, if it ever is.
    async fn wait(deadline: Option<Self>, host: &str) -> Error {
        let Some(Self { at, limit }) = deadline else {
            return std::future::pending().await;
        };
        tokio::time::sleep_until(at).await;
        Error::Timeout {
            doing: format!("the command on {host}"),
            after: limit,
        }
    }
}

/// Whether a session is what rsync, scp and sftp run: it is worth a connection that is tuned.
fn moves_data(program: &Program) -> bool {
    match program {
        Program::Exec(command) => {
            let starts = |words: &str| command.starts_with(words.as_bytes());
            starts("rsync --server") || starts("scp -")
        }
        Program::Subsystem(name) => name == "sftp",
        _ => false,
    }
}

/// What to run: the request's own word, else the configuration's.
fn program(config: &HostConfig, request: &SessionRequest) -> Result<Program, Error> {
    match (&request.program, &config.remote_command) {
        (Program::Exec(_), Some(_)) => Err(Error::Usage(
            "cannot execute a command-line command and RemoteCommand; use -o RemoteCommand=none".into(),
        )),
        (Program::Configured, Some(command)) => Ok(Program::Exec(command.clone().into_bytes())),
        (Program::Configured, None) => Ok(match config.session_type {
            SessionType::None => Program::Nothing,
            _ => Program::Configured,
        }),
        (program, _) => Ok(program.clone()),
    }
}

/// ssh.c's rules on terminals.
fn pty(config: &HostConfig, request: &SessionRequest, program: &Program) -> Option<Pty> {
    let wanted = match request.tty {
        Tty::No => RequestTty::No,
        Tty::Yes => RequestTty::Yes,
        Tty::Force => RequestTty::Force,
        Tty::Configured => config.request_tty,
    };
    let given = match wanted {
        RequestTty::No => false,
        RequestTty::Force => true,
        RequestTty::Yes => request.terminal.is_some(),
        RequestTty::Auto => request.terminal.is_some() && *program == Program::Configured,
    };
    given.then(|| match &request.terminal {
        Some(TerminalInfo { term, size, modes }) => Pty {
            term: term.clone(),
            size: terminal_size(*size),
            modes: modes.clone(),
        },
        None => Pty::default(),
    })
}

fn command(config: &HostConfig, request: &SessionRequest, program: &Program, pty: Option<Pty>) -> Command {
    let mut command = match program {
        Program::Exec(command) => Command::exec(command.clone()),
        Program::Subsystem(name) => Command::subsystem(name),
        Program::Configured
        | Program::Nothing
        | Program::Stdio(..)
        | Program::StdioSocket(_)
        | Program::Listen(..)
        | Program::ListenSocket(_)
        | Program::Incoming(_) => Command::shell(),
    };
    for (name, value) in config.session_env(&request.host.world) {
        command = command.env(name, value);
    }
    for (name, value) in &request.env {
        command = command.env(name.to_string_lossy(), value.as_bytes());
    }
    if let Some(pty) = pty {
        command = command.pty(pty);
    }
    command.agent_forwarding(config.forward_agent != trunkline::config::ForwardAgent::No)
}

/// The client's side of the three streams.
pub(crate) struct Streams {
    stdin: Source,
    stdout: Sink,
    stderr: Sink,
}

enum Source {
    Fd(Input),
    /// A terminal that stock ssh has passed.
    Terminal(Typed),
    Frames,
    Null,
}

enum Sink {
    Fd(Output),
    Frames,
    Null,
}

impl Streams {
    pub(crate) fn new(kinds: [Stdio; 3], fds: Vec<OwnedFd>) -> Result<Self, Error> {
        let mut fds = fds.into_iter();
        let mut next = || {
            fds.next()
                .ok_or_else(|| Error::Usage("the request came without its descriptors".into()))
        };
        let broken = |error: std::io::Error| Error::Usage(format!("a descriptor cannot be used: {error}"));
        let [stdin, stdout, stderr] = kinds;
        let stdin = match stdin {
            Stdio::Passed => Source::Fd(Input::new(next()?).map_err(broken)?),
            Stdio::Framed => Source::Frames,
            Stdio::Null => Source::Null,
        };
        let mut sink = |kind| {
            Ok::<_, Error>(match kind {
                Stdio::Passed => Sink::Fd(Output::new(next()?).map_err(broken)?),
                Stdio::Framed => Sink::Frames,
                Stdio::Null => Sink::Null,
            })
        };
        Ok(Self {
            stdin,
            stdout: sink(stdout)?,
            stderr: sink(stderr)?,
        })
    }

    /// Takes the input from a terminal that came along instead.
    pub(crate) fn typed(self, typed: Typed) -> Self {
        Self {
            stdin: Source::Terminal(typed),
            ..self
        }
    }
}

/// Moves a session's data until it has ended and its output is written. `begun` is said when the server has started the
/// command, and not before: until then questions may come up, for which the client's terminal must be as it was.
pub(crate) async fn pump(
    parts: SessionParts,
    begun: Reply,
    streams: Streams,
    replies: &mpsc::Sender<Reply>,
    inputs: mpsc::Receiver<Request>,
    terms: Terms<'_>,
    host: &Host,
) -> Result<ExitStatus, Error> {
    let SessionParts {
        stdin,
        mut stdout,
        mut stderr,
        control,
        mut end,
    } = parts;
    let name = &host.config().original_host;
    let ended = Notify::new();
    let output = async {
        let written = drain(&mut stdout, streams.stdout, replies, Reply::Output).await;
        if written.is_err() && terms.detached() {
            // The client has left the session to itself: nobody reads, and nobody minds.
            discard(&mut stdout).await;
            return Ok(());
        }
        if written.is_err() {
            // As ssh: the command is told that nobody reads, and dies of SIGPIPE at its next write.
            control.end_of_write();
            if tokio::time::timeout(GRACE, ended.notified()).await.is_err() {
                control.close();
            }
        }
        written
    };
    let error_output = async {
        // A closed standard error is no reason to end a command, nor to let it wait for room to write.
        if drain(&mut stderr, streams.stderr, replies, Reply::ErrorOutput)
            .await
            .is_err()
        {
            discard(&mut stderr).await;
        }
    };
    let status = async {
        let status = match end.started().await {
            Ok(()) => {
                let _ = replies.send(begun).await;
                end.wait().await
            }
            Err(error) => Err(error),
        };
        ended.notify_one();
        status
    };
    let (framed, frames) = mpsc::unbounded_channel();
    let mut whole = pin!(async { tokio::join!(output, error_output, status) });
    let stopped = tokio::select! {
        biased;
        (written, (), status) = &mut whole => return settled(written, status),
        never = feed(streams.stdin, stdin, frames, Some(&control), host) => match never {},
        error = Deadline::wait(terms.deadline, name) => error,
        left = attend(inputs, framed, replies, Some(&control), host, terms) => match left {
            // Closing tells the command.
            Left::Gone => {
                let execution = match control.withdraw() {
                    true => Execution::DidNotStart,
                    false => Execution::MayHaveStarted,
                };
                control.close();
                return Err(closed(name, "the client left").with_execution(execution));
            }
            Left::Terminated => closed(name, TERMINATED),
        },
    };
    if control.withdraw() {
        return Err(stopped.with_execution(Execution::DidNotStart));
    }
    control.signal("TERM");
    let timed_out = matches!(stopped, Error::Timeout { .. });
    match tokio::time::timeout(GRACE, &mut whole).await {
        // How it ended is the better answer, but for the one that time was up.
        Ok((written, (), status)) if !timed_out => return settled(written, status),
        Ok((_, (), Ok(ExitStatus::Exited(_)))) => return Err(stopped.with_execution(Execution::Finished)),
        Ok((_, (), Err(error))) => return Err(stopped.with_execution(error.execution())),
        Ok(_) => return Err(stopped.with_execution(Execution::MayHaveStarted)),
        Err(_) => {}
    }
    control.close();
    let execution = match tokio::time::timeout(GRACE, whole).await {
        Ok((_, (), Err(error))) => error.execution(),
        Ok((_, (), Ok(_))) => Execution::Finished,
        Err(_) => Execution::MayHaveStarted,
    };
    Err(stopped.with_execution(execution))
}

/// How a session ended whose streams have.
fn settled(written: std::io::Result<()>, status: Result<ExitStatus, Error>) -> Result<ExitStatus, Error> {
    let status = status?;
    // A reader that has left had enough; a full disk is a loss that nobody asked for.
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(unwritten(error, &status)),
        _ => Ok(status),
    }
}

fn closed(host: &str, why: &str) -> Error {
    Error::Closed {
        host: host.to_owned(),
        why: why.into(),
    }
}

/// Output that could not be written, after a session that has ended so.
fn unwritten(error: std::io::Error, status: &ExitStatus) -> Error {
    let execution = match status {
        ExitStatus::Exited(_) => Execution::Finished,
        _ => Execution::MayHaveStarted,
    };
    let doing = "writing the command's output".to_owned();
    let cause = Arc::new(Error::Local {
        doing,
        source: Arc::new(error),
    });
    Error::Lost { execution, cause }
}

/// Moves a tunnel's data. Each direction ends by itself, and the client is told of the server's end; returns the last frame
/// when both have ended, or the client leaves.
pub(crate) async fn tunnel(
    streams: Streams,
    stream: ChannelStream,
    replies: &mpsc::Sender<Reply>,
    mut inputs: mpsc::Receiver<Request>,
) -> Reply {
    let (mut reader, mut writer) = stream.into_split();
    let (framed, frames) = mpsc::unbounded_channel();
    let attend = async {
        while let Some(request) = inputs.recv().await {
            match request {
                Request::Input(data) => drop(framed.send(data)),
                Request::Terminate => break,
                _ => {}
            }
        }
    };
    let down = async {
        let written = drain(&mut reader, streams.stdout, replies, Reply::Output).await;
        if written.is_ok() && reader.is_complete() {
            let _ = replies.send(Reply::Output(Vec::new())).await;
        }
        written
    };
    let carry = async {
        match tokio::join!(down, up(streams.stdin, frames, &mut writer)).0 {
            // Closing discards what the server's window has not let out yet; sshd closes once it has both ends.
            Ok(()) => writer.closed().await,
            // A client that takes no more waits for no end of what it is sent.
            Err(_) => drop(writer.drained().await),
        }
    };
    tokio::select! {
        () = carry => {}
        () = attend => {}
    }
    Reply::Exit(Exit::Status(0))
}

/// Gives a tunnel its input, until the client's end or the channel's.
async fn up(mut source: Source, mut frames: mpsc::UnboundedReceiver<Vec<u8>>, writer: &mut ChannelWriter) {
    loop {
        let next = async {
            match &mut source {
                Source::Fd(input) => input.read().await.unwrap_or_default(),
                Source::Frames => frames.recv().await.unwrap_or_default().into(),
                // What is typed on a terminal that came along is a session's.
                Source::Null | Source::Terminal(_) => Bytes::new(),
            }
        };
        let data = tokio::select! {
            biased;
            data = next => data,
            () = writer.closed() => return,
        };
        if data.is_empty() || writer.send(data).await.is_err() {
            break;
        }
    }
    writer.finish();
}

/// Waits while only forwardings are wanted (`-N`): until the client leaves, or the connection is lost.
async fn hold(
    host: &Host,
    inputs: mpsc::Receiver<Request>,
    replies: &mpsc::Sender<Reply>,
    terms: Terms<'_>,
) -> Reply {
    let (framed, _frames) = mpsc::unbounded_channel();
    // Held: what is used for nothing but tunnels that may come is not idle.
    let connection = host.hold();
    let mut apart = host.apart();
    let mut attended = pin!(attend(inputs, framed, replies, None, host, terms));
    loop {
        tokio::select! {
            error = connection.ended() => return Reply::Failed(failure(&error)),
            _ = &mut attended => return Reply::Exit(Exit::Status(0)),
            Ok(()) = apart.changed() => {
                let apart = *apart.borrow_and_update();
                let connections = host.lanes().iter().map(connection_report).collect();
                let _ = replies.send(Reply::Placement { apart, connections }).await;
            }
        }
    }
}

/// Gives the session its input. When that has ended, there is nothing more to do here.
async fn feed(
    source: Source,
    mut stdin: ChannelWriter,
    mut frames: mpsc::UnboundedReceiver<Vec<u8>>,
    control: Option<&SessionControl>,
    host: &Host,
) -> std::convert::Infallible {
    match source {
        Source::Null => {}
        Source::Terminal(typed) => typed.feed(&mut stdin, control, host).await,
        // A command that takes no more input ends the feeding, not the session.
        Source::Frames => {
            while let Some(data) = frames.recv().await {
                if data.is_empty() || stdin.send(data.into()).await.is_err() {
                    break;
                }
            }
        }
        Source::Fd(mut input) => pump::feed(&mut input, &mut stdin).await,
    }
    stdin.finish();
    std::future::pending().await
}

/// Why a client's requests have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// It is gone.
    Gone,
    /// It wants the session to end, and to hear how.
    Terminated,
}

/// Serves what the client says about its session, until it leaves or wants the session to end. Framed input goes to `framed`, which has no bound:
/// it is what somebody types.
async fn attend(
    mut inputs: mpsc::Receiver<Request>,
    framed: mpsc::UnboundedSender<Vec<u8>>,
    replies: &mpsc::Sender<Reply>,
    control: Option<&SessionControl>,
    host: &Host,
    terms: Terms<'_>,
) -> Left {
    while let Some(request) = inputs.recv().await {
        match (request, control) {
            (Request::Terminate, _) => return Left::Terminated,
            (Request::Input(data), _) => {
                let _ = framed.send(data);
            }
            (Request::Resize(columns, rows, width, height), Some(control)) => {
                control.resize(terminal_size((columns, rows, width, height)));
            }
            (Request::Signal(name), Some(control)) => control.signal(&name),
            (Request::Break(milliseconds), Some(control)) => {
                control.send_break(milliseconds).await;
            }
            (Request::Rekey, _) => host.connection().rekey(),
            (Request::Forward(request), _) => {
                if let Some(forwards) = terms.forwards {
                    forwards.handle(request).await;
                }
            }
            (Request::Background, _) => {
                if let Some(forwards) = terms.forwards {
                    forwards.stop_listening().await;
                }
                let _ = framed.send(vec![END_OF_TRANSMISSION]);
                let _ = replies.send(Reply::Done).await;
            }
            _ => {}
        }
    }
    if terms.detached() {
        std::future::pending::<()>().await;
    }
    Left::Gone
}

/// Reads a stream that nobody wants, so that its command is not held up.
async fn discard(reader: &mut ChannelReader) {
    while reader.chunk().await.is_some() {}
}

/// Writes a stream to its sink. Fails when nobody takes the output any more.
async fn drain(
    reader: &mut ChannelReader,
    mut sink: Sink,
    replies: &mpsc::Sender<Reply>,
    frame: impl Fn(Vec<u8>) -> Reply,
) -> std::io::Result<()> {
    if let Sink::Fd(output) = &mut sink {
        return pump::drain(reader, output).await;
    }
    while let Some(data) = reader.chunk().await {
        if let Sink::Frames = sink {
            replies
                .send(frame(data.to_vec()))
                .await
                .map_err(|_| std::io::ErrorKind::BrokenPipe)?;
        }
    }
    Ok(())
}

fn terminal_size((columns, rows, width, height): (u32, u32, u32, u32)) -> TerminalSize {
    TerminalSize {
        columns,
        rows,
        width,
        height,
    }
}
