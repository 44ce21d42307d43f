//! [`Download`]: one file, over one session or several.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use bytes::Bytes;

use super::pace::SendMark;
use super::ranges::Ranges;
use super::sparse::{Run, runs};
use super::worker::{self, Striped, WorkerId, WorkerLoss, WorkerState, Workers};
use super::{DEFAULT_MEMORY, Plan, piece};
use crate::attributes::{FileAttributes, FileType};
use crate::client::{Client, RequestId};
use crate::data::Data;
use crate::reply::{Handle, Outcome, Reply};
use crate::request::{OpenFlags, Request};
use crate::status::{Status, StatusCode};

/// The options of a download.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DownloadOptions {
    /// The file to download.
    pub path: Bytes,
    /// The file's size, if a listing told it. A wrong size costs only time.
    pub size: Option<u64>,
    /// Stop before this offset instead of at the file's end.
    pub end: Option<u64>,
    /// The offset to start at. Bytes before it are not read.
    pub start: u64,
    /// Ranges at or after `start` that an earlier attempt downloaded, as [`Ranges::done`] returned them.
    pub done: Vec<Range<u64>>,
    /// The most bytes in flight or waiting in [`Download::poll_event`]. One read is always allowed.
    pub memory: usize,
    /// Report blocks of 4 KiB of zeros as [`DownloadEvent::Zeros`].
    pub sparse: bool,
}

impl DownloadOptions {
    /// Returns options to download a whole file.
    pub fn new(path: impl Into<Bytes>) -> Self {
        Self {
            path: path.into(),
            size: None,
            end: None,
            start: 0,
            done: Vec::new(),
            memory: DEFAULT_MEMORY,
            sparse: false,
        }
    }
}

/// An event of a download.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DownloadEvent {
    /// The file's attributes when it was opened. Sent at most once, and only if the server returns them.
    Attributes(FileAttributes),
    /// Bytes of the file, in no particular order.
    Data {
        /// Their offset in the file.
        offset: u64,
        /// The bytes.
        data: Data,
    },
    /// Zeros, in whole blocks of 4 KiB: the copy may have a hole there. Only with [`DownloadOptions::sparse`].
    Zeros {
        /// The offset in the file.
        offset: u64,
        /// The length.
        length: u64,
    },
    /// A worker dropped out; the others continue.
    WorkerLost(WorkerId, WorkerLoss),
    /// All bytes have arrived. The file may have grown meanwhile.
    Finished {
        /// The end of the file. Truncate data that was written past it.
        length: u64,
        /// Whether the file was shorter when it was opened.
        grown: bool,
    },
    /// The download failed. [`Download::ranges`] has the downloaded ranges. This is the last event.
    Failed(Status),
}

/// The download of one file as a state machine without I/O.
///
/// The number of bytes in flight follows from the rate and the distance of each worker, bounded by [`DownloadOptions::memory`].
/// After a short read the rest of its range is requested again. Only the server's "end of file" marks the end of a file, and it
/// may not come before the size that FSTAT told. Several workers get stripes of the file. An idle worker takes half of another's
/// stripe, and the ranges of a lost worker go to the others.
pub struct Download {
    options: DownloadOptions,
    ranges: Ranges,
    workers: Workers<Purpose, Reading>,
    /// Size and modification time, from the first worker that received them.
    identity: Option<Identity>,
    events: VecDeque<DownloadEvent>,
    /// Bytes in `events`, and bytes requested by all workers.
    held: usize,
    under_way: usize,
    over: bool,
}

/// The identity of a file in version 3, which has no inode numbers: size and modification time.
type Identity = (Option<u64>, Option<u32>);

type Worker = worker::Worker<Purpose, Reading>;

/// A worker's part of the reading.
struct Reading {
    /// Whether the worker's file is known to be the same as the others'.
    trusted: bool,
    /// The ranges for this worker to request: the rest of short reads first, then the rest of its stripe.
    short: VecDeque<Range<u64>>,
    stripe: Range<u64>,
}

enum Purpose {
    Open,
    Fstat,
    /// FSTAT again, since reading ended before the size.
    FstatAgain,
    Read {
        range: Range<u64>,
        sent: SendMark,
    },
}

/// The largest stripe. The limit lets workers of different speeds end together.
const LARGEST_STRIPE: u64 = 32 * 1024 * 1024;

impl Download {
    /// Returns a download. It begins when it has a worker and is driven.
    pub fn new(options: DownloadOptions) -> Self {
        let mut ranges = Ranges::new(options.start);
        options
            .done
            .iter()
            .cloned()
            .for_each(|range| ranges.complete(range));
        if let Some(size) = options.size.filter(|size| *size > 0) {
            ranges.expect_end(size);
        }
        if let Some(end) = options.end {
            ranges.end_at(end);
        }
        Self {
            workers: Workers::new(options.memory),
            options,
            ranges,
            identity: None,
            events: VecDeque::new(),
            held: 0,
            under_way: 0,
            over: false,
        }
    }

    /// Returns the downloaded ranges. A later attempt resumes from their [`Ranges::done`].
    pub fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// Returns whether [`DownloadEvent::Finished`] or [`DownloadEvent::Failed`] was returned or is queued. Drive each worker once
    /// more then, to close its file.
    pub fn is_over(&self) -> bool {
        self.over
    }
}

impl Striped for Download {
    fn add_worker(&mut self) -> WorkerId {
        // The first worker determines the file's identity.
        let trusted = self.workers.iter().next().is_none();
        self.workers.add(Reading {
            trusted,
            short: VecDeque::new(),
            stripe: 0..0,
        })
    }

    fn retire_worker(&mut self, worker: WorkerId) {
        if let Some(worker) = self.workers.get_mut(worker)
            && !std::mem::replace(&mut worker.retired, true)
        {
            worker.give_back(&mut self.ranges);
            self.workers.stir();
        }
    }

    fn wants_all_driven(&mut self) -> bool {
        self.workers.take_stirred()
    }

    fn is_gone(&self, worker: WorkerId) -> bool {
        self.workers.is_gone(worker)
    }
}

impl Plan for Download {
    type Worker = WorkerId;
    type Event = DownloadEvent;

    fn drive(&mut self, id: WorkerId, client: &mut Client, now: Instant) {
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        if worker.retired {
            // Short reads may have left more ranges since the worker was retired.
            worker.give_back(&mut self.ranges);
        }
        if self.over || worker.retired && worker.asked.is_empty() {
            return self.remove_worker(id, client);
        }
        let handle = match &worker.state {
            WorkerState::Idle => {
                let open = client.request(Request::Open {
                    path: self.options.path.clone(),
                    flags: OpenFlags::READ,
                    attributes: FileAttributes::default(),
                });
                worker.asked.insert(open, Purpose::Open);
                worker.state = WorkerState::Opening;
                return;
            }
            WorkerState::Open(handle) => handle.clone(),
            _ => return,
        };
        let piece = piece(client.limits().max_read);
        while client.has_room() && self.may_ask(id) {
            let Some(range) = self.next_range(id, piece) else {
                break;
            };
            let length = range.end - range.start;
            let read = client.request(Request::Read {
                handle: handle.clone(),
                offset: range.start,
                length: u32::try_from(length).expect("a range is cut to the size of a read"),
            });
            let worker = &mut self.workers[id];
            let sent = worker.pace.note_sent(length, now);
            self.under_way += length as usize;
            worker.asked.insert(read, Purpose::Read { range, sent });
        }
        self.finish_if_complete(id, client);
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
            Purpose::Open => self.handle_open(id, client, outcome),
            Purpose::Fstat => self.handle_attributes(id, client, outcome),
            Purpose::FstatAgain => self.handle_early_end(client, &outcome),
            Purpose::Read { range, sent } => {
                self.under_way -= (range.end - range.start) as usize;
                let worker = &mut self.workers[id];
                worker.pace.note_done(sent, now);
                if worker.work.trusted {
                    self.handle_data(id, range, outcome);
                } else {
                    // The data overtook the answer to FSTAT, which shows whether it belongs to the same file.
                    self.ranges.give_back(range);
                }
            }
        }
        self.finish_if_complete(id, client);
        None
    }

    fn poll_event(&mut self) -> Option<DownloadEvent> {
        let event = self.events.pop_front()?;
        if let DownloadEvent::Data { data, .. } = &event {
            self.held -= data.len();
        }
        Some(event)
    }

    /// Leaves the worker's ranges to the others. With no worker left, the download waits for a new one.
    fn lose_worker(&mut self, worker: WorkerId) {
        self.abandon(worker);
    }

    fn remove_worker(&mut self, worker: WorkerId, client: &mut Client) {
        let (handle, requests) = self.abandon(worker);
        requests.into_iter().for_each(|id| client.cancel(id));
        if let Some(handle) = handle {
            client.close(handle);
        }
    }
}

impl Download {
    fn may_ask(&self, id: WorkerId) -> bool {
        let used = self.held + self.under_way;
        let worker = &self.workers[id];
        !worker.retired && worker.pace.has_room(0) && (used == 0 || used < self.options.memory)
    }

    /// Returns the next range for a worker to read, at most a piece, from its short reads, its stripe, a new stripe, or half of
    /// the longest stripe of another worker.
    fn next_range(&mut self, id: WorkerId, piece: u64) -> Option<Range<u64>> {
        let end = self.ranges.end().unwrap_or(u64::MAX);
        let worker = &mut self.workers[id].work;
        while let Some(range) = worker.short.pop_front() {
            let range = range.start..range.end.min(end);
            if !range.is_empty() {
                return Some(range);
            }
        }
        worker.stripe.end = worker.stripe.end.min(end);
        if worker.stripe.is_empty() {
            let most = self.stripe_length(piece);
            let stripe = self.ranges.take(most, piece).or_else(|| self.steal(piece))?;
            self.workers[id].work.stripe = stripe;
        }
        let stripe = &mut self.workers[id].work.stripe;
        let range = stripe.start..stripe.end.min(stripe.start.saturating_add(piece));
        stripe.start = range.end;
        Some(range)
    }

    /// Returns the length of a stripe. A worker alone reads piece by piece. Several workers get stripes, since servers read ahead
    /// in files; four for each worker, so that a slow one does not delay the end.
    fn stripe_length(&self, piece: u64) -> u64 {
        let workers = self.workers.taking_part() as u64;
        if workers < 2 {
            return piece;
        }
        let end = self.ranges.end().or(self.ranges.expected_end());
        let left = end.map(|end| {
            end.saturating_sub(self.options.start)
                .saturating_sub(self.ranges.done_bytes())
        });
        let share = left.map_or(16 * piece, |left| left / (4 * workers));
        (share - share % piece).clamp(4 * piece, LARGEST_STRIPE.max(4 * piece))
    }

    fn steal(&mut self, piece: u64) -> Option<Range<u64>> {
        let left = |stripe: &Range<u64>| stripe.end.saturating_sub(stripe.start);
        let stripes = self.workers.iter_mut().map(|worker| &mut worker.work.stripe);
        let longest = stripes.max_by_key(|stripe| left(stripe))?;
        let length = left(longest);
        let pieces = length.div_ceil(piece);
        if pieces < 2 {
            return None;
        }
        let middle = longest.start + pieces / 2 * piece;
        let stolen = middle..longest.end;
        longest.end = middle;
        Some(stolen)
    }

    fn handle_open(&mut self, id: WorkerId, client: &mut Client, outcome: Outcome) {
        let worker = &mut self.workers[id];
        match outcome {
            Ok(Reply::Handle(handle)) if self.over => {
                worker.state = WorkerState::Gone;
                client.close(handle);
            }
            Ok(Reply::Handle(handle)) => {
                let fstat = client.request(Request::Fstat {
                    handle: handle.clone(),
                });
                worker.asked.insert(fstat, Purpose::Fstat);
                worker.state = WorkerState::Open(handle);
            }
            Err(status) => {
                worker.state = WorkerState::Gone;
                self.workers.stir();
                if self.workers.taking_part() > 0 {
                    self.events
                        .push_back(DownloadEvent::WorkerLost(id, WorkerLoss::Refused(status)));
                } else {
                    self.fail(status);
                }
            }
            // The client returns the kind of reply that belongs to a request, or a status.
            Ok(_) => worker.state = WorkerState::Gone,
        }
    }

    fn handle_attributes(&mut self, id: WorkerId, client: &mut Client, outcome: Outcome) {
        let worker = &mut self.workers[id];
        let attributes = match outcome {
            Ok(Reply::Attributes(attributes)) => attributes,
            // Without attributes, only the first worker is trusted to read the file.
            _ if worker.work.trusted => return,
            _ => return self.distrust(id, client),
        };
        let identity: Identity = (attributes.size, attributes.times.map(|times| times.modified));
        match self.identity {
            Some(first) if first == identity => {
                worker.work.trusted = true;
                return;
            }
            Some(_) => return self.distrust(id, client),
            None => {
                worker.work.trusted = true;
                self.identity = Some(identity);
            }
        }
        let regular = matches!(attributes.file_type(), None | Some(FileType::Regular));
        // Devices and files in /proc report the size 0, whatever they hold.
        if let Some(size) = attributes.size.filter(|size| *size > 0 && regular) {
            self.ranges.expect_end(size);
        }
        self.events.push_back(DownloadEvent::Attributes(attributes));
    }

    fn distrust(&mut self, id: WorkerId, client: &mut Client) {
        self.remove_worker(id, client);
        if self.workers.taking_part() > 0 {
            self.events
                .push_back(DownloadEvent::WorkerLost(id, WorkerLoss::AnotherFile));
        } else {
            // The workers that had the file open were lost, and it can no longer be opened.
            let message = "another file is there than when it was begun with, or it was written to";
            self.fail(Status::local(StatusCode::FAILURE, message));
        }
    }

    fn handle_data(&mut self, id: WorkerId, range: Range<u64>, outcome: Outcome) {
        if self.over {
            return;
        }
        match outcome {
            Ok(Reply::Data(mut data)) => {
                let got = range.start..range.start + data.len() as u64;
                if got.end < range.end {
                    self.workers[id].work.short.push_back(got.end..range.end);
                }
                if let Some(end) = self.ranges.end().filter(|end| *end < got.end) {
                    data.truncate(end.saturating_sub(got.start) as usize);
                }
                self.ranges.complete(got.clone());
                self.give_data(got.start, data);
            }
            Err(Status {
                code: StatusCode::EOF,
                ..
            }) => self.ranges.end_at(range.start),
            Err(status) => {
                self.ranges.give_back(range);
                self.fail(status);
            }
            Ok(_) => self.ranges.give_back(range),
        }
    }

    fn give_data(&mut self, offset: u64, data: Data) {
        if data.is_empty() {
            return;
        }
        if !self.options.sparse {
            self.held += data.len();
            self.events.push_back(DownloadEvent::Data { offset, data });
            return;
        }
        for run in runs(offset, data) {
            self.events.push_back(match run {
                Run::Data { offset, data } => {
                    self.held += data.len();
                    DownloadEvent::Data { offset, data }
                }
                Run::Zeros { offset, length } => DownloadEvent::Zeros { offset, length },
            });
        }
    }

    fn finish_if_complete(&mut self, id: WorkerId, client: &mut Client) {
        let is_open = |worker: &Worker| matches!(worker.state, WorkerState::Open(_));
        // A file with nothing to read must still be opened, to show that it can be.
        let opened = self.workers.iter().any(|(_, worker)| is_open(worker));
        if self.over || !opened || !self.ranges.is_complete() {
            return;
        }
        let (told, length) = (self.told_size(), self.ranges.end().unwrap_or_default());
        let Some(told) = told.filter(|told| *told > length) else {
            return self.finish();
        };
        let worker = &mut self.workers[id];
        match &worker.state {
            WorkerState::Open(handle) if worker.asked.is_empty() => {
                let fstat = Request::Fstat {
                    handle: handle.clone(),
                };
                worker.asked.insert(client.request(fstat), Purpose::FstatAgain);
            }
            WorkerState::Open(_) => {}
            _ => self.ended_early(told, length),
        }
    }

    /// Returns the size that the file had when it was opened, if all of it is requested.
    fn told_size(&self) -> Option<u64> {
        let told = self.identity.and_then(|(size, _)| size);
        told.filter(|_| self.options.end.is_none())
    }

    fn finish(&mut self) {
        let length = self.ranges.end().unwrap_or_default();
        let grown = self.told_size().is_some_and(|told| told < length);
        self.over = true;
        self.events.push_back(DownloadEvent::Finished { length, grown });
    }

    /// Handles a file that ended before its size. Either another program has truncated it, or the server ended it too early: the
    /// download fails. OpenSSH's sftp-server alone is trusted if the size is still the same: files in /sys are that short.
    fn handle_early_end(&mut self, client: &Client, outcome: &Outcome) {
        let (told, length) = (self.told_size(), self.ranges.end().unwrap_or_default());
        let Some(told) = told.filter(|_| !self.over && self.ranges.is_complete()) else {
            return;
        };
        match outcome {
            Ok(Reply::Attributes(now)) if client.keeps_order() && now.size == Some(told) => self.finish(),
            _ => self.ended_early(told, length),
        }
    }

    fn ended_early(&mut self, told: u64, length: u64) {
        let message = format!("it changed while it was copied: {length} of its {told} bytes came");
        self.fail(Status::local(StatusCode::FAILURE, message));
    }

    fn fail(&mut self, status: Status) {
        if !self.over {
            self.over = true;
            self.events.push_back(DownloadEvent::Failed(status));
        }
    }

    /// Takes all work from a worker. Returns its file and its requests.
    fn abandon(&mut self, id: WorkerId) -> (Option<Handle>, Vec<RequestId>) {
        let Some(worker) = self.workers.get_mut(id) else {
            return (None, Vec::new());
        };
        let took_part = worker.takes_part();
        let (handle, asked) = worker.leave();
        let mut requests = Vec::new();
        for (id, asked) in asked {
            requests.push(id);
            if let Purpose::Read { range, sent } = asked {
                worker.pace.note_lost(sent);
                self.under_way -= (range.end - range.start) as usize;
                self.ranges.give_back(range);
            }
        }
        worker.give_back(&mut self.ranges);
        if took_part {
            self.workers.stir();
        }
        (handle, requests)
    }
}

impl Worker {
    /// Gives back the ranges that the worker has not requested yet.
    fn give_back(&mut self, ranges: &mut Ranges) {
        let Reading { short, stripe, .. } = &mut self.work;
        short.drain(..).for_each(|range| ranges.give_back(range));
        ranges.give_back(std::mem::replace(stripe, 0..0));
    }
}
