//! A NATS server of a test's own.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use trunkline_fleet::bucket::{Access, Bucket, Charter};
use trunkline_fleet::state::Zones;

/// A nats-server with JetStream on loopback. Ends with the value.
pub(crate) struct Nats {
    folder: TempDir,
    port: u16,
    process: Option<Child>,
}

impl Nats {
    /// Starts one; with this text in its configuration besides.
    pub(crate) fn start(more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Free now; nobody else takes it before the server does, but for bad luck.
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let store = folder.path().join("store");
        let text = format!("listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: {store:?} }}\n{more}\n");
        std::fs::write(folder.path().join("nats.conf"), text).unwrap();
        let mut nats = Self {
            folder,
            port,
            process: None,
        };
        nats.up();
        nats
    }

    pub(crate) fn up(&mut self) {
        let process = Command::new("nats-server")
            .arg("-c")
            .arg(self.folder.path().join("nats.conf"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nats-server is needed: scripts/need nats-server=nats-server");
        self.process = Some(process);
    }

    /// As a power cut ends it.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
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

    /// Makes a fleet of so many shards, once the server answers.
    pub(crate) async fn fleet(&self, shards: u16) -> Bucket {
        let zones = Zones {
            shards,
            ..Zones::default()
        };
        let charter = Charter::new(zones, Duration::from_secs(3600));
        for _ in 0..100 {
            match Bucket::create(&self.access(), charter.clone(), 1).await {
                Ok(bucket) => return bucket,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
        Bucket::create(&self.access(), charter, 1).await.unwrap()
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
    }
}
