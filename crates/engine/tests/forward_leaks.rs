//! Forwardings leave nothing behind. Alone in its program, because descriptors are counted for the whole process.

#![expect(
    clippy::unwrap_used,
    reason = "a test may panic, and clippy knows of its functions alone, not of what they share"
)]

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use trunkline::config::{Forward, ForwardTarget, Listen, Request, World};
use trunkline::{Command, Engine, Host, Interaction, Settings};
use trunkline_testkit::Sshd;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd")
        .expect("this test needs /proc")
        .count()
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

async fn talk(port: u16) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).await.unwrap();
    assert_eq!(back, b"hello");
}

async fn forward_and_talk(host: &Host, target: u16) {
    let listen = Listen::Tcp { host: None, port: 0 };
    let target = ForwardTarget::Tcp {
        host: "127.0.0.1".into(),
        port: target,
    };
    let forward = Forward {
        listen: listen.clone(),
        target,
    };
    let local = host.forward_local(&forward).await.unwrap();
    let remote = host.forward_remote(&forward).await.unwrap();
    let dynamic = host.forward_dynamic(&listen).await.unwrap();
    for _ in 0..20 {
        talk(local.port().unwrap()).await;
        talk(remote.port().unwrap()).await;
        // A client that goes away in the middle of its greeting.
        let mut hasty = TcpStream::connect(("127.0.0.1", dynamic.port().unwrap()))
            .await
            .unwrap();
        hasty.write_all(&[5]).await.unwrap();
    }
    // One is closed in good order, the others are merely dropped.
    remote.close().await;
}

#[tokio::test]
async fn forwardings_leave_no_descriptor_and_no_task() {
    let sshd = Sshd::start_default().unwrap();
    // One lane: a second one, for busy times, would be counted.
    let engine = Engine::new(
        Settings {
            spare_sessions: 0,
            max_lanes: 1,
            ..Settings::default()
        },
        Default::default(),
    );
    let mut request = Request::new(sshd.alias().parse().unwrap(), Arc::new(World::current().unwrap()));
    request.ssh_args = vec!["-F".into(), sshd.ssh_config().into()];
    let host = engine.host_for(&request, &Interaction::none()).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (mut reader, mut writer) = stream.split();
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
        }
    });
    // The first round makes the connection, and whatever is made only once.
    forward_and_talk(&host, target).await;
    host.run(&Command::exec("true")).await.unwrap();

    let settle = async |wanted: Option<(usize, usize)>| {
        let (mut seen, mut same) = ((usize::MAX, usize::MAX), 0);
        // Settled: as wanted, or unchanged over many turns of every task.
        while wanted.map_or(same < 2000, |wanted| seen != wanted) {
            tokio::task::yield_now().await;
            let now = (descriptors(), tasks());
            same = if now == seen { same + 1 } else { 0 };
            seen = now;
        }
        seen
    };
    let before = settle(None).await;
    forward_and_talk(&host, target).await;
    let after = tokio::time::timeout(Duration::from_secs(60), settle(Some(before))).await;
    assert!(
        after.is_ok(),
        "before {before:?}, after {:?} descriptors and tasks",
        (descriptors(), tasks())
    );
}
