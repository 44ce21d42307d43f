//! The server's half of a whole connection, without I/O: sshd's order of things, with one algorithm of each kind, and
//! a fault wherever a test wants one. Every command is `cat`.

use std::collections::{BTreeMap, VecDeque};

use aws_lc_rs::agreement::{self, PrivateKey, UnparsedPublicKey, X25519};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use bytes::Bytes;
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};
use trunkline_proto::cipher::{Cipher, Opener, PacketKeys, Sealer};
use trunkline_proto::wire::{Reader, Writer};

pub(crate) const OPENSSH: &str = "SSH-2.0-OpenSSH_9.9 model";
const SESSION_WINDOW: i64 = 2 << 20;
const MAX_PACKET: usize = 256 * 1024;

/// The server's choices.
#[derive(Debug, Clone)]
pub(crate) struct Behaviour {
    pub(crate) id: &'static str,
    pub(crate) kex: &'static str,
    pub(crate) macs: &'static str,
    pub(crate) strict: bool,
    /// Announces a guess that turns out wrong, and sends it.
    pub(crate) wrong_guess: bool,
    pub(crate) ignore_before_kexinit: bool,
    pub(crate) ignore_before_newkeys: bool,
    pub(crate) compression: &'static str,
    pub(crate) ext_info: Vec<(&'static str, &'static str)>,
    /// Reads SSH_MSG_EXT_INFO, and sends a second one after the first authentication request to a client that says it reads
    /// that.
    pub(crate) ext_info_in_auth: Option<&'static str>,
    pub(crate) banner: Option<&'static str>,
    /// The answers to authentication requests, in order; then success.
    pub(crate) answers: VecDeque<Answer>,
    /// Answers UNIMPLEMENTED to what it cannot use before the login, as sshd does; or says nothing.
    pub(crate) says_unimplemented: bool,
    /// Exchanges keys anew whenever it has sent so many bytes.
    pub(crate) rekey_bytes: usize,
    /// Lists its host keys after the login.
    pub(crate) host_keys: bool,
    pub(crate) disconnect_after_login: Option<&'static str>,
    /// Its treatment of messages of channels that arrive in one piece with the log-in.
    pub(crate) early: Early,
    /// The number of its first channel.
    pub(crate) first_channel: u32,
    /// Answers UNIMPLEMENTED to every global request, as tinysshd does.
    pub(crate) no_global_requests: bool,
}

/// A server's treatment of messages of channels that come ahead of its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Early {
    /// Works through them in order.
    Taken,
    /// Opens the channel, and passes by what is for it before the client can know that.
    OpensOnly,
    /// Passes by everything.
    Dropped,
}

/// The MACs of sshd's default configuration begin so.
pub(crate) const MACS_OF_SSHD: &str = "umac-64-etm@openssh.com,hmac-sha2-256-etm@openssh.com,hmac-sha2-256";

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            id: OPENSSH,
            kex: "curve25519-sha256",
            macs: MACS_OF_SSHD,
            strict: true,
            wrong_guess: false,
            ignore_before_kexinit: false,
            ignore_before_newkeys: false,
            compression: "none",
            ext_info: vec![("server-sig-algs", "ssh-ed25519"), ("ping@openssh.com", "0")],
            ext_info_in_auth: None,
            banner: None,
            answers: VecDeque::new(),
            says_unimplemented: true,
            rekey_bytes: usize::MAX,
            host_keys: false,
            disconnect_after_login: None,
            early: Early::Taken,
            first_channel: 0,
            no_global_requests: false,
        }
    }
}

/// The answer to an authentication request.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Failure {
        methods: &'static str,
        partial: bool,
    },
    Questions(Vec<&'static str>),
    ChangePassword,
    /// Says why, and ends the connection.
    Disconnect(&'static str),
    /// Nothing at all: whatever becomes of the request, the client does not hear of it.
    Silence,
}

pub(crate) struct Server {
    behaviour: Behaviour,
    host_key: Ed25519KeyPair,
    /// Bytes for the client.
    pub(crate) outgoing: Vec<u8>,
    incoming: Vec<u8>,
    client_id: Option<String>,
    opener: Opener,
    sealer: Sealer,
    sequence_in: u32,
    sequence_out: u32,
    deflate: Option<Compress>,
    inflate: Option<Decompress>,
    strict: bool,
    session_id: Option<Vec<u8>>,
    our_init: Option<Bytes>,
    their_init: Option<Vec<u8>>,
    skip_guess: bool,
    next_opener: Option<Opener>,
    /// Messages that may not be sent before our NEWKEYS.
    held: Vec<Bytes>,
    sent_since_kex: usize,
    authenticated: bool,
    channels: BTreeMap<u32, Channel>,
    next_channel: u32,
    /// The log-in has succeeded, and no answer has reached the client yet.
    is_early: bool,

    // What happened, for the test to look at.
    pub(crate) exchanges: usize,
    pub(crate) methods: Vec<String>,
    pub(crate) responses: Vec<Vec<u8>>,
    pub(crate) passwords: Vec<Vec<u8>>,
    pub(crate) executed: Vec<String>,
    pub(crate) got: BTreeMap<u32, Vec<u8>>,
    pub(crate) refused: usize,
    pub(crate) granted: u64,
    pub(crate) disconnected: Option<String>,
    pub(crate) compressed: usize,
    /// Names in the client's SSH_MSG_EXT_INFO, which was the first packet behind its NEWKEYS.
    pub(crate) client_extensions: Vec<String>,
    newkeys: bool,
}

#[derive(Debug, Default)]
struct Channel {
    client: u32,
    window: i64,
    running: bool,
    credit: usize,
    echo: VecDeque<u8>,
    eof: bool,
    closed: bool,
}

impl Server {
    pub(crate) fn new(behaviour: Behaviour) -> Self {
        let mut server = Self {
            next_channel: behaviour.first_channel,
            is_early: false,
            host_key: Ed25519KeyPair::generate().unwrap(),
            outgoing: format!("{}\r\n", behaviour.id).into_bytes(),
            behaviour,
            incoming: Vec::new(),
            client_id: None,
            opener: Opener::plaintext(),
            sealer: Sealer::plaintext(),
            sequence_in: 0,
            sequence_out: 0,
            deflate: None,
            inflate: None,
            strict: false,
            session_id: None,
            our_init: None,
            their_init: None,
            skip_guess: false,
            next_opener: None,
            held: Vec::new(),
            sent_since_kex: 0,
            authenticated: false,
            channels: BTreeMap::new(),
            exchanges: 0,
            methods: Vec::new(),
            responses: Vec::new(),
            passwords: Vec::new(),
            executed: Vec::new(),
            got: BTreeMap::new(),
            refused: 0,
            granted: 0,
            disconnected: None,
            compressed: 0,
            client_extensions: Vec::new(),
            newkeys: false,
        };
        if server.behaviour.ignore_before_kexinit {
            server.seal(&Writer::message(2).string("boo").finish());
        }
        server.send_init();
        server
    }

    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.incoming.extend_from_slice(bytes);
        if self.client_id.is_none() {
            let Some(end) = self.incoming.iter().position(|b| *b == b'\n') else {
                return;
            };
            let line: Vec<u8> = self.incoming.drain(..=end).collect();
            self.client_id = Some(String::from_utf8(line).unwrap().trim_end().to_owned());
        }
        while let Some(payload) = self.open() {
            self.handle(&payload);
        }
        self.is_early = false;
        self.pump();
    }

    // Packets.

    fn open(&mut self) -> Option<Vec<u8>> {
        let len = self
            .opener
            .packet_len(self.sequence_in, &mut self.incoming, MAX_PACKET)
            .expect("a proper packet")?;
        if self.incoming.len() < len {
            return None;
        }
        let mut packet: Vec<u8> = self.incoming.drain(..len).collect();
        let payload = self
            .opener
            .open(self.sequence_in, &mut packet)
            .expect("an authentic packet");
        self.sequence_in += 1;
        let payload = &packet[payload];
        let Some(inflate) = &mut self.inflate else {
            return Some(payload.to_vec());
        };
        self.compressed += 1;
        let mut plain = Vec::with_capacity(MAX_PACKET);
        inflate
            .decompress_vec(payload, &mut plain, FlushDecompress::Sync)
            .expect("a piece of a zlib stream");
        Some(plain)
    }

    fn seal(&mut self, payload: &[u8]) {
        let mut compressed = Vec::new();
        let payload = match &mut self.deflate {
            Some(deflate) => {
                compressed.reserve(payload.len() * 2 + 1024);
                deflate
                    .compress_vec(payload, &mut compressed, FlushCompress::Partial)
                    .unwrap();
                &compressed[..]
            }
            None => payload,
        };
        let padding = self.sealer.padding_len(payload.len());
        let start = self.outgoing.len();
        self.outgoing
            .extend_from_slice(&u32::try_from(1 + payload.len() + padding).unwrap().to_be_bytes());
        self.outgoing.push(u8::try_from(padding).unwrap());
        self.outgoing.extend_from_slice(payload);
        self.outgoing
            .resize(self.outgoing.len() + padding + self.sealer.tag_len(), 0);
        self.sealer.seal(self.sequence_out, &mut self.outgoing[start..]);
        self.sequence_out += 1;
        self.sent_since_kex += self.outgoing.len() - start;
    }

    /// A message of the layers above the transport: held while keys are exchanged.
    pub(crate) fn send(&mut self, writer: Writer) {
        if self.our_init.is_some() {
            self.held.push(writer.finish());
            return;
        }
        self.seal(&writer.finish());
        if self.authenticated && self.sent_since_kex > self.behaviour.rekey_bytes {
            self.send_init();
        }
    }

    fn handle(&mut self, payload: &[u8]) {
        let mut reader = Reader::new(payload);
        let is_first = std::mem::take(&mut self.newkeys);
        match reader.u8().unwrap() {
            7 if is_first && self.behaviour.ext_info_in_auth.is_some() => {
                for _ in 0..reader.u32().unwrap() {
                    self.client_extensions.push(reader.utf8().unwrap().to_owned());
                    assert_eq!(reader.utf8().unwrap(), "0");
                }
            }
            1 => {
                reader.u32().unwrap();
                self.disconnected = Some(reader.utf8().unwrap().to_owned());
            }
            2..=4 | 193 => {}
            5 => {
                let service = reader.string().unwrap().to_vec();
                self.send(Writer::message(6).string(service));
                if let Some(banner) = self.behaviour.banner {
                    self.send(Writer::message(53).string(banner).string(""));
                }
            }
            20 => self.handle_init(payload),
            21 => {
                self.opener = self.next_opener.take().expect("keys are agreed on");
                self.newkeys = true;
                if self.strict {
                    self.sequence_in = 0;
                }
                // Compression begins anew with new keys (RFC 4253 section 6.2).
                self.inflate = self.inflate.take().map(|_| Decompress::new(true));
            }
            30 if std::mem::take(&mut self.skip_guess) => {}
            30 => self.handle_share(reader.string().unwrap()),
            50 => self.handle_auth(reader),
            61 => {
                self.responses.push(reader.rest().to_vec());
                self.answer_auth();
            }
            192 => self.send(Writer::message(193).string(reader.string().unwrap())),
            80..=127 if self.authenticated => self.handle_connection(payload),
            _ => {
                self.refused += 1;
                if self.behaviour.says_unimplemented {
                    self.send(Writer::message(3).u32(self.sequence_in - 1));
                }
            }
        }
    }

    // Key exchange.

    fn send_init(&mut self) {
        let first = self.session_id.is_none();
        let mut kex = vec![self.behaviour.kex];
        if self.behaviour.strict && first {
            kex.push("kex-strict-s-v00@openssh.com");
        }
        if self.behaviour.ext_info_in_auth.is_some() && first {
            kex.push("ext-info-s");
        }
        let guess = self.behaviour.wrong_guess && first;
        let none = "";
        let init = Writer::message(20)
            .raw(&[9; 16])
            .string(kex.join(","))
            .string("ssh-ed25519")
            .string("aes128-gcm@openssh.com")
            .string("aes128-gcm@openssh.com")
            .string(self.behaviour.macs)
            .string(self.behaviour.macs)
            .string(self.behaviour.compression)
            .string(self.behaviour.compression)
            .string(none)
            .string(none)
            .bool(guess)
            .u32(0)
            .finish();
        self.seal(&init);
        if guess {
            self.seal(
                &Writer::message(31)
                    .string("what another method would say")
                    .finish(),
            );
        }
        self.our_init = Some(init);
    }

    fn handle_init(&mut self, payload: &[u8]) {
        if self.our_init.is_none() {
            self.send_init();
        }
        let mut reader = Reader::new(&payload[17..]);
        let (kex, host_keys) = (reader.name_list().unwrap(), reader.name_list().unwrap());
        if self.session_id.is_none() {
            self.strict = self.behaviour.strict && kex.contains(&"kex-strict-c-v00@openssh.com");
        }
        let ours = self.behaviour.kex.split(',').next().unwrap();
        let right = kex[0] == ours && host_keys[0] == "ssh-ed25519";
        for _ in 0..8 {
            reader.string().unwrap();
        }
        self.skip_guess = reader.bool().unwrap() && !right;
        self.their_init = Some(payload.to_vec());
    }

    fn handle_share(&mut self, client_share: &[u8]) {
        let key = PrivateKey::generate(&X25519).unwrap();
        let share = key.compute_public_key().unwrap();
        let peer = UnparsedPublicKey::new(&X25519, client_share);
        let secret = agreement::agree(&key, peer, (), |secret| Ok(secret.to_vec())).unwrap();
        let secret = Writer::new().mpint(&secret).finish();
        let host_key = self.host_key_blob();
        let hash = digest(
            &SHA256,
            &Writer::new()
                .string(self.client_id.as_ref().unwrap())
                .string(self.behaviour.id)
                .string(self.their_init.take().unwrap())
                .string(self.our_init.take().unwrap())
                .string(&host_key)
                .string(client_share)
                .string(&share)
                .raw(&secret)
                .finish(),
        );
        let signature = Writer::new()
            .string("ssh-ed25519")
            .string(self.host_key.sign(hash.as_ref()))
            .finish();
        self.seal(
            &Writer::message(31)
                .string(&host_key)
                .string(&share)
                .string(signature)
                .finish(),
        );
        if self.behaviour.ignore_before_newkeys && self.session_id.is_none() {
            self.seal(&Writer::message(2).string("boo").finish());
        }
        self.seal(&[21]);
        let first = self.session_id.is_none();
        let session_id = self
            .session_id
            .get_or_insert_with(|| hash.as_ref().to_vec())
            .clone();
        let derive = |letter: u8, len: usize| {
            let input = [&secret[..], hash.as_ref(), &[letter], &session_id].concat();
            digest(&SHA256, &input).as_ref()[..len].to_vec().into()
        };
        let keys = |iv, key| PacketKeys {
            iv: derive(iv, 12),
            key: derive(key, 16),
            mac_key: Vec::new().into(),
        };
        self.sealer = Sealer::new(Cipher::Aes128Gcm, None, &keys(b'B', b'D'));
        self.next_opener = Some(Opener::new(Cipher::Aes128Gcm, None, &keys(b'A', b'C')));
        if self.strict {
            self.sequence_out = 0;
        }
        self.sent_since_kex = 0;
        self.exchanges += 1;
        self.deflate = self
            .deflate
            .take()
            .map(|_| Compress::new(Compression::new(6), true));
        if first && !self.behaviour.ext_info.is_empty() {
            let info = Writer::message(7).u32(u32::try_from(self.behaviour.ext_info.len()).unwrap());
            let info = self
                .behaviour
                .ext_info
                .iter()
                .fold(info, |info, (name, value)| info.string(name).string(value));
            self.seal(&info.finish());
        }
        for message in std::mem::take(&mut self.held) {
            self.seal(&message);
        }
    }

    pub(crate) fn host_key_blob(&self) -> Bytes {
        Writer::new()
            .string("ssh-ed25519")
            .string(self.host_key.public_key())
            .finish()
    }

    fn start_compression(&mut self) {
        if self.behaviour.compression != "none" {
            self.deflate = Some(Compress::new(Compression::new(6), true));
            self.inflate = Some(Decompress::new(true));
        }
    }

    // Authentication.

    fn handle_auth(&mut self, mut reader: Reader<'_>) {
        let (_user, _service, method) = (reader.string(), reader.string(), reader.utf8().unwrap());
        self.methods.push(method.to_owned());
        let renewed = self.behaviour.ext_info_in_auth.take();
        if let Some(renewed) = renewed.filter(|_| self.client_extensions == ["ext-info-in-auth@openssh.com"])
        {
            let info = Writer::message(7)
                .u32(2)
                .string("server-sig-algs")
                .string(renewed);
            self.send(info.string("ping@openssh.com").string("1"));
        }
        if method == "password" {
            let changes = reader.bool().unwrap();
            self.passwords.push(reader.string().unwrap().to_vec());
            if changes {
                self.passwords.push(reader.string().unwrap().to_vec());
            }
        }
        self.answer_auth();
    }

    fn answer_auth(&mut self) {
        match self.behaviour.answers.pop_front() {
            Some(Answer::Failure { methods, partial }) => {
                self.send(Writer::message(51).string(methods).bool(partial));
            }
            Some(Answer::Questions(prompts)) => {
                let request = Writer::message(60).string("name").string("do").string("");
                let request = request.u32(u32::try_from(prompts.len()).unwrap());
                self.send(
                    prompts
                        .iter()
                        .fold(request, |request, prompt| request.string(prompt).bool(false)),
                );
            }
            Some(Answer::ChangePassword) => self.send(Writer::message(60).string("it is old").string("")),
            Some(Answer::Disconnect(why)) => self.send(Writer::message(1).u32(2).string(why).string("")),
            Some(Answer::Silence) => {}
            None => self.succeed(),
        }
    }

    fn succeed(&mut self) {
        self.send(Writer::message(52));
        self.authenticated = true;
        self.is_early = true;
        self.start_compression();
        if self.behaviour.host_keys {
            let keys = Writer::message(80).string("hostkeys-00@openssh.com").bool(false);
            self.send(keys.string(self.host_key_blob()));
        }
        if let Some(text) = self.behaviour.disconnect_after_login {
            self.send(Writer::message(1).u32(11).string(text).string(""));
        }
    }

    // Channels.

    fn handle_connection(&mut self, payload: &[u8]) {
        let mut reader = Reader::new(payload);
        let number = reader.u8().unwrap();
        match self.behaviour.early {
            Early::OpensOnly if self.is_early && number > 90 => return,
            Early::Dropped if self.is_early => return,
            _ => {}
        }
        if number == 80 && self.behaviour.no_global_requests {
            return self.send(Writer::message(3).u32(self.sequence_in - 1));
        }
        if number == 80 {
            let name = reader.name().unwrap().to_owned();
            if reader.bool().unwrap() {
                let proof = Writer::message(81);
                self.send(if name == "hostkeys-prove-00@openssh.com" {
                    proof.string("proof")
                } else {
                    proof
                });
            }
            return;
        }
        if number == 90 {
            let (_kind, client, credit) = (reader.string(), reader.u32().unwrap(), reader.u32().unwrap());
            let number = self.next_channel;
            self.next_channel += 1;
            self.channels.insert(
                number,
                Channel {
                    client,
                    credit: credit as usize,
                    ..Channel::default()
                },
            );
            self.send(Writer::message(91).u32(client).u32(number).u32(0).u32(32 * 1024));
            return;
        }
        let to = reader.u32().unwrap();
        let channel = self
            .channels
            .get_mut(&to)
            .expect("sshd disconnects over a channel that does not exist");
        let client = channel.client;
        match number {
            93 => {
                let add = reader.u32().unwrap();
                channel.credit += add as usize;
                self.granted += u64::from(add);
            }
            94 => {
                let data = reader.string().unwrap();
                // A session in which nothing runs drops what comes, as sshd's.
                if channel.running {
                    channel.window -= data.len() as i64;
                    assert!(channel.window >= 0, "the window was overrun");
                    channel.echo.extend(data);
                    self.got.entry(to).or_default().extend_from_slice(data);
                    if channel.window < SESSION_WINDOW / 2 {
                        let add = SESSION_WINDOW - channel.window;
                        channel.window += add;
                        self.send(Writer::message(93).u32(client).u32(u32::try_from(add).unwrap()));
                    }
                }
            }
            96 => channel.eof = true,
            97 => {
                if !std::mem::replace(&mut channel.closed, true) {
                    self.send(Writer::message(97).u32(client));
                }
                self.channels.remove(&to);
            }
            98 => {
                let (name, wants_reply) = (reader.name().unwrap(), reader.bool().unwrap());
                if name == "exec" {
                    self.executed.push(reader.utf8().unwrap().to_owned());
                    channel.running = true;
                    channel.window += SESSION_WINDOW;
                    self.send(Writer::message(93).u32(client).u32(SESSION_WINDOW as u32));
                }
                if wants_reply {
                    self.send(Writer::message(99).u32(client));
                }
            }
            other => panic!("message {other} is not expected"),
        }
    }

    /// Echoes what the windows let out, and ends what is at its end.
    fn pump(&mut self) {
        let numbers: Vec<u32> = self.channels.keys().copied().collect();
        for number in numbers {
            while let Some(channel) = self.channels.get_mut(&number) {
                let len = channel.echo.len().min(channel.credit).min(32 * 1024);
                if len == 0 {
                    break;
                }
                let data: Vec<u8> = channel.echo.drain(..len).collect();
                channel.credit -= len;
                let message = Writer::message(94).u32(channel.client).string(data);
                self.send(message);
            }
            let Some(channel) = self.channels.get_mut(&number) else {
                continue;
            };
            if channel.eof && channel.echo.is_empty() && !channel.closed {
                channel.closed = true;
                let client = channel.client;
                self.send(
                    Writer::message(98)
                        .u32(client)
                        .string("exit-status")
                        .bool(false)
                        .u32(0),
                );
                self.send(Writer::message(96).u32(client));
                self.send(Writer::message(97).u32(client));
            }
        }
    }
}
