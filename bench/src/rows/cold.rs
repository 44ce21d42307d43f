//! A command on a host that there is no connection to.

use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;

use trunkline_testkit::{KeyType, Relay, Sshd};

use super::{OPENSSH, Outcome, RTT, Row, TRUNKLINE_SSH, Table, Target, Verdict, in_rtt};
use crate::lab::{Daemon, Lab};
use crate::measure::{self, Contestant, in_turns};
use crate::peer::{self, Peer};

pub(super) const ROW: Row = Row {
    name: "cold",
    title: "cold connect and `true`, 100 ms RTT",
    measure,
};

/// Debian's order, in which RSA comes first, and the order of who lists Ed25519 first.
const ORDERS: [(&str, [KeyType; 3]); 2] = [
    ("RSA first", [KeyType::Rsa, KeyType::EcdsaP256, KeyType::Ed25519]),
    (
        "Ed25519 first",
        [KeyType::Ed25519, KeyType::EcdsaP256, KeyType::Rsa],
    ),
];

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome {
        notes: vec![
            "RTT of the relay: 100 ms. Opening a TCP connection is charged one round trip, as on a real path.".into(),
            "trunkline ssh starts its daemon each time. `first time`: its directory is empty. `remembered`: host memory \
             is there, the daemon has been stopped."
                .into(),
            "known_hosts holds every host key of the server.".into(),
        ],
        ..Outcome::default()
    };
    for (order, keys) in ORDERS {
        let server = lab.server().host_keys(keys).start()?;
        let relay = Relay::start(server.addr())?;
        relay.set_rtt(RTT);
        let config = server.ssh_config_via("far", relay.addr())?;
        let table = measure_server(lab, &server, &relay, &config, order)?;
        let name = |kind: &str| format!("{TRUNKLINE_SSH}, {kind}");
        let mut verdict = |what: String, figure: &str, limit| {
            outcome.verdicts.push(Verdict {
                what,
                measured: table.median(figure),
                target: Target::AtMost(limit),
                unit: "RTT",
            });
        };
        verdict(
            format!("{}, {order}", name("first time")),
            &name("first time"),
            4.5,
        );
        verdict(
            format!("{}, {order}", name("remembered")),
            &name("remembered"),
            3.5,
        );
        outcome.tables.push(table);
    }
    Ok(outcome)
}

fn measure_server(
    lab: &Lab,
    server: &Sshd,
    relay: &Relay,
    config: &Path,
    order: &str,
) -> anyhow::Result<Table> {
    let remembered = lab.daemon()?;
    // What is to be remembered.
    measure::time(&mut remembered.ssh(config, "far", "true"))?;
    // Each daemon is stopped after the round that it was measured in, not while the next one is measured.
    let fresh: RefCell<Option<Daemon>> = RefCell::default();
    let peer = |peer: &'static str, which: &Peer| {
        let which = which.clone();
        Contestant::new(peer, move || {
            let command = which.task(server, relay.addr(), "cold", &[])?;
            let nanoseconds = peer::numbers(command, Duration::from_secs(20))?.unwrap_or_default();
            Ok(nanoseconds.into_iter().map(|ns| in_rtt(ns / 1e9)).collect())
        })
    };
    let mut contestants = vec![
        Contestant::new(format!("{TRUNKLINE_SSH}, first time"), || {
            let daemon = fresh.replace(Some(lab.daemon()?));
            drop(daemon);
            let daemon = fresh.borrow();
            let Some(daemon) = daemon.as_ref() else {
                return Ok(Vec::new());
            };
            Ok(vec![in_rtt(measure::time(
                &mut daemon.ssh(config, "far", "true"),
            )?)])
        }),
        Contestant::new(format!("{TRUNKLINE_SSH}, remembered"), || {
            remembered.stop()?;
            Ok(vec![in_rtt(measure::time(
                &mut remembered.ssh(config, "far", "true"),
            )?)])
        }),
        Contestant::new(OPENSSH, || {
            Ok(vec![in_rtt(measure::time(
                trunkline_testkit::ssh(config).args(["far", "true"]),
            )?)])
        }),
        peer(super::ENGINE, &lab.peers.engine),
        peer(super::RUSSH, &lab.peers.russh),
        peer(super::GO, &lab.peers.go),
        peer(super::NODE, &lab.peers.node),
    ];
    let samples = in_turns(lab.size(7, 3), &mut contestants);
    Ok(Table {
        title: format!("server with {order}"),
        unit: "RTT",
        samples,
    })
}
