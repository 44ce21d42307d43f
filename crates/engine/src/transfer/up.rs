//! Copies to a server, from this machine or through it from another server.

mod directories;
mod large;
mod link;
mod small;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt as _, TryStreamExt as _};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use trunkline_request::copy::{Changes, Obstacle};

use super::compare::{Beside, Verdict, verdict};
use super::content::{Checks, Compared, Side};
use super::exposed::Exposure;
use super::item::{Existing, Item, Kind, SET_ID, rewritten};
use super::job::Job;
use super::part::{self, Own};
use super::path::{self, shown};
use super::place::Place;
use super::reason::{Reason, Size, named, no_space, read_only};
use super::sessions::Sessions;
use super::small::MOST_SMALL;
use super::source::Source;
use super::survey::Survey;
use super::there::Said;
use super::tree::Origin;
use super::{blocks, delete, stream};
use crate::error::Error;
use crate::sftp::{
    self, FileAttributes, FileType, OpenFlags, Owner, Permissions, Sftp, StatVfs, Status, Times,
};

/// A copy into a server's directory.
pub(super) struct Up<'a> {
    job: &'a Arc<Job>,
    from: &'a Place,
    sessions: &'a Arc<Sessions>,
    root: &'a Bytes,
    /// The names of both ends of the copy.
    ids: [Vec<u8>; 2],
    /// Temporary names of small files.
    names: part::Names,
    /// Temporary names of small files from lost sessions or a killed copy: the server may still have the files. Other
    /// copies avoid these names until they are removed.
    lost_parts: Mutex<Vec<(Bytes, Option<Arc<Own>>)>>,
    exposure: Exposure,
    /// Directories that replace something else, and directories in them. Names that were seen there before were not in them.
    replacing: Mutex<HashSet<Bytes>>,
    /// Turns to list a directory, and to send a request for a single name.
    listing: Semaphore,
    asking: Semaphore,
    survey: Survey,
}

/// Names that are looked at together.
const BATCH: usize = 4096;
/// Names that are prepared at the same time.
const PREPARED: usize = 1024;
/// Requests for single names in flight.
const AT_ONCE: usize = 256;
/// Directories that are looked at or listed at once: each is open on the server meanwhile, which has a thousand handles for all.
const LISTINGS: usize = 256;

impl<'a> Up<'a> {
    pub(super) fn new(
        job: &'a Arc<Job>,
        from: &'a Place,
        sessions: &'a Arc<Sessions>,
        root: &'a Bytes,
    ) -> Self {
        let ids = [from.id(), Place::Server(sessions.clone()).id()];
        Self {
            job,
            from,
            sessions,
            root,
            names: part::Names::between(&ids[0], &ids[1]),
            ids,
            lost_parts: Mutex::default(),
            exposure: Exposure::default(),
            replacing: Mutex::default(),
            listing: Semaphore::new(LISTINGS),
            asking: Semaphore::new(AT_ONCE),
            survey: Survey::new(job, sessions, root),
        }
    }

    /// Copies items until no more come.
    pub(super) async fn run(&self, items: mpsc::Receiver<Item>) -> Result<(), Error> {
        let (small, small_items) = mpsc::channel(MOST_SMALL);
        let (large, large_items) = mpsc::channel(MOST_SMALL);
        tokio::try_join!(
            self.sort(items, Some([small, large])),
            self.small(small_items),
            self.large(large_items)
        )?;
        self.remove_lost_parts().await
    }

    /// Reports the names that would be copied and those that exist already.
    pub(super) async fn only_tell(&self, items: mpsc::Receiver<Item>) -> Result<(), Error> {
        self.sort(items, None).await
    }

    fn path(&self, target: &[u8]) -> Bytes {
        path::in_root(self.root, target)
    }

    /// Makes directories and links, skips unchanged names, and hands on the files, small and large ones; or only reports the
    /// names that would be copied.
    async fn sort(
        &self,
        mut items: mpsc::Receiver<Item>,
        queues: Option<[mpsc::Sender<Item>; 2]>,
    ) -> Result<(), Error> {
        let mut checks = Checks::new(
            &self.job.progress,
            self.from.into(),
            Side::Server(self.sessions.clone()),
        );
        let coming = futures_util::stream::poll_fn(|cx| {
            if self.job.is_over() {
                items.close();
            }
            items.poll_recv(cx)
        });
        let looks = coming
            .map(|item| async {
                let found = match item.kind {
                    Kind::Directory => Some(self.look_at_directory(&item.target).await),
                    _ => None,
                };
                (item, found)
            })
            .buffered(BATCH)
            .ready_chunks(PREPARED);
        let mut looks = std::pin::pin!(looks);
        // Names are prepared beside the looks, which come directory by directory: otherwise names would be looked up one at a
        // time.
        let mut preparing = FuturesUnordered::new();
        let mut more = true;
        // All futures that wait for a turn or for the copying tasks are in `preparing`: one that has a turn goes on only while
        // `preparing` is polled.
        loop {
            tokio::select! {
                batch = looks.next(), if more && preparing.len() < PREPARED && !checks.are_many() => {
                    let Some(batch) = batch else {
                        more = false;
                        continue;
                    };
                    for item in self.enter(batch).await? {
                        match self.settle_at_once(item) {
                            Ok(None) => {}
                            Ok(Some((item, looks))) => {
                                let path = self.final_path(&item);
                                checks.add(item, path, looks);
                            }
                            Err(item) => preparing.push(self.take(Step::Look(*item), queues.as_ref())),
                        }
                    }
                }
                Some(taken) = preparing.next() => match taken? {
                    Taken::Compare(item, looks) => {
                        let path = self.final_path(&item);
                        checks.add(*item, path, looks);
                    }
                    Taken::Done => {}
                    Taken::NobodyCopies => return Ok(()),
                },
                Some(compared) = checks.next() => {
                    preparing.extend(compared?.into_iter().map(|file| self.take(Step::Settle(file), queues.as_ref())));
                }
                else => {
                    if !checks.begin() {
                        break;
                    }
                }
            }
        }
        self.job.plenty.end();
        Ok(())
    }

    /// Makes the directories among names that were looked at. Returns the others.
    async fn enter(&self, batch: Vec<(Item, Option<Look>)>) -> Result<Vec<Item>, Error> {
        let (mut directories, mut others) = (Vec::new(), Vec::new());
        for (item, found) in batch {
            match found {
                _ if self.job.is_over() => self.job.report_left(item.target),
                Some(found) => directories.push((item, found)),
                None => others.push(item),
            }
        }
        self.make_directories(directories).await?;
        Ok(others)
    }

    /// Hands a file on to be copied, or reports that it would be. Returns `false` if nobody copies any more.
    async fn hand_on(&self, item: Item, queues: Option<&[mpsc::Sender<Item>; 2]>) -> bool {
        self.job.tree.touch(&item.target);
        let Some([small, large]) = queues else {
            self.job.progress.would_copy(item);
            return true;
        };
        let queue = if item.is_large() {
            large
        } else {
            self.job.plenty.count();
            small
        };
        queue.send(item).await.is_ok()
    }

    /// Sets the attributes of an unchanged file that differ from the source's.
    async fn adjust(&self, item: &Item, changes: Changes) -> Result<(), Error> {
        if !changes.is_empty() && !self.job.options.dry_run {
            let path = self.final_path(item);
            let wanted = FileAttributes {
                // A change of owner clears some of them.
                permissions: item
                    .mode
                    .filter(|_| item.kind != Kind::Link && changes.has(Changes::MODE | Changes::OWNER))
                    .map(|mode| Permissions(mode & self.job.options.kept_bits())),
                times: item.times.map(times),
                owner: item.owner.filter(|_| changes.has(Changes::OWNER)),
                ..FileAttributes::default()
            };
            let _turn = self.turn().await;
            if let Err(error) = set_looks(self.sessions, &path, &wanted, false).await {
                return self.job.go_on_after(item.target.clone(), error);
            }
        }
        self.job.progress.report_adjusted(item, changes);
        Ok(())
    }

    /// Looks up a name below the target's root, in its directory's listing if there is one.
    async fn look_below(&self, target: &Bytes, path: &Bytes) -> Result<Option<FileAttributes>, Error> {
        match self.job.there.take(target) {
            Said::Has(found) => Ok(Some(found)),
            Said::Nothing => Ok(None),
            Said::Unknown => self.look(path).await,
        }
    }

    /// Looks up a name without following a link; `None` if nothing has it.
    async fn look(&self, path: &Bytes) -> Result<Option<FileAttributes>, Error> {
        if let Some(known) = self.job.known_attributes().remove(path) {
            return Ok(known);
        }
        let lstat = |sftp: Sftp| {
            let path = path.clone();
            async move { sftp.lstat(path).await }
        };
        match self.sessions.retry(lstat).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_no_such_file() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn look_in_turn(&self, path: &Bytes) -> Look {
        let _turn = self.turn().await;
        self.look(path).await
    }

    /// Waits for a turn to send a request for a single name. The caller must not wait for another turn meanwhile.
    async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.asking.acquire().await.ok()
    }

    /// Formats a path on the server for people.
    fn format_path(&self, path: &[u8]) -> String {
        format!("{}:{}", self.sessions.first().host(), shown(path))
    }

    /// Takes a step, and hands on a file that is to be copied.
    async fn take(&self, step: Step, queues: Option<&[mpsc::Sender<Item>; 2]>) -> Result<Taken, Error> {
        let (item, prepared) = match step {
            Step::Look(mut item) => {
                let prepared = self.prepare(&mut item).await;
                (item, prepared)
            }
            Step::Settle(Compared { mut item, looks }) => {
                let prepared = self.settle(&mut item, looks).await;
                (item, prepared)
            }
        };
        Ok(match prepared {
            Ok(Prepared::Copy) => match self.hand_on(item, queues).await {
                true => Taken::Done,
                false => Taken::NobodyCopies,
            },
            Ok(Prepared::Compare(looks)) => Taken::Compare(Box::new(item), looks),
            Ok(Prepared::Done) => Taken::Done,
            Err(error) => {
                self.job.go_on_after(item.target, error)?;
                Taken::Done
            }
        })
    }

    /// Settles a file by its directory's listing alone, as most files of a mirror can be: the file stays as it is, or is to be
    /// compared. Gives back an item that has to be prepared.
    fn settle_at_once(&self, mut item: Item) -> Result<Option<(Item, Changes)>, Box<Item>> {
        let job = self.job;
        let is_usual = item.kind == Kind::File && !item.named && !job.options.ignore_existing;
        if !is_usual || job.tree.parent(&item.target) != Some(Origin::Found) {
            return Err(Box::new(item));
        }
        let mut said = None;
        let found = job.there.take_if(&item.target, |found| {
            let is_file = found.file_type() == Some(FileType::Regular);
            said = is_file.then(|| verdict(&job.options, &item, &Beside::from(found)));
            match said {
                Some(Verdict::Stays(looks)) => looks.is_empty(),
                Some(Verdict::Content(_)) => true,
                _ => false,
            }
        });
        match (found, said) {
            (Some(found), Some(Verdict::Content(looks))) => {
                item.there.existing = Some(existing(&found));
                Ok(Some((item, looks)))
            }
            (Some(_), _) => {
                job.progress.report_skipped(&item);
                Ok(None)
            }
            (None, _) => Err(Box::new(item)),
        }
    }

    /// Decides about a file whose content was compared.
    async fn settle(&self, item: &mut Item, looks: Option<Changes>) -> Result<Prepared, Error> {
        if let Some(looks) = looks {
            self.adjust(item, looks).await?;
            return Ok(Prepared::Done);
        }
        item.changes |= Changes::CONTENT;
        self.replace(item).await?;
        Ok(Prepared::Copy)
    }

    /// Copies a link, or decides about a file and notes the state of its name at the target.
    async fn prepare(&self, item: &mut Item) -> Result<Prepared, Error> {
        let job = self.job;
        let mut path = self.path(&item.target);
        let Some(origin) = job.tree.parent(&item.target) else {
            job.progress
                .report_below(item.target.clone(), &self.format_path(&path));
            return Ok(Prepared::Done);
        };
        // Only this copy puts anything into a directory that it made.
        let mut found = match origin {
            Origin::Made => None,
            Origin::Found => {
                let _turn = self.turn().await;
                self.look_below(&item.target, &path).await?
            }
        };
        if found.is_some() && job.options.ignore_existing {
            job.progress.report_skipped(item);
            return Ok(Prepared::Done);
        }
        let is_directory = |found: &FileAttributes| found.file_type() == Some(FileType::Directory);
        if job.options.delete && !item.named && found.as_ref().is_some_and(is_directory) {
            item.changes = Changes::KIND;
            self.make_way(item).await?;
            if job.options.dry_run {
                job.progress.would_copy(item.clone());
                return Ok(Prepared::Done);
            }
            found = self.look_in_turn(&path).await?;
        }
        if item.kind == Kind::Link {
            self.link(item, found.as_ref()).await?;
            return Ok(Prepared::Done);
        }
        if item.named {
            (path, found) = self.follow(path, found).await?;
            item.there.path = Some(path.clone());
        }
        let Some(found) = found else {
            if item.changes.is_empty() {
                item.changes = Changes::NEW;
            }
            item.there.in_place = job.no_renaming.load(Ordering::Relaxed);
            return Ok(Prepared::Copy);
        };
        match found.file_type() {
            None | Some(FileType::Regular) => {}
            // A link makes way, unless the user gave the name.
            Some(FileType::Symlink) => {
                item.changes = Changes::KIND;
                job.backups
                    .keep(self.sessions, self.root, (&path, &item.target))
                    .await?;
                return Ok(Prepared::Copy);
            }
            Some(kind @ (FileType::Fifo | FileType::CharacterDevice | FileType::BlockDevice))
                if item.named =>
            {
                item.there.special = Some(kind);
                return Ok(Prepared::Copy);
            }
            Some(kind) => {
                let message = format!(
                    "{} is {}, which a copy does not replace",
                    self.format_path(&path),
                    name(kind)
                );
                job.report_failed(item.target.clone(), message);
                return Ok(Prepared::Done);
            }
        }
        item.there.existing = Some(existing(&found));
        match verdict(&job.options, item, &Beside::from(&found)) {
            Verdict::Left => {
                job.compare_clocks(Some(&Beside::from(&found)));
                job.progress.report_skipped(item);
                Ok(Prepared::Done)
            }
            Verdict::Stays(looks) => {
                self.adjust(item, looks).await?;
                Ok(Prepared::Done)
            }
            Verdict::Content(looks) if item.stream.is_none() => Ok(Prepared::Compare(looks)),
            Verdict::Content(changes) | Verdict::Copy(changes) => {
                item.changes = changes;
                self.replace(item).await?;
                Ok(Prepared::Copy)
            }
        }
    }

    /// Deletes a directory that is in the place of a file or link.
    async fn make_way(&self, item: &Item) -> Result<(), Error> {
        let target = delete::Target::Server(self.sessions.clone(), self.root.clone());
        delete::make_way(self.job, &target, item).await
    }

    /// Prepares the replacement of an existing file.
    async fn replace(&self, item: &mut Item) -> Result<(), Error> {
        let Some(existing) = item.there.existing.filter(|_| !self.job.options.dry_run) else {
            return Ok(());
        };
        let path = self.final_path(item);
        self.check_writable(&path, existing).await?;
        {
            let _turn = self.turn().await;
            self.job
                .backups
                .keep(self.sessions, self.root, (&path, &item.target))
                .await?;
        }
        if existing.mode & SET_ID != 0 && !Place::Server(self.sessions.clone()).is_root().await? {
            item.there.existing = Some(Existing {
                mode: rewritten(existing.mode),
                ..existing
            });
        }
        item.there.in_place = self.job.no_renaming.load(Ordering::Relaxed);
        Ok(())
    }

    /// Checks that a file may be written: the permissions of its directory, which a renaming depends on, say nothing about the
    /// file.
    ///
    /// Servers other than OpenSSH's may take any opening for the beginning of a new file, whatever its flags are: they remove the
    /// older file (copyparty's), or replace it by the written data when it is closed (servers before an object store). There the
    /// file's permissions decide, and problems that they do not show are found when the new file is complete.
    async fn check_writable(&self, path: &Bytes, existing: Existing) -> Result<(), Error> {
        if existing.mode & 0o222 != 0 && !self.sessions.first().is_sftp_server().await? {
            return Ok(());
        }
        let open = |flags: OpenFlags| {
            self.sessions.retry(move |sftp: Sftp| {
                let path = path.clone();
                async move { sftp.open_in_turn(path, flags).await.map(drop) }
            })
        };
        let _turn = self.turn().await;
        match open(OpenFlags::READ | OpenFlags::WRITE).await {
            Err(Error::File { status, .. })
                if status.code == sftp::StatusCode::PERMISSION_DENIED
                    && (self.sessions.first().is_sftp_server().await? || !existing.is_readable) =>
            {
                open(OpenFlags::WRITE).await
            }
            result => result,
        }
    }

    /// Follows the links that a name leads to, if the user gave the name. Returns the last path and its attributes, if anything
    /// is there.
    async fn follow(
        &self,
        mut path: Bytes,
        mut found: Option<FileAttributes>,
    ) -> Result<(Bytes, Option<FileAttributes>), Error> {
        /// The number of links that Linux follows.
        const MOST_LINKS: usize = 40;
        for _ in 0..MOST_LINKS {
            let is_link = |found: &FileAttributes| found.file_type() == Some(FileType::Symlink);
            if !found.as_ref().is_some_and(is_link) {
                return Ok((path, found));
            }
            let target = link_text(self.sessions, &path).await?;
            path = match target.starts_with(b"/") {
                true => target,
                false => path::in_root(&path::directory_and_name(&path).0, &target),
            };
            found = self.look_in_turn(&path).await?;
        }
        let status = Status {
            code: sftp::StatusCode::FAILURE,
            message: "too many levels of symbolic links".into(),
        };
        Err(self.sessions.first().link().status_error("writing", path, status))
    }

    // Parts of lost sessions.

    fn lost_parts(&self) -> MutexGuard<'_, Vec<(Bytes, Option<Arc<Own>>)>> {
        self.lost_parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes these parts, at the end only: a server that has not noticed the end of a session may make more of them meanwhile.
    async fn remove_lost_parts(&self) -> Result<(), Error> {
        let mut parts = std::mem::take(&mut *self.lost_parts());
        if parts.is_empty() {
            return Ok(());
        }
        // A part that another process may be writing stays for the next copy.
        let alone = self.names.alone().await;
        if alone.is_none() {
            parts.retain(|(_, own)| own.is_none());
        }
        let paths: Vec<Bytes> = parts.iter().map(|(part, _)| part.clone()).collect();
        let removing = futures_util::stream::iter(paths).map(|part| self.remove(part));
        removing.buffer_unordered(AT_ONCE).try_collect().await
    }

    /// Removes a file if it exists and can be removed.
    async fn remove(&self, path: Bytes) -> Result<(), Error> {
        let remove = |sftp: Sftp| {
            let path = path.clone();
            async move { sftp.remove(path).await }
        };
        match self.sessions.retry(remove).await {
            Ok(()) | Err(Error::File { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    // Reasons for failures.

    /// Returns the reason for a complete file whose times or permissions were not set.
    fn unset(&self, item: &Item, status: &Status) -> Reason {
        let path = self.format_path(&self.final_path(item));
        format!("{path}: copied, but the server does not set its times and permissions: {status}").into()
    }

    /// Replaces the reason if the server's bare "failure" means that its disk is full. `left` is the number of bytes of the file
    /// that stay there, if any.
    async fn with_room(&self, item: &Item, path: &Bytes, left: Option<u64>, reason: Reason) -> Reason {
        self.no_room(item, path, left).await.unwrap_or(reason)
    }

    /// Returns the reason for a full disk, if the server's disk is full.
    async fn no_room(&self, item: &Item, path: &Bytes, left: Option<u64>) -> Option<Reason> {
        if self.job.is_over() {
            // The copy stopped while this file was in progress.
            return Some(Reason {
                for_all: true,
                ..String::new().into()
            });
        }
        let (directory, name) = self.directory_and_name(path);
        let state = self.file_system(path).await?;
        if state.is_read_only() {
            return Some(read_only(&directory, !item.target.contains(&b'/')));
        }
        // A file that is removed again leaves the room that it had.
        let little = if left.is_some() { item.size / 64 } else { item.size };
        Some(free(&state)).filter(|free| *free <= little)?;
        if item.there.in_place {
            let message = format!("no space left in {directory} for {}", named(&name, item.size));
            return Some(Reason {
                message,
                ..no_space(&directory, b"", 0, 0)
            });
        }
        Some(no_space(
            &directory,
            name.as_bytes(),
            item.size,
            left.unwrap_or(0),
        ))
    }

    /// Returns the reason if there is no room for a file that is to be written in place. The check comes first, so that the
    /// existing content is not lost.
    async fn lacks_room(&self, item: &Item) -> Option<Reason> {
        let path = self.final_path(item);
        let more = item
            .size
            .saturating_sub(item.there.existing.map_or(0, |existing| existing.size));
        let free = free(&self.file_system(&path).await?);
        if free >= more {
            return None;
        }
        let (directory, name) = self.directory_and_name(&path);
        let message = format!(
            "no space left in {directory} for {name}: {} more are needed, and {} are free. Any existing file is unchanged",
            Size(more),
            Size(free)
        );
        Some(Reason {
            message,
            for_all: false,
            ..no_space(&directory, b"", 0, 0)
        })
    }

    /// Formats a path's directory and its last part for people.
    fn directory_and_name(&self, path: &Bytes) -> (String, String) {
        let (directory, name) = path::directory_and_name(path);
        let host = self.sessions.first().host().to_owned();
        (format!("{host}:{}", shown(&directory)), shown(&name))
    }

    /// Returns the state of the file system that a path is on; `None` if the server does not report it.
    async fn file_system(&self, path: &Bytes) -> Option<StatVfs> {
        let directory = path::directory_and_name(path).0;
        self.sessions.first().statvfs(&directory).await.ok()
    }

    /// Returns the permissions to create a file with, which the server masks. A file that replaces another is private until it
    /// has the other's permissions.
    fn new_mode(&self, item: &Item) -> FileAttributes {
        permissions(match item.there.existing {
            Some(_) => 0o600,
            None => item.mode.unwrap_or(0o666) & 0o777,
        })
    }

    /// Writes to a target that is not a regular file, in order.
    async fn pour(&self, item: &Item) -> Result<Result<u64, Reason>, Error> {
        let path = self.final_path(item);
        let source = match Source::open(self.from, item).await {
            Ok(source) => source,
            Err(reason) => return Ok(Err(reason)),
        };
        let mut reader = match source.into_reader(item) {
            Ok(reader) => reader,
            Err(reason) => return Ok(Err(reason)),
        };
        // A FIFO has no offsets: sftp-server appends to it, and fails to seek in it.
        let append = match item.there.special {
            Some(FileType::Fifo) => OpenFlags::APPEND,
            _ => OpenFlags::WRITE,
        };
        let sftp = self.sessions.first();
        let written = async {
            let file = sftp
                .open(&path, OpenFlags::WRITE | append, FileAttributes::default())
                .await?;
            let mut at = 0;
            loop {
                let piece = stream::piece(&mut reader)
                    .await
                    .map_err(|error| Error::local(shown(&item.source), error))?;
                if piece.is_empty() {
                    file.close().await?;
                    return Ok(at);
                }
                let length = piece.len() as u64;
                self.job.rate.take(length).await;
                file.write_at(at, piece).await?;
                self.job.progress.count_moved(length);
                at += length;
            }
        };
        match written.await {
            Ok(length) => Ok(Ok(length)),
            Err(error @ (Error::File { .. } | Error::Local { .. })) => Ok(Err(error.into())),
            Err(error) => Err(error),
        }
    }

    /// Reports a file that was copied. Only a regular file is compared afterwards.
    fn report_copied(&self, item: Item, length: u64) {
        match item.there.special.is_some() || item.stream.is_some() {
            true => self.job.progress.report_copied(item.target, length, item.changes),
            false => self.job.report_copied(item, |item| self.final_path(item), length),
        }
    }

    /// Returns the owner that a file is to have.
    fn owner(&self, item: &Item) -> Option<Owner> {
        let own = item.owner.filter(|_| self.job.options.owners);
        own.or(item.there.existing.and_then(|existing| existing.owner))
    }

    fn final_path(&self, item: &Item) -> Bytes {
        item.there.path.clone().unwrap_or_else(|| self.path(&item.target))
    }

    fn refusal(&self, item: &Item, status: Status) -> Reason {
        let absent = status.code == sftp::StatusCode::NO_SUCH_FILE;
        let path = self.final_path(item);
        let error = self.sessions.first().link().status_error("writing", path, status);
        let mut reason = Reason::from(error);
        if absent && item.there.existing.is_none() {
            reason.obstacle = Some(Obstacle::NoDirectory);
        }
        if item.there.existing.is_some() && !item.there.in_place {
            reason += "; the file that was there is unchanged";
        }
        reason
    }

    /// Returns the ranges in which an earlier attempt's part of `left` bytes equals the source; `None` if the part is not ours.
    async fn same(
        &self,
        (item, left): (&Item, u64),
        part: &Bytes,
        source: &Source,
    ) -> Result<Option<Vec<Range<u64>>>, Error> {
        // The part's last, incomplete block equals the source's only if both end with it.
        let compared = match left == item.size {
            true => left,
            false => left / blocks::BLOCK * blocks::BLOCK,
        };
        let checking = self.job.progress.checks(compared);
        let end = match (source, self.from) {
            (Source::Local(file), _) => {
                let file = file
                    .try_clone()
                    .map_err(|error| Error::local(shown(&item.source), error))?;
                blocks::End::Local(file)
            }
            (Source::Server(_), Place::Server(sessions)) => blocks::End::Server(sessions, &item.source),
            _ => return Ok(None),
        };
        blocks::same_as_own(&end, self.sessions, (part, compared), &checking).await
    }
}

/// Returns the final attributes of a file.
fn looks(job: &Job, item: &Item) -> FileAttributes {
    let preserve = job.options.preserve;
    let own = item
        .mode
        .filter(|_| preserve)
        .map(|mode| mode & job.options.kept_bits());
    // A file that is written in place keeps its permissions.
    let existing = item.there.existing.filter(|_| !item.there.in_place);
    FileAttributes {
        permissions: own.or(existing.map(|existing| existing.mode)).map(Permissions),
        times: item.times.filter(|_| preserve).map(times),
        ..FileAttributes::default()
    }
}

async fn link_text(sessions: &Sessions, path: &Bytes) -> Result<Bytes, Error> {
    let read = |sftp: Sftp| async move { sftp.link_text(path).await };
    sessions.retry(read).await
}

/// Sets the attributes of a name. If a link has taken the name, sets them on the link itself, unless the user gave the name.
pub(super) async fn set_looks(
    sessions: &Sessions,
    path: &Bytes,
    looks: &FileAttributes,
    is_named: bool,
) -> Result<(), Error> {
    let set = |sftp: Sftp, looks: FileAttributes| async move {
        if !is_named {
            match sftp.lsetstat(path, looks.clone()).await {
                Err(Error::File { .. }) => {}
                result => return result,
            }
        }
        sftp.setstat(path, looks).await
    };
    // A change of owner clears set-user-ID and set-group-ID: set the owner first.
    if let Some(owner) = looks.owner {
        let owner = FileAttributes {
            owner: Some(owner),
            ..FileAttributes::default()
        };
        sessions.retry(|sftp| set(sftp, owner.clone())).await?;
    }
    let others = FileAttributes {
        owner: None,
        ..looks.clone()
    };
    match others.is_empty() {
        true => Ok(()),
        false => sessions.retry(|sftp| set(sftp, others.clone())).await,
    }
}

/// Returns the state of a file that another one is to replace.
fn existing(found: &FileAttributes) -> Existing {
    Existing {
        mode: found.permissions.map_or(0o600, Permissions::bits),
        owner: found.owner,
        size: found.size.unwrap_or(0),
        is_readable: found.permissions.is_none_or(|mode| mode.bits() & 0o400 != 0),
    }
}

pub(super) fn times((accessed, modified): (u32, u32)) -> Times {
    Times { accessed, modified }
}

/// Returns the number of bytes that a file system has left for a file.
fn free(state: &StatVfs) -> u64 {
    // Some file systems report no number of files.
    let full = state.files > 0 && state.files_available == 0;
    if full { 0 } else { state.available_bytes() }
}

/// Returns the name of a file type, for people.
fn name(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a directory",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        _ => "a device",
    }
}

/// The attributes of a directory's name at the target, or the reason why they are unknown.
type Look = Result<Option<FileAttributes>, Error>;

/// A step that is taken concurrently with others.
enum Step {
    /// Look up a name, and prepare it.
    Look(Item),
    /// Settle a file whose content was compared.
    Settle(Compared),
}

enum Taken {
    /// The file's content decides. If it is the same, these attributes are set.
    Compare(Box<Item>, Changes),
    Done,
    NobodyCopies,
}

/// The decision about a name.
enum Prepared {
    Copy,
    /// The content decides. If it is the same, these attributes are set.
    Compare(Changes),
    Done,
}

fn permissions(mode: u32) -> FileAttributes {
    FileAttributes {
        permissions: Some(Permissions(mode)),
        ..FileAttributes::default()
    }
}
