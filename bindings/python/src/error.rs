//! Failures on their way to Python: `trunkline._errors` makes the exceptions.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;
use trunkline::{Error, Invalid};
use trunkline_embed::{Cause, ErrorKind, Execution};

/// A failure of the engine, the daemon or this binding, as an exception will tell it.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    inner: Box<trunkline_embed::Failure>,
    /// The output so far on standard output and standard error.
    output: (Vec<u8>, Vec<u8>),
    /// Whether it is a fleet's own, and no node's.
    is_of_fleet: bool,
}

impl Failure {
    pub(crate) fn closed_locally(what: &str) -> Self {
        trunkline_embed::Failure::closed_locally(what).into()
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        trunkline_embed::Failure::new(ErrorKind::Configuration, message).into()
    }

    pub(crate) fn local(message: impl Into<String>) -> Self {
        trunkline_embed::Failure::new(ErrorKind::Local, message).into()
    }

    /// With what the command had written by then.
    #[must_use]
    pub(crate) fn with_output(mut self, stdout: Vec<u8>, stderr: Vec<u8>) -> Self {
        self.output = (stdout, stderr);
        self
    }

    /// Of a fleet, which has no kind of its own.
    #[must_use]
    pub(crate) fn of_fleet(mut self) -> Self {
        self.is_of_fleet = true;
        self
    }

    /// Of a command that may have begun.
    #[must_use]
    pub(crate) fn after_start(mut self) -> Self {
        *self.inner = self.inner.after_start();
        self
    }
}

impl From<trunkline_embed::Failure> for Failure {
    fn from(failure: trunkline_embed::Failure) -> Self {
        Self {
            inner: Box::new(failure),
            output: Default::default(),
            is_of_fleet: false,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        trunkline_embed::Failure::from(error).into()
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

/// The exception for a failure, which names the class by its kind.
pub(crate) fn exception(py: Python<'_>, failure: Failure) -> PyErr {
    let Failure {
        inner,
        output: (stdout, stderr),
        is_of_fleet,
    } = failure;
    let message = inner.to_string();
    let trunkline_embed::Failure {
        kind,
        execution,
        errno,
        cause,
        ..
    } = *inner;
    let (mut name, mut code, mut allowed, mut address) = (kind.as_str(), None, (Vec::new(), false), None);
    let mut words = None;
    match cause {
        Cause::Lookup => name = "lookup",
        Cause::Closed => name = "closed",
        Cause::Network { address: to } => address = to.map(|to| (to.ip().to_string(), to.port())),
        Cause::Authentication {
            allowed: methods,
            partial,
        } => allowed = (methods, partial),
        Cause::Refused { reason, words: said } => (code, words) = (Some(reason), Some(said)),
        Cause::File { status, .. } => code = Some(status),
        // It has an errno, whichever end it is on.
        Cause::Invalid(Invalid::NotADirectory { .. }) => name = "file",
        Cause::SftpUnstarted { .. } => name = "sftp_server",
        Cause::ClosedByPeer
        | Cause::LongText
        | Cause::Disconnected { .. }
        | Cause::NothingInCommon(_)
        | Cause::Invalid(_)
        | Cause::NotConnected(_)
        | Cause::OtherSettings
        | Cause::Unattended
        | Cause::Other => {}
    }
    if is_of_fleet {
        name = "fleet";
    }
    let arguments = (
        name,
        message,
        execution.as_str(),
        PyBytes::new(py, &stdout),
        PyBytes::new(py, &stderr),
        code,
        errno,
        allowed,
        address,
        words,
    );
    make_exception(py, arguments)
}

/// The exception for what a child made by fork has of its parent.
pub(crate) fn forked_error(py: Python<'_>) -> PyErr {
    let message = "this belongs to the parent process: connect again in a child made by fork".to_owned();
    let nothing = || PyBytes::new(py, b"");
    let did_not_start = Execution::DidNotStart.as_str();
    let allowed = (Vec::new(), false);
    make_exception(
        py,
        (
            "fork",
            message,
            did_not_start,
            nothing(),
            nothing(),
            None,
            None,
            allowed,
            None,
            None,
        ),
    )
}

/// The arguments of `from_native`: the kind's name, the message, the fate of the command, its output and error output,
/// SFTP's code or RFC 4254's reason, errno, the methods by which the server would have continued and whether it wants
/// one besides, the address that could not be connected to, and the server's words where it refused something.
type Arguments<'py> = (
    &'static str,
    String,
    &'static str,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Option<u32>,
    Option<i32>,
    (Vec<String>, bool),
    Option<(String, u16)>,
    Option<String>,
);

fn make_exception<'py>(py: Python<'py>, arguments: Arguments<'py>) -> PyErr {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = match MAKE.import(py, "trunkline._errors", "from_native") {
        Ok(make) => make,
        Err(error) => return error,
    };
    match make.call1(arguments) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}
