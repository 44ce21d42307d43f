//! One client of a mux socket, from its hello to its end.

use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use tokio::net::UnixStream;
use trunkline::{Engine, Error, Host, Invalid};

use super::info;
use super::packets::{PacketError, Packets};
use super::peer::Peer;
use super::wire::{Forward, Reply, Request, VERSION};
use super::{Socket, Sockets};
use crate::claim::{PeerError, check_peer};
use crate::observed::activities::OfClient;
use crate::observed::metrics::{Decline, Stock};
use crate::observed::recording::Recordings;
use crate::protocol::ActivityKind;
use trunkline_audit::{Entry, Recorder, Subject};

/// The time limit for a client's hello. Stock ssh sends it at once.
const HELLO_LIMIT: Duration = Duration::from_secs(10);

/// The reason why a client was dropped.
#[derive(Debug, thiserror::Error)]
pub(super) enum Dropped {
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error(transparent)]
    Packet(#[from] PacketError),
    #[error("it speaks version {0}")]
    Version(u32),
    #[error("it did not begin with hello")]
    NoHello,
    #[error("it sent hello twice")]
    SecondHello,
    /// The descriptors that it passed cannot be used.
    #[error("its descriptors: {0}")]
    Descriptors(#[source] io::Error),
    #[error(transparent)]
    Streams(#[from] Error),
}

pub(super) async fn serve(stream: UnixStream, sockets: &Sockets, socket: &Socket) -> Result<(), Dropped> {
    check_peer(&stream)?;
    let peer = Peer::from_stream(&stream);
    let mut client = Client {
        peer,
        activity: OfClient::new(&sockets.activities, &stream, true),
        recorder: Recorder::for_stream(&sockets.audit, &stream),
        packets: Packets::new(stream),
        door: Door {
            sockets,
            socket,
            client: peer.process(),
        },
        shut_out: None,
    };
    if !client.greet().await? {
        return Ok(());
    }
    loop {
        // An idle client does not delay the daemon's shutdown.
        let request = tokio::select! {
            biased;
            request = client.packets.request() => request?,
            () = sockets.stop.after_last_request() => None,
        };
        let Some((id, request)) = request else {
            return Ok(());
        };
        if client.answer(id, request).await?.is_break() {
            return Ok(());
        }
    }
}

/// A client whose hello was accepted.
pub(super) struct Client<'a> {
    peer: Peer,
    pub(super) activity: OfClient,
    pub(super) recorder: Recorder,
    pub(super) packets: Packets,
    pub(super) door: Door<'a>,
    /// The reason why it gets no session. It was let in only because it must not connect by itself, or because an
    /// agent's user, who has declined, would be asked again.
    pub(super) shut_out: Option<Error>,
}

/// The socket through which the client came.
#[derive(Clone, Copy)]
pub(super) struct Door<'a> {
    sockets: &'a Sockets,
    pub(super) socket: &'a Socket,
    client: Option<u32>,
}

impl<'a> Door<'a> {
    pub(super) fn engine(self) -> &'a Engine {
        &self.sockets.engine
    }

    /// Returns the recorder of terminals.
    pub(super) fn recordings(self) -> &'a Recordings {
        &self.sockets.recordings
    }
}

impl Door<'_> {
    /// Counts a request that is not served.
    pub(super) fn count_declined(&self, request: Stock, reason: Decline) {
        self.sockets.metrics.decline_mux(request, reason);
    }

    /// Completes when the daemon is ending.
    pub(super) async fn ending(self) {
        self.sockets.stop.after_last_request().await;
    }

    /// Resolves the host as the client means it.
    pub(super) async fn host(self) -> Result<Host, Error> {
        self.sockets.host(self.socket, self.client).await
    }

    /// Resolves the host for a client's forwarding. Also returns the directory of its relative paths.
    async fn host_of(self) -> Result<(Host, PathBuf), Error> {
        self.sockets.host_of(self.socket, self.client).await
    }

    /// Returns true if the user allows a use of the host's connection, or need not be asked.
    async fn allows(self, request: &Request) -> bool {
        let host = self.socket.name();
        let question = match request {
            Request::NewSession(_) | Request::Proxy => format!("Allow shared connection to {host}? "),
            Request::NewStdioForward { target } => format!("Allow forward to {target}? "),
            Request::OpenForward(asked) => format!("Open {asked} on {host}? "),
            Request::Terminate => format!("Terminate shared connection to {host}? "),
            Request::StopListening => {
                format!("Disable further multiplexing on shared connection to {host}? ")
            }
            // OpenSSH's master does these without asking.
            Request::Hello { .. }
            | Request::AliveCheck
            | Request::CloseForward(_)
            | Request::Info(_)
            | Request::Unknown => {
                return true;
            }
        };
        self.sockets.allows(self.socket, self.client, &question).await
    }
}

impl Client<'_> {
    /// Returns an audit entry for a request of the client.
    pub(super) fn entry(&self, subject: Subject) -> Entry {
        self.recorder.entry(subject)
    }

    /// Returns true if the client must not make a connection of its own. It is told of failures, with which others
    /// would be sent away.
    pub(super) fn must_share(&self) -> bool {
        let Door { sockets, socket, .. } = self.door;
        sockets.must_share(socket, self.peer.world().as_ref())
    }

    /// Reads the client's hello and answers it once the host is connected. Returns false if the client is not answered:
    /// it then makes a connection of its own and asks its user whatever is needed (mux.c, `muxclient`). A client that
    /// must not do so, or would only ask an agent's user again, is let in and told later why it gets no session.
    async fn greet(&mut self) -> Result<bool, Dropped> {
        match tokio::time::timeout(HELLO_LIMIT, self.packets.request()).await {
            Ok(Ok(Some((_, Request::Hello { version: VERSION })))) => {}
            Ok(Ok(Some((_, Request::Hello { version })))) => return Err(Dropped::Version(version)),
            Ok(Ok(Some(_))) => return Err(Dropped::NoHello),
            Ok(Err(error)) => return Err(error.into()),
            // It has left, or never spoke.
            Ok(Ok(None)) | Err(_) => return Ok(false),
        }
        let failed = |error: Error| {
            let reason = Decline::Failed(error.kind());
            (error, reason)
        };
        let connected = async {
            let host = self.door.host().await.map_err(failed)?;
            if !self.peer.means(host.config(), self.door.sockets.engine.vantage())
                || self.peer.is_for_another(self.door.socket)
            {
                return Err((Invalid::AnotherHost.into(), Decline::AnotherHost));
            }
            if host.is_warm() {
                return Ok(());
            }
            self.door.socket.connect(&host).await.map_err(failed)
        };
        let connected = tokio::select! {
            connected = connected => connected,
            () = self.packets.wait_until_left() => return Ok(false),
        };
        if let Err((error, reason)) = connected {
            // A client that must not connect by itself is told so when it asks for its session.
            self.door.count_declined(Stock::Hello, reason);
            if !self.must_share() && !error.is_declined() {
                return Ok(false);
            }
            self.shut_out = Some(error);
        }
        self.packets.reply(0, &Reply::Hello).await?;
        Ok(true)
    }

    /// Serves a request. Breaks after the client's last one.
    async fn answer(&mut self, id: u32, request: Request) -> Result<ControlFlow<()>, Dropped> {
        if !self.door.allows(&request).await {
            return self.deny(id, &request).await;
        }
        self.begins(&request);
        let reply = match request {
            Request::Hello { .. } => return Err(Dropped::SecondHello),
            Request::AliveCheck => Reply::Alive {
                pid: std::process::id(),
            },
            Request::NewSession(_) if self.shut_out.is_some() => return self.shut_out(id).await,
            Request::NewSession(request) => return self.session(id, *request).await,
            Request::NewStdioForward { .. } if self.shut_out.as_ref().is_some_and(Error::is_declined) => {
                return self.deny(id, &request).await;
            }
            Request::NewStdioForward { target } => return self.stdio_forward(id, &target).await,
            Request::Info(about) => self.info(&about).await,
            Request::Proxy => return self.proxy(id).await,
            Request::OpenForward(asked) => self.open_forward(asked).await,
            Request::CloseForward(asked) => match self.door.socket.forwards.close(&asked).await {
                true => Reply::Ok,
                // mux.c's words.
                false => Reply::Failure("port not forwarded".into()),
            },
            Request::StopListening => {
                self.door.socket.stop();
                Reply::Ok
            }
            Request::Terminate => {
                self.door.sockets.terminate(self.door.socket).await;
                Reply::Ok
            }
            // mux.c's words.
            Request::Unknown => {
                self.door.count_declined(Stock::Unknown, Decline::Unsupported);
                Reply::Failure("unsupported request".into())
            }
        };
        self.packets.reply(id, &reply).await?;
        Ok(ControlFlow::Continue(()))
    }

    /// Notes the client's request among the running work.
    fn begins(&self, request: &Request) {
        let (kind, runs): (_, Vec<u8>) = match request {
            Request::NewSession(session) => {
                let kind = match (session.subsystem, session.command.is_empty()) {
                    (true, _) => ActivityKind::Subsystem,
                    (false, true) => ActivityKind::Shell,
                    (false, false) => ActivityKind::Command,
                };
                (kind, session.command.clone())
            }
            Request::NewStdioForward { target } => (ActivityKind::Tunnel, target.to_string().into()),
            Request::Proxy => (ActivityKind::Proxy, Vec::new()),
            _ => return,
        };
        self.activity.begins(kind, &self.door.socket.name(), runs);
    }

    /// Tells the client that its session has started.
    pub(super) async fn report_opened(&self, id: u32) -> Result<(), Dropped> {
        self.activity.note_start(true);
        Ok(self.packets.reply(id, &Reply::SessionOpened).await?)
    }

    /// Notes that the client's request has failed.
    pub(super) fn report_failure(&self, error: &Error) {
        if let Some(running) = self.activity.running().take() {
            running.failed_by(error);
        }
    }

    async fn open_forward(&mut self, asked: Forward) -> Reply {
        let opened = async {
            let (host, cwd) = self.door.host_of().await?;
            let beside = |subject| self.entry(subject);
            self.door.socket.forwards.open(&host, &cwd, asked, beside).await
        };
        let error: Error = match opened.await {
            Ok(reply) => return reply,
            Err(error) => error,
        };
        self.door
            .count_declined(Stock::Forwarding, Decline::Failed(error.kind()));
        // Otherwise a client that asks for its session next would make a connection of its own.
        if self.must_share() && !self.peer.only_asks() {
            self.shut_out.get_or_insert(error);
            return Reply::Ok;
        }
        Reply::Failure(error.to_string())
    }

    /// Refuses a request that the user does not allow. A client that wanted a session then makes a connection of its
    /// own.
    async fn deny(&mut self, id: u32, request: &Request) -> Result<ControlFlow<()>, Dropped> {
        self.door.count_declined(counted_as(request), Decline::NotAllowed);
        if matches!(request, Request::NewSession(_)) && self.must_share() {
            self.shut_out = Some(Error::Denied {
                host: self.door.socket.name(),
                why: "was not allowed",
            });
            return self.shut_out(id).await;
        }
        // Takes the descriptors that follow. Otherwise the next request would be read from the wrong place.
        let descriptors = match request {
            Request::NewSession(_) => 3,
            Request::NewStdioForward { .. } => 2,
            _ => 0,
        };
        drop(self.packets.descriptors(descriptors).await?);
        self.packets.reply(id, &Reply::PermissionDenied).await?;
        Ok(ControlFlow::Continue(()))
    }

    /// Answers `ssh -O conninfo` and `ssh -O channels` of OpenSSH 10.3.
    async fn info(&self, about: &str) -> Reply {
        let host = match self.door.host().await {
            Ok(host) => host,
            Err(error) => return Reply::Info(Some(format!("{error}\r\n"))),
        };
        match about {
            "connection" => Reply::Info(Some(info::connections(&host))),
            "channels" => {
                let forwards = self.door.socket.forwards.list().await;
                Reply::Info(Some(info::channels(&host, &forwards)))
            }
            _ => Reply::Info(None),
        }
    }

    /// Tells the client why its request is refused. A client that wanted a session then makes a connection of its own.
    pub(super) async fn refuse(
        &self,
        id: u32,
        request: Stock,
        why: &Error,
    ) -> Result<ControlFlow<()>, Dropped> {
        self.door.count_declined(request, Decline::Failed(why.kind()));
        self.packets.reply(id, &Reply::Failure(why.to_string())).await?;
        Ok(ControlFlow::Continue(()))
    }
}

/// Returns the label under which a refused request is counted.
fn counted_as(request: &Request) -> Stock {
    match request {
        Request::Hello { .. } => Stock::Hello,
        Request::NewSession(_) => Stock::Session,
        Request::NewStdioForward { .. } => Stock::Tunnel,
        Request::OpenForward(_) | Request::CloseForward(_) => Stock::Forwarding,
        Request::Proxy => Stock::Proxy,
        Request::Terminate | Request::StopListening | Request::AliveCheck | Request::Info(_) => {
            Stock::Control
        }
        Request::Unknown => Stock::Unknown,
    }
}
