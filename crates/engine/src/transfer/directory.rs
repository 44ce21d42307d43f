//! [`LocalDirectory`]: the local directory that a copy writes into, and nowhere else.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lru::LruCache;
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, FlockOperation, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::Errno;
use trunkline_request::copy::Backup;

use super::compare::Beside;
use super::item::{INCOMPLETE, Kind, rewritten};
use super::part::{self, Own};
use crate::sftp::Owner;

/// A local directory. Every name is opened relative to the directory that holds it, one part at a time, and no link on the
/// way is followed: what a server calls its files, or plants while it is read, stays inside.
pub(super) struct LocalDirectory {
    path: PathBuf,
    root: Arc<OwnedFd>,
    /// Directories that were opened last. Guards the table for as long as a look-up takes.
    open: Mutex<LruCache<Vec<u8>, Arc<OwnedFd>>>,
    backups: Option<Backups>,
}

/// Directories of backups are their owner's alone: what was in one that others could not enter stays so.
pub(super) const BACKUPS_MODE: u32 = 0o700;

/// Where what is replaced or deleted stays.
struct Backups {
    settings: Backup,
    /// The directory for it, opened when it is needed. Guards it until it is made.
    directory: Mutex<Option<Arc<LocalDirectory>>>,
}

/// Directories kept open: enough for the files under way at once in a tree that is walked depth first.
const KEPT_OPEN: std::num::NonZeroUsize = std::num::NonZeroUsize::new(64).expect("64 is not zero");

/// The final attributes of a file or directory.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Looks {
    /// Permission bits, final: no mask is applied.
    pub(super) mode: Option<u32>,
    /// Last access and modification, in seconds since 1970.
    pub(super) times: Option<(u32, u32)>,
    pub(super) owner: Option<Owner>,
    /// Whether `mode` is for a file that is replaced, too, which keeps its own otherwise.
    pub(super) preserve: bool,
    /// Whether `mode` says what is set for owner and group.
    pub(super) keeps_ids: bool,
}

/// A name in a directory.
fn checked(name: &[u8]) -> io::Result<&OsStr> {
    if matches!(name, b"" | b"." | b"..") || name.contains(&0) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a name that leads outside the directory",
        ));
    }
    Ok(OsStr::from_bytes(name))
}

impl LocalDirectory {
    /// A directory that the user named, through links if that is what it is.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self {
            path: path.to_owned(),
            root: Arc::new(root),
            open: Mutex::new(LruCache::new(KEPT_OPEN)),
            backups: None,
        })
    }

    /// Keeps what is replaced or deleted in it.
    pub(super) fn keeping(self, backup: Option<Backup>) -> Self {
        let backups = backup.map(|settings| Backups {
            settings,
            directory: Mutex::default(),
        });
        Self { backups, ..self }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Where what has a name in `parent` stays when it is replaced; `None` where it need not.
    fn backup(&self, path: &[u8], parent: &Arc<OwnedFd>, name: &OsStr) -> io::Result<Option<KeptName>> {
        let Some(backups) = &self.backups else {
            return Ok(None);
        };
        let Some(directory) = &backups.settings.directory else {
            let name = OsStr::from_bytes(&backups.settings.path(name.as_bytes())).to_owned();
            let parent = parent.clone();
            return Ok(Some(KeptName { parent, name }));
        };
        let directory = {
            let mut open = backups.directory.lock().unwrap_or_else(PoisonError::into_inner);
            match &*open {
                Some(directory) => directory.clone(),
                None => {
                    let path = self.path.join(OsStr::from_bytes(directory));
                    make_directories(&path, BACKUPS_MODE)?;
                    open.insert(Arc::new(Self::open(&path)?)).clone()
                }
            }
        };
        let kept = backups.settings.path(path);
        for (at, _) in kept.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            directory.make_directory(&kept[..at], BACKUPS_MODE)?;
        }
        let (parent, name) = directory.parent(&kept)?;
        let name = name.to_owned();
        Ok(Some(KeptName { parent, name }))
    }

    fn open_directories(&self) -> MutexGuard<'_, LruCache<Vec<u8>, Arc<OwnedFd>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A name in it, for people.
    pub(super) fn shown(&self, path: &[u8]) -> PathBuf {
        if path.is_empty() {
            return self.path.clone();
        }
        self.path.join(OsStr::from_bytes(path))
    }

    /// The directory that holds a name, and the name's last part.
    fn parent<'a>(&self, path: &'a [u8]) -> io::Result<(Arc<OwnedFd>, &'a OsStr)> {
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (self.directory(&path[..at])?, &path[at + 1..]),
            None => (self.root.clone(), path),
        };
        Ok((parent, checked(name)?))
    }

    /// Where a file is to be. A link under a name that the user gave leads on, as with cp(1) and scp(1), whether anything
    /// is at its end or not; under any other name it is not followed.
    fn place(&self, path: &[u8], named: bool) -> io::Result<(Arc<OwnedFd>, OsString)> {
        /// As many as Linux follows.
        const MOST_LINKS: usize = 40;
        let (mut parent, name) = self.parent(path)?;
        let mut name = name.to_owned();
        if !named {
            return Ok((parent, name));
        }
        for _ in 0..MOST_LINKS {
            let target = match rustix::fs::readlinkat(&*parent, &name, Vec::new()) {
                Ok(target) => target.into_bytes(),
                Err(Errno::INVAL | Errno::NOENT) => return Ok((parent, name)),
                Err(error) => return Err(error.into()),
            };
            let (directory, last) = match target.iter().rposition(|byte| *byte == b'/') {
                Some(at) => (&target[..=at], &target[at + 1..]),
                None => (&b"."[..], &target[..]),
            };
            if matches!(last, b"" | b"." | b"..") {
                return Err(Errno::ISDIR.into());
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            parent = Arc::new(rustix::fs::openat(&*parent, directory, flags, Mode::empty())?);
            name = OsStr::from_bytes(last).to_owned();
        }
        Err(Errno::LOOP.into())
    }

    /// A directory, opened name by name from the nearest one that is open.
    fn directory(&self, path: &[u8]) -> io::Result<Arc<OwnedFd>> {
        let (mut found, mut end) = self.nearest(path);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        while end < path.len() {
            let begin = if end == 0 { 0 } else { end + 1 };
            let slash = path[begin..].iter().position(|byte| *byte == b'/');
            end = slash.map_or(path.len(), |at| begin + at);
            let name = checked(&path[begin..end])?;
            found = Arc::new(rustix::fs::openat(&*found, name, flags, Mode::empty())?);
            self.open_directories().put(path[..end].to_vec(), found.clone());
        }
        Ok(found)
    }

    /// The last directory on a path that is open, and where its own path ends.
    fn nearest(&self, path: &[u8]) -> (Arc<OwnedFd>, usize) {
        let mut open = self.open_directories();
        let slashes = (0..path.len()).rev().filter(|at| path[*at] == b'/');
        for end in std::iter::once(path.len()).chain(slashes) {
            if let Some(found) = open.get(&path[..end]) {
                return (found.clone(), end);
            }
        }
        (self.root.clone(), 0)
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

    /// Sets what a directory, or itself, is to look like, when all is in it.
    pub(super) fn finish_directory(&self, path: &[u8], looks: Looks) -> io::Result<()> {
        let (parent, name) = match path {
            b"" => (self.root.clone(), OsStr::new(".")),
            path => self.parent(path)?,
        };
        if let Some(mode) = looks.mode {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let directory = rustix::fs::openat(&*parent, name, flags, Mode::empty())?;
            if let Some(owner) = looks.owner {
                rustix::fs::fchown(
                    &directory,
                    Some(Uid::from_raw(owner.uid)),
                    Some(Gid::from_raw(owner.gid)),
                )?;
            }
            // What it has of the directory that it is in: a shared directory's group is for what is in it, too.
            let inherited = match looks.keeps_ids {
                true => 0,
                false => rustix::fs::fstat(&directory)?.st_mode & 0o2000,
            };
            rustix::fs::fchmod(directory, Mode::from_raw_mode(mode | inherited))?;
        }
        if let Some(times) = looks.times {
            rustix::fs::utimensat(&*parent, name, &timestamps(times), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    /// Makes a symbolic link, in the place of a file or link that is there.
    /// Until it is whole it has a name of its `own`.
    pub(super) fn make_link(
        &self,
        target: &[u8],
        path: &[u8],
        own: Option<&Arc<Own>>,
        looks: Looks,
    ) -> io::Result<()> {
        let target = OsStr::from_bytes(target);
        let (parent, name) = self.parent(path)?;
        let found = look(&parent, name)?;
        if let Some(stat) = &found
            && !matches!(kind(stat), FileType::RegularFile | FileType::Symlink)
        {
            return Err(in_the_way(stat));
        }
        let make = |part: &OsStr| Ok(rustix::fs::symlinkat(target, &*parent, part)?);
        let ((), part) = anew(&parent, name, own, |_| false, make)?;
        let part = part.as_os_str();
        let installed = set_looks_of_name(&parent, part, looks).and_then(|()| {
            if found.is_some()
                && let Some(kept) = self.backup(path, &parent, name)?
            {
                kept.keep(&parent, name)?;
            }
            Ok(rustix::fs::renameat(&*parent, part, &*parent, name)?)
        });
        if installed.is_err() {
            let _ = rustix::fs::unlinkat(&*parent, part, AtFlags::empty());
        }
        installed
    }

    /// Looks a name up, without following a link unless the user `named` it; `None` if nothing has the name.
    pub(super) fn look(&self, path: &[u8], named: bool) -> io::Result<Option<Beside>> {
        let (parent, name) = self.place(path, named)?;
        Ok(look(&parent, &name)?.map(|stat| Beside::from(&stat)))
    }

    /// Returns the target of a symbolic link.
    pub(super) fn link_text(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        let (parent, name) = self.parent(path)?;
        Ok(rustix::fs::readlinkat(&*parent, name, Vec::new())?.into_bytes())
    }

    /// Sets what a file or link is to look like that stays as it is.
    pub(super) fn adjust(&self, path: &[u8], named: bool, looks: Looks) -> io::Result<()> {
        let (parent, name) = self.place(path, named)?;
        // A change of owner takes some permissions away.
        set_owner_of_name(&parent, &name, looks.owner)?;
        if let Some(mode) = looks.mode {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&*parent, &name, flags, Mode::empty())?;
            let stat = rustix::fs::fstat(&file)?;
            if kind(&stat) != FileType::RegularFile {
                return Err(in_the_way(&stat));
            }
            // One that its owner may not even read: fchmod(2) takes no descriptor that was opened for its path alone.
            let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::chmod(itself, Mode::from_raw_mode(mode))?;
        }
        if let Some(times) = looks.times {
            rustix::fs::utimensat(&*parent, &name, &timestamps(times), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    /// Goes through the names in a directory, and says which of them are directories.
    pub(super) fn each_name(&self, path: &[u8], mut found: impl FnMut(&[u8], bool)) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = match path {
            b"" => rustix::fs::openat(&*self.root, ".", flags, Mode::empty())?,
            path => {
                let (parent, name) = self.parent(path)?;
                rustix::fs::openat(&*parent, name, flags, Mode::empty())?
            }
        };
        for entry in rustix::fs::Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let is_directory = match entry.file_type() {
                FileType::Unknown => {
                    let stat = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
                    kind(&stat) == FileType::Directory
                }
                kind => kind == FileType::Directory,
            };
            found(name.to_bytes(), is_directory);
        }
        Ok(())
    }

    /// Deletes a name, of the link itself if it is one; an empty directory where it is to be one.
    pub(super) fn delete(&self, path: &[u8], is_directory: bool) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        if !is_directory && let Some(kept) = self.backup(path, &parent, name)? {
            match kept.keep(&parent, name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                kept => kept?,
            }
        }
        let flags = match is_directory {
            true => AtFlags::REMOVEDIR,
            false => AtFlags::empty(),
        };
        match rustix::fs::unlinkat(&*parent, name, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a file for reading that is one, and no link.
    pub(super) fn read(&self, path: &[u8]) -> io::Result<File> {
        let (parent, name) = self.parent(path)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(rustix::fs::openat(&*parent, name, flags, Mode::empty())?.into())
    }

    /// Begins a file of so many bytes. It is written under a name of its `own` beside the last one, `kept` if an earlier
    /// attempt may have left something there to resume from, or in its place where it has other names or cannot be replaced
    /// as it is. `named`: the user gave the name, which may be a link.
    pub(super) fn begin(
        &self,
        path: &[u8],
        kept: Option<&[u8]>,
        own: Option<Arc<Own>>,
        named: bool,
        size: u64,
    ) -> io::Result<PartFile> {
        let (parent, name) = self.place(path, named)?;
        let found = look(&parent, &name)?;
        let backup = match &found {
            Some(_) => self.backup(path, &parent, &name)?,
            None => None,
        };
        let existing = match found {
            // A link under a name that the user did not give makes way.
            None => None,
            Some(stat) if kind(&stat) == FileType::Symlink => None,
            Some(stat) if kind(&stat) == FileType::RegularFile => Some(Existing::open(&parent, &name)?),
            Some(stat) => return Err(in_the_way(&stat)),
        };
        let kept = kept.map(|kept| match kept.iter().rposition(|byte| *byte == b'/') {
            Some(at) => &kept[at + 1..],
            None => kept,
        });
        let begun = match kept {
            Some(kept) => adopt_or_create(&parent, OsStr::from_bytes(kept)),
            None => Ok(None),
        };
        let begun = begun.and_then(|begun| match begun {
            Some(begun) => Ok(begun),
            None => {
                let is_used = |part: &OsStr| is_locked(&parent, part);
                let make = |part: &OsStr| create_locked(&parent, part);
                let (file, part) = anew(&parent, &name, own.as_ref(), is_used, make)?;
                Ok((file, part, false))
            }
        });
        match (begun, existing) {
            (Ok((file, part, adopted)), existing) => Ok(PartFile {
                file,
                parent,
                keep: kept.is_some_and(|kept| kept == part.as_bytes()),
                part: Some(part),
                _own: own,
                name,
                existing,
                backup,
                adopted,
                touched: AtomicBool::new(false),
            }),
            // A directory that takes no new name, and a file in it that may be written.
            // Its backup would be the same file.
            (Err(error), Some(existing)) if cannot_create(&error) && backup.is_none() => {
                existing.reserve(size)?;
                Ok(PartFile {
                    file: existing.file.try_clone()?,
                    parent,
                    part: None,
                    _own: None,
                    name,
                    existing: Some(existing),
                    backup: None,
                    adopted: false,
                    keep: false,
                    touched: AtomicBool::new(false),
                })
            }
            (Err(error), _) => Err(error),
        }
    }
}

/// Makes a directory that the user named, and those above it.
pub(super) fn make_directories(path: &Path, mode: u32) -> io::Result<()> {
    let missing: Vec<&Path> = path
        .ancestors()
        .take_while(|path| !path.as_os_str().is_empty() && !path.exists())
        .collect();
    for path in missing.into_iter().rev() {
        match std::fs::create_dir(path) {
            // The caller's mask counts, and not this process's.
            Ok(()) => std::fs::set_permissions(path, PermissionsExt::from_mode(mode))?,
            Err(_) if path.is_dir() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Looks a name up without following a link; `None` if nothing has it.
fn look(parent: &OwnedFd, name: &OsStr) -> io::Result<Option<Stat>> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Why nothing takes the place of this.
fn in_the_way(stat: &Stat) -> io::Error {
    let what = match kind(stat) {
        FileType::Directory => {
            let message = "a copy does not replace a directory";
            return io::Error::new(io::ErrorKind::IsADirectory, message);
        }
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        _ => "a device",
    };
    io::Error::other(format!("a copy does not replace {what}"))
}

/// A new file. It is this copy's alone: nobody else may open it until it is whole.
fn create(parent: &OwnedFd, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o600))?.into())
}

/// Makes something under a name of its own beside `name`; what a copy that was killed has left there makes way, unless
/// `is_used`.
fn anew<T>(
    parent: &OwnedFd,
    name: &OsStr,
    own: Option<&Arc<Own>>,
    is_used: impl Fn(&OsStr) -> bool,
    make: impl Fn(&OsStr) -> io::Result<T>,
) -> io::Result<(T, OsString)> {
    let mut attempt = 0;
    loop {
        let part = Own::name(own, name.as_bytes(), attempt);
        let part = OsStr::from_bytes(&part);
        match make(part) {
            Ok(made) => return Ok((made, part.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && Own::may_be_taken(own, attempt) => {
                // Somebody else's file in a directory for all stays, and another name is taken.
                if is_used(part) || rustix::fs::unlinkat(parent, part, AtFlags::empty()).is_err() {
                    attempt += 1;
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Opens what an earlier attempt has left under this name, or makes it; whether something was left. `None` where the
/// name has another's file, or a copy that runs.
///
/// Ours is a regular file with one name, of this user, that nobody else may open. So nobody else can have opened it
/// before, and it stays what it is while it is looked at.
fn adopt_or_create(parent: &OwnedFd, name: &OsStr) -> io::Result<Option<(File, OsString, bool)>> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let (file, adopted): (File, bool) = match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Ok(file) => (file.into(), true),
        Err(Errno::NOENT) => match create(parent, name) {
            Ok(file) => (file, false),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
            Err(error) => return Err(error),
        },
        Err(_) => return Ok(None),
    };
    let stat = rustix::fs::fstat(&file)?;
    let ours = kind(&stat) == FileType::RegularFile
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_nlink == 1
        && stat.st_mode & 0o077 == 0;
    if !ours || !lock(&file) {
        return Ok(None);
    }
    // Whoever had the lock before may have given the file its last name.
    let there = look(parent, name)?;
    let same = there.is_some_and(|there| (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino));
    Ok(same.then(|| (file, name.to_owned(), adopted)))
}

/// A new file that other processes know to be in use.
fn create_locked(parent: &OwnedFd, name: &OsStr) -> io::Result<File> {
    let file = create(parent, name)?;
    // Where there are no locks, another process would have to copy the same file at the same time.
    let _ = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    Ok(file)
}

/// Whether a copy that runs has this file.
fn is_locked(parent: &OwnedFd, name: &OsStr) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
        .is_ok_and(|file| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err())
}

/// Locks a partial file until it is closed, unless another copy keeps it.
fn lock(file: &File) -> bool {
    let deadline = Instant::now() + part::LETS_GO;
    while rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(part::LOOK);
    }
    true
}

fn cannot_create(error: &io::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem)
}

/// A regular file that is to be replaced.
struct Existing {
    file: File,
    stat: Stat,
}

impl Existing {
    /// Opens it to be written, which shows that it may be.
    fn open(parent: &OwnedFd, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(parent, name, flags | OFlags::WRONLY, Mode::empty()) {
            // A program that runs cannot be written, and can be replaced.
            Err(Errno::TXTBSY) => rustix::fs::openat(parent, name, flags, Mode::empty()),
            opened => opened,
        }?;
        let stat = rustix::fs::fstat(&file)?;
        if kind(&stat) != FileType::RegularFile {
            return Err(in_the_way(&stat));
        }
        Ok(Self {
            file: file.into(),
            stat,
        })
    }

    /// Its permissions, when it has another content.
    fn mode(&self) -> u32 {
        let mode = self.stat.st_mode & 0o7777;
        match rustix::process::geteuid().is_root() {
            true => mode,
            false => rewritten(mode),
        }
    }

    /// Gives a new file this one's owner and extended attributes, access lists among them.
    fn dress(&self, new: &File) -> io::Result<()> {
        let made = rustix::fs::fstat(new)?;
        if (made.st_uid, made.st_gid) != (self.stat.st_uid, self.stat.st_gid) {
            let owner = Uid::from_raw(self.stat.st_uid);
            rustix::fs::fchown(new, Some(owner), Some(Gid::from_raw(self.stat.st_gid)))?;
        }
        let mut names = Vec::with_capacity(64 * 1024);
        match rustix::fs::flistxattr(&self.file, rustix::buffer::spare_capacity(&mut names)) {
            Ok(_) => {}
            Err(Errno::NOTSUP) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            // Rights and hashes that the system takes from a file which is written.
            if matches!(name, b"security.capability" | b"security.ima" | b"security.evm") {
                continue;
            }
            let mut value = Vec::with_capacity(64 * 1024);
            rustix::fs::fgetxattr(&self.file, name, rustix::buffer::spare_capacity(&mut value))?;
            let mut there = Vec::with_capacity(64 * 1024);
            let set = rustix::fs::fgetxattr(new, name, rustix::buffer::spare_capacity(&mut there));
            if set.is_err() || there != value {
                rustix::fs::fsetxattr(new, name, &value, XattrFlags::empty())?;
            }
        }
        Ok(())
    }

    /// Takes the room for so many bytes: a disk that is too full says so before anything is lost.
    fn reserve(&self, size: u64) -> io::Result<()> {
        let there = self.file.metadata()?.len();
        if size > there {
            let reserved = rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, there, size - there);
            if let Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) = reserved {
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Gives the file another content where it is: its other names, and what could not be given to a new file, stay.
    fn overwrite(&self, content: &File) -> io::Result<()> {
        let length = content.metadata()?.len();
        self.reserve(length)?;
        let (mut from, mut to) = (content, &self.file);
        io::Seek::rewind(&mut from)?;
        let written = io::copy(&mut from, &mut to).and_then(|_| self.file.set_len(length));
        written.map_err(|error| io::Error::new(error.kind(), format!("{error}{INCOMPLETE}")))
    }
}

impl From<&Stat> for Beside {
    fn from(stat: &Stat) -> Self {
        Self {
            kind: match kind(stat) {
                FileType::RegularFile => Kind::File,
                FileType::Directory => Kind::Directory,
                FileType::Symlink => Kind::Link,
                _ => Kind::Other,
            },
            size: u64::try_from(stat.st_size).ok(),
            modified: Some(stat.st_mtime),
            mode: Some(stat.st_mode & 0o7777),
            owner: Some(Owner {
                uid: stat.st_uid,
                gid: stat.st_gid,
            }),
        }
    }
}

/// A file that does not have its last name yet, or is written in its place. Dropping it removes what has no last name,
/// unless that is to be kept for another attempt.
pub(super) struct PartFile {
    file: File,
    parent: Arc<OwnedFd>,
    /// The name that it has until it is whole; `None` for one that is written in its place.
    part: Option<OsString>,
    /// Until it is dropped no other copy has that name.
    _own: Option<Arc<Own>>,
    name: OsString,
    /// The file that it replaces, and the name that it is kept under.
    existing: Option<Existing>,
    backup: Option<KeptName>,
    adopted: bool,
    keep: bool,
    /// Whether anything was written.
    touched: AtomicBool,
}

/// The most slices that one pwritev(2) takes.
const MOST_SLICES: usize = 1024;

impl PartFile {
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Returns how many bytes stay on the disk for another attempt if this one fails.
    pub(super) fn kept_bytes(&self) -> u64 {
        let blocks = || self.file.metadata().map_or(0, |found| found.blocks());
        if self.keep { blocks() * 512 } else { 0 }
    }

    /// Keeps nothing for another attempt.
    pub(super) fn give_back(&mut self) {
        self.keep = false;
    }

    /// Whether nothing of it stays when this attempt fails.
    pub(super) fn is_removed(&self) -> bool {
        self.part.is_some() && !self.keep
    }

    /// Whether an earlier attempt may have written some of it.
    pub(super) fn is_adopted(&self) -> bool {
        self.adopted
    }

    /// Writes slices in a row.
    pub(super) fn write(&self, offset: u64, chunks: &[Bytes]) -> io::Result<()> {
        self.touched.store(true, Ordering::Relaxed);
        write_slices(&self.file, offset, chunks)
    }

    /// Returns the words that follow the reason of a failure: the state of the file under its final name.
    pub(super) fn aftermath(&self) -> &'static str {
        match self.part.is_none() && self.touched.load(Ordering::Relaxed) {
            true => INCOMPLETE,
            false => "",
        }
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
        let replaces = match &self.existing {
            None => true,
            Some(existing) if self.part.is_some() => {
                let is_dressed = existing.dress(&self.file).is_ok();
                // What is written where it is would be its own backup.
                let replaces = self.backup.is_some() || existing.stat.st_nlink == 1 && is_dressed;
                if !replaces {
                    existing.overwrite(&self.file)?;
                }
                replaces
            }
            Some(_) => false,
        };
        let (file, mode) = match (&self.existing, replaces) {
            (Some(existing), false) => (&existing.file, None),
            (Some(existing), true) => (&self.file, Some(existing.mode())),
            (None, _) => (&self.file, looks.mode),
        };
        if let Some(owner) = looks.owner {
            rustix::fs::fchown(
                file,
                Some(Uid::from_raw(owner.uid)),
                Some(Gid::from_raw(owner.gid)),
            )?;
        }
        if let Some(mode) = if looks.preserve { looks.mode } else { mode } {
            rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?;
        }
        if let Some(times) = looks.times {
            rustix::fs::futimens(file, &timestamps(times))?;
        }
        if sync {
            file.sync_all()?;
        }
        if !replaces {
            self.keep = false;
            return Ok(());
        }
        if let Some(kept) = &self.backup {
            kept.keep(&self.parent, &self.name)?;
        }
        if let Some(part) = self.part.take() {
            let renamed = rustix::fs::renameat(&*self.parent, &part, &*self.parent, &self.name);
            if renamed.is_err() {
                self.part = Some(part);
            }
            renamed?;
        }
        if sync {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = rustix::fs::openat(&*self.parent, ".", flags, Mode::empty())?;
            rustix::fs::fsync(directory)?;
        }
        Ok(())
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        // Nothing is resumed from an empty one.
        let is_kept = || self.keep && self.file.metadata().is_ok_and(|found| found.len() > 0);
        if let Some(part) = self.part.as_ref().filter(|_| !is_kept()) {
            let _ = rustix::fs::unlinkat(&*self.parent, part, AtFlags::empty());
        }
    }
}

/// The name of a backup.
struct KeptName {
    parent: Arc<OwnedFd>,
    name: OsString,
}

impl KeptName {
    /// Gives it to what is there under another name, which stays. An older backup goes.
    fn keep(&self, parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
        let new = part::random(self.name.as_bytes());
        let new = OsStr::from_bytes(&new);
        rustix::fs::linkat(parent, name, &*self.parent, new, AtFlags::empty())?;
        let renamed = rustix::fs::renameat(&*self.parent, new, &*self.parent, &self.name);
        // It is there still where the backup is the same file.
        let _ = rustix::fs::unlinkat(&*self.parent, new, AtFlags::empty());
        Ok(renamed?)
    }
}

/// Sets whose a name is, of the link itself if it is one.
fn set_owner_of_name(parent: &OwnedFd, name: &OsStr, owner: Option<Owner>) -> io::Result<()> {
    let Some(Owner { uid, gid }) = owner else {
        return Ok(());
    };
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    Ok(rustix::fs::chownat(parent, name, Some(uid), Some(gid), flags)?)
}

/// The same, and its times.
fn set_looks_of_name(parent: &OwnedFd, name: &OsStr, looks: Looks) -> io::Result<()> {
    set_owner_of_name(parent, name, looks.owner)?;
    if let Some(times) = looks.times {
        rustix::fs::utimensat(parent, name, &timestamps(times), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
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
    fn no_name_and_no_link_leads_out_of_the_directory() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(outside.path(), inside.path().join("link")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("file"), inside.path().join("part")).unwrap();
        let directory = LocalDirectory::open(inside.path()).unwrap();
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
            assert!(directory.begin(name, None, None, false, 0).is_err(), "{name:?}");
            assert!(directory.make_directory(name, 0o755).is_err(), "{name:?}");
            assert!(
                directory.make_link(b"t", name, None, Looks::default()).is_err(),
                "{name:?}"
            );
        }
        assert!(
            directory.make_directory(b"link", 0o755).is_err(),
            "a link is not a directory"
        );
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_part_has_no_name_until_it_is_whole_and_none_is_left_behind() {
        let place = tempfile::tempdir().unwrap();
        let directory = LocalDirectory::open(place.path()).unwrap();
        drop(directory.begin(b"f", None, None, false, 0).unwrap());
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        let part = directory.begin(b"f", None, None, false, 0).unwrap();
        part.write(2, &[Bytes::from_static(b"cd"), Bytes::from_static(b"efgh")])
            .unwrap();
        part.clear(4, 2).unwrap();
        let looks = Looks {
            mode: Some(0o640),
            times: Some((5, 7)),
            preserve: true,
            ..Looks::default()
        };
        part.install(7, looks, true).unwrap();
        assert_eq!(std::fs::read(place.path().join("f")).unwrap(), b"\0\0cd\0\0g");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
        assert_eq!(directory.look(b"f", false).unwrap().unwrap().modified, Some(7));
    }

    #[test]
    fn more_slices_than_one_call_takes_are_written_in_order() {
        let place = tempfile::tempdir().unwrap();
        let directory = LocalDirectory::open(place.path()).unwrap();
        let part = directory.begin(b"f", None, None, false, 0).unwrap();
        let chunks: Vec<Bytes> = (0..3000u32)
            .map(|n| Bytes::copy_from_slice(&n.to_le_bytes()))
            .collect();
        part.write(0, &chunks).unwrap();
        part.install(12_000, Looks::default(), false).unwrap();
        assert_eq!(std::fs::read(place.path().join("f")).unwrap(), chunks.concat());
    }
}
