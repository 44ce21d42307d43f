//! What holds a place for a channel.

use std::fmt;

/// A place that a channel takes up; dropping it gives the place back to whoever lent it.
pub(crate) struct Lease {
    /// Whether the server refused the channel.
    refused: bool,
    /// Told that on the way back.
    give_back: Box<dyn Fn(bool) + Send + Sync>,
}

impl Lease {
    /// A place that `give_back` takes back, told whether the server refused the channel.
    pub(crate) fn new(give_back: impl Fn(bool) + Send + Sync + 'static) -> Self {
        Self {
            refused: false,
            give_back: Box::new(give_back),
        }
    }

    /// The server refused the channel.
    pub(crate) fn refused(&mut self) {
        self.refused = true;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        (self.give_back)(self.refused);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").finish_non_exhaustive()
    }
}
