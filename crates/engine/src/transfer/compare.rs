//! Compares names at the source with those at the target, by rsync's rules.

use std::os::unix::fs::MetadataExt as _;

use bytes::Bytes;
use trunkline_request::copy::{Changes, Comparison, CopyOptions};

use super::item::{Item, Kind};
use crate::sftp::{FileAttributes, FileType, Owner, Permissions};

/// The file, link or directory that has a name at the target.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beside {
    pub(super) kind: Kind,
    pub(super) size: Option<u64>,
    /// In seconds since 1970.
    pub(super) modified: Option<i64>,
    pub(super) mode: Option<u32>,
    pub(super) owner: Option<Owner>,
}

impl From<&FileAttributes> for Beside {
    fn from(found: &FileAttributes) -> Self {
        Self {
            kind: match found.file_type() {
                // Servers that report no type have files.
                None | Some(FileType::Regular) => Kind::File,
                Some(FileType::Directory) => Kind::Directory,
                Some(FileType::Symlink) => Kind::Link,
                Some(_) => Kind::Other,
            },
            size: found.size,
            modified: found.times.map(|times| times.modified.into()),
            mode: found.permissions.map(Permissions::bits),
            owner: found.owner,
        }
    }
}

impl From<&std::fs::Metadata> for Beside {
    fn from(found: &std::fs::Metadata) -> Self {
        Self {
            kind: Kind::of(found.file_type()),
            size: Some(found.len()),
            modified: Some(found.mtime()),
            mode: Some(found.mode() & 0o7777),
            owner: Some(Owner {
                uid: found.uid(),
                gid: found.gid(),
            }),
        }
    }
}

/// The decision about a name that exists at the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The item is copied, because of these differences.
    Copy(Changes),
    /// The name stays, and gets these attributes of the source.
    Stays(Changes),
    /// The content decides: a file's hash, or a link's target. If the content is the same, the name stays and gets these
    /// attributes.
    Content(Changes),
    /// The name stays as it is, as the options ask.
    Left,
}

/// Decides whether a file, link or directory is copied.
pub(super) fn verdict(options: &CopyOptions, item: &Item, there: &Beside) -> Verdict {
    if item.kind == Kind::Directory {
        return match there.kind {
            Kind::Directory => Verdict::Stays(looks(options, item, there)),
            _ => Verdict::Copy(Changes::KIND),
        };
    }
    let modified = item.times.map(|(_, modified)| i64::from(modified));
    if options.ignore_existing || options.update && is_newer(options, there, modified) {
        return Verdict::Left;
    }
    if there.kind != item.kind {
        return Verdict::Copy(Changes::KIND);
    }
    let looks = looks(options, item, there);
    if item.kind == Kind::Link {
        return match options.compare {
            Comparison::Nothing => Verdict::Copy(Changes::default()),
            _ => Verdict::Content(looks),
        };
    }
    let mut changes = Changes::default();
    if there.size != Some(item.size) {
        changes |= Changes::SIZE;
    }
    if there.modified.is_none() || there.modified != modified {
        changes |= Changes::TIME;
    }
    match options.compare {
        Comparison::SizeAndTime if changes.is_empty() => Verdict::Stays(looks),
        Comparison::Size if !changes.has(Changes::SIZE) => Verdict::Stays(looks),
        Comparison::Content if !changes.has(Changes::SIZE) => Verdict::Content(looks),
        _ => Verdict::Copy(changes),
    }
}

/// Returns whether a file is skipped as newer than the source. A file with the same time is skipped if nothing else is compared.
fn is_newer(options: &CopyOptions, there: &Beside, modified: Option<i64>) -> bool {
    let (Kind::File, Some(there), Some(modified)) = (there.kind, there.modified, modified) else {
        return false;
    };
    there > modified || there == modified && options.compare == Comparison::Nothing
}

/// Returns the attributes (time, owner, permissions) that differ and have to be set.
fn looks(options: &CopyOptions, item: &Item, there: &Beside) -> Changes {
    let mut changes = Changes::default();
    if !options.preserve {
        return changes;
    }
    let differ = |here: Option<i64>, there: Option<i64>| here.is_some() && there.is_some() && here != there;
    if differ(item.times.map(|(_, modified)| modified.into()), there.modified) {
        changes |= Changes::TIME;
    }
    let kept = |mode: Option<u32>| mode.map(|mode| i64::from(mode & options.kept_bits()));
    if item.kind != Kind::Link && differ(kept(item.mode), kept(there.mode)) {
        changes |= Changes::MODE;
    }
    if options.owners && item.owner.is_some() && there.owner.is_some() && item.owner != there.owner {
        changes |= Changes::OWNER;
    }
    changes
}

/// Returns the directory of a path below the target's root, and the name there.
pub(super) fn split(path: &Bytes) -> (Bytes, Bytes) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (path.slice(..at), path.slice(at + 1..)),
        None => (Bytes::new(), path.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(kind: Kind) -> Item {
        Item {
            size: 5,
            mode: Some(0o4644),
            times: Some((1, 100)),
            owner: Some(Owner { uid: 1, gid: 2 }),
            ..Item::new(Bytes::from_static(b"s"), Bytes::from_static(b"t"), kind)
        }
    }

    fn there(kind: Kind, size: u64, modified: i64, mode: u32) -> Beside {
        Beside {
            kind,
            size: Some(size),
            modified: Some(modified),
            mode: Some(mode),
            owner: Some(Owner { uid: 1, gid: 3 }),
        }
    }

    fn decide(change: impl Fn(&mut CopyOptions), there: &Beside) -> Verdict {
        let mut options = CopyOptions::default();
        options.preserve = true;
        options.compare = Comparison::SizeAndTime;
        change(&mut options);
        verdict(&options, &item(Kind::File), there)
    }

    #[test]
    fn size_and_time_decide_and_the_rest_is_set() {
        let usual = |there| decide(|_| {}, &there);
        let nothing = Changes::default();
        assert_eq!(usual(there(Kind::File, 5, 100, 0o644)), Verdict::Stays(nothing));
        assert_eq!(
            usual(there(Kind::File, 5, 100, 0o600)),
            Verdict::Stays(Changes::MODE)
        );
        assert_eq!(
            usual(there(Kind::File, 6, 100, 0o644)),
            Verdict::Copy(Changes::SIZE)
        );
        assert_eq!(
            usual(there(Kind::File, 5, 101, 0o644)),
            Verdict::Copy(Changes::TIME)
        );
        assert_eq!(
            usual(there(Kind::Link, 5, 100, 0o777)),
            Verdict::Copy(Changes::KIND)
        );
    }

    #[test]
    fn other_comparisons_leave_the_time_to_be_set() {
        let other = |compare, there| decide(|options| options.compare = compare, &there);
        let newer = there(Kind::File, 5, 101, 0o644);
        assert_eq!(other(Comparison::Size, newer), Verdict::Stays(Changes::TIME));
        assert_eq!(other(Comparison::Content, newer), Verdict::Content(Changes::TIME));
        let longer = there(Kind::File, 6, 100, 0o644);
        assert_eq!(other(Comparison::Content, longer), Verdict::Copy(Changes::SIZE));
        let same = there(Kind::File, 5, 100, 0o644);
        assert_eq!(
            other(Comparison::Nothing, same),
            Verdict::Copy(Changes::default())
        );
    }

    #[test]
    fn owners_and_what_is_set_for_them_count_where_they_are_kept() {
        let kept = |options: &mut CopyOptions| options.owners = true;
        let changed = Changes::OWNER | Changes::MODE;
        assert_eq!(
            decide(kept, &there(Kind::File, 5, 100, 0o644)),
            Verdict::Stays(changed)
        );
        assert_eq!(
            decide(kept, &there(Kind::File, 5, 100, 0o4644)),
            Verdict::Stays(Changes::OWNER)
        );
    }

    #[test]
    fn what_is_newer_is_left_where_that_was_asked_for() {
        let update = |there| decide(|options| options.update = true, &there);
        assert_eq!(update(there(Kind::File, 9, 101, 0o644)), Verdict::Left);
        assert_eq!(
            update(there(Kind::File, 9, 100, 0o644)),
            Verdict::Copy(Changes::SIZE)
        );
        assert_eq!(
            update(there(Kind::File, 9, 99, 0o644)),
            Verdict::Copy(Changes::SIZE | Changes::TIME)
        );
    }
}
