//! The tables: their columns, the selection and order of rows, and the text of cells.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::time::Duration;

use trunkline_control::protocol::{Activity, ActivityKind, FailureReport};
use trunkline_text::count_of;

use super::subject::{Column, bar, natural, number, text};
use crate::model::{Host, Model};
use crate::quantity::{bytes, rate, time};

/// The selected table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum View {
    #[default]
    Hosts,
    Sessions,
    Copies,
    Failures,
}

impl View {
    pub(super) const ALL: [Self; 4] = [Self::Hosts, Self::Sessions, Self::Copies, Self::Failures];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Hosts => "Hosts",
            Self::Sessions => "Sessions",
            Self::Copies => "Copies",
            Self::Failures => "Failures",
        }
    }

    pub(super) fn columns(self) -> &'static [Column] {
        match self {
            Self::Hosts => HOSTS,
            Self::Sessions => SESSIONS,
            Self::Copies => COPIES,
            Self::Failures => FAILURES,
        }
    }
}

const HOSTS: &[Column] = &[
    text("HOST", 0, 0),
    text("ADDRESS", 34, 130),
    text("STATE", 10, 0),
    number("CONN", 4, 0),
    number("SESS", 5, 0),
    number("TUN", 4, 100),
    number("RTT", 7, 0),
    text("RTT, LAST", 10, 0),
    number("SENT/s", 6, 0),
    number("RECV/s", 6, 0),
    number("SENT", 6, 110),
    number("RECV", 6, 110),
    number("UP", 7, 90),
];

const SESSIONS: &[Column] = &[
    text("HOST", 20, 0),
    text("KIND", 9, 0),
    text("RUNS", 0, 0),
    text("FOR", 20, 0),
    number("PID", 7, 90),
    number("STARTED IN", 10, 100),
    number("AGE", 6, 0),
];

const COPIES: &[Column] = &[
    text("HOST", 16, 0),
    number("DONE", 5, 0),
    text("", 12, 0),
    number("OF", 6, 0),
    number("RATE/s", 6, 0),
    number("LEFT", 6, 0),
    number("FILES", 13, 100),
    number("FAILED", 6, 110),
    text("FROM AND TO", 0, 0),
    number("AGE", 6, 90),
];

const FAILURES: &[Column] = &[
    number("AGO", 6, 0),
    text("HOST", 18, 0),
    text("WHAT", 9, 90),
    text("BLAME", 14, 100),
    text("COMMAND", 16, 120),
    text("WHY", 0, 0),
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Row {
    /// A host, by sharing key.
    Host(String),
    Activity(u64),
    /// By age, oldest first.
    Failure(usize),
}

/// Returns the rows that pass a filter, in order. `now`: seconds since 1970.
pub(super) fn select(model: &Model, view: View, column: &str, has: impl Fn(&[&str]) -> bool) -> Vec<Row> {
    match view {
        View::Hosts => {
            let hosts = model.hosts.values();
            let mut hosts: Vec<&Host> = hosts
                .filter(|host| has(&[&host.report.name, &host.report.address]))
                .collect();
            hosts.sort_by(|a, b| {
                compare_hosts(a, b, column).then_with(|| natural(&a.report.name, &b.report.name))
            });
            hosts
                .into_iter()
                .map(|host| Row::Host(host.report.sharing.clone()))
                .collect()
        }
        View::Sessions | View::Copies => {
            let mut activities: Vec<&Activity> = model.activities.values().collect();
            activities.retain(|activity| (activity.kind == ActivityKind::Copy) == (view == View::Copies));
            activities.retain(|activity| {
                has(&[&activity.host, &activity.runs, &activity.on_behalf])
                    || activity.asker.programs.iter().any(|name| has(&[name]))
            });
            activities.sort_by(|a, b| compare_activities(model, a, b, column).then_with(|| b.id.cmp(&a.id)));
            activities
                .into_iter()
                .map(|activity| Row::Activity(activity.id))
                .collect()
        }
        View::Failures => {
            let all = model.failures.iter().enumerate();
            let mut failures: Vec<(usize, &FailureReport)> = all
                .filter(|(_, failure)| has(&[&failure.host, &failure.message]))
                .collect();
            failures.sort_by(|(at, a), (bt, b)| {
                let order = match column {
                    "HOST" => natural(&a.host, &b.host),
                    "WHAT" => a.activity.as_str().cmp(b.activity.as_str()),
                    "BLAME" => a.kind.as_str().cmp(b.kind.as_str()),
                    "COMMAND" => a.execution.cmp(&b.execution),
                    "WHY" => a.message.cmp(&b.message),
                    _ => Ordering::Equal,
                };
                order.then_with(|| bt.cmp(at))
            });
            failures.into_iter().map(|(at, _)| Row::Failure(at)).collect()
        }
    }
}

fn compare_hosts(a: &Host, b: &Host, column: &str) -> Ordering {
    let most = |of: fn(&Host) -> f64| of(b).total_cmp(&of(a));
    match column {
        "ADDRESS" => natural(&a.report.address, &b.report.address),
        "STATE" => a.state().cmp(b.state()),
        "CONN" => most(|host| host.report.connections.len() as f64),
        "SESS" => most(|host| f64::from(host.sessions())),
        "TUN" => most(|host| f64::from(host.tunnels())),
        "RTT" | "RTT, LAST" => most(|host| host.rtt().map_or(-1.0, |rtt| rtt.as_secs_f64())),
        "SENT/s" => most(|host| host.sent_rate),
        "RECV/s" => most(|host| host.received_rate),
        "SENT" => most(|host| host.moved_bytes().0 as f64),
        "RECV" => most(|host| host.moved_bytes().1 as f64),
        "UP" => most(|host| host.up().map_or(-1.0, |up| up.as_secs_f64())),
        _ => Ordering::Equal,
    }
}

fn compare_activities(model: &Model, a: &Activity, b: &Activity, column: &str) -> Ordering {
    let bytes = |activity: &Activity| {
        activity
            .transfer
            .as_ref()
            .map_or(0, |transfer| transfer.total_bytes)
    };
    match column {
        "HOST" => natural(&a.host, &b.host),
        "KIND" => a.kind.as_str().cmp(b.kind.as_str()),
        "RUNS" | "FROM AND TO" => a.runs.cmp(&b.runs),
        "FOR" => (&a.on_behalf, &a.asker.programs).cmp(&(&b.on_behalf, &b.asker.programs)),
        "PID" => a.asker.pid.cmp(&b.asker.pid),
        "STARTED IN" => b.started.cmp(&a.started),
        "AGE" => a.since.cmp(&b.since),
        "DONE" | "" => share(b).total_cmp(&share(a)),
        "OF" => bytes(b).cmp(&bytes(a)),
        "RATE/s" => model.copy_rate(b.id).total_cmp(&model.copy_rate(a.id)),
        "LEFT" => time_left(model, b).cmp(&time_left(model, a)),
        _ => Ordering::Equal,
    }
}

/// Returns the text of a cell. `now`: seconds since 1970.
pub(super) fn cell(model: &Model, row: &Row, column: &Column, now: u64) -> String {
    match row {
        Row::Host(sharing) => model.hosts.get(sharing).map(|host| of_host(host, column.name)),
        Row::Activity(id) => {
            let activity = model.activities.get(id);
            activity.map(|activity| of_activity(model, activity, column.name))
        }
        Row::Failure(at) => model.failures.get(*at).map(|failure| match column.name {
            "AGO" => time(Duration::from_secs(now.saturating_sub(failure.at).max(1))),
            "HOST" => failure.host.clone(),
            "WHAT" => failure.activity.as_str().into(),
            "BLAME" => failure.kind.as_str().into(),
            "COMMAND" => failure.execution.as_str().into(),
            _ => failure.message.clone(),
        }),
    }
    .unwrap_or_default()
}

fn of_host(host: &Host, column: &str) -> String {
    let some = |count: usize| {
        if count == 0 {
            String::new()
        } else {
            count.to_string()
        }
    };
    match column {
        "HOST" => host.report.name.clone(),
        "ADDRESS" => host.report.address.clone(),
        "STATE" => host.state().into(),
        "CONN" => some(host.report.connections.len()),
        "SESS" => some(host.sessions() as usize),
        "TUN" => some(host.tunnels() as usize),
        "RTT" => host.rtt().map(time).unwrap_or_default(),
        "RTT, LAST" => sparkline(&host.rtts, 10),
        "SENT/s" => rate(host.sent_rate),
        "RECV/s" => rate(host.received_rate),
        "SENT" => bytes(host.moved_bytes().0),
        "RECV" => bytes(host.moved_bytes().1),
        _ => host.up().map(time).unwrap_or_default(),
    }
}

fn of_activity(model: &Model, activity: &Activity, column: &str) -> String {
    let transfer = activity.transfer.as_ref();
    match column {
        "HOST" => activity.host.clone(),
        "KIND" => activity.kind.as_str().into(),
        "RUNS" | "FROM AND TO" => runs(activity),
        "FOR" => match &*activity.on_behalf {
            "" => asker(activity),
            who => who.to_owned(),
        },
        "PID" => activity.asker.pid.map(|pid| pid.to_string()).unwrap_or_default(),
        "STARTED IN" => activity.started.map_or_else(|| "starting".into(), time),
        "AGE" => time(model.age(activity.since).max(Duration::from_secs(1))),
        "DONE" => format!("{:.0}%", (100.0 * share(activity)).floor()),
        "" => bar(share(activity), 12),
        "OF" => {
            let counted = transfer.is_some_and(|transfer| transfer.counted);
            let total = bytes(transfer.map_or(0, |transfer| transfer.total_bytes));
            format!("{total}{}", if counted { "" } else { "+" })
        }
        "RATE/s" => rate(model.copy_rate(activity.id)),
        "LEFT" => time_left(model, activity).map(time).unwrap_or_default(),
        "FILES" => transfer.map_or_else(String::new, |transfer| {
            format!("{}/{}", transfer.files, transfer.total_files)
        }),
        "FAILED" => match transfer.map_or(0, |transfer| transfer.failed) {
            0 => String::new(),
            some => some.to_string(),
        },
        _ => String::new(),
    }
}

/// Returns the command, and how often it was resumed on a new connection.
fn runs(activity: &Activity) -> String {
    match activity.resumed {
        0 => activity.runs.clone(),
        times => format!("{}, carried over {}", activity.runs, count_of(times, "time")),
    }
}

/// Returns the program that asked, and the one that ran it.
pub(super) fn asker(activity: &Activity) -> String {
    let mut programs = activity.asker.programs.clone();
    programs.reverse();
    match programs.is_empty() {
        true => "?".into(),
        false => programs.join(" > "),
    }
}

/// Returns the finished share of a copy.
fn share(activity: &Activity) -> f64 {
    match &activity.transfer {
        Some(transfer) if transfer.total_bytes > 0 => {
            (transfer.bytes as f64 / transfer.total_bytes as f64).min(1.0)
        }
        _ => 0.0,
    }
}

/// Returns the remaining time of a copy at its present rate.
fn time_left(model: &Model, activity: &Activity) -> Option<Duration> {
    let transfer = activity.transfer.as_ref().filter(|transfer| transfer.counted)?;
    let rate = model.copy_rate(activity.id);
    let seconds = transfer.total_bytes.saturating_sub(transfer.bytes) as f64 / rate;
    (rate >= 1.0).then(|| Duration::try_from_secs_f64(seconds.ceil()).ok())?
}

/// Draws the last values as bars relative to the greatest; a space for zero.
pub(super) fn sparkline(values: &VecDeque<u64>, width: usize) -> String {
    let last = values.range(values.len().saturating_sub(width)..);
    let most = last.clone().copied().max().unwrap_or(0);
    last.map(|value| match *value {
        0 => ' ',
        value => ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
            [((value as f64 / most as f64 * 8.0).ceil() as usize).clamp(1, 8) - 1],
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_carried_over_to_a_new_connection_says_so() {
        let mut session = crate::model::tests::activity(1, ActivityKind::Subsystem, "nas", "sftp");
        assert_eq!(runs(&session), "sftp");
        session.resumed = 2;
        assert_eq!(runs(&session), "sftp, carried over 2 times");
    }

    #[test]
    fn bars_and_sparklines_have_their_width() {
        assert_eq!(bar(0.0, 4), "");
        assert_eq!(bar(0.5, 4), "██");
        assert_eq!(bar(1.0, 4), "████");
        assert_eq!(sparkline(&[9, 0, 1, 8].into(), 3), " ▁█");
        assert_eq!(sparkline(&[].into(), 3), "");
    }
}
