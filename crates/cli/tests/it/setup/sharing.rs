//! Stock ssh at a mux socket that is not its own: it connects by itself.

use std::fs;
use std::process::Command;

use super::stanza::Stanza;
use crate::home::{assert_status, describe, fail, server, succeed, text, wait_until};

/// Prints the port of the server that runs it.
const WHICH: &str = "echo $SSH_CONNECTION | cut -d' ' -f4";

/// The mux socket of the only host.
fn socket(stanza: &Stanza) -> String {
    let hosts = stanza.home.ls();
    hosts[0]["mux_sockets"][0].as_str().unwrap().to_owned()
}

/// The same command in a namespace of its own.
fn elsewhere(stanza: &Stanza, command: &Command, namespace: &str) -> Command {
    let mut there = stanza.command("unshare");
    there
        .arg(namespace)
        .arg(command.get_program())
        .args(command.get_args());
    there
}

#[test]
fn stock_ssh_in_another_namespace_connects_by_itself() {
    let (server, stanza) = Stanza::of_web();
    stanza.succeed(&["web", "true"]);
    // As its configuration says, and with the socket in its hand.
    let socket = socket(&stanza);
    let with_socket = ["-S", &socket, "web", "echo own"];
    for (number, arguments) in [&with_socket[2..], &with_socket].into_iter().enumerate() {
        let mut ssh = stanza.ssh();
        ssh.args(arguments);
        // Of mounts: the network is the same, and it reaches the server.
        let output = succeed(&mut elsewhere(&stanza, &ssh, "-m"));
        assert_eq!(text(&output.stdout), "own\n", "{}", describe(&output));
        assert_eq!(server.authentications(), 2 + number);
        // Of networks: nobody is reached from there.
        let output = fail(255, &mut elsewhere(&stanza, &ssh, "-n"));
        assert_eq!(text(&output.stdout), "", "{}", describe(&output));
    }
    stanza.succeed(&["-S", &socket, "web", "true"]);
    assert_eq!(server.authentications(), 3);
}

#[test]
fn stock_ssh_with_another_environment_connects_by_itself_where_a_proxy_goes_by_it() {
    let servers = [server(), server()];
    let ports = [0, 1].map(|n| servers[n].addr().port().to_string());
    let proxy = "ProxyCommand bash -c 'exec 3<>/dev/tcp/127.0.0.1/$BOX_PORT; cat <&3 & cat >&3; kill $!'";
    let mut entry = servers[0].host_entry("box").with_line(proxy);
    entry.identities.extend(servers[1].host_entry("x").identities);
    let stanza = Stanza::after_hosts([]);
    let known = [0, 1].map(|n| {
        let known = fs::read_to_string(servers[n].host_entry("x").known_hosts).unwrap();
        let keys = known.lines().filter_map(|line| line.split_once(' '));
        keys.map(|(_, key)| format!("* {key}\n")).collect::<String>()
    });
    entry.known_hosts = stanza.home.path("known_hosts");
    fs::write(&entry.known_hosts, known.concat()).unwrap();
    let lines = fs::read_to_string(stanza.config()).unwrap();
    fs::write(stanza.config(), format!("{entry}{lines}")).unwrap();
    let reached = |port: &str, arguments: &[&str]| {
        let output = succeed(
            stanza
                .ssh()
                .env("BOX_PORT", port)
                .args(arguments)
                .args(["box", WHICH]),
        );
        text(&output.stdout).trim().to_owned()
    };
    for port in [&ports[0], &ports[1], &ports[0]] {
        assert_eq!(reached(port, &[]), **port);
    }
    assert_eq!(servers[0].authentications(), 1, "the socket's own clients share");
    let socket = socket(&stanza);
    assert_eq!(reached(&ports[1], &["-S", &socket]), ports[1]);
    assert_eq!(reached(&ports[0], &["-S", &socket]), ports[0]);
    assert_eq!(servers[0].authentications(), 1);
}

#[test]
fn what_stock_ssh_shows_on_a_terminal_is_recorded() {
    let (_server, stanza) = Stanza::of_web();
    stanza.home.settings("record_hosts = [\"web\"]\n");
    assert_status(&stanza.run(&["-tt", "web", "echo sho''wn; exit 2"]), 2);
    let directory = stanza.home.trunkline_dir().join("state/recordings");
    let recorded = || {
        let recording = fs::read_dir(&directory).ok()?.next()?.ok()?;
        fs::read_to_string(recording.path()).ok()
    };
    wait_until("the recording is over", || {
        recorded().is_some_and(|text| {
            let last = text.lines().last();
            text.contains("shown") && last.is_some_and(|line| line.ends_with("\"x\",\"2\"]"))
        })
    });
}
