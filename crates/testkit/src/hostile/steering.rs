//! Every text from a server that a client displays, filled with control sequences.

use std::io;

use super::key_exchange::{KexInit, KeyExchange};
use super::payload::{Fields, Payload, number};
use super::wire::{BANNER, Session, Wire};

/// Every place where a server sends text that a client displays. If it is sent to the terminal unchanged, the server
/// controls the terminal: it can set the title, move the cursor, and turn text around.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Steering {
    /// A line before the identification, and then nothing.
    Greeting,
    /// An identification of another version of the protocol.
    OldIdentification,
    /// The comment of the identification, before a log-in that succeeds.
    Identification,
    /// Only key exchange methods that the client does not have.
    KexNames,
    /// Only ciphers that the client does not have.
    CipherNames,
    /// SSH_MSG_DISCONNECT in the middle of the key exchange.
    DisconnectInKeyExchange,
    /// The name of the accepted service.
    Service,
    /// SSH_MSG_DEBUG, and SSH_MSG_USERAUTH_BANNER before a log-in that succeeds.
    Banner,
    /// The methods that a log-in can continue with.
    Methods,
    /// Name, instruction and prompt of keyboard-interactive.
    Questions,
    /// SSH_MSG_CHANNEL_OPEN_FAILURE.
    OpenFailure,
    /// The signal that ended the command, and the message that comes with it.
    ExitSignal,
    /// SSH_MSG_DISCONNECT while the command runs.
    Disconnect,
    /// Text in place of the start of SFTP.
    SftpText,
    /// The message of an SFTP status.
    SftpStatus,
    /// The subsystem's standard error before it ends.
    SftpStderr,
}

/// The server's text, with bytes of every kind: ESC sequences, C1 controls in UTF-8 and as single bytes, DEL, line
/// ends, the bidirectional override of "Trojan Source", and the word that identifies it.
const WORDS: &[u8] = b"\x1b]0;owned\x07\x1b[2J\xc2\x9b31m\x9b\x7f\r\x08\0\xe2\x80\xae steered \xff";

/// The same, for names, which can only have US-ASCII.
const NAME: &str = "\x1b]0;owned\x07\x1b[2J\x7f\r\x08steered";

/// The identification of a server that is not sshd.
const OTHER: &str = "SSH-2.0-other_1.0";

impl Steering {
    /// All of them.
    pub const ALL: &[Steering] = &[
        Steering::Greeting,
        Steering::OldIdentification,
        Steering::Identification,
        Steering::KexNames,
        Steering::CipherNames,
        Steering::DisconnectInKeyExchange,
        Steering::Service,
        Steering::Banner,
        Steering::Methods,
        Steering::Questions,
        Steering::OpenFailure,
        Steering::ExitSignal,
        Steering::Disconnect,
        Steering::SftpText,
        Steering::SftpStatus,
        Steering::SftpStderr,
    ];

    /// A part of the server's text, which is in the output of any client that displays some of it.
    pub const WORD: &str = "steered";

    /// Returns true if the text is only sent when something is copied.
    #[must_use]
    pub fn is_about_files(self) -> bool {
        use Steering as S;
        matches!(self, S::SftpText | S::SftpStatus | S::SftpStderr)
    }

    /// Sends the text to one client, once.
    pub(super) async fn play(self, mut wire: Wire) -> io::Result<()> {
        // A client that gives up resets the connection, so that a write fails. That is correct behaviour.
        if self.act(&mut wire).await.is_ok() {
            wire.finish().await?;
            wire.until_closed().await;
        }
        Ok(())
    }

    async fn act(self, wire: &mut Wire) -> io::Result<()> {
        use Steering as S;
        let line = |before: &[u8]| [before, WORDS, b"\r\n"].concat();
        match self {
            S::Greeting => return wire.send_raw(&line(b"")).await,
            S::OldIdentification => return wire.send_raw(format!("SSH-1.5-{NAME}\r\n").as_bytes()).await,
            S::KexNames | S::CipherNames | S::DisconnectInKeyExchange => {
                wire.exchange_banners(BANNER).await?;
            }
            // To such a server, the client sends nothing ahead of an answer, and opens no session that nobody asked
            // for.
            S::Identification => wire.exchange_banners(&format!("{OTHER} {NAME}")).await?,
            _ => wire.exchange_banners(OTHER).await?,
        }
        let mut init = KexInit::default();
        match self {
            S::KexNames => NAME.clone_into(&mut init.kex),
            S::CipherNames => NAME.clone_into(&mut init.cipher),
            S::DisconnectInKeyExchange => return wire.send(disconnect()).await,
            _ => {}
        }
        let exchange = KeyExchange {
            init,
            ..KeyExchange::default()
        };
        wire.exchange_keys(&exchange).await?;
        self.log_in(wire).await?;
        if self == S::OpenFailure {
            let open = wire.expect(number::CHANNEL_OPEN).await?;
            let mut fields = Fields::parse(&open);
            let (_kind, channel) = (fields.text()?, fields.uint32()?);
            let failure = Payload::message(number::CHANNEL_OPEN_FAILURE)
                .uint32(channel)
                .uint32(2);
            return wire.send(failure.string(WORDS).string("")).await;
        }
        let session = wire.open_session().await?;
        self.run(wire, &session).await
    }

    async fn log_in(self, wire: &mut Wire) -> io::Result<()> {
        let text = |number| Payload::message(number);
        let named = match self {
            Steering::Methods => NAME,
            Steering::Questions => "keyboard-interactive",
            Steering::Service => {
                wire.expect(number::SERVICE_REQUEST).await?;
                return wire.send(text(number::SERVICE_ACCEPT).string(WORDS)).await;
            }
            Steering::Banner => {
                let debug = text(number::DEBUG).boolean(true).string(WORDS).string("");
                wire.send(debug).await?;
                let service = wire.expect(number::SERVICE_REQUEST).await?;
                let name = Fields::parse(&service).text()?;
                wire.send(text(number::SERVICE_ACCEPT).string(name)).await?;
                wire.send(text(number::USERAUTH_BANNER).string(WORDS).string(""))
                    .await?;
                wire.expect(number::USERAUTH_REQUEST).await?;
                return wire.send(text(number::USERAUTH_SUCCESS)).await;
            }
            _ => return wire.authenticate().await.map(drop),
        };
        let service = wire.expect(number::SERVICE_REQUEST).await?;
        let name = Fields::parse(&service).text()?;
        wire.send(text(number::SERVICE_ACCEPT).string(name)).await?;
        loop {
            let request = wire.expect(number::USERAUTH_REQUEST).await?;
            let mut fields = Fields::parse(&request);
            let (_user, _service, method) = (fields.text()?, fields.text()?, fields.text()?);
            if method != "keyboard-interactive" {
                let failure = text(number::USERAUTH_FAILURE).string(named).boolean(false);
                wire.send(failure).await?;
                continue;
            }
            let asked = text(number::USERAUTH_INFO_REQUEST).string(WORDS).string(WORDS);
            let asked = asked.string("").uint32(1).string(WORDS).boolean(false);
            wire.send(asked).await?;
            wire.expect(number::USERAUTH_INFO_RESPONSE).await?;
            return wire.send(text(number::USERAUTH_SUCCESS)).await;
        }
    }

    /// Plays the session after its command was accepted.
    async fn run(self, wire: &mut Wire, session: &Session) -> io::Result<()> {
        use Steering as S;
        let channel = session.client_channel;
        let data = |bytes: &[u8]| {
            Payload::message(number::CHANNEL_DATA)
                .uint32(channel)
                .string(bytes)
        };
        match self {
            S::Disconnect => return wire.send(disconnect()).await,
            S::SftpText => wire.send(data(WORDS)).await?,
            S::SftpStderr => {
                let stderr = Payload::message(number::CHANNEL_EXTENDED_DATA).uint32(channel);
                wire.send(stderr.uint32(1).string(WORDS)).await?;
            }
            // A command does not use SFTP.
            S::SftpStatus if session.request == "subsystem" => {
                // SSH_FXP_VERSION 3, without extensions; then a failure for every request.
                wire.send(data(&[0, 0, 0, 5, 2, 0, 0, 0, 3])).await?;
                loop {
                    let message = wire.expect(number::CHANNEL_DATA).await?;
                    let mut fields = Fields::parse(&message);
                    let (_channel, mut packets) = (fields.uint32()?, fields.string()?);
                    while let [a, b, c, d, rest @ ..] = packets {
                        let len = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
                        let Some((packet, after)) = rest.split_at_checked(len) else {
                            break;
                        };
                        packets = after;
                        // SSH_FXP_INIT has no request number.
                        if let [kind, a, b, c, d, ..] = packet
                            && *kind != 1
                        {
                            let status = Payload::message(101).raw(&[*a, *b, *c, *d]);
                            let status = status.uint32(4).string(WORDS).string("");
                            wire.send(data(Payload::empty().string(status).as_ref())).await?;
                        }
                    }
                }
            }
            _ => {}
        }
        let request = |name: &str| {
            Payload::message(number::CHANNEL_REQUEST)
                .uint32(channel)
                .string(name)
                .boolean(false)
        };
        let end = match self {
            S::ExitSignal => request("exit-signal")
                .string(WORDS)
                .boolean(false)
                .string(WORDS)
                .string(""),
            _ => request("exit-status").uint32(0),
        };
        let close = Payload::message(number::CHANNEL_CLOSE).uint32(channel);
        wire.send_together(&[end, close]).await
    }
}

fn disconnect() -> Payload {
    let reason = Payload::message(number::DISCONNECT).uint32(2);
    reason.string(WORDS).string("")
}
