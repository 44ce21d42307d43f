//! Streams: who runs them, what those who follow read, and where it goes on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::stream::Config;
use futures_util::StreamExt as _;
use nkeys::KeyPair;
use trunkline_fleet::bucket::{Bucket, Charter};
use trunkline_fleet::running::Instruction;
use trunkline_fleet::state::{Exit, Restart, Resuming, StreamEnd, StreamId, StreamShare};
use trunkline_fleet::streaming::What;
use trunkline_fleet::streaming::following::{
    Follower, Position, Read, StreamError, cancel, stream_of, streams, submit,
};

use crate::fleet::{Changing, TestFleet, everything, numbered_hosts};
use crate::nats::{charter, terms};

fn resuming(restart: Restart) -> Resuming {
    Resuming {
        restart,
        first: Duration::from_millis(50),
        longest: Duration::from_millis(200),
    }
}

/// Returns the messages of the first host until `enough`, and the position after them. Messages that are lost fail.
async fn read(
    bucket: &Bucket,
    stream: &StreamId,
    position: Position,
    mut enough: impl FnMut(&[What]) -> bool,
) -> (Vec<What>, Position, Option<StreamEnd>) {
    let follower = Follower::new(bucket, stream, 1).await.unwrap();
    let mut reader = follower.host(0, position);
    let reading = async {
        let mut all = Vec::new();
        while !enough(&all) {
            match reader.next().await {
                Read::Piece { lost, piece } => {
                    assert_eq!(lost, 0, "{all:?}");
                    all.push(piece.what);
                }
                Read::End(end) => return (all, Some(end)),
            }
        }
        (all, None)
    };
    let (all, end) = tokio::select! {
        read = reading => read,
        () = follower.watch() => unreachable!(),
    };
    (all, reader.position(), end)
}

/// Waits until the nodes have told this of the only stream.
async fn wait_until_shared(bucket: &Bucket, is_so: impl Fn(&BTreeMap<String, StreamShare>) -> bool) {
    loop {
        let seen = streams(bucket).await.unwrap();
        if is_so(&seen[0].shares) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn begun_hosts(all: &[What]) -> Vec<&str> {
    let begun = all.iter().filter_map(|what| match what {
        What::Begun(node) => Some(node.as_str()),
        _ => None,
    });
    begun.collect()
}

fn has_output(all: &[What]) -> bool {
    all.iter().any(|what| matches!(what, What::Output(_)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_moves_with_its_owner_and_is_read_on_from_where_it_was() {
    let fleet = TestFleet::start(4).await;
    let (bucket, key) = (&fleet.bucket, &fleet.key);
    let a = fleet.start_node("a").await;
    let one = numbered_hosts("slow", 1);
    let stream = fleet.submit_stream(&one, resuming(Restart::Lost)).await;
    assert_eq!(stream_of(bucket, &stream).await.unwrap().1, one);
    let (all, position, _) = read(bucket, &stream, Position::default(), has_output).await;
    assert_eq!(begun_hosts(&all), ["a"]);

    wait_until_shared(bucket, |shares| {
        shares.get("a").is_some_and(|share| share.running == 1)
    })
    .await;

    // Another one takes over at once, and who has read before reads on.
    let _b = fleet.start_node("b").await;
    a.tell.send(Instruction::Leave).await.unwrap();
    let (all, _, _) = read(bucket, &stream, position, has_output).await;
    assert_eq!(begun_hosts(&all), ["b"]);
    // Who has not reads all of it.
    let two = |all: &[What]| all.iter().filter(|what| matches!(what, What::Output(_))).count() == 2;
    let (all, _, _) = read(bucket, &stream, Position::default(), two).await;
    assert_eq!(begun_hosts(&all), ["a", "b"]);

    let b_runs = |count| {
        move |shares: &BTreeMap<String, StreamShare>| {
            shares.get("b").is_some_and(|share| share.running == count)
        }
    };
    wait_until_shared(bucket, b_runs(1)).await;

    // Somebody else may write to the bucket, and ends nothing by that.
    cancel(bucket, &KeyPair::new_user(), &stream).await.unwrap();
    cancel(bucket, key, &stream).await.unwrap();
    let (_, _, end) = read(bucket, &stream, position, |_| false).await;
    assert_eq!(end, Some(StreamEnd::Cancelled));
    let seen = streams(bucket).await.unwrap();
    assert_eq!((seen.len(), seen[0].hosts, seen[0].ended), (1, 1, 1), "{seen:?}");
    // Who looks is told that nobody runs it any more.
    wait_until_shared(bucket, b_runs(0)).await;
    let missing = stream_of(bucket, &StreamId("other".into())).await;
    assert!(matches!(missing, Err(StreamError::NoStream(_))), "{missing:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_node_ran_is_begun_again_by_another_one() {
    let fleet = TestFleet::start(4).await;
    let a = fleet.start_node("a").await;
    let one = numbered_hosts("slow", 1);
    let stream = fleet.submit_stream(&one, resuming(Restart::Lost)).await;
    let (_, position, _) = read(&fleet.bucket, &stream, Position::default(), has_output).await;
    a.kill();
    let _b = fleet.start_node("b").await;
    let (all, _, _) = read(&fleet.bucket, &stream, position, has_output).await;
    assert_eq!(begun_hosts(&all), ["b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_goes_on_where_nats_was_away() {
    let mut fleet = TestFleet::start(4).await;
    let _a = fleet.start_node("a").await;
    let one = numbered_hosts("web", 1);
    // Its command ends again and again.
    let stream = fleet.submit_stream(&one, resuming(Restart::Always)).await;
    let runs = |wanted: usize| move |all: &[What]| begun_hosts(all).len() >= wanted;
    let (_, position, _) = read(&fleet.bucket, &stream, Position::default(), runs(3)).await;
    fleet.nats.kill();
    fleet.nats.up();
    // A request that is on its way while the client connects again is lost.
    while streams(&fleet.bucket).await.is_err() {}
    let (all, _, end) = read(&fleet.bucket, &stream, position, runs(3)).await;
    assert_eq!(end, None);
    assert!(all.contains(&What::Ended(Exit::Status(0))), "{all:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_has_ended_is_not_begun_again_by_anybody() {
    let fleet = TestFleet::start(4).await;
    let bucket = &fleet.bucket;
    let a = fleet.start_node("a").await;
    let one = numbered_hosts("bad", 1);
    let stream = fleet.submit_stream(&one, resuming(Restart::Lost)).await;
    let (all, _, end) = read(bucket, &stream, Position::default(), |_| false).await;
    assert_eq!(end, Some(StreamEnd::Ended(Exit::Status(1))));
    assert_eq!(all.last(), Some(&What::Ended(Exit::Status(1))));
    a.tell.send(Instruction::Leave).await.unwrap();
    let _b = fleet.start_node("b").await;
    // Whoever has run this knows of the other one as well.
    let later = fleet.submit_stream(&one, resuming(Restart::Never)).await;
    read(bucket, &later, Position::default(), |_| false).await;
    let ran = fleet.ledger.lock().unwrap()[&format!("{stream} bad0.test")].clone();
    assert_eq!(ran, ["a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_was_removed_leaves_nothing_in_the_bucket() {
    // Longer than leases last, and than it takes until the node looks what it may remove.
    let charter = Charter {
        keep: Duration::from_secs(5),
        terms: terms(Duration::from_secs(3)),
        ..charter(4)
    };
    let fleet = TestFleet::with_charter(charter).await;
    let bucket = &fleet.bucket;
    let _a = fleet.start_node("a").await;
    let _b = fleet.start_node("b").await;
    let two = numbered_hosts("bad", 2);
    let stream = fleet.submit_stream(&two, resuming(Restart::Never)).await;
    let (.., end) = read(bucket, &stream, Position::default(), |_| false).await;
    assert!(end.is_some());
    cancel(bucket, &fleet.key, &stream).await.unwrap();
    let jetstream = fleet.nats.jetstream().await;
    let left = async || {
        let stream = jetstream.get_stream("KV_test-streams").await.unwrap();
        let state = &stream.cached_info().state;
        (state.messages, state.last_sequence)
    };
    assert!(left().await.0 > 0);
    // What somebody began to submit is never a stream, and goes as well.
    let begun = jetstream.get_key_value("test-streams").await.unwrap();
    begun.update("begun.hosts.0", "cut off".into(), 0).await.unwrap();
    // What a later version has ordered is not ours to judge.
    begun.update("later.order", "unknown".into(), 0).await.unwrap();
    let started = std::time::Instant::now();
    while left().await.0 > 1 {
        assert!(started.elapsed() < Duration::from_secs(120), "{:?}", left().await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(stream_of(bucket, &stream).await.is_err());
    assert!(begun.get("later.order").await.unwrap().is_some());
    // Another one has its place.
    let later = fleet.submit_stream(&two, resuming(Restart::Never)).await;
    let (.., end) = read(bucket, &later, Position::default(), |_| false).await;
    assert!(end.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_not_allowed_waits_and_says_why() {
    let fleet = TestFleet::start(4).await;
    let (bucket, stranger) = (&fleet.bucket, KeyPair::new_user());
    let list = Arc::new(Changing::new(everything(&fleet.key)));
    let _a = fleet.start_node_allowing("a", list.clone()).await;
    let one = numbered_hosts("slow", 1);
    let stream = submit(bucket, &stranger, &one, resuming(Restart::Lost), None)
        .await
        .unwrap();
    let (all, position, _) = read(bucket, &stream, Position::default(), |all| !all.is_empty()).await;
    assert!(
        matches!(&all[0], What::Refused(why) if why.contains("takes nothing from")),
        "{all:?}"
    );

    // Allowed from now on, and then no more: what runs is stopped.
    list.set(everything(&stranger));
    let (all, position, _) = read(bucket, &stream, position, has_output).await;
    assert_eq!(begun_hosts(&all), ["a"]);
    list.set(everything(&fleet.key));
    let (all, _, _) = read(bucket, &stream, position, |all| !all.is_empty()).await;
    assert!(matches!(&all[0], What::Refused(_)), "{all:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_goes_to_a_subject_that_the_allow_list_names() {
    let fleet = TestFleet::start(4).await;
    let bucket = &fleet.bucket;
    let mut allow = everything(&fleet.key);
    allow.allow[0].subjects = vec!["logs.*".into()];
    let _a = fleet.start_node_allowing("a", Arc::new(allow)).await;
    let one = numbered_hosts("slow", 1);
    let submitted = async |subject| {
        let stream = submit(bucket, &fleet.key, &one, resuming(Restart::Lost), Some(subject)).await;
        stream.unwrap()
    };
    let stream = submitted("metrics.{host}").await;
    let (all, _, _) = read(bucket, &stream, Position::default(), |all| !all.is_empty()).await;
    assert!(
        matches!(&all[0], What::Refused(why) if why.contains("metrics.slow0_test")),
        "{all:?}"
    );

    // Nobody keeps the subject yet: the command waits, and who follows is told.
    let stream = submitted("logs.{host}").await;
    let told = |all: &[What]| all.iter().any(|what| matches!(what, What::Notice(_)));
    let (all, _, _) = read(bucket, &stream, Position::default(), told).await;
    assert!(
        matches!(all.last(), Some(What::Notice(why)) if why.contains("takes nothing")),
        "{all:?}"
    );
    let jetstream = fleet.nats.jetstream().await;
    let kept = jetstream.create_stream(Config {
        name: "logs".into(),
        subjects: vec!["logs.*".into()],
        ..Config::default()
    });
    let consumer = kept
        .await
        .unwrap()
        .create_consumer(async_nats::jetstream::consumer::pull::Config::default())
        .await
        .unwrap();
    let mut messages = consumer.messages().await.unwrap();
    let mut next = async || {
        let message = messages.next().await.unwrap().unwrap();
        let kind = message
            .headers
            .as_ref()
            .unwrap()
            .get("Trunkline-Kind")
            .unwrap()
            .to_string();
        (kind, message.payload.to_vec())
    };
    assert_eq!(next().await, ("Begun".to_owned(), Vec::new()));
    assert_eq!(
        next().await,
        ("Output".to_owned(), b"this is slow0.test\n".to_vec())
    );
}
