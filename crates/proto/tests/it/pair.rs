//! Whole connections on simulated time: the state machine and a server, with a latency between them and no socket.

mod server;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes};
use server::{Answer, Behaviour, Early, MACS_OF_SSHD, Server};
use trunkline_proto::kex::KexMethod;
use trunkline_proto::wire::Writer;
use trunkline_proto::{
    ChannelEvent, ChannelId, ChannelKind, ChannelRequest, Compression, Config, Connection, DisconnectReason,
    Error, Event, GlobalRequest, Started,
};
use zeroize::Zeroizing;

const RTT: Duration = Duration::from_millis(100);

/// The credential that the application shows when it is asked to authenticate.
#[derive(Debug, Clone, Copy)]
enum Credential {
    /// Any key does: the server does not verify it. `true`: with the early flight.
    Key(bool),
    Password(&'static str),
    KeyboardInteractive,
}

/// A connection, a server and the link between them. The client's end of TCP is up at time 0, the server's half a
/// round trip later.
struct Pair {
    client: Connection,
    server: Server,
    start: Instant,
    now: Instant,
    to_server: VecDeque<(Instant, Vec<u8>)>,
    to_client: VecDeque<(Instant, Vec<u8>)>,
    server_is_up: bool,
    credentials: VecDeque<Credential>,
    events: Vec<Event>,
    output: BTreeMap<ChannelId, Vec<u8>>,
}

impl Pair {
    fn new(config: Config, behaviour: Behaviour) -> Self {
        let now = Instant::now();
        Self {
            client: Connection::new(config).unwrap(),
            server: Server::new(behaviour),
            start: now,
            now,
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            server_is_up: false,
            credentials: VecDeque::from([Credential::Key(true)]),
            events: Vec::new(),
            output: BTreeMap::new(),
        }
    }

    fn cat(&mut self, input: Bytes) -> ChannelId {
        let id = self.client.open(&ChannelKind::Session);
        self.client.request(id, &ChannelRequest::Exec(b"cat".to_vec()));
        self.client.write(id, input);
        self.client.eof(id);
        id
    }

    /// Runs until an event that `until` wants, and tells how long it took since the start.
    fn run(&mut self, until: impl Fn(&Event) -> bool) -> Result<Duration, Error> {
        let mut seen = self.events.len();
        loop {
            if self.events[seen..].iter().any(&until) {
                return Ok(self.now - self.start);
            }
            seen = self.events.len();
            assert!(
                self.step()?,
                "nothing is under way any more, and it did not happen"
            );
        }
    }

    /// Runs until nothing is under way.
    fn settle(&mut self) -> Result<(), Error> {
        while self.step()? {}
        Ok(())
    }

    fn log_in(&mut self) -> Result<Duration, Error> {
        self.run(|event| *event == Event::Authenticated)
    }

    fn wait_for_close(&mut self, id: ChannelId) -> Result<Duration, Error> {
        self.run(|event| *event == Event::Channel(ChannelEvent::Closed(id)))
    }

    /// To the next arrival; `false` when there is none.
    fn step(&mut self) -> Result<bool, Error> {
        self.transmit()?;
        if !self.server_is_up && self.now - self.start >= RTT / 2 {
            self.server_is_up = true;
        }
        if self.server_is_up && !self.server.outgoing.is_empty() {
            self.to_client
                .push_back((self.now + RTT / 2, std::mem::take(&mut self.server.outgoing)));
        }
        let up = (!self.server_is_up).then_some(self.start + RTT / 2);
        let arrivals = [self.to_server.front(), self.to_client.front()];
        let Some(next) = arrivals.into_iter().flatten().map(|(at, _)| *at).chain(up).min() else {
            return Ok(false);
        };
        self.now = next;
        while let Some((_, bytes)) = self.to_server.pop_front_if(|(at, _)| *at <= next) {
            self.server.receive(&bytes);
        }
        while let Some((_, bytes)) = self.to_client.pop_front_if(|(at, _)| *at <= next) {
            self.client.receive_buffer().put_slice(&bytes);
            self.client.handle_received(next)?;
            self.handle_events()?;
        }
        Ok(true)
    }

    fn transmit(&mut self) -> Result<(), Error> {
        let mut bytes = Vec::new();
        loop {
            let outgoing = self.client.poll_transmit(self.now)?;
            if outgoing.is_empty() {
                break;
            }
            bytes.extend_from_slice(outgoing);
            let len = outgoing.len();
            outgoing.advance(len);
        }
        if !bytes.is_empty() {
            self.to_server.push_back((self.now + RTT / 2, bytes));
        }
        Ok(())
    }

    fn handle_events(&mut self) -> Result<(), Error> {
        while let Some(event) = self.client.poll_event() {
            match &event {
                Event::HostKey(_) => self.client.accept_host_key(self.now)?,
                Event::Authenticate(_) => match self.credentials.pop_front() {
                    Some(Credential::Key(early)) => {
                        self.client
                            .data_to_sign("ssh-ed25519", b"key")
                            .expect("keys are agreed on");
                        self.client
                            .authenticate_key("ssh-ed25519", b"key", b"signature", early);
                    }
                    Some(Credential::Password(password)) => {
                        self.client.authenticate_password(password, None, false);
                    }
                    Some(Credential::KeyboardInteractive) => self.client.authenticate_keyboard_interactive(),
                    None => {}
                },
                Event::PasswordExpired { .. } => self.client.authenticate_password("old", Some("new"), false),
                Event::Questions { prompts, .. } => {
                    let answers: Vec<_> = prompts
                        .iter()
                        .map(|p| Zeroizing::new(p.text.to_uppercase()))
                        .collect();
                    self.client.answer_questions(&answers);
                }
                Event::Channel(ChannelEvent::Data { id, data, .. }) => {
                    self.client.consume(*id, data.len(), self.now);
                    self.output.entry(*id).or_default().extend_from_slice(data);
                    continue;
                }
                _ => {}
            }
            self.events.push(event);
        }
        Ok(())
    }
}

/// A client that wants exactly what the server leads with.
fn guessing() -> Config {
    let mut config = Config::new("jo");
    config.preferences.kex = vec![KexMethod::Curve25519Sha256];
    config.preferences.host_keys = vec!["ssh-ed25519".into()];
    config.guess = Some(KexMethod::Curve25519Sha256.generate().unwrap());
    config
}

fn numbers(count: u32) -> Bytes {
    (0..count).flat_map(u32::to_be_bytes).collect()
}

fn is_data_reply(event: &Event) -> bool {
    matches!(event, Event::Channel(ChannelEvent::ExitStatus { status: 0, .. }))
}

// The flights.

#[test]
fn a_cold_command_with_input_takes_three_round_trips_behind_tcp() {
    let mut pair = Pair::new(Config::new("jo"), Behaviour::default());
    let id = pair.cat(Bytes::from_static(b"input"));
    assert_eq!(pair.run(is_data_reply).unwrap(), RTT * 3);
    assert_eq!(pair.output[&id], b"input");
    assert_eq!(pair.server.methods, ["publickey"]);
    // The channel is gone, and nobody may take its command for one that did not begin.
    assert_eq!(pair.client.start_state(id), Started::Maybe);
}

#[test]
fn a_right_guess_saves_a_round_trip() {
    let mut pair = Pair::new(guessing(), Behaviour::default());
    let id = pair.cat(Bytes::from_static(b"input"));
    assert_eq!(pair.run(is_data_reply).unwrap(), RTT * 2);
    assert_eq!(pair.output[&id], b"input");
}

#[test]
fn a_wrong_guess_costs_no_time() {
    let mut config = Config::new("jo");
    config.preferences.kex = vec![KexMethod::EcdhNistP256, KexMethod::Curve25519Sha256];
    config.guess = Some(KexMethod::EcdhNistP256.generate().unwrap());
    let mut pair = Pair::new(config, Behaviour::default());
    pair.cat(Bytes::new());
    assert_eq!(pair.run(is_data_reply).unwrap(), RTT * 3);
}

#[test]
fn a_guess_of_the_right_method_with_another_host_key_is_sent_again() {
    let mut config = guessing();
    config
        .preferences
        .host_keys
        .insert(0, "ecdsa-sha2-nistp256".into());
    let mut pair = Pair::new(config, Behaviour::default());
    pair.cat(Bytes::new());
    assert_eq!(pair.run(is_data_reply).unwrap(), RTT * 3);
}

#[test]
fn a_wrong_guess_of_the_server_is_thrown_away() {
    let mut pair = Pair::new(
        Config::new("jo"),
        Behaviour {
            wrong_guess: true,
            ..Behaviour::default()
        },
    );
    pair.cat(Bytes::new());
    assert_eq!(pair.run(is_data_reply).unwrap(), RTT * 3);
}

#[test]
fn without_early_flights_each_answer_is_awaited() {
    let mut config = Config::new("jo");
    config.early_flights = false;
    config.early_stdin = false;
    let mut pair = Pair::new(config, Behaviour::default());
    let id = pair.cat(Bytes::from_static(b"input"));
    // Identification, key exchange, service, authentication, opening, exec; and the window for the input.
    assert_eq!(pair.run(is_data_reply).unwrap(), RTT * 7);
    assert_eq!(pair.output[&id], b"input");
}

#[test]
fn servers_other_than_openssh_get_one_thing_after_the_other() {
    for id in [
        "SSH-2.0-dropbear_2022.83",
        "SSH-1.99-Cisco-1.25",
        "SSH-2.0-OpenSSHish",
    ] {
        let mut pair = Pair::new(
            Config::new("jo"),
            Behaviour {
                id,
                ..Behaviour::default()
            },
        );
        pair.cat(Bytes::from_static(b"input"));
        assert_eq!(pair.run(is_data_reply).unwrap(), RTT * 7, "{id}");
        assert_eq!(pair.server.refused, 0);
    }
}

#[test]
fn a_request_that_has_to_wait_is_made_up_when_the_server_has_said_what_it_takes() {
    let other = Behaviour {
        id: "SSH-2.0-paramiko_5.1.0",
        ..Behaviour::default()
    };
    for (behaviour, round_trips) in [(Behaviour::default(), 2), (other, 3)] {
        let mut pair = Pair::new(Config::new("jo"), behaviour);
        let asked = pair.run(|event| matches!(event, Event::Authenticate(_)));
        assert_eq!(asked.unwrap(), RTT * round_trips);
    }
}

#[test]
fn a_late_kexinit_waits_for_the_servers_identification() {
    let mut config = Config::new("jo");
    config.early_kexinit = false;
    let mut pair = Pair::new(config, Behaviour::default());
    pair.cat(Bytes::new());
    assert_eq!(
        pair.run(is_data_reply).unwrap(),
        RTT * 3,
        "KEXINIT and the method leave together"
    );
}

#[test]
fn a_warm_command_behind_an_open_session_takes_one_round_trip() {
    let mut pair = Pair::new(Config::new("jo"), Behaviour::default());
    pair.log_in().unwrap();
    let spare = pair.client.open(&ChannelKind::Session);
    pair.settle().unwrap();
    let before = pair.now - pair.start;
    pair.client.request(spare, &ChannelRequest::Exec(b"cat".to_vec()));
    pair.client.write(spare, numbers(16 * 1024));
    pair.client.eof(spare);
    assert_eq!(pair.wait_for_close(spare).unwrap() - before, RTT);
    assert_eq!(pair.output[&spare], numbers(16 * 1024));
}

#[test]
fn a_server_may_say_once_more_what_it_takes_when_it_knows_the_user() {
    let behaviour = Behaviour {
        ext_info_in_auth: Some("rsa-sha2-256"),
        answers: VecDeque::from([Answer::Failure {
            methods: "publickey",
            partial: false,
        }]),
        ..Behaviour::default()
    };
    let mut pair = Pair::new(Config::new("jo"), behaviour);
    pair.credentials.push_back(Credential::Key(false));
    pair.log_in().unwrap();
    assert_eq!(pair.server.client_extensions, ["ext-info-in-auth@openssh.com"]);
    assert_eq!(pair.server.refused, 0);
    let info = pair.client.ext_info();
    assert_eq!(
        info.server_sig_algs.as_deref(),
        Some(&["rsa-sha2-256".to_owned()][..])
    );
    assert!(info.ping, "the second says nothing but what it takes");
}

#[test]
fn who_does_not_read_ext_info_is_not_sent_any() {
    let mut pair = Pair::new(Config::new("jo"), Behaviour::default());
    pair.log_in().unwrap();
    assert_eq!(pair.server.refused, 0);
}

// Refusals of the early flight.

fn refusing(says_unimplemented: bool, strict: bool) -> Pair {
    let answers = [Answer::Failure {
        methods: "publickey",
        partial: false,
    }]
    .into();
    let mut pair = Pair::new(
        Config::new("jo"),
        Behaviour {
            answers,
            says_unimplemented,
            strict,
            ..Behaviour::default()
        },
    );
    pair.credentials = [Credential::Key(true), Credential::Key(true)].into();
    pair
}

#[test]
fn what_was_refused_packet_by_packet_is_sent_again_exactly_once() {
    // Sequence numbers, which the refusals name, begin anew at NEWKEYS only in strict key exchange.
    for strict in [true, false] {
        let mut pair = refusing(true, strict);
        let id = pair.cat(numbers(10_000));
        let second = pair.cat(Bytes::from_static(b"second"));
        pair.log_in().unwrap();
        assert_eq!(pair.client.start_state(id), Started::No, "all of it was refused");
        pair.settle().unwrap();
        assert_eq!(pair.server.executed, ["cat", "cat"]);
        assert!(
            pair.server.refused >= 5,
            "opening, exec, two packets of data, EOF"
        );
        assert_eq!(
            (&pair.output[&id][..], &pair.output[&second][..]),
            (&numbers(10_000)[..], &b"second"[..])
        );
        assert_eq!(pair.server.got[&0], numbers(10_000));
    }
}

#[test]
fn a_failure_without_proof_of_refusal_ends_the_connection_and_the_command_may_have_begun() {
    let mut pair = refusing(false, true);
    let id = pair.cat(Bytes::from_static(b"x"));
    let error = pair.settle().unwrap_err();
    assert!(matches!(error, Error::PeerMisbehaved(_)), "{error}");
    assert_eq!(pair.client.start_state(id), Started::Maybe);
    assert!(pair.server.executed.is_empty());
}

/// The fate of the log-in that a command left with, and the knowledge about the command then.
#[test]
fn whether_a_command_may_have_begun_goes_by_the_servers_word_on_the_log_in() {
    let failure = |partial| Answer::Failure {
        methods: "publickey",
        partial,
    };
    // sshd's words (auth.c), and what a server says that is going down.
    let too_many = Answer::Disconnect("Too many authentication failures");
    // `unimplemented`: the packets behind are refused by number as well, as OpenSSH does. The refusal is proof without.
    let table = [
        ("refused, packets too", failure(false), true, Started::No),
        ("refused", failure(false), false, Started::No),
        ("partly accepted", failure(true), false, Started::No),
        ("the server disconnects", too_many, false, Started::No),
        ("no answer", Answer::Silence, false, Started::Maybe),
    ];
    for (what, answer, says_unimplemented, expected) in table {
        for early in [true, false] {
            let behaviour = Behaviour {
                answers: [answer.clone()].into(),
                says_unimplemented,
                ..Behaviour::default()
            };
            let mut pair = Pair::new(Config::new("jo"), behaviour);
            pair.credentials = [Credential::Key(early)].into();
            let id = pair.cat(Bytes::from_static(b"x"));
            let refused =
                |event: &Event| matches!(event, Event::Authenticate(turn) if turn.methods.is_some());
            let ended = match answer {
                Answer::Silence => pair.settle(),
                _ => pair.run(refused).map(drop),
            };
            match answer {
                Answer::Disconnect(_) => assert!(matches!(ended, Err(Error::Disconnected { .. })), "{what}"),
                _ => assert!(ended.is_ok(), "{what}: {ended:?}"),
            }
            // What was not sent with it has not begun in any case.
            let expected = if early { expected } else { Started::No };
            assert_eq!(
                pair.client.start_state(id),
                expected,
                "{what}, early flight: {early}"
            );
            assert!(pair.server.executed.is_empty(), "{what}");
        }
    }
}

// Servers that are not what they call themselves.

/// As Go's, which lists no UMAC.
const OTHER_MACS: &str = "hmac-sha2-256-etm@openssh.com,hmac-sha2-256";

#[test]
fn nothing_of_a_command_leaves_early_on_the_word_of_an_identification() {
    let signs: [(&str, &str, bool, bool); 5] = [
        ("MACs of sshd", MACS_OF_SSHD, false, true),
        (
            "asyncssh's MACs",
            "umac-64-etm@openssh.com,hmac-sha256@ssh.com",
            false,
            false,
        ),
        ("nothing", OTHER_MACS, false, false),
        ("a key bound to the host's", OTHER_MACS, true, true),
        ("host memory", OTHER_MACS, false, true),
    ];
    for (what, macs, bound, is_sshd) in signs {
        let mut config = Config::new("jo");
        config.known_sshd = what == "host memory";
        let mut behaviour = Behaviour {
            macs,
            ..Behaviour::default()
        };
        if bound {
            behaviour.ext_info.push(("publickey-hostbound@openssh.com", "0"));
        }
        let mut pair = Pair::new(config, behaviour);
        let id = pair.cat(Bytes::from_static(b"input"));
        // Behind the log-in: the opening, and exec; the window for the input opens with it.
        let expected = if is_sshd { 3 } else { 6 };
        assert_eq!(pair.run(is_data_reply).unwrap(), RTT * expected, "{what}");
        assert_eq!(pair.client.is_sshd(), is_sshd, "{what}");
        assert_eq!(pair.output[&id], b"input");
        assert_eq!(pair.events.contains(&Event::EarlyCommand), is_sshd, "{what}");
    }
}

#[test]
fn a_server_that_lists_its_host_keys_is_sshd() {
    let behaviour = Behaviour {
        macs: OTHER_MACS,
        host_keys: true,
        ..Behaviour::default()
    };
    let mut pair = Pair::new(Config::new("jo"), behaviour);
    pair.settle().unwrap();
    assert!(pair.client.is_sshd());
}

#[test]
fn an_early_command_that_is_passed_by_ends_as_one_that_may_have_started() {
    for (early, no_global_requests, ping) in [
        (Early::OpensOnly, false, true),
        (Early::OpensOnly, false, false),
        (Early::OpensOnly, true, false),
        (Early::Dropped, false, true),
    ] {
        let mut behaviour = Behaviour {
            early,
            no_global_requests,
            ..Behaviour::default()
        };
        behaviour.ext_info.truncate(if ping { 2 } else { 1 });
        let mut pair = Pair::new(Config::new("jo"), behaviour);
        let id = pair.cat(Bytes::from_static(b"input"));
        pair.settle().unwrap();
        let due = pair.client.poll_timeout().expect("the silence is looked into");
        pair.client.handle_timeout(due).unwrap();
        let ended = pair.settle();
        assert!(
            matches!(ended, Err(Error::PeerMisbehaved(_))),
            "{early:?}: {ended:?}"
        );
        assert_eq!(pair.client.start_state(id), Started::Maybe);
        assert!(pair.server.executed.is_empty());
    }
}

#[test]
fn an_early_command_for_another_number_than_the_channels_is_not_waited_for() {
    let behaviour = Behaviour {
        early: Early::OpensOnly,
        first_channel: 2,
        ..Behaviour::default()
    };
    let mut pair = Pair::new(Config::new("jo"), behaviour);
    let id = pair.cat(Bytes::new());
    assert!(matches!(pair.settle(), Err(Error::PeerMisbehaved(_))));
    assert_eq!(pair.client.start_state(id), Started::Maybe);
}

#[test]
fn a_command_that_is_answered_costs_no_ping() {
    let mut pair = Pair::new(Config::new("jo"), Behaviour::default());
    let id = pair.client.open(&ChannelKind::Session);
    pair.client.request(id, &ChannelRequest::Exec(b"cat".to_vec()));
    pair.settle().unwrap();
    let due = pair
        .client
        .poll_timeout()
        .unwrap_or(pair.now + Duration::from_secs(1));
    pair.client.handle_timeout(due).unwrap();
    assert!(pair.client.poll_transmit(due).unwrap().is_empty());
}

#[test]
fn a_global_request_that_a_server_does_not_understand_is_refused() {
    let behaviour = Behaviour {
        no_global_requests: true,
        ext_info: Vec::new(),
        ..Behaviour::default()
    };
    let mut pair = Pair::new(Config::new("jo"), behaviour);
    pair.log_in().unwrap();
    let request = GlobalRequest::TcpipForward {
        address: "localhost".into(),
        port: 0,
    };
    let first = pair.client.global_request(&request);
    pair.client.ping();
    let second = pair.client.global_request(&request);
    pair.settle().unwrap();
    let refused = |id| {
        Event::Channel(ChannelEvent::GlobalReply {
            id,
            success: false,
            data: Bytes::new(),
        })
    };
    assert!(pair.events.contains(&refused(first)) && pair.events.contains(&refused(second)));
    assert!(pair.events.contains(&Event::Pong));
}

// A session that is opened with the log-in, and nothing else.

const DROPBEAR: &str = "SSH-2.0-dropbear_2022.83";

fn opening_early(early: Early, answers: &[Answer]) -> Pair {
    let mut config = Config::new("jo");
    config.early_log_in = true;
    let behaviour = Behaviour {
        id: DROPBEAR,
        early,
        answers: answers.iter().cloned().collect(),
        ..Behaviour::default()
    };
    let mut pair = Pair::new(config, behaviour);
    pair.client.open_with_log_in();
    pair
}

fn early_session(pair: &Pair) -> Option<Option<ChannelId>> {
    pair.events.iter().find_map(|event| match event {
        Event::EarlySession(opened) => Some(*opened),
        _ => None,
    })
}

#[test]
fn a_session_is_opened_with_the_log_in_where_that_was_seen_to_work() {
    let mut pair = opening_early(Early::Taken, &[]);
    assert_eq!(pair.log_in().unwrap(), RTT * 3);
    let Some(Some(id)) = early_session(&pair) else {
        panic!("{:?}", pair.events);
    };
    pair.client.request(id, &ChannelRequest::Exec(b"cat".to_vec()));
    pair.client.eof(id);
    assert_eq!(pair.run(is_data_reply).unwrap(), RTT * 4);
}

#[test]
fn a_session_that_was_not_opened_with_the_log_in_is_lost_and_counts_no_more() {
    let failure = Answer::Failure {
        methods: "publickey",
        partial: false,
    };
    for (what, mut pair) in [
        ("dropped", opening_early(Early::Dropped, &[])),
        ("behind a refusal", opening_early(Early::Taken, &[failure])),
    ] {
        pair.credentials.push_back(Credential::Key(true));
        pair.settle().unwrap();
        assert_eq!(early_session(&pair), Some(None), "{what}");
        assert!(pair.client.is_authenticated(), "{what}");
        assert_eq!(pair.client.channel_count(), 0, "{what}");
        pair.cat(Bytes::from_static(b"x"));
        pair.run(is_data_reply).unwrap();
    }
}

#[test]
fn a_command_that_waits_for_new_keys_has_not_begun() {
    let mut pair = Pair::new(Config::new("jo"), Behaviour::default());
    pair.log_in().unwrap();
    let spare = pair.client.open(&ChannelKind::Session);
    pair.settle().unwrap();
    pair.client.rekey();
    pair.transmit().unwrap();
    // Nothing but the exchange of keys leaves now (RFC 4253 section 7.1).
    pair.client.request(spare, &ChannelRequest::Exec(b"cat".to_vec()));
    pair.transmit().unwrap();
    assert_eq!(pair.client.start_state(spare), Started::No);
    let left = |event: &Event| matches!(event, Event::Channel(ChannelEvent::Reply { success: true, .. }));
    pair.run(left).unwrap();
    assert_eq!(pair.client.start_state(spare), Started::Yes);
    assert_eq!(pair.server.executed, ["cat"]);
}

#[test]
fn a_command_has_not_begun_before_it_leaves_and_may_have_from_then_on() {
    let mut pair = Pair::new(Config::new("jo"), Behaviour::default());
    pair.log_in().unwrap();
    let spare = pair.client.open(&ChannelKind::Session);
    pair.settle().unwrap();
    pair.client.request(spare, &ChannelRequest::Exec(b"cat".to_vec()));
    assert_eq!(pair.client.start_state(spare), Started::No, "asked for");
    pair.transmit().unwrap();
    assert_eq!(pair.client.start_state(spare), Started::Maybe, "on its way");
    // One that is opened for the command: its request waits for the server's number.
    let fresh = pair.cat(Bytes::new());
    pair.transmit().unwrap();
    assert_eq!(
        pair.client.start_state(fresh),
        Started::No,
        "the channel is not open"
    );
    pair.run(|event| *event == Event::Channel(ChannelEvent::Opened(fresh)))
        .unwrap();
    pair.transmit().unwrap();
    assert_eq!(
        pair.client.start_state(fresh),
        Started::Maybe,
        "behind the opening"
    );
}

#[test]
fn a_command_that_was_given_up_before_the_second_attempt_is_not_sent_again() {
    let mut pair = refusing(true, true);
    pair.credentials.truncate(1);
    let id = pair.cat(Bytes::from_static(b"x"));
    pair.settle().unwrap();
    pair.client.close(id);
    pair.client
        .authenticate_key("ssh-ed25519", b"key", b"signature", true);
    pair.settle().unwrap();
    assert!(pair.client.is_authenticated() && pair.server.executed.is_empty());
    assert_eq!(pair.client.channel_count(), 0);
}

#[test]
fn a_command_that_was_given_up_before_the_login_never_runs() {
    let mut pair = Pair::new(Config::new("jo"), Behaviour::default());
    let id = pair.cat(Bytes::from_static(b"x"));
    pair.client.close(id);
    pair.settle().unwrap();
    assert!(pair.client.is_authenticated() && pair.server.executed.is_empty());
    assert_eq!(pair.client.channel_count(), 0);
}

#[test]
fn a_partial_success_refuses_the_early_flight_too() {
    let answers = [Answer::Failure {
        methods: "password",
        partial: true,
    }]
    .into();
    let mut pair = Pair::new(
        Config::new("jo"),
        Behaviour {
            answers,
            ..Behaviour::default()
        },
    );
    pair.credentials.push_back(Credential::Password("secret"));
    let id = pair.cat(Bytes::from_static(b"once"));
    pair.settle().unwrap();
    let turn = |event: &Event| matches!(event, Event::Authenticate(turn) if turn.partial_success);
    assert!(pair.events.iter().any(turn));
    assert_eq!(
        (&pair.server.executed[..], &pair.output[&id][..]),
        (&["cat".to_owned()][..], &b"once"[..])
    );
    assert_eq!(pair.server.passwords, [b"secret"]);
}

// Authentication.

#[test]
fn banner_questions_and_a_password_change_reach_the_application() {
    let answers = [
        Answer::Questions(vec!["one", "two"]),
        Answer::Questions(vec![]),
        Answer::Failure {
            methods: "password",
            partial: true,
        },
        Answer::ChangePassword,
    ]
    .into();
    let behaviour = Behaviour {
        answers,
        banner: Some("hello\x1b[31m"),
        ..Behaviour::default()
    };
    let mut pair = Pair::new(Config::new("jo"), behaviour);
    pair.credentials = [Credential::KeyboardInteractive, Credential::Password("old")].into();
    pair.log_in().unwrap();
    assert!(pair.events.contains(&Event::Banner("hello\\033[31m".into())));
    assert!(pair.events.contains(&Event::PasswordExpired {
        prompt: "it is old".into()
    }));
    assert_eq!(pair.server.responses.len(), 2);
    assert_eq!(pair.server.responses[0], b"\0\0\0\x02\0\0\0\x03ONE\0\0\0\x03TWO");
    assert_eq!(pair.server.passwords, [&b"old"[..], b"old", b"new"]);
}

// Key exchange.

#[test]
fn strict_key_exchange_lets_nothing_in_between() {
    let early = Behaviour {
        ignore_before_kexinit: true,
        ..Behaviour::default()
    };
    let injected = Behaviour {
        ignore_before_newkeys: true,
        ..Behaviour::default()
    };
    for behaviour in [early, injected] {
        let error = Pair::new(Config::new("jo"), behaviour.clone())
            .settle()
            .unwrap_err();
        assert!(matches!(error, Error::PeerMisbehaved(_)), "{error}");
        // To a server without it, IGNORE is allowed at any time.
        let mut old = Pair::new(
            Config::new("jo"),
            Behaviour {
                strict: false,
                ..behaviour
            },
        );
        old.log_in().unwrap();
    }
}

#[test]
fn keys_are_renewed_by_bytes_from_either_side_under_load_in_both_directions() {
    for compression in ["none", "zlib@openssh.com"] {
        for (ours, theirs) in [
            (Some(300_000), usize::MAX),
            (None, 300_000),
            (Some(200_000), 210_000),
        ] {
            let mut config = Config::new("jo");
            config.rekey_limit.bytes = ours;
            config.preferences.compression = vec![Compression::from_name(compression).unwrap()];
            let behaviour = Behaviour {
                rekey_bytes: theirs,
                compression,
                ..Behaviour::default()
            };
            let mut pair = Pair::new(config, behaviour);
            // Noise, so that compression leaves something to count.
            let input: Bytes = (0..3_000_000u64)
                .map(|n| {
                    (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (n * n)).wrapping_mul(0x2545_f491_4f6c_dd1d)
                        >> 56
                })
                .map(|noise| noise as u8)
                .collect();
            let id = pair.cat(input.clone());
            let other = pair.cat(input.clone());
            pair.settle().unwrap();
            assert!(pair.output[&id] == input && pair.output[&other] == input);
            assert!(
                pair.server.exchanges > 2,
                "{} exchanges with {compression}",
                pair.server.exchanges
            );
        }
    }
}

#[test]
fn keys_are_renewed_by_time_and_on_request() {
    let mut config = Config::new("jo");
    config.rekey_limit.interval = Some(Duration::from_secs(60));
    let mut pair = Pair::new(config, Behaviour::default());
    assert_eq!(pair.client.poll_timeout(), None);
    pair.log_in().unwrap();
    for exchanges in 2..5 {
        let due = pair.client.poll_timeout().expect("a rekey is due some day");
        assert!(due - pair.now <= Duration::from_secs(60));
        pair.client
            .handle_timeout(due - Duration::from_millis(1))
            .unwrap();
        pair.settle().unwrap();
        assert_eq!(pair.server.exchanges, exchanges - 1);
        pair.now = due;
        pair.client.handle_timeout(due).unwrap();
        pair.settle().unwrap();
        assert_eq!(pair.server.exchanges, exchanges);
    }
    pair.client.rekey();
    pair.settle().unwrap();
    assert_eq!(pair.server.exchanges, 5);
    let id = pair.cat(Bytes::from_static(b"still here"));
    pair.wait_for_close(id).unwrap();
    assert_eq!(pair.output[&id], b"still here");
}

#[test]
fn compression_starts_with_the_login_and_never_before() {
    let mut config = Config::new("jo");
    config.preferences.compression = vec![Compression::Zlib];
    let mut pair = Pair::new(
        config,
        Behaviour {
            compression: "zlib@openssh.com",
            ..Behaviour::default()
        },
    );
    let id = pair.cat(Bytes::from(vec![b'z'; 1_000_000]));
    pair.log_in().unwrap();
    assert!(
        pair.server.executed.is_empty(),
        "nothing may leave early: the server would take it for compressed"
    );
    assert_eq!(pair.server.compressed, 0);
    pair.wait_for_close(id).unwrap();
    assert!(pair.output[&id] == vec![b'z'; 1_000_000] && pair.server.compressed > 30);
}

// The rest of the transport and of global requests.

#[test]
fn a_ping_is_answered_by_the_extension_or_by_any_global_answer() {
    let silent = Behaviour {
        ext_info: Vec::new(),
        ..Behaviour::default()
    };
    for behaviour in [Behaviour::default(), silent] {
        let extension = !behaviour.ext_info.is_empty();
        let mut pair = Pair::new(Config::new("jo"), behaviour);
        pair.log_in().unwrap();
        pair.settle().unwrap();
        assert_eq!(pair.client.ext_info().ping, extension);
        let algorithms = pair.client.ext_info().server_sig_algs.clone();
        assert_eq!(algorithms, extension.then(|| vec!["ssh-ed25519".to_owned()]));
        let before = pair.now - pair.start;
        pair.client.ping();
        assert_eq!(pair.run(|event| *event == Event::Pong).unwrap() - before, RTT);
    }
}

#[test]
fn a_server_that_does_not_read_is_not_answered_without_end() {
    let questions: [fn() -> Writer; 4] = [
        || Writer::message(192).string(vec![0; 30_000]),
        || Writer::message(200),
        || Writer::message(80).string("keepalive@openssh.com").bool(true),
        || Writer::message(90).string("session").u32(1).u32(1).u32(1),
    ];
    for (n, question) in questions.into_iter().enumerate() {
        for reads in [true, false] {
            let mut pair = Pair::new(Config::new("jo"), Behaviour::default());
            pair.log_in().unwrap();
            pair.settle().unwrap();
            let mut asked = 0;
            let refused = loop {
                pair.server.send(question());
                let bytes = std::mem::take(&mut pair.server.outgoing);
                asked += bytes.len();
                pair.client.receive_buffer().put_slice(&bytes);
                if let Err(error) = pair.client.handle_received(pair.now) {
                    break Some(error);
                }
                // Twice what may wait.
                if asked > 8 << 20 {
                    break None;
                }
                if reads {
                    pair.transmit().unwrap();
                    pair.to_server.clear();
                }
            };
            assert_eq!(
                refused.is_some(),
                !reads,
                "question {n}, {asked} bytes: {refused:?}"
            );
        }
    }
}

#[test]
fn the_servers_host_keys_are_told_and_can_be_proven() {
    let mut pair = Pair::new(
        Config::new("jo"),
        Behaviour {
            host_keys: true,
            ..Behaviour::default()
        },
    );
    pair.log_in().unwrap();
    pair.settle().unwrap();
    let keys = pair.events.iter().find_map(|event| match event {
        Event::Channel(ChannelEvent::HostKeys(keys)) => Some(keys.clone()),
        _ => None,
    });
    let keys = keys.expect("the server lists its keys");
    assert_eq!(keys[4..], pair.server.host_key_blob());
    assert_eq!(pair.client.host_key(), Some(&pair.server.host_key_blob()));
    let asked = pair.client.global_request(&GlobalRequest::HostKeysProve(keys));
    let proof = ChannelEvent::GlobalReply {
        id: asked,
        success: true,
        data: Bytes::from_static(b"\0\0\0\x05proof"),
    };
    pair.run(|event| *event == Event::Channel(proof.clone())).unwrap();
}

#[test]
fn the_round_trip_is_known_when_the_log_in_is_done() {
    let patient = || {
        let mut config = Config::new("jo");
        (config.early_kexinit, config.early_flights) = (false, false);
        config
    };
    for config in [Config::new("jo"), guessing(), patient()] {
        let mut pair = Pair::new(config, Behaviour::default());
        assert_eq!(pair.client.rtt(), None);
        // As a relay next door answers, however far the server is.
        pair.client.assume_rtt(Duration::from_micros(30));
        pair.log_in().unwrap();
        assert_eq!(pair.client.rtt(), Some(RTT));
    }
}

#[test]
fn a_window_grows_where_rate_and_round_trip_ask_for_it() {
    let mut pair = Pair::new(Config::new("jo"), Behaviour::default());
    pair.client.answered_after(RTT, pair.now);
    let input = numbers(8_000_000);
    let id = pair.cat(input.clone());
    pair.wait_for_close(id).unwrap();
    assert!(pair.output[&id] == input);
    // Without growth, no more is granted than was read.
    assert!(
        pair.server.granted > input.len() as u64,
        "{} granted",
        pair.server.granted
    );
}

#[test]
fn both_sides_hear_why_the_other_goes() {
    let behaviour = Behaviour {
        disconnect_after_login: Some("too\x07 late"),
        ..Behaviour::default()
    };
    let error = Pair::new(Config::new("jo"), behaviour).settle().unwrap_err();
    let reason = DisconnectReason::BY_APPLICATION;
    assert_eq!(
        error,
        Error::Disconnected {
            reason,
            description: "too\\007 late".into()
        }
    );

    let mut pair = Pair::new(Config::new("jo"), Behaviour::default());
    pair.log_in().unwrap();
    pair.client.disconnect(reason, "we are done");
    pair.settle().unwrap();
    assert_eq!(pair.server.disconnected.as_deref(), Some("we are done"));
}
