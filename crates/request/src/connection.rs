//! Reports about a host's connections.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConnectionReport {
    /// The result of its handshake; `None` while it is being made.
    pub handshake: Option<Handshake>,
    /// The round-trip time as last measured, in seconds.
    #[serde(with = "seconds")]
    pub rtt: Option<Duration>,
    /// Sessions that run.
    pub sessions: u32,
    /// Tunnels.
    pub tunnels: u32,
    /// Sessions opened ahead.
    pub spares: usize,
    /// Whether its traffic keeps new sessions away.
    pub busy: bool,
    /// Whether its server has not answered for so long that new sessions go to another connection, where there may be one.
    pub silent: bool,
    /// Its traffic as last measured, in bits a second.
    pub rate: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// After how many seconds it is closed if nothing uses it; `None` while something does, and where it is kept.
    #[serde(with = "seconds", default)]
    pub closes_in: Option<Duration>,
}

/// Times as a number of seconds, as programs that read JSON expect it.
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

/// The algorithms and keys that client and server have agreed on. Algorithms have the names of RFC 4250 section 4.11
/// and its successors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handshake {
    /// Seconds since 1970 when authentication succeeded.
    pub since: u64,
    /// The server's identification.
    pub server: String,
    /// The key exchange method.
    pub kex: String,
    /// The host key's algorithm.
    pub host_key: String,
    /// The cipher towards the server.
    pub cipher: String,
    /// The MAC towards the server; `None` where the cipher authenticates by itself.
    pub mac: Option<String>,
    /// Whether payloads are compressed.
    pub compressed: bool,
    /// The last line of what the server said before its identification, safe to show; or empty.
    pub greeting: String,
    /// The log-in: methods, and the key's type, fingerprint and place.
    pub log_in: String,
    /// The check of the host key: where it was known from, or which rule accepted it.
    pub host_key_check: String,
}
