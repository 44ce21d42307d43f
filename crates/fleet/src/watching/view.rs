//! [`View`]: a fleet as an observer sees it, without I/O.

mod streams;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use crate::report::{
    FleetReport, FleetUpdate, IN_A_PART, JobReport, MoveReason, MoveReport, NodeReport, NodeState, ZoneReport,
};
use async_nats::jetstream::kv::{self, Operation};

use crate::bucket::{Charter, decode};
use crate::order;
use crate::order::job::JobTerms;
use crate::state::{Exit, Fate, JobId, Key, Member, Unit, Value};
use streams::{Streams, line};

/// The initial time of a [`Moment`]'s clock, so that earlier times can be represented.
pub(super) const BEGINNING: Duration = Duration::from_secs(1 << 32);

/// The most jobs that are reported: the newest.
const MOST_JOBS: usize = 1000;

/// The most moves that are kept.
const MOST_MOVES: usize = 200;

/// Moves of one kind within this many seconds are combined.
const TOGETHER: u64 = 20;

/// The most hosts of a job whose failure is described.
const MOST_FAILURES: usize = 8;

/// The most jobs that may wait for the names of their hosts.
const MOST_NAMELESS: usize = 100;

/// A time, by two clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    /// Seconds since 1970, by this machine's clock.
    pub(super) now: u64,
    /// The time of a clock that stops while there is no connection to NATS, so that no node is considered lost because
    /// of that.
    pub(super) heard: Duration,
}

/// A fleet.
#[derive(Debug)]
pub(super) struct View {
    charter: Charter,
    shards: usize,
    /// The seconds by which this machine's clock is ahead of NATS's.
    offset: i64,
    fleet: FleetReport,
    /// True once the initial owners of the shards are known: later changes are moves.
    is_synced: bool,
    nodes: BTreeMap<String, Node>,
    zones: BTreeMap<Option<String>, Zone>,
    moves: VecDeque<MoveReport>,
    next_move: u64,
    /// Moves since the last update.
    moved: Vec<Moved>,
    changed_moves: BTreeSet<u64>,
    jobs: BTreeMap<JobId, Job>,
    changed_jobs: BTreeSet<JobId>,
    told_jobs: HashSet<JobId>,
    nameless: VecDeque<JobId>,
    streams: Streams,
    told_nodes: BTreeMap<String, NodeReport>,
}

#[derive(Debug)]
struct Node {
    member: Member,
    /// The time of the entry in seconds since 1970, by this machine's clock.
    at: u64,
    heard: Duration,
}

#[derive(Debug)]
struct Zone {
    slots: Vec<Slot>,
    is_changed: bool,
}

#[derive(Debug, Clone, Default)]
struct Slot {
    owner: Option<String>,
    /// The node that gave it back, if it is free since.
    given_by: Option<String>,
}

#[derive(Debug)]
struct Moved {
    at: u64,
    site: Option<String>,
    from: Option<String>,
    to: String,
    was_given: bool,
}

/// The fate of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Running,
    Succeeded,
    Failed,
    NotStarted,
    Unknown,
}

#[derive(Debug, Default)]
struct Job {
    report: JobReport,
    /// True once its order has been read.
    is_read: bool,
    fates: HashMap<u32, Kind>,
    failures: BTreeMap<u32, String>,
    names: Option<HashMap<u32, String>>,
    /// The time at which NATS drops it, in seconds since 1970 by this machine's clock.
    until: Option<u64>,
}

impl View {
    pub(super) fn new(charter: &Charter, name: &str, servers: &str, offset: i64) -> Self {
        Self {
            charter: charter.clone(),
            shards: charter.zones.shards.clamp(1, 256).into(),
            offset,
            fleet: FleetReport {
                name: line(name),
                servers: line(servers),
                ..FleetReport::default()
            },
            is_synced: false,
            nodes: BTreeMap::new(),
            zones: BTreeMap::new(),
            moves: VecDeque::new(),
            next_move: 0,
            moved: Vec::new(),
            changed_moves: BTreeSet::new(),
            jobs: BTreeMap::new(),
            changed_jobs: BTreeSet::new(),
            told_jobs: HashSet::new(),
            nameless: VecDeque::new(),
            streams: Streams::default(),
            told_nodes: BTreeMap::new(),
        }
    }

    /// Handles an entry of the bucket.
    pub(super) fn handle(&mut self, moment: Moment, entry: &kv::Entry) {
        self.fleet.sequence = self.fleet.sequence.max(entry.revision);
        if entry.operation != Operation::Put {
            return;
        }
        let created = entry.created.unix_timestamp();
        self.handle_value(moment, &entry.key, &entry.value, created);
    }

    fn handle_value(&mut self, moment: Moment, key: &str, bytes: &[u8], created: i64) {
        let at = u64::try_from(created + self.offset)
            .unwrap_or_default()
            .min(moment.now);
        if let Some(job) = key
            .strip_prefix("job.")
            .and_then(|rest| rest.strip_suffix(".order"))
        {
            return self.order(&JobId(job.to_owned()), bytes, created, at);
        }
        match (key.parse(), decode(bytes)) {
            (Ok(Key::Member(node)), Ok(Value::Member(member))) => {
                let ago = Duration::from_secs(moment.now - at);
                let heard = moment.heard.saturating_sub(ago);
                self.nodes.insert(node, Node { member, at, heard });
            }
            (Ok(Key::Lease(unit)), Ok(Value::Lease(lease))) => {
                self.lease(at, unit, lease.holder.map(|holder| holder.node));
            }
            (Ok(Key::Frozen), Ok(Value::Frozen(why))) => self.fleet.frozen = Some(line(&why)),
            (Ok(Key::Cancel(job, who)), Ok(Value::Cancel(cancel)))
                if order::is_cancel::<JobTerms>(&self.charter, &job, &who, &cancel) =>
            {
                self.job(&job).report.cancelled = true;
            }
            (Ok(Key::Fate(job, host)), Ok(Value::Fate(fate))) => self.fate(&job, host, &fate),
            _ => {}
        }
    }

    /// Handles an entry of the bucket of streams.
    pub(super) fn handle_stream(&mut self, entry: &kv::Entry) {
        let value = (entry.operation == Operation::Put).then_some(&*entry.value);
        self.handle_stream_value(&entry.key, value, entry.created.unix_timestamp());
    }

    fn handle_stream_value(&mut self, key: &str, bytes: Option<&[u8]>, created: i64) {
        self.streams.take(&self.charter, key, bytes, created);
    }

    /// Notes that the initial owners of the shards are known.
    pub(super) fn handle_synced(&mut self) {
        self.is_synced = true;
    }

    fn lease(&mut self, at: u64, unit: Unit, holder: Option<String>) {
        if usize::from(unit.shard) >= self.shards {
            return;
        }
        let shards = self.shards;
        let zone = self.zones.entry(unit.site.clone()).or_insert_with(|| Zone {
            slots: vec![Slot::default(); shards],
            is_changed: true,
        });
        let slot = &mut zone.slots[usize::from(unit.shard)];
        if slot.owner == holder {
            return;
        }
        zone.is_changed = true;
        let before = slot.owner.take();
        let Some(holder) = holder else {
            slot.given_by = before;
            return;
        };
        slot.owner = Some(holder.clone());
        let given_by = slot.given_by.take();
        let was_given = before.is_none();
        let from = before.or(given_by);
        if self.is_synced && from.as_ref() != Some(&holder) {
            self.moved.push(Moved {
                at,
                site: unit.site,
                from,
                to: holder,
                was_given,
            });
        }
    }

    fn job(&mut self, job: &JobId) -> &mut Job {
        self.changed_jobs.insert(job.clone());
        self.jobs.entry(job.clone()).or_default()
    }

    fn order(&mut self, id: &JobId, bytes: &[u8], created: i64, at: u64) {
        // An invalid order is ignored.
        let got = u64::try_from(created).unwrap_or_default();
        let Ok(order) = order::read::<JobTerms>(&self.charter, id, bytes, got) else {
            return;
        };
        let keep = self.charter.keep;
        let job = self.job(id);
        job.is_read = true;
        job.until = (!keep.is_zero()).then(|| at + keep.as_secs());
        job.report.job = line(&id.0);
        job.report.submitter = line(&order.submitter);
        job.report.at = order.at;
        job.report.hosts = order.hosts;
        job.tidy();
    }

    fn fate(&mut self, id: &JobId, host: u32, fate: &Fate) {
        let job = self.job(id);
        // For a settled job, only hosts with a fate that may still change are kept.
        if job.is_settled() && !job.fates.contains_key(&host) {
            return;
        }
        let (kind, why) = match fate {
            Fate::Claimed(_) => (Kind::Running, None),
            Fate::Ended { returned, .. } if returned.exit.is_success() => (Kind::Succeeded, None),
            Fate::Ended { returned, .. } => (Kind::Failed, Some(words(&returned.exit))),
            Fate::NotStarted { why } => (Kind::NotStarted, Some(format!("did not start: {why}"))),
            Fate::Unknown { claim } => {
                let why = format!("may have started: {} was lost", claim.holder.node);
                (Kind::Unknown, Some(why))
            }
        };
        if let Some(before) = job.fates.insert(host, kind) {
            *job.count(before) -= 1;
        }
        *job.count(kind) += 1;
        match why {
            Some(why) if job.failures.len() < MOST_FAILURES || job.failures.contains_key(&host) => {
                job.failures.insert(host, line(&why));
            }
            Some(_) => {}
            None => drop(job.failures.remove(&host)),
        }
        let waits = job.is_nameless();
        job.tidy();
        if waits && self.nameless.len() < MOST_NAMELESS && !self.nameless.contains(id) {
            self.nameless.push_back(id.clone());
        }
    }

    /// Returns a job with failures on hosts whose names are unknown, each job once.
    pub(super) fn nameless(&mut self) -> Option<JobId> {
        loop {
            let id = self.nameless.pop_front()?;
            let job = self.jobs.get(&id)?;
            if job.is_read && job.is_nameless() {
                return Some(id);
            }
        }
    }

    /// Sets the names of a job's hosts, in order.
    pub(super) fn set_names(&mut self, id: &JobId, names: Vec<String>) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        let known = (0_u32..)
            .zip(names)
            .filter(|(host, _)| job.failures.contains_key(host));
        job.names = Some(known.map(|(host, name)| (host, line(&name))).collect());
        self.changed_jobs.insert(id.clone());
    }

    /// Returns the changes, in parts that fit into frames. `cut_off` is the time without a connection to NATS.
    pub(super) fn updates(&mut self, moment: Moment, cut_off: Option<u64>) -> Vec<FleetUpdate> {
        self.fleet.now = moment.now;
        self.fleet.cut_off = cut_off;
        let mut nodes = self.changed_nodes(moment);
        self.note_moves(moment);
        let (mut jobs, jobs_gone) = self.changed_jobs(moment.now);
        let is_there = |name: &str| {
            let node = self.nodes.get(name);
            let state = node.map(|node| node.state(moment.heard, self.charter.terms.ttl));
            !matches!(state, None | Some(NodeState::Lost | NodeState::Left))
        };
        let (mut streams, streams_gone) = self.streams.take_changes(is_there);
        self.fleet.older_streams = self.streams.older();
        let changed = std::mem::take(&mut self.changed_moves);
        let moves = self.moves.iter().filter(|one| changed.contains(&one.id));
        let zones = self.zones.iter_mut().filter_map(|(site, zone)| {
            std::mem::take(&mut zone.is_changed).then(|| report_of(site.as_deref(), zone))
        });
        let mut updates = vec![FleetUpdate {
            moves: moves.cloned().collect(),
            zones: zones.collect(),
            jobs_gone,
            streams_gone,
            ..FleetUpdate::default()
        }];
        while !nodes.is_empty() || !jobs.is_empty() || !streams.is_empty() {
            updates.push(FleetUpdate {
                nodes: nodes.split_off(nodes.len().saturating_sub(IN_A_PART)),
                jobs: jobs.split_off(jobs.len().saturating_sub(IN_A_PART)),
                streams: streams.split_off(streams.len().saturating_sub(IN_A_PART)),
                ..FleetUpdate::default()
            });
        }
        if let Some(last) = updates.last_mut() {
            last.fleet = Some(self.fleet.clone());
        }
        updates
    }

    fn changed_nodes(&mut self, moment: Moment) -> Vec<NodeReport> {
        let mut shards: HashMap<&str, u32> = HashMap::new();
        for slot in self.zones.values().flat_map(|zone| &zone.slots) {
            if let Some(owner) = &slot.owner {
                *shards.entry(owner).or_default() += 1;
            }
        }
        let mut changed = Vec::new();
        for (name, node) in &self.nodes {
            let report = NodeReport {
                name: line(name),
                site: node.member.site.as_deref().map(line),
                state: node.state(moment.heard, self.charter.terms.ttl),
                version: line(&node.member.version),
                running: node.member.running,
                shards: shards.get(name.as_str()).copied().unwrap_or_default(),
                heard: node.at,
                trouble: node.member.trouble.as_deref().map(line),
            };
            if self.told_nodes.get(name) != Some(&report) {
                self.told_nodes.insert(name.clone(), report.clone());
                changed.push(report);
            }
        }
        changed
    }

    /// Combines moves that belong together.
    fn note_moves(&mut self, moment: Moment) {
        for moved in std::mem::take(&mut self.moved) {
            let goes = |node: &Node| node.member.draining || node.member.holder.is_none();
            let owner = moved.from.as_ref().and_then(|from| self.nodes.get(from));
            let reason = match (&moved.from, owner) {
                (None, _) => MoveReason::New,
                (Some(_), _) if !moved.was_given => MoveReason::Lost,
                (Some(_), Some(owner)) if goes(owner) => MoveReason::Left,
                (Some(_), None) => MoveReason::Left,
                (Some(_), Some(_)) => MoveReason::Divided,
            };
            let (site, from, to) = (moved.site, moved.from, moved.to);
            let [site, from] = [site, from].map(|name| name.as_deref().map(line));
            let to = line(&to);
            let same = self.moves.iter_mut().rev().find(|one| {
                moved.at <= one.at + TOGETHER
                    && (&one.site, &one.from, &one.to, one.reason) == (&site, &from, &to, reason)
            });
            if let Some(same) = same {
                same.shards += 1;
                self.changed_moves.insert(same.id);
                continue;
            }
            self.next_move += 1;
            self.changed_moves.insert(self.next_move);
            self.moves.push_back(MoveReport {
                id: self.next_move,
                at: moved.at.min(moment.now),
                site,
                from,
                to,
                reason,
                shards: 1,
            });
            if self.moves.len() > MOST_MOVES {
                self.moves.pop_front();
            }
        }
    }

    /// Returns the jobs that have changed, and the names of those that are not reported any more because NATS has
    /// dropped them or they are too old.
    fn changed_jobs(&mut self, now: u64) -> (Vec<JobReport>, Vec<String>) {
        self.jobs
            .retain(|_, job| job.until.is_none_or(|until| now < until));
        let mut newest: Vec<(u64, &JobId)> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.is_read)
            .map(|(id, job)| (job.report.at, id))
            .collect();
        if newest.len() > MOST_JOBS {
            newest.sort_unstable_by(|a, b| b.cmp(a));
        }
        self.fleet.older_jobs = u32::try_from(newest.len().saturating_sub(MOST_JOBS)).unwrap_or(u32::MAX);
        newest.truncate(MOST_JOBS);
        let newest: HashSet<JobId> = newest.into_iter().map(|(_, id)| id.clone()).collect();
        let gone: Vec<String> = self
            .told_jobs
            .difference(&newest)
            .map(|job| job.0.clone())
            .collect();
        // Jobs that were not reported yet, or have become one of the newest.
        self.changed_jobs
            .extend(newest.difference(&self.told_jobs).cloned());
        let changed = std::mem::take(&mut self.changed_jobs);
        let told = changed.iter().filter(|id| newest.contains(*id));
        let reports = told.filter_map(|id| Some(self.jobs.get(id)?.report())).collect();
        self.told_jobs = newest;
        (reports, gone)
    }
}

impl Node {
    fn state(&self, heard: Duration, ttl: Duration) -> NodeState {
        match () {
            () if self.member.holder.is_none() => NodeState::Left,
            () if heard >= self.heard + ttl => NodeState::Lost,
            () if self.member.trouble.is_some() => NodeState::InTrouble,
            () if self.member.draining => NodeState::Draining,
            () => NodeState::Up,
        }
    }
}

impl Job {
    fn count(&mut self, kind: Kind) -> &mut u32 {
        match kind {
            Kind::Running => &mut self.report.running,
            Kind::Succeeded => &mut self.report.succeeded,
            Kind::Failed => &mut self.report.failed,
            Kind::NotStarted => &mut self.report.not_started,
            Kind::Unknown => &mut self.report.unknown,
        }
    }

    fn is_settled(&self) -> bool {
        self.is_read && self.report.settled_hosts() >= self.report.hosts
    }

    fn is_nameless(&self) -> bool {
        let names = self.names.as_ref();
        let mut hosts = self.failures.keys();
        hosts.any(|host| names.is_none_or(|names| !names.contains_key(host)))
    }

    /// Drops fates that cannot change any more.
    fn tidy(&mut self) {
        if self.is_settled() {
            self.fates.retain(|_, kind| *kind == Kind::Unknown);
            self.fates.shrink_to_fit();
        }
    }

    fn report(&self) -> JobReport {
        let name = |host: &u32| {
            let name = self.names.as_ref().and_then(|names| names.get(host));
            name.cloned()
                .unwrap_or_else(|| format!("host {}", u64::from(*host) + 1))
        };
        let failures = self.failures.iter().map(|(host, why)| (name(host), why.clone()));
        JobReport {
            failures: failures.collect(),
            ..self.report.clone()
        }
    }
}

fn report_of(site: Option<&str>, zone: &Zone) -> ZoneReport {
    let mut nodes: Vec<String> = Vec::new();
    let owners = zone.slots.iter().map(|slot| {
        let owner = slot.owner.as_deref().map(line)?;
        let place = nodes.iter().position(|node| *node == owner).unwrap_or_else(|| {
            nodes.push(owner);
            nodes.len() - 1
        });
        u16::try_from(place).ok()
    });
    let owners = owners.collect();
    ZoneReport {
        site: site.map(line),
        nodes,
        owners,
    }
}

fn words(exit: &Exit) -> String {
    match exit {
        Exit::Status(status) => format!("exit status {status}"),
        Exit::Signal(name) => format!("ended by SIG{name}"),
        Exit::Failed { message, .. } => message.clone(),
    }
}

#[cfg(test)]
mod tests;
