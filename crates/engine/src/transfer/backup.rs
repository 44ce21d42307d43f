//! Backups on a server: a file that is to be replaced or deleted is renamed before anything takes its place.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use trunkline_request::copy::{Backup, CopyOptions};

use super::directory::BACKUPS_MODE;
use super::place::make_directories_there;
use super::sessions::Sessions;
use super::{part, path};
use crate::error::Error;
use crate::sftp::{FileAttributes, FileType, Permissions, Sftp, Status, StatusCode};

/// The backups of a copy: replaced and deleted files keep other names.
#[derive(Debug)]
pub(super) struct Backups {
    /// `None` without backups.
    settings: Option<Backup>,
    /// Backup directories known to exist. The lock is held for a look-up only.
    directories: Mutex<HashSet<Bytes>>,
}

impl Backups {
    pub(super) fn new(options: &CopyOptions) -> Self {
        Self {
            settings: options.backup.clone().filter(|_| !options.dry_run),
            directories: Mutex::default(),
        }
    }

    /// Links the file at a path, `target` below the target's root, to its backup's name, and replaces an older backup.
    pub(super) async fn keep(
        &self,
        sessions: &Sessions,
        root: &Bytes,
        (path, target): (&Bytes, &Bytes),
    ) -> Result<(), Error> {
        let Some(backup) = &self.settings else {
            return Ok(());
        };
        let kept = match &backup.directory {
            None => Bytes::from(backup.path(path)),
            Some(directory) => {
                let top = path::in_root(root, directory);
                let top = if directory.starts_with(b"/") {
                    Bytes::copy_from_slice(directory)
                } else {
                    top
                };
                let kept = Bytes::from(backup.path(target));
                self.make_directories(sessions, &top, &kept).await?;
                path::join(&top, &kept)
            }
        };
        let keep = async |sftp: Sftp| {
            let new = part::random(&kept);
            sftp.hardlink(path, &new).await?;
            let renamed = sftp.rename_posix(&new, &kept).await;
            // A rename to another name of the same file leaves both names, and a failed one leaves the old name.
            let _ = sftp.remove(&new).await;
            renamed
        };
        sessions.retry(keep).await
    }

    /// Creates the directory for backups, wherever the user put it, and the directories of a path in it. No link below it is
    /// followed: backups include links, and a server may have chosen them.
    async fn make_directories(&self, sessions: &Sessions, top: &Bytes, kept: &Bytes) -> Result<(), Error> {
        let slashes = kept.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let below = slashes.map(|(at, _)| path::join(top, &kept[..at]));
        for (nth, directory) in std::iter::once(top.clone()).chain(below).enumerate() {
            if self.has(&directory) {
                continue;
            }
            if nth == 0 {
                sessions
                    .retry(async |sftp: Sftp| make_directories_there(&sftp, top, BACKUPS_MODE).await)
                    .await?;
            } else {
                sessions
                    .retry(async |sftp: Sftp| make_directory(&sftp, &directory).await)
                    .await?;
            }
            self.add(directory);
        }
        Ok(())
    }

    fn has(&self, directory: &Bytes) -> bool {
        let directories = self.directories.lock().unwrap_or_else(PoisonError::into_inner);
        directories.contains(directory)
    }

    fn add(&self, directory: Bytes) {
        let mut directories = self.directories.lock().unwrap_or_else(PoisonError::into_inner);
        directories.insert(directory);
    }
}

async fn make_directory(sftp: &Sftp, directory: &Bytes) -> Result<(), Error> {
    let mode = FileAttributes {
        permissions: Some(Permissions(BACKUPS_MODE)),
        ..FileAttributes::default()
    };
    // A failure may mean that the directory exists; LSTAT tells.
    let made = sftp.mkdir(directory, mode).await;
    match (sftp.lstat(directory).await?.file_type(), made) {
        (Some(FileType::Directory), _) => Ok(()),
        (_, Err(error)) => Err(error),
        (_, Ok(())) => {
            let status = Status {
                code: StatusCode::FAILURE,
                message: "it is not a directory".into(),
            };
            Err(sftp
                .link()
                .status_error("keeping backups in", directory.clone(), status))
        }
    }
}
