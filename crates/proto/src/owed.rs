//! The replies that the server makes this side send, and their bound.

use crate::error::{Error, PeerMisbehaved};

/// The most that may wait to be sent because of the server's messages, as counted by [`Owed`]. Replies only wait while
/// the server does not read; endless requests must not fill our memory with them.
pub(crate) const MAX_OWED: usize = 4 * 1024 * 1024;
/// The memory of a queued message beside its bytes.
const OVERHEAD: usize = 64;

/// Bytes that wait to be sent because of the server's messages: answers to its requests and offers of channels, credit,
/// CLOSE for CLOSE, pongs, and answers to unknown messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Owed(usize);

impl Owed {
    /// Counts a queued message of `len` bytes.
    pub(crate) fn add(&mut self, len: usize) {
        self.0 += len + OVERHEAD;
    }

    /// Discounts a message of `len` bytes that has left the queue.
    pub(crate) fn settle(&mut self, len: usize) {
        self.0 -= len + OVERHEAD;
    }

    /// Returns the sum of both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// Fails if the server is owed too much, before any more of it is handled.
    pub(crate) fn check(self) -> Result<(), Error> {
        if self.0 > MAX_OWED {
            return Err(PeerMisbehaved::OwedTooMuch.into());
        }
        Ok(())
    }
}
