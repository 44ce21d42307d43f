//! The list of reachable hosts.

use std::collections::BTreeMap;

use trunkline_text::Printable;

use crate::call::{Call, Problem};
use crate::tools::Done;
use crate::{answers, arguments, hosts};

/// The most hosts in one answer.
const MOST: usize = 200;

/// Lists the hosts in the rules, those of ssh_config that match patterns, and those with connections.
pub(crate) async fn list(call: &Call<'_>, arguments: arguments::Hosts) -> Result<Done, Problem> {
    let (names, patterns) = call.rules.hosts();
    let mut all: BTreeMap<String, ()> = names.iter().map(|name| ((*name).to_owned(), ())).collect();
    for pattern in &patterns {
        for alias in call.state.hosts.aliases(pattern, call.rules).await? {
            all.insert(alias, ());
        }
    }
    let connected = call.state.hosts.connected_hosts().await?;
    for report in &connected {
        all.insert(report.name.clone(), ());
    }
    let mut listed = Vec::new();
    for name in all.keys().filter(|name| name.contains(&arguments.filter)) {
        let Ok(destination) = hosts::destination(name) else {
            continue;
        };
        if !call.rules.knows(&destination) {
            continue;
        }
        let report = connected.iter().find(|report| report.name == *name);
        let connections = report
            .map(|report| report.connections.as_slice())
            .unwrap_or_default();
        let live: Vec<_> = connections.iter().filter(|one| one.handshake.is_some()).collect();
        let round_trip = live.iter().filter_map(|one| one.rtt).min();
        listed.push(answers::Host {
            host: name.clone(),
            connected: !live.is_empty() || report.is_some_and(|report| report.master.is_some()),
            address: report
                .map(|report| Printable::line(&report.address).into_string())
                .unwrap_or_default(),
            round_trip_ms: round_trip.map(|time| (time.as_secs_f64() * 1e5).round() / 1e2),
            rules: call.rules.describe_for(&destination),
        });
    }
    let more = listed.len() > MOST;
    listed.truncate(MOST);
    let mut text = String::new();
    for host in &listed {
        let state = match (host.connected, host.round_trip_ms) {
            (true, Some(time)) => format!("connected, {time} ms"),
            (true, None) => "connected".into(),
            (false, _) => "not connected".into(),
        };
        text.push_str(&format!("{}: {state}\n", host.host));
        for rule in &host.rules {
            text.push_str(&format!("  {rule}\n"));
        }
    }
    if !patterns.is_empty() {
        text.push_str(&format!(
            "Any host that matches {} may be named, too.\n",
            patterns.join(" ")
        ));
    }
    if listed.is_empty() && patterns.is_empty() {
        text.push_str("No host may be reached.\n");
    }
    let answer = answers::Hosts {
        hosts: listed,
        patterns: patterns.into_iter().map(str::to_owned).collect(),
        rules: call.rules.path().display().to_string(),
        more,
    };
    Done::new(text, &answer)
}
