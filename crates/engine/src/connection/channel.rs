//! The two ends of a channel: the consumer's and the driver's.
//!
//! Data passes through queues. Each incoming stream has an unbounded queue, which the server's window bounds. The
//! writer uses the driver's queue of operations, which [`ChannelWriter`] bounds.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;
use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use trunkline_proto::{ChannelId, ChannelRequest, Started};
use trunkline_request::ExitStatus;

use super::queue::{self, queue};
use crate::connection::lease::Lease;
use crate::connection::timing::idle::Idle;
use crate::error::{Error, Execution, ServerRequest};

/// The most bytes that a writer may have in the engine. Twice the driver's batch: while one batch is on its way to the
/// socket, the next can be filled.
const WRITE_LIMIT: usize = 512 * 1024;
/// The step in which a reader reports bytes to the driver: often enough that the window (at least 2 MiB, returned in
/// quarters) never starves, seldom enough to cost nothing.
const CREDIT_STEP: usize = 64 * 1024;

/// A request to the driver.
pub(crate) enum Op {
    Open {
        kind: trunkline_proto::ChannelKind,
        requests: Vec<ChannelRequest>,
        port: Box<Port>,
    },
    /// Starts something in a session that was opened ahead.
    Begin {
        channel: Arc<ChannelShared>,
        requests: Vec<ChannelRequest>,
        what: ServerRequest,
        started: oneshot::Sender<Result<(), Error>>,
        lease: Option<Lease>,
        verified_only: bool,
        terms: ChannelTerms,
    },
    Accept {
        port: Box<Port>,
    },
    Reject {
        id: ChannelId,
    },
    Request {
        channel: Arc<ChannelShared>,
        request: ChannelRequest,
        reply: Option<oneshot::Sender<bool>>,
    },
    Write {
        channel: Arc<ChannelShared>,
        data: Bytes,
    },
    /// Requests the room in the server's window; with `waits`, as soon as there is some.
    Room {
        channel: Arc<ChannelShared>,
        waits: bool,
        reply: oneshot::Sender<usize>,
    },
    Eof {
        channel: Arc<ChannelShared>,
    },
    Consumed {
        channel: Arc<ChannelShared>,
        len: usize,
    },
    Close {
        channel: Arc<ChannelShared>,
    },
    Global {
        request: trunkline_proto::GlobalRequest,
        reply: oneshot::Sender<GlobalReply>,
    },
    Ping {
        reply: oneshot::Sender<()>,
    },
    /// Retires this connection, whose server misbehaves.
    Doubt,
    /// One more request (`true`) or one less depends on the server's answers.
    Awaited(bool),
    /// Times an answer. The server owes none.
    Measure,
    Rekey,
    /// The server's list of host keys has been handled.
    HostKeysLearned,
    /// No more channels; ends when the last has closed and the host keys are learned.
    Drain,
    /// Ends now.
    Disconnect {
        why: String,
    },
}

impl Op {
    /// Returns whether the server may soon answer the operation.
    pub(crate) fn asks(&self) -> bool {
        !matches!(
            self,
            Self::Consumed { .. }
                | Self::Room { .. }
                | Self::Close { .. }
                | Self::Drain
                | Self::Doubt
                | Self::Awaited(_)
        )
    }

    /// Returns whether the server owes an answer to the operation.
    pub(crate) fn is_answered(&self) -> bool {
        match self {
            Self::Open { .. } | Self::Begin { .. } | Self::Global { .. } | Self::Ping { .. } => true,
            Self::Request { reply, .. } => reply.is_some(),
            _ => false,
        }
    }
}

pub(crate) type Ops = queue::Sender<Op>;

/// The outcome of a global request: the answer's body if the server granted it, `None` if it refused, an error if it
/// was never sent.
pub(crate) type GlobalReply = Result<Option<Bytes>, Error>;

/// The state that both ends of a channel see.
#[derive(Debug)]
pub(crate) struct ChannelShared {
    /// The protocol's number, set by the driver before it handles anything else about the channel.
    id: AtomicU32,
    /// Bytes handed to the driver and not yet sent.
    queued: AtomicUsize,
    /// Nothing can be written any more.
    closed: AtomicBool,
    /// The server has ended its stream or the channel: everything was received.
    complete: AtomicBool,
    /// The server refused the session a terminal.
    terminal_refused: AtomicBool,
    /// The session's command gets no signal when the channel is closed.
    leaves_running: AtomicBool,
    /// Standard error is a part of standard output.
    merges_stderr: AtomicBool,
    writer: AtomicWaker,
    carried: Carried,
}

/// Bytes given to a channel for the server, and bytes that the server has sent.
#[derive(Debug, Default)]
struct Carried {
    sent: AtomicU64,
    received: AtomicU64,
}

impl ChannelShared {
    const UNSET: u32 = u32::MAX;
    /// The driver is opening it.
    const OPENING: u32 = u32::MAX - 1;
    /// It was withdrawn before the driver saw it.
    const WITHDRAWN: u32 = u32::MAX - 2;

    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            id: AtomicU32::new(Self::UNSET),
            queued: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            complete: AtomicBool::new(false),
            terminal_refused: AtomicBool::new(false),
            leaves_running: AtomicBool::new(false),
            merges_stderr: AtomicBool::new(false),
            writer: AtomicWaker::new(),
            carried: Carried::default(),
        })
    }

    pub(crate) fn set_id(&self, id: ChannelId) {
        self.id.store(id.number(), Ordering::Relaxed);
    }

    /// Returns whether the driver may open the channel. From then on it cannot be withdrawn.
    pub(crate) fn begins(&self) -> bool {
        self.leaves_unset(Self::OPENING)
    }

    /// Withdraws the channel, and returns whether the driver had not seen it.
    pub(crate) fn withdraw(&self) -> bool {
        self.leaves_unset(Self::WITHDRAWN)
    }

    fn leaves_unset(&self, state: u32) -> bool {
        self.id
            .compare_exchange(Self::UNSET, state, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Returns the number; `None` before the driver has seen the channel.
    pub(crate) fn id(&self) -> Option<ChannelId> {
        match self.id.load(Ordering::Relaxed) {
            Self::UNSET | Self::OPENING | Self::WITHDRAWN => None,
            number => Some(ChannelId::from_number(number)),
        }
    }

    /// Notes that `len` bytes were sent, and wakes the writer if there is room now or nothing is left.
    pub(crate) fn note_sent(&self, len: usize) {
        let before = self.queued.fetch_sub(len, Ordering::AcqRel);
        if before >= WRITE_LIMIT || before == len {
            self.writer.wake();
        }
    }

    pub(crate) fn complete(&self) {
        self.complete.store(true, Ordering::Release);
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    pub(crate) fn refuse_terminal(&self) {
        self.terminal_refused.store(true, Ordering::Release);
    }

    pub(crate) fn leave_running(&self) {
        self.leaves_running.store(true, Ordering::Release);
    }

    pub(crate) fn leaves_running(&self) -> bool {
        self.leaves_running.load(Ordering::Acquire)
    }

    pub(crate) fn merge_stderr(&self, merge: bool) {
        self.merges_stderr.store(merge, Ordering::Release);
    }

    pub(crate) fn merges_stderr(&self) -> bool {
        self.merges_stderr.load(Ordering::Acquire)
    }

    pub(crate) fn is_terminal_refused(&self) -> bool {
        self.terminal_refused.load(Ordering::Acquire)
    }

    /// Counts bytes that came from the server. They may be read later or never.
    pub(crate) fn note_received(&self, len: usize) {
        self.carried.received.fetch_add(len as u64, Ordering::Relaxed);
    }

    /// Returns the bytes given to it for the server, and those that the server has sent.
    pub(crate) fn bytes_carried(&self) -> (u64, u64) {
        let Carried { sent, received } = &self.carried;
        (sent.load(Ordering::Relaxed), received.load(Ordering::Relaxed))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.writer.wake();
    }
}

/// A waiter for an answer of the server.
pub(crate) enum Waiter {
    Nobody,
    /// The sender of the request.
    Caller(oneshot::Sender<bool>),
    /// The session, about its terminal.
    Terminal,
}

/// The terms of a channel, from the configuration of its opener.
#[derive(Debug, Default)]
pub(crate) struct ChannelTerms {
    /// ChannelTimeout.
    pub(crate) idle: Option<Box<Idle>>,
    /// ObscureKeystrokeTiming, for a session on a terminal.
    pub(crate) keystrokes: Option<Duration>,
}

/// The driver's end of a channel.
pub(crate) struct Port {
    pub(crate) shared: Arc<ChannelShared>,
    /// Each until its end.
    pub(crate) stdout: Option<queue::Sender<Bytes>>,
    pub(crate) stderr: Option<queue::Sender<Bytes>>,
    /// Told when the channel is open and, for a session, its command confirmed; or the failure.
    pub(crate) started: Option<oneshot::Sender<Result<(), Error>>>,
    /// Told when the channel is closed.
    pub(crate) done: Option<oneshot::Sender<Result<ExitStatus, Error>>>,
    pub(crate) exit: ExitStatus,
    /// Told when the command has ended, which may be before its channel is closed.
    pub(crate) exited: Option<oneshot::Sender<ExitStatus>>,
    /// Answers awaited, in order.
    pub(crate) replies: VecDeque<Waiter>,
    /// The time of its opening, or of a request in it, until the server has answered.
    pub(crate) asked: Option<RttProbe>,
    /// `started` waits for a command's confirmation, not only for the opening.
    pub(crate) starts: bool,
    /// The length of its longest text above `SURE_TEXT`, until the server has answered.
    pub(crate) long_text: Option<usize>,
    /// Its command gets SIGHUP when this side closes the channel.
    pub(crate) hangs_up: bool,
    /// The request's name in a refusal.
    pub(crate) what: ServerRequest,
    /// The channel's place in the pool, returned with the port.
    pub(crate) lease: Option<Lease>,
    /// Nothing may start on an unverified server (ExitOnForwardFailure).
    pub(crate) verified_only: bool,
    pub(crate) terms: ChannelTerms,
}

/// The consumer's end of a channel, in parts that can be used separately.
#[derive(Debug)]
pub(crate) struct ChannelParts {
    pub(crate) shared: Arc<ChannelShared>,
    pub(crate) writer: ChannelWriter,
    pub(crate) stdout: ChannelReader,
    pub(crate) stderr: ChannelReader,
    pub(crate) started: oneshot::Receiver<Result<(), Error>>,
    pub(crate) exited: oneshot::Receiver<ExitStatus>,
    pub(crate) done: oneshot::Receiver<Result<ExitStatus, Error>>,
}

impl Port {
    /// Notes the exit status that the server reported.
    pub(crate) fn exits(&mut self, exit: ExitStatus) {
        if let Some(exited) = self.exited.take() {
            let _ = exited.send(exit.clone());
        }
        self.exit = exit;
    }
}

/// Creates both ends of a new channel. With `starts`, its start includes a command's confirmation.
pub(crate) fn channel(
    ops: &Ops,
    what: ServerRequest,
    starts: bool,
    lease: Option<Lease>,
) -> (Box<Port>, ChannelParts) {
    let shared = ChannelShared::new();
    let (stdout_tx, stdout_rx) = queue();
    let (stderr_tx, stderr_rx) = queue();
    let (started_tx, started) = oneshot::channel();
    let (exited_tx, exited) = oneshot::channel();
    let (done_tx, done) = oneshot::channel();
    let port = Port {
        shared: shared.clone(),
        stdout: Some(stdout_tx),
        stderr: Some(stderr_tx),
        started: Some(started_tx),
        done: Some(done_tx),
        exit: ExitStatus::Unknown,
        exited: Some(exited_tx),
        replies: VecDeque::new(),
        asked: None,
        starts,
        long_text: None,
        hangs_up: false,
        what,
        lease,
        verified_only: false,
        terms: ChannelTerms::default(),
    };
    let guard = Arc::new(CloseOnDrop {
        shared: shared.clone(),
        ops: ops.clone(),
    });
    let reader = |queue| ChannelReader {
        queue,
        current: Bytes::new(),
        unreturned: 0,
        shared: shared.clone(),
        ops: ops.clone(),
        _guard: guard.clone(),
    };
    let parts = ChannelParts {
        shared: shared.clone(),
        writer: ChannelWriter {
            shared: shared.clone(),
            ops: ops.clone(),
            ended: false,
            _guard: guard.clone(),
        },
        stdout: reader(stdout_rx),
        stderr: reader(stderr_rx),
        started,
        exited,
        done,
    };
    (Box::new(port), parts)
}

/// Closes the channel once all of its parts are dropped.
#[derive(Debug)]
struct CloseOnDrop {
    shared: Arc<ChannelShared>,
    ops: Ops,
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        let _ = self.ops.send(Op::Close {
            channel: self.shared.clone(),
        });
    }
}

/// One of a channel's incoming streams. Unread data is bounded by the server's window, which is only returned for what
/// was read here.
#[derive(Debug)]
pub struct ChannelReader {
    queue: queue::Receiver<Bytes>,
    current: Bytes,
    unreturned: usize,
    shared: Arc<ChannelShared>,
    ops: Ops,
    _guard: Arc<CloseOnDrop>,
}

impl ChannelReader {
    /// Returns the next piece of data without copying it; `None` at the stream's end.
    pub async fn chunk(&mut self) -> Option<Bytes> {
        std::future::poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// Appends at least one and at most `limit` pieces of data to `pieces`, waiting if there are none. Returns their
    /// number, 0 at the stream's end. A consumer that takes more at a time is woken less often.
    pub async fn chunks(&mut self, pieces: &mut Vec<Bytes>, limit: usize) -> usize {
        let before = pieces.len();
        if self.current.is_empty() {
            self.queue.recv_many(pieces, limit).await;
        } else {
            pieces.push(std::mem::take(&mut self.current));
        }
        self.read(pieces[before..].iter().map(Bytes::len).sum());
        pieces.len() - before
    }

    /// Returns whether the server ended the stream, rather than the loss of the connection. Call it at the stream's
    /// end.
    pub fn is_complete(&self) -> bool {
        self.shared.is_complete()
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if !self.current.is_empty() {
            let data = std::mem::take(&mut self.current);
            self.read(data.len());
            return Poll::Ready(Some(data));
        }
        let data = ready!(self.queue.poll_recv(cx));
        if let Some(data) = &data {
            self.read(data.len());
        }
        Poll::Ready(data)
    }

    fn read(&mut self, len: usize) {
        self.unreturned += len;
        if self.unreturned >= CREDIT_STEP {
            let len = std::mem::take(&mut self.unreturned);
            let _ = self.ops.send(Op::Consumed {
                channel: self.shared.clone(),
                len,
            });
        }
    }
}

impl AsyncRead for ChannelReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.current.is_empty() {
            match ready!(this.queue.poll_recv(cx)) {
                Some(data) => this.current = data,
                None => return Poll::Ready(Ok(())),
            }
        }
        let len = this.current.len().min(buf.remaining());
        buf.put_slice(&this.current[..len]);
        this.current.advance(len);
        this.read(len);
        Poll::Ready(Ok(()))
    }
}

/// A channel's outgoing stream. [`tokio::io::AsyncWriteExt::shutdown`] ends it (EOF) and leaves the channel open.
#[derive(Debug)]
pub struct ChannelWriter {
    shared: Arc<ChannelShared>,
    ops: Ops,
    ended: bool,
    _guard: Arc<CloseOnDrop>,
}

impl ChannelWriter {
    /// Hands over `data` without copying it, as soon as there is room. Fails with `BrokenPipe` once the channel is
    /// closed.
    pub async fn send(&mut self, mut data: Bytes) -> io::Result<()> {
        while !data.is_empty() {
            let room = std::future::poll_fn(|cx| self.poll_room(cx)).await?;
            let piece = data.split_to(data.len().min(room));
            self.push(piece);
        }
        Ok(())
    }

    /// Waits until all written data is on its way to the server; closing the channel drops the rest. Fails with
    /// `BrokenPipe` once the channel is closed.
    pub async fn wait_until_sent(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| {
            self.shared.writer.register(cx.waker());
            if self.shared.is_closed() || self.ops.is_closed() {
                Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
            } else if self.shared.queued.load(Ordering::Acquire) == 0 {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            }
        })
        .await
    }

    /// Returns the room in bytes that the server's window has beyond what was already written; with `waits`, waits
    /// until it has some. Fails with `BrokenPipe` once the channel is closed.
    pub async fn window(&self, waits: bool) -> io::Result<usize> {
        let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
        if self.ended {
            return Err(closed());
        }
        let (reply, told) = oneshot::channel();
        let channel = self.shared.clone();
        let _ = self.ops.send(Op::Room {
            channel,
            waits,
            reply,
        });
        told.await.map_err(|_| closed())
    }

    /// Ends the stream after what was written.
    pub fn finish(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            let _ = self.ops.send(Op::Eof {
                channel: self.shared.clone(),
            });
        }
    }

    /// Waits until the channel is closed, by the server or with its connection.
    pub async fn wait_for_close(&self) {
        std::future::poll_fn(|cx| {
            self.shared.writer.register(cx.waker());
            if self.shared.is_closed() || self.ops.is_closed() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    fn push(&mut self, data: Bytes) {
        self.shared
            .carried
            .sent
            .fetch_add(data.len() as u64, Ordering::Relaxed);
        self.shared.queued.fetch_add(data.len(), Ordering::AcqRel);
        let _ = self.ops.send(Op::Write {
            channel: self.shared.clone(),
            data,
        });
    }

    fn poll_room(&self, cx: &Context<'_>) -> Poll<io::Result<usize>> {
        if self.room()? == 0 {
            self.shared.writer.register(cx.waker());
            // The driver may have made room before the registration.
            if self.room()? == 0 {
                return Poll::Pending;
            }
        }
        Poll::Ready(self.room())
    }

    fn room(&self) -> io::Result<usize> {
        if self.ended || self.shared.closed.load(Ordering::Acquire) || self.ops.is_closed() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(WRITE_LIMIT.saturating_sub(self.shared.queued.load(Ordering::Acquire)))
    }
}

impl AsyncWrite for ChannelWriter {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let len = ready!(self.poll_room(cx))?.min(buf.len());
        self.push(Bytes::copy_from_slice(&buf[..len]));
        Poll::Ready(Ok(len))
    }

    /// Does nothing: the driver sends written data at its next turn.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finish();
        Poll::Ready(Ok(()))
    }
}

/// A forwarded connection, as a stream of bytes in both directions.
#[derive(Debug)]
pub struct ChannelStream {
    reader: ChannelReader,
    writer: ChannelWriter,
    end: ChannelEnd,
}

impl ChannelStream {
    pub(crate) fn new(parts: ChannelParts) -> Self {
        Self {
            reader: parts.stdout,
            writer: parts.writer,
            end: ChannelEnd(parts.done),
        }
    }

    /// Returns the room in bytes that the server's window has.
    pub(crate) async fn window(&self) -> io::Result<usize> {
        self.writer.window(false).await
    }

    /// Returns the two directions separately.
    pub fn into_split(self) -> (ChannelReader, ChannelWriter) {
        (self.reader, self.writer)
    }

    /// Returns the two directions, and the channel's end, which comes after that of both.
    pub fn into_parts(self) -> (ChannelReader, ChannelWriter, ChannelEnd) {
        (self.reader, self.writer, self.end)
    }

    /// Returns a handle that closes the stream while it is read or written elsewhere.
    pub fn closer(&self) -> ChannelCloser {
        ChannelCloser {
            shared: self.writer.shared.clone(),
            ops: self.writer.ops.clone(),
        }
    }
}

/// Returns the error of a channel whose driver was dropped with its runtime.
pub(super) fn gone_error() -> Error {
    shut_down().with_execution(Execution::MayHaveStarted)
}

pub(super) fn shut_down() -> Error {
    Error::Closed {
        host: "the host".into(),
        why: "the engine was shut down".into(),
    }
}

/// The end of a [`ChannelStream`].
#[derive(Debug)]
pub struct ChannelEnd(oneshot::Receiver<Result<ExitStatus, Error>>);

impl ChannelEnd {
    /// Waits until the channel is closed. Call it once; cancel-safe.
    ///
    /// # Errors
    /// The connection was lost, or this side closed it.
    pub async fn wait(&mut self) -> Result<(), Error> {
        let ended = (&mut self.0).await;
        ended.unwrap_or_else(|_| Err(gone_error())).map(drop)
    }
}

/// Closes a [`ChannelStream`] from elsewhere: its reader sees the end, its writer gets a broken pipe.
#[derive(Debug, Clone)]
pub struct ChannelCloser {
    shared: Arc<ChannelShared>,
    ops: Ops,
}

impl ChannelCloser {
    /// Returns the bytes given to it for the server so far, and those that the server has sent.
    pub fn bytes_carried(&self) -> (u64, u64) {
        self.shared.bytes_carried()
    }

    /// Returns whether the server has ended its stream. Unread data may remain.
    pub fn has_heard_end(&self) -> bool {
        self.shared.is_complete()
    }

    /// Closes the stream now.
    pub fn close(&self) {
        let _ = self.ops.send(Op::Close {
            channel: self.shared.clone(),
        });
    }
}

impl AsyncRead for ChannelStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(cx, buf)
    }
}

impl AsyncWrite for ChannelStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(cx)
    }
}

/// Returns what [`Started`] means to the requester.
pub(crate) fn execution(started: Started) -> Execution {
    match started {
        Started::No => Execution::DidNotStart,
        Started::Maybe | Started::Yes => Execution::MayHaveStarted,
    }
}

/// A request whose answer is timed: when it was sent, and how much had been received by then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RttProbe {
    pub(super) at: Instant,
    pub(super) received: u64,
}

/// Tells a channel's consumer that the connection or the channel failed.
pub(super) fn end_port(port: &mut Port, error: &Error, execution: Execution) {
    port.shared.close();
    // A received exit status is final, whatever happened to the channel afterwards.
    let outcome = if port.exit == ExitStatus::Unknown {
        Err(error.clone().with_execution(execution))
    } else {
        Ok(port.exit.clone())
    };
    if let Some(started) = port.started.take() {
        let _ = started.send(outcome.clone().map(drop));
    }
    if let Some(done) = port.done.take() {
        let _ = done.send(outcome);
    }
}

/// Answers an operation that no connection will carry out: nothing of it was sent.
pub(crate) fn refuse(op: Op, error: &Error) {
    match op {
        Op::Open { mut port, .. } | Op::Accept { mut port } => {
            end_port(&mut port, error, Execution::DidNotStart);
        }
        Op::Begin { started, .. } => {
            let _ = started.send(Err(error.clone()));
        }
        Op::Global { reply, .. } => {
            let _ = reply.send(Err(error.clone()));
        }
        // The others notice by the channel's end or by their dropped sender.
        _ => {}
    }
}
