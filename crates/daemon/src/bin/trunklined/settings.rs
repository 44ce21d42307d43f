//! `config.toml`: the user's settings for trunkline itself.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;
use trunkline::Settings;

/// How a setting stands in the file.
trait Written {
    type Form;

    fn read(form: Self::Form) -> Self;

    fn written(&self) -> String;
}

/// As itself.
macro_rules! written_plainly {
    ($($kind:ty),*) => {$(
        impl Written for $kind {
            type Form = Self;

            fn read(form: Self) -> Self {
                form
            }

            fn written(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

written_plainly!(bool, u32, u64, usize);

/// As seconds.
impl Written for Duration {
    type Form = u64;

    fn read(seconds: u64) -> Self {
        Self::from_secs(seconds)
    }

    fn written(&self) -> String {
        self.as_secs().to_string()
    }
}

impl Written for Vec<String> {
    type Form = Self;

    fn read(form: Self) -> Self {
        form
    }

    fn written(&self) -> String {
        format!("{self:?}")
    }
}

/// Makes of the list of settings, which has each field of [`Settings`] once, all that has to know each of them.
macro_rules! settings {
    ($($key:ident: $kind:ty, $meaning:literal;)*) => {
        /// The file. Every key may be left out; unknown keys are errors, so that a misspelt one is not silently nothing.
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        struct File {
            $($key: Option<<$kind as Written>::Form>,)*
        }

        impl From<File> for Settings {
            fn from(file: File) -> Self {
                let defaults = Self::default();
                Self {
                    $($key: file.$key.map_or(defaults.$key, <$kind as Written>::read),)*
                }
            }
        }

        /// Every setting: its key, its default and what it means.
        fn documentation() -> Vec<(&'static str, String, &'static str)> {
            let defaults = Settings::default();
            vec![$((stringify!($key), defaults.$key.written(), $meaning),)*]
        }
    };
}

settings! {
    idle_timeout: Duration, "Seconds that a connection without sessions is kept, where ControlPersist of ssh_config says nothing.";
    max_lanes: usize, "The most connections to one host.";
    sessions_per_lane: u32, "Sessions that a connection is expected to carry until the server has shown another limit (sshd's MaxSessions).";
    spare_sessions: u32, "The most sessions opened ahead on one connection, so that a command needs one round trip. 0 for none.";
    busy_above: u64, "A connection that carries more than this many bits a second gets no new sessions: they go to a quiet one.";
    busy_below: u64, "A busy connection counts as quiet again below this many bits a second.";
    handshakes_per_server: usize, "Handshakes at once to one server. sshd's MaxStartups begins to drop at ten.";
    handshakes: usize, "Handshakes at once in all.";
    early_flights: bool, "Send what needs no answer without waiting (to OpenSSH servers only).";
    early_stdin: bool, "Send up to 64 KiB of a command's input right behind the command (to OpenSSH servers only).";
    probe_after: Duration, "Seconds of silence after which trunkline checks that a connection is alive.";
    probe_limit: Duration, "Seconds after which a connection that does not answer is given up.";
    openssh_hosts: Vec<String>, "Patterns of hosts that always go through the system's ssh, such as [\"*.example.com\"].";
    confirm_hosts: Vec<String>, "Patterns of hosts whose connections need confirmation through SSH_ASKPASS for each use, as with `ControlMaster ask` of ssh_config.";
}

/// Prints the reference page, in Markdown.
pub(super) fn print() -> anyhow::Result<()> {
    let mut page = String::from("# config.toml\n\n| key | default | meaning |\n|---|---|---|\n");
    for (key, default, meaning) in documentation() {
        page += &format!("| `{key}` | {default} | {meaning} |\n");
    }
    match std::io::stdout().write_all(page.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Reads the file; a missing one means defaults.
pub(super) fn load(path: &Path) -> anyhow::Result<Settings> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Settings::default()),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    parse(&text).with_context(|| format!("{} (see `trunkline settings`)", path.display()))
}

fn parse(text: &str) -> anyhow::Result<Settings> {
    let settings = Settings::from(toml::from_str::<File>(text)?);
    anyhow::ensure!(settings.max_lanes > 0, "max_lanes must be at least 1");
    anyhow::ensure!(
        settings.busy_below <= settings.busy_above,
        "busy_below must not be above busy_above"
    );
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_the_file_is_documented_and_read() {
        for (key, default, meaning) in documentation() {
            assert!(!meaning.is_empty());
            assert_eq!(
                parse(&format!("{key} = {default}")).unwrap(),
                Settings::default(),
                "{key}"
            );
        }
        assert_eq!(
            parse("idle_timeout = 5").unwrap().idle_timeout,
            Duration::from_secs(5)
        );
    }

    #[test]
    fn misspelt_keys_and_impossible_values_are_errors() {
        assert!(parse("idle_timeot = 5").is_err());
        assert!(parse("max_lanes = 0").is_err());
        assert!(parse("busy_below = 2000000").is_err());
    }
}
