//! Listeners on the server for a program.

use std::sync::Arc;

use trunkline::config::Listen;
use trunkline::{Host, IncomingConnection, RemoteListener};
use trunkline_audit::{Recorder, Subject};
use trunkline_control::protocol::{Program, Reply, Request};
use trunkline_request::failure::Failure;

use crate::conversation::{Control, End};
use crate::daemon::Daemon;
use crate::recorded::{Recorded, record, unless_failed};
use crate::session::Tunnel;

/// A listener on the server. Dropping it closes the listener.
#[derive(Debug)]
pub struct Listener(Source);

#[derive(Debug)]
enum Source {
    Engine {
        listener: RemoteListener,
        host: Box<Host>,
        recorder: Recorder,
        /// The listener's record in the audit trail, which ends with it.
        recorded: Recorded,
    },
    Daemon {
        daemon: Arc<Daemon>,
        control: Control,
        end: End,
        port: Option<u16>,
    },
}

impl Listener {
    pub(crate) async fn of_engine(
        recorder: &Recorder,
        host: &Host,
        listen: &Listen,
    ) -> Result<Self, Failure> {
        let subject = || {
            Subject::default().running(&match listen {
                Listen::Tcp { host, port } => Program::Listen(host.clone(), *port),
                Listen::Socket(path) => Program::ListenSocket(path.display().to_string()),
            })
        };
        let recorded = record(recorder, host, subject).await?;
        let listener = unless_failed(&recorded, host.listen_remote(listen).await)?;
        Ok(Self(Source::Engine {
            listener,
            host: Box::new(host.clone()),
            recorder: recorder.clone(),
            recorded,
        }))
    }

    pub(crate) async fn of_daemon(daemon: &Arc<Daemon>, listen: &Listen) -> Result<Self, Failure> {
        let (control, end, port) = daemon.listen(listen).await?;
        let daemon = daemon.clone();
        Ok(Self(Source::Daemon {
            daemon,
            control,
            end,
            port,
        }))
    }

    /// Returns the TCP port, also if the server chose it.
    pub fn port(&self) -> Option<u16> {
        match &self.0 {
            Source::Engine { listener, .. } => match listener.listening() {
                Listen::Tcp { port, .. } => Some(*port),
                Listen::Socket(_) => None,
            },
            Source::Daemon { port, .. } => *port,
        }
    }

    /// Waits for the next client; `None` when the connection has ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<Incoming> {
        match &mut self.0 {
            Source::Engine {
                listener,
                host,
                recorder,
                ..
            } => {
                let connection = listener.next().await?;
                Some(Incoming {
                    originator: connection.originator().to_owned(),
                    offer: Offer::Engine {
                        connection,
                        host: host.clone(),
                        recorder: recorder.clone(),
                    },
                })
            }
            Source::Daemon {
                daemon, control, end, ..
            } => loop {
                if let Reply::Incoming { number, originator } = end.next().await? {
                    let control = Some(control.clone());
                    return Some(Incoming {
                        originator,
                        offer: Offer::Daemon(daemon.clone(), Numbered { number, control }),
                    });
                }
            },
        }
    }

    /// Stops listening, and waits until the server has confirmed that.
    pub async fn close(self) {
        match self.0 {
            Source::Engine {
                listener, recorded, ..
            } => {
                listener.close().await;
                drop(recorded);
            }
            Source::Daemon { control, mut end, .. } => {
                control.send(Request::Input(Vec::new()));
                while let Some(told) = end.next().await {
                    match told {
                        Reply::Incoming { number, .. } => control.send(Request::Refuse(number)),
                        Reply::Output(_) => break,
                        _ => {}
                    }
                }
                // Until the program has taken or refused the connections that were reported.
                tokio::spawn(async move {
                    let _ = end.wait().await;
                    drop(control);
                });
            }
        }
    }
}

/// A client of a listener. Dropping it refuses it.
#[derive(Debug)]
pub struct Incoming {
    originator: String,
    offer: Offer,
}

#[derive(Debug)]
enum Offer {
    Engine {
        connection: IncomingConnection,
        host: Box<Host>,
        recorder: Recorder,
    },
    Daemon(Arc<Daemon>, Numbered),
}

impl Incoming {
    /// Returns the origin of the connection as `address:port`, as the server gives it; empty for a Unix socket.
    pub fn originator(&self) -> &str {
        &self.originator
    }

    /// Accepts the connection.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn accept(self) -> Result<Tunnel, Failure> {
        match self.offer {
            Offer::Engine {
                connection,
                host,
                recorder,
            } => {
                let subject = || Subject::accepted_connection(host.config(), connection.originator());
                let recorded = record(&recorder, &host, subject).await?;
                Ok(Tunnel::of_engine(connection.accept(), recorded))
            }
            Offer::Daemon(daemon, offered) => daemon.tunnel(Program::Incoming(offered.take())).await,
        }
    }
}

/// The daemon's offer of a client.
#[derive(Debug)]
struct Numbered {
    number: u64,
    /// `None` once it has been accepted.
    control: Option<Control>,
}

impl Numbered {
    fn take(mut self) -> u64 {
        self.control = None;
        self.number
    }
}

impl Drop for Numbered {
    fn drop(&mut self) {
        if let Some(control) = &self.control {
            control.send(Request::Refuse(self.number));
        }
    }
}
