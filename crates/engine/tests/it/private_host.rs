//! Hosts that a program describes itself: no file of ssh's takes part.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use trunkline::config::{HostConfig, Listen, WeakCryptoWarning};
use trunkline::host_key::HostKeyError;
use trunkline::keys::KeyFile;
use trunkline::prompt::{Answer, Answers, Never, Prompt, PromptKind, Prompter, ServerQuestions};
use trunkline::{
    Command, Engine, Error, ErrorKind, Host, HostKeyVerifier, Interaction, Login, Settings, Verification,
    refused_by_program,
};
use trunkline_testkit::{KeyPair, KeyType, Relay, Sshd, free_port};
use zeroize::Zeroizing;

use crate::site::{engine, engine_with};

fn config(sshd: &Sshd) -> HostConfig {
    let mut config = HostConfig::explicit(&sshd.addr().ip().to_string(), sshd.port(), sshd.user()).unwrap();
    config.user_known_hosts_files = vec![sshd.known_hosts()];
    config
}

fn login(sshd: &Sshd) -> Login {
    Login::new().key(in_memory(&sshd.client_keys()[0]))
}

fn in_memory(key: &KeyPair) -> KeyFile {
    let content = std::fs::read(key.private_path()).unwrap();
    KeyFile::in_memory("the test's key", content.into()).unwrap()
}

fn private(engine: &Engine, sshd: &Sshd, login: Login) -> Host {
    engine
        .private_host(config(sshd), login, &Interaction::none())
        .unwrap()
}

#[tokio::test]
async fn a_key_in_memory_leads_in_without_any_file() {
    let sshd = Sshd::start_default().unwrap();
    let host = private(&engine(), &sshd, login(&sshd));
    let output = host.run(&Command::exec("echo in")).await.unwrap();
    assert_eq!(output.stdout, b"in\n");
}

#[tokio::test]
async fn equal_configurations_with_other_secrets_share_nothing() {
    let sshd = Sshd::start_default().unwrap();
    let engine = engine();
    let right = private(&engine, &sshd, login(&sshd));
    right.warm().await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let stranger = KeyPair::generate(directory.path(), "stranger", KeyType::Ed25519).unwrap();
    let wrong = private(&engine, &sshd, Login::new().key(in_memory(&stranger)));
    let error = wrong.run(&Command::exec("true")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Authentication);
    assert_eq!(sshd.authentications(), 1);
}

#[tokio::test]
async fn an_unknown_host_is_refused_where_nobody_vouches_for_it() {
    let sshd = Sshd::start_default().unwrap();
    let mut config = config(&sshd);
    config.user_known_hosts_files.clear();
    let host = engine()
        .private_host(config, login(&sshd), &Interaction::none())
        .unwrap();
    let error = host.warm().await.unwrap_err();
    assert!(
        matches!(&error, Error::HostKey(error) if matches!(**error, HostKeyError::Unknown { .. })),
        "{error}"
    );
}

#[tokio::test]
async fn a_server_without_a_post_quantum_key_exchange_is_warned_of_where_ssh_does() {
    let sshd = Sshd::builder()
        .config("KexAlgorithms curve25519-sha256")
        .start()
        .unwrap();
    for (warns, chosen, expected) in [
        (WeakCryptoWarning::Yes, false, 1),
        (WeakCryptoWarning::NoPqKex, false, 0),
        (WeakCryptoWarning::No, false, 0),
        // Whoever has chosen it knows.
        (WeakCryptoWarning::Yes, true, 0),
    ] {
        let mut config = config(&sshd);
        config.warn_weak_crypto = warns;
        if chosen {
            config.kex_algorithms = ["curve25519-sha256".to_owned()].into();
        }
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let hears = said.clone();
        let interaction = Interaction::new(Arc::new(Never), move |text| {
            hears.lock().unwrap().push(text.to_owned());
        });
        let host = engine().private_host(config, login(&sshd), &interaction).unwrap();
        host.warm().await.unwrap();
        let warned = |text: &&String| text.contains("post-quantum");
        assert_eq!(
            said.lock().unwrap().iter().filter(warned).count(),
            expected,
            "{warns:?} {chosen}"
        );
    }
}

/// Says what it is told to, and keeps what it saw.
struct Verifier {
    accept: bool,
    seen: Mutex<Vec<(Vec<u8>, bool)>>,
}

impl Verifier {
    fn new(accept: bool) -> Arc<Self> {
        let seen = Mutex::default();
        Arc::new(Self { accept, seen })
    }
}

impl HostKeyVerifier for Verifier {
    fn verify<'a>(
        &'a self,
        host: &'a str,
        key: &'a [u8],
        files: Result<(), HostKeyError>,
    ) -> Verification<'a> {
        self.seen.lock().unwrap().push((key.to_owned(), files.is_ok()));
        let verdict = if self.accept {
            Ok(())
        } else {
            Err(refused_by_program(host, key))
        };
        Box::pin(std::future::ready(verdict))
    }
}

#[tokio::test]
async fn a_programs_verifier_decides_and_sees_what_the_files_say() {
    let sshd = Sshd::start_default().unwrap();
    let engine = engine();
    for (accept, known) in [(true, true), (true, false), (false, true)] {
        let verifier = Verifier::new(accept);
        let mut config = config(&sshd);
        if !known {
            config.user_known_hosts_files.clear();
        }
        let login = login(&sshd).verify_host_key(verifier.clone());
        let host = engine.private_host(config, login, &Interaction::none()).unwrap();
        let outcome = host.warm().await;
        assert_eq!(outcome.is_ok(), accept);
        if let Err(error) = outcome {
            assert_eq!(error.kind(), ErrorKind::HostKey);
        }
        let seen = verifier.seen.lock().unwrap();
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].1, known);
        let fingerprint = trunkline::keys::fingerprint(&seen[0].0);
        assert!(fingerprint.starts_with("SHA256:"), "{fingerprint}");
    }
    // Nothing was signed for the refused one.
    assert_eq!(sshd.authentications(), 2);
}

#[tokio::test]
async fn a_given_stream_carries_one_connection() {
    let sshd = Sshd::start_default().unwrap();
    let stream = TcpStream::connect(sshd.addr()).await.unwrap();
    let engine = engine();
    let host = private(&engine, &sshd, login(&sshd).with_stream(stream));
    for _ in 0..3 {
        let output = host.run(&Command::exec("echo through")).await.unwrap();
        assert_eq!(output.stdout, b"through\n");
    }
    let lending = engine.lending_agent(&host).unwrap_err();
    assert!(matches!(lending, Error::Configuration { .. }), "{lending}");
}

#[tokio::test]
async fn a_given_stream_that_ends_at_once_is_reported_as_that() {
    let sshd = Sshd::start_default().unwrap();
    let (stream, _) = tokio::io::duplex(1024);
    let engine = engine();
    let host = private(&engine, &sshd, login(&sshd).with_stream(stream));
    let error = host.warm().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Network, "{error}");
    assert!(!error.to_string().contains("used up"), "{error}");
}

#[tokio::test]
async fn an_ended_host_is_not_connected_again() {
    let sshd = Sshd::builder().config("MaxSessions 1").start().unwrap();
    let settings = Settings {
        max_lanes: 1,
        ..Settings::default()
    };
    let engine = engine_with(settings);
    let host = private(&engine, &sshd, login(&sshd).connections(2));
    let mut running = host.start(&Command::exec("sleep 1000")).await.unwrap();
    running.wait_for_start().await.unwrap();
    // One has no place, as long as the other runs.
    let waiting = tokio::spawn({
        let host = host.clone();
        async move { host.run(&Command::exec("true")).await }
    });
    let connection = host.hold();
    host.end();
    connection.wait_for_end().await;
    assert!(waiting.await.unwrap().is_err());
    drop(running);
    let error = host.run(&Command::exec("true")).await.unwrap_err();
    assert!(matches!(error, Error::Closed { .. }), "{error}");
    assert!(host.direct_tcpip("127.0.0.1", 1, ("127.0.0.1", 0)).await.is_err());
    let listen = Listen::Tcp {
        host: Some("127.0.0.1".into()),
        port: 0,
    };
    assert!(host.listen_remote(&listen).await.is_err());
    assert!(host.warm().await.is_err());
    assert_eq!(sshd.authentications(), 1);
}

#[tokio::test]
async fn a_host_without_a_name_is_no_host() {
    assert!(HostConfig::explicit("", 22, "me").is_err());
    assert!(HostConfig::explicit("db", 0, "me").is_err());
    assert!(HostConfig::explicit("db", 22, "").is_err());
    let config = HostConfig::explicit("none", 22, "none").unwrap();
    assert_eq!((&*config.hostname, &*config.user), ("none", "none"));
    assert_eq!(config.identity_agent, None);
    assert!(config.needs_system_ssh().is_empty());
}

/// Answers the questions of a server together.
struct Dialog(Mutex<Vec<usize>>);

impl Prompter for Dialog {
    fn ask<'a>(&'a self, prompt: &'a Prompt) -> Answer<'a> {
        panic!("asked alone: {prompt:?}");
    }

    fn ask_together<'a>(&'a self, asked: &'a ServerQuestions) -> Option<Answers<'a>> {
        self.0.lock().unwrap().push(asked.prompts.len());
        assert_eq!(asked.prompts[0].kind, PromptKind::KeyboardInteractive);
        let answers = asked
            .prompts
            .iter()
            .map(|_| Zeroizing::new("wrong".to_owned()))
            .collect();
        Some(Box::pin(std::future::ready(Some(answers))))
    }
}

#[tokio::test]
async fn a_servers_questions_can_be_answered_together() {
    let sshd = Sshd::builder()
        .password("secret")
        .authentication_methods("keyboard-interactive")
        .start()
        .unwrap();
    let dialog = Arc::new(Dialog(Mutex::default()));
    let mut config = config(&sshd);
    config.number_of_password_prompts = 1;
    let interaction = Interaction::new(dialog.clone(), |_| {});
    let host = engine().private_host(config, Login::new(), &interaction).unwrap();
    let error = host.warm().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
    assert_eq!(*dialog.0.lock().unwrap(), [1]);
}

#[tokio::test]
async fn clients_of_a_port_on_the_server_are_handed_over_as_streams() {
    let sshd = Sshd::start_default().unwrap();
    let host = private(&engine(), &sshd, login(&sshd));
    let listen = Listen::Tcp {
        host: Some("127.0.0.1".into()),
        // Once it is closed nobody else is given it.
        port: free_port(),
    };
    let mut listener = host.listen_remote(&listen).await.unwrap();
    let Listen::Tcp { port, .. } = *listener.listening() else {
        panic!("a port was asked for");
    };
    let mut client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let incoming = listener.next().await.unwrap();
    let originator = client.local_addr().unwrap().to_string();
    assert_eq!(incoming.originator(), originator);
    let mut stream = incoming.accept();
    stream.write_all(b"hello").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut heard = String::new();
    client.read_to_string(&mut heard).await.unwrap();
    assert_eq!(heard, "hello");

    // A refused client sees its connection closed.
    let mut refused = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    drop(listener.next().await.unwrap());
    assert_eq!(refused.read(&mut [0]).await.unwrap_or(0), 0);
    listener.close().await;
    assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());
}

#[tokio::test]
async fn a_remote_listener_ends_with_its_connection() {
    let sshd = Sshd::start_default().unwrap();
    let relay = Relay::start(sshd.addr()).unwrap();
    sshd.trust_at(relay.addr()).unwrap();
    let mut config = config(&sshd);
    config.port = relay.port();
    config.hostname = relay.addr().ip().to_string();
    let host = engine()
        .private_host(config, login(&sshd), &Interaction::none())
        .unwrap();
    let path = sshd.dir().join("listener");
    let mut listener = host.listen_remote(&Listen::Socket(path)).await.unwrap();
    relay.reset();
    assert!(listener.next().await.is_none());
}
