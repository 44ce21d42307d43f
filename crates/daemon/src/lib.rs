//! The shared trunkline process: one engine for everything a user runs, behind a control socket.
//!
//! [`server`] is the daemon, [`claim`] its hold on its place, [`protocol`] what it and its clients say to each other,
//! [`place`] where they meet.

pub mod claim;
mod completing;
mod copy;
mod forwards;
mod installed;
mod listening;
mod lists;
mod masters;
mod metrics;
mod mux;
mod openssh;
mod reports;
pub mod server;
mod session;
mod status;
mod stop;
mod streams;
mod tuning;

use trunkline_control::socket;
pub use trunkline_control::socket::FrameError;
pub use trunkline_control::{place, protocol};
use trunkline_control::{stdio, terminal};

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
