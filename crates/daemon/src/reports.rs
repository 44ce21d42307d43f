//! The control protocol's words for what the engine takes and tells.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use trunkline::LaneStatus;
use trunkline::config::HostConfig;
use trunkline::openssh::{Master, MasterState};

use crate::protocol::{ConnectionReport, Failure, HostRequest, MasterReport};

/// A request as the engine takes it.
pub fn engine_request(host: &HostRequest) -> trunkline::config::Request {
    let mut request = trunkline::config::Request::new(host.destination.clone(), Arc::new(host.world.clone()));
    request.ssh_args.clone_from(&host.ssh_args);
    request
}

/// What went wrong.
#[must_use]
pub fn failure(error: &trunkline::Error) -> Failure {
    Failure {
        kind: error.kind().as_str().into(),
        message: error.to_string(),
        execution: error.execution().as_str().into(),
    }
}

/// What is known of a master of the system's ssh.
#[must_use]
pub fn master(master: &Master, state: &MasterState) -> MasterReport {
    let known = match state {
        MasterState::Alive(known) => Some(known),
        MasterState::Stale | MasterState::Silent | MasterState::Missing => None,
    };
    let name = match state {
        MasterState::Alive(_) => "alive",
        MasterState::Stale => "stale",
        MasterState::Silent => "silent",
        MasterState::Missing => "missing",
    };
    let since = known.and_then(|known| known.since?.duration_since(UNIX_EPOCH).ok());
    MasterReport {
        socket: master.path.clone(),
        state: name.into(),
        pid: known.map(|known| known.pid),
        since: since.map(|since| since.as_secs()),
        peer: known.and_then(|known| known.peer.clone()),
        sessions: known.and_then(|known| known.clients),
    }
}

/// Whom a host is reached as.
pub(crate) fn address(config: &HostConfig) -> String {
    format!("{}@{}:{}", config.user, config.hostname, config.port)
}

/// What is known of a connection.
pub(crate) fn connection_report(lane: &LaneStatus) -> ConnectionReport {
    let info = lane.info.as_ref();
    ConnectionReport {
        ready: info.is_some(),
        since: info
            .and_then(|info| info.since.duration_since(UNIX_EPOCH).ok())
            .map(|since| since.as_secs()),
        server: info.map_or_else(String::new, |info| info.server.clone()),
        algorithms: info.map_or_else(String::new, |info| {
            format!(
                "{}, {}, {}",
                info.kex.name(),
                info.host_key_algorithm,
                info.cipher
            )
        }),
        rtt: lane.rtt,
        sessions: lane.sessions,
        tunnels: lane.tunnels,
        spares: lane.spares,
        busy: lane.busy,
        rate: lane.rate,
        sent: lane.bytes.0,
        received: lane.bytes.1,
    }
}
