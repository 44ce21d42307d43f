//! The verbosity of a program, and its log lines.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// The values of `LogLevel`, quietest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LogLevel {
    /// No messages.
    Quiet,
    /// Errors that end the program.
    Fatal,
    /// Errors.
    Error,
    /// The default.
    Info,
    /// More than the default.
    Verbose,
    /// `-v`.
    Debug1,
    /// `-vv`.
    Debug2,
    /// `-vvv`.
    Debug3,
}

impl LogLevel {
    /// Returns the level for a word in ssh_config.
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

    /// Returns ssh's prefix for a line of this level: empty except for debugging levels.
    #[must_use]
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Debug1 => "debug1: ",
            Self::Debug2 => "debug2: ",
            Self::Debug3 => "debug3: ",
            _ => "",
        }
    }
}

/// A line of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// The time of writing.
    pub at: SystemTime,
    /// The lowest level that shows it.
    pub level: LogLevel,
    /// The text, without control characters.
    pub text: String,
}
