//! The state machine against a stock sshd, driven over a blocking socket.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use aws_lc_rs::signature::Ed25519KeyPair;
use bytes::{Buf, BufMut, Bytes};
use trunkline_proto::cipher::Cipher;
use trunkline_proto::kex::KexMethod;
use trunkline_proto::mac::Mac;
use trunkline_proto::wire::Writer;
use trunkline_proto::{
    ChannelEvent, ChannelId, ChannelKind, ChannelRequest, Compression, Config, Connection, Event, Stream,
};
use trunkline_testkit::{KeyType, Sshd};

/// An ed25519 client key.
struct Key {
    pair: Ed25519KeyPair,
    blob: Bytes,
}

impl Key {
    fn load(path: &Path) -> Self {
        let key = ssh_key::PrivateKey::read_openssh_file(path).unwrap();
        let pair = key.key_data().ed25519().unwrap();
        let blob = Writer::new().string("ssh-ed25519").string(pair.public.0).finish();
        Self {
            pair: Ed25519KeyPair::from_seed_and_public_key(&pair.private.to_bytes(), &pair.public.0).unwrap(),
            blob,
        }
    }

    fn sign(&self, data: &[u8]) -> Bytes {
        Writer::new()
            .string("ssh-ed25519")
            .string(self.pair.sign(data))
            .finish()
    }
}

/// A connection with a socket under it.
struct Client {
    socket: TcpStream,
    connection: Connection,
    flights: usize,
    events: Vec<Event>,
}

impl Client {
    fn connect(addr: SocketAddr, config: Config) -> Self {
        let socket = TcpStream::connect(addr).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self {
            socket,
            connection: Connection::new(config).unwrap(),
            flights: 0,
            events: Vec::new(),
        }
    }

    fn flush(&mut self) {
        loop {
            let outgoing = self.connection.poll_transmit(Instant::now()).unwrap();
            if outgoing.is_empty() {
                break;
            }
            self.socket.write_all(outgoing).unwrap();
            let len = outgoing.len();
            outgoing.advance(len);
        }
    }

    /// One flight out, at least one read in.
    fn turn(&mut self) -> bool {
        self.flush();
        self.flights += 1;
        let mut chunk = vec![0; 256 * 1024];
        let n = self.socket.read(&mut chunk).unwrap();
        self.connection.receive_buffer().put_slice(&chunk[..n]);
        self.connection.handle_received(Instant::now()).unwrap();
        n > 0
    }

    fn next_event(&mut self) -> Event {
        loop {
            if let Some(event) = self.connection.poll_event() {
                self.events.push(event.clone());
                return event;
            }
            assert!(self.turn(), "the server closed the connection");
        }
    }

    fn log_in(&mut self, key: &Key, early: bool) {
        loop {
            match self.next_event() {
                Event::HostKey(_) => self.connection.accept_host_key(Instant::now()).unwrap(),
                Event::Authenticate(turn) => {
                    assert!(turn.methods.is_none(), "the key was refused");
                    let data = self.connection.data_to_sign("ssh-ed25519", &key.blob).unwrap();
                    self.connection
                        .authenticate_key("ssh-ed25519", &key.blob, &key.sign(&data), early);
                }
                Event::Authenticated => return,
                _ => {}
            }
        }
    }

    /// Reads a session to its end.
    fn output(&mut self, id: ChannelId) -> (Vec<u8>, Option<u32>) {
        let (mut output, mut status) = (Vec::new(), None);
        loop {
            match self.next_event() {
                Event::Channel(ChannelEvent::Data { id, stream, data }) => {
                    self.connection.consume(id, data.len(), Instant::now());
                    // What a login shell's start-up files complain about is not the command's output.
                    if stream == Stream::Data {
                        output.extend_from_slice(&data);
                    }
                    self.events.clear();
                }
                Event::Channel(ChannelEvent::ExitStatus { status: s, .. }) => status = Some(s),
                Event::Channel(ChannelEvent::Closed(closed)) if closed == id => return (output, status),
                Event::Channel(ChannelEvent::OpenFailed { .. }) => panic!("the session was refused"),
                _ => {}
            }
        }
    }

    fn run(&mut self, command: &str, input: Option<&[u8]>) -> (Vec<u8>, Option<u32>) {
        let id = self.start(command, input);
        self.output(id)
    }

    fn start(&mut self, command: &str, input: Option<&[u8]>) -> ChannelId {
        let id = self.connection.open(&ChannelKind::Session);
        self.connection.request(id, &ChannelRequest::Exec(command.into()));
        if let Some(input) = input {
            self.connection.write(id, Bytes::copy_from_slice(input));
            self.connection.eof(id);
        }
        id
    }
}

fn server() -> (Sshd, Key) {
    let sshd = Sshd::start_default().unwrap();
    let key = Key::load(sshd.client_keys()[0].private_path());
    (sshd, key)
}

#[test]
fn a_command_runs_in_three_flights_after_tcp() {
    let (sshd, key) = server();
    let mut client = Client::connect(sshd.addr(), Config::new(sshd.user()));
    let id = client.start("cat; exit 7", Some(b"early input"));
    client.log_in(&key, true);
    let flights = client.flights;
    assert_eq!(client.output(id), (b"early input".to_vec(), Some(7)));
    // Identification and KEXINIT; the method; everything else. A read may return less than the server wrote, so
    // that the count is of writes that had something to say.
    assert!(flights >= 3);
    assert_eq!(sshd.authentications(), 1);
}

#[test]
fn a_refused_key_lets_nothing_run_and_the_same_messages_run_once_after_the_right_one() {
    let (sshd, key) = server();
    let wrong = {
        let dir = tempfile::tempdir().unwrap();
        let pair = trunkline_testkit::KeyPair::generate(dir.path(), "wrong", KeyType::Ed25519).unwrap();
        Key::load(pair.private_path())
    };
    let marker = sshd.dir().join("ran");
    let mut client = Client::connect(sshd.addr(), Config::new(sshd.user()));
    let id = client.start(&format!("cat >> {}", marker.display()), Some(b"x"));
    let mut attempts = 0;
    loop {
        match client.next_event() {
            Event::HostKey(_) => client.connection.accept_host_key(Instant::now()).unwrap(),
            Event::Authenticate(_) => {
                let key = if attempts == 0 { &wrong } else { &key };
                attempts += 1;
                let data = client.connection.data_to_sign("ssh-ed25519", &key.blob).unwrap();
                client
                    .connection
                    .authenticate_key("ssh-ed25519", &key.blob, &key.sign(&data), true);
            }
            Event::Authenticated => break,
            _ => {}
        }
    }
    assert_eq!(attempts, 2);
    assert_eq!(client.output(id), (Vec::new(), Some(0)));
    assert_eq!(std::fs::read(marker).unwrap(), b"x");
}

#[test]
fn every_key_exchange_cipher_and_mac_works() {
    // OpenSSH 10.0 has the finite fields no longer by itself.
    let methods = KexMethod::DEFAULT
        .iter()
        .filter(|m| **m != KexMethod::MlKem768X25519Sha256);
    let names: Vec<&str> = methods.clone().map(|method| method.name()).collect();
    let sshd = Sshd::builder()
        .config(&format!("KexAlgorithms {}", names.join(",")))
        .start()
        .unwrap();
    let key = Key::load(sshd.client_keys()[0].private_path());
    for method in methods {
        let mut config = Config::new(sshd.user());
        config.preferences.kex = vec![*method];
        let mut client = Client::connect(sshd.addr(), config);
        client.log_in(&key, false);
        assert_eq!(client.run("echo ok", None).0, b"ok\n", "{method:?}");
    }
    for cipher in Cipher::DEFAULT {
        for mac in Mac::DEFAULT {
            for compression in [Compression::None, Compression::Zlib] {
                let mut config = Config::new(sshd.user());
                config.preferences.ciphers = vec![*cipher];
                config.preferences.macs = vec![*mac];
                config.preferences.compression = vec![compression];
                let mut client = Client::connect(sshd.addr(), config);
                client.log_in(&key, true);
                let (output, status) = client.run("cat", Some(&[b'z'; 100_000]));
                assert_eq!(
                    (output.len(), status),
                    (100_000, Some(0)),
                    "{cipher:?} {mac:?} {compression:?}"
                );
                if cipher.is_aead() && *mac != Mac::DEFAULT[0] {
                    break;
                }
            }
        }
    }
}

#[test]
fn keys_are_exchanged_anew_under_load_in_both_directions() {
    let (sshd, key) = server();
    let mut config = Config::new(sshd.user());
    config.rekey_limit.bytes = Some(1_000_000);
    let mut client = Client::connect(sshd.addr(), config);
    client.log_in(&key, false);
    let input: Vec<u8> = (0..1_500_000u32).flat_map(u32::to_be_bytes).collect();
    // Written in pieces, so that both directions are busy.
    let id = client.connection.open(&ChannelKind::Session);
    client.connection.request(id, &ChannelRequest::Exec("cat".into()));
    client.connection.write(id, Bytes::from(input.clone()));
    client.connection.eof(id);
    let (output, status) = client.output(id);
    assert_eq!(status, Some(0));
    assert!(output == input, "every byte comes back in order");
    let rekeys = sshd.log().text().matches("rekeying in progress").count()
        + sshd.log().text().matches("SSH2_MSG_NEWKEYS received").count();
    assert!(rekeys > 3, "{rekeys} key exchanges");
}

#[test]
fn a_right_guess_saves_a_flight() {
    let (sshd, key) = server();
    let mut client = Client::connect(sshd.addr(), Config::new(sshd.user()));
    client.log_in(&key, false);
    let (kex, host_key) = client.connection.server_first_choices().unwrap();
    let (kex, host_key) = (KexMethod::from_name(kex).unwrap(), host_key.to_owned());

    let mut config = Config::new(sshd.user());
    config.preferences.kex = vec![kex];
    config.preferences.host_keys = vec![host_key];
    config.guess = Some(kex.generate().unwrap());
    let mut client = Client::connect(sshd.addr(), config);
    client.flush();
    // From here on only reads: the server must get as far as its host key by itself.
    while !matches!(client.next_event(), Event::HostKey(_)) {}
    client.connection.accept_host_key(Instant::now()).unwrap();
    client.log_in(&key, false);
    assert_eq!(client.run("echo ok", None).0, b"ok\n");
}

#[test]
fn a_wrong_guess_costs_nothing_but_its_bytes() {
    let (sshd, key) = server();
    let mut config = Config::new(sshd.user());
    config.preferences.kex = vec![KexMethod::EcdhNistP384, KexMethod::Curve25519Sha256];
    config.guess = Some(KexMethod::EcdhNistP384.generate().unwrap());
    let mut client = Client::connect(sshd.addr(), config);
    client.log_in(&key, false);
    assert_eq!(client.run("echo ok", None).0, b"ok\n");
}
