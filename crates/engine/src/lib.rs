//! The trunkline SSH engine: connections, pool, sessions, forwarding.

mod acknowledge;
pub mod agent;
mod authentication;
mod channel;
pub mod config;
mod connection;
pub mod destination;
mod dial;
mod driver;
mod engine;
mod error;
pub mod forward;
#[doc(hidden)]
pub mod fuzzing;
mod gather;
mod handshake;
pub mod host_key;
pub mod hosts;
mod identities;
mod interaction;
pub mod keys;
pub mod known_hosts;
mod local_program;
mod login;
pub mod memory;
pub mod metrics;
pub mod openssh;
pub mod os_bytes;
mod permission;
mod pool;
pub mod prompt;
mod queue;
mod session;
mod settings;
pub mod sftp;
pub mod transfer;
pub mod tune;

pub use channel::{ChannelCloser, ChannelReader, ChannelStream, ChannelWriter, ExitStatus};
pub use connection::{Connection, ConnectionInfo};
pub use engine::{Engine, HeldConnection, Host, HostStatus, MemoryPlace};
pub use error::{Error, ErrorKind, Execution};
pub use forward::{
    ForwardCounters, ForwardEvent, ForwardEvents, ForwardHandle, IncomingConnection, RemoteListener,
};
pub use interaction::Interaction;
pub use login::{HostKeyVerifier, Login, Verification, refused_by_program};
pub use pool::LaneStatus;
pub use session::{Command, Output, Pty, Session, SessionControl, SessionEnd, SessionParts};
pub use settings::Settings;
pub use trunkline_proto::{SessionRequest, TerminalSize};
pub use trunkline_text::Printable;
