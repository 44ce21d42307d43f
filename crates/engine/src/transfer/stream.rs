//! [`Stream`]: an end of a copy that is not a regular file. It is read to its end or written, in order and once.

use std::fmt;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::unix::pipe;

use trunkline_request::copy::is_descriptor;

use super::blocking::blocking;

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// A pipe, a device or an open descriptor to read from or write to.
#[derive(Clone)]
pub struct Stream {
    path: PathBuf,
    /// Holds the stream until the copy takes it.
    inner: Arc<Mutex<Inner>>,
}

enum Inner {
    /// A path that is opened only when needed: opening a FIFO waits for the other end.
    Path,
    Reader(Reader),
    Writer(Writer),
    Taken,
}

/// The size of one read and one write.
pub(super) const PIECE: usize = 256 * 1024;

impl Stream {
    /// Makes a source. `path` is its name for people, and its last part the name in a directory.
    pub fn reading(path: impl Into<PathBuf>, reader: impl AsyncRead + Send + Unpin + 'static) -> Self {
        Self::new(path.into(), Inner::Reader(Box::new(reader)))
    }

    /// Makes a target.
    pub fn writing(path: impl Into<PathBuf>, writer: impl AsyncWrite + Send + Unpin + 'static) -> Self {
        Self::new(path.into(), Inner::Writer(Box::new(writer)))
    }

    fn new(path: PathBuf, inner: Inner) -> Self {
        Self {
            path,
            inner: Arc::new(Mutex::new(inner)),
        }
    }

    /// Returns the stream at a path with this metadata, if it is one.
    pub(super) fn of_special(path: &Path, found: &std::fs::Metadata) -> Option<Self> {
        let kind = found.file_type();
        let special = kind.is_fifo() || kind.is_char_device() || kind.is_block_device();
        (special || is_descriptor(path)).then(|| Self::new(path.to_owned(), Inner::Path))
    }

    /// Returns whether it is a device that never ends: /dev/zero, full, random or urandom.
    pub(super) fn is_endless(found: &std::fs::Metadata) -> bool {
        const MEMORY: u32 = 1;
        let device = found.rdev();
        found.file_type().is_char_device()
            && rustix::fs::major(device) == MEMORY
            && matches!(rustix::fs::minor(device), 5 | 7 | 8 | 9)
    }

    /// Returns the stream at a path, if there is one.
    pub(super) async fn special(path: &Path) -> Option<Self> {
        let path = path.to_owned();
        blocking(move || {
            let found = std::fs::metadata(&path).ok()?;
            Self::of_special(&path, &found)
        })
        .await
    }

    pub(super) fn path(&self) -> Bytes {
        Bytes::copy_from_slice(self.path.as_os_str().as_encoded_bytes())
    }

    /// Formats the path for people.
    pub(super) fn display(&self) -> std::path::Display<'_> {
        self.path.display()
    }

    fn take(&self) -> Inner {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *inner, Inner::Taken)
    }

    pub(super) async fn reader(&self) -> io::Result<Reader> {
        match self.take() {
            Inner::Reader(reader) => Ok(reader),
            Inner::Path => {
                let path = self.path.clone();
                let fifo = blocking(move || std::fs::metadata(path).map(|found| found.file_type().is_fifo()));
                Ok(match fifo.await? {
                    // Without blocking: an abandoned copy leaves no thread that waits for a writer.
                    true => Box::new(pipe::OpenOptions::new().open_receiver(&self.path)?),
                    false => Box::new(tokio::fs::File::open(&self.path).await?),
                })
            }
            Inner::Writer(_) | Inner::Taken => Err(io::Error::other("it cannot be read a second time")),
        }
    }

    pub(super) async fn writer(&self) -> io::Result<Writer> {
        /// The pause between two checks for a FIFO's reader.
        const PAUSE: Duration = Duration::from_millis(50);
        match self.take() {
            Inner::Writer(writer) => Ok(writer),
            Inner::Path => {
                let path = self.path.clone();
                let fifo = blocking(move || std::fs::metadata(path).map(|found| found.file_type().is_fifo()));
                if !fifo.await? {
                    let mut options = tokio::fs::OpenOptions::new();
                    return Ok(Box::new(options.write(true).open(&self.path).await?));
                }
                loop {
                    match pipe::OpenOptions::new().open_sender(&self.path) {
                        Ok(sender) => return Ok(Box::new(sender)),
                        Err(error)
                            if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) =>
                        {
                            tokio::time::sleep(PAUSE).await;
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
            Inner::Reader(_) | Inner::Taken => Err(io::Error::other("it cannot be written a second time")),
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Reads up to a piece; returns nothing at the end.
pub(super) async fn piece(reader: &mut Reader) -> io::Result<Bytes> {
    let mut piece = BytesMut::with_capacity(PIECE);
    reader.read_buf(&mut piece).await?;
    Ok(piece.freeze())
}
