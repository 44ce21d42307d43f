//! Fleets on real NATS servers.

#![expect(
    clippy::unwrap_used,
    reason = "a test may panic, and clippy knows of its functions alone, not of what they share"
)]

mod bad_input;
mod clock;
mod faults;
mod fleet;
mod input;
mod log;
mod nats;
mod permissions;
mod strangers;
mod streams;
