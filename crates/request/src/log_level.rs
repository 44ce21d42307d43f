//! How much a program tells its user.

use serde::{Deserialize, Serialize};

/// `LogLevel`, the quietest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LogLevel {
    /// Nothing.
    Quiet,
    /// What ends the program.
    Fatal,
    /// Errors.
    Error,
    /// The default.
    Info,
    /// More.
    Verbose,
    /// `-v`.
    Debug1,
    /// `-vv`.
    Debug2,
    /// `-vvv`.
    Debug3,
}

impl LogLevel {
    /// The level of a word in ssh_config.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "QUIET" | "SILENT" => Self::Quiet,
            "FATAL" => Self::Fatal,
            "ERROR" => Self::Error,
            "INFO" => Self::Info,
            "VERBOSE" => Self::Verbose,
            "DEBUG1" | "DEBUG" => Self::Debug1,
            "DEBUG2" => Self::Debug2,
            "DEBUG3" => Self::Debug3,
            _ => return None,
        })
    }
}
