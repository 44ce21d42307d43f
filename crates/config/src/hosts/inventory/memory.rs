//! The cache of `ansible-inventory`'s answers, because one takes the better part of a second.
//!
//! An answer is one file in the caller's cache directory. It holds only the parts of the inventory that [`Inventory`]
//! keeps.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher as _};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use trunkline_request::own;

use super::Inventory;
use crate::ssh_config::World;

/// Everything that an answer depends on.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Key {
    program: PathBuf,
    sources: Vec<PathBuf>,
    /// The start of the configuration's relative paths.
    cwd: PathBuf,
    /// A hash of the variables that Ansible and Python read, whose values may be secret.
    env: u64,
    /// `None` for a missing file.
    files: BTreeMap<PathBuf, Option<Stamp>>,
}

/// The attributes that change with a file's content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    file: (u64, u64),
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

#[derive(Serialize, Deserialize)]
struct Remembered {
    key: Key,
    inventory: Inventory,
}

/// The most files that are checked: a larger tree is read again each time.
const MOST_FILES: usize = 10_000;

impl Key {
    /// Collects the state on which an answer about these sources depends now. Returns `None` if it depends on more than
    /// files: a script, a plugin, a pipe.
    pub(super) fn new(program: &Path, sources: &[PathBuf], world: &World) -> Option<Self> {
        let ours = |name: &str| {
            name.starts_with("ANSIBLE_") || name.starts_with("PYTHON") || ["HOME", "PATH"].contains(&name)
        };
        let read = world
            .env
            .iter()
            .filter(|(name, _)| name.to_str().is_some_and(ours));
        let read: Vec<_> = read.collect();
        // A variable about plugins leads to more files, or to programs.
        if read
            .iter()
            .any(|(name, _)| name.to_string_lossy().contains("PLUGIN"))
        {
            return None;
        }
        let mut key = Self {
            program: program.to_owned(),
            sources: sources.to_owned(),
            cwd: world.cwd.clone(),
            env: hash(&read),
            files: BTreeMap::new(),
        };
        key.stamp(program)?;
        for source in sources {
            let about = fs::metadata(source).ok()?;
            if !about.is_file() && !about.is_dir() {
                return None;
            }
            key.add(source, Part::Source)?;
            let directory = if about.is_dir() {
                Some(source.as_path())
            } else {
                source.parent()
            };
            key.add_variables(directory?)?;
        }
        key.add_variables(&world.cwd)?;
        let home = world.var("HOME").map(|home| Path::new(home).join(".ansible.cfg"));
        let named = world
            .var("ANSIBLE_CONFIG")
            .map(|file| world.absolute(Path::new(file)));
        for file in [named, Some(world.absolute(Path::new("ansible.cfg"))), home]
            .into_iter()
            .flatten()
        {
            key.add(&file, Part::Configuration)?;
        }
        key.add(Path::new("/etc/ansible/ansible.cfg"), Part::Configuration)?;
        Some(key)
    }

    fn add_variables(&mut self, directory: &Path) -> Option<()> {
        self.add(&directory.join("group_vars"), Part::Variables)?;
        self.add(&directory.join("host_vars"), Part::Variables)
    }

    /// Adds a file, or everything in a directory; returns `None` if any of it has to be asked each time.
    fn add(&mut self, path: &Path, part: Part) -> Option<()> {
        if self.files.len() > MOST_FILES || self.files.contains_key(path) {
            return (self.files.len() <= MOST_FILES).then_some(());
        }
        self.stamp(path)?;
        let Ok(about) = fs::metadata(path) else {
            return Some(());
        };
        if about.is_dir() {
            for entry in fs::read_dir(path).ok()? {
                self.add(&entry.ok()?.path(), part)?;
            }
            return Some(());
        }
        match part {
            // A program, or a file that says "plugin: …".
            Part::Source if about.permissions().mode() & 0o111 != 0 => None,
            Part::Source | Part::Configuration => {
                let content = fs::read(path).ok()?;
                let mut lines = content.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_start);
                let names_plugin = |line: &[u8]| {
                    !line.starts_with(b"#")
                        && !line.starts_with(b";")
                        && line.windows(6).any(|word| word == b"plugin")
                };
                (!lines.any(names_plugin)).then_some(())
            }
            Part::Variables => Some(()),
        }
    }

    /// Returns `None` if the file exists but cannot be examined.
    fn stamp(&mut self, path: &Path) -> Option<()> {
        let stamp = match fs::metadata(path) {
            Ok(about) => Some(Stamp {
                file: (about.dev(), about.ino()),
                length: about.len(),
                modified: (about.mtime(), about.mtime_nsec()),
                changed: (about.ctime(), about.ctime_nsec()),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => None,
            Err(_) => return None,
        };
        self.files.insert(path.to_owned(), stamp);
        Some(())
    }

    /// Returns the answer that was made from this state.
    pub(super) fn recall(&self, world: &World) -> Option<Inventory> {
        let text = own::read_to_string(&self.place(world)?).ok()?;
        let remembered: Remembered = serde_json::from_str(&text).ok()?;
        (remembered.key == *self).then_some(remembered.inventory)
    }

    /// Keeps an answer. If that fails, the next load asks Ansible again.
    pub(super) fn remember(&self, inventory: &Inventory, world: &World) {
        if let Err(error) = self.try_remember(inventory, world) {
            tracing::debug!("the inventory is not remembered: {error}");
        }
    }

    fn try_remember(&self, inventory: &Inventory, world: &World) -> io::Result<()> {
        #[derive(Serialize)]
        struct Remembered<'a> {
            key: &'a Key,
            inventory: &'a Inventory,
        }
        let place = self.place(world).ok_or(io::ErrorKind::NotFound)?;
        let directory = place.parent().ok_or(io::ErrorKind::NotFound)?;
        own::make_directory(directory)?;
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        serde_json::to_writer(&mut file, &Remembered { key: self, inventory })?;
        file.flush()?;
        file.persist(place)?;
        Ok(())
    }

    /// Returns the file for this list of sources, which a newer answer replaces.
    fn place(&self, world: &World) -> Option<PathBuf> {
        let directory = |name: &str| world.var(name).map(Path::new).filter(|path| path.is_absolute());
        let cache = directory("TRUNKLINE_DIR")
            .map(|directory| directory.join("cache"))
            .or_else(|| Some(directory("XDG_CACHE_HOME")?.join("trunkline")))
            .or_else(|| Some(directory("HOME")?.join(".cache/trunkline")))?;
        // Another version of this program may keep other variables.
        let variables: Vec<_> = super::known_variables().collect();
        let name = hash(&(&self.sources, &self.cwd, &self.program, variables));
        Some(cache.join("inventories").join(format!("{name:016x}")))
    }
}

fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// The role of a file in an inventory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Source,
    Variables,
    Configuration,
}
