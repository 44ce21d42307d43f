//! The terminal of a caller.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;

/// The terminal that a caller stands at, if it can be reached: programs that ask on it are started there.
///
/// It decides nothing of what a request means: every two are equal.
#[derive(Clone, Default)]
pub struct CallersTerminal(Option<Arc<dyn Lend>>);

/// A line to the process that has a terminal, once it is there.
pub type Line<'a> = Pin<Box<dyn Future<Output = Option<OwnedFd>> + Send + 'a>>;

/// Somebody with a terminal to lend.
pub trait Lend: Send + Sync {
    /// A line to it, for one program: a socket of sequenced packets. `None` where it has left.
    fn line(&self) -> Line<'_>;
}

impl CallersTerminal {
    /// Makes the terminal of a lender.
    pub fn new(lender: Arc<dyn Lend>) -> Self {
        Self(Some(lender))
    }

    /// A line to whoever has it.
    pub async fn line(&self) -> Option<OwnedFd> {
        self.0.as_ref()?.line().await
    }

    /// Returns whether there may be one.
    pub fn is_known(&self) -> bool {
        self.0.is_some()
    }

    /// Returns whether both are one caller's.
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
