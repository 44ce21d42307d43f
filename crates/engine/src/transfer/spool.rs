//! The names that a copy keeps: [`Held`], its share of the budget of all copies; [`Spool`], a stack of records; [`Names`], hashes
//! of names by directory. Names beyond the budget are in a temporary file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use trunkline_sftp::transfer::NameBudget;

use crate::error::{Error, Invalid};

/// Memory for names, from the budget that all copies share: a server may make up names without end. The memory is given back when
/// this is dropped.
#[derive(Debug)]
pub(super) struct Held {
    budget: NameBudget,
    bytes: usize,
}

impl Held {
    pub(super) fn new(budget: &NameBudget) -> Self {
        Self {
            budget: budget.clone(),
            bytes: 0,
        }
    }

    /// Takes memory for data that can also be kept elsewhere. Returns whether there was room.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        let has_room = self.budget.keep(bytes);
        self.bytes += if has_room { bytes } else { 0 };
        has_room
    }

    /// Takes memory for data that can be kept nowhere else.
    ///
    /// # Errors
    /// There is no room.
    pub(super) fn must_grow(&mut self, bytes: usize) -> Result<(), Error> {
        match self.budget.must_keep(bytes) {
            true => {
                self.bytes += bytes;
                Ok(())
            }
            false => Err(Invalid::TooManyNames.into()),
        }
    }

    /// Gives all the memory back.
    pub(super) fn clear(&mut self) {
        self.budget.give_back(std::mem::take(&mut self.bytes));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A temporary file without a name, which nobody else can open. It grows at its end.
#[derive(Debug)]
struct Temporary {
    budget: NameBudget,
    file: File,
    /// The directory on whose file system the file is.
    directory: PathBuf,
    length: u64,
    /// The bytes taken from the budget.
    taken: usize,
}

impl Temporary {
    fn new(budget: &NameBudget) -> io::Result<Self> {
        // The usual temporary directory may be in memory; this one is not.
        let mut directory = PathBuf::from("/var/tmp");
        let file = tempfile::tempfile_in(&directory).or_else(|_| {
            directory = std::env::temp_dir();
            tempfile::tempfile_in(&directory)
        })?;
        Ok(Self {
            budget: budget.clone(),
            file,
            directory,
            length: 0,
            taken: 0,
        })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if !self.budget.spool(bytes.len()) {
            return Err(Invalid::TooManyNames.into());
        }
        self.taken += bytes.len();
        self.file
            .write_all_at(bytes, self.length)
            .map_err(|error| self.error("writing names to", error))?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn read(&self, into: &mut [u8], at: u64) -> Result<(), Error> {
        self.file
            .read_exact_at(into, at)
            .map_err(|error| self.error("reading names from", error))
    }

    fn error(&self, what: &str, error: io::Error) -> Error {
        Error::local(
            format!("{what} a temporary file in {}", self.directory.display()),
            error,
        )
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        self.budget.unspool(self.taken);
    }
}

/// Returns the temporary file, and creates it if there is none.
fn file<'a>(place: &'a mut Option<Temporary>, budget: &NameBudget) -> Result<&'a mut Temporary, Error> {
    let file = match place.take() {
        Some(file) => file,
        None => Temporary::new(budget).map_err(|error| Error::local("creating a temporary file", error))?,
    };
    Ok(place.insert(file))
}

/// A stack of records: the last record is taken first.
#[derive(Debug)]
pub(super) struct Spool {
    held: Held,
    /// The last records, each followed by its length.
    end: Vec<u8>,
    before: Option<Temporary>,
}

/// The memory that a spool takes without asking, and the least by which it grows.
const STEP: usize = 16 * 1024;
/// The most bytes of a spool in memory.
const MOST: usize = 4 * 1024 * 1024;
const LENGTH: usize = size_of::<u32>();

impl Spool {
    pub(super) fn new(budget: &NameBudget) -> Self {
        Self {
            held: Held::new(budget),
            end: Vec::new(),
            before: None,
        }
    }

    /// # Errors
    /// There is no room, neither in memory nor in a file.
    pub(super) fn push(&mut self, record: &[u8]) -> Result<(), Error> {
        let needed = self.end.len() + record.len() + LENGTH;
        if needed > self.end.capacity() {
            let more = self.end.capacity().max(STEP).max(record.len() + LENGTH);
            let is_first = self.end.capacity() == 0;
            if needed <= MOST && (self.held.grow(more) || is_first) {
                self.end
                    .reserve_exact(self.end.capacity() + more - self.end.len());
            } else {
                file(&mut self.before, &self.held.budget)?.append(&self.end)?;
                self.end.clear();
            }
        }
        let length = u32::try_from(record.len()).unwrap_or(u32::MAX);
        self.end.extend_from_slice(record);
        self.end.extend_from_slice(&length.to_ne_bytes());
        Ok(())
    }

    /// Takes the last record.
    pub(super) fn pop(&mut self) -> Result<Option<Vec<u8>>, Error> {
        loop {
            if let Some((rest, length)) = self.end.split_last_chunk::<LENGTH>() {
                let length = u32::from_ne_bytes(*length) as usize;
                if let Some(begin) = rest.len().checked_sub(length) {
                    let record = rest[begin..].to_vec();
                    self.end.truncate(begin);
                    return Ok(Some(record));
                }
            }
            let Some(before) = self.before.as_mut().filter(|before| before.length > 0) else {
                return Ok(None);
            };
            let length = before.length.min(STEP as u64 * 4);
            let mut earlier = vec![0; usize::try_from(length).unwrap_or(0)];
            before.read(&mut earlier, before.length - length)?;
            before.length -= length;
            earlier.extend_from_slice(&self.end);
            self.end = earlier;
        }
    }
}

/// A name: the hash of its directory's path, and its own hash, whose lowest bits are [`Names::FLAGS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Record {
    directory: u64,
    name: u64,
}

const RECORD: usize = size_of::<Record>();
/// The number of records in memory before they go to a file: 8 MiB.
const MOST_RECORDS: usize = 512 * 1024;
/// The number of records that need no room in the budget.
const LEAST_RECORDS: usize = 1024;
/// The number of records in the file for each record in the index.
const INDEXED: usize = 1024;

/// Hashes of names by directory: sorted runs, and the names that came last.
#[derive(Debug)]
pub(super) struct Names {
    held: Held,
    /// The number of records that there is room for.
    room: usize,
    last: Vec<Record>,
    runs: Vec<Vec<Record>>,
    file: Option<Temporary>,
    filed: Vec<FiledRun>,
}

/// A run in the file.
#[derive(Debug)]
struct FiledRun {
    at: u64,
    /// The directory of the first record in each block.
    blocks: Vec<u64>,
    records: usize,
}

impl Names {
    /// The bits of a name that are not part of its hash.
    pub(super) const FLAGS: u64 = 3;

    pub(super) fn new(budget: &NameBudget) -> Self {
        Self {
            held: Held::new(budget),
            room: 0,
            last: Vec::new(),
            runs: Vec::new(),
            file: None,
            filed: Vec::new(),
        }
    }

    /// # Errors
    /// There is no room, neither in memory nor in a file.
    pub(super) fn push(&mut self, directory: u64, name: u64) -> Result<(), Error> {
        let count = self.last.len() + self.runs.iter().map(Vec::len).sum::<usize>();
        if count >= self.room {
            let more = self.room.clamp(LEAST_RECORDS, MOST_RECORDS);
            let has_room = count < MOST_RECORDS && (self.held.grow(more * RECORD) || self.room == 0);
            match has_room {
                true => self.room += more,
                false => self.spill()?,
            }
        }
        self.last.push(Record { directory, name });
        Ok(())
    }

    /// Lets the names that came last be found. Returns whether there were any.
    pub(super) fn seal(&mut self) -> bool {
        if self.last.is_empty() {
            return false;
        }
        let mut run = std::mem::take(&mut self.last);
        // Each run is at least twice as long as the next, so that there are few runs, however few names come at a time.
        while let Some(mut before) = self.runs.pop_if(|before| before.len() < 2 * run.len()) {
            before.append(&mut run);
            run = before;
        }
        run.sort_unstable();
        self.runs.push(run);
        true
    }

    /// Returns the sealed names in a directory, in order and without duplicates, each with the flags of all its duplicates.
    pub(super) fn names_in(&self, directory: u64) -> Result<Vec<u64>, Error> {
        let mut names = Vec::new();
        for run in &self.runs {
            let begin = run.partition_point(|record| record.directory < directory);
            let found = run[begin..]
                .iter()
                .take_while(|record| record.directory == directory);
            names.extend(found.map(|record| record.name));
        }
        if let Some(file) = &self.file {
            for run in &self.filed {
                run.names_in(file, directory, &mut names)?;
            }
        }
        Self::order(&mut names);
        Ok(names)
    }

    /// Puts names in order, and merges duplicates with their flags.
    pub(super) fn order(names: &mut Vec<u64>) {
        names.sort_unstable();
        names.dedup_by(|next, kept| {
            let is_same = (*next ^ *kept) & !Self::FLAGS == 0;
            *kept |= if is_same { *next } else { 0 };
            is_same
        });
    }

    /// Finds a name in a sorted list, and returns its flags.
    pub(super) fn find(names: &[u64], name: u64) -> Option<u64> {
        let name = name & !Self::FLAGS;
        let at = names.partition_point(|known| known & !Self::FLAGS < name);
        let found = names.get(at).filter(|known| **known & !Self::FLAGS == name);
        found.map(|found| found & Self::FLAGS)
    }

    fn spill(&mut self) -> Result<(), Error> {
        self.seal();
        let mut all: Vec<Record> = Vec::new();
        for mut run in std::mem::take(&mut self.runs) {
            all.append(&mut run);
        }
        all.sort_unstable();
        let file = file(&mut self.file, &self.held.budget)?;
        let at = file.length;
        let mut bytes = Vec::with_capacity(INDEXED * RECORD);
        let mut blocks = Vec::with_capacity(all.len() / INDEXED + 1);
        for block in all.chunks(INDEXED) {
            bytes.clear();
            blocks.extend(block.first().map(|record| record.directory));
            for record in block {
                bytes.extend_from_slice(&record.directory.to_ne_bytes());
                bytes.extend_from_slice(&record.name.to_ne_bytes());
            }
            file.append(&bytes)?;
        }
        self.filed.push(FiledRun {
            at,
            blocks,
            records: all.len(),
        });
        all.clear();
        self.last = all;
        Ok(())
    }
}

impl FiledRun {
    fn names_in(&self, file: &Temporary, directory: u64, names: &mut Vec<u64>) -> Result<(), Error> {
        let first = self
            .blocks
            .partition_point(|first| *first < directory)
            .saturating_sub(1);
        let mut block = vec![0; INDEXED * RECORD];
        for nth in first..self.blocks.len() {
            let records = (self.records - nth * INDEXED).min(INDEXED);
            let block = &mut block[..records * RECORD];
            file.read(block, self.at + (nth * INDEXED * RECORD) as u64)?;
            for record in block.as_chunks::<RECORD>().0 {
                let [of, name] = [0, 8].map(|at| {
                    let mut number = [0; 8];
                    number.copy_from_slice(&record[at..at + 8]);
                    u64::from_ne_bytes(number)
                });
                match of.cmp(&directory) {
                    std::cmp::Ordering::Less => {}
                    std::cmp::Ordering::Equal => names.push(name),
                    std::cmp::Ordering::Greater => return Ok(()),
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_share_what_they_hold_and_give_it_back() {
        let budget = NameBudget::new(1024);
        let [mut one, mut other] = [(); 2].map(|()| Held::new(&budget));
        assert!(one.grow(768));
        assert!(!other.grow(1), "a quarter is for what has to be in memory");
        assert!(other.must_grow(256).is_ok());
        assert!(other.must_grow(1).is_err());
        drop(one);
        assert!(other.grow(512));
        drop(other);
        assert_eq!(budget.kept_bytes(), 0);
    }

    #[test]
    fn records_come_back_from_the_last_to_the_first_wherever_they_were() {
        for most in [0, 64 * 1024, 1 << 26] {
            let budget = NameBudget::new(most.max(8 * 1024 * 1024 / 16));
            // Others hold the whole budget.
            let mut others = Held::new(&budget);
            if most == 0 {
                assert!(others.must_grow(budget.most()).is_ok());
            }
            let mut spool = Spool::new(&budget);
            let record = |nth: u32| nth.to_string().repeat(1 + nth as usize % 50).into_bytes();
            for nth in 0..20_000 {
                spool.push(&record(nth)).unwrap();
            }
            assert_eq!(spool.before.is_some(), most < 1 << 26);
            for nth in (0..20_000).rev() {
                assert_eq!(spool.pop().unwrap().unwrap(), record(nth));
            }
            assert!(spool.pop().unwrap().is_none());
        }
    }

    #[test]
    fn names_are_found_in_their_directories_whether_in_memory_or_in_a_file() {
        for is_full in [false, true] {
            let budget = NameBudget::new(1 << 20);
            let mut others = Held::new(&budget);
            if is_full {
                assert!(others.must_grow(budget.most()).is_ok());
            }
            let mut names = Names::new(&budget);
            for nth in 0..30_000 {
                names.push(nth % 7, (nth / 7) << 2).unwrap();
                if nth % 100 == 0 {
                    names.seal();
                }
            }
            // One of them again, with a flag.
            names.push(3, 40 | 2).unwrap();
            names.seal();
            assert_eq!(names.file.is_some(), is_full);
            assert!(names.runs.len() < 16, "{}", names.runs.len());
            for directory in 0..7 {
                let found = names.names_in(directory).unwrap();
                let expected: Vec<u64> = (0..30_000u64)
                    .filter(|nth| nth % 7 == directory)
                    .map(|nth| ((nth / 7) << 2) | if directory == 3 && nth / 7 == 10 { 2 } else { 0 })
                    .collect();
                assert_eq!(found, expected);
            }
            assert!(names.names_in(7).unwrap().is_empty());
        }
    }

    #[test]
    fn a_temporary_file_takes_no_more_than_all_may() {
        let budget = NameBudget::new(1 << 12);
        let mut spool = Spool::new(&budget);
        let many = (0..).take_while(|_| spool.push(&[7; 1000]).is_ok()).count();
        assert!(many * 1000 <= (16 << 12) + STEP, "{many}");
        drop(spool);
        assert!(budget.spool(16 << 12));
    }
}
