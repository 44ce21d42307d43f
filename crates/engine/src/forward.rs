//! Forwarding: TCP ports, Unix sockets, SOCKS and the agent, in both directions.
//!
//! [`Host::forward_local`](crate::Host::forward_local) and [`Host::forward_dynamic`](crate::Host::forward_dynamic)
//! listen here and connect from the server; with [`Host::forward_remote`](crate::Host::forward_remote) the server
//! listens, and this side connects. Each returns a [`ForwardHandle`], with which the forwarding ends. The agent is lent
//! to sessions that request it ([`Command::agent_forwarding`](crate::Command::agent_forwarding)), if ForwardAgent
//! allows it.
//!
//! ```no_run
//! use trunkline::config::{Forward, ForwardTarget, Listen};
//! use trunkline::{Engine, Interaction};
//!
//! # async fn example() -> Result<(), trunkline::Error> {
//! let engine = Engine::new(Default::default(), Default::default());
//! let host = engine.host("db1", &Interaction::standard()).await?;
//! let postgres = Forward {
//!     listen: Listen::Tcp { host: None, port: 0 },
//!     target: ForwardTarget::Socket("/run/postgresql/.s.PGSQL.5432".into()),
//! };
//! let handle = host.forward_local(&postgres).await?;
//! println!("PostgreSQL on db1: port {:?} here", handle.port());
//! # Ok(())
//! # }
//! ```

mod listen;
mod local;
mod remote;
mod socks;

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::{Forward, ForwardTarget, Listen};
use crate::connection::channel::ChannelCloser;
use crate::connection::splice::Traffic;
use crate::engine::Host;
use crate::error::Error;
use crate::metrics::Counter;

pub use remote::{IncomingConnection, RemoteListener};

/// A client of a forwarding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardClient {
    /// The origin, as `address:port`; of a remote forwarding as the server reports it. Empty for a client of a Unix
    /// socket.
    pub from: String,
    /// The target.
    pub target: String,
}

/// Called for each client of a forwarding before anything is done for it. An error rejects the client.
pub type Witness = Arc<dyn Fn(ForwardClient) -> BoxFuture<'static, Result<WhenOpened, Error>> + Send + Sync>;

/// Called with the result of connecting. What it returns is kept until the client's connection has ended.
pub type WhenOpened = Box<dyn FnOnce(Result<ChannelCloser, &Error>) -> Box<dyn Send> + Send>;

/// A forwarding. Dropping it stops listening and lets open connections continue to their own ends, as `ssh -O cancel`
/// does; [`Self::abort`] ends those too.
#[derive(Debug)]
pub struct ForwardHandle {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
    failed: Vec<Error>,
}

impl Host {
    /// Listens here, on a TCP port or a Unix socket, and carries each client to the target, to which the server
    /// connects. Addresses, GatewayPorts and StreamLocalBind… have the same meaning as in ssh. Connections to the
    /// server are made when clients need them.
    ///
    /// # Errors
    /// The address or path cannot be listened on.
    pub async fn forward_local(&self, forward: &Forward) -> Result<ForwardHandle, Error> {
        local::forward(self, forward, None).await
    }

    /// Like [`Self::forward_local`], also for [`ForwardTarget::Socks`], and calls `witness` for each client.
    ///
    /// # Errors
    /// As [`Self::forward_local`].
    pub async fn forward_witnessed(
        &self,
        forward: &Forward,
        witness: Witness,
    ) -> Result<ForwardHandle, Error> {
        local::forward(self, forward, Some(witness)).await
    }

    /// Listens here for SOCKS 4, 4a and 5 clients, and carries each to its target, as seen from the server. A client is
    /// answered once the server has connected or failed.
    ///
    /// # Errors
    /// As [`Self::forward_local`].
    pub async fn forward_dynamic(&self, listen: &Listen) -> Result<ForwardHandle, Error> {
        let forward = Forward {
            listen: listen.clone(),
            target: ForwardTarget::Socks,
        };
        local::forward(self, &forward, None).await
    }

    /// Makes the server listen, on a TCP port or a Unix socket, and carries each client to the target, to which this
    /// side connects; with [`ForwardTarget::Socks`] to the client's target, if PermitRemoteOpen allows it.
    ///
    /// The forwarding holds a connection open. If that is lost, it is re-established on another, until the handle is
    /// dropped. [`ForwardHandle::events`] reports this.
    ///
    /// # Errors
    /// The server refuses, or cannot be reached.
    pub async fn forward_remote(&self, forward: &Forward) -> Result<ForwardHandle, Error> {
        remote::forward(self, forward, None).await
    }

    /// Like [`Self::forward_remote`], and calls `witness` for each client.
    ///
    /// # Errors
    /// As [`Self::forward_remote`].
    pub async fn forward_remote_witnessed(
        &self,
        forward: &Forward,
        witness: Witness,
    ) -> Result<ForwardHandle, Error> {
        remote::forward(self, forward, Some(witness)).await
    }

    /// Makes the server of the first connection listen, on a TCP port or a Unix socket, and returns each client as a
    /// stream. Unlike [`Self::forward_remote`], this ends with the connection.
    ///
    /// # Errors
    /// The server refuses, or cannot be reached.
    pub async fn listen_remote(&self, listen: &Listen) -> Result<RemoteListener, Error> {
        let (connection, lease) = self.hold_connection();
        remote::listen(connection, lease, listen).await
    }
}

impl ForwardHandle {
    fn new(shared: Arc<Shared>, task: JoinHandle<()>) -> Self {
        Self {
            shared,
            task,
            failed: Vec::new(),
        }
    }

    /// Returns why some of the requested addresses are not listened on: another program has the port there, and gets
    /// the clients of that address. At least one address is listened on.
    pub fn failures(&self) -> &[Error] {
        &self.failed
    }

    /// Returns the addresses for clients: local addresses and paths or, of a remote forwarding, the server's, with the
    /// host as requested. Ports are those in use, even if 0 was requested.
    pub fn listening(&self) -> Vec<Listen> {
        self.shared
            .listening
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns the TCP port; `None` for a Unix socket.
    pub fn port(&self) -> Option<u16> {
        self.listening().iter().find_map(|listen| match listen {
            Listen::Tcp { port, .. } => Some(*port),
            Listen::Socket(_) => None,
        })
    }

    /// Returns whether it has ended by itself: see [`ForwardEvent::Failed`].
    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Returns the counters of its connections and bytes.
    pub fn counters(&self) -> ForwardCounters {
        self.shared.counters()
    }

    /// Returns a function that reports [`Self::counters`] without the handle. [`ForwardEvents`] do not end before it is
    /// dropped.
    pub fn counting(&self) -> impl Fn() -> ForwardCounters + Send + Sync + use<> {
        let shared = self.shared.clone();
        move || shared.counters()
    }

    /// Returns its events from now on.
    pub fn events(&self) -> ForwardEvents {
        ForwardEvents {
            queue: self.shared.events.subscribe(),
        }
    }

    /// Stops listening, and returns when sockets are closed and the server has confirmed. Open connections continue.
    pub async fn close(self) {
        self.shared.waits.store(true, Ordering::Relaxed);
        self.end().await;
    }

    /// Stops listening, and returns when this side accepts no new connections: a new request to the server for the same
    /// address succeeds from then on. Does not wait for the server's answer. Open connections continue.
    pub async fn end(mut self) {
        self.shared.stop.cancel();
        // A panic would have ended it as well.
        let _ = (&mut self.task).await;
    }

    /// Ends everything: stops listening, as [`Self::end`], and ends open connections.
    pub async fn abort(self) {
        self.shared.abort.cancel();
        self.end().await;
    }
}

impl Drop for ForwardHandle {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

/// The counters of a forwarding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ForwardCounters {
    /// Accepted clients.
    pub accepted: u64,
    /// Clients that are being served.
    pub open: u64,
    /// Rejected clients: see [`ForwardEvent::Refused`].
    pub refused: u64,
    /// Bytes carried to the server.
    pub bytes_sent: u64,
    /// Bytes carried from the server.
    pub bytes_received: u64,
}

/// An event of a forwarding.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ForwardEvent {
    /// A client was rejected, because its target could not be reached or is not allowed.
    Refused {
        /// The client, as `address:port`; empty for a client of a socket on the server.
        from: String,
        /// The requested target; empty if there was none.
        target: String,
        /// The reason.
        error: Error,
    },
    /// A remote forwarding's connection was lost. It is being re-established on another.
    Lost {
        /// The connection's end.
        error: Error,
    },
    /// A remote forwarding could not be re-established.
    Retrying {
        /// The reason.
        error: Error,
        /// The time until the next attempt.
        after: Duration,
    },
    /// A remote forwarding works again. If the server chose the port, it may be another one ([`ForwardHandle::port`]).
    Established,
    /// A remote forwarding has ended, because only the user can help: the host key has changed, or the user's key is no
    /// longer accepted.
    Failed {
        /// The reason.
        error: Error,
    },
}

/// Events of one forwarding, in order. A slow reader misses the oldest.
#[derive(Debug)]
pub struct ForwardEvents {
    queue: broadcast::Receiver<ForwardEvent>,
}

impl ForwardEvents {
    /// Returns the next event; `None` when the forwarding and all its connections have ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<ForwardEvent> {
        loop {
            match self.queue.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

/// The number of events kept for slow readers.
const EVENTS: usize = 64;

/// The state that a forwarding's handle, its task and its connections share.
struct Shared {
    /// The addresses; locked only to copy or replace them.
    listening: Mutex<Vec<Listen>>,
    traffic: Traffic,
    accepted: Counter,
    open: AtomicU64,
    refused: Counter,
    events: broadcast::Sender<ForwardEvent>,
    /// Cancelled to stop accepting connections.
    stop: CancellationToken,
    /// Cancelled to end all connections.
    abort: CancellationToken,
    /// Stopping waits for the server's answer.
    waits: AtomicBool,
}

impl Shared {
    fn new(listening: Vec<Listen>) -> Arc<Self> {
        Arc::new(Self {
            listening: Mutex::new(listening),
            traffic: Traffic::default(),
            accepted: Counter::default(),
            open: AtomicU64::new(0),
            refused: Counter::default(),
            events: broadcast::channel(EVENTS).0,
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
            waits: AtomicBool::new(false),
        })
    }

    fn counters(&self) -> ForwardCounters {
        ForwardCounters {
            accepted: self.accepted.value(),
            open: self.open.load(Ordering::Relaxed),
            refused: self.refused.value(),
            bytes_sent: self.traffic.sent.value(),
            bytes_received: self.traffic.received.value(),
        }
    }

    fn listens_on(&self, address: Listen) {
        *self.listening.lock().unwrap_or_else(PoisonError::into_inner) = vec![address];
    }

    /// Serves one client in a task of its own, until it is done or everything is ended.
    fn spawn<F: Future<Output = ()> + Send>(
        self: &Arc<Self>,
        serve: impl FnOnce(Arc<Self>) -> F + Send + 'static,
    ) {
        let open = Open::new(self.clone());
        tokio::spawn(async move {
            let shared = open.0.clone();
            tokio::select! {
                () = serve(shared.clone()) => {}
                () = shared.abort.cancelled() => {}
            }
            drop(open);
        });
    }

    fn tell(&self, event: ForwardEvent) {
        match &event {
            ForwardEvent::Refused { from, target, error } => {
                self.refused.add(1);
                tracing::warn!(%from, %target, %error, "a client of a forwarding was sent away");
            }
            ForwardEvent::Lost { error } => tracing::warn!(%error, "a remote forwarding lost its connection"),
            ForwardEvent::Retrying { error, after } => {
                tracing::warn!(%error, ?after, "a remote forwarding could not be re-established");
            }
            ForwardEvent::Established => tracing::info!("a remote forwarding is active again"),
            ForwardEvent::Failed { error } => tracing::error!(%error, "a remote forwarding has ended"),
        }
        // There may be no receivers.
        let _ = self.events.send(event);
    }
}

/// A client that is being served, for the counters.
struct Open(Arc<Shared>);

impl Open {
    fn new(shared: Arc<Shared>) -> Self {
        shared.accepted.add(1);
        shared.open.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarding")
            .field("listening", &self.listening)
            .finish_non_exhaustive()
    }
}
