//! A server on russh with commands that do strange but legal things.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use russh::keys::{Certificate, load_secret_key};
use russh::server::{
    Auth, ChannelOpenHandle, Config, Handle, Handler, Msg, Response, Session, VerifiedPublicKey, run_stream,
};
use russh::{
    Channel, ChannelId, ChannelMsg, ChannelOpenFailure, Disconnect, Limits, MethodKind, MethodSet, Sig,
};
use tokio::net::TcpStream;

use super::identity::Identity;
use crate::background::Background;
use crate::{Error, KeyPair, KeyType};

/// A complete server on another implementation (russh), with commands that do strange but legal things.
///
/// Nothing runs on the machine: a session's command is one of these words.
///
/// | command | the session's behaviour |
/// |---|---|
/// | `echo WORDS` | prints the words and a newline, exits 0 |
/// | `cat` (also a shell, and the subsystem `cat`) | prints its input until the end, exits 0 |
/// | `exit N` | exits N |
/// | `signal NAME` | ends by a signal (`TERM`, `SEGV`, …), with a message |
/// | `flood N` | prints N bytes as fast as the window lets it, exits 0 |
/// | `stderr N` | the same on standard error |
/// | `deaf` | never reads its input, never ends |
/// | `close` | closes at once, without a status |
/// | `eof` | ends its output and continues forever |
/// | `refuse` | fails the request |
/// | `mute` | never answers the request |
/// | `hangup` | disconnects the whole connection |
///
/// Other commands exit 127. `direct-tcpip` channels are connected to the address that they ask for. Window updates are
/// russh's: credit returns on receipt, and a session that stops reading (`deaf`) blocks the whole connection after a
/// hundred messages. For data that russh will not send (for example after an EOF or a CLOSE), use
/// [`RawServer`](super::RawServer).
#[derive(Debug)]
pub struct RusshServer {
    identity: Identity,
    counts: Arc<Counts>,
    _background: Background,
}

#[derive(Debug, Default)]
struct Counts {
    connections: AtomicUsize,
    authentications: AtomicUsize,
    sessions: AtomicUsize,
}

impl Deref for RusshServer {
    type Target = Identity;

    fn deref(&self) -> &Identity {
        &self.identity
    }
}

impl RusshServer {
    /// Starts a server that accepts any key or password.
    ///
    /// # Errors
    /// As [`RusshServerBuilder::start`].
    pub fn start_default() -> Result<RusshServer, Error> {
        RusshServer::builder().start()
    }

    /// Returns a builder for a server with other settings.
    pub fn builder() -> RusshServerBuilder {
        RusshServerBuilder::default()
    }

    /// Returns the number of accepted connections.
    pub fn connections(&self) -> usize {
        self.counts.connections.load(Ordering::SeqCst)
    }

    /// Returns the number of successful log-ins.
    pub fn authentications(&self) -> usize {
        self.counts.authentications.load(Ordering::SeqCst)
    }

    /// Returns the number of opened session channels.
    pub fn sessions(&self) -> usize {
        self.counts.sessions.load(Ordering::SeqCst)
    }
}

/// One step of a log-in.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AuthStep {
    /// Any key.
    PublicKey,
    Password(String),
    /// Rounds of questions (RFC 4256 section 3.2), each of none, one or several.
    KeyboardInteractive(Vec<Vec<Question>>),
}

/// One prompt of `keyboard-interactive`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The text shown to the user.
    pub prompt: String,
    /// True if the answer may be shown while it is typed.
    pub echo: bool,
    /// The right answer.
    pub answer: String,
}

impl AuthStep {
    fn method(&self) -> MethodKind {
        match self {
            AuthStep::PublicKey => MethodKind::PublicKey,
            AuthStep::Password(_) => MethodKind::Password,
            AuthStep::KeyboardInteractive(_) => MethodKind::KeyboardInteractive,
        }
    }
}

/// The settings of a [`RusshServer`].
#[derive(Debug, Clone, Default)]
pub struct RusshServerBuilder {
    steps: Vec<AuthStep>,
    banner: Option<String>,
    rekey_after: Option<usize>,
    max_sessions: Option<usize>,
    delay: Duration,
    window: Option<u32>,
    max_packet: Option<u32>,
}

impl RusshServerBuilder {
    /// Sets the steps of a log-in, in order. Each success but the last is a partial one (RFC 4252 section 5.1). Without
    /// any steps, every key and every password is enough.
    #[must_use]
    pub fn auth_steps(mut self, steps: impl IntoIterator<Item = AuthStep>) -> RusshServerBuilder {
        self.steps = steps.into_iter().collect();
        self
    }

    /// Sets a text that is shown before the log-in (RFC 4252 section 5.4).
    #[must_use]
    pub fn auth_banner(mut self, text: &str) -> RusshServerBuilder {
        self.banner = Some(text.to_owned());
        self
    }

    /// Exchanges keys again after this many bytes in either direction, at most 1 GiB.
    #[must_use]
    pub fn rekey_after(mut self, bytes: usize) -> RusshServerBuilder {
        self.rekey_after = Some(bytes);
        self
    }

    /// Sets the maximum number of open sessions on a connection. Further ones are refused with
    /// ADMINISTRATIVELY_PROHIBITED; 0 refuses all.
    #[must_use]
    pub fn max_sessions(mut self, sessions: usize) -> RusshServerBuilder {
        self.max_sessions = Some(sessions);
        self
    }

    /// Sets the delay before it answers when a channel is opened or a program is requested.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> RusshServerBuilder {
        self.delay = delay;
        self
    }

    /// Sets the window of the client's channels, in bytes; 2 MiB by default.
    #[must_use]
    pub fn window(mut self, bytes: u32) -> RusshServerBuilder {
        self.window = Some(bytes);
        self
    }

    /// Sets the size of the largest packet that the client may send on a channel, in bytes; 32 KiB by default, 65,535
    /// at most.
    #[must_use]
    pub fn max_packet(mut self, bytes: u32) -> RusshServerBuilder {
        self.max_packet = Some(bytes);
        self
    }

    /// Makes the keys and starts the server.
    ///
    /// # Errors
    /// When no port is free, or ssh-keygen is missing.
    pub fn start(self) -> Result<RusshServer, Error> {
        let (listener, identity) = Identity::listen("russh", true)?;
        let host_key = KeyPair::generate(identity.dir(), "host_key", KeyType::Ed25519)?;
        let config = Arc::new(self.config(&host_key)?);
        let counts = Arc::new(Counts::default());
        let (behaviour, counted) = (Arc::new(self), Arc::clone(&counts));
        let background = Background::accept("russh-server", listener, move |stream| {
            counted.connections.fetch_add(1, Ordering::SeqCst);
            let peer = Peer {
                behaviour: Arc::clone(&behaviour),
                counts: Arc::clone(&counted),
                steps_done: 0,
                rounds_done: 0,
                open: Arc::new(AtomicUsize::new(0)),
                waiting: HashMap::new(),
            };
            let config = Arc::clone(&config);
            tokio::spawn(async move {
                // The test sees the end of the connection on the client's side.
                if let Ok(session) = run_stream(config, stream, peer).await {
                    let _ = session.await;
                }
            });
        })?;
        identity.trust(host_key.public_key())?;
        Ok(RusshServer {
            identity,
            counts,
            _background: background,
        })
    }

    fn config(&self, host_key: &KeyPair) -> Result<Config, Error> {
        let defaults = Config::default();
        let key = load_secret_key(host_key.private_path(), None)
            .map_err(|error| Error::Misused(format!("russh does not take the host key: {error}")))?;
        let limit = self.rekey_after.unwrap_or(1 << 30).min(1 << 30);
        Ok(Config {
            keys: vec![key],
            methods: MethodSet::from(&self.methods_at(0)[..]),
            // In a test there is no need to slow down guesses.
            auth_rejection_time: Duration::ZERO,
            inactivity_timeout: None,
            limits: Limits::new(limit, limit, Duration::from_secs(3600)),
            window_size: self.window.unwrap_or(defaults.window_size),
            maximum_packet_size: self
                .max_packet
                .unwrap_or(defaults.maximum_packet_size)
                .min(65_535),
            nodelay: true,
            ..defaults
        })
    }

    /// Returns the methods that can continue a log-in after this many steps.
    fn methods_at(&self, done: usize) -> Vec<MethodKind> {
        match self.steps.get(done) {
            Some(step) => vec![step.method()],
            None => vec![
                MethodKind::PublicKey,
                MethodKind::Password,
                MethodKind::KeyboardInteractive,
            ],
        }
    }
}

/// One connection's state.
struct Peer {
    behaviour: Arc<RusshServerBuilder>,
    counts: Arc<Counts>,
    steps_done: usize,
    rounds_done: usize,
    /// The number of open sessions on this connection.
    open: Arc<AtomicUsize>,
    /// Channels without a running command.
    waiting: HashMap<ChannelId, Channel<Msg>>,
}

impl Peer {
    /// Returns the answer to an attempt at a step with this method.
    fn step(&mut self, method: MethodKind, passed: bool) -> Auth {
        let steps = &self.behaviour.steps;
        if steps.is_empty() && method != MethodKind::None {
            return Auth::Accept;
        }
        let passed = passed
            && steps
                .get(self.steps_done)
                .is_some_and(|step| step.method() == method);
        if passed {
            self.steps_done += 1;
            self.rounds_done = 0;
            if self.steps_done == steps.len() {
                return Auth::Accept;
            }
        }
        Auth::Reject {
            proceed_with_methods: Some(MethodSet::from(&self.behaviour.methods_at(self.steps_done)[..])),
            partial_success: passed,
        }
    }

    fn current_step(&self) -> Option<&AuthStep> {
        self.behaviour.steps.get(self.steps_done)
    }

    /// Checks the answers to the last round, if there was one, and asks the next questions.
    fn interact(&mut self, response: Option<Response<'_>>) -> Auth {
        let Some(AuthStep::KeyboardInteractive(rounds)) = self.current_step().cloned() else {
            return self.step(MethodKind::KeyboardInteractive, false);
        };
        match response {
            None => self.rounds_done = 0,
            Some(answers) => {
                let expected = rounds.get(self.rounds_done).into_iter().flatten();
                if !answers.eq(expected.map(|question| question.answer.as_bytes())) {
                    return self.step(MethodKind::KeyboardInteractive, false);
                }
                self.rounds_done += 1;
            }
        }
        let Some(round) = rounds.get(self.rounds_done) else {
            return self.step(MethodKind::KeyboardInteractive, true);
        };
        let prompts: Vec<(Cow<'static, str>, bool)> = round
            .iter()
            .map(|question| (Cow::Owned(question.prompt.clone()), question.echo))
            .collect();
        Auth::Partial {
            name: format!("Round {}", self.rounds_done + 1).into(),
            instructions: "Answer the questions.".into(),
            prompts: prompts.into(),
        }
    }

    /// Runs a command on a channel that is waiting for one.
    fn run(&mut self, id: ChannelId, command: &str, session: &mut Session) -> Result<(), russh::Error> {
        let (word, rest) = command.split_once(' ').unwrap_or((command, ""));
        match word {
            "mute" => return Ok(()),
            "refuse" => return session.channel_failure(id),
            _ => {}
        }
        let Some(channel) = self.waiting.remove(&id) else {
            return session.channel_failure(id);
        };
        let run = Run {
            channel,
            handle: session.handle(),
            open: Arc::clone(&self.open),
        };
        let (word, rest, delay) = (word.to_owned(), rest.to_owned(), self.behaviour.delay);
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            // This fails only if the client is gone, and then there is nobody to report to.
            let _ = run.command(&word, &rest).await;
        });
        Ok(())
    }
}

impl Handler for Peer {
    type Error = russh::Error;

    async fn auth_none(&mut self, _user: &str) -> Result<Auth, russh::Error> {
        Ok(self.step(MethodKind::None, false))
    }

    async fn auth_password(&mut self, _user: &str, password: &str) -> Result<Auth, russh::Error> {
        let right = self.current_step() == Some(&AuthStep::Password(password.to_owned()));
        Ok(self.step(MethodKind::Password, right))
    }

    async fn auth_publickey(
        &mut self,
        _user: &str,
        _key: VerifiedPublicKey<'_>,
    ) -> Result<Auth, russh::Error> {
        Ok(self.step(MethodKind::PublicKey, true))
    }

    async fn auth_openssh_certificate(
        &mut self,
        _user: &str,
        _certificate: &Certificate,
    ) -> Result<Auth, russh::Error> {
        Ok(self.step(MethodKind::PublicKey, true))
    }

    async fn auth_keyboard_interactive<'a>(
        &'a mut self,
        _user: &str,
        _submethods: &str,
        response: Option<Response<'a>>,
    ) -> Result<Auth, russh::Error> {
        Ok(self.interact(response))
    }

    async fn authentication_banner(&mut self) -> Result<Option<String>, russh::Error> {
        Ok(self.behaviour.banner.clone())
    }

    async fn auth_succeeded(&mut self, _session: &mut Session) -> Result<(), russh::Error> {
        self.counts.authentications.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        tokio::time::sleep(self.behaviour.delay).await;
        if self
            .behaviour
            .max_sessions
            .is_some_and(|most| self.open.load(Ordering::SeqCst) >= most)
        {
            reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await;
            return Ok(());
        }
        self.open.fetch_add(1, Ordering::SeqCst);
        self.counts.sessions.fetch_add(1, Ordering::SeqCst);
        self.waiting.insert(channel.id(), channel);
        reply.accept().await;
        Ok(())
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _originator: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        let target = u16::try_from(port).ok().map(|port| (host.to_owned(), port));
        tokio::spawn(async move {
            let connected = match target {
                Some(target) => TcpStream::connect(target).await.ok(),
                None => None,
            };
            let Some(mut target) = connected else {
                return reply.reject(ChannelOpenFailure::ConnectFailed).await;
            };
            reply.accept().await;
            // Dropping both ends passes on the end of either side.
            let _ = tokio::io::copy_bidirectional(&mut channel.into_stream(), &mut target).await;
        });
        Ok(())
    }

    async fn channel_close(&mut self, id: ChannelId, _session: &mut Session) -> Result<(), russh::Error> {
        if self.waiting.remove(&id).is_some() {
            self.open.fetch_sub(1, Ordering::SeqCst);
        }
        Ok(())
    }

    async fn exec_request(
        &mut self,
        id: ChannelId,
        command: &[u8],
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        self.run(id, &String::from_utf8_lossy(command), session)
    }

    async fn shell_request(&mut self, id: ChannelId, session: &mut Session) -> Result<(), russh::Error> {
        self.run(id, "cat", session)
    }

    async fn subsystem_request(
        &mut self,
        id: ChannelId,
        name: &str,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        let command = if name == "cat" { "cat" } else { "refuse" };
        self.run(id, command, session)
    }

    async fn env_request(
        &mut self,
        id: ChannelId,
        _name: &str,
        _value: &str,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        session.channel_success(id)
    }
}

/// One running command. Dropping it lowers the count of sessions.
struct Run {
    channel: Channel<Msg>,
    handle: Handle,
    open: Arc<AtomicUsize>,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Run {
    async fn command(mut self, word: &str, rest: &str) -> Result<(), russh::Error> {
        let id = self.channel.id();
        self.handle
            .channel_success(id)
            .await
            .map_err(|()| russh::Error::SendError)?;
        match word {
            "echo" => {
                self.channel.data_bytes(format!("{rest}\n")).await?;
                self.exit(0).await
            }
            "cat" => {
                while let Some(message) = self.channel.wait().await {
                    match message {
                        ChannelMsg::Data { data } => self.channel.data_bytes(data).await?,
                        ChannelMsg::Eof => break,
                        _ => {}
                    }
                }
                self.exit(0).await
            }
            "exit" => self.exit(rest.parse().unwrap_or(127)).await,
            "signal" => {
                let signal = match rest {
                    "TERM" => Sig::TERM,
                    "KILL" => Sig::KILL,
                    "SEGV" => Sig::SEGV,
                    "INT" => Sig::INT,
                    other => Sig::Custom(other.to_owned()),
                };
                let sent =
                    self.handle
                        .exit_signal_request(id, signal, false, "as asked".to_owned(), String::new());
                sent.await.map_err(|()| russh::Error::SendError)?;
                self.channel.eof().await?;
                self.channel.close().await
            }
            "flood" | "stderr" => {
                self.pour(rest.parse().unwrap_or(0), word == "stderr").await?;
                self.exit(0).await
            }
            "deaf" => std::future::pending().await,
            "close" => self.channel.close().await,
            "eof" => {
                self.channel.eof().await?;
                std::future::pending().await
            }
            "hangup" => {
                let told =
                    self.handle
                        .disconnect(Disconnect::ByApplication, "as asked".to_owned(), String::new());
                told.await.map(drop)
            }
            _ => {
                self.channel
                    .extended_data_bytes(1, format!("{word}: not a command of this server\n"))
                    .await?;
                self.exit(127).await
            }
        }
    }

    async fn exit(&self, status: u32) -> Result<(), russh::Error> {
        self.channel.exit_status(status).await?;
        self.channel.eof().await?;
        self.channel.close().await
    }

    async fn pour(&self, mut bytes: u64, to_stderr: bool) -> Result<(), russh::Error> {
        let chunk = vec![b'x'; 32 * 1024];
        while bytes > 0 {
            let length = usize::try_from(bytes).unwrap_or(chunk.len()).min(chunk.len());
            let piece = chunk[..length].to_vec();
            if to_stderr {
                self.channel.extended_data_bytes(1, piece).await?;
            } else {
                self.channel.data_bytes(piece).await?;
            }
            bytes -= length as u64;
        }
        Ok(())
    }
}
