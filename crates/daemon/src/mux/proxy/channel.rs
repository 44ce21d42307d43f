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

/// The most that a client may have sent and not yet handed on: sshd's window (channels.h, `CHAN_SES_WINDOW_DEFAULT`).
pub(super) const WINDOW: u32 = 2 * 1024 * 1024;
/// The most data in one message, either way: the size that every implementation has to accept (RFC 4253 section 6.1),
/// and the most that sshd accepts.
pub(super) const MAX_DATA: u32 = 32 * 1024;
/// Credit is returned in steps of this size.
const CREDIT_STEP: u32 = WINDOW / 8;
/// The most requests of one channel that wait for the server's answer.
const MAX_REQUESTS: usize = 64;

/// The side of a channel that takes the client's messages.
pub(super) struct Door {
    /// Receives the client's confirmation of a channel that it was offered.
    confirmed: Option<oneshot::Sender<Peer>>,
    requests: mpsc::Sender<ProxiedRequest>,
    inbox: Arc<Inbox>,
    window: Arc<Window>,
    /// Dropped when the client closes the channel.
    open: Option<DropGuard>,
    /// True once the channel's task has ended.
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
    /// Requests to the server whose answer has not been passed on to the client.
    unanswered: AtomicU32,
}

/// Returns both sides of channel `channel`, whose messages leave through `out`.
pub(super) fn channel(channel: u32, out: mpsc::Sender<Bytes>) -> (Door, Inside) {
    // One is enough: a sender waits until the session has taken its request.
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
    /// Prepares a channel that is offered to the client. The receiver gets the client's answer.
    pub(super) fn offer(&mut self) -> oneshot::Receiver<Peer> {
        let (confirm, confirmed) = oneshot::channel();
        self.confirmed = Some(confirm);
        confirmed
    }

    /// Handles the client's confirmation of an offered channel.
    pub(super) fn confirm(&mut self, peer: Peer) -> Result<(), Misuse> {
        let confirmed = self.confirmed.take().ok_or(Misuse::Unasked)?;
        self.window.add(peer.window)?;
        // The task may have ended with its connection.
        let _ = confirmed.send(peer);
        Ok(())
    }

    /// Handles the client's refusal of an offered channel.
    pub(super) fn refuse(&mut self) -> Result<(), Misuse> {
        self.confirmed.take().map(drop).ok_or(Misuse::Unasked)
    }

    pub(super) fn data(&self, data: &[u8]) -> Result<(), Misuse> {
        self.inbox.push(data)
    }

    /// Discards data that nobody reads. It costs the client its window all the same.
    pub(super) fn discard(&self, len: usize) -> Result<(), Misuse> {
        self.inbox.spend(len)
    }

    pub(super) fn adjust(&self, bytes: u32) -> Result<(), Misuse> {
        self.window.add(bytes)
    }

    pub(super) fn eof(&self) {
        self.inbox.finish();
    }

    /// Passes a request to the session once the session has taken the one before.
    pub(super) async fn request(&self, request: ProxiedRequest) {
        // A session that takes no more requests need not answer: the client hears of its end.
        let _ = self.requests.send(request).await;
    }

    /// Handles the client's close.
    pub(super) fn close(&mut self) {
        self.open = None;
        self.inbox.close();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.open.is_none()
    }
}

impl Inside {
    /// Returns our end of the channel, for the client.
    pub(super) fn ours(&self) -> Peer {
        Peer {
            channel: self.channel,
            window: WINDOW,
            max_data: MAX_DATA,
        }
    }

    /// Sends the client a packet. If it has left, that is noticed elsewhere and ends this task.
    pub(super) async fn say(&self, packet: Bytes) {
        let _ = self.out.send(packet).await;
    }

    /// Serves a session that the client opened, from its confirmation to its end.
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
        entry.carries(move || counting.bytes_carried());
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
            // All answers have arrived, but some may not have fitted into the client's queue.
            while let Some(answer) = answers.next().await {
                self.answer(peer, answer).await;
            }
            match status {
                Ok(ExitStatus::Exited(status)) => self.say(message::exit_status(peer.channel, status)).await,
                Ok(ExitStatus::Signaled { signal, core_dumped }) => {
                    self.say(message::exit_signal(peer.channel, &signal, core_dumped))
                        .await;
                }
                // The client sees a session that ends without an exit status.
                Ok(ExitStatus::Unknown) => {}
                Err(error) => tracing::info!("a proxy client's session ended: {error}"),
            }
        }
        self.say(message::close(peer.channel)).await;
    }

    /// Serves a connection from the server that the client opened, from its confirmation to its end.
    pub(super) async fn stream(self, peer: Peer, stream: ChannelStream) {
        self.open(peer).await;
        self.carry(peer, stream).await;
    }

    /// Serves a connection that the client was offered, from its answer to the end. Returns false if the client refused
    /// it.
    pub(super) async fn incoming(
        self,
        connection: IncomingConnection,
        confirmed: oneshot::Receiver<Peer>,
    ) -> bool {
        // Dropping the connection refuses it.
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

    /// Runs `work` while the client listens. Returns `None` if the client closed the channel first.
    async fn while_open<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.closed.cancelled() => None,
        }
    }

    /// Confirms the client's channel.
    async fn open(&self, peer: Peer) {
        // The first credit cannot overflow.
        let _ = self.window.add(peer.window);
        self.say(message::confirmation(peer.channel, &self.ours())).await;
    }

    async fn answer(&self, peer: Peer, answer: Option<bool>) {
        if let Some(success) = answer {
            self.say(message::channel_reply(peer.channel, success)).await;
        }
    }

    /// Lets pending answers of the server leave before later messages.
    async fn after_answers(&self) {
        if self.unanswered.load(Ordering::Relaxed) > 0 {
            // The answers have arrived by now. Yielding lets the task that passes them on run first.
            tokio::task::yield_now().await;
        }
    }

    /// Gives the server the client's data until either side has closed the channel. Credit returns when the engine has
    /// taken the data, which depends on the server's window.
    async fn input(&self, peer: Peer, mut writer: ChannelWriter) {
        let mut taken = 0;
        loop {
            let input = tokio::select! {
                biased;
                () = writer.wait_for_close() => return,
                input = self.inbox.next() => input,
            };
            let (data, spent) = match input {
                Input::Data(data, spent) => (data, spent),
                Input::Eof => {
                    writer.finish();
                    continue;
                }
                // Data before the close still has to arrive, if anyone reads it.
                Input::Close => {
                    let _ = writer.wait_until_sent().await;
                    return;
                }
            };
            // A channel that has closed meanwhile takes nothing; the next iteration notices.
            let _ = writer.send(data).await;
            taken += spent;
            if taken >= CREDIT_STEP {
                self.inbox.grant(taken);
                self.say(message::window_adjust(peer.channel, taken)).await;
                taken = 0;
            }
        }
    }

    /// Gives the client one of the server's streams, as the client's window allows. Only data taken from `reader`
    /// returns credit to the server.
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

/// Records the request that starts a session's work, and returns it. Other requests are returned as they are. Returns
/// `None` if the audit trail requires a record and it cannot be written.
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
    /// Data, and the window that it took, including discarded data.
    Data(Bytes, u32),
    Eof,
    Close,
}

/// The data that a client has sent and the server has not been given yet: one window at most.
struct Inbox {
    /// The lock is held while data is added or taken.
    received: Mutex<Received>,
    more: Notify,
    /// The bytes that the client may still send.
    credit: AtomicU32,
}

#[derive(Default)]
struct Received {
    data: BytesMut,
    spent: u32,
    /// `Some` once no more data can come; true once that has been reported.
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
        // Data after EOF is dropped.
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

    /// Waits for the next event.
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
    /// Locks the credit, for as long as a change takes.
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

    /// Takes up to `most` of the credit, waiting while there is none.
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
