//! The client side of SSH-2 as a state machine: bytes and time go in, bytes and events come out.
//!
//! This crate uses no socket, clock, thread or environment. [`Connection`] is its entry point; its documentation says
//! in which order to call its methods. Inside, each protocol is a layer of its own: `transport` (RFC 4253: packets and
//! key exchange), `auth` (RFC 4252 and 4256) and [`channels`] (RFC 4254).
//!
//! # The early flights
//!
//! SSH allows more messages before the previous answer than clients usually send. With [`Config::early_flights`],
//! against servers that identify themselves as OpenSSH:
//! - identification and KEXINIT are sent together, and with a [`Config::guess`] the method's first packet too;
//! - the signed authentication request directly follows NEWKEYS and the service request;
//! - the first channel's opening, its `exec` and up to 64 KiB of its input follow the authentication request. sshd
//!   processes packets in order and runs nothing before authentication. If that fails, it answers each later packet
//!   with SSH_MSG_UNIMPLEMENTED and its number, and only on that proof is the packet sent again.

#![warn(missing_docs)]

mod auth;
pub mod channels;
mod connection;
mod crypto;
mod error;
mod event;
#[doc(hidden)]
pub mod fuzzing;
mod host_key;
mod message;
mod owed;
mod transport;
pub mod wire;

pub use auth::HostClaim;
pub use channels::channel::{ChannelId, Started, Stream};
pub use channels::event::ChannelEvent;
pub use channels::request::{
    ChannelKind, ChannelRequest, GlobalRequest, GlobalRequestId, IncomingKind, OpenFailure, TerminalSize,
};
pub use channels::window::WindowBudget;
pub use connection::{Config, Connection};
pub use crypto::{cipher, kex, mac};
pub use error::{AlgorithmKind, Error, PeerMisbehaved};
pub use event::{AuthTurn, Event, KeyboardPrompt};
pub use host_key::{certificate, signature};
pub use message::{DisconnectReason, ExtInfo};
pub use transport::RekeyLimit;
pub use transport::algorithms::{Compression, Direction, HOST_KEY_ALGORITHMS, Negotiated, Preferences};
pub use transport::identification::{CLIENT_ID, ServerId};
pub use trunkline_text::Printable;
