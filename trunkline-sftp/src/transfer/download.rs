//! [`Download`]: one file, over one session or several.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::Instant;

use bytes::Bytes;

use super::lane::{LaneId, LaneLoss};
use super::pace::{Pace, Sent};
use super::ranges::Ranges;
use super::sparse::{Run, runs};
use super::{DEFAULT_MEMORY, piece};
use crate::attributes::{FileAttributes, FileType};
use crate::client::{Client, RequestId};
use crate::data::Data;
use crate::reply::{Handle, Outcome, Reply};
use crate::request::{OpenFlags, Request};
use crate::status::{Status, StatusCode};

/// What to download.
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
        /// Where they belong.
        offset: u64,
        /// The bytes.
        data: Data,
    },
    /// Zeros, in whole blocks of 4 KiB: a hole may be left there. Only with [`DownloadOptions::sparse`].
    Zeros {
        /// Where they begin.
        offset: u64,
        /// How many.
        length: u64,
    },
    /// A lane beside others takes no part.
    LaneLost(LaneId, LaneLoss),
    /// All bytes have come. The file may have shrunk or grown meanwhile.
    Finished {
        /// Where the file ended; what was written behind this is to be cut off. Less than
        /// [`DownloadOptions::start`] if the file is shorter than that.
        length: u64,
        /// Whether `length` is another size than the file had when it was opened.
        changed: bool,
    },
    /// The server failed. What was downloaded is in [`Download::ranges`]; nothing more comes.
    Failed(Status),
}

/// The download of one file as a state machine without I/O.
///
/// As many bytes are asked for at once as the rate and the distance of each lane are worth, bounded by
/// [`DownloadOptions::memory`]. A read that comes back short is asked for again from where it stopped; only the
/// server's "end of file" says where a file ends. Several lanes get stripes of the file; a lane with nothing to do takes half of
/// another's stripe, and what a lost lane had comes back to the others.
pub struct Download {
    options: DownloadOptions,
    ranges: Ranges,
    lanes: Vec<Lane>,
    /// Size and modification time at the first lane that told them.
    identity: Option<Identity>,
    events: VecDeque<DownloadEvent>,
    /// Bytes in `events`, and bytes asked for on all lanes.
    held: usize,
    under_way: usize,
    over: bool,
}

/// What tells one file from another in version 3, which has no inode numbers: size and modification time.
type Identity = (Option<u64>, Option<u32>);

struct Lane {
    state: LaneState,
    /// Whether the lane's file is known to be the same as the others'.
    trusted: bool,
    /// Only what it has asked for still comes.
    retired: bool,
    pace: Pace,
    asked: HashMap<RequestId, Asked>,
    /// What is this lane's to ask for: short reads first, then the rest of its stripe.
    short: VecDeque<Range<u64>>,
    stripe: Range<u64>,
}

enum LaneState {
    Idle,
    Opening,
    Open(Handle),
    /// Closed, lost, or never to be used again.
    Gone,
}

enum Asked {
    Open,
    Fstat,
    Read { range: Range<u64>, sent: Sent },
}

/// What a lane has in flight from the start: the first window of a session.
pub(super) const FIRST_FLIGHT: u64 = 2 * 1024 * 1024;
/// What a lane has in flight however slow it is: four of OpenSSH's largest reads.
pub(super) const LEAST_FLIGHT: u64 = 1024 * 1024;
/// The largest stripe, so that lanes of different speed end together.
const LARGEST_STRIPE: u64 = 32 * 1024 * 1024;

impl Download {
    /// A download that begins when it has a lane and is driven.
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
            options,
            ranges,
            lanes: Vec::new(),
            identity: None,
            events: VecDeque::new(),
            held: 0,
            under_way: 0,
            over: false,
        }
    }

    /// What has been downloaded: with [`Ranges::done`] a later attempt goes on from there.
    pub fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// Whether [`DownloadEvent::Finished`] or [`DownloadEvent::Failed`] was given out or waits. Each lane wants to be
    /// driven once more then, to close its file.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// One more session to download over.
    pub fn add_lane(&mut self) -> LaneId {
        self.lanes.push(Lane {
            state: LaneState::Idle,
            trusted: self.lanes.is_empty(),
            retired: false,
            pace: Pace::new(LEAST_FLIGHT, self.options.memory as u64).beginning_with(FIRST_FLIGHT),
            asked: HashMap::new(),
            short: VecDeque::new(),
            stripe: 0..0,
        });
        LaneId(self.lanes.len() - 1)
    }

    /// A lane's session is dead: what it had is for the others. With none left the download waits for a new lane.
    pub fn lose_lane(&mut self, lane: LaneId) {
        let Some(lane) = self.lanes.get_mut(lane.0) else {
            return;
        };
        self.under_way -= lane.abandon(&mut self.ranges).1;
    }

    /// Has a lane ask for nothing more: what it has asked for still comes, and then it is removed. The rest is for the
    /// others, which want to be driven.
    pub fn retire_lane(&mut self, lane: LaneId) {
        if let Some(lane) = self.lanes.get_mut(lane.0) {
            lane.retired = true;
            lane.give_back(&mut self.ranges);
        }
    }

    /// Whether nothing comes of a lane any more: it was lost, removed, or retired and has brought what it was to bring.
    pub fn is_gone(&self, lane: LaneId) -> bool {
        let lane = self.lanes.get(lane.0);
        lane.is_none_or(|lane| matches!(lane.state, LaneState::Gone))
    }

    /// Takes a lane out of the download and closes its file; its session is well.
    pub fn remove_lane(&mut self, lane: LaneId, client: &mut Client) {
        let Some(lane) = self.lanes.get_mut(lane.0) else {
            return;
        };
        let handle = match std::mem::replace(&mut lane.state, LaneState::Gone) {
            LaneState::Open(handle) => Some(handle),
            _ => None,
        };
        let (requests, bytes) = lane.abandon(&mut self.ranges);
        self.under_way -= bytes;
        requests.into_iter().for_each(|id| client.cancel(id));
        if let Some(handle) = handle {
            client.close(handle);
        }
    }

    /// Asks a lane's session for as much as is worth having in flight. Call it after every other call.
    pub fn drive(&mut self, id: LaneId, client: &mut Client, now: Instant) {
        let Some(lane) = self.lanes.get_mut(id.0) else {
            return;
        };
        if lane.retired {
            // The rest of what came back short too.
            lane.give_back(&mut self.ranges);
        }
        if self.over || lane.retired && lane.asked.is_empty() {
            return self.remove_lane(id, client);
        }
        let handle = match &lane.state {
            LaneState::Idle => {
                let open = client.request(Request::Open {
                    path: self.options.path.clone(),
                    flags: OpenFlags::READ,
                    attributes: FileAttributes::default(),
                });
                lane.asked.insert(open, Asked::Open);
                lane.state = LaneState::Opening;
                return;
            }
            LaneState::Open(handle) => handle.clone(),
            _ => return,
        };
        let piece = piece(client.limits().max_read);
        while self.may_ask(id) {
            let Some(range) = self.next_range(id, piece) else {
                break;
            };
            let length = range.end - range.start;
            let read = client.request(Request::Read {
                handle: handle.clone(),
                offset: range.start,
                length: u32::try_from(length).expect("a range is cut to the size of a read"),
            });
            let lane = &mut self.lanes[id.0];
            let sent = lane.pace.sent(length, now);
            self.under_way += length as usize;
            lane.asked.insert(read, Asked::Read { range, sent });
        }
        self.finish_if_complete();
    }

    /// Takes the answer to one of this lane's requests; gives back that to any other.
    pub fn handle_reply(
        &mut self,
        id: LaneId,
        client: &mut Client,
        request: RequestId,
        outcome: Outcome,
        now: Instant,
    ) -> Option<Outcome> {
        let Some(asked) = self
            .lanes
            .get_mut(id.0)
            .and_then(|lane| lane.asked.remove(&request))
        else {
            return Some(outcome);
        };
        match asked {
            Asked::Open => self.handle_open(id, client, outcome),
            Asked::Fstat => self.handle_attributes(id, client, outcome),
            Asked::Read { range, sent } => {
                self.under_way -= (range.end - range.start) as usize;
                let lane = &mut self.lanes[id.0];
                lane.pace.done(sent, now);
                if lane.trusted {
                    self.handle_data(id, range, outcome);
                } else {
                    // Overtook the answer to FSTAT, which says whether it is worth anything.
                    self.ranges.give_back(range);
                }
            }
        }
        self.finish_if_complete();
        None
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<DownloadEvent> {
        let event = self.events.pop_front()?;
        if let DownloadEvent::Data { data, .. } = &event {
            self.held -= data.len();
        }
        Some(event)
    }

    fn may_ask(&self, id: LaneId) -> bool {
        let used = self.held + self.under_way;
        let lane = &self.lanes[id.0];
        !lane.retired && lane.pace.has_room(0) && (used == 0 || used < self.options.memory)
    }

    /// The next range for a lane to read, at most a piece: of its short reads, its stripe, a new stripe, or half of the
    /// longest stripe of another lane.
    fn next_range(&mut self, id: LaneId, piece: u64) -> Option<Range<u64>> {
        let end = self.ranges.end().unwrap_or(u64::MAX);
        let lane = &mut self.lanes[id.0];
        while let Some(range) = lane.short.pop_front() {
            let range = range.start..range.end.min(end);
            if !range.is_empty() {
                return Some(range);
            }
        }
        lane.stripe.end = lane.stripe.end.min(end);
        if lane.stripe.is_empty() {
            let most = self.stripe_length(piece);
            let stripe = self.ranges.take(most, piece).or_else(|| self.steal(piece))?;
            self.lanes[id.0].stripe = stripe;
        }
        let stripe = &mut self.lanes[id.0].stripe;
        let range = stripe.start..stripe.end.min(stripe.start.saturating_add(piece));
        stripe.start = range.end;
        Some(range)
    }

    /// A lane alone reads piece by piece. Lanes beside each other get stripes, since servers read ahead in files; four
    /// for each lane, so that a slow one does not hold the end back.
    fn stripe_length(&self, piece: u64) -> u64 {
        let lanes = self
            .lanes
            .iter()
            .filter(|lane| !matches!(lane.state, LaneState::Gone))
            .count() as u64;
        if lanes < 2 {
            return piece;
        }
        let end = self.ranges.end().or(self.ranges.expected_end());
        let left = end.map(|end| {
            end.saturating_sub(self.options.start)
                .saturating_sub(self.ranges.done_bytes())
        });
        let share = left.map_or(16 * piece, |left| left / (4 * lanes));
        (share - share % piece).clamp(4 * piece, LARGEST_STRIPE.max(4 * piece))
    }

    fn steal(&mut self, piece: u64) -> Option<Range<u64>> {
        let longest = self
            .lanes
            .iter_mut()
            .max_by_key(|lane| lane.stripe.end.saturating_sub(lane.stripe.start))?;
        let length = longest.stripe.end.saturating_sub(longest.stripe.start);
        let pieces = length.div_ceil(piece);
        if pieces < 2 {
            return None;
        }
        let middle = longest.stripe.start + pieces / 2 * piece;
        let stolen = middle..longest.stripe.end;
        longest.stripe.end = middle;
        Some(stolen)
    }

    fn handle_open(&mut self, id: LaneId, client: &mut Client, outcome: Outcome) {
        let lane = &mut self.lanes[id.0];
        match outcome {
            Ok(Reply::Handle(handle)) if self.over => {
                lane.state = LaneState::Gone;
                client.close(handle);
            }
            Ok(Reply::Handle(handle)) => {
                let fstat = client.request(Request::Fstat {
                    handle: handle.clone(),
                });
                lane.asked.insert(fstat, Asked::Fstat);
                lane.state = LaneState::Open(handle);
            }
            Err(status) => {
                lane.state = LaneState::Gone;
                if self
                    .lanes
                    .iter()
                    .any(|lane| !matches!(lane.state, LaneState::Gone))
                {
                    self.events
                        .push_back(DownloadEvent::LaneLost(id, LaneLoss::Refused(status)));
                } else {
                    self.fail(status);
                }
            }
            // The client gives the kind of reply that belongs to a request, or a status.
            Ok(_) => lane.state = LaneState::Gone,
        }
    }

    fn handle_attributes(&mut self, id: LaneId, client: &mut Client, outcome: Outcome) {
        let lane = &mut self.lanes[id.0];
        let attributes = match outcome {
            Ok(Reply::Attributes(attributes)) => attributes,
            // Without attributes only the first lane can be believed to read the file.
            _ if lane.trusted => return,
            _ => return self.distrust(id, client),
        };
        let identity: Identity = (attributes.size, attributes.times.map(|times| times.modified));
        match self.identity {
            Some(first) if first == identity => {
                lane.trusted = true;
                return;
            }
            Some(_) => return self.distrust(id, client),
            None => {
                lane.trusted = true;
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

    fn distrust(&mut self, id: LaneId, client: &mut Client) {
        self.events
            .push_back(DownloadEvent::LaneLost(id, LaneLoss::AnotherFile));
        self.remove_lane(id, client);
    }

    fn handle_data(&mut self, id: LaneId, range: Range<u64>, outcome: Outcome) {
        if self.over {
            return;
        }
        match outcome {
            Ok(Reply::Data(mut data)) => {
                let got = range.start..range.start + data.len() as u64;
                if got.end < range.end {
                    self.lanes[id.0].short.push_back(got.end..range.end);
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

    fn finish_if_complete(&mut self) {
        // A file that is known to hold nothing to read must still prove that it can be opened.
        let opened = self
            .lanes
            .iter()
            .any(|lane| matches!(lane.state, LaneState::Open(_)));
        if self.over || !opened || !self.ranges.is_complete() {
            return;
        }
        let length = self.ranges.end().unwrap_or_default();
        let first = self.identity.and_then(|(size, _)| size);
        let changed = self.options.end.is_none() && first.is_some_and(|first| first != length);
        self.over = true;
        self.events.push_back(DownloadEvent::Finished { length, changed });
    }

    fn fail(&mut self, status: Status) {
        if !self.over {
            self.over = true;
            self.events.push_back(DownloadEvent::Failed(status));
        }
    }
}

impl Lane {
    /// Gives back all ranges; what was asked for, and how many bytes of it.
    fn abandon(&mut self, ranges: &mut Ranges) -> (Vec<RequestId>, usize) {
        self.state = LaneState::Gone;
        let mut requests = Vec::new();
        let mut bytes = 0;
        for (id, asked) in self.asked.drain() {
            requests.push(id);
            if let Asked::Read { range, sent } = asked {
                self.pace.lost(sent);
                bytes += (range.end - range.start) as usize;
                ranges.give_back(range);
            }
        }
        self.give_back(ranges);
        (requests, bytes)
    }

    /// Gives back what it was to ask for.
    fn give_back(&mut self, ranges: &mut Ranges) {
        self.short.drain(..).for_each(|range| ranges.give_back(range));
        ranges.give_back(std::mem::replace(&mut self.stripe, 0..0));
    }
}
