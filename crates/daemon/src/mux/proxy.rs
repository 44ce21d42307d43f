//! A client in proxy mode (PROTOCOL.mux section 9). After `MUX_S_PROXY` it speaks the connection protocol (RFC 4254),
//! unencrypted, with this side as its server. Each of the client's channels gets one of the engine's, with windows of
//! its own on both sides: a channel that the client does not read blocks no other, and short commands use spare
//! sessions.
//!
//! A client lives as long as the connection that it was given, as with OpenSSH's master.

mod channel;
mod listen;
mod message;

use std::collections::HashMap;
use std::convert::Infallible;
use std::ops::ControlFlow;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::{ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use trunkline::config::{ForwardAgent, Listen};
use trunkline::{ChannelStream, Error, ErrorKind, Host, Invalid};
use trunkline_proto::OpenFailure;

use crate::observed::metrics::Stock;
use trunkline_audit::{Recorder, Subject};

use super::client::{Client, Dropped};
use super::wire::{MAX_PACKET, Reply};
use channel::{Door, Inside, Misuse};
use listen::{GlobalRequest, Offer};
use message::{Global, Malformed, Message, Open, Peer, Target};

/// The most channels of one client. Each may hold a window of data.
const MAX_CHANNELS: usize = 1024;

/// Packets that wait for a client to read them; data packets are at most 32 KiB.
const OUT_PACKETS: usize = 32;

/// Global requests, and connections to be offered, that wait their turn.
const WAITING: usize = 16;

/// Returns true if `packet` is a valid message of a client in proxy mode.
pub(super) fn decodes(packet: &Bytes) -> bool {
    Message::decode(packet).is_ok()
}

/// The reason why a client in proxy mode is disconnected.
#[derive(Debug, thiserror::Error)]
enum Offence {
    #[error("the socket failed: {0}")]
    Io(#[from] std::io::Error),
    #[error("a packet of {0} bytes is too long")]
    TooLong(usize),
    #[error("it ended in the middle of a packet")]
    CutOff,
    #[error("malformed message: {0}")]
    Malformed(#[from] Malformed),
    #[error("channel {0} is not open")]
    NotOpen(u32),
    #[error("channel {0}: {1}")]
    Misuse(u32, Misuse),
    #[error("it opened channel {0}, which takes no data")]
    NoData(u32),
}

impl Client<'_> {
    /// Serves the client in proxy mode until it leaves or the connection ends.
    pub(super) async fn proxy(&mut self, id: u32) -> Result<ControlFlow<()>, Dropped> {
        let host = match self.door.host().await {
            Ok(host) => host,
            Err(error) => return self.refuse(id, Stock::Proxy, &error).await,
        };
        // sshd lends the agent to every session of a connection. Clients in proxy mode cannot ask for it.
        if host.config().forward_agent != ForwardAgent::No {
            return self.refuse(id, Stock::Proxy, &Invalid::AgentOfProxy.into()).await;
        }
        if let Err(error) = host.connect().await {
            return self.refuse(id, Stock::Proxy, &error).await;
        }
        let connection = host.hold();
        self.packets.reply(id, &Reply::Proxy).await?;
        let door = self.door;
        let recorder = self.recorder.clone();
        let (reader, writer, come) = self.packets.halves();
        let (out, packets) = mpsc::channel(OUT_PACKETS);
        let (ask, asked) = mpsc::channel(WAITING);
        let (offer, offers) = mpsc::channel(WAITING);
        let globals = listen::serve(host.clone(), asked, offer, out.clone(), recorder.clone());
        let proxy = Proxy {
            reader: Reader { socket: reader, come },
            host,
            recorder,
            out,
            ask,
            offers,
            channels: HashMap::new(),
            next: 0,
            tasks: JoinSet::new(),
            no_more_sessions: false,
        };
        let offence = tokio::select! {
            done = proxy.run(door.ending()) => done.err(),
            Err(failed) = write(writer, packets) => Some(Offence::Io(failed)),
            () = async { globals.await; std::future::pending().await } => None,
            error = connection.wait_for_end() => {
                tracing::info!("a proxy client is sent away: {error}");
                None
            }
        };
        if let Some(offence) = offence {
            tracing::warn!("a proxy client is sent away: {offence}");
        }
        Ok(ControlFlow::Break(()))
    }
}

/// The state of a client in proxy mode.
struct Proxy<'a> {
    reader: Reader<'a>,
    host: Host,
    recorder: Recorder,
    out: mpsc::Sender<Bytes>,
    ask: mpsc::Sender<GlobalRequest>,
    offers: mpsc::Receiver<Offer>,
    /// By our number. A channel stays until both sides have closed it.
    channels: HashMap<u32, Door>,
    /// The next number. Numbers are not reused, so that a late message never reaches another channel.
    next: u32,
    /// The channels' tasks. They end with this and return their numbers.
    tasks: JoinSet<Ended>,
    no_more_sessions: bool,
}

/// The end of a channel's task: the client was told that the channel is closed, or it was never open.
struct Ended {
    channel: u32,
    opened: bool,
}

impl Proxy<'_> {
    async fn run(mut self, ending: impl Future<Output = ()>) -> Result<(), Offence> {
        let mut ending = std::pin::pin!(ending);
        let mut last = false;
        // An idle client does not delay the daemon's shutdown.
        while !last || !self.channels.is_empty() {
            tokio::select! {
                packet = self.reader.packet() => match packet? {
                    Some(packet) => match Message::decode(&packet)? {
                        Message::Disconnect => return Ok(()),
                        message => self.handle(message).await?,
                    },
                    None => return Ok(()),
                },
                Some(offer) = self.offers.recv() => self.offer(offer).await,
                Some(ended) = self.tasks.join_next() => {
                    // A panic in a task ends the client.
                    self.handle_end(&ended.map_err(std::io::Error::other)?);
                }
                () = &mut ending, if !last => last = true,
            }
        }
        Ok(())
    }

    async fn handle(&mut self, message: Message) -> Result<(), Offence> {
        match message {
            Message::Global { request, wants_reply } => {
                self.no_more_sessions |= request == Global::NoMoreSessions;
                // The receiver lives as long as this.
                let _ = self.ask.send(GlobalRequest { request, wants_reply }).await;
            }
            Message::Open { kind, peer } => return self.open(kind, peer).await,
            Message::Confirmation { channel, peer } => {
                takes_data(channel, &peer)?;
                self.for_client(channel, |door| door.confirm(peer))?;
            }
            Message::OpenFailure { channel } => self.for_client(channel, Door::refuse)?,
            Message::WindowAdjust { channel, bytes } => {
                self.for_client(channel, |door| door.adjust(bytes))?;
            }
            Message::Data { channel, data } => self.for_client(channel, |door| door.data(&data))?,
            Message::ExtendedData { channel, len } => self.for_client(channel, |door| door.discard(len))?,
            Message::Eof { channel } => {
                if let Some(door) = self.door(channel)? {
                    door.eof();
                }
            }
            Message::Request { channel, request } => {
                if let Some(door) = self.door(channel)? {
                    door.request(request).await;
                }
            }
            Message::Close { channel } => {
                if let Some(door) = self.door(channel)? {
                    door.close();
                    if door.done {
                        self.channels.remove(&channel);
                    }
                }
            }
            Message::Disconnect | Message::Ignored => {}
        }
        Ok(())
    }

    /// Returns the channel of a message, or `None` if it is closed: late messages are ignored.
    fn door(&mut self, channel: u32) -> Result<Option<&mut Door>, Offence> {
        if channel >= self.next {
            return Err(Offence::NotOpen(channel));
        }
        let door = self.channels.get_mut(&channel);
        Ok(door.filter(|door| !door.is_closed()))
    }

    fn for_client(
        &mut self,
        channel: u32,
        act: impl FnOnce(&mut Door) -> Result<(), Misuse>,
    ) -> Result<(), Offence> {
        self.door(channel)?
            .map_or(Ok(()), act)
            .map_err(|misuse| Offence::Misuse(channel, misuse))
    }

    /// Creates a channel, unless the client has too many.
    fn channel(&mut self) -> Option<(&mut Door, Inside)> {
        if self.channels.len() >= MAX_CHANNELS {
            return None;
        }
        let number = self.next;
        self.next = number.checked_add(1)?;
        let (door, inside) = channel::channel(number, self.out.clone());
        Some((self.channels.entry(number).or_insert(door), inside))
    }

    /// Opens a channel for the client.
    async fn open(&mut self, kind: Open, peer: Peer) -> Result<(), Offence> {
        takes_data(peer.channel, &peer)?;
        let target = match kind {
            Open::Unknown => Err((OpenFailure::UNKNOWN_CHANNEL_TYPE, "unknown channel type")),
            Open::Session if self.no_more_sessions => {
                let why = "it asked for a session after no-more-sessions";
                Err((OpenFailure::ADMINISTRATIVELY_PROHIBITED, why))
            }
            Open::Session => Ok(None),
            Open::Stream(target) => Ok(Some(target)),
        };
        let placed = target.and_then(|target| match self.channel() {
            Some((_, inside)) => Ok((target, inside)),
            None => Err((OpenFailure::RESOURCE_SHORTAGE, "too many channels")),
        });
        match placed {
            Ok((target, inside)) => {
                let (host, recorder) = (self.host.clone(), self.recorder.clone());
                self.tasks.spawn(serve(host, recorder, target, peer, inside));
            }
            Err((reason, why)) => {
                let failure = message::open_failure(peer.channel, reason, why);
                // If the client has left, that is noticed elsewhere.
                let _ = self.out.send(failure).await;
            }
        }
        Ok(())
    }

    /// Offers the client a connection that the server accepted for it.
    async fn offer(&mut self, offer: Offer) {
        let Offer { listen, connection } = offer;
        // If there is no room for the connection, dropping it refuses it.
        let Some((door, inside)) = self.channel() else {
            return;
        };
        let confirmed = door.offer();
        let originator = match &listen {
            Listen::Tcp { .. } => originator(connection.originator()),
            Listen::Socket(_) => ("", 0),
        };
        let ours = inside.ours();
        inside.say(message::open(&ours, &listen, originator)).await;
        self.tasks.spawn(async move {
            let opened = inside.incoming(connection, confirmed).await;
            Ended {
                channel: ours.channel,
                opened,
            }
        });
    }

    fn handle_end(&mut self, ended: &Ended) {
        if let Some(door) = self.channels.get_mut(&ended.channel) {
            door.done = true;
            if door.is_closed() || !ended.opened {
                self.channels.remove(&ended.channel);
            }
        }
    }
}

/// Rejects a channel that may carry no data: it would wait forever.
fn takes_data(channel: u32, peer: &Peer) -> Result<(), Offence> {
    match peer.max_data {
        0 => Err(Offence::NoData(channel)),
        _ => Ok(()),
    }
}

/// Serves a channel that a client opens, a session or a connection to a target, to its end.
async fn serve(host: Host, recorder: Recorder, target: Option<Target>, peer: Peer, inside: Inside) -> Ended {
    let name = &host.config().original_host;
    let channel = inside.ours().channel;
    let refused = match target {
        None => match host.open_session().await {
            Ok(session) => {
                let entry = recorder.entry(Subject::new("session", name).with_host(host.config()));
                inside.session(peer, session, &entry).await;
                return Ended {
                    channel,
                    opened: true,
                };
            }
            Err(error) => error,
        },
        Some(target) => {
            let entry = recorder.entry(
                Subject::new("tunnel", name)
                    .with_host(host.config())
                    .with_target(target.to_string()),
            );
            let connected = async {
                entry.begin(|subject| subject).await?;
                connect(&host, &target).await
            };
            match connected.await {
                Ok(stream) => {
                    let carrying = stream.closer();
                    entry.carries(move || carrying.bytes_carried());
                    inside.stream(peer, stream).await;
                    return Ended {
                        channel,
                        opened: true,
                    };
                }
                Err(error) => {
                    entry.fail(&error);
                    error
                }
            }
        }
    };
    let (reason, why) = refusal(&refused);
    inside
        .say(message::open_failure(peer.channel, reason, &why))
        .await;
    Ended {
        channel,
        opened: false,
    }
}

async fn connect(host: &Host, target: &Target) -> Result<ChannelStream, Error> {
    let port = |port: u32| u16::try_from(port).map_err(|_| Invalid::Port(port));
    match target {
        Target::Tcp {
            host: name,
            port: to,
            originator: (from, from_port),
        } => {
            let originator = (from.as_str(), port(*from_port)?);
            host.direct_tcpip(name, port(*to)?, originator).await
        }
        Target::Socket(path) => host.direct_streamlocal(path).await,
    }
}

/// Returns a refusal for the client, in the server's words if the server refused.
fn refusal(error: &Error) -> (OpenFailure, String) {
    match (error.root(), error.kind()) {
        (
            Error::Refused {
                reason: reason @ 1..,
                description,
                ..
            },
            _,
        ) => (OpenFailure(*reason), description.to_string()),
        (_, ErrorKind::Configuration | ErrorKind::HostKey) => {
            (OpenFailure::ADMINISTRATIVELY_PROHIBITED, error.to_string())
        }
        _ => (OpenFailure::CONNECT_FAILED, error.to_string()),
    }
}

/// Splits `address:port`, with brackets around IPv6.
fn originator(shown: &str) -> (&str, u32) {
    let (host, port) = shown.rsplit_once(':').unwrap_or((shown, ""));
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    (bare.unwrap_or(host), port.parse().unwrap_or_default())
}

/// Reads the client's bytes, packet by packet.
struct Reader<'a> {
    socket: ReadHalf<'a>,
    come: BytesMut,
}

impl Reader<'_> {
    /// Reads the next packet, without its length; `None` at the end. Cancel-safe.
    async fn packet(&mut self) -> Result<Option<Bytes>, Offence> {
        loop {
            if let Some(len) = self
                .come
                .first_chunk()
                .map(|len| u32::from_be_bytes(*len) as usize)
            {
                if len > MAX_PACKET {
                    return Err(Offence::TooLong(len));
                }
                if self.come.len() >= 4 + len {
                    self.come.advance(4);
                    return Ok(Some(self.come.split_to(len).freeze()));
                }
            }
            self.come.reserve(READ);
            if self.socket.read_buf(&mut self.come).await? == 0 {
                return match self.come.is_empty() {
                    true => Ok(None),
                    false => Err(Offence::CutOff),
                };
            }
        }
    }
}

/// Room for one read: a few full messages.
const READ: usize = 128 * 1024;

/// Writes the packets to the client.
async fn write(mut socket: WriteHalf<'_>, mut packets: mpsc::Receiver<Bytes>) -> std::io::Result<Infallible> {
    while let Some(packet) = packets.recv().await {
        socket.write_all(&packet).await?;
    }
    std::future::pending().await
}
