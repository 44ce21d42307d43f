//! One stream of JavaScript: a session, a tunnel, or the bytes under a connection that JavaScript carries.
//!
//! Towards JavaScript a [`Flow`] holds what has come, in one piece, until a Readable asks; what does not fit stays with
//! the server, for the channel is then not read. From JavaScript an [`Inlet`] takes bytes as long as there is room.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::DuplexStream;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use trunkline::ExitStatus;
use trunkline_embed::{Control, Failure, Input, Output, Reader, Session, Tunnel, Writer};

use crate::block::Blocks;
use crate::fault::Fault;
use crate::outbox::{Event, Kind, Outbox, Payload, Urgency};

/// How long a stream that is destroyed, or whose client ends, may take to hand over what was written before: a server that takes
/// nothing gets nothing.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// What JavaScript holds by its number.
pub(crate) struct Stream {
    target: u32,
    /// The client that it was opened on; none for the bytes of a client's connection.
    client: Option<u32>,
    outbox: Arc<Outbox>,
    /// The first stream, and standard error.
    flows: [Arc<Flow>; 2],
    inlet: Inlet,
    /// Set when a session is open.
    control: OnceLock<Control>,
    /// Ends everything, whatever stage it is in.
    cancel: CancellationToken,
    /// It is open, and JavaScript writes to it: what was written may have to go first.
    writable: AtomicBool,
    /// JavaScript has written to it.
    written: AtomicBool,
    /// What was written before it was to end has gone.
    emptied: Arc<Notify>,
}

impl Stream {
    /// A stream that is still to be connected to something, and the queue of what JavaScript writes.
    pub(crate) fn new(target: u32, client: Option<u32>, outbox: &Arc<Outbox>) -> (Arc<Self>, Outlet) {
        let (queue, written) = mpsc::unbounded_channel();
        let room = Arc::new(Room::default());
        let emptied = Arc::new(Notify::new());
        let stream = Arc::new(Self {
            target,
            client,
            outbox: outbox.clone(),
            flows: [
                Flow::new(target, Kind::Data, Kind::End, outbox),
                Flow::new(target, Kind::ErrorData, Kind::ErrorEnd, outbox),
            ],
            inlet: Inlet {
                queue,
                room: room.clone(),
            },
            control: OnceLock::new(),
            cancel: CancellationToken::new(),
            writable: AtomicBool::new(false),
            written: AtomicBool::new(false),
            emptied: emptied.clone(),
        });
        let outlet = Outlet {
            written,
            room,
            target,
            outbox: outbox.clone(),
            emptied,
        };
        (stream, outlet)
    }

    /// JavaScript wants a chunk of the first stream, or of standard error.
    pub(crate) fn read(&self, standard_error: bool) {
        self.flows[usize::from(standard_error)].want();
    }

    /// Takes bytes to be written; `false`: the next [`Kind::Drain`] says when there is room again.
    pub(crate) fn write(&self, data: Bytes) -> bool {
        for flow in &self.flows {
            flow.expect_answer();
        }
        self.written.store(true, Ordering::Release);
        self.inlet.write(data)
    }

    /// Ends what is written, behind everything before it.
    pub(crate) fn finish(&self) {
        let _ = self.inlet.queue.send(Written::End);
    }

    /// Ends it, behind what was written before, and whatever it was connected to.
    pub(crate) fn destroy(&self) {
        let _ = self.inlet.queue.send(Written::Flush);
        self.cancel.cancel();
    }

    /// Whether it was opened on a client.
    pub(crate) fn is_on(&self, client: u32) -> bool {
        self.client == Some(client)
    }

    /// Whether JavaScript has written to it, and what is written goes to the server.
    pub(crate) fn is_writing(&self) -> bool {
        self.writable.load(Ordering::Acquire) && self.written.load(Ordering::Acquire)
    }

    /// Waits until what was written so far has gone, but not for longer than it may take.
    pub(crate) async fn flushed(&self) {
        if self.inlet.queue.send(Written::Flush).is_ok() {
            self.emptied().await;
        }
    }

    async fn emptied(&self) {
        let _ = tokio::time::timeout(LINGER, self.emptied.notified()).await;
    }

    /// Signals and sizes; `None` if it is not a session, or not open yet.
    pub(crate) fn control(&self) -> Option<&Control> {
        self.control.get()
    }

    /// Runs `life` until it is over or the stream is destroyed.
    pub(crate) async fn until_destroyed(&self, life: impl Future<Output = ()>) {
        let destroyed = async {
            self.cancel.cancelled().await;
            if self.is_writing() {
                self.emptied().await;
            }
        };
        tokio::select! {
            () = life => {}
            () = destroyed => {}
        }
    }

    /// Says that it could not be opened.
    pub(crate) fn fail(&self, fault: &Fault) {
        self.outbox.tell(self.target, Kind::Fail, fault.to_json());
    }

    /// Ends it for a reason of this side.
    pub(crate) fn cut_off(&self, fault: &Fault) {
        for flow in &self.flows {
            flow.end(false);
        }
        self.outbox.tell(self.target, Kind::Close, fault.to_json());
    }

    /// Carries a session from its start to its end.
    pub(crate) async fn carry_session(&self, opened: Session, outlet: Outlet) {
        let Session {
            stdin,
            stdout,
            stderr,
            control,
            mut end,
        } = opened;
        if let Err(failure) = end.started().await {
            return self.fail(&failure.into());
        }
        let _ = self.control.set(control.clone());
        self.opened(matches!(stdin, Input::Program(_)));
        let [out, err] = &self.flows;
        let ended = async {
            // What is known earlier is told earlier: another process may have the command's output.
            if let Ok(exit) = end.exited().await {
                self.exited(exit);
            }
            end.wait().await
        };
        let work =
            pin!(async { tokio::join!(out.take(stdout, &control), err.take(stderr, &control), ended) });
        // That nothing more is written ends no session.
        let feed = async {
            match stdin {
                Input::Program(writer) => {
                    outlet.empty(writer).await;
                    std::future::pending().await
                }
                Input::Routed(routed) => Box::pin(routed.carry()).await,
            }
        };
        let (written, error_written, outcome) = tokio::select! {
            biased;
            done = work => done,
            never = feed => match never {},
        };
        let written = written.and(error_written).map_err(Failure::after_start);
        self.ended(outcome.and_then(|exit| written.map(|()| exit)));
    }

    /// Carries a tunnel until it is closed: either side can end its direction before.
    pub(crate) async fn carry_tunnel(&self, tunnel: Tunnel, outlet: Outlet) {
        self.opened(true);
        let Tunnel {
            mut reader,
            writer,
            control: _control,
            ..
        } = tunnel;
        let [flow, errors] = &self.flows;
        errors.end(true);
        let fill = async {
            flow.fill(&mut reader).await;
            flow.end(reader.is_complete().await);
        };
        tokio::join!(fill, outlet.empty(writer));
        self.outbox.tell(self.target, Kind::Close, Value::Null);
    }

    /// Carries bytes between JavaScript and the other end of a pipe.
    pub(crate) async fn carry_pipe(&self, pipe: DuplexStream, outlet: Outlet) {
        let (mut reader, writer) = trunkline_embed::pipe(pipe);
        let [flow, errors] = &self.flows;
        errors.end(true);
        tokio::select! {
            () = flow.fill(&mut reader) => flow.end(true),
            () = outlet.empty(writer) => {}
        }
        self.outbox.tell(self.target, Kind::Close, Value::Null);
    }

    fn opened(&self, writable: bool) {
        self.writable.store(writable, Ordering::Release);
        self.outbox.tell(self.target, Kind::Open, Value::Null);
    }

    fn exited(&self, exit: ExitStatus) {
        let exit = match exit {
            ExitStatus::Exited(code) => json!({ "code": code }),
            ExitStatus::Signaled { signal, core_dumped } => {
                json!({ "code": null, "signal": format!("SIG{signal}"), "dump": core_dumped })
            }
            ExitStatus::Unknown => Value::Null,
        };
        self.outbox.tell(self.target, Kind::Exit, exit);
    }

    fn ended(&self, outcome: Result<ExitStatus, Failure>) {
        let fault = outcome.map_or_else(|failure| Fault::from(failure).to_json(), |_| Value::Null);
        self.outbox.tell(self.target, Kind::Close, fault);
    }
}

/// One direction towards JavaScript.
pub(crate) struct Flow {
    target: u32,
    data: Kind,
    end: Kind,
    outbox: Arc<Outbox>,
    state: Mutex<Pending>,
    /// Woken when JavaScript has taken what was there.
    room: Notify,
}

#[derive(Default)]
struct Pending {
    bytes: Blocks,
    /// How much was taken last time: about as much will come together the next time.
    last: usize,
    /// Nothing more comes.
    ended: bool,
    /// The other side has ended it: it was not cut off.
    complete: bool,
    told_end: bool,
    /// JavaScript has asked for a chunk.
    wanted: bool,
    /// In the outbox's queue.
    listed: bool,
    /// JavaScript has written something since the last chunk, and may wait for the answer.
    prompted: bool,
}

impl Flow {
    /// The most that waits for JavaScript here; behind it the channel is not read. Enough that 1 GB/s need not wait for an
    /// event loop that comes by every half millisecond.
    pub(crate) const LIMIT: usize = 1024 * 1024;

    fn new(target: u32, data: Kind, end: Kind, outbox: &Arc<Outbox>) -> Arc<Self> {
        Arc::new(Self {
            target,
            data,
            end,
            outbox: outbox.clone(),
            state: Mutex::default(),
            room: Notify::new(),
        })
    }

    /// Guards what is pending, for as long as appending or taking a few blocks takes. The outbox's lock is never asked for under it.
    fn state(&self) -> MutexGuard<'_, Pending> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a session's output to its end.
    async fn take(self: &Arc<Self>, output: Output, control: &Control) -> Result<(), Failure> {
        let complete = match output {
            Output::Program(mut reader) => {
                self.fill(&mut reader).await;
                reader.is_complete().await
            }
            // In a box, as all that few streams need: an idle stream's task would have room for it.
            Output::Routed(routed) => Box::pin(routed.carry(control)).await.inspect_err(|_| {
                self.end(false);
            })?,
        };
        self.end(complete);
        Ok(())
    }

    /// Reads a source to its end.
    async fn fill(self: &Arc<Self>, source: &mut Reader) {
        let mut pieces = Vec::new();
        while source.chunks(&mut pieces).await > 0 {
            self.append(&pieces);
            pieces.clear();
            while self.state().bytes.len() >= Self::LIMIT {
                self.room.notified().await;
            }
        }
    }

    fn append(self: &Arc<Self>, pieces: &[Bytes]) {
        // Copied without the lock: JavaScript's thread, which takes it, must not wait for a thread that others keep from its
        // core in the middle of half a megabyte.
        let coming = pieces.iter().map(Bytes::len).sum();
        let (mut tail, expected) = {
            let mut state = self.state();
            (state.bytes.split_off_open(), state.last.max(coming))
        };
        tail.append(pieces.iter().map(|piece| &**piece), expected);
        let mut state = self.state();
        let before = state.bytes.len() + tail.len() - coming;
        state.bytes.extend(tail);
        let plenty = state.bytes.len() >= Outbox::PLENTY;
        let urgency = if plenty || state.prompted {
            Urgency::Now
        } else {
            Urgency::Soon
        };
        if state.wanted && !state.listed {
            state.listed = true;
            drop(state);
            self.outbox.offer(self.clone(), urgency);
        } else if state.listed && plenty && before < Outbox::PLENTY {
            drop(state);
            self.outbox.hurry();
        }
    }

    /// Nothing more comes; `complete`: that was the server's word.
    fn end(self: &Arc<Self>, complete: bool) {
        let mut state = self.state();
        state.ended = true;
        state.complete = complete;
        if !std::mem::replace(&mut state.listed, true) {
            drop(state);
            self.outbox.offer(self.clone(), Urgency::Now);
        }
    }

    fn want(self: &Arc<Self>) {
        let mut state = self.state();
        state.wanted = true;
        if !state.bytes.is_empty() && !state.listed {
            state.listed = true;
            let urgency = if state.bytes.len() >= Outbox::PLENTY || state.prompted || state.ended {
                Urgency::Now
            } else {
                Urgency::Soon
            };
            drop(state);
            self.outbox.offer(self.clone(), urgency);
        }
    }

    fn expect_answer(&self) {
        self.state().prompted = true;
    }

    /// Gives what is there to JavaScript, if it was asked for.
    pub(crate) fn deliver(&self, told: &mut Vec<Event>) {
        let mut state = self.state();
        state.listed = false;
        if state.wanted && !state.bytes.is_empty() {
            state.wanted = false;
            state.prompted = false;
            state.last = state.bytes.len().min(Self::LIMIT);
            let blocks = state.bytes.take().into_iter();
            told.extend(blocks.map(|block| (self.target, self.data, Payload::Bytes(block))));
            self.room.notify_one();
        }
        if state.ended && state.bytes.is_empty() && !std::mem::replace(&mut state.told_end, true) {
            told.push((self.target, self.end, Payload::Value(state.complete.into())));
        }
    }
}

/// What JavaScript writes, on this side.
struct Inlet {
    queue: mpsc::UnboundedSender<Written>,
    room: Arc<Room>,
}

enum Written {
    Data(Bytes),
    End,
    /// All before it is to have gone: it is about to be closed, which drops what has not left.
    Flush,
}

/// How much JavaScript has written that the engine has not taken.
#[derive(Default)]
struct Room {
    taken: AtomicUsize,
    /// JavaScript waits to be told that there is room.
    awaited: AtomicBool,
}

impl Room {
    /// A writer is told to wait above this. As much as the engine itself holds for a channel: while the one half is on
    /// its way to the socket, the other can be filled.
    const LIMIT: usize = 512 * 1024;

    /// Whether JavaScript waits and can continue; says so only once.
    fn reopens(&self) -> bool {
        self.taken.load(Ordering::Acquire) <= Self::LIMIT / 2 && self.awaited.swap(false, Ordering::AcqRel)
    }
}

impl Inlet {
    fn write(&self, data: Bytes) -> bool {
        let len = data.len();
        let taken = self.room.taken.fetch_add(len, Ordering::AcqRel) + len;
        // A stream that is over takes everything and does nothing with it.
        if self.queue.send(Written::Data(data)).is_err() {
            return true;
        }
        if taken < Room::LIMIT {
            return true;
        }
        self.room.awaited.store(true, Ordering::Release);
        // The engine may have taken it all between the look and the wish to be told.
        self.room.reopens() || self.queue.is_closed()
    }
}

/// What JavaScript writes, on the engine's side.
pub(crate) struct Outlet {
    written: mpsc::UnboundedReceiver<Written>,
    room: Arc<Room>,
    target: u32,
    outbox: Arc<Outbox>,
    emptied: Arc<Notify>,
}

impl Outlet {
    /// Writes all that comes into the sink, until that is closed: that nothing more is written ends no stream.
    async fn empty(mut self, mut sink: Writer) {
        loop {
            let written = tokio::select! {
                biased;
                written = self.written.recv() => written,
                () = sink.closed() => None,
            };
            match written {
                Some(Written::Data(data)) => {
                    let len = data.len();
                    // Who reads no more is not an error of the one who writes; the stream's end says what happened.
                    let _ = sink.send(data).await;
                    self.room.taken.fetch_sub(len, Ordering::AcqRel);
                    if self.room.reopens() {
                        self.outbox.tell(self.target, Kind::Drain, Value::Null);
                    }
                }
                Some(Written::End) => sink.finish().await,
                Some(Written::Flush) => {
                    let _ = sink.drained().await;
                    self.emptied.notify_one();
                }
                None => return self.emptied.notify_one(),
            }
        }
    }
}
