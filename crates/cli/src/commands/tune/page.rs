//! The report as one HTML page that needs nothing else.

use std::fmt::Write as _;

use trunkline_request::tuning::{CipherRow, Direction, Rates, Report};

use super::chart::{self, Series};
use super::rate;

/// The page.
pub(super) fn page(report: &Report) -> anyhow::Result<String> {
    let mut body = String::new();
    summary(&mut body, report)?;
    ciphers(&mut body, report)?;
    requests(&mut body, report)?;
    streams(&mut body, report)?;
    rsync(&mut body, report)?;
    notes(&mut body, report)?;
    let host = escaped(&report.host);
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
  tr + tr td { border-top: 1px solid var(--grid); }
  code { background: var(--panel); border-radius: 4px; padding: 1px 5px; } .scroll { overflow-x: auto; }
";

fn summary(out: &mut String, report: &Report) -> anyhow::Result<()> {
    let Report { link, choice, .. } = report;
    writeln!(out, "<h1>{}</h1>", escaped(&report.host))?;
    writeln!(
        out,
        "<p class=\"soft\">{}, {}</p>",
        escaped(&report.address),
        escaped(&report.server)
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
        escaped(&choice.describe())
    )?;
    if report.advice.is_empty() {
        return Ok(());
    }
    let rows = report.advice.iter().map(|advice| {
        let options = if advice.options.is_empty() {
            "its defaults".to_owned()
        } else {
            format!("<code>{}</code>", escaped(&advice.options.join(" ")))
        };
        [
            escaped(&advice.tool),
            escaped(&advice.data),
            options,
            format!("{:.2} x", advice.gain),
        ]
    });
    table(
        out,
        &["Program", "Data", "Best with", "No faster than the defaults"],
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
                        toward(rates(row, compressible), direction)
                    })
                    .collect(),
            })
            .filter(|series| series.values.iter().any(Option::is_some))
            .collect();
        (caption(direction), chart::bars(&names, &series), series)
    });
    figures(out, charts)?;
    let rows = report.ciphers.iter().map(|row| {
        let zlib = if row.compression { "zlib" } else { "" };
        let [text, random] = [row.compressible, row.incompressible];
        [
            escaped(&row.cipher),
            zlib.into(),
            rate(text.down),
            rate(text.up),
            rate(random.down),
            rate(random.up),
        ]
    });
    let header = ["Cipher", "", "Text down", "Text up", "Random down", "Random up"];
    table(out, &header, rows)
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
                        toward(report.requests.iter().find(is)?.rates, direction)
                    })
                    .collect(),
            })
            .collect();
        (caption(direction), chart::lines(&places, &series, true), series)
    });
    figures(out, charts)
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
                .map(|row| toward(row.rates, direction))
                .collect(),
        })
        .collect();
    figures(
        out,
        [("All together", chart::lines(&places, &series, false), series)],
    )
}

fn rsync(out: &mut String, report: &Report) -> anyhow::Result<()> {
    if report.rsync.is_empty() {
        return Ok(());
    }
    writeln!(out, "<h2>rsync</h2>")?;
    let rows = report.rsync.iter().map(|row| {
        [
            escaped(&row.work),
            format!("<code>{}</code>", escaped(&row.options.join(" "))),
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
        writeln!(out, "<li>{}</li>", escaped(note))?;
    }
    writeln!(out, "</ul>")?;
    Ok(())
}

type Figure<E> = (&'static str, Result<String, E>, Vec<Series>);

/// Charts beside each other, each under its caption and key.
fn figures<E, const N: usize>(out: &mut String, charts: [Figure<E>; N]) -> anyhow::Result<()>
where
    E: std::error::Error + Send + Sync + 'static,
{
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
                escaped(&one.name)
            )?;
        }
        writeln!(out, "</ul>\n{}\n</figure>", svg?)?;
    }
    writeln!(out, "</div>")?;
    Ok(())
}

fn table<const N: usize>(
    out: &mut String,
    header: &[&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> anyhow::Result<()> {
    writeln!(out, "<div class=\"scroll\"><table>\n<tr>")?;
    for name in header {
        write!(out, "<th>{name}</th>")?;
    }
    writeln!(out, "</tr>")?;
    for row in rows {
        writeln!(out, "<tr><td>{}</td></tr>", row.join("</td><td>"))?;
    }
    writeln!(out, "</table></div>")?;
    Ok(())
}

fn rates(row: &CipherRow, compressible: bool) -> Rates {
    if compressible {
        row.compressible
    } else {
        row.incompressible
    }
}

fn toward(rates: Rates, direction: Direction) -> Option<f64> {
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

/// `32 KiB`.
fn bytes(count: u64) -> String {
    match count {
        count if count < 1024 => format!("{count} B"),
        count if count < 1 << 20 => format!("{} KiB", count / 1024),
        count => format!("{} MiB", count >> 20),
    }
}

/// Text of others, in HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
