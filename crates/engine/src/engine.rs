//! [`Engine`]: configuration, host memory and the pools of all hosts; [`Host`]: one of them.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::{Semaphore, watch};
use trunkline_proto::{ChannelKind, WindowBudget};

use crate::config::{
    ControlMaster, ForwardAgent, HostConfig, Proxy, Reason, Request, Resolver, SharingKey, Vantage, World,
};
use crate::connection::Connection;
use crate::connection::channel::ChannelStream;
use crate::connection::dial::{self, Dialed};
use crate::connection::handshake::Handshake;
use crate::connection::lease::Lease;
use crate::connection::login::Login;
use crate::connection::session::{Command, Output, Session};
use crate::error::Error;
use crate::forward;
use crate::hosts;
use crate::interaction::Interaction;
use crate::memory::{HostId, Memory};
use crate::metrics::Metrics;
use crate::permission;
use crate::pool::{Caller, LaneStatus, Pool, Way};
use crate::settings::Settings;
use crate::sftp::Sftp;
use crate::tuned::{self, Choice};

/// The SSH engine. One of it serves any number of hosts; clones share everything.
///
/// ```no_run
/// use trunkline::{Command, Engine, Interaction};
///
/// # async fn example() -> Result<(), trunkline::Error> {
/// let engine = Engine::new(Default::default(), Default::default());
/// let host = engine.host("db1", &Interaction::standard()).await?;
/// let output = host.run(&Command::exec("uptime")).await?;
/// println!("{}", String::from_utf8_lossy(&output.stdout));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    resolver: Arc<Resolver>,
    memory: Arc<Memory>,
    pools: Mutex<HashMap<SharingKey, Arc<Pool>>>,
    /// Handshakes under way, in all and to each server.
    handshakes: Arc<Semaphore>,
    gates: Mutex<HashMap<(String, u16), Arc<Semaphore>>>,
    metrics: Arc<Metrics>,
    /// Where its threads are: it reaches what is reached from there.
    vantage: Vantage,
    /// Whether its connections are used by others than the program that it is in.
    lends: AtomicBool,
    /// Whether proxy commands stay on the terminal of this process.
    shares_terminal: AtomicBool,
    /// What the receive windows of all connections grow from.
    windows: Arc<WindowBudget>,
}

/// Where host memory is kept.
#[derive(Debug, Clone, Default)]
pub enum MemoryPlace {
    /// Nowhere: it lasts as long as the engine.
    #[default]
    Process,
    /// In a file in this folder.
    Folder(std::path::PathBuf),
}

impl From<&Path> for MemoryPlace {
    fn from(folder: &Path) -> Self {
        Self::Folder(folder.to_owned())
    }
}

impl Engine {
    /// An engine. Must be called inside a tokio runtime, on which everything of it runs.
    pub fn new(settings: Settings, memory: MemoryPlace) -> Self {
        let memory = match memory {
            MemoryPlace::Process => Memory::in_memory(),
            MemoryPlace::Folder(folder) => Memory::open(&folder),
        };
        Self::with(settings, Arc::new(memory), Arc::new(Resolver::new()))
    }

    /// An engine that knows what this one knows (settings, host memory, answers of `ssh -G`) and shares no connection
    /// with it. `connections`: the most that it makes to one host, if not as many as the settings say. Must be called inside
    /// a tokio runtime.
    #[must_use]
    pub fn apart(&self, connections: Option<usize>) -> Self {
        let Inner {
            settings,
            memory,
            resolver,
            ..
        } = &*self.inner;
        let settings = Settings {
            max_lanes: connections.unwrap_or(settings.max_lanes).max(1),
            ..settings.clone()
        };
        Self::with(settings, memory.clone(), resolver.clone())
    }

    fn with(settings: Settings, memory: Arc<Memory>, resolver: Arc<Resolver>) -> Self {
        let inner = Arc::new(Inner {
            handshakes: Arc::new(Semaphore::new(settings.handshakes.max(1))),
            settings,
            resolver,
            memory,
            pools: Mutex::default(),
            gates: Mutex::default(),
            metrics: Arc::default(),
            vantage: Vantage::current(),
            lends: AtomicBool::new(false),
            shares_terminal: AtomicBool::new(false),
            windows: Arc::default(),
        });
        tokio::spawn(keep_up(Arc::downgrade(&inner)));
        Self { inner }
    }

    /// The host that a destination means in this process's own world (environment, working folder, ssh_config).
    ///
    /// # Errors
    /// A destination or configuration that cannot be used; [`Error::NeedsSystemSsh`].
    pub async fn host(&self, destination: &str, interaction: &Interaction) -> Result<Host, Error> {
        let world = World::current().map_err(|source| Error::local("reading the environment", source))?;
        let destination = destination
            .parse()
            .map_err(|error| Error::Usage(format!("{error}")))?;
        self.host_for(&Request::new(destination, Arc::new(world)), interaction)
            .await
    }

    /// The host that a request means.
    ///
    /// # Errors
    /// As [`Self::host`].
    pub async fn host_for(&self, request: &Request, interaction: &Interaction) -> Result<Host, Error> {
        let config = self.resolve(request).await?;
        let host = self.host_with(config, request, interaction)?;
        self.meet(&host).await?;
        Ok(host)
    }

    /// The host that a request means, for moving data: with the cipher, the compression, the size of requests and the
    /// number of sessions that [`tune`](crate::tune) found best and host memory keeps. What the caller's own options set
    /// stays as they say. A host that was never tuned is the same as from [`Self::host_for`]; so is one whose server takes no
    /// other connection beside one that is there.
    ///
    /// # Errors
    /// As [`Self::host`].
    pub async fn host_for_copies(&self, request: &Request, interaction: &Interaction) -> Result<Host, Error> {
        let config = self.resolve(request).await?;
        let choice = tuned::remembered(self.memory(), &config);
        let best = match &choice {
            Some(choice) => tuned::apply(choice, config.clone(), request),
            None => config.clone(),
        };
        let is_other = best.sharing_key() != config.sharing_key();
        let mut host = self.host_with(best, request, interaction)?;
        if is_other && !host.is_warm() {
            let usual = self.host_with(config, request, interaction)?;
            if usual.is_warm()
                && let Err(error) = host.warm().await
            {
                tracing::warn!(
                    "no connection as tuned for copies, which go over the one that is there: {error}"
                );
                host = usual;
            }
        }
        self.meet(&host).await?;
        // Tuning decides for data of any kind: where it left compression off, a copy of text may still be faster with it.
        // Lent connections would have to be asked for again.
        let config = host.config();
        if !request.sets("compression", b'C') && !config.compression && !host.pool.confirms() {
            host.undecided = Some(Arc::new(Undecided {
                engine: Arc::downgrade(&self.inner),
                request: request.clone(),
            }));
        }
        host.tuned = choice.map(Arc::new);
        Ok(host)
    }

    /// The host of a request whose configuration was looked up, and may have been changed since.
    pub(crate) fn host_with(
        &self,
        config: Arc<HostConfig>,
        request: &Request,
        interaction: &Interaction,
    ) -> Result<Host, Error> {
        let mut reasons = self.reasons_for_system_ssh(&config);
        if request.runs_local_command {
            reasons.retain(|reason| reason.directive != "localcommand");
        }
        if !reasons.is_empty() {
            return Err(Error::NeedsSystemSsh {
                host: config.original_host.clone(),
                reasons,
            });
        }
        if let Some(words) = &config.refuse_connection {
            return Err(Error::Usage(format!(
                "{}: RefuseConnection: {words}",
                config.original_host
            )));
        }
        let interaction = if config.batch_mode {
            interaction.clone().without_questions()
        } else {
            interaction.clone()
        };
        let caller = Caller {
            config,
            way: Way::Resolved(request.clone()),
            interaction,
        };
        Ok(Host {
            pool: self.pool(&caller),
            caller,
            tuned: None,
            undecided: None,
        })
    }

    /// Connects to a host that is not known yet and whose configuration allows more than the engine's algorithms: only the
    /// server can tell whether it needs those, and a command that is handed over to ssh must not have been begun here.
    async fn meet(&self, host: &Host) -> Result<(), Error> {
        if host.is_warm() {
            return Ok(());
        }
        let config = host.config();
        let facts = self.inner.memory.facts(&host_id(config)).unwrap_or_default();
        let has_opened = facts.kex_first.is_some() || !config.allows_older();
        // A password may not do tomorrow, and a key does for as long as it is the one that ssh would take.
        let has_logged_in = facts.key.is_some() || !config.may_need_ssh_to_log_in();
        if has_opened && has_logged_in {
            return Ok(());
        }
        host.warm().await.map_err(|error| {
            let reasons = self.reasons_for_system_ssh(host.config());
            if reasons.is_empty() {
                return error;
            }
            Error::NeedsSystemSsh {
                host: host.config().original_host.clone(),
                reasons,
            }
        })
    }

    /// Where in the system it stands.
    pub fn vantage(&self) -> &Vantage {
        &self.inner.vantage
    }

    /// Says that from now on it serves other programs, each of which is known by an [`Interaction`] of its own. Where each
    /// use of a connection is to be confirmed ([`Self::confirms_use`]), those who did not make it are asked from then on.
    pub fn lend(&self) {
        self.inner.lends.store(true, Ordering::Relaxed);
    }

    /// Leaves proxy commands in the process group of this process, as ssh does: they can ask on its terminal, and what the
    /// terminal sends to the group (Ctrl-C) is for them, too. Otherwise each has a group of its own.
    pub fn share_terminal(&self) {
        self.inner.shares_terminal.store(true, Ordering::Relaxed);
    }

    /// What ssh_config says of a request.
    ///
    /// # Errors
    /// What `ssh -G` says; a request from another part of the system, where it would mean another host.
    pub async fn resolve(&self, request: &Request) -> Result<Arc<HostConfig>, Error> {
        if let Some(what) = self.inner.vantage.difference(&request.world.vantage) {
            return Err(Error::Usage(format!(
                "{}: the request comes from another {what} than this engine's, which would reach another host or read other \
                 files: use one of its own, as --no-daemon does",
                request.destination.host
            )));
        }
        if let Some(config) = self.inner.resolver.cached(request) {
            return Ok(config);
        }
        Ok(self.inner.resolver.resolve(request).await?)
    }

    /// Why a host is left to the system's ssh: what it needs, and what the user has said; empty where the engine does it.
    pub fn reasons_for_system_ssh(&self, config: &HostConfig) -> Vec<Reason> {
        let mut reasons = config.needs_system_ssh();
        let patterns = &self.inner.settings.openssh_hosts;
        if matches(patterns, config) {
            reasons.push(Reason {
                directive: "openssh_hosts".into(),
                value: patterns.join(","),
                why: "config.toml asks for the system's ssh".into(),
            });
        }
        let facts = self.inner.memory.facts(&host_id(config));
        if facts.is_some_and(|facts| facts.algorithms_refused) {
            reasons.push(Reason {
                directive: "algorithms".into(),
                value: "older".into(),
                why: "the server takes nothing that the engine has, but the configuration allows ssh something that it takes".into(),
            });
        }
        reasons
    }

    /// Whether a configuration asks for each use of a connection that is there already to be confirmed by the user: what
    /// `ControlMaster ask` and `autoask` mean, or [`Settings::confirm_hosts`] says. Said once for a connection, it holds
    /// for all who use it, whatever their own options say.
    pub fn confirms_use(&self, config: &HostConfig) -> bool {
        matches!(config.control_master, ControlMaster::Ask | ControlMaster::AutoAsk)
            || matches(&self.inner.settings.confirm_hosts, config)
    }

    /// Host memory.
    pub fn memory(&self) -> &Memory {
        &self.inner.memory
    }

    /// The engine's settings.
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// The engine's counters.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Every host that has connections, with their lanes.
    pub fn status(&self) -> Vec<HostStatus> {
        let pools: Vec<_> = self
            .inner
            .pools()
            .iter()
            .map(|(key, pool)| (*key, pool.clone()))
            .collect();
        pools
            .into_iter()
            .map(|(key, pool)| HostStatus {
                key,
                host: pool.host().clone(),
                pinned: pool.is_pinned(),
                lanes: pool.status(),
            })
            .collect()
    }

    /// Closes the connections that `choose` picks by their configuration: at once, or when their sessions have ended.
    /// Returns how many connections that were.
    pub fn close(&self, at_once: bool, choose: impl Fn(&HostConfig) -> bool) -> usize {
        let mut closed = 0;
        self.inner.pools().retain(|_, pool| {
            let chosen = choose(pool.host());
            if chosen {
                closed += pool.status().len();
                pool.close(at_once);
            }
            !chosen
        });
        closed
    }

    /// Drains everything: running sessions finish, nothing new is connected by what is left. Returns when all
    /// connections have ended or `limit` is over.
    pub async fn shut_down(&self, limit: Duration) {
        let pools: Vec<_> = self.inner.pools().drain().map(|(_, pool)| pool).collect();
        let connections: Vec<_> = pools.iter().flat_map(|pool| pool.connections()).collect();
        for pool in &pools {
            pool.close(false);
        }
        let all = futures_util::future::join_all(connections.iter().map(Connection::ended));
        if tokio::time::timeout(limit, all).await.is_err() {
            for connection in &connections {
                connection.close("trunkline is shutting down");
            }
        }
        self.inner.memory.flush();
    }

    /// A host whose configuration the program gives ([`HostConfig::explicit`]), with what it brings itself to log in
    /// with. Its connections are shared by the clones of what is returned, and with nobody else: two callers with equal
    /// configurations may have different secrets.
    ///
    /// ```no_run
    /// use trunkline::config::HostConfig;
    /// use trunkline::keys::KeyFile;
    /// use trunkline::{Command, Engine, Interaction, Login};
    ///
    /// # async fn example(pem: Vec<u8>) -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = Engine::new(Default::default(), Default::default());
    /// let mut config = HostConfig::explicit("db1.example", 22, "monitor")?;
    /// config.user_known_hosts_files = vec!["/etc/monitor/known_hosts".into()];
    /// let login = Login::new().key(KeyFile::in_memory("the monitor's key", pem.into())?);
    /// let host = engine.private_host(config, login, &Interaction::none())?;
    /// println!("{:?}", host.run(&Command::exec("uptime")).await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NeedsSystemSsh`] for a configuration with what the engine cannot do; [`Error::Usage`] for jump hosts, which
    /// only a resolved host has: reach the first, and give [`Login::over`] a tunnel through it.
    pub fn private_host(
        &self,
        config: HostConfig,
        login: Login,
        interaction: &Interaction,
    ) -> Result<Host, Error> {
        let reasons = config.needs_system_ssh();
        if !reasons.is_empty() {
            return Err(Error::NeedsSystemSsh {
                host: config.original_host.clone(),
                reasons,
            });
        }
        if matches!(config.proxy, Proxy::Jump(_) | Proxy::Command(_)) {
            return Err(Error::Usage(format!(
                "{}: a host with an explicit configuration has no proxy; give the stream to talk over",
                config.original_host
            )));
        }
        let caller = Caller {
            config: Arc::new(config),
            way: Way::Given(login),
            interaction: interaction.clone(),
        };
        let pool = self.new_pool(&caller);
        self.inner.pools().insert(SharingKey::unique(), pool.clone());
        Ok(Host {
            pool,
            caller,
            tuned: None,
            undecided: None,
        })
    }

    fn pool(&self, caller: &Caller) -> Arc<Pool> {
        let key = caller.config.sharing_key();
        let mut pools = self.inner.pools();
        let pool = match pools.get(&key) {
            Some(pool) => pool.clone(),
            None => {
                let pool = self.new_pool(caller);
                pools.insert(key, pool.clone());
                pool
            }
        };
        if self.inner.lends.load(Ordering::Relaxed) {
            if self.confirms_use(&caller.config) {
                pool.confirm();
            }
            // Who comes when nothing is there is the one who makes it.
            pool.is_allowed(caller.interaction.client());
        }
        pool
    }

    fn new_pool(&self, first: &Caller) -> Arc<Pool> {
        let engine = Arc::downgrade(&self.inner);
        let connector = Box::new(move |caller: &Caller| connect(&engine, caller));
        Pool::new(
            first.config.clone(),
            self.inner.settings.clone(),
            first.way.connections(),
            self.inner.memory.clone(),
            connector,
        )
    }
}

impl Inner {
    /// Guards the table of pools, for as long as a look-up takes.
    fn pools(&self) -> MutexGuard<'_, HashMap<SharingKey, Arc<Pool>>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gate(&self, host: &HostConfig) -> Arc<Semaphore> {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates
            .entry((host.hostname.clone(), host.port))
            .or_insert_with(|| Arc::new(Semaphore::new(self.settings.handshakes_per_server.max(1))))
            .clone()
    }
}

/// Begins a connection.
fn connect(engine: &Weak<Inner>, caller: &Caller) -> Connection {
    let (memory, metrics, windows, gate, early) = match engine.upgrade() {
        Some(inner) => (
            inner.memory.clone(),
            inner.metrics.clone(),
            inner.windows.clone(),
            Some((inner.handshakes.clone(), inner.gate(&caller.config))),
            (inner.settings.early_flights, inner.settings.early_stdin),
        ),
        None => (
            Arc::new(Memory::in_memory()),
            Arc::default(),
            Arc::default(),
            None,
            (true, true),
        ),
    };
    let dial = {
        let (engine, caller) = (engine.clone(), caller.clone());
        Box::new(move || dial_host(engine.clone(), caller.clone()).boxed())
    };
    let login = match &caller.way {
        Way::Resolved(_) => Login::new(),
        Way::Given(login) => login.clone(),
    };
    Connection::begin(Handshake {
        host: caller.config.clone(),
        interaction: caller
            .interaction
            .clone()
            .about(&caller.config.user, &caller.config.original_host),
        login,
        is_ssh: matches!(&caller.way, Way::Resolved(request) if request.runs_local_command),
        memory,
        early,
        windows,
        engine_metrics: metrics,
        gate,
        lend_agent: forward::lend_agent,
        dial,
    })
}

/// Finds the way to a host: TCP, a proxy command, or a channel of a jump host's connection.
async fn dial_host(engine: Weak<Inner>, caller: Caller) -> Result<Dialed, Error> {
    let Caller {
        config,
        way,
        interaction,
    } = caller;
    let request = match way {
        Way::Resolved(request) => request,
        Way::Given(login) => match login.dial() {
            Some(dialed) => return dialed,
            None => return dial::tcp(&config).await,
        },
    };
    match &config.proxy {
        Proxy::Direct => dial::tcp(&config).await,
        Proxy::Command(command) => {
            let shares = |engine: Arc<Inner>| engine.shares_terminal.load(Ordering::Relaxed);
            let shares_terminal = engine.upgrade().is_some_and(shares);
            dial::proxy_command(command, &request.world, shares_terminal)
        }
        Proxy::Jump(hops) => {
            let shut_down = || Error::Closed {
                host: config.original_host.clone(),
                why: "the engine was shut down".into(),
            };
            let engine = Engine {
                inner: engine.upgrade().ok_or_else(shut_down)?,
            };
            let jump = request
                .for_jump(hops)
                .ok_or_else(|| Error::Usage("ProxyJump names no host".into()))?;
            // Boxed: a jump host may have a jump host.
            let through: BoxFuture<'_, _> = Box::pin(async {
                // What the jump host was when the sharing key was made, and not what its name may mean by now.
                let resolved = match &config.jump {
                    Some(resolved) => resolved.clone(),
                    None => engine.resolve(&jump).await?,
                };
                let host = engine.host_with(resolved, &jump, &interaction)?;
                let to = format!("{}:{}", config.hostname, config.port);
                host.confirm_use(&format!("Allow forward to {to}? ")).await?;
                engine.meet(&host).await?;
                host.direct_tcpip(&config.hostname, config.port, ("127.0.0.1", 0))
                    .await
            });
            let stream = through.await?;
            Ok(Dialed {
                io: Box::new(stream),
                address: None,
                rtt: None,
            })
        }
    }
}

/// How often the pools are looked after.
const SWEEP: Duration = Duration::from_secs(1);

/// Looks after the pools for as long as the engine lives.
async fn keep_up(engine: Weak<Inner>) {
    let mut sweeps = tokio::time::interval(SWEEP);
    sweeps.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = (Instant::now(), SystemTime::now());
    loop {
        sweeps.tick().await;
        let Some(inner) = engine.upgrade() else { return };
        let now = (Instant::now(), SystemTime::now());
        // The monotonic clock stands still while the machine sleeps; the other one does not.
        let slept = now
            .1
            .duration_since(last.1)
            .unwrap_or_default()
            .saturating_sub(now.0.duration_since(last.0));
        last = now;
        let woken = slept > SWEEP * 5;
        let pools: Vec<_> = inner
            .pools()
            .iter()
            .map(|(key, pool)| (*key, pool.clone()))
            .collect();
        for (key, pool) in pools {
            // Two references: the table's and this one. Anyone else may be about to use the pool.
            if pool.sweep(woken) && Arc::strong_count(&pool) == 2 {
                inner.pools().remove(&key);
            }
        }
        inner
            .gates
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|_, gate| Arc::strong_count(gate) > 1);
    }
}

/// A host with connections.
#[derive(Debug, Clone)]
pub struct HostStatus {
    /// What decides who may share them.
    pub key: SharingKey,
    /// What it resolved to.
    pub host: Arc<HostConfig>,
    /// Whether its first connection is kept for ever.
    pub pinned: bool,
    /// Its connections.
    pub lanes: Vec<LaneStatus>,
}

/// A host, reached through connections that are shared with everything that may share them.
#[derive(Clone)]
pub struct Host {
    pool: Arc<Pool>,
    caller: Caller,
    /// What was measured to be best for moving data.
    tuned: Option<Arc<Choice>>,
    /// Where neither that nor the user has copies compressed, or has forbidden it.
    undecided: Option<Arc<Undecided>>,
}

/// What it takes to reach a host anew, with compression.
struct Undecided {
    engine: Weak<Inner>,
    request: Request,
}

impl fmt::Debug for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Undecided(..)")
    }
}

impl Host {
    /// What ssh_config says of it.
    pub fn config(&self) -> &Arc<HostConfig> {
        &self.caller.config
    }

    /// What was measured to be best for moving data, if this host is [for that](Engine::host_for_copies).
    pub fn tuned(&self) -> Option<&Choice> {
        self.tuned.as_deref()
    }

    /// The same host over connections that compress, for a copy that finds on its way that they are faster; nobody is asked
    /// anything for them. `None` where it compresses already, the user has forbidden it, or the server takes none.
    pub(crate) fn compressing(&self) -> Option<Self> {
        let undecided = self.undecided.as_ref()?;
        let takes_it = |connection: &Connection| connection.info().is_some_and(|info| info.server_compresses);
        if !self.pool.connections().iter().any(takes_it) {
            return None;
        }
        let engine = Engine {
            inner: undecided.engine.upgrade()?,
        };
        let config = Arc::new(HostConfig {
            compression: true,
            ..(*self.caller.config).clone()
        });
        let interaction = self.caller.interaction.clone().without_questions();
        let mut host = engine.host_with(config, &undecided.request, &interaction).ok()?;
        host.tuned.clone_from(&self.tuned);
        Some(host)
    }

    /// Has the user confirm the use of connections that others have made, where each use is to be confirmed. `question` is
    /// put through the SSH_ASKPASS of whoever wants to use them, once for each [`Interaction`].
    ///
    /// # Errors
    /// It is not allowed, or there is nothing to ask through. Nothing has begun.
    pub async fn confirm_use(&self, question: &str) -> Result<(), Error> {
        let client = self.caller.interaction.client();
        if self.pool.is_allowed(client) {
            return Ok(());
        }
        self.ask_permission(question).await?;
        self.pool.allow(client);
        Ok(())
    }

    /// Has the user confirm one use, where each is to be confirmed, whoever has made the connections.
    ///
    /// # Errors
    /// As [`Self::confirm_use`].
    pub async fn confirm_each_use(&self, question: &str) -> Result<(), Error> {
        if !self.pool.confirms() {
            return Ok(());
        }
        self.ask_permission(question).await
    }

    async fn ask_permission(&self, question: &str) -> Result<(), Error> {
        match &self.caller.way {
            Way::Resolved(request) => {
                permission::ask(&self.caller.config.original_host, &request.world, question).await
            }
            // Nobody else has its connections.
            Way::Given(_) => Ok(()),
        }
    }

    /// Whether a connection is there already.
    pub fn is_warm(&self) -> bool {
        self.pool.connections().iter().any(Connection::is_ready)
    }

    /// Starts a command, a shell or a subsystem.
    ///
    /// # Errors
    /// A refusal by the server that no other connection lifts. Failures of a connection that is being made come from
    /// the session.
    pub async fn start(&self, command: &Command) -> Result<Session, Error> {
        if command.forwards_agent() && self.caller.config.forward_agent == ForwardAgent::No {
            let name = &self.caller.config.original_host;
            return Err(Error::Usage(format!(
                "the agent is not forwarded to {name}: set ForwardAgent or use -A"
            )));
        }
        // sshd gives every session of a connection the agent that the first one brought: on a host that gets the agent,
        // every session asks for it, so that what one sees is what it asked for.
        let forward = self.caller.config.forward_agent != ForwardAgent::No;
        let all_or_nothing = self.caller.config.exit_on_forward_failure;
        let command = if forward || all_or_nothing {
            &command
                .clone()
                .agent_forwarding(forward)
                .verified_only(all_or_nothing)
        } else {
            command
        };
        self.pool.session(command, &self.caller).await
    }

    /// Opens a session in which nothing runs yet, for a caller that speaks of it request by request:
    /// [`SessionControl::request`](crate::SessionControl::request). Where a spare session is there, at once.
    ///
    /// # Errors
    /// The server's refusal; the loss of the connection. A host that forwards the agent has no such sessions: the server
    /// would lend it to them unasked.
    pub async fn open_session(&self) -> Result<Session, Error> {
        if self.caller.config.forward_agent != ForwardAgent::No {
            let name = &self.caller.config.original_host;
            return Err(Error::Usage(format!(
                "connections to {name} forward the agent, which was not asked for"
            )));
        }
        let mut session = self.pool.session(&Command::later(), &self.caller).await?;
        session.started().await?;
        Ok(session)
    }

    /// Runs a command without input to its end and returns its output.
    ///
    /// # Errors
    /// As [`Session::wait`]. A status other than 0 is not an error.
    pub async fn run(&self, command: &Command) -> Result<Output, Error> {
        self.start(command).await?.output(None).await
    }

    /// Opens an SFTP session. Its first request leaves right behind that for the subsystem, so that a warm host answers
    /// the first operation within a round trip.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn sftp(&self) -> Result<Sftp, Error> {
        let config = self.sftp_config();
        let session = self.start(&Command::subsystem("sftp")).await?;
        Ok(Sftp::on(session, &self.caller.config.original_host, &config))
    }

    /// Opens an SFTP session on a connection with nothing else on it, as long as the host may have one more.
    pub(crate) async fn sftp_apart(&self) -> Result<Sftp, Error> {
        let config = self.sftp_config();
        let command = Command::subsystem("sftp");
        let session = self.pool.session_apart(&command, &self.caller).await?;
        Ok(Sftp::on(session, &self.caller.config.original_host, &config))
    }

    fn sftp_config(&self) -> trunkline_sftp::Config {
        trunkline_sftp::Config {
            early_requests: self.pool.is_openssh(),
            largest_request: self.tuned().and_then(|choice| choice.request_size),
        }
    }

    /// The shortest round trip that an answer on one of its connections has shown.
    pub(crate) fn rtt(&self) -> Option<Duration> {
        let connections = self.pool.connections();
        connections
            .iter()
            .filter_map(|connection| connection.metrics().rtt())
            .min()
    }

    /// Opens a TCP connection from the server to `host`:`port`.
    ///
    /// # Errors
    /// The server's refusal; the loss of the connection.
    pub async fn direct_tcpip(
        &self,
        host: &str,
        port: u16,
        originator: (&str, u16),
    ) -> Result<ChannelStream, Error> {
        let originator = (originator.0.to_owned(), originator.1);
        self.pool
            .tunnel(
                ChannelKind::DirectTcpip {
                    host: host.to_owned(),
                    port,
                    originator,
                },
                &self.caller,
            )
            .await
    }

    /// Opens a connection to a Unix socket on the server.
    ///
    /// # Errors
    /// As [`Self::direct_tcpip`].
    pub async fn direct_streamlocal(&self, path: &str) -> Result<ChannelStream, Error> {
        self.pool
            .tunnel(
                ChannelKind::DirectStreamlocal {
                    path: path.to_owned(),
                },
                &self.caller,
            )
            .await
    }

    /// The host's first connection, kept from being closed as idle while the lease is there.
    pub(crate) fn hold_connection(&self) -> (Connection, Lease) {
        self.pool.hold_control(&self.caller)
    }

    /// The host's first connection, made if there is none, kept from being closed as idle while the result is there.
    /// Begins to connect at once; [`Connection::ready`] waits for it.
    pub fn hold(&self) -> HeldConnection {
        let (connection, lease) = self.hold_connection();
        HeldConnection {
            connection,
            _lease: lease,
        }
    }

    /// Ends the host's connections at once and for good: sessions and tunnels that are asked for later, or wait for a place,
    /// fail with [`Error::Closed`]. For [private hosts](Engine::private_host); others share their connections, see
    /// [`Engine::close`].
    pub fn end(&self) {
        self.pool.end();
    }

    /// The host's first connection, made if there is none.
    pub fn connection(&self) -> Connection {
        self.pool.control(&self.caller)
    }

    /// Connects now, and waits until it is done.
    ///
    /// # Errors
    /// Why it could not be done; with ExitOnForwardFailure, that the server was not verified.
    pub async fn warm(&self) -> Result<(), Error> {
        let connection = self.connection();
        connection.ready().await?;
        if self.caller.config.exit_on_forward_failure {
            connection.check_verified("Forwarding")?;
        }
        Ok(())
    }

    /// What its user is to be told before anything is done with it: that a server of its connections was not verified.
    pub fn warnings(&self) -> Vec<String> {
        let connections = self.pool.connections();
        let unverified = connections.iter().filter_map(Connection::info);
        unverified
            .flat_map(|info| info.warnings.iter().cloned())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    /// # Errors
    /// A server of its connections was not verified, so that `what` may not be done.
    pub(crate) fn check_verified(&self, what: &'static str) -> Result<(), Error> {
        let connections = self.pool.connections();
        connections
            .iter()
            .try_for_each(|connection| connection.check_verified(what))
    }

    /// Keeps the first connection for ever, or no longer.
    pub fn pin(&self, pinned: bool) {
        self.pool.pin(pinned);
    }

    /// Whether traffic keeps new sessions away from one of the connections, so that they go to another: above
    /// [`Settings::busy_above`] it does, below [`Settings::busy_below`] no longer. Looked at once a second.
    pub fn apart(&self) -> watch::Receiver<bool> {
        self.pool.apart()
    }

    /// The host's connections.
    pub fn lanes(&self) -> Vec<LaneStatus> {
        self.pool.status()
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("config", &self.caller.config)
            .finish_non_exhaustive()
    }
}

/// A connection that is not closed as idle while this is there.
#[derive(Debug)]
pub struct HeldConnection {
    connection: Connection,
    _lease: Lease,
}

impl std::ops::Deref for HeldConnection {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("pools", &self.inner.pools().len())
            .finish_non_exhaustive()
    }
}

fn host_id(config: &HostConfig) -> HostId {
    HostId::new(&config.hostname, config.port, &config.user)
}

/// Whether a setting's patterns mean a host.
fn matches(patterns: &[String], config: &HostConfig) -> bool {
    !patterns.is_empty() && hosts::in_list(&config.original_host, &patterns.join(","))
}
