//! An ssh-agent for a test, which can ask before a key is used.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use std::os::unix::fs::PermissionsExt as _;
use tempfile::TempDir;

use crate::log::PATIENCE;
use crate::process::ProcessTree;
use crate::{Error, KeyPair, program};

/// An ssh-agent for a test, which ends when it is dropped.
///
/// If a key requires confirmation, the question is answered as set by [`Agent::consent`], by a program that counts the
/// questions.
#[derive(Debug)]
pub struct Agent {
    // Dropped before the directory that holds its socket.
    _process: ProcessTree,
    dir: TempDir,
}

/// The conditions for the use of a key; none by default.
#[derive(Debug, Clone, Default)]
pub struct KeyConstraints {
    /// Forget the key after this time, in whole seconds (`ssh-add -t`).
    pub lifetime: Option<Duration>,
    /// Ask for confirmation before each signature (`ssh-add -c`).
    pub confirm: bool,
    /// Sign only for these hosts (`ssh-add -h`), with their keys in this `known_hosts` file.
    pub destinations: Option<(PathBuf, Vec<String>)>,
}

impl Agent {
    /// Starts an agent without keys.
    ///
    /// # Errors
    /// [`Error::MissingProgram`] when ssh-agent is missing, [`Error::Exited`] when it ends at once.
    pub fn start() -> Result<Agent, Error> {
        let dir = tempfile::Builder::new().prefix("trunkline-agent-").tempdir()?;
        let askpass = dir.path().join("askpass");
        // ssh-agent takes the exit status as the answer.
        let script = format!(
            "#!/bin/sh\ncd '{}' && echo \"$1\" >>asked && [ -e consent ] && sleep \"0$(cat consent)\"\n",
            dir.path().display()
        );
        fs::write(&askpass, script)?;
        fs::set_permissions(&askpass, fs::Permissions::from_mode(0o700))?;
        let socket = dir.path().join("agent");
        let mut command = Command::new(program::find("ssh-agent", "openssh-client")?);
        command
            .arg("-D")
            .arg("-a")
            .arg(&socket)
            .env("SSH_ASKPASS", &askpass)
            .env("SSH_ASKPASS_REQUIRE", "force")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut process = ProcessTree::spawn(&mut command, dir.path(), None)?;
        let started = Instant::now();
        while UnixStream::connect(&socket).is_err() {
            if process.has_exited() {
                return Err(Error::Exited {
                    program: "ssh-agent",
                    log: String::new(),
                });
            }
            if started.elapsed() > PATIENCE {
                let (what, seconds) = ("the agent's socket".to_owned(), PATIENCE.as_secs());
                return Err(Error::Timeout {
                    what,
                    seconds,
                    log: String::new(),
                });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let agent = Agent {
            _process: process,
            dir,
        };
        agent.consent(true)?;
        Ok(agent)
    }

    /// Starts an agent that holds `keys`, in this order and without constraints.
    ///
    /// # Errors
    /// As [`Agent::start`] and [`Agent::add`].
    pub fn with_keys<'a>(keys: impl IntoIterator<Item = &'a KeyPair>) -> Result<Agent, Error> {
        let agent = Agent::start()?;
        keys.into_iter()
            .try_for_each(|key| agent.add(key, &KeyConstraints::default()))?;
        Ok(agent)
    }

    /// Returns the path of the socket, for `SSH_AUTH_SOCK` or `IdentityAgent`.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("agent")
    }

    /// Adds a key, and its certificate if it has one.
    ///
    /// # Errors
    /// [`Error::Failed`] when ssh-add fails, for example because the key has a passphrase.
    pub fn add(&self, key: &KeyPair, constraints: &KeyConstraints) -> Result<(), Error> {
        let mut command = self.ssh_add()?;
        if let Some(lifetime) = constraints.lifetime {
            command.args(["-t", &lifetime.as_secs().to_string()]);
        }
        if constraints.confirm {
            command.arg("-c");
        }
        if let Some((known_hosts, hosts)) = &constraints.destinations {
            command.arg("-H").arg(known_hosts);
            hosts.iter().for_each(|host| {
                command.args(["-h", host]);
            });
        }
        program::run(command.arg("-q").arg(key.private_path())).map(drop)
    }

    /// Removes a key.
    ///
    /// # Errors
    /// [`Error::Failed`] when the agent does not hold it.
    pub fn remove(&self, key: &KeyPair) -> Result<(), Error> {
        program::run(self.ssh_add()?.arg("-qd").arg(key.private_path())).map(drop)
    }

    /// Returns the public keys that it holds, as `algorithm base64 comment`.
    ///
    /// # Errors
    /// When ssh-add is missing.
    pub fn keys(&self) -> Result<Vec<String>, Error> {
        // For an empty agent, ssh-add returns status 1 and prints a message on standard output.
        let output = self.ssh_add()?.arg("-L").output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(if output.status.success() {
            text.lines().map(str::to_owned).collect()
        } else {
            Vec::new()
        })
    }

    /// Sets the answer from now on for keys with [`KeyConstraints::confirm`]. At first their use is allowed.
    ///
    /// # Errors
    /// When the answer cannot be written to its file.
    pub fn consent(&self, granted: bool) -> Result<(), Error> {
        let path = self.dir.path().join("consent");
        if granted {
            fs::write(path, "")?;
        } else if path.exists() {
            fs::remove_file(path)?;
        }
        Ok(())
    }

    /// Allows their use from now on, after a delay, as a person would.
    ///
    /// # Errors
    /// When the answer cannot be written to its file.
    pub fn consent_after(&self, thought: Duration) -> Result<(), Error> {
        fs::write(self.dir.path().join("consent"), thought.as_secs().to_string())?;
        Ok(())
    }

    /// Returns the number of questions for confirmation so far.
    pub fn confirmations(&self) -> usize {
        fs::read_to_string(self.dir.path().join("asked"))
            .map_or(0, |asked| asked.matches("Allow use of key").count())
    }

    /// Returns the agent's own directory, which is deleted with it.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn ssh_add(&self) -> Result<Command, Error> {
        let mut command = Command::new(program::find("ssh-add", "openssh-client")?);
        command.env("SSH_AUTH_SOCK", self.socket()).stderr(Stdio::piped());
        Ok(command)
    }
}
