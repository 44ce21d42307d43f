//! Channels that the server opens towards this side, and their handlers.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use trunkline_proto::{ChannelId, GlobalRequest, IncomingKind};

use super::queue;
use crate::connection::channel::{ChannelStream, Op, Ops, channel};
use crate::connection::timing::idle::Idle;
use crate::error::ServerRequest;

/// An address that the server was asked to listen on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ListenKey {
    /// The requested address, and the port that the server listens on. sshd repeats the address literally (channels.c,
    /// `port_open_helper`), and OpenSSH's client accepts nothing else.
    Tcp(String, u32),
    /// A socket's path.
    Unix(String),
    /// The forwarded agent.
    Agent,
}

/// Takes or refuses an incoming connection. Runs in the task that drives the connection: it must not block.
pub(crate) type Handler = Arc<dyn Fn(Offered) + Send + Sync>;

/// The handlers of connections that a server opens towards this side. There is one for each connection.
pub(crate) struct Incoming {
    /// Weak, so that listening does not keep an otherwise unused connection alive.
    ops: queue::WeakSender<Op>,
    table: Mutex<Table>,
    /// Notified when the server has answered a request to listen, or listening has ended.
    settled: Notify,
}

#[derive(Default)]
struct Table {
    handlers: HashMap<ListenKey, Listener>,
    /// Requests for a port of the server's choice whose answers have not been handled yet.
    unsettled: usize,
    /// Connections that may belong to one of those requests: the first may immediately follow the answer.
    held: Vec<(ListenKey, Offered)>,
}

impl Table {
    /// Returns the handler of connections to an address.
    fn handler(&self, key: &ListenKey) -> Option<Handler> {
        if let Some(listener) = self.handlers.get(key) {
            return Some(listener.handler.clone());
        }
        // OpenSSH before 6 sends port 0 in connections to a port of its own choice (its bug 2017). That is unambiguous
        // if only one port of the address is listened on.
        let ListenKey::Tcp(address, 0) = key else {
            return None;
        };
        let mut of_address = self
            .handlers
            .iter()
            .filter(|(key, _)| matches!(key, ListenKey::Tcp(asked, _) if asked == address));
        match (of_address.next(), of_address.next()) {
            (Some((_, listener)), None) => Some(listener.handler.clone()),
            _ => None,
        }
    }
}

/// The handler of the connections to an address.
struct Listener {
    handler: Handler,
    /// The server has confirmed that it listens.
    granted: bool,
}

/// The most connections that wait for a port to become known: more than a server can open between its answer and the
/// answer's handling.
const MAX_HELD: usize = 64;

impl Incoming {
    pub(crate) fn new(ops: queue::WeakSender<Op>) -> Self {
        Self {
            ops,
            table: Mutex::default(),
            settled: Notify::new(),
        }
    }

    /// Locks the table for a look-up. No handler is called under the lock.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the handler for an address that the server listens on. Returns `false` if it has one already.
    pub(crate) fn listen(&self, key: ListenKey, handler: Handler) -> bool {
        let mut table = self.table();
        if table.handlers.contains_key(&key) {
            return false;
        }
        let granted = true;
        table.handlers.insert(key, Listener { handler, granted });
        true
    }

    /// Sets the handler for an address before the server is asked to listen; [`Self::note_granted`] or
    /// [`Self::forget`] must follow. Waits for another pending request for the address, which the server may refuse.
    pub(crate) async fn ask_to_listen(&self, key: &ListenKey, handler: &Handler) -> bool {
        loop {
            let settled = self.settled.notified();
            let other = {
                let mut table = self.table();
                let other = table.handlers.get(key).map(|listener| listener.granted);
                if other.is_none() {
                    let (handler, granted) = (handler.clone(), false);
                    table.handlers.insert(key.clone(), Listener { handler, granted });
                }
                other
            };
            match other {
                None => return true,
                Some(true) => return false,
                Some(false) => settled.await,
            }
        }
    }

    /// Notes that the server listens.
    pub(crate) fn note_granted(&self, key: &ListenKey) {
        if let Some(listener) = self.table().handlers.get_mut(key) {
            listener.granted = true;
        }
        self.settled.notify_waiters();
    }

    /// Notes that the server is told to stop listening. New requests for the address wait until it is forgotten.
    pub(crate) fn note_ending(&self, key: &ListenKey) {
        if let Some(listener) = self.table().handlers.get_mut(key) {
            listener.granted = false;
        }
    }

    /// Holds connections to unknown ports until the returned value is dropped.
    pub(crate) fn expect_port(self: &Arc<Self>) -> Unsettled {
        self.table().unsettled += 1;
        Unsettled {
            incoming: self.clone(),
        }
    }

    /// Refuses connections for `key` from now on.
    pub(crate) fn forget(&self, key: &ListenKey) {
        let forgotten = self.table().handlers.remove(key);
        drop(forgotten);
        self.settled.notify_waiters();
    }

    /// Drops all handlers.
    pub(crate) fn clear(&self) {
        // Pending requests stay counted: each removes itself.
        let mut table = self.table();
        let forgotten = (
            std::mem::take(&mut table.handlers),
            std::mem::take(&mut table.held),
        );
        drop(table);
        drop(forgotten);
        self.settled.notify_waiters();
    }

    /// Hands a channel that the server offers to its handler, or refuses it if there is none.
    pub(crate) fn offer(&self, id: ChannelId, kind: IncomingKind) {
        let Some(ops) = self.ops.upgrade() else { return };
        let (key, originator) = match kind {
            IncomingKind::ForwardedTcpip {
                address,
                port,
                originator: (host, from),
            } => {
                let host = if host.contains(':') {
                    format!("[{host}]")
                } else {
                    host
                };
                (ListenKey::Tcp(address, port), format!("{host}:{from}"))
            }
            IncomingKind::ForwardedStreamlocal { path } => (ListenKey::Unix(path), String::new()),
            IncomingKind::Agent => (ListenKey::Agent, String::new()),
        };
        let offered = Offered {
            id,
            ops,
            originator,
            accepted: false,
        };
        let mut table = self.table();
        let handler = table.handler(&key);
        if handler.is_none()
            && table.unsettled > 0
            && table.held.len() < MAX_HELD
            && matches!(key, ListenKey::Tcp(..))
        {
            table.held.push((key, offered));
            return;
        }
        drop(table);
        match handler {
            Some(handler) => handler(offered),
            None => drop(offered),
        }
    }

    /// Sends a global request; returns `None` if it was refused or the connection is gone.
    pub(crate) async fn global(&self, request: GlobalRequest) -> Option<Bytes> {
        let (reply, answer) = oneshot::channel();
        self.ops.upgrade()?.send(Op::Global { request, reply }).ok()?;
        answer.await.ok()?.ok().flatten()
    }

    /// Keeps the connection in use; returns `None` if it is about to end.
    pub(crate) fn hold(&self) -> Option<Ops> {
        self.ops.upgrade()
    }

    /// Sends a global request without waiting for the answer.
    pub(crate) fn global_unanswered(&self, request: GlobalRequest) {
        if let Some(ops) = self.ops.upgrade() {
            let (reply, _) = oneshot::channel();
            let _ = ops.send(Op::Global { request, reply });
        }
    }
}

/// A pending request for a port of the server's choice. Dropping it ends the wait for the port.
pub(crate) struct Unsettled {
    incoming: Arc<Incoming>,
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        let mut table = self.incoming.table();
        table.unsettled -= 1;
        let held = std::mem::take(&mut table.held);
        let (mut known, mut unknown) = (Vec::new(), Vec::new());
        for (key, offered) in held {
            match table.handler(&key) {
                Some(handler) => known.push((handler, offered)),
                None => unknown.push((key, offered)),
            }
        }
        let refused = if table.unsettled > 0 {
            table.held = unknown;
            Vec::new()
        } else {
            unknown
        };
        drop(table);
        drop(refused);
        for (handler, offered) in known {
            handler(offered);
        }
    }
}

/// An incoming connection. Dropping it refuses it.
pub(crate) struct Offered {
    id: ChannelId,
    ops: Ops,
    originator: String,
    accepted: bool,
}

impl Offered {
    /// Returns the connection's origin as the server names it; empty for sockets.
    pub(crate) fn originator(&self) -> &str {
        &self.originator
    }

    pub(crate) fn accept(mut self, idle: Option<Box<Idle>>) -> ChannelStream {
        self.accepted = true;
        let (mut port, parts) = channel(&self.ops, ServerRequest::Incoming, false, None);
        port.terms.idle = idle;
        port.shared.set_id(self.id);
        let _ = self.ops.send(Op::Accept { port });
        ChannelStream::new(parts)
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        if !self.accepted {
            let _ = self.ops.send(Op::Reject { id: self.id });
        }
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("listening", &self.table().handlers.keys())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::sync::mpsc;

    use super::*;

    fn tcp(address: &str, port: u32) -> IncomingKind {
        IncomingKind::ForwardedTcpip {
            address: address.into(),
            port,
            originator: ("192.0.2.1".into(), 4711),
        }
    }

    /// A table, the operations it sends to the driver, and what its handlers receive.
    struct Bench {
        incoming: Arc<Incoming>,
        _ops: Ops,
        asked: queue::Receiver<Op>,
        given: mpsc::UnboundedReceiver<Offered>,
        handler: Handler,
    }

    impl Bench {
        fn new() -> Self {
            let (ops, asked) = queue::queue();
            let (give, given) = mpsc::unbounded_channel();
            let handler: Handler = Arc::new(move |offered| give.send(offered).unwrap());
            Self {
                incoming: Arc::new(Incoming::new(ops.downgrade())),
                _ops: ops,
                asked,
                given,
                handler,
            }
        }

        fn refusals(&mut self) -> usize {
            std::iter::from_fn(|| self.asked.try_recv())
                .filter(|op| matches!(op, Op::Reject { .. }))
                .count()
        }
    }

    #[test]
    fn port_0_is_the_only_port_of_its_address() {
        let mut bench = Bench::new();
        let listen = |bench: &Bench, port| {
            let key = ListenKey::Tcp("localhost".into(), port);
            assert!(bench.incoming.listen(key, bench.handler.clone()));
        };
        listen(&bench, 80);
        bench
            .incoming
            .offer(ChannelId::from_number(1), tcp("localhost", 0));
        assert!(bench.given.try_recv().is_ok());
        bench.incoming.offer(ChannelId::from_number(2), tcp("", 0));
        listen(&bench, 81);
        bench
            .incoming
            .offer(ChannelId::from_number(3), tcp("localhost", 0));
        assert!(bench.given.try_recv().is_err());
    }

    #[test]
    fn only_what_was_asked_for_is_taken() {
        let mut bench = Bench::new();
        assert!(
            bench
                .incoming
                .listen(ListenKey::Tcp("localhost".into(), 80), bench.handler.clone())
        );
        assert!(
            !bench
                .incoming
                .listen(ListenKey::Tcp("localhost".into(), 80), bench.handler.clone())
        );
        for other in [tcp("localhost", 81), tcp("", 80), IncomingKind::Agent] {
            bench.incoming.offer(ChannelId::from_number(1), other);
        }
        assert!(bench.given.try_recv().is_err());
        assert_eq!(bench.refusals(), 3);
        bench
            .incoming
            .offer(ChannelId::from_number(2), tcp("localhost", 80));
        assert_eq!(bench.given.try_recv().unwrap().originator(), "192.0.2.1:4711");
        assert_eq!(bench.refusals(), 1, "dropped without an answer");
    }

    #[test]
    fn a_connection_that_outruns_the_answer_with_its_port_is_held() {
        let mut bench = Bench::new();
        let (first, second) = (bench.incoming.expect_port(), bench.incoming.expect_port());
        for port in [7001, 7002, 7003] {
            bench.incoming.offer(ChannelId::from_number(port), tcp("", port));
        }
        bench
            .incoming
            .listen(ListenKey::Tcp(String::new(), 7002), bench.handler.clone());
        drop(first);
        assert_eq!(bench.given.try_recv().unwrap().id, ChannelId::from_number(7002));
        assert!(bench.given.try_recv().is_err());
        bench.refusals();
        bench
            .incoming
            .listen(ListenKey::Tcp(String::new(), 7001), bench.handler.clone());
        drop(second);
        assert_eq!(bench.given.try_recv().unwrap().id, ChannelId::from_number(7001));
        assert_eq!(
            bench.refusals(),
            2,
            "7003 was never asked for, and 7001 was dropped"
        );
    }

    #[test]
    fn no_more_is_held_than_the_bound() {
        let mut bench = Bench::new();
        let _waiting = bench.incoming.expect_port();
        for port in 0..MAX_HELD as u32 + 10 {
            bench.incoming.offer(ChannelId::from_number(port), tcp("", port));
        }
        assert_eq!(bench.refusals(), 10);
    }

    fn request_forwarding() -> (Incoming, ListenKey, Handler) {
        let (ops, _) = queue::queue();
        let key = ListenKey::Tcp("localhost".into(), 8080);
        (Incoming::new(ops.downgrade()), key, Arc::new(drop))
    }

    #[test]
    fn who_asks_beside_another_asks_itself_once_that_one_was_refused() {
        let (incoming, key, handler) = request_forwarding();
        assert_eq!(incoming.ask_to_listen(&key, &handler).now_or_never(), Some(true));
        let mut second = Box::pin(incoming.ask_to_listen(&key, &handler));
        assert_eq!((&mut second).now_or_never(), None, "the first has no answer yet");
        incoming.forget(&key);
        assert_eq!(second.now_or_never(), Some(true));
    }

    #[test]
    fn who_asks_beside_another_is_told_once_that_one_has_it() {
        let (incoming, key, handler) = request_forwarding();
        assert_eq!(incoming.ask_to_listen(&key, &handler).now_or_never(), Some(true));
        let mut second = Box::pin(incoming.ask_to_listen(&key, &handler));
        assert_eq!((&mut second).now_or_never(), None);
        incoming.note_granted(&key);
        assert_eq!(second.now_or_never(), Some(false));
    }
}
