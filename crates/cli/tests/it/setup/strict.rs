//! Shared connections or none: who may not make a connection of their own is told why there is no shared one.

use std::fs;
use std::process::{Command, Output};

use rustix::process::{Signal, kill_process};

use super::prompts::{Askpass, may_ask};
use super::stanza::Stanza;
use crate::home::{assert_says, assert_status, describe, finish, server, sshd, succeed, text, with_status};

/// The environment's word for it.
fn strictly(command: &mut Command) -> &mut Command {
    command.env("TRUNKLINE_STRICT", "1")
}

#[track_caller]
fn assert_refused(output: &Output, why: &str) {
    assert_status(output, 255);
    let said = text(&output.stderr);
    assert!(
        said.contains(why) && said.contains("only shared connections may be used"),
        "{}",
        describe(output)
    );
}

#[test]
fn stock_ssh_shares_or_fails() {
    let (server, stanza) = Stanza::of_web();
    for _ in 0..2 {
        succeed(strictly(&mut stanza.ssh()).args(["web", "true"]));
    }
    assert_eq!((server.authentications(), stanza.connections()), (1, 1));
    // Each of these would connect by itself.
    for (options, why) in [
        (&["-X"][..], "connection of its own"),
        (&["-S", "none"], "-S names its control socket"),
        (&["-o", "VerifyHostKeyDNS=yes"], "verifyhostkeydns"),
        (&["-A"], "does not forward the agent"),
    ] {
        let mut ssh = stanza.ssh();
        let refused = finish(strictly(&mut ssh).args(options).args(["web", "true"]));
        assert_refused(&refused, why);
    }
    assert_eq!(server.authentications(), 1, "{}", server.log().text());
}

#[test]
fn stock_ssh_waits_for_a_daemon_that_is_stuck_and_fails_where_there_is_no_place_for_one() {
    let (server, stanza) = Stanza::of_web();
    // Strictly, too: on a busy machine it would connect by itself.
    succeed(strictly(&mut stanza.ssh()).args(["web", "true"]));
    let daemon = stanza.home.daemon().unwrap();
    kill_process(daemon, Signal::STOP).unwrap();
    let mut ssh = stanza.ssh();
    strictly(&mut ssh)
        .args(["web", "echo here"])
        .env("TRUNKLINE_UP_LIMIT", "1")
        .stdout(std::process::Stdio::piped());
    let waiting = ssh.spawn().unwrap();
    kill_process(daemon, Signal::CONT).unwrap();
    assert_eq!(text(&waiting.wait_with_output().unwrap().stdout), "here\n");
    assert_eq!(server.authentications(), 1, "{}", server.log().text());
    succeed(stanza.home.trunkline().args(["stop", "--now"]));
    fs::remove_dir_all(stanza.home.trunkline_dir()).unwrap();
    fs::write(stanza.home.trunkline_dir(), "not a directory").unwrap();
    assert_refused(&finish(strictly(&mut stanza.ssh()).args(["web", "true"])), "not");
    assert_eq!(server.authentications(), 1, "{}", server.log().text());
}

#[test]
fn the_settings_name_hosts_that_are_shared_or_not_reached() {
    let server = server();
    let stanza = Stanza::after_hosts([server.host_entry("web"), server.host_entry("db1")]);
    stanza.home.settings("strict_hosts = [\"db*\"]\n");
    assert_eq!(stanza.succeed(&["db1", "echo shared"]), "shared\n");
    assert_refused(&stanza.run(&["-S", "none", "db1", "true"]), "-S names");
    stanza.succeed(&["-S", "none", "web", "true"]);
    let ours = |options: &[&str], host: &str| {
        let mut command = stanza.home.trunkline();
        command.args(options).arg("ssh").arg("-F").arg(stanza.config());
        finish(command.args([host, "true"]))
    };
    assert_status(&ours(&[], "db1"), 0);
    assert_refused(&ours(&["--no-daemon"], "db1"), "apart from the daemon");
    assert_status(&ours(&["--no-daemon"], "web"), 0);
    let mut off = stanza.ssh();
    succeed(off.args(["db1", "true"]).env("TRUNKLINE_OFF", "1"));
}

#[test]
fn trunkline_itself_makes_no_connection_of_its_own() {
    let server = server();
    let stanza = Stanza::after_hosts([server.host_entry("web").with_line("ForkAfterAuthentication no")]);
    let ours = |arguments: &[&str], options: &[&str]| {
        let mut command = stanza.home.trunkline();
        command
            .args(arguments)
            .arg("-F")
            .arg(stanza.config())
            .args(options);
        strictly(&mut command);
        command
    };
    let refused = |arguments: &[&str], options: &[&str], why: &str| {
        assert_refused(&finish(&mut ours(arguments, options)), why);
    };
    succeed(&mut ours(&["ssh"], &["web", "true"]));
    refused(&["ssh"], &["-M", "web", "true"], "-M makes");
    refused(&["ssh"], &["-w", "0:0", "web", "true"], "own");
    refused(&["--no-daemon", "ssh"], &["web", "true"], "apart from the daemon");
    let mut off = ours(&["ssh"], &["web", "true"]);
    assert_refused(&finish(off.env("TRUNKLINE_OFF", "1")), "TRUNKLINE_OFF=1");
    let mut run = ours(&["--no-daemon", "run"], &["-H", "web", "--", "true"]);
    let run = finish(&mut run);
    assert!(
        describe(&run).contains("only shared connections"),
        "{}",
        describe(&run)
    );
    assert!(!run.status.success());
    assert_eq!(server.authentications(), 1, "{}", server.log().text());
}

#[test]
fn a_host_for_the_systems_ssh_is_shared_through_its_master() {
    let server = server();
    let stanza = Stanza::after_hosts([server.host_entry("web").with_line("VerifyHostKeyDNS yes")]);
    let ours = |command: &str| {
        let mut ssh = stanza.home.trunkline();
        ssh.arg("ssh")
            .arg("-F")
            .arg(stanza.config())
            .args(["web", command]);
        finish(strictly(&mut ssh))
    };
    for _ in 0..2 {
        let output = ours("echo shared");
        assert_eq!(text(&output.stdout), "shared\n", "{}", describe(&output));
    }
    assert_eq!(server.authentications(), 1, "{}", server.log().text());
    let mut close = stanza.home.trunkline();
    close.args(["close", "--all", "--now"]);
    succeed(&mut close);
}

#[test]
fn stock_ssh_that_the_daemon_lets_down_fails_with_the_reason() {
    let (server, stanza) = Stanza::of_web();
    stanza
        .home
        .settings("confirm_hosts = [\"w*\"]\nstrict_hosts = [\"w*\"]\n");
    let askpass = Askpass::new(&stanza);
    askpass.will_say("yes\n");
    assert_status(&askpass.run(&mut stanza.ssh(), &["web", "true"]), 0);
    askpass.will_say("no\n");
    let denied = askpass.run(&mut stanza.ssh(), &["web", "true"]);
    assert_refused(&denied, "the use of its connection was not allowed");
    askpass.will_say("yes\n");
    // A forwarding that fails, before a session.
    let forwarding = with_status(
        255,
        askpass.run(&mut stanza.ssh(), &["-L", "/nowhere/socket:db:80", "web", "true"]),
    );
    assert_says(&forwarding, "/nowhere");
    assert_eq!(server.authentications(), 1, "{}", server.log().text());
}

#[test]
fn up_asks_for_a_password_once() {
    let server = sshd().client_keys([]).password("open sesame").start().unwrap();
    let stanza = Stanza::after_hosts([may_ask(server.host_entry("web"))]);
    let askpass = Askpass::new(&stanza);
    askpass.will_say("open sesame\n");
    for expected in [1, 0] {
        let output = askpass.run(strictly(&mut stanza.ssh()), &["web", "echo shared"]);
        assert_eq!(text(&output.stdout), "shared\n", "{}", describe(&output));
        assert_eq!(askpass.take_questions().lines().count(), expected);
    }
    assert_eq!(server.authentications(), 1);
}
