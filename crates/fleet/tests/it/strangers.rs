//! Values written by somebody who may write, and whom no node lets do anything.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::kv::Store;
use nkeys::KeyPair;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use trunkline_fleet::bucket::{Access, Bucket};
use trunkline_fleet::order::job::JobTerms;
use trunkline_fleet::order::{self, OrderError, OrderedHost, Written};
use trunkline_fleet::running::Instruction;
use trunkline_fleet::state::{Exit, Fate, JobId, Restart, Resuming};
use trunkline_fleet::streaming::following;
use trunkline_fleet::submitting::{SubmitError, Wait, cancel, jobs, order_of, own_order, waits};

use crate::bad_input::wait_for_shards;
use crate::fleet::{Changing, TestFleet, assert_all_ended, everything, follow_to_end, numbered_hosts};
use crate::nats::Nats;

/// An order for some hosts, which nobody has handed over.
fn sign(bucket: &Bucket, key: &KeyPair, hosts: &[OrderedHost]) -> Written<JobId> {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    order::sign(key, &bucket.charter, now, hosts, JobTerms::default()).unwrap()
}

async fn put(state: &Store, job: &JobId, written: &Written<JobId>) {
    let (parts, order) = (&written.parts, &written.order);
    let part = state.put(format!("job.{job}.hosts.0"), parts[0].clone().into());
    part.await.unwrap();
    let order = state.put(format!("job.{job}.order"), order.clone().into());
    order.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_in_the_place_of_another_is_nobody_s() {
    let fleet = TestFleet::start(4).await;
    let (bucket, stranger) = (&fleet.bucket, KeyPair::new_user());
    // Both may submit: nothing of the other's is taken for the first one's.
    let mut list = everything(&fleet.key);
    list.allow.extend(everything(&stranger).allow);
    let job = fleet.submit(&numbered_hosts("web", 2)).await;
    let other = fleet.submit(&numbered_hosts("db", 2)).await;
    let state = fleet.nats.store("state").await;
    put(&state, &job, &sign(bucket, &stranger, &numbered_hosts("evil", 2))).await;
    let replaced = order_of(bucket, &job).await.unwrap_err();
    assert!(
        matches!(replaced, SubmitError::Order(OrderError::Replaced(_))),
        "{replaced}"
    );
    cancel(bucket, &stranger, &other).await.unwrap();
    // A node that comes now runs what its submitter signed, and nothing of the other.
    let _node = fleet.start_node_allowing("a", Arc::new(list)).await;
    let (fates, _) = follow_to_end(bucket, &other).await;
    assert_all_ended(&fates);
    assert_eq!(
        fleet.executed_hosts(),
        ["db0.test", "db1.test"].map(|name| format!("{other} {name}"))
    );

    let own = own_order(bucket, &stranger.public_key(), &other)
        .await
        .unwrap_err();
    assert!(matches!(own, SubmitError::NotOwn { .. }), "{own}");
    assert!(own_order(bucket, &fleet.key.public_key(), &other).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_was_cancelled_before_its_order_came_does_not_run() {
    let fleet = TestFleet::start(4).await;
    let (bucket, key) = (&fleet.bucket, &fleet.key);
    let _node = fleet.start_node("a").await;
    wait_for_shards(bucket, "a", |own| own == 4).await;
    let written = sign(bucket, key, &numbered_hosts("web", 2));
    cancel(bucket, key, &written.id).await.unwrap();
    let state = fleet.nats.store("state").await;
    put(&state, &written.id, &written).await;
    let (fates, _) = follow_to_end(bucket, &written.id).await;
    assert!(
        fates.values().all(|fate| matches!(fate, Fate::NotStarted { .. })),
        "{fates:?}"
    );
    assert!(fleet.executed_hosts().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_let_cancel_later_need_not_say_so_again() {
    let fleet = TestFleet::start(4).await;
    let other = KeyPair::new_user();
    let mut allow = everything(&fleet.key);
    let list = Arc::new(Changing::new(allow.clone()));
    let _node = fleet.start_node_allowing("a", list.clone()).await;
    let job = fleet.submit(&numbered_hosts("slow", 1)).await;
    fleet.wait_for_executions(1).await;
    cancel(&fleet.bucket, &other, &job).await.unwrap();
    // What is executed after that comes when the node has seen it.
    fleet.run(&numbered_hosts("web", 1)).await;
    allow.cancel.push(other.public_key());
    list.set(allow);
    let (fates, _) = follow_to_end(&fleet.bucket, &job).await;
    assert!(
        matches!(&fates[&0], Fate::Ended { returned, .. } if returned.exit == Exit::Signal("TERM".into())),
        "{fates:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_order_somebody_removes_goes_on_until_it_is_cancelled() {
    let fleet = TestFleet::start(4).await;
    let (bucket, key) = (&fleet.bucket, &fleet.key);
    let _node = fleet.start_node("a").await;
    let resuming = Resuming {
        restart: Restart::Lost,
        first: Duration::MAX,
        longest: Duration::MAX,
    };
    let stream = fleet.submit_stream(&numbered_hosts("slow", 1), resuming).await;
    fleet.wait_for_executions(1).await;
    let streams = fleet.nats.store("streams").await;
    streams.delete(format!("{stream}.order")).await.unwrap();
    // It would have been stopped by then: the node has seen what came later.
    let other = fleet.submit_stream(&numbered_hosts("slower", 1), resuming).await;
    fleet.wait_for_executions(2).await;
    following::cancel(bucket, key, &other).await.unwrap();
    following::cancel(bucket, key, &stream).await.unwrap();
    // A stream that was ended by the removal would have no end.
    for place in [format!("{other}.end.0"), format!("{stream}.end.0")] {
        while streams.get(&place).await.unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_empties_a_bucket_with_one_message() {
    let nats = Nats::start("");
    let _bucket = nats.fleet(4).await;
    let jetstream = nats.jetstream().await;
    for name in ["state", "charter", "streams"] {
        let stream = jetstream.get_stream(format!("KV_test-{name}")).await.unwrap();
        let before = stream.cached_info().state.messages;
        for rollup in ["all", "sub"] {
            let mut headers = async_nats::HeaderMap::new();
            headers.insert("Nats-Rollup", rollup);
            let place = format!("$KV.test-{name}.job.x.hosts.0");
            let sent = jetstream
                .publish_with_headers(place, headers, "x".into())
                .await
                .unwrap();
            assert!(sent.await.is_err(), "{name} {rollup}");
        }
        let stream = jetstream.get_stream(format!("KV_test-{name}")).await.unwrap();
        assert_eq!(stream.cached_info().state.messages, before, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_of_output_and_input_has_a_bound() {
    let nats = Nats::start("");
    let _bucket = nats.fleet(4).await;
    let jetstream = nats.jetstream().await;
    for name in ["output", "input", "streamed"] {
        let stream = jetstream.get_stream(format!("test-{name}")).await.unwrap();
        let most = stream.cached_info().config.max_bytes;
        assert!((64 << 20..=1 << 30).contains(&most), "{name}: {most}");
    }
}

/// Passes on what a client and NATS say, and falls silent for a while, once, before NATS tells of the job's fourth host.
async fn faltering(nats: &Nats) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let port = nats.port();
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let (mut from_client, mut to_client) = client.split();
        let (mut from_server, mut to_server) = server.split();
        let answers = async {
            let (mut buffer, mut has_faltered) = (vec![0; 1 << 20], false);
            while let Ok(bytes @ 1..) = from_server.read(&mut buffer).await {
                let (mut said, word) = (&buffer[..bytes], b".fate.3");
                let at = said.windows(word.len()).position(|words| words == word);
                if let Some(at) = at.filter(|_| !std::mem::replace(&mut has_faltered, at.is_some())) {
                    to_client.write_all(&said[..at]).await.unwrap();
                    said = &said[at..];
                    tokio::time::sleep(Duration::from_millis(1500)).await;
                }
                to_client.write_all(said).await.unwrap();
            }
        };
        tokio::join!(answers, tokio::io::copy(&mut from_client, &mut to_server))
    });
    format!("nats://{address}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_nats_knows_of_a_job_is_waited_for() {
    let fleet = TestFleet::start(4).await;
    let _node = fleet.start_node("a").await;
    fleet.run(&numbered_hosts("web", 6)).await;
    let access = Access {
        servers: faltering(&fleet.nats).await,
        ..fleet.nats.access()
    };
    let slow = Bucket::open(&access).await.unwrap();
    assert_eq!(jobs(&slow).await.unwrap()[0].succeeded, 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_known_which_hosts_wait_and_why() {
    let fleet = TestFleet::start(4).await;
    let (bucket, one) = (&fleet.bucket, numbered_hosts("web", 1));
    assert_eq!(waits(bucket, &one).await.unwrap(), [Some(Wait::NoNode(None))]);
    let node = fleet.start_node("a").await;
    wait_for_shards(bucket, "a", |own| own == 4).await;
    assert_eq!(waits(bucket, &one).await.unwrap(), [None]);
    node.tell.send(Instruction::Drain).await.unwrap();
    wait_for_shards(bucket, "a", |own| own == 0).await;
    assert_eq!(waits(bucket, &one).await.unwrap(), [Some(Wait::Drained(None))]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_is_told_as_tampering_and_keeps_nobody_waiting() {
    let fleet = TestFleet::start(4).await;
    let bucket = &fleet.bucket;
    let job = fleet.submit(&numbered_hosts("web", 2)).await;
    let state = fleet.nats.store("state").await;
    for host in 0..2 {
        state
            .put(format!("job.{job}.fate.{host}"), "garbage".into())
            .await
            .unwrap();
    }
    // Who follows it is told, and does not wait for what nobody can read.
    let (fates, _) = follow_to_end(bucket, &job).await;
    for fate in fates.values() {
        let Fate::Ended { returned, .. } = fate else {
            panic!("{fate:?}")
        };
        let Exit::Failed {
            message, execution, ..
        } = &returned.exit
        else {
            panic!("{fate:?}")
        };
        assert!(message.contains("overwritten"), "{message}");
        assert_eq!(*execution, trunkline_request::failure::Execution::MayHaveStarted);
    }
    assert_eq!((fates.len(), jobs(bucket).await.unwrap()[0].failed), (2, 2));
    state.put("frozen", "garbage".into()).await.unwrap();
    assert!(bucket.frozen().await.unwrap().unwrap().contains("overwritten"));
}
