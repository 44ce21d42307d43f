//! A fleet as a subject of tables.

use std::cmp::Ordering;
use std::time::Duration;

use ratatui::style::Color;
use ratatui::text::{Line, Span};
use trunkline_fleet::report::{FleetUpdate, JobReport, MoveReport, NodeReport, NodeState, StreamReport};
use trunkline_text::count_of;
use trunkline_watch::table::{BOLD, Column, Lines, Palette, Subject, bar, line, natural, number, text};
use trunkline_watch::{News, time};

use super::model::FleetModel;

/// The selected table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum View {
    #[default]
    Nodes,
    Shards,
    Moves,
    Jobs,
    Streams,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Row {
    Node(String),
    /// A node's shards of a site, or its free ones.
    Shards(Option<String>, Option<String>),
    Move(u64),
    Job(String),
    Stream(String),
}

const NODES: &[Column] = &[
    text("NODE", 0, 0),
    text("SITE", 12, 0),
    text("STATE", 10, 0),
    number("SHARDS", 6, 0),
    number("RUNNING", 7, 0),
    number("HEARD", 7, 0),
    text("VERSION", 9, 0),
    text("TROUBLE", 60, 140),
];

const SHARDS: &[Column] = &[
    text("SITE", 14, 0),
    text("NODE", 0, 0),
    text("STATE", 10, 0),
    number("SHARDS", 6, 0),
    text("OF THE SITE", 24, 0),
    number("MOVED", 7, 90),
];

const MOVES: &[Column] = &[
    number("AGO", 7, 0),
    text("SITE", 12, 0),
    number("SHARDS", 6, 0),
    text("FROM", 0, 0),
    text("TO", 0, 0),
    text("REASON", 12, 0),
];

const JOBS: &[Column] = &[
    number("AGE", 6, 0),
    text("JOB", 12, 0),
    text("STATE", 9, 0),
    text("DONE", 8, 0),
    number("HOSTS", 6, 0),
    number("RUN", 4, 0),
    number("OK", 6, 0),
    number("FAILED", 6, 0),
    number("NOT RUN", 7, 0),
    number("MAYBE", 5, 0),
    text("SUBMITTER", 14, 110),
    text("FIRST FAILURE", 0, 130),
];

const STREAMS: &[Column] = &[
    number("AGE", 6, 0),
    text("STREAM", 12, 0),
    text("STATE", 9, 0),
    number("HOSTS", 6, 0),
    number("RUN", 6, 0),
    number("ENDED", 6, 0),
    number("REFUSED", 7, 0),
    number("RESTARTS", 8, 0),
    text("NODES", 0, 0),
    text("SUBMITTER", 14, 110),
    text("FIRST REFUSAL", 0, 130),
];

impl Subject for FleetModel {
    type View = View;
    type Row = Row;
    type Update = FleetUpdate;

    const VIEWS: &'static [View] = &[View::Nodes, View::Shards, View::Moves, View::Jobs, View::Streams];

    fn learn(&mut self, news: News<FleetUpdate>) {
        self.take(news);
    }

    fn name(view: View) -> &'static str {
        match view {
            View::Nodes => "Nodes",
            View::Shards => "Shards",
            View::Moves => "Moves",
            View::Jobs => "Jobs",
            View::Streams => "Streams",
        }
    }

    fn columns(view: View) -> &'static [Column] {
        match view {
            View::Nodes => NODES,
            View::Shards => SHARDS,
            View::Moves => MOVES,
            View::Jobs => JOBS,
            View::Streams => STREAMS,
        }
    }

    fn nothing(view: View) -> &'static str {
        match view {
            View::Nodes => "There is no node: `trunkline fleet join` makes a machine one.",
            View::Shards => "No node has taken a shard yet.",
            View::Moves => "No shard has moved since this was opened.",
            View::Jobs => "The fleet keeps no job.",
            View::Streams => "The fleet keeps no stream.",
        }
    }

    fn count(&self, view: View) -> usize {
        match view {
            View::Nodes => self.nodes.len(),
            View::Shards => self.zones.values().map(|zone| zone.owners.len()).sum(),
            View::Moves => self.moves.len(),
            View::Jobs => self.jobs.len(),
            View::Streams => self.streams.len(),
        }
    }

    fn select(&self, view: View, column: &str, has: impl Fn(&[&str]) -> bool) -> Vec<Row> {
        match view {
            View::Nodes => nodes(self, column, has),
            View::Shards => shards(self, column, has),
            View::Moves => moves(self, column, has),
            View::Jobs => jobs(self, column, has),
            View::Streams => streams(self, column, has),
        }
    }

    fn cell(&self, row: &Row, column: &Column, _: u64) -> String {
        match row {
            Row::Node(name) => self.nodes.get(name).map(|node| of_node(self, node, column.name)),
            Row::Shards(site, node) => Some(of_shards(self, site, node.as_deref(), column.name)),
            Row::Move(id) => {
                let moved = self.moves.iter().find(|moved| moved.id == *id);
                moved.map(|moved| of_move(self, moved, column.name))
            }
            Row::Job(job) => self.jobs.get(job).map(|job| of_job(self, job, column.name)),
            Row::Stream(stream) => {
                let stream = self.streams.get(stream);
                stream.map(|stream| of_stream(self, stream, column.name))
            }
        }
        .unwrap_or_default()
    }

    fn details(&self, row: &Row) -> Option<Lines> {
        match row {
            Row::Node(name) => Some(about_node(self, self.nodes.get(name)?)),
            Row::Shards(site, node) => Some(about_shards(self, site, node.as_deref())),
            Row::Move(id) => {
                let moved = self.moves.iter().find(|moved| moved.id == *id);
                Some(about_move(self, moved?))
            }
            Row::Job(job) => Some(about_job(self, self.jobs.get(job)?)),
            Row::Stream(stream) => Some(about_stream(self, self.streams.get(stream)?)),
        }
    }

    fn summary(&self, palette: Palette) -> [Line<'static>; 2] {
        let mut first = vec![Span::styled("trunkline", BOLD)];
        if !self.fleet.name.is_empty() {
            let words = format!("  fleet {} at {}", self.fleet.name, self.fleet.servers);
            first.push(Span::raw(words));
        }
        let alarm = palette.style(Color::Red).patch(BOLD);
        let second = match (&self.lost, self.fleet.cut_off, &self.fleet.frozen) {
            (Some(why), ..) => Line::styled(format!("Waiting: {why}"), alarm),
            (None, Some(seconds), _) => {
                let ago = time(Duration::from_secs(seconds.max(1)));
                let words = format!("NATS has not answered for {ago}: this is the fleet as it was then");
                Line::styled(words, alarm)
            }
            (None, None, Some(why)) => Line::styled(format!("Frozen: {why}"), alarm),
            (None, None, None) => Line::raw(totals(self)),
        };
        [Line::from(first), second]
    }
}

fn totals(model: &FleetModel) -> String {
    let totals = model.totals();
    let others = [
        (totals.draining, "draining"),
        (totals.in_trouble, "in trouble"),
        (totals.lost, "lost"),
    ];
    let others: Vec<String> = others
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| format!(", {count} {name}"))
        .collect();
    // Fits into a terminal of 80 columns.
    let mut words = match others.is_empty() {
        true => format!("{} up", count_of(totals.up, "node")),
        false => format!("{} up{}", totals.up, others.concat()),
    };
    words += &format!("; {}", count_of(totals.shards, "shard"));
    if totals.free > 0 {
        words += &format!(", {} free", totals.free);
    }
    words += &format!("; {}", count_of(totals.running_jobs, "open job"));
    if totals.running_hosts > 0 {
        words += &format!(" on {} hosts", totals.running_hosts);
    }
    if totals.running_streams > 0 {
        words += &format!("; {}", count_of(totals.running_streams, "stream"));
    }
    if model.fleet.older_jobs > 0 {
        words += &format!("; {} older jobs", model.fleet.older_jobs);
    }
    words
}

fn site(name: &Option<String>) -> &str {
    name.as_deref().unwrap_or("-")
}

fn nodes(model: &FleetModel, column: &str, has: impl Fn(&[&str]) -> bool) -> Vec<Row> {
    let mut nodes: Vec<&NodeReport> = model.nodes.values().collect();
    nodes.retain(|node| has(&[&node.name, site(&node.site), node.state.as_str(), &node.version]));
    nodes.sort_by(|a, b| {
        let order = match column {
            "SITE" => natural(site(&a.site), site(&b.site)),
            "STATE" => a.state.cmp(&b.state),
            "SHARDS" => b.shards.cmp(&a.shards),
            "RUNNING" => running(b).cmp(&running(a)),
            "HEARD" => a.heard.cmp(&b.heard),
            "VERSION" => natural(&a.version, &b.version),
            "TROUBLE" => b.trouble.cmp(&a.trouble),
            _ => Ordering::Equal,
        };
        order.then_with(|| natural(&a.name, &b.name))
    });
    nodes
        .into_iter()
        .map(|node| Row::Node(node.name.clone()))
        .collect()
}

fn shards(model: &FleetModel, column: &str, has: impl Fn(&[&str]) -> bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, zone) in &model.zones {
        let mut counts = vec![0_usize; zone.nodes.len()];
        for owner in zone.owners.iter().flatten() {
            if let Some(count) = counts.get_mut(usize::from(*owner)) {
                *count += 1;
            }
        }
        let free = zone.owners.len() - counts.iter().sum::<usize>();
        let owned = zone
            .nodes
            .iter()
            .zip(counts)
            .map(|(node, count)| (Some(node.clone()), count));
        let free = (free > 0).then_some((None, free));
        for (node, count) in owned.chain(free) {
            if has(&[site(name), node.as_deref().unwrap_or("nobody")]) {
                rows.push((name.clone(), node, count));
            }
        }
    }
    rows.sort_by(|(a_site, a, a_count), (b_site, b, b_count)| {
        let order = match column {
            "NODE" => natural(a.as_deref().unwrap_or_default(), b.as_deref().unwrap_or_default()),
            "STATE" => state_of(model, a.as_deref()).cmp(state_of(model, b.as_deref())),
            "SHARDS" | "OF THE SITE" => b_count.cmp(a_count),
            "MOVED" => last_move(model, b_site, b.as_deref()).cmp(&last_move(model, a_site, a.as_deref())),
            _ => Ordering::Equal,
        };
        let names = || natural(a.as_deref().unwrap_or_default(), b.as_deref().unwrap_or_default());
        order.then_with(|| a_site.cmp(b_site)).then_with(names)
    });
    rows.into_iter()
        .map(|(site, node, _)| Row::Shards(site, node))
        .collect()
}

fn moves(model: &FleetModel, column: &str, has: impl Fn(&[&str]) -> bool) -> Vec<Row> {
    let mut moves: Vec<&MoveReport> = model.moves.iter().collect();
    let from = |moved: &MoveReport| moved.from.clone().unwrap_or_default();
    moves.retain(|moved| has(&[site(&moved.site), &from(moved), &moved.to, moved.reason.as_str()]));
    moves.sort_by(|a, b| {
        let order = match column {
            "SITE" => natural(site(&a.site), site(&b.site)),
            "SHARDS" => b.shards.cmp(&a.shards),
            "FROM" => natural(&from(a), &from(b)),
            "TO" => natural(&a.to, &b.to),
            "REASON" => a.reason.cmp(&b.reason),
            _ => Ordering::Equal,
        };
        order.then_with(|| b.id.cmp(&a.id))
    });
    moves.into_iter().map(|moved| Row::Move(moved.id)).collect()
}

fn jobs(model: &FleetModel, column: &str, has: impl Fn(&[&str]) -> bool) -> Vec<Row> {
    let mut jobs: Vec<&JobReport> = model.jobs.values().collect();
    jobs.retain(|job| {
        let failing = job.failures.iter().flat_map(|(host, why)| [host.as_str(), why]);
        has(&[&job.job, &job.submitter, job.state()]) || failing.into_iter().any(|words| has(&[words]))
    });
    jobs.sort_by(|a, b| {
        let most = |of: fn(&JobReport) -> u32| of(b).cmp(&of(a));
        let order = match column {
            "JOB" => a.job.cmp(&b.job),
            "STATE" => a.state().cmp(b.state()),
            "DONE" => share(b).total_cmp(&share(a)),
            "HOSTS" => most(|job| job.hosts),
            "RUN" => most(|job| job.running),
            "OK" => most(|job| job.succeeded),
            "FAILED" => most(|job| job.failed),
            "NOT RUN" => most(|job| job.not_started),
            "MAYBE" => most(|job| job.unknown),
            "SUBMITTER" => a.submitter.cmp(&b.submitter),
            _ => Ordering::Equal,
        };
        order
            .then_with(|| b.at.cmp(&a.at))
            .then_with(|| a.job.cmp(&b.job))
    });
    jobs.into_iter().map(|job| Row::Job(job.job.clone())).collect()
}

fn streams(model: &FleetModel, column: &str, has: impl Fn(&[&str]) -> bool) -> Vec<Row> {
    let mut streams: Vec<&StreamReport> = model.streams.values().collect();
    streams.retain(|stream| {
        let nodes = stream.nodes.iter();
        let mut nodes = nodes.flat_map(|node| [Some(&node.name), node.why.as_ref()].into_iter().flatten());
        let subject = stream.subject.as_deref().unwrap_or_default();
        has(&[&stream.stream, &stream.submitter, stream.state(), subject]) || nodes.any(|words| has(&[words]))
    });
    streams.sort_by(|a, b| {
        let most = |of: fn(&StreamReport) -> u32| of(b).cmp(&of(a));
        let order = match column {
            "STREAM" => a.stream.cmp(&b.stream),
            "STATE" => a.state().cmp(b.state()),
            "HOSTS" => most(|stream| stream.hosts),
            "RUN" => most(|stream| stream.running),
            "ENDED" => most(|stream| stream.ended),
            "REFUSED" => most(|stream| stream.refused),
            "RESTARTS" => b.restarts.cmp(&a.restarts),
            "NODES" => natural(&node_names(a), &node_names(b)),
            "SUBMITTER" => a.submitter.cmp(&b.submitter),
            _ => Ordering::Equal,
        };
        order
            .then_with(|| b.at.cmp(&a.at))
            .then_with(|| a.stream.cmp(&b.stream))
    });
    let rows = streams.into_iter();
    rows.map(|stream| Row::Stream(stream.stream.clone())).collect()
}

/// Returns the names of the nodes that run a stream.
fn node_names(stream: &StreamReport) -> String {
    let running = stream.nodes.iter().filter(|node| node.running > 0);
    let mut names: Vec<&str> = running.map(|node| &*node.name).collect();
    names.sort_by(|a, b| natural(a, b));
    names.join(" ")
}

/// Returns the time since then, by the report's clock.
fn ago(model: &FleetModel, at: u64) -> String {
    time(Duration::from_secs(model.fleet.now.saturating_sub(at).max(1)))
}

fn some(count: u32) -> String {
    match count {
        0 => String::new(),
        count => count.to_string(),
    }
}

fn of_node(model: &FleetModel, node: &NodeReport, column: &str) -> String {
    match column {
        "NODE" => node.name.clone(),
        "SITE" => site(&node.site).into(),
        "STATE" => node.state.as_str().into(),
        "SHARDS" => some(node.shards),
        "RUNNING" => some(running(node)),
        "HEARD" => ago(model, node.heard),
        "VERSION" => node.version.clone(),
        _ => node.trouble.clone().unwrap_or_default(),
    }
}

/// Returns the number of hosts on which a node works; zero for one that is lost or has left.
fn running(node: &NodeReport) -> u32 {
    match node.state {
        NodeState::Lost | NodeState::Left => 0,
        _ => node.running,
    }
}

fn state_of(model: &FleetModel, node: Option<&str>) -> &'static str {
    let node = node.and_then(|node| model.nodes.get(node));
    node.map_or("", |node| node.state.as_str())
}

/// Returns the time of the last move of a shard of this site to or from a node.
fn last_move(model: &FleetModel, site: &Option<String>, node: Option<&str>) -> Option<u64> {
    let mut moves = model.moves.iter().rev();
    let moved = moves.find(|moved| {
        moved.site == *site && (Some(moved.to.as_str()) == node || moved.from.as_deref() == node)
    });
    moved.map(|moved| moved.at)
}

fn of_shards(model: &FleetModel, site_name: &Option<String>, node: Option<&str>, column: &str) -> String {
    let count = || model.shards_of(site_name, node).len();
    match column {
        "SITE" => site(site_name).into(),
        "NODE" => node.unwrap_or("nobody").into(),
        "STATE" => state_of(model, node).into(),
        "SHARDS" => count().to_string(),
        "MOVED" => last_move(model, site_name, node).map_or_else(String::new, |at| ago(model, at)),
        _ => {
            let all = model
                .zones
                .get(site_name)
                .map_or(1, |zone| zone.owners.len())
                .max(1);
            bar(count() as f64 / all as f64, 24)
        }
    }
}

fn of_move(model: &FleetModel, moved: &MoveReport, column: &str) -> String {
    match column {
        "AGO" => ago(model, moved.at),
        "SITE" => site(&moved.site).into(),
        "SHARDS" => moved.shards.to_string(),
        "FROM" => moved.from.clone().unwrap_or_else(|| "nobody".into()),
        "TO" => moved.to.clone(),
        _ => moved.reason.as_str().into(),
    }
}

fn share(job: &JobReport) -> f64 {
    f64::from(job.settled_hosts()) / f64::from(job.hosts.max(1))
}

fn of_job(model: &FleetModel, job: &JobReport, column: &str) -> String {
    match column {
        "AGE" => ago(model, job.at),
        "JOB" => job.job.clone(),
        "STATE" => job.state().into(),
        "DONE" => bar(share(job).min(1.0), 8),
        "HOSTS" => job.hosts.to_string(),
        "RUN" => some(job.running),
        "OK" => some(job.succeeded),
        "FAILED" => some(job.failed),
        "NOT RUN" => some(job.not_started),
        "MAYBE" => some(job.unknown),
        "SUBMITTER" => job.submitter.chars().take(14).collect(),
        _ => job
            .failures
            .first()
            .map_or_else(String::new, |(host, why)| format!("{host}: {why}")),
    }
}

fn of_stream(model: &FleetModel, stream: &StreamReport, column: &str) -> String {
    match column {
        "AGE" => ago(model, stream.at),
        "STREAM" => stream.stream.clone(),
        "STATE" => stream.state().into(),
        "HOSTS" => stream.hosts.to_string(),
        "RUN" => some(stream.running),
        "ENDED" => some(stream.ended),
        "REFUSED" => some(stream.refused),
        "RESTARTS" if stream.restarts == 0 => String::new(),
        "RESTARTS" => stream.restarts.to_string(),
        "NODES" => node_names(stream),
        "SUBMITTER" => stream.submitter.chars().take(14).collect(),
        _ => {
            let mut whys = stream.nodes.iter().filter_map(|node| node.why.clone());
            whys.next().unwrap_or_default()
        }
    }
}

fn about_node(model: &FleetModel, node: &NodeReport) -> Lines {
    let mut lines = Lines::new();
    line(&mut lines, "node", &node.name);
    line(&mut lines, "site", node.site.clone().unwrap_or_default());
    line(&mut lines, "state", node.state.as_str());
    line(&mut lines, "why", node.trouble.clone().unwrap_or_default());
    line(&mut lines, "version", &node.version);
    if running(node) > 0 {
        line(&mut lines, "runs on", count_of(running(node) as usize, "host"));
    }
    line(&mut lines, "heard of", format!("{} ago", ago(model, node.heard)));
    for zone in model.zones.keys() {
        let count = model.shards_of(zone, Some(&node.name)).len();
        if count > 0 {
            let of = zone
                .as_ref()
                .map_or_else(|| "no site".into(), |zone| format!("site {zone}"));
            line(&mut lines, "shards", format!("{count} of {of}"));
        }
    }
    let moves = model.moves.iter().rev();
    let moves = moves.filter(|moved| moved.to == node.name || moved.from.as_ref() == Some(&node.name));
    for moved in moves.take(10) {
        line(&mut lines, "moved", in_words(model, moved));
    }
    lines
}

fn in_words(model: &FleetModel, moved: &MoveReport) -> String {
    let shards = count_of(moved.shards as usize, "shard");
    let from = moved
        .from
        .as_ref()
        .map_or_else(String::new, |from| format!(" from {from}"));
    let of = moved
        .site
        .as_ref()
        .map_or_else(String::new, |site| format!(" of site {site}"));
    format!(
        "{} ago: {shards}{of}{from} to {} ({})",
        ago(model, moved.at),
        moved.to,
        moved.reason.as_str()
    )
}

fn about_shards(model: &FleetModel, site_name: &Option<String>, node: Option<&str>) -> Lines {
    let mut lines = Lines::new();
    line(&mut lines, "site", site(site_name));
    line(&mut lines, "node", node.unwrap_or("nobody"));
    line(&mut lines, "state", state_of(model, node));
    let shards = model.shards_of(site_name, node);
    line(&mut lines, "how many", shards.len().to_string());
    line(&mut lines, "which", ranges(&shards));
    let moves = model.moves.iter().rev();
    let moves = moves.filter(|moved| {
        moved.site == *site_name && (Some(moved.to.as_str()) == node || moved.from.as_deref() == node)
    });
    for moved in moves.take(10) {
        line(&mut lines, "moved", in_words(model, moved));
    }
    lines
}

/// Formats consecutive numbers as ranges: `3-7`.
fn ranges(numbers: &[usize]) -> String {
    let mut words = Vec::new();
    for part in numbers.chunk_by(|a, b| a + 1 == *b) {
        words.push(match part {
            [first, .., last] => format!("{first}-{last}"),
            [only] => only.to_string(),
            [] => continue,
        });
    }
    words.join(" ")
}

fn about_move(model: &FleetModel, moved: &MoveReport) -> Lines {
    let mut lines = Lines::new();
    line(&mut lines, "when", format!("{} ago", ago(model, moved.at)));
    line(&mut lines, "site", site(&moved.site));
    line(&mut lines, "shards", moved.shards.to_string());
    line(
        &mut lines,
        "from",
        moved.from.clone().unwrap_or_else(|| "nobody".into()),
    );
    line(&mut lines, "to", &moved.to);
    line(&mut lines, "reason", moved.reason.as_str());
    lines
}

fn about_job(model: &FleetModel, job: &JobReport) -> Lines {
    let mut lines = Lines::new();
    line(&mut lines, "job", &job.job);
    line(&mut lines, "submitter", &job.submitter);
    line(&mut lines, "submitted", format!("{} ago", ago(model, job.at)));
    line(&mut lines, "state", job.state());
    line(&mut lines, "hosts", job.hosts.to_string());
    for (name, count) in [
        ("running", job.running),
        ("succeeded", job.succeeded),
        ("failed", job.failed),
        ("did not start", job.not_started),
        ("may have started", job.unknown),
    ] {
        line(&mut lines, name, some(count));
    }
    for (host, why) in &job.failures {
        line(&mut lines, host, why);
    }
    let failures = job.failed as usize + job.not_started as usize + job.unknown as usize;
    if failures > job.failures.len() {
        let words = format!("`trunkline fleet attach {}` shows all of them", job.job);
        line(&mut lines, "", words);
    }
    lines
}

fn about_stream(model: &FleetModel, stream: &StreamReport) -> Lines {
    let mut lines = Lines::new();
    line(&mut lines, "stream", &stream.stream);
    line(&mut lines, "submitter", &stream.submitter);
    line(&mut lines, "submitted", format!("{} ago", ago(model, stream.at)));
    line(
        &mut lines,
        "to subject",
        stream.subject.clone().unwrap_or_default(),
    );
    line(&mut lines, "state", stream.state());
    line(&mut lines, "hosts", stream.hosts.to_string());
    for (name, count) in [
        ("running", stream.running),
        ("ended", stream.ended),
        ("of them failed", stream.failed),
        ("refused", stream.refused),
    ] {
        line(&mut lines, name, some(count));
    }
    if stream.restarts > 0 {
        line(&mut lines, "begun again", plural_times(stream.restarts));
    }
    for node in &stream.nodes {
        let parts = [(node.running, "runs"), (node.refused, "refuses")];
        let parts = parts.into_iter().filter(|(count, _)| *count > 0);
        let parts: Vec<String> = parts.map(|(count, what)| format!("{what} {count}")).collect();
        line(&mut lines, &node.name, parts.join(", "));
        line(&mut lines, "", node.why.clone().unwrap_or_default());
    }
    if stream.more_nodes > 0 {
        line(
            &mut lines,
            "",
            format!("and {}", count_of(stream.more_nodes as usize, "more node")),
        );
    }
    lines
}

fn plural_times(count: u64) -> String {
    match count {
        1 => "once".into(),
        count => format!("{count} times"),
    }
}

#[cfg(test)]
mod tests;
