//! `-o DIR`: the output of each host in files of its own, `DIR/HOST.stdout` and `DIR/HOST.stderr`.

use super::HostResult;
use super::lines::Stream;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A folder that receives the output of hosts.
#[derive(Debug)]
pub(crate) struct OutputDir {
    path: PathBuf,
}

/// A file or folder for output that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}", path.display())]
pub(crate) struct OutputError {
    path: PathBuf,
    source: io::Error,
}

impl OutputDir {
    /// Uses the folder `path`, creating it and its parents as needed.
    ///
    /// # Errors
    /// When it cannot be created, or is no folder.
    pub(crate) fn create(path: &Path) -> Result<Self, OutputError> {
        fs::create_dir_all(path).map_err(|source| OutputError {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            path: path.to_owned(),
        })
    }

    /// The file for one stream of `host`. It lies directly in the folder whatever the name says, and no two
    /// hosts share one.
    pub(crate) fn path(&self, host: &str, stream: Stream) -> PathBuf {
        let extension = match stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        self.path.join(format!("{}.{extension}", file_name(host)))
    }

    /// Writes both files of a host that is done. Earlier ones of the same names are replaced; an empty stream
    /// leaves an empty file, which says that the host was reached for.
    ///
    /// # Errors
    /// When one cannot be written.
    pub(crate) fn write(&self, result: &HostResult) -> Result<(), OutputError> {
        for (stream, output) in [(Stream::Stdout, &result.stdout), (Stream::Stderr, &result.stderr)] {
            let path = self.path(&result.host, stream);
            let written = fs::File::create(&path)
                .and_then(|mut file| output.each_piece(|piece| io::Write::write_all(&mut file, piece)));
            written.map_err(|source| OutputError { path, source })?;
        }
        Ok(())
    }
}

/// The longest stem, in bytes: with an extension it stays under the 255 that Linux file systems take.
const MAX_STEM: usize = 220;

/// A host's name as the stem of a file name. What could be a path, hidden, or special to a shell is written
/// `%XX`, as in a URI; a name that gets too long keeps its beginning and gets a hash.
fn file_name(host: &str) -> String {
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
        // Cannot collide with a short name: those have '%' before two hex digits only.
        stem.truncate(MAX_STEM - 18);
        _ = write!(stem, "%~{:016x}", fnv1a(host.as_bytes()));
    }
    stem
}

/// FNV-1a with 64 bits: the same in every run and version, which std's hasher does not promise.
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
        let folder = tempfile::tempdir().expect("a temporary folder");
        let dir = OutputDir::create(&folder.path().join("a/b")).expect("a folder can be made");
        let mut done = result("web1", Outcome::Exited(1), "out\n");
        done.stderr = [0xff].as_slice().into();
        dir.write(&done).expect("files can be written");
        let read = |stream| fs::read(dir.path("web1", stream)).expect("the file is there");
        assert_eq!(read(Stream::Stdout), b"out\n");
        assert_eq!(read(Stream::Stderr), [0xff]);
    }

    #[test]
    fn what_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("file");
        fs::write(&file, "").expect("a file can be written");
        let error = OutputDir::create(&file).expect_err("a file is no folder");
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
        fn no_name_leaves_the_folder_or_meets_another(
            a in "\\PC*|[./%~-]{0,6}|x{210,240}",
            b in "\\PC*|[./%~-]{0,6}|x{210,240}",
        ) {
            let dir = OutputDir { path: PathBuf::from("/d") };
            let path = dir.path(&a, Stream::Stdout);
            let parts: Vec<Component<'_>> = path.components().collect();
            let [Component::RootDir, Component::Normal(_), Component::Normal(name)] = parts[..] else {
                return Err(TestCaseError::fail(format!("{path:?} lies elsewhere")));
            };
            prop_assert!(name.len() <= 255);
            prop_assert_eq!(a == b, file_name(&a) == file_name(&b));
        }
    }
}
