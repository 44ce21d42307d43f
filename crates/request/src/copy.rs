//! The options of a copy, and its reports.

use std::path::Path;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::mode::ModeChange;

/// Returns true if a path refers to a descriptor of the process that opens it, such as /dev/stdin.
pub fn is_descriptor(path: &Path) -> bool {
    let names = ["/dev/stdin", "/dev/stdout", "/dev/stderr"];
    names.iter().any(|name| path == Path::new(name))
        || path.starts_with("/dev/fd")
        || path.starts_with("/proc/self/fd")
}

/// The options of a copy.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CopyOptions {
    /// Copy directories with their contents.
    pub recursive: bool,
    /// Keep modification times and permissions, except set-user-ID and set-group-ID, which are for an owner that is not
    /// kept.
    pub preserve: bool,
    /// Also keep owners, groups, set-user-ID and set-group-ID, if the target's side is root: by name, or by number if
    /// an end does not have the name.
    pub owners: bool,
    /// Keep owners by number only. The target's side must be root.
    pub numeric_ids: bool,
    /// Changes to the source's permissions before they apply.
    pub chmod: Vec<ModeChange>,
    /// Keep hard links: names of one file at the source become names of one file at the target.
    pub hard_links: bool,
    /// Keep replaced and deleted files as backups.
    pub backup: Option<Backup>,
    /// Skip files that the target has with the same time or a later one.
    pub update: bool,
    /// The comparison by which a file of the target counts as up to date.
    pub compare: Comparison,
    /// Keep the copied part of a large file when the copy is interrupted, and resume from the part for which both ends'
    /// hashes match.
    pub partial: bool,
    /// Compare the hashes of both ends when everything is copied.
    pub verify: bool,
    /// Write each file to its disk before it is renamed into place.
    pub sync: bool,
    /// Only report what would be copied and deleted.
    pub dry_run: bool,
    /// The rules for names that are skipped, and kept at the target. The first rule that matches decides.
    pub filters: Vec<FilterRule>,
    /// The only paths below the source to copy, with the directories that lead to them.
    pub only: Option<Vec<serde_bytes::ByteBuf>>,
    /// Copy directories in `only` with their contents.
    pub only_recursive: bool,
    /// The smallest file to copy, in bytes. Smaller files of the target are kept.
    pub min_size: Option<u64>,
    /// The largest file to copy, in bytes. Larger files of the target are kept.
    pub max_size: Option<u64>,
    /// Skip links that lead out of the tree.
    pub safe_links: bool,
    /// Delete files of the target that copied directories of the source do not have, once everything is copied.
    pub delete: bool,
    /// Also delete names that the filters skip.
    pub delete_excluded: bool,
    /// Skip files that the target has in any version.
    pub ignore_existing: bool,
    /// Create the target's directory and its parents.
    pub mkdir: bool,
    /// The rate limit in bytes per second.
    pub limit: Option<u64>,
    /// The number of sessions for large files; `None` chooses by the distance.
    pub streams: Option<usize>,
    /// The mask for permissions of new local files.
    pub umask: u32,
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self {
            recursive: false,
            preserve: false,
            owners: false,
            numeric_ids: false,
            chmod: Vec::new(),
            hard_links: false,
            backup: None,
            update: false,
            compare: Comparison::Nothing,
            partial: true,
            verify: false,
            sync: false,
            dry_run: false,
            filters: Vec::new(),
            only: None,
            only_recursive: false,
            min_size: None,
            max_size: None,
            safe_links: false,
            delete: false,
            delete_excluded: false,
            ignore_existing: false,
            mkdir: false,
            limit: None,
            streams: None,
            umask: 0o022,
        }
    }
}

impl CopyOptions {
    /// Returns true if the files of the target affect what is copied.
    pub fn looks_first(&self) -> bool {
        self.update || self.ignore_existing || self.compare != Comparison::Nothing
    }

    /// Returns the permission bits that are kept if permissions are.
    pub fn kept_bits(&self) -> u32 {
        let sets_ids = self.owners || self.chmod.iter().any(ModeChange::sets_ids);
        if sets_ids { 0o7777 } else { 0o1777 }
    }
}

/// The place for replaced and deleted files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backup {
    /// A directory, relative to the target's; `None` for beside the replacement.
    pub directory: Option<ByteBuf>,
    /// The suffix of backups' names.
    pub suffix: ByteBuf,
}

impl Backup {
    /// Returns the backup's path for `target`, a path below the target's root: relative to the backups' directory, or
    /// that root.
    pub fn path(&self, target: &[u8]) -> Vec<u8> {
        [target, &self.suffix].concat()
    }

    /// Returns true if a path below the target's root, which was named `root`, is that of a backup.
    pub fn has(&self, root: &[u8], target: &[u8]) -> bool {
        let Some(directory) = &self.directory else {
            return target.ends_with(&self.suffix);
        };
        let below = match directory.strip_prefix(root) {
            Some(below) if directory.starts_with(b"/") => below,
            _ => directory.as_slice(),
        };
        let plain = below.split(|byte| *byte == b'/');
        let plain: Vec<&[u8]> = plain.filter(|name| !matches!(*name, b"" | b".")).collect();
        let directory = plain.join(&b'/');
        let rest = target.strip_prefix(directory.as_slice());
        !directory.is_empty() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    }
}

/// The comparison by which a file of the target counts as up to date, by rsync's rules. Times and permissions that
/// differ are then set, if they are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Comparison {
    /// No comparison: every file is copied.
    #[default]
    Nothing,
    /// The same size, and the same time in whole seconds.
    SizeAndTime,
    /// The same size.
    Size,
    /// The same content: both ends hash files of the same size.
    Content,
}

/// The differences between a name at the target and at the source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes(u8);

impl Changes {
    /// The target does not have the name.
    pub const NEW: Self = Self(1);
    /// The kind differs: a link instead of a file.
    pub const KIND: Self = Self(1 << 1);
    /// The size differs.
    pub const SIZE: Self = Self(1 << 2);
    /// The modification time differs.
    pub const TIME: Self = Self(1 << 3);
    /// The permissions differ.
    pub const MODE: Self = Self(1 << 4);
    /// The content differs, or the link's target.
    pub const CONTENT: Self = Self(1 << 5);
    /// The owner or group differs.
    pub const OWNER: Self = Self(1 << 6);
    /// It is not another name of the same file.
    pub const LINK: Self = Self(1 << 7);

    const WORDS: [(Self, &str); 8] = [
        (Self::NEW, "new"),
        (Self::KIND, "kind"),
        (Self::SIZE, "size"),
        (Self::CONTENT, "content"),
        (Self::TIME, "time"),
        (Self::MODE, "mode"),
        (Self::OWNER, "owner"),
        (Self::LINK, "link"),
    ];

    /// Returns true if there are no differences.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns true if any of `others` is among the differences.
    pub fn has(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    /// Returns the differences, each as a word.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        let words = Self::WORDS.iter().filter(move |(change, _)| self.has(*change));
        words.map(|(_, word)| *word)
    }
}

impl std::ops::BitOr for Changes {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl std::ops::BitOrAssign for Changes {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

/// A rule for a name to be skipped, or included although a later rule skips it. Patterns are rsync's:
///
/// - `*` is any text without a slash, `**` any text, `?` a byte other than a slash, `[a-z]` one of a class;
/// - a pattern that begins with a slash starts at the source directory, others after any slash;
/// - a pattern that ends with a slash is for directories; `name/***` is for a directory and its contents;
/// - a pattern without a slash or `**` is matched with the last part of a path, others with all of it.
///
/// The contents of a skipped directory are skipped, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterRule {
    /// True if the name is copied.
    pub include: bool,
    /// The pattern of names.
    #[serde(with = "serde_bytes")]
    pub pattern: Vec<u8>,
}

/// An invalid line in a file of rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: write \"+ PATTERN\" for what is copied and \"- PATTERN\" for what is left out")]
pub struct FilterError {
    line: usize,
}

impl FilterRule {
    /// Adds the rules of a file: `+ PATTERN` (or `include PATTERN`) and `- PATTERN` (or `exclude PATTERN`), one a line.
    /// A line with `!` removes all rules before it. Blank lines and those that begin with `#` or `;` are ignored.
    ///
    /// # Errors
    /// A line is invalid.
    pub fn read(file: &[u8], rules: &mut Vec<Self>) -> Result<(), FilterError> {
        for (at, line) in file.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.trim_ascii() == b"!" {
                rules.clear();
                continue;
            }
            if line.trim_ascii().is_empty() || matches!(line.first(), Some(b'#' | b';')) {
                continue;
            }
            let words = [
                (&b"+ "[..], true),
                (b"- ", false),
                (b"include ", true),
                (b"exclude ", false),
            ];
            let rule = words.iter().find_map(|(word, include)| {
                let pattern = line.strip_prefix(*word).filter(|pattern| !pattern.is_empty())?;
                Some(Self {
                    include: *include,
                    pattern: pattern.to_vec(),
                })
            });
            rules.push(rule.ok_or(FilterError { line: at + 1 })?);
        }
        Ok(())
    }
}

/// An event about a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyEvent {
    /// It was copied, or would be.
    Copied {
        /// The target's path.
        #[serde(with = "path")]
        path: Bytes,
        /// Its length; 0 if it is not a file.
        length: u64,
        /// The differences; empty if they were not determined.
        changes: Changes,
    },
    /// The target has it already; only its time or permissions were set, or would be.
    Adjusted {
        /// The target's path.
        #[serde(with = "path")]
        path: Bytes,
        /// The differences.
        changes: Changes,
    },
    /// The target has it already.
    Skipped {
        /// The target's path.
        #[serde(with = "path")]
        path: Bytes,
    },
    /// The source does not have it, and it was deleted at the target, or would be.
    Deleted {
        /// The target's path.
        #[serde(with = "path")]
        path: Bytes,
    },
    /// A peculiarity of the server that changes how everything is copied.
    Note {
        /// A sentence.
        message: String,
    },
    /// It could not be copied. The copy continues.
    Failed {
        /// The path that could not be read or written.
        #[serde(with = "path")]
        path: Bytes,
        /// The reason, in a sentence that names the file.
        message: String,
        /// The errno of this machine for the reason; `None` if there is none, or the server did not say.
        errno: Option<i32>,
        /// The obstacle, if other options would avoid it.
        obstacle: Option<Obstacle>,
        /// The reason was already reported for another name: a missing directory, or a full disk.
        below: bool,
    },
}

/// An obstacle that other options of a copy would avoid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Obstacle {
    /// The file's directory does not exist.
    NoDirectory,
    /// The source is a directory.
    Directory,
    /// The owner could not be set.
    Owner,
}

/// Paths as byte strings for serde.
mod path {
    use bytes::Bytes;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(path: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(path)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        serde_bytes::ByteBuf::deserialize(deserializer).map(|path| path.into_vec().into())
    }
}

/// The reason why a copy waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Waiting {
    /// It is opening the first session with a host.
    Connecting {
        /// The host's name.
        host: String,
    },
    /// It is opening another session with a host whose sessions were lost.
    Lost {
        /// The host's name.
        host: String,
        /// The seconds until it gives up.
        seconds: u64,
    },
    /// Both ends are hashing the part that an earlier copy left.
    Checking {
        /// Its length.
        bytes: u64,
        /// The bytes hashed so far.
        done: u64,
    },
}

/// The state of a copy at a moment, and the summary at its end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Bytes of files that have arrived.
    pub bytes: u64,
    /// The known number of bytes of files to copy.
    pub total_bytes: u64,
    /// Names that are done: files, directories and links.
    pub files: u64,
    /// Names that were found.
    pub total_files: u64,
    /// Names skipped because the target has them.
    pub skipped: u64,
    /// The number of names with only their time or permissions set.
    pub adjusted: u64,
    /// Bytes of all files found, whether they have to be moved or not.
    pub found_bytes: u64,
    /// Names that failed.
    pub failed: u64,
    /// Names that were deleted at the target.
    pub deleted: u64,
    /// Bytes that an earlier attempt had moved.
    pub resumed: u64,
    /// The most sessions at the same time.
    pub streams: u64,
    /// True if the copy found that compression pays, and switched to connections that compress.
    pub compressed: bool,
    /// True if all names have been found, so that the totals are final.
    pub counted: bool,
    /// The target's path of the name started last.
    #[serde(with = "path")]
    pub current: Bytes,
    /// The reason why nothing moves, if any.
    pub waiting: Option<Waiting>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_is_known_by_its_suffix_or_its_directory() {
        let backup = |directory: Option<&str>, suffix: &str| Backup {
            directory: directory.map(|path| path.as_bytes().to_vec().into()),
            suffix: suffix.as_bytes().to_vec().into(),
        };
        for (directory, suffix, target, is_one) in [
            (None, "~", "d/f~", true),
            (None, "~", "d/f", false),
            (Some("old"), "", "old", true),
            (Some("./old/x"), "", "old/x/f", true),
            (Some("old"), "", "older", false),
            (Some("../old"), "", "old/f", false),
            (Some("/srv/t/old"), "", "old/f", true),
            (Some("/srv/else"), "", "else", false),
        ] {
            let backup = backup(directory, suffix);
            assert_eq!(
                backup.has(b"/srv/t", target.as_bytes()),
                is_one,
                "{backup:?} {target}"
            );
        }
    }

    #[test]
    fn a_file_of_rules_has_one_on_each_line() {
        let read = |file: &str| {
            let mut rules = Vec::new();
            FilterRule::read(file.as_bytes(), &mut rules).map(|()| rules)
        };
        let rule = |include, pattern: &str| FilterRule {
            include,
            pattern: pattern.into(),
        };
        assert_eq!(
            read("# words\n; more\n\n+ *.c\r\nexclude two words\n- *"),
            Ok(vec![
                rule(true, "*.c"),
                rule(false, "two words"),
                rule(false, "*")
            ])
        );
        assert_eq!(read("- a\n!\n- b\n"), Ok(vec![rule(false, "b")]));
        for (wrong, line) in [("*.c", 1), ("+ a\n-b", 2), ("- ", 1)] {
            assert_eq!(read(wrong), Err(FilterError { line }), "{wrong}");
        }
    }
}
