//! Frames and file descriptors over a Unix socket, for both ends.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::message_pack;
use crate::protocol::MAX_FRAME;

/// No frame brings more descriptors: standard input, output and error.
const MAX_FDS: usize = 3;

/// The reason why a frame could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The socket failed.
    #[error("the control socket failed: {0}")]
    Io(#[from] io::Error),
    /// The other end is broken, or not one of ours.
    #[error("malformed data on the control socket: {0}")]
    Malformed(String),
}

/// Splits a control socket.
pub fn split(stream: UnixStream) -> (FrameReader, FrameWriter) {
    split_after(stream, Vec::new(), Vec::new())
}

/// Splits a control socket from which `buffer` and `fds` have been received already.
pub(crate) fn split_after(
    stream: UnixStream,
    buffer: Vec<u8>,
    fds: Vec<OwnedFd>,
) -> (FrameReader, FrameWriter) {
    let stream = Arc::new(stream);
    let reader = FrameReader {
        stream: stream.clone(),
        buffer,
        fds,
    };
    (reader, FrameWriter { stream })
}

/// Reads frames.
#[derive(Debug)]
pub struct FrameReader {
    stream: Arc<UnixStream>,
    buffer: Vec<u8>,
    /// Received descriptors that no frame has claimed.
    fds: Vec<OwnedFd>,
}

impl FrameReader {
    /// Returns the received descriptors that no frame has claimed. They arrive with the frame that refers to them, or
    /// an earlier one.
    pub fn take_fds(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.fds)
    }

    /// Returns the next frame; `None` at the end. Cancel-safe: an incomplete frame stays.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        loop {
            if let Some(frame) = take_frame(&mut self.buffer)? {
                return Ok(Some(frame));
            }
            let n = self.stream.async_io(Interest::READABLE, || {
                receive(&*self.stream, &mut self.buffer, &mut self.fds)
            });
            if n.await? == 0 {
                return at_the_end(&self.buffer);
            }
        }
    }
}

/// Removes the frame at the start of `buffer`; `None` if it is incomplete.
pub(crate) fn take_frame<T: DeserializeOwned>(buffer: &mut Vec<u8>) -> Result<Option<T>, FrameError> {
    let Some((frame, used)) = decode(buffer)? else {
        return Ok(None);
    };
    buffer.drain(..used);
    Ok(Some(frame))
}

/// Handles a socket's end after these remaining bytes: an incomplete frame is an error.
pub(crate) fn at_the_end<T>(buffer: &[u8]) -> Result<Option<T>, FrameError> {
    match buffer.is_empty() {
        true => Ok(None),
        false => Err(FrameError::Malformed("it ends in the middle of a frame".into())),
    }
}

/// Decodes the frame at the start of `bytes`, and returns its length; `None` if it is incomplete.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<Option<(T, usize)>, FrameError> {
    let Some((head, rest)) = bytes.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let len = u32::from_be_bytes(*head) as usize;
    if len > MAX_FRAME {
        return Err(FrameError::Malformed(format!("a frame of {len} bytes")));
    }
    let Some(body) = rest.get(..len) else {
        return Ok(None);
    };
    let frame = message_pack::from_slice(body).map_err(malformed_frame)?;
    Ok(Some((frame, 4 + len)))
}

fn malformed_frame(error: impl std::fmt::Display) -> FrameError {
    FrameError::Malformed(error.to_string())
}

/// The size of one read. Most frames are far smaller, and each read clears the buffer: 64 KiB took a fifth of a warm
/// `trunkline ssh`'s instructions outside the kernel.
const CHUNK: usize = 8 * 1024;

/// Reads the available bytes and their descriptors; 0 at the end.
pub fn receive(stream: impl AsFd, buffer: &mut Vec<u8>, fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut chunk = [0; CHUNK];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        stream.as_fd(),
        &mut [IoSliceMut::new(&mut chunk)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    // No request needs more; excess descriptors are closed.
    fds.truncate(MAX_FDS);
    buffer.extend_from_slice(&chunk[..received.bytes]);
    Ok(received.bytes)
}

/// Writes frames.
#[derive(Debug)]
pub struct FrameWriter {
    stream: Arc<UnixStream>,
}

impl FrameWriter {
    /// Writes one frame.
    pub async fn send<T: Serialize>(&self, frame: &T) -> Result<(), FrameError> {
        self.send_with(frame, &[]).await
    }

    /// Writes one frame with file descriptors, which are duplicated.
    pub async fn send_with<T: Serialize>(&self, frame: &T, fds: &[BorrowedFd<'_>]) -> Result<(), FrameError> {
        self.write(&encode(frame)?, fds).await
    }

    /// Writes encoded frames. The descriptors leave with the first byte.
    pub(crate) async fn write(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), FrameError> {
        let mut fds = fds;
        let mut sent = 0;
        while sent < bytes.len() {
            let io = || send(&*self.stream, &bytes[sent..], fds);
            sent += self.stream.async_io(Interest::WRITABLE, io).await?;
            fds = &[];
        }
        Ok(())
    }
}

/// Encodes a frame with its length.
pub(crate) fn encode<T: Serialize>(frame: &T) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; 4];
    let mut serializer = rmp_serde::Serializer::new(&mut bytes)
        .with_struct_map()
        .with_human_readable();
    frame.serialize(&mut serializer).map_err(malformed_frame)?;
    let len = bytes.len() - 4;
    if len > MAX_FRAME {
        return Err(FrameError::Malformed(format!(
            "a frame of {len} bytes; the environment may be too large"
        )));
    }
    bytes[..4].copy_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
    Ok(bytes)
}

/// Writes encoded frames to a blocking socket.
pub(crate) fn send_blocking(stream: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut sent = send(&stream, bytes, fds)?;
    while sent < bytes.len() {
        sent += send(&stream, &bytes[sent..], &[])?;
    }
    Ok(())
}

fn send(stream: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many file descriptors for one frame"));
    }
    let flags = SendFlags::NOSIGNAL;
    Ok(rustix::net::sendmsg(
        stream.as_fd(),
        &[IoSlice::new(bytes)],
        &mut ancillary,
        flags,
    )?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::protocol::Request;

    #[tokio::test]
    async fn frames_bring_their_file_descriptors() {
        let (a, b) = UnixStream::pair().unwrap();
        let (_, writer) = split(a);
        let (mut reader, _) = split(b);
        let (mut pipe_out, pipe_in) = std::io::pipe().unwrap();
        writer.send(&Request::Rekey).await.unwrap();
        writer
            .send_with(&Request::List, &[pipe_in.as_fd()])
            .await
            .unwrap();
        drop(pipe_in);
        assert!(matches!(
            reader.next::<Request>().await.unwrap().unwrap(),
            Request::Rekey
        ));
        assert!(matches!(
            reader.next::<Request>().await.unwrap().unwrap(),
            Request::List
        ));
        let [fd] = <[OwnedFd; 1]>::try_from(reader.take_fds()).unwrap();
        std::fs::File::from(fd).write_all(b"through").unwrap();
        let mut text = String::new();
        pipe_out.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[tokio::test]
    async fn absurd_lengths_and_garbage_are_refused() {
        for bytes in [&[0xff; 8][..], &[0, 0, 0, 1, 0xc1], &[0, 0, 0, 9, 1]] {
            let (a, b) = UnixStream::pair().unwrap();
            let (mut reader, _) = split(b);
            a.writable().await.unwrap();
            a.try_write(bytes).unwrap();
            drop(a);
            assert!(reader.next::<Request>().await.is_err(), "{bytes:?}");
        }
    }
}
