//! `-L`, `-R`, `-D`, `-W`, ProxyJump, and `ssh -O forward` and `cancel`.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;

use trunkline_testkit::{KeyPair, KeyType, free_port, write_ssh_config};

use super::stock::{self, Stock};
use crate::home::{
    Home, assert_says, assert_status, fail, finish, finish_with, server, sshd, succeed, text, wait_until,
    with_status,
};

/// A server that sends back what it gets, to each of its clients.
pub(crate) fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming() {
            thread::spawn(move || {
                let client = client.unwrap();
                let _ = std::io::copy(&mut &client, &mut &client);
                let _ = client.shutdown(std::net::Shutdown::Write);
            });
        }
    });
    port
}

pub(crate) fn says(mut stream: impl std::io::Read + std::io::Write, word: &str) -> bool {
    let mut back = vec![0; word.len()];
    stream.write_all(word.as_bytes()).is_ok()
        && stream.read_exact(&mut back).is_ok()
        && back == word.as_bytes()
}

pub(crate) fn works(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok_and(|stream| says(stream, "hello"))
}

#[test]
fn a_local_forward_outlives_its_client_and_may_be_asked_for_again() {
    let stock = Stock::new(server());
    let (target, port) = (echo(), free_port());
    let forward = format!("127.0.0.1:{port}:127.0.0.1:{target}");
    for _ in 0..2 {
        succeed(stock.ssh().args(["-L", &forward, stock.server.alias(), "true"]));
        assert!(works(port));
    }
    assert_status(&stock.control(&["forward", "-L", &forward]), 0);
    assert_status(&stock.control(&["cancel", "-L", &forward]), 0);
    assert!(!works(port));
    let again = stock.control(&["cancel", "-L", &forward]);
    assert_says(&again, "port not forwarded");
    stock.assert_logins(1);
}

#[test]
fn a_forward_that_cannot_be_had_leaves_the_session_to_ssh_itself() {
    let stock = Stock::new(server());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let forward = format!("127.0.0.1:{}:127.0.0.1:1", taken.local_addr().unwrap().port());
    let output = with_status(255, stock.control(&["forward", "-L", &forward]));
    assert_says(&output, "in use");
    succeed(
        stock
            .ssh()
            .args(["-L", &forward, stock.server.alias(), "echo own"]),
    );
    stock.assert_logins(2);
}

#[test]
fn remote_forwards_tell_the_port_that_the_server_chose() {
    let stock = Stock::new(server());
    let forward = format!("0:127.0.0.1:{}", echo());
    let output = with_status(0, stock.control(&["forward", "-R", &forward]));
    let port: u16 = text(&output.stdout).trim().parse().unwrap();
    assert!(works(port));
    let again = stock.control(&["forward", "-R", &forward]);
    assert_eq!(text(&again.stdout), text(&output.stdout), "the same one");
    assert_status(&stock.control(&["cancel", "-R", &forward]), 0);
    wait_until("the server has let go of it", || !works(port));
    let fixed = free_port();
    let forward = format!("{fixed}:127.0.0.1:{}", echo());
    succeed(stock.ssh().args(["-R", &forward, stock.server.alias(), "true"]));
    assert!(works(fixed));
    stock.assert_logins(1);
}

#[test]
fn dynamic_forwards_go_where_the_client_asks() {
    let stock = Stock::new(server());
    let (target, port) = (echo(), free_port());
    with_status(0, stock.control(&["forward", "-D", &format!("127.0.0.1:{port}")]));
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    // SOCKS 4: CONNECT, port, address, no user.
    let mut request = vec![4, 1];
    request.extend(target.to_be_bytes());
    request.extend([127, 0, 0, 1, 0]);
    stream.write_all(&request).unwrap();
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[1], 90, "granted");
    assert!(says(stream, "hello"));
    // And from the server's side: -R with nothing but a port.
    let output = with_status(0, stock.control(&["forward", "-R", "0"]));
    assert!(text(&output.stdout).trim().parse::<u16>().is_ok());
    stock.assert_logins(1);
}

#[test]
fn unix_sockets_are_forwarded_in_both_directions() {
    let stock = Stock::new(server());
    let target = stock.home.path("target");
    let listener = std::os::unix::net::UnixListener::bind(&target).unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.unwrap();
            let _ = std::io::copy(&mut &client, &mut &client);
        }
    });
    for option in ["-L", "-R"] {
        let path = stock.home.path(option);
        let forward = format!("{}:{}", path.display(), target.display());
        assert_status(&stock.control(&["forward", option, &forward]), 0);
        assert!(says(UnixStream::connect(&path).unwrap(), "hello"));
        assert_status(&stock.control(&["cancel", option, &forward]), 0);
    }
    stock.assert_logins(1);
}

#[test]
fn what_another_command_says_of_forwardings_is_for_its_own() {
    let stock = Stock::new(server());
    stock.warm();
    let open = stock::host(&stock.home, stock.config(), stock.server.alias(), &["-g"]);
    stock::listen(&stock.home, open, &stock.socket).unwrap();
    let port = free_port();
    let dynamic = port.to_string();
    assert_status(&stock.control(&["forward", "-D", &dynamic]), 0);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
    // As with a master: what it was begun with holds.
    assert!(TcpStream::connect(("127.0.0.2", port)).is_err());
    stock.assert_logins(1);
}

#[test]
fn exit_ends_forwards_and_connections() {
    let stock = Stock::new(server());
    let port = free_port();
    let forward = format!("127.0.0.1:{port}:127.0.0.1:{}", echo());
    assert_status(&stock.control(&["forward", "-L", &forward]), 0);
    assert!(works(port));
    assert_status(&stock.control(&["exit"]), 0);
    wait_until("nobody listens", || !works(port));
    wait_until("the server is alone", || {
        stock.server.connection_pids().is_empty()
    });
}

#[test]
fn stdio_is_forwarded_and_a_refusal_told() {
    let stock = Stock::new(server());
    let before = {
        stock.warm();
        stock.home.descriptors()
    };
    let target = format!("127.0.0.1:{}", echo());
    let output = with_status(
        0,
        finish_with(
            stock.ssh().args(["-W", &target, stock.server.alias()]),
            b"there and back",
        ),
    );
    assert_eq!(text(&output.stdout), "there and back");
    let output = fail(255, stock.ssh().args(["-W", "127.0.0.1:1", stock.server.alias()]));
    assert_says(&output, "refused");
    stock.home.wait_for_descriptors(&before);
    stock.assert_logins(1);
}

#[test]
fn in_the_background_without_a_command_a_client_leaves_its_forward() {
    let stock = Stock::new(server());
    let port = free_port();
    let forward = format!("127.0.0.1:{port}:127.0.0.1:{}", echo());
    succeed(
        stock
            .ssh()
            .args(["-N", "-f", "-n", "-L", &forward, stock.server.alias()]),
    );
    assert!(works(port));
    stock.assert_logins(1);
}

#[test]
fn a_jump_goes_through_the_warm_connection_of_the_jump_host() {
    let jump = sshd().alias("jump").start().unwrap();
    let target = sshd().alias("target").start().unwrap();
    let home = Home::new();
    let (config, socket) = (home.path("config"), stock::socket(&home, "%n"));
    let hosts = [
        jump.host_entry("jump"),
        target.host_entry("target").with_line("ProxyJump jump"),
    ];
    let hosts = hosts.map(|host| {
        host.with_line(&format!("ControlPath {}", socket.display()))
            .with_line("ControlMaster no")
    });
    write_ssh_config(&config, hosts).unwrap();
    let through = || {
        let mut ssh = home.command("ssh");
        let output = succeed(ssh.arg("-F").arg(&config).args(["target", "echo through"]));
        assert_eq!(
            (text(&output.stdout), text(&output.stderr)),
            ("through\n".into(), String::new())
        );
    };
    let listen = |alias| {
        let path = stock::socket(&home, alias);
        stock::listen(&home, stock::host(&home, &config, alias, &[]), &path).unwrap();
    };
    // Through the jump host's socket by ssh's own `-W`, then through the daemon's connection to the target as well.
    listen("jump");
    through();
    listen("target");
    through();
    through();
    assert_eq!((jump.authentications(), target.authentications()), (1, 2));
}

/// A daemon that serves a server whose key is not the one that is known.
fn unverified_server() -> Stock {
    let server = server();
    let other = KeyPair::generate(server.dir(), "other", KeyType::Ed25519).unwrap();
    let line = format!("[127.0.0.1]:{} {}\n", server.port(), other.public_key());
    let known = server.dir().join("changed");
    std::fs::write(&known, line).unwrap();
    let config = server.dir().join("lax");
    let mut entry = server
        .host_entry(server.alias())
        .with_line("StrictHostKeyChecking no");
    entry.known_hosts = known;
    write_ssh_config(&config, [entry]).unwrap();
    Stock::with_config(server, config)
}

#[test]
fn nothing_leans_on_a_server_that_was_not_verified() {
    const DISABLED: &str = "disabled to avoid man-in-the-middle attacks";
    let stock = unverified_server();
    let alias = stock.server.alias();
    let output = with_status(0, stock.run("echo here"));
    assert_eq!(text(&output.stdout), "here\n");
    assert_says(&output, "HAS CHANGED");
    let (target, port) = (echo(), free_port());
    let forward = format!("127.0.0.1:{port}:127.0.0.1:{target}");
    let socks = format!("127.0.0.1:{port}");
    for (kind, what) in [("-L", &forward), ("-R", &forward), ("-D", &socks)] {
        let output = stock.control(&["forward", kind, what]);
        assert!(!output.status.success(), "{kind}");
        assert!(
            text(&output.stderr).contains(DISABLED),
            "{kind} {}",
            text(&output.stderr)
        );
        // Beside a session.
        let output = finish(stock.ssh().args([kind, what, alias, "true"]));
        assert!(
            text(&output.stderr).contains(DISABLED),
            "{kind} {}",
            text(&output.stderr)
        );
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "{kind}");
    }
    let to = format!("127.0.0.1:{target}");
    let output = finish_with(stock.ssh().args(["-W", &to, alias]), b"hello");
    assert!(!output.status.success());
    assert_eq!(text(&output.stdout), "");
    // In proxy mode ssh listens by itself, and asks for each client.
    let mut proxied = stock.ssh();
    proxied.args(["-O", "proxy", "-L", &forward, alias]);
    let command = format!(
        "while ! [ -e {0}/go ]; do sleep 0.01; done",
        stock.home.path("").display()
    );
    let mut running = proxied.arg(command).spawn().unwrap();
    wait_until("ssh listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    assert!(!works(port));
    std::fs::write(stock.home.path("go"), "").unwrap();
    running.wait().unwrap();
}
