use nkeys::KeyPair;
use trunkline_request::destination::Destination;

use super::*;
use crate::bucket::encode;
use crate::order::OrderedHost;
use crate::order::job::JobTerms;
use crate::order::stream::StreamTerms;
use crate::order::tests::{host, stream_terms};
use crate::state::{Claim, Holder, Lease, Returned, StreamEnd, StreamId, StreamShare, Zones};
use crate::streaming::ToldShare;

fn holder(node: &str) -> Holder {
    Holder {
        node: node.into(),
        incarnation: 1,
    }
}

/// A view with its input, and a simulated time.
struct Told {
    view: View,
    now: u64,
    heard: u64,
    /// The name of its stream.
    stream: String,
}

impl Told {
    fn new(shards: u16) -> Self {
        let zones = Zones {
            shards,
            ..Zones::default()
        };
        let charter = Charter::new(zones, Duration::from_secs(1000));
        Self {
            // NATS's clock is 5 s behind.
            view: View::new(&charter, "test", "nats://x", 5),
            now: 10_000,
            heard: 0,
            stream: String::new(),
        }
    }

    fn moment(&self) -> Moment {
        Moment {
            now: self.now,
            heard: BEGINNING + Duration::from_secs(self.heard),
        }
    }

    fn put(&mut self, key: &str, value: &Value) {
        self.put_bytes(key, &encode(value).unwrap());
    }

    fn put_bytes(&mut self, key: &str, bytes: &[u8]) {
        let created = i64::try_from(self.now).unwrap() - 5;
        self.view.handle_value(self.moment(), key, bytes, created);
    }

    fn stream(&mut self, key: &str, value: &impl serde::Serialize) {
        let bytes = encode(value).unwrap();
        let created = i64::try_from(self.now).unwrap() - 5;
        self.view.handle_stream_value(key, Some(&bytes), created);
    }

    fn share(&mut self, node: &str, running: u32, refused: u32, restarts: u64) {
        let why = (refused > 0).then(|| "not\x1b[m let".into());
        let share = StreamShare {
            running,
            refused,
            why,
            restarts,
        };
        let told = ToldShare {
            incarnation: 1,
            share,
        };
        self.stream(&format!("{}.share.{node}", self.stream), &told);
    }

    fn member(&mut self, node: &str, draining: bool, is_there: bool) {
        let member = Member {
            holder: is_there.then(|| holder(node)),
            site: None,
            draining,
            running: 0,
            trouble: None,
            version: "1".into(),
        };
        self.put(&format!("member.{node}"), &Value::Member(member));
    }

    fn lease(&mut self, shard: u8, node: Option<&str>) {
        let holder = node.map(holder);
        self.put(&format!("lease._.{shard}"), &Value::Lease(Lease { holder }));
    }

    fn fate(&mut self, job: &JobId, host: u32, fate: Fate) {
        self.put(&format!("job.{job}.fate.{host}"), &Value::Fate(fate));
    }

    fn pass(&mut self, seconds: u64) {
        self.now += seconds;
        self.heard += seconds;
    }

    /// Returns all changes in one update.
    fn update(&mut self) -> FleetUpdate {
        self.update_cut_off(None)
    }

    fn update_cut_off(&mut self, cut_off: Option<u64>) -> FleetUpdate {
        let mut all = FleetUpdate::default();
        for part in self.view.updates(self.moment(), cut_off) {
            all.nodes.extend(part.nodes);
            all.zones.extend(part.zones);
            all.moves.extend(part.moves);
            all.jobs.extend(part.jobs);
            all.jobs_gone.extend(part.jobs_gone);
            all.streams.extend(part.streams);
            all.streams_gone.extend(part.streams_gone);
            all.fleet = part.fleet;
        }
        all
    }
}

#[test]
fn each_move_has_its_reason_and_those_that_belong_together_are_one() {
    let mut told = Told::new(4);
    for node in ["a", "b", "c"] {
        told.member(node, false, true);
    }
    told.lease(0, Some("a"));
    told.lease(1, Some("a"));
    told.view.handle_synced();
    assert_eq!(told.update().moves, [], "what stands there has not moved");

    // Free ones are taken, a new node gets its part, a lost one is replaced, one that drains gives its own away.
    told.lease(2, Some("b"));
    told.lease(0, None);
    told.lease(0, Some("b"));
    told.lease(1, Some("c"));
    told.pass(1);
    told.lease(2, None);
    told.lease(2, Some("c"));
    // A shard that is given back and taken again has not moved.
    told.lease(0, None);
    told.lease(0, Some("b"));
    let moves = told.update().moves;
    let seen = moves
        .iter()
        .map(|one| (one.from.as_deref(), one.to.as_str(), one.reason, one.shards));
    assert_eq!(
        seen.collect::<Vec<_>>(),
        [
            (None, "b", MoveReason::New, 1),
            (Some("a"), "b", MoveReason::Divided, 1),
            (Some("a"), "c", MoveReason::Lost, 1),
            (Some("b"), "c", MoveReason::Divided, 1),
        ]
    );
    told.lease(0, None);
    told.lease(0, Some("c"));
    // That the node drains is seen later, since the two are watched separately.
    told.member("b", true, true);
    let left = told.update();
    assert_eq!(
        (left.moves.len(), left.moves[0].id, left.moves[0].reason),
        (1, 5, MoveReason::Left)
    );
    told.lease(3, Some("b"));
    told.lease(3, None);
    told.lease(3, Some("c"));
    let again = told.update();
    let joined = again.moves.iter().find(|one| one.id == 5).unwrap();
    assert_eq!(joined.shards, 2);
    assert_eq!(again.zones[0].owners, [Some(0), Some(0), Some(0), Some(0)]);
    assert_eq!(told.update().zones, [], "nothing has changed");
}

#[test]
fn nobody_is_lost_because_this_machine_is_cut_off() {
    let mut told = Told::new(4);
    told.member("a", false, true);
    let state = |update: &FleetUpdate| update.nodes.first().map(|node| node.state);
    assert_eq!(state(&told.update()), Some(NodeState::Up));
    told.now += 100;
    let update = told.update_cut_off(Some(100));
    assert_eq!(state(&update), None);
    assert_eq!(update.fleet.unwrap().cut_off, Some(100));
    told.pass(14);
    assert_eq!(state(&told.update()), None);
    told.pass(1);
    assert_eq!(state(&told.update()), Some(NodeState::Lost));
    told.member("a", false, false);
    assert_eq!(state(&told.update()), Some(NodeState::Left));
}

fn claim(node: &str) -> Claim {
    Claim {
        holder: holder(node),
        intent: 1,
        fence: 1,
    }
}

fn ended_fate(node: &str, status: u32) -> Fate {
    Fate::Ended {
        claim: claim(node),
        returned: Returned {
            exit: Exit::Status(status),
            output: 0,
        },
    }
}

#[test]
fn a_job_is_counted_host_by_host_and_goes_when_nats_drops_it() {
    let mut told = Told::new(4);
    let key = KeyPair::new_user();
    let host = OrderedHost {
        name: "h".into(),
        destination: Destination::parse_hop("h").unwrap(),
        command: vec![],
    };
    let written = order::sign(
        &key,
        &told.view.charter,
        told.now,
        &vec![host; 4],
        JobTerms::default(),
    )
    .unwrap();
    let job = written.id;
    // Fates may be seen before their job.
    told.fate(&job, 0, Fate::Claimed(claim("a")));
    assert_eq!(told.update().jobs, []);
    told.put_bytes(&format!("job.{job}.order"), &written.order);
    let seen = told.update().jobs.remove(0);
    assert_eq!((seen.hosts, seen.running, seen.state()), (4, 1, "running"));
    told.fate(&job, 0, ended_fate("a", 0));
    told.fate(&job, 1, ended_fate("a", 3));
    let why = "not\x1b[m let".into();
    told.fate(&job, 2, Fate::NotStarted { why });
    told.fate(&job, 3, Fate::Unknown { claim: claim("b") });
    assert_eq!(told.view.nameless(), Some(job.clone()));
    assert_eq!(told.view.nameless(), None, "they are asked for once");
    let names = ["w0", "w1", "w2", "w3"].map(String::from);
    told.view.set_names(&job, names.to_vec());
    let seen = told.update().jobs.remove(0);
    let counts = [
        seen.running,
        seen.succeeded,
        seen.failed,
        seen.not_started,
        seen.unknown,
    ];
    assert_eq!((counts, seen.state()), ([0, 1, 1, 1, 1], "done"));
    let failures: Vec<_> = seen
        .failures
        .iter()
        .map(|(host, why)| format!("{host} {why}"))
        .collect();
    assert_eq!(failures[0], "w1 exit status 3");
    assert!(!failures[1].contains('\x1b') && failures[1].starts_with("w2 did not start: not"));
    assert_eq!(failures[2], "w3 may have started: b was lost");
    // The lost node comes back with the result.
    told.fate(&job, 3, ended_fate("b", 0));
    let seen = told.update().jobs.remove(0);
    assert_eq!((seen.succeeded, seen.unknown, seen.failures.len()), (2, 0, 2));
    told.pass(1000);
    assert_eq!(told.update().jobs_gone, [job.0]);
}

#[test]
fn only_the_newest_jobs_are_told_and_how_many_there_are_besides() {
    let mut told = Told::new(1);
    for number in 0..=MOST_JOBS {
        let job = told.view.job(&JobId(format!("{number:04}")));
        job.is_read = true;
        job.report.job = format!("{number:04}");
        job.report.at = number as u64;
    }
    let update = told.update();
    assert_eq!(update.jobs.len(), MOST_JOBS);
    assert!(update.jobs.iter().all(|job| job.job != "0000"));
    assert_eq!(update.fleet.unwrap().older_jobs, 1);
    told.view.jobs.remove(&JobId("0500".into()));
    let update = told.update();
    assert_eq!(update.jobs_gone, ["0500"]);
    assert_eq!(update.jobs[0].job, "0000", "there is room for it now");
}

#[test]
fn a_stream_is_what_its_nodes_say_that_are_there() {
    let mut told = Told::new(4);
    let key = KeyPair::new_user();
    let charter = told.view.charter.clone();
    let hosts = ["a", "b", "c", "d"].map(host);
    let terms = stream_terms(Some("logs.{host}"));
    let written = order::sign(&key, &charter, told.now, &hosts, terms).unwrap();
    let stream: StreamId = written.id;
    told.stream = stream.0.clone();
    let at = |what: &str| format!("{stream}.{what}");
    // Entries of a stream may be seen before its order.
    told.share("n1", 2, 0, 3);
    assert_eq!(told.update().streams, []);
    told.view
        .handle_stream_value(&at("order"), Some(&written.order), 9_995);
    let seen = told.update().streams.remove(0);
    assert_eq!(
        (seen.hosts, seen.running, seen.state()),
        (4, 0, "waiting"),
        "who is not there runs nothing"
    );
    assert_eq!(seen.subject.as_deref(), Some("logs.{host}"));
    for node in ["n1", "n2"] {
        told.member(node, false, true);
    }
    told.share("n2", 0, 1, 1);
    let seen = told.update().streams.remove(0);
    assert_eq!((seen.running, seen.refused, seen.restarts), (2, 1, 4));
    assert_eq!(seen.state(), "running");
    let nodes: Vec<_> = seen
        .nodes
        .iter()
        .map(|node| (&*node.name, node.running))
        .collect();
    assert_eq!(nodes, [("n1", 2), ("n2", 0)]);
    assert_eq!(seen.nodes[1].why.as_deref(), Some("not\\033[m let"));
    assert_eq!(told.update().streams, [], "nothing has changed");

    // A lost node runs nothing any more, but its restarts still count.
    told.pass(14);
    told.member("n2", false, true);
    told.pass(14);
    let seen = told.update().streams.remove(0);
    assert_eq!((seen.running, seen.refused, seen.restarts), (0, 1, 4));

    told.stream(&at("end.0"), &StreamEnd::Ended(Exit::Status(0)));
    told.stream(&at("end.1"), &StreamEnd::Ended(Exit::Status(3)));
    told.stream(&at("end.1"), &StreamEnd::Ended(Exit::Status(3)));
    let seen = told.update().streams.remove(0);
    assert_eq!((seen.ended, seen.failed, seen.state()), (2, 1, "waiting"));
    let cancel = order::sign_cancel::<StreamTerms>(&key, &charter, &stream).unwrap();
    let who = key.public_key();
    let job = JobId(stream.0.clone());
    let of_job = order::sign_cancel::<JobTerms>(&key, &charter, &job).unwrap();
    told.stream(&at(&format!("cancel.{who}")), &of_job);
    assert_eq!(told.update().streams, [], "a job's cancellation is another thing");
    told.stream(&at(&format!("cancel.{who}")), &cancel);
    assert_eq!(told.update().streams[0].state(), "cancelled");
    told.view.handle_stream_value(&at("order"), None, 9_995);
    assert_eq!(told.update().streams_gone, [""; 0], "it has not ended");
    for number in [2, 3] {
        told.stream(&at(&format!("end.{number}")), &StreamEnd::Cancelled);
    }
    assert_eq!(told.update().streams[0].state(), "ended");
    told.view.handle_stream_value(&at("order"), None, 9_995);
    assert_eq!(told.update().streams_gone, [stream.0]);
}
