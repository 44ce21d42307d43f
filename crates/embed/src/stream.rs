//! The data of sessions and tunnels, from an engine or the daemon. Streams know if the server has ended them.

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf,
};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use trunkline::{ChannelReader, ChannelWriter};

use crate::conversation::Course;

/// The size of one read from a socket or a pipe.
const CHUNK: usize = 64 * 1024;

/// Smaller pieces are copied into buffers that fit, so that kept pieces do not hold large ones.
const SMALL: usize = CHUNK / 4;

/// The most pieces taken at once: 512 KiB of sshd's packets.
const PIECES: usize = 16;

/// The direction to the program. Unread data stays with the server.
#[derive(Debug)]
pub struct Reader(Source);

#[derive(Debug)]
enum Source {
    Channel(ChannelReader),
    /// The other end is the daemon's.
    Socket(OwnedReadHalf, Arc<Course>),
    Pipe(ReadHalf<DuplexStream>),
    Ended,
}

impl From<ChannelReader> for Reader {
    fn from(reader: ChannelReader) -> Self {
        Self(Source::Channel(reader))
    }
}

impl Reader {
    pub(crate) fn of_daemon(socket: OwnedReadHalf, course: Arc<Course>) -> Self {
        Self(Source::Socket(socket, course))
    }

    /// Returns a stream that the other side has ended.
    pub fn at_end() -> Self {
        Self(Source::Ended)
    }

    /// Adds available data to `pieces`, waiting if there is none. Returns 0 at the end. Cancel-safe.
    pub async fn chunks(&mut self, pieces: &mut Vec<Bytes>) -> usize {
        match &mut self.0 {
            Source::Channel(reader) => reader.chunks(pieces, PIECES).await,
            Source::Socket(socket, _) => read_socket(socket, pieces).await,
            Source::Pipe(pipe) => {
                let mut chunk = BytesMut::with_capacity(CHUNK);
                match pipe.read_buf(&mut chunk).await {
                    Ok(len) if len > 0 => pieces.push(chunk.freeze()),
                    _ => return 0,
                }
                1
            }
            Source::Ended => 0,
        }
    }

    /// Returns true if the other side has ended the stream, and it was not cut off. To be called at the end; waits
    /// until this is known.
    pub async fn is_complete(&self) -> bool {
        match &self.0 {
            Source::Channel(reader) => reader.is_complete(),
            Source::Socket(_, course) => *course.output.wait().await,
            Source::Pipe(_) | Source::Ended => true,
        }
    }
}

/// Reads the available data. Allocates no buffer while nothing arrives, since most streams are silent most of the time.
async fn read_socket(socket: &OwnedReadHalf, pieces: &mut Vec<Bytes>) -> usize {
    let before = pieces.len();
    while pieces.len() == before {
        // The daemon's end is gone with the daemon, which the session's outcome reports.
        if socket.readable().await.is_err() {
            return 0;
        }
        while pieces.len() - before < PIECES {
            let mut chunk = BytesMut::with_capacity(CHUNK);
            match socket.try_read_buf(&mut chunk) {
                Ok(0) => return pieces.len() - before,
                Ok(len) if len < SMALL => {
                    pieces.push(Bytes::copy_from_slice(&chunk));
                    break;
                }
                Ok(_) => pieces.push(chunk.freeze()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return pieces.len() - before,
            }
        }
    }
    pieces.len() - before
}

/// The direction from the program.
#[derive(Debug)]
pub struct Writer(Drain);

#[derive(Debug)]
enum Drain {
    Channel(ChannelWriter),
    /// The other end is the daemon's.
    Socket(OwnedWriteHalf, Arc<Course>),
    Pipe(WriteHalf<DuplexStream>),
    Ended,
}

impl From<ChannelWriter> for Writer {
    fn from(writer: ChannelWriter) -> Self {
        Self(Drain::Channel(writer))
    }
}

impl Writer {
    pub(crate) fn of_daemon(socket: OwnedWriteHalf, course: Arc<Course>) -> Self {
        Self(Drain::Socket(socket, course))
    }

    pub fn at_end() -> Self {
        Self(Drain::Ended)
    }

    /// Sends `data` as soon as there is room.
    ///
    /// # Errors
    /// `BrokenPipe` once the other side takes no more.
    pub async fn send(&mut self, data: Bytes) -> io::Result<()> {
        match &mut self.0 {
            Drain::Channel(writer) => writer.send(data).await,
            Drain::Socket(socket, _) => socket.write_all(&data).await,
            Drain::Pipe(pipe) => pipe.write_all(&data).await,
            Drain::Ended if data.is_empty() => Ok(()),
            Drain::Ended => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Ends the stream after the data so far. Does nothing if the reader has gone.
    pub async fn finish(&mut self) {
        match &mut self.0 {
            Drain::Channel(writer) => writer.finish(),
            Drain::Socket(socket, _) => drop(socket.shutdown().await),
            Drain::Pipe(pipe) => drop(pipe.shutdown().await),
            Drain::Ended => {}
        }
    }

    /// Waits until all data is on its way to the server, if this side can tell. Closing the session drops the rest.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub async fn wait_until_sent(&self) -> io::Result<()> {
        match &self.0 {
            Drain::Channel(writer) => writer.wait_until_sent().await,
            Drain::Socket(..) | Drain::Pipe(_) | Drain::Ended => Ok(()),
        }
    }

    /// Returns the number of bytes that the server accepts now, if this side can tell. With `waits`, waits until there
    /// are some.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub async fn window(&self, waits: bool) -> io::Result<usize> {
        match &self.0 {
            Drain::Channel(writer) => writer.window(waits).await,
            Drain::Socket(..) | Drain::Pipe(_) => Ok(usize::MAX),
            Drain::Ended => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Waits until the other side takes no more.
    pub async fn wait_for_close(&self) {
        match &self.0 {
            Drain::Channel(writer) => writer.wait_for_close().await,
            Drain::Socket(_, course) => drop(course.end.wait().await),
            // Writing into a pipe without a reader fails.
            Drain::Pipe(_) | Drain::Ended => std::future::pending().await,
        }
    }
}

/// Returns the two ends of a pipe within the program.
pub fn pipe(stream: DuplexStream) -> (Reader, Writer) {
    let (reader, writer) = tokio::io::split(stream);
    (Reader(Source::Pipe(reader)), Writer(Drain::Pipe(writer)))
}

/// Joins both directions of a channel of this process's engine; `None` for other streams.
pub fn join(reader: Reader, writer: Writer) -> Option<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
    match (reader.0, writer.0) {
        (Source::Channel(reader), Drain::Channel(writer)) => Some(tokio::io::join(reader, writer)),
        _ => None,
    }
}
