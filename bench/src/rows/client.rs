//! The cost of the program that users type: CPU time, system calls, and its size.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

use super::{OPENSSH_MUX, Outcome, Row, TRUNKLINE_SSH, Table, Target, Verdict, ratio};
use crate::lab::{Lab, Master};
use crate::measure::{self, Aside, Contestant, in_turns};

pub(super) const ROW: Row = Row {
    name: "client",
    title: "warm `trunkline ssh host true`: the client's process",
    measure,
};

const TRUE: &str = "/bin/true, on this machine";

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let server = lab.server().start()?;
    let (config, alias) = (server.ssh_config(), server.alias());
    let daemon = lab.daemon()?;
    measure::time(&mut daemon.ssh(&config, alias, "true"))?;
    let master = Master::start(lab, &config, alias)?;
    let count = lab.size(100, 20);
    let cpu = Aside::default();
    let contestant = |name: &'static str, command: &dyn Fn() -> Command| -> anyhow::Result<Vec<f64>> {
        let before = measure::cpu_of_children()?;
        let times: anyhow::Result<Vec<f64>> = (0..count)
            .map(|_| Ok(1e3 * measure::time(&mut command())?))
            .collect();
        // One process's would be of the clock's own size.
        let used = measure::cpu_of_children()? - before;
        cpu.note(name, vec![1e3 * used.as_secs_f64() / f64::from(count)]);
        times
    };
    let mut contestants = [
        Contestant::new(TRUNKLINE_SSH, || {
            contestant(TRUNKLINE_SSH, &|| daemon.ssh(&config, alias, "true"))
        }),
        Contestant::new(OPENSSH_MUX, || contestant(OPENSSH_MUX, &|| master.ssh("true"))),
        Contestant::new(TRUE, || contestant(TRUE, &|| Command::new("/bin/true"))),
    ];
    let samples = in_turns(lab.size(9, 3), &mut contestants);
    drop(contestants);
    let cpu = Table {
        title: "CPU time of the process".into(),
        unit: "ms",
        samples: cpu.into_samples(&samples),
    };
    let times = Table {
        title: "start of the program to its end".into(),
        unit: "ms",
        samples,
    };

    let at_most = |what: &str, measured, limit, unit| Verdict {
        what: what.into(),
        measured,
        target: Target::AtMost(limit),
        unit,
    };
    let to_mux = ratio(times.median(TRUNKLINE_SSH), times.median(OPENSSH_MUX));
    let calls = system_calls(lab, &daemon.ssh(&config, alias, "true"))?;
    let size = stripped_megabytes(lab, &lab.program("trunkline")?)?;
    Ok(Outcome {
        verdicts: vec![
            at_most(
                "trunkline ssh / ssh with a ControlMaster",
                to_mux,
                0.55,
                "of the peer's",
            ),
            at_most("CPU time of trunkline ssh", cpu.median(TRUNKLINE_SSH), 1.0, "ms"),
            at_most("its system calls", Some(calls), 60.0, ""),
            at_most("trunkline, stripped", Some(size), 4.0, "MB"),
        ],
        tables: vec![times, cpu],
        notes: vec![format!(
            "CPU time is the mean of {count} processes in a row, as the system accounts for it. System calls as strace counts \
             them, of a process that inherits nothing but the standard streams."
        )],
        ..Outcome::default()
    })
}

/// Returns the number of system calls that a program makes.
fn system_calls(lab: &Lab, command: &Command) -> anyhow::Result<f64> {
    let log = lab.path("strace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-o"]).arg(&log).arg(command.get_program());
    strace.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => strace.env(name, value),
            None => strace.env_remove(name),
        };
    }
    let status = strace.stdin(Stdio::null()).stdout(Stdio::null()).status();
    ensure!(
        status.context("running strace")?.success(),
        "the program failed under strace"
    );
    let log = std::fs::read_to_string(log)?;
    // Not the lines about signals and exits, nor the second half of a call that another one interrupted.
    let calls = log
        .lines()
        .filter(|line| line.contains('(') && !line.contains("<... "));
    Ok(calls.count() as f64)
}

/// The size of a program as it is shipped, in millions of bytes.
fn stripped_megabytes(lab: &Lab, program: &Path) -> anyhow::Result<f64> {
    let stripped = lab.path("stripped");
    let status = Command::new("strip")
        .arg("-o")
        .arg(&stripped)
        .arg(program)
        .status();
    ensure!(status.context("running strip")?.success(), "strip failed");
    Ok(std::fs::metadata(stripped)?.len() as f64 / 1e6)
}
