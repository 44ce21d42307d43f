//! One stream of JavaScript: a session, a tunnel, or the bytes under a connection that JavaScript carries.
//!
//! Towards JavaScript a [`Flow`] holds what has come, in its order, until a Readable asks; what does not fit stays with
//! the server, for the channel is then not read. From JavaScript an [`Inlet`] takes bytes as long as there is room.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::DuplexStream;
use tokio::sync::Notify;
use tokio::task::unconstrained;
use tokio_util::sync::CancellationToken;
use trunkline::ExitStatus;
use trunkline::queue::{self, queue};
use trunkline_embed::{Control, End, Failure, Input, Output, Reader, Session, Tunnel, Writer};

use crate::block::{Block, Blocks};
use crate::fault::Fault;
use crate::outbox::{Event, Kind, Outbox, Payload, Urgency};

/// The time that a stream which is destroyed, or whose client ends, may take to hand over earlier data: a server that
/// takes nothing gets nothing.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// A stream, which JavaScript holds by its number.
pub(crate) struct Stream {
    target: u32,
    /// The client that it was opened on; none for the bytes of a client's connection.
    client: Option<u32>,
    outbox: Arc<Outbox>,
    flow: Arc<Flow>,
    inlet: Inlet,
    /// Set when a session is open.
    control: OnceLock<Control>,
    /// Ends everything, whatever stage it is in.
    cancel: CancellationToken,
    /// It is open, and JavaScript writes to it: what was written may have to go first.
    writable: AtomicBool,
    /// JavaScript has written to it.
    written: AtomicBool,
    /// The data written before its end has gone.
    emptied: Arc<Notify>,
}

impl Stream {
    /// A stream that is still to be connected to something, and the queue of what JavaScript writes.
    pub(crate) fn new(target: u32, client: Option<u32>, outbox: &Arc<Outbox>) -> (Arc<Self>, Outlet) {
        let (queue, written) = queue();
        let room = Arc::new(Room::default());
        let emptied = Arc::new(Notify::new());
        let stream = Arc::new(Self {
            target,
            client,
            outbox: outbox.clone(),
            flow: Flow::new(target, outbox),
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
        self.flow
            .want(if standard_error { Side::Error } else { Side::Output });
    }

    /// Takes bytes to be written; `false`: the next [`Kind::Drain`] says when there is room again.
    pub(crate) fn write(&self, data: Bytes) -> bool {
        self.flow.expect_answer();
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

    /// Returns whether it was opened on a client.
    pub(crate) fn is_on(&self, client: u32) -> bool {
        self.client == Some(client)
    }

    /// Returns whether JavaScript has written to it, and what is written goes to the server.
    pub(crate) fn is_writing(&self) -> bool {
        self.writable.load(Ordering::Acquire) && self.written.load(Ordering::Acquire)
    }

    /// Waits until what was written so far has gone, but not for longer than it may take.
    pub(crate) async fn wait_until_flushed(&self) {
        if self.inlet.queue.send(Written::Flush).is_ok() {
            self.wait_until_empty().await;
        }
    }

    async fn wait_until_empty(&self) {
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
                self.wait_until_empty().await;
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
        for side in Side::BOTH {
            self.flow.end(side, false);
        }
        self.outbox.tell(self.target, Kind::Close, fault.to_json());
    }

    /// Carries a session from its start to its end.
    ///
    /// The parts are lent to what takes them: each future that is given one by value has room for it once more.
    pub(crate) async fn carry_session(&self, opened: &mut Session, outlet: &mut Outlet) {
        let Session {
            stdin,
            stdout,
            stderr,
            control,
            end,
        } = opened;
        if let Err(failure) = end.wait_for_start().await {
            return self.fail(&failure.into());
        }
        let _ = self.control.set(control.clone());
        self.tell_opened(matches!(stdin, Input::Program(_)));
        let work = pin!(self.follow(stdout, stderr, control, end));
        // That nothing more is written ends no session.
        let feed = async {
            match stdin {
                Input::Program(writer) => outlet.empty(writer).await,
                routed @ Input::Routed(_) => {
                    if let Input::Routed(routed) = std::mem::replace(routed, Input::Program(Writer::at_end()))
                    {
                        Box::pin(routed.carry()).await;
                    }
                }
            }
            std::future::pending().await
        };
        let outcome = tokio::select! {
            biased;
            done = work => done,
            never = feed => match never {},
        };
        self.tell_end(outcome);
    }

    /// Takes a session's output, and tells of its exit and its ends in the server's order.
    async fn follow(
        &self,
        stdout: &mut Output,
        stderr: &mut Output,
        control: &Control,
        end: &mut End,
    ) -> Result<ExitStatus, Failure> {
        let output = pin!(self.flow.take(Side::Output, stdout, control));
        let error_output = pin!(self.flow.take(Side::Error, stderr, control));
        let mut taking = [
            Taking::new(&self.flow, Side::Output, output),
            Taking::new(&self.flow, Side::Error, error_output),
        ];
        let exit = {
            let mut exited = pin!(end.wait_for_exit());
            poll_fn(|cx| {
                // The exit is looked for behind each end, in front of which the server may have sent it.
                taking.iter_mut().for_each(|each| each.poll(cx));
                let exit = exited.as_mut().poll(cx);
                if exit.is_pending() {
                    taking.iter_mut().for_each(Taking::tell_end);
                }
                exit
            })
            .await
        };
        // It is told as soon as it is known, for another process may have the command's output; but behind all that came in
        // front of it.
        if let Ok(exit) = exit {
            self.flow.widen(true);
            unconstrained(poll_fn(|cx| {
                taking.iter_mut().for_each(|each| each.poll(cx));
                Poll::Ready(())
            }))
            .await;
            self.flow.widen(false);
            self.flow.flush();
            self.tell_exit(exit);
        }
        let rest = poll_fn(|cx| {
            taking.iter_mut().for_each(|each| each.poll(cx));
            taking.iter_mut().for_each(Taking::tell_end);
            match taking.iter().all(|each| each.is_told) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        });
        let end = async {
            let outcome = end.wait().await;
            // Of a session that was cut off nothing more comes. Who reads one of its outputs need not wait for a reader of the other.
            self.flow.widen(outcome.is_err());
            outcome
        };
        let ((), outcome) = tokio::join!(rest, end);
        let [written, error_written] = taking.map(|each| each.taken.map_or(Ok(()), |taken| taken.map(drop)));
        let written = written.and(error_written).map_err(Failure::after_start);
        outcome.and_then(|exit| written.map(|()| exit))
    }

    /// Carries a tunnel until it is closed: either side can end its direction before.
    pub(crate) async fn carry_tunnel(&self, tunnel: Tunnel, outlet: &mut Outlet) {
        self.tell_opened(true);
        let Tunnel {
            mut reader,
            mut writer,
            control: _control,
            ..
        } = tunnel;
        let flow = &self.flow;
        flow.end(Side::Error, true);
        let fill = async {
            flow.fill(Side::Output, &mut reader).await;
            flow.end(Side::Output, reader.is_complete().await);
        };
        tokio::join!(fill, outlet.empty(&mut writer));
        self.outbox.tell(self.target, Kind::Close, Value::Null);
    }

    /// Carries bytes between JavaScript and the other end of a pipe.
    pub(crate) async fn carry_pipe(&self, pipe: DuplexStream, outlet: &mut Outlet) {
        let (mut reader, mut writer) = trunkline_embed::pipe(pipe);
        let flow = &self.flow;
        flow.end(Side::Error, true);
        tokio::select! {
            () = flow.fill(Side::Output, &mut reader) => flow.end(Side::Output, true),
            () = outlet.empty(&mut writer) => {}
        }
        self.outbox.tell(self.target, Kind::Close, Value::Null);
    }

    fn tell_opened(&self, writable: bool) {
        self.writable.store(writable, Ordering::Release);
        self.outbox.tell(self.target, Kind::Open, Value::Null);
    }

    fn tell_exit(&self, exit: ExitStatus) {
        let exit = match exit {
            ExitStatus::Exited(code) => json!({ "code": code }),
            ExitStatus::Signaled { signal, core_dumped } => {
                json!({ "code": null, "signal": format!("SIG{signal}"), "dump": core_dumped })
            }
            ExitStatus::Unknown => Value::Null,
        };
        self.outbox.tell(self.target, Kind::Exit, exit);
    }

    fn tell_end(&self, outcome: Result<ExitStatus, Failure>) {
        let fault = outcome.map_or_else(|failure| Fault::from(failure).to_json(), |_| Value::Null);
        self.outbox.tell(self.target, Kind::Close, fault);
    }
}

/// One of a session's outputs, until its end is told.
struct Taking<'a, F> {
    flow: &'a Arc<Flow>,
    side: Side,
    taking: Pin<&'a mut F>,
    /// Its end: whether it came from the server.
    taken: Option<Result<bool, Failure>>,
    is_told: bool,
}

impl<'a, F: Future<Output = Result<bool, Failure>>> Taking<'a, F> {
    fn new(flow: &'a Arc<Flow>, side: Side, taking: Pin<&'a mut F>) -> Self {
        Self {
            flow,
            side,
            taking,
            taken: None,
            is_told: false,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) {
        if self.taken.is_none()
            && let Poll::Ready(taken) = self.taking.as_mut().poll(cx)
        {
            self.taken = Some(taken);
        }
    }

    fn tell_end(&mut self) {
        if let Some(taken) = &self.taken
            && !std::mem::replace(&mut self.is_told, true)
        {
            self.flow.end(self.side, matches!(taken, Ok(true)));
        }
    }
}

/// One of the two that a stream gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The first stream.
    Output,
    /// Standard error.
    Error,
}

impl Side {
    const BOTH: [Self; 2] = [Self::Output, Self::Error];

    fn data(self) -> Kind {
        match self {
            Self::Output => Kind::Data,
            Self::Error => Kind::ErrorData,
        }
    }

    fn end(self) -> Kind {
        match self {
            Self::Output => Kind::End,
            Self::Error => Kind::ErrorEnd,
        }
    }
}

/// The data that a stream has for JavaScript: both sides, in the order in which it came.
pub(crate) struct Flow {
    target: u32,
    outbox: Arc<Outbox>,
    state: Mutex<Pending>,
    /// Woken when JavaScript has taken what was there, by side.
    room: [Notify; 2],
}

#[derive(Default)]
struct Pending {
    /// The received data: of one side as long as the other gives nothing in between.
    runs: Vec<(Side, Blocks)>,
    sides: [Progress; 2],
    /// In the outbox's queue.
    listed: bool,
    /// Its wake-up is under way.
    hurried: bool,
    /// All of it goes, asked for or not.
    flushed: bool,
    /// The data that the server had sent by now is taken without regard to the limits.
    wide: bool,
}

/// The progress of one side.
#[derive(Default)]
struct Progress {
    /// Bytes that wait.
    len: usize,
    /// Runs that wait.
    runs: usize,
    /// The amount taken last time: about as much will come together the next time.
    last: usize,
    /// Nothing more comes.
    ended: bool,
    /// The other side has ended it: it was not cut off.
    complete: bool,
    /// It is the end's turn, behind what was told before it.
    end_due: bool,
    told_end: bool,
    /// JavaScript has asked for a chunk.
    wanted: bool,
    /// Bytes that it was given since it asked last, in front of those of the other side.
    unasked: usize,
    /// JavaScript has written something since the last chunk, and may wait for the answer.
    prompted: bool,
}

impl Progress {
    fn is_urgent(&self) -> bool {
        self.len >= Flow::PLENTY || self.prompted
    }
}

impl Pending {
    fn progress_of(&mut self, side: Side) -> &mut Progress {
        &mut self.sides[side as usize]
    }

    /// Takes the last block away, if there is room in it and it is this side's.
    fn split_off_open(&mut self, side: Side) -> Blocks {
        let tail = match self.runs.last_mut() {
            Some((last, blocks)) if *last == side => blocks.split_off_open(),
            _ => Blocks::default(),
        };
        self.progress_of(side).len -= tail.len();
        tail
    }

    fn extend(&mut self, side: Side, tail: Blocks) {
        self.progress_of(side).len += tail.len();
        match self.runs.last_mut() {
            Some((last, blocks)) if *last == side => blocks.extend(tail),
            _ => {
                self.progress_of(side).runs += 1;
                self.runs.push((side, tail));
            }
        }
    }

    fn is_full(&self, side: Side) -> bool {
        let more = if self.wide { Flow::WINDOW } else { 0 };
        let Progress { len, runs, .. } = self.sides[side as usize];
        len >= Flow::LIMIT + more || runs >= Flow::RUNS + more
    }

    /// Returns whether a run goes now.
    fn goes(&mut self, side: Side, len: usize, wanted: bool) -> bool {
        let flushed = self.flushed;
        let progress = self.progress_of(side);
        if flushed || wanted {
            return true;
        }
        progress.unasked += len;
        progress.unasked <= Block::SIZE
    }
}

impl Flow {
    /// The most of one side that waits for JavaScript here; behind it the channel is not read. Enough that 1 GB/s need not wait
    /// for an event loop that comes by every half millisecond.
    const LIMIT: usize = 1024 * 1024;

    /// With so many bytes it is fetched at once: half of what it may hold, so that the other half fills meanwhile.
    pub(crate) const PLENTY: usize = Self::LIMIT / 2;

    /// The most changes from one side to the other and back.
    const RUNS: usize = 1024;

    /// The most that a server can have sent without being read: the engine's largest window.
    const WINDOW: usize = 16 * 1024 * 1024;

    fn new(target: u32, outbox: &Arc<Outbox>) -> Arc<Self> {
        Arc::new(Self {
            target,
            outbox: outbox.clone(),
            state: Mutex::default(),
            room: [Notify::new(), Notify::new()],
        })
    }

    /// Guards what is pending, for as long as appending or taking a few blocks takes. The outbox's lock is never asked for under it.
    fn state(&self) -> MutexGuard<'_, Pending> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a session's output to its end; returns whether that was the server's word.
    async fn take(
        self: &Arc<Self>,
        side: Side,
        output: &mut Output,
        control: &Control,
    ) -> Result<bool, Failure> {
        match output {
            Output::Program(reader) => {
                self.fill(side, reader).await;
                Ok(reader.is_complete().await)
            }
            // In a box, as all that few streams need: an idle stream's task would have room for it.
            routed @ Output::Routed(_) => {
                match std::mem::replace(routed, Output::Program(Reader::at_end())) {
                    Output::Routed(routed) => Box::pin(routed.carry(control)).await,
                    Output::Program(_) => Ok(true),
                }
            }
        }
    }

    /// Reads a source to its end.
    async fn fill(self: &Arc<Self>, side: Side, source: &mut Reader) {
        let mut pieces = Vec::new();
        while source.chunks(&mut pieces).await > 0 {
            self.append(side, &pieces);
            pieces.clear();
            while self.state().is_full(side) {
                self.room[side as usize].notified().await;
            }
        }
    }

    fn append(self: &Arc<Self>, side: Side, pieces: &[Bytes]) {
        // Copied without the lock: JavaScript's thread, which takes it, must not wait for a thread that others keep from its
        // core in the middle of half a megabyte. Both sides are filled by one task, so that nothing comes in between.
        let coming = pieces.iter().map(Bytes::len).sum();
        let (mut tail, expected) = {
            let mut state = self.state();
            (
                state.split_off_open(side),
                state.progress_of(side).last.max(coming),
            )
        };
        tail.append(pieces.iter().map(|piece| &**piece), expected);
        let mut state = self.state();
        state.extend(side, tail);
        if state.progress_of(side).wanted {
            self.list(state);
        }
    }

    /// Puts it into the outbox's queue.
    fn list(self: &Arc<Self>, mut state: MutexGuard<'_, Pending>) {
        let urgent = state.flushed || state.sides.iter().any(|side| side.len > 0 && side.is_urgent());
        let hurries = urgent && !std::mem::replace(&mut state.hurried, urgent);
        if !std::mem::replace(&mut state.listed, true) {
            drop(state);
            let urgency = if urgent { Urgency::Now } else { Urgency::Soon };
            let flow = self.clone();
            self.outbox.offer(move |told| flow.deliver(told), urgency);
        } else if hurries {
            drop(state);
            self.outbox.hurry();
        }
    }

    /// Nothing more comes; `complete`: that was the server's word.
    fn end(self: &Arc<Self>, side: Side, complete: bool) {
        let mut state = self.state();
        let progress = state.progress_of(side);
        if std::mem::replace(&mut progress.ended, true) {
            return;
        }
        progress.complete = complete;
        drop(state);
        let flow = self.clone();
        self.outbox
            .offer(move |told| flow.deliver_end(side, told), Urgency::Now);
    }

    fn want(self: &Arc<Self>, side: Side) {
        let mut state = self.state();
        let progress = state.progress_of(side);
        progress.wanted = true;
        progress.unasked = 0;
        if progress.len > 0 {
            // Behind the end there is nothing to wait for.
            progress.prompted |= progress.ended;
            self.list(state);
        }
    }

    fn expect_answer(&self) {
        for progress in &mut self.state().sides {
            progress.prompted = true;
        }
    }

    /// Whether more is taken than [`Self::LIMIT`].
    fn widen(&self, wide: bool) {
        self.state().wide = wide;
        if wide {
            self.room.iter().for_each(Notify::notify_one);
        }
    }

    /// Gives all that is there to JavaScript, in front of what it is told next.
    fn flush(self: &Arc<Self>) {
        let mut state = self.state();
        if !state.runs.is_empty() {
            state.flushed = true;
            self.list(state);
        }
    }

    /// Gives what is there to JavaScript, if it was asked for. What came before that goes first, as long as it is little: JavaScript
    /// reads it, and is about to ask, or has nobody who does.
    fn deliver(&self, told: &mut Vec<Event>) {
        let mut state = self.state();
        state.listed = false;
        state.hurried = false;
        let asked = Side::BOTH.map(|side| state.progress_of(side).wanted);
        let last = (state.runs.iter()).rposition(|(side, _)| state.flushed || asked[*side as usize]);
        let mut given = [0; 2];
        let mut kept: Vec<(Side, Blocks)> = Vec::new();
        for (at, (side, mut blocks)) in std::mem::take(&mut state.runs).into_iter().enumerate() {
            let (number, len) = (side as usize, blocks.len());
            if last.is_none_or(|last| at > last) || !state.goes(side, len, asked[number]) {
                // What was between it and the one before may have gone.
                match kept.last_mut() {
                    Some((before, joined)) if *before == side => {
                        joined.extend(blocks);
                        state.progress_of(side).runs -= 1;
                    }
                    _ => kept.push((side, blocks)),
                }
                continue;
            }
            given[number] += len;
            state.progress_of(side).runs -= 1;
            let blocks = blocks.take().into_iter();
            told.extend(blocks.map(|block| (self.target, side.data(), Payload::Bytes(block))));
        }
        state.runs = kept;
        state.flushed = false;
        for side in Side::BOTH {
            let len = given[side as usize];
            let progress = state.progress_of(side);
            if len > 0 {
                progress.len -= len;
                progress.wanted = false;
                progress.prompted = false;
                progress.last = len.min(Self::LIMIT);
                self.room[side as usize].notify_one();
            }
            self.tell_end(side, progress, told);
        }
    }

    /// It is the end's turn.
    fn deliver_end(&self, side: Side, told: &mut Vec<Event>) {
        let mut state = self.state();
        let progress = state.progress_of(side);
        progress.end_due = true;
        self.tell_end(side, progress, told);
    }

    fn tell_end(&self, side: Side, progress: &mut Progress, told: &mut Vec<Event>) {
        if progress.end_due && progress.len == 0 && !std::mem::replace(&mut progress.told_end, true) {
            told.push((self.target, side.end(), Payload::Value(progress.complete.into())));
        }
    }
}

/// JavaScript's input, on this side.
struct Inlet {
    queue: queue::Sender<Written>,
    room: Arc<Room>,
}

enum Written {
    Data(Bytes),
    End,
    /// All before it is to have gone: it is about to be closed, which drops what has not left.
    Flush,
}

/// The amount that JavaScript has written and the engine has not taken.
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

    /// Returns whether JavaScript waits and can continue; says so only once.
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
        // The engine may have taken it all, or have stopped taking, between the look and the wish to be told.
        self.room.reopens() || self.queue.is_closed()
    }
}

/// JavaScript's input, on the engine's side.
pub(crate) struct Outlet {
    written: queue::Receiver<Written>,
    room: Arc<Room>,
    target: u32,
    outbox: Arc<Outbox>,
    emptied: Arc<Notify>,
}

impl Outlet {
    /// Writes all that comes into the sink, until that is closed: that nothing more is written ends no stream.
    async fn empty(&mut self, sink: &mut Writer) {
        loop {
            let written = tokio::select! {
                biased;
                written = self.written.recv() => written,
                () = sink.wait_for_close() => None,
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
                    let _ = sink.wait_until_sent().await;
                    self.emptied.notify_one();
                }
                None => break,
            }
        }
        self.emptied.notify_one();
        // Nobody takes anything any more: who writes from now on finds that, and who waits is told.
        self.written.close();
        if self.room.awaited.swap(false, Ordering::AcqRel) {
            self.outbox.tell(self.target, Kind::Drain, Value::Null);
        }
    }
}
