//! A server process and everything that it has started, which end together.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{Error, program};

/// The environment variable that marks a fixture's sessions, so that they can be found after their parent has ended.
pub(crate) const MARKER: &str = "TRUNKLINE_TESTKIT";

/// A running server. Dropping it ends the server, its children, and the processes that they left in the background.
///
/// sshd gives each session its own process group and Unix session, so there is no group to signal. Descendants are
/// found by walking `/proc`. Those whose parent has ended are found by [`MARKER`] in their environment.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    root: Child,
    mark: Option<String>,
    leash: Leash,
}

impl ProcessTree {
    /// Starts `command`. `scratch` is deleted if the test program dies without dropping this. `mark` is the value of
    /// [`MARKER`] in the server's sessions.
    pub(crate) fn spawn(
        command: &mut Command,
        scratch: &Path,
        mark: Option<String>,
    ) -> Result<ProcessTree, Error> {
        let mut root = command
            .stdin(Stdio::null())
            // Ctrl-C in the terminal must reach only the test program: it, or the leash, ends the server.
            .process_group(0)
            .spawn()
            .map_err(|source| Error::Start {
                program: program::name(command),
                source,
            })?;
        let leash = Leash::for_server(root.id(), mark.as_deref(), scratch).inspect_err(|_| {
            // Nothing else would end it any more. If it has already ended, the error is ignored.
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

    /// Returns the processes that the server itself started: in sshd, one for each connection.
    pub(crate) fn children(&self) -> Vec<u32> {
        let root = self.root.id();
        processes()
            .into_iter()
            .filter(|process| process.parent == root)
            .map(|process| process.pid)
            .collect()
    }

    /// Returns all running descendants of the server.
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
        // If process numbers have wrapped around, children may be listed before their parents: continue until nothing
        // is added.
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
        // While it is stopped, the listener cannot start a child between the listing and the kill.
        signal(self.root.id(), Signal::STOP);
        // After processes were killed, the only new ones can be children that they started meanwhile. A few rounds find
        // them all.
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
        // The process is dead or dying. Nothing is left to do about an error.
        let _ = self.root.wait();
        self.leash.release();
    }
}

impl Drop for ProcessTree {
    fn drop(&mut self) {
        self.end();
    }
}

/// Sends a signal. The error is ignored: a process that has ended meanwhile needs no signal.
pub(crate) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Makes a temporary directory with a short path. When the test program ends, for any reason, all processes with the
/// directory in their environment (a daemon has it in `TRUNKLINE_DIR`) end, and the directory is removed. Fixtures of
/// this crate do not need it.
///
/// # Errors
/// When the directory cannot be made, or the shell that does the clean-up cannot be started.
pub fn directory() -> Result<TempDir, Error> {
    /// The common prefix of the names, and the process that removes the directories.
    static DIRECTORIES: Mutex<Option<(String, Leash)>> = Mutex::new(None);
    let mut directories = DIRECTORIES.lock().unwrap_or_else(PoisonError::into_inner);
    if directories.is_none() {
        let name = format!("tl-{}-", std::process::id());
        let leash = Leash::around_directories(&std::env::temp_dir().join(&name))?;
        *directories = Some((name, leash));
    }
    let name = directories.as_ref().map(|(name, _)| name.as_str());
    let made = tempfile::Builder::new()
        .prefix(name.unwrap_or_default())
        .tempdir();
    Ok(made?)
}

/// Ends a server, and the processes with its mark, if the test program dies without dropping the fixture: because it
/// was killed or aborted, or because the fixture is in a `static`.
///
/// A shell waits on a pipe whose other end only the test program holds. (The kernel's parent-death signal would not
/// work: it is sent when the *thread* that started the server ends, and a test harness ends threads.)
#[derive(Debug)]
struct Leash {
    shell: Child,
    pipe: Option<ChildStdin>,
}

/// Kills in a few rounds: a killed process may have started another a moment before.
const KILL_THOSE_WITH: &str = r#"
    kill_those_with() {
        for round in 1 2 3; do
            grep "$@" /proc/[0-9]*/environ 2>/dev/null |
                while IFS=/ read -r _ _ pid _; do kill -KILL "$pid"; done
        done
    }
    read -r released && exit
"#;

impl Leash {
    /// Guards a server, the processes with this [`MARKER`], and a directory.
    fn for_server(pid: u32, mark: Option<&str>, scratch: &Path) -> Result<Leash, Error> {
        let mark = mark.map(|mark| format!("{MARKER}={mark}")).unwrap_or_default();
        Self::spawn(
            r#"kill -KILL "$1"; [ -z "$2" ] || kill_those_with -lzxF -- "$2"; rm -rf -- "$3""#,
            &[pid.to_string().as_ref(), mark.as_ref(), scratch.as_os_str()],
        )
    }

    /// Guards all directories with paths that begin like this, and the processes that name one in their environment.
    fn around_directories(beginning: &Path) -> Result<Leash, Error> {
        Self::spawn(
            r#"kill_those_with -lzF -- "$1"; rm -rf -- "$1"*"#,
            &[beginning.as_os_str()],
        )
    }

    fn spawn(script: &str, arguments: &[&OsStr]) -> Result<Leash, Error> {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", &format!("{KILL_THOSE_WITH}{script}"), "trunkline-leash"])
            .args(arguments)
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
            // This fails only if the shell is already gone, and then it has done its work.
            let _ = pipe.write_all(b"released\n");
        }
        let _ = self.shell.wait();
    }
}

struct Process {
    pid: u32,
    parent: u32,
}

/// Returns all live processes of the machine, without ended ones that their parent has not waited for.
fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| read_stat(pid).ok().flatten())
        .collect()
}

/// Reads a process's state, as in proc_pid_stat(5): `pid (name) state ppid …`. The name may contain spaces and
/// parentheses, so the fields are counted from its end.
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
        // The first child keeps its parent. The second loses its parent at once, and is found only by the marker.
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
                // A killed process is not gone at once: init, or a subreaper, has to collect the orphan. A zombie
                // counts as gone.
                match read_stat(pid) {
                    Ok(Some(_)) => std::thread::yield_now(),
                    Ok(None) | Err(_) => break true,
                }
            };
            assert!(gone);
        }
    }

    #[test]
    fn the_leash_ends_the_server_and_what_is_marked_when_its_holder_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = dir.path().join("scratch");
        fs::create_dir(&scratch).unwrap();
        let mark = format!("mark-{}", dir.path().display());
        let sleep = || {
            let mut sleep = Command::new("sleep");
            sleep.arg("1000");
            sleep
        };
        let mut server = sleep().spawn().unwrap();
        let mut marked = sleep().env(MARKER, &mark).spawn().unwrap();
        let mut other = sleep().env(MARKER, format!("{mark}x")).spawn().unwrap();
        let mut leash = Leash::for_server(server.id(), Some(&mark), &scratch).unwrap();
        drop(leash.pipe.take()); // what the kernel does for a program that dies
        leash.shell.wait().unwrap();
        assert!(!server.wait().unwrap().success());
        assert!(!marked.wait().unwrap().success());
        assert!(!scratch.exists());
        let still_runs = other.try_wait().unwrap().is_none();
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(still_runs, "it has another mark");
    }

    #[test]
    fn who_names_a_directory_ends_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let [mine, other] = ["mine-1", "other"].map(|name| dir.path().join(name));
        fs::create_dir(&mine).unwrap();
        fs::create_dir(&other).unwrap();
        let sleep = |directory: &Path| {
            let mut sleep = Command::new("sleep");
            sleep.arg("1000").env("TRUNKLINE_DIR", directory.join("state"));
            sleep.spawn().unwrap()
        };
        let (mut ends, mut stays) = (sleep(&mine), sleep(&other));
        let mut leash = Leash::around_directories(&dir.path().join("mine-")).unwrap();
        drop(leash.pipe.take());
        leash.shell.wait().unwrap();
        assert!(!ends.wait().unwrap().success());
        assert!(!mine.exists() && other.exists());
        let still_runs = stays.try_wait().unwrap().is_none();
        stays.kill().unwrap();
        stays.wait().unwrap();
        assert!(still_runs, "it names another directory");
    }
}
