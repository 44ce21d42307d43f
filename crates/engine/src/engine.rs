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
use trunkline_request::connection::Closed;
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

/// The SSH engine. One engine serves any number of hosts; clones share everything.
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
    /// The limits on concurrent handshakes, in all and with each server.
    handshakes: Arc<Semaphore>,
    gates: Mutex<HashMap<(String, u16), Arc<Semaphore>>>,
    metrics: Arc<Metrics>,
    /// The position of its threads in the system, which decides what it can reach.
    vantage: Vantage,
    /// Its connections are also used by other programs.
    lends: AtomicBool,
    /// Its work is recorded in the audit trail.
    audited: AtomicBool,
    /// The memory from which the receive windows of all connections grow.
    windows: Arc<WindowBudget>,
    /// The memory for names that servers list.
    names: NameBudget,
    /// SFTP sessions without an owner that are still removing leftovers.
    leaving: TaskTracker,
}

/// The error of an engine that is not recorded although everything must be.
const UNRECORDED: &str = "config.toml lets nothing run that is not recorded in the audit trail (audit = \"strict\"), and nobody \
                          records what is done with this engine: use the daemon";

/// The place of host memory.
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
    /// Creates an engine. Must be called inside a tokio runtime, on which all of it runs.
    pub fn new(settings: Settings, memory: MemoryPlace) -> Self {
        let memory = match memory {
            MemoryPlace::Process => Memory::in_memory(),
            MemoryPlace::Directory(directory) => Memory::open(&directory),
        };
        let names = NameBudget::new((settings.names_memory as usize).saturating_mul(1024 * 1024));
        Self::with_parts(settings, Arc::new(memory), Arc::new(Resolver::new()), names)
    }

    /// Creates an engine with the same settings, host memory and `ssh -G` results that shares no connection with this
    /// one. `connections` replaces the most connections per host. Must be called inside a tokio runtime.
    #[must_use]
    pub fn isolate(&self, connections: Option<usize>) -> Self {
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
        let apart = Self::with_parts(settings, memory.clone(), resolver.clone(), names.clone());
        // A caller who records this engine's work records its copy's too.
        if self.inner.audited.load(Ordering::Relaxed) {
            apart.mark_audited();
        }
        apart
    }

    fn with_parts(
        settings: Settings,
        memory: Arc<Memory>,
        resolver: Arc<Resolver>,
        names: NameBudget,
    ) -> Self {
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

    /// Returns its position in the system.
    pub fn vantage(&self) -> &Vantage {
        &self.inner.vantage
    }

    /// Declares that other programs use it from now on, each with its own
    /// [`Interaction`](crate::interaction::Interaction). If uses have to be confirmed ([`Self::confirms_use`]),
    /// programs that did not make a connection are asked from then on.
    pub fn lend(&self) {
        self.inner.lends.store(true, Ordering::Relaxed);
    }

    /// Declares that its work is recorded in the audit trail. If [`Settings::audit`] is strict, other engines reach no
    /// host.
    pub fn mark_audited(&self) {
        self.inner.audited.store(true, Ordering::Relaxed);
    }

    fn must_be_audited(&self, config: &HostConfig) -> Result<(), Error> {
        let strict = self.inner.settings.audit == AuditMode::Strict;
        if strict && !self.inner.audited.load(Ordering::Relaxed) {
            return Err(Error::configuration(config, UNRECORDED));
        }
        Ok(())
    }

    /// Returns where ssh_config and a request's options differ from ssh's defaults. Runs ssh twice.
    ///
    /// # Errors
    /// `ssh -G` failed.
    pub async fn departures(&self, request: &Request) -> Result<Vec<Departure>, Error> {
        Ok(self.inner.resolver.departures(request).await?)
    }

    /// Resolves a request by ssh_config.
    ///
    /// # Errors
    /// `ssh -G` failed, or the request is from another part of the system, where it would mean another host.
    pub async fn resolve(&self, request: &Request) -> Result<Arc<HostConfig>, Error> {
        if let Some(difference) = self.inner.vantage.difference(&request.world.vantage) {
            let host = request.destination.host.clone();
            return Err(Invalid::Elsewhere { host, difference }.into());
        }
        // ssh runs what a Match exec names each time that it connects.
        let connects = |config: &HostConfig| {
            self.find_connected(config).is_none() && self.reasons_for_system_ssh(config).is_empty()
        };
        if let Some(config) = self.inner.resolver.find_cached(request, connects) {
            return Ok(config);
        }
        let config = self.inner.resolver.resolve(request).await?;
        for host in iter::successors(Some(&config), |host| host.jump.as_ref()) {
            self.inner.memory.recall(&HostId::from_config(host)).await;
        }
        Ok(config)
    }

    /// Returns why the system's ssh has to connect to a host, or nothing if the engine can.
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
        let facts = self.inner.memory.facts(&HostId::from_config(config));
        let only_other = facts.is_some_and(|facts| facts.lessons.has(Lesson::OnlyOtherAlgorithms));
        // A configuration without others gets the error that names the missing algorithms.
        if only_other && config.allows_others() {
            reasons.push(Reason {
                directive: "algorithms".into(),
                value: "older".into(),
                why: "the server takes nothing that the engine has, but the configuration allows ssh something that it takes".into(),
            });
        }
        // A host behind a jump host is reached by the ssh that reaches the jump host.
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

    /// Returns whether the user has to confirm each use of an existing connection, by `ControlMaster ask` or `autoask`,
    /// or by [`Settings::confirm_hosts`]. Once set for a connection, this applies to all its users, whatever their own
    /// options are.
    pub fn confirms_use(&self, config: &HostConfig) -> bool {
        self.inner.confirms_use(config)
    }

    /// Returns whether a host must be reached over shared connections or not at all, by the caller's choice
    /// ([`World::must_share`]) or by [`Settings::strict_hosts`].
    pub fn must_share(&self, config: &HostConfig, world: &World) -> bool {
        world.must_share() || matches(&self.inner.settings.strict_hosts, config)
    }

    /// Returns whether a host's sessions are recorded ([`Settings::record_hosts`]).
    pub fn records(&self, config: &HostConfig) -> bool {
        matches(&self.inner.settings.record_hosts, config)
    }

    /// Returns when keys typed in a host's sessions are shown before their echo ([`Settings::predict`]).
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

    /// Returns how long a host's lost SFTP session may take to resume on a new connection, if it resumes at all
    /// ([`Settings::sftp_resume`]).
    pub fn resumes_sftp(&self, config: &HostConfig) -> Option<Duration> {
        let settings = &self.inner.settings;
        let never = matches(&settings.sftp_resume_never_hosts, config);
        let resumes = settings.sftp_resume || matches(&settings.sftp_resume_hosts, config);
        (resumes && !never).then_some(settings.sftp_resume_for)
    }

    /// Returns the host memory.
    pub fn memory(&self) -> &Memory {
        &self.inner.memory
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// Returns the counters.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.inner.metrics
    }

    /// Returns how many bytes servers may send at most beyond the initial window of every channel.
    pub fn window_bytes(&self) -> u64 {
        self.inner.windows.grown_bytes()
    }

    /// Returns every host with connections, and their lanes.
    pub fn status(&self) -> Vec<HostStatus> {
        let pools: Vec<_> = self.inner.pools().values().cloned().collect();
        pools.iter().map(|pool| HostStatus::from_pool(pool)).collect()
    }

    /// Closes the connections of the hosts that `choose` selects, at once or when their sessions have ended. Returns
    /// their number, without those that were already closing, unless this ends them now.
    ///
    /// Until they have ended they remain in the [status](Self::status), and can be closed at once. New requests do not
    /// share them.
    pub fn close(&self, at_once: bool, choose: impl Fn(&HostConfig) -> bool) -> Closed {
        let mut closed = Closed::default();
        let mut pools = self.inner.pools();
        let chosen: Vec<_> = pools.extract_if(.., |_, pool| choose(pool.host())).collect();
        for (_, pool) in chosen {
            if at_once {
                closed.now += pool.status().len();
                pool.close(Closing::Now);
            } else {
                let later = pool.used_lanes();
                closed.later += later;
                if !pool.is_closing() {
                    closed.now += pool.status().len().saturating_sub(later);
                }
                pool.close(Closing::WhenReleased);
                pools.insert(SharingKey::unique(), pool);
            }
        }
        closed
    }

    /// Drains everything: running sessions finish, nothing new is connected. Returns when all connections have ended or
    /// after `limit`. A stopped copy gets some more seconds to remove its partial files.
    pub async fn shut_down(&self, limit: Duration) {
        self.inner.leaving.close();
        // Each has a limit of its own.
        self.inner.leaving.wait().await;
        let pools: Vec<_> = std::mem::take(&mut *self.inner.pools()).into_values().collect();
        let connections: Vec<_> = pools.iter().flat_map(|pool| pool.connections()).collect();
        for pool in &pools {
            pool.close(Closing::WhenSessionsEnd);
        }
        let all = futures_util::future::join_all(connections.iter().map(Connection::wait_for_end));
        if tokio::time::timeout(limit, all).await.is_err() {
            for connection in &connections {
                connection.close("trunkline is shutting down");
            }
            // Each reports its end to its sessions and to the log.
            let all = futures_util::future::join_all(connections.iter().map(Connection::wait_for_end));
            let _ = tokio::time::timeout(Duration::from_secs(1), all).await;
        }
        self.inner.memory.flush();
    }

    /// Returns the host's connections that would serve this configuration now, if there are any.
    pub fn find_connected(&self, config: &HostConfig) -> Option<HostStatus> {
        let key = config.sharing_key();
        let own = self.inner.pools().get(&key).cloned();
        let pool = match own {
            Some(own) => self.inner.pool_of(&own, key, config),
            None => self.inner.host_of_guest(key, config)?,
        };
        Some(HostStatus::from_pool(&pool)).filter(|status| !status.lanes.is_empty())
    }
}

impl Inner {
    /// Locks the table of pools, for a look-up.
    fn pools(&self) -> MutexGuard<'_, BTreeMap<SharingKey, Arc<Pool>>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn confirms_use(&self, config: &HostConfig) -> bool {
        matches!(config.control_master, ControlMaster::Ask | ControlMaster::AutoAsk)
            || matches(&self.settings.confirm_hosts, config)
    }

    /// Returns the pool for a caller's sessions: its own, or, if that has no connections, another as a guest.
    fn pool_of(&self, own: &Arc<Pool>, key: SharingKey, config: &HostConfig) -> Arc<Pool> {
        if own.has_connections() {
            return own.clone();
        }
        self.host_of_guest(key, config).unwrap_or_else(|| own.clone())
    }

    /// Returns another pool whose connections are such as this configuration would make.
    fn host_of_guest(&self, key: SharingKey, config: &HostConfig) -> Option<Arc<Pool>> {
        if self.confirms_use(config) {
            return None;
        }
        let terms = config.log_in_terms();
        let mut others = self.others(key).into_iter();
        others.find(|pool| pool.admits(&terms))
    }

    /// Returns the pools whose connections may serve this key, if they are logged in as it would.
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

/// The interval at which the pools are swept.
const SWEEP: Duration = Duration::from_secs(1);

/// Sweeps the pools for as long as the engine lives.
async fn keep_up(engine: Weak<Inner>) {
    let mut sweeps = tokio::time::interval(SWEEP);
    sweeps.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = (Instant::now(), SystemTime::now());
    loop {
        sweeps.tick().await;
        let Some(inner) = engine.upgrade() else { return };
        let now = (Instant::now(), SystemTime::now());
        // The monotonic clock stops while the machine sleeps; the other does not.
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
            // Two references: the table's and this one. With more, the pool may be about to be used.
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
    /// Its first connection is kept forever.
    pub pinned: bool,
    /// Sessions and tunnels that wait for a place on one of its connections.
    pub waiting: u64,
    /// Its connections.
    pub lanes: Vec<LaneStatus>,
}

impl HostStatus {
    fn from_pool(pool: &Pool) -> Self {
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

/// Returns whether a setting's patterns match a host, ignoring case.
fn matches(patterns: &[String], config: &HostConfig) -> bool {
    let (host, patterns) = (config.original_host.to_ascii_lowercase(), patterns.join(","));
    !patterns.is_empty() && hosts::in_list(&host, &patterns.to_ascii_lowercase())
}
