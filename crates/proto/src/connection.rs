//! [`Connection`]: a whole SSH client connection, except for the socket, the clock and the decisions.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use trunkline_text::Printable;
use zeroize::{Zeroize, Zeroizing};

use crate::auth::{Auth, HostClaim};
use crate::channels::channel::{ChannelId, Started};
use crate::channels::event::ChannelEvent;
use crate::channels::request::{ChannelKind, ChannelRequest, GlobalRequest, GlobalRequestId, OpenFailure};
use crate::channels::window::WindowBudget;
use crate::channels::{Channels, Outgoing};
use crate::crypto::cipher::Cipher;
use crate::crypto::kex::Ephemeral;
use crate::error::{Error, PeerMisbehaved};
use crate::event::{AuthTurn, Event};
use crate::message::{self, DisconnectReason, ExtInfo};
use crate::owed::Owed;
use crate::transport::algorithms::{Compression, Negotiated, Preferences};
use crate::transport::identification::ServerId;
use crate::transport::{Inbound, RekeyLimit, Sequence, Transport};
use crate::wire::Writer;

/// The settings of a connection.
pub struct Config {
    /// The user to log in as.
    pub user: String,
    /// The allowed algorithms.
    pub preferences: Preferences,
    /// The limits after which keys are exchanged again.
    pub rekey_limit: RekeyLimit,
    /// KEXINIT is sent together with the identification (RFC 4253 section 4.2 allows it), not after the server's.
    pub early_kexinit: bool,
    /// The first packet of the preferred key exchange method, sent as a guess after an early KEXINIT.
    pub guess: Option<Ephemeral>,
    /// The first packet of the method that will most likely be agreed on. It is made ahead of time, because some
    /// methods take milliseconds, but not sent as a guess.
    pub prepared: Option<Ephemeral>,
    /// Messages that need no answer are sent without waiting, if the server is OpenSSH's sshd.
    pub early_flights: bool,
    /// This server was seen to be sshd: its identification needs no further evidence (see [`Connection::is_sshd`]).
    pub known_sshd: bool,
    /// The first authentication request directly follows the service request, whatever the server calls itself.
    pub early_log_in: bool,
    /// Up to 64 KiB of a session's input directly follow its start, if the server is sshd.
    pub early_stdin: bool,
    /// The budget from which receive windows grow, shared by the connections of a process.
    pub window_budget: Arc<WindowBudget>,
}

impl Config {
    /// Creates a configuration with default algorithms and all early flights, but no guess.
    pub fn new(user: impl Into<String>) -> Self {
        Self {
            user: user.into(),
            preferences: Preferences::default(),
            rekey_limit: RekeyLimit::default(),
            early_kexinit: true,
            guess: None,
            prepared: None,
            early_flights: true,
            known_sshd: false,
            early_log_in: false,
            early_stdin: true,
            window_budget: Arc::default(),
        }
    }
}

/// A message that was sent before authentication was known to have succeeded.
struct EarlyMessage {
    sequence: Sequence,
    channel: Option<ChannelId>,
    payload: Bytes,
    /// The server said that it did not understand this packet.
    refused: bool,
}

/// A session that is opened in the flight of the log-in, without anything to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EarlySession {
    /// None is wanted, or its outcome was reported.
    None,
    /// To be opened with the next signed request.
    Wanted,
    Asked {
        id: ChannelId,
        sequence: Sequence,
        /// Answered pings since the log-in, while the session was not answered.
        pongs: u8,
        pinged: bool,
    },
}

/// The command that was sent with the log-in, while its answer is pending.
#[derive(Debug, Clone, Copy)]
struct EarlyCommand {
    channel: ChannelId,
    /// The time to check whether the server has ignored the command, set once the log-in has succeeded.
    due: Option<Instant>,
    asked: bool,
}

/// The time that a server may take to answer a command of the early flight before it is sent a ping, whose answer would
/// follow that of the command. sshd answers while it starts the command, so hardly any command costs a ping.
const EARLY_PATIENCE: Duration = Duration::from_millis(500);

/// An SSH client connection as a state machine without I/O.
///
/// Its methods come in four families:
/// - *getters* return what is known of the server and the connection;
/// - *input*: bytes from the server go into [`receive_buffer`](Self::receive_buffer), then
///   [`handle_received`](Self::handle_received) processes them; call [`handle_timeout`](Self::handle_timeout) at the
///   time of [`poll_timeout`](Self::poll_timeout);
/// - *actions of the application*: host key, authentication, channels;
/// - *output*, to be polled after each of the others: [`poll_event`](Self::poll_event) until `None`, then
///   [`poll_transmit`](Self::poll_transmit) until empty, then [`poll_timeout`](Self::poll_timeout).
///
/// Channels may be opened and used from the start. Before authentication, their messages wait for it, or are sent in
/// one flight with the authentication request if [`Config::early_flights`] and the server allow it.
///
/// An error ends the connection. [`Connection::start_state`] then tells for each channel whether its command may run.
pub struct Connection {
    transport: Transport,
    auth: Auth,
    channels: Channels,
    events: VecDeque<Event>,
    /// Messages of authentication, in order; the first is the service request.
    auth_messages: VecDeque<Bytes>,
    /// Answers of the transport layer, which are sent before anything else.
    answers: VecDeque<Bytes>,
    answers_owed: Owed,
    early_flights: bool,
    known_sshd: bool,
    /// The server has listed its host keys, as sshd does after a log-in.
    told_host_keys: bool,
    early_log_in: bool,
    early_stdin: bool,
    early_session: EarlySession,
    early_command: Option<EarlyCommand>,
    /// Channel messages may follow the authentication request that waits in `auth_messages`.
    early_wanted: bool,
    early: Vec<EarlyMessage>,
    /// The authentication request that the early messages followed was refused.
    early_failed: bool,
    /// The first [`Event::Authenticate`] was reported.
    has_asked_for_request: bool,
    /// A request was sent before the service was accepted.
    auth_is_ahead: bool,
    /// Early messages that were proven to be refused, to be sent again first.
    again: VecDeque<EarlyMessage>,
    authenticated: bool,
    ping: Option<Sequence>,
    ping_wanted: bool,
    chaff_wanted: bool,
    pings: Vec<GlobalRequestId>,
    /// Unanswered global requests, with their packets.
    global_requests: VecDeque<(Sequence, GlobalRequestId)>,
}

/// The number of sealed bytes after which the socket is written to: large enough that a system call is cheap compared
/// with the sealing, small enough for the second-level cache.
const BATCH: usize = 256 * 1024;
/// The content of chaff's ping, as in OpenSSH: the packet is as long as one with a single typed byte.
const CHAFF: &[u8] = b"PING!";

impl Connection {
    /// Creates a connection whose first bytes wait in [`Self::poll_transmit`].
    pub fn new(config: Config) -> Result<Self, Error> {
        let Config {
            user,
            preferences,
            rekey_limit,
            early_kexinit,
            guess,
            prepared,
            early_flights,
            known_sshd,
            early_log_in,
            early_stdin,
            window_budget,
        } = config;
        Ok(Self {
            transport: Transport::new(preferences, rekey_limit, early_kexinit, guess, prepared)?,
            auth: Auth::new(user),
            channels: Channels::new(window_budget),
            events: VecDeque::new(),
            auth_messages: VecDeque::new(),
            answers: VecDeque::new(),
            answers_owed: Owed::default(),
            early_flights,
            known_sshd,
            told_host_keys: false,
            early_log_in,
            early_stdin,
            early_session: EarlySession::None,
            early_command: None,
            early_wanted: false,
            early: Vec::new(),
            early_failed: false,
            has_asked_for_request: false,
            auth_is_ahead: false,
            again: VecDeque::new(),
            authenticated: false,
            ping: None,
            ping_wanted: false,
            chaff_wanted: false,
            pings: Vec::new(),
            global_requests: VecDeque::new(),
        })
    }

    // Getters.

    /// Returns the server's identification, once received.
    pub fn server_id(&self) -> Option<&ServerId> {
        self.transport.server_id()
    }

    /// Returns the last line of the server's text before its identification, or instead of one; may be empty.
    pub fn greeting(&self) -> &Printable {
        self.transport.greeting()
    }

    /// Returns the session identifier (RFC 4253 section 7.2), once the first key exchange is verified.
    pub fn session_id(&self) -> Option<&Bytes> {
        self.transport.session_id()
    }

    /// Returns the accepted host key.
    pub fn host_key(&self) -> Option<&Bytes> {
        self.transport.host_key()
    }

    /// Returns the host key's signature over the session identifier, which session-bind@openssh.com shows to an agent.
    pub fn host_signature(&self) -> Option<&Bytes> {
        self.transport.host_signature()
    }

    /// Returns the algorithms in use, once the first key exchange is complete.
    pub fn active_algorithms(&self) -> Option<&Negotiated> {
        self.transport.active_algorithms()
    }

    /// Returns the algorithms agreed on in the last key exchange: known with the host key, before they are in use.
    pub fn agreed_algorithms(&self) -> Option<&Negotiated> {
        self.transport.agreed_algorithms()
    }

    /// Returns the key exchange and host key algorithms that the server listed first, for a right guess next time.
    pub fn server_first_choices(&self) -> Option<(&str, &str)> {
        let (kex, host_key) = self.transport.server_offer()?.first_choices.as_ref()?;
        Some((kex, host_key))
    }

    /// Returns this side's ciphers that the server accepts in both directions, in the order of [`Cipher::DEFAULT`].
    /// Empty before its KEXINIT.
    pub fn server_ciphers(&self) -> &[Cipher] {
        self.transport
            .server_offer()
            .map_or(&[], |offer| offer.ciphers.as_slice())
    }

    /// Returns the compression that the server accepts in both directions. Empty before its KEXINIT.
    pub fn server_compression(&self) -> &[Compression] {
        self.transport
            .server_offer()
            .map_or(&[], |offer| offer.compression.as_slice())
    }

    /// Returns the server's extensions from SSH_MSG_EXT_INFO.
    pub fn ext_info(&self) -> &ExtInfo {
        self.transport.ext_info()
    }

    /// Returns whether the server has accepted the log-in.
    pub fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// Returns whether a channel's command may have started.
    pub fn start_state(&self, id: ChannelId) -> Started {
        self.channels.start_state(id)
    }

    /// Returns whether keys are being exchanged: channel messages wait for the new ones.
    pub fn is_exchanging_keys(&self) -> bool {
        !self.transport.may_send()
    }

    /// Returns the bytes of a channel that wait to be sent.
    pub fn waiting(&self, id: ChannelId) -> usize {
        self.channels.waiting(id)
    }

    /// Returns how many bytes a channel could send without waiting for the server's window.
    pub fn room(&self, id: ChannelId) -> usize {
        self.channels.room(id)
    }

    /// Returns the number of channels.
    pub fn channel_count(&self) -> usize {
        self.channels.len()
    }

    /// Returns whether something was sent early, assuming that the server processes its packets in order, and nothing
    /// from the server confirms that yet: RFC 4253 section 10 has the service accepted first.
    pub fn is_ahead(&self) -> bool {
        let messages = !self.early.is_empty() && !self.early_failed || self.is_opening_early();
        !self.authenticated && (messages || self.auth_is_ahead && !self.auth.service_accepted())
    }

    /// Returns whether a session was requested in the flight of the log-in, and is not answered yet.
    pub fn is_opening_early(&self) -> bool {
        matches!(self.early_session, EarlySession::Asked { .. })
    }

    /// Returns whether an authentication request was sent before the service was accepted.
    pub fn has_logged_in_early(&self) -> bool {
        self.auth_is_ahead
    }

    /// Returns whether the first packet of a key exchange method was sent as a guess.
    pub fn has_guessed(&self) -> bool {
        self.transport.has_guessed()
    }

    /// Returns whether the server is OpenSSH's sshd, on whose order of work the early flights rely. Anything may call
    /// itself `OpenSSH_…`, so that further evidence is required: an announcement in the key exchange, the list of host
    /// keys after the log-in, or an earlier connection ([`Config::known_sshd`]).
    pub fn is_sshd(&self) -> bool {
        // sshd since 8.9 announces that it binds a key's signature to the host key; no other server is known to. Older
        // ones are recognized by their MACs.
        let announced = || {
            self.transport.ext_info().publickey_hostbound
                || self
                    .transport
                    .server_offer()
                    .is_some_and(|offer| offer.macs_of_sshd)
        };
        self.is_openssh() && (self.known_sshd || self.told_host_keys || announced())
    }

    // Input.

    /// Returns the buffer to append bytes from the server to.
    pub fn receive_buffer(&mut self) -> &mut BytesMut {
        self.transport.receive_buffer()
    }

    /// Makes room for at least `room` bytes in [`receive_buffer`](Self::receive_buffer), in a block whose data has been
    /// consumed if there is one.
    pub fn reserve_receive(&mut self, room: usize) {
        self.transport.reserve_receive(room);
    }

    /// Returns the number of received bytes that are not a whole packet yet.
    pub fn unread(&self) -> usize {
        self.transport.unread()
    }

    /// Processes the bytes received.
    pub fn handle_received(&mut self, now: Instant) -> Result<(), Error> {
        self.channels.receiving(now);
        let outcome = self.work_through(now);
        if let Err(Error::Disconnected { .. }) = &outcome
            && !self.authenticated
        {
            // The server's last message; the log-in's success was not among those before it.
            self.early_refused();
        }
        outcome
    }

    fn work_through(&mut self, now: Instant) -> Result<(), Error> {
        while let Some(inbound) = self.transport.receive(now)? {
            self.answers_owed.and(self.channels.owed_replies()).check()?;
            match inbound {
                Inbound::Payload(payload) => self.handle_payload(&payload, now)?,
                Inbound::HostKey(key) => {
                    self.time_exchange(now);
                    self.events.push_back(Event::HostKey(key));
                }
                // The server's EXT_INFO about signatures comes before it accepts the service, but not always with its
                // NEWKEYS: a request that has to wait is not made earlier.
                Inbound::Ready if self.may_log_in_early() => self.first_turn(),
                Inbound::Ready => {}
                Inbound::Unimplemented(sequence) => self.handle_unimplemented(sequence)?,
                Inbound::Ping(data) => self.answer(Writer::message(message::PONG).string(data).finish()),
                // Chaff's answer is ignored.
                Inbound::Pong(data) if data == CHAFF => {}
                Inbound::Pong(_) => self.handle_pong()?,
            }
        }
        Ok(())
    }

    /// Handles what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), Error> {
        if self.early_due().is_some_and(|due| due <= now)
            && let Some(command) = &mut self.early_command
        {
            command.due = None;
            if self.channels.awaits_start(command.channel) {
                command.asked = true;
                self.ping();
            }
        }
        self.transport.rekey_if_due(now)
    }

    /// Returns when to check whether the server has ignored the early command.
    fn early_due(&self) -> Option<Instant> {
        // A ping before messages that are sent again would show nothing.
        let command = self.early_command.filter(|_| self.again.is_empty())?;
        command.due
    }

    fn handle_payload(&mut self, payload: &Bytes, now: Instant) -> Result<(), Error> {
        match payload.first().copied().unwrap_or_default() {
            message::SERVICE_ACCEPT | 50..=79 => {
                // A banner does not count as an answer: it may come at any time.
                if payload.first() != Some(&message::USERAUTH_BANNER) {
                    self.time_exchange(now);
                }
                self.handle_auth(payload, now)
            }
            // RFC 4250 section 4.1.2 has 80 to 127; these are in use.
            80..=82 | 90..=100 if self.authenticated => {
                self.channels.handle(payload)?;
                self.collect_channel_events()
            }
            number @ (80..=82 | 90..=100) => Err(PeerMisbehaved::BeforeAuthentication(number).into()),
            // RFC 4253 section 11.4.
            _ => {
                let sequence = self.transport.last_received();
                self.answer(Writer::message(message::UNIMPLEMENTED).u32(sequence.0).finish());
                Ok(())
            }
        }
    }

    /// Times answers while the connection is set up. They include the server's work: a signature, a key look-up, PAM.
    fn time_exchange(&mut self, now: Instant) {
        if let Some(time) = self.transport.exchange().answer(now) {
            self.channels.answered_within(time);
        }
    }

    /// Queues a reply that a message of the transport layer requires.
    fn answer(&mut self, message: Bytes) {
        self.answers_owed.add(message.len());
        self.answers.push_back(message);
    }

    /// Returns whether a request may be sent before the service is accepted.
    fn may_log_in_early(&self) -> bool {
        self.early_log_in || self.early_flights && self.is_openssh()
    }

    /// Asks the application for the first request.
    fn first_turn(&mut self) {
        self.has_asked_for_request = true;
        self.events.push_back(Event::Authenticate(AuthTurn::default()));
    }

    fn handle_auth(&mut self, payload: &Bytes, now: Instant) -> Result<(), Error> {
        let Some(event) = self.auth.handle(payload)? else {
            if self.auth.service_accepted() && !self.has_asked_for_request {
                self.first_turn();
            }
            return Ok(());
        };
        match &event {
            Event::Authenticate(_) | Event::PasswordExpired { .. } => self.early_refused(),
            Event::Authenticated => {
                self.authenticated = true;
                self.transport.handle_authenticated(now);
                self.settle_early()?;
                if let Some(command) = &mut self.early_command {
                    command.due = Some(now + EARLY_PATIENCE);
                }
            }
            _ => {}
        }
        self.events.push_back(event);
        Ok(())
    }

    /// Handles the refusal of the authentication request that the early messages followed. The server refused it before
    /// it reached them: nothing of them has started. They are sent again only if each was refused by its number.
    fn early_refused(&mut self) {
        self.lose_early_session();
        self.early_failed = !self.early.is_empty();
        for id in self.early.iter().filter_map(|message| message.channel) {
            self.channels.set_started(id, Started::No);
        }
    }

    /// Settles the early messages after authentication. Either they ran after it, or they were refused one by one after
    /// an earlier attempt, and are sent again. Anything in between is ambiguous and ends the connection.
    fn settle_early(&mut self) -> Result<(), Error> {
        let early = std::mem::take(&mut self.early);
        if early.iter().any(|message| message.refused != self.early_failed) {
            // A server that processed them after its refusal is not sshd; what it did with them is unknown.
            for id in early
                .iter()
                .filter(|message| !message.refused)
                .filter_map(|message| message.channel)
            {
                self.channels.set_started(id, Started::Maybe);
            }
            return Err(PeerMisbehaved::EarlyUnanswered.into());
        }
        if self.early_failed {
            self.again = early.into();
        }
        Ok(())
    }

    fn handle_unimplemented(&mut self, sequence: Sequence) -> Result<(), Error> {
        if let Some(message) = self.early.iter_mut().find(|message| message.sequence == sequence) {
            message.refused = true;
            let channel = message.channel;
            // A message that was not refused may be the command.
            let refused = self
                .early
                .iter()
                .filter(|message| message.channel == channel)
                .all(|message| message.refused);
            if let Some(id) = channel.filter(|_| refused) {
                self.channels.set_started(id, Started::No);
            }
        } else if self.ping == Some(sequence) {
            self.handle_pong()?;
        } else if let Some((_, id)) = self.global_requests.iter().find(|(sent, _)| *sent == sequence) {
            // Some servers know no global requests, although they should answer REQUEST_FAILURE (RFC 4254 section 4).
            self.channels.global_request_refused(*id);
            self.collect_channel_events()?;
        } else if matches!(self.early_session, EarlySession::Asked { sequence: sent, .. } if sent == sequence)
        {
            self.lose_early_session();
        } else {
            tracing::debug!(sequence = sequence.0, "the server did not understand a packet");
        }
        Ok(())
    }

    /// Notes that the server is alive, and has processed everything sent before the ping.
    fn handle_pong(&mut self) -> Result<(), Error> {
        self.ping = None;
        self.events.push_back(Event::Pong);
        if let EarlySession::Asked { pongs, pinged, .. } = &mut self.early_session
            && self.authenticated
        {
            *pongs += 1;
            *pinged = false;
            // A server that opens sessions separately may answer in another order, but not for that long.
            if *pongs > 1 {
                self.lose_early_session();
            }
        }
        match self.early_command {
            Some(EarlyCommand {
                channel, asked: true, ..
            }) if self.channels.awaits_start(channel) => Err(PeerMisbehaved::EarlyUnanswered.into()),
            _ => Ok(()),
        }
    }

    fn collect_channel_events(&mut self) -> Result<(), Error> {
        while let Some(event) = self.channels.next_event() {
            match event {
                ChannelEvent::GlobalReply { id, success, data } => {
                    self.global_requests.retain(|(_, sent)| *sent != id);
                    if self.pings.contains(&id) {
                        self.pings.retain(|ping| *ping != id);
                        self.handle_pong()?;
                    } else {
                        let reply = ChannelEvent::GlobalReply { id, success, data };
                        self.events.push_back(Event::Channel(reply));
                    }
                    continue;
                }
                ChannelEvent::HostKeys(_) => self.told_host_keys = true,
                ChannelEvent::Opened(id) if self.is_early_session(id) => {
                    self.early_session = EarlySession::None;
                    self.events.push_back(Event::EarlySession(Some(id)));
                    continue;
                }
                ChannelEvent::OpenFailed { id, .. } if self.is_early_session(id) => {
                    self.early_session = EarlySession::None;
                    self.events.push_back(Event::EarlySession(None));
                    continue;
                }
                ChannelEvent::Reply { id, success, .. }
                    if self.early_command.is_some_and(|command| command.channel == id)
                        && !self.channels.awaits_start(id) =>
                {
                    self.early_command = None;
                    if success {
                        self.events.push_back(Event::EarlyCommand);
                    }
                }
                _ => {}
            }
            self.events.push_back(Event::Channel(event));
        }
        Ok(())
    }

    fn is_early_session(&self, id: ChannelId) -> bool {
        matches!(self.early_session, EarlySession::Asked { id: asked, .. } if asked == id)
    }

    /// Gives up the session of the log-in's flight. If the server opens it after all, it is closed.
    fn lose_early_session(&mut self) {
        if let EarlySession::Asked { id, .. } = self.early_session {
            self.channels.disown(id);
            self.early_session = EarlySession::None;
            self.events.push_back(Event::EarlySession(None));
        }
    }

    // Actions of the application: host key and authentication.

    /// Accepts the host key, and continues up to [`Event::Authenticate`].
    pub fn accept_host_key(&mut self, now: Instant) -> Result<(), Error> {
        self.transport.accept_host_key()?;
        self.auth_messages.push_back(Auth::service_request());
        self.handle_received(now)
    }

    /// Sets the user of later requests (RFC 4252 section 5 allows a client to change it).
    pub fn authenticate_as(&mut self, user: &str) {
        self.auth.set_user(user);
    }

    /// Asks which authentication methods there are (RFC 4252 section 5.2).
    pub fn authenticate_none(&mut self) {
        let request = self.auth.none();
        self.auth_messages.push_back(request);
    }

    /// Asks whether a key would be accepted: [`Event::PublicKeyAccepted`] or [`Event::Authenticate`] follows.
    pub fn probe_key(&mut self, algorithm: &str, key: &[u8]) {
        let request = self.auth.publickey_probe(algorithm, key);
        self.auth_messages.push_back(request);
    }

    /// Returns the data that a key has to sign to authenticate with `algorithm`, or `None` before the first key
    /// exchange is verified.
    ///
    /// If the server supports it, the signature is bound to the host key (publickey-hostbound-v00@openssh.com), which
    /// agents require for keys that are constrained to destinations.
    pub fn data_to_sign(&self, algorithm: &str, key: &[u8]) -> Option<Bytes> {
        let session_id = self.transport.session_id()?;
        Some(
            self.auth
                .data_to_sign(session_id, algorithm, key, self.bound_host_key()),
        )
    }

    /// Authenticates with a signature over [`Self::data_to_sign`]. With `early`, channel messages may follow in the
    /// same flight. The server ignores them until it has accepted the key, and this side only sends again what the
    /// server has refused packet by packet.
    pub fn authenticate_key(&mut self, algorithm: &str, key: &[u8], signature: &[u8], early: bool) {
        let host_key = self.bound_host_key().map(Bytes::copy_from_slice);
        let request = self
            .auth
            .publickey_signed(algorithm, key, host_key.as_deref(), signature);
        self.auth_messages.push_back(request);
        self.early_wanted = early;
    }

    /// Returns the data that the key of the client's host has to sign to vouch for its user, or `None` before the first
    /// key exchange is verified.
    pub fn data_for_host_to_sign(&self, claim: &HostClaim<'_>) -> Option<Bytes> {
        let session_id = self.transport.session_id()?;
        Some(self.auth.data_for_host_to_sign(session_id, claim))
    }

    /// Authenticates by a host that vouches for its user, with a signature over [`Self::data_for_host_to_sign`].
    pub fn authenticate_host(&mut self, claim: &HostClaim<'_>, signature: &[u8]) {
        let request = self.auth.hostbased_signed(claim, signature);
        self.auth_messages.push_back(request);
    }

    /// Authenticates with a password, or changes an expired one.
    pub fn authenticate_password(&mut self, password: &str, new: Option<&str>, early: bool) {
        let request = self.auth.password(password, new);
        self.auth_messages.push_back(request);
        self.early_wanted = early;
    }

    /// Starts keyboard-interactive authentication (RFC 4256).
    pub fn authenticate_keyboard_interactive(&mut self) {
        let request = self.auth.keyboard_interactive();
        self.auth_messages.push_back(request);
    }

    /// Answers [`Event::Questions`], one answer for each prompt.
    pub fn answer_questions(&mut self, answers: &[Zeroizing<String>]) {
        let response = self.auth.answers(answers);
        self.auth_messages.push_back(response);
    }

    fn bound_host_key(&self) -> Option<&[u8]> {
        if self.transport.ext_info().publickey_hostbound {
            self.transport.host_key().map(|key| &key[..])
        } else {
            None
        }
    }

    fn is_openssh(&self) -> bool {
        self.transport.server_id().is_some_and(ServerId::is_openssh)
    }

    // Actions of the application: channels. See [`Channels`]; on a channel that is gone, all of them do nothing.

    /// Opens a channel; it can be used at once.
    pub fn open(&mut self, kind: &ChannelKind) -> ChannelId {
        self.channels.open(kind)
    }

    /// Opens a session in the flight of the next signed log-in, even if the server is not sshd. The session gets no
    /// requests; [`Event::EarlySession`] reports the outcome.
    pub fn open_with_log_in(&mut self) {
        self.early_session = EarlySession::Wanted;
    }

    /// Sends a request in a session.
    pub fn request(&mut self, id: ChannelId, request: &ChannelRequest) {
        self.channels.request(id, request);
    }

    /// Queues data for a channel. Keep [`Self::waiting`] in bounds.
    pub fn write(&mut self, id: ChannelId, data: Bytes) {
        self.channels.write(id, data);
    }

    /// Ends a channel's data, after the queued data.
    pub fn eof(&mut self, id: ChannelId) {
        self.channels.eof(id);
    }

    /// Closes a channel now.
    pub fn close(&mut self, id: ChannelId) {
        self.channels.close(id);
    }

    /// Notes that `n` bytes of a channel's data were read, so that the server may send as many more.
    pub fn consume(&mut self, id: ChannelId, n: usize, now: Instant) {
        self.channels.consume(id, n, now);
    }

    /// Accepts a channel that the server offered.
    pub fn accept(&mut self, id: ChannelId) {
        self.channels.accept(id);
    }

    /// Rejects a channel that the server offered.
    pub fn reject(&mut self, id: ChannelId, reason: OpenFailure, description: &str) {
        self.channels.reject(id, reason, description);
    }

    /// Sends a global request.
    pub fn global_request(&mut self, request: &GlobalRequest) -> GlobalRequestId {
        self.channels.global_request(request)
    }

    /// Checks that the server is alive, with ping@openssh.com if the server supports it, else with
    /// keepalive@openssh.com. [`Event::Pong`] reports the answer. Any other message from the server shows the same.
    pub fn ping(&mut self) {
        if self.transport.ext_info().ping {
            self.ping_wanted = true;
        } else if self.authenticated {
            let id = self.channels.global_request(&GlobalRequest::Keepalive);
            self.pings.push(id);
        }
    }

    /// Sends a packet that looks like a typed byte on the network, if the server supports ping@openssh.com. Its answer
    /// makes no event.
    pub fn chaff(&mut self) {
        self.chaff_wanted = self.authenticated && self.transport.ext_info().ping;
    }

    /// Sets the round-trip time that connecting showed, possibly only to a proxy. It counts until an answer has been
    /// timed.
    pub fn assume_rtt(&mut self, rtt: Duration) {
        self.channels.assume_rtt(rtt);
    }

    /// Notes the time of an answer to something sent after authentication, when nothing else came meanwhile. The
    /// shortest recent one is the round-trip time, which decides how far receive windows grow.
    pub fn answered_after(&mut self, time: Duration, now: Instant) {
        self.channels.answered_after(time, now);
    }

    /// Notes the time of an answer that may include the server's work: an upper bound of the round trip.
    pub fn answered_within(&mut self, time: Duration) {
        self.channels.answered_within(time);
    }

    /// Notes that the socket had nothing left to read. This distinguishes a server that waits for credit from one that
    /// this side has not kept up with.
    pub fn input_drained(&mut self) {
        self.channels.mark_drained();
    }

    /// Returns whether the server was seen to wait for credit since the last call: its next data should be read without
    /// delay.
    pub fn take_starved(&mut self) -> bool {
        self.channels.take_starved()
    }

    /// Returns the round-trip time that the server's answers have shown, from the key exchange on, or `None` before the
    /// first.
    pub fn rtt(&self) -> Option<Duration> {
        self.channels.rtt()
    }

    /// Returns the number of timed answers that took the server no work. While it is 0, [`Self::rtt`] is an upper
    /// bound.
    pub fn rtt_measurements(&self) -> u32 {
        self.channels.rtt_measurements()
    }

    /// Starts a key exchange as soon as possible.
    pub fn rekey(&mut self) {
        self.transport.rekey();
    }

    /// Ends the connection with a message to the server. Call [`Self::poll_transmit`] once more, then drop it.
    pub fn disconnect(&mut self, reason: DisconnectReason, description: &str) {
        self.transport.send_disconnect(reason, description);
    }

    /// Releases the memory of empty buffers, for idle connections.
    pub fn release_buffers(&mut self) {
        self.transport.release_buffers();
    }

    // Output.

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.events.is_empty() {
            // The events that remain there come from the application's actions, not from the server.
            let _ = self.collect_channel_events();
        }
        self.events.pop_front()
    }

    /// Returns bytes for the server: send from the front and remove what was sent. Empty if there are none.
    pub fn poll_transmit(&mut self, now: Instant) -> Result<&mut BytesMut, Error> {
        self.transport.rekey_if_due(now)?;
        if let EarlySession::Asked { pinged, .. } = &mut self.early_session
            && self.authenticated
            && !std::mem::replace(pinged, true)
        {
            self.ping();
        }
        while self.transport.outgoing().len() < BATCH && self.transport.may_send() {
            if !self.transmit_one()? {
                break;
            }
        }
        self.transport.exchange().note_sent(now);
        Ok(self.transport.outgoing())
    }

    /// Returns when to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.transport
            .rekey_at()
            .into_iter()
            .chain(self.early_due())
            .min()
    }

    /// Seals the next message; returns `false` if there is none to send now.
    fn transmit_one(&mut self) -> Result<bool, Error> {
        if std::mem::take(&mut self.ping_wanted) {
            self.ping = Some(
                self.transport
                    .send(&[&Writer::message(message::PING).string("").finish()])?,
            );
            return Ok(true);
        }
        if std::mem::take(&mut self.chaff_wanted) {
            let chaff = Writer::message(message::PING).string(CHAFF).finish();
            self.transport.send(&[&chaff])?;
            return Ok(true);
        }
        if let Some(message) = self.answers.pop_front() {
            self.answers_owed.settle(message.len());
            self.transport.send(&[&message])?;
            return Ok(true);
        }
        if let Some(message) = self.auth_messages.pop_front() {
            let is_request = message.first() == Some(&message::USERAUTH_REQUEST);
            // RFC 4253 section 10 has the service accepted first. sshd handles packets one by one, so that the service
            // reads the request after it in any case.
            let is_ahead = is_request && !self.auth.service_accepted();
            if is_ahead && !self.may_log_in_early() {
                self.auth_messages.push_front(message);
                return Ok(false);
            }
            self.auth_is_ahead |= is_ahead;
            self.transport.exchange().ask_next();
            self.transport.send(&[&message])?;
            // It may have contained a password.
            if let Ok(mut message) = message.try_into_mut() {
                message.as_mut().zeroize();
            }
            if is_request && std::mem::take(&mut self.early_wanted) {
                self.transmit_early()?;
            }
            return Ok(true);
        }
        if !self.authenticated {
            return Ok(false);
        }
        self.channels.allow_overdraft(self.early_stdin && self.is_sshd());
        if let Some(message) = self.again.pop_front() {
            if let Some(id) = message.channel {
                // The channel was given up in between: it is opened only to be closed.
                if self.channels.is_abandoned(id) && message.payload.first() != Some(&message::CHANNEL_OPEN) {
                    return Ok(true);
                }
                self.channels.set_started(id, Started::Maybe);
            }
            self.transport.send(&[&message.payload])?;
            return Ok(true);
        }
        match self.channels.next_message() {
            None => return Ok(false),
            Some(Outgoing::Control(message)) => {
                let sequence = self.transport.send(&[&message])?;
                if message.first() == Some(&message::GLOBAL_REQUEST)
                    && let Some(id) = self.channels.global_request_left(self.global_requests.len())
                {
                    self.global_requests.push_back((sequence, id));
                }
            }
            Some(Outgoing::Data { head, data }) => {
                self.transport.send(&[&head, &data])?;
            }
        }
        Ok(true)
    }

    /// Sends channel messages directly after the authentication request, if the server is sshd, which processes its
    /// packets in order and refuses each by number. Other servers get at most the opening of a session, with nothing to
    /// run in it. Nothing is sent early with compression, which the server starts in the middle.
    fn transmit_early(&mut self) -> Result<(), Error> {
        let compressing = self
            .transport
            .active_algorithms()
            .is_none_or(|negotiated| negotiated.outgoing.compression != Compression::None);
        if compressing || !self.early.is_empty() {
            return Ok(());
        }
        if !self.early_flights || !self.is_sshd() {
            return self.transmit_early_session();
        }
        self.early_session = EarlySession::None;
        self.channels.allow_overdraft(self.early_stdin);
        for (channel, payload) in self.channels.take_early() {
            let sequence = self.transport.send(&[&payload])?;
            self.early.push(EarlyMessage {
                sequence,
                channel,
                payload,
                refused: false,
            });
        }
        let first = self.early.iter().find_map(|message| message.channel);
        if let Some(channel) = first.filter(|id| self.channels.awaits_start(*id)) {
            self.early_command = Some(EarlyCommand {
                channel,
                due: None,
                asked: false,
            });
        }
        Ok(())
    }

    fn transmit_early_session(&mut self) -> Result<(), Error> {
        if self.early_session != EarlySession::Wanted {
            return Ok(());
        }
        let (id, opening) = self.channels.open_apart(&ChannelKind::Session);
        self.early_session = EarlySession::Asked {
            id,
            sequence: self.transport.send(&[&opening])?,
            pongs: 0,
            pinged: false,
        };
        Ok(())
    }
}
