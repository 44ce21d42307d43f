//! `trunkline ls`: the connections, once or as they change.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use trunkline_control::protocol::{HostReport, MasterAction, Reply, Request};
use trunkline_request::World;
use trunkline_request::hosts::Target;

use super::{all_masters, masters};
use crate::ask::{ask, unexpected_reply};
use crate::backend::{Backend, Running, runtime};
use crate::commands::run::ManyHosts;
use crate::duration;
use crate::report::connections;
use crate::report::fold;
use crate::terminal::interrupts::Interrupts;
use crate::terminal::{can_be_drawn_on, size};

/// Arguments of `trunkline ls`.
#[derive(Debug, clap::Args)]
// -w is --watch here.
#[command(mut_arg("hosts", |hosts| hosts.visible_short_alias(None)))]
pub(crate) struct Args {
    /// List only these hosts, written as for -H.
    #[arg(value_name = "HOST")]
    destinations: Vec<String>,
    #[command(flatten)]
    many: ManyHosts,
    /// Find ssh's own ControlMasters by the ControlPaths of this ssh_config file instead of the user's and the
    /// system's.
    #[arg(short = 'F', value_name = "FILE")]
    config: Option<OsString>,
    /// Print one JSON document; with --watch, one on each line.
    #[arg(long)]
    json: bool,
    /// Refresh every 2 seconds, or as often as TIME says, until Ctrl-C.
    #[arg(short, long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "2",
        value_parser = duration::parse_within(Duration::from_secs(1)..=Duration::from_secs(86_400)))]
    watch: Option<Duration>,
}

/// `trunkline ls`.
pub(crate) fn main(mut args: Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    args.many.add(std::mem::take(&mut args.destinations));
    let args = &args;
    runtime()?.block_on(async {
        match args.watch {
            Some(pause) => watch(args, pause, backend).await?,
            None => {
                let (hosts, missing) = hosts(args, backend).await?;
                let mut out = io::stdout();
                if args.json {
                    serde_json::to_writer_pretty(&mut out, &hosts)?;
                    writeln!(out)?;
                } else {
                    write!(out, "{}", table(&hosts))?;
                }
                if !missing.is_empty() {
                    crate::report::tell(format_args!("{}: no connection", fold::fold(missing)));
                    return Ok(ExitCode::from(crate::OWN_ERROR));
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Returns the hosts with connections in natural order, and the requested names that have none.
async fn hosts(args: &Args, backend: &Backend) -> anyhow::Result<(Vec<HostReport>, Vec<String>)> {
    let mut hosts = match backend.find(Running::Anywhere).await? {
        None => Vec::new(),
        Some(mut client) => match ask(&mut client, Request::List, backend).await? {
            Reply::Hosts(hosts) => hosts,
            other => return Err(unexpected_reply(&other)),
        },
    };
    let of = all_masters(args.config.clone())?;
    let found = masters(of, MasterAction::Look, backend).await?;
    for report in found.into_iter().map(|found| found.report) {
        // The daemon may use a master of the user's own and have reported it.
        let socket = report.master.as_ref().map(|master| &master.socket);
        if !hosts
            .iter()
            .any(|host| host.master.as_ref().map(|master| &master.socket) == socket)
        {
            hosts.push(report);
        }
    }
    hosts.sort_by_cached_key(|host| (fold::natural(&host.name), host.address.clone()));
    if !args.many.are_given() {
        return Ok((hosts, Vec::new()));
    }
    let names: Vec<String> = hosts.iter().map(|host| host.name.clone()).collect();
    let config_file = args.config.as_deref();
    let world = World::current()?;
    let selection = args
        .many
        .selection_among(&names, config_file, &world, backend)
        .await?;
    let is =
        |target: &Target, host: &HostReport| host.name == target.name || host.name == target.destination.host;
    let mut missing = selection.targets.clone();
    missing.retain(|target| !hosts.iter().any(|host| is(target, host)));
    hosts.retain(|host| selection.targets.iter().any(|target| is(target, host)));
    Ok((hosts, missing.into_iter().map(|target| target.name).collect()))
}

fn table(hosts: &[HostReport]) -> String {
    if hosts.is_empty() {
        return "no connections\n".into();
    }
    connections::table(hosts, size(io::stdout()).map(|(columns, _)| columns))
}

/// Shows the connections repeatedly, on a terminal's alternate screen, until a signal arrives.
async fn watch(args: &Args, pause: Duration, backend: &Backend) -> anyhow::Result<()> {
    let mut interrupts = Interrupts::watch()?;
    let mut screen = Screen::open(!args.json)?;
    let mut ticks = tokio::time::interval(pause);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        if interrupts.or(ticks.tick()).await.is_err() {
            return screen.close();
        }
        // A daemon that does not answer does not keep the user from leaving.
        let Ok(hosts) = interrupts.or(hosts(args, backend)).await else {
            return screen.close();
        };
        let (hosts, _) = hosts?;
        if args.json {
            let mut out = io::stdout();
            serde_json::to_writer(&mut out, &hosts)?;
            writeln!(out)?;
            out.flush()?;
        } else {
            screen.show(table(&hosts))?;
        }
    }
}

/// The place of a changing table: the terminal's alternate screen, which keeps the main one intact. Elsewhere tables
/// follow each other.
struct Screen {
    is_terminal: bool,
    shown: String,
}

impl Screen {
    fn open(wanted: bool) -> io::Result<Self> {
        let mut out = io::stdout();
        let is_terminal = wanted && can_be_drawn_on(&out);
        if is_terminal {
            out.write_all(b"\x1b[?1049h\x1b[?25l\x1b[2J")?;
            out.flush()?;
        }
        Ok(Self {
            is_terminal,
            shown: String::new(),
        })
    }

    fn show(&mut self, table: String) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if self.is_terminal {
            let rows = size(&out).map_or(usize::MAX, |(_, rows)| rows.into());
            let lines: Vec<&str> = table.lines().collect();
            let fits = if lines.len() > rows {
                rows.saturating_sub(1)
            } else {
                lines.len()
            };
            let mut text = String::from("\x1b[H");
            text.push_str(&lines[..fits].join("\x1b[K\r\n"));
            text.push_str("\x1b[K");
            if fits < lines.len() {
                text.push_str(&format!("\r\nand {} more\x1b[K", lines.len() - fits));
            }
            text.push_str("\x1b[J");
            out.write_all(text.as_bytes())?;
        } else {
            if !self.shown.is_empty() {
                writeln!(out)?;
            }
            out.write_all(table.as_bytes())?;
        }
        self.shown = table;
        out.flush()
    }

    /// Leaves the last table on the main screen.
    fn close(&mut self) -> anyhow::Result<()> {
        self.leave()?;
        if std::mem::take(&mut self.is_terminal) {
            io::stdout().write_all(self.shown.as_bytes())?;
        }
        Ok(())
    }

    fn leave(&self) -> io::Result<()> {
        if !self.is_terminal {
            return Ok(());
        }
        let mut out = io::stdout();
        out.write_all(b"\x1b[?25h\x1b[?1049l")?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // An error is printed on the main screen.
        let _ = self.leave();
    }
}
