//! Data of four kinds by seven programs: what a narrow link, compression and each program's defaults make of it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use tempfile::TempDir;
use trunkline_testkit::{Direction, Relay, Sshd};

use super::transfers::{self, Way, check, file};
use super::{Outcome, Row, Table};
use crate::lab::Lab;
use crate::measure::{self, Aside, Contestant, in_turns, usage};

pub(super) const ROW: Row = Row {
    name: "kinds",
    title: "zeros, random bytes, text and a source tree by every program, 100 Mbit/s at 10 ms and loopback",
    measure,
};

/// 100 Mbit/s.
const RATE: u64 = 12_500_000;
const RTT: Duration = Duration::from_millis(10);
const MIB: usize = 1 << 20;
const RSYNC_PLAIN: &str = "rsync, defaults";
const SFTP: &str = "sftp";
const RCLONE: &str = "rclone's sftp";
const ASYNCSSH: &str = "asyncssh's SFTP";
const PROGRAMS: [&str; 7] = [
    transfers::TRUNKLINE_CP,
    transfers::SCP,
    SFTP,
    transfers::RSYNC,
    RSYNC_PLAIN,
    RCLONE,
    ASYNCSSH,
];

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let server = lab.server().start()?;
    let relay = Relay::start(server.addr())?;
    relay.set_rtt(RTT);
    relay.set_rate(Direction::ToServer, Some(RATE));
    relay.set_rate(Direction::ToClient, Some(RATE));
    let place = tempfile::Builder::new()
        .prefix("trunkline-bench-")
        .tempdir_in("/dev/shm")?;
    let narrow = Way {
        config: server.ssh_config_via("narrow", relay.addr())?,
        alias: "narrow".to_owned(),
        daemon: lab.daemon()?,
    };
    let near = Way {
        config: server.ssh_config(),
        alias: server.alias().to_owned(),
        daemon: lab.daemon()?,
    };
    for way in [&narrow, &near] {
        measure::time(&mut way.daemon.ssh(&way.config, &way.alias, "true"))?;
    }
    let mut outcome = Outcome {
        notes: vec![
            "The relay has no TCP slow start, and gives each connection the whole rate: there more than one \
             connection at once gains what it would not gain on a real link of that rate."
                .into(),
            "trunkline cp goes over a connection that its daemon has, the others connect. Compression is as each \
             program's defaults have it: none, but that trunkline cp finds out on its way whether it pays."
                .into(),
        ],
        ..Outcome::default()
    };
    let size = lab.size(48, 8) * MIB;
    let large = lab.size(1024, 64) * MIB;
    for (kind, make) in KINDS {
        for (path, way, address, size) in [
            ("100 Mbit/s, 10 ms", &narrow, relay.addr(), size),
            ("loopback", &near, server.addr(), large),
        ] {
            let source = make(&place, size)?;
            for (direction, up) in [("up", true), ("down", false)] {
                let bench = Bench {
                    lab,
                    server: &server,
                    way,
                    address,
                    place: place.path(),
                };
                let title = format!("{kind}, {path}, {direction}");
                bench.compare(&mut outcome, &title, &source, up);
            }
            remove(&source)?;
        }
    }
    Ok(outcome)
}

type Make = fn(&TempDir, usize) -> anyhow::Result<PathBuf>;

const KINDS: [(&str, Make); 4] = [
    ("zeros", zeros),
    ("random bytes", |place, bytes| file(place, "random", bytes as u64)),
    ("text", text),
    ("a source tree", tree),
];

struct Bench<'a> {
    lab: &'a Lab,
    server: &'a Sshd,
    way: &'a Way,
    address: std::net::SocketAddr,
    place: &'a Path,
}

impl Bench<'_> {
    fn compare(&self, outcome: &mut Outcome, title: &str, source: &Path, up: bool) {
        let cpu = Aside::default();
        let gib = size_of(source) as f64 / (1024 * MIB) as f64;
        let contestant = |name: &'static str| {
            let cpu = &cpu;
            Contestant::new(name, move || {
                let target = source.with_file_name("target");
                let pid = self.way.daemon.pid().context("the daemon has ended")?;
                let before = measure::cpu_of(pid)?;
                let mut used = usage(&mut self.copy(name, source, &target, up)?, None)?;
                if name == transfers::TRUNKLINE_CP {
                    used.cpu += (measure::cpu_of(pid)? - before).as_secs_f64();
                }
                check(source, &target)?;
                cpu.note(name, vec![used.cpu / gib]);
                Ok(vec![used.seconds])
            })
        };
        let mut contestants: Vec<Contestant<'_>> = PROGRAMS.into_iter().map(contestant).collect();
        let samples = in_turns(self.lab.size(3, 1), &mut contestants);
        drop(contestants);
        let cpu = cpu.into_samples(&samples);
        outcome.tables.push(Table {
            title: title.to_owned(),
            unit: "s",
            samples,
        });
        outcome.tables.push(Table {
            title: format!("{title}: CPU time of this side"),
            unit: "s/GiB",
            samples: cpu,
        });
    }

    fn copy(&self, program: &str, source: &Path, target: &Path, up: bool) -> anyhow::Result<Command> {
        let (from, to) = (source.display().to_string(), target.display().to_string());
        let remote = |path: &str| format!("{}:{path}", self.way.alias);
        let key = self
            .server
            .client_keys()
            .first()
            .context("the server has no client key")?;
        let config = self.way.config.display();
        Ok(match program {
            SFTP => {
                let batch = self.place.join("batch");
                let verb = if up { "put" } else { "get" };
                writeln!(std::fs::File::create(&batch)?, "{verb} -rp {from} {to}")?;
                let mut sftp = Command::new("sftp");
                sftp.args(["-q", "-o", "Ciphers=aes128-gcm@openssh.com", "-F"])
                    .arg(&self.way.config)
                    .arg("-b")
                    .arg(batch)
                    .arg(&self.way.alias);
                sftp
            }
            RSYNC_PLAIN => {
                let mut rsync = Command::new("rsync");
                rsync.args(["-a", "-e", &format!("ssh -F {config}")]);
                match up {
                    true => rsync.args([from, remote(&to)]),
                    false => rsync.args([remote(&from), to]),
                };
                rsync
            }
            RCLONE => {
                let mut rclone = Command::new("rclone");
                let verb = if source.is_dir() { "copy" } else { "copyto" };
                rclone.args([verb, "--config", "/dev/null", "--sftp-host"]);
                rclone.arg(self.address.ip().to_string());
                rclone.args(["--sftp-port", &self.address.port().to_string()]);
                rclone.args(["--sftp-user", self.server.user(), "--sftp-key-file"]);
                rclone.arg(key.private_path());
                let there = |path: &str| format!(":sftp:{path}");
                match up {
                    true => rclone.args([from, there(&to)]),
                    false => rclone.args([there(&from), to]),
                };
                rclone
            }
            ASYNCSSH => {
                let mut asyncssh = self.lab.peers.asyncssh.command()?;
                asyncssh
                    .arg(self.address.to_string())
                    .arg(self.server.user())
                    .arg(key.private_path())
                    .arg(self.server.known_hosts())
                    .args([if up { "put" } else { "get" }, &from, &to]);
                asyncssh
            }
            program => match up {
                true => self.way.copy(program, &from, &remote(&to)),
                false => self.way.copy(program, &remote(&from), &to),
            },
        })
    }
}

fn zeros(place: &TempDir, bytes: usize) -> anyhow::Result<PathBuf> {
    let path = place.path().join("zeros");
    // Written, so that nobody sees a hole.
    std::fs::write(&path, vec![0; bytes])?;
    Ok(path)
}

/// Words of all lengths in an order without end, as a log or a book has them.
fn text(place: &TempDir, bytes: usize) -> anyhow::Result<PathBuf> {
    let path = place.path().join("text");
    std::fs::write(&path, words(bytes, 1))?;
    Ok(path)
}

/// Files of 1 to 40 KiB of text, four to a directory, as in the sources of a program.
fn tree(place: &TempDir, bytes: usize) -> anyhow::Result<PathBuf> {
    const LARGEST: usize = 40 * 1024;
    let root = place.path().join("tree");
    // Small files take longer than their bytes: a part of the other kinds' bytes takes as long as they do.
    let (mut left, mut number) = (bytes / 4, 0);
    while left > 0 {
        let length = (1024 + number * 7919 % LARGEST).min(left);
        let directory = root.join(format!("{}/{}", number / 64, number / 4));
        std::fs::create_dir_all(&directory)?;
        std::fs::write(
            directory.join(format!("{number}.rs")),
            words(length, number as u64),
        )?;
        left -= length;
        number += 1;
    }
    Ok(root)
}

fn words(bytes: usize, seed: u64) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "the",
        "connection",
        "of",
        "session",
        "and",
        "channel",
        "to",
        "window",
        "a",
        "server",
        "is",
        "packet",
        "in",
        "transport",
        "not",
        "request",
    ];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut text = Vec::with_capacity(bytes + 32);
    while text.len() < bytes {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text.extend_from_slice(WORDS[(state >> 60) as usize].as_bytes());
        match state % 11 {
            0 => text.extend_from_slice(format!(" {}\n", state % 100_000).as_bytes()),
            _ => text.push(b' '),
        }
    }
    text.truncate(bytes);
    text
}

fn size_of(source: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(source) else {
        return source.metadata().map_or(0, |found| found.len());
    };
    entries.flatten().map(|entry| size_of(&entry.path())).sum()
}

fn remove(source: &Path) -> anyhow::Result<()> {
    if source.is_dir() {
        std::fs::remove_dir_all(source)?;
    } else {
        std::fs::remove_file(source)?;
    }
    Ok(())
}
