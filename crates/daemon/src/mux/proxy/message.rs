//! The connection protocol's messages (RFC 4254) to and from a client in proxy mode: unencrypted, without padding or
//! sequence numbers (PROTOCOL.mux section 9).

use std::path::PathBuf;

use bytes::{BufMut as _, Bytes, BytesMut};
use trunkline::ChannelRequest;
use trunkline::config::Listen;
use trunkline_proto::wire::{Reader, WireError, Writer};
use trunkline_proto::{OpenFailure, Stream};

// RFC 4253 section 12.
const DISCONNECT: u8 = 1;
const IGNORE: u8 = 2;
const UNIMPLEMENTED: u8 = 3;
const DEBUG: u8 = 4;
// RFC 4254 section 9.
const GLOBAL_REQUEST: u8 = 80;
const REQUEST_SUCCESS: u8 = 81;
const REQUEST_FAILURE: u8 = 82;
const CHANNEL_OPEN: u8 = 90;
const CHANNEL_OPEN_CONFIRMATION: u8 = 91;
const CHANNEL_OPEN_FAILURE: u8 = 92;
const CHANNEL_WINDOW_ADJUST: u8 = 93;
const CHANNEL_DATA: u8 = 94;
const CHANNEL_EXTENDED_DATA: u8 = 95;
const CHANNEL_EOF: u8 = 96;
const CHANNEL_CLOSE: u8 = 97;
const CHANNEL_REQUEST: u8 = 98;
const CHANNEL_SUCCESS: u8 = 99;
const CHANNEL_FAILURE: u8 = 100;

/// SSH_EXTENDED_DATA_STDERR (RFC 4254 section 5.2).
const EXTENDED_DATA_STDERR: u32 = 1;

/// The reason why a message is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::mux) enum Malformed {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("message {0} is not one that a client may send in proxy mode")]
    Unexpected(u8),
}

/// A client's message. Channel numbers are ours, except for the sender's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    Global {
        request: Global,
        wants_reply: bool,
    },
    Open {
        kind: Open,
        peer: Peer,
    },
    Confirmation {
        channel: u32,
        peer: Peer,
    },
    OpenFailure {
        channel: u32,
    },
    WindowAdjust {
        channel: u32,
        bytes: u32,
    },
    Data {
        channel: u32,
        data: Bytes,
    },
    /// Never used: a client's extended data has no reader.
    ExtendedData {
        channel: u32,
        len: usize,
    },
    Eof {
        channel: u32,
    },
    Close {
        channel: u32,
    },
    Request {
        channel: u32,
        request: ProxiedRequest,
    },
    Disconnect,
    /// A message without effect here.
    Ignored,
}

/// The client's end of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) channel: u32,
    /// The initial window.
    pub(super) window: u32,
    /// The most data in one message.
    pub(super) max_data: u32,
}

/// A channel that a client opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Open {
    Session,
    Stream(Target),
    Unknown,
}

/// The target that the server is to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// `direct-tcpip`
    Tcp {
        host: String,
        port: u32,
        originator: (String, u32),
    },
    /// `direct-streamlocal@openssh.com`
    Socket(String),
}

/// A request that is not about a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Global {
    /// `tcpip-forward` and `streamlocal-forward@openssh.com`
    Listen(Listen),
    /// `cancel-tcpip-forward` and `cancel-streamlocal-forward@openssh.com`
    Cancel(Listen),
    /// `no-more-sessions@openssh.com`
    NoMoreSessions,
    Unknown,
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            Self::Socket(path) => f.write_str(path),
        }
    }
}

/// A client's channel request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProxiedRequest {
    pub(super) wants_reply: bool,
    /// `None` for requests after which a server would open channels: to an agent or an X11 display.
    pub(super) asked: Option<ChannelRequest>,
}

impl Message {
    /// Decodes a packet without its length.
    ///
    /// # Errors
    /// The packet ends too early, has an invalid field, or is not a client's.
    pub(super) fn decode(packet: &Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader::new(packet);
        // The padding's length, which OpenSSH's master ignores, too.
        let _padding = reader.u8()?;
        let number = reader.u8()?;
        let mut channel = || reader.u32();
        Ok(match number {
            GLOBAL_REQUEST => Global::decode(&mut reader)?,
            CHANNEL_OPEN => Open::decode(&mut reader)?,
            CHANNEL_OPEN_CONFIRMATION => Self::Confirmation {
                channel: channel()?,
                peer: Peer::decode(&mut reader)?,
            },
            CHANNEL_OPEN_FAILURE => Self::OpenFailure { channel: channel()? },
            CHANNEL_WINDOW_ADJUST => Self::WindowAdjust {
                channel: channel()?,
                bytes: reader.u32()?,
            },
            CHANNEL_DATA => Self::Data {
                channel: channel()?,
                data: packet.slice_ref(reader.string()?),
            },
            CHANNEL_EXTENDED_DATA => {
                let (channel, _kind) = (channel()?, reader.u32()?);
                let len = reader.string()?.len();
                Self::ExtendedData { channel, len }
            }
            CHANNEL_EOF => Self::Eof { channel: channel()? },
            CHANNEL_CLOSE => Self::Close { channel: channel()? },
            CHANNEL_REQUEST => Self::Request {
                channel: channel()?,
                request: ProxiedRequest::decode(packet, &mut reader)?,
            },
            DISCONNECT => Self::Disconnect,
            IGNORE | UNIMPLEMENTED | DEBUG => Self::Ignored,
            number => return Err(Malformed::Unexpected(number)),
        })
    }
}

impl Peer {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            channel: reader.u32()?,
            window: reader.u32()?,
            max_data: reader.u32()?,
        })
    }
}

impl Open {
    /// RFC 4254 sections 5.1 and 7.2; OpenSSH's PROTOCOL section 2.4.
    fn decode(reader: &mut Reader<'_>) -> Result<Message, Malformed> {
        let kind = reader.string()?;
        let peer = Peer::decode(reader)?;
        let kind = match kind {
            b"session" => Self::Session,
            b"direct-tcpip" => Self::Stream(Target::Tcp {
                host: reader.utf8()?.to_owned(),
                port: reader.u32()?,
                originator: (reader.utf8()?.to_owned(), reader.u32()?),
            }),
            b"direct-streamlocal@openssh.com" => Self::Stream(Target::Socket(reader.utf8()?.to_owned())),
            _ => Self::Unknown,
        };
        Ok(Message::Open { kind, peer })
    }
}

impl Global {
    /// RFC 4254 section 7.1; OpenSSH's PROTOCOL sections 2.2 and 2.4.
    fn decode(reader: &mut Reader<'_>) -> Result<Message, Malformed> {
        let name = reader.string()?;
        let wants_reply = reader.bool()?;
        let mut tcp = || {
            let host = Some(reader.utf8()?.to_owned());
            // An invalid port is refused like one that is taken.
            let port = u16::try_from(reader.u32()?).ok();
            Ok::<_, WireError>(port.map(|port| Listen::Tcp { host, port }))
        };
        let request = match name {
            b"tcpip-forward" => tcp()?.map_or(Self::Unknown, Self::Listen),
            b"cancel-tcpip-forward" => tcp()?.map_or(Self::Unknown, Self::Cancel),
            b"streamlocal-forward@openssh.com" => Self::Listen(socket(reader)?),
            b"cancel-streamlocal-forward@openssh.com" => Self::Cancel(socket(reader)?),
            b"no-more-sessions@openssh.com" => Self::NoMoreSessions,
            _ => Self::Unknown,
        };
        Ok(Message::Global { request, wants_reply })
    }
}

fn socket(reader: &mut Reader<'_>) -> Result<Listen, WireError> {
    reader.utf8().map(|path| Listen::Socket(PathBuf::from(path)))
}

impl ProxiedRequest {
    fn decode(packet: &Bytes, reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let name = reader.name()?;
        let wants_reply = reader.bool()?;
        let asked = match name {
            "exec" => Some(ChannelRequest::Exec(reader.string()?.to_vec())),
            "shell" => Some(ChannelRequest::Shell),
            "subsystem" => Some(ChannelRequest::Subsystem(reader.utf8()?.to_owned())),
            "auth-agent-req@openssh.com" | "x11-req" => None,
            _ => Some(ChannelRequest::Other {
                name: name.to_owned(),
                wants_reply,
                body: packet.slice_ref(reader.rest()),
            }),
        };
        Ok(Self { wants_reply, asked })
    }
}

/// Encodes the answer to a global request; that to a listen request carries the port if the server chose it. Others
/// carry a meaningless number, since stock ssh rejects packets under 5 bytes (packet.c, `ssh_packet_read_poll2_mux`).
pub(super) fn global_reply(success: bool, port: Option<u16>) -> Bytes {
    let number = if success { REQUEST_SUCCESS } else { REQUEST_FAILURE };
    packet(message(number).u32(port.unwrap_or_default().into()))
}

/// Offers the client a connection to `listen`, from `originator`.
pub(super) fn open(ours: &Peer, listen: &Listen, originator: (&str, u32)) -> Bytes {
    let open = |kind: &str| {
        let open = message(CHANNEL_OPEN).string(kind).u32(ours.channel);
        open.u32(ours.window).u32(ours.max_data)
    };
    packet(match listen {
        Listen::Tcp { host, port } => open("forwarded-tcpip")
            .string(host.as_deref().unwrap_or_default())
            .u32(u32::from(*port))
            .string(originator.0)
            .u32(originator.1),
        Listen::Socket(path) => open("forwarded-streamlocal@openssh.com")
            .string(path.as_os_str().as_encoded_bytes())
            .string(""),
    })
}

/// Confirms the client's channel `theirs`.
pub(super) fn confirmation(theirs: u32, ours: &Peer) -> Bytes {
    let confirmation = message(CHANNEL_OPEN_CONFIRMATION).u32(theirs).u32(ours.channel);
    packet(confirmation.u32(ours.window).u32(ours.max_data))
}

/// Refuses the client's channel `theirs`.
pub(super) fn open_failure(theirs: u32, reason: OpenFailure, description: &str) -> Bytes {
    let failure = message(CHANNEL_OPEN_FAILURE).u32(theirs).u32(reason.0);
    packet(failure.string(description).string(""))
}

/// Gives the client `bytes` more credit.
pub(super) fn window_adjust(theirs: u32, bytes: u32) -> Bytes {
    packet(message(CHANNEL_WINDOW_ADJUST).u32(theirs).u32(bytes))
}

/// Encodes data of one of a channel's streams.
pub(super) fn data(theirs: u32, stream: Stream, data: &[u8]) -> Bytes {
    // Written by hand: one copy instead of three.
    let extended = stream == Stream::Stderr;
    let head = if extended { 14 } else { 10 };
    let len = |bytes: usize| u32::try_from(bytes).expect("a piece of data is no longer than MAX_DATA");
    let mut packet = BytesMut::with_capacity(4 + head + data.len());
    packet.put_u32(len(head + data.len()));
    packet.put_u8(0);
    packet.put_u8(if extended {
        CHANNEL_EXTENDED_DATA
    } else {
        CHANNEL_DATA
    });
    packet.put_u32(theirs);
    if extended {
        packet.put_u32(EXTENDED_DATA_STDERR);
    }
    packet.put_u32(len(data.len()));
    packet.put_slice(data);
    packet.freeze()
}

/// Encodes the end of data.
pub(super) fn eof(theirs: u32) -> Bytes {
    packet(message(CHANNEL_EOF).u32(theirs))
}

/// Encodes the close of a channel.
pub(super) fn close(theirs: u32) -> Bytes {
    packet(message(CHANNEL_CLOSE).u32(theirs))
}

/// Encodes the answer to a channel request.
pub(super) fn channel_reply(theirs: u32, success: bool) -> Bytes {
    let number = if success { CHANNEL_SUCCESS } else { CHANNEL_FAILURE };
    packet(message(number).u32(theirs))
}

/// Encodes a command's exit status (RFC 4254 section 6.10).
pub(super) fn exit_status(theirs: u32, status: u32) -> Bytes {
    packet(request(theirs, "exit-status").u32(status))
}

/// Encodes the signal that ended a command.
pub(super) fn exit_signal(theirs: u32, signal: &str, core_dumped: bool) -> Bytes {
    let request = request(theirs, "exit-signal").string(signal);
    packet(request.bool(core_dumped).string("").string(""))
}

fn request(theirs: u32, name: &str) -> Writer {
    message(CHANNEL_REQUEST).u32(theirs).string(name).bool(false)
}

fn message(number: u8) -> Writer {
    Writer::new().u8(0).u8(number)
}

fn packet(message: Writer) -> Bytes {
    Writer::new().string(message.finish()).finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_channels_data_is_not_copied() {
        let packet = Writer::new()
            .raw(&[0, CHANNEL_DATA])
            .u32(7)
            .string("data")
            .finish();
        let Ok(Message::Data { channel: 7, data }) = Message::decode(&packet) else {
            panic!("another message");
        };
        assert_eq!(data.as_ptr(), packet[10..].as_ptr());
    }

    #[test]
    fn packets_are_no_shorter_than_stock_ssh_takes() {
        for success in [true, false] {
            assert!(global_reply(success, None).len() - 4 >= 5);
        }
        for packet in [
            eof(0),
            close(0),
            channel_reply(0, true),
            data(0, Stream::Data, b""),
        ] {
            assert!(packet.len() - 4 >= 5);
        }
    }

    #[test]
    fn an_agents_and_a_displays_channels_are_nobodys() {
        for name in ["auth-agent-req@openssh.com", "x11-req"] {
            let packet = Writer::new().raw(&[0, CHANNEL_REQUEST]).u32(1);
            let packet = packet.string(name).bool(true).finish();
            let request = ProxiedRequest {
                wants_reply: true,
                asked: None,
            };
            assert_eq!(
                Message::decode(&packet),
                Ok(Message::Request { channel: 1, request })
            );
        }
    }

    proptest! {
        #[test]
        fn nothing_that_a_client_sends_panics(
            number in prop_oneof![Just(GLOBAL_REQUEST), Just(CHANNEL_OPEN), Just(CHANNEL_REQUEST), any::<u8>()],
            name in prop_oneof![
                Just("session"), Just("direct-tcpip"), Just("direct-streamlocal@openssh.com"), Just("tcpip-forward"),
                Just("cancel-streamlocal-forward@openssh.com"), Just("exec"), Just("env"), Just("\u{e4}"),
            ],
            rest in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let front: &[u8] = if number == CHANNEL_REQUEST { &[0; 4] } else { &[] };
            let named = Writer::new().raw(&[0, number]).raw(front).string(name).raw(&rest).finish();
            let _ = Message::decode(&named);
            let _ = Message::decode(&Bytes::from(rest));
        }

        #[test]
        fn a_message_that_is_cut_off_is_malformed(kept in 0..40_usize) {
            let open = Writer::new().raw(&[0, CHANNEL_OPEN]).string("direct-tcpip").u32(1).u32(2).u32(3);
            let packet = open.string("host").u32(22).string("from").u32(4).finish();
            prop_assert!(kept < packet.len());
            prop_assert!(matches!(Message::decode(&packet.slice(..kept)), Err(Malformed::Wire(_))));
        }
    }
}
