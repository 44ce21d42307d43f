//! Several programs on one host, each with the output of a command that writes as fast as it can.

use std::process::Command;

use anyhow::Context as _;

use super::{OPENSSH, Outcome, Row, TRUNKLINE_SSH, Table, Target, Verdict, ratio};
use crate::lab::Lab;
use crate::measure::{self, Aside, Contestant, in_turns, output_text, time_at_once};

pub(super) const ROW: Row = Row {
    name: "streams",
    title: "4 and 8 downloads at once, a program each",
    measure,
};

const WITHOUT_DAEMON: &str = "trunkline ssh --no-daemon";
const MIB: f64 = 1024.0 * 1024.0;

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let server = lab.server().config("Compression no").start()?;
    let servers = server.pid().context("the server has ended")?;
    let (config, alias) = (server.ssh_config(), server.alias());
    let daemon = lab.daemon()?;
    measure::time(&mut daemon.ssh(&config, alias, "true"))?;
    let bytes: u64 = lab.size(1 << 30, 256 << 20);
    let command = format!("head -c {bytes} /dev/zero");
    let cipher = "Ciphers=aes128-gcm@openssh.com";
    let trunkline = |words: &[&str]| {
        let mut ssh = append_words(daemon.trunkline(), words);
        ssh.arg("-F").arg(&config).args(["-o", cipher, alias, &command]);
        ssh
    };

    let mut outcome = Outcome {
        notes: vec![
            format!(
                "{:.0} MiB each, to /dev/null; aes128-gcm, connecting included. The daemon, and ssh without it, are what they \
                 are to a user: one connection for all, and one for each.",
                bytes as f64 / MIB
            ),
            "The servers' CPU time is that of sshd and of the commands, which are the same for all.".into(),
        ],
        ..Outcome::default()
    };
    for count in [4, 8] {
        let (clients, sshd) = (Aside::default(), Aside::default());
        let mebibytes = bytes as f64 / MIB * count as f64;
        let contestant = |name: &'static str, start: &'_ dyn Fn() -> Command| -> anyhow::Result<Vec<f64>> {
            let shared = daemon.pid().context("the daemon has ended")?;
            let before = (
                measure::cpu_of_children()?,
                measure::cpu_of(shared)?,
                measure::cpu_of_family(servers)?,
            );
            let (seconds, outputs) = time_at_once(count, start)?;
            for output in outputs {
                output_text("a client", output)?;
            }
            let own = measure::cpu_of_children()? - before.0 + measure::cpu_of(shared)? - before.1;
            let theirs = measure::cpu_of_family(servers)?.saturating_sub(before.2);
            clients.note(name, vec![1e3 * own.as_secs_f64() / mebibytes]);
            sshd.note(name, vec![1e3 * theirs.as_secs_f64() / mebibytes]);
            Ok(vec![mebibytes / seconds])
        };
        let samples = in_turns(
            lab.size(5, 3),
            &mut [
                Contestant::new(TRUNKLINE_SSH, || {
                    contestant(TRUNKLINE_SSH, &|| trunkline(&["ssh"]))
                }),
                Contestant::new(WITHOUT_DAEMON, || {
                    contestant(WITHOUT_DAEMON, &|| trunkline(&["--no-daemon", "ssh"]))
                }),
                Contestant::new(OPENSSH, || {
                    let ssh =
                        || append_words(trunkline_testkit::ssh(&config), &["-o", cipher, alias, &command]);
                    contestant(OPENSSH, &ssh)
                }),
            ],
        );
        let tables = [
            Table {
                title: format!("{count} at once: CPU time of the clients, with the daemon's"),
                unit: "ms/MiB",
                samples: clients.into_samples(&samples),
            },
            Table {
                title: format!("{count} at once: CPU time of the servers"),
                unit: "ms/MiB",
                samples: sshd.into_samples(&samples),
            },
            Table {
                title: format!("{count} at once: throughput of all"),
                unit: "MiB/s",
                samples,
            },
        ];
        for who in [TRUNKLINE_SSH, WITHOUT_DAEMON] {
            outcome
                .verdicts
                .extend(
                    [(2, Target::AtLeast(1.1)), (1, Target::AtMost(1.2))].map(|(table, target)| {
                        let table: &Table = &tables[table];
                        Verdict {
                            what: format!("{who}, {}", table.title),
                            measured: ratio(table.median(who), table.median(OPENSSH)),
                            target,
                            unit: "of OpenSSH's",
                        }
                    }),
                );
        }
        outcome.tables.extend(tables);
    }
    Ok(outcome)
}

fn append_words(mut command: Command, words: &[&str]) -> Command {
    command.args(words);
    command
}
