//! Small files, many at a time.

use std::collections::HashSet;
use std::io;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use trunkline_sftp::transfer::{FileId, ManyUpload, ManyUploadEvent, Opening, Plan as _, UploadFile};

use super::super::item::Item;
use super::super::large::Turn;
use super::super::part::Own;
use super::super::path::shown;
use super::super::place::Place;
use super::super::reason::Reason;
use super::super::small::{Queue, SMALL_MEMORY, SmallFiles, Work};
use super::super::source::open;
use super::{Up, looks};
use crate::error::Error;
use crate::sftp::{self, Sftp, Status};

/// The small files on one session.
pub(super) struct SmallUp<'a> {
    up: &'a Up<'a>,
    files: SmallFiles<ManyUpload>,
    reads: JoinSet<Vec<Content>>,
    /// Content that was read and not yet given to the plan.
    read: Option<Vec<Content>>,
    /// The number of confirmed bytes when last seen.
    written: u64,
    /// Files that have to be written in place.
    in_place: Vec<Item>,
    /// Files whose temporary names are taken by leftovers of an earlier copy.
    taken: Vec<Item>,
    /// Files that the server refused, with its answers.
    failed: Vec<(Item, Status)>,
}

/// A small file's content, or the reason why there is none.
struct Content {
    file: FileId,
    data: Result<Bytes, Reason>,
}

impl Content {
    fn len(&self) -> u64 {
        self.data.as_ref().map_or(0, |data| data.len() as u64)
    }
}

/// The least bytes in flight on a near session, also at the start: 32 files of 4 KiB. sshd and sftp-server buffer whatever they
/// cannot handle at once, and reallocate, copy and clear the buffer for each piece that it grows by: with 512 files, 2 MiB, sshd
/// could spend more CPU time on that than on everything else. 20,000 files of 4 KiB took 2.06 s with 32 and 2.68 s with 512 (the
/// first copy of a daemon: 2.25 and 3.20 s), 3.5 s with at most 8, and rsync 2.0 s (medians of five runs).
const NEAR_FLIGHT: u64 = 32 * 4096;

/// The small local files that one thread reads in a row.
const READ_TOGETHER: usize = 64;
/// The most that a server's small file may exceed its stated size: thousands of them may be in memory, with room made for
/// the stated sizes.
const GROWTH: u64 = 64 * 1024;

impl Up<'_> {
    pub(super) async fn small(&self, items: mpsc::Receiver<Item>) -> Result<(), Error> {
        let begin = |sftp| SmallUp::new(self, sftp);
        Queue::new(items).copy(self.job, self.sessions, begin).await
    }
}

impl Work for SmallUp<'_> {
    type Plan = ManyUpload;

    /// 20,000 files of 4 KiB take 1.75 s, and 2.12 s with two sessions; rsync takes 1.54 s (two busy cores).
    const NEAR: usize = 4;

    fn files(&mut self) -> &mut SmallFiles<ManyUpload> {
        &mut self.files
    }

    fn add(&mut self, mut item: Item) {
        let up = self.up;
        if item.there.own.is_none() {
            item.there.own = up.names.own(&item.source, &up.final_path(&item));
        }
        let path = up.final_path(&item);
        // Each attempt has another name: the server may still work on a lost session's attempt.
        let mut file = UploadFile::new(part_of(up, &item), item.size);
        file.opening = Opening::Exclusive;
        file.owner = up.owner(&item);
        file.needs_attributes = item.there.existing.is_some();
        file.create = up.new_mode(&item);
        file.attributes = looks(up.job, &item);
        file.sync = up.job.options.sync;
        file.rename_to = Some(path);
        let id = self.files.shared.plan().add(file);
        self.files.known.insert(id, item);
    }

    async fn work(&mut self) -> bool {
        let mut any = self.handle_events();
        for item in std::mem::take(&mut self.taken) {
            self.add(item);
            any = true;
        }
        for (item, status) in std::mem::take(&mut self.failed) {
            self.fail(item, status).await;
        }
        for mut item in std::mem::take(&mut self.in_place) {
            if let Some(status) = item.there.unmade.take_if(|status| !self.up.may_be_unmade(status)) {
                // Another attempt has failed meanwhile, too.
                self.fail(item, *status).await;
                continue;
            }
            item.there.in_place = true;
            let turn = Turn::alone(item.size);
            match self.up.large_one(&mut item, &turn).await {
                Ok(Ok(length)) => self.up.report_copied(item, length),
                Ok(Err(message)) => self.up.job.report_failed(item.target, message),
                Err(error) => self.up.job.report_failed(item.target, error),
            }
        }
        if let Some(contents) = self.read.take() {
            let bytes = contents.iter().map(Content::len).sum();
            self.up.job.rate.take(bytes).await;
            self.provide(contents);
            any = true;
        }
        if any {
            self.files.attached.drive();
        }
        any
    }

    async fn wait(&mut self) {
        tokio::select! {
            () = self.files.shared.changed.notified() => {}
            Some(read) = self.reads.join_next() => self.read = read.ok(),
        }
    }

    fn lost(&mut self) {
        let mut parts: HashSet<Bytes> = self.files.shared.plan().under_way().cloned().collect();
        let mut lost = self.up.lost_parts();
        for item in self.files.known.values_mut() {
            let part = part_of(self.up, item);
            if parts.remove(&part) {
                lost.push((part, item.there.own.clone()));
                item.there.attempts += 1;
            }
        }
        lost.extend(parts.into_iter().map(|part| (part, None)));
    }
}

impl<'a> SmallUp<'a> {
    pub(super) fn new(up: &'a Up<'a>, sftp: Sftp) -> Self {
        let lost = up.lost_parts().clone();
        // Parts of earlier sessions are removed; those that a server makes later are removed at the end.
        sftp.link().with_client(|client| {
            for (path, _) in lost.into_iter().filter(|(_, own)| own.is_none()) {
                let id = client.request(trunkline_sftp::Request::Remove { path });
                client.cancel(id);
            }
        });
        let plan = ManyUpload::new(SMALL_MEMORY);
        let plan = match up.sessions.is_near() {
            true => plan.with_flight(NEAR_FLIGHT),
            false => plan,
        };
        Self {
            up,
            files: SmallFiles::on(sftp, plan),
            reads: JoinSet::new(),
            read: None,
            written: 0,
            in_place: Vec::new(),
            taken: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// Handles the plan's events; returns whether there were any.
    fn handle_events(&mut self) -> bool {
        let (events, written): (Vec<ManyUploadEvent>, u64) = {
            let mut plan = self.files.shared.plan();
            let events = std::iter::from_fn(|| plan.poll_event()).collect();
            (events, plan.written())
        };
        self.up.job.progress.count_moved(written - self.written);
        self.up.job.flow.passed(written - self.written);
        self.written = written;
        let any = !events.is_empty();
        let mut wanted = Vec::new();
        for event in events {
            match event {
                ManyUploadEvent::Read(file) => {
                    wanted.extend(self.files.known.get(&file).map(|item| (file, item.clone())));
                }
                ManyUploadEvent::Finished { file, attributes } => {
                    let Some(item) = self.files.known.remove(&file) else {
                        continue;
                    };
                    match attributes {
                        Ok(()) => {
                            let length = item.size;
                            self.up.report_copied(item, length);
                        }
                        Err(status) => {
                            let reason = self.up.unset(&item, &status);
                            self.up.job.report_failed(item.target, reason);
                        }
                    }
                }
                ManyUploadEvent::NotReplaced {
                    file,
                    refused,
                    status,
                } => {
                    if let Some(mut item) = self.files.known.remove(&file) {
                        match self.up.not_replaced(&item, refused, &status) {
                            Ok(moved) => {
                                item.there.moved = moved;
                                self.in_place.push(item);
                            }
                            Err(reason) => self.up.job.report_failed(item.target, reason),
                        }
                    }
                }
                ManyUploadEvent::Taken { file, status } => {
                    let Some(mut item) = self.files.known.remove(&file) else {
                        continue;
                    };
                    if !Own::may_be_taken(item.there.own.as_ref(), item.there.attempts) {
                        self.failed.push((item, status));
                        continue;
                    }
                    let left = (part_of(self.up, &item), item.there.own.clone());
                    self.up.lost_parts().push(left);
                    item.there.attempts += 1;
                    self.taken.push(item);
                }
                ManyUploadEvent::Failed { file, status } => {
                    let Some(mut item) = self.files.known.remove(&file) else {
                        continue;
                    };
                    let denied = status.code == sftp::StatusCode::PERMISSION_DENIED;
                    if denied && item.there.existing.is_some() {
                        self.in_place.push(item);
                    } else if self.up.may_be_unmade(&status) {
                        item.there.unmade = Some(Box::new(status));
                        self.in_place.push(item);
                    } else {
                        self.failed.push((item, status));
                    }
                }
                _ => {}
            }
        }
        self.read(wanted);
        any
    }

    /// Reports the reason why a file was not written.
    async fn fail(&self, item: Item, status: Status) {
        let may_be_full = status.code == sftp::StatusCode::FAILURE;
        let mut message = self.up.refusal(&item, status);
        if may_be_full {
            let path = self.up.final_path(&item);
            message = self.up.with_room(&item, &path, None, message).await;
        }
        self.up.job.report_failed(item.target, message);
    }

    fn read(&mut self, mut wanted: Vec<(FileId, Item)>) {
        match self.up.from {
            Place::Server(sessions) => {
                for (file, item) in wanted {
                    let sessions = sessions.clone();
                    self.reads.spawn(async move {
                        let most = item.size.saturating_add(GROWTH);
                        let source = &item.source;
                        let read = |sftp: Sftp| async move { sftp.read_at_most(source, most).await };
                        let data = match sessions.retry(read).await {
                            Ok(Some(data)) => Ok(data),
                            Ok(None) => Err(format!(
                                "{}: it grew by more than 64 KiB while it was copied; copy it again",
                                shown(&item.source)
                            )
                            .into()),
                            Err(error) => Err(error.into()),
                        };
                        vec![Content { file, data }]
                    });
                }
            }
            Place::Local => {
                while !wanted.is_empty() {
                    let some: Vec<_> = wanted.drain(..wanted.len().min(READ_TOGETHER)).collect();
                    self.reads.spawn_blocking(move || {
                        some.into_iter()
                            .map(|(file, item)| Content {
                                file,
                                data: read_whole(&item).map_err(|error| Reason::local(&item.source, &error)),
                            })
                            .collect()
                    });
                }
            }
        }
    }

    fn provide(&mut self, contents: Vec<Content>) {
        for content in contents {
            let bytes = content.len();
            match content.data {
                Ok(data) => {
                    if let Some(item) = self.files.known.get_mut(&content.file) {
                        item.size = bytes;
                    }
                    self.up.job.flow.offer(&data);
                    self.files.shared.plan().provide(content.file, data);
                }
                Err(message) => {
                    let shared = self.files.shared.clone();
                    self.files
                        .sftp
                        .link()
                        .with_client(|client| shared.plan().skip(content.file, client));
                    if let Some(item) = self.files.known.remove(&content.file) {
                        self.up.job.report_failed(item.target, message);
                    }
                }
            }
        }
    }
}

/// Returns a file's temporary name for its present attempt.
fn part_of(up: &Up<'_>, item: &Item) -> Bytes {
    Own::name(item.there.own.as_ref(), &up.final_path(item), item.there.attempts)
}

/// Reads a whole small local file. It may have changed since it was found, but not into a large one.
fn read_whole(item: &Item) -> io::Result<Bytes> {
    /// The largest size that a small file may have grown to.
    const MOST: usize = 16 * 1024 * 1024;
    let file = open(&item.source, item.named)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!(
            "{} is no longer a regular file",
            shown(&item.source)
        )));
    }
    let mut whole = Vec::with_capacity(usize::try_from(item.size).unwrap_or(MOST).min(MOST) + 1);
    io::Read::read_to_end(&mut io::Read::take(&file, MOST as u64 + 1), &mut whole)?;
    if whole.len() > MOST {
        return Err(io::Error::other(
            "it grew to more than 16 MiB while it was copied",
        ));
    }
    Ok(whole.into())
}
