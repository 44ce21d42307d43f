//! The attributes and replaced files that a copy keeps.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::{Duration, SystemTime};

use super::{cp, remote};
use crate::home::{Home, finish, server, succeed, text};

#[test]
fn what_a_copy_replaces_stays_where_the_user_wants_it() {
    let (server, home) = (server(), Home::new());
    let (source, target) = (home.path("source"), home.path("target"));
    for (words, kept) in [
        (&["--backup"][..], "target/f~"),
        (&["--backup", "--suffix", ".old"], "target/f.old"),
        (&["--backup-dir", "../kept"], "kept/f"),
        (&["--backup-dir", "kept", "--suffix", ".1"], "target/kept/f.1"),
    ] {
        for up in [true, false] {
            for directory in [&source, &target] {
                fs::create_dir(directory).unwrap();
            }
            fs::write(source.join("f"), "newer").unwrap();
            fs::write(target.join("f"), "old").unwrap();
            let ends = match up {
                true => [source.join(".").display().to_string(), remote(&server, &target)],
                false => [remote(&server, &source.join(".")), target.display().to_string()],
            };
            succeed(
                cp(&home, &server)
                    .args(["-a", "--delete"])
                    .args(words)
                    .args(&ends),
            );
            assert_eq!(fs::read(target.join("f")).unwrap(), b"newer", "{words:?} {up}");
            assert_eq!(fs::read(home.path(kept)).unwrap(), b"old", "{words:?} {up}");
            for directory in [&source, &target] {
                fs::remove_dir_all(directory).unwrap();
            }
            let _ = fs::remove_dir_all(home.path("kept"));
        }
    }
}

#[test]
fn a_source_with_a_slash_stands_for_what_is_in_it_where_the_copy_is_a_mirror() {
    let (server, home) = (server(), Home::new());
    fs::create_dir_all(home.path("tree/below")).unwrap();
    fs::write(home.path("tree/below/file"), "content").unwrap();
    let local = |name: &str| format!("{}/{name}", home.path("").display());
    let there = |name: &str| remote(&server, &home.path(name));
    for (option, source, target, made, nested) in [
        ("-a", local("tree/"), there("up"), "up", "up/tree"),
        ("-a", there("tree/"), local("down"), "down", "down/tree"),
        ("-r", local("tree/"), there("as-scp"), "as-scp", "none"),
    ] {
        for _ in 0..2 {
            succeed(cp(&home, &server).args([option, &source, &target]));
            assert_eq!(
                fs::read(home.path(&format!("{made}/below/file"))).unwrap(),
                b"content"
            );
        }
        assert!(!home.path(nested).exists(), "{option} {source} {target}");
    }
    assert!(home.path("as-scp/tree/below/file").exists());
    fs::write(home.path("up/extra"), "").unwrap();
    let mirrored = ["-a", "--delete", &local("tree/"), &there("up")];
    succeed(cp(&home, &server).args(mirrored));
    assert!(!home.path("up/extra").exists());
}

#[test]
fn names_of_one_file_and_changed_permissions_arrive() {
    let (server, home) = (server(), Home::new());
    let (source, target) = (home.path("source"), home.path("target"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("one"), "x").unwrap();
    fs::hard_link(source.join("one"), source.join("two")).unwrap();
    succeed(
        cp(&home, &server)
            .args(["-a", "--hard-links", "--chmod", "F640,D750"])
            .arg(&source)
            .arg(remote(&server, &target)),
    );
    let [one, two] = ["one", "two"].map(|name| fs::metadata(target.join(name)).unwrap());
    assert_eq!(one.ino(), two.ino());
    assert_eq!(one.permissions().mode() & 0o777, 0o640);
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o750);
}

#[test]
fn what_cannot_be_kept_is_refused_before_anything_is_copied() {
    let (server, home) = (server(), Home::new());
    let (source, target) = (home.path("source"), home.path("target"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("f"), "x").unwrap();
    let up = [source.display().to_string(), remote(&server, &target)];
    let down = [remote(&server, &source), target.display().to_string()];
    for (words, ends, said) in [
        (&["-a", "--hard-links"][..], &down, "copy without --hard-links"),
        (
            &["-r", "--chmod", "z+x"],
            &up,
            "\"z+x\" is not a change of permissions",
        ),
        (&["-r", "--suffix", ".o"], &up, "--suffix is for --backup"),
        (
            &["-r", "--backup", "--suffix", ""],
            &up,
            "would have the name of the file",
        ),
        (&["-r", "--numeric-ids"], &up, "--archive"),
        (&["--hard-links"], &up, "required"),
    ] {
        let output = finish(cp(&home, &server).args(words).args(ends));
        assert!(!output.status.success(), "{words:?}");
        let words = text(&output.stderr);
        assert!(words.contains(said), "{words}");
        assert!(!target.exists(), "{words}");
    }
}

#[test]
fn a_target_from_the_future_is_told_of_once_where_times_decide() {
    let (server, home) = (server(), Home::new());
    let (source, target) = (home.path("source"), home.path("target"));
    let later = SystemTime::now() + Duration::from_secs(3 * 3600 - 60);
    for directory in [&source, &target] {
        fs::create_dir(directory).unwrap();
        for name in ["a", "b"] {
            fs::write(directory.join(name), directory.as_os_str().as_encoded_bytes()).unwrap();
        }
    }
    for name in ["a", "b"] {
        let file = fs::File::open(target.join(name)).unwrap();
        file.set_modified(later).unwrap();
    }
    let inside = source.join(".");
    for ends in [
        [inside.display().to_string(), remote(&server, &target)],
        [remote(&server, &inside), target.display().to_string()],
    ] {
        for (words, told) in [(&["-r", "-u"][..], 1), (&["-a", "-n"], 0)] {
            let output = succeed(cp(&home, &server).args(words).args(&ends));
            let said = text(&output.stderr);
            assert_eq!(said.matches("dated 2 h in the future").count(), told, "{said}");
        }
    }
}

#[test]
fn root_of_a_namespace_that_lacks_a_files_owner_copies_it_all_the_same() {
    let (server, home) = (server(), Home::new());
    let (source, target) = (home.path("source"), home.path("target"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("f"), "x").unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(source.join("f"), Some(5), Some(60)).unwrap();
    }
    let script = format!(
        "unshare -r \"$T\" --no-daemon cp -a -F \"$F\" {}/ {}",
        remote(&server, &source),
        target.display()
    );
    succeed(&mut home.shell(&server, &script));
    assert_eq!(fs::read(target.join("f")).unwrap(), b"x");
}
