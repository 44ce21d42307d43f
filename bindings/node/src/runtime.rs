//! The one tokio runtime and the one engine of the process, which all its environments share.

use std::sync::{LazyLock, OnceLock};

use tokio::runtime::{Builder, Runtime};
use trunkline::{Engine, Settings};
use trunkline_embed::{ErrorKind, Failure};

use crate::fault::Fault;

/// Threads for what blocks: key files, known_hosts, name look-ups. Tokio's default of 512 would let a slow directory
/// service take the process's memory.
const BLOCKING_THREADS: usize = 32;

static RUNTIME: LazyLock<Result<Runtime, String>> = LazyLock::new(|| {
    Builder::new_multi_thread()
        .thread_name("trunkline")
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start threads: {error}"))
});

static ENGINE: OnceLock<Engine> = OnceLock::new();

/// The runtime, started when it is first needed. It lives as long as the process: an environment that ends leaves it
/// to the others.
pub(crate) fn runtime() -> Result<&'static Runtime, Fault> {
    Ok(started()?)
}

fn started() -> Result<&'static Runtime, Failure> {
    let failed = |reason: &String| Failure::new(ErrorKind::Local, reason);
    RUNTIME.as_ref().map_err(failed)
}

/// Settings for the engine; `false` if it is there already.
pub(crate) fn configure(settings: Settings) -> Result<bool, Fault> {
    let _inside = runtime()?.enter();
    let mut fresh = false;
    ENGINE.get_or_init(|| {
        fresh = true;
        Engine::new(settings, Default::default())
    });
    Ok(fresh)
}

/// The engine, made when it is first needed.
pub(crate) fn engine() -> Result<Engine, Failure> {
    let _inside = started()?.enter();
    let engine = ENGINE.get_or_init(|| Engine::new(Settings::default(), Default::default()));
    Ok(engine.clone())
}
