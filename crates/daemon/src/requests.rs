//! Requests that need no session.

pub(crate) mod completing;
pub(crate) mod copy;
pub(crate) mod lists;
pub(crate) mod masters;
pub(crate) mod tuning;
