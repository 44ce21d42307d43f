//! What is known before a socket opens: destinations and lists of hosts, what ssh_config says of them, known_hosts and
//! what follows from it, keys and agents, and who answers questions.

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
