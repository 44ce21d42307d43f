//! [`Upload`]: one file, over one session or several.

use std::collections::{HashMap, VecDeque};
use std::ops::{ControlFlow, Range};
use std::time::Instant;

use bytes::Bytes;

use super::pace::SendMark;
use super::ranges::Ranges;
use super::renaming::Renaming;
use super::worker::{self, Striped, WorkerId, WorkerLoss, WorkerState, Workers};
use super::{DEFAULT_MEMORY, Plan, piece};
use crate::attributes::{FileAttributes, Owner};
use crate::client::{Client, RequestId};
use crate::reply::{Handle, Outcome, Reply};
use crate::request::{OpenFlags, Request};
use crate::status::{Status, StatusCode};

/// What to upload, and how to leave it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct UploadOptions {
    /// The file to write.
    pub path: Bytes,
    /// The source's size if it is known; the upload ends there even if the source grows.
    pub size: Option<u64>,
    /// Start at this offset; what lies before is left as it is.
    pub start: u64,
    /// Ranges at or behind `start` that an earlier attempt wrote, as [`Ranges::done`] told them.
    pub done: Vec<Range<u64>>,
    /// Permissions for a file that is made, before the server's umask.
    pub create: FileAttributes,
    /// Attributes to set behind the last write: times, permissions, owner. Its size is ignored.
    pub attributes: FileAttributes,
    /// What is expected to be there under `path`.
    pub opening: Opening,
    /// Owner and group to give the file before anything is written to it; with [`Opening::Exclusive`]. Where the server
    /// refuses that, the upload ends with [`UploadEvent::OwnerRefused`].
    pub owner: Option<Owner>,
    /// Have the server write the file to its disk before it is closed, where it can.
    pub sync: bool,
    /// Rename the file to this, over what is there where the server can, when all of it has been written.
    pub rename_to: Option<Bytes>,
    /// Bytes of the source that may be held; at least one write is.
    pub memory: usize,
}

impl UploadOptions {
    /// A file from its beginning.
    pub fn new(path: impl Into<Bytes>) -> Self {
        Self {
            path: path.into(),
            size: None,
            start: 0,
            done: Vec::new(),
            create: FileAttributes::default(),
            attributes: FileAttributes::default(),
            opening: Opening::Truncate,
            owner: None,
            sync: false,
            rename_to: None,
            memory: DEFAULT_MEMORY,
        }
    }
}

/// How the file to write is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Opening {
    /// It is made, or emptied if it is there and nothing of it is to be kept.
    #[default]
    Truncate,
    /// It is made, and must not be there: neither a file of somebody else's nor a link is ever written to.
    Exclusive,
    /// It is there, and is written over in its place.
    Existing,
}

/// Tells reads of the source apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReadId(u64);

/// Something for the application to do or to know.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum UploadEvent {
    /// Bytes of the source are wanted: answer with [`Upload::provide`]. With one worker and nothing done before, offsets
    /// come in order, so that a pipe can be a source.
    Read {
        /// For the answer.
        id: ReadId,
        /// Where to read.
        offset: u64,
        /// How much.
        length: usize,
    },
    /// A worker beside others takes no part.
    WorkerLost(WorkerId, WorkerLoss),
    /// The file is written, closed and renamed.
    Finished {
        /// Its length.
        length: u64,
        /// Whether the server wrote it to its disk as was asked.
        synced: bool,
        /// Why the attributes were not set, if they were not.
        attributes: Result<(), Status>,
    },
    /// The server does not give the file its owner, and nothing was written to it. Nothing more comes.
    OwnerRefused(Status),
    /// The server failed. What was written is in [`Upload::ranges`]; nothing was renamed unless the renaming itself is
    /// what failed.
    Failed(Status),
}

/// The upload of one file as a state machine without I/O.
///
/// As many bytes are written at once as the rate and the distance of each worker are worth, bounded by
/// [`UploadOptions::memory`]. Attributes, fsync and the closing leave right behind the last write, where one session
/// writes alone (the server keeps the order in a file: section 6.1 of the draft); with several, when all writes have
/// been confirmed. The renaming waits for all answers, so that nothing incomplete replaces a file.
pub struct Upload {
    options: UploadOptions,
    ranges: Ranges,
    workers: Workers<Purpose, Writing>,
    /// A worker made or opened the file; the others may.
    created: bool,
    reads: HashMap<ReadId, (WorkerId, Range<u64>)>,
    next_read: u64,
    finish: Finish,
    events: VecDeque<UploadEvent>,
    /// Bytes wanted, provided and being written.
    held: usize,
    over: bool,
}

type Worker = worker::Worker<Purpose, Writing>;

/// What a worker writes.
#[derive(Default)]
struct Writing {
    /// Bytes that were wanted for this worker and are not being written yet.
    prepared: u64,
    ready: VecDeque<(u64, Bytes)>,
    /// It looked for the file before another worker had made it.
    came_early: bool,
}

enum Purpose {
    Open(Role),
    Owner,
    Write { range: Range<u64>, sent: SendMark },
    Attributes,
    Sync,
    Close,
    Rename,
}

/// What a worker opens the file as.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The one that makes it, or knows that it is there.
    First,
    /// One that may be earlier than the one that makes it.
    Early,
    Further,
}

/// How far the end of an upload is.
#[derive(Default)]
struct Finish {
    /// The worker that finishes.
    worker: Option<WorkerId>,
    /// Answers that are awaited before the renaming.
    awaited: usize,
    synced: bool,
    attributes: Option<Status>,
    renaming: Option<Renaming>,
}

impl Upload {
    /// An upload that begins when it has a worker and is driven.
    pub fn new(options: UploadOptions) -> Self {
        let mut ranges = Ranges::new(options.start);
        options
            .done
            .iter()
            .cloned()
            .for_each(|range| ranges.complete(range));
        if let Some(size) = options.size {
            ranges.end_at(size);
        }
        Self {
            workers: Workers::new(options.memory),
            options,
            ranges,
            created: false,
            reads: HashMap::new(),
            next_read: 0,
            finish: Finish::default(),
            events: VecDeque::new(),
            held: 0,
            over: false,
        }
    }

    /// What the server has confirmed: with [`Ranges::done`] a later attempt resumes from there.
    pub fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// Whether [`UploadEvent::Finished`] or [`UploadEvent::Failed`] was given out or waits. Each worker wants to be
    /// driven once more then, to close its file.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Bytes of the source, as an [`UploadEvent::Read`] asked for them. Fewer than asked for, or none, say that the
    /// source ends there. More are cut off.
    pub fn provide(&mut self, id: ReadId, mut data: Bytes) {
        let Some((worker, range)) = self.reads.remove(&id) else {
            return;
        };
        let length = (range.end - range.start) as usize;
        data.truncate(length);
        let missing = length - data.len();
        if missing > 0 {
            self.ranges.end_at(range.start + data.len() as u64);
            self.held -= missing;
        }
        let worker = &mut self.workers[worker].work;
        worker.prepared -= missing as u64;
        if !data.is_empty() {
            worker.ready.push_back((range.start, data));
        }
    }
}

impl Striped for Upload {
    fn add_worker(&mut self) -> WorkerId {
        self.workers.add(Writing::default())
    }

    fn retire_worker(&mut self, id: WorkerId) {
        if let Some(worker) = self.workers.get_mut(id) {
            worker.retired = true;
        }
    }

    fn is_gone(&self, id: WorkerId) -> bool {
        self.workers.is_gone(id)
    }
}

impl Plan for Upload {
    type Worker = WorkerId;
    type Event = UploadEvent;

    /// Wants as much of the source as is worth having in flight on a worker, and gives its session what was provided.
    fn drive(&mut self, id: WorkerId, client: &mut Client, now: Instant) {
        if self.over {
            return self.remove_worker(id, client);
        }
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        match &worker.state {
            WorkerState::Idle if worker.retired => return self.remove_worker(id, client),
            WorkerState::Idle => self.open(id, client),
            // Before it is known who made the file, it may be anybody's.
            WorkerState::Open(handle) if self.created && self.finish.worker != Some(id) => {
                let handle = handle.clone();
                self.write_ready(id, &handle, client, now);
            }
            _ => {}
        }
        // A session that is being opened may never come: until it has, the others do without what it would take.
        let ready = client.extensions().is_some();
        let worker = &self.workers[id];
        if ready && !worker.retired && !matches!(worker.state, WorkerState::Gone) {
            self.want(id, piece(client.limits().max_write), client.has_room());
        }
        self.finish_if_written(id, client);
        let worker = &self.workers[id];
        if worker.retired && worker.is_idle() && self.finish.worker != Some(id) {
            self.remove_worker(id, client);
        }
    }

    fn handle_reply(
        &mut self,
        id: WorkerId,
        client: &mut Client,
        request: RequestId,
        outcome: Outcome,
        now: Instant,
    ) -> Option<Outcome> {
        let Some(asked) = self.workers.answered(id, request) else {
            return Some(outcome);
        };
        match asked {
            Purpose::Open(role) => self.handle_open(id, role, client, outcome),
            Purpose::Owner => match outcome {
                Ok(_) => self.created = true,
                Err(status) if !self.over => {
                    self.over = true;
                    self.events.push_back(UploadEvent::OwnerRefused(status));
                }
                Err(_) => {}
            },
            Purpose::Write { range, sent } => {
                self.held -= (range.end - range.start) as usize;
                self.workers[id].pace.done(sent, now);
                match outcome {
                    Ok(_) => self.ranges.complete(range),
                    Err(status) => {
                        self.ranges.give_back(range);
                        self.fail(status);
                    }
                }
            }
            Purpose::Attributes => {
                self.finish.awaited -= 1;
                self.finish.attributes = outcome.err();
            }
            Purpose::Sync => {
                self.finish.awaited -= 1;
                match outcome {
                    Err(status) if status.code != StatusCode::OP_UNSUPPORTED => self.fail(status),
                    outcome => self.finish.synced = outcome.is_ok(),
                }
            }
            Purpose::Close => {
                self.finish.awaited -= 1;
                self.fail_if_err(outcome);
            }
            Purpose::Rename => {
                let Some(renaming) = &mut self.finish.renaming else {
                    return None;
                };
                match renaming.handle_reply(outcome, client) {
                    ControlFlow::Continue(request) => {
                        self.workers[id].asked.insert(request, Purpose::Rename);
                    }
                    ControlFlow::Break(outcome) => {
                        self.finish.renaming = None;
                        match outcome {
                            Ok(()) => self.succeed(),
                            Err(status) => self.fail(status),
                        }
                    }
                }
            }
        }
        self.rename_if_finished(id, client);
        None
    }

    fn poll_event(&mut self) -> Option<UploadEvent> {
        self.events.pop_front()
    }

    /// Unconfirmed writes are made again. With no worker left the upload waits for a new one; a renaming without an answer
    /// ends it as failed, since it may have happened.
    fn lose_worker(&mut self, id: WorkerId) {
        if self.finish.worker == Some(id) {
            if self.finish.renaming.is_some() {
                let message =
                    "the connection was lost while the file was being renamed: look which name it has";
                self.fail(Status::local(StatusCode::CONNECTION_LOST, message));
            }
            self.finish = Finish::default();
        }
        let unknown = self.options.opening == Opening::Exclusive
            && !self.created
            && self.workers.get_mut(id).is_some_and(|worker| {
                let makes = |asked: &Purpose| matches!(asked, Purpose::Open(Role::First) | Purpose::Owner);
                worker.asked.values().any(makes)
            });
        if unknown {
            let message = "the connection was lost while the file was being made";
            self.fail(Status::local(StatusCode::CONNECTION_LOST, message));
        }
        self.abandon(id);
    }

    fn remove_worker(&mut self, id: WorkerId, client: &mut Client) {
        if self.finish.worker == Some(id) {
            self.finish = Finish::default();
        }
        let (handle, requests) = self.abandon(id);
        requests.into_iter().for_each(|request| client.cancel(request));
        if let Some(handle) = handle {
            client.close(handle);
        }
    }
}

impl Upload {
    fn open(&mut self, id: WorkerId, client: &mut Client) {
        let opening = self
            .workers
            .iter()
            .any(|(_, worker)| matches!(worker.state, WorkerState::Opening | WorkerState::Open(_)));
        let (role, flags) = match self.options.opening {
            _ if self.created => (Role::Further, OpenFlags::WRITE),
            Opening::Existing => (Role::First, OpenFlags::WRITE),
            Opening::Exclusive if !opening => (
                Role::First,
                OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE,
            ),
            // Most likely it is there by the time the server reads this; nothing is written before that is known.
            Opening::Exclusive if !self.workers[id].work.came_early => (Role::Early, OpenFlags::WRITE),
            Opening::Truncate if !opening => {
                let flags = OpenFlags::WRITE | OpenFlags::CREATE;
                let empty = if self.is_fresh() {
                    OpenFlags::TRUNCATE
                } else {
                    flags
                };
                (Role::First, flags | empty)
            }
            Opening::Exclusive | Opening::Truncate => return,
        };
        let open = client.request(Request::Open {
            path: self.options.path.clone(),
            flags,
            attributes: self.options.create.clone(),
        });
        let worker = &mut self.workers[id];
        worker.asked.insert(open, Purpose::Open(role));
        worker.state = WorkerState::Opening;
    }

    /// Whether nothing of the file is to be kept.
    fn is_fresh(&self) -> bool {
        self.options.start == 0 && self.options.done.is_empty()
    }

    /// Asks for pieces of the source, before the file is open too: the disk can be read meanwhile.
    fn want(&mut self, id: WorkerId, piece: u64, room: bool) {
        if !room {
            return;
        }
        loop {
            let worker = &mut self.workers[id];
            let memory = self.held == 0 || self.held < self.options.memory;
            if !memory || !worker.pace.has_room(worker.work.prepared) {
                return;
            }
            let Some(range) = self.ranges.take(piece, piece) else {
                return;
            };
            let length = range.end - range.start;
            worker.work.prepared += length;
            self.held += length as usize;
            let read = ReadId(self.next_read);
            self.next_read += 1;
            self.events.push_back(UploadEvent::Read {
                id: read,
                offset: range.start,
                length: length as usize,
            });
            self.reads.insert(read, (id, range));
        }
    }

    fn write_ready(&mut self, id: WorkerId, handle: &Handle, client: &mut Client, now: Instant) {
        let worker = &mut self.workers[id];
        for (offset, data) in worker.work.ready.drain(..) {
            let length = data.len() as u64;
            let write = client.request(Request::Write {
                handle: handle.clone(),
                offset,
                data,
            });
            worker.work.prepared -= length;
            let sent = worker.pace.sent(length, now);
            worker.asked.insert(
                write,
                Purpose::Write {
                    range: offset..offset + length,
                    sent,
                },
            );
        }
    }

    fn handle_open(&mut self, id: WorkerId, role: Role, client: &mut Client, outcome: Outcome) {
        let owner = self.options.owner.filter(|_| role == Role::First);
        let worker = &mut self.workers[id];
        match outcome {
            Ok(Reply::Handle(handle)) => {
                if let Some(owner) = owner {
                    let attributes = FileAttributes {
                        owner: Some(owner),
                        ..FileAttributes::default()
                    };
                    let set = Request::Fsetstat {
                        handle: handle.clone(),
                        attributes,
                    };
                    worker.asked.insert(client.request(set), Purpose::Owner);
                } else if role != Role::Early {
                    self.created = true;
                }
                worker.state = WorkerState::Open(handle);
            }
            Err(status) if role == Role::Early && status.code == StatusCode::NO_SUCH_FILE => {
                worker.state = WorkerState::Idle;
                worker.work.came_early = true;
            }
            Err(status) if role == Role::First && self.options.opening == Opening::Exclusive => {
                // Who came early has somebody else's file open.
                worker.state = WorkerState::Gone;
                self.abandon(id);
                self.fail(status);
            }
            Err(status) => {
                worker.state = WorkerState::Gone;
                self.abandon(id);
                if self.workers.taking_part() > 0 {
                    self.events
                        .push_back(UploadEvent::WorkerLost(id, WorkerLoss::Refused(status)));
                } else {
                    self.fail(status);
                }
            }
            // The client gives the kind of reply that belongs to a request, or a status.
            Ok(_) => worker.state = WorkerState::Gone,
        }
    }

    /// Ends the file on this worker, when everything is written or is being written on this worker alone.
    fn finish_if_written(&mut self, id: WorkerId, client: &mut Client) {
        let WorkerState::Open(handle) = &self.workers[id].state else {
            return;
        };
        let elsewhere = self
            .workers
            .iter()
            .any(|(other, worker)| other != id && !worker.asked.is_empty());
        let written = self.reads.is_empty()
            && self.ranges.is_given_out()
            && self
                .workers
                .iter()
                .all(|(_, worker)| worker.work.ready.is_empty())
            && self.created
            && !elsewhere;
        if self.over || !written || self.finish.worker.is_some() {
            return;
        }
        let handle = handle.clone();
        // What was there before may be longer, and of a source that shrank the bytes behind its end may have been written.
        let cut = !self.is_fresh()
            || self.options.opening == Opening::Existing
            || self.ranges.end() != self.options.size;
        let attributes = FileAttributes {
            size: self.ranges.end().filter(|_| cut),
            ..self.options.attributes.clone()
        };
        self.finish.worker = Some(id);
        let worker = &mut self.workers[id];
        let mut ask = |request, asked| {
            worker.asked.insert(client.request(request), asked);
            self.finish.awaited += 1;
        };
        if !attributes.is_empty() {
            ask(
                Request::Fsetstat {
                    handle: handle.clone(),
                    attributes,
                },
                Purpose::Attributes,
            );
        }
        if self.options.sync {
            ask(
                Request::Fsync {
                    handle: handle.clone(),
                },
                Purpose::Sync,
            );
        }
        ask(Request::Close { handle }, Purpose::Close);
        worker.state = WorkerState::Gone;
    }

    fn rename_if_finished(&mut self, id: WorkerId, client: &mut Client) {
        let finished =
            self.finish.worker == Some(id) && self.finish.awaited == 0 && self.ranges.is_complete();
        if self.over || !finished || self.finish.renaming.is_some() {
            return;
        }
        let Some(to) = self.options.rename_to.clone() else {
            return self.succeed();
        };
        let (renaming, request) = Renaming::begin(self.options.path.clone(), to, client);
        self.workers[id].asked.insert(request, Purpose::Rename);
        self.finish.renaming = Some(renaming);
    }

    fn succeed(&mut self) {
        if self.over {
            return;
        }
        self.over = true;
        self.events.push_back(UploadEvent::Finished {
            length: self.ranges.end().unwrap_or_default(),
            synced: self.finish.synced,
            attributes: self.finish.attributes.take().map_or(Ok(()), Err),
        });
    }

    fn fail_if_err(&mut self, outcome: Outcome) {
        if let Err(status) = outcome {
            self.fail(status);
        }
    }

    fn fail(&mut self, status: Status) {
        if !self.over {
            self.over = true;
            self.events.push_back(UploadEvent::Failed(status));
        }
    }

    /// Takes everything from a worker; its file and the requests it had.
    fn abandon(&mut self, id: WorkerId) -> (Option<Handle>, Vec<RequestId>) {
        let Some(worker) = self.workers.get_mut(id) else {
            return (None, Vec::new());
        };
        let (handle, asked) = worker.leave();
        let mut returned = Vec::new();
        let mut requests = Vec::new();
        for (request, asked) in asked {
            requests.push(request);
            if let Purpose::Write { range, sent } = asked {
                worker.pace.lost(sent);
                returned.push(range);
            }
        }
        let ready = std::mem::take(&mut worker.work).ready.into_iter();
        returned.extend(ready.map(|(offset, data)| offset..offset + data.len() as u64));
        self.reads.retain(|_, (owner, range)| {
            let keep = *owner != id;
            if !keep {
                returned.push(range.clone());
            }
            keep
        });
        for range in returned {
            self.held -= (range.end - range.start) as usize;
            self.ranges.give_back(range);
        }
        (handle, requests)
    }
}

impl Worker {
    /// Whether nothing is wanted for it, waits on it or is under way.
    fn is_idle(&self) -> bool {
        self.asked.is_empty() && self.work.prepared == 0
    }
}
