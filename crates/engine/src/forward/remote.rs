//! Remote forwarding: clients on the server's side, targets here.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use trunkline_request::Backoff;

use tokio::io::AsyncWriteExt as _;
use tokio::sync::{mpsc, oneshot};
use trunkline_proto::{GlobalRequest, PeerMisbehaved};

use super::local::{ask, reply_to};
use super::socks::Reply;
use super::{ForwardClient, ForwardEvent, ForwardHandle, Shared, WhenOpened, Witness};
use crate::config::{Forward, ForwardTarget, HostConfig, Listen, PermitRemoteOpen};
use crate::connection::Connection;
use crate::connection::channel::ChannelStream;
use crate::connection::incoming::{Handler, Incoming, ListenKey, Offered};
use crate::connection::lease::Lease;
use crate::connection::splice::{Ahead, LocalStream, finish, splice};
use crate::connection::timing::idle::{Activity, Idle};
use crate::engine::Host;
use crate::error::{Error, ErrorKind, Invalid, ServerRequest};

/// The pauses between attempts to make the server listen again, doubled from the first to the second value. A server
/// that lost the connection keeps the port until it notices.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));

/// Makes the server listen, and carries each of its clients to the target from here.
///
/// # Errors
/// The server refuses, or cannot be reached.
pub(crate) async fn forward(
    host: &Host,
    forward: &Forward,
    witness: Option<Witness>,
) -> Result<ForwardHandle, Error> {
    let shared = Shared::new(Vec::new());
    let keeper = Keeper {
        host: host.clone(),
        request: Request::new(&forward.listen)?,
        target: Arc::new(forward.target.clone()),
        witness,
        shared: shared.clone(),
    };
    let (ready, outcome) = oneshot::channel();
    // Created first: if the caller stops waiting, its drop makes the keeper undo its work.
    let handle = ForwardHandle::new(shared, tokio::spawn(keeper.run(ready)));
    let gone = || Error::Closed {
        host: host.config().original_host.clone(),
        why: "the engine was shut down".into(),
    };
    outcome.await.unwrap_or_else(|_| Err(gone()))?;
    Ok(handle)
}

/// Keeps one forwarding alive, over as many connections as it takes.
struct Keeper {
    host: Host,
    request: Request,
    target: Arc<ForwardTarget>,
    witness: Option<Witness>,
    shared: Arc<Shared>,
}

/// An established forwarding.
struct Forwarding {
    listening: Listening,
    connection: Connection,
    /// Keeps the connection from being closed as idle.
    _lease: Lease,
}

impl Keeper {
    async fn run(mut self, ready: oneshot::Sender<Result<(), Error>>) {
        let mut standing = match self.establish().await {
            Ok(Some(standing)) => standing,
            Ok(None) => return,
            Err(error) => {
                let _ = ready.send(Err(error));
                return;
            }
        };
        let _ = ready.send(Ok(()));
        loop {
            let error = tokio::select! {
                error = standing.connection.wait_for_end() => error,
                () = self.shared.stop.cancelled() => {
                    if self.shared.waits.load(Ordering::Relaxed) {
                        standing.listening.cancel().await;
                    }
                    return;
                }
            };
            drop(standing);
            self.shared.tell(ForwardEvent::Lost { error });
            standing = match self.establish_again().await {
                Some(standing) => standing,
                None => return,
            };
            self.shared.tell(ForwardEvent::Established);
        }
    }

    /// Establishes the forwarding. Returns `None` if the handle was dropped.
    async fn establish(&mut self) -> Result<Option<Forwarding>, Error> {
        tokio::select! {
            ready = self.host.connect() => drop(ready?),
            () = self.shared.stop.cancelled() => return Ok(None),
        }
        let (connection, lease) = self.host.hold_connection();
        let carrier = Carrier {
            config: self.host.config().clone(),
            activity: self.host.activity().clone(),
            kind: self.request.channel_type(),
            target: self.target.clone(),
            witness: self.witness.clone(),
        };
        let handler = handler(carrier, self.shared.clone());
        let listening = self.request.send(&connection, handler).await?;
        self.shared.listens_on(listening.address.clone());
        // If the server chose a port, request the same one on the next connection: clients may know it.
        self.request.prefer(&listening.address);
        Ok(Some(Forwarding {
            listening,
            connection,
            _lease: lease,
        }))
    }

    /// Retries until it is established. Returns `None` if the handle was dropped, or if only the user can help.
    async fn establish_again(&mut self) -> Option<Forwarding> {
        let mut failures = 0;
        loop {
            tokio::select! {
                () = tokio::time::sleep(PAUSES.pause_after(failures)) => {}
                () = self.shared.stop.cancelled() => return None,
            }
            let error = match self.establish().await {
                Ok(standing) => return standing,
                Err(error) => error,
            };
            if !error.may_pass() {
                self.shared.tell(ForwardEvent::Failed { error });
                return None;
            }
            failures = u32::saturating_add(failures, 1);
            if error.kind() == ErrorKind::Limit {
                self.request.any_port_will_do();
            }
            self.shared.tell(ForwardEvent::Retrying {
                error,
                after: PAUSES.pause_after(failures),
            });
        }
    }
}

/// Clients of an address that the server listens on, as streams. Dropping it stops listening; streams continue.
pub struct RemoteListener {
    listening: Listening,
    clients: mpsc::Receiver<Offered>,
    connection: Connection,
    /// Keeps the connection from being closed as idle.
    _lease: Lease,
}

/// The most waiting clients of a [`RemoteListener`]; further ones are refused. Like sshd's backlog of `listen(2)`,
/// SSH_LISTEN_BACKLOG.
const BACKLOG: usize = 128;

/// Makes the server of `connection` listen.
///
/// # Errors
/// The server refuses, or cannot be reached.
pub(crate) async fn listen(
    connection: Connection,
    lease: Lease,
    listen: &Listen,
) -> Result<RemoteListener, Error> {
    connection.ready().await?;
    let (queue, clients) = mpsc::channel(BACKLOG);
    // An offer that does not fit is dropped, which refuses it.
    let handler: Handler = Arc::new(move |offered| drop(queue.try_send(offered)));
    let listening = Request::new(listen)?.send(&connection, handler).await?;
    Ok(RemoteListener {
        listening,
        clients,
        connection,
        _lease: lease,
    })
}

impl RemoteListener {
    /// Returns the address that the server listens on, with the host as requested. The port is the one in use, even if
    /// 0 was requested.
    pub fn listening(&self) -> &Listen {
        &self.listening.address
    }

    /// Returns the next client; `None` when the connection has ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<IncomingConnection> {
        tokio::select! {
            biased;
            offered = self.clients.recv() => offered.map(|offered| IncomingConnection { offered }),
            _ = self.connection.wait_for_end() => None,
        }
    }

    /// Waits for the end of the connection, which ends the listening.
    pub async fn wait_for_end(&self) -> Error {
        self.connection.wait_for_end().await
    }

    /// Stops listening, and returns when the server has confirmed.
    pub async fn close(self) {
        self.listening.cancel().await;
    }
}

impl std::fmt::Debug for RemoteListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteListener")
            .field("listening", &self.listening.address)
            .finish_non_exhaustive()
    }
}

/// A client of an address that the server listens on. Dropping it refuses it.
pub struct IncomingConnection {
    offered: Offered,
}

impl IncomingConnection {
    /// Returns the connection's origin as the server reports it, as `address:port`; empty for a Unix socket.
    pub fn originator(&self) -> &str {
        self.offered.originator()
    }

    /// Accepts it.
    pub fn accept(self) -> ChannelStream {
        self.offered.accept(None)
    }
}

impl std::fmt::Debug for IncomingConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IncomingConnection")
            .field("originator", &self.originator())
            .finish_non_exhaustive()
    }
}

/// An address that the server is asked to listen on.
#[derive(Debug, Clone)]
enum Request {
    /// `asked` is the host as the user gave it, `name` as the server expects it. `port` is the port to request this
    /// time, `chosen` whether 0 was requested first.
    Tcp {
        asked: Option<String>,
        name: String,
        port: u16,
        chosen: bool,
    },
    Unix {
        path: String,
    },
}

impl Request {
    fn new(listen: &Listen) -> Result<Self, Error> {
        match listen {
            Listen::Tcp { host, port } => Ok(Self::Tcp {
                asked: host.clone(),
                name: server_name(host.as_deref()).to_owned(),
                port: *port,
                chosen: *port == 0,
            }),
            Listen::Socket(path) => match path.to_str() {
                Some(path) => Ok(Self::Unix {
                    path: path.to_owned(),
                }),
                None => Err(Invalid::NotUtf8(format!("the path {}", path.display())).into()),
            },
        }
    }

    /// Returns the type of the channels that the server opens for it.
    fn channel_type(&self) -> &'static str {
        match self {
            Self::Tcp { .. } => "forwarded-tcpip",
            Self::Unix { .. } => "forwarded-streamlocal@openssh.com",
        }
    }

    fn prefer(&mut self, listening: &Listen) {
        if let (Self::Tcp { port, .. }, Listen::Tcp { port: chosen, .. }) = (self, listening) {
            *port = *chosen;
        }
    }

    /// Accepts any port again if the server chose it: the old one may be taken by now.
    fn any_port_will_do(&mut self) {
        if let Self::Tcp {
            port, chosen: true, ..
        } = self
        {
            *port = 0;
        }
    }

    /// Sends the request. It must be completed once begun: otherwise the server would keep the port for nobody.
    async fn send(&self, connection: &Connection, handler: Handler) -> Result<Listening, Error> {
        let incoming = connection.incoming();
        let taken = |what: &str| Error::Busy(format!("connections to {what} are already forwarded"));
        match self {
            Self::Unix { path } => {
                let key = ListenKey::Unix(path.clone());
                if !incoming.ask_to_listen(&key, &handler).await {
                    return Err(taken(path));
                }
                let listening = Listening::new(incoming, key, Listen::Socket(path.into()));
                let granted = connection
                    .global(GlobalRequest::StreamlocalForward { path: path.clone() })
                    .await?;
                granted.map_or_else(
                    || Err(refusal(connection, path.clone())),
                    |_| Ok(listening.grant()),
                )
            }
            Self::Tcp {
                asked, name, port, ..
            } => {
                let what = format!("{}:{port}", asked.as_deref().unwrap_or("localhost"));
                let request = GlobalRequest::TcpipForward {
                    address: name.clone(),
                    port: u32::from(*port),
                };
                let address = |port| Listen::Tcp {
                    host: asked.clone(),
                    port,
                };
                if *port != 0 {
                    let key = ListenKey::Tcp(name.clone(), u32::from(*port));
                    if !incoming.ask_to_listen(&key, &handler).await {
                        return Err(taken(&what));
                    }
                    let listening = Listening::new(incoming, key, address(*port));
                    let granted = connection.global(request).await?;
                    return granted.map_or_else(|| Err(refusal(connection, what)), |_| Ok(listening.grant()));
                }
                let unsettled = incoming.expect_port();
                let Some(granted) = connection.global(request).await? else {
                    return Err(refusal(connection, what));
                };
                // RFC 4254 section 7.1: the answer carries the port.
                let port = granted
                    .first_chunk()
                    .map(|port| u32::from_be_bytes(*port))
                    .unwrap_or_default();
                let Some(chosen) = u16::try_from(port).ok().filter(|port| *port != 0) else {
                    return Err(Error::Protocol {
                        host: connection.host().original_host.clone(),
                        source: PeerMisbehaved::PortNotTold.into(),
                    });
                };
                let key = ListenKey::Tcp(name.clone(), port);
                incoming.listen(key.clone(), handler);
                drop(unsettled);
                Ok(Listening::new(incoming, key, address(chosen)).grant())
            }
        }
    }
}

/// Returns an address as the server expects it (channels.c, `channel_rfwd_bind_host`).
fn server_name(host: Option<&str>) -> &str {
    match host {
        None => "localhost",
        Some("" | "*") => "",
        Some(host) => host,
    }
}

fn refusal(connection: &Connection, place: String) -> Error {
    Error::Refused {
        host: connection.host().original_host.clone(),
        what: ServerRequest::Listen(place),
        reason: 0,
        description: "it is in use there, or the server does not allow it (AllowTcpForwarding, PermitListen)"
            .into(),
    }
}

/// An address on which the server listens for us. Dropping it stops that.
struct Listening {
    incoming: Arc<Incoming>,
    key: ListenKey,
    address: Listen,
    granted: bool,
}

impl Listening {
    fn new(incoming: &Arc<Incoming>, key: ListenKey, address: Listen) -> Self {
        Self {
            incoming: incoming.clone(),
            key,
            address,
            granted: false,
        }
    }

    fn grant(mut self) -> Self {
        self.granted = true;
        self.incoming.note_granted(&self.key);
        self
    }

    /// Stops listening, and waits for the server's answer.
    async fn cancel(mut self) {
        if let Some(request) = self.cancellation() {
            self.incoming.note_ending(&self.key);
            self.incoming.global(request).await;
        }
    }

    /// Returns the request that stops it, once.
    fn cancellation(&mut self) -> Option<GlobalRequest> {
        let request = match &self.key {
            ListenKey::Tcp(address, port) => GlobalRequest::CancelTcpipForward {
                address: address.clone(),
                port: *port,
            },
            ListenKey::Unix(path) => GlobalRequest::CancelStreamlocalForward { path: path.clone() },
            ListenKey::Agent => return None,
        };
        std::mem::take(&mut self.granted).then_some(request)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // Sent before another request for the address is possible: the server handles them in order.
        if let Some(request) = self.cancellation() {
            self.incoming.global_unanswered(request);
        }
        self.incoming.forget(&self.key);
    }
}

/// Serves a forwarding's clients. It must not contain the [`Host`], which would keep its own connection alive.
#[derive(Clone)]
struct Carrier {
    config: Arc<HostConfig>,
    activity: Activity,
    /// The type of the channels that the server opens.
    kind: &'static str,
    target: Arc<ForwardTarget>,
    witness: Option<Witness>,
}

impl Carrier {
    fn accept(&self, offered: Offered) -> ChannelStream {
        offered.accept(Idle::for_channel(&self.config, self.kind, &self.activity))
    }

    /// Reports a client to the witness before anything is done for it.
    async fn announce(&self, from: &str, target: &str) -> Result<Option<WhenOpened>, Error> {
        let Some(witness) = &self.witness else {
            return Ok(None);
        };
        let client = ForwardClient {
            from: from.to_owned(),
            target: target.to_owned(),
        };
        witness(client).await.map(Some)
    }
}

fn handler(carrier: Carrier, shared: Arc<Shared>) -> Handler {
    Arc::new(move |offered| {
        let carrier = carrier.clone();
        shared.spawn(move |shared| async move { carry(&carrier, offered, &shared).await });
    })
}

/// Serves one client, from the server's offer to its end. The offer is accepted once the target is connected.
async fn carry(carrier: &Carrier, offered: Offered, shared: &Shared) {
    let host = &carrier.config;
    let from = offered.originator().to_owned();
    let what = match &*carrier.target {
        ForwardTarget::Tcp { host: name, port } => format!("{name}:{port}"),
        ForwardTarget::Socket(path) => path.display().to_string(),
        ForwardTarget::Socks => return carry_socks(carrier, offered, shared).await,
    };
    let told = match carrier.announce(&from, &what).await {
        Ok(told) => told,
        Err(error) => {
            return shared.tell(ForwardEvent::Refused {
                from,
                target: what,
                error,
            });
        }
    };
    let connected = match &*carrier.target {
        ForwardTarget::Tcp { host: name, port } => LocalStream::tcp(name, *port, host.address_family).await,
        ForwardTarget::Socket(path) => LocalStream::unix(path).await,
        // Unreachable: served above.
        ForwardTarget::Socks => return,
    };
    match connected {
        Ok(local) => {
            let channel = carrier.accept(offered);
            let _kept = told.map(|told| told(Ok(channel.closer())));
            splice(local, channel, Ahead::default(), &shared.traffic).await;
        }
        Err(error) => {
            drop(told.map(|told| told(Err(&error))));
            shared.tell(ForwardEvent::Refused {
                from,
                target: what,
                error,
            });
        }
    }
}

/// Serves a client of a remote dynamic forwarding, which names its target once its channel is open.
async fn carry_socks(carrier: &Carrier, offered: Offered, shared: &Shared) {
    let host = &carrier.config;
    let from = offered.originator().to_owned();
    let mut channel = carrier.accept(offered);
    let (connect, left) = match ask(&mut channel).await {
        Ok(asked) => asked,
        Err(error) => {
            return shared.tell(ForwardEvent::Refused {
                from,
                target: String::new(),
                error,
            });
        }
    };
    let what = format!("{}:{}", connect.host, connect.port);
    let mut kept = None;
    let (connected, refusal) = match carrier.announce(&from, &what).await {
        Err(error) => (Err(error), Some(Reply::NotAllowed)),
        Ok(told) => {
            let (connected, refusal) = if permits(&host.permit_remote_open, &connect.host, connect.port) {
                let connected = LocalStream::tcp(&connect.host, connect.port, host.address_family).await;
                let refusal = connected.as_ref().err().map(reply_to);
                (connected, refusal)
            } else {
                let error = Error::configuration(host, format!("PermitRemoteOpen does not allow {what}"));
                (Err(error), Some(Reply::NotAllowed))
            };
            kept = told.map(|told| told(connected.as_ref().map(|_| channel.closer())));
            (connected, refusal)
        }
    };
    let answer = connect.answer(refusal.unwrap_or(Reply::Granted));
    // If the client is gone, this shows below.
    let _ = channel.write_all(&answer).await;
    match connected {
        Ok(local) => {
            let ahead = Ahead {
                to_local: left.freeze(),
                ..Ahead::default()
            };
            splice(local, channel, ahead, &shared.traffic).await;
            drop(kept);
        }
        Err(error) => {
            drop(kept);
            shared.tell(ForwardEvent::Refused {
                from,
                target: what,
                error,
            });
            finish(channel).await;
        }
    }
}

/// Applies PermitRemoteOpen, compared literally as in OpenSSH, with `*` for any host or port.
fn permits(permitted: &PermitRemoteOpen, host: &str, port: u16) -> bool {
    match permitted {
        PermitRemoteOpen::Any => true,
        PermitRemoteOpen::None => false,
        PermitRemoteOpen::Only(list) => list.iter().any(|entry| {
            let Some((permitted, at)) = entry.rsplit_once(':') else {
                return false;
            };
            let permitted = permitted
                .strip_prefix('[')
                .and_then(|inner| inner.strip_suffix(']'))
                .unwrap_or(permitted);
            (permitted == "*" || permitted == host) && (at == "*" || at.parse() == Ok(port))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_named_to_the_server_as_ssh_names_them() {
        let names = [None, Some(""), Some("*"), Some("localhost"), Some("0.0.0.0")].map(server_name);
        assert_eq!(names, ["localhost", "", "", "localhost", "0.0.0.0"]);
    }

    #[test]
    fn permit_remote_open_compares_to_the_letter() {
        let only = |list: &[&str]| PermitRemoteOpen::Only(list.iter().map(|&entry| entry.into()).collect());
        assert!(permits(&PermitRemoteOpen::Any, "db", 5432));
        assert!(!permits(&PermitRemoteOpen::None, "db", 5432));
        assert!(permits(&only(&["web:80", "db:5432"]), "db", 5432));
        assert!(!permits(&only(&["db:5432"]), "db", 5433));
        assert!(!permits(&only(&["db:5432"]), "db.example.com", 5432));
        assert!(permits(&only(&["*:5432"]), "anything", 5432));
        assert!(permits(&only(&["[::1]:*"]), "::1", 9));
        assert!(!permits(&only(&["nonsense"]), "nonsense", 9));
    }
}
