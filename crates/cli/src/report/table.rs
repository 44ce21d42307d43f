//! `--table`: a row for each host.

use super::colours::Colours;
use super::grid::Grid;
use super::output::Output;
use super::{Execution, HostResult, Outcome, printable, seconds};
use std::io;
use trunkline_text::Printable;

/// The limits of the output shown, in bytes and lines.
const BYTES: usize = 4 << 10;
const LINES: usize = 10;

/// Returns a table with a row for each host, in the order of the list. `width` is the terminal's, or `None` not to
/// wrap.
///
/// # Errors
/// Output on disk could not be read.
pub(crate) fn table(results: &[HostResult], width: Option<u16>, colours: Colours) -> io::Result<String> {
    let mut table = Grid::new(["HOST", "STATUS", "TIME", "OUTPUT"]);
    let mut rows: Vec<&HostResult> = results.iter().collect();
    rows.sort_by_key(|result| result.number);
    for result in rows {
        let status = match &result.outcome {
            Outcome::Exited(0) => "ok".to_owned(),
            Outcome::Failed {
                kind,
                execution: Execution::MayHaveStarted,
                ..
            } => format!("{kind}, may have run"),
            outcome => printable(&outcome.to_string()),
        };
        table.row([
            printable(&result.host),
            status,
            seconds(result.elapsed),
            output(result)?,
        ]);
    }
    let text = table.draw(width);
    let (header, rows) = text.split_once('\n').unwrap_or_default();
    Ok(format!("{}\n{rows}", colours.host(header)))
}

/// Returns a host's output, or its error.
fn output(result: &HostResult) -> io::Result<String> {
    let mut parts = Vec::new();
    if let Outcome::Failed { message, .. } = &result.outcome {
        parts.push(printable(message));
    }
    parts.push(beginning(&result.stdout)?);
    if !result.outcome.is_success() {
        parts.push(beginning(&result.stderr)?);
    }
    parts.retain(|part| !part.is_empty());
    Ok(parts.join("\n"))
}

fn beginning(output: &Output) -> io::Result<String> {
    let (bytes, is_all) = output.beginning(BYTES)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines: Vec<String> = text
        .lines()
        .take(LINES)
        .map(|line| Printable::line(line).into_string())
        .collect();
    if !is_all || text.lines().count() > LINES {
        lines.push("…".into());
    }
    Ok(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::super::forms::forms;
    use super::super::tests::{failure, result};
    use super::*;

    #[test]
    fn each_host_has_a_row() {
        let numbered = |number, result: HostResult| HostResult { number, ..result };
        let refused = failure(
            "network",
            "connecting to db1.example.com port 22: Connection refused",
            Execution::DidNotStart,
        );
        let mut odd = result("web2", Outcome::Exited(3), "two\nlines\n");
        odd.stderr = b"and \x1b[31man error\n".as_slice().into();
        let long: String = (1..30).map(|n| format!("{n}\n")).collect();
        let results = [
            numbered(3, result("db1", refused, "")),
            numbered(2, odd),
            numbered(1, result("web1", Outcome::Exited(0), "6.1.0\n")),
            numbered(4, result("db2", Outcome::Exited(0), &long)),
        ];
        let shown = forms(|width, colours| table(&results, width, colours).expect("nothing is on disk"));
        insta::assert_snapshot!(shown);
    }
}
