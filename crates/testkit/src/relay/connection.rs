//! One connection through a relay.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BufMut;
use rustix::net::{Shutdown, shutdown, sockopt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::line::{CHUNK, Line};
use super::pipe::{Item, Pipe};
use super::precise_timer::PreciseTimer;
use super::settings::{Direction, Ending, Settings, Shared};

/// The maximum that is recorded for one direction of one connection, in bytes.
const RECORDING_LIMIT: usize = 64 * 1024 * 1024;

/// One client's connection, and the relay's own connection to the server.
pub(super) struct Connection {
    index: usize,
    accepted: Instant,
    client: TcpStream,
    cuts_before: usize,
    shared: Arc<Shared>,
    settings: watch::Receiver<Settings>,
}

impl Connection {
    pub(super) fn accept(
        client: TcpStream,
        shared: &Arc<Shared>,
        settings: &watch::Receiver<Settings>,
    ) -> Connection {
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

    pub(super) async fn serve(self, target: SocketAddr) {
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
                    // This fails only if the socket is already closed.
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

    /// Passes bytes until both sides have finished sending. An error means that one side was interrupted.
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
        // SYN and its answer take one round trip. Only then does a client know that it may send, and its ACK, on which
        // the server accepts, takes another half.
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

    /// Reads `source` into `pipe` until it ends, and gives each chunk the time when it is due at the other end.
    async fn fill(
        &self,
        source: &TcpStream,
        pipe: &Pipe,
        direction: Direction,
        not_before: Instant,
    ) -> io::Result<()> {
        let mut settings = self.settings.clone();
        let mut timer = PreciseTimer::default();
        let mut line = Line::from(not_before);
        let mut offset = 0;
        let mut narrowed = false;
        loop {
            wait_while_stalled(&mut settings, direction).await?;
            pipe.wait_for_room().await;
            if let Some(ready) = line.takes_more_at() {
                timer.sleep_until(ready).await?;
            }
            source.readable().await?;
            let link = settings.borrow().link(direction);
            if let (Some(rate), false) = (link.rate, narrowed) {
                // Data that the kernel accepts for us counts as queued by the link too.
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

    /// Writes the data in `pipe` to `sink` when it is due, until the end of the stream has been passed on.
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
                    pipe.deliver(chunk);
                }
                Item::End(Ending::Fin) => return Ok(shutdown(sink, Shutdown::Write)?),
                Item::End(Ending::Reset) => return Err(io::ErrorKind::ConnectionReset.into()),
            }
        }
    }

    /// Counts and records the data that has arrived, and corrupts it where the test requested it.
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

/// Makes the kernel send RST instead of FIN, and drop unsent data, when the socket closes.
fn reset_on_close(socket: &TcpStream) {
    // This fails only if the socket is gone.
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// Reads and discards until the peer has closed.
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
