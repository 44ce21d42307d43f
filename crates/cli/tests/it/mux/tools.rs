//! Programs that run ssh, unmodified, over the daemon's connections: by ControlPath, and with `trunkline ssh` in ssh's place.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use trunkline_testkit::{Direction, Relay, Sshd, noise};

use super::stock;
use crate::home::{
    Home, assert_has, assert_prints, end_of, fail, finish, program, server, sshd, succeed, text, wait_until,
};

/// How ssh comes to use the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Stock ssh, with ControlPath in its configuration.
    ControlPath,
    /// `trunkline ssh` where ssh is named.
    InPlaceOfSsh,
}

const WAYS: [Way; 2] = [Way::ControlPath, Way::InPlaceOfSsh];

/// A server, and the tools that reach it.
struct Bench {
    home: Home,
    server: Sshd,
    config: PathBuf,
    /// The program that the tools run for ssh, which knows the configuration.
    ssh: PathBuf,
    way: Way,
}

impl Bench {
    fn new(server: Sshd, way: Way) -> Self {
        let entry = server.host_entry(server.alias());
        Self::with_hosts(server, way, vec![entry])
    }

    fn with_hosts(server: Sshd, way: Way, hosts: Vec<trunkline_testkit::HostEntry>) -> Self {
        Self::assemble(Home::never_busy(), server, way, hosts)
    }

    fn assemble(home: Home, server: Sshd, way: Way, hosts: Vec<trunkline_testkit::HostEntry>) -> Self {
        let path = format!("ControlPath {}", stock::socket(&home, "%n").display());
        let hosts = hosts.into_iter().map(|host| match way {
            Way::ControlPath => host.with_line(&path).with_line("ControlMaster no"),
            Way::InPlaceOfSsh => host,
        });
        let hosts: Vec<_> = hosts.collect();
        let config = home.config(hosts.clone());
        let runs = match way {
            Way::ControlPath => "ssh".to_owned(),
            Way::InPlaceOfSsh => format!("'{}' ssh", program()),
        };
        let script = format!("#!/bin/sh\nexec {runs} -F '{}' \"$@\"\n", config.display());
        let ssh = home.script("ssh", &script);
        if way == Way::ControlPath {
            for host in hosts {
                let request = stock::host(&home, &config, &host.alias, &[]);
                stock::listen(&home, request, &stock::socket(&home, &host.alias)).unwrap();
            }
        }
        Self {
            home,
            server,
            config,
            ssh,
            way,
        }
    }

    /// `scp` or `sftp`: stock ssh needs no more than the file, `trunkline ssh` is named.
    fn copier(&self, name: &str) -> Command {
        let mut command = self.home.command(name);
        command.arg("-q").arg("-F").arg(&self.config);
        if self.way == Way::InPlaceOfSsh {
            command.arg("-S").arg(&self.ssh);
        }
        command
    }

    fn git(&self, directory: &Path, arguments: &[&str]) -> Output {
        let mut git = self.home.command("git");
        git.current_dir(directory)
            .args(["-c", "init.defaultBranch=main", "-c", "protocol.version=2"])
            .args(arguments)
            .env("GIT_SSH_COMMAND", &self.ssh)
            .env("GIT_SSH_VARIANT", "ssh")
            .env("GIT_CONFIG_GLOBAL", "/dev/null");
        for who in ["AUTHOR", "COMMITTER"] {
            git.env(format!("GIT_{who}_NAME"), "T")
                .env(format!("GIT_{who}_EMAIL"), "t@example.org");
        }
        succeed(git.env("GIT_TRACE_PACKET", "1"))
    }

    fn rsync(&self) -> Command {
        let mut rsync = self.home.command("rsync");
        rsync.arg("-e").arg(&self.ssh);
        rsync
    }

    fn remote(&self, path: &Path) -> String {
        format!("{}:{}", self.server.alias(), path.display())
    }

    /// A directory of the test's own.
    fn directory(&self, name: &str) -> PathBuf {
        let directory = self.home.path(name);
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    #[track_caller]
    fn assert_one_login(&self) {
        assert_eq!(self.server.authentications(), 1, "{:?}", self.way);
    }
}

#[test]
fn scp_copies_both_ways_with_both_protocols() {
    for way in WAYS {
        let bench = Bench::new(server(), way);
        let directory = bench.directory("files");
        let file = directory.join("file");
        fs::write(&file, noise(3_000_000, 1)).unwrap();
        for protocol in ["-s", "-O"] {
            let (there, back) = (directory.join("there"), directory.join("back"));
            succeed(
                bench
                    .copier("scp")
                    .arg(protocol)
                    .arg(&file)
                    .arg(bench.remote(&there)),
            );
            succeed(
                bench
                    .copier("scp")
                    .arg(protocol)
                    .arg(bench.remote(&there))
                    .arg(&back),
            );
            assert!(fs::read(&back).unwrap() == fs::read(&file).unwrap());
        }
        let missing = bench.remote(&directory.join("missing"));
        fail(1, bench.copier("scp").arg(missing).arg(&directory));
        bench.assert_one_login();
    }
}

#[test]
fn sftp_works_through_a_batch() {
    for way in WAYS {
        let bench = Bench::new(server(), way);
        let directory = bench.directory("files");
        fs::write(directory.join("file"), noise(1_000_000, 1)).unwrap();
        let batch = bench.home.path("batch");
        let lines = [
            "mkdir sub",
            "put file sub/there",
            "rename sub/there sub/moved",
            "get sub/moved back",
            "ls -l sub",
        ];
        fs::write(
            &batch,
            format!("cd {0}\nlcd {0}\n{1}\n", directory.display(), lines.join("\n")),
        )
        .unwrap();
        let output = succeed(
            bench
                .copier("sftp")
                .arg("-b")
                .arg(&batch)
                .arg(bench.server.alias()),
        );
        assert_prints(&output, "sub/moved");
        assert!(fs::read(directory.join("back")).unwrap() == fs::read(directory.join("file")).unwrap());
        bench.assert_one_login();
    }
}

/// How the wire breaks.
#[derive(Debug, Clone, Copy)]
enum Break {
    Reset,
    Closed,
    /// Nothing more comes, and the daemon has to find out.
    Silent,
}

/// Breaks the wire once some more has gone over it, so often, and mends it.
fn break_often(relay: &Relay, direction: Direction, breaks: &[Break]) {
    for how in breaks {
        let begun = relay.bytes(direction);
        wait_until("a part has gone over the wire", || {
            relay.bytes(direction) > begun + 400_000
        });
        match how {
            Break::Reset => relay.reset(),
            Break::Closed => relay.close(),
            Break::Silent => {
                let connections = relay.connections();
                relay.stall();
                wait_until("it is tried anew", || relay.connections() > connections);
                relay.resume();
            }
        }
    }
}

#[test]
fn sftp_and_scp_outlive_their_connections() {
    const LEN: usize = 3_000_000;
    const BREAKS: [Break; 3] = [Break::Reset, Break::Silent, Break::Closed];
    for (way, tool) in WAYS.into_iter().zip(["sftp", "scp"]) {
        let server = server();
        let relay = Relay::start(server.addr()).unwrap();
        server.trust_at(relay.addr()).unwrap();
        let entry = server.host_entry(server.alias()).with_address(relay.addr());
        let home = Home::never_busy();
        home.settings("sftp_resume_hosts = [\"*\"]\nprobe_after = 1\nprobe_limit = 1\n");
        let bench = Bench::assemble(home, server, way, vec![entry]);
        let directory = bench.directory("files");
        let file = directory.join("file");
        fs::write(&file, noise(LEN, 1)).unwrap();
        for direction in [Direction::ToServer, Direction::ToClient] {
            let target = directory.join(format!("{direction:?}"));
            let (from, to) = match direction {
                Direction::ToServer => (file.display().to_string(), bench.remote(&target)),
                Direction::ToClient => (bench.remote(&file), target.display().to_string()),
            };
            let mut copier = bench.copier(tool);
            if tool == "scp" {
                copier.arg("-s").args([&from, &to]);
            } else {
                let verb = if direction == Direction::ToServer {
                    "put"
                } else {
                    "get"
                };
                let batch = bench.home.path("batch");
                fs::write(
                    &batch,
                    format!("{verb} {} {}\n", file.display(), target.display()),
                )
                .unwrap();
                copier.arg("-b").arg(batch).arg(bench.server.alias());
            }
            relay.set_rate(direction, Some(2_500_000));
            let mut copier = copier.stdin(std::process::Stdio::null()).spawn().unwrap();
            break_often(&relay, direction, &BREAKS);
            relay.set_rate(direction, None);
            let ended = end_of(&mut copier, tool);
            assert!(
                ended.success(),
                "{tool} {direction:?} {way:?}: {ended}\n{}",
                bench.home.log()
            );
            assert!(
                fs::read(&target).unwrap() == fs::read(&file).unwrap(),
                "{tool} {direction:?} {way:?}"
            );
        }
        let metrics = text(&finish(bench.home.trunkline().arg("metrics")).stdout);
        let resumed = metrics
            .lines()
            .find_map(|line| line.strip_prefix("trunkline_sftp_resumed_total "));
        let resumed: usize = resumed.and_then(|count| count.parse().ok()).unwrap();
        assert!(resumed >= 2 * BREAKS.len(), "{resumed}");
    }
}

#[test]
fn a_session_that_was_carried_over_is_told_of() {
    for way in WAYS {
        let server = server();
        let relay = Relay::start(server.addr()).unwrap();
        server.trust_at(relay.addr()).unwrap();
        let entry = server.host_entry(server.alias()).with_address(relay.addr());
        let home = Home::never_busy();
        home.settings("sftp_resume = true\naudit = \"on\"\n");
        let bench = Bench::assemble(home, server, way, vec![entry]);
        let place = bench.home.path("made");
        fs::create_dir(&place).unwrap();
        let mut sftp = bench.copier("sftp");
        if way == Way::ControlPath {
            // One that is not told which ssh to run.
            sftp.arg("-S").arg("ssh");
        }
        sftp.args(["-b", "-", bench.server.alias()]);
        sftp.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut sftp = sftp.spawn().unwrap();
        let (mut typed, shown) = (sftp.stdin.take().unwrap(), sftp.stdout.take().unwrap());
        let mut shown = BufReader::new(shown).lines();
        let mut does = |command: &str| {
            writeln!(typed, "{command} {}/first\n!echo did {command}", place.display()).unwrap();
            // What it shows: its prompts, and what it ran.
            assert!(shown.any(|line| line.unwrap() == format!("did {command}")));
        };
        does("mkdir");
        relay.reset();
        // Safe to ask again: the old session may still have done it.
        does("ls");
        let resumed = || bench.home.ls()[0]["resumed"].as_u64();
        wait_until("ls tells of it", || resumed() == Some(1));
        let listed = text(&finish(bench.home.trunkline().arg("ls")).stdout);
        assert_has(&listed, "carried over to a new connection 1 time");
        drop(typed);
        assert!(end_of(&mut sftp, "sftp").success());
        assert!(place.join("first").is_dir());
        let mut audit = bench.home.trunkline();
        audit.args(["audit", "show", "--json"]);
        wait_until("the audit trail tells of it", || {
            let records = text(&finish(&mut audit).stdout);
            records.lines().any(|record| record.contains("\"resumed\":1,"))
        });
    }
}

#[test]
fn git_clones_fetches_pulls_and_pushes_with_protocol_2_and_two_remotes() {
    for way in WAYS {
        let bench = Bench::new(sshd().config("AcceptEnv GIT_PROTOCOL").start().unwrap(), way);
        let root = bench.directory("git");
        for bare in ["one.git", "two.git"] {
            bench.git(&root, &["init", "-q", "--bare", bare]);
        }
        let url = |bare: &str| format!("{}:{}", bench.server.alias(), root.join(bare).display());
        bench.git(&root, &["clone", "-q", &url("one.git"), "work"]);
        let work = root.join("work");
        fs::write(work.join("file"), noise(300_000, 1)).unwrap();
        bench.git(&work, &["add", "."]);
        bench.git(&work, &["commit", "-q", "-m", "first"]);
        bench.git(&work, &["push", "-q", "origin", "HEAD:main"]);
        bench.git(&work, &["remote", "add", "second", &url("two.git")]);
        bench.git(&work, &["push", "-q", "second", "HEAD:main"]);
        let cloned = bench.git(&root, &["clone", "-q", "-b", "main", &url("two.git"), "other"]);
        assert!(
            text(&cloned.stderr).contains("version 2"),
            "GIT_PROTOCOL has arrived"
        );
        let other = root.join("other");
        bench.git(&other, &["commit", "-q", "--allow-empty", "-m", "second"]);
        bench.git(&other, &["push", "-q", "origin", "HEAD:main"]);
        bench.git(&work, &["fetch", "-q", "--all"]);
        bench.git(&work, &["pull", "-q", "--ff-only", "second", "main"]);
        let heads = [&work, &other].map(|at| text(&bench.git(at, &["rev-parse", "HEAD"]).stdout));
        assert_eq!(heads[0], heads[1]);
        bench.assert_one_login();
    }
}

#[test]
fn rsync_copies_trees_both_ways() {
    for way in WAYS {
        let bench = Bench::new(server(), way);
        let from = bench.directory("from/deep");
        for n in 0..200 {
            fs::write(from.join(format!("{n}")), noise(n * 37, 1)).unwrap();
        }
        let from = from.parent().unwrap();
        let [there, back] = ["there", "back"].map(|name| bench.directory(name));
        let slash = |path: &Path| format!("{}/", path.display());
        succeed(
            bench
                .rsync()
                .arg("-az")
                .arg(slash(from))
                .arg(bench.remote(&there)),
        );
        succeed(
            bench
                .rsync()
                .arg("-a")
                .arg(bench.remote(&there) + "/")
                .arg(slash(&back)),
        );
        succeed(bench.home.command("diff").arg("-r").arg(from).arg(&back));
        bench.assert_one_login();
    }
}

#[test]
fn rsync_goes_on_where_a_lost_connection_has_cut_it_off() {
    const LEN: usize = 6_000_000;
    for way in WAYS {
        let server = server();
        let relay = Relay::start(server.addr()).unwrap();
        server.trust_at(relay.addr()).unwrap();
        let entry = server.host_entry(server.alias()).with_address(relay.addr());
        let bench = Bench::with_hosts(server, way, vec![entry]);
        let directory = bench.directory("files");
        let file = directory.join("file");
        fs::write(&file, noise(LEN, 1)).unwrap();
        for direction in [Direction::ToServer, Direction::ToClient] {
            let target = directory.join(format!("{direction:?}"));
            let ends = match direction {
                Direction::ToServer => [file.display().to_string(), bench.remote(&target)],
                Direction::ToClient => [bench.remote(&file), target.display().to_string()],
            };
            let copy = || {
                let mut rsync = bench.rsync();
                rsync
                    .args(["--partial", "--inplace", "--no-whole-file", "--stats"])
                    .args(&ends);
                rsync
            };
            relay.set_rate(direction, Some(2_000_000));
            let mut first = copy();
            let mut first = first
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn()
                .unwrap();
            let arrived = || fs::metadata(&target).map_or(0, |found| found.len());
            wait_until("a part has arrived", || arrived() > 1_000_000);
            relay.reset();
            assert!(!end_of(&mut first, "rsync").success());
            relay.set_rate(direction, None);
            let second = succeed(&mut copy());
            assert!(fs::read(&target).unwrap() == fs::read(&file).unwrap());
            let stats = text(&second.stdout);
            let matched = stats.lines().find_map(|line| line.strip_prefix("Matched data: "));
            let matched = matched.unwrap().replace([',', '.'], "");
            assert!(
                matched.split(' ').next().unwrap().parse::<u64>().unwrap() > 500_000,
                "{stats}"
            );
        }
    }
}

/// A playbook takes longer than a command, most of it in Python.
const PLAYBOOK_PATIENCE: Duration = Duration::from_secs(180);

#[test]
fn a_playbook_runs_on_40_hosts_with_and_without_pipelining() {
    for (way, pipelining) in [
        (Way::ControlPath, true),
        (Way::ControlPath, false),
        (Way::InPlaceOfSsh, true),
        (Way::InPlaceOfSsh, false),
    ] {
        let server = server();
        let aliases: Vec<String> = (1..=40).map(|n| format!("h{n:02}")).collect();
        let hosts = aliases.iter().map(|alias| server.host_entry(alias)).collect();
        let bench = Bench::with_hosts(server, way, hosts);
        let directory = bench.directory("playbook");
        fs::write(directory.join("hosts"), aliases.join("\n")).unwrap();
        fs::write(
            directory.join("play.yml"),
            "- hosts: all
  gather_facts: false
  tasks:
  - raw: echo {{ inventory_hostname }} > DIRECTORY/raw-{{ inventory_hostname }}
  - ping:
    when: inventory_hostname in groups['all'][:4]
"
            .replace("DIRECTORY", &directory.display().to_string()),
        )
        .unwrap();
        // ssh's arguments replace Ansible's own, which bring a ControlPath. With "piped", files travel over ssh itself,
        // so that no other program has to be told.
        let ssh = match way {
            Way::ControlPath => format!("ssh_args = -F {}\n", bench.config.display()),
            Way::InPlaceOfSsh => format!(
                "ssh_executable = {}\nssh_args = -T\ntransfer_method = piped\n",
                bench.ssh.display()
            ),
        };
        fs::write(
            directory.join("ansible.cfg"),
            format!(
                "[defaults]\ninventory = hosts\nforks = 20\ninterpreter_python = /usr/bin/python3\nremote_tmp = {0}/tmp\nlocal_tmp = {0}/local\n[ssh_connection]\npipelining = {pipelining}\n{ssh}",
                directory.display()
            ),
        )
        .unwrap();
        let log = directory.join("log");
        let mut playbook = bench.home.command_with_ansible("ansible-playbook");
        playbook
            .current_dir(&directory)
            .env("LC_ALL", "C.UTF-8")
            .env("ANSIBLE_HOME", directory.join("home"))
            .env("ANSIBLE_LOG_PATH", &log)
            .arg("play.yml")
            .stdout(std::process::Stdio::null())
            .stderr(fs::File::create(directory.join("errors")).unwrap());
        let mut child = playbook.spawn().unwrap();
        let begun = Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < PLAYBOOK_PATIENCE, "the playbook does not end");
            std::thread::park_timeout(Duration::from_millis(20));
        }
        let said = fs::read_to_string(&log).unwrap() + &fs::read_to_string(directory.join("errors")).unwrap();
        assert!(
            child.wait().unwrap().success(),
            "{way:?}, pipelining {pipelining}: {said}"
        );
        for alias in &aliases {
            let written = fs::read_to_string(directory.join(format!("raw-{alias}")));
            assert_eq!(written.unwrap().trim(), alias);
        }
        // Forty names of one account: they share, over as many connections as MaxSessions makes necessary.
        assert!(
            bench.server.authentications() <= 4,
            "{way:?}: {}",
            bench.server.authentications()
        );
    }
}
