//! [`Source`]: the content of a large file.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use rustix::fs::{OFlags, SeekFrom};
use tokio::io::AsyncRead;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use trunkline_sftp::transfer::ReadId;

use super::blocking::blocking;
use super::item::Item;
use super::path::{os, shown};
use super::place::Place;
use super::reason::Reason;
use super::sessions::Sessions;
use super::stream;
use crate::error::Error;
use crate::sftp::{self, OpenFlags, Sftp};

/// The size of one read of a local file.
const READ: usize = 4 * 1024 * 1024;

/// A large file that is read at many places at once.
pub(super) enum Source {
    Local(Arc<File>),
    Server(Arc<OnServer>),
    /// In order, and once.
    Stream(Arc<InOrder>),
}

/// Fails if a file ended before its size: it was cut while it was copied, and its beginning is not a copy.
fn whole(path: impl Fn() -> String, data: &Bytes, offset: u64, length: usize) -> Result<(), Reason> {
    if data.len() == length {
        return Ok(());
    }
    let end = offset + data.len() as u64;
    Err(format!(
        "{}: it changed while it was copied: it ends at byte {end} by now",
        path()
    )
    .into())
}

impl Source {
    pub(super) async fn open(from: &Place, item: &Item) -> Result<Self, Reason> {
        if let Some(stream) = &item.stream {
            let reader = stream.reader().await;
            let reader = reader.map_err(|error| Reason::local(&item.source, &error))?;
            let reading = Reading {
                reader,
                at: 0,
                rest: Bytes::new(),
                ended: false,
            };
            return Ok(Self::Stream(Arc::new(InOrder {
                reading: Mutex::new(reading),
                wants: std::sync::Mutex::default(),
            })));
        }
        match from {
            Place::Local => {
                let (source, named) = (item.source.clone(), item.named);
                let file = blocking(move || open(&source, named)).await;
                file.map(|file| Self::Local(Arc::new(file)))
                    .map_err(|error| Reason::local(&item.source, &error))
            }
            Place::Server(sessions) => {
                let file = OnServer::open(sessions, item).await.map_err(Reason::from)?;
                Ok(Self::Server(Arc::new(file)))
            }
        }
    }

    /// Returns a reader of the whole content, in order.
    pub(super) fn into_reader(self, item: &Item) -> Result<Box<dyn AsyncRead + Send + Unpin>, Reason> {
        let busy = || Reason::from("it is being read".to_owned());
        Ok(match self {
            Self::Stream(stream) => {
                Arc::into_inner(stream)
                    .ok_or_else(busy)?
                    .reading
                    .into_inner()
                    .reader
            }
            Self::Local(file) => {
                let file = file
                    .try_clone()
                    .map_err(|error| Reason::local(&item.source, &error))?;
                Box::new(tokio::fs::File::from_std(file))
            }
            Self::Server(file) => {
                let file = Arc::into_inner(file).ok_or_else(busy)?.file.into_inner();
                Box::new(Arc::into_inner(file.1).ok_or_else(busy)?)
            }
        })
    }

    /// Starts reading the wanted ranges.
    pub(super) fn read(&self, path: &Bytes, mut wants: Vec<Want>, reads: &mut JoinSet<Pieces>) {
        match self {
            Self::Stream(stream) => {
                if wants.is_empty() {
                    return;
                }
                let (stream, turn) = (stream.clone(), wants.len());
                stream.wanted(wants);
                reads.spawn(async move {
                    let mut reading = stream.reading.lock().await;
                    let mut pieces = Vec::new();
                    for _ in 0..turn {
                        let Some(Want { id, offset, length }) = stream.next() else {
                            break;
                        };
                        let data = reading.next(offset, length).await;
                        pieces.push((id, data.map_err(|error| error.to_string())?));
                    }
                    Ok(pieces)
                });
            }
            Self::Server(file) => {
                for Want { id, offset, length } in wants {
                    let file = file.clone();
                    reads.spawn(async move {
                        let data = file.read(offset, length).await?;
                        whole(|| file.show(), &data, offset, length)?;
                        Ok(vec![(id, data)])
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
                    let (file, path) = (file.clone(), path.clone());
                    reads.spawn_blocking(move || {
                        some.into_iter()
                            .map(|Want { id, offset, length }| {
                                let data = read_at(&file, offset, length)
                                    .map_err(|error| Reason::local(&path, &error))?;
                                whole(|| shown(&path), &data, offset, length)?;
                                Ok((id, data))
                            })
                            .collect()
                    });
                }
            }
        }
    }
}

/// A server's file, which is opened again after its session was lost.
pub(super) struct OnServer {
    sessions: Arc<Sessions>,
    path: Bytes,
    size: u64,
    modified: Option<u32>,
    /// The open file, and how often it was opened before.
    file: Mutex<(u64, Arc<sftp::File>)>,
}

impl OnServer {
    async fn open(sessions: &Arc<Sessions>, item: &Item) -> Result<Self, Error> {
        let file = Self::opened(sessions, &item.source).await?;
        Ok(Self {
            sessions: sessions.clone(),
            path: item.source.clone(),
            size: item.size,
            modified: item.times.map(|(_, modified)| modified),
            file: Mutex::new((0, Arc::new(file))),
        })
    }

    async fn opened(sessions: &Sessions, path: &Bytes) -> Result<sftp::File, Error> {
        let open = |sftp: Sftp| async move { sftp.open_in_turn(path, OpenFlags::READ).await };
        sessions.retry(open).await
    }

    async fn read(&self, offset: u64, length: usize) -> Result<Bytes, Reason> {
        /// A bound for servers that end each session on which this is read.
        const ATTEMPTS: usize = 4;
        let mut attempt = 1;
        loop {
            let (nth, file) = self.file.lock().await.clone();
            match file.read_at(offset, length).await {
                Ok(data) => return Ok(data),
                Err(error) if attempt == ATTEMPTS || !file.is_lost() => return Err(error.into()),
                Err(_) => self.open_again(nth).await?,
            }
            attempt += 1;
        }
    }

    fn show(&self) -> String {
        format!("{}:{}", self.sessions.first().host(), shown(&self.path))
    }

    /// Opens it on another session, unless another task has. Its size and time must be the same.
    async fn open_again(&self, nth: u64) -> Result<(), Reason> {
        let mut file = self.file.lock().await;
        if file.0 != nth {
            return Ok(());
        }
        let again = Self::opened(&self.sessions, &self.path).await?;
        let found = again.stat().await?;
        let modified = found.times.map(|times| times.modified);
        if found.size.is_some_and(|size| size != self.size) || modified != self.modified {
            return Err(format!("{}: it changed while it was copied", self.show()).into());
        }
        *file = (nth + 1, Arc::new(again));
        Ok(())
    }
}

/// A stream and the ranges wanted of it, which stay in order although the reading tasks take turns in any order.
pub(super) struct InOrder {
    reading: Mutex<Reading>,
    wants: std::sync::Mutex<VecDeque<Want>>,
}

impl InOrder {
    fn wanted(&self, more: Vec<Want>) {
        let mut wants = self.wants.lock().unwrap_or_else(PoisonError::into_inner);
        wants.extend(more);
    }

    fn next(&self) -> Option<Want> {
        let mut wants = self.wants.lock().unwrap_or_else(PoisonError::into_inner);
        wants.pop_front()
    }
}

/// A stream and the bytes read from it.
struct Reading {
    reader: Box<dyn AsyncRead + Send + Unpin>,
    at: u64,
    rest: Bytes,
    ended: bool,
}

impl Reading {
    /// Reads up to `length` bytes, fewer only at the end.
    async fn next(&mut self, offset: u64, length: usize) -> io::Result<Bytes> {
        // A plan wants pieces beyond the end before the end is known.
        let is_behind = self.ended && self.rest.is_empty() && offset > self.at;
        if offset != self.at && !is_behind {
            return Err(io::Error::other(
                "the connection was lost, and a stream cannot be read twice",
            ));
        }
        let mut data = bytes::BytesMut::with_capacity(length);
        while data.len() < length && !self.ended {
            if self.rest.is_empty() {
                self.rest = stream::piece(&mut self.reader).await?;
                self.ended = self.rest.is_empty();
            }
            let most = self.rest.len().min(length - data.len());
            data.extend_from_slice(&self.rest.split_to(most));
        }
        self.at += data.len() as u64;
        Ok(data.freeze())
    }
}

/// Bytes that a plan wants of a source.
pub(super) struct Want {
    pub(super) id: ReadId,
    pub(super) offset: u64,
    pub(super) length: usize,
}

/// The pieces that were read, or the reason why the file cannot be read.
pub(super) type Pieces = Result<Vec<(ReadId, Bytes)>, Reason>;

/// Opens a local file without blocking, in case a pipe took its place. Follows a link only if the user named the file.
pub(super) fn open(path: &[u8], named: bool) -> io::Result<File> {
    let mut flags = OFlags::NONBLOCK;
    if !named {
        flags |= OFlags::NOFOLLOW;
    }
    std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(Path::new(os(path)))
}

/// Returns the holes of a local file, in order; none if the file system does not report them.
pub(super) fn holes(file: &File, size: u64) -> Vec<Range<u64>> {
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
            // No data follows.
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

/// Reads up to `length` bytes, fewer only at the file's end, into memory that is not cleared first.
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
