//! Servers that let their user in once, or open fewer sessions than are wanted: what the first connection can carry is done
//! on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use trunkline::config::{HostConfig, Request};
use trunkline::interaction::{Presence, Waiting};
use trunkline::keys::KeyFile;
use trunkline::prompt::{Answer, Answerer, Prompt, Prompter};
use trunkline::transfer::{CopyOptions, Location, Progress, copy};
use trunkline::tune::{self, Choice};
use trunkline::{Command, Engine, Error, ErrorKind, Execution, Host, Interaction, Login, Session};
use trunkline_testkit::{Agent, KeyConstraints, KeyPair, KeyType, Sshd};
use zeroize::Zeroizing;

use crate::site::{engine, host_of, request, server_and_host};

/// A host with a connection, beside which the server takes no other: the user's keys are gone.
async fn host_behind_a_shut_door(engine: &Engine, sshd: &Sshd) -> Host {
    let host = host_of(engine, sshd).await;
    host.warm().await.unwrap();
    shut(sshd);
    host
}

fn shut(sshd: &Sshd) {
    std::fs::write(sshd.dir().join("authorized_keys"), "").unwrap();
}

async fn running(host: &Host, command: &str) -> Session {
    let mut session = host.start(&Command::exec(command)).await.unwrap();
    session.wait_for_start().await.unwrap();
    session
}

/// A command that ends when it is told to.
async fn finish(mut session: Session) {
    session.stdin.shutdown().await.unwrap();
    session.output(None).await.unwrap();
}

async fn echo(host: &Host, word: &str) {
    let output = host.run(&Command::exec(format!("echo {word}"))).await.unwrap();
    assert_eq!(output.stdout, format!("{word}\n").as_bytes());
}

/// The same, while something else goes on.
fn echo_beside(host: &Host, word: &str) -> JoinHandle<()> {
    let (host, word) = (host.clone(), word.to_owned());
    tokio::spawn(async move { echo(&host, &word).await })
}

/// So many commands at once.
async fn echo_all(host: &Host, count: usize) {
    let commands: Vec<_> = (0..count).map(|n| echo_beside(host, &n.to_string())).collect();
    for command in commands {
        command.await.unwrap();
    }
}

/// Keeps the host's first connection busy until it is dropped.
async fn make_busy(host: &Host) -> JoinSet<()> {
    let mut stream = running(host, "cat /dev/zero").await;
    let mut apart = host.watch_busy();
    let mut reading = JoinSet::new();
    reading.spawn(async move { while stream.stdout.chunk().await.is_some() {} });
    apart.wait_for(|apart| *apart).await.unwrap();
    reading
}

#[tokio::test]
async fn more_commands_than_sessions_take_turns_when_no_other_log_in_is_accepted() {
    let sshd = Sshd::builder().config("MaxSessions 2").start().unwrap();
    let engine = engine();
    let host = host_behind_a_shut_door(&engine, &sshd).await;
    echo_all(&host, 9).await;
    assert_eq!(sshd.authentications(), 1);
}

#[tokio::test]
async fn a_busy_connection_carries_everything_when_no_other_log_in_is_accepted() {
    let sshd = Sshd::start_default().unwrap();
    let engine = engine();
    let host = host_behind_a_shut_door(&engine, &sshd).await;
    let _busy = make_busy(&host).await;

    echo(&host, "beside").await;
    let sftp = host.sftp().await.unwrap();
    assert_eq!(sftp.realpath("/").await.unwrap(), "/");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut tunnel = host
        .direct_tcpip("127.0.0.1", port, ("127.0.0.1", 0))
        .await
        .unwrap();
    let (mut client, _) = listener.accept().await.unwrap();
    tunnel.write_all(b"through").await.unwrap();
    let mut heard = [0; 7];
    client.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"through");
    assert_eq!(sshd.authentications(), 1);
}

#[tokio::test]
async fn a_copy_has_the_sessions_of_one_connection_when_no_other_log_in_is_accepted() {
    let sshd = Sshd::builder().config("MaxSessions 3").start().unwrap();
    let engine = engine();
    let host = host_behind_a_shut_door(&engine, &sshd).await;
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (directory.path().join("source"), directory.path().join("target"));
    std::fs::create_dir(&source).unwrap();
    for n in 0..40u8 {
        std::fs::write(source.join(n.to_string()), vec![n; 3_000_000]).unwrap();
    }
    let from = Location::Host(host.clone(), source.to_str().unwrap().to_owned().into());
    let mut options = CopyOptions::default();
    options.recursive = true;
    let progress = Arc::new(Progress::default());
    copy(&[from], &Location::Local(target.clone()), &options, &progress)
        .await
        .unwrap();
    for n in 0..40u8 {
        assert!(std::fs::read(target.join(n.to_string())).unwrap() == vec![n; 3_000_000]);
    }
    assert_eq!(sshd.authentications(), 1);
}

/// Knows a password that works once.
struct OneTime {
    asked: AtomicUsize,
    password: String,
}

/// A person who gives the same answer whenever they are asked, or a program that has it at hand.
struct Answers {
    asked: AtomicUsize,
    answer: String,
    is_person: bool,
}

impl Answers {
    fn new(answer: &str, is_person: bool) -> Arc<Self> {
        Arc::new(Self {
            asked: AtomicUsize::new(0),
            answer: answer.to_owned(),
            is_person,
        })
    }

    fn count(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Prompter for Answers {
    fn ask<'a>(&'a self, _: &'a Prompt) -> Answer<'a> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(Some(Zeroizing::new(self.answer.clone()))))
    }

    fn answerer(&self) -> Answerer {
        match self.is_person {
            true => Answerer::Person,
            false => Answerer::Program,
        }
    }
}

/// Who is asked, and how the engine reaches them.
fn asking(answer: &str, is_person: bool) -> (Arc<Answers>, Interaction) {
    let asks = Answers::new(answer, is_person);
    (asks.clone(), Interaction::new(asks, |_| {}))
}

/// A server that takes the password "secret" and nothing else.
fn with_password(sessions: usize) -> Sshd {
    Sshd::builder()
        .password("secret")
        .authentication_methods("password")
        .config(&format!("MaxSessions {sessions}"))
        .start()
        .unwrap()
}

/// An engine, and its host for a server as somebody asks for it.
async fn prepare(sshd: &Sshd, interaction: &Interaction) -> (Engine, Request, Host) {
    let (engine, request) = (engine(), request(&sshd.ssh_config(), sshd.alias(), &[]));
    let host = engine.host_for(&request, interaction).await.unwrap();
    (engine, request, host)
}

/// Does what has the engine make further connections: traffic, more sessions than fit, a copy, another cipher for it.
async fn make_use(engine: &Engine, host: &Host, request: &Request, interaction: &Interaction) {
    let busy = make_busy(host).await;
    echo(host, "beside").await;
    echo_all(host, 9).await;
    drop(busy);
    let choice: Choice = serde_json::from_value(serde_json::json!({
        "cipher": "aes256-ctr", "usual_cipher": "aes128-gcm@openssh.com", "compression": true,
        "request_size": 16384, "streams_up": 8,
    }))
    .unwrap();
    tune::remember(Some(&choice), engine.memory(), host.config());
    let host = engine.host_for_copies(request, interaction).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (directory.path().join("source"), directory.path().join("target"));
    std::fs::write(&source, vec![b'x'; 40_000_000]).unwrap();
    let target = Location::Host(host, target.to_str().unwrap().to_owned().into());
    copy(
        &[Location::Local(source)],
        &target,
        &CopyOptions::default(),
        &Arc::new(Progress::default()),
    )
    .await
    .unwrap();
}

#[tokio::test]
async fn nobody_is_asked_for_a_password_again_for_a_further_connection() {
    let sshd = with_password(3);
    let (asks, interaction) = asking("secret", true);
    let (engine, request, host) = prepare(&sshd, &interaction).await;
    make_use(&engine, &host, &request, &interaction).await;
    assert_eq!((asks.count(), sshd.connections()), (1, 1));
}

#[tokio::test]
async fn nobody_is_asked_for_a_passphrase_again_for_a_further_connection() {
    let sshd = Sshd::builder().config("MaxSessions 3").start().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let key =
        KeyPair::generate_encrypted(directory.path(), "locked", KeyType::Ed25519, "five or more").unwrap();
    std::fs::write(sshd.dir().join("authorized_keys"), key.public_line()).unwrap();
    let (asks, interaction) = asking("five or more", true);
    let engine = engine();
    let identity = format!("IdentityFile={}", key.private_path().display());
    let request = request(&sshd.ssh_config(), sshd.alias(), &[&identity, "BatchMode=no"]);
    let host = engine.host_for(&request, &interaction).await.unwrap();
    make_use(&engine, &host, &request, &interaction).await;
    assert_eq!((asks.count(), sshd.authentications()), (1, 1));
}

#[tokio::test]
async fn an_agent_that_asks_is_asked_once_for_a_connection_and_never_for_a_key_in_vain() {
    let sshd = Sshd::builder().config("MaxSessions 3").start().unwrap();
    let keys = tempfile::tempdir().unwrap();
    let [key, other] =
        ["key", "other"].map(|name| KeyPair::generate(keys.path(), name, KeyType::Ed25519).unwrap());
    let agent = Agent::start().unwrap();
    let confirm = KeyConstraints {
        confirm: true,
        ..KeyConstraints::default()
    };
    for key in [&key, &other] {
        agent.add(key, &confirm).unwrap();
    }
    agent.consent_after(Duration::from_secs(1)).unwrap();
    let takes =
        |key: &KeyPair| std::fs::write(sshd.dir().join("authorized_keys"), key.public_line()).unwrap();
    takes(&key);
    let agents = format!("IdentityAgent={}", agent.socket().display());
    let request = request(
        &sshd.ssh_config(),
        sshd.alias(),
        &[&agents, "IdentitiesOnly=no", "IdentityFile=none"],
    );
    let engine = engine();
    let host = engine.host_for(&request, &Interaction::none()).await.unwrap();
    make_use(&engine, &host, &request, &Interaction::none()).await;
    assert_eq!((agent.confirmations(), sshd.authentications()), (1, 1));
    // The server takes another key by now: what led in before is asked about first.
    engine.close(true, |_| true);
    takes(&other);
    let host = engine.host_for(&request, &Interaction::none()).await.unwrap();
    host.warm().await.unwrap();
    assert_eq!((agent.confirmations(), sshd.authentications()), (2, 2));
}

#[tokio::test]
async fn a_program_that_has_its_answers_at_hand_gives_them_to_further_connections() {
    let sshd = with_password(1);
    let (asks, interaction) = asking("secret", false);
    let (_engine, _, host) = prepare(&sshd, &interaction).await;
    let first = running(&host, "cat").await;
    echo(&host, "beside").await;
    finish(first).await;
    assert_eq!((asks.count(), sshd.authentications()), (2, 2));
}

#[tokio::test]
async fn nobody_is_asked_for_a_further_connection_whose_log_in_has_become_a_question() {
    let sshd = Sshd::builder()
        .password("secret")
        .config("MaxSessions 1")
        .start()
        .unwrap();
    let (asks, interaction) = asking("secret", true);
    let (_engine, _, host) = prepare(&sshd, &interaction).await;
    let first = running(&host, "cat").await;
    shut(&sshd);
    let second = echo_beside(&host, "second");
    sshd.wait_for_log("Disconnected from authenticating user")
        .await
        .unwrap();
    finish(first).await;
    second.await.unwrap();
    assert_eq!((asks.count(), sshd.authentications()), (0, 1));
}

#[tokio::test]
async fn who_waits_for_a_session_is_told_so_until_there_is_one() {
    let sshd = with_password(1);
    let (show, mut shown) = mpsc::unbounded_channel();
    let interaction = Interaction::new(Answers::new("secret", true), |_| {});
    let waits = interaction.showing(move |waiting| show.send(waiting.cloned()).unwrap());
    let (_engine, _, host) = prepare(&sshd, &waits).await;
    let first = running(&host, "cat").await;
    let second = echo_beside(&host, "second");
    let told = shown.recv().await.unwrap();
    let who = format!("{}@{}", sshd.user(), sshd.alias());
    assert_eq!(told, Some(Waiting::Session { host: who }));
    finish(first).await;
    second.await.unwrap();
    assert_eq!(shown.recv().await, Some(None));
    assert_eq!(sshd.connections(), 1);
}

#[tokio::test]
async fn a_copy_ends_without_the_sessions_that_it_never_got() {
    let sshd = Sshd::builder().config("MaxSessions 2").start().unwrap();
    let engine = engine();
    let host = host_behind_a_shut_door(&engine, &sshd).await;
    let other = running(&host, "cat").await;
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (directory.path().join("source"), directory.path().join("target"));
    std::fs::create_dir(&source).unwrap();
    for n in 0..3000 {
        std::fs::write(source.join(n.to_string()), "small").unwrap();
    }
    let mut options = CopyOptions::default();
    options.recursive = true;
    options.streams = Some(4);
    let progress = Arc::new(Progress::default());
    let to = Location::Host(host.clone(), target.to_str().unwrap().to_owned().into());
    copy(&[Location::Local(source)], &to, &options, &progress)
        .await
        .unwrap();
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 3000);
    finish(other).await;
    assert_eq!(sshd.authentications(), 1);
}

impl Prompter for OneTime {
    fn ask<'a>(&'a self, _: &'a Prompt) -> Answer<'a> {
        let first = self.asked.fetch_add(1, Ordering::Relaxed) == 0;
        let answer = if first {
            self.password.clone()
        } else {
            "used up".into()
        };
        Box::pin(std::future::ready(Some(Zeroizing::new(answer))))
    }
}

#[tokio::test]
async fn a_password_that_works_once_is_enough() {
    let sshd = Sshd::builder()
        .password("once")
        .authentication_methods("keyboard-interactive")
        .config("MaxSessions 2")
        .start()
        .unwrap();
    let asks = Arc::new(OneTime {
        asked: AtomicUsize::new(0),
        password: "once".into(),
    });
    let (_engine, _, host) = prepare(&sshd, &Interaction::new(asks, |_| {})).await;
    // All at once and cold: nothing else is tried before the first log-in has come to its end.
    echo_all(&host, 15).await;
    assert_eq!(sshd.authentications(), 1);
}

#[tokio::test]
async fn a_place_that_becomes_free_is_taken_while_the_server_takes_no_connections() {
    let sshd = Sshd::builder()
        .config("MaxSessions 1\nMaxStartups 1")
        .start()
        .unwrap();
    let engine = engine();
    let host = host_of(&engine, &sshd).await;
    let first = running(&host, "cat").await;
    // The only one that may be on its way, and will never log in.
    let _waiting = TcpStream::connect(sshd.addr()).await.unwrap();
    let second = echo_beside(&host, "second");
    sshd.wait_for_log("MaxStartups").await.unwrap();
    finish(first).await;
    second.await.unwrap();
    assert_eq!(sshd.authentications(), 1);
}

#[tokio::test]
async fn a_first_log_in_that_is_refused_fails_for_all_who_wait_for_it_and_is_not_tried_for_each() {
    let (sshd, _engine, host) = server_and_host().await;
    shut(&sshd);
    let mut commands = JoinSet::new();
    for _ in 0..30 {
        let host = host.clone();
        commands.spawn(async move { host.run(&Command::exec("true")).await.unwrap_err() });
    }
    for error in commands.join_all().await {
        assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
        assert_eq!(error.execution(), Execution::DidNotStart);
    }
    assert_eq!(sshd.connections(), 1);
}

#[tokio::test]
async fn a_session_asked_for_in_the_same_breath_as_another_ends_gets_its_place() {
    let sshd = Sshd::builder().config("MaxSessions 1").start().unwrap();
    let engine = engine();
    let host = host_behind_a_shut_door(&engine, &sshd).await;
    for n in 0..10 {
        let session = running(&host, "cat").await;
        // sshd finds the end of the one and the request for the other together.
        sshd.freeze_connections();
        session.control.close();
        drop(session);
        let next = echo_beside(&host, &n.to_string());
        tokio::task::yield_now().await;
        sshd.thaw_connections();
        next.await.unwrap();
    }
    assert_eq!(sshd.authentications(), 1);
}

/// A host that the program describes itself.
fn private(engine: &Engine, sshd: &Sshd, connections: Option<usize>) -> Host {
    let mut config = HostConfig::explicit(&sshd.addr().ip().to_string(), sshd.port(), sshd.user()).unwrap();
    config.user_known_hosts_files = vec![sshd.known_hosts()];
    let key = std::fs::read(sshd.client_keys()[0].private_path()).unwrap();
    let login = Login::new().key(KeyFile::in_memory("the test's key", key.into()).unwrap());
    let login = match connections {
        Some(most) => login.connections(most),
        None => login,
    };
    engine.private_host(config, login, &Interaction::none()).unwrap()
}

#[tokio::test]
async fn a_private_host_logs_in_once_and_says_what_the_server_refuses() {
    let sshd = Sshd::builder().config("MaxSessions 2").start().unwrap();
    let engine = engine();
    let host = private(&engine, &sshd, None);
    let busy = make_busy(&host).await;
    let second = running(&host, "cat").await;
    let refused = host.start(&Command::exec("true")).await.unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    assert_eq!(refused.execution(), Execution::DidNotStart);
    let refused = host.sftp().await.unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    // A place that has become free can be taken.
    finish(second).await;
    echo(&host, "third").await;
    drop(busy);
    assert_eq!(sshd.connections(), 1);
}

#[tokio::test]
async fn a_private_host_has_the_connections_that_it_was_allowed() {
    let sshd = Sshd::builder().config("MaxSessions 1").start().unwrap();
    let engine = engine();
    let host = private(&engine, &sshd, Some(2));
    let first = running(&host, "cat").await;
    let second = running(&host, "cat").await;
    let third = echo_beside(&host, "third");
    assert_eq!(sshd.authentications(), 2);
    finish(first).await;
    third.await.unwrap();
    finish(second).await;
    assert_eq!(sshd.authentications(), 2);
}

#[tokio::test]
async fn an_agent_is_asked_for_nobody_who_has_left() {
    let sshd = Sshd::start_default().unwrap();
    let agent = Agent::start().unwrap();
    let confirm = KeyConstraints {
        confirm: true,
        ..KeyConstraints::default()
    };
    agent.add(&sshd.client_keys()[0], &confirm).unwrap();
    agent.consent(true).unwrap();
    let agents = format!("IdentityAgent={}", agent.socket().display());
    let options = [&*agents, "IdentitiesOnly=no", "IdentityFile=none"];
    let request = request(&sshd.ssh_config(), sshd.alias(), &options);
    let engine = engine();
    let presence = Arc::<Presence>::default();
    let leaving = Interaction::none().while_present(presence.clone());
    let host = engine.host_for(&request, &leaving).await.unwrap();
    let connecting = tokio::spawn(async move { host.warm().await });
    presence.wait_until_wanted().await;
    // Somebody else waits for the same connection, and makes another when that comes to nothing.
    let other = engine.host_for(&request, &Interaction::none()).await.unwrap();
    let beside = tokio::spawn(async move { other.run(&Command::exec("true")).await });
    presence.decide(false);
    let error = connecting.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("has left"), "{error}");
    assert!(beside.await.unwrap().unwrap().status.success());
    assert_eq!((agent.confirmations(), sshd.authentications()), (1, 1));
}
