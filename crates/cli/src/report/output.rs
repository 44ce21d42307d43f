//! [`Output`]: everything that a command printed. A small part is in memory, the rest in an unnamed temporary file that
//! all hosts of a run share.

use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::Hasher as _;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::FallocateFlags;

use super::lines::LinePrefixer;

/// The memory limit of all hosts of a run. Beyond it, each stream keeps at most [`LITTLE`].
const MEMORY: usize = 64 << 20;
/// The memory limit for one stream.
const MOST: usize = 1 << 20;
/// The memory limit for one stream when all together exceed [`MEMORY`].
const LITTLE: usize = 4 << 10;
/// Bytes that are read at a time. A multiple of 3, so that base64 needs no padding in between.
const PIECE: usize = 48 << 10;

/// The file for the outputs of a run that do not fit into memory.
#[derive(Debug, Default)]
pub(crate) struct Store {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Created when needed.
    file: Option<Arc<File>>,
    end: u64,
    /// Bytes in memory.
    memory: usize,
}

impl Store {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a piece, and returns its range in the file.
    fn keep(&self, data: &[u8]) -> io::Result<Range<u64>> {
        let mut inner = self.inner();
        let file = match &inner.file {
            Some(file) => file.clone(),
            None => inner.file.insert(Arc::new(tempfile::tempfile()?)).clone(),
        };
        let start = inner.end;
        inner.end += data.len() as u64;
        let range = start..inner.end;
        drop(inner);
        file.write_all_at(data, start)?;
        Ok(range)
    }

    fn file(&self) -> io::Result<Arc<File>> {
        let file = self.inner().file.clone();
        file.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Everything that a command printed to one of its streams.
#[derive(Debug, Default)]
pub(crate) struct Output {
    store: Arc<Store>,
    /// The ranges in the file, in order; the rest is in `memory`.
    kept: Vec<Range<u64>>,
    memory: Vec<u8>,
    len: u64,
    hash: DefaultHasher,
}

impl Output {
    pub(crate) fn new(store: &Arc<Store>) -> Self {
        let mut output = Self::default();
        output.store = store.clone();
        output
    }

    /// Adds a piece of output.
    ///
    /// # Errors
    /// It did not fit into memory and could not be written to the file.
    pub(crate) fn add(&mut self, data: &[u8]) -> io::Result<()> {
        self.hash.write(data);
        self.len += data.len() as u64;
        self.memory.extend_from_slice(data);
        let all = {
            let mut inner = self.store.inner();
            inner.memory += data.len();
            inner.memory
        };
        if self.memory.len() >= if all > MEMORY { LITTLE } else { MOST } {
            let kept = self.store.keep(&self.memory).map_err(|error| {
                let directory = std::env::temp_dir();
                io::Error::new(
                    error.kind(),
                    format!("keeping the output in {}: {error}", directory.display()),
                )
            })?;
            self.kept.push(kept);
            self.forget();
        }
        Ok(())
    }

    /// Releases the memory.
    fn forget(&mut self) {
        self.store.inner().memory -= self.memory.len();
        self.memory = Vec::new();
    }

    /// Returns a digest, which is equal for equal outputs.
    pub(crate) fn digest(&self) -> (u64, u64) {
        (self.len, self.hash.finish())
    }

    /// Returns true if two outputs are equal, byte for byte.
    pub(crate) fn is_same(&self, other: &Self) -> io::Result<bool> {
        if self.digest() != other.digest() {
            return Ok(false);
        }
        let (mut ours, mut theirs) = (vec![0; PIECE], vec![0; PIECE]);
        let mut at = 0;
        while at < self.len {
            let read = self.read_at(at, &mut ours)?;
            if other.read_at(at, &mut theirs)? != read || ours[..read] != theirs[..read] {
                return Ok(false);
            }
            at += read as u64;
        }
        Ok(true)
    }

    /// Returns the first bytes, and true if there are no more.
    pub(crate) fn beginning(&self, most: usize) -> io::Result<(Vec<u8>, bool)> {
        let mut bytes = vec![0; most.min(usize::try_from(self.len).unwrap_or(most))];
        let read = self.read_at(0, &mut bytes)?;
        bytes.truncate(read);
        let is_all = bytes.len() as u64 == self.len;
        Ok((bytes, is_all))
    }

    /// Passes on the output in pieces of [`PIECE`] bytes; the last may be shorter.
    pub(crate) fn each_piece(&self, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut piece = vec![0; PIECE.min(usize::try_from(self.len).unwrap_or(PIECE))];
        let mut at = 0;
        while at < self.len {
            let read = self.read_at(at, &mut piece)?;
            take(&piece[..read])?;
            at += read as u64;
        }
        Ok(())
    }

    /// Writes the output in lines with a prefix.
    pub(crate) fn write_lines(&self, mut prefixer: LinePrefixer, out: &mut impl Write) -> io::Result<()> {
        let mut lines = Vec::new();
        self.each_piece(|piece| {
            prefixer.feed(piece, &mut lines);
            out.write_all(&lines)?;
            lines.clear();
            Ok(())
        })?;
        prefixer.finish(&mut lines);
        out.write_all(&lines)
    }

    /// Passes on the output as text. Returns true if it is UTF-8, which is known only at the end.
    pub(crate) fn each_text(&self, mut take: impl FnMut(&str)) -> io::Result<bool> {
        // A character that continues in the next piece.
        let mut begun: Vec<u8> = Vec::new();
        let mut is_text = true;
        self.each_piece(|piece| {
            begun.extend_from_slice(piece);
            let whole = match std::str::from_utf8(&begun) {
                Ok(text) => text,
                Err(error) => {
                    is_text &= error.error_len().is_none();
                    std::str::from_utf8(&begun[..error.valid_up_to()]).unwrap_or_default()
                }
            };
            take(whole);
            let whole = whole.len();
            begun.drain(..whole);
            if !is_text {
                begun.clear();
            }
            Ok(())
        })?;
        Ok(is_text && begun.is_empty())
    }

    /// Fills the buffer from an offset. Returns fewer bytes only at the end.
    fn read_at(&self, mut at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        let mut passed = 0;
        for kept in &self.kept {
            let length = kept.end - kept.start;
            if at < passed + length && filled < buffer.len() {
                let from = kept.start + (at - passed);
                let most = usize::try_from(kept.end - from).unwrap_or(usize::MAX);
                let most = most.min(buffer.len() - filled);
                self.store
                    .file()?
                    .read_exact_at(&mut buffer[filled..filled + most], from)?;
                filled += most;
                at += most as u64;
            }
            passed += length;
        }
        let from = usize::try_from(at.saturating_sub(passed)).unwrap_or(usize::MAX);
        let rest = self.memory.get(from..).unwrap_or_default();
        let most = rest.len().min(buffer.len() - filled);
        buffer[filled..filled + most].copy_from_slice(&rest[..most]);
        Ok(filled + most)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.forget();
        let Ok(file) = self.store.file() else { return };
        for kept in &self.kept {
            // A file system that cannot free it keeps the data until the run ends.
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(&file, flags, kept.start, kept.end - kept.start);
        }
    }
}

#[cfg(test)]
impl From<&[u8]> for Output {
    fn from(data: &[u8]) -> Self {
        let mut output = Self::default();
        output.add(data).expect("what a test prints fits into memory");
        output
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    fn all(output: &Output) -> Vec<u8> {
        let mut all = Vec::new();
        output
            .each_piece(|piece| {
                all.extend_from_slice(piece);
                Ok(())
            })
            .expect("the file can be read");
        all
    }

    /// Returns text with multi-byte characters, some of them across the ends of pieces.
    fn much() -> Vec<u8> {
        (0..500_000u32)
            .flat_map(|n| format!("{n} é\n").into_bytes())
            .collect()
    }

    #[test]
    fn what_is_much_is_on_disk_and_comes_back_as_it_was() {
        let (store, data) = (Arc::new(Store::default()), much());
        let mut output = Output::new(&store);
        for piece in data.chunks(30_011) {
            output.add(piece).expect("there is room on the disk");
            assert!(output.memory.len() < MOST + 30_011 && store.inner().memory == output.memory.len());
        }
        assert!(output.kept.len() > 2 && all(&output) == data);
        let mut text = String::new();
        assert!(
            output
                .each_text(|piece| text.push_str(piece))
                .expect("the file can be read")
        );
        assert!(text.as_bytes() == data);
        let file = store.file().expect("there is a file");
        let before = file.metadata().expect("it is there").blocks();
        drop(output);
        assert!(file.metadata().expect("it is there").blocks() < before / 2);
        assert_eq!(store.inner().memory, 0);
    }

    #[test]
    fn many_outputs_have_little_of_the_memory_each() {
        let store = Arc::new(Store::default());
        let mut outputs: Vec<Output> = (0..300).map(|_| Output::new(&store)).collect();
        for output in &mut outputs {
            output
                .add(&vec![b'x'; 500_000])
                .expect("there is room on the disk");
        }
        assert!(store.inner().memory <= MEMORY + outputs.len() * LITTLE);
        assert!(all(&outputs[299]) == vec![b'x'; 500_000]);
    }

    #[test]
    fn the_same_is_the_same_wherever_it_is() {
        let (store, data) = (Arc::new(Store::default()), much());
        let output = |data: &[u8], size: usize| {
            let mut output = Output::new(&store);
            data.chunks(size)
                .for_each(|piece| output.add(piece).expect("there is room on the disk"));
            output
        };
        let one = output(&data, 1 << 20);
        assert!(one.is_same(&output(&data, 999)).expect("readable"));
        let mut other = data.clone();
        *other.last_mut().expect("not empty") = b'x';
        assert!(!one.is_same(&output(&other, 1 << 20)).expect("readable"));
        assert!(!one.is_same(&output(&data[1..], 1 << 20)).expect("readable"));
    }

    #[test]
    fn what_is_no_text_is_known_wherever_it_stands() {
        let is_text = |data: &[u8]| Output::from(data).each_text(|_| {}).expect("readable");
        let mut data = vec![b'a'; 3 * PIECE];
        assert!(is_text(&data) && is_text(b""));
        data[2 * PIECE] = 0xff;
        assert!(!is_text(&data));
        // An incomplete character.
        assert!(!is_text(b"a\xc3"));
    }
}
