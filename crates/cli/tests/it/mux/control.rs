//! `ssh -O`, and what becomes of a socket.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

use trunkline_testkit::leave_socket;

use super::stock::{self, Stock};
use crate::home::{Home, assert_status, server, succeed, text, with_status};

#[test]
fn check_names_the_daemon() {
    let stock = Stock::new(server());
    let output = with_status(0, stock.control(&["check"]));
    let pid = stock.home.daemon().unwrap().as_raw_nonzero();
    assert_eq!(text(&output.stderr), format!("Master running (pid={pid})\r\n"));
}

#[test]
fn stop_and_exit_remove_the_socket_and_listening_again_brings_it_back() {
    let stock = Stock::new(server());
    for what in ["stop", "exit"] {
        stock.warm();
        assert_status(&stock.control(&[what]), 0);
        assert!(!stock.socket.exists());
        assert_ne!(stock.control(&["check"]).status.code(), Some(0));
        stock.listen().unwrap();
        assert!(stock.socket.exists());
    }
    stock.warm();
    // A stop leaves the connection, an exit does not.
    stock.assert_logins(2);
}

#[test]
fn only_its_owner_can_use_a_socket() {
    let stock = Stock::new(server());
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&stock.socket), 0o600);
    assert_eq!(mode(stock.socket.parent().unwrap()), 0o700);
}

#[test]
fn ls_shows_the_socket_with_and_without_connections() {
    let stock = Stock::new(server());
    stock.warm();
    let shown = |hosts: &serde_json::Value| hosts[0]["mux_sockets"][0] == stock.socket.to_str().unwrap();
    assert!(shown(&stock.home.ls()), "{}", stock.home.ls());
    succeed(stock.home.trunkline().args(["close", "--all", "--now"]));
    let hosts = stock.home.ls();
    assert!(shown(&hosts), "{hosts}");
    stock.warm();
    stock.assert_logins(2);
}

#[test]
fn a_dead_daemons_socket_is_replaced_and_a_living_programs_is_not() {
    let (server, home) = (server(), Home::new());
    let config = server.ssh_config();
    let listen = |name: &str| {
        let host = stock::host(&home, &config, server.alias(), &[]);
        stock::listen(&home, host, &stock::socket(&home, name))
    };
    listen("first").unwrap();
    leave_socket(&stock::socket(&home, "dead"));
    listen("dead").unwrap();
    let _alive = UnixListener::bind(stock::socket(&home, "alive")).unwrap();
    let failure = listen("alive").unwrap_err();
    assert!(failure.message.contains("another program"), "{}", failure.message);
    std::fs::write(stock::socket(&home, "file"), "precious").unwrap();
    let failure = listen("file").unwrap_err();
    assert!(failure.message.contains("not a socket"), "{}", failure.message);
    assert_eq!(std::fs::read(stock::socket(&home, "file")).unwrap(), b"precious");
}

#[test]
fn paths_that_cannot_be_used_are_refused_with_the_reason() {
    let (server, home) = (server(), Home::new());
    let config = server.ssh_config();
    let listen = |path: &str| {
        let host = stock::host(&home, &config, server.alias(), &[]);
        stock::listen(&home, host, path.as_ref()).unwrap_err().message
    };
    assert!(listen("relative").contains("not absolute"));
    assert!(listen(&format!("/tmp/{}", "x".repeat(99))).contains("104 bytes"));
    assert!(listen("/tmp/open-to-all").contains("open to others"));
    assert!(listen("/nowhere/at/all").contains("No such file"));
}

#[test]
fn hosts_that_need_the_systems_ssh_are_declined() {
    let (server, home) = (server(), Home::new());
    let config = server.ssh_config();
    let host = stock::host(&home, &config, server.alias(), &["-o", "ForwardX11=yes"]);
    let failure = stock::listen(&home, host, &stock::socket(&home, "x11")).unwrap_err();
    assert!(
        failure.message.contains("needs the system's ssh"),
        "{}",
        failure.message
    );
}

#[test]
fn requests_with_other_settings_do_not_share_a_socket_that_is_in_use() {
    let stock = Stock::new(server());
    stock.warm();
    let other = || stock::host(&stock.home, stock.config(), stock.server.alias(), &["-C"]);
    let failure = stock::listen(&stock.home, other(), &stock.socket).unwrap_err();
    assert!(failure.message.contains("other settings"), "{}", failure.message);
    // Once nobody uses it, it is there for whoever comes.
    succeed(stock.home.trunkline().args(["close", "--all", "--now"]));
    stock::listen(&stock.home, other(), &stock.socket).unwrap();
}

#[test]
fn a_client_on_its_way_keeps_the_socket_for_its_settings() {
    let home = Home::new();
    // Connections to it are never made: what counts is who was told to come.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let config = home.path("silent_config");
    let port = silent.local_addr().unwrap().port();
    std::fs::write(&config, format!("Host host\nHostName 127.0.0.1\nPort {port}\n")).unwrap();
    let socket = stock::socket(&home, "host");
    let mut client = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let first = stock::host(&home, &config, "host", &[]);
    stock::listen_for(&home, first, &socket, Some(client.id())).unwrap();
    let other = || stock::host(&home, &config, "host", &["-C"]);
    // The connection that was begun for it is given up.
    succeed(home.trunkline().args(["close", "--all", "--now"]));
    let failure = stock::listen(&home, other(), &socket).unwrap_err();
    assert!(failure.message.contains("other settings"), "{}", failure.message);
    client.kill().unwrap();
    client.wait().unwrap();
    stock::listen(&home, other(), &socket).unwrap();
}

/// A host that is connected, whose configuration can be changed.
fn with_a_configuration_of_its_own() -> (Stock, tempfile::TempDir) {
    let server = server();
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config");
    std::fs::copy(server.ssh_config(), &config).unwrap();
    let stock = Stock::with_config(server, config);
    stock.warm();
    (stock, directory)
}

/// Changes it, and sees that there is another connection for it.
#[track_caller]
fn change_configuration(stock: &Stock) {
    let text = std::fs::read_to_string(stock.config()).unwrap();
    std::fs::write(stock.config(), format!("Compression yes\n{text}")).unwrap();
    stock.listen().unwrap();
    stock.warm();
    stock.assert_logins(2);
}

#[test]
fn a_client_that_was_told_to_come_for_other_settings_connects_by_itself() {
    let (stock, _directory) = with_a_configuration_of_its_own();
    // One that is told where to go, and goes later.
    let ssh = stock.ssh();
    let mut late = stock.home.command("sh");
    late.args(["-c", "read go; exec ssh \"$@\"", "sh"])
        .args(ssh.get_args());
    late.args([stock.server.alias(), "true"]);
    let mut late = late.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let host = stock::host(&stock.home, stock.config(), stock.server.alias(), &[]);
    stock::listen_for(&stock.home, host, &stock.socket, Some(late.id())).unwrap();
    change_configuration(&stock);
    std::io::Write::write_all(&mut late.stdin.take().unwrap(), b"go\n").unwrap();
    assert_eq!(crate::home::end_of(&mut late, "ssh").code(), Some(0));
    stock.assert_logins(3);
}

#[test]
fn a_changed_configuration_is_followed() {
    let (stock, _directory) = with_a_configuration_of_its_own();
    change_configuration(&stock);
}

#[test]
fn a_daemon_that_ends_takes_its_sockets_along_and_lets_sessions_end() {
    let stock = Stock::new(server());
    stock.warm();
    let gate = stock.home.path("gate");
    let wait = format!(
        "echo begun; while ! test -e {}; do sleep 0.01; done; exit 5",
        gate.display()
    );
    let mut ssh = stock.ssh();
    ssh.args([stock.server.alias(), &wait]);
    let mut child = ssh.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    succeed(stock.home.trunkline().arg("stop"));
    crate::home::wait_until("the socket is gone", || !stock.socket.exists());
    std::fs::write(&gate, "").unwrap();
    assert_eq!(crate::home::end_of(&mut child, "ssh").code(), Some(5));
}
