//! A session that has begun: what its client and its channel send each other, until both have ended.

pub(crate) mod carry;

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use trunkline::{
    ChannelReader, Error, Execution, ExitStatus, Host, SessionControl, SessionEnd, SessionParts, TerminalSize,
};

use super::asked::Departure;
use super::events::{Events, Inputs};
use super::forwards::Forwards;
use super::observers::Observers;
use super::streams::{Sink, Streams, discard, drain_to_end};
use crate::deadline::Deadline;
use crate::protocol::{Exit, Reply, Request};

/// A command whose output nobody takes any more, or that was sent a signal, gets this long to end before its session is
/// closed.
const GRACE: Duration = Duration::from_secs(2);

/// sshd tells a command's end and its session's in one packet, or in two that follow each other.
const BURST: Duration = Duration::from_millis(10);

/// The end-of-file character that a terminal has by default, for a session whose user has left it.
const END_OF_TRANSMISSION: u8 = 4;

/// A session on a host, and on what terms it runs.
pub(crate) struct Running<'a, E> {
    pub(crate) host: &'a Host,
    /// The way to its client.
    pub(crate) events: &'a E,
    pub(crate) observers: &'a Observers<'a>,
    pub(crate) deadline: Option<Deadline>,
    /// True if it continues when its client leaves; never, by default.
    pub(crate) detached: Option<&'a AtomicBool>,
    /// Its forwardings, where its client may ask for more.
    pub(crate) forwards: Option<&'a Forwards<'a>>,
    /// It ends without the terminal that was asked for.
    pub(crate) needs_terminal: bool,
}

impl<'a, E: Events> Running<'a, E> {
    /// A session on no terms of its own.
    pub(crate) fn new(host: &'a Host, events: &'a E, observers: &'a Observers<'a>) -> Self {
        Self {
            host,
            events,
            observers,
            deadline: None,
            detached: None,
            forwards: None,
            needs_terminal: false,
        }
    }

    async fn pump(
        &self,
        parts: SessionParts,
        streams: Streams,
        inputs: impl Inputs,
    ) -> Result<ExitStatus, Error> {
        let SessionParts {
            stdin,
            mut stdout,
            mut stderr,
            control,
            mut end,
        } = parts;
        let pump = Pump {
            running: self,
            control: &control,
            ended: Notify::new(),
        };
        let (framed, frames) = mpsc::unbounded_channel();
        let mut whole = pin!(async {
            tokio::join!(
                biased;
                async {
                    let status = pump.status(&mut end).await;
                    pump.ended.notify_one();
                    status
                },
                pump.output(&mut stdout, streams.stdout),
                pump.error_output(&mut stderr, streams.stderr),
            )
        });
        let stopped = tokio::select! {
            biased;
            (status, written, ()) = &mut whole => return combine(written, status),
            never = streams.stdin.feed(stdin, frames, &control, self.host) => match never {},
            error = Deadline::wait(self.deadline, self.name()) => error,
            left = self.attend(inputs, framed, Some(&control)) => match left {
                Departure::Gone => return Err(pump.abandon()),
                Departure::Terminated => left.error(self.name()),
            },
        };
        pump.stop(stopped, whole).await
    }

    /// Waits while only forwardings are wanted (`-N`): until the client leaves, or the connection is lost.
    pub(crate) async fn hold(&self, inputs: impl Inputs) -> Result<Reply, Error> {
        self.events.tell_begun(false).await;
        let (framed, _frames) = mpsc::unbounded_channel();
        // Held: what is used for nothing but tunnels that may come is not idle.
        let connection = self.host.hold();
        let mut apart = self.host.apart();
        let mut attended = pin!(self.attend(inputs, framed, None));
        loop {
            tokio::select! {
                error = connection.ended() => return Err(error),
                _ = &mut attended => return Ok(Reply::Exit(Exit::Status(0))),
                Ok(()) = apart.changed() => {
                    let apart = *apart.borrow_and_update();
                    let connections = self.host.lanes().into_iter().map(|lane| lane.report).collect();
                    let _ = self.events.tell(Reply::Placement { apart, connections }).await;
                }
            }
        }
    }

    /// Serves what the client says about its session, until it leaves or wants the session to end: what its forwardings
    /// carry ends with that, as with an ssh that is killed. Framed input goes to `framed`, which has no bound: it is what
    /// somebody types.
    async fn attend(
        &self,
        mut inputs: impl Inputs,
        framed: mpsc::UnboundedSender<Vec<u8>>,
        control: Option<&SessionControl>,
    ) -> Departure {
        let departure = loop {
            match inputs.next().await {
                None => break Departure::Gone,
                Some(Request::Terminate) => break Departure::Terminated,
                Some(request) => self.serve(request, &framed, control).await,
            }
        };
        if departure == Departure::Gone && self.is_detached() {
            std::future::pending::<()>().await;
        }
        if let Some(forwards) = self.forwards {
            forwards.abort().await;
        }
        departure
    }

    async fn serve(
        &self,
        request: Request,
        framed: &mpsc::UnboundedSender<Vec<u8>>,
        control: Option<&SessionControl>,
    ) {
        match (request, control) {
            (Request::Input(data), _) => {
                let _ = framed.send(data);
            }
            (Request::Resize(columns, rows, width, height), Some(control)) => {
                control.resize(terminal_size((columns, rows, width, height)));
                self.observers.note_size(columns, rows);
            }
            (Request::Signal(name), Some(control)) => control.signal(&name),
            (Request::Break(milliseconds), Some(control)) => {
                control.send_break(milliseconds).await;
            }
            (Request::Rekey, _) => self.host.connection().rekey(),
            (Request::Forward(request), _) => {
                if let Some(forwards) = self.forwards {
                    forwards.handle(request).await;
                }
            }
            (Request::Background, _) => {
                if let Some(forwards) = self.forwards {
                    forwards.stop_listening().await;
                }
                let _ = framed.send(vec![END_OF_TRANSMISSION]);
                let _ = self.events.tell(Reply::Done).await;
            }
            _ => {}
        }
    }

    /// The host, as it was typed.
    fn name(&self) -> &str {
        &self.host.config().original_host
    }

    fn is_detached(&self) -> bool {
        self.detached
            .is_some_and(|detached| detached.load(Ordering::Relaxed))
    }
}

/// Moves a session's data over its one channel.
struct Pump<'a, E> {
    running: &'a Running<'a, E>,
    control: &'a SessionControl,
    /// Nothing more comes of the session.
    ended: Notify,
}

/// The ends of a session, of the writing of its output, and of its error output's.
type Whole = (Result<ExitStatus, Error>, io::Result<()>, ());

impl<E: Events> Pump<'_, E> {
    async fn output(&self, stdout: &mut ChannelReader, sink: Sink) -> io::Result<()> {
        let Running {
            events, observers, ..
        } = self.running;
        let note = |piece: &_| observers.note_output(piece);
        let written = drain_to_end(stdout, sink, *events, Reply::Output, note).await;
        if written.is_err() && self.running.is_detached() {
            // The client has left the session to itself: nobody reads, and nobody minds.
            discard(stdout).await;
            return Ok(());
        }
        if written.is_err() {
            // As ssh: the command is told that nobody reads, and dies of SIGPIPE at its next write.
            self.control.end_of_write();
            if tokio::time::timeout(GRACE, self.ended.notified()).await.is_err() {
                self.control.close();
            }
        }
        written
    }

    async fn error_output(&self, stderr: &mut ChannelReader, sink: Sink) {
        let written = drain_to_end(stderr, sink, self.running.events, Reply::ErrorOutput, |_| ());
        // A closed standard error is not a reason to end a command, nor to let it wait for room to write.
        if written.await.is_err() {
            discard(stderr).await;
        }
    }

    /// Waits for the session's end. On the way the client learns that it has begun, and it is recorded how the command has
    /// ended, and told to who wants to know.
    async fn status(&self, end: &mut SessionEnd) -> Result<ExitStatus, Error> {
        end.started().await?;
        let lacks_terminal = self.control.is_terminal_refused();
        if lacks_terminal && self.running.needs_terminal {
            // ssh ends then, whatever becomes of the command.
            self.control.close();
            return Err(Error::terminal_refused(self.running.name()));
        }
        self.running.events.tell_begun(lacks_terminal).await;
        let Some(exit) = end.exited().await else {
            return end.wait().await;
        };
        self.running.observers.audit.note_exit(&exit);
        let mut over = pin!(end.wait());
        match tokio::time::timeout(BURST, &mut over).await {
            Ok(ended) => ended,
            Err(_) => {
                let _ = self.running.events.tell(Reply::Exited(as_told(exit))).await;
                over.await
            }
        }
    }

    /// Leaves the session, whose client is gone: closing tells the command.
    fn abandon(&self) -> Error {
        let execution = match self.control.withdraw() {
            true => Execution::DidNotStart,
            false => Execution::MayHaveStarted,
        };
        self.control.close();
        let left = Departure::Gone.error(self.running.name());
        left.with_execution(execution)
    }

    /// Ends the session, because it was `stopped`: by a signal first.
    async fn stop(
        &self,
        stopped: Error,
        mut whole: Pin<&mut impl Future<Output = Whole>>,
    ) -> Result<ExitStatus, Error> {
        if self.control.withdraw() {
            return Err(stopped.with_execution(Execution::DidNotStart));
        }
        self.control.signal("TERM");
        let timed_out = matches!(stopped, Error::TimeUp { .. });
        match tokio::time::timeout(GRACE, &mut whole).await {
            // How it ended is the better answer, but for the one that time was up.
            Ok((status, written, ())) if !timed_out => return combine(written, status),
            Ok((Ok(ExitStatus::Exited(_)), _, ())) => return Err(stopped.with_execution(Execution::Finished)),
            Ok((Err(error), _, ())) => return Err(stopped.with_execution(error.execution())),
            Ok(_) => return Err(stopped.with_execution(Execution::MayHaveStarted)),
            Err(_) => {}
        }
        self.control.close();
        let execution = match tokio::time::timeout(GRACE, whole).await {
            Ok((Err(error), _, ())) => error.execution(),
            Ok((Ok(_), _, ())) => Execution::Finished,
            Err(_) => Execution::MayHaveStarted,
        };
        Err(stopped.with_execution(execution))
    }
}

/// A command's end in the protocol's words.
pub(crate) fn as_told(exit: ExitStatus) -> Exit {
    match exit {
        ExitStatus::Exited(status) => Exit::Status(status),
        ExitStatus::Signaled { signal, core_dumped } => Exit::Signal(signal, core_dumped),
        ExitStatus::Unknown => Exit::Unknown,
    }
}

/// The end of a session whose streams have ended.
fn combine(written: io::Result<()>, status: Result<ExitStatus, Error>) -> Result<ExitStatus, Error> {
    let status = status?;
    // A reader that has left had enough; a full disk is a loss that nobody asked for.
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(unwritten(error, &status)),
        _ => Ok(status),
    }
}

/// Output that could not be written, after a session that has ended so.
fn unwritten(error: io::Error, status: &ExitStatus) -> Error {
    let execution = match status {
        ExitStatus::Exited(_) => Execution::Finished,
        _ => Execution::MayHaveStarted,
    };
    let doing = "writing the command's output".into();
    let cause = Arc::new(Error::Local {
        doing,
        source: Arc::new(error),
    });
    Error::Lost { execution, cause }
}

pub(crate) fn terminal_size((columns, rows, width, height): (u32, u32, u32, u32)) -> TerminalSize {
    TerminalSize {
        columns,
        rows,
        width,
        height,
    }
}
