//! Why something was not copied.

use std::ops::AddAssign;

use crate::error::Error;

/// A sentence that names it, and the errno of this machine that says the same, if there is one.
#[derive(Debug)]
pub(super) struct Reason {
    pub(super) message: String,
    pub(super) errno: Option<i32>,
}

impl From<String> for Reason {
    fn from(message: String) -> Self {
        Self { message, errno: None }
    }
}

impl From<Error> for Reason {
    fn from(error: Error) -> Self {
        Self {
            message: error.to_string(),
            errno: error.errno(),
        }
    }
}

/// More to say.
impl AddAssign<&str> for Reason {
    fn add_assign(&mut self, more: &str) {
        self.message += more;
    }
}

impl std::ops::Add<&str> for Reason {
    type Output = Self;

    fn add(mut self, more: &str) -> Self {
        self += more;
        self
    }
}
