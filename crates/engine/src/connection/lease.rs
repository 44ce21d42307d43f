//! The place that a channel takes up in its lane, and its return.

use std::fmt;

/// The way in which the place of a channel comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The server never gave it.
    NeverOpened,
    /// Both sides have closed the channel.
    Closed,
    /// This side has closed it; nobody uses it any more. The server has not closed it yet: sshd does when the command has ended,
    /// and keeps its place until then (session.c, `session_close_by_channel`).
    Left,
    /// The server has closed what was [left](Self::Left).
    Returned,
}

/// A place that a channel takes up; dropping it gives the place back to whoever lent it.
pub(crate) struct Lease {
    /// As far as is known.
    end: End,
    left: bool,
    /// Told that on the way back.
    give_back: Box<dyn Fn(End) + Send + Sync>,
}

impl Lease {
    /// A place that `give_back` takes back, told how the channel ended.
    pub(crate) fn new(give_back: impl Fn(End) + Send + Sync + 'static) -> Self {
        Self {
            end: End::Left,
            left: false,
            give_back: Box::new(give_back),
        }
    }

    /// Gives back what is this side's: the channel is closed here. What is left of it is to be dropped when the server has
    /// closed it, too.
    pub(crate) fn leave(&mut self) {
        self.left = true;
        (self.give_back)(End::Left);
    }

    /// Notes how the channel ends.
    pub(crate) fn ends(&mut self, end: End) {
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
