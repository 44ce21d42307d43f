//! The cost of waiting connections.

use std::time::Duration;

use super::{ENGINE, Outcome, RUSSH, Row, Table, Target, Verdict};
use crate::lab::Lab;
use crate::measure::{Contestant, in_turns};
use crate::peer::{self, Peer};

pub(super) const ROW: Row = Row {
    name: "idle",
    title: "memory of idle warm connections in one process",
    measure,
};

/// Connecting a thousand times keeps two cores busy for a minute or two.
const LIMIT: Duration = Duration::from_secs(300);

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let server = lab.server().any_loopback_address().start()?;
    let connections = lab.size(1000, 100);
    let count = connections.to_string();
    let peer = |name: &'static str, which: &Peer| {
        let (which, server, count) = (which.clone(), &server, &count);
        Contestant::new(name, move || {
            let command = which.task(server, server.addr(), "idle", &[count])?;
            let bytes = peer::numbers(command, LIMIT)?;
            let bytes = bytes.ok_or_else(|| anyhow::anyhow!("it took more than {} s", LIMIT.as_secs()))?;
            Ok(bytes.into_iter().map(|bytes| bytes / 1024.0).collect())
        })
    };
    let mut contestants = vec![peer(ENGINE, &lab.peers.engine), peer(RUSSH, &lab.peers.russh)];
    let samples = in_turns(1, &mut contestants);
    let table = Table {
        title: format!("each of {connections} connections"),
        unit: "KB of 1,024 bytes",
        samples,
    };
    let measured = table.median(ENGINE);
    Ok(Outcome {
        verdicts: vec![Verdict { what: ENGINE.into(), measured, target: Target::AtMost(40.0), unit: "KB" }],
        tables: vec![table],
        notes: vec![
            "To as many loopback addresses, each of which counts as a host of its own. Each has run one command and has \
             then been idle for 2.5 s; resident memory (VmRSS) after, less before the second connection, divided by \
             their number. The server's MaxStartups is raised to 4,000."
                .into(),
        ],
        ..Outcome::default()
    })
}
