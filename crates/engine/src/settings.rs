//! What the user can set about the engine itself, apart from ssh_config.

use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// Makes of one list all that has to know each setting: the fields with their documentation, the defaults, what reads them,
/// and what describes them.
macro_rules! settings {
    ($($(#[doc = $meaning:literal])+ $key:ident: $kind:ty = $default:expr;)*) => {
        /// The engine's settings. The defaults suit a person's machine and a control node with hundreds of hosts alike.
        ///
        /// As read: every key may be left out; unknown keys are errors, so that a misspelt one is not silently nothing.
        #[derive(Debug, Clone, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct Settings {
            $(
                $(#[doc = $meaning])+
                #[serde(deserialize_with = "read")]
                pub $key: $kind,
            )*
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }

        impl Settings {
            /// Every setting, with its value here and its default.
            #[must_use]
            pub fn all(&self) -> Vec<Setting> {
                let defaults = Self::default();
                vec![$(
                    Setting {
                        key: stringify!($key),
                        value: self.$key.written(),
                        default: defaults.$key.written(),
                        meaning: concat!($($meaning),+).trim_ascii(),
                    },
                )*]
            }
        }
    };
}

settings! {
    /// Seconds that a connection without sessions is kept, where ControlPersist of ssh_config says nothing.
    idle_timeout: Duration = Duration::from_secs(600);
    /// The most connections to one host.
    max_lanes: usize = 16;
    /// Sessions that a connection is expected to carry until the server has shown another limit (sshd's MaxSessions).
    sessions_per_lane: u32 = 10;
    /// The most sessions opened ahead on one connection, so that a command needs one round trip. 0 for none.
    spare_sessions: u32 = 4;
    /// A connection that carries more than this many bits a second gets no new sessions: they go to a quiet one.
    busy_above: u64 = 1_250_000;
    /// A busy connection counts as quiet again below this many bits a second.
    busy_below: u64 = 750_000;
    /// Handshakes at once with one server. sshd's MaxStartups begins to drop at ten.
    handshakes_per_server: usize = 8;
    // Each costs this side about a millisecond of CPU, and the servers much more.
    /// Handshakes at once in all.
    handshakes: usize = 64;
    /// Send what needs no answer without waiting (to OpenSSH servers only).
    early_flights: bool = true;
    // RFC 4254 has a client wait for the window that sshd is about to open.
    /// Send up to 64 KiB of a command's input right behind the command (to OpenSSH servers only).
    early_stdin: bool = true;
    /// Seconds of silence after which trunkline checks that a connection is alive.
    probe_after: Duration = Duration::from_secs(60);
    /// Seconds to wait for the answer before the connection is given up.
    probe_limit: Duration = Duration::from_secs(10);
    /// Port of 127.0.0.1 on which the daemon tells its metrics to Prometheus, whoever asks on this machine. 0 for none.
    metrics_port: u16 = 0;
    /// Record what is run on hosts in the audit trail: `"off"`, `"on"`, or `"strict"`, where nothing runs that cannot be recorded.
    audit: AuditMode = AuditMode::Off;
    /// Bytes after which the audit trail continues in another file.
    audit_file_size: u64 = 16 * 1024 * 1024;
    /// Files of the audit trail that are kept; beyond that the oldest is removed. 0 for all.
    audit_files: usize = 64;
    /// Patterns of hosts whose sessions on a terminal are recorded in the folder `recordings`: what is shown, nothing that is typed.
    record_hosts: Vec<String> = Vec::new();
    /// Patterns of hosts that always go through the system's ssh, such as `["*.example.com"]`.
    openssh_hosts: Vec<String> = Vec::new();
    /// Patterns of hosts whose connections need confirmation through SSH_ASKPASS for each use, as with `ControlMaster ask`
    /// of ssh_config.
    confirm_hosts: Vec<String> = Vec::new();
    /// Patterns of hosts that are reached over shared connections or not at all, as with `TRUNKLINE_STRICT=1`: what cannot
    /// share one fails with the reason.
    strict_hosts: Vec<String> = Vec::new();
}

/// Whether what is run on hosts is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditMode {
    /// It is not.
    #[default]
    Off,
    /// It is, as far as that is possible.
    On,
    /// It is, and what cannot be recorded does not run.
    Strict,
}

/// A setting, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// What it is called.
    pub key: &'static str,
    /// Its value, as it would be written in the file.
    pub value: String,
    /// Its default, likewise.
    pub default: String,
    /// What it means.
    pub meaning: &'static str,
}

/// How a setting is written.
trait Written {
    type Form;

    fn read(form: Self::Form) -> Self;

    fn written(&self) -> String;
}

fn read<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Written<Form: Deserialize<'de>>,
{
    T::Form::deserialize(deserializer).map(T::read)
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

written_plainly!(bool, u16, u32, u64, usize);

impl Written for AuditMode {
    type Form = Self;

    fn read(form: Self) -> Self {
        form
    }

    fn written(&self) -> String {
        let word = match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Strict => "strict",
        };
        format!("{word:?}")
    }
}

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
