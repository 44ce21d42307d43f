//! The program's exit status.

/// The exit status for errors of our own, as ssh's.
pub const OWN_ERROR: u8 = 255;
