//! The reasons why a fixture fails.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The reason why a fixture could not be set up or did not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program that the fixture runs is not installed.
    #[error("`{program}` is not installed; it comes with Debian's package `{package}`")]
    MissingProgram {
        /// The program's name.
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },

    /// A program could not be started.
    #[error("cannot start `{program}`: {source}")]
    Start {
        /// The program's path.
        program: String,
        /// The system's error.
        source: io::Error,
    },

    /// A helper program (`ssh-keygen`, `dropbearkey`, `ssh-add`) failed.
    #[error("`{command}` failed: {stderr}")]
    Failed {
        /// The command line.
        command: String,
        /// Its standard error.
        stderr: String,
    },

    /// A server ended before it was ready. Usually its configuration is wrong; the log shows the reason.
    #[error("{program} ended before it was ready; its log:\n{log}")]
    Exited {
        program: &'static str,
        /// Everything that it has logged.
        log: String,
    },

    /// An expected event did not happen within the kit's limit of a minute.
    #[error("waited {seconds} s for {what}; the log:\n{log}")]
    Timeout {
        /// The event that was waited for.
        what: String,
        /// The time limit, in seconds.
        seconds: u64,
        /// Everything that the server has logged.
        log: String,
    },

    /// No port was free on all requested addresses.
    #[error("no port is free on all of {0:?}")]
    NoFreePort(Vec<SocketAddr>),

    /// The request is not valid for this fixture.
    #[error("{0}")]
    Misused(String),

    /// A hostile server's script failed: the client did something unexpected, or an assertion failed.
    #[error("the script failed: {0}")]
    Script(String),

    /// A file of the fixture could not be read or written.
    #[error("{path}: {source}")]
    File {
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },

    /// Any other failure of the system.
    #[error(transparent)]
    Io(#[from] io::Error),
}
