//! The server's answers, and the client's share of them.

use bytes::{BufMut as _, BytesMut};

use super::file::{File, Kind};
use super::incoming::{Order, Packet};
use super::paths::{self, Effect, Knowledge};
use super::{Ask, Bridge, Entry, GiveUp, HANDLE, State};
use crate::data::Data;
use crate::error::Error;
use crate::packet::{MAX_DATA, Reader, Writer, kind};
use crate::reply::{DirEntry, Handle, entries};
use crate::request::Request;
use crate::status::StatusCode;

impl Bridge {
    pub(super) fn answer(&mut self, n: u64, answer: Packet) -> Result<(), GiveUp> {
        let is_later = self.sessions > 1;
        let index = (n - self.first) as usize;
        let entry = &mut self.queue[index];
        match &entry.order {
            Order::Write { .. } => {
                entry.parts -= 1;
                if !answer.is_ok() && entry.failure.is_none() {
                    entry.failure = Some(answer);
                } else if entry.parts == 0 && entry.failure.is_none() {
                    self.settle(n, answer);
                    return Ok(());
                }
                if entry.parts == 0
                    && let Some(failure) = entry.failure.take()
                {
                    self.settle(n, failure);
                }
            }
            Order::Known(Request::Read { length, .. }) if is_later => {
                let length = *length as usize;
                return self.read_more(n, answer, length);
            }
            Order::Known(Request::Open { .. } | Request::Opendir { .. }) if answer.kind == kind::HANDLE => {
                self.give_handle(n, &answer)?;
            }
            Order::Known(Request::Readdir { .. }) if answer.kind == kind::NAME => {
                return self.list(n, answer);
            }
            _ => self.settle(n, answer),
        }
        Ok(())
    }

    /// Joins the data for a READ, and asks for the rest: clients take short data for the end, and a new session may
    /// allow only smaller requests.
    pub(super) fn read_more(&mut self, n: u64, answer: Packet, length: usize) -> Result<(), GiveUp> {
        let largest = self.limits.max_read as usize;
        let Some(data) = answer.data() else {
            let entry = self.entry(n);
            let read = std::mem::take(&mut entry.read);
            // The server says that the file ends here.
            let is_end = answer
                .status()
                .is_some_and(|status| status.code == StatusCode::EOF);
            let answer = if is_end && !read.is_empty() {
                Packet::of_data(read)
            } else {
                answer
            };
            self.settle(n, answer);
            return Ok(());
        };
        let entry = self.entry(n);
        if data.is_empty() || entry.read.len() + data.len() > length {
            return Err(Error::misbehavior("it sent more or less data than was asked for").into());
        }
        data.into_chunks()
            .into_iter()
            .for_each(|chunk| entry.read.push(chunk));
        let so_far = entry.read.len();
        // No answer holds more.
        if so_far >= length.min(MAX_DATA as usize) {
            let read = std::mem::take(&mut entry.read);
            self.settle(n, Packet::of_data(read));
            return Ok(());
        }
        let Order::Known(Request::Read { handle, offset, .. }) = &entry.order else {
            return Ok(());
        };
        let (handle, offset) = (handle.clone(), *offset);
        let rest = Request::Read {
            handle: self.real(&handle),
            offset: offset.saturating_add(so_far as u64),
            length: (length - so_far).min(largest) as u32,
        };
        self.ask(Ask::Entry(n), &rest);
        Ok(())
    }

    /// Gives an opened file or directory its own handle.
    pub(super) fn give_handle(&mut self, n: u64, answer: &Packet) -> Result<(), GiveUp> {
        let real = answer.handle()?;
        let mut given = BytesMut::from(HANDLE);
        given.put_u32(self.next_handle);
        self.next_handle += 1;
        let given = Handle(given.freeze());
        let file = match &self.entry(n).order {
            Order::Known(Request::Open { path, flags, .. }) => {
                File::regular(path.clone(), real.clone(), *flags)
            }
            Order::Known(Request::Opendir { path }) => File::directory(path.clone(), real.clone()),
            _ => return Ok(()),
        };
        let is_regular = matches!(file.kind, Kind::Regular(_));
        let file = self.share(file);
        self.files.insert(given.clone(), file);
        if is_regular {
            // No entry waits for this. It leaves before the client can know the handle.
            self.ask(Ask::Known(given.clone()), &Request::Fstat { handle: real });
        }
        let mut body = BytesMut::new();
        body.put_u32(given.0.len() as u32);
        body.put_slice(&given.0);
        self.settle(
            n,
            Packet {
                kind: kind::HANDLE,
                body: Data::from(body.freeze()),
            },
        );
        Ok(())
    }

    /// Returns the file, and marks all openings of the same file as shared if one of them writes.
    pub(super) fn share(&mut self, mut new: File) -> File {
        let others = self.files.values_mut();
        let mut is_shared = false;
        for other in others.filter(|other| paths::may_be_same(&other.path, &new.path)) {
            is_shared |= new.is_written() || other.is_written();
            if let Some(content) = other.content() {
                content.is_shared |= is_shared;
            }
        }
        if let Some(content) = new.content() {
            content.is_shared = is_shared;
        }
        new
    }

    /// Passes on the names that are new to the client; asks for more if none is.
    pub(super) fn list(&mut self, n: u64, answer: Packet) -> Result<(), GiveUp> {
        let Order::Known(Request::Readdir { handle }) = &self.entry(n).order else {
            return Ok(());
        };
        let handle = handle.clone();
        let names = entries(&mut Reader::new(answer.body.clone().into_bytes()))?;
        let count = names.len();
        let Some(File {
            kind: Kind::Directory(told),
            ..
        }) = self.files.get_mut(&handle)
        else {
            self.settle(n, answer);
            return Ok(());
        };
        let new: Vec<DirEntry> = names
            .into_iter()
            .filter(|entry| told.is_new(&entry.name))
            .collect();
        if new.len() == count || self.sessions == 1 {
            self.settle(n, answer);
        } else if new.is_empty() {
            let handle = self.real(&handle);
            self.ask(Ask::Entry(n), &Request::Readdir { handle });
        } else {
            self.settle(n, Packet::of_names(&new));
        }
        Ok(())
    }

    /// Records the answer to a request.
    pub(super) fn settle(&mut self, n: u64, answer: Packet) {
        let index = (n - self.first) as usize;
        self.learn(n, &answer);
        self.queue[index].state = State::Answered(answer);
    }

    /// Learns from an answer what it says about files and paths.
    pub(super) fn learn(&mut self, n: u64, answer: &Packet) {
        let index = (n - self.first) as usize;
        let entry = &self.queue[index];
        let is_ok = answer.is_ok();
        match &entry.order {
            Order::Write { handle, offset, data } => {
                if let Some(file) = self.files.get_mut(handle) {
                    file.is_used = true;
                    if let Some(content) = file.content().filter(|_| is_ok) {
                        content.write_is_done(*offset, data.len() as u64);
                    }
                }
            }
            Order::Known(Request::Read { handle, .. }) => {
                self.reads -= 1;
                if let Some(file) = self.files.get_mut(handle) {
                    file.is_used = true;
                }
            }
            Order::Known(Request::Close { handle }) if is_ok => {
                let written = self
                    .files
                    .get(handle)
                    .filter(|file| file.is_written() && !file.has_lost_name);
                if let Some(file) = written {
                    self.paths.lock().learn(&file.path, file.knowledge());
                }
            }
            Order::Known(Request::Lstat { path } | Request::Stat { path }) => {
                let is_missing = answer
                    .status()
                    .is_some_and(|status| status.code == StatusCode::NO_SUCH_FILE);
                if let Some(attributes) = answer.attributes() {
                    self.paths
                        .lock()
                        .learn(path, Knowledge::from_attributes(&attributes));
                } else if is_missing {
                    self.paths.lock().learn(path, Knowledge::Missing);
                }
            }
            Order::Known(request) if is_ok && paths::effect(request).0 == Effect::Moves => {
                let (request, before) = (request.clone(), entry.before);
                self.note_done(&request, before);
            }
            _ => {}
        }
    }

    /// Handles a completed change of names.
    pub(super) fn note_done(&mut self, request: &Request, before: [Option<(Knowledge, u64)>; 2]) {
        const NEW: Knowledge = Knowledge::Present {
            sizes: None,
            modified: None,
        };
        for changed in paths::effect(request).1.into_iter().flatten() {
            self.paths.lock().forget(changed);
        }
        self.take_name(request);
        match request {
            Request::Remove { path } | Request::Rmdir { path } => {
                self.paths.lock().learn(path, Knowledge::Missing);
            }
            Request::Mkdir { path, .. }
            | Request::Symlink { link: path, .. }
            | Request::Hardlink { to: path, .. } => {
                self.paths.lock().learn(path, NEW);
            }
            Request::Rename { from, to } | Request::PosixRename { from, to } => {
                self.paths.lock().learn(from, Knowledge::Missing);
                let known = before[0].map(|(knowledge, _)| knowledge);
                self.paths.lock().learn(
                    to,
                    known.filter(|known| *known != Knowledge::Missing).unwrap_or(NEW),
                );
                for file in self.files.values_mut().filter(|file| !file.has_lost_name) {
                    if let Some(path) = paths::move_path(&file.path, from, to) {
                        file.path = path;
                    }
                }
            }
            _ => {}
        }
    }

    /// Marks files whose name a request takes away: they can no longer be found by it.
    pub(super) fn take_name(&mut self, request: &Request) {
        let taken = match request {
            Request::Remove { path } | Request::Rmdir { path } => path,
            Request::Rename { from, to } | Request::PosixRename { from, to } if from != to => to,
            _ => return,
        };
        for file in self.files.values_mut().filter(|file| file.path == *taken) {
            file.has_lost_name = true;
        }
    }

    /// Gives the client the answers that are next in its order; returns whether there were any.
    pub(super) fn tell(&mut self) -> bool {
        let before = self.answered;
        while let Some(Entry {
            state: State::Answered(_),
            ..
        }) = self.queue.front()
            && self.is_greeted
        {
            let Some(Entry {
                id,
                order,
                cost,
                state: State::Answered(answer),
                ..
            }) = self.queue.pop_front()
            else {
                break;
            };
            self.first += 1;
            self.next = self.next.max(self.first);
            self.held -= cost;
            self.answered += 1;
            if let Order::Known(Request::Close { handle }) = &order {
                self.files.remove(handle);
            }
            Writer::packet(self.to_client.buffer(), answer.kind)
                .u32(id)
                .finish(answer.body.len());
            self.to_client.push(answer.body);
        }
        self.answered > before
    }

    /// Prepares all unanswered requests for repetition. If a change is repeated, all answered changes after it are
    /// repeated in the client's order: the server answered out of order, and the file would end up in another state.
    pub(super) fn rewind(&mut self) {
        self.next = self.first;
        self.reads = 0;
        let mut is_disturbed = false;
        for entry in &mut self.queue {
            entry.seen = [None, None];
            let is_again = match entry.state {
                State::Held => false,
                State::Sent => true,
                State::Answered(_) => is_disturbed && entry.order.is_repeatable_change(),
            };
            if is_again {
                entry.was_sent = true;
                entry.state = State::Held;
                is_disturbed |= entry.order.is_repeatable_change() || entry.order.truncates();
            }
        }
    }
}
