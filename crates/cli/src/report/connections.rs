//! What `trunkline ls` shows: a row for each connection.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use trunkline_control::protocol::{ConnectionReport, HostReport, MasterReport, MasterState};
use trunkline_text::{Printable, counted};

use super::grid::{Grid, wrapped_list};

/// The columns, from left to right.
const COLUMNS: [Column; 13] = [
    Column {
        name: "HOST",
        number: false,
        silent: &[],
    },
    Column {
        name: "ADDRESS",
        number: false,
        silent: &[],
    },
    Column {
        name: "STATE",
        number: false,
        silent: &[],
    },
    Column {
        name: "UP",
        number: true,
        silent: &[""],
    },
    Column {
        name: "CLOSES IN",
        number: true,
        silent: &[""],
    },
    Column {
        name: "RTT",
        number: true,
        silent: &[""],
    },
    Column {
        name: "SESSIONS",
        number: true,
        silent: &[],
    },
    Column {
        name: "TUNNELS",
        number: true,
        silent: &["", "0"],
    },
    Column {
        name: "SENT",
        number: true,
        silent: &[""],
    },
    Column {
        name: "RECEIVED",
        number: true,
        silent: &[""],
    },
    Column {
        name: "RATE",
        number: true,
        silent: &[""],
    },
    Column {
        name: "TRANSPORT",
        number: false,
        silent: &["native"],
    },
    Column {
        name: "STOCK SSH",
        number: false,
        silent: &[""],
    },
];

struct Column {
    name: &'static str,
    /// Whether it is aligned to the right.
    number: bool,
    /// It is not shown where every row says only this.
    silent: &'static [&'static str],
}

/// What a narrow terminal does without, in this order.
const DISPENSABLE: [usize; 11] = [12, 11, 1, 7, 3, 10, 5, 8, 9, 6, 4];

type Row = [String; COLUMNS.len()];

/// A table, of as many columns as `width` has room for. Ends in a newline.
pub(crate) fn table(hosts: &[HostReport], width: Option<u16>) -> String {
    let rows: Vec<Row> = hosts.iter().flat_map(rows).collect();
    let mut shown: Vec<usize> = (0..COLUMNS.len()).collect();
    shown.retain(|&column| {
        let silent = COLUMNS[column].silent;
        !rows.iter().all(|row| silent.contains(&row[column].as_str()))
    });
    let mut text = drawn(&rows, &shown);
    for column in DISPENSABLE {
        let fits = |width: u16| {
            text.lines()
                .all(|line| line.chars().count() <= usize::from(width))
        };
        if width.is_none_or(fits) {
            break;
        }
        shown.retain(|other| *other != column);
        text = drawn(&rows, &shown);
    }
    text + &differences(hosts, width) + &resumptions(hosts)
}

/// Names the hosts whose running sessions have outlived their connection.
fn resumptions(hosts: &[HostReport]) -> String {
    let hosts = hosts.iter().filter(|host| host.resumed > 0);
    let line = |host: &HostReport| {
        let times = counted(host.resumed, "time");
        let name = Printable::line(&host.name);
        format!("{name}: running SFTP sessions were carried over to a new connection {times}\n")
    };
    hosts.map(line).collect()
}

/// For each account with several rows, what keeps them apart.
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

fn drawn(rows: &[Row], shown: &[usize]) -> String {
    let numbers = (0..).zip(shown).filter(|(_, column)| COLUMNS[**column].number);
    let mut grid =
        Grid::new(shown.iter().map(|column| COLUMNS[*column].name)).numbers(numbers.map(|(place, _)| place));
    for row in rows {
        grid.row(shown.iter().map(|column| &row[*column]));
    }
    grid.drawn(None)
}

fn rows(host: &HostReport) -> Vec<Row> {
    let stock = match host.mux_sockets.len() {
        0 => String::new(),
        some => counted(some, "socket"),
    };
    let row = |middle: Middle, stock: String| {
        let [state, up, closes_in, rtt, sessions, tunnels, sent, received, rate] = middle;
        [
            Printable::line(&host.name).into_string(),
            Printable::line(&host.address).into_string(),
            state,
            up,
            closes_in,
            rtt,
            sessions,
            tunnels,
            sent,
            received,
            rate,
            host.transport.as_str().into(),
            stock,
        ]
    };
    if let Some(master) = &host.master {
        let process = master.pid.map(|pid| format!("process {pid}"));
        vec![row(of_master(host, master), process.unwrap_or_default())]
    } else if host.connections.is_empty() {
        let mut middle = Middle::default();
        middle[0] = "listening".into();
        vec![row(middle, stock)]
    } else {
        let connections = host.connections.iter();
        connections
            .map(|connection| row(of_connection(host, connection), stock.clone()))
            .collect()
    }
}

/// From STATE to RATE.
type Middle = [String; 9];

fn of_master(host: &HostReport, master: &MasterReport) -> Middle {
    let state = match master.state {
        MasterState::Alive if host.pinned => "pinned",
        MasterState::Alive => "warm",
        other => other.as_str(),
    };
    let mut middle = Middle::default();
    middle[0] = state.into();
    middle[1] = master.since.map_or_else(String::new, age);
    middle[4] = master
        .sessions
        .map_or_else(String::new, |count| count.to_string());
    middle
}

/// What a connection is doing, in a word.
pub(crate) fn state(connection: &ConnectionReport, is_pinned: bool) -> &'static str {
    match () {
        () if connection.handshake.is_none() => "connecting",
        () if connection.silent => "silent",
        () if connection.busy => "busy",
        () if is_pinned => "pinned",
        () => "warm",
    }
}

fn of_connection(host: &HostReport, connection: &ConnectionReport) -> Middle {
    let or_empty = |text: Option<String>| text.unwrap_or_default();
    [
        state(connection, host.pinned).into(),
        or_empty(
            connection
                .handshake
                .as_ref()
                .map(|handshake| age(handshake.since)),
        ),
        or_empty(connection.closes_in.map(|left| span(left.as_secs()))),
        or_empty(connection.rtt.map(milliseconds)),
        connection.sessions.to_string(),
        connection.tunnels.to_string(),
        bytes(connection.sent),
        bytes(connection.received),
        // What a shell's keystrokes make is not traffic.
        or_empty((connection.rate >= QUIET).then(|| format!("{}/s", bytes(connection.rate / 8)))),
    ]
}

/// Bits a second that are not worth a column.
const QUIET: u64 = 8 * 1024;

/// A round-trip time.
pub(crate) fn milliseconds(time: Duration) -> String {
    let milliseconds = time.as_secs_f64() * 1e3;
    // On one machine it is some hundredths.
    let digits = if milliseconds < 0.1 { 2 } else { 1 };
    format!("{milliseconds:.digits$} ms")
}

/// How long ago a second since 1970 was.
pub(crate) fn age(since: u64) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    span(now.saturating_sub(since))
}

/// A time in two units at most.
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

    /// A connection without sessions, whose age is 0 s whenever this is run.
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
            sessions: 0,
            tunnels: 0,
            spares: 1,
            busy: false,
            silent: false,
            rate: 0,
            sent: 3 << 20,
            received: 5 << 10,
            closes_in: Some(Duration::from_secs(90)),
        }
    }

    fn host(name: &str) -> HostReport {
        HostReport {
            name: name.into(),
            address: format!("admin@{name}.example.com:22"),
            transport: Transport::Native,
            pinned: false,
            sharing: String::new(),
            differs: Vec::new(),
            mux_sockets: Vec::new(),
            connections: vec![ConnectionReport {
                sessions: 2,
                closes_in: Some(Duration::from_secs(599)),
                ..idle_connection()
            }],
            master: None,
            resumed: 0,
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
