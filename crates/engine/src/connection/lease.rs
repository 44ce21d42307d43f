//! The place that a channel takes up in its lane, and its return.

use std::fmt;

/// The event that freed a channel's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The server never opened the channel.
    NeverOpened,
    /// Both sides have closed the channel.
    Closed,
    /// This side has closed the channel and no longer uses it. The server has not closed it: sshd does so when the
    /// command has ended, and keeps its place until then (session.c, `session_close_by_channel`).
    Left,
    /// The server has closed a channel that was [left](Self::Left).
    Returned,
}

/// A channel's place. Dropping it returns the place to its lender.
pub(crate) struct Lease {
    /// The best guess so far.
    end: End,
    left: bool,
    /// Called with the end when the place is returned.
    give_back: Box<dyn Fn(End) + Send + Sync>,
}

impl Lease {
    /// Creates a place that is returned by a call of `give_back` with the channel's end.
    pub(crate) fn new(give_back: impl Fn(End) + Send + Sync + 'static) -> Self {
        Self {
            end: End::Left,
            left: false,
            give_back: Box::new(give_back),
        }
    }

    /// Returns this side's share of the place: the channel is closed here. Drop the rest once the server has closed it
    /// too.
    pub(crate) fn leave(&mut self) {
        self.left = true;
        (self.give_back)(End::Left);
    }

    /// Sets how the channel ended.
    pub(crate) fn set_end(&mut self, end: End) {
        self.end = end;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        (self.give_back)(if self.left { End::Returned } else { self.end });
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").finish_non_exhaustive()
    }
}
