//! The loop that owns a connection. One task, without locks, moves bytes between the socket and the protocol,
//! operations from handles into the protocol, and its events to the channels' consumers.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::Sleep;
use tokio_util::io::poll_read_buf;
use trunkline_proto::{
    ChannelEvent, ChannelId, ChannelKind, ChannelRequest, DisconnectReason, Event, GlobalRequest,
    GlobalRequestId, IncomingKind, OpenFailure, Printable, Stream,
};
use trunkline_request::ExitStatus;

use super::queue;
use crate::connection::channel::{
    ChannelShared, GlobalReply, Op, Port, RttProbe, Waiter, end_port, execution, refuse,
};
use crate::connection::lease::{End, Lease};
use crate::connection::socket::Socket;
use crate::connection::timing::idle::Idle;
use crate::connection::timing::keepalive::{self, KeepAlive, Rule};
use crate::connection::timing::keystrokes::{Keystrokes, Turn};
use crate::error::{Error, Execution, Invalid, LogInStage, ServerRequest};
use crate::host_key::HostKeyError;
use crate::memory::{Learner, Lesson};
use crate::metrics::ConnectionMetrics;

/// Room for one read of a busy connection: holds a whole batch of sshd's packets.
const READ_LARGE: usize = 256 * 1024;
/// Room for one read on a connection that carries little.
const READ_SMALL: usize = 8 * 1024;
/// Room for the first read after a silence; one of sshd's answers to a command fits.
const READ_FIRST: usize = 2 * 1024;
/// The time that a connection is silent before its buffers are released.
const IDLE_RELEASE: Duration = Duration::from_secs(1);
/// Data smaller than this is gathered before it is queued.
const CRUMB: usize = 1024;
/// An answer that came with at most this many bytes was not delayed by data in front of it.
const QUIET: u64 = 4 * 1024;
/// Turns of the loop before other tasks of the thread run.
const TURNS: usize = 32;

/// An unrequested offer from the server. Boxed in its queue, which has room for 32 from the start, because most
/// connections never see one.
#[derive(Debug)]
pub(crate) enum Offer {
    Channel { id: ChannelId, kind: IncomingKind },
    HostKeys(Bytes),
}

pub(crate) struct Driver {
    host: String,
    io: Box<dyn Socket>,
    pub(crate) proto: trunkline_proto::Connection,
    ops: queue::Receiver<Op>,
    ports: HashMap<ChannelId, Box<Port>>,
    /// The idle timers of channels with a ChannelTimeout. Timers of closed channels stay until they are due.
    idle: HashMap<ChannelId, Box<Idle>>,
    /// For sessions with obscured keystrokes.
    keystrokes: HashMap<ChannelId, Keystrokes>,
    /// The leases of channels that this side has closed, until the server closes them too.
    closing: HashMap<ChannelId, Lease>,
    globals: HashMap<GlobalRequestId, oneshot::Sender<GlobalReply>>,
    pings: Vec<oneshot::Sender<()>>,
    /// The waiters for room in a channel's window.
    rooms: Vec<(ChannelId, oneshot::Sender<usize>)>,
    /// Channels whose window is full: their writers wait for the server.
    full: HashSet<ChannelId>,
    offers: queue::Sender<Box<Offer>>,
    /// Events that the handshake decides about; see [`crate::connection::handshake`].
    questions: VecDeque<Event>,
    /// An error that ended the connection while `questions` had events left.
    end: Option<Error>,
    /// A session that was opened with the log-in, for the first session request.
    ready: Option<ChannelId>,
    /// Learns about the server while the connection lives.
    learner: Option<Learner>,
    /// Channels that the server offered and that have not been answered.
    offered: HashSet<ChannelId>,
    draining: bool,
    /// Set while the server's list of host keys is checked and its proof is pending.
    learns_host_keys: bool,
    keepalive: KeepAlive,
    /// Bytes received.
    received: u64,
    /// The ping whose answer is timed.
    pinged: Option<RttProbe>,
    last_activity: Instant,
    /// The time of the last bytes from the server.
    heard: Instant,
    released: bool,
    read_size: usize,
    timer: Pin<Box<Sleep>>,
    metrics: Arc<ConnectionMetrics>,
    /// Operations are taken from their queue only once the server is verified or accepted. Before that, another attempt
    /// could still be made with the queue intact.
    takes_ops: bool,
    /// The host key was not verified: nothing that relies on the server's identity is sent, and channels that the
    /// server opens are rejected.
    unverified: bool,
}

impl Driver {
    pub(crate) fn new(
        host: String,
        io: Box<dyn Socket>,
        proto: trunkline_proto::Connection,
        ops: queue::Receiver<Op>,
        offers: queue::Sender<Box<Offer>>,
        keepalive: KeepAlive,
        metrics: Arc<ConnectionMetrics>,
    ) -> Self {
        let now = Instant::now();
        Self {
            host,
            io,
            proto,
            ops,
            ports: HashMap::new(),
            idle: HashMap::new(),
            keystrokes: HashMap::new(),
            closing: HashMap::new(),
            globals: HashMap::new(),
            pings: Vec::new(),
            rooms: Vec::new(),
            full: HashSet::new(),
            offers,
            questions: VecDeque::new(),
            end: None,
            ready: None,
            learner: None,
            offered: HashSet::new(),
            draining: false,
            learns_host_keys: false,
            keepalive,
            received: 0,
            pinged: None,
            last_activity: now,
            heard: now,
            released: false,
            read_size: READ_SMALL,
            timer: Box::pin(tokio::time::sleep_until(now.into())),
            metrics,
            takes_ops: false,
            unverified: false,
        }
    }

    /// Starts taking operations; for an unverified server, only sessions.
    pub(crate) fn take_ops(&mut self, unverified: bool) {
        self.takes_ops = true;
        self.unverified = unverified;
    }

    /// Sets what learns about the server.
    pub(crate) fn teach(&mut self, learner: Learner) {
        self.learner = Some(learner);
    }

    /// Returns whether the first queued operation opens a session.
    pub(crate) fn wants_session(&self) -> bool {
        self.ops.is_first(|op| {
            let Op::Open { kind, .. } = op else { return false };
            *kind == ChannelKind::Session
        })
    }

    /// Takes the outcome of a session that was opened with the log-in, once it is known.
    pub(crate) fn early_session(&mut self) -> Option<Option<ChannelId>> {
        let is_it = |event: &Event| matches!(event, Event::EarlySession(_));
        let at = self.questions.iter().position(is_it)?;
        match self.questions.remove(at)? {
            Event::EarlySession(opened) => Some(opened),
            _ => None,
        }
    }

    /// Uses an open session for the first session request.
    pub(crate) fn begin_with(&mut self, session: ChannelId) {
        self.ready = Some(session);
    }

    /// Returns whether operations were taken from the queue, so that the server may have received requests.
    pub(crate) fn is_touched(&self) -> bool {
        self.takes_ops
    }

    /// Drives the connection until the handshake has something to decide.
    pub(crate) async fn question(&mut self) -> Result<Event, Error> {
        if self.end.is_none() {
            match std::future::poll_fn(|cx| self.poll(cx, true)).await {
                // The last handle may be dropped before the connection has a question.
                Ok(question) => return question.ok_or_else(|| self.closed_error("all work on it was done")),
                Err(end) => self.end = Some(end),
            }
            // Deliver what came before the end, for example that the user was let in. Nothing can be answered any more.
            self.questions
                .retain(|event| matches!(event, Event::Banner(_) | Event::Authenticated));
        }
        match (self.questions.pop_front(), self.end.take()) {
            (Some(told), end) => {
                self.end = end;
                Ok(told)
            }
            (None, end) => Err(end.unwrap_or_else(|| self.closed_error("all work on it was done"))),
        }
    }

    /// Drives the authenticated connection to its end, and returns the reason. The channels have not been told yet.
    pub(crate) async fn run(&mut self) -> Error {
        if let Some(end) = self.end.take() {
            return end;
        }
        match std::future::poll_fn(|cx| self.poll(cx, false)).await {
            Ok(_) => self.closed_error("all work on it was done"),
            Err(error) => error,
        }
    }

    /// Ends a log-in that this side gives up, with a DISCONNECT if the socket takes it now.
    pub(crate) async fn give_up(&mut self, error: &Error) {
        let (reason, why) = match error {
            // Without text, as ssh2's clients do: its servers then show their own text for the reason.
            Error::HostKey(_) => (DisconnectReason::KEY_EXCHANGE_FAILED, ""),
            Error::Authentication { .. } => {
                (DisconnectReason::BY_APPLICATION, "nothing is left to log in with")
            }
            _ => return,
        };
        std::future::poll_fn(|cx| {
            self.say_goodbye(cx, reason, why);
            Poll::Ready(())
        })
        .await;
    }

    /// Returns the queue, which must be untouched.
    pub(crate) fn into_ops(self) -> queue::Receiver<Op> {
        self.ops
    }

    /// Ends every channel and request with `error`, which tells whether commands may have started. Returns the queue.
    pub(crate) fn finish(mut self, error: &Error) -> queue::Receiver<Op> {
        let ended_by = self.learn_of_refused_text(error);
        for (id, mut port) in self.ports.drain() {
            let execution = execution(self.proto.start_state(id));
            match ended_by.filter(|length| port.long_text == Some(*length)) {
                Some(length) => end_port(&mut port, &error.clone().with_long_text(length), execution),
                None => end_port(&mut port, error, execution),
            }
        }
        self.ops
    }

    // The loop.

    fn poll(&mut self, cx: &mut Context<'_>, stop_at_question: bool) -> Poll<Result<Option<Event>, Error>> {
        for _ in 0..TURNS {
            // Answer each before reading more: a server may send banners without end.
            if stop_at_question {
                if let Some(question) = self.questions.pop_front() {
                    return Poll::Ready(Ok(Some(question)));
                }
            } else {
                self.questions.clear();
            }
            let mut progress = self.poll_ops(cx)?;
            progress |= self.dispatch_events();
            progress |= self.poll_send(cx)?;
            progress |= self.poll_receive(cx)?;
            progress |= self.poll_timer(cx)?;
            progress |= self.dispatch_events();
            self.tell_of_room();
            let is_idle = self.ports.is_empty() && self.proto.channel_count() == 0;
            if self.draining && is_idle && !self.learns_host_keys {
                self.say_goodbye(cx, DisconnectReason::BY_APPLICATION, "done");
                return Poll::Ready(Ok(None));
            }
            if !progress {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_ops(&mut self, cx: &mut Context<'_>) -> Result<bool, Error> {
        let mut progress = false;
        while self.takes_ops {
            match self.ops.poll_recv(cx) {
                Poll::Pending => {
                    self.give_up_ready();
                    return Ok(progress);
                }
                // Every handle is gone: no more requests can come.
                Poll::Ready(None) => {
                    self.give_up_ready();
                    self.learns_host_keys = false;
                    progress |= !std::mem::replace(&mut self.draining, true);
                    return Ok(progress);
                }
                Poll::Ready(Some(op)) => self.handle_op(cx, op)?,
            }
            progress = true;
        }
        Ok(progress)
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Result<bool, Error> {
        let now = Instant::now();
        let mut progress = false;
        loop {
            let outgoing = match self.proto.poll_transmit(now) {
                Ok(outgoing) => outgoing,
                Err(error) => return Err(self.protocol_error(cx, error)),
            };
            if outgoing.is_empty() {
                return Ok(progress);
            }
            match Pin::new(&mut self.io).poll_write(cx, outgoing) {
                Poll::Pending => {
                    self.keepalive.sends(true, now);
                    return Ok(progress);
                }
                Poll::Ready(Ok(0)) => return Err(self.loss(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(n)) => {
                    outgoing.advance(n);
                    self.keepalive.sends(false, now);
                    self.metrics.bytes_sent.add(n as u64);
                    progress = true;
                }
                Poll::Ready(Err(error)) => {
                    self.hear_last_words(cx)?;
                    return Err(self.loss(error));
                }
            }
            self.last_activity = now;
            self.released = false;
        }
    }

    /// Reads what arrived before the server closed the connection. Its last words say more than "broken pipe", and a
    /// refusal among them shows that nothing was started.
    fn hear_last_words(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        for _ in 0..TURNS {
            if !self.poll_receive(cx)? {
                break;
            }
            self.dispatch_events();
        }
        Ok(())
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Result<bool, Error> {
        let buffer = self.proto.receive_buffer();
        let (read, room) = if self.released {
            // Waiting takes no memory: the first bytes after a silence are read into the stack.
            let mut first = [0; READ_FIRST];
            let mut first = ReadBuf::new(&mut first);
            let read = Pin::new(&mut self.io).poll_read(cx, &mut first).map_ok(|()| {
                buffer.extend_from_slice(first.filled());
                first.filled().len()
            });
            (read, usize::MAX)
        } else {
            if buffer.capacity() - buffer.len() < self.read_size / 4 {
                self.proto.reserve_receive(self.read_size);
            }
            let buffer = self.proto.receive_buffer();
            let room = buffer.capacity() - buffer.len();
            (poll_read_buf(Pin::new(&mut self.io), cx, buffer), room)
        };
        let n = match read {
            Poll::Pending => {
                if self.io.is_drained() {
                    self.proto.input_drained();
                }
                return Ok(false);
            }
            Poll::Ready(Ok(0)) => {
                return Err(Error::ClosedByPeer {
                    host: self.host.clone(),
                    during: self.stage(),
                    reset: false,
                });
            }
            Poll::Ready(Ok(n)) => n,
            Poll::Ready(Err(error)) => return Err(self.loss(error)),
        };
        self.read_size = if n == room { READ_LARGE } else { self.read_size };
        let now = Instant::now();
        self.keepalive.note_answer(now);
        self.metrics.note_heard();
        self.received += n as u64;
        self.heard = now;
        self.last_activity = now;
        self.released = false;
        self.metrics.bytes_received.add(n as u64);
        let handled = self.proto.handle_received(now);
        if self.proto.take_starved() {
            self.io.expect_reply();
        }
        match handled {
            Ok(()) => Ok(true),
            Err(error) => {
                // Bytes before the error still count, for example an exit status before a DISCONNECT.
                self.dispatch_events();
                Err(self.protocol_error(cx, error))
            }
        }
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Result<bool, Error> {
        let Some(at) = self.next_deadline() else {
            return Ok(false);
        };
        if self.timer.deadline().into_std() != at {
            self.timer.as_mut().reset(at.into());
        }
        if self.timer.as_mut().poll(cx).is_pending() {
            return Ok(false);
        }
        self.handle_timeout(cx, Instant::now())?;
        Ok(true)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let keepalive = self.keepalive.due().filter(|_| self.proto.is_authenticated());
        let release = (!self.released).then(|| self.last_activity + IDLE_RELEASE);
        let idle = self.idle.values().filter_map(|idle| idle.due()).min();
        let keystrokes = self.keystrokes.values().filter_map(Keystrokes::due).min();
        [self.proto.poll_timeout(), keepalive, release, idle, keystrokes]
            .into_iter()
            .flatten()
            .min()
    }

    fn handle_timeout(&mut self, cx: &mut Context<'_>, now: Instant) -> Result<(), Error> {
        if let Err(error) = self.proto.handle_timeout(now) {
            return Err(self.protocol_error(cx, error));
        }
        if self.proto.is_authenticated() {
            self.keep_alive(now)?;
        }
        self.take_turns_typing(now);
        self.close_idle(now);
        if !self.released && self.last_activity + IDLE_RELEASE <= now {
            self.proto.release_buffers();
            self.read_size = READ_SMALL;
            self.released = true;
        }
        Ok(())
    }

    fn keep_alive(&mut self, now: Instant) -> Result<(), Error> {
        if !self.is_owed_an_answer() {
            self.keepalive.note_settled();
        }
        match self.keepalive.turn(now) {
            keepalive::Turn::Nothing => Ok(()),
            keepalive::Turn::Ask => {
                self.ping();
                Ok(())
            }
            keepalive::Turn::Doubt => {
                self.metrics.doubted.cancel();
                Ok(())
            }
            keepalive::Turn::Forsake { silent } => {
                self.forsake(&self.silent(Rule::Check, silent));
                Ok(())
            }
            keepalive::Turn::GiveUp { rule, silent } => {
                self.io.abandon();
                Err(self.silent(rule, silent))
            }
        }
    }

    fn silent(&self, rule: Rule, silent: Duration) -> Error {
        let host = &self.host;
        let doing = match rule {
            Rule::ServerAliveInterval => {
                format!("keeping the connection to {host} alive (ServerAliveInterval)")
            }
            Rule::Check => format!("checking the connection to {host}"),
        };
        Error::Timeout {
            doing: doing.into(),
            after: silent,
        }
    }

    fn is_owed_an_answer(&self) -> bool {
        let owed = |port: &Port| port.started.is_some() || !port.replies.is_empty();
        !self.pings.is_empty() || !self.globals.is_empty() || self.ports.values().any(|port| owed(port))
    }

    /// Ends the requests that the server has not answered. Other running channels stay.
    fn forsake(&mut self, why: &Error) {
        let waiting = self.ports.iter().filter(|(_, port)| port.started.is_some());
        for id in waiting.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.close(id, why);
        }
        for (_, reply) in self.globals.drain() {
            let _ = reply.send(Err(why.clone()));
        }
    }

    // Keystrokes and channel timeouts.

    fn take_turns_typing(&mut self, now: Instant) {
        let ports = &self.ports;
        self.keystrokes.retain(|id, _| ports.contains_key(id));
        let exchanging = self.proto.is_exchanging_keys();
        for (id, keystrokes) in &mut self.keystrokes {
            let data = match keystrokes.turn(now) {
                Turn::Nothing => continue,
                _ if exchanging => keystrokes.stop(Bytes::new()),
                Turn::Chaff => {
                    self.proto.chaff();
                    continue;
                }
                Turn::Send(data) => data,
            };
            if !data.is_empty() {
                self.proto.write(*id, data);
            }
        }
    }

    /// Returns the part of `data`, and of data held earlier, to send now.
    fn pace_typing(&mut self, id: ChannelId, data: Bytes) -> Bytes {
        let Some(keystrokes) = self.keystrokes.get_mut(&id) else {
            return data;
        };
        if self.proto.is_exchanging_keys() {
            return keystrokes.stop(data);
        }
        keystrokes.hold_keys(data, self.proto.waiting(id), Instant::now())
    }

    /// Sends held keystrokes, before something that must follow them.
    fn flush_typed(&mut self, id: ChannelId) {
        let held = self
            .keystrokes
            .get_mut(&id)
            .map(|keystrokes| keystrokes.stop(Bytes::new()));
        if let Some(held) = held.filter(|held| !held.is_empty()) {
            self.proto.write(id, held);
        }
    }

    fn note_traffic(&self, id: ChannelId) {
        if let Some(idle) = self.idle.get(&id) {
            idle.note_traffic(Instant::now());
        }
    }

    /// Closes the channels whose ChannelTimeout is over.
    fn close_idle(&mut self, now: Instant) {
        let ports = &self.ports;
        self.idle.retain(|id, _| ports.contains_key(id));
        let due: Vec<_> = self
            .idle
            .iter()
            .filter_map(|(id, idle)| Some((*id, idle.reached_limit(now)?)))
            .collect();
        for (id, after) in due {
            self.idle.remove(&id);
            let error = Error::Timeout {
                doing: format!("traffic of a channel to {} (ChannelTimeout)", self.host).into(),
                after,
            };
            self.close(id, &error);
        }
    }

    /// Starts a channel's idle timer, if it has one.
    fn keep_time(&mut self, id: ChannelId, port: &mut Port) {
        if let Some(idle) = port.terms.idle.take() {
            idle.note_traffic(Instant::now());
            self.idle.insert(id, idle);
        }
    }

    // Round-trip times.

    fn rtt_probe(&self) -> RttProbe {
        RttProbe {
            at: Instant::now(),
            received: self.received,
        }
    }

    fn ping(&mut self) {
        let asked = self.rtt_probe();
        self.pinged.get_or_insert(asked);
        self.proto.ping();
    }

    /// Measures the round trip by an answer, unless other data came before it.
    fn time(&mut self, asked: Option<RttProbe>) {
        if let Some(asked) = asked.filter(|asked| self.received - asked.received <= QUIET) {
            self.proto.answered_after(asked.at.elapsed(), Instant::now());
        }
    }

    /// Like [`Self::time`], for an answer that takes the server some work: an upper bound.
    fn time_at_most(&mut self, asked: Option<RttProbe>) {
        if let Some(asked) = asked.filter(|asked| self.received - asked.received <= QUIET) {
            self.proto.answered_within(asked.at.elapsed());
        }
    }

    // Operations.

    fn handle_op(&mut self, cx: &mut Context<'_>, op: Op) -> Result<(), Error> {
        if let Some(error) = self.objection(&op).or_else(|| self.unbearable(&op)) {
            self.turn_down(op, &error);
            return Ok(());
        }
        if op.asks() {
            self.io.expect_reply();
        }
        if op.is_answered() {
            self.keepalive.note_question(Instant::now());
        }
        match op {
            Op::Open { kind, requests, port } => self.open(&kind, &requests, port),
            Op::Begin {
                channel,
                requests,
                what,
                started,
                lease,
                verified_only: _,
                terms,
            } => match channel.id().and_then(|id| self.ports.remove_entry(&id)) {
                Some((id, mut port)) => {
                    port.what = what;
                    port.lease = lease.or(port.lease.take());
                    port.terms = terms;
                    if requests.iter().any(ChannelRequest::starts) {
                        port.started = Some(started);
                    } else {
                        // It is open already, and nothing has to be confirmed.
                        let _ = started.send(Ok(()));
                    }
                    self.begin(id, port, &requests);
                }
                None => {
                    let _ = started.send(Err(self.closed_error("the server closed it")));
                }
            },
            Op::Accept { port } => self.accept(port),
            Op::Reject { id } => self.reject(id),
            Op::Request {
                channel,
                request,
                reply,
            } => {
                if let Some(id) = channel.id()
                    && let Some(mut port) = self.ports.remove(&id)
                {
                    self.request(id, &mut port, &request, reply);
                    self.ports.insert(id, port);
                }
            }
            Op::Write { channel, data } => match channel.id() {
                Some(id) if self.ports.contains_key(&id) => self.write(id, data),
                _ => channel.note_sent(data.len()),
            },
            Op::Room {
                channel,
                waits,
                reply,
            } => self.ask_room(&channel, waits, reply),
            Op::Eof { channel } => {
                if let Some(id) = channel.id() {
                    self.flush_typed(id);
                    self.proto.eof(id);
                }
            }
            Op::Consumed { channel, len } => {
                if let Some(id) = channel.id() {
                    self.proto.consume(id, len, Instant::now());
                }
            }
            Op::Close { channel } => {
                if let Some(id) = channel.id() {
                    let why = self.closed_error("the session was closed");
                    self.close(id, &why);
                }
            }
            Op::Global { request, reply } => {
                let id = self.proto.global_request(&request);
                self.globals.insert(id, reply);
            }
            Op::Ping { reply } => {
                self.pings.push(reply);
                self.ping();
            }
            Op::Measure => self.ping(),
            Op::Rekey => self.proto.rekey(),
            Op::HostKeysLearned => self.learns_host_keys = false,
            Op::Doubt => self.metrics.doubted.cancel(),
            Op::Awaited(awaited) => self.keepalive.change_waiting(awaited, Instant::now()),
            Op::Drain => self.draining = true,
            Op::Disconnect { why } => {
                self.say_goodbye(cx, DisconnectReason::BY_APPLICATION, &why);
                return Err(self.closed_error(why));
            }
        }
        Ok(())
    }

    /// Closes the session that was opened with the log-in, if no request for a session came.
    fn give_up_ready(&mut self) {
        if let Some(id) = self.ready.take() {
            self.proto.close(id);
        }
    }

    fn open(&mut self, kind: &ChannelKind, requests: &[ChannelRequest], mut port: Box<Port>) {
        let why = match () {
            () if self.draining => Some("it is being closed"),
            () if !port.shared.begins() => Some("it was given up"),
            () => None,
        };
        if let Some(why) = why {
            if let Some(lease) = &mut port.lease {
                lease.set_end(End::NeverOpened);
            }
            return end_port(&mut port, &self.closed_error(why), Execution::DidNotStart);
        }
        let ready = self.ready.take_if(|_| *kind == ChannelKind::Session);
        let id = ready.unwrap_or_else(|| self.proto.open(kind));
        port.shared.set_id(id);
        if ready.is_some() {
            if let Some(started) = port.started.take_if(|_| !port.starts) {
                let _ = started.send(Ok(()));
            }
        } else {
            // Before that, the answer also waits for PAM.
            port.asked = self.proto.is_authenticated().then(|| self.rtt_probe());
        }
        self.metrics.channels_opened.add(1);
        self.begin(id, port, requests);
    }

    fn accept(&mut self, mut port: Box<Port>) {
        let Some(id) = port.shared.id().filter(|id| self.offered.remove(id)) else {
            return;
        };
        self.proto.accept(id);
        if let Some(started) = port.started.take() {
            let _ = started.send(Ok(()));
        }
        self.keep_time(id, &mut port);
        self.ports.insert(id, port);
    }

    /// Sends the requests that start a channel's work.
    fn begin(&mut self, id: ChannelId, mut port: Box<Port>, requests: &[ChannelRequest]) {
        port.hangs_up = runs_without_terminal(requests);
        for request in requests {
            self.request(id, &mut port, request, None);
        }
        self.keep_time(id, &mut port);
        self.ports.insert(id, port);
    }

    fn reject(&mut self, id: ChannelId) {
        if self.offered.remove(&id) {
            self.proto
                .reject(id, OpenFailure::CONNECT_FAILED, "nobody listens for this here");
        }
    }

    /// Closes a channel from this side, and tells its user why.
    fn close(&mut self, id: ChannelId, why: &Error) {
        self.flush_typed(id);
        if let Some(mut port) = self.ports.remove(&id) {
            let execution = execution(self.proto.start_state(id));
            end_port(&mut port, why, execution);
            let runs = execution != Execution::DidNotStart && port.exit == ExitStatus::Unknown;
            if port.hangs_up && runs && !port.shared.leaves_running() {
                self.proto.request(id, &ChannelRequest::Signal("HUP".into()));
            }
            if let Some(mut lease) = port.lease.take() {
                lease.leave();
                self.closing.insert(id, lease);
            }
        }
        self.proto.close(id);
    }

    /// Refuses an operation. A spare session is closed, so that its readers see its end: nothing will start in it.
    fn turn_down(&mut self, mut op: Op, why: &Error) {
        match &mut op {
            Op::Open { port, .. } => {
                if let Some(lease) = &mut port.lease {
                    lease.set_end(End::NeverOpened);
                }
            }
            Op::Begin { channel, .. } => {
                if let Some((id, mut port)) = channel.id().and_then(|id| self.ports.remove_entry(&id)) {
                    end_port(&mut port, why, Execution::DidNotStart);
                    self.proto.close(id);
                }
            }
            _ => {}
        }
        refuse(op, why);
    }

    /// Returns why an operation is refused if its text would make the server end the shared connection.
    fn unbearable(&self, op: &Op) -> Option<Error> {
        let texts: Vec<Text> = match op {
            Op::Open { kind, requests, .. } => {
                let target = Text {
                    what: Part::Target,
                    len: kind.text_len(),
                    is_malformed: kind.is_malformed(),
                };
                requests.iter().map(Text::from_request).chain([target]).collect()
            }
            Op::Begin { requests, .. } => requests.iter().map(Text::from_request).collect(),
            Op::Request { request, .. } => vec![Text::from_request(request)],
            Op::Global { request, .. } => vec![Text {
                what: Part::Request,
                len: request.text_len(),
                is_malformed: request.is_malformed(),
            }],
            _ => return None,
        };
        if let Some(Text { what, .. }) = texts.iter().find(|text| text.is_malformed) {
            let why = match what {
                Part::Terminal => "have a NUL byte in them, or stop in the middle (RFC 4254, section 8)",
                Part::Request => "has a NUL byte in it, or does not end where it should",
                _ => "has a NUL byte in it",
            };
            return Some(Error::Configuration {
                host: self.host.clone(),
                problem: format!("{what} {why}, for which servers end the connection"),
            });
        }
        let longest = texts.iter().map(|text| text.len).max().unwrap_or(0);
        let limit = match op {
            _ if longest <= SURE_TEXT => return None,
            // No address and no path is longer.
            Op::Open { kind, .. } if kind.text_len() > SURE_TEXT => SURE_TEXT,
            _ => self.longest_text(),
        };
        let Text { what, len, .. } = texts.iter().find(|text| text.len > limit)?;
        let host = self.host.clone();
        Some(match what {
            Part::Command => Invalid::LongCommand {
                host,
                length: *len,
                limit,
            }
            .into(),
            _ => Error::Configuration {
                host,
                problem: format!("{what} has {len} bytes, and this server takes at most {limit}"),
            },
        })
    }

    /// Returns the most bytes of text that the server is known to accept in one request.
    fn longest_text(&self) -> usize {
        let facts = self.learner.as_ref().map(Learner::facts);
        let refused = facts.and_then(|facts| facts.lessons.number(Lesson::TextRefused));
        let limit = refused.and_then(|refused| usize::try_from(refused).ok()?.checked_sub(1));
        limit.unwrap_or(LONGEST_TEXT)
    }

    /// Notes that the server has answered a request longer than all servers are sure to accept.
    fn learn_of_taken_text(&self, length: usize) {
        if let Some(learner) = self.learner.as_ref().filter(|_| !self.proto.is_sshd())
            && let Ok(length) = u32::try_from(length)
            && learner.facts().lessons.number(Lesson::TextTaken) < Some(length)
        {
            learner.learn(Lesson::TextTaken, length);
        }
    }

    /// Remembers that the server ended the connection instead of answering a long request, and returns the length.
    fn learn_of_refused_text(&self, error: &Error) -> Option<usize> {
        /// A server that was silent for longer may have been restarted.
        const JUST_NOW: Duration = Duration::from_secs(10);
        let is_end = error.is_hang_up() || error.is_reset();
        if !is_end || self.proto.is_sshd() || self.heard.elapsed() > JUST_NOW {
            return None;
        }
        let length = self.ports.values().filter_map(|port| port.long_text).max()?;
        if let (Some(learner), Ok(number)) = (&self.learner, u32::try_from(length)) {
            learner.learn(Lesson::TextRefused, number);
        }
        Some(length)
    }

    /// Returns why an operation is refused with an unverified server (sshconnect.c, `check_host_key`), or `None` if it
    /// is allowed. ssh's own `-W`, and therefore a jump host, fails through ExitOnForwardFailure, which it implies.
    fn objection(&self, op: &Op) -> Option<Error> {
        if !self.unverified {
            return None;
        }
        let host = self.host.clone();
        match op {
            Op::Open {
                kind: ChannelKind::Session,
                port,
                ..
            } if port.verified_only => Some(HostKeyError::ForwardingDisabled { host }.into()),
            Op::Begin {
                verified_only: true, ..
            } => Some(HostKeyError::ForwardingDisabled { host }.into()),
            Op::Open {
                kind: ChannelKind::DirectTcpip { .. } | ChannelKind::DirectStreamlocal { .. },
                ..
            }
            | Op::Global {
                request: GlobalRequest::TcpipForward { .. } | GlobalRequest::StreamlocalForward { .. },
                ..
            } => Some(
                HostKeyError::Disabled {
                    host,
                    what: "Port forwarding",
                }
                .into(),
            ),
            _ => None,
        }
    }

    fn request(
        &mut self,
        id: ChannelId,
        port: &mut Port,
        request: &ChannelRequest,
        reply: Option<oneshot::Sender<bool>>,
    ) {
        // The session continues without it, as in ssh.
        if self.unverified && request.lends() {
            if let Some(reply) = reply {
                let _ = reply.send(false);
            }
            return;
        }
        if let (ChannelRequest::Pty { .. }, Some(interval)) = (request, port.terms.keystrokes) {
            self.keystrokes.insert(id, Keystrokes::new(interval));
        }
        if request.wants_reply() {
            if port.asked.is_none() && port.replies.is_empty() && self.proto.is_authenticated() {
                port.asked = Some(self.rtt_probe());
            }
            port.replies.push_back(match (reply, request) {
                (Some(reply), _) => Waiter::Caller(reply),
                (None, ChannelRequest::Pty { .. }) => Waiter::Terminal,
                (None, _) => Waiter::Nobody,
            });
        }
        port.starts |= request.starts();
        let length = request.text_len();
        if length > SURE_TEXT {
            port.long_text = port.long_text.max(Some(length));
        }
        self.proto.request(id, request);
    }

    // Events.

    fn dispatch_events(&mut self) -> bool {
        let mut progress = false;
        let mut answered = Vec::new();
        // Merge consecutive crumbs of a stream for its reader: queueing a piece costs more than copying bytes.
        let mut crumbs: Option<(ChannelId, Stream, BytesMut)> = None;
        while let Some(event) = self.proto.poll_event() {
            progress = true;
            if let Event::Channel(ChannelEvent::Data { id, stream, data }) = &event
                && data.len() < CRUMB
            {
                match &mut crumbs {
                    Some((of, from, bytes)) if of == id && from == stream => bytes.extend_from_slice(data),
                    _ => {
                        self.deliver_crumbs(crumbs.take());
                        crumbs = Some((*id, *stream, BytesMut::from(&data[..])));
                    }
                }
                continue;
            }
            self.deliver_crumbs(crumbs.take());
            match event {
                Event::Channel(event) => self.handle_channel_event(event),
                Event::Pong => {
                    let pinged = self.pinged.take();
                    self.time(pinged);
                    answered.append(&mut self.pings);
                }
                Event::EarlyCommand => self.learn_of_sshd(),
                question => self.questions.push_back(question),
            }
        }
        self.deliver_crumbs(crumbs.take());
        // Before the pings' senders are told. Window credit that the server waited for gives a measurement, too.
        self.metrics
            .set_rtt(self.proto.rtt(), self.proto.rtt_measurements());
        for ping in answered {
            let _ = ping.send(());
        }
        progress
    }

    /// Replies with the room in a channel's window; with `waits`, as soon as there is some. If the channel is closed,
    /// `reply` is dropped.
    fn write(&mut self, id: ChannelId, data: Bytes) {
        self.note_traffic(id);
        let data = self.pace_typing(id, data);
        if !data.is_empty() {
            self.proto.write(id, data);
        }
        if self.proto.room(id) == 0 && self.full.insert(id) {
            self.keepalive.change_waiting(true, Instant::now());
        }
    }

    fn ask_room(&mut self, channel: &ChannelShared, waits: bool, reply: oneshot::Sender<usize>) {
        if let Some(id) = channel.id().filter(|id| self.ports.contains_key(id)) {
            match self.proto.room(id) {
                0 if waits => self.rooms.push((id, reply)),
                room => drop(reply.send(room)),
            }
        }
    }

    /// Tells waiters about room in their windows, and removes those that no longer wait.
    fn tell_of_room(&mut self) {
        let (ports, proto) = (&self.ports, &self.proto);
        for _ in self
            .full
            .extract_if(|id| !ports.contains_key(id) || proto.room(*id) > 0)
        {
            self.keepalive.change_waiting(false, Instant::now());
        }
        for (id, reply) in self.rooms.extract_if(.., |(id, reply)| {
            reply.is_closed() || !ports.contains_key(id) || proto.room(*id) > 0
        }) {
            if ports.contains_key(&id) {
                let _ = reply.send(proto.room(id));
            }
        }
    }

    fn handle_channel_event(&mut self, event: ChannelEvent) {
        match event {
            ChannelEvent::Data { id, stream, data } => self.deliver(id, stream, data),
            ChannelEvent::Sent { id, len } => {
                if let Some(port) = self.ports.get(&id) {
                    port.shared.note_sent(len);
                }
            }
            ChannelEvent::Opened(id) => {
                let Some(port) = self.ports.get_mut(&id) else {
                    return;
                };
                if let Some(started) = port.started.take_if(|_| !port.starts) {
                    let _ = started.send(Ok(()));
                }
                let asked = port.asked.take();
                self.time(asked);
            }
            ChannelEvent::OpenFailed {
                id,
                reason,
                description,
            } => {
                if let Some(mut port) = self.ports.remove(&id) {
                    let error = self.refusal(&port.what, reason.0, description);
                    if let Some(lease) = &mut port.lease {
                        lease.set_end(End::NeverOpened);
                    }
                    end_port(&mut port, &error, Execution::DidNotStart);
                }
            }
            ChannelEvent::Reply { id, success, started } => self.handle_reply(id, success, started),
            ChannelEvent::Eof(id) => {
                if let Some(port) = self.ports.get_mut(&id) {
                    port.shared.complete();
                    port.end_streams();
                }
            }
            ChannelEvent::ExitStatus { id, status } => {
                if let Some(port) = self.ports.get_mut(&id) {
                    port.exits(ExitStatus::Exited(status));
                }
            }
            ChannelEvent::ExitSignal {
                id,
                signal,
                core_dumped,
                message,
            } => {
                tracing::debug!(%signal, %message, "the command was ended by a signal");
                if let Some(port) = self.ports.get_mut(&id) {
                    port.exits(ExitStatus::Signaled { signal, core_dumped });
                }
            }
            ChannelEvent::Closed(id) => {
                self.ready.take_if(|ready| *ready == id);
                self.closing.remove(&id);
                if let Some(mut port) = self.ports.remove(&id) {
                    if let Some(lease) = &mut port.lease {
                        lease.set_end(End::Closed);
                    }
                    port.shared.complete();
                    port.shared.close();
                    if let Some(started) = port.started.take() {
                        // Closed before its answer: the command may have started. It has if the server reported its
                        // exit.
                        let error = self.refusal(&port.what, 0, "the channel was closed");
                        let _ = started.send(match port.exit {
                            ExitStatus::Unknown => {
                                Err(error.with_execution(execution(self.proto.start_state(id))))
                            }
                            _ => Ok(()),
                        });
                    }
                    if let Some(done) = port.done.take() {
                        let _ = done.send(Ok(port.exit.clone()));
                    }
                }
            }
            ChannelEvent::Incoming { id, kind } => {
                self.offered.insert(id);
                let is_refused = self.draining || self.unverified;
                if is_refused || self.offers.send(Box::new(Offer::Channel { id, kind })).is_err() {
                    self.reject(id);
                }
            }
            ChannelEvent::GlobalReply { id, success, data } => {
                if let Some(reply) = self.globals.remove(&id) {
                    let _ = reply.send(Ok(success.then_some(data)));
                }
            }
            ChannelEvent::HostKeys(keys) => {
                self.learn_of_sshd();
                self.learns_host_keys = self.offers.send(Box::new(Offer::HostKeys(keys))).is_ok();
            }
        }
    }

    /// Remembers that the server is sshd, if it has shown that.
    fn learn_of_sshd(&self) {
        if let Some(learner) = self.learner.as_ref().filter(|_| self.proto.is_sshd()) {
            learner.learn(Lesson::Sshd, 1);
        }
    }

    fn deliver_crumbs(&mut self, crumbs: Option<(ChannelId, Stream, BytesMut)>) {
        if let Some((id, stream, bytes)) = crumbs {
            self.deliver(id, stream, bytes.freeze());
        }
    }

    fn deliver(&mut self, id: ChannelId, stream: Stream, data: Bytes) {
        self.note_traffic(id);
        let len = data.len();
        let queue = self.ports.get(&id).and_then(|port| {
            // Counted before the channel's end is reported, whether or not it has been read by then.
            port.shared.note_received(len);
            match stream {
                Stream::Stderr if !port.shared.merges_stderr() => port.stderr.as_ref(),
                Stream::Data | Stream::Stderr => port.stdout.as_ref(),
            }
        });
        let taken = queue.is_some_and(|queue| queue.send_gathered(data).is_ok());
        // Nothing reads this stream: the server must not wait for its window.
        if !taken {
            self.proto.consume(id, len, Instant::now());
        }
    }

    fn handle_reply(&mut self, id: ChannelId, success: bool, started: bool) {
        let Some(port) = self.ports.get_mut(&id) else {
            return;
        };
        match port.replies.pop_front() {
            Some(Waiter::Caller(reply)) => {
                let _ = reply.send(success);
            }
            Some(Waiter::Terminal) if !success => port.shared.refuse_terminal(),
            _ => {}
        }
        let asked = port.asked.take();
        self.time_at_most(asked);
        let Some(port) = self.ports.get_mut(&id).filter(|_| started) else {
            return;
        };
        let what = port.what.clone();
        if let Some(length) = port.long_text.take() {
            self.learn_of_taken_text(length);
        }
        let Some(port) = self.ports.get_mut(&id) else {
            return;
        };
        if let Some(tell) = port.started.take() {
            let _ = tell.send(if success {
                Ok(())
            } else {
                Err(self.refusal(&what, 0, ""))
            });
        }
        if !success {
            // OpenSSH's client also gives up the session; sshd would leave the channel open.
            let error = self.refusal(&what, 0, "");
            if let Some(mut port) = self.ports.remove(&id) {
                end_port(&mut port, &error, Execution::DidNotStart);
            }
            self.proto.close(id);
        }
    }

    // Ends.

    fn refusal(&self, what: &ServerRequest, reason: u32, description: impl Into<Printable>) -> Error {
        Error::Refused {
            host: self.host.clone(),
            what: what.clone(),
            reason,
            description: description.into(),
        }
    }

    fn closed_error(&self, why: impl Into<String>) -> Error {
        Error::Closed {
            host: self.host.clone(),
            why: why.into(),
        }
    }

    fn loss(&self, source: io::Error) -> Error {
        let reset = match source.kind() {
            // Reset instead of closed: the server had not read everything that was sent.
            io::ErrorKind::ConnectionReset => Some(true),
            // The server closed it, or a proxy command ended, before reading what was written.
            io::ErrorKind::BrokenPipe => Some(false),
            _ => None,
        };
        if let (Some(reset), None) = (reset, self.proto.server_id()) {
            return Error::ClosedByPeer {
                host: self.host.clone(),
                during: self.stage(),
                reset,
            };
        }
        Error::network(format!("the connection to {} was lost", self.host), source)
    }

    /// Sends the server the reason if the protocol allows, and returns the error with the host's name.
    fn protocol_error(&mut self, cx: &mut Context<'_>, source: trunkline_proto::Error) -> Error {
        if let Some(reason) = source.wants_disconnect() {
            self.say_goodbye(cx, reason, &source.to_string());
        }
        Error::Protocol {
            host: self.host.clone(),
            source,
        }
    }

    /// Sends SSH_MSG_DISCONNECT if the socket takes it now.
    fn say_goodbye(&mut self, cx: &mut Context<'_>, reason: DisconnectReason, why: &str) {
        self.proto.disconnect(reason, why);
        if let Ok(outgoing) = self.proto.poll_transmit(Instant::now()) {
            let _ = Pin::new(&mut self.io).poll_write(cx, outgoing);
        }
        let _ = Pin::new(&mut self.io).poll_shutdown(cx);
    }

    /// Returns the stage of the log-in; `None` once it is done.
    pub(crate) fn stage(&self) -> Option<LogInStage> {
        match (
            self.proto.server_id(),
            self.proto.host_key(),
            self.proto.is_authenticated(),
        ) {
            (None, ..) => Some(LogInStage::Identification),
            (_, None, _) => Some(LogInStage::KeyExchange),
            (_, _, false) => Some(LogInStage::Authentication),
            _ => None,
        }
    }
}

/// The length of text that every known server accepts in one request; dropbear's 9,000 bytes are the lowest limit
/// (MAX_CMD_LEN in its sysoptions.h). For a longer one a server ends the whole connection, with everything on it.
pub(crate) const SURE_TEXT: usize = 8 * 1024;

/// The room for text in OpenSSH's PACKET_MAX_SIZE. A packet also has a length, up to 255 bytes of padding and some
/// fields, and incompressible text grows by 6 bytes in 16 KiB.
const LONGEST_TEXT: usize = 255 * 1024;

/// The part of an operation that has text for the server.
#[derive(Debug, Clone, Copy)]
enum Part {
    Target,
    Command,
    Variable,
    Terminal,
    Request,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Target => "the target",
            Self::Command => "the command",
            Self::Variable => "a variable of its environment",
            Self::Terminal => "the terminal's type and modes",
            Self::Request => "the request",
        })
    }
}

/// The text that goes to a server with an operation.
struct Text {
    what: Part,
    len: usize,
    is_malformed: bool,
}

impl Text {
    fn from_request(request: &ChannelRequest) -> Self {
        let what = match request {
            ChannelRequest::Exec(_) => Part::Command,
            ChannelRequest::Env { .. } => Part::Variable,
            ChannelRequest::Pty { .. } => Part::Terminal,
            _ => Part::Request,
        };
        Self {
            what,
            len: request.text_len(),
            is_malformed: request.is_malformed(),
        }
    }
}

/// Returns whether a command would not notice that its channel is closed. sshd closes its pipes, which shows only when
/// the command reads or writes. A terminal hangs up by itself, and sshd sends subsystems no signals.
fn runs_without_terminal(requests: &[ChannelRequest]) -> bool {
    let runs = |request: &ChannelRequest| matches!(request, ChannelRequest::Exec(_) | ChannelRequest::Shell);
    let terminal = |request: &ChannelRequest| matches!(request, ChannelRequest::Pty { .. });
    requests.iter().any(runs) && !requests.iter().any(terminal)
}

impl Port {
    fn end_streams(&mut self) {
        self.stdout = None;
        self.stderr = None;
    }
}

#[cfg(test)]
mod tests {
    use trunkline_proto::Started;

    use super::*;

    #[test]
    fn an_unsent_command_did_not_start() {
        assert_eq!(execution(Started::No), Execution::DidNotStart);
        assert_eq!(execution(Started::Maybe), Execution::MayHaveStarted);
    }
}
