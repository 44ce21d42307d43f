//! The order in which a session and the plans on it are locked.

use std::cell::Cell;

thread_local! {
    static LOCKED: Cell<usize> = const { Cell::new(0) };
}

/// This thread has a plan locked. It must not lock a session before that is over: whoever drives the plan has locked the
/// session first, and each would wait for the other, on a thread that everything else needs.
pub(super) struct PlanLocked(());

impl PlanLocked {
    pub(super) fn new() -> Self {
        LOCKED.set(LOCKED.get() + 1);
        Self(())
    }

    /// Returns whether one is.
    pub(super) fn is_any() -> bool {
        LOCKED.get() > 0
    }
}

impl Drop for PlanLocked {
    fn drop(&mut self) {
        LOCKED.set(LOCKED.get() - 1);
    }
}
