//! [`Folder`]: the local folder that a copy writes into, and nowhere else.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use lru::LruCache;
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, Timespec, Timestamps};

/// A local folder. Every name is opened relative to the folder that holds it, one part at a time, and no link on the way
/// is followed: what a server calls its files, or plants while it is read, stays inside.
pub(super) struct Folder {
    path: PathBuf,
    root: Arc<OwnedFd>,
    /// Folders that were opened last. Guards the table for as long as a look-up takes.
    open: Mutex<LruCache<Vec<u8>, Arc<OwnedFd>>>,
}

/// Folders kept open: enough for the files under way at once in a tree that is walked depth first.
const KEPT_OPEN: std::num::NonZeroUsize = std::num::NonZeroUsize::new(64).expect("64 is not zero");

/// What a file or directory is to look like.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Looks {
    /// Permission bits, final: no mask is applied.
    pub(super) mode: Option<u32>,
    /// Last access and modification, in seconds since 1970.
    pub(super) times: Option<(u32, u32)>,
}

impl Folder {
    /// A folder that the user named, through links if that is what it is.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self {
            path: path.to_owned(),
            root: Arc::new(root),
            open: Mutex::new(LruCache::new(KEPT_OPEN)),
        })
    }

    /// A name in it, for people.
    pub(super) fn shown(&self, path: &[u8]) -> PathBuf {
        if path.is_empty() {
            return self.path.clone();
        }
        self.path.join(OsStr::from_bytes(path))
    }

    /// The folder that holds a name, and the name's last part.
    fn parent<'a>(&self, path: &'a [u8]) -> io::Result<(Arc<OwnedFd>, &'a OsStr)> {
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (self.directory(&path[..at])?, &path[at + 1..]),
            None => (self.root.clone(), path),
        };
        if matches!(name, b"" | b"." | b"..") || name.contains(&0) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a name that leads elsewhere",
            ));
        }
        Ok((parent, OsStr::from_bytes(name)))
    }

    fn directory(&self, path: &[u8]) -> io::Result<Arc<OwnedFd>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = open.get(path) {
            return Ok(found.clone());
        }
        drop(open);
        let (parent, name) = self.parent(path)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = Arc::new(rustix::fs::openat(&*parent, name, flags, Mode::empty())?);
        open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.put(path.to_vec(), found.clone());
        Ok(found)
    }

    /// Makes a directory, writable for its owner while it is filled. Whether it was made now; one that is there stays as
    /// it is.
    pub(super) fn make_directory(&self, path: &[u8], mode: u32) -> io::Result<bool> {
        let (parent, name) = self.parent(path)?;
        match rustix::fs::mkdirat(&*parent, name, Mode::from_raw_mode(mode | 0o700)) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::EXIST) => self.directory(path).map(|_| false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets what a directory is to look like, when all is in it.
    pub(super) fn finish_directory(&self, path: &[u8], looks: Looks) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        if let Some(mode) = looks.mode {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let directory = rustix::fs::openat(&*parent, name, flags, Mode::empty())?;
            rustix::fs::fchmod(directory, Mode::from_raw_mode(mode))?;
        }
        if let Some(times) = looks.times {
            rustix::fs::utimensat(&*parent, name, &timestamps(times), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    /// Makes a symbolic link, in the place of a file or link that is there.
    pub(super) fn make_link(
        &self,
        target: &[u8],
        path: &[u8],
        part: &[u8],
        times: Option<(u32, u32)>,
    ) -> io::Result<()> {
        let target = OsStr::from_bytes(target);
        let (parent, name) = self.parent(path)?;
        let (_, part) = self.parent(part)?;
        let _ = rustix::fs::unlinkat(&*parent, part, AtFlags::empty());
        rustix::fs::symlinkat(target, &*parent, part)?;
        if let Some(times) = times {
            rustix::fs::utimensat(&*parent, part, &timestamps(times), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        let renamed = rustix::fs::renameat(&*parent, part, &*parent, name);
        if renamed.is_err() {
            let _ = rustix::fs::unlinkat(&*parent, part, AtFlags::empty());
        }
        Ok(renamed?)
    }

    /// What is known of a name, of the link itself if it is one; `None` if there is nothing.
    pub(super) fn look(&self, path: &[u8]) -> io::Result<Option<Found>> {
        let (parent, name) = self.parent(path)?;
        match rustix::fs::statat(&*parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Found {
                is_file: rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file(),
                size: u64::try_from(stat.st_size).unwrap_or(0),
                modified: stat.st_mtime,
            })),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a file for reading that is one, and no link.
    pub(super) fn read(&self, path: &[u8]) -> io::Result<File> {
        let (parent, name) = self.parent(path)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(rustix::fs::openat(&*parent, name, flags, Mode::empty())?.into())
    }

    /// Begins a file under a name of its own beside the last one. `keep`: what is there of an earlier attempt stays.
    pub(super) fn begin(&self, path: &[u8], part: &[u8], keep: bool) -> io::Result<PartFile> {
        let (parent, name) = self.parent(path)?;
        let (_, part) = self.parent(part)?;
        let mut flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if !keep {
            flags |= OFlags::TRUNC;
        }
        let file = rustix::fs::openat(&*parent, part, flags, Mode::from_raw_mode(0o600))?;
        Ok(PartFile {
            file: file.into(),
            parent,
            part: part.to_owned(),
            name: name.to_owned(),
            discard: true,
        })
    }
}

/// What is known of a local name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) is_file: bool,
    pub(super) size: u64,
    pub(super) modified: i64,
}

/// A file that does not have its last name yet. Dropping it removes it, unless it is to be kept for another attempt.
pub(super) struct PartFile {
    file: File,
    parent: Arc<OwnedFd>,
    part: std::ffi::OsString,
    name: std::ffi::OsString,
    discard: bool,
}

/// The most slices that one pwritev(2) takes.
const MOST_SLICES: usize = 1024;

impl PartFile {
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Leaves the file for another attempt if it is not installed.
    pub(super) fn keep(&mut self) {
        self.discard = false;
    }

    /// Writes slices in a row.
    pub(super) fn write(&self, offset: u64, chunks: &[Bytes]) -> io::Result<()> {
        write_slices(&self.file, offset, chunks)
    }

    /// Makes a hole, or writes zeros where the file system has none.
    pub(super) fn clear(&self, offset: u64, length: u64) -> io::Result<()> {
        if offset >= self.file.metadata()?.len() {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(&self.file, flags, offset, length).is_ok() {
            return Ok(());
        }
        let zeros = Bytes::from_static(&[0; 64 * 1024]);
        for start in (0..length).step_by(zeros.len()) {
            let piece = usize::try_from(length - start)
                .unwrap_or(usize::MAX)
                .min(zeros.len());
            write_slices(&self.file, offset + start, &[zeros.slice(..piece)])?;
        }
        Ok(())
    }

    /// Cuts the file to its length, sets what it is to look like, and gives it its name.
    pub(super) fn install(mut self, length: u64, looks: Looks, sync: bool) -> io::Result<()> {
        if self.file.metadata()?.len() != length {
            self.file.set_len(length)?;
        }
        if let Some(mode) = looks.mode {
            rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode))?;
        }
        if let Some(times) = looks.times {
            rustix::fs::futimens(&self.file, &timestamps(times))?;
        }
        if sync {
            self.file.sync_all()?;
        }
        rustix::fs::renameat(&*self.parent, &self.part, &*self.parent, &self.name)?;
        self.discard = false;
        if sync {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let folder = rustix::fs::openat(&*self.parent, ".", flags, Mode::empty())?;
            rustix::fs::fsync(folder)?;
        }
        Ok(())
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if self.discard {
            let _ = rustix::fs::unlinkat(&*self.parent, &self.part, AtFlags::empty());
        }
    }
}

fn write_slices(file: impl AsFd, mut offset: u64, mut chunks: &[Bytes]) -> io::Result<()> {
    let mut skip = 0;
    while !chunks.is_empty() {
        let slices: Vec<IoSlice<'_>> = chunks
            .iter()
            .take(MOST_SLICES)
            .enumerate()
            .map(|(at, chunk)| IoSlice::new(if at == 0 { &chunk[skip..] } else { chunk }))
            .collect();
        let mut written = match rustix::io::pwritev(&file, &slices, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => written,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        offset += written as u64;
        while let Some(first) = chunks.first() {
            let left = first.len() - skip;
            if written < left {
                skip += written;
                break;
            }
            written -= left;
            skip = 0;
            chunks = &chunks[1..];
        }
    }
    Ok(())
}

fn timestamps((accessed, modified): (u32, u32)) -> Timestamps {
    let time = |seconds: u32| {
        let since = Duration::from_secs(seconds.into());
        Timespec {
            tv_sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: 0,
        }
    };
    Timestamps {
        last_access: time(accessed),
        last_modification: time(modified),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_and_no_link_leads_out_of_the_folder() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(outside.path(), inside.path().join("link")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("file"), inside.path().join("part")).unwrap();
        let folder = Folder::open(inside.path()).unwrap();
        for name in [
            &b".."[..],
            b"../x",
            b"",
            b".",
            b"a/../../x",
            b"/etc/x",
            b"link/x",
            b"x\0y",
        ] {
            assert!(folder.begin(name, name, false).is_err(), "{name:?}");
            assert!(folder.make_directory(name, 0o755).is_err(), "{name:?}");
            assert!(folder.make_link(b"t", name, name, None).is_err(), "{name:?}");
        }
        assert!(
            folder.begin(b"x", b"part", false).is_err(),
            "a planted part is not followed"
        );
        assert!(
            folder.make_directory(b"link", 0o755).is_err(),
            "a link is no directory"
        );
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_part_has_no_name_until_it_is_whole_and_none_is_left_behind() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        drop(folder.begin(b"f", b".f.part", false).unwrap());
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        let part = folder.begin(b"f", b".f.part", false).unwrap();
        part.write(2, &[Bytes::from_static(b"cd"), Bytes::from_static(b"efgh")])
            .unwrap();
        part.clear(4, 2).unwrap();
        let looks = Looks {
            mode: Some(0o640),
            times: Some((5, 7)),
        };
        part.install(7, looks, true).unwrap();
        assert_eq!(std::fs::read(place.path().join("f")).unwrap(), b"\0\0cd\0\0g");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
        assert_eq!(folder.look(b"f").unwrap().unwrap().modified, 7);
    }

    #[test]
    fn more_slices_than_one_call_takes_are_written_in_order() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        let part = folder.begin(b"f", b".f.part", false).unwrap();
        let chunks: Vec<Bytes> = (0..3000u32)
            .map(|n| Bytes::copy_from_slice(&n.to_le_bytes()))
            .collect();
        part.write(0, &chunks).unwrap();
        part.install(12_000, Looks::default(), false).unwrap();
        assert_eq!(std::fs::read(place.path().join("f")).unwrap(), chunks.concat());
    }
}
