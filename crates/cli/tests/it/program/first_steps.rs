//! Help for people who do not know the commands yet.

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
    for command in ["setup", "audit"] {
        let output = finish(home.trunkline().args([command, "docker"]));
        assert_status(&output, 2);
        let said = text(&output.stderr);
        assert!(!said.contains("trunkline ssh"), "{said}");
    }
}

#[test]
fn a_run_without_hosts_says_how_to_name_them() {
    let output = finish(Home::new().trunkline().args(["run", "box1", "uptime"]));
    assert_status(&output, 2);
    let said = text(&output.stderr);
    assert!(said.contains("\n  -H HOSTS, -g GROUP or -i FILE\n"), "{said}");
    assert!(
        said.contains("trunkline run -H web1,web2 uptime") && !said.contains("--attach"),
        "{said}"
    );
}

#[test]
fn a_target_that_is_none_is_told_with_all_that_there_are() {
    let output = finish(
        Home::new()
            .trunkline()
            .args(["stream", "--to", "x", "box1", "--", "true"]),
    );
    assert_status(&output, 2);
    let said = text(&output.stderr);
    assert!(
        said.contains("use fifo:PATH, unix:PATH or file:PATH, or - for standard output"),
        "{said}"
    );
}

#[test]
fn a_missing_file_is_told_in_the_systems_words_alone() {
    let home = Home::new();
    for arguments in [
        &["run", "-H", "@missing", "true"][..],
        &["run", "-H", "box1", "--script", "missing"],
        &["cp", "--filter-from", "missing", "-r", "a", "box1:"],
    ] {
        let output = finish(home.trunkline().args(arguments));
        assert_status(&output, 255);
        let said = text(&output.stderr);
        assert!(
            said.ends_with(": No such file or directory\n"),
            "{arguments:?} {said}"
        );
    }
}
