//! Copies to and from many hosts.

use std::fs;

use super::Site;
use crate::home::{assert_says, describe, fail, succeed, text};

#[test]
fn files_of_many_hosts_come_into_directories_of_their_own() {
    let site = Site::new(&["web1", "web2"]);
    for host in ["web1", "web2"] {
        fs::write(site.home.path(host).join("app.log"), host).unwrap();
    }
    let output = succeed(site.cp().args(["-H", "web[1-2]", ":app.log", "logs/{host}/"]));
    for host in ["web1", "web2"] {
        assert_eq!(
            fs::read_to_string(site.home.path("logs").join(host).join("app.log")).unwrap(),
            host
        );
    }
    assert!(
        text(&output.stderr).starts_with("2 hosts in ")
            && text(&output.stderr).contains("2 succeeded; 2 copied"),
        "{}",
        describe(&output)
    );
    succeed(site.cp().args(["-H", "web[1-2]", ":app.log", "{host}.log"]));
    assert_eq!(fs::read(site.home.path("web2.log")).unwrap(), b"web2");
}

#[test]
fn no_host_overwrites_what_came_from_another() {
    let site = Site::new(&[]);
    for (args, said) in [
        (
            &["-H", "web[1-2]", ":app.log", "logs/"][..],
            "trunkline: logs/ would get the files of all 2 hosts: put {host} in it, as in logs/{host}/\n",
        ),
        (
            &["-H", "web[1-2]", ":app.log", "-"],
            "trunkline: - would get the files of all 2 hosts: put {host} in it, as in logs/{host}/\n",
        ),
        (
            &["-H", "web1,WEB1", ":app.log", "logs/{host}"],
            "trunkline: logs/{host} is the same for two hosts called WEB1\n",
        ),
        (
            &["-H", "web1", ":a", ":b"],
            "trunkline: with -H either the sources or the target are on each of the hosts, not both\n",
        ),
        (
            &["-H", "web1", "a", "b"],
            "trunkline: with -H the target, or the sources, are paths on each of the hosts, written :PATH\n",
        ),
        (
            &["-H", "web1", ":a", "b", "c{host}"],
            "trunkline: with -H all sources are paths on each of the hosts, written :PATH\n",
        ),
    ] {
        let output = fail(255, site.cp().args(args));
        assert_eq!(text(&output.stderr), said);
    }
}

#[test]
fn hosts_that_fail_alike_share_a_row() {
    let site = Site::new(&["web1"]);
    fs::write(site.home.path("file"), "x").unwrap();
    let output = fail(1, site.cp().args(["-H", "web1,down[1-3]", "file", ":file"]));
    let words = text(&output.stderr);
    let lines: Vec<&str> = words.lines().collect();
    assert!(
        lines[0].starts_with("4 hosts in ") && lines[0].contains(": 1 succeeded, 3 failed; 1 copied, 1 B"),
        "{words}"
    );
    assert!(lines[1].trim_start().starts_with("HOSTS"), "{words}");
    assert!(
        lines[2].contains("down[1-3]") && lines[2].contains("refused"),
        "{words}"
    );
    assert_eq!(lines.len(), 3, "{words}");
    assert_eq!(fs::read(site.home.path("web1/file")).unwrap(), b"x");
}

#[test]
fn hosts_are_named_as_for_run() {
    let site = Site::new(&["web1", "web2"]);
    for host in ["web1", "web2"] {
        fs::write(site.home.path(host).join("app.log"), host).unwrap();
    }
    succeed(site.cp().args(["-H", "web*,!web2", ":app.log", "{host}.log"]));
    assert_eq!(fs::read(site.home.path("web1.log")).unwrap(), b"web1");
    assert!(!site.home.path("web2.log").exists());
    let output = fail(255, site.cp().args(["-H", "wbe*", ":app.log", "{host}.log"]));
    assert_says(&output, "wbe*");
}
