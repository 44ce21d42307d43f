//! The trunkline SSH engine: connections, pool, sessions, forwarding.

pub mod agent;
mod authentication;
mod channel;
pub mod config;
mod connection;
pub mod destination;
mod dial;
mod driver;
mod error;
mod forward;
mod handshake;
pub mod host_key;
pub mod hosts;
mod identities;
mod interaction;
pub mod keys;
pub mod known_hosts;
pub mod memory;
pub mod metrics;
pub mod prompt;
mod session;

pub use channel::{ChannelReader, ChannelStream, ChannelWriter, ExitStatus};
pub use connection::{Connection, ConnectionInfo};
pub use error::{Error, ErrorKind, Execution};
pub use interaction::Interaction;
pub use session::{Command, Output, Pty, Session, SessionControl, SessionEnd, SessionParts};
pub use trunkline_proto::TerminalSize;
