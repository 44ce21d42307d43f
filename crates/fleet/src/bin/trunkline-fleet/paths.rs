//! The paths of a node's sockets and settings, beside the daemon's.

use std::path::PathBuf;

use trunkline_control::place::Place;

/// Returns the socket where the node is told to drain or to leave.
pub(crate) fn socket(place: &Place) -> PathBuf {
    place.runtime.join("fleet.sock")
}

/// Returns the socket where the node serves its metrics.
pub(crate) fn metrics_socket(place: &Place) -> PathBuf {
    place.runtime.join("fleet-metrics.sock")
}

/// Returns the file of settings, next to `config.toml`.
pub(crate) fn settings(place: &Place) -> PathBuf {
    place.config.with_file_name("fleet.toml")
}
