//! The protocol between trunkline's clients and its daemon, and its client side. It has no engine: a program that talks
//! to the daemon needs only this crate.
//!
//! [`protocol`] has the messages, [`socket`] their transport, [`place`] the paths, [`client`] the client's end.
//! [`program`] finds the daemon's program, [`private`] runs a private daemon. [`own_socket`] has sockets in the file
//! system, [`sink`] the targets of output that outlive sessions, [`stdio`] streams that are shared with other
//! processes, [`terminal`] what both ends know about a user's terminal. [`memory`] protects this process's memory.

pub mod client;
pub mod descriptors;
pub mod memory;
mod message_pack;
pub mod own_socket;
pub mod place;
pub mod private;
pub mod program;
pub mod protocol;
pub mod sink;
pub mod socket;
pub mod stdio;
pub mod terminal;

pub use trunkline_local::lent;

/// The entry points of the fuzz targets.
#[doc(hidden)]
pub mod fuzzing {
    /// Decodes a client's request, as the daemon does.
    pub fn request(bytes: &[u8]) -> Option<(crate::protocol::Request, usize)> {
        crate::socket::decode(bytes).ok().flatten()
    }
}
