//! The messages of OpenSSH's mux protocol, named as in its PROTOCOL.mux.

use bytes::Bytes;
use trunkline_proto::wire::{Reader, WireError, Writer};

use crate::protocol::ForwardKind;

/// The protocol's version (PROTOCOL.mux section 1), which OpenSSH has spoken since 5.4.
pub(super) const VERSION: u32 = 4;

/// The longest packet that is read, as in OpenSSH's master (channels.c, `read_mux`): a command line and an environment.
/// Linux would allow 2 MiB.
pub(super) const MAX_PACKET: usize = 256 * 1024;

/// The most variables of one session (mux.c, `MUX_MAX_ENV_VARS`).
const MAX_ENV: usize = 4096;

/// The port that marks its address as a socket's path (PROTOCOL.mux section 6: "(unsigned int) -2").
const PORT_STREAMLOCAL: u32 = 0xffff_fffe;

/// The escape character that means none (section 2).
const NO_ESCAPE: u32 = 0xffff_ffff;

const MSG_HELLO: u32 = 0x0000_0001;
const C_NEW_SESSION: u32 = 0x1000_0002;
const C_ALIVE_CHECK: u32 = 0x1000_0004;
const C_TERMINATE: u32 = 0x1000_0005;
const C_OPEN_FWD: u32 = 0x1000_0006;
const C_CLOSE_FWD: u32 = 0x1000_0007;
const C_NEW_STDIO_FWD: u32 = 0x1000_0008;
const C_STOP_LISTENING: u32 = 0x1000_0009;
const C_PROXY: u32 = 0x1000_000f;
const C_EXT_INFO: u32 = 0x2000_0001;
const S_OK: u32 = 0x8000_0001;
const S_PERMISSION_DENIED: u32 = 0x8000_0002;
const S_FAILURE: u32 = 0x8000_0003;
const S_EXIT_MESSAGE: u32 = 0x8000_0004;
const S_ALIVE: u32 = 0x8000_0005;
const S_SESSION_OPENED: u32 = 0x8000_0006;
const S_REMOTE_PORT: u32 = 0x8000_0007;
const S_TTY_ALLOC_FAIL: u32 = 0x8000_0008;
const S_PROXY: u32 = 0x8000_000f;
const S_EXT_INFO: u32 = 0x9000_0001;

const FWD_LOCAL: u32 = 1;
const FWD_REMOTE: u32 = 2;
const FWD_DYNAMIC: u32 = 3;

/// The reason why a packet is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("{0} is not a port")]
    Port(u32),
}

/// A client's request, without its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    /// The first message; has no number. No extension after the version is supported.
    Hello { version: u32 },
    /// Asks for a session on three descriptors, which follow.
    NewSession(Box<NewSession>),
    /// Asks for the process id.
    AliveCheck,
    /// Closes the connection and everything that runs on it.
    Terminate,
    /// Opens a forwarding.
    OpenForward(Forward),
    /// Ends a forwarding.
    CloseForward(Forward),
    /// Asks for a tunnel on two descriptors, which follow.
    NewStdioForward { target: Address },
    /// Asks to accept no more clients.
    StopListening,
    /// Switches to the connection protocol's messages.
    Proxy,
    /// Asks for information about this (OpenSSH 10.3's `info` extension; mux.c, `mux_client_request_info`).
    Info(String),
    /// A newer request.
    Unknown,
}

/// `MUX_C_NEW_SESSION` (section 2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NewSession {
    pub(super) tty: bool,
    pub(super) x11: bool,
    pub(super) agent: bool,
    pub(super) subsystem: bool,
    pub(super) escape: Option<u8>,
    pub(super) term: String,
    /// Empty for the login shell.
    pub(super) command: Vec<u8>,
    /// The variables of SendEnv and SetEnv, chosen by the client.
    pub(super) env: Vec<(String, Vec<u8>)>,
}

/// `MUX_C_OPEN_FWD` and `MUX_C_CLOSE_FWD` (sections 6 and 7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Forward {
    pub(super) kind: ForwardKind,
    pub(super) listen: Address,
    pub(super) connect: Address,
}

/// An address to listen on or to connect to. The host is empty if none was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    Tcp { host: String, port: u16 },
    Socket(String),
}

impl Request {
    /// Decodes a packet without its length. Returns the request's number (0 for a hello) and the request.
    ///
    /// # Errors
    /// The packet ends too early, or has an invalid field.
    pub(super) fn decode(packet: &[u8]) -> Result<(u32, Self), Malformed> {
        let mut reader = Reader::new(packet);
        let kind = reader.u32()?;
        if kind == MSG_HELLO {
            let version = reader.u32()?;
            while !reader.is_empty() {
                let (_name, _value) = (reader.string()?, reader.string()?);
            }
            return Ok((0, Self::Hello { version }));
        }
        let id = reader.u32()?;
        let request = match kind {
            C_NEW_SESSION => Self::NewSession(Box::new(NewSession::decode(&mut reader)?)),
            C_ALIVE_CHECK => Self::AliveCheck,
            C_TERMINATE => Self::Terminate,
            C_OPEN_FWD => Forward::decode(&mut reader)?.map_or(Self::Unknown, Self::OpenForward),
            C_CLOSE_FWD => Forward::decode(&mut reader)?.map_or(Self::Unknown, Self::CloseForward),
            C_NEW_STDIO_FWD => {
                let _reserved = reader.string()?;
                let target = Address::decode(&mut reader)?;
                Self::NewStdioForward { target }
            }
            C_STOP_LISTENING => Self::StopListening,
            C_PROXY => Self::Proxy,
            C_EXT_INFO => Self::Info(reader.utf8()?.to_owned()),
            _ => Self::Unknown,
        };
        Ok((id, request))
    }
}

impl NewSession {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let _reserved = reader.string()?;
        // The document says bool, the programs send uint32.
        let mut flag = || Ok::<_, WireError>(reader.u32()? != 0);
        let (tty, x11, agent, subsystem) = (flag()?, flag()?, flag()?, flag()?);
        let escape = match reader.u32()? {
            NO_ESCAPE => None,
            character => u8::try_from(character).ok(),
        };
        let term = String::from_utf8_lossy(reader.string()?).into_owned();
        let command = reader.string()?.to_vec();
        let mut env = Vec::new();
        while !reader.is_empty() {
            let variable = reader.string()?;
            let Some(equals) = variable.iter().position(|byte| *byte == b'=') else {
                continue;
            };
            // A name that is not UTF-8 cannot match a server's AcceptEnv.
            if let Ok(name) = str::from_utf8(&variable[..equals])
                && !name.is_empty()
                && env.len() < MAX_ENV
            {
                env.push((name.to_owned(), variable[equals + 1..].to_vec()));
            }
        }
        Ok(Self {
            tty,
            x11,
            agent,
            subsystem,
            escape,
            term,
            command,
            env,
        })
    }
}

impl Forward {
    /// Returns `None` for an unknown kind of forwarding.
    fn decode(reader: &mut Reader<'_>) -> Result<Option<Self>, Malformed> {
        let kind = match reader.u32()? {
            FWD_LOCAL => ForwardKind::Local,
            FWD_REMOTE => ForwardKind::Remote,
            FWD_DYNAMIC => ForwardKind::Dynamic,
            _ => return Ok(None),
        };
        Ok(Some(Self {
            kind,
            listen: Address::decode(reader)?,
            connect: Address::decode(reader)?,
        }))
    }
}

impl std::fmt::Display for Forward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = self.kind.option();
        match self.kind {
            ForwardKind::Dynamic => write!(f, "{kind} {}", self.listen),
            _ => write!(f, "{kind} {} to {}", self.listen, self.connect),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Socket(path) => f.write_str(path),
        }
    }
}

impl Address {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let host = reader.utf8()?.to_owned();
        match reader.u32()? {
            PORT_STREAMLOCAL => Ok(Self::Socket(host)),
            port => match u16::try_from(port) {
                Ok(port) => Ok(Self::Tcp { host, port }),
                Err(_) => Err(Malformed::Port(port)),
            },
        }
    }
}

/// A reply to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    Hello,
    Ok,
    /// The user does not allow it. A client that wanted a session then connects by itself.
    PermissionDenied,
    /// It cannot be done, for this reason. A client that wanted a session then connects by itself.
    Failure(String),
    Alive {
        pid: u32,
    },
    SessionOpened,
    RemotePort(u16),
    /// The connection protocol follows.
    Proxy,
    /// Text for display, with a terminal's line ends; `None` if there is nothing by that name.
    Info(Option<String>),
    /// About a session; does not answer a request.
    TtyAllocFail,
    /// About a session; does not answer a request.
    Exit(u32),
}

impl Reply {
    /// Encodes the answer to request `id`, with its length.
    pub(super) fn encode(&self, id: u32) -> Bytes {
        let packet = |kind: u32| Writer::new().u32(kind);
        let body = match self {
            Self::Hello => packet(MSG_HELLO).u32(VERSION).string("info").string("0"),
            Self::Ok => packet(S_OK).u32(id),
            // mux.c's words.
            Self::PermissionDenied => packet(S_PERMISSION_DENIED).u32(id).string("Permission denied"),
            Self::Failure(reason) => packet(S_FAILURE).u32(id).string(reason),
            Self::Alive { pid } => packet(S_ALIVE).u32(id).u32(*pid),
            Self::SessionOpened => packet(S_SESSION_OPENED).u32(id).u32(SESSION),
            Self::RemotePort(port) => packet(S_REMOTE_PORT).u32(id).u32(u32::from(*port)),
            Self::Proxy => packet(S_PROXY).u32(id),
            Self::Info(Some(text)) => packet(S_EXT_INFO).u32(id).u32(1).string(text),
            // mux.c's words.
            Self::Info(None) => {
                let info = packet(S_EXT_INFO).u32(id).u32(0);
                info.string("info request type not supported")
            }
            Self::TtyAllocFail => packet(S_TTY_ALLOC_FAIL).u32(SESSION),
            Self::Exit(status) => packet(S_EXIT_MESSAGE).u32(SESSION).u32(*status),
        };
        Writer::new().string(body.finish()).finish()
    }
}

/// The number of a client's session. A client has at most one, and only it uses the number.
const SESSION: u32 = 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packet(kind: u32) -> Writer {
        Writer::new().u32(kind).u32(7)
    }

    fn decode(packet: Writer) -> Result<Request, Malformed> {
        Request::decode(&packet.finish()).map(|(id, request)| {
            assert_eq!(id, 7);
            request
        })
    }

    #[test]
    fn a_session_is_read_as_mux_c_writes_it() {
        let flags = packet(C_NEW_SESSION).string("").u32(1).u32(0).u32(0).u32(1);
        let rest = flags.u32(u32::from(b'~')).string("xterm").string("sftp");
        let whole = rest.string("LANG=C").string("A=b=c").string("=x").string("none");
        let Request::NewSession(session) = decode(whole).unwrap() else {
            panic!("another request");
        };
        assert!(session.tty && session.subsystem && !session.x11 && !session.agent);
        assert_eq!((session.escape, session.term.as_str()), (Some(b'~'), "xterm"));
        assert_eq!(session.command, b"sftp");
        let env =
            [("LANG", "C"), ("A", "b=c")].map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()));
        assert_eq!(session.env, env);
    }

    #[test]
    fn a_port_of_minus_two_is_a_socket_and_one_above_65535_nonsense() {
        let forward = |port| {
            let listen = packet(C_OPEN_FWD)
                .u32(FWD_LOCAL)
                .string("/l")
                .u32(PORT_STREAMLOCAL);
            decode(listen.string("db").u32(port))
        };
        let wanted = Forward {
            kind: ForwardKind::Local,
            listen: Address::Socket("/l".into()),
            connect: Address::Tcp {
                host: "db".into(),
                port: 5432,
            },
        };
        assert_eq!(forward(5432).unwrap(), Request::OpenForward(wanted));
        assert_eq!(forward(65536).unwrap_err(), Malformed::Port(65536));
    }

    /// Returns these bytes after their length.
    fn packet_of(body: &[u8]) -> Bytes {
        Writer::new().string(body).finish()
    }

    #[test]
    fn replies_are_packets_with_the_requests_number() {
        let failure = Reply::Failure("no".into()).encode(9);
        let expected = [0, 0, 0, 14, 0x80, 0, 0, 3, 0, 0, 0, 9, 0, 0, 0, 2, b'n', b'o'];
        assert_eq!(&failure[..], expected);
        let hello = packet_of(&[
            0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 4, b'i', b'n', b'f', b'o', 0, 0, 0, 1, b'0',
        ]);
        assert_eq!(Reply::Hello.encode(0), hello);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn nothing_that_a_client_sends_panics(
            kind in prop::sample::select(vec![MSG_HELLO, C_NEW_SESSION, C_OPEN_FWD, C_CLOSE_FWD, C_NEW_STDIO_FWD, 0]),
            body in prop::collection::vec(any::<u8>(), 0..120),
        ) {
            let _ = Request::decode(&[&kind.to_be_bytes()[..], &body].concat());
        }
    }
}
