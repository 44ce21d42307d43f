//! [`Engine`]: configuration, host memory and the pools of all hosts.

mod host;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::iter;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;
use trunkline_proto::WindowBudget;
use trunkline_sftp::transfer::NameBudget;

use crate::config::{
    ControlMaster, Departure, ForwardAgent, HostConfig, LogIn, Proxy, Reason, Request, Resolver, SharingKey,
    Vantage, World,
};
use crate::connection::Connection;
use crate::connection::dial::{self, Dialed};
use crate::connection::handshake::{Gate, Handshake};
use crate::connection::login::Login;
use crate::connection::timing::idle::Activity;
use crate::error::Error;
use crate::hosts;
use crate::interaction::{Interaction, LogLevel};
use crate::memory::tuned;
use crate::memory::{HostId, Lesson, Memory};
use crate::metrics::Metrics;
use crate::pool::{Caller, Closing, LaneStatus, Pool, Way};
use crate::settings::{AuditMode, PredictMode, Settings};
use host::Undecided;
pub use host::{HeldConnection, Host};
use trunkline_request::STRICT;

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
    pools: Mutex<BTreeMap<SharingKey, Arc<Pool>>>,
    /// Handshakes under way, in all and to each server.
    handshakes: Arc<Semaphore>,
    gates: Mutex<HashMap<(String, u16), Arc<Semaphore>>>,
    metrics: Arc<Metrics>,
    /// Where its threads are: it reaches what is reached from there.
    vantage: Vantage,
    /// Whether its connections are used by others than the program that it is in.
    lends: AtomicBool,
    /// Whether what is done with it is in the audit trail.
    audited: AtomicBool,
    /// Whether proxy commands stay on the terminal of this process.
    shares_terminal: AtomicBool,
    /// What the receive windows of all connections grow from.
    windows: Arc<WindowBudget>,
    /// What the names take that servers list.
    names: NameBudget,
}

/// Why a host that may only be shared is not reached by an engine that shares with nobody.
const APART: &str = "this would make a connection of its own, apart from the daemon's";

/// Why nothing is reached by an engine that nobody records where everything is to be recorded.
const UNRECORDED: &str = "config.toml lets nothing run that is not recorded in the audit trail (audit = \"strict\"), and nobody \
                          records what is done with this engine: use the daemon";

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
        let names = NameBudget::new((settings.names_memory as usize).saturating_mul(1024 * 1024));
        Self::with(settings, Arc::new(memory), Arc::new(Resolver::new()), names)
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
            names,
            ..
        } = &*self.inner;
        let settings = Settings {
            max_lanes: connections.unwrap_or(settings.max_lanes).max(1),
            ..settings.clone()
        };
        let apart = Self::with(settings, memory.clone(), resolver.clone(), names.clone());
        // Whoever records what is done with this one does so for what it does with that one.
        if self.inner.audited.load(Ordering::Relaxed) {
            apart.audited();
        }
        apart
    }

    fn with(settings: Settings, memory: Arc<Memory>, resolver: Arc<Resolver>, names: NameBudget) -> Self {
        let inner = Arc::new(Inner {
            handshakes: Arc::new(Semaphore::new(
                settings.handshakes.clamp(1, Semaphore::MAX_PERMITS),
            )),
            settings,
            resolver,
            memory,
            pools: Mutex::default(),
            gates: Mutex::default(),
            metrics: Arc::default(),
            vantage: Vantage::current(),
            lends: AtomicBool::new(false),
            audited: AtomicBool::new(false),
            shares_terminal: AtomicBool::new(false),
            windows: Arc::default(),
            names,
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
            .map_err(|error: crate::destination::DestinationError| Error::Invalid(error.to_string()))?;
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
    /// other connection beside one that is there, or none without asking its user something.
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
        let mut host = self.host_with(best.clone(), request, interaction)?;
        if is_other && !host.is_warm() {
            let usual = self.host_with(config.clone(), request, interaction)?;
            // Two connections may take two answers. Where no key is known to lead in, the first shows whether they do.
            let leads_in = self
                .inner
                .memory
                .facts(&HostId::of(&config))
                .and_then(|facts| facts.key);
            if leads_in.is_none() {
                self.meet(&usual).await?;
                usual.warm().await?;
            }
            if usual.is_attended() {
                host = usual;
            } else if usual.is_warm() {
                let unasked = interaction.clone().unattended();
                if let Err(error) = self.host_with(best, request, &unasked)?.warm().await {
                    tracing::warn!(
                        "could not connect with the tuned settings, so the copy uses the existing connection: {error}"
                    );
                    host = usual;
                }
            }
        }
        self.meet(&host).await?;
        // Tuning decides for data of any kind: where it left compression off, a copy of text may still be faster with it.
        // Lent connections would have to be asked for again.
        let config = host.config();
        if !request.sets("compression") && !config.compression && !host.confirms_use() {
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
        if self.must_share(&config, &request.world) && !self.inner.lends.load(Ordering::Relaxed) {
            return Err(Error::not_shared(&config.original_host, APART));
        }
        self.must_be_audited(&config)?;
        if let Some(words) = &config.refuse_connection {
            return Err(Error::configuration(
                &config,
                format!("RefuseConnection: {words}"),
            ));
        }
        let interaction = if config.batch_mode {
            interaction.clone().without_questions()
        } else {
            interaction.clone()
        };
        let caller = Caller {
            key: Arc::new(config.sharing_key()),
            config,
            way: Way::Resolved(request.clone()),
            interaction,
            activity: Activity::new(),
        };
        Ok(Host {
            own: self.pool(&caller),
            engine: Arc::downgrade(&self.inner),
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
        let facts = self.inner.memory.facts(&HostId::of(config)).unwrap_or_default();
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

    /// Says that what is done with it is recorded in the audit trail. Where [`Settings::audit`] is strict, an engine that
    /// is not reaches no host.
    pub fn audited(&self) {
        self.inner.audited.store(true, Ordering::Relaxed);
    }

    fn must_be_audited(&self, config: &HostConfig) -> Result<(), Error> {
        let strict = self.inner.settings.audit == AuditMode::Strict;
        if strict && !self.inner.audited.load(Ordering::Relaxed) {
            return Err(Error::configuration(config, UNRECORDED));
        }
        Ok(())
    }

    /// Leaves proxy commands in the process group of this process, as ssh does: they can ask on its terminal, and what the
    /// terminal sends to the group (Ctrl-C) is for them, too. Otherwise each has a group of its own.
    pub fn share_terminal(&self) {
        self.inner.shares_terminal.store(true, Ordering::Relaxed);
    }

    /// What ssh_config and the options of a request say otherwise than ssh would have it on its own. Runs ssh twice.
    ///
    /// # Errors
    /// What `ssh -G` says.
    pub async fn departures(&self, request: &Request) -> Result<Vec<Departure>, Error> {
        Ok(self.inner.resolver.departures(request).await?)
    }

    /// What ssh_config says of a request.
    ///
    /// # Errors
    /// What `ssh -G` says; a request from another part of the system, where it would mean another host.
    pub async fn resolve(&self, request: &Request) -> Result<Arc<HostConfig>, Error> {
        if let Some(what) = self.inner.vantage.difference(&request.world.vantage) {
            return Err(Error::Invalid(format!(
                "{}: the request comes from another {what}, where this may mean another host or other files: \
                 --no-daemon connects from there",
                request.destination.host
            )));
        }
        if let Some(config) = self.inner.resolver.cached(request) {
            return Ok(config);
        }
        let config = self.inner.resolver.resolve(request).await?;
        for host in iter::successors(Some(&config), |host| host.jump.as_ref()) {
            self.inner.memory.recall(&HostId::of(host)).await;
        }
        Ok(config)
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
        if self.inner.memory.is_left_to_ssh(config) {
            reasons.push(Reason {
                directive: "identityfile".into(),
                value: "a key that only ssh signs with".into(),
                why: "the server took none of the others".into(),
            });
        }
        let facts = self.inner.memory.facts(&HostId::of(config));
        let only_other = facts.is_some_and(|facts| facts.lessons.has(Lesson::OnlyOtherAlgorithms));
        // Another configuration allows the engine's algorithms alone, and is told what is missing.
        if only_other && config.allows_others() {
            reasons.push(Reason {
                directive: "algorithms".into(),
                value: "older".into(),
                why: "the server takes nothing that the engine has, but the configuration allows ssh something that it takes".into(),
            });
        }
        // What is behind a jump host is reached by the ssh that reaches that one.
        if let Some(jump) = &config.jump {
            let of_jump = self.reasons_for_system_ssh(jump);
            reasons.extend(of_jump.into_iter().map(|reason| Reason {
                directive: "proxyjump".into(),
                value: jump.original_host.clone(),
                why: format!("its {} {}: {}", reason.directive, reason.value, reason.why),
            }));
        }
        reasons
    }

    /// Whether a configuration asks for each use of a connection that is there already to be confirmed by the user: what
    /// `ControlMaster ask` and `autoask` mean, or [`Settings::confirm_hosts`] says. Said once for a connection, it holds
    /// for all who use it, whatever their own options say.
    pub fn confirms_use(&self, config: &HostConfig) -> bool {
        self.inner.confirms_use(config)
    }

    /// Whether a host is to be reached over shared connections or not at all: because the caller wants that
    /// ([`World::must_share`]), or [`Settings::strict_hosts`] says so.
    pub fn must_share(&self, config: &HostConfig, world: &World) -> bool {
        world.must_share() || matches(&self.inner.settings.strict_hosts, config)
    }

    /// Whether the sessions of a host are to be recorded ([`Settings::record_hosts`]).
    pub fn records(&self, config: &HostConfig) -> bool {
        matches(&self.inner.settings.record_hosts, config)
    }

    /// When keys typed in a host's sessions are shown before their echo ([`Settings::predict`]).
    pub fn predicts(&self, config: &HostConfig) -> PredictMode {
        let settings = &self.inner.settings;
        if matches(&settings.predict_never_hosts, config) {
            PredictMode::Never
        } else if matches(&settings.predict_always_hosts, config) {
            PredictMode::Always
        } else {
            settings.predict
        }
    }

    /// For how long a lost SFTP session of a host is to be carried over to a new connection, if it is to be
    /// ([`Settings::sftp_resume`]).
    pub fn resumes_sftp(&self, config: &HostConfig) -> Option<Duration> {
        let settings = &self.inner.settings;
        let never = matches(&settings.sftp_resume_never_hosts, config);
        let resumes = settings.sftp_resume || matches(&settings.sftp_resume_hosts, config);
        (resumes && !never).then_some(settings.sftp_resume_for)
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
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.inner.metrics
    }

    /// Bytes that servers may send to this engine at most, beyond what every channel's window begins with.
    pub fn window_bytes(&self) -> u64 {
        self.inner.windows.taken()
    }

    /// Every host that has connections, with their lanes.
    pub fn status(&self) -> Vec<HostStatus> {
        let pools: Vec<_> = self.inner.pools().values().cloned().collect();
        pools.iter().map(|pool| HostStatus::of(pool)).collect()
    }

    /// Closes the connections that `choose` picks by their configuration: at once, or when their sessions have ended. Returns how
    /// many connections that were; those count once that end later, unless this ends them now.
    ///
    /// Until they have ended they are part of the [status](Self::status), and can be closed at once. Nobody new shares them.
    pub fn close(&self, at_once: bool, choose: impl Fn(&HostConfig) -> bool) -> usize {
        let mut closed = 0;
        let mut pools = self.inner.pools();
        let chosen: Vec<_> = pools.extract_if(.., |_, pool| choose(pool.host())).collect();
        for (_, pool) in chosen {
            if at_once || !pool.is_closing() {
                closed += pool.status().len();
            }
            if at_once {
                pool.close(Closing::Now);
            } else {
                pool.close(Closing::WhenReleased);
                pools.insert(SharingKey::unique(), pool);
            }
        }
        closed
    }

    /// Drains everything: running sessions finish, nothing new is connected by what is left. Returns when all
    /// connections have ended or `limit` is over.
    pub async fn shut_down(&self, limit: Duration) {
        let pools: Vec<_> = std::mem::take(&mut *self.inner.pools()).into_values().collect();
        let connections: Vec<_> = pools.iter().flat_map(|pool| pool.connections()).collect();
        for pool in &pools {
            pool.close(Closing::WhenSessionsEnd);
        }
        let all = futures_util::future::join_all(connections.iter().map(Connection::ended));
        if tokio::time::timeout(limit, all).await.is_err() {
            for connection in &connections {
                connection.close("trunkline is shutting down");
            }
            // Each says what it has come to, to its sessions and to the log.
            let all = futures_util::future::join_all(connections.iter().map(Connection::ended));
            let _ = tokio::time::timeout(Duration::from_secs(1), all).await;
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
    /// [`Error::NeedsSystemSsh`] for a configuration with what the engine cannot do; [`Error::Configuration`] where only
    /// shared connections may be used ([`STRICT`] in the environment, [`Settings::strict_hosts`]) or what is not recorded must
    /// not run ([`Settings::audit`]), and for jump hosts, which only a resolved host has: reach the first, and give [`Login::over`] a tunnel through it.
    pub fn private_host(
        &self,
        config: HostConfig,
        login: Login,
        interaction: &Interaction,
    ) -> Result<Host, Error> {
        let strict = std::env::var_os(STRICT).is_some_and(|value| value == "1");
        if strict || matches(&self.inner.settings.strict_hosts, &config) {
            return Err(Error::not_shared(&config.original_host, APART));
        }
        self.must_be_audited(&config)?;
        let reasons = config.needs_system_ssh();
        if !reasons.is_empty() {
            return Err(Error::NeedsSystemSsh {
                host: config.original_host.clone(),
                reasons,
            });
        }
        if matches!(config.proxy, Proxy::Jump(_) | Proxy::Command(_)) {
            return Err(Error::configuration(
                &config,
                "a host with an explicit configuration has no proxy; give the stream to talk over",
            ));
        }
        let caller = Caller {
            key: Arc::new(SharingKey::unique()),
            config: Arc::new(config),
            way: Way::Given(login),
            interaction: interaction.clone(),
            activity: Activity::new(),
        };
        let pool = self.new_pool(&caller);
        self.inner.pools().insert(*caller.key, pool.clone());
        Ok(Host {
            own: pool,
            engine: Weak::new(),
            caller,
            tuned: None,
            undecided: None,
        })
    }

    /// The same host as a [private one](Self::private_host), with connections of its own, whose sessions are all lent the
    /// agent: for those of its sessions that are to have it where the others are not.
    ///
    /// # Errors
    /// [`Error::Configuration`] for a host that is not private, or that is reached over a given stream.
    pub fn lending_agent(&self, host: &Host) -> Result<Host, Error> {
        let Caller {
            config,
            way,
            interaction,
            ..
        } = &host.caller;
        let Way::Given(login) = way else {
            return Err(Error::configuration(
                config,
                "ssh_config says whether the agent is lent",
            ));
        };
        if login.is_over_stream() {
            return Err(Error::configuration(
                config,
                "over a given stream there is one connection: its sessions all have the agent, or none has it",
            ));
        }
        let mut config = HostConfig::clone(config);
        config.forward_agent = ForwardAgent::Yes;
        self.private_host(config, login.clone(), interaction)
    }

    fn pool(&self, caller: &Caller) -> Arc<Pool> {
        let own = {
            let mut pools = self.inner.pools();
            let made = || self.new_pool(caller);
            pools.entry(*caller.key).or_insert_with(made).clone()
        };
        if self.inner.lends.load(Ordering::Relaxed) {
            if self.confirms_use(&caller.config) {
                own.confirm();
            }
            // Who comes when nothing is there is the one who makes it.
            own.is_allowed(caller.interaction.client(), caller.way.world());
        }
        own
    }

    /// The host's connections that serve whoever asks for this configuration now, if there are any.
    pub fn connected(&self, config: &HostConfig) -> Option<HostStatus> {
        let key = config.sharing_key();
        let own = self.inner.pools().get(&key).cloned();
        let pool = match own {
            Some(own) => self.inner.pool_of(&own, key, config),
            None => self.inner.host_of_guest(key, config)?,
        };
        Some(HostStatus::of(&pool)).filter(|status| !status.lanes.is_empty())
    }

    fn new_pool(&self, first: &Caller) -> Arc<Pool> {
        let engine = Arc::downgrade(&self.inner);
        let connector = Box::new(move |caller: &Caller, like| connect(&engine, caller, like));
        Pool::new(
            first,
            self.inner.settings.clone(),
            first.way.connections(),
            &self.inner.memory,
            self.inner.metrics.clone(),
            self.inner.names.clone(),
            connector,
        )
    }
}

impl Inner {
    /// Guards the table of pools, for as long as a look-up takes.
    fn pools(&self) -> MutexGuard<'_, BTreeMap<SharingKey, Arc<Pool>>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn confirms_use(&self, config: &HostConfig) -> bool {
        matches!(config.control_master, ControlMaster::Ask | ControlMaster::AutoAsk)
            || matches(&self.settings.confirm_hosts, config)
    }

    /// Where a caller's sessions go: to the pool of its own key, or as a guest to one that has connections where its own has
    /// none.
    fn pool_of(&self, own: &Arc<Pool>, key: SharingKey, config: &HostConfig) -> Arc<Pool> {
        if own.has_connections() {
            return own.clone();
        }
        self.host_of_guest(key, config).unwrap_or_else(|| own.clone())
    }

    /// The pool of another key whose connections are such as this configuration would make.
    fn host_of_guest(&self, key: SharingKey, config: &HostConfig) -> Option<Arc<Pool>> {
        if self.confirms_use(config) {
            return None;
        }
        let terms = config.log_in_terms();
        let mut others = self.others(key).into_iter();
        others.find(|pool| pool.admits(&terms))
    }

    /// The pools whose connections may serve a request of this key if they are logged in to as it would.
    fn others(&self, key: SharingKey) -> Vec<Arc<Pool>> {
        let pools = self.pools();
        let together = pools.range(key.first_that_may_meet()..);
        together
            .take_while(|(other, _)| other.may_meet(&key))
            .filter(|(other, _)| **other != key)
            .map(|(_, pool)| pool.clone())
            .collect()
    }

    fn gate(&self, host: &HostConfig) -> Arc<Semaphore> {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates
            .entry((host.hostname.clone(), host.port))
            .or_insert_with(|| {
                let most = self.settings.handshakes_per_server;
                Arc::new(Semaphore::new(most.clamp(1, Semaphore::MAX_PERMITS)))
            })
            .clone()
    }
}

/// Begins a connection.
fn connect(engine: &Weak<Inner>, caller: &Caller, like: Option<LogIn>) -> Connection {
    let (memory, metrics, windows, gate, settings) = match engine.upgrade() {
        Some(inner) => (
            inner.memory.clone(),
            inner.metrics.clone(),
            inner.windows.clone(),
            Some(Gate {
                all: inner.handshakes.clone(),
                server: inner.gate(&caller.config),
            }),
            inner.settings.clone(),
        ),
        None => (
            Arc::new(Memory::in_memory()),
            Arc::default(),
            Arc::default(),
            None,
            Settings::default(),
        ),
    };
    let interaction = caller.interaction.clone().recording();
    let dial = {
        let mut caller = caller.clone();
        caller.interaction = interaction.clone();
        let engine = engine.clone();
        Box::new(move || dial_host(engine.clone(), caller.clone()).boxed())
    };
    let login = match &caller.way {
        Way::Resolved(_) => Login::new(),
        Way::Given(login) => login.clone(),
    };
    Connection::begin(Handshake {
        host: caller.config.clone(),
        interaction: interaction.about(&caller.config.user, &caller.config.original_host),
        login,
        like,
        is_ssh: matches!(&caller.way, Way::Resolved(request) if request.runs_local_command),
        memory,
        settings,
        windows,
        engine_metrics: metrics,
        gate,
        dial,
    })
}

/// Finds the way to a host: TCP, a proxy command, or a channel of a jump host's connection.
async fn dial_host(engine: Weak<Inner>, caller: Caller) -> Result<Dialed, Error> {
    let Caller {
        config,
        way,
        interaction,
        ..
    } = caller;
    let request = match way {
        Way::Resolved(request) => request,
        Way::Given(login) => match login.dial() {
            Some(dialed) => return dialed,
            None => return dial::tcp(&config, &interaction).await,
        },
    };
    match &config.proxy {
        Proxy::Direct => dial::tcp(&config, &interaction).await,
        Proxy::Command(command) => {
            let shares = |engine: Arc<Inner>| engine.shares_terminal.load(Ordering::Relaxed);
            let shares_terminal = engine.upgrade().is_some_and(shares);
            interaction.log(
                LogLevel::Debug1,
                &format!("Executing proxy command: exec {command}"),
            );
            dial::proxy_command(command, &request.world, shares_terminal, &interaction)
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
                .ok_or_else(|| Error::Bug("ProxyJump names no host"))?;
            // Boxed: a jump host may have a jump host.
            let through: BoxFuture<'_, _> = Box::pin(async {
                // What the jump host was when the sharing key was made, and not what its name may mean by now.
                let resolved = match &config.jump {
                    Some(resolved) => {
                        engine.inner.memory.recall(&HostId::of(resolved)).await;
                        resolved.clone()
                    }
                    None => engine.resolve(&jump).await?,
                };
                let through = async |host: &Host| {
                    let to = format!("{}:{}", config.hostname, config.port);
                    let via = &host.config().original_host;
                    interaction.log(
                        LogLevel::Debug1,
                        &format!("Connecting to {to} through the jump host {via}"),
                    );
                    host.confirm_use(&format!("Allow forward to {to}? ")).await?;
                    engine.meet(host).await?;
                    let tunnel = host
                        .direct_tcpip(&config.hostname, config.port, ("127.0.0.1", 0))
                        .await?;
                    if let Ok(window) = tunnel.window().await {
                        host.learn_of_tunnel(window);
                    }
                    Ok(tunnel)
                };
                let of_jump = |error: Error| error.of_jump(&resolved);
                let host = engine
                    .host_with(resolved.clone(), &jump, &interaction)
                    .map_err(of_jump)?;
                through(&host).await.map_err(of_jump)
            });
            let stream = through.await?;
            Ok(Dialed {
                io: Box::new(stream),
                address: None,
                rtt: None,
                words: None,
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
    /// Whether its first connection is kept forever.
    pub pinned: bool,
    /// Sessions and tunnels that wait for a place on one of its connections.
    pub waiting: u64,
    /// Its connections.
    pub lanes: Vec<LaneStatus>,
}

impl HostStatus {
    fn of(pool: &Pool) -> Self {
        Self {
            key: pool.key(),
            host: pool.host().clone(),
            pinned: pool.is_pinned(),
            waiting: pool.waiting(),
            lanes: pool.status(),
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("pools", &self.inner.pools().len())
            .finish_non_exhaustive()
    }
}

/// Whether a setting's patterns mean a host; letters' case means nothing.
fn matches(patterns: &[String], config: &HostConfig) -> bool {
    let (host, patterns) = (config.original_host.to_ascii_lowercase(), patterns.join(","));
    !patterns.is_empty() && hosts::in_list(&host, &patterns.to_ascii_lowercase())
}
