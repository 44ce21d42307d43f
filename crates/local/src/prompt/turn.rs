//! One question at a time in each place where questions are asked.

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
    /// A terminal whose device is not known, by its path.
    Unknown(PathBuf),
    /// The displays that an askpass program was given; the program where it was given none.
    Askpass(PathBuf, [OsString; 2]),
    /// A function of the embedding program, by any number that only it has.
    Function(usize),
}

/// The right to ask in a place. Whoever else wants to ask there waits until this is dropped.
///
/// Within a process the first to come is the first to ask. Other processes are kept waiting by an advisory lock on the
/// place's own file (a terminal's device; for askpass programs one in the user's directory for sockets or caches), where it has
/// one that can be opened. The kernel takes it away from a process that dies.
#[derive(Debug)]
pub struct Turn {
    _lock: Option<File>,
    _guard: OwnedMutexGuard<()>,
}

type Turns = BTreeMap<Place, Weak<tokio::sync::Mutex<()>>>;

/// The places where this process asks now. Global because terminals are.
static TURNS: Mutex<Turns> = Mutex::new(BTreeMap::new());

/// Between two looks at a lock that another process holds: nobody notices so short a time, and a wait that is given up
/// leaves no thread behind.
const LOOK: Duration = Duration::from_millis(50);

impl Turn {
    /// Waits for it, among the questions of this process. For a [`Prompter`](super::Prompter) of one's own; those of this
    /// module take their turns by themselves.
    pub async fn wait_for(place: Place) -> Self {
        Self::take(place, None).await
    }

    /// Waits for it. `file` is locked against other processes.
    pub(super) async fn take(place: Place, file: Option<File>) -> Self {
        let guard = turns_at(place).lock_owned().await;
        if let Some(file) = &file {
            // Any other answer means that there are no locks on such a file.
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

/// Returns whether anybody has the turn that goes with this file. Asking for it takes it from nobody.
pub(super) fn is_taken(file: &File) -> bool {
    // Shared, so that who looks at the same time is not taken for one who asks. The lock goes with the descriptor.
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
        // A description of its own stands for another process: flock(2) goes by descriptions.
        let theirs = File::open(file.path()).unwrap();
        flock(&theirs, FlockOperation::LockExclusive).unwrap();
        let ours = File::open(file.path()).unwrap();
        let mut turn = Box::pin(Turn::take(Place::Terminal(u64::MAX - 1), Some(ours)));
        assert!((&mut turn).now_or_never().is_none());
        drop(theirs);
        drop(turn.await);
    }
}
