//! Forwarding: connections that the server opens towards this side.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use trunkline_proto::{ChannelId, GlobalRequest, IncomingKind};

use crate::channel::{ChannelStream, Op, channel};

/// What the server was asked to listen on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ListenKey {
    /// An address as it was asked for, and the port that the server listens on.
    Tcp(String, u32),
    /// A socket's path.
    Unix(String),
    /// The forwarded agent.
    Agent,
}

/// Takes a connection that came in, with its originator's address.
pub(crate) type Handler = Arc<dyn Fn(ChannelStream, String) + Send + Sync>;

/// Where connections that a server opens towards this side go. One for each connection.
pub(crate) struct Incoming {
    /// Weak, so that listening does not keep a connection alive that nobody holds.
    ops: mpsc::WeakUnboundedSender<Op>,
    handlers: Mutex<HashMap<ListenKey, Handler>>,
}

impl Incoming {
    pub(crate) fn new(ops: mpsc::WeakUnboundedSender<Op>) -> Self {
        Self { ops, handlers: Mutex::default() }
    }

    /// Guards the table of handlers, for as long as a look-up takes.
    fn handlers(&self) -> MutexGuard<'_, HashMap<ListenKey, Handler>> {
        self.handlers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends connections for `key` to `handler`; `false` when it has one already.
    pub(crate) fn listen(&self, key: ListenKey, handler: Handler) -> bool {
        let mut handlers = self.handlers();
        if handlers.contains_key(&key) {
            return false;
        }
        handlers.insert(key, handler);
        true
    }

    /// Refuses connections for `key` from now on.
    pub(crate) fn forget(&self, key: &ListenKey) {
        self.handlers().remove(key);
    }

    /// Drops all handlers.
    pub(crate) fn clear(&self) {
        self.handlers().clear();
    }

    /// Takes or refuses a channel that the server offers: only what was asked for is taken.
    pub(crate) fn offer(&self, id: ChannelId, kind: IncomingKind) {
        let Some(ops) = self.ops.upgrade() else { return };
        let (key, originator) = match kind {
            IncomingKind::ForwardedTcpip { address, port, originator: (host, from) } => {
                (ListenKey::Tcp(address, port), format!("{host}:{from}"))
            }
            IncomingKind::ForwardedStreamlocal { path } => (ListenKey::Unix(path), String::new()),
            IncomingKind::Agent => (ListenKey::Agent, String::new()),
        };
        let handler = self.handlers().get(&key).cloned();
        let Some(handler) = handler else {
            let _ = ops.send(Op::Reject { id });
            return;
        };
        let (port, parts) = channel(&ops, "a forwarded connection", false, None);
        port.shared.set_id(id);
        let _ = ops.send(Op::Accept { port });
        handler(ChannelStream::new(parts), originator);
    }

    /// Sends a global request; `None` when it was refused or the connection is gone.
    pub(crate) async fn global(&self, request: GlobalRequest) -> Option<Bytes> {
        let (reply, answer) = oneshot::channel();
        self.ops.upgrade()?.send(Op::Global { request, reply }).ok()?;
        answer.await.ok().flatten()
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("listening", &self.handlers().keys()).finish_non_exhaustive()
    }
}
