//! Servers that misbehave, independent of the code under test.
//!
//! [`RawServer`] implements just enough SSH to bring a client to the point that a test needs, with one algorithm of
//! each kind (`curve25519-sha256`, `ssh-ed25519`, `aes128-gcm@openssh.com`), and leaves every message to the test's
//! script. [`Misbehaviour`] lists scripts that clients must withstand before they are logged in, and
//! [`SessionMisbehaviour`] those for afterwards, so that one test can run all of them. [`RusshServer`] is a complete
//! server on another implementation, with commands that do strange but legal things.
//!
//! ```no_run
//! use trunkline_testkit::hostile::{Payload, RawServer, number};
//!
//! # fn main() -> Result<(), trunkline_testkit::Error> {
//! let server = RawServer::script(|mut wire| async move {
//!     wire.authenticate().await?;
//!     let session = wire.open_session().await?;
//!     // Data on a channel that nobody opened.
//!     wire.send(&Payload::message(number::CHANNEL_DATA).uint32(4711).string("boo")).await?;
//!     wire.send(&Payload::message(number::CHANNEL_CLOSE).uint32(session.client_channel)).await?;
//!     wire.expect(number::DISCONNECT).await.map(drop)
//! })?;
//! # Ok(())
//! # }
//! ```

mod encryption;
mod few_sessions;
mod identity;
mod key_exchange;
mod misbehaviour;
mod payload;
mod raw_server;
#[cfg(feature = "russh")]
mod russh_server;
mod session_misbehaviour;
mod steering;
mod wire;

pub use few_sessions::Oddity;
pub use identity::Identity;
pub use key_exchange::{KexFault, KexInit, KeyExchange};
pub use misbehaviour::Misbehaviour;
pub use payload::{Fields, Payload, number};
pub use raw_server::RawServer;
#[cfg(feature = "russh")]
pub use russh_server::{AuthStep, Question, RusshServer, RusshServerBuilder};
pub use session_misbehaviour::SessionMisbehaviour;
pub use steering::Steering;
pub use wire::{Session, Wire};
