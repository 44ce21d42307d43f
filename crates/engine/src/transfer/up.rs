//! Copies towards a server, from this machine or through it from another server.

mod small;

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt as _, TryStreamExt as _};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio::task::JoinSet;
use trunkline_request::copy::{Changes, Obstacle};
use trunkline_sftp::transfer::{Opening, Plan as _, Refused, Upload, UploadEvent, UploadOptions};

use super::blocking::blocking;
use super::compare::{Beside, Verdict, split, verdict};
use super::content::{Checks, Compared, Side};
use super::exposed::Exposure;
use super::item::{Existing, INCOMPLETE, Item, Kind, SET_ID, rewritten};
use super::job::Job;
use super::part::{self, Claim, Own, Tag};
use super::path::{self, os, shown};
use super::place::Place;
use super::reason::{Reason, Size, named, no_space, read_only};
use super::sessions::Sessions;
use super::small::MOST_SMALL;
use super::source::{Pieces, Source, Want, holes};
use super::striped::Striped;
use super::survey::Survey;
use super::there::{self, Said};
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
    /// Where it comes from and where it goes, by name.
    ids: [Vec<u8>; 2],
    /// Temporary names of small files.
    names: part::Names,
    /// Temporary names of small files from lost sessions or a killed copy: the server may still have the files. Other
    /// copies avoid these names until they are removed.
    lost_parts: Mutex<Vec<(Bytes, Option<Arc<Own>>)>>,
    exposure: Exposure,
    /// Directories that take the place of something else, and those in them: what was seen there was not in them.
    replacing: Mutex<HashSet<Bytes>>,
    /// Turns to list a directory, and to ask something of a single name.
    listing: Semaphore,
    asking: Semaphore,
    survey: Survey,
}

/// A partial file that nobody would continue, if there is one. It goes with the attempt that writes it, also where that is
/// interrupted.
struct Leftover<'a> {
    sessions: &'a Sessions,
    part: Option<Bytes>,
}

impl Leftover<'_> {
    async fn remove(mut self) {
        if let Some(part) = self.part.take() {
            let _ = self.sessions.first().remove(part).await;
        }
    }

    /// It has another name now, or is somebody else's to remove.
    fn was_renamed(mut self) {
        self.part = None;
    }
}

impl Drop for Leftover<'_> {
    fn drop(&mut self) {
        let Some(path) = self.part.take() else { return };
        self.sessions.first().link().with_client(|client| {
            let id = client.request(trunkline_sftp::Request::Remove { path });
            client.cancel(id);
        });
    }
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

    /// Copies what comes until no more comes.
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

    /// Says what would be copied and what is there already.
    pub(super) async fn only_tell(&self, items: mpsc::Receiver<Item>) -> Result<(), Error> {
        self.sort(items, None).await
    }

    fn path(&self, target: &[u8]) -> Bytes {
        path::in_root(self.root, target)
    }

    /// Makes directories and links, leaves out what is there already, and hands on the files, small and large ones; or only
    /// says what would be copied.
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
        // Beside the looks, which come directory by directory: what has to be asked for would else be one at a time.
        let mut preparing = FuturesUnordered::new();
        let mut more = true;
        // Whatever waits for a turn or for those who copy waits in `preparing`: who has a turn goes on only while that is polled.
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
                _ if self.job.is_over() => self.job.left(item.target),
                Some(found) => directories.push((item, found)),
                None => others.push(item),
            }
        }
        self.make_directories(directories).await?;
        Ok(others)
    }

    /// Hands a file on to be copied, or says that it would be; `false` when nobody copies any more.
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
    async fn stays(&self, item: &Item, changes: Changes) -> Result<(), Error> {
        if !changes.is_empty() && !self.job.options.dry_run {
            let path = self.final_path(item);
            let wanted = FileAttributes {
                // A change of owner takes some of them.
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
        self.job.progress.adjusted(item, changes);
        Ok(())
    }

    /// Looks a directory's name up at the target and, if names are compared, lists the directory.
    async fn look_at_directory(&self, target: &Bytes) -> Result<Option<FileAttributes>, Error> {
        let path = self.path(target);
        let looks_first = self.job.options.looks_first();
        if looks_first && let Some(found) = self.survey.look_at(target).await {
            // Nobody asks for it again.
            let _ = self.job.there.take(target);
            return Ok(Some(found));
        }
        // Never closed. Turns of their own: who prepares names does not go on with these meanwhile.
        let _turn = self.listing.acquire().await.ok();
        if !looks_first {
            return self.look(&path).await;
        }
        let (found, listing) = tokio::join!(
            self.look_below(target, &path),
            there::listing(self.sessions, &self.job.there, &path)
        );
        let found = found?;
        // What a link leads to is not in it.
        if let (Some(FileType::Directory), Some(listing)) =
            (found.as_ref().and_then(FileAttributes::file_type), listing?)
        {
            self.job.there.add(target, listing);
        }
        Ok(found)
    }

    /// Looks a name below the target's root up, in its directory's listing if there is one.
    async fn look_below(&self, target: &Bytes, path: &Bytes) -> Result<Option<FileAttributes>, Error> {
        match self.job.there.take(target) {
            Said::Has(found) => Ok(Some(found)),
            Said::Nothing => Ok(None),
            Said::Unknown => self.look(path).await,
        }
    }

    /// Makes directories, outer ones before inner ones, and notes those that want to be finished.
    ///
    /// All are looked at before any is made: what is made in a directory that turns out to be a link would be made where the
    /// link leads.
    async fn make_directories(&self, directories: Vec<(Item, Look)>) -> Result<(), Error> {
        let job = self.job;
        let mut absent = Vec::new();
        for (mut item, found) in directories {
            let parent = job.tree.parent(&item.target);
            let path = self.path(&item.target);
            let found = if self.is_in_replacing(&item.target) {
                Ok(None)
            } else {
                found
            };
            match found {
                _ if parent.is_none() => job.progress.failed_below(item.target, &self.shown(&path)),
                Ok(None) => {
                    // So that what is to be in it is looked at, too.
                    job.tree.hold(&item.target, Origin::Found);
                    job.tree.touch(&item.target);
                    item.changes = Changes::NEW;
                    absent.push(item);
                }
                Ok(Some(found)) if found.file_type() == Some(FileType::Directory) => {
                    job.tree.hold(&item.target, Origin::Found);
                    if job.options.looks_first()
                        && let Verdict::Stays(looks) = verdict(&job.options, &item, &Beside::from(&found))
                    {
                        job.progress.adjusted(&item, looks);
                        item.is_right = looks.is_empty();
                    } else {
                        job.progress.copied(item.target.clone(), 0, Changes::default());
                    }
                    if job.options.preserve && !job.options.dry_run {
                        job.finish.add(&item)?;
                    }
                }
                Ok(Some(_)) if job.options.delete => {
                    job.tree.hold(&item.target, Origin::Found);
                    job.tree.touch(&item.target);
                    item.changes = Changes::KIND;
                    self.replacing().insert(item.target.clone());
                    absent.push(item);
                }
                Ok(Some(found)) => {
                    let what = match found.file_type() {
                        Some(FileType::Symlink) => "a symbolic link",
                        _ => "not a directory",
                    };
                    let message = format!("{} is {what}, so nothing is created in it", self.shown(&path));
                    job.failed(item.target, message);
                }
                Err(error) => job.go_on_after(item.target, error)?,
            }
        }
        if job.options.dry_run {
            for item in absent {
                job.tree.hold(&item.target, Origin::Made);
                job.progress.would_copy(item);
            }
            return Ok(());
        }
        // Before any is made, which are on their way together.
        for item in absent.iter().filter(|item| item.changes.has(Changes::KIND)) {
            self.clear(item).await?;
        }
        // In order on one session: the server makes the outer one first.
        let making = futures_util::stream::iter(absent)
            .map(|item| async {
                let new = self.make_directory(&item).await;
                (item, new)
            })
            .buffered(AT_ONCE);
        let mut making = std::pin::pin!(making);
        while let Some((item, new)) = making.next().await {
            match new {
                Ok(new) => {
                    let origin = if new { Origin::Made } else { Origin::Found };
                    job.tree.hold(&item.target, origin);
                    job.progress.copied(item.target.clone(), 0, item.changes);
                    let masked = new && item.mode.is_some_and(|mode| mode & 0o700 != 0o700);
                    if job.options.preserve || masked {
                        job.finish.add(&item)?;
                    }
                }
                Err(error @ Error::File { .. }) => {
                    let path = self.path(&item.target);
                    let is_outermost = job.tree.parent(&item.target).is_some();
                    job.tree.lose(&item.target);
                    if !is_outermost {
                        job.progress.failed_below(item.target, &self.shown(&path));
                        continue;
                    }
                    let is_absent = error.is_no_such_file();
                    let mut reason = self.with_room(&item, &path, None, error.into()).await;
                    if is_absent {
                        reason.obstacle = Some(Obstacle::NoDirectory);
                    }
                    job.failed(item.target, reason.of_directory());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Removes what is in the way of a directory and is none: of a link that itself. Where it stays, making the directory
    /// fails.
    async fn clear(&self, item: &Item) -> Result<(), Error> {
        let path = self.path(&item.target);
        match self
            .job
            .backups
            .keep(self.sessions, self.root, (&path, &item.target))
            .await
        {
            Ok(()) => self.remove(path).await,
            Err(Error::File { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn replacing(&self) -> MutexGuard<'_, HashSet<Bytes>> {
        self.replacing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a directory is in one that takes the place of something else; then it is such a one, too.
    fn is_in_replacing(&self, directory: &Bytes) -> bool {
        let mut replacing = self.replacing();
        let is_in = !replacing.is_empty() && replacing.contains(&split(directory).0);
        if is_in {
            replacing.insert(directory.clone());
        }
        is_in
    }

    /// Whether it was made now.
    async fn make_directory(&self, item: &Item) -> Result<bool, Error> {
        let path = self.path(&item.target);
        let mode = item.mode.unwrap_or(0o777) & 0o777 | 0o700;
        let make = |sftp: Sftp| {
            let path = path.clone();
            async move {
                match sftp.mkdir(&path, permissions(mode)).await {
                    Ok(()) => Ok(true),
                    // Version 3 has no status for "it is there".
                    Err(error @ Error::File { .. }) => match sftp.lstat(&path).await {
                        Ok(found) if found.file_type() == Some(FileType::Directory) => Ok(false),
                        _ => Err(error),
                    },
                    Err(error) => Err(error),
                }
            }
        };
        self.sessions.with(make).await
    }

    /// Looks a name up without following a link; `None` if nothing has it.
    async fn look(&self, path: &Bytes) -> Result<Option<FileAttributes>, Error> {
        if let Some(known) = self.job.looked_at().remove(path) {
            return Ok(known);
        }
        let lstat = |sftp: Sftp| {
            let path = path.clone();
            async move { sftp.lstat(path).await }
        };
        match self.sessions.with(lstat).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_no_such_file() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn look_in_turn(&self, path: &Bytes) -> Look {
        let _turn = self.turn().await;
        self.look(path).await
    }

    /// A turn to ask something of a single name; nothing else that takes turns is awaited meanwhile.
    async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // Never closed.
        self.asking.acquire().await.ok()
    }

    /// Formats a path there for people.
    fn shown(&self, path: &[u8]) -> String {
        format!("{}:{}", self.sessions.first().host(), shown(path))
    }

    /// Takes a step, and hands a file on that is to be copied.
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

    /// Settles what needs nothing but its directory's listing, as most of a mirror's files do: a file that stays as it is, or
    /// is to be compared. Gives back what has to be prepared.
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
                job.progress.skipped(&item);
                Ok(None)
            }
            (None, _) => Err(Box::new(item)),
        }
    }

    /// Decides about a file whose content was compared.
    async fn settle(&self, item: &mut Item, looks: Option<Changes>) -> Result<Prepared, Error> {
        if let Some(looks) = looks {
            self.stays(item, looks).await?;
            return Ok(Prepared::Done);
        }
        item.changes |= Changes::CONTENT;
        self.replace(item).await?;
        Ok(Prepared::Copy)
    }

    /// Copies a link; what is to become of a file, which learns what it meets.
    async fn prepare(&self, item: &mut Item) -> Result<Prepared, Error> {
        let job = self.job;
        let mut path = self.path(&item.target);
        let Some(origin) = job.tree.parent(&item.target) else {
            job.progress.failed_below(item.target.clone(), &self.shown(&path));
            return Ok(Prepared::Done);
        };
        // In a directory that this copy made there is nothing but what it put there.
        let mut found = match origin {
            Origin::Made => None,
            Origin::Found => {
                let _turn = self.turn().await;
                self.look_below(&item.target, &path).await?
            }
        };
        if found.is_some() && job.options.ignore_existing {
            job.progress.skipped(item);
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
            // A link under a name that the user did not give makes way.
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
                    self.shown(&path),
                    name(kind)
                );
                job.failed(item.target.clone(), message);
                return Ok(Prepared::Done);
            }
        }
        item.there.existing = Some(existing(&found));
        match verdict(&job.options, item, &Beside::from(&found)) {
            Verdict::Left => {
                job.compare_clocks(Some(&Beside::from(&found)));
                job.progress.skipped(item);
                Ok(Prepared::Done)
            }
            Verdict::Stays(looks) => {
                self.stays(item, looks).await?;
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

    /// A directory is where a file or link is to be.
    async fn make_way(&self, item: &Item) -> Result<(), Error> {
        let target = delete::Target::Server(self.sessions.clone(), self.root.clone());
        delete::make_way(self.job, &target, item).await
    }

    /// A file is to take the place of one that is there.
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

    /// Shows that a file may be written: the directory's permissions, which a renaming asks for, say nothing of the file's.
    ///
    /// Other servers than OpenSSH's may take any opening for the beginning of a new file, whatever its flags are: they remove
    /// the older one (copyparty's), or put what was written in its place when it is closed (what stands before an object
    /// store). There the file's permissions decide, and what they do not show is found out when the new file is whole.
    async fn check_writable(&self, path: &Bytes, existing: Existing) -> Result<(), Error> {
        if existing.mode & 0o222 != 0 && !self.sessions.first().is_sftp_server().await? {
            return Ok(());
        }
        let open = |flags: OpenFlags| {
            self.sessions.with(move |sftp: Sftp| {
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

    /// Where a name leads that the user gave, and what is there: links lead on, whether anything is at their end or not.
    async fn follow(
        &self,
        mut path: Bytes,
        mut found: Option<FileAttributes>,
    ) -> Result<(Bytes, Option<FileAttributes>), Error> {
        /// As many as Linux follows.
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

    async fn link(&self, item: &mut Item, found: Option<&FileAttributes>) -> Result<(), Error> {
        match found.and_then(FileAttributes::file_type) {
            None | Some(FileType::Regular | FileType::Symlink) => {}
            Some(kind) => {
                let path = self.shown(&self.path(&item.target));
                let message = format!("{path} is {}, which a copy does not replace", name(kind));
                self.job.failed(item.target.clone(), message);
                return Ok(());
            }
        }
        let verdict = found.map(|found| verdict(&self.job.options, item, &Beside::from(found)));
        item.changes = match verdict {
            None if item.changes.is_empty() => Changes::NEW,
            None => item.changes,
            Some(Verdict::Left) => {
                self.job.progress.skipped(item);
                return Ok(());
            }
            Some(Verdict::Stays(changes) | Verdict::Content(changes) | Verdict::Copy(changes)) => changes,
        };
        let path = self.path(&item.target);
        let is_read = self.job.options.safe_links || !self.job.options.dry_run;
        if !is_read && !matches!(verdict, Some(Verdict::Content(_))) {
            self.job.progress.would_copy(item.clone());
            return Ok(());
        }
        let target = match self.from {
            Place::Server(sessions) => link_text(sessions, &item.source).await?,
            Place::Local => {
                let source = item.source.clone();
                match blocking(move || std::fs::read_link(Path::new(os(&source)))).await {
                    Ok(target) => Bytes::copy_from_slice(target.as_os_str().as_encoded_bytes()),
                    Err(error) => {
                        self.job
                            .failed(item.target.clone(), Reason::local(&item.source, &error));
                        return Ok(());
                    }
                }
            }
        };
        if self.job.is_unsafe(item, &target)? {
            return Ok(());
        }
        if let Some(Verdict::Content(mut looks)) = verdict {
            if link_text(self.sessions, &path).await? == target {
                if !self.sessions.first().link().is_sftp_server() {
                    // It has no way to set them.
                    looks = Changes::default();
                }
                return self.stays(item, looks).await;
            }
            item.changes = Changes::CONTENT;
        }
        self.job.tree.touch(&item.target);
        if self.job.options.dry_run {
            self.job.progress.would_copy(item.clone());
            return Ok(());
        }
        let looks = FileAttributes {
            times: item.times.filter(|_| self.job.options.preserve).map(times),
            owner: item.owner.filter(|_| self.job.options.owners),
            ..FileAttributes::default()
        };
        let (path, target, is_there, looks) = (&path, &target, found.is_some(), &looks);
        let attempts = &AtomicUsize::new(0);
        let own = self.names.own(&item.source, path);
        let own = own.as_ref();
        let make = |sftp: Sftp| async move {
            // Of an attempt whose session was lost, the link may be there.
            let attempt = attempts.fetch_add(1, Ordering::Relaxed);
            let attempt = u8::try_from(attempt).unwrap_or(u8::MAX);
            let part = Own::name(own, path, attempt);
            make_link(&sftp, target, path, part, looks, is_there || attempt > 0).await
        };
        let turn = self.turn().await;
        if is_there {
            self.job
                .backups
                .keep(self.sessions, self.root, (path, &item.target))
                .await?;
        }
        let made = self.sessions.with(make).await;
        drop(turn);
        match made {
            Ok(_) => self.job.progress.copied(item.target.clone(), 0, item.changes),
            Err(Error::File {
                host, doing, status, ..
            }) => {
                // The link's own name, and not the one that it has until it is whole.
                let error = Error::File {
                    host,
                    doing,
                    path: path.clone(),
                    status,
                };
                let reason = self.with_room(item, path, None, error.into()).await;
                self.job.failed(item.target.clone(), reason);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    // Small files.

    fn lost_parts(&self) -> MutexGuard<'_, Vec<(Bytes, Option<Arc<Own>>)>> {
        self.lost_parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Only now: a server that has not noticed the end of a session may make more of them meanwhile.
    async fn remove_lost_parts(&self) -> Result<(), Error> {
        let mut parts = std::mem::take(&mut *self.lost_parts());
        if parts.is_empty() {
            return Ok(());
        }
        // What another process may be writing stays, for the next copy.
        let alone = self.names.alone().await;
        if alone.is_none() {
            parts.retain(|(_, own)| own.is_none());
        }
        let paths: Vec<Bytes> = parts.iter().map(|(part, _)| part.clone()).collect();
        let removing = futures_util::stream::iter(paths).map(|part| self.remove(part));
        removing.buffer_unordered(AT_ONCE).try_collect().await
    }

    /// Removes a file, if it is there and can be removed.
    async fn remove(&self, path: Bytes) -> Result<(), Error> {
        let remove = |sftp: Sftp| {
            let path = path.clone();
            async move { sftp.remove(path).await }
        };
        match self.sessions.with(remove).await {
            Ok(()) | Err(Error::File { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    // Large files.

    async fn large(&self, mut items: mpsc::Receiver<Item>) -> Result<(), Error> {
        while let Some(mut item) = items.recv().await {
            if self.job.is_over() {
                self.job.left(item.target);
                continue;
            }
            self.job.progress.began(&item.target);
            match self.large_one(&mut item).await? {
                Ok(length) => self.copied(item, length),
                Err(message) => self.job.failed(item.target, message),
            }
        }
        Ok(())
    }

    /// Copies one file over as many sessions as it is worth. Fails when there are none left; gives a sentence when the
    /// file is what failed.
    async fn large_one(&self, item: &mut Item) -> Result<Result<u64, Reason>, Error> {
        if item.there.special.is_some() {
            return self.pour(item).await;
        }
        if item.there.in_place
            && let Some(reason) = self.bars_in_place(item).await
        {
            return Ok(Err(reason));
        }
        let tag = {
            let [from, to] = &self.ids;
            Tag::of([from, &item.source, to, &self.path(&item.target)])
        };
        let may_be_kept = self.job.options.partial && item.stream.is_none() && !item.there.in_place;
        let claim = if may_be_kept { Claim::wait(tag).await } else { None };
        // What has the name that is kept and is not gone on from. Until it is removed, no other copy has that name.
        let mut stale = None;
        let ended = self.attempts(item, tag, claim.is_some(), &mut stale).await;
        if let (Some(stale), Ok(_)) = (stale, &ended) {
            self.remove(stale).await?;
        }
        ended
    }

    /// `may_be_kept`: a later copy may resume from what this one leaves.
    async fn attempts(
        &self,
        item: &mut Item,
        tag: Tag,
        mut may_be_kept: bool,
        stale: &mut Option<Bytes>,
    ) -> Result<Result<u64, Reason>, Error> {
        /// Each meets something that the one before could not know.
        const ATTEMPTS: u8 = 4;
        let (mut last, mut sent) = (Reason::from(String::new()), false);
        for attempt in 0..ATTEMPTS {
            if item.there.in_place
                && !sent
                && let Some(message) = self.lacks_room(item).await
            {
                return Ok(Err(message));
            }
            let source = match Source::open(self.from, item).await {
                Ok(source) => source,
                Err(message) => return Ok(Err(message)),
            };
            let path = self.final_path(item);
            let kept = may_be_kept.then(|| tag.part(&path));
            let own = self.names.own(&item.source, &path).filter(|_| kept.is_none());
            let part = kept
                .clone()
                .unwrap_or_else(|| Own::name(own.as_ref(), &path, attempt));
            let is_removed = kept.is_none() && !item.there.in_place;
            if is_removed {
                self.job.gives_back.store(true, Ordering::Relaxed);
            }
            let leftover = Leftover {
                sessions: self.sessions,
                part: is_removed.then(|| part.clone()),
            };
            let ended = self
                .attempt(item, source, &path, &part, kept.is_some(), &mut sent)
                .await?;
            match ended {
                Ended::Done(length) => {
                    leftover.was_renamed();
                    if let Some(status) = item.there.unmade.take() {
                        self.job
                            .temporary_names_are_refused(self.sessions.first().host(), &status);
                    }
                    return Ok(Ok(length));
                }
                Ended::Failed(message) => {
                    leftover.remove().await;
                    if item.there.unmade.is_some() {
                        self.job.no_last_names.store(true, Ordering::Relaxed);
                    }
                    if kept.is_some() {
                        self.remove_if_empty(part).await;
                    }
                    last = message;
                    break;
                }
                // All of it is there.
                Ended::Unset(message) => {
                    leftover.was_renamed();
                    return Ok(Err(message));
                }
                Ended::Unmade(status) => {
                    leftover.was_renamed();
                    last = self.refused(item, status.clone());
                    item.there.unmade = Some(Box::new(status));
                    if let Some(reason) = self.bars_in_place(item).await {
                        return Ok(Err(reason));
                    }
                    item.there.in_place = true;
                    may_be_kept = false;
                }
                Ended::InPlace(moved) => {
                    leftover.was_renamed();
                    let _ = self.sessions.first().remove(part).await;
                    item.there.moved = moved;
                    if let Some(reason) = self.bars_in_place(item).await {
                        return Ok(Err(reason));
                    }
                    item.there.in_place = true;
                    may_be_kept = false;
                }
                Ended::Again(message) => {
                    leftover.remove().await;
                    if item.there.in_place {
                        item.there.existing = None;
                    }
                    match own {
                        Some(own) => self.lost_parts().push((part, Some(own))),
                        // A server that had not noticed the end of a session has made it since.
                        None => *stale = kept.or_else(|| stale.take()),
                    }
                    may_be_kept = false;
                    last = message;
                }
            }
            if item.stream.is_some() {
                break;
            }
        }
        if item.there.in_place && sent {
            last += INCOMPLETE;
        }
        Ok(Err(last))
    }

    /// Why a file is not written where it is: its backup is the same file.
    /// Why a file is not written where it is, if it is not.
    async fn bars_in_place(&self, item: &Item) -> Option<Reason> {
        if let Some(status) = &item.there.moved {
            let (directory, _) = path::directory_and_name(&self.final_path(item));
            if self.exposure.is_exposed(self.sessions, &directory).await {
                return Some(self.refused(item, status.clone()));
            }
            self.job.renaming_is_refused(self.sessions.first().host(), status);
        }
        item.there.existing?;
        self.job.options.backup.as_ref()?;
        let path = self.shown(&self.final_path(item));
        Some(
            format!(
                "{path} can only be written where it is, and its backup would change, too: it is unchanged"
            )
            .into(),
        )
    }

    /// Removes a partial file that nothing can be resumed from.
    async fn remove_if_empty(&self, part: Bytes) {
        let sftp = self.sessions.first();
        if let Ok(FileAttributes { size: Some(0), .. }) = sftp.lstat(&part).await {
            let _ = sftp.remove(part).await;
        }
    }

    async fn attempt(
        &self,
        item: &Item,
        source: Source,
        path: &Bytes,
        part: &Bytes,
        kept: bool,
        sent: &mut bool,
    ) -> Result<Ended, Error> {
        let in_place = item.there.in_place;
        let (options, alone) = match self.options(item, &source, path, part, kept).await {
            Ok(options) => options,
            Err(error @ (Error::File { .. } | Error::Local { .. })) => {
                return Ok(Ended::Failed(error.into()));
            }
            Err(error) => return Err(error),
        };
        let exclusive = options.opening == Opening::Exclusive;
        let adopted = options.opening == Opening::Existing && !in_place;
        // Another attempt has another name.
        let is_marked = options.mark.is_some();
        let empties = in_place && options.opening == Opening::Truncate && item.there.existing.is_some();
        let wanted = match alone {
            true => 1,
            false => self.job.streams(self.sessions, item.size, true).await,
        };
        let plan = Upload::new(options);
        let resumed = plan.ranges().done_bytes();
        let mut counted = resumed;
        self.job.progress.moved(counted);
        let mut striped = Striped::new(plan);
        let mut reads: JoinSet<Pieces> = JoinSet::new();
        loop {
            let lanes_changed = self.sessions.changed();
            if alone && striped.has_lost() {
                let message = self.shown(path) + " was not copied: the connection was lost";
                return Ok(Ended::Again(message.into()));
            }
            striped.gather(self.sessions, wanted, alone)?;
            let shared = striped.shared.clone();
            let changed = shared.changed.notified();
            let News {
                wants,
                ended,
                may_be_full,
            } = self.news(item, &striped, (exclusive, is_marked, resumed), &mut counted);
            *sent |= empties && striped.shared.plan().has_opened();
            if let Some(ended) = ended {
                striped.drive();
                if adopted && matches!(ended, Ended::Again(_)) {
                    self.job.progress.resumed.fetch_sub(resumed, Ordering::Relaxed);
                }
                return Ok(match ended {
                    Ended::Failed(message) if may_be_full => {
                        drop(striped);
                        let left = (kept || in_place).then_some(counted);
                        Ended::Failed(self.with_room(item, path, left, message).await)
                    }
                    // Another attempt would not find room.
                    Ended::Again(message) if may_be_full => {
                        drop(striped);
                        match self.no_room(item, path, None).await {
                            Some(reason) => Ended::Failed(reason),
                            None => Ended::Again(message),
                        }
                    }
                    ended => ended,
                });
            }
            source.read(&item.source, wants, &mut reads);
            tokio::select! {
                () = changed => {}
                () = lanes_changed => {}
                Some(read) = reads.join_next() => {
                    let pieces = match read {
                        Ok(Ok(pieces)) => pieces,
                        Ok(Err(message)) => return Ok(Ended::Failed(message)),
                        Err(error) => return Ok(Ended::Failed(error.to_string().into())),
                    };
                    self.job.rate.take(pieces.iter().map(|(_, data)| data.len() as u64).sum()).await;
                    pieces.iter().for_each(|(_, data)| self.job.flow.offer(data));
                    *sent |= in_place && !pieces.is_empty();
                    let mut plan = striped.shared.plan();
                    pieces.into_iter().for_each(|(id, data)| plan.provide(id, data));
                    drop(plan);
                    striped.drive();
                }
            }
        }
    }

    /// How to write a file, and whether by one session alone.
    async fn options(
        &self,
        item: &Item,
        source: &Source,
        path: &Bytes,
        part: &Bytes,
        kept: bool,
    ) -> Result<(UploadOptions, bool), Error> {
        let in_place = item.there.in_place;
        let mut options = UploadOptions::new(if in_place { path.clone() } else { part.clone() });
        options.size = Some(item.size).filter(|_| item.stream.is_none());
        options.create = self.new_mode(item);
        options.attributes = looks(self.job, item);
        options.sync = self.job.options.sync;
        options.memory = self.job.memory();
        let alone = in_place || item.stream.is_some() || item.mode.is_some_and(|mode| mode & 0o200 == 0);
        if in_place && !item.named && !self.sessions.first().is_sftp_server().await? {
            // LSTAT shows what a link leads to on some: written in its place, that would be written.
            let text = self.sessions.first().readlink(path).await;
            // One answers that for everything, with the path itself (copyparty's).
            let is_link = text.is_ok_and(|text| text != *path);
            if is_link {
                let status = Status {
                    code: sftp::StatusCode::FAILURE,
                    message: "it is a symbolic link, which this server does not replace".into(),
                };
                return Err(self
                    .sessions
                    .first()
                    .link()
                    .status_error("writing", path.clone(), status));
            }
        }
        if in_place {
            // Cut at once where it is longer: that it can be cut afterwards is not known.
            let is_longer = item
                .there
                .existing
                .is_none_or(|existing| existing.size > item.size || options.size.is_none());
            options.opening = if is_longer {
                Opening::Truncate
            } else {
                Opening::Existing
            };
            return Ok((options, alone));
        }
        options.needs_attributes = item.there.existing.is_some();
        let there = self.look_at_part(item, part, source, kept).await?;
        options.done = there.done;
        options.opening = if there.adopted {
            Opening::Existing
        } else {
            Opening::Exclusive
        };
        options.owner = self.owner(item).filter(|_| !there.adopted);
        options.rename_to = Some(path.clone());
        if there.exposed && self.sessions.first().is_sftp_server().await? {
            options.mark = Some(part::mark());
        }
        let alone = alone || there.exposed && options.mark.is_none();
        Ok((options, alone))
    }

    /// Takes what a plan has to say, and counts what it has written beyond `counted`.
    fn news(
        &self,
        item: &Item,
        striped: &Striped<Upload>,
        (exclusive, is_marked, resumed): (bool, bool, u64),
        counted: &mut u64,
    ) -> News {
        let (events, done) = {
            let mut plan = striped.shared.plan();
            let events: Vec<_> = std::iter::from_fn(|| plan.poll_event()).collect();
            (events, plan.ranges().done_bytes())
        };
        let mut news = News {
            wants: Vec::new(),
            ended: None,
            may_be_full: false,
        };
        for event in events {
            match event {
                UploadEvent::Read { id, offset, length } => news.wants.push(Want { id, offset, length }),
                UploadEvent::Finished {
                    length, attributes, ..
                } => {
                    news.ended = Some(match attributes {
                        Ok(()) => Ended::Done(length),
                        Err(status) => Ended::Unset(self.unset(item, &status)),
                    });
                }
                UploadEvent::NotReplaced { refused, status } => {
                    let bars = self.not_replaced(item, refused, &status);
                    news.ended = Some(bars.map_or_else(Ended::Failed, Ended::InPlace));
                }
                // What an earlier attempt has left is worth nothing to such a server: it is begun anew.
                UploadEvent::Damaged(status) if (!exclusive || is_marked) && !item.there.in_place => {
                    news.ended = Some(Ended::Again(self.refused(item, status)));
                }
                UploadEvent::Damaged(status) => {
                    news.ended = Some(Ended::Failed(self.refused(item, status)));
                }
                UploadEvent::Failed(status) => {
                    news.may_be_full = status.code == sftp::StatusCode::FAILURE;
                    news.ended = Some(self.failed(item, &status, exclusive, *counted - resumed));
                }
                _ => {}
            }
        }
        let more = done.saturating_sub(*counted);
        self.job.progress.kept(more);
        self.job.flow.passed(more);
        *counted = done.max(*counted);
        news
    }

    /// A file that cannot get its name by renaming is written where it is to be. Returns what was said, where what was
    /// written is not there any more.
    ///
    /// # Errors
    /// It fails.
    fn not_replaced(&self, item: &Item, refused: Refused, status: &Status) -> Result<Option<Status>, Reason> {
        let needs_owner = refused == Refused::Owner && self.job.options.owners;
        if needs_owner {
            return Err(Reason {
                obstacle: Some(Obstacle::Owner),
                ..self.refused(item, status.clone()) + "; its owner could not be set"
            });
        }
        if item.there.in_place {
            return Err(self.refused(item, status.clone()));
        }
        if status.code == sftp::StatusCode::NO_SUCH_FILE {
            // The server takes away what is closed; or somebody has moved it, and may have put something else where it was
            // to be.
            return Ok(Some(status.clone()));
        }
        if refused == Refused::Renaming {
            self.job.renaming_is_refused(self.sessions.first().host(), status);
        }
        Ok(None)
    }

    /// All bytes are there, and times or permissions are not as they were asked for.
    fn unset(&self, item: &Item, status: &Status) -> Reason {
        let path = self.shown(&self.final_path(item));
        format!("{path}: copied, but the server does not set its times and permissions: {status}").into()
    }

    /// Returns the meaning of an upload's failure before anything was written: the file could not be made.
    fn failed(&self, item: &Item, status: &Status, exclusive: bool, written: u64) -> Ended {
        let message = self.refused(item, status.clone());
        match status.code {
            // An earlier attempt's file cannot be resumed: some servers write a file from its beginning only
            // (rclone's), or take it away when it is opened again.
            _ if !exclusive && !item.there.in_place && written == 0 => Ended::Again(message),
            // The server took away what it was to open again.
            sftp::StatusCode::NO_SUCH_FILE if written == 0 && item.there.existing.is_some() && !exclusive => {
                Ended::Again(message)
            }
            _ if !exclusive || written > 0 => Ended::Failed(message),
            // A directory that takes no new name, and a file in it that may be written.
            sftp::StatusCode::PERMISSION_DENIED if item.there.existing.is_some() => Ended::InPlace(None),
            _ if self.may_be_unmade(status) => Ended::Unmade(status.clone()),
            // The name has come to be taken, or the session ended while it was asked for.
            sftp::StatusCode::FAILURE | sftp::StatusCode::CONNECTION_LOST => Ended::Again(message),
            _ => Ended::Failed(message),
        }
    }

    /// Returns whether a server may have refused the temporary name, or EXCL, and not the file itself: some
    /// know no EXCL (npm ssh2-sftp-server's says that there is no such file), or take some names only.
    fn may_be_unmade(&self, status: &Status) -> bool {
        let is_refused = matches!(
            status.code,
            sftp::StatusCode::NO_SUCH_FILE
                | sftp::StatusCode::PERMISSION_DENIED
                | sftp::StatusCode::OP_UNSUPPORTED
        );
        is_refused
            && !self.sessions.first().link().is_sftp_server()
            && !self.job.no_last_names.load(Ordering::Relaxed)
    }

    /// Says what a server's bare "failure" means where its disk is full.
    /// `left`: the bytes of the file that are still there, where they stay.
    async fn with_room(&self, item: &Item, path: &Bytes, left: Option<u64>, reason: Reason) -> Reason {
        self.no_room(item, path, left).await.unwrap_or(reason)
    }

    /// Says that a server's disk is full, if it is.
    async fn no_room(&self, item: &Item, path: &Bytes, left: Option<u64>) -> Option<Reason> {
        if self.job.is_over() {
            // It was under way when that was found out.
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
        // What is taken away again leaves the room that it had.
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

    /// Why a file that is to be written where it is would not find room: known beforehand, its content is not lost.
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

    /// A path's directory and its last part, for people.
    fn directory_and_name(&self, path: &Bytes) -> (String, String) {
        let (directory, name) = path::directory_and_name(path);
        let host = self.sessions.first().host().to_owned();
        (format!("{host}:{}", shown(&directory)), shown(&name))
    }

    /// The state of the file system that a path is on; `None` where the server does not say.
    async fn file_system(&self, path: &Bytes) -> Option<StatVfs> {
        let directory = path::directory_and_name(path).0;
        self.sessions.first().statvfs(&directory).await.ok()
    }

    /// Permissions that a new file is made with, which the server masks. One that takes the place of another is nobody
    /// else's until it has that one's.
    fn new_mode(&self, item: &Item) -> FileAttributes {
        permissions(match item.there.existing {
            Some(_) => 0o600,
            None => item.mode.unwrap_or(0o666) & 0o777,
        })
    }

    /// Writes to what is not a regular file, in order.
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
        // A FIFO has no places: sftp-server appends to it, and fails to seek in it.
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
                self.job.progress.moved(length);
                at += length;
            }
        };
        match written.await {
            Ok(length) => Ok(Ok(length)),
            Err(error @ (Error::File { .. } | Error::Local { .. })) => Ok(Err(error.into())),
            Err(error) => Err(error),
        }
    }

    /// A file is there; what is not a regular one is not compared.
    fn copied(&self, item: Item, length: u64) {
        match item.there.special.is_some() || item.stream.is_some() {
            true => self.job.progress.copied(item.target, length, item.changes),
            false => self.job.copied(item, |item| self.final_path(item), length),
        }
    }

    /// Whose a file is to be.
    fn owner(&self, item: &Item) -> Option<Owner> {
        let own = item.owner.filter(|_| self.job.options.owners);
        own.or(item.there.existing.and_then(|existing| existing.owner))
    }

    fn final_path(&self, item: &Item) -> Bytes {
        item.there.path.clone().unwrap_or_else(|| self.path(&item.target))
    }

    fn refused(&self, item: &Item, status: Status) -> Reason {
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

    /// Looks for the part that an earlier attempt left, and returns the ranges that need not be sent: those that are
    /// right, or the source's holes, which a new file has by itself.
    async fn look_at_part(
        &self,
        item: &Item,
        part: &Bytes,
        source: &Source,
        kept: bool,
    ) -> Result<Part, Error> {
        let directory = path::directory_and_name(part).0;
        let left = async {
            match kept {
                true => self.look_in_turn(part).await,
                false => Ok(None),
            }
        };
        let (left, exposed) = tokio::join!(left, self.exposure.is_exposed(self.sessions, &directory));
        let left = left?;
        if let Some(left) = &left
            // A longer one would have to be cut, which is not done alike by all servers.
            && let Some(size) = left.size.filter(|size| (1..=item.size).contains(size))
            && left.file_type() == Some(FileType::Regular)
            // Sessions open it by its name, which others could give to something else in between.
            && !exposed
            && let Some(mut done) = self.same((item, size), part, source).await?
        {
            // A hole at the end of what is there hashes like the zeros that it is not.
            done.retain_mut(|range| {
                range.end = range.end.min(size);
                !range.is_empty()
            });
            if !done.is_empty() {
                let resumed = done.iter().map(|range| range.end - range.start).sum();
                self.job.progress.resumed.fetch_add(resumed, Ordering::Relaxed);
                return Ok(Part {
                    done,
                    adopted: true,
                    exposed,
                });
            }
        }
        if left.is_some() {
            // Nothing is lost: no other copy has this name. Where it cannot be removed, the file gets another one.
            self.remove(part.clone()).await?;
        }
        let done = match source {
            Source::Local(file) => {
                let (file, size) = (file.clone(), item.size);
                blocking(move || holes(&file, size)).await
            }
            Source::Server(_) | Source::Stream(_) => Vec::new(),
        };
        Ok(Part {
            done,
            adopted: false,
            exposed,
        })
    }

    /// The ranges of what an earlier attempt left, so many bytes, that are the source's; `None` where it is not ours.
    async fn same(
        &self,
        (item, left): (&Item, u64),
        part: &Bytes,
        source: &Source,
    ) -> Result<Option<Vec<Range<u64>>>, Error> {
        // The last block of what is there is the source's only where both end with it.
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
    // What is written where it is keeps what it has.
    let existing = item.there.existing.filter(|_| !item.there.in_place);
    FileAttributes {
        permissions: own.or(existing.map(|existing| existing.mode)).map(Permissions),
        times: item.times.filter(|_| preserve).map(times),
        ..FileAttributes::default()
    }
}

async fn link_text(sessions: &Sessions, path: &Bytes) -> Result<Bytes, Error> {
    let read = |sftp: Sftp| async move { sftp.link_text(path).await };
    sessions.with(read).await
}

/// Makes a link, in the place of what has its name.
async fn make_link(
    sftp: &Sftp,
    target: &Bytes,
    path: &Bytes,
    part: Bytes,
    looks: &FileAttributes,
    is_there: bool,
) -> Result<(), Error> {
    if !sftp.is_sftp_server().await? {
        // Others rename what a link leads to, or do not replace one.
        if is_there
            && let Err(error) = sftp.remove(path).await
            && !error.is_no_such_file()
        {
            return Err(error);
        }
        return sftp.symlink_exactly(target, path).await;
    }
    if let Err(error) = sftp.symlink(target, &part).await {
        // What a copy that was killed has left makes way: should it be renamed later, it is a whole link all the same.
        sftp.remove(&part).await.map_err(|_| error)?;
        sftp.symlink(target, &part).await?;
    }
    let set = async {
        // Older ones cannot.
        if !looks.is_empty() {
            let _ = sftp.lsetstat(&part, looks.clone()).await;
        }
    };
    // Both requests are on their way at once.
    let ((), renamed) = tokio::join!(set, sftp.rename(&part, path));
    if renamed.is_err() {
        let _ = sftp.remove(&part).await;
    }
    renamed
}

/// Sets what a name is to look like: of itself, should a link have taken its place, unless the user named it.
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
    // A change of owner takes set-user-ID and set-group-ID: it comes first.
    if let Some(owner) = looks.owner {
        let owner = FileAttributes {
            owner: Some(owner),
            ..FileAttributes::default()
        };
        sessions.with(|sftp| set(sftp, owner.clone())).await?;
    }
    let others = FileAttributes {
        owner: None,
        ..looks.clone()
    };
    match others.is_empty() {
        true => Ok(()),
        false => sessions.with(|sftp| set(sftp, others.clone())).await,
    }
}

/// A file that another one is to replace.
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

/// Bytes that a file system has left for a file.
fn free(state: &StatVfs) -> u64 {
    // Some file systems have no number of files.
    let full = state.files > 0 && state.files_available == 0;
    if full { 0 } else { state.available_bytes() }
}

/// A type of file, for people.
fn name(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a directory",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        _ => "a device",
    }
}

/// The news from a plan.
struct News {
    /// The ranges to read from the source.
    wants: Vec<Want>,
    ended: Option<Ended>,
    /// The server may have meant that its disk is full.
    may_be_full: bool,
}

/// How an attempt to copy a large file ended.
enum Ended {
    Done(u64),
    /// All of it is there, but not its times or permissions.
    Unset(Reason),
    Failed(Reason),
    /// The file cannot be replaced as it is; what was said, where what was written is not there any more.
    InPlace(Option<Status>),
    /// The server made no file of a temporary name, and may make one of its last name.
    Unmade(Status),
    /// Another attempt may do better; why this one did not.
    Again(Reason),
}

/// The attributes of a directory's name at the target, or the reason why they are unknown.
type Look = Result<Option<FileAttributes>, Error>;

/// A step that is taken beside others.
enum Step {
    /// A name is looked at.
    Look(Item),
    /// A file's content was compared.
    Settle(Compared),
}

enum Taken {
    /// The file's content decides; where it is the same, this is set.
    Compare(Box<Item>, Changes),
    Done,
    NobodyCopies,
}

/// The decision about a name.
enum Prepared {
    Copy,
    /// Its content decides; where it is the same, this is set.
    Compare(Changes),
    Done,
}

/// The part of a file that exists under its temporary name.
struct Part {
    done: Vec<Range<u64>>,
    adopted: bool,
    /// Others may give the name to another file.
    exposed: bool,
}

fn permissions(mode: u32) -> FileAttributes {
    FileAttributes {
        permissions: Some(Permissions(mode)),
        ..FileAttributes::default()
    }
}
