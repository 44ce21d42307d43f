//! [`ManyUpload`]: many small files, many at a time.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::time::Instant;

use bytes::Bytes;

use super::pace::{FIRST_SMALL, Pace, SendMark, weight};
use super::renaming::Renaming;
use super::{DEFAULT_MEMORY, FileId, Many, Opening, Plan, Refused, piece};
use crate::attributes::{FileAttributes, Owner};
use crate::client::{Client, RequestId};
use crate::data::Data;
use crate::reply::{Handle, Outcome, Reply};
use crate::request::{OpenFlags, Request};
use crate::status::{Status, StatusCode};

/// A file to upload, with its final attributes and name.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct UploadFile {
    /// The file to write.
    pub path: Bytes,
    /// The expected state of `path`.
    pub opening: Opening,
    /// Owner and group to give the file. If the server refuses, the file ends with [`ManyUploadEvent::NotReplaced`].
    pub owner: Option<Owner>,
    /// The attributes are those of the file that this one replaces: if the server refuses them, nothing is replaced.
    pub needs_attributes: bool,
    /// The file's length, as far as is known. It decides how many files are held at once.
    pub length: u64,
    /// Permissions for a new file, before the server's umask.
    pub create: FileAttributes,
    /// Attributes to set after the writes.
    pub attributes: FileAttributes,
    /// Flush the file to the server's disk, if the server can. This costs disk time for each file.
    pub sync: bool,
    /// The name to give the file in the end. An existing file of that name is replaced, if the server can.
    pub rename_to: Option<Bytes>,
}

impl UploadFile {
    /// Returns a file to upload without attributes or another name.
    pub fn new(path: impl Into<Bytes>, length: u64) -> Self {
        Self {
            path: path.into(),
            opening: Opening::Truncate,
            owner: None,
            needs_attributes: false,
            length,
            create: FileAttributes::default(),
            attributes: FileAttributes::default(),
            sync: false,
            rename_to: None,
        }
    }
}

/// Something for the application to do or to know.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "names say it")]
pub enum ManyUploadEvent {
    /// Asks for a file's content: answer with [`ManyUpload::provide`] or [`ManyUpload::skip`].
    Read(FileId),
    /// A file is written, closed and renamed.
    Finished {
        file: FileId,
        /// The error, if the attributes were not set.
        attributes: Result<(), Status>,
    },
    /// The file did not get its final name. An existing file of that name is unchanged. If the file was to be renamed, the
    /// written file has been removed.
    NotReplaced {
        file: FileId,
        /// The refused operation.
        refused: Refused,
        /// The server's answer.
        status: Status,
    },
    /// A new file could not be created, maybe because its path is taken: SFTP 3 has no status for that alone.
    Taken {
        file: FileId,
        /// The server's answer.
        status: Status,
    },
    /// A file could not be uploaded. If it was to be renamed, the written file has been removed. The others continue.
    Failed { file: FileId, status: Status },
}

/// The upload of many files over one session, as a state machine without I/O.
///
/// A file takes three flights: OPEN; then WRITEs, FSETSTAT, fsync, FSTAT and CLOSE together; then the renaming, after the server
/// has confirmed them, so that a full disk never replaces a good file by half of one. If the server does not [keep the
/// order](Client::keeps_order), the WRITEs, the requests after them and CLOSE are flights of their own. The size that FSTAT
/// returns is compared with the number of bytes written. The number of files in flight follows from their rate and the distance,
/// within the server's handles and the memory allowed. Each file is held as a whole: use [`Upload`](super::Upload) for large
/// files.
pub struct ManyUpload {
    memory: usize,
    waiting: VecDeque<(FileId, UploadFile)>,
    files: HashMap<FileId, Running>,
    /// Files that may have both a handle and their content by now.
    ready: Vec<FileId>,
    asked: HashMap<RequestId, (FileId, Purpose)>,
    next_file: u64,
    pace: Pace,
    events: VecDeque<ManyUploadEvent>,
    held: usize,
    written: u64,
}

struct Running {
    file: UploadFile,
    sent: SendMark,
    /// Bytes counted in `held`.
    held: usize,
    handle: Option<Handle>,
    content: Option<Data>,
    /// The number of bytes written.
    length: u64,
    flight: Flight,
    awaited: usize,
    renaming: Option<Renaming>,
    /// The removal of the written file has been requested.
    is_removed: bool,
    attributes: Option<Status>,
    /// SETSTAT by path was sent.
    by_path: bool,
    refused: Option<Refused>,
    failed: Option<Status>,
}

/// The last requests sent for a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flight {
    /// OPEN.
    Opened,
    /// The content. The file is still open.
    Written,
    /// The content and the attributes.
    Set,
    /// Everything, with CLOSE.
    Closed,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Open,
    Write {
        length: u64,
    },
    Owner,
    Attributes,
    /// SETSTAT by path, for a server that does not set attributes of open files.
    AttributesByPath,
    Sync,
    Measure,
    Close,
    Rename,
    Remove,
}

impl Default for ManyUpload {
    fn default() -> Self {
        Self::new(DEFAULT_MEMORY)
    }
}

impl ManyUpload {
    /// Returns an upload that holds at most `memory` bytes. One file is always allowed.
    pub fn new(memory: usize) -> Self {
        Self {
            memory,
            waiting: VecDeque::new(),
            files: HashMap::new(),
            ready: Vec::new(),
            asked: HashMap::new(),
            next_file: 0,
            pace: Pace::new(FIRST_SMALL, u64::MAX),
            events: VecDeque::new(),
            held: 0,
            written: 0,
        }
    }

    /// Keeps at least `bytes` bytes in flight, even before the path's rate is known. Each file counts as at least 4 KiB. The
    /// default is 2 MiB. Call this before adding the first file.
    #[must_use]
    pub fn with_flight(self, bytes: u64) -> Self {
        Self {
            pace: Pace::new(bytes.max(1), u64::MAX),
            ..self
        }
    }

    /// Adds a file.
    pub fn add(&mut self, file: UploadFile) -> FileId {
        let id = FileId(self.next_file);
        self.next_file += 1;
        self.waiting.push_back((id, file));
        id
    }

    /// Returns the number of bytes that the server has confirmed, of all files.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Returns the paths of the files in progress, as they are written: the server was asked to open them, and they have not
    /// ended.
    pub fn under_way(&self) -> impl Iterator<Item = &Bytes> {
        self.files.values().map(|running| &running.file.path)
    }

    /// Takes the whole content of a file, for which a [`ManyUploadEvent::Read`] asked.
    pub fn provide(&mut self, id: FileId, content: impl Into<Data>) {
        let Some(running) = self
            .files
            .get_mut(&id)
            .filter(|running| running.content.is_none())
        else {
            return;
        };
        let content = content.into();
        self.held = self.held - running.held + content.len();
        running.held = content.len();
        running.content = Some(content);
        self.ready.push(id);
    }

    /// Skips a file that will not be provided. No more events come for it. A partly written file is removed if it was to be
    /// renamed: nobody misses its temporary name.
    pub fn skip(&mut self, id: FileId, client: &mut Client) {
        self.waiting.retain(|(waiting, _)| *waiting != id);
        let Some(running) = self.files.remove(&id) else {
            return;
        };
        self.pace.note_lost(running.sent);
        self.held -= running.held;
        let is_temporary = running.file.rename_to.is_some();
        let makes = is_temporary && running.file.opening == Opening::Exclusive;
        self.asked.retain(|request, (file, purpose)| {
            let keep = *file != id;
            match purpose {
                _ if keep => {}
                Purpose::Open if makes => client.cancel_making(*request, running.file.path.clone()),
                _ => client.cancel(*request),
            }
            keep
        });
        let opened = running.flight != Flight::Opened || running.handle.is_some();
        running.handle.into_iter().for_each(|handle| client.close(handle));
        if opened && running.renaming.is_none() && is_temporary {
            remove(client, running.file.path);
        }
    }
}

impl Many for ManyUpload {
    fn unfinished(&self) -> usize {
        self.waiting.len() + self.files.len()
    }

    fn take_waiting(&mut self) -> Vec<FileId> {
        self.waiting.drain(..).map(|(file, _)| file).collect()
    }
}

impl Plan for ManyUpload {
    type Worker = ();
    type Event = ManyUploadEvent;

    fn drive(&mut self, (): (), client: &mut Client, now: Instant) {
        while let Some((id, file)) = self.next_waiting(client) {
            let open = client.request(Request::Open {
                path: file.path.clone(),
                flags: match file.opening {
                    Opening::Truncate => OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::TRUNCATE,
                    Opening::Exclusive => OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE,
                    Opening::Existing => OpenFlags::WRITE,
                },
                attributes: file.create.clone(),
            });
            self.asked.insert(open, (id, Purpose::Open));
            self.events.push_back(ManyUploadEvent::Read(id));
            let held = usize::try_from(file.length)
                .unwrap_or(usize::MAX)
                .min(self.memory);
            self.held += held;
            let running = Running {
                sent: self.pace.note_sent(weight(file.length), now),
                file,
                held,
                handle: None,
                content: None,
                length: 0,
                flight: Flight::Opened,
                awaited: 1,
                renaming: None,
                is_removed: false,
                attributes: None,
                by_path: false,
                refused: None,
                failed: None,
            };
            self.files.insert(id, running);
        }
        for id in std::mem::take(&mut self.ready) {
            self.fly(id, client);
        }
    }

    fn handle_reply(
        &mut self,
        (): (),
        client: &mut Client,
        request: RequestId,
        outcome: Outcome,
        now: Instant,
    ) -> Option<Outcome> {
        let Some((id, asked)) = self.asked.remove(&request) else {
            return Some(outcome);
        };
        self.handle_answer(id, asked, client, outcome, now);
        None
    }

    fn poll_event(&mut self) -> Option<ManyUploadEvent> {
        self.events.pop_front()
    }

    fn remove_worker(&mut self, (): (), client: &mut Client) {
        self.waiting.clear();
        let files: Vec<FileId> = self.files.keys().copied().collect();
        files.into_iter().for_each(|file| self.skip(file, client));
        self.events.clear();
    }
}

impl ManyUpload {
    fn next_waiting(&mut self, client: &Client) -> Option<(FileId, UploadFile)> {
        let (_, file) = self.waiting.front()?;
        let fits = self.held == 0 || (self.held as u64).saturating_add(file.length) <= self.memory as u64;
        let handle = client.free_handles() > 0 || self.files.is_empty();
        if fits && handle && client.has_room() && self.pace.has_room(0) {
            self.waiting.pop_front()
        } else {
            None
        }
    }

    /// Sends a file's content, and the requests after it if they need not wait.
    fn fly(&mut self, id: FileId, client: &mut Client) {
        let waiting = |running: &&mut Running| running.flight == Flight::Opened;
        let Some(running) = self.files.get_mut(&id).filter(waiting) else {
            return;
        };
        let (Some(handle), Some(content)) = (
            running.handle.clone(),
            running.content.take_if(|_| running.handle.is_some()),
        ) else {
            return;
        };
        running.flight = Flight::Written;
        let most = usize::try_from(piece(client.limits().max_write)).expect("a piece is at most 255 KiB");
        let mut ask = |request, asked| {
            self.asked.insert(client.request(request), (id, asked));
            running.awaited += 1;
        };
        // Set the owner before the permissions: a change of owner clears some of them.
        if running.file.owner.is_some() {
            let attributes = FileAttributes {
                owner: running.file.owner,
                ..FileAttributes::default()
            };
            let handle = handle.clone();
            ask(Request::Fsetstat { handle, attributes }, Purpose::Owner);
        }
        let mut offset = 0;
        for mut chunk in content.into_chunks() {
            while !chunk.is_empty() {
                let data = chunk.split_to(chunk.len().min(most));
                let length = data.len() as u64;
                ask(
                    Request::Write {
                        handle: handle.clone(),
                        offset,
                        data,
                    },
                    Purpose::Write { length },
                );
                offset += length;
            }
        }
        running.length = offset;
        if client.keeps_order() || offset == 0 && running.file.owner.is_none() {
            self.set(id, client);
        }
    }

    /// Sends the requests that follow a file's content.
    fn set(&mut self, id: FileId, client: &mut Client) {
        let Some(running) = self.files.get_mut(&id) else {
            return;
        };
        let Some(handle) = running.handle.clone() else {
            return;
        };
        running.flight = Flight::Set;
        let mut ask = |request, asked| {
            self.asked.insert(client.request(request), (id, asked));
            running.awaited += 1;
        };
        let mut attributes = running.file.attributes.clone();
        if running.file.opening == Opening::Existing {
            attributes.size = Some(running.length);
        }
        if !attributes.is_empty() {
            ask(
                Request::Fsetstat {
                    handle: handle.clone(),
                    attributes,
                },
                Purpose::Attributes,
            );
        }
        if running.file.sync {
            ask(
                Request::Fsync {
                    handle: handle.clone(),
                },
                Purpose::Sync,
            );
        }
        ask(Request::Fstat { handle }, Purpose::Measure);
        if client.keeps_order() {
            self.close(id, client);
        }
    }

    fn close(&mut self, id: FileId, client: &mut Client) {
        let Some(running) = self.files.get_mut(&id) else {
            return;
        };
        if let Some(handle) = running.handle.take() {
            running.flight = Flight::Closed;
            self.asked
                .insert(client.request(Request::Close { handle }), (id, Purpose::Close));
            running.awaited += 1;
        }
    }

    fn handle_answer(
        &mut self,
        id: FileId,
        asked: Purpose,
        client: &mut Client,
        outcome: Outcome,
        now: Instant,
    ) {
        let Some(running) = self.files.get_mut(&id) else {
            return;
        };
        running.awaited -= 1;
        match (asked, outcome) {
            (Purpose::Open, Ok(Reply::Handle(handle))) => {
                running.handle = Some(handle);
                self.ready.push(id);
            }
            (Purpose::Write { length }, Ok(_)) => self.written += length,
            (Purpose::Attributes | Purpose::AttributesByPath, outcome) => running.attributes = outcome.err(),
            (Purpose::Measure, Ok(Reply::Attributes(FileAttributes { size: Some(size), .. }))) => {
                if size != running.length {
                    let message = format!(
                        "the server confirmed {} bytes, and the file has {size}",
                        running.length
                    );
                    running
                        .failed
                        .get_or_insert(Status::local(StatusCode::FAILURE, message));
                }
            }
            // Trust a server that does not report a size.
            (Purpose::Measure, _) => {}
            (Purpose::Owner, Err(status)) => {
                running.failed = Some(status);
                running.refused = Some(Refused::Owner);
            }
            (Purpose::Rename, outcome) => {
                let renaming = running
                    .renaming
                    .as_mut()
                    .expect("it has begun where it is answered");
                match renaming.handle_reply(outcome, client) {
                    ControlFlow::Continue(request) => {
                        self.asked.insert(request, (id, Purpose::Rename));
                        running.awaited += 1;
                    }
                    ControlFlow::Break(Ok(())) => {}
                    ControlFlow::Break(Err(status)) => {
                        running.failed = Some(status);
                        running.refused = Some(Refused::Renaming);
                    }
                }
            }
            (
                Purpose::Sync,
                Err(Status {
                    code: StatusCode::OP_UNSUPPORTED,
                    ..
                }),
            ) => {}
            // Nobody misses a temporary name.
            (Purpose::Remove, _) => {}
            (Purpose::Sync, Err(status)) => {
                running.failed.get_or_insert(status.of_syncing());
            }
            (Purpose::Close, Err(status)) => {
                running.failed.get_or_insert(status.of_closing());
            }
            (_, Err(status)) => {
                // The first failure is the cause: those after it are often only its consequence.
                running.failed.get_or_insert(status);
            }
            (_, Ok(_)) => {}
        }
        if running.awaited > 0 {
            return;
        }
        match running.flight {
            Flight::Opened if running.failed.is_some() => self.end(id, client, now),
            Flight::Opened => {}
            Flight::Written if running.failed.is_none() => self.set(id, client),
            Flight::Written | Flight::Set => self.close(id, client),
            Flight::Closed => self.end(id, client, now),
        }
    }

    /// Renames or ends the file, since all answers are here.
    fn end(&mut self, id: FileId, client: &mut Client, now: Instant) {
        let Some(running) = self.files.get_mut(&id) else {
            return;
        };
        let refused = running.attributes.as_ref();
        if refused.is_some_and(|status| status.code != StatusCode::PERMISSION_DENIED)
            && running.failed.is_none()
            && !running.by_path
        {
            running.by_path = true;
            let set = Request::Setstat {
                path: running.file.path.clone(),
                attributes: running.file.attributes.clone(),
            };
            self.asked
                .insert(client.request(set), (id, Purpose::AttributesByPath));
            running.awaited += 1;
            return;
        }
        if running.file.needs_attributes
            && running.failed.is_none()
            && let Some(status) = running.attributes.take()
        {
            running.failed = Some(status);
            running.refused = Some(Refused::Attributes);
        }
        let to = running
            .file
            .rename_to
            .clone()
            .filter(|_| running.renaming.is_none() && running.failed.is_none());
        if let Some(to) = to {
            let (renaming, request) = Renaming::begin(running.file.path.clone(), to, client);
            self.asked.insert(request, (id, Purpose::Rename));
            running.renaming = Some(renaming);
            running.awaited += 1;
            return;
        }
        let is_left =
            running.failed.is_some() && running.flight == Flight::Closed && running.file.rename_to.is_some();
        if is_left && !running.is_removed {
            // Wait for the answer: the session may end with its last file, and a server forgets the requests of a closed session.
            let path = running.file.path.clone();
            let request = client.request(Request::Remove { path });
            self.asked.insert(request, (id, Purpose::Remove));
            running.is_removed = true;
            running.awaited += 1;
            return;
        }
        let Some(running) = self.files.remove(&id) else {
            return;
        };
        self.pace.note_done(running.sent, now);
        self.held -= running.held;
        let Some(status) = running.failed else {
            let attributes = running.attributes.map_or(Ok(()), Err);
            self.events
                .push_back(ManyUploadEvent::Finished { file: id, attributes });
            return;
        };
        let file = id;
        let is_new = running.file.opening == Opening::Exclusive && running.flight == Flight::Opened;
        self.events.push_back(match running.refused {
            Some(refused) => ManyUploadEvent::NotReplaced {
                file,
                refused,
                status,
            },
            None if is_new && status.may_be_taken() => ManyUploadEvent::Taken { file, status },
            None => ManyUploadEvent::Failed { file, status },
        });
    }
}

/// Removes an unfinished file and ignores the result.
fn remove(client: &mut Client, path: Bytes) {
    let id = client.request(Request::Remove { path });
    // If the session still waits for the version, this withdraws the request, as the file's OPEN was withdrawn.
    client.cancel(id);
}
