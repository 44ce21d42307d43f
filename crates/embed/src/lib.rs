//! The engine in this process, or the daemon, behind one interface: for bindings to other languages, which add the
//! conversion of values and their own way of waiting.
//!
//! For a [`Destination`] there is a [`Way`], through the daemon or a [`ProgramEngine`]. Over it, sessions
//! ([`Session`]), tunnels ([`Tunnel`]), SFTP and listeners on the server ([`Listener`]) are the same wherever the
//! connection is. Every error is a [`Failure`].

mod control;
mod conversation;
mod daemon;
mod destination;
mod engine;
mod held;
mod listener;
mod recorded;
mod route;
mod session;
mod stream;
mod way;
mod worlds;

pub use control::{Control, End};
pub use destination::{Destination, Preference};
pub use engine::ProgramEngine;
pub use held::{Change, ConnectionHold};
pub use listener::{Incoming, Listener};
pub use route::{Route, Routed, RoutedInput};
pub use session::{Input, Output, Program, Ran, Session, SessionOptions, Tunnel};
pub use stream::{Reader, Writer, join, pipe};
pub use trunkline_control::client::Starter;
pub use trunkline_control::place::Place;
pub use trunkline_control::protocol::{ForwardKind, OnBehalf};
pub use trunkline_control::sink::{Target, remove_stale};
pub use trunkline_request::connection::{ConnectionReport, Handshake};
pub use trunkline_request::failure::{Cause, ErrorKind, Execution, Failure};
pub use way::{Forwarding, OpenedSession, Way};
pub use worlds::Worlds;
