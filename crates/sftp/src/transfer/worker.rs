//! Workers: the sessions that share the transfer of one file.

use std::collections::HashMap;
use std::ops::{Index, IndexMut};

use super::Plan;
use super::pace::Pace;
use crate::client::RequestId;
use crate::reply::Handle;
use crate::status::Status;

/// Identifies a session that a transfer uses. Each session has a [`Client`](crate::Client) of its own, on a channel of the same
/// or another connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(usize);

/// The reason why a worker dropped out while others continue. Its session still works and may be used for something else.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkerLoss {
    /// The file could not be opened there.
    Refused(Status),
    /// The worker's file has a different size or modification time from the first worker's: it was replaced or written to in
    /// between, or the server did not report them. Pieces of different files must not be mixed.
    AnotherFile,
}

/// A plan that uses as many sessions as it is given.
pub trait Striped: Plan<Worker = WorkerId> {
    /// Adds a session.
    fn add_worker(&mut self) -> WorkerId;

    /// Gives a worker no more work. The worker finishes what it has in flight, and is then removed. The rest is for the other
    /// workers, which must be driven.
    fn retire_worker(&mut self, worker: WorkerId);

    /// Returns whether a worker has made work for the others since the last call: the file exists now, or a worker has left its
    /// work to the others. Drive every worker then, since an idle session receives nothing that would cause it to be driven.
    fn wants_all_driven(&mut self) -> bool;

    /// Returns whether a worker has ended: it was lost, removed, or retired and has finished its work.
    fn is_gone(&self, worker: WorkerId) -> bool;
}

/// The workers of a transfer. `Purpose` is the purpose of a pending request, `Work` is a worker's part of the transfer.
pub(super) struct Workers<Purpose, Work> {
    workers: Vec<Worker<Purpose, Work>>,
    /// The most bytes in flight on one worker.
    memory: u64,
    /// A worker has made work for the others.
    stirred: bool,
}

pub(super) struct Worker<Purpose, Work> {
    pub(super) state: WorkerState,
    /// The worker finishes its work and takes no more.
    pub(super) retired: bool,
    pub(super) pace: Pace,
    pub(super) asked: HashMap<RequestId, Purpose>,
    pub(super) work: Work,
}

pub(super) enum WorkerState {
    Idle,
    Opening,
    Open(Handle),
    /// Closed, lost, or never to be used again.
    Gone,
}

/// The bytes in flight on a worker at the start: the first window of a session.
const FIRST_FLIGHT: u64 = 2 * 1024 * 1024;
/// The least bytes in flight on a slow worker: four of OpenSSH's largest reads.
const LEAST_FLIGHT: u64 = 1024 * 1024;

impl<Purpose, Work> Workers<Purpose, Work> {
    pub(super) fn new(memory: usize) -> Self {
        Self {
            workers: Vec::new(),
            memory: memory as u64,
            stirred: false,
        }
    }

    pub(super) fn add(&mut self, work: Work) -> WorkerId {
        self.workers.push(Worker {
            state: WorkerState::Idle,
            retired: false,
            pace: Pace::new(LEAST_FLIGHT, self.memory).beginning_with(FIRST_FLIGHT),
            asked: HashMap::new(),
            work,
        });
        WorkerId(self.workers.len() - 1)
    }

    /// Notes that a worker has made work for the others.
    pub(super) fn stir(&mut self) {
        self.stirred = true;
    }

    pub(super) fn take_stirred(&mut self) -> bool {
        std::mem::take(&mut self.stirred)
    }

    pub(super) fn get_mut(&mut self, id: WorkerId) -> Option<&mut Worker<Purpose, Work>> {
        self.workers.get_mut(id.0)
    }

    /// Removes an answered request from a worker's list. Returns its purpose, or `None` if the request is not this worker's.
    pub(super) fn take_answered(&mut self, id: WorkerId, request: RequestId) -> Option<Purpose> {
        self.get_mut(id)?.asked.remove(&request)
    }

    /// Returns all workers, including those that are gone.
    pub(super) fn iter(&self) -> impl Iterator<Item = (WorkerId, &Worker<Purpose, Work>)> {
        let ids = (0..).map(WorkerId);
        ids.zip(&self.workers)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Worker<Purpose, Work>> {
        self.workers.iter_mut()
    }

    /// Returns the number of workers that take part or still may.
    pub(super) fn taking_part(&self) -> usize {
        self.workers.iter().filter(|worker| worker.takes_part()).count()
    }

    pub(super) fn is_gone(&self, id: WorkerId) -> bool {
        let worker = self.workers.get(id.0);
        worker.is_none_or(|worker| !worker.takes_part())
    }
}

impl<Purpose, Work> Worker<Purpose, Work> {
    /// Returns whether the worker still has work or answers to come. A worker that has sent CLOSE is `Gone`, but waits for
    /// answers.
    pub(super) fn takes_part(&self) -> bool {
        !matches!(self.state, WorkerState::Gone) || !self.asked.is_empty()
    }

    /// Marks the worker as gone. Returns its file and its pending requests.
    pub(super) fn leave(&mut self) -> (Option<Handle>, HashMap<RequestId, Purpose>) {
        let handle = match std::mem::replace(&mut self.state, WorkerState::Gone) {
            WorkerState::Open(handle) => Some(handle),
            _ => None,
        };
        (handle, std::mem::take(&mut self.asked))
    }
}

impl<Purpose, Work> Index<WorkerId> for Workers<Purpose, Work> {
    type Output = Worker<Purpose, Work>;

    fn index(&self, id: WorkerId) -> &Self::Output {
        &self.workers[id.0]
    }
}

impl<Purpose, Work> IndexMut<WorkerId> for Workers<Purpose, Work> {
    fn index_mut(&mut self, id: WorkerId) -> &mut Self::Output {
        &mut self.workers[id.0]
    }
}
