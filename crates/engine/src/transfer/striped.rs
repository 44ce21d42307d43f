//! [`Striped`]: the sessions that work on one file.

use std::sync::Arc;

use trunkline_sftp::transfer::{self, WorkerId};

use super::sessions::Sessions;
use crate::error::Error;
use crate::sftp::{Attached, Sftp, Shared};

/// The sessions that work on one file.
pub(super) struct Striped<P> {
    pub(super) shared: Arc<Shared<P>>,
    width: Width,
    on: Vec<OnSession>,
}

/// The number of sessions that are to work on a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Width {
    pub(super) wanted: usize,
    /// The number to be open for this file and those beside it.
    pub(super) open: usize,
    /// The first of them, so that other files go over others.
    pub(super) first: usize,
    /// Only the session that opened the file works on it.
    pub(super) alone: bool,
}

struct OnSession {
    sftp: Sftp,
    session: WorkerId,
    attached: Attached,
}

impl<P: transfer::Striped + Send + 'static> Striped<P> {
    pub(super) fn new(plan: P, width: Width) -> Self {
        Self {
            shared: Shared::new(plan),
            width,
            on: Vec::new(),
        }
    }

    /// Adds sessions that have opened, as many as are wanted, and replaces lost ones. Sessions that the copy has moved away from
    /// finish their requests. Fails if there is none and none can be opened.
    pub(super) fn gather(&mut self, sessions: &Sessions) -> Result<(), Error> {
        let Width {
            wanted,
            open,
            first,
            alone,
        } = self.width;
        let (shared, mut retiring) = (self.shared.clone(), 0);
        let stirred = shared.plan().wants_all_driven();
        if stirred {
            self.drive();
        }
        if alone && !self.on.is_empty() {
            return Ok(());
        }
        self.on.retain(|on| {
            if on.sftp.link().end_reason().is_some() {
                return false;
            }
            if sessions.has(&on.sftp) {
                return true;
            }
            let mut plan = shared.plan();
            plan.retire_worker(on.session);
            let goes_on = !plan.is_gone(on.session);
            retiring += usize::from(goes_on);
            goes_on
        });
        let mut live = sessions.live();
        let missing = open.saturating_sub(live.len());
        let first = first.checked_rem(live.len()).unwrap_or(0);
        live.rotate_left(first);
        for sftp in live {
            let is_known = |on: &OnSession| Arc::ptr_eq(on.sftp.link(), sftp.link());
            if self.on.iter().any(is_known) || self.on.len() - retiring >= wanted {
                continue;
            }
            let session = self.shared.plan().add_worker();
            let attached = self.shared.attach(sftp.link(), session);
            self.on.push(OnSession {
                sftp,
                session,
                attached,
            });
        }
        if missing > 0 || self.on.len() - retiring < wanted {
            sessions.grow(open)?;
        }
        if retiring > 0 {
            // The others take over the rest.
            self.drive();
        }
        Ok(())
    }

    /// Returns whether a session that worked on the file has ended.
    pub(super) fn has_lost(&self) -> bool {
        self.on.iter().any(|on| on.sftp.link().end_reason().is_some())
    }

    /// Lets every session request more, after the consumer has made room.
    pub(super) fn drive(&self) {
        for on in &self.on {
            on.attached.drive();
        }
    }
}
