//! `trunkline metrics`: the daemon's metrics for Prometheus.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use trunkline_control::protocol::{Reply, Request};

use crate::ask::{ask, unexpected_reply};
use crate::backend::{Backend, Running, runtime};

/// Arguments of `trunkline metrics`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Those of the fleet's node on this machine, and not the daemon's.
    #[arg(long)]
    pub(crate) fleet: bool,
    /// Write them to this file, which is replaced as a whole, for node_exporter's textfile collector. Where no daemon
    /// (with
    /// --fleet: no node) runs, the file is removed.
    #[arg(long, value_name = "FILE")]
    textfile: Option<PathBuf>,
    /// In the format OpenMetrics, and not in Prometheus' own.
    #[arg(long, conflicts_with = "textfile")]
    pub openmetrics: bool,
}

/// The exit status if no daemon runs, or no node.
const NOT_RUNNING: u8 = 1;

/// `trunkline metrics`.
pub(crate) fn main(args: &Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    let text = runtime()?.block_on(of_daemon(backend, args.openmetrics))?;
    args.write(text, "the daemon is not running")
}

impl Args {
    /// Prints the metrics, or writes them to the file. Without any, prints `otherwise` and removes the file.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write(&self, text: Option<String>, otherwise: &str) -> anyhow::Result<ExitCode> {
        let Some(text) = text else {
            if let Some(file) = &self.textfile
                && let Err(error) = std::fs::remove_file(file)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                return Err(error).with_context(|| format!("cannot remove {}", file.display()));
            }
            eprintln!("trunkline: {otherwise}");
            return Ok(ExitCode::from(NOT_RUNNING));
        };
        match &self.textfile {
            Some(file) => replace(file, &text).with_context(|| format!("cannot write {}", file.display()))?,
            None => std::io::stdout().write_all(text.as_bytes())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the daemon's metrics; `None` without a daemon.
async fn of_daemon(backend: &Backend, open_metrics: bool) -> anyhow::Result<Option<String>> {
    let Some(mut client) = backend.find(Running::Anywhere).await? else {
        return Ok(None);
    };
    match ask(&mut client, Request::Metrics { open_metrics }, backend).await? {
        Reply::Metrics(text) => Ok(Some(text)),
        other => Err(unexpected_reply(&other)),
    }
}

/// Replaces the file atomically.
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
