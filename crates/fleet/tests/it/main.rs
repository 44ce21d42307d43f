//! Fleets on real NATS servers.

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
