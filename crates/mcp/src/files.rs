//! Files on hosts, over SFTP.
//!
//! A path is checked twice: as given, before the host is asked anything, and as its real path once links are followed.
//! A user who can change links on the host between the check and the opening can redirect a read: SFTP has no call that
//! follows no links.
//! that follows none.

use std::fmt::Write as _;

use aws_lc_rs::digest;
use bytes::Bytes;
use rand::RngExt as _;
use trunkline::Error;
use trunkline::sftp::{FileAttributes, FileType, OpenFlags, Permissions, Sftp};
use trunkline_embed::{Cause, ErrorKind, Failure};
use trunkline_text::Printable;

use crate::rules::{Action, clean};

/// The longest file that is hashed before it is replaced.
const MOST_HASHED: u64 = 64 << 20;

/// The access of a call to files of one host.
pub(crate) struct Files<'a> {
    pub(crate) sftp: Sftp,
    /// Returns true if an action is permitted, by its given and its real path: by the rules and the user's answers.
    pub(crate) permits: &'a (dyn Fn(&Action, &Action) -> bool + Sync),
    /// The directories in the rules, through which a path may lead.
    pub(crate) directories: Vec<String>,
}

/// The attributes of a file.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) kind: &'static str,
    pub(crate) attributes: FileAttributes,
}

/// A part of a file.
pub(crate) struct Read {
    pub(crate) bytes: Vec<u8>,
    pub(crate) size: u64,
}

/// The result of a write.
pub(crate) struct Written {
    pub(crate) created: bool,
    pub(crate) sha256: String,
    pub(crate) mode: Option<u32>,
}

/// Returns the failure for a precondition that is not met, before anything was changed.
pub(crate) fn refuse(message: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::File, message)
}

/// Returns the hash in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn is_missing(error: &Error) -> bool {
    matches!(Failure::from(error).cause, Cause::File { status: 2, .. })
}

impl Files<'_> {
    /// Returns the real path, if an action on it is permitted, too. Its last part need not exist.
    ///
    /// # Errors
    /// The action is not permitted, or the host does not answer.
    pub(crate) async fn real(
        &self,
        path: &str,
        action: impl Fn(String) -> Action,
    ) -> Result<String, Failure> {
        let real = self.resolve(path).await?;
        let really = action(real.clone());
        if (self.permits)(&really, &really) {
            return Ok(real);
        }
        // The rule's own directory may be a link, which the rule's author has accepted.
        for directory in &self.directories {
            let Ok(there) = self.resolve(directory).await else {
                continue;
            };
            let rest = match there.as_str() {
                "/" => Some(real.as_str()),
                there => real
                    .strip_prefix(there)
                    .filter(|rest| rest.is_empty() || rest.starts_with('/')),
            };
            if rest.is_some_and(|rest| (self.permits)(&action(format!("{directory}{rest}")), &really)) {
                return Ok(real);
            }
        }
        let (path, real) = (Printable::line(path), Printable::line(&real));
        Err(refuse(format!("{path} leads to {real}, which no rule allows")))
    }

    async fn resolve(&self, path: &str) -> Result<String, Failure> {
        let real = self.sftp.realpath(path).await.map_err(Failure::from)?;
        let text = std::str::from_utf8(&real).ok().and_then(clean);
        text.ok_or_else(|| {
            refuse(format!(
                "{} is {}, which is not a plain path",
                path,
                Printable::line(&real)
            ))
        })
    }

    /// Returns the attributes of a path, without following links.
    ///
    /// # Errors
    /// It does not exist, or the host does not answer.
    pub(crate) async fn look(&self, path: &str) -> Result<Found, Failure> {
        let attributes = self.sftp.lstat(path).await.map_err(Failure::from)?;
        Ok(Found {
            kind: kind(&attributes),
            attributes,
        })
    }

    /// Returns the path with its parent's real path. The last part is not followed.
    ///
    /// # Errors
    /// As [`Self::real`].
    pub(crate) async fn real_parent(
        &self,
        path: &str,
        action: impl Fn(String) -> Action,
    ) -> Result<String, Failure> {
        let Some((parent, name)) = path.rsplit_once('/').filter(|(_, name)| !name.is_empty()) else {
            return self.real(path, action).await;
        };
        let parent = if parent.is_empty() { "/" } else { parent };
        let with_name = |parent: String| format!("{}/{name}", parent.trim_end_matches('/'));
        let parent = self.real(parent, |parent| action(with_name(parent))).await?;
        Ok(with_name(parent))
    }

    /// Reads a part of a file.
    ///
    /// # Errors
    /// It cannot be read, or is not permitted.
    pub(crate) async fn read(&self, path: &str, offset: u64, most: usize) -> Result<Read, Failure> {
        let real = self.real(path, Action::Read).await?;
        self.regular(&real).await?;
        self.read_real(&real, offset, most).await
    }

    async fn read_real(&self, real: &str, offset: u64, most: usize) -> Result<Read, Failure> {
        let opened = self.sftp.open(real, OpenFlags::READ, FileAttributes::default());
        let file = opened.await.map_err(Failure::from)?;
        let attributes = file.stat().await.map_err(Failure::from)?;
        let mut bytes = Vec::new();
        while bytes.len() < most {
            let at = offset + bytes.len() as u64;
            let piece = file
                .read_at(at, most - bytes.len())
                .await
                .map_err(Failure::from)?;
            if piece.is_empty() {
                break;
            }
            bytes.extend_from_slice(&piece);
        }
        // Files in /proc report no size.
        let size = attributes.size.unwrap_or(0).max(offset + bytes.len() as u64);
        file.close().await.map_err(Failure::from)?;
        Ok(Read { bytes, size })
    }

    /// Returns the attributes of a regular file. Opening a pipe or a device could block.
    async fn regular(&self, real: &str) -> Result<FileAttributes, Failure> {
        let attributes = self.sftp.stat(real).await.map_err(Failure::from)?;
        match attributes.file_type() {
            Some(FileType::Regular) => Ok(attributes),
            _ => Err(refuse(format!("{} is not a regular file", Printable::line(real)))),
        }
    }

    /// Returns the hash of an existing file; `None` if there is none.
    async fn hash(&self, real: &str) -> Result<Option<String>, Failure> {
        let opened = self.sftp.open(real, OpenFlags::READ, FileAttributes::default());
        let mut file = match opened.await {
            Ok(file) => file,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let (mut hash, mut count) = (digest::Context::new(&digest::SHA256), 0);
        loop {
            let chunk = file.chunk(256 * 1024).await.map_err(Failure::from)?;
            if chunk.is_empty() {
                return Ok(Some(hex(hash.finish().as_ref())));
            }
            count += chunk.len() as u64;
            if count > MOST_HASHED {
                return Err(refuse(format!("{} has more than 64 MiB", Printable::line(real))));
            }
            hash.update(&chunk);
        }
    }

    /// Creates or replaces a file atomically. An existing file keeps its owner and permissions and must have the
    /// expected hash; `None` expects that there is none.
    ///
    /// # Errors
    /// Nothing was changed.
    pub(crate) async fn write(
        &self,
        path: &str,
        content: Bytes,
        expected: Option<&str>,
    ) -> Result<Written, Failure> {
        let real = self.real_parent(path, Action::Write).await?;
        let shown = Printable::line(&real);
        let there = match self.sftp.lstat(&real).await {
            Ok(attributes) => Some(attributes),
            Err(error) if is_missing(&error) => None,
            Err(error) => return Err(error.into()),
        };
        match there.as_ref().map(kind) {
            None | Some("file") => {}
            Some("link") => {
                return Err(refuse(format!(
                    "{shown} is a symbolic link: write to the file that it leads to"
                )));
            }
            Some(kind) => return Err(refuse(format!("{shown} is a {kind}, not a file"))),
        }
        self.expect(&real, there.is_some(), expected).await?;
        let sha256 = sha256(&content);
        let (directory, name) = real.rsplit_once('/').unwrap_or(("", &real));
        let short: String = name.chars().take(60).collect();
        let beside = format!(
            "{directory}/.{short}.trunkline-{:016x}",
            rand::rng().random::<u64>()
        );
        let done = self
            .replace(&real, &beside, content, there.as_ref(), expected)
            .await;
        if done.is_err() {
            // Removes the rest of the temporary file.
            let _ = self.sftp.remove(&beside).await;
        }
        done?;
        Ok(Written {
            created: there.is_none(),
            sha256,
            mode: there
                .and_then(|attributes| attributes.permissions)
                .map(Permissions::bits),
        })
    }

    /// Checks that a file is the expected one.
    async fn expect(&self, real: &str, is_there: bool, expected: Option<&str>) -> Result<(), Failure> {
        let shown = Printable::line(real);
        match (is_there, expected) {
            (false, None) => Ok(()),
            (true, None) => Err(refuse(format!(
                "{shown} exists: read it, and give expected_sha256 of what is to be replaced"
            ))),
            (false, Some(_)) => Err(refuse(format!(
                "{shown} does not exist: leave out expected_sha256 to create it"
            ))),
            (true, Some(expected)) => match self.hash(real).await? {
                Some(hash) if hash.eq_ignore_ascii_case(expected) => Ok(()),
                _ => Err(refuse(format!(
                    "{shown} is not what was expected, so it was not replaced: somebody has changed it. Read it again"
                ))),
            },
        }
    }

    async fn replace(
        &self,
        real: &str,
        beside: &str,
        content: Bytes,
        there: Option<&FileAttributes>,
        expected: Option<&str>,
    ) -> Result<(), Failure> {
        let flags = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE;
        let attributes = FileAttributes {
            // Private to its owner until it gets the permissions of the file that it replaces.
            permissions: there.map(|_| Permissions(0o600)),
            ..FileAttributes::default()
        };
        let file = self
            .sftp
            .open(beside, flags, attributes)
            .await
            .map_err(Failure::from)?;
        let length = content.len() as u64;
        file.write_at(0, content).await.map_err(Failure::from)?;
        if let Some(there) = there {
            self.keep(&file, real, there).await?;
        }
        // A server without fsync@openssh.com writes it at its own time.
        let _ = file.sync().await;
        file.close_at(length).await.map_err(Failure::from)?;
        match there {
            None => self.sftp.rename_new(beside, real).await.map_err(Failure::from),
            Some(_) => {
                // The file may have been replaced meanwhile.
                self.expect(real, true, expected).await?;
                self.sftp.rename_posix(beside, real).await.map_err(Failure::from)
            }
        }
    }

    /// Gives a new file the owner and the permissions of the one that it replaces, in this order: changing the owner
    /// clears set-user-ID.
    async fn keep(
        &self,
        file: &trunkline::sftp::File,
        real: &str,
        there: &FileAttributes,
    ) -> Result<(), Failure> {
        let fresh = file.stat().await.map_err(Failure::from)?;
        if there.owner.is_some() && fresh.owner != there.owner {
            let owner = FileAttributes {
                owner: there.owner,
                ..FileAttributes::default()
            };
            let changed = file.setstat(owner).await;
            changed.map_err(|_| {
                let real = Printable::line(real);
                refuse(format!("{real} belongs to somebody else, whom a new file would not belong to: it was not replaced"))
            })?;
        }
        let Some(permissions) = there.permissions else {
            return Ok(());
        };
        let permissions = FileAttributes {
            permissions: Some(Permissions(permissions.bits())),
            ..FileAttributes::default()
        };
        file.setstat(permissions).await.map_err(Failure::from)
    }

    /// Lists at most `most` names of a directory. Also returns true if there are more.
    ///
    /// # Errors
    /// It cannot be listed, or is not permitted.
    pub(crate) async fn list(
        &self,
        path: &str,
        most: usize,
    ) -> Result<(Vec<(String, Found)>, bool), Failure> {
        let real = self.real(path, Action::Read).await?;
        let mut listing = self.sftp.read_dir(&real);
        let mut names = Vec::new();
        while let Some(entry) = listing.next().await {
            let entry = entry.map_err(Failure::from)?;
            if names.len() == most {
                return Ok((names, true));
            }
            let found = Found {
                kind: kind(&entry.attributes),
                attributes: entry.attributes,
            };
            names.push((Printable::line(&entry.path).into_string(), found));
        }
        names.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok((names, false))
    }

    /// Returns the size of a regular file.
    ///
    /// # Errors
    /// It is not a regular file, or is not permitted.
    pub(crate) async fn size(&self, path: &str) -> Result<u64, Failure> {
        let real = self.real(path, Action::Read).await?;
        Ok(self.regular(&real).await?.size.unwrap_or(0))
    }

    /// Returns the last lines of a file and the offset of its end.
    ///
    /// # Errors
    /// It cannot be read, or is not permitted.
    pub(crate) async fn tail(
        &self,
        path: &str,
        lines: usize,
        most: usize,
    ) -> Result<(Vec<u8>, u64), Failure> {
        let real = self.real(path, Action::Read).await?;
        let size = self.regular(&real).await?.size.unwrap_or(0);
        let from = size.saturating_sub(most as u64);
        let read = self.read_real(&real, from, most).await?;
        let end = from + read.bytes.len() as u64;
        let text = read.bytes.strip_suffix(b"\n").unwrap_or(&read.bytes);
        let feeds = text.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
        let start = match feeds.map(|(at, _)| at + 1).nth(lines.saturating_sub(1)) {
            Some(start) => start,
            // The first line may be incomplete.
            None if from > 0 => text.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1),
            None => 0,
        };
        Ok((read.bytes[start..].to_vec(), end))
    }
}

/// Returns the word for a kind of file.
pub(crate) fn kind(attributes: &FileAttributes) -> &'static str {
    match attributes.file_type() {
        Some(FileType::Regular) => "file",
        Some(FileType::Directory) => "directory",
        Some(FileType::Symlink) => "link",
        Some(_) => "special",
        None => "unknown",
    }
}
