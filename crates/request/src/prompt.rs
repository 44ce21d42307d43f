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
    /// The decision about a host key: `yes`, `no` or its fingerprint.
    HostKey,
    /// A server's question.
    KeyboardInteractive,
    /// A yes/no question about an action. As in ssh, an empty answer means yes.
    Confirm,
}

impl PromptKind {
    /// Returns the name for programs.
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
