//! Copies towards a server, from this machine or through it from another server.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::StreamExt as _;
use rustix::fs::SeekFrom;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use trunkline_sftp::transfer::{
    FileId, ManyUpload, ManyUploadEvent, Plan as _, ReadId, Upload, UploadEvent, UploadFile, UploadOptions,
};

use super::lanes::Lanes;
use super::list::{self, os};
use super::small::{MOST_SMALL, Queue, SMALL_MEMORY, SmallFiles, Work};
use super::striped::Striped;
use super::{Item, Job, Kind, Place, blocking, blocks, shown};
use crate::error::Error;
use crate::sftp::{self, FileAttributes, FileType, OpenFlags, Permissions, Sftp, Status, Times};

/// A copy into a server's directory.
pub(super) struct Up<'a> {
    job: &'a Arc<Job>,
    from: &'a Place,
    lanes: &'a Arc<Lanes>,
    root: &'a Bytes,
}

/// Names that are looked at together.
const BATCH: usize = 4096;
/// Requests for single names in flight.
const AT_ONCE: usize = 256;
/// Read at once of a local file.
const READ: usize = 4 * 1024 * 1024;

impl<'a> Up<'a> {
    pub(super) fn new(job: &'a Arc<Job>, from: &'a Place, lanes: &'a Arc<Lanes>, root: &'a Bytes) -> Self {
        Self {
            job,
            from,
            lanes,
            root,
        }
    }

    /// Copies what comes until no more comes.
    pub(super) async fn run(&self, items: mpsc::Receiver<Item>) -> Result<(), Error> {
        let (small, small_items) = mpsc::channel(MOST_SMALL);
        let (large, large_items) = mpsc::channel(MOST_SMALL);
        let (directories, (), ()) = tokio::try_join!(
            self.sort(items, small, large),
            self.small(small_items),
            self.large(large_items)
        )?;
        self.finish_directories(directories).await
    }

    fn path(&self, target: &[u8]) -> Bytes {
        list::in_root(self.root, target)
    }

    /// Makes directories and links, leaves out what is there already, and hands on the files. The directories that want
    /// to be finished.
    async fn sort(
        &self,
        mut items: mpsc::Receiver<Item>,
        small: mpsc::Sender<Item>,
        large: mpsc::Sender<Item>,
    ) -> Result<Vec<Item>, Error> {
        let mut made = Vec::new();
        let mut batch = Vec::new();
        while items.recv_many(&mut batch, BATCH).await > 0 {
            let (directories, others): (Vec<Item>, Vec<Item>) =
                batch.drain(..).partition(|item| item.kind == Kind::Directory);
            // In order on one session: the server makes the outer one first.
            let making = futures_util::stream::iter(directories)
                .map(|item| async {
                    let new = self.make_directory(&item).await;
                    (item, new)
                })
                .buffered(AT_ONCE);
            let mut making = std::pin::pin!(making);
            while let Some((item, new)) = making.next().await {
                match new {
                    Ok(new) => {
                        self.job.progress.copied(item.target.clone(), 0);
                        let masked = new && item.mode.is_some_and(|mode| mode & 0o700 != 0o700);
                        if self.job.options.preserve || masked {
                            made.push(item);
                        }
                    }
                    Err(error) => list::fail(self.job, item.target, error)?,
                }
            }
            let checked = futures_util::stream::iter(others)
                .map(|item| async {
                    let result = self.prepare(&item).await;
                    (item, result)
                })
                .buffered(AT_ONCE);
            let mut checked = std::pin::pin!(checked);
            while let Some((item, result)) = checked.next().await {
                match result {
                    Ok(true) => {
                        let queue = if item.is_large() {
                            &large
                        } else {
                            self.job.plenty.count();
                            &small
                        };
                        if queue.send(item).await.is_err() {
                            return Ok(made);
                        }
                    }
                    Ok(false) => {}
                    Err(error) => list::fail(self.job, item.target, error)?,
                }
            }
        }
        self.job.plenty.end();
        Ok(made)
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
                    Err(error @ Error::File { .. }) => match sftp.stat(&path).await {
                        Ok(found) if found.file_type() == Some(FileType::Directory) => Ok(false),
                        _ => Err(error),
                    },
                    Err(error) => Err(error),
                }
            }
        };
        self.lanes.with(make).await
    }

    /// Copies a link; whether a file is to be copied.
    async fn prepare(&self, item: &Item) -> Result<bool, Error> {
        if item.kind == Kind::Link {
            self.link(item).await?;
            return Ok(false);
        }
        let options = &self.job.options;
        if !options.update && !options.checksum {
            return Ok(true);
        }
        let path = self.path(&item.target);
        let Ok(found) = self.lanes.first().lstat(&path).await else {
            return Ok(true);
        };
        let is_file = matches!(found.file_type(), None | Some(FileType::Regular));
        let newer = match (found.times, item.times) {
            (Some(there), Some((_, modified))) => there.modified >= modified,
            _ => false,
        };
        let skipped = is_file
            && (options.update && newer
                || options.checksum && found.size == Some(item.size) && self.is_same(item, &path).await?);
        if skipped {
            self.job.progress.skipped(item);
        }
        Ok(!skipped)
    }

    async fn is_same(&self, item: &Item, path: &Bytes) -> Result<bool, Error> {
        let Place::Local = self.from else {
            return Ok(false);
        };
        let source = item.source.clone();
        match blocking(move || open(&source)).await {
            Ok(file) => blocks::is_same(self.lanes, path, file, item.size).await,
            Err(_) => Ok(false),
        }
    }

    async fn link(&self, item: &Item) -> Result<(), Error> {
        let target = match self.from {
            Place::Server(lanes) => lanes.first().readlink(&item.source).await?,
            Place::Local => {
                let source = item.source.clone();
                match blocking(move || std::fs::read_link(Path::new(os(&source)))).await {
                    Ok(target) => Bytes::copy_from_slice(target.as_os_str().as_encoded_bytes()),
                    Err(error) => {
                        self.job
                            .progress
                            .failed(item.target.clone(), list::words(&item.source, &error));
                        return Ok(());
                    }
                }
            }
        };
        let (path, part) = (self.path(&item.target), self.path(&item.part()));
        let sftp = self.lanes.first();
        if sftp.symlink(&target, &part).await.is_err() {
            // Of an earlier attempt, perhaps.
            let _ = sftp.remove(&part).await;
            sftp.symlink(&target, &part).await?;
        }
        if let Err(error) = sftp.rename_over(&part, &path).await {
            let _ = sftp.remove(&part).await;
            return Err(error);
        }
        self.job.progress.copied(item.target.clone(), 0);
        Ok(())
    }

    async fn finish_directories(&self, directories: Vec<Item>) -> Result<(), Error> {
        // What is deepest first, in order on one session.
        let setting = futures_util::stream::iter(directories.into_iter().rev())
            .map(|item| async {
                let (path, looks) = (self.path(&item.target), self.looks(&item));
                let set = |sftp: Sftp| {
                    let (path, looks) = (path.clone(), looks.clone());
                    async move { sftp.setstat(path, looks).await }
                };
                let result = self.lanes.with(set).await;
                (item, result)
            })
            .buffered(AT_ONCE);
        let mut setting = std::pin::pin!(setting);
        while let Some((item, result)) = setting.next().await {
            if let Err(error) = result {
                list::fail(self.job, item.target, error)?;
            }
        }
        Ok(())
    }

    /// What a file or directory is to look like at last.
    fn looks(&self, item: &Item) -> FileAttributes {
        let preserve = self.job.options.preserve;
        let mode = item.mode.filter(|_| preserve || item.kind == Kind::Directory);
        FileAttributes {
            permissions: mode.map(|mode| Permissions(if preserve { mode & 0o7777 } else { mode & 0o777 })),
            times: item
                .times
                .filter(|_| preserve)
                .map(|(accessed, modified)| Times { accessed, modified }),
            ..FileAttributes::default()
        }
    }

    // Small files.

    async fn small(&self, items: mpsc::Receiver<Item>) -> Result<(), Error> {
        let begin = |sftp| SmallUp {
            up: self,
            files: SmallFiles::on(sftp, ManyUpload::new(SMALL_MEMORY)),
            reads: JoinSet::new(),
            read: None,
            written: 0,
        };
        Queue::new(items).copy(self.job, self.lanes, begin).await
    }

    // Large files.

    async fn large(&self, mut items: mpsc::Receiver<Item>) -> Result<(), Error> {
        while let Some(item) = items.recv().await {
            self.job.progress.began(&item.target);
            match self.large_one(&item).await? {
                Ok(length) => self.job.progress.copied(item.target, length),
                Err(message) => {
                    if !self.job.options.partial {
                        let _ = self.lanes.first().remove(self.path(&item.part())).await;
                    }
                    self.job.progress.failed(item.target, message);
                }
            }
        }
        Ok(())
    }

    /// Copies one file over as many sessions as it is worth. Fails when there are none left; gives a sentence when the
    /// file is what failed.
    async fn large_one(&self, item: &Item) -> Result<Result<u64, String>, Error> {
        let source = match Source::open(self.from, item).await {
            Ok(source) => source,
            Err(message) => return Ok(Err(message)),
        };
        let part = self.path(&item.part());
        let mut options = UploadOptions::new(part.clone());
        options.size = Some(item.size);
        options.create = permissions(item.mode.unwrap_or(0o666) & 0o777);
        options.attributes = self.looks(item);
        options.sync = self.job.options.sync;
        options.rename_to = Some(self.path(&item.target));
        options.memory = self.job.memory();
        let there = match self.look_at_part(item, &part, &source).await {
            Ok(there) => there,
            Err(error @ (Error::File { .. } | Error::Local { .. })) => return Ok(Err(error.to_string())),
            Err(error) => return Err(error),
        };
        (options.done, options.absent) = (there.done, there.absent);
        let wanted = self.job.streams(self.lanes, item.size, true).await;
        let plan = Upload::new(options);
        let mut counted = plan.ranges().done_bytes();
        self.job.progress.moved(counted);
        let mut striped = Striped::new(plan);
        let mut reads: JoinSet<Pieces> = JoinSet::new();
        loop {
            let lanes_changed = self.lanes.changed();
            striped.gather(self.lanes, wanted)?;
            let shared = striped.shared.clone();
            let changed = shared.changed.notified();
            let mut wants = Vec::new();
            let mut ended = None;
            {
                let mut plan = striped.shared.plan();
                while let Some(event) = plan.poll_event() {
                    match event {
                        UploadEvent::Read { id, offset, length } => wants.push(Want { id, offset, length }),
                        UploadEvent::Finished {
                            length, attributes, ..
                        } => ended = Some(attributes.map(|()| length)),
                        UploadEvent::Failed(status) => ended = Some(Err(status)),
                        _ => {}
                    }
                }
                let done = plan.ranges().done_bytes();
                let more = done.saturating_sub(counted);
                self.job.progress.moved(more);
                self.job.flow.passed(more);
                counted = counted.max(done);
            }
            if let Some(ended) = ended {
                striped.drive();
                return Ok(ended.map_err(|status| self.refused(item, status)));
            }
            source.read(wants, &mut reads);
            tokio::select! {
                () = changed => {}
                () = lanes_changed => {}
                Some(read) = reads.join_next() => {
                    let pieces = match read {
                        Ok(Ok(pieces)) => pieces,
                        Ok(Err(message)) => return Ok(Err(message)),
                        Err(error) => return Ok(Err(error.to_string())),
                    };
                    self.job.throttle.take(pieces.iter().map(|(_, data)| data.len() as u64).sum()).await;
                    pieces.iter().for_each(|(_, data)| self.job.flow.offer(data));
                    let mut plan = striped.shared.plan();
                    pieces.into_iter().for_each(|(id, data)| plan.provide(id, data));
                    drop(plan);
                    striped.drive();
                }
            }
        }
    }

    fn refused(&self, item: &Item, status: Status) -> String {
        let path = self.path(&item.target);
        self.lanes
            .first()
            .link()
            .refused("writing", path, status)
            .to_string()
    }

    /// What an earlier attempt has left, and what of a file need not be sent: what of that is right, or the source's holes,
    /// which a new file has by itself.
    async fn look_at_part(&self, item: &Item, part: &Bytes, source: &Source) -> Result<Part, Error> {
        let lstat = |sftp: Sftp| {
            let part = part.clone();
            async move { sftp.lstat(part).await }
        };
        let looked_at = self.job.looked_at().remove(part);
        let size = match looked_at {
            Some(size) => size,
            None => match self.lanes.with(lstat).await {
                Ok(found) => Some(found.size.unwrap_or(0)),
                Err(error) if error.is_no_such_file() => None,
                Err(error) => return Err(error),
            },
        };
        let file = match source {
            Source::Local(file) => Some(file),
            Source::Server(_) => None,
        };
        if let (Some(size @ 1..), Some(file), true) = (size, file, self.job.options.partial) {
            let cloned = file
                .try_clone()
                .map_err(|error| Error::local(shown(&item.source), error))?;
            let mut done = blocks::same(self.lanes, part, cloned, item.size).await?;
            // A hole at the end of what is there hashes like the zeros that it is not.
            done.retain_mut(|range| {
                range.end = range.end.min(size);
                !range.is_empty()
            });
            if !done.is_empty() {
                let resumed = done.iter().map(|range| range.end - range.start).sum();
                self.job.progress.resumed.fetch_add(resumed, Ordering::Relaxed);
                return Ok(Part { done, absent: false });
            }
        }
        if size.is_some() {
            let remove = |sftp: Sftp| {
                let part = part.clone();
                async move { sftp.remove(part).await }
            };
            self.lanes.with(remove).await?;
        }
        let done = match file.cloned() {
            Some(file) => {
                let size = item.size;
                blocking(move || holes(&file, size)).await
            }
            None => Vec::new(),
        };
        Ok(Part { done, absent: true })
    }
}

/// What there is of a file under the name that it has until it is whole.
struct Part {
    done: Vec<Range<u64>>,
    absent: bool,
}

fn permissions(mode: u32) -> FileAttributes {
    FileAttributes {
        permissions: Some(Permissions(mode)),
        ..FileAttributes::default()
    }
}

/// Opens a local file; not blocking, lest a pipe that took its place holds the copy up.
fn open(path: &[u8]) -> io::Result<File> {
    std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(Path::new(os(path)))
}

/// The holes of a local file, in order; none where the file system does not tell.
fn holes(file: &File, size: u64) -> Vec<Range<u64>> {
    let mut holes = Vec::new();
    if file
        .metadata()
        .is_ok_and(|found| found.blocks().saturating_mul(512) >= size)
    {
        return holes;
    }
    let mut at = 0;
    while at < size {
        let Ok(start) = rustix::fs::seek(file, SeekFrom::Hole(at)) else {
            break;
        };
        let end = match rustix::fs::seek(file, SeekFrom::Data(start)) {
            Ok(end) => end.min(size),
            // No data behind it.
            Err(rustix::io::Errno::NXIO) => size,
            Err(_) => break,
        };
        if start < end {
            holes.push(start..end);
        }
        at = end.max(start + 1);
    }
    holes
}

/// Bytes that a plan wants of a source.
struct Want {
    id: ReadId,
    offset: u64,
    length: usize,
}

/// What came of them, or why the file cannot be read.
type Pieces = Result<Vec<(ReadId, Bytes)>, String>;

/// A large file to be read at many places at once.
enum Source {
    Local(Arc<File>),
    Server(Arc<sftp::File>),
}

impl Source {
    async fn open(from: &Place, item: &Item) -> Result<Self, String> {
        match from {
            Place::Local => {
                let source = item.source.clone();
                let file = blocking(move || open(&source)).await;
                file.map(|file| Self::Local(Arc::new(file)))
                    .map_err(|error| list::words(&item.source, &error))
            }
            Place::Server(lanes) => {
                let file = lanes
                    .first()
                    .open(&item.source, OpenFlags::READ, FileAttributes::default())
                    .await;
                file.map(|file| Self::Server(Arc::new(file)))
                    .map_err(|error| error.to_string())
            }
        }
    }

    /// Begins to read what is wanted.
    fn read(&self, mut wants: Vec<Want>, reads: &mut JoinSet<Pieces>) {
        match self {
            Self::Server(file) => {
                for Want { id, offset, length } in wants {
                    let file = file.clone();
                    reads.spawn(async move {
                        let data = file.read_at(offset, length).await;
                        data.map(|data| vec![(id, data)])
                            .map_err(|error| error.to_string())
                    });
                }
            }
            Self::Local(file) => {
                while !wants.is_empty() {
                    let mut bytes = 0;
                    let count = wants
                        .iter()
                        .take_while(|want| {
                            bytes += want.length;
                            bytes <= READ
                        })
                        .count();
                    let some: Vec<Want> = wants.drain(..count.max(1)).collect();
                    let file = file.clone();
                    reads.spawn_blocking(move || {
                        some.into_iter()
                            .map(|Want { id, offset, length }| {
                                Ok((
                                    id,
                                    read_at(&file, offset, length).map_err(|error| error.to_string())?,
                                ))
                            })
                            .collect()
                    });
                }
            }
        }
    }
}

/// Up to `length` bytes, fewer only at the file's end, into memory that need not be cleared first.
fn read_at(file: &File, offset: u64, length: usize) -> io::Result<Bytes> {
    let mut data = Vec::with_capacity(length);
    while data.len() < length {
        let at = offset + data.len() as u64;
        match rustix::io::pread(file, rustix::buffer::spare_capacity(&mut data), at) {
            Ok(0) => break,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    data.truncate(length);
    Ok(data.into())
}

/// The small files on one session.
struct SmallUp<'a> {
    up: &'a Up<'a>,
    files: SmallFiles<ManyUpload>,
    reads: JoinSet<Vec<Content>>,
    /// What a read brought, until it is given to the plan.
    read: Option<Vec<Content>>,
    /// What of it the server has confirmed, as last seen.
    written: u64,
}

/// A small file's content, or why there is none.
struct Content {
    file: FileId,
    data: Result<Bytes, String>,
}

impl Content {
    fn len(&self) -> u64 {
        self.data.as_ref().map_or(0, |data| data.len() as u64)
    }
}

/// Small local files that are read by one thread at a time.
const READ_TOGETHER: usize = 64;
/// What a small file of a server's may have more than the server said when it was found: there may be thousands of them in
/// memory, for which room was made by what was said.
const GROWTH: u64 = 64 * 1024;

impl Work for SmallUp<'_> {
    type Plan = ManyUpload;

    fn files(&mut self) -> &mut SmallFiles<ManyUpload> {
        &mut self.files
    }

    fn add(&mut self, item: Item) {
        let up = self.up;
        let mut file = UploadFile::new(up.path(&item.part()), item.size);
        file.create = permissions(item.mode.unwrap_or(0o666) & 0o777);
        file.attributes = up.looks(&item);
        file.sync = up.job.options.sync;
        file.rename_to = Some(up.path(&item.target));
        let id = self.files.shared.plan().add(file);
        self.files.known.insert(id, item);
    }

    async fn work(&mut self) -> bool {
        let mut any = self.handle_events();
        if let Some(contents) = self.read.take() {
            let bytes = contents.iter().map(Content::len).sum();
            self.up.job.throttle.take(bytes).await;
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
}

impl SmallUp<'_> {
    /// Whether anything happened.
    fn handle_events(&mut self) -> bool {
        let (events, written): (Vec<ManyUploadEvent>, u64) = {
            let mut plan = self.files.shared.plan();
            let events = std::iter::from_fn(|| plan.poll_event()).collect();
            (events, plan.written())
        };
        self.up.job.progress.moved(written - self.written);
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
                        Ok(()) => self.up.job.progress.copied(item.target, item.size),
                        Err(status) => self.fail(item, status),
                    }
                }
                ManyUploadEvent::Failed { file, status } => {
                    if let Some(item) = self.files.known.remove(&file) {
                        self.fail(item, status);
                    }
                }
                _ => {}
            }
        }
        self.read(wanted);
        any
    }

    fn fail(&self, item: Item, status: Status) {
        let path = self.up.path(&item.target);
        let error = self.files.sftp.link().refused("writing", path, status);
        self.up.job.progress.failed(item.target, error.to_string());
    }

    fn read(&mut self, mut wanted: Vec<(FileId, Item)>) {
        match self.up.from {
            Place::Server(lanes) => {
                for (file, item) in wanted {
                    let sftp = lanes.first();
                    self.reads.spawn(async move {
                        let most = item.size.saturating_add(GROWTH);
                        let data = match sftp.read_at_most(&item.source, most).await {
                            Ok(Some(data)) => Ok(data),
                            Ok(None) => Err(format!(
                                "{}: it grew by more than 64 KiB while it was copied; copy it again",
                                shown(&item.source)
                            )),
                            Err(error) => Err(error.to_string()),
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
                                data: read_whole(&item).map_err(|error| list::words(&item.source, &error)),
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
                        self.up.job.progress.failed(item.target, message);
                    }
                }
            }
        }
    }
}

/// All of a small local file, which may have changed since it was found, but not into a large one.
fn read_whole(item: &Item) -> io::Result<Bytes> {
    /// What a file that was small may have grown to.
    const MOST: usize = 16 * 1024 * 1024;
    let file = open(&item.source)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!(
            "{} is no file any more",
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
