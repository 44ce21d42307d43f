//! Directories and files that are this user's own: nobody else can replace them or has written their text.
//!
//! A program of root's that runs with another user's HOME (`sudo -E`, a service) must neither write where that user's
//! links lead, nor follow that user's files. So each component of a path is opened separately without following links,
//! and its owner must be this user or root. Links that they have made are followed, others refused. A user other than
//! root may live below another user's directory (`/home/group/jo`): the check starts below the first directory of their
//! own.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fd::{AsFd, AsRawFd as _};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, readlinkat, statat};
use rustix::io::Errno;

use crate::words_of;

/// The most links followed on one path, as in the kernel.
const MOST_LINKS: usize = 40;
/// The owner that the kernel reports for users without a number in this user namespace
/// (`/proc/sys/kernel/overflowuid`).
const NOBODY: u32 = 65534;

/// The reason why something is not this user's own, or cannot be created or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OwnError {
    /// Another user owns a component of the path.
    #[error("{} belongs to {}: {OTHERS}", .0.display(), user_name(*.1))]
    Others(PathBuf, u32),
    /// Others can write there, and could replace it.
    #[error("others may write to {}: it must be yours alone, with mode 0700", .0.display())]
    Open(PathBuf),
    /// The system's.
    #[error("cannot use {}: {}", .0.display(), words_of(.1))]
    Io(PathBuf, io::Error),
}

const OTHERS: &str = "use a directory of your own (set HOME or TRUNKLINE_DIR; sudo -H does)";

impl OwnError {
    /// Returns true if there is nothing at the path.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io(_, error) if error.kind() == io::ErrorKind::NotFound)
    }
}

impl From<OwnError> for io::Error {
    fn from(error: OwnError) -> Self {
        match error {
            OwnError::Io(_, error) => error,
            error => Self::new(io::ErrorKind::PermissionDenied, error),
        }
    }
}

/// Returns the directory at an absolute path, after creating missing parts with mode 0700. It must be this user's and
/// not writable by others. Existing parts are not changed.
///
/// # Errors
/// It does not meet these conditions, or the system's.
pub fn make_directory(path: &Path) -> Result<OwnedFd, OwnError> {
    let user = User::of_this_process();
    let (directory, found) = Walk::new(user, path, true).into_end()?;
    if found.st_uid != user.id {
        return Err(OwnError::Others(path.to_owned(), found.st_uid));
    }
    if found.st_mode & 0o022 != 0 {
        return Err(OwnError::Open(path.to_owned()));
    }
    Ok(directory)
}

/// Opens the file at an absolute path for reading. It must be a regular file of this user or root that is not
/// world-writable.
///
/// # Errors
/// It does not meet these conditions, or the system's.
pub fn open(path: &Path) -> Result<File, OwnError> {
    let (file, found) = Walk::new(User::of_this_process(), path, false).into_end()?;
    let failed = |error: io::Error| OwnError::Io(path.to_owned(), error);
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(failed(io::ErrorKind::IsADirectory.into())),
        _ => return Err(failed(io::Error::other("not a regular file"))),
    }
    if found.st_mode & 0o002 != 0 {
        return Err(OwnError::Open(path.to_owned()));
    }
    // Opens the very file that was checked, whatever has its name now.
    let descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::open(descriptor).map_err(failed)
}

/// Checks the path to something that need not exist, and the thing itself if it does: may it be changed in place?
///
/// # Errors
/// Another user owns a part of the path, or the system's.
pub fn check(path: &Path) -> Result<(), OwnError> {
    match Walk::new(User::of_this_process(), path, false).into_end() {
        Err(error) if !error.is_missing() => Err(error),
        _ => Ok(()),
    }
}

/// Returns the text of such a file.
///
/// # Errors
/// As [`open`], or it is not text.
pub fn read_to_string(path: &Path) -> Result<String, OwnError> {
    let mut text = String::new();
    open(path)?
        .read_to_string(&mut text)
        .map_err(|error| OwnError::Io(path.to_owned(), error))?;
    Ok(text)
}

/// Returns true if this process's user namespace has all users of the machine. In others, root may not be able to give
/// files to some users.
pub fn has_all_users() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// The user whose ownership is required.
#[derive(Debug, Clone, Copy)]
struct User {
    id: u32,
    /// Owners without a number here are trusted as the machine's root: they cannot be told apart.
    is_apart: bool,
}

impl User {
    fn of_this_process() -> Self {
        Self {
            id: rustix::process::geteuid().as_raw(),
            is_apart: !has_all_users(),
        }
    }

    fn trusts(self, owner: u32) -> bool {
        owner == self.id || owner == 0 || (self.is_apart && owner == NOBODY)
    }
}

/// The walk along a path, component by component.
struct Walk {
    user: User,
    path: PathBuf,
    makes: bool,
    left: VecDeque<OsString>,
    links: usize,
    /// A component of this user has been passed.
    is_own: bool,
}

impl Walk {
    fn new(user: User, path: &Path, makes: bool) -> Self {
        Self {
            user,
            path: path.to_owned(),
            makes,
            left: names(path),
            links: 0,
            is_own: false,
        }
    }

    fn io_error(&self, error: impl Into<io::Error>) -> OwnError {
        OwnError::Io(self.path.clone(), error.into())
    }

    /// Checks a component's owner and mode.
    fn passes(&mut self, found: &Stat, at: &Path) -> Result<(), OwnError> {
        let sticky_or_closed = found.st_mode & 0o1002 != 0o002;
        if self.user.id != 0 && !self.is_own {
            self.is_own = found.st_uid == self.user.id;
            return Ok(());
        }
        if !self.user.trusts(found.st_uid) {
            return Err(OwnError::Others(at.to_owned(), found.st_uid));
        }
        if self.user.id == 0 && !sticky_or_closed && !self.left.is_empty() {
            return Err(OwnError::Open(at.to_owned()));
        }
        Ok(())
    }

    fn into_end(mut self) -> Result<(OwnedFd, Stat), OwnError> {
        if self.path.is_relative() {
            return Err(self.io_error(io::Error::from(io::ErrorKind::InvalidInput)));
        }
        let mut at = PathBuf::from("/");
        let mut here = self.open_part(CWD, "/".as_ref())?;
        let mut found = fstat(&here).map_err(|error| self.io_error(error))?;
        while let Some(name) = self.left.pop_front() {
            at.push(&name);
            let stat = || statat(&here, &name, AtFlags::SYMLINK_NOFOLLOW);
            let there = match stat() {
                Err(Errno::NOENT) if self.makes => {
                    match mkdirat(&here, &name, Mode::RWXU) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => return Err(self.io_error(error)),
                    }
                    stat()
                }
                there => there,
            };
            let there = there.map_err(|error| self.io_error(error))?;
            if FileType::from_raw_mode(there.st_mode) == FileType::Symlink {
                self.passes_link(&there, &at)?;
                let to = readlinkat(&here, &name, Vec::new()).map_err(|error| self.io_error(error))?;
                let to = PathBuf::from(OsString::from_vec(to.into_bytes()));
                at.pop();
                if to.is_absolute() {
                    here = self.open_part(CWD, "/".as_ref())?;
                    at = "/".into();
                }
                for name in names(&to).into_iter().rev() {
                    self.left.push_front(name);
                }
                continue;
            }
            here = self.open_part(&here, name.as_ref())?;
            found = fstat(&here).map_err(|error| self.io_error(error))?;
            self.passes(&found, &at)?;
        }
        Ok((here, found))
    }

    /// Checks a link, since its owner decides where it leads.
    fn passes_link(&mut self, link: &Stat, at: &Path) -> Result<(), OwnError> {
        self.links += 1;
        if self.links > MOST_LINKS {
            return Err(self.io_error(Errno::LOOP));
        }
        let is_anybodys = self.user.id != 0 && !self.is_own;
        if !is_anybodys && !self.user.trusts(link.st_uid) {
            return Err(OwnError::Others(at.to_owned(), link.st_uid));
        }
        Ok(())
    }

    /// Opens a component to examine and continue from: follows no link, and does not block.
    fn open_part(&self, at: impl AsFd, name: &Path) -> Result<OwnedFd, OwnError> {
        let mut flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if !self.left.is_empty() || self.makes {
            flags |= OFlags::DIRECTORY;
        }
        openat(at, name, flags, Mode::empty()).map_err(|error| self.io_error(error))
    }
}

fn names(path: &Path) -> VecDeque<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.collect()
}

fn user_name(uid: u32) -> String {
    match uid {
        0 => "root".into(),
        uid => format!("uid {uid}"),
    }
}

#[cfg(test)]
mod tests;
