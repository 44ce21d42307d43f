//! One channel of a client in proxy mode: the client on one side, a channel of the engine's on the other, and the
//! windows between.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};
use trunkline::{
    ChannelReader, ChannelRequest, ChannelStream, ChannelWriter, ExitStatus, IncomingConnection, Session,
    SessionParts,
};
use trunkline_proto::Stream;

use crate::protocol::Program;
use trunkline_audit::Entry;

use super::message::{self, Peer, ProxiedRequest};

/// The most that a client may send before it is taken from it: as sshd (channels.h, `CHAN_SES_WINDOW_DEFAULT`).
pub(super) const WINDOW: u32 = 2 * 1024 * 1024;
/// The most data in one message, either way: what every implementation has to take (RFC 4253 section 6.1), and the
/// most that sshd takes.
pub(super) const MAX_DATA: u32 = 32 * 1024;
/// Credit is returned in pieces of this size.
const CREDIT_STEP: u32 = WINDOW / 8;
/// Requests of one channel that wait for the server's answer.
const MAX_REQUESTS: usize = 64;

/// The receiver of the client's messages about a channel.
pub(super) struct Door {
    /// Told of the client's confirmation, for a channel that it was offered.
    confirmed: Option<oneshot::Sender<Peer>>,
    requests: mpsc::Sender<ProxiedRequest>,
    inbox: Arc<Inbox>,
    window: Arc<Window>,
    /// The client has closed it: dropped then.
    open: Option<DropGuard>,
    /// The task has ended.
    pub(super) done: bool,
}

/// The other side of a [`Door`].
pub(super) struct Inside {
    channel: u32,
    requests: mpsc::Receiver<ProxiedRequest>,
    inbox: Arc<Inbox>,
    window: Arc<Window>,
    closed: CancellationToken,
    out: mpsc::Sender<Bytes>,
    /// The number of requests to the server that have not been answered to the client.
    unanswered: AtomicU32,
}

/// Both sides of channel `channel`, whose messages leave through `out`.
pub(super) fn channel(channel: u32, out: mpsc::Sender<Bytes>) -> (Door, Inside) {
    // One is enough: whoever sends waits until the session has taken it.
    let (ask, requests) = mpsc::channel(1);
    let (inbox, window) = (Arc::<Inbox>::default(), Arc::<Window>::default());
    let closed = CancellationToken::new();
    let door = Door {
        confirmed: None,
        requests: ask,
        inbox: inbox.clone(),
        window: window.clone(),
        open: Some(closed.clone().drop_guard()),
        done: false,
    };
    let inside = Inside {
        channel,
        requests,
        inbox,
        window,
        closed,
        out,
        unanswered: AtomicU32::new(0),
    };
    (door, inside)
}

/// A client's forbidden action.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::mux) enum Misuse {
    #[error("it sent more than its window allows")]
    Overrun,
    #[error("it widened its window beyond the largest size")]
    TooMuchCredit,
    #[error("it answered for a channel that it was not offered, or twice")]
    Unasked,
}

impl Door {
    /// The client is offered the channel; the result is its answer.
    pub(super) fn offer(&mut self) -> oneshot::Receiver<Peer> {
        let (confirm, confirmed) = oneshot::channel();
        self.confirmed = Some(confirm);
        confirmed
    }

    /// The client takes a channel that it was offered.
    pub(super) fn confirm(&mut self, peer: Peer) -> Result<(), Misuse> {
        let confirmed = self.confirmed.take().ok_or(Misuse::Unasked)?;
        self.window.add(peer.window)?;
        // The task may have ended with the connection it was for.
        let _ = confirmed.send(peer);
        Ok(())
    }

    /// The client does not take it.
    pub(super) fn refuse(&mut self) -> Result<(), Misuse> {
        self.confirmed.take().map(drop).ok_or(Misuse::Unasked)
    }

    pub(super) fn data(&self, data: &[u8]) -> Result<(), Misuse> {
        self.inbox.push(data)
    }

    /// Data that nobody takes costs the client its window all the same.
    pub(super) fn discard(&self, len: usize) -> Result<(), Misuse> {
        self.inbox.spend(len)
    }

    pub(super) fn adjust(&self, bytes: u32) -> Result<(), Misuse> {
        self.window.add(bytes)
    }

    pub(super) fn eof(&self) {
        self.inbox.finish();
    }

    /// Asks something of the session, when it has taken what was asked before.
    pub(super) async fn request(&self, request: ProxiedRequest) {
        // What asks for nothing any more needs no answer: the client hears of the end.
        let _ = self.requests.send(request).await;
    }

    /// The client says nothing more about it, nor listens.
    pub(super) fn close(&mut self) {
        self.open = None;
        self.inbox.close();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.open.is_none()
    }
}

impl Inside {
    /// Our end, as the client is told of it.
    pub(super) fn ours(&self) -> Peer {
        Peer {
            channel: self.channel,
            window: WINDOW,
            max_data: MAX_DATA,
        }
    }

    /// Says something to the client. That it has left is noticed elsewhere, and ends this.
    pub(super) async fn say(&self, packet: Bytes) {
        let _ = self.out.send(packet).await;
    }

    /// A session that the client opened, from its confirmation to its end.
    pub(super) async fn session(mut self, peer: Peer, session: Session, entry: &Entry) {
        self.open(peer).await;
        let SessionParts {
            stdin,
            mut stdout,
            mut stderr,
            control,
            mut end,
        } = session.into_parts();
        let counting = control.clone();
        entry.carries(move || counting.carried());
        let mut requests = std::mem::replace(&mut self.requests, mpsc::channel(1).1);
        let mut answers = FuturesOrdered::new();
        let this = &self;
        let asking = async {
            loop {
                tokio::select! {
                    Some(ProxiedRequest { wants_reply, asked }) = requests.recv(), if answers.len() < MAX_REQUESTS => {
                        let asked = record_start(asked, entry).await;
                        let asked = asked.map(|asked| control.request(asked));
                        this.unanswered.fetch_add(1, Ordering::Relaxed);
                        answers.push_back(async move {
                            let success = match asked {
                                Some(answer) => answer.await,
                                None => false,
                            };
                            wants_reply.then_some(success)
                        });
                    }
                    Some(answer) = answers.next() => {
                        this.answer(peer, answer).await;
                        this.unanswered.fetch_sub(1, Ordering::Relaxed);
                    }
                    else => std::future::pending().await,
                }
            }
        };
        let output = async {
            tokio::join!(
                this.output(peer, Stream::Data, &mut stdout),
                this.output(peer, Stream::Stderr, &mut stderr)
            );
            this.after_answers().await;
            if stdout.is_complete() {
                this.say(message::eof(peer.channel)).await;
            }
            end.wait().await
        };
        let ended = tokio::select! {
            biased;
            never = asking => never,
            (ended, ()) = async { tokio::join!(this.while_open(output), this.input(peer, stdin)) } => ended,
        };
        if let Some(status) = ended {
            entry.end_session(&status);
            // The answers have come, all of them, but may have found no room on the way to the client.
            while let Some(answer) = answers.next().await {
                self.answer(peer, answer).await;
            }
            match status {
                Ok(ExitStatus::Exited(status)) => self.say(message::exit_status(peer.channel, status)).await,
                Ok(ExitStatus::Signaled { signal, core_dumped }) => {
                    self.say(message::exit_signal(peer.channel, &signal, core_dumped))
                        .await;
                }
                // The client sees a session that ended without a word on how.
                Ok(ExitStatus::Unknown) => {}
                Err(error) => tracing::info!("a proxy client's session ended: {error}"),
            }
        }
        self.say(message::close(peer.channel)).await;
    }

    /// A connection from the server that the client opened, from its confirmation to its end.
    pub(super) async fn stream(self, peer: Peer, stream: ChannelStream) {
        self.open(peer).await;
        self.carry(peer, stream).await;
    }

    /// A connection to the server that the client was offered, from its answer to the end; `false` if it was not taken.
    pub(super) async fn incoming(
        self,
        connection: IncomingConnection,
        confirmed: oneshot::Receiver<Peer>,
    ) -> bool {
        // Being dropped refuses it.
        let Ok(peer) = confirmed.await else {
            return false;
        };
        self.carry(peer, connection.accept()).await;
        true
    }

    async fn carry(&self, peer: Peer, stream: ChannelStream) {
        let (mut reader, writer) = stream.into_split();
        let output = async {
            self.output(peer, Stream::Data, &mut reader).await;
            if reader.is_complete() {
                self.say(message::eof(peer.channel)).await;
            }
        };
        tokio::join!(self.while_open(output), self.input(peer, writer));
        self.say(message::close(peer.channel)).await;
    }

    /// Does something for as long as the client listens; `None` when it had not been done by then.
    async fn while_open<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.closed.cancelled() => None,
        }
    }

    /// Tells the client that its channel is open.
    async fn open(&self, peer: Peer) {
        // The first credit is never too much.
        let _ = self.window.add(peer.window);
        self.say(message::confirmation(peer.channel, &self.ours())).await;
    }

    async fn answer(&self, peer: Peer, answer: Option<bool>) {
        if let Some(success) = answer {
            self.say(message::channel_reply(peer.channel, success)).await;
        }
    }

    /// Before what the server has said last: lets the answers that it gave before go first.
    async fn after_answers(&self) {
        if self.unanswered.load(Ordering::Relaxed) > 0 {
            // They have come by now; whoever passes them on is asked first.
            tokio::task::yield_now().await;
        }
    }

    /// Gives the server what the client sends, until either has closed the channel. Credit returns when the engine has
    /// taken it, which it does as the server's window allows.
    async fn input(&self, peer: Peer, mut writer: ChannelWriter) {
        let mut taken = 0;
        loop {
            let input = tokio::select! {
                biased;
                () = writer.closed() => return,
                input = self.inbox.next() => input,
            };
            let (data, spent) = match input {
                Input::Data(data, spent) => (data, spent),
                Input::Eof => {
                    writer.finish();
                    continue;
                }
                // What came before it is still to arrive, where there is somebody left for it.
                Input::Close => {
                    let _ = writer.drained().await;
                    return;
                }
            };
            // A channel that has closed meanwhile takes nothing; the next turn sees it.
            let _ = writer.send(data).await;
            taken += spent;
            if taken >= CREDIT_STEP {
                self.inbox.grant(taken);
                self.say(message::window_adjust(peer.channel, taken)).await;
                taken = 0;
            }
        }
    }

    /// Gives the client one of the server's streams, as its window allows. Credit returns to the server for what was
    /// taken from `reader` only.
    async fn output(&self, peer: Peer, stream: Stream, reader: &mut ChannelReader) {
        while let Some(mut chunk) = reader.chunk().await {
            self.after_answers().await;
            while !chunk.is_empty() {
                let most = chunk.len().min(peer.max_data.min(MAX_DATA) as usize);
                let piece = chunk.split_to(self.window.take(most).await);
                self.say(message::data(peer.channel, stream, &piece)).await;
            }
        }
    }
}

/// Returns a client's request to its session, once it is recorded, if it is the one that starts the session's work;
/// nothing, if that cannot be recorded and has to be.
async fn record_start(asked: Option<ChannelRequest>, entry: &Entry) -> Option<ChannelRequest> {
    let program = match &asked {
        Some(ChannelRequest::Exec(command)) => Program::Exec(command.clone()),
        Some(ChannelRequest::Shell) => Program::Configured,
        Some(ChannelRequest::Subsystem(name)) => Program::Subsystem(name.clone()),
        _ => return asked,
    };
    match entry.begin(|subject| subject.running(&program)).await {
        Ok(()) => asked,
        Err(error) => {
            tracing::warn!("a proxy client's session: {error}");
            None
        }
    }
}

/// The next event of a client.
enum Input {
    /// With the window that it took, that of data which nobody takes included.
    Data(Bytes, u32),
    Eof,
    Close,
}

/// The data that a client has sent and the server has not been given yet; as long as a window at most.
struct Inbox {
    /// Guards the data while it is added to or taken.
    received: Mutex<Received>,
    more: Notify,
    /// The bytes that the client may still send.
    credit: AtomicU32,
}

#[derive(Default)]
struct Received {
    data: BytesMut,
    spent: u32,
    /// No more data, and whether that has been told.
    finished: Option<bool>,
    closed: bool,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            received: Mutex::default(),
            more: Notify::new(),
            credit: AtomicU32::new(WINDOW),
        }
    }
}

impl Inbox {
    fn lock_received(&self) -> MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, data: &[u8]) -> Result<(), Misuse> {
        self.add(data, data.len())
    }

    fn spend(&self, len: usize) -> Result<(), Misuse> {
        self.add(&[], len)
    }

    fn add(&self, data: &[u8], len: usize) -> Result<(), Misuse> {
        let spent = u32::try_from(len).ok().filter(|len| *len <= MAX_DATA);
        let spent = spent.ok_or(Misuse::Overrun)?;
        self.credit
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |credit| {
                credit.checked_sub(spent)
            })
            .map_err(|_| Misuse::Overrun)?;
        let mut received = self.lock_received();
        // Data behind the end is nobody's.
        if received.finished.is_none() {
            received.data.extend_from_slice(data);
        }
        received.spent += spent;
        drop(received);
        self.more.notify_one();
        Ok(())
    }

    fn finish(&self) {
        self.lock_received().finished.get_or_insert(false);
        self.more.notify_one();
    }

    fn close(&self) {
        self.lock_received().closed = true;
        self.more.notify_one();
    }

    fn grant(&self, bytes: u32) {
        self.credit.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the events since the last time.
    async fn next(&self) -> Input {
        loop {
            if let Some(input) = self.lock_received().next() {
                return input;
            }
            self.more.notified().await;
        }
    }
}

impl Received {
    fn next(&mut self) -> Option<Input> {
        if self.spent > 0 {
            let data = std::mem::take(&mut self.data).freeze();
            return Some(Input::Data(data, std::mem::take(&mut self.spent)));
        }
        if self.finished == Some(false) {
            self.finished = Some(true);
            return Some(Input::Eof);
        }
        self.closed.then_some(Input::Close)
    }
}

/// The data that may be sent to a client.
#[derive(Default)]
struct Window {
    credit: Mutex<u32>,
    more: Notify,
}

impl Window {
    /// Guards the credit while it is changed.
    fn credit(&self) -> MutexGuard<'_, u32> {
        self.credit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, bytes: u32) -> Result<(), Misuse> {
        let mut credit = self.credit();
        *credit = credit.checked_add(bytes).ok_or(Misuse::TooMuchCredit)?;
        drop(credit);
        self.more.notify_waiters();
        Ok(())
    }

    /// Takes as much as there is, up to `most`, and waits while there is none.
    async fn take(&self, most: usize) -> usize {
        loop {
            let more = self.more.notified();
            {
                let mut credit = self.credit();
                let taken = (*credit).min(u32::try_from(most).unwrap_or(u32::MAX));
                if taken > 0 {
                    *credit -= taken;
                    return taken as usize;
                }
            }
            more.await;
        }
    }
}
