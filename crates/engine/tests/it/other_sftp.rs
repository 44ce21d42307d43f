//! Copies to and from SFTP servers that are not OpenSSH's: a server with the faults of real ones, behind a stock sshd.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use trunkline::memory::{HostId, Lesson};
use trunkline::transfer::{CopyEvent, CopyOptions, Location, Progress, Snapshot, copy};
use trunkline::{Engine, Error, Host, Settings};
use trunkline_testkit::{SftpFaults, noise};

use crate::site::{engine, engine_with, host_of};

/// A server with faults, and a host of an engine that knows nothing of it yet.
struct Bench {
    server: SftpFaults,
    engine: Engine,
    host: Host,
    place: tempfile::TempDir,
}

/// How a copy went.
struct Copied {
    result: Result<Snapshot, Error>,
    failures: Vec<String>,
    notes: Vec<String>,
}

impl Bench {
    async fn with_rules(rules: &[&str]) -> Self {
        Self::with_engine(rules, engine()).await
    }

    async fn with_engine(rules: &[&str], engine: Engine) -> Self {
        let server = SftpFaults::start(rules).unwrap();
        let host = host_of(&engine, server.sshd()).await;
        let place = tempfile::tempdir().unwrap();
        Self {
            server,
            engine,
            host,
            place,
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.place.path().join(name)
    }

    fn there(&self, name: &str) -> Location {
        let path = self.path(name);
        Location::Host(
            self.host.clone(),
            Bytes::copy_from_slice(path.as_os_str().as_bytes()),
        )
    }

    fn here(&self, name: &str) -> Location {
        Location::Local(self.path(name))
    }

    fn has_learnt(&self, lesson: Lesson) -> bool {
        let facts = self
            .engine
            .memory()
            .facts(&HostId::from_config(self.host.config()));
        facts.is_some_and(|facts| facts.lessons.has(lesson))
    }

    /// Copies a name to the server, without its permissions and times.
    async fn upload(&self, from: &str, to: &str) -> Copied {
        self.copy(&self.here(from), &self.there(to), false).await
    }

    async fn copy(&self, from: &Location, to: &Location, preserve: bool) -> Copied {
        let mut options = CopyOptions::default();
        options.preserve = preserve;
        self.copy_as(from, to, options).await
    }

    async fn copy_as(&self, from: &Location, to: &Location, mut options: CopyOptions) -> Copied {
        let told = Arc::new(Mutex::new((Vec::new(), Vec::new())));
        let progress = Arc::new(Progress::watched({
            let told = told.clone();
            move |event| match event {
                CopyEvent::Failed { message, .. } => told.lock().unwrap().0.push(message),
                CopyEvent::Note { message } => told.lock().unwrap().1.push(message),
                _ => {}
            }
        }));
        options.recursive = true;
        let result = copy(std::slice::from_ref(from), to, &options, &progress).await;
        let (failures, notes) = std::mem::take(&mut *told.lock().unwrap());
        Copied {
            result,
            failures,
            notes,
        }
    }

    /// A tree of files here, and what has to be there of it.
    fn tree(&self, name: &str, files: usize) {
        std::fs::create_dir(self.path(name)).unwrap();
        for at in 0..files {
            std::fs::write(
                self.path(name).join(format!("f{at}")),
                noise(at * 37 % 9000, at as u64),
            )
            .unwrap();
        }
    }

    #[track_caller]
    fn assert_tree(&self, name: &str, files: usize) {
        for at in 0..files {
            let content = std::fs::read(self.path(name).join(format!("f{at}"))).unwrap();
            assert!(content == noise(at * 37 % 9000, at as u64), "f{at}");
        }
        assert_eq!(std::fs::read_dir(self.path(name)).unwrap().count(), files);
    }
}

#[track_caller]
fn assert_copied(copied: &Copied) {
    assert_eq!(copied.failures, Vec::<String>::new());
    assert_eq!(copied.result.as_ref().unwrap().failed, 0);
}

#[tokio::test]
async fn files_that_are_given_one_handle_are_copied_one_at_a_time() {
    for up in [true, false] {
        let bench = Bench::with_rules(&["share:9"]).await;
        bench.tree("source", 200);
        let (from, to) = match up {
            true => (bench.here("source"), bench.there("target")),
            false => (bench.there("source"), bench.here("target")),
        };
        assert_copied(&bench.copy(&from, &to, false).await);
        bench.assert_tree("target", 200);
        assert!(bench.has_learnt(Lesson::SharedHandles));
    }
}

#[tokio::test]
async fn a_caller_who_opens_two_files_of_a_server_that_shares_handles_is_told() {
    let bench = Bench::with_rules(&["share:2"]).await;
    std::fs::write(bench.path("f"), "f").unwrap();
    let open = |sftp: trunkline::sftp::Sftp| {
        let path = bench.path("f");
        async move {
            let flags = trunkline::sftp::OpenFlags::READ;
            sftp.open(path.as_os_str().as_bytes(), flags, Default::default())
                .await
        }
    };
    let sftp = bench.host.sftp().await.unwrap();
    let first = open(sftp.clone()).await.unwrap();
    let error = open(sftp.clone()).await.unwrap_err().to_string();
    assert!(error.contains("gave two open files the same handle"), "{error}");
    assert!(first.read_at(0, 1).await.is_err());
    // From now on the second one waits for nobody.
    let sftp = bench.host.sftp().await.unwrap();
    let first = open(sftp.clone()).await.unwrap();
    let error = open(sftp.clone()).await.unwrap_err().to_string();
    assert!(error.contains("close another one first"), "{error}");
    first.close().await.unwrap();
    assert_eq!(open(sftp).await.unwrap().read_at(0, 9).await.unwrap(), "f");
}

#[tokio::test]
async fn links_are_made_whichever_order_the_server_has() {
    for (rules, lesson) in [
        (["symlink:draft", ""], Lesson::SymlinkLinkFirst),
        (["symlink:openssh", ""], Lesson::SymlinkTargetFirst),
        (["symlink:draft", "lstat:follows"], Lesson::SymlinkLinkFirst),
        (["symlink:openssh", "lstat:follows"], Lesson::SymlinkTargetFirst),
    ] {
        let bench = Bench::with_rules(&rules).await;
        std::fs::create_dir(bench.path("source")).unwrap();
        let texts = ["../x", "/nowhere/at/all", "f"];
        for (at, text) in texts.iter().enumerate() {
            symlink(text, bench.path("source").join(format!("l{at}"))).unwrap();
        }
        for _ in 0..2 {
            assert_copied(&bench.upload("source", "target").await);
            let target = match bench.path("target/source").exists() {
                true => bench.path("target/source"),
                false => bench.path("target"),
            };
            for (at, text) in texts.iter().enumerate() {
                let found = std::fs::read_link(target.join(format!("l{at}"))).unwrap();
                assert_eq!(found, Path::new(text));
            }
            let count = std::fs::read_dir(&target).unwrap().filter(|entry| {
                let name = entry.as_ref().unwrap().file_name();
                name.as_bytes() != b"source"
            });
            assert_eq!(count.count(), texts.len(), "nothing is left beside them");
        }
        assert!(bench.has_learnt(lesson));
    }
}

#[tokio::test]
async fn a_server_that_renames_nothing_gets_files_under_their_last_names() {
    let denied = ["status:RENAME:*:3", "status:posix-rename@openssh.com:*:3"];
    let bench = Bench::with_rules(&denied).await;
    bench.tree("source", 20);
    std::fs::write(bench.path("source/large"), noise(3_000_000, 1)).unwrap();
    let copied = bench.upload("source", "target").await;
    assert_copied(&copied);
    assert_eq!(copied.notes.len(), 1, "{:?}", copied.notes);
    assert!(copied.notes[0].contains("files are written under their last names"));
    assert!(std::fs::read(bench.path("target/large")).unwrap() == noise(3_000_000, 1));
    std::fs::remove_file(bench.path("target/large")).unwrap();
    bench.assert_tree("target", 20);
    // Over longer ones and shorter ones.
    for at in 0..20 {
        std::fs::write(bench.path(&format!("target/f{at}")), noise(5000, 77)).unwrap();
    }
    std::fs::remove_file(bench.path("source/large")).unwrap();
    std::fs::create_dir(bench.path("again")).unwrap();
    std::fs::rename(bench.path("target"), bench.path("again/source")).unwrap();
    assert_copied(&bench.upload("source", "again").await);
    bench.assert_tree("again/source", 20);
}

#[tokio::test]
async fn a_server_that_shows_no_link_keeps_none_of_those_that_tried_it() {
    let bench = Bench::with_rules(&["lstat:follows", "status:READLINK:*:8"]).await;
    std::fs::create_dir(bench.path("source")).unwrap();
    symlink("nowhere", bench.path("source/l")).unwrap();
    bench.upload("source", "target").await.result.unwrap();
    let tried = std::fs::read_dir(bench.path("target")).unwrap().find(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.as_bytes().starts_with(b".trunkline")
    });
    assert!(tried.is_none(), "{tried:?}");
}

#[tokio::test]
async fn an_older_file_is_not_opened_to_be_written_before_the_new_one_is_whole() {
    let bench = Bench::with_rules(&[]).await;
    for size in [1000, 3_000_000] {
        std::fs::write(bench.path("new"), noise(size, 1)).unwrap();
        std::fs::write(bench.path("f"), noise(5000, 2)).unwrap();
        bench.server.set(&["open:unlinks", "status:WRITE:*:4"]).unwrap();
        let copied = bench.upload("new", "f").await;
        assert_eq!(copied.failures.len(), 1, "{:?}", copied.failures);
        assert!(
            std::fs::read(bench.path("f")).unwrap() == noise(5000, 2),
            "it is there"
        );
        bench.server.set(&["open:unlinks"]).unwrap();
        assert_copied(&bench.upload("new", "f").await);
        assert!(std::fs::read(bench.path("f")).unwrap() == noise(size, 1));
    }
}

#[tokio::test]
async fn a_server_that_answers_readlink_for_every_name_has_its_files_replaced() {
    let bench = Bench::with_rules(&["ext:", "readlink:path"]).await;
    for size in [1000, 3_000_000] {
        std::fs::write(bench.path("new"), noise(size, 1)).unwrap();
        std::fs::write(bench.path("f"), noise(5000, 2)).unwrap();
        let copied = bench.upload("new", "f").await;
        assert_copied(&copied);
        assert_eq!(copied.notes, Vec::<String>::new());
        assert!(std::fs::read(bench.path("f")).unwrap() == noise(size, 1));
    }
}

#[tokio::test]
async fn a_file_that_the_server_takes_away_as_it_is_opened_is_made_anew() {
    let rules = [
        "open:unlinks",
        "status:RENAME:*:3",
        "status:posix-rename@openssh.com:*:3",
    ];
    let bench = Bench::with_rules(&rules).await;
    std::fs::write(bench.path("new"), noise(3_000_000, 1)).unwrap();
    std::fs::write(bench.path("f"), noise(5000, 2)).unwrap();
    assert_copied(&bench.upload("new", "f").await);
    assert!(std::fs::read(bench.path("f")).unwrap() == noise(3_000_000, 1));
}

#[tokio::test]
async fn an_upload_that_cannot_be_resumed_begins_anew() {
    let bench = Bench::with_rules(&["status:WRITE:60-:4"]).await;
    std::fs::write(bench.path("source"), noise(24_000_000, 1)).unwrap();
    assert_eq!(bench.upload("source", "target").await.failures.len(), 1);
    let parts = || {
        let names = std::fs::read_dir(bench.place.path()).unwrap();
        names
            .filter(|name| name.as_ref().unwrap().file_name().as_bytes().ends_with(b".part"))
            .count()
    };
    assert_eq!(parts(), 1, "what was written stays");
    bench.server.set(&["status:WRITE:1:4"]).unwrap();
    assert_copied(&bench.upload("source", "target").await);
    assert!(std::fs::read(bench.path("target")).unwrap() == noise(24_000_000, 1));
    assert_eq!(parts(), 0);
}

#[tokio::test]
async fn a_file_is_written_from_its_beginning_to_its_end_whatever_order_it_is_read_in() {
    let bench = Bench::with_rules(&["reorder:READ:*:4", "write:ordered"]).await;
    std::fs::write(bench.path("source"), noise(8_000_000, 1)).unwrap();
    assert_copied(
        &bench
            .copy(&bench.there("source"), &bench.there("target"), false)
            .await,
    );
    assert!(std::fs::read(bench.path("target")).unwrap() == noise(8_000_000, 1));
}

#[tokio::test]
async fn a_server_that_takes_no_temporary_name_gets_files_under_their_last_names() {
    let bench = Bench::with_rules(&["open:plain"]).await;
    bench.tree("source", 20);
    let copied = bench.upload("source", "target").await;
    assert_copied(&copied);
    assert_eq!(copied.notes.len(), 1, "{:?}", copied.notes);
    assert!(
        copied.notes[0].contains("a temporary name is refused"),
        "{:?}",
        copied.notes
    );
    bench.assert_tree("target", 20);
    // Over a shorter one, a longer one and none.
    for before in [Some(1000), Some(4_000_000), None] {
        let _ = std::fs::remove_file(bench.path("f"));
        if let Some(before) = before {
            std::fs::write(bench.path("f"), noise(before, 2)).unwrap();
        }
        std::fs::write(bench.path("new"), noise(3_000_000, 1)).unwrap();
        assert_copied(&bench.upload("new", "f").await);
        assert!(std::fs::read(bench.path("f")).unwrap() == noise(3_000_000, 1));
    }
    // What is really missing is told as that.
    let copied = bench.upload("new", "no/f").await;
    assert_eq!(copied.notes, Vec::<String>::new());
    assert!(
        copied.failures[0].contains("No such file"),
        "{:?}",
        copied.failures
    );
}

/// sshd runs other servers of files, too, which do not all go on after an extended request that they do not know (lsh's).
#[tokio::test]
async fn a_server_of_files_below_sshd_is_asked_for_nothing_that_it_does_not_announce() {
    let ends = ["ext:", "cut:EXTENDED:*:before:exit"];
    let bench = Bench::with_rules(&ends).await;
    for _ in 0..3 {
        let sftp = bench.host.sftp().await.unwrap();
        sftp.stat(bench.place.path().as_os_str().as_bytes())
            .await
            .unwrap();
    }
    assert!(bench.has_learnt(Lesson::OtherSftpServer));
}

#[tokio::test]
async fn a_dropbox_that_takes_files_away_gets_them_under_their_last_names() {
    let bench = Bench::with_rules(&["close:takes"]).await;
    std::fs::write(bench.path("f"), noise(10_000, 1)).unwrap();
    std::fs::create_dir(bench.path("drop")).unwrap();
    let copied = bench.upload("f", "drop/f").await;
    assert_copied(&copied);
    assert_eq!(copied.notes.len(), 1, "{:?}", copied.notes);
    assert!(std::fs::read(bench.path("drop/taken/f")).unwrap() == noise(10_000, 1));
}

#[tokio::test]
async fn attributes_are_set_by_path_where_those_of_open_files_are_not() {
    let bench = Bench::with_rules(&["status:FSETSTAT:*:8"]).await;
    for size in [10_000, 3_000_000] {
        std::fs::write(bench.path("f"), noise(size, 1)).unwrap();
        std::fs::set_permissions(bench.path("f"), PermissionsExt::from_mode(0o751)).unwrap();
        std::fs::write(bench.path("g"), noise(4_000_000, 2)).unwrap();
        assert_copied(&bench.copy(&bench.here("f"), &bench.there("g"), true).await);
        assert!(std::fs::read(bench.path("g")).unwrap() == noise(size, 1));
        let mode = std::fs::metadata(bench.path("g")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o751);
    }
}

#[tokio::test]
async fn without_any_attributes_a_file_is_written_over_and_keeps_its_own() {
    let refused = ["status:FSETSTAT:*:8", "status:SETSTAT:*:3"];
    let bench = Bench::with_rules(&refused).await;
    for (size, before) in [
        (10_000, 20_000),
        (20_000, 10_000),
        (3_000_000, 4_000_000),
        (4_000_000, 3_000_000),
    ] {
        std::fs::write(bench.path("f"), noise(size, 1)).unwrap();
        std::fs::write(bench.path("g"), noise(before, 2)).unwrap();
        std::fs::set_permissions(bench.path("g"), PermissionsExt::from_mode(0o640)).unwrap();
        assert_copied(&bench.upload("f", "g").await);
        assert!(
            std::fs::read(bench.path("g")).unwrap() == noise(size, 1),
            "{size} over {before}"
        );
        let mode = std::fs::metadata(bench.path("g")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        // Where they were asked for, the file is there and its times are missed: that is said, and not that it is incomplete.
        let copied = bench.copy(&bench.here("f"), &bench.there("g"), true).await;
        assert_eq!(copied.failures.len(), 1);
        assert!(
            copied.failures[0].contains("copied, but the server does not set its times and permissions"),
            "{:?}",
            copied.failures
        );
        assert!(std::fs::read(bench.path("g")).unwrap() == noise(size, 1));
    }
}

#[tokio::test]
async fn a_file_that_shrinks_while_it_is_fetched_leaves_the_older_one() {
    let bench = Bench::with_rules(&["resize:READ:3:50000"]).await;
    std::fs::write(bench.path("f"), noise(4_000_000, 1)).unwrap();
    std::fs::write(bench.path("g"), "an older one").unwrap();
    let copied = bench.copy(&bench.there("f"), &bench.here("g"), false).await;
    assert_eq!(copied.failures.len(), 1);
    assert!(
        copied.failures[0].contains("it changed while it was copied"),
        "{:?}",
        copied.failures
    );
    assert_eq!(std::fs::read(bench.path("g")).unwrap(), b"an older one");
    // The same for those who read by themselves.
    std::fs::write(bench.path("f"), noise(4_000_000, 1)).unwrap();
    let sftp = bench.host.sftp().await.unwrap();
    let error = sftp
        .read(bench.path("f").as_os_str().as_bytes())
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("it changed while it was read"),
        "{error}"
    );
}

#[tokio::test]
async fn a_server_that_keeps_other_bytes_is_found_out_by_hashes() {
    // A WRITE that is confirmed and not done, with others behind it.
    let bench = Bench::with_rules(&["limits:32768:32768:1019", "status:WRITE:2:0"]).await;
    bench.tree("source", 20);
    std::fs::write(bench.path("source/f20"), "").unwrap();
    std::fs::write(bench.path("source/holed"), noise(200_000, 1)).unwrap();
    let verified = || {
        let mut options = CopyOptions::default();
        options.verify = true;
        options
    };
    std::fs::create_dir(bench.path("one")).unwrap();
    let (from, to) = (bench.here("source/holed"), bench.there("one/holed"));
    let copied = bench.copy_as(&from, &to, verified()).await;
    assert_eq!(copied.failures.len(), 1);
    assert!(
        copied.failures[0].contains("its content is not the source's, by SHA-256"),
        "{:?}",
        copied.failures
    );
    bench.server.set(&[]).unwrap();
    for (from, to) in [
        (bench.here("source"), bench.there("up")),
        (bench.there("source"), bench.here("down")),
        (bench.there("source"), bench.there("across")),
    ] {
        let copied = bench.copy_as(&from, &to, verified()).await;
        assert_copied(&copied);
        assert_eq!(copied.result.unwrap().files, 23);
    }
}

#[tokio::test]
async fn what_fails_in_the_middle_of_many_files_damages_none_that_were_whole() {
    // A disk that is full now and then, and an EOF too early.
    for rule in [
        "status:WRITE:60-80:4",
        "status:CLOSE:50-70:4",
        "status:FSTAT:90-95:4",
    ] {
        let bench = Bench::with_rules(&[rule]).await;
        bench.tree("source", 200);
        std::fs::create_dir(bench.path("target")).unwrap();
        std::fs::create_dir(bench.path("target/source")).unwrap();
        for at in 0..200 {
            std::fs::write(bench.path(&format!("target/source/f{at}")), "older").unwrap();
        }
        let copied = bench.upload("source", "target").await;
        let failed = copied.result.unwrap().failed;
        let mut older = 0;
        for at in 0..200 {
            let content = std::fs::read(bench.path(&format!("target/source/f{at}"))).unwrap();
            if content == b"older" {
                older += 1;
            } else {
                assert!(content == noise(at * 37 % 9000, at as u64), "{rule}: f{at}");
            }
        }
        assert_eq!(older, failed, "{rule}");
        assert_eq!(failed as usize, copied.failures.len());
        let names = std::fs::read_dir(bench.path("target/source")).unwrap().count();
        assert_eq!(names, 200, "{rule}: something is left");
    }
}

/// An engine that waits for a second or three where others wait for half a minute.
fn impatient() -> Engine {
    let settings = Settings {
        copy_resume_for: Duration::from_secs(1),
        sftp_silence: Duration::from_secs(3),
        ..Settings::default()
    };
    engine_with(settings)
}

#[tokio::test]
async fn a_server_that_stops_answering_is_left_and_asked_anew() {
    let bench = Bench::with_engine(&["sessions:1", "stall:WRITE:5:3600"], impatient()).await;
    bench.tree("source", 20);
    assert_copied(&bench.upload("source", "target").await);
    bench.assert_tree("target", 20);
    assert!(bench.server.sshd().connections() > 1, "on another connection");
}

#[tokio::test]
async fn a_server_that_never_begins_is_told_within_a_bounded_time() {
    let bench = Bench::with_engine(&["stall:INIT:1:3600"], impatient()).await;
    std::fs::write(bench.path("f"), "f").unwrap();
    let copied = bench.upload("f", "g").await;
    let error = copied.result.unwrap_err().to_string();
    assert!(error.contains("has not answered for 1 s"), "{error}");
    assert!(!bench.path("g").exists());
    // The same for one that stops in each session again.
    bench.server.set(&["stall:OPEN:1:3600"]).unwrap();
    let copied = bench.upload("f", "g").await;
    let error = copied.result.unwrap_err().to_string();
    assert!(error.contains("has not answered for 3 s"), "{error}");
}

#[tokio::test]
async fn a_file_that_cannot_be_closed_or_synced_is_told_with_what_is_there() {
    for (rule, words) in [
        (
            "status:CLOSE:*:4",
            "the server could not close it (failure: told to say so)",
        ),
        (
            "status:fsync@openssh.com:*:4",
            "the server could not write it to its disk (failure: told to say so)",
        ),
    ] {
        for size in [1000, 3_000_000] {
            let bench = Bench::with_rules(&[rule]).await;
            std::fs::write(bench.path("source"), noise(size, 1)).unwrap();
            std::fs::write(bench.path("target"), "old").unwrap();
            let mut options = CopyOptions::default();
            options.sync = true;
            let (from, to) = (bench.here("source"), bench.there("target"));
            let failures = bench.copy_as(&from, &to, options).await.failures;
            let wanted = format!("/target: {words}; the file that was there is unchanged");
            assert!(
                failures.len() == 1 && failures[0].ends_with(&wanted),
                "{rule}, {size}: {failures:?}"
            );
            assert_eq!(std::fs::read(bench.path("target")).unwrap(), b"old");
        }
    }
}
