//! A client's standard streams, as file descriptors that belong to its shell.
//!
//! They are shared with the client and others, so nothing about them may be changed: an `O_NONBLOCK` set here would
//! have an effect there. Pipes and terminals are reopened through /proc, which gives a separate description. Sockets
//! have flags for a single call. All others are used from a thread that may block.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The way to use a stream without side effects for others.
enum Way {
    /// A separate, non-blocking description.
    Own(AsyncFd<OwnedFd>),
    /// A socket, with MSG_DONTWAIT for each call.
    Socket(AsyncFd<OwnedFd>),
    /// Blocking calls in a separate thread.
    Blocking(Arc<OwnedFd>),
    /// The same for a terminal that cannot be reopened, since it is another user's. Reads first wait for input, so that
    /// no thread is left behind to take the next program's input.
    Watched(AsyncFd<OwnedFd>),
}

impl Way {
    fn find(fd: OwnedFd, access: OFlags, interest: Interest) -> io::Result<Self> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
        match kind {
            FileType::Socket => Ok(Self::Socket(watch(fd, interest)?)),
            FileType::CharacterDevice if rustix::termios::isatty(&fd) => match reopen(&fd, access) {
                Ok(own) => Ok(Self::Own(watch(own, interest)?)),
                Err(_) => Ok(Self::Watched(watch(fd, interest)?)),
            },
            FileType::Fifo => match reopen(&fd, access) {
                Ok(own) => Ok(Self::Own(watch(own, interest)?)),
                // Another user's pipe, or there is no /proc.
                Err(_) => Ok(Self::Blocking(Arc::new(fd))),
            },
            _ => Ok(Self::Blocking(Arc::new(fd))),
        }
    }
}

/// Registers a descriptor with the runtime. Must be called inside a tokio runtime.
///
/// # Errors
/// It is a regular file, which cannot be watched.
#[expect(
    deprecated,
    reason = "its replacement is unsafe, for types other than OwnedFd whose descriptor may change"
)]
pub fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, interest)
}

/// Reopens a descriptor's file for ourselves.
fn reopen(fd: &OwnedFd, access: OFlags) -> io::Result<OwnedFd> {
    use std::os::fd::AsRawFd as _;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Standard output or error of a client.
pub struct Output(Way);

impl Output {
    /// Takes a descriptor and keeps its flags. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// It cannot be written to.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        Way::find(fd, OFlags::WRONLY, Interest::WRITABLE).map(Self)
    }

    /// Writes all of `pieces`, and returns the emptied vector for reuse.
    ///
    /// # Errors
    /// The system's; `BrokenPipe` when the output is no longer read.
    pub async fn write_all(&mut self, mut pieces: Vec<Bytes>) -> io::Result<Vec<Bytes>> {
        let mut rest = Rest::new(&pieces);
        match &self.0 {
            Way::Own(fd) => {
                while let Some(slices) = rest.slices() {
                    let write = |fd: &OwnedFd| Ok(rustix::io::writev(fd, &slices)?);
                    let written = fd.async_io(Interest::WRITABLE, write).await?;
                    rest.advance(written);
                }
            }
            Way::Socket(fd) => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                while let Some(slices) = rest.slices() {
                    let send = |fd: &OwnedFd| {
                        Ok(rustix::net::sendmsg(
                            fd,
                            &slices,
                            &mut SendAncillaryBuffer::default(),
                            flags,
                        )?)
                    };
                    let sent = fd.async_io(Interest::WRITABLE, send).await?;
                    rest.advance(sent);
                }
            }
            Way::Blocking(fd) => {
                let fd = fd.clone();
                return blocking(move || write_blocking(&*fd, pieces)).await;
            }
            Way::Watched(fd) => {
                let fd = fd.get_ref().try_clone()?;
                return blocking(move || write_blocking(fd, pieces)).await;
            }
        }
        pieces.clear();
        Ok(pieces)
    }
}

/// The pieces that are still to be written.
struct Rest<'a> {
    pieces: &'a [Bytes],
    /// The number of bytes of the first piece that are written.
    written: usize,
}

impl<'a> Rest<'a> {
    fn new(pieces: &'a [Bytes]) -> Self {
        Self { pieces, written: 0 }
    }

    /// Returns the remaining slices; `None` when all is written.
    fn slices(&self) -> Option<Vec<IoSlice<'a>>> {
        let (first, others) = self.pieces.split_first()?;
        let first = std::iter::once(&first[self.written..]);
        let others = others.iter().map(|piece| &piece[..]);
        Some(first.chain(others).map(IoSlice::new).collect())
    }

    fn advance(&mut self, mut written: usize) {
        while let Some((first, others)) = self.pieces.split_first() {
            let left = first.len() - self.written;
            if written < left {
                self.written += written;
                return;
            }
            written -= left;
            (self.pieces, self.written) = (others, 0);
        }
    }
}

/// Standard input of a client.
pub struct Input(Way);

/// The size of one read.
const CHUNK: usize = 64 * 1024;

impl Input {
    /// Takes a descriptor and keeps its flags. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// It cannot be read from.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        Way::find(fd, OFlags::RDONLY, Interest::READABLE).map(Self)
    }

    /// Reads the next piece; empty at the end.
    ///
    /// # Errors
    /// The system's.
    pub async fn read(&mut self) -> io::Result<Bytes> {
        match &self.0 {
            Way::Own(fd) => {
                let mut chunk = vec![0; CHUNK];
                let n = fd
                    .async_io(Interest::READABLE, |fd| Ok(rustix::io::read(fd, &mut chunk)?))
                    .await?;
                chunk.truncate(n);
                Ok(chunk.into())
            }
            Way::Socket(fd) => {
                let mut chunk = vec![0; CHUNK];
                let io = |fd: &OwnedFd| Ok(rustix::net::recv(fd, &mut chunk[..], RecvFlags::DONTWAIT)?.0);
                let n = fd.async_io(Interest::READABLE, io).await?;
                chunk.truncate(n);
                Ok(chunk.into())
            }
            Way::Blocking(fd) => {
                let fd = fd.clone();
                blocking(move || read_blocking(&*fd)).await
            }
            Way::Watched(fd) => {
                fd.readable().await?.clear_ready();
                let fd = fd.get_ref().try_clone()?;
                blocking(move || read_blocking(fd)).await
            }
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)?
}

fn write_blocking(fd: impl AsFd, mut pieces: Vec<Bytes>) -> io::Result<Vec<Bytes>> {
    let mut rest = Rest::new(&pieces);
    while let Some(slices) = rest.slices() {
        match rustix::io::writev(&fd, &slices) {
            Ok(written) => rest.advance(written),
            Err(rustix::io::Errno::INTR) => {}
            // Another process made it non-blocking: wait instead.
            Err(rustix::io::Errno::AGAIN) => wait_for(&fd, rustix::event::PollFlags::OUT)?,
            Err(error) => return Err(error.into()),
        }
    }
    pieces.clear();
    Ok(pieces)
}

fn read_blocking(fd: impl AsFd) -> io::Result<Bytes> {
    let mut chunk = vec![0; CHUNK];
    loop {
        match rustix::io::read(&fd, &mut chunk) {
            Ok(n) => {
                chunk.truncate(n);
                return Ok(chunk.into());
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => wait_for(&fd, rustix::event::PollFlags::IN)?,
            Err(error) => return Err(error.into()),
        }
    }
}

fn wait_for(fd: impl AsFd, what: rustix::event::PollFlags) -> io::Result<()> {
    let borrowed = fd.as_fd();
    rustix::event::poll(&mut [rustix::event::PollFd::new(&borrowed, what)], None)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::OwnedFd;

    use super::*;

    fn is_nonblocking(fd: impl AsFd) -> bool {
        rustix::fs::fcntl_getfl(fd).unwrap().contains(OFlags::NONBLOCK)
    }

    #[tokio::test]
    async fn pipes_are_used_without_touching_the_flags_that_others_see() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let shared = writer.try_clone().unwrap();
        let mut output = Output::new(OwnedFd::from(writer)).unwrap();
        output.write_all(vec![Bytes::from_static(b"out")]).await.unwrap();
        assert!(!is_nonblocking(&shared));
        drop((output, shared));
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "out");

        let (reader, mut writer) = std::io::pipe().unwrap();
        let shared = reader.try_clone().unwrap();
        let mut input = Input::new(OwnedFd::from(reader)).unwrap();
        writer.write_all(b"in").unwrap();
        assert_eq!(&input.read().await.unwrap()[..], b"in");
        assert!(!is_nonblocking(&shared));
        drop(writer);
        assert!(input.read().await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_sink_that_takes_little_at_a_time_gets_every_piece_in_order() {
        let (reader, writer) = std::io::pipe().unwrap();
        let pieces: Vec<_> = (0..40u8).map(|n| Bytes::from(vec![n; 10_007])).collect();
        let expected = pieces.concat();
        let reading = std::thread::spawn(move || {
            let mut read = Vec::new();
            let mut reader = reader;
            reader.read_to_end(&mut read).unwrap();
            read
        });
        let mut output = Output::new(OwnedFd::from(writer)).unwrap();
        assert!(output.write_all(pieces).await.unwrap().is_empty());
        drop(output);
        assert_eq!(reading.join().unwrap(), expected);
    }

    #[tokio::test]
    async fn sockets_and_files_work_too() {
        let (a, mut b) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut output = Output::new(a.try_clone().unwrap().into()).unwrap();
        output.write_all(vec![Bytes::from_static(b"x")]).await.unwrap();
        let mut byte = [0];
        b.read_exact(&mut byte).unwrap();
        assert!(!is_nonblocking(&a));

        let mut file = tempfile::tempfile().unwrap();
        let mut output = Output::new(file.try_clone().unwrap().into()).unwrap();
        output.write_all(vec![Bytes::from_static(b"one")]).await.unwrap();
        output.write_all(vec![Bytes::from_static(b"two")]).await.unwrap();
        use std::io::Seek as _;
        file.rewind().unwrap();
        let mut input = Input::new(file.into()).unwrap();
        assert_eq!(&input.read().await.unwrap()[..], b"onetwo");
    }
}
