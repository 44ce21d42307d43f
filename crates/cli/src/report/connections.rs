//! What `trunkline ls` shows: a row for each connection.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use comfy_table::{Table, presets};
use trunkline_control::protocol::{ConnectionReport, HostReport, MasterReport};

const COLUMNS: usize = 11;

const HEADER: [&str; COLUMNS] = [
    "HOST",
    "ADDRESS",
    "STATE",
    "UP",
    "RTT",
    "SESSIONS",
    "TUNNELS",
    "SENT",
    "RECEIVED",
    "TRANSPORT",
    "STOCK SSH",
];

/// Columns that are not shown where every row says only this.
const SILENT: [(usize, &[&str]); 3] = [(6, &["", "0"]), (9, &["native"]), (10, &[""])];

/// What a narrow terminal does without, in this order.
const DISPENSABLE: [usize; 8] = [10, 9, 6, 8, 7, 3, 4, 1];

type Row = [String; COLUMNS];

/// A table, of as many columns as `width` has room for. Ends in a newline.
pub(crate) fn table(hosts: &[HostReport], width: Option<u16>) -> String {
    let rows: Vec<Row> = hosts.iter().flat_map(rows).collect();
    let mut shown: Vec<usize> = (0..COLUMNS).collect();
    for (column, silent) in SILENT {
        if rows.iter().all(|row| silent.contains(&row[column].as_str())) {
            shown.retain(|other| *other != column);
        }
    }
    let mut text = drawn(&rows, &shown);
    for column in DISPENSABLE {
        let fits = |width: u16| text.lines().all(|line| line.chars().count() <= width.into());
        if width.is_none_or(fits) {
            break;
        }
        shown.retain(|other| *other != column);
        text = drawn(&rows, &shown);
    }
    text
}

fn drawn(rows: &[Row], shown: &[usize]) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(shown.iter().map(|column| HEADER[*column]));
    for row in rows {
        table.add_row(shown.iter().map(|column| &row[*column]));
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn rows(host: &HostReport) -> Vec<Row> {
    let stock = match host.mux_sockets.len() {
        0 => String::new(),
        1 => "1 socket".into(),
        more => format!("{more} sockets"),
    };
    let row = |middle: [String; 7], stock: String| {
        let [state, up, rtt, sessions, tunnels, sent, received] = middle;
        [
            host.name.clone(),
            host.address.clone(),
            state,
            up,
            rtt,
            sessions,
            tunnels,
            sent,
            received,
            host.transport.clone(),
            stock,
        ]
    };
    if let Some(master) = &host.master {
        let process = master.pid.map(|pid| format!("process {pid}"));
        vec![row(of_master(host, master), process.unwrap_or_default())]
    } else if host.connections.is_empty() {
        let mut middle = <[String; 7]>::default();
        middle[0] = "listening".into();
        vec![row(middle, stock)]
    } else {
        let connections = host.connections.iter();
        connections
            .map(|connection| row(of_connection(host, connection), stock.clone()))
            .collect()
    }
}

fn of_master(host: &HostReport, master: &MasterReport) -> [String; 7] {
    let state = match &*master.state {
        "alive" if host.pinned => "pinned",
        "alive" => "warm",
        other => other,
    };
    let mut middle = <[String; 7]>::default();
    middle[0] = state.into();
    middle[1] = master.since.map_or_else(String::new, age);
    middle[3] = master
        .sessions
        .map_or_else(String::new, |count| count.to_string());
    middle
}

fn of_connection(host: &HostReport, connection: &ConnectionReport) -> [String; 7] {
    let state = match (connection.ready, connection.busy, host.pinned) {
        (false, ..) => "connecting",
        (_, true, _) => "busy",
        (.., true) => "pinned",
        _ => "warm",
    };
    [
        state.into(),
        connection.since.map_or_else(String::new, age),
        connection.rtt.map_or_else(String::new, milliseconds),
        connection.sessions.to_string(),
        connection.tunnels.to_string(),
        bytes(connection.sent),
        bytes(connection.received),
    ]
}

/// A round-trip time.
pub(crate) fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

fn age(since: u64) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    match now.saturating_sub(since) {
        seconds @ ..60 => format!("{seconds} s"),
        seconds @ ..3600 => format!("{} min", seconds / 60),
        seconds @ ..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        seconds => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

fn bytes(count: u64) -> String {
    indicatif::BinaryBytes(count).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> HostReport {
        HostReport {
            name: name.into(),
            address: format!("admin@{name}.example.com:22"),
            transport: "native".into(),
            pinned: false,
            sharing: String::new(),
            mux_sockets: Vec::new(),
            connections: vec![ConnectionReport {
                ready: true,
                since: None,
                server: "SSH-2.0-OpenSSH_9.2".into(),
                algorithms: String::new(),
                rtt: Some(Duration::from_micros(1540)),
                sessions: 2,
                tunnels: 0,
                spares: 1,
                busy: false,
                rate: 0,
                sent: 3 << 20,
                received: 5 << 10,
            }],
            master: None,
        }
    }

    #[test]
    fn columns_that_say_nothing_are_left_out() {
        insta::assert_snapshot!(table(&[host("web1"), host("web2")], None), @"
         HOST  ADDRESS                    STATE  UP  RTT     SESSIONS  SENT      RECEIVED
         web1  admin@web1.example.com:22  warm       1.5 ms  2         3.00 MiB  5.00 KiB
         web2  admin@web2.example.com:22  warm       1.5 ms  2         3.00 MiB  5.00 KiB
        ");
        let mut stock = host("db1");
        stock.mux_sockets = vec!["/run/s".into()];
        insta::assert_snapshot!(table(&[host("web1"), stock], None), @"
         HOST  ADDRESS                    STATE  UP  RTT     SESSIONS  SENT      RECEIVED  STOCK SSH
         web1  admin@web1.example.com:22  warm       1.5 ms  2         3.00 MiB  5.00 KiB
         db1   admin@db1.example.com:22   warm       1.5 ms  2         3.00 MiB  5.00 KiB  1 socket
        ");
    }

    #[test]
    fn a_narrow_terminal_is_filled_and_not_wrapped() {
        let mut hosts = [host("web1"), host("web2")];
        hosts[0].transport = "openssh".into();
        for width in [100, 80, 60, 40] {
            let text = table(&hosts, Some(width));
            assert!(
                text.lines().all(|line| line.chars().count() <= width.into()),
                "{text}"
            );
            assert!(
                text.contains("HOST") && text.contains("STATE") && text.contains("web2"),
                "{text}"
            );
        }
        assert!(table(&hosts, Some(80)).contains("admin@web1.example.com:22"));
    }

    #[test]
    fn ages_are_told_in_two_units_at_most() {
        let ago = |seconds| age(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() - seconds);
        assert_eq!(ago(90), "1 min");
        assert_eq!(ago(7_300), "2 h 1 min");
        assert_eq!(ago(90_000), "1 d 1 h");
    }
}
