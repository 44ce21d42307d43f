//! Fleets on real NATS servers.

#![expect(
    clippy::unwrap_used,
    reason = "a test may panic, and clippy knows of its functions alone, not of what they share"
)]

mod bad_input;
mod clock;
mod faults;
mod fleet;
#[expect(dead_code, reason = "commands of the client's tests; these need some")]
#[path = "../../../cli/tests/it/home.rs"]
mod home;
mod input;
mod log;
mod nats;
mod permissions;
mod program;
mod strangers;
mod streams;
mod watching;
