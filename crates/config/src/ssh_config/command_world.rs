//! The caller's surroundings, as the user's own commands on their behalf see them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};

use super::World;
use super::hex;

/// The caller's part of where a user's command leads: environment, working directory, umask and shell. Commands that
/// take part in who is reached or trusted (ProxyCommand, KnownHostsCommand, `Match exec`) make this a part of the
/// [`SharingKey`](super::SharingKey).
///
/// Of the environment it holds a digest: this may be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandWorld {
    cwd: PathBuf,
    umask: u32,
    shell: PathBuf,
    /// A digest of the variables that count, and how many they are.
    environment: [u8; 32],
    variables: usize,
    /// Of [`PASSED_OVER`], those that count because ssh_config mentions them.
    mentioned: BTreeSet<&'static str>,
}

/// Variables that do not count. Each is set anew for every process, window or pane, and says which of them it is or what it
/// did last, so that with them no two terminals would share. One that ssh_config or ssh's arguments mention does count.
///
/// What might tell a script where to go counts even where it keeps sessions apart: `SSH_CONNECTION` (the way back to
/// where the user came from), `TMUX`, `TERM`, `DISPLAY`, `SSH_AUTH_SOCK`.
const PASSED_OVER: [&str; 22] = [
    // Of shells. `PWD` is looked at by itself.
    "_",
    "OLDPWD",
    "SHLVL",
    // Of terminals: sizes, devices, windows.
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
    // Who answers questions, which decides no more about where one gets than a terminal does: Ansible's plugin sets it to
    // hand over a PIN while it logs in, and not for what runs then.
    "SSH_ASKPASS",
    "SSH_ASKPASS_REQUIRE",
    // `trunkline up` sets it to the ssh that asks. What that ssh read is in the key by itself.
    "TRUNKLINE_SSH",
];

impl CommandWorld {
    /// That of a caller, where ssh_config and arguments mention the variables that `is_mentioned` says.
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
                // The length keeps ("ab", "c") apart from ("a", "bc").
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

    /// Returns whether the same commands, run for `world`, would see the same.
    #[must_use]
    pub fn is_that_of(&self, world: &World) -> bool {
        Self::from_mentioned(world, self.mentioned.clone()) == *self
    }

    /// For the sharing key, and for people: no value of a variable but the shell's.
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

/// Returns whether a PWD is another name of the working directory, which might mean something. The directory's own name is
/// there already, and one that leads elsewhere is a program's that changed its directory and not the variable: shells set
/// it anew.
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
        World {
            cwd: "/work".into(),
            umask: 0o22,
            env: env.collect(),
            vantage: super::super::Vantage::default(),
            limits: crate::ssh_config::Limits::default(),
            terminal: Default::default(),
        }
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
