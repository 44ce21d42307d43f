//! The engine's way to a host: resolves a request, finds its pool, and connects.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use trunkline_request::STRICT;

use super::host::{Host, Undecided};
use super::{Engine, Inner, matches};
use crate::config::{ForwardAgent, HostConfig, LogIn, Proxy, Request, SharingKey, World};
use crate::connection::Connection;
use crate::connection::dial::{self, Dialed};
use crate::connection::handshake::{Gate, Handshake};
use crate::connection::login::Login;
use crate::connection::timing::idle::Activity;
use crate::error::{Error, Invalid};
use crate::interaction::{Interaction, LogLevel};
use crate::memory::{HostId, Memory, tuned};
use crate::pool::{Caller, Pool, Way};
use crate::settings::Settings;

/// The error of an unshared engine for a host that must be shared.
const APART: &str = "this would make a connection of its own, apart from the daemon's";

impl Engine {
    /// Returns the host that a destination means in this process's environment, working directory and ssh_config.
    ///
    /// # Errors
    /// The destination or configuration cannot be used; or [`Error::NeedsSystemSsh`].
    pub async fn host(&self, destination: &str, interaction: &Interaction) -> Result<Host, Error> {
        let world = World::current().map_err(|source| Error::local("reading the environment", source))?;
        let destination = destination
            .parse()
            .map_err(|error: crate::destination::DestinationError| Invalid::Hosts(error.to_string()))?;
        self.host_for(&Request::new(destination, Arc::new(world)), interaction)
            .await
    }

    /// Returns the host that a request means.
    ///
    /// # Errors
    /// As [`Self::host`].
    pub async fn host_for(&self, request: &Request, interaction: &Interaction) -> Result<Host, Error> {
        let config = self.resolve(request).await?;
        let host = self.host_with(config, request, interaction)?;
        self.meet(&host).await?;
        Ok(host)
    }

    /// Returns the host that a request means, for moving data: with the cipher, the compression, the request size and
    /// the number of sessions that [`tune`](crate::tune) found best and host memory keeps. The caller's own options
    /// take precedence. The result is that of [`Self::host_for`] if the host was never tuned, or if its server refuses
    /// another connection beside an existing one, or would prompt for it.
    ///
    /// # Errors
    /// As [`Self::host`].
    pub async fn host_for_copies(&self, request: &Request, interaction: &Interaction) -> Result<Host, Error> {
        let config = self.resolve(request).await?;
        let choice = tuned::recall(self.memory(), &config);
        let best = match &choice {
            Some(choice) => tuned::apply(choice, config.clone(), request),
            None => config.clone(),
        };
        let is_other = best.sharing_key() != config.sharing_key();
        let mut host = self.host_with(best.clone(), request, interaction)?;
        if is_other && !host.is_warm() {
            let usual = self.host_with(config.clone(), request, interaction)?;
            // Two connections may take two answers. If no key is remembered, the first shows whether they do.
            let leads_in = self
                .inner
                .memory
                .facts(&HostId::from_config(&config))
                .and_then(|facts| facts.key);
            if leads_in.is_none() {
                self.meet(&usual).await?;
                usual.warm().await?;
            }
            if usual.is_attended() {
                host = usual;
            } else if usual.is_warm() {
                let unasked = interaction.clone().without_user();
                if let Err(error) = self.host_with(best, request, &unasked)?.warm().await {
                    tracing::warn!(
                        "could not connect with the tuned settings, so the copy uses the existing connection: {error}"
                    );
                    host = usual;
                }
            }
        }
        self.meet(&host).await?;
        // Tuning decides for data of any kind: if it disabled compression, a copy of text may still be faster with it.
        // For lent connections, the user would have to be asked again.
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

    /// Returns the host of a request with a resolved, possibly modified configuration.
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

    /// Connects to an unknown host whose configuration allows more than the engine's algorithms. Only the server can
    /// tell whether it needs them, and a command that is left to ssh must not have been started here.
    async fn meet(&self, host: &Host) -> Result<(), Error> {
        if host.is_warm() {
            return Ok(());
        }
        let config = host.config();
        let facts = self
            .inner
            .memory
            .facts(&HostId::from_config(config))
            .unwrap_or_default();
        let has_opened = facts.kex_first.is_some() || !config.allows_older();
        // A password may fail tomorrow. A key works as long as it is the one that ssh would use.
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

    /// Returns a host whose configuration and log-in the program gives ([`HostConfig::explicit`]). Only clones of the
    /// result share its connections: two callers with equal configurations may have different secrets.
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
    /// [`Error::NeedsSystemSsh`] for a configuration that the engine does not support. [`Error::Configuration`] if only
    /// shared connections are allowed ([`STRICT`] in the environment, [`Settings::strict_hosts`]), if unrecorded work
    /// is forbidden ([`Settings::audit`]), and for jump hosts, which only a resolved host has: reach the first, and
    /// give [`Login::with_stream`] a tunnel through it.
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

    /// Returns the same host as a [private one](Self::private_host) with its own connections, for sessions that need
    /// the agent: all its sessions get it.
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
            // The first client, when there are no connections, is the one that makes them.
            own.admit(caller.interaction.client(), caller.way.world());
        }
        own
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
            (self.inner.names.clone(), self.inner.leaving.clone()),
            connector,
        )
    }
}

/// Starts a connection.
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
    let interaction = match caller.way {
        Way::Resolved(_) => caller.interaction.clone().recording(),
        // Nobody else comes to such a connection, to read how it was made.
        Way::Given(_) => caller.interaction.clone(),
    };
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

/// Connects to a host by TCP, a proxy command, or a channel of a jump host's connection.
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
            interaction.log(
                LogLevel::Debug1,
                &format!("Executing proxy command: exec {command}"),
            );
            dial::proxy_command(command, &request.world, &interaction).await
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
                // The jump host as it was when the sharing key was made, not as its name resolves by now.
                let resolved = match &config.jump {
                    Some(resolved) => {
                        engine.inner.memory.recall(&HostId::from_config(resolved)).await;
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
