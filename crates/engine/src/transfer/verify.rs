//! Whether what was copied is the same on both ends: their hashes, when the copy is done (`--verify`).

use std::fs::File;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use super::path::{os, shown};
use super::{Job, Place, blocking, blocks};
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
    pub(super) size: u64,
}

/// Files that one command hashes on a server, at most: what names and hashes take is bounded, and a file that cannot be
/// read spoils no more.
const TOGETHER: usize = 256;

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
    for pairs in pairs.chunks(TOGETHER) {
        let [sources, targets] = [
            pairs
                .iter()
                .map(|pair| (&pair.source, pair.size))
                .collect::<Vec<_>>(),
            pairs.iter().map(|pair| (&pair.target, pair.size)).collect(),
        ];
        let (ours, theirs) = tokio::join!(hashes(from, &sources), hashes(to, &targets));
        let (ours, theirs) = (ours?, theirs?);
        for ((pair, ours), theirs) in pairs.iter().zip(ours).zip(theirs) {
            if ours.is_none() || ours != theirs {
                let message = match (ours, theirs) {
                    (Some(_), Some(_)) => "its content is not the source's, by SHA-256: copy it again",
                    _ => "it could not be verified: an end cannot hash it",
                };
                job.failed_after(pair.name.clone(), format!("{}: {message}", shown(&pair.target)));
            }
        }
    }
    Ok(())
}

/// The hashes of files' blocks on one end; `None` for a file that it cannot hash.
async fn hashes(place: &Place, files: &[(&Bytes, u64)]) -> Result<Vec<Option<blocks::Hashes>>, Error> {
    match place {
        Place::Local => {
            let files: Vec<(Bytes, u64)> = files
                .iter()
                .map(|(path, size)| ((*path).clone(), *size))
                .collect();
            let hashed = blocking(move || {
                let hash = |(path, size): (Bytes, u64)| {
                    let file = File::open(os(&path)).ok()?;
                    blocks::local_hashes(&file, blocks::count(size)).ok()
                };
                files.into_iter().map(hash).collect()
            });
            Ok(hashed.await)
        }
        Place::Server(sessions) => {
            if let Some(all) = blocks::hashes_there(sessions, files).await? {
                return Ok(all.into_iter().map(Some).collect());
            }
            // Which of them is it?
            let mut each = Vec::new();
            for file in files {
                let one = blocks::hashes_there(sessions, std::slice::from_ref(file)).await?;
                each.push(one.and_then(|mut one| one.pop()));
            }
            if each.iter().any(Option::is_some) {
                return Ok(each);
            }
            let host = sessions.first().host().to_owned();
            Err(Error::Invalid(format!(
                "{host} does not hash files: it runs no commands, or has no sha256 program. What was copied was not verified"
            )))
        }
    }
}
