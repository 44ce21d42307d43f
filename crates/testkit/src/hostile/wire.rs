//! One connection of a scripted server: identification, packets and encryption.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::signature::Ed25519KeyPair;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::encryption::{Gcm, TAG_LEN};
use super::payload::{Fields, Payload, number};

/// The server's identification, unless a script sets another: an OpenSSH version that clients know as capable.
pub(super) const BANNER: &str = "SSH-2.0-OpenSSH_9.2p1 testkit";

/// The longest packet that is accepted from a client (OpenSSH's PACKET_MAX_SIZE).
const PACKET_LIMIT: usize = 256 * 1024;

/// The window that is granted to the client's sessions, as in sshd.
const WINDOW: u32 = 2 * 1024 * 1024;

/// The largest packet that the client may send on a channel, as in sshd.
const MAX_PACKET: u32 = 32 * 1024;

/// The server's end of one connection, for scripts: raw bytes, packets, or whole stages of the protocol.
///
/// The stages (`exchange_banners`, `exchange_keys`, `authenticate`, `open_session`) behave correctly, and bring the
/// client as far as a script needs it. Packets are plain before the key exchange and encrypted after it.
pub struct Wire {
    pub(super) stream: BufReader<TcpStream>,
    pub(super) host_key: Arc<Ed25519KeyPair>,
    pub(super) input: Option<Gcm>,
    pub(super) output: Option<Gcm>,
    pub(super) server_banner: Vec<u8>,
    pub(super) client_banner: Vec<u8>,
    pub(super) session_id: Option<Vec<u8>>,
    pub(super) strict: bool,
    /// The number of packets received since the count was last reset: the sequence number of the next one (RFC 4253
    /// section 6.4).
    pub(super) next_sequence: u32,
    /// Messages that arrived while another was awaited, in order.
    pub(super) backlog: VecDeque<Vec<u8>>,
    channels: u32,
}

/// A session channel that the client has opened, and the program that it requested there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The client's number of the channel, used in the server's messages.
    pub client_channel: u32,
    /// The server's number of the channel, used in the client's messages.
    pub server_channel: u32,
    /// The window that the client granted, in bytes.
    pub window: u32,
    /// The largest packet that the client accepts, in bytes of data.
    pub max_packet: u32,
    /// `exec`, `shell` or `subsystem`.
    pub request: String,
    /// The command or the subsystem's name; empty for a shell.
    pub command: Vec<u8>,
}

impl Wire {
    pub(super) fn new(stream: TcpStream, host_key: Arc<Ed25519KeyPair>) -> Wire {
        Wire {
            stream: BufReader::new(stream),
            host_key,
            input: None,
            output: None,
            server_banner: BANNER.as_bytes().to_vec(),
            client_banner: Vec::new(),
            session_id: None,
            strict: false,
            next_sequence: 0,
            backlog: VecDeque::new(),
            channels: 0,
        }
    }

    /// Sends this identification line (without its end) and reads the client's (RFC 4253 section 4.2).
    ///
    /// # Errors
    /// When the connection ends, or the client sends something else.
    pub async fn exchange_banners(&mut self, banner: &str) -> io::Result<()> {
        self.server_banner = banner.as_bytes().to_vec();
        self.send_raw(format!("{banner}\r\n").as_bytes()).await?;
        let mut line = Vec::new();
        (&mut self.stream).take(255).read_until(b'\n', &mut line).await?;
        while line.pop_if(|byte| matches!(byte, b'\r' | b'\n')).is_some() {}
        if !line.starts_with(b"SSH-2.0-") {
            return Err(unexpected_message(format!(
                "the client's banner is {:?}",
                String::from_utf8_lossy(&line)
            )));
        }
        self.client_banner = line;
        Ok(())
    }

    /// Lets the client log in, whatever it offers: `none` is refused (so that the client uses a method), for a key
    /// without a signature one is requested, and everything else succeeds unchecked. Returns the user's name.
    ///
    /// # Errors
    /// When the connection ends, or the client sends something unexpected.
    pub async fn authenticate(&mut self) -> io::Result<String> {
        let request = self.expect(number::SERVICE_REQUEST).await?;
        let service = Fields::parse(&request).text()?;
        self.send(&Payload::message(number::SERVICE_ACCEPT).string(service))
            .await?;
        loop {
            let request = self.expect(number::USERAUTH_REQUEST).await?;
            let mut fields = Fields::parse(&request);
            let (user, _service, method) = (fields.text()?, fields.text()?, fields.text()?);
            let answer = match method.as_str() {
                "none" => Payload::message(number::USERAUTH_FAILURE)
                    .string("publickey,password")
                    .boolean(false),
                "publickey" if !fields.boolean()? => {
                    let (algorithm, key) = (fields.string()?, fields.string()?);
                    Payload::message(number::USERAUTH_PK_OK)
                        .string(algorithm)
                        .string(key)
                }
                _ => Payload::message(number::USERAUTH_SUCCESS),
            };
            let done = answer.as_ref()[0] == number::USERAUTH_SUCCESS;
            self.send(&answer).await?;
            if done {
                return Ok(user);
            }
        }
    }

    /// Lets the client open a session and run something in it. Requests in between (`env`, `pty-req`, …) succeed.
    ///
    /// # Errors
    /// When the connection ends, or the client sends something unexpected.
    pub async fn open_session(&mut self) -> io::Result<Session> {
        let open = self.expect(number::CHANNEL_OPEN).await?;
        let mut fields = Fields::parse(&open);
        let kind = fields.text()?;
        if kind != "session" {
            return Err(unexpected_message(format!(
                "the client opened a channel of type {kind:?}"
            )));
        }
        let (client_channel, window, max_packet) = (fields.uint32()?, fields.uint32()?, fields.uint32()?);
        let server_channel = self.channels;
        self.channels += 1;
        let confirmation = Payload::message(number::CHANNEL_OPEN_CONFIRMATION)
            .uint32(client_channel)
            .uint32(server_channel)
            .uint32(WINDOW)
            .uint32(MAX_PACKET);
        self.send(&confirmation).await?;
        loop {
            let message = self.expect(number::CHANNEL_REQUEST).await?;
            let mut fields = Fields::parse(&message);
            let (_channel, request, want_reply) = (fields.uint32()?, fields.text()?, fields.boolean()?);
            if want_reply {
                self.send(&Payload::message(number::CHANNEL_SUCCESS).uint32(client_channel))
                    .await?;
            }
            let command = match request.as_str() {
                "exec" | "subsystem" => fields.string()?.to_vec(),
                "shell" => Vec::new(),
                _ => continue,
            };
            return Ok(Session {
                client_channel,
                server_channel,
                window,
                max_packet,
                request,
                command,
            });
        }
    }

    /// Reads until a message with this number, and returns it, including the number.
    ///
    /// IGNORE, DEBUG and EXT_INFO are skipped, and global requests are refused (OpenSSH sends `no-more-sessions` at any
    /// time). Window adjustments are skipped unless they are wanted.
    ///
    /// # Errors
    /// When the connection ends, or another message comes. The error names it, and gives the reason of a disconnect.
    pub async fn expect(&mut self, wanted: u8) -> io::Result<Vec<u8>> {
        loop {
            let message = self.receive().await?;
            let got = message.first().copied().unwrap_or(0);
            match got {
                _ if got == wanted => return Ok(message),
                number::IGNORE | number::DEBUG | number::EXT_INFO | number::CHANNEL_WINDOW_ADJUST => {}
                number::GLOBAL_REQUEST => {
                    let mut fields = Fields::parse(&message);
                    let (_name, want_reply) = (fields.string()?, fields.boolean()?);
                    if want_reply {
                        self.send(&Payload::message(number::REQUEST_FAILURE)).await?;
                    }
                }
                _ => return Err(not_the_one(wanted, &message)),
            }
        }
    }

    /// Returns the next message, including the number.
    ///
    /// # Errors
    /// When the connection ends, or a packet is malformed or not authentic.
    pub async fn receive(&mut self) -> io::Result<Vec<u8>> {
        match self.backlog.pop_front() {
            Some(message) => Ok(message),
            None => self.read_packet().await,
        }
    }

    /// Returns true if data was received that was not read yet.
    pub fn has_more(&self) -> bool {
        !self.backlog.is_empty() || !self.stream.buffer().is_empty()
    }

    /// Returns the sequence number of the last packet read, as used in UNIMPLEMENTED (RFC 4253 section 11.4).
    pub fn last_sequence(&self) -> u32 {
        self.next_sequence.wrapping_sub(1)
    }

    /// Sends a message in a well-formed packet.
    ///
    /// # Errors
    /// When the connection ends.
    pub async fn send(&mut self, payload: impl AsRef<[u8]>) -> io::Result<()> {
        let packet = self.seal(payload.as_ref())?;
        self.send_raw(&packet).await
    }

    /// Sends several messages in one write, so that they arrive together.
    ///
    /// # Errors
    /// When the connection ends.
    pub async fn send_together(&mut self, payloads: &[Payload]) -> io::Result<()> {
        let mut packets = Vec::new();
        for payload in payloads {
            packets.extend(self.seal(payload.as_ref())?);
        }
        self.send_raw(&packets).await
    }

    /// Encrypts a message and discards it, as an attacker on the path could: the client never sees it, but the server
    /// counts it as sent.
    ///
    /// # Errors
    /// Not before four exabytes.
    pub fn lose(&mut self, payload: impl AsRef<[u8]>) -> io::Result<()> {
        self.seal(payload.as_ref()).map(drop)
    }

    /// Sends bytes unchanged, without packets or encryption.
    ///
    /// # Errors
    /// When the connection ends.
    pub async fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes).await
    }

    /// Sends bytes one by one, with a pause before each.
    ///
    /// # Errors
    /// When the connection ends.
    pub async fn drip(&mut self, bytes: &[u8], pause: Duration) -> io::Result<()> {
        for byte in bytes {
            tokio::time::sleep(pause).await;
            self.send_raw(std::slice::from_ref(byte)).await?;
        }
        Ok(())
    }

    /// Sends no more (FIN), but continues to receive.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn finish(&mut self) -> io::Result<()> {
        self.stream.get_mut().shutdown().await
    }

    /// Reads and discards until the client closes or resets the connection.
    pub async fn until_closed(&mut self) {
        let mut scratch = vec![0; 16 * 1024];
        while matches!(self.stream.read(&mut scratch).await, Ok(1..)) {}
    }

    pub(super) async fn read_packet(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).await?;
        let size = u32::from_be_bytes(length) as usize;
        if size > PACKET_LIMIT {
            return Err(unexpected_message(format!(
                "the client sent a packet of {size} bytes"
            )));
        }
        let body = match &mut self.input {
            Some(gcm) => {
                let mut sealed = vec![0; size + TAG_LEN];
                self.stream.read_exact(&mut sealed).await?;
                gcm.open(length, sealed)?
            }
            None => {
                let mut body = vec![0; size];
                self.stream.read_exact(&mut body).await?;
                body
            }
        };
        self.next_sequence = self.next_sequence.wrapping_add(1);
        let padding = usize::from(body.first().copied().unwrap_or(0));
        let end = body.len().checked_sub(padding).filter(|&end| end > 1);
        let end =
            end.ok_or_else(|| unexpected_message("the client sent a packet of padding alone".to_owned()))?;
        Ok(body[1..end].to_vec())
    }

    fn seal(&mut self, payload: &[u8]) -> io::Result<Vec<u8>> {
        let body = frame(payload, self.output.is_some());
        let length = u32::try_from(body.len())
            .map_err(|_| io::ErrorKind::InvalidInput)?
            .to_be_bytes();
        let body = match &mut self.output {
            Some(gcm) => gcm.seal(length, body)?,
            None => body,
        };
        Ok([&length[..], &body].concat())
    }
}

/// Returns the padding length, payload and padding (RFC 4253 section 6). The length field counts towards the block only
/// if it is encrypted with the rest, which is never so with GCM (RFC 5647 section 7.2).
fn frame(payload: &[u8], with_gcm: bool) -> Vec<u8> {
    let (block, counted) = if with_gcm { (16, 1) } else { (8, 5) };
    let mut padding = block - (counted + payload.len()) % block;
    if padding < 4 {
        padding += block;
    }
    // At most 19, so it fits.
    let mut body = vec![padding as u8];
    body.extend_from_slice(payload);
    body.resize(body.len() + padding, 0);
    body
}

/// Makes the error for an unexpected message. The reason of a disconnect is part of it.
pub(super) fn not_the_one(wanted: u8, message: &[u8]) -> io::Error {
    let got = message.first().copied().unwrap_or(0);
    let mut fields = Fields::parse(message);
    match (got, fields.uint32(), fields.text()) {
        (number::DISCONNECT, Ok(code), Ok(reason)) => {
            let told =
                format!("message {wanted} was expected; the client disconnected, code {code}: {reason}");
            unexpected_message(told)
        }
        _ => unexpected_message(format!("message {wanted} was expected; {got} came")),
    }
}

pub(super) fn unexpected_message(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use proptest::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #[test]
        fn every_frame_is_whole_blocks_with_enough_padding(length in 0..70_000_usize, with_gcm: bool) {
            let body = frame(&vec![7; length], with_gcm);
            let padding = usize::from(body[0]);
            let (block, counted) = if with_gcm { (16, 0) } else { (8, 4) };
            prop_assert!(padding >= 4);
            prop_assert_eq!(body.len(), 1 + length + padding);
            prop_assert_eq!((body.len() + counted) % block, 0);
        }

        #[test]
        fn what_is_sealed_opens_again_in_order(messages in proptest::collection::vec(0..300_usize, 1..20)) {
            let (mut seal, mut open) = (Gcm::new(&[1; 16], [0xff; 12]), Gcm::new(&[1; 16], [0xff; 12]));
            for size in messages {
                let length = (size as u32).to_be_bytes();
                let sealed = seal.seal(length, vec![9; size]).unwrap();
                prop_assert_eq!(sealed.len(), size + TAG_LEN);
                prop_assert_eq!(open.open(length, sealed).unwrap(), vec![9; size]);
            }
        }
    }
}
