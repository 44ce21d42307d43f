//! A request for a session, from a client of the control socket.

use std::pin::Pin;
use std::sync::atomic::AtomicBool;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use trunkline::{Engine, Error, Interaction};

use super::listening::Waiting;
use super::observers::Observers;
use crate::deadline::Deadline;
use crate::openssh::Masters;
use crate::protocol::{Reply, SessionRequest};

/// The reason why a client has nothing more to say about its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Departure {
    Gone,
    /// The client ends the session, and waits to hear how.
    Terminated,
}

impl Departure {
    /// Returns the session's error.
    pub(crate) fn error(self, host: &str) -> Error {
        let why = match self {
            Self::Gone => "the client left",
            Self::Terminated => "the command was ended before it was done",
        };
        Error::Closed {
            host: host.to_owned(),
            why: why.into(),
        }
    }
}

/// A request for a session, its client, and the parts of the daemon that serve it.
pub(crate) struct Asked<'a> {
    pub(crate) request: &'a SessionRequest,
    pub(crate) deadline: Option<Deadline>,
    pub(crate) interaction: &'a Interaction,
    pub(crate) replies: &'a mpsc::Sender<Reply>,
    /// Cancelled when the client ends the session. The request is among its inputs, too, but those are not read before
    /// the session has started.
    pub(crate) terminated: CancellationToken,
    /// True if the session continues after its client leaves.
    pub(crate) detached: AtomicBool,
    pub(crate) observers: &'a Observers<'a>,
    pub(crate) engine: &'a Engine,
    /// `None` in a private daemon.
    pub(crate) masters: Option<&'a Masters>,
    pub(crate) waiting: &'a Waiting,
}

impl Asked<'_> {
    /// Returns the host as it was typed.
    pub(crate) fn name(&self) -> &str {
        &self.request.host.destination.host
    }

    /// Returns true if the client stands for ssh.
    pub(crate) fn is_for_ssh(&self) -> bool {
        self.request.ssh.is_some()
    }

    /// Returns true if the daemon is private to this client and ends with it.
    pub(crate) fn is_private(&self) -> bool {
        self.masters.is_none()
    }

    /// Does one step of starting a session, before anything of its command was sent, unless its client ends it or time
    /// is up. Boxed, since all steps together overflow a thread's stack in an unoptimised build.
    pub(crate) async fn may_end<T>(
        &self,
        step: Pin<Box<impl Future<Output = Result<T, Error>>>>,
    ) -> Result<T, Error> {
        tokio::select! {
            biased;
            done = step => done,
            () = self.terminated.cancelled() => Err(Departure::Terminated.error(self.name())),
            error = Deadline::wait(self.deadline, self.name()) => Err(error),
        }
    }
}
