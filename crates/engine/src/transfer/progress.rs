//! [`Progress`]: the state of a running copy.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use trunkline_request::copy::{Changes, CopyEvent, Snapshot, Waiting};

use super::item::Item;
use super::place::{Location, Place};
use super::reason::Reason;
use super::sessions::Sessions;
use crate::error::Error;

/// The state of a running copy, shared with its watchers.
#[derive(Default)]
pub struct Progress {
    bytes: AtomicU64,
    /// Bytes that need not be moved again if sessions are lost.
    kept: AtomicU64,
    /// Bytes of complete files.
    copied_bytes: AtomicU64,
    pub(super) total_bytes: AtomicU64,
    files: AtomicU64,
    pub(super) total_files: AtomicU64,
    skipped: AtomicU64,
    adjusted: AtomicU64,
    found_bytes: AtomicU64,
    pub(super) failed: AtomicU64,
    deleted: AtomicU64,
    pub(super) resumed: AtomicU64,
    pub(super) streams: AtomicU64,
    compressed: AtomicBool,
    pub(super) counted: AtomicBool,
    current: Mutex<Bytes>,
    /// The host that is being connected to.
    connecting: Mutex<Option<String>>,
    checking: AtomicU64,
    /// Bytes hashed by both ends together.
    hashed: AtomicU64,
    /// The lock is held only while the list is extended.
    sessions: Mutex<Vec<Weak<Sessions>>>,
    /// The note that a server makes no hashes was shown.
    pub(super) no_hashes: AtomicBool,
    watcher: Option<Box<dyn Fn(CopyEvent) + Send + Sync>>,
}

impl Progress {
    /// Makes a progress that reports the outcome of each name to `watcher`, which the copy's tasks call: it must not block.
    pub fn watched(watcher: impl Fn(CopyEvent) + Send + Sync + 'static) -> Self {
        Self {
            watcher: Some(Box::new(watcher)),
            ..Self::default()
        }
    }

    /// Returns the current state.
    pub fn snapshot(&self) -> Snapshot {
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        Snapshot {
            bytes: load(&self.bytes),
            total_bytes: load(&self.total_bytes),
            files: load(&self.files),
            total_files: load(&self.total_files),
            skipped: load(&self.skipped),
            adjusted: load(&self.adjusted),
            found_bytes: load(&self.found_bytes),
            failed: load(&self.failed),
            deleted: load(&self.deleted),
            resumed: load(&self.resumed),
            streams: load(&self.streams),
            compressed: self.compressed.load(Ordering::Relaxed),
            counted: self.counted.load(Ordering::Relaxed),
            current: self
                .current
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            waiting: self.waiting(),
        }
    }

    fn waiting(&self) -> Option<Waiting> {
        let connecting = self.connecting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = connecting.clone() {
            return Some(Waiting::Connecting { host });
        }
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |sessions: &Weak<Sessions>| sessions.upgrade()?.waits_for();
        if let Some(waiting) = sessions.iter().find_map(waits) {
            return Some(waiting);
        }
        let bytes = self.checking.load(Ordering::Relaxed);
        // Both ends hash the bytes.
        let done = (self.hashed.load(Ordering::Relaxed) / 2).min(bytes);
        (bytes > 0).then_some(Waiting::Checking { bytes, done })
    }

    /// Shows that `bytes` left by an earlier copy are being checked, until the result is dropped.
    pub(super) fn checks(self: &Arc<Self>, bytes: u64) -> Arc<Checking> {
        self.checking.fetch_add(bytes, Ordering::Relaxed);
        Arc::new(Checking {
            progress: self.clone(),
            bytes,
            hashed: AtomicU64::new(0),
        })
    }

    /// Opens one end of the copy, and shows meanwhile that it is connecting.
    pub(super) async fn connect(&self, location: &Location) -> Result<Place, Error> {
        let shown = |host| *self.connecting.lock().unwrap_or_else(PoisonError::into_inner) = host;
        if let Location::Host(host, _) = location {
            shown(Some(host.config().original_host.clone()));
        }
        let place = Place::of(location).await;
        shown(None);
        let place = place?;
        if let Place::Server(sessions) = &place {
            let mut all = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            all.push(Arc::downgrade(sessions));
        }
        Ok(place)
    }

    /// Returns the final state, without the bytes of failed files and those moved more than once.
    pub(super) fn final_snapshot(&self) -> Snapshot {
        let bytes = self.copied_bytes.load(Ordering::Relaxed);
        let now = self.snapshot();
        Snapshot {
            bytes,
            resumed: now.resumed.min(bytes),
            ..now
        }
    }

    /// Returns a number that grows with everything that is copied, looked at or deleted.
    pub(super) fn steps(&self) -> u64 {
        let counts = [
            &self.kept,
            &self.files,
            &self.skipped,
            &self.adjusted,
            &self.failed,
            &self.deleted,
            &self.total_files,
        ];
        counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    pub(super) fn count_found(&self, bytes: u64) {
        self.total_files.fetch_add(1, Ordering::Relaxed);
        self.total_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.found_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn count_moved(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes of a large file, which survive the loss of a session.
    pub(super) fn count_kept(&self, bytes: u64) {
        self.count_moved(bytes);
        self.kept.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn set_compressed(&self, compressed: bool) {
        self.compressed.store(compressed, Ordering::Relaxed);
    }

    pub(super) fn set_current(&self, path: &Bytes) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = path.clone();
    }

    pub(super) fn report(&self, event: CopyEvent) {
        let counter = match &event {
            CopyEvent::Copied { .. } => &self.files,
            CopyEvent::Skipped { .. } => &self.skipped,
            CopyEvent::Adjusted { .. } => &self.adjusted,
            CopyEvent::Failed { .. } => &self.failed,
            CopyEvent::Deleted { .. } => &self.deleted,
            CopyEvent::Note { .. } => return self.show(event),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.show(event);
    }

    fn show(&self, event: CopyEvent) {
        if let Some(watcher) = &self.watcher {
            watcher(event);
        }
    }

    pub(super) fn report_copied(&self, path: Bytes, length: u64, changes: Changes) {
        self.copied_bytes.fetch_add(length, Ordering::Relaxed);
        self.report(CopyEvent::Copied {
            path,
            length,
            changes,
        });
    }

    pub(super) fn would_copy(&self, item: Item) {
        self.count_moved(item.size);
        self.report_copied(item.target, item.size, item.changes);
    }

    /// Reports an item that the target has already, with the attributes that were set.
    pub(super) fn report_adjusted(&self, item: &Item, changes: Changes) {
        if changes.is_empty() {
            return self.report_skipped(item);
        }
        self.total_bytes.fetch_sub(item.size, Ordering::Relaxed);
        self.report(CopyEvent::Adjusted {
            path: item.target.clone(),
            changes,
        });
    }

    pub(super) fn report_skipped(&self, item: &Item) {
        // The bytes of a skipped file are not left to copy.
        self.total_bytes.fetch_sub(item.size, Ordering::Relaxed);
        self.report(CopyEvent::Skipped {
            path: item.target.clone(),
        });
    }

    pub(super) fn report_failed(&self, path: Bytes, reason: impl Into<Reason>) {
        let Reason {
            message,
            errno,
            obstacle,
            ..
        } = reason.into();
        self.report(CopyEvent::Failed {
            path,
            message,
            errno,
            obstacle,
            below: false,
        });
    }

    /// Reports that a file counted as copied is wrong.
    pub(super) fn report_wrong(&self, name: Bytes, message: String) {
        self.files.fetch_sub(1, Ordering::Relaxed);
        self.report_failed(name, message);
    }

    /// Reports a name whose directory is missing, which was reported before.
    pub(super) fn report_below(&self, path: Bytes, shown: &str) {
        self.report(CopyEvent::Failed {
            path,
            message: format!("{shown} was not copied: its directory could not be created"),
            errno: None,
            obstacle: None,
            below: true,
        });
    }
}

/// The bytes being checked, until this is dropped.
pub(super) struct Checking {
    progress: Arc<Progress>,
    bytes: u64,
    hashed: AtomicU64,
}

impl Checking {
    /// Counts bytes that one of the ends has hashed.
    pub(super) fn add_hashed(&self, bytes: u64) {
        self.hashed.fetch_add(bytes, Ordering::Relaxed);
        self.progress.hashed.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Checking {
    fn drop(&mut self) {
        let hashed = self.hashed.load(Ordering::Relaxed);
        self.progress.hashed.fetch_sub(hashed, Ordering::Relaxed);
        self.progress.checking.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_checked_is_counted_until_it_is_over() {
        let progress = Arc::new(Progress::default());
        let first = progress.checks(100);
        first.add_hashed(60);
        let second = progress.checks(200);
        // A server's blocks may be longer than what is left of the file.
        second.add_hashed(1000);
        let waiting = |bytes, done| Some(Waiting::Checking { bytes, done });
        assert_eq!(progress.snapshot().waiting, waiting(300, 300));
        drop(second);
        assert_eq!(progress.snapshot().waiting, waiting(100, 30));
        drop(first);
        assert_eq!(progress.snapshot().waiting, None);
    }
}
