//! The global requests of a client in proxy mode, mostly to make the server listen.

use std::collections::HashMap;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use trunkline::config::Listen;
use trunkline::{Host, IncomingConnection, RemoteListener};

use trunkline_audit::{Entry, Recorder, Subject};

use super::message::{self, Global};

/// A global request in the queue.
pub(super) struct GlobalRequest {
    pub(super) request: Global,
    pub(super) wants_reply: bool,
}

/// A connection to one of the server's listeners.
pub(super) struct Offer {
    pub(super) listen: Listen,
    pub(super) connection: IncomingConnection,
}

/// The most addresses on which one client may make the server listen.
const MAX_LISTENERS: usize = 256;

/// Answers global requests in order, since their answers have no numbers. The server stops listening when this ends.
pub(super) async fn serve(
    host: Host,
    mut requests: mpsc::Receiver<GlobalRequest>,
    offers: mpsc::Sender<Offer>,
    out: mpsc::Sender<Bytes>,
    recorder: Recorder,
) {
    let mut listening = Listening {
        host,
        offers,
        recorder,
        standing: HashMap::new(),
    };
    while let Some(GlobalRequest { request, wants_reply }) = requests.recv().await {
        let reply = match request {
            Global::Listen(listen) => listening.begin(listen).await,
            Global::Cancel(listen) => listening.cancel(&listen).await,
            Global::NoMoreSessions => message::global_reply(true, None),
            // Includes keepalive@openssh.com, for which any answer will do.
            Global::Unknown => message::global_reply(false, None),
        };
        if wants_reply {
            // If the client has left, that is noticed elsewhere.
            let _ = out.send(reply).await;
        }
    }
}

struct Listening {
    host: Host,
    offers: mpsc::Sender<Offer>,
    recorder: Recorder,
    standing: HashMap<Listen, Listener>,
}

/// A listener on the server. Dropping it ends the listener.
struct Listener {
    stop: DropGuard,
    task: JoinHandle<()>,
    /// The listener's record in the audit trail, which ends with it.
    _entry: Entry,
}

impl Listening {
    async fn begin(&mut self, listen: Listen) -> Bytes {
        self.standing.retain(|_, standing| !standing.task.is_finished());
        if self.standing.len() >= MAX_LISTENERS {
            return message::global_reply(false, None);
        }
        let config = self.host.config();
        let subject = Subject::new("listener", &config.original_host).with_host(config);
        let entry = self.recorder.entry(subject.with_target(listen.to_string()));
        let listening = async {
            entry.begin(|subject| subject).await?;
            self.host.listen_remote(&listen).await
        };
        let listener = match listening.await {
            Ok(listener) => listener,
            Err(error) => {
                entry.fail(&error);
                tracing::info!("the server does not listen for a proxy client: {error}");
                return message::global_reply(false, None);
            }
        };
        let at = listener.listening().clone();
        let chosen = match (&listen, &at) {
            (Listen::Tcp { port: 0, .. }, Listen::Tcp { port, .. }) => Some(*port),
            _ => None,
        };
        let stop = CancellationToken::new();
        let task = hand_over(listener, at.clone(), stop.clone(), self.offers.clone());
        let standing = Listener {
            stop: stop.drop_guard(),
            task: tokio::spawn(task),
            _entry: entry,
        };
        self.standing.insert(at, standing);
        message::global_reply(true, chosen)
    }

    async fn cancel(&mut self, listen: &Listen) -> Bytes {
        let Some(Listener { stop, task, _entry }) = self.standing.remove(listen) else {
            return message::global_reply(false, None);
        };
        drop(stop);
        // A panic in the task ended the listener as well.
        let _ = task.await;
        message::global_reply(true, None)
    }
}

async fn hand_over(
    mut listener: RemoteListener,
    listen: Listen,
    stop: CancellationToken,
    offers: mpsc::Sender<Offer>,
) {
    loop {
        let connection = tokio::select! {
            () = stop.cancelled() => return listener.close().await,
            connection = listener.next() => connection,
        };
        let Some(connection) = connection else { return };
        let listen = listen.clone();
        if offers.send(Offer { listen, connection }).await.is_err() {
            return;
        }
    }
}
