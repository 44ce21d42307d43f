//! A [`Connection`] over a blocking socket, for servers of which one does not know how they end it.

#![allow(dead_code, reason = "no test uses all of it")]

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use aws_lc_rs::signature::Ed25519KeyPair;
use bytes::{Buf, BufMut, Bytes};
use trunkline_proto::wire::Writer;
use trunkline_proto::{
    ChannelEvent, ChannelId, ChannelKind, ChannelRequest, Config, Connection, Error, Event, Stream,
};
use zeroize::Zeroizing;

/// The largest packet with its length and its tag: no connection keeps more unread.
const MOST_UNREAD: usize = 256 * 1024 + 4 + 64;
/// The size of one read.
const READ: usize = 64 * 1024;

/// An Ed25519 client key.
pub(crate) struct Key {
    pair: Ed25519KeyPair,
    pub(crate) blob: Bytes,
}

impl Key {
    pub(crate) fn load(path: &Path) -> Self {
        let key = ssh_key::PrivateKey::read_openssh_file(path).unwrap();
        let pair = key.key_data().ed25519().unwrap();
        let blob = Writer::new().string("ssh-ed25519").string(pair.public.0).finish();
        let seed = Zeroizing::new(pair.private.to_bytes());
        Self {
            pair: Ed25519KeyPair::from_seed_and_public_key(&seed[..], &pair.public.0).unwrap(),
            blob,
        }
    }

    pub(crate) fn sign(&self, data: &[u8]) -> Bytes {
        Writer::new()
            .string("ssh-ed25519")
            .string(self.pair.sign(data))
            .finish()
    }
}

/// The end of a connection, or of listening to it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum End {
    /// The state machine had enough.
    Error(Error),
    /// The server closed the connection.
    Closed,
    /// The server says nothing, or nothing but what may continue forever.
    Waits,
}

/// A connection with a socket under it.
pub(crate) struct Client {
    socket: TcpStream,
    pub(crate) connection: Connection,
    chunk: Vec<u8>,
    events: VecDeque<Event>,
    /// The end that an error left behind it: events that came before it are still reported.
    end: Option<End>,
    /// Reads that are left without a decision to make, before one gives the server up.
    patience: usize,
}

impl Client {
    /// `silence` is how long a server may say nothing.
    pub(crate) fn connect(addr: SocketAddr, config: Config, silence: Duration) -> Self {
        let socket = TcpStream::connect(addr).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(silence)).unwrap();
        socket.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
        Self {
            socket,
            connection: Connection::new(config).unwrap(),
            chunk: vec![0; READ],
            events: VecDeque::new(),
            end: None,
            patience: usize::MAX,
        }
    }

    /// Gives the server up after so many reads.
    pub(crate) fn patience(mut self, reads: usize) -> Self {
        self.patience = reads;
        self
    }

    pub(crate) fn next_event(&mut self) -> Result<Event, End> {
        loop {
            while let Some(event) = self.connection.poll_event() {
                self.events.push_back(event);
            }
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            if let Some(end) = &self.end {
                return Err(end.clone());
            }
            self.end = self.turn().err();
        }
    }

    fn turn(&mut self) -> Result<(), End> {
        self.flush()?;
        self.patience = self.patience.checked_sub(1).ok_or(End::Waits)?;
        let n = match self.socket.read(&mut self.chunk) {
            Ok(0) => return Err(End::Closed),
            Ok(n) => n,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(End::Waits);
            }
            Err(_) => return Err(End::Closed),
        };
        self.connection.receive_buffer().put_slice(&self.chunk[..n]);
        let handled = self.connection.handle_received(Instant::now());
        if handled.is_ok() && self.connection.host_key().is_some() {
            assert!(self.connection.unread() <= MOST_UNREAD);
        }
        handled.map_err(End::Error)
    }

    pub(crate) fn flush(&mut self) -> Result<(), End> {
        loop {
            let outgoing = self
                .connection
                .poll_transmit(Instant::now())
                .map_err(End::Error)?;
            if outgoing.is_empty() {
                return Ok(());
            }
            // A server that is gone may have left its last words to be read.
            let written = self.socket.write_all(outgoing);
            let len = outgoing.len();
            outgoing.advance(len);
            if written.is_err() {
                return Ok(());
            }
        }
    }

    /// Signs in with a key, whatever host key it is.
    pub(crate) fn log_in(&mut self, key: &Key) -> Result<(), End> {
        loop {
            match self.next_event()? {
                Event::HostKey(_) => self
                    .connection
                    .accept_host_key(Instant::now())
                    .map_err(End::Error)?,
                Event::Authenticate(turn) => {
                    assert!(turn.methods.is_none(), "the key was refused: {turn:?}");
                    self.show(key);
                }
                Event::Authenticated => return Ok(()),
                _ => {}
            }
        }
    }

    pub(crate) fn show(&mut self, key: &Key) {
        let data = self.connection.data_to_sign("ssh-ed25519", &key.blob).unwrap();
        self.connection
            .authenticate_key("ssh-ed25519", &key.blob, &key.sign(&data), true);
    }

    pub(crate) fn start(&mut self, command: &str, input: Option<&[u8]>) -> ChannelId {
        let id = self.connection.open(&ChannelKind::Session);
        self.connection.request(id, &ChannelRequest::Exec(command.into()));
        if let Some(input) = input {
            self.connection.write(id, Bytes::copy_from_slice(input));
            self.connection.eof(id);
        }
        id
    }

    /// Reads a session to its end.
    pub(crate) fn output(&mut self, id: ChannelId) -> Result<Output, End> {
        let mut output = Output::default();
        loop {
            let Event::Channel(event) = self.next_event()? else {
                continue;
            };
            match event {
                ChannelEvent::Data { id: of, stream, data } if of == id => {
                    self.connection.consume(id, data.len(), Instant::now());
                    match stream {
                        Stream::Data => output.stdout.extend_from_slice(&data),
                        Stream::Stderr => output.stderr.extend_from_slice(&data),
                    }
                }
                ChannelEvent::Reply {
                    id: of,
                    success,
                    started: true,
                } if of == id => output.granted = Some(success),
                ChannelEvent::ExitStatus { id: of, status } if of == id => output.status = Some(status),
                ChannelEvent::ExitSignal { id: of, signal, .. } if of == id => output.signal = Some(signal),
                ChannelEvent::Eof(of) if of == id => output.eof = true,
                ChannelEvent::OpenFailed { id: of, .. } | ChannelEvent::Closed(of) if of == id => {
                    return Ok(output);
                }
                ChannelEvent::Incoming { id, .. } => self.connection.close(id),
                _ => {}
            }
        }
    }

    pub(crate) fn run(&mut self, command: &str, input: Option<&[u8]>) -> Result<Output, End> {
        let id = self.start(command, input);
        self.output(id)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// A session's output.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) granted: Option<bool>,
    pub(crate) eof: bool,
    pub(crate) status: Option<u32>,
    pub(crate) signal: Option<String>,
}
