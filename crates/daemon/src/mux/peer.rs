//! The process at the other end of a mux socket: stock ssh, which says nothing of its surroundings.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use tokio::net::UnixStream;
use trunkline::config::{HostConfig, Vantage, World};
use trunkline_request::ssh_options::TypedOptions;

use super::Socket;
use trunkline_audit::asker::process_of;

/// A client's process, by its number when it connected.
#[derive(Clone, Copy)]
pub(super) struct Peer(Option<u32>);

impl Peer {
    pub(super) fn from_stream(stream: &UnixStream) -> Self {
        Self(process_of(stream))
    }

    /// Its number, where it is known.
    pub(super) fn process(self) -> Option<u32> {
        self.0
    }

    /// Returns the environment and directory that the client was started with; `None` if it cannot be looked at.
    pub(super) fn world(self) -> Option<World> {
        self.0.and_then(World::of_process)
    }

    /// Returns whether its command line asks a master for something (`-O`), and nothing for itself.
    pub(super) fn only_asks(self) -> bool {
        let Some(line) = self
            .0
            .and_then(|pid| std::fs::read(format!("/proc/{pid}/cmdline")).ok())
        else {
            return false;
        };
        let words: Vec<OsString> = line
            .split(|byte| *byte == 0)
            .skip(1)
            .map(|word| OsStr::from_bytes(word).to_owned())
            .collect();
        let asks = |from: usize| {
            let mut options = TypedOptions::from(&words, from);
            let found = options.any(|option| option.is_ok_and(|typed| typed.option.letter == b'O'));
            (found, options.position())
        };
        // In front of the destination, or behind it.
        let (found, destination) = asks(0);
        found || asks(destination + 1).0
    }

    /// Returns whether the client was told to come to the socket for something else than it is for now: it says nothing
    /// of what it was asked for, and the socket may have become another one's on its way.
    pub(super) fn is_for_another(self, socket: &Socket) -> bool {
        self.0.is_some_and(|pid| socket.is_for_another(pid))
    }

    /// Returns whether the client would reach the same host by itself: it stands where this process does, and the
    /// user's commands would see the same of it. A process that cannot be looked at, or is not there any more, would
    /// not: it loses nothing but speed. (Its number may have become another process's of the same user, who gains
    /// nothing by it.)
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
