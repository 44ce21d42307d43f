//! A command over a connection that is there, without a path: what the client itself costs.

use std::time::Duration;

use super::{
    ENGINE, GO, NODE, OPENSSH_MUX, Outcome, RUSSH, Row, TRUNKLINE_SSH, Table, Target, Verdict, ratio,
};
use crate::lab::{Lab, Master};
use crate::measure::{self, Contestant, in_turns};
use crate::peer::{self, Peer};

pub(super) const ROW: Row = Row {
    name: "warm-near",
    title: "warm `true` on loopback",
    measure,
};

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let server = lab.server().start()?;
    let count = lab.size(300, 60).to_string();
    let peer = |name: &'static str, which: &Peer| {
        let (which, server, count) = (which.clone(), &server, &count);
        Contestant::new(name, move || {
            let command = which.task(server, server.addr(), "warm", &[count])?;
            let nanoseconds = peer::numbers(command, Duration::from_secs(60))?.unwrap_or_default();
            Ok(nanoseconds.into_iter().map(|ns| ns / 1e6).collect())
        })
    };
    let rounds = lab.size(7, 3);
    let mut libraries = vec![
        peer(ENGINE, &lab.peers.engine),
        peer(RUSSH, &lab.peers.russh),
        peer(GO, &lab.peers.go),
        peer(NODE, &lab.peers.node),
    ];
    let libraries = Table {
        title: "in one process, after another".into(),
        unit: "ms",
        samples: in_turns(rounds, &mut libraries),
    };

    let (config, alias) = (server.ssh_config(), server.alias());
    let daemon = lab.daemon()?;
    measure::time(&mut daemon.ssh(&config, alias, "true"))?;
    let master = Master::start(lab, &config, alias)?;
    let count = lab.size(50, 15);
    let mut programs = vec![
        Contestant::new(TRUNKLINE_SSH, || {
            (0..count)
                .map(|_| Ok(1e3 * measure::time(&mut daemon.ssh(&config, alias, "true"))?))
                .collect()
        }),
        Contestant::new(OPENSSH_MUX, || {
            (0..count)
                .map(|_| Ok(1e3 * measure::time(&mut master.ssh("true"))?))
                .collect()
        }),
    ];
    let programs = Table {
        title: "start of the program to its end".into(),
        unit: "ms",
        samples: in_turns(rounds, &mut programs),
    };

    let verdict = |what: &str, table: &Table, of, to, limit| Verdict {
        what: what.into(),
        measured: ratio(table.median(of), table.median(to)),
        target: Target::AtMost(limit),
        unit: "of the peer's",
    };
    Ok(Outcome {
        verdicts: vec![
            verdict("engine / russh", &libraries, ENGINE, RUSSH, 0.9),
            verdict("engine / Go x/crypto/ssh", &libraries, ENGINE, GO, 0.9),
            verdict(
                "trunkline ssh / ssh with a ControlMaster",
                &programs,
                TRUNKLINE_SSH,
                OPENSSH_MUX,
                0.55,
            ),
        ],
        tables: vec![libraries, programs],
        notes: vec!["All libraries with aes128-gcm; the programs with the server's choice.".into()],
        ..Outcome::default()
    })
}
