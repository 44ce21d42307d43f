//! The server's side of SOCKS, without I/O: SOCKS 4, 4a, and 5 without authentication (RFC 1928). The only command is
//! CONNECT, as in OpenSSH (channels.c, `channel_decode_socks4` and `channel_decode_socks5`).

use bytes::{Buf, Bytes, BytesMut};

/// The most bytes that a dialogue leaves unread: more than any incomplete greeting or request.
///
/// The longest are a SOCKS 4a request (8 bytes, a user and a name of up to 255 with their ends) and a SOCKS 5 request
/// for a name (262 bytes).
pub(crate) const MAX_PENDING: usize = 8 + 256 + 256;

/// The longest user name or host name.
const MAX_NAME: usize = 255;

/// One client's dialogue, up to its request.
#[derive(Debug, Default)]
pub(crate) struct Dialogue {
    /// SOCKS 5: the client knows that it need not authenticate.
    greeted: bool,
}

/// The next step of a dialogue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Send this, and read on.
    Answer(Bytes),
    /// The client's target. The rest of the input belongs to that connection.
    Connect(Connect),
}

/// A client's request, to be answered once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Connect {
    version: Version,
    /// A name for the far side to look up, or an address.
    pub(crate) host: String,
    pub(crate) port: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    V4,
    V5,
}

/// The answer to a request, in SOCKS 5's terms, of which SOCKS 4 knows two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    Granted,
    Failed,
    NotAllowed,
    Refused,
}

impl Dialogue {
    /// Consumes one complete message from `input`; returns `None` if there is none yet.
    ///
    /// # Errors
    /// The client cannot be served; [`SocksError::answer`] is the reply to it.
    pub(crate) fn handle(&mut self, input: &mut BytesMut) -> Result<Option<Turn>, SocksError> {
        match input.first() {
            None => Ok(None),
            Some(4) if !self.greeted => handle_v4(input),
            Some(5) if !self.greeted => self.handle_greeting(input),
            Some(5) => handle_v5(input),
            Some(other) => Err(SocksError::Version(*other)),
        }
    }

    /// Handles the greeting of RFC 1928 section 3: the version, a count, and as many methods.
    fn handle_greeting(&mut self, input: &mut BytesMut) -> Result<Option<Turn>, SocksError> {
        const NO_AUTHENTICATION: u8 = 0;
        let Some(&count) = input.get(1) else {
            return Ok(None);
        };
        let Some(methods) = input.get(2..2 + usize::from(count)) else {
            return Ok(None);
        };
        if !methods.contains(&NO_AUTHENTICATION) {
            return Err(SocksError::Authentication);
        }
        input.advance(2 + usize::from(count));
        self.greeted = true;
        Ok(Some(Turn::Answer(Bytes::from_static(&[5, NO_AUTHENTICATION]))))
    }
}

const CONNECT: u8 = 1;

/// Handles SOCKS 4: version, command, port, address, and the user's name up to a zero. In 4a, if the address is 0.0.0.x
/// with x not 0, a host name follows in the same form.
fn handle_v4(input: &mut BytesMut) -> Result<Option<Turn>, SocksError> {
    let Some(head) = input.first_chunk::<8>() else {
        return Ok(None);
    };
    let [_, command, port @ .., a, b, c, d] = *head;
    if command != CONNECT {
        return Err(SocksError::Command {
            version: Version::V4,
            command,
        });
    }
    let Some((_user, behind)) = split_at_zero(&input[8..])? else {
        return Ok(None);
    };
    let (host, behind) = match [a, b, c, d] {
        [0, 0, 0, last] if last != 0 => match split_at_zero(behind)? {
            None => return Ok(None),
            Some((host, behind)) => (name(Version::V4, host)?, behind),
        },
        address => (std::net::Ipv4Addr::from(address).to_string(), behind),
    };
    let read = input.len() - behind.len();
    input.advance(read);
    Ok(Some(Turn::Connect(Connect {
        version: Version::V4,
        host,
        port: u16::from_be_bytes(port),
    })))
}

/// The bytes before a zero, and those after it.
type Split<'a> = (&'a [u8], &'a [u8]);

/// Splits at the first zero; returns `None` if it has not arrived yet.
fn split_at_zero(input: &[u8]) -> Result<Option<Split<'_>>, SocksError> {
    match input.iter().take(MAX_NAME + 1).position(|byte| *byte == 0) {
        Some(end) => Ok(Some((&input[..end], &input[end + 1..]))),
        None if input.len() > MAX_NAME => Err(SocksError::TooLong),
        None => Ok(None),
    }
}

/// Handles RFC 1928 section 4: version, command, a zero, the address's type, the address, the port.
fn handle_v5(input: &mut BytesMut) -> Result<Option<Turn>, SocksError> {
    let Some(&[_, command, _, kind]) = input.first_chunk::<4>() else {
        return Ok(None);
    };
    if command != CONNECT {
        return Err(SocksError::Command {
            version: Version::V5,
            command,
        });
    }
    let address = &input[4..];
    let parsed = match kind {
        1 => address
            .first_chunk::<4>()
            .map(|address| (std::net::Ipv4Addr::from(*address).to_string(), 4)),
        4 => address
            .first_chunk::<16>()
            .map(|address| (std::net::Ipv6Addr::from(*address).to_string(), 16)),
        3 => match address.split_first() {
            None => None,
            Some((&len, rest)) => match rest.get(..usize::from(len)) {
                None => None,
                Some(host) => Some((name(Version::V5, host)?, 1 + usize::from(len))),
            },
        },
        kind => return Err(SocksError::AddressType(kind)),
    };
    let Some((host, len)) = parsed else {
        return Ok(None);
    };
    let Some(port) = address[len..].first_chunk::<2>() else {
        return Ok(None);
    };
    let port = u16::from_be_bytes(*port);
    input.advance(4 + len + 2);
    Ok(Some(Turn::Connect(Connect {
        version: Version::V5,
        host,
        port,
    })))
}

/// Checks a host name for the log and the server: text without control characters.
fn name(version: Version, bytes: &[u8]) -> Result<String, SocksError> {
    match str::from_utf8(bytes) {
        Ok(name) if !name.is_empty() && !name.contains(char::is_control) => Ok(name.to_owned()),
        _ => Err(SocksError::Name { version }),
    }
}

impl Connect {
    /// Returns the message for the client.
    pub(crate) fn answer(&self, reply: Reply) -> Bytes {
        answer(
            self.version,
            match (self.version, reply) {
                (Version::V4, Reply::Granted) => 90,
                (Version::V4, _) => 91,
                (Version::V5, Reply::Granted) => 0,
                (Version::V5, Reply::Failed) => 1,
                (Version::V5, Reply::NotAllowed) => 2,
                (Version::V5, Reply::Refused) => 5,
            },
        )
    }
}

/// Encodes an answer. The bound address is the far side's and unknown here: zeros, as OpenSSH sends.
fn answer(version: Version, code: u8) -> Bytes {
    match version {
        Version::V4 => Bytes::copy_from_slice(&[0, code, 0, 0, 0, 0, 0, 0]),
        Version::V5 => Bytes::copy_from_slice(&[5, code, 0, 1, 0, 0, 0, 0, 0, 0]),
    }
}

/// The reason why a client cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SocksError {
    #[error("it does not speak SOCKS (its first byte is {0}); point a SOCKS client at this port")]
    Version(u8),
    #[error("it insists on authentication; use SOCKS without user and password")]
    Authentication,
    #[error("it asks for command {command}, and only CONNECT is served")]
    Command { version: Version, command: u8 },
    #[error("it names an address of the unknown type {0}")]
    AddressType(u8),
    #[error("it sends an invalid host name")]
    Name { version: Version },
    #[error("a name it sends is longer than {MAX_NAME} bytes")]
    TooLong,
}

impl SocksError {
    /// Returns the answer for the client before closing; `None` if it would not understand.
    pub(crate) fn answer(&self) -> Option<Bytes> {
        match self {
            Self::Version(_) => None,
            Self::Authentication => Some(Bytes::from_static(&[5, 0xff])),
            Self::Command {
                version: Version::V5, ..
            } => Some(answer(Version::V5, 7)),
            Self::AddressType(_) => Some(answer(Version::V5, 8)),
            Self::Name { version: Version::V5 } => Some(answer(Version::V5, 1)),
            Self::Command {
                version: Version::V4, ..
            }
            | Self::Name { version: Version::V4 }
            | Self::TooLong => Some(answer(Version::V4, 91)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a dialogue's turns for `input` in pieces that end at `cuts`.
    fn play(input: &[u8], cuts: &[usize]) -> (Vec<Turn>, Option<SocksError>, Vec<u8>) {
        let (mut dialogue, mut pending, mut turns) = (Dialogue::default(), BytesMut::new(), Vec::new());
        let mut at = 0;
        for end in cuts.iter().copied().chain([input.len()]) {
            pending.extend_from_slice(&input[at..end.max(at)]);
            at = at.max(end);
            loop {
                match dialogue.handle(&mut pending) {
                    Err(error) => return (turns, Some(error), Vec::new()),
                    Ok(None) => {
                        assert!(
                            pending.len() <= MAX_PENDING,
                            "a dialogue asks for more than it may need"
                        );
                        break;
                    }
                    Ok(Some(turn @ Turn::Connect(_))) => {
                        turns.push(turn);
                        let mut left = pending.to_vec();
                        left.extend_from_slice(&input[at..]);
                        return (turns, None, left);
                    }
                    Ok(Some(turn)) => turns.push(turn),
                }
            }
        }
        (turns, None, pending.to_vec())
    }

    fn destination(turns: &[Turn]) -> (String, u16) {
        match turns.last() {
            Some(Turn::Connect(connect)) => (connect.host.clone(), connect.port),
            other => panic!("no request: {other:?}"),
        }
    }

    #[test]
    fn each_form_of_address_is_understood() {
        let v4 = b"\x04\x01\x00\x50\x0a\x00\x00\x07me\0more";
        let (turns, _, left) = play(v4, &[]);
        assert_eq!(
            (destination(&turns), left.as_slice()),
            (("10.0.0.7".into(), 80), b"more".as_slice())
        );
        let v4a = b"\x04\x01\x15\x38\x00\x00\x00\x01\0db.internal\0";
        assert_eq!(destination(&play(v4a, &[]).0), ("db.internal".into(), 5432));
        let v5 = b"\x05\x02\x02\x00\x05\x01\x00\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x16";
        let (turns, ..) = play(v5, &[]);
        assert_eq!(turns[0], Turn::Answer(Bytes::from_static(&[5, 0])));
        assert_eq!(destination(&turns), ("::1".into(), 22));
        let v5 = b"\x05\x01\x00\x05\x01\x00\x03\x02db\x00\x16";
        assert_eq!(destination(&play(v5, &[]).0), ("db".into(), 22));
    }

    #[test]
    fn what_cannot_be_served_is_told_so_in_its_own_version() {
        let refused = |input: &[u8]| play(input, &[]).1.unwrap().answer();
        assert_eq!(refused(b"GET / HTTP/1.1"), None);
        assert_eq!(refused(b"\x05\x01\x02"), Some(Bytes::from_static(&[5, 0xff])));
        assert_eq!(refused(b"\x05\x01\x00\x05\x02\x00\x01").unwrap()[..2], [5, 7]);
        assert_eq!(refused(b"\x05\x01\x00\x05\x01\x00\x09").unwrap()[..2], [5, 8]);
        assert_eq!(
            refused(b"\x05\x01\x00\x05\x01\x00\x03\x00\x00\x16").unwrap()[..2],
            [5, 1]
        );
        assert_eq!(
            refused(b"\x04\x02\x00\x50\x0a\x00\x00\x07\0").unwrap()[..2],
            [0, 91]
        );
        assert_eq!(
            refused(&[&b"\x04\x01\x00\x50\x0a\x00\x00\x07"[..], &[b'x'; 300]].concat()).unwrap()[..2],
            [0, 91]
        );
    }

    proptest! {
        #[test]
        fn where_the_bytes_are_cut_changes_nothing(
            head in prop::sample::select(vec![
                &b""[..], b"\x04\x01", b"\x04\x01\x00\x50\x00\x00\x00\x01", b"\x05\x01\x00", b"\x05\x01\x00\x05\x01\x00\x03",
            ]),
            tail in prop::collection::vec(any::<u8>(), 0..700),
            cuts in prop::collection::vec(0usize..700, 0..6),
        ) {
            let input = [head, &tail].concat();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(input.len())).collect();
            cuts.sort_unstable();
            let (turns, error, left) = play(&input, &cuts);
            let (whole_turns, whole_error, whole_left) = play(&input, &[]);
            prop_assert_eq!(turns, whole_turns);
            prop_assert_eq!(error, whole_error);
            prop_assert_eq!(left, whole_left);
        }

        #[test]
        fn a_name_arrives_as_it_was_sent(host in "[a-z0-9.-]{1,255}", port: u16) {
            let mut v4 = vec![4, 1];
            v4.extend_from_slice(&port.to_be_bytes());
            v4.extend_from_slice(b"\0\0\0\x07user\0");
            v4.extend_from_slice(host.as_bytes());
            v4.push(0);
            prop_assert_eq!(destination(&play(&v4, &[]).0), (host.clone(), port));
            let mut v5 = b"\x05\x01\x00\x05\x01\x00\x03".to_vec();
            v5.push(host.len() as u8);
            v5.extend_from_slice(host.as_bytes());
            v5.extend_from_slice(&port.to_be_bytes());
            prop_assert_eq!(destination(&play(&v5, &[]).0), (host, port));
        }
    }
}
