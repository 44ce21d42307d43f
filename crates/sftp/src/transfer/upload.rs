//! [`Upload`]: one file, over one session or several.

use std::collections::{HashMap, VecDeque};
use std::ops::{ControlFlow, Range};
use std::time::Instant;

use bytes::Bytes;

use super::mark::Mark;
use super::pace::SendMark;
use super::ranges::Ranges;
use super::renaming::Renaming;
use super::worker::{self, Striped, WorkerId, WorkerLoss, WorkerState, Workers};
use super::{DEFAULT_MEMORY, Plan, Refused, piece};
use crate::attributes::{FileAttributes, Owner};
use crate::client::{Client, RequestId};
use crate::reply::{Handle, Outcome, Reply};
use crate::request::{OpenFlags, Request};
use crate::status::{Status, StatusCode};

/// The options of an upload, and the attributes of the result.
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
    /// The expected state of `path`.
    pub opening: Opening,
    /// Owner and group to give the file before anything is written to it; with [`Opening::Exclusive`]. Where the server
    /// refuses that, the upload ends with [`UploadEvent::NotReplaced`].
    pub owner: Option<Owner>,
    /// The attributes are those of a file that this one replaces: where the server refuses them, it does not.
    pub needs_attributes: bool,
    /// With [`Opening::Exclusive`] on a server that keeps the order: a random time of last access for the new file, where
    /// somebody else may be able to give its name to another file. No other worker writes before FSTAT has shown it this time
    /// and the owner of what the first one has made.
    pub mark: Option<u32>,
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
            needs_attributes: false,
            mark: None,
            sync: false,
            rename_to: None,
            memory: DEFAULT_MEMORY,
        }
    }
}

/// The way to open the file to write.
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
        /// The place to read.
        offset: u64,
        /// The length.
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
        /// The reason why the attributes were not set, if they were not.
        attributes: Result<(), Status>,
    },
    /// The file could not get its last name as it should; what has that name is as it was. Nothing more comes.
    NotReplaced {
        /// The refused operation.
        refused: Refused,
        /// In its words.
        status: Status,
    },
    /// The file does not hold what the server has confirmed, and nothing was renamed. Nothing more comes.
    Damaged(Status),
    /// The server failed. What was written is in [`Upload::ranges`]; nothing was renamed.
    Failed(Status),
}

/// The upload of one file as a state machine without I/O.
///
/// As many bytes are written at once as the rate and the distance of each worker are worth, bounded by
/// [`UploadOptions::memory`]. Attributes, fsync, FSTAT and CLOSE leave right behind the last write, where one session
/// writes alone and the server [keeps the order](Client::keeps_order); with several, when all writes have been confirmed;
/// elsewhere each step waits for the one before. The renaming waits for all answers, so that nothing incomplete replaces a
/// file.
///
/// What FSTAT tells of the size is held against what was written: a server that acknowledges WRITEs and has another file in
/// the end makes the upload fail.
pub struct Upload {
    options: UploadOptions,
    ranges: Ranges,
    mark: Option<Mark>,
    workers: Workers<Purpose, Writing>,
    /// A worker made or opened the file; the others may.
    created: bool,
    reads: HashMap<ReadId, (WorkerId, Range<u64>)>,
    next_read: u64,
    finish: Finish,
    events: VecDeque<UploadEvent>,
    /// Bytes wanted, provided and being written.
    held: usize,
    /// The end of the last confirmed write.
    written_end: u64,
    /// The beginning of the first bytes that were sent, to look for it in the file, and whether they are confirmed.
    sample: Option<(u64, Bytes)>,
    sample_is_there: bool,
    over: bool,
}

/// Bytes of a file that are read back.
const SAMPLE: usize = 4096;

type Worker = worker::Worker<Purpose, Writing>;

/// A worker's part of the writing.
#[derive(Default)]
struct Writing {
    /// Bytes that were wanted for this worker and are not being written yet.
    prepared: u64,
    ready: VecDeque<(u64, Bytes)>,
    /// It looked for the file before another worker had made it.
    came_early: bool,
    /// The file may not be read, only written.
    only_writes: bool,
    /// Its opened file has not been identified yet.
    is_unseen: bool,
}

enum Purpose {
    Open(Role),
    /// Whether opening the file has left it as it was: it has at least so many bytes.
    Intact {
        least: u64,
    },
    /// The same: what was written is still there.
    StillThere,
    Owner,
    /// The attributes of the new file before it is marked.
    Made,
    Mark,
    /// The same when it is.
    Marked,
    /// Whether what a further worker has opened has the mark.
    Seen,
    Write {
        range: Range<u64>,
        sent: SendMark,
    },
    Measure,
    /// A last byte that makes the hole before it a part of the file.
    Extend,
    Cut,
    Compare,
    Attributes,
    /// The same by path, on a server that does not set those of open files.
    AttributesByPath,
    Sync,
    Close,
    Rename,
}

/// The role in which a worker opens the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The one that makes it, or knows that it is there.
    First,
    /// One that may be earlier than the one that makes it.
    Early,
    Further,
}

/// The progress of an upload's end.
#[derive(Default)]
struct Finish {
    /// The worker that finishes.
    worker: Option<WorkerId>,
    step: Step,
    /// Answers that are awaited before the next step.
    awaited: usize,
    extended: bool,
    cut: bool,
    cut_by_path: bool,
    synced: bool,
    attributes: Option<Status>,
    by_path: bool,
    renaming: Option<Renaming>,
}

/// The steps of an upload's end. Where the server keeps the order, the first ones leave together.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The file is measured.
    #[default]
    Measuring,
    /// Attributes are set, and the file is written to the disk.
    Setting,
    Closing,
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
            mark: options.mark.map(Mark::new),
            options,
            ranges,
            created: false,
            reads: HashMap::new(),
            next_read: 0,
            finish: Finish::default(),
            events: VecDeque::new(),
            held: 0,
            written_end: 0,
            sample: None,
            sample_is_there: false,
            over: false,
        }
    }

    /// Returns whether the file was opened on the server, or made.
    pub fn has_opened(&self) -> bool {
        self.created
    }

    /// Returns the ranges that the server has confirmed: with [`Ranges::done`] a later attempt resumes from there.
    pub fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// Returns whether [`UploadEvent::Finished`] or [`UploadEvent::Failed`] was given out or waits. Each worker wants
    /// to be driven once more then, to close its file.
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
        if let Some(worker) = self.workers.get_mut(id)
            && !std::mem::replace(&mut worker.retired, true)
        {
            self.workers.stir();
        }
    }

    fn wants_all_driven(&mut self) -> bool {
        self.workers.take_stirred()
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
            WorkerState::Open(handle)
                if self.created && !worker.work.is_unseen && self.finish.worker != Some(id) =>
            {
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
        self.finish_if_written(id, client, now);
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
        let Some(asked) = self.workers.take_answered(id, request) else {
            return Some(outcome);
        };
        match asked {
            Purpose::Open(role) => self.handle_open(id, role, client, outcome),
            Purpose::Intact { least } => self.handle_intact(least, &outcome),
            Purpose::StillThere => {
                // A file that has its last name may not be found any more by a server that goes by names.
                let is_told = self.finish.renaming.is_none()
                    && !matches!(&outcome, Err(status) if status.code != StatusCode::EOF);
                if is_told && !self.is_as_written(outcome) {
                    let message = "opening the file once more took its content";
                    self.note_damage(message);
                }
            }
            Purpose::Owner => match outcome {
                Ok(_) if self.mark.is_some() => {}
                Ok(_) => self.has_created(),
                Err(status) => self.not_replaced(Refused::Owner, status),
            },
            Purpose::Made | Purpose::Marked | Purpose::Seen => {
                self.handle_look(id, &asked, client, &outcome, now);
            }
            Purpose::Mark => {}
            Purpose::Write { range, sent } => {
                self.held -= (range.end - range.start) as usize;
                self.workers[id].pace.note_done(sent, now);
                match outcome {
                    Ok(_) => {
                        self.written_end = self.written_end.max(range.end);
                        self.sample_is_there |= self
                            .sample
                            .as_ref()
                            .is_some_and(|(offset, _)| *offset == range.start);
                        self.ranges.complete(range);
                    }
                    Err(status) => {
                        self.ranges.give_back(range);
                        self.fail(status);
                    }
                }
            }
            Purpose::Measure => {
                self.finish.awaited -= 1;
                self.handle_size(id, client, &outcome);
            }
            Purpose::Extend => {
                self.finish.awaited -= 1;
                match outcome {
                    Ok(_) => self.measure(id, client),
                    Err(status) => self.fail(status),
                }
            }
            Purpose::Cut => {
                self.finish.awaited -= 1;
                self.handle_cut(id, client, outcome);
            }
            Purpose::Compare => {
                self.finish.awaited -= 1;
                if !self.is_as_written(outcome) {
                    let message = "the server damaged the file when it cut it to its length";
                    self.note_damage(message);
                }
            }
            Purpose::Attributes | Purpose::AttributesByPath => {
                self.finish.awaited -= 1;
                self.finish.attributes = outcome.err();
            }
            Purpose::Sync => {
                self.finish.awaited -= 1;
                match outcome {
                    Err(status) if status.code != StatusCode::OP_UNSUPPORTED => {
                        self.fail(status.of_syncing());
                    }
                    outcome => self.finish.synced = outcome.is_ok(),
                }
            }
            Purpose::Close => {
                self.finish.awaited -= 1;
                self.fail_if_err(outcome.map_err(|status| status.of_closing()));
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
                            Err(status) => self.not_replaced(Refused::Renaming, status),
                        }
                    }
                }
            }
        }
        self.continue_finish(id, client, now);
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
                let makes = |asked: &Purpose| {
                    matches!(
                        asked,
                        Purpose::Open(Role::First) | Purpose::Owner | Purpose::Marked
                    )
                };
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
        // With READ, too: what is there stays there on a server that takes WRITE alone for an order to empty the file
        // (Erlang's), and can be compared.
        let both = match self.workers[id].work.only_writes {
            true => OpenFlags::WRITE,
            false => OpenFlags::READ | OpenFlags::WRITE,
        };
        let is_marked = self.mark.as_ref().is_none_or(Mark::is_kept);
        let (role, flags) = match self.options.opening {
            _ if self.created && is_marked => (Role::Further, both),
            // Whose file this would be could not be seen.
            _ if self.created => return self.refuse_unmarked(id, client),
            Opening::Existing => (Role::First, both),
            Opening::Exclusive if !opening => (
                Role::First,
                OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE,
            ),
            // Most likely it is there by the time the server reads this; nothing is written before that is known.
            Opening::Exclusive if self.mark.is_none() && !self.workers[id].work.came_early => {
                (Role::Early, both)
            }
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

    /// Returns whether nothing of the file is to be kept.
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
        // Some servers write a file from its beginning only: what comes early waits for what is before it (rclone's, which
        // itself waits for a second, with as many requests as it works on at once).
        let wanted = match client.keeps_order() {
            true => None,
            false => {
                let own = self.reads.values().filter(|(owner, _)| *owner == id);
                own.map(|(_, range)| range.start).min()
            }
        };
        let worker = &mut self.workers[id];
        let ready = &mut worker.work.ready;
        if !client.keeps_order() {
            ready
                .make_contiguous()
                .sort_unstable_by_key(|(offset, _)| *offset);
        }
        let end = wanted.map_or(ready.len(), |wanted| {
            ready.partition_point(|(offset, _)| *offset < wanted)
        });
        for (offset, data) in worker.work.ready.drain(..end) {
            let length = data.len() as u64;
            if self.sample.is_none() {
                self.sample = Some((offset, Bytes::copy_from_slice(&data[..data.len().min(SAMPLE)])));
            }
            let write = client.request(Request::Write {
                handle: handle.clone(),
                offset,
                data,
            });
            worker.work.prepared -= length;
            let sent = worker.pace.note_sent(length, now);
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
                }
                match &self.mark {
                    Some(mark) => {
                        let handle = || handle.clone();
                        let look = || Request::Fstat { handle: handle() };
                        let set = Request::Fsetstat {
                            handle: handle(),
                            attributes: mark.times(),
                        };
                        worker.work.is_unseen = role != Role::First;
                        let asks = match role {
                            Role::First => vec![
                                (look(), Purpose::Made),
                                (set, Purpose::Mark),
                                (look(), Purpose::Marked),
                            ],
                            _ => vec![(look(), Purpose::Seen)],
                        };
                        for (request, purpose) in asks {
                            worker.asked.insert(client.request(request), purpose);
                        }
                    }
                    None if owner.is_none() && role != Role::Early => self.has_created(),
                    None => {}
                }
                let done = self.options.done.iter().map(|range| range.end).max();
                let worker = &mut self.workers[id];
                match (role, done, &self.sample) {
                    (Role::First, Some(least), _) if self.options.opening == Opening::Existing => {
                        let handle = handle.clone();
                        let fstat = client.request(Request::Fstat { handle });
                        worker.asked.insert(fstat, Purpose::Intact { least });
                    }
                    (Role::Further, _, Some((offset, sample)))
                        // Reading would change the mark.
                        if self.sample_is_there && !worker.work.only_writes && self.mark.is_none() =>
                    {
                        let read = client.request(read(&handle, *offset, sample.len() as u64));
                        worker.asked.insert(read, Purpose::StillThere);
                    }
                    _ => {}
                }
                worker.state = WorkerState::Open(handle);
            }
            Err(status)
                if status.code == StatusCode::PERMISSION_DENIED
                    && (role != Role::First || self.options.opening == Opening::Existing)
                    && !worker.work.only_writes =>
            {
                worker.work.only_writes = true;
                worker.state = WorkerState::Idle;
            }
            Err(status) if role == Role::Early && status.code == StatusCode::NO_SUCH_FILE => {
                worker.state = WorkerState::Idle;
                worker.work.came_early = true;
            }
            Err(status) if role == Role::First && self.options.opening == Opening::Exclusive => {
                // Who came early has somebody else's file open.
                self.abandon(id);
                self.fail(status);
            }
            Err(status) => {
                self.abandon(id);
                if self.workers.taking_part() > 0 {
                    self.events
                        .push_back(UploadEvent::WorkerLost(id, WorkerLoss::Refused(status)));
                } else {
                    self.fail(status);
                }
            }
            // The client gives the kind of reply that belongs to a request, or a status.
            Ok(_) => drop(self.abandon(id)),
        }
    }

    /// The file is there: those who came early may open it, and those who have it open may write.
    fn has_created(&mut self) {
        self.created = true;
        self.workers.stir();
    }

    /// Handles the result of FSTAT on a file that is marked, or should be.
    fn handle_look(
        &mut self,
        id: WorkerId,
        asked: &Purpose,
        client: &mut Client,
        outcome: &Outcome,
        now: Instant,
    ) {
        let none = FileAttributes::default();
        let found = match outcome {
            Ok(Reply::Attributes(found)) => found,
            _ => &none,
        };
        let Some(mark) = &mut self.mark else { return };
        match asked {
            Purpose::Made => mark.is_made(found, now),
            Purpose::Marked => {
                mark.is_set(found);
                self.has_created();
            }
            _ if mark.is_on(found) => self.workers[id].work.is_unseen = false,
            _ => self.refuse_unmarked(id, client),
        }
    }

    /// A worker's session does not reach the file that was made.
    fn refuse_unmarked(&mut self, id: WorkerId, client: &mut Client) {
        let (handle, requests) = self.abandon(id);
        requests.into_iter().for_each(|request| client.cancel(request));
        if let Some(handle) = handle {
            client.close(handle);
        }
        let message = "what has the name of the file that is being written is not that file";
        if self.workers.taking_part() > 0 {
            let status = Status::local(StatusCode::FAILURE, message);
            self.events
                .push_back(UploadEvent::WorkerLost(id, WorkerLoss::Refused(status)));
        } else {
            self.note_damage(message);
        }
    }

    /// Returns the final attributes of the file.
    fn last_attributes(&self, now: Instant) -> FileAttributes {
        let mut attributes = self.options.attributes.clone();
        let usual = self.mark.as_ref().and_then(|mark| mark.usual_times(now));
        attributes.times = attributes.times.or(usual);
        attributes
    }

    /// A server that empties a file as it opens it has lost what was there.
    fn handle_intact(&mut self, least: u64, outcome: &Outcome) {
        if let Ok(Reply::Attributes(FileAttributes { size: Some(size), .. })) = outcome
            && *size < least
        {
            let message =
                format!("opening the file again took its content: {size} bytes are left of {least}");
            self.note_damage(message);
        }
    }

    /// Ends the file on this worker, when everything is written or is being written on this worker alone.
    fn finish_if_written(&mut self, id: WorkerId, client: &mut Client, now: Instant) {
        let WorkerState::Open(handle) = &self.workers[id].state else {
            return;
        };
        let at_once = client.keeps_order();
        let waits_for =
            |(other, worker): (WorkerId, &Worker)| (other != id || !at_once) && !worker.asked.is_empty();
        let written = self.reads.is_empty()
            && self.ranges.is_given_out()
            && self
                .workers
                .iter()
                .all(|(_, worker)| worker.work.ready.is_empty())
            && self.created
            && !self.workers.iter().any(waits_for);
        if self.over || !written || self.finish.worker.is_some() || self.workers[id].work.is_unseen {
            return;
        }
        let handle = handle.clone();
        self.finish.worker = Some(id);
        if !at_once {
            return self.measure(id, client);
        }
        // What was there before may be longer, and of a source that shrank the bytes behind its end may have been written.
        let cut = !self.is_fresh()
            || self.options.opening == Opening::Existing
            || self.ranges.end() != self.options.size;
        let attributes = FileAttributes {
            size: self.ranges.end().filter(|_| cut),
            ..self.last_attributes(now)
        };
        self.set(id, &handle, attributes, client);
        self.measure(id, client);
        self.close(id, handle, client);
    }

    /// Asks for a step of the end on the worker that ends it.
    fn ask(&mut self, id: WorkerId, request: Request, purpose: Purpose, client: &mut Client) {
        self.workers[id].asked.insert(client.request(request), purpose);
        self.finish.awaited += 1;
    }

    fn handle_to_finish(&self, id: WorkerId) -> Option<Handle> {
        match &self.workers[id].state {
            WorkerState::Open(handle) => Some(handle.clone()),
            _ => None,
        }
    }

    fn measure(&mut self, id: WorkerId, client: &mut Client) {
        if let Some(handle) = self.handle_to_finish(id) {
            self.ask(id, Request::Fstat { handle }, Purpose::Measure, client);
        }
    }

    fn set(&mut self, id: WorkerId, handle: &Handle, attributes: FileAttributes, client: &mut Client) {
        let handle = || handle.clone();
        if !attributes.is_empty() {
            let set = Request::Fsetstat {
                handle: handle(),
                attributes,
            };
            self.ask(id, set, Purpose::Attributes, client);
        }
        if self.options.sync {
            self.ask(id, Request::Fsync { handle: handle() }, Purpose::Sync, client);
        }
    }

    fn close(&mut self, id: WorkerId, handle: Handle, client: &mut Client) {
        self.finish.step = Step::Closing;
        self.workers[id].state = WorkerState::Gone;
        self.ask(id, Request::Close { handle }, Purpose::Close, client);
    }

    /// Holds the file's size against what was written. A server that does not tell it is believed.
    fn handle_size(&mut self, id: WorkerId, client: &mut Client, outcome: &Outcome) {
        let Ok(Reply::Attributes(FileAttributes { size: Some(size), .. })) = outcome else {
            return;
        };
        let (size, end) = (*size, self.ranges.end().unwrap_or_default());
        if self.over || size == end {
            return;
        }
        let handle = self.handle_to_finish(id);
        match handle {
            // All that is missing is a hole: SETSTAT's size is not how to make it, since some fill the file with zeros then.
            Some(handle) if size < end && size >= self.written_end && !self.finish.extended => {
                self.finish.extended = true;
                let write = Request::Write {
                    handle,
                    offset: end - 1,
                    data: Bytes::from_static(&[0]),
                };
                self.ask(id, write, Purpose::Extend, client);
            }
            Some(handle) if size > end && !self.finish.cut => {
                let attributes = FileAttributes {
                    size: Some(end),
                    ..FileAttributes::default()
                };
                self.ask(id, Request::Fsetstat { handle, attributes }, Purpose::Cut, client);
            }
            _ => {
                let message = format!("the server confirmed {end} bytes, and the file has {size}");
                self.note_damage(message);
            }
        }
    }

    /// Handles the result of a cut: the file may be empty by now, as a server was seen (Paramiko's) that truncates a
    /// file to nothing and fills it up again.
    fn handle_cut(&mut self, id: WorkerId, client: &mut Client, outcome: Outcome) {
        let Some(handle) = self.handle_to_finish(id) else {
            return;
        };
        let end = self.ranges.end().unwrap_or_default();
        if let Err(status) = outcome {
            let attributes = FileAttributes {
                size: Some(end),
                ..FileAttributes::default()
            };
            if std::mem::replace(&mut self.finish.cut_by_path, true) {
                return self.fail(status);
            }
            let path = self.options.path.clone();
            return self.ask(id, Request::Setstat { path, attributes }, Purpose::Cut, client);
        }
        self.finish.cut = true;
        self.measure(id, client);
        let sample = self.sample.as_ref().filter(|(offset, _)| *offset < end);
        let Some((offset, sample)) = sample else {
            return;
        };
        if self.workers[id].work.only_writes || self.options.opening != Opening::Existing {
            let message =
                "the file had to be cut to its length, and cannot be read to see what is left of it";
            return self.note_damage(message);
        }
        let read = read(&handle, *offset, (sample.len() as u64).min(end - offset));
        self.ask(id, read, Purpose::Compare, client);
    }

    /// Returns whether what was read back is what was written there.
    fn is_as_written(&self, outcome: Outcome) -> bool {
        match (outcome, &self.sample) {
            (Ok(Reply::Data(data)), Some((_, sample))) => {
                let found = data.into_bytes();
                !found.is_empty() && sample.starts_with(&found)
            }
            _ => false,
        }
    }

    /// The next step, when all answers to the last one are here.
    fn continue_finish(&mut self, id: WorkerId, client: &mut Client, now: Instant) {
        if self.over
            || self.finish.worker != Some(id)
            || self.finish.awaited > 0
            || !self.ranges.is_complete()
        {
            return;
        }
        let handle = self.handle_to_finish(id);
        match (self.finish.step, handle) {
            (Step::Measuring, Some(handle)) => {
                self.finish.step = Step::Setting;
                self.set(id, &handle, self.last_attributes(now), client);
                self.continue_finish(id, client, now);
            }
            (Step::Setting, Some(handle)) => self.close(id, handle, client),
            (Step::Measuring | Step::Setting, None) => {}
            (Step::Closing, _) if self.should_set_by_path() => {
                self.finish.by_path = true;
                let set = Request::Setstat {
                    path: self.options.path.clone(),
                    attributes: self.options.attributes.clone(),
                };
                self.ask(id, set, Purpose::AttributesByPath, client);
            }
            (Step::Closing, _) if self.options.needs_attributes && self.finish.attributes.is_some() => {
                if let Some(status) = self.finish.attributes.take() {
                    self.not_replaced(Refused::Attributes, status);
                }
            }
            (Step::Closing, _) if self.finish.renaming.is_none() => {
                let Some(to) = self.options.rename_to.clone() else {
                    return self.succeed();
                };
                let (renaming, request) = Renaming::begin(self.options.path.clone(), to, client);
                self.workers[id].asked.insert(request, Purpose::Rename);
                self.finish.renaming = Some(renaming);
            }
            (Step::Closing, _) => {}
        }
    }

    /// Returns whether the server did not set the attributes of an open file, and may set those of a path.
    fn should_set_by_path(&self) -> bool {
        let refused = self.finish.attributes.as_ref();
        refused.is_some_and(|status| status.code != StatusCode::PERMISSION_DENIED)
            && !self.finish.by_path
            && !self.options.attributes.is_empty()
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

    fn note_damage(&mut self, message: impl Into<trunkline_text::Printable>) {
        if !self.over {
            self.over = true;
            let status = Status::local(StatusCode::FAILURE, message);
            self.events.push_back(UploadEvent::Damaged(status));
        }
    }

    fn not_replaced(&mut self, refused: Refused, status: Status) {
        if !self.over {
            self.over = true;
            self.events
                .push_back(UploadEvent::NotReplaced { refused, status });
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
        let took_part = worker.takes_part();
        let (handle, asked) = worker.leave();
        let mut returned = Vec::new();
        let mut requests = Vec::new();
        for (request, asked) in asked {
            requests.push(request);
            if let Purpose::Write { range, sent } = asked {
                worker.pace.note_lost(sent);
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
        if took_part {
            self.workers.stir();
        }
        (handle, requests)
    }
}

fn read(handle: &Handle, offset: u64, length: u64) -> Request {
    Request::Read {
        handle: handle.clone(),
        offset,
        length: u32::try_from(length).expect("a sample is at most 4 KiB"),
    }
}

impl Worker {
    /// Returns whether nothing is wanted for it, waits on it or is under way.
    fn is_idle(&self) -> bool {
        self.asked.is_empty() && self.work.prepared == 0
    }
}
