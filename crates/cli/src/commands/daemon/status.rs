//! `trunkline status`: the state of the daemon itself.

use std::io::Write as _;
use std::process::ExitCode;

use trunkline_control::protocol::{DaemonStatus, Reply, Request};
use trunkline_text::{Printable, count_of};

use crate::ask::{ask, unexpected_reply};
use crate::backend::{Backend, Running, place, runtime};
use crate::report::connections::{age, bytes};

/// Arguments of `trunkline status`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// The exit status if no daemon runs.
const NOT_RUNNING: u8 = 1;

/// `trunkline status`.
pub(crate) fn main(args: &Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    let status = runtime()?.block_on(async {
        let Some(mut client) = backend.find(Running::Anywhere).await? else {
            return Ok(None);
        };
        match ask(&mut client, Request::Status, backend).await? {
            Reply::Status(status) => Ok(Some(*status)),
            other => Err(unexpected_reply(&other)),
        }
    })?;
    let mut out = std::io::stdout();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &status)?;
        writeln!(out)?;
    } else if let Some(status) = &status {
        write!(out, "{}", render(status))?;
    } else {
        writeln!(
            out,
            "the daemon is not running; the next command that needs it starts it"
        )?;
        writeln!(
            out,
            "socket  {}",
            Printable::line(place()?.socket().display().to_string())
        )?;
    }
    Ok(match status {
        Some(_) => ExitCode::SUCCESS,
        None => ExitCode::from(NOT_RUNNING),
    })
}

/// Returns a line for each fact, with a final newline.
fn render(status: &DaemonStatus) -> String {
    let load = &status.load;
    let open = status.descriptors;
    let sockets = match status.mux_sockets.len() {
        0 => "none".to_owned(),
        _ => {
            let shown = status.mux_sockets.iter().map(|path| path.display().to_string());
            shown.collect::<Vec<_>>().join("\n             ")
        }
    };
    let rows = [
        (
            "process",
            format!("{}, running for {}", status.pid, age(status.since)),
        ),
        (
            "version",
            format!("{}, protocol {}", status.version, status.protocol),
        ),
        ("memory", status.memory.map_or_else(|| "unknown".into(), bytes)),
        (
            "descriptors",
            status
                .descriptor_limit
                .map_or_else(|| open.to_string(), |limit| format!("{open} of {limit}")),
        ),
        (
            "load",
            [
                count_of(load.connections, "connection"),
                format!("to {}", count_of(load.hosts, "host")),
            ]
            .join(" ")
                + &format!(
                    ", {}, {}",
                    count_of(load.sessions, "session"),
                    count_of(load.tunnels, "tunnel")
                ),
        ),
        ("socket", status.socket.display().to_string()),
        ("stock ssh", sockets),
        ("log", status.log.display().to_string()),
        ("settings", settings(status)),
    ];
    rows.iter()
        .map(|(name, value)| format!("{name:<13}{}\n", Printable::text(value)))
        .collect()
}

/// Returns the file, and the settings that differ from their defaults.
fn settings(status: &DaemonStatus) -> String {
    let mut lines = vec![status.config.display().to_string()];
    let set = status
        .settings
        .iter()
        .filter(|setting| setting.value != setting.default);
    lines.extend(set.map(|setting| format!("{} = {}", setting.key, setting.value)));
    if lines.len() == 1 {
        lines.push("all have their defaults".into());
    }
    lines.join("\n             ")
}

#[cfg(test)]
mod tests {
    use trunkline_control::protocol::{DaemonLoad, SettingReport};

    use super::*;

    #[test]
    fn each_thing_has_a_line() {
        let status = DaemonStatus {
            pid: 42,
            version: "1.2.3".into(),
            protocol: 9,
            // In the future, so that the age is always 0 s.
            since: u64::MAX,
            memory: Some(12 << 20),
            descriptors: 31,
            descriptor_limit: Some(1024),
            socket: "/run/t/control.sock".into(),
            mux_sockets: vec!["/run/t/mux/a".into(), "/run/t/mux/b".into()],
            log: "/s/daemon.log".into(),
            config: "/c/config.toml".into(),
            load: DaemonLoad {
                hosts: 1,
                connections: 2,
                sessions: 3,
                tunnels: 0,
            },
            settings: [("max_lanes", "4"), ("handshakes", "64")]
                .map(|(key, value)| SettingReport {
                    key: key.into(),
                    value: value.into(),
                    default: "64".into(),
                    meaning: String::new(),
                })
                .into(),
        };
        insta::assert_snapshot!(render(&status));
    }
}
