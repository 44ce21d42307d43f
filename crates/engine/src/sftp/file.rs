//! [`File`]: an open file on the server.

use std::collections::VecDeque;
use std::future::{Future as _, poll_fn};
use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use futures_util::future::try_join_all;
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};
use trunkline_sftp::{Handle, Reply, Request};
use trunkline_text::Printable;

use super::link::{Call, is_end};
use super::{FileAttributes, Limits, Sftp, StatVfs, Status, StatusCode};
use crate::error::{Error, Invalid};

/// An open file.
///
/// [`read_at`](Self::read_at) and [`write_at`](Self::write_at) may be called concurrently. As a stream it reads ahead
/// (more while everything is consumed, up to 16 MiB) and writes behind (8 MiB). A write's failure is reported by a
/// later write, or by [`flush`](tokio::io::AsyncWriteExt::flush), which waits for all of them. The stream has its own
/// position, independent of `read_at` and `write_at`.
///
/// Dropping it closes the file without checking the result, and discards unflushed data: after writing use
/// [`Self::close`] or [`shutdown`](tokio::io::AsyncWriteExt::shutdown).
pub struct File {
    sftp: Sftp,
    /// `None` once it is being closed.
    handle: Option<Handle>,
    path: Bytes,
    limits: Limits,
    position: u64,
    reading: Reading,
    writing: Writing,
    seeking: Option<(Call, i64)>,
    closing: Option<Call>,
}

/// The stream's read-ahead: consecutive pieces from `position` on.
struct Reading {
    current: VecDeque<Bytes>,
    ahead: VecDeque<(u64, Call)>,
    /// The offset of the next piece.
    next: u64,
    depth: usize,
    size: Size,
}

/// The file's size as reported by the server: a hint for reading ahead, and a minimum for the end of reading.
enum Size {
    Unasked,
    Requested(Call),
    Told(u64),
    /// Reading ended before the reported size, and the size is requested again.
    Doubted(Call, u64),
    Untold,
}

/// The stream's write-behind.
struct Writing {
    buffer: BytesMut,
    /// The offset of the buffer's bytes.
    offset: u64,
    flight: VecDeque<(usize, Call)>,
    in_flight: usize,
}

/// The most bytes read ahead: 160 MB/s at 100 ms.
const MOST_AHEAD: usize = 16 * 1024 * 1024;
/// The most bytes written behind: four times what sshd's window allows a channel.
const MOST_BEHIND: usize = 8 * 1024 * 1024;
/// The initial number of requested pieces.
const FIRST_DEPTH: usize = 2;
/// The most pieces requested before the size is known: most files end within them (1 MiB of sshd's).
const SIZELESS_DEPTH: usize = 4;

impl File {
    pub(super) fn new(sftp: Sftp, handle: Handle, path: Bytes, limits: Limits) -> Self {
        Self {
            sftp,
            handle: Some(handle),
            path,
            limits,
            position: 0,
            reading: Reading {
                current: VecDeque::new(),
                ahead: VecDeque::new(),
                next: 0,
                depth: FIRST_DEPTH,
                size: Size::Unasked,
            },
            writing: Writing {
                buffer: BytesMut::new(),
                offset: 0,
                flight: VecDeque::new(),
                in_flight: 0,
            },
            seeking: None,
            closing: None,
        }
    }

    /// Returns whether its session has ended, and the handle with it.
    pub(crate) fn is_lost(&self) -> bool {
        self.sftp.link().end_reason().is_some()
    }

    /// Reads up to `length` bytes from an offset; fewer only at the end of the file.
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Bytes, Error> {
        let piece = self.limits.max_read as usize;
        let pieces = (0..length).step_by(piece.max(1)).map(|start| {
            let length = piece.min(length - start);
            self.read_piece(offset + start as u64, length)
        });
        let pieces = try_join_all(pieces).await?;
        let mut whole = BytesMut::new();
        for (data, wanted) in pieces.iter().zip((0..length).step_by(piece.max(1))) {
            if pieces.len() == 1 {
                return Ok(data.clone());
            }
            whole.extend_from_slice(data);
            if data.len() < piece.min(length - wanted) {
                break;
            }
        }
        Ok(whole.freeze())
    }

    async fn read_piece(&self, mut offset: u64, mut length: usize) -> Result<Bytes, Error> {
        let mut pieces = Vec::new();
        while length > 0 {
            match self.read_call(offset, length)?.await {
                Ok(Reply::Data(data)) => {
                    offset += data.len() as u64;
                    length -= data.len();
                    pieces.push(data.into_bytes());
                }
                Err(error) if !is_end(&error) => return Err(error),
                _ => break,
            }
        }
        Ok(match pieces.len() {
            1 => pieces.remove(0),
            _ => pieces.concat().into(),
        })
    }

    /// Writes all of `data` at an offset, and waits for the server's confirmation.
    pub async fn write_at(&self, offset: u64, mut data: Bytes) -> Result<(), Error> {
        let most = self.limits.max_write as usize;
        let mut flight = VecDeque::new();
        let mut at = offset;
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(most));
            let length = piece.len() as u64;
            flight.push_back(self.write_call(at, piece)?);
            at += length;
            if flight.len() * most >= MOST_BEHIND
                && let Some(oldest) = flight.pop_front()
            {
                oldest.await?;
            }
        }
        for call in flight {
            call.await?;
        }
        Ok(())
    }

    /// Returns the stream's next bytes, at most `most`, as they arrived; none at the end. Cancel-safe.
    pub async fn chunk(&mut self, most: usize) -> Result<Bytes, Error> {
        poll_fn(|cx| self.poll_chunk(cx, most)).await
    }

    /// Reads everything from the stream's position on, in pieces as they arrived, whatever size the server reported.
    pub async fn read_rest(&mut self) -> Result<Vec<Bytes>, Error> {
        self.ask_size()?;
        self.reading.depth = self.most_depth();
        let mut pieces = Vec::new();
        loop {
            let chunk = self.chunk(usize::MAX).await?;
            if chunk.is_empty() {
                return Ok(pieces);
            }
            pieces.push(chunk);
        }
    }

    /// Returns its attributes.
    pub async fn stat(&self) -> Result<FileAttributes, Error> {
        let handle = self.handle()?;
        match self.call("looking at", Request::Fstat { handle }).await? {
            Reply::Attributes(attributes) => Ok(attributes),
            _ => Ok(FileAttributes::default()),
        }
    }

    /// Sets its attributes.
    pub async fn setstat(&self, attributes: FileAttributes) -> Result<(), Error> {
        let handle = self.handle()?;
        self.call(
            "setting the attributes of",
            Request::Fsetstat { handle, attributes },
        )
        .await
        .map(drop)
    }

    /// Makes the server write the file to its disk (fsync@openssh.com). Flush the stream first.
    pub async fn sync(&self) -> Result<(), Error> {
        let handle = self.handle()?;
        self.call("syncing", Request::Fsync { handle }).await.map(drop)
    }

    /// Returns the state of its file system (fstatvfs@openssh.com).
    pub async fn statvfs(&self) -> Result<StatVfs, Error> {
        let handle = self.handle()?;
        let doing = "looking at the file system of";
        match self.call(doing, Request::Fstatvfs { handle }).await? {
            Reply::StatVfs(state) => Ok(state),
            _ => Err(self.sftp.odd(doing, self.path.clone())),
        }
    }

    /// Makes the server copy bytes into another open file of the same session (copy-data). A `length` of 0 copies up to
    /// the end. Flush both streams first.
    pub async fn copy_data(&self, offset: u64, length: u64, to: &Self, to_offset: u64) -> Result<(), Error> {
        let request = Request::CopyData {
            from: self.handle()?,
            from_offset: offset,
            length,
            to: to.handle()?,
            to_offset,
        };
        self.call("copying", request).await.map(drop)
    }

    /// Flushes the stream and closes the file. Success is the server's final confirmation that everything was written.
    pub async fn close(mut self) -> Result<(), Error> {
        self.send_buffer()?;
        for (_, call) in std::mem::take(&mut self.writing.flight) {
            call.await?;
        }
        let Some(handle) = self.handle.take() else {
            return Ok(());
        };
        self.call("closing", Request::Close { handle }).await.map(drop)
    }

    /// Flushes the stream, closes the file, and checks that it has `length` bytes: a server may acknowledge data that
    /// it does not keep.
    pub async fn close_at(mut self, length: u64) -> Result<(), Error> {
        self.send_buffer()?;
        for (_, call) in std::mem::take(&mut self.writing.flight) {
            call.await?;
        }
        let Some(handle) = self.handle.take() else {
            return Ok(());
        };
        let fstat = Request::Fstat {
            handle: handle.clone(),
        };
        let mut measuring = self.call("looking at", fstat);
        // Both are sent together if the server keeps their order.
        let mut measured = None;
        if !self.sftp.link().is_sftp_server() {
            measured = Some((&mut measuring).await);
        }
        let closed = self.call("closing", Request::Close { handle }).await;
        let measured = match measured {
            Some(measured) => measured,
            None => measuring.await,
        };
        closed?;
        match measured {
            Ok(Reply::Attributes(FileAttributes { size: Some(size), .. })) if size != length => {
                let message = format!("the server confirmed {length} bytes, and the file has {size}");
                Err(self.fails("writing", message))
            }
            _ => Ok(()),
        }
    }

    /// Checks the file's size if reading ended at `offset`, before the `told` size.
    pub async fn check_end(&self, offset: u64, told: u64) -> Result<(), Error> {
        let now = self.stat().await?;
        self.ends(offset, told, now.size)
    }

    fn handle(&self) -> Result<Handle, Error> {
        self.handle
            .clone()
            .ok_or_else(|| Invalid::Closed(Printable::line(&self.path).into_string()).into())
    }

    fn call(&self, doing: &'static str, request: Request) -> Call {
        Call::new(self.sftp.link(), doing, &self.path, request)
    }

    pub(crate) fn read_call(&self, offset: u64, length: usize) -> Result<Call, Error> {
        let handle = self.handle()?;
        let length = u32::try_from(length)
            .unwrap_or(u32::MAX)
            .min(self.limits.max_read);
        Ok(self.call(
            "reading",
            Request::Read {
                handle,
                offset,
                length,
            },
        ))
    }

    pub(crate) fn write_call(&self, offset: u64, data: Bytes) -> Result<Call, Error> {
        let handle = self.handle()?;
        Ok(self.call("writing", Request::Write { handle, offset, data }))
    }

    // The stream.

    /// Discards what was read ahead.
    fn stop_reading(&mut self) {
        self.reading.current.clear();
        self.reading.ahead.clear();
        self.reading.next = self.position;
    }

    fn ask_size(&mut self) -> Result<(), Error> {
        if let Size::Unasked = self.reading.size {
            let handle = self.handle()?;
            self.reading.size = Size::Requested(self.call("looking at", Request::Fstat { handle }));
        }
        Ok(())
    }

    fn poll_size(&mut self, cx: &mut Context<'_>) {
        if let Size::Requested(call) = &mut self.reading.size
            && let Poll::Ready(answer) = Pin::new(call).poll(cx)
        {
            self.reading.size = match answer {
                Ok(Reply::Attributes(FileAttributes { size: Some(size), .. })) => Size::Told(size),
                _ => Size::Untold,
            };
        }
    }

    /// Requests pieces in advance. Beyond the end, only one is requested, which confirms the end.
    fn read_ahead(&mut self) -> Result<(), Error> {
        let piece = self.limits.max_read;
        let (depth, end) = match self.reading.size {
            Size::Requested(_) => (self.reading.depth.min(SIZELESS_DEPTH), u64::MAX),
            Size::Told(size) => (self.reading.depth, size),
            Size::Unasked | Size::Untold | Size::Doubted(..) => (self.reading.depth, u64::MAX),
        };
        while self.reading.ahead.is_empty() || (self.reading.ahead.len() < depth && self.reading.next <= end)
        {
            let call = self.read_call(self.reading.next, piece as usize)?;
            self.reading.ahead.push_back((u64::from(piece), call));
            self.reading.next += u64::from(piece);
        }
        Ok(())
    }

    /// Returns the most pieces to request.
    fn most_depth(&self) -> usize {
        (MOST_AHEAD / self.limits.max_read as usize).max(1)
    }

    /// Waits for the next piece of the read-ahead; returns whether there is one.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Error>> {
        if let Size::Doubted(call, told) = &mut self.reading.size {
            let (told, answer) = (*told, ready!(Pin::new(call).poll(cx)));
            return Poll::Ready(self.end_early(told, answer).map(|()| false));
        }
        if self.reading.ahead.is_empty() {
            self.reading.next = self.position;
        }
        self.ask_size()?;
        self.poll_size(cx);
        self.read_ahead()?;
        let Some((asked, call)) = self.reading.ahead.front_mut() else {
            return Poll::Ready(Ok(false));
        };
        let (asked, answer) = (*asked, ready!(Pin::new(call).poll(cx)));
        self.reading.ahead.pop_front();
        let data = match answer {
            Ok(Reply::Data(data)) => data,
            Ok(_) => return Poll::Ready(Ok(false)),
            Err(error) if is_end(&error) => {
                self.stop_reading();
                // The size was requested first, so it is known by now.
                self.poll_size(cx);
                if let Size::Told(told) = self.reading.size
                    && told > self.position
                {
                    let handle = self.handle()?;
                    let call = self.call("looking at", Request::Fstat { handle });
                    self.reading.size = Size::Doubted(call, told);
                    return self.poll_piece(cx);
                }
                return Poll::Ready(Ok(false));
            }
            Err(error) => {
                self.stop_reading();
                return Poll::Ready(Err(error));
            }
        };
        if (data.len() as u64) < asked {
            // A short piece: the requested ones after it do not follow directly. The file probably ends here.
            self.reading.ahead.clear();
            self.reading.next = self.position + data.len() as u64;
            self.reading.depth = 1;
        } else {
            self.reading.depth = (self.reading.depth * 2).min(self.most_depth());
        }
        self.reading.current = data.into_chunks().into();
        Poll::Ready(Ok(true))
    }

    /// Handles an end before the file's size: another program has truncated it, or the server has ended it early. Only
    /// if OpenSSH's sftp-server still reports that size is this a file with a wrong size, as in /sys.
    fn end_early(&mut self, told: u64, answer: Result<Reply, Error>) -> Result<(), Error> {
        self.reading.size = Size::Untold;
        let now = match answer? {
            Reply::Attributes(attributes) => attributes.size,
            _ => None,
        };
        self.ends(self.position, told, now)
    }

    fn ends(&self, offset: u64, told: u64, now: Option<u64>) -> Result<(), Error> {
        if told <= offset || now == Some(told) && self.sftp.link().is_sftp_server() {
            return Ok(());
        }
        let message = format!("it changed while it was read: {offset} of its {told} bytes came");
        Err(self.fails("reading", message))
    }

    fn fails(&self, doing: &'static str, message: String) -> Error {
        let status = Status {
            code: StatusCode::FAILURE,
            message: message.into(),
        };
        self.sftp.link().status_error(doing, self.path.clone(), status)
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<Result<Bytes, Error>> {
        // The server keeps the order of requests about one file.
        self.send_buffer()?;
        if self.reading.current.is_empty() && (most == 0 || !ready!(self.poll_piece(cx))?) {
            return Poll::Ready(Ok(Bytes::new()));
        }
        let Some(front) = self.reading.current.front_mut() else {
            return Poll::Ready(Ok(Bytes::new()));
        };
        let chunk = front.split_to(front.len().min(most));
        if front.is_empty() {
            self.reading.current.pop_front();
        }
        self.position += chunk.len() as u64;
        Poll::Ready(Ok(chunk))
    }

    fn send_buffer(&mut self) -> Result<(), Error> {
        if self.writing.buffer.is_empty() {
            return Ok(());
        }
        let data = self.writing.buffer.split().freeze();
        let length = data.len();
        let call = self.write_call(self.writing.offset, data)?;
        self.writing.offset += length as u64;
        self.writing.in_flight += length;
        self.writing.flight.push_back((length, call));
        Ok(())
    }

    /// Waits until at most `most` bytes are unconfirmed.
    fn poll_written(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<Result<(), Error>> {
        while self.writing.in_flight > most || !self.writing.flight.is_empty() {
            let Some((length, call)) = self.writing.flight.front_mut() else {
                break;
            };
            let length = *length;
            match Pin::new(call).poll(cx) {
                Poll::Pending if self.writing.in_flight <= most => break,
                Poll::Pending => return Poll::Pending,
                Poll::Ready(answer) => {
                    self.writing.flight.pop_front();
                    self.writing.in_flight -= length;
                    answer?;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for File {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let chunk = ready!(self.poll_chunk(cx, buf.remaining()))?;
        buf.put_slice(&chunk);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for File {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        ready!(this.poll_written(cx, MOST_BEHIND))?;
        if this.writing.buffer.is_empty() {
            this.writing.offset = this.position;
        }
        let most = this.limits.max_write as usize;
        let length = buf.len().min(most - this.writing.buffer.len());
        this.writing.buffer.extend_from_slice(&buf[..length]);
        this.position += length as u64;
        this.stop_reading();
        this.reading.size = Size::Unasked;
        if this.writing.buffer.len() >= most {
            this.send_buffer()?;
        }
        Poll::Ready(Ok(length))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.handle.is_some() {
            this.send_buffer()?;
        }
        this.poll_written(cx, 0).map_err(io::Error::from)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_flush(cx))?;
        let this = &mut *self;
        if let Some(handle) = this.handle.take() {
            this.stop_reading();
            this.closing = Some(this.call("closing", Request::Close { handle }));
        }
        if let Some(call) = &mut this.closing {
            let answer = ready!(Pin::new(call).poll(cx));
            this.closing = None;
            answer?;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncSeek for File {
    fn start_seek(mut self: Pin<&mut Self>, position: SeekFrom) -> io::Result<()> {
        let this = &mut *self;
        this.send_buffer()?;
        let place = match position {
            SeekFrom::Start(place) => Some(place),
            SeekFrom::Current(by) => Some(move_by(this.position, by)?),
            SeekFrom::End(by) => {
                let handle = this.handle()?;
                this.seeking = Some((this.call("looking at", Request::Fstat { handle }), by));
                None
            }
        };
        if let Some(place) = place
            && place != this.position
        {
            this.position = place;
            this.stop_reading();
            this.reading.depth = FIRST_DEPTH;
        }
        Ok(())
    }

    fn poll_complete(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let this = &mut *self;
        if let Some((call, by)) = &mut this.seeking {
            let (by, answer) = (*by, ready!(Pin::new(call).poll(cx)));
            this.seeking = None;
            let size = match answer? {
                Reply::Attributes(attributes) => attributes.size,
                _ => None,
            };
            let size = size.ok_or_else(|| io::Error::other("the server does not tell the file's size"))?;
            this.position = move_by(size, by)?;
            this.stop_reading();
        }
        Poll::Ready(Ok(this.position))
    }
}

fn move_by(from: u64, by: i64) -> io::Result<u64> {
    from.checked_add_signed(by).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            "cannot seek before the start of a file",
        )
    })
}

impl Drop for File {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            self.sftp.link().close(handle);
        }
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}
