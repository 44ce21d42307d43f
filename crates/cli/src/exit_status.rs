//! The program's exit status.

/// The exit status for our own errors, the same as ssh's.
pub const OWN_ERROR: u8 = 255;
