//! The settings of a relay, and its state as the test sees it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::line::Link;

/// A direction through the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The client's bytes.
    ToServer,
    /// The server's bytes.
    ToClient,
}

/// The test's settings, which every task of the relay watches.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) to_server: Link,
    pub(super) to_client: Link,
    pub(super) handshake: bool,
    pub(super) record: bool,
    pub(super) refuse: bool,
    /// Every cut so far. A connection ends when the list is longer than at the connection's start.
    pub(super) cuts: Vec<Ending>,
}

/// The end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Fin,
    Reset,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            to_server: Link::default(),
            to_client: Link::default(),
            handshake: true,
            record: false,
            refuse: false,
            cuts: Vec::new(),
        }
    }
}

impl Settings {
    pub(super) fn direction(&mut self, direction: Direction) -> &mut Link {
        match direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        }
    }

    pub(super) fn link(&self, direction: Direction) -> Link {
        match direction {
            Direction::ToServer => self.to_server,
            Direction::ToClient => self.to_client,
        }
    }
}

/// The relay's reports to the test.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// Notified of every change of the counts.
    pub(super) changed: Notify,
    /// Notified of every change of `State::listening`.
    pub(super) listening: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) accepted: usize,
    pub(super) open: usize,
    pub(super) listening: bool,
    pub(super) to_server: Traffic,
    pub(super) to_client: Traffic,
}

#[derive(Default)]
pub(super) struct Traffic {
    pub(super) bytes: u64,
    pub(super) corruptions: Vec<u64>,
    pub(super) corrupt_next: usize,
    /// One entry for each connection. Those accepted without recording have at most an empty entry.
    pub(super) recordings: Vec<Vec<u8>>,
}

impl std::fmt::Debug for Traffic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Traffic")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // The state consists of counters and lists, which are valid whatever panicked in the meantime.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_waiters();
    }

    pub(super) fn set_listening(&self, listening: bool) {
        self.lock().listening = listening;
        self.listening.notify_all();
    }
}

impl State {
    pub(super) fn direction(&mut self, direction: Direction) -> &mut Traffic {
        match direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        }
    }
}
