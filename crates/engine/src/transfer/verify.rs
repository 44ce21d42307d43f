//! Compares the copied files on both ends by their hashes (`--verify`).

use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, mpsc};

use super::blocks::Hash;
use super::content::{Side, Wanted};
use super::path::shown;
use super::place::Place;
use super::progress::Progress;
use crate::error::{Error, Invalid};

/// The files of a copy to compare; `None` if comparing was not requested.
pub(super) struct Verification(Option<Copied>);

/// The files that were copied and are to be compared.
#[derive(Default)]
struct Copied {
    pairs: Mutex<Vec<Pair>>,
    /// Notified when there are enough files for a comparison.
    enough: Notify,
    /// Notified when a comparison has taken some.
    taken: Notify,
}

/// A file on both ends.
pub(super) struct Pair {
    pub(super) source: Bytes,
    /// Its path at the target.
    pub(super) target: Bytes,
    /// The name in reports about the copy.
    pub(super) name: Bytes,
}

/// The most files that one command hashes on a server, and the most commands at once.
const TOGETHER: usize = 256;
const AT_ONCE: usize = 4;
/// The most files that wait to be compared while others are copied; names are handed out no faster.
const WAITING: usize = 4096;

impl Verification {
    pub(super) fn new(wanted: bool) -> Self {
        Self(wanted.then(Copied::default))
    }

    /// Notes that a regular file was copied.
    pub(super) fn add(&self, pair: impl FnOnce() -> Pair) {
        if let Some(copied) = &self.0 {
            let mut pairs = copied.pairs();
            pairs.push(pair());
            if pairs.len() >= TOGETHER {
                copied.enough.notify_one();
            }
        }
    }

    /// Returns the names of `found`, which the future passes on no faster than copied files are compared.
    pub(super) fn pace<T>(&self, found: mpsc::Receiver<T>) -> (mpsc::Receiver<T>, impl Future<Output = ()>) {
        let (found, paced) = match &self.0 {
            Some(copied) => {
                let (names, paced) = mpsc::channel(1);
                (paced, Some((found, names, copied)))
            }
            None => (found, None),
        };
        let passing = async {
            let Some((mut found, names, copied)) = paced else {
                return;
            };
            while let Some(name) = found.recv().await {
                copied.room().await;
                if names.send(name).await.is_err() {
                    break;
                }
            }
        };
        (found, passing)
    }
}

impl Copied {
    fn pairs(&self) -> MutexGuard<'_, Vec<Pair>> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn room(&self) {
        loop {
            let taken = self.taken.notified();
            if self.pairs().len() < WAITING {
                return;
            }
            taken.await;
        }
    }

    /// Takes the pairs for one comparison: with `all` those there are, otherwise only a full set.
    fn take(&self, all: bool) -> Option<Vec<Pair>> {
        let mut pairs = self.pairs();
        let count = pairs.len().min(TOGETHER);
        if count == 0 || count < TOGETHER && !all {
            return None;
        }
        let rest = pairs.split_off(count);
        let taken = std::mem::replace(&mut *pairs, rest);
        self.taken.notify_waiters();
        Some(taken)
    }
}

/// Runs `copying`, compares the copied files, and reports each one that differs.
///
/// # Errors
/// `copying` failed, or an end makes no hashes, and nothing was compared.
pub(super) async fn verify(
    verification: &Verification,
    progress: &Progress,
    (from, to): (&Place, &Place),
    copying: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    let Some(copied) = &verification.0 else {
        return copying.await;
    };
    let mut copying = pin!(copying);
    let (mut is_copied, mut unable) = (false, None);
    let mut comparisons = FuturesUnordered::new();
    loop {
        while comparisons.len() < AT_ONCE
            && let Some(pairs) = copied.take(is_copied)
        {
            if unable.is_none() {
                comparisons.push(compare(pairs, from, to));
            }
        }
        if is_copied && comparisons.is_empty() {
            return unable.map_or(Ok(()), Err);
        }
        tokio::select! {
            done = &mut copying, if !is_copied => {
                done?;
                is_copied = true;
            }
            () = copied.enough.notified(), if !is_copied => {}
            Some(wrong) = comparisons.next(), if !comparisons.is_empty() => match wrong {
                Ok(wrong) => wrong.into_iter().for_each(|(name, message)| progress.report_wrong(name, message)),
                Err(error) => unable = Some(error),
            },
        }
    }
}

/// Compares pairs of files, and returns those that differ, with the reason.
async fn compare(pairs: Vec<Pair>, from: &Place, to: &Place) -> Result<Vec<(Bytes, String)>, Error> {
    let files = |path: fn(&Pair) -> &Bytes| {
        let files = pairs.iter().map(|pair| Wanted {
            path: path(pair).clone(),
            named: true,
        });
        files.collect()
    };
    let sources = hashes(from, files(|pair| &pair.source));
    let targets = hashes(to, files(|pair| &pair.target));
    let (ours, theirs) = tokio::join!(sources, targets);
    let mut wrong = Vec::new();
    for ((pair, ours), theirs) in pairs.iter().zip(ours?).zip(theirs?) {
        if ours.is_none() || ours != theirs {
            let message = match (ours, theirs) {
                (Some(_), Some(_)) => "its content is not the source's, by SHA-256: copy it again",
                _ => "it could not be verified: an end cannot hash it",
            };
            wrong.push((pair.name.clone(), format!("{}: {message}", shown(&pair.target))));
        }
    }
    Ok(wrong)
}

async fn hashes(place: &Place, files: Vec<Wanted>) -> Result<Vec<Option<Hash>>, Error> {
    match (Side::from(place).hashes(files).await?, place) {
        (Some(hashes), _) => Ok(hashes),
        (None, Place::Local) => Ok(Vec::new()),
        (None, Place::Server(sessions)) => {
            Err(Invalid::NotVerified(sessions.first().host().to_owned()).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> Pair {
        let name = || Bytes::from_static(b"a");
        Pair {
            source: name(),
            target: name(),
            name: name(),
        }
    }

    #[tokio::test]
    async fn names_wait_for_comparisons() {
        let verification = Verification::new(true);
        let (names, found) = mpsc::channel(2);
        let (mut paced, passing) = verification.pace(found);
        let mut passing = pin!(passing);
        (0..WAITING).for_each(|_| verification.add(pair));
        names.send(1).await.unwrap();
        assert!(futures_util::poll!(&mut passing).is_pending());
        assert!(paced.try_recv().is_err());

        let copied = verification.0.as_ref().unwrap();
        assert_eq!(copied.take(false).unwrap().len(), TOGETHER);
        assert!(futures_util::poll!(&mut passing).is_pending());
        assert_eq!(paced.try_recv(), Ok(1));
        drop(names);
        passing.await;
        assert!(paced.recv().await.is_none());
    }

    #[test]
    fn a_comparison_is_filled_until_nothing_more_is_copied() {
        let verification = Verification::new(true);
        let copied = verification.0.as_ref().unwrap();
        verification.add(pair);
        assert!(copied.take(false).is_none());
        assert_eq!(copied.take(true).unwrap().len(), 1);
        assert!(copied.take(true).is_none());
    }
}
