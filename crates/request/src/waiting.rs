//! The reason why a request waits before it begins.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::PromptKind;

/// The event that is waited for. Its [`Display`](fmt::Display) fits on a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Waiting {
    /// The connection is being made for another client, whose user is asked a question.
    Question {
        /// The target, as `user@host`.
        host: String,
        /// The kind of question.
        kind: PromptKind,
    },
    /// The existing connections have no room for another session, and no further connection is made.
    Session {
        /// The target, as `user@host`.
        host: String,
    },
}

impl Waiting {
    /// Returns the reason, without the words about waiting.
    pub fn why(&self) -> String {
        match self {
            Self::Question { host, kind } => {
                let what = match kind {
                    PromptKind::Password => "for its password",
                    PromptKind::Passphrase => "for a passphrase",
                    PromptKind::HostKey => "about its host key",
                    PromptKind::KeyboardInteractive | PromptKind::Confirm => "a question",
                };
                format!("{host}: another command is being asked {what}")
            }
            Self::Session { host } => format!("{host}: all sessions that it allows at once are in use"),
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Waiting for {}", self.why())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_is_said_in_a_line() {
        let host = "me@web1".to_owned();
        let waits = [
            Waiting::Question {
                host: host.clone(),
                kind: PromptKind::Password,
            },
            Waiting::Question {
                host: host.clone(),
                kind: PromptKind::HostKey,
            },
            Waiting::Session { host },
        ];
        assert_eq!(
            waits.map(|waiting| waiting.to_string()),
            [
                "Waiting for me@web1: another command is being asked for its password",
                "Waiting for me@web1: another command is being asked about its host key",
                "Waiting for me@web1: all sessions that it allows at once are in use",
            ]
        );
    }
}
