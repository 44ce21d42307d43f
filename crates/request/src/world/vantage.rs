//! Where in the system a process stands.

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Where in the system a process stands, which decides what the same words mean to it: its namespaces and its root folder.
/// Two processes with equal ones reach the same networks, and mean the same files, users and host names.
///
/// The network's namespace decides who an address is; the mounts' and the root folder which files are meant (the
/// configuration, keys, `known_hosts`, the agent's socket); the users' who one is, and with it whose home folder; the one of
/// host names (UTS) `%l` and `%C` in paths. Namespaces of processes, IPC, time and control groups decide nothing of that.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Vantage {
    net: Option<Inode>,
    mnt: Option<Inode>,
    user: Option<Inode>,
    uts: Option<Inode>,
    root: Option<Inode>,
}

/// A device's and a file's number.
type Inode = (u64, u64);

impl Vantage {
    /// That of the calling thread: five `stat(2)`. What cannot be looked at is `None`, and equal to nothing that could;
    /// systems other than Linux have the root folder only.
    #[must_use]
    pub fn current() -> Self {
        Self {
            root: inode(Path::new("/")),
            ..Self::namespaces(Path::new("/proc/thread-self/ns"))
        }
    }

    /// That of another process; `None` where it has ended or may not be looked at.
    #[must_use]
    pub fn of_process(pid: u32) -> Option<Self> {
        let process = Path::new("/proc").join(pid.to_string());
        Some(Self {
            root: Some(inode(&process.join("root"))?),
            ..Self::namespaces(&process.join("ns"))
        })
    }

    fn namespaces(folder: &Path) -> Self {
        let of = |name: &str| inode(&folder.join(name));
        Self {
            net: of("net"),
            mnt: of("mnt"),
            user: of("user"),
            uts: of("uts"),
            root: None,
        }
    }

    /// What differs first between two; `None` where nothing does.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<Difference> {
        let differs = |of: fn(&Self) -> Option<Inode>| of(self) != of(other);
        [
            (Difference::Network, differs(|at| at.net)),
            (Difference::Mount, differs(|at| at.mnt)),
            (Difference::User, differs(|at| at.user)),
            (Difference::HostName, differs(|at| at.uts)),
            (Difference::Root, differs(|at| at.root)),
        ]
        .into_iter()
        .find_map(|(what, differs)| differs.then_some(what))
    }
}

/// In what two processes stand elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// The network namespace.
    Network,
    /// The mount namespace.
    Mount,
    /// The user namespace.
    User,
    /// The namespace of host names.
    HostName,
    /// The root folder.
    Root,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Network => "network namespace",
            Self::Mount => "mount namespace",
            Self::User => "user namespace",
            Self::HostName => "UTS namespace",
            Self::Root => "root directory",
        })
    }
}

/// Of what a path leads to: a link in `/proc/PID/ns` leads to the namespace itself.
fn inode(path: &Path) -> Option<Inode> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_stands_where_it_stands() {
        let here = Vantage::current();
        assert_eq!(here.difference(&Vantage::current()), None);
        #[cfg(target_os = "linux")]
        {
            assert!(here.net.is_some() && here.mnt.is_some() && here.user.is_some() && here.uts.is_some());
            assert_eq!(Vantage::of_process(std::process::id()), Some(here));
            assert_eq!(Vantage::of_process(u32::MAX), None);
        }
    }

    #[test]
    fn what_cannot_be_looked_at_is_elsewhere() {
        let here = Vantage::current();
        for (other, what) in [
            (
                Vantage {
                    net: Some((1, 1)),
                    ..here.clone()
                },
                Difference::Network,
            ),
            (
                Vantage {
                    mnt: Some((1, 1)),
                    ..here.clone()
                },
                Difference::Mount,
            ),
            (
                Vantage {
                    user: Some((1, 1)),
                    ..here.clone()
                },
                Difference::User,
            ),
            (
                Vantage {
                    uts: Some((1, 1)),
                    ..here.clone()
                },
                Difference::HostName,
            ),
            (
                Vantage {
                    root: None,
                    ..here.clone()
                },
                Difference::Root,
            ),
        ] {
            assert_eq!(here.difference(&other), Some(what));
            assert_eq!(other.difference(&here), Some(what));
        }
    }
}
