//! Nodes and NATS are killed while jobs run: nothing runs twice, and what is said of each host is true.

use std::time::Duration;

use nkeys::KeyPair;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use trunkline_fleet::bucket::Bucket;
use trunkline_fleet::state::{Fate, Limits};
use trunkline_fleet::submitting::{JobEvent, follow, submit};

use crate::fleet::{Ledger, TestNode, everything, hosts, numbered};
use crate::nats::Nats;

/// How many courses, from which seed: TRUNKLINE_FLEET_FAULTS=FROM-TO; two in every run.
fn seeds() -> std::ops::Range<u64> {
    let asked = std::env::var("TRUNKLINE_FLEET_FAULTS").ok();
    match asked.as_deref().and_then(|text| text.split_once('-')) {
        Some((from, to)) => from.parse().unwrap()..to.parse().unwrap(),
        None => 0..2,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_nodes_and_servers_make_nothing_run_twice() {
    for seed in seeds() {
        let course = course(seed);
        let (ended, unknown) = tokio::time::timeout(Duration::from_secs(120), course)
            .await
            .unwrap_or_else(|_| panic!("seed {seed}: not every fate is known after two minutes"));
        println!("seed {seed}: {ended} ended, {unknown} may have started");
    }
}

async fn course(seed: u64) -> (usize, usize) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut nats = Nats::start("");
    let bucket = nats.fleet(16).await;
    let (key, ledger) = (KeyPair::new_user(), Ledger::default());
    let folder = tempfile::tempdir().unwrap();
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        let own = Bucket::open(&nats.access()).await.unwrap();
        nodes.push(TestNode::start(name, own, &folder, everything(&key), &ledger));
    }
    let limits = Limits {
        at_once: 10,
        ..Limits::default()
    };
    let names = numbered("web", 300);
    let job = submit(&bucket, &key, &hosts(&names), limits, None).await.unwrap();
    let (events, mut told) = tokio::sync::mpsc::channel(16);
    let following = tokio::spawn({
        let (bucket, job) = (bucket.clone(), job.clone());
        async move { follow(&bucket, &job, events).await }
    });
    let mischief = async {
        for _ in 0..random.random_range(1..4) {
            tokio::time::sleep(Duration::from_millis(random.random_range(50..1500))).await;
            match random.random_range(0..3) {
                0 => {
                    let lost = random.random_range(0..3);
                    nodes[lost].kill();
                    let name = ["a", "b", "c"][lost];
                    tokio::time::sleep(Duration::from_millis(random.random_range(10..1000))).await;
                    // Its own log is there when it comes back.
                    if let Ok(own) = Bucket::open(&nats.access()).await {
                        nodes[lost] = TestNode::start(name, own, &folder, everything(&key), &ledger);
                    }
                }
                _ => {
                    nats.kill();
                    tokio::time::sleep(Duration::from_millis(random.random_range(10..2000))).await;
                    nats.up();
                    tokio::time::sleep(Duration::from_millis(300)).await;
                }
            }
        }
    };
    let mut fates = std::collections::BTreeMap::new();
    let listening = async {
        while let Some(event) = told.recv().await {
            if let JobEvent::Fate(host, fate) = event {
                fates.insert(host, fate);
            }
        }
    };
    tokio::join!(mischief, listening);
    following.await.unwrap().unwrap();

    let ledger = ledger.lock().unwrap();
    for (host, nodes) in ledger.iter() {
        assert_eq!(nodes.len(), 1, "seed {seed}: {host} was executed by {nodes:?}");
    }
    assert_eq!(fates.len(), names.len(), "seed {seed}");
    let (mut ended, mut unknown) = (0, 0);
    for (host, fate) in &fates {
        let name = &names[usize::try_from(*host).unwrap()];
        let was_executed = ledger.contains_key(&format!("{job} {name}"));
        match fate {
            Fate::Ended { .. } => {
                ended += 1;
                assert!(was_executed, "seed {seed}: a result of {name} was invented");
            }
            Fate::NotStarted { why } => assert!(
                !was_executed,
                "seed {seed}: {name} is said not to have started: {why}"
            ),
            Fate::Unknown { .. } => unknown += 1,
            Fate::Claimed(_) => panic!("seed {seed}: nothing is known of {name}"),
        }
    }
    (ended, unknown)
}
