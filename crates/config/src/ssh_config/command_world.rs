//! The caller's environment, as seen by the user's own commands on their behalf.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};

use super::World;
use super::hex;

/// The parts of the caller's process that may affect a user's command: environment, working directory, umask and shell.
/// If commands take part in who is reached or trusted (ProxyCommand, KnownHostsCommand, `Match exec`), this is part of
/// the [`SharingKey`](super::SharingKey).
///
/// It only contains a digest of the environment: it may be displayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandWorld {
    cwd: PathBuf,
    umask: u32,
    shell: PathBuf,
    /// A digest of the variables that count, and their number.
    environment: [u8; 32],
    variables: usize,
    /// The names in [`PASSED_OVER`] that count because ssh_config mentions them.
    mentioned: BTreeSet<&'static str>,
}

/// Variables that do not count. Each is set anew for every process, window or pane, to identify it or its last action,
/// so that otherwise no two terminals would share. A variable that ssh_config or ssh's arguments mention does count.
///
/// Variables that might affect a script's target count even if they keep sessions apart: `SSH_CONNECTION` (the way back
/// to the user's machine), `TMUX`, `TERM`, `DISPLAY`, `SSH_AUTH_SOCK`.
const PASSED_OVER: [&str; 22] = [
    // Set by shells. `PWD` is handled separately.
    "_",
    "OLDPWD",
    "SHLVL",
    // Set by terminals: sizes, devices, windows.
    "ALACRITTY_WINDOW_ID",
    "COLUMNS",
    "GHOSTTY_SURFACE_ID",
    "GNOME_TERMINAL_SCREEN",
    "GPG_TTY",
    "ITERM_SESSION_ID",
    "KITTY_WINDOW_ID",
    "KONSOLE_DBUS_SESSION",
    "KONSOLE_DBUS_WINDOW",
    "LINES",
    "SSH_TTY",
    "TERM_SESSION_ID",
    "TMUX_PANE",
    "WEZTERM_PANE",
    "WINDOW",
    "WINDOWID",
    // These say who answers questions, which affects the target no more than a terminal does. Ansible's plugin sets it
    // to pass a PIN while it logs in, but not for later commands.
    "SSH_ASKPASS",
    "SSH_ASKPASS_REQUIRE",
    // `trunkline up` sets it to the ssh that asks. That ssh's configuration is part of the key anyway.
    "TRUNKLINE_SSH",
];

impl CommandWorld {
    /// Returns that of a caller, if ssh_config and arguments mention the variables for which `is_mentioned` is true.
    pub(crate) fn from_world(world: &World, is_mentioned: impl Fn(&str) -> bool) -> Self {
        let mentioned = PASSED_OVER.into_iter().filter(|name| is_mentioned(name));
        Self::from_mentioned(world, mentioned.collect())
    }

    fn from_mentioned(world: &World, mentioned: BTreeSet<&'static str>) -> Self {
        let mut hash = Context::new(&SHA256);
        let mut variables = 0;
        for (name, value) in &world.env {
            let is_passed_over = PASSED_OVER
                .iter()
                .any(|passed| OsStr::new(passed) == name && !mentioned.contains(passed));
            if is_passed_over || (name == "PWD" && !is_other_name(Path::new(value), &world.cwd)) {
                continue;
            }
            for part in [name, value] {
                // The length distinguishes ("ab", "c") from ("a", "bc").
                hash.update(&(part.len() as u64).to_be_bytes());
                hash.update(part.as_bytes());
            }
            variables += 1;
        }
        let mut environment = [0; 32];
        environment.copy_from_slice(hash.finish().as_ref());
        Self {
            cwd: world.cwd.clone(),
            umask: world.umask,
            shell: world.shell().into(),
            environment,
            variables,
            mentioned,
        }
    }

    /// Returns whether the same commands would see the same in `world`.
    #[must_use]
    pub fn is_that_of(&self, world: &World) -> bool {
        Self::from_mentioned(world, self.mentioned.clone()) == *self
    }

    /// Returns this for the sharing key and for display, without the value of any variable but the shell's.
    pub(crate) fn explain(&self) -> [(&'static str, String); 4] {
        let digest = hex(&self.environment[..16]);
        [
            ("environment", format!("{} variables, {digest}", self.variables)),
            ("directory", format!("{:?}", self.cwd)),
            ("umask", format!("{:04o}", self.umask)),
            ("shell", format!("{:?}", self.shell)),
        ]
    }
}

/// Returns whether a PWD is another name of the working directory, which might matter. The directory's own name is
/// included anyway. One that leads elsewhere is left from a program that changed its directory without the variable:
/// shells set it anew.
fn is_other_name(pwd: &Path, cwd: &Path) -> bool {
    let identity = |path: &Path| {
        path.metadata()
            .map(|directory| (directory.dev(), directory.ino()))
            .ok()
    };
    pwd != cwd && identity(pwd).is_some_and(|found| identity(cwd) == Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(env: &[(&str, &str)]) -> World {
        let env = env.iter().map(|(name, value)| (name.into(), value.into()));
        World::new("/work", 0o22, env.collect())
    }

    fn command_world(world: &World) -> CommandWorld {
        CommandWorld::from_world(world, |_| false)
    }

    #[test]
    fn everything_that_a_command_may_go_by_counts() {
        let plain = command_world(&world(&[("A", "1"), ("SHELL", "/bin/sh")]));
        for other in [
            world(&[("A", "2"), ("SHELL", "/bin/sh")]),
            world(&[("SHELL", "/bin/sh")]),
            world(&[("A", "1"), ("SHELL", "/bin/zsh")]),
            world(&[("A", "1"), ("B", ""), ("SHELL", "/bin/sh")]),
            world(&[("A1", ""), ("SHELL", "/bin/sh")]),
            World {
                cwd: "/elsewhere".into(),
                ..world(&[("A", "1"), ("SHELL", "/bin/sh")])
            },
            World {
                umask: 0o77,
                ..world(&[("A", "1"), ("SHELL", "/bin/sh")])
            },
        ] {
            assert_ne!(command_world(&other), plain, "{other:?}");
            assert!(!plain.is_that_of(&other), "{other:?}");
        }
    }

    #[test]
    fn a_directories_other_name_counts_and_a_stale_one_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(directory.path(), &link).unwrap();
        let with = |pwd: &Path| World {
            cwd: directory.path().into(),
            ..world(&[("PWD", pwd.to_str().unwrap())])
        };
        let plain = command_world(&with(directory.path()));
        assert_ne!(command_world(&with(&link)), plain);
        assert_eq!(command_world(&with(Path::new("/"))), plain);
        assert_eq!(command_world(&with(Path::new("/no/such/directory"))), plain);
    }

    #[test]
    fn two_terminals_in_one_directory_are_alike() {
        let one = world(&[("A", "1"), ("PWD", "/work"), ("SHLVL", "1"), ("WINDOWID", "7")]);
        let other = world(&[
            ("A", "1"),
            ("OLDPWD", "/"),
            ("_", "/bin/trunkline"),
            ("TMUX_PANE", "%3"),
        ]);
        assert_eq!(command_world(&one), command_world(&other));
        assert!(command_world(&one).is_that_of(&other));
    }

    #[test]
    fn a_variable_that_the_configuration_mentions_counts() {
        let mentioned =
            |pane: &str| CommandWorld::from_world(&world(&[("TMUX_PANE", pane)]), |name| name == "TMUX_PANE");
        assert_ne!(mentioned("%1"), mentioned("%2"));
        assert!(!mentioned("%1").is_that_of(&world(&[("TMUX_PANE", "%2")])));
    }

    #[test]
    fn no_value_is_shown() {
        let commands = command_world(&world(&[("TOKEN", "hunter2")]));
        let shown = format!("{commands:?} {:?}", commands.explain());
        assert!(
            !shown.contains("hunter2") && shown.contains("1 variables"),
            "{shown}"
        );
    }
}
