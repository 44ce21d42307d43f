//! A copy's treatment of a name's attributes and of replaced files: rsync's, in both directions.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use trunkline::transfer::{Backup, Comparison, CopyOptions, Location, ModeChange};
use trunkline::{Error, Host, Invalid};
use trunkline_testkit::{Sshd, noise};

use crate::site::{Site, site, through_relay};
use crate::transfer::{changes, copy_to_end, ends, here, mirror, recursive, rsync_would_change, run, there};

/// Which way a copy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
    Between,
}

const WAYS: [Way; 3] = [Way::Up, Way::Down, Way::Between];

impl Way {
    fn ends(self, [from, to]: [&Host; 2], source: &Path, target: &Path) -> (Location, Location) {
        let source = &source.join(".");
        match self {
            Self::Up => ends(to, true, source, target),
            Self::Down => ends(from, false, source, target),
            Self::Between => (there(from, source), there(to, target)),
        }
    }
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn set_old(path: &Path) {
    let old = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    std::fs::File::open(path).unwrap().set_modified(old).unwrap();
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

fn as_rsync(words: &[&str], source: &Path, target: &Path) {
    as_rsync_with(
        words,
        &[format!("{}/", source.display()), target.display().to_string()],
    );
}

fn as_rsync_with(words: &[&str], ends: &[String; 2]) {
    let mut rsync = std::process::Command::new("rsync");
    let ran = rsync.args(words).args(ends).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
}

/// Two servers.
struct Ends {
    sites: [Site; 2],
    _servers: [Sshd; 2],
}

impl Ends {
    async fn new() -> Self {
        let servers = [Sshd::start_default().unwrap(), Sshd::start_default().unwrap()];
        Self {
            sites: [
                Site::for_server(&servers[0]).await,
                Site::for_server(&servers[1]).await,
            ],
            _servers: servers,
        }
    }

    fn hosts(&self) -> [&Host; 2] {
        [&self.sites[0], &self.sites[1]]
    }
}

#[tokio::test]
async fn thousands_of_which_some_differ_in_length_and_some_in_time_do_not_wait_for_each_other() {
    let ends = Ends::new().await;
    let hosts = ends.hosts();
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("source");
    std::fs::create_dir(&source).unwrap();
    for n in 0..3000 {
        std::fs::write(source.join(n.to_string()), "content").unwrap();
    }
    for way in WAYS {
        let target = place.path().join(format!("{way:?}"));
        std::fs::create_dir(&target).unwrap();
        for n in 0..3000 {
            let (same, path) = (n % 2 == 0, target.join(n.to_string()));
            std::fs::write(&path, if same { "content" } else { "longer content" }).unwrap();
            set_old(&path);
        }
        let mut options = mirror();
        options.compare = Comparison::Content;
        let (from, to) = way.ends(hosts, &source, &target);
        tokio::time::timeout(Duration::from_secs(60), copy_to_end(&from, &to, &options))
            .await
            .expect("the copy hangs");
        assert_eq!(rsync_would_change(&source, &target), "", "{way:?}");
    }
}

#[tokio::test]
async fn permissions_are_changed_as_rsync_changes_them() {
    let ends = Ends::new().await;
    let hosts = ends.hosts();
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("source");
    std::fs::create_dir_all(source.join("d")).unwrap();
    for (name, permissions) in [("d/plain", 0o600), ("d/run", 0o700), ("d/bare", 0o000)] {
        std::fs::write(source.join(name), "x").unwrap();
        set_mode(&source.join(name), permissions);
    }
    std::fs::write(source.join("large"), noise(3_000_000, 1)).unwrap();
    for text in ["Dg+s,ug+rwX,o=rX", "D700,F644", "Fa-x", "F+t,go-rwx"] {
        let expected = place.path().join("rsync");
        as_rsync(&["-a", &format!("--chmod={text}")], &source, &expected);
        for way in WAYS {
            let target = place.path().join(format!("{way:?} {text}"));
            std::fs::create_dir(&target).unwrap();
            let mut options = mirror();
            options.chmod = ModeChange::read(text, 0o022).unwrap();
            let (from, to) = way.ends(hosts, &source, &target);
            copy_to_end(&from, &to, &options).await;
            for name in [".", "d", "d/plain", "d/run", "d/bare", "large"] {
                let (ours, theirs) = (mode(&target.join(name)), mode(&expected.join(name)));
                assert_eq!(
                    ours, theirs,
                    "{way:?} {text} {name}: {ours:o}, and rsync's {theirs:o}"
                );
            }
            assert_eq!(changes(&from, &to, &options).await, [], "{way:?} {text}");
        }
        std::fs::remove_dir_all(expected).unwrap();
    }
}

#[tokio::test]
async fn root_keeps_owners_and_what_is_set_for_them_and_nobody_else_tries() {
    let ends = Ends::new().await;
    let hosts = ends.hosts();
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("source");
    std::fs::create_dir_all(source.join("d")).unwrap();
    std::fs::write(source.join("d/small"), "x").unwrap();
    std::fs::write(source.join("d/large"), noise(3_000_000, 1)).unwrap();
    symlink("small", source.join("d/link")).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    let give = |name: &str, owner: u32, permissions: u32| {
        let path = source.join(name);
        if is_root {
            std::os::unix::fs::lchown(&path, Some(owner), Some(owner + 1)).unwrap();
        }
        if !path.is_symlink() {
            set_mode(&path, permissions);
        }
    };
    give("d/small", 12_345, 0o4755);
    give("d/large", 12_346, 0o640);
    give("d/link", 12_347, 0);
    give("d", 12_348, 0o2750);
    for way in WAYS {
        let target = place.path().join(format!("{way:?}"));
        std::fs::create_dir(&target).unwrap();
        let mut options = mirror();
        options.numeric_ids = true;
        let (from, to) = way.ends(hosts, &source, &target);
        if !is_root {
            let error = run(&from, &to, &options).await.0.unwrap_err().to_string();
            assert!(error.contains("only root can keep owners"), "{error}");
            assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0);
            continue;
        }
        copy_to_end(&from, &to, &options).await;
        assert_eq!(rsync_would_change(&source, &target), "", "{way:?}");
        for name in ["d/small", "d/link", "d"] {
            std::os::unix::fs::lchown(target.join(name), Some(1), Some(1)).unwrap();
        }
        let changed = changes(&from, &to, &options).await;
        let changed: Vec<_> = changed
            .iter()
            .map(|(path, why)| format!("{path} {why}"))
            .collect();
        // chown(2) took set-user-ID away.
        assert_eq!(
            changed,
            ["d owner", "d/link owner", "d/small mode,owner"],
            "{way:?}"
        );
        assert_eq!(rsync_would_change(&source, &target), "", "{way:?}");
    }
}

/// Shows a server's SFTP users and groups in which `games` has another number, or is missing.
fn other_accounts(place: &Path, numbers: Option<[u32; 2]>) -> String {
    let mounts = ["passwd", "group"].iter().enumerate().map(|(nth, file)| {
        let text = std::fs::read_to_string(format!("/etc/{file}")).unwrap();
        let others = text.lines().filter(|line| !line.starts_with("games:"));
        let mut lines: Vec<_> = others.map(str::to_owned).collect();
        lines.extend(numbers.map(|numbers| format!("games:x:{}:60:::", numbers[nth])));
        let other = place.join(format!("{file}-{}", numbers.is_some()));
        std::fs::write(&other, lines.join("\n") + "\n").unwrap();
        format!("mount --bind {} /etc/{file} && ", other.display())
    });
    mounts.collect()
}

/// Runs a command where those are the users and groups.
fn run_among(accounts: &str, place: &Path, name: &str, command: &str) -> String {
    let script = place.join(name);
    std::fs::write(&script, format!("#!/bin/sh\n{accounts}exec {command}\n")).unwrap();
    set_mode(&script, 0o755);
    format!("/usr/bin/env unshare -m {}", script.display())
}

/// As rsync -a --delete by root.
fn with_owners() -> CopyOptions {
    let mut options = mirror();
    options.owners = true;
    options
}

/// The owner and permissions of each name below a directory.
fn owners(root: &Path) -> Vec<String> {
    let shown = |name: &str| {
        let found = root.join(name).symlink_metadata().unwrap();
        format!("{name} {}:{} {:o}", found.uid(), found.gid(), found.mode())
    };
    ["", "d", "d/small", "d/large", "d/link", "d/unknown", "d/root"]
        .map(shown)
        .into()
}

#[tokio::test]
async fn root_keeps_owners_by_name_as_rsync_does_and_others_keep_none() {
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("source");
    std::fs::create_dir_all(source.join("d")).unwrap();
    for (name, size) in [("small", 1), ("large", 3_000_000), ("unknown", 2), ("root", 3)] {
        std::fs::write(source.join("d").join(name), noise(size, 1)).unwrap();
    }
    symlink("small", source.join("d/link")).unwrap();
    if !rustix::process::geteuid().is_root() {
        let ends = Ends::new().await;
        for way in WAYS {
            let target = place.path().join(format!("{way:?}"));
            std::fs::create_dir(&target).unwrap();
            let (from, to) = way.ends(ends.hosts(), &source, &target);
            let options = with_owners();
            copy_to_end(&from, &to, &options).await;
            assert_eq!(rsync_would_change(&source, &target), "", "{way:?}");
        }
        return;
    }
    let accounts = other_accounts(place.path(), Some([12_401, 12_402]));
    let without = other_accounts(place.path(), None);
    let there_it_is = run_among(
        &accounts,
        place.path(),
        "rsync",
        "sh -c 'shift; exec \"$@\"' sh \"$@\"",
    );
    let server = |accounts, name| {
        let sftp = run_among(accounts, place.path(), name, "/usr/lib/openssh/sftp-server");
        let subsystem = format!("Subsystem sftp {sftp}");
        Sshd::builder().config(&subsystem).start().unwrap()
    };
    let servers = [
        server(&accounts, "sftp"),
        server(&without, "bare-sftp"),
        Sshd::start_default().unwrap(),
    ];
    let other = Site::for_server(&servers[0]).await;
    // Its shell knows more accounts than its files, as with a directory service.
    let bare = Site::for_server(&servers[1]).await;
    let plain = Site::for_server(&servers[2]).await;
    let [other, bare, plain]: [&Host; 3] = [&other, &bare, &plain];
    let games = nix::unistd::User::from_name("games")
        .unwrap()
        .unwrap()
        .uid
        .as_raw();
    for (way, hosts, own) in [
        (Way::Up, [plain, other], games),
        (Way::Down, [other, plain], 12_401),
        (Way::Between, [plain, other], games),
        (Way::Between, [other, plain], 12_401),
        (Way::Between, [other, bare], 12_401),
    ] {
        let group = if own == 12_401 { 12_402 } else { 60 };
        let give = |name: &str, uid, gid| {
            std::os::unix::fs::lchown(source.join(name), Some(uid), Some(gid)).unwrap();
        };
        give("", own, 0);
        give("d", 0, group);
        give("d/small", own, group);
        give("d/large", own, 1);
        give("d/link", own, group);
        give("d/unknown", 54_321, 54_322);
        give("d/root", 0, 0);
        set_mode(&source.join("d/small"), 0o4755);
        set_mode(&source.join("d"), 0o2750);
        let at_other = own != games;
        let (ours, theirs) = (place.path().join("ours"), place.path().join("theirs"));
        std::fs::create_dir(&ours).unwrap();
        let (from, to) = way.ends(hosts, &source, &ours);
        let options = with_owners();
        copy_to_end(&from, &to, &options).await;
        let (there, here) = (
            format!("x:{}/", source.display()),
            format!("{}/", source.display()),
        );
        let words = match at_other {
            true => [there, theirs.display().to_string()],
            false => [here, format!("x:{}", theirs.display())],
        };
        as_rsync_with(&["-a", "-e", &there_it_is], &words);
        assert_eq!(owners(&ours), owners(&theirs), "{way:?}");
        let games_there = if at_other { games } else { 12_401 };
        assert_eq!(ours.join("d/small").metadata().unwrap().uid(), games_there);
        assert_eq!(changes(&from, &to, &options).await, [], "{way:?}");
        for made in [ours, theirs] {
            std::fs::remove_dir_all(made).unwrap();
        }
    }
}

fn backup(directory: Option<&str>, suffix: &str) -> Option<Backup> {
    Some(Backup {
        directory: directory.map(|path| path.as_bytes().to_vec().into()),
        suffix: suffix.as_bytes().to_vec().into(),
    })
}

/// The names below a directory with what is in the files, sorted.
fn contents(root: &Path) -> Vec<String> {
    fn list_below(root: &Path, directory: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            if path.is_symlink() {
                found.push(format!(
                    "{name} -> {}",
                    std::fs::read_link(&path).unwrap().display()
                ));
            } else if path.is_dir() {
                list_below(root, &path, found);
            } else {
                let content = std::fs::read(&path).unwrap();
                let begin = content.iter().take(8).map(|byte| char::from(*byte));
                found.push(format!("{name} {}", begin.collect::<String>()));
            }
        }
    }
    let mut found = Vec::new();
    list_below(root, root, &mut found);
    found.sort();
    found
}

#[tokio::test]
async fn what_is_replaced_or_deleted_stays_under_another_name_as_rsyncs() {
    let ends = Ends::new().await;
    let hosts = ends.hosts();
    let place = tempfile::tempdir().unwrap();
    let large = |letter: &str| letter.repeat(3_000_000);
    let plant = |root: &Path, version: &str| {
        std::fs::create_dir_all(root.join("d")).unwrap();
        std::fs::write(root.join("d/small"), version).unwrap();
        std::fs::write(root.join("d/large"), large(version)).unwrap();
        std::fs::write(root.join("same"), "same").unwrap();
        symlink(version, root.join("link")).unwrap();
        set_old(&root.join("same"));
        if version == "old" {
            std::fs::create_dir(root.join("gone")).unwrap();
            std::fs::write(root.join("gone/f"), "gone").unwrap();
            std::fs::write(root.join("extra"), "extra").unwrap();
            // Its other name keeps what it had.
            std::fs::hard_link(root.join("d/small"), place.path().join("other name")).unwrap();
        }
    };
    let source = place.path().join("source");
    plant(&source, "newer");
    for (directory, suffix) in [
        (None, "~"),
        (None, ".bak"),
        (Some("old/1"), ""),
        (Some("../kept"), ".o"),
    ] {
        let mut expected = Vec::new();
        for way in [None, Some(Way::Up), Some(Way::Down), Some(Way::Between)] {
            let target = place.path().join("target");
            plant(&target, "old");
            match way {
                None => {
                    let mut words = vec!["-ab", "--delete"];
                    let suffix = format!("--suffix={suffix}");
                    let kept = directory.map(|directory| format!("--backup-dir={directory}"));
                    words.push(&suffix);
                    words.extend(kept.as_deref());
                    // As ours does by itself.
                    words.extend(directory.map(|_| "--filter=P /old"));
                    as_rsync(&words, &source, &target);
                }
                Some(way) => {
                    let mut options = mirror();
                    options.backup = backup(directory, suffix);
                    let (from, to) = way.ends(hosts, &source, &target);
                    // A second time nothing is new, and backups are not deleted.
                    for _ in 0..2 {
                        let (ended, failures) = run(&from, &to, &options).await;
                        ended.unwrap();
                        assert_eq!(failures, [""; 0], "{way:?}");
                    }
                }
            }
            let kept = place.path().join("kept");
            std::fs::create_dir_all(&kept).unwrap();
            let found = [contents(&target), contents(&kept)];
            if way.is_none() {
                expected = found.to_vec();
            }
            assert_eq!(found.to_vec(), expected, "{way:?} {directory:?} {suffix}");
            assert_eq!(std::fs::read(place.path().join("other name")).unwrap(), b"old");
            std::fs::remove_file(place.path().join("other name")).unwrap();
            std::fs::remove_dir_all(&target).unwrap();
            std::fs::remove_dir_all(&kept).unwrap();
        }
    }
}

#[tokio::test]
async fn a_mirror_replaces_files_by_directories_and_directories_by_files() {
    let ends = Ends::new().await;
    let hosts = ends.hosts();
    let place = tempfile::tempdir().unwrap();
    let (source, outside) = (place.path().join("source"), place.path().join("outside"));
    for directory in ["was a file", "was a link/sub", "was a link"] {
        std::fs::create_dir_all(source.join(directory)).unwrap();
        std::fs::write(source.join(directory).join("f"), "x").unwrap();
    }
    std::fs::write(source.join("file"), "x").unwrap();
    std::fs::write(source.join("large"), noise(3_000_000, 1)).unwrap();
    symlink("file", source.join("link")).unwrap();
    std::fs::create_dir_all(outside.join("sub")).unwrap();
    for name in ["f", "sub/f"] {
        std::fs::write(outside.join(name), "stays").unwrap();
    }
    for way in WAYS {
        let target = place.path().join(format!("{way:?}"));
        for directory in ["file/deep", "large", "link/deep"] {
            std::fs::create_dir_all(target.join(directory)).unwrap();
            std::fs::write(target.join(directory).join("f"), "x").unwrap();
        }
        std::fs::write(target.join("was a file"), "x").unwrap();
        symlink(&outside, target.join("was a link")).unwrap();
        let (from, to) = way.ends(hosts, &source, &target);
        let without = {
            let mut options = mirror();
            options.delete = false;
            run(&from, &to, &options).await.1
        };
        assert!(
            without.len() >= 5,
            "{way:?}: without --delete each is named: {without:?}"
        );
        let before = contents(&target);
        let mut dry = mirror();
        dry.dry_run = true;
        let told = changes(&from, &to, &dry).await;
        assert!(
            told.iter().any(|(path, why)| path == "file" && why == "kind"),
            "{told:?}"
        );
        assert_eq!(contents(&target), before);
        copy_to_end(&from, &to, &mirror()).await;
        assert_eq!(rsync_would_change(&source, &target), "", "{way:?}");
        assert_eq!(contents(&outside), ["f stays", "sub/f stays"]);
        assert_eq!(changes(&from, &to, &mirror()).await, [], "{way:?}");
    }
}

#[tokio::test]
async fn a_link_among_backups_is_not_followed() {
    let sshd = Sshd::start_default().unwrap();
    let host = Site::for_server(&sshd).await;
    for upload in [true, false] {
        let place = tempfile::tempdir().unwrap();
        let [source, target, outside] = ["source", "target", "outside"].map(|name| place.path().join(name));
        std::fs::create_dir_all(source.join("d")).unwrap();
        std::fs::create_dir_all(target.join("d")).unwrap();
        std::fs::create_dir_all(target.join("old")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(source.join("d/f"), "newer").unwrap();
        std::fs::write(target.join("d/f"), "old").unwrap();
        symlink(&outside, target.join("old/d")).unwrap();
        let mut options = recursive();
        options.backup = backup(Some("old"), "");
        let (from, to) = ends(&host, upload, &source.join("."), &target);
        let (_, failures) = run(&from, &to, &options).await;
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
        assert_eq!(
            std::fs::read(target.join("d/f")).unwrap(),
            b"old",
            "what has no backup stays"
        );
    }
}

#[tokio::test]
async fn names_of_one_file_are_names_of_one_file() {
    let (_sshd, place, host) = site().await;
    let [source, target] = ["source", "target"].map(|name| place.path().join(name));
    std::fs::create_dir_all(source.join("d")).unwrap();
    std::fs::create_dir_all(&target).unwrap();
    std::fs::write(source.join("one"), "content").unwrap();
    std::fs::write(source.join("d/large"), noise(3_000_000, 1)).unwrap();
    for (file, name) in [("one", "two"), ("one", "d/three"), ("d/large", "large")] {
        std::fs::hard_link(source.join(file), source.join(name)).unwrap();
    }
    let (from, to) = ends(&host, true, &source.join("."), &target);
    let mut options = mirror();
    options.hard_links = true;
    let inode = |name: &str| target.join(name).metadata().unwrap().ino();
    let check = || {
        let [one, two, three] = ["one", "two", "d/three"].map(inode);
        assert_eq!((one, inode("d/large")), (two, inode("large")));
        assert_eq!(one, three);
        assert_eq!(contents(&target).len(), 5, "{:?}", contents(&target));
        assert_eq!(rsync_would_change(&source, &target), "");
    };
    let first = copy_to_end(&from, &to, &options).await;
    assert!(
        first.bytes < 4_000_000,
        "the content of each goes once: {first:?}"
    );
    check();
    assert_eq!(changes(&from, &to, &options).await, []);
    check();
    // A file of its own, alike, becomes a name of the others' again, or they of it: the first that is listed is the file.
    std::fs::remove_file(target.join("two")).unwrap();
    std::fs::copy(target.join("one"), target.join("two")).unwrap();
    std::fs::write(source.join("d/large"), noise(3_000_001, 2)).unwrap();
    let changed = changes(&from, &to, &options).await;
    assert!(
        changed
            .iter()
            .any(|(path, why)| ["one", "two", "d/three"].contains(&path.as_str()) && why == "link"),
        "{changed:?}"
    );
    check();
    assert_eq!(changes(&from, &to, &options).await, []);
    // Directories are in the way of all of them.
    for name in ["one", "two", "d/three"] {
        std::fs::remove_file(target.join(name)).unwrap();
        std::fs::create_dir_all(target.join(name).join("below")).unwrap();
        std::fs::write(target.join(name).join("below/file"), "extraneous").unwrap();
    }
    let changed = changes(&from, &to, &options).await;
    let replaced = changed.iter().filter(|(_, why)| why == "kind").count();
    assert_eq!(replaced, 3, "{changed:?}");
    check();
    assert_eq!(changes(&from, &to, &options).await, []);
}

#[tokio::test]
async fn hard_links_are_refused_where_nothing_tells_them() {
    let (_sshd, place, host) = site().await;
    let [source, target] = ["source", "target"].map(|name| place.path().join(name));
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("f"), "x").unwrap();
    let mut options = recursive();
    options.hard_links = true;
    for (from, to) in [
        (there(&host, &source), here(&target)),
        (there(&host, &source), there(&host, &target)),
    ] {
        let error = run(&from, &to, &options).await.0.unwrap_err();
        assert!(
            matches!(error, Error::Invalid(Invalid::HardLinksOfServer)),
            "{error}"
        );
        assert!(!target.exists());
    }
}

/// Exchanges names in a directory as fast as it can, until it is told to end: what is being written goes away and a link to
/// the victim takes its place, or it comes back.
fn attack(directory: &Path, victim: &Path, ends: &AtomicBool, exchanged: &AtomicU64) {
    while !ends.load(Ordering::Relaxed) {
        let Ok(entries) = std::fs::read_dir(directory) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let is_part = path.extension().is_some_and(|end| end == "part") && !path.is_symlink();
            let away = directory.join("away");
            if !is_part || std::fs::rename(&path, &away).is_err() {
                continue;
            }
            if symlink(victim, &path).is_ok() {
                exchanged.fetch_add(1, Ordering::Relaxed);
            }
            let _ = std::fs::hard_link(victim, directory.join("again"));
            let _ = std::fs::rename(directory.join("again"), &path);
            let _ = std::fs::rename(&away, &path);
        }
    }
}

#[tokio::test]
async fn in_a_shared_directory_nobody_can_turn_a_copy_onto_another_file() {
    let (_sshd, place, relay, host) = through_relay().await;
    // So that several sessions are there before the first one has written everything.
    relay.set_rtt(Duration::from_millis(5));
    let (source, shared, victim) = ("source", "shared", "victim");
    let [source, shared, victim] = [source, shared, victim].map(|name| place.path().join(name));
    let whole = noise(12_000_000, 3);
    std::fs::write(&source, &whole).unwrap();
    std::fs::create_dir(&shared).unwrap();
    set_mode(&shared, 0o2777);
    let mine = noise(12_000_000, 4);
    std::fs::write(&victim, &mine).unwrap();
    let ends = Arc::new(AtomicBool::new(false));
    let exchanged: Arc<AtomicU64> = Arc::default();
    let attacker = {
        let (shared, victim, ends, exchanged) = (
            shared.clone(),
            victim.clone(),
            ends.clone(),
            Arc::clone(&exchanged),
        );
        std::thread::spawn(move || attack(&shared, &victim, &ends, &exchanged))
    };
    let mut options = CopyOptions::default();
    options.streams = Some(4);
    let mut whole_ones = 0;
    for nth in 0..12 {
        let target = shared.join(format!("f{nth}"));
        let (ended, failures) = run(&here(&source), &there(&host, &target), &options).await;
        ended.unwrap();
        assert!(
            std::fs::read(&victim).unwrap() == mine,
            "{nth}: the victim was written to"
        );
        // Whoever can rename there can rename what is whole, too.
        whole_ones += usize::from(failures.is_empty());
    }
    ends.store(true, Ordering::Relaxed);
    attacker.join().unwrap();
    assert!(
        exchanged.load(Ordering::Relaxed) > 0,
        "nothing was exchanged, and {whole_ones} were whole"
    );
}
