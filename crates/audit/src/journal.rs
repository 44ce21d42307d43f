//! The files of the audit trail: `audit.jsonl`, and `audit-N.jsonl` for older ones, where N is the number of the last
//! line.
//!
//! Several processes may write: a daemon that waits for its last sessions beside its successor, private daemons, and
//! programs with their own engine. So each append locks the file `head`, which also stores the end of the chain. This
//! reveals a removed tail, unless `head` was changed as well.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use trunkline_control::place::make_private;

use crate::chain::{Head, Link};
use crate::hash::Hash;
use crate::record::{Note, Record};

/// More than the longest line. Each text in it is bounded (`Printable`), and so is the number of a copy's sources,
/// [`crate::MAX_SOURCES`].
pub(crate) const LONGEST_LINE: u64 = 1024 * 1024;

/// The trail's files, for one writing process.
#[derive(Debug)]
pub(crate) struct Journal {
    directory: PathBuf,
    /// The size in bytes after which a new file is started.
    file_size: u64,
    /// The most files to keep, including the current one; 0 for all.
    files: usize,
    known: Option<OpenTrail>,
}

/// The last state seen, which is current unless another process has written.
#[derive(Debug)]
struct OpenTrail {
    file: File,
    /// Device, inode and size.
    identity: (u64, u64, u64),
    head: Head,
}

/// The time to wait for another writer. Each holds the lock for one write; one that is stopped during a write (Ctrl-Z,
/// a debugger) must not block all others forever.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// The longest pause between attempts to lock.
const PAUSE: Duration = Duration::from_millis(5);

/// The lock. Dropping it unlocks.
struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing is not enough: a child forked meanwhile shares the open file and its lock (flock(2)).
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Takes the lock as soon as it is free. `how` must not block.
pub(crate) fn lock(file: &File, how: FlockOperation, patience: Duration) -> io::Result<()> {
    let until = Instant::now() + patience;
    let mut pause = Duration::from_micros(50);
    loop {
        match flock(file, how) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                std::thread::sleep(pause);
                pause = (2 * pause).min(PAUSE);
            }
            Err(Errno::WOULDBLOCK) => {
                let held = "another process has held the lock of the audit trail for too long";
                return Err(io::Error::new(io::ErrorKind::TimedOut, held));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

impl Locked {
    fn take(directory: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(directory.join("head"))?;
        lock(&file, FlockOperation::NonBlockingLockExclusive, PATIENCE)?;
        Ok(Self(file))
    }

    /// Returns the end of the chain after the last write, or the empty chain's if it cannot be read.
    fn head(&self) -> Head {
        let mut text = [0; 128];
        let read = self.0.read_at(&mut text, 0).unwrap_or_default();
        let text = str::from_utf8(&text[..read]).unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        line.parse().unwrap_or_default()
    }

    /// Stores the end of the chain, with a fixed length, so that writing in place overwrites the previous one.
    fn set_head(&self, head: Head) -> io::Result<()> {
        let text = format!("{head:<100}\n");
        self.0.write_all_at(text.as_bytes(), 0)
    }
}

/// The end of a file.
#[derive(Debug, Default)]
struct Tail {
    /// The chain's end after the last whole line.
    head: Option<Head>,
    /// The bytes of an incomplete line after it.
    torn: Vec<u8>,
}

impl Journal {
    /// Returns the trail in `directory`, which is created at the first write.
    pub(crate) fn new(directory: PathBuf, file_size: u64, files: usize) -> Self {
        Self {
            directory,
            file_size,
            files,
            known: None,
        }
    }

    pub(crate) fn current(&self) -> PathBuf {
        self.directory.join("audit.jsonl")
    }

    /// Appends all records or none. With `sync` they are on disk when this returns.
    ///
    /// # Errors
    /// The file cannot be opened or written. A partial write is undone if possible.
    pub(crate) fn append(&mut self, records: &[Record], sync: bool) -> io::Result<Head> {
        if self.known.is_none() {
            make_private(&self.directory).map_err(io::Error::other)?;
        }
        let lock = Locked::take(&self.directory)?;
        let mut lines = Vec::new();
        let mut known = self.look(&lock, &mut lines)?;
        let before = known.identity.2;
        let mut head = known.head;
        for record in records {
            head.add(record, &mut lines)?;
        }
        // The note about an incomplete line must be in the same file, where verifying looks for it.
        let explains = lines.first() == Some(&b'\n');
        if before > 0 && !explains && before + lines.len() as u64 > self.file_size {
            known = self.begin_another(&known)?;
        }
        let size = known.identity.2;
        if let Err(error) = write_whole(&known.file, &lines, sync) {
            // The next writer handles the rest of a line.
            let _ = known.file.set_len(size);
            self.known = None;
            return Err(error);
        }
        known.identity.2 += lines.len() as u64;
        known.head = head;
        self.known = Some(known);
        // The lines are decisive: a head that could not be updated is behind them, which is consistent.
        let _ = lock.set_head(head);
        Ok(head)
    }

    /// Returns the current file and the chain's end, read again if another process has written. Adds notes about
    /// problems to `lines`.
    fn look(&mut self, lock: &Locked, lines: &mut Vec<u8>) -> io::Result<OpenTrail> {
        let path = self.current();
        if let Some(known) = self.known.take()
            && std::fs::metadata(&path).is_ok_and(|found| identity(&found) == known.identity)
        {
            return Ok(known);
        }
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .read(true)
            .mode(0o600)
            .open(&path)?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::other(format!("{} is not a file", path.display())));
        }
        let mut tail = tail(&file, found.len())?;
        if found.len() == 0
            && let Some(last) = list(&self.directory)?.pop()
        {
            let older = File::open(last)?;
            let len = older.metadata()?.len();
            tail.head = self::tail(&older, len)?.head;
        }
        let noted = lock.head();
        let mut head = tail.head.unwrap_or_default();
        let complaint = complaint(head, noted);
        if head.number <= noted.number {
            head = noted;
        }
        if !tail.torn.is_empty() {
            lines.push(b'\n');
            head.add(&torn_record(&tail.torn), lines)?;
        }
        if let Some(complaint) = complaint {
            head.add(&Record::chain_broken(complaint), lines)?;
        }
        Ok(OpenTrail {
            identity: identity(&found),
            file,
            head,
        })
    }

    /// Renames the current file, begins the next, and deletes the oldest ones.
    fn begin_another(&self, known: &OpenTrail) -> io::Result<OpenTrail> {
        let aside = self
            .directory
            .join(format!("audit-{:012}.jsonl", known.head.number));
        std::fs::rename(self.current(), aside)?;
        let file = OpenOptions::new()
            .create_new(true)
            .append(true)
            .read(true)
            .mode(0o600)
            .open(self.current())?;
        if self.files > 0 {
            let older = list(&self.directory)?;
            let surplus = (older.len() + 1).saturating_sub(self.files);
            for file in &older[..surplus.min(older.len())] {
                if let Err(error) = std::fs::remove_file(file) {
                    tracing::warn!(file = %file.display(), %error, "an old audit file cannot be removed");
                }
            }
        }
        Ok(OpenTrail {
            identity: identity(&file.metadata()?),
            file,
            head: known.head,
        })
    }
}

/// Lists the older files of a trail, oldest first.
pub(crate) fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| {
            let number = name.strip_prefix("audit-")?.strip_suffix(".jsonl")?;
            number.parse::<u64>().ok()
        });
        files.extend(number.map(|number| (number, entry.path())));
    }
    files.sort();
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

/// Returns a complaint if a file does not end as its last writer noted. A file that is ahead is fine: its writer was
/// killed before noting it.
fn complaint(found: Head, noted: Head) -> Option<String> {
    let said = "lines that had been written";
    if found.number < noted.number {
        let (first, last) = (found.number + 1, noted.number);
        Some(format!("{said} are gone: {first} to {last}"))
    } else if found.number == noted.number && found.hash != noted.hash {
        Some(format!("{said} are changed: {}", noted.number))
    } else {
        None
    }
}

fn torn_record(bytes: &[u8]) -> Record {
    let mut record = Record::note("");
    record.note = Some(Note {
        note: "the line before this one is incomplete: its writer was ended, or its disk was full".into(),
        broken: false,
        torn_bytes: Some(bytes.len()),
        torn_sha256: Some(Hash::digest(bytes).to_string()),
    });
    record
}

fn identity(found: &std::fs::Metadata) -> (u64, u64, u64) {
    (found.dev(), found.ino(), found.len())
}

fn write_whole(mut file: &File, lines: &[u8], sync: bool) -> io::Result<()> {
    file.write_all(lines)?;
    if sync { file.sync_data() } else { Ok(()) }
}

/// Reads the end of a file of `len` bytes.
fn tail(mut file: &File, len: u64) -> io::Result<Tail> {
    let start = len.saturating_sub(2 * LONGEST_LINE);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(2 * LONGEST_LINE).read_to_end(&mut bytes)?;
    let whole = bytes
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |end| end + 1);
    let torn = bytes.split_off(whole);
    bytes.pop();
    let lines = bytes.rsplit(|byte| *byte == b'\n');
    let head = lines.filter_map(|line| Some(Link::read(line)?.head(line))).next();
    Ok(Tail { head, torn })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_was_forked_in_the_middle_of_a_write_does_not_keep_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let held = Locked::take(directory.path()).unwrap();
        // As in a forked child: another descriptor of the same open file.
        let childs = held.0.try_clone().unwrap();
        drop(held);
        let other = File::open(directory.path().join("head")).unwrap();
        lock(&other, FlockOperation::NonBlockingLockExclusive, Duration::ZERO).unwrap();
        drop(childs);
    }

    #[test]
    fn a_writer_that_was_stopped_in_the_middle_is_not_waited_for_without_end() {
        let directory = tempfile::tempdir().unwrap();
        let held = Locked::take(directory.path()).unwrap();
        let other = File::open(directory.path().join("head")).unwrap();
        let error = lock(&other, FlockOperation::NonBlockingLockExclusive, Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("another process"), "{error}");
        // Neither does verifying.
        lock(&other, FlockOperation::NonBlockingLockShared, Duration::ZERO).unwrap_err();
        drop(held);
        lock(&other, FlockOperation::NonBlockingLockExclusive, Duration::ZERO).unwrap();
    }
}
