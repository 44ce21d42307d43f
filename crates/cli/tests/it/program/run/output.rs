//! What a run prints: rows, records, and errors that are told once.

use std::fs;

use super::Fleet;
use crate::home::{assert_status, describe, finish, text};

#[test]
fn an_error_of_this_machine_is_told_once() {
    let fleet = Fleet::of(3);
    let config = fs::read_to_string(&fleet.config).unwrap();
    fs::write(&fleet.config, format!("NoSuchOption yes\n{config}")).unwrap();
    let output = fleet.run(&["-H", "box[1-3]"], "true");
    assert_status(&output, 255);
    let said = text(&output.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("nosuchoption"), "{said}");
    fs::write(&fleet.config, config).unwrap();

    let fleet = Fleet::of(3);
    fleet.home.settings("no_such_setting = 1\n");
    let output = fleet.run(&["-H", "box[1-3]"], "true");
    assert_status(&output, 255);
    let said = text(&output.stderr);
    assert_eq!(said.matches("unknown field").count(), 1, "{said}");
}

#[test]
fn hosts_that_fail_alike_share_a_row() {
    let fleet = Fleet::of(1);
    let closed = || {
        std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
    };
    let mut config = fs::read_to_string(&fleet.config).unwrap();
    for name in ["down1", "down2"] {
        config = format!("{config}\n{}", fleet.server.host_entry(name).at(closed()));
    }
    fs::write(&fleet.config, config).unwrap();
    let output = fleet.run(&["-H", "box1,down[1-2]", "--quiet"], "echo ran");
    assert_status(&output, 1);
    assert_eq!(text(&output.stdout), "box1: ran\n");
    let said = text(&output.stderr);
    let row = said.lines().find(|line| line.contains("down[1-2]"));
    assert!(
        row.is_some_and(|row| row.ends_with("port …: Connection refused")),
        "{said}"
    );
    let output = fleet.run(&["-H", "box1", "--quiet"], "echo ran");
    assert_eq!(text(&output.stderr), "", "{}", describe(&output));
}

#[test]
fn rows_and_records_are_in_the_order_of_the_list() {
    let fleet = Fleet::of(3);
    let options = ["-H", "box3,box1,box2"];
    let output = fleet.run(
        &[&options[..], &["--table"]].concat(),
        "echo a,{n}; test {n} != 2",
    );
    assert_status(&output, 1);
    let shown = text(&output.stdout);
    let column = |n: usize| -> Vec<&str> {
        let rows = shown.lines();
        rows.map(|row| {
            row.split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .nth(n)
                .unwrap()
        })
        .collect()
    };
    assert_eq!(column(0), ["HOST", "box3", "box1", "box2"], "{shown}");
    assert_eq!(column(1), ["STATUS", "ok", "exit status 1", "ok"], "{shown}");
    assert_eq!(column(3), ["OUTPUT", "a,1", "a,2", "a,3"], "{shown}");
    let output = fleet.run(&[&options[..], &["--csv"]].concat(), "printf a,{n}");
    assert_status(&output, 0);
    let csv = text(&output.stdout);
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[0].starts_with("host,kind,status,"), "{csv}");
    assert!(
        lines[1].starts_with("box3,exited,0,,,finished,\"a,1\",\"\","),
        "{csv}"
    );
    let both = finish(fleet.command(&["-H", "box1", "--csv", "--json"]).arg("true"));
    assert_status(&both, 2);
}
