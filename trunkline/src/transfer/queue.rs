//! [`Queue`]: small files that wait for a session.

use std::sync::PoisonError;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Mutex, mpsc};

use super::lanes::Lanes;
use super::{Item, MOST_SMALL_SESSIONS};
use crate::error::Error;

/// What several sessions take small files from.
pub(super) struct Queue {
    found: Mutex<mpsc::Receiver<Item>>,
    /// Guards what sessions have given back, for as long as it takes to move it.
    again: std::sync::Mutex<Vec<Item>>,
}

impl Queue {
    pub(super) fn new(found: mpsc::Receiver<Item>) -> Self {
        Self {
            found: Mutex::new(found),
            again: std::sync::Mutex::default(),
        }
    }

    /// Up to `most` files; none when no more come, but for what others give back and take themselves. Dropping the future
    /// loses nothing.
    pub(super) async fn take(&self, most: usize) -> Vec<Item> {
        {
            let mut again = self.again();
            let rest = again.len().saturating_sub(most);
            let some = again.split_off(rest);
            if !some.is_empty() {
                return some;
            }
        }
        let mut some = Vec::new();
        self.found.lock().await.recv_many(&mut some, most).await;
        some
    }

    /// What a session was given and has not finished. Whoever gives it back takes on until there is none.
    pub(super) fn give_back(&self, items: impl IntoIterator<Item = Item>) {
        self.again().extend(items);
    }

    fn again(&self) -> std::sync::MutexGuard<'_, Vec<Item>> {
        self.again.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` for each number of a session, and once more when the lanes have moved: those that are at work then have
    /// something to end.
    pub(super) async fn share<Work: Future<Output = Result<(), Error>>>(
        lanes: &Lanes,
        work: impl Fn(usize) -> Work,
    ) -> Result<(), Error> {
        let mut moves = lanes.moves();
        let mut working: FuturesUnordered<Work> = (0..MOST_SMALL_SESSIONS).map(&work).collect();
        loop {
            let changed = lanes.changed();
            if lanes.moves() > moves {
                moves = lanes.moves();
                working.push(work(0));
            }
            tokio::select! {
                ended = working.next() => match ended {
                    Some(result) => result?,
                    None => return Ok(()),
                },
                () = changed => {}
            }
        }
    }
}
