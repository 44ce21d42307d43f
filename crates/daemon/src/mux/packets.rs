//! Packets and file descriptors of one client of a mux socket.

use std::io;
use std::os::fd::OwnedFd;

use bytes::BytesMut;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::net::unix::{ReadHalf, WriteHalf};

use super::wire::{MAX_PACKET, Malformed, Reply, Request};
use crate::socket::receive;

/// The connection to a client, as packets.
#[derive(Debug)]
pub(super) struct Packets {
    stream: UnixStream,
    buffer: Vec<u8>,
    /// Received, not yet claimed by a request.
    fds: Vec<OwnedFd>,
}

/// The reason why a client's packets cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum PacketError {
    #[error("the socket failed: {0}")]
    Io(#[from] io::Error),
    #[error("a packet of {0} bytes is too long")]
    TooLong(usize),
    #[error("it ends in the middle of a packet")]
    CutOff,
    #[error("malformed packet: {0}")]
    Malformed(#[from] Malformed),
}

impl Packets {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
            fds: Vec::new(),
        }
    }

    /// Reads the next request, with its number; `None` at the end. Cancel-safe.
    pub(super) async fn request(&mut self) -> Result<Option<(u32, Request)>, PacketError> {
        loop {
            if let Some((head, rest)) = self.buffer.split_first_chunk::<4>() {
                let len = u32::from_be_bytes(*head) as usize;
                if len > MAX_PACKET {
                    return Err(PacketError::TooLong(len));
                }
                if let Some(packet) = rest.get(..len) {
                    let request = Request::decode(packet)?;
                    self.buffer.drain(..4 + len);
                    return Ok(Some(request));
                }
            }
            if self.fill().await? == 0 {
                return match self.buffer.is_empty() {
                    true => Ok(None),
                    false => Err(PacketError::CutOff),
                };
            }
        }
    }

    /// Reads the descriptors that follow a request, each with a byte of its own (monitor_fdpass.c, `mm_send_fd`).
    /// Returns `None` if bytes came without them: they were closed, or exceed the process's limit.
    pub(super) async fn descriptors(&mut self, count: usize) -> Result<Option<Vec<OwnedFd>>, PacketError> {
        while self.buffer.len() < count {
            if self.fill().await? == 0 {
                return Err(PacketError::CutOff);
            }
        }
        self.buffer.drain(..count);
        let fds = std::mem::take(&mut self.fds);
        Ok((fds.len() == count).then_some(fds))
    }

    /// Waits; see [`Arrivals::wait_until_left`].
    pub(super) async fn wait_until_left(&mut self) {
        self.split().1.wait_until_left().await;
    }

    /// Splits into both directions.
    pub(super) fn split(&mut self) -> (Answers<'_>, Arrivals<'_>) {
        let Self { stream, buffer, fds } = self;
        (Answers(stream), Arrivals { stream, buffer, fds })
    }

    /// Returns both halves of the socket and the bytes read so far, for a client that switches to another protocol.
    pub(super) fn halves(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>, BytesMut) {
        let come = BytesMut::from(&std::mem::take(&mut self.buffer)[..]);
        let (reader, writer) = self.stream.split();
        (reader, writer, come)
    }

    /// Answers request `id`.
    pub(super) async fn reply(&self, id: u32, reply: &Reply) -> Result<(), PacketError> {
        Answers(&self.stream).reply(id, reply).await
    }

    /// Reads the available bytes; 0 at the end.
    async fn fill(&mut self) -> io::Result<usize> {
        self.split().1.fill().await
    }
}

/// The direction to a client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answers<'a>(&'a UnixStream);

impl Answers<'_> {
    /// Answers request `id`.
    pub(super) async fn reply(self, id: u32, reply: &Reply) -> Result<(), PacketError> {
        let bytes = reply.encode(id);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            self.0.writable().await?;
            match self.0.try_write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// The direction from a client.
#[derive(Debug)]
pub(super) struct Arrivals<'a> {
    stream: &'a UnixStream,
    buffer: &'a mut Vec<u8>,
    fds: &'a mut Vec<OwnedFd>,
}

impl Arrivals<'_> {
    /// Waits until the client has left, or has sent more than a packet when nothing was due. Smaller input is kept.
    pub(super) async fn wait_until_left(&mut self) {
        while self.buffer.len() <= MAX_PACKET {
            if !matches!(self.fill().await, Ok(1..)) {
                return;
            }
        }
    }

    async fn fill(&mut self) -> io::Result<usize> {
        let Self { stream, buffer, fds } = self;
        stream
            .async_io(Interest::READABLE, || receive(*stream, buffer, fds))
            .await
    }
}
