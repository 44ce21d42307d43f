//! Descriptions of a socket's connections for its clients: `ssh -O conninfo` and `ssh -O channels`.

use std::fmt::Write as _;

use trunkline::Host;

/// Returns a description of every connection: its server, algorithms and traffic.
pub(super) fn connections(host: &Host) -> String {
    let name = &host.config().original_host;
    let mut text = format!("Connections to {name}, pid {}\r\n", std::process::id());
    for (number, lane) in (1..).zip(host.lanes()) {
        let Some(info) = lane.info else {
            let _ = write!(text, "  {number}: being made\r\n");
            continue;
        };
        let compression = if info.compressed { "yes" } else { "none" };
        let (sent, received) = (lane.report.sent, lane.report.received);
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "  {number}: {}\r\n    kexalgorithm {}\r\n    hostkeyalgorithm {}\r\n    cipher {}\r\n    \
             compression {compression}\r\n    traffic {received} bytes in, {sent} bytes out\r\n",
            info.server, info.kex, info.host_key_algorithm, info.cipher,
        );
    }
    text
}

/// Returns a description of every connection's channels, and of the socket's forwardings.
pub(super) fn channels(host: &Host, forwards: &str) -> String {
    let mut text = "The following connections are open:\r\n".to_owned();
    for (number, lane) in (1..).zip(host.lanes()) {
        let report = lane.report;
        let (sessions, tunnels, spares) = (report.sessions, report.tunnels, report.spares);
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "  {number}: {sessions} sessions, {tunnels} tunnels, {spares} sessions opened ahead\r\n"
        );
    }
    text + &forwards.replace('\n', "\r\n") + "\r\n"
}
