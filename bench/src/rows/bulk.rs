//! One stream, as fast as it goes.

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use super::{ENGINE, GO, NODE, OPENSSH, Outcome, RUSSH, Row, TRUNKLINE_SSH, Table, Target, Verdict, ratio};
use crate::lab::Lab;
use crate::measure::{self, Aside, Contestant, Usage, in_turns, usage};
use crate::peer::Peer;

pub(super) const ROW: Row = Row {
    name: "bulk",
    title: "bulk download, one stream, aes128-gcm",
    measure,
};

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
/// Read again and again by the server, so that its own random numbers are not a part of the measurement.
const RANDOM_BYTES: u64 = 256 << 20;

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let server = lab.server().config("Compression no").start()?;
    let bytes: u64 = lab.size(4 << 30, 512 << 20);
    let random = RandomFile::make()?;
    let commands = [
        ("zeros", format!("head -c {bytes} /dev/zero")),
        (
            "random bytes",
            format!(
                "cat{}",
                format!(" {}", random.path.display()).repeat(usize::try_from(bytes / RANDOM_BYTES)?)
            ),
        ),
    ];
    let cipher = ["-o", "Ciphers=aes128-gcm@openssh.com"];
    let (config, alias) = (server.ssh_config(), server.alias());
    let daemon = lab.daemon()?;
    let warm_up = |command| {
        let mut ssh = daemon.trunkline();
        ssh.arg("ssh")
            .arg("-F")
            .arg(&config)
            .args(cipher)
            .args([alias, command]);
        ssh
    };
    measure::time(&mut warm_up("true"))?;

    let mut outcome = Outcome {
        notes: vec![
            format!(
                "{:.1} GiB a run; time and CPU time of the whole process, connecting included.",
                bytes as f64 / GIB
            ),
            "trunkline ssh: over a connection that its daemon has; the daemon's CPU time is counted in."
                .into(),
            "OpenSSH ssh and trunkline ssh write to /dev/null; the others count the bytes and drop them."
                .into(),
        ],
        ..Outcome::default()
    };
    for (kind, command) in &commands {
        let cpu = Aside::default();
        let record = |name: &str, used: Usage| {
            cpu.note(name, vec![used.cpu / (bytes as f64 / GIB)]);
            vec![bytes as f64 / used.seconds / 1e9]
        };
        let peer = |name: &'static str, which: &Peer| {
            let (which, server, record) = (which.clone(), &server, &record);
            Contestant::new(name, move || {
                let mut received = String::new();
                let used = usage(
                    &mut which.task(server, server.addr(), "bulk", &[command])?,
                    Some(&mut received),
                )?;
                ensure!(
                    received.trim() == bytes.to_string(),
                    "{} bytes came",
                    received.trim()
                );
                Ok(record(name, used))
            })
        };
        let mut contestants = vec![
            peer(ENGINE, &lab.peers.engine),
            Contestant::new(TRUNKLINE_SSH, || {
                let pid = daemon.pid().context("the daemon has ended")?;
                let before = measure::cpu_of(pid)?;
                let mut used = usage(&mut warm_up(command), None)?;
                used.cpu += (measure::cpu_of(pid)? - before).as_secs_f64();
                Ok(record(TRUNKLINE_SSH, used))
            }),
            Contestant::new(OPENSSH, || {
                let mut ssh = trunkline_testkit::ssh(&config);
                Ok(record(
                    OPENSSH,
                    usage(ssh.args(cipher).args([alias, command]), None)?,
                ))
            }),
            peer(RUSSH, &lab.peers.russh),
            peer(GO, &lab.peers.go),
            peer(NODE, &lab.peers.node),
        ];
        let samples = in_turns(lab.size(3, 2), &mut contestants);
        drop(contestants);
        let cpu = Table {
            title: format!("{kind}: CPU time"),
            unit: "s/GiB",
            samples: cpu.into_samples(&samples),
        };
        let speed = Table {
            title: format!("{kind}: throughput"),
            unit: "GB/s",
            samples,
        };
        outcome.verdicts.extend(verdicts(kind, &speed, &cpu));
        outcome.tables.extend([speed, cpu]);
    }
    Ok(outcome)
}

fn verdicts(kind: &str, speed: &Table, cpu: &Table) -> Vec<Verdict> {
    let fastest = [OPENSSH, RUSSH, NODE]
        .iter()
        .filter_map(|name| speed.median(name))
        .reduce(f64::max);
    let of = |who| {
        [
            Verdict {
                what: format!("{who}, {kind}: throughput"),
                measured: ratio(speed.median(who), fastest),
                target: Target::AtLeast(1.0),
                unit: "of the fastest peer's",
            },
            Verdict {
                what: format!("{who}, {kind}: CPU time"),
                measured: ratio(cpu.median(who), cpu.median(OPENSSH)),
                target: Target::AtMost(0.5),
                unit: "of OpenSSH's",
            },
        ]
    };
    [ENGINE, TRUNKLINE_SSH].into_iter().flat_map(of).collect()
}

/// Random bytes in memory, gone with the row.
struct RandomFile {
    path: PathBuf,
    _dir: TempDir,
}

impl RandomFile {
    fn make() -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("trunkline-bench-")
            .tempdir_in("/dev/shm")?;
        let path = dir.path().join("random");
        let mut random = std::fs::File::open("/dev/urandom")?.take(RANDOM_BYTES);
        std::io::copy(&mut random, &mut std::fs::File::create(&path)?)
            .context("filling a file in /dev/shm")?;
        Ok(Self { path, _dir: dir })
    }
}
