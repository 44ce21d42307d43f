//! A playbook of short tasks on hosts far away.

use std::path::PathBuf;
use std::process::Command;

use trunkline_testkit::{Relay, write_ssh_config};

use super::{Outcome, RTT, Row, Table, Target, Verdict, ratio};
use crate::lab::Lab;
use crate::measure::{self, Contestant, in_turns};

pub(super) const ROW: Row = Row {
    name: "ansible",
    title: "ansible-playbook, 20 `raw` tasks on 10 hosts, 100 ms RTT",
    measure,
};

const HOSTS: usize = 10;
const TASKS: usize = 20;
const SHARED: &str = "on trunkline's sockets";
const DEFAULT: &str = "Ansible's own ControlPersist";

/// Which ansible-core is measured: `scripts/ansible` installs it.
const PLAYBOOK: &str = "target/ansible/bin/ansible-playbook";

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let playbook = PathBuf::from(PLAYBOOK);
    anyhow::ensure!(playbook.exists(), "there is no {PLAYBOOK}: run scripts/ansible");
    let playbook = playbook.canonicalize()?;
    let (mut servers, mut relays, mut entries) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..HOSTS {
        let server = lab.server().start()?;
        let relay = Relay::to(server.addr())?;
        relay.set_rtt(RTT);
        server.trust_at(relay.addr())?;
        entries.push(server.host_entry(&format!("h{n}")).at(relay.addr()));
        servers.push(server);
        relays.push(relay);
    }
    let folder = lab.path("ansible");
    std::fs::create_dir_all(&folder)?;
    let config = folder.join("config");
    write_ssh_config(&config, entries)?;
    let names: Vec<String> = (0..HOSTS).map(|n| format!("h{n}")).collect();
    std::fs::write(folder.join("hosts"), names.join("\n"))?;
    let tasks = "  - raw: \"true\"\n".repeat(TASKS);
    let play = format!("- hosts: all\n  gather_facts: false\n  tasks:\n{tasks}");
    std::fs::write(folder.join("play.yml"), play)?;

    let daemon = lab.daemon()?;
    for name in &names {
        daemon.listen(&config, name)?;
    }
    let common = format!("-F {}", config.display());
    let shared = format!("{common} -o ControlPath={}/%n", daemon.mux().display());
    let run = |ssh_args: &str, control: &str| {
        let mut command = Command::new(&playbook);
        command
            .current_dir(&folder)
            .args(["-i", "hosts", "-f", "10", "play.yml"])
            .env("ANSIBLE_SSH_ARGS", ssh_args)
            .env("ANSIBLE_SSH_CONTROL_PATH_DIR", folder.join(control))
            .env("ANSIBLE_HOME", folder.join("home"))
            .env("LC_ALL", "C.UTF-8")
            .env_remove("SSH_AUTH_SOCK");
        measure::time(&mut command)
    };
    let default = format!("-C -o ControlMaster=auto -o ControlPersist=60s {common}");
    // Both begin with connections that are there.
    run(&shared, "unused")?;
    run(&default, "cp")?;
    let mut contestants = vec![
        Contestant::new(SHARED, || Ok(vec![run(&shared, "unused")?])),
        Contestant::new(DEFAULT, || Ok(vec![run(&default, "cp")?])),
    ];
    let samples = in_turns(lab.size(5, 2), &mut contestants);
    drop(contestants);
    for name in &names {
        let mut exit = Command::new("ssh");
        let path = format!("ControlPath={}/%C", folder.join("cp").display());
        let _ = exit
            .arg("-F")
            .arg(&config)
            .args(["-o", &path, "-O", "exit", name])
            .output();
    }
    let table = Table {
        title: "the playbook, warm".into(),
        unit: "s",
        samples,
    };
    Ok(Outcome {
        verdicts: vec![Verdict {
            what: format!("{SHARED} / {DEFAULT}"),
            measured: ratio(table.median(SHARED), table.median(DEFAULT)),
            target: Target::AtMost(0.85),
            unit: "of its time",
        }],
        tables: vec![table],
        notes: vec![format!(
            "{HOSTS} servers of their own behind relays, ten forks, no pipelining (raw needs none)."
        )],
        ..Outcome::default()
    })
}
