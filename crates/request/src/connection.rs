//! Reports about a host's connections.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One connection.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ConnectionReport {
    /// The result of its handshake; `None` while it is being made.
    pub handshake: Option<Handshake>,
    /// The last measured round-trip time, in seconds.
    #[serde(with = "seconds")]
    pub rtt: Option<Duration>,
    /// Running sessions.
    pub sessions: u32,
    /// Tunnels.
    pub tunnels: u32,
    /// Sessions opened ahead.
    pub spares: usize,
    /// True if its traffic keeps new sessions away.
    pub busy: bool,
    /// True if its server has not answered for so long that new sessions use another connection, if possible.
    pub silent: bool,
    /// True if it was asked to close, and gets nothing new while its last sessions run.
    pub closing: bool,
    /// The last measured traffic, in bits per second.
    pub rate: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// The seconds until it is closed if nothing uses it; `None` while it is in use or kept open.
    #[serde(with = "seconds", default)]
    pub closes_in: Option<Duration>,
}

/// The number of connections that were asked to close.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// The number of idle ones, which are closed.
    pub now: usize,
    /// The number that close when their sessions have ended.
    pub later: usize,
}

impl Closed {
    /// Returns the total.
    pub fn count(self) -> usize {
        self.now + self.later
    }
}

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let connections = |count| trunkline_text::count_of(count, "connection");
        let whose = if self.later == 1 { "its" } else { "their" };
        match (self.now, self.later) {
            (now, 0) => write!(f, "closed {}", connections(now)),
            (0, later) => write!(f, "closing {} when {whose} sessions end", connections(later)),
            (now, later) => write!(
                f,
                "closed {}, closing {later} more when {whose} sessions end",
                connections(now)
            ),
        }
    }
}

/// Times as a number of seconds, as usual in JSON.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        time.map(|time| time.as_secs_f64()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let seconds = Option::<f64>::deserialize(deserializer)?;
        seconds
            .map(Duration::try_from_secs_f64)
            .transpose()
            .map_err(serde::de::Error::custom)
    }
}

/// The negotiated algorithms and keys. Algorithms have the names of RFC 4250 section 4.11 and its successors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handshake {
    /// The time of authentication, in seconds since 1970.
    pub since: u64,
    /// The server's identification.
    pub server: String,
    /// The key exchange method.
    pub kex: String,
    /// The host key's algorithm.
    pub host_key: String,
    /// The cipher towards the server.
    pub cipher: String,
    /// The MAC towards the server; `None` if the cipher authenticates by itself.
    pub mac: Option<String>,
    /// True if payloads are compressed.
    pub compressed: bool,
    /// The server's last line before its identification, safe to display; or empty.
    pub greeting: String,
    /// The log-in: methods, and the key's type, fingerprint and location.
    pub log_in: String,
    /// The check of the host key: where it was known, or which rule accepted it.
    pub host_key_check: String,
}
