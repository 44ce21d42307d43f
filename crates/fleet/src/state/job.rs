//! A job: its hosts, their known fates, and the number of them that may start.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::Time;
use super::entry::{Fate, Gate};
use super::shard::Unit;

/// The limits for all hosts of a job together, wherever they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The number of hosts that run at the same time, at least 1.
    pub at_once: u32,
    /// The number of hosts in a batch, at least 1. A batch starts when the one before has ended.
    pub batch: u32,
    /// The number of failures after which no more hosts are started.
    pub failures: Option<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            at_once: u32::MAX,
            batch: u32::MAX,
            failures: None,
        }
    }
}

/// A job, as this node has read and checked it.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Its hosts, in their order.
    pub hosts: Vec<PlannedHost>,
    /// The limits for all of them.
    pub limits: Limits,
}

/// A host of a job.
#[derive(Debug, Clone)]
pub struct PlannedHost {
    /// The unit that it belongs to.
    pub unit: Unit,
    /// The reason why this node does not start it, as a sentence, if there is one.
    pub refused: Option<String>,
}

/// A job, and everything that is known about it.
#[derive(Debug, Default)]
pub(super) struct Job {
    /// `None` until it is read.
    pub(super) plan: Option<Plan>,
    /// Hosts that are not settled. Together with [`Self::unclaimed`] and [`Self::claimed_hosts`], this avoids a search
    /// through all hosts each time one of them changes.
    unsettled: BTreeSet<u32>,
    /// Unsettled hosts that nobody has claimed, by their unit.
    unclaimed: BTreeMap<Unit, BTreeSet<u32>>,
    /// Unsettled hosts that somebody has claimed.
    claimed: BTreeSet<u32>,
    /// True if this node refuses any of the hosts.
    pub(super) has_refused: bool,
    /// The number of failures: hosts that failed, did not start, or may have started.
    failed: usize,
    fates: HashMap<u32, (u64, Fate)>,
    gate: Option<(u64, Gate)>,
    pub(super) is_cancelled: bool,
    /// The time when this process first heard of the job.
    pub(super) since: Time,
}

impl Job {
    pub(super) fn new(now: Time) -> Self {
        Self {
            since: now,
            ..Self::default()
        }
    }

    pub(super) fn set_plan(&mut self, plan: Plan) {
        let hosts = plan.hosts.len();
        self.has_refused = plan.hosts.iter().any(|host| host.refused.is_some());
        self.plan = Some(plan);
        for host in (0..).take(hosts) {
            self.file(host);
        }
    }

    /// Puts a host into the right sets, according to its fate.
    fn file(&mut self, host: u32) {
        let Some(unit) = self.host(host).map(|planned| planned.unit.clone()) else {
            return;
        };
        let fate = self.fates.get(&host).map(|(_, fate)| fate);
        let is_unclaimed = fate.is_none();
        let is_unsettled = fate.is_none_or(|fate| !fate.is_settled());
        let put = |set: &mut BTreeSet<u32>, belongs: bool| match belongs {
            true => set.insert(host),
            false => set.remove(&host),
        };
        put(&mut self.unsettled, is_unsettled);
        put(&mut self.claimed, is_unsettled && !is_unclaimed);
        let of_unit = self.unclaimed.entry(unit.clone()).or_default();
        put(of_unit, is_unclaimed);
        if of_unit.is_empty() {
            self.unclaimed.remove(&unit);
        }
    }

    /// Returns the units with hosts that nobody has claimed.
    pub(super) fn unclaimed_units(&self) -> Vec<Unit> {
        self.unclaimed.keys().cloned().collect()
    }

    /// Returns the first unclaimed host of a unit, starting at `from`.
    pub(super) fn unclaimed_from(&self, unit: &Unit, from: u32) -> Option<u32> {
        self.unclaimed.get(unit)?.range(from..).next().copied()
    }

    /// Returns the claimed hosts that are not settled.
    pub(super) fn claimed_hosts(&self) -> Vec<u32> {
        self.claimed.iter().copied().collect()
    }

    /// Returns true if the job was read and all of its hosts are settled.
    pub(super) fn is_settled(&self) -> bool {
        self.plan.is_some() && self.unsettled.is_empty()
    }

    /// Takes over a new check of the hosts that may start.
    pub(super) fn apply_judgement(&mut self, refused: Vec<Option<String>>) {
        self.has_refused = refused.iter().any(Option::is_some);
        let hosts = self.plan.iter_mut().flat_map(|plan| &mut plan.hosts);
        for (host, refused) in hosts.zip(refused) {
            host.refused = refused;
        }
    }

    pub(super) fn host(&self, host: u32) -> Option<&PlannedHost> {
        let plan = self.plan.as_ref()?;
        plan.hosts.get(usize::try_from(host).ok()?)
    }

    pub(super) fn fate(&self, host: u32) -> Option<(u64, &Fate)> {
        self.fates.get(&host).map(|(revision, fate)| (*revision, fate))
    }

    pub(super) fn saw_fate(&mut self, host: u32, revision: u64, fate: Fate) {
        if self.fates.get(&host).is_none_or(|(seen, _)| *seen < revision) {
            self.failed += usize::from(has_failed(&fate));
            let before = self.fates.insert(host, (revision, fate));
            self.forgot(before.as_ref());
            self.file(host);
        }
    }

    pub(super) fn fate_vanished(&mut self, host: u32) {
        let before = self.fates.remove(&host);
        self.forgot(before.as_ref());
        self.file(host);
    }

    fn forgot(&mut self, fate: Option<&(u64, Fate)>) {
        self.failed -= usize::from(fate.is_some_and(|(_, fate)| has_failed(fate)));
    }

    pub(super) fn saw_gate(&mut self, revision: u64, gate: Gate) {
        if self.gate.as_ref().is_none_or(|(seen, _)| *seen < revision) {
            self.gate = Some((revision, gate));
        }
    }

    /// Returns the gate's revision; 0 if there is no gate yet.
    pub(super) fn gate_revision(&self) -> u64 {
        self.gate.as_ref().map_or(0, |(revision, _)| *revision)
    }

    /// Returns the number of hosts that may start, and the reason why no more may start, if there is one.
    pub(super) fn released_hosts(&self) -> (u32, Option<&str>) {
        match (&self.gate, &self.plan) {
            (Some((_, gate)), _) => (gate.released, gate.stop.as_deref()),
            (None, Some(plan)) => (plan.first(), None),
            (None, None) => (0, None),
        }
    }

    /// Returns the gate as it should be now, if that differs from the current one. A gate only opens further, and a
    /// stop is final.
    pub(super) fn due_gate(&self) -> Option<Gate> {
        let plan = self.plan.as_ref()?;
        let (released, stop) = self.released_hosts();
        if stop.is_some() {
            return None;
        }
        let Limits {
            at_once,
            batch,
            failures,
        } = plan.limits;
        if failures.is_some_and(|most| self.failed > usize::try_from(most).unwrap_or(usize::MAX)) {
            let gate = Gate {
                released,
                stop: Some("too many other hosts had failed".into()),
            };
            return Some(gate);
        }
        let total = plan.total();
        if released >= total {
            return None;
        }
        let mut released_and_open = self.unsettled.range(..released).copied();
        let first_open = released_and_open.next();
        let others = u32::try_from(released_and_open.count()).unwrap_or(u32::MAX);
        let busy = others.saturating_add(u32::from(first_open.is_some()));
        let by_jobs = released.saturating_add(at_once.saturating_sub(busy));
        let begun = first_open.unwrap_or(released) / batch.max(1);
        let by_batch = batch.max(1).saturating_mul(begun.saturating_add(1));
        let due = total.min(by_jobs).min(by_batch);
        (due > released).then_some(Gate {
            released: due,
            stop: None,
        })
    }
}

fn has_failed(fate: &Fate) -> bool {
    match fate {
        Fate::Claimed(_) => false,
        Fate::Ended { returned, .. } => !returned.exit.is_success(),
        Fate::NotStarted { .. } | Fate::Unknown { .. } => true,
    }
}

impl Plan {
    fn total(&self) -> u32 {
        u32::try_from(self.hosts.len()).unwrap_or(u32::MAX)
    }

    /// Returns the number of hosts that may start before there is a gate.
    fn first(&self) -> u32 {
        let Limits { at_once, batch, .. } = self.limits;
        self.total().min(at_once.max(1)).min(batch.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::{Claim, Exit, Holder, Returned};
    use super::*;

    fn job(hosts: usize, limits: Limits) -> Job {
        let unit = Unit { site: None, shard: 0 };
        let host = PlannedHost { unit, refused: None };
        let mut job = Job::default();
        job.set_plan(Plan {
            hosts: vec![host; hosts],
            limits,
        });
        job
    }

    fn end(job: &mut Job, host: u32, status: u32) {
        let holder = Holder {
            node: "a".into(),
            incarnation: 1,
        };
        let claim = Claim {
            holder,
            intent: 1,
            fence: 1,
        };
        let returned = Returned {
            exit: Exit::Status(status),
            output: 0,
        };
        job.saw_fate(host, u64::from(host) + 100, Fate::Ended { claim, returned });
    }

    #[test]
    fn no_more_hosts_run_at_once_than_may() {
        let mut job = job(
            5,
            Limits {
                at_once: 2,
                ..Limits::default()
            },
        );
        assert_eq!(job.released_hosts(), (2, None));
        assert_eq!(job.due_gate(), None);
        end(&mut job, 1, 0);
        let gate = job.due_gate().unwrap();
        assert_eq!(gate.released, 3);
        job.saw_gate(1, gate);
        end(&mut job, 0, 1);
        end(&mut job, 2, 0);
        assert_eq!(job.due_gate().unwrap().released, 5);
    }

    #[test]
    fn a_batch_begins_when_the_one_before_has_ended() {
        let mut job = job(
            5,
            Limits {
                batch: 2,
                ..Limits::default()
            },
        );
        assert_eq!(job.released_hosts(), (2, None));
        end(&mut job, 0, 0);
        assert_eq!(job.due_gate(), None);
        end(&mut job, 1, 0);
        assert_eq!(job.due_gate().unwrap().released, 4);
    }

    #[test]
    fn too_many_failures_stop_it_for_good() {
        let limits = Limits {
            at_once: 1,
            failures: Some(1),
            ..Limits::default()
        };
        let mut job = job(5, limits);
        end(&mut job, 0, 1);
        assert_eq!(job.due_gate().unwrap().stop, None);
        end(&mut job, 1, 1);
        let gate = job.due_gate().unwrap();
        assert!(gate.stop.is_some());
        job.saw_gate(1, gate);
        assert_eq!(job.due_gate(), None);
    }
}
