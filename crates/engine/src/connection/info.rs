//! [`ConnectionInfo`]: the facts of an authenticated connection.

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
    /// The MAC towards the server; `None` if the cipher authenticates by itself.
    pub mac: Option<&'static str>,
    /// The last line that the server sent before its identification, safe to display; or empty.
    pub greeting: String,
    /// Payloads are compressed.
    pub compressed: bool,
    /// The ciphers that this connection could have had: the engine's own that the server accepts.
    pub server_ciphers: Vec<&'static str>,
    /// The server accepts compression.
    pub server_compresses: bool,
    /// The time of authentication.
    pub since: SystemTime,
    /// The time from the first byte to authentication.
    pub handshake: Duration,
    /// The server is OpenSSH's sshd, by more evidence than its identification.
    pub is_sshd: bool,
    /// The server is not sshd, but the log-in went ahead of its answers.
    pub(crate) went_ahead: bool,
    /// The host key changed or is revoked, and StrictHostKeyChecking no accepted it: sessions only.
    pub unverified: bool,
    /// The warnings about that for its users.
    pub(crate) warnings: Arc<[String]>,
    /// The authentication method that the server accepted, the last one if it wanted several.
    pub method: &'static str,
    /// The log-in that made it. Requests that would log in otherwise are compared with this.
    pub log_in: Arc<LogIn>,
    /// The server's banner, of which the first 64 KiB are kept; or empty.
    pub banner: Arc<str>,
    /// The first lines of the log of its making.
    pub log: Arc<[LogLine]>,
    /// The one who answered for its log-in, and would for another connection. Touching a key is a person's answer.
    pub answered: Answerer,
    /// The client that it was made for.
    pub(crate) made_for: KnownClient,
    /// The binding of an agent's signatures to this connection.
    pub(crate) binding: SessionBinding,
}

impl ConnectionInfo {
    /// Returns whether it was made for this interaction's client, who has received its log.
    pub fn was_made_for(&self, interaction: &Interaction) -> bool {
        self.made_for.is(interaction.client())
    }

    pub(super) fn warn(&self, interaction: &Interaction) {
        for warning in &*self.warnings {
            interaction.warn_once(warning);
        }
    }
}

/// The progress of a connection.
#[derive(Debug, Clone)]
pub(crate) enum State {
    Connecting,
    Ready,
    Ended(Error),
}
