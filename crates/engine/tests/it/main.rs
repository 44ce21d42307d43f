//! The engine against stock servers.

#![expect(
    clippy::unwrap_used,
    reason = "a test may panic, and clippy knows of its functions alone, not of what they share"
)]

mod copy_options;
mod engine;
mod error;
mod execution;
mod forward;
mod further_log_in;
mod odd_servers;
mod other_sftp;
mod private_host;
mod sftp;
mod silence;
mod site;
mod transfer;
mod tune;
