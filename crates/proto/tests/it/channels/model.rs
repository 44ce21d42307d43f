//! A server's books about the channels of one connection, and an application's, on the two sides of [`Channels`].
//!
//! [`Model::apply`] does one step: of the application, of the network, or of the server. Every message and event that
//! comes out is compared with what the books say, so that any sequence of steps is a test. [`Model::finish`] then lets
//! everything go its way and demands that nothing was lost.
//!
//! The fuzz target `channels` uses this file too.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use trunkline_proto::channels::{Channels, Outgoing};
use trunkline_proto::wire::{Reader, Writer};
use trunkline_proto::{
    ChannelEvent, ChannelId, ChannelKind, ChannelRequest, GlobalRequest, GlobalRequestId, OpenFailure,
    Stream, TerminalSize,
};

// RFC 4254 section 9.
pub(crate) const GLOBAL_REQUEST: u8 = 80;
pub(crate) const REQUEST_SUCCESS: u8 = 81;
pub(crate) const REQUEST_FAILURE: u8 = 82;
pub(crate) const OPEN: u8 = 90;
pub(crate) const OPEN_CONFIRMATION: u8 = 91;
pub(crate) const OPEN_FAILURE: u8 = 92;
pub(crate) const WINDOW_ADJUST: u8 = 93;
pub(crate) const DATA: u8 = 94;
pub(crate) const EXTENDED_DATA: u8 = 95;
pub(crate) const EOF: u8 = 96;
pub(crate) const CLOSE: u8 = 97;
pub(crate) const REQUEST: u8 = 98;
pub(crate) const SUCCESS: u8 = 99;
pub(crate) const FAILURE: u8 = 100;

/// The windows that a client may have: sshd stops at 16 MiB.
const FIRST_WINDOW: u64 = 2 << 20;
const LARGEST_WINDOW: u64 = 15 << 20;
/// sshd's initial window of a session when it handles `exec`, and the largest packet it takes.
const SSHD_WINDOW: i64 = 2 << 20;
const SSHD_PACKET: u32 = 32 * 1024;
/// Channels in one run: enough to interleave, few enough to meet again.
const MAX_CHANNELS: usize = 12;

/// One step: what happens, to which of the channels (modulo how many there are), and how much of it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    Open(u16),
    Request(u8, u16),
    Write(u8, u16),
    Eof(u8),
    Close(u8),
    Consume(u8, u16),
    Answer(u8, u16),
    Global,
    /// Messages go from the client to the server.
    Send(u16),
    /// Messages go from the server to the client.
    Deliver(u16),
    Wait(u16),
    ServerConfirms(u8, u16),
    ServerRefuses(u8),
    ServerGrants(u8, u16),
    ServerWrites(u8, u16),
    ServerEof(u8),
    ServerCloses(u8),
    ServerReplies(u8, u16),
    ServerExits(u8, u16),
    ServerOffers(u16),
    ServerAnswersGlobal(u16),
    /// The server says something more about a channel that it has closed.
    ServerIsLate(u8, u16),
}

impl Step {
    /// Every triple of numbers is a step.
    pub(crate) fn from_numbers((kind, channel, amount): (u8, u8, u16)) -> Self {
        match kind % 22 {
            0 => Self::Open(amount),
            1 => Self::Request(channel, amount),
            2 => Self::Write(channel, amount),
            3 => Self::Eof(channel),
            4 => Self::Close(channel),
            5 => Self::Consume(channel, amount),
            6 => Self::Answer(channel, amount),
            7 => Self::Global,
            8 => Self::Send(amount),
            9 => Self::Deliver(amount),
            10 => Self::Wait(amount),
            11 => Self::ServerConfirms(channel, amount),
            12 => Self::ServerRefuses(channel),
            13 => Self::ServerGrants(channel, amount),
            14 => Self::ServerWrites(channel, amount),
            15 => Self::ServerEof(channel),
            16 => Self::ServerCloses(channel),
            17 => Self::ServerReplies(channel, amount),
            18 => Self::ServerExits(channel, amount),
            19 => Self::ServerOffers(amount),
            20 => Self::ServerAnswersGlobal(amount),
            _ => Self::ServerIsLate(channel, amount),
        }
    }
}

/// [`Channels`] with an application and a server around it.
pub(crate) struct Model {
    channels: Channels,
    now: Instant,
    /// The server behaves like sshd: a session's window opens at `exec`, and data may follow that at once.
    sshd: bool,
    application: BTreeMap<u32, Application>,
    server: BTreeMap<u32, Server>,
    /// Client's numbers of the channels whose opening the server has not answered.
    asked: Vec<u32>,
    /// Server's numbers of the channels that it has offered.
    offered: Vec<u32>,
    next_server_number: u32,
    to_client: VecDeque<Bytes>,
    globals_asked: VecDeque<GlobalRequestId>,
    globals_at_server: usize,
    global_answers: VecDeque<bool>,
}

/// The application's view of a channel.
#[derive(Debug, Default)]
struct Application {
    session: bool,
    written: u64,
    eof: bool,
    closed: bool,
    incoming: bool,
    /// Opened or accepted, and not ended.
    open: bool,
    ended: bool,
    started: bool,
    received: [u64; 2],
    unread: u64,
    consumed: u64,
    eof_seen: bool,
    /// `starts` of each request that wants an answer, in order.
    requests: VecDeque<bool>,
    sent: u64,
}

/// The server's view of a channel.
#[derive(Debug, Default)]
struct Server {
    client: u32,
    /// The bytes that the client may still send.
    window: i64,
    packet: u32,
    /// A session in which nothing runs yet: sshd drops its data (SSH_CHANNEL_LARVAL).
    larval: bool,
    got: u64,
    eof_got: bool,
    close_got: bool,
    /// The total that the client has granted.
    granted: u64,
    sent: [u64; 2],
    eof_sent: bool,
    close_sent: bool,
    /// Requests that wait for an answer.
    requests: VecDeque<bool>,
    /// Answers under way: `starts` and success.
    answers: VecDeque<(bool, bool)>,
}

impl Model {
    pub(crate) fn new(sshd: bool) -> Self {
        let mut channels = Channels::default();
        channels.allow_overdraft(sshd);
        channels.answered_after(Duration::from_millis(50), Instant::now());
        Self {
            channels,
            now: Instant::now(),
            sshd,
            application: BTreeMap::new(),
            server: BTreeMap::new(),
            asked: Vec::new(),
            offered: Vec::new(),
            next_server_number: 0,
            to_client: VecDeque::new(),
            globals_asked: VecDeque::new(),
            globals_at_server: 0,
            global_answers: VecDeque::new(),
        }
    }

    pub(crate) fn apply(&mut self, step: Step) {
        match step {
            Step::Open(amount) => self.open(amount),
            Step::Request(channel, amount) => self.request(channel, amount),
            Step::Write(channel, amount) => self.write(channel, amount),
            Step::Eof(channel) => {
                if let Some(id) = self.pick(channel) {
                    self.channels.eof(ChannelId::from_number(id));
                    self.application.get_mut(&id).unwrap().eof = true;
                }
            }
            Step::Close(channel) => {
                if let Some(id) = self.pick(channel) {
                    self.close(id);
                }
            }
            Step::Consume(channel, amount) => {
                if let Some(id) = self.pick(channel) {
                    self.consume(id, u64::from(amount) * 4);
                }
            }
            Step::Answer(channel, amount) => self.answer(channel, amount % 3 != 0),
            Step::Global => {
                let id = self.channels.global_request(&GlobalRequest::Keepalive);
                self.globals_asked.push_back(id);
            }
            Step::Send(amount) => (0..=amount % 16).for_each(|_| _ = self.send_one()),
            Step::Deliver(amount) => (0..=amount % 16).for_each(|_| _ = self.deliver_one()),
            Step::Wait(amount) => self.now += Duration::from_micros(u64::from(amount)),
            Step::ServerConfirms(channel, amount) => {
                if !self.asked.is_empty() {
                    let client = self.asked.remove(usize::from(channel) % self.asked.len());
                    self.confirm(client, amount);
                }
            }
            Step::ServerRefuses(channel) => {
                if !self.asked.is_empty() {
                    let client = self.asked.remove(usize::from(channel) % self.asked.len());
                    let refusal = Writer::message(OPEN_FAILURE)
                        .u32(client)
                        .u32(2)
                        .string("no")
                        .string("");
                    self.to_client.push_back(refusal.finish());
                }
            }
            step => self.apply_server(step),
        }
        self.check_events();
    }

    fn apply_server(&mut self, step: Step) {
        let (channel, amount) = match step {
            Step::ServerGrants(channel, amount)
            | Step::ServerWrites(channel, amount)
            | Step::ServerReplies(channel, amount)
            | Step::ServerExits(channel, amount) => (channel, amount),
            Step::ServerEof(channel) | Step::ServerCloses(channel) => (channel, 0),
            Step::ServerOffers(amount) => return self.offer(amount),
            Step::ServerAnswersGlobal(amount) => return self.answer_global(amount % 2 == 0),
            Step::ServerIsLate(channel, amount) => return self.late(channel, amount),
            _ => return,
        };
        let open: Vec<u32> = self
            .server
            .iter()
            .filter(|(number, c)| !c.close_sent && !self.offered.contains(number))
            .map(|(number, _)| *number)
            .collect();
        let Some(&number) = open.get(usize::from(channel) % open.len().max(1)) else {
            return;
        };
        match step {
            Step::ServerGrants(..) => self.grant(number, u32::from(amount) * 2),
            Step::ServerWrites(..) => self.server_write(number, u64::from(amount), amount % 5 == 0),
            Step::ServerReplies(..) => self.server_reply(number, amount % 4 != 0),
            Step::ServerExits(..) => {
                let status = Writer::message(REQUEST).u32(self.server[&number].client);
                let status = status.string("exit-status").bool(false).u32(u32::from(amount));
                self.to_client.push_back(status.finish());
            }
            Step::ServerEof(_) => self.server_eof(number),
            _ => self.server_close(number),
        }
    }

    // The application.

    fn pick(&self, channel: u8) -> Option<u32> {
        let alive: Vec<u32> = self
            .application
            .iter()
            .filter(|(_, c)| !c.closed && !c.ended)
            .map(|(id, _)| *id)
            .collect();
        alive.get(usize::from(channel) % alive.len().max(1)).copied()
    }

    fn open(&mut self, amount: u16) {
        if self.application.values().filter(|c| !c.ended).count() >= MAX_CHANNELS {
            return;
        }
        let session = !amount.is_multiple_of(4);
        let kind = if session {
            ChannelKind::Session
        } else {
            ChannelKind::DirectTcpip {
                host: "db".into(),
                port: 5432,
                originator: ("127.0.0.1".into(), 1),
            }
        };
        let id = self.channels.open(&kind).number();
        let known = self.application.insert(
            id,
            Application {
                session,
                ..Application::default()
            },
        );
        assert!(known.is_none(), "the number {id} was given out twice");
    }

    fn request(&mut self, channel: u8, amount: u16) {
        let Some(id) = self.pick(channel).filter(|id| self.application[id].session) else {
            return;
        };
        let channel = self.application.get_mut(&id).unwrap();
        let request = match amount % 4 {
            0 => ChannelRequest::WindowChange(TerminalSize::default()),
            1 => ChannelRequest::Pty {
                term: "vt100".into(),
                size: TerminalSize::default(),
                modes: vec![0],
            },
            _ if channel.started => return,
            _ => ChannelRequest::Exec(b"true".to_vec()),
        };
        channel.started |= request.starts();
        if request.wants_reply() {
            channel.requests.push_back(request.starts());
        }
        self.channels.request(ChannelId::from_number(id), &request);
    }

    fn write(&mut self, channel: u8, amount: u16) {
        let Some(id) = self.pick(channel) else { return };
        let channel = self.application.get_mut(&id).unwrap();
        let data = text(id, 0, channel.written, usize::from(amount));
        self.channels.write(ChannelId::from_number(id), data);
        if !channel.eof {
            channel.written += u64::from(amount);
        }
    }

    fn close(&mut self, id: u32) {
        self.channels.close(ChannelId::from_number(id));
        let channel = self.application.get_mut(&id).unwrap();
        channel.closed = true;
        channel.incoming = false;
    }

    fn consume(&mut self, id: u32, most: u64) {
        let channel = self.application.get_mut(&id).unwrap();
        let n = most.min(channel.unread);
        channel.unread -= n;
        channel.consumed += n;
        self.channels
            .consume(ChannelId::from_number(id), usize::try_from(n).unwrap(), self.now);
    }

    /// Answers one of the server's offers.
    fn answer(&mut self, channel: u8, accept: bool) {
        let waiting: Vec<u32> = self
            .application
            .iter()
            .filter(|(_, c)| c.incoming)
            .map(|(id, _)| *id)
            .collect();
        let Some(&id) = waiting.get(usize::from(channel) % waiting.len().max(1)) else {
            return;
        };
        let known = self.application.get_mut(&id).unwrap();
        known.incoming = false;
        if accept {
            known.open = true;
            self.channels.accept(ChannelId::from_number(id));
        } else {
            known.ended = true;
            self.channels
                .reject(ChannelId::from_number(id), OpenFailure::CONNECT_FAILED, "no");
        }
    }

    fn check_events(&mut self) {
        while let Some(event) = self.channels.next_event() {
            self.check_event(event);
        }
    }

    fn check_event(&mut self, event: ChannelEvent) {
        let id = match &event {
            ChannelEvent::Opened(id)
            | ChannelEvent::OpenFailed { id, .. }
            | ChannelEvent::Incoming { id, .. }
            | ChannelEvent::Data { id, .. }
            | ChannelEvent::Eof(id)
            | ChannelEvent::Reply { id, .. }
            | ChannelEvent::ExitStatus { id, .. }
            | ChannelEvent::ExitSignal { id, .. }
            | ChannelEvent::Sent { id, .. }
            | ChannelEvent::Closed(id) => id.number(),
            ChannelEvent::GlobalReply { id, success, .. } => {
                assert_eq!(
                    self.globals_asked.pop_front(),
                    Some(*id),
                    "global answers come in order"
                );
                assert_eq!(self.global_answers.pop_front(), Some(*success));
                return;
            }
            ChannelEvent::HostKeys(_) => return,
        };
        if let ChannelEvent::Incoming { .. } = event {
            let incoming = Application {
                incoming: true,
                ..Application::default()
            };
            assert!(
                self.application.insert(id, incoming).is_none(),
                "the number {id} was given out twice"
            );
            return;
        }
        let channel = self
            .application
            .get_mut(&id)
            .expect("an event is about a channel that was opened");
        assert!(!channel.ended, "{event:?} came behind the channel's end");
        if channel.closed {
            assert!(
                matches!(event, ChannelEvent::Closed(_)),
                "{event:?} came for a channel that was given up"
            );
        }
        match event {
            ChannelEvent::Opened(_) => assert!(!std::mem::replace(&mut channel.open, true), "opened twice"),
            ChannelEvent::OpenFailed { .. } => {
                assert!(!channel.open);
                channel.ended = true;
            }
            ChannelEvent::Data { stream, data, .. } => {
                assert!(channel.open && !channel.eof_seen && !data.is_empty());
                let stream = usize::from(stream == Stream::Stderr);
                assert_eq!(
                    data,
                    text(id, 1 + stream as u64, channel.received[stream], data.len()),
                    "out of order"
                );
                channel.received[stream] += data.len() as u64;
                channel.unread += data.len() as u64;
            }
            ChannelEvent::Eof(_) => assert!(!std::mem::replace(&mut channel.eof_seen, true), "a second EOF"),
            ChannelEvent::Reply { success, started, .. } => {
                let server = self
                    .server
                    .values_mut()
                    .find(|server| server.client == id)
                    .unwrap();
                assert_eq!(
                    Some(started),
                    channel.requests.pop_front(),
                    "answers match requests in order"
                );
                assert_eq!(Some((started, success)), server.answers.pop_front());
            }
            ChannelEvent::Sent { len, .. } => {
                assert!(len > 0, "nothing was sent");
                channel.sent += len as u64;
                assert!(channel.sent <= channel.written);
            }
            ChannelEvent::Closed(_) => channel.ended = true,
            _ => assert!(channel.open),
        }
    }

    // The network.

    /// The client's next message reaches the server.
    fn send_one(&mut self) -> bool {
        match self.channels.next_message() {
            None => false,
            Some(Outgoing::Control(message)) => {
                self.server_handle(&message);
                true
            }
            Some(Outgoing::Data { head, data }) => {
                assert_eq!(
                    u32::from_be_bytes(head[5..].try_into().unwrap()) as usize,
                    data.len()
                );
                self.server_handle(&[&head[..], &data].concat());
                true
            }
        }
    }

    /// The server's next message reaches the client.
    fn deliver_one(&mut self) -> bool {
        let Some(message) = self.to_client.pop_front() else {
            return false;
        };
        if let Err(error) = self.channels.handle(&message) {
            panic!("{:?} is a proper message: {error}", message.first());
        }
        if message[0] == CLOSE {
            // The server's number may be used again when both have closed; here it never is.
            let id = u32::from_be_bytes(message[1..5].try_into().unwrap());
            self.check_events();
            assert!(self.application[&id].ended);
        }
        true
    }

    // The server.

    fn server_handle(&mut self, message: &[u8]) {
        let mut reader = Reader::new(message);
        let number = reader.u8().unwrap();
        match number {
            GLOBAL_REQUEST => return self.globals_at_server += 1,
            OPEN => {
                let kind = reader.name().unwrap();
                let client = reader.u32().unwrap();
                assert_eq!(u64::from(reader.u32().unwrap()), FIRST_WINDOW);
                assert_eq!(kind == "session", self.application[&client].session);
                return self.asked.push(client);
            }
            OPEN_CONFIRMATION | OPEN_FAILURE => {
                let number = reader.u32().unwrap();
                let at = self
                    .offered
                    .iter()
                    .position(|offered| *offered == number)
                    .expect("it was offered");
                self.offered.remove(at);
                if number_is(message, OPEN_FAILURE) {
                    self.server.remove(&number);
                    return;
                }
                let client = reader.u32().unwrap();
                let channel = self.server.get_mut(&number).unwrap();
                channel.client = client;
                channel.granted = u64::from(reader.u32().unwrap());
                return;
            }
            _ => {}
        }
        let to = reader.u32().unwrap();
        assert!(
            !self.offered.contains(&to),
            "message {number} came before the channel was accepted"
        );
        let channel = self.server.get_mut(&to).expect("the channel exists");
        assert!(!channel.close_got, "message {number} came behind CLOSE");
        let application = &self.application[&channel.client];
        match number {
            DATA => {
                let data = reader.string().unwrap();
                assert!(!channel.eof_got, "data came behind EOF");
                assert!(data.len() <= channel.packet as usize, "a packet was too large");
                assert_eq!(
                    data,
                    text(channel.client, 0, channel.got, data.len()),
                    "out of order"
                );
                channel.got += data.len() as u64;
                if !channel.larval {
                    channel.window -= data.len() as i64;
                    assert!(
                        channel.window >= 0,
                        "the window was overrun by {}",
                        -channel.window
                    );
                }
            }
            WINDOW_ADJUST => {
                channel.granted += u64::from(reader.u32().unwrap());
                let ahead = channel.granted - application.consumed;
                assert!(
                    ahead <= LARGEST_WINDOW,
                    "{ahead} bytes were granted ahead of the reader"
                );
            }
            EOF => {
                assert!(
                    application.eof && channel.got == application.written,
                    "EOF came before the data's end"
                );
                assert!(!std::mem::replace(&mut channel.eof_got, true), "a second EOF");
            }
            CLOSE => {
                assert!(application.closed || channel.close_sent, "CLOSE came unasked");
                channel.close_got = true;
                if !channel.close_sent {
                    self.server_close(to);
                }
            }
            REQUEST => {
                let name = reader.name().unwrap();
                if reader.bool().unwrap() {
                    channel.requests.push_back(name == "exec");
                }
                if name == "exec" && channel.larval && !channel.close_sent {
                    channel.larval = false;
                    channel.window += SSHD_WINDOW;
                    let adjust = Writer::message(WINDOW_ADJUST)
                        .u32(channel.client)
                        .u32(SSHD_WINDOW as u32);
                    self.to_client.push_back(adjust.finish());
                }
            }
            other => panic!("a client does not send message {other}"),
        }
    }

    fn confirm(&mut self, client: u32, amount: u16) {
        let number = self.next_server_number;
        self.next_server_number += 1;
        let larval = self.sshd && self.application[&client].session;
        let window = if larval { 0 } else { u32::from(amount) * 3 };
        let packet = if self.sshd {
            SSHD_PACKET
        } else {
            1 + u32::from(amount) % 40_000
        };
        let confirmation = Writer::message(OPEN_CONFIRMATION)
            .u32(client)
            .u32(number)
            .u32(window)
            .u32(packet);
        self.to_client.push_back(confirmation.finish());
        let channel = Server {
            client,
            larval,
            packet,
            window: i64::from(window),
            granted: FIRST_WINDOW,
            ..Server::default()
        };
        self.server.insert(number, channel);
    }

    fn offer(&mut self, amount: u16) {
        if self.offered.len() >= MAX_CHANNELS {
            return;
        }
        let number = self.next_server_number;
        self.next_server_number += 1;
        let (window, packet) = (u32::from(amount), 1 + u32::from(amount));
        let open = Writer::message(OPEN)
            .string("forwarded-tcpip")
            .u32(number)
            .u32(window)
            .u32(packet);
        let open = open.string("localhost").u32(8080).string("10.0.0.1").u32(1024);
        self.to_client.push_back(open.finish());
        self.offered.push(number);
        let channel = Server {
            client: u32::MAX,
            window: i64::from(window),
            packet,
            ..Server::default()
        };
        self.server.insert(number, channel);
    }

    fn grant(&mut self, number: u32, add: u32) {
        let channel = self.server.get_mut(&number).unwrap();
        if channel.larval {
            return;
        }
        channel.window += i64::from(add);
        self.to_client.push_back(
            Writer::message(WINDOW_ADJUST)
                .u32(channel.client)
                .u32(add)
                .finish(),
        );
    }

    fn server_write(&mut self, number: u32, most: u64, stderr: bool) {
        let channel = self.server.get_mut(&number).unwrap();
        if channel.eof_sent {
            return;
        }
        let credit = channel.granted - channel.sent.iter().sum::<u64>();
        let len = usize::try_from(most.min(credit).min(u64::from(SSHD_PACKET))).unwrap();
        let stream = usize::from(stderr);
        let data = text(channel.client, 1 + stream as u64, channel.sent[stream], len);
        channel.sent[stream] += len as u64;
        let message = match stderr {
            false => Writer::message(DATA).u32(channel.client).string(data),
            true => Writer::message(EXTENDED_DATA)
                .u32(channel.client)
                .u32(1)
                .string(data),
        };
        self.to_client.push_back(message.finish());
    }

    fn server_reply(&mut self, number: u32, success: bool) {
        let channel = self.server.get_mut(&number).unwrap();
        let Some(starts) = channel.requests.pop_front() else {
            return;
        };
        channel.answers.push_back((starts, success));
        let message = if success { SUCCESS } else { FAILURE };
        self.to_client
            .push_back(Writer::message(message).u32(channel.client).finish());
    }

    fn server_eof(&mut self, number: u32) {
        let channel = self.server.get_mut(&number).unwrap();
        if !std::mem::replace(&mut channel.eof_sent, true) {
            self.to_client
                .push_back(Writer::message(EOF).u32(channel.client).finish());
        }
    }

    fn server_close(&mut self, number: u32) {
        let channel = self.server.get_mut(&number).unwrap();
        if !std::mem::replace(&mut channel.close_sent, true) {
            self.to_client
                .push_back(Writer::message(CLOSE).u32(channel.client).finish());
        }
    }

    /// A message about a channel that both sides have closed, as some servers send: nothing comes of it.
    fn late(&mut self, channel: u8, amount: u16) {
        let closed: Vec<u32> = self
            .server
            .values()
            .filter(|c| c.close_sent && c.close_got)
            .map(|c| c.client)
            .collect();
        let Some(&client) = closed.get(usize::from(channel) % closed.len().max(1)) else {
            return;
        };
        let number = [
            WINDOW_ADJUST,
            DATA,
            EXTENDED_DATA,
            EOF,
            CLOSE,
            REQUEST,
            SUCCESS,
            FAILURE,
        ][usize::from(amount) % 8];
        let message = Writer::message(number).u32(client);
        let message = match number {
            WINDOW_ADJUST => message.u32(u32::from(amount)),
            DATA => message.string("late"),
            EXTENDED_DATA => message.u32(1).string("late"),
            REQUEST => message.string("exit-status").bool(true).u32(0),
            _ => message,
        };
        self.to_client.push_back(message.finish());
    }

    fn answer_global(&mut self, success: bool) {
        if self.globals_at_server > 0 {
            self.globals_at_server -= 1;
            self.global_answers.push_back(success);
            let number = if success { REQUEST_SUCCESS } else { REQUEST_FAILURE };
            self.to_client.push_back(Writer::message(number).finish());
        }
    }

    // The end.

    /// Lets everything that was begun come to its end, and looks whether it did.
    pub(crate) fn finish(mut self) {
        self.settle();
        for channel in self
            .application
            .values()
            .filter(|c| c.open && !c.closed && !c.ended)
        {
            assert_eq!(channel.sent, channel.written, "not all was reported as sent");
        }
        for (number, server) in &self.server {
            let application = &self.application[&server.client];
            if application.closed || server.close_sent {
                continue;
            }
            assert_eq!(
                server.got, application.written,
                "channel {number} did not get all data"
            );
            assert_eq!(
                server.eof_got, application.eof,
                "channel {number} did not see the end"
            );
            assert_eq!(
                server.sent, application.received,
                "the server's data did not all arrive"
            );
            if !server.eof_sent {
                // What is not returned yet is less than a quarter of the window.
                let ahead = server.granted - application.consumed;
                assert!(
                    (FIRST_WINDOW / 4 * 3..=LARGEST_WINDOW).contains(&ahead),
                    "credit was lost or made up: {ahead}"
                );
            }
        }
        let all: Vec<u32> = self.server.keys().copied().collect();
        for number in all {
            if number % 2 == 0 {
                self.server_close(number);
            } else if let Some(id) = self
                .application
                .get(&self.server[&number].client)
                .filter(|c| !c.ended)
            {
                assert!(id.open || id.closed);
                self.close(self.server[&number].client);
            }
        }
        self.settle();
        assert!(
            self.channels.is_empty(),
            "{} channels are left: {:?}",
            self.channels.len(),
            self.application
        );
        assert!(self.globals_asked.is_empty());
        assert!(self.channels.next_message().is_none());
    }

    fn settle(&mut self) {
        loop {
            let mut progress = false;
            while self.send_one() {
                progress = true;
            }
            while self.deliver_one() {
                progress = true;
            }
            self.check_events();
            while let Some(client) = self.asked.pop() {
                self.confirm(client, 1000);
                progress = true;
            }
            while self.application.values().any(|c| c.incoming) {
                self.answer(0, true);
                progress = true;
            }
            while self.globals_at_server > 0 {
                self.answer_global(true);
            }
            let numbers: Vec<u32> = self.server.keys().copied().collect();
            for number in numbers {
                let channel = &self.server[&number];
                if channel.close_sent || self.offered.contains(&number) {
                    continue;
                }
                let client = channel.client;
                while !self.server[&number].requests.is_empty() {
                    self.server_reply(number, true);
                    progress = true;
                }
                if !self.application[&client].ended && self.application[&client].unread > 0 {
                    self.consume(client, u64::MAX);
                    progress = true;
                }
                if self.server[&number].larval {
                    // A session that nobody started gets its window all the same, so that its data can be counted.
                    self.server.get_mut(&number).unwrap().larval = false;
                    self.server.get_mut(&number).unwrap().window = -(self.server[&number].got as i64);
                    progress = true;
                }
                if self.channels.waiting(ChannelId::from_number(client)) > 0 {
                    self.grant(number, 1 << 20);
                    progress = true;
                }
            }
            if !progress && self.to_client.is_empty() {
                return;
            }
        }
    }
}

fn number_is(message: &[u8], number: u8) -> bool {
    message.first() == Some(&number)
}

/// `len` bytes of a text that is different in each channel and stream and does not repeat soon, from `at`.
fn text(channel: u32, stream: u64, at: u64, len: usize) -> Bytes {
    let seed = u64::from(channel).wrapping_mul(0x9e37_79b9) ^ (stream << 17);
    (at..at + len as u64)
        .map(|n| ((n.wrapping_add(seed)).wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u8)
        .collect()
}
