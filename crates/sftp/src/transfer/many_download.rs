//! [`ManyDownload`]: many small files, many at a time.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use bytes::Bytes;

use super::download::{Download, DownloadEvent, DownloadOptions};
use super::pace::{FIRST_SMALL, Pace, SendMark, weight};
use super::worker::WorkerId;
use super::{DEFAULT_MEMORY, FileId, Many, Plan, Striped, piece};
use crate::attributes::{FileAttributes, FileType};
use crate::client::{Client, RequestId};
use crate::data::Data;
use crate::reply::{Handle, Outcome, Reply};
use crate::request::{OpenFlags, Request};
use crate::status::{Status, StatusCode};

/// An event of a download of many files.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "names say it")]
pub enum ManyDownloadEvent {
    /// Bytes of a file, in no particular order. If bytes come twice, the later ones count.
    Data {
        file: FileId,
        /// Their offset in the file.
        offset: u64,
        data: Data,
    },
    /// A file is complete.
    Finished {
        file: FileId,
        /// Its length. Truncate data that was written past it.
        length: u64,
        /// Its attributes, if the server returned them.
        attributes: Option<FileAttributes>,
    },
    /// A file could not be downloaded. The others continue.
    Failed { file: FileId, status: Status },
}

/// The download of many files over one session, as a state machine without I/O.
///
/// A file takes two flights: OPEN; then READs, FSTAT and CLOSE together. If the server does not [keep the
/// order](Client::keeps_order), CLOSE waits for the answers. FSTAT shows whether the reads brought the whole file. If they did
/// not (the file grew, a read was short, the file is in /proc), or if the file is large, a [`Download`] of its own fetches the
/// file beside the others. The number of files in flight follows from their rate and the distance, within the server's handles
/// and the memory allowed.
pub struct ManyDownload {
    memory: usize,
    waiting: VecDeque<(FileId, RemoteFile)>,
    files: HashMap<FileId, Small>,
    asked: HashMap<RequestId, (FileId, Purpose)>,
    /// Files that are large or need care: those that wait, and those in progress.
    waiting_large: VecDeque<(FileId, RemoteFile)>,
    large: HashMap<FileId, Large>,
    next_file: u64,
    /// The pace of small files.
    pace: Pace,
    events: VecDeque<ManyDownloadEvent>,
    /// Bytes in `events`, and bytes requested.
    held: usize,
    under_way: usize,
}

struct RemoteFile {
    path: Bytes,
    size: Option<u64>,
}

/// A small file in progress.
struct Small {
    wanted: RemoteFile,
    sent: SendMark,
    /// Bytes requested, which `under_way` includes.
    expected: usize,
    /// The number of pending answers.
    awaited: usize,
    /// The handle to close after the answers.
    handle: Option<Handle>,
    got: u64,
    attributes: Option<FileAttributes>,
    failed: Option<Status>,
}

struct Large {
    download: Download,
    worker: WorkerId,
    attributes: Option<FileAttributes>,
}

enum Purpose {
    Open,
    Read { offset: u64 },
    Fstat,
}

/// The size above which a file is large.
const LARGE: u64 = 2 * 1024 * 1024;
/// The most large files in progress at once.
const MOST_LARGE: usize = 4;

impl Default for ManyDownload {
    fn default() -> Self {
        Self::new(DEFAULT_MEMORY)
    }
}

impl ManyDownload {
    /// Returns a download with at most `memory` bytes in flight or waiting in [`Self::poll_event`]. One file is always allowed.
    pub fn new(memory: usize) -> Self {
        Self {
            memory,
            waiting: VecDeque::new(),
            files: HashMap::new(),
            asked: HashMap::new(),
            waiting_large: VecDeque::new(),
            large: HashMap::new(),
            next_file: 0,
            pace: Pace::new(FIRST_SMALL, u64::MAX),
            events: VecDeque::new(),
            held: 0,
            under_way: 0,
        }
    }

    /// Adds a file, with its size if a listing told it. A wrong size costs only time.
    pub fn add(&mut self, path: impl Into<Bytes>, size: Option<u64>) -> FileId {
        let file = FileId(self.next_file);
        self.next_file += 1;
        let large = size.is_some_and(|size| size > LARGE);
        let queue = if large {
            &mut self.waiting_large
        } else {
            &mut self.waiting
        };
        queue.push_back((
            file,
            RemoteFile {
                path: path.into(),
                size,
            },
        ));
        file
    }
}

impl Many for ManyDownload {
    fn unfinished(&self) -> usize {
        self.waiting.len() + self.files.len() + self.waiting_large.len() + self.large.len()
    }

    fn take_waiting(&mut self) -> Vec<FileId> {
        let waiting = self.waiting.drain(..).chain(self.waiting_large.drain(..));
        waiting.map(|(file, _)| file).collect()
    }
}

impl Plan for ManyDownload {
    type Worker = ();
    type Event = ManyDownloadEvent;

    fn drive(&mut self, (): (), client: &mut Client, now: Instant) {
        while let Some((file, wanted)) = self.next_small(client) {
            self.begin_small(file, wanted, client, now);
        }
        while self.large.len() < MOST_LARGE && self.has_handle(client) {
            let Some((file, wanted)) = self.waiting_large.pop_front() else {
                break;
            };
            self.begin_large(file, wanted);
        }
        if self.held < self.memory {
            self.large
                .values_mut()
                .for_each(|large| large.download.drive(large.worker, client, now));
        }
        self.collect_large(client);
    }

    fn handle_reply(
        &mut self,
        (): (),
        client: &mut Client,
        request: RequestId,
        mut outcome: Outcome,
        now: Instant,
    ) -> Option<Outcome> {
        if let Some((file, asked)) = self.asked.remove(&request) {
            self.handle_small(file, &asked, client, outcome, now);
            return None;
        }
        for large in self.large.values_mut() {
            match large
                .download
                .handle_reply(large.worker, client, request, outcome, now)
            {
                Some(other) => outcome = other,
                None => {
                    self.collect_large(client);
                    return None;
                }
            }
        }
        Some(outcome)
    }

    fn poll_event(&mut self) -> Option<ManyDownloadEvent> {
        let event = self.events.pop_front()?;
        if let ManyDownloadEvent::Data { data, .. } = &event {
            self.held -= data.len();
        }
        Some(event)
    }

    fn remove_worker(&mut self, (): (), client: &mut Client) {
        self.asked.drain().for_each(|(request, _)| client.cancel(request));
        for (_, mut large) in self.large.drain() {
            large.download.remove_worker(large.worker, client);
        }
        for (_, small) in self.files.drain() {
            small.handle.into_iter().for_each(|handle| client.close(handle));
            self.pace.note_lost(small.sent);
        }
        self.waiting.clear();
        self.waiting_large.clear();
        self.events.clear();
        (self.held, self.under_way) = (0, 0);
    }
}

impl ManyDownload {
    fn has_handle(&self, client: &Client) -> bool {
        client.free_handles() > 0 || self.files.is_empty() && self.large.is_empty()
    }

    fn next_small(&mut self, client: &Client) -> Option<(FileId, RemoteFile)> {
        let (_, wanted) = self.waiting.front()?;
        let used = self.held + self.under_way;
        // The other half is for large files.
        let fits =
            used == 0 || used + wanted.expected_bytes(piece(client.limits().max_read)) <= self.memory / 2;
        if fits && client.has_room() && self.has_handle(client) && self.pace.has_room(0) {
            self.waiting.pop_front()
        } else {
            None
        }
    }

    fn begin_small(&mut self, file: FileId, wanted: RemoteFile, client: &mut Client, now: Instant) {
        let open = client.request(Request::Open {
            path: wanted.path.clone(),
            flags: OpenFlags::READ,
            attributes: FileAttributes::default(),
        });
        let expected = wanted.expected_bytes(piece(client.limits().max_read));
        self.under_way += expected;
        let sent = self
            .pace
            .note_sent(weight(wanted.size.unwrap_or(0).min(LARGE)), now);
        let small = Small {
            wanted,
            sent,
            expected,
            awaited: 1,
            handle: None,
            got: 0,
            attributes: None,
            failed: None,
        };
        self.files.insert(file, small);
        self.asked.insert(open, (file, Purpose::Open));
    }

    fn begin_large(&mut self, file: FileId, wanted: RemoteFile) {
        let mut options = DownloadOptions::new(wanted.path);
        options.size = wanted.size;
        options.memory = (self.memory / 2 / MOST_LARGE).max(1);
        let mut download = Download::new(options);
        let worker = download.add_worker();
        self.large.insert(
            file,
            Large {
                download,
                worker,
                attributes: None,
            },
        );
    }

    fn handle_small(
        &mut self,
        file: FileId,
        asked: &Purpose,
        client: &mut Client,
        outcome: Outcome,
        now: Instant,
    ) {
        let Some(small) = self.files.get_mut(&file) else {
            return;
        };
        small.awaited -= 1;
        match (asked, outcome) {
            (Purpose::Open, Ok(Reply::Handle(handle))) => {
                let piece = piece(client.limits().max_read);
                let mut ask = |request, asked| {
                    self.asked.insert(client.request(request), (file, asked));
                    small.awaited += 1;
                };
                // One byte more than expected, to see that the file ends there.
                let reach = small.wanted.size.map_or(piece, |size| size.saturating_add(1));
                for offset in (0..reach).step_by(usize::try_from(piece).unwrap_or(usize::MAX)) {
                    let length = piece.min(reach - offset);
                    let length = u32::try_from(length).expect("a piece is at most 255 KiB");
                    ask(
                        Request::Read {
                            handle: handle.clone(),
                            offset,
                            length,
                        },
                        Purpose::Read { offset },
                    );
                }
                ask(
                    Request::Fstat {
                        handle: handle.clone(),
                    },
                    Purpose::Fstat,
                );
                if client.keeps_order() {
                    client.close(handle);
                } else {
                    small.handle = Some(handle);
                }
            }
            (Purpose::Read { offset }, Ok(Reply::Data(data))) => {
                small.got += data.len() as u64;
                self.held += data.len();
                self.events.push_back(ManyDownloadEvent::Data {
                    file,
                    offset: *offset,
                    data,
                });
            }
            (
                Purpose::Read { .. },
                Err(Status {
                    code: StatusCode::EOF,
                    ..
                }),
            ) => {}
            (Purpose::Fstat, Ok(Reply::Attributes(attributes))) => small.attributes = Some(attributes),
            // Without attributes the file is downloaded again, with care.
            (Purpose::Fstat, _) => {}
            (_, Err(status)) => small.failed = Some(status),
            (_, Ok(_)) => {}
        }
        if small.awaited == 0 {
            self.end_small(file, client, now);
        }
    }

    fn end_small(&mut self, file: FileId, client: &mut Client, now: Instant) {
        let Some(mut small) = self.files.remove(&file) else {
            return;
        };
        small
            .handle
            .take()
            .into_iter()
            .for_each(|handle| client.close(handle));
        self.under_way -= small.expected;
        self.pace.note_done(small.sent, now);
        if let Some(status) = small.failed {
            self.events.push_back(ManyDownloadEvent::Failed { file, status });
            return;
        }
        let regular =
            |attributes: &FileAttributes| matches!(attributes.file_type(), None | Some(FileType::Regular));
        let whole = small
            .attributes
            .as_ref()
            .is_some_and(|attributes| regular(attributes) && attributes.size == Some(small.got));
        if whole {
            let (length, attributes) = (small.got, small.attributes);
            self.events.push_back(ManyDownloadEvent::Finished {
                file,
                length,
                attributes,
            });
        } else {
            self.waiting_large.push_back((
                file,
                RemoteFile {
                    size: None,
                    ..small.wanted
                },
            ));
        }
    }

    fn collect_large(&mut self, client: &mut Client) {
        let mut over = Vec::new();
        for (&file, large) in &mut self.large {
            while let Some(event) = large.download.poll_event() {
                match event {
                    DownloadEvent::Data { offset, data } => {
                        self.held += data.len();
                        self.events
                            .push_back(ManyDownloadEvent::Data { file, offset, data });
                    }
                    DownloadEvent::Attributes(attributes) => large.attributes = Some(attributes),
                    DownloadEvent::Finished { length, .. } => {
                        let attributes = large.attributes.take();
                        self.events.push_back(ManyDownloadEvent::Finished {
                            file,
                            length,
                            attributes,
                        });
                    }
                    DownloadEvent::Failed(status) => {
                        self.events.push_back(ManyDownloadEvent::Failed { file, status });
                    }
                    // Neither occurs: there is one worker, and `sparse` is off.
                    DownloadEvent::WorkerLost(..) | DownloadEvent::Zeros { .. } => {}
                }
            }
            if large.download.is_over() {
                over.push(file);
            }
        }
        for file in over {
            if let Some(mut large) = self.large.remove(&file) {
                large.download.remove_worker(large.worker, client);
            }
        }
    }
}

impl RemoteFile {
    /// Returns the number of bytes that the READs may bring.
    fn expected_bytes(&self, piece: u64) -> usize {
        usize::try_from(self.size.map_or(piece, |size| size.min(LARGE) + 1)).unwrap_or(usize::MAX)
    }
}
