//! [`NameBudget`]: how much memory the names of listings take.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The memory limit for names that servers list, in all walks and copies that share it: names that were asked for, that wait
/// to be taken, directories that wait to be read, and what copies keep. A server may make up names without end, and many
/// servers may.
///
/// Nobody waits for another's part. A walk that finds it used up asks for one answer at a time, once all was taken that it has
/// told; what a copy keeps is written to a temporary file, or asked for again. So each of them can end, whatever the others
/// hold.
#[derive(Clone)]
pub struct NameBudget(Arc<Budget>);

struct Budget {
    most: usize,
    taken: AtomicUsize,
    kept: AtomicUsize,
    spooled: AtomicUsize,
}

/// So many times the limit may be in temporary files.
const SPOOLED: usize = 16;

/// For whoever says nothing else.
const MOST: usize = 64 * 1024 * 1024;

impl NameBudget {
    /// So many bytes.
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Budget {
            most,
            taken: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            spooled: AtomicUsize::new(0),
        }))
    }

    /// Returns the limit.
    pub fn most(&self) -> usize {
        self.0.most
    }

    /// Returns the used part of it. It may be more for as long as an answer takes that was larger than any before.
    pub fn taken(&self) -> usize {
        self.0.taken.load(Ordering::Relaxed)
    }

    /// Returns what is kept of names that were processed.
    pub fn kept_bytes(&self) -> usize {
        self.0.kept.load(Ordering::Relaxed)
    }

    /// Returns whether there is room for names that can be asked for later as well: half is left for what cannot be put
    /// off.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        let room = (self.0.most.saturating_sub(self.kept_bytes()) / 2).max(self.0.most / 8);
        self.taken().saturating_add(bytes) <= room
    }

    /// Takes so many bytes for what can be kept elsewhere as well, until they are [given back](Self::give_back); a quarter is
    /// left for what cannot. Returns whether there was room for them.
    pub fn keep(&self, bytes: usize) -> bool {
        self.keep_within(bytes, (self.0.most / 4 * 3).saturating_sub(self.taken()))
    }

    /// The same for what has to be in memory, whatever listings hold for the moment: a copy that has no room for it fails.
    pub fn must_keep(&self, bytes: usize) -> bool {
        self.keep_within(bytes, self.0.most)
    }

    fn keep_within(&self, bytes: usize, most: usize) -> bool {
        let add = |kept: usize| kept.checked_add(bytes).filter(|kept| *kept <= most);
        self.0
            .kept
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .is_ok()
    }

    /// Gives back what was kept.
    pub fn give_back(&self, bytes: usize) {
        self.0.kept.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Takes so many bytes of temporary files: sixteen times the limit, for all who share it. Returns whether there was room.
    pub fn spool(&self, bytes: usize) -> bool {
        let most = self.0.most.saturating_mul(SPOOLED);
        let add = |spooled: usize| spooled.checked_add(bytes).filter(|spooled| *spooled <= most);
        self.0
            .spooled
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .is_ok()
    }

    /// Gives back what temporary files took.
    pub fn unspool(&self, bytes: usize) {
        self.0.spooled.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn is_exceeded(&self) -> bool {
        self.taken().saturating_add(self.kept_bytes()) > self.0.most
    }

    fn change(&self, from: usize, to: usize) {
        if to > from {
            self.0.taken.fetch_add(to - from, Ordering::Relaxed);
        } else {
            self.0.taken.fetch_sub(from - to, Ordering::Relaxed);
        }
    }
}

impl Default for NameBudget {
    fn default() -> Self {
        Self::new(MOST)
    }
}

impl fmt::Debug for NameBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NameBudget({} of {})", self.taken(), self.0.most)
    }
}

/// A walk's part of a budget, which it gives back when it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: NameBudget,
    taken: usize,
}

impl Share {
    pub(super) fn of(budget: NameBudget) -> Self {
        Self { budget, taken: 0 }
    }

    pub(super) fn budget(&self) -> &NameBudget {
        &self.budget
    }

    /// Sets its present use.
    pub(super) fn set(&mut self, taken: usize) {
        self.budget.change(self.taken, taken);
        self.taken = taken;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_listings_hold_for_the_moment_fails_no_copy() {
        let budget = NameBudget::new(1024);
        let mut listing = Share::of(budget.clone());
        listing.set(4096);
        assert!(!budget.keep(1));
        assert!(budget.must_keep(1024) && !budget.must_keep(1));
        drop(listing);
        budget.give_back(1024);
        assert!(budget.keep(768) && !budget.keep(1));
    }
}
