//! What trunkline's clients and its daemon say to each other, and the client's end of it. There is no engine in it: a
//! program that speaks to the daemon needs no more than this.
//!
//! [`protocol`] is what is said, [`socket`] how it travels, [`place`] where the two meet, [`client`] the client's end.
//! [`stdio`] uses streams that belong to others without changing anything about them, [`terminal`] has what both ends know
//! of a user's terminal.

pub mod client;
pub mod place;
pub mod protocol;
pub mod socket;
pub mod stdio;
pub mod terminal;

/// What the fuzz targets reach that nobody else should.
#[doc(hidden)]
pub mod fuzzing {
    /// Decodes what a client may send, as the daemon does.
    pub fn request(bytes: &[u8]) -> Option<(crate::protocol::Request, usize)> {
        crate::socket::decode(bytes).ok().flatten()
    }
}
