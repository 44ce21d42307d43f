//! Help for people who do not know the commands yet.

use crate::home::{Home, assert_has, fail, finish, succeed, text};

#[test]
fn alone_it_says_what_to_try_until_a_daemon_has_run() {
    let home = Home::new();
    let output = fail(2, &mut home.trunkline());
    let said = text(&output.stderr);
    insta::assert_snapshot!(said);
    assert!(said.lines().all(|line| line.len() <= 80), "{said}");

    succeed(home.trunkline().args(["explain", "web1"]));
    let output = fail(2, &mut home.trunkline());
    assert!(text(&output.stderr).contains("Usage: trunkline"), "{output:?}");
}

#[test]
fn a_host_in_a_commands_place_is_told_apart_from_a_mistyped_command() {
    let home = Home::new();
    for host in ["web1", "me@web1.example"] {
        let output = fail(2, home.trunkline().arg(host));
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
        let output = fail(2, home.trunkline().args([command, "docker"]));
        let said = text(&output.stderr);
        assert!(!said.contains("trunkline ssh"), "{said}");
    }
}

#[test]
fn a_run_without_hosts_says_how_to_name_them() {
    let output = fail(2, Home::new().trunkline().args(["run", "box1", "uptime"]));
    let said = text(&output.stderr);
    assert!(said.contains("\n  -H HOSTS, -g GROUP or -i FILE\n"), "{said}");
    assert!(
        said.contains("trunkline run -H web1,web2 uptime") && !said.contains("--attach"),
        "{said}"
    );
}

#[test]
fn a_target_that_is_none_is_told_with_all_that_there_are() {
    let output = fail(
        2,
        Home::new()
            .trunkline()
            .args(["stream", "--to", "x", "box1", "--", "true"]),
    );
    let said = text(&output.stderr);
    assert_has(
        &said,
        "use fifo:PATH, unix:PATH or file:PATH, or - for standard output",
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
        let output = fail(255, home.trunkline().args(arguments));
        let said = text(&output.stderr);
        assert!(
            said.ends_with(": No such file or directory\n"),
            "{arguments:?} {said}"
        );
    }
}
