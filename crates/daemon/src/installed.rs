//! The file that this program was started from, and the check that it was replaced.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// On Linux this is the running file itself, whatever its name is now.
const OURSELVES: &str = "/proc/self/exe";

/// The path where this program is installed.
#[derive(Debug)]
pub(crate) struct Installed(Option<PathBuf>);

impl Installed {
    /// Returns the path of the running program. To be called when it starts.
    pub(crate) fn find() -> Self {
        Self(std::env::current_exe().ok())
    }

    /// Returns true if there is another file in its place, as after an update. A removed program has not been replaced.
    pub(crate) fn is_replaced(&self) -> bool {
        self.0
            .as_deref()
            .is_some_and(|path| differs(path, Path::new(OURSELVES)))
    }
}

fn differs(there: &Path, ours: &Path) -> bool {
    let (Ok(there), Ok(ours)) = (there.metadata(), ours.metadata()) else {
        return false;
    };
    there.is_file() && (there.dev(), there.ino()) != (ours.dev(), ours.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_program_is_not_replaced() {
        assert!(!Installed::find().is_replaced());
    }

    #[test]
    fn a_file_is_replaced_by_another_of_its_name_and_not_by_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (path, ours) = (directory.path().join("program"), directory.path().join("ours"));
        std::fs::write(&path, "old").unwrap();
        std::fs::hard_link(&path, &ours).unwrap();
        assert!(!differs(&path, &ours));
        std::fs::remove_file(&path).unwrap();
        assert!(!differs(&path, &ours));
        std::fs::write(&path, "new").unwrap();
        assert!(differs(&path, &ours));
    }
}
