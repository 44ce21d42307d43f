//! A daemon on a thread of the test's process.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio::sync::oneshot;
use trunkline::{Engine, MemoryPlace, Settings};
use trunkline_daemon::claim::Claim;
use trunkline_daemon::place::Place;
use trunkline_daemon::server;

/// A daemon in a directory of its own. Dropping it ends it, which waits for what its clients have under way.
pub(crate) struct Daemon {
    directory: TempDir,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Daemon {
    pub(crate) fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("tl-").tempdir().unwrap();
        let place = place(&dir(directory.path()));
        let (end, ended) = oneshot::channel::<()>();
        let (ready, listening) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let claim = Claim::take(&place, None).unwrap();
                let engine = Engine::new(Settings::default(), MemoryPlace::Process);
                ready.send(()).unwrap();
                server::run(claim, engine, || (), async { drop(ended.await) })
                    .await
                    .unwrap();
            });
        });
        listening.recv().unwrap();
        Self {
            directory,
            end: Some(end),
            thread: Some(thread),
        }
    }

    /// Returns TRUNKLINE_DIR for its clients.
    pub(crate) fn dir(&self) -> PathBuf {
        dir(self.directory.path())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Fails when a test has ended it already.
        let _ = self.end.take().map(|end| end.send(()));
        if let Some(thread) = self.thread.take().filter(|_| !std::thread::panicking()) {
            thread.join().expect("the daemon panicked");
        }
    }
}

fn dir(directory: &Path) -> PathBuf {
    directory.join("d")
}

/// The place of clients with this TRUNKLINE_DIR.
pub(crate) fn place(dir: &Path) -> Place {
    Place::find(|name| (name == "TRUNKLINE_DIR").then(|| dir.to_owned())).unwrap()
}
