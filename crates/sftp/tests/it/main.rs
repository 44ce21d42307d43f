//! The client and its transfers: against a model server on simulated time, and OpenSSH's own sftp-server over pipes.

#![expect(
    clippy::unwrap_used,
    reason = "a test may panic, and clippy knows of its functions alone, not of what they share"
)]

mod bridge;
mod model;
mod openssh;
mod other_servers;
mod transfer;
