//! OpenSSH's own masters (ControlMaster, ControlPath): finds, inspects and stops them, and runs ssh over one.
//!
//! Hosts that need more than the engine can do stay connected this way, and users have masters of their own.

mod found;
mod process;

pub use crate::config::complaint;
pub use found::find_masters;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use openssh_mux_client::Connection;
use tokio::process::Command;
use trunkline_local::program::local_program;

use crate::config::{ConfigError, HostConfig, Request, World, ssh_program};
use crate::error::Error;

/// The time limit for a master's answer: it is a local process that answers at once.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// The time limit of `ssh -O exit`.
const EXIT_LIMIT: Duration = Duration::from_secs(5);

/// A master, by its control socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Master {
    /// The control socket.
    pub path: PathBuf,
    /// The host's name in its path, as typed or resolved, if ControlPath has a token for it.
    pub host: Option<String>,
}

/// The state of a master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MasterState {
    /// It answers.
    Alive(MasterReport),
    /// Nothing listens on the socket: its process ended without removing it.
    Stale,
    /// It accepts connections but does not answer as a master.
    Silent,
    /// There is no socket.
    Missing,
}

/// The known facts about a master that answers. All but its process id come from /proc, if available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterReport {
    /// Its process id.
    pub pid: u32,
    /// The time at which it began to listen.
    pub since: Option<SystemTime>,
    /// The peer's address and port; the master of a proxy command has none.
    pub peer: Option<String>,
    /// Its connected clients, each with a session or a forwarding.
    pub clients: Option<usize>,
}

impl Master {
    /// Returns the master whose socket is at `path`.
    pub fn at_path(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            host: None,
        }
    }

    /// Returns the master that the user's own configuration names, outside of `ours`, the directory of the mux sockets.
    #[must_use]
    pub fn of_user(host: &HostConfig, ours: &Path) -> Option<Self> {
        let path = host.control_path.as_ref()?;
        (path.parent() != Some(ours)).then(|| Self {
            path: path.clone(),
            host: Some(host.original_host.clone()),
        })
    }

    /// Checks whether it answers.
    pub async fn state(&self) -> MasterState {
        match tokio::time::timeout(ANSWER_LIMIT, self.ask()).await {
            Ok(Ok(report)) => MasterState::Alive(report),
            Ok(Err(openssh_mux_client::Error::IOError(error))) => match error.kind() {
                io::ErrorKind::NotFound => MasterState::Missing,
                io::ErrorKind::ConnectionRefused => MasterState::Stale,
                _ => MasterState::Silent,
            },
            Ok(Err(_)) | Err(_) => MasterState::Silent,
        }
    }

    async fn ask(&self) -> Result<MasterReport, openssh_mux_client::Error> {
        let mut connection = Connection::connect(&self.path).await?;
        let pid = connection.send_alive_check().await?.get();
        // Counted while this connection exists, which is one of them. The answer shows that the master has noticed all
        // earlier clients' ends.
        let clients = process::clients(&self.path).map(|count| count.saturating_sub(1));
        drop(connection);
        Ok(MasterReport {
            pid,
            since: self.path.metadata().and_then(|socket| socket.modified()).ok(),
            peer: process::peer(pid),
            clients,
        })
    }

    /// Stops the master and its sessions (`ssh -O exit`). Returns whether there was one.
    ///
    /// # Errors
    /// The system's ssh cannot be run, or it failed.
    pub async fn exit(&self, world: &World) -> Result<bool, Error> {
        match self.state().await {
            MasterState::Alive(_) => {}
            MasterState::Missing | MasterState::Stale | MasterState::Silent => return Ok(false),
        }
        let mut command = ssh(world)?;
        command
            .args(["-F", "none", "-S"])
            .arg(&self.path)
            .args(["-O", "exit", "master"]);
        let running = command.stdin(Stdio::null()).stdout(Stdio::null()).output();
        let output = tokio::time::timeout(EXIT_LIMIT, running)
            .await
            .map_err(|_| Error::Timeout {
                doing: format!("telling the master on {} to end", self.path.display()).into(),
                after: EXIT_LIMIT,
            })?
            .map_err(|source| Error::local("running ssh", source))?;
        if output.status.success() {
            return Ok(true);
        }
        Err(Error::SystemSsh {
            about: self.path.display().to_string(),
            said: complaint(&output.stderr),
            unattended: false,
        })
    }

    /// Removes the socket of a dead master. Returns whether it was one.
    ///
    /// # Errors
    /// It cannot be removed.
    pub async fn remove_stale(&self) -> Result<bool, Error> {
        if self.state().await != MasterState::Stale {
            return Ok(false);
        }
        std::fs::remove_file(&self.path)
            .map_err(|source| Error::local(format!("removing {}", self.path.display()), source))?;
        Ok(true)
    }

    /// Returns options with which ssh uses this master, or becomes it if there is none and stays for `idle` after its
    /// last session. With `confirms` it asks before each use, as with ControlMaster autoask.
    #[must_use]
    pub fn options(&self, idle: Duration, confirms: bool) -> Vec<OsString> {
        let master = if confirms { "autoask" } else { "auto" };
        vec![
            "-S".into(),
            self.path.clone().into(),
            "-o".into(),
            format!("ControlMaster={master}").into(),
            "-o".into(),
            format!("ControlPersist={}", idle.as_secs().max(1)).into(),
        ]
    }
}

/// Returns the system's ssh for a request, in its caller's environment, with `options` before the request's own, for
/// further arguments after the destination. Dropping the running process kills it.
///
/// # Errors
/// There is no ssh.
pub fn ssh_for(request: &Request, options: &[OsString]) -> Result<Command, Error> {
    let mut command = ssh(&request.world)?;
    command.args(options).args(&request.ssh_args);
    if let Some(port) = request.destination.port {
        command.arg("-p").arg(port.to_string());
    }
    command.arg("--").arg(request.destination.without_port());
    Ok(command)
}

/// Returns the caller's ssh in the caller's environment. It must not prompt: the daemon has no terminal of the user's.
fn ssh(world: &World) -> Result<Command, Error> {
    let program = ssh_program(world).map_err(|error: ConfigError| Error::Config(error.into()))?;
    let mut command = local_program(program, world);
    command.kill_on_drop(true);
    Ok(command)
}
