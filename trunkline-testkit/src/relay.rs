//! A network path that can be slow, narrow, silent, broken or lossy, at the test's word.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::BufMut;
use rustix::net::{Shutdown, shutdown, sockopt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, watch};

use crate::Error;
use crate::background::Background;
use crate::log::PATIENCE;
use crate::port::PortReservation;

mod precise_timer;
use precise_timer::PreciseTimer;

/// The most that one read takes, and thus the largest chunk that travels as one.
const CHUNK: usize = 256 * 1024;

/// How much one direction of one connection may hold back. Beyond it the relay stops reading, as a path would
/// whose bandwidth × delay is that large: 1.3 GB/s over 100 ms.
const IN_FLIGHT_LIMIT: usize = 128 * 1024 * 1024;

/// A narrow link queues this much time's worth of data before it stops reading, like a router without bufferbloat.
const BOTTLENECK_QUEUE: Duration = Duration::from_millis(20);

/// How finely a narrow link spreads data out: a chunk is at most this much of its time.
const PACING: Duration = Duration::from_millis(1);

/// One Ethernet frame's worth of TCP: a narrow link's smallest chunk.
const SEGMENT: usize = 1448;

/// The most that is recorded of one direction of one connection, in bytes.
const RECORDING_LIMIT: usize = 64 * 1024 * 1024;

/// A TCP relay in front of a server. Every setting may change while connections run, and holds for all of them.
///
/// **Delay.** Each chunk is stamped when it arrives and leaves one delay later, whatever is in flight before it, to
/// within a fraction of a millisecond (a `timerfd`, not tokio's millisecond wheel). Opening a connection costs the
/// round trip of TCP's handshake too, although the loopback hides it: what the client sends before it is counted as sent
/// one round trip after it connected, so that `time / RTT` is what a real path would show. [`Relay::set_handshake`]
/// switches that off.
///
/// **Rate.** A narrow link carries so many bytes a second per connection and direction, and queues 20 ms of them before
/// it pushes back. Window limits of TCP itself do not show on loopback, so a path is limited by rate and by what the
/// two programs allow to be in flight.
///
/// It runs on a thread of its own: neither a blocking test nor a busy runtime changes its timing.
/// Dropping it ends every connection and frees the port.
#[derive(Debug)]
pub struct Relay {
    addr: SocketAddr,
    shared: Arc<Shared>,
    settings: watch::Sender<Settings>,
    _background: Background,
    _reservation: Option<PortReservation>,
}

impl Relay {
    /// A relay on a free port of 127.0.0.1 that passes everything to `target` at once.
    ///
    /// # Errors
    /// When no port is free or the system gives no thread.
    pub fn to(target: SocketAddr) -> Result<Relay, Error> {
        Relay::between(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), target)
    }

    /// A relay from `listen`; port 0 stands for any free one.
    ///
    /// # Errors
    /// As [`Relay::to`], and when the port asked for is taken.
    pub fn between(listen: SocketAddr, target: SocketAddr) -> Result<Relay, Error> {
        // A port of the kernel's choosing is reserved, so that it stays ours through `refuse`.
        let (listen, reservation) = if listen.port() == 0 {
            let reservation = PortReservation::on(&[listen.ip()])?;
            (
                SocketAddr::new(listen.ip(), reservation.port()),
                Some(reservation),
            )
        } else {
            (listen, None)
        };
        let shared = Arc::new(Shared::default());
        let (settings, watched) = watch::channel(Settings::default());
        let background = Background::start("relay", || {
            let listener = open_listener(listen)?;
            Ok(accept_loop(
                listener,
                listen,
                target,
                Arc::clone(&shared),
                watched,
            ))
        })?;
        Ok(Relay {
            addr: listen,
            shared,
            settings,
            _background: background,
            _reservation: reservation,
        })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// The whole round trip: half of it as delay in each direction.
    pub fn set_rtt(&self, rtt: Duration) {
        self.change(|settings| {
            settings.to_server.delay = rtt / 2;
            settings.to_client.delay = rtt - rtt / 2;
        });
    }

    /// The one-way delay of a direction. Data in flight keeps its time, and its order.
    pub fn set_delay(&self, direction: Direction, delay: Duration) {
        self.change(|settings| settings.direction(direction).delay = delay);
    }

    /// The bytes a second that each connection gets in a direction; `None` for no limit.
    ///
    /// # Panics
    /// When the rate is zero; [`Relay::stall`] is what stops the flow.
    pub fn set_rate(&self, direction: Direction, rate: Option<u64>) {
        assert_ne!(
            rate,
            Some(0),
            "a rate of zero never ends; stall the relay instead"
        );
        self.change(|settings| settings.direction(direction).rate = rate);
    }

    /// Whether opening a connection costs a round trip before its first byte; it does by default.
    pub fn set_handshake(&self, simulated: bool) {
        self.change(|settings| settings.handshake = simulated);
    }

    /// Forwards nothing more, either way, and leaves every connection open: a path that has gone dark. (New connections
    /// still succeed, because the kernel accepts them, and then hear nothing.)
    pub fn stall(&self) {
        self.stall_direction(Direction::ToServer);
        self.stall_direction(Direction::ToClient);
    }

    /// Forwards nothing more in one direction.
    pub fn stall_direction(&self, direction: Direction) {
        self.change(|settings| settings.direction(direction).stalled = true);
    }

    /// Undoes every stall; nothing has been lost.
    pub fn resume(&self) {
        self.change(|settings| {
            settings.to_server.stalled = false;
            settings.to_client.stalled = false;
        });
    }

    /// Ends every open connection at once, towards both sides, with RST. What is in flight is lost.
    /// New connections are accepted as before.
    pub fn reset(&self) {
        self.cut(Ending::Reset);
    }

    /// Ends every open connection at once, towards both sides, with FIN. What is in flight is lost.
    /// New connections are accepted as before.
    pub fn close(&self) {
        self.cut(Ending::Fin);
    }

    /// Stops listening: connecting is refused, as by a machine whose sshd is down. Returns when that holds.
    /// Open connections go on.
    pub fn refuse(&self) {
        self.change(|settings| settings.refuse = true);
        self.await_listening(false);
    }

    /// Undoes [`Relay::refuse`]. Returns when connecting works again.
    pub fn accept(&self) {
        self.change(|settings| settings.refuse = false);
        self.await_listening(true);
    }

    /// Flips the lowest bit of the byte at `offset` (0 is the first) of the first connection that gets that
    /// far in that direction. Happens once for each call.
    pub fn corrupt(&self, direction: Direction, offset: u64) {
        self.shared.lock().direction(direction).corruptions.push(offset);
    }

    /// Flips the lowest bit of the next byte that passes in a direction, on any connection.
    pub fn corrupt_next(&self, direction: Direction) {
        self.shared.lock().direction(direction).corrupt_next += 1;
    }

    /// Keeps a copy of all that passes on connections accepted from now on, at most 64 MiB a direction and connection.
    pub fn record(&self) {
        self.change(|settings| settings.record = true);
    }

    /// What one connection (0 is the first accepted) has carried in a direction since it was accepted under
    /// [`Relay::record`]. Counted, like [`Relay::bytes`], when it arrives at the relay.
    pub fn recording(&self, connection: usize, direction: Direction) -> Vec<u8> {
        let mut state = self.shared.lock();
        state
            .direction(direction)
            .recordings
            .get(connection)
            .cloned()
            .unwrap_or_default()
    }

    /// How many bytes have arrived in a direction, on all connections.
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.shared.lock().direction(direction).bytes
    }

    /// How many connections have been accepted.
    pub fn connections(&self) -> usize {
        self.shared.lock().accepted
    }

    /// How many connections are open.
    pub fn open_connections(&self) -> usize {
        self.shared.lock().open
    }

    /// Waits until `bytes` have arrived in a direction.
    ///
    /// # Errors
    /// [`Error::Timeout`] after 20 seconds.
    pub async fn wait_for_bytes(&self, direction: Direction, bytes: u64) -> Result<(), Error> {
        self.wait_until(&format!("{bytes} bytes {direction:?}"), || {
            self.bytes(direction) >= bytes
        })
        .await
    }

    /// Waits until `connections` have been accepted.
    ///
    /// # Errors
    /// [`Error::Timeout`] after 20 seconds.
    pub async fn wait_for_connections(&self, connections: usize) -> Result<(), Error> {
        self.wait_until(&format!("{connections} connections"), || {
            self.connections() >= connections
        })
        .await
    }

    /// Waits until no connection is open.
    ///
    /// # Errors
    /// [`Error::Timeout`] after 20 seconds.
    pub async fn wait_until_idle(&self) -> Result<(), Error> {
        self.wait_until("every connection to end", || self.open_connections() == 0)
            .await
    }

    async fn wait_until(&self, what: &str, mut reached: impl FnMut() -> bool) -> Result<(), Error> {
        let wait = async {
            loop {
                // Asked for before the check, so that a change between check and wait is not missed.
                let changed = self.shared.changed.notified();
                if reached() {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.map_err(|_| {
            let log = format!("{:?}", self.shared.lock());
            Error::Timeout {
                what: what.to_owned(),
                seconds: PATIENCE.as_secs(),
                log,
            }
        })
    }

    fn cut(&self, ending: Ending) {
        self.change(|settings| settings.cuts.push(ending));
    }

    fn change(&self, change: impl FnOnce(&mut Settings)) {
        self.settings.send_modify(change);
    }

    fn await_listening(&self, wanted: bool) {
        let mut state = self.shared.lock();
        let started = Instant::now();
        while state.listening != wanted && started.elapsed() < PATIENCE {
            state = self
                .shared
                .listening
                .wait_timeout(state, PATIENCE)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// Which way through the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// What the client sends.
    ToServer,
    /// What the server sends.
    ToClient,
}

/// What the test wants; every task of the relay watches it.
#[derive(Debug, Clone)]
struct Settings {
    to_server: Link,
    to_client: Link,
    handshake: bool,
    record: bool,
    refuse: bool,
    /// Every cut so far. A connection ends when the list outgrows its length at the connection's start.
    cuts: Vec<Ending>,
}

/// One direction of the path.
#[derive(Debug, Clone, Copy, Default)]
struct Link {
    delay: Duration,
    rate: Option<u64>,
    stalled: bool,
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Fin,
    Reset,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            to_server: Link::default(),
            to_client: Link::default(),
            handshake: true,
            record: false,
            refuse: false,
            cuts: Vec::new(),
        }
    }
}

impl Settings {
    fn direction(&mut self, direction: Direction) -> &mut Link {
        match direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        }
    }

    fn link(&self, direction: Direction) -> Link {
        match direction {
            Direction::ToServer => self.to_server,
            Direction::ToClient => self.to_client,
        }
    }
}

/// What the relay tells the test.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Told of every change of the counts.
    changed: Notify,
    /// Told of every change of `State::listening`.
    listening: Condvar,
}

#[derive(Debug, Default)]
struct State {
    accepted: usize,
    open: usize,
    listening: bool,
    to_server: Traffic,
    to_client: Traffic,
}

#[derive(Default)]
struct Traffic {
    bytes: u64,
    corruptions: Vec<u64>,
    corrupt_next: usize,
    /// By connection; of those accepted without recording there is an empty entry at most.
    recordings: Vec<Vec<u8>>,
}

impl std::fmt::Debug for Traffic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Traffic")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is counters and lists, valid whatever panicked beside them.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_waiters();
    }

    fn set_listening(&self, listening: bool) {
        self.lock().listening = listening;
        self.listening.notify_all();
    }
}

impl State {
    fn direction(&mut self, direction: Direction) -> &mut Traffic {
        match direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        }
    }
}

fn open_listener(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(1024)
}

/// Runs until the relay is dropped; the connections' tasks end with its runtime.
async fn accept_loop(
    listener: TcpListener,
    addr: SocketAddr,
    target: SocketAddr,
    shared: Arc<Shared>,
    mut settings: watch::Receiver<Settings>,
) {
    let mut listener = Some(listener);
    shared.set_listening(true);
    loop {
        let accept = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => pending().await,
            }
        };
        tokio::select! {
            accepted = accept => {
                // An error is the peer's (it left the queue) or passes (no descriptor free just now).
                if let Ok((client, _)) = accepted {
                    let connection = Connection::accepted(client, &shared, &settings);
                    tokio::spawn(connection.serve(target));
                } else {
                    tokio::task::yield_now().await;
                }
            }
            changed = settings.changed() => {
                if changed.is_err() {
                    return;
                }
                if settings.borrow().refuse {
                    if let Some(listener) = listener.take() {
                        // Closing is not enough: a process that the test is just starting holds a copy of every
                        // descriptor until it executes its program. Nothing can be done about an error.
                        let _ = shutdown(&listener, Shutdown::Read);
                    }
                } else if listener.is_none() {
                    listener = open_listener(addr).ok();
                }
                shared.set_listening(listener.is_some());
            }
        }
    }
}

/// One client's connection and the relay's own to the server.
struct Connection {
    index: usize,
    accepted: Instant,
    client: TcpStream,
    cuts_before: usize,
    shared: Arc<Shared>,
    settings: watch::Receiver<Settings>,
}

impl Connection {
    fn accepted(client: TcpStream, shared: &Arc<Shared>, settings: &watch::Receiver<Settings>) -> Connection {
        let accepted = Instant::now();
        let (cuts_before, record) = {
            let settings = settings.borrow();
            (settings.cuts.len(), settings.record)
        };
        let mut index = 0;
        shared.update(|state| {
            index = state.accepted;
            state.accepted += 1;
            state.open += 1;
            if record {
                state.to_server.recordings.resize_with(state.accepted, Vec::new);
                state.to_client.recordings.resize_with(state.accepted, Vec::new);
            }
        });
        Connection {
            index,
            accepted,
            client,
            cuts_before,
            shared: Arc::clone(shared),
            settings: settings.clone(),
        }
    }

    async fn serve(self, target: SocketAddr) {
        let mut server = None;
        let mut settings = self.settings.clone();
        let ending = tokio::select! {
            outcome = self.relay(target, &mut server) => match outcome {
                Ok(()) => Ending::Fin,
                Err(_) => Ending::Reset,
            },
            changed = settings.wait_for(|settings| settings.cuts.len() > self.cuts_before) => {
                changed.map_or(Ending::Reset, |settings| settings.cuts[self.cuts_before])
            }
        };
        let sockets = std::iter::once(&self.client).chain(&server);
        match ending {
            Ending::Reset => sockets.for_each(reset_on_close),
            Ending::Fin => {
                for socket in sockets.clone() {
                    // Refused only by a socket that is closed already.
                    let _ = shutdown(socket, Shutdown::Write);
                }
                // Closing a socket with unread data would send RST: read until the peer closes too.
                for socket in sockets {
                    discard(socket).await;
                }
            }
        }
        self.shared.update(|state| state.open -= 1);
    }

    /// Passes bytes until both sides have finished sending. An error means that either side broke off.
    async fn relay(&self, target: SocketAddr, server: &mut Option<TcpStream>) -> io::Result<()> {
        self.client.set_nodelay(true)?;
        let (to_server, to_client) = (Pipe::default(), Pipe::default());
        let round_trip = {
            let settings = self.settings.borrow();
            let round_trip = settings.to_server.delay + settings.to_client.delay;
            if settings.handshake {
                round_trip
            } else {
                Duration::ZERO
            }
        };
        // SYN and its answer take one round trip; only then does a client learn that it may send, and its ACK, with
        // which the server accepts, takes another half.
        let established = self.accepted + round_trip;
        let seen_by_server = established + self.settings.borrow().to_server.delay;
        let simulated = !round_trip.is_zero();

        let from_client = self.fill(&self.client, &to_server, Direction::ToServer, established);
        let from_server = async {
            if simulated {
                PreciseTimer::default().sleep_until(seen_by_server).await?;
            }
            let server = &*server.insert(TcpStream::connect(target).await?);
            server.set_nodelay(true)?;
            tokio::try_join!(
                self.drain(&to_server, server, Direction::ToServer),
                self.fill(server, &to_client, Direction::ToClient, established),
                self.drain(&to_client, &self.client, Direction::ToClient),
            )
        };
        tokio::try_join!(from_client, from_server).map(drop)
    }

    /// Reads `source` into `pipe` until it ends, giving each chunk the time when it is due at the other end.
    async fn fill(
        &self,
        source: &TcpStream,
        pipe: &Pipe,
        direction: Direction,
        not_before: Instant,
    ) -> io::Result<()> {
        let mut settings = self.settings.clone();
        let mut timer = PreciseTimer::default();
        let mut line = Line {
            free_at: not_before,
            last_due: not_before,
        };
        let mut offset = 0;
        let mut narrowed = false;
        loop {
            wait_while_stalled(&mut settings, direction).await?;
            pipe.wait_for_room().await;
            if let Some(queue_ends) = line.free_at.checked_sub(BOTTLENECK_QUEUE) {
                timer.sleep_until(queue_ends).await?;
            }
            source.readable().await?;
            let link = settings.borrow().link(direction);
            if let (Some(rate), false) = (link.rate, narrowed) {
                // What the kernel takes in for us is queued by the link as well.
                let queue = usize::try_from(rate / 50)
                    .unwrap_or(CHUNK)
                    .clamp(16 * 1024, CHUNK);
                sockopt::set_socket_recv_buffer_size(source, queue)?;
                narrowed = true;
            }
            let mut chunk = pipe.spare_buffer();
            let read = match source.try_read_buf(&mut (&mut chunk).limit(link.chunk_size())) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    pipe.give_back(chunk);
                    continue;
                }
                other => other,
            };
            let arrived = Instant::now().max(not_before);
            if let Ok(length @ 1..) = read {
                self.note(&mut chunk, direction, offset);
                offset += length as u64;
                pipe.push(line.due(arrived, length, link), Item::Data(chunk));
                continue;
            }
            let ending = if read.is_ok() { Ending::Fin } else { Ending::Reset };
            pipe.push(line.due(arrived, 0, link), Item::End(ending));
            return Ok(());
        }
    }

    /// Writes what is due in `pipe` to `sink`, until the end of the stream has been passed on.
    async fn drain(&self, pipe: &Pipe, sink: &TcpStream, direction: Direction) -> io::Result<()> {
        let mut settings = self.settings.clone();
        let mut timer = PreciseTimer::default();
        loop {
            let (due, item) = pipe.pop().await;
            loop {
                wait_while_stalled(&mut settings, direction).await?;
                timer.sleep_until(due).await?;
                if !settings.borrow().link(direction).stalled {
                    break;
                }
            }
            match item {
                Item::Data(chunk) => {
                    let mut rest = &chunk[..];
                    while !rest.is_empty() {
                        sink.writable().await?;
                        match sink.try_write(rest) {
                            Ok(written) => rest = &rest[written..],
                            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                            Err(error) => return Err(error),
                        }
                    }
                    pipe.delivered(chunk);
                }
                Item::End(Ending::Fin) => return Ok(shutdown(sink, Shutdown::Write)?),
                Item::End(Ending::Reset) => return Err(io::ErrorKind::ConnectionReset.into()),
            }
        }
    }

    /// Counts and records what has arrived, and damages it where the test said so.
    fn note(&self, chunk: &mut [u8], direction: Direction, offset: u64) {
        self.shared.update(|state| {
            let traffic = state.direction(direction);
            traffic.bytes += chunk.len() as u64;
            if let Some(recording) = traffic.recordings.get_mut(self.index) {
                let room = RECORDING_LIMIT.saturating_sub(recording.len());
                recording.extend_from_slice(&chunk[..chunk.len().min(room)]);
            }
            let end = offset + chunk.len() as u64;
            traffic.corruptions.retain(|&at| {
                let here = (offset..end).contains(&at);
                if here {
                    // Less than the chunk's length, which is a usize.
                    chunk[(at - offset) as usize] ^= 1;
                }
                !here
            });
            for byte in chunk.iter_mut().take(traffic.corrupt_next) {
                *byte ^= 1;
                traffic.corrupt_next -= 1;
            }
        });
    }
}

/// When the link is free again and what is on it: the arithmetic of one direction.
struct Line {
    free_at: Instant,
    last_due: Instant,
}

impl Line {
    /// When a chunk that arrived at `arrived` comes out at the other end.
    fn due(&mut self, arrived: Instant, length: usize, link: Link) -> Instant {
        let carried = match link.rate {
            // In nanoseconds, which overflow no u64 up to 2^64 / 10^9 bytes, 16 GiB, in one chunk.
            Some(rate) => Duration::from_nanos(length as u64 * 1_000_000_000 / rate),
            None => Duration::ZERO,
        };
        self.free_at = arrived.max(self.free_at) + carried;
        // A delay that has been lowered must not let later bytes overtake earlier ones.
        self.last_due = self.last_due.max(self.free_at + link.delay);
        self.last_due
    }
}

impl Link {
    fn chunk_size(self) -> usize {
        match self.rate {
            // At very low rates a whole segment would take longer than the queue is meant to be.
            Some(rate) => {
                let at_least = usize::try_from(rate / 50).unwrap_or(SEGMENT).clamp(1, SEGMENT);
                let paced = u128::from(rate) * PACING.as_nanos() / 1_000_000_000;
                usize::try_from(paced).unwrap_or(CHUNK).clamp(at_least, CHUNK)
            }
            None => CHUNK,
        }
    }
}

/// What is under way in one direction of one connection.
#[derive(Default)]
struct Pipe {
    queue: Mutex<Queue>,
    pushed: Notify,
    delivered: Notify,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<(Instant, Item)>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
}

enum Item {
    Data(Vec<u8>),
    End(Ending),
}

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, due: Instant, item: Item) {
        let mut queue = self.lock();
        let item = match item {
            Item::Data(mut chunk) => {
                queue.bytes += chunk.len();
                // A keystroke should not hold on to the room of a bulk chunk while it travels.
                if chunk.len() < CHUNK / 4 {
                    let small = chunk.as_slice().into();
                    chunk.clear();
                    queue.spare.push(chunk);
                    Item::Data(small)
                } else {
                    Item::Data(chunk)
                }
            }
            end @ Item::End(_) => end,
        };
        queue.items.push_back((due, item));
        drop(queue);
        self.pushed.notify_one();
    }

    async fn pop(&self) -> (Instant, Item) {
        loop {
            if let Some(item) = self.lock().items.pop_front() {
                return item;
            }
            self.pushed.notified().await;
        }
    }

    async fn wait_for_room(&self) {
        while self.lock().bytes >= IN_FLIGHT_LIMIT {
            self.delivered.notified().await;
        }
    }

    fn delivered(&self, chunk: Vec<u8>) {
        self.lock().bytes -= chunk.len();
        self.give_back(chunk);
        self.delivered.notify_one();
    }

    fn spare_buffer(&self) -> Vec<u8> {
        self.lock()
            .spare
            .pop()
            .unwrap_or_else(|| Vec::with_capacity(CHUNK))
    }

    fn give_back(&self, mut chunk: Vec<u8>) {
        const SPARES: usize = 4;
        chunk.clear();
        let mut queue = self.lock();
        if chunk.capacity() >= CHUNK && queue.spare.len() < SPARES {
            queue.spare.push(chunk);
        }
    }
}

async fn wait_while_stalled(
    settings: &mut watch::Receiver<Settings>,
    direction: Direction,
) -> io::Result<()> {
    let moving = settings
        .wait_for(|settings| !settings.link(direction).stalled)
        .await;
    moving
        .map(drop)
        .map_err(|_| io::ErrorKind::ConnectionAborted.into())
}

/// Has the kernel send RST instead of FIN, and drop what is unsent, when the socket closes.
fn reset_on_close(socket: &TcpStream) {
    // Refused only by a socket that is gone.
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// Reads until the peer has closed, keeping nothing.
async fn discard(socket: &TcpStream) {
    let mut scratch = vec![0; 16 * 1024];
    while socket.readable().await.is_ok() {
        match socket.try_read(&mut scratch) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prop_assert, proptest};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Both ends of a connection through a relay.
    async fn connected() -> (Relay, TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let relay = Relay::to(listener.local_addr().unwrap()).unwrap();
        let (client, server) = tokio::join!(TcpStream::connect(relay.addr()), listener.accept());
        let (client, server) = (client.unwrap(), server.unwrap().0);
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        (relay, client, server)
    }

    async fn echo_once(client: &mut TcpStream, server: &mut TcpStream) -> Duration {
        let mut byte = [7];
        let started = Instant::now();
        client.write_all(&byte).await.unwrap();
        server.read_exact(&mut byte).await.unwrap();
        server.write_all(&byte).await.unwrap();
        client.read_exact(&mut byte).await.unwrap();
        started.elapsed()
    }

    #[tokio::test]
    async fn a_round_trip_takes_at_least_the_rtt_asked_for() {
        let (relay, mut client, mut server) = connected().await;
        for milliseconds in [1, 5, 30] {
            let rtt = Duration::from_millis(milliseconds);
            relay.set_rtt(rtt);
            assert!(echo_once(&mut client, &mut server).await >= rtt);
        }
    }

    #[tokio::test]
    async fn data_in_flight_is_pipelined() {
        let (relay, mut client, mut server) = connected().await;
        let delay = Duration::from_millis(50);
        relay.set_delay(Direction::ToServer, delay);
        // Sent one after the other while the first are still on their way; delays that added up would take ten seconds.
        let started = Instant::now();
        for sent in 1..=200 {
            client.write_all(&[0; 100]).await.unwrap();
            relay
                .wait_for_bytes(Direction::ToServer, sent * 100)
                .await
                .unwrap();
        }
        let mut received = [0; 20_000];
        server.read_exact(&mut received).await.unwrap();
        assert!(started.elapsed() >= delay);
        assert!(started.elapsed() < delay * 200);
    }

    #[tokio::test]
    async fn opening_a_connection_costs_the_handshakes_round_trip() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let relay = Relay::to(listener.local_addr().unwrap()).unwrap();
        let rtt = Duration::from_millis(20);
        relay.set_rtt(rtt);
        let started = Instant::now();
        let mut client = TcpStream::connect(relay.addr()).await.unwrap();
        client.write_all(b"early").await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let mut early = [0; 5];
        server.read_exact(&mut early).await.unwrap();
        assert!(started.elapsed() >= rtt + rtt / 2);
        server.write_all(b"late!").await.unwrap();
        client.read_exact(&mut early).await.unwrap();
        assert!(started.elapsed() >= rtt * 2);
    }

    #[tokio::test]
    async fn a_narrow_link_takes_the_time_its_rate_asks_for() {
        let (relay, mut client, mut server) = connected().await;
        relay.set_rate(Direction::ToServer, Some(1_000_000));
        let started = Instant::now();
        let sender = tokio::spawn(async move {
            client.write_all(&vec![0; 200_000]).await.unwrap();
            client
        });
        let mut received = vec![0; 200_000];
        server.read_exact(&mut received).await.unwrap();
        assert!(started.elapsed() >= Duration::from_millis(200));
        drop(sender.await.unwrap());
    }

    #[tokio::test]
    async fn nothing_passes_a_stalled_relay_and_nothing_is_lost() {
        let (relay, mut client, mut server) = connected().await;
        relay.stall();
        client.write_all(b"hello").await.unwrap();
        let mut received = [0; 5];
        tokio::select! {
            biased;
            _ = server.read_exact(&mut received) => panic!("passed a stalled relay"),
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
        relay.resume();
        server.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"hello");
    }

    #[tokio::test]
    async fn a_reset_reaches_both_sides_and_new_connections_work() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let relay = Relay::to(listener.local_addr().unwrap()).unwrap();
        for _ in 0..2 {
            let (client, server) = tokio::join!(TcpStream::connect(relay.addr()), listener.accept());
            let (mut client, mut server) = (client.unwrap(), server.unwrap().0);
            echo_once(&mut client, &mut server).await;
            relay.reset();
            let mut buffer = [0; 1];
            for side in [&mut client, &mut server] {
                let error = side.read(&mut buffer).await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            }
        }
        relay.wait_until_idle().await.unwrap();
        assert_eq!(relay.connections(), 2);
    }

    #[tokio::test]
    async fn a_close_is_a_clean_end_for_both_sides() {
        let (relay, mut client, mut server) = connected().await;
        echo_once(&mut client, &mut server).await;
        relay.close();
        let mut buffer = [0; 1];
        assert_eq!(client.read(&mut buffer).await.unwrap(), 0);
        assert_eq!(server.read(&mut buffer).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn one_sides_end_leaves_the_other_direction_open() {
        let (_relay, mut client, mut server) = connected().await;
        client.shutdown().await.unwrap();
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).await.unwrap();
        server.write_all(b"still here").await.unwrap();
        drop(server);
        client.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"still here");
    }

    #[tokio::test]
    async fn exactly_the_chosen_bit_is_flipped_once() {
        let (relay, mut client, mut server) = connected().await;
        relay.corrupt(Direction::ToServer, 3);
        let mut received = [0; 6];
        client.write_all(&[0; 6]).await.unwrap();
        server.read_exact(&mut received).await.unwrap();
        assert_eq!(received, [0, 0, 0, 1, 0, 0]);
        relay.corrupt_next(Direction::ToServer);
        client.write_all(&[0; 6]).await.unwrap();
        server.read_exact(&mut received).await.unwrap();
        assert_eq!(received, [1, 0, 0, 0, 0, 0]);
    }

    #[tokio::test]
    async fn a_refusing_relay_comes_back_on_its_port() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let relay = Relay::to(listener.local_addr().unwrap()).unwrap();
        let (client, server) = tokio::join!(TcpStream::connect(relay.addr()), listener.accept());
        let (mut client, mut server) = (client.unwrap(), server.unwrap().0);
        for _ in 0..3 {
            relay.refuse();
            let error = TcpStream::connect(relay.addr()).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            relay.accept();
            TcpStream::connect(relay.addr()).await.unwrap();
        }
        // Connections from before are not touched by any of it.
        echo_once(&mut client, &mut server).await;
    }

    #[tokio::test]
    async fn bytes_are_counted_and_recorded_each_way() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let relay = Relay::to(listener.local_addr().unwrap()).unwrap();
        relay.record();
        let (client, server) = tokio::join!(TcpStream::connect(relay.addr()), listener.accept());
        let (mut client, mut server) = (client.unwrap(), server.unwrap().0);
        client.write_all(b"ping!").await.unwrap();
        server.write_all(b"pong").await.unwrap();
        relay.wait_for_bytes(Direction::ToServer, 5).await.unwrap();
        relay.wait_for_bytes(Direction::ToClient, 4).await.unwrap();
        assert_eq!(relay.recording(0, Direction::ToServer), b"ping!");
        assert_eq!(relay.recording(0, Direction::ToClient), b"pong");
        assert_eq!(relay.recording(1, Direction::ToClient), b"");
    }

    proptest! {
        #[test]
        fn bytes_keep_their_order_and_never_arrive_early(
            chunks in proptest::collection::vec(
                (0..5_000_u64, 0..CHUNK, 0..200_000_u64, proptest::option::of(1..u64::MAX)), 1..50)
        ) {
            let mut arrived = Instant::now();
            let mut line = Line { free_at: arrived, last_due: arrived };
            let mut last_due = arrived;
            for (gap, length, delay, rate) in chunks {
                arrived += Duration::from_micros(gap);
                let link = Link { delay: Duration::from_micros(delay), rate, stalled: false };
                let due = line.due(arrived, length, link);
                prop_assert!(due >= arrived + link.delay);
                prop_assert!(due >= last_due);
                last_due = due;
            }
        }

        #[test]
        fn a_chunk_is_never_empty_and_never_above_the_limit(rate in proptest::option::of(1..u64::MAX)) {
            let size = Link { rate, ..Link::default() }.chunk_size();
            prop_assert!((1..=CHUNK).contains(&size));
        }
    }
}
