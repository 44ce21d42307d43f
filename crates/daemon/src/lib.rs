//! The shared trunkline process: one engine for everything a user runs, behind a control socket.
//!
//! [`server`] is the daemon, [`client`] the other end, [`protocol`] what they say to each other, [`place`] where they
//! meet. [`client::session`] is a session in the daemon for other programs, [`sink`] where its output may go.

pub mod client;
mod copy;
mod forwards;
mod listening;
mod mux;
mod openssh;
pub mod place;
pub mod protocol;
pub mod server;
mod session;
pub mod sink;
mod socket;
pub mod stdio;
pub mod terminal;

pub use socket::FrameError;

/// What the fuzz targets reach that nobody else should.
#[doc(hidden)]
pub mod fuzzing {
    /// Decodes what a client may send, as the daemon does.
    pub fn request(bytes: &[u8]) -> Option<(crate::protocol::Request, usize)> {
        crate::socket::decode(bytes).ok().flatten()
    }

    /// Decodes what a client of a mux socket may send, without its length; whether it is a request.
    pub fn mux_request(packet: &[u8]) -> bool {
        crate::mux::decodes(packet)
    }

    /// Decodes what a client in proxy mode may send, without its length; whether it is a message.
    pub fn proxy_message(packet: &bytes::Bytes) -> bool {
        crate::mux::decodes_proxied(packet)
    }
}
