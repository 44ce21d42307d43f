//! Whatever is wrong with trunkline, ssh continues as if it were not there.

use std::fs;

use rustix::process::{Signal, kill_process};

use super::stanza::Stanza;
use crate::home::{Home, assert_says, assert_status, describe, fail, finish, server, succeed, with_status};

#[test]
fn ssh_does_not_wait_for_a_daemon_that_is_stuck() {
    let (server, stanza) = Stanza::of_web();
    stanza.succeed(&["web", "true"]);
    let daemon = stanza.home.stop_answering();
    let own_way = |options: &[&str]| {
        let mut ssh = stanza.ssh();
        ssh.args(options)
            .args(["web", "true"])
            .env_remove("TRUNKLINE_UP_LIMIT");
        finish(&mut ssh)
    };
    let output = with_status(0, own_way(&[]));
    assert!(output.stderr.is_empty(), "{}", describe(&output));
    assert_eq!(server.authentications(), 2);
    let output = own_way(&["-v"]);
    kill_process(daemon, Signal::CONT).unwrap();
    assert_status(&output, 0);
    assert_says(
        &output,
        "trunkline: ssh connects by itself: the daemon takes too long",
    );
}

#[test]
fn ssh_goes_its_own_way_when_there_is_no_place_for_a_daemon() {
    let (_server, stanza) = Stanza::of_web();
    fs::write(stanza.home.trunkline_dir(), "not a directory").unwrap();
    stanza.succeed(&["web", "true"]);
}

#[test]
fn a_foreign_file_where_the_socket_should_be_is_left_alone() {
    let (server, stanza) = Stanza::of_web();
    let directory = stanza.home.trunkline_dir().join("mux");
    fs::create_dir_all(&directory).unwrap();
    let file = directory.join(format!("{}@web:{}", server.user(), server.port()));
    fs::write(&file, "mine").unwrap();
    stanza.succeed(&["web", "true"]);
    assert_eq!(fs::read(&file).unwrap(), b"mine");
}

#[test]
fn a_name_that_makes_no_path_is_left_to_ssh() {
    let server = server();
    let long = "n".repeat(100);
    let stanza = Stanza::after_hosts([server.host_entry(&long), server.host_entry("a/b")]);
    stanza.succeed(&[&long, "true"]);
    stanza.succeed(&["a/b", "true"]);
    assert_eq!((server.authentications(), stanza.connections()), (2, 0));
}

#[test]
fn trunkline_off_means_off() {
    let (_server, stanza) = Stanza::of_web();
    succeed(stanza.ssh().args(["web", "true"]).env("TRUNKLINE_OFF", "1"));
    assert!(stanza.home.daemon().is_none());
}

#[test]
fn a_host_for_the_systems_ssh_is_left_to_it() {
    let server = server();
    let stanza = Stanza::after_hosts([server.host_entry("web").with_line("VerifyHostKeyDNS yes")]);
    stanza.succeed(&["web", "true"]);
    let output = stanza.run(&["-v", "web", "true"]);
    assert_says(&output, "verifyhostkeydns");
    assert_eq!(stanza.connections(), 0);
}

#[test]
fn nobody_but_ssh_is_served() {
    let home = Home::new();
    let output = fail(1, home.trunkline().arg("up"));
    assert_eq!(describe(&output).matches("trunkline").count(), 0, "silently");
    let output = finish(home.trunkline().arg("up").env("TRUNKLINE_LOG", "info"));
    assert_says(&output, "is run by ssh");
    assert!(home.daemon().is_none());
}

#[test]
fn a_shell_that_does_not_replace_itself_is_looked_through() {
    let (_server, stanza) = Stanza::of_web();
    let config = fs::read_to_string(stanza.config()).unwrap();
    // dash forks for a command that it is not told to become.
    fs::write(stanza.config(), config.replace("\"exec ", "\"")).unwrap();
    succeed(stanza.ssh().args(["web", "true"]).env("SHELL", "/bin/dash"));
    assert_eq!(stanza.connections(), 1);
}

#[test]
fn a_configuration_is_read_without_asking_itself() {
    let (server, stanza) = Stanza::of_web();
    let mut explain = stanza.home.trunkline();
    explain.args(["explain", "-F"]).arg(stanza.config()).arg("web");
    succeed(&mut explain);
    let mut ssh = stanza.home.ssh_with(&stanza.config());
    succeed(ssh.args(["web", "true"]));
    // The drop-in and stock ssh mean the same host by the same name.
    stanza.succeed(&["web", "true"]);
    assert_eq!(server.authentications(), 1);
}
