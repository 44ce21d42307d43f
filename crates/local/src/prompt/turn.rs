//! Turns: one question at a time in each place.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;

/// The place of a question.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A terminal, by its device number.
    Terminal(u64),
    /// A terminal with an unknown device, by its path.
    Unknown(PathBuf),
    /// The displays of an askpass program; the program itself if it has none.
    Askpass(PathBuf, [OsString; 2]),
    /// A function of the embedding program, by a number unique to it.
    Function(usize),
}

/// The right to ask in a place. Others that want to ask there wait until it is dropped.
///
/// Within a process, questions are asked in order of arrival. Other processes wait for an advisory lock on the place's
/// file (a terminal's device; for askpass programs one in the user's directory for sockets or caches), if there is one
/// that can be opened. The kernel releases it when its process dies.
#[derive(Debug)]
pub struct Turn {
    _lock: Option<File>,
    _guard: OwnedMutexGuard<()>,
}

type Turns = BTreeMap<Place, Weak<tokio::sync::Mutex<()>>>;

/// The places where this process is asking. Global because terminals are.
static TURNS: Mutex<Turns> = Mutex::new(BTreeMap::new());

/// The interval at which another process's lock is tried: too short to notice. A wait that is given up leaves no thread
/// behind.
const LOOK: Duration = Duration::from_millis(50);

impl Turn {
    /// Waits for the turn within this process. For your own [`Prompter`](super::Prompter); those of this module take
    /// turns by themselves.
    pub async fn wait_for(place: Place) -> Self {
        Self::take(place, None).await
    }

    /// Waits for the turn. `file` is locked against other processes.
    pub(super) async fn take(place: Place, file: Option<File>) -> Self {
        let guard = turns_at(place).lock_owned().await;
        if let Some(file) = &file {
            // Any other result means that such a file has no locks.
            while flock(file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
                tokio::time::sleep(LOOK).await;
            }
        }
        Self {
            _lock: file,
            _guard: guard,
        }
    }
}

/// Returns true if another process has the turn for this file. Does not take the turn.
pub(super) fn is_taken(file: &File) -> bool {
    // Shared, so that two processes that check at the same time do not see each other. The lock ends with the
    // descriptor.
    flock(file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
}

fn turns_at(place: Place) -> Arc<tokio::sync::Mutex<()>> {
    let mut turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    turns.retain(|_, turn| turn.strong_count() > 0);
    if let Some(turn) = turns.get(&place).and_then(Weak::upgrade) {
        return turn;
    }
    let turn = Arc::default();
    turns.insert(place, Arc::downgrade(&turn));
    turn
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    #[tokio::test]
    async fn a_place_has_one_turn_and_other_places_their_own() {
        let place = || Place::Terminal(u64::MAX);
        let first = Turn::take(place(), None).await;
        let mut second = Box::pin(Turn::take(place(), None));
        assert!((&mut second).now_or_never().is_none());
        drop(Turn::take(Place::Unknown("/x".into()), None).await);
        drop(first);
        assert!(second.now_or_never().is_some());
    }

    #[tokio::test]
    async fn another_process_is_waited_for() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // A separate description acts like another process: flock(2) is per description.
        let theirs = File::open(file.path()).unwrap();
        flock(&theirs, FlockOperation::LockExclusive).unwrap();
        let ours = File::open(file.path()).unwrap();
        let mut turn = Box::pin(Turn::take(Place::Terminal(u64::MAX - 1), Some(ours)));
        assert!((&mut turn).now_or_never().is_none());
        drop(theirs);
        drop(turn.await);
    }
}
