//! `trunkline top` and `trunkline serve-ui`, which are `trunkline-watch`.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use trunkline_control::program;

use crate::backend::Backend;
use crate::duration;

/// Between two updates. A terminal shows no more of them, and a page that is this old is not live.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(60);

/// Arguments of `trunkline top`.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Show the fleet that this machine belongs to, and not the daemon.
    #[arg(long)]
    fleet: bool,
    /// The time between two updates, from 100ms to 1m.
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = duration::parse_within(SHORTEST..=LONGEST))]
    interval: Duration,
}

/// Arguments of `trunkline serve-ui`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeUiArgs {
    /// Show the fleet that this machine belongs to, and not the daemon.
    #[arg(long)]
    fleet: bool,
    /// The time between two updates, from 100ms to 1m.
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = duration::parse_within(SHORTEST..=LONGEST))]
    interval: Duration,
    /// The port on 127.0.0.1; 0 for any that is free.
    #[arg(long, value_name = "PORT", default_value = "0")]
    port: u16,
}

/// Becomes the program that shows the daemon or the fleet in the terminal.
pub(crate) fn top(args: &TopArgs, backend: &Backend) -> anyhow::Result<ExitCode> {
    become_watch("top", args.interval, args.fleet, &[], backend)
}

/// Becomes the program that shows them on a page.
pub(crate) fn serve_ui(args: &ServeUiArgs, backend: &Backend) -> anyhow::Result<ExitCode> {
    let port = args.port.to_string();
    become_watch("serve-ui", args.interval, args.fleet, &["--port", &port], backend)
}

fn become_watch(
    command: &str,
    interval: Duration,
    fleet: bool,
    more: &[&str],
    backend: &Backend,
) -> anyhow::Result<ExitCode> {
    ensure!(
        !backend.is_told_to_be_private(),
        "{command} shows the shared daemon and the fleet: leave out --no-daemon"
    );
    let program = program::find_watch()?;
    let error = Command::new(&program)
        .args([command, "--interval", &interval.as_secs_f64().to_string()])
        .args(fleet.then_some("--fleet"))
        .args(more)
        .exec();
    Err(error).with_context(|| format!("running {}", program.display()))
}
