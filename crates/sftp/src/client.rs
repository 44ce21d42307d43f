//! [`Client`]: one SFTP session, but for the channel that carries it.

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

/// The beginning of a session.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Let requests leave behind SSH_FXP_INIT without waiting for the server's version: a round trip less. sftp-server
    /// works through packets in order and takes them; the draft does not promise it, so OpenSSH only.
    pub early_requests: bool,
    /// Ask for the server's limits there, too: where sftp-server was seen to answer. Other servers that sshd runs in its
    /// place may end the session at an extended request that they do not know (lsh's).
    pub early_limits: bool,
    /// The largest read or write that [`Limits`] shall tell, in bytes, whatever the server takes.
    pub largest_request: Option<u32>,
    /// The most files and directories to have open at once, whatever the server says: it was seen to refuse more, or,
    /// with 1, to give several one handle ([`Error::SharedHandles`]).
    pub max_handles: Option<usize>,
}

/// Tells requests of one session apart; never used twice. Its lower half is the request's number on the wire.
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
    /// Counts what was sent, in order.
    sequence: u64,
    /// It may take the server as long as a disk takes.
    takes_long: bool,
    closes: Option<Handle>,
    /// The request to repeat if it is refused because too much is open.
    opens: Option<Request>,
    /// The file that an opening makes which nobody wants any more.
    makes: Option<Bytes>,
}

/// An OPEN that was refused while something else was open, which may have been the reason.
struct RefusedOpen {
    id: RequestId,
    request: Request,
    /// The number of open files at that time.
    beside: usize,
}

/// The requester of an opening, and the treatment of one that is impossible now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// A transfer plan, or whoever closes soon: it waits for a handle.
    Waits,
    /// A caller who may hold others' handles for as long as it likes: it fails where waiting might never end.
    Fails,
}

/// The receiver of a reply, and its effect on the count of open handles.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The application, for something that neither opens nor closes.
    Plain,
    /// The application, for a handle.
    Opens(Patience),
    /// The same, for what was refused before.
    OpensAgain,
    /// The application, for the end of a handle.
    Closes,
    /// Nobody: cancelled. A reply is dropped.
    Forgotten,
    /// Nobody: cancelled. A handle that comes is closed.
    ForgottenOpen,
    /// Nobody, but the handle counts until the reply is here.
    ForgottenClose,
    /// The client itself, for limits@openssh.com.
    AsksLimits,
}

/// An SFTP session as a state machine without I/O.
///
/// Its methods come in four families:
/// - *getters* tell what is known of the server and how much is under way;
/// - *input*: [`handle_bytes`](Self::handle_bytes) takes what the channel brought, [`handle_eof`](Self::handle_eof)
///   its end;
/// - *what the application does*: [`request`](Self::request), [`cancel`](Self::cancel), [`close`](Self::close);
/// - *output*, to be polled after each of the others: [`poll_event`](Self::poll_event) until `None`, then
///   [`poll_transmit`](Self::poll_transmit) until `None`.
///
/// Requests may be made from the start; they wait for the server's version, or leave behind SSH_FXP_INIT with
/// [`Config::early_requests`]. Section 6.1 of the draft lets a client send without waiting, and has the server work on
/// requests about one file in the order that they came in; replies come in any order.
///
/// [`Request::Open`] and [`Request::Opendir`] beyond the number of handles that the server allows wait in the client
/// until one is closed, and are overtaken by what is asked later.
///
/// An error is the session's end; every later call of an input method returns it again.
pub struct Client {
    /// The server's extensions, once it has told its version.
    extensions: Option<Extensions>,
    config: Config,
    limits: Limits,
    /// The server was asked for its limits and has not answered.
    limits_awaited: bool,
    /// Handles that came before the limits: with one in hand the application reads and writes, which it cannot do
    /// rightly before they are known. sftp-server answers in order, so that these are other servers'.
    unannounced: Vec<(RequestId, Outcome)>,
    failed: Option<Error>,

    inbox: Inbox,
    /// The length of the packet whose beginning is in `inbox`.
    declared: Option<usize>,

    next_id: u64,
    /// Requests sent, by their number on the wire.
    pending: HashMap<u32, Pending>,
    /// Requests that wait for the server's version.
    held: VecDeque<(RequestId, Request, Patience)>,
    /// Requests that wait for a handle to become free.
    waiting: VecDeque<(RequestId, Request, Patience)>,
    /// Requests that wait for answers, since the server is not to have too many of them ahead.
    backlog: VecDeque<(RequestId, Request, Role)>,
    /// Handles in use, and who has them.
    open: HashMap<Handle, Patience>,
    /// Handles asked for.
    opening: usize,
    /// Handles being closed, with the places of their CLOSE in the order of what was sent.
    closing: HashMap<Handle, u64>,
    /// The refused openings, to be tried when nothing else is open.
    refused: Vec<RefusedOpen>,
    /// The repeated ones, with the number of open files when each was refused.
    reopening: Vec<(RequestId, usize)>,
    /// So many were open at once.
    proven: usize,
    /// As many as the server was seen to allow, where it refused more.
    found_max_handles: Option<usize>,
    sent: u64,

    events: VecDeque<(RequestId, Outcome)>,
    outbox: VecDeque<Bytes>,
    /// Packets and heads of packets, behind `outbox`. Together, so that many small requests become one write.
    heads: BytesMut,
    queued: usize,
}

/// The most requests that transfer plans have in flight on a session. With the smallest reads that a server can ask for this
/// is 16 MiB under way; what is far from a server that takes usual ones needs a tenth of it.
const MOST_IN_FLIGHT: usize = 4096;
/// The most requests without an answer on a server that is not OpenSSH's: what its own client has under way, with which
/// every server was tried. russh-sftp 2.4 stopped answering for good with more.
const MOST_AHEAD: usize = 64;
/// A write's data below this is copied behind its head: a channel packet of its own would cost more.
const COPIED: usize = 1024;

impl Client {
    /// A session whose first bytes wait in [`Self::poll_transmit`].
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

    /// The server's extensions, once it has told its version.
    pub fn extensions(&self) -> Option<&Extensions> {
        self.extensions.as_ref()
    }

    /// Returns whether the server can do what an extended request asks. False before it has told its version.
    pub fn supports(&self, request: &Request) -> bool {
        request.extension().is_none_or(|(name, version)| {
            self.extensions
                .as_ref()
                .is_some_and(|extensions| extensions.has(name, version))
        })
    }

    /// The server's limits: the defaults until it has sent them, which happens before the first handle is given out.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns whether the server works on the requests for one file in the order in which they were sent, so that what
    /// ends a file may leave behind what fills it. Section 6.1 of the draft demands it, and others than OpenSSH's
    /// sftp-server let WRITE, FSETSTAT, CLOSE and RENAME overtake each other.
    pub fn keeps_order(&self) -> bool {
        self.extensions.as_ref().is_some_and(Extensions::are_sftp_servers)
    }

    /// Requests that have no reply yet.
    pub fn in_flight(&self) -> usize {
        self.pending.len() + self.backlog.len()
    }

    /// Returns whether a transfer plan may ask for more: each request takes memory until it is answered, however little
    /// it asks for.
    pub fn has_room(&self) -> bool {
        self.in_flight() + self.held.len() + self.waiting.len() < self.most_ahead()
    }

    fn most_ahead(&self) -> usize {
        match self.extensions {
            Some(_) if !self.keeps_order() => MOST_AHEAD,
            _ => MOST_IN_FLIGHT,
        }
    }

    /// Handles that the server holds or will hold for what was sent.
    pub fn handles(&self) -> usize {
        self.open.len() + self.opening + self.closing.len()
    }

    /// Returns whether the server has no reason to be silent: it owes an answer that takes it no time. OpenSSH's
    /// sftp-server does one thing after the other, and may wait for a disk or a FIFO in any of them.
    pub fn is_owed_an_answer(&self) -> bool {
        match self.extensions {
            Some(_) => !self.keeps_order() && self.pending.values().any(|pending| !pending.takes_long),
            None => true,
        }
    }

    /// Returns the number of handles that the server was seen to allow at once, if it refused more.
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

    /// Bytes that wait in [`Self::poll_transmit`].
    pub fn queued_bytes(&self) -> usize {
        self.queued
    }

    // Input.

    /// Takes bytes from the channel. Data of replies is kept as slices of them.
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

    /// The channel will bring nothing more: fails with [`Error::Closed`], or with what failed before.
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
        // Text in whatever language and colour: packets of 16 MiB are not sent.
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
        // Type, number and the data's length: read apart, so that data is not joined into one piece.
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
                // A refusal means a server without the extension, asked early.
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
                // A handle that is to be closed may come again once the server has read the CLOSE, and not before.
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

    /// Notes that an opening which was refused beside other files succeeded without them: those were too many.
    fn handle_opened_again(&mut self, id: RequestId, is_open: bool) {
        let Some(at) = self.reopening.iter().position(|(again, _)| *again == id) else {
            return;
        };
        let (_, beside) = self.reopening.swap_remove(at);
        if is_open {
            self.limits.max_handles = self.limits.max_handles.min(beside);
            self.found_max_handles = Some(self.limits.max_handles);
            // So were the others, and nothing else is known against them.
            for refused in self.refused.drain(..).rev() {
                self.waiting
                    .push_front((refused.id, refused.request, Patience::Waits));
            }
        }
    }

    // What the application does.

    /// Asks the server for something. The answer comes as an event with the returned number, also where nothing is
    /// sent: a request that does not fit into a packet of 256 KiB ends with [`StatusCode::BAD_MESSAGE`], one that
    /// needs an extension the server has not announced with [`StatusCode::OP_UNSUPPORTED`].
    pub fn request(&mut self, request: Request) -> RequestId {
        self.ask(request, Patience::Waits)
    }

    /// The same for a caller who may hold handles for as long as it likes: where too many of those are open,
    /// [`Request::Open`] and [`Request::Opendir`] fail, since none may ever become free.
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

    /// Nobody waits for a request's answer any more: no event will come of it. If it has not left it never will; the
    /// server may carry it out otherwise. A handle that it brings is closed.
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

    /// The same for an opening that makes a file: what it makes is removed, and nothing else is. Somebody else may have given the name
    /// to a file by now.
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

    /// Removes a file, and does not ask how that went.
    fn remove_unasked(&mut self, path: Bytes) {
        let id = self.allocate();
        self.send(id, Request::Remove { path }, Role::Forgotten);
    }

    /// Takes back what waits for others' answers. What closes a handle leaves all the same.
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

    /// Closes a handle, and does not ask how that went. After writing use [`Request::Close`]: a network file system
    /// tells only then that a disk is full.
    pub fn close(&mut self, handle: Handle) {
        // Who has a handle is past the version: nothing holds the request back.
        let id = self.allocate();
        self.open.remove(&handle);
        self.send(id, Request::Close { handle }, Role::ForgottenClose);
    }

    // Output.

    /// The next answer.
    pub fn poll_event(&mut self) -> Option<(RequestId, Outcome)> {
        self.events.pop_front()
    }

    /// Bytes for the server, in order. A write's data leaves as it was given, behind its head.
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
        // Some servers, Paramiko's among them, rename so without listing the extension: they are asked, whoever cannot says it.
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

    /// Asks again for what was refused beside other files, when none is open any more: as much as was open at once before,
    /// so that what is refused now is refused for good.
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

    /// Sends a request, or lets it wait for others' answers.
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
                // russh's server stops for good when a hundred packets wait for its SFTP: what is sent apart, head and data, is
                // twice as many of them.
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
        // A number on the wire comes again after 2^32 requests, but not while a reply to it is awaited.
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
    /// Returns the part of a server's limits that may be used.
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
