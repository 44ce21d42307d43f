//! Tunnels, and what the server listens on.

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::oneshot;
use trunkline::config::{ForwardTarget, Listen};
use trunkline_embed::Cause;
use trunkline_testkit::{Sshd, free_port};

use crate::{each_way, rest};

/// Gives its one client back what it sends, to the end of it.
async fn echo_one(listener: TcpListener) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await.unwrap();
    stream.write_all(&all).await.unwrap();
}

#[tokio::test]
async fn a_tunnel_ends_each_direction_by_itself() {
    let sshd = Sshd::start_default().unwrap();
    each_way(&sshd, &[], async |way| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(echo_one(listener));
        let tunnel = way.tcp("127.0.0.1", port, ("127.0.0.1", 0)).await.unwrap();
        let (mut reader, mut writer) = (tunnel.reader, tunnel.writer);
        writer.send(Bytes::from_static(b"there and back")).await.unwrap();
        writer.finish().await;
        assert_eq!(rest(&mut reader).await, b"there and back");
        assert!(reader.is_complete().await);
        writer.wait_for_close().await;
    })
    .await;
}

#[tokio::test]
async fn a_tunnel_to_nobody_is_refused_with_the_servers_reason() {
    let sshd = Sshd::start_default().unwrap();
    each_way(&sshd, &[], async |way| {
        let failure = way.socket("/nowhere/at all").await.err().unwrap();
        // SSH_OPEN_CONNECT_FAILED
        assert!(
            matches!(&failure.cause, Cause::Refused { reason: 2, .. }),
            "{failure:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn what_the_server_listens_on_offers_clients_that_can_be_taken_or_refused() {
    let sshd = Sshd::start_default().unwrap();
    each_way(&sshd, &[], async |way| {
        let listen = Listen::Tcp {
            host: Some("127.0.0.1".into()),
            // Once it is closed nobody else is given it.
            port: free_port(),
        };
        let mut listener = way.listen(&listen).await.unwrap();
        let port = listener.port().unwrap();

        let mut refused = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        drop(listener.next().await.unwrap());
        let mut nothing = Vec::new();
        let _ = refused.read_to_end(&mut nothing).await;
        assert!(nothing.is_empty());

        let mut taken = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let incoming = listener.next().await.unwrap();
        let own = taken.local_addr().unwrap().to_string();
        assert_eq!(incoming.originator(), own);
        let tunnel = incoming.accept().await.unwrap();
        let (mut reader, mut writer) = (tunnel.reader, tunnel.writer);
        taken.write_all(b"in").await.unwrap();
        taken.shutdown().await.unwrap();
        assert_eq!(rest(&mut reader).await, b"in");
        writer.send(Bytes::from_static(b"out")).await.unwrap();
        writer.finish().await;
        let mut answer = Vec::new();
        taken.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"out");

        listener.close().await;
        assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());
    })
    .await;
}

#[tokio::test]
async fn a_socket_of_this_machine_leads_through_the_server() {
    let sshd = Sshd::start_default().unwrap();
    each_way(&sshd, &[], async |way| {
        let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = target.local_addr().unwrap().port();
        tokio::spawn(echo_one(target));
        let path = sshd.dir().join("forward");
        let _ = std::fs::remove_file(&path);
        let (listening, listens) = oneshot::channel();
        let (cancel, cancelled) = oneshot::channel::<()>();
        let target = ForwardTarget::Tcp {
            host: "127.0.0.1".into(),
            port,
        };
        let forward = way.forward_socket(path.clone(), target, || listening.send(()).unwrap(), async {
            drop(cancelled.await);
        });
        let client = async {
            listens.await.unwrap();
            let mut client = UnixStream::connect(&path).await.unwrap();
            client.write_all(b"through").await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            drop(cancel);
            answer
        };
        let (forwarded, answer) = tokio::join!(forward, client);
        assert_eq!((forwarded, answer), (Ok(()), b"through".to_vec()));
    })
    .await;
}
