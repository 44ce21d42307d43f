//! `trunkline metrics`, and the socket that tells the same.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::home::{
    Home, assert_has, assert_status, fail, finish, finish_with, server, succeed, text, with_status,
};

/// Returns the answer of an HTTP server on a socket.
fn request(socket: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn what_was_done_is_counted() {
    let (server, home) = (server(), Home::new());
    fail(1, home.trunkline().arg("metrics"));
    assert!(home.daemon().is_none(), "looking starts no daemon");
    for _ in 0..3 {
        assert_status(&home.run_on(&server, "true"), 0);
    }
    let printed = succeed(home.trunkline().arg("metrics"));
    let printed = text(&printed.stdout);
    let host = server.alias();
    for line in [
        "trunkline_handshake_stage_duration_seconds_count{stage=\"key_exchange\",outcome=\"ok\"} 1".into(),
        "trunkline_session_overflows_total 0".into(),
        "trunkline_waiting_handshakes{limit=\"server\"} 0".into(),
        "trunkline_audit_waiting_records 0".into(),
        format!("trunkline_waiting_sessions{{host=\"{host}\"}} 0"),
        "trunkline_reconnects_total 0".into(),
        format!("trunkline_connections{{host=\"{host}\",state=\"connected\"}} 1"),
        "trunkline_connections_authenticated_total 1".to_owned(),
        "trunkline_sessions_total{kind=\"command\"} 3".to_owned(),
        "trunkline_handshake_duration_seconds_count{outcome=\"ok\"} 1".to_owned(),
        "trunkline_session_start_duration_seconds_count{path=\"cold\"} 1".to_owned(),
    ] {
        assert!(printed.lines().any(|have| have == line), "{line}\n{printed}");
    }

    let socket = home.trunkline_dir().join("metrics.sock");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let answer = request(&socket, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_has(&answer, "\ntrunkline_sessions_total{kind=\"command\"} 3\n");
    let accept = "Accept: application/openmetrics-text; version=1.0.0\r\n";
    let open = request(
        &socket,
        &format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{accept}\r\n"),
    );
    assert!(open.ends_with("# EOF\n"), "{open}");
    let other = request(&socket, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(other.starts_with("HTTP/1.1 404"), "{other}");
}

#[test]
fn a_file_for_node_exporter_is_there_for_as_long_as_the_daemon() {
    let (server, home) = (server(), Home::new());
    assert_status(&home.run_on(&server, "true"), 0);
    let file = home.path("trunkline.prom");
    let write = || finish(home.trunkline().args(["metrics", "--textfile"]).arg(&file));
    assert_status(&write(), 0);
    assert!(
        fs::read_to_string(&file)
            .unwrap()
            .contains("\ntrunkline_build_info")
    );
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
    succeed(home.trunkline().args(["stop", "--now"]));
    assert_status(&write(), 1);
    assert!(!file.exists());
}

#[test]
fn prometheus_own_linter_finds_nothing() {
    let (server, home) = (server(), Home::new());
    assert_status(&home.run_on(&server, "true"), 0);
    let printed = succeed(home.trunkline().arg("metrics"));
    let linted = with_status(
        0,
        finish_with(
            home.command("promtool").args(["check", "metrics"]),
            &printed.stdout,
        ),
    );
    assert_eq!(text(&linted.stderr), "", "{}", text(&printed.stdout));
}
