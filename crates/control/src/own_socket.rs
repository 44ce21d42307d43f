//! Sockets in the file system that belong to this process.

use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::UnixListener;

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 128;

/// The file of a socket that this process created. Dropping it removes the file, unless it was replaced: the directory
/// may have been removed and recreated while the program ran.
#[derive(Debug)]
pub struct OwnSocket {
    path: PathBuf,
    file: FileId,
}

impl OwnSocket {
    /// Returns the path, even if the file is gone.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if the file exists and is still this socket's.
    pub fn stands(&self) -> bool {
        FileId::at_path(&self.path).is_ok_and(|found| found == self.file)
    }
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        if self.stands() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens at `path`, for this user alone (mode 0600).
///
/// # Errors
/// The system's: `AddrInUse` if the name is taken.
pub fn listen(path: &Path) -> io::Result<(UnixListener, OwnSocket)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Linux creates the file with the socket's own mode, so it is never open to others.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    let own = OwnSocket {
        path: path.to_owned(),
        file: FileId::at_path(path)?,
    };
    // Other systems do not.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok((UnixListener::from_std(socket.into())?, own))
}

/// Listens on a socket that replaces any existing file.
///
/// # Errors
/// The system's error.
pub fn listen_anew(path: &Path) -> io::Result<(UnixListener, OwnSocket)> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    listen(path)
}

/// Listens on the socket of the metrics. If that fails, logs a warning and continues without them.
pub fn for_metrics(path: &Path) -> Option<(UnixListener, OwnSocket)> {
    let tell = |error: &io::Error| tracing::warn!("no metrics on {}: {error}", path.display());
    listen_anew(path).inspect_err(tell).ok()
}

/// The identity of a file: its device and its inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId(u64, u64);

impl FileId {
    /// Returns the identity of the file at a path, without following a link.
    ///
    /// # Errors
    /// The system's error.
    pub fn at_path(path: &Path) -> io::Result<Self> {
        let found = path.symlink_metadata()?;
        Ok(Self(found.dev(), found.ino()))
    }

    /// Returns the identity of an open file.
    ///
    /// # Errors
    /// The system's error.
    pub fn from_file(file: &std::fs::File) -> io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self(found.dev(), found.ino()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_own_file_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let (_first, first) = listen(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let (_second, second) = listen_anew(&path).unwrap();
        assert!(!first.stands() && second.stands());
        drop(first);
        assert!(second.stands());
        drop(second);
        assert!(!path.exists());
    }
}
