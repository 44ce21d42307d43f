//! What the engine tells, in the words of the control protocol.

use std::time::UNIX_EPOCH;

use trunkline::openssh::{Master, MasterState};

use crate::protocol::{Failure, MasterReport};

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
