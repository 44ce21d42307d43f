//! A connection that is kept open for a program.

use tokio::sync::watch;
use trunkline::{HeldConnection, Host};
use trunkline_control::protocol::{Reply, Request};
use trunkline_request::connection::{ConnectionReport, Handshake};
use trunkline_request::failure::Failure;

use crate::conversation::{Control, End};
use crate::daemon::Daemon;

/// A connection that is kept open while this exists.
#[derive(Debug)]
pub struct ConnectionHold<'a>(Source<'a>);

#[derive(Debug)]
enum Source<'a> {
    Engine(&'a Host, HeldConnection, watch::Receiver<bool>),
    Daemon(&'a Daemon, Control, End),
}

#[derive(Debug)]
pub enum Change {
    /// The connections on which new sessions of its host are placed have changed.
    Placement {
        /// True if traffic keeps new sessions away from one of the connections.
        apart: bool,
        connections: Vec<ConnectionReport>,
    },
    Ended(Failure),
}

impl<'a> ConnectionHold<'a> {
    pub(crate) async fn of_engine(host: &'a Host) -> Result<Self, Failure> {
        let connection = host.hold();
        // If it was made and has ended since, the first change reports that.
        match connection.ready().await {
            Err(error) if connection.info().is_none() => return Err(error.into()),
            _ => {}
        }
        Ok(Self(Source::Engine(host, connection, host.watch_busy())))
    }

    pub(crate) async fn of_daemon(daemon: &'a Daemon) -> Result<Self, Failure> {
        let (control, end) = daemon.hold().await?;
        Ok(Self(Source::Daemon(daemon, control, end)))
    }

    /// Returns the result of its handshake, without what the daemon does not report.
    pub async fn handshake(&self) -> Option<Handshake> {
        match &self.0 {
            Source::Engine(_, connection, _) => connection.info().map(Handshake::from),
            Source::Daemon(daemon, ..) => {
                let connections = daemon.connections().await.ok()?;
                connections
                    .into_iter()
                    .find_map(|connection| connection.handshake)
            }
        }
    }

    /// Exchanges keys again.
    pub fn rekey(&self) {
        match &self.0 {
            Source::Engine(_, connection, _) => connection.rekey(),
            Source::Daemon(_, control, _) => control.send(Request::Rekey),
        }
    }

    /// Waits for the next change. There is none after its end. Cancel-safe.
    pub async fn next(&mut self) -> Change {
        match &mut self.0 {
            Source::Engine(host, connection, apart) => tokio::select! {
                error = connection.wait_for_end() => Change::Ended(error.into()),
                Ok(()) = apart.changed() => Change::Placement {
                    apart: *apart.borrow_and_update(),
                    connections: host.lanes().into_iter().map(|lane| lane.report).collect(),
                },
            },
            Source::Daemon(_, _, end) => loop {
                match end.next().await {
                    Some(Reply::Placement { apart, connections }) => {
                        return Change::Placement { apart, connections };
                    }
                    Some(_) => {}
                    None => {
                        let ended = end.wait().await;
                        return Change::Ended(
                            ended
                                .err()
                                .unwrap_or_else(|| Failure::closed_locally("connection")),
                        );
                    }
                }
            },
        }
    }
}
