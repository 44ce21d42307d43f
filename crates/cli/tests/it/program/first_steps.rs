//! What somebody is told who does not know the commands yet.

use crate::home::{Home, assert_status, finish, text};

#[test]
fn alone_it_says_what_to_try_until_a_daemon_has_run() {
    let home = Home::new();
    let output = finish(&mut home.trunkline());
    assert_status(&output, 2);
    let said = text(&output.stderr);
    insta::assert_snapshot!(said);
    assert!(said.lines().all(|line| line.len() <= 80), "{said}");

    assert_status(&finish(home.trunkline().args(["explain", "web1"])), 0);
    let output = finish(&mut home.trunkline());
    assert_status(&output, 2);
    assert!(text(&output.stderr).contains("Usage: trunkline"), "{output:?}");
}

#[test]
fn a_host_in_a_commands_place_is_told_apart_from_a_mistyped_command() {
    let home = Home::new();
    for host in ["web1", "me@web1.example"] {
        let output = finish(home.trunkline().arg(host));
        assert_status(&output, 2);
        let said = text(&output.stderr);
        assert!(said.contains(&format!("trunkline ssh {host}")), "{said}");
    }
    let said = finish(home.trunkline().arg("expain"));
    let said = text(&said.stderr);
    assert!(
        said.contains("explain") && !said.contains("trunkline ssh"),
        "{said}"
    );
}
