//! `trunkline metrics`: the daemon's numbers, for Prometheus.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use trunkline_control::protocol::{Reply, Request};

use crate::backend::{Backend, runtime};
use crate::commands::hosts::{ask, unexpected};

/// Arguments of `trunkline metrics`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write them to this file, which is replaced as a whole, for node_exporter's textfile collector. Where no daemon runs,
    /// the file is removed.
    #[arg(long, value_name = "FILE")]
    textfile: Option<PathBuf>,
    /// In the format OpenMetrics, and not in Prometheus' own.
    #[arg(long, conflicts_with = "textfile")]
    openmetrics: bool,
}

/// The exit status where no daemon runs.
const NOT_RUNNING: u8 = 1;

/// `trunkline metrics`.
pub(crate) fn main(args: &Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    let open_metrics = args.openmetrics;
    let text = runtime()?.block_on(async {
        let Some(mut client) = backend.connect_to_look().await? else {
            return Ok(None);
        };
        match ask(&mut client, Request::Metrics { open_metrics }, backend).await? {
            Reply::Metrics(text) => Ok(Some(text)),
            other => Err(unexpected(&other)),
        }
    })?;
    let Some(text) = text else {
        if let Some(file) = &args.textfile
            && let Err(error) = std::fs::remove_file(file)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(error).with_context(|| format!("cannot remove {}", file.display()));
        }
        eprintln!("trunkline: the daemon is not running");
        return Ok(ExitCode::from(NOT_RUNNING));
    };
    match &args.textfile {
        Some(file) => replace(file, &text).with_context(|| format!("cannot write {}", file.display()))?,
        None => std::io::stdout().write_all(text.as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Whoever reads the file sees it as it was or as it is.
fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    let folder = match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    new.write_all(text.as_bytes())?;
    // node_exporter reads it as another user.
    new.as_file().set_permissions(Permissions::from_mode(0o644))?;
    new.persist(file)?;
    Ok(())
}
