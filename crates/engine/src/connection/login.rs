//! Log-ins that a program controls: keys in memory, its own judgement of host keys, a given stream.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use trunkline_proto::Compression;
use trunkline_proto::mac::Mac;
use trunkline_proto::signature::fingerprint;

use crate::connection::dial::Dialed;
use crate::connection::socket::Stream;
use crate::error::{Error, Invalid};
use crate::host_key::{Accepted, Decision, HostKeyError, Server};
use crate::keys::KeyFile;

/// Keys in memory, a judge of host keys, a stream to use. For [`Engine::private_host`](crate::Engine::private_host);
/// clones share the stream.
///
/// ```
/// use trunkline::Login;
/// use trunkline::keys::KeyFile;
///
/// # fn example(pem: Vec<u8>) -> Result<Login, trunkline::keys::KeyError> {
/// let key = KeyFile::in_memory("the monitor's key", pem.into())?;
/// Ok(Login::new().key(key))
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Login {
    keys: Vec<KeyFile>,
    verifier: Option<Arc<dyn HostKeyVerifier>>,
    authenticator: Option<Arc<dyn Authenticator>>,
    over: Option<Arc<Mutex<Given>>>,
    connections: Option<usize>,
}

/// A stream to use, until it is taken.
type Given = Option<Box<dyn Stream>>;

/// A program's own judgement of host keys.
pub trait HostKeyVerifier: Send + Sync {
    /// Decides whether to continue with the server `host` (its name in known_hosts), which has proved to have `key` (a
    /// blob of RFC 4253 section 6.6, or a certificate). `files` is the verdict of the host's known_hosts files, as with
    /// `StrictHostKeyChecking yes`. Nothing is asked or written; the handshake waits for the answer.
    fn verify<'a>(
        &'a self,
        host: &'a str,
        key: &'a [u8],
        files: Result<(), HostKeyError>,
    ) -> Verification<'a>;

    /// Decides whether a server that lists further keys as its own (OpenSSH's PROTOCOL section 2.5) has to prove that,
    /// for [`Self::proven`].
    fn wants_proof(&self) -> WantsProof<'_> {
        Box::pin(std::future::ready(false))
    }

    /// Receives keys that the server has proved to have.
    fn proven(&self, keys: Vec<bytes::Bytes>) {
        drop(keys);
    }
}

/// The future of [`HostKeyVerifier::wants_proof`].
pub type WantsProof<'a> = Pin<Box<dyn Future<Output = bool> + Send + 'a>>;

/// A program's own log-in procedure, instead of ssh's order of methods.
pub trait Authenticator: Send + Sync {
    /// Returns the next attempt of log-in number `login`; each connection has its own number. `None` ends the log-in.
    /// `methods` are those that the server can continue with, `None` before the first request. `partial` is set if the
    /// last attempt succeeded and the server wants another.
    fn next<'a>(&'a self, login: u32, methods: Option<&'a [String]>, partial: bool) -> NextAttempt<'a>;

    /// Receives what was agreed with a server whose host key is accepted, before anything is revealed to it.
    fn note_agreement(&self, login: u32, agreement: Agreement) {
        drop((login, agreement));
    }

    /// Receives why an agent or key could not be used.
    fn unusable(&self, login: u32, why: &str);

    /// Returns the new password, sent with the old one, if the last attempt's is right but has to be changed (RFC 4252
    /// section 8). `prompt` is the server's text. Without one, the log-in continues with the next attempt.
    fn new_password<'a>(&'a self, login: u32, prompt: &'a str) -> NewPassword<'a>;

    /// Returns whether answers may take arbitrarily long. Such a log-in does not count towards the limits on concurrent
    /// handshakes.
    fn takes_its_time(&self) -> bool {
        false
    }
}

/// The agreement of client and server before a log-in. Algorithms have the names of RFC 4250 section 4.11 and its
/// successors.
#[derive(Debug, Clone)]
pub struct Agreement {
    /// The server's identification.
    pub server: String,
    /// The last line that the server sent before it, safe to display; or empty.
    pub greeting: String,
    /// The key exchange method.
    pub kex: String,
    /// The host key's algorithm.
    pub host_key: String,
    /// The cipher towards the server.
    pub cipher: &'static str,
    /// The MAC towards the server; `None` if the cipher authenticates by itself.
    pub mac: Option<&'static str>,
    /// Payloads will be compressed.
    pub compressed: bool,
}

impl Agreement {
    pub(crate) fn from_proto(proto: &trunkline_proto::Connection) -> Option<Self> {
        let server = proto.server_id()?;
        let agreed = proto.agreed_algorithms().or_else(|| proto.active_algorithms())?;
        Some(Self {
            server: server.as_str().to_owned(),
            greeting: proto.greeting().trim().to_owned(),
            kex: agreed.kex.name().to_owned(),
            host_key: agreed.host_key.clone(),
            cipher: agreed.outgoing.cipher.name(),
            mac: agreed.outgoing.mac.map(Mac::name),
            compressed: agreed.outgoing.compression == Compression::Zlib,
        })
    }
}

/// The future of [`Authenticator::new_password`].
pub type NewPassword<'a> = Pin<Box<dyn Future<Output = Option<zeroize::Zeroizing<String>>> + Send + 'a>>;

/// The future of [`Authenticator::next`].
pub type NextAttempt<'a> = Pin<Box<dyn Future<Output = Option<Attempt>> + Send + 'a>>;

/// One attempt to log in.
#[derive(Debug)]
pub struct Attempt {
    /// The user's name.
    pub user: String,
    /// The method and its credential.
    pub method: Method,
}

/// The credential of an attempt.
#[derive(Debug)]
#[non_exhaustive]
pub enum Method {
    /// None: asks which methods there are (RFC 4252 section 5.2).
    None,
    /// A password.
    Password(zeroize::Zeroizing<String>),
    /// The answers to the server's questions, given by the host's prompter.
    KeyboardInteractive,
    /// A key; the host's prompter gives its passphrase.
    Key(Box<KeyFile>),
    /// The keys of the agent at this path, one after the other.
    Agent(PathBuf),
    /// Keys whose private halves the program has, one after the other.
    Keys(Vec<bytes::Bytes>, Arc<dyn KeySigner>),
    /// The word of this machine, by its host key (RFC 4252 section 9). The host's prompter gives the key's passphrase.
    HostBased {
        /// The machine's private key.
        key: Box<KeyFile>,
        /// Its full name.
        host: String,
        /// The user's name on it.
        user: String,
    },
}

/// Signs with keys that the engine does not have.
pub trait KeySigner: Send + Sync + fmt::Debug {
    /// Signs `data` as in RFC 4253 section 6.6, by the key of `blob` with `algorithm`. Returns `None` if it cannot.
    fn sign<'a>(&'a self, blob: &'a [u8], algorithm: &'a str, data: &'a [u8]) -> Signing<'a>;
}

/// The future of [`KeySigner::sign`].
pub type Signing<'a> = Pin<Box<dyn Future<Output = Option<Vec<u8>>> + Send + 'a>>;

/// The future of [`HostKeyVerifier::verify`].
pub type Verification<'a> = Pin<Box<dyn Future<Output = Result<(), HostKeyError>> + Send + 'a>>;

impl Login {
    /// Creates a log-in that adds nothing to the configuration.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a key, tried before the agent's keys that the configuration does not name and before files.
    #[must_use]
    pub fn key(mut self, key: KeyFile) -> Self {
        self.keys.push(key);
        self
    }

    /// Lets `verifier` judge host keys.
    #[must_use]
    pub fn verify_host_key(mut self, verifier: Arc<dyn HostKeyVerifier>) -> Self {
        self.verifier = Some(verifier);
        self
    }

    /// Logs in only as `authenticator` says.
    #[must_use]
    pub fn authenticate(mut self, authenticator: Arc<dyn Authenticator>) -> Self {
        self.authenticator = Some(authenticator);
        self
    }

    /// Lets the host have up to `most` connections, when it has more sessions than the server takes on one, or much
    /// traffic. Each logs in separately, as this log-in says. By default there is one: what the server refuses on it,
    /// such as a session beyond its MaxSessions, fails with [`Error::Refused`] instead of waiting or logging in again.
    #[must_use]
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = Some(most);
        self
    }

    /// Uses this stream instead of TCP. It allows one connection.
    #[must_use]
    pub fn with_stream(
        mut self,
        stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        self.over = Some(Arc::new(Mutex::new(Some(Box::new(stream)))));
        self
    }

    pub(crate) fn authenticator(&self) -> Option<&Arc<dyn Authenticator>> {
        self.authenticator.as_ref()
    }

    pub(crate) fn keys(&self) -> &[KeyFile] {
        &self.keys
    }

    /// Returns whether the program gave a stream.
    pub(crate) fn is_over_stream(&self) -> bool {
        self.over.is_some()
    }

    /// Returns the most connections allowed.
    pub(crate) fn most_connections(&self) -> usize {
        match (&self.over, self.connections) {
            (None, Some(most)) => most.max(1),
            _ => 1,
        }
    }

    /// Takes the program's stream, once; returns `None` for TCP.
    pub(crate) fn dial(&self) -> Option<Result<Dialed, Error>> {
        let over = self.over.as_ref()?;
        // The lock only guards taking the stream.
        let taken = over.lock().unwrap_or_else(PoisonError::into_inner).take();
        Some(match taken {
            Some(stream) => Ok(Dialed {
                io: Box::new(stream),
                address: None,
                rtt: None,
                words: None,
            }),
            None => Err(Invalid::StreamUsedUp.into()),
        })
    }

    /// Returns the judge of host keys, if not known_hosts alone.
    pub(crate) fn verifier(&self) -> Option<&Arc<dyn HostKeyVerifier>> {
        self.verifier.as_ref()
    }

    /// Returns whether a verifier judges the verdict of known_hosts under `StrictHostKeyChecking yes`.
    pub(crate) fn judges_host_keys(&self) -> bool {
        self.verifier.is_some()
    }

    /// Replaces the decision by the program's, if it has a verifier.
    pub(crate) async fn judge(&self, decision: Decision, server: &Server<'_>, key: &[u8]) -> Decision {
        let Some(verifier) = &self.verifier else {
            return decision;
        };
        let host = server.lookup_name();
        let files = match decision {
            Decision::Accept(_) | Decision::AcceptAndRemember(..) => Ok(()),
            Decision::Reject(error) => Err(error),
            Decision::Ask(question) => Err(HostKeyError::NotConfirmed {
                host: host.clone(),
                fingerprint: question.fingerprint,
            }),
        };
        match verifier.verify(&host, key, files).await {
            Ok(()) => Decision::Accept(Accepted {
                key: bytes::Bytes::copy_from_slice(key),
                is_unverified: false,
                may_update: false,
                warnings: Vec::new(),
                known_at: None,
            }),
            Err(error) => Decision::Reject(error),
        }
    }
}

/// Returns the refusal of a verifier that has no other reason.
pub fn refused_by_program(host: &str, key: &[u8]) -> HostKeyError {
    HostKeyError::RefusedByProgram {
        host: host.to_owned(),
        fingerprint: fingerprint(key),
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("keys", &self.keys)
            .field("verifier", &self.verifier.is_some())
            .field("authenticator", &self.authenticator.is_some())
            .field("over", &self.over.is_some())
            .finish()
    }
}
