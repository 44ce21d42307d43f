//! The process at the other end of a mux socket: stock ssh, which says nothing about its environment.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use tokio::net::UnixStream;
use trunkline::config::{HostConfig, Vantage, World};
use trunkline_request::ssh_options::TypedOptions;

use super::Socket;
use trunkline_audit::asker::process_of;

/// A client's process id when it connected.
#[derive(Clone, Copy)]
pub(super) struct Peer(Option<u32>);

impl Peer {
    pub(super) fn from_stream(stream: &UnixStream) -> Self {
        Self(process_of(stream))
    }

    /// Returns the process id, if known.
    pub(super) fn process(self) -> Option<u32> {
        self.0
    }

    /// Returns the environment and directory that the client was started with; `None` if it cannot be looked at.
    pub(super) fn world(self) -> Option<World> {
        self.0.and_then(World::of_process)
    }

    /// Returns true if its command line is a request to a master (`-O`).
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
        // Options may precede or follow the destination.
        let (found, destination) = asks(0);
        found || asks(destination + 1).0
    }

    /// Returns true if the client was sent to the socket for a host that the socket no longer serves. The client does
    /// not name its host, and the socket may have changed while it was on its way.
    pub(super) fn is_for_another(self, socket: &Socket) -> bool {
        self.0.is_some_and(|pid| socket.is_for_another(pid))
    }

    /// Returns true if the client would reach the same host by itself: it sees the same network and files as this
    /// process, and the user's commands would see the same environment. False for a process that is gone or cannot be
    /// examined; that costs only speed. (Its id may have been reused by another process of the same user, who gains
    /// nothing.)
    pub(super) fn means(self, host: &HostConfig, here: &Vantage) -> bool {
        let Some(pid) = self.0 else {
            return false;
        };
        if Vantage::of_process(pid).is_none_or(|there| there.difference(here).is_some()) {
            return false;
        }
        // The environment is long and seldom matters.
        !host.runs_commands() || World::of_process(pid).is_some_and(|world| host.is_for(&world))
    }
}
