//! Standard input, for all hosts of a command.
//!
//! Each host reads all of it, at its own speed and from the time it starts. A file is reopened for each host. Other
//! input is read once into an unnamed temporary file, and by each host from there; none of it is kept in memory. The
//! file grows by at most [`AHEAD`] beyond the slowest running host, and the part that all have read is freed; while
//! hosts have yet to start, it keeps everything. A host that reads nothing for [`PATIENCE`] while others wait for it
//! loses its place. If it never reads on, it still ends well.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
#[cfg(not(target_os = "linux"))]
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use rustix::fs::{FallocateFlags, FileType, SeekFrom};
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use trunkline_control::stdio::Input;

/// The maximum number of bytes between the fastest host and the slowest running one.
const AHEAD: u64 = 64 << 20;

/// The time that a host may read nothing while others wait for it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes that are moved at a time.
const CHUNK: usize = 64 * 1024;

/// Bytes that are freed at a time. As much of what all have read is kept, so that a host that has read no more than its
/// pipe holds can be started again.
const FREED: u64 = 1 << 20;

/// The standard input of a command.
pub(crate) enum Stdin {
    /// No input: hosts see its end at once.
    Nothing,
    /// A file, from this position.
    File(OwnedFd, u64),
    /// Any other input.
    Spool(Arc<Spool>),
}

impl Stdin {
    /// Returns this process's input, unless that is a terminal, `/dev/null`, or closed.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let Some((fd, found)) = standard_input()? else {
            return Ok(Self::Nothing);
        };
        if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
            && let Ok(position) = rustix::fs::tell(&fd)
            && reopen(&fd).is_ok()
        {
            return Ok(Self::File(fd, position));
        }
        let spool = Spool::new(PATIENCE).context("creating a temporary file for the input")?;
        let input = Input::new(fd).context("reading the input")?;
        tokio::spawn(spool.clone().fill(input));
        Ok(Self::Spool(spool))
    }

    /// Returns one host's input, after a text that comes first. Must be called for all hosts before the first one
    /// reads.
    pub(crate) fn for_host(&self, first: Arc<[u8]>) -> anyhow::Result<HostInput> {
        let source = match self {
            Self::Nothing => Source::Nothing,
            Self::File(fd, position) => Source::File(fd.try_clone()?, *position),
            Self::Spool(spool) => Source::Spool(Reader::new(spool)),
        };
        Ok(HostInput { first, source })
    }
}

/// Returns all of this process's standard input, for programs that pass it to others; `None` for a terminal,
/// `/dev/null`, or closed input.
///
/// # Errors
/// It cannot be read.
pub fn whole() -> anyhow::Result<Option<Input>> {
    let fd = standard_input()?.map(|(fd, _)| fd);
    fd.map(Input::new).transpose().context("reading the input")
}

/// Returns this process's standard input, unless that is a terminal, `/dev/null`, or closed.
fn standard_input() -> anyhow::Result<Option<(OwnedFd, rustix::fs::Stat)>> {
    let stdin = io::stdin();
    let Ok(found) = rustix::fs::fstat(&stdin) else {
        return Ok(None);
    };
    if rustix::termios::isatty(&stdin) || is_null_device(&found) {
        return Ok(None);
    }
    let fd = stdin.as_fd().try_clone_to_owned().context("standard input")?;
    Ok(Some((fd, found)))
}

/// Opens the file again, with a position of its own.
fn reopen(fd: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty())
}

/// One host's standard input.
pub(crate) struct HostInput {
    first: Arc<[u8]>,
    source: Source,
}

enum Source {
    Nothing,
    File(OwnedFd, u64),
    Spool(Reader),
}

impl HostInput {
    /// Returns the input to pass to the session, and the feed that writes the rest. `behind_answers`: the session gets
    /// answers first ([`Feed::answer`]).
    pub(crate) fn begin(&self, behind_answers: bool) -> io::Result<Option<(OwnedFd, Option<Feed>)>> {
        let plain = self.first.is_empty() && !behind_answers;
        let rest = match &self.source {
            Source::Nothing if plain => return Ok(None),
            Source::Nothing => Rest::Nothing,
            Source::File(fd, position) => {
                let own = reopen(fd)?;
                rustix::fs::seek(&own, SeekFrom::Start(*position))?;
                if plain {
                    return Ok(Some((own, None)));
                }
                Rest::File(Arc::new(own.into()))
            }
            Source::Spool(reader) => Rest::Spool(reader.spool.clone(), reader.number),
        };
        let (sender, receiver) = pipe::pipe()?;
        let first = self.first.clone();
        let feed = Feed { first, rest, sender };
        Ok(Some((receiver.into_blocking_fd()?, Some(feed))))
    }
}

/// The spooled standard input.
pub(crate) struct Spool {
    file: File,
    filled: watch::Sender<Filled>,
    readers: Mutex<Readers>,
    /// Notified when a reader has advanced or left.
    moved: Notify,
    patience: Duration,
}

/// The amount that has been read.
#[derive(Debug, Clone, Default)]
struct Filled {
    bytes: u64,
    end: Option<Result<(), String>>,
}

#[derive(Debug, Default)]
struct Readers {
    /// The position of each reader; `None` before it has started.
    positions: BTreeMap<usize, Option<u64>>,
    /// Readers that have lost their place.
    left_behind: BTreeSet<usize>,
    made: usize,
    freed: u64,
}

impl Readers {
    /// Returns the position up to which data may be read ahead.
    fn limit(&self) -> u64 {
        match self.slowest() {
            Some(position) => position.saturating_add(AHEAD),
            None => u64::MAX,
        }
    }

    /// Removes the slowest readers, which hold up the others.
    fn leave_behind(&mut self) {
        if let Some(slowest) = self.slowest() {
            let slow = self
                .positions
                .extract_if(.., |_, position| *position == Some(slowest));
            self.left_behind.extend(slow.map(|(number, _)| number));
        }
    }

    /// Returns the slowest reader's position; `None` while some have not started.
    fn slowest(&self) -> Option<u64> {
        let positions: Option<Vec<u64>> = self.positions.values().copied().collect();
        Some(positions?.into_iter().min().unwrap_or(u64::MAX))
    }
}

impl Spool {
    fn new(patience: Duration) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            file: tempfile::tempfile()?,
            filled: watch::channel(Filled::default()).0,
            readers: Mutex::default(),
            moved: Notify::new(),
            patience,
        }))
    }

    /// Reads the input to its end, or until it has no reader left.
    async fn fill(self: Arc<Self>, mut input: Input) {
        let end = self.try_fill(&mut input).await;
        let end = end.map_err(|error| format!("the input was not read to its end: {error}"));
        self.filled.send_modify(|filled| filled.end = Some(end));
    }

    async fn try_fill(self: &Arc<Self>, input: &mut Input) -> io::Result<()> {
        let mut bytes = 0;
        // The slowest host's position when waiting began.
        let mut waiting: Option<(Option<u64>, Instant)> = None;
        loop {
            let moved = self.moved.notified();
            let slowest = {
                let readers = self.readers();
                (bytes > readers.limit()).then(|| readers.slowest())
            };
            if let Some(slowest) = slowest {
                // Other readers' moves wake this up, too.
                let since = *waiting.get_or_insert_with(|| (slowest, Instant::now()));
                if since.0 != slowest {
                    waiting = None;
                } else if tokio::time::timeout_at(since.1 + self.patience, moved)
                    .await
                    .is_err()
                {
                    waiting = None;
                    self.readers().leave_behind();
                }
                continue;
            }
            waiting = None;
            let data = input.read().await?;
            if data.is_empty() {
                return Ok(());
            }
            let (spool, len) = (self.clone(), data.len() as u64);
            let written = blocking(move || spool.file.write_all_at(&data, bytes)).await;
            written.map_err(|error| {
                let directory = std::env::temp_dir();
                io::Error::new(
                    error.kind(),
                    format!("keeping it in {}: {error}", directory.display()),
                )
            })?;
            bytes += len;
            self.filled.send_modify(|filled| filled.bytes = bytes);
        }
    }

    fn readers(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a reader's position, or `None` once it has left, and frees data that no one needs.
    fn set(&self, number: usize, position: Option<u64>) {
        let mut readers = self.readers();
        match position {
            Some(_) if readers.left_behind.contains(&number) => {}
            Some(position) => drop(readers.positions.insert(number, Some(position))),
            None => drop(readers.positions.remove(&number)),
        }
        let read = readers.slowest().unwrap_or(0).min(self.filled.borrow().bytes);
        let (from, to) = (readers.freed, read.saturating_sub(FREED));
        if to >= from + FREED {
            // A file system that cannot free it keeps the data.
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(&self.file, flags, from, to - from);
            readers.freed = to;
        }
        drop(readers);
        self.moved.notify_waiters();
    }
}

/// A host's place in the spool.
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

/// The input on its way to one host.
pub(crate) struct Feed {
    first: Arc<[u8]>,
    rest: Rest,
    sender: pipe::Sender,
}

enum Rest {
    Nothing,
    File(Arc<File>),
    Spool(Arc<Spool>, usize),
}

/// The reason why the input is incomplete, and the pipe, kept open so that the part does not look complete.
pub(crate) type NotWhole = (String, pipe::Sender);

impl Feed {
    /// Writes an answer ahead of the input.
    ///
    /// # Errors
    /// The session takes no more.
    pub(crate) async fn answer(&mut self, answer: &[u8]) -> io::Result<()> {
        self.sender.write_all(answer).await
    }

    /// Writes all of the input, then closes it. Returns early when the session takes no more.
    ///
    /// # Errors
    /// See [`NotWhole`].
    pub(crate) async fn run(mut self) -> Result<(), NotWhole> {
        let first = self.first.clone();
        if self.sender.write_all(&first).await.is_err() {
            return Ok(());
        }
        match self.rest {
            Rest::Nothing => Ok(()),
            Rest::File(file) => from_file(&file, self.sender).await,
            Rest::Spool(spool, number) => from_spool(&spool, number, self.sender).await,
        }
    }
}

async fn from_file(file: &Arc<File>, mut sender: pipe::Sender) -> Result<(), NotWhole> {
    loop {
        let file = file.clone();
        let read = blocking(move || {
            let mut data = vec![0; CHUNK];
            let len = io::Read::read(&mut &*file, &mut data)?;
            data.truncate(len);
            Ok(data)
        });
        match read.await {
            Ok(data) if data.is_empty() => return Ok(()),
            Ok(data) => {
                if sender.write_all(&data).await.is_err() {
                    return Ok(());
                }
            }
            Err(error) => return Err((format!("the input cannot be read: {error}"), sender)),
        }
    }
}

async fn from_spool(spool: &Arc<Spool>, number: usize, mut sender: pipe::Sender) -> Result<(), NotWhole> {
    let mut filled = spool.filled.subscribe();
    let mut position = 0;
    loop {
        spool.set(number, Some(position));
        if spool.readers().left_behind.contains(&number) {
            let seconds = spool.patience.as_secs();
            let why = format!("it did not read its input for {seconds} s while other hosts waited for it");
            return Err((why, sender));
        }
        let known = filled.borrow_and_update().clone();
        if position < known.bytes {
            let len = usize::try_from(known.bytes - position).map_or(CHUNK, |left| left.min(CHUNK));
            let reading = spool.clone();
            let read = blocking(move || {
                let mut data = vec![0; len];
                reading.file.read_exact_at(&mut data, position).map(|()| data)
            });
            let data = match read.await {
                Ok(data) => data,
                Err(error) => return Err((format!("the input cannot be read: {error}"), sender)),
            };
            if sender.write_all(&data).await.is_err() {
                return Ok(());
            }
            position += data.len() as u64;
            continue;
        }
        match known.end {
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) => return Err((error, sender)),
            // The spool lives as long as this, and reports its end.
            None => drop(filled.changed().await),
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
    #[cfg(target_os = "linux")]
    {
        // The kernel's number for it (Documentation/admin-guide/devices.txt).
        is_device && found.st_rdev == rustix::fs::makedev(1, 3)
    }
    #[cfg(not(target_os = "linux"))]
    {
        is_device && std::fs::metadata("/dev/null").is_ok_and(|null| null.rdev() == found.st_rdev)
    }
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
        // A reader that has left holds up nobody; one that has not started needs everything.
        assert_eq!(readers(&[]).limit(), u64::MAX);
        assert_eq!(readers(&[Some(5), None]).limit(), u64::MAX);
        assert_eq!(readers(&[Some(5), None]).slowest(), None);
    }

    #[test]
    fn who_holds_up_the_others_loses_its_place() {
        let mut readers = readers(&[Some(5), Some(900), Some(5)]);
        readers.leave_behind();
        assert_eq!(readers.limit(), 900 + AHEAD);
        assert_eq!(readers.left_behind, BTreeSet::from([0, 2]));
    }

    #[tokio::test]
    async fn a_host_that_reads_nothing_does_not_stop_the_input() {
        let spool = Spool::new(Duration::ZERO).unwrap();
        let (deaf, other) = (Reader::new(&spool), Reader::new(&spool));
        let length = 2 * AHEAD;
        let input = tempfile::tempfile().unwrap();
        input.set_len(length).unwrap();
        let filling = tokio::spawn(spool.clone().fill(Input::new(input.into()).unwrap()));
        spool.set(deaf.number, Some(0));
        spool.set(other.number, Some(length));
        filling.await.unwrap();
        assert_eq!(spool.filled.borrow().bytes, length);
        let (sender, _receiver) = pipe::pipe().unwrap();
        let (why, _sender) = from_spool(&spool, deaf.number, sender).await.unwrap_err();
        assert!(why.contains("did not read its input"), "{why}");
    }

    #[tokio::test]
    async fn what_all_hosts_have_read_is_given_back() {
        use std::os::unix::fs::MetadataExt as _;
        let spool = Spool::new(PATIENCE).unwrap();
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
