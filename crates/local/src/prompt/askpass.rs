//! Questions through a program, as with OpenSSH's `SSH_ASKPASS`.

use super::turn::{Place, Turn};
use super::{Answer, MAX_ANSWER, Prompt, PromptKind, Prompter};
use rustix::fs::{Mode, OFlags};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use zeroize::Zeroizing;

/// A program that shows its argument to the user and prints the answer.
#[derive(Clone)]
pub struct Askpass {
    /// The program, searched in the `PATH` of `env` if it has no slash.
    pub program: PathBuf,
    /// Its whole environment, to which `SSH_ASKPASS_PROMPT` is added.
    pub env: Vec<(OsString, OsString)>,
    /// The condition for using it.
    pub require: Require,
}

/// The variables that name a display.
const DISPLAYS: [&str; 2] = ["DISPLAY", "WAYLAND_DISPLAY"];

/// `SSH_ASKPASS_REQUIRE`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Require {
    /// Only without a terminal, and with a display.
    #[default]
    IfNoTerminal,
    /// Never.
    Never,
    /// Instead of the terminal, if there is a display.
    Prefer,
    /// Always, with or without a display.
    Force,
}

impl Require {
    /// Parses the variable's value as ssh does, ignoring case and unknown words.
    pub fn parse(value: Option<&str>) -> Self {
        match value.map(str::to_ascii_lowercase).as_deref() {
            Some("never") => Self::Never,
            Some("prefer") => Self::Prefer,
            Some("force") => Self::Force,
            _ => Self::IfNoTerminal,
        }
    }
}

impl Askpass {
    /// Returns true if the program may be used: there is a display, or it is forced.
    pub fn is_allowed(&self) -> bool {
        match self.require {
            Require::Force => true,
            Require::Never => false,
            Require::Prefer | Require::IfNoTerminal => self.has_display(),
        }
    }

    /// Returns true if it is used even if there is a terminal.
    pub(super) fn is_preferred(&self) -> bool {
        matches!(self.require, Require::Force | Require::Prefer) && self.is_allowed()
    }

    /// Returns the place of its questions, which are asked one after the other. All programs on a display share one
    /// place.
    fn place(&self) -> Place {
        let displays = DISPLAYS.map(|name| self.variable(name).unwrap_or_default().to_owned());
        let program = match displays.iter().all(|display| display.is_empty()) {
            true => self.program.clone(),
            false => PathBuf::new(),
        };
        Place::Askpass(program, displays)
    }

    /// Returns the file whose lock keeps the user's other processes from asking meanwhile. `None` if it cannot be
    /// created: then their questions may appear at the same time, each with its host's name.
    fn lock_file(&self) -> Option<File> {
        let Place::Askpass(program, displays) = self.place() else {
            return None;
        };
        // Equal in every process: this hasher has no random key. Programs built with another Rust version may compute
        // another name; then two questions may appear at the same time, each with its host's name.
        let mut hasher = DefaultHasher::new();
        for part in [program.as_os_str(), &displays[0], &displays[1]] {
            hasher.write(part.as_encoded_bytes());
            hasher.write_u8(0);
        }
        let hash = hasher.finish();
        let uid = rustix::process::geteuid();
        // The same places as for the daemon's directory, but without a daemon that is not created.
        let home = self.variable("HOME").map(Path::new);
        let directories = [
            self.variable("XDG_RUNTIME_DIR").map(PathBuf::from),
            Some(format!("/run/user/{}", uid.as_raw()).into()),
            home.map(|home| home.join(".cache")),
            home.map(Path::to_owned),
        ];
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        directories
            .iter()
            .flatten()
            .filter(|directory| directory.is_absolute())
            .find_map(|directory| {
                let path = directory.join(format!(".trunkline-askpass-{hash:016x}.lock"));
                let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).ok()?;
                // Another user who can open the file could keep it locked.
                let found = rustix::fs::fstat(&file).ok()?;
                let ours = found.st_uid == uid.as_raw() && found.st_mode & 0o077 == 0;
                ours.then(|| file.into())
            })
    }

    fn has_display(&self) -> bool {
        DISPLAYS
            .iter()
            .any(|name| self.variable(name).is_some_and(|v| !v.is_empty()))
    }

    fn variable(&self, name: &str) -> Option<&OsStr> {
        self.env
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_os_str())
    }

    fn command(&self, text: &str, hint: Option<&str>) -> Command {
        let mut command = crate::program::without_descriptors(&self.program);
        command
            .arg(text)
            .env_clear()
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .env_remove("SSH_ASKPASS_PROMPT")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        if let Some(hint) = hint {
            command.env("SSH_ASKPASS_PROMPT", hint);
        }
        command
    }

    /// Runs the program. Its answer counts only if it exits successfully.
    async fn answer(&self, prompt: &Prompt) -> Option<Zeroizing<String>> {
        let hint = (prompt.kind == PromptKind::Confirm).then_some("confirm");
        let _turn = Turn::take(self.place(), self.lock_file()).await;
        let mut child = match self
            .command(&prompt.text_with_host(), hint)
            .stdout(Stdio::piped())
            .spawn()
        {
            Ok(child) => child,
            Err(error) => {
                tracing::warn!(program = %self.program.display(), %error, "cannot run the askpass program");
                return None;
            }
        };
        // Filled in place: growing the buffer would leave parts of the secret in memory.
        let mut said = Zeroizing::new(vec![0; MAX_ANSWER]);
        let mut len = 0;
        {
            let mut stdout = child.stdout.take()?;
            while len < said.len() {
                match stdout.read(&mut said[len..]).await {
                    Ok(0) => break,
                    Ok(n) => len += n,
                    Err(_) => return None,
                }
            }
            // Closed now, so that a program that prints endlessly dies of SIGPIPE.
        }
        if !child.wait().await.ok()?.success() {
            return None;
        }
        let end = said[..len]
            .iter()
            .position(|b| matches!(b, b'\r' | b'\n'))
            .unwrap_or(len);
        std::str::from_utf8(&said[..end])
            .ok()
            .map(|line| Zeroizing::new(line.to_owned()))
    }
}

impl Prompter for Askpass {
    fn ask<'a>(&'a self, prompt: &'a Prompt) -> Answer<'a> {
        Box::pin(self.answer(prompt))
    }
}

impl fmt::Debug for Askpass {
    /// Leaves out the environment, which may contain secrets of other programs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Askpass")
            .field("program", &self.program)
            .field("require", &self.require)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Standard, Terminal};
    use super::*;
    use tempfile::TempDir;

    fn askpass(script: &str, env: &[(&str, &str)], require: Require) -> (Askpass, TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("askpass");
        // Written by another process: a writable descriptor of ours could be inherited by a program that another test
        // is starting, and running this one would fail with ETXTBSY.
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$2\" && chmod 700 \"$2\"";
        let written = std::process::Command::new("sh")
            .args(["-c", write, "sh", script])
            .arg(&program)
            .status();
        assert!(written.unwrap().success());
        let env = env
            .iter()
            .map(|(key, value)| (key.into(), value.into()))
            .collect();
        (
            Askpass {
                program,
                env,
                require,
            },
            directory,
        )
    }

    async fn ask(askpass: &Askpass, kind: PromptKind) -> Option<String> {
        askpass
            .ask(&Prompt::new(kind, "Say: ", false))
            .await
            .map(|answer| answer.as_str().to_owned())
    }

    #[tokio::test]
    async fn the_first_line_is_the_answer() {
        let (askpass, _directory) = askpass("printf '%s\\r\\nmore\\n' \"got $1\"", &[], Require::Force);
        assert_eq!(
            ask(&askpass, PromptKind::Password).await.as_deref(),
            Some("got Say: ")
        );
    }

    #[tokio::test]
    async fn a_program_that_fails_or_is_missing_has_no_answer() {
        let (failing, _directory) = askpass("echo secret; exit 1", &[], Require::Force);
        assert_eq!(ask(&failing, PromptKind::Password).await, None);
        let missing = Askpass {
            program: "/nowhere/askpass".into(),
            ..failing
        };
        assert_eq!(ask(&missing, PromptKind::Password).await, None);
    }

    #[tokio::test]
    async fn a_program_that_never_stops_printing_is_ended() {
        let (endless, _directory) = askpass("exec yes", &[("PATH", "/usr/bin:/bin")], Require::Force);
        assert_eq!(ask(&endless, PromptKind::Password).await, None);
    }

    #[tokio::test]
    async fn a_confirmation_is_announced_and_nothing_else_is() {
        let script = "echo \"${SSH_ASKPASS_PROMPT-unset} ${MINE-unset} ${HOME-unset}\"";
        let (askpass, _directory) = askpass(
            script,
            &[("MINE", "1"), ("SSH_ASKPASS_PROMPT", "x")],
            Require::Force,
        );
        assert_eq!(
            ask(&askpass, PromptKind::Password).await.as_deref(),
            Some("unset 1 unset")
        );
        assert_eq!(
            ask(&askpass, PromptKind::Confirm).await.as_deref(),
            Some("confirm 1 unset")
        );
    }

    #[test]
    fn the_rules_of_ssh_decide_when_it_is_used() {
        let allowed = |env: &[(&str, &str)], require| {
            let (askpass, _directory) = askpass("", env, Require::parse(require));
            (askpass.is_allowed(), askpass.is_preferred())
        };
        let display: &[_] = &[("DISPLAY", ":0")];
        assert_eq!(allowed(&[], None), (false, false));
        assert_eq!(allowed(&[("DISPLAY", "")], None), (false, false));
        assert_eq!(allowed(display, None), (true, false));
        assert_eq!(
            allowed(&[("WAYLAND_DISPLAY", "wayland-0")], Some("bogus")),
            (true, false)
        );
        assert_eq!(allowed(display, Some("never")), (false, false));
        assert_eq!(allowed(display, Some("Prefer")), (true, true));
        assert_eq!(allowed(&[], Some("prefer")), (false, false));
        assert_eq!(allowed(&[], Some("FORCE")), (true, true));
    }

    #[tokio::test]
    async fn the_standard_prompter_falls_back_to_the_program_without_a_terminal() {
        let (program, _directory) = askpass("echo from askpass", &[], Require::IfNoTerminal);
        let standard = |more: &[(&str, &str)]| {
            let mut env = vec![("SSH_ASKPASS", program.program.to_str().unwrap())];
            env.extend_from_slice(more);
            Standard::from_env(env).on_terminal(Terminal::from_path("/nowhere/tty"))
        };
        let ask = async |standard: Standard, kind| {
            standard
                .ask(&Prompt::new(kind, "? ", false))
                .await
                .map(|answer| answer.as_str().to_owned())
        };
        let from_askpass = Some("from askpass".to_owned());
        assert_eq!(
            ask(standard(&[("DISPLAY", ":0")]), PromptKind::Password).await,
            from_askpass
        );
        assert_eq!(
            ask(standard(&[("DISPLAY", ":0")]), PromptKind::Confirm).await,
            from_askpass
        );
        assert_eq!(
            ask(
                standard(&[("SSH_ASKPASS_REQUIRE", "force")]),
                PromptKind::Password
            )
            .await,
            from_askpass
        );
        assert_eq!(ask(standard(&[]), PromptKind::Password).await, None);
        assert_eq!(ask(standard(&[]), PromptKind::Confirm).await, None);
    }
}
