//! deploy/nats-fleet.conf lets each machine do its part, and nothing else.

use std::sync::Arc;

use futures_util::StreamExt as _;
use nkeys::KeyPair;
use trunkline_fleet::bucket::{Access, Bucket, BucketError};
use trunkline_fleet::input::upload;
use trunkline_fleet::order::job::JobTerms;
use trunkline_fleet::state::{Exit, Fate, Restart, Resuming, StreamEnd};
use trunkline_fleet::streaming::What;
use trunkline_fleet::streaming::following::{self, Follower, Position, Read};
use trunkline_fleet::submitting::{cancel, submit};

use crate::fleet::{Ledger, TestNode, everything, follow_to_end, numbered_hosts};
use crate::nats::{Nats, charter, create};

/// The configuration as it is installed, for these machines, without its certificate and on loopback.
fn installed_configuration(admin: &KeyPair, submitter: &KeyPair, node: &KeyPair) -> String {
    let text = include_str!("../../../../deploy/nats-fleet.conf");
    let accounts = &text[text.find("accounts {").unwrap()..];
    [
        ("UADMIN_PUBLIC_KEY", admin),
        ("USUBMITTER_PUBLIC_KEY", submitter),
        ("UNODE1_PUBLIC_KEY", node),
    ]
    .into_iter()
    .fold(accounts.to_owned(), |text, (name, key)| {
        assert!(text.contains(name));
        text.replace(name, &key.public_key())
    })
}

/// As whom this key is known.
fn access(nats: &Nats, key: &KeyPair) -> Access {
    Access {
        nkey: Some(key.seed().unwrap()),
        prefix: "trunkline".into(),
        ..nats.access()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_machine_can_do_its_part_and_no_other() {
    let (admin, submitter, node) = (KeyPair::new_user(), KeyPair::new_user(), KeyPair::new_user());
    let nats = Nats::start(&installed_configuration(&admin, &submitter, &node));
    let access = |key: &KeyPair| access(&nats, key);
    create(&access(&admin), charter(4), 1).await;
    assert!(
        Bucket::create(&access(&submitter), charter(4), 1).await.is_err(),
        "a submitter makes a fleet"
    );

    let (ledger, directory) = (Ledger::default(), tempfile::tempdir().unwrap());
    let of_node = Bucket::open(&access(&node)).await.unwrap();
    let allow = Arc::new(everything(&submitter));
    let _node = TestNode::start("node1", of_node.clone(), &directory, allow, &ledger);
    let of_submitter = Bucket::open(&access(&submitter)).await.unwrap();
    let terms = JobTerms {
        input: Some(upload(&of_submitter, &[7; 300_000]).await.unwrap()),
        ..JobTerms::default()
    };
    let job = submit(&of_submitter, &submitter, &numbered_hosts("web", 6), terms)
        .await
        .unwrap();
    let (fates, output) = follow_to_end(&of_submitter, &job).await;
    assert_eq!((fates.len(), output.len()), (6, 6));
    for fate in fates.values() {
        assert!(
            matches!(fate, Fate::Ended { returned, .. } if returned.exit == Exit::Status(0)),
            "{fate:?}"
        );
    }

    streams(&of_submitter, &submitter, &admin).await;

    // A node submits nothing, sends no input and cancels nothing, whatever it is called.
    assert!(
        submit(&of_node, &node, &numbered_hosts("db", 1), JobTerms::default())
            .await
            .is_err()
    );
    assert!(upload(&of_node, b"x").await.is_err());
    assert!(cancel(&of_node, &node, &job).await.is_err());
    assert!(cancel(&of_submitter, &submitter, &job).await.is_ok());
    // Nor does anybody cancel in another one's name.
    assert!(cancel(&of_submitter, &admin, &job).await.is_err());
    // A submitter is not a node, and a node is not another node.
    for (key, place) in [
        (&submitter, "member.node1"),
        (&submitter, "lease._.1"),
        (&submitter, "job.x.fate.0"),
        (&node, "member.node2"),
    ] {
        let state = async_nats::jetstream::new(connect(&nats, key).await)
            .get_key_value("trunkline-state")
            .await
            .unwrap();
        assert!(state.put(place, "x".into()).await.is_err(), "{place}");
    }
    inboxes(&nats, &submitter, &node).await;
    for key in [&submitter, &node] {
        consumers(&nats, key).await;
    }
    // Tombstones of streams are a node's to remove.
    for (key, may) in [(&submitter, false), (&node, true)] {
        let mut jetstream = async_nats::jetstream::new(connect(&nats, key).await);
        jetstream.set_timeout(std::time::Duration::from_secs(3));
        let streams = jetstream.get_stream("KV_trunkline-streams").await.unwrap();
        let removing = streams.purge().filter("$KV.trunkline-streams.nothing.order");
        assert_eq!(removing.await.is_ok(), may);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_configuration_of_before_inboxes_is_named() {
    let (admin, submitter, node) = (KeyPair::new_user(), KeyPair::new_user(), KeyPair::new_user());
    let own = format!("_INBOX_{}.>", submitter.public_key());
    let nats = Nats::start(&installed_configuration(&admin, &submitter, &node).replace(&own, "_INBOX.>"));
    let access = access(&nats, &submitter);
    let why = loop {
        match Bucket::open(&access).await.unwrap_err() {
            BucketError::Connect { .. } => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
            error => break error.to_string(),
        }
    };
    assert!(why.contains(&format!("let it subscribe to \"{own}\"")), "{why}");
}

/// Connects with this key, past the fleet's own code.
async fn connect(nats: &Nats, key: &KeyPair) -> async_nats::Client {
    let options = async_nats::ConnectOptions::new()
        .custom_inbox_prefix(format!("_INBOX_{}", key.public_key()))
        .nkey(key.seed().unwrap());
    options.connect(nats.access().servers).await.unwrap()
}

/// Returns the requests that this key may make of JetStream.
async fn jetstream_of(nats: &Nats, key: &KeyPair) -> (async_nats::Client, async_nats::jetstream::Context) {
    let client = connect(nats, key).await;
    let mut jetstream = async_nats::jetstream::new(client.clone());
    // What is not allowed has no answer.
    jetstream.set_timeout(std::time::Duration::from_secs(1));
    (client, jetstream)
}

/// Nobody finds or ends what others watch by.
async fn consumers(nats: &Nats, key: &KeyPair) {
    let (_client, state) = jetstream_of(nats, key).await;
    let state = state.get_stream("KV_trunkline-state").await.unwrap();
    let mut names = state.consumer_names();
    assert!(!matches!(names.next().await, Some(Ok(_))));
    let watching = async_nats::jetstream::consumer::pull::Config {
        inactive_threshold: std::time::Duration::from_secs(60),
        ..Default::default()
    };
    let mut watching = state.create_consumer(watching).await.unwrap();
    let name = watching.cached_info().name.clone();
    assert!(state.delete_consumer(&name).await.is_err());
    assert!(watching.info().await.is_err());
}

/// The charter stays as it is, whatever a submitter sends to its place, and so do others' results.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_writes_another_charter() {
    let (admin, submitter, node) = (KeyPair::new_user(), KeyPair::new_user(), KeyPair::new_user());
    let nats = Nats::start(&installed_configuration(&admin, &submitter, &node));
    let access = |key: &KeyPair| access(&nats, key);
    let bucket = create(&access(&admin), charter(4), 1).await;
    let (client, jetstream) = jetstream_of(&nats, &submitter).await;
    for subject in [
        "$KV.trunkline-charter.fleet",
        "$KV.trunkline-state.job.x.fate.0",
        "$KV.trunkline-state.member.node1",
        "$JS.API.STREAM.PURGE.KV_trunkline-state",
    ] {
        client.publish(subject, "".into()).await.unwrap();
    }
    // Answered after those.
    let info = jetstream.get_stream("KV_trunkline-state").await.unwrap();
    assert_eq!(info.cached_info().state.messages, 0);
    let of_admin = jetstream_of(&nats, &admin).await.1;
    let charter = of_admin.get_stream("KV_trunkline-charter").await.unwrap();
    assert_eq!(charter.cached_info().state.last_sequence, 1);
    // Nor does its maker: a consumer could be told to deliver there, by the fleet's own account.
    let another = of_admin.publish("$KV.trunkline-charter.fleet", "".into()).await;
    let refused = another.unwrap().await.unwrap_err();
    assert!(refused.to_string().contains("sealed"), "{refused}");
    assert_eq!(
        Bucket::open(&access(&submitter)).await.unwrap().charter,
        bucket.charter
    );
}

/// Nobody reads what NATS answers to others.
async fn inboxes(nats: &Nats, submitter: &KeyPair, node: &KeyPair) {
    for inbox in [
        format!("_INBOX_{}.>", submitter.public_key()),
        "_INBOX.>".into(),
        ">".into(),
    ] {
        let (refused, mut refusals) = tokio::sync::mpsc::unbounded_channel();
        let options = async_nats::ConnectOptions::new()
            .event_callback(move |event| {
                let _ = refused.send(event.to_string());
                async {}
            })
            .nkey(node.seed().unwrap());
        let client = options.connect(nats.access().servers).await.unwrap();
        let _subscription = client.subscribe(inbox.clone()).await.unwrap();
        while let Some(event) = refusals.recv().await {
            if event
                .to_lowercase()
                .contains("permissions violation for subscription")
            {
                break;
            }
        }
    }
}

/// A stream, which the node runs, and which ends when its submitter says so and nobody else.
async fn streams(of_submitter: &Bucket, submitter: &KeyPair, admin: &KeyPair) {
    let resuming = Resuming {
        restart: Restart::Lost,
        first: std::time::Duration::from_secs(1),
        longest: std::time::Duration::from_secs(60),
    };
    let slow = numbered_hosts("slow", 1);
    let stream = following::submit(of_submitter, submitter, &slow, resuming, None)
        .await
        .unwrap();
    let follower = Follower::new(of_submitter, &stream, 1).await.unwrap();
    let mut reader = follower.host(0, Position::default());
    let reading = async {
        loop {
            match reader.next().await {
                Read::Piece { piece, .. } if matches!(piece.what, What::Output(_)) => {
                    let cancelled = following::cancel(of_submitter, submitter, &stream).await;
                    cancelled.unwrap();
                }
                Read::Piece { .. } => {}
                Read::End(end) => return end,
            }
        }
    };
    let end = tokio::select! {
        end = reading => end,
        () = follower.watch() => unreachable!(),
    };
    assert_eq!(end, StreamEnd::Cancelled);
    assert!(following::cancel(of_submitter, admin, &stream).await.is_err());
}
