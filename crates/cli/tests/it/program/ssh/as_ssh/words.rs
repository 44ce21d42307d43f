//! The messages of `trunkline ssh` when it fails, compared with ssh(1): the same lines, because programs look for them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use trunkline_testkit::{HostEntry, KeyPair, KeyType, Relay, free_port, write_ssh_config};

use super::messages;
use crate::home::{Home, describe, finish, server, start};

/// Returns the message, with one kind of quotes: commands to type have single ones in OpenSSH 10 and here, and double
/// ones in 9.2.
fn plain_messages(output: &Output) -> String {
    messages(output).replace('"', "'")
}

#[test]
fn failures_are_told_in_ssh_s_words() {
    let (server, home) = (server(), Home::new());
    let config = server.ssh_config();
    let other = KeyPair::generate(server.dir(), "other", KeyType::Ed25519).unwrap();
    let changed = home.path("changed");
    let line = format!("[127.0.0.1]:{} {}\n", server.port(), other.public_key());
    fs::write(&changed, line).unwrap();
    let changed = format!("UserKnownHostsFile={}", changed.display());
    let twice = format!("{}:127.0.0.1:1", free_port());
    let box_ = server.alias();
    let rows: &[&[&str]] = &[
        &["-l", "no-such-user", "-o", "BatchMode=yes", box_, "true"],
        &["-o", "HostName=no-such-host.invalid", box_, "true"],
        &["-p", "1", box_, "true"],
        &[
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "StrictHostKeyChecking=yes",
            box_,
            "true",
        ],
        &[
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "StrictHostKeyChecking=ask",
            "-o",
            "BatchMode=yes",
            box_,
            "true",
        ],
        &["-o", &changed, "-o", "StrictHostKeyChecking=yes", box_, "true"],
        &["-s", box_, "no-such-subsystem"],
        &["-W", "127.0.0.1:1", box_],
        &["-o", "ConnectTimeout=bogus", box_, "true"],
        &["-L", "nonsense", box_, "true"],
        &[
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "StrictHostKeyChecking=no",
            box_,
            "true",
        ],
        // What a proxy command says, all of it and before anything else.
        &[
            "-o",
            "ProxyCommand=sh -c 'echo log in at https://sso.example/ >&2; echo no session >&2; exit 1'",
            box_,
            "true",
        ],
        &["-o", "ProxyCommand=no-such-program %h", box_, "true"],
        &[
            "-o",
            "ProxyCommand=sleep 60",
            "-o",
            "ConnectTimeout=1",
            box_,
            "true",
        ],
        &[
            "-o",
            "ExitOnForwardFailure=yes",
            "-L",
            &twice,
            "-L",
            &twice,
            box_,
            "true",
        ],
    ];
    all_are_told_alike(&home, &config, rows);
}

#[test]
fn mistakes_are_told_in_ssh_s_words() {
    let (server, home) = (server(), Home::new());
    let box_ = server.alias();
    let bad = home.path("bad");
    fs::write(&bad, "Host *\n NoSuchThing yes\n NorThis yes\n").unwrap();
    let bad = bad.display().to_string();
    let rows: &[&[&str]] = &[
        &["-W", "nonsense", box_],
        &["-E", "/no/such/directory/log", box_, "true"],
        &["-F", &bad, box_, "true"],
        &["-o", "RemoteCommand=true", box_, "true"],
        &["-o", "HostKeyAlgorithms=ecdsa-sha2-nistp256", box_, "true"],
        // No command is a shell, which is given no terminal here.
        &[box_, ""],
    ];
    all_are_told_alike(&home, &server.ssh_config(), rows);
}

#[track_caller]
fn all_are_told_alike(home: &Home, config: &Path, rows: &[&[&str]]) {
    for row in rows {
        let run = |mut command: Command| finish(command.args(*row));
        let mut ssh = home.command("ssh");
        ssh.arg("-F").arg(config);
        let theirs = run(ssh);
        // With a connection to be made, and with one that is there, where there is: its key is known then.
        let of_a_new_connection = |line: &&str| line.starts_with("Warning: Permanently added");
        for warm in [false, true] {
            let ours = run(home.ssh_with(config));
            let shown = format!("{row:?}\n{}\n{}", describe(&theirs), describe(&ours));
            assert_eq!(ours.status.code(), theirs.status.code(), "{shown}");
            let lines = plain_messages(&theirs);
            let expected: Vec<_> = lines
                .lines()
                .filter(|line| !(warm && of_a_new_connection(line)))
                .collect();
            assert_eq!(
                plain_messages(&ours).lines().collect::<Vec<_>>(),
                expected,
                "{shown}"
            );
        }
    }
}

#[test]
fn what_fails_at_a_jump_host_is_told_in_ssh_s_words() {
    let (jump, target, home) = (server(), server(), Home::new());
    let stranger = KeyPair::generate(jump.dir(), "stranger", KeyType::Ed25519).unwrap();
    let nowhere = "127.0.0.1:1".parse().unwrap();
    let config = home.path("config");
    write_ssh_config(
        &config,
        [
            jump.host_entry("jump"),
            target.host_entry("box"),
            target.host_entry("refusing").with_address(nowhere),
            target
                .host_entry("unknown")
                .with_line("HostName no-such-host.invalid"),
            HostEntry {
                identities: vec![stranger.private_path().into()],
                ..target.host_entry("stranger")
            },
        ],
    )
    .unwrap();
    for row in [
        // The jump host is not there, has no address, lets nobody in, is not known.
        &["-J", "refusing", "box", "true"][..],
        &["-J", "unknown", "box", "true"],
        &["-J", "stranger", "box", "true"],
        &["-J", "refusing,jump", "box", "true"],
        &["-J", "jump,refusing", "box", "true"],
        // It does not reach the host.
        &["-J", "jump", "refusing", "true"],
        &["-J", "jump", "unknown", "true"],
        // The host behind it lets nobody in.
        &["-J", "jump", "stranger", "true"],
    ] {
        let mut ssh = home.command("ssh");
        let theirs = finish(ssh.arg("-F").arg(&config).args(row));
        let ours = finish(home.ssh_with(&config).args(row));
        let shown = format!("{row:?}\n{}\n{}", describe(&theirs), describe(&ours));
        assert_eq!(ours.status.code(), theirs.status.code(), "{shown}");
        assert_eq!(plain_messages(&ours), plain_messages(&theirs), "{shown}");
    }
}

#[test]
fn a_connection_that_is_lost_is_told_in_ssh_s_words_and_that_the_command_may_have_run() {
    let (server, home) = (server(), Home::new());
    let relay = Relay::start(server.addr()).unwrap();
    let config = server.ssh_config_via("box", relay.addr()).unwrap();
    let lost = |mut command: Command| {
        let child = start(command.args(["box", "echo up; exec sleep 1000"]));
        relay.close();
        child.wait_with_output().unwrap()
    };
    let mut ssh = home.command("ssh");
    ssh.arg("-F").arg(&config);
    let (theirs, ours) = (lost(ssh), lost(home.ssh_with(&config)));
    assert_eq!(theirs.status.code(), ours.status.code());
    let closed = "Connection to 127.0.0.1 closed by remote host.\n";
    assert_eq!(plain_messages(&theirs), closed);
    assert_eq!(
        plain_messages(&ours),
        format!("trunkline: the command may have started\n{closed}")
    );
}

#[test]
fn a_server_that_closes_at_once_is_tried_once() {
    let (mut server, home) = (server(), Home::new());
    let relay = Relay::start(server.addr()).unwrap();
    let config = server.ssh_config_via("box", relay.addr()).unwrap();
    let tries = |mut command: Command| {
        let before = relay.connections();
        let output = finish(command.args(["box", "true"]));
        (output.status.code(), relay.connections() - before)
    };
    // A later visit begins otherwise than the first.
    for _ in 0..2 {
        assert_eq!(tries(home.ssh_with(&config)).0, Some(0));
        assert!(
            finish(home.trunkline().args(["close", "--all", "--now"]))
                .status
                .success()
        );
    }
    // What the relay leads to is not there: it closes what it accepts.
    server.stop();
    let mut ssh = home.command("ssh");
    ssh.arg("-F").arg(&config);
    assert_eq!(tries(ssh), (Some(255), 1));
    assert_eq!(tries(home.ssh_with(&config)), (Some(255), 1));
    let elsewhere = Home::new();
    assert_eq!(
        tries(elsewhere.ssh_with(&config)),
        (Some(255), 1),
        "an unknown one"
    );
}
