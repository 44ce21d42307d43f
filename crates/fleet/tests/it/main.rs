//! Fleets on real NATS servers.

mod faults;
mod fleet;
mod nats;
mod permissions;
