//! A client's SFTP session, resumed on a new connection when its own is lost.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use trunkline::sftp::bridge::{Bridge, GiveUp, KnownPaths};
use trunkline::{
    ChannelReader, ChannelWriter, Command, Engine, Error, Execution, ExitStatus, Host, SessionControl,
    SessionParts,
};
use trunkline_request::Backoff;

use super::{Running, combine};
use crate::deadline::Deadline;
use crate::protocol::{Program, Reply};
use crate::session::events::{Events, Inputs};
use crate::session::streams::{Sink, Source, Streams, discard, drain};

/// Pauses between attempts to connect. Impatient clients wait for ten seconds.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(4));
/// The time limits of attempts. The network may fail again during a log-in, for which the pool waits long, since a
/// user may have to type a password.
const ATTEMPTS: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(160));
/// The number of sessions that the server may end in a row without answering anything new. It would end the next one,
/// too.
const MOST_ENDS: u32 = 3;
/// A client that has waited this long makes it worth checking that the connection is alive.
const LONG_WAIT: Duration = Duration::from_secs(1);
/// Bytes that may wait for the client before reading from the server stops.
const MOST_FOR_CLIENT: usize = 1024 * 1024;
/// Pieces that are read at once.
const PIECES: usize = 16;

/// A session that the server has been asked to start.
pub(crate) struct Started {
    pub(crate) parts: SessionParts,
    /// Resumes the session on another connection; `None` if it is not resumable.
    pub(crate) resumption: Option<Resumption>,
}

impl<E: Events> Running<'_, E> {
    /// Moves a session's data until it has ended and its output is written. A resumable session continues on another
    /// connection if its own is lost. The client is told that the session has started only when the server has started
    /// the command: until then questions may come up, and the client's terminal must be unchanged for them.
    pub(crate) async fn run(
        &self,
        started: Started,
        streams: Streams,
        inputs: impl Inputs,
    ) -> Result<ExitStatus, Error> {
        let Started { parts, resumption } = started;
        let ended = match resumption {
            Some(resumption) => Box::pin(resumption.carry(self, parts, streams, inputs)).await,
            None => self.pump(parts, streams, inputs).await,
        };
        self.observers.note_end(&ended);
        ended
    }
}

/// The settings for resuming a session.
pub(crate) struct Resumption {
    /// The command that starts it again.
    command: Command,
    /// The time limit for resuming.
    patience: Duration,
    /// Known paths of the server, shared with other sessions.
    paths: KnownPaths,
    /// True if a command that still runs on the server is left running when its session is closed.
    leaves_running: bool,
}

/// The state that the loops of a session share.
struct Shared {
    /// The lock is held while a packet is handled.
    bridge: Mutex<State>,
    /// Notified when the state has changed.
    changed: Notify,
}

struct State {
    bridge: Bridge,
    /// The client sends nothing more.
    has_client_ended: bool,
    /// The client's output is no longer read.
    is_unread: bool,
    /// There are no more sessions with the server.
    is_over: bool,
    failed: Option<GiveUp>,
}

impl Shared {
    fn new(paths: KnownPaths) -> Self {
        Self {
            bridge: Mutex::new(State {
                bridge: Bridge::new(paths),
                has_client_ended: false,
                is_unread: false,
                is_over: false,
                failed: None,
            }),
            changed: Notify::new(),
        }
    }

    /// Changes the state and wakes the loops.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let done = change(&mut self.bridge.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_waiters();
        done
    }

    /// Feeds the bridge. An error ends the session.
    fn feed(&self, feed: impl FnOnce(&mut Bridge) -> Result<(), GiveUp>) {
        self.change(|state| {
            if let Err(why) = feed(&mut state.bridge) {
                state.failed = Some(why);
            }
        });
    }

    /// Waits until `look` finds something in the state.
    async fn wait_until<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let found = look(&mut self.bridge.lock().unwrap_or_else(PoisonError::into_inner));
            match found {
                Some(found) => return found,
                None => changed.await,
            }
        }
    }
}

impl Resumption {
    /// Returns the settings for a session on this host, if it is an SFTP session that can be resumed.
    pub(crate) fn for_session(
        engine: &Engine,
        host: &Host,
        program: &Program,
        command: &Command,
        leaves_running: bool,
    ) -> Option<Self> {
        let is_sftp = matches!(program, Program::Subsystem(name) if name == "sftp");
        let patience = engine.resumes_sftp(host.config()).filter(|_| is_sftp)?;
        Some(Self {
            command: command.clone(),
            patience,
            paths: host.known_paths(),
            leaves_running,
        })
    }

    /// Moves the data of a resumable SFTP session.
    pub(super) async fn carry<E: Events>(
        self,
        running: &Running<'_, E>,
        parts: SessionParts,
        streams: Streams,
        inputs: impl Inputs,
    ) -> Result<ExitStatus, Error> {
        let name = running.name();
        let shared = Shared::new(self.paths.clone());
        let session = Sessions {
            shared: &shared,
            running,
            resumption: self,
        };
        let output = async {
            let written = write_client(&shared, streams.stdout, running.events).await;
            if written.is_err() {
                shared.change(|state| state.is_unread = true);
            }
            written
        };
        let sessions = async {
            let ended = session.run(parts, streams.stderr).await;
            shared.change(|state| state.is_over = true);
            ended
        };
        let (framed, frames) = mpsc::unbounded_channel();
        let mut whole = pin!(async { tokio::join!(biased; sessions, output) });
        tokio::select! {
            biased;
            (status, written) = &mut whole => combine(written, status),
            never = read_client(&shared, streams.stdin, frames) => match never {},
            error = Deadline::wait(running.deadline, name) => Err(error.with_execution(Execution::MayHaveStarted)),
            left = running.attend(inputs, framed, None) => {
                Err(left.error(name).with_execution(Execution::MayHaveStarted))
            }
        }
    }
}

/// Gives the bridge the client's data while it accepts more.
async fn read_client(
    shared: &Shared,
    mut source: Source,
    mut frames: mpsc::UnboundedReceiver<Vec<u8>>,
) -> Infallible {
    loop {
        shared
            .wait_until(|state| state.bridge.takes_from_client().then_some(()))
            .await;
        let data = source.next(&mut frames).await;
        if data.is_empty() {
            shared.change(|state| state.has_client_ended = true);
            return std::future::pending().await;
        }
        shared.feed(|bridge| bridge.handle_client(data));
    }
}

/// Writes the bridge's data for the client until no more can come.
async fn write_client(shared: &Shared, mut sink: Sink, events: &impl Events) -> io::Result<()> {
    let mut pieces = Vec::new();
    loop {
        let is_over = shared
            .wait_until(|state| {
                state.bridge.poll_client(&mut pieces);
                (!pieces.is_empty() || state.is_over).then_some(state.is_over)
            })
            .await;
        if pieces.is_empty() && is_over {
            return Ok(());
        }
        match &mut sink {
            Sink::Fd(output) => pieces = output.write_all(std::mem::take(&mut pieces)).await?,
            Sink::Frames => {
                for piece in pieces.drain(..) {
                    events.tell(Reply::Output(piece.to_vec())).await?;
                }
            }
            Sink::Null => pieces.clear(),
        }
        // There is room for more from the server.
        shared.changed.notify_waiters();
    }
}

/// The sessions with the server, one after the other.
struct Sessions<'a, E> {
    shared: &'a Shared,
    running: &'a Running<'a, E>,
    resumption: Resumption,
}

/// A client that waits for the server's answers.
struct Waiting<'a>(&'a SessionControl);

impl<'a> Waiting<'a> {
    fn new(control: &'a SessionControl) -> Self {
        control.awaits(true);
        Self(control)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.awaits(false);
    }
}

/// The losses so far.
struct Losses {
    /// The time of the first loss since the client's last answer.
    since: Option<Instant>,
    /// The answers that the client had by then.
    answered: u64,
    /// Sessions that the server has ended since then.
    ends: u32,
    /// Bytes of the lost sessions, to the server and from it.
    carried: (u64, u64),
}

impl<E: Events> Sessions<'_, E> {
    async fn run(self, first: SessionParts, mut stderr: Sink) -> Result<ExitStatus, Error> {
        let (mut parts, mut has_begun) = (first, false);
        let mut losses = Losses {
            since: None,
            answered: 0,
            ends: 0,
            carried: (0, 0),
        };
        loop {
            let control = parts.control.clone();
            let is_first = !has_begun;
            let ended = self.one(parts, &mut stderr, &mut has_begun).await;
            if let Some(why) = self.shared.change(|state| state.failed.take()) {
                control.close();
                return Err(self.to_error(why, is_first));
            }
            if self.shared.change(|state| state.is_unread) {
                control.close();
                return Ok(ExitStatus::Unknown);
            }
            let (needs_server, has_client_ended) = self
                .shared
                .change(|state| (state.bridge.needs_server(), state.has_client_ended));
            match &ended {
                Err(_) if !has_begun => return ended,
                // The server has ended a session that the client no longer needs.
                Ok(_) if !needs_server => return ended,
                Err(_) if !needs_server && has_client_ended => return Ok(ExitStatus::Exited(0)),
                _ => {}
            }
            self.lose(ended, &mut losses)?;
            // A client with nothing open and nothing awaited may never need a server again.
            let wants = |state: &mut State| {
                let needs_server = state.bridge.needs_server();
                (needs_server || state.has_client_ended).then_some(needs_server)
            };
            if !self.shared.wait_until(wants).await {
                return Ok(ExitStatus::Exited(0));
            }
            parts = Box::pin(self.again(&mut losses)).await?;
            self.count(&mut losses, &control, &parts.control);
        }
    }

    /// Runs one session to its end.
    async fn one(
        &self,
        parts: SessionParts,
        stderr: &mut Sink,
        has_begun: &mut bool,
    ) -> Result<ExitStatus, Error> {
        let SessionParts {
            stdin,
            mut stdout,
            stderr: mut errors,
            control,
            mut end,
        } = parts;
        let is_first = !*has_begun;
        self.shared.feed(Bridge::begin);
        let status = async {
            end.wait_for_start().await?;
            if !std::mem::replace(has_begun, true) {
                self.running.events.tell_begun(false).await;
            }
            end.wait().await
        };
        let output = self.read_server(&mut stdout, is_first);
        let error_output = async {
            let written = drain(
                &mut errors,
                stderr,
                self.running.events,
                Reply::ErrorOutput,
                |_| (),
            );
            if written.await.is_err() {
                discard(&mut errors).await;
            }
        };
        let whole = async { tokio::join!(biased; status, output, error_output).0 };
        let failed = self
            .shared
            .wait_until(|state| (state.failed.is_some() || state.is_unread).then_some(()));
        tokio::select! {
            biased;
            () = failed => Err(Error::Bug("the reason is told by the bridge")),
            ended = whole => ended,
            never = self.write_server(stdin) => match never {},
            never = self.watch(&control) => match never {},
        }
    }

    /// Makes a silent connection give up soon while the client waits for an answer.
    async fn watch(&self, control: &SessionControl) -> Infallible {
        loop {
            self.shared
                .wait_until(|state| (!state.bridge.is_idle()).then_some(()))
                .await;
            // Most answers come sooner, and the connection need not be told.
            tokio::time::sleep(LONG_WAIT).await;
            let waiting = Waiting::new(control);
            self.shared
                .wait_until(|state| state.bridge.is_idle().then_some(()))
                .await;
            drop(waiting);
        }
    }

    /// Gives the bridge the server's data while the client keeps up with its output.
    async fn read_server(&self, stdout: &mut ChannelReader, is_first: bool) {
        let mut pieces = Vec::new();
        let mut is_up = is_first;
        loop {
            let has_room =
                |state: &mut State| (state.bridge.queued_for_client() < MOST_FOR_CLIENT).then_some(());
            self.shared.wait_until(has_room).await;
            if stdout.chunks(&mut pieces, PIECES).await == 0 {
                return;
            }
            for piece in pieces.drain(..) {
                self.shared.feed(|bridge| bridge.handle_server(piece));
            }
            if !is_up && self.shared.change(|state| state.bridge.is_up()) {
                is_up = true;
                self.running.observers.note_resumption();
                let host = self.running.name();
                tracing::info!("an SFTP session on {host} was carried over to a new connection");
            }
        }
    }

    /// Sends the server the bridge's data, then EOF once the client has ended and has its answers.
    async fn write_server(&self, mut stdin: ChannelWriter) -> Infallible {
        let mut pieces = Vec::new();
        loop {
            let is_end = |state: &mut State| {
                state.bridge.poll_server(&mut pieces);
                let is_end = state.has_client_ended && state.bridge.is_idle();
                (is_end || !pieces.is_empty()).then_some(is_end)
            };
            let is_end = self.shared.wait_until(is_end).await;
            // There is room for more from the client.
            self.shared.changed.notify_waiters();
            for piece in pieces.drain(..) {
                if stdin.send(piece).await.is_err() {
                    // The session's end carries the reason.
                    return std::future::pending().await;
                }
            }
            if is_end {
                stdin.finish();
                return std::future::pending().await;
            }
        }
    }

    /// Notes a loss. Fails after too many.
    fn lose(&self, ended: Result<ExitStatus, Error>, losses: &mut Losses) -> Result<(), Error> {
        let answered = self.shared.change(|state| {
            state.bridge.lose();
            state.bridge.answer_count()
        });
        if std::mem::replace(&mut losses.answered, answered) < answered {
            (losses.ends, losses.since) = (0, None);
        }
        losses.since.get_or_insert_with(Instant::now);
        losses.ends += u32::from(ended.is_ok());
        if losses.ends >= MOST_ENDS {
            return Err(self.given_up("the server ends it again and again"));
        }
        let host = self.running.name();
        match ended {
            Ok(_) => tracing::info!("the server has ended an SFTP session on {host} that is in use"),
            Err(error) => tracing::info!("an SFTP session on {host} was lost: {error}"),
        }
        Ok(())
    }

    /// Starts another session.
    async fn again(&self, losses: &mut Losses) -> Result<SessionParts, Error> {
        let patience = self.resumption.patience;
        // A client that needed no server for a while has not waited yet.
        let since = *losses.since.get_or_insert_with(Instant::now);
        let mut last = String::new();
        for failures in 0.. {
            let attempt = async {
                tokio::time::sleep(PAUSES.pause_after(failures)).await;
                let mut session = self.running.host.start(&self.resumption.command).await?;
                session.wait_for_start().await?;
                Ok::<_, Error>(session)
            };
            let give_up = since + patience;
            let limit = give_up.min(Instant::now() + ATTEMPTS.pause_after(failures + 1));
            match tokio::time::timeout_at(limit, Box::pin(attempt)).await {
                Ok(Ok(session)) => {
                    if self.resumption.leaves_running {
                        session.control.leave_running();
                    }
                    return Ok(session.into_parts());
                }
                Ok(Err(error)) if error.may_pass() => last = format!(": {error}"),
                Ok(Err(error)) => return Err(self.given_up(&error.to_string())),
                Err(_) if limit < give_up => {}
                Err(_) => break,
            }
        }
        Err(self.given_up(&format!(
            "there was no new session within {} s{last}",
            patience.as_secs()
        )))
    }

    /// Adds the lost session's bytes to those of the next.
    fn count(&self, losses: &mut Losses, lost: &SessionControl, next: &SessionControl) {
        let (sent, received) = lost.bytes_carried();
        losses.carried.0 += sent;
        losses.carried.1 += received;
        let ((before, after), next) = (losses.carried, next.clone());
        self.running.observers.audit.carries(move || {
            let (sent, received) = next.bytes_carried();
            (before + sent, after + received)
        });
    }

    /// Converts the bridge's failure into an error of the session.
    fn to_error(&self, why: GiveUp, is_first: bool) -> Error {
        match why {
            GiveUp::Server(source) if is_first => Error::Sftp {
                host: self.running.name().to_owned(),
                source,
            },
            why => self.given_up(&why.to_string()),
        }
    }

    fn given_up(&self, why: &str) -> Error {
        self.running.observers.note_loss();
        let host = self.running.name().to_owned();
        let error = Error::SftpLost {
            host,
            why: why.to_owned(),
        };
        error.with_execution(Execution::MayHaveStarted)
    }
}
