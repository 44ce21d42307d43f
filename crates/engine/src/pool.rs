//! The connections to one host, shared by all that may share them.

pub(crate) mod policy;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use trunkline_proto::{ChannelKind, ServerId};

use crate::config::{ControlPersist, HostConfig, Request};
use crate::connection::channel::ChannelStream;
use crate::connection::lease::Lease;
use crate::connection::login::Login;
use crate::connection::session::{Command, Session, SpareSession};
use crate::connection::{Connection, ConnectionInfo};
use crate::error::Error;
use crate::interaction::{Client, Interaction, KnownClient};
use crate::memory::{HostId, Memory, Refusal};
use crate::settings::Settings;
use policy::{LaneId, Placement, Policy};

/// Makes a new connection to the pool's host, as its caller wants it.
type Connector = Box<dyn Fn(&Caller) -> Connection + Send + Sync>;

/// Where a host's configuration came from, and with it the way there.
#[derive(Clone)]
pub(crate) enum Way {
    /// From ssh_config.
    Resolved(Request),
    /// From the program.
    Given(Login),
}

impl Way {
    /// Whether there can be one connection only.
    pub(crate) fn is_single(&self) -> bool {
        matches!(self, Self::Given(login) if login.is_single())
    }
}

/// Who needs a connection. Callers who share have the same [`SharingKey`](crate::config::SharingKey); in all that is not in
/// it (time limits, keepalives, what is remembered of keys), a new connection goes by the one who asked for it.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) config: Arc<HostConfig>,
    pub(crate) way: Way,
    pub(crate) interaction: Interaction,
}

/// The connections to one host.
pub(crate) struct Pool {
    host: Arc<HostConfig>,
    connector: Connector,
    memory: Arc<Memory>,
    settings: Settings,
    state: Mutex<State>,
    /// Woken when a place becomes free.
    freed: Notify,
    /// Whether traffic keeps new sessions away from a lane.
    apart: watch::Sender<bool>,
}

struct State {
    policy: Policy,
    lanes: HashMap<LaneId, Lane>,
    pinned: bool,
    /// Nothing is to be connected any more.
    ended: bool,
    /// Whether each use of the connections by another client than those who made them is to be confirmed. Once one who
    /// shares them has said so, it holds for all of them.
    confirms: bool,
    /// Who may use them without being asked: who made them, and who was allowed to.
    allowed: Vec<KnownClient>,
}

struct Lane {
    connection: Connection,
    spares: VecDeque<SpareSession>,
}

/// What a lane is doing, for people.
#[derive(Debug, Clone)]
pub struct LaneStatus {
    /// What is known of its connection; `None` while it is being made.
    pub info: Option<ConnectionInfo>,
    /// The round-trip time as last measured.
    pub rtt: Option<Duration>,
    /// Sessions on it.
    pub sessions: u32,
    /// Tunnels through it.
    pub tunnels: u32,
    /// Sessions opened ahead.
    pub spares: usize,
    /// Whether its traffic keeps new sessions away.
    pub busy: bool,
    /// Its traffic in both directions as last measured, in bits a second.
    pub rate: u64,
    /// Bytes sent and received.
    pub bytes: (u64, u64),
}

impl Pool {
    pub(crate) fn new(
        host: Arc<HostConfig>,
        settings: Settings,
        memory: Arc<Memory>,
        connector: Connector,
    ) -> Arc<Self> {
        let limit = memory.facts(&host_id(&host)).and_then(|facts| facts.max_sessions);
        let idle = match host.control_persist {
            // Without a ControlMaster, "no" is only what nobody has set.
            ControlPersist::No => Some(settings.idle_timeout),
            ControlPersist::Forever => None,
            ControlPersist::For(time) => Some(time),
        };
        let policy = Policy::new(settings.clone(), limit, idle, Instant::now());
        let state = Mutex::new(State {
            policy,
            lanes: HashMap::new(),
            pinned: false,
            ended: false,
            confirms: false,
            allowed: Vec::new(),
        });
        Arc::new(Self {
            host,
            connector,
            memory,
            settings,
            state,
            freed: Notify::new(),
            apart: watch::Sender::new(false),
        })
    }

    pub(crate) fn host(&self) -> &Arc<HostConfig> {
        &self.host
    }

    /// Guards the policy and the table of lanes, for as long as a decision takes; never held across an await.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a command on the best lane. Where the server's limit on sessions is not known to allow one more, waits
    /// until it is open, and tries elsewhere when it is refused: nothing has begun in it.
    pub(crate) async fn session(
        self: &Arc<Self>,
        command: &Command,
        caller: &Caller,
    ) -> Result<Session, Error> {
        self.session_placed(command, caller, Policy::place_session).await
    }

    /// Starts a command on a connection with nothing else on it, where there may be one more; else as [`Self::session`].
    pub(crate) async fn session_apart(
        self: &Arc<Self>,
        command: &Command,
        caller: &Caller,
    ) -> Result<Session, Error> {
        self.session_placed(command, caller, Policy::place_session_apart)
            .await
    }

    async fn session_placed(
        self: &Arc<Self>,
        command: &Command,
        caller: &Caller,
        place: fn(&mut Policy, Instant) -> Placement,
    ) -> Result<Session, Error> {
        loop {
            let freed = self.freed.notified();
            self.check_not_ended()?;
            let Some((lane, placed)) = self.find_place(caller, place) else {
                freed.await;
                continue;
            };
            placed.connection().warn(&caller.interaction);
            // Started without the lock: a connection that has ended meanwhile refuses at once, and gives the lease back.
            let session = match placed {
                Placed::Open {
                    connection,
                    lease,
                    proven: true,
                    ..
                } => connection.start_with(command, Some(lease)),
                Placed::Open {
                    connection,
                    mut lease,
                    proven: false,
                    since,
                } => {
                    let mut session = connection.spare();
                    match session.opened().await {
                        Ok(()) => self.state().policy.session_confirmed(lane),
                        Err(Error::Refused { reason, .. })
                            if reason != 0 && self.learn_limit(lane, false, since) =>
                        {
                            lease.refused();
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                    begin(&connection, session, command, lease)
                }
                Placed::Spare {
                    connection,
                    spare,
                    lease,
                } => begin(&connection, *spare, command, lease),
            };
            self.open_spares(lane);
            return Ok(session);
        }
    }

    fn find_place(
        self: &Arc<Self>,
        caller: &Caller,
        place: fn(&mut Policy, Instant) -> Placement,
    ) -> Option<(LaneId, Placed)> {
        let now = Instant::now();
        let mut state = self.state();
        state.refresh(now);
        loop {
            let placement = place(&mut state.policy, now);
            let lease = |lane| self.lease(lane, false, now);
            match placement {
                Placement::Spare(id) => {
                    let lane = state.lanes.get_mut(&id)?;
                    match lane.spares.pop_front().filter(|spare| !spare.is_closed()) {
                        Some(spare) => {
                            let placed = Placed::Spare {
                                connection: lane.connection.clone(),
                                spare: Box::new(spare),
                                lease: lease(id),
                            };
                            return Some((id, placed));
                        }
                        // The server has closed it meanwhile.
                        None => state.policy.session_ended(id, now, now),
                    }
                }
                Placement::Open { lane: id, proven } => {
                    let placed = Placed::Open {
                        connection: state.lanes.get(&id)?.connection.clone(),
                        lease: lease(id),
                        proven,
                        since: now,
                    };
                    return Some((id, placed));
                }
                Placement::Connect(id) => {
                    // To a server known as OpenSSH, a session for the next command is asked for in the same flight.
                    state.policy.allow_spares(self.remembered_as_openssh());
                    let placed = Placed::Open {
                        connection: self.connect(&mut state, id, caller),
                        lease: lease(id),
                        proven: true,
                        since: now,
                    };
                    return Some((id, placed));
                }
                Placement::Wait => return None,
            }
        }
    }

    /// Opens a tunnel on the best lane.
    pub(crate) async fn tunnel(
        self: &Arc<Self>,
        kind: ChannelKind,
        caller: &Caller,
    ) -> Result<ChannelStream, Error> {
        let (connection, lease) = loop {
            let freed = self.freed.notified();
            self.check_not_ended()?;
            let placed = {
                let now = Instant::now();
                let mut state = self.state();
                state.refresh(now);
                match state.policy.place_tunnel(now) {
                    Placement::Open { lane, .. } | Placement::Spare(lane) => state
                        .lanes
                        .get(&lane)
                        .map(|found| (found.connection.clone(), lane, now)),
                    Placement::Connect(lane) => Some((self.connect(&mut state, lane, caller), lane, now)),
                    Placement::Wait => None,
                }
            };
            match placed {
                Some((connection, lane, placed)) => {
                    break (connection, self.lease(lane, true, placed));
                }
                None => freed.await,
            }
        };
        connection.warn(&caller.interaction);
        connection.open_stream(kind, Some(lease)).await
    }

    /// The first lane's connection, made if there is none, for what belongs to a connection as a whole (remote
    /// forwardings).
    pub(crate) fn control(self: &Arc<Self>, caller: &Caller) -> Connection {
        let now = Instant::now();
        let mut state = self.state();
        state.refresh(now);
        let first = state.policy.lanes().next();
        let connection = match first.and_then(|lane| state.lanes.get(&lane)) {
            Some(lane) => lane.connection.clone(),
            None => {
                let lane = state.policy.add_lane(now);
                self.connect(&mut state, lane, caller)
            }
        };
        drop(state);
        connection.warn(&caller.interaction);
        connection
    }

    /// A place of a session or a tunnel in a lane.
    fn lease(self: &Arc<Self>, lane: LaneId, tunnel: bool, placed: Instant) -> Lease {
        let pool = Arc::downgrade(self);
        Lease::new(move |refused| {
            let Some(pool) = pool.upgrade() else { return };
            let now = Instant::now();
            let mut state = pool.state();
            if tunnel {
                state.policy.tunnel_ended(lane, placed, now);
            } else if refused {
                state.policy.session_never_opened(lane, placed, now);
            } else {
                state.policy.session_ended(lane, placed, now);
            }
            drop(state);
            pool.freed.notify_waiters();
        })
    }

    /// As [`Self::control`], and counts it as in use until the lease is dropped.
    pub(crate) fn hold_control(self: &Arc<Self>, caller: &Caller) -> (Connection, Lease) {
        let now = Instant::now();
        let mut state = self.state();
        state.refresh(now);
        let held = state.policy.hold_first(now);
        let connection = match state.lanes.get(&held) {
            Some(lane) => lane.connection.clone(),
            None => self.connect(&mut state, held, caller),
        };
        drop(state);
        connection.warn(&caller.interaction);
        (connection, self.lease(held, true, now))
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
    pub(crate) fn is_allowed(&self, client: &Client) -> bool {
        let mut state = self.state();
        state.refresh(Instant::now());
        state.allowed.retain(KnownClient::is_there);
        if state.lanes.is_empty() && state.allowed.is_empty() {
            state.allowed.push(client.known());
        }
        !state.confirms || state.allowed.iter().any(|allowed| allowed.is(client))
    }

    /// The user allows a client to use the connections.
    pub(crate) fn allow(&self, client: &Client) {
        self.state().allowed.push(client.known());
    }

    /// Keeps the first connection for ever, or no longer.
    pub(crate) fn pin(&self, pinned: bool) {
        self.state().pinned = pinned;
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.state().pinned
    }

    fn connect(self: &Arc<Self>, state: &mut State, id: LaneId, caller: &Caller) -> Connection {
        let connection = (self.connector)(caller);
        state.lanes.insert(
            id,
            Lane {
                connection: connection.clone(),
                spares: VecDeque::new(),
            },
        );
        let pool = Arc::downgrade(self);
        let made = connection.clone();
        tokio::spawn(async move {
            let ready = made.ready().await.is_ok();
            let Some(pool) = pool.upgrade() else { return };
            if !ready {
                pool.freed.notify_waiters();
                return;
            }
            let openssh = made
                .info()
                .is_some_and(|info| ServerId::remembered(&info.server).is_openssh());
            pool.state().policy.allow_spares(openssh);
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
        drop(state);
        for _ in 0..count {
            let (mut spare, asked) = (connection.spare(), Instant::now());
            let pool = Arc::downgrade(self);
            tokio::spawn(async move {
                let opened = spare.opened().await;
                let Some(pool) = pool.upgrade() else { return };
                match opened {
                    Ok(()) => {
                        let mut state = pool.state();
                        if let Some(lane) = state.lanes.get_mut(&id) {
                            lane.spares.push_back(spare);
                            state.policy.spare_opened(id);
                        }
                    }
                    Err(Error::Refused { .. }) => {
                        pool.learn_limit(id, true, asked);
                    }
                    // The connection is gone, and its lane with it.
                    Err(_) => {}
                }
                pool.freed.notify_waiters();
            });
        }
    }

    /// Whether the server is known as OpenSSH, and requests may go ahead of its answers.
    pub(crate) fn is_openssh(&self) -> bool {
        if !self.settings.early_flights {
            return false;
        }
        let connected = self
            .state()
            .lanes
            .values()
            .find_map(|lane| lane.connection.info().map(|info| info.server.clone()));
        match connected {
            Some(server) => ServerId::remembered(&server).is_openssh(),
            None => self.remembered_as_openssh(),
        }
    }

    fn remembered_as_openssh(&self) -> bool {
        let facts = self.memory.facts(&host_id(&self.host));
        facts
            .and_then(|facts| facts.banner)
            .is_some_and(|banner| ServerId::remembered(&banner).is_openssh())
    }

    fn learn_limit(&self, lane: LaneId, was_spare: bool, asked: Instant) -> bool {
        let mut state = self.state();
        let news = state.policy.session_refused(lane, was_spare, asked);
        let limit = state.policy.session_limit();
        drop(state);
        if let (true, Some(limit)) = (news, limit) {
            self.memory.update(&host_id(&self.host), |facts| {
                facts.learn(Refusal::Sessions(limit));
            });
        }
        news
    }

    // Upkeep.

    /// Closes what nobody needs, and asks silent connections for a sign of life (`woken`: all of them, after a
    /// suspend). Returns whether the pool is empty.
    pub(crate) fn sweep(self: &Arc<Self>, woken: bool) -> bool {
        let now = Instant::now();
        let mut state = self.state();
        state.refresh(now);
        let busy = state.policy.is_any_busy();
        self.apart
            .send_if_modified(|apart| std::mem::replace(apart, busy) != busy);
        let kept = state.pinned.then(|| state.policy.lanes().next()).flatten();
        for id in state.policy.expired(now) {
            if kept == Some(id) {
                continue;
            }
            state.policy.lane_ended(id);
            if let Some(lane) = state.lanes.remove(&id) {
                lane.connection.close("idle");
            }
        }
        for lane in state.lanes.values() {
            let silent = lane.connection.is_ready() && lane.connection.silence() >= self.settings.probe_after;
            if woken || silent {
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

    /// Ends all connections: now, or when their sessions have ended.
    pub(crate) fn close(&self, now: bool) {
        let mut state = self.state();
        let ids: Vec<LaneId> = state.policy.lanes().collect();
        for id in ids {
            state.policy.retire(id);
        }
        state.pinned = false;
        for lane in state.lanes.values_mut() {
            lane.spares.clear();
            if now {
                lane.connection.close("it was asked to close");
            } else {
                lane.connection.drain();
            }
        }
    }

    /// Ends all connections now; what is asked for from now on, or waits, fails.
    pub(crate) fn end(&self) {
        self.state().ended = true;
        self.close(true);
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

    pub(crate) fn connections(&self) -> Vec<Connection> {
        self.state()
            .lanes
            .values()
            .map(|lane| lane.connection.clone())
            .collect()
    }

    pub(crate) fn status(&self) -> Vec<LaneStatus> {
        let mut state = self.state();
        state.refresh(Instant::now());
        let State { policy, lanes, .. } = &*state;
        policy
            .lanes()
            .filter_map(|id| {
                let lane = lanes.get(&id)?;
                let (sessions, tunnels) = policy.load(id);
                let metrics = lane.connection.metrics();
                Some(LaneStatus {
                    info: lane.connection.info().cloned(),
                    rtt: lane.connection.rtt(),
                    sessions,
                    tunnels,
                    spares: lane.spares.len(),
                    busy: policy.is_busy(id),
                    rate: policy.rate(id),
                    bytes: (metrics.bytes_sent.value(), metrics.bytes_received.value()),
                })
            })
            .collect()
    }
}

impl State {
    /// Drops lanes that have ended and samples the traffic of the others.
    fn refresh(&mut self, now: Instant) {
        let Self { policy, lanes, .. } = self;
        lanes.retain(|id, lane| {
            let open = lane.connection.is_open();
            if open {
                let metrics = lane.connection.metrics();
                policy.traffic(
                    *id,
                    metrics.bytes_sent.value() + metrics.bytes_received.value(),
                    now,
                );
            } else {
                policy.lane_ended(*id);
            }
            open
        });
    }
}

/// Starts a command in a session that is open.
fn begin(connection: &Connection, session: SpareSession, command: &Command, lease: Lease) -> Session {
    // What ForwardAgent forbids is refused where the session is asked for.
    let _ = connection.lend_agent(command);
    session.begin(command, lease)
}

/// Where a session goes.
enum Placed {
    Spare {
        connection: Connection,
        spare: Box<SpareSession>,
        lease: Lease,
    },
    /// `proven`: the server's limit on sessions is known to allow one more. `since`: when its place was given.
    Open {
        connection: Connection,
        lease: Lease,
        proven: bool,
        since: Instant,
    },
}

impl Placed {
    fn connection(&self) -> &Connection {
        match self {
            Self::Spare { connection, .. } | Self::Open { connection, .. } => connection,
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("host", &self.host.original_host)
            .finish_non_exhaustive()
    }
}

fn host_id(host: &HostConfig) -> HostId {
    HostId::new(&host.hostname, host.port, &host.user)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::connection::handshake::Handshake;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_connection_that_has_ended_when_a_session_is_placed_on_it_holds_up_nobody() {
        let host = Arc::new(HostConfig::explicit("host", 22, "user").unwrap());
        let connector: Connector = {
            let host = host.clone();
            Box::new(move |caller: &Caller| {
                let failing = Handshake {
                    host: host.clone(),
                    interaction: caller.interaction.clone(),
                    login: Login::new(),
                    memory: Arc::new(Memory::in_memory()),
                    early: (true, true),
                    windows: Arc::default(),
                    engine_metrics: Arc::default(),
                    gate: None,
                    lend_agent: |_, _, _| {},
                    dial: Box::new(|| async { Err(Error::Usage("there is no way".into())) }.boxed()),
                };
                let connection = Connection::begin(failing);
                // It ends on another thread, before the pool makes use of it.
                while connection.is_open() {
                    std::thread::yield_now();
                }
                connection
            })
        };
        let memory = Arc::new(Memory::in_memory());
        let caller = Caller {
            config: host.clone(),
            way: Way::Given(Login::new()),
            interaction: Interaction::none(),
        };
        let pool = Pool::new(host, Settings::default(), memory, connector);
        let outcome = pool.session(&Command::exec("true"), &caller).await;
        let error = match outcome {
            Ok(mut session) => session.started().await.unwrap_err(),
            Err(error) => error,
        };
        assert!(error.to_string().contains("there is no way"), "{error}");
        assert!(pool.status().is_empty());
    }
}
