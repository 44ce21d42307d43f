//! Transfer plans behind a lock, so that several sessions can work on one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;
use trunkline_sftp::transfer::{Download, LaneId, ManyDownload, ManyUpload, Upload};
use trunkline_sftp::{Client, Outcome, RequestId};

use super::lanes::Lanes;
use crate::error::Error;
use crate::sftp::{Attached, Plan, Sftp};

/// A plan that sessions work on and a consumer waits for.
pub(super) struct Shared<P> {
    /// Guards the plan; taken behind a session's lock, never before it.
    plan: Mutex<P>,
    pub(super) changed: Notify,
}

impl<P> Shared<P> {
    pub(super) fn new(plan: P) -> Arc<Self> {
        Arc::new(Self {
            plan: Mutex::new(plan),
            changed: Notify::new(),
        })
    }

    pub(super) fn plan(&self) -> MutexGuard<'_, P> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A plan for many files, on the one session it is for.
macro_rules! many {
    ($plan:ty) => {
        impl Plan for Shared<$plan> {
            fn handle_reply(
                &self,
                client: &mut Client,
                id: RequestId,
                outcome: Outcome,
                now: Instant,
            ) -> Option<Outcome> {
                self.plan().handle_reply(client, id, outcome, now)
            }

            fn drive(&self, client: &mut Client, now: Instant) {
                self.plan().drive(client, now);
            }

            fn wake(&self) {
                self.changed.notify_one();
            }

            fn session_ended(&self) {
                self.changed.notify_one();
            }

            fn stop(&self, client: &mut Client) {
                self.plan().cancel(client);
            }
        }
    };
}

many!(ManyDownload);
many!(ManyUpload);

/// A plan for one file, on one of the sessions it goes over.
pub(super) struct OnLane<P> {
    shared: Arc<Shared<P>>,
    lane: LaneId,
}

macro_rules! one {
    ($plan:ty) => {
        impl Plan for OnLane<$plan> {
            fn handle_reply(
                &self,
                client: &mut Client,
                id: RequestId,
                outcome: Outcome,
                now: Instant,
            ) -> Option<Outcome> {
                let mut plan = self.shared.plan();
                plan.handle_reply(self.lane, client, id, outcome, now)
            }

            fn drive(&self, client: &mut Client, now: Instant) {
                self.shared.plan().drive(self.lane, client, now);
            }

            fn wake(&self) {
                self.shared.changed.notify_one();
            }

            fn session_ended(&self) {
                self.shared.plan().lose_lane(self.lane);
                self.shared.changed.notify_one();
            }

            fn stop(&self, client: &mut Client) {
                self.shared.plan().remove_lane(self.lane, client);
            }
        }

        impl OneFile for $plan {
            fn lane(&mut self) -> LaneId {
                self.add_lane()
            }

            fn retire(&mut self, lane: LaneId) -> bool {
                self.retire_lane(lane);
                self.is_gone(lane)
            }
        }
    };
}

one!(Download);
one!(Upload);

pub(super) trait OneFile: Send + Sized + 'static {
    fn lane(&mut self) -> LaneId;
    /// Has a lane only end what it has under way; whether it has.
    fn retire(&mut self, lane: LaneId) -> bool;
}

/// The sessions that work on one file.
pub(super) struct Striped<P> {
    pub(super) shared: Arc<Shared<P>>,
    on: Vec<OnSession>,
}

struct OnSession {
    sftp: Sftp,
    lane: LaneId,
    attached: Attached,
}

impl<P: OneFile> Striped<P>
where
    OnLane<P>: Plan,
{
    pub(super) fn new(plan: P) -> Self {
        Self {
            shared: Shared::new(plan),
            on: Vec::new(),
        }
    }

    /// Takes in sessions that have opened, up to `wanted`, and has lost ones replaced. Those that are not the copy's any
    /// more end what they have under way. Fails when there is none and none can be had.
    pub(super) fn gather(&mut self, lanes: &Lanes, wanted: usize) -> Result<(), Error> {
        let (shared, mut retiring) = (self.shared.clone(), 0);
        self.on.retain(|on| {
            if on.sftp.link().ended().is_some() {
                return false;
            }
            let goes_on = lanes.has(&on.sftp) || !shared.plan().retire(on.lane);
            retiring += usize::from(goes_on && !lanes.has(&on.sftp));
            goes_on
        });
        for sftp in lanes.live() {
            let is_known = |on: &OnSession| Arc::ptr_eq(on.sftp.link(), sftp.link());
            if self.on.iter().any(is_known) || self.on.len() - retiring >= wanted {
                continue;
            }
            let lane = self.shared.plan().lane();
            let plan = OnLane {
                shared: self.shared.clone(),
                lane,
            };
            let attached = sftp.link().attach(Arc::new(plan));
            self.on.push(OnSession { sftp, lane, attached });
        }
        if self.on.len() - retiring < wanted {
            lanes.grow(wanted)?;
        }
        if retiring > 0 {
            // What those leave is for the others.
            self.drive();
        }
        Ok(())
    }

    /// Has every session ask for more: the consumer has made room.
    pub(super) fn drive(&self) {
        for on in &self.on {
            on.attached.drive();
        }
    }
}
