//! The caller's environment.

pub(crate) mod terminal;
pub(crate) mod vantage;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use terminal::CallersTerminal;
use vantage::Vantage;

/// The environment of a caller, which gives a request its meaning.
///
/// The daemon acts for callers in other directories and with other environments; its own has no effect. The whole
/// environment is sent, not a selection: `SendEnv`, `${VAR}`, `Match exec`, `ProxyCommand` and `LocalCommand` may read
/// any variable, and a missing one would silently change what ssh_config means.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct World {
    /// The absolute working directory, where relative paths of arguments and directives start.
    #[serde(with = "crate::os_bytes")]
    pub cwd: PathBuf,
    /// The file mode creation mask.
    pub umask: u32,
    /// The environment.
    #[serde(with = "crate::os_bytes::map")]
    pub env: BTreeMap<OsString, OsString>,
    /// The caller's namespaces: in others, the same names would mean other hosts and files.
    pub vantage: Vantage,
    /// The caller's limits.
    pub limits: Limits,
    /// The caller's terminal, if this process can reach it. Not serialized.
    #[serde(skip)]
    pub terminal: CallersTerminal,
}

/// The soft limits of setrlimit(2) that the daemon restores for programs that it runs, in the order of [`LIMITED`]; `None` for
/// no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Limits(pub [Option<u64>; LIMITED.len()]);

/// The resources of [`Limits`], with the option and the unit of a POSIX shell's `ulimit`.
pub const LIMITED: [(Resource, char, u64); 6] = [
    (Resource::Nofile, 'n', 1),
    (Resource::Core, 'c', 512),
    (Resource::Fsize, 'f', 512),
    (Resource::Cpu, 't', 1),
    (Resource::As, 'v', 1024),
    (Resource::Data, 'd', 1024),
];

impl Limits {
    /// Returns those of this process.
    #[must_use]
    pub fn current() -> Self {
        Self(LIMITED.map(|(resource, ..)| getrlimit(resource).current))
    }
}

impl World {
    /// Returns the environment of a process without limits, whose namespaces are not known.
    #[must_use]
    pub fn new(cwd: impl Into<PathBuf>, umask: u32, env: BTreeMap<OsString, OsString>) -> Self {
        Self {
            cwd: cwd.into(),
            umask,
            env,
            vantage: Vantage::default(),
            limits: Limits::default(),
            terminal: CallersTerminal::default(),
        }
    }

    /// Returns the environment of this process.
    ///
    /// # Errors
    /// The working directory cannot be determined, as without /proc.
    pub fn current() -> io::Result<Self> {
        // A deleted directory still has a name, at which there is nothing. ssh runs there, too.
        let cwd = std::env::current_dir().or_else(|_| std::fs::read_link("/proc/self/cwd"))?;
        Ok(Self::from_parts(cwd, std::env::vars_os().collect()))
    }

    /// Returns the environment of a part of this process that has its own variables, such as a worker thread of Node's.
    #[must_use]
    pub fn from_parts(cwd: PathBuf, env: BTreeMap<OsString, OsString>) -> Self {
        Self {
            vantage: Vantage::current(),
            limits: Limits::current(),
            ..Self::new(cwd, current_umask(), env)
        }
    }

    /// Returns the environment of another process as it was when its program started; `None` if it has ended or may not
    /// be examined.
    #[must_use]
    pub fn of_process(pid: u32) -> Option<Self> {
        let process = Path::new("/proc").join(pid.to_string());
        let environment = std::fs::read(process.join("environ")).ok()?;
        let variables = environment.split(|byte| *byte == 0).filter_map(|variable| {
            let equals = variable.iter().position(|byte| *byte == b'=')?;
            let [name, value] = [&variable[..equals], &variable[equals + 1..]].map(OsStr::from_bytes);
            Some((name.to_owned(), value.to_owned()))
        });
        let cwd = std::fs::read_link(process.join("cwd")).ok()?;
        let umask = umask_in(&process.join("status"))?;
        Some(Self {
            vantage: Vantage::of_process(pid)?,
            ..Self::new(cwd, umask, variables.collect())
        })
    }

    /// Returns the value of an environment variable.
    #[must_use]
    pub fn var(&self, name: impl AsRef<OsStr>) -> Option<&OsStr> {
        self.env.get(name.as_ref()).map(OsString::as_os_str)
    }

    /// Returns true if the user only allows shared connections ([`STRICT`](crate::STRICT)).
    #[must_use]
    pub fn must_share(&self) -> bool {
        self.var(crate::STRICT).is_some_and(|value| value == "1")
    }

    /// Returns the shell that runs the user's commands: SHELL, or `/bin/sh`.
    #[must_use]
    pub fn shell(&self) -> &OsStr {
        self.var("SHELL")
            .filter(|shell| !shell.is_empty())
            .unwrap_or("/bin/sh".as_ref())
    }

    /// Resolves `path` against the working directory.
    #[must_use]
    pub fn absolute(&self, path: &Path) -> PathBuf {
        self.cwd.join(path)
    }
}

/// Without the values: environments contain secrets, and this may be logged.
impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("cwd", &self.cwd)
            .field("umask", &format_args!("{:04o}", self.umask))
            .field("env", &self.env.keys())
            .finish()
    }
}

/// Returns the file mode mask. Linux has it in /proc; elsewhere reading it would mean changing it, which would race
/// with other threads, so the usual one is assumed.
pub fn current_umask() -> u32 {
    umask_in(Path::new("/proc/self/status")).unwrap_or(0o022)
}

/// Reads the mask from the second line, after a name of at most 64 bytes, which need not be UTF-8. One read is enough.
fn umask_in(status: &Path) -> Option<u32> {
    let mut start = [0; 256];
    let count = std::fs::File::open(status).ok()?.read(&mut start).ok()?;
    let mut lines = start[..count].split(|byte| *byte == b'\n');
    let umask = lines.find_map(|line| line.strip_prefix(b"Umask:"))?;
    u32::from_str_radix(str::from_utf8(umask).ok()?.trim(), 8).ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn the_mask_is_read_whatever_the_process_is_called() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let long = [
            &b"Name:\t"[..],
            &[0xe4; 64],
            b"\nUmask:\t0027\nState:\tR (running)\n",
        ]
        .concat();
        file.write_all(&long).unwrap();
        assert_eq!(umask_in(file.path()), Some(0o027));
    }

    #[test]
    fn a_world_shows_no_values() {
        let env = BTreeMap::from([("TOKEN".into(), "hunter2".into())]);
        let shown = format!("{:?}", World::new("/", 0o22, env));
        assert!(shown.contains("TOKEN") && !shown.contains("hunter2"), "{shown}");
    }
}
