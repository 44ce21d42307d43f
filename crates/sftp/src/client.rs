//! [`Client`]: one SFTP session, without the channel that carries it.

use std::collections::{HashMap, VecDeque};

use bytes::{Bytes, BytesMut};

use crate::data::Inbox;
use crate::error::Error;
use crate::extension::{Extensions, LIMITS, Limits};
use crate::packet::{MAX_DATA, MAX_PACKET, Reader, Writer, kind};
use crate::reply::{Expect, Handle, Outcome, Reply};
use crate::request::Request;
use crate::status::{Status, StatusCode};
use trunkline_text::Printable;

/// The settings of a session.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Requests leave right after SSH_FXP_INIT, without waiting for the server's version, which saves a round trip.
    /// sftp-server handles packets in order and accepts this; the draft does not promise it, so it is for OpenSSH only.
    pub early_requests: bool,
    /// The client asks for the server's limits there, too. Set this only if sftp-server is known to answer: sshd may
    /// run other servers, which may end the session at an extended request that they do not know (lsh's does).
    pub early_limits: bool,
    /// The largest read or write that [`Limits`] may allow, in bytes, whatever the server accepts.
    pub largest_request: Option<u32>,
    /// The most files and directories to have open at once, whatever the server says. Some servers refuse more, or,
    /// with more than one, give several the same handle ([`Error::SharedHandles`]).
    pub max_handles: Option<usize>,
}

/// The id of a request, unique in its session. Its lower half is the request's number on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(u64);

impl RequestId {
    fn wire(self) -> u32 {
        self.0 as u32
    }
}

/// A request that was sent.
struct Pending {
    id: RequestId,
    expect: Expect,
    role: Role,
    /// The number of the request in the order of sending.
    sequence: u64,
    /// The server may need a disk for the answer.
    takes_long: bool,
    closes: Option<Handle>,
    /// The request to repeat if the server refuses it because too many files are open.
    opens: Option<Request>,
    /// The path of the file that a cancelled opening makes.
    makes: Option<Bytes>,
}

/// An OPEN that the server refused, perhaps because other files were open.
struct RefusedOpen {
    id: RequestId,
    request: Request,
    /// The number of files that were open then.
    beside: usize,
}

/// The treatment of an opening that is impossible now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// It waits for a handle: its requester is a transfer plan, or closes soon.
    Waits,
    /// It fails if waiting might never end: its requester may hold handles as long as it likes.
    Fails,
}

/// The receiver of a reply, and the reply's effect on the count of open handles.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The application, for a request that neither opens nor closes.
    Plain,
    /// The application, for a handle.
    Opens(Patience),
    /// The application, for a handle that was refused before.
    OpensAgain,
    /// The application, for closing a handle.
    Closes,
    /// Nobody, because it was cancelled. The reply is dropped.
    Forgotten,
    /// Nobody, because it was cancelled. A handle in the reply is closed.
    ForgottenOpen,
    /// Nobody, but the handle counts until the reply comes.
    ForgottenClose,
    /// The client itself, for limits@openssh.com.
    AsksLimits,
}

/// An SFTP session as a state machine without I/O.
///
/// Its methods come in four families:
/// - *getters* describe the server and the work in flight;
/// - *input*: [`handle_bytes`](Self::handle_bytes) takes the channel's bytes, [`handle_eof`](Self::handle_eof) its end;
/// - *the application's actions*: [`request`](Self::request), [`cancel`](Self::cancel), [`close`](Self::close);
/// - *output*, to be polled after each of the others: [`poll_event`](Self::poll_event) until `None`, then
///   [`poll_transmit`](Self::poll_transmit) until `None`.
///
/// Requests may be made from the start; they wait for the server's version, or leave right after SSH_FXP_INIT with
/// [`Config::early_requests`]. Section 6.1 of the draft lets a client send without waiting, and has the server handle
/// requests for one file in order; replies come in any order.
///
/// If the server's limit of handles is reached, [`Request::Open`] and [`Request::Opendir`] wait in the client until one
/// is closed; later requests overtake them.
///
/// An error ends the session; every later call of an input method returns it again.
pub struct Client {
    /// The server's extensions, once it has sent its version.
    extensions: Option<Extensions>,
    config: Config,
    limits: Limits,
    /// The server has not answered the request for its limits.
    limits_awaited: bool,
    /// Replies with handles that came before the limits. The application gets them after the limits, because it needs
    /// these to read and write. sftp-server answers in order, so these come from other servers.
    unannounced: Vec<(RequestId, Outcome)>,
    failed: Option<Error>,

    inbox: Inbox,
    /// The length of the packet that begins in `inbox`.
    declared: Option<usize>,

    next_id: u64,
    /// Requests that were sent, by their number on the wire.
    pending: HashMap<u32, Pending>,
    /// Requests that wait for the server's version.
    held: VecDeque<(RequestId, Request, Patience)>,
    /// Requests that wait for a handle to become free.
    waiting: VecDeque<(RequestId, Request, Patience)>,
    /// Requests that wait for answers to others, because the server must not have too many at once.
    backlog: VecDeque<(RequestId, Request, Role)>,
    /// The handles in use, and the patience of their owners.
    open: HashMap<Handle, Patience>,
    /// The number of handles that were requested.
    opening: usize,
    /// The handles being closed, each with the sequence number of its CLOSE.
    closing: HashMap<Handle, u64>,
    /// The refused openings, to be repeated when nothing else is open.
    refused: Vec<RefusedOpen>,
    /// The repeated openings, with the number of files that were open when each was refused.
    reopening: Vec<(RequestId, usize)>,
    /// The most handles that were open at once.
    proven: usize,
    /// The number of handles that the server allows, if it refused more.
    found_max_handles: Option<usize>,
    sent: u64,

    events: VecDeque<(RequestId, Outcome)>,
    outbox: VecDeque<Bytes>,
    /// Packets and heads of packets after `outbox`, joined so that many small requests become one write.
    heads: BytesMut,
    queued: usize,
}

/// The most requests that transfer plans have in flight on a session. With the smallest reads of any server that is 16
/// MiB; a distant server with the usual ones needs a tenth.
const MOST_IN_FLIGHT: usize = 4096;
/// The most unanswered requests on a server that is not OpenSSH's. OpenSSH's own client has as many, and every server
/// was tested with it. russh-sftp 2.4 stopped answering for good with more.
const MOST_AHEAD: usize = 64;
/// The size below which a write's data is copied after its head, because its own channel packet would cost more.
const COPIED: usize = 1024;

impl Client {
    /// Makes a session; its first bytes wait in [`Self::poll_transmit`].
    pub fn new(config: &Config) -> Self {
        let mut client = Self {
            extensions: None,
            config: config.clone(),
            limits: config.cap(Limits::default()),
            limits_awaited: false,
            unannounced: Vec::new(),
            failed: None,
            inbox: Inbox::default(),
            declared: None,
            next_id: 0,
            pending: HashMap::new(),
            held: VecDeque::new(),
            waiting: VecDeque::new(),
            backlog: VecDeque::new(),
            open: HashMap::new(),
            opening: 0,
            closing: HashMap::new(),
            refused: Vec::new(),
            reopening: Vec::new(),
            proven: 1,
            found_max_handles: None,
            sent: 0,
            events: VecDeque::new(),
            outbox: VecDeque::new(),
            heads: BytesMut::new(),
            queued: 0,
        };
        Writer::packet(&mut client.heads, kind::INIT).u32(3).finish(0);
        client.queued = client.heads.len();
        if config.early_limits {
            client.ask_limits();
        }
        client
    }

    // Getters.

    /// Returns the server's extensions, once it has sent its version.
    pub fn extensions(&self) -> Option<&Extensions> {
        self.extensions.as_ref()
    }

    /// Returns whether the server supports an extended request; false before it has sent its version.
    pub fn supports(&self, request: &Request) -> bool {
        request.extension().is_none_or(|(name, version)| {
            self.extensions
                .as_ref()
                .is_some_and(|extensions| extensions.has(name, version))
        })
    }

    /// Returns the server's limits. They are the defaults until it sends them, before the first handle.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns whether the server handles requests for one file in the order of sending, so that a request to end a
    /// file may follow those that fill it without waiting. Section 6.1 of the draft demands it, but servers other than
    /// OpenSSH's sftp-server let WRITE, FSETSTAT, CLOSE and RENAME overtake each other.
    pub fn keeps_order(&self) -> bool {
        self.extensions.as_ref().is_some_and(Extensions::are_sftp_servers)
    }

    /// Returns the number of requests without a reply.
    pub fn in_flight(&self) -> usize {
        self.pending.len() + self.backlog.len()
    }

    /// Returns whether a transfer plan may send more requests: each takes memory until it is answered, however small it
    /// is.
    pub fn has_room(&self) -> bool {
        self.in_flight() + self.held.len() + self.waiting.len() < self.most_ahead()
    }

    fn most_ahead(&self) -> usize {
        match self.extensions {
            Some(_) if !self.keeps_order() => MOST_AHEAD,
            _ => MOST_IN_FLIGHT,
        }
    }

    /// Returns the number of handles that the server holds or will hold.
    pub fn handles(&self) -> usize {
        self.open.len() + self.opening + self.closing.len()
    }

    /// Returns whether the server owes an answer that takes it no time. OpenSSH's sftp-server does one thing after the
    /// other, and each may wait for a disk or a FIFO.
    pub fn is_owed_an_answer(&self) -> bool {
        match self.extensions {
            Some(_) => !self.keeps_order() && self.pending.values().any(|pending| !pending.takes_long),
            None => true,
        }
    }

    /// Returns the number of handles that the server allows at once, if it refused more.
    pub fn found_max_handles(&self) -> Option<usize> {
        self.found_max_handles
    }

    /// Opens one file at a time from now on, as with [`Config::max_handles`] of 1.
    pub fn open_one_at_a_time(&mut self) {
        self.config.max_handles = Some(1);
        self.limits = self.config.cap(self.limits);
    }

    /// Returns the number of files that can be opened without waiting in the client.
    pub fn free_handles(&self) -> usize {
        self.limits
            .max_handles
            .saturating_sub(self.handles() + self.waiting.len() + self.refused.len())
    }

    /// Returns the number of bytes that wait in [`Self::poll_transmit`].
    pub fn queued_bytes(&self) -> usize {
        self.queued
    }

    // Input.

    /// Takes bytes from the channel. Keeps data of replies as slices of them.
    pub fn handle_bytes(&mut self, bytes: Bytes) -> Result<(), Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.inbox.push(bytes);
        let result = self.handle_packets();
        if let Err(error) = &result {
            self.failed = Some(error.clone());
        }
        result
    }

    /// Handles the end of the channel: fails with [`Error::Closed`], or with the earlier error.
    pub fn handle_eof(&mut self) -> Result<(), Error> {
        Err(self.failed.get_or_insert(Error::Closed).clone())
    }

    fn handle_packets(&mut self) -> Result<(), Error> {
        loop {
            let declared = match self.declared {
                Some(declared) => declared,
                None if self.inbox.len() >= 4 => self.read_length()?,
                None => return Ok(()),
            };
            if self.inbox.len() < declared {
                self.declared = Some(declared);
                return Ok(());
            }
            self.declared = None;
            self.handle_packet(declared)?;
        }
    }

    fn read_length(&mut self) -> Result<usize, Error> {
        let field: [u8; 4] = self.inbox.take_array();
        let length = u32::from_be_bytes(field) as usize;
        if (1..=MAX_PACKET).contains(&length) {
            return Ok(length);
        }
        // This is text in any language or colour: no packet has 16 MiB.
        if self.extensions.is_none() && field[0] != 0 {
            let mut text = field.to_vec();
            text.extend_from_slice(&self.inbox.take(self.inbox.len().min(200)).into_bytes());
            return Err(Error::NotSftp(Printable::line(text.trim_ascii())));
        }
        Err(Error::misbehavior(format!(
            "it announced a packet of {length} bytes"
        )))
    }

    fn handle_packet(&mut self, length: usize) -> Result<(), Error> {
        // Type, number and length of the data are read separately, so that data is not joined into one piece.
        const DATA_HEAD: usize = 9;
        let [kind] = self.inbox.take_array();
        let rest = length - 1;
        if kind == kind::VERSION {
            let payload = self.inbox.take(rest).into_bytes();
            return self.handle_version(Reader::new(payload));
        }
        if self.extensions.is_none() {
            return Err(Error::misbehavior(format!(
                "a packet of type {kind} came before its version"
            )));
        }
        if kind == kind::DATA && length >= DATA_HEAD {
            let wire = u32::from_be_bytes(self.inbox.take_array());
            let declared = u32::from_be_bytes(self.inbox.take_array()) as usize;
            let mut data = self.inbox.take(length - DATA_HEAD);
            if declared > data.len() {
                return Err(Error::misbehavior("a packet ends in the middle of its data"));
            }
            data.truncate(declared);
            return self.handle_reply(wire, |expect| expect.check_data(data));
        }
        let mut reader = Reader::new(self.inbox.take(rest).into_bytes());
        let wire = reader.u32()?;
        self.handle_reply(wire, |expect| expect.decode(kind, reader))
    }

    fn handle_version(&mut self, mut reader: Reader) -> Result<(), Error> {
        if self.extensions.is_some() {
            return Err(Error::misbehavior("it told its version twice"));
        }
        let version = reader.u32()?;
        if version != 3 {
            return Err(Error::Version(version));
        }
        let extensions = Extensions::decode(&mut reader)?;
        let asks_limits = !self.config.early_limits && extensions.has(LIMITS.0, LIMITS.1);
        self.extensions = Some(extensions);
        if asks_limits {
            self.ask_limits();
        }
        for (id, request, patience) in std::mem::take(&mut self.held) {
            self.dispatch(id, request, patience);
        }
        Ok(())
    }

    fn handle_reply(
        &mut self,
        wire: u32,
        decode: impl FnOnce(Expect) -> Result<Outcome, Error>,
    ) -> Result<(), Error> {
        let Some(pending) = self.pending.remove(&wire) else {
            return Err(Error::misbehavior(format!(
                "it answered request {wire}, which was not made"
            )));
        };
        let outcome = decode(pending.expect)?;
        let id = pending.id;
        match pending.role {
            Role::Plain => self.events.push_back((id, outcome)),
            Role::Forgotten => {}
            Role::AsksLimits => {
                // A server without the extension refuses the early request.
                if let Ok(Reply::Limits(limits)) = outcome {
                    self.limits = self.config.cap(limits);
                }
                self.limits_awaited = false;
                self.events.extend(self.unannounced.drain(..));
            }
            Role::Opens(_) | Role::OpensAgain | Role::ForgottenOpen => {
                self.opening -= 1;
                self.handle_opened(pending, outcome)?;
            }
            Role::Closes | Role::ForgottenClose => {
                if let Some(handle) = &pending.closes {
                    self.closing.remove(handle);
                }
                if pending.role == Role::Closes {
                    self.events.push_back((id, outcome));
                }
            }
        }
        while self.pending.len() < self.most_ahead()
            && let Some((id, request, role)) = self.backlog.pop_front()
        {
            self.transmit(id, request, role);
        }
        self.open_refused();
        self.open_waiting();
        Ok(())
    }

    fn handle_opened(&mut self, pending: Pending, outcome: Outcome) -> Result<(), Error> {
        let Pending { id, role, makes, .. } = pending;
        let outcome = match outcome {
            Ok(Reply::Handle(handle)) => {
                // A handle may come again once the server has read its CLOSE, but not before.
                let closes_later = |closed: &u64| *closed > pending.sequence;
                if self.open.contains_key(&handle) || self.closing.get(&handle).is_some_and(closes_later) {
                    return Err(Error::SharedHandles);
                }
                let patience = match role {
                    Role::Opens(patience) => patience,
                    _ => Patience::Waits,
                };
                self.open.insert(handle.clone(), patience);
                self.proven = self.proven.max(self.open.len());
                Ok(Reply::Handle(handle))
            }
            Err(status) => {
                let beside = self.open.len() + self.closing.len();
                let may_be_too_many = beside > 0
                    && role == Role::Opens(Patience::Waits)
                    && matches!(status.code, StatusCode::FAILURE | StatusCode::PERMISSION_DENIED);
                if may_be_too_many && let Some(request) = pending.opens {
                    self.refused.push(RefusedOpen { id, request, beside });
                    return Ok(());
                }
                Err(status)
            }
            other => other,
        };
        if role == Role::OpensAgain {
            self.handle_opened_again(id, outcome.is_ok());
        }
        match outcome {
            Ok(Reply::Handle(handle)) if role == Role::ForgottenOpen => {
                self.close(handle);
                if let Some(path) = makes {
                    self.remove_unasked(path);
                }
            }
            _ if role == Role::ForgottenOpen => {}
            outcome if self.limits_awaited => self.unannounced.push((id, outcome)),
            outcome => self.events.push_back((id, outcome)),
        }
        Ok(())
    }

    /// Handles the success of an opening that had been refused: the other open files were too many.
    fn handle_opened_again(&mut self, id: RequestId, is_open: bool) {
        let Some(at) = self.reopening.iter().position(|(again, _)| *again == id) else {
            return;
        };
        let (_, beside) = self.reopening.swap_remove(at);
        if is_open {
            self.limits.max_handles = self.limits.max_handles.min(beside);
            self.found_max_handles = Some(self.limits.max_handles);
            // The others were refused for the same reason.
            for refused in self.refused.drain(..).rev() {
                self.waiting
                    .push_front((refused.id, refused.request, Patience::Waits));
            }
        }
    }

    // The application's actions.

    /// Sends a request. The answer comes as an event with the returned id, even if nothing is sent: a request that does
    /// not fit into a packet of 256 KiB ends with [`StatusCode::BAD_MESSAGE`], and one that needs a missing extension
    /// with [`StatusCode::OP_UNSUPPORTED`].
    pub fn request(&mut self, request: Request) -> RequestId {
        self.ask(request, Patience::Waits)
    }

    /// Sends a request for a caller who may hold handles for any time. If such callers hold too many, [`Request::Open`]
    /// and [`Request::Opendir`] fail, because no handle may ever become free.
    pub fn request_or_fail(&mut self, request: Request) -> RequestId {
        self.ask(request, Patience::Fails)
    }

    fn ask(&mut self, request: Request, patience: Patience) -> RequestId {
        let id = self.allocate();
        if request.encoded_len() > MAX_PACKET {
            let message = "the request does not fit into a packet of 256 KiB";
            self.events
                .push_back((id, Err(Status::local(StatusCode::BAD_MESSAGE, message))));
            return id;
        }
        let may_leave =
            self.extensions.is_some() || self.config.early_requests && request.extension().is_none();
        if may_leave && self.held.is_empty() {
            self.dispatch(id, request, patience);
        } else {
            self.held.push_back((id, request, patience));
        }
        id
    }

    /// Cancels a request, so that no event comes for it. A request that has not left never leaves; the server may carry
    /// out one that has. A handle in its reply is closed.
    pub fn cancel(&mut self, id: RequestId) {
        self.held.retain(|(held, ..)| *held != id);
        self.waiting.retain(|(waiting, ..)| *waiting != id);
        self.refused.retain(|refused| refused.id != id);
        if let Some(at) = self.backlog.iter().position(|(queued, ..)| *queued == id) {
            self.cancel_queued(at);
        }
        if let Some(pending) = self
            .pending
            .get_mut(&id.wire())
            .filter(|pending| pending.id == id)
        {
            pending.role = match pending.role {
                Role::Plain => Role::Forgotten,
                Role::Opens(_) | Role::OpensAgain => Role::ForgottenOpen,
                Role::Closes => Role::ForgottenClose,
                other => other,
            };
        }
        let unannounced = self
            .unannounced
            .extract_if(.., |(answered, _)| *answered == id)
            .next();
        let answered = self.events.iter().position(|(event, _)| *event == id);
        let answered = answered.and_then(|at| self.events.remove(at)).or(unannounced);
        if let Some((_, Ok(Reply::Handle(handle)))) = answered {
            self.close(handle);
        }
    }

    /// Cancels an opening that makes a file, and removes the file only if this opening has made it: another program may
    /// have given the name to a file by now.
    pub fn cancel_making(&mut self, id: RequestId, path: Bytes) {
        let answered = self
            .events
            .iter()
            .chain(&self.unannounced)
            .find(|(event, _)| *event == id);
        let is_made = answered.is_some_and(|(_, outcome)| outcome.is_ok());
        self.cancel(id);
        if is_made {
            self.remove_unasked(path);
        } else if let Some(pending) = self
            .pending
            .get_mut(&id.wire())
            .filter(|pending| pending.id == id)
        {
            pending.makes = Some(path);
        }
    }

    /// Removes a file and ignores the result.
    fn remove_unasked(&mut self, path: Bytes) {
        let id = self.allocate();
        self.send(id, Request::Remove { path }, Role::Forgotten);
    }

    /// Removes a request from the backlog, unless it closes a handle.
    fn cancel_queued(&mut self, at: usize) {
        match self.backlog[at].2 {
            Role::Closes => self.backlog[at].2 = Role::ForgottenClose,
            Role::ForgottenClose => {}
            role => {
                if matches!(role, Role::Opens(_) | Role::OpensAgain) {
                    self.opening -= 1;
                }
                self.backlog.remove(at);
            }
        }
    }

    /// Closes a handle and ignores the result. After writing use [`Request::Close`]: a network file system reports a
    /// full disk only then.
    pub fn close(&mut self, handle: Handle) {
        // The server has sent its version before any handle, so nothing holds this request back.
        let id = self.allocate();
        self.open.remove(&handle);
        self.send(id, Request::Close { handle }, Role::ForgottenClose);
    }

    // Output.

    /// Returns the next answer.
    pub fn poll_event(&mut self) -> Option<(RequestId, Outcome)> {
        self.events.pop_front()
    }

    /// Returns bytes for the server, in order. A write's data leaves as it was given, after its head.
    pub fn poll_transmit(&mut self) -> Option<Bytes> {
        let bytes = match self.outbox.pop_front() {
            Some(bytes) => bytes,
            None if self.heads.is_empty() => return None,
            None => self.heads.split().freeze(),
        };
        self.queued -= bytes.len();
        Some(bytes)
    }

    fn ask_limits(&mut self) {
        self.limits_awaited = true;
        let id = self.allocate();
        self.send(id, Request::Limits, Role::AsksLimits);
    }

    /// Sends a request, or lets it wait for a handle.
    fn dispatch(&mut self, id: RequestId, mut request: Request, patience: Patience) {
        // Some servers, such as Paramiko's, support this without listing it, so every server is asked.
        let unlisted = matches!(request, Request::PosixRename { .. });
        if self.extensions.is_some() && !unlisted && !self.supports(&request) {
            let (name, _) = request.extension().unwrap_or_default();
            let message = format!("the server has no {name}");
            self.events
                .push_back((id, Err(Status::local(StatusCode::OP_UNSUPPORTED, message))));
            return;
        }
        if request.opens() {
            let held = self
                .open
                .values()
                .filter(|patience| **patience == Patience::Fails)
                .count();
            if patience == Patience::Fails && held >= self.limits.max_handles {
                let most = self.limits.max_handles;
                let message =
                    format!("the server allows {most} open at once on a session: close another one first");
                self.events
                    .push_back((id, Err(Status::local(StatusCode::FAILURE, message))));
                return;
            }
            self.waiting.push_back((id, request, patience));
            self.open_waiting();
            return;
        }
        let role = match &mut request {
            Request::Close { handle } => {
                self.open.remove(handle);
                Role::Closes
            }
            Request::Read { length, .. } => {
                *length = (*length).min(MAX_DATA);
                Role::Plain
            }
            _ => Role::Plain,
        };
        self.send(id, request, role);
    }

    fn open_waiting(&mut self) {
        while self.handles() < self.limits.max_handles {
            let Some((id, request, patience)) = self.waiting.pop_front() else {
                return;
            };
            self.opening += 1;
            self.send(id, request, Role::Opens(patience));
        }
    }

    /// Repeats the refused openings once no file is open, as many as were open at once before. A second refusal is
    /// final.
    fn open_refused(&mut self) {
        if self.refused.is_empty() || self.handles() > 0 {
            return;
        }
        let some = self.refused.len().min(self.proven);
        for refused in self.refused.drain(..some).collect::<Vec<_>>() {
            self.reopening.push((refused.id, refused.beside));
            self.opening += 1;
            self.send(refused.id, refused.request, Role::OpensAgain);
        }
    }

    /// Sends a request, or lets it wait for answers to others.
    fn send(&mut self, id: RequestId, request: Request, role: Role) {
        if let Request::Close { handle } = &request {
            self.closing.insert(handle.clone(), u64::MAX);
        }
        if self.pending.len() < self.most_ahead() && self.backlog.is_empty() {
            self.transmit(id, request, role);
        } else {
            self.backlog.push_back((id, request, role));
        }
    }

    fn transmit(&mut self, id: RequestId, request: Request, role: Role) {
        let before = self.heads.len();
        request.encode(id.wire(), &mut self.heads);
        self.queued += self.heads.len() - before;
        self.sent += 1;
        let mut pending = Pending {
            id,
            expect: request.expects(),
            role,
            sequence: self.sent,
            takes_long: matches!(request, Request::Fsync { .. } | Request::CopyData { .. }),
            closes: None,
            opens: None,
            makes: None,
        };
        match request {
            Request::Write { data, .. } => {
                self.queued += data.len();
                // russh's server stops for good when a hundred packets wait for its SFTP. A head and data sent
                // separately would double their number.
                if data.len() < COPIED || !self.keeps_order() {
                    self.heads.extend_from_slice(&data);
                } else {
                    self.outbox.push_back(self.heads.split().freeze());
                    self.outbox.push_back(data);
                }
            }
            Request::Close { handle } => {
                self.closing.insert(handle.clone(), self.sent);
                pending.closes = Some(handle);
            }
            request if role == Role::Opens(Patience::Waits) && !self.keeps_order() => {
                pending.opens = Some(request);
            }
            _ => {}
        }
        self.pending.insert(id.wire(), pending);
    }

    fn allocate(&mut self) -> RequestId {
        // A number on the wire repeats after 2^32 requests, but not while its reply is due.
        loop {
            let id = RequestId(self.next_id);
            self.next_id += 1;
            if !self.pending.contains_key(&id.wire()) {
                return id;
            }
        }
    }
}

impl Config {
    /// Limits a server's limits to the settings.
    fn cap(&self, limits: Limits) -> Limits {
        let limits = limits.cap(self.largest_request);
        let most = self.max_handles.unwrap_or(usize::MAX).max(1);
        Limits {
            max_handles: limits.max_handles.min(most),
            ..limits
        }
    }
}

#[cfg(test)]
mod tests;
