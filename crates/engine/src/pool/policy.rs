//! Decides, without I/O, where sessions go, how many are opened ahead, and when a connection is no longer used.
//!
//! A *lane* is a connection's place in the pool of one host. The first lane carries short commands. A lane whose
//! traffic exceeds [`Settings::busy_above`] keeps its sessions and gets no new ones, so that a bulk stream never slows
//! a command: the next command gets a quiet lane, or a new one.
//!
//! A *further* lane is added beside a lane that is logged in. The work does not depend on it: if its log-in is slow or
//! refused, the work uses the other lanes or waits for a place there. The engine adds it unasked, so nobody is prompted
//! for it. If a person had to answer for the first log-in, no further lanes are added. If a program did, they are added
//! only for work whose program has its answers at hand.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use trunkline_request::Backoff;

use crate::connection::lease::End;
use crate::prompt::Answerer;
use crate::settings::Settings;

/// A lane of one pool. Numbers grow, so that the oldest lane is found first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LaneId(u32);

/// The kind of a request for a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    Session,
    /// A session of SFTP: on a server that is not known to be sshd, it is like `SessionApart`.
    Sftp,
    /// A session with a connection to itself: an empty lane, or a new one. When no more lanes are allowed, it is like
    /// any other session.
    SessionApart,
    /// Like a session, but MaxSessions does not bound it.
    Tunnel,
}

/// A request for a place, and who answers the prompts if a connection has to be made for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Demand {
    pub(crate) load: Load,
    pub(crate) answerer: Answerer,
}

impl From<Load> for Demand {
    fn from(load: Load) -> Self {
        Self {
            load,
            answerer: Answerer::Nobody,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Take a session that was opened ahead on this lane.
    Spare(LaneId),
    /// Open a channel on this lane.
    Open(LaneId),
    /// Make a new connection, and open the channel on it.
    Connect(LaneId),
    /// There is no place yet: look again when something has changed, and at this time, if there is one.
    Wait(Option<Instant>),
}

/// A lane's count of ended sessions, and of those that have certainly ended, at the time another was requested on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    ended: u64,
    settled: u64,
}

/// The time that a channel waits for its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Until it opens or fails.
    Endless,
    /// The lane is a further one that has not logged in: check again when something has changed, and at this time.
    UntilChanged(Option<Instant>),
    /// There is a better place.
    Over,
}

/// The decision about a refused session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Find it another place: nothing has started in it.
    PlaceAnew,
    /// Neither another lane nor waiting would help.
    Final,
}

/// The meaning of a connection's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The pool's only connection could not be made.
    NeverMade,
    /// A further connection could not be made or never carried anything. No other is tried before `again`. `news` is
    /// set for the first such failure since a further connection was last useful.
    FurtherRefused { again: Duration, news: bool },
    /// The connection had been useful, or was no longer wanted.
    Other,
}

/// The number of sessions that the server allows on a connection during its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// A second session has not been tried, and nothing suggests that it would fail.
    Untried,
    /// A later session on a connection was refused or ended it. Until the reason is known, sessions do not share.
    Doubted,
    Several,
    One,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spares {
    /// Unknown: one is tried on an idle lane.
    Untried,
    Kept,
    None,
}

/// A session that is opened ahead to see whether it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Trial {
    lane: LaneId,
    /// It takes a place in the server, or soon will.
    open: bool,
    /// The lane's count of ended sessions when the trial was opened.
    ended: u64,
}

/// The likely reason why the server refused a trial session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The server may not have freed the places of ended sessions.
    TooSoon,
    /// No other session was open.
    OfASecond,
    /// Other sessions were open.
    OfMore,
}

#[derive(Debug)]
struct Lane {
    /// Sessions that run or are being opened, without spares.
    sessions: u32,
    /// Other channels: tunnels. They do not count towards MaxSessions.
    tunnels: u32,
    /// The time at which each of the sessions and tunnels was placed.
    starts: Vec<Instant>,
    spares_ready: u32,
    spares_opening: u32,
    /// The time at which the last session or tunnel ended.
    idle_since: Instant,
    traffic: Traffic,
    /// Takes nothing new, ends when empty.
    retired: bool,
    /// The lane's first session, which is sent with the log-in, has not been requested yet. No other may be requested
    /// before it and take what may be the server's only place.
    reserved: bool,
    /// It was added beside others that were logged in.
    further: bool,
    since: Instant,
    /// Logged in.
    ready: bool,
    ready_at: Option<Instant>,
    /// The one who had to answer prompts during the log-in.
    answered: Answerer,
    /// The server has opened a channel on it.
    used: bool,
    /// The number of ended sessions (`ended`), and how many of their places the server has certainly freed (`settled`).
    ///
    /// sshd frees them once it has handled all packets that came with our CLOSE (channels.c, `channel_garbage_collect`,
    /// from `channel_after_poll`). It refuses a session requested in the same breath. An answer to a session requested
    /// after the CLOSE shows that the place is free.
    ended: u64,
    settled: u64,
    /// Sessions that ended as [`End::Left`] and were not returned yet.
    left: u32,
    /// A trial session is open on it.
    trial: bool,
    /// Sessions requested on it, except those that were given up before they opened.
    asked: u32,
    /// A command is known to have started on it.
    ran: bool,
    full: Option<Full>,
}

/// A refusal of a session on a lane that should have had room.
#[derive(Debug, Clone, Copy)]
struct Full {
    /// The number of other sessions that were open at the time.
    at: u32,
    /// The time at which it began to refuse even the only session.
    since: Instant,
    /// The time at which another session may be requested even if none has ended.
    until: Instant,
    tries: u32,
}

impl Full {
    const PAUSES: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
    /// The time that a lane that has had sessions may refuse its only one before the refusal is final.
    const PATIENCE: Duration = Duration::from_secs(10);
}

/// Bits per second from which the streams on a connection count as filling it: a core limits sshd then, so that one
/// server process each carries more. On slower paths, commands gain nothing from another connection.
const SIDE_BY_SIDE_ABOVE: u64 = 400_000_000;
/// The time after such streams in which sessions that come together are expected to be streams too. The lanes this adds
/// last as long, at an idle time of ten minutes.
const SIDE_BY_SIDE_FOR: Duration = Duration::from_secs(60);
/// The number of lanes that such streams are spread over. Eight downloads at once on two cores, which sshd, the
/// commands and this side share, moved 830, 910, 845 and 808 MiB/s through 1, 2, 4 and 8 lanes, and 707 by an ssh each
/// (medians of five alternating rounds, loopback). A server with more cores gains one with each lane.
const SIDE_BY_SIDE: usize = 4;

/// The time that the first session on a shared connection delays others that would need more connections if it failed.
const PROOF: Duration = Duration::from_secs(1);

/// The time that a further log-in delays work that could go elsewhere.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pause after a refused log-in before a further one is tried.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(600));

/// A lane's traffic, as a moving rate.
#[derive(Debug)]
struct Traffic {
    bytes: u64,
    at: Instant,
    /// Bits per second.
    rate: u64,
    busy: bool,
}

impl Lane {
    fn new(further: bool, now: Instant) -> Self {
        Self {
            sessions: 0,
            tunnels: 0,
            starts: Vec::new(),
            spares_ready: 0,
            spares_opening: 0,
            idle_since: now,
            traffic: Traffic {
                bytes: 0,
                at: now,
                rate: 0,
                busy: false,
            },
            retired: false,
            reserved: false,
            further,
            since: now,
            ready: false,
            ready_at: None,
            answered: Answerer::Nobody,
            used: false,
            ended: 0,
            settled: 0,
            left: 0,
            trial: false,
            asked: 0,
            ran: false,
            full: None,
        }
    }

    /// Returns the number of sessions of all kinds that take places in the server, or soon will.
    fn open(&self) -> u32 {
        self.sessions + self.spares_ready + self.spares_opening + u32::from(self.trial)
    }

    /// Returns whether the lane's first session has started, or had time to: the server must not get another before.
    fn has_begun(&self, now: Instant) -> bool {
        self.ran || self.ended > 0 || self.ready_at.is_some_and(|at| now >= at + PROOF)
    }

    /// Returns whether the server has opened no session on this lane, and none is requested.
    fn is_fresh(&self) -> bool {
        self.open() == 0 && self.ended == 0 && self.left == 0
    }

    fn is_quiet(&self) -> bool {
        !self.traffic.busy
    }

    fn is_empty(&self) -> bool {
        self.sessions == 0 && self.tunnels == 0
    }

    /// Returns whether the log-in takes so long that work with an alternative should not wait for it.
    fn is_overdue(&self, now: Instant) -> bool {
        self.further && !self.ready && now >= self.since + PATIENCE
    }

    fn place_ended(&mut self, placed: Instant, now: Instant) {
        if let Some(at) = self.starts.iter().position(|start| *start == placed) {
            self.starts.swap_remove(at);
        }
        if self.is_empty() {
            // Whatever filled the lane is over; do not wait for the next measurement.
            self.traffic.busy = false;
        }
        self.idle_since = now;
    }

    /// Notes that the server has answered a session request.
    fn count_answer(&mut self, asked: Tally) {
        self.settled = self.settled.max(asked.ended);
    }

    /// Returns the number of ended sessions whose places the server may not have freed when it answered.
    fn count_unsettled(&self, asked: Tally) -> u32 {
        u32::try_from(self.ended.saturating_sub(asked.settled)).unwrap_or(u32::MAX)
    }

    /// Returns whether several sessions filled the lane when it was last measured. Tunnels do not count, because most
    /// of them are idle most of the time.
    fn is_shared_by_streams(&self, now: Instant) -> bool {
        let lasting = |start: &&Instant| now.saturating_duration_since(**start) >= Traffic::SHORTEST;
        let lasting = self.starts.iter().filter(lasting).count();
        self.traffic.busy
            && self.traffic.rate >= SIDE_BY_SIDE_ABOVE
            && lasting.saturating_sub(self.tunnels as usize) > 1
    }

    /// Notes the bytes carried so far. Only a stream that lasts makes a lane busy: many short commands in a row may
    /// carry as much, but none of them waits long for another.
    fn sample(&mut self, bytes: u64, now: Instant, settings: &Settings) {
        let elapsed = now.saturating_duration_since(self.traffic.at);
        if elapsed < Traffic::SHORTEST {
            return;
        }
        let lasting = self.starts.iter().any(|start| *start <= self.traffic.at);
        let bits = u128::from(bytes.saturating_sub(self.traffic.bytes)) * 8;
        let rate = bits * 1_000_000 / elapsed.as_micros().max(1);
        let threshold = if self.traffic.busy {
            settings.busy_below
        } else {
            settings.busy_above
        };
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        self.traffic = Traffic {
            bytes,
            at: now,
            rate,
            busy: lasting && rate > threshold,
        };
    }
}

impl Traffic {
    /// The shortest time over which a rate is meaningful.
    const SHORTEST: Duration = Duration::from_millis(250);
}

#[derive(Debug)]
pub(crate) struct Policy {
    settings: Settings,
    /// Boxed: most hosts have one lane, and a B-tree node has room for eleven.
    lanes: BTreeMap<LaneId, Box<Lane>>,
    next: u32,
    /// There is only one connection, and its user gets the server's refusals: nothing waits.
    single: bool,
    /// The server's MaxSessions, as learned from its refusals.
    session_limit: Option<u32>,
    reuse: Reuse,
    /// Sessions of SFTP may share a connection.
    shares_sftp: bool,
    spares: Spares,
    trial: Option<Trial>,
    /// Trials wait for an answer first, because one that did not was refused.
    trials_wait: bool,
    /// Further log-ins that were refused in a row, and when the next may be tried.
    refusals: u32,
    again: Option<Instant>,
    /// The most sessions at once since the demand was last reset, and in the period before.
    demand: u32,
    last_demand: u32,
    demand_since: Instant,
    /// Until then, sessions that come together are expected to be streams that each fill a connection.
    streams_until: Option<Instant>,
    idle_timeout: Option<Duration>,
}

/// The time that a number of simultaneous sessions counts as demand.
const DEMAND_WINDOW: Duration = Duration::from_secs(10);

impl Policy {
    /// Makes a policy with host memory's `session_limit`. Without an `idle_timeout`, the first connection is permanent.
    pub(crate) fn new(
        settings: Settings,
        session_limit: Option<u32>,
        idle_timeout: Option<Duration>,
        now: Instant,
    ) -> Self {
        Self {
            settings,
            lanes: BTreeMap::new(),
            next: 0,
            single: false,
            session_limit,
            reuse: Reuse::Untried,
            shares_sftp: false,
            spares: Spares::Untried,
            trial: None,
            trials_wait: false,
            refusals: 0,
            again: None,
            demand: 0,
            last_demand: 0,
            demand_since: now,
            streams_until: None,
            idle_timeout,
        }
    }

    /// Limits the pool to one connection. The server's refusals are final: nothing waits for a place.
    #[must_use]
    pub(crate) fn single(mut self) -> Self {
        self.settings.max_lanes = 1;
        self.single = true;
        self
    }

    /// Sets whether spares are used. They need servers that allow `exec` long after the session was opened, as sshd
    /// does.
    pub(crate) fn keep_spares(&mut self, spares: Spares) {
        self.spares = spares;
    }

    /// Returns how many sessions a connection may have, as far as known.
    pub(crate) fn reuse(&self) -> Reuse {
        self.reuse
    }

    /// Sets how many sessions a connection may have, as learned from host memory or from a session.
    pub(crate) fn set_reuse(&mut self, reuse: Reuse) {
        self.reuse = reuse;
    }

    /// Sets whether sessions of SFTP may share a connection: with sshd, each is a process. Some servers have one buffer for all
    /// of them: behind a request that came in two parts they read the rest from another session, and write that into the file.
    pub(crate) fn share_sftp(&mut self, shares: bool) {
        self.shares_sftp = shares;
    }

    /// Notes that a session failed on a connection that had had another. Until more is known, each session gets its own
    /// connection. The lane gets nothing new in any case.
    pub(crate) fn doubt_reuse(&mut self, lane: LaneId) {
        if self.reuse == Reuse::Untried {
            self.reuse = Reuse::Doubted;
        }
        self.retire(lane);
    }

    fn is_one_each(&self) -> bool {
        matches!(self.reuse, Reuse::One | Reuse::Doubted)
    }

    /// Returns whether at most one session was ever requested on a lane.
    pub(crate) fn is_alone_on(&self, lane: LaneId) -> bool {
        self.lanes.get(&lane).is_some_and(|lane| lane.asked <= 1)
    }

    /// Notes that a session has started on a lane, and returns whether another had before it.
    pub(crate) fn ran(&mut self, lane: LaneId) -> bool {
        let lane = self.lanes.get_mut(&lane);
        lane.is_some_and(|lane| std::mem::replace(&mut lane.ran, true))
    }

    /// Returns whether a lane has had a session and has none now.
    pub(crate) fn is_between_sessions(&self, lane: LaneId) -> bool {
        let lane = self.lanes.get(&lane);
        lane.is_some_and(|lane| lane.is_empty() && lane.ended > 0 && lane.left == 0)
    }

    /// Returns the server's limit as learned, for host memory.
    pub(crate) fn session_limit(&self) -> Option<u32> {
        self.session_limit
    }

    pub(crate) fn lanes(&self) -> impl Iterator<Item = LaneId> {
        self.lanes.keys().copied()
    }

    /// Returns the numbers of sessions and tunnels on a lane.
    pub(crate) fn load(&self, lane: LaneId) -> (u32, u32) {
        self.lanes
            .get(&lane)
            .map_or((0, 0), |lane| (lane.sessions, lane.tunnels))
    }

    pub(crate) fn is_busy(&self, lane: LaneId) -> bool {
        self.lanes.get(&lane).is_some_and(|lane| lane.traffic.busy)
    }

    /// Returns a lane's last measured traffic in bits per second.
    pub(crate) fn rate(&self, lane: LaneId) -> u64 {
        self.lanes.get(&lane).map_or(0, |lane| lane.traffic.rate)
    }

    pub(crate) fn is_any_busy(&self) -> bool {
        self.lanes.values().any(|lane| lane.traffic.busy)
    }

    /// Returns whether a lane was added beside others that were logged in.
    pub(crate) fn is_further(&self, lane: LaneId) -> bool {
        self.lanes.get(&lane).is_some_and(|lane| lane.further)
    }

    // Demand.

    /// Notes how many bytes a lane has carried so far.
    pub(crate) fn traffic(&mut self, lane: LaneId, bytes: u64, now: Instant) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.sample(bytes, now, &self.settings);
            if lane.is_shared_by_streams(now) {
                self.streams_until = Some(now + SIDE_BY_SIDE_FOR);
            }
        }
    }

    pub(crate) fn place(&mut self, demand: impl Into<Demand>, now: Instant) -> Placement {
        let Demand { load, answerer } = demand.into();
        let load = self.plain(load);
        let chosen = match load {
            Load::Tunnel => self.choose_for_tunnel(answerer, now),
            _ if self.is_apart(load, now) => match self.choose_apart(load, answerer, now) {
                Some(chosen) => chosen,
                // It may get its own connection once the first one is logged in.
                None if load == Load::SessionApart && !self.has_ready() => {
                    Placement::Wait(self.look_again(now))
                }
                None => self.choose_for_session(answerer, now),
            },
            _ => self.choose_for_session(answerer, now),
        };
        self.count(chosen, load, now);
        chosen
    }

    fn choose_for_session(&mut self, answerer: Answerer, now: Instant) -> Placement {
        let quiet = |policy: &Self, lane: &Lane| policy.takes(lane, now) && lane.is_quiet();
        if let Some(id) = self.find(|lane| quiet(self, lane) && lane.spares_ready > 0) {
            return Placement::Spare(id);
        }
        if let Some(id) = self.find(|lane| quiet(self, lane) && self.has_room(lane, now)) {
            return Placement::Open(id);
        }
        // A session is already being opened there, and will be ready before a new connection.
        if self
            .find(|lane| quiet(self, lane) && lane.spares_opening > 0)
            .is_some()
        {
            return Placement::Wait(self.look_again(now));
        }
        if self.may_add(answerer, now) {
            return Placement::Connect(self.add_lane(now));
        }
        if let Some(id) = self.find(|lane| self.takes(lane, now) && lane.spares_ready > 0) {
            return Placement::Spare(id);
        }
        if let Some(at) = self.proven_by(now) {
            return Placement::Wait(Some(at));
        }
        match self.find(|lane| self.takes(lane, now) && self.may_have_room(lane, now)) {
            Some(id) => Placement::Open(id),
            None => Placement::Wait(self.look_again(now)),
        }
    }

    /// Returns an empty lane or a new one. If streams are only expected, returns a new lane while there are few, then
    /// the lane with the fewest sessions.
    fn choose_apart(&mut self, load: Load, answerer: Answerer, now: Instant) -> Option<Placement> {
        let (suits, most): (fn(&Lane) -> bool, _) = match load {
            Load::SessionApart => (Lane::is_empty, usize::MAX),
            _ => (Lane::is_quiet, SIDE_BY_SIDE),
        };
        let least = self
            .lanes
            .iter()
            .filter(|(_, lane)| self.takes(lane, now) && suits(lane) && self.has_room_apart(lane, now))
            .min_by_key(|(_, lane)| (lane.sessions, !lane.ready, lane.spares_ready == 0))
            .map(|(id, lane)| (*id, lane.sessions == 0, lane.spares_ready > 0));
        let may_add = self.lanes.len() < most && self.may_add(answerer, now);
        match least {
            Some((id, is_empty, has_spare)) if is_empty || !may_add => Some(match has_spare {
                true => Placement::Spare(id),
                false => Placement::Open(id),
            }),
            _ => may_add.then(|| Placement::Connect(self.add_lane(now))),
        }
    }

    fn choose_for_tunnel(&mut self, answerer: Answerer, now: Instant) -> Placement {
        if let Some(id) = self.find(|lane| self.takes(lane, now) && lane.is_quiet()) {
            return Placement::Open(id);
        }
        if self.may_add(answerer, now) {
            return Placement::Connect(self.add_lane(now));
        }
        match self.find(|lane| self.takes(lane, now)) {
            Some(id) => Placement::Open(id),
            None => Placement::Wait(self.look_again(now)),
        }
    }

    /// Returns whether a lane takes new work. Retired lanes do not, nor do further lanes whose log-in is slow.
    fn takes(&self, lane: &Lane, now: Instant) -> bool {
        !(lane.retired || lane.reserved || lane.is_overdue(now) && self.has_ready())
    }

    /// Returns whether a lane has room for another session that can do no harm: some servers end the connection, and
    /// everything on it, when a second session is requested.
    fn has_room(&self, lane: &Lane, now: Instant) -> bool {
        let is_known = self.reuse != Reuse::Untried || self.single;
        (is_known || lane.open() == u32::from(lane.trial)) && self.may_have_room(lane, now)
    }

    /// Returns whether a lane has a session that is open, or room for one and none that is being opened.
    fn has_room_apart(&self, lane: &Lane, now: Instant) -> bool {
        lane.spares_ready > 0 || lane.spares_opening == 0 && self.has_room(lane, now)
    }

    /// Returns whether a lane may have room for another session.
    fn may_have_room(&self, lane: &Lane, now: Instant) -> bool {
        if self.is_one_each() && !self.single && !lane.is_fresh() {
            return false;
        }
        let open = lane.open();
        // A second session, after the first, shows whether the server allows more.
        let at_once = open - u32::from(lane.trial);
        let unknown = self.reuse == Reuse::Untried && !self.single;
        if unknown && (at_once > 1 || at_once == 1 && !lane.has_begun(now)) {
            return false;
        }
        let may_fit = |full: Full| open < full.at || now >= full.until;
        self.single || open < self.limit() && lane.full.is_none_or(may_fit)
    }

    /// Returns until when a second session may show whether a connection has room for more.
    fn proven_by(&self, now: Instant) -> Option<Instant> {
        let unknown = self.reuse == Reuse::Untried && !self.single;
        let lanes = self
            .lanes
            .values()
            .filter(|lane| unknown && !lane.retired && lane.sessions > 0);
        let begun = |lane: &Lane| match lane.sessions {
            1 if lane.has_begun(now) => None,
            1 => lane.ready_at,
            _ => lane.starts.iter().max().copied().filter(|_| lane.ready),
        };
        let until = lanes.filter_map(|lane| Some(begun(lane)? + PROOF));
        until.filter(|at| *at > now).min()
    }

    fn has_ready(&self) -> bool {
        self.lanes.values().any(|lane| lane.ready && !lane.retired)
    }

    /// Returns whether a lane may be added. A further one requires a lane that is logged in, so that a log-in that
    /// cannot succeed is not repeated.
    fn may_add(&self, answerer: Answerer, now: Instant) -> bool {
        if self.lanes.len() >= self.settings.max_lanes {
            return false;
        }
        let is_first = self.lanes.values().all(|lane| lane.retired);
        let is_allowed = self.again.is_none_or(|again| now >= again);
        let overdue = self.lanes.values().any(|lane| lane.is_overdue(now));
        // If log-ins take answers, only one runs at a time: several wrong answers would lock the account.
        let asks = self.lanes.values().any(|lane| lane.answered != Answerer::Nobody);
        let asking = asks && self.lanes.values().any(|lane| !lane.ready);
        is_first || self.has_ready() && !self.is_attended(answerer) && is_allowed && !overdue && !asking
    }

    /// Returns the most sessions for one piece of work when no lane can be added. The number is below the server's
    /// limit, so that commands still find a place. Returns `None` if lanes may be added.
    pub(crate) fn most_together(&self, answerer: Answerer, now: Instant) -> Option<usize> {
        let refused = self.again.is_some_and(|again| now < again);
        let alone = !self.single && (refused || self.is_attended(answerer));
        let beside = self.settings.spare_sessions.max(1).saturating_add(1);
        alone.then(|| self.limit().saturating_sub(beside).max(1) as usize)
    }

    /// Returns whether another log-in would need an answer that `answerer` does not have at hand.
    pub(crate) fn is_attended(&self, answerer: Answerer) -> bool {
        let mut lanes = self.lanes.values().filter(|lane| !lane.retired);
        lanes.any(|lane| match lane.answered {
            Answerer::Nobody => false,
            Answerer::Program => answerer != Answerer::Program,
            Answerer::Person => true,
        })
    }

    /// Returns what a session of SFTP is like by what is known of the server; every other load is itself.
    fn plain(&self, load: Load) -> Load {
        match load {
            Load::Sftp if self.shares_sftp => Load::Session,
            Load::Sftp => Load::SessionApart,
            load => load,
        }
    }

    /// Returns whether a load goes to the lane with the fewest sessions: it wants its own connection, or streams are
    /// expected.
    fn is_apart(&self, load: Load, now: Instant) -> bool {
        match load {
            Load::SessionApart => true,
            Load::Session | Load::Sftp => self.streams_until.is_some_and(|until| now < until),
            Load::Tunnel => false,
        }
    }

    /// Returns the time at which waiting requests may find a place although nothing has ended.
    fn look_again(&self, now: Instant) -> Option<Instant> {
        let again = self.again.filter(|_| self.lanes.len() < self.settings.max_lanes);
        let asked_again = self.lanes.values().filter_map(|lane| Some(lane.full?.until));
        asked_again.chain(again).filter(|at| *at > now).min()
    }

    fn count(&mut self, chosen: Placement, load: Load, now: Instant) {
        let (Placement::Spare(id) | Placement::Open(id) | Placement::Connect(id)) = chosen else {
            return;
        };
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        lane.starts.push(now);
        if load == Load::Tunnel {
            lane.tunnels += 1;
            return;
        }
        lane.reserved = matches!(chosen, Placement::Connect(_)) && !lane.further;
        lane.sessions += 1;
        lane.asked += u32::from(!matches!(chosen, Placement::Spare(_)));
        lane.spares_ready -= u32::from(matches!(chosen, Placement::Spare(_)));
        let running = self.lanes.values().map(|lane| lane.sessions).sum();
        self.note_demand(running, now);
    }

    /// Returns how long a channel requested on a lane waits for that lane. If it is over, [`Self::place`] chooses another: it would
    /// be asked again without a pause otherwise.
    pub(crate) fn patience(&self, waits_on: LaneId, load: Load, now: Instant) -> Patience {
        let waiting = self
            .lanes
            .get(&waits_on)
            .filter(|lane| lane.further && !lane.ready);
        let Some(waiting) = waiting else {
            return Patience::Endless;
        };
        let (overdue, load) = (waiting.is_overdue(now), self.plain(load));
        let apart = self.is_apart(load, now);
        let is_better = |id: LaneId, lane: &Lane| {
            let room = load == Load::Tunnel || lane.spares_ready > 0 || self.has_room(lane, now);
            let place = lane.ready && self.takes(lane, now) && room && id != waits_on;
            let preferred = !apart || lane.is_empty() && self.has_room_apart(lane, now);
            place && (overdue || lane.is_quiet() && preferred)
        };
        if self.lanes.iter().any(|(id, lane)| is_better(*id, lane)) {
            return Patience::Over;
        }
        let at = waiting.since + PATIENCE;
        Patience::UntilChanged((at > now).then_some(at))
    }

    /// Counts a tunnel on the oldest lane that takes new work, and adds a lane if there is none.
    pub(crate) fn hold_first(&mut self, now: Instant) -> LaneId {
        let id = self.first().unwrap_or_else(|| self.add_lane(now));
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.tunnels += 1;
            lane.starts.push(now);
        }
        id
    }

    /// Returns the oldest lane that takes new work.
    pub(crate) fn first(&self) -> Option<LaneId> {
        let mut lanes = self.lanes.iter();
        lanes.find(|(_, lane)| !lane.retired).map(|(id, _)| *id)
    }

    /// Adds an empty lane.
    pub(crate) fn add_lane(&mut self, now: Instant) -> LaneId {
        let id = LaneId(self.next);
        self.next += 1;
        let lane = Lane::new(self.has_ready(), now);
        self.lanes.insert(id, Box::new(lane));
        id
    }

    /// Returns how many sessions to open ahead on a lane now, and counts them as being opened.
    pub(crate) fn open_spares(&mut self, lane: LaneId, now: Instant) -> u32 {
        self.note_demand(0, now);
        let limit = self.limit();
        let wanted = self
            .last_demand
            .max(self.demand)
            .clamp(1, self.settings.spare_sessions.max(1));
        let kept = self.spares == Spares::Kept && !self.is_one_each();
        if !kept || limit < 2 || self.settings.spare_sessions == 0 {
            return 0;
        }
        let Some(lane) = self
            .lanes
            .get_mut(&lane)
            .filter(|lane| !lane.retired && !lane.reserved && lane.is_quiet() && lane.full.is_none())
        else {
            return 0;
        };
        let count = wanted
            .saturating_sub(lane.spares_ready + lane.spares_opening)
            .min(limit.saturating_sub(lane.open()));
        lane.spares_opening += count;
        lane.asked += count;
        count
    }

    // The trial session.

    /// Returns whether to try out a session on a lane. The lane must be idle and have had a session, so that nobody
    /// pays for the trial. Only one trial runs at a time.
    pub(crate) fn begin_trial(&mut self, id: LaneId) -> bool {
        let lanes = &self.lanes;
        self.trial.take_if(|trial| !lanes.contains_key(&trial.lane));
        let wanted = self.spares == Spares::Untried
            && self.trial.is_none()
            && !self.is_one_each()
            && !self.single
            && self.limit() > 1
            && self.settings.spare_sessions > 0;
        let fits = |lane: &Lane| lane.ready && !lane.retired && lane.full.is_none();
        let begins =
            wanted && self.is_between_sessions(id) && self.lanes.get(&id).is_some_and(|lane| fits(lane));
        if begins {
            self.trial = Some(Trial {
                lane: id,
                open: false,
                ended: 0,
            });
        }
        begins
    }

    /// Returns whether to wait for an answer from the server before opening the trial. Commands that follow each other
    /// closely leave no time for that.
    pub(crate) fn trials_wait(&self) -> bool {
        self.trials_wait
    }

    /// Opens the trial session if the lane is still idle, and returns whether it did.
    pub(crate) fn open_trial(&mut self, id: LaneId) -> bool {
        let waited = self.trials_wait;
        let idle = self.is_between_sessions(id);
        let lane = self.lanes.get_mut(&id).filter(|lane| idle && !lane.retired);
        match (lane, &mut self.trial) {
            (Some(lane), Some(trial)) => {
                if waited {
                    // The server has answered since all of them ended.
                    lane.settled = lane.ended;
                }
                lane.trial = true;
                lane.asked += 1;
                (trial.open, trial.ended) = (true, lane.ended);
                true
            }
            _ => {
                self.trial.take_if(|trial| trial.lane == id);
                false
            }
        }
    }

    /// Classifies the refusal of a trial session. It shows nothing about the server if ended sessions may still have
    /// held places, or if another session has started since.
    pub(crate) fn trial_refused(&mut self, id: LaneId) -> Refusal {
        match std::mem::replace(&mut self.trials_wait, true) {
            false => Refusal::TooSoon,
            true if self.is_between_sessions(id) => Refusal::OfASecond,
            true => Refusal::OfMore,
        }
    }

    /// Returns whether the lane is idle and another session has ended since the trial session was opened.
    pub(crate) fn has_outlived(&self, id: LaneId) -> bool {
        let since = self.trial.filter(|trial| trial.lane == id && trial.open);
        let Some((trial, lane)) = since.zip(self.lanes.get(&id)) else {
            return false;
        };
        lane.is_empty() && lane.left == 0 && lane.ended > trial.ended
    }

    /// Ends the trial. If its session is useful, it becomes a spare.
    pub(crate) fn end_trial(&mut self, id: LaneId, is_of_use: bool) {
        self.trial.take_if(|trial| trial.lane == id);
        if let Some(lane) = self.lanes.get_mut(&id)
            && std::mem::take(&mut lane.trial)
            && is_of_use
        {
            lane.spares_ready += 1;
        }
    }

    /// Returns the tally to keep with a session request until its answer.
    pub(crate) fn asks(&self, lane: LaneId) -> Tally {
        self.lanes.get(&lane).map_or_else(Tally::default, |lane| Tally {
            ended: lane.ended,
            settled: lane.settled,
        })
    }

    // The outcome of requests.

    /// Notes that the session that a first lane was made for has been requested.
    pub(crate) fn first_asked(&mut self, lane: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.reserved = false;
        }
    }

    /// Notes that a lane's connection is logged in, and who answered prompts for it.
    pub(crate) fn lane_ready(&mut self, lane: LaneId, answered: Answerer, now: Instant) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.ready = true;
            lane.ready_at = Some(now);
            lane.answered = answered;
        }
    }

    /// Notes that the server has opened a session ahead.
    pub(crate) fn spare_opened(&mut self, lane: LaneId, asked: Tally) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.spares_opening = lane.spares_opening.saturating_sub(1);
            lane.spares_ready += 1;
        }
        self.session_opened(lane, asked);
    }

    /// Notes that the server has opened a session.
    pub(crate) fn session_opened(&mut self, lane: LaneId, asked: Tally) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.count_answer(asked);
            let open = lane.open();
            lane.full = lane.full.filter(|full| open <= full.at);
        }
        self.channel_opened(lane);
    }

    /// Notes that the server has opened a tunnel or a session.
    pub(crate) fn channel_opened(&mut self, lane: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&lane)
            && !std::mem::replace(&mut lane.used, true)
            && lane.further
        {
            self.refusals = 0;
            self.again = None;
        }
    }

    /// Handles the refusal of a session or a spare. The server's limit is at most the number of other open sessions and
    /// of those whose places it may not have freed.
    pub(crate) fn session_refused(
        &mut self,
        id: LaneId,
        was_spare: bool,
        asked: Tally,
        now: Instant,
    ) -> Verdict {
        let (limit, single) = (self.session_limit, self.single);
        let Some(lane) = self.lanes.get_mut(&id) else {
            // The connection has ended since the server's answer. If it was the only one, the answer stands.
            return if single {
                Verdict::Final
            } else {
                Verdict::PlaceAnew
            };
        };
        if was_spare {
            lane.spares_opening = lane.spares_opening.saturating_sub(1);
        }
        lane.count_answer(asked);
        let unsettled = lane.count_unsettled(asked);
        let open = lane.open().saturating_sub(u32::from(!was_spare));
        let counted = open.saturating_add(unsettled).saturating_add(lane.left);
        let unknown = limit.unwrap_or(self.settings.sessions_per_lane);
        let is_news = counted > 0 && counted < unknown;
        if is_news {
            self.session_limit = Some(counted);
        }
        let ours = lane.spares_ready + lane.spares_opening;
        if single {
            // The connection's user would not wait either.
            let passes = unsettled > 0 || ours > 0;
            return if passes {
                Verdict::PlaceAnew
            } else {
                Verdict::Final
            };
        }
        // Places that were not free then are free now, and the limit bounds the next attempt.
        if unsettled > 0 || is_news && counted == open {
            return Verdict::PlaceAnew;
        }
        let before = lane.full.filter(|_| open == 0);
        let since = before.map_or(now, |full| full.since);
        let tries = before.map_or(1, |full| full.tries + 1);
        lane.full = Some(Full {
            at: open,
            since,
            until: now + Full::PAUSES.pause_after(tries),
            tries,
        });
        let waited = now.saturating_duration_since(since);
        let had_any = lane.used || lane.ended > 0 || lane.left > 0;
        // Nothing is open, and all ended sessions are settled: the server allows no second session on a connection.
        if open == 0 && lane.left + u32::from(lane.ended > 0) > 0 && self.reuse != Reuse::Several {
            lane.full = None;
            self.doubt_reuse(id);
            return Verdict::PlaceAnew;
        }
        if open == 0 && (!had_any || waited >= Full::PATIENCE) {
            lane.full = None;
            return Verdict::Final;
        }
        Verdict::PlaceAnew
    }

    /// Notes how the session placed at `placed` ended.
    pub(crate) fn session_ended(&mut self, lane: LaneId, placed: Instant, end: End, now: Instant) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            match end {
                End::NeverOpened => lane.asked = lane.asked.saturating_sub(1),
                End::Closed => lane.ended += 1,
                End::Left => lane.left += 1,
                End::Returned => {
                    lane.left = lane.left.saturating_sub(1);
                    lane.ended += 1;
                    lane.full = None;
                    return;
                }
            }
            lane.sessions = lane.sessions.saturating_sub(1);
            lane.place_ended(placed, now);
            if matches!(self.reuse, Reuse::One | Reuse::Doubted) && !lane.is_fresh() && lane.sessions == 0 {
                lane.retired = true;
            }
        }
    }

    /// Notes that the tunnel placed at `placed` has ended.
    pub(crate) fn tunnel_ended(&mut self, lane: LaneId, placed: Instant, now: Instant) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.tunnels = lane.tunnels.saturating_sub(1);
            lane.place_ended(placed, now);
        }
    }

    /// Removes a lane whose connection this side closed.
    pub(crate) fn lane_closed(&mut self, lane: LaneId) {
        self.lanes.remove(&lane);
    }

    /// Removes a further lane that was not made because its answerer left: the server has refused nothing.
    pub(crate) fn lane_given_up(&mut self, lane: LaneId) {
        self.lanes.remove(&lane);
    }

    /// Removes a lane whose connection has ended or could not be made.
    pub(crate) fn lane_lost(&mut self, lane: LaneId, now: Instant) -> Loss {
        let Some(lane) = self.lanes.remove(&lane) else {
            return Loss::Other;
        };
        if lane.retired || lane.used {
            return Loss::Other;
        }
        if !lane.further {
            return if lane.ready { Loss::Other } else { Loss::NeverMade };
        }
        // Several that failed at once count once.
        let again = match self.again {
            Some(again) if again > now => again,
            _ => {
                self.refusals += 1;
                now + PAUSES.pause_after(self.refusals)
            }
        };
        let news = self.again.is_none();
        self.again = Some(again);
        Loss::FurtherRefused {
            again: again - now,
            news,
        }
    }

    /// Retires a lane.
    pub(crate) fn retire(&mut self, lane: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.retired = true;
        }
    }

    /// Retires a lane whose server has not answered for long, unless it is the only connection. Returns whether it did.
    pub(crate) fn doubt(&mut self, lane: LaneId) -> bool {
        if !self.single {
            self.retire(lane);
        }
        !self.single
    }

    /// Returns the lanes that are no longer needed: retired and empty, or idle for too long. Further lanes are allowed
    /// a tenth of the idle time.
    pub(crate) fn expired_lanes(&self, now: Instant) -> Vec<LaneId> {
        self.lanes
            .iter()
            .filter(|(id, lane)| {
                lane.is_empty() && (lane.retired || self.idle_left(**id, now) == Some(Duration::ZERO))
            })
            .map(|(id, _)| *id)
            .collect()
    }

    /// Returns the lanes that are retired and empty.
    pub(crate) fn finished_lanes(&self) -> Vec<LaneId> {
        let over = |lane: &Lane| lane.retired && lane.is_empty();
        let lanes = self.lanes.iter().filter(|(_, lane)| over(lane));
        lanes.map(|(id, _)| *id).collect()
    }

    /// Returns how much longer a lane may stay unused. Returns `None` while it is used, or if it is kept forever.
    pub(crate) fn idle_left(&self, id: LaneId, now: Instant) -> Option<Duration> {
        let lane = self.lanes.get(&id).filter(|lane| lane.is_empty())?;
        let limit = match (self.idle_timeout, self.first() == Some(id)) {
            (None, true) => return None,
            (None, false) => self.settings.idle_timeout / 10,
            (Some(timeout), true) => timeout,
            (Some(timeout), false) => timeout.min(self.settings.idle_timeout / 10),
        };
        let idle = now.saturating_duration_since(lane.idle_since);
        Some(limit.saturating_sub(idle))
    }

    fn limit(&self) -> u32 {
        self.session_limit
            .unwrap_or(self.settings.sessions_per_lane)
            .max(1)
    }

    /// Returns the oldest lane that suits, one that is logged in before all others.
    fn find(&self, suits: impl Fn(&Lane) -> bool) -> Option<LaneId> {
        let suiting = self.lanes.iter().filter(|(_, lane)| suits(lane));
        suiting.min_by_key(|(_, lane)| !lane.ready).map(|(id, _)| *id)
    }

    fn note_demand(&mut self, running: u32, now: Instant) {
        if now.saturating_duration_since(self.demand_since) > DEMAND_WINDOW {
            self.last_demand = self.demand;
            self.demand = 0;
            self.demand_since = now;
        }
        self.demand = self.demand.max(running);
    }
}

#[cfg(test)]
mod tests;
