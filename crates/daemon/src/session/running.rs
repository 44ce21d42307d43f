//! A session that has started: the traffic between its client and its channel until both have ended.

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
use crate::protocol::{Reply, Request};

/// The time that a command gets to end, after a signal or when its output is no longer read, before its session is
/// closed.
const GRACE: Duration = Duration::from_secs(2);

/// sshd sends the end of a command and of its session in one packet, or in two in quick succession.
const BURST: Duration = Duration::from_millis(10);

/// A terminal's default end-of-file character, sent when the user leaves a session.
const END_OF_TRANSMISSION: u8 = 4;

/// A session on a host, and the terms on which it runs.
pub(crate) struct Running<'a, E> {
    pub(crate) host: &'a Host,
    /// The way to its client.
    pub(crate) events: &'a E,
    pub(crate) observers: &'a Observers<'a>,
    pub(crate) deadline: Option<Deadline>,
    /// True if it continues after its client leaves; `None` if it never does.
    pub(crate) detached: Option<&'a AtomicBool>,
    /// Its forwardings, if its client may ask for more.
    pub(crate) forwards: Option<&'a Forwards<'a>>,
    /// Ends the session if the terminal that was asked for is refused.
    pub(crate) needs_terminal: bool,
}

impl<'a, E: Events> Running<'a, E> {
    /// Returns a session with the default terms.
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

    /// Waits, for `-N`, until the client leaves or the connection is lost.
    pub(crate) async fn hold(&self, inputs: impl Inputs) -> Result<Reply, Error> {
        self.events.tell_begun(false).await;
        let (framed, _frames) = mpsc::unbounded_channel();
        // Held, so that a connection without tunnels at the moment does not count as idle.
        let connection = self.host.hold();
        let mut apart = self.host.watch_busy();
        let mut attended = pin!(self.attend(inputs, framed, None));
        loop {
            tokio::select! {
                error = connection.wait_for_end() => return Err(error),
                _ = &mut attended => return Ok(Reply::Exit(ExitStatus::Exited(0))),
                Ok(()) = apart.changed() => {
                    let apart = *apart.borrow_and_update();
                    let connections = self.host.lanes().into_iter().map(|lane| lane.report).collect();
                    let _ = self.events.tell(Reply::Placement { apart, connections }).await;
                }
            }
        }
    }

    /// Serves the client's requests about its session until the client leaves or ends the session. Its forwarded
    /// connections then end too, as when an ssh is killed. Framed input goes to `framed`, which is unbounded since
    /// people type it.
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

    /// Returns the host as it was typed.
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
    /// Notified when the session has ended.
    ended: Notify,
}

/// The results of a session, of writing its output, and of its error output.
type Whole = (Result<ExitStatus, Error>, io::Result<()>, ());

impl<E: Events> Pump<'_, E> {
    async fn output(&self, stdout: &mut ChannelReader, sink: Sink) -> io::Result<()> {
        let Running {
            events, observers, ..
        } = self.running;
        let note = |piece: &_| observers.note_output(piece);
        let written = drain_to_end(stdout, sink, *events, Reply::Output, note).await;
        if written.is_err() && self.running.is_detached() {
            // The client has left the session running: no one reads its output.
            discard(stdout).await;
            return Ok(());
        }
        if written.is_err() {
            // As ssh does: the command is told that no one reads, and dies of SIGPIPE at its next write.
            self.control.end_of_write();
            if tokio::time::timeout(GRACE, self.ended.notified()).await.is_err() {
                self.control.close();
            }
        }
        written
    }

    async fn error_output(&self, stderr: &mut ChannelReader, sink: Sink) {
        let written = drain_to_end(stderr, sink, self.running.events, Reply::ErrorOutput, |_| ());
        // A closed standard error neither ends the command nor blocks it.
        if written.await.is_err() {
            discard(stderr).await;
        }
    }

    /// Waits for the session's end. Tells the client when the session has started, records how the command ended, and
    /// reports that to clients that want to know.
    async fn status(&self, end: &mut SessionEnd) -> Result<ExitStatus, Error> {
        end.wait_for_start().await?;
        let lacks_terminal = self.control.is_terminal_refused();
        if lacks_terminal && self.running.needs_terminal {
            // ssh ends here, whatever the command does.
            self.control.close();
            return Err(Error::terminal_refused(self.running.name()));
        }
        self.running.events.tell_begun(lacks_terminal).await;
        let Some(exit) = end.wait_for_exit().await else {
            return end.wait().await;
        };
        self.running.observers.audit.note_exit(&exit);
        let mut over = pin!(end.wait());
        match tokio::time::timeout(BURST, &mut over).await {
            Ok(ended) => ended,
            Err(_) => {
                let _ = self.running.events.tell(Reply::Exited(exit)).await;
                over.await
            }
        }
    }

    /// Closes the session of a client that has left. The command notices the close.
    fn abandon(&self) -> Error {
        let execution = match self.control.withdraw() {
            true => Execution::DidNotStart,
            false => Execution::MayHaveStarted,
        };
        self.control.close();
        let left = Departure::Gone.error(self.running.name());
        left.with_execution(execution)
    }

    /// Ends the session because of `stopped`, with a signal first.
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
            // The command's own result is the better answer, unless the reason is that time was up.
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

/// Returns the end of a session whose streams have ended.
fn combine(written: io::Result<()>, status: Result<ExitStatus, Error>) -> Result<ExitStatus, Error> {
    let status = status?;
    // A reader that has left had enough. A full disk loses output.
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(unwritten(error, &status)),
        _ => Ok(status),
    }
}

/// Returns the error for output that could not be written after a session with this status.
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
