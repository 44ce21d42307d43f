//! The requests that go to the server, and those that have to wait.

use bytes::{BufMut as _, Bytes, BytesMut};

use super::file::File;
use super::incoming::{Order, Packet};
use super::paths::{self, Effect};
use super::{Ask, Bridge, Entry, GiveUp, Phase, State};
use crate::data::Data;
use crate::packet::{Reader, Writer, kind};
use crate::reply::Handle;
use crate::request::Request;
use crate::status::StatusCode;

impl Bridge {
    pub(super) fn send_next(&mut self) -> Result<(), GiveUp> {
        while self.may_send() {
            let n = self.next;
            let Some(entry) = self.queue.get((n - self.first) as usize) else {
                break;
            };
            if matches!(entry.state, State::Held) {
                if self.has_to_wait(n) {
                    break;
                }
                self.send(n)?;
            }
            self.next += 1;
        }
        Ok(())
    }

    pub(super) fn may_send(&self) -> bool {
        self.phase == Phase::Up || (self.phase == Phase::Greeting && self.sessions == 1 && self.is_asked)
    }

    /// Returns whether a request has to wait for earlier ones. After a loss, it could otherwise be unclear what each of
    /// them did, or a repeated READ would return data that was written after it.
    pub(super) fn has_to_wait(&self, n: u64) -> bool {
        let index = (n - self.first) as usize;
        let new = &self.queue[index].order;
        let mut sent = self
            .queue
            .range(..index)
            .filter(|entry| entry.may_be_asked_again());
        let request = match new {
            Order::Known(request) => request,
            Order::Write { .. } => {
                return self.reads > 0 && sent.any(|old| self.is_read_before(&old.order, new));
            }
            Order::Other { .. } => return false,
        };
        if let Request::Close { handle } = request
            && self.sessions > 1
        {
            // The rest of an earlier answer may still have to be requested.
            return sent.any(|old| old.order.brings_pieces() && old.order.handles().any(|of| of == handle));
        }
        match paths::effect(request).0 {
            Effect::None => self.reads > 0 && sent.any(|old| self.is_read_before(&old.order, new)),
            Effect::Looks => false,
            Effect::Sets | Effect::Moves => sent.any(|old| {
                matches!(&old.order, Order::Known(old) if paths::conflict(request, old))
                    || paths::victim(request).is_some_and(|victim| self.is_about(&old.order, victim))
            }),
        }
    }

    /// Returns whether a request is about an open file to which `path` may lead.
    pub(super) fn is_about(&self, order: &Order, path: &Bytes) -> bool {
        let mut files = order.handles().filter_map(|handle| self.files.get(handle));
        files.any(|file| self.has_links || paths::may_be_same(path, &file.path))
    }

    /// Returns whether `old` reads data or an end of file that `new` changes.
    pub(super) fn is_read_before(&self, old: &Order, new: &Order) -> bool {
        let Order::Known(Request::Read { offset, .. }) = old else {
            return false;
        };
        let end = match new {
            Order::Write { offset, data, .. } => offset.saturating_add(data.len() as u64),
            Order::Known(Request::Fsetstat { .. } | Request::CopyData { .. }) => u64::MAX,
            _ => return false,
        };
        let mut files = new.handles().filter_map(|handle| self.files.get(handle));
        *offset < end && files.any(|file| self.is_about(old, &file.path))
    }

    pub(super) fn number(&mut self, ask: Ask) -> u32 {
        while self.asks.contains_key(&self.next_ask) {
            self.next_ask = self.next_ask.wrapping_add(1);
        }
        let number = self.next_ask;
        self.next_ask = self.next_ask.wrapping_add(1);
        self.asks.insert(number, ask);
        number
    }

    pub(super) fn ask(&mut self, ask: Ask, request: &Request) {
        let number = self.number(ask);
        request.encode(number, self.to_server.buffer());
    }

    /// Asks a question for which the new session waits.
    pub(super) fn await_answer(&mut self, ask: Ask, request: &Request) {
        self.awaited += 1;
        self.ask(ask, request);
    }

    pub(super) fn entry(&mut self, n: u64) -> &mut Entry {
        let index = (n - self.first) as usize;
        self.queue
            .get_mut(index)
            .expect("what was asked of the server has an entry until it is answered")
    }

    pub(super) fn send(&mut self, n: u64) -> Result<(), GiveUp> {
        if let Some(answer) = self.answer_without_server(n)? {
            self.entry(n).state = State::Answered(answer);
            return Ok(());
        }
        self.prepare(n);
        let is_later = self.sessions > 1;
        let index = (n - self.first) as usize;
        let entry = &mut self.queue[index];
        self.reads += usize::from(entry.order.is_read());
        entry.state = State::Sent;
        entry.read = Data::default();
        (entry.parts, entry.failure) = (0, None);
        match &self.queue[index].order {
            Order::Write { handle, offset, data } => {
                let (offset, data) = (*offset, data.clone());
                let handle = self.real(handle);
                let step = if is_later {
                    self.limits.max_write as usize
                } else {
                    data.len()
                };
                self.send_write(n, &handle, offset, &data, step.max(1));
            }
            Order::Known(request) => {
                let mut request = request.clone();
                if let Request::Open { flags, .. } = &mut request
                    && self.queue[index].has_made_file
                {
                    *flags = flags.without_making();
                }
                if let Request::Read { length, .. } = &mut request
                    && is_later
                {
                    *length = (*length).min(self.limits.max_read);
                }
                for handle in request.handles_mut().into_iter().flatten() {
                    *handle = self.real(handle);
                }
                self.ask(Ask::Entry(n), &request);
            }
            Order::Other { kind, body } => {
                let (kind, body) = (*kind, self.with_real_handle(body));
                let number = self.number(Ask::Entry(n));
                Writer::packet(self.to_server.buffer(), kind)
                    .u32(number)
                    .append(|buffer| buffer.put_slice(&body))
                    .finish(0);
            }
        }
        Ok(())
    }

    /// Answers a request without the server: fails for an unknown handle, and succeeds for closing a file that was only
    /// read and cannot be opened again. Any other request for such a file ends the session.
    pub(super) fn answer_without_server(&self, n: u64) -> Result<Option<Packet>, GiveUp> {
        let entry = &self.queue[(n - self.first) as usize];
        let mut dead = None;
        for handle in entry.order.handles() {
            match self.files.get(handle) {
                None => return Ok(Some(Packet::of_status(StatusCode::FAILURE, "no such handle"))),
                Some(file) => dead = dead.or(file.dead.as_ref().map(|why| (file, why))),
            }
        }
        match (dead, &entry.order) {
            (None, _) => Ok(None),
            (Some((file, _)), Order::Known(Request::Close { .. })) if !file.is_written() => {
                Ok(Some(Packet::of_status(StatusCode::OK, "Success")))
            }
            (Some((_, why)), _) => Err(why.clone()),
        }
    }

    /// Notes the changes that a request will make.
    pub(super) fn prepare(&mut self, n: u64) {
        let index = (n - self.first) as usize;
        let entry = &mut self.queue[index];
        match &entry.order {
            Order::Write { handle, offset, data } => {
                if let Some(content) = self.files.get_mut(handle).and_then(File::content)
                    && !entry.was_sent
                {
                    content.write_is_sent(*offset, data.len() as u64);
                }
            }
            Order::Known(Request::Fsetstat { handle, attributes }) => {
                if let Some(content) = self.files.get_mut(handle).and_then(File::content) {
                    content.attributes_are_sent(attributes);
                }
            }
            Order::Known(Request::CopyData { to, .. }) => {
                if let Some(content) = self.files.get_mut(to).and_then(File::content) {
                    content.is_shared = true;
                }
            }
            Order::Known(request) => {
                let (effect, changed) = paths::effect(request);
                if matches!(effect, Effect::None | Effect::Looks) {
                    return;
                }
                self.has_links |= matches!(request, Request::Hardlink { .. } | Request::Symlink { .. });
                for (i, path) in changed.iter().enumerate() {
                    let Some(path) = path else { continue };
                    if !entry.was_sent {
                        let open = self
                            .files
                            .values()
                            .find(|file| file.path == **path && file.is_written());
                        let open = open
                            .filter(|file| !file.has_lost_name)
                            .map(|file| (file.knowledge(), 0));
                        entry.before[i] = open.or_else(|| self.paths.lock().about(path));
                    }
                    self.paths.lock().forget(path);
                    for file in self
                        .files
                        .values_mut()
                        .filter(|file| paths::overlap(path, &file.path))
                    {
                        note(request, file);
                    }
                }
            }
            Order::Other { .. } => {}
        }
    }

    pub(super) fn send_write(&mut self, n: u64, handle: &Handle, offset: u64, data: &Data, step: usize) {
        let mut start = 0;
        while start < data.len() || start == 0 {
            let part = data.part(start, step);
            let number = self.number(Ask::Entry(n));
            let len = u32::try_from(part.len()).expect("a packet is no longer than 256 KiB");
            Writer::packet(self.to_server.buffer(), kind::WRITE)
                .u32(number)
                .string(&handle.0)
                .u64(offset.saturating_add(start as u64))
                .u32(len)
                .finish(part.len());
            self.to_server.push(part);
            self.entry(n).parts += 1;
            start += step;
        }
    }

    /// Returns the server's handle for a client's.
    pub(super) fn real(&self, handle: &Handle) -> Handle {
        let file = self.files.get(handle).and_then(|file| file.handle.clone());
        // A handle that the client has made up goes to the server, which judges it.
        file.unwrap_or_else(|| handle.clone())
    }

    /// Replaces the client's handle, if it is the first string or the string after an extension's name.
    pub(super) fn with_real_handle(&self, body: &Bytes) -> Bytes {
        let mut reader = Reader::new(body.clone());
        for _ in 0..2 {
            let at = body.len() - reader.remaining();
            let Ok(string) = reader.string() else { break };
            let given = Handle(string);
            if self.files.contains_key(&given) {
                let real = self.real(&given);
                let mut changed = BytesMut::from(&body[..at]);
                changed.put_u32(real.0.len() as u32);
                changed.put_slice(&real.0);
                changed.put_slice(&body[at + 4 + given.0.len()..]);
                return changed.freeze();
            }
        }
        body.clone()
    }
}

/// Notes the effect of a request on an open file of that name.
fn note(request: &Request, file: &mut File) {
    match request {
        Request::Setstat { attributes, .. } | Request::Lsetstat { attributes, .. } => {
            if let Some(content) = file.content() {
                content.attributes_are_sent(attributes);
            }
        }
        Request::Open { flags, .. } if flags.truncates() => {
            if let Some(content) = file.content() {
                content.is_shared = true;
            }
        }
        _ => {}
    }
}
