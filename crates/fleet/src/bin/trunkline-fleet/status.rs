//! `trunkline fleet status`.

use std::io::Write as _;

use trunkline_control::place::Place;
use trunkline_fleet::bucket::Bucket;
use trunkline_fleet::report::JobReport;
use trunkline_fleet::streaming::following::{self, StreamStatus};
use trunkline_fleet::submitting::{self, FleetStatus};
use trunkline_text::Printable;

use crate::settings::Settings;

/// The number of seconds without a message after which a node counts as lost: the life of a lease.
const LOST: u64 = 15;

/// Arguments of `trunkline fleet status`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Prints the nodes, the jobs and the streams.
pub(crate) async fn run(place: &Place, args: Args) -> anyhow::Result<()> {
    let settings = Settings::of_member(place)?;
    let bucket = Bucket::open(&settings.access(place)?).await?;
    let status = submitting::status(&bucket).await?;
    let jobs = submitting::jobs(&bucket).await?;
    let streams = following::streams(&bucket).await?;
    match args.json {
        true => print(&format!("{}\n", json(&settings, &status, &jobs, &streams))),
        false => print(&text(&status, &jobs, &streams)),
    }
}

/// Prints text, and ignores the error if nobody reads it any more.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

fn state(member: &trunkline_fleet::state::Member, age: u64) -> &'static str {
    match () {
        () if member.holder.is_none() => "has left",
        () if age >= LOST => "lost",
        () if member.trouble.is_some() => "in trouble",
        () if member.draining => "draining",
        () => "up",
    }
}

fn text(status: &FleetStatus, jobs: &[JobReport], streams: &[StreamStatus]) -> String {
    let mut rows = vec![
        ["NODE", "SITE", "STATE", "SHARDS", "RUNNING", "VERSION"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let mut troubles = Vec::new();
    for (name, member, shards, age) in &status.nodes {
        rows.push(vec![
            line(name),
            member.site.as_deref().map_or_else(|| "-".into(), line),
            state(member, *age).into(),
            shards.to_string(),
            member.running.to_string(),
            line(&member.version),
        ]);
        if let Some(trouble) = &member.trouble {
            troubles.push(format!("{}: {}\n", line(name), line(trouble)));
        }
    }
    let mut text = match &status.frozen {
        Some(why) => format!("The fleet is frozen: {}\n", line(why)),
        None => String::new(),
    };
    text.push_str(&table(&rows));
    text.extend(troubles);
    if !jobs.is_empty() {
        let mut rows = vec![
            [
                "JOB",
                "HOSTS",
                "RUNNING",
                "SUCCEEDED",
                "FAILED",
                "NOT STARTED",
                "UNKNOWN",
            ]
            .map(str::to_owned)
            .to_vec(),
        ];
        for job in jobs {
            let counts = [
                job.hosts,
                job.running,
                job.succeeded,
                job.failed,
                job.not_started,
                job.unknown,
            ];
            rows.push(
                [line(&job.job)]
                    .into_iter()
                    .chain(counts.map(|count| count.to_string()))
                    .collect(),
            );
        }
        text.push('\n');
        text.push_str(&table(&rows));
    }
    if !streams.is_empty() {
        let heads = ["STREAM", "HOSTS", "RUNNING", "ENDED", "REFUSED", "RESTARTS"];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        rows.extend(streams.iter().map(|stream| {
            let [running, refused] = count_shares(status, stream).map(u64::from);
            let counts = [
                stream.hosts.into(),
                running,
                stream.ended.into(),
                refused,
                restarts(stream),
            ];
            [line(&stream.stream.0)]
                .into_iter()
                .chain(counts.map(|count| count.to_string()))
                .collect()
        }));
        text.push('\n');
        text.push_str(&table(&rows));
    }
    text
}

/// Counts the hosts on which nodes that are present run a stream, and those on which they may not.
fn count_shares(status: &FleetStatus, stream: &StreamStatus) -> [u32; 2] {
    let is_there = |name: &str| {
        let mut nodes = status.nodes.iter();
        let node = nodes.find(|(node, ..)| node == name);
        node.is_some_and(|(_, member, _, age)| !matches!(state(member, *age), "lost" | "has left"))
    };
    let there = stream.shares.iter().filter(|(node, _)| is_there(node));
    there.fold([0_u32; 2], |[running, refused], (_, share)| {
        [
            running.saturating_add(share.running),
            refused.saturating_add(share.refused),
        ]
    })
}

fn restarts(stream: &StreamStatus) -> u64 {
    let all = stream.shares.values().map(|share| share.restarts);
    all.fold(0, u64::saturating_add)
}

fn line(text: &str) -> String {
    Printable::line(text).into_string()
}

/// Formats columns as wide as their widest cell.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn json(
    settings: &Settings,
    status: &FleetStatus,
    jobs: &[JobReport],
    streams: &[StreamStatus],
) -> serde_json::Value {
    let nodes = status.nodes.iter().map(|(name, member, shards, age)| {
        serde_json::json!({
            "name": name, "site": member.site, "state": state(member, *age), "shards": shards, "running": member.running,
            "version": member.version, "trouble": member.trouble, "seen_seconds_ago": age,
        })
    });
    let jobs = jobs.iter().map(|job| {
        serde_json::json!({
            "job": job.job, "submitter": job.submitter, "submitted": job.at, "hosts": job.hosts, "running": job.running,
            "succeeded": job.succeeded, "failed": job.failed, "not_started": job.not_started, "unknown": job.unknown,
        })
    });
    let streams = streams.iter().map(|stream| {
        let [running, refused] = count_shares(status, stream);
        serde_json::json!({
            "stream": stream.stream.0, "submitter": stream.submitter, "submitted": stream.at, "hosts": stream.hosts,
            "running": running, "ended": stream.ended, "refused": refused, "restarts": restarts(stream),
        })
    });
    serde_json::json!({
        "fleet": settings.prefix, "frozen": status.frozen, "nodes": nodes.collect::<Vec<_>>(), "jobs": jobs.collect::<Vec<_>>(),
        "streams": streams.collect::<Vec<_>>(),
    })
}
