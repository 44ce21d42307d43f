//! The kit's servers and programs, tried with the stock client.

#![expect(
    clippy::unwrap_used,
    reason = "a test may panic, and clippy knows of its functions alone, not of what they share"
)]

mod hostile;
mod light;
mod programs;
mod russh;
mod sshd;
