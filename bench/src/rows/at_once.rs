//! Many stock ssh commands at once on one host, more than a connection may have sessions.

use std::process::{Command, Output};

use super::{OPENSSH, Outcome, Row, STOCK_SSH, Table, Target, Verdict};
use crate::lab::Lab;
use crate::measure::{self, Contestant, in_turns, time_at_once};

pub(super) const ROW: Row = Row {
    name: "at-once",
    title: "40 stock ssh commands at once on one host",
    measure,
};

const COMMANDS: usize = 40;

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let server = lab.server().config("MaxSessions 10").start()?;
    let (config, alias) = (server.ssh_config(), server.alias());
    let daemon = lab.daemon()?;
    let socket = daemon.listen(&config, alias)?;
    let ssh = |path: &str| {
        let mut ssh = trunkline_testkit::ssh(&config);
        ssh.arg("-o")
            .arg(format!("ControlPath={path}"))
            .args([alias, "sleep 0.5"]);
        ssh
    };
    let path = socket.display().to_string();
    measure::time(&mut ssh(&path))?;
    let mut succeeded = Vec::new();
    let mut connections = 0;
    let rounds = lab.size(5, 2);
    let samples = {
        let mut contestants = vec![
            Contestant::new(STOCK_SSH, || {
                let before = server.authentications();
                let (seconds, well) = all_at_once(|| ssh(&path))?;
                succeeded.push(well as f64);
                connections = connections.max(server.authentications() - before);
                Ok(vec![seconds])
            }),
            Contestant::new(OPENSSH, || Ok(vec![all_at_once(|| ssh("none"))?.0])),
        ];
        in_turns(rounds, &mut contestants)
    };
    Ok(Outcome {
        verdicts: vec![Verdict {
            what: "commands that succeeded without a word, in the worst round".into(),
            measured: succeeded.iter().copied().reduce(f64::min),
            target: Target::AtLeast(COMMANDS as f64),
            unit: "of 40",
        }],
        tables: vec![Table {
            title: "from the first start to the last end of `sleep 0.5`".into(),
            unit: "s",
            samples,
        }],
        notes: vec![format!(
            "MaxSessions 10. A command that ssh had made a connection of its own for would have said so. The most \
             connections that were added in a round: {connections}."
        )],
        ..Outcome::default()
    })
}

/// [`COMMANDS`] commands: the seconds that they took, and how many exited with 0 and said nothing.
fn all_at_once(command: impl Fn() -> Command) -> anyhow::Result<(f64, usize)> {
    let (seconds, outputs) = time_at_once(COMMANDS, command)?;
    let well = |output: &&Output| output.status.success() && output.stderr.is_empty();
    Ok((seconds, outputs.iter().filter(well).count()))
}
