//! One session of a client: what its request means, and what is made of it.

pub(crate) mod forwards;
pub(crate) mod listening;
pub(crate) mod log;
mod ssh_words;
pub(crate) mod streams;

use std::ffi::{OsStr, OsString};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use trunkline::config::{HostConfig, Listen, LocalCommand, LogLevel, Reason, RequestTty, SessionType, World};
use trunkline::{
    ChannelStream, Command, Engine, Error, Execution, Host, Interaction, PredictMode, Printable, Pty,
};

use crate::deadline::Deadline;
use crate::observed::recording::Recordings;
use crate::openssh::Masters;
use crate::protocol::{
    Escapes, Failure, Predict, Program, Reply, Request, SessionRequest, SshClient, TerminalInfo, Tty,
};
use forwards::Forwards;
use listening::Waiting;
use log::Log;
use streams::carry::Resumption;
use streams::{Streams, TERMINATED, Terms, as_told, begun, closed, hold, move_data, terminal_size, tunnel};
use trunkline_audit::Entry;

/// Who wants a session, and can be spoken to.
pub(crate) struct Client<'a> {
    pub(crate) interaction: &'a Interaction,
    pub(crate) replies: &'a mpsc::Sender<Reply>,
    /// What it says about its session. The end of it means that it is gone.
    pub(crate) inputs: mpsc::Receiver<Request>,
    /// It wants the session to end, which it says among its inputs, too: nobody reads those before the session has begun.
    pub(crate) terminated: &'a CancellationToken,
    /// Whether the session continues then.
    pub(crate) detached: &'a AtomicBool,
    /// The daemon is this client's own, and ends with it.
    pub(crate) is_private: bool,
    /// What is told of the work, to a client that stands for ssh.
    pub(crate) log: &'a Log,
    /// What is recorded of its session.
    pub(crate) entry: &'a Entry,
    /// What records it, if that is to be done.
    pub(crate) recordings: &'a Recordings,
}

/// Runs a session to its end and returns the last frame.
pub(crate) async fn run(
    engine: &Engine,
    masters: Option<&Masters>,
    waiting: &Waiting,
    request: SessionRequest,
    fds: Vec<OwnedFd>,
    client: Client<'_>,
) -> Reply {
    let entry = client.entry;
    let as_ssh = request
        .ssh
        .map(|_| (request.host.clone(), request.program.clone()));
    let error = match try_run(engine, masters, waiting, request, fds, client).await {
        Ok(reply) => {
            entry.end_by(&reply);
            return reply;
        }
        Err(error) => error,
    };
    entry.failed(&error);
    let mut failure = Failure::from(&error);
    if let Some((host, program)) = as_ssh {
        let config = engine.resolve(&crate::reports::engine_request(&host)).await.ok();
        let meant = config
            .as_ref()
            .and_then(|config| meant(config, &program, true).ok());
        failure.in_words_of_ssh = ssh_words::of(&error, config.as_deref(), &meant.unwrap_or(program));
    }
    Reply::Failed(failure)
}

async fn try_run(
    engine: &Engine,
    masters: Option<&Masters>,
    waiting: &Waiting,
    request: SessionRequest,
    fds: Vec<OwnedFd>,
    mut client: Client<'_>,
) -> Result<Reply, Error> {
    if let Program::Incoming(number) = request.program {
        return Box::pin(carry(waiting, number, request, fds, client)).await;
    }
    let mut asked = crate::reports::engine_request(&request.host);
    asked.runs_local_command = request.ssh.is_some();
    if let Some(level) = request.ssh.and_then(|ssh| ssh.log_level) {
        client.log.begin(level);
        log_request(client.log, &asked);
    }
    let opening = Opening {
        host: &request.host.destination.host,
        deadline: request.limit.map(Deadline::after),
        terminated: client.terminated,
    };
    let host = if moves_data(&request.program) {
        opening
            .may_end(Box::pin(engine.host_for_copies(&asked, client.interaction)))
            .await
    } else {
        opening
            .may_end(Box::pin(engine.host_for(&asked, client.interaction)))
            .await
    };
    if let Some(SshClient { log_level: None, .. }) = request.ssh {
        begin_log(&client, engine, &asked, &host).await;
    }
    let host = match host.and_then(|host| goes_to_the_background_itself(host, request.ssh)) {
        Ok(host) => host,
        Err(Error::NeedsSystemSsh { reasons, .. }) => {
            let config = engine.resolve(&asked).await?;
            let strict = engine.must_share(&config, &asked.world);
            let masters = masters.filter(|_| !runs_alone(&reasons));
            let way = way_through_ssh(&config, &asked.world, masters, strict).await?;
            return hand_over(&config, way, &reasons, request, fds, client).await;
        }
        Err(error) => return Err(error),
    };
    let mut streams = Streams::new(request.stdio, fds)?;
    let config = host.config().clone();
    let warm = host.is_warm();
    if request.ssh.is_some() {
        log_host(client.log, &host, client.interaction);
        if config.stdin_null {
            streams.close_stdin();
        }
    }
    let program = meant(&config, &request.program, request.ssh.is_some())?;
    let question = question(&program, &config.original_host);
    opening.may_end(Box::pin(host.confirm_use(&question))).await?;
    let recorded = record(client.entry, &config, &program, &request);
    opening.may_end(Box::pin(recorded)).await?;
    match program {
        Program::Stdio(..) | Program::StdioSocket(_) => {
            opening
                .may_end(Box::pin(run_local_command(&host, &request, &mut client)))
                .await?;
            let stream = opening.may_end(Box::pin(connect(&host, &program))).await?;
            let channel = stream.closer();
            client.entry.carries(move || channel.carried());
            let _ = client.replies.send(begun(warm)).await;
            Ok(tunnel(streams, stream, client.replies, client.inputs).await)
        }
        Program::Listen(..) | Program::ListenSocket(_) => {
            let listen = listen(program)?;
            opening.may_end(Box::pin(host.warm())).await?;
            waiting
                .listen(&host, &listen, client.replies, client.inputs)
                .await
        }
        _ => {
            let session = Prepared {
                host: &host,
                request: &request,
                program,
                warm,
                predict: predict(engine.predicts(&config)),
                engine,
                streams,
            };
            Box::pin(session.run(engine, opening, client)).await
        }
    }
}

/// Carries a connection that came from the server.
async fn carry(
    waiting: &Waiting,
    number: u64,
    request: SessionRequest,
    fds: Vec<OwnedFd>,
    client: Client<'_>,
) -> Result<Reply, Error> {
    let host = &request.host.destination.host;
    client.entry.begin(|subject| subject).await?;
    let streams = Streams::new(request.stdio, fds)?;
    waiting
        .carry(host, number, streams, client.replies, client.inputs, client.entry)
        .await
}

/// Records what is about to run, as it turned out to be meant.
async fn record(
    entry: &Entry,
    config: &HostConfig,
    program: &Program,
    request: &SessionRequest,
) -> Result<(), Error> {
    let begun = entry.begin(|subject| {
        let subject = subject.at(config).running(program);
        match program {
            Program::Configured | Program::Exec(_) => {
                let terminal = Terminal::of(config, request, program);
                subject.on_terminal(matches!(terminal, Terminal::Given(_)))
            }
            _ => subject,
        }
    });
    begun.await
}

/// What is asked where each use of a connection is to be confirmed (mux.c).
fn question(program: &Program, host: &str) -> String {
    match program {
        Program::Stdio(target, port) => format!("Allow forward to {target}:{port}? "),
        Program::StdioSocket(path) => format!("Allow forward to {path}? "),
        Program::Listen(..) | Program::ListenSocket(_) => format!("Open remote forward on {host}? "),
        _ => format!("Allow shared connection to {host}? "),
    }
}

/// Whether ssh cannot do it over a master's connection.
fn runs_alone(reasons: &[Reason]) -> bool {
    reasons
        .iter()
        .any(|reason| RUNS_ALONE.contains(&reason.directive.as_str()))
}

/// What an ssh with a master to use is to connect through, where it must use that: a session that the master does not take
/// fails, and ssh says what this says.
const NO_OTHER_WAY: &str = "ProxyCommand=echo 'trunkline: the shared connection did not take this session, and only shared \
     connections may be used (TRUNKLINE_STRICT=1 or strict_hosts)' >&2";

/// The options by which ssh uses the host's master, if there are `masters`, and whether that is there. Where it must be
/// used, ssh gets no other way to connect than to be the master.
async fn way_through_ssh(
    config: &Arc<HostConfig>,
    world: &Arc<World>,
    masters: Option<&Masters>,
    strict: bool,
) -> Result<(Vec<OsString>, bool), Error> {
    let not_shared = |why| Error::not_shared(&config.original_host, why);
    let Some(masters) = masters else {
        return match strict {
            true => Err(not_shared(
                "it takes the system's ssh, with a connection of its own",
            )),
            false => Ok((Vec::new(), false)),
        };
    };
    let mut options = masters.options(config, world)?;
    let warm = masters.is_warm(config, world).await;
    if strict {
        if options.is_empty() {
            return Err(not_shared("its ControlPath is one of your own"));
        }
        if warm {
            options.extend(["-o".into(), NO_OTHER_WAY.into()]);
        }
    }
    Ok((options, warm))
}

/// Has the system's ssh do it: the client's own, or one that is run here for a client that cannot.
async fn hand_over(
    config: &Arc<HostConfig>,
    (options, warm): (Vec<OsString>, bool),
    reasons: &[Reason],
    request: SessionRequest,
    fds: Vec<OwnedFd>,
    client: Client<'_>,
) -> Result<Reply, Error> {
    let recorded = client
        .entry
        .begin(|subject| subject.at(config).running(&request.program).through_ssh());
    recorded.await?;
    if !request.answers {
        return crate::openssh::session(options, warm, request, fds, client.replies, client.inputs).await;
    }
    for reason in reasons {
        client
            .log
            .say(LogLevel::Debug1, format!("Left to the system's ssh: {reason}"));
    }
    let reasons = reasons.iter().map(ToString::to_string).collect();
    Ok(Reply::UseSystemSsh { reasons, options })
}

/// Connects to what a tunnel leads to.
async fn connect(host: &Host, program: &Program) -> Result<ChannelStream, Error> {
    match program {
        Program::Stdio(target, port) => host.direct_tcpip(target, *port, ("127.0.0.1", 0)).await,
        Program::StdioSocket(path) => host.direct_streamlocal(path).await,
        _ => Err(Error::Bug("a session is not a tunnel")),
    }
}

/// Where the server is to listen.
fn listen(program: Program) -> Result<Listen, Error> {
    match program {
        Program::Listen(host, port) => Ok(Listen::Tcp { host, port }),
        Program::ListenSocket(path) => Ok(Listen::Socket(path.into())),
        _ => Err(Error::Bug("a session does not listen")),
    }
}

/// A session for which everything is at hand.
struct Prepared<'a> {
    host: &'a Host,
    request: &'a SessionRequest,
    program: Program,
    warm: bool,
    /// Of a client's terminal.
    predict: Option<Predict>,
    engine: &'a Engine,
    streams: Streams,
}

impl Prepared<'_> {
    /// Runs it beside its forwardings. What they carry ends where the session fails. Where that ends by itself it goes on: a
    /// private daemon, which would not outlive its client, waits for it, as ssh does.
    async fn run(
        self,
        engine: &Engine,
        opening: Opening<'_>,
        mut client: Client<'_>,
    ) -> Result<Reply, Error> {
        let (host, request) = (self.host, self.request);
        let (terminated, stays_with_client) = (client.terminated, client.is_private);
        let forwards = Forwards::start(
            engine,
            host,
            client.interaction,
            request.host.clone(),
            client.entry,
        );
        let forwards = match opening.may_end(Box::pin(forwards)).await? {
            Ok(forwards) => forwards,
            Err(failure) => return Ok(Reply::Failed(failure)),
        };
        let ended = async {
            opening
                .may_end(Box::pin(run_local_command(host, request, &mut client)))
                .await?;
            self.run_beside(&forwards, opening, client).await
        };
        let ended = Box::pin(ended).await;
        if ended.is_err() {
            forwards.abort().await;
        } else if stays_with_client {
            terminated.run_until_cancelled(Box::pin(forwards.finish())).await;
        } else {
            // Before the client hears of the end: its next command may ask for the same addresses.
            forwards.end().await;
        }
        ended
    }

    async fn run_beside(
        self,
        forwards: &Forwards<'_>,
        opening: Opening<'_>,
        client: Client<'_>,
    ) -> Result<Reply, Error> {
        let Self {
            host,
            request,
            program,
            warm,
            predict,
            engine,
            streams,
        } = self;
        let Client {
            interaction,
            replies,
            inputs,
            detached,
            log,
            entry,
            recordings,
            ..
        } = client;
        let mut terms = Terms {
            deadline: opening.deadline,
            detached: Some(detached),
            forwards: Some(forwards),
            recording: None,
            entry: Some(entry),
            needs_terminal: request.ssh.is_some(),
            tell_exit: request.tell_exit,
        };
        if program == Program::Nothing {
            opening.may_end(Box::pin(host.warm())).await?;
            if request.ssh.is_some() {
                show_banner(host, interaction);
            }
            log.say(LogLevel::Debug1, "Entering interactive session.");
            let _ = replies.send(begun(warm)).await;
            return hold(host, inputs, replies, terms).await;
        }
        let config = host.config();
        let pty = match Terminal::of(config, request, &program) {
            Terminal::Given(pty) => Some(pty),
            Terminal::Missing if request.ssh.is_some() => {
                interaction.notice("Pseudo-terminal will not be allocated because stdin is not a terminal.");
                None
            }
            Terminal::Missing | Terminal::None => None,
        };
        let tty = pty.is_some();
        let recording = pty
            .as_ref()
            .and_then(|pty| recordings.begin(config, (&pty.term, pty.size), &program));
        terms.recording = recording.as_ref();
        let command = command(config, request, &program, pty);
        let session = opening.may_end(Box::pin(host.start(&command))).await;
        let session = session.map_err(|error| match command.may_have_left() {
            true => error.with_execution(Execution::MayHaveStarted),
            false => error,
        })?;
        entry.counted(&session.control);
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
            predict: predict.filter(|_| tty),
        };
        let resumption = Resumption::of(engine, host, &program, &command).filter(|_| !tty);
        let parts = session.into_parts();
        let running = move_data(parts, begun, streams, replies, inputs, terms, host, resumption);
        let mut running = Box::pin(running);
        // What ssh shows once the user is authenticated.
        let mut showing = std::pin::pin!(async {
            // For these alone no other connection is made: the session's own may have failed by now.
            if request.ssh.is_some() && host.logged_in().await {
                show_banner(host, interaction);
                log_program(log, &program, config, request);
            }
        });
        let mut is_shown = false;
        let ended = loop {
            tokio::select! {
                biased;
                () = &mut showing, if !is_shown => is_shown = true,
                ended = &mut running => break ended,
            }
        };
        if ended.is_ok() && !is_shown {
            // The command was quicker than the news that its connection is made.
            showing.await;
        }
        if let Some(recording) = &recording {
            recording.ended(&ended);
        }
        let ended = ended?;
        log.say(LogLevel::Debug1, format!("Exit status {}", ended.code()));
        Ok(Reply::Exit(as_told(ended)))
    }
}

/// How a client is told of a setting; the round-trip time is known later.
fn predict(mode: PredictMode) -> Option<Predict> {
    (mode != PredictMode::Never).then_some(Predict {
        always: mode == PredictMode::Always,
        round_trip: None,
    })
}

/// Logs at the level that the configuration names, of which the client is told unless it is the usual one.
async fn begin_log(
    client: &Client<'_>,
    engine: &Engine,
    asked: &trunkline::config::Request,
    host: &Result<Host, Error>,
) {
    let level = match host {
        Ok(host) => host.config().log_level,
        Err(_) => engine
            .resolve(asked)
            .await
            .map_or(LogLevel::Info, |config| config.log_level),
    };
    if level != LogLevel::Info {
        let _ = client.replies.send(Reply::LogLevel(level)).await;
    }
    client.log.begin(level);
    log_request(client.log, asked);
}

/// What is asked for, and by which files.
fn log_request(log: &Log, asked: &trunkline::config::Request) {
    if !log.wants(LogLevel::Debug1) {
        return;
    }
    let (program, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
    log.say(LogLevel::Debug1, format!("trunkline {program}, process {pid}"));
    for file in asked.files().unwrap_or_default() {
        log.say(
            LogLevel::Debug1,
            format!("Reading configuration data {}", file.display()),
        );
    }
}

/// What is shared, and how it was made, unless it is made for this client.
fn log_host(log: &Log, host: &Host, interaction: &Interaction) {
    for remark in &host.config().remarks {
        // ssh prints them before it knows how much it is to log.
        log.say(LogLevel::Quiet, remark);
    }
    if !log.wants(LogLevel::Debug1) {
        return;
    }
    let config = host.config();
    let address = crate::reports::address(config);
    log.say(
        LogLevel::Debug2,
        format!("resolved {} to {address}", config.original_host),
    );
    for (name, value) in config
        .explain_sharing()
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
    {
        log.say(
            LogLevel::Debug3,
            format!("shared by the same {name} only: {value}"),
        );
    }
    let lanes = host.lanes();
    let known: Vec<_> = lanes
        .iter()
        .filter_map(|lane| Some((lane, lane.info.as_ref()?)))
        .collect();
    if known.is_empty() {
        for objection in host.objections() {
            let text = format!("Not sharing a connection to {address} that is there: {objection}");
            log.say(LogLevel::Debug1, text);
        }
        log.say(
            LogLevel::Debug1,
            format!("No connection to {address} to share: making one"),
        );
    }
    for (lane, info) in known {
        if info.was_made_for(interaction) {
            continue;
        }
        let age = info.since.elapsed().unwrap_or_default().as_secs();
        let sessions = lane.report.sessions;
        log.say(
            LogLevel::Debug1,
            format!("Sharing a connection to {address}, {age} s old, with {sessions} other sessions. This is how it was made:"),
        );
        info.log.iter().cloned().for_each(|line| log.write(line));
    }
}

/// What is run.
fn log_program(log: &Log, program: &Program, config: &HostConfig, request: &SessionRequest) {
    if !log.wants(LogLevel::Debug1) {
        return;
    }
    for (name, _) in config.session_env(&request.host.world) {
        log.say(LogLevel::Debug1, format!("channel: setting env {name}"));
    }
    log.say(
        LogLevel::Debug1,
        match program {
            Program::Exec(command) => format!("Sending command: {}", Printable::line(command)),
            Program::Subsystem(name) => format!("Sending subsystem: {}", Printable::line(name)),
            _ => "Entering interactive session.".into(),
        },
    );
}

const FORKS: &str = "forkafterauthentication";

/// What an ssh is for that shares no master. One that persists would keep a command in the background from running (ssh.c,
/// `need_controlpersist_detach`); a tunnel belongs to the ssh that made the connection, and no other is given one.
const RUNS_ALONE: [&str; 2] = [FORKS, "tunnel"];

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

/// Has the client run LocalCommand, where there is one, once the host is connected, and waits for its end.
async fn run_local_command(
    host: &Host,
    request: &SessionRequest,
    client: &mut Client<'_>,
) -> Result<(), Error> {
    let config = host.config();
    let Some(LocalCommand(command)) = config.local_command.as_ref().filter(|_| request.ssh.is_some()) else {
        return Ok(());
    };
    host.warm().await?;
    let _ = client.replies.send(Reply::LocalCommand(command.clone())).await;
    loop {
        match client.inputs.recv().await {
            Some(Request::LocalCommandDone) => return Ok(()),
            // Nothing has begun that another request could be about.
            None => return Err(closed(&config.original_host, "the client left")),
            Some(_) => {}
        }
    }
}

/// Shows the banner of the host's connection to somebody who has not seen it while the connection was made.
fn show_banner(host: &Host, interaction: &Interaction) {
    let info = host.lanes().into_iter().find_map(|lane| lane.info);
    if let Some(info) = info.filter(|info| !info.banner.is_empty() && !interaction.has_shown_banner()) {
        interaction.banner(&info.banner);
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

/// What to run: the request's own word, else the configuration's. For ssh, SessionType says what a command is.
fn meant(config: &HostConfig, asked: &Program, for_ssh: bool) -> Result<Program, Error> {
    let by_type = match asked {
        Program::Configured => true,
        Program::Exec(_) => for_ssh,
        _ => return Ok(asked.clone()),
    };
    if by_type && config.session_type == SessionType::None {
        return Ok(Program::Nothing);
    }
    let has_command = matches!(asked, Program::Exec(_));
    let command = match (asked, config.remote_command(has_command)?) {
        (Program::Exec(command), _) => Some(command.clone()),
        (_, configured) => configured.map(Into::into),
    };
    if by_type && config.session_type == SessionType::Subsystem {
        let name = command.and_then(|name| String::from_utf8(name).ok());
        return name
            .map(Program::Subsystem)
            .ok_or_else(|| Error::Invalid("You must specify a subsystem to invoke.".into()));
    }
    Ok(command.map_or(Program::Configured, Program::Exec))
}

/// What `-t` and `-T` say, else the configuration.
fn requested_tty(config: &HostConfig, request: &SessionRequest) -> RequestTty {
    match request.tty {
        Tty::No => RequestTty::No,
        Tty::Yes => RequestTty::Yes,
        Tty::Force => RequestTty::Force,
        Tty::Configured => config.request_tty,
    }
}

/// What a session has of a terminal.
enum Terminal {
    None,
    /// It was wanted, and the client has none.
    Missing,
    Given(Pty),
}

impl Terminal {
    /// ssh.c's rules on terminals.
    fn of(config: &HostConfig, request: &SessionRequest, program: &Program) -> Self {
        let requested = requested_tty(config, request);
        // SetEnv's goes before the environment's.
        let set = config.set_env.iter().find(|(name, _)| name == "TERM");
        let set = set.map(|(_, term)| term).filter(|term| !term.is_empty());
        match (requested, &request.terminal) {
            (RequestTty::No, _) => Self::None,
            (RequestTty::Auto, _) if *program != Program::Configured => Self::None,
            (_, Some(TerminalInfo { term, size, modes })) => Self::Given(Pty {
                term: set.unwrap_or(term).clone(),
                size: terminal_size(*size),
                modes: modes.clone(),
            }),
            // Of a size that nobody knows, but of the kind that the caller says.
            (RequestTty::Force, None) => {
                let term = request.host.world.env.get(OsStr::new("TERM"));
                let term = term.map_or_else(String::new, |term| term.to_string_lossy().into_owned());
                Self::Given(Pty {
                    term: set.cloned().unwrap_or(term),
                    ..Pty::default()
                })
            }
            (_, None) => Self::Missing,
        }
    }
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
