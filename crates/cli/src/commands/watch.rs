//! `trunkline top` and `trunkline serve-ui`, which run `trunkline-watch`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;

use super::become_part;
use crate::backend::Backend;
use crate::duration;

/// The limits of the interval between updates. A terminal cannot show more, and an older page is not live.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(60);

/// Arguments of `trunkline top`.
#[derive(Debug, clap::Args)]
pub struct TopArgs {
    /// Show the fleet that this machine belongs to, and not the daemon.
    #[arg(long)]
    pub(crate) fleet: bool,
    /// The time between two updates, from 100ms to 1m.
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = duration::parse_within(SHORTEST..=LONGEST))]
    pub interval: Duration,
}

/// Arguments of `trunkline serve-ui`.
#[derive(Debug, clap::Args)]
pub struct ServeUiArgs {
    /// Show the fleet that this machine belongs to, and not the daemon.
    #[arg(long)]
    pub(crate) fleet: bool,
    /// The time between two updates, from 100ms to 1m.
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = duration::parse_within(SHORTEST..=LONGEST))]
    pub interval: Duration,
    /// The port on 127.0.0.1; 0 for any that is free.
    #[arg(long, value_name = "PORT", default_value = "0")]
    pub port: u16,
}

/// Executes the program that shows the daemon in the terminal.
pub(crate) fn top(args: &TopArgs, backend: &Backend) -> anyhow::Result<ExitCode> {
    become_watch("top", args.interval, &[], backend)
}

/// Executes the program that shows the daemon on a web page.
pub(crate) fn serve_ui(args: &ServeUiArgs, backend: &Backend) -> anyhow::Result<ExitCode> {
    let port = args.port.to_string();
    become_watch("serve-ui", args.interval, &["--port", &port], backend)
}

fn become_watch(
    command: &str,
    interval: Duration,
    more: &[&str],
    backend: &Backend,
) -> anyhow::Result<ExitCode> {
    ensure!(
        !backend.is_told_to_be_private(),
        "{command} shows the shared daemon: leave out --no-daemon"
    );
    let interval = interval.as_secs_f64().to_string();
    let words = [command, "--interval", &interval];
    become_part("trunkline-watch", words.iter().chain(more))
}
