//! The table of `trunkline ls`: a row for each connection.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use trunkline_control::protocol::{ConnectionReport, HostReport, MasterReport, MasterState};
use trunkline_text::{Printable, count_of};

use super::grid::{Grid, wrapped_list};

/// A column: its name, layout and value.
struct Column {
    name: &'static str,
    /// Aligned to the right.
    number: bool,
    /// The column is hidden if all rows have one of these values.
    silent: &'static [&'static str],
    /// The order in which columns are dropped on a narrow terminal, lowest first; `None`: never.
    dropped: Option<u8>,
    value: fn(&Row<'_>) -> String,
}

/// A connection of a host, a master of ssh, or a host with only sockets.
struct Row<'a> {
    host: &'a HostReport,
    master: Option<&'a MasterReport>,
    connection: Option<&'a ConnectionReport>,
}

/// The columns, from left to right.
const COLUMNS: [Column; 13] = [
    Column {
        name: "HOST",
        number: false,
        silent: &[],
        dropped: None,
        value: |row| Printable::line(&row.host.name).into_string(),
    },
    Column {
        name: "ADDRESS",
        number: false,
        silent: &[],
        dropped: Some(3),
        value: |row| Printable::line(&row.host.address).into_string(),
    },
    Column {
        name: "STATE",
        number: false,
        silent: &[],
        dropped: None,
        value: |row| match (row.master, row.connection) {
            (Some(master), _) => state_of_master(master, row.host.pinned).into(),
            (None, Some(connection)) => state(connection, row.host.pinned).into(),
            (None, None) => "listening".into(),
        },
    },
    Column {
        name: "UP",
        number: true,
        silent: &[""],
        dropped: Some(5),
        value: |row| {
            let handshake = row
                .connection
                .and_then(|connection| connection.handshake.as_ref());
            let since = handshake.map(|handshake| handshake.since);
            since
                .or(row.master.and_then(|master| master.since))
                .map_or_else(String::new, age)
        },
    },
    Column {
        name: "CLOSES IN",
        number: true,
        silent: &[""],
        dropped: Some(11),
        value: |row| row.says(|connection| Some(span(connection.closes_in?.as_secs()))),
    },
    Column {
        name: "RTT",
        number: true,
        silent: &[""],
        dropped: Some(7),
        value: |row| row.says(|connection| connection.rtt.map(milliseconds)),
    },
    Column {
        name: "SESSIONS",
        number: true,
        silent: &[],
        dropped: Some(10),
        value: |row| {
            let of_master = row.master.and_then(|master| master.sessions);
            of_master.map_or_else(
                || row.says(|connection| Some(connection.sessions.to_string())),
                |count| count.to_string(),
            )
        },
    },
    Column {
        name: "TUNNELS",
        number: true,
        silent: &["", "0"],
        dropped: Some(4),
        value: |row| row.says(|connection| Some(connection.tunnels.to_string())),
    },
    Column {
        name: "SENT",
        number: true,
        silent: &[""],
        dropped: Some(8),
        value: |row| row.says(|connection| Some(bytes(connection.sent))),
    },
    Column {
        name: "RECEIVED",
        number: true,
        silent: &[""],
        dropped: Some(9),
        value: |row| row.says(|connection| Some(bytes(connection.received))),
    },
    Column {
        name: "RATE",
        number: true,
        silent: &[""],
        dropped: Some(6),
        // A shell's keystrokes do not count as traffic.
        value: |row| {
            let rate = |connection: &ConnectionReport| format!("{}/s", bytes(connection.rate / 8));
            row.says(|connection| (connection.rate >= QUIET).then(|| rate(connection)))
        },
    },
    Column {
        name: "TRANSPORT",
        number: false,
        silent: &["native"],
        dropped: Some(2),
        value: |row| row.host.transport.as_str().into(),
    },
    Column {
        name: "STOCK SSH",
        number: false,
        silent: &[""],
        dropped: Some(1),
        value: |row| match (row.master, row.host.mux_sockets.len()) {
            (Some(master), _) => master
                .pid
                .map_or_else(String::new, |pid| format!("process {pid}")),
            (None, 0) => String::new(),
            (None, some) => count_of(some, "socket"),
        },
    },
];

impl Row<'_> {
    /// Returns a fact about the row's connection, if it has one.
    fn says(&self, of: impl FnOnce(&ConnectionReport) -> Option<String>) -> String {
        self.connection.and_then(of).unwrap_or_default()
    }
}

/// Returns a table of as many columns as fit into `width`, with a final newline.
pub(crate) fn table(hosts: &[HostReport], width: Option<u16>) -> String {
    let rows: Vec<Row<'_>> = hosts.iter().flat_map(rows).collect();
    let mut shown: Vec<(&Column, Vec<String>)> = COLUMNS
        .iter()
        .map(|column| (column, rows.iter().map(column.value).collect()))
        .collect();
    shown.retain(|(column, values): &(&Column, Vec<String>)| {
        !values.iter().all(|value| column.silent.contains(&value.as_str()))
    });
    let fits = |text: &str| {
        let widest = text.lines().map(|line| line.chars().count()).max();
        width.is_none_or(|width| widest.unwrap_or_default() <= usize::from(width))
    };
    let mut text = draw(&shown, rows.len());
    while !fits(&text)
        && let Some(next) = shown.iter().filter_map(|(column, _)| column.dropped).min()
    {
        shown.retain(|(column, _)| column.dropped != Some(next));
        text = draw(&shown, rows.len());
    }
    text + &differences(hosts, width) + &resumptions(hosts)
}

/// Names the hosts whose running sessions were resumed on a new connection.
fn resumptions(hosts: &[HostReport]) -> String {
    let hosts = hosts.iter().filter(|host| host.resumed > 0);
    let line = |host: &HostReport| {
        let times = count_of(host.resumed, "time");
        let name = Printable::line(&host.name);
        format!("{name}: running SFTP sessions were carried over to a new connection {times}\n")
    };
    hosts.map(line).collect()
}

/// Explains for each account with several rows why they are separate.
fn differences(hosts: &[HostReport], width: Option<u16>) -> String {
    let mut accounts: BTreeMap<&str, Vec<&HostReport>> = BTreeMap::new();
    for host in hosts.iter().filter(|host| !host.differs.is_empty()) {
        accounts.entry(&host.address).or_default().push(host);
    }
    let line = |(address, rows): (&str, Vec<&HostReport>)| {
        let names: BTreeSet<&String> = rows
            .iter()
            .flat_map(|row| &row.differs)
            .map(|(name, _)| name)
            .collect();
        let values = |name: &String| {
            let of_row = |row: &&HostReport| {
                let found = row.differs.iter().find(|(other, _)| other == name);
                let value = found.map_or("", |(_, value)| value);
                if value.is_empty() {
                    "unset".to_owned()
                } else {
                    value.to_owned()
                }
            };
            let values: Vec<_> = rows.iter().map(of_row).collect();
            format!("{name} ({})", values.join(" | "))
        };
        let all: Vec<_> = names.into_iter().map(values).collect();
        let text = format!(
            "{address} has {} rows, which differ in {}",
            rows.len(),
            all.join(", ")
        );
        wrapped_list(&Printable::line(&text).into_string(), 2, width) + "\n"
    };
    accounts.into_iter().map(line).collect()
}

fn draw(shown: &[(&Column, Vec<String>)], rows: usize) -> String {
    let numbers = (0..).zip(shown).filter(|(_, (column, _))| column.number);
    let names = shown.iter().map(|(column, _)| column.name);
    let mut grid = Grid::new(names).numbers(numbers.map(|(place, _)| place));
    for row in 0..rows {
        grid.row(shown.iter().map(|(_, values)| &values[row]));
    }
    grid.draw(None)
}

fn rows(host: &HostReport) -> Vec<Row<'_>> {
    let row = |connection| Row {
        host,
        master: host.master.as_ref(),
        connection,
    };
    match host.connections.is_empty() || host.master.is_some() {
        true => vec![row(None)],
        false => host
            .connections
            .iter()
            .map(|connection| row(Some(connection)))
            .collect(),
    }
}

fn state_of_master(master: &MasterReport, is_pinned: bool) -> &'static str {
    match master.state {
        MasterState::Alive if is_pinned => "pinned",
        MasterState::Alive => "warm",
        other => other.as_str(),
    }
}

/// Returns the state of a connection in a word.
pub(crate) fn state(connection: &ConnectionReport, is_pinned: bool) -> &'static str {
    match () {
        () if connection.handshake.is_none() => "connecting",
        () if connection.closing => "closing",
        () if connection.silent => "silent",
        () if connection.busy => "busy",
        () if is_pinned => "pinned",
        () => "warm",
    }
}

/// Rates below this, in bits per second, are not shown.
const QUIET: u64 = 8 * 1024;

/// Formats a round-trip time.
pub(crate) fn milliseconds(time: Duration) -> String {
    let milliseconds = time.as_secs_f64() * 1e3;
    // On one machine it is some hundredths.
    let digits = if milliseconds < 0.1 { 2 } else { 1 };
    format!("{milliseconds:.digits$} ms")
}

/// Formats the time since `since`, in seconds since 1970.
pub(crate) fn age(since: u64) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    span(now.saturating_sub(since))
}

/// Formats a time in at most two units.
pub(crate) fn span(seconds: u64) -> String {
    match seconds {
        seconds @ ..60 => format!("{seconds} s"),
        seconds @ ..3600 => format!("{} min", seconds / 60),
        seconds @ ..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        seconds => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

pub(crate) fn bytes(count: u64) -> String {
    indicatif::BinaryBytes(count).to_string()
}

#[cfg(test)]
pub(crate) mod tests {
    use trunkline_control::protocol::{Handshake, Transport};

    use super::super::forms::forms;
    use super::*;

    /// Returns a connection without sessions, whose age is always 0 s.
    pub(crate) fn idle_connection() -> ConnectionReport {
        ConnectionReport {
            handshake: Some(Handshake {
                since: u64::MAX,
                server: "SSH-2.0-OpenSSH_9.2".into(),
                kex: "curve25519-sha256".into(),
                host_key: "ssh-ed25519".into(),
                cipher: "aes128-ctr".into(),
                mac: Some("hmac-sha2-256".into()),
                compressed: true,
                greeting: String::new(),
                log_in: "publickey ED25519 SHA256:x (agent)".into(),
                host_key_check: "known from /k:1".into(),
            }),
            rtt: Some(Duration::from_micros(1540)),
            spares: 1,
            sent: 3 << 20,
            received: 5 << 10,
            closes_in: Some(Duration::from_secs(90)),
            ..ConnectionReport::default()
        }
    }

    fn host(name: &str) -> HostReport {
        let address = format!("admin@{name}.example.com:22");
        HostReport {
            connections: vec![ConnectionReport {
                sessions: 2,
                closes_in: Some(Duration::from_secs(599)),
                ..idle_connection()
            }],
            ..HostReport::new(name, address, Transport::Native)
        }
    }

    #[test]
    fn columns_that_say_nothing_are_left_out_and_so_are_those_that_do_not_fit() {
        let mut stock = host("db1");
        stock.mux_sockets = vec!["/run/s".into()];
        let mut openssh = host("db2");
        openssh.transport = Transport::OpenSsh;
        let hosts = [host("web1"), stock, openssh];
        insta::assert_snapshot!(forms(|width, _| table(&hosts[..1], width)));
        insta::assert_snapshot!(forms(|width, _| table(&hosts, width)));
        insta::assert_snapshot!(table(&hosts, Some(40)));
    }

    #[test]
    fn two_rows_of_one_account_are_told_apart() {
        let differing = |pairs: &[(&str, &str)]| {
            let differs = pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            HostReport {
                differs: differs.collect(),
                ..host("web1")
            }
        };
        let hosts = [
            differing(&[("compression", "yes"), ("identityfile", "")]),
            host("db1"),
            differing(&[("compression", "no"), ("identityfile", "\"/k\u{1b}\"")]),
        ];
        insta::assert_snapshot!(forms(|width, _| table(&hosts, width)));
    }

    #[test]
    fn ages_are_told_in_two_units_at_most() {
        let ago = |seconds| age(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() - seconds);
        assert_eq!(ago(90), "1 min");
        assert_eq!(ago(7_300), "2 h 1 min");
        assert_eq!(ago(90_000), "1 d 1 h");
    }

    #[test]
    fn traffic_is_shown_where_there_is_some_and_names_do_nothing_to_the_terminal() {
        let mut host = host("a\u{1b}[2J");
        host.connections[0].rate = 8 << 20;
        host.connections[0].closes_in = None;
        insta::assert_snapshot!(forms(|width, _| table(&[host.clone()], width)));
    }
}
