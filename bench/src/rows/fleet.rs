//! One command on many hosts.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use trunkline_testkit::write_ssh_config;

use super::{Outcome, Row, Table, Target, Verdict, ratio};
use crate::lab::Lab;
use crate::measure::{self, Aside, Contestant, in_turns};
use crate::peer;

pub(super) const ROW: Row = Row {
    name: "fleet",
    title: "`true` on many hosts, cold and warm",
    measure,
};

const TRUNKLINE_RUN: &str = "trunkline run";
const TRUNKLINE_RUN_CLASSICAL: &str = "trunkline run, curve25519";
const GROUP: &str = "trunkline.Group";
const PARALLEL_SSH: &str = "parallel-ssh";
const SHELL: &str = "xargs -P 50 ssh with a ControlMaster";

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let server = lab.server().any_loopback_address().start()?;
    let hosts: u32 = lab.size(200, 40);
    let address = |n: u32| Ipv4Addr::from(0x7f00_0100 + n);
    let config = lab.path("fleet_config");
    let entries = (1..=hosts).map(|n| {
        let addr = (address(n), server.port()).into();
        server.host_entry(&format!("host{n:03}")).with_address(addr)
    });
    write_ssh_config(&config, entries)?;
    let lines = |line: &dyn Fn(u32) -> String| (1..=hosts).map(|n| line(n) + "\n").collect::<String>();
    let (names, addresses) = (lab.path("fleet_names"), lab.path("fleet_addresses"));
    std::fs::write(&names, lines(&|n| format!("host{n:03}")))?;
    std::fs::write(&addresses, lines(&|n| address(n).to_string()))?;
    let key = server
        .client_keys()
        .first()
        .context("the server has no client key")?
        .private_path();

    let warm_runs: usize = lab.size(5, 3);
    let warm = Aside::default();
    let trunkline_run = |name: &'static str, options: &'static [&'static str]| {
        let (config, names, warm) = (&config, &names, &warm);
        Contestant::new(name, move || {
            let daemon = lab.daemon()?;
            let run = || {
                let mut trunkline = daemon.trunkline();
                trunkline.arg("run").arg("-F").arg(config).args(options);
                measure::time(
                    trunkline
                        .arg("-H")
                        .arg(format!("@{}", names.display()))
                        .args(["--", "true"]),
                )
            };
            let cold = run()?;
            warm.note(name, (0..warm_runs).map(|_| run()).collect::<Result<_, _>>()?);
            Ok(vec![cold])
        })
    };
    let mut contestants = vec![
        trunkline_run(TRUNKLINE_RUN, &[]),
        // parallel-ssh knows no post-quantum key exchange: this one shows what that exchange costs.
        trunkline_run(
            TRUNKLINE_RUN_CLASSICAL,
            &["-o", "KexAlgorithms=curve25519-sha256"],
        ),
        Contestant::new(GROUP, || {
            let mut python = lab.peers.group.command()?;
            // Host memory starts empty.
            lab.daemon()?.serve(&mut python);
            python.arg(&config).arg(&names).arg(warm_runs.to_string());
            let (cold, again) = cold_and_warm(python)?;
            warm.note(GROUP, again);
            Ok(vec![cold])
        }),
        Contestant::new(PARALLEL_SSH, || {
            let mut python = lab.peers.parallel_ssh.command()?;
            python
                .arg(&addresses)
                .args([&server.port().to_string(), server.user()])
                .arg(key)
                .arg(warm_runs.to_string());
            let (cold, again) = cold_and_warm(python)?;
            warm.note(PARALLEL_SSH, again);
            Ok(vec![cold])
        }),
        Contestant::new(SHELL, || {
            let masters = Masters::from_lab(lab, &config, &names)?;
            let cold = masters.run()?;
            warm.note(
                SHELL,
                (0..warm_runs).map(|_| masters.run()).collect::<Result<_, _>>()?,
            );
            Ok(vec![cold])
        }),
    ];
    let samples = in_turns(lab.size(3, 1), &mut contestants);
    drop(contestants);
    let warm = Table {
        title: format!("{hosts} hosts, warm"),
        unit: "s",
        samples: warm.into_samples(&samples),
    };
    let cold = Table {
        title: format!("{hosts} hosts, cold"),
        unit: "s",
        samples,
    };
    Ok(Outcome {
        verdicts: verdicts(&[&cold, &warm]),
        tables: vec![cold, warm],
        notes: vec![
            "The hosts are as many loopback addresses of one sshd, whose MaxStartups is raised to 4,000.".into(),
            "trunkline run: start of the program to its end; cold, it starts its daemon in an empty directory. trunkline.Group \
             and parallel-ssh: inside their process, without starting Python; warm, over the connections of the run \
             before. parallel-ssh: one client, as many greenlets as hosts, no host key checked. The shell loop: as a \
             whole."
                .into(),
        ],
        ..Outcome::default()
    })
}

fn verdicts(tables: &[&Table]) -> Vec<Verdict> {
    let pairs = [
        (TRUNKLINE_RUN, PARALLEL_SSH),
        (TRUNKLINE_RUN, SHELL),
        (GROUP, PARALLEL_SSH),
    ];
    let beside = |(who, peer)| {
        tables.iter().map(move |table| Verdict {
            what: format!("{}: {who} / {peer}", table.title),
            measured: ratio(table.median(who), table.median(peer)),
            target: Target::AtMost(0.7),
            unit: "of the peer's",
        })
    };
    pairs.into_iter().flat_map(beside).collect()
}

/// The seconds of the first run that a peer prints, and of the others.
fn cold_and_warm(python: Command) -> anyhow::Result<(f64, Vec<f64>)> {
    let nanoseconds = peer::numbers(python, Duration::from_secs(120))?.unwrap_or_default();
    let seconds: Vec<f64> = nanoseconds.iter().map(|ns| ns / 1e9).collect();
    let (cold, again) = seconds.split_first().context("it took more than 120 s")?;
    Ok((*cold, again.to_vec()))
}

/// A ControlMaster for each host; they end when this is dropped.
struct Masters {
    directory: PathBuf,
    config: PathBuf,
    names: PathBuf,
}

impl Masters {
    fn from_lab(lab: &Lab, config: &Path, names: &Path) -> anyhow::Result<Self> {
        let directory = lab.path("mux");
        std::fs::create_dir_all(&directory)?;
        Ok(Self {
            directory,
            config: config.to_owned(),
            names: names.to_owned(),
        })
    }

    fn run(&self) -> anyhow::Result<f64> {
        measure::time(&mut self.xargs("-o ControlMaster=auto -o ControlPersist=600", "true"))
    }

    /// Masters inherit what they are started with, so the shell gives them a file and no pipe to hold.
    fn xargs(&self, options: &str, command: &str) -> Command {
        let script = format!(
            r#"exec xargs -P 50 -I '{{}}' ssh -n -F "$1" -o ControlPath="$2/%C" {options} '{{}}' {command} <"$3" 2>"$2.log""#
        );
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &script, "sh"])
            .arg(&self.config)
            .arg(&self.directory)
            .arg(&self.names);
        shell
    }
}

impl Drop for Masters {
    fn drop(&mut self) {
        let ended = measure::time(&mut self.xargs("-O exit", "")).and_then(|_| {
            let left = std::fs::read_dir(&self.directory)?.count();
            ensure!(left == 0, "{left} sockets are left");
            Ok(())
        });
        if let Err(error) = ended {
            eprintln!("ending the masters: {error:#}");
        }
    }
}
