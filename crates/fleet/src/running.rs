//! A node at work: the state machine, NATS, the log of intents, and whoever executes.

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

/// The interval at which the state machine is told the time.
const TICK: Duration = Duration::from_millis(250);

/// The time that a watch may report nothing of a write.
const SILENT: Duration = Duration::from_secs(2);

/// The interval at which NATS is asked whether it has gone back.
const LOOK: Duration = Duration::from_secs(5);

/// The pauses before a host is tried again.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// A command for a host.
#[derive(Debug, Clone)]
pub struct Work {
    /// The job.
    pub job: JobId,
    /// The requester: a public nkey.
    pub submitter: String,
    /// The host, and the command.
    pub host: OrderedHost,
    /// The time limit.
    pub limit: Option<Duration>,
    /// The input, if there is any.
    pub input: Option<Arc<Input>>,
    /// Tells that it is to end.
    pub cancelled: Arc<Notify>,
    /// The target of its output.
    pub output: OutputSink,
}

/// An executor of commands.
pub trait Executor: Send + Sync + 'static {
    /// Executes a command once, and returns how it ended.
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
    /// Sends output, and waits until NATS has it. What NATS does not take of a job is lost to those who follow it, who are
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
    /// Names messages, so that one that is sent twice counts once.
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
    /// On how many hosts it runs something at once.
    pub at_once: usize,
    /// The directory of its log of intents.
    pub directory: PathBuf,
    /// Its allow list.
    pub allow: Arc<dyn AllowSource>,
}

/// An instruction to a running node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instruction {
    /// Take no more hosts, give away those that it has, finish what runs.
    Drain,
    /// The same, then give everything back and end.
    Leave,
    /// Give everything back and end, whatever runs.
    LeaveNow,
}

/// The reason why a node ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// NATS.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// The disk.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The disk, while reading.
    #[error("the log of intents cannot be read: {0}; without it nothing is run for the fleet")]
    Intents(#[from] rusqlite::Error),
    /// Its name cannot be a key.
    #[error("{0:?} cannot be a node's name: use letters, digits, - and _")]
    Name(String),
    /// It is another fleet.
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
    /// The bucket's extent, and the highest revision that had been seen when that was asked.
    Extent(Extent, u64),
    Anew,
    Stream(StreamEvent),
}

/// Runs a node until it is told to leave.
///
/// # Errors
/// Where it cannot begin. What goes wrong later is waited out, and told in its member's entry.
pub async fn run(
    bucket: Bucket,
    options: NodeOptions,
    executor: Arc<dyn Executor>,
    told: mpsc::Receiver<Instruction>,
) -> Result<(), NodeError> {
    run_counted(bucket, options, executor, told, Arc::default()).await
}

/// The same, with what it does counted in `metrics`.
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
    // Where nothing stands, nothing is told.
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
        // What has come meanwhile is thought about together, so that a thought costs the less for each the more there is.
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

/// The node's part in streams: their commands are executed as those of jobs.
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

/// A node that remembers what its log has.
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

/// Begins to watch anew what has stopped telling, beside all that a node has to do in time.
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

/// The time by a clock that nobody sets, and that goes on while the machine sleeps.
pub(crate) fn now() -> Time {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or_default(),
        u32::try_from(now.tv_nsec).unwrap_or_default(),
    )
}

/// The thread that has the log: what waits together is synced together.
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

/// A job that has been read, or parts of it.
struct Reading {
    since: Time,
    order: Option<JobOrder>,
    parts: HashMap<usize, Vec<u8>>,
    hosts: Option<Arc<Vec<OrderedHost>>>,
    /// The keys that have signed its end, and may not do so, or not before its order or another allow list is there.
    cancels: BTreeMap<String, Signed>,
    /// The input of its commands, once it was needed here.
    input: Arc<OnceCell<Arc<Input>>>,
}

/// That a command is to end.
#[derive(Debug, Default)]
struct Cancellation {
    is_told: AtomicBool,
    told: Arc<Notify>,
}

struct Running {
    bucket: Bucket,
    options: NodeOptions,
    /// The allow list by which jobs were judged last.
    allowed: Allowed,
    /// Whether another fleet is in this one's place.
    is_anew: bool,
    executor: Arc<dyn Executor>,
    events: mpsc::UnboundedSender<Event>,
    disk: blocking::Sender<Change>,
    streaming: Streaming,
    jobs: HashMap<JobId, Reading>,
    /// Those of them that are not whole.
    waiting: Waiting<JobId>,
    cancels: HashMap<(JobId, u32), Arc<Cancellation>>,
    observer: Observer,
    progress: Progress,
    /// The bucket's last sequence number when the watch had begun.
    moment: u64,
}

/// Whether the watches tell what happens. Where NATS was away, its client finds out by a heartbeat that did not come, 10 s
/// later; and since others' leases last from when their renewal is *seen*, a node that is lost then would be replaced as
/// much later.
#[derive(Debug, Default)]
struct Progress {
    /// The number of connections when the watches began.
    connects: Option<u64>,
    /// The last revision that was told.
    told: u64,
    /// The last one that this node has written, by NATS's answer.
    written: u64,
    /// Since when nothing is told although something is there.
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

    /// Returns whether the watches are to begin anew, which is not said again before they have had as much time.
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

    /// An entry, and whether it was the last that stood there.
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
            // Who says so is looked at first.
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
                    // Of this name there is one.
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

    /// So many bytes are kept of a job that is not whole, for which older ones may have to go.
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

    /// Somebody wants a job to end. It is remembered where that one may not say so yet: the order may come later, and the
    /// allow list may change.
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

    /// Returns whether the allow list lets this one end what others have submitted.
    fn lets_cancel(&self, who: &str) -> bool {
        self.allowed.as_ref().is_ok_and(|list| list.lets_cancel(who))
    }

    /// Ends a job if somebody has said so who may.
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

    /// Judges all jobs again where the allow list has changed.
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

    /// Lets go of what has never become a job.
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

    /// Hands a job over, once all of it is there.
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

    /// Asks NATS whether it has gone back.
    fn look(&self, node: &Node) {
        let (bucket, events, before) = (self.bucket.clone(), self.events.clone(), node.highest());
        tokio::spawn(async move {
            let Ok(extent) = bucket.extent().await else {
                return;
            };
            // After that: the number is of this fleet, or of the one that is in its place.
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
                    // One that was stopped, and finds another fleet in its own one's place, says nothing about that.
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
        // Only what was planned is claimed, and a plan has its hosts.
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

/// A claimed host on its way. Nobody else may execute its command.
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
    /// Executes the command once, and tries again for as often as the job says while nothing may have run and the reason may
    /// pass.
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
    /// Why the command was not started.
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
            // That may have taken a while.
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

/// Says what has changed about why nothing is started.
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
        // It is behind, and goes on.
        progress.note_revision(5);
        assert!(!progress.has_stopped(ms(2_900), 2));
        assert!(!progress.has_stopped(ms(4_800), 2));
        assert!(progress.has_stopped(ms(4_900), 2));
        assert!(!progress.has_stopped(ms(5_000), 2));
        progress.note_revision(7);
        assert!(!progress.has_stopped(ms(9_000), 2));
    }
}
