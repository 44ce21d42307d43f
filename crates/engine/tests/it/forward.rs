//! Forwarding through stock servers: what clients and targets see.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use trunkline::config::{Forward, ForwardTarget, Listen};
use trunkline::{Command, Error, ErrorKind, ForwardEvent, ForwardHandle, Host, Interaction, Settings};
use trunkline_testkit::{Agent, KeyConstraints, Sshd, free_port};

use crate::site::{engine, host_with, request, server_and_host_with, through_relay};

/// Long enough for the slowest machine; what takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// 50 MB in which every four bytes are different: lost, doubled and displaced pieces all show.
fn payload() -> Vec<u8> {
    (0..12_500_000u32).flat_map(u32::to_le_bytes).collect()
}

/// A server, and a host of a new engine that reaches it.
async fn connect(options: &[&str]) -> (Sshd, Host) {
    let sshd = Sshd::start_default().unwrap();
    let engine = engine();
    let host = host_with(&engine, &sshd.ssh_config(), sshd.alias(), options).await;
    (sshd, host)
}

fn tcp(port: u16) -> Listen {
    Listen::Tcp {
        host: Some("127.0.0.1".into()),
        port,
    }
}

fn to_port(port: u16) -> ForwardTarget {
    ForwardTarget::Tcp {
        host: "127.0.0.1".into(),
        port,
    }
}

/// A port of the other side's choosing, on loopback in both families.
fn any_port() -> Listen {
    // Of one address: on the other one of "localhost", the same port may be somebody else's.
    Listen::Tcp {
        host: Some("127.0.0.1".into()),
        port: 0,
    }
}

fn forward(listen: Listen, target: ForwardTarget) -> Forward {
    Forward { listen, target }
}

async fn local(host: &Host, listen: Listen, target: ForwardTarget) -> ForwardHandle {
    host.forward_local(&forward(listen, target)).await.unwrap()
}

async fn remote(host: &Host, listen: Listen, target: ForwardTarget) -> ForwardHandle {
    host.forward_remote(&forward(listen, target)).await.unwrap()
}

/// Gives every client back what it sends, and ends when the client has ended.
async fn echo_one(stream: impl AsyncRead + AsyncWrite) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let _ = tokio::io::copy(&mut reader, &mut writer).await;
    let _ = writer.shutdown().await;
}

async fn echo_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(echo_one(stream));
        }
    });
    port
}

fn echo_socket(path: &Path) {
    let listener = UnixListener::bind(path).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(echo_one(stream));
        }
    });
}

/// Sends `data`, ends, and returns all that comes back.
async fn exchange(stream: impl AsyncRead + AsyncWrite + Send + 'static, data: &[u8]) -> Vec<u8> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sent = data.to_vec();
    let sending = tokio::spawn(async move {
        writer.write_all(&sent).await.unwrap();
        writer.shutdown().await.unwrap();
        writer
    });
    let mut back = Vec::new();
    tokio::time::timeout(PATIENCE, reader.read_to_end(&mut back))
        .await
        .unwrap()
        .unwrap();
    sending.await.unwrap();
    back
}

async fn client(handle: &ForwardHandle) -> TcpStream {
    TcpStream::connect(("127.0.0.1", handle.port().unwrap()))
        .await
        .unwrap()
}

async fn carries_everything(stream: impl AsyncRead + AsyncWrite + Send + 'static) {
    let data = payload();
    assert!(
        exchange(stream, &data).await == data,
        "what came back is not what was sent"
    );
}

/// The event, or a failure that says that none came.
async fn event(events: &mut trunkline::ForwardEvents) -> ForwardEvent {
    tokio::time::timeout(PATIENCE, events.next())
        .await
        .expect("no event came")
        .expect("the forwarding has ended")
}

/// Waits until `done`; for what no event tells.
async fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let waiting = async {
        while !done() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap_or_else(|_| panic!("never happened: {what}"));
}

// Local.

#[tokio::test]
async fn a_local_port_leads_to_a_port_of_the_server() {
    let (_sshd, host) = connect(&[]).await;
    let handle = local(&host, tcp(0), to_port(echo_port().await)).await;
    carries_everything(client(&handle).await).await;
    wait_until("the client is counted as served", || handle.counters().open == 0).await;
    let counters = handle.counters();
    assert_eq!((counters.accepted, counters.refused), (1, 0));
    assert_eq!(
        (counters.bytes_sent, counters.bytes_received),
        (50_000_000, 50_000_000)
    );
}

#[tokio::test]
async fn a_local_socket_leads_to_a_socket_of_the_server() {
    let (_sshd, host) = connect(&[]).await;
    let directory = tempfile::tempdir().unwrap();
    let (near, far) = (directory.path().join("near"), directory.path().join("far"));
    echo_socket(&far);
    let handle = local(&host, Listen::Socket(near.clone()), ForwardTarget::Socket(far)).await;
    assert_eq!(
        (handle.listening(), handle.port()),
        (vec![Listen::Socket(near.clone())], None)
    );
    carries_everything(UnixStream::connect(&near).await.unwrap()).await;
    handle.close().await;
    assert!(!near.exists(), "the socket outlives its forwarding");
}

#[tokio::test]
async fn a_port_without_an_address_is_loopback_in_both_families() {
    let (_sshd, host) = connect(&[]).await;
    let handle = local(&host, any_port(), to_port(echo_port().await)).await;
    let port = handle.port().unwrap();
    let listening = handle.listening();
    assert!(listening.contains(&tcp(port)), "{listening:?}");
    for listen in listening {
        let Listen::Tcp { host, port } = listen else {
            panic!("not a port")
        };
        let stream = TcpStream::connect((host.unwrap().as_str(), port)).await.unwrap();
        assert_eq!(exchange(stream, b"hello").await, b"hello");
    }
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let (_sshd, host) = connect(&[]).await;
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = host
        .forward_local(&forward(tcp(port), to_port(1)))
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("bind [127.0.0.1]:{port}: Address already in use")
    );
    assert_eq!(error.kind(), ErrorKind::Local);
}

#[tokio::test]
async fn each_direction_ends_by_itself() {
    let (_sshd, host) = connect(&[]).await;
    let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = target.local_addr().unwrap().port();
    let handle = local(&host, tcp(0), to_port(port)).await;

    // The client ends first, and then hears the answer.
    let (mut near, far) = tokio::join!(client(&handle), target.accept());
    let mut far = far.unwrap().0;
    near.write_all(b"question").await.unwrap();
    near.shutdown().await.unwrap();
    let mut question = String::new();
    far.read_to_string(&mut question).await.unwrap();
    far.write_all(b"answer").await.unwrap();
    drop(far);
    let mut answer = String::new();
    near.read_to_string(&mut answer).await.unwrap();
    assert_eq!((question.as_str(), answer.as_str()), ("question", "answer"));

    // The target ends first, and still hears the client.
    let (mut near, far) = tokio::join!(client(&handle), target.accept());
    let mut far = far.unwrap().0;
    far.write_all(b"bye").await.unwrap();
    far.shutdown().await.unwrap();
    let mut heard = String::new();
    near.read_to_string(&mut heard).await.unwrap();
    near.write_all(b"so soon").await.unwrap();
    near.shutdown().await.unwrap();
    let mut complaint = String::new();
    far.read_to_string(&mut complaint).await.unwrap();
    assert_eq!((heard.as_str(), complaint.as_str()), ("bye", "so soon"));
}

#[tokio::test]
async fn a_refused_target_costs_one_client_only() {
    let (_sshd, host) = connect(&[]).await;
    let directory = tempfile::tempdir().unwrap();
    let far = directory.path().join("far");
    let handle = local(&host, tcp(0), ForwardTarget::Socket(far.clone())).await;
    let mut events = handle.events();
    assert!(exchange(client(&handle).await, b"").await.is_empty());
    match event(&mut events).await {
        ForwardEvent::Refused { target, error, .. } => {
            assert_eq!(target, far.to_str().unwrap());
            assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
        }
        other => panic!("{other:?}"),
    }
    echo_socket(&far);
    assert_eq!(exchange(client(&handle).await, b"hello").await, b"hello");
    assert_eq!(handle.counters().refused, 1);
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_up_nobody_else() {
    let (_sshd, host) = connect(&[]).await;
    let handle = local(&host, tcp(0), to_port(echo_port().await)).await;
    let mut stalled = client(&handle).await;
    // Until everything between here and the target is full.
    let piece = vec![7; 1 << 20];
    let filling = async {
        loop {
            stalled.write_all(&piece).await.unwrap();
        }
    };
    let others = async {
        for _ in 0..50 {
            assert_eq!(exchange(client(&handle).await, b"alive").await, b"alive");
        }
    };
    tokio::select! {
        () = others => {}
        () = filling => {}
    }
}

#[tokio::test]
async fn what_is_cut_off_does_not_look_complete() {
    let (_sshd, _place, relay, host) = through_relay().await;
    let handle = local(&host, tcp(0), to_port(echo_port().await)).await;
    let mut stream = client(&handle).await;
    stream.write_all(b"part").await.unwrap();
    let mut part = [0; 4];
    stream.read_exact(&mut part).await.unwrap();
    relay.reset();
    let end = tokio::time::timeout(PATIENCE, stream.read(&mut part))
        .await
        .unwrap();
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    // The next client gets a new connection.
    assert_eq!(exchange(client(&handle).await, b"hello").await, b"hello");
}

#[tokio::test]
async fn closing_ends_the_listening_and_aborting_ends_all() {
    let (_sshd, host) = connect(&[]).await;
    // Once it is closed nobody else is given it.
    let port = free_port();
    let target = to_port(echo_port().await);
    for abort in [false, true] {
        let handle = local(&host, tcp(port), target.clone()).await;
        let mut events = handle.events();
        let mut running = client(&handle).await;
        running.write_all(b"x").await.unwrap();
        assert_eq!(running.read_u8().await.unwrap(), b'x');
        if abort {
            handle.abort().await;
            assert!(
                tokio::time::timeout(PATIENCE, running.read_u8())
                    .await
                    .unwrap()
                    .is_err()
            );
            assert!(events.next().await.is_none());
        } else {
            handle.close().await;
            TcpStream::connect(("127.0.0.1", port)).await.unwrap_err();
            running.write_all(b"y").await.unwrap();
            assert_eq!(running.read_u8().await.unwrap(), b'y');
        }
    }
}

// Dynamic.

enum Socks {
    V4,
    V4a,
    V5Address,
    V5Name,
}

/// Asks a SOCKS server for `port` of this machine, and checks that it grants it.
async fn socks(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), version: &Socks, port: u16) -> u8 {
    let port = port.to_be_bytes();
    let (request, answer) = match version {
        Socks::V4 => ([&[4, 1], &port[..], &[127, 0, 0, 1], b"me\0"].concat(), 8),
        Socks::V4a => (
            [&[4, 1], &port[..], &[0, 0, 0, 9], b"me\0localhost\0"].concat(),
            8,
        ),
        Socks::V5Address | Socks::V5Name => {
            stream.write_all(&[5, 1, 0]).await.unwrap();
            let mut method = [0; 2];
            stream.read_exact(&mut method).await.unwrap();
            assert_eq!(method, [5, 0]);
            let address: &[u8] = match version {
                Socks::V5Address => &[1, 127, 0, 0, 1],
                _ => b"\x03\x09localhost",
            };
            ([&[5, 1, 0], address, &port].concat(), 10)
        }
    };
    stream.write_all(&request).await.unwrap();
    let mut reply = vec![0; answer];
    stream.read_exact(&mut reply).await.unwrap();
    reply[1]
}

#[tokio::test]
async fn socks_clients_of_every_version_get_where_they_ask() {
    let (_sshd, host) = connect(&[]).await;
    let handle = host.forward_dynamic(&tcp(0)).await.unwrap();
    let port = echo_port().await;
    for (version, granted) in [(Socks::V4, 90), (Socks::V4a, 90), (Socks::V5Name, 0)] {
        let mut stream = client(&handle).await;
        assert_eq!(socks(&mut stream, &version, port).await, granted);
        assert_eq!(exchange(stream, b"hello").await, b"hello");
    }
    let mut stream = client(&handle).await;
    assert_eq!(socks(&mut stream, &Socks::V5Address, port).await, 0);
    carries_everything(stream).await;
}

#[tokio::test]
async fn a_socks_client_is_told_of_a_refused_target() {
    let (_sshd, host) = connect(&[]).await;
    let handle = host.forward_dynamic(&tcp(0)).await.unwrap();
    let free = free_port();
    assert_eq!(
        socks(&mut client(&handle).await, &Socks::V5Address, free).await,
        5
    );
    assert_eq!(socks(&mut client(&handle).await, &Socks::V4, free).await, 91);
    let mut events = handle.events();
    let stranger = client(&handle).await;
    assert!(exchange(stranger, b"GET / HTTP/1.0\r\n\r\n").await.is_empty());
    let ForwardEvent::Refused { error, .. } = event(&mut events).await else {
        panic!("not refused")
    };
    assert!(error.to_string().contains("does not speak SOCKS"), "{error}");
}

// Remote.

#[tokio::test]
async fn a_port_of_the_server_leads_here() {
    let (_sshd, host) = connect(&[]).await;
    let port = echo_port().await;
    for name in [
        None,
        Some("localhost"),
        Some("127.0.0.1"),
        Some("0.0.0.0"),
        Some(""),
        Some("*"),
    ] {
        let listen = Listen::Tcp {
            host: name.map(str::to_owned),
            // Once it is closed nobody else is given it.
            port: free_port(),
        };
        let handle = host
            .forward_remote(&Forward {
                listen,
                target: to_port(port),
            })
            .await
            .unwrap();
        assert_eq!(
            exchange(client(&handle).await, b"hello").await,
            b"hello",
            "{name:?}"
        );
        let listening = handle.port().unwrap();
        handle.close().await;
        TcpStream::connect(("127.0.0.1", listening)).await.unwrap_err();
    }
    let handle = remote(&host, any_port(), to_port(port)).await;
    carries_everything(client(&handle).await).await;
}

#[tokio::test]
async fn a_socket_of_the_server_leads_to_a_socket_here() {
    let (_sshd, host) = connect(&[]).await;
    let directory = tempfile::tempdir().unwrap();
    let (near, far) = (directory.path().join("near"), directory.path().join("far"));
    echo_socket(&near);
    let _handle = remote(&host, Listen::Socket(far.clone()), ForwardTarget::Socket(near)).await;
    carries_everything(UnixStream::connect(&far).await.unwrap()).await;
}

#[tokio::test]
async fn a_socks_port_of_the_server_goes_where_it_is_permitted() {
    let allowed = echo_port().await;
    let other = echo_port().await;
    let (_sshd, host) = connect(&[&format!("PermitRemoteOpen=127.0.0.1:{allowed}")]).await;
    let handle = remote(&host, any_port(), ForwardTarget::Socks).await;
    let mut stream = client(&handle).await;
    assert_eq!(socks(&mut stream, &Socks::V5Address, other).await, 2);
    assert!(exchange(stream, b"").await.is_empty());
    let mut stream = client(&handle).await;
    assert_eq!(socks(&mut stream, &Socks::V5Address, allowed).await, 0);
    carries_everything(stream).await;
}

#[tokio::test]
async fn what_a_socks_port_permits_is_said_by_the_command_that_brought_it() {
    let (allowed, other) = (echo_port().await, echo_port().await);
    let sshd = Sshd::start_default().unwrap();
    let engine = engine();
    for (permitted, refused) in [(allowed, other), (other, allowed)] {
        let option = format!("PermitRemoteOpen=127.0.0.1:{permitted}");
        let host = host_with(&engine, &sshd.ssh_config(), sshd.alias(), &[&option]).await;
        let handle = remote(&host, any_port(), ForwardTarget::Socks).await;
        let mut stream = client(&handle).await;
        assert_eq!(socks(&mut stream, &Socks::V5Address, refused).await, 2);
        let mut stream = client(&handle).await;
        assert_eq!(socks(&mut stream, &Socks::V5Address, permitted).await, 0);
        carries_everything(stream).await;
    }
    assert_eq!(sshd.authentications(), 1, "they share");
}

#[tokio::test]
async fn a_refused_target_here_closes_the_client_there() {
    let (_sshd, host) = connect(&[]).await;
    let free = free_port();
    let handle = remote(&host, any_port(), to_port(free)).await;
    let mut events = handle.events();
    let mut stream = client(&handle).await;
    assert!(matches!(stream.read(&mut [0]).await, Ok(0) | Err(_)));
    let ForwardEvent::Refused { error, from, .. } = event(&mut events).await else {
        panic!("not refused")
    };
    assert_eq!(
        error.to_string(),
        format!("connecting to 127.0.0.1 port {free}: Connection refused")
    );
    assert_eq!(from, stream.local_addr().unwrap().to_string());
}

#[tokio::test]
async fn a_port_in_use_on_the_server_is_named() {
    let (_sshd, host) = connect(&[]).await;
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = host
        .forward_remote(&forward(tcp(port), to_port(1)))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    assert!(
        error
            .to_string()
            .contains(&format!("refused to listen on 127.0.0.1:{port}: it is in use")),
        "{error}"
    );
    // The refusal leaves nothing behind: the same port can be asked for once it is free.
    drop(taken);
    let handle = remote(&host, tcp(port), to_port(echo_port().await)).await;
    assert_eq!(exchange(client(&handle).await, b"hello").await, b"hello");
    let again = host
        .forward_remote(&forward(tcp(port), to_port(1)))
        .await
        .unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Local, "{again}");
    assert_eq!(exchange(client(&handle).await, b"hello").await, b"hello");
}

#[tokio::test]
async fn a_remote_forwarding_outlives_its_connection() {
    let (_sshd, _place, relay, host) = through_relay().await;
    let handle = remote(&host, any_port(), to_port(echo_port().await)).await;
    let mut events = handle.events();
    for _ in 0..2 {
        assert_eq!(exchange(client(&handle).await, b"hello").await, b"hello");
        relay.reset();
        assert!(matches!(event(&mut events).await, ForwardEvent::Lost { .. }));
        loop {
            match event(&mut events).await {
                ForwardEvent::Established => break,
                // The old sshd may still hold the port.
                ForwardEvent::Retrying { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(exchange(client(&handle).await, b"hello").await, b"hello");
}

#[tokio::test]
async fn a_connection_is_idle_once_its_remote_forwarding_is_closed() {
    let settings = Settings {
        idle_timeout: Duration::from_millis(1),
        ..Settings::default()
    };
    let (_sshd, _engine, host) = server_and_host_with(settings).await;
    let handle = remote(&host, any_port(), to_port(echo_port().await)).await;
    let connection = host.connection();
    handle.close().await;
    let end = tokio::time::timeout(PATIENCE, connection.wait_for_end())
        .await
        .unwrap();
    assert!(matches!(end, Error::Closed { .. }), "{end}");
}

// The agent.

/// A host of a new engine that logs in with the agent at `socket`.
async fn connect_with_agent(sshd: &Sshd, socket: &Path, options: &[&str]) -> Host {
    let identity = format!("IdentityAgent={}", socket.display());
    let options = [&[identity.as_str()], options].concat();
    host_with(&engine(), &sshd.ssh_config(), sshd.alias(), &options).await
}

/// A session that is lent the agent.
fn with_agent(command: &str) -> Command {
    Command::exec(command).agent_forwarding(true)
}

const LIST: &str = "ssh-add -l";
const SOCKET: &str = "echo \"[$SSH_AUTH_SOCK]\"";

#[tokio::test]
async fn a_session_uses_the_agent_that_it_was_lent() {
    let sshd = Sshd::start_default().unwrap();
    let agent = Agent::with_keys(sshd.client_keys()).unwrap();
    let host = connect_with_agent(&sshd, &agent.socket(), &["ForwardAgent=yes"]).await;
    for _ in 0..3 {
        let output = host.run(&with_agent(LIST)).await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && text.contains("(ED25519)"),
            "{text} {output:?}"
        );
    }
}

#[tokio::test]
async fn another_agent_is_lent_where_forward_agent_names_it() {
    let sshd = Sshd::start_default().unwrap();
    let agent = Agent::start().unwrap();
    let engine = engine();
    let option = format!("ForwardAgent={}", agent.socket().display());
    let host = host_with(&engine, &sshd.ssh_config(), sshd.alias(), &[&option]).await;
    let output = host.run(&with_agent(LIST)).await.unwrap();
    assert_eq!(output.stdout, b"The agent has no identities.\n");
}

#[tokio::test]
async fn a_lent_agent_knows_where_it_is_lent_to() {
    let sshd = Sshd::start_default().unwrap();
    let names: PathBuf = sshd.dir().join("names");
    let lines = std::fs::read_to_string(sshd.known_hosts()).unwrap();
    let (_, key) = lines.lines().next().unwrap().split_once(' ').unwrap();
    std::fs::write(&names, format!("box {key}\n")).unwrap();
    let agent = Agent::start().unwrap();
    // Good for logging in to the box, and not for going on from there.
    let destinations = Some((names, vec!["box".to_owned()]));
    let constraints = KeyConstraints {
        destinations,
        ..KeyConstraints::default()
    };
    agent.add(&sshd.client_keys()[0], &constraints).unwrap();
    let host = connect_with_agent(&sshd, &agent.socket(), &["ForwardAgent=yes"]).await;
    assert_eq!(agent.keys().unwrap().len(), 1, "here it is listed");
    let output = host.run(&with_agent(LIST)).await.unwrap();
    assert_eq!(output.stdout, b"The agent has no identities.\n");
}

#[tokio::test]
async fn a_host_that_gets_no_agent_is_not_asked_to_take_it() {
    let sshd = Sshd::start_default().unwrap();
    let agent = Agent::with_keys(sshd.client_keys()).unwrap();
    let host = connect_with_agent(&sshd, &agent.socket(), &[]).await;
    let error = host.run(&with_agent(LIST)).await.unwrap_err();
    assert!(
        error.to_string().contains("the agent is not forwarded"),
        "{error}"
    );
    let error = host.connection().run(&with_agent(LIST)).await.unwrap_err();
    assert!(
        error.to_string().contains("the agent is not forwarded"),
        "{error}"
    );
    let output = host.run(&Command::exec(SOCKET)).await.unwrap();
    assert_eq!(output.stdout, b"[]\n");
}

/// A server whose known key is another one's, and the options that let it through all the same.
fn impostor() -> (Sshd, [String; 2]) {
    let sshd = Sshd::start_default().unwrap();
    let other = Sshd::start_default().unwrap();
    let theirs = std::fs::read_to_string(other.known_hosts()).unwrap();
    let changed = sshd.dir().join("changed");
    let port = |sshd: &Sshd| format!("]:{} ", sshd.port());
    std::fs::write(&changed, theirs.replace(&port(&other), &port(&sshd))).unwrap();
    let options = [
        "StrictHostKeyChecking=no".into(),
        format!("UserKnownHostsFile={}", changed.display()),
    ];
    (sshd, options)
}

#[tokio::test]
async fn a_server_of_unverified_identity_gets_no_agent() {
    let (sshd, [lax, known]) = impostor();
    let agent = Agent::with_keys(sshd.client_keys()).unwrap();
    let options = ["ForwardAgent=yes", &lax, &known];
    let host = connect_with_agent(&sshd, &agent.socket(), &options).await;
    // On a new connection, and on one that is there.
    for _ in 0..2 {
        let output = host.run(&with_agent(SOCKET)).await.unwrap();
        assert_eq!(output.stdout, b"[]\n", "{output:?}");
    }
    assert!(host.connection().info().unwrap().unverified);
}

#[tokio::test]
async fn an_agent_that_has_gone_is_not_lent() {
    let sshd = Sshd::start_default().unwrap();
    let gone = sshd.dir().join("gone");
    trunkline_testkit::leave_socket(&gone);
    let missing = sshd.dir().join("missing");
    for socket in [gone, missing] {
        for option in ["ForwardAgent=yes", &format!("ForwardAgent={}", socket.display())] {
            let host = connect_with_agent(&sshd, &socket, &[option]).await;
            // A shell over there that finds none may start its own.
            let output = host.run(&with_agent(SOCKET)).await.unwrap();
            assert_eq!(output.stdout, b"[]\n", "{option}: {output:?}");
        }
    }
}

fn is_disabled<T>(outcome: Result<T, Error>) {
    let Err(error) = outcome else {
        panic!("it was done on a server that was not verified");
    };
    assert_eq!(error.kind(), ErrorKind::HostKey, "{error}");
    assert!(
        error
            .to_string()
            .contains("disabled to avoid man-in-the-middle attacks"),
        "{error}"
    );
}

#[tokio::test]
async fn nothing_leans_on_a_server_that_was_not_verified() {
    let (sshd, [lax, known]) = impostor();
    let port = echo_port().await;
    let target = to_port(port);
    let socket = sshd.dir().join("there");
    // On a connection that is being made, and on one that is there.
    for warm in [false, true] {
        let asked: &[&str] = match warm {
            true => &["warm"],
            false => &[
                "stream",
                "socket",
                "local",
                "dynamic",
                "remote",
                "remote socket",
                "listener",
            ],
        };
        let engine = engine();
        for what in asked {
            let host = host_with(&engine, &sshd.ssh_config(), sshd.alias(), &[&lax, &known]).await;
            if warm {
                host.warm().await.unwrap();
            }
            let forward = |listen: Listen| Forward {
                listen,
                target: target.clone(),
            };
            match *what {
                "stream" => is_disabled(host.direct_tcpip("127.0.0.1", port, ("127.0.0.1", 0)).await),
                "socket" => is_disabled(host.direct_streamlocal("/tmp/any").await),
                "remote" => is_disabled(host.forward_remote(&forward(tcp(0))).await),
                "remote socket" => {
                    is_disabled(
                        host.forward_remote(&forward(Listen::Socket(socket.clone())))
                            .await,
                    );
                    assert!(!socket.exists());
                }
                "listener" => is_disabled(host.listen_remote(&tcp(0)).await),
                "local" | "dynamic" => {
                    // Each client is sent away where nothing was known of the server when it began.
                    let cold = crate::site::engine();
                    let host = host_with(&cold, &sshd.ssh_config(), sshd.alias(), &[&lax, &known]).await;
                    let handle = match *what {
                        "local" => host.forward_local(&forward(tcp(0))).await,
                        _ => host.forward_dynamic(&tcp(0)).await,
                    };
                    let handle = handle.unwrap();
                    let mut events = handle.events();
                    let mut stream = client(&handle).await;
                    if *what == "dynamic" {
                        stream.write_all(&[5, 1, 0]).await.unwrap();
                        let mut greeting = [0; 2];
                        stream.read_exact(&mut greeting).await.unwrap();
                        let to = [&[5, 1, 0, 1, 127, 0, 0, 1][..], &port.to_be_bytes()].concat();
                        stream.write_all(&to).await.unwrap();
                    }
                    let ForwardEvent::Refused { error, .. } = event(&mut events).await else {
                        panic!("the client was served");
                    };
                    is_disabled::<()>(Err(error));
                }
                _ => {
                    is_disabled(host.direct_tcpip("127.0.0.1", port, ("127.0.0.1", 0)).await);
                    is_disabled(host.forward_local(&forward(tcp(0))).await);
                    is_disabled(host.forward_dynamic(&tcp(0)).await);
                    is_disabled(host.forward_remote(&forward(tcp(0))).await);
                    is_disabled(host.listen_remote(&tcp(0)).await);
                    // The connection itself knows, whoever asks it.
                    let connection = host.connection();
                    is_disabled(connection.direct_streamlocal("/tmp/any").await);
                    // Sessions continue.
                    let output = host.run(&Command::exec("echo here")).await.unwrap();
                    assert_eq!(output.stdout, b"here\n");
                }
            }
        }
    }
}

#[tokio::test]
async fn exit_on_forward_failure_means_nothing_runs_on_a_server_that_was_not_verified() {
    let (sshd, [lax, known]) = impostor();
    let engine = engine();
    let all = [lax.as_str(), known.as_str(), "ExitOnForwardFailure=yes"];
    let strict = host_with(&engine, &sshd.ssh_config(), sshd.alias(), &all).await;
    let plain = host_with(&engine, &sshd.ssh_config(), sshd.alias(), &[&lax, &known]).await;
    let echo = Command::exec("echo here");
    // On a new connection; behind one that did not ask for that, in a new session and in a spare one.
    for _ in 0..3 {
        let error = strict.run(&echo).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::HostKey, "{error}");
        assert_eq!(error.execution(), trunkline::Execution::DidNotStart);
        assert!(
            error
                .to_string()
                .contains("forwarding disabled due to host key check failure")
        );
        assert_eq!(plain.run(&echo).await.unwrap().stdout, b"here\n");
    }
    assert_eq!(strict.warm().await.unwrap_err().kind(), ErrorKind::HostKey);
}

#[tokio::test]
async fn everybody_who_shares_an_unverified_connection_is_told_once() {
    let (sshd, [lax, known]) = impostor();
    let engine = engine();
    for _ in 0..2 {
        let told = Arc::new(std::sync::Mutex::new(Vec::new()));
        let interaction = {
            let told = told.clone();
            Interaction::new(Arc::new(trunkline::prompt::Never), move |text| {
                told.lock().unwrap().push(text.to_owned());
            })
        };
        let request = request(&sshd.ssh_config(), sshd.alias(), &[&lax, &known]);
        let host = engine.host_for(&request, &interaction).await.unwrap();
        for _ in 0..2 {
            host.run(&Command::exec("true")).await.unwrap();
        }
        let told = told.lock().unwrap().clone();
        let disabled = told
            .iter()
            .filter(|text| text.contains("disabled") && text.contains("man-in-the-middle"));
        assert_eq!(disabled.count(), 1, "{told:?}");
        let changed = told.iter().filter(|text| text.contains("HAS CHANGED"));
        assert_eq!(changed.count(), 1, "{told:?}");
        assert_eq!(host.warnings().len(), 2);
    }
}

#[tokio::test]
async fn of_two_who_ask_for_a_port_at_once_each_is_told_what_the_server_says() {
    let (sshd, host) = connect(&[]).await;
    host.warm().await.unwrap();
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let wanted = forward(tcp(other.local_addr().unwrap().port()), to_port(1));
    // Both are under way before the server has answered either.
    sshd.freeze_connections();
    let (first, second) = (host.forward_remote(&wanted), host.forward_remote(&wanted));
    let thaw = async {
        tokio::task::yield_now().await;
        sshd.thaw_connections();
    };
    let (first, second, ()) = tokio::join!(first, second, thaw);
    for refused in [first.unwrap_err(), second.unwrap_err()] {
        assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    }
}
