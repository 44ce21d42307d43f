//! The program as its users run it, against real servers; each test with a daemon of its own.

#![expect(
    clippy::unwrap_used,
    reason = "a test may panic, and clippy knows of its functions alone, not of what they share"
)]

mod home;
mod mux;
mod program;
mod setup;
mod tty;
mod watching;
