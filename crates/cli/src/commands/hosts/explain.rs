//! `trunkline explain`: how a host resolves, its settings and its connections.

use std::io;
use std::process::ExitCode;

use serde_json::json;
use trunkline_control::protocol::{
    Departure, Explanation, Handshake, MasterReport, MasterState, Reply, Request, Transport,
};
use trunkline_request::hosts::Target;
use trunkline_text::{Printable, count_of};

use super::{HostArgs, which_hosts};
use crate::ask::{ask, unexpected_reply};
use crate::backend::{Backend, Daemon, runtime};
use crate::report::connections::{age, bytes, milliseconds, span, state};
use crate::report::grid::wrapped_list;
use crate::terminal;

/// Arguments of `trunkline explain`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "trunkline explain [OPTIONS] <HOST>...")]
#[command(group(which_hosts()))]
pub(crate) struct Args {
    #[command(flatten)]
    hosts: HostArgs,
    /// Show also what a request must have in common with this one to share its connections, and lists in full.
    #[arg(long)]
    all: bool,
    /// Print one JSON document, which has everything; of several hosts, one on each line.
    #[arg(long)]
    json: bool,
    /// Forget what earlier connections to the host have shown.
    #[arg(long, conflicts_with_all = ["all", "json"])]
    forget: bool,
}

/// `trunkline explain`.
pub(crate) fn main(args: Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    let Args {
        hosts,
        all,
        json,
        forget,
    } = args;
    let width = terminal::width(io::stdout());
    runtime()?.block_on(async {
        let hosts = &hosts.find(false, backend).await?;
        // Connects once first, so that a problem of this machine is reported once and not for each host.
        drop(backend.connect(Daemon::Usual).await?);
        let explain = async |_, target: &Target| {
            let request = hosts.request(target);
            let mut client = backend.connect(Daemon::Usual).await?;
            if forget {
                return match ask(&mut client, Request::Forget(request), backend).await? {
                    Reply::Done => Ok(format!(
                        "forgot what was learnt of {}\n",
                        Printable::line(&target.name)
                    )),
                    other => Err(unexpected_reply(&other)),
                };
            }
            let explained = match ask(&mut client, Request::Explain(request), backend).await? {
                Reply::Explained(explained) => explained,
                other => return Err(unexpected_reply(&other)),
            };
            let apart = backend.reason_not_asked();
            let apart = apart.as_deref();
            Ok(match (json, hosts.is_one()) {
                (true, true) => serde_json::to_string_pretty(&document(&explained, apart))? + "\n",
                (true, false) => {
                    let mut document = document(&explained, apart);
                    document["host"] = json!(target.name);
                    document.to_string() + "\n"
                }
                (false, true) => text(&explained, apart, all, width),
                (false, false) => {
                    let text = text(&explained, apart, all, width);
                    format!("{}: {text}\n", Printable::line(&target.name))
                }
            })
        };
        hosts.each(backend, usize::MAX, explain).await
    })
}

/// The length of a value that is shown without --all.
const LONGEST_VALUE: usize = 100;

/// Returns the text for display, with a final newline. Text from servers and files is made printable.
fn text(explained: &Explanation, apart: Option<&str>, all: bool, width: Option<u16>) -> String {
    let mut lines = vec![explained.address.clone()];
    lines.extend(apart.map(|why| format!("{why}: commands from here make connections of their own")));
    match explained.transport {
        Transport::Native => lines.push("transport: native".into()),
        Transport::OpenSsh => lines.push("transport: openssh; reason:".into()),
    }
    lines.extend(explained.reasons.iter().map(|reason| format!("  {reason}")));
    let none = |is_empty: bool, word: &str| {
        if is_empty {
            format!(" {word}")
        } else {
            String::new()
        }
    };
    lines.push(format!(
        "connections:{}",
        none(
            explained.connections.is_empty() && explained.master.is_none(),
            "none"
        )
    ));
    lines.extend(
        explained
            .master
            .as_ref()
            .map(|master| format!("  {}", master_line(master))),
    );
    for connection in &explained.connections {
        lines.push(format!("  {}", connection_line(explained, connection)));
        if let Some(handshake) = &connection.handshake {
            lines.push(format!("    {}", agreed_algorithms(handshake)));
            lines.push(format!(
                "    logged in with {}; host key {}",
                handshake.log_in, handshake.host_key_check
            ));
        }
    }
    lines.push(format!(
        "different from ssh's defaults:{}",
        none(explained.departures.is_empty(), "nothing")
    ));
    lines.extend(
        explained
            .departures
            .iter()
            .map(|departure| departure_line(departure, all)),
    );
    lines.push(format!(
        "host memory:{}",
        none(explained.memory.is_empty(), "nothing yet")
    ));
    lines.extend(
        explained
            .memory
            .iter()
            .map(|(name, value)| format!("  {name}: {value}")),
    );
    if all {
        lines.push(format!(
            "shares connections with requests for which all of this is the same (key {}):",
            explained.sharing_key
        ));
        let shown = |pairs: &[(String, String)]| -> Vec<String> {
            let set = pairs.iter().filter(|(_, value)| !value.is_empty());
            set.map(|(name, value)| format!("  {name}: {value}")).collect()
        };
        lines.extend(shown(&explained.sharing));
        lines.push("uses only connections that were logged in to as this allows:".into());
        lines.extend(shown(&explained.log_in));
    } else {
        lines.push(format!(
            "shares connections with requests of the same key, {} (--all shows what is in it)",
            explained.sharing_key
        ));
    }
    lines
        .iter()
        .map(|line| Printable::line(line).into_string())
        .map(|line| wrapped_list(&line, 2, width) + "\n")
        .collect()
}

/// Describes a connection.
fn connection_line(
    explained: &Explanation,
    connection: &trunkline_control::protocol::ConnectionReport,
) -> String {
    let mut parts = vec![state(connection, explained.pinned).to_owned()];
    if let Some(handshake) = &connection.handshake {
        parts.push(format!("up for {}", age(handshake.since)));
    }
    if let Some(left) = connection.closes_in {
        parts.push(format!("closes in {}", span(left.as_secs())));
    }
    if let Some(rtt) = connection.rtt {
        parts.push(format!("round trip {}", milliseconds(rtt)));
    }
    parts.push(format!(
        "{}, {}, {} opened ahead",
        count_of(connection.sessions, "session"),
        count_of(connection.tunnels, "tunnel"),
        connection.spares
    ));
    parts.push(format!(
        "{} sent, {} received",
        bytes(connection.sent),
        bytes(connection.received)
    ));
    parts.join(", ")
}

fn master_line(master: &MasterReport) -> String {
    let mut parts = vec![match master.state {
        MasterState::Alive => "the system's ssh".to_owned(),
        other => format!("the system's ssh, {}", other.as_str()),
    }];
    parts.extend(master.pid.map(|pid| format!("process {pid}")));
    parts.extend(master.since.map(|since| format!("up for {}", age(since))));
    parts.extend(master.sessions.map(|sessions| count_of(sessions, "session")));
    parts.push(master.socket.display().to_string());
    parts.join(", ")
}

fn agreed_algorithms(handshake: &Handshake) -> String {
    let mut parts = vec![
        handshake.server.clone(),
        handshake.kex.clone(),
        handshake.host_key.clone(),
        handshake.cipher.clone(),
    ];
    parts.extend(handshake.mac.clone());
    if handshake.compressed {
        parts.push("compressed".into());
    }
    parts.join(", ")
}

/// Describes a setting as a line of ssh_config, with its usual value.
fn departure_line(
    Departure {
        keyword,
        values,
        usual,
    }: &Departure,
    all: bool,
) -> String {
    let shown = |values: &[String]| match values {
        [] => "nothing".to_owned(),
        values => values.join(" "),
    };
    let (value, usual) = (shown(values), shown(usual));
    let cut = |text: String| match text.char_indices().nth(LONGEST_VALUE) {
        Some((end, _)) if !all => format!("{}…", &text[..end]),
        _ => text,
    };
    format!("  {keyword} {} (default: {})", cut(value), cut(usual))
}

fn document(explained: &Explanation, apart: Option<&str>) -> serde_json::Value {
    let map = |pairs: &[(String, String)]| {
        let pairs = pairs.iter().map(|(name, value)| (name.clone(), json!(value)));
        serde_json::Value::Object(pairs.collect())
    };
    json!({
        "address": explained.address,
        "transport": explained.transport,
        "reasons": explained.reasons,
        "apart": apart,
        "pinned": explained.pinned,
        "connections": explained.connections,
        "master": explained.master,
        "differences": explained.departures,
        "memory": map(&explained.memory),
        "sharing_key": explained.sharing_key,
        "sharing": map(&explained.sharing),
        "log_in": map(&explained.log_in),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::connections::tests::idle_connection;
    use crate::report::forms::forms;

    fn explanation() -> Explanation {
        Explanation {
            address: "jo@web1.example:2222".into(),
            transport: Transport::Native,
            reasons: Vec::new(),
            departures: vec![
                Departure {
                    keyword: "port".into(),
                    values: vec!["2222".into()],
                    usual: vec!["22".into()],
                },
                Departure {
                    keyword: "ciphers".into(),
                    values: vec!["aes128-gcm@openssh.com,".repeat(10)],
                    usual: Vec::new(),
                },
            ],
            pinned: false,
            sharing: vec![("user".into(), "jo".into()), ("proxy".into(), String::new())],
            log_in: vec![("stricthostkeychecking".into(), "ask".into())],
            sharing_key: "0123456789abcdef".into(),
            memory: vec![("server".into(), "SSH-2.0-\u{1b}[2J".into())],
            connections: vec![idle_connection()],
            master: None,
        }
    }

    #[test]
    fn an_explanation_has_what_is_there_and_what_is_unusual() {
        insta::assert_snapshot!(forms(|width, _| text(&explanation(), None, false, width)));
    }

    #[test]
    fn all_of_it_has_what_decides_who_shares() {
        let apart = Some("the daemon runs in a different mount namespace from this program");
        insta::assert_snapshot!(forms(|width, _| text(&explanation(), apart, true, width)));
    }
}
