//! A node's view of itself for its metrics.

use std::collections::{BTreeMap, BTreeSet};

use super::{Node, Stage, Time, Unit};
use crate::state::Holder;

/// The state of a node at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observed {
    /// The nodes that were heard from recently, including this one: those in trouble, those that are draining, and the
    /// others.
    pub members: Members,
    /// The units that it holds.
    pub held: BTreeSet<Unit>,
    /// The time until the first lease that it holds ends.
    pub lease_ends_in: Option<Time>,
    /// The number of jobs that are not completely read.
    pub jobs_unread: usize,
    /// The number of jobs with hosts that are not settled.
    pub jobs_open: usize,
    /// The number of finished jobs.
    pub jobs_done: usize,
    /// Hosts that this process has started, by their progress.
    pub intents: Intents,
    /// The highest revision seen.
    pub highest: u64,
    /// True if nothing is started in the whole fleet.
    pub is_frozen: bool,
    /// True if this node starts nothing, for any reason.
    pub is_in_trouble: bool,
    /// True if it takes no more hosts.
    pub is_draining: bool,
}

/// The number of members.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Members {
    /// Members that take hosts.
    pub up: usize,
    /// Members that give theirs away.
    pub draining: usize,
    /// Members that start nothing.
    pub in_trouble: usize,
}

/// The number of intents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Intents {
    /// Those that wait for the disk.
    pub disk: usize,
    /// Those that wait for their claim.
    pub claim: usize,
    /// Those that are being executed.
    pub execution: usize,
    /// Those with an outcome that still has to be reported to the fleet.
    pub result: usize,
}

impl Node {
    /// Counts everything.
    pub(crate) fn observe(&self, now: Time) -> Observed {
        let mut members = Members::default();
        for (_, member) in self.members(now) {
            *match () {
                () if member.trouble.is_some() => &mut members.in_trouble,
                () if member.draining => &mut members.draining,
                () => &mut members.up,
            } += 1;
        }
        let mut intents = Intents::default();
        for mine in self.mine.values() {
            *match mine.stage {
                Stage::Intending => &mut intents.disk,
                Stage::Claiming(_) => &mut intents.claim,
                Stage::Executing { .. } => &mut intents.execution,
                Stage::Settling(..) => &mut intents.result,
            } += 1;
        }
        let held = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.held_revision(now).is_some());
        let held: BTreeMap<_, _> = held.collect();
        let leases = held.values().copied().chain([&self.name]);
        let unread = self.jobs.values().filter(|job| job.plan.is_none()).count();
        Observed {
            members,
            lease_ends_in: leases.filter_map(|lease| lease.held_for(now)).min(),
            held: held.into_keys().cloned().collect(),
            jobs_unread: unread,
            jobs_open: self.jobs.len() - unread,
            jobs_done: self.done.len(),
            intents,
            highest: self.highest,
            is_frozen: self.frozen.is_some(),
            is_in_trouble: self.trouble(now).is_some(),
            is_draining: self.is_draining,
        }
    }

    /// Returns the holder of a unit, as far as it is known. `None` if nothing was ever there.
    pub(crate) fn holder_of(&self, unit: &Unit) -> Option<Option<&Holder>> {
        let lease = self.leases.get(unit)?;
        lease.is_known().then(|| lease.holder())
    }

    /// Returns this process as a holder.
    pub(crate) fn holder(&self) -> &Holder {
        &self.settings.me
    }

    /// Returns this node's name.
    pub(crate) fn name(&self) -> &str {
        &self.settings.me.node
    }

    /// Returns true if it takes no more hosts.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }
}
