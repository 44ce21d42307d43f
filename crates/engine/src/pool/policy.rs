//! The place of a session, the number opened ahead, and the end of a connection's use: decisions without I/O.
//!
//! A *lane* is a connection's place in the pool of one host. The first lane carries short commands; one whose traffic
//! passes [`Settings::busy_above`] keeps what runs on it and gets nothing new, so that a bulk stream never slows a
//! command: the next one finds a quiet lane, or a new one.
//!
//! A *further* lane is one that is added beside a lane that is logged in. It is never needed: while its log-in takes long,
//! and when it is refused, the work goes where it would have gone without it, or waits for a place there. It is made of the
//! engine's own accord, so nobody is asked anything for it: where the first log-in took a person's answer there is none.
//! Where it took a program's, there is one for work whose program has its answers at hand, too.

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
    /// A session that is to have a connection for itself: a lane with nothing on it, or a new one; where there may be no
    /// more, it is as any other.
    SessionApart,
    /// Like a session, but MaxSessions does not bound it.
    Tunnel,
}

/// A request for a place, and the answerer if a connection has to be made for it.
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

/// A place for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Take a session that was opened ahead on this lane.
    Spare(LaneId),
    /// Open a channel on this lane.
    Open(LaneId),
    /// Make a new connection, and open the channel on it.
    Connect(LaneId),
    /// Nowhere yet: look again when something has changed, and at this time, if there is one.
    Wait(Option<Instant>),
}

/// The count of a lane's ended sessions, and of those that have certainly ended, when another was requested on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    ended: u64,
    settled: u64,
}

/// For how long a channel waits for its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Until it is open, or cannot be.
    Endless,
    /// The lane is a further one that is yet to log in: to be asked again when something has changed, and at this time.
    UntilChanged(Option<Instant>),
    /// There is a better place.
    Over,
}

/// The decision about a session that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Place it anew: nothing has begun in it.
    PlaceAnew,
    /// No other lane and no patience would lift it.
    Final,
}

/// The meaning of a connection's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The only one there was could not be made.
    NeverMade,
    /// A further one could not be made, or never carried anything. No other is tried before `again`. `news`: it is the first
    /// since one was of use.
    FurtherRefused { again: Duration, news: bool },
    /// It was of use, or nobody wants it any more.
    Other,
}

/// The number of sessions that a connection of the server's has in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// More than one was not seen yet, and nothing speaks against it.
    Untried,
    /// One was refused, or ended its connection, where another had been: until it is known, each gets a connection of its own.
    Doubted,
    Several,
    One,
}

/// Whether sessions that are opened ahead are of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spares {
    /// Nobody knows: one is tried on an idle lane.
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
    /// Sessions of the lane that had ended when it was opened.
    ended: u64,
}

/// Of a session that is tried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Sessions that had ended may have stood in its way.
    TooSoon,
    /// None was open.
    OfASecond,
    /// Others were open.
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
    /// The session that it was made for, which leaves with the log-in, is yet to be asked for: nothing may come before it, and
    /// take the only place that the server has.
    reserved: bool,
    /// It was added beside others that were logged in.
    further: bool,
    since: Instant,
    /// It is logged in.
    ready: bool,
    ready_at: Option<Instant>,
    /// The answerer who had to do something for that.
    answered: Answerer,
    /// The server has opened a channel on it.
    used: bool,
    /// Sessions that have ended, and how many of the first of them the server has certainly given the places back of.
    ///
    /// sshd does so once it has handled all packets that came with our CLOSE (channels.c, `channel_garbage_collect`, from
    /// `channel_after_poll`): a session asked for in the same breath is refused. By the time that it answers a session that
    /// was asked for after the CLOSE, it has done so.
    ended: u64,
    settled: u64,
    /// Sessions that ended as [`End::Left`] and were not returned yet.
    left: u32,
    /// A session is being tried out on it.
    trial: bool,
    /// Sessions that were asked for on it, but for those that were given up before.
    asked: u32,
    /// A command is known to have started on it.
    ran: bool,
    full: Option<Full>,
}

/// The server has refused a session on a lane that should have had room.
#[derive(Debug, Clone, Copy)]
struct Full {
    /// The number that were open beside it.
    at: u32,
    /// Since when it refuses even the only one.
    since: Instant,
    /// The time at which it is asked again, if none has ended before.
    until: Instant,
    tries: u32,
}

impl Full {
    const PAUSES: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
    /// For how long a lane that has had sessions may refuse the only one before that is final.
    const PATIENCE: Duration = Duration::from_secs(10);
}

/// Streams that fill a connection together, each of which had more as one process of the server's for itself: from this
/// many bits a second on, a core is what bounds sshd. Commands on paths that are slower gain nothing from a connection more.
const SIDE_BY_SIDE_ABOVE: u64 = 400_000_000;
/// For so long after such streams, sessions that come together are expected to be the like: as long as the lanes last that
/// this makes, with an idle time of ten minutes.
const SIDE_BY_SIDE_FOR: Duration = Duration::from_secs(60);
/// The lanes that they are spread over. Eight downloads at once on two cores, which sshd, the commands and this side share,
/// moved 830, 910, 845 and 808 MiB/s through 1, 2, 4 and 8 lanes, and 707 by an ssh each (medians of five alternating
/// rounds, loopback). A server with more cores than that gains one with each lane.
const SIDE_BY_SIDE: usize = 4;

/// For how long the first session that shares a connection holds up others, which would need more connections if it failed.
const PROOF: Duration = Duration::from_secs(1);

/// For how long a further log-in holds up what could go elsewhere.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pause after a refused log-in before a further one is tried.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(600));

/// Traffic of a lane, as a moving rate.
#[derive(Debug)]
struct Traffic {
    bytes: u64,
    at: Instant,
    /// Bits a second.
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

    /// Sessions of all kinds that take places in the server, or soon will.
    fn open(&self) -> u32 {
        self.sessions + self.spares_ready + self.spares_opening + u32::from(self.trial)
    }

    /// Returns whether its first session has begun, as far as anybody knows: the server must not be given another
    /// before it.
    fn has_begun(&self, now: Instant) -> bool {
        self.ran || self.ended > 0 || self.ready_at.is_some_and(|at| now >= at + PROOF)
    }

    /// Returns whether the server has given it no session yet, and is asked for none.
    fn is_fresh(&self) -> bool {
        self.open() == 0 && self.ended == 0 && self.left == 0
    }

    fn is_quiet(&self) -> bool {
        !self.traffic.busy
    }

    fn is_empty(&self) -> bool {
        self.sessions == 0 && self.tunnels == 0
    }

    /// Returns whether its log-in takes longer than anybody should wait who need not.
    fn is_overdue(&self, now: Instant) -> bool {
        self.further && !self.ready && now >= self.since + PATIENCE
    }

    fn place_ended(&mut self, placed: Instant, now: Instant) {
        if let Some(at) = self.starts.iter().position(|start| *start == placed) {
            self.starts.swap_remove(at);
        }
        if self.is_empty() {
            // What filled it is over, whenever that is measured next.
            self.traffic.busy = false;
        }
        self.idle_since = now;
    }

    /// The server has answered a session that was asked for.
    fn count_answer(&mut self, asked: Tally) {
        self.settled = self.settled.max(asked.ended);
    }

    /// Sessions that had ended, and of which the server may have counted the places when it answered.
    fn count_unsettled(&self, asked: Tally) -> u32 {
        u32::try_from(self.ended.saturating_sub(asked.settled)).unwrap_or(u32::MAX)
    }

    /// Returns whether several sessions filled it, as last measured. Tunnels are left out: most carry nothing most of
    /// the time.
    fn is_shared_by_streams(&self, now: Instant) -> bool {
        let lasting = |start: &&Instant| now.saturating_duration_since(**start) >= Traffic::SHORTEST;
        let lasting = self.starts.iter().filter(lasting).count();
        self.traffic.busy
            && self.traffic.rate >= SIDE_BY_SIDE_ABOVE
            && lasting.saturating_sub(self.tunnels as usize) > 1
    }

    /// Notes the bytes carried so far. What makes a lane busy is a stream that lasts: many short commands in a row may
    /// carry as much, but none of them waits behind another for long.
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
    /// A rate over less than this says nothing of a stream.
    const SHORTEST: Duration = Duration::from_millis(250);
}

/// The decisions for one host.
#[derive(Debug)]
pub(crate) struct Policy {
    settings: Settings,
    /// In boxes: most hosts have one, and a node of the tree has room for eleven.
    lanes: BTreeMap<LaneId, Box<Lane>>,
    next: u32,
    /// There is one connection, whose user is told what the server refuses on it: nothing waits.
    single: bool,
    /// The server's MaxSessions, as far as it has been seen to refuse.
    session_limit: Option<u32>,
    reuse: Reuse,
    spares: Spares,
    trial: Option<Trial>,
    /// Trials begin behind an answer, as one was refused that did not.
    trials_wait: bool,
    /// Further log-ins that were refused in a row, and when the next may be tried.
    refusals: u32,
    again: Option<Instant>,
    /// The most sessions at once since the last look at the demand, and in the time before.
    demand: u32,
    last_demand: u32,
    demand_since: Instant,
    /// Sessions that come together are expected to be streams that each fill a connection.
    streams_until: Option<Instant>,
    idle_timeout: Option<Duration>,
}

/// For how long a number of sessions at once counts as what is wanted.
const DEMAND_WINDOW: Duration = Duration::from_secs(10);

impl Policy {
    /// `session_limit`: what host memory knows. `idle_timeout`: `None` forever.
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

    /// There is one connection, and what the server refuses on it is refused: nothing waits for a place.
    #[must_use]
    pub(crate) fn single(mut self) -> Self {
        self.settings.max_lanes = 1;
        self.single = true;
        self
    }

    /// Spares pay only where `exec` may follow a session opened long ago: sshd's are known to; of others it is found out.
    pub(crate) fn keep_spares(&mut self, spares: Spares) {
        self.spares = spares;
    }

    /// Returns the knowledge about the number of sessions that a connection has.
    pub(crate) fn reuse(&self) -> Reuse {
        self.reuse
    }

    /// Sets the number of sessions that a connection has, as host memory or a session has shown.
    pub(crate) fn set_reuse(&mut self, reuse: Reuse) {
        self.reuse = reuse;
    }

    /// A session found no place on a connection that had had another: until somebody knows better, the next are apart. The
    /// lane gets nothing new in any case.
    pub(crate) fn doubt_reuse(&mut self, lane: LaneId) {
        if self.reuse == Reuse::Untried {
            self.reuse = Reuse::Doubted;
        }
        self.retire(lane);
    }

    fn is_one_each(&self) -> bool {
        matches!(self.reuse, Reuse::One | Reuse::Doubted)
    }

    /// Returns whether no session but one was ever asked for on a lane.
    pub(crate) fn is_alone_on(&self, lane: LaneId) -> bool {
        self.lanes.get(&lane).is_some_and(|lane| lane.asked <= 1)
    }

    /// A session has started on a lane. Whether another had before it.
    pub(crate) fn ran(&mut self, lane: LaneId) -> bool {
        let lane = self.lanes.get_mut(&lane);
        lane.is_some_and(|lane| std::mem::replace(&mut lane.ran, true))
    }

    /// Returns whether a session had been on a lane that has none now.
    pub(crate) fn is_between_sessions(&self, lane: LaneId) -> bool {
        let lane = self.lanes.get(&lane);
        lane.is_some_and(|lane| lane.is_empty() && lane.ended > 0 && lane.left == 0)
    }

    /// The server's limit as learned, for host memory.
    pub(crate) fn session_limit(&self) -> Option<u32> {
        self.session_limit
    }

    pub(crate) fn lanes(&self) -> impl Iterator<Item = LaneId> {
        self.lanes.keys().copied()
    }

    /// Sessions and tunnels on a lane.
    pub(crate) fn load(&self, lane: LaneId) -> (u32, u32) {
        self.lanes
            .get(&lane)
            .map_or((0, 0), |lane| (lane.sessions, lane.tunnels))
    }

    pub(crate) fn is_busy(&self, lane: LaneId) -> bool {
        self.lanes.get(&lane).is_some_and(|lane| lane.traffic.busy)
    }

    /// A lane's traffic as last measured, in bits a second.
    pub(crate) fn rate(&self, lane: LaneId) -> u64 {
        self.lanes.get(&lane).map_or(0, |lane| lane.traffic.rate)
    }

    /// Returns whether traffic keeps new sessions away from any lane.
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

    /// Places a session or a tunnel, and counts it.
    pub(crate) fn place(&mut self, demand: impl Into<Demand>, now: Instant) -> Placement {
        let Demand { load, answerer } = demand.into();
        let chosen = match load {
            Load::Tunnel => self.choose_for_tunnel(answerer, now),
            _ if self.is_apart(load, now) => match self.choose_apart(load, answerer, now) {
                Some(chosen) => chosen,
                // A connection of its own may be made once the first one is logged in.
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
        // A place is on its way already, and here before a new connection would be.
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

    /// An empty lane, or a new one; where streams are only expected, a new one while there are few, and then the lane with
    /// the least on it.
    fn choose_apart(&mut self, load: Load, answerer: Answerer, now: Instant) -> Option<Placement> {
        let (suits, most): (fn(&Lane) -> bool, _) = match load {
            Load::SessionApart => (Lane::is_empty, usize::MAX),
            _ => (Lane::is_quiet, SIDE_BY_SIDE),
        };
        let room =
            |lane: &Lane| lane.spares_ready > 0 || lane.spares_opening == 0 && self.has_room(lane, now);
        let least = self
            .lanes
            .iter()
            .filter(|(_, lane)| self.takes(lane, now) && suits(lane) && room(lane))
            .min_by_key(|(_, lane)| (lane.sessions, lane.spares_ready == 0))
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

    /// Returns whether a lane takes new work: one that is retired does not, nor does a further one whose log-in takes
    /// long.
    fn takes(&self, lane: &Lane, now: Instant) -> bool {
        !(lane.retired || lane.reserved || lane.is_overdue(now) && self.has_ready())
    }

    /// Returns whether a session more fits into a lane, and can harm none on it: there are servers that end the
    /// connection, and with it what runs, when they are asked for a second one.
    fn has_room(&self, lane: &Lane, now: Instant) -> bool {
        let is_known = self.reuse != Reuse::Untried || self.single;
        (is_known || lane.open() == u32::from(lane.trial)) && self.may_have_room(lane, now)
    }

    /// Returns whether a session more may fit into a lane.
    fn may_have_room(&self, lane: &Lane, now: Instant) -> bool {
        if self.is_one_each() && !self.single && !lane.is_fresh() {
            return false;
        }
        let open = lane.open();
        // A second one, behind the first, shows whether there may be more.
        let at_once = open - u32::from(lane.trial);
        let unknown = self.reuse == Reuse::Untried && !self.single;
        if unknown && (at_once > 1 || at_once == 1 && !lane.has_begun(now)) {
            return false;
        }
        let may_fit = |full: Full| open < full.at || now >= full.until;
        self.single || open < self.limit() && lane.full.is_none_or(may_fit)
    }

    /// Until when a second session on a connection may show whether there is room for more.
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

    /// Returns whether any lane is logged in and takes new work.
    fn has_ready(&self) -> bool {
        self.lanes.values().any(|lane| lane.ready && !lane.retired)
    }

    /// Returns whether there may be a lane more. Beside others only when one of them is logged in: what cannot log in
    /// at all is not to try it many times over.
    fn may_add(&self, answerer: Answerer, now: Instant) -> bool {
        if self.lanes.len() >= self.settings.max_lanes {
            return false;
        }
        let is_first = self.lanes.values().all(|lane| lane.retired);
        let is_allowed = self.again.is_none_or(|again| now >= again);
        let overdue = self.lanes.values().any(|lane| lane.is_overdue(now));
        // Where log-ins take answers, one shows whether they are still right: several wrong ones would lock the account.
        let asks = self.lanes.values().any(|lane| lane.answered != Answerer::Nobody);
        let asking = asks && self.lanes.values().any(|lane| !lane.ready);
        is_first || self.has_ready() && !self.is_attended(answerer) && is_allowed && !overdue && !asking
    }

    /// The sessions that may be for one piece of work, where no lane is added for it: fewer than the server allows, so that
    /// commands find a place beside it. `None` where there may be more lanes.
    pub(crate) fn most_together(&self, answerer: Answerer, now: Instant) -> Option<usize> {
        let refused = self.again.is_some_and(|again| now < again);
        let alone = !self.single && (refused || self.is_attended(answerer));
        let beside = self.settings.spare_sessions.max(1).saturating_add(1);
        alone.then(|| self.limit().saturating_sub(beside).max(1) as usize)
    }

    /// Returns whether another log-in would take an answer that `answerer` does not have at hand.
    pub(crate) fn is_attended(&self, answerer: Answerer) -> bool {
        let mut lanes = self.lanes.values().filter(|lane| !lane.retired);
        lanes.any(|lane| match lane.answered {
            Answerer::Nobody => false,
            Answerer::Program => answerer != Answerer::Program,
            Answerer::Person => true,
        })
    }

    /// Returns whether something goes to a lane with as little as possible on it: it is to be apart, or streams are
    /// expected.
    fn is_apart(&self, load: Load, now: Instant) -> bool {
        match load {
            Load::SessionApart => true,
            Load::Session => self.streams_until.is_some_and(|until| now < until),
            Load::Tunnel => false,
        }
    }

    /// Returns the time at which requests without a place may find one although nothing has ended.
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

    /// For how long a channel that was asked for on a lane waits for it there.
    pub(crate) fn patience(&self, waits_on: LaneId, load: Load, now: Instant) -> Patience {
        let waiting = self
            .lanes
            .get(&waits_on)
            .filter(|lane| lane.further && !lane.ready);
        let Some(waiting) = waiting else {
            return Patience::Endless;
        };
        let overdue = waiting.is_overdue(now);
        let is_better = |id: LaneId, lane: &Lane| {
            let room = load == Load::Tunnel || lane.spares_ready > 0 || self.has_room(lane, now);
            let place = lane.ready && !lane.retired && room && id != waits_on;
            place && (overdue || lane.is_quiet() && (!self.is_apart(load, now) || lane.is_empty()))
        };
        if self.lanes.iter().any(|(id, lane)| is_better(*id, lane)) {
            return Patience::Over;
        }
        let at = waiting.since + PATIENCE;
        Patience::UntilChanged((at > now).then_some(at))
    }

    /// Counts a tunnel on the oldest lane that takes new work, which is added if there is none.
    pub(crate) fn hold_first(&mut self, now: Instant) -> LaneId {
        let id = self.first().unwrap_or_else(|| self.add_lane(now));
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.tunnels += 1;
            lane.starts.push(now);
        }
        id
    }

    /// The oldest lane that takes new work.
    pub(crate) fn first(&self) -> Option<LaneId> {
        self.find(|lane| !lane.retired)
    }

    /// Adds a lane that nothing is placed on yet.
    pub(crate) fn add_lane(&mut self, now: Instant) -> LaneId {
        let id = LaneId(self.next);
        self.next += 1;
        let lane = Lane::new(self.has_ready(), now);
        self.lanes.insert(id, Box::new(lane));
        id
    }

    /// Returns the number of sessions to open ahead on a lane now; they count as being opened from here on.
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

    // A session opened ahead, to see whether it lasts.

    /// Returns whether a session is to be tried out on a lane: one that is idle and has had a session, so that it costs
    /// nobody anything. It is tried once at a time.
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

    /// Returns whether the server's answer is to be waited for before the session is asked for. Commands that follow
    /// each other at once leave no time for it.
    pub(crate) fn trials_wait(&self) -> bool {
        self.trials_wait
    }

    /// The session is asked for now, if the lane is idle still.
    pub(crate) fn open_trial(&mut self, id: LaneId) -> bool {
        let waited = self.trials_wait;
        let idle = self.is_between_sessions(id);
        let lane = self.lanes.get_mut(&id).filter(|lane| idle && !lane.retired);
        match (lane, &mut self.trial) {
            (Some(lane), Some(trial)) => {
                if waited {
                    // The server has answered behind all that had ended.
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

    /// The session was refused. What that says of the server's sessions: nothing, where it may not have given back those
    /// that had ended, or another one has come meanwhile.
    pub(crate) fn trial_refused(&mut self, id: LaneId) -> Refusal {
        match std::mem::replace(&mut self.trials_wait, true) {
            false => Refusal::TooSoon,
            true if self.is_between_sessions(id) => Refusal::OfASecond,
            true => Refusal::OfMore,
        }
    }

    /// Returns whether another session has ended since the one that is tried out was opened, and the lane is idle.
    pub(crate) fn has_outlived(&self, id: LaneId) -> bool {
        let since = self.trial.filter(|trial| trial.lane == id && trial.open);
        let Some((trial, lane)) = since.zip(self.lanes.get(&id)) else {
            return false;
        };
        lane.is_empty() && lane.left == 0 && lane.ended > trial.ended
    }

    /// The trial is over; where its session is of use, it is one that is ready.
    pub(crate) fn end_trial(&mut self, id: LaneId, is_of_use: bool) {
        self.trial.take_if(|trial| trial.lane == id);
        if let Some(lane) = self.lanes.get_mut(&id)
            && std::mem::take(&mut lane.trial)
            && is_of_use
        {
            lane.spares_ready += 1;
        }
    }

    /// To be kept with a session that is about to be asked for on a lane, for its answer.
    pub(crate) fn asks(&self, lane: LaneId) -> Tally {
        self.lanes.get(&lane).map_or_else(Tally::default, |lane| Tally {
            ended: lane.ended,
            settled: lane.settled,
        })
    }

    // What became of it.

    /// The session that a first lane was made for has been asked for.
    pub(crate) fn first_asked(&mut self, lane: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.reserved = false;
        }
    }

    /// A lane's connection is logged in; `answered`: who had to do something for that.
    pub(crate) fn lane_ready(&mut self, lane: LaneId, answered: Answerer, now: Instant) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.ready = true;
            lane.ready_at = Some(now);
            lane.answered = answered;
        }
    }

    /// The server has opened a session ahead.
    pub(crate) fn spare_opened(&mut self, lane: LaneId, asked: Tally) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.spares_opening = lane.spares_opening.saturating_sub(1);
            lane.spares_ready += 1;
        }
        self.session_opened(lane, asked);
    }

    /// The server has opened a session.
    pub(crate) fn session_opened(&mut self, lane: LaneId, asked: Tally) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.count_answer(asked);
            let open = lane.open();
            lane.full = lane.full.filter(|full| open <= full.at);
        }
        self.channel_opened(lane);
    }

    /// The server has opened a tunnel or a session.
    pub(crate) fn channel_opened(&mut self, lane: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&lane)
            && !std::mem::replace(&mut lane.used, true)
            && lane.further
        {
            self.refusals = 0;
            self.again = None;
        }
    }

    /// A session, or one opened ahead, was refused. The server's limit is at most what was open besides, and what it may
    /// not have given back yet.
    pub(crate) fn session_refused(
        &mut self,
        id: LaneId,
        was_spare: bool,
        asked: Tally,
        now: Instant,
    ) -> Verdict {
        let (limit, single) = (self.session_limit, self.single);
        let Some(lane) = self.lanes.get_mut(&id) else {
            // The connection has ended meanwhile, behind its server's answer: where there is no other, that stands.
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
            // Its user would not wait either.
            let passes = unsettled > 0 || ours > 0;
            return if passes {
                Verdict::PlaceAnew
            } else {
                Verdict::Final
            };
        }
        // The places that were not given back are free by now; the limit bounds the next attempt.
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
        // Nothing is open there, and all that had ended is settled: the server has no second session for a connection.
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

    /// The session that was placed at `placed` has ended so.
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

    /// The tunnel that was placed at `placed` has ended.
    pub(crate) fn tunnel_ended(&mut self, lane: LaneId, placed: Instant, now: Instant) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.tunnels = lane.tunnels.saturating_sub(1);
            lane.place_ended(placed, now);
        }
    }

    /// A lane's connection is closed from this side.
    pub(crate) fn lane_closed(&mut self, lane: LaneId) {
        self.lanes.remove(&lane);
    }

    /// A further lane's connection was not made, because whoever was to answer for it has left: the server has refused nothing.
    pub(crate) fn lane_given_up(&mut self, lane: LaneId) {
        self.lanes.remove(&lane);
    }

    /// A lane's connection has ended, or could not be made.
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
        // Of several that were tried at once, one counts.
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

    /// A lane takes nothing new.
    pub(crate) fn retire(&mut self, lane: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.retired = true;
        }
    }

    /// The server has long said nothing on a lane, though it was asked: what is new goes elsewhere, unless there is one connection.
    /// Returns whether it does.
    pub(crate) fn doubt(&mut self, lane: LaneId) -> bool {
        if !self.single {
            self.retire(lane);
        }
        !self.single
    }

    /// Lanes that nobody needs any more at `now`: idle for longer than allowed, or retired and empty. Additional lanes
    /// go after a tenth of the time.
    pub(crate) fn expired(&self, now: Instant) -> Vec<LaneId> {
        self.lanes
            .iter()
            .filter(|(id, lane)| {
                lane.is_empty() && (lane.retired || self.idle_left(**id, now) == Some(Duration::ZERO))
            })
            .map(|(id, _)| *id)
            .collect()
    }

    /// Lanes that get nothing new and have nothing left.
    pub(crate) fn over(&self) -> Vec<LaneId> {
        let over = |lane: &Lane| lane.retired && lane.is_empty();
        let lanes = self.lanes.iter().filter(|(_, lane)| over(lane));
        lanes.map(|(id, _)| *id).collect()
    }

    /// Returns the time that a lane may still go unused; `None` while it is used, and if it is kept forever.
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

    fn find(&self, suits: impl Fn(&Lane) -> bool) -> Option<LaneId> {
        self.lanes.iter().find(|(_, lane)| suits(lane)).map(|(id, _)| *id)
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
