//! [`Listings`]: the content of a server's directories, for a copy that compares. Each answer of a listing has a hundred names,
//! and a name that is not in the listing need not be looked up.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use trunkline_sftp::transfer::NameBudget;

use super::compare::split;
use super::sessions::Sessions;
use super::spool::Held;
use crate::error::Error;
use crate::sftp::{FileAttributes, Owner, Permissions, Sftp, Times};

/// Directories of the target that were listed, by hashes of their paths below its root.
#[derive(Debug)]
pub(super) struct Listings {
    hasher: RandomState,
    budget: NameBudget,
    /// Guards the table; held for one look-up at a time. A directory all of whose names were taken has no listing.
    directories: Mutex<HashMap<u64, Option<Listing>>>,
}

/// A listing's answer about a name.
pub(super) enum Said {
    Has(FileAttributes),
    Nothing,
    /// The name has to be looked up.
    Unknown,
}

impl Listings {
    pub(super) fn new(budget: &NameBudget) -> Self {
        Self {
            hasher: RandomState::new(),
            budget: budget.clone(),
            directories: Mutex::default(),
        }
    }

    /// Returns an empty listing, to be filled and added.
    pub(super) fn begin(&self) -> Listing {
        Listing {
            hasher: self.hasher.clone(),
            held: Held::new(&self.budget),
            names: Vec::new(),
            owners: Vec::new(),
            left: 0,
        }
    }

    pub(super) fn add(&self, directory: &[u8], mut listing: Listing) {
        listing.names.sort_unstable_by_key(|name| name.hash);
        listing.left = listing.names.len();
        let listing = Some(listing).filter(|listing| listing.left > 0);
        self.directories()
            .insert(self.hasher.hash_one(directory), listing);
    }

    /// Takes a listing's answer about a path. Each answer is given once.
    pub(super) fn take(&self, path: &Bytes) -> Said {
        let (directory, name) = split(path);
        let mut directories = self.directories();
        let Some(listed) = directories.get_mut(&self.hasher.hash_one(&directory)) else {
            return Said::Unknown;
        };
        let Some(listing) = listed else {
            return Said::Nothing;
        };
        let Some(at) = listing.find(&name) else {
            return Said::Nothing;
        };
        let found = listing.attributes(at);
        listed.take_if(|listing| listing.take(at));
        found.map_or(Said::Unknown, Said::Has)
    }

    /// Takes a path's attributes if `is_such` accepts them. Returns `None` also if the path has to be looked up.
    pub(super) fn take_if(
        &self,
        path: &Bytes,
        is_such: impl FnOnce(&FileAttributes) -> bool,
    ) -> Option<FileAttributes> {
        let (directory, name) = split(path);
        let mut directories = self.directories();
        let listed = directories.get_mut(&self.hasher.hash_one(&directory))?;
        let listing = listed.as_mut()?;
        let at = listing.find(&name)?;
        let found = listing.attributes(at).filter(is_such)?;
        listed.take_if(|listing| listing.take(at));
        Some(found)
    }

    /// Returns whether a directory was listed and all its names were taken.
    pub(super) fn is_used_up(&self, directory: &[u8]) -> bool {
        let listed = self.hasher.hash_one(directory);
        self.directories().get(&listed).is_some_and(Option::is_none)
    }

    fn directories(&self) -> MutexGuard<'_, HashMap<u64, Option<Listing>>> {
        self.directories.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The names in a directory. Each of them is taken once.
#[derive(Debug)]
pub(super) struct Listing {
    hasher: RandomState,
    held: Held,
    /// In the order of their hashes, once all names have been added.
    names: Vec<Name>,
    /// The different owners of the names.
    owners: Vec<Owner>,
    left: usize,
}

/// A name, in 24 bytes: a directory may have a million of them.
#[derive(Debug, Clone, Copy)]
struct Name {
    hash: u64,
    size: u64,
    modified: u32,
    /// The index of the owner in the listing.
    owner: u16,
    /// The mode with the type. No type has all of its bits set.
    mode: u16,
}

/// Values in place of a mode: not all attributes are known; the name was taken.
const UNKNOWN: u16 = 0o170_000;
const TAKEN: u16 = 0o170_001;

impl Listing {
    /// Returns the hash of a name, which nobody else can know.
    pub(super) fn hash(&self, name: &[u8]) -> u64 {
        self.hasher.hash_one(name)
    }

    /// Adds a name, with its attributes if all are known. Returns whether there was room.
    pub(super) fn insert(&mut self, hash: u64, found: Option<&FileAttributes>) -> bool {
        if self.names.len() == self.names.capacity() {
            let more = (self.names.len() / 4).max(16);
            if !self.held.grow(more * size_of::<Name>()) {
                return false;
            }
            self.names.reserve_exact(more);
        }
        let name = found.and_then(|found| self.name(hash, found));
        self.names.push(name.unwrap_or(Name {
            hash,
            size: 0,
            modified: 0,
            owner: 0,
            mode: UNKNOWN,
        }));
        true
    }

    /// Returns the name if it has all attributes, with values that systems use.
    fn name(&mut self, hash: u64, found: &FileAttributes) -> Option<Name> {
        let (size, owner, times) = (found.size?, found.owner?, found.times?);
        let mode = u16::try_from(found.permissions?.0)
            .ok()
            .filter(|mode| *mode < UNKNOWN)?;
        // Most names have the owner of the name before.
        let known = self.owners.iter().rposition(|known| *known == owner);
        let owner = u16::try_from(known.unwrap_or(self.owners.len())).ok()?;
        if known.is_none() {
            /// Finding an owner among more than these takes too long.
            const MOST_OWNERS: usize = 256;
            if self.owners.len() == MOST_OWNERS {
                return None;
            }
            self.owners.push(found.owner?);
        }
        Some(Name {
            hash,
            size,
            modified: times.modified,
            owner,
            mode,
        })
    }

    fn find(&self, name: &[u8]) -> Option<usize> {
        let hash = self.hash(name);
        let at = self.names.binary_search_by_key(&hash, |name| name.hash).ok()?;
        (self.names[at].mode != TAKEN).then_some(at)
    }

    /// Takes a name. Returns whether it was the last one.
    fn take(&mut self, at: usize) -> bool {
        self.names[at].mode = TAKEN;
        self.left -= 1;
        self.left == 0
    }

    fn attributes(&self, at: usize) -> Option<FileAttributes> {
        let name = self.names[at];
        let owner = *self.owners.get(usize::from(name.owner))?;
        (name.mode != UNKNOWN).then(|| FileAttributes {
            size: Some(name.size),
            owner: Some(owner),
            permissions: Some(Permissions(name.mode.into())),
            times: Some(Times {
                accessed: name.modified,
                modified: name.modified,
            }),
            ..FileAttributes::default()
        })
    }
}

/// Lists a directory on a server. Returns `None` if it cannot be listed, has too many names, or if the listing's attributes may
/// differ from LSTAT's.
pub(super) async fn listing(
    sessions: &Sessions,
    there: &Listings,
    directory: &Bytes,
) -> Result<Option<Listing>, Error> {
    let list = async |sftp: Sftp| {
        if !sftp.is_sftp_server().await? {
            return Ok(None);
        }
        let mut entries = sftp.read_dir(directory);
        let mut listing = there.begin();
        while let Some(entry) = entries.next().await {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Error::File { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            let hash = listing.hash(&entry.path);
            if !listing.insert(hash, Some(&entry.attributes)) {
                return Ok(None);
            }
        }
        Ok(Some(listing))
    };
    sessions.retry(list).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(mode: u32, uid: u32) -> FileAttributes {
        FileAttributes {
            size: Some(5),
            owner: Some(Owner { uid, gid: 2 }),
            permissions: Some(Permissions(mode)),
            times: Some(Times {
                accessed: 7,
                modified: 7,
            }),
            ..FileAttributes::default()
        }
    }

    fn insert(listing: &mut Listing, name: &str, found: &FileAttributes) -> bool {
        let hash = listing.hash(name.as_bytes());
        listing.insert(hash, Some(found))
    }

    #[test]
    fn each_name_is_said_once_and_then_the_listing_is_used_up() {
        let there = Listings::new(&NameBudget::default());
        let mut listing = there.begin();
        let known = [("f", 0o100_644, 1), ("g", 0o104_755, 3), ("l", 0o120_777, 1)];
        for (name, mode, uid) in known {
            assert!(insert(&mut listing, name, &attributes(mode, uid)));
        }
        let odd = FileAttributes {
            times: None,
            ..attributes(0o100_644, 1)
        };
        assert!(insert(&mut listing, "odd", &odd));
        there.add(b"d", listing);
        let path = |name: &str| Bytes::from(format!("d/{name}"));
        for (name, mode, uid) in known {
            assert!(there.take_if(&path(name), |_| false).is_none());
            assert!(matches!(there.take(&path(name)), Said::Has(found) if found == attributes(mode, uid)));
            assert!(matches!(there.take(&path(name)), Said::Nothing));
        }
        assert!(!there.is_used_up(b"d"));
        assert!(matches!(there.take(&path("odd")), Said::Unknown));
        assert!(there.is_used_up(b"d"));
        assert!(matches!(there.take(&path("other")), Said::Nothing));
        assert!(matches!(there.take(&Bytes::from_static(b"e/f")), Said::Unknown));
    }

    #[test]
    fn a_listing_takes_no_more_than_all_may_and_gives_it_back() {
        let budget = NameBudget::new(1 << 20);
        let there = Listings::new(&budget);
        let mut listing = there.begin();
        let found = attributes(0o100_644, 1);
        let many = (0..)
            .take_while(|nth| insert(&mut listing, &format!("{nth}"), &found))
            .count();
        assert!(many > 20_000 && many * size_of::<Name>() <= 1 << 20, "{many}");
        drop(listing);
        assert_eq!(budget.kept_bytes(), 0);
    }

    #[test]
    fn more_owners_than_people_have_are_asked_for() {
        let there = Listings::new(&NameBudget::default());
        let mut listing = there.begin();
        for uid in 0..300 {
            assert!(insert(
                &mut listing,
                &uid.to_string(),
                &attributes(0o100_644, uid)
            ));
        }
        there.add(b"", listing);
        let said = |uid: u32| there.take(&Bytes::from(uid.to_string()));
        assert!(matches!(said(255), Said::Has(found) if found.owner == Some(Owner { uid: 255, gid: 2 })));
        assert!(matches!(said(256), Said::Unknown));
    }
}
