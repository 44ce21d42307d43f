//! A session that a client of the control socket asks for.

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

/// The reason for which a client has nothing more to say about its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Departure {
    Gone,
    /// It wants the session to end, and to hear how.
    Terminated,
}

impl Departure {
    /// The session's error.
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
    /// The client wants the session to end, which it says among its inputs, too: nobody reads those before the session has
    /// begun.
    pub(crate) terminated: CancellationToken,
    /// The session continues when its client leaves.
    pub(crate) detached: AtomicBool,
    pub(crate) observers: &'a Observers<'a>,
    pub(crate) engine: &'a Engine,
    /// `None` where there is no shared daemon.
    pub(crate) masters: Option<&'a Masters>,
    pub(crate) waiting: &'a Waiting,
}

impl Asked<'_> {
    /// The host, as it was typed.
    pub(crate) fn name(&self) -> &str {
        &self.request.host.destination.host
    }

    /// Returns true if the client stands for ssh.
    pub(crate) fn is_for_ssh(&self) -> bool {
        self.request.ssh.is_some()
    }

    /// Returns true if the daemon is this client's own, and ends with it.
    pub(crate) fn is_private(&self) -> bool {
        self.masters.is_none()
    }

    /// Does one step of a session that has not begun, nothing of whose command was sent. Its client may want it to end first, or
    /// its time be up. Boxed: all of them together are more than a thread's stack holds in a build without optimisation.
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
