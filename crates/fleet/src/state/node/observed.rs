//! A node's view of itself for its metrics.

use std::collections::{BTreeMap, BTreeSet};

use super::{Node, Stage, Time, Unit};
use crate::state::Holder;

/// A node at a moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observed {
    /// The nodes that have been heard of lately, this one included: those in trouble, those that are draining, the others.
    pub members: Members,
    /// The units that it holds.
    pub held: BTreeSet<Unit>,
    /// The time until the first lease that it holds ends.
    pub lease_ends_in: Option<Time>,
    /// Jobs of which not everything has been read.
    pub jobs_unread: usize,
    /// Jobs with hosts that are not settled.
    pub jobs_open: usize,
    /// Jobs of which nothing more is to be known.
    pub jobs_done: usize,
    /// Hosts that this process has begun, by how far they have come.
    pub intents: Intents,
    /// The highest revision seen.
    pub highest: u64,
    /// Whether nothing is started in the whole fleet.
    pub is_frozen: bool,
    /// Whether it starts nothing, for whatever reason.
    pub is_in_trouble: bool,
    /// Whether it takes no more hosts.
    pub is_draining: bool,
}

/// The number of members.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Members {
    /// Those that take hosts.
    pub up: usize,
    /// Those that give theirs away.
    pub draining: usize,
    /// Those that start nothing.
    pub in_trouble: usize,
}

/// The number of intents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Intents {
    /// They wait for the disk.
    pub disk: usize,
    /// They wait for their claim.
    pub claim: usize,
    /// They are being executed.
    pub execution: usize,
    /// The fleet is to be told what became of them.
    pub result: usize,
}

impl Node {
    /// All that is counted.
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

    /// Returns the holder of a unit, as far as is known: `None` where nothing has ever stood there.
    pub(crate) fn holder_of(&self, unit: &Unit) -> Option<Option<&Holder>> {
        let lease = self.leases.get(unit)?;
        lease.is_known().then(|| lease.holder())
    }

    /// The process that it is.
    pub(crate) fn holder(&self) -> &Holder {
        &self.settings.me
    }

    /// This node's name.
    pub(crate) fn name(&self) -> &str {
        &self.settings.me.node
    }

    /// Returns whether it takes no more hosts.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }
}
