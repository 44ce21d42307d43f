//! Whole fleets of real processes, to which things happen: nodes and NATS servers are killed and started again, nodes are
//! stopped for longer than their leases and go on, paths go dark. Each host keeps a ledger, by which all that is told of it
//! is judged. Each seed is one course of events.
//!
//! | variable | |
//! |---|---|
//! | `TRUNKLINE_FLEET_FAULTS=FROM-TO` | these seeds, 0-30 where it is not set |
//! | `TRUNKLINE_FLEET_TOGETHER=N` | how many courses at once |
//! | `TRUNKLINE_FLEET_TTL=SECONDS` | how long leases last; a third as long in `make test` as they do by default |

pub(crate) mod site;

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use trunkline_fleet::bucket::Bucket;
use trunkline_fleet::order::OrderedHost;
use trunkline_fleet::state::{Exit, Fate, JobId, Limits, Terms};
use trunkline_fleet::submitting::{JobEvent, SubmitError, cancel, follow, order_of, status, submit};
use trunkline_request::failure::Execution;
use trunkline_testkit::{Ended, LightServer};

use crate::fleet::job_terms;
use crate::nats::terms;
use site::{SHARDS, Site, draw};

/// The time limit for a course in all: none takes as long, unless something is never reported.
const PATIENCE: Duration = Duration::from_secs(300);

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

fn seeds() -> std::ops::Range<u64> {
    let asked = std::env::var("TRUNKLINE_FLEET_FAULTS").ok();
    match asked.as_deref().and_then(|text| text.split_once('-')) {
        Some((from, to)) => from.parse().unwrap()..to.parse().unwrap(),
        None => 0..30,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_nothing_runs_twice_and_each_fate_is_known_and_true() {
    let hosts = Arc::new(LightServer::start().unwrap());
    let together = variable("TRUNKLINE_FLEET_TOGETHER").unwrap_or(10);
    let ttl = Duration::from_secs(variable("TRUNKLINE_FLEET_TTL").unwrap_or(5));
    let places = Arc::new(Semaphore::new(together));
    let mut courses = JoinSet::new();
    for seed in seeds() {
        let (hosts, places) = (hosts.clone(), places.clone());
        courses.spawn(async move {
            let _place = places.acquire_owned().await.unwrap();
            Course::live(seed, &hosts, terms(ttl)).await
        });
    }
    let mut all = Tally::default();
    while let Some(course) = courses.join_next().await {
        match course {
            Ok(tally) => all.add(&tally),
            Err(error) => all.failed.push(format!("{error}")),
        }
    }
    println!("{all:#?}");
    assert!(all.failed.is_empty(), "{:#?}", all.failed);
    assert_eq!(
        (all.twice, all.invented, all.untrue, all.unknown_fates),
        (0, 0, 0, 0)
    );
    assert!(
        all.ended * 2 > all.hosts,
        "fewer than half of the hosts were executed"
    );
}

/// The processes whose environment names a directory.
fn those_of(directory: &Path) -> Vec<String> {
    let directory = directory.as_os_str().as_bytes();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let has = |process: &std::fs::DirEntry| {
        let variables = std::fs::read(process.path().join("environ")).unwrap_or_default();
        variables.windows(directory.len()).any(|part| part == directory)
    };
    let name = |process: std::fs::DirEntry| std::fs::read_to_string(process.path().join("comm")).ok();
    let names = processes.filter(has).filter_map(name);
    names.map(|name| name.trim().to_owned()).collect()
}

#[test]
fn a_run_that_is_killed_leaves_no_process_behind() {
    // Its own processes are known by where they put their files.
    let directory = tempfile::tempdir().unwrap();
    let mut run = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "faults::whatever_happens_nothing_runs_twice_and_each_fate_is_known_and_true",
        ])
        .env("TRUNKLINE_FLEET_FAULTS", "0-1")
        .env("TMPDIR", directory.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let wait_for = |is_so: &dyn Fn(&[String]) -> bool| {
        let begun = Instant::now();
        loop {
            let there = those_of(directory.path());
            if is_so(&there) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{there:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let all = ["nats-server", "trunkline-fleet", "trunklined"];
    wait_for(&|there| all.iter().all(|name| there.iter().any(|one| one == name)));
    run.kill().unwrap();
    run.wait().unwrap();
    wait_for(&<[String]>::is_empty);
}

/// The results of courses.
#[derive(Debug, Default)]
struct Tally {
    hosts: usize,
    /// By what was told of them.
    ended: usize,
    terminated: usize,
    did_not_start: usize,
    /// The reasons why they did not.
    reasons: BTreeMap<String, usize>,
    may_have_started: usize,
    /// Of those, the ones that their ledgers have.
    of_those_executed: usize,
    /// Fleets that froze, as they are to where NATS forgets what it had acknowledged, and hosts that had not ended by then.
    frozen: usize,
    freezes: Vec<String>,
    open_when_frozen: usize,
    /// A job of which it was not known whether it was submitted, and which was not.
    never_submitted: usize,
    /// The count that must be zero.
    twice: usize,
    invented: usize,
    untrue: usize,
    unknown_fates: usize,
    /// The longest time, and its course.
    longest_takeover: (Duration, String),
    failed: Vec<String>,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.hosts, other.hosts),
            (&mut self.ended, other.ended),
            (&mut self.terminated, other.terminated),
            (&mut self.did_not_start, other.did_not_start),
            (&mut self.may_have_started, other.may_have_started),
            (&mut self.of_those_executed, other.of_those_executed),
            (&mut self.frozen, other.frozen),
            (&mut self.open_when_frozen, other.open_when_frozen),
            (&mut self.never_submitted, other.never_submitted),
            (&mut self.twice, other.twice),
            (&mut self.invented, other.invented),
            (&mut self.untrue, other.untrue),
            (&mut self.unknown_fates, other.unknown_fates),
        ] {
            *sum += more;
        }
        for (why, hosts) in &other.reasons {
            *self.reasons.entry(why.clone()).or_default() += hosts;
        }
        self.longest_takeover =
            std::mem::take(&mut self.longest_takeover).max(other.longest_takeover.clone());
        self.freezes.extend(other.freezes.iter().cloned());
        self.failed.extend(other.failed.iter().cloned());
    }

    fn complain(&mut self, seed: u64, what: &str) {
        self.failed.push(format!("seed {seed}: {what}"));
    }
}

/// A job of a course.
struct Job {
    /// Distinguishes its commands in the hosts' ledgers.
    mark: String,
    hosts: Vec<OrderedHost>,
    /// `None` where it was never submitted.
    id: Option<JobId>,
    /// Whether it is certain that it was.
    is_certain: bool,
    told: Arc<Mutex<Told>>,
    listening: Option<JoinHandle<()>>,
}

/// The reports about a job's hosts, and their output.
#[derive(Debug, Clone, Default)]
struct Told {
    fates: BTreeMap<u32, Fate>,
    output: BTreeMap<u32, Vec<u8>>,
    incomplete: Vec<u32>,
}

struct Course {
    seed: u64,
    random: StdRng,
    site: Site,
    jobs: Vec<Job>,
    ttl: Duration,
    /// The faults that it met.
    faults: Vec<&'static str>,
    /// The event that it waits for.
    waits_for: &'static str,
}

/// The reason why a fleet starts nothing any more.
struct Frozen(String);

impl Course {
    async fn live(seed: u64, hosts: &LightServer, terms: Terms) -> Tally {
        let mut random = StdRng::seed_from_u64(seed);
        let site = Site::start(&mut random, hosts, terms).await;
        let mut course = Self {
            seed,
            random,
            site,
            jobs: Vec::new(),
            ttl: terms.ttl,
            faults: Vec::new(),
            waits_for: "",
        };
        let lived = tokio::time::timeout(PATIENCE, async {
            let takeover = course.go().await;
            if takeover.is_ok() {
                course.hear_all().await;
            }
            takeover
        });
        match lived.await {
            Ok(takeover) => course.judge(hosts, &takeover),
            Err(_) => course.hang().await,
        }
    }

    /// Says all that there is to know of one that does not end.
    async fn hang(self) -> Tally {
        let (servers, faults) = (&self.site.servers, &self.faults);
        let state = tokio::time::timeout(Duration::from_secs(10), status(&self.site.bucket)).await;
        let what = format!(
            "waits for {} after {PATIENCE:?}; {} servers, {faults:?}\n{state:?}\nthe nodes said:\n{}the servers said:\n{}",
            self.waits_for,
            servers.len(),
            self.site.nodes.iter().map(site::Node::log).collect::<String>(),
            servers.iter().map(crate::nats::Nats::log).collect::<String>()
        );
        let mut tally = Tally::default();
        tally.complain(self.seed, &what);
        tally
    }

    /// Waits until all is told of each job.
    async fn hear_all(&mut self) {
        for job in &mut self.jobs {
            self.waits_for = "word of whether a job was submitted";
            job.find(&self.site.bucket).await;
            self.waits_for = "the fates of a job's hosts";
            if let Some(listening) = &mut job.listening {
                listening.await.unwrap();
            }
            job.listening = None;
        }
    }

    /// Runs the course, and returns the time that the takeover took.
    async fn go(&mut self) -> Result<Duration, Frozen> {
        // Jobs that are there before all nodes are begin while shards move.
        if self.random.random_bool(0.8) {
            self.wait_until_settled().await?;
        }
        self.submit(16).await;
        for _ in 0..self.random.random_range(1..=4) {
            self.pause(50, 1_500).await;
            self.short_fault().await;
        }
        self.submit(10).await;
        if self.random.random_bool(0.3) {
            self.cancel().await;
        }
        self.wait_until_settled().await?;
        let takeover = self.long_fault().await?;
        self.wait_until_settled().await?;
        Ok(takeover)
    }

    async fn pause(&mut self, least: u64, most: u64) {
        tokio::time::sleep(Duration::from_millis(self.random.random_range(least..most))).await;
    }

    async fn submit(&mut self, hosts: u16) {
        let mark = format!("{}.{}", self.seed, self.jobs.len());
        let group = u8::try_from(self.seed % 250).unwrap();
        let random = &mut self.random;
        let hosts: Vec<OrderedHost> = (1..=hosts)
            .map(|number| {
                let longest = if random.random_range(0..6) == 0 {
                    6_000
                } else {
                    600
                };
                draw(group, number, random.random_range(0..longest), &mark)
            })
            .collect();
        let limits = Limits {
            at_once: [4, 12, u32::MAX][random.random_range(0..3)],
            ..Limits::default()
        };
        let (bucket, key) = (&self.site.bucket, &self.site.key);
        self.waits_for = "NATS to take a job";
        let submitted = loop {
            match submit(bucket, key, &hosts, job_terms(limits)).await {
                Ok(id) => break (id, true),
                Err(SubmitError::Unknown(id)) => break (id, false),
                // Certain that nothing has begun.
                Err(_) => tokio::time::sleep(Duration::from_millis(300)).await,
            }
        };
        let (id, is_certain) = submitted;
        let mut job = Job {
            mark,
            hosts,
            id: Some(id),
            is_certain,
            told: Arc::default(),
            listening: None,
        };
        if is_certain {
            job.listen(bucket);
        }
        self.jobs.push(job);
    }

    async fn cancel(&self) {
        let job = self.jobs.last().and_then(|job| job.id.as_ref()).unwrap();
        // Where NATS does not answer it goes on.
        let _ = cancel(&self.site.bucket, &self.site.key, job).await;
    }

    /// Something that passes before leases end, or may.
    async fn short_fault(&mut self) {
        let with_daemon = self.random.random_bool(0.5);
        let node = self.random.random_range(0..self.site.nodes.len());
        let server = self.random.random_range(0..self.site.servers.len());
        let kind = self.random.random_range(0..5);
        let words = [
            "a node is killed",
            "a node is stopped",
            "a node is cut off",
            "a server is killed",
            "all servers are killed",
        ];
        self.faults.push(words[kind]);
        match kind {
            0 => {
                self.site.nodes[node].kill(with_daemon);
                self.pause(10, 2_000).await;
                self.site.nodes[node].start();
            }
            1 => {
                self.site.nodes[node].stop(with_daemon);
                self.pause(100, 3_000).await;
                self.site.nodes[node].go_on();
            }
            2 => {
                self.site.nodes[node].cut_off(with_daemon);
                self.pause(100, 4_000).await;
                self.site.nodes[node].reconnect();
            }
            3 => {
                self.site.servers[server].kill();
                self.pause(10, 2_000).await;
                self.site.servers[server].up();
            }
            // A power cut of all servers.
            _ => {
                self.site.servers.iter_mut().for_each(crate::nats::Nats::kill);
                self.pause(10, 1_000).await;
                self.site.servers.iter_mut().for_each(crate::nats::Nats::up);
            }
        }
    }

    /// A node is away for longer than its leases last, and comes back; how long it took until others had all that it had.
    async fn long_fault(&mut self) -> Result<Duration, Frozen> {
        let node = self.random.random_range(0..self.site.nodes.len());
        let with_daemon = self.random.random_bool(0.5);
        self.submit(8).await;
        self.pause(10, 400).await;
        let kind = self.random.random_range(0..3);
        self.faults
            .push(["killed for long", "stopped for long", "cut off for long"][kind]);
        let name = self.site.nodes[node].name.clone();
        let lost = &mut self.site.nodes[node];
        match kind {
            0 => lost.kill(with_daemon),
            1 => lost.stop(with_daemon),
            _ => lost.cut_off(with_daemon),
        }
        let begun = Instant::now();
        self.waits_for = "the others to have all that one had";
        self.wait_for_shards(|shards| {
            let others = shards.iter().filter(|(node, _)| **node != name);
            others.map(|(_, shards)| shards).sum::<usize>() == usize::from(SHARDS)
        })
        .await?;
        let takeover = begun.elapsed();
        // What others have is theirs; what this one had begun, and does not know the end of its lease, goes on.
        let most = u64::try_from(self.ttl.as_millis() / 2).unwrap();
        self.pause(1, most).await;
        let lost = &mut self.site.nodes[node];
        match kind {
            0 => lost.start(),
            1 => lost.go_on(),
            _ => lost.reconnect(),
        }
        Ok(takeover)
    }

    /// Waits until all nodes are there and have their parts.
    async fn wait_until_settled(&mut self) -> Result<(), Frozen> {
        for node in &mut self.site.nodes {
            node.see_to();
        }
        self.waits_for = "all nodes to have their parts";
        let nodes = self.site.nodes.len();
        loop {
            let all = |shards: &BTreeMap<String, usize>| {
                let having = shards.values().filter(|shards| **shards > 0).count();
                having == nodes && shards.values().sum::<usize>() == usize::from(SHARDS)
            };
            let waiting = tokio::time::timeout(Duration::from_secs(1), self.wait_for_shards(all));
            if let Ok(waited) = waiting.await {
                return waited;
            }
            for node in &mut self.site.nodes {
                node.see_to();
            }
        }
    }

    async fn wait_for_shards(&self, are_so: impl Fn(&BTreeMap<String, usize>) -> bool) -> Result<(), Frozen> {
        loop {
            if let Ok(status) = status(&self.site.bucket).await {
                if let Some(why) = status.frozen {
                    return Err(Frozen(why));
                }
                let shards = status
                    .nodes
                    .into_iter()
                    .map(|(name, _, shards, _)| (name, shards));
                if are_so(&shards.collect()) {
                    return Ok(());
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn judge(mut self, hosts: &LightServer, lived: &Result<Duration, Frozen>) -> Tally {
        let mut tally = Tally::default();
        match lived {
            Ok(takeover) => {
                let (servers, faults) = (self.site.servers.len(), &self.faults);
                let course = format!("seed {}, {servers} servers, {faults:?}", self.seed);
                tally.longest_takeover = (*takeover, course);
            }
            Err(Frozen(why)) => {
                tally.frozen = 1;
                let (servers, faults) = (self.site.servers.len(), &self.faults);
                let freeze = format!("seed {}, {servers} servers, {faults:?}: {why}", self.seed);
                tally.freezes.push(freeze);
                // One server keeps what it has acknowledged.
                if servers == 1 {
                    tally.complain(self.seed, why);
                }
            }
        }
        // Nothing comes after this: whoever might still execute something has ended.
        let logs: String = self.site.nodes.iter().map(site::Node::log).collect();
        self.site.nodes.clear();
        let executions = hosts.executions();
        let mut ledger: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for execution in &executions {
            ledger.entry(&execution.command).or_default().push(execution);
        }
        for job in &self.jobs {
            if let Some(listening) = &job.listening {
                listening.abort();
            }
            let told = job.told.lock().unwrap().clone();
            for (number, host) in (0..).zip(&job.hosts) {
                let command = std::str::from_utf8(&host.command).unwrap();
                let executed = ledger.get(command).map(Vec::as_slice).unwrap_or_default();
                tally.judge(self.seed, job, number, &told, executed);
            }
        }
        if !tally.failed.is_empty() {
            tally.complain(self.seed, &format!("the nodes said:\n{logs}"));
        }
        tally
    }
}

impl Tally {
    fn judge(
        &mut self,
        seed: u64,
        job: &Job,
        host: u32,
        told: &Told,
        executed: &[&trunkline_testkit::Execution],
    ) {
        self.hosts += 1;
        let place = format!("job {}, host {host}", job.mark);
        if executed.len() > 1 {
            self.twice += 1;
            self.complain(seed, &format!("{place} was executed {} times", executed.len()));
        }
        let executed = executed.first();
        let Some(fate) = told.fates.get(&host) else {
            match (job.id.is_none(), executed) {
                _ if self.frozen > 0 => self.open_when_frozen += 1,
                (true, None) => self.never_submitted += 1,
                _ => {
                    self.unknown_fates += 1;
                    self.complain(seed, &format!("{place}: nothing is told of it, {executed:?}"));
                }
            }
            return;
        };
        match fate {
            Fate::Ended { returned, .. } => match (&returned.exit, executed) {
                (Exit::Status(status), Some(execution)) => {
                    self.ended += 1;
                    let output = told.output.get(&host).cloned().unwrap_or_default();
                    let is_whole = self.frozen == 0 && !told.incomplete.contains(&host);
                    if execution.end != Some(Ended::Status(*status))
                        || (is_whole && output != format!("{}\n", execution.number).into_bytes())
                    {
                        self.invented += 1;
                        self.complain(seed, &format!("{place}: {fate:?}, {execution:?}, {output:?}"));
                    }
                }
                (Exit::Signal(_), Some(execution)) if execution.end == Some(Ended::Terminated) => {
                    self.terminated += 1;
                }
                (
                    Exit::Failed {
                        execution: Execution::DidNotStart,
                        message,
                        ..
                    },
                    None,
                ) => {
                    self.did_not_start += 1;
                    let words = message.split(' ').filter(|word| !word.starts_with("127."));
                    let reason = words.collect::<Vec<_>>().join(" ");
                    *self.reasons.entry(reason).or_default() += 1;
                }
                (
                    Exit::Failed {
                        execution: Execution::MayHaveStarted,
                        ..
                    },
                    executed,
                ) => {
                    self.may_have_started += 1;
                    self.of_those_executed += usize::from(executed.is_some());
                }
                (exit, executed) => {
                    self.invented += 1;
                    self.complain(seed, &format!("{place}: {exit:?}, {executed:?}"));
                }
            },
            Fate::NotStarted { why } => {
                self.did_not_start += 1;
                *self.reasons.entry(why.clone()).or_default() += 1;
                if executed.is_some() {
                    self.untrue += 1;
                    self.complain(seed, &format!("{place} is said not to have started: {why}"));
                }
            }
            Fate::Unknown { .. } => {
                self.may_have_started += 1;
                self.of_those_executed += usize::from(executed.is_some());
            }
            Fate::Claimed(_) if self.frozen > 0 => self.open_when_frozen += 1,
            Fate::Claimed(claim) => {
                self.unknown_fates += 1;
                self.complain(
                    seed,
                    &format!("{place}: nobody says what became of it: {claim:?}"),
                );
            }
        }
    }
}

impl Job {
    /// Writes down what is told of it, from now until all is.
    fn listen(&mut self, bucket: &Bucket) {
        let (Some(id), bucket) = (self.id.clone(), bucket.clone()) else {
            return;
        };
        let all = self.told.clone();
        self.listening = Some(tokio::spawn(async move {
            loop {
                let (events, mut told) = mpsc::channel(64);
                let following = tokio::spawn({
                    let (bucket, id) = (bucket.clone(), id.clone());
                    async move { follow(&bucket, &id, events).await }
                });
                *all.lock().unwrap() = Told::default();
                while let Some(event) = told.recv().await {
                    let mut all = all.lock().unwrap();
                    match event {
                        JobEvent::Fate(host, fate) => drop(all.fates.insert(host, fate)),
                        JobEvent::Output(host, _, data) => all.output.entry(host).or_default().extend(data),
                        JobEvent::Incomplete(host, _) => all.incomplete.push(host),
                    }
                }
                if following.await.unwrap().is_ok() {
                    return;
                }
                // NATS did not answer at its beginning.
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }));
    }

    /// Whether it is there, where that was not certain; NATS answers by now.
    async fn find(&mut self, bucket: &Bucket) {
        while let Some(id) = self.id.clone().filter(|_| !self.is_certain) {
            match order_of(bucket, &id).await {
                Ok(_) => {
                    self.is_certain = true;
                    self.listen(bucket);
                }
                Err(SubmitError::NoJob(_)) => self.id = None,
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
    }
}
