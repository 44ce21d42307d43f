//! The shared trunkline process: one engine for everything a user runs, behind a control socket.
//!
//! [`server`] is the daemon, [`client`] the other end, [`protocol`] what they say to each other, [`place`] where they
//! meet. [`client::session`] is a session in the daemon for other programs, [`sink`] where its output may go.

pub mod client;
mod copy;
mod forwards;
mod listening;
mod lists;
mod masters;
mod mux;
mod openssh;
pub mod pump;
pub mod reports;
pub mod server;
mod session;
mod tuning;

use trunkline_control::socket;
pub use trunkline_control::socket::FrameError;
pub use trunkline_control::{place, protocol, sink, stdio, terminal};

/// What the fuzz targets reach that nobody else should.
#[doc(hidden)]
pub mod fuzzing {
    pub use trunkline_control::fuzzing::request;

    /// Decodes what a client of a mux socket may send, without its length; whether it is a request.
    pub fn mux_request(packet: &[u8]) -> bool {
        crate::mux::decodes(packet)
    }

    /// Decodes what a client in proxy mode may send, without its length; whether it is a message.
    pub fn proxy_message(packet: &bytes::Bytes) -> bool {
        crate::mux::decodes_proxied(packet)
    }
}
