//! `trunkline daemon`, which runs `trunklined`, and the commands about the daemon: `status`, `settings` and `metrics`.

pub(crate) mod metrics;
pub(crate) mod settings;
pub(crate) mod status;

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use trunkline_control::program;

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

/// Executes the daemon.
pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let argument = if args.detach { "--detach" } else { "--foreground" };
    let program = program::find()?;
    let error = Command::new(&program).arg(argument).exec();
    Err(error).with_context(|| format!("running {}", program.display()))
}
