//! Whether what was copied is the same on both ends: their hashes, when the copy is done (`--verify`).

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use futures_util::StreamExt as _;

use super::blocks::Hash;
use super::content::{Side, Wanted};
use super::path::shown;
use super::{Job, Place};
use crate::error::Error;

/// The files that were copied, where they are to be compared.
pub(super) struct Verification(Option<Mutex<Vec<Pair>>>);

/// A file on both ends.
pub(super) struct Pair {
    pub(super) source: Bytes,
    /// Its path at the target.
    pub(super) target: Bytes,
    /// What it is called in what is told of the copy.
    pub(super) name: Bytes,
}

/// Files that one command hashes on a server, at most, and commands at once.
const TOGETHER: usize = 256;
const AT_ONCE: usize = 4;

impl Verification {
    pub(super) fn new(wanted: bool) -> Self {
        Self(wanted.then(Mutex::default))
    }

    /// A regular file was copied.
    pub(super) fn add(&self, pair: impl FnOnce() -> Pair) {
        if let Some(pairs) = &self.0 {
            pairs.lock().unwrap_or_else(PoisonError::into_inner).push(pair());
        }
    }

    fn take(&self) -> Vec<Pair> {
        let pairs = self.0.as_ref();
        pairs.map_or_else(Vec::new, |pairs| {
            std::mem::take(&mut *pairs.lock().unwrap_or_else(PoisonError::into_inner))
        })
    }
}

/// Compares what was copied since this was last called, and tells of each file that is not the same.
///
/// # Errors
/// An end that makes no hashes at all: then nothing was compared.
pub(super) async fn verify(job: &Job, from: &Place, to: &Place) -> Result<(), Error> {
    let pairs = job.verification.take();
    let comparisons: Vec<_> = pairs
        .chunks(TOGETHER)
        .map(|pairs| compare(pairs, from, to))
        .collect();
    let mut comparisons = futures_util::stream::iter(comparisons).buffered(AT_ONCE);
    while let Some(wrong) = comparisons.next().await {
        for (name, message) in wrong? {
            job.failed_after(name, message);
        }
    }
    Ok(())
}

/// What is not the same, and what is to be said of it.
async fn compare(pairs: &[Pair], from: &Place, to: &Place) -> Result<Vec<(Bytes, String)>, Error> {
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
        (None, Place::Server(sessions)) => Err(Error::Invalid(format!(
            "{} does not hash files: it runs no commands, or has no sha256 program. What was copied was not verified",
            sessions.first().host()
        ))),
    }
}
