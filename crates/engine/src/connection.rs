//! [`Connection`]: one SSH connection, shared by everything that holds a clone of it.

pub(crate) mod agent;
mod authentication;
pub(crate) mod channel;
pub(crate) mod dial;
pub(crate) mod driver;
pub(crate) mod handshake;
pub(crate) mod incoming;
mod info;
pub(crate) mod lease;
mod life;
pub(crate) mod login;
mod offers;
pub mod queue;
pub(crate) mod session;
mod socket;
pub(crate) mod splice;
pub(crate) mod timing;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use trunkline_proto::{ChannelKind, ChannelRequest, GlobalRequest};

use crate::config::{ForwardAgent, HostConfig};
use crate::error::{Error, ServerRequest};
use crate::host_key::HostKeyError;
use crate::interaction::{Asking, HeldUp, Interaction, KnownClient, Presence, Waiting};
use crate::metrics::ConnectionMetrics;
use crate::prompt::Answerer;
use channel::{ChannelStream, ChannelTerms, GlobalReply, Op, Ops, channel};
use handshake::Handshake;
use incoming::Incoming;
pub use info::ConnectionInfo;
pub(crate) use info::{SessionBinding, State};
use lease::Lease;
use life::Life;
use queue::queue;
use session::{Command, Output, Session, SpareSession};

/// An SSH connection. Cheap to clone. It ends when the last clone and the last channel are gone, or on [`Self::close`].
///
/// It can be used from the start: requests wait while it is being made, or are sent together with the authentication.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

struct Inner {
    host: Arc<HostConfig>,
    ops: Ops,
    state: watch::Receiver<State>,
    /// The question to the client it is made for, or what that client waits for.
    held_up: watch::Receiver<Option<HeldUp>>,
    maker: KnownClient,
    /// The one who answered for the maker when it began.
    answerer: Answerer,
    presence: Option<Arc<Presence>>,
    asking: Arc<Asking>,
    info: Arc<OnceLock<ConnectionInfo>>,
    metrics: Arc<ConnectionMetrics>,
    incoming: Arc<Incoming>,
    /// Ends a handshake in progress.
    abandoned: CancellationToken,
}

/// The time that a question is open before other waiting clients are told of it.
pub(crate) const ASKED_LONG: Duration = Duration::from_secs(1);

/// A displayed wait. Dropping it removes the display.
pub(crate) struct Shown<'a>(&'a Interaction);

impl<'a> Shown<'a> {
    pub(crate) fn new(interaction: &'a Interaction, waiting: &Waiting) -> Self {
        interaction.waiting(Some(waiting));
        Self(interaction)
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        self.0.waiting(None);
    }
}

impl Connection {
    /// Starts connecting, in a task of its own.
    pub(crate) fn begin(mut handshake: Handshake) -> Self {
        let (held_up_tx, held_up) = watch::channel(None);
        let maker = handshake.interaction.client().downgrade();
        let answerer = handshake.interaction.prompter().answerer();
        let presence = handshake.interaction.presence().cloned();
        let (interaction, asking) = handshake.interaction.watch_with(held_up_tx).note_questions();
        handshake.interaction = interaction;
        let (ops, ops_rx) = queue();
        let (state_tx, state) = watch::channel(State::Connecting);
        let info = Arc::new(OnceLock::new());
        let metrics: Arc<ConnectionMetrics> = Arc::default();
        let incoming = Arc::new(Incoming::new(ops.downgrade()));
        let inner = Inner {
            host: handshake.host.clone(),
            ops,
            state,
            held_up,
            maker,
            answerer,
            presence,
            asking,
            info: info.clone(),
            metrics: metrics.clone(),
            incoming: incoming.clone(),
            abandoned: CancellationToken::new(),
        };
        let abandoned = inner.abandoned.clone();
        let counters = metrics;
        // Boxed, and dropped once connected: each call that takes it would otherwise reserve its room.
        let handshake = Box::new(handshake);
        tokio::spawn(async move {
            let host = handshake.host.clone();
            let life = Life::begin(&host);
            let (end, untold) = handshake::run(
                handshake,
                ops_rx,
                counters.clone(),
                &state_tx,
                &info,
                &incoming,
                &abandoned,
            )
            .await;
            life.log_end(info.get(), &counters, &end);
            // Set first, because whatever learns of the end from here on reads the reason.
            state_tx.send_replace(State::Ended(end.clone()));
            untold.tell(&end);
            incoming.clear();
        });
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Returns its host's configuration.
    pub fn host(&self) -> &Arc<HostConfig> {
        &self.inner.host
    }

    /// Returns its facts; `None` until it is authenticated.
    pub fn info(&self) -> Option<&ConnectionInfo> {
        self.inner.info.get()
    }

    /// Returns its counters.
    pub fn metrics(&self) -> &ConnectionMetrics {
        &self.inner.metrics
    }

    /// Waits until it is authenticated.
    ///
    /// # Errors
    /// It could not be made, or it has ended.
    pub async fn ready(&self) -> Result<(), Error> {
        let mut state = self.inner.state.clone();
        loop {
            match &*state.borrow_and_update() {
                State::Ready => return Ok(()),
                State::Ended(error) => return Err(error.clone()),
                State::Connecting => {}
            }
            if state.changed().await.is_err() {
                return Err(self.end_error());
            }
        }
    }

    /// Waits until it is authenticated or has ended, or its log-in waits for something.
    pub(crate) async fn wait_until_settled(&self) {
        let mut held_up = self.inner.held_up.clone();
        let is_held_up = async {
            if held_up.wait_for(Option::is_some).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            _ = self.ready() => {}
            () = is_held_up => {}
        }
    }

    /// Returns the outcome of its log-in's questions.
    pub(crate) fn asking(&self) -> &Asking {
        &self.inner.asking
    }

    /// Returns whether this client may try again after the log-in failed with `error` for lack of a right answer,
    /// because the failure was another client's. Programs of one user share their answers, and wrong ones count.
    pub(crate) fn is_left_to(&self, interaction: &Interaction, error: &Error) -> bool {
        let answerer = interaction.prompter().answerer();
        let is_own = self.inner.maker.is(interaction.client());
        if self.info().is_some() || is_own {
            return false;
        }
        if self.inner.presence.as_ref().is_some_and(|maker| maker.has_left()) {
            return true;
        }
        if answerer == Answerer::Nobody {
            return false;
        }
        // A server does not wait endlessly for an answer (LoginGraceTime).
        let has_failed = matches!(
            error.root(),
            Error::Authentication { .. } | Error::ClosedByPeer { .. } | Error::Network { .. }
        );
        let may_know =
            answerer > self.inner.answerer || answerer == Answerer::Person && self.inner.asking.is_answered();
        self.inner.asking.is_unanswered() || has_failed && may_know
    }

    /// Waits for something that requires the connection. Tells the waiting client if another client has to answer
    /// first.
    ///
    /// # Errors
    /// [`Error::Unanswered`] if it cannot be told: a command that must not ask (BatchMode) fails if ssh would have to
    /// ask, and stock ssh asks by itself.
    pub(crate) async fn wait_for<T>(
        &self,
        interaction: &Interaction,
        work: impl Future<Output = T>,
    ) -> Result<T, Error> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            waiting = self.tell_of_questions(interaction) => Err(Error::Unanswered(waiting)),
        }
    }

    /// Tells the waiting client about open questions. Returns what it waits for if it cannot be told.
    async fn tell_of_questions(&self, interaction: &Interaction) -> Waiting {
        let mut held_up = self.inner.held_up.clone();
        while !self.inner.maker.is(interaction.client()) {
            // No more questions come once it is made.
            let Ok(Some(what)) = held_up.wait_for(Option::is_some).await.map(|what| what.clone()) else {
                break;
            };
            let other = |now: &Option<HeldUp>| now.as_ref() != Some(&what);
            if tokio::time::timeout(ASKED_LONG, held_up.wait_for(other))
                .await
                .is_ok()
            {
                continue;
            }
            let waiting = match what.clone() {
                HeldUp::Waits(waiting) => waiting,
                HeldUp::Asked(kind) => Waiting::Question {
                    host: self.inner.host.who(),
                    kind,
                },
            };
            let is_asked = matches!(waiting, Waiting::Question { .. });
            if is_asked && interaction.prompter().answerer() == Answerer::Nobody {
                return waiting;
            }
            let _shown = Shown::new(interaction, &waiting);
            let _ = held_up.wait_for(other).await;
        }
        std::future::pending().await
    }

    /// Waits for its end, and returns the reason.
    pub async fn wait_for_end(&self) -> Error {
        let mut state = self.inner.state.clone();
        loop {
            if let State::Ended(error) = &*state.borrow_and_update() {
                return error.clone();
            }
            if state.changed().await.is_err() {
                return self.end_error();
            }
        }
    }

    /// Returns whether it has not ended, as far as this side knows.
    pub fn is_open(&self) -> bool {
        self.end().is_none()
    }

    /// Returns the reason of its end, if it has ended.
    pub(crate) fn end(&self) -> Option<Error> {
        match &*self.inner.state.borrow() {
            State::Ended(error) => Some(error.clone()),
            _ => None,
        }
    }

    /// Returns whether it is authenticated and has not ended.
    pub fn is_ready(&self) -> bool {
        matches!(*self.inner.state.borrow(), State::Ready)
    }

    /// Starts a command, a shell or a subsystem. Returns at once; the session reports failures.
    pub fn start(&self, command: &Command) -> Session {
        self.start_with(command, None, ChannelTerms::default())
    }

    pub(crate) fn start_with(&self, command: &Command, lease: Option<Lease>, terms: ChannelTerms) -> Session {
        let (mut port, parts) = channel(&self.inner.ops, command.what(), command.starts(), lease);
        port.verified_only = command.is_verified_only();
        port.shared.merge_stderr(command.merges_stderr());
        port.terms = terms;
        let open = Op::Open {
            kind: ChannelKind::Session,
            requests: command.requests(),
            port,
        };
        match self.lend_agent(command) {
            Ok(()) => self.send(open),
            Err(error) => crate::connection::channel::refuse(open, &error),
        }
        Session::new(self.inner.ops.clone(), parts)
    }

    /// Makes the agent available to the server if `command` requests it.
    ///
    /// # Errors
    /// ForwardAgent does not allow it. Nothing was sent: the server would also lend the agent to sessions on this
    /// connection that never requested it.
    pub(crate) fn lend_agent(&self, command: &Command) -> Result<(), Error> {
        let host = &self.inner.host;
        if !command.forwards_agent() {
            return Ok(());
        }
        if host.forward_agent == ForwardAgent::No {
            return Err(Error::agent_not_forwarded(host));
        }
        agent::lend(&self.inner.incoming, host, &self.inner.info);
        Ok(())
    }

    /// Runs a command without input to its end and returns its output.
    ///
    /// # Errors
    /// As [`Session::wait`]. A status other than 0 is not an error.
    pub async fn run(&self, command: &Command) -> Result<Output, Error> {
        self.start(command).output(None).await
    }

    /// Opens a session channel ahead.
    pub(crate) fn spare(&self) -> SpareSession {
        let (port, parts) = channel(&self.inner.ops, ServerRequest::Session, false, None);
        self.send(Op::Open {
            kind: ChannelKind::Session,
            requests: Vec::new(),
            port,
        });
        SpareSession::new(self.inner.ops.clone(), parts)
    }

    /// Starts a command in an open session.
    pub(crate) fn start_in(
        &self,
        session: SpareSession,
        command: &Command,
        lease: Lease,
        terms: ChannelTerms,
    ) -> Session {
        // If ForwardAgent forbids it, the session request itself is refused.
        let _ = self.lend_agent(command);
        let (begin, session) = session.begin(command, lease, terms);
        self.send(begin);
        session
    }

    /// Opens a TCP connection from the server to `host`:`port` (direct-tcpip).
    ///
    /// # Errors
    /// The server refused, with its description of the target's failure, or the connection was lost.
    pub async fn direct_tcpip(
        &self,
        host: &str,
        port: u16,
        originator: (&str, u16),
    ) -> Result<ChannelStream, Error> {
        let originator = (originator.0.to_owned(), originator.1);
        self.open_stream(
            ChannelKind::DirectTcpip {
                host: host.to_owned(),
                port,
                originator,
            },
            None,
            ChannelTerms::default(),
        )
        .await
    }

    /// Opens a connection to a Unix socket on the server (direct-streamlocal@openssh.com).
    ///
    /// # Errors
    /// As [`Self::direct_tcpip`].
    pub async fn direct_streamlocal(&self, path: &str) -> Result<ChannelStream, Error> {
        self.open_stream(
            ChannelKind::DirectStreamlocal {
                path: path.to_owned(),
            },
            None,
            ChannelTerms::default(),
        )
        .await
    }

    pub(crate) async fn open_stream(
        &self,
        kind: ChannelKind,
        lease: Option<Lease>,
        terms: ChannelTerms,
    ) -> Result<ChannelStream, Error> {
        let what = match &kind {
            ChannelKind::Session => ServerRequest::Session,
            ChannelKind::DirectTcpip { host, port, .. } => {
                ServerRequest::Connect(format!("{host} port {port}"))
            }
            ChannelKind::DirectStreamlocal { path } => ServerRequest::Connect(path.clone()),
        };
        let (mut port, mut parts) = channel(&self.inner.ops, what, false, lease);
        port.terms = terms;
        self.send(Op::Open {
            kind,
            requests: Vec::<ChannelRequest>::new(),
            port,
        });
        (&mut parts.started)
            .await
            .unwrap_or_else(|_| Err(self.end_error()))?;
        Ok(ChannelStream::new(parts))
    }

    /// Sends a global request. Returns the answer's body if it was granted.
    ///
    /// # Errors
    /// The connection was lost.
    pub(crate) async fn global(&self, request: GlobalRequest) -> GlobalReply {
        let (reply, answer) = oneshot::channel();
        self.send(Op::Global { request, reply });
        answer.await.unwrap_or_else(|_| Err(self.end_error()))
    }

    /// Checks that the server is not known to be unverified.
    ///
    /// # Errors
    /// It is unverified, so that `what` is not allowed.
    pub(crate) fn check_verified(&self, what: &'static str) -> Result<(), Error> {
        match self.info() {
            Some(info) if info.unverified => {
                let host = self.inner.host.original_host.clone();
                Err(HostKeyError::Disabled { host, what }.into())
            }
            _ => Ok(()),
        }
    }

    /// Warns a new user of the connection that the server is unverified, unless they have been warned.
    pub(crate) fn warn(&self, interaction: &Interaction) {
        if let Some(info) = self.info() {
            return info.warn(interaction);
        }
        // Not the connection itself, which ends once nothing holds it.
        let (mut state, info) = (self.inner.state.clone(), self.inner.info.clone());
        let interaction = interaction.clone();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            let settled = state.wait_for(|state| !matches!(state, State::Connecting)).await;
            if settled.is_ok()
                && let Some(info) = info.get()
            {
                info.warn(&interaction);
            }
        });
    }

    /// Returns whether both are the same connection.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Requests an answer from the server at once. The returned future waits for it.
    ///
    /// # Errors
    /// The connection was lost.
    pub(crate) fn ask(&self) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        self.send(Op::Ping { reply });
        let connection = self.clone();
        async move { answer.await.map_err(|_| connection.end_error()) }
    }

    /// Checks that the server answers, and returns how long that took.
    ///
    /// # Errors
    /// The connection was lost, or there was no answer within `limit`.
    pub async fn ping(&self, limit: Duration) -> Result<Duration, Error> {
        let begun = Instant::now();
        match tokio::time::timeout(limit, self.ask()).await {
            Ok(answered) => answered.map(|()| begun.elapsed()),
            Err(_) => Err(Error::Timeout {
                doing: format!("checking the connection to {}", self.inner.host.original_host).into(),
                after: limit,
            }),
        }
    }

    /// Returns the round-trip time measured by the server's answers, from the log-in on. TCP's may be a relay's.
    pub fn rtt(&self) -> Option<Duration> {
        self.metrics().rtt()
    }

    /// Measures the round trip, if the server answers unknown requests.
    pub(crate) fn measure(&self) {
        self.send(Op::Measure);
    }

    /// Starts a new key exchange.
    pub fn rekey(&self) {
        self.send(Op::Rekey);
    }

    /// Lets running channels finish, opens no more, then ends.
    pub fn drain(&self) {
        self.send(Op::Drain);
    }

    /// Ends now; `why` is sent to the server and to everything that still waits.
    pub fn close(&self, why: &str) {
        // A handshake takes no operations; the token cancels it.
        self.inner.abandoned.cancel();
        self.send(Op::Disconnect { why: why.to_owned() });
    }

    /// Returns the handlers of connections that the server opens towards this side.
    pub(crate) fn incoming(&self) -> &Arc<Incoming> {
        &self.inner.incoming
    }

    fn send(&self, op: Op) {
        // A driver that has ended drops the operation; the requester gets the reason of the end.
        if let Err(op) = self.inner.ops.send(op) {
            crate::connection::channel::refuse(op, &self.end_error());
        }
    }

    fn end_error(&self) -> Error {
        match &*self.inner.state.borrow() {
            State::Ended(error) => error.clone(),
            _ => Error::Closed {
                host: self.inner.host.original_host.clone(),
                why: "the engine was shut down".into(),
            },
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("host", &self.inner.host.original_host)
            .field("state", &*self.inner.state.borrow())
            .finish_non_exhaustive()
    }
}
