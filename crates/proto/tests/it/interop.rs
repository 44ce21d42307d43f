//! The state machine against servers other than OpenSSH: dropbear, and russh.

use std::time::{Duration, Instant};

use crate::socket::{Client, End, Key};
use trunkline_proto::cipher::Cipher;
use trunkline_proto::kex::KexMethod;
use trunkline_proto::{Config, Error, Event};
use trunkline_testkit::Dropbear;
use trunkline_testkit::hostile::{AuthStep, Question, RusshServer};
use zeroize::Zeroizing;

const SILENCE: Duration = Duration::from_secs(60);

fn numbers(count: u32) -> Vec<u8> {
    (0..count).flat_map(u32::to_be_bytes).collect()
}

#[test]
fn dropbear_runs_commands_with_input_and_status() {
    let server = Dropbear::start_default().unwrap();
    let key = Key::load(server.client_key().private_path());
    let mut client = Client::connect(server.addr(), Config::new(server.user()), SILENCE);
    let id = client.start("cat; exit 7", Some(b"input"));
    client.log_in(&key).unwrap();
    let output = client.output(id).unwrap();
    assert_eq!(
        (&output.stdout[..], output.status, output.granted),
        (&b"input"[..], Some(7), Some(true))
    );
    let output = client.run("echo out; echo err >&2; kill -TERM $$", None).unwrap();
    assert_eq!(
        (&output.stdout[..], &output.stderr[..]),
        (&b"out\n"[..], &b"err\n"[..])
    );
    assert_eq!(output.signal.as_deref(), Some("TERM"));
}

#[test]
fn dropbear_exchanges_keys_anew_under_load() {
    let server = Dropbear::start_default().unwrap();
    let key = Key::load(server.client_key().private_path());
    let input = numbers(400_000);
    for method in [
        KexMethod::Curve25519Sha256,
        KexMethod::EcdhNistP256,
        KexMethod::DhGroup14Sha256,
    ] {
        let mut config = Config::new(server.user());
        config.preferences.kex = vec![method];
        config.rekey_limit.bytes = Some(500_000);
        let mut client = Client::connect(server.addr(), config, SILENCE);
        client.log_in(&key).unwrap();
        let output = client
            .run("cat", Some(&input))
            .unwrap_or_else(|error| panic!("{method}: {error:?}\n{}", server.log().text()));
        assert!(output.stdout == input && output.status == Some(0), "{method}");
    }
}

#[test]
fn dropbear_and_we_have_ciphers_in_common() {
    let server = Dropbear::start_default().unwrap();
    let key = Key::load(server.client_key().private_path());
    for cipher in [Cipher::ChaCha20Poly1305, Cipher::Aes128Ctr, Cipher::Aes256Ctr] {
        let mut config = Config::new(server.user());
        config.preferences.ciphers = vec![cipher];
        let mut client = Client::connect(server.addr(), config, SILENCE);
        client.log_in(&key).unwrap();
        assert_eq!(client.run("echo ok", None).unwrap().stdout, b"ok\n", "{cipher}");
    }
}

fn russh(server: &RusshServer) -> (Client, Key) {
    let key = Key::load(server.client_key().private_path());
    (
        Client::connect(server.addr(), Config::new("tester"), SILENCE),
        key,
    )
}

#[test]
fn russh_does_strange_but_legal_things() {
    let server = RusshServer::start_default().unwrap();
    let (mut client, key) = russh(&server);
    client.log_in(&key).unwrap();
    let output = client.run("echo hello", None).unwrap();
    assert_eq!((&output.stdout[..], output.status), (&b"hello\n"[..], Some(0)));
    assert_eq!(client.run("exit 42", None).unwrap().status, Some(42));
    assert_eq!(
        client.run("signal SEGV", None).unwrap().signal.as_deref(),
        Some("SEGV")
    );
    assert_eq!(client.run("flood 5000000", None).unwrap().stdout.len(), 5_000_000);
    assert_eq!(client.run("stderr 100000", None).unwrap().stderr.len(), 100_000);
    assert_eq!(client.run("close", None).unwrap().status, None);
    let input = numbers(500_000);
    assert!(client.run("cat", Some(&input)).unwrap().stdout == input);
    let hung_up = client.run("hangup", None).unwrap_err();
    assert!(
        matches!(hung_up, End::Error(Error::Disconnected { .. }) | End::Closed),
        "{hung_up:?}"
    );
}

#[test]
fn small_windows_and_packets_and_frequent_rekeys_lose_nothing() {
    let server = RusshServer::builder()
        .window(5000)
        .max_packet(700)
        .rekey_after(300_000)
        .start()
        .unwrap();
    let (mut client, key) = russh(&server);
    client.log_in(&key).unwrap();
    let input = numbers(200_000);
    let output = client.run("cat", Some(&input)).unwrap();
    assert!(output.stdout == input);
}

#[test]
fn a_login_of_several_steps_succeeds_in_the_servers_order() {
    let question = |prompt: &str, echo, answer: &str| Question {
        prompt: prompt.into(),
        echo,
        answer: answer.into(),
    };
    let rounds = vec![
        vec![
            question("Token: ", true, "123456"),
            question("PIN: ", false, "0000"),
        ],
        vec![],
        vec![question("Really? ", true, "yes")],
    ];
    let server = RusshServer::builder()
        .auth_banner("Authorised use only.\n")
        .auth_steps([
            AuthStep::PublicKey,
            AuthStep::Password("secret".into()),
            AuthStep::KeyboardInteractive(rounds.clone()),
        ])
        .start()
        .unwrap();
    let (mut client, key) = russh(&server);
    let (mut turns, mut round, mut banner) = (Vec::new(), 0, String::new());
    loop {
        match client.next_event().unwrap() {
            Event::HostKey(_) => client.connection.accept_host_key(Instant::now()).unwrap(),
            Event::Banner(text) => banner = text,
            Event::Authenticate(turn) => {
                match turn.methods.as_deref().map(|methods| methods[0].as_str()) {
                    None => client.show(&key),
                    Some("password") => client.connection.authenticate_password("secret", None, false),
                    Some("keyboard-interactive") => client.connection.authenticate_keyboard_interactive(),
                    other => panic!("{other:?}"),
                }
                turns.push((turn.methods, turn.partial_success));
            }
            Event::Questions { prompts, .. } => {
                let asked: Vec<(&str, bool)> = prompts.iter().map(|p| (p.text.as_str(), p.echo)).collect();
                let expected: Vec<(&str, bool)> = rounds[round]
                    .iter()
                    .map(|q| (q.prompt.as_str(), q.echo))
                    .collect();
                assert_eq!(asked, expected);
                let answers: Vec<_> = rounds[round]
                    .iter()
                    .map(|q| Zeroizing::new(q.answer.clone()))
                    .collect();
                client.connection.answer_questions(&answers);
                round += 1;
            }
            Event::Authenticated => break,
            _ => {}
        }
    }
    assert_eq!((round, banner.as_str()), (3, "Authorised use only.\n"));
    let step = |method: &str| (Some(vec![method.to_owned()]), true);
    assert_eq!(
        turns,
        [(None, false), step("password"), step("keyboard-interactive")]
    );
    assert_eq!(client.run("echo in", None).unwrap().stdout, b"in\n");
}

#[test]
fn a_session_beyond_the_servers_limit_is_refused_and_the_others_go_on() {
    let server = RusshServer::builder().max_sessions(1).start().unwrap();
    let (mut client, key) = russh(&server);
    let first = client.start("cat", None);
    client.log_in(&key).unwrap();
    let refused = client.run("echo no", None).unwrap();
    assert_eq!((refused.granted, refused.status), (None, None));
    client
        .connection
        .write(first, bytes::Bytes::from_static(b"still here"));
    client.connection.eof(first);
    assert_eq!(client.output(first).unwrap().stdout, b"still here");
}
