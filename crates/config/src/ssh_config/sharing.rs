//! The requests that may share a connection: those for which everything that decides who talks to whom is equal.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::digest::{self, Context, SHA256};

use super::values::Shown as _;
use super::{CommandWorld, DIRECTIVES, HostConfig, Role, hex};

/// Identifies the connections that may serve a host. Displayed as 16 hexadecimal digits.
///
/// Equal for two hosts whose requests always share. If two keys [may meet](Self::may_meet), the requests differ only in
/// how they would log in, and a connection's actual [log-in](super::LogIn) decides.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SharingKey {
    /// The digest of who is reached, the way there, and what is trusted and shown.
    reached: [u8; 32],
    /// The digest of the allowed log-ins and checks of the host key.
    log_in: [u8; 32],
}

impl SharingKey {
    /// Returns a key that no other host has or will have: it shares with nobody.
    pub fn unique() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self {
            reached: digest_of(&[("private", number.to_string())]),
            log_in: [0; 32],
        }
    }

    /// Returns whether a connection for one may serve the other, if its [log-in](super::LogIn) is acceptable.
    #[must_use]
    pub fn may_meet(&self, other: &Self) -> bool {
        self.reached == other.reached
    }

    /// Returns the smallest of the keys that this one may meet: they are contiguous in key order.
    #[must_use]
    pub fn first_that_may_meet(&self) -> Self {
        Self {
            reached: self.reached,
            log_in: [0; 32],
        }
    }
}

fn digest_of(pairs: &[(&'static str, String)]) -> [u8; 32] {
    let mut hash = Context::new(&SHA256);
    for (name, value) in pairs {
        for part in [name.as_bytes(), value.as_bytes()] {
            // The length distinguishes ("ab", "c") from ("a", "bc").
            hash.update(&(part.len() as u64).to_be_bytes());
            hash.update(part);
        }
    }
    let mut out = [0; 32];
    out.copy_from_slice(hash.finish().as_ref());
    out
}

impl fmt::Display for SharingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_both = digest::digest(&SHA256, &[self.reached, self.log_in].concat());
        f.write_str(&hex(&of_both.as_ref()[..8]))
    }
}

impl fmt::Debug for SharingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharingKey({self})")
    }
}

impl HostConfig {
    /// Returns the key of the connections that may serve this host.
    #[must_use]
    pub fn sharing_key(&self) -> SharingKey {
        SharingKey {
            reached: digest_of(&self.explain_sharing()),
            log_in: digest_of(&self.explain_log_in()),
        }
    }

    /// Returns whether both are the same account on the same server, whatever the way and the keys.
    #[must_use]
    pub fn is_same_account(&self, other: &Self) -> bool {
        (&self.user, &self.hostname, self.port) == (&other.user, &other.hostname, other.port)
    }

    /// Returns the settings that have to be equal for a connection to be shared: names (mostly directives) and values,
    /// for people to compare. [`Self::explain_log_in`] has those that need not be.
    ///
    /// If the user's commands take part in who is reached or trusted, this includes what they see of their caller, with
    /// a digest of the environment. A jump host contributes all of this of its own.
    ///
    /// Directives that [`DIRECTIVES`] assigns to single requests, or to nothing, are not included.
    #[must_use]
    pub fn explain_sharing(&self) -> Vec<(&'static str, String)> {
        let commands = self.commands.as_ref().map_or_else(
            || ["environment", "directory", "umask", "shell"].map(|name| (name, String::new())),
            CommandWorld::explain,
        );
        let mut decides = vec![
            ("user", self.user.clone()),
            // Without HostKeyAlias, known_hosts is searched by this name; behind a proxy there is no other. %k in a
            // known_hosts path is already expanded.
            ("hostname", self.hostname.clone()),
            ("port", self.port.to_string()),
            // Its resolved configuration: the same name may mean another host to another caller.
            (
                "jump host",
                self.jump.as_deref().map(explain_jump).unwrap_or_default(),
            ),
            // Jump hosts are resolved in turn, and from the file that -F named.
            ("config file", self.config_file.show()),
        ];
        decides.extend(commands);
        decides.extend(self.explain_rows(Role::Shared));
        if self.has_master {
            decides.extend(self.explain_master());
        }
        decides
    }

    /// Returns the directives of a role, with their values.
    pub(super) fn explain_rows(&self, role: Role) -> impl Iterator<Item = (&'static str, String)> {
        let rows = DIRECTIVES.iter().filter(move |row| row.role == role);
        rows.filter_map(|row| Some((row.keyword, self.value_of(row.keyword)?.show())))
    }

    /// Returns the further settings that have to be equal for sessions to share a master of the system's ssh. Lines
    /// that are not understood may mean anything.
    fn explain_master(&self) -> impl Iterator<Item = (&'static str, String)> {
        let fixed = DIRECTIVES.iter().filter(|row| row.is_fixed_by_master).map(|row| {
            let lines = self
                .fixed_by_master
                .lines()
                .filter_map(|line| line.split_once(' '));
            let values = lines
                .filter(|(keyword, _)| *keyword == row.keyword)
                .map(|(_, value)| value);
            (row.keyword, values.collect::<Vec<_>>().join(" "))
        });
        let unknown = self
            .unknown
            .iter()
            .chain(&self.not_understood)
            .chain(&self.ambiguous);
        let unknown: Vec<_> = unknown
            .map(|line| format!("{} {}", line.keyword, line.value))
            .collect();
        fixed.chain([("unknown directives", unknown.join("\n"))])
    }
}

/// Returns a jump host, with everything that decides who may share its connections.
fn explain_jump(jump: &HostConfig) -> String {
    let SharingKey { reached, log_in } = jump.sharing_key();
    format!(
        "{}@{}:{} {}{}",
        jump.user,
        jump.hostname,
        jump.port,
        hex(&reached[..16]),
        hex(&log_in[..16])
    )
}
