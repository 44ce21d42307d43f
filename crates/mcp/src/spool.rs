//! One output of a command: its beginning and its end in memory, the rest in an unnamed file.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// The size of the beginning and the end that are always kept.
const END: usize = 16 * 1024;

/// An output so far.
#[derive(Debug)]
pub(crate) struct Spool {
    /// The first [`END`] bytes.
    head: Vec<u8>,
    /// The last bytes after the head.
    tail: VecDeque<u8>,
    /// All output up to `limit`; `None` while it fits into the head.
    file: Option<File>,
    /// The number of bytes received.
    total: u64,
    /// The number of bytes kept from the beginning.
    kept: u64,
    limit: u64,
}

/// A part of an output.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) bytes: Vec<u8>,
    /// The bytes left out between the beginning and the end, and the offset of the cut in `bytes`.
    pub(crate) left_out: u64,
    pub(crate) cut: usize,
}

impl Spool {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            head: Vec::new(),
            tail: VecDeque::new(),
            file: None,
            total: 0,
            kept: 0,
            limit: limit.max(END as u64),
        }
    }

    /// Adds output. Bytes above the limit, or that cannot be written, are counted, and only the end is kept.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let whole = self.kept == self.total;
        self.total += bytes.len() as u64;
        let room = END - self.head.len();
        let (first, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(first);
        self.tail.extend(&rest[rest.len().saturating_sub(END)..]);
        let surplus = self.tail.len().saturating_sub(END);
        self.tail.drain(..surplus);
        if !whole {
            return;
        }
        if rest.is_empty() {
            self.kept = self.total;
            return;
        }
        let room = usize::try_from(self.limit - self.kept).unwrap_or(usize::MAX);
        let written = self.write(first, &rest[..rest.len().min(room.saturating_sub(first.len()))]);
        self.kept += written.unwrap_or(first.len() as u64);
    }

    /// Writes the bytes that follow `first`, which is in the head already.
    fn write(&mut self, first: &[u8], rest: &[u8]) -> io::Result<u64> {
        if self.file.is_none() {
            let file = tempfile::tempfile()?;
            file.write_all_at(&self.head, 0)?;
            self.file = Some(file);
        }
        let written = (first.len() + rest.len()) as u64;
        match &self.file {
            Some(file) => file.write_all_at(rest, self.kept + first.len() as u64)?,
            None => return Ok(first.len() as u64),
        }
        Ok(written)
    }

    /// Returns the number of bytes so far.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Returns the number of bytes that can be read from the beginning.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.kept
    }

    /// Returns the beginning and the end, at most `most` bytes.
    pub(crate) fn summary(&self, most: usize) -> Part {
        let all = self.head.len() + self.tail.len();
        if self.total == all as u64 && all <= most {
            let mut bytes = self.head.clone();
            bytes.extend(&self.tail);
            return Part {
                cut: bytes.len(),
                bytes,
                left_out: 0,
            };
        }
        let half = most / 2;
        let mut bytes = self.head[..half.min(self.head.len())].to_vec();
        let cut = bytes.len();
        let wanted = half.min(self.tail.len());
        if self.tail.is_empty() {
            bytes.extend(&self.head[cut.max(self.head.len().saturating_sub(half))..]);
        } else {
            bytes.extend(self.tail.range(self.tail.len() - wanted..));
        }
        Part {
            left_out: self.total - bytes.len() as u64,
            bytes,
            cut,
        }
    }

    /// Returns at most `most` bytes from `offset`; fewer at the end of the kept output.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn read(&self, offset: u64, most: usize) -> io::Result<Vec<u8>> {
        let left = self.kept.saturating_sub(offset);
        let wanted = most.min(usize::try_from(left).unwrap_or(usize::MAX));
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        match &self.file {
            Some(file) => {
                let mut bytes = vec![0; wanted];
                file.read_exact_at(&mut bytes, offset)?;
                Ok(bytes)
            }
            None => Ok(self
                .head
                .get(start..start.saturating_add(wanted))
                .unwrap_or_default()
                .to_vec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(from: usize, count: usize) -> Vec<u8> {
        (from..from + count).map(|number| (number % 251) as u8).collect()
    }

    #[test]
    fn all_of_a_short_output_is_in_its_summary() {
        let mut spool = Spool::new(1 << 20);
        spool.add(b"one ");
        spool.add(b"two");
        let whole = Part {
            bytes: b"one two".into(),
            left_out: 0,
            cut: 7,
        };
        assert_eq!(spool.summary(100), whole);
        assert_eq!(spool.read(4, 100).unwrap(), b"two");
        assert_eq!(spool.read(9, 100).unwrap(), b"");
        let short = spool.summary(4);
        assert_eq!(
            (short.bytes.as_slice(), short.cut, short.left_out),
            (&b"onwo"[..], 2, 3)
        );
    }

    #[test]
    fn a_long_output_keeps_both_ends_and_can_be_read() {
        for piece in [1000, 7, 50_000] {
            let mut spool = Spool::new(60_000);
            let all = bytes(0, 200_000);
            for chunk in all.chunks(piece) {
                spool.add(chunk);
            }
            assert_eq!(spool.total(), 200_000);
            assert_eq!(spool.kept_bytes(), 60_000, "in pieces of {piece}");
            let part = spool.summary(20_000);
            assert_eq!(part.bytes[..10_000], all[..10_000]);
            assert_eq!(part.bytes[10_000..], all[190_000..]);
            assert_eq!((part.cut, part.left_out), (10_000, 180_000));
            assert_eq!(spool.read(0, 60_000).unwrap(), all[..60_000]);
            assert_eq!(spool.read(59_990, 100).unwrap(), all[59_990..60_000]);
        }
    }
}
