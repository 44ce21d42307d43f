//! `trunkline ssh -v`: what ssh(1) shows of its work, also for the connections of the daemon.

use std::fs;
use std::process::{Command, Output};

use trunkline_testkit::{Sshd, write_ssh_config};

use crate::home::{Home, fail, finish, sshd, succeed, text};

/// ssh's lines about a connection, in its words and its order.
const SHOWN: &[&str] = &[
    "Reading configuration data ",
    "Connecting to 127.0.0.1 [127.0.0.1] port ",
    "Connection established.",
    "emote software version OpenSSH_",
    "kex: algorithm: ",
    "kex: host key algorithm: ssh-ed25519",
    "kex: server->client cipher: ",
    "kex: client->server cipher: ",
    "Server host key: ssh-ed25519 SHA256:",
    "is known and matches the ED25519 host key.",
    "Found key in ",
    "Will attempt key: ",
    "Authenticated to 127.0.0.1 ([127.0.0.1]:",
    " using \"publickey\".",
    "Sending command: exit 3",
    "Exit status 3",
];

fn messages(output: &Output) -> String {
    text(&output.stderr)
}

fn each(home: &Home, server: &Sshd) -> [(&'static str, Command); 3] {
    let config = server.ssh_config();
    let mut ssh = home.command("ssh");
    ssh.arg("-F").arg(&config);
    [
        ("ssh", ssh),
        ("a new connection", home.ssh_with(&config)),
        ("a shared one", home.ssh_with(&config)),
    ]
}

#[test]
fn a_verbose_session_shows_what_ssh_shows_whoever_made_the_connection() {
    let (server, home) = (sshd().start().unwrap(), Home::new());
    for (who, mut command) in each(&home, &server) {
        command.env_remove("NO_COLOR");
        let output = fail(3, command.args(["-v", server.alias(), "exit 3"]));
        let log = messages(&output);
        let mut rest = &log[..];
        for line in SHOWN {
            let at = rest.find(line);
            rest = &rest[at.unwrap_or_else(|| panic!("{who}: no {line:?} there in\n{log}"))..];
        }
        assert!(!messages(&output).contains('\x1b'), "{who}");
        if who != "ssh" {
            let timed = |line: &str| {
                line.trim_start()
                    .split(' ')
                    .next()
                    .is_some_and(|time| time.parse::<f64>().is_ok())
            };
            assert!(messages(&output).lines().all(timed), "{}", messages(&output));
        }
        assert_eq!(
            messages(&output).contains("Sharing a connection to "),
            who == "a shared one"
        );
    }
    assert_eq!(server.authentications(), 2, "ssh once, trunkline once");
}

#[test]
fn more_v_show_more_and_none_shows_nothing() {
    let (server, home) = (sshd().start().unwrap(), Home::new());
    let lines = ["-q", "-v", "-vv", "-vvv"].map(|option| {
        let output = succeed(home.ssh(&server).args([option, server.alias(), "true"]));
        messages(&output).lines().count()
    });
    assert_eq!(lines[0], 0);
    assert!(
        lines[1] > 5 && lines.is_sorted() && lines[1] < lines[2] && lines[2] < lines[3],
        "{lines:?}"
    );
    let output = finish(home.ssh(&server).args([server.alias(), "true"]));
    assert_eq!(messages(&output), "");
}

#[test]
fn what_fails_shows_how_far_it_came() {
    let (server, home) = (sshd().start().unwrap(), Home::new());
    for (who, mut command) in each(&home, &server) {
        let output = fail(
            255,
            command.args([
                "-v",
                "-l",
                "nobody-here",
                "-oBatchMode=yes",
                server.alias(),
                "true",
            ]),
        );
        let shown = messages(&output);
        for line in [
            "Connection established.",
            "Authentications that can continue: publickey",
        ] {
            assert!(shown.contains(line), "{who}: {shown}");
        }
    }
    for (who, mut command) in each(&home, &server) {
        let output = fail(255, command.args(["-v", "-p1", server.alias(), "true"]));
        assert!(
            messages(&output).contains("connect to address 127.0.0.1 port 1: Connection refused"),
            "{who}"
        );
    }
}

#[test]
fn a_file_that_asks_for_debug_shows_the_making_of_the_connection() {
    let (server, home) = (sshd().start().unwrap(), Home::new());
    let config = home.config_of_box(&server, &["LogLevel DEBUG2"]);
    for _ in 0..2 {
        let output = finish(home.ssh_with(&config).args(["box", "true"]));
        assert!(
            messages(&output).contains("Authenticated to 127.0.0.1"),
            "{}",
            messages(&output)
        );
    }
    assert_eq!(server.authentications(), 1);
}

#[test]
fn a_jump_hosts_connection_shows_too() {
    let (jump, server, home) = (
        sshd().alias("jump").start().unwrap(),
        sshd().start().unwrap(),
        Home::new(),
    );
    let config = home.path("config");
    write_ssh_config(
        &config,
        [
            jump.host_entry("jump"),
            server.host_entry("box").with_line("ProxyJump jump"),
        ],
    )
    .unwrap();
    let output = succeed(home.ssh_with(&config).args(["-v", "box", "true"]));
    let shown = messages(&output);
    assert_eq!(shown.matches("Authenticated to ").count(), 2, "{shown}");
    assert!(shown.contains("through the jump host jump"), "{shown}");
}

#[test]
fn a_password_is_never_shown() {
    let secret = "correct horse battery";
    let (server, home) = (
        sshd().client_keys([]).password(secret).start().unwrap(),
        Home::new(),
    );
    let config = server.ssh_config();
    let askpass = server.askpass().unwrap();
    for _ in 0..2 {
        let mut command = home.ssh_with(&config);
        command
            .env("SSH_ASKPASS", &askpass)
            .env("SSH_ASKPASS_REQUIRE", "force");
        let log = home.path("log");
        succeed(
            command
                .args(["-vvv", "-E"])
                .arg(&log)
                .args([server.alias(), "true"]),
        );
        let logged = fs::read_to_string(&log).unwrap();
        assert!(
            logged.contains("Authenticated to ") && !logged.contains(secret),
            "{logged}"
        );
    }
}
