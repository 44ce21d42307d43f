//! The terminal of a caller.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;

/// The caller's terminal, if it can be reached, for programs that ask questions.
///
/// It does not affect the meaning of a request: all values are equal.
#[derive(Clone, Default)]
pub struct CallersTerminal(Option<Arc<dyn Lend>>);

/// A line to the process with a terminal, once it is there.
pub type Line<'a> = Pin<Box<dyn Future<Output = Option<OwnedFd>> + Send + 'a>>;

/// A process with a terminal to lend.
pub trait Lend: Send + Sync {
    /// Returns a line to it for one program: a socket of sequenced packets. `None` if it has left.
    fn line(&self) -> Line<'_>;
}

impl CallersTerminal {
    /// Returns the terminal of a lender.
    pub fn new(lender: Arc<dyn Lend>) -> Self {
        Self(Some(lender))
    }

    /// Returns a line to the terminal's process.
    pub async fn line(&self) -> Option<OwnedFd> {
        self.0.as_ref()?.line().await
    }

    /// Returns true if there may be a terminal.
    pub fn is_known(&self) -> bool {
        self.0.is_some()
    }

    /// Returns true if both are the same caller's.
    pub fn is_that_of(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl PartialEq for CallersTerminal {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for CallersTerminal {}

impl Hash for CallersTerminal {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl fmt::Debug for CallersTerminal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CallersTerminal").field(&self.is_known()).finish()
    }
}
