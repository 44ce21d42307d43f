//! Failures on their way to Python: `trunkline._errors` makes the exceptions.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;
use trunkline::{Error, ErrorKind, Execution};
use trunkline_daemon::client::ClientError;
use trunkline_daemon::protocol;

/// A failure of the engine, the daemon or this binding, as an exception will tell it.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    /// [`ErrorKind`]'s name, "lookup", "closed" or "fork".
    kind: String,
    message: String,
    /// [`Execution`]'s words.
    execution: String,
    /// SSH_FX_…, where the server did not do something to a file; RFC 4254's reason, where it refused a channel.
    code: Option<u32>,
    /// This machine's errno, where there is one for it.
    errno: Option<i32>,
    /// What only some failures have.
    details: Box<Details>,
}

#[derive(Debug, Clone, Default)]
struct Details {
    /// The methods that the server would have gone on with, where it let nobody in.
    allowed: Vec<String>,
    /// Whether it wants them besides what it was shown, which was right.
    partial: bool,
    /// The address that could not be connected to.
    address: Option<(String, u16)>,
    /// What had come by then on standard output and standard error.
    output: (Vec<u8>, Vec<u8>),
}

impl Failure {
    fn new(kind: &str, message: impl Into<String>, execution: Execution) -> Self {
        Self {
            kind: kind.into(),
            message: message.into(),
            execution: execution.as_str().into(),
            code: None,
            errno: None,
            details: Box::default(),
        }
    }

    pub(crate) fn forked() -> Self {
        let message = "this belongs to the parent process: connect anew in a child made by fork";
        Self::new("fork", message, Execution::DidNotStart)
    }

    pub(crate) fn closed(what: &str) -> Self {
        Self::new("closed", format!("the {what} is closed"), Execution::DidNotStart)
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Configuration.as_str(), message, Execution::DidNotStart)
    }

    pub(crate) fn local(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Local.as_str(), message, Execution::DidNotStart)
    }

    /// With what the command had written by then.
    #[must_use]
    pub(crate) fn with_output(mut self, stdout: Vec<u8>, stderr: Vec<u8>) -> Self {
        self.details.output = (stdout, stderr);
        self
    }

    /// As seen by a command that may have begun.
    #[must_use]
    pub(crate) fn after_start(mut self) -> Self {
        if self.execution == Execution::DidNotStart.as_str() {
            self.execution = Execution::MayHaveStarted.as_str().into();
        }
        self
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (mut code, mut details) = (None, Box::<Details>::default());
        let mut kind = error.kind().as_str();
        match error.root() {
            Error::File { status, .. } => code = Some(status.code.0),
            Error::Refused { reason, .. } => code = Some(*reason),
            Error::Authentication {
                allowed: methods,
                partial: more,
                ..
            } => (details.allowed, details.partial) = (methods.clone(), *more),
            Error::Network { address: to, .. } => {
                details.address = to.map(|to| (to.ip().to_string(), to.port()));
            }
            Error::Lookup { .. } => kind = "lookup",
            _ => {}
        }
        Self {
            code,
            details,
            errno: error.errno(),
            ..Self::new(kind, error.to_string(), error.execution())
        }
    }
}

/// Streams of the engine wrap its errors.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(inner) => inner.clone().into(),
            None => Self::local(error.to_string()),
        }
    }
}

impl From<protocol::Failure> for Failure {
    fn from(failure: protocol::Failure) -> Self {
        let protocol::Failure {
            kind,
            message,
            execution,
        } = failure;
        Self {
            kind,
            message,
            execution,
            code: None,
            errno: None,
            details: Box::default(),
        }
    }
}

/// Failures to reach the daemon. One that went away in the middle may have begun.
impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let execution = match error {
            ClientError::Gone => Execution::MayHaveStarted,
            _ => Execution::DidNotStart,
        };
        Self::new(ErrorKind::Local.as_str(), error.to_string(), execution)
    }
}

/// The exception for a failure, which names the class by its kind.
pub(crate) fn exception(py: Python<'_>, failure: Failure) -> PyErr {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let Failure {
        kind,
        message,
        execution,
        code,
        errno,
        details,
    } = failure;
    let Details {
        allowed,
        partial,
        address,
        output: (stdout, stderr),
    } = *details;
    let make = match MAKE.import(py, "trunkline._errors", "from_native") {
        Ok(make) => make,
        Err(error) => return error,
    };
    let arguments = (
        kind,
        message,
        execution,
        PyBytes::new(py, &stdout),
        PyBytes::new(py, &stderr),
        code,
        errno,
        (allowed, partial),
        address,
    );
    match make.call1(arguments) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}
