//! `trunkline tune`: measures which settings move data fastest on the path to a host.

mod chart;
mod page;

use std::cell::Cell;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use indicatif::{BinaryBytes, ProgressBar, ProgressStyle};
use trunkline_control::protocol::{HostRequest, Reply, Request, TuneRequest};
use trunkline_request::hosts::Target;
use trunkline_request::tuning::{
    Advice, Choice, CipherRow, LocalReport, LocalRow, Rates, Report, RequestRow, SIZES, Step, StreamsRow,
    TuneOptions,
};
use trunkline_text::Printable;

use crate::ask::{ask, unexpected_reply};
use crate::backend::{Backend, Daemon, Running, runtime};
use crate::commands::cp::size;
use crate::commands::hosts::{HostArgs, NAMING_HOSTS, which_hosts};
use crate::duration;
use crate::hints::Refused;
use crate::questions::Conversation;
use crate::report::grid::{Grid, wrap};
use crate::terminal;
use crate::terminal::interrupts::{Interrupts, status_of};
use crate::terminal::live;

/// Arguments of `trunkline tune`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "trunkline tune [OPTIONS] <HOST>...\n       trunkline tune --local")]
#[command(group(which_hosts().args(["local"])))]
pub(crate) struct Args {
    #[command(flatten)]
    hosts: HostArgs,
    #[command(flatten)]
    plan: Plan,
    /// Measure this machine alone: ciphers, MACs and signatures on one core.
    #[arg(long, conflicts_with_all = NAMING_HOSTS, conflicts_with_all = ["full", "time", "size", "directory", "report", "forget"])]
    local: bool,
}

/// The limits of a host's measurements, and the output.
#[derive(Debug, clap::Args)]
struct Plan {
    /// Measure more sizes, depths and numbers of sessions, each three times; up to 4 minutes and 64 GiB.
    #[arg(long)]
    full: bool,
    /// Time limit; 28 seconds by default.
    #[arg(long, value_name = "TIME", value_parser = duration::parse_within(Duration::from_secs(1)..=Duration::from_secs(86_400)))]
    time: Option<Duration>,
    /// Limit on the bytes moved; K, M and G are powers of 1,024; 8G by default.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// Directory on the server for three temporary files; your home there by default.
    #[arg(long, value_name = "PATH")]
    directory: Option<String>,
    /// Write the figures with charts to one self-contained HTML file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print one JSON document; of several hosts, one on each line.
    #[arg(long)]
    json: bool,
    /// Forget earlier results, and measure nothing.
    #[arg(long, conflicts_with_all = ["full", "time", "size", "directory", "report", "json"])]
    forget: bool,
}

pub(crate) fn main(args: Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    let Args { hosts, plan, local } = args;
    if local {
        return measure_machine(plan.json, backend);
    }
    runtime()?.block_on(async {
        let hosts = &hosts.find(false, backend).await?;
        let plan = &plan;
        ensure!(
            hosts.is_one() || plan.report.is_none(),
            "--report writes about one host, and there are {}",
            hosts.targets.len()
        );
        let interrupted = Cell::new(None);
        let tune = async |_, target: &Target| {
            let host = hosts.request(target);
            if plan.forget {
                remember(host, backend, None).await?;
                return Ok(match hosts.is_one() {
                    true => "forgotten\n".to_owned(),
                    false => format!("{}: forgotten\n", Printable::line(&target.name)),
                });
            }
            ensure!(interrupted.get().is_none(), "not measured: interrupted");
            match measure(&target.name, host.clone(), plan, backend).await? {
                Measured::All(report) => {
                    remember(host, backend, Some(report.choice.clone())).await?;
                    plan.render(&report, (!hosts.is_one()).then_some(&*target.name))
                }
                Measured::Interrupted(signal) => {
                    interrupted.set(Some(signal));
                    ensure!(hosts.is_one(), "interrupted");
                    Ok(String::new())
                }
            }
        };
        // One host at a time, so that measurements do not disturb each other.
        let code = hosts.each(backend, 1, tune).await?;
        Ok(interrupted
            .get()
            .map_or(code, |signal| ExitCode::from(status_of(signal))))
    })
}

/// The time for which each algorithm is measured at each size.
const EACH: Duration = Duration::from_millis(50);

fn measure_machine(json: bool, backend: &Backend) -> anyhow::Result<ExitCode> {
    let report = runtime()?.block_on(async {
        let mut client = backend.connect(Daemon::Own).await?;
        match ask(&mut client, Request::MeasureMachine { each: EACH }, backend).await? {
            Reply::MachineMeasured(report) => Ok(report),
            other => Err(unexpected_reply(&other)),
        }
    })?;
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        print_local(&mut out, &report, terminal::width(std::io::stdout()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print_local(
    out: &mut impl std::io::Write,
    report: &LocalReport,
    width: Option<u16>,
) -> anyhow::Result<()> {
    writeln!(out, "{}", report.cpu)?;
    writeln!(out, "features: {}\n", report.features.join(", "))?;
    let sizes = SIZES.map(|size| BinaryBytes(size as u64).to_string());
    for (title, rows) in [("CIPHER, SEALING", &report.ciphers), ("MAC", &report.macs)] {
        let header = std::iter::once(title.to_owned()).chain(sizes.iter().cloned());
        let mut table = Grid::new(header).numbers(1..=sizes.len());
        for LocalRow { algorithm, rates } in rows {
            let cells = rates.iter().map(|(_, bytes)| rate(Some(*bytes)));
            table.row(std::iter::once(short(algorithm).to_owned()).chain(cells));
        }
        writeln!(out, "{}", table.draw(width))?;
    }
    let mut table = table(["KEY", "SIGNED/S", "VERIFIED/S"]);
    for row in &report.signatures {
        let [signed, verified] = [row.signed, row.verified].map(|rate| format!("{rate:.0}"));
        table.row([short(&row.algorithm).to_owned(), signed, verified]);
    }
    write!(out, "{}", table.draw(width))?;
    Ok(())
}

/// The outcome of a measurement.
enum Measured {
    All(Box<Report>),
    /// Ended by this signal; the user was told.
    Interrupted(i32),
}

/// Measures in a private daemon, so that other users of the shared daemon's connections do not disturb it.
async fn measure(name: &str, host: HostRequest, plan: &Plan, backend: &Backend) -> anyhow::Result<Measured> {
    let mut options = TuneOptions::new(plan.full);
    options.time = plan.time.unwrap_or(options.time);
    options.bytes = plan.size.unwrap_or(options.bytes);
    options.directory.clone_from(&plan.directory);
    eprintln!(
        "measuring {} for up to {} s and {}",
        Printable::line(name),
        options.time.as_secs(),
        BinaryBytes(options.bytes)
    );
    let bar = bar();
    let mut interrupts = Interrupts::watch()?;
    let mut talk = Conversation::new(backend.connect(Daemon::Own).await?, backend.questions());
    backend.questions().hide_while_asking(&bar).await;
    talk.send(&Request::Tune(Box::new(TuneRequest { host, options })))
        .await?;
    let mut interrupted = None;
    let outcome = loop {
        let reply = match interrupts.or(talk.next()).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => break Err(error.into()),
            Err(signal) if interrupted.is_some() => {
                bar.suspend(|| {
                    eprintln!(
                        "trunkline: interrupted again: files of the measurement may be left on the server"
                    );
                });
                break Ok(Measured::Interrupted(signal));
            }
            Err(signal) => {
                interrupted = Some(signal);
                bar.set_message("removing the files on the server (Ctrl-C again leaves at once)");
                talk.send(&Request::Terminate).await?;
                continue;
            }
        };
        match reply {
            Reply::Tuning(step) => show(&bar, step),
            Reply::Notice(text) => bar.suspend(|| eprintln!("{}", Printable::text(text.trim_end()))),
            Reply::Measured(report) => break Ok(Measured::All(report)),
            Reply::Failed(failure) => {
                break match interrupted {
                    Some(signal) => {
                        let words = Refused(failure).to_string();
                        bar.suspend(|| eprintln!("trunkline: {}", Printable::text(words)));
                        Ok(Measured::Interrupted(signal))
                    }
                    None => Err(Refused(failure).into()),
                };
            }
            other => break Err(unexpected_reply(&other)),
        }
    };
    bar.finish_and_clear();
    outcome
}

impl Plan {
    /// Returns the printed figures. `name` is set if there are several hosts.
    fn render(&self, report: &Report, name: Option<&str>) -> anyhow::Result<String> {
        if let Some(file) = &self.report {
            std::fs::write(file, page::page(report)?)
                .with_context(|| format!("writing {}", file.display()))?;
        }
        let mut out = Vec::new();
        match (self.json, name) {
            (true, None) => serde_json::to_writer_pretty(&mut out, report)?,
            (true, Some(name)) => {
                let mut document = serde_json::to_value(report)?;
                document["host"] = name.into();
                serde_json::to_writer(&mut out, &document)?;
            }
            (false, _) => {
                if let Some(name) = name {
                    writeln!(out, "{}:", Printable::line(name))?;
                }
                print(&mut out, report, terminal::width(std::io::stdout()))?;
            }
        }
        if self.json || name.is_some() {
            writeln!(out)?;
        }
        Ok(String::from_utf8_lossy(&out).into_owned())
    }
}

fn show(bar: &ProgressBar, step: Step) {
    bar.set_length(step.of as u64);
    bar.set_position(step.done as u64);
    bar.set_prefix(step.stage);
    bar.set_message(step.what);
}

/// Stores the choice for copies, in the running daemon or in the memory that the next one reads.
async fn remember(host: HostRequest, backend: &Backend, choice: Option<Choice>) -> anyhow::Result<()> {
    let mut client = match backend.find(Running::Here).await? {
        Some(client) => client,
        None => backend.connect(Daemon::Own).await?,
    };
    match ask(&mut client, Request::Tuned { host, choice }, backend).await? {
        Reply::Done => Ok(()),
        other => Err(unexpected_reply(&other)),
    }
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} {pos}/{len} {wide_msg}")
        .expect("the template's keys are indicatif's own");
    ProgressBar::with_draw_target(Some(1), live::target()).with_style(style)
}

/// Marks the row of a table with the setting that `cp` uses.
const CHOSEN: &str = "<- cp";

fn print(out: &mut impl std::io::Write, report: &Report, width: Option<u16>) -> anyhow::Result<()> {
    let link = &report.link;
    let marks = Marks(&report.choice);
    let line = |out: &mut dyn std::io::Write, line: String| {
        writeln!(out, "{}", wrap(Printable::line(line).as_str(), 2, width))
    };
    for words in report.verdict_lines() {
        line(out, words)?;
    }
    line(out, String::new())?;
    line(out, format!("{}, {}", report.address, report.server))?;
    line(
        out,
        format!(
            "round trip {:.2} ms; one session with the current settings: {} down, {} up",
            link.rtt * 1e3,
            rate(link.rates.down),
            rate(link.rates.up)
        ),
    )?;
    let mut table = table(["CIPHER", "", "TEXT DOWN", "UP", "RANDOM DOWN", "UP", ""]);
    for row in &report.ciphers {
        let zlib = if row.compression { "zlib" } else { "" };
        let mut cells = vec![short(&row.cipher).to_owned(), zlib.into()];
        cells.extend(both(row.compressible).into_iter().chain(both(row.incompressible)));
        cells.push(mark(marks.cipher(row)));
        table.row(cells);
    }
    write!(out, "\n{}", table.draw(width))?;
    let mut table = self::table(["REQUEST", "AT ONCE", "DOWN", "UP", ""]);
    for row in &report.requests {
        let mut cells = vec![BinaryBytes(row.size.into()).to_string(), row.depth.to_string()];
        cells.extend(both(row.rates));
        cells.push(mark(marks.request(row)));
        table.row(cells);
    }
    write!(out, "\n{}", table.draw(width))?;
    let mut table = self::table(["SESSIONS", "DOWN", "", "UP", ""]);
    for row in &report.streams {
        let [down, up] = both(row.rates);
        let [chosen_down, chosen_up] = marks.streams(row).map(mark);
        table.row([row.streams.to_string(), down, chosen_down, up, chosen_up]);
    }
    writeln!(out, "\n{}", table.draw(width))?;
    if !report.rsync.is_empty() {
        let mut table = self::table(["RSYNC", "FILE", "MEDIAN OF 3"]);
        for row in &report.rsync {
            let median = row.median().unwrap_or_default();
            table.row([
                format!("{}: {}", row.work, shown_options(&row.options)),
                BinaryBytes(row.bytes).to_string(),
                format!("{median:.2} s"),
            ]);
        }
        writeln!(out, "{}", table.draw(width))?;
    }
    for note in &report.notes {
        line(out, note.clone())?;
    }
    for advice in &report.advice {
        let Advice {
            tool,
            data,
            options,
            gain,
        } = advice;
        line(
            out,
            if options.is_empty() {
                format!("{tool}, {data}: best as they are")
            } else {
                let options = shown_options(options);
                format!("{tool}, {data}: {options} ({gain:.2} times as fast)")
            },
        )?;
    }
    line(out, format!("`trunkline cp` uses: {}", report.choice.describe()))?;
    line(
        out,
        format!(
            "measured in {:.1} s with {}, {} UTC, by trunkline {} on {}",
            report.seconds,
            BinaryBytes(report.bytes),
            utc(report.measured),
            report.program,
            report.machine
        ),
    )?;
    Ok(())
}

/// Returns an algorithm's name without OpenSSH's domain, to fit into 80 columns.
fn short(algorithm: &str) -> &str {
    algorithm.strip_suffix("@openssh.com").unwrap_or(algorithm)
}

fn mark(is_chosen: bool) -> String {
    if is_chosen { CHOSEN.into() } else { String::new() }
}

/// Finds the rows that `cp` uses.
struct Marks<'a>(&'a Choice);

impl Marks<'_> {
    fn cipher(&self, row: &CipherRow) -> bool {
        row.cipher == self.0.cipher && row.compression == self.0.compression
    }

    fn request(&self, row: &RequestRow) -> bool {
        self.0.request_size == Some(row.size)
    }

    /// Returns two flags: the row is used for downloads, and for uploads.
    fn streams(&self, row: &StreamsRow) -> [bool; 2] {
        [self.0.streams_down, self.0.streams_up].map(|chosen| chosen == Some(row.streams))
    }
}

/// Formats seconds since 1970 as date and time. By Howard Hinnant's "chrono-Compatible Low-Level Date Algorithms":
/// years begin in March, so that the leap day is the last one.
fn utc(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute) = (seconds / 3_600 % 24, seconds / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}")
}

/// Formats options as they are typed.
fn shown_options(options: &[String]) -> String {
    if options.is_empty() {
        return "as it is".into();
    }
    let quoted = options.iter().map(|option| match option.contains(' ') {
        true => format!("'{option}'"),
        false => option.clone(),
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// Returns a table whose columns are numbers except for the first.
fn table<const N: usize>(header: [&str; N]) -> Grid {
    Grid::new(header).numbers(1..N)
}

fn both(rates: Rates) -> [String; 2] {
    [rate(rates.down), rate(rates.up)]
}

/// Formats a rate, for example `512.3 MB/s`, in decimal units as links are sold.
fn rate(bytes_per_second: Option<f64>) -> String {
    match bytes_per_second {
        None => "-".into(),
        Some(rate) if rate >= 1e9 => format!("{:.2} GB/s", rate / 1e9),
        Some(rate) if rate >= 1e6 => format!("{:.1} MB/s", rate / 1e6),
        Some(rate) => format!("{:.1} kB/s", rate / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::forms::forms;
    use trunkline_request::tuning::{Certainty, Change, Link, RsyncRow, Verdict};

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00");
        assert_eq!(utc(951_827_696), "2000-02-29 12:34");
        assert_eq!(utc(1_735_689_599), "2024-12-31 23:59");
        assert_eq!(utc(4_107_542_400), "2100-03-01 00:00");
    }

    #[test]
    fn the_verdict_comes_first_and_the_rows_that_cp_goes_by_are_marked() {
        let rates = |rate| Rates {
            down: Some(rate),
            up: Some(rate),
        };
        let cipher = |name: &str, rate| CipherRow {
            cipher: name.into(),
            compression: false,
            compressible: rates(rate),
            incompressible: rates(rate),
        };
        let report = Report {
            host: "web1".into(),
            address: "jo@web1:22".into(),
            server: "SSH-2.0-OpenSSH_9.2".into(),
            program: "1.2.3".into(),
            machine: "CPU, 2 cores".into(),
            noise: Some(0.01),
            ciphers: vec![
                cipher("chacha20-poly1305@openssh.com", 123.4e6),
                cipher("aes128-gcm@openssh.com", 246.8e6),
                CipherRow {
                    compression: true,
                    ..cipher("aes128-gcm@openssh.com", 61.7e6)
                },
            ],
            link: Link {
                rtt: 0.0123,
                rates: rates(1e8),
            },
            requests: vec![RequestRow {
                size: 261_120,
                depth: 16,
                rates: rates(2e8),
            }],
            streams: vec![StreamsRow {
                streams: 1,
                rates: rates(2e8),
            }],
            rsync: vec![RsyncRow {
                work: "new file".into(),
                options: vec!["-W".into()],
                bytes: 64 << 20,
                seconds: vec![1.0, 2.0, 1.5],
            }],
            advice: vec![Advice {
                tool: "ssh, scp and rsync".into(),
                data: "all data".into(),
                options: vec!["-c".into(), "aes128-gcm@openssh.com".into()],
                gain: 2.0,
            }],
            notes: vec!["rsync: not measured on the server, which lacks it".into()],
            verdict: Verdict {
                changes: vec![Change {
                    what: "aes128-gcm@openssh.com".into(),
                    gain: 2.0,
                }],
                worth: 1.05,
                certainty: Certainty::High,
            },
            seconds: 27.5,
            bytes: 8 << 30,
            choice: Choice {
                cipher: "aes128-gcm@openssh.com".into(),
                streams_down: Some(1),
                ..Choice::default()
            },
            ..Report::default()
        };
        insta::assert_snapshot!(forms(|width, _| {
            let mut out = Vec::new();
            print(&mut out, &report, width).unwrap();
            String::from_utf8(out).unwrap()
        }));
    }
}
