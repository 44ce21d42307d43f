//! Names that are skipped and deleted: the same as by rsync with the same patterns.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use super::{cp, remote};
use crate::home::{
    Home, assert_says, assert_status, describe, fail, finish, server, succeed, text, with_status,
};

const TREE: [&str; 16] = [
    "top.c",
    "top.o",
    ".hidden",
    "core",
    "src/a.c",
    "src/a.o",
    "src/core",
    "src/deep/b.c",
    "src/deep/b.o",
    "target/debug/x",
    "src/target/y",
    "doc/[1].txt",
    "doc/a1.txt",
    "doc/star*",
    "logs/2024/app.log",
    "logs/app.log",
];

fn plant(root: &Path) {
    for name in TREE {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
}

/// The paths of all that is in a directory.
fn see(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            found.insert(path.strip_prefix(root).unwrap().display().to_string());
            if path.is_dir() && !path.is_symlink() {
                directories.push(path);
            }
        }
    }
    found
}

const RULES: [&[&str]; 16] = [
    &["--exclude", "*.o"],
    &["--exclude", "target"],
    &["--exclude", "/target"],
    &["--exclude", "target/"],
    &["--exclude", "core/"],
    &["--exclude", "src/a.c"],
    &["--exclude", "deep/b.*"],
    &["--exclude", "/src/*/b.c"],
    &["--exclude", "src/**"],
    &["--exclude", "**/core"],
    &["--exclude", "logs/***"],
    &["--exclude", "[[].txt"],
    &["--exclude", "doc/\\[1].txt"],
    &["--exclude", "doc/star\\*"],
    &["--include", "*/", "--include", "*.c", "--exclude", "*"],
    &[
        "--include",
        "/src/core",
        "--exclude",
        "core",
        "--exclude",
        "?op.[!c]",
    ],
];

#[test]
fn the_same_patterns_leave_out_what_rsync_leaves_out() {
    let (server, home) = (server(), Home::new());
    let source = home.path("source");
    plant(&source);
    for (nth, rules) in RULES.iter().enumerate() {
        let [ours, back, rsyncs] = ["ours", "back", "rsyncs"].map(|name| home.path(&format!("{name}{nth}")));
        for directory in [&ours, &back, &rsyncs] {
            fs::create_dir(directory).unwrap();
        }
        let mut rsync = home.command("rsync");
        rsync
            .arg("-a")
            .args(*rules)
            .arg(format!("{}/", source.display()))
            .arg(&rsyncs);
        succeed(&mut rsync);
        // In both directions: a local tree and a server's are walked by different means.
        for (from, to) in [
            (source.join(".").display().to_string(), remote(&server, &ours)),
            (remote(&server, &source.join(".")), back.display().to_string()),
        ] {
            succeed(cp(&home, &server).arg("-a").args(*rules).args([from, to]));
        }
        assert_eq!(see(&ours), see(&rsyncs), "{rules:?}");
        assert_eq!(see(&back), see(&rsyncs), "{rules:?}");
    }
}

#[test]
fn rules_come_from_files_too_and_a_wrong_one_names_its_line() {
    let (server, home) = (server(), Home::new());
    let source = home.path("source");
    plant(&source);
    fs::write(home.path("rules"), "# what is built\n- *.o\n+ /src/\n- /*/\n").unwrap();
    let run = |target: &str| {
        finish(
            cp(&home, &server)
                .arg("-r")
                .arg("--filter-from")
                .args([home.path("rules"), source.clone()])
                .arg(remote(&server, &home.path(target))),
        )
    };
    assert_status(&run("target"), 0);
    let found: Vec<String> = see(&home.path("target")).into_iter().collect();
    let expected = [
        ".hidden",
        "core",
        "src",
        "src/a.c",
        "src/core",
        "src/deep",
        "src/deep/b.c",
        "src/target",
        "src/target/y",
        "top.c",
    ];
    assert_eq!(found, expected);
    fs::write(home.path("rules"), "- *.o\n*.c\n").unwrap();
    let output = with_status(255, run("again"));
    assert_says(&output, "rules: line 2: ");
    assert!(!home.path("again").exists());
}

/// A source, and a target that has more: what is protected by a pattern, what is not, a link to what is outside.
fn plant_both(home: &Home) {
    plant(&home.path("source"));
    for target in ["ours", "rsyncs"] {
        let target = home.path(target);
        plant(&target);
        for name in [
            "old",
            "gone/deep/x",
            "gone/keep.o",
            "src/old.c",
            "src/old.o",
            "bare/x",
        ] {
            fs::create_dir_all(target.join(name).parent().unwrap()).unwrap();
            fs::write(target.join(name), name).unwrap();
        }
        symlink(home.path("outside"), target.join("link")).unwrap();
        fs::remove_file(target.join("top.c")).unwrap();
    }
    fs::create_dir(home.path("outside")).unwrap();
    fs::write(home.path("outside/precious"), "precious").unwrap();
}

#[test]
fn delete_deletes_what_rsync_deletes_and_nothing_that_a_pattern_leaves_out() {
    for upload in [true, false] {
        let (server, home) = (server(), Home::new());
        plant_both(&home);
        let [source, ours, rsyncs] = ["source", "ours", "rsyncs"].map(|name| home.path(name));
        let mut rsync = home.command("rsync");
        rsync.args(["-a", "--delete", "--exclude", "*.o"]);
        succeed(rsync.arg(format!("{}/", source.display())).arg(&rsyncs));
        let inside = source.join(".");
        let ends = match upload {
            true => [inside.display().to_string(), remote(&server, &ours)],
            false => [remote(&server, &inside), ours.display().to_string()],
        };
        let run = |more: &[&str]| {
            let mut copy = cp(&home, &server);
            finish(
                copy.args(["-a", "--delete", "--exclude", "*.o"])
                    .args(more)
                    .args(&ends),
            )
        };
        let before = see(&ours);
        let dry = with_status(0, run(&["-n"]));
        assert_eq!(see(&ours), before, "a dry run deletes nothing");
        let output = with_status(0, run(&["-v"]));
        assert_eq!(see(&ours), see(&rsyncs), "upload: {upload}");
        assert!(ours.join("gone/keep.o").exists() && !ours.join("gone/deep").exists());
        assert_eq!(fs::read(home.path("outside/precious")).unwrap(), b"precious");
        let deleted = |output: &std::process::Output| -> BTreeSet<String> {
            let words = text(&output.stdout);
            words
                .lines()
                .filter_map(|line| line.strip_prefix("deleting ").or(line.strip_prefix("delete ")))
                .map(|path| path.trim_start().into())
                .collect()
        };
        assert_eq!(
            deleted(&dry),
            deleted(&output),
            "a dry run says what would be deleted"
        );
        assert_eq!(deleted(&output).len(), 7, "{}", describe(&output));
        assert_says(&dry, "7 would be deleted");
        assert_says(&output, "7 deleted");
    }
}

#[test]
fn nothing_is_deleted_unless_everything_was_copied() {
    let (server, home) = (server(), Home::new());
    let (source, target) = (home.path("source"), home.path("target"));
    for name in ["a/x", "b/y"] {
        for root in [&source, &target] {
            fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            fs::write(root.join(name), name).unwrap();
        }
    }
    fs::write(target.join("a/old"), "old").unwrap();
    let (here, there) = (
        |path: &Path| path.display().to_string(),
        |path: &Path| remote(&server, path),
    );
    let (all, absent) = (source.join("."), home.path("absent"));
    for ends in [
        vec![here(&all), here(&absent), there(&target)],
        vec![there(&all), there(&absent), here(&target)],
        vec![there(&absent), here(&target)],
    ] {
        let output = fail(1, cp(&home, &server).args(["-r", "--delete"]).args(ends));
        assert_says(
            &output,
            "nothing was deleted, because not everything could be copied",
        );
        assert!(target.join("a/old").exists());
    }
    fail(
        2,
        cp(&home, &server)
            .arg("--delete")
            .arg(&source)
            .arg(remote(&server, &target)),
    );
    // A directory that cannot be listed; root may list each.
    if !rustix::process::geteuid().is_root() {
        fs::remove_file(target.join("c")).unwrap();
        fs::set_permissions(source.join("a"), fs::Permissions::from_mode(0o000)).unwrap();
        let ends = [source.join(".").display().to_string(), remote(&server, &target)];
        let output = finish(cp(&home, &server).args(["-r", "--delete"]).args(ends));
        fs::set_permissions(source.join("a"), fs::Permissions::from_mode(0o700)).unwrap();
        assert_status(&output, 1);
        assert!(target.join("a/x").exists() && target.join("a/old").exists());
    }
}

#[test]
fn what_exists_is_left_out_and_missing_directories_are_created_when_asked() {
    let (server, home) = (server(), Home::new());
    let source = home.path("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("a"), "new").unwrap();
    fs::write(source.join("b"), "new").unwrap();
    fs::create_dir(source.join("inner")).unwrap();
    for (upload, target) in [
        (true, home.path("up/er/target")),
        (false, home.path("down/er/target")),
    ] {
        let ends = match upload {
            true => [source.join(".").display().to_string(), remote(&server, &target)],
            false => [remote(&server, &source.join(".")), target.display().to_string()],
        };
        let output = finish(cp(&home, &server).arg("-r").args(&ends));
        assert!(!output.status.success(), "{}", describe(&output));
        let said = text(&output.stderr);
        assert_eq!(said.matches("--mkdir creates").count(), 1, "{said}");
        assert_eq!(said.matches("No such file or directory").count(), 1, "{said}");
        succeed(cp(&home, &server).args(["-rn", "--mkdir"]).args(&ends));
        assert!(!target.exists());
        succeed(cp(&home, &server).args(["-r", "--mkdir"]).args(&ends));
        assert_eq!(fs::read(target.join("a")).unwrap(), b"new");
        fs::write(target.join("a"), "its own").unwrap();
        fs::remove_file(target.join("b")).unwrap();
        let output = succeed(cp(&home, &server).args(["-rv", "--ignore-existing"]).args(&ends));
        assert_eq!(fs::read(target.join("a")).unwrap(), b"its own");
        assert_eq!(fs::read(target.join("b")).unwrap(), b"new");
        assert_says(&output, "2 skipped");
    }
}

#[test]
fn lists_sizes_and_safe_links_choose_what_they_choose_for_rsync() {
    let (server, home) = (server(), Home::new());
    let source = home.path("source");
    plant(&source);
    symlink("../top.c", source.join("src/safe")).unwrap();
    symlink("../../secret", source.join("src/unsafe")).unwrap();
    symlink("/etc/passwd", source.join("absolute")).unwrap();
    fs::write(home.path("list"), "src/a.c\n./doc/[1].txt\n# none\nlogs\n").unwrap();
    let list = format!("--files-from={}", home.path("list").display());
    fs::write(home.path("all"), ".\n").unwrap();
    let all = format!("--files-from={}", home.path("all").display());
    let cases: [&[&str]; 9] = [
        &[&list],
        &["-r", &list],
        &["-r", &all],
        &["--exclude=*.o", "--delete"],
        &["--exclude=*.o", "--delete", "--delete-excluded"],
        &["--max-size", "6", "--delete"],
        &["--min-size", "9", "--delete"],
        &["--min-size=6", "--max-size=9"],
        &["--safe-links", "--delete"],
    ];
    for (nth, options) in cases.iter().enumerate() {
        for upload in [true, false] {
            let [ours, rsyncs] =
                ["ours", "rsyncs"].map(|whose| home.path(&format!("{whose}-{nth}-{upload}")));
            for target in [&ours, &rsyncs] {
                fs::create_dir_all(target.join("src")).unwrap();
                fs::write(target.join("src/a.c"), "what is there").unwrap();
                fs::write(target.join("extra"), "too much").unwrap();
                fs::create_dir(target.join("gone")).unwrap();
                for name in ["src/a.o", "gone/x.o"] {
                    fs::write(target.join(name), "left out").unwrap();
                }
            }
            let mut rsync = home.command("rsync");
            let rsync = rsync.arg("-a").args(*options);
            finish(rsync.arg(format!("{}/", source.display())).arg(&rsyncs));
            let inside = source.join(".");
            let ends = match upload {
                true => [inside.display().to_string(), remote(&server, &ours)],
                false => [remote(&server, &inside), ours.display().to_string()],
            };
            succeed(cp(&home, &server).arg("-a").args(*options).args(&ends));
            assert_eq!(see(&ours), see(&rsyncs), "{options:?}, upload: {upload}");
            let content = |target: &Path| fs::read(target.join("src/a.c")).unwrap();
            assert_eq!(content(&ours), content(&rsyncs), "{options:?}, upload: {upload}");
        }
    }
}

#[test]
fn what_a_list_names_and_the_source_lacks_is_an_error() {
    let (server, home) = (server(), Home::new());
    plant(&home.path("source"));
    fs::write(home.path("list"), "top.c\0no\nsuch\0").unwrap();
    let mut copy = cp(&home, &server);
    copy.args(["-a", "-0", "--files-from"]).arg(home.path("list"));
    let output = fail(
        1,
        copy.arg(home.path("source"))
            .arg(remote(&server, &home.path("target"))),
    );
    assert_says(&output, "such: no such file");
    assert_eq!(see(&home.path("target")), ["top.c".to_owned()].into());
}

#[test]
fn check_compares_and_changes_nothing() {
    let (server, home) = (server(), Home::new());
    let [source, target] = ["source", "target"].map(|name| home.path(name));
    plant(&source);
    plant(&target);
    let inside = source.join(".").display().to_string();
    let check = |more: &[&str]| {
        let mut check = cp(&home, &server);
        finish(
            check
                .arg("--check")
                .args(more)
                .arg(&inside)
                .arg(remote(&server, &target)),
        )
    };
    let output = with_status(0, check(&[]));
    assert_eq!(text(&output.stdout), "");
    fs::write(target.join("src/a.c"), "SRC/A.C").unwrap();
    fs::write(target.join("more"), "more").unwrap();
    fs::remove_file(target.join("core")).unwrap();
    let before = see(&target);
    let output = with_status(1, check(&[]));
    let lines = "new          core\nextra        more\ncontent      src/a.c\n";
    assert_eq!(text(&output.stdout), lines);
    assert_says(&output, "2 differ or are missing, 1 extra");
    assert_eq!(see(&target), before);
    assert_eq!(fs::read(target.join("src/a.c")).unwrap(), b"SRC/A.C");
    fs::write(target.join("core"), "core").unwrap();
    fs::remove_file(target.join("more")).unwrap();
    assert_status(&check(&["--size-only"]), 0);
}

#[test]
fn hosts_in_a_path_are_told_where_they_belong() {
    let (server, home) = (server(), Home::new());
    let output = fail(255, cp(&home, &server).args(["web[01-03]:/srv/x", "."]));
    let advice = "web[01-03] is more than one host: write -H 'web[01-03]' and :/srv/x";
    assert_says(&output, advice);
}

#[test]
fn pipes_and_sockets_in_a_tree_fail_nothing() {
    let (server, home) = (server(), Home::new());
    plant(&home.path("source"));
    let pipe = home.path("source/pipe");
    succeed(home.command("mkfifo").arg(&pipe));
    let _socket = std::os::unix::net::UnixListener::bind(home.path("source/socket")).unwrap();
    let ends = [
        home.path("source").display().to_string(),
        remote(&server, &home.path("target")),
    ];
    let output = succeed(cp(&home, &server).arg("-r").args(&ends));
    assert_eq!(
        text(&output.stderr).matches(": skipped").count(),
        2,
        "{}",
        describe(&output)
    );
    assert!(!home.path("target/pipe").exists() && home.path("target/top.c").exists());
}
