//! What holds a place for a channel.

use std::fmt;

/// How the place of a channel comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The server never gave it.
    NeverOpened,
    /// Both sides have closed the channel.
    Closed,
    /// The server has not said so, or what ran in it may go on: sshd gives a session's place back when its command has ended
    /// (session.c, `session_close_by_channel`), and says nothing of it.
    Abandoned,
}

/// A place that a channel takes up; dropping it gives the place back to whoever lent it.
pub(crate) struct Lease {
    /// As far as is known.
    end: End,
    /// Told that on the way back.
    give_back: Box<dyn Fn(End) + Send + Sync>,
}

impl Lease {
    /// A place that `give_back` takes back, told how the channel ended.
    pub(crate) fn new(give_back: impl Fn(End) + Send + Sync + 'static) -> Self {
        Self {
            end: End::Abandoned,
            give_back: Box::new(give_back),
        }
    }

    /// Notes how the channel ends.
    pub(crate) fn ends(&mut self, end: End) {
        self.end = end;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        (self.give_back)(self.end);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").finish_non_exhaustive()
    }
}
