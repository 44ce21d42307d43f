//! A playbook of short tasks on hosts far away.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
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
const PLUGIN: &str = "the plugin trunkline.ssh.trunkline";
const MITOGEN: &str = "Mitogen";

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let playbook = lab.peers.ansible.command()?.get_program().to_owned();
    let mitogen = mitogen_directory(lab)?;
    let (mut servers, mut relays, mut entries) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..HOSTS {
        let server = lab.server().start()?;
        let relay = Relay::start(server.addr())?;
        relay.set_rtt(RTT);
        server.trust_at(relay.addr())?;
        entries.push(server.host_entry(&format!("h{n}")).with_address(relay.addr()));
        servers.push(server);
        relays.push(relay);
    }
    let directory = lab.path("ansible");
    std::fs::create_dir_all(&directory)?;
    let config = directory.join("config");
    write_ssh_config(&config, entries)?;
    let names: Vec<String> = (0..HOSTS).map(|n| format!("h{n}")).collect();
    std::fs::write(directory.join("hosts"), names.join("\n"))?;
    let tasks = "  - raw: \"true\"\n".repeat(TASKS);
    let play = format!("- hosts: all\n  gather_facts: false\n  tasks:\n{tasks}");
    std::fs::write(directory.join("play.yml"), play)?;

    let daemon = lab.daemon()?;
    for name in &names {
        daemon.listen(&config, name)?;
    }
    let common = format!("-F {}", config.display());
    let shared = format!("{common} -o ControlPath={}/%n", daemon.mux().display());
    let run = |ssh_args: &str, control: &str, env: &[(&str, &str)]| {
        let mut command = Command::new(&playbook);
        command
            .current_dir(&directory)
            .args(["-i", "hosts", "-f", "10", "play.yml"])
            .env("ANSIBLE_SSH_ARGS", ssh_args)
            .env("ANSIBLE_SSH_CONTROL_PATH_DIR", directory.join(control))
            .env("ANSIBLE_HOME", directory.join("home"))
            .env("LC_ALL", "C.UTF-8")
            .env("TRUNKLINE_PROGRAM", daemon.trunkline().get_program())
            .env_remove("SSH_AUTH_SOCK")
            .envs(env.iter().copied());
        daemon.serve(&mut command);
        measure::time(&mut command)
    };
    let default = format!("-C -o ControlMaster=auto -o ControlPersist=60s {common}");
    let plugin = [
        ("ANSIBLE_TRANSPORT", "trunkline.ssh.trunkline"),
        ("ANSIBLE_CALLBACKS_ENABLED", "trunkline.ssh.preload"),
    ];
    let mitogen = [
        ("ANSIBLE_STRATEGY", "mitogen_linear"),
        ("ANSIBLE_STRATEGY_PLUGINS", mitogen.as_str()),
    ];
    let mut contestants: Vec<Contestant<'_>> = [
        (PLUGIN, &common, "unused", &plugin[..]),
        (SHARED, &shared, "unused", &[]),
        (DEFAULT, &default, "cp", &[]),
    ]
    .into_iter()
    .map(|(name, ssh_args, control, env)| {
        let (run, mut warm) = (&run, false);
        Contestant::new(name, move || {
            if !warm {
                // Begins with connections that are there.
                run(ssh_args, control, env)?;
                warm = true;
            }
            Ok(vec![run(ssh_args, control, env)?])
        })
    })
    .collect();
    let mut samples = in_turns(lab.size(5, 2), &mut contestants);
    drop(contestants);
    // Minutes long, and beside the others no verdict's: once is enough.
    let once = || Ok(vec![run(&default, "unused", &mitogen)?]);
    samples.extend(in_turns(1, &mut [Contestant::new(MITOGEN, once)]));
    end_masters(&names, &config, &directory.join("cp"));
    let table = Table {
        title: "the playbook, warm".into(),
        unit: "s",
        samples,
    };
    let verdict = |who: &str, limit| Verdict {
        what: format!("{who} / {DEFAULT}"),
        measured: ratio(table.median(who), table.median(DEFAULT)),
        target: Target::AtMost(limit),
        unit: "of its time",
    };
    Ok(Outcome {
        verdicts: vec![verdict(PLUGIN, 0.7), verdict(SHARED, 0.85)],
        tables: vec![table],
        notes: vec![format!(
            "{HOSTS} servers of their own behind relays, ten forks. Mitogen, which keeps its connections for one run only, runs \
             once."
        )],
        ..Outcome::default()
    })
}

/// Ends the masters that Ansible has left.
fn end_masters(names: &[String], config: &Path, sockets: &Path) {
    let path = format!("ControlPath={}/%C", sockets.display());
    for name in names {
        let mut exit = Command::new("ssh");
        let _ = exit
            .arg("-F")
            .arg(config)
            .args(["-o", &path, "-O", "exit", name])
            .output();
    }
}

/// Returns the directory of Mitogen's strategies.
fn mitogen_directory(lab: &Lab) -> anyhow::Result<String> {
    let libraries = lab.directory().join("venv/lib").canonicalize()?;
    let strategies = std::fs::read_dir(&libraries)?
        .filter_map(Result::ok)
        .map(|python| {
            python
                .path()
                .join("site-packages/ansible_mitogen/plugins/strategy")
        })
        .find(|directory| directory.exists())
        .with_context(|| format!("there is no Mitogen in {}", libraries.display()))?;
    Ok(strategies.display().to_string())
}
