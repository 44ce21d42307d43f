//! The connections to one host, shared by all that may share them.

pub(crate) mod policy;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch};
use tokio_util::task::TaskTracker;
use trunkline_proto::ChannelKind;
use trunkline_request::connection::{ConnectionReport, Handshake};
use trunkline_sftp::bridge::KnownPaths;
use trunkline_sftp::transfer::NameBudget;

use crate::config::{ControlPersist, HostConfig, LogIn, LogInTerms, Request, SharingKey, World};
use crate::connection::channel::ChannelStream;
use crate::connection::channel::ChannelTerms;
use crate::connection::driver::SURE_TEXT;
use crate::connection::lease::{End, Lease};
use crate::connection::login::Login;
use crate::connection::session::{Command, Session, SpareSession, Starting};
use crate::connection::timing::idle::{Activity, Idle};
use crate::connection::{ASKED_LONG, Connection, ConnectionInfo, Shown};
use crate::error::{Error, Execution};
use crate::interaction::{Client, Interaction, KnownClient, Waiting};
use crate::memory::{HostId, Learner, Lesson, Memory};
use crate::metrics::{Metrics, Opening, Queue};
use crate::prompt::Answerer;
use crate::settings::Settings;
use policy::{
    Demand, LaneId, Load, Loss, Patience, Placement, Policy, Refusal, Reuse, Spares, Tally, Verdict,
};

/// Makes a new connection to the pool's host, as its caller wants it, and where there is one already, logged in to like that.
type Connector = Box<dyn Fn(&Caller, Option<LogIn>) -> Connection + Send + Sync>;

/// Where a host's configuration came from, and with it the way there.
#[derive(Clone)]
pub(crate) enum Way {
    /// From ssh_config.
    Resolved(Request),
    /// From the program.
    Given(Login),
}

impl Way {
    /// The surroundings of whoever reaches a host by ssh_config.
    pub(crate) fn world(&self) -> Option<&Arc<World>> {
        match self {
            Self::Resolved(request) => Some(&request.world),
            Self::Given(_) => None,
        }
    }

    /// The most connections that the program allows, where it has a say.
    pub(crate) fn connections(&self) -> Option<usize> {
        match self {
            Self::Resolved(_) => None,
            Self::Given(login) => Some(login.most_connections()),
        }
    }
}

/// Who needs a connection. Callers who share have the same [`SharingKey`], or one that [may meet](SharingKey::may_meet) the
/// pool's; in all that is not in it (time limits, keepalives, what is remembered of keys), a new connection goes by the one who
/// asked for it.
#[derive(Clone)]
pub(crate) struct Caller {
    /// Apart: callers are moved and cloned much.
    pub(crate) key: Arc<SharingKey>,
    pub(crate) config: Arc<HostConfig>,
    pub(crate) way: Way,
    pub(crate) interaction: Interaction,
    /// Of all its channels.
    pub(crate) activity: Activity,
}

impl Caller {
    /// Who answers for it, where another connection is made.
    pub(crate) fn answerer(&self) -> Answerer {
        self.interaction.prompter().answerer()
    }

    /// The configuration's word on a channel of this kind.
    pub(crate) fn terms(&self, kind: &ChannelKind) -> ChannelTerms {
        ChannelTerms {
            idle: Idle::for_channel(&self.config, kind.name(), &self.activity),
            keystrokes: self.config.obscure_keystroke_timing,
        }
    }
}

/// Why nothing was begun in a pool.
#[derive(Debug)]
pub(crate) enum Unplaced {
    /// Its connections are not logged in to as the caller would have: it is another pool's.
    Elsewhere,
    Failed(Error),
}

impl Unplaced {
    /// The outcome here; `None` where another pool is to be asked.
    pub(crate) fn here<T>(placed: Result<T, Self>) -> Option<Result<T, Error>> {
        match placed {
            Ok(placed) => Some(Ok(placed)),
            Err(Self::Failed(error)) => Some(Err(error)),
            Err(Self::Elsewhere) => None,
        }
    }
}

impl From<Error> for Unplaced {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The connections to one host.
///
/// Those whose key is the pool's make its connections. Others are guests, on connections that they
/// [would have made](LogInTerms::objection) so, and make only further ones, like those that are there.
pub(crate) struct Pool {
    key: SharingKey,
    host: Arc<HostConfig>,
    connector: Connector,
    /// The memory of the host.
    learner: Learner,
    metrics: Arc<Metrics>,
    /// The memory that listed names take, of all hosts.
    names: NameBudget,
    /// The knowledge of the server's paths that carried SFTP sessions share.
    paths: KnownPaths,
    /// SFTP sessions that still remove what they leave, of all hosts.
    leaving: TaskTracker,
    settings: Settings,
    /// The program has said how many connections it allows, and answers for each.
    is_given: bool,
    state: Mutex<State>,
    /// Woken when a place may have become free, and when a connection was made or has failed.
    freed: Notify,
    /// Those who wait for a place.
    queue: Queue,
    /// Whether traffic keeps new sessions away from a lane.
    apart: watch::Sender<bool>,
}

struct State {
    policy: Policy,
    lanes: HashMap<LaneId, Lane>,
    pinned: bool,
    /// Why the only connection could not be made, the last time that this happened: for those who were waiting for it.
    failed: Option<(Instant, Connection)>,
    /// A connection that had been made was lost, and no other was begun yet.
    lost: bool,
    /// Nothing is to be connected any more.
    ended: bool,
    /// It was asked to close, now or when nobody uses it any more.
    is_closing: bool,
    /// Whether each use of the connections by another client than those who made them is to be confirmed. Once one who
    /// shares them has said so, it holds for all of them.
    confirms: bool,
    /// Who may use them without being asked: who made them, and who was allowed to.
    allowed: Vec<KnownClient>,
    /// Where the first of them was made, or is about to be: whoever wants to use them is not to choose who is asked.
    owner: Option<Arc<World>>,
}

/// When the round trip is measured where the answers to what was asked anyway have not shown it often enough: a machine that
/// connects to hundreds at once is done with that after one of these times.
const MEASURED: [Duration; 3] = [
    Duration::from_secs(5),
    Duration::from_secs(20),
    Duration::from_secs(80),
];

struct Lane {
    connection: Connection,
    spares: VecDeque<SpareSession>,
    /// One that is tried out.
    trial: Option<SpareSession>,
    /// How many have it [held](Pool::hold).
    holders: u32,
    /// It is logged in to like one that was there before.
    is_like_another: bool,
    /// How often the round trip was measured on purpose.
    measured: usize,
}

impl Lane {
    /// Has the round trip measured: the log-in's answers take longer where the server, or this machine, has much to do.
    fn measure(&mut self) {
        let age = || self.connection.info()?.since.elapsed().ok();
        if MEASURED.get(self.measured).is_none_or(|due| age() < Some(*due)) {
            return;
        }
        self.measured += 1;
        if (self.connection.metrics().rtt_measurements() as usize) < MEASURED.len() {
            self.connection.measure();
        }
    }
}

/// When connections end that are to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    Now,
    /// Nothing runs on them.
    WhenSessionsEnd,
    /// Nothing runs on them, and nobody [holds](Pool::hold) them.
    WhenReleased,
}

/// The state of a lane, for people.
#[derive(Debug, Clone)]
pub struct LaneStatus {
    /// The facts of its connection; `None` while it is being made.
    pub info: Option<ConnectionInfo>,
    /// The report of it.
    pub report: ConnectionReport,
}

impl Pool {
    /// For `first`, and all who share with it. `connections`: the most that there may be, if not as many as the settings say. Where it is one, what the server
    /// refuses on it fails; elsewhere it waits for a place.
    pub(crate) fn new(
        first: &Caller,
        mut settings: Settings,
        connections: Option<usize>,
        memory: &Arc<Memory>,
        metrics: Arc<Metrics>,
        (names, leaving): (NameBudget, TaskTracker),
        connector: Connector,
    ) -> Arc<Self> {
        let (key, host) = (*first.key, first.config.clone());
        let learner = Learner::new(memory, HostId::of(&host));
        let limit = learner.facts().lessons.number(Lesson::MaxSessions);
        let idle = match host.control_persist {
            // Without a ControlMaster, "no" is only what nobody has set.
            ControlPersist::No => Some(settings.idle_timeout),
            ControlPersist::Forever => None,
            ControlPersist::For(time) => Some(time),
        };
        settings.max_lanes = connections.map_or(settings.max_lanes, |most| most.min(settings.max_lanes));
        let policy = Policy::new(settings.clone(), limit, idle, Instant::now());
        let policy = match connections {
            Some(1) => policy.single(),
            _ => policy,
        };
        let state = Mutex::new(State {
            policy,
            lanes: HashMap::new(),
            pinned: false,
            failed: None,
            lost: false,
            ended: false,
            is_closing: false,
            confirms: false,
            allowed: Vec::new(),
            owner: None,
        });
        Arc::new(Self {
            key,
            host,
            connector,
            learner,
            metrics,
            names,
            paths: KnownPaths::default(),
            leaving,
            settings,
            is_given: connections.is_some(),
            state,
            freed: Notify::new(),
            queue: Queue::default(),
            apart: watch::Sender::new(false),
        })
    }

    pub(crate) fn key(&self) -> SharingKey {
        self.key
    }

    pub(crate) fn host(&self) -> &Arc<HostConfig> {
        &self.host
    }

    /// Whether there are connections, made or being made.
    pub(crate) fn has_connections(&self) -> bool {
        let mut state = self.state();
        state.refresh(&self.host, Instant::now());
        !state.lanes.is_empty()
    }

    /// Whether a guest may use the connections that there are: each is one that it would have made so.
    pub(crate) fn admits(&self, terms: &LogInTerms) -> bool {
        let mut state = self.state();
        state.refresh(&self.host, Instant::now());
        state.admits(terms)
    }

    /// Whether a caller makes the pool's connections, or may use those that there are.
    fn is_for(&self, state: &State, caller: &Caller) -> bool {
        self.is_given || *caller.key == self.key || state.admits(&caller.config.log_in_terms())
    }

    /// Guards the policy and the table of lanes, for as long as a decision takes; never held across an await.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a command on the best lane. Only on the first connection to the host, which is made for it, does it leave
    /// before the server has opened its session; everywhere else nothing has begun when the session or the connection is
    /// refused, and the command gets another place.
    pub(crate) async fn session(
        self: &Arc<Self>,
        command: &Command,
        caller: &Caller,
    ) -> Result<Session, Unplaced> {
        let load = match self.may_end_with(command) {
            true => Load::SessionApart,
            false => Load::Session,
        };
        self.session_placed(command, caller, load).await
    }

    /// Starts a command on a connection with nothing else on it, where there may be one more; else as [`Self::session`].
    pub(crate) async fn session_apart(
        self: &Arc<Self>,
        command: &Command,
        caller: &Caller,
    ) -> Result<Session, Unplaced> {
        self.session_placed(command, caller, Load::SessionApart).await
    }

    /// Whether a server that takes no request as long as this command's would end everybody's connection at it: it gets one of
    /// its own then, until such a length is known to be taken.
    fn may_end_with(&self, command: &Command) -> bool {
        let length = command.longest_text();
        if length <= SURE_TEXT {
            return false;
        }
        let lessons = self.learner.facts().lessons;
        let taken = lessons.number(Lesson::TextTaken);
        let is_taken = taken.is_some_and(|taken| usize::try_from(taken).is_ok_and(|taken| length <= taken));
        !is_taken && !self.is_sshd()
    }

    async fn session_placed(
        self: &Arc<Self>,
        command: &Command,
        caller: &Caller,
        load: Load,
    ) -> Result<Session, Unplaced> {
        let asked_at = Instant::now();
        // A server that refuses and then ends the connection has said why.
        let mut refused = None;
        let mut misplaced = Misplaced::default();
        loop {
            let placed = match self.place_load(caller, load).await {
                Err(Unplaced::Failed(error @ Error::Closed { .. })) => {
                    return Err(refused.unwrap_or(error).into());
                }
                placed => placed?,
            };
            let Placed {
                lane,
                connection,
                mut lease,
                how,
            } = placed;
            connection.warn(&caller.interaction);
            let opening = how.opening();
            let watched = self.watches(&how, &misplaced);
            let is_spare = matches!(how, How::Spare(_));
            // A command in a session that is open already would be on its way before anybody knows whether it arrives.
            let mut answer = self.asked(&connection);
            if is_spare && let Some(answer) = answer.take() {
                match self.proven(lane, &connection, answer).await {
                    Attempt::Done(proven) => proven?,
                    Attempt::Elsewhere => continue,
                }
            }
            // Started without the lock: a connection that has ended meanwhile refuses at once, and gives the lease back.
            let mut session = match how {
                How::WithLogIn => {
                    let session =
                        connection.start_with(command, Some(lease), caller.terms(&ChannelKind::Session));
                    self.state().policy.first_asked(lane);
                    self.freed.notify_waiters();
                    session
                }
                How::Spare(spare) => {
                    connection.start_in(*spare, command, lease, caller.terms(&ChannelKind::Session))
                }
                How::Open(asked) => {
                    let mut session = connection.spare();
                    match self
                        .attempt(lane, load, &connection, caller, session.opened())
                        .await
                    {
                        Attempt::Done(Ok(())) => self.state().policy.session_opened(lane, asked),
                        Attempt::Done(Err(error)) => {
                            // Nothing was asked for in it: it certainly did not start.
                            lease.ends(End::NeverOpened);
                            let Error::Refused { reason: 1.., .. } = error else {
                                drop(lease);
                                if self
                                    .lost_before_session(lane, &connection, &error, answer, &mut misplaced)
                                    .await
                                {
                                    refused = Some(error);
                                    continue;
                                }
                                return Err(error.into());
                            };
                            let verdict = match self.session_refused(lane, false, asked) {
                                Verdict::Final if self.refuses_first(lane, &mut misplaced) => {
                                    Verdict::PlaceAnew
                                }
                                verdict => verdict,
                            };
                            misplaced.refusals += u32::from(self.state().policy.reuse() == Reuse::Doubted);
                            match verdict {
                                Verdict::PlaceAnew => {
                                    self.metrics.counters.session_overflows.add(1);
                                    refused = Some(error);
                                    continue;
                                }
                                Verdict::Final => return Err(error.into()),
                            }
                        }
                        Attempt::Elsewhere => {
                            if session.withdraw() {
                                lease.ends(self.withdrawn());
                            }
                            continue;
                        }
                    }
                    connection.start_in(session, command, lease, caller.terms(&ChannelKind::Session))
                }
            };
            connection.metrics().sessions.add(1);
            session.time(self.metrics.clone(), opening, asked_at);
            self.open_spares(lane);
            let started = (command, &mut session);
            if watched
                && let Err(error) = self
                    .learn_from_start((lane, &connection), is_spare, started, &mut misplaced)
                    .await
            {
                refused = Some(error);
                continue;
            }
            return Ok(session);
        }
    }

    /// How a session ends that was withdrawn before it was open. The server may have opened one for it together with the log-in,
    /// and may have no other for this connection.
    fn withdrawn(&self) -> End {
        match self.state().policy.reuse() {
            Reuse::Several => End::NeverOpened,
            _ => End::Left,
        }
    }

    /// Whether the start of a session shows something that is not known of the server yet, so that its answer is waited for.
    /// The only connection of a program is left out: the program is told what the server says.
    fn watches(&self, how: &How, misplaced: &Misplaced) -> bool {
        let is_spare = matches!(how, How::Spare(_));
        let untried_spare = || is_spare && self.learner.facts().lessons.number(Lesson::Spares) == Some(1);
        // At the first contact nothing else is on the connection yet, and what is asked for can be withdrawn until it is made.
        let is_first = matches!(how, How::WithLogIn) && self.learner.facts().banner.is_none();
        let untried = || matches!(self.state().policy.reuse(), Reuse::Untried | Reuse::Doubted);
        let unknown = || untried() || !is_spare && self.may_go_ahead() || untried_spare();
        !self.is_given && (misplaced.refusals > 0 || !is_first && unknown())
    }

    /// Waits for the server's answer to a session's start, and remembers what it shows. An error is a refusal behind which
    /// the session is placed anew: it is the server's word that nothing has begun.
    async fn learn_from_start(
        &self,
        (lane, connection): (LaneId, &Connection),
        is_spare: bool,
        (command, session): (&Command, &mut Session),
        misplaced: &mut Misplaced,
    ) -> Result<(), Error> {
        let starting = Starting::new(command, session);
        let started = session.started().await;
        starting.ended();
        let mut state = self.state();
        let is_alone = state.policy.is_alone_on(lane);
        let Err(error) = started else {
            let ran_before = state.policy.ran(lane);
            let is_known = state.policy.reuse() == Reuse::Several;
            // A lane that is gone already, with its only session.
            let was_alone = !state.lanes.contains_key(&lane) && state.policy.reuse() == Reuse::Doubted;
            drop(state);
            if is_spare {
                self.learner.learn(Lesson::Spares, 2);
            }
            match is_alone || was_alone {
                true if misplaced.refusals > 0 => self.learn_one_session(),
                false if ran_before && !is_known => self.learn_several_sessions(),
                _ => {}
            }
            return Ok(());
        };
        // The server's refusal; or it has closed the session before the command was sent, or the connection went with
        // another session's refusal.
        let is_refusal = match error.root() {
            Error::Refused { reason: 0, .. } => true,
            Error::Closed { .. } => !state.is_closing && !state.ended,
            _ => false,
        } && error.execution() == Execution::DidNotStart;
        let went_ahead = connection.info().is_some_and(|info| info.went_ahead);
        if !is_refusal || misplaced.in_all() >= MOST_PLACES {
            return Ok(());
        }
        if went_ahead && !is_spare {
            // libssh's example, which lets its user in while it still exchanges keys, takes no command then.
            self.learner.learn(Lesson::NoPipelining, 1);
            state.policy.retire(lane);
            misplaced.ahead += 1;
            return Err(error);
        }
        if is_spare || !is_alone && state.policy.reuse() != Reuse::Several {
            state.policy.doubt_reuse(lane);
            misplaced.refusals += 1;
            drop(state);
            if is_spare {
                self.learn_no_spares();
            }
            return Err(error);
        }
        // It is refused everywhere, which says nothing of connections.
        if state.policy.reuse() == Reuse::Doubted {
            state.policy.set_reuse(Reuse::Untried);
        }
        Ok(())
    }

    /// The server has refused a session on a connection that nobody had one on. Whether it gets another place, once: the
    /// server may have counted one that was given up while it was opened.
    fn refuses_first(&self, lane: LaneId, misplaced: &mut Misplaced) -> bool {
        let mut state = self.state();
        let again = !self.is_given
            && state.policy.reuse() != Reuse::Several
            && !std::mem::replace(&mut misplaced.by_first_refusal, true);
        if again {
            state.policy.retire(lane);
        }
        again
    }

    /// Whether the log-in to a server that is not sshd goes ahead of its answers: its first session has to take a command then.
    fn may_go_ahead(&self) -> bool {
        let facts = self.learner.facts();
        let never = facts.lessons.has(Lesson::Sshd) || facts.lessons.has(Lesson::NoPipelining);
        self.settings.early_flights && facts.banner.is_some() && !never
    }

    fn learn_several_sessions(&self) {
        self.learner.learn(Lesson::SeveralSessions, 1);
        self.state().policy.set_reuse(Reuse::Several);
        self.freed.notify_waiters();
    }

    /// A connection has ended before a session was opened on it. Whether the session gets another place, once: on a
    /// connection that had others there, that was not to be foreseen.
    async fn lost_before_session(
        &self,
        lane: LaneId,
        connection: &Connection,
        error: &Error,
        answer: Option<Answer>,
        misplaced: &mut Misplaced,
    ) -> bool {
        let was_there = has_come(answer);
        let was_made = connection.info().is_some();
        if !was_made || misplaced.by_loss || !is_lost(connection, error) {
            return false;
        }
        if matches!(connection.ended().await.root(), Error::Closed { .. }) {
            return false;
        }
        misplaced.by_loss = true;
        let mut state = self.state();
        // What had been lost before the session was asked for says nothing of sessions.
        if was_there && !state.policy.is_alone_on(lane) && state.policy.reuse() == Reuse::Untried {
            // One that ends the connection for a second session would do so again.
            state.policy.doubt_reuse(lane);
            misplaced.refusals += 1;
        }
        true
    }

    /// Tries, once for a host, whether a session that is opened ahead lasts: it is opened on a lane that is idle, so that it
    /// costs nobody anything, and looked at when another session has come and gone.
    fn try_spare(self: &Arc<Self>, id: LaneId) {
        let mut state = self.state();
        let State { policy, lanes, .. } = &mut *state;
        let Some(lane) = lanes.get_mut(&id) else { return };
        let connection = lane.connection.clone();
        if policy.has_outlived(id) {
            if let Some(spare) = lane.trial.take() {
                let limit = self.settings.probe_limit;
                let pool = Arc::downgrade(self);
                tokio::spawn(async move {
                    let outcome = look_at(spare, &connection, limit).await;
                    if let Some(pool) = pool.upgrade() {
                        pool.end_trial(id, outcome);
                    }
                });
            }
        } else if policy.begin_trial(id) {
            tokio::spawn(Self::open_trial(
                Arc::downgrade(self),
                id,
                connection,
                self.settings.probe_limit,
            ));
        }
    }

    async fn open_trial(pool: Weak<Self>, id: LaneId, connection: Connection, limit: Duration) {
        let Some(waits) = pool.upgrade().map(|pool| pool.state().policy.trials_wait()) else {
            return;
        };
        // Behind its answer, all that had ended is settled.
        let answered = !waits || connection.ping(limit).await.is_ok();
        let opens = |pool: &Self| answered && pool.state().policy.open_trial(id);
        match pool.upgrade() {
            Some(pool) if opens(&pool) => {}
            Some(pool) => return pool.end_trial(id, Outcome::Nothing),
            None => return,
        }
        let mut spare = connection.spare();
        let opened = spare.opened().await;
        let Some(pool) = pool.upgrade() else { return };
        let outcome = match opened {
            Ok(()) => {
                if let Some(lane) = pool.state().lanes.get_mut(&id) {
                    lane.trial = Some(spare);
                    return;
                }
                Outcome::Nothing
            }
            Err(Error::Refused { .. }) => match pool.state().policy.trial_refused(id) {
                Refusal::TooSoon => Outcome::Nothing,
                Refusal::OfASecond => Outcome::OnlyOneSession,
                Refusal::OfMore => Outcome::Dies,
            },
            // The connection was closed from here, or has ended.
            Err(_) => match connection.ended().await.root() {
                Error::Closed { .. } => Outcome::Nothing,
                _ => Outcome::Dies,
            },
        };
        pool.end_trial(id, outcome);
    }

    fn end_trial(&self, id: LaneId, outcome: Outcome) {
        match outcome {
            Outcome::Lasts(spare) => {
                self.learner.learn(Lesson::Spares, 1);
                let mut state = self.state();
                state.policy.keep_spares(Spares::Kept);
                let kept = state.lanes.get_mut(&id).map(|lane| lane.spares.push_back(*spare));
                state.policy.end_trial(id, kept.is_some());
            }
            Outcome::OnlyOneSession => {
                self.learn_no_spares();
                self.learn_one_session();
                let mut state = self.state();
                state.policy.end_trial(id, false);
                state.policy.retire(id);
            }
            Outcome::Dies => {
                self.learn_no_spares();
                self.state().policy.end_trial(id, false);
            }
            Outcome::Nothing => self.state().policy.end_trial(id, false),
        }
        self.close_retired();
        self.freed.notify_waiters();
    }

    /// Opens a tunnel on the best lane.
    pub(crate) async fn tunnel(
        self: &Arc<Self>,
        kind: ChannelKind,
        caller: &Caller,
    ) -> Result<ChannelStream, Unplaced> {
        let mut was_lost = false;
        loop {
            let placed = self.place_load(caller, Load::Tunnel).await?;
            let (lane, connection) = (placed.lane, placed.connection);
            connection.warn(&caller.interaction);
            let was_made = connection.is_ready();
            let answer = self.asked(&connection);
            let opening = connection.open_stream(kind.clone(), Some(placed.lease), caller.terms(&kind));
            match self
                .attempt(lane, Load::Tunnel, &connection, caller, opening)
                .await
            {
                Attempt::Done(Ok(opened)) => {
                    self.state().policy.channel_opened(lane);
                    return Ok(opened);
                }
                // Nothing has gone through it. Once: a tunnel that ends its connection would do so again.
                Attempt::Done(Err(error))
                    if was_made
                        && !was_lost
                        && is_lost(&connection, &error)
                        && !matches!(connection.ended().await.root(), Error::Closed { .. }) =>
                {
                    was_lost = has_come(answer);
                }
                Attempt::Done(Err(error)) => return Err(error.into()),
                Attempt::Elsewhere => {}
            }
        }
    }

    /// Waits for a place.
    ///
    /// # Errors
    /// The connections were ended; the first connection, which was to have it, could not be made; it is another pool's.
    async fn place_load(self: &Arc<Self>, caller: &Caller, load: Load) -> Result<Placed, Unplaced> {
        let begun = Instant::now();
        let mut shown = None;
        loop {
            let freed = self.freed.notified();
            match self.find_place(caller, load, begun)? {
                Lookup::Place(placed) => return Ok(placed),
                Lookup::NotYet(look_again) => {
                    let _waiting = self.queue.wait();
                    let mut changed = std::pin::pin!(wait_for_change(freed, look_again));
                    if let Some(made) = self.connections().into_iter().find(|lane| !lane.is_ready()) {
                        made.awaited(&caller.interaction, changed).await?;
                        continue;
                    }
                    if shown.is_none() {
                        tokio::select! {
                            biased;
                            () = &mut changed => continue,
                            () = tokio::time::sleep_until((begun + ASKED_LONG).into()) => {}
                        }
                        let host = caller.config.who();
                        shown = Some(Shown::new(&caller.interaction, &Waiting::Session { host }));
                    }
                    changed.await;
                }
            }
        }
    }

    fn find_place(self: &Arc<Self>, caller: &Caller, load: Load, begun: Instant) -> Result<Lookup, Unplaced> {
        self.check_not_ended()?;
        let now = Instant::now();
        let demand = Demand {
            load,
            answerer: caller.answerer(),
        };
        let mut state = self.state();
        state.refresh(&self.host, now);
        if !self.is_for(&state, caller) {
            return Err(Unplaced::Elsewhere);
        }
        if let Some((at, connection)) = &state.failed
            && *at >= begun
            && let Some(error) = connection.end()
            && !connection.is_left_to(&caller.interaction, &error)
        {
            return Err(error.into());
        }
        loop {
            let (lane, how) = match state.policy.place(demand, now) {
                Placement::Wait(look_again) => return Ok(Lookup::NotYet(look_again)),
                Placement::Spare(id) => {
                    let spares = state.lanes.get_mut(&id).map(|lane| &mut lane.spares);
                    let spare = spares.and_then(VecDeque::pop_front);
                    match spare.filter(|spare| !spare.is_closed()) {
                        Some(spare) => (id, How::Spare(Box::new(spare))),
                        // The server has closed it meanwhile.
                        None => {
                            state.policy.session_ended(id, now, End::Closed, now);
                            let is_open = state.lanes.get(&id).is_some_and(|lane| lane.connection.is_open());
                            if is_open && !self.learner.has(Lesson::Sshd) {
                                self.learner.learn(Lesson::NoSpares, 1);
                                state.policy.keep_spares(Spares::None);
                            }
                            continue;
                        }
                    }
                }
                Placement::Open(id) => (id, How::Open(state.policy.asks(id))),
                Placement::Connect(id) => {
                    // To a server known as sshd, a session for the next command is asked for in the same flight.
                    self.recall(&mut state.policy, false);
                    self.connect(&mut state, id, caller);
                    let how = match state.policy.is_further(id) {
                        true => {
                            self.metrics.counters.further_connections.add(1);
                            How::Open(Tally::default())
                        }
                        false => {
                            if std::mem::take(&mut state.lost) {
                                self.metrics.counters.reconnects.add(1);
                            }
                            How::WithLogIn
                        }
                    };
                    (id, how)
                }
            };
            let Some(found) = state.lanes.get(&lane) else {
                // Unreachable: the policy's lanes are those of the table.
                state.policy.lane_closed(lane);
                continue;
            };
            return Ok(Lookup::Place(Placed {
                lane,
                connection: found.connection.clone(),
                lease: self.lease(lane, load == Load::Tunnel, now),
                how,
            }));
        }
    }

    /// Opens a channel on a lane. While that waits for a log-in beside others, and where the server has come to say nothing, looks
    /// for a better place; nothing that a further log-in comes to is an error.
    async fn attempt<T>(
        &self,
        lane: LaneId,
        load: Load,
        connection: &Connection,
        caller: &Caller,
        opening: impl Future<Output = Result<T, Error>>,
    ) -> Attempt<T> {
        let mut opening = std::pin::pin!(connection.awaited(&caller.interaction, opening));
        let is_further = self.state().policy.is_further(lane);
        let mut doubted = std::pin::pin!(self.doubt(lane, connection));
        let opened = loop {
            let freed = self.freed.notified();
            let patience = self.state().policy.patience(lane, load, Instant::now());
            let may_be_over = async {
                match patience {
                    Patience::UntilChanged(overdue) => wait_for_change(freed, overdue).await,
                    _ => std::future::pending().await,
                }
            };
            if patience == Patience::Over {
                return Attempt::Elsewhere;
            }
            tokio::select! {
                biased;
                opened = &mut opening => break opened,
                () = &mut doubted => return Attempt::Elsewhere,
                () = may_be_over => {}
            }
        };
        match opened.flatten() {
            Err(error) if is_further && is_lost(connection, &error) => match connection.ended().await {
                error @ Error::Closed { .. } => Attempt::Done(Err(error)),
                _ => Attempt::Elsewhere,
            },
            Err(error) if connection.is_left_to(&caller.interaction, &error) => Attempt::Elsewhere,
            opened => Attempt::Done(opened),
        }
    }

    /// Asks a server that has long said nothing for an answer, which is to come before anything is risked on its connection; the
    /// servers of the other connections too, as whoever comes next may need them.
    fn asked(&self, connection: &Connection) -> Option<Answer> {
        let after = self.settings.ask_after;
        let is_silent = |connection: &Connection| {
            !after.is_zero() && connection.is_ready() && connection.metrics().silence() >= after
        };
        is_silent(connection).then(|| {
            for silent in self.connections().iter().filter(|lane| is_silent(lane)) {
                drop(silent.ask());
            }
            connection.ask().boxed()
        })
    }

    /// Waits for that answer. Without one, what was to begin has not begun and is placed anew.
    async fn proven(&self, lane: LaneId, connection: &Connection, mut answer: Answer) -> Attempt<()> {
        let answered = match tokio::time::timeout(self.settings.probe_limit / 2, &mut answer).await {
            Ok(answered) => answered,
            Err(_) if self.state().policy.doubt(lane) => {
                connection.metrics().doubted.cancel();
                return Attempt::Elsewhere;
            }
            // There is no other connection.
            Err(_) => answer.await,
        };
        match answered {
            Ok(()) => Attempt::Done(Ok(())),
            Err(_) => match connection.ended().await {
                error if matches!(error.root(), Error::Closed { .. }) => Attempt::Done(Err(error)),
                _ => Attempt::Elsewhere,
            },
        }
    }

    /// A connection that is there, for what belongs to a connection as a whole. Whether it can be used: its server is there.
    ///
    /// # Errors
    /// It was closed from here.
    pub(crate) async fn is_there(&self, connection: &Connection) -> Result<bool, Error> {
        let Some(answer) = self.asked(connection) else {
            return Ok(true);
        };
        let lane = {
            let state = self.state();
            let mut lanes = state.lanes.iter();
            lanes.find_map(|(id, lane)| lane.connection.is(connection).then_some(*id))
        };
        let Some(lane) = lane else { return Ok(true) };
        match self.proven(lane, connection, answer).await {
            Attempt::Done(proven) => proven.map(|()| true),
            Attempt::Elsewhere => Ok(false),
        }
    }

    /// Waits until nothing new goes to a lane because its server says nothing.
    async fn doubt(&self, lane: LaneId, connection: &Connection) {
        connection.metrics().doubted.cancelled().await;
        if !self.state().policy.doubt(lane) {
            std::future::pending::<()>().await;
        }
    }

    /// The first lane's connection, made if there is none, for what belongs to a connection as a whole (remote
    /// forwardings). `None` where it is another pool's.
    pub(crate) fn control(self: &Arc<Self>, caller: &Caller) -> Option<Connection> {
        let now = Instant::now();
        let mut state = self.state();
        state.refresh(&self.host, now);
        if !self.is_for(&state, caller) {
            return None;
        }
        let first = state.policy.first();
        let connection = match first.and_then(|lane| state.lanes.get(&lane)) {
            Some(lane) => lane.connection.clone(),
            None => {
                let lane = state.policy.add_lane(now);
                self.connect(&mut state, lane, caller)
            }
        };
        drop(state);
        connection.warn(&caller.interaction);
        Some(connection)
    }

    /// A place of a session or a tunnel in a lane.
    fn lease(self: &Arc<Self>, lane: LaneId, tunnel: bool, placed: Instant) -> Lease {
        let pool = Arc::downgrade(self);
        Lease::new(move |end| {
            let Some(pool) = pool.upgrade() else { return };
            let now = Instant::now();
            let mut state = pool.state();
            // What it was part of is measured while it counts.
            state.refresh(&pool.host, now);
            match (tunnel, end) {
                (false, end) => state.policy.session_ended(lane, placed, end, now),
                // The server does not limit tunnels.
                (true, End::Returned) => return,
                (true, _) => state.policy.tunnel_ended(lane, placed, now),
            }
            drop(state);
            pool.close_retired();
            pool.freed.notify_waiters();
            if !tunnel {
                pool.try_spare(lane);
            }
        })
    }

    /// Closes the lanes that get nothing new and have nothing left, so that others can take their place.
    fn close_retired(&self) {
        let mut state = self.state();
        for id in state.policy.over() {
            state.policy.lane_closed(id);
            if let Some(lane) = state.lanes.remove(&id) {
                lane.connection.close("it has done its work");
            }
        }
    }

    /// As [`Self::control`], and counts it as in use until the lease is dropped. Being asked to close ends it all the same.
    pub(crate) fn hold_control(self: &Arc<Self>, caller: &Caller) -> Option<(Connection, Lease)> {
        let (_, connection, lease) = self.hold_first(caller)?;
        Some((connection, lease))
    }

    /// As [`Self::hold_control`], and counts as a session does when it is asked to close: it ends after that, unless that is to
    /// be now.
    pub(crate) fn hold(self: &Arc<Self>, caller: &Caller) -> Option<(Connection, Lease)> {
        let (held, connection, lease) = self.hold_first(caller)?;
        if let Some(lane) = self.state().lanes.get_mut(&held) {
            lane.holders += 1;
        }
        let pool = Arc::downgrade(self);
        let release = move |_| {
            // Given back with this.
            let _place = &lease;
            let Some(pool) = pool.upgrade() else { return };
            let mut state = pool.state();
            let State {
                policy,
                lanes,
                is_closing,
                ..
            } = &mut *state;
            if let Some(lane) = lanes.get_mut(&held) {
                lane.holders = lane.holders.saturating_sub(1);
                if *is_closing && lane.holders == 0 {
                    policy.retire(held);
                    lane.connection.drain();
                }
            }
        };
        Some((connection, Lease::new(release)))
    }

    fn hold_first(self: &Arc<Self>, caller: &Caller) -> Option<(LaneId, Connection, Lease)> {
        let now = Instant::now();
        let mut state = self.state();
        state.refresh(&self.host, now);
        if !self.is_for(&state, caller) {
            return None;
        }
        let held = state.policy.hold_first(now);
        let connection = match state.lanes.get(&held) {
            Some(lane) => lane.connection.clone(),
            None => self.connect(&mut state, held, caller),
        };
        drop(state);
        connection.warn(&caller.interaction);
        Some((held, connection, self.lease(held, true, now)))
    }

    /// Whether another log-in would take an answer that `answerer` does not have at hand, so that none is made without being
    /// asked for.
    pub(crate) fn is_attended(&self, answerer: Answerer) -> bool {
        self.state().policy.is_attended(answerer)
    }

    /// The sessions that one copy may have, where no connection is added for it.
    pub(crate) fn most_together(&self, answerer: Answerer) -> Option<usize> {
        self.state().policy.most_together(answerer, Instant::now())
    }

    /// Has each use confirmed from now on.
    pub(crate) fn confirm(&self) {
        self.state().confirms = true;
    }

    /// Whether the use of what is there is to be confirmed by whoever is not its first client.
    pub(crate) fn confirms(&self) -> bool {
        self.state().confirms
    }

    /// Whether a client may use the connections without being asked. Where there are none, and nobody is about to make one,
    /// they will be this client's own.
    pub(crate) fn is_allowed(&self, client: &Client, world: Option<&Arc<World>>) -> bool {
        let mut state = self.state();
        state.refresh(&self.host, Instant::now());
        state.allowed.retain(KnownClient::is_there);
        if state.lanes.is_empty() && state.allowed.is_empty() {
            state.allowed.push(client.known());
            state.owner = world.cloned();
        }
        !state.confirms || state.allowed.iter().any(|allowed| allowed.is(client))
    }

    /// The surroundings in which the connections were made, if there are any.
    pub(crate) fn owner(&self) -> Option<Arc<World>> {
        self.state().owner.clone()
    }

    /// The program that is asked whether they may be used, if that was set.
    pub(crate) fn confirm_askpass(&self) -> &str {
        &self.settings.confirm_askpass
    }

    /// The user allows a client to use the connections.
    pub(crate) fn allow(&self, client: &Client) {
        self.state().allowed.push(client.known());
    }

    /// Keeps the first connection forever, or no longer.
    pub(crate) fn pin(&self, pinned: bool) {
        self.state().pinned = pinned;
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.state().pinned
    }

    fn connect(self: &Arc<Self>, state: &mut State, id: LaneId, caller: &Caller) -> Connection {
        let is_further = state.policy.is_further(id) && !self.is_given;
        let like = match is_further || !self.is_given && *caller.key != self.key {
            true => state.log_in(),
            false => None,
        };
        let is_like_another = like.is_some();
        let connection = if is_further {
            let caller = Caller {
                interaction: caller.interaction.clone().unattended(),
                ..caller.clone()
            };
            (self.connector)(&caller, like)
        } else {
            (self.connector)(caller, like)
        };
        if state.ended {
            // Whoever asked hears so from it; nothing is dialled.
            connection.close("it was asked to close");
        }
        if state.lanes.is_empty() {
            state.owner = caller.way.world().cloned();
        }
        state.lanes.insert(
            id,
            Lane {
                connection: connection.clone(),
                spares: VecDeque::new(),
                trial: None,
                holders: 0,
                is_like_another,
                measured: 0,
            },
        );
        let pool = Arc::downgrade(self);
        let (made, is_given) = (connection.clone(), self.is_given);
        tokio::spawn(async move {
            let ready = made.ready().await.is_ok();
            let Some(pool) = pool.upgrade() else { return };
            let mut state = pool.state();
            if ready {
                let info = made.info();
                let is_sshd = info.is_some_and(|info| info.is_sshd);
                let answered = info.filter(|_| !is_given).map(|info| info.answered);
                let now = Instant::now();
                state.policy.lane_ready(id, answered.unwrap_or_default(), now);
                pool.recall(&mut state.policy, is_sshd);
                state.failed = None;
            } else {
                state.refresh(&pool.host, Instant::now());
            }
            drop(state);
            pool.freed.notify_waiters();
            pool.open_spares(id);
        });
        connection
    }

    /// Opens sessions ahead, behind whatever was just started.
    fn open_spares(self: &Arc<Self>, id: LaneId) {
        let mut state = self.state();
        let Some(connection) = state.lanes.get(&id).map(|lane| lane.connection.clone()) else {
            return;
        };
        let count = state.policy.open_spares(id, Instant::now());
        let asked = state.policy.asks(id);
        drop(state);
        for _ in 0..count {
            let mut spare = connection.spare();
            let pool = Arc::downgrade(self);
            tokio::spawn(async move {
                let opened = spare.opened().await;
                let Some(pool) = pool.upgrade() else { return };
                match opened {
                    Ok(()) => {
                        let mut state = pool.state();
                        if let Some(lane) = state.lanes.get_mut(&id) {
                            lane.spares.push_back(spare);
                            state.policy.spare_opened(id, asked);
                        }
                    }
                    Err(Error::Refused { .. }) => {
                        pool.session_refused(id, true, asked);
                    }
                    // The connection is gone, and its lane with it.
                    Err(_) => {}
                }
                pool.freed.notify_waiters();
            });
        }
    }

    /// Whether the server is known as sshd, and requests may go ahead of its answers.
    pub(crate) fn is_sshd(&self) -> bool {
        if !self.settings.early_flights {
            return false;
        }
        let connected = self
            .state()
            .lanes
            .values()
            .find_map(|lane| lane.connection.info().map(|info| info.is_sshd));
        connected == Some(true) || self.learner.has(Lesson::Sshd)
    }

    /// Has the policy go by what is known of the host.
    fn recall(&self, policy: &mut Policy, is_sshd: bool) {
        let lessons = self.learner.facts().lessons;
        let is_sshd = is_sshd || lessons.has(Lesson::Sshd);
        policy.keep_spares(match () {
            () if lessons.has(Lesson::NoSpares) => Spares::None,
            () if is_sshd || lessons.has(Lesson::Spares) => Spares::Kept,
            () => Spares::Untried,
        });
        if lessons.has(Lesson::OneSession) {
            policy.set_reuse(Reuse::One);
        } else if is_sshd || lessons.has(Lesson::SeveralSessions) {
            policy.set_reuse(Reuse::Several);
        } else if policy.reuse() != Reuse::Doubted {
            policy.set_reuse(Reuse::Untried);
        }
    }

    /// The memory that listed names take, of all hosts.
    pub(crate) fn names(&self) -> &NameBudget {
        &self.names
    }

    pub(crate) fn known_paths(&self) -> &KnownPaths {
        &self.paths
    }

    /// SFTP sessions that still remove what they leave, of all hosts.
    pub(crate) fn leaving(&self) -> &TaskTracker {
        &self.leaving
    }

    pub(crate) fn sftp_silence(&self) -> Duration {
        self.settings.sftp_silence
    }

    /// Host memory of this server.
    pub(crate) fn learner(&self) -> &Learner {
        &self.learner
    }

    /// The server has one session for each connection.
    fn learn_one_session(&self) {
        self.learner.learn(Lesson::OneSession, 1);
        self.state().policy.set_reuse(Reuse::One);
    }

    /// Sessions opened ahead are of no use.
    fn learn_no_spares(&self) {
        self.learner.learn(Lesson::NoSpares, 1);
        self.state().policy.keep_spares(Spares::None);
    }

    /// A session was refused: what that says of the server's limit is remembered.
    fn session_refused(&self, lane: LaneId, was_spare: bool, asked: Tally) -> Verdict {
        let mut state = self.state();
        let before = state.policy.session_limit();
        let outcome = state
            .policy
            .session_refused(lane, was_spare, asked, Instant::now());
        let limit = state
            .policy
            .session_limit()
            .filter(|_| before != state.policy.session_limit());
        drop(state);
        if let Some(limit) = limit {
            self.learner.learn(Lesson::MaxSessions, limit);
        }
        outcome
    }

    // Upkeep.

    /// Closes what nobody needs, and after a suspend (`woken`) each connection that does not answer. Returns whether the
    /// pool is empty.
    pub(crate) fn sweep(self: &Arc<Self>, woken: bool) -> bool {
        let now = Instant::now();
        let mut state = self.state();
        state.refresh(&self.host, now);
        let busy = state.policy.is_any_busy();
        self.apart
            .send_if_modified(|apart| std::mem::replace(apart, busy) != busy);
        let kept = state.kept();
        for id in state.policy.expired(now) {
            if kept == Some(id) {
                continue;
            }
            state.policy.lane_closed(id);
            if let Some(lane) = state.lanes.remove(&id) {
                lane.connection.close("idle");
            }
        }
        state.lanes.values_mut().for_each(Lane::measure);
        if woken {
            for lane in state.lanes.values() {
                let connection = lane.connection.clone();
                let limit = self.settings.probe_limit;
                tokio::spawn(async move {
                    if let Err(error @ Error::Timeout { .. }) = connection.ping(limit).await {
                        connection.close(&error.to_string());
                    }
                });
            }
        }
        state.lanes.is_empty() && !state.pinned
    }

    /// Ends all connections.
    pub(crate) fn close(&self, closing: Closing) {
        let mut state = self.state();
        state.pinned = false;
        state.is_closing = true;
        let State { policy, lanes, .. } = &mut *state;
        for (id, lane) in lanes {
            if closing == Closing::WhenReleased && lane.holders > 0 {
                continue;
            }
            policy.retire(*id);
            lane.spares.clear();
            lane.trial = None;
            match closing {
                Closing::Now => lane.connection.close("it was asked to close"),
                Closing::WhenReleased | Closing::WhenSessionsEnd => lane.connection.drain(),
            }
        }
    }

    /// Ends all connections now; what is asked for from now on, or waits, fails.
    pub(crate) fn end(&self) {
        self.state().ended = true;
        self.close(Closing::Now);
        self.freed.notify_waiters();
    }

    fn check_not_ended(&self) -> Result<(), Error> {
        if self.state().ended {
            return Err(Error::Closed {
                host: self.host.original_host.clone(),
                why: "it was asked to close".into(),
            });
        }
        Ok(())
    }

    /// Whether traffic keeps new sessions away from a lane, as often as that changes.
    pub(crate) fn apart(&self) -> watch::Receiver<bool> {
        self.apart.subscribe()
    }

    /// Whether it was asked to close.
    pub(crate) fn is_closing(&self) -> bool {
        self.state().is_closing
    }

    pub(crate) fn connections(&self) -> Vec<Connection> {
        self.state()
            .lanes
            .values()
            .map(|lane| lane.connection.clone())
            .collect()
    }

    pub(crate) fn waiting(&self) -> u64 {
        self.queue.length()
    }

    pub(crate) fn status(&self) -> Vec<LaneStatus> {
        let now = Instant::now();
        let mut state = self.state();
        state.refresh(&self.host, now);
        let kept = state.kept();
        let State { policy, lanes, .. } = &*state;
        policy
            .lanes()
            .filter_map(|id| {
                let lane = lanes.get(&id)?;
                let (sessions, tunnels) = policy.load(id);
                let metrics = lane.connection.metrics();
                let info = lane.connection.info();
                let report = ConnectionReport {
                    handshake: info.map(Handshake::from),
                    rtt: lane.connection.rtt(),
                    sessions,
                    tunnels,
                    spares: lane.spares.len(),
                    busy: policy.is_busy(id),
                    silent: metrics.doubted.is_cancelled(),
                    rate: policy.rate(id),
                    sent: metrics.bytes_sent.value(),
                    received: metrics.bytes_received.value(),
                    closes_in: policy.idle_left(id, now).filter(|_| kept != Some(id)),
                };
                Some(LaneStatus {
                    info: info.cloned(),
                    report,
                })
            })
            .collect()
    }
}

impl State {
    /// Whether each connection is one that a guest would have made so, and there is one. Where each use has to be confirmed, there
    /// are no guests.
    fn admits(&self, terms: &LogInTerms) -> bool {
        let would_make = |lane: &Lane| match lane.connection.info() {
            Some(info) => terms.objection(&info.log_in).is_none(),
            None => lane.is_like_another,
        };
        !self.confirms && self.log_in().is_some() && self.lanes.values().all(would_make)
    }

    /// How a connection that is there was logged in to.
    fn log_in(&self) -> Option<LogIn> {
        let made = self.lanes.values().find_map(|lane| lane.connection.info())?;
        Some((*made.log_in).clone())
    }

    /// The lane of a pinned host that is never closed as idle.
    fn kept(&self) -> Option<LaneId> {
        self.pinned.then(|| self.policy.first()).flatten()
    }

    /// Drops lanes that have ended, gives nothing new to those whose server says nothing, and samples the traffic of the others.
    fn refresh(&mut self, host: &HostConfig, now: Instant) {
        let Self {
            policy,
            lanes,
            failed,
            lost,
            ..
        } = self;
        lanes.retain(|id, lane| {
            let Some(end) = lane.connection.end() else {
                let metrics = lane.connection.metrics();
                let bytes = metrics.bytes_sent.value() + metrics.bytes_received.value();
                policy.traffic(*id, bytes, now);
                if metrics.doubted.is_cancelled() && policy.doubt(*id) {
                    lane.spares.clear();
                    lane.trial = None;
                }
                return true;
            };
            if policy.is_further(*id) && lane.connection.asking().has_left() {
                policy.lane_given_up(*id);
                return false;
            }
            *lost |= lane.connection.info().is_some() && !matches!(end.root(), Error::Closed { .. });
            match policy.lane_lost(*id, now) {
                Loss::NeverMade => *failed = Some((now, lane.connection.clone())),
                Loss::FurtherRefused { again, news } => tell_of_refusal(host, &end, again, news),
                Loss::Other => {}
            }
            false
        });
    }
}

/// Says once, in the log, that a host's connections will not be as many as they could be.
fn tell_of_refusal(host: &HostConfig, end: &Error, again: Duration, news: bool) {
    let host = &host.original_host;
    let seconds = again.as_secs();
    if news {
        tracing::warn!(
            "{host}: no further connection could be made; what is open carries the work, and another is not tried for \
             {seconds} s, longer each time: {end}"
        );
    } else {
        tracing::debug!("{host}: still no further connection; next attempt in {seconds} s: {end}");
    }
}

/// Waits for a change, until it is time to look without one.
async fn wait_for_change(freed: Notified<'_>, look_again: Option<Instant>) {
    match look_again {
        Some(at) => {
            let _ = tokio::time::timeout_at(at.into(), freed).await;
        }
        None => freed.await,
    }
}

/// Looks at a session that was opened ahead, when another has ended beside it.
async fn look_at(spare: SpareSession, connection: &Connection, limit: Duration) -> Outcome {
    // Whatever the server does to it because another has ended, it has done before it answers.
    let answer = match connection.ping(limit).await {
        Ok(_) => spare.ask(),
        Err(_) => return Outcome::Nothing,
    };
    let answered = connection.ping(limit).await.is_ok() && answer.now_or_never() == Some(true);
    match connection.is_open() {
        false => Outcome::Nothing,
        true if answered && !spare.is_closed() => Outcome::Lasts(Box::new(spare)),
        true => Outcome::Dies,
    }
}

/// Whether a channel could not be opened because its connection could not be made, or is gone.
fn is_lost(connection: &Connection, error: &Error) -> bool {
    let is_end = matches!(
        error.root(),
        Error::Network { .. }
            | Error::Lookup { .. }
            | Error::ClosedByPeer { .. }
            | Error::Timeout { .. }
            | Error::Protocol { .. }
    );
    connection.info().is_none() || is_end
}

/// How often a session is placed anew at most: connections that are being made when the first is refused show nothing new.
const MOST_PLACES: u32 = 5;

/// An answer that a server was asked for.
type Answer = BoxFuture<'static, Result<(), Error>>;

/// Whether it has come, where it was asked for.
fn has_come(answer: Option<Answer>) -> bool {
    answer.is_none_or(|answer| matches!(answer.now_or_never(), Some(Ok(()))))
}

/// The fate of a session's earlier places.
#[derive(Debug, Default)]
struct Misplaced {
    /// How often the server took no session, or no command, on a connection that had had another session.
    refusals: u32,
    /// It took no session on a connection that had had none.
    by_first_refusal: bool,
    /// How often it took no command after a log-in that went ahead of its answers.
    ahead: u32,
    /// A connection ended before the session was opened on it.
    by_loss: bool,
}

impl Misplaced {
    fn in_all(&self) -> u32 {
        self.refusals + self.ahead
    }
}

/// The finding of a session that was opened ahead to see whether it lasts.
enum Outcome {
    /// It outlives other sessions, and the server still reads what is asked of it.
    Lasts(Box<SpareSession>),
    /// It was refused where another session had been and none was.
    OnlyOneSession,
    /// It ended by itself, or is not heard any more.
    Dies,
    /// Nothing: the connection is not there any more, or it was asked for too soon.
    Nothing,
}

/// Where a session or a tunnel goes.
struct Placed {
    lane: LaneId,
    connection: Connection,
    lease: Lease,
    how: How,
}

/// A place, or none for now.
enum Lookup {
    Place(Placed),
    /// Whatever happens, it is looked for again at this time.
    NotYet(Option<Instant>),
}

/// How it gets its channel.
enum How {
    /// It leaves with the log-in of the only connection: no other has room for it if that is refused.
    WithLogIn,
    Spare(Box<SpareSession>),
    /// A channel is opened, and the command follows.
    Open(Tally),
}

impl How {
    /// The same, as it is counted.
    fn opening(&self) -> Opening {
        match self {
            Self::WithLogIn => Opening::Cold,
            Self::Spare(_) => Opening::Spare,
            Self::Open(_) => Opening::Open,
        }
    }
}

/// The outcome of an attempt to open a channel.
enum Attempt<T> {
    Done(Result<T, Error>),
    /// There is a better place by now, or the lane has gone before it was of use.
    Elsewhere,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("host", &self.host.original_host)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::handshake::Handshake;

    /// A connection that has ended on another thread before anybody makes use of it.
    fn ended(host: &Arc<HostConfig>, interaction: &Interaction) -> Connection {
        let connection = Connection::begin(Handshake {
            host: host.clone(),
            interaction: interaction.clone(),
            login: Login::new(),
            like: None,
            is_ssh: false,
            memory: Arc::new(Memory::in_memory()),
            settings: Settings::default(),
            windows: Arc::default(),
            engine_metrics: Arc::default(),
            gate: None,
            dial: Box::new(|| async { Err(Error::Bug("there is no way")) }.boxed()),
        });
        while connection.is_open() {
            std::thread::yield_now();
        }
        connection
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_connection_that_has_ended_when_a_session_is_placed_on_it_holds_up_nobody() {
        let host = Arc::new(HostConfig::explicit("host", 22, "user").unwrap());
        let connector: Connector = {
            let host = host.clone();
            Box::new(move |caller: &Caller, _| ended(&host, &caller.interaction))
        };
        let memory = Arc::new(Memory::in_memory());
        let caller = Caller {
            key: Arc::new(SharingKey::unique()),
            config: host,
            way: Way::Given(Login::new()),
            interaction: Interaction::none(),
            activity: Activity::new(),
        };
        let pool = Pool::new(
            &caller,
            Settings::default(),
            None,
            &memory,
            Arc::default(),
            Default::default(),
            connector,
        );
        let outcome = pool.session(&Command::exec("true"), &caller).await;
        let error = match outcome {
            Ok(mut session) => session.started().await.unwrap_err(),
            Err(Unplaced::Failed(error)) => error,
            Err(Unplaced::Elsewhere) => panic!("it is the pool's own caller"),
        };
        assert!(error.to_string().contains("there is no way"), "{error}");
        assert!(pool.status().is_empty());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn whatever_an_ended_connection_is_asked_for_did_not_start_for_the_reason_of_its_end() {
        let host = Arc::new(HostConfig::explicit("host", 22, "user").unwrap());
        let connection = ended(&host, &Interaction::none());
        let is_its_end = |error: Error| {
            assert!(error.to_string().contains("there is no way"), "{error}");
            assert_eq!(error.execution(), Execution::DidNotStart, "{error}");
        };
        is_its_end(connection.spare().opened().await.unwrap_err());
        let (lease, terms) = (Lease::new(|_| {}), ChannelTerms::default());
        let mut begun = connection.start_in(connection.spare(), &Command::exec("true"), lease, terms);
        is_its_end(begun.started().await.unwrap_err());
        is_its_end(begun.wait().await.unwrap_err());
        is_its_end(connection.run(&Command::exec("true")).await.unwrap_err());
        is_its_end(connection.direct_streamlocal("/socket").await.unwrap_err());
    }
}
