//! The trunkline SSH engine: connections, pool, sessions, forwarding.

pub mod agent;
pub mod config;
pub mod destination;
pub mod host_key;
pub mod hosts;
pub mod memory;
pub mod keys;
pub mod known_hosts;
pub mod prompt;
