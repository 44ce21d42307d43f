//! Forwarding: TCP ports, Unix sockets, SOCKS and the agent, in both directions.
//!
//! [`Host::forward_local`](crate::Host::forward_local) and
//! [`Host::forward_dynamic`](crate::Host::forward_dynamic) listen here and connect from the server;
//! [`Host::forward_remote`](crate::Host::forward_remote) has the server listen and connects from here. Each returns a
//! [`ForwardHandle`], which is the forwarding's life. The agent is lent to sessions that ask for it
//! ([`Command::agent_forwarding`](crate::Command::agent_forwarding)), where ForwardAgent allows it.
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
    /// The origin, as `address:port`, of a remote forwarding in the server's words; empty for a client of a Unix
    /// socket.
    pub from: String,
    /// The target.
    pub target: String,
}

/// A witness, which is told of each client of a forwarding before anything is done for it. A client is sent away where
/// that is an error.
pub type Witness = Arc<dyn Fn(ForwardClient) -> BoxFuture<'static, Result<WhenOpened, Error>> + Send + Sync>;

/// Is told what came of it; what this returns is kept until the client's connection has ended.
pub type WhenOpened = Box<dyn FnOnce(Result<ChannelCloser, &Error>) -> Box<dyn Send> + Send>;

/// A forwarding. It lasts as long as this: dropping it ends the listening and lets connections that are being carried
/// continue to their own ends, as `ssh -O cancel` does; [`Self::abort`] ends those too.
#[derive(Debug)]
pub struct ForwardHandle {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
    failed: Vec<Error>,
}

impl Host {
    /// Listens here, on a TCP port or a Unix socket, and carries each client to the target, which the server connects
    /// to. Addresses, GatewayPorts and StreamLocalBind… mean what they mean to ssh. Connections to the server
    /// are made as clients need them.
    ///
    /// # Errors
    /// The address or path cannot be listened on.
    pub async fn forward_local(&self, forward: &Forward) -> Result<ForwardHandle, Error> {
        local::forward(self, forward, None).await
    }

    /// The same, also for [`ForwardTarget::Socks`], with somebody who is told of each client.
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

    /// Listens here for SOCKS 4, 4a and 5 clients, and carries each to where it asks, as seen from the server. A client
    /// is answered once the server has connected, or has not.
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

    /// Has the server listen, on a TCP port or a Unix socket, and carries each client to the target, which is connected
    /// to from here; [`ForwardTarget::Socks`] goes where the client asks, if PermitRemoteOpen allows it.
    ///
    /// It holds a connection open, and is established anew on another when that one is lost, until the handle is
    /// dropped; [`ForwardHandle::events`] tells of it.
    ///
    /// # Errors
    /// The server refuses, or cannot be reached.
    pub async fn forward_remote(&self, forward: &Forward) -> Result<ForwardHandle, Error> {
        remote::forward(self, forward, None).await
    }

    /// The same, with somebody who is told of each client.
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

    /// Has the server of the first connection listen, on a TCP port or a Unix socket, and hands each client over as a
    /// stream. Unlike [`Self::forward_remote`] it ends with that connection.
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

    /// Returns the reasons why some of the requested addresses are not listened on: another program has the port there,
    /// and a client of that address reaches it and not this forwarding. At least one address is listened on.
    pub fn failures(&self) -> &[Error] {
        &self.failed
    }

    /// Returns the addresses to which clients can connect: local addresses and paths, or, of a remote forwarding, the
    /// server's, with the host as it was requested. A port is the one in use, also where 0 was asked for.
    pub fn listening(&self) -> Vec<Listen> {
        self.shared
            .listening
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The TCP port; `None` for a Unix socket.
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

    /// Returns its counters so far.
    pub fn counters(&self) -> ForwardCounters {
        self.shared.counters()
    }

    /// Returns a function that reports [`Self::counters`] to somebody who does not have the handle. [`ForwardEvents`]
    /// end no sooner than it is dropped.
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

    /// Ends the listening, and returns when sockets are closed and the server has been told. Connections that are
    /// being carried continue.
    pub async fn close(self) {
        self.shared.waits.store(true, Ordering::Relaxed);
        self.end().await;
    }

    /// Ends the listening, and returns when this side takes no new connection: whoever asks the server for the same address from now
    /// on gets it. Does not wait for the server's word. Connections that are being carried continue.
    pub async fn end(mut self) {
        self.shared.stop.cancel();
        // A panic in it would have been its end as well.
        let _ = (&mut self.task).await;
    }

    /// Ends everything: the listening, as [`Self::end`], and connections that are being carried.
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
    /// Clients that came.
    pub accepted: u64,
    /// Of them, those that are being served.
    pub open: u64,
    /// Of them, those that were sent away: see [`ForwardEvent::Refused`].
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
    /// A client was sent away, because its target could not be reached or is not allowed.
    Refused {
        /// The client, as `address:port`; empty for a client of a socket on the server.
        from: String,
        /// The requested target; empty if there was none.
        target: String,
        /// The reason why it could not.
        error: Error,
    },
    /// The connection that a remote forwarding belongs to is gone. It is established anew on another.
    Lost {
        /// The connection's end.
        error: Error,
    },
    /// A remote forwarding could not be established anew.
    Retrying {
        /// The reason.
        error: Error,
        /// The time until the next attempt.
        after: Duration,
    },
    /// A remote forwarding stands again. Where the server chose the port, it may be another one
    /// ([`ForwardHandle::port`]).
    Established,
    /// A remote forwarding has ended, because nothing but the user can help: a host key that changed, a key that
    /// is no longer accepted.
    Failed {
        /// The reason.
        error: Error,
    },
}

/// Events of one forwarding, in order. Whoever reads too late misses the oldest.
#[derive(Debug)]
pub struct ForwardEvents {
    queue: broadcast::Receiver<ForwardEvent>,
}

impl ForwardEvents {
    /// The next one; `None` when the forwarding and everything it carried have ended. Nothing is lost when the wait for
    /// it is given up.
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

/// Events kept for readers that are late.
const EVENTS: usize = 64;

/// The state that a forwarding's handle, its task and its connections share.
struct Shared {
    /// Guards the addresses while they are copied or replaced.
    listening: Mutex<Vec<Listen>>,
    traffic: Traffic,
    accepted: Counter,
    open: AtomicU64,
    refused: Counter,
    events: broadcast::Sender<ForwardEvent>,
    /// No new connections.
    stop: CancellationToken,
    /// No connections at all.
    abort: CancellationToken,
    /// Whether the end of the listening waits for the server's word.
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
        // Nobody needs to listen.
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
