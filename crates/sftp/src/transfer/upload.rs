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
    /// The offset to start at. Bytes before it are left unchanged.
    pub start: u64,
    /// Ranges at or after `start` that an earlier attempt wrote, as [`Ranges::done`] returned them.
    pub done: Vec<Range<u64>>,
    /// Permissions for a new file, before the server's umask.
    pub create: FileAttributes,
    /// Attributes to set after the last write: times, permissions, owner. Leave the size unset: the upload sets it.
    pub attributes: FileAttributes,
    /// The expected state of `path`.
    pub opening: Opening,
    /// Owner and group to give the new file before anything is written to it; for [`Opening::Exclusive`]. If the server refuses,
    /// the upload ends with [`UploadEvent::NotReplaced`].
    pub owner: Option<Owner>,
    /// The attributes are those of the file that this one replaces: if the server refuses them, nothing is replaced.
    pub needs_attributes: bool,
    /// A random time of last access that marks the new file, for places where somebody else may be able to give its name to
    /// another file. Another worker writes only after FSTAT has shown it this time and the owner of the file that the first
    /// worker made. For [`Opening::Exclusive`] on a server that keeps the order.
    pub mark: Option<u32>,
    /// Flush the file to the server's disk before closing it, if the server can.
    pub sync: bool,
    /// The name to give the file once all of it has been written. An existing file of that name is replaced, if the server can.
    pub rename_to: Option<Bytes>,
    /// The most bytes of the source to hold. One write is always allowed.
    pub memory: usize,
}

impl UploadOptions {
    /// Returns options to write a file from its beginning.
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
    /// Create the file, or empty an existing file unless part of it is to be kept.
    #[default]
    Truncate,
    /// Create the file, and fail if the name is taken: neither somebody else's file nor a link is ever written to.
    Exclusive,
    /// Write over an existing file in its place.
    Existing,
}

/// Identifies a read of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReadId(u64);

/// Something for the application to do or to know.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum UploadEvent {
    /// Asks for bytes of the source: answer with [`Upload::provide`]. With one worker and nothing done before, offsets come in
    /// order, so that the source can be a pipe.
    Read {
        /// Identifies the read in the answer.
        id: ReadId,
        /// The offset in the source.
        offset: u64,
        /// The length.
        length: usize,
    },
    /// A worker dropped out; the others continue.
    WorkerLost(WorkerId, WorkerLoss),
    /// The file is written, closed and renamed.
    Finished {
        /// Its length.
        length: u64,
        /// Whether the server flushed the file to its disk, as requested.
        synced: bool,
        /// The error, if the attributes were not set.
        attributes: Result<(), Status>,
    },
    /// The file did not get its final name; an existing file of that name is unchanged. This is the last event.
    NotReplaced {
        /// The refused operation.
        refused: Refused,
        /// The server's answer.
        status: Status,
    },
    /// The file does not hold the data that the server has confirmed. Nothing was renamed. This is the last event.
    Damaged(Status),
    /// The upload failed. [`Upload::ranges`] has the confirmed ranges. Nothing was renamed, unless the connection was lost during
    /// the renaming. This is the last event.
    Failed(Status),
}

/// The upload of one file as a state machine without I/O.
///
/// The number of bytes in flight follows from the rate and the distance of each worker, bounded by [`UploadOptions::memory`]. If
/// one session writes alone to a server that [keeps the order](Client::keeps_order), attributes, fsync, FSTAT and CLOSE follow
/// the last write at once. With several sessions they follow when all writes have been confirmed. On other servers each step
/// waits for the one before. The renaming waits for all answers, so that an incomplete file never replaces another.
///
/// The size that FSTAT returns is compared with the number of bytes written: the upload fails if a server acknowledges WRITEs but
/// has a different file in the end.
pub struct Upload {
    options: UploadOptions,
    ranges: Ranges,
    mark: Option<Mark>,
    workers: Workers<Purpose, Writing>,
    /// A worker has created or opened the file, so that the others may open it.
    created: bool,
    reads: HashMap<ReadId, (WorkerId, Range<u64>)>,
    next_read: u64,
    finish: Finish,
    events: VecDeque<UploadEvent>,
    /// Bytes requested from the source, provided, or being written.
    held: usize,
    /// The highest end of a confirmed write.
    written_end: u64,
    /// The offset and the beginning of the first bytes sent, to look for them in the file; and whether the server has confirmed
    /// them.
    sample: Option<(u64, Bytes)>,
    sample_is_there: bool,
    over: bool,
}

/// The most bytes of a file to read back.
const SAMPLE: usize = 4096;

type Worker = worker::Worker<Purpose, Writing>;

/// A worker's part of the writing.
#[derive(Default)]
struct Writing {
    /// Bytes requested from the source for this worker and not sent yet.
    prepared: u64,
    ready: VecDeque<(u64, Bytes)>,
    /// The worker tried to open the file before another worker had created it.
    came_early: bool,
    /// The server lets this worker write the file but not read it.
    only_writes: bool,
    /// The worker's open file has not been identified yet.
    is_unseen: bool,
}

enum Purpose {
    Open(Role),
    /// FSTAT to check that opening did not empty the file: it has at least `least` bytes.
    Intact {
        least: u64,
    },
    /// READ to check that opening the file once more left the written bytes there.
    StillThere,
    Owner,
    /// FSTAT of the new file before it is marked.
    Made,
    Mark,
    /// FSTAT of the new file after it is marked.
    Marked,
    /// FSTAT of the file that a further worker opened, to look for the mark.
    Seen,
    Write {
        range: Range<u64>,
        sent: SendMark,
    },
    Measure,
    /// WRITE of a last byte, which makes the hole before it a part of the file.
    Extend,
    Cut,
    Compare,
    Attributes,
    /// SETSTAT by path, for a server that does not set attributes of open files.
    AttributesByPath,
    Sync,
    Close,
    Rename,
}

/// The role in which a worker opens the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Creates the file, or opens one that is known to exist.
    First,
    /// Opens the file, maybe before the first worker has created it.
    Early,
    Further,
}

/// The progress of finishing an upload.
#[derive(Default)]
struct Finish {
    /// The worker that finishes.
    worker: Option<WorkerId>,
    step: Step,
    /// The number of answers to wait for before the next step.
    awaited: usize,
    extended: bool,
    cut: bool,
    cut_by_path: bool,
    synced: bool,
    attributes: Option<Status>,
    by_path: bool,
    renaming: Option<Renaming>,
}

/// The steps of finishing an upload. If the server keeps the order, the first steps are sent together.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The file is being measured.
    #[default]
    Measuring,
    /// Attributes are being set, and the file is being flushed to the disk.
    Setting,
    Closing,
}

impl Upload {
    /// Returns an upload. It begins when it has a worker and is driven.
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

    /// Returns whether the file was opened or created on the server.
    pub fn has_opened(&self) -> bool {
        self.created
    }

    /// Returns the ranges that the server has confirmed. A later attempt resumes from their [`Ranges::done`].
    pub fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// Returns whether the upload is over: its last event was returned or is queued. Drive each worker once more then, to close
    /// its file.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Takes the bytes that an [`UploadEvent::Read`] asked for. Fewer bytes than requested, or none, mean that the source ends
    /// there. Excess bytes are dropped.
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

    /// Requests as much of the source as is worth having in flight on a worker, and sends the provided bytes.
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
            // Until the file's creation is confirmed, it may be somebody else's.
            WorkerState::Open(handle)
                if self.created && !worker.work.is_unseen && self.finish.worker != Some(id) =>
            {
                let handle = handle.clone();
                self.write_ready(id, &handle, client, now);
            }
            _ => {}
        }
        // A session that is still opening may never be ready. Until it is, it takes no ranges from the others.
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
                // A server that finds files by name may not find the file any more once it has its final name.
                let is_told = self.finish.renaming.is_none()
                    && !matches!(&outcome, Err(status) if status.code != StatusCode::EOF);
                if is_told && !self.is_as_written(outcome) {
                    let message = "opening the file once more took its content";
                    self.note_damage(message);
                }
            }
            Purpose::Owner => match outcome {
                Ok(_) if self.mark.is_some() => {}
                Ok(_) => self.note_created(),
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

    /// Schedules unconfirmed writes again. With no worker left, the upload waits for a new one. An unanswered renaming fails the
    /// upload, since the server may have renamed the file; so does an unanswered creation with [`Opening::Exclusive`].
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
        // With READ too: a server (Erlang's) empties a file that is opened with WRITE alone. READ also lets the content be
        // compared.
        let both = match self.workers[id].work.only_writes {
            true => OpenFlags::WRITE,
            false => OpenFlags::READ | OpenFlags::WRITE,
        };
        let is_marked = self.mark.as_ref().is_none_or(Mark::is_kept);
        let (role, flags) = match self.options.opening {
            _ if self.created && is_marked => (Role::Further, both),
            // Without the mark the worker could not check that it has opened the same file.
            _ if self.created => return self.refuse_unmarked(id, client),
            Opening::Existing => (Role::First, both),
            Opening::Exclusive if !opening => (
                Role::First,
                OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE,
            ),
            // The file most likely exists by the time the server reads this. Nothing is written before its creation is confirmed.
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

    /// Returns whether no part of an existing file is to be kept.
    fn is_fresh(&self) -> bool {
        self.options.start == 0 && self.options.done.is_empty()
    }

    /// Requests pieces of the source, even before the file is open: the source's disk can be read meanwhile.
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
        // Some servers can write a file only from its beginning: bytes that are ready early wait for the bytes before them.
        // (rclone's server itself waits for a second, with as many requests as it handles at once.)
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
                    None if owner.is_none() && role != Role::Early => self.note_created(),
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
                // A worker that came early has opened somebody else's file.
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
            // The client returns the kind of reply that belongs to a request, or a status.
            Ok(_) => drop(self.abandon(id)),
        }
    }

    /// Notes that the file exists: workers that came early may open it, and workers that have it open may write.
    fn note_created(&mut self) {
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
            Purpose::Made => mark.note_made(found, now),
            Purpose::Marked => {
                mark.note_set(found);
                self.note_created();
            }
            _ if mark.is_on(found) => self.workers[id].work.is_unseen = false,
            _ => self.refuse_unmarked(id, client),
        }
    }

    /// Drops a worker whose session does not reach the created file.
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

    /// Reports damage if the server emptied the file when it opened it.
    fn handle_intact(&mut self, least: u64, outcome: &Outcome) {
        if let Ok(Reply::Attributes(FileAttributes { size: Some(size), .. })) = outcome
            && *size < least
        {
            let message =
                format!("opening the file again took its content: {size} bytes are left of {least}");
            self.note_damage(message);
        }
    }

    /// Finishes the file on this worker once everything is written, or is being written on this worker alone.
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
        // An earlier file may be longer, and bytes past the end of a source that shrank may have been written.
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

    /// Sends a request of a finishing step on the worker that finishes.
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

    /// Compares the file's size with the number of bytes written. Trusts a server that does not report a size.
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
            // Only a hole is missing. SETSTAT's size does not serve to make it, since some servers then fill the file with zeros.
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

    /// Handles the result of a cut. The content may be gone by now: a server was seen (Paramiko's) that truncates a file to
    /// nothing and fills it up again.
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

    /// Returns whether the data that was read back is the data that was written there.
    fn is_as_written(&self, outcome: Outcome) -> bool {
        match (outcome, &self.sample) {
            (Ok(Reply::Data(data)), Some((_, sample))) => {
                let found = data.into_bytes();
                !found.is_empty() && sample.starts_with(&found)
            }
            _ => false,
        }
    }

    /// Begins the next step when all answers to the last step are here.
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

    /// Returns whether to set attributes by path, because the server did not set them on the open file.
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

    /// Takes all work from a worker. Returns its file and its requests.
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
    /// Returns whether the worker has no bytes requested or waiting, and no request in flight.
    fn is_idle(&self) -> bool {
        self.asked.is_empty() && self.work.prepared == 0
    }
}
