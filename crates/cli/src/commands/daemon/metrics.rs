//! `trunkline metrics`: the daemon's numbers, or those of the fleet's node on this machine, for Prometheus.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use trunkline_control::place::Place;
use trunkline_control::protocol::{Reply, Request};

use crate::ask::{ask, unexpected_reply};
use crate::backend::{Backend, Running, runtime};

/// Arguments of `trunkline metrics`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Those of the fleet's node on this machine, and not the daemon's.
    #[arg(long)]
    fleet: bool,
    /// Write them to this file, which is replaced as a whole, for node_exporter's textfile collector. Where no daemon (with
    /// --fleet: no node) runs, the file is removed.
    #[arg(long, value_name = "FILE")]
    textfile: Option<PathBuf>,
    /// In the format OpenMetrics, and not in Prometheus' own.
    #[arg(long, conflicts_with = "textfile")]
    openmetrics: bool,
}

/// The exit status where no daemon runs, or no node.
const NOT_RUNNING: u8 = 1;

/// How long a node's answer is waited for, and how long it may be.
const ANSWER: Duration = Duration::from_secs(5);
const LONGEST: u64 = 1 << 20;

/// `trunkline metrics`.
pub(crate) fn main(args: &Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    let text = runtime()?.block_on(async {
        match args.fleet {
            true => of_node(backend, args.openmetrics).await,
            false => of_daemon(backend, args.openmetrics).await,
        }
    })?;
    let Some(text) = text else {
        if let Some(file) = &args.textfile
            && let Err(error) = std::fs::remove_file(file)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(error).with_context(|| format!("cannot remove {}", file.display()));
        }
        eprintln!(
            "trunkline: {}",
            match args.fleet {
                true => "no node of a fleet runs here; `trunkline fleet join` starts one",
                false => "the daemon is not running",
            }
        );
        return Ok(ExitCode::from(NOT_RUNNING));
    };
    match &args.textfile {
        Some(file) => replace(file, &text).with_context(|| format!("cannot write {}", file.display()))?,
        None => std::io::stdout().write_all(text.as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The daemon's metrics; `None` without a daemon.
async fn of_daemon(backend: &Backend, open_metrics: bool) -> anyhow::Result<Option<String>> {
    let Some(mut client) = backend.find(Running::Anywhere).await? else {
        return Ok(None);
    };
    match ask(&mut client, Request::Metrics { open_metrics }, backend).await? {
        Reply::Metrics(text) => Ok(Some(text)),
        other => Err(unexpected_reply(&other)),
    }
}

/// The metrics on the node's socket; `None` without a node.
async fn of_node(backend: &Backend, open_metrics: bool) -> anyhow::Result<Option<String>> {
    ensure!(
        !backend.is_told_to_be_private(),
        "a private daemon has no node: leave out --no-daemon"
    );
    let place = Place::find(|name| std::env::var_os(name).map(Into::into))?;
    let socket = place.fleet_metrics();
    // One of a node that was killed refuses.
    let Ok(mut stream) = UnixStream::connect(&socket).await else {
        return Ok(None);
    };
    let accept = if open_metrics {
        "application/openmetrics-text"
    } else {
        "text/plain"
    };
    let request = format!("GET /metrics HTTP/1.0\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n");
    let mut answer = String::new();
    let asking = async {
        stream.write_all(request.as_bytes()).await?;
        stream.take(LONGEST).read_to_string(&mut answer).await
    };
    let asked = tokio::time::timeout(ANSWER, asking).await;
    asked
        .context("the node does not answer")?
        .context("the node does not answer")?;
    let (head, text) = answer
        .split_once("\r\n\r\n")
        .context("the node's answer is cut off")?;
    let status = head.lines().next().unwrap_or_default();
    ensure!(status.contains(" 200 "), "the node says {status:?}");
    Ok(Some(text.to_owned()))
}

/// Whoever reads the file sees it as it was or as it is.
fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    let directory = match file.parent() {
        Some(directory) if directory != Path::new("") => directory,
        _ => Path::new("."),
    };
    let mut new = tempfile::NamedTempFile::new_in(directory)?;
    new.write_all(text.as_bytes())?;
    // node_exporter reads it as another user.
    new.as_file().set_permissions(Permissions::from_mode(0o644))?;
    new.persist(file)?;
    Ok(())
}
