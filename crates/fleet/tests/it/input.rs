//! The input of jobs: whole on every host, or nothing is started.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use trunkline_fleet::input::upload;
use trunkline_fleet::order::job::{JobTerms, OrderedInput};
use trunkline_fleet::running::{Executor, Work};
use trunkline_fleet::state::{Exit, Fate, JobId};
use trunkline_fleet::submitting::order_of;
use trunkline_request::failure::{ErrorKind, Execution};

use crate::fleet::{TestFleet, TestNode, everything, follow_to_end, numbered_hosts};

/// Reads what it gets, and fails as often as it is told to before anything has started.
#[derive(Default)]
struct Reader {
    read: Mutex<Vec<Vec<u8>>>,
    fails: Mutex<u32>,
}

impl Reader {
    fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.read.lock().unwrap())
    }

    fn is_to_fail(&self) -> bool {
        let mut fails = self.fails.lock().unwrap();
        let is_to_fail = *fails > 0;
        *fails = fails.saturating_sub(1);
        is_to_fail
    }
}

struct Shared(Arc<Reader>);

impl Executor for Shared {
    fn execute(&self, work: Work) -> Pin<Box<dyn Future<Output = Exit> + Send>> {
        let reader = self.0.clone();
        Box::pin(async move {
            if reader.is_to_fail() {
                return failed_exit(ErrorKind::Network, Execution::DidNotStart);
            }
            let mut all = Vec::new();
            if let Some(input) = work.input {
                loop {
                    let data = input.read_at(all.len() as u64).await.unwrap();
                    if data.is_empty() {
                        break;
                    }
                    all.extend(data);
                }
            }
            reader.read.lock().unwrap().push(all);
            Exit::Status(0)
        })
    }
}

fn failed_exit(kind: ErrorKind, execution: Execution) -> Exit {
    Exit::Failed {
        kind,
        message: "as was asked for".into(),
        execution,
    }
}

struct Fleet {
    fleet: TestFleet,
    reader: Arc<Reader>,
    _node: TestNode,
}

impl Fleet {
    async fn start() -> Self {
        let fleet = TestFleet::start(4).await;
        let (reader, allow) = (Arc::<Reader>::default(), Arc::new(everything(&fleet.key)));
        let executor = Arc::new(Shared(reader.clone()));
        let node = TestNode::start_with("a", fleet.open().await, &fleet.directory, allow, executor);
        Self {
            fleet,
            reader,
            _node: node,
        }
    }

    async fn submit(&self, hosts: usize, terms: JobTerms) -> JobId {
        let hosts = numbered_hosts("web", hosts);
        self.fleet.submit_with(&hosts, terms).await
    }

    async fn upload(&self, data: &[u8]) -> JobTerms {
        JobTerms {
            input: Some(upload(&self.fleet.bucket, data).await.unwrap()),
            ..JobTerms::default()
        }
    }

    /// Returns the ends of the job's hosts.
    async fn exits(&self, job: &JobId) -> Vec<Exit> {
        let (fates, _) = follow_to_end(&self.fleet.bucket, job).await;
        let exits = fates.into_values().map(|fate| match fate {
            Fate::Ended { returned, .. } => returned.exit,
            other => panic!("{other:?}"),
        });
        exits.collect()
    }

    /// Returns the error of an input that is to be found out before anything starts.
    async fn refusal_of(&self, terms: JobTerms) -> String {
        let job = self.submit(2, terms).await;
        let mut why = String::new();
        for exit in self.exits(&job).await {
            let Exit::Failed {
                message, execution, ..
            } = exit
            else {
                panic!("{exit:?}");
            };
            assert_eq!(execution, Execution::DidNotStart);
            why = message;
        }
        assert_eq!(self.reader.take(), Vec::<Vec<u8>>::new());
        why
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_host_reads_what_was_signed_or_does_not_start() {
    let fleet = Fleet::start().await;
    let data: Vec<u8> = (0..=255).cycle().take(600_001).collect();
    let terms = fleet.upload(&data).await;
    let job = fleet.submit(3, terms.clone()).await;
    assert_eq!(fleet.exits(&job).await, [(); 3].map(|()| Exit::Status(0)));
    assert_eq!(fleet.reader.take(), vec![data.clone(); 3]);
    // A job that is run again reads the same.
    let order = order_of(&fleet.fleet.bucket, &job).await.unwrap();
    assert_eq!(order.terms, terms);
    let again = fleet.submit(1, order.terms).await;
    assert_eq!(fleet.exits(&again).await, [Exit::Status(0)]);
    assert_eq!(fleet.reader.take(), [data]);

    let input = terms.input.unwrap();
    let with = |change: &dyn Fn(&mut OrderedInput)| {
        let mut input = input.clone();
        change(&mut input);
        JobTerms {
            input: Some(input),
            ..JobTerms::default()
        }
    };
    for (terms, why) in [
        (with(&|input| input.digest[0] ^= 1), "damaged"),
        (with(&|input| input.bytes -= 1), "damaged"),
        (with(&|input| input.bytes += 1), "damaged"),
        (with(&|input| input.id = "0".into()), "not in NATS any more"),
        (with(&|input| input.id = "*".into()), "cannot be read"),
        (with(&|input| input.pieces = u32::MAX), "cannot be read"),
        (
            with(&|input| (input.bytes, input.pieces) = (1 << 40, 1 << 22)),
            "longer than 64 MiB",
        ),
    ] {
        let said = fleet.refusal_of(terms).await;
        assert!(said.contains(why), "{said}");
    }
    // Somebody else writes there.
    let subject = format!("test.input.{}.1", input.id);
    let jetstream = fleet.fleet.nats.jetstream().await;
    jetstream
        .publish(subject, "x".into())
        .await
        .unwrap()
        .await
        .unwrap();
    let said = fleet.refusal_of(with(&|_| ())).await;
    assert!(said.contains("damaged"), "{said}");
    // NATS has forgotten it.
    jetstream
        .get_stream("test-input")
        .await
        .unwrap()
        .purge()
        .await
        .unwrap();
    let said = fleet.refusal_of(with(&|_| ())).await;
    assert!(said.contains("not in NATS any more"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_is_tried_again_only_where_nothing_may_have_run() {
    let fleet = Fleet::start().await;
    *fleet.reader.fails.lock().unwrap() = 2;
    let terms = JobTerms {
        retries: 2,
        ..fleet.upload(b"input").await
    };
    let job = fleet.submit(1, terms.clone()).await;
    assert_eq!(fleet.exits(&job).await, [Exit::Status(0)]);
    assert_eq!(fleet.reader.take(), [b"input"]);
    *fleet.reader.fails.lock().unwrap() = 3;
    let job = fleet.submit(1, terms).await;
    assert_eq!(
        fleet.exits(&job).await,
        [failed_exit(ErrorKind::Network, Execution::DidNotStart)]
    );
    assert_eq!(fleet.reader.take(), Vec::<Vec<u8>>::new());
}
