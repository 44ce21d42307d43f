//! Copies of files and trees against stock servers.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use trunkline::sftp::Sftp;
use trunkline::transfer::{
    Comparison, CopyEvent, CopyOptions, FilterRule, Location, Progress, Snapshot, Waiting, copy,
};
use trunkline::tune::{self, Choice};
use trunkline::{Command, Error, Host, Interaction, Settings};
use trunkline_testkit::{Dropbear, Relay, Sshd, noise};

use crate::site::{Relayed, Site, engine, engine_with, host_with, site, site_with, through_relay};

pub(crate) fn there(host: &Host, path: &Path) -> Location {
    Location::Host(host.clone(), Bytes::copy_from_slice(path.as_os_str().as_bytes()))
}

/// The source and the target of a copy to the server, or from it.
pub(crate) fn ends(host: &Host, upload: bool, source: &Path, target: &Path) -> (Location, Location) {
    if upload {
        (here(source), there(host, target))
    } else {
        (there(host, source), here(target))
    }
}

pub(crate) fn here(path: &Path) -> Location {
    Location::Local(path.to_owned())
}

pub(crate) fn recursive() -> CopyOptions {
    let mut options = CopyOptions::default();
    options.recursive = true;
    options.preserve = true;
    options
}

fn left_out(patterns: &[&str]) -> Vec<FilterRule> {
    let rules = patterns.iter().map(|pattern| FilterRule {
        include: false,
        pattern: pattern.as_bytes().into(),
    });
    rules.collect()
}

type Failures = Arc<Mutex<Vec<String>>>;

pub(crate) async fn run(
    from: &Location,
    to: &Location,
    options: &CopyOptions,
) -> (Result<Snapshot, Error>, Vec<String>) {
    let failures = Failures::default();
    let told = failures.clone();
    let progress = Arc::new(Progress::watched(move |event| {
        if let CopyEvent::Failed { message, .. } = event {
            told.lock().unwrap().push(message);
        }
    }));
    let result = copy(std::slice::from_ref(from), to, options, &progress).await;
    let mut failures = std::mem::take(&mut *failures.lock().unwrap());
    failures.sort();
    (result, failures)
}

pub(crate) async fn copy_to_end(from: &Location, to: &Location, options: &CopyOptions) -> Snapshot {
    let (result, failures) = run(from, to, options).await;
    assert_eq!(failures, [""; 0]);
    let snapshot = result.unwrap();
    assert!(snapshot.counted);
    assert_eq!(
        snapshot.files + snapshot.adjusted + snapshot.skipped,
        snapshot.total_files
    );
    snapshot
}

/// Waits until so many bytes of a copy have arrived.
async fn until_copied(progress: &Progress, bytes: u64) {
    while progress.snapshot().bytes < bytes {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// As rsync -a --delete.
pub(crate) fn mirror() -> CopyOptions {
    let mut options = recursive();
    options.compare = Comparison::SizeAndTime;
    options.delete = true;
    options
}

/// The changes by which the real rsync would make `target` a mirror of `source`; without the pipes and sockets that it would make.
pub(crate) fn rsync_would_change(source: &Path, target: &Path) -> String {
    let mut content = source.as_os_str().to_owned();
    content.push("/");
    let ran = std::process::Command::new("rsync")
        .args(["-ani", "--no-D", "--delete"])
        .args([&content, target.as_os_str()])
        .stderr(std::process::Stdio::null())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let lines = String::from_utf8_lossy(&ran.stdout);
    let changes = lines.lines().filter(|line| !line.starts_with("skipping "));
    changes.map(|line| format!("{line}\n")).collect()
}

/// A tree of everything that a copy has to bear.
pub(crate) fn plant(root: &Path) {
    std::fs::create_dir_all(root.join("deep/er/still")).unwrap();
    std::fs::create_dir(root.join("empty")).unwrap();
    std::fs::write(root.join("nothing"), b"").unwrap();
    std::fs::write(root.join("deep/with space\nand line"), noise(5, 1)).unwrap();
    std::fs::write(root.join(OsStr::from_bytes(b"deep/\xff\xfe")), noise(70_000, 2)).unwrap();
    std::fs::write(root.join("deep/er/large"), noise(9_000_001, 3)).unwrap();
    std::fs::write(root.join("deep/er/still/-rf *"), noise(300_000, 4)).unwrap();
    for n in 0..150 {
        std::fs::write(root.join(format!("deep/small-{n}")), noise(n * 37, n as u64)).unwrap();
    }
    symlink("/nowhere/at all", root.join("dangling")).unwrap();
    symlink("deep", root.join("to a directory")).unwrap();
    let sparse = std::fs::File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"begin", 0).unwrap();
    sparse.write_all_at(b"middle", 6_000_000).unwrap();
    sparse.set_len(20_000_000).unwrap();
    std::fs::set_permissions(root.join("deep/small-7"), std::fs::Permissions::from_mode(0o640)).unwrap();
    std::fs::set_permissions(root.join("deep/small-8"), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(root.join("deep/er"), std::fs::Permissions::from_mode(0o750)).unwrap();
    let old = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let file = std::fs::File::open(root.join("deep/small-9")).unwrap();
    file.set_modified(old).unwrap();
    std::fs::File::open(root.join("deep/er/still"))
        .unwrap()
        .set_modified(old)
        .unwrap();
}

#[derive(Debug, PartialEq, Eq)]
struct Seen {
    mode: u32,
    /// Of files and directories: links have no times in version 3.
    modified: Option<i64>,
    content: Vec<u8>,
}

fn see(root: &Path) -> BTreeMap<PathBuf, Seen> {
    fn add_below(root: &Path, directory: &Path, seen: &mut BTreeMap<PathBuf, Seen>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let found = path.symlink_metadata().unwrap();
            let content = if found.is_file() {
                std::fs::read(&path).unwrap()
            } else if found.is_symlink() {
                std::fs::read_link(&path)
                    .unwrap()
                    .into_os_string()
                    .into_encoded_bytes()
            } else {
                add_below(root, &path, seen);
                Vec::new()
            };
            let entry = Seen {
                mode: found.mode(),
                modified: (!found.is_symlink()).then_some(found.mtime()),
                content,
            };
            seen.insert(path.strip_prefix(root).unwrap().to_owned(), entry);
        }
    }
    let mut seen = BTreeMap::new();
    add_below(root, root, &mut seen);
    seen
}

/// Names first: a tree's contents are too much to print.
fn assert_same(left: &Path, right: &Path) {
    let (left, right) = (see(left), see(right));
    let names = |tree: &BTreeMap<PathBuf, Seen>| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&left), names(&right));
    for (path, seen) in &left {
        let other = &right[path];
        assert!(seen.content == other.content, "{path:?} has another content");
        assert_eq!(
            (seen.mode, seen.modified),
            (other.mode, other.modified),
            "{path:?}"
        );
    }
}

#[tokio::test]
async fn a_tree_comes_and_goes_as_it_is() {
    let (_sshd, place, host) = site().await;
    let [source, down, up] = ["source", "down", "up"].map(|name| place.path().join(name));
    plant(&source);
    let snapshot = copy_to_end(&there(&host, &source), &here(&down), &recursive()).await;
    assert_same(&source, &down);
    assert_eq!(snapshot.bytes, snapshot.total_bytes);
    copy_to_end(&here(&source), &there(&host, &up), &recursive()).await;
    assert_same(&source, &up);
    let blocks = |directory: &Path| directory.join("sparse").metadata().unwrap().blocks();
    // Zeros that lie across two packets are written.
    assert!(blocks(&down) < 20_000, "holes stay holes");
    assert!(blocks(&up) < 4000, "holes stay holes");
    // Into a directory that is there a source goes by its name.
    copy_to_end(&there(&host, &source), &here(&down), &recursive()).await;
    assert_same(&source, &down.join("source"));
}

#[tokio::test]
async fn a_tree_goes_from_server_to_server_through_this_machine() {
    let (one, two) = (Sshd::start_default().unwrap(), Sshd::start_default().unwrap());
    let place = tempfile::tempdir().unwrap();
    let [source, target] = ["source", "target"].map(|name| place.path().join(name));
    plant(&source);
    let (from, to) = (Site::for_server(&one).await, Site::for_server(&two).await);
    copy_to_end(&there(&from, &source), &there(&to, &target), &recursive()).await;
    assert_same(&source, &target);
}

#[tokio::test]
async fn dropbear_is_a_server_too() {
    let (dropbear, place) = (Dropbear::start_default().unwrap(), tempfile::tempdir().unwrap());
    let host = Site::open(&dropbear.ssh_config(), dropbear.alias()).await;
    let [source, down, up] = ["source", "down", "up"].map(|name| place.path().join(name));
    plant(&source);
    copy_to_end(&there(&host, &source), &here(&down), &recursive()).await;
    copy_to_end(&here(&source), &there(&host, &up), &recursive()).await;
    assert_same(&source, &down);
    assert_same(&source, &up);
}

#[tokio::test]
async fn several_sessions_share_a_file_and_bring_it_whole() {
    let (_sshd, place, host) = site().await;
    let [source, down, up] = ["source", "down", "up"].map(|name| place.path().join(name));
    std::fs::write(&source, noise(60_000_000, 5)).unwrap();
    let mut options = CopyOptions::default();
    options.streams = Some(4);
    // Slow enough for the others to open meanwhile.
    options.limit = Some(40_000_000);
    let snapshot = copy_to_end(&there(&host, &source), &here(&down), &options).await;
    assert!(std::fs::read(&source).unwrap() == std::fs::read(&down).unwrap());
    assert_eq!(snapshot.streams, 4);
    let snapshot = copy_to_end(&here(&source), &there(&host, &up), &options).await;
    assert!(std::fs::read(&source).unwrap() == std::fs::read(&up).unwrap());
    assert_eq!(snapshot.streams, 4);
}

#[tokio::test]
async fn a_copy_of_small_files_that_is_given_up_leaves_no_half_of_one() {
    let (_sshd, place, host) = site().await;
    let [source, up] = ["source", "up"].map(|name| place.path().join(name));
    std::fs::create_dir(&source).unwrap();
    for n in 0..400 {
        std::fs::write(source.join(n.to_string()), noise(4096, n)).unwrap();
    }
    let mut options = recursive();
    // Most of them are open when the first have been written.
    options.limit = Some(200_000);
    let progress = Arc::new(Progress::default());
    let (from, to) = (here(&source), there(&host, &up));
    let some = async {
        while progress.snapshot().files < 40 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        done = copy(std::slice::from_ref(&from), &to, &options, &progress) => panic!("{done:?}"),
        () = some => {}
    }
    let names = || -> Vec<String> {
        let found = std::fs::read_dir(&up).unwrap();
        found
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    };
    let tidied = async {
        while names().iter().any(|name| name.ends_with(".part")) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let tidied = tokio::time::timeout(Duration::from_secs(60), tidied).await;
    assert!(tidied.is_ok(), "{:?}", names());
    assert!((30..400).contains(&names().len()), "{}", names().len());
    for name in names() {
        assert_eq!(std::fs::metadata(up.join(&name)).unwrap().len(), 4096, "{name}");
    }
}

#[tokio::test]
async fn a_long_way_gets_more_sessions_than_a_short_one() {
    let (_sshd, place, relay, far) = through_relay().await;
    relay.set_rtt(Duration::from_millis(50));
    let [source, up] = ["source", "up"].map(|name| place.path().join(name));
    std::fs::write(&source, noise(60_000_000, 5)).unwrap();
    let snapshot = copy_to_end(&here(&source), &there(&far, &up), &CopyOptions::default()).await;
    assert!(snapshot.streams >= 4, "{snapshot:?}");
    assert!(std::fs::read(&source).unwrap() == std::fs::read(&up).unwrap());
}

#[tokio::test]
async fn files_far_away_do_not_wait_for_each_other() {
    let (_sshd, place, relay, far) = through_relay().await;
    let [source, up, down] = ["source", "up", "down"].map(|name| place.path().join(name));
    std::fs::create_dir(&source).unwrap();
    for number in 0..40 {
        std::fs::write(source.join(number.to_string()), noise(2_200_000, number)).unwrap();
    }
    for number in 0..2000 {
        std::fs::write(source.join(format!("empty-{number}")), "").unwrap();
    }
    relay.set_rtt(Duration::from_millis(300));
    let options = recursive();
    for (from, to, copied) in [
        (here(&source), there(&far, &up), &up),
        (there(&far, &up), here(&down), &down),
    ] {
        let began = Instant::now();
        let snapshot = copy_to_end(&from, &to, &options).await;
        let took = began.elapsed();
        assert_eq!(snapshot.failed, 0, "{snapshot:?}");
        for number in 0..40 {
            let file = copied.join(number.to_string());
            assert!(
                std::fs::read(file).unwrap() == noise(2_200_000, number),
                "{number}"
            );
        }
        assert_eq!(std::fs::read_dir(copied).unwrap().count(), 2040);
        // One after the other takes 40 files some eight round trips each: 96 s. Empty files take three, 24 at a time if each may turn
        // out to have a piece of 255 KiB: 75 s.
        assert!(took < Duration::from_secs(60), "{took:?}");
    }
}

#[tokio::test]
async fn names_that_are_deleted_far_away_do_not_wait_for_each_other() {
    let (_sshd, place, relay, far) = through_relay().await;
    let [source, target] = ["source", "target"].map(|name| place.path().join(name));
    std::fs::create_dir(&source).unwrap();
    for number in 0..150 {
        for directory in [format!("extraneous/{number}"), format!("extraneous-{number}")] {
            let directory = target.join(directory);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("file"), "").unwrap();
        }
        for name in ["old", "older", "directory"] {
            std::fs::write(target.join(format!("{name}-{number}")), "").unwrap();
        }
        std::fs::create_dir(source.join(format!("directory-{number}"))).unwrap();
    }
    relay.set_rtt(Duration::from_millis(100));
    let began = Instant::now();
    let snapshot = copy_to_end(&here(&source.join(".")), &there(&far, &target), &mirror()).await;
    let took = began.elapsed();
    assert_eq!(rsync_would_change(&source, &target), "");
    assert_eq!(snapshot.deleted, 150 * 6 + 1);
    // One after the other: 300 files in a directory, 150 directories in one and 150 files in the way 60 s, 150 directories with all
    // their content 100 s.
    assert!(took < Duration::from_secs(30), "{took:?}");
}

#[tokio::test]
async fn what_fails_is_told_and_the_rest_is_copied() {
    let (_sshd, place, host) = site().await;
    let [source, target] = ["source", "target"].map(|name| place.path().join(name));
    std::fs::create_dir(&source).unwrap();
    for name in ["a", "b", "c"] {
        std::fs::write(source.join(name), name).unwrap();
    }
    // A directory has the file's name, and a file the directory's.
    std::fs::create_dir(source.join("d")).unwrap();
    std::fs::write(source.join("d/in"), "in").unwrap();
    for (from, to) in [
        (there(&host, &source), here(&target)),
        (here(&source), there(&host, &target)),
    ] {
        let _ = std::fs::remove_dir_all(&target);
        std::fs::create_dir_all(target.join("source/b")).unwrap();
        std::fs::write(target.join("source/d"), "").unwrap();
        let (result, failures) = run(&from, &to, &recursive()).await;
        assert_eq!(result.unwrap().failed as usize, failures.len());
        assert_eq!(failures.len(), 3, "{failures:?}");
        assert_eq!(std::fs::read(target.join("source/a")).unwrap(), b"a");
        assert_eq!(std::fs::read(target.join("source/c")).unwrap(), b"c");
        assert_eq!(
            std::fs::read_dir(target.join("source")).unwrap().count(),
            4,
            "nothing partial is left"
        );
    }
    let (result, failures) = run(
        &there(&host, &place.path().join("absent")),
        &here(&target),
        &recursive(),
    )
    .await;
    assert_eq!(result.unwrap().failed, 1);
    assert!(
        failures[0].contains("absent: No such file or directory"),
        "{failures:?}"
    );
    let (_, failures) = run(
        &here(&place.path().join("absent")),
        &there(&host, &target),
        &recursive(),
    )
    .await;
    assert!(failures[0].contains("absent: No such file"), "{failures:?}");
}

#[tokio::test]
async fn patterns_match_on_the_server_and_choose_here() {
    let (_sshd, place, host) = site().await;
    let [source, target] = ["source", "target"].map(|name| place.path().join(name));
    for directory in [&source, &target] {
        std::fs::create_dir(directory).unwrap();
    }
    for name in ["a.log", "b.log", "c.txt", ".d.log", "e[1]"] {
        std::fs::write(source.join(name), name).unwrap();
    }
    let options = CopyOptions::default();
    copy_to_end(&there(&host, &source.join("*.log")), &here(&target), &options).await;
    assert_eq!(see(&target).len(), 2);
    copy_to_end(&there(&host, &source.join("e[1]")), &here(&target), &options).await;
    assert!(target.join("e[1]").exists(), "a name that is there is no pattern");
    let mut options = recursive();
    options.filters = left_out(&["*.log", "e*"]);
    copy_to_end(&there(&host, &source), &here(&target), &options).await;
    assert_eq!(see(&target.join("source")).len(), 1);
    let options = CopyOptions::default();
    for (directory, name) in [
        ("x1", "1.log"),
        ("x2", "2.log"),
        ("x3", "out.txt"),
        (".x4", "3.log"),
    ] {
        std::fs::create_dir(source.join(directory)).unwrap();
        std::fs::write(source.join(directory).join(name), name).unwrap();
    }
    // The files beside the directories match in the first part, and have nothing in them.
    for (pattern, found) in [
        ("*/?.log", &["1.log", "2.log"][..]),
        ("*/2.log", &["2.log"]),
        ("x[12]/1.*", &["1.log"]),
        ("?3/*", &["out.txt"]),
    ] {
        let into = place.path().join(pattern.replace('/', " "));
        std::fs::create_dir(&into).unwrap();
        copy_to_end(&there(&host, &source.join(pattern)), &here(&into), &options).await;
        let names: Vec<_> = see(&into).into_keys().collect();
        assert!(
            names.iter().map(PathBuf::as_path).eq(found.iter().map(Path::new)),
            "{pattern}: {names:?}"
        );
    }
    let (_, failures) = run(&there(&host, &source.join("*/absent")), &here(&target), &options).await;
    assert!(failures[0].contains("matches nothing"), "{failures:?}");
}

#[tokio::test]
async fn what_is_there_already_is_left_out_when_asked() {
    let (_sshd, place, host) = site().await;
    let [source, target] = ["source", "target"].map(|name| place.path().join(name));
    plant(&source);
    let (from, to) = (there(&host, &source.join(".")), here(&target));
    std::fs::create_dir(&target).unwrap();
    let mut options = recursive();
    let first = copy_to_end(&from, &to, &options).await;
    assert_eq!(first.skipped, 0);
    options.update = true;
    let second = copy_to_end(&from, &to, &options).await;
    assert_eq!((second.bytes, second.skipped), (0, 160), "files, and directories");
    options.update = false;
    options.compare = Comparison::Content;
    std::fs::File::options()
        .write(true)
        .open(target.join("deep/er/large"))
        .unwrap()
        .write_all_at(b"x", 4_000_000)
        .unwrap();
    let third = copy_to_end(&from, &to, &options).await;
    assert_eq!(third.bytes, 9_000_001, "what differs, and nothing else");
    assert_same(&source, &target);
    let back = copy_to_end(&here(&target.join(".")), &there(&host, &source), &options).await;
    assert_eq!(back.bytes, 0);
}

#[tokio::test]
async fn a_lost_session_is_replaced_and_its_ranges_come_again() {
    let (_sshd, place, relay, host) = through_relay().await;
    let [source, down, up] = ["source", "down", "up"].map(|name| place.path().join(name));
    plant(&source);
    std::fs::write(source.join("larger"), noise(50_000_000, 9)).unwrap();
    for (from, to) in [
        (there(&host, &source), here(&down)),
        (here(&source), there(&host, &up)),
    ] {
        let cutting = async {
            for direction in [
                trunkline_testkit::Direction::ToServer,
                trunkline_testkit::Direction::ToClient,
            ] {
                let begun = relay.bytes(direction);
                let _ = relay.wait_for_bytes(direction, begun + 200_000).await;
            }
            relay.reset();
        };
        let options = recursive();
        let copying = copy_to_end(&from, &to, &options);
        tokio::pin!(cutting);
        tokio::pin!(copying);
        let snapshot = tokio::select! {
            snapshot = &mut copying => snapshot,
            () = &mut cutting => copying.await,
        };
        assert_eq!(snapshot.failed, 0);
    }
    assert_same(&source, &down);
    assert_same(&source, &up);
}

#[tokio::test]
async fn nothing_stays_of_small_files_whose_session_was_lost() {
    let (_sshd, place, relay, host) = through_relay().await;
    let [source, up] = ["source", "up"].map(|name| place.path().join(name));
    std::fs::create_dir(&source).unwrap();
    for n in 0..1000 {
        std::fs::write(source.join(format!("small-{n}")), noise(10_000, n)).unwrap();
    }
    let begun = relay.bytes(trunkline_testkit::Direction::ToServer);
    let mut options = recursive();
    // Slow enough to be met in the middle of several files.
    options.limit = Some(5_000_000);
    let (from, to) = (here(&source), there(&host, &up));
    let losing = async {
        for some in 1..=3 {
            let bytes = begun + some * 2_000_000;
            relay
                .wait_for_bytes(trunkline_testkit::Direction::ToServer, bytes)
                .await
                .unwrap();
            relay.reset();
        }
    };
    let (snapshot, ()) = tokio::join!(copy_to_end(&from, &to, &options), losing);
    assert_eq!(snapshot.failed, 0);
    assert_same(&source, &up);
}

/// Copies both ways through a relay, to which something is done once some of the copy has passed.
async fn copy_disturbed(settings: Settings, disturb: impl AsyncFn(&Relay, trunkline_testkit::Direction)) {
    use trunkline_testkit::Direction::{ToClient, ToServer};
    let (relayed, place) = (Relayed::start(), tempfile::tempdir().unwrap());
    let relay = &relayed.relay;
    // A further connection that is just being made is given up, too.
    let engine = engine_with(settings);
    let host = host_with(&engine, &relayed.config, "relayed", &["ConnectTimeout=10"]).await;
    let [source, down, up] = ["source", "down", "up"].map(|name| place.path().join(name));
    plant(&source);
    std::fs::write(source.join("larger"), noise(30_000_000, 9)).unwrap();
    for (from, to, direction) in [
        (there(&host, &source), here(&down), ToClient),
        (here(&source), there(&host, &up), ToServer),
    ] {
        let begun = relay.bytes(direction);
        let mut options = recursive();
        // Slow enough to be met in its middle.
        options.limit = Some(40_000_000);
        let copying = copy_to_end(&from, &to, &options);
        let disturbing = async {
            relay.wait_for_bytes(direction, begun + 5_000_000).await.unwrap();
            disturb(relay, direction).await;
        };
        let (snapshot, ()) = tokio::join!(copying, disturbing);
        assert_eq!(snapshot.failed, 0);
    }
    assert_same(&source, &down);
    assert_same(&source, &up);
}

#[tokio::test]
async fn a_byte_that_is_changed_on_the_way_is_never_written() {
    copy_disturbed(Settings::default(), async |relay, direction| {
        let open = |relay: &Relay| (relay.connections(), relay.open_connections());
        let before = open(relay);
        relay.corrupt_next(direction);
        // The connection ends with it.
        while open(relay) == before {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_path_that_goes_dark_is_left_for_another_connection() {
    let settings = Settings {
        probe_after: Duration::from_secs(1),
        probe_limit: Duration::from_secs(1),
        ..Settings::default()
    };
    copy_disturbed(settings, async |relay, _| {
        let before = relay.connections();
        relay.stall();
        // Its probe unanswered, it is given up.
        relay.wait_for_connections(before + 1).await.unwrap();
        relay.resume();
    })
    .await;
}

#[tokio::test]
async fn a_source_that_shrinks_is_not_copied_and_replaces_nothing() {
    let (_sshd, place, host) = site().await;
    let whole = noise(100_000_000, 21);
    for upload in [false, true] {
        let [source, target] = ["source", "target"].map(|name| place.path().join(format!("{name}-{upload}")));
        std::fs::write(&source, &whole).unwrap();
        let (from, to) = ends(&host, upload, &source, &target);
        std::fs::write(&target, "an older one").unwrap();
        let told = Arc::new(std::sync::Mutex::new(Vec::new()));
        let progress = Arc::new(Progress::watched({
            let told = told.clone();
            move |event| {
                if let CopyEvent::Failed { message, .. } = event {
                    told.lock().unwrap().push(message);
                }
            }
        }));
        let mut options = CopyOptions::default();
        options.limit = Some(40_000_000);
        options.streams = Some(3);
        let sources = [from];
        let copying = copy(&sources, &to, &options, &progress);
        let shrinking = async {
            until_copied(&progress, 15_000_000).await;
            let file = std::fs::File::options().write(true).open(&source).unwrap();
            file.set_len(10_000_000).unwrap();
        };
        let (snapshot, ()) = tokio::join!(copying, shrinking);
        assert_eq!(snapshot.unwrap().failed, 1);
        let [told] = &told.lock().unwrap()[..] else {
            panic!("one line")
        };
        let named = format!("{}: it changed while it was copied", source.display());
        assert!(told.contains(&named), "{told}");
        assert_eq!(std::fs::read(&target).unwrap(), b"an older one");
    }
}

#[tokio::test]
async fn five_thousand_small_files_come_and_go() {
    let (_sshd, place, host) = site().await;
    let [source, down, up] = ["source", "down", "up"].map(|name| place.path().join(name));
    // More than are looked at, prepared or under way at once.
    for directory in 0..25 {
        let directory = source.join(format!("{directory}"));
        std::fs::create_dir_all(&directory).unwrap();
        for n in 0..200 {
            std::fs::write(directory.join(format!("{n}")), noise(n, n as u64)).unwrap();
        }
    }
    copy_to_end(&there(&host, &source), &here(&down), &recursive()).await;
    copy_to_end(&here(&source), &there(&host, &up), &recursive()).await;
    assert_same(&source, &down);
    assert_same(&source, &up);
}

#[tokio::test]
async fn more_sparse_bytes_than_32_bits_count_take_no_room_on_either_end() {
    const SIZE: u64 = (4 << 30) + 1_000_000;
    let (_sshd, place, host) = site().await;
    let [source, down, up] = ["source", "down", "up"].map(|name| place.path().join(name));
    let places = [0, 1 << 30, (3 << 30) + 12_345, SIZE - 100_000];
    let file = std::fs::File::create(&source).unwrap();
    for at in places {
        file.write_all_at(&noise(100_000, at), at).unwrap();
    }
    copy_to_end(&here(&source), &there(&host, &up), &CopyOptions::default()).await;
    copy_to_end(&there(&host, &source), &here(&down), &CopyOptions::default()).await;
    for copy in [up, down] {
        let copy = std::fs::File::open(copy).unwrap();
        let found = copy.metadata().unwrap();
        assert_eq!(found.len(), SIZE);
        assert!(found.blocks() * 512 < 4_000_000, "{} blocks", found.blocks());
        for at in places {
            let mut piece = vec![0; 100_000];
            copy.read_exact_at(&mut piece, at).unwrap();
            assert!(piece == noise(100_000, at), "at {at}");
        }
    }
}

#[tokio::test]
async fn a_cut_copy_goes_on_from_what_both_ends_have() {
    let (_sshd, place, host) = site().await;
    let [source, down, up] = ["source", "down", "up"].map(|name| place.path().join(name));
    std::fs::write(&source, noise(100_000_000, 11)).unwrap();
    for (from, to, target) in [
        (there(&host, &source), here(&down), &down),
        (here(&source), there(&host, &up), &up),
    ] {
        let progress = Arc::new(Progress::default());
        let mut options = CopyOptions::default();
        // Slow enough to be cut in its middle.
        options.limit = Some(80_000_000);
        let sources = [from.clone()];
        let copying = copy(&sources, &to, &options, &progress);
        tokio::select! {
            _ = copying => panic!("it was to be cut"),
            () = until_copied(&progress, 50_000_000) => {}
        }
        assert!(!target.exists(), "half a file has no name");
        let snapshot = copy_to_end(&from, &to, &CopyOptions::default()).await;
        assert!(snapshot.resumed >= 24_000_000, "{snapshot:?}");
        assert!(std::fs::read(&source).unwrap() == std::fs::read(target).unwrap());
    }
    assert_eq!(
        std::fs::read_dir(place.path()).unwrap().count(),
        3,
        "no part is left"
    );
}

#[tokio::test]
async fn a_part_that_is_wrong_is_not_gone_on_from() {
    let (_sshd, place, host) = site().await;
    let [source, down] = ["source", "down"].map(|name| place.path().join(name));
    let whole = noise(40_000_000, 13);
    std::fs::write(&source, &whole).unwrap();
    let progress = Arc::new(Progress::default());
    let mut options = CopyOptions::default();
    options.limit = Some(40_000_000);
    let (from, to) = ([there(&host, &source)], here(&down));
    tokio::select! {
        _ = copy(&from, &to, &options, &progress) => panic!("it was to be cut"),
        () = until_copied(&progress, 20_000_000) => {}
    }
    let part = std::fs::read_dir(place.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension() == Some(OsStr::new("part")))
        .unwrap();
    let part = std::fs::File::options().write(true).open(part).unwrap();
    part.write_all_at(b"wrong", 1_000_000).unwrap();
    copy_to_end(&from[0], &to, &CopyOptions::default()).await;
    assert!(std::fs::read(&down).unwrap() == whole);
}

/// A server that shows names of its own choice, each with a mode, and gives every file the same content. It has no
/// extensions: no limits@openssh.com either.
struct Invented {
    /// Directories by path, with what is in them.
    names: BTreeMap<&'static str, Vec<(&'static str, u32)>>,
    content: Vec<u8>,
    /// The size that it tells of every file.
    size: u64,
    link: String,
}

const FILE: u32 = 0o100_644;
const DIRECTORY: u32 = 0o040_755;
const LINK: u32 = 0o120_777;

impl Invented {
    fn mode(&self, path: &str) -> u32 {
        if self.names.contains_key(path) {
            DIRECTORY
        } else {
            FILE
        }
    }

    /// Answers requests until the client leaves. Handles are paths; a directory's names are told once.
    async fn serve(self, mut stream: tokio::io::DuplexStream) {
        let mut told = std::collections::BTreeSet::new();
        while let Ok(length) = stream.read_u32().await {
            let mut packet = vec![0; length as usize];
            stream.read_exact(&mut packet).await.unwrap();
            let mut packet = Bytes::from(packet);
            let (kind, id) = (packet.get_u8(), packet.get_u32());
            let mut reply = BytesMut::new();
            let text = |packet: &mut Bytes| {
                let length = packet.get_u32() as usize;
                String::from_utf8(packet.split_to(length).to_vec()).unwrap()
            };
            let string = |reply: &mut BytesMut, text: &[u8]| {
                reply.put_u32(text.len() as u32);
                reply.put_slice(text);
            };
            let attributes = |reply: &mut BytesMut, mode: u32| {
                reply.put_u32(0x05);
                reply.put_u64(if mode == LINK {
                    self.link.len() as u64
                } else {
                    self.size
                });
                reply.put_u32(mode);
            };
            let status = |reply: &mut BytesMut, code: u32| {
                reply.put_slice(&[101]);
                reply.put_u32(id);
                reply.put_u32(code);
                reply.put_u64(0);
            };
            match kind {
                1 => reply.put_slice(&[2, 0, 0, 0, 3]),
                // OPEN, OPENDIR
                3 | 11 => {
                    reply.put_u8(102);
                    reply.put_u32(id);
                    string(&mut reply, text(&mut packet).as_bytes());
                }
                4 => status(&mut reply, 0),
                5 => {
                    let _handle = text(&mut packet);
                    let (offset, length) = (packet.get_u64() as usize, packet.get_u32() as usize);
                    let end = self.content.len().min(offset + length);
                    if offset >= end {
                        status(&mut reply, 1);
                    } else {
                        reply.put_u8(103);
                        reply.put_u32(id);
                        string(&mut reply, &self.content[offset..end]);
                    }
                }
                // LSTAT, FSTAT, STAT
                7 | 8 | 17 => {
                    reply.put_u8(105);
                    reply.put_u32(id);
                    attributes(&mut reply, self.mode(&text(&mut packet)));
                }
                12 => {
                    let path = text(&mut packet);
                    let first = told.insert(path.clone());
                    match self.names.get(&path[..]).filter(|_| first) {
                        Some(names) => {
                            reply.put_u8(104);
                            reply.put_u32(id);
                            reply.put_u32(names.len() as u32);
                            for (name, mode) in names {
                                string(&mut reply, name.as_bytes());
                                string(&mut reply, b"");
                                attributes(&mut reply, *mode);
                            }
                        }
                        None => status(&mut reply, 1),
                    }
                }
                19 => {
                    reply.put_u8(104);
                    reply.put_u32(id);
                    reply.put_u32(1);
                    string(&mut reply, self.link.as_bytes());
                    string(&mut reply, b"");
                    reply.put_u32(0);
                }
                _ => status(&mut reply, 8),
            }
            if stream.write_u32(reply.len() as u32).await.is_err() || stream.write_all(&reply).await.is_err()
            {
                return;
            }
        }
    }

    fn session(self) -> Sftp {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        tokio::spawn(self.serve(theirs));
        let (reader, writer) = tokio::io::split(ours);
        Sftp::from_streams(reader, writer, "invented")
    }
}

#[tokio::test]
async fn a_server_can_write_nowhere_but_into_the_target() {
    let place = tempfile::tempdir().unwrap();
    let [target, outside] = ["target", "outside"].map(|name| place.path().join(name));
    for directory in [&target, &outside] {
        std::fs::create_dir(directory).unwrap();
    }
    // Names that lead elsewhere; and a link to another directory that is then said to be a directory with files in it.
    let root = vec![
        ("..", DIRECTORY),
        ("../outside/evil", FILE),
        ("/tmp/evil", FILE),
        ("a/../../outside/evil", FILE),
        ("nul\0", FILE),
        ("", FILE),
        ("planted", LINK),
        ("planted", DIRECTORY),
        ("good", FILE),
    ];
    let inside = vec![("evil", FILE), ("deeper", DIRECTORY)];
    let server = Invented {
        names: [
            ("/s", root),
            ("/s/planted", inside),
            ("/s/planted/deeper", vec![("evil", FILE)]),
        ]
        .into(),
        content: b"content".to_vec(),
        size: 7,
        link: outside.display().to_string(),
    };
    let (result, failures) = run(
        &Location::Session(server.session(), "/s".into()),
        &here(&target),
        &recursive(),
    )
    .await;
    result.unwrap();
    assert!(failures.len() >= 6, "{failures:?}");
    assert_eq!(std::fs::read(target.join("s/good")).unwrap(), b"content");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 2);
    let names: Vec<_> = see(&target).into_keys().collect();
    let known = [
        "s",
        "s/good",
        "s/planted",
        "s/planted/evil",
        "s/planted/deeper",
        "s/planted/deeper/evil",
    ];
    assert!(
        names
            .iter()
            .all(|name| known.iter().any(|known| name == Path::new(known))),
        "{names:?}"
    );
}

/// Room for thousands of small files is made by what the server said of them.
#[tokio::test]
async fn a_file_that_has_no_end_between_servers_fails_by_itself() {
    let sshd = Sshd::start_default().unwrap();
    let site = Site::for_server(&sshd).await;
    let place = tempfile::tempdir().unwrap();
    for (length, fits) in [(29, true), (29 + 64 * 1024, true), (5_000_000, false)] {
        let server = Invented {
            names: [("/s", vec![("log", FILE)])].into(),
            content: noise(length, 5),
            size: 29,
            link: String::new(),
        };
        let target = place.path().join(length.to_string());
        let (result, failures) = run(
            &Location::Session(server.session(), "/s".into()),
            &there(&site, &target),
            &recursive(),
        )
        .await;
        result.unwrap();
        let copied = std::fs::read(target.join("log"));
        if fits {
            assert_eq!(failures, [""; 0]);
            assert!(copied.unwrap() == noise(length, 5));
        } else {
            assert!(
                failures[0].contains("it grew by more than 64 KiB"),
                "{failures:?}"
            );
            assert!(copied.is_err());
        }
    }
}

#[tokio::test]
async fn a_file_may_be_longer_than_the_server_says_and_not_shorter() {
    let place = tempfile::tempdir().unwrap();
    for (length, size) in [
        (5_000_000, 9_000_000),
        (5_000_000, 3_000_000),
        (100, 5),
        (5, 100),
        (0, 7),
    ] {
        let server = Invented {
            names: BTreeMap::new(),
            content: noise(length, 3),
            size,
            link: String::new(),
        };
        let target = place.path().join(format!("{length}-{size}"));
        let from = Location::Session(server.session(), "/f".into());
        if (length as u64) < size {
            std::fs::write(&target, "an older one").unwrap();
            let (result, failures) = run(&from, &here(&target), &CopyOptions::default()).await;
            assert_eq!(result.unwrap().failed, 1);
            let told = format!("it changed while it was copied: {length} of its {size} bytes came");
            assert!(failures[0].ends_with(&told), "{failures:?}");
            assert_eq!(std::fs::read(&target).unwrap(), b"an older one");
            continue;
        }
        copy_to_end(&from, &here(&target), &CopyOptions::default()).await;
        assert!(
            std::fs::read(&target).unwrap() == noise(length, 3),
            "{length} {size}"
        );
    }
}

/// Lines that compress as a web server's log does.
fn text(length: usize) -> Vec<u8> {
    let numbers = noise(length, 7);
    let mut lines = String::with_capacity(length + 200);
    for number in numbers.chunks_exact(8) {
        let [a, b, c, d, e, f, ..] = *number else { break };
        lines += &format!(
            "10.0.{a}.{b} - - [21/Nov/2026:12:00:{:02}] \"GET /api/v2/orders/{d} HTTP/1.1\" 200 {} \"-\" \"curl/7.88.1\"\n",
            c % 60,
            u32::from(e) * u32::from(f)
        );
        if lines.len() > length {
            break;
        }
    }
    lines.truncate(length);
    lines.into_bytes()
}

/// The rate of a narrow link, in bytes a second: the compressor is faster with a tenth of a core, too.
const NARROW: u64 = 250_000;

/// The bytes that a copy through a narrow link sends or receives, and its outcome.
async fn through_a_narrow_link(
    upload: bool,
    data: &[u8],
    options: &[&str],
    tuned: Option<Choice>,
) -> (u64, Snapshot) {
    use trunkline_testkit::Direction::{ToClient, ToServer};
    let (relayed, place) = (Relayed::start(), tempfile::tempdir().unwrap());
    relayed.relay.set_rate(ToServer, Some(NARROW));
    relayed.relay.set_rate(ToClient, Some(NARROW));
    let engine = engine();
    let request = relayed.request(options);
    let config = engine.resolve(&request).await.unwrap();
    tune::remember(tuned.as_ref(), engine.memory(), &config);
    let host = engine
        .host_for_copies(&request, &Interaction::none())
        .await
        .unwrap();
    let [source, target] = ["source", "target"].map(|name| place.path().join(name));
    std::fs::write(&source, data).unwrap();
    let direction = if upload { ToServer } else { ToClient };
    let (from, to) = ends(&host, upload, &source, &target);
    let snapshot = copy_to_end(&from, &to, &CopyOptions::default()).await;
    assert!(std::fs::read(&target).unwrap() == data);
    (relayed.relay.bytes(direction), snapshot)
}

#[tokio::test]
async fn what_compresses_is_compressed_over_a_narrow_link() {
    let text = text(10_000_000);
    // What tuning left off for the sake of other data is not a reason against it.
    let tuned = Choice {
        streams_up: Some(1),
        ..Choice::default()
    };
    let (up, down, tuned) = tokio::join!(
        through_a_narrow_link(true, &text, &[], None),
        through_a_narrow_link(false, &text, &[], None),
        through_a_narrow_link(true, &text, &[], Some(tuned))
    );
    for (bytes, snapshot) in [up, down, tuned] {
        assert!(snapshot.compressed);
        // What passes before is not compressed: for seconds on a quiet machine, for longer where the compressor waits for a
        // core.
        assert!(bytes < text.len() as u64 / 4 * 3, "{bytes}");
    }
}

#[tokio::test]
async fn what_does_not_compress_or_must_not_be_is_left_as_it_is() {
    let (random, text) = (noise(2_000_000, 5), text(2_000_000));
    let (up, down, forbidden) = tokio::join!(
        through_a_narrow_link(true, &random, &[], None),
        through_a_narrow_link(false, &random, &[], None),
        through_a_narrow_link(true, &text, &["Compression=no"], None)
    );
    for (bytes, snapshot) in [up, down, forbidden] {
        assert!(!snapshot.compressed);
        assert!(bytes > 2_000_000, "{bytes}");
    }
}

#[tokio::test]
async fn small_files_move_to_connections_that_compress_too() {
    use trunkline_testkit::Direction::ToServer;
    let (relayed, place) = (Relayed::start(), tempfile::tempdir().unwrap());
    relayed.relay.set_rate(ToServer, Some(NARROW));
    let engine = engine();
    let host = engine
        .host_for_copies(&relayed.request(&[]), &Interaction::none())
        .await
        .unwrap();
    let [source, target] = ["source", "target"].map(|name| place.path().join(name));
    std::fs::create_dir(&source).unwrap();
    // Few enough that the link bounds the copy and not the work for each of them, on a busy machine, too.
    let text = text(50_000);
    for nth in 0..300 {
        std::fs::write(source.join(nth.to_string()), &text[nth..nth + 25_000]).unwrap();
    }
    let snapshot = copy_to_end(&here(&source), &there(&host, &target), &recursive()).await;
    assert!(snapshot.compressed);
    // Without, more than all of it passes: requests and replies too.
    let bytes = relayed.relay.bytes(ToServer);
    assert!(bytes < snapshot.bytes / 4 * 3, "{bytes} of {}", snapshot.bytes);
    assert_same(&source, &target);
}

#[tokio::test]
async fn a_server_without_extensions_takes_and_gives_a_tree_and_takes_it_again() {
    // Without them it neither says what it takes at once, nor renames over what is there.
    const DENIED: &str = "limits,posix-rename,fsync,lsetstat,expand-path,hardlink,statvfs,fstatvfs,copy-data,\
                          home-directory,users-groups-by-id";
    let subsystem = format!("Subsystem sftp /usr/lib/openssh/sftp-server -P {DENIED}");
    let (sshd, place) = (
        Sshd::builder().config(&subsystem).start().unwrap(),
        tempfile::tempdir().unwrap(),
    );
    let host = Site::for_server(&sshd).await;
    let [source, down, up] = ["source", "down", "up"].map(|name| place.path().join(name));
    plant(&source);
    let mut options = recursive();
    options.sync = true;
    for _ in 0..2 {
        copy_to_end(&here(&source.join(".")), &there(&host, &up), &options).await;
        copy_to_end(&there(&host, &source.join(".")), &here(&down), &options).await;
        assert_same(&source, &down);
        assert_same(&source, &up);
    }
}

#[tokio::test]
async fn a_source_that_another_file_replaces_is_never_copied_as_a_mixture() {
    let (_sshd, place, relay, host) = through_relay().await;
    let [first, second] = [31, 32].map(|seed| noise(60_000_000 + seed as usize, seed));
    for upload in [false, true] {
        let [source, other, target] =
            ["source", "other", "target"].map(|name| place.path().join(format!("{name}-{upload}")));
        std::fs::write(&source, &first).unwrap();
        std::fs::write(&other, &second).unwrap();
        let (from, to) = ends(&host, upload, &source, &target);
        let progress = Arc::new(Progress::default());
        let mut options = CopyOptions::default();
        options.limit = Some(40_000_000);
        let sources = [from.clone()];
        let copying = copy(&sources, &to, &options, &progress);
        let replacing = async {
            until_copied(&progress, 15_000_000).await;
            std::fs::rename(&other, &source).unwrap();
            // Whatever was open is open no more.
            relay.reset();
        };
        let (snapshot, ()) = tokio::join!(copying, replacing);
        if snapshot.unwrap().failed == 0 {
            let copy = std::fs::read(&target).unwrap();
            assert!(copy == first || copy == second, "one of the two");
        } else {
            assert!(!target.exists(), "half a file has no name");
        }
        copy_to_end(&from, &to, &CopyOptions::default()).await;
        assert!(
            std::fs::read(&target).unwrap() == second,
            "at last it is the new one"
        );
    }
}

#[tokio::test]
async fn a_copy_over_several_sessions_ends_when_its_server_has_gone() {
    for upload in [false, true] {
        let (relayed, place) = (Relayed::start(), tempfile::tempdir().unwrap());
        let settings = Settings {
            copy_resume_for: Duration::from_secs(1),
            ..Settings::default()
        };
        let host = relayed.site(engine_with(settings)).await;
        let [source, target] = ["source", "target"].map(|name| place.path().join(name));
        std::fs::write(&source, noise(60_000_000, 1)).unwrap();
        let (from, to) = ends(&host, upload, &source, &target);
        let progress = Arc::new(Progress::default());
        let mut options = CopyOptions::default();
        (options.limit, options.streams) = (Some(40_000_000), Some(3));
        let sources = [from];
        let copying = copy(&sources, &to, &options, &progress);
        let going = async {
            until_copied(&progress, 15_000_000).await;
            drop(relayed.relay);
        };
        let all = tokio::time::timeout(Duration::from_secs(60), async { tokio::join!(copying, going) });
        let (ended, ()) = all.await.expect("the copy ends");
        assert!(ended.is_err(), "{ended:?}");
    }
}

#[tokio::test]
async fn where_nothing_can_be_written_each_file_is_named() {
    let (_sshd, place, host) = site().await;
    let source = place.path().join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("small"), "x").unwrap();
    std::fs::write(source.join("large"), noise(5_000_000, 5)).unwrap();
    symlink("small", source.join("link")).unwrap();
    // Whoever asks, root too: nobody makes files in /proc.
    let nowhere = Path::new("/proc/self");
    let contents = source.join(".");
    let mut options = recursive();
    options.preserve = false;
    for (from, to) in [
        (here(&contents), there(&host, nowhere)),
        (there(&host, &contents), here(nowhere)),
    ] {
        let (result, failures) = run(&from, &to, &options).await;
        assert_eq!(result.unwrap().failed, 3, "{failures:?}");
        for name in ["small", "large", "link"] {
            assert!(
                failures.iter().any(|failure| failure.contains(name)),
                "{name}: {failures:?}"
            );
        }
    }
}

#[tokio::test]
async fn small_files_count_when_the_server_has_them() {
    let (_sshd, place, relay, host) = through_relay().await;
    let source = place.path().join("source");
    std::fs::create_dir(&source).unwrap();
    for n in 0..200 {
        std::fs::write(source.join(format!("{n}")), noise(40_000, n)).unwrap();
    }
    let progress = Arc::new(Progress::default());
    host.sftp().await.unwrap().ready().await.unwrap();
    let to_server = trunkline_testkit::Direction::ToServer;
    let begun = relay.bytes(to_server);
    // All of it is read at once and takes two seconds to arrive.
    relay.set_rate(to_server, Some(4_000_000));
    let (sources, to) = ([here(&source)], there(&host, &place.path().join("target")));
    let options = recursive();
    let copying = copy(&sources, &to, &options, &progress);
    let watching = async {
        loop {
            let bytes = progress.snapshot().bytes;
            assert!(bytes <= relay.bytes(to_server) - begun);
            tokio::task::yield_now().await;
        }
    };
    let snapshot = tokio::select! {
        snapshot = copying => snapshot.unwrap(),
        never = watching => never,
    };
    assert_eq!((snapshot.failed, snapshot.bytes), (0, 8_000_000));
}

// What is written, and where: hostile sources, shared directories, and targets that are not new files.

/// A source that lists a link and then a directory of its name, and things below.
fn planting(outside: &Path) -> Invented {
    let root = vec![("planted", LINK), ("planted", DIRECTORY), ("good", FILE)];
    let inside = vec![("evil", FILE), ("deeper", DIRECTORY)];
    Invented {
        names: [
            ("/s", root),
            ("/s/planted", inside),
            ("/s/planted/deeper", vec![("evil", FILE)]),
        ]
        .into(),
        content: b"content".to_vec(),
        size: 7,
        link: outside.display().to_string(),
    }
}

#[tokio::test]
async fn nothing_is_made_below_a_link_whichever_way_a_copy_goes_and_whoever_made_it() {
    let (_sshd, place, host) = site().await;
    let outside = place.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    for (found, up) in [(false, false), (false, true), (true, false), (true, true)] {
        let target = place.path().join(format!("target-{found}-{up}"));
        std::fs::create_dir_all(target.join("s")).unwrap();
        if found {
            symlink(&outside, target.join("s/planted")).unwrap();
        }
        let mut server = planting(&outside);
        if found {
            // Only the directory: the link is there.
            server
                .names
                .insert("/s", vec![("planted", DIRECTORY), ("good", FILE)]);
        }
        let from = Location::Session(server.session(), "/s".into());
        let to = if up { there(&host, &target) } else { here(&target) };
        let (result, failures) = run(&from, &to, &recursive()).await;
        result.unwrap();
        assert!(!failures.is_empty());
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0, "{found} {up}");
        assert_eq!(std::fs::read(target.join("s/good")).unwrap(), b"content");
        assert!(target.join("s/planted").is_symlink(), "{found} {up}");
    }
}

#[tokio::test]
async fn of_two_sources_with_one_name_the_first_is_copied_and_the_other_named() {
    let (_sshd, place, host) = site().await;
    for directory in ["a/d", "b/d"] {
        std::fs::create_dir_all(place.path().join(directory)).unwrap();
        std::fs::write(place.path().join(directory).join("same"), directory).unwrap();
        std::fs::write(place.path().join(directory).join(&directory[..1]), directory).unwrap();
    }
    for up in [false, true] {
        let target = place.path().join(format!("target-{up}"));
        std::fs::create_dir(&target).unwrap();
        let [one, two] = ["a/d", "b/d"].map(|name| place.path().join(name));
        let (sources, to) = match up {
            true => ([here(&one), here(&two)], there(&host, &target)),
            false => ([there(&host, &one), there(&host, &two)], here(&target)),
        };
        let progress = Arc::new(Progress::default());
        let snapshot = copy(&sources, &to, &recursive(), &progress).await.unwrap();
        assert_eq!(snapshot.failed, 1);
        assert_eq!(std::fs::read(target.join("d/same")).unwrap(), b"a/d");
        assert!(target.join("d/a").exists() && target.join("d/b").exists());
    }
}

#[tokio::test]
async fn a_directory_is_not_copied_into_itself_through_a_server_either() {
    let (one, two) = (Sshd::start_default().unwrap(), Sshd::start_default().unwrap());
    let place = tempfile::tempdir().unwrap();
    let (one, two) = (Site::for_server(&one).await, Site::for_server(&two).await);
    let source = place.path().join("source");
    std::fs::create_dir_all(source.join("inner")).unwrap();
    std::fs::write(source.join("f"), "f").unwrap();
    let into = source.join("inner");
    for (from, to) in [
        (there(&one, &source), there(&one, &into)),
        (there(&one, &source), there(&two, &into)),
        (here(&source), there(&one, &into)),
        (there(&one, &source), here(&source.join("new"))),
    ] {
        let (result, _) = run(&from, &to, &recursive()).await;
        let error = result.unwrap_err().to_string();
        assert!(error.contains("into itself"), "{error}");
        assert_eq!(std::fs::read_dir(&into).unwrap().count(), 0);
    }
}

#[tokio::test]
async fn what_a_pattern_matches_is_not_copied_into_itself_either() {
    let (_sshd, place, host) = site().await;
    for up in [false, true] {
        let data = place.path().join(format!("data-{up}"));
        let into = data.join("into");
        std::fs::create_dir_all(&into).unwrap();
        std::fs::create_dir(data.join("other")).unwrap();
        std::fs::write(data.join("other/f"), "f").unwrap();
        std::fs::write(into.join("mine"), "m").unwrap();
        let to = if up { there(&host, &into) } else { here(&into) };
        let (result, failures) = run(&there(&host, &data.join("*")), &to, &recursive()).await;
        assert_eq!(result.unwrap().failed, 1, "{failures:?}");
        assert!(failures[0].contains("into itself"), "{failures:?}");
        assert_eq!(std::fs::read(into.join("other/f")).unwrap(), b"f");
        assert!(!into.join("into").exists());
    }
}

#[tokio::test]
async fn one_match_of_a_pattern_takes_the_targets_name() {
    let (_sshd, place, host) = site().await;
    let source = |name: &str| there(&host, &place.path().join(name));
    for name in ["x[1].txt", "only.log", "one.txt", "other.txt"] {
        std::fs::write(place.path().join(name), name).unwrap();
    }
    let options = CopyOptions::default();
    for (pattern, name) in [
        ("x[1].txt", "x[1].txt"),
        (r"x\[1\].txt", "x[1].txt"),
        ("on*.log", "only.log"),
    ] {
        let new = place.path().join("new");
        copy_to_end(&source(pattern), &here(&new), &options).await;
        assert_eq!(std::fs::read_to_string(&new).unwrap(), name, "{pattern}");
        std::fs::remove_file(new).unwrap();
    }
    let (result, _) = run(&source("o*.txt"), &here(&place.path().join("new")), &options).await;
    let error = result.unwrap_err().to_string();
    assert!(error.contains("new: No such file or directory"), "{error}");
}

#[tokio::test]
async fn directories_look_like_their_sources_at_last_and_so_does_the_target() {
    let (_sshd, place, host) = site().await;
    let old = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let source = place.path().join("source");
    std::fs::create_dir_all(source.join("inner")).unwrap();
    for directory in [source.join("inner"), source.clone()] {
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o710)).unwrap();
        std::fs::File::open(&directory)
            .unwrap()
            .set_modified(old)
            .unwrap();
    }
    let mut options = recursive();
    options.delete = true;
    for up in [false, true] {
        let target = place.path().join(format!("target-{up}"));
        std::fs::create_dir_all(target.join("inner")).unwrap();
        // Deleting it changes its directory.
        std::fs::write(target.join("inner/extra"), "").unwrap();
        let (from, to) = ends(&host, up, &source.join("."), &target);
        copy_to_end(&from, &to, &options).await;
        for directory in [target.join("inner"), target] {
            let found = std::fs::metadata(&directory).unwrap();
            assert_eq!(found.mode() & 0o7777, 0o710, "{directory:?}");
            assert_eq!(found.modified().unwrap(), old, "{directory:?}");
        }
    }
}

#[tokio::test]
async fn directories_nested_as_deep_as_paths_go_are_copied_to_their_end() {
    let (_sshd, place, host) = site().await;
    let deep = "d/".repeat(1500);
    let source = place.path().join("source");
    std::fs::create_dir_all(source.join(&deep)).unwrap();
    std::fs::write(source.join(&deep).join("leaf"), "leaf").unwrap();
    let mut options = recursive();
    options.delete = true;
    for up in [false, true] {
        let target = place.path().join(format!("target-{up}"));
        std::fs::create_dir_all(target.join(&deep)).unwrap();
        std::fs::write(target.join(&deep).join("extra"), "").unwrap();
        let (from, to) = ends(&host, up, &source.join("."), &target);
        copy_to_end(&from, &to, &options).await;
        let names = std::fs::read_dir(target.join(&deep)).unwrap();
        let names: Vec<_> = names.map(|name| name.unwrap().file_name()).collect();
        assert_eq!(names, ["leaf"]);
    }
}

#[tokio::test]
async fn a_server_that_answers_hashing_without_end_is_given_up_there() {
    let sshd = Sshd::builder()
        .config("ForceCommand case $SSH_ORIGINAL_COMMAND in 'exec sh') exec cat /dev/zero;; *) exec /usr/lib/openssh/sftp-server;; esac")
        .start()
        .unwrap();
    let (host, place) = (Site::for_server(&sshd).await, tempfile::tempdir().unwrap());
    let (source, target) = (place.path().join("source"), place.path().join("target"));
    std::fs::write(&source, noise(3_000_000, 1)).unwrap();
    std::fs::write(&target, noise(3_000_000, 2)).unwrap();
    let mut options = CopyOptions::default();
    options.compare = Comparison::Content;
    copy_to_end(&here(&source), &there(&host, &target), &options).await;
    assert_eq!(std::fs::read(&target).unwrap(), noise(3_000_000, 1));
}

/// Cuts a copy in its middle; the part that it leaves.
async fn cut(from: &Location, to: &Location, directory: &Path) -> PathBuf {
    let progress = Arc::new(Progress::default());
    let mut options = CopyOptions::default();
    options.limit = Some(40_000_000);
    let sources = [from.clone()];
    tokio::select! {
        _ = copy(&sources, to, &options, &progress) => panic!("it was to be cut"),
        () = until_copied(&progress, 20_000_000) => {}
    }
    std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension() == Some(OsStr::new("part")))
        .unwrap()
}

#[tokio::test]
async fn a_part_that_is_not_ours_alone_is_never_written_to() {
    let (_sshd, place, host) = site().await;
    let whole = noise(40_000_000, 13);
    let source = place.path().join("source");
    std::fs::write(&source, &whole).unwrap();
    for up in [false, true] {
        for trap in ["link", "hard link", "another's"] {
            let directory = place.path().join(format!("{trap} {up}"));
            std::fs::create_dir(&directory).unwrap();
            let target = directory.join("target");
            let (from, to) = ends(&host, up, &source, &target);
            let part = cut(&from, &to, &directory).await;
            let mode = part.metadata().unwrap().mode() & 0o777;
            assert_eq!(mode & 0o022, 0, "{mode:o}");
            // Not the file that was cut off itself, into which writes under way may still go.
            std::fs::remove_file(&part).unwrap();
            let victim = directory.join("victim");
            std::fs::write(&victim, &whole[..24_000_000]).unwrap();
            std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
            match trap {
                "link" => symlink(&victim, &part).unwrap(),
                "hard link" => std::fs::hard_link(&victim, &part).unwrap(),
                _ => {
                    std::fs::copy(&victim, &part).unwrap();
                    std::fs::set_permissions(&part, std::fs::Permissions::from_mode(0o666)).unwrap();
                    if part.metadata().unwrap().uid() == 0 {
                        std::fs::set_permissions(&part, std::fs::Permissions::from_mode(0o600)).unwrap();
                        std::os::unix::fs::chown(&part, Some(12345), Some(12345)).unwrap();
                    }
                }
            }
            let before = std::fs::read(&victim).unwrap();
            let snapshot = copy_to_end(&from, &to, &CopyOptions::default()).await;
            assert_eq!(snapshot.resumed, 0, "{trap} {up}");
            assert!(std::fs::read(&victim).unwrap() == before, "{trap} {up}");
            assert!(std::fs::read(&target).unwrap() == whole);
            assert_ne!(target.metadata().unwrap().ino(), victim.metadata().unwrap().ino());
        }
    }
}

#[tokio::test]
async fn two_copies_of_one_file_at_once_do_not_share_a_part() {
    let (_sshd, place, host) = site().await;
    let whole = noise(30_000_000, 17);
    let source = place.path().join("source");
    std::fs::write(&source, &whole).unwrap();
    for up in [false, true] {
        let directory = place.path().join(format!("{up}"));
        std::fs::create_dir(&directory).unwrap();
        let target = directory.join("target");
        let (from, to) = ends(&host, up, &source, &target);
        let options = CopyOptions::default();
        let (one, two) = tokio::join!(
            copy_to_end(&from, &to, &options),
            copy_to_end(&from, &to, &options)
        );
        assert_eq!((one.failed, two.failed), (0, 0));
        assert!(std::fs::read(&target).unwrap() == whole);
        assert_eq!(
            std::fs::read_dir(&directory).unwrap().count(),
            1,
            "no part is left"
        );
    }
}

/// The kind of a path, the target of a link, and the file's identity.
#[derive(Debug, PartialEq, Eq)]
struct Kind {
    link: Option<PathBuf>,
    mode: u32,
    owner: (u32, u32),
    content: Vec<u8>,
    modified: Option<i64>,
}

fn look(path: &Path, preserved: bool) -> Option<Kind> {
    use std::os::unix::fs::FileTypeExt as _;
    let found = path.metadata().ok()?;
    let content = match found.file_type().is_char_device() {
        true => Vec::new(),
        false => std::fs::read(path).ok()?,
    };
    Some(Kind {
        link: std::fs::read_link(path)
            .ok()
            .map(|to| to.file_name().unwrap().into()),
        mode: found.mode(),
        owner: (found.uid(), found.gid()),
        content,
        modified: preserved.then_some(found.mtime()),
    })
}

#[tokio::test]
async fn what_a_file_replaces_becomes_what_scp_makes_of_it() {
    let (sshd, place, host) = site().await;
    let source = place.path().join("source");
    std::fs::write(&source, "new content").unwrap();
    std::fs::set_permissions(&source, std::fs::Permissions::from_mode(0o751)).unwrap();
    let old = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    std::fs::File::open(&source).unwrap().set_modified(old).unwrap();
    let is_root = place.path().metadata().unwrap().uid() == 0;
    // All of them over one connection, which ends with the server.
    let socket = format!("ControlPath={}", place.path().join("socket").display());
    let shared = ["-oControlMaster=auto", "-oControlPersist=yes", "-o", &socket];
    let prepare = |directory: &Path, kind: &str| {
        std::fs::create_dir_all(directory).unwrap();
        let file = |name: &str, mode| {
            std::fs::write(directory.join(name), "what was there, and longer").unwrap();
            std::fs::set_permissions(directory.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        match kind {
            "nothing" => {}
            "file" => file("target", 0o640),
            "program" => file("target", 0o755),
            "another's" => {
                file("target", 0o604);
                if is_root {
                    std::os::unix::fs::chown(directory.join("target"), Some(12345), Some(23456)).unwrap();
                }
            }
            "link" => {
                file("real", 0o600);
                symlink("real", directory.join("target")).unwrap();
            }
            "chain" => {
                file("real", 0o600);
                symlink("real", directory.join("middle")).unwrap();
                symlink("middle", directory.join("target")).unwrap();
            }
            "dangling" => symlink("real", directory.join("target")).unwrap(),
            "device" => symlink("/dev/null", directory.join("target")).unwrap(),
            "directory" => std::fs::create_dir(directory.join("target")).unwrap(),
            "link in directory" => {
                std::fs::create_dir(directory.join("target")).unwrap();
                file("real", 0o600);
                symlink("../real", directory.join("target/source")).unwrap();
            }
            kind => panic!("{kind}"),
        }
    };
    for kind in [
        "nothing",
        "file",
        "program",
        "another's",
        "link",
        "chain",
        "dangling",
        "device",
        "directory",
        "link in directory",
    ] {
        for (up, preserve) in [(false, false), (true, false), (false, true), (true, true)] {
            let case = format!("{kind}-{up}-{preserve}");
            // A device's own permissions are not for a test to change.
            if kind == "device" && preserve {
                continue;
            }
            let [ours, theirs] = ["ours", "theirs"].map(|who| place.path().join(who).join(&case));
            prepare(&ours, kind);
            prepare(&theirs, kind);
            let remote = |path: &Path| format!("{}:{}", sshd.alias(), path.display());
            let mut scp = std::process::Command::new("scp");
            scp.arg("-qF").arg(sshd.ssh_config()).args(shared);
            if preserve {
                scp.arg("-p");
            }
            match up {
                true => scp.arg(&source).arg(remote(&theirs.join("target"))),
                false => scp.arg(remote(&source)).arg(theirs.join("target")),
            };
            let scp = tokio::task::spawn_blocking(move || scp.output().unwrap())
                .await
                .unwrap();
            let (from, to) = ends(&host, up, &source, &ours.join("target"));
            let mut options = CopyOptions::default();
            options.preserve = preserve;
            let (result, failures) = run(&from, &to, &options).await;
            let success = result.is_ok_and(|snapshot| snapshot.failed == 0);
            assert_eq!(success, scp.status.success(), "{case}: {failures:?} {scp:?}");
            for name in ["target", "target/source", "real"] {
                assert_eq!(
                    look(&ours.join(name), preserve && kind != "directory"),
                    look(&theirs.join(name), preserve && kind != "directory"),
                    "{case}: {name}"
                );
            }
            let count = |directory: &Path| std::fs::read_dir(directory).unwrap().count();
            assert_eq!(count(&ours), count(&theirs), "{case}: nothing else is there");
        }
    }
}

#[tokio::test]
async fn other_names_of_a_local_file_stay_names_of_it() {
    let (_sshd, place, host) = site().await;
    let [source, target, other] = ["source", "target", "other"].map(|name| place.path().join(name));
    std::fs::write(&source, "new").unwrap();
    std::fs::write(&target, "what was there").unwrap();
    std::fs::hard_link(&target, &other).unwrap();
    copy_to_end(&there(&host, &source), &here(&target), &CopyOptions::default()).await;
    assert_eq!(std::fs::read(&other).unwrap(), b"new");
}

#[tokio::test]
async fn pipes_are_read_to_their_end_and_written_to() {
    let (_sshd, place, host) = site().await;
    let [fifo, up, source] = ["fifo", "up", "source"].map(|name| place.path().join(name));
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let whole = noise(5_000_000, 3);
    let (path, data) = (fifo.clone(), whole.clone());
    let writing = tokio::task::spawn_blocking(move || std::fs::write(path, data).unwrap());
    copy_to_end(&here(&fifo), &there(&host, &up), &CopyOptions::default()).await;
    writing.await.unwrap();
    assert!(std::fs::read(&up).unwrap() == whole);
    std::fs::write(&source, &whole).unwrap();
    let path = fifo.clone();
    let reading = tokio::task::spawn_blocking(move || std::fs::read(path).unwrap());
    copy_to_end(&there(&host, &source), &here(&fifo), &CopyOptions::default()).await;
    assert!(reading.await.unwrap() == whole);
}

#[tokio::test]
async fn checksums_are_compared_between_two_servers_too() {
    let (one, two) = (Sshd::start_default().unwrap(), Sshd::start_default().unwrap());
    let place = tempfile::tempdir().unwrap();
    let (one, two) = (Site::for_server(&one).await, Site::for_server(&two).await);
    let [source, target] = ["source", "target"].map(|name| place.path().join(name));
    std::fs::write(&source, noise(9_000_000, 5)).unwrap();
    let (from, to) = (there(&one, &source), there(&two, &target));
    let mut options = CopyOptions::default();
    options.compare = Comparison::Content;
    assert_eq!(copy_to_end(&from, &to, &options).await.skipped, 0);
    assert_eq!(copy_to_end(&from, &to, &options).await.skipped, 1);
    let file = std::fs::File::options().write(true).open(&target).unwrap();
    file.write_all_at(b"x", 8_500_000).unwrap();
    assert_eq!(copy_to_end(&from, &to, &options).await.skipped, 0);
    assert!(std::fs::read(&source).unwrap() == std::fs::read(&target).unwrap());
}

#[tokio::test]
async fn what_neither_server_may_read_is_not_the_same() {
    // What root may not be kept from reading is kept from it by a shell of another user's.
    let own = std::process::Command::new("id").arg("-u").output().unwrap();
    let as_nobody = match own.stdout == b"0\n" {
        true => "setpriv --reuid=65534 --regid=65534 --clear-groups",
        false => "",
    };
    let force = format!("ForceCommand exec {as_nobody} sh -c \"$SSH_ORIGINAL_COMMAND\"");
    let [one, two] = [(); 2].map(|()| Sshd::builder().config(&force).start().unwrap());
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (one, two) = (Site::for_server(&one).await, Site::for_server(&two).await);
    let [source, target] = ["source", "target"].map(|name| place.path().join(name));
    for (path, text) in [(&source, "one"), (&target, "two")] {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o000)).unwrap();
    }
    let mut options = CopyOptions::default();
    options.compare = Comparison::Content;
    let (result, failures) = run(&there(&one, &source), &there(&two, &target), &options).await;
    assert!(result.is_ok_and(|snapshot| snapshot.skipped == 0));
    assert!(failures[0].contains("Permission denied"), "{failures:?}");
}

/// Odd modes, links with times, times beyond 2038, names with line feeds, and names that are not files.
fn plant_oddities(root: &Path) {
    plant(root);
    let set_times = |name: &str, seconds: i64| {
        let time = rustix::fs::Timespec {
            tv_sec: seconds,
            tv_nsec: 999_999_999,
        };
        let times = rustix::fs::Timestamps {
            last_access: time,
            last_modification: time,
        };
        let nofollow = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(rustix::fs::CWD, root.join(name), &times, nofollow).unwrap();
    };
    std::fs::write(root.join("one\nline\rand \\ more"), "x").unwrap();
    let pipe = root.join("deep/pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, pipe, rustix::fs::Mode::from_raw_mode(0o644)).unwrap();
    for (name, mode) in [
        ("deep/small-1", 0o000),
        ("deep/small-2", 0o1777),
        ("empty", 0o1555),
    ] {
        std::fs::set_permissions(root.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    set_times("dangling", 1_000_000_000);
    set_times("deep/small-3", 3_000_000_000);
    set_times("deep/small-4", 0);
    set_times("empty", 1_100_000_000);
}

#[tokio::test]
async fn a_mirror_is_one_and_without_changes_nothing_is_copied() {
    let (_sshd, place, host) = site().await;
    let source = place.path().join("source");
    plant_oddities(&source);
    for upload in [true, false] {
        let target = place.path().join(if upload { "up" } else { "down" });
        std::fs::create_dir(&target).unwrap();
        std::fs::create_dir_all(target.join("extra/deep")).unwrap();
        std::fs::write(target.join("extra/deep/file"), "x").unwrap();
        let (from, to) = ends(&host, upload, &source.join("."), &target);
        let first = copy_to_end(&from, &to, &mirror()).await;
        assert_eq!(first.deleted, 3);
        assert_eq!(rsync_would_change(&source, &target), "");
        let second = copy_to_end(&from, &to, &mirror()).await;
        let done = (second.files, second.adjusted, second.deleted, second.bytes);
        assert_eq!(done, (0, 0, 0, 0), "upload: {upload}");
        assert_eq!(second.skipped, second.total_files);
    }
}

/// A tree with more directories than are listed one by one.
fn plant_many(root: &Path) {
    for nth in 0..60 {
        let directory = root.join(format!("d {nth}\n-x")).join("in");
        std::fs::create_dir_all(&directory).unwrap();
        for name in ["f", "it's", " g "] {
            std::fs::write(directory.join(name), noise(nth, nth as u64)).unwrap();
        }
        symlink("f", directory.join("link")).unwrap();
    }
}

#[tokio::test]
async fn a_mirror_of_many_directories_is_one_whatever_the_servers_find_says() {
    let place = tempfile::tempdir().unwrap();
    let bin = place.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let log = place.path().join("asked");
    // The real one; none that prints; one that leaves names out and says so, or that has other sizes and does not; one that
    // says too much, or nothing.
    for (case, find) in [
        ("real", "exec /usr/bin/find \"$@\""),
        ("without -printf", "echo unknown predicate >&2; exit 1"),
        ("cut", "/usr/bin/find \"$@\" | head -c 3000; exit 1"),
        (
            "of another place",
            "/usr/bin/find \"$@\" | sed -z 's/^\\([0-9] [a-z] [0-7]*\\) [0-9]* /\\1 7777 /'",
        ),
        ("endless", "exec cat /dev/zero"),
        ("ends", "kill $PPID"),
    ] {
        let script = format!("#!/bin/sh\necho asked >>{}\n{find}\n", log.display());
        std::fs::write(bin.join("find"), script).unwrap();
        std::fs::set_permissions(bin.join("find"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let _ = std::fs::remove_file(&log);
        let path = format!("SetEnv PATH={}:/usr/bin:/bin", bin.display());
        let sshd = Sshd::builder().config(&path).start().unwrap();
        let host = Site::for_server(&sshd).await;
        // On a busy machine the first answers take as long as those of a server that is too far for find.
        while host
            .round_trip()
            .is_none_or(|rtt| rtt > Duration::from_millis(10))
        {
            host.run(&Command::exec("true")).await.unwrap();
        }
        let (source, target) = (place.path().join("source"), place.path().join("target"));
        plant_many(&source);
        std::fs::create_dir_all(&target).unwrap();
        let (from, to) = ends(&host, true, &source.join("."), &target);
        copy_to_end(&from, &to, &mirror()).await;
        assert_eq!(rsync_would_change(&source, &target), "", "{case}");
        let again = copy_to_end(&from, &to, &mirror()).await;
        let done = (again.files, again.adjusted, again.deleted, again.bytes);
        assert_eq!(done, (0, 0, 0, 0), "{case}");
        for nth in [3, 30, 50] {
            let directory = format!("d {nth}\n-x");
            std::fs::write(source.join(&directory).join("in/f"), "changed").unwrap();
            std::fs::remove_dir_all(source.join(format!("d {}\n-x", nth + 1))).unwrap();
            std::fs::write(target.join(&directory).join("extra"), "").unwrap();
            std::fs::create_dir_all(source.join(&directory).join("new/er")).unwrap();
        }
        copy_to_end(&from, &to, &mirror()).await;
        assert_eq!(rsync_would_change(&source, &target), "", "{case}");
        assert!(log.exists(), "{case}: nobody asked find");
        std::fs::remove_dir_all(&source).unwrap();
        std::fs::remove_dir_all(&target).unwrap();
    }
}

/// A directory with so many names of one file, which copies take to be up to date.
fn plant_names(file: &Path, directory: &Path, names: std::ops::Range<usize>) {
    std::fs::create_dir_all(directory).unwrap();
    for nth in names {
        std::fs::hard_link(file, directory.join(format!("name-{nth:06}"))).unwrap();
    }
}

#[tokio::test]
async fn mirrors_with_more_names_than_there_is_memory_for_are_mirrors_and_end() {
    let settings = Settings {
        names_memory: 1,
        ..Settings::default()
    };
    // One budget for both.
    let (_sshd, place, host) = site_with(settings).await;
    for upload in [true, false] {
        let mirrors = ["one", "other"].map(|name| {
            // A file has no more than 65,000 names.
            let file = place.path().join(format!("file-{name}-{upload}"));
            std::fs::write(&file, "x").unwrap();
            let source = place.path().join(format!("{name}-{upload}"));
            let target = place.path().join(format!("to-{name}-{upload}"));
            plant_names(&file, &source, 0..4_000);
            plant_names(&file, &source.join("sub"), 0..10);
            // Some are missing, and more than fit are too much, with a directory of such.
            plant_names(&file, &target, 100..6_500);
            plant_names(&file, &target.join("extra/deep"), 0..1_000);
            (source, target)
        });
        let copies = mirrors.each_ref().map(|(source, target)| {
            let (from, to) = ends(&host, upload, &source.join("."), target);
            async move { copy_to_end(&from, &to, &mirror()).await }
        });
        for ended in futures_util::future::join_all(copies).await {
            let done = (ended.skipped, ended.deleted, ended.failed);
            assert_eq!(done, (3_900, 2_500 + 1_002, 0), "upload: {upload}");
        }
        for (source, target) in &mirrors {
            assert_eq!(rsync_would_change(source, target), "", "upload: {upload}");
        }
    }
}

#[tokio::test]
async fn what_is_too_much_is_deleted_also_where_its_directories_take_more_than_there_is() {
    let settings = Settings {
        names_memory: 1,
        ..Settings::default()
    };
    let (_sshd, place, host) = site_with(settings).await;
    for upload in [true, false] {
        let [source, target] = ["source", "target"].map(|name| place.path().join(format!("{name}-{upload}")));
        std::fs::create_dir(&source).unwrap();
        let extra = target.join("extra");
        let directories = 2_600;
        for nth in 0..directories {
            let directory = extra.join(format!("{nth:0200}"));
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("f"), "").unwrap();
        }
        let deep = 700;
        std::fs::create_dir_all(extra.join("deep/".repeat(deep))).unwrap();
        let kept = extra.join(format!("{:0200}/kept", 7));
        std::fs::write(&kept, "").unwrap();
        let (from, to) = ends(&host, upload, &source.join("."), &target);
        let mut options = mirror();
        options.filters = left_out(&["kept"]);
        for dry_run in [true, false] {
            options.dry_run = dry_run;
            let ended = copy_to_end(&from, &to, &options).await;
            // Two directories stay with what is in them.
            assert_eq!(
                ended.deleted,
                2 * directories - 1 + deep as u64,
                "{upload} {dry_run}"
            );
        }
        let left: Vec<_> = extra.read_dir().unwrap().collect();
        assert!(kept.exists() && left.len() == 1, "{upload}: {}", left.len());
    }
}

#[tokio::test]
async fn a_mirror_follows_its_source_and_says_why() {
    let (_sshd, place, host) = site().await;
    for upload in [true, false] {
        let source = place.path().join(format!("source-{upload}"));
        let target = place.path().join(format!("target-{upload}"));
        plant_oddities(&source);
        std::fs::create_dir(source.join("was a directory")).unwrap();
        std::fs::write(source.join("was a directory/inner"), "inner").unwrap();
        std::fs::create_dir(&target).unwrap();
        let (from, to) = ends(&host, upload, &source.join("."), &target);
        copy_to_end(&from, &to, &mirror()).await;
        let set_mode = |name: &str, mode| {
            std::fs::set_permissions(source.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let before = std::fs::metadata(source.join("deep/small-20")).unwrap();
        std::fs::write(source.join("deep/small-20"), noise(20 * 37, 99)).unwrap();
        let file = std::fs::File::options()
            .write(true)
            .open(source.join("deep/small-20"))
            .unwrap();
        file.set_modified(before.modified().unwrap() - Duration::from_secs(9))
            .unwrap();
        std::fs::write(source.join("deep/small-21"), "another length").unwrap();
        set_mode("deep/small-22", 0o711);
        set_mode("deep/er/still", 0o700);
        std::fs::write(source.join("deep/er/new"), "new").unwrap();
        std::fs::remove_file(source.join("to a directory")).unwrap();
        symlink("empty", source.join("to a directory")).unwrap();
        std::fs::remove_file(source.join("deep/small-23")).unwrap();
        std::fs::remove_file(source.join("deep/small-24")).unwrap();
        std::fs::create_dir(source.join("deep/small-24")).unwrap();
        std::fs::write(source.join("deep/small-24/inner"), "inner").unwrap();
        std::fs::remove_dir_all(source.join("was a directory")).unwrap();
        std::fs::write(source.join("was a directory"), "file").unwrap();
        for directory in [".", "deep", "deep/er", "deep/small-21"] {
            let time = std::time::UNIX_EPOCH + Duration::from_secs(1_500_000_000);
            std::fs::File::open(source.join(directory))
                .unwrap()
                .set_modified(time)
                .unwrap();
        }
        let mut dry = mirror();
        dry.dry_run = true;
        let was = see(&target);
        let expected = [
            (".", "time"),
            ("deep", "time"),
            ("deep/er", "time"),
            ("deep/er/new", "new"),
            ("deep/er/still", "mode"),
            ("deep/small-20", "time"),
            ("deep/small-21", "size,time"),
            ("deep/small-22", "mode"),
            ("deep/small-23", "deleted"),
            ("deep/small-24", "kind"),
            ("deep/small-24/inner", "new"),
            ("to a directory", "content"),
            ("was a directory", "deleted"),
            ("was a directory", "kind"),
            ("was a directory/inner", "deleted"),
        ];
        let expected = expected.map(|(path, why)| (path.to_owned(), why.to_owned()));
        assert_eq!(changes(&from, &to, &dry).await, expected, "upload: {upload}");
        assert_eq!(see(&target), was, "a dry run changes nothing");
        assert_eq!(changes(&from, &to, &mirror()).await, expected, "upload: {upload}");
        assert_eq!(rsync_would_change(&source, &target), "");
        assert_eq!(changes(&from, &to, &mirror()).await, []);
    }
}

/// The changes with their reasons, sorted.
pub(crate) async fn changes(from: &Location, to: &Location, options: &CopyOptions) -> Vec<(String, String)> {
    let told = Arc::new(Mutex::new(Vec::new()));
    let all = told.clone();
    let progress = Arc::new(Progress::watched(move |event| {
        let (path, why) = match event {
            CopyEvent::Copied { path, changes, .. } | CopyEvent::Adjusted { path, changes } => {
                (path, changes.words().collect::<Vec<_>>().join(","))
            }
            CopyEvent::Deleted { path } => (path, "deleted".to_owned()),
            CopyEvent::Failed { path, message, .. } => (path, message),
            _ => return,
        };
        all.lock()
            .unwrap()
            .push((String::from_utf8_lossy(&path).into_owned(), why));
    }));
    copy(std::slice::from_ref(from), to, options, &progress)
        .await
        .unwrap();
    let mut told = std::mem::take(&mut *told.lock().unwrap());
    told.sort();
    told
}

#[tokio::test]
async fn other_comparisons_are_as_rsyncs() {
    let (_sshd, place, host) = site().await;
    for upload in [true, false] {
        let [source, target] = ["source", "target"].map(|name| place.path().join(format!("{name}-{upload}")));
        for directory in [&source, &target] {
            std::fs::create_dir(directory).unwrap();
        }
        let write = |directory: &Path, name: &str, text: &str, time: u64| {
            let path = directory.join(name);
            std::fs::write(&path, text).unwrap();
            let time = std::time::UNIX_EPOCH + Duration::from_secs(time);
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(time).unwrap();
        };
        let plant = || {
            for (name, there, time) in [
                ("same", "text", 100),
                ("time", "text", 200),
                ("content", "TEXT", 100),
                ("size", "longer", 100),
            ] {
                write(&source, name, "text", 100);
                write(&target, name, there, time);
            }
        };
        let mut names = Vec::new();
        for compare in [
            Comparison::SizeAndTime,
            Comparison::Size,
            Comparison::Content,
            Comparison::Nothing,
        ] {
            plant();
            let mut options = recursive();
            options.compare = compare;
            let (from, to) = ends(&host, upload, &source.join("."), &target);
            let changed = changes(&from, &to, &options).await;
            let changed: Vec<String> = changed
                .iter()
                .filter(|(path, _)| path != ".")
                .map(|(path, why)| format!("{path} {why}"))
                .collect();
            names.push(changed.join("; "));
        }
        assert_eq!(
            names,
            [
                "size size; time time",
                "size size; time time",
                "content content; size size; time time",
                "content ; same ; size size; time time"
            ],
            "upload: {upload}"
        );
    }
}

/// Which way a copy goes past the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
    /// From a server beyond it to another one.
    From,
    /// From another server to the one beyond it.
    Into,
}

/// Copies 6 MB past a relay, to which `disturb` does something in the middle; waits for what is told of the copy with the
/// second function.
async fn in_the_middle(
    way: Way,
    streams: usize,
    disturb: impl AsyncFnOnce(Relay, &Sshd, &Progress),
) -> Result<(), String> {
    in_the_middle_with(&[], way, streams, disturb).await
}

/// The same, with options of ssh for the host beyond the relay.
async fn in_the_middle_with(
    ssh_options: &[&str],
    way: Way,
    streams: usize,
    disturb: impl AsyncFnOnce(Relay, &Sshd, &Progress),
) -> Result<(), String> {
    let Relayed { sshd, relay, config } = Relayed::start();
    let (engine, other) = (engine(), Sshd::start_default().unwrap());
    let host = host_with(&engine, &config, "relayed", ssh_options).await;
    let other = Site::for_server(&other).await;
    let place = tempfile::tempdir().unwrap();
    let [source, target] = ["source", "target"].map(|name| place.path().join(name));
    std::fs::write(&source, noise(6_000_000, 9)).unwrap();
    let direction = match way {
        Way::Up | Way::Into => trunkline_testkit::Direction::ToServer,
        Way::Down | Way::From => trunkline_testkit::Direction::ToClient,
    };
    relay.set_rate(direction, Some(12_000_000));
    let (from, to) = match way {
        Way::Up => (here(&source), there(&host, &target)),
        Way::Down => (there(&host, &source), here(&target)),
        Way::From => (there(&host, &source), there(&other, &target)),
        Way::Into => (there(&other, &source), there(&host, &target)),
    };
    let mut options = CopyOptions::default();
    options.streams = Some(streams);
    let failures = Failures::default();
    let told = failures.clone();
    let progress = Arc::new(Progress::watched(move |event| {
        if let CopyEvent::Failed { message, .. } = event {
            told.lock().unwrap().push(message);
        }
    }));
    let copying = Box::pin(copy(std::slice::from_ref(&from), &to, &options, &progress));
    let disturbing = async {
        relay.wait_for_bytes(direction, 1_500_000).await.unwrap();
        disturb(relay, &sshd, &progress).await;
        std::future::pending::<()>().await;
    };
    let within = Duration::from_secs(60);
    let copied = tokio::time::timeout(within, async {
        tokio::select! {
            copied = copying => copied,
            () = disturbing => unreachable!("it has no end"),
        }
    });
    let copied = copied.await.expect("a copy ends");
    copied.map_err(|error| error.to_string())?;
    if let Some(message) = failures.lock().unwrap().first() {
        return Err(message.clone());
    }
    assert!(std::fs::read(&source).unwrap() == std::fs::read(&target).unwrap());
    assert_eq!(
        std::fs::read_dir(place.path()).unwrap().count(),
        2,
        "nothing else is left"
    );
    Ok(())
}

const WAYS: [(Way, usize); 8] = [
    (Way::Up, 1),
    (Way::Up, 4),
    (Way::Down, 1),
    (Way::Down, 4),
    (Way::From, 1),
    (Way::From, 4),
    (Way::Into, 1),
    (Way::Into, 4),
];

/// Waits until a copy says that it has lost its connection.
async fn until_lost(progress: &Progress) {
    while !matches!(progress.snapshot().waiting, Some(Waiting::Lost { .. })) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_the_way_a_break_in_the_middle_is_survived() {
    let survive = async |way: Way, streams: usize| {
        let reset = in_the_middle(
            way,
            streams,
            async |relay: Relay, _: &Sshd, progress: &Progress| {
                relay.reset();
                until_lost(progress).await;
                std::future::pending::<()>().await;
            },
        );
        let refused = in_the_middle(
            way,
            streams,
            async |relay: Relay, _: &Sshd, progress: &Progress| {
                relay.refuse();
                relay.reset();
                until_lost(progress).await;
                // Refused once more at least, and told so.
                while matches!(
                    progress.snapshot().waiting,
                    Some(Waiting::Lost { seconds: 30, .. })
                ) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                relay.accept();
                std::future::pending::<()>().await;
            },
        );
        let closed = in_the_middle(way, streams, async |relay: Relay, _: &Sshd, _: &Progress| {
            relay.close();
            std::future::pending::<()>().await;
        });
        let timed_out = in_the_middle_with(
            &["ConnectTimeout=1"],
            way,
            streams,
            async |relay: Relay, _: &Sshd, _: &Progress| {
                relay.stall();
                relay.reset();
                // One attempt at a time: the next is accepted and never answered, and another one follows when its time is up.
                relay.wait_for_connections(relay.connections() + 2).await.unwrap();
                relay.resume();
                std::future::pending::<()>().await;
            },
        );
        let ended = tokio::join!(reset, refused, closed, timed_out);
        assert_eq!(ended, (Ok(()), Ok(()), Ok(()), Ok(())), "{way:?} over {streams}");
    };
    // Two of them at once: they wait for pauses and limits.
    for both in WAYS.chunks(2) {
        let all = both.iter().map(|(way, streams)| survive(*way, *streams));
        futures_util::future::join_all(all).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_the_way_another_host_key_ends_a_copy_at_once() {
    for (way, streams) in WAYS {
        let impostor = Sshd::start_default().unwrap();
        let begun = Mutex::new(None);
        let ended = in_the_middle(way, streams, async |relay: Relay, _: &Sshd, _: &Progress| {
            let place = relay.addr();
            drop(relay);
            let _another = Relay::start_on(place, impostor.addr()).unwrap();
            *begun.lock().unwrap() = Some(());
            std::future::pending::<()>().await;
        });
        let error = ended.await.unwrap_err();
        assert!(begun.lock().unwrap().is_some());
        assert!(error.contains("HOST KEY"), "{way:?} over {streams}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_the_way_a_log_in_that_is_refused_ends_a_copy_at_once() {
    for (way, streams) in WAYS {
        let ended = in_the_middle(way, streams, async |relay: Relay, sshd: &Sshd, _: &Progress| {
            std::fs::write(sshd.dir().join("authorized_keys"), "").unwrap();
            relay.reset();
            std::future::pending::<()>().await;
        });
        let error = ended.await.unwrap_err();
        assert!(
            error.contains("permission denied"),
            "{way:?} over {streams}: {error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_the_way_a_host_that_never_was_there_ends_a_copy_at_once() {
    let (sshd, place) = (Sshd::start_default().unwrap(), tempfile::tempdir().unwrap());
    let other = Site::for_server(&sshd).await;
    let closed = trunkline_testkit::free_port();
    let [source, target] = ["source", "target"].map(|name| place.path().join(name));
    std::fs::write(&source, noise(12_000_000, 9)).unwrap();
    let config = place.path().join("config");
    let text = format!(
        "Host refused\n  HostName 127.0.0.1\n  Port {closed}\nHost unknown\n  HostName nowhere.invalid\n"
    );
    std::fs::write(&config, text).unwrap();
    for (name, words) in [("refused", "refused"), ("unknown", "nowhere.invalid")] {
        for streams in [1, 4] {
            let host = Site::open(&config, name).await;
            for (from, to) in [
                (here(&source), there(&host, &target)),
                (there(&host, &source), here(&target)),
                (there(&host, &source), there(&other, &target)),
                (there(&other, &source), there(&host, &target)),
            ] {
                let mut options = CopyOptions::default();
                options.streams = Some(streams);
                let copying = run(&from, &to, &options);
                let ended = tokio::time::timeout(Duration::from_secs(60), copying).await;
                let error = ended.expect("a copy ends").0.unwrap_err().to_string();
                assert!(error.contains(words), "{name} over {streams}: {error}");
                assert!(!target.exists());
            }
        }
    }
}
