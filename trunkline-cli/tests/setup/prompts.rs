//! What only a user can answer, stock ssh asks: the daemon cannot.

use std::fs;
use std::process::Command;

use trunkline_testkit::HostEntry;

use crate::home::{assert_status, finish, server, sshd};
use crate::stanza::Stanza;
use crate::tty::Terminal;

/// ssh on a terminal.
fn on_terminal(stanza: &Stanza) -> Terminal {
    Terminal::start(stanza.ssh().args(["web", "echo do''ne"]))
}

fn may_ask(mut entry: HostEntry) -> HostEntry {
    entry.may_ask = true;
    entry
}

#[test]
fn a_password_is_asked_for_by_ssh() {
    let server = sshd().client_keys([]).password("open sesame").start().unwrap();
    let stanza = Stanza::behind([server.host_entry("web")]);
    for _ in 0..2 {
        let mut terminal = on_terminal(&stanza);
        terminal.expect("assword: ");
        terminal.send("open sesame\n");
        terminal.expect("done");
        assert_eq!(terminal.end().code(), Some(0));
    }
}

#[test]
fn an_unknown_host_key_is_asked_about_by_ssh_and_then_known_to_all() {
    let server = server();
    let stanza = Stanza::behind([]);
    let lines = fs::read_to_string(stanza.config()).unwrap();
    let mut entry = may_ask(server.host_entry("web")).with("StrictHostKeyChecking ask");
    entry.known_hosts = stanza.home.path("known_hosts");
    fs::write(stanza.config(), format!("{entry}{lines}")).unwrap();
    let mut terminal = on_terminal(&stanza);
    terminal.expect("continue connecting");
    terminal.send("yes\n");
    terminal.expect("done");
    assert_eq!(terminal.end().code(), Some(0));
    let known = fs::read_to_string(stanza.home.path("known_hosts")).unwrap();
    assert!(!known.is_empty());
    let mut warm = stanza.home.trunkline();
    warm.args(["warm", "-F"]).arg(stanza.config()).arg("web");
    assert_status(&finish(&mut warm), 0);
    stanza.succeed(&["web", "true"]);
    assert_eq!(server.authentications(), 2, "ssh's own, and the daemon's");
}

#[test]
fn a_passphrase_is_asked_for_by_ssh() {
    let server = server();
    let stanza = Stanza::behind([]);
    let key = stanza.home.path("key");
    fs::copy(server.client_keys()[0].private_path(), &key).unwrap();
    let mut lock = Command::new("ssh-keygen");
    lock.args(["-q", "-p", "-P", "", "-N", "open sesame", "-f"])
        .arg(&key);
    assert_status(&finish(&mut lock), 0);
    let lines = fs::read_to_string(stanza.config()).unwrap();
    let mut entry = may_ask(server.host_entry("web"));
    entry.identities = vec![key];
    fs::write(stanza.config(), format!("{entry}{lines}")).unwrap();
    let mut terminal = on_terminal(&stanza);
    terminal.expect("Enter passphrase");
    terminal.send("open sesame\n");
    terminal.expect("done");
    assert_eq!(terminal.end().code(), Some(0));
}
