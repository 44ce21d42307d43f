//! Whether an audit trail is as it was written.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::fs::FlockOperation;
use serde::Serialize;

use crate::chain::{Head, Link};
use crate::hash::Hash;
use crate::journal::{self, PATIENCE, list};

/// What was found.
#[derive(Debug, Default, Serialize)]
pub struct Verdict {
    /// Nothing is wrong.
    pub intact: bool,
    /// Files of the trail.
    pub files: usize,
    /// Records in them.
    pub lines: u64,
    /// The first line's number: beyond 1, what was before is not there any more, which nothing tells from a removal.
    pub first: Option<u64>,
    /// The last line's number, hash and time.
    pub head: Option<String>,
    /// As `head`.
    pub last_time: Option<String>,
    /// Begun, and not ended in what is here.
    pub unfinished: usize,
    /// What those who write have noted about the trail.
    pub notes: Vec<String>,
    /// What is wrong.
    pub problems: Vec<String>,
}

/// Where the reading is.
struct Reading {
    verdict: Verdict,
    head: Option<Head>,
    /// A line that is not one, which the next has to explain.
    broken: Option<(String, Hash)>,
    begun: HashSet<String>,
    expected: Option<Head>,
    seen_expected: bool,
}

/// Problems that are named one by one; the others are counted.
const MOST_PROBLEMS: usize = 100;

/// Reads the whole trail in `folder`. `expected` is an end of the chain that somebody noted earlier (NUMBER:HASH): it has
/// to be there.
///
/// # Errors
/// The files cannot be read, there is none, or `expected` makes no sense.
pub fn verify(folder: &Path, expected: Option<&str>) -> anyhow::Result<Verdict> {
    let expected = expected.map(str::parse::<Head>).transpose();
    let expected = expected.context("the record to look for")?;
    let here = || format!("the audit trail in {}", folder.display());
    let Trail { files, noted } = find(folder).with_context(here)?;
    anyhow::ensure!(!files.is_empty(), "{} has no audit.jsonl", folder.display());
    let mut reading = Reading {
        verdict: Verdict {
            files: files.len(),
            ..Verdict::default()
        },
        head: None,
        broken: None,
        begun: HashSet::new(),
        expected,
        seen_expected: false,
    };
    for (path, len) in &files {
        reading.file(path, *len).with_context(here)?;
    }
    Ok(reading.finish(noted))
}

/// A trail's files, oldest first, each with as many bytes of it as are to be read; and the end that its writers have noted.
struct Trail {
    files: Vec<(PathBuf, u64)>,
    noted: Option<Head>,
}

/// Looks while nobody writes: what is added later is not read.
fn find(folder: &Path) -> io::Result<Trail> {
    let lock = File::open(folder.join("head")).ok();
    if let Some(lock) = &lock {
        journal::lock(lock, FlockOperation::NonBlockingLockShared, PATIENCE)?;
    }
    let mut paths = list(folder)?;
    let current = folder.join("audit.jsonl");
    if current.try_exists()? {
        paths.push(current);
    }
    let sized = paths.into_iter().map(|path| {
        let len = path.metadata()?.len();
        Ok((path, len))
    });
    let files = sized.collect::<io::Result<_>>()?;
    let noted = lock.and_then(|lock| std::io::read_to_string(lock).ok());
    let noted = noted.and_then(|text| text.lines().next()?.parse::<Head>().ok());
    Ok(Trail { files, noted })
}

impl Reading {
    fn file(&mut self, path: &Path, len: u64) -> io::Result<()> {
        let name = path.file_name().unwrap_or_default().display().to_string();
        let mut reader = BufReader::new(File::open(path)?.take(len));
        let mut line = Vec::new();
        let mut at = 0;
        loop {
            line.clear();
            if reader.read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            at += 1;
            let place = format!("{name}, line {at}");
            if line.pop_if(|byte| *byte == b'\n').is_none() {
                self.problem(format!("{place} is incomplete"));
                return Ok(());
            }
            self.line(&line, &place);
        }
    }

    fn line(&mut self, line: &[u8], place: &str) {
        let Some(link) = Link::read(line) else {
            if let Some((earlier, _)) = self.broken.replace((place.to_owned(), Hash::of(line))) {
                self.problem(format!("{earlier} is not a line of the trail"));
            }
            return;
        };
        if let Some((earlier, hash)) = self.broken.take() {
            let is_explained = link.torn_sha256.as_ref() == Some(&hash.to_string());
            if !is_explained {
                self.problem(format!("{earlier} is not a line of the trail"));
            }
        }
        self.verdict.lines += 1;
        self.verdict.first.get_or_insert(link.number);
        let before = self.head.unwrap_or(match link.number {
            1 => Head::default(),
            // What was before is not here: there is nothing to compare with.
            number => Head {
                number: number.saturating_sub(1),
                hash: link.previous.parse().unwrap_or_default(),
            },
        });
        let expected = before.number + 1;
        if link.number > expected {
            let missing = match link.number - 1 {
                last if last == expected => format!("record {last} is missing"),
                last => format!("records {expected} to {last} are missing"),
            };
            self.problem(format!("{place}: {missing} before it"));
        } else if link.number < expected {
            self.problem(format!("{place} has number {} and not {expected}", link.number));
        } else if link.previous != before.hash.to_string() {
            self.problem(format!(
                "{place}: record {}, before it, is not as it was written",
                before.number
            ));
        }
        let head = link.head(line);
        self.head = Some(head);
        self.verdict.last_time = Some(link.time);
        self.seen_expected |= self.expected == Some(head);
        if let (Some(id), event) = (link.id, &*link.event) {
            match event {
                "begin" => drop(self.begun.insert(id)),
                "end" => drop(self.begun.remove(&id)),
                _ => {}
            }
        }
        if let Some(note) = link.note {
            if link.broken {
                self.problem(format!("record {}: {note}", link.number));
            }
            self.verdict.notes.push(format!("record {}: {note}", link.number));
        }
    }

    fn problem(&mut self, text: String) {
        self.verdict.problems.push(text);
    }

    fn finish(mut self, noted: Option<Head>) -> Verdict {
        if let Some((place, _)) = self.broken.take() {
            self.problem(format!("{place} is not a line of the trail"));
        }
        let head = self.head.unwrap_or_default();
        if let Some(noted) = noted {
            if noted.number > head.number {
                let missing = match head.number + 1 {
                    first if first == noted.number => format!("record {first} was"),
                    first => format!("records {first} to {} were", noted.number),
                };
                self.problem(format!("the end is missing: {missing} written"));
            } else if noted.number == head.number && noted.hash != head.hash {
                self.problem(format!(
                    "record {}, the last, is not as it was written",
                    head.number
                ));
            }
        }
        if let Some(expected) = self.expected.filter(|_| !self.seen_expected) {
            self.problem(format!("record {expected} is not there, or not as it was"));
        }
        let Self {
            mut verdict, begun, ..
        } = self;
        let surplus = verdict.problems.len().saturating_sub(MOST_PROBLEMS);
        verdict.problems.truncate(MOST_PROBLEMS);
        if surplus > 0 {
            verdict.problems.push(format!("and {surplus} more"));
        }
        verdict.intact = verdict.problems.is_empty();
        verdict.head = self.head.map(|head| head.to_string());
        verdict.unfinished = begun.len();
        verdict
    }
}

impl Verdict {
    /// For people: what is wrong, then what there is.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        for problem in &self.problems {
            let _ = writeln!(text, "WRONG: {problem}");
        }
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        let state = if self.intact { "intact" } else { "not intact" };
        let s = |is_one: bool| if is_one { "" } else { "s" };
        let (lines, files) = (self.lines, self.files);
        let (of_lines, of_files) = (s(lines == 1), s(files == 1));
        let _ = writeln!(
            text,
            "{state}: {lines} record{of_lines} in {files} file{of_files}"
        );
        match self.first {
            None | Some(1) => {}
            Some(first) => {
                let _ = writeln!(
                    text,
                    "it begins with record {first}: earlier files were removed, which the chain cannot vouch for"
                );
            }
        }
        let killed = "or the process that ran";
        let _ = match self.unfinished {
            0 => Ok(()),
            1 => writeln!(
                text,
                "1 was begun and has no end here: it is still running, {killed} it was killed"
            ),
            many => writeln!(
                text,
                "{many} were begun and have no end here: they are still running, {killed} them was killed"
            ),
        };
        if let (Some(head), Some(time)) = (&self.head, &self.last_time) {
            let _ = writeln!(text, "last record: {head} ({time})");
        }
        text
    }
}
