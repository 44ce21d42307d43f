//! Several large files at once: while one is opened, closed and renamed, the sessions carry the data of others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::item::Item;
use super::job::Job;
use super::reason::Reason;
use super::sessions::Sessions;
use super::striped::Width;
use crate::error::Error;

/// The most bytes of files that are under way together. A longer file goes alone.
const TOGETHER: u64 = 64 * 1024 * 1024;

/// Their bytes for each session that is open.
const ON_A_SESSION: u64 = 16 * 1024 * 1024;

/// The end of a file's copy: its length, or the reason why it failed.
pub(super) type Copied = Result<u64, Reason>;

/// A file's turn among the large ones.
#[derive(Clone)]
pub(super) struct Turn {
    /// The number of files that began before.
    nth: usize,
    /// The bytes of the files that are to be under way with it, its own included.
    together: u64,
    began_alone: bool,
    begun: Arc<AtomicUsize>,
}

impl Turn {
    /// Returns the turn of a file of `size` bytes that nothing else is copied beside.
    pub(super) fn alone(size: u64) -> Self {
        Self {
            nth: 0,
            together: size,
            began_alone: true,
            begun: Arc::new(AtomicUsize::new(1)),
        }
    }

    /// Returns whether another file was under way at some time of this turn. If such a file finds no room at the target, it gives
    /// back what it has taken and is copied again, alone: the others may have had the room.
    pub(super) fn is_shared(&self) -> bool {
        !self.began_alone || self.begun.load(Ordering::Relaxed) > self.nth + 1
    }

    /// Returns the sessions for the file, which has `size` bytes.
    pub(super) async fn width(&self, job: &Job, sessions: &Sessions, size: u64, upload: bool) -> Width {
        let wanted = job.streams(sessions, size, upload).await;
        Width {
            wanted,
            open: job.streams(sessions, self.together, upload).await.max(wanted),
            first: self.nth,
            alone: false,
        }
    }

    /// Returns the one session for a file that no other may work on.
    pub(super) fn single(&self) -> Width {
        Width {
            wanted: 1,
            open: 1,
            first: self.nth,
            alone: true,
        }
    }
}

/// Copies files until no more come, several at once while they are short and there is room for them.
///
/// # Errors
/// `one`, which copies a file, fails: no session is left.
pub(super) async fn copy<Copying>(
    job: &Job,
    sessions: &Sessions,
    mut items: mpsc::Receiver<Item>,
    one: impl Fn(Item, Turn) -> Copying,
    report_copied: impl Fn(Item, u64),
) -> Result<(), Error>
where
    Copying: Future<Output = Result<(Item, Copied), Error>>,
{
    let begun = Arc::new(AtomicUsize::new(0));
    let mut copying = FuturesUnordered::new();
    let (mut next, mut again) = (None, Vec::new());
    let (mut bytes, mut lacked_room) = (0, false);
    loop {
        let changed = sessions.wait_for_change();
        if copying.is_empty() && next.is_none() {
            next = again.pop();
        }
        let most = match lacked_room || job.rate.limit.is_some() {
            true => 0,
            false => TOGETHER.min(sessions.live().len() as u64 * ON_A_SESSION),
        };
        let fits = |item: &mut Item| copying.is_empty() || weigh(item).saturating_add(bytes) <= most;
        if let Some(item) = next.take_if(fits) {
            if job.is_over() {
                job.report_left(item.target);
                continue;
            }
            job.progress.set_current(&item.target);
            let weight = weigh(&item);
            // Those that wait are taken to be as long.
            let coming = item.size.saturating_mul(items.len() as u64 + 1);
            let turn = Turn {
                nth: begun.fetch_add(1, Ordering::Relaxed),
                together: coming.saturating_add(bytes).min(TOGETHER).max(item.size),
                began_alone: copying.is_empty(),
                begun: begun.clone(),
            };
            bytes += weight;
            let copied = one(item, turn.clone());
            copying.push(async move { (weight, turn, copied.await) });
        }
        tokio::select! {
            Some(item) = items.recv(), if next.is_none() && again.is_empty() => next = Some(item),
            Some((weight, turn, copied)) = copying.next() => {
                bytes -= weight;
                match copied? {
                    (item, Ok(length)) => report_copied(item, length),
                    (item, Err(reason)) if reason.lacks_room() && turn.is_shared() => {
                        lacked_room = true;
                        again.push(item);
                    }
                    (item, Err(reason)) => job.report_failed(item.target, reason),
                }
            }
            () = changed, if next.is_some() => {}
            else => return Ok(()),
        }
    }
}

/// Returns the bytes that a file counts for. Nothing is under way beside one of unknown length, or one that is written in place.
fn weigh(item: &Item) -> u64 {
    match item.stream.is_some() || item.there.special.is_some() || item.there.in_place {
        true => u64::MAX,
        false => item.size,
    }
}
