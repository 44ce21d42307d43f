use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::chain::Head;
use crate::journal::Journal;
use crate::record::Record;
use crate::subject::Exact;
use crate::verify::{Verdict, verify};

const LARGE: u64 = 1 << 20;

fn note(text: &str) -> Record {
    Record::note(text)
}

fn lines(directory: &Path) -> Vec<String> {
    let text = fs::read_to_string(directory.join("audit.jsonl")).unwrap();
    text.lines().map(Into::into).collect()
}

fn rewrite(directory: &Path, lines: &[String]) {
    fs::write(directory.join("audit.jsonl"), lines.join("\n") + "\n").unwrap();
}

fn verdict(directory: &Path) -> Verdict {
    verify(directory, None).unwrap()
}

/// Returns a trail of five lines.
fn five() -> (tempfile::TempDir, Journal, Head) {
    let directory = tempfile::tempdir().unwrap();
    let mut journal = Journal::new(directory.path().to_owned(), LARGE, 0);
    let records: Vec<_> = (1..=5).map(|number| note(&format!("this is {number}"))).collect();
    let head = journal.append(&records, true).unwrap();
    (directory, journal, head)
}

#[test]
fn an_untouched_trail_is_intact_and_its_owners_alone() {
    let (directory, _, head) = five();
    let found = verdict(directory.path());
    assert!(found.intact, "{found:?}");
    assert_eq!((found.lines, found.first), (5, Some(1)));
    assert_eq!(found.head, Some(head.to_string()));
    for name in ["audit.jsonl", "head"] {
        let mode = fs::metadata(directory.path().join(name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn a_changed_record_is_found_in_every_place() {
    for at in 0..5 {
        let (directory, ..) = five();
        let mut lines = lines(directory.path());
        lines[at] = lines[at].replace("this is", "that was");
        rewrite(directory.path(), &lines);
        let found = verdict(directory.path());
        assert!(!found.intact, "{at}");
        let named = format!("record {}", at + 1);
        assert!(
            found.problems.iter().any(|problem| problem.contains(&named)),
            "{at}: {found:?}"
        );
    }
}

#[test]
fn a_removed_record_is_found_in_every_place_but_the_first() {
    for at in 0..5 {
        let (directory, ..) = five();
        let mut lines = lines(directory.path());
        lines.remove(at);
        rewrite(directory.path(), &lines);
        let found = verdict(directory.path());
        // Missing lines at the start may have been in an older file: they are reported, but do not count as damage.
        assert_eq!(found.intact, at == 0, "{at}: {found:?}");
        assert_eq!(found.first, Some(if at == 0 { 2 } else { 1 }));
    }
}

#[test]
fn a_removed_end_is_known_by_the_head_or_by_what_somebody_noted() {
    let (directory, _, head) = five();
    let mut lines = lines(directory.path());
    lines.truncate(3);
    rewrite(directory.path(), &lines);
    let found = verdict(directory.path());
    assert_eq!(
        found.problems,
        ["the end is missing: records 4 to 5 were written"]
    );
    assert!(
        found.describe().contains("\nnot intact: 3 records in 1 file\n"),
        "{}",
        found.describe()
    );
    // If the head is removed as well, only a record noted elsewhere shows it.
    fs::remove_file(directory.path().join("head")).unwrap();
    assert!(verdict(directory.path()).intact);
    let wrong = verify(directory.path(), Some("5:abc")).unwrap_err();
    assert!(format!("{wrong:#}").starts_with("the record to look for: expected NUMBER:HASH"));
    let noted = verify(directory.path(), Some(&head.to_string())).unwrap();
    assert!(!noted.intact && noted.problems[0].contains("5:"), "{noted:?}");
}

#[test]
fn records_that_changed_places_are_found() {
    let (directory, ..) = five();
    let mut lines = lines(directory.path());
    lines.swap(1, 2);
    rewrite(directory.path(), &lines);
    assert!(!verdict(directory.path()).intact);
}

#[test]
fn an_incomplete_line_is_told_of_by_the_next_and_costs_no_more_than_itself() {
    let (directory, journal, _) = five();
    drop(journal);
    let path = directory.path().join("audit.jsonl");
    let whole = fs::read_to_string(&path).unwrap();
    // As after a crash of the machine: the head may include a line that the file has lost.
    let torn = &whole[..whole.len() - 20];
    for noted in [Some(4), Some(5)] {
        fs::write(&path, torn).unwrap();
        if noted == Some(4) {
            let fourth = Head::default();
            fs::write(directory.path().join("head"), fourth.to_string()).unwrap();
        }
        assert!(!verdict(directory.path()).intact, "the last line is incomplete");
        let mut journal = Journal::new(directory.path().to_owned(), LARGE, 0);
        journal.append(&[note("after")], false).unwrap();
        let found = verdict(directory.path());
        assert!(
            found.notes.iter().any(|note| note.contains("incomplete")),
            "{found:?}"
        );
        if noted == Some(4) {
            assert!(found.intact, "{found:?}");
        }
        fs::write(directory.path().join("head"), "").unwrap();
    }
}

#[test]
fn an_incomplete_line_at_the_end_of_a_full_file_is_explained_there() {
    let directory = tempfile::tempdir().unwrap();
    let mut journal = Journal::new(directory.path().to_owned(), 600, 0);
    journal.append(&[note("before")], false).unwrap();
    // The writer was killed during a write, or the disk was full.
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(directory.path().join("audit.jsonl"))
        .unwrap();
    file.write_all(&[b'x'; 500]).unwrap();
    for text in ["after", "in another file"] {
        journal.append(&[note(text)], false).unwrap();
        let found = verdict(directory.path());
        assert!(found.intact, "{text}: {found:?}");
    }
    assert_eq!(verdict(directory.path()).files, 2);
}

#[test]
fn the_daemon_notes_an_end_that_was_removed_and_the_gap_stays() {
    let (directory, journal, _) = five();
    drop(journal);
    let mut lines = lines(directory.path());
    lines.truncate(2);
    rewrite(directory.path(), &lines);
    let mut journal = Journal::new(directory.path().to_owned(), LARGE, 0);
    journal.append(&[note("after")], false).unwrap();
    let found = verdict(directory.path());
    assert!(
        found.notes.iter().any(|note| note.contains("are gone: 3 to 5")),
        "{found:?}"
    );
    assert!(
        found.problems[0].contains("records 3 to 5 are missing"),
        "{found:?}"
    );
}

#[test]
fn the_chain_goes_on_across_files_and_the_oldest_go() {
    let directory = tempfile::tempdir().unwrap();
    let mut journal = Journal::new(directory.path().to_owned(), 600, 0);
    for number in 0..20 {
        journal
            .append(&[note(&format!("this is {number}"))], false)
            .unwrap();
    }
    let found = verdict(directory.path());
    assert!(found.intact && found.files > 3, "{found:?}");
    assert_eq!((found.lines, found.first), (20, Some(1)));
    let mut journal = Journal::new(directory.path().to_owned(), 600, 2);
    for number in 20..30 {
        journal
            .append(&[note(&format!("this is {number}"))], false)
            .unwrap();
    }
    let found = verdict(directory.path());
    assert!(found.intact, "{found:?}");
    assert_eq!(found.files, 2);
    assert!(found.first > Some(20));
    assert!(found.describe().contains("earlier files were removed"));
}

#[test]
fn two_that_write_at_once_make_one_chain() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &'static str| {
        let mut journal = Journal::new(directory.path().to_owned(), 4096, 0);
        move || {
            for number in 0..100 {
                journal
                    .append(&[note(&format!("{name} {number}"))], false)
                    .unwrap();
            }
        }
    };
    let threads = ["one", "other"].map(|name| std::thread::spawn(write(name)));
    for thread in threads {
        thread.join().unwrap();
    }
    let found = verdict(directory.path());
    assert!(found.intact, "{found:?}");
    assert_eq!(found.lines, 200);
    assert!(found.notes.iter().all(|note| !note.contains("gone")), "{found:?}");
}

#[test]
fn a_file_that_somebody_removed_is_noted_and_the_chain_goes_on() {
    let (directory, mut journal, _) = five();
    fs::remove_file(directory.path().join("audit.jsonl")).unwrap();
    let head = journal.append(&[note("after")], false).unwrap();
    assert_eq!(head.number, 7, "with a note of what is gone");
    let found = verdict(directory.path());
    assert!(found.notes[0].contains("are gone: 1 to 5"), "{found:?}");
    assert!(!found.intact, "what nobody rotated away is missing: {found:?}");
}

#[test]
fn what_is_not_shown_as_it_was_is_identified() {
    let exact = |bytes: &[u8]| serde_json::to_value(Exact::new(bytes)).unwrap();
    assert_eq!(exact(b"uptime"), serde_json::json!({"command": "uptime"}));
    let shown = exact(b"a\x1b[2Jb");
    assert_eq!(shown["command"], "a\\033[2Jb");
    assert_eq!(shown["command_bytes"], 6);
    let long = exact(&[b'x'; 100_000]);
    assert!(long["command"].as_str().unwrap().len() <= 4096);
    assert_eq!(long["command_sha256"].as_str().unwrap().len(), 64);
}

/// Writes to the trail in the directory in the environment until it is killed. Without that variable does nothing.
#[test]
fn a_process_that_writes_until_it_is_killed() {
    let Some(directory) = std::env::var_os(WRITES_TO) else {
        return;
    };
    let mut journal = Journal::new(directory.into(), 2000, 0);
    for number in 0.. {
        let text = format!("{} wrote {number}", std::process::id());
        journal.append(&[note(&text)], number % 16 == 0).unwrap();
    }
}

const WRITES_TO: &str = "TRUNKLINE_TEST_WRITES_TO";

#[test]
fn processes_that_are_killed_in_the_middle_lose_no_line_but_their_last() {
    let directory = tempfile::tempdir().unwrap();
    let start = || {
        let program = std::env::current_exe().unwrap();
        let mut command = std::process::Command::new(program);
        command
            .args(["--exact", "tests::a_process_that_writes_until_it_is_killed"])
            .env(WRITES_TO, directory.path())
            .stdout(std::process::Stdio::null());
        command.spawn().unwrap()
    };
    let written = || {
        let text = fs::read_to_string(directory.path().join("head")).unwrap_or_default();
        let number = text
            .split(':')
            .next()
            .and_then(|number| number.parse::<u64>().ok());
        number.unwrap_or(0)
    };
    let mut writers: Vec<_> = (0..4).map(|_| start()).collect();
    // Each writer is killed while the others continue, and is replaced by another.
    for round in 1..=12 {
        let until = written() + 50;
        while written() < until {
            assert!(
                writers
                    .iter_mut()
                    .all(|writer| writer.try_wait().unwrap().is_none()),
                "a writer has failed"
            );
            std::thread::yield_now();
        }
        let mut killed = writers.remove(0);
        killed.kill().unwrap();
        killed.wait().unwrap();
        if round <= 8 {
            writers.push(start());
        }
    }
    assert!(writers.is_empty());
    // The next writer explains an incomplete line.
    let mut journal = Journal::new(directory.path().to_owned(), 2000, 0);
    let head = journal.append(&[note("after")], false).unwrap();
    let found = verdict(directory.path());
    assert!(found.intact && found.files > 10, "{found:?}");
    assert_eq!((found.lines, found.first), (head.number, Some(1)));
    let unexplained: Vec<_> = found.notes.iter().filter(|note| note.contains("gone")).collect();
    assert!(unexplained.is_empty(), "{unexplained:?}");
}

#[test]
fn nothing_of_a_trail_acts_on_the_terminal_of_whoever_checks_it() {
    let directory = tempfile::tempdir().unwrap();
    // A chain written by the attacker: each line is consistent.
    let mut head = Head::default();
    let mut text = Vec::new();
    for number in 0..300 {
        let mut record = note(&format!("\u{1b}[2Jnothing is wrong\n{number}\u{202e}"));
        record.time = "\u{1b}]0;title\u{7}".into();
        record.note.as_mut().unwrap().broken = number % 2 == 0;
        head.add(&record, &mut text).unwrap();
    }
    fs::write(directory.path().join("audit.jsonl"), text).unwrap();
    let found = verdict(directory.path());
    let described = found.describe();
    assert!(
        !described.contains(|c: char| (c.is_control() && c != '\n') || c == '\u{202e}'),
        "{described:?}"
    );
    // 100 of each are listed, and the problems come last.
    assert!(!found.intact);
    assert_eq!((found.problems.len(), found.notes.len()), (101, 101));
    assert_eq!(described.lines().last(), Some("WRONG: and 50 more"));
}

#[test]
fn a_line_without_end_is_neither_kept_nor_the_end_of_the_check() {
    let (directory, mut journal, _) = five();
    let path = directory.path().join("audit.jsonl");
    let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    // Sparse: longer than memory would allow.
    let len = file.metadata().unwrap().len();
    file.set_len(len + (64 << 20)).unwrap();
    file.write_all(b"\n").unwrap();
    drop(file);
    journal.append(&[note("after")], false).unwrap();
    let found = verdict(directory.path());
    assert!(
        found
            .problems
            .iter()
            .any(|problem| problem.contains("longer than any line")),
        "{found:?}"
    );
    assert!(found.lines >= 6, "{found:?}");
}

#[test]
fn what_is_not_a_file_is_not_waited_for() {
    let (directory, ..) = five();
    let fifo = |name: &str| {
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, directory.path().join(name), kind, mode, 0).unwrap();
    };
    fs::remove_file(directory.path().join("head")).unwrap();
    fifo("head");
    assert!(verdict(directory.path()).intact);
    fifo("audit-000000000001.jsonl");
    let refused = format!("{:#}", verify(directory.path(), None).unwrap_err());
    assert!(refused.contains("is not a file"), "{refused}");
}
