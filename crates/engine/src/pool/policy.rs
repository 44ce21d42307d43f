//! Where a session goes, how many are opened ahead, and when a connection is no longer needed: decisions without I/O.
//!
//! A *lane* is a connection's place in the pool of one host. The first lane carries short commands; one whose traffic
//! passes [`Settings::busy_above`] keeps what runs on it and gets nothing new, so that a bulk stream never slows a
//! command: the next one finds a quiet lane, or a new one.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::settings::Settings;

/// A lane of one pool. Numbers grow, so that the oldest lane is found first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LaneId(u32);

/// Where to put a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Take a session that was opened ahead on this lane.
    Spare(LaneId),
    /// Open a session on this lane. `proven`: so many at once have worked on it before.
    Open { lane: LaneId, proven: bool },
    /// Make a new connection, and open the session on it.
    Connect(LaneId),
    /// Every lane is full and there may be no more: wait for a session to end.
    Wait,
}

#[derive(Debug)]
struct Lane {
    /// Sessions that run or are being opened, without spares.
    sessions: u32,
    /// Other channels: tunnels. They do not count towards MaxSessions.
    tunnels: u32,
    /// When each of the sessions and tunnels was placed.
    starts: Vec<Instant>,
    spares_ready: u32,
    spares_opening: u32,
    /// When the last session or tunnel ended.
    idle_since: Instant,
    traffic: Traffic,
    /// Takes nothing new, ends when empty.
    retired: bool,
    /// The most sessions that were open at once on it: the server allows that many.
    proven: u32,
    /// When sessions ended that the server may still count: see [`CLOSING`] and [`BLAMED`].
    ended: VecDeque<Instant>,
}

/// sshd gives a session's place back once it has handled all packets that came with our CLOSE (channels.c,
/// `channel_garbage_collect`, from `channel_after_poll`): a session asked for in the same breath is refused. Packets of
/// this side that are further apart than this do not travel together.
const CLOSING: Duration = Duration::from_millis(200);

/// For how long the end of a session may still be the reason of a refusal: on a server too busy to read, packets that were
/// further apart are handled together. A server that refuses what it has room for is asked again for so long.
const BLAMED: Duration = Duration::from_secs(1);

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
    /// Sessions that ended so lately that the server may still count them.
    fn closing(&self, now: Instant) -> u32 {
        self.ended_within(CLOSING, now)
    }

    /// Sessions that ended in the time before `now`, or after it.
    fn ended_within(&self, time: Duration, now: Instant) -> u32 {
        let lately = |ended: &&Instant| now.saturating_duration_since(**ended) < time;
        u32::try_from(self.ended.iter().rev().take_while(lately).count()).unwrap_or(u32::MAX)
    }

    fn ended(&mut self, placed: Instant, now: Instant) {
        if let Some(at) = self.starts.iter().position(|start| *start == placed) {
            self.starts.swap_remove(at);
        }
        self.idle_since = now;
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
    /// The server's MaxSessions, as far as it has been seen to refuse.
    session_limit: Option<u32>,
    spares_allowed: bool,
    /// The most sessions at once since the last look at the demand, and in the time before.
    demand: u32,
    last_demand: u32,
    demand_since: Instant,
    idle_timeout: Option<Duration>,
}

/// For how long a number of sessions at once counts as what is wanted.
const DEMAND_WINDOW: Duration = Duration::from_secs(10);

impl Policy {
    /// `session_limit`: what host memory knows. `idle_timeout`: `None` for ever.
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
            session_limit,
            spares_allowed: false,
            demand: 0,
            last_demand: 0,
            demand_since: now,
            idle_timeout,
        }
    }

    /// Spares pay only where `exec` may follow a session opened long ago, which is known of OpenSSH.
    pub(crate) fn allow_spares(&mut self, allowed: bool) {
        self.spares_allowed = allowed;
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

    /// Whether traffic keeps new sessions away from any lane.
    pub(crate) fn is_any_busy(&self) -> bool {
        self.lanes.values().any(|lane| lane.traffic.busy)
    }

    // Demand.

    /// Notes how many bytes a lane has carried so far.
    pub(crate) fn traffic(&mut self, lane: LaneId, bytes: u64, now: Instant) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.sample(bytes, now, &self.settings);
        }
    }

    /// Places a session, and counts it.
    pub(crate) fn place_session(&mut self, now: Instant) -> Placement {
        let limit = self.limit();
        let room =
            |lane: &Lane| !lane.retired && lane.sessions + lane.spares_ready + lane.spares_opening < limit;
        let quiet = |lane: &Lane| !lane.traffic.busy;
        let spare = self.find(|lane| !lane.retired && quiet(lane) && lane.spares_ready > 0);
        let chosen = if let Some(id) = spare {
            Placement::Spare(id)
        } else if let Some(id) = self.find(|lane| quiet(lane) && room(lane)) {
            Placement::Open {
                lane: id,
                proven: self.is_proven(id, now),
            }
        } else if self
            .find(|lane| !lane.retired && quiet(lane) && lane.spares_opening > 0)
            .is_some()
        {
            // A place is on its way already, and here before a new connection would be.
            return Placement::Wait;
        } else if self.lanes.len() < self.settings.max_lanes {
            Placement::Connect(self.add_lane(now))
        } else if let Some(id) = self.find(room) {
            Placement::Open {
                lane: id,
                proven: self.is_proven(id, now),
            }
        } else {
            return Placement::Wait;
        };
        self.count_session(chosen, now);
        chosen
    }

    /// Places a session that is to have a connection for itself, and counts it: on a lane with nothing on it, on a new
    /// one, or, when there may be no more, as any other.
    pub(crate) fn place_session_apart(&mut self, now: Instant) -> Placement {
        let empty = |lane: &Lane| !lane.retired && lane.sessions == 0 && lane.tunnels == 0;
        let chosen = if let Some(id) = self.find(|lane| empty(lane) && lane.spares_ready > 0) {
            Placement::Spare(id)
        } else if let Some(id) = self.find(|lane| empty(lane) && lane.spares_opening == 0) {
            Placement::Open {
                lane: id,
                proven: true,
            }
        } else if self.lanes.len() < self.settings.max_lanes {
            Placement::Connect(self.add_lane(now))
        } else {
            return self.place_session(now);
        };
        self.count_session(chosen, now);
        chosen
    }

    fn count_session(&mut self, chosen: Placement, now: Instant) {
        let (Placement::Spare(id) | Placement::Open { lane: id, .. } | Placement::Connect(id)) = chosen
        else {
            return;
        };
        let taken_spare = matches!(chosen, Placement::Spare(_));
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.sessions += 1;
            lane.starts.push(now);
            lane.spares_ready -= u32::from(taken_spare);
        }
        let running = self.lanes.values().map(|lane| lane.sessions).sum();
        self.note_demand(running, now);
    }

    /// Places a tunnel, and counts it: like a session, but MaxSessions does not bound it.
    pub(crate) fn place_tunnel(&mut self, now: Instant) -> Placement {
        let chosen = match self.find(|lane| !lane.retired && !lane.traffic.busy) {
            Some(id) => Placement::Open {
                lane: id,
                proven: true,
            },
            None if self.lanes.len() < self.settings.max_lanes => Placement::Connect(self.add_lane(now)),
            None => match self.find(|lane| !lane.retired) {
                Some(id) => Placement::Open {
                    lane: id,
                    proven: true,
                },
                None => return Placement::Wait,
            },
        };
        if let Placement::Open { lane: id, .. } | Placement::Connect(id) = chosen
            && let Some(lane) = self.lanes.get_mut(&id)
        {
            lane.tunnels += 1;
            lane.starts.push(now);
        }
        chosen
    }

    /// Counts a tunnel on the oldest lane that takes new work, which is added if there is none.
    pub(crate) fn hold_first(&mut self, now: Instant) -> LaneId {
        let first = self
            .lanes
            .iter()
            .find(|(_, lane)| !lane.retired)
            .map(|(id, _)| *id);
        let id = first.unwrap_or_else(|| self.add_lane(now));
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.tunnels += 1;
            lane.starts.push(now);
        }
        id
    }

    /// Adds a lane that nothing is placed on yet.
    pub(crate) fn add_lane(&mut self, now: Instant) -> LaneId {
        let id = LaneId(self.next);
        self.next += 1;
        self.lanes.insert(
            id,
            Box::new(Lane {
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
                proven: 1,
                ended: VecDeque::new(),
            }),
        );
        id
    }

    /// How many sessions to open ahead on a lane now; they count as being opened from here on.
    pub(crate) fn open_spares(&mut self, lane: LaneId, now: Instant) -> u32 {
        self.note_demand(0, now);
        let limit = self.limit();
        let wanted = self
            .last_demand
            .max(self.demand)
            .clamp(1, self.settings.spare_sessions.max(1));
        if !self.spares_allowed || limit < 2 || self.settings.spare_sessions == 0 {
            return 0;
        }
        let Some(lane) = self
            .lanes
            .get_mut(&lane)
            .filter(|lane| !lane.retired && !lane.traffic.busy)
        else {
            return 0;
        };
        let open = lane.sessions + lane.spares_ready + lane.spares_opening;
        let count = wanted
            .saturating_sub(lane.spares_ready + lane.spares_opening)
            .min(limit.saturating_sub(open));
        lane.spares_opening += count;
        count
    }

    // What became of it.

    pub(crate) fn spare_opened(&mut self, lane: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.spares_opening = lane.spares_opening.saturating_sub(1);
            lane.spares_ready += 1;
            lane.proven = lane.proven.max(lane.sessions + lane.spares_ready);
        }
    }

    /// A session, or one opened ahead, that was asked for at `asked` was refused: the server's limit is what was open
    /// besides, and what it may not have closed yet. Returns whether another try is worth while: with nothing else open it
    /// is a refusal that no other lane would lift.
    pub(crate) fn session_refused(&mut self, lane: LaneId, was_spare: bool, asked: Instant) -> bool {
        let Some(lane) = self.lanes.get_mut(&lane) else {
            return false;
        };
        if was_spare {
            lane.spares_opening = lane.spares_opening.saturating_sub(1);
        }
        let open = lane.sessions.saturating_sub(u32::from(!was_spare)) + lane.spares_ready;
        let besides = open + lane.closing(asked);
        let blamed = lane.ended_within(BLAMED, asked);
        if besides > 0 {
            self.session_limit = match self.session_limit {
                None if besides >= self.settings.sessions_per_lane => None,
                limit => Some(limit.map_or(besides, |limit| limit.min(besides))),
            };
        }
        open > 0 || blamed > 0
    }

    /// What was placed as a session on a lane never became one.
    pub(crate) fn session_never_opened(&mut self, lane: LaneId, placed: Instant, now: Instant) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.sessions = lane.sessions.saturating_sub(1);
            lane.ended(placed, now);
        }
    }

    pub(crate) fn session_confirmed(&mut self, lane: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.proven = lane.proven.max(lane.sessions + lane.spares_ready);
        }
    }

    /// The session that was placed at `placed` has ended.
    pub(crate) fn session_ended(&mut self, lane: LaneId, placed: Instant, now: Instant) {
        self.session_never_opened(lane, placed, now);
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.ended
                .retain(|ended| now.saturating_duration_since(*ended) < BLAMED);
            lane.ended.push_back(now);
        }
    }

    /// The tunnel that was placed at `placed` has ended.
    pub(crate) fn tunnel_ended(&mut self, lane: LaneId, placed: Instant, now: Instant) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.tunnels = lane.tunnels.saturating_sub(1);
            lane.ended(placed, now);
        }
    }

    /// A lane's connection is gone.
    pub(crate) fn lane_ended(&mut self, lane: LaneId) {
        self.lanes.remove(&lane);
    }

    /// A lane takes nothing new.
    pub(crate) fn retire(&mut self, lane: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.retired = true;
        }
    }

    /// Lanes that nobody needs any more at `now`: idle for longer than allowed, or retired and empty. Additional lanes
    /// go after a tenth of the time.
    pub(crate) fn expired(&self, now: Instant) -> Vec<LaneId> {
        let first = self
            .lanes
            .iter()
            .find(|(_, lane)| !lane.retired)
            .map(|(id, _)| *id);
        let unused = |lane: &Lane| lane.sessions == 0 && lane.tunnels == 0;
        self.lanes
            .iter()
            .filter(|(id, lane)| {
                let idle = now.saturating_duration_since(lane.idle_since);
                let limit = match (self.idle_timeout, first == Some(**id)) {
                    (None, true) => None,
                    (None, false) => Some(self.settings.idle_timeout / 10),
                    (Some(timeout), true) => Some(timeout),
                    (Some(timeout), false) => Some(timeout.min(self.settings.idle_timeout / 10)),
                };
                unused(lane) && (lane.retired || limit.is_some_and(|limit| idle >= limit))
            })
            .map(|(id, _)| *id)
            .collect()
    }

    fn limit(&self) -> u32 {
        self.session_limit
            .unwrap_or(self.settings.sessions_per_lane)
            .max(1)
    }

    /// Whether one session more is known to work on a lane. What it has proven counts sessions that were still being opened
    /// when another was confirmed, so that a limit learned since is what holds.
    fn is_proven(&self, lane: LaneId, now: Instant) -> bool {
        self.lanes.get(&lane).is_some_and(|lane| {
            let open = lane.sessions + lane.spares_ready + lane.spares_opening + lane.closing(now);
            open < lane.proven.min(self.limit())
        })
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
mod tests {
    use super::*;

    fn policy() -> (Policy, Instant) {
        let now = Instant::now();
        let mut policy = Policy::new(Settings::default(), None, Some(Duration::from_secs(60)), now);
        policy.allow_spares(true);
        (policy, now)
    }

    fn connect(policy: &mut Policy, now: Instant) -> LaneId {
        let Placement::Connect(lane) = policy.place_session(now) else {
            panic!("there is no lane yet")
        };
        lane
    }

    #[test]
    fn sessions_share_a_lane_up_to_the_limit_and_then_get_another() {
        let (mut policy, now) = policy();
        let first = connect(&mut policy, now);
        for _ in 1..10 {
            assert!(matches!(policy.place_session(now), Placement::Open { lane, .. } if lane == first));
        }
        assert!(matches!(policy.place_session(now), Placement::Connect(_)));
    }

    #[test]
    fn a_lane_that_is_held_is_not_idle_and_a_retired_one_is_not_held() {
        let (mut policy, now) = policy();
        let first = policy.hold_first(now);
        let late = now + Duration::from_secs(3600);
        assert!(policy.expired(late).is_empty());
        assert_eq!(policy.hold_first(late), first);
        policy.retire(first);
        assert_ne!(policy.hold_first(late), first);
        policy.tunnel_ended(first, now, late);
        policy.tunnel_ended(first, late, late);
        assert_eq!(policy.expired(late), [first]);
    }

    #[test]
    fn a_refusal_teaches_the_limit() {
        let (mut policy, now) = policy();
        let first = connect(&mut policy, now);
        policy.place_session(now);
        policy.place_session(now);
        assert!(policy.session_refused(first, false, now));
        policy.session_never_opened(first, now, now);
        assert_eq!(policy.session_limit(), Some(2));
        assert!(matches!(policy.place_session(now), Placement::Connect(_)));
    }

    #[test]
    fn a_refusal_with_nothing_else_open_is_final() {
        let (mut policy, now) = policy();
        let first = connect(&mut policy, now);
        assert!(!policy.session_refused(first, false, now));
        assert_eq!(policy.session_limit(), None);
    }

    #[test]
    fn what_the_server_may_not_have_closed_yet_counts_as_open() {
        let (mut policy, now) = policy();
        let lane = connect(&mut policy, now);
        for _ in 0..3 {
            policy.place_session(now);
            policy.session_confirmed(lane);
        }
        policy.session_ended(lane, now, now);
        policy.session_ended(lane, now, now);
        // Four were open once, but two of them may still be.
        for _ in 0..2 {
            assert_eq!(policy.place_session(now), Placement::Open { lane, proven: false });
        }
        assert!(policy.session_refused(lane, false, now));
        assert_eq!(policy.session_limit(), Some(5));
        // With nothing else open, one that has ended is the reason of the refusal, on a busy server even one that ended a
        // while ago, which says nothing of its limit.
        for _ in 0..3 {
            policy.session_ended(lane, now, now);
        }
        assert!(policy.session_refused(lane, false, now + CLOSING));
        assert_eq!(policy.session_limit(), Some(5));
        assert!(!policy.session_refused(lane, false, now + BLAMED));
    }

    #[test]
    fn a_limit_holds_whatever_a_lane_seemed_to_have_proven() {
        let (mut policy, now) = policy();
        let lane = connect(&mut policy, now);
        // Two more are asked for at once: one is confirmed before the other is refused.
        policy.place_session(now);
        policy.place_session(now);
        policy.session_confirmed(lane);
        assert!(policy.session_refused(lane, false, now));
        policy.session_never_opened(lane, now, now);
        assert_eq!(policy.session_limit(), Some(2));

        policy.session_ended(lane, now, now);
        assert_eq!(policy.place_session(now), Placement::Open { lane, proven: false });
        policy.session_never_opened(lane, now, now);
        let proven = Placement::Open { lane, proven: true };
        assert_eq!(policy.place_session(now + CLOSING), proven);
    }

    #[test]
    fn a_refused_spare_teaches_that_there_is_room_for_none() {
        let (mut policy, now) = policy();
        let lane = connect(&mut policy, now);
        assert_eq!(policy.open_spares(lane, now), 1);
        assert!(policy.session_refused(lane, true, now));
        assert_eq!(policy.session_limit(), Some(1));
        assert_eq!(policy.open_spares(lane, now), 0);
    }

    #[test]
    fn spares_are_taken_first_and_follow_demand() {
        let (mut policy, now) = policy();
        let lane = connect(&mut policy, now);
        assert_eq!(policy.open_spares(lane, now), 1);
        policy.spare_opened(lane);
        assert_eq!(policy.place_session(now), Placement::Spare(lane));
        policy.place_session(now);
        assert_eq!(policy.open_spares(lane, now), 3, "three at once were wanted");
    }

    #[test]
    fn a_session_waits_for_a_spare_on_its_way_rather_than_for_a_connection() {
        let (mut policy, now) = policy();
        let lane = connect(&mut policy, now);
        for _ in 1..8 {
            policy.place_session(now);
        }
        assert_eq!(policy.open_spares(lane, now), 2, "up to the limit of ten");
        assert_eq!(policy.place_session(now), Placement::Wait);
        policy.spare_opened(lane);
        assert_eq!(policy.place_session(now), Placement::Spare(lane));
    }

    #[test]
    fn a_busy_lane_gets_nothing_new_until_it_is_quiet() {
        let (mut policy, now) = policy();
        let lane = connect(&mut policy, now);
        let later = now + Duration::from_secs(1);
        policy.traffic(lane, 10_000_000, later);
        assert!(matches!(policy.place_session(later), Placement::Connect(other) if other != lane));
        let between = later + Duration::from_secs(1);
        policy.traffic(lane, 10_000_000 + 125_000, between); // 1 Mbit/s: between the thresholds
        assert!(policy.is_busy(lane));
        policy.traffic(lane, 10_000_000 + 125_000, between + Duration::from_secs(1));
        assert!(!policy.is_busy(lane));
    }

    #[test]
    fn short_commands_in_a_row_do_not_make_a_lane_busy() {
        let (mut policy, mut now) = policy();
        let lane = connect(&mut policy, now);
        policy.session_ended(lane, now, now);
        for n in 1..20u32 {
            now += Duration::from_millis(100);
            let placed = now;
            assert!(matches!(policy.place_session(now), Placement::Open { lane: l, .. } if l == lane));
            policy.traffic(lane, u64::from(n) * 1_000_000, now);
            policy.session_ended(lane, placed, now);
        }
        assert!(!policy.is_busy(lane));
    }

    #[test]
    fn a_session_apart_gets_an_empty_lane_or_a_new_one() {
        let (mut policy, now) = policy();
        let lane = connect(&mut policy, now);
        let Placement::Connect(apart) = policy.place_session_apart(now) else {
            panic!("the first lane has a session");
        };
        assert_ne!(lane, apart);
        policy.session_ended(lane, now, now);
        assert!(matches!(policy.place_session_apart(now), Placement::Open { lane: l, .. } if l == lane));
    }

    #[test]
    fn idle_lanes_expire_and_used_ones_do_not() {
        let (mut policy, now) = policy();
        let lane = connect(&mut policy, now);
        assert!(policy.expired(now + Duration::from_secs(3600)).is_empty());
        policy.session_ended(lane, now, now);
        assert!(policy.expired(now + Duration::from_secs(59)).is_empty());
        assert_eq!(policy.expired(now + Duration::from_secs(60)), [lane]);
    }

    #[test]
    fn a_retired_lane_goes_when_it_is_empty() {
        let (mut policy, now) = policy();
        let lane = connect(&mut policy, now);
        policy.retire(lane);
        assert!(policy.expired(now).is_empty());
        assert!(
            matches!(policy.place_session(now), Placement::Connect(_)),
            "make before break"
        );
        policy.session_ended(lane, now, now);
        assert_eq!(policy.expired(now), [lane]);
    }

    #[test]
    fn at_the_most_lanes_a_full_host_makes_sessions_wait() {
        let now = Instant::now();
        let settings = Settings {
            max_lanes: 1,
            sessions_per_lane: 1,
            ..Settings::default()
        };
        let mut policy = Policy::new(settings, None, None, now);
        let lane = connect(&mut policy, now);
        assert_eq!(policy.place_session(now), Placement::Wait);
        policy.session_ended(lane, now, now);
        assert!(matches!(policy.place_session(now), Placement::Open { .. }));
    }
}
