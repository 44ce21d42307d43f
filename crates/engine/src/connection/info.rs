//! [`ConnectionInfo`]: what is known of a connection once it is authenticated.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use trunkline_proto::kex::KexMethod;
use trunkline_request::LogLine;

use crate::config::LogIn;
use crate::error::Error;
use crate::interaction::{Interaction, KnownClient};
use crate::prompt::Answerer;

/// The binding of an agent's signatures to one connection (OpenSSH's PROTOCOL.agent, `session-bind@openssh.com`).
#[derive(Debug, Clone)]
pub(crate) struct SessionBinding {
    pub(crate) host_key: Bytes,
    pub(crate) session_id: Bytes,
    /// The host key's signature in the first key exchange.
    pub(crate) signature: Bytes,
}

/// The facts of an authenticated connection.
#[derive(Debug, Clone)]
pub struct ConnectionInfo {
    /// The server's address; `None` behind a proxy.
    pub address: Option<SocketAddr>,
    /// The server's identification line.
    pub server: String,
    /// The key exchange method in use.
    pub kex: KexMethod,
    /// The host key's algorithm.
    pub host_key_algorithm: String,
    /// The cipher towards the server.
    pub cipher: &'static str,
    /// The MAC towards the server; `None` where the cipher authenticates by itself.
    pub mac: Option<&'static str>,
    /// The last line of what the server said before its identification, safe to show; or empty.
    pub greeting: String,
    /// Whether payloads are compressed.
    pub compressed: bool,
    /// The ciphers that this connection could have had: the engine's own that the server takes.
    pub server_ciphers: Vec<&'static str>,
    /// Whether the server takes compression.
    pub server_compresses: bool,
    /// When authentication succeeded.
    pub since: SystemTime,
    /// From the first byte to authentication.
    pub handshake: Duration,
    /// The server is OpenSSH's sshd, by more than its identification.
    pub is_sshd: bool,
    /// It is not, and the log-in went ahead of its answers all the same.
    pub(crate) went_ahead: bool,
    /// The host key changed or is revoked, and StrictHostKeyChecking no let it through: sessions only.
    pub unverified: bool,
    /// The message to its user about that.
    pub(crate) warnings: Arc<[String]>,
    /// The authentication method that the server accepted, the last one where it wanted several.
    pub method: &'static str,
    /// How it was logged in to, against which a request that would do so otherwise is held.
    pub log_in: Arc<LogIn>,
    /// The banner for whoever logged in, of which the first 64 KiB are kept; empty for nothing.
    pub banner: Arc<str>,
    /// The first lines of the log of its making.
    pub log: Arc<[LogLine]>,
    /// Who had to answer for its log-in, and would have to again for another connection. To touch a key is a person's answer.
    pub answered: Answerer,
    /// For whom it was made.
    pub(crate) made_for: KnownClient,
    /// The binding of an agent's signatures to this connection.
    pub(crate) binding: SessionBinding,
}

impl ConnectionInfo {
    /// Whether it was made for this interaction's client, who has heard its log.
    pub fn was_made_for(&self, interaction: &Interaction) -> bool {
        self.made_for.is(interaction.client())
    }

    pub(super) fn warn(&self, interaction: &Interaction) {
        for warning in &*self.warnings {
            interaction.warn_once(warning);
        }
    }
}

/// How far a connection has come.
#[derive(Debug, Clone)]
pub(crate) enum State {
    Connecting,
    Ready,
    Ended(Error),
}
