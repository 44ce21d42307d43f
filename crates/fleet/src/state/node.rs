//! [`Node`]: one control machine's part in a fleet.

mod mine;
mod observed;
mod settle;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hash;

use super::Time;
use super::entry::{Claim, Entry, Fate, Holder, JobId, Key, Lease, Member, Returned, Value};
use super::job::{Job, Plan};
use super::lease::{LeaseState, Terms};
use super::shard::{Unit, Zones};
use super::stream::{Run, RunEnd, StreamAction, StreamId, StreamPlan, StreamShare, Streams};
use mine::{Flight, Mine, Stage};
pub(crate) use observed::Observed;

/// The pause after a write with an unknown outcome before the next attempt.
const AGAIN: Time = Time::from_secs(1);

/// The time that a node starts nothing after a failure of a failure.
const DISK_REST: Time = Time::from_secs(60);

/// The time for which NATS may return an older value of a key than it reported. In a cluster, a server that has just
/// become the leader can be behind for a moment, and a leader that is cut off from the others answers from its own
/// state for up to 20 s (raft.go, `lostQuorumInterval`, checked every 10 s).
const BEHIND: Time = Time::from_secs(25);

/// The number of unanswered writes of its name after which a node reports that.
const UNHEARD: u32 = 3;

/// The identity of a node.
#[derive(Debug, Clone)]
pub(crate) struct NodeSettings {
    /// This process.
    pub me: Holder,
    /// Its site label.
    pub site: Option<String>,
    /// The division of the fleet's hosts.
    pub zones: Zones,
    /// The number of hosts on which it works at the same time.
    pub at_once: usize,
    /// Its program's version.
    pub version: String,
    /// The terms of leases.
    pub terms: Terms,
    /// The time that the bucket keeps entries.
    pub keep: Time,
}

/// A command on a host that this process intends to execute, as stored on its disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    pub job: JobId,
    /// The host's index in the job, from 0.
    pub host: u32,
    /// The claim, which is written once the intent is on disk.
    pub claim: Claim,
}

/// The id of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Token(pub u64);

/// The outcome of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Written {
    /// It was done, with this revision.
    Done(u64),
    /// The expected value is not there, but this one or nothing. Must be read from the server that decides on writes,
    /// not from a replica, which may be behind.
    Refused(Option<Entry>),
    /// There was no answer: it may have been done, or may still be.
    Lost,
}

/// The outcome of storing an intent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Intended {
    /// It is stored durably.
    Noted,
    /// This machine has executed the same host of the same job before, which the bucket does not know.
    Before,
    /// It could not be written, for this reason.
    Failed(String),
}

/// An action for the node's driver. Each may take its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Write a value if the key's last revision is `expected` (0: if there is none). Answered by
    /// [`Node::handle_written`].
    Write {
        /// Identifies the answer.
        token: Token,
        key: Key,
        /// The expected revision.
        expected: u64,
        /// The new value.
        value: Value,
    },
    /// Store an intent durably before answering. Answered by [`Node::handle_intended`].
    Intend(Intent),
    /// Run the command. Answered by [`Node::handle_executed`].
    Execute(Intent),
    /// End the command. [`Node::handle_executed`] follows soon.
    Cancel(Intent),
    /// Store the result, in case this process ends before the fleet knows it.
    Note(Intent, Returned),
    /// Drop an intent: the fleet knows its outcome, or never will.
    Close(Intent),
    /// Drop everything about a job.
    Forget(JobId),
    Stream(StreamAction),
}

/// A write that was sent to the bucket.
#[derive(Debug)]
struct Sent {
    purpose: Purpose,
    key: Key,
    expected: u64,
    at: Time,
    /// The highest revision known then. Later writes have higher ones.
    floor: u64,
}

#[derive(Debug, Clone)]
enum Purpose {
    Member,
    Lease(Unit),
    GiveBack,
    Gate(JobId),
    /// The fate of a host with an intent of this process.
    Mine(JobId, u32),
    /// The fate of another host.
    Other(JobId, u32),
    Freeze,
}

#[derive(Debug)]
pub(crate) struct Node {
    settings: NodeSettings,
    /// True once all initial entries have been reported.
    is_synced: bool,
    /// The lease of this node's name.
    name: LeaseState,
    members: BTreeMap<String, (Member, LeaseState)>,
    leases: BTreeMap<Unit, LeaseState>,
    /// The nodes in the last division of units, and this node's part.
    divided: BTreeSet<(String, Option<String>)>,
    own: BTreeSet<Unit>,
    jobs: BTreeMap<JobId, Job>,
    /// Jobs that are finished, until the bucket has dropped them as well.
    done: BTreeMap<JobId, Time>,
    mine: BTreeMap<(JobId, u32), Mine>,
    /// Gates with a pending write.
    gates: HashMap<JobId, Flight>,
    /// Fates of other hosts with a pending write.
    closing: HashMap<(JobId, u32), Flight>,
    streams: Streams,
    sent: HashMap<Token, Sent>,
    actions: VecDeque<Action>,
    /// The highest revision seen.
    highest: u64,
    frozen: Option<String>,
    /// The number of consecutive unanswered writes of its name.
    unanswered: u32,
    /// Set while the bucket's last sequence number is below one that was seen: since when, and the number. Meanwhile
    /// nothing is started.
    behind: Option<(Time, u64)>,
    /// Keys for which NATS refuses writes because it has an older value than it reported, and since when.
    older: BTreeMap<Key, Time>,
    /// True once the fleet knows that it is frozen.
    is_freeze_told: bool,
    is_draining: bool,
    /// It has given everything back, and takes nothing again.
    has_left: bool,
    disk: Option<(Time, String)>,
    next: u64,
    /// True if something has happened since the last decision.
    is_stirred: bool,
}

impl Node {
    /// Returns a node without knowledge. `intents` are the open ones on its disk, with their results.
    pub(crate) fn new(settings: NodeSettings, intents: Vec<(Intent, Option<Returned>)>) -> Self {
        let mine = intents.into_iter().map(|(intent, returned)| {
            let stage = Stage::of_former(&intent.claim, returned);
            ((intent.job, intent.host), Mine::new(intent.claim, stage))
        });
        Self {
            is_synced: false,
            name: LeaseState::new(settings.terms),
            members: BTreeMap::new(),
            leases: BTreeMap::new(),
            divided: BTreeSet::new(),
            own: BTreeSet::new(),
            jobs: BTreeMap::new(),
            done: BTreeMap::new(),
            mine: mine.collect(),
            gates: HashMap::new(),
            closing: HashMap::new(),
            streams: Streams::default(),
            sent: HashMap::new(),
            actions: VecDeque::new(),
            highest: 0,
            frozen: None,
            behind: None,
            unanswered: 0,
            older: BTreeMap::new(),
            is_freeze_told: false,
            is_draining: false,
            has_left: false,
            disk: None,
            next: 0,
            is_stirred: false,
            settings,
        }
    }

    // Getters.

    /// Returns the reason why it starts nothing, as a sentence, if there is one.
    pub(crate) fn trouble(&self, now: Time) -> Option<String> {
        let name = &self.settings.me.node;
        let unheard = || {
            (self.unanswered >= UNHEARD).then(|| {
                format!(
                    "NATS does not answer when this node says that it is {name}: where it answers others, it has no room left for \
                     what it keeps, or its configuration does not let this machine's key write member.{name}"
                )
            })
        };
        self.known_trouble(now).or_else(unheard)
    }

    /// Returns the reason that is reported to the fleet.
    fn known_trouble(&self, now: Time) -> Option<String> {
        let name = &self.settings.me.node;
        let taken = self.name.is_live(now) && self.name.holder() != Some(&self.settings.me);
        if let Some(why) = &self.frozen {
            return Some(format!("the fleet is frozen: {why}"));
        }
        if let Some((_, why)) = &self.disk {
            return Some(format!("the log of intents cannot be written: {why}"));
        }
        taken.then(|| match self.name.is_renewed() {
            true => format!(
                "another process is the node {name}: two machines have one name; give one of them another `name`"
            ),
            false => format!("the process that was the node {name} before has not left, and may be alive"),
        })
    }

    /// Returns how long another process will hold this node's name if it does not renew it.
    pub(crate) fn name_is_free_in(&self, now: Time) -> Option<Time> {
        let taken = self.name.is_live(now) && self.name.holder() != Some(&self.settings.me);
        (taken && !self.name.is_renewed()).then(|| self.name.ends_in(now))
    }

    /// Returns true if a job is finished and forgotten.
    pub(crate) fn is_done(&self, job: &JobId) -> bool {
        self.done.contains_key(job)
    }

    /// Returns true if no host of a job can change any more.
    pub(crate) fn is_settled(&self, job: &JobId) -> bool {
        self.is_done(job) || self.jobs.get(job).is_some_and(Job::is_settled)
    }

    /// Returns true if the node holds this unit.
    pub(crate) fn owns(&self, unit: &Unit, now: Time) -> bool {
        self.leases
            .get(unit)
            .is_some_and(|lease| lease.held_revision(now).is_some())
    }

    /// Returns the number of hosts on which it starts or runs something.
    pub(crate) fn running(&self) -> usize {
        self.mine.values().filter(|mine| mine.is_running()).count()
    }

    /// Returns its work for each stream.
    pub(crate) fn stream_shares(&self) -> impl Iterator<Item = (&StreamId, StreamShare)> {
        self.streams.shares()
    }

    /// Returns true if everything has been reported to the fleet.
    pub(crate) fn is_idle(&self) -> bool {
        self.mine.is_empty()
    }

    /// Returns true if leaving would interrupt nothing: no command runs, and no write is unanswered.
    pub(crate) fn may_leave(&self) -> bool {
        self.is_idle() && self.streams.is_idle() && self.sent.is_empty()
    }

    /// Returns the nodes that are alive, including this one.
    pub(crate) fn members(&self, now: Time) -> impl Iterator<Item = (&str, &Member)> {
        let live = self
            .members
            .iter()
            .filter(move |(_, (_, lease))| lease.is_live(now));
        live.map(|(name, (member, _))| (name.as_str(), member))
    }

    /// Returns the highest revision seen.
    pub(crate) fn highest(&self) -> u64 {
        self.highest
    }

    /// Returns the reason why the fleet is frozen, if it is.
    pub(crate) fn frozen(&self) -> Option<&str> {
        self.frozen.as_deref()
    }

    // Input.

    /// Handles an entry of the bucket.
    pub(crate) fn handle_entry(&mut self, now: Time, entry: Entry) {
        self.is_stirred = true;
        self.highest = self.highest.max(entry.revision);
        let Entry { key, revision, value } = entry;
        let me = self.settings.me.clone();
        let terms = self.settings.terms;
        match (key, value) {
            (Key::Member(node), Some(Value::Member(member))) => {
                if node == me.node {
                    self.name.saw(now, revision, member.holder.as_ref(), &me);
                }
                let (known, lease) = self
                    .members
                    .entry(node)
                    .or_insert_with(|| (member.clone(), LeaseState::new(terms)));
                lease.saw(now, revision, member.holder.as_ref(), &me);
                if lease.holder() == member.holder.as_ref() {
                    *known = member;
                }
            }
            (Key::Lease(unit), Some(Value::Lease(Lease { holder }))) => {
                let lease = self.leases.entry(unit).or_insert_with(|| LeaseState::new(terms));
                lease.saw(now, revision, holder.as_ref(), &me);
            }
            (Key::Gate(job), Some(Value::Gate(gate))) => {
                if let Some(job) = self.job(now, job) {
                    job.saw_gate(revision, gate);
                }
            }
            (Key::Cancel(job, _), Some(Value::Cancel(_))) => {
                if let Some(job) = self.job(now, job) {
                    job.is_cancelled = true;
                }
            }
            (Key::Fate(job, host), Some(Value::Fate(fate))) => {
                if let Some(job) = self.job(now, job) {
                    job.saw_fate(host, revision, fate);
                }
            }
            (Key::Frozen, Some(Value::Frozen(why))) => {
                self.is_freeze_told = true;
                self.frozen.get_or_insert(why);
            }
            // Deleted, by age or by hand: the last value still holds. Or of an unknown kind.
            _ => {}
        }
    }

    /// Notes that all initial entries have been reported.
    pub(crate) fn handle_synced(&mut self) {
        self.is_synced = true;
        self.is_stirred = true;
    }

    /// Handles the bucket's last sequence number. `highest_before` is [`Self::highest`] before the request. In a
    /// cluster, a new leader can be behind its predecessor for a moment, and catches up.
    pub(crate) fn handle_last_sequence(&mut self, now: Time, last: u64, highest_before: u64) {
        if last >= highest_before {
            self.behind = None;
            return;
        }
        let (since, first) = *self.behind.get_or_insert((now, last));
        // New writes follow on after lost ones. A leader that is cut off from the others writes nothing.
        if last > first || now >= since + BEHIND {
            self.freeze(now, last);
        }
    }

    /// Restores the highest revision that an earlier process of this node saw.
    pub(crate) fn remember_highest(&mut self, highest: u64) {
        self.highest = self.highest.max(highest);
    }

    /// Handles a job that has been read.
    pub(crate) fn handle_job(&mut self, now: Time, job: JobId, plan: Plan) {
        self.is_stirred = true;
        if let Some(job) = self.job(now, job)
            && job.plan.is_none()
        {
            job.set_plan(plan);
        }
    }

    /// Sets for each host of a job the current reason, if any, not to start it here.
    pub(crate) fn handle_judged(&mut self, job: &JobId, refused: Vec<Option<String>>) {
        self.is_stirred = true;
        if let Some(job) = self.jobs.get_mut(job) {
            job.apply_judgement(refused);
        }
    }

    /// Handles a stream that has been read.
    pub(crate) fn handle_stream(&mut self, now: Time, stream: StreamId, plan: StreamPlan) {
        self.stir_streams();
        self.streams.set_plan(now, stream, plan);
    }

    /// Sets for each host of a stream the current reason, if any, not to run it here. A running one that is no longer
    /// allowed is stopped.
    pub(crate) fn handle_stream_judged(&mut self, stream: &StreamId, refused: Vec<Option<String>>) {
        self.stir_streams();
        self.streams.apply_judgement(stream, refused);
    }

    /// Handles a permitted cancellation of a stream.
    pub(crate) fn handle_stream_cancelled(&mut self, stream: &StreamId) {
        self.stir_streams();
        self.streams.cancel(stream);
    }

    /// Handles the final end of a stream's host, as in the bucket.
    pub(crate) fn handle_stream_ended(&mut self, stream: &StreamId, host: u32) {
        self.stir_streams();
        self.streams.saw_end(stream, host);
    }

    /// Handles the removal of a stream from the bucket.
    pub(crate) fn handle_stream_gone(&mut self, stream: &StreamId) {
        self.stir_streams();
        self.streams.forget(stream);
    }

    pub(crate) fn handle_run_ended(&mut self, now: Time, run: &Run, end: RunEnd) {
        self.stir_streams();
        self.streams.run_ended(now, run, end);
    }

    /// Handles the result of writing the end of a host.
    pub(crate) fn handle_end_written(&mut self, now: Time, stream: &StreamId, host: u32, is_written: bool) {
        self.stir_streams();
        self.streams.end_written(now, stream, host, is_written);
    }

    fn stir_streams(&mut self) {
        self.is_stirred = true;
        self.streams.is_stirred = true;
    }

    /// Handles the outcome of a write.
    pub(crate) fn handle_written(&mut self, now: Time, token: Token, written: Written) {
        self.is_stirred = true;
        let Some(sent) = self.sent.remove(&token) else {
            return;
        };
        if let Written::Done(revision) = written {
            if revision <= sent.floor {
                // This write's number follows the bucket's last one.
                self.freeze(now, revision.saturating_sub(1));
            }
            self.highest = self.highest.max(revision);
        }
        let is_older = self.is_older(now, &sent, &written);
        if let Purpose::Member = &sent.purpose {
            self.unanswered = match written {
                Written::Lost => self.unanswered.saturating_add(1),
                Written::Done(_) | Written::Refused(_) => 0,
            };
        }
        let me = self.settings.me.clone();
        if let Purpose::Member | Purpose::Lease(_) = &sent.purpose {
            let lease = match &sent.purpose {
                Purpose::Lease(unit) => {
                    let terms = self.settings.terms;
                    let lease = self.leases.entry(unit.clone());
                    lease.or_insert_with(|| LeaseState::new(terms))
                }
                _ => &mut self.name,
            };
            let mut is_forgotten = false;
            match &written {
                Written::Done(revision) => lease.note_written(now, sent.at, *revision, &me),
                Written::Refused(Some(_)) => lease.note_refused(),
                Written::Refused(None) => is_forgotten = lease.note_vanished(now),
                Written::Lost => lease.note_lost(),
            }
            if is_forgotten {
                // It may also have forgotten that the fleet is frozen.
                self.is_freeze_told = false;
                let why =
                    "NATS forgets what it has acknowledged, as where two servers write to one directory";
                self.freeze_because(now, why.into());
            }
        }
        let refused_by_nothing = written == Written::Refused(None);
        let (is_done, flight) = match &written {
            Written::Done(revision) => (Some(*revision), Flight::Idle),
            // With an older value or none, NATS is behind what is known.
            Written::Refused(Some(_)) if !is_older => (None, Flight::Idle),
            Written::Refused(_) | Written::Lost => (None, Flight::Until(now + AGAIN)),
        };
        if let Written::Refused(Some(entry)) = written {
            self.handle_entry(now, entry);
        }
        match sent.purpose {
            Purpose::Gate(job) => flown(&mut self.gates, job, flight),
            Purpose::Mine(job, host) => {
                if refused_by_nothing {
                    self.fate_vanished(now, &job, host);
                }
                self.mine_written(now, &job, host, is_done, flight);
            }
            Purpose::Other(job, host) => {
                let known = self.jobs.get(&job).and_then(|job| job.fate(host));
                if refused_by_nothing && known.is_some() {
                    self.freeze_because(now, lost_claim(&job, host));
                }
                flown(&mut self.closing, (job, host), flight);
            }
            Purpose::Freeze => self.is_freeze_told |= is_done.is_some(),
            Purpose::Member | Purpose::Lease(_) | Purpose::GiveBack => {}
        }
    }

    /// Handles the result of storing an intent.
    pub(crate) fn handle_intended(&mut self, now: Time, intent: &Intent, intended: Intended) {
        self.is_stirred = true;
        let place = (intent.job.clone(), intent.host);
        match intended {
            Intended::Noted => self.note_intent(now, intent),
            Intended::Before => {
                self.mine.remove(&place);
                self.freeze_because(now, lost_claim(&place.0, place.1));
            }
            Intended::Failed(why) => {
                self.disk = Some((now, why));
                self.mine.remove(&place);
            }
        }
    }

    /// Handles a command's result.
    pub(crate) fn handle_executed(&mut self, now: Time, intent: Intent, returned: Returned) {
        self.is_stirred = true;
        self.note_executed(intent, returned);
        self.think(now);
    }

    /// Gives its hosts to other nodes, and takes no more.
    pub(crate) fn drain(&mut self, now: Time) {
        self.is_draining = true;
        self.stir_streams();
        self.renew_name(now, true);
        self.think(now);
    }

    /// Gives everything back now, because this process ends.
    pub(crate) fn leave(&mut self, now: Time) {
        self.is_draining = true;
        self.has_left = true;
        let held: Vec<Unit> = self.leases.keys().cloned().collect();
        for unit in held {
            self.give_back(now, &unit);
        }
        if let Some(expected) = self.name.held_revision(now) {
            self.name.give_up();
            let member = Member {
                holder: None,
                ..self.as_member(now)
            };
            let key = Key::Member(self.settings.me.node.clone());
            self.write(now, Purpose::GiveBack, key, expected, Value::Member(member));
        }
    }

    /// Advances the time. Must be called four times a second.
    pub(crate) fn handle_tick(&mut self, now: Time) {
        if self
            .disk
            .as_ref()
            .is_some_and(|(since, _)| now >= *since + DISK_REST)
        {
            self.disk = None;
        }
        self.is_stirred = false;
        self.streams.is_stirred = true;
        self.think(now);
        self.tidy(now);
        self.tell_freeze(now);
    }

    /// Returns the next action. Must be called after each event until it returns `None`.
    pub(crate) fn poll_action(&mut self, now: Time) -> Option<Action> {
        if self.actions.is_empty() && std::mem::take(&mut self.is_stirred) {
            self.think(now);
        }
        self.actions.pop_front()
    }

    // Decisions.

    fn think(&mut self, now: Time) {
        if !self.is_synced || self.has_left {
            return;
        }
        self.renew_name(now, false);
        self.divide(now);
        self.look_after_streams(now);
        self.lease(now);
        self.open_gates(now);
        self.settle_mine(now);
        self.look_after_hosts(now);
    }

    fn as_member(&self, now: Time) -> Member {
        Member {
            holder: Some(self.settings.me.clone()),
            site: self.settings.site.clone(),
            draining: self.is_draining || self.disk.is_some(),
            running: u32::try_from(self.running()).unwrap_or(u32::MAX),
            trouble: self.known_trouble(now),
            version: self.settings.version.clone(),
        }
    }

    /// Takes its name, or renews it.
    fn renew_name(&mut self, now: Time, at_once: bool) {
        self.name.expire(now);
        let me = &self.settings.me;
        let due = self.name.renewable(now).or_else(|| self.name.takeable(now, me));
        let due = due.or_else(|| self.name.held_revision(now).filter(|_| at_once));
        let Some(expected) = due else {
            return;
        };
        let key = Key::Member(me.node.clone());
        let member = Value::Member(self.as_member(now));
        self.name.note_sent(now);
        self.write(now, Purpose::Member, key, expected, member);
    }

    /// Divides the units among the live nodes, if these have changed.
    fn divide(&mut self, now: Time) {
        let me = &self.settings.me.node;
        let others = self
            .members(now)
            .filter(|(name, member)| !member.draining && name != me);
        let mut nodes: BTreeSet<_> = others
            .map(|(name, member)| (name.to_owned(), member.site.clone()))
            .collect();
        if self.name.held_revision(now).is_some() && !self.is_draining && self.disk.is_none() {
            nodes.insert((me.clone(), self.settings.site.clone()));
        }
        if nodes == self.divided {
            return;
        }
        let zones = &self.settings.zones;
        let units = zones.units(self.settings.site.as_deref()).into_iter();
        self.own = units
            .filter(|unit| {
                let able = nodes.iter().filter(|(_, site)| match &unit.site {
                    None => true,
                    wanted => wanted == site,
                });
                unit.owner(able.map(|(name, _)| name.as_str())) == Some(me)
            })
            .collect();
        self.divided = nodes;
    }

    /// Takes its own units if they are free, renews them, and gives back all others.
    fn lease(&mut self, now: Time) {
        for lease in self.leases.values_mut() {
            lease.expire(now);
        }
        let held = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.held_revision(now).is_some());
        let held = held
            .map(|(unit, _)| unit)
            .filter(|unit| !self.own.contains(*unit));
        let foreign: Vec<Unit> = held.cloned().collect();
        let mut busy = self.beginning();
        if !foreign.is_empty() {
            busy.extend(self.streams.units().cloned());
        }
        // A host with an intent is started before its shard moves, which takes moments: the next owner could not start
        // it. Streams are stopped first: the next owner would run them as well.
        let free = foreign.iter().filter(|unit| !busy.contains(*unit));
        for unit in free.cloned().collect::<Vec<_>>() {
            self.give_back(now, &unit);
        }
        if self.name.held_revision(now).is_none() {
            return;
        }
        let me = self.settings.me.clone();
        let mut writes = Vec::new();
        // A unit that cannot move yet is kept.
        for unit in self
            .own
            .iter()
            .chain(foreign.iter().filter(|unit| busy.contains(*unit)))
        {
            let lease = self.leases.entry(unit.clone());
            let lease = lease.or_insert_with(|| LeaseState::new(self.settings.terms));
            if let Some(expected) = lease.renewable(now).or_else(|| lease.takeable(now, &me)) {
                lease.note_sent(now);
                writes.push((unit.clone(), expected));
            }
        }
        for (unit, expected) in writes {
            let holder = Some(me.clone());
            let key = Key::Lease(unit.clone());
            self.write(
                now,
                Purpose::Lease(unit),
                key,
                expected,
                Value::Lease(Lease { holder }),
            );
        }
    }

    /// Runs the commands of streams on this node's hosts: after each event of a stream, and with each tick.
    fn look_after_streams(&mut self, now: Time) {
        if !std::mem::take(&mut self.streams.is_stirred) {
            return;
        }
        let is_starting = self.frozen.is_none() && self.behind.is_none() && self.disk.is_none();
        let (own, leases) = (&self.own, &self.leases);
        self.streams.look_after(now, is_starting, |unit| {
            let lease = leases.get(unit).filter(|_| own.contains(unit))?;
            Some((lease.may_go_on(now)?, lease.may_start(now).is_some()))
        });
        self.actions
            .extend(self.streams.actions.drain(..).map(Action::Stream));
    }

    /// Returns the units of hosts that this process is about to start.
    fn beginning(&self) -> BTreeSet<Unit> {
        let beginning = self.mine.iter().filter(|(_, mine)| mine.is_beginning());
        let unit = |(job, host): &(JobId, u32)| Some(self.jobs.get(job)?.host(*host)?.unit.clone());
        beginning.filter_map(|(place, _)| unit(place)).collect()
    }

    fn give_back(&mut self, now: Time, unit: &Unit) {
        let Some(lease) = self.leases.get_mut(unit) else {
            return;
        };
        if let Some(expected) = lease.held_revision(now) {
            lease.give_up();
            let value = Value::Lease(Lease { holder: None });
            self.write(now, Purpose::GiveBack, Key::Lease(unit.clone()), expected, value);
        }
    }

    /// Lets further hosts of jobs start, if this node manages the job.
    fn open_gates(&mut self, now: Time) {
        land(&mut self.gates, now);
        if self.frozen.is_some() {
            return;
        }
        let mut writes = Vec::new();
        for (id, job) in &self.jobs {
            let unit = self.settings.zones.unit_of_job(&id.0);
            let leased = self.leases.get(&unit);
            if self.gates.contains_key(id) || leased.is_none_or(|lease| lease.may_start(now).is_none()) {
                continue;
            }
            if let Some(gate) = job.due_gate() {
                writes.push((id.clone(), job.gate_revision(), gate));
            }
        }
        for (job, expected, gate) in writes {
            self.gates.insert(job.clone(), Flight::Sent);
            let key = Key::Gate(job.clone());
            self.write(now, Purpose::Gate(job), key, expected, Value::Gate(gate));
        }
    }

    /// Starts hosts that may start, and settles those that cannot or that a lost node has left.
    fn look_after_hosts(&mut self, now: Time) {
        land(&mut self.closing, now);
        let jobs: Vec<JobId> = self.jobs.keys().cloned().collect();
        for job in jobs {
            self.look_after_lost(now, &job);
            self.look_after_unclaimed(now, &job);
        }
    }

    /// Reports that hosts of lost nodes may have started.
    fn look_after_lost(&mut self, now: Time, id: &JobId) {
        let claimed = self.jobs.get(id).map(Job::claimed_hosts).unwrap_or_default();
        for host in claimed {
            let lost = self.jobs.get(id).and_then(|job| {
                let unit = &job.host(host)?.unit;
                let may_start = self.leases.get(unit)?.may_start(now).is_some();
                let (revision, fate) = job.fate(host)?;
                let claim = fate.claim().filter(|claim| self.is_lost(&claim.holder, now));
                claim.filter(|_| may_start).map(|claim| (revision, claim.clone()))
            });
            if let Some((revision, claim)) = lost {
                self.close(now, id, host, revision, Fate::Unknown { claim });
            }
        }
    }

    /// Starts unclaimed hosts, or reports that they do not start.
    fn look_after_unclaimed(&mut self, now: Time, id: &JobId) {
        let mut room = self.settings.at_once.saturating_sub(self.running());
        let units = self.jobs.get(id).map(Job::unclaimed_units).unwrap_or_default();
        for unit in units {
            let lease = self.leases.get(&unit);
            let Some(fence) = lease.and_then(|lease| lease.may_start(now)) else {
                continue;
            };
            let mut from = 0;
            while let Some(job) = self.jobs.get(id)
                && let Some(host) = job.unclaimed_from(&unit, from)
                && let Some(planned) = job.host(host)
            {
                from = host.saturating_add(1);
                let (released, stop) = job.released_hosts();
                let cancelled = job.is_cancelled.then(|| "the job was cancelled".to_owned());
                let why = planned.refused.clone().or(cancelled);
                if let Some(why) = why.or_else(|| stop.map(str::to_owned)) {
                    self.close(now, id, host, 0, Fate::NotStarted { why });
                } else if host < released && room > 0 && self.may_begin(&unit) {
                    if self.is_free(id, host) {
                        room -= 1;
                        self.begin((id.clone(), host), fence);
                    }
                } else if !job.has_refused {
                    // The same applies to the hosts after it.
                    break;
                }
            }
        }
    }

    /// Returns true if hosts of a held unit may be started.
    fn may_begin(&self, unit: &Unit) -> bool {
        self.frozen.is_none() && self.behind.is_none() && self.disk.is_none() && self.own.contains(unit)
    }

    /// Settles a host for which this process has no intent.
    fn close(&mut self, now: Time, job: &JobId, host: u32, expected: u64, fate: Fate) {
        if self.frozen.is_some() || !self.is_free(job, host) {
            return;
        }
        self.closing.insert((job.clone(), host), Flight::Sent);
        let (key, purpose) = (Key::Fate(job.clone(), host), Purpose::Other(job.clone(), host));
        self.write(now, purpose, key, expected, Value::Fate(fate));
    }

    /// Returns true if nothing is pending for a host.
    fn is_free(&self, job: &JobId, host: u32) -> bool {
        let place = (job.clone(), host);
        !self.mine.contains_key(&place) && !self.closing.contains_key(&place)
    }

    /// Returns true if the process that made a claim is not alive.
    fn is_lost(&self, holder: &Holder, now: Time) -> bool {
        if *holder == self.settings.me {
            return false;
        }
        match self.members.get(&holder.node) {
            None => true,
            Some((_, lease)) => lease.holder() != Some(holder) || !lease.is_live(now),
        }
    }

    /// Returns true if a write was refused because NATS has an older value than it reported. If that persists, it has
    /// forgotten what it acknowledged, even if its sequence number is above the known one because others have written
    /// since.
    fn is_older(&mut self, now: Time, sent: &Sent, written: &Written) -> bool {
        let Written::Refused(Some(entry)) = written else {
            if matches!(written, Written::Done(_)) {
                self.older.remove(&sent.key);
            }
            return false;
        };
        let (stands, expected) = (entry.revision, sent.expected);
        if stands >= expected {
            self.older.remove(&sent.key);
            return false;
        }
        if now >= *self.older.entry(sent.key.clone()).or_insert(now) + BEHIND {
            let key = &sent.key;
            let why = format!(
                "NATS has gone back at {key}, to sequence number {stands} from {expected}: it has lost what it had acknowledged"
            );
            self.freeze_because(now, why);
        }
        true
    }

    /// Freezes the fleet: the bucket has forgotten what it acknowledged.
    fn freeze(&mut self, now: Time, last: u64) {
        let why = format!(
            "NATS has gone back to sequence number {last} from {}, as after a restore from a backup: what ran since is not \
             known to it",
            self.highest
        );
        self.freeze_because(now, why);
    }

    fn freeze_because(&mut self, now: Time, why: String) {
        if self.frozen.is_none() {
            self.frozen = Some(why);
            self.tell_freeze(now);
        }
    }

    /// Tells the fleet that it is frozen, repeatedly until that is acknowledged or another node has done so.
    fn tell_freeze(&mut self, now: Time) {
        let is_sent = self
            .sent
            .values()
            .any(|sent| matches!(sent.purpose, Purpose::Freeze));
        if let Some(why) = self.frozen.clone().filter(|_| !self.is_freeze_told && !is_sent) {
            self.write(now, Purpose::Freeze, Key::Frozen, 0, Value::Frozen(why));
        }
    }

    /// Returns a job, unless it is finished.
    fn job(&mut self, now: Time, job: JobId) -> Option<&mut Job> {
        match self.done.contains_key(&job) {
            true => None,
            false => Some(self.jobs.entry(job).or_insert_with(|| Job::new(now))),
        }
    }

    /// Drops jobs whose hosts are all settled, and those that the bucket has dropped. The bucket drops entries that
    /// were written after a job was read here later than this process drops the job, so nothing is executed again.
    fn tidy(&mut self, now: Time) {
        let keep = self.settings.keep;
        let is_over = |since: Time| !keep.is_zero() && now >= since + keep;
        let places = self.mine.keys().chain(self.closing.keys());
        let busy: BTreeSet<JobId> = places.map(|(job, _)| job.clone()).collect();
        let mut done = Vec::new();
        for (id, job) in &self.jobs {
            if !busy.contains(id) && !self.gates.contains_key(id) && (is_over(job.since) || job.is_settled())
            {
                done.push((id.clone(), job.since));
            }
        }
        for (id, since) in done {
            self.jobs.remove(&id);
            self.done.insert(id.clone(), since);
            self.actions.push_back(Action::Forget(id));
        }
        // A little longer, for messages on their way.
        self.done.retain(|_, since| !is_over(*since + keep / 8));
    }

    fn write(&mut self, now: Time, purpose: Purpose, key: Key, expected: u64, value: Value) {
        self.next += 1;
        let token = Token(self.next);
        self.sent.insert(
            token,
            Sent {
                purpose,
                key: key.clone(),
                expected,
                at: now,
                floor: self.highest,
            },
        );
        self.actions.push_back(Action::Write {
            token,
            key,
            expected,
            value,
        });
    }
}

/// Handles the answer to a write of this key: it is repeated at that time, or done.
fn flown<K: Eq + Hash>(writes: &mut HashMap<K, Flight>, key: K, flight: Flight) {
    match flight {
        Flight::Until(_) => writes.insert(key, flight),
        Flight::Idle | Flight::Sent => writes.remove(&key),
    };
}

/// Allows delayed writes again when they are due.
fn land<K>(writes: &mut HashMap<K, Flight>, now: Time) {
    writes.retain(|_, flight| !matches!(flight, Flight::Until(until) if now >= *until));
}

fn lost_claim(job: &JobId, host: u32) -> String {
    format!("NATS has lost a claim that it had acknowledged (job {job}, host {host})")
}
