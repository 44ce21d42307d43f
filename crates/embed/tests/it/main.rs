//! A program sees the same, whether an engine of its own process holds the connection or the daemon.

#![expect(
    clippy::unwrap_used,
    reason = "a test may panic, and clippy knows of its functions alone, not of what they share"
)]

mod audit;
mod copies;
mod errors;
mod listening;
mod passwords;
mod sessions;
#[path = "../../../daemon/tests/thread/mod.rs"]
mod thread;
mod ways;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use trunkline::config::{Request, World};
use trunkline::{Engine, Interaction, MemoryPlace, Settings};
use trunkline_embed::{Destination, Preference, Program, ProgramEngine, Reader, SessionOptions, Way};
use trunkline_testkit::Sshd;

use thread::Daemon;

fn engine() -> ProgramEngine {
    ProgramEngine::without_record(Engine::new(Settings::default(), MemoryPlace::Process))
}

/// A destination in a world whose daemon is in `directory`.
fn destination(sshd: &Sshd, directory: &Path, preference: Preference, args: &[&str]) -> Destination {
    let current = World::current().unwrap();
    let mut env: Vec<(OsString, OsString)> = current.env.into_iter().collect();
    env.push(("TRUNKLINE_DIR".into(), directory.into()));
    env.push(("LC_TOLD".into(), "by the world".into()));
    let world = World::from_parts(PathBuf::from("/"), env.into_iter().collect());
    let mut request = Request::new(sshd.alias().parse().unwrap(), Arc::new(world));
    request.ssh_args = vec!["-F".into(), sshd.ssh_config().into()];
    request.ssh_args.extend(args.iter().map(Into::into));
    Destination {
        request,
        preference,
        interaction: Interaction::none(),
        answers: false,
        on_behalf: None,
    }
}

/// Does the same over an engine of this process and over a daemon.
async fn each_way(sshd: &Sshd, args: &[&str], check: impl AsyncFn(Way)) {
    let daemon = Daemon::start();
    for preference in [Preference::Engine, Preference::RunningDaemon] {
        let in_process = matches!(preference, Preference::Engine);
        let destination = destination(sshd, &daemon.dir(), preference, args);
        let way = Way::find(&destination, async || Ok(engine())).await.unwrap();
        assert_eq!(way.host().is_some(), in_process);
        check(way).await;
    }
    // While what this runtime has of it is let go of.
    tokio::task::spawn_blocking(|| drop(daemon)).await.unwrap();
}

fn exec(line: &str) -> SessionOptions {
    SessionOptions::new(Program::Exec(line.into()))
}

async fn rest(reader: &mut Reader) -> Vec<u8> {
    let mut pieces: Vec<Bytes> = Vec::new();
    while reader.chunks(&mut pieces).await > 0 {}
    pieces.concat()
}
