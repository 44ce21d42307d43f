//! [`Job`]: what a copy's parts share.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use trunkline_request::copy::{CopyEvent, CopyOptions};
use trunkline_request::mode::ModeChange;
use trunkline_sftp::transfer::NameBudget;

use super::backup::Backups;
use super::compare::Beside;
use super::compression::Flow;
use super::directory::LocalDirectory;
use super::filter::Filters;
use super::item::{Item, Kind};
use super::parallel::{MOST_NARROW, MOST_SMALL_SESSIONS, NARROW, Plenty, WANTED_RATE, streams_for};
use super::path::shown;
use super::progress::Progress;
use super::rate::Rate;
use super::reason::{Reason, STOPPED};
use super::sessions::{NEAR, Sessions};
use super::sources::{Deletion, HardLinks};
use super::there::Listings;
use super::tree::{Finish, Tree};
use super::verify::{Pair, Verification};
use crate::engine::Host;
use crate::error::Error;
use crate::memory::tuned::MOST_STREAMS;
use crate::sftp::{FileAttributes, Status};

/// The state that all parts of a copy share.
pub(super) struct Job {
    pub(super) options: CopyOptions,
    pub(super) filters: Filters,
    pub(super) deletion: Deletion,
    pub(super) progress: Arc<Progress>,
    pub(super) rate: Arc<Rate>,
    pub(super) flow: Flow,
    pub(super) plenty: Plenty,
    /// Attributes on the server of names that were looked up ahead; `None` if nothing has the name. Each is used once.
    pub(super) looked_at: Mutex<HashMap<Bytes, Option<FileAttributes>>>,
    pub(super) tree: Tree,
    /// The budget for names that the copy keeps.
    pub(super) names: NameBudget,
    pub(super) finish: Finish,
    pub(super) hard_links: HardLinks,
    pub(super) backups: Backups,
    pub(super) there: Listings,
    /// The number of pipes, sockets and devices that were found in trees.
    specials: AtomicU64,
    /// The note that files at the target are dated in the future was shown.
    clocks_differ: AtomicBool,
    /// Nothing more can be written: the copy ends.
    over: AtomicBool,
    /// The files to compare after they are copied.
    pub(super) verification: Verification,
    /// The server refused to rename a written file: files are written under their final names.
    pub(super) no_renaming: AtomicBool,
    /// A file that was refused its temporary name could not be created under its final name either.
    pub(super) no_last_names: AtomicBool,
    /// A large file was begun that is removed if it fails: a disk that it filled has room again.
    pub(super) gives_back: AtomicBool,
    /// How to copy the rest of a directory that was given a new name: the same copy would go into that directory.
    pub(super) rest: OnceLock<String>,
}

impl Job {
    pub(super) fn new(
        options: &CopyOptions,
        progress: &Arc<Progress>,
        rate: Arc<Rate>,
        names: NameBudget,
        keeps_names: bool,
    ) -> Result<Self, Error> {
        let deletes = options.delete && options.recursive;
        Ok(Self {
            options: options.clone(),
            filters: Filters::new(
                &options.filters,
                options.only.as_deref().map(|only| (only, options.only_recursive)),
            )?,
            deletion: Deletion::new(deletes, &names),
            progress: progress.clone(),
            rate,
            flow: Flow::default(),
            plenty: Plenty::default(),
            looked_at: Mutex::default(),
            tree: Tree::new(&names, keeps_names || deletes),
            finish: Finish::new(&names),
            hard_links: HardLinks::new(options.hard_links),
            backups: Backups::new(options),
            there: Listings::new(&names),
            names,
            specials: AtomicU64::new(0),
            verification: Verification::new(options.verify && !options.dry_run),
            clocks_differ: AtomicBool::new(false),
            over: AtomicBool::new(false),
            no_renaming: AtomicBool::new(false),
            no_last_names: AtomicBool::new(false),
            gives_back: AtomicBool::new(false),
            rest: OnceLock::new(),
        })
    }

    /// Reports that a name was not copied. If nothing else can be written either, this is the last attempt; names in progress
    /// then fail for the same reason.
    pub(super) fn report_failed(&self, path: Bytes, reason: impl Into<Reason>) {
        let mut reason = reason.into();
        if reason.for_all && !(reason.lacks_room() && self.gives_back.load(Ordering::Relaxed)) {
            if self.over.swap(true, Ordering::Relaxed) {
                return self.report_left(path);
            }
            if self.progress.total_files.load(Ordering::Relaxed) > 1 {
                reason += STOPPED;
                reason += self.rest.get().map_or("", String::as_str);
            }
        }
        self.progress.report_failed(path, reason);
    }

    /// Reports that a file of `length` bytes is at the target, under `path`.
    pub(super) fn report_copied(&self, item: Item, path: impl FnOnce(&Item) -> Bytes, length: u64) {
        self.verification.add(|| Pair {
            target: path(&item),
            source: item.source.clone(),
            name: item.target.clone(),
        });
        self.progress.report_copied(item.target, length, item.changes);
    }

    /// Reports a file's failure, after which the copy continues. Returns a session's failure, which ends the copy.
    pub(super) fn go_on_after(&self, path: Bytes, error: Error) -> Result<(), Error> {
        if matches!(error, Error::File { .. }) {
            self.report_failed(path, error);
            return Ok(());
        }
        Err(error)
    }

    /// Reports a pipe, socket or device in a tree, which is not copied. Only the first ones are named.
    pub(super) fn report_special(&self, path: &[u8]) {
        if self.specials.fetch_add(1, Ordering::Relaxed) < MOST_NAMED {
            let message = format!("{} is a pipe, socket or device: skipped", shown(path));
            self.progress.report(CopyEvent::Note { message });
        }
    }

    /// Returns whether a link leads out of its tree, by rsync's rule, and is skipped because of that.
    ///
    /// # Errors
    /// As [`Tree::leave`].
    pub(super) fn is_unsafe(&self, item: &Item, text: &[u8]) -> Result<bool, Error> {
        let is_unsafe = self.options.safe_links && leads_out(&item.target, text);
        if is_unsafe {
            let message = format!(
                "{} leads out of the tree, to {}: skipped",
                shown(&item.source),
                shown(text)
            );
            self.progress.report(CopyEvent::Note { message });
            self.tree.leave(&item.target)?;
            self.progress.report_skipped(item);
        }
        Ok(is_unsafe)
    }

    /// Reports once that a file that is skipped as newer is dated in the future: the clocks decide which file is newer.
    pub(super) fn compare_clocks(&self, there: Option<&Beside>) {
        const SUSPICIOUS: i64 = 3600;
        let modified = there.and_then(|there| there.modified).unwrap_or(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        let ahead = modified.saturating_sub(now);
        if self.options.update && ahead > SUSPICIOUS && !self.clocks_differ.swap(true, Ordering::Relaxed) {
            let message = format!(
                "a file at the target is dated {} h in the future: -u skips by times, so compare the clocks of both ends",
                ahead / 3600
            );
            self.progress.report(CopyEvent::Note { message });
        }
    }

    /// Reports how many more special files there were than were named.
    pub(super) fn report_more_specials(&self) {
        let more = self.specials.load(Ordering::Relaxed).saturating_sub(MOST_NAMED);
        if more > 0 {
            let message = format!("{more} more pipes, sockets and devices were skipped");
            self.progress.report(CopyEvent::Note { message });
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Notes that the server does not rename: further files are written under their final names. Reports this once.
    pub(super) fn note_refused_renaming(&self, host: &str, status: &Status) {
        self.write_in_place(host, "renaming what was written", status);
    }

    /// Notes the same for a server that does not create files with temporary names.
    pub(super) fn note_refused_temporary_names(&self, host: &str, status: &Status) {
        self.write_in_place(host, "a temporary name", status);
    }

    fn write_in_place(&self, host: &str, what: &str, status: &Status) {
        if !self.no_renaming.swap(true, Ordering::Relaxed) {
            let message = format!(
                "{host}: {what} is refused ({status}), so files are written under their last names; one that is interrupted \
                 stays incomplete"
            );
            self.progress.report(CopyEvent::Note { message });
        }
    }

    /// Reports a name that is not copied because the copy has stopped before.
    pub(super) fn report_left(&self, path: Bytes) {
        let message = format!("{} was not copied: the copy had stopped", shown(&path));
        self.progress.report(CopyEvent::Failed {
            path,
            message,
            errno: None,
            obstacle: None,
            below: true,
        });
    }

    /// Opens the target's directory on this machine, with the place for backups of replaced files.
    pub(super) fn open_directory(&self, root: &Path) -> std::io::Result<LocalDirectory> {
        let backup = self.options.backup.clone().filter(|_| !self.options.dry_run);
        Ok(LocalDirectory::open(root)?.keeping(backup))
    }

    /// Returns a source's permissions as changed by `chmod`.
    pub(super) fn mode(&self, mode: u32, kind: Kind) -> u32 {
        match kind {
            Kind::File | Kind::Directory => {
                ModeChange::apply(&self.options.chmod, mode, kind == Kind::Directory)
            }
            Kind::Link | Kind::Other => mode,
        }
    }

    /// Returns the permissions for a new file or directory on this machine.
    pub(super) fn local_mode(&self, mode: Option<u32>, usual: u32) -> u32 {
        match mode {
            Some(mode) if self.options.preserve => mode & self.options.kept_bits(),
            mode => mode.unwrap_or(usual) & 0o777 & !self.options.umask,
        }
    }

    pub(super) fn known_attributes(&self) -> MutexGuard<'_, HashMap<Bytes, Option<FileAttributes>>> {
        self.looked_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many bytes of a large file may be in memory. A limit on the rate bounds them to half a second's worth for
    /// all copies that share it, since bytes in flight cannot be held back.
    pub(super) fn memory(&self) -> usize {
        const MOST: usize = 48 * 1024 * 1024;
        // Each copy that shares the rate has one reference.
        let sharing = Arc::strong_count(&self.rate) as u64;
        match self.rate.limit {
            Some(limit) => usize::try_from(limit / 2 / sharing)
                .unwrap_or(MOST)
                .clamp(256 * 1024, MOST),
            None => MOST,
        }
    }

    /// Returns the number of sessions for a file: only the first for a file that fits into a few windows, else as many as the
    /// distance is worth.
    pub(super) async fn streams(&self, sessions: &Sessions, size: u64, upload: bool) -> usize {
        if let Some(streams) = self.options.streams {
            return streams.clamp(1, MOST_STREAMS);
        }
        let host = sessions.host();
        let narrow = host.as_ref().filter(|_| upload).and_then(Host::window_in_front);
        let narrow = narrow.map(u64::from).filter(|window| *window < NARROW);
        // Opening a session takes some round trips.
        let piece = narrow.map_or(4 * 1024 * 1024, |window| 8 * window.max(1));
        let worth = usize::try_from(size / piece).unwrap_or(usize::MAX);
        if worth < 2 || host.is_none() {
            return 1;
        }
        if narrow.is_some() {
            return worth.min(MOST_NARROW);
        }
        let tuned = host.as_ref().and_then(Host::tuned_choice);
        if let Some(streams) = tuned.and_then(|choice| choice.streams(upload)) {
            return streams.min(worth).max(1);
        }
        // A session that is lost meanwhile is replaced by its user.
        let Ok(rtt) = sessions.rtt().await else { return 1 };
        let rate = self
            .rate
            .limit
            .map_or(WANTED_RATE, |limit| WANTED_RATE.min(limit as f64));
        streams_for(rate, rtt, size, upload).min(worth)
    }

    /// Returns the number of sessions for small files, if there are enough of them: `near` for a near server, more for a far one,
    /// where each session has its own windows and open files.
    pub(super) async fn small_streams(&self, sessions: &Sessions, near: usize) -> usize {
        let wanted = match self.options.streams {
            Some(streams) => streams,
            None if sessions.host().is_none() => 1,
            None => match sessions.rtt().await {
                Ok(rtt) if rtt < NEAR => near,
                Ok(_) => MOST_SMALL_SESSIONS,
                Err(_) => 1,
            },
        };
        wanted.clamp(1, MOST_SMALL_SESSIONS)
    }
}

/// The number of pipes, sockets and devices in trees that each get a line.
const MOST_NAMED: u64 = 10;

/// Returns whether a link at a path below the target leads to something that is not below it.
fn leads_out(path: &[u8], text: &[u8]) -> bool {
    let mut depth = path.iter().filter(|byte| **byte == b'/').count();
    if text.is_empty() || text.starts_with(b"/") {
        return true;
    }
    for part in text.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if depth == 0 => return true,
            b".." => depth -= 1,
            _ => depth += 1,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_safe_that_stays_in_the_tree() {
        for (path, text, out) in [
            ("l", "f", false),
            ("l", "../f", true),
            ("d/l", "../f", false),
            ("d/l", "e/../../f", false),
            ("d/l", "../../f", true),
            ("d/l", "/etc/passwd", true),
            ("d/l", "", true),
        ] {
            assert_eq!(
                leads_out(path.as_bytes(), text.as_bytes()),
                out,
                "{path} -> {text}"
            );
        }
    }
}
