//! One client of a mux socket, from its hello to its end.

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;

use tokio::net::UnixStream;
use tokio::sync::mpsc;
use trunkline::{Command, Error, Execution, ExitStatus};

use super::packets::Packets;
use super::wire::{NewSession, Reply, Request, VERSION};
use super::{Socket, Sockets};
use crate::protocol::{self, Stdio};
use crate::server::{check_peer, ending};
use crate::session::{self, Streams, Until};
use crate::stdio::Output;

/// How long a client may take to introduce itself, which stock ssh does at once.
const HELLO_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

/// Serves one client.
pub(super) async fn serve(stream: UnixStream, sockets: &Sockets, socket: &Socket) -> anyhow::Result<()> {
    check_peer(&stream)?;
    let mut client = Client {
        packets: Packets::new(stream),
        sockets,
        socket,
    };
    if !client.greet().await? {
        return Ok(());
    }
    loop {
        // A client with nothing under way does not hold up the daemon's end.
        let request = tokio::select! {
            biased;
            request = client.packets.request() => request?,
            () = ending(&sockets.ending) => None,
        };
        let Some((id, request)) = request else {
            return Ok(());
        };
        if client.answer(id, request).await?.is_break() {
            return Ok(());
        }
    }
}

struct Client<'a> {
    packets: Packets,
    sockets: &'a Sockets,
    socket: &'a Socket,
}

impl Client<'_> {
    /// Hears the client's hello, and answers it once the host is connected. A client that gets no answer makes a
    /// connection of its own, and asks its user what has to be asked (mux.c, `muxclient`); `false` then.
    async fn greet(&mut self) -> anyhow::Result<bool> {
        match tokio::time::timeout(HELLO_LIMIT, self.packets.request()).await {
            Ok(Ok(Some((_, Request::Hello { version: VERSION })))) => {}
            Ok(Ok(Some((_, Request::Hello { version })))) => anyhow::bail!("it speaks version {version}"),
            Ok(Ok(Some(_))) => anyhow::bail!("it did not say hello"),
            Ok(Err(error)) => return Err(error.into()),
            // It has left again, or never spoke.
            Ok(Ok(None)) | Err(_) => return Ok(false),
        }
        let connected = async {
            let host = self.sockets.host(self.socket).await?;
            if host.is_warm() {
                return Ok(());
            }
            self.socket.connect(&host).await
        };
        let connected = tokio::select! {
            connected = connected => connected,
            () = self.packets.left() => return Ok(false),
        };
        if connected.is_err() {
            return Ok(false);
        }
        self.packets.reply(0, &Reply::Hello).await?;
        Ok(true)
    }

    /// Does what is asked. Breaks when that was the client's last request.
    async fn answer(&mut self, id: u32, request: Request) -> anyhow::Result<ControlFlow<()>> {
        let reply = match request {
            Request::Hello { .. } => anyhow::bail!("it said hello twice"),
            Request::AliveCheck => Reply::Alive {
                pid: std::process::id(),
            },
            Request::NewSession(request) => return self.session(id, *request).await,
            Request::StopListening => {
                self.socket.stop();
                Reply::Ok
            }
            Request::Terminate => {
                self.sockets.terminate(self.socket);
                Reply::Ok
            }
            _ => Reply::Failure("unsupported request".into()),
        };
        self.packets.reply(id, &reply).await?;
        Ok(ControlFlow::Continue(()))
    }

    /// Runs a session on the client's descriptors.
    async fn session(&mut self, id: u32, request: NewSession) -> anyhow::Result<ControlFlow<()>> {
        let Some(fds) = self.packets.descriptors(3).await? else {
            return self.refuse(id, "the file descriptors did not come along").await;
        };
        if request.tty {
            return self.refuse(id, "no terminals yet").await;
        }
        let complaints = fds[2].try_clone()?;
        let started = async {
            let host = self.sockets.host(self.socket).await?;
            let session = host.start(&command(&request)?).await?;
            Ok::<_, Error>((host, session))
        };
        let started = tokio::select! {
            started = started => started,
            () = self.packets.left() => return Ok(ControlFlow::Break(())),
        };
        let (host, session) = match started {
            Ok(started) => started,
            Err(error) => return self.fail(id, &error, complaints).await,
        };
        let streams = Streams::new([Stdio::Passed; 3], fds)?;
        let (replies, mut begun) = mpsc::channel(1);
        let (_inputs, inputs) = mpsc::channel(1);
        let begins = protocol::Reply::Begun {
            tty: request.tty,
            escape: None,
            warm: true,
        };
        let parts = session.into_parts();
        let running = session::pump(parts, begins, streams, &replies, inputs, Until::default(), &host);
        let mut running = std::pin::pin!(running);
        let mut opened = false;
        let ended = loop {
            tokio::select! {
                biased;
                Some(_) = begun.recv(), if !opened => {
                    opened = true;
                    self.packets.reply(id, &Reply::SessionOpened).await?;
                }
                ended = &mut running => break ended,
                // A client that was interrupted or has died takes its session with it.
                () = self.packets.left() => return Ok(ControlFlow::Break(())),
            }
        };
        match ended {
            Ok(status) => {
                if !opened {
                    self.packets.reply(id, &Reply::SessionOpened).await?;
                }
                // As OpenSSH's master: what a signal has ended has no status, and the client exits with 255.
                if let ExitStatus::Exited(status) = status {
                    self.packets.reply(id, &Reply::Exit(status)).await?;
                }
                Ok(ControlFlow::Break(()))
            }
            Err(error) if opened => {
                complain(complaints, &error).await;
                Ok(ControlFlow::Break(()))
            }
            Err(error) => self.fail(id, &error, complaints).await,
        }
    }

    /// Says why a request is not done. A client that wanted a session makes a connection of its own for it.
    async fn refuse(&self, id: u32, why: &str) -> anyhow::Result<ControlFlow<()>> {
        self.packets.reply(id, &Reply::Failure(why.into())).await?;
        Ok(ControlFlow::Continue(()))
    }

    /// Ends a session that did not begin. Only where it is certain that nothing has run may the client try again by
    /// itself; else it is made to exit with 255.
    async fn fail(&self, id: u32, error: &Error, complaints: OwnedFd) -> anyhow::Result<ControlFlow<()>> {
        if error.execution() == Execution::DidNotStart {
            return self.refuse(id, &error.to_string()).await;
        }
        self.packets.reply(id, &Reply::SessionOpened).await?;
        complain(complaints, error).await;
        Ok(ControlFlow::Break(()))
    }
}

/// Tells the client's user why the session has ended, which the protocol has no words for.
async fn complain(stderr: OwnedFd, error: &Error) {
    // The terminal may be raw. One that takes no more is told nothing.
    if let Ok(mut output) = Output::new(stderr) {
        let _ = output.write_all(format!("trunkline: {error}\r\n").into()).await;
    }
}

fn command(request: &NewSession) -> Result<Command, Error> {
    let mut command = if request.subsystem {
        let name = str::from_utf8(&request.command)
            .map_err(|_| Error::Usage("the subsystem's name is not UTF-8".into()))?;
        Command::subsystem(name)
    } else if request.command.is_empty() {
        Command::shell()
    } else {
        Command::exec(request.command.clone())
    };
    for (name, value) in &request.env {
        command = command.env(name, value.clone());
    }
    Ok(command)
}
