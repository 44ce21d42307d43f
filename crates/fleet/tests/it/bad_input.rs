//! An error is reported in one sentence, nothing runs twice, and every command that ran is accounted for.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use trunkline_fleet::bucket::Bucket;
use trunkline_fleet::order::job::JobTerms;
use trunkline_fleet::order::{self, OrderedHost};
use trunkline_fleet::state::{Exit, Fate, JobId};
use trunkline_fleet::submitting::{SubmitError, order_of, status};
use trunkline_testkit::LightServer;

use crate::faults::site::{Node, draw};
use crate::fleet::{TestFleet, follow_to_end, numbered_hosts};
use crate::nats::{Nats, charter, create};

/// Returns the program's output and its end, with these settings.
fn run_and_read(settings: &str, arguments: &[&str]) -> (String, Option<i32>) {
    let directory = tempfile::Builder::new().prefix("tl-").tempdir().unwrap();
    if !settings.is_empty() {
        std::fs::write(directory.path().join("fleet.toml"), settings).unwrap();
    }
    let output = Command::new(env!("CARGO_BIN_EXE_trunkline-fleet"))
        .args(arguments)
        .env("TRUNKLINE_DIR", directory.path())
        .output()
        .unwrap();
    (String::from_utf8(output.stderr).unwrap(), output.status.code())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_nats_is_said_in_one_sentence() {
    let old = old_server();
    let plain = Nats::start_plain();
    plain.wait_until_up().await;
    let locked = Nats::start("authorization { user: somebody, password: secret }");
    locked.wait_until_up().await;
    let url = |port: u16| format!("nats://127.0.0.1:{port}");
    for (url, wanted) in [
        (url(1), "cannot connect to NATS at nats://127.0.0.1:1"),
        (url(locked.port()), "which `trunkline fleet key` prints"),
        (url(plain.port()), "has no JetStream for this account"),
        (
            url(old),
            "is of version 2.2.6; a fleet needs nats-server 2.9 or later",
        ),
    ] {
        for command in ["init", "status"] {
            let settings = format!("url = {url:?}\n");
            let (said, status) = tokio::task::spawn_blocking(move || run_and_read(&settings, &[command]))
                .await
                .unwrap();
            assert_eq!(status, Some(255), "{said}");
            assert!(said.contains(wanted), "{command} {url}: {said}");
            // NATS's client does not say it once more.
            assert_eq!(said.lines().count(), 1, "{command} {url}: {said}");
        }
    }
}

/// Returns whether the servers of these tests are older than what a cluster needs.
fn are_servers_old() -> bool {
    let version = Command::new("nats-server").arg("--version").output().unwrap();
    String::from_utf8(version.stdout).unwrap().contains("v2.9.")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_charter_of_a_cluster_is_sealed_where_that_starts_again() {
    let mut servers = Nats::cluster();
    let access = servers[0].access();
    let made = create(&access, charter(4), 3).await;
    let jetstream = servers[0].jetstream().await;
    let stream = jetstream.get_stream("KV_test-charter").await.unwrap();
    assert_eq!(stream.cached_info().config.sealed, !are_servers_old());
    for server in &mut servers {
        server.kill();
    }
    servers.iter_mut().for_each(Nats::up);
    for attempt in 0.. {
        match Bucket::open(&access).await {
            Ok(bucket) => {
                assert_eq!(bucket.charter, made.charter);
                break;
            }
            Err(error) => assert!(attempt < 600, "{error}\n{}", servers[0].log()),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_old_servers_is_warned_of() {
    let is_old = are_servers_old();
    let servers = Nats::cluster();
    let settings = format!("url = {:?}\n", servers[0].access().servers);
    let make = |replicas: &'static str| {
        let settings = settings.clone();
        // It takes some time until there is a cluster; what a try has left is removed by the next.
        let made = move || run_and_read(&settings, &["init", "--anew", "--replicas", replicas]);
        async move { tokio::task::spawn_blocking(made).await.unwrap() }
    };
    let mut tries = 0;
    let said = loop {
        match make("3").await {
            (said, Some(0)) => break said,
            (said, _) if tries == 300 => panic!("{said}"),
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
        tries += 1;
    };
    assert_eq!(
        said.contains("can lose what it has acknowledged when one of its servers is killed"),
        is_old,
        "{said}"
    );
    assert_eq!(make("1").await, (String::new(), Some(0)));
}

/// An authority, and a certificate of it for 127.0.0.1, made as the guide does.
fn certificates(directory: &Path) {
    let script = "\
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj '/CN=authority' -keyout ca.key -out ca.pem
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '/CN=nats' -keyout server.key -out server.csr
        echo subjectAltName=IP:127.0.0.1 >names
        openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem";
    let made = Command::new("sh")
        .args(["-ec", script])
        .current_dir(directory)
        .output();
    let made = made.unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_ones_own_is_trusted_where_it_is_named_and_for_its_name() {
    let directory = trunkline_testkit::directory().unwrap();
    certificates(directory.path());
    let [cert, key, authority] =
        ["server.pem", "server.key", "ca.pem"].map(|name| directory.path().join(name));
    let nats = Nats::start(&format!("tls {{ cert_file: {cert:?}, key_file: {key:?} }}"));
    let port = nats.port();
    nats.wait_until_up().await;
    let of_own = format!("ca = {authority:?}\n");
    for (name, more, wanted) in [
        (
            "127.0.0.1",
            "",
            "if the authority of its certificate is your own, name it: --ca FILE",
        ),
        ("localhost", of_own.as_str(), "for the name in the address"),
        ("127.0.0.1", of_own.as_str(), "there is no fleet"),
    ] {
        let settings = format!("url = \"tls://{name}:{port}\"\n{more}");
        let said = tokio::task::spawn_blocking(move || run_and_read(&settings, &["status"]));
        let (said, status) = said.await.unwrap();
        assert_eq!(status, Some(255), "{said}");
        assert!(said.contains(wanted), "{name}: {said}");
    }
}

/// A server of before there were buckets: it says so, and answers pings.
fn old_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || {
                let info = format!(
                    "INFO {{\"server_id\":\"x\",\"server_name\":\"x\",\"version\":\"2.2.6\",\"proto\":1,\"host\":\"127.0.0.1\",\
                     \"port\":{port},\"headers\":true,\"max_payload\":1048576,\"jetstream\":true}}\r\n"
                );
                let _ = stream.write_all(info.as_bytes());
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                for line in lines.map_while(Result::ok) {
                    if line.starts_with("PING") {
                        let _ = stream.write_all(b"PONG\r\n");
                    }
                }
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_by_a_wrong_clock_is_not_taken_and_its_submitter_is_told() {
    let fleet = TestFleet::start(4).await;
    let _node = fleet.start_node("a").await;
    let (charter, one) = (&fleet.bucket.charter, numbered_hosts("web", 1));
    let written = order::sign(&fleet.key, charter, 1_000_000_000, &one, JobTerms::default()).unwrap();
    let state = fleet.nats.store("state").await;
    let early: JobId = written.id;
    let place = format!("job.{early}.order");
    state.put(place, written.order.into()).await.unwrap();
    let error = order_of(&fleet.bucket, &early).await.unwrap_err();
    assert!(matches!(error, SubmitError::Order(_)), "{error}");
    assert!(error.to_string().contains("set the submitter's clock"), "{error}");
    // The node has seen it when it has executed what came later.
    let job = fleet.submit(&one).await;
    follow_to_end(&fleet.bucket, &job).await;
    assert_eq!(fleet.executed_hosts(), [format!("{job} web0.test")]);
}

/// Commands for hosts of a light server.
fn light(count: u16) -> Vec<OrderedHost> {
    (1..=count).map(|number| draw(200, number, 20, "")).collect()
}

pub(crate) async fn wait_for_shards(bucket: &Bucket, node: &str, are_enough: impl Fn(usize) -> bool) {
    loop {
        let seen = status(bucket).await.unwrap().nodes;
        let own = seen.iter().find(|seen| seen.0 == node).map_or(0, |seen| seen.2);
        if are_enough(own) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_disk_is_full_runs_nothing_and_the_others_run_all() {
    let (fleet, hosts) = (TestFleet::start(8).await, LightServer::start().unwrap());
    let bucket = &fleet.bucket;
    let node = |number| Node::member(&fleet, number, &hosts);
    let (mut full, mut other) = (node(0), node(1));
    full.start_on_a_small_disk();
    other.start();
    for node in ["n0", "n1"] {
        wait_for_shards(bucket, node, |own| own > 0).await;
    }
    full.fill_disk();
    let (fates, _) = fleet.run(&light(40)).await;
    for fate in fates.values() {
        let Fate::Ended { claim, returned } = fate else {
            panic!("{fate:?}: {}", full.log())
        };
        assert!(matches!(returned.exit, Exit::Status(_)), "{fate:?}");
        assert_eq!(claim.holder.node, "n1");
    }
    assert_eq!(hosts.executions().len(), 40);
    let member = status(bucket).await.unwrap().nodes;
    let member = &member.iter().find(|seen| seen.0 == "n0").unwrap().1;
    let trouble = member.trouble.as_deref().unwrap_or_default();
    assert!(
        trouble.starts_with("the log of intents cannot be written: "),
        "{member:?}"
    );
    assert!(
        full.log()
            .contains("nothing is started: the log of intents cannot be written")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_node_of_one_name_starts_nothing_and_says_why() {
    let (fleet, hosts) = (TestFleet::start(8).await, LightServer::start().unwrap());
    let node = || Node::member(&fleet, 0, &hosts);
    let (mut first, mut twin) = (node(), node());
    first.start();
    wait_for_shards(&fleet.bucket, "n0", |own| own == 8).await;
    twin.start();
    while !twin
        .log()
        .contains("another process is the node n0: two machines have one name")
    {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (fates, _) = fleet.run(&light(20)).await;
    let incarnations: std::collections::BTreeSet<u64> = fates
        .values()
        .map(|fate| match fate {
            Fate::Ended { claim, .. } => claim.holder.incarnation,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!((incarnations.len(), hosts.executions().len()), (1, 20));
}
