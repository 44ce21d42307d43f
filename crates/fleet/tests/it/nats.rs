//! A NATS server of a test's own.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use async_nats::jetstream::{self, kv::Store};
use tempfile::TempDir;
use trunkline_fleet::bucket::{Access, Bucket, Charter};
use trunkline_fleet::state::{Terms, Zones};
use trunkline_fleet::submitting::remove;
use trunkline_testkit::{directory, free_port};

use crate::log::{last_words, log_at};

/// A nats-server with JetStream on loopback. Ends with the value.
pub(crate) struct Nats {
    directory: TempDir,
    port: u16,
    process: Option<Child>,
}

impl Nats {
    /// Starts one; with this text in its configuration besides.
    pub(crate) fn start(more: &str) -> Self {
        Self::with_configuration(free_port(), more)
    }

    /// Starts three that are one cluster. They tell clients nothing of each other: a client gets where it was told to.
    pub(crate) fn cluster() -> Vec<Self> {
        let ports: [u16; 6] = std::array::from_fn(|_| free_port());
        let routes = ports[3..]
            .iter()
            .map(|port| format!("\"nats://127.0.0.1:{port}\""));
        let routes = routes.collect::<Vec<_>>().join(", ");
        let server = |n: usize| {
            let (port, route) = (ports[n], ports[n + 3]);
            let more = format!(
                "server_name: s{n}\ncluster {{ name: c, listen: \"127.0.0.1:{route}\", routes: [{routes}], no_advertise: \
                 true }}"
            );
            Self::with_configuration(port, &more)
        };
        (0..3).map(server).collect()
    }

    /// Starts one without JetStream.
    pub(crate) fn start_plain() -> Self {
        Self::start_with(free_port(), |_| String::new())
    }

    fn with_configuration(port: u16, more: &str) -> Self {
        Self::start_with(port, |store| {
            format!("jetstream {{ store_dir: {store:?} }}\n{more}\n")
        })
    }

    fn start_with(port: u16, more: impl FnOnce(&Path) -> String) -> Self {
        let directory = directory().unwrap();
        let more = more(&directory.path().join("store"));
        let text = format!("listen: \"127.0.0.1:{port}\"\n{more}");
        fs::write(directory.path().join("nats.conf"), text).unwrap();
        let mut nats = Self {
            directory,
            port,
            process: None,
        };
        nats.up();
        nats
    }

    pub(crate) fn up(&mut self) {
        let process = Command::new("nats-server")
            .arg("-c")
            .arg(self.directory.path().join("nats.conf"))
            .env("TMPDIR", self.directory.path())
            .stdout(Stdio::null())
            .stderr(log_at(&self.directory.path().join("nats.log")))
            .spawn()
            .expect("nats-server is needed: scripts/need nats-server=nats-server");
        self.process = Some(process);
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// As a power cut ends it.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// The end of what it has said.
    pub(crate) fn log(&self) -> String {
        let name = format!("port {}", self.port);
        last_words(&name, &self.directory.path().join("nats.log"))
    }

    pub(crate) fn access(&self) -> Access {
        Access {
            servers: format!("nats://127.0.0.1:{}", self.port),
            prefix: "test".into(),
            nkey: None,
            credentials: None,
            authorities: None,
        }
    }

    /// Waits until it accepts connections.
    pub(crate) async fn wait_until_up(&self) {
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Makes a fleet of so many shards, once the server answers.
    pub(crate) async fn fleet(&self, shards: u16) -> Bucket {
        create(&self.access(), charter(shards), 1).await
    }

    /// Connects to its JetStream, as anybody may.
    pub(crate) async fn jetstream(&self) -> jetstream::Context {
        let client = async_nats::connect(self.access().servers).await.unwrap();
        jetstream::new(client)
    }

    /// Returns a bucket of its fleet, past the code of fleets.
    pub(crate) async fn store(&self, name: &str) -> Store {
        let jetstream = self.jetstream().await;
        jetstream.get_key_value(format!("test-{name}")).await.unwrap()
    }
}

pub(crate) fn charter(shards: u16) -> Charter {
    let zones = Zones {
        shards,
        ..Zones::default()
    };
    Charter::new(zones, Duration::from_secs(3600))
}

/// Leases that last so long, in the proportions of those of every fleet.
pub(crate) fn terms(ttl: Duration) -> Terms {
    Terms {
        ttl,
        renew: ttl / 3,
        margin: ttl / 3,
    }
}

/// Makes a fleet, once the servers answer; what a try has left of one that is not whole is removed.
pub(crate) async fn create(access: &Access, charter: Charter, replicas: usize) -> Bucket {
    for attempt in 0.. {
        match Bucket::create(access, charter.clone(), replicas).await {
            Ok(bucket) => return bucket,
            Err(error) => {
                assert!(attempt < 600, "{error}");
                let _ = remove(access).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    unreachable!("it was tried for a minute")
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
    }
}
