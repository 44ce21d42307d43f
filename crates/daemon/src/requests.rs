//! Requests that are answered by themselves, without a session.

pub(crate) mod completing;
pub(crate) mod copy;
pub(crate) mod lists;
pub(crate) mod masters;
pub(crate) mod tuning;
