//! An SSH server on russh and russh-sftp, built like their examples, with real files and commands.
//!
//! `trunkline-tests-russh HOSTKEY [PORT]` prints the port on which it listens and serves until it is killed. Any public key is
//! accepted.

mod sftp;

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use russh::keys::load_secret_key;
use russh::server::{Auth, ChannelOpenHandle, Handler, Msg, Server as _, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelMsg, Pty};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::process::Command;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let key = arguments.next().ok_or("which host key?")?;
    let port = arguments.next().map_or(Ok(0), |port| port.parse())?;
    let config = russh::server::Config {
        auth_rejection_time: Duration::from_secs(3),
        auth_rejection_time_initial: Some(Duration::ZERO),
        keys: vec![load_secret_key(key, None)?],
        ..Default::default()
    };
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("{}", listener.local_addr()?.port());
    Server.run_on_socket(Arc::new(config), &listener).await?;
    Ok(())
}

struct Server;

impl russh::server::Server for Server {
    type Handler = Connection;

    fn new_client(&mut self, _: Option<std::net::SocketAddr>) -> Connection {
        Connection::default()
    }

    fn handle_session_error(&mut self, error: russh::Error) {
        eprintln!("connection: {error:?}");
    }
}

/// The channels of one client that have asked for nothing yet, and those that run the SFTP subsystem.
#[derive(Default)]
struct Connection {
    opened: HashMap<ChannelId, Channel<Msg>>,
    sftp: Vec<ChannelId>,
}

impl Handler for Connection {
    type Error = russh::Error;

    async fn auth_publickey(&mut self, _: &str, _: VerifiedPublicKey<'_>) -> Result<Auth, Self::Error> {
        Ok(Auth::Accept)
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        self.opened.insert(channel.id(), channel);
        reply.accept().await;
        Ok(())
    }

    async fn channel_eof(&mut self, channel: ChannelId, session: &mut Session) -> Result<(), Self::Error> {
        // russh-sftp's example: the client will ask nothing more.
        if self.sftp.contains(&channel) {
            session.close(channel)?;
        }
        Ok(())
    }

    async fn pty_request(
        &mut self,
        channel: ChannelId,
        _: &str,
        _: u32,
        _: u32,
        _: u32,
        _: u32,
        _: &[(Pty, u32)],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        session.channel_success(channel)
    }

    async fn exec_request(
        &mut self,
        id: ChannelId,
        command: &[u8],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        let command = String::from_utf8_lossy(command).into_owned();
        self.spawn(id, &["-c", &command], session)
    }

    async fn shell_request(&mut self, id: ChannelId, session: &mut Session) -> Result<(), Self::Error> {
        self.spawn(id, &[], session)
    }

    async fn subsystem_request(
        &mut self,
        id: ChannelId,
        name: &str,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        let Some(channel) = self.opened.remove(&id).filter(|_| name == "sftp") else {
            return session.channel_failure(id);
        };
        self.sftp.push(id);
        session.channel_success(id)?;
        russh_sftp::server::run(channel.into_stream(), sftp::Files::default()).await;
        Ok(())
    }
}

impl Connection {
    fn spawn(
        &mut self,
        id: ChannelId,
        arguments: &[&str],
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        let Some(channel) = self.opened.remove(&id) else {
            return session.channel_failure(id);
        };
        session.channel_success(id)?;
        let mut command = Command::new("/bin/sh");
        command.args(arguments);
        tokio::spawn(async move {
            if let Err(error) = run(command, channel).await {
                eprintln!("command: {error}");
            }
        });
        Ok(())
    }
}

/// Joins a command's standard streams with its channel, and tells how it ended.
async fn run(mut command: Command, channel: Channel<Msg>) -> Result<(), Box<dyn std::error::Error>> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let (mut input, mut output, mut errors) = (
        child.stdin.take(),
        child.stdout.take().ok_or("no output")?,
        child.stderr.take().ok_or("no errors")?,
    );
    let (mut incoming, outgoing) = channel.split();
    let feeder = tokio::spawn(async move {
        while let Some(message) = incoming.wait().await {
            match (message, &mut input) {
                (ChannelMsg::Data { data }, Some(open)) => {
                    if open.write_all(&data).await.is_err() {
                        input = None;
                    }
                }
                (ChannelMsg::Eof, _) => input = None,
                _ => {}
            }
        }
    });
    let (said, complained) = tokio::join!(outgoing.data(&mut output), outgoing.extended_data(1, &mut errors));
    said.and(complained)?;
    let status = child.wait().await?.code().unwrap_or(255);
    outgoing.exit_status(status as u32).await?;
    outgoing.eof().await?;
    outgoing.close().await?;
    feeder.abort();
    Ok(())
}
