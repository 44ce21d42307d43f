//! Lanes: the sessions that share the transfer of one file.

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
pub struct LaneId(usize);

/// Why a lane beside others takes no part. Its session is well and may be used for something else.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaneLoss {
    /// The file could not be opened there.
    Refused(Status),
    /// The file opened there has another size or modification time than on the first lane: it was replaced or written
    /// to in between, or the server did not tell. Pieces of different files must not be mixed.
    AnotherFile,
}

/// A plan that goes over as many sessions as it is given.
pub trait Striped: Plan<Lane = LaneId> {
    /// One more session.
    fn add_lane(&mut self) -> LaneId;

    /// Has a lane take nothing more: what it has under way it still ends, and then it is removed. The rest is for the
    /// others, which want to be driven.
    fn retire_lane(&mut self, lane: LaneId);

    /// Whether nothing comes of a lane any more: it was lost, removed, or retired and has ended what it had.
    fn is_gone(&self, lane: LaneId) -> bool;
}

/// The lanes of a transfer. `Asked` is what an answer is awaited to, `Work` what a lane has before it.
pub(super) struct Lanes<Asked, Work> {
    lanes: Vec<Lane<Asked, Work>>,
    /// Bytes in flight on one of them, at most.
    memory: u64,
}

pub(super) struct Lane<Asked, Work> {
    pub(super) state: LaneState,
    /// It ends what it has, and takes nothing more.
    pub(super) retired: bool,
    pub(super) pace: Pace,
    pub(super) asked: HashMap<RequestId, Asked>,
    pub(super) work: Work,
}

pub(super) enum LaneState {
    Idle,
    Opening,
    Open(Handle),
    /// Closed, lost, or never to be used again.
    Gone,
}

/// What a lane has in flight from the start: the first window of a session.
const FIRST_FLIGHT: u64 = 2 * 1024 * 1024;
/// What a lane has in flight however slow it is: four of OpenSSH's largest reads.
const LEAST_FLIGHT: u64 = 1024 * 1024;

impl<Asked, Work> Lanes<Asked, Work> {
    pub(super) fn new(memory: usize) -> Self {
        Self {
            lanes: Vec::new(),
            memory: memory as u64,
        }
    }

    pub(super) fn add(&mut self, work: Work) -> LaneId {
        self.lanes.push(Lane {
            state: LaneState::Idle,
            retired: false,
            pace: Pace::new(LEAST_FLIGHT, self.memory).beginning_with(FIRST_FLIGHT),
            asked: HashMap::new(),
            work,
        });
        LaneId(self.lanes.len() - 1)
    }

    pub(super) fn get_mut(&mut self, id: LaneId) -> Option<&mut Lane<Asked, Work>> {
        self.lanes.get_mut(id.0)
    }

    /// What a request was that an answer has come to, if it is this lane's.
    pub(super) fn answered(&mut self, id: LaneId, request: RequestId) -> Option<Asked> {
        self.get_mut(id)?.asked.remove(&request)
    }

    /// All of them, those that are gone too.
    pub(super) fn iter(&self) -> impl Iterator<Item = (LaneId, &Lane<Asked, Work>)> {
        let ids = (0..).map(LaneId);
        ids.zip(&self.lanes)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Lane<Asked, Work>> {
        self.lanes.iter_mut()
    }

    /// How many take part, or may yet.
    pub(super) fn taking_part(&self) -> usize {
        let gone = |lane: &&Lane<Asked, Work>| matches!(lane.state, LaneState::Gone);
        self.lanes.len() - self.lanes.iter().filter(gone).count()
    }

    pub(super) fn is_gone(&self, id: LaneId) -> bool {
        let lane = self.lanes.get(id.0);
        // One that has sent the file's end is closed, and waits for the answers.
        lane.is_none_or(|lane| matches!(lane.state, LaneState::Gone) && lane.asked.is_empty())
    }
}

impl<Asked, Work> Lane<Asked, Work> {
    /// Is gone from now on; its file, and what answers were awaited to.
    pub(super) fn leave(&mut self) -> (Option<Handle>, HashMap<RequestId, Asked>) {
        let handle = match std::mem::replace(&mut self.state, LaneState::Gone) {
            LaneState::Open(handle) => Some(handle),
            _ => None,
        };
        (handle, std::mem::take(&mut self.asked))
    }
}

impl<Asked, Work> Index<LaneId> for Lanes<Asked, Work> {
    type Output = Lane<Asked, Work>;

    fn index(&self, id: LaneId) -> &Self::Output {
        &self.lanes[id.0]
    }
}

impl<Asked, Work> IndexMut<LaneId> for Lanes<Asked, Work> {
    fn index_mut(&mut self, id: LaneId) -> &mut Self::Output {
        &mut self.lanes[id.0]
    }
}
