//! Engines, and hosts of theirs that are found as a user's are: by an ssh_config.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use trunkline::config::{Request, World};
use trunkline::{Engine, Host, Interaction, Settings};
use trunkline_testkit::{Relay, Sshd};

/// An engine that remembers nothing beyond its own end.
pub(crate) fn engine() -> Engine {
    engine_with(Settings::default())
}

/// The same with other settings.
pub(crate) fn engine_with(settings: Settings) -> Engine {
    Engine::new(settings, Default::default())
}

/// `ssh -F CONFIG -o OPTION... ALIAS`.
pub(crate) fn request(config: &Path, alias: &str, options: &[&str]) -> Request {
    let mut request = Request::new(alias.parse().unwrap(), Arc::new(World::current().unwrap()));
    request.ssh_args = vec!["-F".into(), config.into()];
    for option in options {
        request.ssh_args.extend(["-o".into(), option.into()]);
    }
    request
}

/// The host that `ssh -F CONFIG -o OPTION... ALIAS` would speak to.
pub(crate) async fn host_with(engine: &Engine, config: &Path, alias: &str, options: &[&str]) -> Host {
    let request = request(config, alias, options);
    engine.host_for(&request, &Interaction::none()).await.unwrap()
}

/// The same for a server's own configuration.
pub(crate) async fn host_of(engine: &Engine, sshd: &Sshd) -> Host {
    host_with(engine, &sshd.ssh_config(), sshd.alias(), &[]).await
}

/// A server, and its host in a new engine.
pub(crate) async fn server_and_host() -> (Sshd, Engine, Host) {
    server_and_host_with(Settings::default()).await
}

pub(crate) async fn server_and_host_with(settings: Settings) -> (Sshd, Engine, Host) {
    let (sshd, engine) = (Sshd::start_default().unwrap(), engine_with(settings));
    let host = host_of(&engine, &sshd).await;
    (sshd, engine, host)
}

/// A server, a directory for files, and the server's host.
pub(crate) async fn site() -> (Sshd, TempDir, Site) {
    site_with(Settings::default()).await
}

pub(crate) async fn site_with(settings: Settings) -> (Sshd, TempDir, Site) {
    let (sshd, place) = (Sshd::start_default().unwrap(), tempfile::tempdir().unwrap());
    let host = Site::open_with(engine_with(settings), &sshd.ssh_config(), sshd.alias()).await;
    (sshd, place, host)
}

/// The same, with a relay between the host and its server.
pub(crate) async fn through_relay() -> (Sshd, TempDir, Relay, Site) {
    let (relayed, place) = (Relayed::start(), tempfile::tempdir().unwrap());
    let host = relayed.site(engine()).await;
    (relayed.sshd, place, relayed.relay, host)
}

/// A server that is reached through a relay.
pub(crate) struct Relayed {
    pub(crate) sshd: Sshd,
    pub(crate) relay: Relay,
    pub(crate) config: PathBuf,
}

impl Relayed {
    pub(crate) fn start() -> Self {
        Self::for_server(Sshd::start_default().unwrap())
    }

    pub(crate) fn for_server(sshd: Sshd) -> Self {
        let relay = Relay::start(sshd.addr()).unwrap();
        let config = sshd.ssh_config_via("relayed", relay.addr()).unwrap();
        Self { sshd, relay, config }
    }

    /// `ssh -F CONFIG -o OPTION... relayed`.
    pub(crate) fn request(&self, options: &[&str]) -> Request {
        request(&self.config, "relayed", options)
    }

    /// Its host.
    pub(crate) async fn site(&self, engine: Engine) -> Site {
        Site::open_with(engine, &self.config, "relayed").await
    }
}

/// A host, with the engine that paces its connections.
pub(crate) struct Site {
    host: Host,
    _engine: Engine,
}

impl Site {
    /// A host of a new engine.
    pub(crate) async fn open(config: &Path, alias: &str) -> Self {
        Self::open_with(engine(), config, alias).await
    }

    /// A host of this engine, which nobody else needs.
    pub(crate) async fn open_with(engine: Engine, config: &Path, alias: &str) -> Self {
        Self {
            host: host_with(&engine, config, alias, &[]).await,
            _engine: engine,
        }
    }

    pub(crate) async fn for_server(sshd: &Sshd) -> Self {
        Self::open(&sshd.ssh_config(), sshd.alias()).await
    }
}

impl Deref for Site {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}
