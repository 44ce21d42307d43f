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
    /// The file.
    pub path: Bytes,
    /// Its size if a directory told it; a wrong one costs time only.
    pub size: Option<u64>,
    /// Stop before this offset instead of at the file's end.
    pub end: Option<u64>,
    /// Start at this offset: what lies before is not looked at.
    pub start: u64,
    /// Ranges at or behind `start` that an earlier attempt brought, as [`Ranges::done`] told them.
    pub done: Vec<Range<u64>>,
    /// Bytes that may be under way or wait in [`Download::poll_event`]; at least one read is.
    pub memory: usize,
    /// Tell blocks of 4 KiB of zeros as [`DownloadEvent::Zeros`].
    pub sparse: bool,
}

impl DownloadOptions {
    /// The whole of a file.
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

/// Something that a download brought.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DownloadEvent {
    /// The file's attributes when it was opened; comes at most once, and not if the server does not tell.
    Attributes(FileAttributes),
    /// Bytes of the file, in no order.
    Data {
        /// Their place in the file.
        offset: u64,
        /// The bytes.
        data: Data,
    },
    /// Zeros, in whole blocks of 4 KiB: a hole may be left there. Only with [`DownloadOptions::sparse`].
    Zeros {
        /// The beginning.
        offset: u64,
        /// The length.
        length: u64,
    },
    /// A worker beside others takes no part.
    WorkerLost(WorkerId, WorkerLoss),
    /// All bytes have come. The file may have grown meanwhile.
    Finished {
        /// The end of the file; data that was written behind it has to be cut off.
        length: u64,
        /// Whether `length` is more than the file had when it was opened.
        grown: bool,
    },
    /// The server failed. What was downloaded is in [`Download::ranges`]; nothing more comes.
    Failed(Status),
}

/// The download of one file as a state machine without I/O.
///
/// As many bytes are asked for at once as the rate and the distance of each worker are worth, bounded by
/// [`DownloadOptions::memory`]. A read that comes back short is asked for again from where it stopped; only the
/// server's "end of file" says where a file ends, and it may not say so before the size that FSTAT told. Several workers get stripes of the file; a worker with nothing to do takes half of
/// another's stripe, and what a lost worker had comes back to the others.
pub struct Download {
    options: DownloadOptions,
    ranges: Ranges,
    workers: Workers<Purpose, Reading>,
    /// Size and modification time at the first worker that told them.
    identity: Option<Identity>,
    events: VecDeque<DownloadEvent>,
    /// Bytes in `events`, and bytes asked for on all workers.
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
    /// The ranges that this worker has to ask for: short reads first, then the rest of its stripe.
    short: VecDeque<Range<u64>>,
    stripe: Range<u64>,
}

enum Purpose {
    Open,
    Fstat,
    /// Once more, since reading ended before the size.
    FstatAgain,
    Read {
        range: Range<u64>,
        sent: SendMark,
    },
}

/// The largest stripe, so that workers of different speed end together.
const LARGEST_STRIPE: u64 = 32 * 1024 * 1024;

impl Download {
    /// A download that begins when it has a worker and is driven.
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

    /// Returns the downloaded ranges: with [`Ranges::done`] a later attempt resumes from there.
    pub fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// Returns whether [`DownloadEvent::Finished`] or [`DownloadEvent::Failed`] was given out or waits. Each worker
    /// wants to be driven once more then, to close its file.
    pub fn is_over(&self) -> bool {
        self.over
    }
}

impl Striped for Download {
    fn add_worker(&mut self) -> WorkerId {
        // The first shows what the file is.
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
            // The rest of what came back short too.
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
                    // Overtook the answer to FSTAT, which says whether it is worth anything.
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

    /// With none left the download waits for a new worker.
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

    /// The next range for a worker to read, at most a piece: of its short reads, its stripe, a new stripe, or half of the
    /// longest stripe of another worker.
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

    /// A worker alone reads piece by piece. Workers beside each other get stripes, since servers read ahead in files; four
    /// for each worker, so that a slow one does not hold the end back.
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
            // The client gives the kind of reply that belongs to a request, or a status.
            Ok(_) => worker.state = WorkerState::Gone,
        }
    }

    fn handle_attributes(&mut self, id: WorkerId, client: &mut Client, outcome: Outcome) {
        let worker = &mut self.workers[id];
        let attributes = match outcome {
            Ok(Reply::Attributes(attributes)) => attributes,
            // Without attributes only the first worker can be believed to read the file.
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
        // Devices and the files of /proc say 0, which says nothing.
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
            // Those that had the file open were lost: nobody can open it any more.
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
        // A file that is known to hold nothing to read must still prove that it can be opened.
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

    /// The size that the file had when it was opened, where all of it is wanted.
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

    /// The file ended before its size. Another program has cut it, or the server ended it too early: either way this is not
    /// what was asked for. Only of OpenSSH's sftp-server it is known that neither is true where the size is still the same:
    /// files of /sys are that short.
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

    /// Takes everything from a worker; its file and what was asked for.
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
    /// Gives back what it was to ask for.
    fn give_back(&mut self, ranges: &mut Ranges) {
        let Reading { short, stripe, .. } = &mut self.work;
        short.drain(..).for_each(|range| ranges.give_back(range));
        ranges.give_back(std::mem::replace(stripe, 0..0));
    }
}
