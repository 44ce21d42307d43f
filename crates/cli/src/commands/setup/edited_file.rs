//! A file of the user's that is changed atomically: through symlinks, with its mode and owner kept, and with a copy of
//! the old content.

use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use trunkline_request::own;

/// The file as it was read.
#[derive(Debug)]
pub(super) struct EditedFile {
    /// The path as the user knows it.
    pub(super) path: PathBuf,
    /// The path behind all symlinks.
    target: PathBuf,
    /// The content; `None` if there is no file.
    pub(super) text: Option<String>,
    /// The content is not UTF-8: each byte is one character, as in Latin-1.
    is_bytes: bool,
}

impl EditedFile {
    /// Reads a file, which need not exist.
    ///
    /// # Errors
    /// It is not a text file, or cannot be read or written.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        own::check(&std::path::absolute(path)?)?;
        let target = match fs::canonicalize(path) {
            Ok(target) => target,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if fs::symlink_metadata(path).is_ok() {
                    bail!("{shown} is a symbolic link to a file that does not exist");
                }
                return Ok(Self {
                    path: path.to_owned(),
                    target: path.to_owned(),
                    text: None,
                    is_bytes: false,
                });
            }
            Err(error) => return Err(error).with_context(|| format!("reading {shown}")),
        };
        if !target.is_file() {
            bail!("{shown} is not a regular file");
        }
        let bytes = fs::read(&target).with_context(|| format!("reading {shown}"))?;
        ensure!(!bytes.contains(&0), "{shown} is not text");
        // A comment may be in an old encoding. Everything that we search and add is ASCII.
        let (text, is_bytes) = match String::from_utf8(bytes) {
            Ok(text) => (text, false),
            Err(error) => (error.as_bytes().iter().copied().map(char::from).collect(), true),
        };
        rustix::fs::access(&target, rustix::fs::Access::WRITE_OK)
            .with_context(|| format!("{shown} cannot be written"))?;
        Ok(Self {
            path: path.to_owned(),
            target,
            text: Some(text),
            is_bytes,
        })
    }

    /// Encodes text as in the file.
    fn encode(&self, text: &str) -> anyhow::Result<Vec<u8>> {
        if !self.is_bytes {
            return Ok(text.into());
        }
        let bytes = text.chars().map(u8::try_from).collect::<Result<_, _>>();
        bytes.with_context(|| format!("{} is not UTF-8 text", self.path.display()))
    }

    /// Returns the content, empty if there is no file.
    pub(super) fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }

    /// Returns the path of the copy that is made before a change.
    pub(super) fn backup(&self) -> PathBuf {
        let mut name = self.target.file_name().unwrap_or_default().to_owned();
        name.push(".before-trunkline");
        self.target.with_file_name(name)
    }

    /// Replaces the content after copying the old one. A new file and its directory are private to the user.
    ///
    /// # Errors
    /// It cannot be written; then it is unchanged.
    pub(super) fn replace(&self, text: &str) -> anyhow::Result<()> {
        if let Some(old) = &self.text {
            self.put(&self.backup(), old)
                .with_context(|| format!("keeping a copy as {}", self.backup().display()))?;
        }
        self.write(text)
    }

    /// Writes a file of our own, without a copy of the old content.
    ///
    /// # Errors
    /// As [`Self::replace`].
    pub(super) fn write(&self, text: &str) -> anyhow::Result<()> {
        if self.text.as_deref() == Some(text) {
            return Ok(());
        }
        if self.text.is_none() {
            let directory = self.target.parent().unwrap_or(Path::new("/"));
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)
                .with_context(|| format!("making {}", directory.display()))?;
        }
        self.put(&self.target, text)
            .with_context(|| format!("writing {}", self.path.display()))
    }

    /// Restores the content from before our change. Deletes the copy if it equals the content, and a file that we
    /// created if it is empty now.
    ///
    /// # Errors
    /// It cannot be written or deleted.
    pub(super) fn restore(&self, text: &str) -> anyhow::Result<()> {
        let copy = fs::read(self.backup());
        if text.is_empty() && copy.is_err() {
            return fs::remove_file(&self.target)
                .with_context(|| format!("deleting {}", self.path.display()));
        }
        self.put(&self.target, text)
            .with_context(|| format!("writing {}", self.path.display()))?;
        if copy.is_ok_and(|copy| self.encode(text).is_ok_and(|text| copy == text)) {
            fs::remove_file(self.backup())
                .with_context(|| format!("deleting {}", self.backup().display()))?;
        }
        Ok(())
    }

    /// Writes beside `to` and renames, with the current file's mode and owner.
    fn put(&self, to: &Path, text: &str) -> anyhow::Result<()> {
        let directory = to.parent().unwrap_or(Path::new("/"));
        let mut new = tempfile::NamedTempFile::new_in(directory)?;
        new.write_all(&self.encode(text)?)?;
        if let Ok(old) = fs::metadata(&self.target) {
            let made = new.as_file().metadata()?;
            if (made.uid(), made.gid()) != (old.uid(), old.gid()) {
                std::os::unix::fs::fchown(new.as_file(), Some(old.uid()), Some(old.gid()))?;
            }
            new.as_file()
                .set_permissions(Permissions::from_mode(old.mode() & 0o7777))?;
        }
        new.as_file().sync_all()?;
        new.persist(to)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_and_symlink_stay_and_a_copy_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let (real, link) = (directory.path().join("real"), directory.path().join("link"));
        fs::write(&real, "old").unwrap();
        fs::set_permissions(&real, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let file = EditedFile::open(&link).unwrap();
        assert_eq!(file.text(), "old");
        file.replace("new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&real).unwrap(), "new");
        assert_eq!(fs::metadata(&real).unwrap().mode() & 0o777, 0o640);
        assert_eq!(fs::read_to_string(file.backup()).unwrap(), "old");
        assert_eq!(fs::metadata(file.backup()).unwrap().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_new_file_and_its_directory_are_private() {
        let directory = tempfile::tempdir().unwrap();
        let file = EditedFile::open(&directory.path().join(".ssh/config")).unwrap();
        assert_eq!(file.text, None);
        file.replace("new").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&directory.path().join(".ssh")), 0o700);
        assert_eq!(mode(&file.path), 0o600);
        assert!(!file.backup().exists());
    }

    #[test]
    fn what_is_no_file_of_text_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert!(EditedFile::open(directory.path()).is_err());
        let path = directory.path().join("binary");
        fs::write(&path, b"\x7fELF\0").unwrap();
        assert!(EditedFile::open(&path).is_err());
        let dangling = directory.path().join("dangling");
        std::os::unix::fs::symlink("nowhere", &dangling).unwrap();
        assert!(EditedFile::open(&dangling).is_err());
    }
}
