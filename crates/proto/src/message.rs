//! Message numbers and the messages of the transport and connection protocols with a format of their own.
//!
//! Numbers are named as in RFC 4250 section 4.1.2, RFC 8308 and OpenSSH's PROTOCOL.

use bytes::Bytes;
use trunkline_text::Printable;

use crate::wire::{Reader, WireError, Writer};

// RFC 4253 section 12.
pub(crate) const DISCONNECT: u8 = 1;
pub(crate) const IGNORE: u8 = 2;
pub(crate) const UNIMPLEMENTED: u8 = 3;
pub(crate) const DEBUG: u8 = 4;
pub(crate) const SERVICE_REQUEST: u8 = 5;
pub(crate) const SERVICE_ACCEPT: u8 = 6;
// RFC 8308 section 2.3.
pub(crate) const EXT_INFO: u8 = 7;
pub(crate) const KEXINIT: u8 = 20;
pub(crate) const NEWKEYS: u8 = 21;
/// 30 to 49 belong to the key exchange method in use.
pub(crate) const KEX_METHOD_FIRST: u8 = 30;
pub(crate) const KEX_METHOD_LAST: u8 = 49;
// RFC 4252 section 6.
pub(crate) const USERAUTH_REQUEST: u8 = 50;
pub(crate) const USERAUTH_FAILURE: u8 = 51;
pub(crate) const USERAUTH_SUCCESS: u8 = 52;
pub(crate) const USERAUTH_BANNER: u8 = 53;
/// PK_OK (RFC 4252 section 7), PASSWD_CHANGEREQ (section 8) or INFO_REQUEST (RFC 4256), depending on the method.
pub(crate) const USERAUTH_60: u8 = 60;
pub(crate) const USERAUTH_INFO_RESPONSE: u8 = 61;
// RFC 4254 section 9.
pub(crate) const GLOBAL_REQUEST: u8 = 80;
pub(crate) const REQUEST_SUCCESS: u8 = 81;
pub(crate) const REQUEST_FAILURE: u8 = 82;
pub(crate) const CHANNEL_OPEN: u8 = 90;
pub(crate) const CHANNEL_OPEN_CONFIRMATION: u8 = 91;
pub(crate) const CHANNEL_OPEN_FAILURE: u8 = 92;
pub(crate) const CHANNEL_WINDOW_ADJUST: u8 = 93;
pub(crate) const CHANNEL_DATA: u8 = 94;
pub(crate) const CHANNEL_EXTENDED_DATA: u8 = 95;
pub(crate) const CHANNEL_EOF: u8 = 96;
pub(crate) const CHANNEL_CLOSE: u8 = 97;
pub(crate) const CHANNEL_REQUEST: u8 = 98;
pub(crate) const CHANNEL_SUCCESS: u8 = 99;
pub(crate) const CHANNEL_FAILURE: u8 = 100;
// OpenSSH's PROTOCOL, section 1.8 (ping@openssh.com).
pub(crate) const PING: u8 = 192;
pub(crate) const PONG: u8 = 193;

/// The reason for ending a connection (RFC 4253 section 11.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DisconnectReason(pub u32);

impl DisconnectReason {
    /// SSH_DISCONNECT_PROTOCOL_ERROR
    pub const PROTOCOL_ERROR: Self = Self(2);
    /// SSH_DISCONNECT_KEY_EXCHANGE_FAILED
    pub const KEY_EXCHANGE_FAILED: Self = Self(3);
    /// SSH_DISCONNECT_HOST_KEY_NOT_VERIFIABLE
    pub const HOST_KEY_NOT_VERIFIABLE: Self = Self(9);
    /// SSH_DISCONNECT_BY_APPLICATION
    pub const BY_APPLICATION: Self = Self(11);
    /// SSH_DISCONNECT_NO_MORE_AUTH_METHODS_AVAILABLE, which sshd uses for "Too many authentication failures"
    pub const NO_MORE_AUTH_METHODS_AVAILABLE: Self = Self(14);
    /// SSH_DISCONNECT_ILLEGAL_USER_NAME
    pub const ILLEGAL_USER_NAME: Self = Self(15);
}

/// SSH_MSG_DISCONNECT (RFC 4253 section 11.1).
pub(crate) struct Disconnect {
    pub(crate) reason: DisconnectReason,
    pub(crate) description: Printable,
}

impl Disconnect {
    pub(crate) fn parse(mut reader: Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            reason: DisconnectReason(reader.u32()?),
            description: Printable::line(reader.string().unwrap_or_default()),
        })
    }

    pub(crate) fn encode(reason: DisconnectReason, description: &str) -> Bytes {
        Writer::message(DISCONNECT)
            .u32(reason.0)
            .string(description)
            .string("")
            .finish()
    }
}

/// SSH_MSG_KEXINIT (RFC 4253 section 7.1), as sent by either side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KexInit {
    pub(crate) kex: Vec<String>,
    pub(crate) host_keys: Vec<String>,
    pub(crate) ciphers_out: Vec<String>,
    pub(crate) ciphers_in: Vec<String>,
    pub(crate) macs_out: Vec<String>,
    pub(crate) macs_in: Vec<String>,
    pub(crate) compression_out: Vec<String>,
    pub(crate) compression_in: Vec<String>,
    pub(crate) first_kex_packet_follows: bool,
}

impl KexInit {
    /// Parses the payload after the message number. "out" is client to server.
    pub(crate) fn parse(mut reader: Reader<'_>) -> Result<Self, WireError> {
        let _cookie = reader.array::<16>()?;
        let mut list = || names(&mut reader);
        let (kex, host_keys) = (list()?, list()?);
        let (ciphers_out, ciphers_in) = (list()?, list()?);
        let (macs_out, macs_in) = (list()?, list()?);
        let (compression_out, compression_in) = (list()?, list()?);
        let _languages: [Vec<String>; 2] = [list()?, list()?];
        let first_kex_packet_follows = reader.bool()?;
        Ok(Self {
            kex,
            host_keys,
            ciphers_out,
            ciphers_in,
            macs_out,
            macs_in,
            compression_out,
            compression_in,
            first_kex_packet_follows,
        })
    }

    pub(crate) fn encode(&self, cookie: &[u8; 16]) -> Bytes {
        Writer::message(KEXINIT)
            .raw(cookie)
            .name_list(&self.kex)
            .name_list(&self.host_keys)
            .name_list(&self.ciphers_out)
            .name_list(&self.ciphers_in)
            .name_list(&self.macs_out)
            .name_list(&self.macs_in)
            .name_list(&self.compression_out)
            .name_list(&self.compression_in)
            .string("")
            .string("")
            .bool(self.first_kex_packet_follows)
            .u32(0)
            .finish()
    }
}

/// A server's extensions in SSH_MSG_EXT_INFO (RFC 8308) that a client can use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExtInfo {
    /// `server-sig-algs`: the signature algorithms it accepts for publickey authentication.
    pub server_sig_algs: Option<Vec<String>>,
    /// `publickey-hostbound@openssh.com` (OpenSSH's PROTOCOL, section 1.7).
    pub publickey_hostbound: bool,
    /// `ping@openssh.com` (OpenSSH's PROTOCOL, section 1.8).
    pub ping: bool,
}

impl ExtInfo {
    /// Encodes a client's own: the server may send a second SSH_MSG_EXT_INFO once it knows the user (OpenSSH's
    /// PROTOCOL, section 1.10).
    pub(crate) fn of_client() -> Bytes {
        Writer::message(EXT_INFO)
            .u32(1)
            .string("ext-info-in-auth@openssh.com")
            .string("0")
            .finish()
    }

    /// Applies a second message, which may replace the signature algorithms (kex.c, `kex_ext_info_client_parse`).
    pub(crate) fn renew(&mut self, second: Self) {
        if second.server_sig_algs.is_some() {
            self.server_sig_algs = second.server_sig_algs;
        }
    }

    /// More extensions than any server sends; a message that claims more is refused.
    const MAX_EXTENSIONS: u32 = 1024;

    pub(crate) fn parse(mut reader: Reader<'_>) -> Result<Self, WireError> {
        let mut info = Self::default();
        let count = reader.u32()?;
        if count > Self::MAX_EXTENSIONS {
            return Err(WireError::Truncated);
        }
        for _ in 0..count {
            let (name, value) = (reader.string()?, reader.string()?);
            match name {
                b"server-sig-algs" => {
                    let list = std::str::from_utf8(value).map_err(|_| WireError::NotText("US-ASCII"))?;
                    info.server_sig_algs = Some(
                        list.split(',')
                            .map(|name| Printable::line(name).into_string())
                            .collect(),
                    );
                }
                b"publickey-hostbound@openssh.com" => info.publickey_hostbound = value == b"0",
                b"ping@openssh.com" => info.ping = value == b"0",
                _ => {}
            }
        }
        Ok(info)
    }
}

/// Reads a list of names from the peer (RFC 4251 section 6). Control characters, which are not allowed in names, are
/// made printable.
pub(crate) fn names(reader: &mut Reader<'_>) -> Result<Vec<String>, WireError> {
    let names = reader.name_list()?.into_iter();
    Ok(names.map(|name| Printable::line(name).into_string()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> KexInit {
        let one = |name: &str| vec![name.to_owned()];
        KexInit {
            kex: vec!["curve25519-sha256".into(), "kex-strict-s-v00@openssh.com".into()],
            host_keys: one("ssh-ed25519"),
            ciphers_out: one("aes128-gcm@openssh.com"),
            ciphers_in: one("aes256-gcm@openssh.com"),
            macs_out: one("hmac-sha2-256"),
            macs_in: one("hmac-sha2-512"),
            compression_out: one("none"),
            compression_in: one("zlib@openssh.com"),
            first_kex_packet_follows: true,
        }
    }

    #[test]
    fn a_kexinit_is_read_as_it_was_written() {
        let bytes = sample().encode(&[7; 16]);
        assert_eq!(bytes[0], KEXINIT);
        assert_eq!(KexInit::parse(Reader::new(&bytes[1..])), Ok(sample()));
    }

    #[test]
    fn names_from_the_peer_cannot_steer_a_terminal() {
        let list = crate::wire::Writer::new().string("a,\x1b[2Jb,c").finish();
        assert_eq!(names(&mut Reader::new(&list)).unwrap(), ["a", "\\033[2Jb", "c"]);
    }

    #[test]
    fn ext_info_with_an_absurd_count_is_refused() {
        assert!(ExtInfo::parse(Reader::new(&[0xff, 0xff, 0xff, 0xff])).is_err());
    }
}
