//! Copies whose daemon is killed or told to stop, and the copies that follow.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Signal, kill_process};
use trunkline_testkit::noise;

use super::{cp, remote};
use crate::home::{Home, describe, end_of, server, succeed, text, wait_until};

/// The partial files in a directory.
fn parts(directory: &Path) -> usize {
    let Ok(names) = fs::read_dir(directory) else {
        return 0;
    };
    let names = names.map(|name| name.unwrap().file_name());
    names
        .filter(|name| name.as_encoded_bytes().ends_with(b".part"))
        .count()
}

/// A directory with 400 files.
fn source(home: &Home) -> PathBuf {
    let source = home.path("source");
    fs::create_dir(&source).unwrap();
    for nth in 0..400 {
        fs::write(source.join(format!("f{nth}")), noise(20_000, nth)).unwrap();
    }
    source.join(".")
}

#[test]
fn a_daemon_that_is_told_to_stop_removes_the_partial_files_of_its_copies() {
    let (server, home) = (server(), Home::new());
    let (source, target) = (source(&home), home.path("up"));
    fs::create_dir(&target).unwrap();
    let mut limited = cp(&home, &server);
    limited
        .args(["-r", "--bwlimit", "2M"])
        .args([&source.display().to_string(), &remote(&server, &target)])
        .stderr(std::process::Stdio::piped());
    let mut copying = limited.spawn().unwrap();
    wait_until("files are under way", || parts(&target) > 0);
    succeed(home.trunkline().args(["stop", "--now"]));
    assert!(!end_of(&mut copying, "the copy").success());
    let mut said = String::new();
    std::io::Read::read_to_string(&mut copying.stderr.take().unwrap(), &mut said).unwrap();
    assert!(said.contains("trunkline is shutting down"), "{said}");
    wait_until("the partial files are gone", || parts(&target) == 0);
}

#[test]
fn what_a_killed_daemon_has_left_is_gone_after_the_next_copy() {
    let (server, home) = (server(), Home::new());
    let source = source(&home);
    for (name, from, to) in [
        (
            "up",
            source.display().to_string(),
            remote(&server, &home.path("up")),
        ),
        (
            "down",
            remote(&server, &source),
            home.path("down").display().to_string(),
        ),
    ] {
        let target = home.path(name);
        fs::create_dir(&target).unwrap();
        let mut command = cp(&home, &server);
        command.arg("-r").args([&from, &to]);
        let mut limited = cp(&home, &server);
        limited
            .args(["-r", "--bwlimit", "2M"])
            .args([&from, &to])
            .stderr(std::process::Stdio::piped());
        let mut copying = limited.spawn().unwrap();
        wait_until("files are under way, and the daemon stands still", || {
            let Some(daemon) = home.daemon() else { return false };
            kill_process(daemon, Signal::STOP).unwrap();
            let is_met = parts(&target) > 0;
            kill_process(daemon, if is_met { Signal::KILL } else { Signal::CONT }).unwrap();
            is_met
        });
        assert!(!end_of(&mut copying, "the copy").success());
        let mut said = String::new();
        std::io::Read::read_to_string(&mut copying.stderr.take().unwrap(), &mut said).unwrap();
        assert!(said.contains("run the same command again"), "{said}");
        let again = succeed(&mut command);
        assert_eq!(parts(&target), 0, "{name}: {}", describe(&again));
        for nth in 0..400 {
            let file = format!("f{nth}");
            assert!(fs::read(target.join(&file)).unwrap() == fs::read(source.join(&file)).unwrap());
        }
        assert_eq!(
            fs::read_dir(&target).unwrap().count(),
            400,
            "{}",
            text(&again.stderr)
        );
    }
}
