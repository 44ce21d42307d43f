//! [`Location`]: one end of a copy as it was given; [`Place`]: that end, opened.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use trunkline_request::copy::CopyOptions;
use trunkline_request::own;
use trunkline_sftp::transfer::NameBudget;

use super::blocking::blocking;
use super::path::{self, shown};
use super::sessions::Sessions;
use super::stream::Stream;
use super::{directory, part};
use crate::engine::Host;
use crate::error::{Error, Invalid};
use crate::sftp::{FileAttributes, FileType, Permissions, Sftp};

/// One end of a copy.
#[derive(Debug, Clone)]
#[non_exhaustive]
#[expect(clippy::large_enum_variant, reason = "a copy has a handful of them")]
pub enum Location {
    /// A path on this machine. Pipes and devices are read or written, not replaced.
    Local(PathBuf),
    /// An open stream: as a source it is read to its end, as a target written to.
    Stream(Stream),
    /// A path on a server, over as many sessions as are useful. A relative path starts at the user's home. A source may have
    /// patterns with `*`, `?` and `[…]`.
    Host(Host, Bytes),
    /// A path on a server, over this session alone.
    Session(Sftp, Bytes),
}

impl Location {
    pub(super) fn path(&self) -> Bytes {
        match self {
            Self::Local(path) => Bytes::copy_from_slice(path.as_os_str().as_encoded_bytes()),
            Self::Stream(stream) => stream.path(),
            Self::Host(_, path) | Self::Session(_, path) => path.clone(),
        }
    }

    /// Returns the budget for the names that its server lists, which its engine's other hosts share.
    pub(super) fn names(&self) -> Option<NameBudget> {
        match self {
            Self::Host(host, _) => Some(host.names()),
            Self::Session(sftp, _) => Some(sftp.link().known.names.clone()),
            Self::Local(_) | Self::Stream(_) => None,
        }
    }

    /// Returns whether two locations are on one machine, so that the same sessions serve both.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Local(_) | Self::Stream(_), Self::Local(_) | Self::Stream(_)) => true,
            (Self::Host(a, _), Self::Host(b, _)) => a.config().sharing_key() == b.config().sharing_key(),
            (Self::Session(a, _), Self::Session(b, _)) => Arc::ptr_eq(a.link(), b.link()),
            _ => false,
        }
    }
}

/// One end of a copy, opened.
#[derive(Clone)]
pub(super) enum Place {
    Local,
    Server(Arc<Sessions>),
}

impl Place {
    pub(super) async fn of(location: &Location) -> Result<Self, Error> {
        Ok(match location {
            Location::Local(_) | Location::Stream(_) => Self::Local,
            Location::Host(host, _) => Self::Server(Arc::new(Sessions::of_host(host).await?)),
            Location::Session(sftp, _) => Self::Server(Arc::new(Sessions::of_session(sftp))),
        })
    }

    /// Formats a path there for people.
    pub(super) fn shown(&self, path: &[u8]) -> String {
        match self {
            Self::Local => shown(path),
            Self::Server(sessions) => format!("{}:{}", sessions.first().host(), shown(path)),
        }
    }

    /// Returns an identifier of the machine and the account.
    pub(super) fn id(&self) -> Vec<u8> {
        match self {
            Self::Local => {
                let uid = rustix::process::geteuid().as_raw();
                let machine = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
                [&machine[..], &uid.to_be_bytes()].concat()
            }
            Self::Server(sessions) => match sessions.host() {
                Some(host) => {
                    let config = host.config();
                    format!("{}@{}:{}", config.user, config.hostname, config.port).into_bytes()
                }
                None => sessions.first().host().as_bytes().to_vec(),
            },
        }
    }

    /// Returns whether files are written as root. On a server, the owner of the directory that a session starts in tells.
    pub(super) async fn is_root(&self) -> Result<bool, Error> {
        let Self::Server(sessions) = self else {
            return Ok(rustix::process::geteuid().is_root());
        };
        let home = |sftp: Sftp| async move { sftp.stat(Bytes::from_static(b".")).await };
        match sessions.retry(home).await {
            Ok(home) => Ok(home.owner.is_some_and(|owner| owner.uid == 0)),
            Err(Error::File { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns whether owners are kept, which only root can. Keeping them by number is required, not attempted.
    pub(super) async fn keeps_owners(&self, options: &CopyOptions) -> Result<bool, Error> {
        let is_root = (options.owners || options.numeric_ids) && self.is_root().await?;
        if options.numeric_ids && is_root {
            return Ok(true);
        }
        if !options.numeric_ids {
            return Ok(is_root && (matches!(self, Self::Server(_)) || own::has_all_users()));
        }
        let host = match self {
            Self::Local => None,
            Self::Server(sessions) => Some(sessions.first().host().to_owned()),
        };
        Err(Invalid::Owners(host).into())
    }

    /// Fails if backups are wanted on a server without hard links.
    pub(super) async fn check_backups(&self, options: &CopyOptions) -> Result<(), Error> {
        let (Self::Server(sessions), Some(_)) = (self, &options.backup) else {
            return Ok(());
        };
        let (sftp, none) = (sessions.first(), Bytes::new);
        let (from, to) = (none(), none());
        let link = trunkline_sftp::Request::Hardlink { from, to };
        let (from, to) = (none(), none());
        let rename = trunkline_sftp::Request::PosixRename { from, to };
        if sftp.link().supports(&link).await? && sftp.link().supports(&rename).await? {
            return Ok(());
        }
        Err(Invalid::Backups(sftp.host().to_owned()).into())
    }

    /// Makes a path absolute and resolves its links; `None` if nothing is there.
    pub(super) async fn absolute(&self, path: &Bytes) -> Option<Bytes> {
        match self {
            Self::Local => {
                let path = PathBuf::from(path::os(path));
                let found = blocking(move || std::fs::canonicalize(path)).await.ok()?;
                Some(Bytes::copy_from_slice(found.as_os_str().as_encoded_bytes()))
            }
            Self::Server(sessions) => sessions.first().realpath(path).await.ok(),
        }
    }

    /// Returns whether a directory is the same one here and at another place, by creating a name here and looking for it there.
    pub(super) async fn shows_what_is_made_at(&self, other: &Self, directory: &Bytes) -> Result<bool, Error> {
        let probe = part::random(&path::in_root(directory, b"copy"));
        let made = match self {
            Self::Local => {
                let probe = PathBuf::from(path::os(&probe));
                blocking(move || std::fs::create_dir(probe)).await.is_ok()
            }
            Self::Server(sessions) => sessions
                .first()
                .mkdir(&probe, FileAttributes::default())
                .await
                .is_ok(),
        };
        if !made {
            // The directory is not writable: the copy reports that.
            return Ok(false);
        }
        let seen = match other {
            Self::Local => {
                let probe = PathBuf::from(path::os(&probe));
                blocking(move || std::fs::symlink_metadata(probe)).await.is_ok()
            }
            Self::Server(sessions) => sessions.first().lstat(&probe).await.is_ok(),
        };
        match self {
            Self::Local => {
                let probe = PathBuf::from(path::os(&probe));
                let _ = blocking(move || std::fs::remove_dir(probe)).await;
            }
            Self::Server(sessions) => {
                let _ = sessions.first().rmdir(&probe).await;
            }
        }
        Ok(seen)
    }

    /// Expands the `~` of a server's location.
    pub(super) async fn expanded(&self, location: &Location) -> Result<Location, Error> {
        let mut expanded = location.clone();
        if let (Self::Server(sessions), Location::Host(_, path) | Location::Session(_, path)) =
            (self, &mut expanded)
            && path.starts_with(b"~")
        {
            let typed = path.clone();
            let expand = |sftp: Sftp| {
                let typed = typed.clone();
                async move { path::Expanded::of(&sftp, &typed).await }
            };
            *path = sessions.retry(expand).await?.path();
        }
        Ok(expanded)
    }

    /// Creates the target's directory and those above it, like mkdir -p.
    pub(super) async fn make_directories(&self, path: &Bytes, options: &CopyOptions) -> Result<(), Error> {
        if options.dry_run {
            return Ok(());
        }
        match self {
            Self::Local => {
                let path = PathBuf::from(path::os(path));
                let mode = 0o777 & !options.umask;
                let making = path.clone();
                let made = blocking(move || directory::make_directories(&making, mode)).await;
                made.map_err(|error| {
                    Error::local(
                        format!("creating {}", shown(path.as_os_str().as_encoded_bytes())),
                        error,
                    )
                })
            }
            Self::Server(sessions) => {
                let make = |sftp: Sftp| async move { make_directories_there(&sftp, path, 0o777).await };
                sessions.retry(make).await
            }
        }
    }
}

/// Creates a directory on a server, and the missing ones above it.
pub(super) async fn make_directories_there(sftp: &Sftp, path: &Bytes, mode: u32) -> Result<(), Error> {
    let path = path.slice(..path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1));
    let slashes = path
        .iter()
        .enumerate()
        .filter(|(at, byte)| *at > 0 && **byte == b'/');
    let ends: Vec<usize> = slashes.map(|(at, _)| at).chain([path.len()]).collect();
    let mut missing = Vec::new();
    for end in ends.into_iter().rev() {
        match sftp.stat(path.slice(..end)).await {
            Err(error) if error.is_no_such_file() && end > 0 => missing.push(end),
            Err(error @ Error::File { .. }) => return Err(error),
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    for end in missing.into_iter().rev() {
        let directory = path.slice(..end);
        let attributes = FileAttributes {
            permissions: Some(Permissions(mode)),
            ..FileAttributes::default()
        };
        if let Err(error) = sftp.mkdir(&directory, attributes).await {
            // Another program may have created it meanwhile.
            let found = sftp
                .stat(&directory)
                .await
                .ok()
                .and_then(|found| found.file_type());
            if found != Some(FileType::Directory) {
                return Err(error);
            }
        }
    }
    Ok(())
}
