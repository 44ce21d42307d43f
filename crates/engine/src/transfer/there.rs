//! [`Listings`]: what a server's directories have, where a copy compares: listing one tells of a hundred names in each answer,
//! and a name that it lacks need not be asked for.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::compare::split;
use super::sessions::Sessions;
use super::tree::HeldNames;
use crate::error::Error;
use crate::sftp::{FileAttributes, Sftp};

/// Directories of the target that were listed, by their paths below its root.
#[derive(Debug, Default)]
pub(super) struct Listings {
    /// The lock is held for a look-up only.
    directories: Mutex<HashMap<Bytes, Listing>>,
}

/// The names of a directory that nothing has taken yet; `None` for a name without all of its attributes.
pub(super) type Listing = HashMap<Bytes, Option<FileAttributes>>;

/// A listing's answer about a name.
pub(super) enum Said {
    Has(FileAttributes),
    Nothing,
    /// It has to be asked for.
    Unknown,
}

impl Listings {
    pub(super) fn add(&self, directory: &Bytes, listing: Listing) {
        self.directories().insert(directory.clone(), listing);
    }

    /// Takes a listing's answer about a path; it is given once.
    pub(super) fn take(&self, path: &Bytes) -> Said {
        let (directory, name) = split(path);
        let mut directories = self.directories();
        let Some(listing) = directories.get_mut(&directory) else {
            return Said::Unknown;
        };
        match remove(listing, &name) {
            Some(Some(found)) => Said::Has(found),
            Some(None) => Said::Unknown,
            None => Said::Nothing,
        }
    }

    /// Takes a path's attributes if they are such; `None` where it has to be asked for, too.
    pub(super) fn take_if(
        &self,
        path: &Bytes,
        is_such: impl FnOnce(&FileAttributes) -> bool,
    ) -> Option<FileAttributes> {
        let (directory, name) = split(path);
        let mut directories = self.directories();
        let listing = directories.get_mut(&directory)?;
        listing.get(&name)?.as_ref().filter(|found| is_such(found))?;
        remove(listing, &name)?
    }

    /// Whether a directory was listed and all that it had was asked for.
    pub(super) fn is_used_up(&self, directory: &Bytes) -> bool {
        self.directories().get(directory).is_some_and(HashMap::is_empty)
    }

    fn directories(&self) -> MutexGuard<'_, HashMap<Bytes, Listing>> {
        self.directories.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a name out of a listing, which lets go of its room with its last one.
fn remove(listing: &mut Listing, name: &Bytes) -> Option<Option<FileAttributes>> {
    let found = listing.remove(name);
    if listing.is_empty() {
        *listing = Listing::new();
    }
    found
}

/// Lists a directory on a server; `None` where that cannot be done, or what it says may not be what LSTAT would.
pub(super) async fn listing(
    sessions: &Sessions,
    held: &HeldNames,
    directory: &Bytes,
) -> Result<Option<Listing>, Error> {
    let list = async |sftp: Sftp| {
        if !sftp.is_sftp_server().await? {
            return Ok(None);
        }
        let mut entries = sftp.read_dir(directory);
        let mut listing = Listing::new();
        while let Some(entry) = entries.next().await {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Error::File { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            held.hold(entry.path.len())?;
            let found = entry.attributes;
            let is_all = found.size.is_some() && found.permissions.is_some() && found.times.is_some();
            listing.insert(entry.path, is_all.then_some(found));
        }
        Ok(Some(listing))
    };
    sessions.with(list).await
}
