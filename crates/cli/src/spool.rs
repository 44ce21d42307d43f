//! Standard input, for all hosts of a command.
//!
//! Each host reads all of it, at its own speed and from whenever its turn comes. A file is opened anew for each of them.
//! Anything else is read once into a file without a name in the folder for temporary files, and from there by each
//! host: memory holds none of it. The file grows by at most [`AHEAD`] beyond the slowest host that runs, and what
//! all have read is given back; only for hosts that have not begun yet it holds everything.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use rustix::fs::{FallocateFlags, FileType, SeekFrom};
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::sync::{Notify, watch};
use trunkline_control::stdio::Input;

/// How far the fastest host may be ahead of the slowest one that runs.
const AHEAD: u64 = 64 << 20;

/// What is moved at a time.
const CHUNK: usize = 64 * 1024;

/// What is given back at a time; and what stays of the part that all have read, so that a host that has had no more than
/// fits into its pipe can be begun with again.
const FREED: u64 = 1 << 20;

/// Standard input.
pub(crate) enum Stdin {
    /// There is none: hosts get its end at once.
    Nothing,
    /// A file, from this position on.
    File(OwnedFd, u64),
    /// Whatever else.
    Spool(Arc<Spool>),
}

impl Stdin {
    /// This process's, unless it is a terminal, `/dev/null`, or closed.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let stdin = io::stdin();
        let Ok(found) = rustix::fs::fstat(&stdin) else {
            return Ok(Self::Nothing);
        };
        if rustix::termios::isatty(&stdin) || is_null_device(&found) {
            return Ok(Self::Nothing);
        }
        let fd = stdin.as_fd().try_clone_to_owned().context("standard input")?;
        if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
            && let Ok(position) = rustix::fs::tell(&fd)
            && reopen(&fd).is_ok()
        {
            return Ok(Self::File(fd, position));
        }
        let spool = Spool::new().context("creating a temporary file for the input")?;
        let input = Input::new(fd).context("reading the input")?;
        tokio::spawn(spool.clone().fill(input));
        Ok(Self::Spool(spool))
    }

    /// One host's own. All hosts must have theirs before the first one reads.
    pub(crate) fn for_host(&self) -> anyhow::Result<HostInput> {
        Ok(match self {
            Self::Nothing => HostInput::Nothing,
            Self::File(fd, position) => HostInput::File(fd.try_clone()?, *position),
            Self::Spool(spool) => HostInput::Spool(Reader::new(spool)),
        })
    }
}

/// A description of its own, with a position of its own.
fn reopen(fd: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty())
}

/// One host's standard input.
pub(crate) enum HostInput {
    Nothing,
    File(OwnedFd, u64),
    Spool(Reader),
}

impl HostInput {
    /// What to pass to the session, from the beginning, and what has to be written to it meanwhile.
    pub(crate) fn begin(&self) -> io::Result<Option<(OwnedFd, Option<Feed>)>> {
        match self {
            Self::Nothing => Ok(None),
            Self::File(fd, position) => {
                let own = reopen(fd)?;
                rustix::fs::seek(&own, SeekFrom::Start(*position))?;
                Ok(Some((own, None)))
            }
            Self::Spool(reader) => {
                let (sender, receiver) = pipe::pipe()?;
                let feed = Feed {
                    spool: reader.spool.clone(),
                    number: reader.number,
                    sender,
                };
                Ok(Some((receiver.into_blocking_fd()?, Some(feed))))
            }
        }
    }
}

/// What was read of standard input.
pub(crate) struct Spool {
    file: File,
    filled: watch::Sender<Filled>,
    readers: Mutex<Readers>,
    /// A reader has come further, or has left.
    moved: Notify,
}

/// How much has been read.
#[derive(Debug, Clone, Default)]
struct Filled {
    bytes: u64,
    end: Option<Result<(), String>>,
}

#[derive(Debug, Default)]
struct Readers {
    /// Where each reader is; `None` before it has begun.
    positions: BTreeMap<usize, Option<u64>>,
    made: usize,
    freed: u64,
}

impl Readers {
    /// Up to where there may be data.
    fn limit(&self) -> u64 {
        match self.slowest() {
            Some(position) => position.saturating_add(AHEAD),
            None => u64::MAX,
        }
    }

    /// Where the slowest is; `None` while some have not begun.
    fn slowest(&self) -> Option<u64> {
        let positions: Option<Vec<u64>> = self.positions.values().copied().collect();
        Some(positions?.into_iter().min().unwrap_or(u64::MAX))
    }
}

impl Spool {
    fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            file: tempfile::tempfile()?,
            filled: watch::channel(Filled::default()).0,
            readers: Mutex::default(),
            moved: Notify::new(),
        }))
    }

    /// Reads the input to its end, or until nobody is left to read it.
    async fn fill(self: Arc<Self>, mut input: Input) {
        let end = self.try_fill(&mut input).await;
        let end = end.map_err(|error| format!("the input was not read to its end: {error}"));
        self.filled.send_modify(|filled| filled.end = Some(end));
    }

    async fn try_fill(self: &Arc<Self>, input: &mut Input) -> io::Result<()> {
        let mut bytes = 0;
        loop {
            let moved = self.moved.notified();
            if bytes > self.readers().limit() {
                moved.await;
                continue;
            }
            let data = input.read().await?;
            if data.is_empty() {
                return Ok(());
            }
            let (spool, len) = (self.clone(), data.len() as u64);
            blocking(move || spool.file.write_all_at(&data, bytes)).await?;
            bytes += len;
            self.filled.send_modify(|filled| filled.bytes = bytes);
        }
    }

    fn readers(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes where a reader is, `None` for one that has left, and gives back what nobody needs.
    fn set(&self, number: usize, position: Option<u64>) {
        let mut readers = self.readers();
        match position {
            Some(position) => drop(readers.positions.insert(number, Some(position))),
            None => drop(readers.positions.remove(&number)),
        }
        let read = readers.slowest().unwrap_or(0).min(self.filled.borrow().bytes);
        let (from, to) = (readers.freed, read.saturating_sub(FREED));
        if to >= from + FREED {
            // A file system that cannot do it keeps the data.
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(&self.file, flags, from, to - from);
            readers.freed = to;
        }
        drop(readers);
        self.moved.notify_waiters();
    }
}

/// A host's place in the spool, until dropped.
pub(crate) struct Reader {
    spool: Arc<Spool>,
    number: usize,
}

impl Reader {
    fn new(spool: &Arc<Spool>) -> Self {
        let mut readers = spool.readers();
        let number = readers.made;
        readers.made += 1;
        readers.positions.insert(number, None);
        drop(readers);
        Self {
            spool: spool.clone(),
            number,
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.spool.set(self.number, None);
    }
}

/// The data on its way to one host.
pub(crate) struct Feed {
    spool: Arc<Spool>,
    number: usize,
    sender: pipe::Sender,
}

impl Feed {
    /// Writes all of the input, then its end. Returns early when the session takes no more.
    ///
    /// # Errors
    /// The input is not whole: the pipe is given back open, so that nobody takes what there was for all of it.
    pub(crate) async fn run(mut self) -> Result<(), (String, pipe::Sender)> {
        let mut filled = self.spool.filled.subscribe();
        let mut position = 0;
        loop {
            self.spool.set(self.number, Some(position));
            let known = filled.borrow_and_update().clone();
            if position < known.bytes {
                let len = usize::try_from(known.bytes - position).map_or(CHUNK, |left| left.min(CHUNK));
                let spool = self.spool.clone();
                let read = blocking(move || {
                    let mut data = vec![0; len];
                    spool.file.read_exact_at(&mut data, position).map(|()| data)
                });
                let data = match read.await {
                    Ok(data) => data,
                    Err(error) => return Err((format!("the input cannot be read: {error}"), self.sender)),
                };
                if self.sender.write_all(&data).await.is_err() {
                    return Ok(());
                }
                position += data.len() as u64;
                continue;
            }
            match known.end {
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) => return Err((error, self.sender)),
                // The spool lives as long as this does, and says its end.
                None => drop(filled.changed().await),
            }
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)?
}

pub(crate) fn is_null_device(found: &rustix::fs::Stat) -> bool {
    let is_device =
        rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::CharacterDevice;
    is_device && std::fs::metadata("/dev/null").is_ok_and(|null| null.rdev() == found.st_rdev)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readers(positions: &[Option<u64>]) -> Readers {
        Readers {
            positions: positions.iter().copied().enumerate().collect(),
            ..Readers::default()
        }
    }

    #[test]
    fn the_slowest_host_that_runs_holds_the_others_back() {
        assert_eq!(readers(&[Some(5), Some(900)]).limit(), 5 + AHEAD);
        // Who has left holds up nobody, and who has not begun needs everything.
        assert_eq!(readers(&[]).limit(), u64::MAX);
        assert_eq!(readers(&[Some(5), None]).limit(), u64::MAX);
        assert_eq!(readers(&[Some(5), None]).slowest(), None);
    }

    #[tokio::test]
    async fn what_all_hosts_have_read_is_given_back() {
        use std::os::unix::fs::MetadataExt as _;
        let spool = Spool::new().unwrap();
        let (one, two) = (Reader::new(&spool), Reader::new(&spool));
        let data = vec![7; 8 << 20];
        spool.file.write_all_at(&data, 0).unwrap();
        spool
            .filled
            .send_modify(|filled| filled.bytes = data.len() as u64);
        let blocks = || spool.file.metadata().unwrap().blocks();
        let before = blocks();
        spool.set(one.number, Some(8 << 20));
        assert_eq!(blocks(), before, "the other has not begun");
        drop(two);
        assert!(spool.readers().freed >= 6 << 20);
        assert!(blocks() < before);
    }
}
