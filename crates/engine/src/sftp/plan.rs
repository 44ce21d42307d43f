//! [`Shared`]: a plan behind a lock, so that several sessions can work on it.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;
use trunkline_sftp::transfer::Plan;
use trunkline_sftp::{Client, Outcome, RequestId};

use super::link::{AnyPlan, Attached, Link};
use super::order::PlanLocked;

/// A plan with sessions that work on it and a consumer.
pub(crate) struct Shared<P> {
    /// Guards the plan; taken after a session's lock, never before it: [`PlanLocked`].
    plan: Mutex<P>,
    pub(crate) changed: Notify,
}

impl<P: Plan> Shared<P>
where
    PlanWorker<P>: AnyPlan + 'static,
{
    pub(crate) fn new(plan: P) -> Arc<Self> {
        Arc::new(Self {
            plan: Mutex::new(plan),
            changed: Notify::new(),
        })
    }

    /// Lets a session work on the plan as `worker`, until the guard is dropped.
    pub(crate) fn attach(self: &Arc<Self>, link: &Arc<Link>, worker: P::Worker) -> Attached {
        let shared = self.clone();
        link.attach(Arc::new(PlanWorker { shared, worker }))
    }
}

impl<P> Shared<P> {
    pub(crate) fn plan(&self) -> Locked<'_, P> {
        let guard = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        Locked {
            guard,
            _order: PlanLocked::new(),
        }
    }
}

/// A locked plan.
pub(crate) struct Locked<'a, P> {
    guard: MutexGuard<'a, P>,
    _order: PlanLocked,
}

impl<P> Deref for Locked<'_, P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.guard
    }
}

impl<P> DerefMut for Locked<'_, P> {
    fn deref_mut(&mut self) -> &mut P {
        &mut self.guard
    }
}

/// A plan as seen by one of its sessions.
pub(crate) struct PlanWorker<P: Plan> {
    shared: Arc<Shared<P>>,
    worker: P::Worker,
}

impl<P: Plan<Worker: Send + Sync> + Send> AnyPlan for PlanWorker<P> {
    fn handle_reply(
        &self,
        client: &mut Client,
        id: RequestId,
        outcome: Outcome,
        now: Instant,
    ) -> Option<Outcome> {
        let mut plan = self.shared.plan();
        plan.handle_reply(self.worker, client, id, outcome, now)
    }

    fn drive(&self, client: &mut Client, now: Instant) {
        self.shared.plan().drive(self.worker, client, now);
    }

    fn wake(&self) {
        self.shared.changed.notify_one();
    }

    fn session_ended(&self) {
        self.shared.plan().lose_worker(self.worker);
    }

    fn stop(&self, client: &mut Client) {
        self.shared.plan().remove_worker(self.worker, client);
    }
}
