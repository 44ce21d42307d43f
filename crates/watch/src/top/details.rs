//! The details of one row, as lines.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use trunkline_control::protocol::{Activity, ConnectionReport, FailureReport};
use trunkline_text::count_of;

use super::subject::Lines;
use super::tables::{Row, asker};
use crate::model::{Host, Model};
use crate::quantity::{bytes, rate, time};

/// Returns the details of a row; `None` if it is gone.
pub(super) fn details_for(model: &Model, row: &Row) -> Option<Lines> {
    match row {
        Row::Host(sharing) => Some(host(model, model.hosts.get(sharing)?)),
        Row::Activity(id) => Some(activity(model, model.activities.get(id)?)),
        Row::Failure(at) => Some(failure(model.failures.get(*at)?)),
    }
}

/// Adds a line with this name, unless the value is empty.
pub fn line(lines: &mut Lines, name: &str, value: impl Into<String>) {
    let value = value.into();
    if !value.is_empty() {
        lines.push((name.to_owned(), value));
    }
}

fn host(model: &Model, host: &Host) -> Lines {
    let mut lines = Lines::new();
    let report = &host.report;
    line(&mut lines, "host", &report.name);
    line(&mut lines, "address", &report.address);
    line(&mut lines, "state", host.state());
    line(&mut lines, "transport", report.transport.as_str());
    line(&mut lines, "shared by", &report.sharing);
    for socket in &report.mux_sockets {
        line(&mut lines, "stock ssh", socket.display().to_string());
    }
    if let Some(master) = &report.master {
        line(&mut lines, "master", master.socket.display().to_string());
        let process = master.pid.map(|pid| pid.to_string());
        line(&mut lines, "process", process.unwrap_or_default());
    }
    let traffic = format!(
        "{}/s out, {}/s in",
        show_number(host.sent_rate),
        show_number(host.received_rate)
    );
    line(&mut lines, "traffic", traffic);
    for (number, connection) in report.connections.iter().enumerate() {
        lines.push((String::new(), String::new()));
        line(
            &mut lines,
            &format!("connection {}", number + 1),
            state(connection),
        );
        of_connection(&mut lines, model, host, connection);
    }
    let here = model
        .activities
        .values()
        .filter(|activity| activity.host == report.name);
    for (number, activity) in here.enumerate() {
        if number == 0 {
            lines.push((String::new(), String::new()));
        }
        let words = format!("{} (for {})", activity.runs, asker(activity));
        line(&mut lines, activity.kind.as_str(), words.trim_start());
    }
    lines
}

fn show_number(value: f64) -> String {
    match rate(value) {
        none if none.is_empty() => "0".into(),
        some => some,
    }
}

fn state(connection: &ConnectionReport) -> String {
    match &connection.handshake {
        None => "being made".into(),
        Some(handshake) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let up = now.saturating_sub(Duration::from_secs(handshake.since));
            format!("up for {}", time(up.max(Duration::from_secs(1))))
        }
    }
}

fn of_connection(lines: &mut Lines, model: &Model, host: &Host, connection: &ConnectionReport) {
    if let Some(handshake) = &connection.handshake {
        line(lines, "server", &handshake.server);
        let mut algorithms = format!("{}, {}, {}", handshake.kex, handshake.host_key, handshake.cipher);
        if let Some(mac) = &handshake.mac {
            algorithms.push_str(&format!(", {mac}"));
        }
        if handshake.compressed {
            algorithms.push_str(", compressed");
        }
        line(lines, "algorithms", algorithms);
        line(lines, "it said", &handshake.greeting);
    }
    line(lines, "round trip", connection.rtt.map(time).unwrap_or_default());
    let counts = [
        (connection.sessions, "session"),
        (connection.tunnels, "tunnel"),
        (u32::try_from(connection.spares).unwrap_or(u32::MAX), "spare"),
    ];
    let counts = counts.map(|(number, name)| count_of(number, name));
    line(lines, "carries", counts.join(", "));
    let moved = format!(
        "{} sent, {} received",
        bytes(connection.sent),
        bytes(connection.received)
    );
    line(lines, "bytes", moved);
    if connection.busy {
        line(lines, "traffic", "keeps new sessions away");
    }
    if let Some(left) = connection.closes_in {
        let left = left.saturating_sub(model.age(host.told));
        line(lines, "closes in", time(left.max(Duration::from_secs(1))));
    }
}

fn activity(model: &Model, activity: &Activity) -> Lines {
    let mut lines = Lines::new();
    line(&mut lines, "host", &activity.host);
    line(&mut lines, "kind", activity.kind.as_str());
    line(&mut lines, "runs", &activity.runs);
    line(&mut lines, "for", asker(activity));
    if !activity.on_behalf.is_empty() {
        line(&mut lines, "on behalf of", &activity.on_behalf);
    }
    let process = activity.asker.pid.map(|pid| pid.to_string());
    line(&mut lines, "process", process.unwrap_or_default());
    let way = if activity.asker.stock_ssh {
        "stock ssh"
    } else {
        "trunkline"
    };
    line(&mut lines, "came by", way);
    line(&mut lines, "age", time(model.age(activity.since)));
    let started = activity.started.map_or_else(|| "not yet".into(), time);
    line(&mut lines, "started in", started);
    if activity.resumed > 0 {
        let times = count_of(activity.resumed, "time");
        line(
            &mut lines,
            "carried over",
            format!("{times}, to a new connection"),
        );
    }
    if let Some(transfer) = &activity.transfer {
        let total = if transfer.counted { "" } else { " or more" };
        let moved = format!(
            "{} of {}{total}",
            bytes(transfer.bytes),
            bytes(transfer.total_bytes)
        );
        line(&mut lines, "bytes", moved);
        line(
            &mut lines,
            "rate",
            format!("{}/s", show_number(model.copy_rate(activity.id))),
        );
        let files = format!(
            "{} of {}{total}, {} failed",
            transfer.files, transfer.total_files, transfer.failed
        );
        line(&mut lines, "files", files);
        line(&mut lines, "now", &transfer.current);
    }
    lines
}

fn failure(failure: &FailureReport) -> Lines {
    let mut lines = Lines::new();
    line(&mut lines, "host", &failure.host);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ago = now
        .saturating_sub(Duration::from_secs(failure.at))
        .max(Duration::from_secs(1));
    line(&mut lines, "when", format!("{} ago", time(ago)));
    line(&mut lines, "what", failure.activity.as_str());
    line(&mut lines, "blame", failure.kind.as_str());
    line(&mut lines, "command", failure.execution.as_str());
    line(&mut lines, "why", &failure.message);
    lines
}
