//! The replies that the server makes this side send, and the bound on those that wait.

use crate::error::{Error, PeerMisbehaved};

/// The most that may wait to be sent because the server's messages demand it, as [`Owed`] counts it. Answers wait only
/// while the server does not read; one that asks on and on must not fill our memory with them.
pub(crate) const MAX_OWED: usize = 4 * 1024 * 1024;
/// The memory that a queued message takes beside its bytes.
const OVERHEAD: usize = 64;

/// Bytes that wait to be sent because the server's messages demand it: answers to its requests and to its offers of
/// channels, credit, CLOSE for CLOSE, pongs, and what it is told of messages that nobody understands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Owed(usize);

impl Owed {
    /// A message of `len` bytes has been queued.
    pub(crate) fn add(&mut self, len: usize) {
        self.0 += len + OVERHEAD;
    }

    /// A message of `len` bytes has left the queue.
    pub(crate) fn settle(&mut self, len: usize) {
        self.0 -= len + OVERHEAD;
    }

    /// Both together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// Refuses a server that is owed more than may wait, before anything else of it is looked at.
    pub(crate) fn check(self) -> Result<(), Error> {
        if self.0 > MAX_OWED {
            return Err(PeerMisbehaved::OwedTooMuch.into());
        }
        Ok(())
    }
}
