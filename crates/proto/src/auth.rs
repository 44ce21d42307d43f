//! User authentication (RFC 4252, RFC 4256): one request at a time, and the server's answer.
//!
//! The layer decides nothing: each [`AuthTurn`] asks the application for one request.

use bytes::Bytes;
use zeroize::Zeroizing;

use crate::error::{Error, PeerMisbehaved};
use crate::event::{AuthTurn, Event, KeyboardPrompt};
use crate::message;
use crate::wire::{Reader, Writer};
use trunkline_text::Printable;

/// The most prompts in one SSH_MSG_USERAUTH_INFO_REQUEST, as in OpenSSH's client.
const MAX_PROMPTS: u32 = 100;
/// The service name of authentication (RFC 4252 section 4).
const SERVICE: &str = "ssh-userauth";

/// A request that waits for its answer. It decides what messages 60 and 61 mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    None,
    Probe,
    PublicKey,
    HostBased,
    Password,
    KeyboardInteractive,
}

/// A host's statement about its user (RFC 4252 section 9).
#[derive(Debug, Clone, Copy)]
pub struct HostClaim<'a> {
    /// The public key algorithm of the host's key.
    pub algorithm: &'a str,
    /// The host's public key (RFC 4253 section 6.6).
    pub key: &'a [u8],
    /// The host's full name.
    pub host: &'a str,
    /// The user's name there.
    pub user: &'a str,
}

/// The state of authentication.
#[derive(Debug)]
pub(crate) struct Auth {
    user: String,
    outstanding: Option<Request>,
    service_accepted: bool,
    done: bool,
}

impl Auth {
    pub(crate) fn new(user: String) -> Self {
        Self {
            user,
            outstanding: None,
            service_accepted: false,
            done: false,
        }
    }

    /// Sets the user of later requests.
    pub(crate) fn set_user(&mut self, user: &str) {
        user.clone_into(&mut self.user);
    }

    pub(crate) fn service_accepted(&self) -> bool {
        self.service_accepted
    }

    pub(crate) fn service_request() -> Bytes {
        Writer::message(message::SERVICE_REQUEST).string(SERVICE).finish()
    }

    // Requests. Each returns the message to send.

    fn request(&self, method: &str) -> Writer {
        Writer::message(message::USERAUTH_REQUEST)
            .string(&self.user)
            .string("ssh-connection")
            .string(method)
    }

    /// Asks which methods can continue (RFC 4252 section 5.2).
    pub(crate) fn none(&mut self) -> Bytes {
        self.outstanding = Some(Request::None);
        self.request("none").finish()
    }

    /// Returns the part of a publickey request that is signed, without the session id (RFC 4252 section 7). With a
    /// `host_key`, the method is publickey-hostbound-v00@openssh.com (OpenSSH's PROTOCOL, section 3.2).
    fn publickey(&self, signed: bool, algorithm: &str, key: &[u8], host_key: Option<&[u8]>) -> Writer {
        let method = if host_key.is_some() {
            "publickey-hostbound-v00@openssh.com"
        } else {
            "publickey"
        };
        let writer = self.request(method).bool(signed).string(algorithm).string(key);
        match host_key {
            Some(host_key) => writer.string(host_key),
            None => writer,
        }
    }

    /// Asks whether a key would be accepted.
    pub(crate) fn publickey_probe(&mut self, algorithm: &str, key: &[u8]) -> Bytes {
        self.outstanding = Some(Request::Probe);
        self.publickey(false, algorithm, key, None).finish()
    }

    /// Returns the bytes that the key's owner signs.
    pub(crate) fn data_to_sign(
        &self,
        session_id: &[u8],
        algorithm: &str,
        key: &[u8],
        host_key: Option<&[u8]>,
    ) -> Bytes {
        let request = self.publickey(true, algorithm, key, host_key).finish();
        Writer::new().string(session_id).raw(&request).finish()
    }

    pub(crate) fn publickey_signed(
        &mut self,
        algorithm: &str,
        key: &[u8],
        host_key: Option<&[u8]>,
        signature: &[u8],
    ) -> Bytes {
        self.outstanding = Some(Request::PublicKey);
        self.publickey(true, algorithm, key, host_key)
            .string(signature)
            .finish()
    }

    /// Returns the part of a hostbased request that is signed, without the session id (RFC 4252 section 9).
    fn hostbased_request(&self, claim: &HostClaim<'_>) -> Writer {
        self.request("hostbased")
            .string(claim.algorithm)
            .string(claim.key)
            .string(claim.host)
            .string(claim.user)
    }

    /// Returns the bytes that the client's host signs.
    pub(crate) fn data_for_host_to_sign(&self, session_id: &[u8], claim: &HostClaim<'_>) -> Bytes {
        let request = self.hostbased_request(claim).finish();
        Writer::new().string(session_id).raw(&request).finish()
    }

    pub(crate) fn hostbased_signed(&mut self, claim: &HostClaim<'_>, signature: &[u8]) -> Bytes {
        self.outstanding = Some(Request::HostBased);
        self.hostbased_request(claim).string(signature).finish()
    }

    pub(crate) fn password(&mut self, password: &str, new: Option<&str>) -> Bytes {
        self.outstanding = Some(Request::Password);
        let writer = self.request("password").bool(new.is_some()).string(password);
        match new {
            Some(new) => writer.string(new).finish(),
            None => writer.finish(),
        }
    }

    pub(crate) fn keyboard_interactive(&mut self) -> Bytes {
        self.outstanding = Some(Request::KeyboardInteractive);
        self.request("keyboard-interactive")
            .string("")
            .string("")
            .finish()
    }

    pub(crate) fn answers(&self, answers: &[Zeroizing<String>]) -> Bytes {
        let count =
            u32::try_from(answers.len()).expect("as many answers as prompts, of which there are at most 100");
        let writer = Writer::message(message::USERAUTH_INFO_RESPONSE).u32(count);
        answers
            .iter()
            .fold(writer, |writer, answer| writer.string(answer.as_bytes()))
            .finish()
    }

    // The server's messages.

    /// Handles a message of authentication. Returns `None` if the application need not know.
    pub(crate) fn handle(&mut self, payload: &[u8]) -> Result<Option<Event>, Error> {
        let mut reader = Reader::new(payload);
        let number = reader.u8()?;
        if self.done {
            return Err(PeerMisbehaved::AuthAfterSuccess(number).into());
        }
        let event = match (number, self.outstanding) {
            (message::SERVICE_ACCEPT, _) if !self.service_accepted => {
                // Some servers omit the name, and OpenSSH's client tolerates that.
                let accepted = match reader.is_empty() {
                    true => SERVICE.as_bytes(),
                    false => reader.string()?,
                };
                if accepted != SERVICE.as_bytes() {
                    return Err(PeerMisbehaved::WrongService(Printable::line(accepted)).into());
                }
                self.service_accepted = true;
                return Ok(None);
            }
            (message::USERAUTH_BANNER, _) => Event::Banner(text(&mut reader)?),
            _ if !self.service_accepted => return Err(PeerMisbehaved::AuthBeforeService(number).into()),
            (_, None) => return Err(PeerMisbehaved::AuthWithoutRequest(number).into()),
            (message::USERAUTH_SUCCESS, _) => {
                self.done = true;
                Event::Authenticated
            }
            (message::USERAUTH_FAILURE, _) => {
                self.outstanding = None;
                let methods = message::names(&mut reader)?;
                Event::Authenticate(AuthTurn {
                    methods: Some(methods),
                    partial_success: reader.bool()?,
                })
            }
            (message::USERAUTH_60, Some(Request::Probe)) => {
                self.outstanding = None;
                Event::PublicKeyAccepted
            }
            (message::USERAUTH_60, Some(Request::Password)) => {
                self.outstanding = None;
                Event::PasswordExpired {
                    prompt: text(&mut reader)?,
                }
            }
            (message::USERAUTH_60, Some(Request::KeyboardInteractive)) => questions(reader)?,
            _ => return Err(PeerMisbehaved::AuthOutOfTurn(number).into()),
        };
        Ok(Some(event))
    }
}

/// Reads text for the user, which may have many lines.
fn text(reader: &mut Reader<'_>) -> Result<String, Error> {
    Ok(Printable::text(reader.string()?).into_string())
}

/// Parses SSH_MSG_USERAUTH_INFO_REQUEST (RFC 4256 section 3.2).
fn questions(mut reader: Reader<'_>) -> Result<Event, Error> {
    let name = text(&mut reader)?;
    let instruction = text(&mut reader)?;
    let _language = reader.string()?;
    let count = reader.u32()?;
    if count > MAX_PROMPTS {
        return Err(PeerMisbehaved::TooManyPrompts(count).into());
    }
    let prompts = (0..count)
        .map(|_| {
            Ok(KeyboardPrompt {
                text: text(&mut reader)?,
                echo: reader.bool()?,
            })
        })
        .collect::<Result<_, Error>>()?;
    Ok(Event::Questions {
        name,
        instruction,
        prompts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(methods: &str, partial: bool) -> Bytes {
        Writer::message(message::USERAUTH_FAILURE)
            .string(methods)
            .bool(partial)
            .finish()
    }

    /// Returns authentication whose service the server has accepted.
    fn accepted_auth() -> Auth {
        let mut auth = Auth::new("jo".into());
        let accept = Writer::message(message::SERVICE_ACCEPT).string(SERVICE).finish();
        assert_eq!(auth.handle(&accept), Ok(None));
        auth
    }

    #[test]
    fn nothing_is_believed_before_the_service_is_accepted() {
        let mut auth = Auth::new("jo".into());
        auth.none();
        assert!(auth.handle(&[message::USERAUTH_SUCCESS]).is_err());
        assert!(auth.handle(&failure("password", false)).is_err());
    }

    #[test]
    fn another_service_is_refused_and_an_unnamed_one_is_ours() {
        let other = Writer::message(message::SERVICE_ACCEPT)
            .string("ssh-connection")
            .finish();
        assert!(Auth::new("jo".into()).handle(&other).is_err());
        assert!(Auth::new("jo".into()).handle(&[message::SERVICE_ACCEPT]).is_ok());
    }

    #[test]
    fn a_failure_gives_the_turn_back() {
        let mut auth = accepted_auth();
        auth.none();
        let turn = AuthTurn {
            methods: Some(vec!["publickey".into(), "password".into()]),
            partial_success: true,
        };
        assert_eq!(
            auth.handle(&failure("publickey,password", true)),
            Ok(Some(Event::Authenticate(turn)))
        );
    }

    #[test]
    fn success_without_a_request_is_refused() {
        let mut auth = accepted_auth();
        assert!(auth.handle(&[message::USERAUTH_SUCCESS]).is_err());
        auth.none();
        auth.handle(&failure("password", false)).unwrap();
        assert!(
            auth.handle(&[message::USERAUTH_SUCCESS]).is_err(),
            "a second answer to one request"
        );
    }

    #[test]
    fn message_60_is_read_by_the_request_it_answers() {
        let mut auth = accepted_auth();
        let text = Writer::message(message::USERAUTH_60)
            .string("change it")
            .string("")
            .finish();
        auth.password("old", None);
        assert_eq!(
            auth.handle(&text),
            Ok(Some(Event::PasswordExpired {
                prompt: "change it".into()
            }))
        );
        auth.none();
        assert!(auth.handle(&text).is_err());
    }

    #[test]
    fn too_many_questions_are_refused() {
        let mut auth = accepted_auth();
        auth.keyboard_interactive();
        let asked = Writer::message(message::USERAUTH_60)
            .string("")
            .string("")
            .string("")
            .u32(1 << 30)
            .finish();
        assert!(auth.handle(&asked).is_err());
    }

    #[test]
    fn the_signed_data_is_that_of_rfc_4252() {
        let auth = Auth::new("jo".into());
        let data = auth.data_to_sign(b"SID", "ssh-ed25519", b"KEY", None);
        let expected = Writer::new()
            .string("SID")
            .u8(50)
            .string("jo")
            .string("ssh-connection")
            .string("publickey")
            .bool(true)
            .string("ssh-ed25519")
            .string("KEY")
            .finish();
        assert_eq!(data, expected);
    }

    #[test]
    fn what_a_host_signs_is_the_request_behind_the_session_id() {
        let mut auth = accepted_auth();
        let claim = HostClaim {
            algorithm: "ssh-ed25519",
            key: b"KEY",
            host: "desk.example.",
            user: "joan",
        };
        let request = Writer::new()
            .u8(50)
            .string("jo")
            .string("ssh-connection")
            .string("hostbased")
            .string("ssh-ed25519")
            .string("KEY")
            .string("desk.example.")
            .string("joan")
            .finish();
        let signed = auth.data_for_host_to_sign(b"SID", &claim);
        assert_eq!(signed, Writer::new().string("SID").raw(&request).finish());
        let sent = auth.hostbased_signed(&claim, b"SIGNATURE");
        assert_eq!(sent, Writer::new().raw(&request).string("SIGNATURE").finish());
        assert_eq!(
            auth.handle(&[message::USERAUTH_SUCCESS]),
            Ok(Some(Event::Authenticated))
        );
    }
}
