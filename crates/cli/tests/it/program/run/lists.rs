//! Mistakes in the list of hosts: what is said of them.

use std::fs;

use super::Fleet;
use crate::home::{assert_status, closed_address, program, succeed, text, with_status};

/// Returns the output of a run that does not begin, or is a dry run.
fn run_and_read(fleet: &Fleet, hosts: &[&str]) -> (i32, String) {
    let output = fleet.run(&[hosts, &["--dry-run"]].concat(), "true");
    (output.status.code().unwrap(), text(&output.stderr))
}

#[test]
fn a_mistake_in_a_list_is_shown_where_it_is() {
    let fleet = Fleet::with_hosts(2);
    let (status, said_of) = run_and_read(&fleet, &["-H", "box1,box[1-x]"]);
    assert_eq!(status, 255);
    insta::assert_snapshot!(said_of, @r"
    trunkline: expected a number or a range such as 01-20
      box1,box[1-x]
               ^
    ");
    let list = fleet.home.path("list");
    fs::write(&list, "box1\nbox2]\n").unwrap();
    let (status, said_of) = run_and_read(&fleet, &["-H", &format!("@{}", list.display())]);
    assert_eq!(status, 255);
    assert!(
        said_of.ends_with("list:2: unmatched \"]\"\n  box2]\n      ^\n"),
        "{said_of}"
    );
}

#[test]
fn what_matches_nothing_is_told_with_what_was_meant() {
    let fleet = Fleet::with_hosts(2);
    assert_eq!(
        run_and_read(&fleet, &["-H", "bxo*"]),
        (
            255,
            "trunkline: no Host alias of ssh_config matches \"bxo*\"; did you mean box1?\n".into()
        )
    );
    assert_eq!(
        run_and_read(&fleet, &["-H", "box1,!bxo1,!web*"]),
        (
            0,
            "trunkline: !bxo1 excludes no host; did you mean !box1?\ntrunkline: !web* excludes no host\n"
                .into()
        )
    );
    assert_eq!(run_and_read(&fleet, &["-H", "box1,!box*"]).0, 255);
    let output = with_status(1, fleet.run(&["-H", "bxo1"], "true"));
    let said_of = text(&output.stderr);
    assert!(
        said_of.ends_with("trunkline: bxo1 is not known; did you mean box1?\n"),
        "{said_of}"
    );
    // Many names are told in one line; another number is another host.
    let output = fleet.run(&["-H", "bxo[1-2],box[7-9]"], "true");
    let said_of = text(&output.stderr);
    let told: Vec<&str> = said_of
        .lines()
        .filter(|line| line.starts_with("trunkline:"))
        .collect();
    assert_eq!(
        told,
        ["trunkline: bxo[1-2] are not known; did you mean box[1-2]?"],
        "{said_of}"
    );

    let inventory = fleet.home.path("hosts.ini");
    fs::write(&inventory, "[web]\nbox1\nbox2\n").unwrap();
    let mut run = fleet.home.command_with_ansible(program());
    run.args(["run", "--dry-run", "-i"]).arg(&inventory);
    let output = succeed(run.args(["-H", "web,wbe,!bxo1", "true"]));
    assert_eq!(
        text(&output.stderr),
        "trunkline: wbe matches nothing in the inventory; did you mean web?\n\
         trunkline: !bxo1 matches nothing in the inventory; did you mean box1?\n"
    );
}

#[test]
fn a_host_of_a_list_may_have_a_user_and_a_port() {
    let fleet = Fleet::with_hosts(1);
    let port = fleet.server.port();
    let user = fleet.server.user();
    let wrong = closed_address();
    let config = fs::read_to_string(&fleet.config).unwrap();
    // The file says another port and user.
    let config = config.replace(&format!("Port {port}"), &format!("Port {}", wrong.port()));
    fs::write(
        &fleet.config,
        config.replace(&format!("User {user}"), "User nobody"),
    )
    .unwrap();
    let name = format!("{user}@box1:{port}");
    let output = with_status(0, fleet.run(&["-H", &name], "echo {host}"));
    assert_eq!(text(&output.stdout), format!("{name}: box1\n"));
}

#[test]
fn options_of_clush_and_pdsh_mean_what_they_mean_there() {
    let fleet = Fleet::with_hosts(4);
    let skipped = fleet.home.path("skipped");
    fs::write(&skipped, "box4\n").unwrap();
    let skipped = format!("@{}", skipped.display());
    let options = [
        "-w", "box[1-4]", "-x", "box2", "-x", &skipped, "-f", "2", "-u", "1m", "-b",
    ];
    let output = with_status(0, fleet.run(&options, "echo same"));
    let rule = "-".repeat(15);
    assert_eq!(
        text(&output.stdout),
        format!("{rule}\nbox[1,3] (2 hosts)\n{rule}\nsame\n")
    );

    let command = "exit {n}";
    assert_status(&fleet.run(&["-w", "box[1-3]"], command), 1);
    assert_status(&fleet.run(&["-S", "-w", "box[1-3]"], command), 3);
    assert_status(&fleet.run(&["-S", "-w", "box1"], "true"), 0);
    assert_status(&fleet.run(&["-S", "-w", "box1"], "kill -9 $$"), 255);

    let inventory = fleet.home.path("hosts.ini");
    fs::write(&inventory, "[web]\nbox1\nbox2\n").unwrap();
    let mut run = fleet.home.command_with_ansible(program());
    run.args(["run", "--dry-run", "-x", "box1", "-i"]).arg(&inventory);
    let output = succeed(run.arg("true"));
    assert_eq!(text(&output.stdout), "box2: true\n");
}
