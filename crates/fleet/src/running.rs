//! A node at work: connects the state machine with NATS, the log of intents, and the executor.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc as blocking};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::connection::State;
use async_nats::jetstream::kv::{self, Operation};
use futures_util::future::OptionFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::{Notify, OnceCell, mpsc};
use tokio::task::JoinHandle;
use trunkline_request::Backoff;
use trunkline_request::failure::{ErrorKind, Execution};

use crate::allow::{self, AllowSource, Allowed};
use crate::bucket::{Bucket, BucketError, Extent, decode, is_all, is_plain, random};
use crate::input::Input;
use crate::intents::{Change, IntentLog, LogError};
use crate::metrics::{Metrics, Observer};
use crate::order::job::{JobOrder, JobTerms, OrderedInput, plan_of_other_version};
use crate::order::{self, MOST_PARTS, OrderError, OrderedHost};
use crate::signed::Signed;
use crate::state::{
    Action, Entry, Exit, Holder, Intended, Intent, JobId, Key, Node, NodeSettings, Returned, Time, Token,
    Value, Written,
};
use crate::streaming::{self, Outlet, StreamEvent, StreamWork, Streaming};
use crate::waiting::{MOST_CANCELS, Waiting};

/// The interval of the state machine's ticks.
const TICK: Duration = Duration::from_millis(250);

/// The time for which a watch may not report a write.
const SILENT: Duration = Duration::from_secs(2);

/// The interval at which NATS is checked for having gone back.
const LOOK: Duration = Duration::from_secs(5);

/// The pauses before a host is tried again.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// A command for a host.
#[derive(Debug, Clone)]
pub struct Work {
    pub job: JobId,
    /// The requester: a public nkey.
    pub submitter: String,
    /// The host, and the command.
    pub host: OrderedHost,
    /// The time limit.
    pub limit: Option<Duration>,
    /// The input, if any.
    pub input: Option<Arc<Input>>,
    /// Notified when the command must end.
    pub cancelled: Arc<Notify>,
    /// The target of its output.
    pub output: OutputSink,
}

/// An executor of commands.
pub trait Executor: Send + Sync + 'static {
    /// Executes a command once, and returns its exit.
    fn execute(&self, work: Work) -> Pin<Box<dyn Future<Output = Exit> + Send>>;
}

/// A stream of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The target of a command's output.
#[derive(Debug, Clone)]
pub struct OutputSink(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Job(JobOutput),
    Stream(Outlet),
}

impl OutputSink {
    /// Sends output, and waits until NATS has it. If NATS does not accept a job's output, it is lost, and followers are
    /// told; a stream waits.
    pub async fn write(&self, stream: Stream, data: &[u8]) {
        match &self.0 {
            Kind::Job(output) => output.write(stream, data).await,
            Kind::Stream(outlet) => match stream {
                Stream::Stdout => outlet.output(data).await,
                Stream::Stderr => outlet.error_output(data).await,
            },
        }
    }
}

/// The target of a job's output of one host.
#[derive(Debug, Clone)]
struct JobOutput {
    bucket: Bucket,
    subject: String,
    /// The base of message ids, by which NATS discards duplicates.
    name: String,
    sent: Arc<Mutex<u64>>,
    metrics: Arc<Metrics>,
}

impl JobOutput {
    async fn write(&self, stream: Stream, data: &[u8]) {
        for piece in data.chunks(streaming::LONGEST_PIECE) {
            let number = {
                let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
                *sent += 1;
                *sent
            };
            let mut headers = HeaderMap::new();
            headers.insert("Nats-Msg-Id", format!("{}.{number}", self.name));
            let stream = match stream {
                Stream::Stdout => 1,
                Stream::Stderr => 2,
            };
            let payload = [&[stream], piece].concat();
            let jetstream = &self.bucket.jetstream;
            let sending = jetstream.publish_with_headers(self.subject.clone(), headers, payload.into());
            let sent = match sending.await {
                Ok(acknowledged) => acknowledged.await.map(|_| ()).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            self.metrics.output(piece.len(), sent.is_ok());
            if let Err(error) = sent {
                tracing::warn!("output for {} is lost: {error}", self.subject);
            }
        }
    }

    fn count(&self) -> u64 {
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The properties and rights of a node.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// Its name: letters, digits, `-` and `_`.
    pub name: String,
    /// Its site label.
    pub site: Option<String>,
    /// The number of hosts on which it works at the same time.
    pub at_once: usize,
    /// The directory of its log of intents.
    pub directory: PathBuf,
    /// Its allow list.
    pub allow: Arc<dyn AllowSource>,
}

/// An instruction to a running node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instruction {
    /// Takes no more hosts, gives away its own, and finishes running commands.
    Drain,
    /// The same, then gives everything back and ends.
    Leave,
    /// Gives everything back and ends, even if commands are running.
    LeaveNow,
}

/// The reason why a node ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// NATS failed.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// Writing to the disk failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Reading from the disk failed.
    #[error("the log of intents cannot be read: {0}; without it nothing is run for the fleet")]
    Intents(#[from] rusqlite::Error),
    /// Its name cannot be used in keys.
    #[error("{0:?} cannot be a node's name: use letters, digits, - and _")]
    Name(String),
    /// The fleet was replaced by another.
    #[error(
        "another fleet has been made in the place of this one (`trunkline fleet init --anew`), and this node has ended with \
         what it ran; start it again to join the new one"
    )]
    Anew,
}

enum Event {
    Written(Token, Written),
    Intended(Vec<(Intent, Intended)>),
    Executed(Intent, Returned),
    /// The bucket's extent, and the highest revision seen when it was requested.
    Extent(Extent, u64),
    Anew,
    Stream(StreamEvent),
}

/// Runs a node until it is told to leave.
///
/// # Errors
/// It cannot start. Later problems are waited out, and reported in its member entry.
pub async fn run(
    bucket: Bucket,
    options: NodeOptions,
    executor: Arc<dyn Executor>,
    told: mpsc::Receiver<Instruction>,
) -> Result<(), NodeError> {
    run_counted(bucket, options, executor, told, Arc::default()).await
}

/// Runs a node like [`run`], and counts its work in `metrics`.
///
/// # Errors
/// As for [`run`].
pub async fn run_counted(
    bucket: Bucket,
    options: NodeOptions,
    executor: Arc<dyn Executor>,
    mut told: mpsc::Receiver<Instruction>,
    metrics: Arc<Metrics>,
) -> Result<(), NodeError> {
    if !is_plain(&options.name) || options.name.len() > 64 {
        return Err(NodeError::Name(options.name));
    }
    let (mut node, log) = begin(&bucket, &options).await?;
    let (events, mut happened) = mpsc::unbounded_channel();
    let mut running = Running::new(&bucket, options, executor, events, log, metrics);
    let mut watch = watch(&bucket).await?;
    // For an empty bucket the watch reports nothing.
    let extent = bucket.extent().await?;
    if extent.entries == 0 {
        node.handle_synced();
    }
    running.moment = extent.last;
    let mut streams = streaming::watch(&bucket).await?;
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut looks = tokio::time::interval(LOOK);
    let mut tellings = tokio::time::interval(streaming::TELLING);
    let (mut is_leaving, mut is_at_once, mut trouble, mut anew) = (false, false, None, None);
    loop {
        tokio::select! {
            entry = watch.next(), if anew.is_none() => match entry {
                Some(Ok(entry)) => running.handle_entry(&mut node, &entry),
                Some(Err(error)) => tracing::warn!("watching the fleet: {error}"),
                None => watch_anew(&mut anew, &bucket),
            },
            entry = streams.next(), if anew.is_none() => match entry {
                Some(Ok(entry)) => running.stream_entry(&mut node, &entry),
                Some(Err(error)) => tracing::warn!("watching the fleet's streams: {error}"),
                None => watch_anew(&mut anew, &bucket),
            },
            Some(begun) = OptionFuture::from(anew.as_mut()) => {
                anew = None;
                if let Ok(begun) = begun {
                    (watch, streams) = begun;
                }
            }
            Some(event) = happened.recv() => running.event(&mut node, event),
            Some(order) = told.recv() => match order {
                Instruction::Drain => node.drain(now()),
                Instruction::Leave => {
                    node.drain(now());
                    is_leaving = true;
                }
                Instruction::LeaveNow => {
                    is_leaving = true;
                    is_at_once = true;
                }
            },
            _ = ticks.tick() => {
                let connects = bucket.client.statistics().connects.load(Ordering::Relaxed);
                if running.progress.has_stopped(now(), connects) {
                    watch_anew(&mut anew, &bucket);
                }
                running.judge(&mut node);
                node.handle_tick(now());
                let is_connected = bucket.client.connection_state() == State::Connected;
                running.observer.look(now(), &node, is_connected);
            }
            _ = tellings.tick() => running.streaming.tell_shares(&node),
            _ = looks.tick() => {
                running.look(&node);
                running.tidy();
                running.streaming.tidy(now(), &node);
                let _ = running.disk.send(Change::Highest(node.highest()));
            }
        }
        // Events that have arrived meanwhile are handled together, so that the cost of a decision is shared.
        while let Ok(event) = happened.try_recv() {
            running.event(&mut node, event);
        }
        while let Some(Some(Ok(entry))) = watch.next().now_or_never() {
            running.handle_entry(&mut node, &entry);
        }
        if running.is_anew {
            return Err(NodeError::Anew);
        }
        tell_of_trouble(&mut trouble, &node);
        let is_over = is_leaving && (is_at_once || node.may_leave());
        if is_over {
            node.leave(now());
        }
        let mut writes = Vec::new();
        while let Some(action) = node.poll_action(now()) {
            running.observer.acts(now(), &node, &action);
            let highest = node.highest();
            writes.extend(running.act(action, highest));
        }
        if is_over {
            let _ =
                tokio::time::timeout(Duration::from_secs(3), futures_util::future::join_all(writes)).await;
            return Ok(());
        }
    }
}

/// Returns the node's part in streams, whose commands are executed like those of jobs.
fn streaming(
    bucket: &Bucket,
    options: &NodeOptions,
    executor: &Arc<dyn Executor>,
    events: &mpsc::UnboundedSender<Event>,
) -> Streaming {
    let (executor, events) = (executor.clone(), events.clone());
    let execute = move |work: StreamWork| {
        executor.execute(Work {
            job: JobId(work.stream.0),
            submitter: work.submitter,
            host: work.host,
            limit: None,
            input: None,
            cancelled: work.cancelled,
            output: OutputSink(Kind::Stream(work.outlet)),
        })
    };
    let (name, allow) = (options.name.clone(), options.allow.clone());
    let tell = move |event| drop(events.send(Event::Stream(event)));
    Streaming::new(bucket.clone(), name, allow, Arc::new(execute), Arc::new(tell))
}

/// Returns a node with the memory in its log.
async fn begin(bucket: &Bucket, options: &NodeOptions) -> Result<(Node, IntentLog), NodeError> {
    let log = IntentLog::open(&options.directory, bucket.charter.id, bucket.charter.keep)?;
    let mut node = Node::new(
        NodeSettings {
            me: Holder {
                node: options.name.clone(),
                incarnation: random(),
            },
            site: options.site.clone(),
            zones: bucket.charter.zones.clone(),
            at_once: options.at_once,
            version: env!("CARGO_PKG_VERSION").into(),
            terms: bucket.charter.terms,
            keep: bucket.charter.keep,
        },
        log.open_intents()?,
    );
    let highest = log.highest();
    let extent = bucket.extent().await?;
    node.remember_highest(highest);
    node.handle_last_sequence(now(), extent.last, highest);
    Ok((node, log))
}

async fn watch(bucket: &Bucket) -> Result<kv::Watch, BucketError> {
    let watch = bucket.state.watch_with_history(">").await;
    watch.map_err(|error| BucketError::Nats(error.to_string()))
}

/// Restarts the watches in a task, while the node goes on with its work.
fn watch_anew(under_way: &mut Option<JoinHandle<(kv::Watch, kv::Watch)>>, bucket: &Bucket) {
    under_way.get_or_insert_with(|| {
        let bucket = bucket.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(TICK).await;
                match tokio::try_join!(watch(&bucket), streaming::watch(&bucket)) {
                    Ok(begun) => return begun,
                    Err(error) => tracing::warn!("watching the fleet: {error}"),
                }
            }
        })
    });
}

/// Returns the time by a clock that cannot be set and that runs while the machine sleeps.
pub(crate) fn now() -> Time {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or_default(),
        u32::try_from(now.tv_nsec).unwrap_or_default(),
    )
}

/// Starts the thread with the log. Changes that wait together are synced together.
fn keep_log(mut log: IntentLog, events: mpsc::UnboundedSender<Event>) -> blocking::Sender<Change> {
    let (sender, work) = blocking::channel::<Change>();
    std::thread::spawn(move || {
        while let Ok(first) = work.recv() {
            let changes: Vec<Change> = std::iter::once(first).chain(work.try_iter()).collect();
            let intended = log.write(&changes);
            let intents = changes.into_iter().filter_map(|change| match change {
                Change::Intend(intent) => Some(intent),
                _ => None,
            });
            let intended: Vec<_> = intents.zip(intended).collect();
            if !intended.is_empty() {
                let _ = events.send(Event::Intended(intended));
            }
        }
    });
    sender
}

/// A job that has been read, maybe in part.
struct Reading {
    since: Time,
    order: Option<JobOrder>,
    parts: HashMap<usize, Vec<u8>>,
    hosts: Option<Arc<Vec<OrderedHost>>>,
    /// The keys that have signed its cancellation, including those without permission: the order or another allow list
    /// may come later.
    cancels: BTreeMap<String, Signed>,
    /// The commands' input, once it was needed here.
    input: Arc<OnceCell<Arc<Input>>>,
}

/// The cancellation of a command.
#[derive(Debug, Default)]
struct Cancellation {
    is_told: AtomicBool,
    told: Arc<Notify>,
}

struct Running {
    bucket: Bucket,
    options: NodeOptions,
    /// The allow list at the last judgement of jobs.
    allowed: Allowed,
    /// True if another fleet has replaced this one.
    is_anew: bool,
    executor: Arc<dyn Executor>,
    events: mpsc::UnboundedSender<Event>,
    disk: blocking::Sender<Change>,
    streaming: Streaming,
    jobs: HashMap<JobId, Reading>,
    /// The incomplete ones.
    waiting: Waiting<JobId>,
    cancels: HashMap<(JobId, u32), Arc<Cancellation>>,
    observer: Observer,
    progress: Progress,
    /// The bucket's last sequence number when the watch started.
    moment: u64,
}

/// Detects watches that have stopped reporting. After NATS was away, its client only notices a missing heartbeat 10 s
/// later. Since other nodes' leases last from when their renewal is *seen*, a node that is lost then would be replaced
/// so much later.
#[derive(Debug, Default)]
struct Progress {
    /// The number of connections when the watches started.
    connects: Option<u64>,
    /// The last revision reported.
    told: u64,
    /// The last revision that this node has written, by NATS's answer.
    written: u64,
    /// The time since when a written revision is not reported.
    silent: Option<Time>,
}

impl Progress {
    fn note_revision(&mut self, revision: u64) {
        self.told = self.told.max(revision);
        self.silent = None;
    }

    fn handle_write(&mut self, written: &Written) {
        if let Written::Done(revision) = written {
            self.written = self.written.max(*revision);
        }
    }

    /// Returns true if the watches must be restarted. Allows them as much time again before the next restart.
    fn has_stopped(&mut self, now: Time, connects: u64) -> bool {
        let is_reconnected = self
            .connects
            .replace(connects)
            .is_some_and(|before| before != connects);
        let is_silent = self.told < self.written && now >= *self.silent.get_or_insert(now) + SILENT;
        if is_reconnected || is_silent || self.told >= self.written {
            self.silent = None;
        }
        is_reconnected || is_silent
    }
}

impl Running {
    fn new(
        bucket: &Bucket,
        options: NodeOptions,
        executor: Arc<dyn Executor>,
        events: mpsc::UnboundedSender<Event>,
        log: IntentLog,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            allowed: options.allow.current(),
            is_anew: false,
            bucket: bucket.clone(),
            disk: keep_log(log, events.clone()),
            streaming: streaming(bucket, &options, &executor, &events),
            options,
            executor,
            events,
            jobs: HashMap::new(),
            waiting: Waiting::default(),
            cancels: HashMap::new(),
            observer: Observer::new(metrics, bucket.client.statistics()),
            progress: Progress::default(),
            moment: u64::MAX,
        }
    }

    /// Handles an entry. The last initial one completes the state.
    fn handle_entry(&mut self, node: &mut Node, entry: &kv::Entry) {
        self.progress.note_revision(entry.revision);
        self.entry(node, entry);
        if is_all(entry, self.moment) {
            node.handle_synced();
        }
    }

    fn entry(&mut self, node: &mut Node, entry: &kv::Entry) {
        if let Ok(key) = entry.key.parse::<Key>() {
            let value = match entry.operation {
                Operation::Put => decode(&entry.value).ok(),
                Operation::Delete | Operation::Purge => None,
            };
            let revision = entry.revision;
            // The signer is checked first.
            if let (Key::Cancel(job, who), Some(Value::Cancel(cancel))) = (&key, &value) {
                self.cancel(node, job, who, cancel);
            }
            let value = value.filter(|value| !matches!(value, Value::Cancel(_)));
            return node.handle_entry(now(), Entry { key, revision, value });
        }
        let mut words = entry.key.split('.');
        let (Some("job"), Some(job), Some(what), part) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return;
        };
        let job = JobId(job.to_owned());
        if node.is_done(&job) {
            return;
        }
        if entry.operation != Operation::Put {
            return;
        }
        match (what, part.and_then(|part| part.parse().ok())) {
            ("order", None) => {
                let got = u64::try_from(entry.created.unix_timestamp()).unwrap_or_default();
                match order::read::<JobTerms>(&self.bucket.charter, &job, &entry.value, got) {
                    // A job's order never changes.
                    Ok(_) if self.reading(&job).order.is_some() => return,
                    Ok(order) => {
                        let keep = self.bucket.charter.keep;
                        if let Err(error) = order.check_time(keep, order::seconds_since_1970()) {
                            tracing::warn!("job {job}: {error}");
                            return;
                        }
                        self.reading(&job).order = Some(order);
                        self.wait_for(&job, entry.value.len());
                        self.judge_cancels(node, &job);
                    }
                    Err(error) => {
                        tracing::warn!("job {job}: {error}");
                        if let OrderError::Protocol { hosts, .. } = &error {
                            let (zones, why) = (&self.bucket.charter.zones, error.to_string());
                            let plan = plan_of_other_version(&job, *hosts, zones, &why);
                            plan.into_iter()
                                .for_each(|plan| node.handle_job(now(), job.clone(), plan));
                        }
                        return;
                    }
                }
            }
            ("hosts", Some(part)) if part < MOST_PARTS => {
                let reading = self.reading(&job);
                if reading.hosts.is_some() {
                    return;
                }
                if let Some(before) = reading.parts.insert(part, entry.value.to_vec()) {
                    self.waiting.replace(&job, before.len());
                }
                self.wait_for(&job, entry.value.len());
            }
            _ => return,
        }
        self.plan(node, job);
    }

    fn reading(&mut self, job: &JobId) -> &mut Reading {
        let reading = self.jobs.entry(job.clone());
        reading.or_insert_with(|| Reading {
            since: now(),
            order: None,
            parts: HashMap::new(),
            hosts: None,
            cancels: BTreeMap::new(),
            input: Arc::default(),
        })
    }

    /// Counts bytes that are kept of an incomplete job. Older ones may be dropped for it.
    fn wait_for(&mut self, job: &JobId, bytes: usize) {
        if self.jobs.get(job).is_some_and(|reading| reading.hosts.is_some()) {
            return;
        }
        for job in self.waiting.add(job, bytes) {
            self.jobs.remove(&job);
            tracing::warn!(
                "what there was of job {job} is let go of: too much waits for the rest of its job"
            );
        }
    }

    /// Handles a cancellation. Without permission it is remembered: the order may come later, and the allow list may
    /// change.
    fn cancel(&mut self, node: &mut Node, job: &JobId, who: &str, cancel: &Signed) {
        if node.is_done(job) {
            return;
        }
        if !order::is_cancel::<JobTerms>(&self.bucket.charter, job, who, cancel) {
            return tracing::warn!("job {job}: {who} has not signed that it is to end");
        }
        let is_let = self.lets_cancel(who);
        let reading = self.reading(job);
        let is_own = reading.order.as_ref().map(|order| order.submitter == who);
        let is_known = reading.cancels.contains_key(who);
        if !is_known && (is_own == Some(true) || is_let || reading.cancels.len() < MOST_CANCELS) {
            reading.cancels.insert(who.to_owned(), cancel.clone());
            self.wait_for(job, cancel.text.len() + cancel.signature.len());
        }
        if is_own == Some(false) && !is_let && !node.is_settled(job) {
            tracing::warn!(
                "job {job} does not end for {who}, who has not submitted it and is not in `cancel` here"
            );
        }
        self.judge_cancels(node, job);
    }

    /// Returns true if the allow list permits this key to cancel other submitters' jobs.
    fn lets_cancel(&self, who: &str) -> bool {
        self.allowed.as_ref().is_ok_and(|list| list.lets_cancel(who))
    }

    /// Cancels a job if one of the signers has permission.
    fn judge_cancels(&self, node: &mut Node, job: &JobId) {
        let Some(reading) = self.jobs.get(job) else { return };
        let Some(order) = &reading.order else { return };
        let may = |who: &str| order.submitter == who || self.lets_cancel(who);
        if let Some((who, cancel)) = reading.cancels.iter().find(|(who, _)| may(who)) {
            let entry = Entry {
                key: Key::Cancel(job.clone(), who.clone()),
                revision: 0,
                value: Some(Value::Cancel(cancel.clone())),
            };
            node.handle_entry(now(), entry);
        }
    }

    /// Judges all jobs again if the allow list has changed.
    fn judge(&mut self, node: &mut Node) {
        let allowed = self.options.allow.current();
        if allowed == self.allowed {
            return;
        }
        match &allowed {
            Ok(_) => tracing::warn!("the allow list has changed, and holds as it is now"),
            Err(why) => tracing::warn!("nothing is allowed: the allow list cannot be read: {why}"),
        }
        self.allowed = allowed;
        for (job, reading) in &self.jobs {
            let (Some(order), Some(hosts)) = (&reading.order, &reading.hosts) else {
                continue;
            };
            let refused = hosts.iter().map(|host| {
                let (name, submitter) = (&self.options.name, &order.submitter);
                allow::refuses(&self.allowed, name, submitter, &host.destination, None)
            });
            node.handle_judged(job, refused.collect());
            self.judge_cancels(node, job);
        }
        self.streaming.judge(node, &self.allowed);
    }

    fn stream_entry(&mut self, node: &mut Node, entry: &kv::Entry) {
        self.judge(node);
        self.streaming.entry(now(), node, entry, &self.allowed);
    }

    /// Drops data that never became a job.
    fn tidy(&mut self) {
        let keep = self.bucket.charter.keep;
        let waiting = &mut self.waiting;
        self.jobs.retain(|job, reading| {
            let is_kept = reading.hosts.is_some() || keep.is_zero() || now() < reading.since + keep;
            if !is_kept {
                waiting.remove(job);
            }
            is_kept
        });
    }

    /// Passes a complete job to the node.
    fn plan(&mut self, node: &mut Node, job: JobId) {
        self.judge(node);
        let Some(reading) = self.jobs.get_mut(&job) else {
            return;
        };
        let Some(order) = &reading.order else { return };
        let parts: Option<Vec<_>> = (0..order.parts())
            .map(|part| reading.parts.get(&part).cloned())
            .collect();
        let Some(parts) = parts.filter(|_| reading.hosts.is_none()) else {
            return;
        };
        match order.read_hosts(&parts) {
            Ok(hosts) => {
                let zones = &self.bucket.charter.zones;
                let plan = order.plan(&hosts, zones, &self.options.name, &self.allowed);
                reading.hosts = Some(Arc::new(hosts));
                reading.parts.clear();
                self.waiting.remove(&job);
                node.handle_job(now(), job, plan);
            }
            Err(error) => tracing::warn!("job {job}: {error}"),
        }
    }

    fn event(&mut self, node: &mut Node, event: Event) {
        match event {
            Event::Written(token, written) => {
                self.progress.handle_write(&written);
                self.observer.note_write(now(), token, &written);
                node.handle_written(now(), token, written);
            }
            Event::Intended(all) => {
                for (intent, intended) in all {
                    node.handle_intended(now(), &intent, intended);
                }
            }
            Event::Executed(intent, returned) => {
                self.observer.note_end(now(), &intent);
                self.cancels.remove(&(intent.job.clone(), intent.host));
                node.handle_executed(now(), intent, returned);
            }
            Event::Extent(extent, before) => {
                node.handle_last_sequence(now(), extent.last, before);
                if node.frozen().is_none() {
                    let _ = self.disk.send(Change::Drop(extent.first));
                }
            }
            Event::Anew => self.is_anew = true,
            Event::Stream(event) => self.streaming.event(now(), node, event),
        }
    }

    /// Asks NATS for its extent, to notice if it has gone back.
    fn look(&self, node: &Node) {
        let (bucket, events, before) = (self.bucket.clone(), self.events.clone(), node.highest());
        tokio::spawn(async move {
            let Ok(extent) = bucket.extent().await else {
                return;
            };
            // Asked after the extent, to know whether that is this fleet's or its replacement's.
            let _ = match bucket.is_same().await {
                Ok(true) => events.send(Event::Extent(extent, before)),
                Ok(false) => events.send(Event::Anew),
                Err(_) => Ok(()),
            };
        });
    }

    fn act(&mut self, action: Action, highest: u64) -> Option<tokio::task::JoinHandle<()>> {
        match action {
            Action::Write {
                token,
                key,
                expected,
                value,
            } => {
                let (bucket, events) = (self.bucket.clone(), self.events.clone());
                return Some(tokio::spawn(async move {
                    // A process that was stopped must not freeze a fleet that has replaced its own.
                    if key == Key::Frozen {
                        match bucket.is_same().await {
                            Ok(true) => {}
                            Ok(false) => return drop(events.send(Event::Anew)),
                            Err(_) => return drop(events.send(Event::Written(token, Written::Lost))),
                        }
                    }
                    let written = bucket.write(&key, expected, &value).await;
                    let _ = events.send(Event::Written(token, written));
                }));
            }
            Action::Intend(intent) => {
                let _ = self.disk.send(Change::Intend(intent));
            }
            Action::Note(intent, returned) => {
                let _ = self.disk.send(Change::Note(intent, returned));
            }
            Action::Close(intent) => {
                let _ = self.disk.send(Change::Close(intent, highest));
            }
            Action::Cancel(intent) => {
                if let Some(cancel) = self.cancels.get(&(intent.job, intent.host)) {
                    cancel.is_told.store(true, Ordering::Relaxed);
                    cancel.told.notify_one();
                }
            }
            Action::Execute(intent) => self.execute(intent),
            Action::Forget(job) => {
                self.waiting.remove(&job);
                self.jobs.remove(&job);
            }
            Action::Stream(action) => self.streaming.act(action),
        }
        None
    }

    fn execute(&mut self, intent: Intent) {
        let reading = self.jobs.get(&intent.job);
        let host = reading.and_then(|reading| {
            let hosts = reading.hosts.as_ref()?;
            let host = hosts.get(usize::try_from(intent.host).ok()?)?;
            Some((reading.order.as_ref()?, host.clone(), reading.input.clone()))
        });
        // Only planned hosts are claimed, and a plan has its hosts.
        let Some((order, host, input)) = host else {
            return tracing::error!("a claim without a job: {}", intent.job);
        };
        let cancelled = Arc::new(Cancellation::default());
        self.cancels
            .insert((intent.job.clone(), intent.host), cancelled.clone());
        let output = JobOutput {
            bucket: self.bucket.clone(),
            subject: self
                .bucket
                .output_subject(&intent.job.0, &intent.host.to_string()),
            name: format!(
                "{}.{}.{}",
                intent.job, intent.host, intent.claim.holder.incarnation
            ),
            sent: Arc::default(),
            metrics: self.observer.metrics().clone(),
        };
        self.observer.note_start(now(), &intent, order.at);
        let execution = HostExecution {
            executor: self.executor.clone(),
            options: self.options.clone(),
            bucket: self.bucket.clone(),
            work: Work {
                job: intent.job.clone(),
                submitter: order.submitter.clone(),
                host,
                limit: order.terms.limit,
                input: None,
                cancelled: cancelled.told.clone(),
                output: OutputSink(Kind::Job(output.clone())),
            },
            input: order.terms.input.clone().map(|wanted| (wanted, input)),
            retries: order.terms.retries,
            cancelled,
        };
        let events = self.events.clone();
        tokio::spawn(async move {
            let exit = execution.run().await;
            let output = output.count();
            let _ = events.send(Event::Executed(intent, Returned { exit, output }));
        });
    }
}

/// The execution of a claimed host. Nobody else may execute its command.
struct HostExecution {
    executor: Arc<dyn Executor>,
    options: NodeOptions,
    bucket: Bucket,
    /// Without the input.
    work: Work,
    input: Option<(OrderedInput, Arc<OnceCell<Arc<Input>>>)>,
    retries: u32,
    cancelled: Arc<Cancellation>,
}

impl HostExecution {
    /// Executes the command, and retries as the job says while nothing can have run and the cause may be temporary.
    async fn run(self) -> Exit {
        let mut tries = 0;
        loop {
            let exit = self.attempt().await.unwrap_or_else(|exit| exit);
            let may_pass = matches!(&exit, Exit::Failed { kind, execution: Execution::DidNotStart, .. } if kind.may_pass());
            if !may_pass || tries >= self.retries || self.cancelled.is_told.load(Ordering::Relaxed) {
                return exit;
            }
            tries += 1;
            tokio::select! {
                () = tokio::time::sleep(RETRY.pause_after(tries)) => {}
                () = self.cancelled.told.notified() => return exit,
            }
        }
    }

    /// # Errors
    /// The reason why the command was not started.
    async fn attempt(&self) -> Result<Exit, Exit> {
        let refused = || {
            let (allowed, work) = (self.options.allow.current(), &self.work);
            allow::refuses(
                &allowed,
                &self.options.name,
                &work.submitter,
                &work.host.destination,
                None,
            )
        };
        if let Some(why) = refused() {
            return Err(not_started(ErrorKind::Configuration, why));
        }
        let mut work = self.work.clone();
        if let Some((wanted, fetched)) = &self.input {
            let fetch = async || {
                Input::fetch(&self.bucket, wanted, &self.options.directory)
                    .await
                    .map(Arc::new)
            };
            let fetched = tokio::select! {
                fetched = fetched.get_or_try_init(fetch) => fetched,
                () = self.cancelled.told.notified() => {
                    return Err(not_started(ErrorKind::Local, "the job was cancelled".into()));
                }
            };
            let input = fetched.map_err(|error| not_started(error.kind(), error.to_string()))?;
            work.input = Some(input.clone());
            // Fetching may have taken a while.
            if let Some(why) = refused() {
                return Err(not_started(ErrorKind::Configuration, why));
            }
        }
        Ok(self.executor.execute(work).await)
    }
}

fn not_started(kind: ErrorKind, message: String) -> Exit {
    Exit::Failed {
        kind,
        message,
        execution: Execution::DidNotStart,
    }
}

/// Logs a change of the reason why nothing is started.
fn tell_of_trouble(told: &mut Option<String>, node: &Node) {
    let trouble = node.trouble(now());
    match &trouble {
        _ if *told == trouble => return,
        Some(why) if let Some(rest) = node.name_is_free_in(now()) => {
            let rest = rest.as_secs() + 1;
            tracing::warn!("nothing is started for {rest} s, until its lease has ended: {why}");
        }
        Some(why) => tracing::warn!("nothing is started: {why}"),
        None => tracing::warn!("hosts are taken again"),
    }
    *told = trouble;
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Time {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn it_is_watched_anew_after_a_lost_connection_and_where_nothing_is_told_of_what_was_written() {
        let mut progress = Progress::default();
        assert!(!progress.has_stopped(ms(0), 1));
        assert!(progress.has_stopped(ms(250), 2));
        assert!(!progress.has_stopped(ms(500), 2));

        progress.handle_write(&Written::Done(7));
        assert!(!progress.has_stopped(ms(1_000), 2));
        // It is behind, but continues.
        progress.note_revision(5);
        assert!(!progress.has_stopped(ms(2_900), 2));
        assert!(!progress.has_stopped(ms(4_800), 2));
        assert!(progress.has_stopped(ms(4_900), 2));
        assert!(!progress.has_stopped(ms(5_000), 2));
        progress.note_revision(7);
        assert!(!progress.has_stopped(ms(9_000), 2));
    }
}
