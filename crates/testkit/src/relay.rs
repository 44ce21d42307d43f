//! A network path that a test can make slow, narrow, silent, broken or lossy.

use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;

use crate::Error;
use crate::background::Background;
use crate::log::PATIENCE;
use crate::port::PortReservation;

mod connection;
mod line;
mod pipe;
mod precise_timer;
mod settings;

use connection::Connection;
pub use settings::Direction;
use settings::{Ending, Settings, Shared};

/// A TCP relay in front of a server. Every setting can be changed while connections are open, and applies to all of
/// them.
///
/// **Delay.** Each chunk is stamped when it arrives and leaves one delay later, whatever is in flight before it,
/// accurate to a fraction of a millisecond (a `timerfd`, not tokio's timer with its resolution of a millisecond).
/// Opening a connection also costs the round trip of TCP's handshake, although the loopback hides it: data that the
/// client sends earlier counts as sent one round trip after it connected, so that `time / RTT` is the same as on a real
/// path. [`Relay::set_handshake`] switches that off.
///
/// **Rate.** A narrow link carries this many bytes a second per connection and direction. It queues 20 ms of them
/// before it stops reading. TCP's own window limits have no effect on loopback, so a path is limited by its rate and by
/// the data that the two programs allow to be in flight.
///
/// It runs on its own thread: neither a blocking test nor a busy runtime changes its timing. Dropping it ends every
/// connection and frees the port.
#[derive(Debug)]
pub struct Relay {
    addr: SocketAddr,
    shared: Arc<Shared>,
    settings: watch::Sender<Settings>,
    _background: Background,
    _reservation: Option<PortReservation>,
}

impl Relay {
    /// Starts a relay on a free port of 127.0.0.1 that passes everything to `target` without delay.
    ///
    /// # Errors
    /// When no port is free, or the thread cannot be started.
    pub fn start(target: SocketAddr) -> Result<Relay, Error> {
        Relay::start_on(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), target)
    }

    /// Starts a relay that listens on `listen`. Port 0 means any free port.
    ///
    /// # Errors
    /// As [`Relay::start`], and when the requested port is taken.
    pub fn start_on(listen: SocketAddr, target: SocketAddr) -> Result<Relay, Error> {
        // A port that the kernel chose is reserved, so that it stays ours during `refuse`.
        let (listen, reservation) = if listen.port() == 0 {
            let reservation = PortReservation::reserve(&[listen.ip()])?;
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

    /// Returns the address on which it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the port that it listens on.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Sets the round-trip time: half of it is the delay in each direction.
    pub fn set_rtt(&self, rtt: Duration) {
        self.change(|settings| {
            settings.to_server.delay = rtt / 2;
            settings.to_client.delay = rtt - rtt / 2;
        });
    }

    /// Sets the one-way delay of a direction. Data in flight keeps its time and its order.
    pub fn set_delay(&self, direction: Direction, delay: Duration) {
        self.change(|settings| settings.direction(direction).delay = delay);
    }

    /// Sets the number of bytes a second for each connection in a direction; `None` for no limit.
    ///
    /// # Panics
    /// When the rate is zero. Use [`Relay::stall`] to stop the flow.
    pub fn set_rate(&self, direction: Direction, rate: Option<u64>) {
        assert_ne!(
            rate,
            Some(0),
            "a rate of zero never ends; stall the relay instead"
        );
        self.change(|settings| settings.direction(direction).rate = rate);
    }

    /// Sets if opening a connection costs a round trip before its first byte. It does by default.
    pub fn set_handshake(&self, simulated: bool) {
        self.change(|settings| settings.handshake = simulated);
    }

    /// Stops forwarding in both directions, and leaves every connection open, like a path that has gone dark. (New
    /// connections still succeed, because the kernel accepts them, but receive nothing.)
    pub fn stall(&self) {
        self.stall_direction(Direction::ToServer);
        self.stall_direction(Direction::ToClient);
    }

    /// Stops forwarding in one direction.
    pub fn stall_direction(&self, direction: Direction) {
        self.change(|settings| settings.direction(direction).stalled = true);
    }

    /// Ends every stall. Nothing has been lost.
    pub fn resume(&self) {
        self.change(|settings| {
            settings.to_server.stalled = false;
            settings.to_client.stalled = false;
        });
    }

    /// Ends every open connection at once, towards both sides, with RST. Data in flight is lost. New connections are
    /// still accepted.
    pub fn reset(&self) {
        self.cut(Ending::Reset);
    }

    /// Ends every open connection at once, towards both sides, with FIN. Data in flight is lost. New connections are
    /// still accepted.
    pub fn close(&self) {
        self.cut(Ending::Fin);
    }

    /// Stops listening: connections are refused, as by a machine without a running sshd. Returns when that is in
    /// effect. Open connections continue.
    pub fn refuse(&self) {
        self.change(|settings| settings.refuse = true);
        self.await_listening(false);
    }

    /// Undoes [`Relay::refuse`]. Returns when connecting works again.
    pub fn accept(&self) {
        self.change(|settings| settings.refuse = false);
        self.await_listening(true);
    }

    /// Flips the lowest bit of the byte at `offset` (0 is the first), on the first connection that carries that many
    /// bytes in that direction. Each call has an effect once.
    pub fn corrupt(&self, direction: Direction, offset: u64) {
        self.shared.lock().direction(direction).corruptions.push(offset);
    }

    /// Flips the lowest bit of the next byte in a direction, on any connection.
    pub fn corrupt_next(&self, direction: Direction) {
        self.shared.lock().direction(direction).corrupt_next += 1;
    }

    /// Records all data on connections that are accepted from now on, at most 64 MiB for each direction and connection.
    pub fn record(&self) {
        self.change(|settings| settings.record = true);
    }

    /// Returns the bytes that one connection (0 is the first accepted) has carried in a direction, if it was accepted
    /// after [`Relay::record`]. As with [`Relay::bytes`], bytes count when they arrive at the relay.
    pub fn recording(&self, connection: usize, direction: Direction) -> Vec<u8> {
        let mut state = self.shared.lock();
        state
            .direction(direction)
            .recordings
            .get(connection)
            .cloned()
            .unwrap_or_default()
    }

    /// Returns the number of bytes that have arrived in a direction, on all connections.
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.shared.lock().direction(direction).bytes
    }

    /// Returns the number of accepted connections.
    pub fn connections(&self) -> usize {
        self.shared.lock().accepted
    }

    pub fn open_connections(&self) -> usize {
        self.shared.lock().open
    }

    /// Waits until `bytes` have arrived in a direction.
    ///
    /// # Errors
    /// [`Error::Timeout`] after a minute.
    pub async fn wait_for_bytes(&self, direction: Direction, bytes: u64) -> Result<(), Error> {
        self.wait_until(&format!("{bytes} bytes {direction:?}"), || {
            self.bytes(direction) >= bytes
        })
        .await
    }

    /// Waits until `connections` have been accepted.
    ///
    /// # Errors
    /// [`Error::Timeout`] after a minute.
    pub async fn wait_for_connections(&self, connections: usize) -> Result<(), Error> {
        self.wait_until(&format!("{connections} connections"), || {
            self.connections() >= connections
        })
        .await
    }

    /// Waits until no connection is open.
    ///
    /// # Errors
    /// [`Error::Timeout`] after a minute.
    pub async fn wait_until_idle(&self) -> Result<(), Error> {
        self.wait_until("every connection to end", || self.open_connections() == 0)
            .await
    }

    async fn wait_until(&self, what: &str, mut reached: impl FnMut() -> bool) -> Result<(), Error> {
        let wait = async {
            loop {
                // Requested before the check, so that a change between the check and the wait is not missed.
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
                // An error comes from the peer (it left the queue) or is temporary (no free descriptor).
                if let Ok((client, _)) = accepted {
                    let connection = Connection::accept(client, &shared, &settings);
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    /// Makes both ends of a connection through a relay.
    async fn connect() -> (Relay, TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let relay = Relay::start(listener.local_addr().unwrap()).unwrap();
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
        let (relay, mut client, mut server) = connect().await;
        for milliseconds in [1, 5, 30] {
            let rtt = Duration::from_millis(milliseconds);
            relay.set_rtt(rtt);
            assert!(echo_once(&mut client, &mut server).await >= rtt);
        }
    }

    #[tokio::test]
    async fn data_in_flight_is_pipelined() {
        let (relay, mut client, mut server) = connect().await;
        let delay = Duration::from_millis(50);
        relay.set_delay(Direction::ToServer, delay);
        // Sent one after the other while the first are still in flight. If the delays added up, this would take ten
        // seconds.
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
        let relay = Relay::start(listener.local_addr().unwrap()).unwrap();
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
        let (relay, mut client, mut server) = connect().await;
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
        let (relay, mut client, mut server) = connect().await;
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
        let relay = Relay::start(listener.local_addr().unwrap()).unwrap();
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
        let (relay, mut client, mut server) = connect().await;
        echo_once(&mut client, &mut server).await;
        relay.close();
        let mut buffer = [0; 1];
        assert_eq!(client.read(&mut buffer).await.unwrap(), 0);
        assert_eq!(server.read(&mut buffer).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn one_sides_end_leaves_the_other_direction_open() {
        let (_relay, mut client, mut server) = connect().await;
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
        let (relay, mut client, mut server) = connect().await;
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
        let relay = Relay::start(listener.local_addr().unwrap()).unwrap();
        let (client, server) = tokio::join!(TcpStream::connect(relay.addr()), listener.accept());
        let (mut client, mut server) = (client.unwrap(), server.unwrap().0);
        for _ in 0..3 {
            relay.refuse();
            let error = TcpStream::connect(relay.addr()).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            relay.accept();
            TcpStream::connect(relay.addr()).await.unwrap();
        }
        // None of this affects earlier connections.
        echo_once(&mut client, &mut server).await;
    }

    #[tokio::test]
    async fn bytes_are_counted_and_recorded_each_way() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let relay = Relay::start(listener.local_addr().unwrap()).unwrap();
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
}
