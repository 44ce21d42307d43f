//! Short commands beside somebody else's data on the same host.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{ENGINE, GO, OPENSSH_MUX, Outcome, RUSSH, Row, TRUNKLINE_SSH, Table, Target, Verdict, ratio};
use crate::lab::{Lab, Master};
use crate::measure::{self, Contestant, in_turns};
use crate::peer::{self, Peer};

pub(super) const ROW: Row = Row {
    name: "beside",
    title: "warm `true` beside other sessions on the same host",
    measure,
};

/// The other work that the host is asked for: the peers' word, and the table's.
const LOADS: [(&str, &str); 3] = [
    ("idle", "nothing else"),
    ("download", "a download as fast as it goes"),
    ("stalled", "a download that nobody reads"),
];

/// A contestant without an answer by then is frozen.
const LIMIT: Duration = Duration::from_secs(30);
/// After this, a load is in its steady state.
const SETTLE: Duration = Duration::from_millis(2500);

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let server = lab.server().start()?;
    let count: u32 = lab.size(100, 20);
    let rounds = lab.size(3, 2);
    let (config, alias) = (server.ssh_config(), server.alias());
    let daemon = lab.daemon()?;
    measure::time(&mut daemon.ssh(&config, alias, "true"))?;
    let master = Master::start(lab, &config, alias)?;

    let mut tables = Vec::new();
    for (load, title) in LOADS {
        let peer = |name: &'static str, which: &Peer| {
            let (which, server, count) = (which.clone(), &server, count.to_string());
            Contestant::new(name, move || {
                let command = which.task(server, server.addr(), "beside", &[load, &count])?;
                let nanoseconds = peer::numbers(command, LIMIT)?;
                let frozen =
                    || anyhow::anyhow!("frozen: {count} commands took more than {} s", LIMIT.as_secs());
                Ok(nanoseconds
                    .ok_or_else(frozen)?
                    .into_iter()
                    .map(|ns| ns / 1e6)
                    .collect())
            })
        };
        let mut contestants = vec![
            peer(ENGINE, &lab.peers.engine),
            peer(RUSSH, &lab.peers.russh),
            peer(GO, &lab.peers.go),
            Contestant::new(TRUNKLINE_SSH, || {
                let _load = Load::start(load, daemon.ssh(&config, alias, "cat /dev/zero"))?;
                (0..count)
                    .map(|_| Ok(1e3 * measure::time(&mut daemon.ssh(&config, alias, "true"))?))
                    .collect()
            }),
            Contestant::new(OPENSSH_MUX, || {
                let _load = Load::start(load, master.ssh("cat /dev/zero"))?;
                (0..count)
                    .map(|_| Ok(1e3 * measure::time(&mut master.ssh("true"))?))
                    .collect()
            }),
        ];
        tables.push(Table {
            title: format!("beside {title}"),
            unit: "ms",
            samples: in_turns(rounds, &mut contestants),
        });
    }
    let verdict = |who: &str, table: usize, limit| Verdict {
        what: format!("{who}, {}", tables[table].title),
        measured: ratio(tables[table].median(who), tables[0].median(who)),
        target: Target::AtMost(limit),
        unit: "of an idle host's",
    };
    Ok(Outcome {
        verdicts: vec![
            verdict(ENGINE, 1, 3.0),
            verdict(TRUNKLINE_SSH, 1, 3.0),
            verdict(ENGINE, 2, UNCHANGED),
            verdict(TRUNKLINE_SSH, 2, UNCHANGED),
        ],
        tables,
        notes: vec![format!(
            "`Unchanged` is read as at most {UNCHANGED} of an idle host's, which is how far medians of equal things lie \
             apart on a machine that does other work too."
        )],
        ..Outcome::default()
    })
}

const UNCHANGED: f64 = 1.2;

/// A session beside; ends when dropped.
struct Load(Option<Child>);

impl Load {
    fn start(load: &str, mut command: Command) -> anyhow::Result<Self> {
        let output = match load {
            "idle" => return Ok(Self(None)),
            "download" => Stdio::null(),
            // A pipe whose other end nobody reads.
            _ => Stdio::piped(),
        };
        let child = Self(Some(command.stdin(Stdio::null()).stdout(output).spawn()?));
        std::thread::sleep(SETTLE);
        Ok(child)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // One that has ended needs no killing.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
