//! `trunkline ssh`: ssh(1) over a shared connection.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use rustix::fs::FileType;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::emulate_default_handler;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::timeout;
use trunkline_control::client::{Call, ClientError};
use trunkline_control::protocol::{
    Escapes, ExitStatus, ForwardRequest, Program, Reply, Request, SessionRequest, SshClient, Stdio,
    TerminalInfo, Tty,
};
use trunkline_control::terminal::escape::{Action, Available, EscapeFilter, Step};
use trunkline_control::terminal::modes::{self, WindowSize};
use trunkline_request::destination::Destination;
use trunkline_request::failure::{ErrorKind, Execution};
use trunkline_request::{LogLevel, LogLine, RESOLVING, not_shared};

use crate::OWN_ERROR;
use crate::backend::{Backend, host_request, must_share, runtime};
use crate::hints;
use crate::questions::Conversation;
use crate::ssh_args::{EscapeChar, SshArgs, TtyRequest, USAGE, UsageError};
use crate::terminal::command_line::{self, CommandLine};
use crate::terminal::interrupts::{Interrupts, status_of};
use crate::terminal::raw::{RawMode, interrupt_is_handled};

mod background;
mod echo;
mod keyboard;
mod log;

pub(crate) use background::IN_BACKGROUND;
use background::Launcher;
use echo::Echo;
use keyboard::{Keyboard, Line};
use log::Console;

/// Prints the text of `trunkline ssh --help`.
pub(crate) fn help() -> ExitCode {
    println!(
        "Runs ssh(1)'s command lines over shared connections. It takes ssh's arguments\n\
         and reads ssh's configuration:\n\n\
         {}\n\n\
         The options are those of ssh(1). --no-daemon in front of them makes a\n\
         connection for this command alone.",
        USAGE
            .replace("usage: ssh", "usage: trunkline ssh")
            .replace(" [-b bind_address]\n", "\n           [-b bind_address]\n")
    );
    ExitCode::SUCCESS
}

/// Removes a leading `--no-daemon` from ssh's arguments, which have no such option. Returns true if it was there.
pub(crate) fn take_no_daemon(arguments: &mut Vec<OsString>) -> bool {
    let is_there = arguments.first().is_some_and(|first| first == "--no-daemon");
    if is_there {
        arguments.remove(0);
    }
    is_there
}

/// Runs the command. Ends the process itself if a blocking read of the terminal would keep it.
pub(crate) fn main(arguments: Vec<OsString>, backend: Backend) -> ExitCode {
    start(arguments, backend, None)
}

/// Runs the process that stays after `-f`.
pub(crate) fn main_in_background(arguments: Vec<OsString>, backend: Backend) -> ExitCode {
    match Launcher::of_this_process() {
        Ok(launcher) => start(arguments, backend, Some(launcher)),
        Err(error) => {
            eprintln!("trunkline: {IN_BACKGROUND} is for trunkline itself: {error}");
            ExitCode::from(OWN_ERROR)
        }
    }
}

fn start(arguments: Vec<OsString>, backend: Backend, mut launcher: Option<Launcher>) -> ExitCode {
    let typed = arguments.clone();
    let args = match SshArgs::parse(arguments) {
        Ok(args) => args,
        // The installed ssh refuses it in its own words, or knows the option.
        Err(error) => {
            return match system_ssh_program() {
                Some(_) if must_share() => refuse("this line is for the system's ssh alone"),
                Some(_) => system_ssh(&typed),
                None => {
                    eprintln!("{error}");
                    ExitCode::from(UsageError::EXIT_STATUS)
                }
            };
        }
    };
    let off = std::env::var_os("TRUNKLINE_OFF").is_some_and(|value| value == "1");
    if off && must_share() {
        return refuse("TRUNKLINE_OFF=1 has the system's ssh connect");
    }
    if off {
        return system_ssh(&args.original);
    }
    let alone = args.needs_system_ssh();
    if alone.is_some() || !names_a_host(&args.destination) {
        return match alone.filter(|_| args.connects()) {
            Some(why) => alone_unless_strict(why, &args, &backend),
            None => system_ssh(&args.original),
        };
    }
    if args.background && launcher.is_none() {
        if args.command.is_none() && !args.no_command {
            eprintln!("Cannot fork into background without a command to execute.");
            return ExitCode::from(OWN_ERROR);
        }
        return background::launch(&args.original, &backend);
    }
    let mut console = match Console::open(args.log_file.as_deref(), args.log_level()) {
        Ok(console) => console,
        Err(complaint) => {
            eprintln!("{complaint}");
            // As in log.c, `log_redirect_stderr_to`.
            return ExitCode::FAILURE;
        }
    };
    let outcome = run(&args, &backend, &mut console, &mut launcher);
    console.raw = None;
    match outcome {
        Ok(Outcome::Code(code)) => ExitCode::from(code),
        Ok(Outcome::SystemSsh(options)) => {
            // Dropped now: a private daemon would be left without a parent that waits for its end.
            drop(backend);
            system_ssh(&[options, args.original].concat())
        }
        Err(error) => {
            console.log(LogLevel::Fatal, &format!("trunkline: {error:#}"));
            ExitCode::from(OWN_ERROR)
        }
    }
}

/// Runs the system's ssh, which would make a connection of its own, unless only shared connections are allowed.
fn alone_unless_strict(why: &str, args: &SshArgs, backend: &Backend) -> ExitCode {
    match backend.must_share(args) {
        Ok(false) => system_ssh(&args.original),
        Ok(true) => refuse(why),
        Err(error) => refuse(&format!("{why}; {error:#}")),
    }
}

/// Fails instead of making a connection of its own.
fn refuse(why: &str) -> ExitCode {
    eprintln!("trunkline: {}", not_shared(why));
    ExitCode::from(OWN_ERROR)
}

/// Returns true if this is a valid destination. If not, ssh has its own words for what is wrong.
fn names_a_host(destination: &OsStr) -> bool {
    let parsed = destination.to_str().map(str::parse::<Destination>);
    matches!(parsed, Some(Ok(_)))
}

enum Outcome {
    Code(u8),
    /// Options to put before the user's own.
    SystemSsh(Vec<OsString>),
}

fn run(
    args: &SshArgs,
    backend: &Backend,
    console: &mut Console,
    launcher: &mut Option<Launcher>,
) -> anyhow::Result<Outcome> {
    let streams = Streams::for_arguments(args)?;
    let mut called = None;
    // If there is nothing else to wait for, most commands can run to their end without a runtime.
    if !streams.stdin_is_terminal && launcher.is_none() {
        let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
        let passed = streams.to_pass([stdin.as_fd(), stdout.as_fd(), stderr.as_fd()]);
        if let Some(mut call) = backend.call(streams.request(args, console.level)?, &passed)? {
            let mut hostname = String::new();
            match until_it_talks(&mut call, &mut hostname) {
                Ok(Reply::Exit(ExitStatus::Exited(status))) => {
                    // The end of the process closes the call.
                    std::mem::forget(call);
                    return Ok(Outcome::Code(low_byte(status)));
                }
                other => called = Some((call, other, hostname)),
            }
        }
    }
    let runtime = runtime()?;
    let outcome = runtime.block_on(talk(args, backend, console, launcher, &streams, called));
    // A thread may still be reading the terminal. Also, the system releases memory faster than the process could.
    std::mem::forget(runtime);
    outcome
}

/// Skips `Begun`, keeps its host name, and returns the first reply that needs handling.
fn until_it_talks(call: &mut Call, hostname: &mut String) -> Result<Reply, ClientError> {
    loop {
        match call.wait() {
            Ok(Reply::Begun {
                tty: false,
                hostname: begun,
                ..
            }) => *hostname = begun,
            other => return other,
        }
    }
}

/// Runs a command to its end, or continues it after it was `called`.
async fn talk(
    args: &SshArgs,
    backend: &Backend,
    console: &mut Console,
    launcher: &mut Option<Launcher>,
    streams: &Streams,
    called: Option<(Call, Result<Reply, ClientError>, String)>,
) -> anyhow::Result<Outcome> {
    // Watched before the size is read, so that no change is missed.
    let resized = streams
        .stdin_is_terminal
        .then(|| signal(SignalKind::window_change()))
        .transpose()
        .context("waiting for SIGWINCH")?;
    let mut hostname = String::new();
    let daemon = match called {
        Some((call, reply, begun)) => {
            hostname = begun;
            Conversation::resume(reply, call.into_client()?, backend.questions())
        }
        None => {
            let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
            let passed = streams.to_pass([stdin.as_fd(), stdout.as_fd(), stderr.as_fd()]);
            let request = streams.request(args, console.level)?;
            Conversation::new(backend.ask_for(request, &passed).await?, backend.questions())
        }
    };
    let is_private = backend.is_private();
    let interrupts = is_private.then(Interrupts::watch).transpose()?;
    let is_quiet = console.level == Some(LogLevel::Quiet);
    let apart = backend.reason_not_asked();
    log_apart(console, apart.as_deref());
    let outcome = Talk {
        daemon: daemon.silent(is_quiet),
        apart,
        is_private,
        interrupts,
        console,
        launcher,
        hostname,
        args,
        framed_stdin: streams.kinds[0] == Stdio::Framed,
        escapes: Escapes::default(),
        resized,
        keyboard: Keyboard::default(),
        echo: Echo::default(),
        line: None,
    };
    outcome.run().await
}

/// Logs why no connection is shared with a daemon in another namespace.
fn log_apart(console: &mut Console, why: Option<&str>) {
    if let Some(why) = why {
        console.write(&LogLine {
            at: SystemTime::now(),
            level: LogLevel::Debug1,
            text: format!("{why}; this command makes a connection of its own"),
        });
    }
}

/// The standard streams of a session.
struct Streams {
    program: Program,
    kinds: [Stdio; 3],
    stdin_is_terminal: bool,
}

impl Streams {
    fn for_arguments(args: &SshArgs) -> anyhow::Result<Self> {
        let program = program(args)?;
        let kinds = [
            kind(std::io::stdin()),
            kind(std::io::stdout()),
            kind(std::io::stderr()),
        ];
        let stdin_is_terminal = kinds[0] == Stdio::Framed;
        let [stdin, stdout, stderr] = kinds;
        let stdin = match args.no_stdin || program == Program::Nothing {
            true => Stdio::Null,
            false => stdin,
        };
        // In the background, the terminal is not ours to write to.
        let output = |kind: Stdio| match kind {
            _ if args.background && program == Program::Nothing => Stdio::Null,
            Stdio::Framed if args.background => Stdio::Passed,
            kind => kind,
        };
        Ok(Self {
            kinds: [stdin, output(stdout), output(stderr)],
            program,
            stdin_is_terminal,
        })
    }

    /// Returns true if the session uses a terminal here.
    fn have_terminal(&self) -> bool {
        self.kinds[0] == Stdio::Framed
    }

    fn request(&self, args: &SshArgs, log_level: Option<LogLevel>) -> anyhow::Result<SessionRequest> {
        let destination = args.destination.to_str().context("the destination is not text")?;
        let host = host_request(destination, args.config_args.clone())?;
        Ok(SessionRequest {
            tty: match args.tty {
                TtyRequest::Auto => Tty::Configured,
                TtyRequest::No => Tty::No,
                TtyRequest::Yes => Tty::Yes,
                TtyRequest::Force => Tty::Force,
            },
            terminal: self.have_terminal().then(terminal),
            answers: true,
            ssh: Some(SshClient {
                background: args.background,
                log_level,
            }),
            ..SessionRequest::new(host, self.program.clone(), self.kinds)
        })
    }

    /// Returns the streams that are handed over.
    fn to_pass<'s>(&self, streams: [BorrowedFd<'s>; 3]) -> Vec<BorrowedFd<'s>> {
        let kinds = self.kinds.iter().zip(streams);
        kinds
            .filter_map(|(kind, fd)| (*kind == Stdio::Passed).then_some(fd))
            .collect()
    }
}

fn program(args: &SshArgs) -> anyhow::Result<Program> {
    if let Some((host, port)) = &args.stdio_forward {
        return Ok(Program::Stdio(host.clone(), *port));
    }
    Ok(match &args.command {
        _ if args.no_command => Program::Nothing,
        None => Program::Configured,
        Some(name) if args.subsystem => Program::Subsystem(
            name.to_str()
                .context("the subsystem's name is not text")?
                .to_owned(),
        ),
        Some(command) => Program::Exec(command.clone().into_vec()),
    })
}

/// Returns how one of our streams reaches the session: a terminal stays ours, everything else is handed over.
fn kind(stream: impl AsFd) -> Stdio {
    match rustix::fs::fstat(&stream) {
        // The parent has closed the stream.
        Err(_) => Stdio::Null,
        Ok(found) if crate::spool::is_null_device(&found) => Stdio::Null,
        Ok(found) if is_device(&found) && rustix::termios::isatty(&stream) => Stdio::Framed,
        Ok(_) => Stdio::Passed,
    }
}

fn is_device(found: &rustix::fs::Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice
}

fn terminal() -> TerminalInfo {
    let stdin = std::io::stdin();
    TerminalInfo {
        term: std::env::var("TERM").unwrap_or_default(),
        size: size(),
        modes: modes::read_from(&stdin),
    }
}

fn size() -> (u32, u32, u32, u32) {
    let WindowSize {
        cols,
        rows,
        xpixel,
        ypixel,
    } = WindowSize::read_from(std::io::stdin());
    (cols, rows, xpixel, ypixel)
}

/// Returns the low byte of a status, as ssh does.
fn low_byte(status: u32) -> u8 {
    (status & 0xff) as u8
}

/// A running session, as the client sees it.
struct Talk<'a> {
    daemon: Conversation<'a>,
    /// The reason why the daemon is not the shared one, if that runs elsewhere.
    apart: Option<String>,
    /// True for a private daemon: the session must end before this process does.
    is_private: bool,
    /// Set for private daemons, and after the first `~C`.
    interrupts: Option<Interrupts>,
    console: &'a mut Console,
    /// With `-f`: the process that waits until the session has started.
    launcher: &'a mut Option<Launcher>,
    /// The name connected to, once the session has started.
    hostname: String,
    args: &'a SshArgs,
    framed_stdin: bool,
    escapes: Escapes,
    /// SIGWINCH, if there is a window.
    resized: Option<Signal>,
    keyboard: Keyboard,
    echo: Echo,
    /// The line that is typed after `~C`, while the command line is open.
    line: Option<Line>,
}

impl Talk<'_> {
    async fn run(mut self) -> anyhow::Result<Outcome> {
        let (typed_tx, mut typed) = mpsc::channel::<Vec<u8>>(16);
        let mut typed_tx = Some(typed_tx);
        let mut escapes: Option<EscapeFilter> = None;
        loop {
            // Polled fairly: much output on a slow terminal must not delay Ctrl-C, nor a long paste its echo.
            tokio::select! {
                reply = self.daemon.next() => {
                    if let Ok(Reply::Begun { tty, escapes: configured, hostname, predict, .. }) = &reply {
                        if let Some(launcher) = self.launcher.take() {
                            launcher.release(self.args.no_command, self.console.logs_to_stderr()).await;
                        }
                        self.hostname.clone_from(hostname);
                        self.escapes = *configured;
                        if *tty {
                            self.console.raw = Some(RawMode::enter(std::io::stdin()));
                            escapes = Some(self.escape_filter());
                            self.echo.begin(*predict, &std::env::var("TERM").unwrap_or_default());
                        }
                        if let Some(typed) = typed_tx.take().filter(|_| self.framed_stdin) {
                            self.keyboard.read(typed);
                        }
                        continue;
                    }
                    if let Some(outcome) = self.handle(reply).await? {
                        return Ok(outcome);
                    }
                }
                Some(bytes) = typed.recv() => {
                    let Some(filter) = &mut escapes else {
                        self.daemon.send(&Request::Input(bytes)).await?;
                        continue;
                    };
                    // An empty read is the end of the terminal, or of an open line, and not typed input.
                    let steps = if bytes.is_empty() && self.line.is_none() {
                        vec![Step::Forward(bytes)]
                    } else {
                        filter.feed(&self.command_line(bytes).await?)
                    };
                    for step in steps {
                        if let Some(outcome) = self.step(step, &escapes).await? {
                            return Ok(outcome);
                        }
                    }
                }
                signal = wait_for_interrupt(&mut self.interrupts) => match self.line {
                    // As with ssh, Ctrl-C closes the line.
                    Some(_) if signal == SIGINT => self.close_line(),
                    // The daemon ends the session.
                    _ if !self.is_private => return Ok(self.die_of(signal)),
                    _ => return self.end_by(signal).await,
                },
                // Shows the prompt again.
                () = keyboard::wait_for_continue(&mut self.line) => eprint!("{}", command_line::PROMPT),
                () = wait_until_left(self.launcher) => return self.end_by(SIGTERM).await,
                shown = self.echo.time_passes() => shown.context(WRITING)?,
                () = next(&mut self.resized) => {
                    self.echo.resize().context(WRITING)?;
                    let (columns, rows, width, height) = size();
                    self.daemon.send(&Request::Resize(columns, rows, width, height)).await?;
                }
            }
        }
    }

    /// Ends the session, then this process, because of a signal.
    async fn end_by(mut self, signal: i32) -> anyhow::Result<Outcome> {
        self.echo.end();
        self.console.raw = None;
        self.daemon.withdraw();
        let ended = async {
            self.daemon.send(&Request::Terminate).await?;
            loop {
                match self.daemon.next().await? {
                    Reply::Exit(_) | Reply::Failed(_) | Reply::UseSystemSsh { .. } => {
                        return Ok::<_, ClientError>(());
                    }
                    Reply::Output(data) => drop(write_out(&mut std::io::stdout().lock(), &data)),
                    Reply::ErrorOutput(data) => drop(write_out(&mut std::io::stderr().lock(), &data)),
                    _ => {}
                }
            }
        };
        tokio::select! {
            _ = ended => {}
            // A second signal means that the user does not want to wait.
            _ = wait_for_interrupt(&mut self.interrupts) => {}
        }
        Ok(self.die_of(signal))
    }

    /// Ends this program by a signal, so that its caller sees which.
    fn die_of(&mut self, signal: i32) -> Outcome {
        self.echo.end();
        self.console.raw = None;
        let _ = emulate_default_handler(signal);
        Outcome::Code(status_of(signal))
    }

    fn escape_filter(&self) -> EscapeFilter {
        let escape = match self.args.escape {
            Some(EscapeChar::Byte(byte)) => Some(byte),
            Some(EscapeChar::None) => None,
            None => self.escapes.character,
        };
        let command_line = self.escapes.command_line;
        EscapeFilter::new(escape, Available::Own { command_line })
    }

    async fn handle(&mut self, reply: Result<Reply, ClientError>) -> anyhow::Result<Option<Outcome>> {
        if !matches!(reply, Ok(Reply::Output(_))) {
            self.echo.set_aside().context(WRITING)?;
        }
        let reply = match reply {
            Ok(reply) => reply,
            Err(ClientError::Gone) => {
                let has_begun = !self.hostname.is_empty();
                let what_is_known = match has_begun {
                    _ if self.args.no_command => "the daemon ended, and with it what was forwarded here",
                    true if self.console.raw.take().is_some() => {
                        // The cursor may be in the middle of the server's output.
                        eprintln!();
                        "the daemon ended, and this session with it"
                    }
                    true => {
                        "the daemon ended during the session; the command had started, and may still be running"
                    }
                    // The command may have been sent along with the login: only the daemon knew.
                    false => "the daemon ended before the session began; the command may have started",
                };
                self.console
                    .log(LogLevel::Fatal, &format!("trunkline: {what_is_known}"));
                return Ok(Some(Outcome::Code(OWN_ERROR)));
            }
            Err(error) => return Err(error.into()),
        };
        match reply {
            Reply::Notice(text) => self.console.log(LogLevel::Info, &text),
            Reply::Warning(text) => self.console.log(LogLevel::Error, &text),
            Reply::Banner(text) => self.console.tell(&text),
            Reply::Proxy(text) => self.console.answer(&text),
            Reply::LogLevel(level) => {
                self.console.level = Some(level);
                log_apart(self.console, self.apart.as_deref());
            }
            Reply::Log(line) => self.console.write(&line),
            Reply::LocalCommand(command) => {
                self.run_locally(&command).await;
                self.daemon.send(&Request::LocalCommandDone).await?;
            }
            // The end of a tunnel's output (-W). Its reader sees it when this program ends.
            Reply::Output(data) if data.is_empty() => return Ok(Some(Outcome::Code(0))),
            Reply::Output(data) => self.echo.output(&data).context(WRITING)?,
            Reply::ErrorOutput(data) => write_out(&mut std::io::stderr().lock(), &data)?,
            Reply::Exit(exit) => {
                self.say_closed();
                return Ok(Some(Outcome::Code(match exit {
                    ExitStatus::Exited(status) => low_byte(status),
                    // The reader of its output has had enough (`| head`).
                    ExitStatus::Signaled { signal: name, .. } if name == "PIPE" => OWN_ERROR,
                    ExitStatus::Signaled { signal: name, .. } => {
                        let text = format!("trunkline: the command was ended by SIG{name}");
                        self.console.log(LogLevel::Info, &text);
                        OWN_ERROR
                    }
                    ExitStatus::Unknown => OWN_ERROR,
                })));
            }
            Reply::Failed(failure) => {
                self.console.raw = None;
                let execution = failure.execution;
                let advice = match execution {
                    Execution::DidNotStart => String::new(),
                    execution => format!("; the command {execution}"),
                };
                let ours = || hints::append(format_args!("trunkline: {}{advice}", failure.message), &failure);
                // sshconnect.c logs this at error level and then exits.
                let level = match failure.kind {
                    ErrorKind::Network | ErrorKind::Timeout => LogLevel::Error,
                    _ => LogLevel::Fatal,
                };
                match failure.in_words_of_ssh {
                    Some(words) => {
                        if let Some(hint) = hints::hint(&failure.cause) {
                            self.console.log(LogLevel::Error, &format!("trunkline: {hint}"));
                        }
                        words.iter().for_each(|said| match said.level {
                            Some(level) => self.console.log(level, &said.text),
                            None => self.console.answer(&said.text),
                        });
                    }
                    None => self.console.log(level, &ours()),
                }
                return Ok(Some(Outcome::Code(OWN_ERROR)));
            }
            Reply::UseSystemSsh { reasons, options } => {
                tracing::debug!(?reasons, "handing over to the system's ssh");
                return Ok(Some(Outcome::SystemSsh(options)));
            }
            _ => {}
        }
        Ok(None)
    }

    /// Reports the end of an interactive session, as ssh does at the end of `client_loop`.
    fn say_closed(&mut self) {
        if self.console.raw.take().is_some() {
            self.console
                .tell(&format!("Connection to {} closed.", self.hostname));
        }
    }

    async fn step(&mut self, step: Step, escapes: &Option<EscapeFilter>) -> anyhow::Result<Option<Outcome>> {
        let action = match step {
            Step::Forward(bytes) => {
                let shown = self.echo.type_bytes(&bytes);
                self.daemon.send(&Request::Input(bytes)).await?;
                shown.context(WRITING)?;
                return Ok(None);
            }
            Step::Act(action) => action,
        };
        self.echo.set_aside().context(WRITING)?;
        if let Some(filter) = escapes {
            eprint!("{}", filter.echo(action));
        }
        match action {
            Action::Disconnect => {
                self.say_closed();
                return Ok(Some(Outcome::Code(OWN_ERROR)));
            }
            Action::Suspend => {
                if let Some(raw) = &self.console.raw {
                    raw.suspend().context("suspending")?;
                    let (columns, rows, width, height) = size();
                    self.daemon
                        .send(&Request::Resize(columns, rows, width, height))
                        .await?;
                }
            }
            Action::Break => self.daemon.send(&Request::Break(1000)).await?,
            Action::Rekey => self.daemon.send(&Request::Rekey).await?,
            Action::Help => {
                if let Some(filter) = escapes {
                    self.console.answer(&filter.help());
                }
            }
            Action::ListForwards => {
                self.daemon.send(&Request::Forward(ForwardRequest::List)).await?;
            }
            Action::CommandLine => {
                self.line = Some(self.keyboard.open_line()?);
                // From the first line on, since a key may be pressed just as a line is closed.
                match &mut self.interrupts {
                    Some(_) => interrupt_is_handled(),
                    none => *none = Some(Interrupts::watch_typing()?),
                }
                if let Some(raw) = &self.console.raw {
                    raw.pause();
                }
                eprint!("{}", command_line::PROMPT);
            }
            Action::Background if self.is_private => {
                self.console.answer(
                    "trunkline: this session ends with this process, which has no daemon to leave it to",
                );
            }
            Action::Background => return self.background().await.map(Some),
            // The echo is enough.
            Action::CommandLineDisabled | Action::Unavailable(_) => {}
        }
        Ok(None)
    }

    /// Feeds an open command line, runs its command once complete, and returns the remaining input.
    async fn command_line(&mut self, typed: Vec<u8>) -> anyhow::Result<Vec<u8>> {
        let Some(line) = &mut self.line else {
            return Ok(typed);
        };
        let Some((line, rest)) = line.take(typed) else {
            return Ok(Vec::new());
        };
        let local = self.escapes.local_commands;
        let asked = CommandLine::parse(&String::from_utf8_lossy(&line), local);
        if let CommandLine::Local(command) = &asked {
            // The command gets the keyboard.
            let lent = self.keyboard.lend().await;
            self.run_locally(command).await;
            drop(lent);
        }
        self.close_line();
        match asked {
            CommandLine::Empty | CommandLine::Local(_) => {}
            CommandLine::Help => self.console.answer(&CommandLine::help(local)),
            CommandLine::Invalid => self.console.answer("Invalid command."),
            CommandLine::Forward(request) => self.daemon.send(&Request::Forward(request)).await?,
        }
        Ok(rest)
    }

    /// Closes the command line, and resumes the session.
    fn close_line(&mut self) {
        self.line = None;
        // Output has mixed with the line that was typed.
        self.echo.lose_track();
        self.keyboard.close_line();
        // Interrupts so far were for the line, or for its command.
        if let Some(interrupts) = &mut self.interrupts {
            interrupts.forget();
        }
        if let Some(raw) = &self.console.raw {
            raw.resume();
        }
    }

    /// Runs a local command of the user to its end, in their shell and with our streams (`ssh_local_cmd`).
    async fn run_locally(&mut self, command: &str) {
        let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
        let shell = shell.unwrap_or_else(|| "/bin/sh".into());
        let running = tokio::process::Command::new(&shell)
            .arg("-c")
            .arg(command)
            .status();
        match running.await {
            // Ctrl-C goes to this process as well.
            Ok(status)
                if matches!(
                    status.signal().or(status.code()),
                    Some(SIGINT | SHELL_INTERRUPTED)
                ) =>
            {
                _ = timeout(Duration::from_secs(1), wait_for_interrupt(&mut self.interrupts)).await;
            }
            Ok(_) => {}
            Err(error) => {
                let text = format!("trunkline: running {}: {error}", shell.display());
                self.console.log(LogLevel::Error, &text);
            }
        }
    }

    /// Leaves the session to the daemon (`~&`).
    async fn background(&mut self) -> anyhow::Result<Outcome> {
        self.echo.end();
        self.console.raw = None;
        self.daemon.send(&Request::Background).await?;
        loop {
            let reply = self.daemon.next().await;
            if let Ok(Reply::Done) = reply {
                return Ok(Outcome::Code(0));
            }
            if let Some(outcome) = self.handle(reply).await? {
                return Ok(outcome);
            }
        }
    }
}

/// A shell's exit status after SIGINT has ended its command.
const SHELL_INTERRUPTED: i32 = 128 + SIGINT;

/// Waits until the process that started `-f` has gone before its session began.
async fn wait_until_left(launcher: &mut Option<Launcher>) {
    match launcher {
        Some(launcher) => launcher.wait_until_left().await,
        None => std::future::pending().await,
    }
}

async fn next(signals: &mut Option<Signal>) {
    match signals {
        Some(signals) => drop(signals.recv().await),
        None => std::future::pending().await,
    }
}

async fn wait_for_interrupt(interrupts: &mut Option<Interrupts>) -> i32 {
    match interrupts {
        Some(interrupts) => interrupts.next().await,
        None => std::future::pending().await,
    }
}

const WRITING: &str = "writing the session's output";

fn write_out(out: &mut impl std::io::Write, data: &[u8]) -> anyhow::Result<()> {
    out.write_all(data).and_then(|()| out.flush()).context(WRITING)
}

/// Executes the system's ssh with these arguments.
fn system_ssh(arguments: &[OsString]) -> ExitCode {
    let Some(program) = system_ssh_program() else {
        eprintln!(
            "trunkline: this needs the system's ssh, and there is none in PATH: install the OpenSSH client"
        );
        return ExitCode::from(OWN_ERROR);
    };
    let error = std::process::Command::new(&program)
        .args(arguments)
        .env(AS_SSH, "1")
        .exec();
    eprintln!("trunkline: running {}: {error}", program.display());
    ExitCode::from(OWN_ERROR)
}

/// Set for an ssh that runs in place of `trunkline ssh`.
const AS_SSH: &str = "TRUNKLINE_AS_SSH";

fn system_ssh_program() -> Option<PathBuf> {
    // That ssh, run here or to read the configuration, has run us. It is a script of that name, and would do so again.
    let is_behind_script = [AS_SSH, RESOLVING]
        .map(std::env::var_os)
        .iter()
        .any(Option::is_some);
    if is_behind_script {
        return find_ssh(|candidate| !is_script(candidate));
    }
    let named = std::env::var_os("TRUNKLINE_SSH").map(PathBuf::from);
    named.or_else(|| find_ssh(|_| true))
}

fn is_script(program: &Path) -> bool {
    let mut start = [0; 2];
    let read = std::fs::File::open(program).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == *b"#!"
}

/// Returns the first suitable ssh in PATH that is not this program under another name.
fn find_ssh(suits: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let ourselves = std::env::current_exe()
        .ok()
        .and_then(|path| path.canonicalize().ok());
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .filter(|directory| !directory.as_os_str().as_bytes().is_empty())
        .map(|directory| directory.join("ssh"))
        .find(|candidate| {
            candidate.is_file() && candidate.canonicalize().ok() != ourselves && suits(candidate)
        })
}
