//! The end of a run: a line of counts, and a table of failures.

use super::colours::Colours;
use super::grid::Grid;
use super::{Execution, HostResult, INTERRUPTED, Outcome, fold, join, printable, seconds};
use std::collections::HashMap;
use std::time::Duration;

use trunkline_text::count_of;

/// Returns the table of failures, and whether their commands may have run; empty if there are none. Equal failures
/// share a row under their hosts' folded names, most hosts first.
///
/// `width` is the terminal's in columns, or `None` not to wrap. Ends in a newline.
pub(crate) fn failures(results: &[HostResult], width: Option<u16>) -> String {
    table(results, width, true)
}

/// Returns the table of failures of actions that run no commands.
pub(crate) fn failures_without_commands(results: &[HostResult], width: Option<u16>) -> String {
    table(results, width, false)
}

fn table(results: &[HostResult], width: Option<u16>, commands: bool) -> String {
    let failures = alike(results);
    if failures.is_empty() {
        return String::new();
    }
    let shown = |cells: [String; 4]| {
        let cells = cells.into_iter().enumerate();
        cells.filter_map(move |(column, cell)| (commands || column != 2).then_some(cell))
    };
    let mut table = Grid::new(shown(["HOSTS", "OUTCOME", "COMMAND", "ERROR"].map(str::to_owned)));
    for (outcome, names) in failures {
        let (command, error) = match &outcome {
            Outcome::Failed {
                message, execution, ..
            } => (execution.to_string(), printable(message)),
            Outcome::Exited(_) | Outcome::Signaled { .. } => ("finished".to_owned(), String::new()),
        };
        table.row(shown([
            fold::fold(names),
            printable(&outcome.to_string()),
            command,
            error,
        ]));
    }
    table.draw(width)
}

/// Describes how far each host of an interrupted run got. Ends in a newline.
pub(crate) fn render_interrupted(results: &[HostResult]) -> String {
    let stopped = |outcome: &Outcome| match outcome {
        // The run's own SIGTERM.
        Outcome::Signaled { name, .. } => name == "TERM",
        Outcome::Failed { kind, execution, .. } => {
            kind == INTERRUPTED && *execution != Execution::DidNotStart
        }
        Outcome::Exited(_) => false,
    };
    let not_started = Outcome::is_left_out;
    let part = |what: &str, wanted: &dyn Fn(&Outcome) -> bool| {
        let names: Vec<&str> = results
            .iter()
            .filter(|result| wanted(&result.outcome))
            .map(|result| result.host.as_str())
            .collect();
        (!names.is_empty()).then(|| format!("{what}: {}", fold::fold(names)))
    };
    let parts = [
        part("done", &|outcome| !stopped(outcome) && !not_started(outcome)),
        part("running, sent SIGTERM", &stopped),
        part("not started", &not_started),
    ];
    format!(
        "interrupted; {}\n",
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    )
}

/// Returns the counts of hosts by outcome. `elapsed` is the whole run's time. Ends in a newline.
pub(crate) fn counts(results: &[HostResult], elapsed: Duration, colours: Colours) -> String {
    let count =
        |wanted: fn(&Outcome) -> bool| results.iter().filter(|result| wanted(&result.outcome)).count();
    let succeeded = count(Outcome::is_success);
    let left_out = count(Outcome::is_left_out);
    let failed = count(|outcome| matches!(outcome, Outcome::Failed { .. })) - left_out;
    let unsuccessful = results.len() - succeeded - failed - left_out;
    let warm = results.iter().filter(|result| result.warm).count();
    let mut parts = Vec::new();
    if succeeded > 0 {
        parts.push(colours.good(format_args!("{succeeded} succeeded")));
    }
    if unsuccessful > 0 {
        parts.push(colours.bad(format_args!("{unsuccessful} returned an error")));
    }
    if failed > 0 {
        parts.push(colours.bad(format_args!("{failed} failed")));
    }
    if left_out > 0 {
        parts.push(colours.bad(format_args!("{left_out} not started")));
    }
    if warm > 0 {
        parts.push(format!("{warm} warm"));
    }
    let total = format!("{} in {}", count_of(results.len(), "host"), seconds(elapsed));
    if parts.is_empty() {
        format!("{total}\n")
    } else {
        format!("{total}: {}\n", parts.join(", "))
    }
}

/// Returns everything but success, with its hosts: most hosts first, then in the order of the list.
fn alike(results: &[HostResult]) -> Vec<(Outcome, Vec<&str>)> {
    let mut failures: Vec<Vec<&HostResult>> = Vec::new();
    let mut places = HashMap::new();
    let unsuccessful = results.iter().filter(|result| !result.outcome.is_success());
    let mut unsuccessful: Vec<_> = unsuccessful.collect();
    unsuccessful.sort_by_key(|result| result.number);
    for result in unsuccessful {
        let place = *places.entry(result.alike()).or_insert(failures.len());
        match failures.get_mut(place) {
            Some(alike) => alike.push(result),
            None => failures.push(vec![result]),
        }
    }
    failures.sort_by_key(|alike| std::cmp::Reverse(alike.len()));
    let failures = failures.into_iter().filter_map(|alike| {
        let outcomes: Vec<&Outcome> = alike.iter().map(|result| &result.outcome).collect();
        let outcome = join(&outcomes)?;
        Some((outcome, alike.iter().map(|result| result.host.as_str()).collect()))
    });
    failures.collect()
}

#[cfg(test)]
mod tests {
    use super::super::forms::forms;
    use super::super::tests::{failure, result};
    use super::*;

    fn summary(results: &[HostResult], elapsed: Duration) -> String {
        forms(|width, colours| counts(results, elapsed, colours) + &failures(results, width))
    }

    fn run() -> Vec<HostResult> {
        let refused = || {
            failure(
                "network",
                "the server refused the connection on port 22",
                Execution::DidNotStart,
            )
        };
        let lost = failure(
            "timeout",
            "no answer for 30 s;\nthe connection was given up",
            Execution::MayHaveStarted,
        );
        let mut cold = result("db1", lost, "");
        cold.warm = false;
        vec![
            result("web01", Outcome::Exited(0), ""),
            cold,
            result("web02", Outcome::Exited(3), ""),
            result("web03", refused(), ""),
            result("web04", refused(), ""),
            result(
                "web05",
                Outcome::Signaled {
                    name: "KILL".to_owned(),
                    core: false,
                },
                "",
            ),
        ]
    }

    #[test]
    fn a_summary_counts_and_names_what_went_wrong() {
        insta::assert_snapshot!(summary(&run(), Duration::from_millis(2340)));
    }

    #[test]
    fn failures_that_as_many_hosts_share_are_in_the_order_of_the_list() {
        let results = [(3, "web3"), (1, "web1"), (2, "web2")].map(|(number, name)| HostResult {
            number,
            ..result(name, Outcome::Exited(number as u32), "")
        });
        let table = failures(&results, None);
        let hosts: Vec<&str> = table.lines().skip(1).map(|line| &line[..4]).collect();
        assert_eq!(hosts, ["web1", "web2", "web3"], "{table}");
    }

    #[test]
    fn an_interrupted_run_says_how_far_each_host_was() {
        let signalled = Outcome::Signaled {
            name: "TERM".to_owned(),
            core: false,
        };
        let results = [
            result("web1", Outcome::Exited(0), ""),
            result("web2", Outcome::Exited(3), ""),
            result("web3", signalled, ""),
            result(
                "web4",
                failure("interrupted", "SIGTERM was sent", Execution::MayHaveStarted),
                "",
            ),
            result("web5", failure("interrupted", "x", Execution::DidNotStart), ""),
            result("web6", failure("interrupted", "x", Execution::DidNotStart), ""),
        ];
        assert_eq!(
            render_interrupted(&results),
            "interrupted; done: web[1-2]; running, sent SIGTERM: web[3-4]; not started: web[5-6]\n"
        );
    }

    #[test]
    fn hosts_whose_errors_differ_in_names_alone_share_a_row() {
        let refused = |host: &str, n: u8| {
            let message = format!("connecting to 10.0.0.{n} port 22: Connection refused");
            result(host, failure("network", &message, Execution::DidNotStart), "")
        };
        insta::assert_snapshot!(summary(
            &[refused("web1", 1), refused("web2", 2)],
            Duration::from_secs(1)
        ));
    }

    #[test]
    fn where_all_is_well_one_line_says_so() {
        let well = [result("web1", Outcome::Exited(0), "")];
        insta::assert_snapshot!(summary(&well, Duration::from_millis(80)));
    }
}
