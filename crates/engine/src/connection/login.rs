//! What a program brings itself to log in with, instead of leaving it to ssh's files.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use trunkline_proto::signature::fingerprint;

use crate::connection::dial::{Dialed, Io};
use crate::error::Error;
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
    over: Option<Arc<Mutex<Given>>>,
}

/// A stream to talk over, until it is taken.
type Given = Option<Box<dyn Io>>;

/// A program's own opinion on host keys.
pub trait HostKeyVerifier: Send + Sync {
    /// Whether to go on with the server `host` (its name in known_hosts), which has shown `key` (a blob of RFC 4253
    /// section 6.6, or a certificate) and proved to have it. `files` is what the host's known_hosts files say, read as with
    /// `StrictHostKeyChecking yes`. Nothing is asked and nothing written; the handshake waits for the answer.
    fn verify<'a>(
        &'a self,
        host: &'a str,
        key: &'a [u8],
        files: Result<(), HostKeyError>,
    ) -> Verification<'a>;
}

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

    /// Talks over this stream instead of connecting by TCP. There is only one, and so one connection.
    #[must_use]
    pub fn over(
        mut self,
        stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        self.over = Some(Arc::new(Mutex::new(Some(Box::new(stream)))));
        self
    }

    pub(crate) fn keys(&self) -> &[KeyFile] {
        &self.keys
    }

    /// Whether the stream is the program's.
    pub(crate) fn is_over_a_stream(&self) -> bool {
        self.over.is_some()
    }

    /// The program's stream, once; `None` where the way is TCP.
    pub(crate) fn dial(&self) -> Option<Result<Dialed, Error>> {
        let over = self.over.as_ref()?;
        // Guards the stream while it is taken.
        let taken = over.lock().unwrap_or_else(PoisonError::into_inner).take();
        Some(match taken {
            Some(io) => Ok(Dialed {
                io,
                address: None,
                rtt: None,
            }),
            None => Err(Error::Usage(
                "the stream that was given for the connection is used up".into(),
            )),
        })
    }

    /// Whether known_hosts decide as with `StrictHostKeyChecking yes`, and are then judged.
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
            .field("over", &self.over.is_some())
            .finish()
    }
}
