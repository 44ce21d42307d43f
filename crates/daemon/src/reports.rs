//! Conversions between the engine's types and the control protocol's.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use trunkline::Invalid;
use trunkline::config::HostConfig;
use trunkline::openssh::{Master, MasterState};
use trunkline_request::own::OwnError;

use crate::place::PlaceError;
use crate::protocol::{self, Escapes, HostRequest, MasterReport, Reply};

/// Converts a request for the engine.
pub(crate) fn engine_request(host: &HostRequest) -> trunkline::config::Request {
    let mut request = trunkline::config::Request::new(host.destination.clone(), Arc::new(host.world.clone()));
    request.ssh_args.clone_from(&host.ssh_args);
    request
}

/// Returns the report about a master of the system's ssh.
#[must_use]
pub(crate) fn master(master: &Master, state: &MasterState) -> MasterReport {
    let known = match state {
        MasterState::Alive(known) => Some(known),
        MasterState::Stale | MasterState::Silent | MasterState::Missing => None,
    };
    let shown = match state {
        MasterState::Alive(_) => protocol::MasterState::Alive,
        MasterState::Stale => protocol::MasterState::Stale,
        MasterState::Silent => protocol::MasterState::Silent,
        MasterState::Missing => protocol::MasterState::Missing,
    };
    let since = known.and_then(|known| known.since?.duration_since(UNIX_EPOCH).ok());
    MasterReport {
        socket: master.path.clone(),
        state: shown,
        pid: known.map(|known| known.pid),
        since: since.map(|since| since.as_secs()),
        peer: known.and_then(|known| known.peer.clone()),
        sessions: known.and_then(|known| known.clients),
    }
}

/// Returns the first reply of a session without a terminal.
pub(crate) fn plain_begun(warm: bool) -> Reply {
    Reply::Begun {
        tty: false,
        escapes: Escapes::default(),
        warm,
        hostname: String::new(),
        predict: None,
    }
}

/// Returns the user, host name and port of a host.
pub(crate) fn address(config: &HostConfig) -> String {
    format!("{}@{}:{}", config.user, config.hostname, config.port)
}

/// Returns the error for a directory of the daemon's that cannot be used.
pub(crate) fn unusable_directory(error: PlaceError) -> trunkline::Error {
    match error {
        PlaceError::NotOwn(OwnError::Io(directory, error)) => {
            trunkline::Error::local(format!("cannot create directory {}", directory.display()), error)
        }
        error => Invalid::Directory(error.to_string()).into(),
    }
}
