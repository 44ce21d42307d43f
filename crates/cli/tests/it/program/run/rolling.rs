//! From host to host: batches, failures that are borne, second tries, and what is left for the next run.

use std::fs;

use super::{Fleet, json};
use crate::home::{assert_says, assert_status, closed_address, finish, succeed, text, with_status};

#[test]
fn a_batch_is_over_before_the_next_begins() {
    let fleet = Fleet::with_hosts(5);
    let log = fleet.home.path("log");
    // Each host waits until all of its batch have begun.
    let script = format!(
        "echo begin {{n}} >> {log}; until [ $(grep -c begin {log}) -ge $(( ({{n}} + 1) / 2 * 2 )) ] || [ {{n}} = 5 ]; do :; done; \
         echo end {{n}} >> {log}",
        log = log.display()
    );
    assert_status(&fleet.run(&["-H", "box[1-5]", "--serial", "40%"], &script), 0);
    let log = fs::read_to_string(&log).unwrap();
    let mut shape = Vec::new();
    for line in log.lines() {
        let (word, number) = line.split_once(' ').unwrap();
        shape.push((word, number.parse::<usize>().unwrap().div_ceil(2)));
    }
    let batch = |n| [("begin", n), ("begin", n), ("end", n), ("end", n)];
    assert_eq!(shape[..4], batch(1));
    assert_eq!(shape[4..8], batch(2));
    assert_eq!(shape[8..], [("begin", 3), ("end", 3)]);
}

#[test]
fn no_more_hosts_start_when_too_many_have_failed() {
    let fleet = Fleet::with_hosts(6);
    let failed = fleet.home.path("failed");
    let failed = failed.to_str().unwrap();
    let command = "test {n} != 2 -a {n} != 4";
    let options = ["-H", "box[1-6]", "--json", "--serial", "1", "--failed", failed];
    let ran = |more: &[&str]| -> Vec<String> {
        let output = with_status(1, fleet.run(&[&options, more].concat(), command));
        let hosts = json(&output);
        for host in hosts.values().filter(|host| host["kind"] != "exited") {
            assert_eq!(host["kind"], "skipped");
            assert_eq!(host["execution"], "did not start");
        }
        let ran = hosts.into_iter().filter(|(_, host)| host["kind"] == "exited");
        ran.map(|(name, _)| name).collect()
    };
    assert_eq!(ran(&["--fail-fast"]), ["box1", "box2"]);
    assert_eq!(
        fs::read_to_string(failed).unwrap(),
        "box2\nbox3\nbox4\nbox5\nbox6\n"
    );
    assert_eq!(ran(&["--max-fail", "1"]), ["box1", "box2", "box3", "box4"]);
    assert_eq!(ran(&["--max-fail", "34%"]).len(), 6);
    assert_eq!(fs::read_to_string(failed).unwrap(), "box2\nbox4\n");
    // The next run is for those.
    let again = format!("@{failed}");
    let output = with_status(0, fleet.run(&["-H", &again, "--failed", failed], "echo now"));
    assert_eq!(text(&output.stdout).lines().count(), 2);
    assert_eq!(fs::read_to_string(failed).unwrap(), "");
    let output = with_status(255, fleet.run(&["-H", &again], "true"));
    assert_says(&output, "no hosts are left");
}

#[test]
fn only_what_cannot_have_run_is_tried_again() {
    let fleet = Fleet::with_hosts(2);
    let closed = closed_address();
    let config = fs::read_to_string(&fleet.config).unwrap();
    let entry = fleet.server.host_entry("box2").with_address(closed);
    fs::write(&fleet.config, format!("{entry}\n{config}")).unwrap();
    let log = fleet.home.path("log");
    let command = format!("echo ran >> {}; exit 3", log.display());
    let output = with_status(1, fleet.run(&["-H", "box[1-2]", "--retry", "1"], &command));
    assert_eq!(fs::read_to_string(&log).unwrap(), "ran\n");
    let said = text(&output.stderr);
    assert_eq!(
        said.matches("Connection refused; trying again in 1 s (1 of 1)")
            .count(),
        1,
        "{said}"
    );
}

#[test]
fn a_dry_run_tells_and_connects_to_nobody() {
    let fleet = Fleet::with_hosts(3);
    let options = [
        "-H",
        "box[1-3]",
        "--serial",
        "2",
        "--become",
        "--env",
        "A=b c",
        "--dry-run",
    ];
    let output = with_status(0, fleet.run(&options, "deploy {host} {n}"));
    insta::assert_snapshot!(text(&output.stdout), @r"
    # batch 1: hosts 1 to 2
    box1: (as root) A='b c' deploy box1 1
    box2: (as root) A='b c' deploy box2 2
    # batch 2: hosts 3 to 3
    box3: (as root) A='b c' deploy box3 3
    ");
    assert_eq!(fleet.server.authentications(), 0);
}

#[test]
fn options_behind_the_commands_first_word_are_its_own() {
    let fleet = Fleet::with_hosts(1);
    let output = succeed(
        fleet
            .command(&["-H", "box1"])
            .args(["echo", "-n", "--json", "-H", "x"]),
    );
    assert_eq!(text(&output.stdout), "box1: --json -H x\n");
    let output = finish(fleet.command(&["-H", "box1"]).args(["--", "echo", "--", "-t"]));
    assert_eq!(text(&output.stdout), "box1: -- -t\n");
}

#[test]
fn times_may_have_units() {
    let fleet = Fleet::with_hosts(1);
    assert_status(&fleet.run(&["-H", "box1", "-t", "1m30s"], "true"), 0);
    with_status(1, fleet.run(&["-H", "box1", "-t", "200ms"], "exec sleep 1000"));
    let output = with_status(2, fleet.run(&["-H", "box1", "-t", "5x"], "true"));
    assert_says(&output, "5m or 1h30m");
}

#[test]
fn nothing_runs_where_the_names_of_those_that_failed_could_not_be_kept() {
    let fleet = Fleet::with_hosts(1);
    let ran = fleet.home.path("ran");
    let options = ["-H", "box1", "--failed", "/nowhere/failed"];
    let output = with_status(
        255,
        fleet.run(&options, &format!("touch {}; exit 1", ran.display())),
    );
    assert_says(&output, "writing /nowhere/failed: No such file or directory");
    assert!(!ran.exists());
}
