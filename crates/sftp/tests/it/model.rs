//! An SFTP server in memory and the network before it, on simulated time.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use trunkline_sftp::{Client, Config, Outcome, RequestId};

/// The moment at which simulated time begins.
pub(crate) static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A small generator of the same numbers for the same seed (xorshift64*).
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) fn draw(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound.max(1)
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend(self.draw(u64::MAX).to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}

/// The files and directories that all sessions see: files by path, and directories with the names in them.
#[derive(Default)]
pub(crate) struct Disk {
    pub(crate) files: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) directories: BTreeMap<Vec<u8>, Vec<(Vec<u8>, u32)>>,
    /// Sizes that FSTAT tells in place of the true ones.
    pub(crate) false_sizes: BTreeMap<Vec<u8>, u64>,
    pub(crate) modified: BTreeMap<Vec<u8>, u32>,
}

pub(crate) type SharedDisk = Rc<RefCell<Disk>>;

/// The behaviour of a session.
#[derive(Debug, Clone)]
pub(crate) struct Manner {
    pub(crate) rtt: Duration,
    /// Bytes a second in each direction.
    pub(crate) rate: u64,
    /// Replies are delayed by up to so much, each by itself.
    pub(crate) jitter: Duration,
    /// One read in so many is answered with less than was asked for; 0 for none.
    pub(crate) short_reads: u64,
    pub(crate) max_read: u32,
    pub(crate) max_write: u32,
    pub(crate) max_handles: usize,
    pub(crate) announces_limits: bool,
    /// The session has begun some time ago: version and limits are known.
    pub(crate) warm: bool,
    /// One request in so many fails; 0 for none.
    pub(crate) failures: u64,
    /// Writes fail from this byte of any file on.
    pub(crate) full_at: u64,
    /// Bytes come in slices of at most this.
    pub(crate) slice: usize,
    /// It is not OpenSSH's sftp-server: what it does in another way.
    pub(crate) other: Option<Other>,
}

/// The behaviour of a server that is not OpenSSH's. Each is what a real one was seen to do.
#[derive(Debug, Clone, Default)]
pub(crate) struct Other {
    /// It works on what has come in any order.
    pub(crate) any_order: bool,
    /// One OPEN in so many beside other open files is answered with the handle of one of those; 0 for none.
    pub(crate) shares_handles: u64,
    /// It refuses to have more open than this, and says nothing of it before.
    pub(crate) refuses_beyond: Option<usize>,
    /// OPEN with WRITE alone empties the file; with READ beside it TRUNC does not.
    pub(crate) write_empties: bool,
    /// A size is set by emptying the file and filling it up with zeros.
    pub(crate) size_zeroes: bool,
    /// It knows SETSTAT alone.
    pub(crate) no_fsetstat: bool,
    /// It has no posix-rename, and RENAME does not replace.
    pub(crate) no_replacing: bool,
    /// It confirms a WRITE that it forgets, if it comes behind this byte.
    pub(crate) forgets_behind: Option<u64>,
}

impl Default for Manner {
    fn default() -> Self {
        Self {
            rtt: Duration::from_millis(100),
            rate: 100_000_000,
            jitter: Duration::ZERO,
            short_reads: 0,
            max_read: 261_120,
            max_write: 261_120,
            max_handles: 1000,
            announces_limits: true,
            warm: false,
            failures: 0,
            full_at: u64::MAX,
            slice: 32 * 1024,
            other: None,
        }
    }
}

enum Open {
    File(Vec<u8>),
    Directory(VecDeque<(Vec<u8>, u32)>),
}

struct Server {
    /// Attributes were set so often.
    attributes_set: usize,
    /// The most requests that waited for it at once.
    most_ahead: usize,
    disk: SharedDisk,
    manner: Manner,
    random: Random,
    inbox: BytesMut,
    open: HashMap<u32, Open>,
    next_handle: u32,
    most_open: usize,
    requests: u64,
    broken_limits: Vec<String>,
}

/// A client, a server, and what is under way between them.
pub(crate) struct Session {
    pub(crate) client: Client,
    server: Server,
    to_server: VecDeque<(Instant, Bytes)>,
    to_client: BinaryHeap<Reverse<(Instant, u64, Vec<u8>)>>,
    sequence: u64,
    /// The time at which each direction is free again.
    free: [Instant; 2],
    /// The session breaks when so many bytes have come from the server.
    pub(crate) breaks_after: Option<u64>,
    pub(crate) received: u64,
}

impl Session {
    pub(crate) fn new(disk: &SharedDisk, manner: Manner, seed: u64) -> Self {
        Self::with_config(&Config::default(), disk, manner, seed)
    }

    pub(crate) fn with_config(config: &Config, disk: &SharedDisk, manner: Manner, seed: u64) -> Self {
        let warm = manner.warm;
        let mut session = Self {
            client: Client::new(config),
            server: Server {
                attributes_set: 0,
                most_ahead: 0,
                disk: Rc::clone(disk),
                manner,
                random: Random::new(seed),
                inbox: BytesMut::new(),
                open: HashMap::new(),
                next_handle: 0,
                most_open: 0,
                requests: 0,
                broken_limits: Vec::new(),
            },
            to_server: VecDeque::new(),
            to_client: BinaryHeap::new(),
            sequence: 0,
            free: [*START; 2],
            breaks_after: None,
            received: 0,
        };
        while warm && let Some(bytes) = session.client.poll_transmit() {
            for reply in session.server.handle(&bytes) {
                session
                    .client
                    .handle_bytes(reply.into())
                    .expect("the model server keeps to the protocol");
            }
        }
        session
    }

    /// Lets what the client has to say leave at `now`.
    pub(crate) fn transmit(&mut self, now: Instant) {
        while let Some(bytes) = self.client.poll_transmit() {
            let at = self.pass(0, bytes.len(), now);
            self.to_server.push_back((at, bytes));
        }
    }

    /// Returns the time of the next event.
    pub(crate) fn next_time(&self) -> Option<Instant> {
        let server = self.to_server.front().map(|(at, _)| *at);
        let client = self.to_client.peek().map(|Reverse((at, ..))| *at);
        server.into_iter().chain(client).min()
    }

    pub(crate) fn most_ahead(&self) -> usize {
        self.server.most_ahead
    }

    pub(crate) fn attributes_set(&self) -> usize {
        self.server.attributes_set
    }

    /// Bytes that have come.
    pub(crate) fn bytes_received(&self) -> u64 {
        self.received
    }

    /// Does what is due at `now`; the answers that came. `None` when the session broke.
    pub(crate) fn advance(&mut self, now: Instant) -> Option<Vec<(RequestId, Outcome)>> {
        while let Some((at, bytes)) = self.to_server.pop_front() {
            if at > now {
                self.to_server.push_front((at, bytes));
                break;
            }
            for reply in self.server.handle(&bytes) {
                let sent = self.pass(1, reply.len(), at);
                let jitter = self.server.manner.jitter.as_nanos() as u64;
                let delay = Duration::from_nanos(self.server.random.draw(jitter + 1));
                self.sequence += 1;
                self.to_client.push(Reverse((sent + delay, self.sequence, reply)));
            }
        }
        while let Some(Reverse((at, sequence, reply))) = self.to_client.pop() {
            if at > now {
                self.to_client.push(Reverse((at, sequence, reply)));
                break;
            }
            self.received += reply.len() as u64;
            if self.breaks_after.is_some_and(|after| self.received > after) {
                return None;
            }
            let reply = Bytes::from(reply);
            for start in (0..reply.len()).step_by(self.server.manner.slice) {
                let end = reply.len().min(start + self.server.manner.slice);
                match self.client.handle_bytes(reply.slice(start..end)) {
                    Ok(()) => {}
                    Err(trunkline_sftp::Error::SharedHandles) => return None,
                    Err(error) => panic!("the model server keeps to the protocol: {error}"),
                }
            }
        }
        Some(std::iter::from_fn(|| self.client.poll_event()).collect())
    }

    /// Whether the client kept to the server's limits, and what it did not close.
    pub(crate) fn check(&self) {
        assert_eq!(self.server.broken_limits, Vec::<String>::new());
        assert!(self.server.most_open <= self.server.manner.max_handles);
    }

    pub(crate) fn open_handles(&self) -> usize {
        self.server.open.len()
    }

    pub(crate) fn requests(&self) -> u64 {
        self.server.requests
    }

    /// Returns the arrival time of bytes that leave at `now`.
    fn pass(&mut self, direction: usize, length: usize, now: Instant) -> Instant {
        let took = Duration::from_secs_f64(length as f64 / self.server.manner.rate as f64);
        let free = &mut self.free[direction];
        *free = now.max(*free) + took;
        *free + self.server.manner.rtt / 2
    }
}

const OK: u32 = 0;
const EOF: u32 = 1;
const NO_SUCH_FILE: u32 = 2;
const FAILURE: u32 = 4;
const UNSUPPORTED: u32 = 8;

impl Server {
    fn handle(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.inbox.extend_from_slice(bytes);
        let mut packets = Vec::new();
        while self.inbox.len() >= 4 {
            let length = u32::from_be_bytes(self.inbox[..4].try_into().unwrap()) as usize;
            assert!(length <= 256 * 1024, "the client sent a packet of {length} bytes");
            if self.inbox.len() < 4 + length {
                break;
            }
            self.inbox.advance(4);
            packets.push(self.inbox.split_to(length).freeze());
        }
        self.most_ahead = self.most_ahead.max(packets.len());
        if self.other().any_order {
            for at in (1..packets.len()).rev() {
                packets.swap(at, self.random.draw(at as u64 + 1) as usize);
            }
        }
        let answer = |packet| {
            let body = self.answer(packet);
            let mut reply = BytesMut::new();
            reply.put_u32(body.len() as u32);
            reply.put_slice(&body);
            reply.to_vec()
        };
        packets.into_iter().map(answer).collect()
    }

    fn other(&self) -> Other {
        self.manner.other.clone().unwrap_or_default()
    }

    fn answer(&mut self, mut packet: Bytes) -> Vec<u8> {
        let kind = packet.get_u8();
        if kind == 1 {
            let mut body = vec![2, 0, 0, 0, 3];
            let mut announce = |name: &[u8], version: &[u8]| {
                put_string(&mut body, name);
                put_string(&mut body, version);
            };
            if !self.other().no_replacing {
                announce(b"posix-rename@openssh.com", b"1");
            }
            if self.manner.other.is_none() {
                announce(b"statvfs@openssh.com", b"2");
                announce(b"fstatvfs@openssh.com", b"2");
            }
            if self.manner.announces_limits {
                announce(b"limits@openssh.com", b"1");
            }
            return body;
        }
        let id = packet.get_u32();
        self.requests += 1;
        // Losing a CLOSE would be the server's own leak.
        if kind != 4 && kind != 200 && self.manner.failures > 0 && self.random.draw(self.manner.failures) == 0
        {
            return status(id, FAILURE);
        }
        match kind {
            3 => self.open(id, &mut packet),
            4 => match self.open.remove(&handle(&mut packet)) {
                Some(_) => status(id, OK),
                None => status(id, FAILURE),
            },
            5 => self.read(id, &mut packet),
            6 => self.write(id, &mut packet),
            7 | 17 => self.stat(id, &string(&mut packet)),
            8 => match self.open.get(&handle(&mut packet)) {
                Some(Open::File(path)) => self.stat(id, &path.clone()),
                _ => status(id, FAILURE),
            },
            9 => {
                let path = string(&mut packet);
                self.set_attributes(id, &path, &mut packet)
            }
            10 if self.other().no_fsetstat => status(id, UNSUPPORTED),
            10 => match self.open.get(&handle(&mut packet)) {
                Some(Open::File(path)) => self.set_attributes(id, &path.clone(), &mut packet),
                _ => status(id, FAILURE),
            },
            11 => self.opendir(id, &string(&mut packet)),
            12 => self.readdir(id, handle(&mut packet)),
            13 => match self.disk.borrow_mut().files.remove(&string(&mut packet)) {
                Some(_) => status(id, OK),
                None => status(id, NO_SUCH_FILE),
            },
            18 => {
                let (from, to) = (string(&mut packet), string(&mut packet));
                self.rename(id, &from, to, false)
            }
            200 => self.handle_extended(id, &mut packet),
            _ => status(id, UNSUPPORTED),
        }
    }

    fn new_handle(&mut self, id: u32, open: Open) -> Vec<u8> {
        if self.open.len() >= self.manner.max_handles {
            self.broken_limits
                .push(format!("more than {} handles", self.manner.max_handles));
            return status(id, FAILURE);
        }
        if self
            .other()
            .refuses_beyond
            .is_some_and(|most| self.open.len() >= most)
        {
            return status(id, FAILURE);
        }
        let shares = self.other().shares_handles;
        if shares > 0
            && self.random.draw(shares) == 0
            && let Some(shared) = self.open.keys().max().copied()
        {
            self.open.insert(shared, open);
            let mut body = head(102, id);
            put_string(&mut body, &shared.to_be_bytes());
            return body;
        }
        self.next_handle += 1;
        self.open.insert(self.next_handle, open);
        self.most_open = self.most_open.max(self.open.len());
        let mut body = head(102, id);
        put_string(&mut body, &self.next_handle.to_be_bytes());
        body
    }

    fn open(&mut self, id: u32, packet: &mut Bytes) -> Vec<u8> {
        let (path, flags) = (string(packet), packet.get_u32());
        let is_there = self.disk.borrow().files.contains_key(&path);
        match is_there {
            true if flags & 0x28 == 0x28 => return status(id, FAILURE),
            false if flags & 0x08 == 0 => return status(id, NO_SUCH_FILE),
            _ => {}
        }
        let reply = self.new_handle(id, Open::File(path.clone()));
        if reply.first() == Some(&102) {
            let mut disk = self.disk.borrow_mut();
            let content = disk.files.entry(path).or_default();
            if empties(flags, self.other().write_empties) {
                content.clear();
            }
        }
        reply
    }

    fn read(&mut self, id: u32, packet: &mut Bytes) -> Vec<u8> {
        let (handle, offset, length) = (handle(packet), packet.get_u64() as usize, packet.get_u32());
        if length > self.manner.max_read {
            self.broken_limits.push(format!("a read of {length} bytes"));
        }
        let Some(Open::File(path)) = self.open.get(&handle) else {
            return status(id, FAILURE);
        };
        let disk = self.disk.borrow();
        let content = disk.files.get(path).map(Vec::as_slice).unwrap_or_default();
        if offset >= content.len() {
            return status(id, EOF);
        }
        let mut end = content.len().min(offset + length as usize);
        if self.manner.short_reads > 0 && self.random.draw(self.manner.short_reads) == 0 {
            end = offset + 1 + self.random.draw((end - offset) as u64) as usize;
        }
        let mut body = head(103, id);
        put_string(&mut body, &content[offset..end]);
        body
    }

    fn write(&mut self, id: u32, packet: &mut Bytes) -> Vec<u8> {
        let (handle, offset, data) = (handle(packet), packet.get_u64() as usize, string(packet));
        if data.len() > self.manner.max_write as usize {
            self.broken_limits
                .push(format!("a write of {} bytes", data.len()));
        }
        let Some(Open::File(path)) = self.open.get(&handle) else {
            return status(id, FAILURE);
        };
        let end = offset + data.len();
        if end as u64 > self.manner.full_at {
            return status(id, FAILURE);
        }
        if self
            .other()
            .forgets_behind
            .is_some_and(|behind| end as u64 > behind)
        {
            return status(id, OK);
        }
        let mut disk = self.disk.borrow_mut();
        let Some(content) = disk.files.get_mut(path) else {
            return status(id, FAILURE);
        };
        content.resize(content.len().max(end), 0);
        content[offset..end].copy_from_slice(&data);
        status(id, OK)
    }

    fn stat(&self, id: u32, path: &[u8]) -> Vec<u8> {
        let disk = self.disk.borrow();
        let Some(content) = disk.files.get(path) else {
            return status(id, NO_SUCH_FILE);
        };
        let mut body = head(105, id);
        body.put_u32(0x01 | 0x04 | 0x08);
        body.put_u64(
            disk.false_sizes
                .get(path)
                .copied()
                .unwrap_or(content.len() as u64),
        );
        body.put_u32(0o100_644);
        body.put_u32(0);
        body.put_u32(disk.modified.get(path).copied().unwrap_or_default());
        body
    }

    fn set_attributes(&mut self, id: u32, path: &[u8], packet: &mut Bytes) -> Vec<u8> {
        self.attributes_set += 1;
        let sets_size = packet.get_u32() & 0x01 != 0;
        let zeroes = self.other().size_zeroes;
        match self.disk.borrow_mut().files.get_mut(path) {
            Some(content) if sets_size => {
                if zeroes {
                    content.clear();
                }
                content.resize(packet.get_u64() as usize, 0);
            }
            Some(_) => {}
            None => return status(id, NO_SUCH_FILE),
        }
        status(id, OK)
    }

    fn rename(&self, id: u32, from: &[u8], to: Vec<u8>, replaces: bool) -> Vec<u8> {
        let files = &mut self.disk.borrow_mut().files;
        if !replaces && files.contains_key(&to) {
            return status(id, FAILURE);
        }
        match files.remove(from) {
            Some(content) => {
                files.insert(to, content);
                status(id, OK)
            }
            None => status(id, NO_SUCH_FILE),
        }
    }

    fn opendir(&mut self, id: u32, path: &[u8]) -> Vec<u8> {
        let entries = self.disk.borrow().directories.get(path).cloned();
        match entries {
            Some(entries) => self.new_handle(id, Open::Directory(entries.into())),
            None => status(id, NO_SUCH_FILE),
        }
    }

    /// A hundred names at a time, as sftp-server.
    fn readdir(&mut self, id: u32, handle: u32) -> Vec<u8> {
        let Some(Open::Directory(entries)) = self.open.get_mut(&handle) else {
            return status(id, FAILURE);
        };
        let count = entries.len().min(100);
        if count == 0 {
            return status(id, EOF);
        }
        let mut body = head(104, id);
        body.put_u32(count as u32);
        for (name, mode) in entries.drain(..count) {
            put_string(&mut body, &name);
            put_string(&mut body, b"-rw-r--r--");
            body.put_u32(0x04);
            body.put_u32(mode);
        }
        body
    }

    fn handle_extended(&mut self, id: u32, packet: &mut Bytes) -> Vec<u8> {
        match &string(packet)[..] {
            b"limits@openssh.com" => {
                let mut body = head(201, id);
                body.put_u64(262_144);
                body.put_u64(self.manner.max_read.into());
                body.put_u64(self.manner.max_write.into());
                body.put_u64(self.manner.max_handles as u64);
                body
            }
            b"posix-rename@openssh.com" => {
                let (from, to) = (string(packet), string(packet));
                self.rename(id, &from, to, true)
            }
            _ => status(id, UNSUPPORTED),
        }
    }
}

/// Returns whether opening a file with these flags empties it; `erlang`: as Erlang's server does it.
fn empties(flags: u32, erlang: bool) -> bool {
    const READ: u32 = 0x01;
    const WRITE: u32 = 0x02;
    const TRUNCATE: u32 = 0x10;
    const EXCLUSIVE: u32 = 0x20;
    match erlang {
        true => flags & WRITE != 0 && flags & (READ | EXCLUSIVE) == 0,
        false => flags & TRUNCATE != 0,
    }
}

fn head(kind: u8, id: u32) -> Vec<u8> {
    let mut body = vec![kind];
    body.put_u32(id);
    body
}

fn status(id: u32, code: u32) -> Vec<u8> {
    let mut body = head(101, id);
    body.put_u32(code);
    put_string(&mut body, b"model");
    put_string(&mut body, b"");
    body
}

fn put_string(body: &mut Vec<u8>, bytes: &[u8]) {
    body.put_u32(bytes.len() as u32);
    body.put_slice(bytes);
}

fn string(packet: &mut Bytes) -> Vec<u8> {
    let length = packet.get_u32() as usize;
    packet.split_to(length).to_vec()
}

fn handle(packet: &mut Bytes) -> u32 {
    let handle = string(packet);
    u32::from_be_bytes(
        handle
            .try_into()
            .expect("the client gives handles back as they are"),
    )
}
