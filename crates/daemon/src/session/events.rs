//! The two directions between a session and its client, [`Inputs`] and [`Events`], in terms of the control protocol.
//! Clients of the control socket get these as they are ([`OverControlSocket`]); the mux socket translates them for
//! stock ssh.

use std::future::Future;
use std::io;

use tokio::sync::mpsc;
use trunkline::Host;

use crate::protocol::{Reply, Request};
use crate::reports::plain_begun;

/// A client's requests about its session.
pub(crate) trait Inputs: Send {
    /// Waits for the next request; `None` once the client is gone. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Option<Request>> + Send;
}

/// A session's replies to its client.
pub(crate) trait Events: Send + Sync {
    /// Says that the session has started. `lacks_terminal`: the server refused the terminal that was asked for.
    fn tell_begun(&self, lacks_terminal: bool) -> impl Future<Output = ()> + Send;

    /// Sends any other reply. Fails when the client no longer reads.
    fn tell(&self, reply: Reply) -> impl Future<Output = io::Result<()>> + Send;
}

/// A client of the control socket.
pub(crate) struct OverControlSocket<'a> {
    pub(crate) replies: &'a mpsc::Sender<Reply>,
    /// The reply that the session has started.
    pub(crate) begun: Reply,
    /// The host whose round-trip time lets the client predict echoes.
    pub(crate) predicts_on: Option<&'a Host>,
    /// True if the client hears how the command ended before the session does.
    pub(crate) tell_exit: bool,
}

impl<'a> OverControlSocket<'a> {
    /// Returns the events of a session without a terminal.
    pub(crate) fn plain(replies: &'a mpsc::Sender<Reply>, warm: bool) -> Self {
        Self {
            replies,
            begun: plain_begun(warm),
            predicts_on: None,
            tell_exit: false,
        }
    }
}

impl Inputs for mpsc::Receiver<Request> {
    async fn next(&mut self) -> Option<Request> {
        self.recv().await
    }
}

impl Events for OverControlSocket<'_> {
    async fn tell_begun(&self, _: bool) {
        let mut begun = self.begun.clone();
        if let (
            Reply::Begun {
                predict: Some(predict),
                ..
            },
            Some(host),
        ) = (&mut begun, self.predicts_on)
        {
            predict.round_trip = host.round_trip();
        }
        // A missing client is noticed through its inputs.
        let _ = self.replies.send(begun).await;
    }

    async fn tell(&self, reply: Reply) -> io::Result<()> {
        if matches!(reply, Reply::Exited(_)) && !self.tell_exit {
            return Ok(());
        }
        let told = self.replies.send(reply).await;
        told.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ExitStatus;

    #[tokio::test]
    async fn only_who_asked_for_it_hears_how_a_command_ended_before_its_session() {
        for tell_exit in [true, false] {
            let (replies, mut told) = mpsc::channel(1);
            let events = OverControlSocket {
                tell_exit,
                ..OverControlSocket::plain(&replies, true)
            };
            events.tell(Reply::Exited(ExitStatus::Exited(0))).await.unwrap();
            assert_eq!(told.try_recv().is_ok(), tell_exit);
        }
    }

    #[tokio::test]
    async fn what_nobody_takes_is_told_to_whoever_has_it() {
        let (replies, told) = mpsc::channel(1);
        drop(told);
        let events = OverControlSocket::plain(&replies, true);
        let untaken = events.tell(Reply::Output(b"x".to_vec())).await.unwrap_err();
        assert_eq!(untaken.kind(), io::ErrorKind::BrokenPipe);
    }
}
