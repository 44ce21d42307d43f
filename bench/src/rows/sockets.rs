//! The cost of mux sockets for the daemon, with a connected host behind each.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context as _;
use trunkline_testkit::write_ssh_config;

use super::{Outcome, Row, Table, Target, Verdict};
use crate::lab::Lab;
use crate::measure::{self, Contestant, in_turns};

pub(super) const ROW: Row = Row {
    name: "sockets",
    title: "memory of the daemon with a mux socket and a connection for each host",
    measure,
};

const DAEMON: &str = "trunkline's daemon";

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let hosts = lab.size(500, 100);
    let server = lab.server().any_loopback_address().start()?;
    let addresses = (0..hosts).map(|n| Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 1, 0, 1)) + n));
    let addresses: Vec<_> = addresses
        .map(|address| SocketAddr::new(address.into(), server.port()))
        .collect();
    let mut entries = Vec::new();
    for (n, address) in addresses.iter().enumerate() {
        server.trust_at(*address)?;
        entries.push(server.host_entry(&format!("h{n}")).with_address(*address));
    }
    let config = lab.path("sockets");
    write_ssh_config(&config, entries)?;
    let daemon = lab.daemon()?;
    let mut contestants = vec![Contestant::new(DAEMON, || {
        for n in 0..hosts {
            let alias = format!("h{n}");
            let socket = daemon.listen(&config, &alias)?;
            let mut ssh = trunkline_testkit::ssh(&config);
            ssh.arg("-o").arg(format!("ControlPath={}", socket.display()));
            measure::time(ssh.args([&alias, "true"]))?;
        }
        // Connections give their buffers back after a second of silence.
        std::thread::sleep(std::time::Duration::from_millis(2500));
        let pid = daemon.pid().context("the daemon has gone")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix("kB"));
        let kilobytes: f64 = resident.context("no VmRSS")?.trim().parse()?;
        Ok(vec![kilobytes / 1024.0])
    })];
    let samples = in_turns(1, &mut contestants);
    drop(contestants);
    let table = Table {
        title: format!("with {hosts} sockets and as many connected hosts"),
        unit: "MB of 1,048,576 bytes",
        samples,
    };
    // The target is for 500.
    let limit = 60.0 * f64::from(hosts) / 500.0;
    Ok(Outcome {
        verdicts: vec![Verdict {
            what: DAEMON.into(),
            measured: table.median(DAEMON),
            target: Target::AtMost(limit.max(60.0)),
            unit: "MB",
        }],
        tables: vec![table],
        notes: vec![
            "Resident memory (VmRSS) of the whole process; each host has run one command of stock ssh."
                .into(),
        ],
        ..Outcome::default()
    })
}
