//! [`Exposure`] finds directories on a server whose names somebody else can redirect.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::sync::OnceCell;

use super::sessions::Sessions;
use crate::sftp::{FileAttributes, Owner, Permissions, Sftp};

/// The findings about the directories that files go into, and those above them.
#[derive(Debug, Default)]
pub(super) struct Exposure {
    /// The user: the owner of the directory that a session begins in.
    user: OnceCell<Option<Owner>>,
    /// The lock is held for a look-up only.
    known: Mutex<HashMap<Bytes, bool>>,
}

impl Exposure {
    /// Returns whether anyone but the user and root may exchange names in a directory, or the name of the directory or of one
    /// above it. Returns true if that cannot be found out.
    pub(super) async fn is_exposed(&self, sessions: &Sessions, directory: &Bytes) -> bool {
        let user = *self.user.get_or_init(|| user(sessions)).await;
        let Some(user) = user else { return true };
        let real = sessions.retry(async |sftp: Sftp| sftp.realpath(directory).await);
        let Ok(real) = real.await else { return true };
        let paths = ancestors(&real).chain(ancestors(directory));
        let looks = join_all(paths.map(|path| self.is_open(sessions, path, user)));
        looks.await.contains(&true)
    }

    async fn is_open(&self, sessions: &Sessions, directory: Bytes, user: Owner) -> bool {
        if let Some(known) = self.known().get(&directory) {
            return *known;
        }
        let path = &directory;
        let found = sessions.retry(async |sftp: Sftp| sftp.stat(path).await).await;
        let is_open = found.map_or(true, |found| is_open(&found, user));
        self.known().insert(directory, is_open);
        is_open
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Bytes, bool>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn user(sessions: &Sessions) -> Option<Owner> {
    let home = sessions.retry(async |sftp: Sftp| sftp.stat(Bytes::from_static(b".")).await);
    home.await.ok()?.owner
}

/// Returns a path and the directories it goes through.
fn ancestors(path: &Bytes) -> impl Iterator<Item = Bytes> {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    // The root has a slash and no name.
    let ends = slashes.map(|(at, _)| at.max(1)).chain([path.len()]);
    let mut paths: Vec<Bytes> = ends.map(|end| path.slice(..end)).collect();
    paths.retain(|path| !path.is_empty());
    paths.dedup();
    paths.into_iter()
}

/// Returns whether anyone but the user and root may exchange names in a directory.
fn is_open(directory: &FileAttributes, user: Owner) -> bool {
    let (Some(mode), Some(owner)) = (directory.permissions.map(Permissions::bits), directory.owner) else {
        return true;
    };
    let theirs = owner.uid != 0 && owner.uid != user.uid;
    // The user's own group, which most systems create for each user, has no other members.
    let shared_group = mode & 0o020 != 0 && (mode & 0o2000 != 0 || owner.gid != user.gid);
    let sticky = mode & 0o1000 != 0;
    theirs || !sticky && (mode & 0o002 != 0 || shared_group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_goes_through_all_directories_above_it() {
        for (path, through) in [
            ("/a/b", &["/", "/a", "/a/b"][..]),
            ("/", &["/"]),
            ("a/b", &["a", "a/b"]),
            (".", &["."]),
        ] {
            let paths: Vec<Bytes> = ancestors(&Bytes::from(path)).collect();
            assert_eq!(paths, through, "{path}");
        }
    }

    #[test]
    fn a_directory_is_open_where_somebody_else_can_rename_in_it() {
        let user = Owner { uid: 1000, gid: 1000 };
        for (uid, gid, mode, open) in [
            (1000, 1000, 0o755, false),
            (1000, 1000, 0o775, false),
            (0, 0, 0o755, false),
            (0, 0, 0o1777, false),
            (0, 50, 0o2775, true),
            (1000, 1000, 0o2775, true),
            (1000, 50, 0o775, true),
            (1000, 1000, 0o777, true),
            (1001, 1001, 0o755, true),
            (1001, 1001, 0o1777, true),
        ] {
            let directory = FileAttributes {
                owner: Some(Owner { uid, gid }),
                permissions: Some(Permissions(0o040_000 | mode)),
                ..FileAttributes::default()
            };
            assert_eq!(is_open(&directory, user), open, "{uid} {gid} {mode:o}");
        }
        assert!(is_open(&FileAttributes::default(), user));
    }
}
