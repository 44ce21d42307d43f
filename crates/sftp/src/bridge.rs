//! A session of another program's client, carried over from one connection to the next.
//!
//! A [`Bridge`] stands between an SFTP client and its server, without I/O: it takes what either sends and says what the
//! other is to be sent. When the server's connection is lost, it is given a new one. It then finds out what the server has
//! done, opens again what was open, asks again what has no answer, and the client notices nothing but the time that it took.
//!
//! What the client can rely on:
//! - Each request is answered once, in the order in which they were asked.
//! - What may be asked twice without harm is. Of what may not (a rename, say) the bridge looks whether it was done. Where
//!   that cannot be told, the request fails with a status that says so.
//! - A file is opened again without being made or emptied, and used only if it looks like the one that was open. If it does
//!   not, the whole session ends ([`GiveUp`]): a failed READ or WRITE among others is something that clients overlook.
//! - A READ in a session that was carried over is answered whole.

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

/// The most memory that a session takes, in bytes: requests without an answer, and answers that wait for their turn.
pub const MOST_HELD: usize = 16 * 1024 * 1024;
/// The part of it that remains when the client's bytes are not taken any more: a piece of them, and a packet.
const ROOM: usize = 512 * 1024;
/// The cost of a request beside its data.
const COST: usize = 256;
/// The maximum cost of an answer to READDIR.
const LISTING_COST: usize = 256 * 1024;
/// The first bytes of the handles that clients are given. No two are the same in a session, so that what a client asks of a
/// closed file never reaches another one.
const HANDLE: &[u8] = b"trunkline";

/// A request of the client's, from its arrival until the client has its answer.
struct Entry {
    /// The client's number for it.
    id: u32,
    order: Order,
    cost: usize,
    state: State,
    /// It was sent in a session that was lost since.
    was_sent: bool,
    /// The knowledge of the paths that it changes, when it was first sent.
    before: [Option<(Knowledge, u64)>; 2],
    /// The findings about those paths after a loss.
    seen: [Option<Seen>; 2],
    /// An exclusive OPEN that has made its file: to be opened as any other.
    has_made_file: bool,
    /// Parts of a WRITE that have no answer yet.
    parts: usize,
    /// The first part of a WRITE that failed.
    failure: Option<Packet>,
    /// The data that a READ has brought so far.
    read: Data,
}

impl Entry {
    /// Returns whether a loss would have it asked again.
    fn may_be_asked_again(&self) -> bool {
        match self.state {
            State::Held => false,
            State::Sent => true,
            // Behind another one that has no answer.
            State::Answered(_) => self.order.is_repeatable_change(),
        }
    }
}

enum State {
    /// It is to be sent.
    Held,
    Sent,
    Answered(Packet),
}

/// A question to the server.
enum Ask {
    /// A request of the client's, or a part of it.
    Entry(u64),
    /// The attributes of what has just been opened.
    Known(Handle),
    /// The limits of the new session.
    Limits,
    /// Whether a request was done: one of its paths.
    Look(u64, usize),
    /// To open again.
    Reopen(Handle),
    /// The attributes of what was opened again.
    Reopened(Handle),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is no session with the server.
    Lost,
    /// The server has not told its version.
    Greeting,
    /// The fate of requests is being found out.
    Looking,
    /// The open files are being opened again.
    Reopening,
    /// The client's requests go to the server.
    Up,
}

/// A session of an SFTP client, with one server after the other.
///
/// Its methods come in four families:
/// - *getters* tell what is wanted and how it is going;
/// - *input*: [`handle_client`](Self::handle_client) and [`handle_server`](Self::handle_server) take bytes;
/// - *what becomes of the connection*: [`begin`](Self::begin), [`lose`](Self::lose);
/// - *output*, to be polled after each of the others: [`poll_client`](Self::poll_client) and
///   [`poll_server`](Self::poll_server) until they are empty.
///
/// An error is the session's end.
pub struct Bridge {
    from_client: Packets,
    from_server: Packets,
    to_client: Outbox,
    to_server: Outbox,
    phase: Phase,
    /// Sessions with a server that were begun.
    sessions: u32,
    /// The client has sent its INIT.
    is_asked: bool,
    /// It was told the server's version.
    is_greeted: bool,
    /// The server works on requests in their order, as sftp-server does, and takes SYMLINK's paths in its order.
    keeps_order: bool,
    /// The limits of a later session.
    limits: Limits,

    /// The client's requests without an answer, the oldest first.
    queue: VecDeque<Entry>,
    /// The number of the oldest one.
    first: u64,
    /// The next one to be sent.
    next: u64,
    /// The number of READs among those that the server has.
    reads: usize,
    /// The size of the queue.
    held: usize,
    asks: HashMap<u32, Ask>,
    next_ask: u32,
    /// Questions of the bridge's own that a new session waits for.
    awaited: usize,

    /// The client's open files, by the handles that it was given.
    files: HashMap<Handle, File>,
    next_handle: u32,
    paths: KnownPaths,
    /// The client has made links: one file may have several names.
    has_links: bool,

    /// Answers that the client was given.
    answered: u64,
    failed: Option<GiveUp>,
}

impl Default for Bridge {
    fn default() -> Self {
        Self::new(KnownPaths::default())
    }
}

impl Bridge {
    /// A session that has no server yet. `paths` is what other sessions of the same account have learnt, and learn.
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

    /// Returns whether more of the client's bytes are to be taken: what is held is bounded by [`MOST_HELD`].
    pub fn takes_from_client(&self) -> bool {
        self.memory() < MOST_HELD - ROOM
    }

    /// Bytes that are held.
    pub fn memory(&self) -> usize {
        self.held
            + self.from_client.len()
            + self.from_server.len()
            + self.to_client.len()
            + self.to_server.len()
    }

    /// Bytes that wait in [`Self::poll_client`].
    pub fn queued_for_client(&self) -> usize {
        self.to_client.len()
    }

    /// Returns whether the client waits for something, or has something open: a lost connection is to be replaced.
    pub fn needs_server(&self) -> bool {
        !self.queue.is_empty() || !self.files.is_empty() || (self.is_asked && !self.is_greeted)
    }

    /// Returns whether the client has every answer.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && (self.is_greeted || !self.is_asked)
    }

    /// Returns whether the client's requests go to the server: the session was carried over, if there was one before.
    pub fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// Answers that the client was given so far.
    pub fn answer_count(&self) -> u64 {
        self.answered
    }

    // Input.

    /// Takes what the client has sent.
    ///
    /// # Errors
    /// The session's end.
    pub fn handle_client(&mut self, bytes: Bytes) -> Result<(), GiveUp> {
        self.check()?;
        self.from_client.push(bytes);
        let handled = self.client_packets();
        self.end_on_error(handled)
    }

    /// Takes what the server has sent.
    ///
    /// # Errors
    /// The session's end.
    pub fn handle_server(&mut self, bytes: Bytes) -> Result<(), GiveUp> {
        self.check()?;
        self.from_server.push(bytes);
        let handled = self.server_packets();
        self.end_on_error(handled)
    }

    // The connection.

    /// There is a new session with the server, which has sent nothing yet.
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

    /// The session with the server is lost.
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

    /// Adds what is to be written to the client.
    pub fn poll_client(&mut self, pieces: &mut Vec<Bytes>) {
        self.to_client.take(pieces);
    }

    /// Adds what is to be written to the server.
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
            // Whatever the client would speak: version 3 is what this speaks (section 4 of the draft).
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

    /// Returns whether a request names something that is closed, or was never open.
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
            // What a client learns of a first session holds for what it asks there.
            1 => self.phase = Phase::Up,
            _ => self.look(&extensions),
        }
        Ok(())
    }

    /// Sends what may be sent, and gives the client what is next in its order.
    fn advance(&mut self) -> Result<(), GiveUp> {
        self.recover();
        self.send_next()?;
        while self.tell() {
            self.send_next()?;
        }
        Ok(())
    }
}

/// The limits of a first session: none for the client.
const UNLIMITED: Limits = Limits {
    max_read: u32::MAX,
    max_write: u32::MAX,
    max_handles: usize::MAX,
};
