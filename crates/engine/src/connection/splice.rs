//! Joins a local connection and a channel: bytes go both ways, and each direction ends by itself.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use bytes::{Bytes, BytesMut};
use tokio::net::{TcpStream, UnixStream};

use crate::config::AddressFamily;
use crate::connection::channel::{ChannelReader, ChannelStream, ChannelWriter};
use crate::error::{Doing, Error};
use crate::metrics::Counter;

/// Room for one read from a connection that carries little.
const READ_SMALL: usize = 8 * 1024;
/// Room for one read from a busy one: two of sshd's largest packets.
const READ_LARGE: usize = 64 * 1024;

/// A connection on this machine: a client of a listening socket, or a forwarding's target.
#[derive(Debug)]
pub(crate) enum LocalStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Bytes carried to the server and from it.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) sent: Counter,
    pub(crate) received: Counter,
}

/// Data that was read after a SOCKS request: the first bytes to be carried.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    pub(crate) to_channel: Bytes,
    pub(crate) to_local: Bytes,
}

/// Carries everything, until both directions have ended or either side is gone. If the connection ends abnormally, the
/// local side is reset, so that partial data cannot be taken for all of it.
pub(crate) async fn splice(local: LocalStream, channel: ChannelStream, ahead: Ahead, traffic: &Traffic) {
    let (reader, mut writer) = channel.into_split();
    local.reset_when_dropped(true);
    let up = send(&local, &mut writer, ahead.to_channel, traffic);
    let down = receive(&local, reader, ahead.to_local, traffic);
    let ended: io::Result<((), bool)> = async { tokio::try_join!(up, down) }.await;
    local.reset_when_dropped(ended.is_err());
    drop(local);
    match ended {
        // Closing discards data that still waits for the server's window; sshd closes once it has both ends.
        Ok(((), true)) => writer.wait_for_close().await,
        // Nothing reads what the server sends, which may be endless.
        Ok(((), false)) => drop(writer.wait_until_sent().await),
        Err(_) => {}
    }
}

/// Ends a channel after its written data: dropping it at once would discard what was not sent yet.
pub(crate) async fn finish(channel: ChannelStream) {
    let (reader, mut writer) = channel.into_split();
    drop(reader);
    writer.finish();
    writer.wait_for_close().await;
}

/// Carries data from the local connection to the channel. Holds no buffer while there is nothing to read.
///
/// # Errors
/// The local connection was reset: nothing more can be carried in either direction.
async fn send(
    local: &LocalStream,
    writer: &mut ChannelWriter,
    ahead: Bytes,
    traffic: &Traffic,
) -> io::Result<()> {
    let mut size = READ_SMALL;
    let mut buffer = BytesMut::new();
    let mut data = ahead;
    loop {
        let len = data.len();
        // The channel is gone; the other direction delivers what it still brought.
        if writer.send(data).await.is_err() {
            return Ok(());
        }
        traffic.sent.add(len as u64);
        data = loop {
            if buffer.capacity() - buffer.len() < size / 4 {
                buffer.reserve(size);
            }
            let room = buffer.capacity() - buffer.len();
            match local.try_read_buf(&mut buffer) {
                Ok(0) => {
                    writer.finish();
                    return Ok(());
                }
                Ok(n) => {
                    size = if n == room { READ_LARGE } else { size };
                    break buffer.split().freeze();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    buffer = BytesMut::new();
                    tokio::select! {
                        () = writer.wait_for_close() => return Ok(()),
                        ready = local.readable() => ready?,
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
    }
}

/// Carries data from the channel to the local connection, and returns whether it has taken everything. A local side
/// that takes no more (it has shut down its reading side) may still send, so that only this direction ends.
///
/// # Errors
/// The connection to the server was lost.
async fn receive(
    local: &LocalStream,
    mut reader: ChannelReader,
    ahead: Bytes,
    traffic: &Traffic,
) -> io::Result<bool> {
    let mut next = Some(ahead);
    while let Some(data) = next {
        let len = data.len();
        if local.write_all(data).await.is_err() {
            return Ok(false);
        }
        traffic.received.add(len as u64);
        next = reader.chunk().await;
    }
    if !reader.is_complete() {
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    local.finish();
    Ok(true)
}

impl LocalStream {
    /// Connects to a TCP port, at the first address of `host` that answers.
    ///
    /// # Errors
    /// The name is unknown, or every address refuses.
    pub(crate) async fn tcp(host: &str, port: u16, family: AddressFamily) -> Result<Self, Error> {
        let found = tokio::net::lookup_host((host, port))
            .await
            .map_err(|source| Error::lookup(host, source))?;
        let mut last = io::Error::other("no address of the wanted family");
        for address in found.filter(|address| is_of(*address, family)) {
            match TcpStream::connect(address).await {
                Ok(stream) => return Self::from_tcp(stream),
                Err(error) => last = error,
            }
        }
        let host = host.to_owned();
        Err(Error::network(Doing::Connect { host, port }, last))
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// It does not exist, or nothing listens on it.
    pub(crate) async fn unix(path: &Path) -> Result<Self, Error> {
        match UnixStream::connect(path).await {
            Ok(stream) => Ok(Self::Unix(stream)),
            Err(error) => Err(Error::network(format!("connecting to {}", path.display()), error)),
        }
    }

    /// Takes a connection and disables Nagle's algorithm, which would delay every small answer by 40 ms.
    pub(crate) fn from_tcp(stream: TcpStream) -> Result<Self, Error> {
        stream
            .set_nodelay(true)
            .map_err(|source| Error::local("setting TCP_NODELAY", source))?;
        Ok(Self::Tcp(stream))
    }

    async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.readable().await,
            Self::Unix(stream) => stream.readable().await,
        }
    }

    fn try_read_buf(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read_buf(buffer),
            Self::Unix(stream) => stream.try_read_buf(buffer),
        }
    }

    async fn write_all(&self, data: Bytes) -> io::Result<()> {
        let mut data = data.as_ref();
        while !data.is_empty() {
            let written = match self {
                Self::Tcp(stream) => stream.try_write(data),
                Self::Unix(stream) => stream.try_write(data),
            };
            match written {
                Ok(n) => data = &data[n..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match self {
                    Self::Tcp(stream) => stream.writable().await?,
                    Self::Unix(stream) => stream.writable().await?,
                },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Shuts down the local side's output. A failure means that it is gone.
    fn finish(&self) {
        let _ = rustix::net::shutdown(self.as_fd(), rustix::net::Shutdown::Write);
    }

    /// Sets whether dropping it sends RST instead of FIN. Unix sockets have no such distinction.
    fn reset_when_dropped(&self, reset: bool) {
        if let Self::Tcp(_) = self {
            let linger = reset.then_some(std::time::Duration::ZERO);
            // If it is gone already, this fails harmlessly.
            let _ = rustix::net::sockopt::set_socket_linger(self.as_fd(), linger);
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

pub(crate) fn is_of(address: SocketAddr, family: AddressFamily) -> bool {
    match family {
        AddressFamily::Any => true,
        AddressFamily::Inet => address.is_ipv4(),
        AddressFamily::Inet6 => address.is_ipv6(),
    }
}
