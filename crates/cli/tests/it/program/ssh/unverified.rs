//! A server whose key is not the one that is known, and that `StrictHostKeyChecking no` lets through: sessions work, and
//! nothing leans on who it is. Stock ssh is asked the same.

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use trunkline_testkit::{KeyPair, KeyType, Sshd, free_port};

use crate::home::{Home, assert_says, assert_status, describe, fail, server, start, succeed, text};

/// ssh's words.
const DISABLED: &str = "disabled to avoid man-in-the-middle attacks";

struct Impostor {
    home: Home,
    server: Sshd,
    config: PathBuf,
}

impl Impostor {
    fn new() -> Self {
        let (home, server) = (Home::new(), server());
        let other = KeyPair::generate(server.dir(), "other", KeyType::Ed25519).unwrap();
        let line = format!("[127.0.0.1]:{} {}\n", server.port(), other.public_key());
        let known = home.path("known_hosts");
        fs::write(&known, line).unwrap();
        let mut entry = server.host_entry("box").with_line("StrictHostKeyChecking no");
        entry.known_hosts = known;
        let target = server.host_entry("target").with_line("ProxyJump box");
        let config = home.config([entry, target]);
        Self { home, server, config }
    }

    fn ours(&self) -> Command {
        self.home.ssh_with(&self.config)
    }

    fn stock(&self) -> Command {
        let mut command = self.home.command("ssh");
        command
            .arg("-F")
            .arg(&self.config)
            .args(["-o", "ControlPath=none"]);
        command
    }
}

#[test]
fn sessions_work_and_whoever_shares_the_connection_is_told() {
    let impostor = Impostor::new();
    let stock = succeed(impostor.stock().args(["box", "echo here"]));
    assert_says(&stock, DISABLED);
    for _ in 0..2 {
        let ours = succeed(impostor.ours().args(["box", "echo here"]));
        assert_eq!(text(&ours.stdout), "here\n");
        assert_says(&ours, "HAS CHANGED");
        assert_says(&ours, "man-in-the-middle attacks");
    }
}

/// Returns the output about a forwarding, and whether anybody listens at `port` while the session runs.
fn forward(command: &mut Command, port: u16) -> (Output, bool) {
    // It prints when it runs, and ends with its input.
    let child = start(command.args(["box", "echo up; cat"]).stdin(Stdio::piped()));
    let carried = TcpStream::connect(("127.0.0.1", port)).is_ok();
    (child.wait_with_output().unwrap(), carried)
}

#[test]
fn no_port_is_forwarded_in_either_direction() {
    let impostor = Impostor::new();
    let ssh = impostor.server.port();
    for kind in ["-L", "-R", "-D"] {
        for ours in [false, true, true] {
            let port = free_port();
            let what = match kind {
                "-D" => format!("127.0.0.1:{port}"),
                _ => format!("127.0.0.1:{port}:127.0.0.1:{ssh}"),
            };
            let mut command = if ours { impostor.ours() } else { impostor.stock() };
            let (output, carried) = forward(command.args([kind, &what]), port);
            assert_status(&output, 0);
            assert!(!carried, "{kind} {}", describe(&output));
            let said = text(&output.stderr);
            let port_forwarding = format!("Port forwarding is {DISABLED}");
            assert!(said.contains(&port_forwarding), "{kind}, ours: {ours}: {said}");
        }
    }
}

#[test]
fn it_is_no_way_to_another_host() {
    let impostor = Impostor::new();
    let to = format!("127.0.0.1:{}", impostor.server.port());
    for ours in [false, true, true] {
        let command = || if ours { impostor.ours() } else { impostor.stock() };
        let output = fail(255, command().args(["-W", &to, "box"]));
        assert_eq!(text(&output.stdout), "", "{}", describe(&output));
        let output = fail(255, command().args(["target", "echo there"]));
        assert_eq!(text(&output.stdout), "", "{}", describe(&output));
        if ours {
            let said = text(&output.stderr);
            assert!(said.contains(DISABLED), "{said}");
        }
    }
}

#[test]
fn with_exit_on_forward_failure_nothing_runs() {
    let impostor = Impostor::new();
    for ours in [false, true] {
        let mut command = if ours { impostor.ours() } else { impostor.stock() };
        command.args(["-o", "ExitOnForwardFailure=yes", "box", "echo ran"]);
        let output = fail(255, &mut command);
        assert_eq!(text(&output.stdout), "", "{}", describe(&output));
        assert_says(&output, "forwarding disabled due to host key check failure");
    }
}
