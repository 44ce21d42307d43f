//! The server's listeners for clients, and their connections. Each connection has a number under which it waits for a
//! session that carries it ([`Program::Incoming`](crate::protocol::Program::Incoming)) or for its refusal.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use trunkline::config::Listen;
use trunkline::{Absence, Error, Host, IncomingConnection};

use crate::protocol::{ExitStatus, Reply, Request};
use crate::reports::plain_begun;

/// Connections that wait for one client. More wait in the engine, which refuses an excess.
const BACKLOG: usize = 128;

/// The waiting connections of all clients.
#[derive(Default)]
pub(crate) struct Waiting {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Listeners and connections are numbered in one sequence.
    next: u64,
    connections: HashMap<u64, Offered>,
}

struct Offered {
    listener: u64,
    connection: IncomingConnection,
    _place: OwnedSemaphorePermit,
}

/// One client's listener. Dropping it refuses the connections that nobody has taken.
struct Listener<'a> {
    number: u64,
    waiting: &'a Waiting,
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        let number = self.number;
        self.waiting
            .inner()
            .connections
            .retain(|_, offered| offered.listener != number);
    }
}

impl Waiting {
    /// Locks the table, for as long as a look-up takes.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self) -> u64 {
        let mut inner = self.inner();
        inner.next += 1;
        inner.next
    }

    /// Makes the server listen until the client ends its input or leaves, or the connection is lost. Tells the client
    /// of each connection. Returns the last frame when all of them are taken or refused.
    ///
    /// # Errors
    /// The server refuses, or cannot be reached.
    pub(crate) async fn listen(
        &self,
        host: &Host,
        listen: &Listen,
        replies: &mpsc::Sender<Reply>,
        mut inputs: mpsc::Receiver<Request>,
    ) -> Result<Reply, Error> {
        let warm = host.is_warm();
        let mut listening = host.listen_remote(listen).await?;
        let port = match listening.listening() {
            Listen::Tcp { port, .. } => Some(*port),
            Listen::Socket(_) => None,
        };
        let _ = replies.send(plain_begun(warm)).await;
        let _ = replies.send(Reply::Listening { port }).await;
        let listener = Listener {
            number: self.number(),
            waiting: self,
        };
        let places = Arc::new(Semaphore::new(BACKLOG));
        loop {
            let next = async {
                let place = places.clone().acquire_owned().await.ok()?;
                Some((listening.next().await?, place))
            };
            tokio::select! {
                said = inputs.recv() => match said {
                    Some(Request::Refuse(number)) => self.refuse(number),
                    Some(Request::Input(data)) if data.is_empty() => break,
                    Some(_) => {}
                    None => return Ok(Reply::Exit(ExitStatus::Exited(0))),
                },
                offered = next => {
                    let Some((connection, _place)) = offered else {
                        return Ok(Reply::Failed(listening.wait_for_end().await.into()));
                    };
                    let number = self.number();
                    let originator = connection.originator().to_owned();
                    let offered = Offered { listener: listener.number, connection, _place };
                    self.inner().connections.insert(number, offered);
                    let _ = replies.send(Reply::Incoming { number, originator }).await;
                }
            }
        }
        listening.close().await;
        let _ = replies.send(Reply::Output(Vec::new())).await;
        // Waiting connections can still be taken.
        let all = u32::try_from(BACKLOG).unwrap_or(u32::MAX);
        loop {
            tokio::select! {
                said = inputs.recv() => match said {
                    Some(Request::Refuse(number)) => self.refuse(number),
                    Some(_) => {}
                    None => break,
                },
                _ = places.acquire_many(all) => break,
            }
        }
        Ok(Reply::Exit(ExitStatus::Exited(0)))
    }

    fn refuse(&self, number: u64) {
        self.inner().connections.remove(&number);
    }

    /// Takes a connection.
    ///
    /// # Errors
    /// The connection is gone.
    pub(crate) fn take(&self, host: &str, number: u64) -> Result<IncomingConnection, Error> {
        let offered = self.inner().connections.remove(&number);
        let offered = offered.ok_or_else(|| Error::NotConnected {
            host: host.to_owned(),
            why: Absence::ForwardingClosed,
        })?;
        Ok(offered.connection)
    }
}
