//! The requester: the process at the other end of a socket, with the facts from proc(5).

use serde::Serialize;
use tokio::net::UnixStream;
use trunkline::Printable;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Asker {
    /// The uid of the process that connected to the daemon, or that has its own engine.
    uid: u32,
    /// Its process id at that moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    /// Its program: the file's path, or the process's name if that cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<String>,
    /// The program that started it, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    started_by: Option<String>,
    /// The user who logged in to this machine, if the kernel knows (`/proc/PID/loginuid`), which distinguishes people
    /// who share an account.
    #[serde(skip_serializing_if = "Option::is_none")]
    login_uid: Option<u32>,
}

impl Asker {
    /// Returns the process at the other end, with what can be found out.
    pub(crate) fn from_stream(stream: &UnixStream) -> Option<Self> {
        let peer = stream.peer_cred().ok()?;
        Some(Self::looked_at(peer.uid(), process_of(stream)))
    }

    pub(crate) fn looked_at(uid: u32, pid: Option<u32>) -> Self {
        let parent = pid.and_then(parent_of);
        Self {
            uid,
            pid,
            program: pid.and_then(program_of),
            started_by: parent.and_then(program_of),
            login_uid: pid.and_then(login_of),
        }
    }
}

/// Returns the id of the process that connected, at that moment.
pub fn process_of(stream: &UnixStream) -> Option<u32> {
    let pid = stream.peer_cred().ok()?.pid()?;
    u32::try_from(pid).ok()
}

/// Returns the names of a process and of its parent.
pub fn names(pid: Option<u32>) -> Vec<String> {
    let mut names = Vec::new();
    let mut next = pid;
    while let Some(pid) = next.filter(|pid| *pid > 1 && names.len() < 2) {
        let Some((name, parent)) = name_and_parent(pid) else {
            break;
        };
        names.push(name);
        next = parent;
    }
    names
}

/// Returns a process's program: its file, or its name if that cannot be read. The path shows if the file was updated or
/// removed since ("… (deleted)").
fn program_of(pid: u32) -> Option<String> {
    let file = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let named = file.map(|file| Printable::line(file.as_os_str().as_encoded_bytes()).into_string());
    named.or_else(|| Some(name_and_parent(pid)?.0))
}

/// Returns the parent process.
fn parent_of(pid: u32) -> Option<u32> {
    name_and_parent(pid)?.1.filter(|parent| *parent != 0)
}

/// Returns the user who logged in, if the kernel knows.
fn login_of(pid: u32) -> Option<u32> {
    let login = std::fs::read_to_string(format!("/proc/{pid}/loginuid")).ok()?;
    let login = login.trim().parse().ok()?;
    // No one logged in, as with a service.
    (login != u32::MAX).then_some(login)
}

fn name_and_parent(pid: u32) -> Option<(String, Option<u32>)> {
    parse_stat(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses `PID (NAME) STATE PARENT …`. The name may contain anything.
fn parse_stat(stat: &[u8]) -> Option<(String, Option<u32>)> {
    let begin = stat.iter().position(|byte| *byte == b'(')?;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let name = Printable::line(stat.get(begin + 1..end)?).into_string();
    let rest = str::from_utf8(stat.get(end + 1..)?).ok()?;
    let parent = rest.split_ascii_whitespace().nth(1)?.parse().ok();
    Some((name, parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_with_the_one_that_ran_it() {
        assert_eq!(
            parse_stat(b"12 (a) (b\x1b) S 7 1 1"),
            Some(("a) (b\\033".into(), Some(7)))
        );
        assert_eq!(parse_stat(b"12 a S 7"), None);
        let ourselves = std::process::id();
        assert!(!names(Some(ourselves)).is_empty());
        assert!(names(None).is_empty());
        assert_eq!(parent_of(ourselves), Some(std::os::unix::process::parent_id()));
    }
}
