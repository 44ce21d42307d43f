//! Local programs that are run for a request, in its caller's environment and not this process's.
//!
//! A child has only its standard streams: descriptors that this process opens are close-on-exec, and inherited ones are
//! closed by a shell. Environment and directory are set as the child starts. The file mode mask and the limits belong
//! to a whole process and cannot be set between fork and exec without `unsafe`. If they differ from the caller's, as in
//! the daemon, the shell sets them, and then executes the program.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{Access, AtFlags, CWD, OFlags, accessat};
use rustix::process::getrlimit;
use tokio::process::Command;

use trunkline_request::{LIMITED, Limits, World, current_umask};

/// Returns the command for `program` in `world`. The caller adds arguments and streams.
pub fn local_program(program: impl AsRef<OsStr>, world: &World) -> Command {
    let mut command = shell_command(&restore_commands(world).unwrap_or_default(), program.as_ref());
    command.env_clear().envs(&world.env).current_dir(directory(world));
    command
}

/// Returns the command for `program` with this process's environment, directory, mask and limits, and only the standard
/// streams.
pub(crate) fn without_descriptors(program: impl AsRef<OsStr>) -> Command {
    shell_command("", program.as_ref())
}

/// Returns the command for `program`, run by a shell if there are commands to run first or descriptors to close.
fn shell_command(script: &str, program: &OsStr) -> Command {
    static INHERITED: OnceLock<Vec<u32>> = OnceLock::new();
    let inherited = INHERITED.get_or_init(inheritable);
    if script.is_empty() && inherited.is_empty() {
        return Command::new(program);
    }
    // POSIX only has redirections of descriptors up to 9, and some shells support no more.
    let large = inherited.iter().any(|fd| *fd > 9) && Path::new("/bin/bash").exists();
    let mut script = script.to_owned();
    for fd in inherited.iter().filter(|fd| large || **fd <= 9) {
        let _ = write!(script, "exec {fd}>&-; ");
    }
    let mut command = Command::new(if large { "/bin/bash" } else { "/bin/sh" });
    if large {
        // As a POSIX shell, in whose units limits are counted.
        command.arg("--posix");
    }
    command
        .arg("-c")
        .arg(format!("{script}exec \"$@\""))
        .arg("sh")
        .arg(program);
    command
}

/// Returns the descriptors, except for the standard streams, that children inherit: those that this process inherited
/// itself, as Rust opens none. They do not change.
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

/// Returns the caller's directory, or the root if it was deleted or the user may not enter it. ssh works in such a
/// directory, too. A program finds no files by relative paths there, either way.
fn directory(world: &World) -> &Path {
    match accessat(CWD, &world.cwd, Access::EXEC_OK, AtFlags::EACCESS) {
        Ok(()) => &world.cwd,
        Err(_) => Path::new("/"),
    }
}

/// Returns the shell commands that give a child the caller's settings if this process has others; `None` if there are
/// none.
fn restore_commands(world: &World) -> Option<String> {
    let mut script = String::new();
    if world.umask != current_umask() {
        let _ = write!(script, "umask {:04o}; ", world.umask & 0o7777);
    }
    let limits = LIMITED.iter().zip(world.limits.0).zip(Limits::current().0);
    for ((&(resource, option, unit), wanted), _) in limits.filter(|((_, wanted), ours)| wanted != ours) {
        // A limit above this process's maximum is that maximum.
        let most = getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let limit = match wanted.unwrap_or(u64::MAX).min(most) {
            u64::MAX => "unlimited".to_owned(),
            limit => (limit / unit).to_string(),
        };
        let _ = write!(script, "ulimit -S -{option} {limit} 2>/dev/null; ");
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
        world.limits = Limits([64, 0, 1024 * 512, 900, 1 << 34, 1 << 33].map(Some));
        let script = "umask; pwd; for limit in n c f t v d; do ulimit -S -$limit; done; echo $OF_THE_CALLER; echo \"$@\"";
        let shown = run_and_read(&world, script).await;
        let lines: Vec<&str> = shown.lines().map(str::trim).collect();
        let limits = ["64", "0", "1024", "900", "16777216", "8388608"];
        assert_eq!(lines[..2], ["0027", "/tmp"]);
        assert_eq!(lines[2..8], limits);
        assert_eq!(lines[8..], ["here", "a b $(c)"]);
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
