//! `warm`, `check`, `close`, `explain`, `ls` and `tune` with lists of hosts.

use std::path::PathBuf;
use std::process::Output;

use trunkline_testkit::Sshd;

use crate::home::{
    Home, assert_has, assert_says, assert_status, boxes, closed_address, describe, fail, finish, sshd, text,
    with_status,
};
use crate::tty::Terminal;

/// A server that is several hosts, box1 and so on, and two more that nobody reaches.
struct Fleet {
    home: Home,
    config: PathBuf,
    _server: Sshd,
}

impl Fleet {
    fn with_hosts(hosts: u8) -> Self {
        let builder = sshd().any_loopback_address().config("MaxStartups 100:30:200");
        let (server, home) = (builder.start().unwrap(), Home::new());
        let closed = closed_address();
        let down = (1..=2).map(|n| server.host_entry(&format!("down{n}")).with_address(closed));
        let config = home.config(boxes(&server, hosts).chain(down));
        Self {
            home,
            config,
            _server: server,
        }
    }

    fn does(&self, words: &[&str]) -> Output {
        let mut command = self.home.trunkline();
        command
            .arg(words[0])
            .arg("-F")
            .arg(&self.config)
            .args(&words[1..]);
        finish(&mut command)
    }
}

/// Lines in the order of their hosts: they are printed as the hosts answer.
fn sort_lines(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<String> = text(bytes).lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn each_host_is_told_by_name_and_those_that_failed_alike_share_a_row() {
    let fleet = Fleet::with_hosts(3);
    let output = with_status(255, fleet.does(&["warm", "box[1-3],!box2", "-H", "down*"]));
    assert_eq!(sort_lines(&output.stdout), ["box1: connected", "box3: connected"]);
    let told = text(&output.stderr);
    for name in ["down1", "down2"] {
        let line = format!("trunkline: {name}: connecting to ");
        assert!(told.contains(&line), "{}", describe(&output));
    }
    assert!(told.contains("4 hosts in "), "{}", describe(&output));
    assert_has(&told, ": 2 succeeded, 2 failed\n");
    let row = told.lines().find(|line| line.starts_with("down[1-2]  network  "));
    assert!(
        row.is_some_and(|row| row.ends_with("Connection refused")),
        "{}",
        describe(&output)
    );
}

#[test]
fn a_check_says_why_a_host_has_no_connection_and_connects_to_none() {
    let fleet = Fleet::with_hosts(2);
    assert_status(&fleet.does(&["warm", "box1", "down1"]), 255);
    let output = with_status(255, fleet.does(&["check", "box[1-2]", "down[1-2]"]));
    assert!(text(&output.stdout).starts_with("box1: alive, round trip "));
    let told = text(&output.stderr);
    for line in [
        "trunkline: box2: no connection; run `trunkline warm` to make one\n",
        "trunkline: down1: no connection; the last attempt failed: connecting to ",
        "trunkline: down2: no connection; run ",
    ] {
        assert!(told.contains(line), "{line} is not in\n{}", describe(&output));
    }
    let hosts = fleet.home.ls();
    assert_eq!(hosts.as_array().unwrap().len(), 1, "{hosts}");
}

#[test]
fn a_pattern_means_the_hosts_with_connections_and_else_those_of_ssh_config() {
    let fleet = Fleet::with_hosts(3);
    assert_status(&fleet.does(&["warm", "box[1-2]"]), 0);
    assert_eq!(sort_lines(&fleet.does(&["check", "box*"]).stdout).len(), 2);
    let listed = fleet.does(&["ls", "--json", "*1"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed[0]["name"], "box1");
    let output = with_status(255, fleet.does(&["ls", "box[1-3]"]));
    assert_eq!(text(&output.stderr), "trunkline: box3: no connection\n");
    let output = with_status(0, fleet.does(&["close", "box*"]));
    let closed = ["box1: closed 1 connection", "box2: closed 1 connection"];
    assert_eq!(sort_lines(&output.stdout), closed);
    // None of them is open any more: the pattern means all that ssh_config knows.
    let output = with_status(255, fleet.does(&["check", "box*"]));
    assert_says(&output, "3 hosts in ");
}

#[test]
fn hosts_come_from_files_and_one_document_for_each_goes_to_programs() {
    let fleet = Fleet::with_hosts(2);
    let list = fleet.home.path("list");
    std::fs::write(&list, "box1\nbox2 # the other\n").unwrap();
    let list = format!("@{}", list.display());
    let output = with_status(0, fleet.does(&["explain", "--json", &list]));
    let names: Vec<String> = sort_lines(&output.stdout)
        .iter()
        .map(|line| {
            let document: serde_json::Value = serde_json::from_str(line).unwrap();
            document["host"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(names, ["box1", "box2"]);
    let output = with_status(0, fleet.does(&["tune", "--forget", &list]));
    assert_eq!(text(&output.stdout), "box1: forgotten\nbox2: forgotten\n");
    let output = with_status(255, fleet.does(&["tune", "--report", "x.html", &list]));
    assert_says(&output, "--report writes about one host, and there are 2");
}

#[test]
fn no_host_at_all_is_a_mistake_in_the_arguments() {
    let home = Home::new();
    for command in ["warm", "check", "close", "explain", "tune"] {
        let output = fail(2, home.trunkline().arg(command));
        assert_says(&output, "<HOST>...");
    }
    assert!(home.daemon().is_none());
}

#[test]
fn a_terminal_shows_how_far_many_hosts_are() {
    let fleet = Fleet::with_hosts(3);
    let mut command = fleet.home.trunkline();
    command.args(["warm", "-F"]).arg(&fleet.config).arg("box[1-3]");
    let mut terminal = Terminal::start(&command);
    terminal.expect("/3 done");
    terminal.expect("3 hosts in ");
    assert!(terminal.end().success());
}
