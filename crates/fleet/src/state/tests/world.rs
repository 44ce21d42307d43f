//! The simulated world: a bucket, nodes, their disks, the hosts' ledgers, and faults.

mod streams;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::state::{
    Action, Entry, Exit, Holder, Intended, Intent, JobId, Key, Limits, Node, NodeSettings, Plan, PlannedHost,
    Returned, Terms, Time, Token, Value, Written, Zones,
};

/// The time that the bucket keeps its entries: longer than any course of events.
const KEEP: Duration = Duration::from_secs(7 * 86_400);

#[derive(Debug, Clone, Copy)]
pub(super) struct Faults {
    /// The share of lost messages, in thousandths.
    loss: u32,
    /// The longest delay of a message.
    delay: Duration,
    /// True if nodes are killed, stopped and cut off.
    nodes: bool,
    /// The relative error of clocks.
    skew: f64,
}

impl Faults {
    pub(super) fn all() -> Self {
        Self {
            loss: 30,
            delay: Duration::from_secs(4),
            nodes: true,
            skew: 0.02,
        }
    }

    /// Clocks run at arbitrary speeds, so leases are unreliable.
    pub(super) fn wild_clocks() -> Self {
        Self {
            skew: 0.9,
            ..Self::all()
        }
    }

    pub(super) fn none() -> Self {
        Self {
            loss: 0,
            delay: Duration::from_millis(300),
            nodes: false,
            skew: 0.02,
        }
    }
}

enum Event {
    ToStore(Life, Token, Key, u64, Value),
    ToNode(Life, Input),
    /// News of the bucket reaches a node.
    News(Life),
    Sync(Life),
    Tick(Life),
    /// A command reaches its host.
    Arrives(Life, Intent),
    Returns(Life, Intent, u32),
    Mischief,
    Start(usize),
    Continue(usize),
    Reconnect(usize),
    Stream(Life, streams::StreamEvent),
}

enum Input {
    Written(Token, Written),
    Intended(Intent, Intended),
    Executed(Intent, u32),
}

/// A node's process: the node, and the number of the process.
type Life = (usize, u64);

struct Slot {
    name: String,
    life: u64,
    node: Option<Node>,
    /// Its clock's initial time, and its relative speed.
    clock: (Duration, f64),
    /// The part of the log that has been reported to it.
    told: usize,
    stopped: bool,
    waiting: Vec<Event>,
    cut_off: bool,
    disk: BTreeMap<(JobId, u32), (Intent, Option<Returned>)>,
    done: BTreeSet<(JobId, u32)>,
    is_full: bool,
    is_gone: bool,
    executed: usize,
}

pub(super) struct World {
    random: StdRng,
    faults: Faults,
    now: Duration,
    events: BTreeMap<(Duration, u64), Event>,
    number: u64,
    pub(super) store: BTreeMap<Key, (u64, Value)>,
    log: Vec<Entry>,
    sequence: u64,
    slots: Vec<Slot>,
    pub(super) streams: streams::Streams,
    zones: Zones,
    pub(super) jobs: BTreeMap<JobId, u32>,
    pub(super) limits: BTreeMap<JobId, Limits>,
    pub(super) ledger: BTreeMap<(JobId, u32), Vec<u32>>,
    busy: BTreeMap<JobId, u32>,
    pub(super) busiest: BTreeMap<JobId, u32>,
}

impl World {
    pub(super) fn new(seed: u64, nodes: usize, faults: Faults) -> Self {
        let mut world = Self {
            random: StdRng::seed_from_u64(seed),
            faults,
            now: Duration::ZERO,
            events: BTreeMap::new(),
            number: 0,
            store: BTreeMap::new(),
            log: Vec::new(),
            sequence: 0,
            slots: Vec::new(),
            streams: streams::Streams::default(),
            zones: Zones {
                shards: 8,
                ..Zones::default()
            },
            jobs: BTreeMap::new(),
            limits: BTreeMap::new(),
            ledger: BTreeMap::new(),
            busy: BTreeMap::new(),
            busiest: BTreeMap::new(),
        };
        for number in 0..nodes {
            world.add(&format!("n{number}"));
        }
        if faults.nodes {
            world.schedule(Duration::from_secs(5), Event::Mischief);
        }
        world
    }

    pub(super) fn add(&mut self, name: &str) -> usize {
        let offset = Duration::from_millis(self.random.random_range(0..1_000_000));
        let skew = self.faults.skew;
        let rate = self.random.random_range(1.0 - skew..1.0 + 3.0 * skew);
        self.slots.push(Slot {
            name: name.to_owned(),
            life: 0,
            node: None,
            clock: (offset, rate),
            told: 0,
            stopped: false,
            waiting: Vec::new(),
            cut_off: false,
            disk: BTreeMap::new(),
            done: BTreeSet::new(),
            is_full: false,
            is_gone: false,
            executed: 0,
        });
        self.start(self.slots.len() - 1);
        self.slots.len() - 1
    }

    pub(super) fn pick(&mut self, of: usize) -> usize {
        self.random.random_range(0..of)
    }

    pub(super) fn submit(&mut self, job: &str, hosts: u32, limits: Limits) {
        let job = JobId(job.to_owned());
        self.jobs.insert(job.clone(), hosts);
        self.limits.insert(job.clone(), limits);
        for slot in 0..self.slots.len() {
            self.tell_job(slot, &job);
        }
    }

    fn tell_job(&mut self, slot: usize, job: &JobId) {
        let hosts = (0..self.jobs[job]).map(|host| PlannedHost {
            unit: self.zones.unit_of(&format!("host{host}")),
            refused: None,
        });
        let plan = Plan {
            hosts: hosts.collect(),
            limits: self.limits[job],
        };
        let clock = self.clock(slot);
        if let Some(node) = &mut self.slots[slot].node {
            node.handle_job(clock, job.clone(), plan);
        }
    }

    pub(super) fn cancel(&mut self, job: &str) {
        let key = Key::Cancel(JobId(job.to_owned()), "U".into());
        let _ = self.set(key, 0, Value::Cancel(crate::signed::Signed::default()));
    }

    /// Ends the faults. Nodes that are down come up, or never do.
    pub(super) fn heal(&mut self) {
        self.faults = Faults {
            loss: 0,
            nodes: false,
            ..self.faults
        };
        for slot in 0..self.slots.len() {
            self.slots[slot].cut_off = false;
            self.resume(slot);
            let others = self.slots.iter().filter(|slot| slot.node.is_some()).count();
            if self.slots[slot].node.is_none() {
                if others == 0 || self.pick(2) == 0 {
                    self.start(slot);
                } else {
                    self.slots[slot].is_gone = true;
                }
            }
        }
    }

    pub(super) fn kill(&mut self, slot: usize) {
        self.slots[slot].node = None;
        self.slots[slot].life += 1;
        self.slots[slot].waiting.clear();
        self.slots[slot].stopped = false;
        self.runs_end_with(slot);
    }

    pub(super) fn leave(&mut self, slot: usize) {
        self.step(slot, Node::leave);
        self.slots[slot].node = None;
        self.runs_end_with(slot);
    }

    pub(super) fn drain(&mut self, slot: usize) {
        self.step(slot, Node::drain);
    }

    pub(super) fn fill_disk(&mut self, slot: usize) {
        self.slots[slot].is_full = true;
    }

    /// Restores the bucket's state from this many writes ago.
    pub(super) fn restore(&mut self, writes: usize) {
        self.log.truncate(self.log.len() - writes);
        self.sequence = self.log.last().map_or(0, |entry| entry.revision);
        self.store.clear();
        for entry in &self.log {
            if let Some(value) = &entry.value {
                let value = (entry.revision, value.clone());
                self.store.insert(entry.key.clone(), value);
            }
        }
        for slot in 0..self.slots.len() {
            self.slots[slot].told = self.slots[slot].told.min(self.log.len());
        }
        self.look();
    }

    /// Lets each node ask for the bucket's last sequence number.
    pub(super) fn look(&mut self) {
        let last = self.sequence;
        for slot in 0..self.slots.len() {
            self.step(slot, |node, now| {
                node.handle_last_sequence(now, last, node.highest());
            });
        }
    }

    pub(super) fn units(&self) -> usize {
        usize::from(self.zones.shards)
    }

    pub(super) fn owned_by(&self, slot: usize) -> usize {
        let clock = self.clock(slot);
        self.slots[slot]
            .node
            .as_ref()
            .map_or(0, |node| node.observe(clock).held.len())
    }

    pub(super) fn owned_by_all(&self) -> usize {
        (0..self.slots.len()).map(|slot| self.owned_by(slot)).sum()
    }

    pub(super) fn executed_by(&self, slot: usize) -> usize {
        self.slots[slot].executed
    }

    pub(super) fn trouble(&self, slot: usize) -> Option<String> {
        let clock = self.clock(slot);
        self.slots[slot].node.as_ref()?.trouble(clock)
    }

    /// Returns the number of jobs that nodes keep in memory.
    pub(super) fn jobs_in_memory(&self) -> usize {
        let nodes = (0..self.slots.len()).filter_map(|slot| Some((slot, self.slots[slot].node.as_ref()?)));
        nodes.map(|(slot, node)| jobs_of(node, self.clock(slot))).sum()
    }

    pub(super) fn frozen(&self) -> Option<&str> {
        let nodes = self.slots.iter().filter_map(|slot| slot.node.as_ref());
        nodes.filter_map(Node::frozen).next()
    }

    pub(super) fn run_until(&mut self, end: Duration) {
        while let Some(next) = self.events.first_entry() {
            if next.key().0 > end {
                break;
            }
            let ((now, _), event) = next.remove_entry();
            self.now = now;
            self.happens(event);
        }
        self.now = end;
    }

    fn schedule(&mut self, delay: Duration, event: Event) {
        self.number += 1;
        self.events.insert((self.now + delay, self.number), event);
    }

    /// Returns a delay, usually short, sometimes long.
    fn delay(&mut self) -> Duration {
        let short = Duration::from_micros(self.random.random_range(200..20_000));
        match self.random.random_range(0..50) {
            0 => self.faults.delay.mul_f64(self.random.random_range(0.0..1.0)),
            _ => short,
        }
    }

    fn is_lost(&mut self, slot: usize) -> bool {
        self.slots[slot].cut_off || self.random.random_range(0..1_000) < self.faults.loss
    }

    fn clock(&self, slot: usize) -> Time {
        let (offset, rate) = self.slots[slot].clock;
        offset + self.now.mul_f64(rate)
    }

    fn start(&mut self, slot: usize) {
        let incarnation = self.random.random_range(0..u64::MAX);
        let this = &mut self.slots[slot];
        this.life += 1;
        let settings = NodeSettings {
            me: Holder {
                node: this.name.clone(),
                incarnation,
            },
            site: None,
            zones: self.zones.clone(),
            at_once: 6,
            version: "1".into(),
            terms: Terms::default(),
            keep: KEEP,
        };
        let intents = this.disk.values().cloned().collect();
        this.node = Some(Node::new(settings, intents));
        let life = (slot, this.life);
        self.schedule(Duration::from_millis(50), Event::Sync(life));
    }

    fn resume(&mut self, slot: usize) {
        self.slots[slot].stopped = false;
        self.streams.continued.insert(slot, self.now);
        for event in std::mem::take(&mut self.slots[slot].waiting) {
            self.schedule(Duration::from_micros(1), event);
        }
    }

    fn happens(&mut self, event: Event) {
        match &event {
            Event::ToNode(life, _)
            | Event::News(life)
            | Event::Sync(life)
            | Event::Tick(life)
            | Event::Returns(life, ..)
            | Event::Stream(
                life,
                streams::StreamEvent::Ends(..)
                | streams::StreamEvent::Tell
                | streams::StreamEvent::EndWritten(..),
            ) => {
                let slot = &mut self.slots[life.0];
                if slot.life != life.1 || slot.node.is_none() {
                    if let Event::Returns(_, intent, _) = &event {
                        *self.busy.get_mut(&intent.job).unwrap() -= 1;
                    }
                    return;
                }
                if slot.stopped {
                    slot.waiting.push(event);
                    return;
                }
            }
            _ => {}
        }
        match event {
            Event::ToStore(life, token, key, expected, value) => {
                self.at_store(life, token, key, expected, value);
            }
            Event::ToNode((slot, _), input) => self.at_node(slot, input),
            Event::News((slot, life)) => self.news(slot, life),
            Event::Sync((slot, life)) => self.sync(slot, life),
            Event::Tick((slot, life)) => {
                self.schedule(Duration::from_millis(250), Event::Tick((slot, life)));
                self.step(slot, Node::handle_tick);
            }
            Event::Arrives(life, intent) => self.arrives(life, intent),
            Event::Returns(life, intent, status) => {
                *self.busy.get_mut(&intent.job).unwrap() -= 1;
                self.schedule(
                    Duration::from_micros(10),
                    Event::ToNode(life, Input::Executed(intent, status)),
                );
            }
            Event::Stream(life, event) => self.stream_happens(life, event),
            Event::Mischief => self.mischief(),
            Event::Start(slot) => {
                if self.slots[slot].node.is_none() && !self.slots[slot].is_gone {
                    self.start(slot);
                }
            }
            Event::Continue(slot) => self.resume(slot),
            Event::Reconnect(slot) => self.slots[slot].cut_off = false,
        }
    }

    fn mischief(&mut self) {
        if !self.faults.nodes {
            return;
        }
        let slot = self.pick(self.slots.len());
        let back = Duration::from_millis(self.random.random_range(100..40_000));
        match self.pick(3) {
            0 => {
                self.kill(slot);
                self.schedule(back, Event::Start(slot));
            }
            1 => {
                self.slots[slot].stopped = true;
                self.schedule(back, Event::Continue(slot));
            }
            _ => {
                self.slots[slot].cut_off = true;
                self.schedule(back, Event::Reconnect(slot));
            }
        }
        let next = Duration::from_millis(self.random.random_range(500..15_000));
        self.schedule(next, Event::Mischief);
    }

    fn sync(&mut self, slot: usize, life: u64) {
        let jobs: Vec<JobId> = self.jobs.keys().cloned().collect();
        for job in jobs {
            self.tell_job(slot, &job);
        }
        self.tell_streams(slot);
        self.slots[slot].told = self.log.len();
        let standing: Vec<Entry> = self
            .store
            .iter()
            .map(|(key, (revision, value))| Entry {
                key: key.clone(),
                revision: *revision,
                value: Some(value.clone()),
            })
            .collect();
        self.step(slot, |node, now| {
            for entry in standing {
                node.handle_entry(now, entry);
            }
            node.handle_synced();
        });
        self.schedule(Duration::from_millis(250), Event::Tick((slot, life)));
    }

    fn news(&mut self, slot: usize, life: u64) {
        if self.slots[slot].cut_off {
            self.schedule(Duration::from_millis(500), Event::News((slot, life)));
            return;
        }
        let told = self.slots[slot].told;
        // Occasionally repeats some of it.
        let from = match self.random.random_range(0..20) {
            0 => told.saturating_sub(10),
            _ => told,
        };
        self.slots[slot].told = self.log.len();
        let news = self.log[from..].to_vec();
        self.step(slot, |node, now| {
            for entry in news {
                node.handle_entry(now, entry);
            }
        });
    }

    fn at_node(&mut self, slot: usize, input: Input) {
        match input {
            Input::Written(token, written) => {
                self.step(slot, |node, now| node.handle_written(now, token, written));
            }
            Input::Intended(intent, intended) => {
                if intended == Intended::Noted {
                    let place = (intent.job.clone(), intent.host);
                    self.slots[slot].disk.insert(place, (intent.clone(), None));
                }
                self.step(slot, |node, now| node.handle_intended(now, &intent, intended));
            }
            Input::Executed(intent, status) => {
                self.step(slot, |node, now| {
                    let exit = Exit::Status(status);
                    node.handle_executed(now, intent, Returned { exit, output: 0 });
                });
            }
        }
    }

    /// Compares and sets; returns the current value if that fails.
    fn set(&mut self, key: Key, expected: u64, value: Value) -> Written {
        let standing = self.store.get(&key);
        if standing.map_or(0, |(revision, _)| *revision) != expected {
            return Written::Refused(standing.map(|(revision, value)| Entry {
                key,
                revision: *revision,
                value: Some(value.clone()),
            }));
        }
        self.sequence += 1;
        let revision = self.sequence;
        self.store.insert(key.clone(), (revision, value.clone()));
        self.log.push(Entry {
            key,
            revision,
            value: Some(value),
        });
        for slot in 0..self.slots.len() {
            let life = (slot, self.slots[slot].life);
            let delay = self.delay();
            self.schedule(delay, Event::News(life));
        }
        Written::Done(revision)
    }

    fn at_store(&mut self, life: Life, token: Token, key: Key, expected: u64, value: Value) {
        let written = self.set(key, expected, value);
        if !self.is_lost(life.0) {
            let delay = self.delay();
            self.schedule(delay, Event::ToNode(life, Input::Written(token, written)));
        }
    }

    fn arrives(&mut self, life: Life, intent: Intent) {
        // Messages of a killed process may or may not arrive.
        if self.slots[life.0].life != life.1 && self.pick(2) == 0 {
            return;
        }
        let status = match self.random.random_range(0..4) {
            0 => u32::try_from(self.number % 200).unwrap() + 1,
            _ => 0,
        };
        let executions = self.ledger.entry((intent.job.clone(), intent.host)).or_default();
        executions.push(status);
        let busy = self.busy.entry(intent.job.clone()).or_default();
        *busy += 1;
        let busiest = self.busiest.entry(intent.job.clone()).or_default();
        *busiest = (*busiest).max(*busy);
        let longest = if self.pick(5) == 0 { 30_000 } else { 2_000 };
        let takes = Duration::from_millis(self.random.random_range(1..longest));
        self.schedule(takes, Event::Returns(life, intent, status));
    }

    /// Runs an event on a node, and performs its actions.
    fn step(&mut self, slot: usize, what: impl FnOnce(&mut Node, Time)) {
        let clock = self.clock(slot);
        let Some(mut node) = self.slots[slot].node.take() else {
            return;
        };
        what(&mut node, clock);
        let life = (slot, self.slots[slot].life);
        while let Some(action) = node.poll_action(clock) {
            self.acts(life, action);
        }
        self.slots[slot].node = Some(node);
    }

    fn acts(&mut self, life: Life, action: Action) {
        let slot = life.0;
        match action {
            Action::Write {
                token,
                key,
                expected,
                value,
            } => {
                if !self.is_lost(slot) {
                    let delay = self.delay();
                    self.schedule(delay, Event::ToStore(life, token, key, expected, value));
                }
                // Counts as lost after this time unless an answer arrives first.
                let lost = Event::ToNode(life, Input::Written(token, Written::Lost));
                self.schedule(Duration::from_secs(2), lost);
            }
            Action::Intend(intent) => {
                let place = (intent.job.clone(), intent.host);
                let intended = match () {
                    () if self.slots[slot].is_full => Intended::Failed("No space left on device".into()),
                    () if self.slots[slot].done.contains(&place) => Intended::Before,
                    () => Intended::Noted,
                };
                let takes = Duration::from_micros(self.random.random_range(100..20_000));
                self.schedule(takes, Event::ToNode(life, Input::Intended(intent, intended)));
            }
            Action::Execute(intent) => {
                let unit = self.zones.unit_of(&format!("host{}", intent.host));
                let Some((_, Value::Lease(lease))) = self.store.get(&Key::Lease(unit)) else {
                    panic!("a command is started without a lease");
                };
                assert!(
                    lease.holder.as_ref() == Some(&intent.claim.holder) || self.faults.skew > 0.1,
                    "a command is started under somebody else's lease"
                );
                self.slots[slot].executed += 1;
                let takes = Duration::from_micros(self.random.random_range(500..100_000));
                self.schedule(takes, Event::Arrives(life, intent));
            }
            Action::Note(intent, returned) => {
                let place = (intent.job.clone(), intent.host);
                self.slots[slot].done.insert(place.clone());
                self.slots[slot].disk.insert(place, (intent, Some(returned)));
            }
            Action::Close(intent) => {
                self.slots[slot].disk.remove(&(intent.job.clone(), intent.host));
            }
            // The command ends in its own time.
            Action::Cancel(_) => {}
            Action::Forget(_) => {}
            Action::Stream(action) => self.acts_for_stream(life, action),
        }
    }
}

/// Returns the number of jobs that a node keeps in memory.
pub(super) fn jobs_of(node: &Node, now: Time) -> usize {
    let observed = node.observe(now);
    observed.jobs_unread + observed.jobs_open
}
