//! The remembered facts about one host.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use super::lesson::Lessons;
use crate::config::HostConfig;

/// One account on one server: the subject of the facts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId {
    /// The resolved host name, not the alias.
    pub hostname: String,
    /// The port.
    pub port: u16,
    /// The remote user.
    pub user: String,
}

impl HostId {
    /// Returns the account that a host's configuration names.
    #[must_use]
    pub fn from_config(host: &HostConfig) -> Self {
        Self::new(&host.hostname, host.port, &host.user)
    }

    /// Returns the account `user` on the server at `hostname` and `port`.
    #[must_use]
    pub fn new(hostname: &str, port: u16, user: &str) -> Self {
        Self {
            hostname: hostname.into(),
            port,
            user: user.into(),
        }
    }
}

/// The remembered facts about one host. Text from the peer is cut to [`LONGEST_TEXT`] bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    /// The server's identification line, without its line end (RFC 4253 section 4.2).
    pub banner: Option<String>,
    /// The key exchange method that the server listed first, which a right guess has to name (RFC 4253 section 7).
    pub kex_first: Option<String>,
    /// The host key algorithm that the server listed first.
    pub host_key_first: Option<String>,
    /// The ways in which the server differs from others.
    pub lessons: Lessons,
    /// SHA-256 of the public key blob that authenticated last.
    pub key: Option<[u8; 32]>,
    /// The last measured round trip, kept to the microsecond.
    pub rtt: Option<Duration>,
    /// The results of tuning for this path, as JSON.
    pub tuning: Option<String>,
    /// The time of the facts' last update, kept to the millisecond.
    pub last_used: SystemTime,
}

impl HostFacts {
    /// Returns the fingerprint of the key that authenticated last, as `ssh-keygen -l` and `ssh-add -l` show it.
    #[must_use]
    pub fn key_fingerprint(&self) -> Option<String> {
        self.key
            .map(|digest| format!("SHA256:{}", STANDARD_NO_PAD.encode(digest)))
    }
}

impl Default for HostFacts {
    fn default() -> Self {
        Self {
            banner: None,
            kex_first: None,
            host_key_first: None,
            lessons: Lessons::default(),
            key: None,
            rtt: None,
            tuning: None,
            last_used: UNIX_EPOCH,
        }
    }
}

impl HostFacts {
    /// Returns the facts that are still believed at `now`: old lessons are dropped.
    pub(super) fn believed_at(mut self, now: SystemTime) -> Self {
        self.lessons.expire(now);
        self
    }

    pub(super) fn limit_sizes(&mut self) {
        for text in [&mut self.banner, &mut self.kex_first, &mut self.host_key_first]
            .into_iter()
            .flatten()
        {
            let end = (0..=LONGEST_TEXT.min(text.len()))
                .rev()
                .find(|&at| text.is_char_boundary(at));
            text.truncate(end.unwrap_or(0));
        }
        // A truncated JSON document is useless.
        self.tuning.take_if(|json| json.len() > LONGEST_TEXT);
    }
}

/// The longest text kept in one fact, in bytes. A banner has at most 255, tuning results a few hundred.
pub const LONGEST_TEXT: usize = 16 * 1024;

/// The most hosts kept on disk; those used longest ago are removed first.
pub const MOST_HOSTS: u32 = 50_000;

/// Locks a mutex, ignoring poisoning: a panic under one of these locks leaves consistent plain data.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
