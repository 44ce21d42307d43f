//! Log-ins that a program leads itself: keys in memory, its own judgement of host keys, a given stream.

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

/// Keys in memory, an own opinion on host keys, a stream to talk over. For [`Engine::private_host`](crate::Engine::private_host);
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

/// A stream to talk over, until it is taken.
type Given = Option<Box<dyn Stream>>;

/// A program's own opinion on host keys.
pub trait HostKeyVerifier: Send + Sync {
    /// Whether to continue with the server `host` (its name in known_hosts), which has shown `key` (a blob of RFC 4253
    /// section 6.6, or a certificate) and proved to have it. `files` is what the host's known_hosts files say, read as with
    /// `StrictHostKeyChecking yes`. Nothing is asked and nothing written; the handshake waits for the answer.
    fn verify<'a>(
        &'a self,
        host: &'a str,
        key: &'a [u8],
        files: Result<(), HostKeyError>,
    ) -> Verification<'a>;

    /// The server lists keys as its own (OpenSSH's PROTOCOL section 2.5): whether it is asked to prove that it has them, for
    /// [`Self::proven`].
    fn wants_proof(&self) -> WantsProof<'_> {
        Box::pin(std::future::ready(false))
    }

    /// The server has proven that it has these keys.
    fn proven(&self, keys: Vec<bytes::Bytes>) {
        drop(keys);
    }
}

/// Whether a proof is wanted, in time.
pub type WantsProof<'a> = Pin<Box<dyn Future<Output = bool> + Send + 'a>>;

/// A program's own course of a log-in, instead of ssh's order of methods.
pub trait Authenticator: Send + Sync {
    /// Returns the next attempt in the log-in of this number: each connection has one of its own. `None` when there is
    /// nothing left, which ends the log-in. `methods` are those that the server can continue with, `None` before it was
    /// asked anything; `partial`: the attempt before was right, and the server wants one more.
    fn next<'a>(&'a self, login: u32, methods: Option<&'a [String]>, partial: bool) -> NextAttempt<'a>;

    /// Takes the agreement with a server whose host key is accepted, before anything is shown to it.
    fn agreed(&self, login: u32, agreement: Agreement) {
        drop((login, agreement));
    }

    /// An agent or key could not be used, and why.
    fn unusable(&self, login: u32, why: &str);

    /// The password of the last attempt is right and has to be changed (RFC 4252 section 8); `prompt` is what the server says.
    /// The new one goes out with the old one. `None`: there is none, and the log-in continues with the next attempt.
    fn new_password<'a>(&'a self, login: u32, prompt: &'a str) -> NewPassword<'a>;

    /// Returns whether its answers may take any time. A log-in that waits for its program then counts as none of those
    /// that a server, or this machine, is to have at once.
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
    /// The last line of what the server said before it, safe to show; or empty.
    pub greeting: String,
    /// The key exchange method.
    pub kex: String,
    /// The host key's algorithm.
    pub host_key: String,
    /// The cipher towards the server.
    pub cipher: &'static str,
    /// The MAC towards the server; `None` where the cipher authenticates by itself.
    pub mac: Option<&'static str>,
    /// Whether payloads will be compressed.
    pub compressed: bool,
}

impl Agreement {
    pub(crate) fn of(proto: &trunkline_proto::Connection) -> Option<Self> {
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

/// A new password, in time.
pub type NewPassword<'a> = Pin<Box<dyn Future<Output = Option<zeroize::Zeroizing<String>>> + Send + 'a>>;

/// The next attempt, in time.
pub type NextAttempt<'a> = Pin<Box<dyn Future<Output = Option<Attempt>> + Send + 'a>>;

/// One attempt to log in.
#[derive(Debug)]
pub struct Attempt {
    /// As whom.
    pub user: String,
    /// With what.
    pub method: Method,
}

/// The credential of an attempt.
#[derive(Debug)]
#[non_exhaustive]
pub enum Method {
    /// Nothing: asks which methods there are (RFC 4252 section 5.2).
    None,
    /// A password.
    Password(zeroize::Zeroizing<String>),
    /// The answers to the server's questions, which the host's prompter gives.
    KeyboardInteractive,
    /// A key, whose passphrase the host's prompter gives.
    Key(Box<KeyFile>),
    /// The keys of the agent that listens there, one after the other.
    Agent(PathBuf),
    /// Keys of which the program has the private halves, one after the other.
    Keys(Vec<bytes::Bytes>, Arc<dyn KeySigner>),
    /// The word of this machine, whose host key this is (RFC 4252 section 9); the host's prompter gives its passphrase.
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
    /// A signature over `data` as in RFC 4253 section 6.6, by the key of `blob` with `algorithm`; `None` if there is none to be had.
    fn sign<'a>(&'a self, blob: &'a [u8], algorithm: &'a str, data: &'a [u8]) -> Signing<'a>;
}

/// The signature, in time.
pub type Signing<'a> = Pin<Box<dyn Future<Output = Option<Vec<u8>>> + Send + 'a>>;

/// The opinion, in time.
pub type Verification<'a> = Pin<Box<dyn Future<Output = Result<(), HostKeyError>> + Send + 'a>>;

impl Login {
    /// Nothing beside what the configuration names.
    pub fn new() -> Self {
        Self::default()
    }

    /// A key to log in with, tried before those of the agent's that the configuration does not name and before files.
    #[must_use]
    pub fn key(mut self, key: KeyFile) -> Self {
        self.keys.push(key);
        self
    }

    /// Leaves host keys to `verifier`.
    #[must_use]
    pub fn verify_host_key(mut self, verifier: Arc<dyn HostKeyVerifier>) -> Self {
        self.verifier = Some(verifier);
        self
    }

    /// Logs in as `authenticator` says, and with nothing else.
    #[must_use]
    pub fn authenticate(mut self, authenticator: Arc<dyn Authenticator>) -> Self {
        self.authenticator = Some(authenticator);
        self
    }

    /// Lets the host have up to `most` connections at once, where its sessions are more than the server takes on one, or its
    /// traffic calls for it; they log in one by one, as it says here. Without it there is one: what the server refuses on it,
    /// such as a session beyond its MaxSessions, fails with [`Error::Refused`] instead of waiting or logging in again.
    #[must_use]
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = Some(most);
        self
    }

    /// Talks over this stream instead of connecting by TCP. There is only one, and so one connection.
    #[must_use]
    pub fn over(
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

    /// Returns whether the way is a stream of the program's.
    pub(crate) fn is_over_stream(&self) -> bool {
        self.over.is_some()
    }

    /// The most connections that there may be.
    pub(crate) fn most_connections(&self) -> usize {
        match (&self.over, self.connections) {
            (None, Some(most)) => most.max(1),
            _ => 1,
        }
    }

    /// The program's stream, once; `None` where the way is TCP.
    pub(crate) fn dial(&self) -> Option<Result<Dialed, Error>> {
        let over = self.over.as_ref()?;
        // Guards the stream while it is taken.
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

    /// Returns whether known_hosts decide as with `StrictHostKeyChecking yes`, and are then judged.
    pub(crate) fn judges_host_keys(&self) -> bool {
        self.verifier.is_some()
    }

    /// Lets the program's opinion replace the decision.
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

/// The refusal of a verifier that has no other reason.
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
