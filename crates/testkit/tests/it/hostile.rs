//! The hostile servers against the stock client, which holds out against all of them.

use std::process::{Output, Stdio};
use std::sync::Arc;

use tokio::process::Command;
use tokio::task::JoinSet;
use trunkline_testkit::hostile::{
    KexInit, KeyExchange, Misbehaviour, Payload, RawServer, SessionMisbehaviour, number,
};
use trunkline_testkit::{Error, Relay};

/// `ssh` under a time limit of its own: status 124 when it had to be ended.
async fn ssh(server: &RawServer, options: &[&str], command: &str) -> Output {
    Command::new("timeout")
        .args(["5", "ssh", "-F"])
        .arg(server.ssh_config())
        .args(options)
        .args(["raw", command])
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn no_misbehaviour_passes_for_a_login() {
    let mut clients = JoinSet::new();
    let mut ended = Vec::new();
    for &misbehaviour in Misbehaviour::ALL {
        clients.spawn(async move {
            let server = RawServer::misbehaving(misbehaviour).unwrap();
            (misbehaviour, ssh(&server, &[], "true").await)
        });
        // A few at a time: each is an ssh process.
        if clients.len() == 8 {
            ended.extend(clients.join_next().await);
        }
    }
    while let Some(client) = clients.join_next().await {
        ended.push(client);
    }
    let mut wrong = String::new();
    for client in ended {
        let (misbehaviour, output) = client.unwrap();
        let expected = if misbehaviour.holds_on() {
            [124, 255]
        } else {
            [255, 255]
        };
        let code = output.status.code().unwrap();
        if !expected.contains(&code) {
            wrong += &format!("{misbehaviour:?}: {code}\n{}", stderr(&output));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_misbehaviour_is_in_the_list_once() {
    let unique: std::collections::HashSet<_> = Misbehaviour::ALL.iter().collect();
    assert_eq!(unique.len(), Misbehaviour::ALL.len());
    let last = Misbehaviour::CloseInAuthentication as usize;
    assert_eq!(unique.len(), last + 1);
}

#[tokio::test]
async fn the_raw_server_serves_a_command() {
    let server = RawServer::script(|mut wire| async move {
        let user = wire.authenticate().await?;
        let session = wire.open_session().await?;
        assert_eq!(
            (session.request.as_str(), session.command.as_slice()),
            ("exec", &b"say it"[..])
        );
        let channel = session.client_channel;
        wire.send_together(&[
            Payload::message(number::CHANNEL_DATA)
                .uint32(channel)
                .string(format!("hello {user}\n")),
            Payload::message(number::CHANNEL_REQUEST)
                .uint32(channel)
                .string("exit-status")
                .boolean(false)
                .uint32(7),
            Payload::message(number::CHANNEL_EOF).uint32(channel),
            Payload::message(number::CHANNEL_CLOSE).uint32(channel),
        ])
        .await?;
        wire.until_closed().await;
        Ok(())
    })
    .unwrap();
    let output = ssh(&server, &[], "say it").await;
    assert_eq!(output.stdout, b"hello tester\n", "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(7));
    server.outcome().await.unwrap();
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn keys_are_exchanged_again_in_the_middle_of_a_session() {
    let server = RawServer::script_after(
        KeyExchange {
            init: KexInit::without_strict(),
            ..KeyExchange::default()
        },
        |mut wire| async move {
            wire.authenticate().await?;
            let channel = wire.open_session().await?.client_channel;
            for round in 0..3 {
                wire.exchange_keys(&KeyExchange::default()).await?;
                wire.send(
                    Payload::message(number::CHANNEL_DATA)
                        .uint32(channel)
                        .string(format!("{round}")),
                )
                .await?;
            }
            wire.send(Payload::message(number::CHANNEL_CLOSE).uint32(channel))
                .await?;
            wire.until_closed().await;
            Ok(())
        },
    )
    .unwrap();
    let output = ssh(&server, &[], "count").await;
    assert_eq!(output.stdout, b"012", "{}", stderr(&output));
    server.outcome().await.unwrap();
}

#[tokio::test]
async fn misbehaviour_in_a_session_is_fatal_where_it_should_be_and_never_hangs() {
    let mut wrong = String::new();
    for &misbehaviour in SessionMisbehaviour::ALL {
        let server = RawServer::misbehaving_in_session(misbehaviour).unwrap();
        let output = ssh(&server, &[], "true").await;
        let code = output.status.code().unwrap();
        if code == 124 || (misbehaviour.is_fatal() && code != 255) {
            wrong += &format!("{misbehaviour:?}: {code}\n{}", stderr(&output));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[tokio::test]
async fn sequence_numbers_begin_again_with_strict_key_exchange() {
    let sequence_of_the_first_message = |init: KexInit| async move {
        let server = RawServer::script_after(
            KeyExchange {
                init,
                ..KeyExchange::default()
            },
            |mut wire| async move {
                wire.expect(number::SERVICE_REQUEST).await?;
                Err(std::io::Error::other(format!(
                    "sequence {}",
                    wire.last_sequence()
                )))
            },
        )
        .unwrap();
        ssh(&server, &[], "true").await;
        let Err(Error::Script(told)) = server.outcome().await else {
            panic!("the script always fails")
        };
        told
    };
    assert_eq!(
        sequence_of_the_first_message(KexInit::default()).await,
        "sequence 0"
    );
    // KEXINIT, KEX_ECDH_INIT and NEWKEYS came before it.
    assert_eq!(
        sequence_of_the_first_message(KexInit::without_strict()).await,
        "sequence 3"
    );
}

#[tokio::test]
async fn a_failed_assertion_in_a_script_is_its_outcome() {
    let server = RawServer::from_connect(|_wire| async { panic!("as a test would") }).unwrap();
    drop(tokio::net::TcpStream::connect(server.addr()).await.unwrap());
    assert!(matches!(server.outcome().await, Err(Error::Script(_))));
}

#[tokio::test]
async fn a_raw_server_works_behind_a_relay() {
    let server = Arc::new(
        RawServer::script(|mut wire| async move {
            wire.authenticate().await?;
            let channel = wire.open_session().await?.client_channel;
            wire.send(Payload::message(number::CHANNEL_CLOSE).uint32(channel))
                .await
        })
        .unwrap(),
    );
    let relay = Relay::start(server.addr()).unwrap();
    relay.set_rtt(std::time::Duration::from_millis(2));
    let options = [
        format!("Port={}", relay.port()),
        format!("HostKeyAlias=[127.0.0.1]:{}", server.addr().port()),
    ];
    ssh(&server, &["-o", &options[0], "-o", &options[1]], "true").await;
    server.outcome().await.unwrap();
}
