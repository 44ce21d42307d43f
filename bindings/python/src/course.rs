//! [`Course`]: a log-in that a Python program leads, one step after the other on one connection.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokio::sync::{Notify, oneshot};
use trunkline::{Agreement, Attempt, Authenticator, KeySigner, Method, NewPassword, NextAttempt, Signing};

/// The point at which the server waits for the next attempt: the methods that it continues with, once it has been asked
/// anything, and whether the last attempt was right.
pub(crate) type Turn = (Option<Vec<String>>, bool);

/// The engine's questions and the program's answers.
#[derive(Default)]
pub(crate) struct Course {
    /// Guards the engine's question until it is answered.
    asked: Mutex<Option<(Turn, oneshot::Sender<Attempt>)>>,
    /// It has asked.
    waits: Notify,
    agreement: OnceLock<Agreement>,
}

impl Course {
    /// The next question. Nothing is lost if it is not waited for to the end.
    pub(crate) async fn turn(&self) -> Turn {
        loop {
            let waits = self.waits.notified();
            if let Some((turn, _)) = &*self.lock_question() {
                return turn.clone();
            }
            waits.await;
        }
    }

    /// Returns the agreement with the server, once its host key is accepted.
    pub(crate) fn agreement(&self) -> Option<&Agreement> {
        self.agreement.get()
    }

    /// Answers the present question.
    pub(crate) fn answer(&self, attempt: Attempt) -> PyResult<()> {
        match self.lock_question().take() {
            Some((_, reply)) => {
                // A connection that has ended meanwhile says so by itself.
                let _ = reply.send(attempt);
                Ok(())
            }
            None => Err(PyValueError::new_err(
                "the server is not ready for another attempt",
            )),
        }
    }

    fn lock_question(&self) -> std::sync::MutexGuard<'_, Option<(Turn, oneshot::Sender<Attempt>)>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Authenticator for Course {
    fn next<'a>(&'a self, _login: u32, methods: Option<&'a [String]>, partial: bool) -> NextAttempt<'a> {
        let (reply, answer) = oneshot::channel();
        *self.lock_question() = Some(((methods.map(<[String]>::to_vec), partial), reply));
        self.waits.notify_waiters();
        Box::pin(async move { answer.await.ok() })
    }

    fn note_agreement(&self, _login: u32, agreement: Agreement) {
        let _ = self.agreement.set(agreement);
    }

    fn unusable(&self, _login: u32, why: &str) {
        tracing::debug!("{why}");
    }

    fn new_password<'a>(&'a self, _login: u32, _prompt: &'a str) -> NewPassword<'a> {
        Box::pin(std::future::ready(None))
    }

    fn takes_its_time(&self) -> bool {
        true
    }
}

/// One attempt, as Python says it.
#[derive(FromPyObject)]
pub(crate) struct Step {
    #[pyo3(item)]
    user: String,
    /// "none", "password", "keyboard-interactive" or "publickey".
    #[pyo3(item)]
    method: String,
    /// For "password".
    #[pyo3(item)]
    password: Option<String>,
    /// For "publickey": the public key or certificate.
    #[pyo3(item)]
    blob: Vec<u8>,
    /// For "publickey": signs, given data and an algorithm; `None` for no signature.
    #[pyo3(item)]
    sign: Option<Py<PyAny>>,
}

impl Step {
    pub(crate) fn attempt(self) -> PyResult<Attempt> {
        let method = match (&*self.method, self.sign) {
            ("none", _) => Method::None,
            ("password", _) => Method::Password(self.password.unwrap_or_default().into()),
            ("keyboard-interactive", _) => Method::KeyboardInteractive,
            ("publickey", Some(sign)) => {
                Method::Keys(vec![self.blob.into()], Arc::new(Signer(Arc::new(sign))))
            }
            (other, _) => return Err(PyValueError::new_err(format!("{other:?} is not a way to log in"))),
        };
        Ok(Attempt {
            user: self.user,
            method,
        })
    }
}

/// A Python callable that signs.
struct Signer(Arc<Py<PyAny>>);

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signer")
    }
}

impl KeySigner for Signer {
    fn sign<'a>(&'a self, _blob: &'a [u8], algorithm: &'a str, data: &'a [u8]) -> Signing<'a> {
        let callable = self.0.clone();
        let (algorithm, data) = (algorithm.to_owned(), Bytes::copy_from_slice(data));
        Box::pin(async move {
            // Python may block: on the GIL, on an agent that asks a person.
            let signing = tokio::task::spawn_blocking(move || {
                Python::attach(|py| {
                    let signed = callable.bind(py).call1((PyBytes::new(py, &data), algorithm));
                    signed
                        .and_then(|signature| signature.extract::<Option<Vec<u8>>>())
                        .unwrap_or_else(|error| {
                            error.write_unraisable(py, Some(callable.bind(py)));
                            None
                        })
                })
            });
            signing.await.ok().flatten()
        })
    }
}
