//! An SFTP session of a client, carried over to a new connection when its own is lost.

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

/// Pauses between attempts to connect. Clients that are impatient wait for ten seconds.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(4));
/// How long an attempt may take: the network may be lost again in the middle of a log-in, for which the pool has much patience,
/// since somebody may have to type a password.
const ATTEMPTS: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(160));
/// A server that ends so many sessions in a row, each before it has answered anything new, would end the next one, too.
const MOST_ENDS: u32 = 3;
/// A client that has waited for so long is worth asking whether the connection is alive.
const LONG_WAIT: Duration = Duration::from_secs(1);
/// Bytes that may wait for the client before nothing more is read from the server.
const MOST_FOR_CLIENT: usize = 1024 * 1024;
/// Pieces that are read at once.
const PIECES: usize = 16;

/// A session that the server has been asked to start.
pub(crate) struct Started {
    pub(crate) parts: SessionParts,
    /// Carries it over to another connection, if that is to be done.
    pub(crate) resumption: Option<Resumption>,
}

impl<E: Events> Running<'_, E> {
    /// Moves a session's data until it has ended and its output is written; where its connection is lost, over another one, if
    /// that is to be done. The client is told that the session has begun when the server has started the command, and not
    /// before: until then questions may come up, for which the client's terminal must be as it was.
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

/// How a session is carried over.
pub(crate) struct Resumption {
    /// The command that starts it again.
    command: Command,
    /// For how long that is tried.
    patience: Duration,
    /// The knowledge of the server's paths, which other sessions share.
    paths: KnownPaths,
    /// A command that still runs on the server is left to itself when its session is closed.
    leaves_running: bool,
}

/// The state that the loops of a session share.
struct Shared {
    /// Guarded for as long as a packet takes.
    bridge: Mutex<State>,
    /// Something of it has changed.
    changed: Notify,
}

struct State {
    bridge: Bridge,
    /// The client sends nothing more.
    has_client_ended: bool,
    /// Nobody reads what the client is sent.
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

    /// Does something to the state, of which the loops take notice.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let done = change(&mut self.bridge.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_waiters();
        done
    }

    /// Feeds the bridge; what goes wrong is the session's end.
    fn feed(&self, feed: impl FnOnce(&mut Bridge) -> Result<(), GiveUp>) {
        self.change(|state| {
            if let Err(why) = feed(&mut state.bridge) {
                state.failed = Some(why);
            }
        });
    }

    /// Waits until the state gives something.
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
    /// For a session on this host, if it is SFTP's and to be carried over.
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

    /// Moves the data of a client's SFTP session that is carried over.
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

/// Gives the bridge what the client sends, as far as it takes it.
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

/// Writes what the bridge has for the client, until there is nothing more to come.
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
        // The server may go on.
        shared.changed.notify_waiters();
    }
}

/// The sessions with the server, one after the other.
struct Sessions<'a, E> {
    shared: &'a Shared,
    running: &'a Running<'a, E>,
    resumption: Resumption,
}

/// Somebody who waits for the server's answers.
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

/// The outcome of a session that was lost.
struct Losses {
    /// When the client last had an answer, as far as a loss has shown it since.
    since: Option<Instant>,
    /// Answers that the client had then.
    answered: u64,
    /// Sessions that the server has ended since.
    ends: u32,
    /// Bytes of those that were lost, to the server and from it.
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
                // The server has ended what the client has no use for any more.
                Ok(_) if !needs_server => return ended,
                Err(_) if !needs_server && has_client_ended => return Ok(ExitStatus::Exited(0)),
                _ => {}
            }
            self.lose(ended, &mut losses)?;
            // A client that has nothing open and waits for nothing may not need a server again.
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

    /// Runs one session until its end.
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
            end.started().await?;
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

    /// Has a silent connection given up soon while the client waits for an answer.
    async fn watch(&self, control: &SessionControl) -> Infallible {
        loop {
            self.shared
                .wait_until(|state| (!state.bridge.is_idle()).then_some(()))
                .await;
            // Most answers come sooner, and are worth no word to the connection.
            tokio::time::sleep(LONG_WAIT).await;
            let waiting = Waiting::new(control);
            self.shared
                .wait_until(|state| state.bridge.is_idle().then_some(()))
                .await;
            drop(waiting);
        }
    }

    /// Gives the bridge what the server sends, as far as the client takes what becomes of it.
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

    /// Sends the server what the bridge has for it, and the end of that once the client has ended and has its answers.
    async fn write_server(&self, mut stdin: ChannelWriter) -> Infallible {
        let mut pieces = Vec::new();
        loop {
            let is_end = |state: &mut State| {
                state.bridge.poll_server(&mut pieces);
                let is_end = state.has_client_ended && state.bridge.is_idle();
                (is_end || !pieces.is_empty()).then_some(is_end)
            };
            let is_end = self.shared.wait_until(is_end).await;
            // The client may go on.
            self.shared.changed.notify_waiters();
            for piece in pieces.drain(..) {
                if stdin.send(piece).await.is_err() {
                    // The session's end tells why.
                    return std::future::pending().await;
                }
            }
            if is_end {
                stdin.finish();
                return std::future::pending().await;
            }
        }
    }

    /// Notes a loss; fails where there are too many.
    fn lose(&self, ended: Result<ExitStatus, Error>, losses: &mut Losses) -> Result<(), Error> {
        let answered = self.shared.change(|state| {
            state.bridge.lose();
            state.bridge.answered()
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

    /// Begins another session.
    async fn again(&self, losses: &mut Losses) -> Result<SessionParts, Error> {
        let patience = self.resumption.patience;
        // A client that needed no server for a while has not waited yet.
        let since = *losses.since.get_or_insert_with(Instant::now);
        let mut last = String::new();
        for failures in 0.. {
            let attempt = async {
                tokio::time::sleep(PAUSES.pause_after(failures)).await;
                let mut session = self.running.host.start(&self.resumption.command).await?;
                session.started().await?;
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

    /// Counts the bytes of the session that was lost with those of the next.
    fn count(&self, losses: &mut Losses, lost: &SessionControl, next: &SessionControl) {
        let (sent, received) = lost.carried();
        losses.carried.0 += sent;
        losses.carried.1 += received;
        let ((before, after), next) = (losses.carried, next.clone());
        self.running.observers.audit.carries(move || {
            let (sent, received) = next.carried();
            (before + sent, after + received)
        });
    }

    /// The failure that the bridge reports, as an error of the session.
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
