//! The report: on the screen as rows end, then as Markdown for people and JSON for programs.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::chart;
use crate::lab::Lab;
use crate::measure::Samples;
use crate::rows::{Outcome, Row, Target, Verdict};

/// The measurements so far.
pub(crate) struct Report {
    facts: Vec<(&'static str, String)>,
    missing: Vec<(&'static str, String)>,
    rows: Vec<(&'static Row, Outcome)>,
}

impl Report {
    pub(crate) fn begin(lab: &Lab) -> Self {
        let seconds = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let facts = vec![
            ("time", format!("{seconds} s after 1970-01-01 UTC")),
            ("sizes", lab.size("full", "quick").to_owned()),
            (
                "CPUs",
                format!(
                    "{} of {}",
                    std::thread::available_parallelism().map_or(0, usize::from),
                    cpu_model()
                ),
            ),
            (
                "kernel",
                std::fs::read_to_string("/proc/sys/kernel/osrelease")
                    .unwrap_or_default()
                    .trim()
                    .to_owned(),
            ),
            ("OpenSSH", first_line(Command::new("ssh").arg("-V"))),
            ("Go", first_line(Command::new("go").arg("version"))),
            ("node", first_line(Command::new("node").arg("--version"))),
            (
                "commit",
                first_line(Command::new("git").args(["rev-parse", "--short", "HEAD"])),
            ),
        ];
        Self {
            facts,
            missing: lab.peers.missing(),
            rows: Vec::new(),
        }
    }

    /// Takes a row in, and shows it.
    pub(crate) fn add(&mut self, row: &'static Row, outcome: Outcome) {
        println!("{}", row_as_markdown(row, &outcome));
        self.rows.push((row, outcome));
    }

    /// Writes `report.md` and `report.json`.
    pub(crate) fn write(&self, directory: &Path) -> anyhow::Result<()> {
        let json = serde_json::to_string_pretty(&self.as_json())?;
        for (name, text) in [("report.md", self.as_markdown()), ("report.json", json)] {
            let path = directory.join(name);
            std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        for (row, outcome) in &self.rows {
            for (nth, table) in outcome.tables.iter().enumerate() {
                let path = directory.join(chart_name(row, nth));
                std::fs::write(&path, chart::bars(table)?)
                    .with_context(|| format!("writing {}", path.display()))?;
            }
        }
        Ok(())
    }

    fn as_markdown(&self) -> String {
        let mut text = "# trunkline beside other clients\n\n".to_owned();
        for (name, fact) in &self.facts {
            let _ = writeln!(text, "- {name}: {fact}");
        }
        for (name, reason) in &self.missing {
            let _ = writeln!(text, "- **missing: {name}** ({reason})");
        }
        text += "\n## Targets\n\n| row | what | measured | target | met |\n|---|---|---:|---:|---|\n";
        for (row, outcome) in &self.rows {
            for verdict in &outcome.verdicts {
                let _ = writeln!(
                    text,
                    "| {} | {} | {} | {} | {} |",
                    row.name,
                    verdict.what,
                    verdict
                        .measured
                        .map_or("-".into(), |measured| format!("{measured:.2} {}", verdict.unit)),
                    target(verdict),
                    verdict_word(verdict)
                );
            }
        }
        for (row, outcome) in &self.rows {
            text += "\n";
            text += &row_as_markdown(row, outcome);
        }
        text
    }

    fn as_json(&self) -> Value {
        let facts: serde_json::Map<_, _> = self
            .facts
            .iter()
            .map(|(name, fact)| ((*name).to_owned(), json!(fact)))
            .collect();
        let missing: Vec<_> = self
            .missing
            .iter()
            .map(|(name, reason)| json!({ "peer": name, "reason": reason }))
            .collect();
        json!({ "facts": facts, "missing": missing, "rows": self.rows.iter().map(row_as_json).collect::<Vec<_>>() })
    }
}

fn row_as_markdown(row: &Row, outcome: &Outcome) -> String {
    let mut text = format!("## {}: {}\n\n", row.name, row.title);
    if let Some(failure) = &outcome.failure {
        let _ = writeln!(text, "Not measured: {failure}\n");
    }
    for note in &outcome.notes {
        let _ = writeln!(text, "- {note}");
    }
    let (before, after) = outcome.load;
    let _ = writeln!(
        text,
        "- Load of the machine before and after: {before:.1}, {after:.1}."
    );
    for (nth, table) in outcome.tables.iter().enumerate() {
        let _ = writeln!(
            text,
            "\n![{0}]({2})\n\n{0} ({1})\n\n| who | median | lowest and highest round | rounds |\n|---|---:|---:|---:|",
            table.title,
            table.unit,
            chart_name(row, nth)
        );
        for samples in &table.samples {
            let _ = writeln!(text, "{}", samples_as_markdown(samples));
        }
    }
    for verdict in &outcome.verdicts {
        let measured = verdict
            .measured
            .map_or("not measured".into(), |m| format!("{m:.2} {}", verdict.unit));
        let _ = write!(
            text,
            "\n**{}: {measured}**, target {}: {}\n",
            verdict.what,
            target(verdict),
            verdict_word(verdict)
        );
    }
    text
}

fn chart_name(row: &Row, table: usize) -> String {
    format!("{}-{table}.svg", row.name)
}

fn samples_as_markdown(samples: &Samples) -> String {
    let figure = samples
        .median()
        .map_or("-".into(), |median| format!("{median:.3}"));
    let spread = samples
        .spread()
        .map_or("-".into(), |(low, high)| format!("{low:.3} - {high:.3}"));
    let failure = samples
        .failure
        .as_ref()
        .map_or(String::new(), |why| format!(" ({})", why.replace('\n', " ")));
    format!(
        "| {}{failure} | {figure} | {spread} | {} |",
        samples.name,
        samples.rounds.len()
    )
}

fn row_as_json((row, outcome): &(&'static Row, Outcome)) -> Value {
    let samples = |samples: &Samples| json!({ "who": samples.name, "median": samples.median(), "rounds": samples.rounds, "failure": samples.failure });
    let tables: Vec<_> = outcome
        .tables
        .iter()
        .map(|table| {
            let samples: Vec<_> = table.samples.iter().map(samples).collect();
            json!({ "title": table.title, "unit": table.unit, "samples": samples })
        })
        .collect();
    let verdicts: Vec<_> = outcome
        .verdicts
        .iter()
        .map(|v| json!({ "what": v.what, "measured": v.measured, "unit": v.unit, "target": target(v), "met": v.is_met() }))
        .collect();
    json!({
        "name": row.name, "title": row.title, "notes": outcome.notes, "load": [outcome.load.0, outcome.load.1],
        "failure": outcome.failure, "tables": tables, "verdicts": verdicts,
    })
}

fn target(verdict: &Verdict) -> String {
    let shown = |limit: f64| (limit * 1000.0).round() / 1000.0;
    match verdict.target {
        Target::AtMost(limit) => format!("<= {}", shown(limit)),
        Target::AtLeast(limit) => format!(">= {}", shown(limit)),
    }
}

fn verdict_word(verdict: &Verdict) -> &'static str {
    match verdict.is_met() {
        Some(true) => "met",
        Some(false) => "**missed**",
        None => "not measured",
    }
}

fn cpu_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find(|line| line.starts_with("model name"));
    model
        .and_then(|line| line.split_once(": "))
        .map_or("an unnamed model", |(_, name)| name)
        .to_owned()
}

/// Returns the first line of a program's output, on either stream.
fn first_line(command: &mut Command) -> String {
    let Ok(output) = command.output() else {
        return "missing".into();
    };
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text)
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}
