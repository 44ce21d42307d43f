//! JavaScript's options, as `lib/options.js` has checked them.

use std::path::PathBuf;
use std::time::Duration;

use napi::bindgen_prelude::Uint8Array;
use napi_derive::napi;
use trunkline::config::{AddressFamily, ForwardAgent, HostConfig, Request, World, retain_names};
use trunkline::{Pty, Settings, TerminalSize};
use trunkline_embed::{Preference, Program, Starter, Worlds};

use crate::fault::Fault;
use crate::stdio::{Choice, StdioOption};

/// The options of a client's connection.
#[napi(object)]
pub struct ConnectOptions {
    /// The server's name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The user there.
    pub username: String,
    /// The user's password.
    pub password: Option<String>,
    /// The content of a private key file.
    pub private_key: Option<Uint8Array>,
    /// Its passphrase.
    pub passphrase: Option<String>,
    /// The agent's socket.
    pub agent: Option<String>,
    /// Whether sessions may be lent the agent.
    pub agent_forward: bool,
    /// The judge of the host key.
    pub host_keys: HostKeys,
    /// known_hosts files.
    pub known_hosts: Vec<String>,
    /// Milliseconds between keep-alive requests; 0 for none.
    pub keepalive_interval: f64,
    /// Requests without an answer after which the connection is given up.
    pub keepalive_count_max: u32,
    /// Milliseconds until it must be ready; 0 for no limit.
    pub ready_timeout: f64,
    /// Whether the program answers keyboard-interactive questions.
    pub try_keyboard: bool,
    /// Whether the program says what is tried to log in, one attempt after the other.
    pub asks_how: bool,
    /// The most connections at once.
    pub connections: u32,
    /// The address to connect from.
    pub local_address: Option<String>,
    /// 4 or 6 for one address family.
    pub family: Option<u32>,
    /// Algorithms, best first; none for the engine's own order.
    pub kex: Option<Vec<String>>,
    /// As `kex`.
    pub server_host_key: Option<Vec<String>>,
    /// As `kex`.
    pub cipher: Option<Vec<String>>,
    /// As `kex`.
    pub hmac: Option<Vec<String>>,
    /// Whether payloads are to be compressed.
    pub compress: bool,
    /// Whether JavaScript carries the bytes: the stream is the client's number plus one.
    pub over_stream: bool,
}

impl ConnectOptions {
    /// The engine's configuration for it.
    ///
    /// # Errors
    /// A host without a name, a user or a port.
    pub(crate) fn host_config(&self) -> Result<HostConfig, Fault> {
        let mut config = HostConfig::explicit(&self.host, self.port, &self.username)
            .map_err(|error| Fault::usage(&error.to_string()))?;
        config.server_alive_interval = milliseconds(self.keepalive_interval);
        config.server_alive_count_max = self.keepalive_count_max;
        // Each of the engine's steps is bounded by it, and the whole by the client.
        config.connect_timeout = self.ready_timeout();
        config.identity_agent = self.agent.as_ref().map(PathBuf::from);
        if self.agent_forward {
            config.forward_agent = ForwardAgent::Yes;
        }
        config.password_authentication = self.password.is_some();
        config.kbd_interactive_authentication = self.try_keyboard;
        // A wrong password is as wrong the next time.
        config.number_of_password_prompts = 1;
        config.user_known_hosts_files = self.known_hosts.iter().map(PathBuf::from).collect();
        config.bind_address.clone_from(&self.local_address);
        config.address_family = match self.family {
            Some(4) => AddressFamily::Inet,
            Some(6) => AddressFamily::Inet6,
            _ => AddressFamily::Any,
        };
        config.compression = self.compress;
        let lists = [
            (&self.kex, &mut config.kex_algorithms),
            (&self.server_host_key, &mut config.host_key_algorithms),
            (&self.cipher, &mut config.ciphers),
            (&self.hmac, &mut config.macs),
        ];
        for (chosen, list) in lists {
            if let Some(chosen) = chosen {
                *list = chosen.as_slice().into();
            }
        }
        config.host_key_order_is_free = self.server_host_key.is_none();
        if matches!(self.host_keys, HostKeys::Program) {
            // ssh2's verifiers compare plain keys; a certificate would be another blob each time it is renewed.
            retain_names(&mut config.host_key_algorithms, |name| !name.contains("-cert-v"));
        }
        Ok(config)
    }

    /// The time until the client must be ready.
    pub(crate) fn ready_timeout(&self) -> Option<Duration> {
        milliseconds(self.ready_timeout)
    }
}

/// The judge of a host key.
#[napi(string_enum)]
#[derive(Debug, Clone, Copy)]
pub enum HostKeys {
    /// Nobody.
    #[napi(value = "any")]
    Any,
    /// known_hosts.
    #[napi(value = "known")]
    Known,
    /// known_hosts, and hosts that they do not name pass, as for ssh2.
    #[napi(value = "known or new")]
    KnownOrNew,
    /// The program.
    #[napi(value = "program")]
    Program,
}

/// The way to a destination.
#[napi(string_enum)]
#[derive(Debug, Clone, Copy)]
pub enum WayOption {
    /// The engine.
    #[napi(value = "engine")]
    Engine,
    /// The daemon, where one runs.
    #[napi(value = "running daemon")]
    RunningDaemon,
    /// The daemon, which is started where none runs.
    #[napi(value = "daemon")]
    Daemon,
}

/// The options of a client's destination in ssh_config.
#[napi(object)]
pub struct DestinationOptions {
    /// The destination, as one would type it after `ssh`.
    pub destination: String,
    /// Options as for ssh.
    pub ssh_args: Vec<String>,
    /// Names and values of the environment.
    pub env: Vec<Vec<String>>,
    /// The working directory.
    pub directory: String,
    /// The way to it.
    pub way: WayOption,
    /// The command that starts the daemon.
    pub daemon_command: Vec<String>,
    /// The answer to questions for a password.
    pub password: Option<String>,
    /// The answer to questions for a passphrase.
    pub passphrase: Option<String>,
    /// Milliseconds until it must be ready; 0 for no limit.
    pub ready_timeout: f64,
    /// Whether the program answers keyboard-interactive questions.
    pub try_keyboard: bool,
}

impl DestinationOptions {
    /// The destination in the world of the environment that asks.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn request(&self, worlds: &Worlds) -> Result<Request, Fault> {
        let destination = self.destination.parse().map_err(|error| {
            Fault::usage(&format!(
                "{:?} is not a valid destination: {error}",
                self.destination
            ))
        })?;
        let env = self.env.iter().filter_map(|pair| match &pair[..] {
            [name, value] => Some((name.into(), value.into())),
            _ => None,
        });
        let world = worlds.share(World::from_parts(PathBuf::from(&self.directory), env.collect()));
        let mut request = Request::new(destination, world);
        request.ssh_args = self.ssh_args.iter().map(Into::into).collect();
        Ok(request)
    }

    pub(crate) fn preference(&self) -> Preference {
        match self.way {
            WayOption::Engine => Preference::Engine,
            WayOption::RunningDaemon => Preference::RunningDaemon,
            WayOption::Daemon => Preference::Daemon(Starter::Command(
                self.daemon_command.iter().map(Into::into).collect(),
            )),
        }
    }

    /// The time until the client must be ready.
    pub(crate) fn ready_timeout(&self) -> Option<Duration> {
        milliseconds(self.ready_timeout)
    }
}

/// The settings of the engine; missing ones stay unchanged.
#[napi(object)]
pub struct EngineSettings {
    /// Bits a second above which a connection gets no new streams.
    pub busy_above: Option<f64>,
    /// Bits a second below which it does again.
    pub busy_below: Option<f64>,
    /// The most connections to one host.
    pub max_lanes: Option<u32>,
    /// Milliseconds that a shared connection without streams is kept.
    pub idle_timeout: Option<f64>,
}

impl From<&EngineSettings> for Settings {
    fn from(set: &EngineSettings) -> Self {
        let settings = Self::default();
        Self {
            busy_above: set.busy_above.map_or(settings.busy_above, |bits| bits as u64),
            busy_below: set.busy_below.map_or(settings.busy_below, |bits| bits as u64),
            max_lanes: set
                .max_lanes
                .map_or(settings.max_lanes, |lanes| lanes.max(1) as usize),
            idle_timeout: set
                .idle_timeout
                .and_then(milliseconds)
                .unwrap_or(settings.idle_timeout),
            ..settings
        }
    }
}

/// JavaScript's number of milliseconds; 0, and what is not a number, for none.
fn milliseconds(value: f64) -> Option<Duration> {
    // NaN and negative numbers become 0.
    let whole = value as u64;
    (whole > 0).then(|| Duration::from_millis(whole))
}

/// A way to log in.
#[napi(string_enum)]
#[derive(Debug, Clone, Copy)]
pub enum AttemptMethod {
    /// None.
    #[napi(value = "none")]
    None,
    /// A password.
    #[napi(value = "password")]
    Password,
    /// Questions of the server's.
    #[napi(value = "keyboard-interactive")]
    KeyboardInteractive,
    /// A private key.
    #[napi(value = "key")]
    Key,
    /// An agent.
    #[napi(value = "agent")]
    Agent,
    /// Public keys that the program signs with.
    #[napi(value = "keys")]
    Keys,
    /// The word of this machine, by its private key.
    #[napi(value = "hostbased")]
    HostBased,
}

/// An attempt to log in.
#[napi(object)]
pub struct AuthenticationAttempt {
    /// The log-in's number, as it came with the question.
    pub login: u32,
    /// The user.
    pub username: String,
    /// The method.
    pub method: AttemptMethod,
    /// For "password".
    pub password: Option<String>,
    /// For "key" and "hostbased": the content of a private key file.
    pub key: Option<Uint8Array>,
    /// Its passphrase.
    pub passphrase: Option<String>,
    /// For "agent": its socket.
    pub agent: Option<String>,
    /// For "keys": public keys that the program signs with.
    pub keys: Option<Vec<Uint8Array>>,
    /// For "hostbased": this machine's full name.
    pub local_hostname: Option<String>,
    /// For "hostbased": the user's name on this machine.
    pub local_username: Option<String>,
}

/// The kind of a session.
#[napi(string_enum = "lowercase")]
#[derive(Debug, Clone, Copy)]
pub enum SessionKind {
    /// A command line.
    Exec,
    /// The login shell.
    Shell,
    /// A subsystem.
    Subsystem,
}

/// The options of a session.
#[napi(object)]
pub struct SessionOptions {
    /// The kind of text.
    pub kind: SessionKind,
    /// The command, or the subsystem's name.
    pub text: String,
    /// Names and values.
    pub env: Vec<Vec<String>>,
    /// A terminal.
    pub pty: Option<PtyOptions>,
    /// Input, output and error output; what is missing is JavaScript's.
    pub stdio: Vec<StdioOption>,
    /// The directory for relative paths among them.
    pub directory: String,
    /// Whether the session is lent the agent; without a word, where the client is.
    pub agent_forward: Option<bool>,
}

/// A terminal for a session.
#[napi(object)]
pub struct PtyOptions {
    /// TERM.
    pub term: String,
    /// Columns.
    pub cols: u32,
    /// Rows.
    pub rows: u32,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Modes, encoded as in RFC 4254 section 8.
    pub modes: Uint8Array,
}

impl SessionOptions {
    /// Returns the streams that are not JavaScript's.
    pub(crate) fn stdio(&self) -> Result<[Choice; 3], Fault> {
        let choice = |at: usize| self.stdio.get(at).map_or(Ok(Choice::Pipe), Choice::take);
        Ok([choice(0)?, choice(1)?, choice(2)?])
    }
}

/// Pairs of names and values, as the engine has them.
pub(crate) fn variables(env: Vec<Vec<String>>) -> Vec<(String, Vec<u8>)> {
    let pairs = env.into_iter().filter_map(|pair| {
        let [name, value] = <[String; 2]>::try_from(pair).ok()?;
        Some((name, value.into_bytes()))
    });
    pairs.collect()
}

/// With nothing of JavaScript's.
impl From<SessionOptions> for trunkline_embed::SessionOptions {
    fn from(options: SessionOptions) -> Self {
        let program = match options.kind {
            SessionKind::Shell => Program::Shell,
            SessionKind::Subsystem => Program::Subsystem(options.text),
            SessionKind::Exec => Program::Exec(options.text.into_bytes()),
        };
        let pty = options.pty.map(|pty| Pty {
            size: TerminalSize {
                columns: pty.cols,
                rows: pty.rows,
                width: pty.width,
                height: pty.height,
            },
            modes: pty.modes.to_vec(),
            term: pty.term,
        });
        Self {
            env: variables(options.env),
            pty,
            agent_forwarding: options.agent_forward.unwrap_or_default(),
            ..Self::new(program)
        }
    }
}
