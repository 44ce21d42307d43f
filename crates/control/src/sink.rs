//! The local target of a remote command's output: a FIFO, a Unix socket, a file.
//!
//! Sessions write to a [`Sink`]'s descriptor, one after the other. The sink outlives sessions and readers: data that a
//! reader has not taken when it leaves waits for the next one. Opening does not wait.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::pipe::{PipeFlags, SpliceFlags, splice};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{UnixListener, UnixStream};
use tokio_util::task::AbortOnDropHandle;
use trunkline_request::words_of;

use crate::own_socket::{self, OwnSocket};
use crate::stdio::{Output, watch};

/// A target of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A FIFO, created with mode 0600 if missing.
    Fifo(PathBuf),
    /// A Unix socket on which readers get the stream, one at a time. A dead program's socket is replaced, one in use
    /// never.
    Socket(PathBuf),
    /// A file to append to, created with mode 0600 if missing.
    File(PathBuf),
    /// Whatever exists: a FIFO, a listening socket, a device, or a file, which is created if missing.
    Path(PathBuf),
}

/// A text that is not a target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a valid target: use fifo:PATH, unix:PATH or file:PATH")]
pub struct NoTarget(String);

impl FromStr for Target {
    type Err = NoTarget;

    fn from_str(text: &str) -> Result<Self, NoTarget> {
        let (kind, path) = text.split_once(':').unwrap_or_default();
        let path = PathBuf::from(path);
        match kind {
            _ if path.as_os_str().is_empty() => Err(NoTarget(text.to_owned())),
            "fifo" => Ok(Self::Fifo(path)),
            "unix" => Ok(Self::Socket(path)),
            "file" => Ok(Self::File(path)),
            _ => Err(NoTarget(text.to_owned())),
        }
    }
}

impl Target {
    /// Resolves relative paths against `directory`.
    #[must_use]
    pub fn seen_from(self, directory: &Path) -> Self {
        match self {
            Self::Fifo(path) => Self::Fifo(directory.join(path)),
            Self::Socket(path) => Self::Socket(directory.join(path)),
            Self::File(path) => Self::File(directory.join(path)),
            Self::Path(path) => Self::Path(directory.join(path)),
        }
    }
}

/// The reason why a target or an input cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{doing}: {}", words_of(.error))]
pub struct SinkError {
    /// The action, with the path.
    pub doing: String,
    /// The system's error.
    pub error: Arc<io::Error>,
}

/// An open target. Dropping it ends the readers' data.
#[derive(Debug)]
pub struct Sink {
    fd: OwnedFd,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// A named pipe, or one that is relayed to a socket.
    Pipe { _relay: Option<AbortOnDropHandle<()>> },
    /// Written data needs no reader.
    Other,
}

/// The interval at which a pipe is checked for being empty. The system has no event for that.
const LOOK: Duration = Duration::from_millis(50);

impl Sink {
    /// Opens a target without waiting for a reader. Must be called inside a tokio runtime.
    ///
    /// `lost` is sent first to a socket's next reader if the previous one left without reading everything, since data
    /// that was sent to it is lost. A FIFO loses nothing.
    ///
    /// # Errors
    /// The existing file cannot be used.
    pub async fn open(target: &Target, lost: Option<Bytes>) -> Result<Self, SinkError> {
        let (doing, path) = match target {
            Target::Fifo(path) => ("opening the FIFO", path),
            Target::Socket(path) => ("listening on", path),
            Target::File(path) | Target::Path(path) => ("opening", path),
        };
        let opened = match target {
            Target::Fifo(path) => blocking(path, open_fifo).await.map(Self::pipe),
            Target::Socket(path) => relay_to_readers(path, lost).await,
            Target::File(path) => blocking(path, open_file).await.map(Self::other),
            Target::Path(path) => Self::open_path(path).await,
        };
        opened.map_err(|error| SinkError {
            doing: format!("{doing} {}", path.display()),
            error: Arc::new(error),
        })
    }

    async fn open_path(path: &Path) -> io::Result<Self> {
        match blocking(path, kind_of).await? {
            Some(kind) if kind.is_fifo() => blocking(path, open_fifo).await.map(Self::pipe),
            Some(kind) if kind.is_socket() => connect(path).await.map(Self::other),
            _ => blocking(path, open_file).await.map(Self::other),
        }
    }

    fn pipe(fd: OwnedFd) -> Self {
        Self {
            fd,
            kind: Kind::Pipe { _relay: None },
        }
    }

    fn other(fd: OwnedFd) -> Self {
        Self {
            fd,
            kind: Kind::Other,
        }
    }

    /// Returns the descriptor that sessions write to. The sink must outlast them.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns an output for writing from this process.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn output(&self) -> io::Result<Output> {
        Output::new(self.fd.try_clone()?)
    }

    /// Waits until readers have taken everything: the data in a FIFO is lost with its last user.
    pub async fn wait_until_taken(&self) {
        if let Kind::Pipe { .. } = self.kind {
            while rustix::io::ioctl_fionread(&self.fd).is_ok_and(|left| left > 0) {
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

/// Opens a command's input: a FIFO, whose writer may come later, a listening socket, a file.
///
/// # Errors
/// [`SinkError`].
pub async fn open_input(path: &Path) -> Result<OwnedFd, SinkError> {
    let open = |path: &Path| {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        Ok(rustix::fs::open(path, flags, Mode::empty())?)
    };
    let opened = match blocking(path, kind_of).await {
        Ok(Some(kind)) if kind.is_socket() => connect(path).await,
        Ok(_) => blocking(path, open).await,
        Err(error) => Err(error),
    };
    opened.map_err(|error| SinkError {
        doing: format!("opening {}", path.display()),
        error: Arc::new(error),
    })
}

/// A listening Unix socket of this user. Dropping it removes its file.
#[derive(Debug)]
pub struct ListeningSocket {
    listener: UnixListener,
    file: OwnSocket,
}

impl ListeningSocket {
    /// Listens, with mode 0600. Replaces a dead program's socket, which refuses connections, but not one in use.
    ///
    /// # Errors
    /// The system's: `AddrInUse` if the name is taken.
    pub async fn bind(path: &Path) -> io::Result<Self> {
        remove_stale(path).await;
        let (listener, file) = own_socket::listen(path)?;
        Ok(Self { listener, file })
    }

    /// Returns the next client.
    pub async fn accept(&self) -> UnixStream {
        loop {
            match self.listener.accept().await {
                Ok((client, _)) => return client,
                Err(error) => {
                    // Probably out of descriptors: others that end release some.
                    let path = self.file.path().display();
                    tracing::warn!("cannot take a client of {path}: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

/// Removes a dead program's socket, which refuses connections.
pub async fn remove_stale(path: &Path) {
    let is_socket = blocking(path, kind_of)
        .await
        .is_ok_and(|kind| kind.is_some_and(|kind| kind.is_socket()));
    if !is_socket {
        return;
    }
    let refused = UnixStream::connect(path)
        .await
        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if refused {
        // If it cannot be removed, listening gives the error.
        let _ = tokio::fs::remove_file(path).await;
    }
}

async fn blocking<T: Send + 'static>(path: &Path, work: fn(&Path) -> io::Result<T>) -> io::Result<T> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || work(&path))
        .await
        .map_err(io::Error::other)?
}

fn kind_of(path: &Path) -> io::Result<Option<std::fs::FileType>> {
    match std::fs::metadata(path) {
        Ok(found) => Ok(Some(found.file_type())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens a FIFO for both directions, which does not wait (fifo(7)). With our own reader there is no EPIPE when others
/// leave, and unread data stays.
fn open_fifo(path: &Path) -> io::Result<OwnedFd> {
    match rustix::fs::mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let fd = rustix::fs::open(path, flags, Mode::empty())?;
    let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
    if kind != rustix::fs::FileType::Fifo {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "it exists and is not a FIFO",
        ));
    }
    Ok(fd)
}

fn open_file(path: &Path) -> io::Result<OwnedFd> {
    let mut options = std::fs::OpenOptions::new();
    options.create(true).append(true).mode(0o600);
    options.custom_flags(OFlags::NOCTTY.bits().cast_signed());
    Ok(options.open(path)?.into())
}

async fn connect(path: &Path) -> io::Result<OwnedFd> {
    Ok(UnixStream::connect(path).await?.into_std()?.into())
}

/// Returns a pipe that is relayed to a socket's readers, one at a time.
async fn relay_to_readers(path: &Path, lost: Option<Bytes>) -> io::Result<Sink> {
    let socket = ListeningSocket::bind(path).await?;
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let reader = watch(reader, Interest::READABLE)?;
    let task = tokio::spawn(relay(socket, reader, lost));
    Ok(Sink {
        fd: writer,
        kind: Kind::Pipe {
            _relay: Some(AbortOnDropHandle::new(task)),
        },
    })
}

async fn relay(socket: ListeningSocket, pipe: AsyncFd<OwnedFd>, lost: Option<Bytes>) {
    let mut owed = None;
    loop {
        let reader = socket.accept().await;
        if let Err(error) = carry(&pipe, reader, owed.take()).await {
            tracing::warn!("a reader left before it had received everything: {error}");
            owed.clone_from(&lost);
        }
    }
}

/// Moves the pipe's data to a reader until it leaves. Fails if the reader had not taken everything.
async fn carry(pipe: &AsyncFd<OwnedFd>, reader: UnixStream, first: Option<Bytes>) -> io::Result<()> {
    // The most that one call moves: a pipe's default size.
    const PIECE: usize = 64 * 1024;
    if let Some(first) = first {
        let mut output = Output::new(reader.as_fd().try_clone_to_owned()?)?;
        output.write_all(vec![first]).await?;
    }
    let moved = async {
        loop {
            let mut ready = pipe.readable().await?;
            // No other program reads the pipe, so its data stays until moved. If splice moves nothing then, the socket
            // is full.
            if rustix::io::ioctl_fionread(pipe.get_ref())? == 0 {
                // Closed readiness cannot be cleared: the loop would never pause, and its task could not be aborted.
                if ready.ready().is_read_closed() {
                    return Ok(());
                }
                ready.clear_ready();
                continue;
            }
            let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
            let splice = || Ok(splice(pipe.get_ref(), None, &reader, None, PIECE, flags)?);
            reader.async_io(Interest::WRITABLE, splice).await?;
        }
    };
    tokio::select! {
        biased;
        left = wait_until_left(&reader) => left,
        moved = moved => moved,
    }
}

/// Waits until a reader has left. unix(7): leaving with unread data resets the connection.
async fn wait_until_left(reader: &UnixStream) -> io::Result<()> {
    // Readers' input is ignored.
    let mut said = [0; 256];
    loop {
        reader.readable().await?;
        match reader.try_read(&mut said) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use tokio::io::AsyncReadExt as _;

    use super::*;

    async fn write(sink: &Sink, text: &'static str) {
        sink.output()
            .unwrap()
            .write_all(vec![Bytes::from_static(text.as_bytes())])
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn a_reader_gets_its_end_when_nobody_writes_any_more() {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let pipe = watch(reader, Interest::READABLE).unwrap();
        rustix::io::write(&writer, b"last").unwrap();
        drop(writer);
        let (near, mut far) = UnixStream::pair().unwrap();
        carry(&pipe, near, None).await.unwrap();
        let mut got = String::new();
        far.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "last");
    }

    fn mode(path: &Path) -> u32 {
        std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(path).unwrap()) & 0o777
    }

    #[test]
    fn targets_say_what_they_are() {
        assert_eq!("fifo:a".parse(), Ok(Target::Fifo("a".into())));
        assert_eq!("unix:/b:c".parse(), Ok(Target::Socket("/b:c".into())));
        assert_eq!("file:d".parse(), Ok(Target::File("d".into())));
        for no in ["", "a", "fifo:", "tcp:1"] {
            assert!(no.parse::<Target>().is_err(), "{no}");
        }
        let seen = Target::Fifo("a".into()).seen_from(Path::new("/x"));
        assert_eq!(seen, Target::Fifo("/x/a".into()));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_fifo_is_made_and_waits_for_no_reader_and_keeps_what_one_has_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let sink = Sink::open(&Target::Fifo(path.clone()), None).await.unwrap();
        assert_eq!(mode(&path), 0o600);
        write(&sink, "one two ").await;
        let read = |len: usize| {
            let path = path.clone();
            tokio::task::spawn_blocking(move || {
                let mut bytes = vec![0; len];
                std::fs::File::open(path).unwrap().read_exact(&mut bytes).unwrap();
                String::from_utf8(bytes).unwrap()
            })
        };
        assert_eq!(read(4).await.unwrap(), "one ");
        write(&sink, "three").await;
        let rest = read(9);
        sink.wait_until_taken().await;
        assert_eq!(rest.await.unwrap(), "two three");
    }

    #[tokio::test]
    async fn what_is_no_fifo_is_not_used_as_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "mine").unwrap();
        let error = Sink::open(&Target::Fifo(path.clone()), None).await.unwrap_err();
        assert!(error.to_string().contains("not a FIFO"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }

    #[tokio::test]
    async fn a_file_is_written_to_at_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        for text in ["one\n", "two\n"] {
            let sink = Sink::open(&Target::File(path.clone()), None).await.unwrap();
            write(&sink, text).await;
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"one\ntwo\n");
        assert_eq!(mode(&path), 0o600);
        let sink = Sink::open(&Target::Path(path.clone()), None).await.unwrap();
        write(&sink, "three\n").await;
        assert_eq!(std::fs::read(&path).unwrap(), b"one\ntwo\nthree\n");
    }

    #[tokio::test]
    async fn a_socket_hands_its_stream_from_reader_to_reader() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let sink = Sink::open(&Target::Socket(path.clone()), Some("lost ".into()))
            .await
            .unwrap();
        assert_eq!(mode(&path), 0o600);
        write(&sink, "one two ").await;
        let mut first = UnixStream::connect(&path).await.unwrap();
        let mut bytes = [0; 8];
        first.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"one two ");
        drop(first);
        write(&sink, "three ").await;
        let mut second = UnixStream::connect(&path).await.unwrap();
        let mut bytes = [0; 6];
        second.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"three ");
        // A reader that leaves with unread data causes a mark.
        write(&sink, "gone ").await;
        while rustix::io::ioctl_fionread(&second).unwrap() == 0 {
            tokio::task::yield_now().await;
        }
        drop(second);
        let mut third = UnixStream::connect(&path).await.unwrap();
        let mut bytes = [0; 5];
        third.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"lost ");
        drop(sink);
        let mut rest = Vec::new();
        third.read_to_end(&mut rest).await.unwrap();
        assert!(rest.is_empty() && !path.exists());
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_one_in_use_never() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let target = Target::Socket(path.clone());
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let error = Sink::open(&target, None).await.unwrap_err();
        assert!(error.to_string().contains("in use"), "{error}");
        drop(listener);
        // A program that another test is starting holds a copy of the listener until it executes.
        while UnixStream::connect(&path).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let sink = Sink::open(&target, None).await.unwrap();
        write(&sink, "x").await;
        let mut reader = UnixStream::connect(&path).await.unwrap();
        assert_eq!(reader.read_u8().await.unwrap(), b'x');
    }

    #[tokio::test]
    async fn a_path_leads_to_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let sink = Sink::open(&Target::Path(path), None).await.unwrap();
        write(&sink, "x").await;
        let (mut reader, _) = listener.accept().await.unwrap();
        assert_eq!(reader.read_u8().await.unwrap(), b'x');
        let missing = dir.path().join("new");
        write(
            &Sink::open(&Target::Path(missing.clone()), None).await.unwrap(),
            "y",
        )
        .await;
        assert_eq!(std::fs::read(&missing).unwrap(), b"y");
    }
}
