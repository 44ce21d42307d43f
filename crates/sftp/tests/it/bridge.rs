//! A session that is carried over: generated histories of requests, over a server with a ledger whose connection is cut
//! before and behind each message.

mod server;

use std::collections::{HashMap, VecDeque};

use bytes::{BufMut, Bytes, BytesMut};
use trunkline_sftp::bridge::{Bridge, GiveUp, KnownPaths, MOST_HELD};

use crate::model::Random;
use server::{Disk, Manner, Session, packet, status_code, string};

/// Paths that histories are about.
const PATHS: [&str; 6] = ["a", "b", "c", "d", "d/x", "d/y"];
/// The text of a status that comes from the bridge itself, in case of doubt.
const IN_DOUBT: &[u8] = b"trunkline: the connection was lost";

/// A client's unanswered request.
struct Asked {
    id: u32,
    kind: u8,
    body: Vec<u8>,
    /// The words of a change that must not be made twice.
    change: Option<String>,
}

/// A client with a random will, and what its requests would do without any loss.
struct Client {
    random: Random,
    next_id: u32,
    asked: VecDeque<Asked>,
    /// Handles that it was given, the reference's, and whether they are directories.
    open: Vec<(Bytes, Bytes, bool)>,
    reference: Disk,
    session: Session,
    /// The number of times that each change was made, as far as the client was told.
    told: HashMap<String, u32>,
    in_doubt: u64,
    inbox: Vec<u8>,
    is_greeted: bool,
    /// Names that each listing has told, without a loss and with it.
    listed: HashMap<Bytes, (Vec<Vec<u8>>, bool)>,
}

impl Client {
    fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            next_id: 1,
            asked: VecDeque::new(),
            open: Vec::new(),
            reference: Disk::with_files(),
            session: Session::new(Manner::default()),
            told: HashMap::new(),
            in_doubt: 0,
            inbox: Vec::new(),
            is_greeted: false,
            listed: HashMap::new(),
        }
    }

    fn path(&mut self) -> &'static str {
        PATHS[self.random.draw(PATHS.len() as u64) as usize]
    }

    /// The next request. With `ends`, only what ends something.
    fn request(&mut self, ends: bool) -> Option<Vec<u8>> {
        let usable: Vec<usize> = (0..self.open.len()).filter(|i| !self.is_closing(*i)).collect();
        let handle = usable
            .get(self.random.draw(usable.len() as u64) as usize)
            .copied();
        let (kind, body, change) = match (ends, self.random.draw(20), handle) {
            (true, _, None) => return None,
            (true, _, Some(i)) | (false, 0 | 1, Some(i)) => (4, string(&self.open[i].0), None),
            (false, 2..=8, Some(i)) => self.by_handle(i),
            (false, ..) => self.by_path(),
        };
        self.next_id += 1;
        let id = self.next_id;
        let bytes = packet(kind, id, &body);
        self.asked.push_back(Asked {
            id,
            kind,
            body,
            change,
        });
        Some(bytes)
    }

    fn is_closing(&self, i: usize) -> bool {
        let body = string(&self.open[i].0);
        self.asked
            .iter()
            .any(|asked| asked.kind == 4 && asked.body == body)
    }

    fn by_handle(&mut self, i: usize) -> (u8, Vec<u8>, Option<String>) {
        let (handle, _, is_directory) = self.open[i].clone();
        let mut body = string(&handle);
        if is_directory {
            return (12, body, None);
        }
        match self.random.draw(8) {
            0..=3 => {
                body.put_u64(self.random.draw(40));
                let data = self.random.bytes(1 + self.random.clone().draw(12) as usize);
                body.extend(string(&data));
                (6, body, None)
            }
            4 | 5 => {
                body.put_u64(self.random.draw(40));
                body.put_u32(1 + self.random.draw(30) as u32);
                (5, body, None)
            }
            6 => {
                body.put_u32(1);
                body.put_u64(self.random.draw(30));
                (10, body, None)
            }
            _ => {
                let mut request = string(b"fsync@openssh.com");
                request.extend(body);
                (200, request, None)
            }
        }
    }

    fn by_path(&mut self) -> (u8, Vec<u8>, Option<String>) {
        let (path, other) = (self.path(), self.path());
        let one = |kind: u8, what: &str| (kind, string(path.as_bytes()), Some(format!("{what} {path}")));
        let with_attributes = |kind: u8, what: Option<&str>| {
            let mut body = string(path.as_bytes());
            body.put_u32(0);
            (kind, body, what.map(|what| format!("{what} {path}")))
        };
        let two = |kind: u8, what: &str| {
            let body = [string(path.as_bytes()), string(other.as_bytes())].concat();
            (kind, body, Some(format!("{what} {path} {other}")))
        };
        match self.random.draw(14) {
            0..=2 => {
                // What a client opens a file for: to read, to write, with and without CREAT, TRUNC and EXCL.
                let flags = [1, 2, 3, 0x0a, 0x1a, 0x1b, 0x2a][self.random.draw(7) as usize];
                let mut body = string(path.as_bytes());
                body.put_u32(flags);
                body.put_u32(0);
                (3, body, (flags & 0x20 != 0).then(|| format!("make {path}")))
            }
            3 => (11, string(path.as_bytes()), None),
            4 | 5 => (7, string(path.as_bytes()), None),
            6 => one(13, "remove"),
            7 => with_attributes(14, Some("mkdir")),
            8 => one(15, "rmdir"),
            9 => two(18, "rename"),
            10 | 11 => {
                let (_, body, change) = two(200, "posix-rename");
                (200, [string(b"posix-rename@openssh.com"), body].concat(), change)
            }
            12 => {
                let body = [string(other.as_bytes()), string(path.as_bytes())].concat();
                (20, body, Some(format!("symlink {path}")))
            }
            _ => {
                let (_, body, change) = two(200, "hardlink");
                (200, [string(b"hardlink@openssh.com"), body].concat(), change)
            }
        }
    }

    /// Takes what the bridge says, and compares it with what happens without a loss.
    fn take_from_bridge(&mut self, bytes: &[u8], disk: &Disk, seed: u64) {
        self.inbox.extend_from_slice(bytes);
        while self.inbox.len() >= 4 {
            let length = u32::from_be_bytes(self.inbox[..4].try_into().unwrap()) as usize;
            if self.inbox.len() < 4 + length {
                return;
            }
            let answer: Vec<u8> = self.inbox.drain(..4 + length).skip(4).collect();
            if !std::mem::replace(&mut self.is_greeted, true) {
                assert_eq!(answer[0], 2, "seed {seed}: the version comes first");
                continue;
            }
            let asked = self.asked.pop_front().expect("an answer without a request");
            let id = u32::from_be_bytes(answer[1..5].try_into().unwrap());
            assert_eq!(id, asked.id, "seed {seed}: answers come in order");
            self.judge(&asked, answer[0], &answer[5..], disk, seed);
        }
    }

    fn judge(&mut self, asked: &Asked, kind: u8, body: &[u8], disk: &Disk, seed: u64) {
        let what = format!(
            "seed {seed}: request {} of type {}, {:?}",
            asked.id, asked.kind, asked.change
        );
        let is_doubtful = kind == 101 && body[8..].starts_with(IN_DOUBT);
        if is_doubtful {
            self.in_doubt += 1;
            let change = asked
                .change
                .as_ref()
                .unwrap_or_else(|| panic!("{what} is never in doubt"));
            if disk.change_count(change) == *self.told.get(change).unwrap_or(&0) {
                return;
            }
        }
        let translated = self.translate(&asked.body);
        let (expected_kind, expected) = self.session.serve(&mut self.reference, asked.kind, &translated);
        if let Some(change) = &asked.change
            && status_code(expected_kind, &expected).is_none_or(|code| code == 0)
        {
            *self.told.entry(change.clone()).or_default() += 1;
            assert!(
                disk.change_count(change) >= self.told[change],
                "{what} was acknowledged and not done"
            );
        }
        if is_doubtful {
            if expected_kind == 102 {
                self.session.serve(&mut self.reference, 4, &expected);
            }
            return;
        }
        match (asked.kind, kind) {
            (12, _) => self.list(&asked.body, kind, body, expected_kind, &expected, &what),
            (3 | 11, 102) => {
                assert_eq!(expected_kind, 102, "{what}");
                let of = |body: &[u8]| Bytes::copy_from_slice(&body[4..]);
                self.open.push((of(body), of(&expected), asked.kind == 11));
            }
            // Attributes are newer where something was asked behind them.
            (7, 105) => assert_eq!(expected_kind, 105, "{what}"),
            _ => {
                let code = status_code(kind, body);
                assert_eq!(
                    code,
                    status_code(expected_kind, &expected),
                    "{what}: {:?}",
                    Bytes::copy_from_slice(body)
                );
                if code.is_none() {
                    assert_eq!(body, &expected[..], "{what}");
                }
            }
        }
        if asked.kind == 4 {
            self.open.retain(|(handle, ..)| string(handle) != asked.body);
        }
    }

    /// Names are told once each, and none is left out that was there all the time.
    fn list(&mut self, handle: &[u8], kind: u8, body: &[u8], expected_kind: u8, expected: &[u8], what: &str) {
        let handle = Bytes::copy_from_slice(handle);
        let (told, _) = self.listed.entry(handle).or_default();
        if kind == 104 {
            for name in server::names(body) {
                assert!(!told.contains(&name), "{what}: {name:?} is told twice");
                told.push(name);
            }
        } else {
            assert_eq!(status_code(kind, body), Some(1), "{what}");
        }
        let _ = (expected_kind, expected);
    }

    /// A request with the reference's handle in place of the bridge's.
    fn translate(&self, body: &[u8]) -> Vec<u8> {
        for (given, reference, _) in &self.open {
            let (given, reference) = (string(given), string(reference));
            if let Some(at) = body.windows(given.len()).position(|part| part == given) {
                return [&body[..at], &reference, &body[at + given.len()..]].concat();
            }
        }
        body.to_vec()
    }
}

/// The outcome of a history.
#[derive(Default)]
struct Outcome {
    requests: u64,
    cuts: u64,
    in_doubt: u64,
    given_up: Option<GiveUp>,
}

/// The bridge, its server and the wires between.
struct World {
    bridge: Bridge,
    client: Client,
    disk: Disk,
    session: Session,
    manner: Manner,
    to_server: BytesMut,
    to_bridge: VecDeque<Vec<u8>>,
    cuts: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x5bd1_e995);
        let manner = Manner {
            is_disorderly: random.draw(4) == 0,
            names_at_once: 1 + random.draw(3) as usize,
            later: false,
        };
        Self {
            bridge: Bridge::default(),
            client: Client::new(seed.wrapping_mul(2).wrapping_add(1)),
            disk: Disk::with_files(),
            session: Session::new(manner),
            manner,
            to_server: BytesMut::new(),
            to_bridge: VecDeque::new(),
            cuts: 0,
        }
    }

    fn settle(&mut self, seed: u64) {
        let mut pieces = Vec::new();
        self.bridge.poll_server(&mut pieces);
        pieces
            .iter()
            .for_each(|piece| self.to_server.extend_from_slice(piece));
        pieces.clear();
        self.bridge.poll_client(&mut pieces);
        for piece in pieces {
            self.client.take_from_bridge(&piece, &self.disk, seed);
        }
        assert!(self.bridge.memory() < MOST_HELD, "seed {seed}");
    }

    /// The server takes one message, and answers.
    fn serve(&mut self) -> bool {
        if self.to_server.len() < 4 {
            return false;
        }
        let length = u32::from_be_bytes(self.to_server[..4].try_into().unwrap()) as usize;
        let message = self.to_server.split_to(4 + length).split_off(4);
        self.to_bridge
            .push_back(self.session.message(&mut self.disk, &message));
        true
    }

    /// One of the server's answers arrives.
    fn deliver(&mut self, random: &mut Random) -> Result<bool, GiveUp> {
        let is_greeting = self.to_bridge.front().is_some_and(|answer| answer[4] == 2);
        let which = match self.manner.is_disorderly && !is_greeting {
            true => random.draw(self.to_bridge.len() as u64) as usize,
            false => 0,
        };
        let Some(answer) = self.to_bridge.remove(which) else {
            return Ok(false);
        };
        let (one, other) = answer.split_at(random.draw(answer.len() as u64) as usize);
        self.bridge.handle_server(Bytes::copy_from_slice(one))?;
        self.bridge.handle_server(Bytes::copy_from_slice(other))?;
        Ok(true)
    }

    /// The connection is lost: what was under way in either direction never arrives.
    fn cut(&mut self) -> Result<(), GiveUp> {
        self.cuts += 1;
        self.bridge.lose();
        self.to_server.clear();
        self.to_bridge.clear();
        self.session = Session::new(Manner {
            later: true,
            ..self.manner
        });
        self.bridge.begin()
    }
}

/// Lives through a history, whose connection is cut with a chance of one in `cut_each` at every message.
fn live(seed: u64, cut_each: u64) -> Outcome {
    let mut random = Random::new(seed.wrapping_add(0x9e37_79b9_7f4a_7c15));
    let mut world = World::new(seed);
    let lived = survive(&mut world, &mut random, seed, cut_each);
    let given_up = lived.err();
    let made: Vec<_> = world.disk.ledger().collect();
    if given_up.is_none() {
        for (change, times) in made {
            let told = world.client.told.get(change).copied().unwrap_or(0);
            assert_eq!(
                times, told,
                "seed {seed}: {change} was done {times} times and told {told} times"
            );
        }
        assert_eq!(world.disk.tree(), world.client.reference.tree(), "seed {seed}");
    }
    Outcome {
        requests: u64::from(world.client.next_id),
        cuts: world.cuts,
        in_doubt: world.client.in_doubt,
        given_up,
    }
}

fn survive(world: &mut World, random: &mut Random, seed: u64, cut_each: u64) -> Result<(), GiveUp> {
    let mut left = 5 + random.draw(25);
    world.bridge.begin()?;
    world.bridge.handle_client(packet_init())?;
    world.settle(seed);
    for step in 0.. {
        assert!(
            step < 100_000,
            "seed {seed}: {} requests are not answered",
            world.client.asked.len()
        );
        // Towards the end nothing is cut, so that there is one.
        if cut_each > 0 && step < 2_000 && random.draw(cut_each) == 0 {
            world.cut()?;
            world.settle(seed);
        }
        let moved = match random.draw(4) {
            0 if left > 0 && world.client.asked.len() < 8 => {
                left -= 1;
                if let Some(request) = world.client.request(false) {
                    world.bridge.handle_client(request.into())?;
                }
                true
            }
            0 | 1 => world.serve(),
            _ => world.deliver(random)?,
        };
        world.settle(seed);
        if moved || left > 0 || !world.client.asked.is_empty() {
            continue;
        }
        match world.client.request(true) {
            Some(request) => world.bridge.handle_client(request.into())?,
            None if world.to_server.is_empty() && world.to_bridge.is_empty() => break,
            None => {}
        }
        world.settle(seed);
    }
    assert!(
        world.bridge.is_idle() && !world.bridge.needs_server(),
        "seed {seed}"
    );
    Ok(())
}

fn packet_init() -> Bytes {
    Bytes::from_static(&[0, 0, 0, 5, 1, 0, 0, 0, 6])
}

/// Returns the seeds: TRUNKLINE_BRIDGE_SEEDS=FROM-TO.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let asked = std::env::var("TRUNKLINE_BRIDGE_SEEDS").ok();
    match asked.as_deref().and_then(|text| text.split_once('-')) {
        Some((from, to)) => from.parse().unwrap()..to.parse().unwrap(),
        None => 0..usual,
    }
}

#[test]
fn without_a_loss_the_bridge_is_not_noticed() {
    for seed in seeds(1_000) {
        let Outcome {
            in_doubt, given_up, ..
        } = live(seed, 0);
        assert_eq!((in_doubt, given_up), (0, None), "seed {seed}");
    }
}

#[test]
fn nothing_is_done_twice_lost_or_invented_wherever_the_connection_is_cut() {
    let (mut all, mut given_up, mut histories) = (Outcome::default(), 0, 0);
    for seed in seeds(5_000) {
        let outcome = live(seed, [10, 30, 100][(seed % 3) as usize]);
        histories += 1;
        all.requests += outcome.requests;
        all.cuts += outcome.cuts;
        all.in_doubt += outcome.in_doubt;
        given_up += u64::from(outcome.given_up.is_some());
    }
    let Outcome {
        requests,
        cuts,
        in_doubt,
        ..
    } = all;
    println!(
        "{histories} histories, {requests} requests, {cuts} cuts: {in_doubt} requests in doubt, {given_up} sessions given up"
    );
    assert!(cuts > histories, "{cuts} cuts in {histories} histories");
    assert!(
        given_up * 4 < histories,
        "{given_up} of {histories} sessions were given up"
    );
}

/// One of several sessions of a client, over the same disk.
struct Sibling {
    bridge: Bridge,
    session: Session,
}

impl Sibling {
    fn new(paths: &KnownPaths) -> Self {
        let mut new = Self {
            bridge: Bridge::new(paths.clone()),
            session: Session::new(Manner::default()),
        };
        new.bridge.begin().unwrap();
        new.bridge.handle_client(packet_init()).unwrap();
        new
    }

    /// Moves everything, and returns what the client is told. With `loses`, the answers are lost.
    fn pump(&mut self, disk: &mut Disk, loses: bool) -> Vec<u8> {
        loop {
            let mut pieces = Vec::new();
            self.bridge.poll_server(&mut pieces);
            let mut asked = pieces.concat();
            if asked.is_empty() {
                break;
            }
            while !asked.is_empty() {
                let length = u32::from_be_bytes(asked[..4].try_into().unwrap()) as usize;
                let message: Vec<u8> = asked.drain(..4 + length).skip(4).collect();
                let answer = self.session.message(disk, &message);
                if !loses {
                    self.bridge.handle_server(answer.into()).unwrap();
                }
            }
        }
        let mut told = Vec::new();
        self.bridge.poll_client(&mut told);
        told.concat()
    }

    /// Asks, and returns the answer's type and content.
    fn ask(&mut self, disk: &mut Disk, kind: u8, body: &[u8], loses: bool) -> (u8, Vec<u8>) {
        self.bridge.handle_client(packet(kind, 7, body).into()).unwrap();
        let mut told = self.pump(disk, loses);
        if loses {
            assert!(told.is_empty(), "the answer is lost");
            self.bridge.lose();
            self.session = Session::new(Manner {
                later: true,
                ..Manner::default()
            });
            self.bridge.begin().unwrap();
            told = self.pump(disk, false);
        }
        (told[4], told[9..].to_vec())
    }
}

/// rclone takes any of its sessions for each of its requests.
#[test]
fn a_change_of_what_another_session_has_made_is_not_in_doubt() {
    let mut disk = Disk::with_files();
    let paths = KnownPaths::default();
    let (mut writes, mut changes) = (Sibling::new(&paths), Sibling::new(&paths));
    writes.pump(&mut disk, false);
    changes.pump(&mut disk, false);
    let path = string(b"made");
    let (kind, body) = writes.ask(
        &mut disk,
        3,
        &[&path[..], &[0, 0, 0, 0x1a, 0, 0, 0, 0]].concat(),
        false,
    );
    assert_eq!(kind, 102);
    let handle = string(&body[4..]);
    writes.ask(
        &mut disk,
        6,
        &[&handle[..], &[0; 8], &string(b"text")].concat(),
        false,
    );
    writes.ask(&mut disk, 4, &handle, false);
    let body = [
        string(b"posix-rename@openssh.com"),
        path.clone(),
        string(b"moved"),
    ]
    .concat();
    let (kind, body) = changes.ask(&mut disk, 200, &body, true);
    assert_eq!(status_code(kind, &body), Some(0), "{}", body.escape_ascii());
    assert_eq!(disk.change_count("posix-rename made moved"), 1);
    // The first one knows the new name.
    let (kind, body) = writes.ask(&mut disk, 13, &string(b"moved"), true);
    assert_eq!(status_code(kind, &body), Some(0), "{}", body.escape_ascii());
    assert_eq!(disk.change_count("remove moved"), 1);
}
