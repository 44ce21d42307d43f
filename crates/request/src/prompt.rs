//! The subject of a question to the user.

use serde::{Deserialize, Serialize};

/// The purpose of an answer. A program can show different dialogues for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PromptKind {
    /// The passphrase of a private key.
    Passphrase,
    /// The user's password on a server.
    Password,
    /// Whether to believe a host key: `yes`, `no` or its fingerprint.
    HostKey,
    /// A question that a server asks.
    KeyboardInteractive,
    /// A yes/no question about something that is about to be done. An empty answer is a yes, as for ssh.
    Confirm,
}

impl PromptKind {
    /// The name that programs are told.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passphrase => "passphrase",
            Self::Password => "password",
            Self::HostKey => "host key",
            Self::KeyboardInteractive => "keyboard-interactive",
            Self::Confirm => "confirm",
        }
    }
}
