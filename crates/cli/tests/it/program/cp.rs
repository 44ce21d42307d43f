//! `trunkline cp`: files and trees to and from hosts.

mod ends;
mod filters;
mod full_disk;
mod hosts;
mod killed;
mod messages;
mod options;
mod patterns;
mod targets;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::{Pid, Signal, kill_process};
use trunkline_testkit::{Sshd, noise};

use crate::home::{
    Home, assert_says, assert_status, describe, fail, finish, server, sshd, succeed, text, wait_until,
};

/// `trunkline cp -F FILE`; add options and paths.
fn cp(home: &Home, server: &Sshd) -> Command {
    let mut command = home.trunkline();
    command.arg("cp").arg("-F").arg(server.ssh_config());
    command
}

/// Servers whose users' homes are directories of their own, and a configuration with all of them.
struct Site {
    home: Home,
    _servers: Vec<Sshd>,
}

impl Site {
    fn new(names: &[&str]) -> Self {
        let home = Home::new();
        let mut config = String::new();
        let servers = names.iter().map(|name| {
            let place = home.path(name);
            fs::create_dir(&place).unwrap();
            let subsystem = format!(
                "Subsystem sftp /usr/lib/openssh/sftp-server -d {}",
                place.display()
            );
            let server = sshd().alias(name).config(&subsystem).start().unwrap();
            config += &fs::read_to_string(server.ssh_config()).unwrap();
            server
        });
        let servers = servers.collect();
        config += "Host down*\n Hostname 127.0.0.1\n Port 1\n";
        fs::write(home.path("config"), config).unwrap();
        Self {
            home,
            _servers: servers,
        }
    }

    fn cp(&self) -> Command {
        let mut command = self.home.trunkline();
        command.args(["cp", "-F"]).arg(self.home.path("config"));
        command.current_dir(self.home.path(""));
        command
    }
}

fn remote(server: &Sshd, path: &Path) -> String {
    format!("{}:{}", server.alias(), path.display())
}

fn tree(root: &Path) {
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("a/one"), "one").unwrap();
    fs::write(root.join("a/b/two words"), noise(3_000_000, 1)).unwrap();
}

#[test]
fn a_tree_goes_there_and_comes_back_by_way_of_the_daemon_and_without_it() {
    let (server, home) = (server(), Home::new());
    let source = home.path("source");
    tree(&source);
    for daemon in [true, false] {
        let [there, back] = ["there", "back"].map(|name| home.path(&format!("{name}-{daemon}")));
        let run =
            |from: &dyn AsRef<OsStr>, to: &dyn AsRef<OsStr>| {
                let mut command = home.trunkline();
                if !daemon {
                    command.arg("--no-daemon");
                }
                command.args(["cp", "-rp", "-F"]).arg(server.ssh_config());
                let output = succeed(command.arg(from).arg(to));
                assert_says(&output, "5 copied");
                succeed(home.command("diff").arg("-r").arg(&source).arg(
                    if there.exists() && back.exists() {
                        &back
                    } else {
                        &there
                    },
                ));
            };
        run(&source, &remote(&server, &there));
        run(&remote(&server, &there), &back);
    }
}

#[test]
fn relative_paths_begin_where_the_caller_is_and_at_the_users_home_on_the_server() {
    let (server, home) = (server(), Home::new());
    let directory = home.path("directory");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("f"), "f").unwrap();
    let target = home.path("target");
    succeed(
        cp(&home, &server)
            .current_dir(&directory)
            .arg("f")
            .arg(remote(&server, &target)),
    );
    assert_eq!(fs::read(&target).unwrap(), b"f");
    let output = fail(
        1,
        cp(&home, &server)
            .current_dir(&directory)
            .arg(format!("{}:.", server.alias()))
            .arg("home"),
    );
    assert_says(&output, "is a directory; -r copies it");
}

#[test]
fn neither_a_name_nor_the_working_directory_has_to_be_utf8() {
    let (server, home) = (server(), Home::new());
    let name = |text: &[u8]| OsStr::from_bytes(text).to_owned();
    let directory = home.path("").join(name(b"directory\xff"));
    let odd = name(b"a\xff\nb");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join(&odd), "odd").unwrap();
    let mut there = OsString::from(format!("{}:", server.alias()));
    there.push(directory.join(name(b"there\xfe")));
    let back = name(b"back\xfd");
    for (from, to) in [(&odd, &there), (&there, &back)] {
        succeed(cp(&home, &server).current_dir(&directory).arg(from).arg(to));
    }
    assert_eq!(fs::read(directory.join(back)).unwrap(), b"odd");
}

#[test]
fn what_fails_is_named_and_the_exit_status_tells() {
    let (server, home) = (server(), Home::new());
    fs::write(home.path("there"), "x").unwrap();
    fs::create_dir(home.path("into")).unwrap();
    let output = fail(
        1,
        cp(&home, &server)
            .args([
                remote(&server, &home.path("absent")),
                remote(&server, &home.path("there")),
            ])
            .arg(home.path("into")),
    );
    assert_says(&output, "absent: No such file or directory");
    assert_says(&output, "1 failed");
    assert_eq!(fs::read(home.path("into/there")).unwrap(), b"x");
    let output = fail(255, cp(&home, &server).args(["a", "b"]));
    assert_says(&output, "no host is named");
}

#[test]
fn json_tells_of_every_name_and_of_the_whole() {
    let (server, home) = (server(), Home::new());
    tree(&home.path("source"));
    let output = succeed(
        cp(&home, &server)
            .args(["-r", "--json"])
            .arg(home.path("source"))
            .arg(remote(&server, &home.path("target"))),
    );
    let lines: Vec<serde_json::Value> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (summary, names) = lines.split_last().unwrap();
    assert_eq!(names.len(), 5);
    assert_eq!(summary["bytes"], 3_000_003);
    assert_eq!(summary["failed"], 0);
    assert!(!summary["ciphers"].as_array().unwrap().is_empty());
}

#[test]
fn progress_that_goes_into_a_file_is_in_lines() {
    let (server, home) = (server(), Home::new());
    tree(&home.path("source"));
    let mut copy = cp(&home, &server);
    copy.args(["-r", "--progress", "--bwlimit", "2M"])
        .arg(home.path("source"))
        .arg(remote(&server, &home.path("target")));
    let output = succeed(&mut copy);
    let words = text(&output.stderr);
    let lines: Vec<&str> = words.lines().collect();
    let (summary, progress) = lines.split_last().unwrap();
    // While it connects it may say so.
    let progress: Vec<&&str> = progress
        .iter()
        .filter(|line| !line.starts_with("connecting to "))
        .collect();
    assert!(summary.contains("5 copied"), "{words}");
    // Bytes and names, of those that were found; names alone until there is a file.
    let is_progress = |line: &&&str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let last = fields.last().is_some_and(|names| names.contains('/'));
        matches!(line.matches('/').count(), 1 | 2) && last && !line.starts_with("0/0")
    };
    assert!(
        !progress.is_empty() && progress.iter().all(is_progress),
        "{words}"
    );
    let quiet = finish(
        cp(&home, &server)
            .args(["-r"])
            .arg(home.path("source"))
            .arg(remote(&server, &home.path("again"))),
    );
    assert_eq!(text(&quiet.stderr).lines().count(), 1, "{}", describe(&quiet));
}

#[test]
fn progress_is_that_of_all_hosts_together() {
    let site = Site::new(&["one", "other"]);
    fs::write(site.home.path("source"), noise(3_000_000, 1)).unwrap();
    let options = ["--progress", "--bwlimit", "1M", "-H", "one,other"];
    let output = succeed(site.cp().args(options).args(["source", ":copy"]));
    for name in ["one", "other"] {
        assert_eq!(
            fs::read(site.home.path(name).join("copy")).unwrap(),
            noise(3_000_000, 1)
        );
    }
    // At that rate there is a line in the middle.
    let words = text(&output.stderr);
    assert!(
        words
            .lines()
            .any(|line| line.contains("/5.72 MiB ") && line.ends_with("/2")),
        "{words}"
    );
}

#[test]
fn a_dry_run_names_and_touches_nothing() {
    let (server, home) = (server(), Home::new());
    tree(&home.path("source"));
    let output = succeed(
        cp(&home, &server)
            .args(["-rn", "--exclude", "b"])
            .arg(remote(&server, &home.path("source")))
            .arg(home.path("target")),
    );
    let lines = "new          target\nnew          target/a\nnew          target/a/one\n";
    assert_eq!(text(&output.stdout), lines, "sorted, with why");
    assert!(!home.path("target").exists());
}

#[test]
fn the_callers_umask_counts_and_not_the_daemons() {
    use std::os::unix::fs::PermissionsExt as _;
    let (server, home) = (server(), Home::new());
    fs::write(home.path("source"), "x").unwrap();
    fs::set_permissions(home.path("source"), fs::Permissions::from_mode(0o666)).unwrap();
    for umask in ["022", "077"] {
        let target = home.path(umask);
        let script = format!(
            "umask {umask}; exec \"$T\" cp -F \"$F\" {} {}",
            remote(&server, &home.path("source")),
            target.display()
        );
        succeed(&mut home.shell(&server, &script));
        let mode = fs::metadata(&target).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o666 & !u32::from_str_radix(umask, 8).unwrap());
    }
}

#[test]
fn many_hosts_get_the_same() {
    let (server, home) = (server(), Home::new());
    fs::write(home.path("source"), "x").unwrap();
    let target = home.path("target");
    let output = finish(
        cp(&home, &server)
            .arg(home.path("source"))
            .args(["-H", server.alias(), "-H", "127.0.0.1"])
            .args(["-P", &server.port().to_string()])
            .arg(format!(":{}", target.display())),
    );
    // The alias is known; the bare address is not in known_hosts under that configuration, or it is: either way the other
    // got the file.
    assert_says(&output, "2 hosts in ");
    assert_eq!(fs::read(&target).unwrap(), b"x");
}

/// A copy that is killed in its middle, at a place that differs from round to round, and resumed.
fn killed_and_gone_on(rounds: usize, upload: bool, whom: fn(&Home, u32) -> Pid) {
    let (server, home) = (server(), Home::new());
    let (source, target) = (home.path("source"), home.path("target"));
    tree(&source);
    fs::write(source.join("large"), noise(24_000_000, 1)).unwrap();
    let ends = || -> [String; 2] {
        let inside = |path: &PathBuf| path.join(".");
        if upload {
            [inside(&source).display().to_string(), remote(&server, &target)]
        } else {
            [remote(&server, &inside(&source)), target.display().to_string()]
        }
    };
    // Some has come in each: a daemon that is killed as it starts has not been asked for a copy.
    for round in 1..=rounds {
        let _ = fs::remove_dir_all(&target);
        fs::create_dir(&target).unwrap();
        let mut copy = cp(&home, &server)
            .args(["-rp", "--bwlimit", "60M"])
            .args(ends())
            .stderr(fs::File::create(home.path("said")).unwrap())
            .spawn()
            .unwrap();
        let enough = (round * 24_000_000 / rounds) as u64;
        wait_until("some of it has come", || {
            size(&target) >= enough || copy.try_wait().unwrap().is_some()
        });
        let _ = kill_process(whom(&home, copy.id()), Signal::KILL);
        if copy.wait().unwrap().code().is_some_and(|status| status != 0) {
            let said = fs::read_to_string(home.path("said")).unwrap();
            assert!(said.contains("run the same command again"), "{said}");
        }
        succeed(cp(&home, &server).arg("-rp").args(ends()));
        // What has arrived of a small file is not resumed, and stays.
        let mut diff = home.command("diff");
        diff.args(["-r", "-x", ".one.*.part"]);
        let same = finish(diff.arg(&source).arg(&target));
        let there = finish(home.command("ls").arg("-la").arg(&target));
        assert!(
            same.status.success(),
            "round {round}: {} {}",
            describe(&same),
            describe(&there)
        );
    }
}

/// Bytes of what is in a directory, under whatever name.
fn size(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else {
        return 0;
    };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => size(&entry.path()),
            Ok(found) => std::os::unix::fs::MetadataExt::blocks(&found) * 512,
            Err(_) => 0,
        })
        .sum()
}

fn itself(_: &Home, copy: u32) -> Pid {
    Pid::from_raw(i32::try_from(copy).unwrap()).unwrap()
}

fn the_daemon(home: &Home, copy: u32) -> Pid {
    home.daemon().unwrap_or_else(|| itself(home, copy))
}

/// Of the copy itself and of its daemon: together fifty in each direction.
const ROUNDS: usize = 25;

#[test]
fn a_download_that_was_killed_is_gone_on_with() {
    killed_and_gone_on(ROUNDS, false, itself);
}

#[test]
fn an_upload_that_was_killed_is_gone_on_with() {
    killed_and_gone_on(ROUNDS, true, itself);
}

#[test]
fn a_download_whose_daemon_was_killed_is_gone_on_with() {
    killed_and_gone_on(ROUNDS, false, the_daemon);
}

#[test]
fn an_upload_whose_daemon_was_killed_is_gone_on_with() {
    killed_and_gone_on(ROUNDS, true, the_daemon);
}

/// A shell's words that have `program` run where `directory` is a disk of 6 MiB, and leave what is on it in `seen`. The disk
/// is seen by nobody else and goes with the program. Root needs no namespace of users for it, which containers may lack.
fn on_a_small_disk(directory: &Path, seen: &Path, program: &str) -> String {
    let user = if rustix::process::geteuid().is_root() {
        ""
    } else {
        "-r"
    };
    format!(
        "exec unshare -m {user} sh -c 'mount -t tmpfs -o size=6m tmpfs {directory} || exit 99\n\
         {program}\nstatus=$?; cp -a {directory} {seen}.new; mv {seen}.new {seen}; exit $status'\n",
        directory = directory.display(),
        seen = seen.display(),
    )
}

/// Of all that was to be copied, each file is on the disk as it is at the source, or named and not there at all.
fn assert_whole_or_named(source: &Path, target: &Path, output: &Output) {
    assert_status(output, 1);
    let words = text(&output.stderr);
    let mut missing = 0;
    for entry in fs::read_dir(source).unwrap() {
        let name = entry.unwrap().file_name();
        match fs::read(target.join(&name)) {
            Ok(copy) => assert!(copy == fs::read(source.join(&name)).unwrap(), "{name:?}"),
            Err(_) => {
                missing += 1;
                assert!(words.contains(name.to_str().unwrap()), "{name:?}: {words}");
            }
        }
    }
    assert!(
        missing >= 1 && words.contains(&format!("{missing} failed")),
        "{missing}: {words}"
    );
    let parts = fs::read_dir(target)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let parts: Vec<_> = parts.filter(|name| !source.join(name).exists()).collect();
    assert!(parts.is_empty(), "{parts:?}");
}

#[test]
fn on_a_full_disk_a_file_is_whole_or_named() {
    let home = Home::new();
    let [source, up, down] = ["source", "up", "down"].map(|name| home.path(name));
    for directory in [&source, &up, &down] {
        fs::create_dir(directory).unwrap();
    }
    fs::write(source.join("large"), noise(12_000_000, 1)).unwrap();
    for n in 0..40 {
        fs::write(source.join(format!("small-{n}")), noise(50_000, 1)).unwrap();
    }
    let [seen_up, seen_down] = ["seen-up", "seen-down"].map(|name| home.path(name));
    let wrapper = on_a_small_disk(&up, &seen_up, "/usr/lib/openssh/sftp-server");
    let wrapper = home.script("sftp-server", &format!("#!/bin/sh\n{wrapper}"));
    let subsystem = format!("Subsystem sftp {}", wrapper.display());
    let full = sshd().config(&subsystem).start().unwrap();
    // Each session has a disk of its own there.
    let upload = finish(
        home.trunkline()
            .args(["--no-daemon", "cp", "-r", "--no-partial", "--streams", "1", "-F"])
            .arg(full.ssh_config())
            .arg(source.join("."))
            .arg(remote(&full, &up)),
    );
    wait_until("the server's disk was looked at", || seen_up.exists());
    assert_whole_or_named(&source, &seen_up, &upload);
    let server = server();
    let program = format!(
        "\"$T\" --no-daemon cp -r --no-partial -F \"$F\" {} {}",
        remote(&server, &source.join(".")),
        down.display()
    );
    let script = on_a_small_disk(&down, &seen_down, &program);
    let download = finish(&mut home.shell(&server, &script));
    assert_whole_or_named(&source, &seen_down, &download);
}

/// The shell commands before a program that must find no room for more than 4 MiB in a file: its writes fail from there
/// on, as those of a full disk.
const LITTLE_ROOM: &str = "trap '' XFSZ; ulimit -f 8192; exec";

#[test]
fn without_room_for_a_file_the_others_are_copied_and_nothing_half_is_left() {
    let home = Home::new();
    let wrapper = format!("#!/bin/sh\n{LITTLE_ROOM} /usr/lib/openssh/sftp-server\n");
    let wrapper = home.script("sftp-server", &wrapper);
    let subsystem = format!("Subsystem sftp {}", wrapper.display());
    let server = sshd().config(&subsystem).start().unwrap();
    let source = home.path("source");
    tree(&source);
    fs::write(source.join("large"), noise(12_000_000, 1)).unwrap();
    let (up, down) = (home.path("up"), home.path("down"));
    let upload = finish(
        cp(&home, &server)
            .args(["-r", "--no-partial"])
            .arg(&source)
            .arg(remote(&server, &up)),
    );
    let script = format!(
        "{LITTLE_ROOM} \"$T\" --no-daemon cp -r --no-partial -F \"$F\" {} {}",
        remote(&server, &source),
        down.display()
    );
    let download = finish(&mut home.shell(&server, &script));
    for (output, target) in [(upload, up), (download, down)] {
        assert_status(&output, 1);
        let words = text(&output.stderr);
        assert!(words.contains("large") && words.contains("1 failed"), "{words}");
        assert_eq!(
            fs::read(target.join("a/b/two words")).unwrap(),
            noise(3_000_000, 1)
        );
        assert_eq!(
            fs::read_dir(&target).unwrap().count(),
            1,
            "only what is whole: {words}"
        );
    }
}

#[test]
fn a_host_that_cannot_be_reached_is_tried_once_and_what_its_proxy_command_said_is_told() {
    let (server, home) = (server(), Home::new());
    let tries = home.path("tries");
    let proxy = format!(
        "ProxyCommand=sh -c 'echo try >> {}; echo no session >&2; exit 1'",
        tries.display()
    );
    let local = home.path("file");
    fs::write(&local, "content").unwrap();
    let output = fail(
        255,
        cp(&home, &server)
            .args(["-o", &proxy])
            .arg(&local)
            .arg(remote(&server, &home.path("copy"))),
    );
    assert_says(&output, "the ProxyCommand said: no session");
    assert_eq!(fs::read_to_string(&tries).unwrap(), "try\n");
}
