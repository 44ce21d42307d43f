//! [`NameBudget`]: a limit on the memory that the names of listings take.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The memory limit for names that servers list, shared by walks and copies. It covers requested names, names that wait to be
/// taken, directories that wait to be read, and names that copies keep. A server may make up names without end, and many servers
/// may.
///
/// No user of the budget waits for another's part. When the budget is used up, a walk requests one answer at a time, after all
/// its earlier names were taken. A copy writes the names that it keeps to a temporary file, or requests them again. So each of
/// them can finish, whatever the others hold.
#[derive(Clone)]
pub struct NameBudget(Arc<Budget>);

struct Budget {
    most: usize,
    taken: AtomicUsize,
    kept: AtomicUsize,
    spooled: AtomicUsize,
}

/// The limit for temporary files, as a multiple of the memory limit.
const SPOOLED: usize = 16;

/// The default limit.
const MOST: usize = 64 * 1024 * 1024;

impl NameBudget {
    /// Returns a budget of `most` bytes.
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

    /// Returns the number of bytes that walks hold. It may exceed the limit while an answer is processed that is larger than any
    /// before.
    pub fn taken(&self) -> usize {
        self.0.taken.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that are kept of processed names.
    pub fn kept_bytes(&self) -> usize {
        self.0.kept.load(Ordering::Relaxed)
    }

    /// Returns whether there is room for names that can also be requested later. Half of the room is left for names that cannot
    /// wait.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        let room = (self.0.most.saturating_sub(self.kept_bytes()) / 2).max(self.0.most / 8);
        self.taken().saturating_add(bytes) <= room
    }

    /// Reserves memory for data that can also be kept elsewhere, until it is [given back](Self::give_back). A quarter of the
    /// limit is left for data that cannot. Returns whether there was room.
    pub fn keep(&self, bytes: usize) -> bool {
        self.keep_within(bytes, (self.0.most / 4 * 3).saturating_sub(self.taken()))
    }

    /// Reserves memory for data that has to be in memory, whatever listings hold for the moment. A copy fails if there is no
    /// room.
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

    /// Gives back reserved memory.
    pub fn give_back(&self, bytes: usize) {
        self.0.kept.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Reserves space in temporary files: sixteen times the limit, for all users of the budget. Returns whether there was room.
    pub fn spool(&self, bytes: usize) -> bool {
        let most = self.0.most.saturating_mul(SPOOLED);
        let add = |spooled: usize| spooled.checked_add(bytes).filter(|spooled| *spooled <= most);
        self.0
            .spooled
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .is_ok()
    }

    /// Gives back space in temporary files.
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
    pub(super) fn new(budget: NameBudget) -> Self {
        Self { budget, taken: 0 }
    }

    pub(super) fn budget(&self) -> &NameBudget {
        &self.budget
    }

    /// Sets the memory that the walk uses now.
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
        let mut listing = Share::new(budget.clone());
        listing.set(4096);
        assert!(!budget.keep(1));
        assert!(budget.must_keep(1024) && !budget.must_keep(1));
        drop(listing);
        budget.give_back(1024);
        assert!(budget.keep(768) && !budget.keep(1));
    }
}
