//! A command over a connection that is there, across a long path.

use trunkline_testkit::Relay;

use super::{OPENSSH_MUX, Outcome, RTT, Row, TRUNKLINE_SSH, Table, Target, Verdict, in_rtt};
use crate::lab::{Lab, Master};
use crate::measure::{self, Contestant, in_turns};

pub(super) const ROW: Row = Row {
    name: "warm-far",
    title: "warm `true`, 100 ms RTT",
    measure,
};

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let server = lab.server().start()?;
    let relay = Relay::start(server.addr())?;
    relay.set_rtt(RTT);
    let config = server.ssh_config_via("far", relay.addr())?;
    let daemon = lab.daemon()?;
    measure::time(&mut daemon.ssh(&config, "far", "true"))?;
    let master = Master::start(lab, &config, "far")?;

    let count = lab.size(10, 3);
    let mut contestants = vec![
        Contestant::new(TRUNKLINE_SSH, || {
            (0..count)
                .map(|_| Ok(in_rtt(measure::time(&mut daemon.ssh(&config, "far", "true"))?)))
                .collect()
        }),
        Contestant::new(OPENSSH_MUX, || {
            (0..count)
                .map(|_| Ok(in_rtt(measure::time(&mut master.ssh("true"))?)))
                .collect()
        }),
    ];
    let samples = in_turns(lab.size(5, 3), &mut contestants);
    let table = Table {
        title: "start of the program to its end".into(),
        unit: "RTT",
        samples,
    };
    let measured = table.median(TRUNKLINE_SSH);
    let verdict = Verdict {
        what: TRUNKLINE_SSH.into(),
        measured,
        target: Target::AtMost(1.2),
        unit: "RTT",
    };
    Ok(Outcome {
        verdicts: vec![verdict],
        tables: vec![table],
        notes: vec!["One command after the other, over a connection that exists.".into()],
        ..Outcome::default()
    })
}
