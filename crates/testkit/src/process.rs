//! A server process and everything it has started, ended together.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Error, program};

/// The environment variable that marks a fixture's sessions, so that they are found after their parent is gone.
pub(crate) const MARKER: &str = "TRUNKLINE_TESTKIT";

/// A running server. Dropping it ends the server, its children, and what they left behind in the background.
///
/// sshd gives each session a process group and a Unix session of its own, so there is no group to signal.
/// Descendants are found by walking `/proc`, and those whose parent is already gone by [`MARKER`] in their environment.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    root: Child,
    mark: Option<String>,
    leash: Leash,
}

impl ProcessTree {
    /// Starts `command`. `scratch` is deleted should the test program die without dropping this; `mark` is the
    /// value of [`MARKER`] that the server's sessions carry.
    pub(crate) fn spawn(
        command: &mut Command,
        scratch: &Path,
        mark: Option<String>,
    ) -> Result<ProcessTree, Error> {
        let mut root = command
            .stdin(Stdio::null())
            // Ctrl-C in the terminal must reach the test program alone: it, or the leash, ends the server.
            .process_group(0)
            .spawn()
            .map_err(|source| Error::Start {
                program: program::name(command),
                source,
            })?;
        let leash = Leash::around(root.id(), scratch).inspect_err(|_| {
            // Nobody would end it any more. That it has ended by itself is not an error.
            let _ = root.kill();
            let _ = root.wait();
        })?;
        Ok(ProcessTree { root, mark, leash })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.root.id()
    }

    pub(crate) fn has_exited(&mut self) -> bool {
        !matches!(self.root.try_wait(), Ok(None))
    }

    /// The processes that the server itself started: in sshd, one for each connection.
    pub(crate) fn children(&self) -> Vec<u32> {
        let root = self.root.id();
        processes()
            .into_iter()
            .filter(|process| process.parent == root)
            .map(|process| process.pid)
            .collect()
    }

    /// Everything that the server, or anything it started, has started and that still runs.
    pub(crate) fn descendants(&self) -> Vec<u32> {
        let all = processes();
        let mut found = HashSet::from([self.root.id()]);
        if let Some(mark) = &self.mark {
            found.extend(
                all.iter()
                    .map(|process| process.pid)
                    .filter(|&pid| is_marked(pid, mark)),
            );
        }
        // Children are not listed after their parents where process numbers have wrapped around: continue until
        // nothing is added.
        loop {
            let before = found.len();
            found.extend(
                all.iter()
                    .filter(|p| found.contains(&p.parent))
                    .map(|p| p.pid)
                    .collect::<Vec<_>>(),
            );
            if found.len() == before {
                break;
            }
        }
        found.remove(&self.root.id());
        let mut found: Vec<u32> = found.into_iter().collect();
        found.sort_unstable();
        found
    }

    fn end(&mut self) {
        // Stopped, the listener cannot start a child between the listing and the kill.
        signal(self.root.id(), Signal::STOP);
        // Killing a process can reveal nothing new but children it started meanwhile; a few rounds find them all.
        for _ in 0..8 {
            let descendants = self.descendants();
            if descendants.is_empty() {
                break;
            }
            for pid in descendants {
                signal(pid, Signal::KILL);
            }
        }
        signal(self.root.id(), Signal::KILL);
        // The process is dead or dying; there is nothing left to do about an error.
        let _ = self.root.wait();
        self.leash.release();
    }
}

impl Drop for ProcessTree {
    fn drop(&mut self) {
        self.end();
    }
}

/// Sends a signal. A process that has ended meanwhile needs none, so the error is of no interest.
pub(crate) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Ends the server when the test program dies without a chance to: killed, aborted, or with the fixture in a `static`.
///
/// A shell waits on a pipe of which only the test program holds the other end. (The kernel's parent-death signal
/// would not do: it comes when the *thread* that started the server ends, and a test harness ends threads.)
#[derive(Debug)]
struct Leash {
    shell: Child,
    pipe: Option<ChildStdin>,
}

impl Leash {
    fn around(pid: u32, scratch: &Path) -> Result<Leash, Error> {
        let mut shell = Command::new("/bin/sh")
            .arg("-c")
            .arg(r#"read -r released && exit; kill -KILL "$1"; rm -rf -- "$2""#)
            .arg("trunkline-leash")
            .arg(pid.to_string())
            .arg(scratch)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|source| Error::Start {
                program: "/bin/sh".to_owned(),
                source,
            })?;
        let pipe = shell.stdin.take();
        Ok(Leash { shell, pipe })
    }

    fn release(&mut self) {
        if let Some(mut pipe) = self.pipe.take() {
            // Fails only when the shell is already gone, and then it has done its work.
            let _ = pipe.write_all(b"released\n");
        }
        let _ = self.shell.wait();
    }
}

struct Process {
    pid: u32,
    parent: u32,
}

/// All live processes of the machine; ended ones that nobody has waited for are left out.
fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| read_stat(pid).ok().flatten())
        .collect()
}

/// proc_pid_stat(5): `pid (name) state ppid …`. The name may hold spaces and parentheses, so count from its end.
fn read_stat(pid: u32) -> io::Result<Option<Process>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let Some((_, after_name)) = stat.rsplit_once(')') else {
        return Ok(None);
    };
    let mut fields = after_name.split_ascii_whitespace();
    let state = fields.next();
    let parent = fields.next().and_then(|parent| parent.parse().ok());
    Ok(match (state, parent) {
        (Some("Z" | "X"), _) | (_, None) => None,
        (_, Some(parent)) => Some(Process { pid, parent }),
    })
}

fn is_marked(pid: u32, mark: &str) -> bool {
    let wanted = format!("{MARKER}={mark}");
    fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
        environment
            .split(|&byte| byte == 0)
            .any(|entry| entry == wanted.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_that_left_the_process_group_end_with_the_server() {
        let dir = tempfile::tempdir().unwrap();
        let mark = format!("mark-{}", dir.path().display());
        let mut command = Command::new("/bin/sh");
        // The first child keeps its parent, the second loses it at once and is found by the marker alone.
        command
            .args(["-c", "setsid sleep 1000 & (setsid sleep 1001 &) ; wait"])
            .env(MARKER, &mark);
        let tree = ProcessTree::spawn(&mut command, dir.path(), Some(mark)).unwrap();
        let descendants = loop {
            let descendants = tree.descendants();
            let sleeping = descendants.iter().filter(|pid| {
                fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with("sleep"))
            });
            if sleeping.count() == 2 {
                break descendants;
            }
            std::thread::yield_now();
        };
        drop(tree);
        for pid in descendants {
            let gone = loop {
                // Killed is not yet gone: init, or a subreaper, has to collect the orphan; a zombie counts as gone.
                match read_stat(pid) {
                    Ok(Some(_)) => std::thread::yield_now(),
                    Ok(None) | Err(_) => break true,
                }
            };
            assert!(gone);
        }
    }

    #[test]
    fn the_leash_ends_the_server_when_its_holder_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = dir.path().join("scratch");
        fs::create_dir(&scratch).unwrap();
        let mut server = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut leash = Leash::around(server.id(), &scratch).unwrap();
        drop(leash.pipe.take()); // what the kernel does for a program that dies
        leash.shell.wait().unwrap();
        assert!(!server.wait().unwrap().success());
        assert!(!scratch.exists());
    }
}
