//! [`Engine`]: configuration, host memory and the pools of all hosts.

mod host;
mod reach;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::iter;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use trunkline_proto::WindowBudget;
use trunkline_sftp::transfer::NameBudget;

use crate::config::{
    ControlMaster, Departure, HostConfig, Reason, Request, Resolver, SharingKey, Vantage, World,
};
use crate::connection::Connection;
use crate::error::{Error, Invalid};
use crate::hosts;
use crate::memory::{HostId, Lesson, Memory};
use crate::metrics::Metrics;
use crate::pool::{Closing, LaneStatus, Pool};
use crate::settings::{AuditMode, PredictMode, Settings};
pub use host::{HeldConnection, Host};

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
    /// The memory from which the receive windows of all connections grow.
    windows: Arc<WindowBudget>,
    /// The memory for names that servers list.
    names: NameBudget,
    /// SFTP sessions that nobody owns any more and that still remove what they leave.
    leaving: TaskTracker,
}

/// Why nothing is reached by an engine that nobody records where everything is to be recorded.
const UNRECORDED: &str = "config.toml lets nothing run that is not recorded in the audit trail (audit = \"strict\"), and nobody \
                          records what is done with this engine: use the daemon";

/// Where host memory is kept.
#[derive(Debug, Clone, Default)]
pub enum MemoryPlace {
    /// Nowhere: it lasts as long as the engine.
    #[default]
    Process,
    /// In a file in this directory.
    Directory(std::path::PathBuf),
}

impl From<&Path> for MemoryPlace {
    fn from(directory: &Path) -> Self {
        Self::Directory(directory.to_owned())
    }
}

impl Engine {
    /// An engine. Must be called inside a tokio runtime, on which everything of it runs.
    pub fn new(settings: Settings, memory: MemoryPlace) -> Self {
        let memory = match memory {
            MemoryPlace::Process => Memory::in_memory(),
            MemoryPlace::Directory(directory) => Memory::open(&directory),
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
            windows: Arc::default(),
            names,
            leaving: TaskTracker::new(),
        });
        tokio::spawn(keep_up(Arc::downgrade(&inner)));
        Self { inner }
    }

    /// Where in the system it stands.
    pub fn vantage(&self) -> &Vantage {
        &self.inner.vantage
    }

    /// Says that from now on it serves other programs, each of which is known by an
    /// [`Interaction`](crate::interaction::Interaction) of its own. Where each use of a connection is to be confirmed
    /// ([`Self::confirms_use`]), those who did not make it are asked from then on.
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

    /// The settings in which ssh_config and a request's options differ from ssh's defaults. Runs ssh twice.
    ///
    /// # Errors
    /// What `ssh -G` says.
    pub async fn departures(&self, request: &Request) -> Result<Vec<Departure>, Error> {
        Ok(self.inner.resolver.departures(request).await?)
    }

    /// Resolves a request by ssh_config.
    ///
    /// # Errors
    /// What `ssh -G` says; a request from another part of the system, where it would mean another host.
    pub async fn resolve(&self, request: &Request) -> Result<Arc<HostConfig>, Error> {
        if let Some(difference) = self.inner.vantage.difference(&request.world.vantage) {
            let host = request.destination.host.clone();
            return Err(Invalid::Elsewhere { host, difference }.into());
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

    /// Returns whether a host is to be reached over shared connections or not at all: because the caller wants that
    /// ([`World::must_share`]), or [`Settings::strict_hosts`] says so.
    pub fn must_share(&self, config: &HostConfig, world: &World) -> bool {
        world.must_share() || matches(&self.inner.settings.strict_hosts, config)
    }

    /// Returns whether the sessions of a host are to be recorded ([`Settings::record_hosts`]).
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
        self.inner.windows.grown_bytes()
    }

    /// Every host that has connections, with their lanes.
    pub fn status(&self) -> Vec<HostStatus> {
        let pools: Vec<_> = self.inner.pools().values().cloned().collect();
        pools.iter().map(|pool| HostStatus::of(pool)).collect()
    }

    /// Closes the connections that `choose` picks by their configuration: at once, or when their sessions have ended.
    /// Returns how many connections that were; those count once that end later, unless this ends them now.
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
    /// connections have ended or `limit` is over; a copy that was stopped has some seconds more to remove its partial files.
    pub async fn shut_down(&self, limit: Duration) {
        self.inner.leaving.close();
        // Each has a limit of its own.
        self.inner.leaving.wait().await;
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
    /// The key of the requests that may share them.
    pub key: SharingKey,
    /// The resolved configuration.
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

/// Returns whether a setting's patterns mean a host; letters' case means nothing.
fn matches(patterns: &[String], config: &HostConfig) -> bool {
    let (host, patterns) = (config.original_host.to_ascii_lowercase(), patterns.join(","));
    !patterns.is_empty() && hosts::in_list(&host, &patterns.to_ascii_lowercase())
}
