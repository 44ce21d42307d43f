//! Carries the session of another program's client over from one connection to the next.
//!
//! A [`Bridge`] stands between an SFTP client and its server, without I/O: it takes the bytes of each and returns the
//! bytes for the other. After the server's connection is lost, it gets a new one. It then finds out what the server has
//! done, opens the files again, and repeats the unanswered requests; the client only notices a delay.
//!
//! The client can rely on the following:
//! - Each request is answered once, in the order of the requests.
//! - The bridge repeats only requests that are harmless to repeat. For another one (a rename, say), it checks whether
//!   the server has carried it out. If it cannot tell, the request fails with a status that says so.
//! - A file is opened again without being made or emptied, and used only if it looks like the file that was open. If it
//!   does not, the whole session ends ([`GiveUp`]), because clients overlook a single failed READ or WRITE.
//! - A READ in a session that was carried over is answered in full.

mod answers;
mod file;
mod give_up;
mod incoming;
mod outbox;
mod paths;
mod recovery;
mod seen;
mod sending;

use std::collections::{HashMap, VecDeque};

use bytes::{BufMut as _, Bytes};

use crate::data::Data;
use crate::error::Error;
use crate::extension::{Extensions, Limits};
use crate::packet::{MAX_DATA, Reader, Writer, kind};
use crate::reply::Handle;
use crate::request::Request;
use crate::status::StatusCode;
use file::File;
pub use give_up::GiveUp;
use incoming::{BadLength, Order, Packet, Packets};
use outbox::Outbox;
use paths::Knowledge;
pub use paths::KnownPaths;
use seen::Seen;
use trunkline_text::Printable;

/// The most memory of a session, in bytes, for requests without an answer and answers that wait for their turn.
pub const MOST_HELD: usize = 16 * 1024 * 1024;
/// The part of [`MOST_HELD`] that is left when the bridge stops taking the client's bytes, for a piece and a packet.
const ROOM: usize = 512 * 1024;
/// The cost of a request beside its data.
const COST: usize = 256;
/// The maximum cost of an answer to READDIR.
const LISTING_COST: usize = 256 * 1024;
/// The first bytes of the handles for clients. Each handle is unique in a session, so that a request for a closed file
/// never reaches another one.
const HANDLE: &[u8] = b"trunkline";

/// A client's request, from its arrival until the client has its answer.
struct Entry {
    /// The client's number for it.
    id: u32,
    order: Order,
    cost: usize,
    state: State,
    /// It was sent in a session that is lost now.
    was_sent: bool,
    /// The knowledge of the paths that it changes, from before it was first sent.
    before: [Option<(Knowledge, u64)>; 2],
    /// The findings about those paths after a loss.
    seen: [Option<Seen>; 2],
    /// An exclusive OPEN has made its file, which can now be opened like any other.
    has_made_file: bool,
    /// The number of parts of a WRITE without an answer.
    parts: usize,
    /// The answer to the first part of a WRITE that failed.
    failure: Option<Packet>,
    /// The data that a READ has got so far.
    read: Data,
}

impl Entry {
    /// Returns whether a loss would make the bridge repeat it.
    fn may_be_asked_again(&self) -> bool {
        match self.state {
            State::Held => false,
            State::Sent => true,
            // It waits behind an unanswered request.
            State::Answered(_) => self.order.is_repeatable_change(),
        }
    }
}

enum State {
    /// It has not been sent.
    Held,
    Sent,
    Answered(Packet),
}

/// A question to the server.
enum Ask {
    /// A request of the client's, or a part of one.
    Entry(u64),
    /// The attributes of a file that has just been opened.
    Known(Handle),
    /// The limits of the new session.
    Limits,
    /// The state of one path of a request, to find out whether the request was done.
    Look(u64, usize),
    /// An opening of a file that was open before.
    Reopen(Handle),
    /// The attributes of a file that was opened again.
    Reopened(Handle),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is no session with the server.
    Lost,
    /// The server has not sent its version.
    Greeting,
    /// The bridge finds out the fate of requests.
    Looking,
    /// The bridge opens the files again.
    Reopening,
    /// The client's requests go to the server.
    Up,
}

/// A session of an SFTP client, with one server after the other.
///
/// Its methods come in four families:
/// - *getters* describe its needs and progress;
/// - *input*: [`handle_client`](Self::handle_client) and [`handle_server`](Self::handle_server) take bytes;
/// - *the connection's changes*: [`begin`](Self::begin), [`lose`](Self::lose);
/// - *output*, to be polled after each of the others: [`poll_client`](Self::poll_client) and
///   [`poll_server`](Self::poll_server) until they are empty.
///
/// An error ends the session.
pub struct Bridge {
    from_client: Packets,
    from_server: Packets,
    to_client: Outbox,
    to_server: Outbox,
    phase: Phase,
    /// The number of sessions with a server so far.
    sessions: u32,
    /// The client has sent its INIT.
    is_asked: bool,
    /// The client has got the server's version.
    is_greeted: bool,
    /// The server handles requests in order, as sftp-server does, and takes SYMLINK's paths in its order.
    keeps_order: bool,
    /// The limits of a later session; a first one has none.
    limits: Limits,

    /// The client's requests without an answer, oldest first.
    queue: VecDeque<Entry>,
    /// The number of the oldest request.
    first: u64,
    /// The number of the next request to send.
    next: u64,
    /// The number of READs that the server has.
    reads: usize,
    /// The cost of the queue.
    held: usize,
    asks: HashMap<u32, Ask>,
    next_ask: u32,
    /// The number of the bridge's own questions for which a new session waits.
    awaited: usize,

    /// The client's open files, by the client's handles.
    files: HashMap<Handle, File>,
    next_handle: u32,
    paths: KnownPaths,
    /// The client has made links, so one file may have several names.
    has_links: bool,

    /// The number of answers that the client has got.
    answered: u64,
    failed: Option<GiveUp>,
}

impl Default for Bridge {
    fn default() -> Self {
        Self::new(KnownPaths::default())
    }
}

impl Bridge {
    /// Makes a session without a server. `paths` is the shared knowledge of all sessions of the account.
    pub fn new(paths: KnownPaths) -> Self {
        Self {
            from_client: Packets::default(),
            from_server: Packets::default(),
            to_client: Outbox::default(),
            to_server: Outbox::default(),
            phase: Phase::Lost,
            sessions: 0,
            is_asked: false,
            is_greeted: false,
            keeps_order: false,
            limits: UNLIMITED,
            queue: VecDeque::new(),
            first: 0,
            next: 0,
            reads: 0,
            held: 0,
            asks: HashMap::new(),
            next_ask: 0,
            awaited: 0,
            files: HashMap::new(),
            next_handle: 0,
            paths,
            has_links: false,
            answered: 0,
            failed: None,
        }
    }

    // Getters.

    /// Returns whether the bridge takes more of the client's bytes: [`MOST_HELD`] bounds its memory.
    pub fn takes_from_client(&self) -> bool {
        self.memory() < MOST_HELD - ROOM
    }

    /// Returns the number of bytes in memory.
    pub fn memory(&self) -> usize {
        self.held
            + self.from_client.len()
            + self.from_server.len()
            + self.to_client.len()
            + self.to_server.len()
    }

    /// Returns the number of bytes that wait in [`Self::poll_client`].
    pub fn queued_for_client(&self) -> usize {
        self.to_client.len()
    }

    /// Returns whether a lost connection has to be replaced: the client waits for an answer or has a file open.
    pub fn needs_server(&self) -> bool {
        !self.queue.is_empty() || !self.files.is_empty() || (self.is_asked && !self.is_greeted)
    }

    /// Returns whether the client has every answer.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && (self.is_greeted || !self.is_asked)
    }

    /// Returns whether the client's requests go to the server, which means that any earlier session was carried over.
    pub fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// Returns the number of answers that the client has got.
    pub fn answer_count(&self) -> u64 {
        self.answered
    }

    // Input.

    /// Takes bytes from the client.
    ///
    /// # Errors
    /// The session's end.
    pub fn handle_client(&mut self, bytes: Bytes) -> Result<(), GiveUp> {
        self.check()?;
        self.from_client.push(bytes);
        let handled = self.client_packets();
        self.end_on_error(handled)
    }

    /// Takes bytes from the server.
    ///
    /// # Errors
    /// The session's end.
    pub fn handle_server(&mut self, bytes: Bytes) -> Result<(), GiveUp> {
        self.check()?;
        self.from_server.push(bytes);
        let handled = self.server_packets();
        self.end_on_error(handled)
    }

    // Changes of the connection.

    /// Begins a new session with the server, which has sent nothing yet.
    ///
    /// # Errors
    /// The session's end.
    pub fn begin(&mut self) -> Result<(), GiveUp> {
        self.check()?;
        self.sessions += 1;
        self.phase = Phase::Greeting;
        if self.is_asked {
            self.greet();
        }
        let advanced = self.advance();
        self.end_on_error(advanced)
    }

    /// Handles the loss of the session with the server.
    pub fn lose(&mut self) {
        if self.phase == Phase::Lost {
            return;
        }
        self.phase = Phase::Lost;
        self.asks.clear();
        self.awaited = 0;
        self.from_server = Packets::default();
        self.to_server = Outbox::default();
        for file in self.files.values_mut() {
            file.handle = None;
            file.dead = None;
        }
        self.rewind();
    }

    // Output.

    /// Appends the bytes for the client to `pieces`.
    pub fn poll_client(&mut self, pieces: &mut Vec<Bytes>) {
        self.to_client.take(pieces);
    }

    /// Appends the bytes for the server to `pieces`.
    pub fn poll_server(&mut self, pieces: &mut Vec<Bytes>) {
        self.to_server.take(pieces);
    }

    fn check(&self) -> Result<(), GiveUp> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn end_on_error(&mut self, result: Result<(), GiveUp>) -> Result<(), GiveUp> {
        if let Err(why) = &result {
            self.failed = Some(why.clone());
        }
        result
    }

    fn client_packets(&mut self) -> Result<(), GiveUp> {
        loop {
            match self.from_client.next() {
                Ok(None) => break,
                Ok(Some(packet)) => self.client_packet(packet)?,
                Err(BadLength { length, .. }) => {
                    return Err(GiveUp::Client(format!("a packet of {length} bytes").into()));
                }
            }
        }
        self.advance()
    }

    fn client_packet(&mut self, Packet { kind, body }: Packet) -> Result<(), GiveUp> {
        let misbehaved = |what: &str| Err(GiveUp::Client(what.into()));
        if body.len() < 4 {
            return misbehaved("a packet without a number");
        }
        match (kind == kind::INIT, self.is_asked) {
            // The bridge speaks version 3, whatever the client asks for (section 4 of the draft).
            (true, false) => {
                self.is_asked = true;
                if self.phase == Phase::Greeting {
                    self.greet();
                }
                return Ok(());
            }
            (true, true) => return misbehaved("a second INIT"),
            (false, false) => return misbehaved("a request before INIT"),
            (false, true) => {}
        }
        let size = body.len();
        let id = Reader::new(body.part(0, 4).into_bytes())
            .u32()
            .map_err(Error::from)?;
        let order = Order::decode(kind, body.part(4, size));
        let cost = COST
            + match &order {
                Order::Known(Request::Read { length, .. }) => (*length).min(MAX_DATA) as usize,
                Order::Known(Request::Readdir { .. }) => LISTING_COST,
                _ => size,
            };
        self.held += cost;
        let state = match self.closed_handle(&order) {
            true => State::Answered(Packet::of_status(StatusCode::FAILURE, "no such handle")),
            false => State::Held,
        };
        if let Order::Known(Request::Close { handle }) = &order
            && let Some(file) = self.files.get_mut(handle)
        {
            file.is_closing = true;
        }
        self.queue.push_back(Entry {
            id,
            order,
            cost,
            state,
            was_sent: false,
            before: [None; 2],
            seen: [None, None],
            has_made_file: false,
            parts: 0,
            failure: None,
            read: Data::default(),
        });
        Ok(())
    }

    /// Returns whether a request names a handle that is closed or was never open.
    fn closed_handle(&self, order: &Order) -> bool {
        order
            .handles()
            .any(|handle| self.files.get(handle).is_none_or(|file| file.is_closing))
    }

    fn server_packets(&mut self) -> Result<(), GiveUp> {
        loop {
            match self.from_server.next() {
                Ok(None) => break,
                Ok(Some(packet)) => self.server_packet(packet)?,
                Err(BadLength { start, .. }) if self.phase == Phase::Greeting && start[0] != 0 => {
                    return Err(Error::NotSftp(Printable::line(start.trim_ascii())).into());
                }
                Err(BadLength { length, .. }) => {
                    return Err(
                        Error::misbehavior(format!("it announced a packet of {length} bytes")).into(),
                    );
                }
            }
        }
        self.advance()
    }

    fn server_packet(&mut self, Packet { kind, body }: Packet) -> Result<(), GiveUp> {
        if self.phase == Phase::Greeting {
            if kind != kind::VERSION {
                return Err(
                    Error::misbehavior(format!("a packet of type {kind} came before its version")).into(),
                );
            }
            return self.version(body);
        }
        if body.len() < 4 {
            return Err(Error::misbehavior("a packet ends in the middle of a value").into());
        }
        let number = Reader::new(body.part(0, 4).into_bytes())
            .u32()
            .map_err(Error::from)?;
        let answer = Packet {
            kind,
            body: body.part(4, body.len()),
        };
        match self.asks.remove(&number) {
            None => {
                let what = format!("it answered request {number}, which was not made");
                Err(Error::misbehavior(what).into())
            }
            Some(Ask::Entry(n)) => self.answer(n, answer),
            Some(Ask::Known(handle)) => {
                if let Some(file) = self.files.get_mut(&handle) {
                    file.known = answer.attributes();
                }
                Ok(())
            }
            Some(ask) => self.take_recovery(ask, answer),
        }
    }

    fn greet(&mut self) {
        Writer::packet(self.to_server.buffer(), kind::INIT)
            .u32(3)
            .finish(0);
    }

    fn version(&mut self, body: Data) -> Result<(), GiveUp> {
        let body = body.into_bytes();
        let mut reader = Reader::new(body.clone());
        match reader.u32().map_err(Error::from)? {
            3 => {}
            other => return Err(Error::Version(other).into()),
        }
        let extensions = Extensions::decode(&mut reader)?;
        self.keeps_order = extensions.are_sftp_servers();
        if !std::mem::replace(&mut self.is_greeted, true) {
            Writer::packet(self.to_client.buffer(), kind::VERSION)
                .append(|buffer| buffer.put_slice(&body))
                .finish(0);
        }
        match self.sessions {
            // The client's knowledge of a first session stays valid in it.
            1 => self.phase = Phase::Up,
            _ => self.look(&extensions),
        }
        Ok(())
    }

    /// Sends as much as possible, and gives the client its next answers.
    fn advance(&mut self) -> Result<(), GiveUp> {
        self.recover();
        self.send_next()?;
        while self.tell() {
            self.send_next()?;
        }
        Ok(())
    }
}

/// The limits of a first session: it sets the client none.
const UNLIMITED: Limits = Limits {
    max_read: u32::MAX,
    max_write: u32::MAX,
    max_handles: usize::MAX,
};
