//! The client side of SSH-2 as a state machine: bytes and time go in, bytes and events come out.
//!
//! There is no socket, no clock, no thread and no environment in this crate. [`Connection`] is the whole of it; its
//! documentation says in which order its methods are called. Inside, each protocol is a layer of its own:
//! `transport` (RFC 4253: packets and key exchange), `auth` (RFC 4252 and 4256) and [`channels`] (RFC 4254).
//!
//! # The early flights
//!
//! SSH lets more leave before the previous answer is here than clients usually make of it. With
//! [`Config::early_flights`], against servers that introduce themselves as OpenSSH:
//! - identification and KEXINIT leave together, and with a [`Config::guess`] the method's first packet too;
//! - the signed authentication request follows NEWKEYS and the service request at once;
//! - the first channel's opening, its `exec` and up to 64 KiB of its input follow the authentication request. sshd
//!   works through packets in order and runs nothing before authentication; when that fails it answers each packet
//!   behind it with SSH_MSG_UNIMPLEMENTED and its number, and only on that proof is it sent again.

mod algorithms;
mod auth;
pub mod certificate;
mod channel;
pub mod channels;
pub mod cipher;
mod compress;
mod connection;
mod error;
mod event;
#[doc(hidden)]
pub mod fuzzing;
mod identification;
pub mod kex;
pub mod mac;
mod message;
mod owed;
mod public_key;
mod receive;
mod request;
pub mod signature;
mod transport;
mod window;
pub mod wire;

pub use algorithms::{Compression, Direction, HOST_KEY_ALGORITHMS, Negotiated, Preferences};
pub use auth::HostClaim;
pub use channel::{ChannelId, Started, Stream};
pub use connection::{Config, Connection};
pub use error::{Error, PeerMisbehaved};
pub use event::{AuthTurn, ChannelEvent, Event, KeyboardPrompt};
pub use identification::{CLIENT_ID, ServerId};
pub use message::{DisconnectReason, ExtInfo};
pub use request::{
    ChannelKind, ChannelRequest, GlobalRequest, GlobalRequestId, IncomingKind, OpenFailure, TerminalSize,
};
pub use transport::RekeyLimit;
pub use trunkline_text::Printable;
pub use window::WindowBudget;
