//! Python's SSH libraries, operation by operation: what `bench/six_operations` measures, at a few numbers of sessions.

use std::collections::BTreeMap;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use super::{Outcome, Row, Table, Target, Verdict, ratio};
use crate::lab::Lab;
use crate::measure::Samples;

pub(super) const ROW: Row = Row {
    name: "six-operations",
    title: "six operations of Python's SSH libraries, sessions at once",
    measure,
};

const TRUNKLINE: &str = "trunkline";
const WARM: &str = "trunkline, warm";
const CLASSICAL: &str = "trunkline, curve25519";
const PARAMIKO: &str = "Paramiko";
const SSH2_PYTHON: &str = "ssh2-python";
const ASYNCSSH: &str = "asyncssh";

const TOTAL: &str = "total";
const SFTP_READ: &str = "SFTP read";
/// Those that every library tells apart.
const OPERATIONS: [&str; 5] = [
    "authentication",
    "channel open and execute",
    "channel read",
    "close and exit status",
    SFTP_READ,
];

/// The content of `results.json`.
#[derive(Debug, Deserialize)]
struct Results {
    failures: BTreeMap<String, String>,
    records: Vec<Record>,
}

#[derive(Debug, Deserialize)]
struct Record {
    library: String,
    sessions: u32,
    operations: BTreeMap<String, Figure>,
    /// Seconds of the client's CPU for a session.
    cpu: f64,
}

/// In seconds.
#[derive(Debug, Deserialize)]
struct Figure {
    median: f64,
}

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let directory = lab.directory().join("six_operations");
    let mut run = lab.peers.six_operations.command()?;
    run.args(["--series", "agent", "--sessions", lab.size("1,10,20,50", "1,10")])
        .args(["--rounds", lab.size("3", "1")])
        .arg("--testbed")
        .arg(lab.program("trunkline-testbed")?)
        .arg("--directory")
        .arg(&directory)
        .stdout(Stdio::null());
    let status = run.status().context("running bench/six_operations/run.py")?;
    ensure!(status.success(), "bench/six_operations/run.py: {status}");
    let results: Results = serde_json::from_slice(&std::fs::read(directory.join("results.json"))?)?;

    let mut counts: Vec<u32> = results.records.iter().map(|record| record.sessions).collect();
    counts.dedup();
    let mut verdicts = Vec::new();
    for &count in &counts {
        verdicts.extend(results.verdicts(count));
    }
    let mut tables: Vec<Table> = counts
        .iter()
        .map(|&count| {
            results.table(count, TOTAL, |record| {
                Some(1e3 * record.operations.get(TOTAL)?.median)
            })
        })
        .collect();
    if let Some(&most) = counts.last() {
        tables.push(
            results.table(most, "CPU time of the client, for a session", |record| {
                Some(1e3 * record.cpu)
            }),
        );
    }
    let mut notes = vec![
        format!(
            "Medians of sessions; by an agent's key. The report with every operation is {}/report.html.",
            directory.display()
        ),
        "`python3 bench/six_operations/run.py --help` has every number of sessions up to 50, and key files."
            .into(),
    ];
    notes.extend(
        results
            .failures
            .iter()
            .map(|(who, why)| format!("{who} failed: {why}")),
    );
    Ok(Outcome {
        tables,
        verdicts,
        notes,
        ..Outcome::default()
    })
}

impl Results {
    fn median(&self, library: &str, count: u32, operation: &str) -> Option<f64> {
        let record = self.record(library, count)?;
        Some(record.operations.get(operation)?.median)
    }

    fn record(&self, library: &str, count: u32) -> Option<&Record> {
        self.records
            .iter()
            .find(|record| record.library == library && record.sessions == count)
    }

    /// The least of the other libraries' figures.
    fn best(&self, count: u32, figure: impl Fn(&Record) -> Option<f64>) -> Option<f64> {
        self.records
            .iter()
            .filter(|record| {
                record.sessions == count && ![TRUNKLINE, CLASSICAL, WARM].contains(&record.library.as_str())
            })
            .filter_map(figure)
            .reduce(f64::min)
    }

    fn table(&self, count: u32, what: &str, figure: impl Fn(&Record) -> Option<f64>) -> Table {
        let samples = self.records.iter().filter(|record| record.sessions == count);
        Table {
            title: format!("{count} at once: {what}"),
            unit: "ms",
            samples: samples
                .map(|record| Samples {
                    name: record.library.clone(),
                    rounds: figure(record).map(|value| vec![value]).into_iter().collect(),
                    failure: None,
                })
                .collect(),
        }
    }

    fn verdicts(&self, count: u32) -> Vec<Verdict> {
        let median = |library: &str, operation: &str| self.median(library, count, operation);
        let best =
            |operation: &str| self.best(count, |record| Some(record.operations.get(operation)?.median));
        let verdict = |what: String, measured, target, unit| Verdict {
            what: format!("{count} at once: {what}"),
            measured,
            target,
            unit,
        };
        let faster = |who, of, operation: &str, target| {
            let measured = ratio(median(of, operation), median(who, operation));
            verdict(
                format!("{operation}, {of} / {who}"),
                measured,
                Target::AtLeast(target),
                "times as fast",
            )
        };
        if count == 1 {
            return vec![
                faster(TRUNKLINE, ASYNCSSH, SFTP_READ, 1.0),
                faster(TRUNKLINE, SSH2_PYTHON, SFTP_READ, 3.0),
            ];
        }
        let slower = |operation: &str| {
            verdict(
                format!("{operation}, {TRUNKLINE} / the best other"),
                ratio(median(TRUNKLINE, operation), best(operation)),
                Target::AtMost(1.0),
                "of its time",
            )
        };
        let mut verdicts = vec![
            faster(TRUNKLINE, PARAMIKO, TOTAL, 6.0),
            verdict(
                format!("{TOTAL}, the best other / {TRUNKLINE}"),
                ratio(best(TOTAL), median(TRUNKLINE, TOTAL)),
                Target::AtLeast(1.3),
                "times as fast",
            ),
            faster(WARM, PARAMIKO, TOTAL, 15.0),
            faster(WARM, SSH2_PYTHON, TOTAL, 3.0),
            verdict(
                format!("CPU time, {TRUNKLINE} / the lightest other"),
                ratio(
                    self.record(TRUNKLINE, count).map(|record| record.cpu),
                    self.best(count, |record| Some(record.cpu)),
                ),
                Target::AtMost(0.5),
                "of its time",
            ),
        ];
        verdicts.extend(OPERATIONS.map(slower));
        verdicts
    }
}
