//! Which name or address of a host ssh(1) has in its messages, and from which LogLevel on it has them: the same here, where
//! alias, HostName, HostKeyAlias and address differ, for the host and for its jump host.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::thread;

use trunkline_testkit::{HostEntry, KeyPair, KeyType, Relay, free_port};

use super::messages;
use crate::home::{Home, describe, finish, sshd, start};

/// Does the same to everybody who connects.
fn serve(with: impl Fn(&mut TcpStream) -> std::io::Result<()> + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut kept = Vec::new();
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let _ = with(&mut client);
            kept.push(client);
        }
    });
    at
}

/// Ends what it says, once it has read something, and reads the rest: the other end sees an end, and no reset.
fn end(client: &mut TcpStream) -> std::io::Result<()> {
    let mut read = [0; 4096];
    let _ = client.read(&mut read)?;
    client.shutdown(Shutdown::Write)?;
    while client.read(&mut read)? > 0 {}
    Ok(())
}

/// By ssh; by trunkline, twice; and without a daemon.
fn ways(home: &Home, config: &std::path::Path) -> [Command; 4] {
    let with = |mut command: Command, words: &[&str]| {
        command.args(words).arg("-F").arg(config);
        command
    };
    [
        with(home.command("ssh"), &[]),
        with(home.trunkline(), &["ssh"]),
        with(home.trunkline(), &["ssh"]),
        with(home.trunkline(), &["--no-daemon", "ssh"]),
    ]
}

/// Without what only this side says.
fn plain_messages(output: &Output) -> String {
    messages(output)
        .lines()
        .filter(|line| !line.starts_with("trunkline: the command "))
        .map(|line| format!("{line}\n"))
        .collect()
}

#[track_caller]
fn alike(outputs: &[Output], what: &str) {
    for ours in &outputs[1..] {
        let shown = format!("{what}\nssh: {}\nours: {}", describe(&outputs[0]), describe(ours));
        assert_eq!(outputs[0].status.code(), ours.status.code(), "{shown}");
        assert_eq!(plain_messages(&outputs[0]), plain_messages(ours), "{shown}");
    }
}

const LEVELS: [&[&str]; 4] = [&[], &["-o", "LogLevel=ERROR"], &["-o", "LogLevel=FATAL"], &["-q"]];

#[test]
fn a_host_that_cannot_be_reached_has_ssh_s_name_in_each_message_at_each_log_level() {
    let home = Home::new();
    let server = sshd().config("MaxAuthTries 1").start().unwrap();
    let keys = ["one", "two"].map(|name| KeyPair::generate(server.dir(), name, KeyType::Ed25519).unwrap());
    let named = |alias: &str| server.host_entry(alias).with_line("HostName LocalHost");
    let strangers = |alias: &str, keys: &[KeyPair]| HostEntry {
        identities: keys.iter().map(|key| key.private_path().into()).collect(),
        ..named(alias)
    };
    let nowhere = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let known = "NoHostAuthenticationForLocalhost yes";
    let entries = [
        ("closes", named("closes").with_address(serve(end))),
        (
            "leaves",
            named("leaves").with_address(serve(|client| {
                client.write_all(b"SSH-2.0-OpenSSH_9.2p1\r\n")?;
                end(client)
            })),
        ),
        (
            "silent",
            named("silent")
                .with_address(serve(|_| Ok(())))
                .with_line("ConnectTimeout 1"),
        ),
        ("refuses", named("refuses").with_address(nowhere)),
        ("stranger", strangers("stranger", &keys[..1]).with_line(known)),
        ("many", strangers("many", &keys).with_line(known)),
        (
            "old",
            named("old").with_line("Ciphers aes128-cbc").with_line(known),
        ),
        ("unknown", named("unknown").with_line("StrictHostKeyChecking yes")),
        (
            "alias",
            named("alias")
                .with_line("StrictHostKeyChecking yes")
                .with_line("HostKeyAlias elsewhere"),
        ),
        (
            "nameless",
            server.host_entry("nameless").with_line("HostName %h.Invalid"),
        ),
        ("no-subsystem", named("no-subsystem").with_line(known)),
    ];
    let others = [
        server.host_entry("box"),
        named("quiet").with_address(nowhere).with_line("LogLevel QUIET"),
    ];
    let all = entries.iter().map(|(_, entry)| entry.clone()).chain(others);
    let config = home.config(all);
    let mut rows = Vec::new();
    for level in LEVELS {
        for (alias, _) in &entries {
            rows.push(match *alias {
                "no-subsystem" => [level, &["-s", alias, "nonsense"]].concat(),
                alias => [level, &[alias, "true"]].concat(),
            });
            // The jump host's own ssh is not heard where the system's is to keep its connection.
            let is_heard = !["no-subsystem", "old"].contains(alias);
            if is_heard && (level.is_empty() || level == ["-q"]) {
                rows.push([level, &["-J", alias, "box", "true"]].concat());
            }
        }
        rows.push([level, &["-J", "quiet", "box", "true"]].concat());
        rows.push([level, &["-W", "127.0.0.1:1", "box"]].concat());
        let proxy = "ProxyCommand=sh -c 'echo complaint >&2; read line; exit 1'";
        rows.push([level, &["-o", proxy, "box", "true"]].concat());
    }
    for row in rows {
        let outputs = ways(&home, &config).map(|mut way| finish(way.args(&row)));
        alike(&outputs, &format!("{row:?}"));
    }
}

#[test]
fn a_connection_that_is_lost_has_ssh_s_name_in_its_message_at_each_log_level() {
    let (server, home) = (sshd().start().unwrap(), Home::new());
    for level in LEVELS {
        for stalls in [false, true] {
            let outputs = [0, 1, 2].map(|way| {
                let relay = Relay::start(server.addr()).unwrap();
                let host = server
                    .host_entry("box")
                    .with_address(relay.addr())
                    .with_line("HostName LocalHost")
                    .with_line("NoHostAuthenticationForLocalhost yes")
                    .with_line("ServerAliveInterval 1")
                    .with_line("ServerAliveCountMax 1");
                let config = home.config([host]);
                let [ssh, daemon, _, alone] = ways(&home, &config);
                let mut command = [ssh, daemon, alone].into_iter().nth(way).unwrap();
                let child = start(command.args(level).args(["box", "echo up; exec sleep 1000"]));
                if stalls {
                    relay.stall();
                } else {
                    relay.close();
                }
                child.wait_with_output().unwrap()
            });
            alike(&outputs, &format!("{level:?}, stalls: {stalls}"));
        }
    }
}

#[test]
fn a_host_behind_a_jump_host_that_needs_the_system_s_ssh_is_left_to_it_too() {
    let home = Home::new();
    let server = sshd().config("Ciphers +aes128-cbc").start().unwrap();
    let old = server.host_entry("old").with_line("Ciphers aes128-cbc");
    let behind = server.host_entry("behind").with_line("ProxyJump old");
    let config = home.config([old, behind, server.host_entry("box")]);
    for row in [
        &["behind", "echo out; exit 3"][..],
        &["-J", "old", "box", "echo out; exit 3"],
        &["-J", "box,old", "box", "echo out; exit 3"],
    ] {
        let outputs = ways(&home, &config).map(|mut way| finish(way.args(row)));
        assert_eq!(outputs[0].status.code(), Some(3), "{}", describe(&outputs[0]));
        alike(&outputs, &format!("{row:?}"));
    }
}
