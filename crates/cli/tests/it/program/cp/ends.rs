//! Pipes, descriptors and URIs as the ends of a copy.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;

use rustix::process::{Pid, Signal, kill_process};
use trunkline_testkit::noise;

use super::{cp, remote};
use crate::home::{Home, assert_says, end_of, fail, server, succeed, wait_until};

#[test]
fn devices_without_end_are_not_copied() {
    let (server, home) = (server(), Home::new());
    let link = home.path("link");
    std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
    for source in [link.as_os_str(), "/dev/urandom".as_ref()] {
        let mut copy = cp(&home, &server);
        let output = fail(1, copy.arg(source).arg(remote(&server, &home.path("target"))));
        assert_says(&output, "is a device that never ends");
        assert!(!home.path("target").exists());
    }
}

#[test]
fn pipes_go_to_a_file_there_and_come_from_one() {
    let (server, home) = (server(), Home::new());
    fs::write(home.path("large"), noise(3_000_000, 1)).unwrap();
    fs::create_dir(home.path("there")).unwrap();
    let there = remote(&server, &home.path("there"));
    // In the shell that users of pipes have, which has process substitution.
    for (script, made) in [
        ("cat large | $T cp -F $F - THERE/a", "there/a"),
        ("$T cp -F $F - THERE/b < large", "there/b"),
        ("$T cp -F $F /dev/stdin THERE/c < large", "there/c"),
        ("$T cp -F $F <(cat large) THERE/d", "there/d"),
        ("$T cp -F $F THERE/a - > e", "e"),
        ("$T cp -F $F THERE/a - | cat > f", "f"),
        ("$T cp -vF $F THERE/a /dev/stdout > g", "g"),
        ("$T cp -F $F THERE/a >(cat > h); wait $!", "h"),
        (
            "$T cp -qF $F - THERE/i < large 2>&1 | cat > said; mv there/i i",
            "i",
        ),
    ] {
        let mut shell = home.command("bash");
        shell
            .args(["-c", &script.replace("THERE", &there)])
            .env("T", crate::home::program())
            .env("F", server.ssh_config())
            .current_dir(home.path(""));
        succeed(&mut shell);
        assert!(
            fs::read(home.path(made)).unwrap() == noise(3_000_000, 1),
            "{script}"
        );
    }
    assert_eq!(fs::read_to_string(home.path("said")).unwrap(), "");
    // What stands before in a file that the output is redirected to stays.
    let script = format!("exec > both; echo head; $T cp -F $F {there}/a -; echo tail");
    let mut shell = home.command("bash");
    shell
        .args(["-c", &script])
        .env("T", crate::home::program())
        .env("F", server.ssh_config())
        .current_dir(home.path(""));
    succeed(&mut shell);
    let expected = [b"head\n", &noise(3_000_000, 1)[..], b"tail\n"].concat();
    assert!(fs::read(home.path("both")).unwrap() == expected);
}

#[test]
fn uris_name_what_they_name_to_scp() {
    let (server, home) = (server(), Home::new());
    fs::write(home.path("a file"), "content").unwrap();
    let authority = format!("{}:{}", server.alias(), server.port());
    let path = home.path("a file").display().to_string().replace(' ', "%20");
    for (nth, scheme) in ["scp", "sftp"].into_iter().enumerate() {
        let uri = format!("{scheme}://{authority}/{path}");
        let target = home.path(&format!("target{nth}"));
        succeed(cp(&home, &server).arg(&uri).arg(&target));
        assert_eq!(fs::read(&target).unwrap(), b"content");
    }
    let output = fail(255, cp(&home, &server).args(["scp://web1/%zz", "here"]));
    assert_says(&output, "not a valid URI");
}

#[test]
fn an_interrupted_copy_leaves_nothing_that_nobody_would_continue() {
    let (server, home) = (server(), Home::new());
    let (large, down, up) = (home.path("large"), home.path("down"), home.path("up"));
    fs::write(&large, noise(40_000_000, 1)).unwrap();
    for directory in [&down, &up] {
        fs::create_dir(directory).unwrap();
    }
    let names = |directory| fs::read_dir(directory).unwrap().count();
    let there = remote(&server, &large);
    for (source, target, directory) in [
        (&*large.to_string_lossy(), remote(&server, &up), &up),
        (&there, down.display().to_string(), &down),
    ] {
        let mut command = cp(&home, &server);
        command.args(["-q", "--no-partial", "--bwlimit", "1M", source, &target]);
        let mut running = command.spawn().unwrap();
        wait_until("something is there", || names(directory) == 1);
        kill_process(Pid::from_child(&running), Signal::INT).unwrap();
        assert_eq!(end_of(&mut running, "cp").signal(), Some(2));
        wait_until("nothing is there", || names(directory) == 0);
    }
}
