//! `trunklined`: the daemon with the engine.

mod activation;
mod log;
mod process;
mod settings;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use trunkline::{Engine, MemoryPlace, Settings};
use trunkline_control::descriptors::{close_inherited, raise_limit};
use trunkline_control::private::Line;
use trunkline_daemon::claim::{Claim, StartError};
use trunkline_daemon::place::Place;
use trunkline_daemon::server;

use log::Log;

/// The daemon of trunkline: it makes the connections that `trunkline` and other programs share. It starts by itself
/// when first needed.
#[derive(Debug, Parser)]
#[command(name = "trunklined", version, max_term_width = 110)]
struct Args {
    /// Stay in the foreground (the default): for systemd and other service managers.
    #[arg(long)]
    foreground: bool,
    /// Leave the terminal and the session of whoever started it; says "ready" when it listens.
    #[arg(long, conflicts_with = "foreground", hide = true)]
    detach: bool,
    /// Serve only the program that started this, on the socket that is standard input, and end with it.
    #[arg(long, conflicts_with_all = ["foreground", "detach"], hide = true)]
    private: bool,
    /// Check the audit trail of this place, or of a directory: prints what is found; the exit status is 1 if it is not
    /// as it was written.
    #[arg(long, hide = true, value_name = "DIRECTORY")]
    verify_audit: Option<Option<PathBuf>>,
    /// The required content.
    #[arg(long, hide = true, requires = "verify_audit")]
    head: Option<String>,
    /// Print what is found as JSON.
    #[arg(long, hide = true)]
    json: bool,
    /// Print the records of the audit trail of this place, or of a directory.
    #[arg(long, hide = true, value_name = "DIRECTORY", conflicts_with = "verify_audit")]
    show_audit: Option<Option<PathBuf>>,
    /// Only those of this host.
    #[arg(long, hide = true, requires = "show_audit")]
    host: Option<String>,
    /// Only those from this time on.
    #[arg(long, hide = true, requires = "show_audit")]
    since: Option<String>,
    /// Only those of this asker.
    #[arg(long, hide = true, requires = "show_audit")]
    who: Option<String>,
    /// Print every setting of config.toml with its default and meaning.
    #[arg(long, conflicts_with_all = ["foreground", "detach", "private"])]
    settings: bool,
}

/// The exit status for errors, the same as ssh's.
const ERROR: u8 = 255;

fn main() -> ExitCode {
    let handed_over = activation::descriptors();
    close_inherited(&handed_over);
    let args = Args::parse();
    let result = if args.settings {
        settings::print()
    } else if let Some(directory) = &args.verify_audit {
        match verify_audit(directory.as_deref(), &args) {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(error),
        }
    } else if let Some(directory) = &args.show_audit {
        show_audit(directory.as_deref(), &args)
    } else if args.private {
        private()
    } else {
        daemon(args.detach)
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The user typed `trunkline audit …` or `trunkline settings`.
            let is_daemon = !args.settings && args.verify_audit.is_none() && args.show_audit.is_none();
            eprintln!(
                "{}: {}",
                if is_daemon { "trunklined" } else { "trunkline" },
                trunkline::Printable::text(trunkline_request::words_of(format_args!("{error:#}")))
            );
            ExitCode::from(ERROR)
        }
    }
}

/// Checks an audit trail. Returns true if it is intact.
fn verify_audit(directory: Option<&Path>, args: &Args) -> anyhow::Result<bool> {
    let directory = trail(directory)?;
    let (intact, text) = trunkline_daemon::verify_audit(&directory, args.head.as_deref(), args.json)?;
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(intact),
    }
}

/// Returns the directory of an audit trail.
fn trail(directory: Option<&Path>) -> anyhow::Result<PathBuf> {
    let directory = match directory {
        Some(directory) => directory.to_owned(),
        None => place()?.audit(),
    };
    anyhow::ensure!(
        directory.exists(),
        "there is no audit trail in {}; to start one, set `audit = \"on\"` in config.toml",
        directory.display()
    );
    Ok(directory)
}

/// Prints the records of an audit trail.
fn show_audit(directory: Option<&Path>, args: &Args) -> anyhow::Result<()> {
    let filter = trunkline_daemon::AuditFilter {
        host: args.host.clone(),
        since: args
            .since
            .as_deref()
            .map(trunkline_daemon::AuditFilter::since)
            .transpose()?,
        who: args.who.clone(),
    };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let shown = trunkline_daemon::show_audit(&trail(directory)?, &filter, args.json, &mut out);
    match shown.and_then(|()| Ok(out.flush()?)) {
        // The reader has left.
        Err(error) if is_broken_pipe(&error) => Ok(()),
        shown => shown,
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
    error.downcast_ref().is_some_and(broken)
}

fn daemon(detach: bool) -> anyhow::Result<()> {
    if detach {
        // Fails only for the leader of a process group, which a new child is not.
        let _ = rustix::process::setsid();
    }
    process::reset();
    // A user who asks for more than the default gets all of it.
    let asked = EnvFilter::try_from_env("TRUNKLINE_LOG");
    let limited = asked.is_err();
    let filter = asked.unwrap_or_else(|_| EnvFilter::new("info"));
    let file = place().map_or_else(|_| "/dev/null".into(), |place| place.log());
    match log::journal() {
        Some(journal) => tracing_subscriber::registry().with(filter).with(journal).init(),
        None => tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(Log::new(&file, limited))
            .with_ansi(false)
            // An error in writing the log (a full disk) would be reported on the same stream, which panics.
            .log_internal_errors(false)
            .init(),
    }
    process::keep_memory_private();

    let result = serve(detach);
    if let (Err(error), true) = (&result, detach) {
        tell(&format!("{error:#}"));
    }
    result
}

fn serve(detach: bool) -> anyhow::Result<()> {
    let place = place()?;
    let settings = Settings::read(&place.config)?;
    // Leaves the caller's directory, which would stay in use. The paths of the place are absolute.
    let _ = std::env::set_current_dir("/");
    runtime()?.block_on(async {
        process::outlive_file_limits();
        let claim = match Claim::take(&place, activation::socket()?) {
            Ok(claim) => claim,
            Err(StartError::Running(_)) if detach => {
                tell("running");
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        process::reset_ignored_signals();
        raise_limit();
        let engine = Engine::new(settings, memory_place(&place));
        let mut terminate = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("waiting for SIGINT")?;
        let shutdown = async move {
            tokio::select! {
                _ = terminate.recv() => tracing::info!("SIGTERM: no new clients; waiting for running sessions"),
                _ = interrupt.recv() => tracing::info!("SIGINT: no new clients; waiting for running sessions"),
            }
        };
        let ready = move || {
            tracing::info!(pid = std::process::id(), socket = %place.socket().display(), "listening");
            if detach {
                tell("ready");
            }
        };
        // In a task: waking this thread, which only waits, for each client costs time.
        let served = tokio::spawn(server::run(claim, engine, ready, shutdown)).await;
        // The engine's errors contain the system's message, which anyhow would repeat.
        let served = served.context("the daemon failed")?;
        served.map_err(|error| anyhow::anyhow!("{error}"))?;
        tracing::info!("ended");
        Ok(())
    })
}

/// The time that running work gets to end once the program has.
const SETTLE: Duration = Duration::from_secs(2);

/// Serves the program that started this process, until the program ends.
fn private() -> anyhow::Result<()> {
    let line = Line::of_this_process().context("--private is for trunkline itself: standard input")?;
    let filter = EnvFilter::try_from_env("TRUNKLINE_LOG").unwrap_or_else(|_| EnvFilter::new("off"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .init();
    process::reset_umask();
    process::keep_memory_private();
    let prepared = place().and_then(|place| Ok((Settings::read(&place.config)?, place)));
    let (settings, place) = match prepared {
        Ok(prepared) => prepared,
        // The program reports it in its own way.
        Err(error) => {
            line.fail(&format!("{error:#}"));
            return Ok(());
        }
    };
    let _ = std::env::set_current_dir("/");
    let runtime = runtime()?;
    runtime.block_on(async {
        // Ctrl-C is for the program, which ends its running work and then itself.
        process::outlive_the_terminal();
        process::outlive_file_limits();
        raise_limit();
        let engine = Engine::new(settings, memory_place(&place));
        let connections = line.connections().context("listening to the program")?;
        tokio::spawn(server::run_private(connections, place, engine, SETTLE))
            .await
            .context("serving the program failed")
    })??;
    // Does not wait for a blocked thread (a name server, a pipe).
    runtime.shutdown_background();
    Ok(())
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    // A session that asks for a forwarding is sixty futures deep. Unoptimised, as in tests, they took the default 2
    // MiB. Unused stack costs no memory.
    builder.thread_stack_size(8 * 1024 * 1024);
    builder.enable_all().build().context("starting the runtime")
}

fn place() -> anyhow::Result<Place> {
    Ok(Place::find(|name| std::env::var_os(name).map(Into::into))?)
}

/// Returns the place of host memory. It is a cache: without a place only speed is lost.
fn memory_place(place: &Place) -> MemoryPlace {
    match place.make_state() {
        Ok(()) => MemoryPlace::Directory(place.state.clone()),
        Err(error) => {
            tracing::warn!("host memory is not kept: {error}");
            MemoryPlace::Process
        }
    }
}

/// Tells the process that waits for the start, and closes its pipe.
fn tell(word: &str) {
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "{word}");
    let _ = stdout.flush();
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}
