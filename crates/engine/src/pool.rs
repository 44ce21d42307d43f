//! The connections to one host, shared by all requests that may share them.

mod learning;
mod placing;
pub(crate) mod policy;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio_util::task::TaskTracker;
use trunkline_proto::ChannelKind;
use trunkline_request::connection::{ConnectionReport, Handshake};
use trunkline_sftp::bridge::KnownPaths;
use trunkline_sftp::transfer::NameBudget;

use crate::config::{ControlPersist, HostConfig, LogIn, LogInTerms, Request, SharingKey, World};
use crate::connection::channel::ChannelTerms;
use crate::connection::lease::{End, Lease};
use crate::connection::login::Login;
use crate::connection::session::SpareSession;
use crate::connection::timing::idle::{Activity, Idle};
use crate::connection::{Connection, ConnectionInfo};
use crate::error::Error;
use crate::interaction::{Client, Interaction, KnownClient};
use crate::memory::{HostId, Learner, Lesson, Memory};
use crate::metrics::{Metrics, Queue};
use crate::prompt::Answerer;
use crate::settings::Settings;
use policy::{LaneId, Loss, Policy};

/// Makes a new connection to the pool's host as its caller wants it, logged in like the existing one if there is one.
type Connector = Box<dyn Fn(&Caller, Option<LogIn>) -> Connection + Send + Sync>;

/// The source of a host's configuration, and thereby of the way to reach it.
#[derive(Clone)]
pub(crate) enum Way {
    /// From ssh_config.
    Resolved(Request),
    /// From the program.
    Given(Login),
}

impl Way {
    /// Returns the environment of the process that reaches a host by ssh_config.
    pub(crate) fn world(&self) -> Option<&Arc<World>> {
        match self {
            Self::Resolved(request) => Some(&request.world),
            Self::Given(_) => None,
        }
    }

    /// Returns the most connections that the program allows, if it sets a limit.
    pub(crate) fn connections(&self) -> Option<usize> {
        match self {
            Self::Resolved(_) => None,
            Self::Given(login) => Some(login.most_connections()),
        }
    }
}

/// A requester of a connection. Callers who share have the same [`SharingKey`], or one that [may
/// meet](SharingKey::may_meet) the pool's. For everything outside the key (time limits, keepalives, which keys are
/// remembered), a new connection follows the caller that requested it.
#[derive(Clone)]
pub(crate) struct Caller {
    /// Boxed, because callers are moved and cloned often.
    pub(crate) key: Arc<SharingKey>,
    pub(crate) config: Arc<HostConfig>,
    pub(crate) way: Way,
    pub(crate) interaction: Interaction,
    /// The activity on all its channels.
    pub(crate) activity: Activity,
}

impl Caller {
    /// Returns who answers prompts if another connection is made for this caller.
    pub(crate) fn answerer(&self) -> Answerer {
        self.interaction.prompter().answerer()
    }

    /// Returns what the configuration says about a channel of this kind.
    pub(crate) fn terms(&self, kind: &ChannelKind) -> ChannelTerms {
        ChannelTerms {
            idle: Idle::for_channel(&self.config, kind.name(), &self.activity),
            keystrokes: self.config.obscure_keystroke_timing,
        }
    }
}

/// The reason why nothing was started in a pool.
#[derive(Debug)]
pub(crate) enum Unplaced {
    /// The caller would have logged in differently: another pool is responsible.
    Elsewhere,
    Failed(Error),
}

impl Unplaced {
    /// Returns this pool's outcome, or `None` if another pool has to be tried.
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
/// Callers with the pool's key make its connections. Other callers are guests: they use connections that they [would
/// have made](LogInTerms::objection) the same way, and add only further ones like those.
pub(crate) struct Pool {
    key: SharingKey,
    host: Arc<HostConfig>,
    connector: Connector,
    learner: Learner,
    metrics: Arc<Metrics>,
    /// The budget for listed names, shared by all hosts.
    names: NameBudget,
    /// The known paths of the server, shared by SFTP sessions.
    paths: KnownPaths,
    /// SFTP sessions that are still removing leftovers, on all hosts.
    leaving: TaskTracker,
    settings: Settings,
    /// The program has set the number of connections, and answers for each.
    is_given: bool,
    state: Mutex<State>,
    /// Notified when a place may have become free, and when a connection was made or has failed.
    freed: Notify,
    /// The requests that wait for a place.
    queue: Queue,
    /// True if traffic keeps new sessions away from a lane.
    apart: watch::Sender<bool>,
}

struct State {
    policy: Policy,
    /// Each in a box: a table begins with room for several, and most hosts have one.
    lanes: HashMap<LaneId, Box<Lane>>,
    pinned: bool,
    /// The last failure to make the only connection, for those who were waiting for it.
    failed: Option<(Instant, Connection)>,
    /// An established connection was lost, and no other has been started since.
    lost: bool,
    /// No more connections are made.
    ended: bool,
    /// The pool was asked to close, now or when it is no longer used.
    is_closing: bool,
    /// Each use of the connections by a client other than their makers has to be confirmed. Once one sharer demands it,
    /// it holds for all of them.
    confirms: bool,
    /// The clients that need no confirmation: the makers, and those that were allowed.
    allowed: Vec<KnownClient>,
    /// The environment of the first connection: clients that share it must not choose who confirms their use.
    owner: Option<Arc<World>>,
}

/// The ages at which a connection's round trip is measured on purpose, if ordinary answers have not shown it often
/// enough. By the first of them, a machine that connects to hundreds at once has finished connecting.
const MEASURED: [Duration; 3] = [
    Duration::from_secs(5),
    Duration::from_secs(20),
    Duration::from_secs(80),
];

struct Lane {
    connection: Connection,
    spares: VecDeque<SpareSession>,
    /// A session that is being tried out.
    trial: Option<SpareSession>,
    /// The number of [holders](Pool::hold).
    holders: u32,
    /// It is logged in like a connection that existed before.
    is_like_another: bool,
    /// The number of deliberate measurements of the round trip.
    measured: usize,
}

impl Lane {
    /// Measures the round trip if due: log-in answers overstate it if the server or this machine is busy.
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

/// The condition under which the connections end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    Now,
    /// Once nothing runs on them.
    WhenSessionsEnd,
    /// Once nothing runs on them and they have no [holder](Pool::hold).
    WhenReleased,
}

/// The state of a lane, for people.
#[derive(Debug, Clone)]
pub struct LaneStatus {
    /// The facts about its connection; `None` while it is being made.
    pub info: Option<ConnectionInfo>,
    /// The connection's report.
    pub report: ConnectionReport,
}

impl Pool {
    /// Creates a pool for `first` and all who share with it. `connections` lowers the settings' maximum. If it is 1,
    /// the server's refusals are errors; otherwise refused requests wait for a place.
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
        let learner = Learner::new(memory, HostId::from_config(&host));
        let limit = learner.facts().lessons.number(Lesson::MaxSessions);
        let idle = match host.control_persist {
            // Without a ControlMaster, "no" only means that nothing is configured.
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

    /// Returns whether there are connections, made or being made.
    pub(crate) fn has_connections(&self) -> bool {
        let mut state = self.state();
        state.refresh(&self.host, Instant::now());
        !state.lanes.is_empty()
    }

    /// Returns whether a guest may use the existing connections: it would have made each of them the same way.
    pub(crate) fn admits(&self, terms: &LogInTerms) -> bool {
        let mut state = self.state();
        state.refresh(&self.host, Instant::now());
        state.admits(terms)
    }

    /// Returns whether a caller makes the pool's connections, or may use the existing ones.
    fn is_for(&self, state: &State, caller: &Caller) -> bool {
        self.is_given || *caller.key == self.key || state.admits(&caller.config.log_in_terms())
    }

    /// Locks the policy and the table of lanes for one decision. The lock is never held across an await.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the first lane's connection, for what belongs to a connection as a whole (remote forwardings). Makes it
    /// if there is none. Returns `None` if another pool is responsible.
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

    /// Creates the lease for a session's or tunnel's place in a lane.
    fn lease(self: &Arc<Self>, lane: LaneId, tunnel: bool, placed: Instant) -> Lease {
        let pool = Arc::downgrade(self);
        Lease::new(move |end| {
            let Some(pool) = pool.upgrade() else { return };
            let now = Instant::now();
            let mut state = pool.state();
            // The traffic it was part of is measured while it still counts.
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

    /// Closes retired lanes that are empty, so that others can take their place.
    fn close_retired(&self) {
        let mut state = self.state();
        for id in state.policy.finished_lanes() {
            state.policy.lane_closed(id);
            if let Some(lane) = state.lanes.remove(&id) {
                lane.connection.close("it has done its work");
            }
        }
    }

    /// Like [`Self::control`], and counts as in use until the lease is dropped. A request to close still ends it.
    pub(crate) fn hold_control(self: &Arc<Self>, caller: &Caller) -> Option<(Connection, Lease)> {
        let (_, connection, lease) = self.hold_first(caller)?;
        Some((connection, lease))
    }

    /// Like [`Self::hold_control`], but a request to close waits for the lease as it would for a session, unless it
    /// says "now".
    pub(crate) fn hold(self: &Arc<Self>, caller: &Caller) -> Option<(Connection, Lease)> {
        let (held, connection, lease) = self.hold_first(caller)?;
        if let Some(lane) = self.state().lanes.get_mut(&held) {
            lane.holders += 1;
        }
        let pool = Arc::downgrade(self);
        let release = move |_| {
            // Dropped together with this closure.
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

    /// Returns whether another log-in would need an answer that `answerer` does not have at hand. None is made unasked
    /// then.
    pub(crate) fn is_attended(&self, answerer: Answerer) -> bool {
        self.state().policy.is_attended(answerer)
    }

    /// Returns how many sessions one copy may have if no connection is added for it.
    pub(crate) fn most_together(&self, answerer: Answerer) -> Option<usize> {
        self.state().policy.most_together(answerer, Instant::now())
    }

    /// Requires confirmation for each use from now on.
    pub(crate) fn confirm(&self) {
        self.state().confirms = true;
    }

    /// Returns whether clients other than the first need confirmation.
    pub(crate) fn confirms(&self) -> bool {
        self.state().confirms
    }

    /// Returns whether a client may use the connections without confirmation. If there are none, and nobody is about to
    /// make one, they become this client's own.
    pub(crate) fn admit(&self, client: &Client, world: Option<&Arc<World>>) -> bool {
        let mut state = self.state();
        state.refresh(&self.host, Instant::now());
        state.allowed.retain(KnownClient::is_there);
        if state.lanes.is_empty() && state.allowed.is_empty() {
            state.allowed.push(client.downgrade());
            state.owner = world.cloned();
        }
        !state.confirms || state.allowed.iter().any(|allowed| allowed.is(client))
    }

    /// Returns the environment that the connections were made in, if there are any.
    pub(crate) fn owner(&self) -> Option<Arc<World>> {
        self.state().owner.clone()
    }

    /// Returns the program that asks for confirmation, if one is set.
    pub(crate) fn confirm_askpass(&self) -> &str {
        &self.settings.confirm_askpass
    }

    pub(crate) fn allow(&self, client: &Client) {
        self.state().allowed.push(client.downgrade());
    }

    /// Sets whether the first connection is kept forever.
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
                interaction: caller.interaction.clone().without_user(),
                ..caller.clone()
            };
            (self.connector)(&caller, like)
        } else {
            (self.connector)(caller, like)
        };
        if state.ended {
            // The connection tells its requester so; nothing is dialled.
            connection.close("it was asked to close");
        }
        if state.lanes.is_empty() {
            state.owner = caller.way.world().cloned();
        }
        state.lanes.insert(
            id,
            Box::new(Lane {
                connection: connection.clone(),
                spares: VecDeque::new(),
                trial: None,
                holders: 0,
                is_like_another,
                measured: 0,
            }),
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

    /// Opens sessions ahead, after whatever was just started.
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
                let opened = spare.wait_until_open().await;
                let Some(pool) = pool.upgrade() else { return };
                match opened {
                    Ok(()) => {
                        let mut state = pool.state();
                        if let Some(lane) = state.lanes.get_mut(&id) {
                            // There is rarely another.
                            lane.spares.reserve_exact(1);
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

    /// Returns the budget for listed names, shared by all hosts.
    pub(crate) fn names(&self) -> &NameBudget {
        &self.names
    }

    pub(crate) fn known_paths(&self) -> &KnownPaths {
        &self.paths
    }

    /// Returns the SFTP sessions that are still removing leftovers, on all hosts.
    pub(crate) fn leaving(&self) -> &TaskTracker {
        &self.leaving
    }

    pub(crate) fn sftp_silence(&self) -> Duration {
        self.settings.sftp_silence
    }

    pub(crate) fn copy_resume_for(&self) -> Duration {
        self.settings.copy_resume_for
    }

    pub(crate) fn learner(&self) -> &Learner {
        &self.learner
    }

    // Upkeep.

    /// Closes unneeded connections, and after a suspend (`woken`) each one that does not answer. Returns whether the
    /// pool is empty.
    pub(crate) fn sweep(self: &Arc<Self>, woken: bool) -> bool {
        let now = Instant::now();
        let mut state = self.state();
        state.refresh(&self.host, now);
        let busy = state.policy.is_any_busy();
        self.apart
            .send_if_modified(|apart| std::mem::replace(apart, busy) != busy);
        let kept = state.kept_lane();
        for id in state.policy.expired_lanes(now) {
            if kept == Some(id) {
                continue;
            }
            state.policy.lane_closed(id);
            if let Some(lane) = state.lanes.remove(&id) {
                lane.connection.close("idle");
            }
        }
        state.lanes.values_mut().for_each(|lane| lane.measure());
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

    /// Returns the number of connections with work that a close would wait for.
    pub(crate) fn used_lanes(&self) -> usize {
        let State { policy, lanes, .. } = &*self.state();
        lanes
            .iter()
            .filter(|(id, lane)| lane.holders > 0 || policy.load(**id) != (0, 0))
            .count()
    }

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

    /// Ends all connections now; waiting and later requests fail.
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

    /// Returns a receiver of whether traffic keeps new sessions away from a lane.
    pub(crate) fn watch_busy(&self) -> watch::Receiver<bool> {
        self.apart.subscribe()
    }

    /// Returns whether the pool was asked to close.
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
        let kept = state.kept_lane();
        let State {
            policy,
            lanes,
            is_closing,
            ..
        } = &*state;
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
                    closing: *is_closing,
                    rate: policy.rate(id),
                    sent: metrics.bytes_sent.value(),
                    received: metrics.bytes_received.value(),
                    closes_in: policy
                        .idle_left(id, now)
                        .filter(|_| kept != Some(id) && !is_closing),
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
    /// Returns whether there is a connection, and a guest would have made each one the same way. If each use has to be
    /// confirmed, there are no guests.
    fn admits(&self, terms: &LogInTerms) -> bool {
        let would_make = |lane: &Lane| match lane.connection.info() {
            Some(info) => terms.objection(&info.log_in).is_none(),
            None => lane.is_like_another,
        };
        !self.confirms && self.log_in().is_some() && self.lanes.values().all(|lane| would_make(lane))
    }

    /// Returns how an existing connection was logged in.
    fn log_in(&self) -> Option<LogIn> {
        let made = self.lanes.values().find_map(|lane| lane.connection.info())?;
        Some((*made.log_in).clone())
    }

    /// Returns the lane of a pinned host that is never closed as idle.
    fn kept_lane(&self) -> Option<LaneId> {
        self.pinned.then(|| self.policy.first()).flatten()
    }

    /// Drops lanes that have ended, retires those whose server does not answer, and samples the traffic of the others.
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

/// Logs once that a host gets fewer connections than it could.
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

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("host", &self.host.original_host)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::connection::handshake::Handshake;
    use crate::connection::session::Command;
    use crate::error::Execution;

    /// Returns a connection that has ended on another thread before it is used.
    fn ended_connection(host: &Arc<HostConfig>, interaction: &Interaction) -> Connection {
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
            Box::new(move |caller: &Caller, _| ended_connection(&host, &caller.interaction))
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
            Ok(mut session) => session.wait_for_start().await.unwrap_err(),
            Err(Unplaced::Failed(error)) => error,
            Err(Unplaced::Elsewhere) => panic!("it is the pool's own caller"),
        };
        assert!(error.to_string().contains("there is no way"), "{error}");
        assert!(pool.status().is_empty());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn whatever_an_ended_connection_is_asked_for_did_not_start_for_the_reason_of_its_end() {
        let host = Arc::new(HostConfig::explicit("host", 22, "user").unwrap());
        let connection = ended_connection(&host, &Interaction::none());
        let is_its_end = |error: Error| {
            assert!(error.to_string().contains("there is no way"), "{error}");
            assert_eq!(error.execution(), Execution::DidNotStart, "{error}");
        };
        is_its_end(connection.spare().wait_until_open().await.unwrap_err());
        let (lease, terms) = (Lease::new(|_| {}), ChannelTerms::default());
        let mut begun = connection.start_in(connection.spare(), &Command::exec("true"), lease, terms);
        is_its_end(begun.wait_for_start().await.unwrap_err());
        is_its_end(begun.wait().await.unwrap_err());
        is_its_end(connection.run(&Command::exec("true")).await.unwrap_err());
        is_its_end(connection.direct_streamlocal("/socket").await.unwrap_err());
    }
}
