//! The shared trunkline process: one engine for everything a user runs, behind a control socket.
//!
//! [`server`] is the daemon, [`claim`] its hold on its place, [`protocol`] what it and its clients say to each other,
//! [`place`] where they meet.

pub mod claim;
mod deadline;
mod installed;
mod mux;
mod observed;
mod openssh;
mod reports;
mod requests;
pub mod server;
mod session;
mod status;
mod stop;

pub use trunkline_audit::{Filter as AuditFilter, show as show_audit};
use trunkline_control::socket;
pub use trunkline_control::socket::FrameError;
pub use trunkline_control::{place, protocol};
use trunkline_control::{stdio, terminal};

/// Checks the audit trail in `directory`. Returns true if it is intact, and a description as text or JSON. `head` is an
/// end of the trail that was noted earlier, as NUMBER:HASH, and must be in the trail.
///
/// # Errors
/// The trail is missing or cannot be read, or `head` is invalid.
pub fn verify_audit(
    directory: &std::path::Path,
    head: Option<&str>,
    json: bool,
) -> anyhow::Result<(bool, String)> {
    let verdict = trunkline_audit::verify(directory, head)?;
    let text = match json {
        true => serde_json::to_string_pretty(&verdict)? + "\n",
        false => verdict.describe(),
    };
    Ok((verdict.intact, text))
}

/// The entry points of the fuzz targets.
#[doc(hidden)]
pub mod fuzzing {
    pub use trunkline_control::fuzzing::request;

    /// Decodes a packet of a mux socket's client, without its length. Returns true if it is a request.
    pub fn mux_request(packet: &[u8]) -> bool {
        crate::mux::decodes(packet)
    }

    /// Decodes a packet of a client in proxy mode, without its length. Returns true if it is a message.
    pub fn proxy_message(packet: &bytes::Bytes) -> bool {
        crate::mux::decodes_proxied(packet)
    }
}
