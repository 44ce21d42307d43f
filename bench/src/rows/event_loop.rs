//! The cost of streams for the event loop of Node: `bench/event_loop` measures, this row reads what it wrote.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use super::{Outcome, Row, Table, Target, Verdict, ratio};
use crate::lab::Lab;
use crate::measure::Samples;

pub(super) const ROW: Row = Row {
    name: "event-loop",
    title: "streams in Node: delays of the event loop, CPU time of the main thread, memory",
    measure,
};

/// The names that `bench/event_loop/clients.mjs` has.
const SSH2: &str = "ssh2";
const TRUNKLINE: &str = "trunkline";
const OPENSSH: &str = "ssh, a process a host";

/// `event-loop.json`.
#[derive(Debug, Deserialize)]
struct Report {
    scenarios: Vec<Scenario>,
    results: Vec<Run>,
    idle: Idle,
}

#[derive(Debug, Deserialize)]
struct Scenario {
    name: String,
    title: String,
}

#[derive(Debug, Deserialize)]
struct Run {
    scenario: String,
    client: String,
    figures: Option<Figures>,
    failure: Option<String>,
}

/// Delays in milliseconds. They and the main thread's work are less those of the same process at rest.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Figures {
    mean: f64,
    p99: f64,
    utilization: f64,
    throughput: f64,
    main_per_mb: f64,
    memory: f64,
    servers_per_mb: f64,
    server_memory: f64,
}

/// Connected hosts that say nothing, in one process.
#[derive(Debug, Deserialize)]
struct Idle {
    connections: Option<u32>,
    /// Bytes.
    resident: Option<f64>,
    utilization: Option<f64>,
    failure: Option<String>,
}

/// A figure's title, its unit, and where it is.
type Figure = (&'static str, &'static str, fn(&Figures) -> f64);

/// The figures of each scenario.
const FIGURES: [Figure; 8] = [
    ("delay added, mean", "ms", |figures| figures.mean),
    ("delay added, p99", "ms", |figures| figures.p99),
    ("event loop busy", "%", |figures| figures.utilization * 100.0),
    ("CPU time of the main thread", "ms/MB", |figures| {
        figures.main_per_mb
    }),
    ("throughput", "MB/s", |figures| figures.throughput),
    ("resident memory", "MB", |figures| figures.memory),
    ("CPU time of the servers", "ms/MB", |figures| {
        figures.servers_per_mb
    }),
    ("resident memory of a server", "MB", |figures| {
        figures.server_memory
    }),
];

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let package = PathBuf::from("bench/event_loop");
    ensure!(
        package.join("node_modules/trunkline/trunkline.node").exists(),
        "the package in {} is not installed",
        package.display()
    );
    let stream = lab.program("bench-stream")?;
    let programs = stream.parent().context("a program without a directory")?;
    let mut command = Command::new("node");
    command
        .arg(package.join("run.mjs"))
        .arg("--programs")
        .arg(programs)
        .arg("--out")
        .arg(lab.directory())
        .args(lab.size(["--rounds", "2"], ["--rounds", "1"]))
        .stdin(Stdio::null());
    if lab.quick {
        command.arg("--quick");
    }
    let status = command.status().context("running node")?;
    ensure!(status.success(), "node: {status}");
    let path = lab.directory().join("event-loop.json");
    let text = std::fs::read(&path).with_context(|| format!("{}", path.display()))?;
    let report: Report = serde_json::from_slice(&text)?;
    Ok(outcome(&report))
}

fn outcome(report: &Report) -> Outcome {
    let mut outcome = Outcome {
        notes: vec![
            "Delays, and the main thread's work, are less those of the same process at rest. The main thread has a CPU for itself, everything else the \
             other one; nothing is pinned for the throughput."
                .into(),
            "Charts and every figure: event-loop.html and event-loop.json.".into(),
        ],
        ..Outcome::default()
    };
    for scenario in &report.scenarios {
        for (title, unit, figure) in FIGURES {
            outcome.tables.push(Table {
                title: format!("{}: {title}", scenario.title),
                unit,
                samples: report.samples(&scenario.name, figure),
            });
        }
    }
    let mut verdicts = vec![
        ("unthrottled-4", FIGURES[0], SSH2, Target::AtMost(1.0 / 15.0)),
        ("unthrottled-4", FIGURES[1], SSH2, Target::AtMost(1.0 / 15.0)),
        ("unthrottled-20", FIGURES[0], SSH2, Target::AtMost(1.0 / 15.0)),
        ("unthrottled-20", FIGURES[1], SSH2, Target::AtMost(1.0 / 15.0)),
        ("blocks-8", FIGURES[2], SSH2, Target::AtMost(0.1)),
        ("blocks-8", FIGURES[3], SSH2, Target::AtMost(0.1)),
        ("lines-2000", FIGURES[2], SSH2, Target::AtMost(0.2)),
    ];
    for scenario in ["throughput-1", "throughput-4", "throughput-8", "throughput-20"] {
        verdicts.extend([
            (scenario, FIGURES[1], SSH2, Target::AtMost(0.2)),
            (scenario, FIGURES[4], SSH2, Target::AtLeast(1.0)),
            (scenario, FIGURES[6], OPENSSH, Target::AtMost(1.2)),
            (scenario, FIGURES[7], OPENSSH, Target::AtMost(1.2)),
        ]);
    }
    for (scenario, (title, unit, figure), rival, target) in verdicts {
        let table = Table {
            title: String::new(),
            unit,
            samples: report.samples(scenario, figure),
        };
        outcome.verdicts.push(Verdict {
            what: format!("{scenario}: {title}"),
            measured: ratio(table.median(TRUNKLINE), table.median(rival)),
            target,
            unit: if rival == SSH2 {
                "of ssh2's"
            } else {
                "of what it is beside OpenSSH's client"
            },
        });
    }
    let idle = &report.idle;
    if let Some(failure) = &idle.failure {
        outcome
            .notes
            .push(format!("Idle hosts were not measured: {failure}"));
    }
    let hosts = idle
        .connections
        .map_or_else(String::new, |count| count.to_string());
    outcome.verdicts.push(Verdict {
        what: format!("{hosts} idle hosts: resident memory"),
        measured: idle.resident.map(|bytes| bytes / 1e6),
        target: Target::AtMost(150.0),
        unit: "MB",
    });
    outcome.verdicts.push(Verdict {
        what: format!("{hosts} idle hosts: event loop busy"),
        measured: idle.utilization.map(|part| part * 100.0),
        target: Target::AtMost(1.0),
        unit: "%",
    });
    outcome
}

impl Report {
    /// One figure of everybody in a scenario, in the order of the report.
    fn samples(&self, scenario: &str, figure: fn(&Figures) -> f64) -> Vec<Samples> {
        let mut all: Vec<Samples> = Vec::new();
        for run in self.results.iter().filter(|run| run.scenario == scenario) {
            let position = all.iter().position(|samples| samples.name == run.client);
            let position = position.unwrap_or_else(|| {
                all.push(Samples {
                    name: run.client.clone(),
                    rounds: Vec::new(),
                    failure: None,
                });
                all.len() - 1
            });
            match &run.figures {
                Some(figures) => all[position].rounds.push(vec![figure(figures)]),
                None => all[position].failure.clone_from(&run.failure),
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_compare_the_medians_of_what_ran() {
        let run = |client: &str, scenario: &str, mean: f64| {
            format!(
                r#"{{"client":"{client}","scenario":"{scenario}","figures":{{"mean":{mean},"p99":2,"utilization":0.5,
                   "throughput":10,"mainPerMb":1,"memory":100,"serversPerMb":2,"serverMemory":9}}}}"#
            )
        };
        let text = format!(
            r#"{{"scenarios":[{{"name":"unthrottled-4","title":"4 streams"}}],
                "results":[{},{},{},{{"client":"proxy","scenario":"unthrottled-4","failure":"it ended"}}],
                "idle":{{"connections":2000,"resident":120000000,"utilization":0.004}}}}"#,
            run(SSH2, "unthrottled-4", 8.0),
            run(TRUNKLINE, "unthrottled-4", 0.4),
            run(TRUNKLINE, "blocks-8", 0.1),
        );
        let report: Report = serde_json::from_str(&text).unwrap();
        let outcome = outcome(&report);
        let find = |what: &str| {
            outcome
                .verdicts
                .iter()
                .find(|verdict| verdict.what == what)
                .unwrap()
        };
        assert_eq!(find("unthrottled-4: delay added, mean").is_met(), Some(true));
        assert_eq!(find("unthrottled-4: delay added, p99").is_met(), Some(false));
        assert_eq!(find("blocks-8: CPU time of the main thread").is_met(), None);
        assert_eq!(find("2000 idle hosts: resident memory").is_met(), Some(true));
        assert_eq!(find("2000 idle hosts: event loop busy").measured, Some(0.4));
        assert_eq!(outcome.tables[0].samples[2].failure.as_deref(), Some("it ended"));
    }
}
