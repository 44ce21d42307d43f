//! The protocol between trunkline's clients and its daemon, and the client's end of it. There is no engine in it: a
//! program that speaks to the daemon needs no more than this.
//!
//! [`protocol`] is what is said, [`socket`] how it travels, [`place`] where the two meet, [`client`] the client's end.
//! [`program`] finds the daemon's program, [`private`] is a daemon of a program's own.
//! [`own_socket`] is a socket in the file system and its file, [`sink`] where output goes from session to session,
//! [`stdio`] uses streams that belong to others without changing anything about them, [`terminal`] has what both ends know
//! of a user's terminal. [`memory`] keeps this process's from others.

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

/// The entry points of the fuzz targets, for nobody else.
#[doc(hidden)]
pub mod fuzzing {
    /// Decodes what a client may send, as the daemon does.
    pub fn request(bytes: &[u8]) -> Option<(crate::protocol::Request, usize)> {
        crate::socket::decode(bytes).ok().flatten()
    }
}
