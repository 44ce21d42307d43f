//! Programs on this machine that are run for a request: in its caller's world, whatever the world of this process is.
//!
//! A child has its standard streams and no other descriptor: what this process opens is close-on-exec, and what it was
//! started with a shell closes. Environment and directory are set as the child starts. The file mode mask and the limits
//! belong to a process as a whole and cannot be set between fork and exec without `unsafe`; where they differ from the
//! caller's, which they do in the daemon, the shell sets them. It becomes the program.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{Access, AtFlags, CWD, OFlags, accessat};
use rustix::process::{Resource, getrlimit};
use tokio::process::Command;

use trunkline_request::{Limits, World, current_umask};

/// `program` in `world`. Arguments and streams are the caller's to add.
pub fn local_program(program: impl AsRef<OsStr>, world: &World) -> Command {
    let mut command = shell_command(&restore_commands(world).unwrap_or_default(), program.as_ref());
    command.env_clear().envs(&world.env).current_dir(directory(world));
    command
}

/// `program` with nothing of this process's but its environment, directory, mask and limits: without descriptors beyond the
/// standard streams.
pub(crate) fn without_descriptors(program: impl AsRef<OsStr>) -> Command {
    shell_command("", program.as_ref())
}

/// `program`, behind the commands of a shell, where there are any, and those that close what would be inherited.
fn shell_command(script: &str, program: &OsStr) -> Command {
    static INHERITED: OnceLock<Vec<u32>> = OnceLock::new();
    let inherited = INHERITED.get_or_init(inheritable);
    if script.is_empty() && inherited.is_empty() {
        return Command::new(program);
    }
    // POSIX has redirections of descriptors up to 9 only, and some shells keep to that.
    let large = inherited.iter().any(|fd| *fd > 9) && Path::new("/bin/bash").exists();
    let mut script = script.to_owned();
    for fd in inherited.iter().filter(|fd| large || **fd <= 9) {
        let _ = write!(script, "exec {fd}>&-; ");
    }
    let mut command = Command::new(if large { "/bin/bash" } else { "/bin/sh" });
    command
        .arg("-c")
        .arg(format!("{script}exec \"$@\""))
        .arg("sh")
        .arg(program);
    command
}

/// The descriptors of this process, beyond the standard streams, that a child inherits: those that it has of whoever started
/// it, as Rust opens none. Which they are does not change.
fn inheritable() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc/self/fdinfo");
    let numbers = entries.into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let inherits = |fd: &u32| {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
        flags.is_some_and(|flags| flags & OFlags::CLOEXEC.bits() == 0)
    };
    numbers.filter(|fd| *fd > 2).filter(inherits).collect()
}

/// The caller's directory; the root where that was deleted or is closed to its user, whom ssh serves there all the same. A
/// program finds no file by a name that starts there, neither way.
fn directory(world: &World) -> &Path {
    match accessat(CWD, &world.cwd, Access::EXEC_OK, AtFlags::EACCESS) {
        Ok(()) => &world.cwd,
        Err(_) => Path::new("/"),
    }
}

/// The shell's commands that give a child what its caller has and this process has not; `None` where there is nothing.
fn restore_commands(world: &World) -> Option<String> {
    let mut script = String::new();
    if world.umask != current_umask() {
        let _ = write!(script, "umask {:04o}; ", world.umask & 0o7777);
    }
    let ours = Limits::current();
    // A limit above what this process may have is left as it is.
    if let Some(files) = world.limits.files.filter(|_| world.limits.files != ours.files) {
        let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let _ = write!(script, "ulimit -S -n {} 2>/dev/null; ", files.min(most));
    }
    if world.limits.core != ours.core {
        // POSIX has the shell count in blocks of 512 bytes.
        let blocks = world.limits.core.map(|bytes| (bytes / 512).to_string());
        let blocks = blocks.as_deref().unwrap_or("unlimited");
        let _ = write!(script, "ulimit -S -c {blocks} 2>/dev/null; ");
    }
    (!script.is_empty()).then_some(script)
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    async fn run_and_read(world: &World, script: &str) -> String {
        let mut command = local_program("sh", world);
        command
            .args(["-c", script, "sh", "a b", "$(c)"])
            .stdin(Stdio::null());
        let output = command.output().await.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[tokio::test]
    async fn a_program_has_its_callers_mask_limits_directory_and_environment() {
        let mut world = World::current().unwrap();
        world.cwd = "/tmp".into();
        world.env.insert("OF_THE_CALLER".into(), "here".into());
        world.umask = 0o027;
        world.limits = Limits {
            files: Some(64),
            core: Some(0),
        };
        let shown = run_and_read(
            &world,
            "umask; pwd; ulimit -S -n; ulimit -S -c; echo $OF_THE_CALLER; echo \"$@\"",
        )
        .await;
        let lines: Vec<&str> = shown.lines().map(str::trim).collect();
        assert_eq!(lines, ["0027", "/tmp", "64", "0", "here", "a b $(c)"]);
    }

    #[tokio::test]
    async fn a_directory_that_is_gone_keeps_no_program_from_running() {
        let mut world = World::current().unwrap();
        world.cwd = "/nobody/has/this".into();
        assert_eq!(run_and_read(&world, "pwd").await.trim(), "/");
    }

    #[test]
    fn nothing_is_in_between_where_nothing_differs() {
        let world = World::current().unwrap();
        assert_eq!(restore_commands(&world), None);
    }
}
