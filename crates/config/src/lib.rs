//! Everything a connection needs to know before a socket opens: destinations and lists of hosts, their ssh_config and
//! known_hosts with the decisions that follow, keys and agents, and the answerer of questions.

#![warn(missing_docs)]

pub mod agent;
#[doc(hidden)]
pub mod fuzzing;
pub mod host_key;
pub mod hosts;
pub mod interaction;
pub mod keys;
pub mod known_hosts;
pub mod ssh_config;

pub use trunkline_local::prompt;
pub use trunkline_request::{destination, os_bytes};
