//! The report as one self-contained HTML page.

use std::fmt::Write as _;

use trunkline_request::tuning::{CipherRow, Direction, Rates, Report};

use super::chart::{self, Series, escape};
use super::{Marks, rate, short, utc};

pub(super) fn page(report: &Report) -> anyhow::Result<String> {
    let mut body = String::new();
    summary(&mut body, report)?;
    ciphers(&mut body, report)?;
    requests(&mut body, report)?;
    streams(&mut body, report)?;
    rsync(&mut body, report)?;
    notes(&mut body, report)?;
    let host = escape(&report.host);
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{host}: what moves data fastest</title>\n<style>{}{STYLE}</style>\n</head>\n<body>\n<main>\n\
         {body}</main>\n</body>\n</html>\n",
        chart::STYLE
    ))
}

const STYLE: &str = "
  body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 0; }
  main { max-width: 1200px; margin: 0 auto; padding: 24px; }
  h1 { font-size: 1.5rem; margin: 0 0 .2em; } h2 { font-size: 1.15rem; margin: 2em 0 .4em; }
  p { margin: .3em 0; } .soft { color: var(--soft); }
  .charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr)); gap: 16px; }
  figure { margin: 0; background: var(--panel); border-radius: 8px; padding: 12px; }
  figcaption { font-weight: 600; margin-bottom: 4px; }
  .key { display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 0 0 6px; padding: 0; list-style: none; }
  .key i { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin-right: 5px; }
  table { border-collapse: collapse; margin: .6em 0; } th, td { padding: 3px 12px 3px 0; text-align: right; }
  th { color: var(--soft); font-weight: 600; } th:first-child, td:first-child { text-align: left; }
  .verdict { background: var(--panel); border-left: 4px solid var(--s2); border-radius: 6px; padding: 10px 14px; margin: 12px 0; }
  .verdict, h1, p, li { overflow-wrap: anywhere; } .chosen td { background: var(--panel); font-weight: 600; }
  .chosen td:last-child { color: var(--s2); }
  @media (max-width: 600px) {
    main { padding: 14px; }
    table, tbody { display: block; } tr:first-child { display: none; }
    tr { display: flex; flex-wrap: wrap; gap: 0 14px; padding: 6px 8px; border-top: 1px solid var(--grid); }
    td, td:first-child { display: block; padding: 0; border: 0 !important; text-align: left; overflow-wrap: anywhere; }
    td:first-child { flex-basis: 100%; font-weight: 600; } td:empty { display: none; }
    td:not(:first-child)[data-label]::before { content: attr(data-label) \" \"; color: var(--soft); font-weight: 400; }
    tr.chosen { background: var(--panel); }
  }
  tr + tr td { border-top: 1px solid var(--grid); }
  code { background: var(--panel); border-radius: 4px; padding: 1px 5px; } .scroll { overflow-x: auto; }
";

fn summary(out: &mut String, report: &Report) -> anyhow::Result<()> {
    let Report { link, choice, .. } = report;
    writeln!(out, "<h1>{}</h1>", escape(&report.host))?;
    let [verdict, certainty] = report.verdict_lines();
    writeln!(
        out,
        "<div class=\"verdict\"><p><strong>{}</strong></p>\n<p>{}</p></div>",
        with_code(&escape(&verdict)),
        escape(&certainty)
    )?;
    writeln!(
        out,
        "<p class=\"soft\">{}, {}. Measured at {} UTC by trunkline {} on {}.</p>",
        escape(&report.address),
        escape(&report.server),
        utc(report.measured),
        escape(&report.program),
        escape(&report.machine)
    )?;
    writeln!(
        out,
        "<p>Round trip {:.2} ms. One session with the current settings: {} down, {} up. Measured in {:.0} s.</p>",
        link.rtt * 1e3,
        rate(link.rates.down),
        rate(link.rates.up),
        report.seconds
    )?;
    writeln!(
        out,
        "<p><code>trunkline cp</code> uses: <strong>{}</strong></p>",
        escape(&choice.describe())
    )?;
    if report.advice.is_empty() {
        return Ok(());
    }
    let rows = report.advice.iter().map(|advice| {
        let options = if advice.options.is_empty() {
            "its defaults".to_owned()
        } else {
            format!("<code>{}</code>", escape(&advice.options.join(" ")))
        };
        [
            escape(&advice.tool),
            escape(&advice.data),
            options,
            format!("{:.2} x", advice.gain),
        ]
    });
    table(
        out,
        &["Program", "Data", "Best with", "Times as fast as its defaults"],
        rows,
    )
}

fn ciphers(out: &mut String, report: &Report) -> anyhow::Result<()> {
    if report.ciphers.is_empty() {
        return Ok(());
    }
    writeln!(out, "<h2>Ciphers and compression</h2>")?;
    let mut names: Vec<String> = Vec::new();
    for row in &report.ciphers {
        if !names.contains(&row.cipher) {
            names.push(row.cipher.clone());
        }
    }
    let labels: Vec<String> = names.iter().map(|name| short(name).to_owned()).collect();
    let kinds = [
        ("not compressed, random bytes", false, false),
        ("not compressed, text", false, true),
        ("zlib, random bytes", true, false),
        ("zlib, text", true, true),
    ];
    let charts = Direction::BOTH.map(|direction| {
        let series: Vec<Series> = kinds
            .iter()
            .map(|&(name, compression, compressible)| Series {
                name: name.into(),
                values: names
                    .iter()
                    .map(|cipher| {
                        let row = report
                            .ciphers
                            .iter()
                            .find(|row| row.cipher == *cipher && row.compression == compression)?;
                        rate_in(rates(row, compressible), direction)
                    })
                    .collect(),
            })
            .filter(|series| series.values.iter().any(Option::is_some))
            .collect();
        (caption(direction), chart::bars(&labels, &series), series)
    });
    figures(out, charts)?;
    let marks = Marks(&report.choice);
    let rows = report.ciphers.iter().map(|row| {
        let zlib = if row.compression { "zlib" } else { "" };
        let [text, random] = [row.compressible, row.incompressible];
        let is_chosen = marks.cipher(row);
        let cells = [
            escape(&row.cipher),
            zlib.into(),
            rate(text.down),
            rate(text.up),
            rate(random.down),
            rate(random.up),
            mark(is_chosen),
        ];
        (cells, is_chosen)
    });
    let header = [
        "Cipher",
        "",
        "Text down",
        "Text up",
        "Random down",
        "Random up",
        "",
    ];
    marked_table(out, &header, rows)
}

fn requests(out: &mut String, report: &Report) -> anyhow::Result<()> {
    if report.requests.is_empty() {
        return Ok(());
    }
    writeln!(out, "<h2>SFTP requests</h2>")?;
    let distinct = |numbers: Vec<u64>| {
        let mut numbers = numbers;
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    };
    let sizes = distinct(report.requests.iter().map(|row| u64::from(row.size)).collect());
    let depths = distinct(report.requests.iter().map(|row| row.depth as u64).collect());
    let places: Vec<String> = sizes.iter().map(|&size| bytes(size)).collect();
    let charts = Direction::BOTH.map(|direction| {
        let series: Vec<Series> = depths
            .iter()
            .map(|&depth| Series {
                name: format!("{depth} at once"),
                values: sizes
                    .iter()
                    .map(|&size| {
                        let is = |row: &&trunkline_request::tuning::RequestRow| {
                            u64::from(row.size) == size && row.depth as u64 == depth
                        };
                        rate_in(report.requests.iter().find(is)?.rates, direction)
                    })
                    .collect(),
            })
            .collect();
        (caption(direction), chart::lines(&places, &series, true), series)
    });
    figures(out, charts)?;
    let marks = Marks(&report.choice);
    let rows = report.requests.iter().map(|row| {
        let chosen = marks.request(row);
        let cells = [
            bytes(row.size.into()),
            row.depth.to_string(),
            rate(row.rates.down),
            rate(row.rates.up),
            if chosen { "used by cp" } else { "" }.into(),
        ];
        (cells, chosen)
    });
    marked_table(out, &["Request", "At once", "Down", "Up", ""], rows)
}

fn streams(out: &mut String, report: &Report) -> anyhow::Result<()> {
    if report.streams.is_empty() {
        return Ok(());
    }
    writeln!(out, "<h2>Sessions at once</h2>")?;
    let places: Vec<String> = report.streams.iter().map(|row| row.streams.to_string()).collect();
    let series: Vec<Series> = Direction::BOTH
        .iter()
        .map(|&direction| Series {
            name: caption(direction).to_lowercase(),
            values: report
                .streams
                .iter()
                .map(|row| rate_in(row.rates, direction))
                .collect(),
        })
        .collect();
    figures(
        out,
        [("All together", chart::lines(&places, &series, false), series)],
    )?;
    let marks = Marks(&report.choice);
    let rows = report.streams.iter().map(|row| {
        let [down, up] = marks.streams(row);
        let used = match (down, up) {
            (true, true) => "used by cp",
            (true, false) => "used by cp, down",
            (false, true) => "used by cp, up",
            (false, false) => "",
        };
        let cells = [
            row.streams.to_string(),
            rate(row.rates.down),
            rate(row.rates.up),
            used.into(),
        ];
        (cells, down || up)
    });
    marked_table(out, &["Sessions", "Down", "Up", ""], rows)
}

fn rsync(out: &mut String, report: &Report) -> anyhow::Result<()> {
    if report.rsync.is_empty() {
        return Ok(());
    }
    writeln!(out, "<h2>rsync</h2>")?;
    let rows = report.rsync.iter().map(|row| {
        [
            escape(&row.work),
            format!("<code>{}</code>", escape(&row.options.join(" "))),
            bytes(row.bytes),
            row.seconds
                .iter()
                .map(|seconds| format!("{seconds:.2}"))
                .collect::<Vec<_>>()
                .join(", "),
            row.median()
                .map_or_else(String::new, |seconds| format!("{seconds:.2} s")),
        ]
    });
    table(out, &["Work", "Options", "File", "Runs, s", "Median"], rows)
}

fn notes(out: &mut String, report: &Report) -> anyhow::Result<()> {
    if report.notes.is_empty() {
        return Ok(());
    }
    writeln!(out, "<h2>Left out</h2>\n<ul>")?;
    for note in &report.notes {
        writeln!(out, "<li>{}</li>", escape(note))?;
    }
    writeln!(out, "</ul>")?;
    Ok(())
}

type Figure = (&'static str, String, Vec<Series>);

/// Writes charts beside each other, each below its caption and key.
fn figures<const N: usize>(out: &mut String, charts: [Figure; N]) -> anyhow::Result<()> {
    writeln!(out, "<div class=\"charts\">")?;
    for (caption, svg, series) in charts {
        writeln!(
            out,
            "<figure>\n<figcaption>{caption}</figcaption>\n<ul class=\"key\">"
        )?;
        for (nth, one) in series.iter().enumerate() {
            writeln!(
                out,
                "<li><i style=\"background:var(--s{})\"></i>{}</li>",
                nth % chart::COLOURS,
                escape(&one.name)
            )?;
        }
        writeln!(out, "</ul>\n<div>{svg}</div>\n</figure>")?;
    }
    writeln!(out, "</div>")?;
    Ok(())
}

fn table<const N: usize>(
    out: &mut String,
    header: &[&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> anyhow::Result<()> {
    marked_table(out, header, rows.map(|row| (row, false)))
}

/// Writes a table in which the rows that `cp` uses are marked.
fn marked_table<const N: usize>(
    out: &mut String,
    header: &[&str; N],
    rows: impl Iterator<Item = ([String; N], bool)>,
) -> anyhow::Result<()> {
    writeln!(out, "<div class=\"scroll\"><table>\n<tr>")?;
    for name in header {
        write!(out, "<th>{name}</th>")?;
    }
    writeln!(out, "</tr>")?;
    for (row, is_chosen) in rows {
        let class = if is_chosen { " class=\"chosen\"" } else { "" };
        write!(out, "<tr{class}>")?;
        for (cell, name) in row.iter().zip(header) {
            // A narrow window shows no columns, so each cell has a label.
            let label = if name.is_empty() {
                String::new()
            } else {
                format!(" data-label=\"{name}\"")
            };
            write!(out, "<td{label}>{cell}</td>")?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</table></div>")?;
    Ok(())
}

/// Returns text with the parts between backquotes as code.
fn with_code(text: &str) -> String {
    let pieces = text.split('`').enumerate();
    let shown = pieces.map(|(nth, piece)| match nth % 2 {
        0 => piece.to_owned(),
        _ => format!("<code>{piece}</code>"),
    });
    shown.collect()
}

/// Returns the last cell of a row.
fn mark(is_chosen: bool) -> String {
    if is_chosen {
        "used by cp".into()
    } else {
        String::new()
    }
}

fn rates(row: &CipherRow, compressible: bool) -> Rates {
    if compressible {
        row.compressible
    } else {
        row.incompressible
    }
}

fn rate_in(rates: Rates, direction: Direction) -> Option<f64> {
    match direction {
        Direction::Up => rates.up,
        Direction::Down => rates.down,
    }
}

fn caption(direction: Direction) -> &'static str {
    match direction {
        Direction::Up => "To the server",
        Direction::Down => "From the server",
    }
}

/// Formats a size, for example `32 KiB`.
fn bytes(count: u64) -> String {
    match count {
        count if count < 1024 => format!("{count} B"),
        count if count < 1 << 20 => format!("{} KiB", count / 1024),
        count => format!("{} MiB", count >> 20),
    }
}
