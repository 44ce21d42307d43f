//! The key exchange of hostile servers, with faults.

use std::io;

use aws_lc_rs::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};

use super::encryption::Gcm;
use super::payload::{Fields, Payload, number};
use super::wire::{Wire, not_the_one, unexpected_message};

/// The content of a KEXINIT (RFC 4253 section 7.1). The default is the only set of algorithms that [`Wire`] supports,
/// with strict key exchange.
#[derive(Debug, Clone)]
pub struct KexInit {
    /// Key exchange methods, comma-separated as on the wire.
    pub kex: String,
    pub host_key: String,
    /// Ciphers, the same in both directions.
    pub cipher: String,
    /// MACs, the same in both directions.
    pub mac: String,
    /// Compression, the same in both directions.
    pub compression: String,
    pub first_kex_packet_follows: bool,
}

impl Default for KexInit {
    fn default() -> KexInit {
        KexInit {
            kex: "curve25519-sha256,kex-strict-s-v00@openssh.com".to_owned(),
            host_key: "ssh-ed25519".to_owned(),
            cipher: "aes128-gcm@openssh.com".to_owned(),
            // With UMAC, as in sshd: clients use it to tell sshd from other servers that call themselves OpenSSH.
            mac: "hmac-sha2-256,umac-128-etm@openssh.com".to_owned(),
            compression: "none".to_owned(),
            first_kex_packet_follows: false,
        }
    }
}

impl KexInit {
    /// Returns the same without the offer of strict key exchange: a server from before 2023.
    #[must_use]
    pub fn without_strict() -> KexInit {
        KexInit {
            kex: "curve25519-sha256".to_owned(),
            ..KexInit::default()
        }
    }

    /// Returns the message. Its cookie is not random, because the server's security does not matter here.
    #[must_use]
    pub fn payload(&self) -> Payload {
        Payload::message(number::KEXINIT)
            .raw(b"not very random!")
            .string(&self.kex)
            .string(&self.host_key)
            .string(&self.cipher)
            .string(&self.cipher)
            .string(&self.mac)
            .string(&self.mac)
            .string(&self.compression)
            .string(&self.compression)
            .string("")
            .string("")
            .boolean(self.first_kex_packet_follows)
            .uint32(0)
    }
}

/// One key exchange, which is correct unless it is given a fault.
#[derive(Debug, Clone, Default)]
pub struct KeyExchange {
    /// The offer.
    pub init: KexInit,
    /// The fault in the server's reply.
    pub fault: Option<KexFault>,
    /// Messages sent in clear between the server's reply and its NEWKEYS, where an attacker with Terrapin inserts an
    /// IGNORE.
    pub before_newkeys: Vec<Payload>,
}

/// A fault in KEX_ECDH_REPLY (RFC 5656 section 4, RFC 8731 section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KexFault {
    /// The signature has one bit flipped.
    WrongSignature,
    /// The right host key, with a signature by another key.
    SignatureByAnotherKey,
    /// A correct signature by a key that is not the server's host key.
    AnotherHostKey,
    /// A correct signature with the name of another algorithm (`rsa-sha2-512`).
    MisnamedSignature,
    /// A public share of zeros, which makes the secret zero. RFC 8731 requires clients to abort.
    ZeroShare,
    /// A public share of 31 bytes.
    ShortShare,
    /// The reply ends within the signature.
    TruncatedReply,
}

impl Wire {
    /// Exchanges keys, for the first time or again. Messages that the client sent before its KEXINIT are kept for
    /// [`Wire::receive`]. Afterwards packets are encrypted with the new keys.
    ///
    /// # Errors
    /// When the connection ends, or the client stops the exchange, as it should after most faults.
    pub async fn exchange_keys(&mut self, exchange: &KeyExchange) -> io::Result<()> {
        let server_init = exchange.init.payload();
        self.send(&server_init).await?;
        let client_init = self.receive_kexinit().await?;
        if self.session_id.is_none() {
            let offers = |init: &[u8], name: &str| {
                first_lists(init).is_ok_and(|(kex, _)| kex.split(',').any(|offered| offered == name))
            };
            self.strict = offers(&client_init, "kex-strict-c-v00@openssh.com")
                && offers(server_init.as_ref(), "kex-strict-s-v00@openssh.com");
        }
        if guessed_wrong(&client_init, server_init.as_ref())? {
            self.read_packet().await?;
        }
        let client_message = self.expect_in_exchange(number::KEX_ECDH_INIT).await?;
        let client_share = Fields::parse(&client_message).string()?;

        let random = SystemRandom::new();
        let secret = EphemeralPrivateKey::generate(&X25519, &random).map_err(io::Error::other)?;
        let mut server_share = secret
            .compute_public_key()
            .map_err(io::Error::other)?
            .as_ref()
            .to_vec();
        let peer = UnparsedPublicKey::new(&X25519, client_share);
        let bad_share = unexpected_message("the client's share is not a point".to_owned());
        let shared = agree_ephemeral(secret, peer, bad_share, |shared| Ok(shared.to_vec()))?;
        match exchange.fault {
            Some(KexFault::ZeroShare) => server_share.fill(0),
            Some(KexFault::ShortShare) => server_share.truncate(31),
            _ => {}
        }
        let another = Ed25519KeyPair::generate().map_err(io::Error::other)?;
        let genuine = &*self.host_key;
        let (shown, signer) = match exchange.fault {
            Some(KexFault::AnotherHostKey) => (&another, &another),
            Some(KexFault::SignatureByAnotherKey) => (genuine, &another),
            _ => (genuine, genuine),
        };
        let host_key = Payload::empty()
            .string("ssh-ed25519")
            .string(shown.public_key().as_ref());
        let secret = Payload::empty().mpint(&shared);
        let hash = sha256(
            &Payload::empty()
                .string(&self.client_banner)
                .string(&self.server_banner)
                .string(&client_init)
                .string(&server_init)
                .string(&host_key)
                .string(client_share)
                .string(&server_share)
                .raw(secret.as_ref()),
        );
        let mut signature = signer.sign(&hash).as_ref().to_vec();
        if exchange.fault == Some(KexFault::WrongSignature) {
            signature[0] ^= 1;
        }
        let misnamed = exchange.fault == Some(KexFault::MisnamedSignature);
        let algorithm = if misnamed { "rsa-sha2-512" } else { "ssh-ed25519" };
        let mut reply = Payload::message(number::KEX_ECDH_REPLY)
            .string(&host_key)
            .string(&server_share)
            .string(Payload::empty().string(algorithm).string(&signature));
        if exchange.fault == Some(KexFault::TruncatedReply) {
            let whole = reply.as_ref();
            reply = Payload::empty().raw(&whole[..whole.len() - 20]);
        }
        self.send(&reply).await?;
        for message in &exchange.before_newkeys {
            self.send(message).await?;
        }
        self.send(Payload::message(number::NEWKEYS)).await?;
        let session_id = self.session_id.get_or_insert_with(|| hash.clone()).clone();
        // RFC 4253 section 7.2
        let derive = |letter: u8| {
            let input = Payload::empty()
                .raw(secret.as_ref())
                .raw(&hash)
                .byte(letter)
                .raw(&session_id);
            sha256(&input)
        };
        self.output = Some(key_gcm(&derive(b'D'), &derive(b'B')));
        self.expect_in_exchange(number::NEWKEYS).await?;
        self.input = Some(key_gcm(&derive(b'C'), &derive(b'A')));
        if self.strict {
            // OpenSSH's PROTOCOL section 1.10: both counts start again at each NEWKEYS.
            self.next_sequence = 0;
        }
        Ok(())
    }

    async fn receive_kexinit(&mut self) -> io::Result<Vec<u8>> {
        // A script may already have read the client's KEXINIT before it answered.
        if let Some(at) = self
            .backlog
            .iter()
            .position(|message| message.first() == Some(&number::KEXINIT))
        {
            return Ok(self.backlog.remove(at).unwrap_or_default());
        }
        loop {
            let message = self.read_packet().await?;
            match message.first() {
                Some(&number::KEXINIT) => return Ok(message),
                _ if self.session_id.is_some() => self.backlog.push_back(message),
                first => {
                    return Err(unexpected_message(format!(
                        "a KEXINIT was expected; {first:?} came"
                    )));
                }
            }
        }
    }

    /// Reads past the backlog, which is from before the exchange. Between KEXINIT and NEWKEYS only IGNORE and DEBUG are
    /// allowed, and with strict key exchange not even these.
    async fn expect_in_exchange(&mut self, wanted: u8) -> io::Result<Vec<u8>> {
        loop {
            let message = self.read_packet().await?;
            match message.first().copied().unwrap_or(0) {
                got if got == wanted => return Ok(message),
                number::IGNORE | number::DEBUG if !self.strict => {}
                _ => return Err(not_the_one(wanted, &message)),
            }
        }
    }
}

/// Reads the name-lists of key exchange methods and host key algorithms.
fn first_lists(init: &[u8]) -> io::Result<(String, String)> {
    let mut fields = Fields::parse(init);
    fields.take(16)?;
    Ok((fields.text()?, fields.text()?))
}

/// Returns true if a guessed packet follows that has to be ignored (RFC 4253 section 7.1). The guess is right if the
/// first names of both lists are the same on both sides.
fn guessed_wrong(client_init: &[u8], server_init: &[u8]) -> io::Result<bool> {
    let mut fields = Fields::parse(client_init);
    fields.take(16)?;
    for _ in 0..10 {
        fields.string()?;
    }
    let (client, server) = (first_lists(client_init)?, first_lists(server_init)?);
    let same_first = |a: &str, b: &str| a.split(',').next() == b.split(',').next();
    Ok(fields.boolean()? && !(same_first(&client.0, &server.0) && same_first(&client.1, &server.1)))
}

fn sha256(input: &Payload) -> Vec<u8> {
    digest(&SHA256, input.as_ref()).as_ref().to_vec()
}

/// Makes a cipher from derived keys. SHA-256 gives 32 bytes, enough for a key of 16 and a nonce of 12 without
/// extension.
fn key_gcm(key: &[u8], nonce: &[u8]) -> Gcm {
    let mut short_key = [0; 16];
    short_key.copy_from_slice(&key[..16]);
    let mut short_nonce = [0; 12];
    short_nonce.copy_from_slice(&nonce[..12]);
    Gcm::new(&short_key, short_nonce)
}
