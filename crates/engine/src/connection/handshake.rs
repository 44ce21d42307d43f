//! Makes a connection: from a socket through host memory, the host key and authentication. Then drives it to its end.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use trunkline_request::Backoff;

use futures_util::future::BoxFuture;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio_util::sync::CancellationToken;
use trunkline_proto::cipher::Cipher;
use trunkline_proto::kex::KexMethod;
use trunkline_proto::mac::Mac;
use trunkline_proto::signature;
use trunkline_proto::{Compression, Config, Event, PeerMisbehaved, Preferences, RekeyLimit, WindowBudget};
use trunkline_request::LogLevel;
use trunkline_text::Printable;

use super::queue::{self, queue};
use crate::config::{HostConfig, HostKeyCheck, LogIn, StrictHostKeyChecking, WeakCryptoWarning};
use crate::connection::SessionBinding;
use crate::connection::authentication::Authentication;
use crate::connection::authentication::identities::Identities;
use crate::connection::channel::{Op, refuse};
use crate::connection::dial::Dialed;
use crate::connection::driver::{Driver, Offer};
use crate::connection::incoming::Incoming;
use crate::connection::login::Login;
use crate::connection::offers::{HostKeyUpdates, serve_offers};
use crate::connection::timing::keepalive::KeepAlive;
use crate::connection::{ConnectionInfo, State};
use crate::error::{Doing, Error, LogInStage};
use crate::host_key::{self, Accepted, Decision, Policy, Server, Trust};
use crate::interaction::Interaction;
use crate::keys;
use crate::known_hosts;
use crate::memory::{HostFacts, HostId, Learner, Lesson, Lessons, Memory};
use crate::metrics::{ConnectionMetrics, Metrics, Queue, Stage};
use crate::prompt::Answerer;
use crate::settings::Settings;

/// The time limit for each step of a handshake; sshd itself gives up after LoginGraceTime, 120 s.
const STEP_LIMIT: Duration = Duration::from_secs(120);

/// The time limit for a log-in with a client waiting: a push to a phone, a slow directory. ssh waits for ever.
const LOG_IN_LIMIT: Duration = Duration::from_secs(3600);

/// The time limit for the first answer to something sent ahead. It bounds the delay if the server ignores such
/// messages; a slower server counts as one that does.
const UNTRIED_LIMIT: Duration = Duration::from_secs(10);

/// The inputs of a connection.
pub(crate) struct Handshake {
    pub(crate) host: Arc<HostConfig>,
    pub(crate) interaction: Interaction,
    /// The program's own credentials and checks.
    pub(crate) login: Login,
    /// It is for a program that replaces ssh.
    pub(crate) is_ssh: bool,
    /// The log-in of the connection beside which this one is made: both are shared by the same clients.
    pub(crate) like: Option<LogIn>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) settings: Settings,
    /// The budget that receive windows grow from.
    pub(crate) windows: Arc<WindowBudget>,
    /// The engine's counters; the connection has its own.
    pub(crate) engine_metrics: Arc<Metrics>,
    /// The limits on concurrent handshakes.
    pub(crate) gate: Option<Gate>,
    /// Connects to the server.
    pub(crate) dial: Box<dyn Fn() -> BoxFuture<'static, Result<Dialed, Error>> + Send + Sync>,
}

/// The limits on concurrent handshakes.
pub(crate) struct Gate {
    /// With all servers.
    pub(crate) all: Arc<Semaphore>,
    /// With this one.
    pub(crate) server: Arc<Semaphore>,
}

/// The users of a failed connection that have not been told of its end.
pub(crate) enum Untold {
    /// The connection was driven for them.
    Driven(Box<Driver>),
    /// They have sent requests, none of which was taken.
    Asked(queue::Receiver<Op>),
}

impl Untold {
    /// Ends everything with `error`, and closes the queue.
    pub(crate) fn tell(self, error: &Error) {
        let mut ops = match self {
            Self::Driven(driver) => driver.finish(error),
            Self::Asked(ops) => ops,
        };
        ops.close();
        while let Some(op) = ops.try_recv() {
            refuse(op, error);
        }
    }
}

/// Connects, authenticates, drives the connection to its end, and returns that end.
pub(crate) async fn run(
    handshake: Box<Handshake>,
    ops: queue::Receiver<Op>,
    metrics: Arc<ConnectionMetrics>,
    state: &watch::Sender<State>,
    info: &OnceLock<ConnectionInfo>,
    incoming: &Arc<Incoming>,
    abandoned: &CancellationToken,
) -> (Error, Untold) {
    let mut ops = ops;
    let begun = Instant::now();
    let engine_metrics = handshake.engine_metrics.clone();
    let _counted = engine_metrics.count(&handshake.host.original_host, &metrics);
    let mut attempt = Attempt {
        number: 1,
        early_kexinit: true,
    };
    loop {
        let (offers_tx, offers) = queue();
        // Boxed, so that the task does not carry the handshake's state through the connection's life.
        let established = Box::pin(establish(
            &handshake, attempt, ops, offers_tx, &metrics, info, abandoned,
        ))
        .await;
        let (error, untold) = match established {
            Ok(Established { mut driver, updates }) => {
                engine_metrics.handshake("ok", begun.elapsed());
                state.send_replace(State::Ready);
                // The log-in's keys and interaction are no longer needed, and idle connections may number thousands.
                let learner = handshake.learner();
                drop(handshake);
                let end = tokio::select! {
                    end = driver.run() => end,
                    never = serve_offers(offers, incoming, updates) => match never {},
                };
                learn_from_end(&learner, &end);
                return (end, Untold::Driven(driver));
            }
            Err(Failed {
                error,
                untold: Untold::Driven(driver),
                ..
            }) => (error, Untold::Driven(driver)),
            Err(Failed {
                error,
                untold: Untold::Asked(untouched),
                greeting,
                ahead,
            }) => {
                let next = match ahead {
                    true => handshake.attempt_in_steps(attempt),
                    false => handshake.next_attempt(attempt, &error, &greeting),
                };
                let error = match next {
                    Some((next, delay)) => {
                        tracing::debug!(%error, ?delay, "trying again");
                        let again = format!("{error}; trying again");
                        handshake.interaction.log(LogLevel::Debug1, &again);
                        let pause = tokio::time::sleep(delay);
                        if abandoned.run_until_cancelled(pause).await.is_some() {
                            attempt = next;
                            ops = untouched;
                            continue;
                        }
                        handshake.closed_error()
                    }
                    None => error.with_greeting(&greeting),
                };
                (error, Untold::Asked(untouched))
            }
        };
        engine_metrics.handshake(error.kind().as_str(), begun.elapsed());
        handshake.learn_from(&error);
        return (error, untold);
    }
}

impl Handshake {
    /// Returns the next attempt, if there may be one. A stream that the program gave can be used only once. ssh tries
    /// once; a program in its place tries again only if it began otherwise than ssh does with an unknown server. An
    /// OpenSSH server never hangs up because of that: it sends its identification before it reads anything.
    fn next_attempt(&self, attempt: Attempt, error: &Error, greeting: &str) -> Option<(Attempt, Duration)> {
        if self.login.is_over_stream() {
            return None;
        }
        let (next, delay) = attempt.next_attempt(error, greeting)?;
        let began_otherwise = || {
            let facts = self.memory.facts(&self.host_id()).unwrap_or_default();
            let is_openssh = facts
                .banner
                .as_deref()
                .is_some_and(|banner| banner.starts_with("SSH-2.0-OpenSSH_"));
            attempt.early_kexinit && !next.early_kexinit && self.begins_early(&facts) && !is_openssh
        };
        (!self.is_ssh || began_otherwise()).then_some((next, delay))
    }

    /// Returns the next attempt after the server hung up, or stayed silent, over something sent ahead of its answers.
    /// Host memory forbids that for the next attempt. Nothing but the log-in was requested.
    fn attempt_in_steps(&self, attempt: Attempt) -> Option<(Attempt, Duration)> {
        let number = attempt.number + 1;
        let may = number <= Attempt::MAX && !self.login.is_over_stream();
        may.then_some((Attempt { number, ..attempt }, Duration::ZERO))
    }

    /// Returns whether a message may be sent ahead of the answers of a server that is not sshd: because that was `seen`
    /// to work, or because it is untried and another attempt would be possible.
    fn may_go_ahead(&self, facts: &HostFacts, seen: Lesson, refused: Lesson) -> bool {
        let may_try = facts.banner.is_some() && !self.login.is_over_stream();
        self.settings.early_flights
            && !facts.lessons.has(Lesson::NoPipelining)
            && !facts.lessons.has(refused)
            && (facts.lessons.has(seen) || may_try)
    }

    /// Returns whether our KEXINIT is sent before the server's identification. Without a guess, that gains nothing.
    fn begins_early(&self, facts: &HostFacts) -> bool {
        !self.is_ssh || facts.kex_first.is_some()
    }

    /// Remembers if only the system's ssh has the server's algorithms, or the keys of this configuration. The latter
    /// says nothing about the server.
    fn learn_from(&self, error: &Error) {
        match error.root() {
            // The jump host's own connection has recorded it.
            _ if matches!(error, Error::Jump { .. }) => {}
            Error::Protocol {
                source: trunkline_proto::Error::NothingInCommon { what, theirs, .. },
                ..
            } if self.host.only_ssh_could(*what, theirs) => {
                self.memory.update(&self.host_id(), |facts| {
                    facts.lessons.learn(Lesson::OnlyOtherAlgorithms, 1);
                });
            }
            Error::Authentication { only_ssh, .. } => {
                if *only_ssh {
                    self.memory.leave_to_ssh(&self.host);
                }
                // Before this key is signed with again, the server has to accept it.
                let id = self.host_id();
                if self.memory.facts(&id).is_some_and(|facts| facts.key.is_some()) {
                    self.memory.update(&id, |facts| facts.key = None);
                }
            }
            _ => {}
        }
    }

    fn learner(&self) -> Learner {
        Learner::new(&self.memory, self.host_id())
    }

    /// Remembers what made this connection, for the next one.
    fn learn(
        &self,
        attempt: Attempt,
        proto: &trunkline_proto::Connection,
        (key, early_session): (Option<[u8; 32]>, Option<bool>),
    ) {
        let server_id = proto.server_id().map(|id| id.as_str().to_owned());
        let first = proto
            .server_first_choices()
            .map(|(kex, key)| (kex.to_owned(), key.to_owned()));
        self.memory.update(&self.host_id(), |facts| {
            if is_another_server(facts.banner.as_deref(), server_id.as_deref()) {
                facts.lessons = Lessons::default();
            }
            facts.banner = server_id;
            (facts.kex_first, facts.host_key_first) = first.unzip();
            facts.key = key.or(facts.key);
            facts.rtt = proto.rtt().or(facts.rtt);
            if !attempt.early_kexinit {
                facts.lessons.learn(Lesson::NoEarlyKexinit, 1);
            }
        });
        let learner = self.learner();
        // Another connection may have learned this in the meantime.
        if learner.has(Lesson::NoPipelining) {
            return;
        }
        if proto.is_sshd() && !learner.has(Lesson::Sshd) {
            learner.learn(Lesson::Sshd, 1);
        }
        if proto.has_logged_in_early() && !learner.has(Lesson::EarlyLogIn) {
            learner.learn(Lesson::EarlyLogIn, 1);
        }
        match early_session {
            Some(true) if !learner.has(Lesson::EarlySession) => learner.learn(Lesson::EarlySession, 1),
            Some(false) => learner.learn(Lesson::NoEarlySession, 1),
            _ => {}
        }
    }

    /// Remembers what the server may have ended the connection over; the next attempt shows whether it did. Returns
    /// whether anything had been sent ahead.
    fn learn_hang_up(&self, error: &Error, proto: &trunkline_proto::Connection) -> bool {
        let ended = error.is_hang_up()
            || matches!(
                error,
                Error::Network { .. } | Error::Timeout { .. } | Error::Protocol { .. }
            );
        if !ended || proto.is_authenticated() && !proto.is_opening_early() {
            return false;
        }
        if proto.has_guessed() && proto.host_key().is_none() && proto.server_id().is_some() {
            // Some servers cannot handle a wrong guess. The next attempt waits for the server's list.
            self.memory.update(&self.host_id(), |facts| {
                (facts.kex_first, facts.host_key_first) = (None, None);
            });
            // Nothing was requested yet. A second wait would be as long as the first.
            return !matches!(error, Error::Timeout { .. });
        }
        if proto.is_opening_early() {
            self.learner().learn(Lesson::NoEarlySession, 1);
            return true;
        }
        if proto.is_ahead() && (error.is_hang_up() || !proto.is_sshd()) {
            self.learner().learn(Lesson::NoPipelining, 1);
            return true;
        }
        false
    }

    fn updates(
        &self,
        policy: Policy,
        trust: Trust,
        address: Option<IpAddr>,
        proto: &trunkline_proto::Connection,
    ) -> HostKeyUpdates {
        let negotiated = proto.active_algorithms();
        HostKeyUpdates {
            verifier: self.login.verifier().cloned(),
            policy,
            trust,
            host: self.host.clone(),
            address,
            session_id: proto.session_id().cloned().unwrap_or_default(),
            host_key_algorithm: negotiated.map_or_else(String::new, |agreed| agreed.host_key.clone()),
            interaction: self.interaction.clone(),
        }
    }

    fn host_id(&self) -> HostId {
        HostId::from_config(&self.host)
    }

    /// Returns the error of an abandoned handshake.
    fn closed_error(&self) -> Error {
        Error::Closed {
            host: self.host.original_host.clone(),
            why: "it was asked to close".into(),
        }
    }
}

/// One attempt to make a connection.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    number: u32,
    early_kexinit: bool,
}

impl Attempt {
    const MAX: u32 = 4;
    /// The most attempts if the server reports too many log-ins at once: about half a minute. Of a hundred names for
    /// one sshd with MaxStartups 4:60:12, four attempts left two without a connection.
    const MAX_BUSY: u32 = 10;
    const PAUSES: Backoff = Backoff::new(Duration::from_millis(400), Duration::from_secs(4));

    /// Returns whether and when to try again after a server hung up before its identification, when it has no requests.
    ///
    /// If it sent text first ("Exceeded MaxStartups", "Not allowed at this time"), it is busy or penalizes us. The next
    /// attempt then waits, longer each time, with jitter so that many clients do not return together. Without text, it
    /// may not tolerate a KEXINIT before its own identification is read.
    fn next_attempt(self, error: &Error, greeting: &str) -> Option<(Self, Duration)> {
        let error = match error {
            Error::At { cause, .. } => cause,
            error => error,
        };
        let hung_up = matches!(
            error,
            Error::ClosedByPeer {
                during: Some(LogInStage::Identification),
                ..
            }
        );
        let most = match greeting.contains("MaxStartups") {
            true => Self::MAX_BUSY,
            false => Self::MAX,
        };
        if !hung_up || self.number >= most || greeting.contains("Not allowed at this time") {
            return None;
        }
        let number = self.number + 1;
        if greeting.is_empty() && self.early_kexinit {
            return Some((
                Self {
                    number,
                    early_kexinit: false,
                },
                Duration::ZERO,
            ));
        }
        let spread = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |now| now.subsec_nanos() % 512);
        let pause = Self::PAUSES.pause_after(self.number);
        let delay = pause + pause * spread / 1024;
        Some((Self { number, ..self }, delay))
    }
}

struct Established {
    /// Boxed: the task that drives it would otherwise hold room for it twice.
    driver: Box<Driver>,
    updates: Option<Box<HostKeyUpdates>>,
}

/// A failed attempt.
struct Failed {
    error: Error,
    untold: Untold,
    /// The text that the server sent instead of an identification.
    greeting: Printable,
    /// Something had been sent ahead of the server's answers, and host memory now forbids that.
    ahead: bool,
}

/// Returns whether a server's software has changed. Text after the first space is a comment, which some servers change
/// with each connection.
fn is_another_server(before: Option<&str>, now: Option<&str>) -> bool {
    let software = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    matches!((before, now), (Some(before), Some(now)) if software(before) != software(now))
}

impl Failed {
    /// Makes a failure before the server was reached.
    fn before_questions(error: Error, ops: queue::Receiver<Op>) -> Self {
        Self {
            error,
            untold: Untold::Asked(ops),
            greeting: Printable::default(),
            ahead: false,
        }
    }

    /// Makes a failure after the server was reached.
    fn logging_in(error: Error, ahead: bool, driver: Box<Driver>) -> Self {
        let greeting = driver.proto.greeting().clone();
        let untold = match driver.is_touched() {
            true => Untold::Driven(driver),
            false => Untold::Asked(driver.into_ops()),
        };
        Self {
            error,
            untold,
            greeting,
            ahead,
        }
    }
}

/// Remembers a server that calls itself OpenSSH, and has passed by what left with the log-in.
fn learn_from_end(learner: &Learner, end: &Error) {
    let unanswered = matches!(
        end.root(),
        Error::Protocol {
            source: trunkline_proto::Error::PeerMisbehaved(PeerMisbehaved::EarlyUnanswered),
            ..
        }
    );
    if unanswered {
        learner.learn(Lesson::NoPipelining, 1);
    }
}

async fn establish(
    handshake: &Handshake,
    attempt: Attempt,
    ops: queue::Receiver<Op>,
    offers: queue::Sender<Box<Offer>>,
    metrics: &Arc<ConnectionMetrics>,
    info: &OnceLock<ConnectionInfo>,
    abandoned: &CancellationToken,
) -> Result<Established, Failed> {
    let host = &handshake.host;
    let mut policy = policy(host);
    if handshake.login.judges_host_keys() {
        policy.strict = StrictHostKeyChecking::Yes;
    }
    if let Some(made) = &handshake.like
        && made.host_key.passes.strictness() > policy.strict.strictness()
    {
        policy.strict = made.host_key.passes;
    }
    let preparing = Prepared::new(handshake, attempt, &policy);
    let prepared = match abandoned.run_until_cancelled(preparing).await {
        Some(Ok(prepared)) => prepared,
        failed => {
            let error = failed
                .and_then(Result::err)
                .unwrap_or_else(|| handshake.closed_error());
            return Err(Failed::before_questions(error, ops));
        }
    };
    let Prepared {
        begun,
        facts,
        dialed,
        identities,
        trust,
        proto,
        permits,
    } = prepared;
    let course = handshake.login.authenticator();
    let _permits = course
        .is_none_or(|course| !course.takes_its_time())
        .then_some(permits);
    // Dropped once the connection is made.
    let proxy_words = dialed.words;
    let keepalive = KeepAlive::new(host, &handshake.settings, Instant::now());
    let mut driver = Box::new(Driver::new(
        host.original_host.clone(),
        dialed.io,
        *proto,
        ops,
        offers,
        keepalive,
        metrics.clone(),
    ));
    if let Some(rtt) = dialed.rtt {
        driver.proto.assume_rtt(rtt);
    }
    driver.teach(handshake.learner());
    let early_session = handshake.may_go_ahead(&facts, Lesson::EarlySession, Lesson::NoEarlySession);
    if early_session && driver.wants_session() {
        driver.proto.open_with_log_in();
    }
    let address = dialed.address.map(|address| address.ip());
    let server = Server {
        name: &host.hostname,
        port: host.port,
        alias: host.host_key_alias.as_deref(),
        address,
    };
    let logging_in = log_in(
        &mut driver,
        handshake,
        &policy,
        &trust,
        &server,
        identities,
        &facts,
    );
    let logged_in = match abandoned.run_until_cancelled(logging_in).await {
        Some(Ok(logged_in)) => logged_in,
        failed => {
            let error = failed
                .and_then(Result::err)
                .unwrap_or_else(|| handshake.closed_error());
            driver.give_up(&error).await;
            let ahead = handshake.learn_hang_up(&error, &driver.proto);
            let error = match proxy_words {
                Some(words) => error.of_proxy(words.last().await),
                None => error.with_address(dialed.address),
            };
            return Err(Failed::logging_in(error, ahead, driver));
        }
    };
    handshake.engine_metrics.counters.connections_authenticated.add(1);
    let learnt = (logged_in.key, logged_in.early_session);
    handshake.learn(attempt, &driver.proto, learnt);
    let wants_updates = logged_in.accepted.may_update || handshake.login.verifier().is_some();
    let updates = wants_updates.then(|| Box::new(handshake.updates(policy, trust, address, &driver.proto)));
    if let Some(known) = logged_in.info(&driver.proto, &handshake.interaction, dialed.address, begun) {
        tracing::debug!(server = %Printable::line(&known.server), "logged in");
        let _ = info.set(known);
    }
    Ok(Established { driver, updates })
}

/// The parts of a handshake once the server is reached.
struct Prepared<'a> {
    begun: Instant,
    facts: HostFacts,
    dialed: Dialed,
    identities: Identities,
    trust: Trust,
    proto: Box<trunkline_proto::Connection>,
    /// Held until the connection is authenticated or has failed.
    permits: [Option<SemaphorePermit<'a>>; 2],
}

impl<'a> Prepared<'a> {
    /// Does what is possible while the network is busy: the agent, key files, known_hosts, and the key exchange's
    /// secret.
    ///
    /// While it connects, a handshake does not count towards the limit: a host that does not answer, or whose jump host
    /// is not connected yet, delays no other. Work that takes CPU time counts, and does not use a thread per host.
    async fn new(handshake: &'a Handshake, attempt: Attempt, policy: &Policy) -> Result<Self, Error> {
        let host = &handshake.host;
        let gate = handshake.gate.as_ref();
        let metrics = &handshake.engine_metrics;
        let of_server = permit(gate.map(|gate| &*gate.server), &metrics.waiting_for_server).await;
        metrics.counters.connections_started.add(1);
        let begun = Instant::now();
        let facts = handshake.memory.facts(&handshake.host_id()).unwrap_or_default();
        let loading = async {
            let _permit = permit(gate.map(|gate| &*gate.all), &metrics.waiting_for_turn).await;
            let (policy, facts, host) = (policy.clone(), facts.clone(), host.clone());
            tokio::task::spawn_blocking(move || {
                let trust = policy.load()?;
                let config = protocol_config(&host, &facts, &trust)?;
                Ok::<_, Error>((trust, config))
            })
            .await
        };
        let (dialed, identities, loaded) = tokio::join!(
            stage(handshake, Stage::Dial, (handshake.dial)()),
            async {
                // The program's authenticator brings what each attempt needs.
                match handshake.login.authenticator() {
                    Some(_) => Identities::none(),
                    None => Identities::collect(host, handshake.login.keys()).await,
                }
            },
            loading
        );
        let dialed = dialed?;
        let of_all = permit(gate.map(|gate| &*gate.all), &metrics.waiting_for_turn).await;
        let (trust, mut config) =
            loaded.map_err(|error| Error::local("reading known_hosts", std::io::Error::other(error)))??;
        config.early_kexinit &= attempt.early_kexinit && handshake.begins_early(&facts);
        config.early_flights &= handshake.settings.early_flights;
        config.early_log_in = handshake.may_go_ahead(&facts, Lesson::EarlyLogIn, Lesson::NoPipelining);
        config.early_stdin &= handshake.settings.early_stdin;
        config.window_budget = Arc::clone(&handshake.windows);
        let proto = trunkline_proto::Connection::new(config).map_err(|source| Error::Protocol {
            host: host.original_host.clone(),
            source,
        })?;
        Ok(Self {
            begun,
            facts,
            dialed,
            identities,
            trust,
            proto: Box::new(proto),
            permits: [of_server, of_all],
        })
    }
}

/// Runs a stage and records its time.
async fn stage<T>(
    handshake: &Handshake,
    stage: Stage,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let begun = Instant::now();
    let result = work.await;
    let outcome = result
        .as_ref()
        .map_or_else(|error| error.kind().as_str(), |_| "ok");
    handshake.engine_metrics.stage(stage, outcome, begun.elapsed());
    result
}

async fn permit<'a>(semaphore: Option<&'a Semaphore>, queue: &Queue) -> Option<SemaphorePermit<'a>> {
    let _waiting = queue.wait();
    semaphore?.acquire().await.ok()
}

struct LoggedIn {
    accepted: Accepted,
    key: Option<[u8; 32]>,
    /// A session was opened with the log-in. `None` if that was not tried, or something else interfered.
    early_session: Option<bool>,
    answered: Answerer,
    method: &'static str,
    log_in: LogIn,
    banner: String,
}

impl LoggedIn {
    fn info(
        self,
        proto: &trunkline_proto::Connection,
        interaction: &Interaction,
        address: Option<SocketAddr>,
        begun: Instant,
    ) -> Option<ConnectionInfo> {
        let negotiated = proto.active_algorithms()?;
        let unverified = self.accepted.is_unverified;
        Some(ConnectionInfo {
            address,
            server: proto
                .server_id()
                .map_or_else(String::new, |id| id.as_str().to_owned()),
            kex: negotiated.kex,
            host_key_algorithm: negotiated.host_key.clone(),
            cipher: negotiated.outgoing.cipher.name(),
            mac: negotiated.outgoing.mac.map(Mac::name),
            greeting: proto.greeting().trim().to_owned(),
            compressed: negotiated.outgoing.compression == Compression::Zlib,
            server_ciphers: proto
                .server_ciphers()
                .iter()
                .map(|cipher| cipher.name())
                .collect(),
            server_compresses: proto.server_compression().contains(&Compression::Zlib),
            since: SystemTime::now(),
            handshake: begun.elapsed(),
            is_sshd: proto.is_sshd(),
            went_ahead: !proto.is_sshd() && (proto.has_logged_in_early() || self.early_session == Some(true)),
            unverified,
            warnings: match unverified {
                true => self.accepted.warnings.into(),
                false => Arc::default(),
            },
            method: self.method,
            log_in: Arc::new(self.log_in),
            banner: self.banner.into(),
            log: interaction.take_recorded().into(),
            answered: self.answered,
            made_for: interaction.client().downgrade(),
            binding: SessionBinding {
                host_key: proto.host_key().cloned().unwrap_or_default(),
                session_id: proto.session_id().cloned().unwrap_or_default(),
                signature: proto.host_signature().cloned().unwrap_or_default(),
            },
        })
    }
}

async fn log_in(
    driver: &mut Driver,
    handshake: &Handshake,
    policy: &Policy,
    trust: &Trust,
    server: &Server<'_>,
    identities: Identities,
    facts: &HostFacts,
) -> Result<LoggedIn, Error> {
    let Handshake { interaction, .. } = handshake;
    let Event::HostKey(key) = stage(handshake, Stage::KeyExchange, next(driver, handshake)).await? else {
        return Err(Error::Bug("a question came before the host key"));
    };
    log_transport(interaction, &driver.proto);
    let known = (identities, facts);
    let proving = prove(driver, handshake, policy, trust, server, &key, known);
    stage(handshake, Stage::Authentication, proving).await
}

/// Waits for the session that was requested with the log-in, if any, and keeps it for the first session request.
async fn early_session(driver: &mut Driver, handshake: &Handshake) -> Result<Option<bool>, Error> {
    let mut outcome = driver.early_session();
    while outcome.is_none() && driver.proto.is_opening_early() {
        if let Event::EarlySession(opened) = next_within(driver, handshake, UNTRIED_LIMIT).await? {
            outcome = Some(opened);
        }
    }
    if let Some(Some(session)) = outcome {
        driver.begin_with(session);
    }
    Ok(outcome.map(|opened| opened.is_some()))
}

/// Waits for the next decision within [`STEP_LIMIT`].
async fn next(driver: &mut Driver, handshake: &Handshake) -> Result<Event, Error> {
    next_within(driver, handshake, STEP_LIMIT).await
}

/// Waits for the next decision. ConnectTimeout applies until the identification, as in ssh, and to all of a connection
/// without a waiting client.
async fn next_within(driver: &mut Driver, handshake: &Handshake, most: Duration) -> Result<Event, Error> {
    let Handshake {
        host, interaction, ..
    } = handshake;
    let counts = |driver: &Driver| driver.proto.server_id().is_none() || interaction.is_unattended();
    loop {
        let counted = counts(driver);
        let limit = match host.connect_timeout.filter(|_| counted) {
            Some(limit) => limit.min(most),
            None => most,
        };
        let question = tokio::time::timeout(limit, driver.question()).await;
        // The identification came in time, and what follows has more time.
        if question.is_err() && counted && !counts(driver) {
            continue;
        }
        return question.unwrap_or_else(|_| {
            Err(Error::Timeout {
                doing: Doing::LogIn {
                    stage: driver.stage().unwrap_or(LogInStage::Authentication),
                    host: host.original_host.clone(),
                },
                after: limit,
            })
        });
    }
}

/// Checks the server's key, then authenticates the user.
async fn prove(
    driver: &mut Driver,
    handshake: &Handshake,
    policy: &Policy,
    trust: &Trust,
    server: &Server<'_>,
    key: &[u8],
    (identities, facts): (Identities, &HostFacts),
) -> Result<LoggedIn, Error> {
    let Handshake {
        host, interaction, ..
    } = handshake;
    let (accepted, checked) = check_host_key(handshake, policy, trust, server, key).await?;
    driver
        .proto
        .accept_host_key(Instant::now())
        .map_err(|source| Error::Protocol {
            host: host.original_host.clone(),
            source,
        })?;
    let key_only = accepted.is_unverified;
    let remembered = facts.key.as_ref();
    let mut authentication = Authentication::new(host, interaction, identities, remembered, key_only);
    if let Some(made) = &handshake.like {
        authentication.repeat(made);
    }
    if let Some(course) = handshake.login.authenticator() {
        authentication.follow(course, &driver.proto);
    }
    authentication.log_identities();
    if handshake.is_ssh {
        authentication.stand_for_ssh();
    }
    let mut lost = false;
    loop {
        let is_ahead = driver.proto.is_ahead() && !driver.proto.is_sshd();
        let untried = is_ahead && !facts.lessons.has(Lesson::EarlyLogIn);
        let limit = match (untried, interaction.is_unattended()) {
            (true, _) => UNTRIED_LIMIT,
            (false, true) => STEP_LIMIT,
            (false, false) => LOG_IN_LIMIT,
        };
        match next_within(driver, handshake, limit).await? {
            Event::Authenticated => break,
            Event::EarlySession(_) => lost = true,
            question => {
                // Queued operations may be sent with the authentication if the server is sshd: all of them if it is
                // verified, else only sessions. With other servers they wait until the user is let in.
                if driver.proto.is_sshd() {
                    driver.take_ops(accepted.is_unverified);
                }
                authentication.answer(driver, question).await?;
            }
        }
    }
    let early_session = match lost {
        true => None,
        false => early_session(driver, handshake).await?,
    };
    driver.take_ops(accepted.is_unverified);
    if let Some(weak) = weak_crypto(host, driver).filter(|_| host.tells()) {
        interaction.notice(weak);
    }
    authentication.log_success(server);
    Ok(LoggedIn {
        accepted,
        early_session,
        key: authentication.used_key(),
        answered: authentication.answerer(),
        method: authentication.used_method(),
        log_in: authentication.log_in(checked),
        banner: authentication.into_banner(),
    })
}

/// Logs the server's identification and the negotiated algorithms.
fn log_transport(interaction: &Interaction, proto: &trunkline_proto::Connection) {
    let (Some(id), Some(agreed)) = (proto.server_id(), proto.agreed_algorithms()) else {
        return;
    };
    let log = |text: String| interaction.log(LogLevel::Debug1, &text);
    let software = id.as_str().splitn(3, '-').last().unwrap_or_default();
    log(format!(
        "Remote protocol version 2.0, remote software version {software}"
    ));
    log(format!("kex: algorithm: {}", agreed.kex));
    log(format!("kex: host key algorithm: {}", agreed.host_key));
    for (way, direction) in [
        ("server->client", &agreed.incoming),
        ("client->server", &agreed.outgoing),
    ] {
        let mac = direction.mac.map_or("<implicit>", Mac::name);
        let compression = match direction.compression {
            Compression::Zlib => "zlib@openssh.com",
            Compression::None => "none",
        };
        let cipher = direction.cipher.name();
        log(format!(
            "kex: {way} cipher: {cipher} MAC: {mac} compression: {compression}"
        ));
    }
}

/// Returns ssh's warning about a server without post-quantum key exchange (sshconnect.c, `warn_nonpq_kex`), unless the
/// user chose only such methods.
fn weak_crypto(host: &HostConfig, driver: &Driver) -> Option<&'static str> {
    let is_post_quantum = |name: &String| KexMethod::from_name(name).is_some_and(KexMethod::is_post_quantum);
    let is_weak = !driver.proto.active_algorithms()?.kex.is_post_quantum();
    let warns =
        host.warn_weak_crypto == WeakCryptoWarning::Yes && host.kex_algorithms.iter().any(is_post_quantum);
    (warns && is_weak).then_some(
        "** WARNING: connection is not using a post-quantum key exchange algorithm.\n\
         ** This session may be vulnerable to \"store now, decrypt later\" attacks.\n\
         ** The server may need to be upgraded. See https://openssh.com/pq.html",
    )
}

async fn check_host_key(
    handshake: &Handshake,
    policy: &Policy,
    trust: &Trust,
    server: &Server<'_>,
    key: &[u8],
) -> Result<(Accepted, HostKeyCheck), Error> {
    let interaction = &handshake.interaction;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    if handshake.host.visual_host_key && handshake.host.tells() {
        interaction.notice(&host_key::picture(key));
    }
    let shown = format!(
        "Server host key: {} {}",
        signature::key_type(key).unwrap_or("unknown"),
        signature::fingerprint(key)
    );
    interaction.log(LogLevel::Debug1, &shown);
    let decision = host_key::decide(policy, trust, server, key, now);
    let decision = match handshake.login.judge(decision, server, key).await {
        Decision::Ask(question) => question.put_to(interaction.prompter()).await,
        decision => decision,
    };
    let accepted = match decision {
        Decision::Accept(accepted) => accepted,
        Decision::AcceptAndRemember(accepted, remember) => {
            // First of all, as in ssh: this process may end with the command. A full disk only gives a warning.
            let written = tokio::task::spawn_blocking(move || match remember.write() {
                Ok(_) => remember.notice(),
                Err(error) => error.to_string(),
            });
            if let Ok(warning) = written.await
                && handshake.host.tells()
            {
                interaction.notice(&format!("Warning: {warning}"));
            }
            accepted
        }
        Decision::Reject(error) => return Err(error.into()),
        Decision::Ask(_) => {
            return Err(Error::Bug("the host key was neither accepted nor refused"));
        }
    };
    let name = server.lookup_name();
    match &accepted.known_at {
        Some(at) => {
            let key_type = host_key::shown_type(key);
            let known = format!("Host '{name}' is known and matches the {key_type} host key.");
            interaction.log(LogLevel::Debug1, &known);
            interaction.log(LogLevel::Debug1, &format!("Found key in {at}"));
        }
        None => interaction.log(
            LogLevel::Debug1,
            &format!("Host '{name}' was not known by this host key before"),
        ),
    }
    for warning in &accepted.warnings {
        interaction.warn(warning);
    }
    let checked = HostKeyCheck {
        rule: policy.strict,
        passes: host_key::strictest_that_passes(policy, trust, server, key, now),
        known_at: accepted.known_at.as_ref().map(ToString::to_string),
        is_unverified: accepted.is_unverified,
    };
    Ok((accepted, checked))
}

fn policy(host: &HostConfig) -> Policy {
    Policy {
        strict: host.strict_host_key_checking,
        update: host.update_host_keys,
        check_host_ip: host.check_host_ip,
        no_host_authentication_for_localhost: host.no_host_authentication_for_localhost,
        hash_known_hosts: host.hash_known_hosts,
        user_files: host.user_known_hosts_files.clone(),
        global_files: host.global_known_hosts_files.clone(),
        revoked_file: host.revoked_host_keys.clone(),
        ca_signature_algorithms: host.ca_signature_algorithms.clone(),
        required_rsa_bits: host.required_rsa_size as usize,
    }
}

/// OpenSSH's default cipher orders (9.2's and 10.x's). A user with one of them has not chosen an order, and gets the
/// fastest ciphers on this machine first.
const UNCHOSEN_CIPHERS: [&[&str]; 2] = [
    &[
        "chacha20-poly1305@openssh.com",
        "aes128-ctr",
        "aes192-ctr",
        "aes256-ctr",
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
    ],
    &[
        "chacha20-poly1305@openssh.com",
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
        "aes128-ctr",
        "aes192-ctr",
        "aes256-ctr",
    ],
];

/// Returns the algorithms that the engine supports, in the order in which the user's ssh would offer them.
fn preferences(host: &HostConfig, trust: &Trust, name: &str) -> Preferences {
    let mut kex: Vec<KexMethod> = host
        .kex_algorithms
        .iter()
        .filter_map(|name| KexMethod::from_name(name))
        .collect();
    // ssh before 9.9 does not know this method. Users who have not chosen get it, as in newer versions, if this ssh has
    // the elliptic curve that is half of it: one for FIPS does not.
    let newest = KexMethod::MlKem768X25519Sha256;
    if host.kex_is_default && !kex.contains(&newest) && kex.contains(&KexMethod::Curve25519Sha256) {
        kex.insert(0, newest);
    }
    let mut ciphers: Vec<Cipher> = host
        .ciphers
        .iter()
        .filter_map(|name| Cipher::from_name(name))
        .collect();
    if UNCHOSEN_CIPHERS
        .iter()
        .any(|order| host.ciphers.iter().eq(order.iter()))
        && has_aes_instructions()
    {
        ciphers.sort_by_key(|cipher| !matches!(cipher, Cipher::Aes128Gcm | Cipher::Aes256Gcm));
    }
    let macs: Vec<Mac> = host.macs.iter().filter_map(|name| Mac::from_name(name)).collect();
    // sshconnect2.c, order_hostkeyalgs: only an order that the user has not chosen is changed.
    let ordered = if host.host_key_order_is_free {
        trust.known.order_algorithms(name, &host.host_key_algorithms)
    } else {
        host.host_key_algorithms.to_vec()
    };
    let host_keys: Vec<String> = ordered
        .into_iter()
        .filter(|name| trunkline_proto::HOST_KEY_ALGORITHMS.contains(&name.as_str()))
        .collect();
    // As in ssh: compression when configured, else only if the server insists.
    let compression = if host.compression {
        vec![Compression::Zlib, Compression::None]
    } else {
        vec![Compression::None, Compression::Zlib]
    };
    Preferences {
        kex,
        host_keys,
        ciphers,
        macs,
        compression,
    }
}

fn has_aes_instructions() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

fn protocol_config(host: &HostConfig, facts: &HostFacts, trust: &Trust) -> Result<Config, Error> {
    let name = known_hosts::lookup_name(&host.hostname, host.port, host.host_key_alias.as_deref());
    let mut preferences = preferences(host, trust, &name);
    if host.host_key_order_is_free {
        lead_as_the_server_did(&mut preferences, facts, trust, &name);
    }
    let mut config = Config::new(&host.user);
    config.preferences = preferences;
    config.early_kexinit = !facts.lessons.has(Lesson::NoEarlyKexinit);
    config.early_flights = !facts.lessons.has(Lesson::NoPipelining);
    config.known_sshd = facts.lessons.has(Lesson::Sshd);
    config.rekey_limit = RekeyLimit {
        bytes: host.rekey_limit.bytes,
        interval: host.rekey_limit.interval,
    };
    first_packet(&mut config, facts)?;
    Ok(config)
}

/// Moves what this server listed first to the front of our lists, because a guess is right only if both sides list the
/// same algorithms first. Never weakens the choice: a classical method does not pass a post-quantum one, and a host key
/// type only moves if the host is known by such a key.
fn lead_as_the_server_did(preferences: &mut Preferences, facts: &HostFacts, trust: &Trust, name: &str) {
    let method = facts.kex_first.as_deref().and_then(KexMethod::from_name);
    if let Some(at) = method.and_then(|method| preferences.kex.iter().position(|known| *known == method)) {
        let weaker = !preferences.kex[at].is_post_quantum()
            && preferences.kex[..at].iter().any(|k| k.is_post_quantum());
        if !weaker {
            preferences.kex[..=at].rotate_right(1);
        }
    }
    let known = trust.known.key_types_for(name);
    let first = facts.host_key_first.as_deref();
    if let Some(at) = first.and_then(|first| preferences.host_keys.iter().position(|name| name == first))
        && !keys::is_certificate_algorithm(&preferences.host_keys[at])
        && keys::key_type_of_algorithm(&preferences.host_keys[at])
            .is_some_and(|kind| known.plain.contains(&kind))
        && !known.cert_authority
    {
        preferences.host_keys[..=at].rotate_right(1);
    }
}

/// Generates the first packet of the preferred method ahead of time, if it is likely to be used.
fn first_packet(config: &mut Config, facts: &HostFacts) -> Result<(), Error> {
    // If there is none, the key exchange reports it.
    let Some(&method) = config.preferences.kex.first() else {
        return Ok(());
    };
    let same_kex = facts.kex_first.as_deref() == Some(method.name());
    let guess_is_right = same_kex && facts.host_key_first.as_ref() == config.preferences.host_keys.first();
    // A server that preferred another method last time will not agree to it.
    if !guess_is_right && facts.kex_first.is_some() && !same_kex {
        return Ok(());
    }
    let ephemeral = method
        .generate()
        .map_err(|error| Error::local("making a key", std::io::Error::other(error.to_string())))?;
    if guess_is_right {
        config.guess = Some(ephemeral);
    } else {
        config.prepared = Some(ephemeral);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_busy_is_tried_for_half_a_minute_and_an_angry_one_once() {
        let error = Error::ClosedByPeer {
            host: "web1".into(),
            during: Some(LogInStage::Identification),
            reset: false,
        };
        for (greeting, attempts, seconds) in [
            ("Exceeded MaxStartups", 10, 26.0..39.0),
            ("out of memory", 4, 2.8..4.2),
            ("", 4, 2.4..3.6),
            ("Not allowed at this time", 1, 0.0..1.0),
        ] {
            let mut attempt = Attempt {
                number: 1,
                early_kexinit: true,
            };
            let mut waited = Duration::ZERO;
            while let Some((next, pause)) = attempt.next_attempt(&error, greeting) {
                attempt = next;
                waited += pause;
            }
            assert_eq!(attempt.number, attempts, "{greeting}");
            assert!(seconds.contains(&waited.as_secs_f64()), "{greeting}: {waited:?}");
        }
    }
}
