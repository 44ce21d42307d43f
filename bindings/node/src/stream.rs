//! One stream of JavaScript: a session, a tunnel, or the bytes under a connection that JavaScript carries.
//!
//! Towards JavaScript a [`Flow`] holds what has come, in one piece, until a Readable asks; what does not fit stays with
//! the server, for the channel is then not read. From JavaScript an [`Inlet`] takes bytes as long as there is room.

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, SetOnce, mpsc};
use tokio_util::sync::CancellationToken;
use trunkline::{
    ChannelReader, ChannelStream, ChannelWriter, ExitStatus, SessionControl, SessionEnd, SessionParts,
    TerminalSize,
};
use trunkline_daemon::client::session;
use trunkline_daemon::protocol::{Exit, Request};
use trunkline_daemon::pump::{drain, feed};
use trunkline_daemon::stdio::{Input, Output};

use crate::block::Blocks;
use crate::fault::Fault;
use crate::outbox::{Event, Kind, Outbox, Told, Urgency};
use crate::stdio::{Route, Routes};

/// A command whose output cannot be written any more gets this long to notice before its session is closed.
const AFTER_BROKEN_PIPE: Duration = Duration::from_secs(2);

/// What JavaScript holds by its number.
pub(crate) struct Stream {
    target: u32,
    outbox: Arc<Outbox>,
    /// The first stream, and standard error.
    flows: [Arc<Flow>; 2],
    inlet: Inlet,
    /// Set when a session is open.
    control: OnceLock<Control>,
    /// Ends everything at once, whatever stage it is in.
    cancel: CancellationToken,
}

impl Stream {
    /// A stream that is still to be connected to something, and the queue of what JavaScript writes.
    pub(crate) fn new(target: u32, outbox: &Arc<Outbox>) -> (Arc<Self>, Outlet) {
        let (queue, written) = mpsc::unbounded_channel();
        let room = Arc::new(Room::default());
        let stream = Arc::new(Self {
            target,
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
        });
        let outlet = Outlet {
            written,
            room,
            target,
            outbox: outbox.clone(),
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
        self.inlet.write(data)
    }

    /// Ends what is written, behind everything before it.
    pub(crate) fn finish(&self) {
        let _ = self.inlet.queue.send(Written::End);
    }

    /// Ends it, and whatever it was connected to.
    pub(crate) fn destroy(&self) {
        self.cancel.cancel();
    }

    /// Signals and sizes; `None` if it is no session, or not open yet.
    pub(crate) fn control(&self) -> Option<&Control> {
        self.control.get()
    }

    /// Runs `life` until it is over or the stream is destroyed.
    pub(crate) async fn until_destroyed(&self, life: impl Future<Output = ()>) {
        self.cancel.run_until_cancelled(life).await;
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
    pub(crate) async fn carry_session(&self, opened: Opened, outlet: Outlet) {
        let Opened {
            stdin,
            stdout,
            stderr,
            control,
            mut end,
        } = opened;
        if let Err(fault) = end.started().await {
            return self.fail(&fault);
        }
        let _ = self.control.set(control.clone());
        self.outbox.tell(self.target, Kind::Open, Value::Null);
        let over = SetOnce::new();
        let ending = async {
            let outcome = end.wait().await;
            let _ = over.set(outcome.is_ok());
            outcome
        };
        let [out, err] = &self.flows;
        let work = pin!(async {
            tokio::join!(
                out.take(stdout, &control, &over),
                err.take(stderr, &control, &over),
                ending
            )
        });
        let (written, error_written, outcome) = tokio::select! {
            biased;
            done = work => done,
            never = stdin.feed(outlet) => match never {},
        };
        let written = written.and(error_written).map_err(Fault::after_start);
        self.ended(outcome.and_then(|exit| written.map(|()| exit)));
    }

    /// Carries a tunnel until it is closed: either side can end its direction before.
    pub(crate) async fn carry_tunnel(&self, opening: Opening, outlet: Outlet) {
        self.outbox.tell(self.target, Kind::Open, Value::Null);
        let Opening {
            mut reader,
            writer,
            daemon,
        } = opening;
        let [flow, errors] = &self.flows;
        errors.end(true);
        match daemon {
            None => {
                let fill = async {
                    flow.fill(&mut reader).await;
                    flow.end(reader.is_complete().unwrap_or(true));
                };
                tokio::join!(fill, outlet.empty(writer));
            }
            Some((_control, mut end)) => {
                let life = async {
                    flow.fill(&mut reader).await;
                    flow.end(end.is_complete().await);
                    // However: who reads has been told.
                    let _ = end.wait().await;
                };
                tokio::select! {
                    biased;
                    () = life => {}
                    () = async { outlet.empty(writer).await; std::future::pending().await } => {}
                }
            }
        }
        self.outbox.tell(self.target, Kind::Close, Value::Null);
    }

    /// Carries bytes between JavaScript and the other end of a pipe.
    pub(crate) async fn carry_pipe(&self, pipe: DuplexStream, outlet: Outlet) {
        let (reader, writer) = tokio::io::split(pipe);
        let [flow, errors] = &self.flows;
        errors.end(true);
        let mut reader = Source::Pipe(reader);
        tokio::select! {
            () = flow.fill(&mut reader) => flow.end(true),
            () = outlet.empty(Sink::Pipe(writer)) => {}
        }
        self.outbox.tell(self.target, Kind::Close, Value::Null);
    }

    fn ended(&self, outcome: Result<Exit, Fault>) {
        let fault = match outcome {
            Ok(exit) => {
                let exit = match exit {
                    Exit::Status(code) => json!({ "code": code }),
                    Exit::Signal(signal, core_dumped) => {
                        json!({ "code": null, "signal": format!("SIG{signal}"), "dump": core_dumped })
                    }
                    Exit::Unknown => Value::Null,
                };
                self.outbox.tell(self.target, Kind::Exit, exit);
                Value::Null
            }
            Err(fault) => fault.to_json(),
        };
        self.outbox.tell(self.target, Kind::Close, fault);
    }
}

/// A session that was asked for: of the engine, or of the daemon.
pub(crate) struct Opened {
    stdin: Feed,
    stdout: Taken,
    stderr: Taken,
    control: Control,
    end: End,
}

impl Opened {
    /// A session of the engine's, whose streams go where `routes` say.
    pub(crate) fn from_engine(parts: SessionParts, routes: Routes) -> Result<Self, Fault> {
        let SessionParts {
            mut stdin,
            stdout,
            stderr,
            control,
            end,
        } = parts;
        let unusable = |error: io::Error| Fault::usage(&format!("a descriptor cannot be used: {error}"));
        let stdin = match routes.stdin {
            Route::Pipe => Feed::JavaScript(Sink::Channel(stdin)),
            Route::Fd(fd) => Feed::Input(Input::new(fd).map_err(unusable)?, stdin),
            Route::Ignore | Route::Sink(_) => {
                stdin.finish();
                Feed::Ended(stdin)
            }
        };
        let taken = |reader, route| {
            Ok::<_, Fault>(match route {
                Route::Pipe => Taken::JavaScript(Source::Channel(reader)),
                Route::Ignore => Taken::Nowhere(reader),
                Route::Fd(fd) => Taken::Written(Output::new(fd).map_err(unusable)?, reader, Route::Ignore),
                Route::Sink(sink) => {
                    Taken::Written(sink.output().map_err(unusable)?, reader, Route::Sink(sink))
                }
            })
        };
        Ok(Self {
            stdin,
            stdout: taken(stdout, routes.stdout)?,
            stderr: taken(stderr, routes.stderr)?,
            control: Control::Engine(control),
            end: End::Engine(end),
        })
    }

    /// A session of the daemon's, which has the streams that are not JavaScript's.
    pub(crate) fn from_daemon(
        stdin: Option<OwnedWriteHalf>,
        outputs: [Result<Source, Route>; 2],
        control: session::Control,
        end: session::End,
    ) -> Self {
        let [stdout, stderr] = outputs.map(|output| match output {
            Ok(source) => Taken::JavaScript(source),
            Err(route) => Taken::Elsewhere(route),
        });
        Self {
            stdin: stdin.map_or(Feed::Elsewhere, |writer| Feed::JavaScript(Sink::Socket(writer))),
            stdout,
            stderr,
            control: Control::Daemon(control),
            end: End::Daemon(end),
        }
    }
}

/// Where a session's input comes from.
enum Feed {
    JavaScript(Sink),
    Input(Input, ChannelWriter),
    /// There is none.
    Ended(ChannelWriter),
    /// The daemon has it.
    Elsewhere,
}

impl Feed {
    /// Gives the session its input. That nothing more is written ends no session, for which its channel is held.
    async fn feed(self, outlet: Outlet) -> std::convert::Infallible {
        let _writer = match self {
            Self::JavaScript(sink) => {
                outlet.empty(sink).await;
                None
            }
            Self::Input(mut input, mut writer) => {
                Box::pin(feed(&mut input, &mut writer)).await;
                Some(writer)
            }
            Self::Ended(writer) => Some(writer),
            Self::Elsewhere => None,
        };
        std::future::pending().await
    }
}

/// Where a session's output goes.
enum Taken {
    JavaScript(Source),
    /// To a descriptor; the route lasts as long.
    Written(Output, ChannelReader, Route),
    Nowhere(ChannelReader),
    /// The daemon has it.
    Elsewhere(Route),
}

impl Taken {
    /// Waits until all that does not come to JavaScript is where it goes.
    async fn pass_by(self, control: &Control, over: &SetOnce<bool>) -> Result<(), Fault> {
        match self {
            Self::JavaScript(_) => {}
            Self::Written(mut output, mut reader, route) => {
                if let Err(error) = drain(&mut reader, &mut output).await {
                    hang_up(control, over).await;
                    return Err(Fault::local(&format!("writing the command's output: {error}")));
                }
                route.taken().await;
            }
            Self::Nowhere(mut reader) => while reader.chunk().await.is_some() {},
            Self::Elsewhere(route) => {
                over.wait().await;
                route.taken().await;
            }
        }
        Ok(())
    }
}

/// What can be said to a session.
#[derive(Clone)]
pub(crate) enum Control {
    Engine(SessionControl),
    Daemon(session::Control),
}

impl Control {
    pub(crate) fn signal(&self, name: &str) {
        match self {
            Self::Engine(control) => control.signal(name),
            Self::Daemon(control) => control.send(Request::Signal(name.to_owned())),
        }
    }

    pub(crate) fn resize(&self, size: TerminalSize) {
        match self {
            Self::Engine(control) => control.resize(size),
            Self::Daemon(control) => {
                control.send(Request::Resize(size.columns, size.rows, size.width, size.height));
            }
        }
    }
}

/// The start and the end of a session.
enum End {
    Engine(SessionEnd),
    Daemon(session::End),
}

impl End {
    async fn started(&mut self) -> Result<(), Fault> {
        match self {
            Self::Engine(end) => end.started().await?,
            Self::Daemon(end) => end.started().await?,
        }
        Ok(())
    }

    async fn wait(&mut self) -> Result<Exit, Fault> {
        Ok(match self {
            Self::Engine(end) => match end.wait().await? {
                ExitStatus::Exited(status) => Exit::Status(status),
                ExitStatus::Signaled { signal, core_dumped } => Exit::Signal(signal, core_dumped),
                ExitStatus::Unknown => Exit::Unknown,
            },
            Self::Daemon(end) => end.wait().await?,
        })
    }
}

/// A tunnel that is open.
pub(crate) struct Opening {
    reader: Source,
    writer: Sink,
    /// The session that carries it, where that is the daemon's.
    daemon: Option<(session::Control, session::End)>,
}

impl From<ChannelStream> for Opening {
    fn from(tunnel: ChannelStream) -> Self {
        let (reader, writer) = tunnel.into_split();
        Self {
            reader: Source::Channel(reader),
            writer: Sink::Channel(writer),
            daemon: None,
        }
    }
}

impl Opening {
    pub(crate) fn from_daemon(
        (reader, writer): (OwnedReadHalf, OwnedWriteHalf),
        session: (session::Control, session::End),
    ) -> Self {
        Self {
            reader: Source::Socket(reader),
            writer: Sink::Socket(writer),
            daemon: Some(session),
        }
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

    /// Guards what is pending, while it is copied or taken. The outbox's lock is never asked for under it.
    fn state(&self) -> MutexGuard<'_, Pending> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a session's output to its end. `over`: the session has ended, and whether by the server's word.
    async fn take(
        self: &Arc<Self>,
        output: Taken,
        control: &Control,
        over: &SetOnce<bool>,
    ) -> Result<(), Fault> {
        match output {
            Taken::JavaScript(mut source) => {
                self.fill(&mut source).await;
                let complete = match source.is_complete() {
                    Some(complete) => complete,
                    None => *over.wait().await,
                };
                self.end(complete);
                return Ok(());
            }
            // In a box, as all that few streams need: an idle stream's task would have room for it.
            other => Box::pin(other.pass_by(control, over)).await.inspect_err(|_| {
                self.end(false);
            })?,
        }
        self.end(*over.wait().await);
        Ok(())
    }

    /// Reads a source to its end.
    async fn fill(self: &Arc<Self>, source: &mut Source) {
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
        let mut state = self.state();
        let before = state.bytes.len();
        let coming = pieces.iter().map(Bytes::len).sum();
        let expected = state.last.max(coming);
        state.bytes.append(pieces.iter().map(|piece| &**piece), expected);
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
            told.extend(blocks.map(|block| (self.target, self.data, Told::Bytes(block))));
            self.room.notify_one();
        }
        if state.ended && state.bytes.is_empty() && !std::mem::replace(&mut state.told_end, true) {
            told.push((self.target, self.end, Told::Value(state.complete.into())));
        }
    }
}

/// Ends a session whose output cannot be written any more: as ssh, the command is told that nobody reads, and dies of
/// SIGPIPE at its next write.
async fn hang_up(control: &Control, over: &SetOnce<bool>) {
    // The daemon does so itself.
    let Control::Engine(control) = control else {
        return;
    };
    control.end_of_write();
    if tokio::time::timeout(AFTER_BROKEN_PIPE, over.wait())
        .await
        .is_err()
    {
        control.close();
    }
}

/// Where a flow's bytes come from.
pub(crate) enum Source {
    Channel(ChannelReader),
    Pipe(ReadHalf<DuplexStream>),
    /// The other end is the daemon's.
    Socket(OwnedReadHalf),
}

/// The most that is read from a pipe or socket at once.
const CHUNK: usize = 64 * 1024;

/// Pieces of a channel taken at once: 512 KiB of sshd's packets.
const PIECES: usize = 16;

impl Source {
    /// Adds what is there to `pieces`, and waits while there is nothing. 0 at the end.
    async fn chunks(&mut self, pieces: &mut Vec<Bytes>) -> usize {
        let chunk = match self {
            Self::Channel(reader) => return reader.chunks(pieces, PIECES).await,
            Self::Pipe(pipe) => {
                let mut chunk = BytesMut::with_capacity(CHUNK);
                match pipe.read_buf(&mut chunk).await {
                    Ok(len) if len > 0 => chunk,
                    _ => return 0,
                }
            }
            Self::Socket(socket) => loop {
                // No buffer while nothing comes: most streams are silent most of the time.
                if socket.readable().await.is_err() {
                    return 0;
                }
                let mut chunk = BytesMut::with_capacity(CHUNK);
                match socket.try_read_buf(&mut chunk) {
                    Ok(len) if len > 0 => break chunk,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    _ => return 0,
                }
            },
        };
        pieces.push(chunk.freeze());
        1
    }

    /// Whether the end was the other side's word. To be asked at the end; `None` where only the session knows.
    fn is_complete(&self) -> Option<bool> {
        match self {
            Self::Channel(reader) => Some(reader.is_complete()),
            Self::Pipe(_) => Some(true),
            Self::Socket(_) => None,
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

    /// Whether JavaScript waits and can go on; says so only once.
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
}

impl Outlet {
    /// Writes all that comes into the sink, until that is closed: that nothing more is written ends no stream.
    async fn empty(mut self, mut sink: Sink) {
        loop {
            let written = tokio::select! {
                biased;
                written = self.written.recv() => written,
                () = sink.closed() => None,
            };
            match written {
                Some(Written::Data(data)) => {
                    let len = data.len();
                    // Who reads no more is no error of the one who writes; the stream's end says what happened.
                    let _ = sink.send(data).await;
                    self.room.taken.fetch_sub(len, Ordering::AcqRel);
                    if self.room.reopens() {
                        self.outbox.tell(self.target, Kind::Drain, Value::Null);
                    }
                }
                Some(Written::End) => sink.finish().await,
                None => return,
            }
        }
    }
}

/// Where what is written goes.
enum Sink {
    Channel(ChannelWriter),
    Pipe(WriteHalf<DuplexStream>),
    /// The other end is the daemon's.
    Socket(OwnedWriteHalf),
}

impl Sink {
    async fn send(&mut self, data: Bytes) -> io::Result<()> {
        match self {
            Self::Channel(writer) => writer.send(data).await,
            Self::Pipe(pipe) => pipe.write_all(&data).await,
            Self::Socket(socket) => socket.write_all(&data).await,
        }
    }

    async fn closed(&self) {
        match self {
            Self::Channel(writer) => writer.closed().await,
            // Whoever writes into a pipe without a reader finds out.
            Self::Pipe(_) | Self::Socket(_) => std::future::pending().await,
        }
    }

    async fn finish(&mut self) {
        match self {
            Self::Channel(writer) => writer.finish(),
            // The reader is gone: there is nobody to tell.
            Self::Pipe(pipe) => drop(pipe.shutdown().await),
            Self::Socket(socket) => drop(socket.shutdown().await),
        }
    }
}
