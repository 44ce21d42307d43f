//! `trunkline-bench`: measures the engine and the program beside other clients, against sshd on loopback.
//!
//! Everything of one row runs in turns, round after round, so that what else the machine does hits all alike. A round's
//! figure is the median of its samples; a row's figure the median of its rounds.

mod chart;
mod lab;
mod measure;
mod peer;
mod report;
mod rows;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use clap::Parser;

use crate::lab::Lab;
use crate::report::Report;
use crate::rows::ROWS;

/// Measure trunkline beside other clients.
#[derive(Debug, Parser)]
#[command(max_term_width = 110)]
struct Args {
    /// The rows to measure; all, when none is named. `--list` names them.
    rows: Vec<String>,
    /// Name the rows.
    #[arg(long)]
    list: bool,
    /// Sizes for a first look: the figures are rough.
    #[arg(long)]
    quick: bool,
    /// The directory with the peers' programs, where the report is written too.
    #[arg(long, default_value = "target/bench")]
    directory: PathBuf,
    /// The directory with the release build of `trunkline` and the peers that are written in Rust.
    #[arg(long, default_value = "target/release")]
    programs: PathBuf,
}

fn main() -> anyhow::Result<ExitCode> {
    // What a shell or a terminal's program has left open would be closed by every command that is measured, at its expense.
    trunkline_control::descriptors::close_inherited(&[]);
    let args = Args::parse();
    if args.list {
        for row in ROWS {
            println!("{:10} {}", row.name, row.title);
        }
        return Ok(ExitCode::SUCCESS);
    }
    for name in &args.rows {
        let known = || ROWS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
        ensure!(
            ROWS.iter().any(|row| row.name == name),
            "there is no row {name}; there are {}",
            known()
        );
    }
    let lab = Lab::new(&args.directory, &args.programs, args.quick)?;
    let mut report = Report::begin(&lab);
    for row in ROWS
        .iter()
        .filter(|row| args.rows.is_empty() || args.rows.iter().any(|name| name == row.name))
    {
        eprintln!("{}: {}", row.name, row.title);
        report.add(row, rows::measure(row, &lab));
        // After each row, so that an interrupted run leaves what it has measured.
        report.write(&args.directory)?;
    }
    println!(
        "The report: {0}/report.md and {0}/report.json",
        args.directory.display()
    );
    Ok(ExitCode::SUCCESS)
}
