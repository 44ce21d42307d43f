//! One key that a node holds for a time, or wants to hold: a shard, or its own name.
//!
//! Clocks of different nodes are never compared. The holder counts from the time when it *sent* the acknowledged write;
//! all others count from the time when they *saw* that write, which is later. So the holder knows that its lease has
//! ended before anybody can take it, as long as clock speeds differ by less than a third.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Time;
use super::entry::Holder;

/// The time settings of leases, the same in the whole fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The life of a lease without renewal.
    pub ttl: Duration,
    /// The interval between renewals.
    pub renew: Duration,
    /// The time before the end of its lease when a holder stops starting commands.
    pub margin: Duration,
}

impl Default for Terms {
    /// Returns terms with which a lost node is replaced within 20 s, and a node that is slow for some seconds loses
    /// nothing.
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(15),
            renew: Duration::from_secs(5),
            margin: Duration::from_secs(5),
        }
    }
}

/// A node's knowledge of a leased key.
#[derive(Debug, Clone, Default)]
pub struct LeaseState {
    terms: Terms,
    seen: Option<Seen>,
    held: Option<Held>,
    /// True while the answer to a write is awaited.
    in_flight: bool,
    /// The time of the first write with an unknown outcome: one of these writes may have succeeded.
    unresolved: Option<Time>,
    /// The number of times in a row that the key disappeared while it was held.
    losses: u32,
}

#[derive(Debug, Clone)]
struct Seen {
    revision: u64,
    holder: Option<Holder>,
    at: Time,
    /// True if the holder has been seen to renew it.
    is_renewed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    /// The last known revision.
    revision: u64,
    /// The time of the last write that is known to have succeeded.
    since: Time,
    /// The time of the last write, whatever its outcome.
    tried: Time,
}

impl LeaseState {
    /// Makes the state of a key about which nothing is known yet.
    pub fn new(terms: Terms) -> Self {
        Self {
            terms,
            ..Self::default()
        }
    }

    /// Notes the holder that the bucket reports. Values that were seen already, or are older, are ignored.
    pub fn saw(&mut self, now: Time, revision: u64, holder: Option<&Holder>, me: &Holder) {
        if self.seen.as_ref().is_some_and(|seen| seen.revision >= revision) {
            return;
        }
        let is_renewed = self
            .seen
            .as_ref()
            .is_some_and(|seen| seen.holder.as_ref() == holder);
        self.seen = Some(Seen {
            revision,
            holder: holder.cloned(),
            at: now,
            is_renewed,
        });
        if holder == Some(me) {
            // This comes from a write whose answer has not arrived, or was lost.
            match (&mut self.held, self.unresolved) {
                (Some(held), _) => held.revision = held.revision.max(revision),
                (None, Some(first)) => {
                    self.held = Some(Held {
                        revision,
                        since: first,
                        tried: first,
                    });
                }
                (None, None) => {}
            }
        } else if self.held.is_some_and(|held| held.revision < revision) {
            self.held = None;
        }
    }

    /// Notes that the key is gone. Returns true if the bucket has now, twice in a row, lost a write that it had just
    /// acknowledged. Once is not enough: the bucket drops old keys, and a server that has just become the leader can be
    /// behind for a moment.
    pub fn note_vanished(&mut self, now: Time) -> bool {
        let losses = self.losses + u32::from(self.held_revision(now).is_some());
        *self = Self {
            losses,
            ..Self::new(self.terms)
        };
        losses >= 2
    }

    pub fn note_sent(&mut self, now: Time) {
        self.in_flight = true;
        self.unresolved.get_or_insert(now);
        if let Some(held) = &mut self.held {
            held.tried = now;
        }
    }

    /// Notes that the write sent at that time has succeeded.
    pub fn note_written(&mut self, now: Time, sent: Time, revision: u64, me: &Holder) {
        self.in_flight = false;
        self.unresolved = None;
        if self.seen.as_ref().is_some_and(|seen| seen.revision > revision) {
            // Another node has taken it since.
            return;
        }
        if self.held.is_some() {
            self.losses = 0;
        }
        self.saw(now, revision, Some(me), me);
        self.held = Some(Held {
            revision,
            since: sent,
            tried: sent,
        });
    }

    /// Notes that the write was refused: there is another value, which is reported separately.
    pub fn note_refused(&mut self) {
        self.in_flight = false;
    }

    /// Notes that the outcome of the write is unknown.
    pub fn note_lost(&mut self) {
        self.in_flight = false;
    }

    /// Notes that the lease was given back, or is being given back.
    pub fn give_up(&mut self) {
        self.held = None;
        self.unresolved = None;
    }

    /// Returns the revision that a write to take the lease must expect (0: nothing there), if the lease is free or its
    /// holder is overdue.
    pub fn takeable(&self, now: Time, me: &Holder) -> Option<u64> {
        if self.held.is_some() || self.in_flight {
            return None;
        }
        match &self.seen {
            None => Some(0),
            Some(seen) => {
                let is_free = seen.holder.is_none() || seen.holder.as_ref() == Some(me);
                (is_free || !self.is_live(now)).then_some(seen.revision)
            }
        }
    }

    /// Returns the revision that a renewing write must expect, if it is time to renew.
    pub fn renewable(&self, now: Time) -> Option<u64> {
        let held = self.held.filter(|_| !self.in_flight)?;
        (now >= held.tried + self.terms.renew
            || (held.tried > held.since && now >= held.tried + self.terms.renew / 5))
            .then_some(held.revision)
    }

    /// Returns true if the holder, whoever it is, was heard from within the life of a lease.
    pub fn is_live(&self, now: Time) -> bool {
        let seen = self.seen.as_ref();
        seen.is_some_and(|seen| seen.holder.is_some() && now < seen.at + self.terms.ttl)
    }

    /// Returns the revision that this node holds, if its lease has not ended.
    pub fn held_revision(&self, now: Time) -> Option<u64> {
        let held = self.held.filter(|held| now < held.since + self.terms.ttl)?;
        Some(held.revision)
    }

    /// Returns the revision under which a command may be started now: the fencing token.
    pub fn may_start(&self, now: Time) -> Option<u64> {
        let held = self
            .held
            .filter(|held| now + self.terms.margin < held.since + self.terms.ttl)?;
        Some(held.revision)
    }

    /// Returns the revision under which a command may keep running now. It must end before another node starts it, so
    /// its holder needs some time to end it.
    pub fn may_go_on(&self, now: Time) -> Option<u64> {
        let ending = self.terms.margin.mul_f64(0.6);
        let held = self
            .held
            .filter(|held| now + ending < held.since + self.terms.ttl)?;
        Some(held.revision)
    }

    /// Gives up a lease whose end has come.
    pub fn expire(&mut self, now: Time) {
        if self.held.is_some() && self.held_revision(now).is_none() {
            self.give_up();
        }
    }

    /// Returns true if the holder has been seen to renew the lease, which shows that it is alive.
    pub fn is_renewed(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.is_renewed)
    }

    /// Returns the time until the lease ends, if nobody renews it.
    pub fn ends_in(&self, now: Time) -> Duration {
        let end = self.seen.as_ref().map_or(now, |seen| seen.at + self.terms.ttl);
        end.saturating_sub(now)
    }

    /// Returns the remaining time for which this node holds the lease, without renewal.
    pub fn held_for(&self, now: Time) -> Option<Duration> {
        let held = self.held?;
        (held.since + self.terms.ttl)
            .checked_sub(now)
            .filter(|rest| !rest.is_zero())
    }

    /// Returns true if any value has been seen.
    pub fn is_known(&self) -> bool {
        self.seen.is_some()
    }

    /// Returns its holder, as far as it is known.
    pub fn holder(&self) -> Option<&Holder> {
        self.seen.as_ref().and_then(|seen| seen.holder.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(node: &str) -> Holder {
        Holder {
            node: node.into(),
            incarnation: 1,
        }
    }

    const fn s(seconds: u64) -> Time {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_holder_stops_before_anybody_can_take_it() {
        let (a, b) = (holder("a"), holder("b"));
        let mut own = LeaseState::default();
        assert_eq!(own.takeable(s(0), &a), Some(0));
        own.note_sent(s(0));
        own.note_written(s(2), s(0), 7, &a);
        assert_eq!(own.may_start(s(9)), Some(7));
        assert_eq!(own.may_start(s(10)), None);
        assert_eq!(own.may_go_on(s(11)), Some(7));
        assert_eq!(own.may_go_on(s(12)), None);
        assert_eq!(own.held_revision(s(14)), Some(7));
        assert_eq!(own.held_revision(s(15)), None);

        let mut other = LeaseState::default();
        other.saw(s(1), 7, Some(&a), &b);
        assert_eq!(other.takeable(s(15), &b), None);
        assert_eq!(other.takeable(s(16), &b), Some(7));
    }

    #[test]
    fn what_was_renewed_lasts_and_what_was_given_back_is_free() {
        let (a, b) = (holder("a"), holder("b"));
        let mut own = LeaseState::default();
        own.note_sent(s(0));
        own.note_written(s(0), s(0), 1, &a);
        assert_eq!(own.renewable(s(4)), None);
        assert_eq!(own.renewable(s(5)), Some(1));
        own.note_sent(s(5));
        assert_eq!(own.renewable(s(6)), None);
        own.note_lost();
        assert_eq!(own.renewable(s(6)), Some(1));
        // The write succeeded after all: the revision is known, but the lease does not become longer.
        own.saw(s(7), 2, Some(&a), &a);
        assert_eq!(own.renewable(s(7)), Some(2));
        assert_eq!(own.held_revision(s(15)), None);

        let mut other = LeaseState::default();
        other.saw(s(0), 2, Some(&a), &b);
        other.saw(s(1), 3, None, &b);
        other.saw(s(2), 2, Some(&a), &b);
        assert_eq!(other.takeable(s(2), &b), Some(3));
    }
}
