//! The loop that owns a connection: it moves bytes between the socket and the protocol, operations from handles into
//! it, and events out of it to the channels' consumers. One task, no lock.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Sleep;
use tokio_util::io::poll_read_buf;
use trunkline_proto::{
    AuthTurn, ChannelEvent, ChannelId, ChannelKind, DisconnectReason, Event, GlobalRequest, GlobalRequestId,
    IncomingKind, KeyboardPrompt, OpenFailure, Printable, SessionRequest, Stream,
};

use crate::connection::channel::{
    Asked, Awaited, ExitStatus, GlobalReply, Op, Port, end_port, execution, refuse,
};
use crate::connection::lease::{End, Lease};
use crate::connection::socket::Socket;
use crate::error::{Error, Execution};
use crate::host_key::HostKeyError;
use crate::metrics::Metrics;
use crate::queue;

/// Room for one read: what fills in one go is a whole batch of sshd's packets.
const READ_LARGE: usize = 256 * 1024;
/// Room for one read on a connection that carries little.
const READ_SMALL: usize = 8 * 1024;
/// Room for the first read after a silence; one of sshd's answers to a command fits.
const READ_FIRST: usize = 2 * 1024;
/// A connection that has been silent for so long gives its buffers back.
const IDLE_RELEASE: Duration = Duration::from_secs(1);
/// The stage of a handshake before the server has said who it is.
pub(crate) const IDENTIFICATION: &str = "the exchange of identifications";
/// Data smaller than this is gathered before it is queued.
const CRUMB: usize = 1024;
/// An answer that came with no more than this was not held up by data in front of it.
const QUIET: u64 = 4 * 1024;
/// Turns of the loop before other tasks of the thread get theirs.
const TURNS: usize = 32;

/// What the handshake has to decide; see [`crate::connection::handshake`].
#[derive(Debug)]
pub(crate) enum Question {
    HostKey(Bytes),
    Authenticate(AuthTurn),
    PublicKeyAccepted,
    PasswordExpired {
        prompt: String,
    },
    Questions {
        name: String,
        instruction: String,
        prompts: Vec<KeyboardPrompt>,
    },
    Banner(String),
    Authenticated,
}

/// What the server offers without being asked for it now. Goes through its queue in a box: a queue has room for 32 from
/// the start, and most connections never see an offer.
#[derive(Debug)]
pub(crate) enum Offer {
    Channel { id: ChannelId, kind: IncomingKind },
    HostKeys(Bytes),
}

/// ServerAliveInterval and ServerAliveCountMax.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeepAlive {
    pub(crate) interval: Duration,
    pub(crate) count_max: u32,
}

pub(crate) struct Driver {
    host: String,
    io: Box<dyn Socket>,
    pub(crate) proto: trunkline_proto::Connection,
    ops: queue::Receiver<Op>,
    ports: HashMap<ChannelId, Box<Port>>,
    /// What is left of the places of channels that this side has closed, until the server has, too.
    closing: HashMap<ChannelId, Lease>,
    globals: HashMap<GlobalRequestId, oneshot::Sender<GlobalReply>>,
    pings: Vec<oneshot::Sender<()>>,
    offers: mpsc::UnboundedSender<Box<Offer>>,
    questions: VecDeque<Question>,
    /// Channels that the server offered and nobody has answered for yet.
    offered: HashSet<ChannelId>,
    draining: bool,
    /// The server's list of its host keys is looked at, and its proof awaited.
    learns_host_keys: bool,
    keepalive: Option<KeepAlive>,
    unanswered: u32,
    last_received: Instant,
    /// Bytes received.
    received: u64,
    /// The ping whose answer is timed.
    pinged: Option<Asked>,
    last_activity: Instant,
    released: bool,
    read_size: usize,
    timer: Pin<Box<Sleep>>,
    metrics: Arc<Metrics>,
    /// Operations are only taken from their queue once the server is known to be the right one: before that, another
    /// attempt could be made with the queue as it is.
    takes_ops: bool,
    /// The host key was not verified: nothing that leans on who the server is leaves here, whoever asks for it, and
    /// nothing that the server opens is taken.
    unverified: bool,
}

impl Driver {
    pub(crate) fn new(
        host: String,
        io: Box<dyn Socket>,
        proto: trunkline_proto::Connection,
        ops: queue::Receiver<Op>,
        offers: mpsc::UnboundedSender<Box<Offer>>,
        keepalive: Option<KeepAlive>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let now = Instant::now();
        Self {
            host,
            io,
            proto,
            ops,
            ports: HashMap::new(),
            closing: HashMap::new(),
            globals: HashMap::new(),
            pings: Vec::new(),
            offers,
            questions: VecDeque::new(),
            offered: HashSet::new(),
            draining: false,
            learns_host_keys: false,
            keepalive,
            unanswered: 0,
            last_received: now,
            received: 0,
            pinged: None,
            last_activity: now,
            released: false,
            read_size: READ_SMALL,
            timer: Box::pin(tokio::time::sleep_until(now.into())),
            metrics,
            takes_ops: false,
            unverified: false,
        }
    }

    /// Takes operations from now on; of a server that was not verified, sessions only.
    pub(crate) fn take_ops(&mut self, unverified: bool) {
        self.takes_ops = true;
        self.unverified = unverified;
    }

    /// Gives the untouched queue back. Once operations were taken from it, everyone who waits is told `error` instead.
    pub(crate) fn into_ops(mut self, error: &Error) -> Option<queue::Receiver<Op>> {
        if self.takes_ops {
            self.finish(error);
            return None;
        }
        Some(self.ops)
    }

    /// Drives the connection until the handshake has something to decide.
    pub(crate) async fn question(&mut self) -> Result<Question, Error> {
        let question = std::future::poll_fn(|cx| self.poll(cx, true)).await?;
        // Nobody may want the connection any more by the time that it has something to ask.
        question.ok_or_else(|| Error::Closed {
            host: self.host.clone(),
            why: "all work on it was done".into(),
        })
    }

    /// Drives the authenticated connection to its end, and tells everyone who waits.
    pub(crate) async fn run(mut self: Box<Self>) -> Error {
        let end = match std::future::poll_fn(|cx| self.poll(cx, false)).await {
            Ok(_) => Error::Closed {
                host: self.host.clone(),
                why: "all work on it was done".into(),
            },
            Err(error) => error,
        };
        self.finish(&end);
        end
    }

    /// Ends every channel and request with `error`; those whose command may have begun are told so.
    fn finish(&mut self, error: &Error) {
        self.ops.close();
        while let Some(op) = self.ops.try_recv() {
            refuse(op, error);
        }
        for (id, mut port) in self.ports.drain() {
            let execution = execution(self.proto.started(id));
            end_port(&mut port, error, execution);
        }
        self.closing.clear();
        self.globals.clear();
        self.pings.clear();
    }

    // The loop.

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        stop_at_question: bool,
    ) -> Poll<Result<Option<Question>, Error>> {
        for _ in 0..TURNS {
            // Each is answered before more is read: a server may say banners without end.
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
                Poll::Pending => return Ok(progress),
                // Every handle is gone: nobody can ask for anything any more.
                Poll::Ready(None) => {
                    self.learns_host_keys = false;
                    progress |= !std::mem::replace(&mut self.draining, true);
                    return Ok(progress);
                }
                Poll::Ready(Some(Op::Disconnect { why })) => {
                    self.say_goodbye(cx, DisconnectReason::BY_APPLICATION, &why);
                    return Err(Error::Closed {
                        host: self.host.clone(),
                        why,
                    });
                }
                Poll::Ready(Some(op)) => self.handle_op(op),
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
                Poll::Pending => return Ok(progress),
                Poll::Ready(Ok(0)) => return Err(self.lost(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(n)) => {
                    outgoing.advance(n);
                    self.metrics.bytes_sent.add(n as u64);
                    progress = true;
                }
                Poll::Ready(Err(error)) => {
                    self.hear_last_words(cx)?;
                    return Err(self.lost(error));
                }
            }
            self.last_activity = now;
            self.released = false;
        }
    }

    /// Takes what came before the server closed the connection: its last words are worth more than "broken pipe", and a refusal
    /// among them says that nothing was started.
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
            // Waiting takes no memory: what ends a silence comes over the stack.
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
                });
            }
            Poll::Ready(Ok(n)) => n,
            Poll::Ready(Err(error)) => return Err(self.lost(error)),
        };
        self.read_size = if n == room { READ_LARGE } else { self.read_size };
        let now = Instant::now();
        self.last_received = now;
        self.received += n as u64;
        self.last_activity = now;
        self.unanswered = 0;
        self.released = false;
        self.metrics.received(n as u64, now);
        let handled = self.proto.handle_received(now);
        // Credit that the server waited for has told a round trip, too.
        self.metrics.set_rtt(self.proto.rtt());
        if self.proto.take_starved() {
            self.io.asked();
        }
        match handled {
            Ok(()) => Ok(true),
            Err(error) => {
                // What came before the error still counts: an exit status in front of a DISCONNECT, say.
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
        let keepalive = self
            .keepalive
            .filter(|_| self.proto.is_authenticated())
            .map(|k| self.keepalive_at(k));
        let release = (!self.released).then(|| self.last_activity + IDLE_RELEASE);
        [self.proto.poll_timeout(), keepalive, release]
            .into_iter()
            .flatten()
            .min()
    }

    /// The next probe is due an interval after the last sign of life, or after the last probe.
    fn keepalive_at(&self, keepalive: KeepAlive) -> Instant {
        self.last_received + keepalive.interval * (self.unanswered + 1)
    }

    fn handle_timeout(&mut self, cx: &mut Context<'_>, now: Instant) -> Result<(), Error> {
        if let Err(error) = self.proto.handle_timeout(now) {
            return Err(self.protocol_error(cx, error));
        }
        if let Some(keepalive) = self.keepalive.filter(|_| self.proto.is_authenticated())
            && self.keepalive_at(keepalive) <= now
        {
            if self.unanswered >= keepalive.count_max {
                return Err(Error::Timeout {
                    doing: format!(
                        "keeping the connection to {} alive (ServerAliveInterval)",
                        self.host
                    ),
                    after: now - self.last_received,
                });
            }
            self.unanswered += 1;
            self.ping();
        }
        if !self.released && self.last_activity + IDLE_RELEASE <= now {
            self.proto.release_buffers();
            self.read_size = READ_SMALL;
            self.released = true;
        }
        Ok(())
    }

    // Round-trip times.

    fn asked(&self) -> Asked {
        Asked {
            at: Instant::now(),
            received: self.received,
        }
    }

    fn ping(&mut self) {
        let asked = self.asked();
        self.pinged.get_or_insert(asked);
        self.proto.ping();
    }

    /// The answer has come. It tells the round-trip time when it did not come behind other data.
    fn time(&mut self, asked: Option<Asked>) {
        if let Some(asked) = asked.filter(|asked| self.received - asked.received <= QUIET) {
            self.proto.answered_after(asked.at.elapsed(), Instant::now());
        }
        self.metrics.set_rtt(self.proto.rtt());
    }

    // Operations.

    fn handle_op(&mut self, op: Op) {
        if self.unverified
            && let Some(error) = self.disabled(&op)
        {
            // Nothing will begin in a spare session, and whoever reads from it is to see its end.
            if let Op::Begin { channel, .. } = &op
                && let Some((id, mut port)) = channel.id().and_then(|id| self.ports.remove_entry(&id))
            {
                end_port(&mut port, &error, Execution::DidNotStart);
                self.proto.close(id);
            }
            return refuse(op, &error);
        }
        if !matches!(op, Op::Consumed { .. } | Op::Close { .. } | Op::Drain) {
            self.io.asked();
        }
        match op {
            Op::Open {
                kind,
                requests,
                mut port,
            } => {
                let why = match () {
                    () if self.draining => Some("it is being closed"),
                    () if !port.shared.begins() => Some("it was given up"),
                    () => None,
                };
                if let Some(why) = why.map(str::to_owned) {
                    if let Some(lease) = &mut port.lease {
                        lease.ends(End::NeverOpened);
                    }
                    let host = self.host.clone();
                    end_port(&mut port, &Error::Closed { host, why }, Execution::DidNotStart);
                    return;
                }
                let id = self.proto.open(&kind);
                port.shared.set_id(id);
                // Before that, the answer waits for PAM too.
                port.asked = self.proto.is_authenticated().then(|| self.asked());
                self.metrics.channels_opened.add(1);
                port.hangs_up = runs_without_terminal(&requests);
                for request in requests {
                    self.request(id, &mut port, &request, None);
                }
                self.ports.insert(id, port);
            }
            Op::Begin {
                channel,
                requests,
                what,
                started,
                lease,
                verified_only: _,
            } => {
                let Some((id, mut port)) = channel.id().and_then(|id| self.ports.remove_entry(&id)) else {
                    let gone = Error::Closed {
                        host: self.host.clone(),
                        why: "the server closed it".into(),
                    };
                    let _ = started.send(Err(gone));
                    return;
                };
                port.what = what;
                port.lease = lease;
                if requests.iter().any(SessionRequest::starts) {
                    port.started = Some(started);
                } else {
                    // It is open already, and nothing is to be confirmed.
                    let _ = started.send(Ok(()));
                }
                port.hangs_up = runs_without_terminal(&requests);
                for request in requests {
                    self.request(id, &mut port, &request, None);
                }
                self.ports.insert(id, port);
            }
            Op::Accept { mut port } => {
                if let Some(id) = port.shared.id().filter(|id| self.offered.remove(id)) {
                    self.proto.accept(id);
                    if let Some(started) = port.started.take() {
                        let _ = started.send(Ok(()));
                    }
                    self.ports.insert(id, port);
                }
            }
            Op::Reject { id } => {
                if self.offered.remove(&id) {
                    self.proto
                        .reject(id, OpenFailure::CONNECT_FAILED, "nobody listens for this here");
                }
            }
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
                Some(id) if self.ports.contains_key(&id) => self.proto.write(id, data),
                _ => channel.sent(data.len()),
            },
            Op::Eof { channel } => {
                if let Some(id) = channel.id() {
                    self.proto.eof(id);
                }
            }
            Op::Consumed { channel, len } => {
                if let Some(id) = channel.id() {
                    self.proto.consumed(id, len, Instant::now());
                }
            }
            Op::Close { channel } => {
                if let Some(id) = channel.id() {
                    if let Some(mut port) = self.ports.remove(&id) {
                        let why = "the session was closed".to_owned();
                        let execution = execution(self.proto.started(id));
                        end_port(
                            &mut port,
                            &Error::Closed {
                                host: self.host.clone(),
                                why,
                            },
                            execution,
                        );
                        let runs = execution != Execution::DidNotStart && port.exit == ExitStatus::Unknown;
                        if port.hangs_up && runs && !channel.leaves_running() {
                            self.proto.request(id, &SessionRequest::Signal("HUP".into()));
                        }
                        if let Some(mut lease) = port.lease.take() {
                            lease.leave();
                            self.closing.insert(id, lease);
                        }
                    }
                    self.proto.close(id);
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
            Op::Rekey => self.proto.rekey(),
            Op::HostKeysLearned => self.learns_host_keys = false,
            Op::Drain => self.draining = true,
            Op::Disconnect { .. } => unreachable!("handled where the socket is at hand"),
        }
    }

    /// Why an operation is not done with a server that was not verified (sshconnect.c, `check_host_key`); `None` for
    /// what may be done. ssh's own `-W`, and with it a jump host, fails through ExitOnForwardFailure, which it implies.
    fn disabled(&self, op: &Op) -> Option<Error> {
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
        request: &SessionRequest,
        reply: Option<oneshot::Sender<bool>>,
    ) {
        // The session goes on without, as ssh's does.
        if self.unverified && request.lends() {
            if let Some(reply) = reply {
                let _ = reply.send(false);
            }
            return;
        }
        if request.wants_reply() {
            port.replies.push_back(match (reply, request) {
                (Some(reply), _) => Awaited::Asked(reply),
                (None, SessionRequest::Pty { .. }) => Awaited::Terminal,
                (None, _) => Awaited::Unasked,
            });
        }
        port.starts |= request.starts();
        self.proto.request(id, request);
    }

    // Events.

    fn dispatch_events(&mut self) -> bool {
        let mut progress = false;
        // Crumbs of data that came in a row go to their reader in one piece: a piece in a queue costs more than a byte.
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
            let question = match event {
                Event::Channel(event) => {
                    self.handle_channel_event(event);
                    continue;
                }
                Event::Pong => {
                    let pinged = self.pinged.take();
                    self.time(pinged);
                    self.pings.drain(..).for_each(|ping| {
                        let _ = ping.send(());
                    });
                    continue;
                }
                Event::HostKey(key) => Question::HostKey(key),
                Event::Authenticate(turn) => Question::Authenticate(turn),
                Event::PublicKeyAccepted => Question::PublicKeyAccepted,
                Event::PasswordExpired { prompt } => Question::PasswordExpired { prompt },
                Event::Questions {
                    name,
                    instruction,
                    prompts,
                } => Question::Questions {
                    name,
                    instruction,
                    prompts,
                },
                Event::Banner(text) => Question::Banner(text),
                Event::Authenticated => Question::Authenticated,
            };
            self.questions.push_back(question);
        }
        self.deliver_crumbs(crumbs.take());
        progress
    }

    fn handle_channel_event(&mut self, event: ChannelEvent) {
        match event {
            ChannelEvent::Data { id, stream, data } => self.deliver(id, stream, data),
            ChannelEvent::Sent { id, len } => {
                if let Some(port) = self.ports.get(&id) {
                    port.shared.sent(len);
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
                    let error = self.refused(&port.what, reason.0, description);
                    if let Some(lease) = &mut port.lease {
                        lease.ends(End::NeverOpened);
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
                    port.exit = ExitStatus::Exited(status);
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
                    port.exit = ExitStatus::Signaled { signal, core_dumped };
                }
            }
            ChannelEvent::Closed(id) => {
                self.closing.remove(&id);
                if let Some(mut port) = self.ports.remove(&id) {
                    if let Some(lease) = &mut port.lease {
                        lease.ends(End::Closed);
                    }
                    port.shared.complete();
                    port.shared.close();
                    if let Some(started) = port.started.take() {
                        // Closed before its answer: what was asked for may have begun all the same. It has where the
                        // server says how it ended.
                        let error = self.refused(&port.what, 0, "the channel was closed");
                        let _ = started.send(match port.exit {
                            ExitStatus::Unknown => {
                                Err(error.with_execution(execution(self.proto.started(id))))
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
                if self.draining || self.unverified {
                    self.handle_op(Op::Reject { id });
                    return;
                }
                if self.offers.send(Box::new(Offer::Channel { id, kind })).is_err() {
                    self.handle_op(Op::Reject { id });
                }
            }
            ChannelEvent::GlobalReply { id, success, data } => {
                if let Some(reply) = self.globals.remove(&id) {
                    let _ = reply.send(Ok(success.then_some(data)));
                }
            }
            ChannelEvent::HostKeys(keys) => {
                self.learns_host_keys = self.offers.send(Box::new(Offer::HostKeys(keys))).is_ok();
            }
        }
    }

    fn deliver_crumbs(&mut self, crumbs: Option<(ChannelId, Stream, BytesMut)>) {
        if let Some((id, stream, bytes)) = crumbs {
            self.deliver(id, stream, bytes.freeze());
        }
    }

    fn deliver(&mut self, id: ChannelId, stream: Stream, data: Bytes) {
        let len = data.len();
        let queue = self.ports.get(&id).and_then(|port| match stream {
            Stream::Data => port.stdout.as_ref(),
            Stream::Stderr => port.stderr.as_ref(),
        });
        let taken = queue.is_some_and(|queue| queue.send_gathered(data).is_ok());
        // Nobody reads this stream: the server must not wait for its window.
        if !taken {
            self.proto.consumed(id, len, Instant::now());
        }
    }

    fn handle_reply(&mut self, id: ChannelId, success: bool, started: bool) {
        let Some(port) = self.ports.get_mut(&id) else {
            return;
        };
        match port.replies.pop_front() {
            Some(Awaited::Asked(reply)) => {
                let _ = reply.send(success);
            }
            Some(Awaited::Terminal) if !success => port.shared.refuse_terminal(),
            _ => {}
        }
        if !started {
            return;
        }
        let what = port.what.clone();
        if let Some(tell) = port.started.take() {
            let _ = tell.send(if success {
                Ok(())
            } else {
                Err(self.refused(&what, 0, ""))
            });
        }
        if !success {
            // OpenSSH's client gives up the session as well; sshd would leave the channel open.
            let error = self.refused(&what, 0, "");
            if let Some(mut port) = self.ports.remove(&id) {
                end_port(&mut port, &error, Execution::DidNotStart);
            }
            self.proto.close(id);
        }
    }

    // Ends.

    fn refused(&self, what: &str, reason: u32, description: impl Into<Printable>) -> Error {
        Error::Refused {
            host: self.host.clone(),
            what: what.to_owned(),
            reason,
            description: description.into(),
        }
    }

    fn lost(&self, source: io::Error) -> Error {
        // A reset instead of a close, because the server had not read all that was sent to it.
        let reset = matches!(
            source.kind(),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
        );
        if reset && self.proto.server_id().is_none() {
            return Error::ClosedByPeer {
                host: self.host.clone(),
                during: self.stage(),
            };
        }
        Error::network(format!("the connection to {} was lost", self.host), source)
    }

    /// Tells the server why, as far as it can be told, and names the host.
    fn protocol_error(&mut self, cx: &mut Context<'_>, source: trunkline_proto::Error) -> Error {
        if let Some(reason) = source.wants_disconnect() {
            self.say_goodbye(cx, reason, &source.to_string());
        }
        Error::Protocol {
            host: self.host.clone(),
            source,
        }
    }

    /// Says SSH_MSG_DISCONNECT if the socket takes it now.
    fn say_goodbye(&mut self, cx: &mut Context<'_>, reason: DisconnectReason, why: &str) {
        self.proto.disconnect(reason, why);
        if let Ok(outgoing) = self.proto.poll_transmit(Instant::now()) {
            let _ = Pin::new(&mut self.io).poll_write(cx, outgoing);
        }
        let _ = Pin::new(&mut self.io).poll_shutdown(cx);
    }

    fn stage(&self) -> &'static str {
        match (
            self.proto.server_id(),
            self.proto.host_key(),
            self.proto.is_authenticated(),
        ) {
            (None, ..) => IDENTIFICATION,
            (_, None, _) => "key exchange",
            (_, _, false) => "authentication",
            _ => "",
        }
    }
}

/// Whether a command would not notice that its channel is closed: sshd closes its pipes, which only shows to one that
/// reads or writes. A terminal hangs up by itself, and sshd gives subsystems no signals.
fn runs_without_terminal(requests: &[SessionRequest]) -> bool {
    let runs = |request: &SessionRequest| matches!(request, SessionRequest::Exec(_) | SessionRequest::Shell);
    let terminal = |request: &SessionRequest| matches!(request, SessionRequest::Pty { .. });
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
