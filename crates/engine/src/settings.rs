//! The user's settings of the engine itself, apart from ssh_config.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};
use trunkline_request::hosts::nearest;
use trunkline_request::own;
use trunkline_text::line_number;

/// Generates everything that has to know each setting: the documented fields, the defaults, the parser and the
/// descriptions.
macro_rules! settings {
    ($($(#[doc = $meaning:literal])+ $key:ident: $kind:ty = $default:expr;)*) => {
        /// The engine's settings. The defaults suit both a person's machine and a control node with hundreds of hosts.
        ///
        /// Every key is optional; unknown keys are errors, so that a misspelt key is noticed.
        #[derive(Debug, Clone, PartialEq)]
        pub struct Settings {
            $(
                $(#[doc = $meaning])+
                pub $key: $kind,
            )*
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }

        impl Settings {
            /// Returns every setting, with its value and its default.
            #[must_use]
            pub fn all(&self) -> Vec<Setting> {
                let defaults = Self::default();
                vec![$(
                    Setting {
                        key: stringify!($key),
                        value: self.$key.to_text(),
                        default: defaults.$key.to_text(),
                        meaning: concat!($($meaning),+).trim_ascii(),
                    },
                )*]
            }

            /// Sets a setting from the file; fails with the allowed values.
            fn set(&mut self, key: &str, value: Spanned<DeValue<'_>>) -> Result<(), Problem> {
                match key {
                    $(stringify!($key) => self.$key = read(value)?,)*
                    _ => return Err(Problem::Unknown(nearest(key, [$(stringify!($key)),*]))),
                }
                Ok(())
            }
        }
    };
}

settings! {
    /// Seconds that a connection without sessions is kept, if ControlPersist of ssh_config does not say.
    idle_timeout: Duration = Duration::from_secs(600);
    /// Most connections to one host.
    max_lanes: usize = 16;
    /// Sessions that a connection is expected to carry until the server has shown another limit (sshd's MaxSessions).
    sessions_per_lane: u32 = 10;
    /// Most sessions opened ahead on one connection, so that a command needs one round trip. 0 for none.
    spare_sessions: u32 = 4;
    /// A connection that carries more than this many bits a second gets no new sessions: they go to a quiet one.
    busy_above: u64 = 1_250_000;
    /// A busy connection counts as quiet again below this many bits a second.
    busy_below: u64 = 750_000;
    /// Most handshakes at once with one server. sshd's MaxStartups begins to drop at ten.
    handshakes_per_server: usize = 8;
    // Each costs this side about a millisecond of CPU, and the servers much more.
    /// Most handshakes at once, to all servers together.
    handshakes: usize = 64;
    /// Send messages that need no earlier answer without waiting (to OpenSSH servers only).
    early_flights: bool = true;
    // RFC 4254 has a client wait for the window that sshd is about to open.
    /// Send up to 64 KiB of a command's input right behind the command (to OpenSSH servers only).
    early_stdin: bool = true;
    /// Seconds of silence after which trunkline checks that a connection is alive. 0 for never.
    probe_after: Duration = Duration::from_secs(60);
    // As long as a container needs to come back, and shorter than any firewall or NAT waits before it forgets.
    /// Seconds of silence after which a server is checked before the next command is sent, which costs one extra round
    /// trip: a command is not lost to a server that has restarted, or to a firewall that has forgotten the connection.
    /// 0 for never.
    ask_after: Duration = Duration::from_secs(5);
    /// Seconds to wait for the answer before the connection is given up, and for the answer to a command before others
    /// get another connection. A command that is still not answered after twice as long fails.
    probe_limit: Duration = Duration::from_secs(10);
    /// Seconds that an SFTP server other than OpenSSH's may leave a request unanswered while its connection is alive;
    /// then its session is ended. A third of that for the first answer, also from OpenSSH's. 0 for never.
    sftp_silence: Duration = Duration::from_secs(30);
    /// Seconds for which a copy that has lost its connections tries to reach the host again, before it fails.
    copy_resume_for: Duration = Duration::from_secs(30);
    /// MiB for the names that servers list and that copies keep, for all copies and listings together. A copy that needs more
    /// keeps the rest in temporary files in `/var/tmp`.
    names_memory: u32 = 64;
    /// Port of 127.0.0.1 on which the daemon serves its metrics to Prometheus, or to anyone else on this machine. 0 for
    /// none.
    metrics_port: u16 = 0;
    /// Record the work on hosts in the audit trail: `"off"`, `"on"`, or `"strict"`, which runs nothing that cannot be
    /// recorded.
    audit: AuditMode = AuditMode::Off;
    /// Bytes after which the audit trail continues in another file.
    audit_file_size: u64 = 16 * 1024 * 1024;
    /// Files of the audit trail that are kept; further ones are removed, the oldest first. 0 for all.
    audit_files: usize = 64;
    /// Patterns of hosts whose terminal sessions are recorded in the directory `recordings`: output only, no keys.
    record_hosts: Vec<String> = Vec::new();
    /// Patterns of hosts that always go through the system's ssh, such as `["*.example.com"]`.
    openssh_hosts: Vec<String> = Vec::new();
    /// Patterns of hosts whose connections need confirmation through SSH_ASKPASS for each use, as with `ControlMaster
    /// ask` of ssh_config. The SSH_ASKPASS is that of the program that made the connection, not of the one that wants
    /// to use it.
    confirm_hosts: Vec<String> = Vec::new();
    /// Path of the program that asks for such confirmation, instead of SSH_ASKPASS. Empty for none.
    confirm_askpass: String = String::new();
    /// Patterns of hosts that are reached over shared connections only, as with `TRUNKLINE_STRICT=1`: a command that
    /// cannot share one fails with the reason.
    strict_hosts: Vec<String> = Vec::new();
    /// Show keys typed in `trunkline ssh` before the server echoes them: `"adaptive"` (if the round trip takes 40 ms or
    /// more), `"always"` or `"never"`.
    predict: PredictMode = PredictMode::Adaptive;
    /// Patterns of hosts for which `predict` is `"always"`.
    predict_always_hosts: Vec<String> = Vec::new();
    /// Patterns of hosts for which `predict` is `"never"`, even if `predict_always_hosts` names them.
    predict_never_hosts: Vec<String> = Vec::new();
    /// Carry SFTP sessions over to a new connection when theirs is lost: those of `sftp`, `scp`, restic and others on
    /// the mux sockets, of `trunkline ssh -s`, and of the bindings through the daemon.
    sftp_resume: bool = false;
    /// Patterns of hosts for which `sftp_resume` is true.
    sftp_resume_hosts: Vec<String> = Vec::new();
    /// Patterns of hosts for which `sftp_resume` is false, even if `sftp_resume_hosts` names them.
    sftp_resume_never_hosts: Vec<String> = Vec::new();
    /// Seconds after which a lost SFTP session that could not be carried over is given up.
    sftp_resume_for: Duration = Duration::from_secs(300);
}

impl Settings {
    /// Reads `config.toml`; a missing file means the defaults. It has to be owned by this user or root ([`own`]).
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn read(path: &Path) -> Result<Self, SettingsError> {
        let text = match own::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.is_missing() => return Ok(Self::default()),
            Err(error) => return Err(SettingsError::Unreadable(path.to_owned(), error.into())),
        };
        Self::parse(&text).map_err(|(line, problem)| SettingsError::Invalid {
            file: path.to_owned(),
            line,
            problem,
        })
    }

    /// Parses the file's text; fails with a line number and the problem.
    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let line = |at: usize| line_number(text, at);
        let table = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            (line(at), format!("this is not valid TOML: {}", error.message()))
        })?;
        let mut given: Vec<_> = table.into_inner().into_iter().collect();
        given.sort_by_key(|(key, _)| key.span().start);
        let mut settings = Self::default();
        let mut lines = BTreeMap::new();
        for (key, value) in given {
            let (line, key) = (line(key.span().start), key.into_inner());
            let typed = text.get(value.span()).filter(|_| !value.get_ref().is_table());
            let typed = typed.map_or_else(String::new, |typed| format!("is {typed}; it "));
            settings.set(&key, value).map_err(|problem| {
                let problem = match problem {
                    Problem::Unknown(None) => {
                        format!("there is no setting {key}; `trunkline settings` lists them all")
                    }
                    Problem::Unknown(Some(near)) => {
                        format!("there is no setting {key}; did you mean {near}?")
                    }
                    Problem::NotAllowed(allowed) => format!("{key} {typed}must be {allowed}"),
                };
                (line, problem)
            })?;
            lines.insert(key.into_owned(), line);
        }
        let line = |key: &str| lines.get(key).copied().unwrap_or(0);
        for (key, is_none) in [
            ("max_lanes", settings.max_lanes == 0),
            ("names_memory", settings.names_memory == 0),
            ("probe_limit", settings.probe_limit.is_zero()),
        ] {
            if is_none {
                return Err((line(key), format!("{key} is 0; it must be at least 1")));
            }
        }
        let askpass = &settings.confirm_askpass;
        if !askpass.is_empty() && !askpass.starts_with('/') {
            return Err((
                line("confirm_askpass"),
                format!("confirm_askpass is {askpass:?}; it must be an absolute path"),
            ));
        }
        let (below, above) = (settings.busy_below, settings.busy_above);
        if below > above {
            return Err((
                line("busy_below").max(line("busy_above")),
                format!("busy_below ({below}) must not be above busy_above ({above})"),
            ));
        }
        Ok(settings)
    }
}

/// The problem in a line.
enum Problem {
    /// Unknown setting, with a known one of a similar name.
    Unknown(Option<&'static str>),
    /// Forbidden value, with the allowed ones.
    NotAllowed(&'static str),
}

/// A `config.toml` that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// It exists but cannot be read.
    #[error("reading {}: {}", .0.display(), .1)]
    Unreadable(PathBuf, io::Error),
    /// It is invalid TOML, or has an unknown key or an impossible value.
    #[error("{} line {line}: {problem}", file.display())]
    Invalid {
        /// The file.
        file: PathBuf,
        /// The line, from 1 on.
        line: usize,
        /// The problem, and the allowed values.
        problem: String,
    },
}

/// The recording of what runs on hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditMode {
    /// Nothing is recorded.
    #[default]
    Off,
    /// Everything is recorded as far as possible.
    On,
    /// Everything is recorded; what cannot be recorded does not run.
    Strict,
}

/// The display of typed keys before the server echoes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PredictMode {
    /// Only on distant hosts.
    #[default]
    Adaptive,
    /// On all hosts.
    Always,
    /// On no host.
    Never,
}

/// A setting, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its key.
    pub key: &'static str,
    /// Its value, as written in the file.
    pub value: String,
    /// Its default, as written in the file.
    pub default: String,
    /// Its meaning.
    pub meaning: &'static str,
}

/// The notation of a setting.
trait Written {
    type Form;

    /// The allowed values, for people.
    const ALLOWED: &'static str;

    /// Returns the value, or `None` if it is not allowed.
    fn read(form: Self::Form) -> Option<Self>
    where
        Self: Sized;

    fn to_text(&self) -> String;
}

fn read<T>(value: Spanned<DeValue<'_>>) -> Result<T, Problem>
where
    T: Written<Form: for<'de> Deserialize<'de>>,
{
    let form = T::Form::deserialize(ValueDeserializer::from(value)).ok();
    form.and_then(T::read).ok_or(Problem::NotAllowed(T::ALLOWED))
}

/// Types that are written as themselves.
macro_rules! written_plainly {
    ($($kind:ty: $allowed:literal $(, to $most:literal)?;)*) => {$(
        impl Written for $kind {
            type Form = Self;

            const ALLOWED: &'static str = $allowed;

            fn read(form: Self) -> Option<Self> {
                Some(form)$(.filter(|form| *form <= $most))?
            }

            fn to_text(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

// The limits are more than any machine has, and fit all counters.
written_plainly!(
    bool: "true or false";
    u16: "a whole number from 0 to 65535";
    u32: "a whole number from 0 to 1000000", to 1_000_000;
    u64: "a whole number, 0 or more";
    usize: "a whole number from 0 to 1000000", to 1_000_000;
);

impl Written for AuditMode {
    type Form = Self;

    const ALLOWED: &'static str = r#""off", "on" or "strict""#;

    fn read(form: Self) -> Option<Self> {
        Some(form)
    }

    fn to_text(&self) -> String {
        let word = match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Strict => "strict",
        };
        format!("{word:?}")
    }
}

impl Written for PredictMode {
    type Form = Self;

    const ALLOWED: &'static str = r#""adaptive", "always" or "never""#;

    fn read(form: Self) -> Option<Self> {
        Some(form)
    }

    fn to_text(&self) -> String {
        let word = match self {
            Self::Adaptive => "adaptive",
            Self::Always => "always",
            Self::Never => "never",
        };
        format!("{word:?}")
    }
}

/// Written as seconds, with the largest value of a time in ssh_config.
impl Written for Duration {
    type Form = u32;

    const ALLOWED: &'static str = "a whole number of seconds, at most 2147483647";

    fn read(seconds: u32) -> Option<Self> {
        (i32::try_from(seconds).is_ok()).then(|| Self::from_secs(seconds.into()))
    }

    fn to_text(&self) -> String {
        self.as_secs().to_string()
    }
}

impl Written for String {
    type Form = Self;

    const ALLOWED: &'static str = "a text in quotes";

    fn read(form: Self) -> Option<Self> {
        Some(form)
    }

    fn to_text(&self) -> String {
        format!("{self:?}")
    }
}

impl Written for Vec<String> {
    type Form = Self;

    const ALLOWED: &'static str = r#"a list of patterns, such as ["*.example.com"]"#;

    fn read(form: Self) -> Option<Self> {
        Some(form)
    }

    fn to_text(&self) -> String {
        format!("{self:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_read_as_it_is_described() {
        for setting in Settings::default().all() {
            let line = format!("{} = {}", setting.key, setting.default);
            assert_eq!(Settings::parse(&line).unwrap(), Settings::default(), "{line}");
            assert!(setting.meaning.ends_with('.'), "{}", setting.meaning);
        }
        assert_eq!(
            Settings::parse("idle_timeout = 5").unwrap().idle_timeout,
            Duration::from_secs(5)
        );
    }

    #[test]
    fn misspelt_keys_and_impossible_values_are_errors() {
        let problem = |text| {
            let (line, problem) = Settings::parse(text).unwrap_err();
            format!("{line}: {problem}")
        };
        for (text, said) in [
            (
                "# mine\nidle_timeot = 5",
                "2: there is no setting idle_timeot; did you mean idle_timeout?",
            ),
            (
                "colour = 5",
                "1: there is no setting colour; `trunkline settings` lists them all",
            ),
            (
                "max_lanes = 4\n[lanes]\nmost = 1",
                "2: there is no setting lanes; `trunkline settings` lists them all",
            ),
            ("\nmax_lanes = 0", "2: max_lanes is 0; it must be at least 1"),
            (
                "max_lanes = \"many\"",
                "1: max_lanes is \"many\"; it must be a whole number from 0 to 1000000",
            ),
            (
                "idle_timeout = 1.5",
                "1: idle_timeout is 1.5; it must be a whole number of seconds, at most 2147483647",
            ),
            ("probe_limit = 0", "1: probe_limit is 0; it must be at least 1"),
            (
                "metrics_port = 70000",
                "1: metrics_port is 70000; it must be a whole number from 0 to 65535",
            ),
            ("early_stdin = 1", "1: early_stdin is 1; it must be true or false"),
            (
                "audit = \"yes\"",
                "1: audit is \"yes\"; it must be \"off\", \"on\" or \"strict\"",
            ),
            (
                "[audit]\non = true",
                "1: audit must be \"off\", \"on\" or \"strict\"",
            ),
            (
                "confirm_askpass = \"askpass\"",
                "1: confirm_askpass is \"askpass\"; it must be an absolute path",
            ),
            (
                "strict_hosts = \"web*\"",
                "1: strict_hosts is \"web*\"; it must be a list of patterns, such as [\"*.example.com\"]",
            ),
            (
                "busy_below = 2000000",
                "1: busy_below (2000000) must not be above busy_above (1250000)",
            ),
        ] {
            assert_eq!(problem(text), said, "{text}");
        }
        for text in [
            "idle_timeout 5",
            "idle_timeout =",
            "max_lanes = 1\nmax_lanes = 2",
            "audit = off",
            "a = [",
        ] {
            assert!(
                problem(text).contains(": this is not valid TOML: "),
                "{}",
                problem(text)
            );
        }
    }

    /// The engine starts and works with every value that is accepted.
    #[test]
    fn numbers_that_nothing_could_count_with_are_errors() {
        for setting in Settings::default().all() {
            if setting.default.parse::<u64>().is_err()
                || ["busy_above", "audit_file_size"].contains(&setting.key)
            {
                continue;
            }
            for number in ["-1", "2147483648", "9223372036854775807", "18446744073709551615"] {
                let line = format!("{} = {number}", setting.key);
                assert!(Settings::parse(&line).is_err(), "{line}");
            }
        }
        let longest = Settings::parse("probe_after = 2147483647\nhandshakes = 1000000").unwrap();
        assert_eq!(
            (longest.probe_after.as_secs(), longest.handshakes),
            (2_147_483_647, 1_000_000)
        );
    }

    #[test]
    fn a_missing_file_means_defaults_and_another_problem_names_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.toml");
        assert_eq!(Settings::read(&file).unwrap(), Settings::default());
        std::fs::write(&file, "max_lanes = 0").unwrap();
        let invalid = Settings::read(&file).unwrap_err().to_string();
        assert!(
            invalid.contains("config.toml line 1: ") && invalid.ends_with("at least 1"),
            "{invalid}"
        );
        let unreadable = Settings::read(directory.path()).unwrap_err();
        assert!(
            matches!(unreadable, SettingsError::Unreadable(..)),
            "{unreadable}"
        );
    }
}
