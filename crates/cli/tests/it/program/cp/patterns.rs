//! Copies of paths with patterns, with `~` or without anything, compared with scp.

use std::fs;
use std::process::Command;

use super::Site;
use crate::home::{assert_says, finish, succeed, text};

/// The names that a command has brought to a directory of its own, and whether all went well.
fn copy_names(site: &Site, mut command: Command, source: &str) -> (Vec<String>, bool) {
    let into = site.home.path("into");
    let _ = fs::remove_dir_all(&into);
    fs::create_dir(&into).unwrap();
    let output = finish(command.arg(source).arg(&into).current_dir(site.home.path("")));
    let mut names: Vec<String> = fs::read_dir(&into)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    (names, output.status.success())
}

#[test]
fn patterns_find_what_scp_finds() {
    let site = Site::new(&["web1"]);
    let place = site.home.path("web1");
    for directory in ["s1", "s2"] {
        fs::create_dir(place.join(directory)).unwrap();
        fs::write(place.join(directory).join(format!("f{directory}")), "").unwrap();
    }
    let files = [
        "*.gz",
        "a.gz",
        "b.gz",
        ".h.gz",
        "q?",
        "qa",
        "a1",
        "11",
        "a b",
        "y[2].txt",
        "back\\slash",
        "[",
        "~",
    ];
    for name in files {
        fs::write(place.join(name), name).unwrap();
    }
    for pattern in [
        "*.gz",
        "**.gz",
        ".*.gz",
        "q\\?",
        "q?",
        "[[:alpha:]]1",
        "[!a]1",
        "a\\ b",
        "a b",
        "y[2].txt",
        "s*/f*",
        "s?/fs1",
        "[",
        "./~",
        "nothing*",
        "nothing\\ there",
        "s1/nothing?",
    ] {
        let mut scp = site.home.command("scp");
        scp.arg("-qF").arg(site.home.path("config"));
        let source = format!("web1:{pattern}");
        let expected = copy_names(&site, scp, &source);
        assert_eq!(copy_names(&site, site.cp(), &source), expected, "{pattern}");
    }
    // On purpose: what has just this name is meant, where scp takes the other one alone.
    fs::write(place.join("y2.txt"), "other").unwrap();
    let exact = copy_names(&site, site.cp(), "web1:y[2].txt");
    assert_eq!(exact, (vec!["y[2].txt".to_owned()], true));
}

#[test]
fn a_tilde_is_the_users_home_at_both_ends() {
    let site = Site::new(&["web1"]);
    let place = site.home.path("web1");
    fs::create_dir(place.join("d")).unwrap();
    fs::write(site.home.path("f"), "f").unwrap();
    for (target, at) in [
        ("~/new", "new"),
        ("~", "f"),
        ("~/d/", "d/f"),
        ("~/d", "d/f"),
        ("~/made/x", "made/x"),
    ] {
        let _ = fs::remove_file(place.join(at));
        succeed(site.cp().args(["--mkdir", "f", &format!("web1:{target}")]));
        assert_eq!(fs::read(place.join(at)).unwrap(), b"f", "{target}");
    }
    succeed(site.cp().args(["web1:~/new", "back"]));
    assert_eq!(fs::read(site.home.path("back")).unwrap(), b"f");
    for arguments in [["f", "web1:~no-such-user/x"], ["web1:~no-such-user/x", "back"]] {
        let output = finish(site.cp().arg("--mkdir").args(arguments));
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains("no such user"), "{output:?}");
    }
    assert!(!place.join("~no-such-user").exists());
}

#[test]
fn an_empty_argument_is_no_path() {
    let site = Site::new(&["web1"]);
    fs::write(site.home.path("f"), "f").unwrap();
    for arguments in [["", "web1:there"], ["web1:", ""], ["f", ""]] {
        let output = finish(site.cp().arg("-r").args(arguments));
        assert!(!output.status.success());
        assert_says(&output, "an empty argument is no path");
    }
    assert!(!site.home.path("web1").join("there").exists());
}
