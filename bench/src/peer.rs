//! The clients that are measured: programs that share one command line (bench/README.md).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use trunkline_testkit::Sshd;

use crate::measure::output_text;

/// A client library, as a program.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    command: Vec<PathBuf>,
    /// The reason why it cannot be measured.
    missing: Option<String>,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Peers {
    pub(crate) engine: Peer,
    pub(crate) russh: Peer,
    pub(crate) go: Peer,
    pub(crate) node: Peer,
    pub(crate) aio: Peer,
    pub(crate) group: Peer,
    pub(crate) parallel_ssh: Peer,
    pub(crate) six_operations: Peer,
    pub(crate) ansible: Peer,
    pub(crate) asyncssh: Peer,
}

impl Peers {
    /// Looks for the programs. `directory/missing/NAME` says why one could not be had.
    pub(crate) fn find(directory: &Path, programs: &Path) -> anyhow::Result<Self> {
        let directory = directory
            .canonicalize()
            .with_context(|| format!("{}", directory.display()))?;
        let find = |name, key: &str, words: Vec<PathBuf>| {
            let reason = std::fs::read_to_string(directory.join("missing").join(key)).ok();
            // The last word is the file that only an installation brings.
            let absent = words.iter().find(|word| word.is_absolute() && !word.exists());
            let missing = reason
                .map(|reason| reason.trim().to_owned())
                .or_else(|| absent.map(|file| format!("there is no {}", file.display())));
            Peer {
                name,
                command: words,
                missing,
            }
        };
        let python = |name, script: &str| {
            find(
                name,
                "python",
                vec![directory.join("venv/bin/python"), script.into()],
            )
        };
        Ok(Self {
            engine: find(
                "trunkline (engine)",
                "engine",
                vec![programs.join("bench-peer-engine")],
            ),
            russh: find("russh", "russh", vec![programs.join("bench-peer-russh")]),
            go: find("Go x/crypto/ssh", "go", vec![directory.join("peer-go")]),
            node: find(
                "node ssh2",
                "node",
                vec!["node".into(), directory.join("node/peer.js")],
            ),
            aio: python("trunkline.aio", "bench/peers/python/peer.py"),
            group: python("trunkline.Group", "bench/peers/python/group.py"),
            parallel_ssh: python("parallel-ssh", "bench/peers/python/parallel.py"),
            six_operations: python("Python's libraries", "bench/six_operations/run.py"),
            asyncssh: python("asyncssh's SFTP", "bench/peers/python/asyncssh_copy.py"),
            ansible: find(
                "ansible-core",
                "python",
                vec![directory.join("venv/bin/ansible-playbook")],
            ),
        })
    }

    /// Those that cannot be measured, with the reason.
    pub(crate) fn missing(&self) -> Vec<(&'static str, String)> {
        [
            &self.engine,
            &self.russh,
            &self.go,
            &self.node,
            &self.parallel_ssh,
            &self.six_operations,
        ]
        .into_iter()
        .filter_map(|peer| Some((peer.name, peer.missing.clone()?)))
        .collect()
    }
}

impl Peer {
    /// A task for a server, at one of its addresses.
    pub(crate) fn task(
        &self,
        server: &Sshd,
        address: std::net::SocketAddr,
        task: &str,
        arguments: &[&str],
    ) -> anyhow::Result<Command> {
        let mut command = self.command()?;
        let key = server
            .client_keys()
            .first()
            .context("the server has no client key")?;
        command
            .arg(task)
            .arg(address.to_string())
            .arg(server.user())
            .arg(key.private_path());
        command.arg(server.known_hosts()).args(arguments);
        Ok(command)
    }

    /// The program, or why there is none.
    pub(crate) fn command(&self) -> anyhow::Result<Command> {
        if let Some(reason) = &self.missing {
            bail!("missing: {reason}");
        }
        let (program, arguments) = self.command.split_first().context("a peer without a program")?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_remove("SSH_AUTH_SOCK")
            .stdin(Stdio::null());
        Ok(command)
    }
}

/// Runs a peer and returns the numbers that it prints, one on a line. What has not ended within `limit` is killed,
/// and `None` is the answer.
pub(crate) fn numbers(mut command: Command, limit: Duration) -> anyhow::Result<Option<Vec<f64>>> {
    let name = command.get_program().display().to_string();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("running {name}"))?;
    let begun = Instant::now();
    // A peer prints a few kilobytes at most, which a pipe holds: it never waits for us.
    while child.try_wait()?.is_none() {
        if begun.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = output_text(&name, child.wait_with_output()?)?;
    Ok(Some(text.lines().map(str::parse).collect::<Result<_, _>>()?))
}
