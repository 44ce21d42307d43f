//! The transport layer (RFC 4253): identification, packets, key exchange and rekeying.
//!
//! [`Transport::receive`] turns bytes from the server into payloads for the layers above. [`Transport::send`] seals
//! payloads one after the other into the outgoing buffer. Key exchanges run inside. From above, only two things show:
//! the first one stops at [`Inbound::HostKey`] until the key is accepted, and during one [`Transport::may_send`] is
//! false.

pub(crate) mod algorithms;
mod compress;
pub(crate) mod identification;
mod receive;

use std::time::{Duration, Instant};

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::crypto::cipher::{Opener, PacketKeys, Sealer};
use crate::crypto::kex::{Agreed, Direction, Ephemeral, ExchangeHash, Step};
use crate::error::{Error, PeerMisbehaved};
use crate::host_key::signature;
use crate::message::{self, Disconnect, DisconnectReason, ExtInfo, KexInit};
use crate::wire::Reader;
use algorithms::{Compression, Negotiated, Preferences, ServerOffer, negotiate};
use compress::{Compressor, Decompressor};
use identification::{CLIENT_ID, Finder, ServerId};
use receive::ReceiveBuffer;
use trunkline_text::Printable;

/// The largest packet accepted, as OpenSSH's PACKET_MAX_SIZE. RFC 4253 section 6.1 requires at least 35,000.
pub(crate) const MAX_PACKET: usize = 256 * 1024;
/// The most packets under one key, so that sequence numbers do not repeat (RFC 4344 section 3.1, OpenSSH's
/// MAX_PACKETS).
const MAX_PACKETS: u64 = 1 << 31;

/// The limits after which keys are exchanged again, beyond those of the cipher itself (ssh_config's RekeyLimit).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RekeyLimit {
    /// Bytes in either direction.
    pub bytes: Option<u64>,
    /// Time since the last key exchange.
    pub interval: Option<Duration>,
}

/// The number of a packet that this side sent, modulo 2^32 (RFC 4253 section 6.4), as in SSH_MSG_UNIMPLEMENTED.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Sequence(pub(crate) u32);

/// The result of [`Transport::receive`].
pub(crate) enum Inbound {
    /// A message for a layer above.
    Payload(Bytes),
    /// The first key exchange's host key: nothing else happens before [`Transport::accept_host_key`].
    HostKey(Bytes),
    /// The first key exchange is complete in both directions: authentication may begin.
    Ready,
    /// The server did not understand the packet that this side sent as number `.0`.
    Unimplemented(Sequence),
    /// A ping@openssh.com, to be answered with its data.
    Ping(Bytes),
    /// The answer to one of our pings.
    Pong(Bytes),
}

/// Times a request and its answer while the connection is made, from when the request is sent.
#[derive(Debug, Default)]
pub(crate) enum Exchange {
    /// Nothing is timed.
    #[default]
    None,
    /// The request waits to be sent.
    Asked,
    Sent(Instant),
}

impl Exchange {
    /// Times the next request, instead of an earlier one.
    pub(crate) fn ask(&mut self) {
        *self = Self::Asked;
    }

    /// Times the next request, unless one is being timed.
    pub(crate) fn ask_next(&mut self) {
        if matches!(self, Self::None) {
            self.ask();
        }
    }

    pub(crate) fn note_sent(&mut self, now: Instant) {
        if matches!(self, Self::Asked) {
            *self = Self::Sent(now);
        }
    }

    /// Returns how long the answer took.
    pub(crate) fn answer(&mut self, now: Instant) -> Option<Duration> {
        match std::mem::take(self) {
            Self::Sent(at) => Some(now.saturating_duration_since(at)),
            Self::None | Self::Asked => None,
        }
    }
}

enum Kex {
    /// No key exchange.
    Idle,
    /// Our KEXINIT was sent.
    Proposed {
        ours: Bytes,
        proposal: KexInit,
        guess: Option<Ephemeral>,
    },
    /// Both KEXINITs are known, the method runs.
    Running(Method),
    /// The reply is verified, the host key not yet accepted (first key exchange only).
    Unaccepted { keys: Box<NewKeys> },
    /// Our NEWKEYS was sent, theirs is awaited.
    Switching { keys: Box<NewKeys> },
}

/// A key exchange method in progress.
struct Method {
    ours: Bytes,
    theirs: Bytes,
    negotiated: Box<Negotiated>,
    ephemeral: Ephemeral,
    /// The server guessed wrong: its next packet is dropped (RFC 4253 section 7).
    skip_guess: bool,
}

/// The outcome of a key exchange.
struct NewKeys {
    agreed: Agreed,
    hash: ExchangeHash,
    negotiated: Negotiated,
}

impl NewKeys {
    fn packet_keys(&self, session_id: &[u8], direction: Direction) -> PacketKeys {
        let chosen = match direction {
            Direction::ClientToServer => self.negotiated.outgoing,
            Direction::ServerToClient => self.negotiated.incoming,
        };
        self.agreed
            .packet_keys(&self.hash, session_id, direction, chosen.cipher, chosen.mac)
    }
}

/// Traffic under the current keys in one direction.
#[derive(Debug, Default, Clone, Copy)]
struct Traffic {
    packets: u64,
    bytes: u64,
}

pub(crate) struct Transport {
    preferences: Preferences,
    rekey_limit: RekeyLimit,
    kex: Kex,
    /// Made ahead for the first key exchange.
    prepared: Option<Ephemeral>,
    finder: Finder,
    server_id: Option<ServerId>,
    session_id: Option<Bytes>,
    host_key: Option<Bytes>,
    host_signature: Option<Bytes>,
    negotiated: Option<Negotiated>,
    server_offer: Option<ServerOffer>,
    /// A guess was sent.
    guessed: bool,
    /// The timed request, until the user is logged in.
    exchange: Exchange,
    ext_info: ExtInfo,
    /// The number of SSH_MSG_EXT_INFO received.
    ext_infos: u8,
    strict: bool,
    /// The first key exchange is complete.
    established: bool,
    rekey_wanted: bool,
    last_kex: Option<Instant>,
    authenticated: bool,

    incoming: ReceiveBuffer,
    opener: Opener,
    sequence_in: u32,
    received: Traffic,
    receive_limit: u64,
    inflate: Option<Decompressor>,

    outgoing: BytesMut,
    sealer: Sealer,
    sequence_out: u32,
    sent: Traffic,
    send_limit: u64,
    deflate: Option<Compressor>,
    scratch: Vec<u8>,
}

impl Transport {
    /// Starts with our identification in the outgoing buffer. With `early_kexinit`, our KEXINIT follows, and with a
    /// `guess` also the method's first packet.
    pub(crate) fn new(
        preferences: Preferences,
        rekey_limit: RekeyLimit,
        early_kexinit: bool,
        guess: Option<Ephemeral>,
        prepared: Option<Ephemeral>,
    ) -> Result<Self, Error> {
        let mut outgoing = BytesMut::with_capacity(4096);
        outgoing.put_slice(CLIENT_ID.as_bytes());
        outgoing.put_slice(b"\r\n");
        let mut transport = Self {
            preferences,
            rekey_limit,
            kex: Kex::Idle,
            prepared,
            finder: Finder::default(),
            server_id: None,
            session_id: None,
            host_key: None,
            host_signature: None,
            negotiated: None,
            server_offer: None,
            guessed: false,
            exchange: Exchange::None,
            ext_info: ExtInfo::default(),
            ext_infos: 0,
            strict: false,
            established: false,
            rekey_wanted: false,
            last_kex: None,
            authenticated: false,
            incoming: ReceiveBuffer::default(),
            opener: Opener::plaintext(),
            sequence_in: 0,
            received: Traffic::default(),
            receive_limit: u64::MAX,
            inflate: None,
            outgoing,
            sealer: Sealer::plaintext(),
            sequence_out: 0,
            sent: Traffic::default(),
            send_limit: u64::MAX,
            deflate: None,
            scratch: Vec::new(),
        };
        if early_kexinit {
            transport.propose(guess)?;
        }
        Ok(transport)
    }

    // Getters.

    pub(crate) fn server_id(&self) -> Option<&ServerId> {
        self.server_id.as_ref()
    }

    /// Returns the server's text before its identification, or instead of one.
    pub(crate) fn greeting(&self) -> &Printable {
        self.finder.greeting()
    }

    pub(crate) fn session_id(&self) -> Option<&Bytes> {
        self.session_id.as_ref()
    }

    /// Returns the host key that the server proved, once accepted.
    pub(crate) fn host_key(&self) -> Option<&Bytes> {
        self.host_key.as_ref()
    }

    pub(crate) fn active_algorithms(&self) -> Option<&Negotiated> {
        self.negotiated.as_ref()
    }

    pub(crate) fn agreed_algorithms(&self) -> Option<&Negotiated> {
        match &self.kex {
            Kex::Unaccepted { keys } | Kex::Switching { keys } => Some(&keys.negotiated),
            _ => self.active_algorithms(),
        }
    }

    /// Returns whether the first packet of a method was sent as a guess.
    pub(crate) fn has_guessed(&self) -> bool {
        self.guessed
    }

    /// Returns the server's offer in its first KEXINIT.
    pub(crate) fn server_offer(&self) -> Option<&ServerOffer> {
        self.server_offer.as_ref()
    }

    pub(crate) fn ext_info(&self) -> &ExtInfo {
        &self.ext_info
    }

    /// Returns the server's signature over the session id, which an agent requires for session-bind@openssh.com.
    pub(crate) fn host_signature(&self) -> Option<&Bytes> {
        self.host_signature.as_ref()
    }

    /// Returns whether messages of the layers above may be sent now (RFC 4253 section 7.1).
    pub(crate) fn may_send(&self) -> bool {
        self.established && matches!(self.kex, Kex::Idle | Kex::Switching { .. })
    }

    /// Returns the number of the last received packet.
    pub(crate) fn last_received(&self) -> Sequence {
        Sequence(self.sequence_in.wrapping_sub(1))
    }

    /// Returns when a rekey by time is due.
    pub(crate) fn rekey_at(&self) -> Option<Instant> {
        if !self.authenticated || !matches!(self.kex, Kex::Idle) {
            return None;
        }
        Some(self.last_kex? + self.rekey_limit.interval?)
    }

    /// Returns the number of received bytes that are not a whole packet yet.
    pub(crate) fn unread(&self) -> usize {
        self.incoming.unread.len()
    }

    /// Returns the timing of a request and its answer while the connection is made.
    pub(crate) fn exchange(&mut self) -> &mut Exchange {
        &mut self.exchange
    }

    // Input.

    /// Returns the buffer to append bytes from the server to.
    pub(crate) fn receive_buffer(&mut self) -> &mut BytesMut {
        &mut self.incoming.unread
    }

    pub(crate) fn reserve_receive(&mut self, room: usize) {
        self.incoming.reserve(room);
    }

    /// Returns the next item from the received bytes; `None` if more bytes or the host key's acceptance are needed.
    pub(crate) fn receive(&mut self, now: Instant) -> Result<Option<Inbound>, Error> {
        loop {
            if self.server_id.is_none() {
                let (id, used) = self.finder.find(&self.incoming.unread)?;
                self.incoming.unread.advance(used);
                let Some(id) = id else { return Ok(None) };
                self.server_id = Some(id);
                if matches!(self.kex, Kex::Idle) {
                    self.propose(None)?;
                }
            }
            if matches!(self.kex, Kex::Unaccepted { .. }) {
                return Ok(None);
            }
            let Some(payload) = self.open_packet()? else {
                return Ok(None);
            };
            if let Some(inbound) = self.handle_payload(payload, now)? {
                return Ok(Some(inbound));
            }
        }
    }

    /// Accepts the first key exchange's host key: answers with NEWKEYS, after which sending is allowed.
    pub(crate) fn accept_host_key(&mut self) -> Result<(), Error> {
        match std::mem::replace(&mut self.kex, Kex::Idle) {
            Kex::Unaccepted { keys } => {
                self.host_key = Some(keys.agreed.host_key.clone());
                self.host_signature = Some(keys.agreed.signature.clone());
                self.switch_outgoing(keys)
            }
            other => {
                self.kex = other;
                Ok(())
            }
        }
    }

    /// Starts delayed compression (zlib@openssh.com) and rekeying by time after authentication.
    pub(crate) fn handle_authenticated(&mut self, now: Instant) {
        self.authenticated = true;
        self.last_kex = Some(now);
        if let Some(negotiated) = &self.negotiated {
            let (outgoing, incoming) = (negotiated.outgoing.compression, negotiated.incoming.compression);
            self.set_compression_out(outgoing);
            self.set_compression_in(incoming);
        }
    }

    // Output.

    /// Starts a key exchange as soon as none is in progress.
    pub(crate) fn rekey(&mut self) {
        self.rekey_wanted = true;
    }

    /// Starts a key exchange if one is due: by bytes, by packets, by time, or on request.
    pub(crate) fn rekey_if_due(&mut self, now: Instant) -> Result<(), Error> {
        if !self.authenticated || !matches!(self.kex, Kex::Idle) {
            return Ok(());
        }
        let exceeded = |traffic: Traffic, limit: u64| {
            traffic.packets >= MAX_PACKETS
                || traffic.bytes >= limit.min(self.rekey_limit.bytes.unwrap_or(u64::MAX))
        };
        let due = self.rekey_wanted
            || exceeded(self.sent, self.send_limit)
            || exceeded(self.received, self.receive_limit)
            || self.rekey_at().is_some_and(|at| at <= now);
        if due { self.propose(None) } else { Ok(()) }
    }

    /// Seals one message, given in parts, into the outgoing buffer. Call only while [`Self::may_send`].
    pub(crate) fn send(&mut self, parts: &[&[u8]]) -> Result<Sequence, Error> {
        debug_assert!(self.may_send());
        self.seal(parts)
    }

    /// Tells the server that this side ends the connection, if the keys allow that now.
    pub(crate) fn send_disconnect(&mut self, reason: DisconnectReason, description: &str) {
        // Allowed at any time, even during a key exchange (RFC 4253 section 7.1).
        if self.server_id.is_some() {
            let _ = self.seal(&[&Disconnect::encode(reason, description)]);
        }
    }

    /// Returns the sealed bytes that wait for the socket.
    pub(crate) fn outgoing(&mut self) -> &mut BytesMut {
        &mut self.outgoing
    }

    /// Releases the memory of empty buffers.
    pub(crate) fn release_buffers(&mut self) {
        self.incoming.release();
        if self.outgoing.is_empty() {
            self.outgoing = BytesMut::new();
        }
        self.scratch = Vec::new();
    }

    // Packets.

    fn open_packet(&mut self) -> Result<Option<Bytes>, Error> {
        let Some(len) = self
            .opener
            .packet_len(self.sequence_in, &mut self.incoming.unread, MAX_PACKET)?
        else {
            return Ok(None);
        };
        if self.incoming.unread.len() < len {
            return Ok(None);
        }
        let mut packet = self.incoming.unread.split_to(len);
        let payload = self.opener.open(self.sequence_in, &mut packet)?;
        self.sequence_in = self.sequence_in.wrapping_add(1);
        self.received.packets += 1;
        self.received.bytes += len as u64;
        let payload = match &mut self.inflate {
            None => detach(&packet.freeze().slice(payload)),
            Some(inflate) => {
                let mut plain = Vec::new();
                inflate
                    .decompress(&packet[payload], &mut plain, MAX_PACKET)
                    .map_err(|error| PeerMisbehaved::Compression(error.to_string().into()))?;
                Bytes::from(plain)
            }
        };
        if payload.is_empty() {
            return Err(PeerMisbehaved::EmptyPacket.into());
        }
        Ok(Some(payload))
    }

    fn seal(&mut self, parts: &[&[u8]]) -> Result<Sequence, Error> {
        if let Some(deflate) = &mut self.deflate {
            self.scratch.clear();
            let plain = parts.concat();
            deflate.compress(&plain, &mut self.scratch);
        }
        let compressed: [&[u8]; 1] = [&self.scratch];
        let parts: &[&[u8]] = if self.deflate.is_some() {
            &compressed
        } else {
            parts
        };

        let payload: usize = parts.iter().map(|part| part.len()).sum();
        let padding = self.sealer.padding_len(payload);
        let length = 1 + payload + padding;
        let start = self.outgoing.len();
        self.outgoing.reserve(4 + length + self.sealer.tag_len());
        self.outgoing
            .put_u32(u32::try_from(length).map_err(|_| Error::Local("a packet over 4 GiB".into()))?);
        self.outgoing
            .put_u8(u8::try_from(padding).expect("padding is below two blocks of 16 bytes"));
        for part in parts {
            self.outgoing.put_slice(part);
        }
        // Zeros: neither AEAD nor counter mode needs unpredictable padding.
        self.outgoing.put_bytes(0, padding + self.sealer.tag_len());
        self.sealer.seal(self.sequence_out, &mut self.outgoing[start..]);

        let sequence = Sequence(self.sequence_out);
        self.sequence_out = self.sequence_out.wrapping_add(1);
        self.sent.packets += 1;
        self.sent.bytes += (self.outgoing.len() - start) as u64;
        Ok(sequence)
    }

    // Messages of the transport layer.

    fn handle_payload(&mut self, payload: Bytes, now: Instant) -> Result<Option<Inbound>, Error> {
        let mut reader = Reader::new(&payload);
        let number = reader.u8()?;
        self.check_order(number)?;
        match number {
            message::DISCONNECT => {
                let Disconnect { reason, description } = Disconnect::parse(reader)?;
                Err(Error::Disconnected { reason, description })
            }
            message::IGNORE => Ok(None),
            message::DEBUG => {
                let _always_display = reader.bool()?;
                tracing::debug!(text = %Printable::line(reader.string()?), "debug message from the server");
                Ok(None)
            }
            message::UNIMPLEMENTED => Ok(Some(Inbound::Unimplemented(Sequence(reader.u32()?)))),
            message::EXT_INFO => {
                let info = ExtInfo::parse(reader)?;
                match self.ext_infos {
                    0 => self.ext_info = info,
                    1 if !self.authenticated => self.ext_info.renew(info),
                    // OpenSSH's client rejects further ones, and most of its releases tolerate them.
                    _ => {}
                }
                self.ext_infos = self.ext_infos.saturating_add(1);
                Ok(None)
            }
            message::PING if self.established => Ok(Some(Inbound::Ping(payload.slice_ref(reader.string()?)))),
            message::PONG if self.established => {
                let data = reader.string().unwrap_or_default();
                Ok(Some(Inbound::Pong(payload.slice_ref(data))))
            }
            message::KEXINIT => self.handle_kexinit(&payload).map(|()| None),
            message::NEWKEYS => self.handle_newkeys(reader, now),
            message::KEX_METHOD_FIRST..=message::KEX_METHOD_LAST => self.handle_kex_method(&payload),
            _ => Ok(Some(Inbound::Payload(payload))),
        }
    }

    /// Refuses messages that may not come during a key exchange (RFC 4253 section 7.1; under strict-kex, everything but
    /// the exchange itself).
    fn check_order(&self, number: u8) -> Result<(), Error> {
        let exchange = matches!(number, message::KEXINIT | message::NEWKEYS)
            || (message::KEX_METHOD_FIRST..=message::KEX_METHOD_LAST).contains(&number);
        // The first exchange lasts until their NEWKEYS. Only their KEXINIT shows whether it is strict; earlier messages
        // are judged then.
        let first = self.negotiated.is_none();
        let generic = number == message::DISCONNECT
            || ((message::IGNORE..=message::DEBUG).contains(&number) && !(first && self.strict));
        let under_way = first || matches!(self.kex, Kex::Running(_) | Kex::Switching { .. });
        if under_way && !exchange && !generic {
            return Err(PeerMisbehaved::DuringKex(number).into());
        }
        Ok(())
    }

    // Key exchange.

    fn propose(&mut self, guess: Option<Ephemeral>) -> Result<(), Error> {
        self.rekey_wanted = false;
        let proposal = self
            .preferences
            .kexinit(self.session_id.is_none(), guess.is_some());
        let mut cookie = [0; 16];
        SystemRandom::new()
            .fill(&mut cookie)
            .map_err(|_| Error::Local("the system has no randomness to give".into()))?;
        let ours = proposal.encode(&cookie);
        self.seal(&[&ours])?;
        self.guessed |= guess.is_some();
        if let Some(ephemeral) = &guess {
            self.seal(&[&ephemeral.init_message()])?;
        }
        self.kex = Kex::Proposed {
            ours,
            proposal,
            guess,
        };
        Ok(())
    }

    fn handle_kexinit(&mut self, payload: &Bytes) -> Result<(), Error> {
        if matches!(self.kex, Kex::Idle) {
            self.propose(None)?;
        }
        let Kex::Proposed {
            ours,
            proposal,
            guess,
        } = std::mem::replace(&mut self.kex, Kex::Idle)
        else {
            return Err(PeerMisbehaved::KexInitDuringKex.into());
        };
        let theirs = KexInit::parse(Reader::new(&payload[1..]))?;
        let negotiated = negotiate(&proposal, &theirs)?;
        let strength = negotiated.strength();
        if self.session_id.is_none() {
            self.strict = negotiated.strict;
            // OpenSSH's PROTOCOL 1.10: with strict key exchange, KEXINIT must be the first packet.
            if self.strict && self.sequence_in != 1 {
                return Err(PeerMisbehaved::NotStrict.into());
            }
            self.server_offer = Some(ServerOffer::from_kexinit(&theirs));
        }
        let ephemeral = match guess {
            Some(ephemeral) if negotiated.guess_right => ephemeral,
            // The server drops a wrong guess; send the agreed method's packet now. The ephemeral key was never used.
            Some(ephemeral) if ephemeral.method() == negotiated.kex => {
                let ephemeral = ephemeral.for_strength(strength);
                self.begin_method(&ephemeral.init_message())?;
                ephemeral
            }
            _ => {
                let prepared = self
                    .prepared
                    .take()
                    .filter(|ephemeral| ephemeral.method() == negotiated.kex);
                let ephemeral = prepared
                    .map_or_else(|| negotiated.kex.generate(), Ok)
                    .map_err(|error| Error::Local(error.to_string()))?
                    .for_strength(strength);
                self.begin_method(&ephemeral.init_message())?;
                ephemeral
            }
        };
        let skip_guess = theirs.first_kex_packet_follows && !negotiated.guess_right;
        self.kex = Kex::Running(Method {
            ours,
            theirs: payload.clone(),
            negotiated: Box::new(negotiated),
            ephemeral,
            skip_guess,
        });
        Ok(())
    }

    /// Sends a message of the key exchange method that the server answers at once. A guess is not one: it may have been
    /// sent before the server was reached.
    fn begin_method(&mut self, message: &[u8]) -> Result<(), Error> {
        if !self.established {
            self.exchange.ask();
        }
        self.seal(&[message]).map(drop)
    }

    fn handle_kex_method(&mut self, payload: &Bytes) -> Result<Option<Inbound>, Error> {
        let Kex::Running(mut method) = std::mem::replace(&mut self.kex, Kex::Idle) else {
            return Err(PeerMisbehaved::UnrequestedKexReply.into());
        };
        if std::mem::take(&mut method.skip_guess) {
            self.kex = Kex::Running(method);
            return Ok(None);
        }
        let agreed = match method.ephemeral.handle(payload)? {
            Step::Send { payload, next } => {
                method.ephemeral = next;
                self.kex = Kex::Running(method);
                self.begin_method(&payload)?;
                return Ok(None);
            }
            Step::Done(agreed) => *agreed,
        };
        let server_id = self.server_id.as_ref().map_or(&b""[..], ServerId::raw);
        let hash = agreed.exchange_hash(CLIENT_ID.as_bytes(), server_id, &method.ours, &method.theirs);
        signature::verify(
            &agreed.host_key,
            &method.negotiated.host_key,
            &agreed.signature,
            hash.as_bytes(),
        )
        .map_err(|error| Error::BadHostSignature(error.to_string().into()))?;
        let host_key = agreed.host_key.clone();
        let keys = Box::new(NewKeys {
            hash,
            negotiated: *method.negotiated,
            agreed,
        });
        match &self.host_key {
            None => {
                self.session_id = Some(Bytes::copy_from_slice(keys.hash.as_bytes()));
                self.kex = Kex::Unaccepted { keys };
                Ok(Some(Inbound::HostKey(host_key)))
            }
            Some(first) if *first == host_key => self.switch_outgoing(keys).map(|()| None),
            Some(_) => Err(PeerMisbehaved::HostKeyChanged.into()),
        }
    }

    /// Sends NEWKEYS, and seals under the new keys from then on.
    fn switch_outgoing(&mut self, keys: Box<NewKeys>) -> Result<(), Error> {
        self.seal(&[&[message::NEWKEYS]])?;
        let chosen = keys.negotiated.outgoing;
        let material = keys.packet_keys(
            self.session_id.as_deref().unwrap_or_default(),
            Direction::ClientToServer,
        );
        self.sealer = Sealer::new(chosen.cipher, chosen.mac, &material);
        self.send_limit = chosen.cipher.rekey_bytes();
        self.sent = Traffic::default();
        if self.strict {
            self.sequence_out = 0;
        }
        if self.authenticated {
            self.set_compression_out(chosen.compression);
        }
        // RFC 8308 section 2.4: the first packet after the first NEWKEYS.
        if !self.established && keys.negotiated.reads_ext_info {
            self.seal(&[&ExtInfo::of_client()])?;
        }
        self.established = true;
        self.kex = Kex::Switching { keys };
        Ok(())
    }

    fn handle_newkeys(&mut self, reader: Reader<'_>, now: Instant) -> Result<Option<Inbound>, Error> {
        reader.finish()?;
        let Kex::Switching { keys } = std::mem::replace(&mut self.kex, Kex::Idle) else {
            return Err(PeerMisbehaved::EarlyNewKeys.into());
        };
        let chosen = keys.negotiated.incoming;
        let material = keys.packet_keys(
            self.session_id.as_deref().unwrap_or_default(),
            Direction::ServerToClient,
        );
        self.opener = Opener::new(chosen.cipher, chosen.mac, &material);
        self.receive_limit = chosen.cipher.rekey_bytes();
        self.received = Traffic::default();
        if self.strict {
            self.sequence_in = 0;
        }
        if self.authenticated {
            self.set_compression_in(chosen.compression);
        }
        self.last_kex = Some(now);
        let first = self.negotiated.is_none();
        self.negotiated = Some(keys.negotiated);
        Ok(first.then_some(Inbound::Ready))
    }

    fn set_compression_out(&mut self, compression: Compression) {
        self.deflate = (compression == Compression::Zlib).then(Compressor::new);
    }

    fn set_compression_in(&mut self, compression: Compression) {
        self.inflate = (compression == Compression::Zlib).then(Decompressor::new);
    }
}

/// Copies small payloads out of the receive buffer, so that one kept by a slow reader does not keep a whole buffer
/// alive: a channel holds at most 16 times its window (256 KiB buffers, kept by payloads of at least 16 KiB).
fn detach(payload: &Bytes) -> Bytes {
    const KEEP_IN_PLACE: usize = 16 * 1024;
    if payload.len() < KEEP_IN_PLACE {
        Bytes::copy_from_slice(payload)
    } else {
        payload.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a transport in the state after one key exchange and authentication.
    fn authenticated_transport(limit: RekeyLimit, now: Instant) -> Transport {
        let mut transport = Transport::new(Preferences::default(), limit, false, None, None).unwrap();
        transport.session_id = Some(Bytes::from_static(b"session"));
        transport.established = true;
        transport.handle_authenticated(now);
        transport
    }

    #[test]
    fn keys_are_renewed_before_sequence_numbers_come_around() {
        let now = Instant::now();
        for (sent, received) in [(1, 0), (0, 1)] {
            let mut transport = authenticated_transport(RekeyLimit::default(), now);
            transport.sent.packets = sent * (MAX_PACKETS - 1);
            transport.received.packets = received * (MAX_PACKETS - 1);
            transport.rekey_if_due(now).unwrap();
            assert!(transport.may_send(), "one packet is left");
            transport.sent.packets += sent;
            transport.received.packets += received;
            transport.rekey_if_due(now).unwrap();
            assert!(!transport.may_send() && matches!(transport.kex, Kex::Proposed { .. }));
        }
    }

    #[test]
    fn the_ciphers_own_limit_holds_whatever_the_setting_says() {
        let now = Instant::now();
        let mut transport = authenticated_transport(
            RekeyLimit {
                bytes: Some(u64::MAX),
                interval: None,
            },
            now,
        );
        transport.send_limit = 1 << 30;
        transport.sent.bytes = 1 << 30;
        transport.rekey_if_due(now).unwrap();
        assert!(!transport.may_send());
    }

    #[test]
    fn a_pending_rekey_has_no_deadline_and_is_not_begun_twice() {
        let now = Instant::now();
        let interval = Some(Duration::from_secs(10));
        let mut transport = authenticated_transport(
            RekeyLimit {
                bytes: None,
                interval,
            },
            now,
        );
        let due = transport.rekey_at().unwrap();
        assert_eq!(due, now + Duration::from_secs(10));
        transport.rekey_if_due(due).unwrap();
        let sent = transport.outgoing.len();
        transport.rekey_if_due(due).unwrap();
        assert_eq!((transport.rekey_at(), transport.outgoing.len()), (None, sent));
    }
}
