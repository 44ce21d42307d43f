//! One file for each row of the table of targets.

mod ansible;
mod at_once;
mod beside;
mod bulk;
mod client;
mod cold;
mod event_loop;
mod fleet;
mod fleet_scale;
mod git;
mod idle;
mod kinds;
mod metrics;
mod python_warm;
mod six_operations;
mod sockets;
mod stock;
mod streams;
mod transfers;
mod warm_far;
mod warm_near;

use std::time::Duration;

use crate::lab::Lab;
use crate::measure::{self, Samples};

/// A row: what it is called, and how it is measured.
pub(crate) struct Row {
    /// The name for `BENCH=`.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    measure: fn(&Lab) -> anyhow::Result<Outcome>,
}

/// All rows, in the report's order.
pub(crate) const ROWS: &[Row] = &[
    cold::ROW,
    warm_far::ROW,
    warm_near::ROW,
    client::ROW,
    bulk::ROW,
    streams::ROW,
    idle::ROW,
    beside::ROW,
    fleet::ROW,
    fleet_scale::ROW,
    stock::ROW,
    git::ROW,
    ansible::ROW,
    at_once::ROW,
    sockets::ROW,
    metrics::ROW,
    transfers::ROW,
    event_loop::ROW,
    kinds::ROW,
    python_warm::ROW,
    six_operations::ROW,
];

/// The result of a row.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) tables: Vec<Table>,
    pub(crate) verdicts: Vec<Verdict>,
    /// The method, as far as the title does not describe it.
    pub(crate) notes: Vec<String>,
    /// The machine's load before and after.
    pub(crate) load: (f64, f64),
    /// The reason why there is no result.
    pub(crate) failure: Option<String>,
}

/// Figures that compare.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) title: String,
    /// The unit, as printed.
    pub(crate) unit: &'static str,
    pub(crate) samples: Vec<Samples>,
}

impl Table {
    fn median(&self, name: &str) -> Option<f64> {
        self.samples.iter().find(|samples| samples.name == name)?.median()
    }
}

/// A target beside what was measured.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) what: String,
    /// `None` where something was missing.
    pub(crate) measured: Option<f64>,
    pub(crate) target: Target,
    pub(crate) unit: &'static str,
}

/// The bound that a figure must keep.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Verdict {
    /// Whether the target is met; `None` where something was missing.
    pub(crate) fn is_met(&self) -> Option<bool> {
        self.measured.map(|measured| match self.target {
            Target::AtMost(limit) => measured <= limit,
            Target::AtLeast(limit) => measured >= limit,
        })
    }
}

/// Measures a row. A failure is an outcome too.
pub(crate) fn measure(row: &Row, lab: &Lab) -> Outcome {
    let before = measure::load();
    let mut outcome = (row.measure)(lab).unwrap_or_else(|error| Outcome {
        failure: Some(format!("{error:#}")),
        ..Outcome::default()
    });
    outcome.load = (before, measure::load());
    outcome
}

/// The names that several rows share, and that verdicts look figures up by.
const ENGINE: &str = "trunkline (engine)";
const RUSSH: &str = "russh";
const GO: &str = "Go x/crypto/ssh";
const NODE: &str = "node ssh2";
const TRUNKLINE_SSH: &str = "trunkline ssh";
const OPENSSH: &str = "OpenSSH ssh";
const OPENSSH_MUX: &str = "OpenSSH ssh with a ControlMaster";
const STOCK_SSH: &str = "OpenSSH ssh on trunkline's socket";

/// The round trip of the relay in rows that have one.
const RTT: Duration = Duration::from_millis(100);

fn in_rtt(seconds: f64) -> f64 {
    seconds / RTT.as_secs_f64()
}

fn ratio(of: Option<f64>, to: Option<f64>) -> Option<f64> {
    // Beside nothing, such as a delay below what can be told, there is no ratio.
    to.filter(|to| *to > 0.0).and_then(|to| Some(of? / to))
}
