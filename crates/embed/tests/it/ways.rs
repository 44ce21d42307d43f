//! The choice of a way, and the reports about its connections.

use trunkline::config::HostConfig;
use trunkline::{AuditMode, Engine, ExitStatus, Interaction, Login, MemoryPlace, Settings};
use trunkline_embed::{Change, ErrorKind, Preference, ProgramEngine, Starter, Way};
use trunkline_testkit::Sshd;

use crate::{destination, each_way, engine, exec};

#[tokio::test]
async fn where_no_daemon_runs_the_engine_connects() {
    let sshd = Sshd::start_default().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let destination = destination(&sshd, directory.path(), Preference::RunningDaemon, &[]);
    let way = Way::find(&destination, async || Ok(engine())).await.unwrap();
    assert!(way.host().is_some());
    let ran = way.run(&exec("true"), None, None).await;
    assert_eq!(ran.outcome, Ok(ExitStatus::Exited(0)));
}

#[tokio::test]
async fn an_engine_of_the_programs_own_connects_to_nothing_where_only_shared_connections_may_be_used() {
    let sshd = Sshd::start_default().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut destination = destination(&sshd, directory.path(), Preference::RunningDaemon, &[]);
    let mut world = (*destination.request.world).clone();
    world.env.insert("TRUNKLINE_STRICT".into(), "1".into());
    destination.request.world = world.into();
    let found = Way::find(&destination, async || Ok(engine())).await;
    let failure = found.err().unwrap();
    assert_eq!(failure.kind, ErrorKind::Configuration);
    assert!(failure.message.contains("only shared connections"), "{failure:?}");
    assert_eq!(sshd.authentications(), 0);
}

#[tokio::test]
async fn the_settings_keep_an_engine_of_the_programs_own_from_hosts() {
    let sshd = Sshd::start_default().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let destination = destination(&sshd, directory.path(), Preference::Engine, &[]);
    let shared = Settings {
        strict_hosts: vec![sshd.alias().to_owned()],
        ..Settings::default()
    };
    let recorded = Settings {
        audit: AuditMode::Strict,
        ..Settings::default()
    };
    for (settings, why) in [
        (shared, "only shared connections"),
        (recorded.clone(), "not recorded"),
    ] {
        let engine = Engine::new(settings, MemoryPlace::Process);
        let config = HostConfig::explicit(sshd.alias(), sshd.port(), "somebody").unwrap();
        let described = engine.private_host(config, Login::new(), &Interaction::none());
        let described = described.err().unwrap().to_string();
        assert!(described.contains(why), "{described}");
        for engine in [engine.isolate(None), engine] {
            let engine = ProgramEngine::without_record(engine);
            let found = Way::find(&destination, async || Ok(engine)).await;
            let failure = found.err().unwrap();
            assert_eq!(failure.kind, ErrorKind::Configuration);
            assert!(failure.message.contains(why), "{failure:?}");
        }
    }
    let elsewhere = Settings {
        strict_hosts: vec!["elsewhere".into()],
        ..recorded
    };
    let engine = Engine::new(elsewhere, MemoryPlace::Process);
    engine.mark_audited();
    let engine = ProgramEngine::without_record(engine);
    let way = Way::find(&destination, async || Ok(engine.isolate(None)))
        .await
        .unwrap();
    way.connect().await.unwrap();
    assert_eq!(sshd.authentications(), 1);
}

#[tokio::test]
async fn a_daemon_that_cannot_be_started_is_a_failure_of_this_machine() {
    let sshd = Sshd::start_default().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let starter = Starter::Command(vec!["/nowhere/trunklined".into()]);
    let destination = destination(&sshd, directory.path(), Preference::Daemon(starter), &[]);
    let found = Way::find(&destination, async || Ok(engine())).await;
    assert_eq!(found.err().unwrap().kind, ErrorKind::Local);
}

#[tokio::test]
async fn the_connections_are_told_with_what_was_agreed_on() {
    let sshd = Sshd::start_default().unwrap();
    let args = [
        "-o",
        "KexAlgorithms=curve25519-sha256",
        "-o",
        "Ciphers=aes256-ctr",
        "-o",
        "MACs=hmac-sha2-256",
        "-o",
        "HostKeyAlgorithms=ssh-ed25519",
    ];
    each_way(&sshd, &args, async |way| {
        assert!(way.connections().await.unwrap().is_empty());
        way.connect().await.unwrap();
        let connections = way.connections().await.unwrap();
        let [connection] = &connections[..] else {
            panic!("{connections:?}");
        };
        let handshake = connection.handshake.as_ref().unwrap();
        assert!(handshake.server.starts_with("SSH-2.0-OpenSSH"));
        assert_eq!(
            (&*handshake.kex, &*handshake.host_key, &*handshake.cipher),
            ("curve25519-sha256", "ssh-ed25519", "aes256-ctr")
        );
        assert_eq!(handshake.mac.as_deref(), Some("hmac-sha2-256"));
        assert!(!handshake.compressed);
        assert_eq!(way.disconnect().await, Ok(1));
    })
    .await;
}

#[tokio::test]
async fn a_connection_that_is_held_tells_of_its_end() {
    let sshd = Sshd::start_default().unwrap();
    each_way(&sshd, &[], async |way| {
        let mut held = way.hold().await.unwrap();
        assert!(held.handshake().await.is_some());
        held.rekey();
        sshd.kill_connections();
        let Change::Ended(failure) = held.next().await else {
            panic!("it has ended");
        };
        assert_eq!(failure.kind, ErrorKind::Network);
    })
    .await;
}
