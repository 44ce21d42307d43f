//! The order in which a session and its plans are locked.

use std::cell::Cell;

thread_local! {
    static LOCKED: Cell<usize> = const { Cell::new(0) };
}

/// Marks that this thread holds a plan's lock. It must not lock a session then: a driver of the plan locks the session
/// first, and both would wait for each other, on a thread that everything else needs.
pub(super) struct PlanLocked(());

impl PlanLocked {
    pub(super) fn new() -> Self {
        LOCKED.set(LOCKED.get() + 1);
        Self(())
    }

    /// Returns whether this thread holds a plan's lock.
    pub(super) fn is_any() -> bool {
        LOCKED.get() > 0
    }
}

impl Drop for PlanLocked {
    fn drop(&mut self) {
        LOCKED.set(LOCKED.get() - 1);
    }
}
