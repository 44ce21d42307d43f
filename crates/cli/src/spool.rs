//! Standard input, for all hosts of a command.
//!
//! Each host reads all of it, at its own speed and from whenever its turn comes. A file is opened anew for each of them.
//! Anything else is read once into a file without a name in the directory for temporary files, and from there by each
//! host: memory holds none of it. The file grows by at most [`AHEAD`] beyond the slowest host that runs, and what
//! all have read is given back; only for hosts that have not begun yet it holds everything. A host that reads nothing at all
//! while others wait for it loses its place after [`PATIENCE`]: it ends well if it never reads on.

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

/// The distance that the fastest host may be ahead of the slowest one that runs.
const AHEAD: u64 = 64 << 20;

/// The time that a host may read nothing while others wait for it.
const PATIENCE: Duration = Duration::from_secs(10);

/// The size of one move.
const CHUNK: usize = 64 * 1024;

/// The size that is given back at a time; as much stays of the part that all have read, so that a host that has had no
/// more than fits into its pipe can be begun with again.
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

    /// One host's own, behind a text that comes first. All hosts must have theirs before the first one reads.
    pub(crate) fn for_host(&self, first: Arc<[u8]>) -> anyhow::Result<HostInput> {
        let source = match self {
            Self::Nothing => Source::Nothing,
            Self::File(fd, position) => Source::File(fd.try_clone()?, *position),
            Self::Spool(spool) => Source::Spool(Reader::new(spool)),
        };
        Ok(HostInput { first, source })
    }
}

/// All of this process's standard input, piece by piece, for those who hand it to others; `None` where it is a terminal,
/// `/dev/null`, or closed.
///
/// # Errors
/// It cannot be read.
pub fn whole() -> anyhow::Result<Option<Input>> {
    let fd = standard_input()?.map(|(fd, _)| fd);
    fd.map(Input::new).transpose().context("reading the input")
}

/// This process's standard input, unless it is a terminal, `/dev/null`, or closed.
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

/// A description of its own, with a position of its own.
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
    /// Returns the input to pass to the session, from the beginning, and the part to write to it meanwhile.
    /// `behind_answers`: before the input, the session is to get answers ([`Feed::answer`]).
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

/// The data that was read of standard input.
pub(crate) struct Spool {
    file: File,
    filled: watch::Sender<Filled>,
    readers: Mutex<Readers>,
    /// A reader has come further, or has left.
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
    /// The position of each reader; `None` before it has begun.
    positions: BTreeMap<usize, Option<u64>>,
    /// Those that have lost their place.
    left_behind: BTreeSet<usize>,
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

    /// Takes their places from those that hold up the others.
    fn leave_behind(&mut self) {
        if let Some(slowest) = self.slowest() {
            let slow = self
                .positions
                .extract_if(.., |_, position| *position == Some(slowest));
            self.left_behind.extend(slow.map(|(number, _)| number));
        }
    }

    /// Returns the position of the slowest; `None` while some have not begun.
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

    /// Reads the input to its end, or until nobody is left to read it.
    async fn fill(self: Arc<Self>, mut input: Input) {
        let end = self.try_fill(&mut input).await;
        let end = end.map_err(|error| format!("the input was not read to its end: {error}"));
        self.filled.send_modify(|filled| filled.end = Some(end));
    }

    async fn try_fill(self: &Arc<Self>, input: &mut Input) -> io::Result<()> {
        let mut bytes = 0;
        // Where the slowest host was when waiting for it began.
        let mut waiting: Option<(Option<u64>, Instant)> = None;
        loop {
            let moved = self.moved.notified();
            let slowest = {
                let readers = self.readers();
                (bytes > readers.limit()).then(|| readers.slowest())
            };
            if let Some(slowest) = slowest {
                // Others that move wake this up, too.
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

    /// Notes where a reader is, `None` for one that has left, and gives back what nobody needs.
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
    first: Arc<[u8]>,
    rest: Rest,
    sender: pipe::Sender,
}

enum Rest {
    Nothing,
    File(Arc<File>),
    Spool(Arc<Spool>, usize),
}

/// The reason why the input is not whole, and the pipe, still open, so that nobody takes the part for all of it.
pub(crate) type NotWhole = (String, pipe::Sender);

impl Feed {
    /// Writes what is not of the input, before it.
    ///
    /// # Errors
    /// The session takes no more.
    pub(crate) async fn answer(&mut self, answer: &[u8]) -> io::Result<()> {
        self.sender.write_all(answer).await
    }

    /// Writes all of the input, then its end. Returns early when the session takes no more.
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
            // The spool lives as long as this does, and says its end.
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
        // Its number is the kernel's (Documentation/admin-guide/devices.txt).
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
        // Who has left holds up nobody, and who has not begun needs everything.
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
