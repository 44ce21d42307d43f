//! Requests to a session or a tunnel, and its start and end.

use std::future::Future as _;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use trunkline::{ChannelCloser, ChannelEnd, Error, ExitStatus, SessionControl, SessionEnd, TerminalSize};
use trunkline_control::protocol::Request;
use trunkline_request::failure::Failure;

use crate::conversation::{self, Course};
use crate::recorded::Recorded;

/// Sends requests to a session. Can be cloned.
#[derive(Debug, Clone)]
pub struct Control {
    told: Recipient,
    course: Arc<Course>,
}

#[derive(Debug, Clone)]
pub(crate) enum Recipient {
    Engine(SessionControl),
    Tunnel(ChannelCloser),
    Daemon(conversation::Control),
}

impl Control {
    pub(crate) fn new(told: Recipient, course: &Arc<Course>) -> Self {
        Self {
            told,
            course: course.clone(),
        }
    }

    pub(crate) fn of_daemon(control: conversation::Control, course: &Arc<Course>) -> Self {
        Self::new(Recipient::Daemon(control), course)
    }

    /// Sends a signal, by name without "SIG". Tunnels ignore it.
    pub fn signal(&self, name: &str) {
        match &self.told {
            Recipient::Engine(control) => control.signal(name),
            Recipient::Tunnel(_) => {}
            Recipient::Daemon(control) => control.send(Request::Signal(name.to_owned())),
        }
    }

    /// Reports the terminal's new size.
    pub fn resize(&self, size: TerminalSize) {
        match &self.told {
            Recipient::Engine(control) => control.resize(size),
            Recipient::Tunnel(_) => {}
            Recipient::Daemon(control) => {
                control.send(Request::Resize(size.columns, size.rows, size.width, size.height));
            }
        }
    }

    /// Makes standard error a part of standard output, or not, from what comes next on. Not over the daemon.
    pub fn merge_stderr(&self, merge: bool) {
        if let Recipient::Engine(control) = &self.told {
            control.merge_stderr(merge);
        }
    }

    /// Ends it: the command is sent SIGTERM, and the channel is closed after two seconds. With this process's engine,
    /// the channel is closed at once.
    pub fn terminate(&self) {
        match &self.told {
            Recipient::Engine(control) => {
                control.signal("TERM");
                control.close();
            }
            Recipient::Tunnel(closer) => closer.close(),
            Recipient::Daemon(control) => control.send(Request::Terminate),
        }
    }

    /// Leaves the session to the daemon, which continues it without this program and discards further output. Returns
    /// false for this process's engine, which ends with the process.
    pub async fn leave(&self) -> bool {
        let Recipient::Daemon(control) = &self.told else {
            return false;
        };
        control.send(Request::Background);
        tokio::select! {
            biased;
            _ = self.course.background.wait() => true,
            _ = self.course.end.wait() => false,
        }
    }

    /// Closes it now.
    pub fn close(&self) {
        match &self.told {
            Recipient::Engine(control) => control.close(),
            Recipient::Tunnel(closer) => closer.close(),
            Recipient::Daemon(control) => control.close(),
        }
    }

    /// Returns true if the server has ended its output, even if that has not all been read.
    pub fn has_heard_end(&self) -> bool {
        match &self.told {
            Recipient::Engine(control) => control.has_heard_end(),
            Recipient::Tunnel(closer) => closer.has_heard_end(),
            Recipient::Daemon(_) => self.course.output.get().copied().unwrap_or(false),
        }
    }

    /// Returns true if nothing of it was sent to the server. Unknown, thus false, for the daemon's sessions.
    pub(crate) fn is_waiting(&self) -> bool {
        match &self.told {
            Recipient::Engine(control) => control.is_waiting(),
            Recipient::Tunnel(_) | Recipient::Daemon(_) => false,
        }
    }

    /// Reports that the command's output is no longer read. The daemon notices by itself.
    pub(crate) fn end_of_write(&self) {
        if let Recipient::Engine(control) = &self.told {
            control.end_of_write();
        }
    }

    /// Waits for the end of the output. Returns true if the server has ended it.
    pub(crate) async fn output_ended(&self) -> bool {
        *self.course.output.wait().await
    }
}

/// A session's start and end, which can be asked for repeatedly.
#[derive(Debug)]
pub struct End {
    source: Source,
    course: Arc<Course>,
    started: Option<Result<(), Failure>>,
    outcome: Option<Result<ExitStatus, Failure>>,
}

#[derive(Debug)]
pub(crate) enum Source {
    Engine(EngineEnd),
    Tunnel {
        end: ChannelEnd,
        /// The tunnel's record in the audit trail, which ends with it.
        _recorded: Recorded,
    },
    Daemon(conversation::End),
}

/// The start and the end of a session of this process's engine, and its audit record.
#[derive(Debug)]
pub(crate) struct EngineEnd {
    end: SessionEnd,
    recorded: Recorded,
}

impl EngineEnd {
    pub(crate) fn new(end: SessionEnd, recorded: Recorded) -> Self {
        Self { end, recorded }
    }

    async fn wait_for_start(&mut self) -> Result<(), Error> {
        self.end.wait_for_start().await
    }

    async fn wait(&mut self) -> Result<ExitStatus, Error> {
        let ended = self.end.wait().await;
        self.note_exit();
        if let Some(entry) = self.recorded.take() {
            entry.end_session(&ended);
        }
        ended
    }

    /// Records how the command ended, if the server has reported it by now.
    fn note_exit(&mut self) {
        let Some(entry) = &self.recorded else { return };
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(Some(exit)) = pin!(self.end.wait_for_exit()).poll(&mut context) {
            entry.note_exit(&exit);
        }
    }
}

impl Drop for EngineEnd {
    /// Records the status even if the program, which has read all output, did not ask for it.
    fn drop(&mut self) {
        if self.recorded.is_some() {
            let mut context = Context::from_waker(Waker::noop());
            let _ = pin!(self.wait()).poll(&mut context);
        }
        // Another process may still have the command's output.
        self.note_exit();
    }
}

impl End {
    pub(crate) fn new(source: Source, course: Arc<Course>) -> Self {
        Self {
            source,
            course,
            started: None,
            outcome: None,
        }
    }

    pub(crate) fn of_daemon(end: conversation::End) -> Self {
        let course = end.course().clone();
        Self::new(Source::Daemon(end), course)
    }

    /// Returns the end of a session whose start has been waited for.
    pub(crate) fn of_begun(end: conversation::End) -> Self {
        Self {
            started: Some(Ok(())),
            ..Self::of_daemon(end)
        }
    }

    /// Waits until the server has confirmed the start. Cancel-safe.
    ///
    /// # Errors
    /// The reason why it did not start.
    pub async fn wait_for_start(&mut self) -> Result<(), Failure> {
        if let Some(started) = &self.started {
            return started.clone();
        }
        let started = match &mut self.source {
            Source::Engine(end) => end.wait_for_start().await.map_err(Failure::from),
            Source::Daemon(end) => end.wait_for_start().await,
            Source::Tunnel { .. } => Ok(()),
        };
        self.started.insert(started).clone()
    }

    /// Waits until the command's end is known. That may precede the session's end, which another process with the
    /// command's output delays. Cancel-safe.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub async fn wait_for_exit(&mut self) -> Result<ExitStatus, Failure> {
        if self.outcome.is_none()
            && let Source::Engine(EngineEnd { end, recorded }) = &mut self.source
            && let Some(exit) = end.wait_for_exit().await
        {
            if let Some(entry) = recorded {
                entry.note_exit(&exit);
            }
            return Ok(exit);
        }
        let course = self.course.clone();
        tokio::select! {
            biased;
            ended = self.wait() => ended,
            exit = course.exit.wait() => Ok(exit.clone()),
        }
    }

    /// Waits for the end. Cancel-safe.
    ///
    /// # Errors
    /// The reason why it ended otherwise, and whether the command may have run.
    pub async fn wait(&mut self) -> Result<ExitStatus, Failure> {
        if let Some(outcome) = &self.outcome {
            return outcome.clone();
        }
        let outcome = match &mut self.source {
            Source::Engine(end) => end.wait().await.map_err(Failure::from),
            Source::Daemon(end) => end.wait().await,
            Source::Tunnel { end, .. } => match end.wait().await {
                Ok(()) => Err(Failure::closed_locally("tunnel").after_start()),
                Err(error) => Err(error.into()),
            },
        };
        self.course.output_ended(outcome.is_ok());
        self.outcome.insert(outcome).clone()
    }
}
