//! Messages about failures and interruptions.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use trunkline_testkit::noise;

use super::{cp, remote};
use crate::home::{Home, assert_says, describe, fail, finish, server, succeed, text, wait_until};
use crate::tty::Terminal;

#[test]
fn a_directory_that_fails_is_one_line_for_all_that_is_in_it() {
    let (server, home) = (server(), Home::new());
    let (source, target) = (home.path("source"), home.path("target"));
    fs::create_dir_all(source.join("a/b")).unwrap();
    fs::create_dir(&target).unwrap();
    for nth in 0..20 {
        fs::write(source.join(format!("a/{nth}")), "x").unwrap();
        fs::write(source.join(format!("a/b/{nth}")), "x").unwrap();
    }
    fs::write(target.join("a"), "a file").unwrap();
    for ends in [
        [source.join(".").display().to_string(), remote(&server, &target)],
        [remote(&server, &source.join(".")), target.display().to_string()],
    ] {
        let output = fail(1, cp(&home, &server).arg("-r").args(&ends));
        let words = text(&output.stderr);
        let lines: Vec<&str> = words.lines().collect();
        assert!(
            lines[0].contains("target/a") && lines[1].contains("42 failed"),
            "{words}"
        );
        assert_eq!(lines.len(), 2, "{words}");
        let all = finish(cp(&home, &server).arg("-rv").args(&ends));
        assert_eq!(text(&all.stderr).lines().count(), 43, "{}", describe(&all));
        assert_eq!(fs::read(target.join("a")).unwrap(), b"a file");
    }
}

#[test]
fn of_many_files_that_fail_alike_ten_are_named() {
    let (server, home) = (server(), Home::new());
    let (source, target) = (home.path("source"), home.path("target"));
    fs::create_dir(&source).unwrap();
    for nth in 0..30 {
        fs::write(source.join(nth.to_string()), "x").unwrap();
        fs::create_dir_all(target.join(nth.to_string())).unwrap();
    }
    let output = fail(
        1,
        cp(&home, &server)
            .arg("-r")
            .arg(source.join("."))
            .arg(remote(&server, &target)),
    );
    let words = text(&output.stderr);
    let lines: Vec<&str> = words.lines().collect();
    assert!(
        lines[10].starts_with("trunkline: 20 more failed alike, the last: "),
        "{words}"
    );
    assert_eq!(lines.len(), 12, "{words}");
}

#[test]
fn an_interrupted_copy_says_how_to_go_on() {
    let (server, home) = (server(), Home::new());
    fs::write(home.path("source"), noise(30_000_000, 1)).unwrap();
    let mut copy = cp(&home, &server)
        .args(["--bwlimit", "3M"])
        .arg(home.path("source"))
        .arg(remote(&server, &home.path("target")))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    interrupt_when_begun(&copy, &home.path(""));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut copy.stderr.take().unwrap(), &mut said).unwrap();
    assert_eq!(copy.wait().unwrap().signal(), Some(2));
    assert_eq!(
        said,
        "trunkline: interrupted: run the same command again to copy the rest\n"
    );
    let again = succeed(
        cp(&home, &server)
            .arg(home.path("source"))
            .arg(remote(&server, &home.path("target"))),
    );
    assert_says(&again, "were there from an earlier copy");
    assert!(fs::read(home.path("target")).unwrap() == noise(30_000_000, 1));
}

#[test]
fn an_interrupted_copy_to_a_new_name_goes_on_as_its_message_says() {
    let (server, home) = (server(), Home::new());
    let (source, target) = (home.path("source"), home.path("target"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), noise(30_000_000, 1)).unwrap();
    let mut copy = cp(&home, &server)
        .args(["-r", "--bwlimit", "3M"])
        .arg(&source)
        .arg(remote(&server, &target))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    interrupt_when_begun(&copy, &target);
    let mut said = String::new();
    std::io::Read::read_to_string(&mut copy.stderr.take().unwrap(), &mut said).unwrap();
    copy.wait().unwrap();
    let (name, new_name) = (source.display(), remote(&server, &target));
    assert_eq!(
        said,
        format!(
            "trunkline: interrupted: run the same command again to copy the rest; if {name} is a directory and {new_name} is \
             new, with {name}/. in its place\n"
        )
    );
    let again = succeed(
        cp(&home, &server)
            .arg("-r")
            .arg(source.join("."))
            .arg(remote(&server, &target)),
    );
    assert_says(&again, "were there from an earlier copy");
    assert!(fs::read(target.join("file")).unwrap() == noise(30_000_000, 1));
    let names: Vec<_> = fs::read_dir(&target)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["file"], "{}", describe(&again));
}

/// Interrupts a copy when a whole block of its file has come, which is what the next one does not send again.
fn interrupt_when_begun(copy: &Child, directory: &Path) {
    const BLOCK: usize = 8 << 20;
    let block = noise(BLOCK, 1);
    wait_until("a block has come", || {
        let names = fs::read_dir(directory).into_iter().flatten().flatten();
        names.into_iter().any(|entry| {
            let is_part = entry.file_name().to_string_lossy().ends_with(".part");
            is_part && fs::read(entry.path()).is_ok_and(|part| part.starts_with(&block))
        })
    });
    let pid = Pid::from_raw(i32::try_from(copy.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
}

#[test]
fn a_bar_is_drawn_unless_the_terminal_is_the_target() {
    let (server, home) = (server(), Home::new());
    let source = home.path("source");
    fs::write(&source, "a line\n".repeat(300_000)).unwrap();
    for (target, has_bar) in [(home.path("target").as_path(), true), (Path::new("-"), false)] {
        let mut copy = cp(&home, &server);
        copy.args(["--bwlimit", "1M"])
            .arg(remote(&server, &source))
            .arg(target);
        let mut terminal = Terminal::start(&copy);
        assert!(terminal.end().success());
        terminal.expect("1 copied");
        let shown = terminal.text();
        assert_eq!(
            shown.contains(['░', '█']),
            has_bar,
            "{}: {shown:.300}",
            target.display()
        );
    }
}

#[test]
fn what_ssh_says_at_info_is_said_at_info() {
    let server = server();
    for (level, is_said) in [("INFO", true), ("ERROR", false), ("QUIET", false)] {
        let home = Home::new();
        fs::write(home.path("file"), "").unwrap();
        let target = remote(&server, &home.path("copy"));
        let options = [
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "GlobalKnownHostsFile=/dev/null",
        ];
        let output = succeed(
            cp(&home, &server)
                .args(options)
                .args(["-o", &format!("LogLevel={level}")])
                .args([&home.path("file").display().to_string(), &target]),
        );
        let words = text(&output.stderr);
        assert_eq!(words.contains("Permanently added"), is_said, "{level}: {words}");
    }
}
