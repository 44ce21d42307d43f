//! Files for `ssh -F`, with a block for each server.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// One `Host` block of an `ssh_config`. Its `Display` is the block.
///
/// The block does not depend on the user's or the machine's own configuration: it sets the identities, the known hosts
/// and the absence of an agent.
#[derive(Debug, Clone)]
pub struct HostEntry {
    /// The name in `Host`.
    pub alias: String,
    /// `HostName` and `Port`.
    pub addr: SocketAddr,
    /// `User`.
    pub user: String,
    /// `IdentityFile`, in the order in which they are tried.
    pub identities: Vec<PathBuf>,
    /// `UserKnownHostsFile`.
    pub known_hosts: PathBuf,
    /// True if ssh may ask for a password (`BatchMode no`).
    pub may_ask: bool,
    /// Further lines, verbatim (`Compression yes`, …).
    pub extra: Vec<String>,
}

impl HostEntry {
    /// Returns the same host with another address, for example a relay's.
    #[must_use]
    pub fn with_address(mut self, addr: SocketAddr) -> HostEntry {
        self.addr = addr;
        self
    }

    /// Adds a line to the block.
    #[must_use]
    pub fn with_line(mut self, line: &str) -> HostEntry {
        self.extra.push(line.to_owned());
        self
    }
}

impl fmt::Display for HostEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Host {}", self.alias)?;
        // ssh uses the first value that it finds, so the test's lines go first.
        for line in &self.extra {
            writeln!(f, "    {line}")?;
        }
        writeln!(f, "    HostName {}", self.addr.ip())?;
        writeln!(f, "    Port {}", self.addr.port())?;
        writeln!(f, "    User {}", self.user)?;
        for identity in &self.identities {
            writeln!(f, "    IdentityFile \"{}\"", identity.display())?;
        }
        if self.identities.is_empty() {
            writeln!(f, "    IdentityFile none")?;
        }
        writeln!(f, "    IdentitiesOnly yes")?;
        writeln!(f, "    IdentityAgent none")?;
        writeln!(f, "    UserKnownHostsFile \"{}\"", self.known_hosts.display())?;
        writeln!(f, "    GlobalKnownHostsFile /dev/null")?;
        writeln!(f, "    StrictHostKeyChecking yes")?;
        writeln!(f, "    BatchMode {}", if self.may_ask { "no" } else { "yes" })
    }
}

/// Writes a file for `ssh -F` with a block for each of `hosts`.
///
/// # Errors
/// [`Error::File`] when the file cannot be written.
pub fn write_ssh_config(path: &Path, hosts: impl IntoIterator<Item = HostEntry>) -> Result<(), Error> {
    let text: String = hosts.into_iter().map(|host| format!("{host}\n")).collect();
    fs::write(path, text).map_err(|source| Error::File {
        path: path.to_owned(),
        source,
    })
}

/// Returns a command for the stock `ssh` with `-F config`, and without an agent or multiplexing from the environment.
/// Add a host and a command.
pub fn ssh(config: &Path) -> Command {
    let mut command = Command::new("ssh");
    command.arg("-F").arg(config).env_remove("SSH_AUTH_SOCK");
    command
}
