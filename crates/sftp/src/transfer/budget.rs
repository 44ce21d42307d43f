//! [`NameBudget`]: how much memory the names of listings take.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The memory limit for names that servers list, in all walks that share it: names that were asked for, that wait to be
/// taken, and directories that wait to be read. A server may make up names without end, and many servers may.
///
/// A walk that finds it used up asks for one answer at a time, once all was taken that it has told; so each of them can end,
/// whatever the others hold.
#[derive(Clone)]
pub struct NameBudget(Arc<Budget>);

struct Budget {
    most: usize,
    taken: AtomicUsize,
    kept: AtomicUsize,
}

/// So many times the limit may be kept of names that were processed.
const KEPT: usize = 16;

/// For whoever says nothing else.
const MOST: usize = 64 * 1024 * 1024;

impl NameBudget {
    /// So many bytes.
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Budget {
            most,
            taken: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
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

    /// Returns whether there is room for names that can be asked for later as well: half is left for what cannot be put
    /// off.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        self.taken().saturating_add(bytes) <= self.0.most / 2
    }

    /// Takes so many bytes for names that stay when they were processed, until they are [given back](Self::give_back). Returns
    /// whether there is room for them: for sixteen times the limit, of all who share the budget.
    pub fn keep(&self, bytes: usize) -> bool {
        let kept = self.0.kept.fetch_add(bytes, Ordering::Relaxed);
        kept.saturating_add(bytes) <= self.most_kept()
    }

    /// Returns the limit of what is kept.
    pub fn most_kept(&self) -> usize {
        self.0.most.saturating_mul(KEPT)
    }

    /// Gives back what was kept.
    pub fn give_back(&self, bytes: usize) {
        self.0.kept.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn is_exceeded(&self) -> bool {
        self.taken() > self.0.most
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
