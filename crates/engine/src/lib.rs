//! The trunkline SSH engine: connections, pool, sessions, forwarding.

#![warn(missing_docs)]

mod connection;
mod engine;
mod error;
pub mod forward;
pub mod memory;
pub mod metrics;
pub mod openssh;
mod permission;
mod pool;
mod report;
mod settings;
pub mod sftp;
pub mod transfer;
pub mod tune;

pub use connection::channel::{ChannelCloser, ChannelEnd, ChannelReader, ChannelStream, ChannelWriter};
pub use connection::login::{
    Agreement, Attempt, Authenticator, HostKeyVerifier, KeySigner, Login, Method, NewPassword, NextAttempt,
    Signing, Verification, WantsProof, refused_by_program,
};
pub use connection::session::{Command, Output, Pty, Session, SessionControl, SessionEnd, SessionParts};
pub use connection::{Connection, ConnectionInfo, queue};
pub use engine::{Engine, HeldConnection, Host, HostStatus, MemoryPlace};
pub use error::{Absence, Doing, Error, ErrorKind, Execution, Invalid, LogInStage, ServerRequest};
pub use forward::{
    ForwardClient, ForwardCounters, ForwardEvent, ForwardEvents, ForwardHandle, IncomingConnection,
    RemoteListener, WhenOpened, Witness,
};
pub use pool::LaneStatus;
pub use settings::{AuditMode, PredictMode, Setting, Settings, SettingsError};
#[doc(hidden)]
pub use trunkline_config::fuzzing;
pub use trunkline_config::interaction::{self, Interaction};
pub use trunkline_config::ssh_config as config;
pub use trunkline_config::{agent, destination, host_key, hosts, keys, known_hosts, os_bytes, prompt};
pub use trunkline_proto::{ChannelRequest, TerminalSize};
pub use trunkline_request::ExitStatus;
pub use trunkline_text::Printable;
