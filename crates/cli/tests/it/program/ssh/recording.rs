//! Recordings of sessions that have a terminal.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use serde_json::Value;

use crate::home::{Home, assert_prints, assert_status, server, succeed, wait_until};
use crate::tty::Terminal;

/// The recordings, in the order in which they began.
fn recordings(home: &Home) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(home.trunkline_dir().join("state/recordings")) else {
        return Vec::new();
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// A recording's lines, once it is over.
fn lines(path: &PathBuf) -> Vec<Value> {
    let read = || fs::read_to_string(path).unwrap();
    wait_until("the recording is over", || {
        read().lines().last().is_some_and(|line| line.contains("\"x\""))
    });
    let text = read();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn render(lines: &[Value]) -> String {
    let outputs = lines[1..].iter().filter(|line| line[1] == "o");
    outputs.map(|line| line[2].as_str().unwrap()).collect()
}

#[test]
fn what_a_terminal_shows_is_recorded_and_nothing_that_is_typed() {
    let (server, home) = (server(), Home::new());
    home.settings("record_hosts = [\"*\"]\n");
    let mut command = home.ssh(&server);
    command.args([
        "-t",
        server.alias(),
        // A new size comes by a signal, which the keys may overtake.
        "stty -echo; echo rea''dy; read x; until stty size | grep '^40 100$'; do :; done; echo do''ne; exit 3",
    ]);
    let mut terminal = Terminal::start(&command);
    terminal.expect("ready");
    terminal.resize(100, 40);
    terminal.send("the secret\n");
    terminal.expect("done");
    assert_eq!(terminal.end().code(), Some(3));
    let paths = recordings(&home);
    let mode = |path: &PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((paths.len(), mode(&paths[0])), (1, 0o600));
    assert_eq!(mode(&paths[0].parent().unwrap().to_owned()), 0o700);
    let lines = lines(&paths[0]);
    assert_eq!(lines[0]["version"], 3);
    assert!(lines[0]["term"]["cols"].as_u64().unwrap() > 0, "{lines:?}");
    assert!(
        render(&lines).contains("ready") && render(&lines).contains("done"),
        "{lines:?}"
    );
    assert!(
        lines.iter().any(|line| line[1] == "r" && line[2] == "100x40"),
        "{lines:?}"
    );
    assert_eq!(lines.last().unwrap()[2], "3");
    assert!(!fs::read_to_string(&paths[0]).unwrap().contains("the secret"));
    // Without a terminal there is nothing to see.
    assert_status(&home.run_on(&server, "echo hidden"), 0);
    assert_eq!(recordings(&home).len(), 1);
}

#[test]
fn a_session_that_cannot_be_recorded_runs_all_the_same() {
    let (server, home) = (server(), Home::new());
    home.settings(&format!("record_hosts = [\"{}\"]\n", server.alias()));
    let state = home.trunkline_dir().join("state");
    fs::create_dir_all(&state).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(state.join("recordings"), "not a directory").unwrap();
    let output = succeed(home.ssh(&server).args(["-tt", server.alias(), "echo here"]));
    assert_prints(&output, "here");
    wait_until("the log says so", || {
        home.log().contains("is not recorded any more")
    });
}

#[test]
fn only_the_hosts_that_the_settings_name_are_recorded() {
    let (server, home) = (server(), Home::new());
    home.settings("record_hosts = [\"db*\"]\n");
    succeed(home.ssh(&server).args(["-tt", server.alias(), "true"]));
    assert!(recordings(&home).is_empty());
}
