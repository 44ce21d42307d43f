//! Nodes, jobs, and what is told of them.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nkeys::KeyPair;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use trunkline_fleet::allow::{AllowList, AllowSource, Rule};
use trunkline_fleet::bucket::{Bucket, BucketError, Charter, PROTOCOL};
use trunkline_fleet::order::job::JobTerms;
use trunkline_fleet::order::{self, OrderedHost};
use trunkline_fleet::running::{Executor, Instruction, NodeError, NodeOptions, Stream, Work, run};
use trunkline_fleet::signed::{Purpose, Signed};
use trunkline_fleet::state::{Exit, Fate, JobId, Limits, Resuming, StreamId, Value};
use trunkline_fleet::streaming::following;
use trunkline_fleet::submitting::{JobEvent, cancel, follow, jobs, remove, status, submit};
use trunkline_request::destination::Destination;

use crate::nats::{Nats, charter, create};

/// The executions of each host, with their nodes.
pub(crate) type Ledger = Arc<Mutex<BTreeMap<String, Vec<String>>>>;

/// Executes nothing: the host's name says how long it takes and what it returns.
struct Pretender {
    node: String,
    ledger: Ledger,
}

impl Executor for Pretender {
    fn execute(&self, work: Work) -> Pin<Box<dyn Future<Output = Exit> + Send>> {
        let name = format!("{} {}", work.job, work.host.name);
        self.ledger
            .lock()
            .unwrap()
            .entry(name)
            .or_default()
            .push(self.node.clone());
        Box::pin(async move {
            let takes = if work.host.name.starts_with("slow") {
                30_000
            } else {
                20
            };
            let text = format!("this is {}\n", work.host.name);
            work.output.write(Stream::Stdout, text.as_bytes()).await;
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(takes)) => {}
                () = work.cancelled.notified() => return Exit::Signal("TERM".into()),
            }
            Exit::Status(if work.host.name.starts_with("bad") { 1 } else { 0 })
        })
    }
}

/// A node of the test's process.
pub(crate) struct TestNode {
    pub(crate) tell: mpsc::Sender<Instruction>,
    task: JoinHandle<Result<(), NodeError>>,
}

impl TestNode {
    /// Starts one that pretends to execute commands.
    pub(crate) fn start(
        name: &str,
        bucket: Bucket,
        directory: &TempDir,
        allow: Arc<dyn AllowSource>,
        ledger: &Ledger,
    ) -> Self {
        let executor = Pretender {
            node: name.into(),
            ledger: ledger.clone(),
        };
        Self::start_with(name, bucket, directory, allow, Arc::new(executor))
    }

    pub(crate) fn start_with(
        name: &str,
        bucket: Bucket,
        directory: &TempDir,
        allow: Arc<dyn AllowSource>,
        executor: Arc<dyn Executor>,
    ) -> Self {
        let (tell, told) = mpsc::channel(1);
        let options = NodeOptions {
            name: name.into(),
            site: None,
            at_once: 32,
            directory: directory.path().join(name),
            allow,
        };
        let task = tokio::spawn(run(bucket, options, executor, told));
        Self { tell, task }
    }

    /// As SIGKILL ends it.
    pub(crate) fn kill(&self) {
        self.task.abort();
    }

    async fn wait_for_end(self) -> Result<(), NodeError> {
        self.task.await.unwrap()
    }
}

/// A fleet on a server of its own, and who submits to it.
pub(crate) struct TestFleet {
    pub(crate) nats: Nats,
    pub(crate) bucket: Bucket,
    /// The submitter's.
    pub(crate) key: KeyPair,
    pub(crate) ledger: Ledger,
    /// Of its nodes.
    pub(crate) directory: TempDir,
}

impl TestFleet {
    /// Starts one of so many shards, without a node.
    pub(crate) async fn start(shards: u16) -> Self {
        Self::with_charter(charter(shards)).await
    }

    pub(crate) async fn with_charter(charter: Charter) -> Self {
        let nats = Nats::start("");
        let bucket = create(&nats.access(), charter, 1).await;
        Self {
            nats,
            bucket,
            key: KeyPair::new_user(),
            ledger: Ledger::default(),
            directory: tempfile::tempdir().unwrap(),
        }
    }

    /// Opens it once more, with a connection of its own.
    pub(crate) async fn open(&self) -> Bucket {
        Bucket::open(&self.nats.access()).await.unwrap()
    }

    /// Starts a node that lets the submitter do everything.
    pub(crate) async fn start_node(&self, name: &str) -> TestNode {
        self.start_node_allowing(name, Arc::new(everything(&self.key)))
            .await
    }

    pub(crate) async fn start_node_allowing(&self, name: &str, allow: Arc<dyn AllowSource>) -> TestNode {
        TestNode::start(name, self.open().await, &self.directory, allow, &self.ledger)
    }

    pub(crate) async fn submit(&self, hosts: &[OrderedHost]) -> JobId {
        self.submit_with(hosts, JobTerms::default()).await
    }

    pub(crate) async fn submit_with(&self, hosts: &[OrderedHost], terms: JobTerms) -> JobId {
        submit(&self.bucket, &self.key, hosts, terms).await.unwrap()
    }

    pub(crate) async fn submit_stream(&self, hosts: &[OrderedHost], resuming: Resuming) -> StreamId {
        following::submit(&self.bucket, &self.key, hosts, resuming, None)
            .await
            .unwrap()
    }

    /// Submits a job, and returns all that is told of it.
    pub(crate) async fn run(&self, hosts: &[OrderedHost]) -> Told {
        let job = self.submit(hosts).await;
        follow_to_end(&self.bucket, &job).await
    }

    /// Waits until its nodes have begun on so many hosts.
    pub(crate) async fn wait_for_executions(&self, count: usize) {
        while self.ledger.lock().unwrap().len() < count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Each with its job or stream, in alphabetical order.
    pub(crate) fn executed_hosts(&self) -> Vec<String> {
        self.ledger.lock().unwrap().keys().cloned().collect()
    }
}

pub(crate) fn hosts(names: &[String]) -> Vec<OrderedHost> {
    let host = |name: &String| OrderedHost {
        name: name.clone(),
        destination: Destination::parse_hop(name).unwrap(),
        command: b"true".to_vec(),
    };
    names.iter().map(host).collect()
}

fn number_names(name: &str, hosts: usize) -> Vec<String> {
    (0..hosts).map(|host| format!("{name}{host}.test")).collect()
}

pub(crate) fn numbered_hosts(name: &str, count: usize) -> Vec<OrderedHost> {
    hosts(&number_names(name, count))
}

pub(crate) fn everything(key: &KeyPair) -> AllowList {
    AllowList {
        allow: vec![Rule {
            submitters: vec![key.public_key()],
            hosts: vec!["*".into()],
            users: vec![],
            ports: vec![],
            subjects: vec![],
        }],
        cancel: vec![],
    }
}

/// Terms of a job with these limits.
pub(crate) fn job_terms(limits: Limits) -> JobTerms {
    JobTerms {
        limits,
        ..JobTerms::default()
    }
}

/// Waits until each of so many nodes has its part: a shard that moves while a host begins is given up by its owner.
async fn wait_until_divided(bucket: &Bucket, nodes: usize, shards: usize) {
    loop {
        let seen = status(bucket).await.unwrap().nodes;
        assert!(seen.is_sorted_by(|one, other| one.0 < other.0), "{seen:?}");
        if seen.iter().filter(|node| node.2 > 0).count() == nodes
            && seen.iter().map(|node| node.2).sum::<usize>() == shards
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The fates of a job's hosts, and their output.
type Told = (BTreeMap<u32, Fate>, BTreeMap<u32, String>);

/// Returns all that is told of a job.
pub(crate) async fn follow_to_end(bucket: &Bucket, job: &JobId) -> Told {
    let (events, mut told) = mpsc::channel(16);
    let (bucket, job) = (bucket.clone(), job.clone());
    let following = tokio::spawn(async move { follow(&bucket, &job, events).await });
    let (mut fates, mut output) = (BTreeMap::new(), BTreeMap::<u32, String>::new());
    while let Some(event) = told.recv().await {
        match event {
            JobEvent::Fate(host, fate) => {
                fates.insert(host, fate);
            }
            JobEvent::Output(host, _, data) => output
                .entry(host)
                .or_default()
                .push_str(&String::from_utf8(data).unwrap()),
            JobEvent::Incomplete(host, _) => panic!("output of host {host} is missing"),
        }
    }
    following.await.unwrap().unwrap();
    (fates, output)
}

#[track_caller]
pub(crate) fn assert_all_ended(fates: &BTreeMap<u32, Fate>) {
    assert!(
        fates.values().all(|fate| matches!(fate, Fate::Ended { .. })),
        "{fates:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_runs_once_on_each_host_and_can_be_looked_at_later() {
    let fleet = TestFleet::start(16).await;
    let bucket = &fleet.bucket;
    let a = fleet.start_node("a").await;
    let _b = fleet.start_node("b").await;
    wait_until_divided(bucket, 2, 16).await;
    let mut names = number_names("web", 40);
    names[7] = "bad7.test".into();
    let job = fleet.submit(&hosts(&names)).await;
    let (fates, output) = follow_to_end(bucket, &job).await;
    assert_eq!(fates.len(), 40);
    for (host, fate) in &fates {
        let Fate::Ended { returned, .. } = fate else {
            panic!("{fate:?}")
        };
        assert_eq!(returned.exit, Exit::Status(u32::from(*host == 7)));
        let name = &names[usize::try_from(*host).unwrap()];
        assert_eq!(output[host], format!("this is {name}\n"));
    }
    // Somebody else asks later.
    assert_eq!(follow_to_end(bucket, &job).await, (fates, output));
    let executed = fleet.ledger.lock().unwrap().clone();
    assert_eq!(executed.len(), 40);
    assert!(executed.values().all(|nodes| nodes.len() == 1));

    let seen = status(bucket).await.unwrap();
    assert_eq!(seen.nodes.iter().map(|node| node.2).sum::<usize>(), 16);
    assert_eq!(seen.frozen, None);

    // A node that leaves gives back what it has, and the other one takes it at once.
    a.tell.send(Instruction::Leave).await.unwrap();
    let (fates, _) = fleet.run(&numbered_hosts("db", 20)).await;
    assert_all_ended(&fates);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_hold_for_the_fleet_and_a_job_can_be_cancelled() {
    let fleet = TestFleet::start(8).await;
    let (bucket, key) = (&fleet.bucket, &fleet.key);
    for name in ["a", "b"] {
        fleet.start_node(name).await;
    }
    wait_until_divided(bucket, 2, 8).await;
    let limits = Limits {
        at_once: 2,
        failures: Some(0),
        ..Limits::default()
    };
    let mut names = number_names("web", 20);
    names[3] = "bad3.test".into();
    let job = fleet.submit_with(&hosts(&names), job_terms(limits)).await;
    let (fates, _) = follow_to_end(bucket, &job).await;
    let not_started = fates
        .values()
        .filter(|fate| matches!(fate, Fate::NotStarted { .. }))
        .count();
    assert!((12..=16).contains(&not_started), "{fates:?}");
    assert_eq!(fleet.executed_hosts().len(), 20 - not_started);

    let limits = Limits {
        at_once: 4,
        ..Limits::default()
    };
    let job = fleet
        .submit_with(&numbered_hosts("slow", 10), job_terms(limits))
        .await;
    let begun = || {
        let ledger = fleet.ledger.lock().unwrap();
        ledger.keys().filter(|name| name.contains("slow")).count()
    };
    while begun() < 4 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Somebody else may write to the bucket, and ends nothing by that.
    cancel(bucket, &KeyPair::new_user(), &job).await.unwrap();
    // Both nodes have seen what was written before that.
    fleet.run(&numbered_hosts("web", 40)).await;
    let seen = jobs(bucket).await.unwrap();
    let seen = seen.iter().find(|status| status.job == job.0).unwrap();
    assert_eq!(seen.running, 4, "{seen:?}");
    cancel(bucket, key, &job).await.unwrap();
    let (fates, _) = follow_to_end(bucket, &job).await;
    for (host, fate) in &fates {
        match fate {
            Fate::Ended { returned, .. } => assert_eq!(returned.exit, Exit::Signal("TERM".into())),
            Fate::NotStarted { why } => assert_eq!(why, "the job was cancelled"),
            other => panic!("host {host}: {other:?}"),
        }
    }
    assert_eq!(begun(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_runs_what_it_allows_and_says_what_it_does_not() {
    let fleet = TestFleet::start(4).await;
    let bucket = &fleet.bucket;
    let mut allow = everything(&fleet.key);
    allow.allow[0].hosts = vec!["web*".into()];
    fleet.start_node_allowing("a", Arc::new(allow)).await;
    let names = [
        "web1.test".to_owned(),
        "db1.test".to_owned(),
        "root@web2.test".to_owned(),
    ];
    let why = |fate: &Fate| match fate {
        Fate::NotStarted { why } => why.clone(),
        _ => String::new(),
    };
    let (fates, _) = fleet.run(&hosts(&names)).await;
    assert_eq!(why(&fates[&0]), "");
    assert!(why(&fates[&1]).contains("does not let"), "{fates:?}");
    assert!(why(&fates[&2]).contains("be root on web2.test"), "{fates:?}");
    let (stranger, web) = (KeyPair::new_user(), hosts(&names[..1]));
    let job = submit(bucket, &stranger, &web, JobTerms::default())
        .await
        .unwrap();
    let (fates, _) = follow_to_end(bucket, &job).await;
    assert!(why(&fates[&0]).contains("takes nothing from"), "{fates:?}");
    assert_eq!(fleet.executed_hosts().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_said_in_a_sentence() {
    let nats = Nats::start("");
    let _ = nats.fleet(4).await;
    let mut access = nats.access();
    access.prefix = "other".into();
    let error = Bucket::open(&access).await.unwrap_err();
    assert!(matches!(error, BucketError::NoFleet { .. }), "{error}");
    access.servers = "nats://127.0.0.1:1".into();
    let error = Bucket::open(&access).await.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("cannot connect to NATS at nats://127.0.0.1:1"),
        "{error}"
    );

    let key = KeyPair::new_user();
    let users = format!("authorization {{ users: [ {{ nkey: {} }} ] }}", key.public_key());
    let locked = Nats::start(&users);
    let mut access = locked.access();
    access.nkey = Some(key.seed().unwrap());
    while matches!(Bucket::open(&access).await, Err(BucketError::Connect { .. })) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    access.nkey = Some(KeyPair::new_user().seed().unwrap());
    let error = Bucket::open(&access).await.unwrap_err();
    assert!(matches!(error, BucketError::Connect { .. }), "{error}");
}

/// An allow list in a file that people change.
#[derive(Debug)]
pub(crate) struct Changing(Mutex<Result<Arc<AllowList>, String>>);

impl Changing {
    pub(crate) fn new(list: AllowList) -> Self {
        Self(Mutex::new(Ok(Arc::new(list))))
    }

    pub(crate) fn set(&self, list: AllowList) {
        *self.0.lock().unwrap() = Ok(Arc::new(list));
    }

    fn make_unreadable(&self, why: &str) {
        *self.0.lock().unwrap() = Err(why.into());
    }
}

impl AllowSource for Changing {
    fn current(&self) -> Result<Arc<AllowList>, String> {
        self.0.lock().unwrap().clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_allowed_is_what_the_list_says_by_then() {
    let fleet = TestFleet::start(4).await;
    let list = Arc::new(Changing::new(everything(&fleet.key)));
    let _node = fleet.start_node_allowing("a", list.clone()).await;
    let limits = Limits {
        at_once: 1,
        ..Limits::default()
    };
    // The first host is begun while the list allows it, and the others come when it allows nothing any more.
    let mut names = number_names("web", 4);
    names[0] = "slow0.test".into();
    let job = fleet.submit_with(&hosts(&names), job_terms(limits)).await;
    fleet.wait_for_executions(1).await;
    list.make_unreadable("fleet.toml: Permission denied");
    let why = |fate: &Fate| match fate {
        Fate::NotStarted { why } => why.clone(),
        other => format!("{other:?}"),
    };
    let (events, mut told_now) = mpsc::channel(16);
    let following = tokio::spawn({
        let (bucket, job) = (fleet.bucket.clone(), job.clone());
        async move { follow(&bucket, &job, events).await }
    });
    let mut refused = 0;
    while refused < 3 {
        if let JobEvent::Fate(host @ 1.., fate) = told_now.recv().await.unwrap() {
            assert!(why(&fate).contains("allows nothing, because"), "{host}: {fate:?}");
            refused += 1;
        }
    }
    following.abort();
    assert_eq!(fleet.executed_hosts().len(), 1);

    list.set(everything(&fleet.key));
    let (fates, _) = fleet.run(&hosts(&names[1..])).await;
    assert_all_ended(&fates);
}

/// A job as a later version may write it.
#[derive(serde::Serialize)]
struct LaterOrder {
    protocol: u32,
    fleet: u64,
    submitter: String,
    hosts: u32,
    novelty: &'static str,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_another_version_is_refused_where_its_submitter_sees_it() {
    let fleet = TestFleet::start(4).await;
    let _node = fleet.start_node("a").await;
    let order = rmp_serde::to_vec_named(&LaterOrder {
        protocol: PROTOCOL + 1,
        fleet: fleet.bucket.charter.id,
        submitter: fleet.key.public_key(),
        hosts: 3,
        novelty: "x",
    })
    .unwrap();
    let job = order::name_of(order::Kind::Job, &order);
    let signed = Signed::new(&fleet.key, Purpose::Job, order).unwrap();
    let signed = rmp_serde::to_vec_named(&signed).unwrap();
    let state = fleet.nats.store("state").await;
    state
        .put(format!("job.{job}.order"), signed.into())
        .await
        .unwrap();
    for host in 0..3 {
        let fate = loop {
            match state.get(format!("job.{job}.fate.{host}")).await.unwrap() {
                Some(fate) => break rmp_serde::from_slice(&fate).unwrap(),
                None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        let Value::Fate(Fate::NotStarted { why }) = fate else {
            panic!("{fate:?}")
        };
        let words = format!("speaks protocol {} and this fleet {PROTOCOL}", PROTOCOL + 1);
        assert!(why.contains(&words), "{why}");
    }
    assert!(fleet.executed_hosts().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_made_anew_takes_nothing_over_from_the_one_before() {
    let fleet = TestFleet::start(4).await;
    let access = fleet.nats.access();
    let node = fleet.start_node("a").await;
    wait_until_divided(&fleet.bucket, 1, 4).await;
    let removed = remove(&access).await;
    assert!(matches!(removed, Err(BucketError::AtWork { .. })), "{removed:?}");
    let one = numbered_hosts("web", 1);
    fleet.run(&one).await;
    node.tell.send(Instruction::Leave).await.unwrap();
    node.wait_for_end().await.unwrap();

    remove(&access).await.unwrap();
    let anew = fleet.nats.fleet(4).await;
    assert!(submitting_knows_nothing(&anew).await);
    // Its sequence numbers begin below those that the node has seen, and it is another fleet.
    let _node = fleet.start_node("a").await;
    let job = submit(&anew, &fleet.key, &one, JobTerms::default())
        .await
        .unwrap();
    let (fates, _) = follow_to_end(&anew, &job).await;
    assert!(matches!(fates[&0], Fate::Ended { .. }), "{fates:?}");

    // A process of the former fleet that comes back finds another one, and ends without freezing it.
    let allow = Arc::new(everything(&fleet.key));
    let former = TestNode::start("b", fleet.bucket, &fleet.directory, allow, &fleet.ledger);
    let ended = former.wait_for_end().await.unwrap_err();
    assert!(matches!(ended, NodeError::Anew), "{ended}");
    assert_eq!(anew.frozen().await.unwrap(), None);
}

async fn submitting_knows_nothing(bucket: &Bucket) -> bool {
    jobs(bucket).await.unwrap().is_empty() && bucket.frozen().await.unwrap().is_none()
}
