//! The options of a copy, and its reports.

use std::path::Path;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::mode::ModeChange;

/// Returns whether a path leads to a descriptor of the process that opens it, as /dev/stdin does.
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
    /// Directories too, with all that is in them.
    pub recursive: bool,
    /// Keep modification times and permissions; set-user-ID and set-group-ID are for an owner, who is not kept.
    pub preserve: bool,
    /// Keep owners and groups, too, and what is set for them, if the target's side is root: by their names, or by their
    /// numbers where an end has no such name.
    pub owners: bool,
    /// Keep them by their numbers alone; the target's side has to be root.
    pub numeric_ids: bool,
    /// Changes to the source's permissions before they apply.
    pub chmod: Vec<ModeChange>,
    /// Names of one file at the source become names of one file at the target.
    pub hard_links: bool,
    /// A backup name for replaced and deleted files.
    pub backup: Option<Backup>,
    /// Leave out what the target has in the same version or a newer one, by its time.
    pub update: bool,
    /// The comparison that shows that a file of the target need not be copied again.
    pub compare: Comparison,
    /// Keep what was copied of a large file when the copy ends in its middle, and resume from there: from what both ends'
    /// hashes show to be right.
    pub partial: bool,
    /// Compare the hashes of both ends when everything was copied.
    pub verify: bool,
    /// Have each file on its disk before it gets its name.
    pub sync: bool,
    /// Show what would be copied and deleted, and do neither.
    pub dry_run: bool,
    /// The rules for names that are left out, and kept if the target has them: the first rule that matches decides.
    pub filters: Vec<FilterRule>,
    /// The only paths below the source that are copied, and directories that lead to them.
    pub only: Option<Vec<serde_bytes::ByteBuf>>,
    /// Directories that `only` lists are copied with their contents.
    pub only_recursive: bool,
    /// The fewest bytes of a file that is copied; smaller files stay where the target has them.
    pub min_size: Option<u64>,
    /// The most bytes of a file that is copied; larger files stay where the target has them.
    pub max_size: Option<u64>,
    /// Leave out links that lead out of the tree.
    pub safe_links: bool,
    /// Delete what the target has in directories that are copied and the source has not, when everything was copied.
    pub delete: bool,
    /// Delete names that the filters leave out, too.
    pub delete_excluded: bool,
    /// Leave out what the target has, in whatever version.
    pub ignore_existing: bool,
    /// Make the target's directory and those above it.
    pub mkdir: bool,
    /// Bytes a second at most.
    pub limit: Option<u64>,
    /// Sessions for large files; `None` for as many as the distance is worth.
    pub streams: Option<usize>,
    /// The mask for permissions of new files on this machine.
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
    /// Returns whether what the target has decides what is copied.
    pub fn looks_first(&self) -> bool {
        self.update || self.ignore_existing || self.compare != Comparison::Nothing
    }

    /// The permissions that are kept where permissions are.
    pub fn kept_bits(&self) -> u32 {
        let sets_ids = self.owners || self.chmod.iter().any(ModeChange::sets_ids);
        if sets_ids { 0o7777 } else { 0o1777 }
    }
}

/// The place for replaced and deleted files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backup {
    /// A directory, from the target's on; `None` for beside what takes its place.
    pub directory: Option<ByteBuf>,
    /// Behind its name.
    pub suffix: ByteBuf,
}

impl Backup {
    /// The path of what was at `target`, a path below the target's root: below the backups' directory, or that root.
    pub fn path(&self, target: &[u8]) -> Vec<u8> {
        [target, &self.suffix].concat()
    }

    /// Returns whether a path below the target's root, as which `root` was named, is one of a backup.
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

/// The comparison that shows that a file of the target is the source's: rsync's rules. What of its time and permissions
/// differs then is set, where they are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Comparison {
    /// Nothing does: every file is copied.
    #[default]
    Nothing,
    /// The same size, and the same time in whole seconds.
    SizeAndTime,
    /// The same size.
    Size,
    /// The same content: both ends hash files of the same size.
    Content,
}

/// The differences of a name from the source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes(u8);

impl Changes {
    /// Nothing has the name.
    pub const NEW: Self = Self(1);
    /// It is something else: a link, and not a file.
    pub const KIND: Self = Self(1 << 1);
    /// The file's size.
    pub const SIZE: Self = Self(1 << 2);
    /// The time of its last modification.
    pub const TIME: Self = Self(1 << 3);
    /// Its permissions.
    pub const MODE: Self = Self(1 << 4);
    /// Its content, or where the link leads.
    pub const CONTENT: Self = Self(1 << 5);
    /// Its owner or group.
    pub const OWNER: Self = Self(1 << 6);
    /// That it is another name of a file.
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

    /// Returns whether nothing is.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether any of `others` is among them.
    pub fn has(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    /// Them in a word each.
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

/// A name that is left out, or is not although a later rule says so. Patterns are rsync's:
///
/// - `*` is any text without a slash, `**` any text, `?` a byte other than a slash, `[a-z]` one of a class;
/// - one that begins with a slash begins at the source directory, another one behind any slash;
/// - one that ends with a slash is for directories; `name/***` is for a directory and what is in it;
/// - one without a slash and without `**` is matched with the last part of a path, another one with all of it.
///
/// A directory that is left out takes what is in it along.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterRule {
    /// It is copied.
    pub include: bool,
    /// The names.
    #[serde(with = "serde_bytes")]
    pub pattern: Vec<u8>,
}

/// A line of a file of rules that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: write \"+ PATTERN\" for what is copied and \"- PATTERN\" for what is left out")]
pub struct FilterError {
    line: usize,
}

impl FilterRule {
    /// Adds the rules of a file: `+ PATTERN` (or `include PATTERN`) and `- PATTERN` (or `exclude PATTERN`), one a line.
    /// A line with `!` takes all rules before it away; empty ones and those that begin with `#` or `;` are comments.
    ///
    /// # Errors
    /// For a line that is something else.
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

/// An event of a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyEvent {
    /// It was copied, or would be.
    Copied {
        /// The target's path.
        #[serde(with = "path")]
        path: Bytes,
        /// Its length; 0 for what is not a file.
        length: u64,
        /// The reasons; empty if they were not looked for.
        changes: Changes,
    },
    /// The target has it already; its time or permissions were set, or would be.
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
    /// The source has it no more, and it was deleted at the target, or would be.
    Deleted {
        /// The target's path.
        #[serde(with = "path")]
        path: Bytes,
    },
    /// A peculiarity of the server, and the way in which everything is copied because of it.
    Note {
        /// A sentence.
        message: String,
    },
    /// It could not be copied. The others continue.
    Failed {
        /// The path that could not be read or written.
        #[serde(with = "path")]
        path: Bytes,
        /// The reason, in a sentence that names the file.
        message: String,
        /// The same as an errno of this machine; `None` where there is none that says it, or the server did not say.
        errno: Option<i32>,
        /// The obstacle, where a copy with other options would not meet it.
        obstacle: Option<Obstacle>,
        /// The reason was told before, of another name: its directory is not there, or nothing more can be written.
        below: bool,
    },
}

/// An obstacle to a file that other options of a copy would remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Obstacle {
    /// The directory that it goes into is not there.
    NoDirectory,
    /// It is a directory.
    Directory,
    /// Its owner could not be set.
    Owner,
}

/// Paths as serde's byte strings.
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

/// A reason for a copy to wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Waiting {
    /// The first session with a host.
    Connecting {
        /// Its name.
        host: String,
    },
    /// Another session with a host whose sessions were lost.
    Lost {
        /// Its name.
        host: String,
        /// The time limit for the attempts, if none succeeds.
        seconds: u64,
    },
    /// Both ends hash the part that an earlier copy left.
    Checking {
        /// Its length.
        bytes: u64,
        /// The bytes of it that are hashed.
        done: u64,
    },
}

/// A copy's state at a moment, and its summary at the end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Bytes of files that have arrived.
    pub bytes: u64,
    /// Bytes that are known to have to.
    pub total_bytes: u64,
    /// Names that are done: files, directories and links.
    pub files: u64,
    /// Names that were found.
    pub total_files: u64,
    /// Names left out because the target has them.
    pub skipped: u64,
    /// Names that the target has, of which the time or permissions were set.
    pub adjusted: u64,
    /// Bytes of all files that were found, whether they are to be moved or not.
    pub found_bytes: u64,
    /// Names that failed.
    pub failed: u64,
    /// Names that were deleted at the target.
    pub deleted: u64,
    /// Bytes that were there from an earlier attempt, and not sent again.
    pub resumed: u64,
    /// The most sessions there were at once.
    pub streams: u64,
    /// Whether the copy found out on its way that compression pays, and goes over connections that compress.
    pub compressed: bool,
    /// Whether all names have been found, so that the totals are final.
    pub counted: bool,
    /// The target's path of what was begun last.
    #[serde(with = "path")]
    pub current: Bytes,
    /// The reason to wait, if nothing moves because of it.
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
