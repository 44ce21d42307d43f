//! The daemon's hold on its place, and the check of its clients.

use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use tokio::net::{UnixListener, UnixStream};
use trunkline_control::own_socket::{self, FileId, OwnSocket};
use trunkline_request::words_of;

use crate::place::{Place, PlaceError};

/// The reason why the daemon could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The daemon's directory cannot be used.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Another daemon is running.
    #[error("a daemon is already running for {0}")]
    Running(PathBuf),
    /// A file that is not a socket has the socket's name. It is not ours to delete.
    #[error("{0} is not a socket: move it away")]
    Foreign(PathBuf),
    /// A service manager has handed over a socket where no clients come.
    #[error(
        "the service manager listens on {found}, but clients connect to {socket}: set ListenStream to that"
    )]
    OtherSocket {
        /// The service manager's.
        found: PathBuf,
        /// The clients'.
        socket: PathBuf,
    },
    /// The socket cannot be created.
    #[error("cannot listen on {path}: {}", words_of(.error))]
    Listen {
        /// The socket's path.
        path: PathBuf,
        error: io::Error,
    },
}

/// The daemon's hold on its place: the lock and the socket.
#[derive(Debug)]
pub struct Claim {
    pub(crate) listener: UnixListener,
    pub(crate) place: Place,
    /// The socket's file; `None` if it belongs to a service manager, which listens before and after this process.
    file: Option<OwnSocket>,
    lock: std::fs::File,
}

impl Claim {
    /// Takes the lock and listens, on the socket that a service manager has `handed_over` or on one of its own. The
    /// lock's owner owns the socket, so a socket file found there was left by a dead daemon.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn take(
        place: &Place,
        handed_over: Option<std::os::unix::net::UnixListener>,
    ) -> Result<Self, StartError> {
        place.make()?;
        let failed = |path: PathBuf| move |error| StartError::Listen { path, error };
        let lock = std::fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(place.lock())
            .map_err(failed(place.lock()))?;
        if !lock_alone(&lock) {
            return Err(StartError::Running(place.runtime.clone()));
        }
        // For clients that find nobody at the socket.
        let _ = lock
            .set_len(0)
            .and_then(|()| writeln!(&lock, "{}", std::process::id()));
        let socket = place.socket();
        if let Some(listener) = handed_over {
            let address = listener.local_addr().map_err(failed(socket.clone()))?;
            if address.as_pathname() != Some(&socket) {
                let found = address.as_pathname().map(PathBuf::from).unwrap_or_default();
                return Err(StartError::OtherSocket { found, socket });
            }
            let listener = listener
                .set_nonblocking(true)
                .and_then(|()| UnixListener::from_std(listener));
            return Ok(Self {
                listener: listener.map_err(failed(socket))?,
                place: place.clone(),
                file: None,
                lock,
            });
        }
        if std::fs::symlink_metadata(&socket).is_ok_and(|found| !found.file_type().is_socket()) {
            return Err(StartError::Foreign(socket));
        }
        // The directory's mode keeps others out, and so does the socket's own.
        let (listener, file) = own_socket::listen_anew(&socket).map_err(failed(socket))?;
        Ok(Self {
            listener,
            place: place.clone(),
            file: Some(file),
            lock,
        })
    }

    /// Returns true if the socket is a service manager's.
    pub(crate) fn is_activated(&self) -> bool {
        self.file.is_none()
    }

    /// Listens again if the socket's file was removed. Returns false if the lock's was removed, too: the place may
    /// belong to another daemon.
    pub(crate) fn hold(&mut self) -> bool {
        let own = FileId::from_file(&self.lock).ok();
        if own.is_none() || FileId::at_path(&self.place.lock()).ok() != own {
            return false;
        }
        if self.file.as_ref().is_none_or(OwnSocket::stands) {
            return true;
        }
        let path = self.place.socket();
        match own_socket::listen(&path) {
            Ok((listener, file)) => {
                tracing::warn!("{} was removed, and is there again", path.display());
                (self.listener, self.file) = (listener, Some(file));
            }
            Err(error) => tracing::warn!("cannot listen on {} again: {error}", path.display()),
        }
        true
    }
}

/// Takes the lock unless a daemon has it. A client that tests the lock shares it for a moment; that is waited out.
fn lock_alone(lock: &std::fs::File) -> bool {
    use rustix::fs::FlockOperation::{NonBlockingLockExclusive, NonBlockingLockShared};
    for _ in 0..100 {
        if rustix::fs::flock(lock, NonBlockingLockExclusive).is_ok() {
            return true;
        }
        if rustix::fs::flock(lock, NonBlockingLockShared).is_err() {
            return false;
        }
        // Two daemons that start at once share it now. Unlocking lets one of them have it.
        let _ = rustix::fs::flock(lock, rustix::fs::FlockOperation::Unlock);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    false
}

/// The reason why a client is rejected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerError {
    #[error("cannot tell whose it is: {0}")]
    Unknown(#[source] io::Error),
    #[error("uid {0} is not the daemon's")]
    Stranger(u32),
}

/// Rejects all but the daemon's owner, whatever the modes of the directory and the socket.
pub(crate) fn check_peer(stream: &UnixStream) -> Result<(), PeerError> {
    let peer = stream.peer_cred().map_err(PeerError::Unknown)?;
    if peer.uid() != rustix::process::getuid().as_raw() {
        return Err(PeerError::Stranger(peer.uid()));
    }
    Ok(())
}
