//! The end of a command.

use serde::{Deserialize, Serialize};

/// The end of a session's command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    /// It exited with this status.
    Exited(u32),
    /// A signal ended it.
    Signaled {
        /// The signal's name without "SIG".
        signal: String,
        /// True if it left a core dump.
        core_dumped: bool,
    },
    /// The channel closed without a status. For a shell or a subsystem that is usual; for a command it means that
    /// the server was killed under it.
    Unknown,
}

impl ExitStatus {
    /// Returns true if the command exited with status 0.
    pub fn success(&self) -> bool {
        *self == Self::Exited(0)
    }

    /// Returns the status as a shell would show it: 128 plus the number for signals, 255 if it is unknown.
    pub fn code(&self) -> u32 {
        match self {
            Self::Exited(status) => *status,
            Self::Signaled { signal, .. } => {
                const NUMBERS: [(&str, u32); 13] = [
                    ("HUP", 1),
                    ("INT", 2),
                    ("QUIT", 3),
                    ("ILL", 4),
                    ("ABRT", 6),
                    ("FPE", 8),
                    ("KILL", 9),
                    ("USR1", 10),
                    ("SEGV", 11),
                    ("USR2", 12),
                    ("PIPE", 13),
                    ("ALRM", 14),
                    ("TERM", 15),
                ];
                NUMBERS
                    .iter()
                    .find(|(name, _)| name == signal)
                    .map_or(255, |(_, number)| 128 + number)
            }
            Self::Unknown => 255,
        }
    }
}
