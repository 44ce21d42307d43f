//! Output that nobody reads any more (`| head -1`), or that cannot be written: no command panics, and none says anything of a
//! reader who has left.

use std::fs::File;
use std::process::{Command, Stdio};

use crate::home::{Home, describe, server, text};

/// A pipe that nobody reads.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// Runs each command that prints, with its streams as `prepare` sets them.
fn each(mut check: impl FnMut(&[&str], Command)) {
    let (server, home) = (server(), Home::new());
    let config = server.ssh_config();
    let config = config.to_str().unwrap();
    let alias = server.alias();
    let lines = "i=0; while [ $i -lt 9999 ]; do echo line; i=$((i+1)); done";
    let commands: &[&[&str]] = &[
        &["run", "-F", config, "-H", alias, "--", lines],
        &["run", "-F", config, "-H", alias, "--json", "--", lines],
        &["run", "-F", config, "-H", alias, "--collate", "--", lines],
        &["ls"],
        &["ls", "--json"],
        &["explain", "-F", config, alias],
        &["check", "-F", config, alias],
        &["settings"],
        &["completions", "bash"],
        &["setup", "git", "--print"],
        &["ssh", "--help"],
        &["close", "--all"],
    ];
    for arguments in commands {
        let mut command = home.trunkline();
        command.args(*arguments);
        check(arguments, command);
    }
}

#[test]
fn a_reader_who_leaves_is_no_error() {
    each(|arguments, mut command| {
        let child = command
            .stdout(closed_pipe())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(text(&output.stderr), "", "{arguments:?}");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
    });
}

#[test]
fn nobody_reads_the_messages_either() {
    each(|arguments, mut command| {
        let status = command
            .stdout(closed_pipe())
            .stderr(closed_pipe())
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(0), "{arguments:?}");
    });
    let (home, mut failing) = (Home::new(), Vec::new());
    for arguments in [
        &["check", "no-such-host.invalid"][..],
        &["ssh", "no-such-host.invalid", "true"],
    ] {
        let status = home
            .trunkline()
            .args(arguments)
            .stderr(closed_pipe())
            .status()
            .unwrap();
        failing.push(status.code());
    }
    assert_eq!(failing, [Some(255), Some(255)]);
}

#[test]
fn what_cannot_be_written_is_an_error() {
    each(|arguments, mut command| {
        // A device on which there is never room.
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        let output = output.wait_with_output().unwrap();
        assert!(
            matches!(output.status.code(), Some(1 | 255)),
            "{arguments:?} {}",
            describe(&output)
        );
        assert!(
            text(&output.stderr).contains("No space left"),
            "{arguments:?} {}",
            describe(&output)
        );
    });
}
