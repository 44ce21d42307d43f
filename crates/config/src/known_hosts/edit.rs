//! Changes a known_hosts file while other programs may change it.
//!
//! Both operations hold an exclusive `flock` on the file, so several trunkline processes never lose each other's lines.
//! OpenSSH takes no lock; appending beside it is safe because each append is one write to a file opened with
//! `O_APPEND`.

use super::{Hosts, KnownHostsError, Line, MAX_FILE, Marker, hash_name};
use crate::keys;
use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::FlockOperation;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The result of [`append`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// The lines were added.
    Added,
    /// The file already had the key for every name, because another process was first.
    AlreadyThere,
}

/// Adds `key` for a host with the names `names` (its name, perhaps its address; see
/// [`lookup_name`](super::lookup_name)) at the end of `file`.
///
/// Creates the file with mode 0600, and its directory (not that directory's parents) with mode 0700. Adds a line feed
/// if the last line lacks one. With `hash` (HashKnownHosts) each name gets its own line, with a fresh salt. A name that
/// has the key gets no second line. Blocks while another process holds the lock.
///
/// # Errors
/// [`KnownHostsError`] if the file cannot be written, or a name or the key does not fit on a line.
pub fn append(file: &Path, names: &[&str], key: &[u8], hash: bool) -> Result<Appended, KnownHostsError> {
    create_directory(file)?;
    let mut locked = Locked::open(file, true)?;
    let content = locked.read()?;
    let missing: Vec<&str> = names
        .iter()
        .copied()
        .filter(|name| !has(&content, name, key))
        .collect();
    if missing.is_empty() {
        return Ok(Appended::AlreadyThere);
    }
    let mut text = Vec::new();
    if content.last().is_some_and(|last| *last != b'\n') {
        text.push(b'\n');
    }
    push_lines(&mut text, file, &missing, key, hash)?;
    locked.append(&text)?;
    Ok(Appended::Added)
}

/// Brings the lines of a host in `file` up to date: removes the keys of `remove` for `names` and adds the missing keys
/// of `add`.
///
/// Keeps lines with a marker, lines of other hosts, comments and unreadable lines byte for byte. Replaces the file at
/// once (writes a temporary file beside it, then renames it), with the old mode and, if the system allows it, the old
/// owner. Follows a symbolic link and replaces its target. Returns whether anything changed. Creates a missing file
/// only if there are keys to add; leaves other than regular files (`/dev/null`) alone.
///
/// # Errors
/// [`KnownHostsError`] if the file cannot be read or replaced; it is then unchanged.
pub fn update(
    file: &Path,
    names: &[&str],
    add: &[&[u8]],
    remove: &[&[u8]],
    hash: bool,
) -> Result<bool, KnownHostsError> {
    if !add.is_empty() {
        create_directory(file)?;
    }
    let mut locked = match Locked::open(file, !add.is_empty()) {
        Ok(locked) => locked,
        Err(KnownHostsError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(false);
        }
        Err(error) => return Err(error),
    };
    if !locked.is_regular {
        return Ok(false);
    }
    let content = locked.read()?;

    let mut text = Vec::with_capacity(content.len() + 1024);
    for line in content.split_inclusive(|&b| b == b'\n') {
        let goes = matches!(Line::parse(line.trim_ascii_end()), Ok(Some(line))
            if line.marker == Marker::Plain
                && remove.iter().any(|key| line.key == *key)
                && names.iter().any(|name| line.hosts.matches(name)));
        if !goes {
            text.extend_from_slice(line);
        }
    }
    for key in add {
        let missing: Vec<&str> = names
            .iter()
            .copied()
            .filter(|name| !has(&text, name, key))
            .collect();
        if missing.is_empty() {
            continue;
        }
        if text.last().is_some_and(|last| *last != b'\n') {
            text.push(b'\n');
        }
        push_lines(&mut text, file, &missing, key, hash)?;
    }
    if text == content {
        return Ok(false);
    }
    locked.replace(&text)?;
    Ok(true)
}

/// Returns whether `content` trusts `key` for `name`.
fn has(content: &[u8], name: &str, key: &[u8]) -> bool {
    content.split(|&b| b == b'\n').any(|line| {
        matches!(Line::parse(line), Ok(Some(line))
            if line.marker == Marker::Plain && line.key == key && line.hosts.matches(name))
    })
}

fn push_lines(
    text: &mut Vec<u8>,
    file: &Path,
    names: &[&str],
    key: &[u8],
    hash: bool,
) -> Result<(), KnownHostsError> {
    let key_type = keys::key_type(key).ok_or_else(|| KnownHostsError::UnknownKeyType {
        file: file.to_owned(),
    })?;
    // A name comes from a command line or an ssh_config. A blank or comma in it would write a line with another
    // meaning, as would a leading `|`, `@` or `#`.
    if let Some(name) = names.iter().find(|name| !is_plain_name(name)) {
        return Err(KnownHostsError::BadName {
            name: (*name).to_owned(),
        });
    }
    let key = STANDARD.encode(key);
    let fields = if hash {
        names.iter().map(|name| hashed_field(name)).collect()
    } else {
        vec![names.join(",").to_ascii_lowercase()]
    };
    for field in fields {
        text.extend_from_slice(format!("{field} {key_type} {key}\n").as_bytes());
    }
    Ok(())
}

fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(['|', '@', '#', '!'])
        && !name.contains(|c: char| c.is_whitespace() || c.is_control() || matches!(c, ',' | '*' | '?'))
}

fn hashed_field(name: &str) -> String {
    let mut salt = [0; super::HASH_LEN];
    rand::fill(&mut salt).expect("the system's random source does not fail once it is seeded");
    let hash = hash_name(&salt, &name.to_ascii_lowercase());
    debug_assert!(Hosts::Hashed { salt, hash }.matches(&name.to_ascii_lowercase()));
    format!("|1|{}|{}", STANDARD.encode(salt), STANDARD.encode(hash))
}

fn create_directory(file: &Path) -> Result<(), KnownHostsError> {
    let Some(directory) = file
        .parent()
        .filter(|directory| !directory.as_os_str().is_empty())
    else {
        return Ok(());
    };
    match DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(KnownHostsError::Io {
            action: "create the directory",
            file: directory.to_owned(),
            source,
        }),
    }
}

/// A locked file, open for reading and appending. Closing it unlocks it.
struct Locked {
    file: File,
    /// The path of the file itself, after any symbolic links.
    path: PathBuf,
    is_regular: bool,
}

impl Locked {
    fn open(path: &Path, create: bool) -> Result<Self, KnownHostsError> {
        let failed = |action| {
            let file = path.to_owned();
            move |source| KnownHostsError::Io { action, file, source }
        };
        loop {
            let file = OpenOptions::new()
                .read(true)
                .append(true)
                .create(create)
                .mode(0o600)
                .open(path)
                .map_err(failed("open"))?;
            rustix::fs::flock(&file, FlockOperation::LockExclusive)
                .map_err(|errno| failed("lock")(errno.into()))?;
            let held = file.metadata().map_err(failed("read"))?;
            // While this process waited, the holder may have renamed a new file into place, so this lock may be on a
            // file without a name.
            let current = path.metadata();
            if current.is_ok_and(|now| (now.dev(), now.ino()) == (held.dev(), held.ino())) {
                let path = path.canonicalize().map_err(failed("find"))?;
                return Ok(Self {
                    file,
                    path,
                    is_regular: held.is_file(),
                });
            }
        }
    }

    /// Reads the content; returns nothing if the file is not a regular one.
    fn read(&mut self) -> Result<Vec<u8>, KnownHostsError> {
        let mut content = Vec::new();
        if self.is_regular {
            (&self.file)
                .take(MAX_FILE + 1)
                .read_to_end(&mut content)
                .map_err(self.io_error("read"))?;
            if content.len() as u64 > MAX_FILE {
                let source = io::Error::new(io::ErrorKind::FileTooLarge, "the file is larger than 64 MiB");
                return Err(self.io_error("read")(source));
            }
        }
        Ok(content)
    }

    /// Appends `text` in one write, so that no other writer's line ends up inside it.
    fn append(&mut self, text: &[u8]) -> Result<(), KnownHostsError> {
        self.file.write_all(text).map_err(self.io_error("write"))
    }

    /// Replaces this file with one of the content `text`.
    fn replace(&mut self, text: &[u8]) -> Result<(), KnownHostsError> {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        let old = self.file.metadata().map_err(self.io_error("read"))?;
        let mut new = tempfile::Builder::new()
            .prefix(".known_hosts.")
            .tempfile_in(directory)
            .map_err(self.io_error("write beside"))?;
        new.write_all(text).map_err(self.io_error("write"))?;
        let (uid, gid) = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        if (old.uid(), old.gid()) != (uid, gid) {
            // Only root may give files away; other users own the new file, as with ssh.
            let owner = rustix::fs::Uid::from_raw(old.uid());
            let group = rustix::fs::Gid::from_raw(old.gid());
            let _ = rustix::fs::fchown(new.as_file(), Some(owner), Some(group));
        }
        let mode = Permissions::from_mode(old.permissions().mode() & 0o7777);
        new.as_file()
            .set_permissions(mode)
            .map_err(self.io_error("write"))?;
        new.as_file().sync_all().map_err(self.io_error("write"))?;
        new.persist(&self.path)
            .map_err(|error| self.io_error("replace")(error.error))?;
        Ok(())
    }

    fn io_error(&self, action: &'static str) -> impl FnOnce(io::Error) -> KnownHostsError + use<> {
        let file = self.path.clone();
        move |source| KnownHostsError::Io { action, file, source }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{KnownHosts, Verdict, tests::key};
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::process::Command;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn is_trusted(file: &Path, name: &str, key: &[u8]) -> bool {
        matches!(
            KnownHosts::load(&[file]).check_name(name, key),
            Verdict::Trusted { .. }
        )
    }

    #[test]
    fn the_first_key_makes_a_private_directory_and_file() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join(".ssh/known_hosts");
        assert_eq!(
            append(&file, &["A.example", "10.0.0.1"], &key(1), false).unwrap(),
            Appended::Added
        );
        assert_eq!(mode(&file), 0o600);
        assert_eq!(mode(file.parent().unwrap()), 0o700);
        assert!(
            fs::read_to_string(&file)
                .unwrap()
                .starts_with("a.example,10.0.0.1 ssh-ed25519 ")
        );
    }

    #[test]
    fn a_key_is_not_added_twice() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("known_hosts");
        append(&file, &["a"], &key(1), true).unwrap();
        assert_eq!(
            append(&file, &["a"], &key(1), false).unwrap(),
            Appended::AlreadyThere
        );
        assert_eq!(
            append(&file, &["a", "b"], &key(1), false).unwrap(),
            Appended::Added
        );
        assert!(
            fs::read_to_string(&file)
                .unwrap()
                .lines()
                .nth(1)
                .unwrap()
                .starts_with("b ssh-ed25519")
        );
    }

    #[test]
    fn a_missing_final_newline_does_not_swallow_the_new_line() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("known_hosts");
        fs::write(&file, "# no newline").unwrap();
        append(&file, &["a"], &key(1), false).unwrap();
        assert!(is_trusted(&file, "a", &key(1)));
    }

    #[test]
    fn hashed_names_are_found_by_ssh_keygen() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("known_hosts");
        append(&file, &["[a.example]:2222", "10.0.0.1"], &key(1), true).unwrap();
        for name in ["[a.example]:2222", "10.0.0.1"] {
            let found = Command::new("ssh-keygen")
                .args(["-F", name, "-f"])
                .arg(&file)
                .output();
            assert!(
                found.expect("this test needs ssh-keygen").status.success(),
                "{name}"
            );
        }
        assert!(!fs::read_to_string(&file).unwrap().contains("example"));
    }

    #[test]
    fn many_writers_lose_no_line() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("known_hosts");
        append(&file, &["old"], &key(0), false).unwrap();
        std::thread::scope(|scope| {
            for n in 1..=20 {
                let file = &file;
                scope.spawn(move || {
                    let name = format!("host{n}");
                    append(file, &[&name], &key(n), false).unwrap();
                    // Each rewrite puts a new file in place while others wait for the old one's lock.
                    update(file, &[&name], &[&key(100 + n)], &[&key(n)], false).unwrap();
                });
            }
        });
        for n in 1..=20 {
            assert!(is_trusted(&file, &format!("host{n}"), &key(100 + n)), "{n}");
            assert!(!is_trusted(&file, &format!("host{n}"), &key(n)), "{n}");
        }
        assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 21);
    }

    #[test]
    fn an_update_changes_its_host_only_and_keeps_the_mode() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("known_hosts");
        append(&file, &["a"], &key(1), false).unwrap();
        let a = fs::read_to_string(&file).unwrap();
        let marked = a.replacen("a ssh", "@revoked a ssh", 1);
        let other = a.replacen("a ssh", "b ssh", 1);
        let junk = "what is this\r\n";
        fs::write(&file, format!("{junk}{marked}{a}{other}# end")).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        assert!(update(&file, &["a"], &[&key(2)], &[&key(1)], false).unwrap());
        let now = fs::read_to_string(&file).unwrap();
        assert!(
            now.starts_with(&format!("{junk}{marked}{other}# end\na ssh-ed25519 ")),
            "{now}"
        );
        assert_eq!(mode(&file), 0o640);
        assert!(!update(&file, &["a"], &[&key(2)], &[&key(1)], false).unwrap());
    }

    #[test]
    fn an_update_follows_a_symbolic_link_and_leaves_devices_alone() {
        let home = tempfile::tempdir().unwrap();
        let (file, link) = (home.path().join("real"), home.path().join("known_hosts"));
        append(&file, &["a"], &key(1), false).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(update(&link, &["a"], &[&key(2)], &[], false).unwrap());
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(is_trusted(&file, "a", &key(2)));
        assert!(!update(Path::new("/dev/null"), &["a"], &[&key(2)], &[], false).unwrap());
        assert_eq!(
            append(Path::new("/dev/null"), &["a"], &key(2), false).unwrap(),
            Appended::Added
        );
    }

    #[test]
    fn a_name_that_would_forge_a_line_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("known_hosts");
        for name in ["a b", "a,b", "*", "@revoked", "#a", "|1|a|b", "a\nb", "", "!a"] {
            let refused = append(&file, &[name], &key(1), false);
            assert!(
                matches!(refused, Err(KnownHostsError::BadName { .. })),
                "{name:?}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn an_update_that_removes_nothing_keeps_every_byte(content: Vec<u8>) {
            let home = tempfile::tempdir().unwrap();
            let file = home.path().join("known_hosts");
            fs::write(&file, &content).unwrap();
            prop_assert!(!update(&file, &["a"], &[], &[&key(1)], false).unwrap());
            update(&file, &["a"], &[&key(1)], &[], false).unwrap();
            prop_assert!(fs::read(&file).unwrap().starts_with(&content));
            prop_assert!(is_trusted(&file, "a", &key(1)));
        }
    }
}
