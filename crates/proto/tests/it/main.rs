//! The state machine: against a model and a server on simulated time, and against real and hostile servers over a socket.

#![expect(
    clippy::unwrap_used,
    reason = "a test may panic, and clippy knows of its functions alone, not of what they share"
)]

mod channels;
mod hostile;
mod interop;
mod pair;
mod socket;
mod sshd;
