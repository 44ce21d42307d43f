//! Sessions and tunnels, in this process's engine or the daemon.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use trunkline::config::HostConfig;
use trunkline::{ChannelStream, Command, Error, Execution, ExitStatus, Pty, SessionParts};
use trunkline_audit::Subject;
use trunkline_control::protocol;
use trunkline_request::failure::Failure;

use crate::control::{Control, End, EngineEnd, Recipient, Source};
use crate::conversation::Course;
use crate::recorded::Recorded;
use crate::route::{Route, Routed, RoutedInput};
use crate::stream::{Reader, Writer};

/// The time limit for a session to report its command's state, when it is closed because its time is up.
const LAST_WORDS: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// The login shell, or its replacement in ssh_config (RemoteCommand).
    Shell,
    /// A command line, for the login shell.
    Exec(Vec<u8>),
    Subsystem(String),
}

/// The program of a session, and its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionOptions {
    pub program: Program,
    /// Variables, which override those that ssh_config sends.
    pub env: Vec<(String, Vec<u8>)>,
    pub pty: Option<Pty>,
    /// True to forward the agent. Only for hosts that the program has described itself; otherwise ssh_config decides.
    pub agent_forwarding: bool,
    /// True to make standard error a part of standard output, in the order in which the server sends them. Not over the daemon.
    pub merges_stderr: bool,
}

impl SessionOptions {
    /// Returns the options of a program without a terminal.
    pub fn new(program: Program) -> Self {
        Self {
            program,
            env: Vec::new(),
            pty: None,
            agent_forwarding: false,
            merges_stderr: false,
        }
    }

    /// Returns the subject for the audit trail.
    pub(crate) fn subject(&self, host: &HostConfig) -> Subject {
        let program = match &self.program {
            Program::Shell => protocol::Program::Configured,
            Program::Exec(line) => protocol::Program::Exec(line.clone()),
            Program::Subsystem(name) => protocol::Program::Subsystem(name.clone()),
        };
        Subject::session(&host.original_host, &program).on_terminal(self.pty.is_some())
    }

    /// Converts the options for the engine.
    pub(crate) fn command(&self) -> Command {
        let command = match &self.program {
            Program::Shell => Command::shell(),
            Program::Exec(line) => Command::exec(line.clone()),
            Program::Subsystem(name) => Command::subsystem(name),
        };
        let command = self
            .env
            .iter()
            .fold(command, |command, (name, value)| command.env(name, value.clone()));
        let command = command
            .agent_forwarding(self.agent_forwarding)
            .merge_stderr(self.merges_stderr);
        match &self.pty {
            Some(pty) => command.pty(pty.clone()),
            None => command,
        }
    }
}

/// A requested session.
pub struct Session {
    /// The program's standard input.
    pub stdin: Input,
    /// The program's standard output.
    pub stdout: Output,
    /// The program's standard error.
    pub stderr: Output,
    /// Sends requests to the session.
    pub control: Control,
    pub end: End,
}

/// The source of a session's input.
pub enum Input {
    Program(Writer),
    /// Another source.
    Routed(RoutedInput),
}

/// The target of a session's output.
pub enum Output {
    Program(Reader),
    /// Another target.
    Routed(Routed),
}

impl Session {
    /// Returns a session of this process's engine, with its streams routed by `routes`.
    pub(crate) fn of_engine(
        parts: SessionParts,
        routes: [Route; 3],
        recorded: Recorded,
    ) -> Result<Self, Failure> {
        let SessionParts {
            stdin,
            stdout,
            stderr,
            control,
            end,
        } = parts;
        if let Some(entry) = &recorded {
            entry.count_session(&control);
        }
        let course = Arc::new(Course::default());
        let [input, output, error_output] = routes;
        let routed = |route, reader| {
            Ok::<_, Failure>(match route {
                Route::Pipe => Output::Program(Reader::from(reader)),
                route => Output::Routed(Routed::of_engine(route, reader)?),
            })
        };
        Ok(Self {
            stdin: match input {
                Route::Pipe => Input::Program(Writer::from(stdin)),
                route => Input::Routed(RoutedInput::of_engine(route, stdin)?),
            },
            stdout: routed(output, stdout)?,
            stderr: routed(error_output, stderr)?,
            control: Control::new(Recipient::Engine(control), &course),
            end: End::new(Source::Engine(EngineEnd::new(end, recorded)), course),
        })
    }

    /// Gives the command `input`, reads all its output and waits for its end. Closes the session after the deadline.
    pub(crate) async fn run(self, input: Bytes, deadline: Option<(Instant, Duration)>) -> Ran {
        let Self {
            stdin,
            stdout,
            stderr,
            control,
            mut end,
        } = self;
        let mut ran = Ran::default();
        let feed = async {
            match stdin {
                Input::Program(mut stdin) => {
                    // A command that does not read its input is not an error. The input stays open while it runs.
                    let _ = stdin.send(input).await;
                    stdin.finish().await;
                    let _held = stdin;
                    std::future::pending().await
                }
                Input::Routed(routed) => routed.carry().await,
            }
        };
        let work = async {
            let streams =
                async { tokio::join!(collect(stdout, &mut ran.stdout), collect(stderr, &mut ran.stderr)) };
            tokio::join!(streams, end.wait()).1
        };
        let whole = async {
            tokio::select! {
                biased;
                status = work => status,
                never = feed => match never {},
            }
        };
        let ended = match deadline {
            Some((at, limit)) => tokio::time::timeout_at(at, whole).await.map_err(|_| limit),
            None => Ok(whole.await),
        };
        ran.outcome = match ended {
            Ok(outcome) => outcome,
            Err(limit) => Err(out_of_time(&control, &mut end, limit).await),
        };
        ran
    }
}

async fn collect(output: Output, all: &mut Vec<Bytes>) {
    if let Output::Program(mut reader) = output {
        while reader.chunks(all).await > 0 {}
    }
}

/// Closes a session whose time is up, and returns how far its command got.
async fn out_of_time(control: &Control, end: &mut End, limit: Duration) -> Failure {
    let error = timed_out(limit);
    if control.is_waiting() {
        return error.into();
    }
    control.close();
    let execution = match tokio::time::timeout(LAST_WORDS, end.wait()).await {
        Ok(Ok(_)) => Execution::Finished,
        Ok(Err(_)) | Err(_) => Execution::MayHaveStarted,
    };
    error.with_execution(execution).into()
}

/// Returns the error for a command whose time is up.
pub(crate) fn timed_out(limit: Duration) -> Error {
    Error::TimeUp {
        command: "the command".into(),
        after: limit,
    }
}

/// The result of a command.
#[derive(Debug)]
pub struct Ran {
    /// The exit status, or the reason why it is not known.
    pub outcome: Result<ExitStatus, Failure>,
    /// The standard output.
    pub stdout: Vec<Bytes>,
    /// The standard error.
    pub stderr: Vec<Bytes>,
}

impl Default for Ran {
    fn default() -> Self {
        Self::from(Failure::closed_locally("session"))
    }
}

/// The result of a command that was not started.
impl From<Failure> for Ran {
    fn from(failure: Failure) -> Self {
        Self {
            outcome: Err(failure),
            stdout: Vec::new(),
            stderr: Vec::new(),
        }
    }
}

/// A connection through the server.
#[derive(Debug)]
pub struct Tunnel {
    /// The direction from the server.
    pub reader: Reader,
    /// The direction to the server.
    pub writer: Writer,
    pub control: Control,
    /// The tunnel's end. A tunnel has always started, and has no exit status.
    pub end: End,
}

impl Tunnel {
    /// Returns a tunnel of this process's engine.
    pub(crate) fn of_engine(stream: ChannelStream, recorded: Recorded) -> Self {
        let course = Arc::new(Course::default());
        let closer = stream.closer();
        if let Some(entry) = &recorded {
            let counting = closer.clone();
            entry.carries(move || counting.bytes_carried());
        }
        let control = Control::new(Recipient::Tunnel(closer), &course);
        let (reader, writer, end) = stream.into_parts();
        let end = Source::Tunnel {
            end,
            _recorded: recorded,
        };
        Self {
            reader: Reader::from(reader),
            writer: Writer::from(writer),
            control,
            end: End::new(end, course),
        }
    }
}
