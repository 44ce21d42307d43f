//! Sessions: a command, a shell or a subsystem on the server, with its streams (RFC 4254 section 6).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::oneshot;
use trunkline_proto::{ChannelRequest, TerminalSize};
use trunkline_request::ExitStatus;

use crate::connection::channel::{
    ChannelParts, ChannelReader, ChannelShared, ChannelTerms, ChannelWriter, Op, Ops, gone_error, shut_down,
};
use crate::connection::lease::Lease;
use crate::error::{Error, ServerRequest};
use crate::metrics::{Metrics, Opening};

/// The program of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Program {
    Exec(Vec<u8>),
    Shell,
    Subsystem(String),
    /// Given later by [`SessionControl::request`].
    Later,
}

/// A terminal for a session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pty {
    /// TERM on the server.
    pub term: String,
    /// Its size.
    pub size: TerminalSize,
    /// Modes, encoded as in RFC 4254 section 8; empty for the server's defaults.
    pub modes: Vec<u8>,
}

/// A command on a server, with its options.
///
/// ```
/// use trunkline::Command;
///
/// let command = Command::exec("tail -F /var/log/syslog").env("LC_ALL", "C");
/// ```
#[derive(Debug, Clone)]
pub struct Command {
    program: Program,
    env: Vec<(String, Vec<u8>)>,
    pty: Option<Pty>,
    agent_forwarding: bool,
    merges_stderr: bool,
    verified_only: bool,
    left: Arc<AtomicBool>,
}

impl Command {
    fn new(program: Program) -> Self {
        Self {
            program,
            env: Vec::new(),
            pty: None,
            agent_forwarding: false,
            merges_stderr: false,
            verified_only: false,
            left: Arc::default(),
        }
    }

    /// Returns whether it may have been sent to a server although its start was not awaited to the end.
    pub fn may_have_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Creates a command line that the user's login shell on the server interprets.
    pub fn exec(command: impl Into<Vec<u8>>) -> Self {
        Self::new(Program::Exec(command.into()))
    }

    /// Creates the user's login shell.
    pub fn shell() -> Self {
        Self::new(Program::Shell)
    }

    /// Creates a subsystem, such as "sftp".
    pub fn subsystem(name: impl Into<String>) -> Self {
        Self::new(Program::Subsystem(name.into()))
    }

    /// Returns whether it is a session of SFTP.
    pub(crate) fn is_sftp(&self) -> bool {
        matches!(&self.program, Program::Subsystem(name) if name == "sftp")
    }

    /// Creates a session without a program.
    pub(crate) fn later() -> Self {
        Self::new(Program::Later)
    }

    /// Adds an environment variable. Servers accept those that their AcceptEnv names and silently ignore others.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Runs it on a terminal.
    #[must_use]
    pub fn pty(mut self, pty: Pty) -> Self {
        self.pty = Some(pty);
        self
    }

    /// Lets it use this side's agent. Starting it fails if the host's ForwardAgent does not allow that.
    ///
    /// sshd then lends the agent to every later session on the same connection. To run commands without it, reach the
    /// host with ForwardAgent off, which uses another connection.
    #[must_use]
    pub fn agent_forwarding(mut self, forward: bool) -> Self {
        self.agent_forwarding = forward;
        self
    }

    /// Makes standard error a part of standard output, in the order in which the server sends them.
    #[must_use]
    pub fn merge_stderr(mut self, merge: bool) -> Self {
        self.merges_stderr = merge;
        self
    }

    pub(crate) fn merges_stderr(&self) -> bool {
        self.merges_stderr
    }

    /// Forbids it to start on a server that StrictHostKeyChecking no accepted unverified (ExitOnForwardFailure).
    #[must_use]
    pub(crate) fn verified_only(mut self, only: bool) -> Self {
        self.verified_only = only;
        self
    }

    pub(crate) fn is_verified_only(&self) -> bool {
        self.verified_only
    }

    /// Returns whether it requests the agent.
    pub fn forwards_agent(&self) -> bool {
        self.agent_forwarding
    }

    /// Returns the length in bytes of the longest text in its requests.
    pub(crate) fn longest_text(&self) -> usize {
        let requests = self.requests();
        requests.iter().map(ChannelRequest::text_len).max().unwrap_or(0)
    }

    /// Returns whether the session starts something at once.
    pub(crate) fn starts(&self) -> bool {
        self.program != Program::Later
    }

    /// Returns the requests in the order in which OpenSSH's client sends them.
    pub(crate) fn requests(&self) -> Vec<ChannelRequest> {
        let mut requests = Vec::with_capacity(2 + self.env.len());
        if self.agent_forwarding {
            requests.push(ChannelRequest::AgentForwarding);
        }
        if let Some(Pty { term, size, modes }) = self.pty.clone() {
            requests.push(ChannelRequest::Pty { term, size, modes });
        }
        requests.extend(self.env.iter().map(|(name, value)| ChannelRequest::Env {
            name: name.clone(),
            value: value.clone(),
        }));
        requests.extend(match &self.program {
            Program::Exec(command) => Some(ChannelRequest::Exec(command.clone())),
            Program::Shell => Some(ChannelRequest::Shell),
            Program::Subsystem(name) => Some(ChannelRequest::Subsystem(name.clone())),
            Program::Later => None,
        });
        requests
    }

    /// Returns its name for a refusal.
    pub(crate) fn what(&self) -> ServerRequest {
        match &self.program {
            Program::Exec(_) => ServerRequest::Exec,
            Program::Shell => ServerRequest::Shell,
            Program::Subsystem(name) => ServerRequest::Subsystem(name.clone()),
            Program::Later => ServerRequest::Session,
        }
    }
}

/// The result of a finished command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Its exit status.
    pub status: ExitStatus,
    /// All of its standard output.
    pub stdout: Vec<u8>,
    /// All of its standard error.
    pub stderr: Vec<u8>,
}

/// A running session. Dropping it, or closing it with its [`SessionControl`], sends SIGHUP to a command that still runs
/// and closes the channel. OpenSSH's servers up to 9.7 deliver signals to all users' commands but root's, and none to
/// those of a forced command. Such a command notices only when it next reads or writes.
#[derive(Debug)]
pub struct Session {
    /// Its standard input. [`tokio::io::AsyncWriteExt::shutdown`] sends end-of-file.
    pub stdin: ChannelWriter,
    /// Its standard output.
    pub stdout: ChannelReader,
    /// Its standard error; silent on a terminal.
    pub stderr: ChannelReader,
    /// Signals, requests and closing.
    pub control: SessionControl,
    end: SessionEnd,
}

impl Session {
    pub(crate) fn new(ops: Ops, parts: ChannelParts) -> Self {
        let ChannelParts {
            shared,
            writer,
            stdout,
            stderr,
            started,
            exited,
            done,
        } = parts;
        let end = SessionEnd {
            started: Some(started),
            timed: None,
            refused: None,
            exited: Exit::Awaited(exited),
            done,
        };
        Self {
            stdin: writer,
            stdout,
            stderr,
            control: SessionControl { shared, ops },
            end,
        }
    }

    /// Starts a command in it, where nothing runs yet.
    pub(crate) fn begin(&mut self, command: &Command, terms: ChannelTerms) {
        let SessionControl { shared, ops } = &self.control;
        let (begin, started) = begin(shared, command, None, terms);
        let _ = ops.send(begin);
        self.end.started = Some(started);
    }

    /// Records the time of its start in the metrics.
    pub(crate) fn time(&mut self, metrics: Arc<Metrics>, opening: Opening, asked: Instant) {
        self.end.timed = Some(Timed {
            metrics,
            opening,
            asked,
        });
    }

    /// Waits until the server has confirmed the start. Reading and writing need not wait for that: data written at once
    /// may even arrive with the command.
    ///
    /// # Errors
    /// The server refused it, or the connection was lost.
    pub async fn wait_for_start(&mut self) -> Result<(), Error> {
        self.end.wait_for_start().await
    }

    /// Waits for the end. Read the streams to their ends first: this takes no data from them.
    ///
    /// # Errors
    /// The connection was lost, or the server refused it: [`Error::execution`] says whether it may have run.
    pub async fn wait(&mut self) -> Result<ExitStatus, Error> {
        self.end.wait().await
    }

    /// Sends `input`, reads all output, and waits for the end.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub async fn output(self, input: Option<Bytes>) -> Result<Output, Error> {
        let output = self.output_within(input, usize::MAX, |_| ()).await?;
        output.ok_or(Error::Bug("output without a limit was over it"))
    }

    /// Like [`Self::output`], but returns `None` as soon as one output stream exceeds `most` bytes. Passes standard
    /// output to `seen` as it arrives.
    pub(crate) async fn output_within(
        self,
        input: Option<Bytes>,
        most: usize,
        seen: impl FnMut(&[u8]),
    ) -> Result<Option<Output>, Error> {
        let Self {
            mut stdin,
            mut stdout,
            mut stderr,
            control: _control,
            mut end,
        } = self;
        let feed = async move {
            // A command that does not read its input is not an error.
            let _ = stdin.send(input.unwrap_or_default()).await;
            stdin.finish();
            Ok(stdin)
        };
        let ended = async { Ok(end.wait().await) };
        let collected = tokio::try_join!(
            feed,
            collect(&mut stdout, most, seen),
            collect(&mut stderr, most, |_| ()),
            ended
        );
        let Ok((_stdin, stdout, stderr, status)) = collected else {
            return Ok(None);
        };
        Ok(Some(Output {
            status: status?,
            stdout,
            stderr,
        }))
    }

    /// Returns the parts, for use by different tasks.
    pub fn into_parts(self) -> SessionParts {
        let Self {
            stdin,
            stdout,
            stderr,
            control,
            end,
        } = self;
        SessionParts {
            stdin,
            stdout,
            stderr,
            control,
            end,
        }
    }
}

/// The parts of a [`Session`].
#[derive(Debug)]
pub struct SessionParts {
    /// Standard input.
    pub stdin: ChannelWriter,
    /// Standard output.
    pub stdout: ChannelReader,
    /// Standard error.
    pub stderr: ChannelReader,
    /// Signals and size changes.
    pub control: SessionControl,
    /// Start and end.
    pub end: SessionEnd,
}

/// The start and the end of a session.
#[derive(Debug)]
pub struct SessionEnd {
    started: Option<oneshot::Receiver<Result<(), Error>>>,
    /// The timer of the start, until it has started.
    timed: Option<Timed>,
    /// The error of the start, once it is known.
    refused: Option<Error>,
    exited: Exit,
    done: oneshot::Receiver<Result<ExitStatus, Error>>,
}

/// The end of a command.
#[derive(Debug)]
enum Exit {
    Awaited(oneshot::Receiver<ExitStatus>),
    Known(ExitStatus),
    /// The server closed the channel without an exit status.
    Never,
}

/// A start that is being awaited. If this is dropped before [`Self::finish`], the session is withdrawn, or its command
/// marked as possibly sent.
pub(crate) struct Starting<'a> {
    command: &'a Command,
    control: SessionControl,
    is_awaited: bool,
}

impl<'a> Starting<'a> {
    pub(crate) fn new(command: &'a Command, session: &Session) -> Self {
        Self {
            command,
            control: session.control.clone(),
            is_awaited: true,
        }
    }

    /// Ends the wait; the caller has the outcome.
    pub(crate) fn finish(mut self) {
        self.is_awaited = false;
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        if self.is_awaited && !self.control.withdraw() {
            self.command.left.store(true, Ordering::Release);
        }
    }
}

#[derive(Debug)]
struct Timed {
    metrics: Arc<Metrics>,
    opening: Opening,
    asked: Instant,
}

impl SessionEnd {
    /// As [`Session::wait_for_start`].
    ///
    /// # Errors
    /// As [`Session::wait_for_start`].
    pub async fn wait_for_start(&mut self) -> Result<(), Error> {
        if let Some(started) = &mut self.started {
            let outcome = started.await.unwrap_or_else(|_| Err(gone_error()));
            self.started = None;
            if let Some(timed) = self.timed.take().filter(|_| outcome.is_ok()) {
                timed.metrics.session(timed.opening, timed.asked.elapsed());
            }
            self.refused = outcome.err();
        }
        match &self.refused {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// As [`Session::wait`].
    ///
    /// # Errors
    /// As [`Session::wait`].
    pub async fn wait(&mut self) -> Result<ExitStatus, Error> {
        // If the server closed a session opened ahead before it got its command, only the start has an error.
        self.wait_for_start().await?;
        (&mut self.done).await.unwrap_or_else(|_| Err(gone_error()))
    }

    /// Waits until the server reports how the command ended. The session may end later: another process with the
    /// command's output keeps it open. Returns `None` if the session ends without a report. Cancel-safe.
    pub async fn wait_for_exit(&mut self) -> Option<ExitStatus> {
        if let Exit::Awaited(exited) = &mut self.exited {
            self.exited = exited.await.map_or(Exit::Never, Exit::Known);
        }
        match &self.exited {
            Exit::Known(exit) => Some(exit.clone()),
            Exit::Awaited(_) | Exit::Never => None,
        }
    }
}

/// More output than was allowed.
struct TooMuch;

async fn collect(
    reader: &mut ChannelReader,
    most: usize,
    mut seen: impl FnMut(&[u8]),
) -> Result<Vec<u8>, TooMuch> {
    let mut all = Vec::new();
    while let Some(chunk) = reader.chunk().await {
        if chunk.len() > most - all.len() {
            return Err(TooMuch);
        }
        seen(&chunk);
        all.extend_from_slice(&chunk);
    }
    Ok(all)
}

/// Signals and terminal changes for a session.
#[derive(Debug, Clone)]
pub struct SessionControl {
    shared: Arc<ChannelShared>,
    ops: Ops,
}

impl SessionControl {
    fn send(&self, request: ChannelRequest) {
        self.ask(request, None);
    }

    fn ask(&self, request: ChannelRequest, reply: Option<oneshot::Sender<bool>>) {
        let _ = self.ops.send(Op::Request {
            channel: self.shared.clone(),
            request,
            reply,
        });
    }

    /// Sends any session request, at once. The returned future waits for the answer. It is `false` on failure, at the
    /// session's end, and for requests that want no reply.
    ///
    /// A refused exec, shell or subsystem ends the session.
    pub fn request(&self, request: ChannelRequest) -> impl Future<Output = bool> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        self.ask(request, Some(reply));
        async move { answer.await.unwrap_or(false) }
    }

    /// Returns whether the server has ended its output. Unread data may remain.
    pub fn has_heard_end(&self) -> bool {
        self.shared.is_complete()
    }

    /// Sends a signal, by name without "SIG". OpenSSH's servers since 7.9 take ABRT, ALRM, FPE, HUP, ILL, INT, KILL,
    /// PIPE, QUIT, SEGV, TERM, USR1 and USR2.
    pub fn signal(&self, name: &str) {
        self.send(ChannelRequest::Signal(name.to_owned()));
    }

    /// Sends the terminal's new size.
    pub fn resize(&self, size: TerminalSize) {
        self.send(ChannelRequest::WindowChange(size));
    }

    /// Sends a break (RFC 4335) of `milliseconds`, and returns whether the server performed it.
    pub async fn send_break(&self, milliseconds: u32) -> bool {
        self.request(ChannelRequest::Break(milliseconds)).await
    }

    /// Withdraws the session if nothing of it was sent. Returns `false` if it is too late for that.
    pub fn withdraw(&self) -> bool {
        self.shared.withdraw()
    }

    /// Returns whether the session still waits for a connection to the right server: nothing of it was sent.
    pub fn is_waiting(&self) -> bool {
        self.shared.id().is_none()
    }

    /// Checks that the connection is alive: returns `true` once the server has answered, `false` if it is lost.
    pub(crate) async fn ping(&self) -> bool {
        let (reply, answer) = oneshot::channel();
        let _ = self.ops.send(Op::Ping { reply });
        answer.await.is_ok()
    }

    /// Counts one more (`true`) or one less waiting for answers: a silent connection is given up sooner.
    pub fn awaits(&self, awaited: bool) {
        let _ = self.ops.send(Op::Awaited(awaited));
    }

    /// Retires this connection.
    pub(crate) fn doubt(&self) {
        let _ = self.ops.send(Op::Doubt);
    }

    /// Returns whether the server refused a requested terminal; known once the session has started. The command runs
    /// without one.
    pub fn is_terminal_refused(&self) -> bool {
        self.shared.is_terminal_refused()
    }

    /// Reports that the command's output is no longer read. OpenSSH's servers then let it die of SIGPIPE; others ignore
    /// this.
    pub fn end_of_write(&self) {
        self.send(ChannelRequest::EndOfWrite);
    }

    /// Lets the command continue, without a signal, when the session is closed or dropped, as ssh(1) does.
    pub fn leave_running(&self) {
        self.shared.leave_running();
    }

    /// Makes standard error a part of standard output, or not, from what comes next on.
    pub fn merge_stderr(&self, merge: bool) {
        self.shared.merge_stderr(merge);
    }

    /// Returns the bytes of input handed over so far, and of output and error output received.
    pub fn bytes_carried(&self) -> (u64, u64) {
        self.shared.bytes_carried()
    }

    /// Closes the session now. A command that still runs gets SIGHUP first.
    pub fn close(&self) {
        let _ = self.ops.send(Op::Close {
            channel: self.shared.clone(),
        });
    }
}

/// A session channel opened ahead, ready for a command.
#[derive(Debug)]
pub(crate) struct SpareSession {
    parts: ChannelParts,
    ops: Ops,
}

impl SpareSession {
    pub(crate) fn new(ops: Ops, parts: ChannelParts) -> Self {
        Self { parts, ops }
    }

    /// Waits until the server has opened it.
    pub(crate) async fn wait_until_open(&mut self) -> Result<(), Error> {
        (&mut self.parts.started)
            .await
            .unwrap_or_else(|_| Err(shut_down()))
    }

    /// As [`SessionControl::withdraw`].
    pub(crate) fn withdraw(&self) -> bool {
        self.parts.shared.withdraw()
    }

    /// Sends a request that no server knows and must refuse (RFC 4254 section 5.4); returns `true` once it has
    /// answered.
    pub(crate) fn ask(&self) -> impl Future<Output = bool> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        let _ = self.ops.send(Op::Request {
            channel: self.parts.shared.clone(),
            request: ChannelRequest::Other {
                name: "keepalive@openssh.com".into(),
                wants_reply: true,
                body: Bytes::new(),
            },
            reply: Some(reply),
        });
        async move { answer.await.is_ok() }
    }

    /// Returns whether the server has closed it, or the connection is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.parts.shared.is_closed() || self.ops.is_closed()
    }

    /// Starts a command in it; returns the operation for the connection.
    pub(crate) fn begin(mut self, command: &Command, lease: Lease, terms: ChannelTerms) -> (Op, Session) {
        let (begin, started) = begin(&self.parts.shared, command, Some(lease), terms);
        self.parts.started = started;
        (begin, Session::new(self.ops, self.parts))
    }
}

/// Starts a command in a session that is open, which has a place already where no `lease` is given; and the server's answer.
fn begin(
    channel: &Arc<ChannelShared>,
    command: &Command,
    lease: Option<Lease>,
    terms: ChannelTerms,
) -> (Op, oneshot::Receiver<Result<(), Error>>) {
    let (started, answer) = oneshot::channel();
    channel.merge_stderr(command.merges_stderr());
    let begin = Op::Begin {
        channel: channel.clone(),
        requests: command.requests(),
        what: command.what(),
        started,
        lease,
        verified_only: command.is_verified_only(),
        terms,
    };
    (begin, answer)
}
