//! Workers: the sessions that share the transfer of one file.

use std::collections::HashMap;
use std::ops::{Index, IndexMut};

use super::Plan;
use super::pace::Pace;
use crate::client::RequestId;
use crate::reply::Handle;
use crate::status::Status;

/// One of the sessions that a transfer goes over. Each has a [`Client`](crate::Client) of its own, on a channel of the
/// same or another connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(usize);

/// The reason why a worker beside others takes no part. Its session is well and may be used for something else.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkerLoss {
    /// The file could not be opened there.
    Refused(Status),
    /// The file opened there has another size or modification time than on the first worker: it was replaced or written
    /// to in between, or the server did not tell. Pieces of different files must not be mixed.
    AnotherFile,
}

/// A plan that goes over as many sessions as it is given.
pub trait Striped: Plan<Worker = WorkerId> {
    /// One more session.
    fn add_worker(&mut self) -> WorkerId;

    /// Has a worker take nothing more: what it has under way it still ends, and then it is removed. The rest is for the
    /// others, which want to be driven.
    fn retire_worker(&mut self, worker: WorkerId);

    /// Returns whether one worker has made work for the others since this was last asked: the file is there now, or
    /// what a worker had is for others. Each wants to be driven then, since of an idle session nothing comes that would
    /// have it driven.
    fn wants_all_driven(&mut self) -> bool;

    /// Returns whether nothing comes of a worker any more: it was lost, removed, or retired and has ended what it had.
    fn is_gone(&self, worker: WorkerId) -> bool;
}

/// The workers of a transfer. `Purpose` is what an answer is awaited to, `Work` what a worker has before it.
pub(super) struct Workers<Purpose, Work> {
    workers: Vec<Worker<Purpose, Work>>,
    /// Bytes in flight on one of them, at most.
    memory: u64,
    /// One has made work for the others.
    stirred: bool,
}

pub(super) struct Worker<Purpose, Work> {
    pub(super) state: WorkerState,
    /// It ends what it has, and takes nothing more.
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

/// A worker's bytes in flight from the start: the first window of a session.
const FIRST_FLIGHT: u64 = 2 * 1024 * 1024;
/// The least that a slow worker has in flight: four of OpenSSH's largest reads.
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

    /// One has made work for the others.
    pub(super) fn stir(&mut self) {
        self.stirred = true;
    }

    pub(super) fn take_stirred(&mut self) -> bool {
        std::mem::take(&mut self.stirred)
    }

    pub(super) fn get_mut(&mut self, id: WorkerId) -> Option<&mut Worker<Purpose, Work>> {
        self.workers.get_mut(id.0)
    }

    /// Takes the answered request off the list, and returns it if it is this worker's.
    pub(super) fn take_answered(&mut self, id: WorkerId, request: RequestId) -> Option<Purpose> {
        self.get_mut(id)?.asked.remove(&request)
    }

    /// All of them, those that are gone too.
    pub(super) fn iter(&self) -> impl Iterator<Item = (WorkerId, &Worker<Purpose, Work>)> {
        let ids = (0..).map(WorkerId);
        ids.zip(&self.workers)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Worker<Purpose, Work>> {
        self.workers.iter_mut()
    }

    /// Returns the number of workers that take part, or may yet.
    pub(super) fn taking_part(&self) -> usize {
        self.workers.iter().filter(|worker| worker.takes_part()).count()
    }

    pub(super) fn is_gone(&self, id: WorkerId) -> bool {
        let worker = self.workers.get(id.0);
        worker.is_none_or(|worker| !worker.takes_part())
    }
}

impl<Purpose, Work> Worker<Purpose, Work> {
    /// Returns whether anything may come of it: one that has sent the file's end is closed, and waits for the answers.
    pub(super) fn takes_part(&self) -> bool {
        !matches!(self.state, WorkerState::Gone) || !self.asked.is_empty()
    }

    /// Is gone from now on; its file, and what answers were awaited to.
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
