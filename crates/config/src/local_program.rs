//! Programs on this machine that are run for a request: in its caller's world, whatever the world of this process is.
//!
//! A child has its standard streams and no other descriptor: all others are close-on-exec. Environment and folder are set as
//! it starts. The file mode mask and the limits belong to a process as a whole and cannot be set between fork and exec
//! without `unsafe`; where they differ from the caller's, which they do in the daemon, a shell sets them and becomes the
//! program.

use std::ffi::OsStr;
use std::fmt::Write as _;

use rustix::process::{Resource, getrlimit};
use tokio::process::Command;

use trunkline_request::{Limits, World, current_umask};

/// `program` in `world`. Arguments and streams are the caller's to add.
pub fn local_program(program: impl AsRef<OsStr>, world: &World) -> Command {
    let mut command = match restored(world) {
        None => Command::new(program),
        Some(script) => {
            let mut command = Command::new("/bin/sh");
            command
                .arg("-c")
                .arg(format!("{script}exec \"$@\""))
                .arg("sh")
                .arg(program);
            command
        }
    };
    command.env_clear().envs(&world.env).current_dir(&world.cwd);
    command
}

/// The shell's commands that give a child what its caller has and this process has not; `None` where there is nothing.
fn restored(world: &World) -> Option<String> {
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

    async fn said(world: &World, script: &str) -> String {
        let mut command = local_program("sh", world);
        command
            .args(["-c", script, "sh", "a b", "$(c)"])
            .stdin(Stdio::null());
        let output = command.output().await.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[tokio::test]
    async fn a_program_has_its_callers_mask_limits_folder_and_environment() {
        let mut world = World::current().unwrap();
        world.cwd = "/tmp".into();
        world.env.insert("OF_THE_CALLER".into(), "here".into());
        world.umask = 0o027;
        world.limits = Limits {
            files: Some(64),
            core: Some(0),
        };
        let shown = said(
            &world,
            "umask; pwd; ulimit -S -n; ulimit -S -c; echo $OF_THE_CALLER; echo \"$@\"",
        )
        .await;
        let lines: Vec<&str> = shown.lines().map(str::trim).collect();
        assert_eq!(lines, ["0027", "/tmp", "64", "0", "here", "a b $(c)"]);
    }

    #[test]
    fn nothing_is_in_between_where_nothing_differs() {
        let world = World::current().unwrap();
        assert_eq!(restored(&world), None);
    }
}
