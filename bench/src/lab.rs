//! The place of measurements: directories, programs, servers, and daemons of trunkline that are nobody's.

use std::cell::Cell;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use tempfile::TempDir;
use trunkline::config::World;
use trunkline_control::client::Client;
use trunkline_daemon::place::Place;
use trunkline_daemon::protocol::{HostRequest, Reply, Request};
use trunkline_testkit::{LogLevel, SshdBuilder};

use crate::measure;
use crate::peer::Peers;

/// The directories and programs of one run.
pub(crate) struct Lab {
    /// Small sizes.
    pub(crate) quick: bool,
    pub(crate) peers: Peers,
    directory: PathBuf,
    programs: PathBuf,
    trunkline: PathBuf,
    dir: TempDir,
    daemons: Cell<u32>,
}

impl Lab {
    pub(crate) fn new(directory: &Path, programs: &Path, quick: bool) -> anyhow::Result<Self> {
        let programs = programs
            .canonicalize()
            .with_context(|| format!("{}", programs.display()))?;
        let trunkline = programs.join("trunkline");
        anyhow::ensure!(trunkline.exists(), "{} has not been built", trunkline.display());
        let dir = trunkline_testkit::directory()?;
        Ok(Self {
            quick,
            peers: Peers::find(directory, &programs)?,
            directory: directory.to_owned(),
            programs,
            trunkline,
            dir,
            daemons: Cell::new(0),
        })
    }

    pub(crate) fn size<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Returns the directory of reports.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Another of the workspace's programs.
    pub(crate) fn program(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.programs.join(name);
        anyhow::ensure!(path.exists(), "{} has not been built", path.display());
        Ok(path)
    }

    /// A file of the run's own.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A server as Debian sets it up, but quiet, and willing to meet many at once.
    pub(crate) fn server(&self) -> SshdBuilder {
        trunkline_testkit::Sshd::builder()
            .log_level(LogLevel::Info)
            .config("MaxStartups 4000")
    }

    /// A daemon that has never run: its directory is empty.
    pub(crate) fn daemon(&self) -> anyhow::Result<Daemon> {
        self.daemon_with("")
    }

    /// The same, with these lines in its `config.toml`.
    pub(crate) fn daemon_with(&self, settings: &str) -> anyhow::Result<Daemon> {
        let number = self.daemons.get();
        self.daemons.set(number + 1);
        let dir = self.path(&format!("d{number}"));
        std::fs::create_dir(&dir)?;
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700))?;
        std::fs::write(dir.join("config.toml"), settings)?;
        Ok(Daemon {
            dir,
            program: self.trunkline.clone(),
        })
    }
}

/// A daemon's directory. Whatever runs in it ends when this is dropped.
pub(crate) struct Daemon {
    dir: PathBuf,
    program: PathBuf,
}

impl Daemon {
    /// The program, with this daemon. No agent, and no other daemon, takes part.
    pub(crate) fn trunkline(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("TRUNKLINE_DIR", &self.dir)
            .env_remove("SSH_AUTH_SOCK")
            .env_remove("TRUNKLINE_OFF");
        command
    }

    /// `trunkline ssh -F config alias command`
    pub(crate) fn ssh(&self, config: &Path, alias: &str, command: &str) -> Command {
        let mut ssh = self.trunkline();
        ssh.arg("ssh").arg("-F").arg(config).args([alias, command]);
        ssh
    }

    /// Serves stock ssh clients of a host, and returns the socket.
    pub(crate) fn listen(&self, config: &Path, alias: &str) -> anyhow::Result<PathBuf> {
        let place = Place::find(|name| (name == "TRUNKLINE_DIR").then(|| self.dir.clone()))?;
        if !place.socket().exists() {
            // Whoever starts the daemon is its parent, and this process waits for none.
            measure::time(&mut self.ssh(config, alias, "true"))?;
        }
        let mut world = World::current()?;
        world.env.remove(OsStr::new("SSH_AUTH_SOCK"));
        let host = HostRequest {
            destination: alias.parse()?,
            ssh_args: vec!["-F".into(), config.into()],
            world,
            answers_at_hand: false,
        };
        let path = self.mux().join(alias);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let mut client = Client::connect(&place, None).await?;
            let request = Request::MuxListen {
                host,
                path: Some(path.clone()),
                client: None,
            };
            client.send(&request).await?;
            match client.next().await? {
                Reply::Done => Ok(path),
                other => anyhow::bail!("{alias}: {other:?}"),
            }
        })
    }

    /// The socket on which it tells its metrics.
    pub(crate) fn metrics(&self) -> PathBuf {
        self.dir.join("metrics.sock")
    }

    /// The directory of the mux sockets.
    pub(crate) fn mux(&self) -> PathBuf {
        self.dir.join("mux")
    }

    /// A copy of a configuration, with what `trunkline setup ssh` writes at its end.
    pub(crate) fn with_stanza(&self, config: &Path) -> anyhow::Result<PathBuf> {
        let text = std::fs::read_to_string(config)?;
        let stanza = format!(
            "Match exec \"'{}' up\"\n    ControlMaster no\n    ControlPath {}/%r@%n:%p\n",
            self.program.display(),
            self.mux().display()
        );
        let path = self.dir.join("stanza");
        std::fs::write(&path, text + &stanza)?;
        Ok(path)
    }

    /// Lets a program of the benchmark find this daemon.
    pub(crate) fn serve(&self, command: &mut Command) {
        command
            .env("TRUNKLINE_DIR", &self.dir)
            .env_remove("TRUNKLINE_OFF");
    }

    /// Ends the daemon; what it remembers of hosts stays in the directory.
    pub(crate) fn stop(&self) -> anyhow::Result<()> {
        if let Some(pid) = self.pid() {
            measure::time(self.trunkline().args(["stop", "--now"]))?;
            // The directory's lock is the process's to the last: the next start must not meet it.
            while Path::new(&format!("/proc/{pid}")).exists() {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
        Ok(())
    }

    /// The process that was started with this directory in its environment.
    pub(crate) fn pid(&self) -> Option<u32> {
        let wanted = format!("TRUNKLINE_DIR={}", self.dir.display());
        let pids = std::fs::read_dir("/proc")
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.into_iter().find(|pid: &u32| {
            let is_ours = std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|variables| {
                variables
                    .split(|&byte| byte == 0)
                    .any(|one| one == wanted.as_bytes())
            });
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = words.split(|&byte| byte == 0);
            // A private one, of a command with --no-daemon, is not the directory's.
            is_ours
                && words
                    .next()
                    .is_some_and(|program| program.ends_with(b"trunklined"))
                && words.next() != Some(b"--private")
        })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("stopping a daemon: {error:#}");
        }
    }
}

/// OpenSSH's own sharing: a master process and a socket.
pub(crate) struct Master {
    config: PathBuf,
    alias: String,
    socket: PathBuf,
}

impl Master {
    /// Starts one and leaves it in the background.
    pub(crate) fn start(lab: &Lab, config: &Path, alias: &str) -> anyhow::Result<Self> {
        let master = Self {
            config: config.to_owned(),
            alias: alias.to_owned(),
            socket: lab.path(&format!("mux-{alias}")),
        };
        // What stays in the background must not hold a pipe that somebody waits at.
        let log = std::fs::File::create(lab.path("master.log"))?;
        let mut first = master.command(&["-o", "ControlMaster=yes", "-o", "ControlPersist=yes"], "true");
        let status = first
            .stdin(Stdio::null())
            .stderr(log)
            .status()
            .context("running ssh")?;
        anyhow::ensure!(status.success(), "ssh as ControlMaster: {status}");
        Ok(master)
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// `ssh` through the master.
    pub(crate) fn ssh(&self, command: &str) -> Command {
        self.command(&[], command)
    }

    fn command(&self, options: &[&str], command: &str) -> Command {
        let mut ssh = trunkline_testkit::ssh(&self.config);
        ssh.arg("-o")
            .arg(format!("ControlPath={}", self.socket.display()));
        ssh.args(options).args([&self.alias, command]);
        ssh
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        // One that has ended needs no asking.
        let _ = self.command(&["-O", "exit"], "").output();
    }
}
