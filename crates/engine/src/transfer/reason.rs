//! Reasons why a name was not copied.

use std::fmt;
use std::ops::AddAssign;

use rustix::io::Errno;
use trunkline_request::copy::Obstacle;

use super::item::LARGE;
use super::path::shown;
use crate::error::Error;

/// The reason for a failure: a sentence, and this machine's errno of the same meaning, if there is one.
#[derive(Debug, Default)]
pub(super) struct Reason {
    pub(super) message: String,
    pub(super) errno: Option<i32>,
    pub(super) obstacle: Option<Obstacle>,
    /// It holds for every other file, too.
    pub(super) for_all: bool,
}

impl From<String> for Reason {
    fn from(message: String) -> Self {
        Self {
            message,
            ..Self::default()
        }
    }
}

impl From<Error> for Reason {
    fn from(error: Error) -> Self {
        Self {
            message: error.to_string(),
            errno: error.errno(),
            ..Self::default()
        }
    }
}

/// Appends to the sentence.
impl AddAssign<&str> for Reason {
    fn add_assign(&mut self, more: &str) {
        self.message += more;
    }
}

impl std::ops::Add<&str> for Reason {
    type Output = Self;

    fn add(mut self, more: &str) -> Self {
        self += more;
        self
    }
}

/// Returns whether an error means that the disk or the quota is full.
pub(super) fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

impl Reason {
    /// Returns whether the reason is a full disk or quota.
    pub(super) fn lacks_room(&self) -> bool {
        self.errno
            .is_some_and(|errno| is_full(&std::io::Error::from_raw_os_error(errno)))
    }

    /// Makes the reason for a local failure.
    pub(super) fn local(path: &[u8], error: &std::io::Error) -> Self {
        let mut reason = Self::from(Error::local(
            shown(path),
            std::io::Error::new(error.kind(), error.to_string()),
        ));
        reason.errno = crate::error::errno(error);
        reason
    }

    /// Turns it into the reason why a directory could not be created.
    pub(super) fn of_directory(self) -> Self {
        match self.for_all {
            true => self,
            false => self + "; what is in it was not copied",
        }
    }
}

/// Follows the reason of a failure that ends the copy.
pub(super) const STOPPED: &str = ". The copy stopped here";

/// Makes the reason for a full disk. `there` bytes of the file are kept for another attempt.
pub(super) fn no_space(directory: &str, name: &[u8], size: u64, there: u64) -> Reason {
    let name = named(&shown(name), size);
    let what = match there {
        0 => format!(" for {name}"),
        there => format!(": {} of {name} are there", Size(there)),
    };
    let more = if there > 0 { " to resume" } else { "" };
    Reason {
        message: format!("no space left in {directory}{what}{FREE_SPACE}{more}"),
        errno: Some(Errno::NOSPC.raw_os_error()),
        // Removing a large file's part leaves room for other files.
        for_all: there > 0 || size <= LARGE,
        obstacle: None,
    }
}

/// Makes the reason for a read-only file system. With `root`, the directory is the one that everything goes into.
pub(super) fn read_only(directory: &str, root: bool) -> Reason {
    Reason {
        message: format!("{directory} is on a read-only file system"),
        errno: Some(Errno::ROFS.raw_os_error()),
        for_all: root,
        obstacle: None,
    }
}

/// Formats a file's name with its size, unless the size is zero, as a pipe's is.
pub(super) fn named(name: &str, size: u64) -> String {
    match size {
        0 => name.to_owned(),
        size => format!("{name} ({})", Size(size)),
    }
}

/// Advice if the target's disk is full.
pub(super) const FREE_SPACE: &str = ". Any existing file is unchanged; free some space and copy again";

/// A number of bytes, shown in a fitting unit.
pub(super) struct Size(pub(super) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64 / 1024.0;
        let mut nth = 0;
        while value >= 1024.0 && nth + 1 < units.len() {
            value /= 1024.0;
            nth += 1;
        }
        match self.0 {
            0..1024 => write!(f, "{} B", self.0),
            _ => write!(f, "{value:.1} {}", units[nth]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_named_with_what_is_there() {
        let said = |there| no_space("web1:/data", b"big.iso", 5 << 30, there).message;
        assert_eq!(
            said(12_900_000),
            "no space left in web1:/data: 12.3 MiB of big.iso (5.0 GiB) are there. Any existing file is unchanged; free some \
             space and copy again to resume"
        );
        assert_eq!(
            said(0),
            "no space left in web1:/data for big.iso (5.0 GiB). Any existing file is unchanged; free some space and copy \
             again"
        );
        assert_eq!(
            no_space("web1:/data", b"all.tar", 0, 0).message,
            "no space left in web1:/data for all.tar. Any existing file is unchanged; free some space and copy again"
        );
        assert_eq!(
            [0, 1023, 1024].map(|size| Size(size).to_string()),
            ["0 B", "1023 B", "1.0 KiB"]
        );
    }
}
