//! The namespaces and the routing of a process.

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A process's view of the system, which decides the meaning of names: its namespaces, its root directory and the
/// routing of its connections. Processes with equal views reach the same networks, and mean the same files, users and
/// host names.
///
/// The network namespace decides who an address is; the mount namespace and the root directory which files are meant
/// (the configuration, keys, `known_hosts`, the agent's socket); the user namespace who the user is, and with it the
/// home directory; the UTS namespace `%l` and `%C` in paths. The namespaces of processes, IPC, time and control groups
/// affect none of this. A control group does if it stands for a VRF (`ip vrf exec`), or has a class of its own
/// (net_cls, net_prio), by which rules may route. Rules and programs that use other control groups are not detected.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Vantage {
    net: Option<Inode>,
    mnt: Option<Inode>,
    user: Option<Inode>,
    uts: Option<Inode>,
    root: Option<Inode>,
    /// The result of [`routing`].
    routing: Option<Box<str>>,
}

/// The numbers of a device and a file.
type Inode = (u64, u64);

impl Vantage {
    /// Returns the view of the calling thread, with five calls of `stat(2)`. A part that cannot be examined is `None`,
    /// which differs from every known value. Other systems than Linux have only the root directory.
    #[must_use]
    pub fn current() -> Self {
        Self {
            root: inode(Path::new("/")),
            ..Self::through_proc(Path::new("/proc/thread-self"))
        }
    }

    /// Returns the view of another process; `None` if it has ended or may not be examined.
    #[must_use]
    pub fn of_process(pid: u32) -> Option<Self> {
        let process = Path::new("/proc").join(pid.to_string());
        Some(Self {
            root: Some(inode(&process.join("root"))?),
            ..Self::through_proc(&process)
        })
    }

    fn through_proc(process: &Path) -> Self {
        let of = |name: &str| inode(&process.join("ns").join(name));
        let groups = std::fs::read(process.join("cgroup"));
        Self {
            net: of("net"),
            mnt: of("mnt"),
            user: of("user"),
            uts: of("uts"),
            root: None,
            routing: groups.ok().map(|groups| routing(&groups).into()),
        }
    }

    /// Returns the first difference, if there is one.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<Difference> {
        let differs = |of: fn(&Self) -> Option<Inode>| of(self) != of(other);
        let routes_differ = self.routing != other.routing;
        [
            (Difference::Network, differs(|at| at.net)),
            (Difference::Routing, routes_differ),
            (Difference::Mount, differs(|at| at.mnt)),
            (Difference::User, differs(|at| at.user)),
            (Difference::HostName, differs(|at| at.uts)),
            (Difference::Root, differs(|at| at.root)),
        ]
        .into_iter()
        .find_map(|(what, differs)| differs.then_some(what))
    }
}

/// A difference between two views.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Difference {
    /// The network namespace.
    Network,
    /// The VRF, or the class of network traffic.
    Routing,
    /// The mount namespace.
    Mount,
    /// The user namespace.
    User,
    /// The namespace of host names.
    HostName,
    /// The root directory.
    Root,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Network => "network namespace",
            Self::Routing => "VRF or network class",
            Self::Mount => "mount namespace",
            Self::User => "user namespace",
            Self::HostName => "UTS namespace",
            Self::Root => "root directory",
        })
    }
}

/// Returns the part of a process's control groups (`/proc/PID/cgroup`) that decides the routing of its connections: the
/// VRF in which it was started, which is the end of a path (iproute2's ipvrf.c, `vrf_identify`), and its groups of
/// net_cls and net_prio.
fn routing(groups: &[u8]) -> String {
    let groups = String::from_utf8_lossy(groups);
    let of_line = |line: &str| {
        // A line has a number, controllers and a path.
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        if controllers.is_empty() {
            let (_, vrf) = path.split_once("/vrf/")?;
            return Some(format!("vrf {vrf}"));
        }
        let is_of_network = controllers
            .split(',')
            .any(|name| matches!(name, "net_cls" | "net_prio"));
        (is_of_network && path != "/").then(|| format!("{controllers} {path}"))
    };
    let found: Vec<_> = groups.lines().filter_map(of_line).collect();
    found.join("\n")
}

/// Returns the inode of a path's target. A link in `/proc/PID/ns` leads to the namespace itself.
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
    fn a_vrf_and_a_class_of_traffic_are_a_place_and_other_control_groups_are_none() {
        let usual = "4:memory:/a\n3:net_cls,net_prio:/\n0::/user.slice/session-1.scope\n";
        for (groups, shown) in [
            (usual, ""),
            ("0::/\n", ""),
            ("0::/user.slice/session-7.scope/vrf/blue\n", "vrf blue"),
            ("3:net_cls,net_prio:/vpn\n0::/\n", "net_cls,net_prio /vpn"),
            ("5:net_prio:/p\n4:net_cls:/c:d\n", "net_prio /p\nnet_cls /c:d"),
            ("nonsense\n::\n", ""),
        ] {
            assert_eq!(routing(groups.as_bytes()), shown, "{groups}");
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
                    routing: Some("vrf blue".into()),
                    ..here.clone()
                },
                Difference::Routing,
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
