//! Stock ssh over a connection that is there: trunkline's mux socket beside OpenSSH's own master.

use std::path::Path;
use std::process::Command;

use trunkline_testkit::Relay;

use super::{OPENSSH_MUX, Outcome, RTT, Row, STOCK_SSH, Table, Target, Verdict, in_rtt, ratio};
use crate::lab::{Daemon, Lab, Master};
use crate::measure::{self, Contestant, in_turns};

pub(super) const ROW: Row = Row {
    name: "warm-stock",
    title: "warm `true` by stock ssh",
    measure,
};

const STANZA: &str = "the same, found by `Match exec \"trunkline up\"`";

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let server = lab.server().start()?;
    let relay = Relay::start(server.addr())?;
    relay.set_rtt(RTT);
    let far_config = server.ssh_config_via("far", relay.addr())?;
    let (far_rounds, far_count) = (lab.size(5, 3), lab.size(10, 3));
    let far = Host::new(lab, &far_config, "far")?;
    let far = far.table("100 ms RTT", "RTT", far_rounds, far_count, in_rtt);
    let near_config = server.ssh_config();
    let near = Host::new(lab, &near_config, server.alias())?;
    let (near_rounds, near_count) = (lab.size(7, 3), lab.size(50, 15));
    let near = near.table("loopback", "ms", near_rounds, near_count, |seconds| seconds * 1e3);

    let added = near
        .median(STANZA)
        .zip(near.median(STOCK_SSH))
        .map(|(with, without)| with - without);
    let verdict = |what: &str, measured, limit, unit| Verdict {
        what: what.into(),
        measured,
        target: Target::AtMost(limit),
        unit,
    };
    Ok(Outcome {
        verdicts: vec![
            verdict(STOCK_SSH, far.median(STOCK_SSH), 1.25, "RTT"),
            verdict(
                "trunkline's socket / OpenSSH's master, loopback",
                ratio(near.median(STOCK_SSH), near.median(OPENSSH_MUX)),
                1.0,
                "of the peer's",
            ),
            verdict("what `Match exec` adds, loopback", added, 5.0, "ms"),
        ],
        tables: vec![far, near],
        notes: vec![
            "Start of ssh to its end, one command after the other, over a connection that exists.".into(),
        ],
        ..Outcome::default()
    })
}

/// A host that is reached in each of the ways.
struct Host<'a> {
    config: &'a Path,
    alias: &'a str,
    daemon: Daemon,
    socket: std::path::PathBuf,
    stanza: std::path::PathBuf,
    master: Master,
}

impl<'a> Host<'a> {
    fn new(lab: &Lab, config: &'a Path, alias: &'a str) -> anyhow::Result<Self> {
        let daemon = lab.daemon()?;
        let host = Self {
            config,
            alias,
            socket: daemon.listen(config, alias)?,
            stanza: daemon.with_stanza(config)?,
            master: Master::start(lab, config, alias)?,
            daemon,
        };
        measure::time(&mut host.with_sharing())?;
        measure::time(&mut host.with_daemon())?;
        Ok(host)
    }

    fn with_sharing(&self) -> Command {
        let mut ssh = trunkline_testkit::ssh(self.config);
        ssh.arg("-o")
            .arg(format!("ControlPath={}", self.socket.display()));
        ssh.args([self.alias, "true"]);
        ssh
    }

    fn with_daemon(&self) -> Command {
        let mut ssh = trunkline_testkit::ssh(&self.stanza);
        self.daemon.serve(&mut ssh);
        ssh.args([self.alias, "true"]);
        ssh
    }

    fn table(
        &self,
        title: &str,
        unit: &'static str,
        rounds: usize,
        count: usize,
        figure: fn(f64) -> f64,
    ) -> Table {
        let round = |command: &dyn Fn() -> Command| {
            (0..count)
                .map(|_| Ok(figure(measure::time(&mut command())?)))
                .collect()
        };
        let mut contestants = vec![
            Contestant::new(STOCK_SSH, || round(&|| self.with_sharing())),
            Contestant::new(STANZA, || round(&|| self.with_daemon())),
            Contestant::new(OPENSSH_MUX, || round(&|| self.master.ssh("true"))),
        ];
        Table {
            title: title.into(),
            unit,
            samples: in_turns(rounds, &mut contestants),
        }
    }
}
