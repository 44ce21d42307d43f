//! `-O DIR`: the output of each host in its own files, `DIR/HOST.stdout` and `DIR/HOST.stderr`.

use super::HostResult;
use super::lines::Stream;
use anyhow::bail;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// The files that receive the output of hosts.
#[derive(Debug)]
pub(crate) struct OutputFiles {
    /// The paths of each host, by its number, without extension.
    stems: Vec<PathBuf>,
}

/// A file or directory for output that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {error}", path.display())]
pub(crate) struct OutputError {
    path: PathBuf,
    error: io::Error,
}

impl OutputFiles {
    /// Returns files in the directory `path`, which is created with its parents as needed. If `path` contains `{host}`
    /// or `{n}`, all file names begin with it instead. `hosts` are numbered from 1, in order.
    ///
    /// # Errors
    /// A directory cannot be created, or two hosts would share files.
    pub(crate) fn plan<'a>(
        path: &Path,
        hosts: impl IntoIterator<Item = (&'a str, usize)>,
    ) -> anyhow::Result<Self> {
        let template = path.as_os_str().as_bytes();
        let is_directory = !["{host}", "{n}"]
            .iter()
            .any(|word| find(template, word.as_bytes()).is_some());
        let mut planned = HashMap::new();
        let mut stems = Vec::new();
        for (host, number) in hosts {
            let name = file_name(host);
            let stem = if is_directory {
                path.join(name)
            } else {
                let filled = replace(template, b"{host}", name.as_bytes());
                let filled = replace(&filled, b"{n}", number.to_string().as_bytes());
                PathBuf::from(OsString::from_vec(filled))
            };
            if let Some(other) = planned.insert(stem.clone(), host) {
                bail!(
                    "{other} and {host} would both write to {}.stdout; {{n}} in --output tells them apart",
                    stem.display()
                );
            }
            create_directory(stem.parent().unwrap_or(path))?;
            stems.push(stem);
        }
        Ok(Self { stems })
    }

    /// Returns the file for one stream of the `number`th host. A host's name cannot change the directory.
    fn path(&self, number: usize, stream: Stream) -> Option<PathBuf> {
        let extension = match stream {
            Stream::Stdout => ".stdout",
            Stream::Stderr => ".stderr",
        };
        let mut path = self.stems.get(number.checked_sub(1)?)?.clone().into_os_string();
        path.push(extension);
        Some(path.into())
    }

    /// Writes both files of a host that has ended, replacing earlier ones. An empty stream leaves an empty file, which
    /// shows that the host was tried.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn write(&self, result: &HostResult) -> Result<(), OutputError> {
        for (stream, output) in [(Stream::Stdout, &result.stdout), (Stream::Stderr, &result.stderr)] {
            let Some(path) = self.path(result.number, stream) else {
                continue;
            };
            let written = fs::File::create(&path)
                .and_then(|mut file| output.each_piece(|piece| io::Write::write_all(&mut file, piece)));
            written.map_err(|error| OutputError { path, error })?;
        }
        Ok(())
    }
}

fn create_directory(path: &Path) -> Result<(), OutputError> {
    fs::create_dir_all(path).map_err(|error| OutputError {
        path: path.to_owned(),
        error,
    })
}

fn find(text: &[u8], word: &[u8]) -> Option<usize> {
    text.windows(word.len()).position(|window| window == word)
}

fn replace(text: &[u8], word: &[u8], with: &[u8]) -> Vec<u8> {
    let mut replaced = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = find(rest, word) {
        replaced.extend_from_slice(&rest[..at]);
        replaced.extend_from_slice(with);
        rest = &rest[at + word.len()..];
    }
    replaced.extend_from_slice(rest);
    replaced
}

/// The longest stem in bytes. With an extension it stays under the 255 that Linux file systems allow.
const MAX_STEM: usize = 220;

/// Returns a host's name as the stem of a file name. Characters of paths, hidden files or a shell's syntax are written
/// `%XX`, as in a URI. Longer names are truncated and get a hash.
pub(crate) fn file_name(host: &str) -> String {
    let mut stem = String::with_capacity(host.len());
    for (index, byte) in host.bytes().enumerate() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b':' | b'@' => stem.push(byte.into()),
            b'.' | b'-' if index > 0 => stem.push(byte.into()),
            // Writing to a String cannot fail.
            _ => _ = write!(stem, "%{byte:02X}"),
        }
    }
    if stem.is_empty() {
        stem.push('%');
    }
    if stem.len() > MAX_STEM {
        // Cannot collide with a short name, in which '%' precedes two hex digits.
        stem.truncate(MAX_STEM - 18);
        _ = write!(stem, "%~{:016x}", fnv1a(host.as_bytes()));
    }
    stem
}

/// Hashes with FNV-1a of 64 bits, which is equal in every run and version, unlike std's hasher.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::super::tests::result;
    use super::*;
    use proptest::prelude::*;
    use std::path::Component;

    #[test]
    fn each_host_has_a_file_for_each_stream() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("a/b");
        let files = OutputFiles::plan(&path, [("web1", 1)]).expect("a directory can be made");
        let mut done = result("web1", Outcome::Exited(1), "out\n");
        done.stderr = [0xff].as_slice().into();
        files.write(&done).expect("files can be written");
        let read = |name| fs::read(path.join(name)).expect("the file is there");
        assert_eq!(read("web1.stdout"), b"out\n");
        assert_eq!(read("web1.stderr"), [0xff]);
    }

    #[test]
    fn a_template_names_directories_and_files() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("{host}/run-{n}");
        let files = OutputFiles::plan(&path, [("../web1", 1), ("web1", 2)]).expect("directories can be made");
        let path = |number| files.path(number, Stream::Stdout);
        assert_eq!(path(1), Some(directory.path().join("%2E.%2Fweb1/run-1.stdout")));
        assert_eq!(path(2), Some(directory.path().join("web1/run-2.stdout")));
        assert!(directory.path().join("web1").is_dir());
        let same = OutputFiles::plan(&directory.path().join("{host}"), [("web1", 1), ("web1", 2)]);
        let error = same.expect_err("one file for two hosts").to_string();
        assert!(error.contains("{n} in --output"), "{error}");
    }

    #[test]
    fn what_cannot_be_written_is_named() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("file");
        fs::write(&file, "").expect("a file can be written");
        let error = OutputFiles::plan(&file, [("web1", 1)]).expect_err("a file is not a directory");
        assert!(
            error
                .to_string()
                .starts_with(&format!("cannot write {}: ", file.display())),
            "{error}"
        );
    }

    #[test]
    fn names_stay_readable_where_they_can() {
        for (host, name) in [
            ("web-1.example.com", "web-1.example.com"),
            ("u@h:22", "u@h:22"),
            ("../../etc/passwd", "%2E.%2F..%2Fetc%2Fpasswd"),
            ("-rf", "%2Drf"),
            ("", "%"),
            ("%", "%25"),
            ("é", "%C3%A9"),
        ] {
            assert_eq!(file_name(host), name);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_name_leaves_the_directory_or_meets_another(
            a in "\\PC*|[./%~-]{0,6}|x{210,240}",
            b in "\\PC*|[./%~-]{0,6}|x{210,240}",
        ) {
            let stems = vec![Path::new("/d").join(file_name(&a))];
            let path = OutputFiles { stems }.path(1, Stream::Stdout).expect("there is one");
            let parts: Vec<Component<'_>> = path.components().collect();
            let [Component::RootDir, Component::Normal(_), Component::Normal(name)] = parts[..] else {
                return Err(TestCaseError::fail(format!("{path:?} lies elsewhere")));
            };
            prop_assert!(name.len() <= 255);
            prop_assert_eq!(a == b, file_name(&a) == file_name(&b));
        }
    }
}
