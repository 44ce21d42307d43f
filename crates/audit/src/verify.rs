//! The check that an audit trail is intact.
//!
//! An attacker who could write the trail could write anything for its reader. So the text that is kept is bounded and
//! made printable.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::fs::{FlockOperation, OFlags};
use serde::Serialize;
use trunkline::Printable;

use crate::chain::{Head, Link};
use crate::hash::Hash;
use crate::journal::{self, LONGEST_LINE, PATIENCE, list};

/// The result of the check.
#[derive(Debug, Default, Serialize)]
pub struct Verdict {
    /// True if nothing is wrong.
    pub intact: bool,
    /// The number of files.
    pub files: usize,
    /// The number of records.
    pub lines: u64,
    /// The number of the first line. If above 1, earlier lines are missing, which cannot be told from a removal.
    pub first: Option<u64>,
    /// The last line's number, hash and time.
    pub head: Option<String>,
    pub last_time: Option<String>,
    /// The number of beginnings without an end.
    pub unfinished: usize,
    /// The writers' notes about the trail.
    pub notes: Vec<String>,
    pub problems: Vec<String>,
}

/// The state of the check.
struct Reading {
    verdict: Verdict,
    head: Option<Head>,
    /// An invalid line, which the next one must explain.
    broken: Option<(String, Hash)>,
    begun: HashSet<Hash>,
    /// The numbers of problems and notes that are not listed.
    unnamed: (u64, u64),
    expected: Option<Head>,
    seen_expected: bool,
}

/// The number of problems, and of notes, that are listed. Further ones are counted.
const MOST_NAMED: usize = 100;
/// The maximum number of unfinished records kept in memory; further ones are not counted.
const MOST_BEGUN: usize = 1_000_000;

/// Checks the whole trail in `directory`. `expected` is an end of the chain that was noted earlier (NUMBER:HASH) and
/// must be in it.
///
/// # Errors
/// The files are missing or cannot be read, or `expected` is invalid.
pub fn verify(directory: &Path, expected: Option<&str>) -> anyhow::Result<Verdict> {
    let expected = expected.map(str::parse::<Head>).transpose();
    let expected = expected.context("the record to look for")?;
    let here = || format!("the audit trail in {}", directory.display());
    let Trail { files, noted } = find(directory).with_context(here)?;
    anyhow::ensure!(!files.is_empty(), "{} has no audit.jsonl", directory.display());
    let mut reading = Reading {
        verdict: Verdict {
            files: files.len(),
            ..Verdict::default()
        },
        head: None,
        broken: None,
        begun: HashSet::new(),
        unnamed: (0, 0),
        expected,
        seen_expected: false,
    };
    for (path, len) in &files {
        reading.file(path, *len).with_context(here)?;
    }
    Ok(reading.finish(noted))
}

/// A trail's files, oldest first, each with the number of bytes to read, and the end that its writers have noted.
pub(crate) struct Trail {
    pub(crate) files: Vec<(PathBuf, u64)>,
    noted: Option<Head>,
}

/// Finds the files while nobody writes. Later additions are not read.
pub(crate) fn find(directory: &Path) -> io::Result<Trail> {
    let lock = open(&directory.join("head")).ok();
    if let Some(lock) = &lock {
        journal::lock(lock, FlockOperation::NonBlockingLockShared, PATIENCE)?;
    }
    let mut paths = list(directory)?;
    let current = directory.join("audit.jsonl");
    if current.try_exists()? {
        paths.push(current);
    }
    let sized = paths.into_iter().map(|path| {
        let len = open(&path)?.metadata()?.len();
        Ok((path, len))
    });
    let files = sized.collect::<io::Result<_>>()?;
    // A head's length.
    let noted = lock.and_then(|lock| std::io::read_to_string(lock.take(256)).ok());
    let noted = noted.and_then(|text| text.lines().next()?.parse::<Head>().ok());
    Ok(Trail { files, noted })
}

/// Opens a file of the trail, but nothing that would block, such as a FIFO.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other(format!("{} is not a file", path.display()))),
    }
}

/// Reads a line, and keeps at most the longest valid length. Returns true if it is longer, and false at the end
/// of the file.
pub(crate) fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<(bool, bool)> {
    line.clear();
    let read = reader.take(LONGEST_LINE + 1).read_until(b'\n', line)?;
    let mut is_longer = read as u64 > LONGEST_LINE;
    if !is_longer || line.ends_with(b"\n") {
        return Ok((is_longer, read > 0));
    }
    is_longer = true;
    line.clear();
    reader.skip_until(b'\n')?;
    Ok((is_longer, true))
}

impl Reading {
    fn file(&mut self, path: &Path, len: u64) -> io::Result<()> {
        let name = path.file_name().unwrap_or_default().display().to_string();
        let mut reader = BufReader::new(open(path)?.take(len));
        let mut line = Vec::new();
        let mut at = 0;
        loop {
            let (is_longer, is_there) = read_line(&mut reader, &mut line)?;
            if !is_there {
                return Ok(());
            }
            at += 1;
            let place = format!("{name}, line {at}");
            if is_longer {
                self.problem(format!("{place} is longer than any line of the trail"));
                continue;
            }
            if line.pop_if(|byte| *byte == b'\n').is_none() {
                self.problem(format!("{place} is incomplete"));
                return Ok(());
            }
            self.line(&line, &place);
        }
    }

    fn line(&mut self, line: &[u8], place: &str) {
        let Some(link) = Link::read(line) else {
            if let Some((earlier, _)) = self.broken.replace((place.to_owned(), Hash::digest(line))) {
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
            // Earlier lines are missing, so there is nothing to compare with.
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
        self.verdict.last_time = Some(Printable::line(link.time).into_string());
        self.seen_expected |= self.expected == Some(head);
        if let (Some(id), event) = (link.id, &*link.event) {
            let id = Hash::digest(id.as_bytes());
            match event {
                "begin" if self.begun.len() < MOST_BEGUN => drop(self.begun.insert(id)),
                "end" => drop(self.begun.remove(&id)),
                _ => {}
            }
        }
        if let Some(note) = link.note {
            let note = format!("record {}: {}", link.number, Printable::line(note));
            if link.broken {
                self.problem(note.clone());
            }
            add_name(&mut self.verdict.notes, &mut self.unnamed.1, note);
        }
    }

    fn problem(&mut self, text: String) {
        add_name(&mut self.verdict.problems, &mut self.unnamed.0, text);
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
            mut verdict,
            begun,
            unnamed: (problems, notes),
            ..
        } = self;
        for (texts, surplus) in [(&mut verdict.problems, problems), (&mut verdict.notes, notes)] {
            if surplus > 0 {
                texts.push(format!("and {surplus} more"));
            }
        }
        verdict.intact = verdict.problems.is_empty();
        verdict.head = self.head.map(|head| head.to_string());
        verdict.unfinished = begun.len();
        verdict
    }
}

/// Adds a text, or counts it if the list is full.
fn add_name(texts: &mut Vec<String>, unnamed: &mut u64, text: String) {
    if texts.len() < MOST_NAMED {
        texts.push(text);
    } else {
        *unnamed += 1;
    }
}

impl Verdict {
    /// Describes the result for display: first the state, then the problems, so that nothing in the trail can push them
    /// out of sight.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
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
        for problem in &self.problems {
            let _ = writeln!(text, "WRONG: {problem}");
        }
        text
    }
}
