//! Python's part of a warm command: `trunkline.aio` beside the engine that it is made of.

use std::time::Duration;

use super::{ENGINE, Outcome, Row, Table, Target, Verdict, ratio};
use crate::lab::Lab;
use crate::measure::{Contestant, in_turns};
use crate::peer;

pub(super) const ROW: Row = Row {
    name: "python-warm",
    title: "warm `true` on loopback by trunkline.aio",
    measure,
};

const AIO: &str = "trunkline.aio";

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let server = lab.server().start()?;
    let mut tables = Vec::new();
    let mut verdicts = Vec::new();
    for (task, what, count) in [
        ("warm", "one at a time", lab.size(300, 60)),
        ("together", "100 at once", lab.size(30, 6)),
    ] {
        let count = count.to_string();
        let mut contestants: Vec<_> = [(AIO, &lab.peers.aio), (ENGINE, &lab.peers.engine)]
            .into_iter()
            .map(|(name, which)| {
                let (server, count) = (&server, &count);
                Contestant::new(name, move || {
                    let command = which.task(server, server.addr(), task, &[count])?;
                    let nanoseconds = peer::numbers(command, Duration::from_secs(120))?.unwrap_or_default();
                    Ok(nanoseconds.into_iter().map(|ns| ns / 1e6).collect())
                })
            })
            .collect();
        let table = Table {
            title: what.into(),
            unit: "ms",
            samples: in_turns(lab.size(7, 3), &mut contestants),
        };
        verdicts.push(Verdict {
            what: format!("{what}: {AIO} / {ENGINE}"),
            measured: ratio(table.median(AIO), table.median(ENGINE)),
            target: Target::AtMost(1.15),
            unit: "of its time",
        });
        tables.push(table);
    }
    Ok(Outcome {
        verdicts,
        tables,
        notes: vec![
            "Both with aes128-gcm, each in a process of its own. Starting Python is not counted.".into(),
        ],
        ..Outcome::default()
    })
}
