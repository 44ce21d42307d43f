//! `trunkline daemon`.

mod log;
pub(crate) mod process;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use trunkline::Engine;
use trunkline_daemon::server::{self, Claim, StartError};

use crate::backend::{memory_place, place};
use crate::settings;
use log::Log;

/// Arguments of `trunkline daemon`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Stay in the foreground (the default): for systemd and other service managers.
    #[arg(long)]
    foreground: bool,
    /// Leave the terminal and the session of whoever started it; says "ready" when it listens.
    #[arg(long, conflicts_with = "foreground", hide = true)]
    detach: bool,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    if args.detach {
        // Fails only for the leader of a group, which a child just started is not.
        let _ = rustix::process::setsid();
    }
    process::reset();
    // Who asks for more than the usual gets all of it.
    let asked = EnvFilter::try_from_env("TRUNKLINE_LOG");
    let limited = asked.is_err();
    let filter = asked.unwrap_or_else(|_| EnvFilter::new("info"));
    let file = place().map_or_else(|_| "/dev/null".into(), |place| place.log());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(Log::new(&file, limited))
        .with_ansi(false)
        // A log that cannot be written (a full disk) would be complained about on the same stream, which panics.
        .log_internal_errors(false)
        .init();
    process::keep_memory_private();

    let result = serve(args.detach);
    if let (Err(error), true) = (&result, args.detach) {
        tell(&format!("{error:#}"));
    }
    result
}

fn serve(detach: bool) -> anyhow::Result<ExitCode> {
    let place = place()?;
    let settings = settings::load(&place.config)?;
    // No folder of the caller's stays in use. Those of the place are absolute.
    let _ = std::env::set_current_dir("/");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    runtime.block_on(async {
        let claim = match Claim::take(&place) {
            Ok(claim) => claim,
            Err(StartError::Running(_)) if detach => {
                tell("running");
                return Ok(ExitCode::SUCCESS);
            }
            Err(error) => return Err(error.into()),
        };
        process::reset_ignored_signals();
        raise_descriptor_limit();
        let engine = Engine::new(settings, memory_place(&place));
        let mut terminate = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("waiting for SIGINT")?;
        let shutdown = async move {
            tokio::select! {
                _ = terminate.recv() => tracing::info!("SIGTERM: no new clients; waiting for running sessions"),
                _ = interrupt.recv() => tracing::info!("SIGINT: no new clients; waiting for running sessions"),
            }
        };
        tracing::info!(pid = std::process::id(), socket = %place.socket().display(), "listening");
        if detach {
            tell("ready");
        }
        // In a task: this thread, which only waits, would have to be woken for each client.
        tokio::spawn(server::run(claim, engine, shutdown))
            .await
            .context("the daemon failed")?;
        tracing::info!("ended");
        Ok(ExitCode::SUCCESS)
    })
}

/// A client brings up to four descriptors, a connection is one: thousands do not fit into the usual limit of 1024.
pub(crate) fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!("the limit on open files stays as it is: {error}");
    }
}

/// Tells whoever waits for the start, and lets go of their pipe.
fn tell(word: &str) {
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "{word}");
    let _ = stdout.flush();
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}
