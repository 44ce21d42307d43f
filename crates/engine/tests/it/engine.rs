//! The engine against stock servers: what a program that uses it sees.

use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use trunkline::memory::{HostId, Lesson};
use trunkline::{Command, Connection, Error, ErrorKind, Execution, ExitStatus, Interaction, Settings};
use trunkline_testkit::hostile::{Misbehaviour, RawServer};
use trunkline_testkit::{Sshd, write_ssh_config};

use crate::site::{
    self, Relayed, Site, engine, engine_with, host_of, request, server_and_host, server_and_host_with,
};

#[tokio::test]
async fn a_command_runs_and_says_how_it_ended() {
    let (_sshd, _engine, host) = server_and_host().await;
    let output = host
        .run(&Command::exec("echo out; echo err >&2; exit 3"))
        .await
        .unwrap();
    assert_eq!(output.stdout, b"out\n");
    assert_eq!(output.stderr, b"err\n");
    assert_eq!(output.status, ExitStatus::Exited(3));
    let output = host.run(&Command::exec("kill -TERM $$")).await.unwrap();
    assert!(matches!(output.status, ExitStatus::Signaled { signal, .. } if signal == "TERM"));
}

#[tokio::test]
async fn everything_shares_one_connection() {
    let (sshd, _engine, host) = server_and_host().await;
    for _ in 0..20 {
        assert_eq!(host.run(&Command::exec("echo hi")).await.unwrap().stdout, b"hi\n");
    }
    let mut running = tokio::task::JoinSet::new();
    for n in 0..8 {
        let host = host.clone();
        running.spawn(async move {
            host.run(&Command::exec(format!("echo {n}")))
                .await
                .unwrap()
                .stdout
        });
    }
    assert_eq!(running.join_all().await.len(), 8);
    assert_eq!(sshd.authentications(), 1);
}

#[tokio::test]
async fn more_sessions_than_max_sessions_get_more_connections() {
    let sshd = Sshd::builder().config("MaxSessions 2").start().unwrap();
    let engine = engine();
    let host = host_of(&engine, &sshd).await;
    let mut running = tokio::task::JoinSet::new();
    for n in 0..7 {
        let host = host.clone();
        running.spawn(async move {
            host.run(&Command::exec(format!("sleep 0.2; echo {n}")))
                .await
                .unwrap()
                .stdout
        });
    }
    assert_eq!(running.join_all().await.len(), 7);
}

#[tokio::test]
async fn streams_are_binary_clean_and_flow_both_ways() {
    let (_sshd, _engine, host) = server_and_host().await;
    let session = host.start(&Command::exec("cat")).await.unwrap();
    let mut parts = session.into_parts();
    let input: Vec<u8> = (0..4_000_000u32).flat_map(u32::to_le_bytes).collect();
    let sent = input.clone();
    let writer = tokio::spawn(async move {
        parts.stdin.write_all(&sent).await.unwrap();
        parts.stdin.shutdown().await.unwrap();
    });
    let mut output = Vec::new();
    parts.stdout.read_to_end(&mut output).await.unwrap();
    writer.await.unwrap();
    assert!(output == input);
    assert_eq!(parts.end.wait().await.unwrap(), ExitStatus::Exited(0));
}

#[tokio::test]
async fn a_reader_that_never_reads_holds_up_nobody_else() {
    let (_sshd, _engine, host) = server_and_host().await;
    let connection = host.connection();
    let stalled = connection.start(&Command::exec("cat /dev/zero"));
    for _ in 0..5 {
        assert_eq!(
            connection.run(&Command::exec("echo alive")).await.unwrap().stdout,
            b"alive\n"
        );
    }
    drop(stalled);
}

#[tokio::test]
async fn a_lost_connection_says_that_the_command_may_have_started() {
    let relayed = Relayed::start();
    let host = relayed.site(engine()).await;
    let mut session = host
        .start(&Command::exec("echo started; sleep 100"))
        .await
        .unwrap();
    let mut line = [0; 8];
    session.stdout.read_exact(&mut line).await.unwrap();
    relayed.relay.reset();
    let error = session.wait().await.unwrap_err();
    assert_eq!(error.execution(), Execution::MayHaveStarted);
    assert_eq!(error.kind(), ErrorKind::Network);
    // The next command gets a new connection.
    assert_eq!(
        host.run(&Command::exec("echo again")).await.unwrap().stdout,
        b"again\n"
    );
}

#[tokio::test]
async fn an_unknown_host_key_is_refused_before_anything_is_signed() {
    let sshd = Sshd::start_default().unwrap();
    let empty = sshd.dir().join("no_known_hosts");
    let mut request = request(&sshd.ssh_config(), sshd.alias(), &[]);
    request.ssh_args.extend([
        "-o".into(),
        format!("UserKnownHostsFile={}", empty.display()).into(),
    ]);
    request
        .ssh_args
        .extend(["-o".into(), "StrictHostKeyChecking=yes".into()]);
    let engine = engine();
    let host = engine.host_for(&request, &Interaction::none()).await.unwrap();
    let error = host.run(&Command::exec("true")).await.unwrap_err();
    assert!(matches!(error, Error::HostKey(_)), "{error}");
    assert_eq!(error.execution(), Execution::DidNotStart);
    assert_eq!(sshd.authentications(), 0);
}

#[tokio::test]
async fn a_refused_port_and_a_missing_key_are_named() {
    let sshd = Sshd::start_default().unwrap();
    let engine = engine();
    let mut wrong = request(&sshd.ssh_config(), sshd.alias(), &[]);
    wrong.ssh_args.extend(["-p".into(), "1".into()]);
    let host = engine.host_for(&wrong, &Interaction::none()).await.unwrap();
    let error = host.run(&Command::exec("true")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "connecting to 127.0.0.1 port 1: Connection refused"
    );

    let mut keyless = request(&sshd.ssh_config(), sshd.alias(), &[]);
    keyless.ssh_args = vec![
        "-F".into(),
        sshd.ssh_config().into(),
        "-o".into(),
        "IdentityFile=/nonexistent/key".into(),
    ];
    let text = std::fs::read_to_string(sshd.ssh_config())
        .unwrap()
        .replace("IdentityFile", "# IdentityFile");
    let config = sshd.dir().join("keyless");
    std::fs::write(&config, text).unwrap();
    keyless.ssh_args[1] = config.into();
    let host = engine.host_for(&keyless, &Interaction::none()).await.unwrap();
    let error = host.run(&Command::exec("true")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
    assert!(error.to_string().contains("/nonexistent/key"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_asks_in_the_moment_of_the_end_is_told_its_reason() {
    let sshd = Sshd::start_default().unwrap();
    let engine = engine();
    let mut wrong = request(&sshd.ssh_config(), sshd.alias(), &[]);
    wrong.ssh_args.extend(["-p".into(), "1".into()]);
    let host = engine.host_for(&wrong, &Interaction::none()).await.unwrap();
    for _ in 0..100 {
        let connection = host.connection();
        let asking = tokio::task::spawn_blocking(move || {
            let mut sessions = vec![connection.start(&Command::exec("true"))];
            while connection.is_open() {
                sessions.push(connection.start(&Command::exec("true")));
            }
            sessions
        });
        for mut session in asking.await.unwrap() {
            let error = session.wait_for_start().await.unwrap_err().to_string();
            assert_eq!(error, "connecting to 127.0.0.1 port 1: Connection refused");
        }
    }
}

/// Looks, whenever it is woken, whether a connection is still open.
struct Looks {
    connection: Connection,
    found_open: Mutex<Vec<bool>>,
}

impl Wake for Looks {
    fn wake(self: Arc<Self>) {
        self.found_open.lock().unwrap().push(self.connection.is_open());
    }
}

/// The state that is found by whoever waits for `waiting` and looks at the connection in the moment that it is told.
async fn found_when_told(
    connection: &Connection,
    waiting: impl Future<Output: std::fmt::Debug>,
) -> Vec<bool> {
    let looks = Arc::new(Looks {
        connection: connection.clone(),
        found_open: Mutex::default(),
    });
    let waker = Waker::from(looks.clone());
    let mut waiting = std::pin::pin!(waiting);
    assert!(
        waiting
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    connection.wait_for_end().await;
    waiting.await;
    std::mem::take(&mut looks.found_open.lock().unwrap())
}

#[tokio::test]
async fn whoever_is_told_of_the_end_finds_the_connection_ended() {
    let (relayed, engine) = (Relayed::start(), engine());
    let host = site::host_with(&engine, &relayed.config, "relayed", &[]).await;

    let connection = host.connection();
    connection.ready().await.unwrap();
    let mut running = connection.start(&Command::exec("sleep 1000"));
    running.wait_for_start().await.unwrap();
    let (found, ()) = tokio::join!(found_when_told(&connection, running.wait()), async {
        relayed.relay.reset();
    });
    assert_eq!(found, [false]);

    // Asked for with a log-in that fails.
    let keyless = ["PreferredAuthentications=password"];
    let host = site::host_with(&engine, &relayed.config, "relayed", &keyless).await;
    let connection = host.connection();
    let mut asked = connection.start(&Command::exec("true"));
    assert_eq!(
        found_when_told(&connection, asked.wait_for_start()).await,
        [false]
    );
}

#[tokio::test]
async fn a_server_that_hangs_up_on_the_early_flight_is_asked_step_by_step_from_then_on() {
    let server = RawServer::misbehaving(Misbehaviour::CloseAfterNewKeys).unwrap();
    let engine = engine();
    let host = site::host_with(&engine, &server.ssh_config(), "raw", &[]).await;
    let config = host.config();
    let id = HostId::from_config(config);
    let refused = || {
        engine
            .memory()
            .facts(&id)
            .is_some_and(|facts| facts.lessons.has(Lesson::NoPipelining))
    };
    // The server closes as soon as there are keys. Only when the early flight has left by then can it be the reason.
    for _ in 0..20 {
        let error = host.run(&Command::exec("true")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Network, "{error}");
        if refused() {
            break;
        }
    }
    assert!(refused());
    let attempts = server.connections();
    let error = host.run(&Command::exec("true")).await.unwrap_err();
    assert_eq!(error.execution(), Execution::DidNotStart, "{error}");
    assert_eq!(server.connections(), attempts + 1);
}

#[tokio::test]
async fn a_server_that_is_too_busy_is_tried_again_for_whoever_waits() {
    let sshd = Sshd::start_default().unwrap();
    // As sshd does beyond MaxStartups: a line, and it hangs up. The second client is let through.
    let door = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = door.local_addr().unwrap();
    let behind = sshd.addr();
    tokio::spawn(async move {
        let (mut first, _) = door.accept().await.unwrap();
        first.write_all(b"Exceeded MaxStartups\r\n").await.unwrap();
        first.shutdown().await.unwrap();
        // It reads on, so that what the client has sent already does not become a reset.
        let mut unread = Vec::new();
        let _ = first.read_to_end(&mut unread).await;
        let (mut second, _) = door.accept().await.unwrap();
        let mut server = tokio::net::TcpStream::connect(behind).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut second, &mut server).await;
    });
    sshd.trust_at(address).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config");
    write_ssh_config(&config, [sshd.host_entry("busy").with_address(address)]).unwrap();
    let host = Site::open(&config, "busy").await;
    let output = host.run(&Command::exec("echo in")).await.unwrap();
    assert_eq!(output.stdout, b"in\n");
}

#[tokio::test]
async fn idle_connections_close() {
    let settings = Settings {
        idle_timeout: Duration::from_millis(1),
        ..Settings::default()
    };
    let (_sshd, _engine, host) = server_and_host_with(settings).await;
    host.run(&Command::exec("true")).await.unwrap();
    let connection = host.connection();
    let end = connection.wait_for_end().await;
    assert!(matches!(end, Error::Closed { .. }), "{end}");
}

#[tokio::test]
async fn hosts_on_their_way_through_a_jump_host_leave_it_its_handshake() {
    let (jump, target) = (Sshd::start_default().unwrap(), Sshd::start_default().unwrap());
    let config = jump.dir().join("through");
    let entries = [
        jump.host_entry("jump"),
        target.host_entry("target").with_line("ProxyJump jump"),
    ];
    write_ssh_config(&config, entries).unwrap();
    let settings = Settings {
        handshakes: 1,
        ..Settings::default()
    };
    let host = Site::open_with(engine_with(settings), &config, "target").await;
    let output = tokio::time::timeout(Duration::from_secs(60), host.run(&Command::exec("echo there"))).await;
    assert_eq!(
        output.expect("neither waits for the other").unwrap().stdout,
        b"there\n"
    );
}

#[tokio::test]
async fn a_host_behind_a_relay_next_door_is_as_far_as_it_is_once_it_is_connected() {
    let (relayed, engine) = (Relayed::start(), engine());
    let (relay, rtt) = (&relayed.relay, Duration::from_millis(100));
    relay.set_rtt(rtt);
    relay.set_handshake(false);
    let host = site::host_with(&engine, &relayed.config, "relayed", &[]).await;
    assert_eq!(host.round_trip(), None);
    host.connect().await.unwrap();
    // The kernel's own connection ends at the relay, and takes microseconds.
    assert!(host.round_trip() >= Some(rtt), "{:?}", host.round_trip());
    let facts = engine.memory().facts(&HostId::from_config(host.config()));
    let remembered = facts.and_then(|facts| facts.rtt);
    assert!(remembered >= Some(rtt), "{remembered:?}");
    // It was the log-in's: a way that is shorter than that is found to be, without anything that is asked of the host.
    relay.set_rtt(Duration::ZERO);
    let settled = async {
        while host.round_trip() >= Some(rtt) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let settled = tokio::time::timeout(Duration::from_secs(60), settled).await;
    assert!(settled.is_ok(), "{:?}", host.round_trip());
}
