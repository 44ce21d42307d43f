//! A client of the SSH agent (draft-ietf-sshm-ssh-agent, and OpenSSH's PROTOCOL.agent).
//!
//! [`Agent`] is one connection to an agent's socket and answers one request at a time. The caller always passes the
//! socket's path: this process's environment never decides which agent is asked.
//!
//! An agent may be a relay to another machine and is trusted no further than a peer: the client bounds the size of its
//! replies and checks their form.

use crate::keys::{self, PrivateKey, PublicKey};
use bytes::Bytes;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;
use trunkline_proto::wire::{Reader, WireError, Writer};
use trunkline_text::Printable;
use zeroize::Zeroizing;

/// The time limit for an agent to accept a connection, to list its keys or to take one: its user may have to unlock it
/// first. A signature has no limit: it may wait for a touch, a PIN or a confirmation.
const PROMPT_REPLY: Duration = Duration::from_secs(120);

/// The largest reply that is read, in bytes (authfd.c, `MAX_AGENT_REPLY_LEN`).
const MAX_REPLY: usize = 256 << 10;

/// The most keys an agent may list (authfd.c, `MAX_AGENT_IDENTITIES`).
const MAX_IDENTITIES: u32 = 2048;

/// A connection to an agent.
///
/// ```no_run
/// # async fn example() -> Result<(), trunkline_config::agent::AgentError> {
/// use trunkline_config::agent::Agent;
///
/// let mut agent = Agent::connect("/run/user/1000/ssh-agent".as_ref()).await?;
/// let keys = agent.identities().await?;
/// if let Some(key) = keys.iter().find(|key| key.algorithm() == "ssh-ed25519") {
///     let signature = agent.sign(&key.blob, "ssh-ed25519", b"data").await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Agent {
    path: PathBuf,
    stream: UnixStream,
    /// A request was abandoned before its reply was read, so the next bytes are not the next reply.
    out_of_step: bool,
}

impl Agent {
    /// Connects to the agent that listens on the Unix socket `path`.
    ///
    /// # Errors
    /// [`AgentError::Missing`], [`AgentError::NotListening`] or [`AgentError::Io`]; [`AgentError::Timeout`] after two
    /// minutes.
    pub async fn connect(path: &Path) -> Result<Self, AgentError> {
        let owned = path.to_owned();
        match timeout(PROMPT_REPLY, UnixStream::connect(path)).await {
            Ok(Ok(stream)) => Ok(Self {
                path: owned,
                stream,
                out_of_step: false,
            }),
            Ok(Err(error)) => Err(match error.kind() {
                io::ErrorKind::NotFound => AgentError::Missing { path: owned },
                io::ErrorKind::ConnectionRefused => AgentError::NotListening { path: owned },
                _ => AgentError::Io {
                    path: owned,
                    source: error,
                },
            }),
            Err(_) => Err(AgentError::Timeout { path: owned }),
        }
    }

    /// Makes a client of the agent at the other end of `stream`.
    pub(crate) fn from_stream(stream: UnixStream) -> Self {
        Self {
            path: PathBuf::new(),
            stream,
            out_of_step: false,
        }
    }

    /// Returns the bare connection, for a stranger's requests.
    pub fn into_stream(self) -> UnixStream {
        self.stream
    }

    /// Returns the keys and certificates that the agent holds, in its order. A locked agent lists none.
    ///
    /// # Errors
    /// Those of the connection; [`AgentError::Timeout`] after two minutes.
    pub async fn identities(&mut self) -> Result<Vec<Identity>, AgentError> {
        let reply = self.prompt_request(&[REQUEST_IDENTITIES]).await?;
        let mut reader = self.expect(&reply, IDENTITIES_ANSWER)?;
        parse_identities(&mut reader).map_err(|_| self.malformed_answer("its list of keys is damaged"))
    }

    /// Has the agent sign `data` with the key or certificate of the blob `key`.
    ///
    /// `algorithm` is the signature algorithm; for RSA it chooses between `rsa-sha2-256` and `rsa-sha2-512`. Returns
    /// the SSH signature: `string` algorithm, `string` signature. Waits as long as the agent does; dropping the future
    /// gives up and leaves this connection unusable.
    ///
    /// # Errors
    /// If the agent refuses: [`AgentError::KeyGone`] or [`AgentError::Empty`] if it does not list the key (any more),
    /// else [`AgentError::Refused`]. [`AgentError::SignatureType`] if it signs with another algorithm.
    pub async fn sign(&mut self, key: &[u8], algorithm: &str, data: &[u8]) -> Result<Vec<u8>, AgentError> {
        let flags = match algorithm {
            "rsa-sha2-256" => SIGN_RSA_SHA2_256,
            "rsa-sha2-512" => SIGN_RSA_SHA2_512,
            _ => 0,
        };
        let request = Writer::message(SIGN_REQUEST)
            .string(key)
            .string(data)
            .u32(flags)
            .finish();
        let reply = self.request(&request).await?;
        if is_failure(&reply) {
            return Err(self.why_refused(key).await);
        }
        let mut reader = self.expect(&reply, SIGN_RESPONSE)?;
        let signature = reader
            .string()
            .map_err(|_| self.malformed_answer("its signature is damaged"))?;
        match Reader::new(signature).name() {
            Ok(made) if made == algorithm => Ok(signature.to_vec()),
            // An agent that does not know the flags answers with SHA-1, which no current server takes.
            Ok(made) => Err(AgentError::SignatureType {
                wanted: algorithm.to_owned(),
                made: made.to_owned(),
            }),
            Err(_) => Err(self.malformed_answer("its signature is damaged")),
        }
    }

    /// Tells the agent which SSH session this connection signs for, so that it can use keys restricted to destinations
    /// (PROTOCOL.agent, `session-bind@openssh.com`).
    ///
    /// `host_key` is the server's host key blob, `signature` the server's signature over `session_id` from the key
    /// exchange; `forwarding` says that the connection will be forwarded to that server. Returns whether the agent
    /// knows the extension and accepted it; OpenSSH continues if not.
    ///
    /// # Errors
    /// Those of the connection; [`AgentError::Timeout`] after two minutes.
    pub async fn bind_session(
        &mut self,
        host_key: &[u8],
        session_id: &[u8],
        signature: &[u8],
        forwarding: bool,
    ) -> Result<bool, AgentError> {
        let request = Writer::message(EXTENSION)
            .string("session-bind@openssh.com")
            .string(host_key)
            .string(session_id)
            .string(signature)
            .bool(forwarding)
            .finish();
        let reply = self.prompt_request(&request).await?;
        if is_failure(&reply) {
            return Ok(false);
        }
        self.expect(&reply, SUCCESS).map(|_| true)
    }

    /// Gives the agent a private key, with its certificate if it has one (AddKeysToAgent).
    ///
    /// `ssh-add -l` shows `comment`. A lifetime is sent in whole seconds, at least one.
    ///
    /// # Errors
    /// [`AgentError::Refused`] if the agent does not take it; [`AgentError::Timeout`] after two minutes.
    pub async fn add(
        &mut self,
        key: &PrivateKey,
        certificate: Option<&PublicKey>,
        comment: &str,
        constraints: Constraints,
    ) -> Result<(), AgentError> {
        let mut tail = Writer::new().string(comment);
        if let Some(lifetime) = constraints.lifetime {
            let seconds = u32::try_from(lifetime.as_secs()).unwrap_or(u32::MAX).max(1);
            tail = tail.u8(CONSTRAIN_LIFETIME).u32(seconds);
        }
        if constraints.confirm {
            tail = tail.u8(CONSTRAIN_CONFIRM);
        }
        let tail = tail.finish();
        let number = if constraints == Constraints::default() {
            ADD_IDENTITY
        } else {
            ADD_ID_CONSTRAINED
        };
        let secret = key.agent_encoding(certificate);
        let mut request = Zeroizing::new(Vec::with_capacity(1 + secret.len() + tail.len()));
        request.push(number);
        request.extend_from_slice(&secret);
        request.extend_from_slice(&tail);
        let reply = self.prompt_request(&request).await?;
        if is_failure(&reply) {
            return Err(AgentError::Refused {
                action: "take the key",
            });
        }
        self.expect(&reply, SUCCESS).map(|_| ())
    }

    /// Has the agent forget the key or certificate with the blob `key`.
    ///
    /// # Errors
    /// [`AgentError::KeyGone`] if it has no such key; [`AgentError::Timeout`] after two minutes.
    pub async fn remove(&mut self, key: &[u8]) -> Result<(), AgentError> {
        let reply = self
            .prompt_request(&Writer::message(REMOVE_IDENTITY).string(key).finish())
            .await?;
        if is_failure(&reply) {
            return Err(AgentError::KeyGone {
                fingerprint: keys::fingerprint(key),
            });
        }
        self.expect(&reply, SUCCESS).map(|_| ())
    }

    /// Finds the reason for a refusal. The agent gives none, but its list shows whether it still holds the key.
    async fn why_refused(&mut self, key: &[u8]) -> AgentError {
        match self.identities().await {
            Ok(held) if held.is_empty() => AgentError::Empty,
            Ok(held) if held.iter().all(|identity| identity.blob != key) => AgentError::KeyGone {
                fingerprint: keys::fingerprint(key),
            },
            _ => AgentError::Refused { action: "sign" },
        }
    }

    /// Sends a request that has [`PROMPT_REPLY`] as its time limit.
    async fn prompt_request(&mut self, request: &[u8]) -> Result<Vec<u8>, AgentError> {
        match timeout(PROMPT_REPLY, self.request(request)).await {
            Ok(replied) => replied,
            Err(_) => Err(AgentError::Timeout {
                path: self.path.clone(),
            }),
        }
    }

    /// Sends `request` and returns the reply, which begins with the message number and is never empty.
    async fn request(&mut self, request: &[u8]) -> Result<Vec<u8>, AgentError> {
        if self.out_of_step {
            return Err(AgentError::OutOfStep);
        }
        self.out_of_step = true;
        let len =
            u32::try_from(request.len()).map_err(|_| self.malformed_answer("the request is too long"))?;
        let mut framed = Zeroizing::new(Vec::with_capacity(4 + request.len()));
        framed.extend_from_slice(&len.to_be_bytes());
        framed.extend_from_slice(request);
        let reply = self
            .exchange(&framed)
            .await
            .map_err(|source| match source.kind() {
                io::ErrorKind::InvalidData => self.malformed_answer("its reply has an impossible length"),
                _ => AgentError::Io {
                    path: self.path.clone(),
                    source,
                },
            })?;
        self.out_of_step = false;
        Ok(reply)
    }

    async fn exchange(&mut self, framed: &[u8]) -> io::Result<Vec<u8>> {
        self.stream.write_all(framed).await?;
        let len = self.stream.read_u32().await? as usize;
        if !(1..=MAX_REPLY).contains(&len) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut reply = vec![0; len];
        self.stream.read_exact(&mut reply).await?;
        Ok(reply)
    }

    /// Returns the bytes after the message number, which must be `number`.
    fn expect<'a>(&self, reply: &'a [u8], number: u8) -> Result<Reader<'a>, AgentError> {
        match reply.split_first() {
            Some((got, rest)) if *got == number => Ok(Reader::new(rest)),
            _ if is_failure(reply) => Err(AgentError::Refused { action: "answer" }),
            _ => Err(self.malformed_answer("its reply does not answer the question")),
        }
    }

    fn malformed_answer(&self, what: &'static str) -> AgentError {
        AgentError::Malformed {
            path: self.path.clone(),
            what,
        }
    }
}

/// A key or certificate that an agent holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The wire blob: a public key, or a certificate.
    pub blob: Bytes,
    /// The agent's comment. Bytes that are not UTF-8 are replaced.
    pub comment: String,
}

impl Identity {
    /// Returns the type name at the front of the blob.
    pub fn algorithm(&self) -> &str {
        Reader::new(&self.blob).name().unwrap_or_default()
    }

    /// Returns whether the key is a certificate.
    pub fn is_certificate(&self) -> bool {
        keys::is_certificate_algorithm(self.algorithm())
    }

    /// Returns whether a security key has to sign, usually after a touch.
    pub fn is_security_key(&self) -> bool {
        self.algorithm().starts_with("sk-")
    }
}

/// The conditions under which an agent may use a key that it is given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Constraints {
    /// The time after which the agent forgets the key.
    pub lifetime: Option<Duration>,
    /// The agent asks the user before each signature.
    pub confirm: bool,
}

/// The reason why an agent could not help.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "names say it")]
pub enum AgentError {
    /// There is no socket at the path.
    #[error("there is no SSH agent at {}: the socket does not exist (is SSH_AUTH_SOCK left over from an old login?)", path.display())]
    Missing { path: PathBuf },
    /// The socket exists, but no process listens on it.
    #[error("no SSH agent listens on {} any more; start one and set SSH_AUTH_SOCK", path.display())]
    NotListening { path: PathBuf },
    /// Connecting, writing or reading failed; the agent closed the connection, for example.
    #[error("the connection to the SSH agent at {} failed: {source}", path.display())]
    Io {
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The agent did not answer in time.
    #[error("the SSH agent at {} does not answer", path.display())]
    Timeout { path: PathBuf },
    /// The agent's reply breaks the protocol.
    #[error("the program listening on {} is not an SSH agent: {what}", path.display())]
    Malformed { path: PathBuf, what: &'static str },
    /// The agent has the key but did not act: the user denied it, a touch was missed, or the key is restricted to other
    /// destinations.
    #[error("the SSH agent refused to {action}")]
    Refused {
        /// The action that it refused.
        action: &'static str,
    },
    /// The agent lists no keys at all.
    #[error("the SSH agent is locked or holds no keys; unlock it with ssh-add -X or add a key with ssh-add")]
    Empty,
    /// The agent does not hold the key (any more).
    #[error("the SSH agent no longer holds the key {fingerprint}; add it with ssh-add")]
    KeyGone {
        /// The key's fingerprint.
        fingerprint: String,
    },
    /// The agent signed with another algorithm than the client asked for.
    #[error("the SSH agent signed with {made} instead of {wanted}; it is too old for RSA keys")]
    SignatureType {
        /// The algorithm asked for.
        wanted: String,
        /// The algorithm used.
        made: String,
    },
    /// An earlier request on this connection was abandoned half-way.
    #[error("an earlier request to the SSH agent was abandoned; connect to it again")]
    OutOfStep,
}

fn parse_identities(reader: &mut Reader<'_>) -> Result<Vec<Identity>, WireError> {
    let count = reader.u32()?;
    if count > MAX_IDENTITIES {
        return Err(WireError::Truncated);
    }
    let mut identities = Vec::new();
    for _ in 0..count {
        let (blob, comment) = (reader.string()?, reader.string()?);
        // A blob that is not a key cannot be offered to a server.
        if Reader::new(blob).name().is_ok_and(|name| !name.is_empty()) {
            identities.push(Identity {
                blob: Bytes::copy_from_slice(blob),
                comment: Printable::line(comment).into_string(),
            });
        }
    }
    Ok(identities)
}

/// Returns whether a reply is a failure, in the standard's numbers or those of ssh.com (authfd.c, `agent_failed`).
fn is_failure(reply: &[u8]) -> bool {
    matches!(reply.first(), Some(5 | 28 | 30 | 102))
}

const SUCCESS: u8 = 6;
const REQUEST_IDENTITIES: u8 = 11;
const IDENTITIES_ANSWER: u8 = 12;
const SIGN_REQUEST: u8 = 13;
const SIGN_RESPONSE: u8 = 14;
const ADD_IDENTITY: u8 = 17;
const REMOVE_IDENTITY: u8 = 18;
const ADD_ID_CONSTRAINED: u8 = 25;
const EXTENSION: u8 = 27;
const CONSTRAIN_LIFETIME: u8 = 1;
const CONSTRAIN_CONFIRM: u8 = 2;
const SIGN_RSA_SHA2_256: u32 = 2;
const SIGN_RSA_SHA2_512: u32 = 4;

#[cfg(test)]
mod tests;
