//! A user's terminal with prediction and one without it, in front of the same session.

#![expect(
    clippy::unwrap_used,
    reason = "a test may panic, and clippy knows of its functions alone, not of what they share"
)]

mod programs;
mod recorded;
mod world;
