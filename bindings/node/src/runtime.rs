//! The one tokio runtime and the one engine of the process, which all its environments share.

use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use trunkline::Settings;
use trunkline_embed::{ErrorKind, Failure, ProgramEngine};

use crate::fault::Fault;

/// Threads for what blocks: key files, known_hosts, name look-ups. Tokio's default of 512 would let a slow directory
/// service take the process's memory.
const BLOCKING_THREADS: usize = 32;

/// By how much the engine's threads give way to the program's own, of which the event loop's is one (nice(2)). On two cores that
/// servers and client fill, 4, 8 and 20 streams add 6.0, 5.9 and 9.1 ms to the event loop's delay (p99), 8.0, 9.4 and 11.8 without
/// it, and carry 697, 676 and 660 MB/s, 675, 772 and 782 without it (medians of three runs in turns). 10 gives no more.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 5;

/// Lets the program's own threads run first. On Linux each thread has a niceness of its own, which the programs that it starts
/// (`ssh -G`, a ProxyCommand) inherit; elsewhere it is the whole process's.
fn give_way() {
    // Where it is refused, there is nothing to be done about it.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(NICENESS);
}

static RUNTIME: LazyLock<Result<Runtime, String>> = LazyLock::new(|| {
    Builder::new_multi_thread()
        .thread_name("trunkline")
        .on_thread_start(give_way)
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start threads: {error}"))
});

/// The time that the end of the process may wait for the audit trail.
const LAST_RECORDS: Duration = Duration::from_secs(2);

static ENGINE: OnceLock<ProgramEngine> = OnceLock::new();

/// The runtime, started when it is first needed. It lives as long as the process: an environment that ends leaves it
/// to the others.
pub(crate) fn runtime() -> Result<&'static Runtime, Fault> {
    Ok(start()?)
}

fn start() -> Result<&'static Runtime, Failure> {
    let failed = |reason: &String| Failure::new(ErrorKind::Local, reason);
    RUNTIME.as_ref().map_err(failed)
}

/// Settings for the engine; `false` if it is there already.
///
/// # Errors
/// No threads; `config.toml` cannot be used.
pub(crate) fn configure(settings: Settings) -> Result<bool, Fault> {
    if ENGINE.get().is_some() {
        return Ok(false);
    }
    let _inside = runtime()?.enter();
    let engine = ProgramEngine::new(settings, Default::default())?;
    Ok(ENGINE.set(engine).is_ok())
}

/// The engine, made when it is first needed.
pub(crate) fn engine() -> Result<ProgramEngine, Failure> {
    if let Some(engine) = ENGINE.get() {
        return Ok(engine.clone());
    }
    let _inside = start()?.enter();
    let fresh = ProgramEngine::new(Settings::default(), Default::default())?;
    Ok(ENGINE.get_or_init(|| fresh).clone())
}

/// Waits for the audit trail, as an environment ends. With the main thread's ends the process, and with it what still runs.
pub(crate) fn leave(ends_process: bool) {
    let (Some(engine), Ok(runtime)) = (ENGINE.get(), runtime()) else {
        return;
    };
    let written = async {
        match ends_process {
            true => engine.close_trail().await,
            false => engine.flush_trail().await,
        }
    };
    // What cannot be written in that time does not keep the process.
    let _ = runtime.block_on(async { tokio::time::timeout(LAST_RECORDS, written).await });
}
