//! Files and trees, both ways, near and far.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;
use trunkline_testkit::Relay;

use super::{Outcome, RTT, Row, Table, Target, Verdict, ratio};
use crate::lab::{Daemon, Lab};
use crate::measure::{self, Aside, Contestant, in_turns, usage};

pub(super) const ROW: Row = Row {
    name: "transfers",
    title: "files and trees, both ways, loopback and 100 ms RTT",
    measure,
};

pub(super) const TRUNKLINE_CP: &str = "trunkline cp";
pub(super) const SCP: &str = "scp";
pub(super) const RSYNC: &str = "rsync";
const MIB: u64 = 1 << 20;

/// scp takes several round trips for each file: it gets one file in so many, and is reckoned up.
fn scp_share(lab: &Lab) -> usize {
    lab.size(20, 50)
}

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let server = lab.server().start()?;
    let relay = Relay::start(server.addr())?;
    relay.set_rtt(RTT);
    let near = Way {
        config: server.ssh_config(),
        alias: server.alias().to_owned(),
        daemon: lab.daemon()?,
    };
    let far = Way {
        config: server.ssh_config_via("far", relay.addr())?,
        alias: "far".to_owned(),
        daemon: lab.daemon()?,
    };
    for path in [&near, &far] {
        measure::time(&mut path.daemon.ssh(&path.config, &path.alias, "true"))?;
    }
    let place = tempfile::Builder::new()
        .prefix("trunkline-bench-")
        .tempdir_in("/dev/shm")?;
    let mut outcome = Outcome {
        notes: vec![
            "Random bytes in memory (/dev/shm), so that no disk and no compression takes part.".into(),
            "trunkline cp goes over a connection that its daemon has, the others connect; \
             the daemon's CPU time is counted in."
                .into(),
            "The relay delays and has no TCP slow start, which would cost a new connection some round trips more.".into(),
            format!("scp -r copies one file in {} of the tree far away; its time is multiplied.", scp_share(lab)),
        ],
        ..Outcome::default()
    };
    let large_near = file(&place, "near", lab.size(1024, 256) * MIB)?;
    compare(
        lab,
        &mut outcome,
        &near,
        "one large file, loopback",
        &large_near,
        SCP,
        Target::AtMost(1.0 / 1.3),
    )?;
    std::fs::remove_file(&large_near)?;
    let large_far = file(&place, "far", lab.size(200, 64) * MIB)?;
    compare(
        lab,
        &mut outcome,
        &far,
        "one large file, 100 ms",
        &large_far,
        SCP,
        Target::AtMost(1.0 / 8.0),
    )?;
    std::fs::remove_file(&large_far)?;
    let few = tree(&place, "few", lab.size(2000, 500))?;
    compare(
        lab,
        &mut outcome,
        &far,
        "a tree of files of 4 KiB, 100 ms",
        &few,
        RSYNC,
        Target::AtMost(1.0),
    )?;
    let many = tree(&place, "many", lab.size(20_000, 4000))?;
    compare(
        lab,
        &mut outcome,
        &near,
        "a tree of files of 4 KiB, loopback",
        &many,
        RSYNC,
        Target::AtMost(1.5),
    )?;
    std::fs::remove_dir_all(&many)?;
    multitude(lab, &mut outcome, &near, &place)?;
    memory(lab, &mut outcome, &near, &place)?;
    Ok(outcome)
}

/// So many small files that what is remembered of each would show in the daemon's memory. scp would take minutes.
fn multitude(lab: &Lab, outcome: &mut Outcome, near: &Way, place: &TempDir) -> anyhow::Result<()> {
    let way = Way {
        config: near.config.clone(),
        alias: near.alias.clone(),
        daemon: lab.daemon()?,
    };
    let count = lab.size(100_000, 10_000);
    let source = tree(place, "multitude", count)?;
    let [there, back] = ["there", "back"].map(|name| place.path().join(name));
    let remote = |path: &Path| format!("{}:{}", way.alias, path.display());
    let here = |path: &Path| path.display().to_string();
    let mut tables = Vec::new();
    for (direction, up) in [("up", true), ("down", false)] {
        let contestant = |program: &'static str| {
            let (way, source, target) = (&way, &source, if up { &there } else { &back });
            let (from, to) = if up {
                (here(source), remote(target))
            } else {
                (remote(source), here(target))
            };
            Contestant::new(program, move || {
                let used = usage(&mut way.copy(program, &from, &to), None)?;
                check(source, target)?;
                Ok(vec![used.seconds])
            })
        };
        tables.push(Table {
            title: format!("{count} files of 4 KiB, loopback, {direction}"),
            unit: "s",
            samples: in_turns(1, &mut [contestant(TRUNKLINE_CP), contestant(RSYNC)]),
        });
    }
    outcome.tables.extend(tables);
    let pid = way.daemon.pid().context("the daemon has ended")?;
    outcome.verdicts.push(Verdict {
        what: format!("memory of the daemon, {count} files of 4 KiB, both ways"),
        measured: Some(measure::peak_memory_of(pid)? as f64 / 1e6),
        target: Target::AtMost(150.0),
        unit: "MB",
    });
    std::fs::remove_dir_all(&source)?;
    Ok(())
}

/// The most memory that a daemon takes up while it moves a file that is mostly a hole, both ways.
fn memory(lab: &Lab, outcome: &mut Outcome, near: &Way, place: &TempDir) -> anyhow::Result<()> {
    let way = Way {
        config: near.config.clone(),
        alias: near.alias.clone(),
        daemon: lab.daemon()?,
    };
    let gib = lab.size(20, 2);
    let [source, there, back] = ["sparse", "there", "back"].map(|name| place.path().join(name));
    let file = std::fs::File::create(&source)?;
    for nth in 0..gib {
        file.write_all_at(&[1; MIB as usize], nth * 1024 * MIB)?;
    }
    file.set_len(gib * 1024 * MIB)?;
    let remote = |path: &Path| format!("{}:{}", way.alias, path.display());
    let here = |path: &Path| path.display().to_string();
    for (from, to) in [(here(&source), remote(&there)), (remote(&there), here(&back))] {
        measure::time(&mut way.copy(TRUNKLINE_CP, &from, &to))?;
    }
    let room = back.metadata()?.blocks() * 512;
    ensure!(
        back.metadata()?.len() == gib * 1024 * MIB && room < 2 * gib * MIB,
        "of the holes {room} bytes are filled"
    );
    let pid = way.daemon.pid().context("the daemon has ended")?;
    let what = format!("memory of the daemon, {gib} GiB with holes, both ways");
    let peak = measure::peak_memory_of(pid)? as f64 / 1e6;
    outcome.verdicts.push(Verdict {
        what,
        measured: Some(peak),
        target: Target::AtMost(150.0),
        unit: "MB",
    });
    Ok(())
}

/// A way to the server.
pub(super) struct Way {
    pub(super) config: PathBuf,
    pub(super) alias: String,
    pub(super) daemon: Daemon,
}

impl Way {
    /// A copy by one of the programs, from one path to another; the server's is written with its name.
    pub(super) fn copy(&self, program: &str, from: &str, to: &str) -> Command {
        let config = self.config.display();
        match program {
            TRUNKLINE_CP => {
                let mut cp = self.daemon.trunkline();
                cp.args(["cp", "-rp", "-F"]).arg(&self.config).args([from, to]);
                cp
            }
            SCP => {
                let mut scp = Command::new("scp");
                scp.args(["-qrp", "-o", "Ciphers=aes128-gcm@openssh.com", "-F"]);
                scp.arg(&self.config).args([from, to]);
                scp
            }
            _ => {
                let mut rsync = Command::new("rsync");
                let shell = format!("ssh -F {config} -c aes128-gcm@openssh.com");
                rsync.args(["-aW", "-e", &shell, from, to]);
                rsync
            }
        }
    }
}

/// Copies `source` by all programs in turns, up and down.
fn compare(
    lab: &Lab,
    outcome: &mut Outcome,
    path: &Way,
    what: &str,
    source: &Path,
    beside: &str,
    target: Target,
) -> anyhow::Result<()> {
    let is_far_tree = source.is_dir() && path.alias == "far";
    let share = source.with_file_name("share");
    if is_far_tree {
        part_of(source, &share, scp_share(lab))?;
    }
    for (direction, up) in [("up", true), ("down", false)] {
        let cpu = Aside::default();
        let contestant = |name: &'static str| {
            let (source, cpu) = (source.to_owned(), &cpu);
            let (source, times) = match name {
                SCP if is_far_tree => (share.clone(), scp_share(lab) as f64),
                _ => (source, 1.0),
            };
            Contestant::new(name, move || {
                let target = source.with_file_name("target");
                let (from, to) = (source.display().to_string(), target.display().to_string());
                let (from, to) = if up {
                    (from, format!("{}:{to}", path.alias))
                } else {
                    (format!("{}:{from}", path.alias), to)
                };
                let pid = path.daemon.pid().context("the daemon has ended")?;
                let before = measure::cpu_of(pid)?;
                let mut used = usage(&mut path.copy(name, &from, &to), None)?;
                if name == TRUNKLINE_CP {
                    used.cpu += (measure::cpu_of(pid)? - before).as_secs_f64();
                }
                check(&source, &target)?;
                cpu.note(name, vec![used.cpu * times]);
                Ok(vec![used.seconds * times])
            })
        };
        let mut contestants = vec![contestant(TRUNKLINE_CP), contestant(SCP), contestant(RSYNC)];
        let samples = in_turns(lab.size(3, 2), &mut contestants);
        drop(contestants);
        let cpu = Table {
            title: format!("{what}, {direction}: CPU time of this side"),
            unit: "s",
            samples: cpu.into_samples(&samples),
        };
        let time = Table {
            title: format!("{what}, {direction}"),
            unit: "s",
            samples,
        };
        outcome.verdicts.push(Verdict {
            what: format!("{what}, {direction}"),
            measured: ratio(time.median(TRUNKLINE_CP), time.median(beside)),
            target,
            unit: if beside == SCP {
                "of scp's time"
            } else {
                "of rsync's time"
            },
        });
        outcome.tables.extend([time, cpu]);
    }
    Ok(())
}

pub(super) fn file(place: &TempDir, name: &str, bytes: u64) -> anyhow::Result<PathBuf> {
    let path = place.path().join(name);
    let mut random = std::fs::File::open("/dev/urandom")?.take(bytes);
    std::io::copy(&mut random, &mut std::fs::File::create(&path)?).context("filling a file in /dev/shm")?;
    Ok(path)
}

/// Files of 4 KiB in directories of a hundred.
fn tree(place: &TempDir, name: &str, files: usize) -> anyhow::Result<PathBuf> {
    let root = place.path().join(name);
    let mut random = std::fs::File::open("/dev/urandom")?;
    let mut content = [0; 4096];
    for n in 0..files {
        let directory = root.join(format!("{}", n / 100));
        std::fs::create_dir_all(&directory)?;
        random.read_exact(&mut content)?;
        std::fs::File::create(directory.join(format!("{n}")))?.write_all(&content)?;
    }
    Ok(root)
}

/// One file in so many of a tree.
fn part_of(tree: &Path, share: &Path, of: usize) -> anyhow::Result<()> {
    std::fs::create_dir_all(share)?;
    for file in files(tree)?.iter().step_by(of) {
        let name = file.file_name().context("a file has a name")?;
        std::fs::copy(file, share.join(name))?;
    }
    Ok(())
}

fn files(place: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if place.is_file() {
        return Ok(vec![place.to_owned()]);
    }
    let mut all = Vec::new();
    for entry in std::fs::read_dir(place)? {
        all.extend(files(&entry?.path())?);
    }
    Ok(all)
}

/// Whether all has come; then the target goes. rsync puts a tree into a directory of its name.
pub(super) fn check(source: &Path, target: &Path) -> anyhow::Result<()> {
    let size = |place| -> anyhow::Result<u64> {
        let files = files(place)?;
        Ok(files
            .iter()
            .filter_map(|file| file.metadata().ok())
            .map(|found| found.len())
            .sum())
    };
    ensure!(size(source)? == size(target)?, "the copy is not what was copied");
    if target.is_dir() {
        std::fs::remove_dir_all(target)?;
    } else {
        std::fs::remove_file(target)?;
    }
    Ok(())
}
