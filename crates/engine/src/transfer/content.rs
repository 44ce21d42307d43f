//! [`Checks`] compares files of both ends by hash: many with one command, several commands at once.

use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use tokio::task::JoinSet;
use trunkline_request::copy::{Changes, CopyEvent};

use super::blocking::{Awaited, blocking_steps};
use super::blocks::{self, Hash};
use super::directory::LocalDirectory;
use super::item::Item;
use super::place::Place;
use super::progress::Progress;
use super::sessions::Sessions;
use super::source::open;
use crate::error::Error;

/// One of the ends whose files are hashed.
#[derive(Clone)]
pub(super) enum Side {
    /// Paths on this machine.
    Here,
    /// Names in a directory.
    Directory(Arc<LocalDirectory>),
    Server(Arc<Sessions>),
}

impl From<&Place> for Side {
    fn from(place: &Place) -> Self {
        match place {
            Place::Local => Self::Here,
            Place::Server(sessions) => Self::Server(sessions.clone()),
        }
    }
}

/// A file to be hashed.
#[derive(Clone)]
pub(super) struct Wanted {
    pub(super) path: Bytes,
    /// The user gave its name, which may be a link.
    pub(super) named: bool,
}

impl Side {
    /// Returns a hash for each file, with `None` for one that cannot be read; `None` if this end makes no hashes.
    pub(super) async fn hashes(&self, files: Vec<Wanted>) -> Result<Option<Vec<Option<Hash>>>, Error> {
        let directory = match self {
            Self::Server(sessions) => {
                let paths: Vec<&Bytes> = files.iter().map(|file| &file.path).collect();
                return blocks::whole_there(sessions, &paths).await;
            }
            Self::Here => None,
            Self::Directory(directory) => Some(directory.clone()),
        };
        let hashed = blocking_steps(move |awaited| {
            let opened = |file: Wanted| match &directory {
                Some(directory) => directory.read(&file.path),
                None => open(&file.path, file.named),
            };
            let mut buffer = vec![0; BUFFER];
            let mut hash = |file| hash(file, &mut buffer, awaited);
            files
                .into_iter()
                .map(|file| opened(file).and_then(&mut hash).ok())
                .collect()
        });
        Ok(Some(hashed.await))
    }
}

/// The size of one read.
const BUFFER: usize = 256 * 1024;

fn hash(mut file: File, buffer: &mut [u8], awaited: &Awaited) -> std::io::Result<Hash> {
    let mut context = Context::new(&SHA256);
    while awaited.is_awaited() {
        match file.read(buffer)? {
            0 => break,
            read => context.update(&buffer[..read]),
        }
    }
    let mut hash = Hash::default();
    hash.copy_from_slice(context.finish().as_ref());
    Ok(hash)
}

/// The files that wait to be hashed or are being hashed.
pub(super) struct Checks {
    progress: Arc<Progress>,
    from: Side,
    to: Side,
    waiting: Vec<Check>,
    /// Bytes of their content and of their names.
    bytes: u64,
    names: usize,
    running: JoinSet<Result<Vec<Compared>, Error>>,
}

struct Check {
    item: Item,
    /// Its path at the target.
    there: Bytes,
    looks: Changes,
}

/// A file that was compared.
pub(super) struct Compared {
    pub(super) item: Item,
    /// The attributes to set if the content is the same; `None` if it differs.
    pub(super) looks: Option<Changes>,
}

/// The most files, and the most bytes, that one command hashes: several commands at once are faster than one.
const FILES: usize = 5000;
const BYTES: u64 = 64 * 1024 * 1024;
/// The most bytes of names in one command: NetBSD takes 256 KiB with the environment, Linux 2 MiB.
const NAMES: usize = 192 * 1024;
/// Commands at once. Each command on a server also waits for its turn there.
const AT_ONCE: usize = 8;

impl Checks {
    pub(super) fn new(progress: &Arc<Progress>, from: Side, to: Side) -> Self {
        Self {
            progress: progress.clone(),
            from,
            to,
            waiting: Vec::new(),
            bytes: 0,
            names: 0,
            running: JoinSet::new(),
        }
    }

    /// Queues a file to be compared with the one at `there`. `looks` are the attributes to set if both are the same.
    pub(super) fn add(&mut self, item: Item, there: Bytes, looks: Changes) {
        self.bytes += item.size;
        self.names += item.source.len().max(there.len());
        self.waiting.push(Check { item, there, looks });
        if self.waiting.len() >= FILES || self.bytes >= BYTES || self.names >= NAMES {
            self.begin();
        }
    }

    /// Starts comparing the queued files; returns `false` if there are none.
    pub(super) fn begin(&mut self) -> bool {
        let checks = std::mem::take(&mut self.waiting);
        (self.bytes, self.names) = (0, 0);
        if checks.is_empty() {
            return false;
        }
        let (progress, from, to) = (self.progress.clone(), self.from.clone(), self.to.clone());
        self.running.spawn(compare(progress, from, to, checks));
        true
    }

    /// Returns whether as many comparisons run as are useful.
    pub(super) fn are_many(&self) -> bool {
        self.running.len() >= AT_ONCE
    }

    /// Returns the next compared files; `None` if no comparison runs. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Result<Vec<Compared>, Error>> {
        Some(ended(self.running.join_next().await?))
    }

    /// Returns the files compared meanwhile, and waits while many comparisons run.
    pub(super) async fn take(&mut self) -> Result<Vec<Compared>, Error> {
        let mut all = Vec::new();
        while let Some(compared) = self.running.try_join_next() {
            all.extend(ended(compared)?);
        }
        while self.are_many()
            && let Some(compared) = self.next().await
        {
            all.extend(compared?);
        }
        Ok(all)
    }

    /// Returns all files that are left, once they are compared.
    pub(super) async fn finish(&mut self) -> Result<Vec<Compared>, Error> {
        self.begin();
        let mut all = Vec::new();
        while let Some(compared) = self.next().await {
            all.extend(compared?);
        }
        Ok(all)
    }
}

fn ended(
    compared: Result<Result<Vec<Compared>, Error>, tokio::task::JoinError>,
) -> Result<Vec<Compared>, Error> {
    match compared {
        Ok(compared) => compared,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down.
            Err(_) => Ok(Vec::new()),
        },
    }
}

async fn compare(
    progress: Arc<Progress>,
    from: Side,
    to: Side,
    checks: Vec<Check>,
) -> Result<Vec<Compared>, Error> {
    let filled = |check: &&Check| check.item.size > 0;
    let sources = checks.iter().filter(filled).map(|check| Wanted {
        path: check.item.source.clone(),
        named: check.item.named,
    });
    let targets = checks.iter().filter(filled).map(|check| Wanted {
        path: check.there.clone(),
        named: check.item.named,
    });
    let (ours, theirs) = tokio::join!(from.hashes(sources.collect()), to.hashes(targets.collect()));
    let (ours, theirs) = (ours?, theirs?);
    for (side, hashes) in [(&from, &ours), (&to, &theirs)] {
        if let (Side::Server(sessions), None) = (side, hashes)
            && !progress.no_hashes.swap(true, Ordering::Relaxed)
        {
            let message = format!(
                "{} does not hash files: it runs no commands, or has no sha256 program; files of the same size are copied",
                sessions.first().host()
            );
            progress.report(CopyEvent::Note { message });
        }
    }
    let mut pairs = ours.into_iter().flatten().zip(theirs.into_iter().flatten());
    let compared = checks.into_iter().map(|Check { item, looks, .. }| {
        let is_same = item.size == 0
            || pairs
                .next()
                .is_some_and(|(ours, theirs)| ours.is_some() && ours == theirs);
        let looks = is_same.then_some(looks);
        Compared { item, looks }
    });
    Ok(compared.collect())
}
