//! The process at the other end of a mux socket: stock ssh, which says nothing of its surroundings.

use tokio::net::UnixStream;
use trunkline::config::{HostConfig, Vantage, World};

/// A client's process, by its number when it connected.
#[derive(Clone, Copy)]
pub(super) struct Peer(Option<u32>);

impl Peer {
    pub(super) fn of(stream: &UnixStream) -> Self {
        let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
        Self(pid.and_then(|pid| u32::try_from(pid).ok()))
    }

    /// Whether the client would reach the same host by itself: it stands where this process does, and the user's commands
    /// would see the same of it. A process that cannot be looked at, or is not there any more, would not: it loses nothing
    /// but speed. (Its number may have become another process's of the same user, who gains nothing by it.)
    pub(super) fn means(self, host: &HostConfig, here: &Vantage) -> bool {
        let Some(pid) = self.0 else {
            return false;
        };
        if Vantage::of_process(pid).is_none_or(|there| there.difference(here).is_some()) {
            return false;
        }
        // The environment is long, and matters for few.
        !host.runs_commands() || World::of_process(pid).is_some_and(|world| host.is_for(&world))
    }
}
