//! Thousands of hosts with ledgers, in one process.

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use russh::keys::load_secret_key;
use russh::server::{
    Auth, ChannelOpenHandle, Config, Handle, Handler, Msg, Session, VerifiedPublicKey, run_stream,
};
use russh::{Channel, ChannelId, Limits, MethodKind, MethodSet, Pty, Sig};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::background::Background;
use crate::{Error, KeyPair, KeyType};

/// Thousands of hosts in one process: a server on every loopback address, each of which is a host with that name. No
/// process is started for a connection or a command, and each host keeps a ledger of the commands that it has executed.
///
/// Nothing runs on the machine: a session's command is one of these words. Text after a `#` has no effect; it makes
/// commands different in the ledger.
///
/// | command | the session's behaviour |
/// |---|---|
/// | `true`, `exit N` | exits 0, N |
/// | `sleep MS` | exits 0 after this many milliseconds |
/// | `draw MS` | after that time prints an unpredictable number, which is also in the ledger, and exits with its last digit |
///
/// A command that is sent TERM meanwhile is ended by it. Other commands exit 127. All hosts have the same host key,
/// which is in known_hosts under an alias.
#[derive(Debug)]
pub struct LightServer {
    port: u16,
    client_key: KeyPair,
    dir: TempDir,
    ledger: Arc<Mutex<Ledger>>,
    _background: Background,
}

/// An execution of a command on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execution {
    /// The host: the address that the client connected to.
    pub host: IpAddr,
    /// The command line.
    pub command: String,
    /// The number that it drew.
    pub number: u64,
    /// Its end, once it has ended.
    pub end: Option<Ended>,
}

/// The end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Status(u32),
    /// By TERM, which it was sent.
    Terminated,
}

#[derive(Debug, Default)]
struct Ledger {
    connections: usize,
    executions: Vec<Execution>,
}

/// The name of the host key in known_hosts.
const ALIAS: &str = "light";

impl LightServer {
    /// Makes the keys and starts the server.
    ///
    /// # Errors
    /// When no port is free, or ssh-keygen is missing.
    pub fn start() -> Result<LightServer, Error> {
        let dir = tempfile::Builder::new().prefix("trunkline-light-").tempdir()?;
        let client_key = KeyPair::generate(dir.path(), "client_key", KeyType::Ed25519)?;
        let host_key = KeyPair::generate(dir.path(), "host_key", KeyType::Ed25519)?;
        let listener = std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let config = Arc::new(config(&host_key)?);
        let ledger = Arc::new(Mutex::new(Ledger::default()));
        let kept = Arc::clone(&ledger);
        let background = Background::accept("light-server", listener, move |stream| {
            lock(&kept).connections += 1;
            tokio::spawn(serve(stream, Arc::clone(&config), Arc::clone(&kept)));
        })?;
        fs::write(
            dir.path().join("known_hosts"),
            format!("{ALIAS} {}\n", host_key.public_key()),
        )?;
        let server = LightServer {
            port,
            client_key,
            dir,
            ledger,
            _background: background,
        };
        fs::write(server.ssh_config(), server.host_block("127.*"))?;
        Ok(server)
    }

    /// Returns the port, which is the same on every loopback address.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the name of a host from its number: an address. There are 65,536 of them in each of 250 groups.
    pub fn host(group: u8, number: u16) -> String {
        let [high, low] = number.to_be_bytes();
        Ipv4Addr::new(127, group.saturating_add(1), high, low).to_string()
    }

    /// Returns a key for the client to use.
    pub fn client_key(&self) -> &KeyPair {
        &self.client_key
    }

    /// Returns a `known_hosts` file with the host key.
    pub fn known_hosts(&self) -> PathBuf {
        self.dir.path().join("known_hosts")
    }

    /// Returns a complete file for `ssh -F`, for all hosts.
    pub fn ssh_config(&self) -> PathBuf {
        self.dir.path().join("ssh_config")
    }

    /// Returns the `Host` block for the hosts that match a pattern.
    pub fn host_block(&self, pattern: &str) -> String {
        format!(
            "Host {pattern}\n    Port {}\n    User tester\n    IdentityFile \"{}\"\n    IdentitiesOnly yes\n    \
             IdentityAgent none\n    HostKeyAlias {ALIAS}\n    UserKnownHostsFile \"{}\"\n    GlobalKnownHostsFile \
             /dev/null\n    StrictHostKeyChecking yes\n    BatchMode yes\n",
            self.port,
            self.client_key.private_path().display(),
            self.known_hosts().display()
        )
    }

    /// Returns the number of accepted connections.
    pub fn connections(&self) -> usize {
        lock(&self.ledger).connections
    }

    /// Returns all executions so far, in the order of their start.
    pub fn executions(&self) -> Vec<Execution> {
        lock(&self.ledger).executions.clone()
    }
}

fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

fn config(host_key: &KeyPair) -> Result<Config, Error> {
    let key = load_secret_key(host_key.private_path(), None)
        .map_err(|error| Error::Misused(format!("russh does not take the host key: {error}")))?;
    Ok(Config {
        keys: vec![key],
        methods: MethodSet::from(&[MethodKind::PublicKey][..]),
        auth_rejection_time: Duration::ZERO,
        inactivity_timeout: None,
        limits: Limits::new(1 << 30, 1 << 30, Duration::from_secs(86_400)),
        nodelay: true,
        ..Config::default()
    })
}

/// Serves a connection. The test sees its end on the client's side.
async fn serve(stream: TcpStream, config: Arc<Config>, ledger: Arc<Mutex<Ledger>>) {
    let Ok(host) = stream.local_addr() else { return };
    let peer = Peer {
        host,
        ledger,
        waiting: HashMap::new(),
        running: HashMap::new(),
    };
    if let Ok(session) = run_stream(config, stream, peer).await {
        let _ = session.await;
    }
}

/// One connection's state.
struct Peer {
    host: SocketAddr,
    ledger: Arc<Mutex<Ledger>>,
    /// Channels without a running command.
    waiting: HashMap<ChannelId, Channel<Msg>>,
    /// Notifies commands that they have to end.
    running: HashMap<ChannelId, Arc<Notify>>,
}

impl Handler for Peer {
    type Error = russh::Error;

    async fn auth_publickey(&mut self, _: &str, _: VerifiedPublicKey<'_>) -> Result<Auth, russh::Error> {
        Ok(Auth::Accept)
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        self.waiting.insert(channel.id(), channel);
        reply.accept().await;
        Ok(())
    }

    async fn channel_close(&mut self, id: ChannelId, _session: &mut Session) -> Result<(), russh::Error> {
        self.waiting.remove(&id);
        self.running.remove(&id);
        Ok(())
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

    #[allow(clippy::too_many_arguments, reason = "russh's")]
    async fn pty_request(
        &mut self,
        id: ChannelId,
        _term: &str,
        _columns: u32,
        _rows: u32,
        _width: u32,
        _height: u32,
        _modes: &[(Pty, u32)],
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        session.channel_success(id)
    }

    async fn signal(
        &mut self,
        id: ChannelId,
        _signal: Sig,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        if let Some(running) = self.running.get(&id) {
            running.notify_one();
        }
        Ok(())
    }

    async fn exec_request(
        &mut self,
        id: ChannelId,
        command: &[u8],
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        let Some(channel) = self.waiting.remove(&id) else {
            return session.channel_failure(id);
        };
        session.channel_success(id)?;
        let command = String::from_utf8_lossy(command).into_owned();
        let terminated = Arc::new(Notify::new());
        self.running.insert(id, Arc::clone(&terminated));
        let (place, number) = {
            let mut ledger = lock(&self.ledger);
            let place = ledger.executions.len();
            let number = draw(place);
            ledger.executions.push(Execution {
                host: self.host.ip(),
                command: command.clone(),
                number,
                end: None,
            });
            (place, number)
        };
        let (ledger, handle) = (Arc::clone(&self.ledger), session.handle());
        tokio::spawn(async move {
            let (end, output) = execute(&command, number, &terminated).await;
            lock(&ledger).executions[place].end = Some(end);
            // This fails only if the client is gone, and then there is nobody to report to.
            let _ = tell(&channel, &handle, end, output).await;
        });
        Ok(())
    }
}

/// Returns a number that is different for each place. Neighbouring places have very different numbers.
fn draw(place: usize) -> u64 {
    let mut number = (place as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)] {
        number = (number ^ (number >> shift)).wrapping_mul(factor);
    }
    number ^ (number >> 31)
}

/// Executes a command, and returns its end and its output.
async fn execute(command: &str, number: u64, terminated: &Notify) -> (Ended, String) {
    let words = command.split('#').next().unwrap_or_default();
    let mut words = words.split_ascii_whitespace();
    let word = words.next().unwrap_or_default();
    let argument: Option<u32> = words.next().and_then(|argument| argument.parse().ok());
    let (milliseconds, status, output) = match (word, argument) {
        ("true", _) => (0, 0, String::new()),
        ("exit", Some(status)) => (0, status, String::new()),
        ("sleep", Some(time)) => (time, 0, String::new()),
        ("draw", Some(time)) => (
            time,
            u32::try_from(number % 10).unwrap_or_default(),
            format!("{number}\n"),
        ),
        _ => (0, 127, String::new()),
    };
    if milliseconds > 0 {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(milliseconds.into())) => {}
            () = terminated.notified() => return (Ended::Terminated, String::new()),
        }
    }
    (Ended::Status(status), output)
}

async fn tell(
    channel: &Channel<Msg>,
    handle: &Handle,
    end: Ended,
    output: String,
) -> Result<(), russh::Error> {
    if !output.is_empty() {
        channel.data_bytes(output).await?;
    }
    match end {
        Ended::Status(status) => channel.exit_status(status).await?,
        Ended::Terminated => {
            let nothing = String::new;
            let told = handle.exit_signal_request(channel.id(), Sig::TERM, false, nothing(), nothing());
            told.await.map_err(|()| russh::Error::SendError)?;
        }
    }
    channel.eof().await?;
    channel.close().await
}
