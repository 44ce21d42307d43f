//! A node's part in streams: the entries of their bucket, the running commands, and their output.

pub mod following;

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::kv::{self, Operation};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use trunkline_request::failure::{ErrorKind, Execution};

use crate::allow::{AllowSource, Allowed};
use crate::bucket::markers::Markers;
use crate::bucket::{Bucket, BucketError, decode, encode, is_plain};
use crate::order::stream::{StreamOrder, StreamTerms};
use crate::order::{self, MOST_PARTS, OrderedHost};
use crate::signed::Signed;
use crate::state::{
    Exit, Node, Run, RunEnd, RunNumber, StreamAction, StreamEnd, StreamId, StreamShare, Time,
};
use crate::waiting::{MOST_CANCELS, Waiting};

/// The pause before a message that NATS did not accept is sent again. It has the same id, so NATS discards a duplicate.
const AGAIN: Duration = Duration::from_secs(1);

/// The time limit for each message to NATS.
const ANSWER: Duration = Duration::from_secs(3);

/// The time limit for a command to stop before its session is closed: less than the rest of a lease.
const STOPPING: Duration = Duration::from_secs(2);

/// The interval at which this node reports changes in its work for streams.
pub(crate) const TELLING: Duration = Duration::from_secs(2);

/// The interval at which NATS is asked for its time.
const ASKING: Duration = Duration::from_secs(600);

/// The longest piece of output in one message.
pub(crate) const LONGEST_PIECE: usize = 64 * 1024;

/// A command of a stream.
pub(crate) struct StreamWork {
    pub(crate) stream: StreamId,
    pub(crate) submitter: String,
    pub(crate) host: OrderedHost,
    /// Notified when the command must end.
    pub(crate) cancelled: Arc<Notify>,
    pub(crate) outlet: Outlet,
}

/// An executor of commands.
pub(crate) type Execute = Arc<dyn Fn(StreamWork) -> Pin<Box<dyn Future<Output = Exit> + Send>> + Send + Sync>;

/// A report about a host of a stream. The messages of each run are numbered from 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    pub run: RunNumber,
    /// The number of the message in the run.
    pub number: u64,
    /// The content.
    pub what: What,
}

/// The content of a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// This node starts the command.
    Begun(String),
    Output(#[serde(with = "serde_bytes")] Vec<u8>),
    ErrorOutput(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The command has stopped or could not be started, and will be started again.
    Lost(Exit),
    /// The command has ended, and is started again only if the stream says so.
    Ended(Exit),
    /// A node refuses to run it, for this reason.
    Refused(String),
    /// A message for followers.
    Notice(String),
}

/// The value at `STREAM.share.NODE`: a node's work for a stream. Only informative.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ToldShare {
    /// [`crate::state::Holder::incarnation`] of the reporting process.
    pub(crate) incarnation: u64,
    pub(crate) share: StreamShare,
}

/// The destination of a run's output. Waits until NATS has each message.
#[derive(Debug, Clone)]
pub(crate) struct Outlet {
    bucket: Bucket,
    run: Run,
    /// The host's name.
    host: String,
    /// The subject of the output, if it does not go to the followers.
    subject: Option<String>,
    sent: Arc<AtomicU64>,
    /// The number of messages to that subject, which are numbered separately.
    handed_over: Arc<AtomicU64>,
}

impl Outlet {
    pub(crate) async fn output(&self, data: &[u8]) {
        for piece in data.chunks(LONGEST_PIECE) {
            match &self.subject {
                Some(subject) => self.hand_over(subject, "Output", piece.to_vec()).await,
                None => self.tell(What::Output(piece.to_vec())).await,
            }
        }
    }

    pub(crate) async fn error_output(&self, data: &[u8]) {
        for piece in data.chunks(LONGEST_PIECE) {
            self.tell(What::ErrorOutput(piece.to_vec())).await;
        }
    }

    /// Reports the start of the run. On a user's subject that is an empty message.
    async fn begin(&self, node: &str) {
        self.tell(What::Begun(node.to_owned())).await;
        if let Some(subject) = &self.subject {
            self.hand_over(subject, "Begun", Vec::new()).await;
        }
    }

    async fn tell(&self, what: What) {
        let number = self.sent.fetch_add(1, Ordering::Relaxed) + 1;
        let run = self.run.number;
        let Ok(payload) = encode(&Piece { run, number, what }) else {
            return tracing::error!("a message of stream {} cannot be written", self.run.stream);
        };
        let subject = self
            .bucket
            .streamed_subject(&self.run.stream.0, &self.run.host.to_string());
        let mut told = false;
        while let Err(error) = self.send(&subject, self.headers(number), payload.clone()).await {
            if !std::mem::replace(&mut told, true) {
                tracing::warn!("output of {} waits: {error}", self.host);
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Writes to a user's subject.
    async fn hand_over(&self, subject: &str, kind: &str, payload: Vec<u8>) {
        let number = self.handed_over.fetch_add(1, Ordering::Relaxed) + 1;
        let mut told = false;
        loop {
            let mut headers = self.headers(number);
            let run = self.run.number;
            headers.insert("Trunkline-Stream", self.run.stream.0.as_str());
            headers.insert("Trunkline-Host", self.host.replace(['\r', '\n'], "_").as_str());
            headers.insert("Trunkline-Run", format!("{}.{}", run.fence, run.count));
            headers.insert("Trunkline-Number", number.to_string());
            headers.insert("Trunkline-Kind", kind);
            let Err(error) = self.send(subject, headers, payload.clone()).await else {
                return;
            };
            if !std::mem::replace(&mut told, true) {
                tracing::warn!("output of {} waits: {subject}: {error}", self.host);
                let words = format!("the subject {subject} takes nothing, and the command waits: {error}");
                Box::pin(self.tell(What::Notice(words))).await;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    fn headers(&self, number: u64) -> HeaderMap {
        let Run {
            stream,
            host,
            number: run,
        } = &self.run;
        let mut headers = HeaderMap::new();
        let name = format!("{stream}.{host}.{}.{}.{number}", run.fence, run.count);
        headers.insert("Nats-Msg-Id", name);
        headers
    }

    async fn send(&self, subject: &str, headers: HeaderMap, payload: Vec<u8>) -> Result<(), String> {
        let jetstream = &self.bucket.jetstream;
        let sending = async {
            let sent = jetstream.publish_with_headers(subject.to_owned(), headers, payload.into());
            let acknowledged = sent.await.map_err(|error| error.to_string())?;
            acknowledged.await.map(|_| ()).map_err(|error| error.to_string())
        };
        match tokio::time::timeout(ANSWER, sending).await {
            Ok(sent) => sent,
            Err(_) => Err("NATS does not answer".into()),
        }
    }
}

/// The receiver of events.
pub(crate) type Events = Arc<dyn Fn(StreamEvent) + Send + Sync>;

pub(crate) enum StreamEvent {
    RunEnded(Run, RunEnd),
    EndWritten(StreamId, u32, bool),
    /// The share, and its revision if it was written.
    ShareWritten(StreamId, ToldShare, Option<u64>),
    /// NATS's time in seconds since 1970, if it answered.
    Time(Option<i64>),
    /// All entries about a stream were removed.
    Forgotten(StreamId),
}

/// A stream that has been read, maybe in part.
#[derive(Default)]
struct Reading {
    /// The time of the last write there, by NATS's clock.
    written: u64,
    /// True if there is an order, which may have an unknown version.
    is_ordered: bool,
    order: Option<StreamOrder>,
    parts: HashMap<usize, Vec<u8>>,
    hosts: Option<Arc<Vec<OrderedHost>>>,
    /// The keys that have signed its cancellation, with or without permission.
    cancels: BTreeMap<String, Signed>,
    /// The hosts that have ended, and the time of the last end, by NATS's clock.
    ended: BTreeMap<u32, u64>,
    told: Told,
}

impl Reading {
    /// Returns true if it was read, and has not ended on all hosts.
    fn is_under_way(&self) -> bool {
        self.hosts
            .as_ref()
            .is_some_and(|hosts| self.ended.len() < hosts.len())
    }
}

/// This node's report about a stream.
#[derive(Default)]
struct Told {
    /// The value in the bucket, and its revision.
    standing: Option<(u64, ToldShare)>,
    is_under_way: bool,
    /// The restarts by earlier processes of this node.
    restarts_before: u64,
}

/// All of a node's streams.
pub(crate) struct Streaming {
    bucket: Bucket,
    /// The node's name.
    name: String,
    allow: Arc<dyn AllowSource>,
    execute: Execute,
    events: Events,
    streams: BTreeMap<StreamId, Reading>,
    /// The incomplete ones.
    waiting: Waiting<StreamId>,
    /// The streams that were removed.
    markers: Markers,
    stops: HashMap<Run, Arc<Notify>>,
    /// The time of the last request for NATS's time.
    asked: Option<Time>,
    /// NATS's answer, and the time of its arrival.
    time: Option<(Time, i64)>,
}

/// Watches the entries of streams.
pub(crate) async fn watch(bucket: &Bucket) -> Result<kv::Watch, BucketError> {
    let watch = bucket.streams.watch_with_history(">").await;
    watch.map_err(|error| BucketError::Nats(error.to_string()))
}

impl Streaming {
    pub(crate) fn new(
        bucket: Bucket,
        name: String,
        allow: Arc<dyn AllowSource>,
        execute: Execute,
        events: Events,
    ) -> Self {
        Self {
            bucket,
            name,
            allow,
            execute,
            events,
            streams: BTreeMap::new(),
            waiting: Waiting::default(),
            markers: Markers::default(),
            stops: HashMap::new(),
            asked: None,
            time: None,
        }
    }

    /// Handles an entry in the bucket of streams, or its removal.
    pub(crate) fn entry(&mut self, now: Time, node: &mut Node, entry: &kv::Entry, allowed: &Allowed) {
        let mut words = entry.key.split('.');
        let (Some(stream), Some(what), last) = (words.next(), words.next(), words.next()) else {
            return;
        };
        // Entries with other names are not ours, and are not removed.
        if !is_plain(stream) {
            return;
        }
        let stream = StreamId(stream.to_owned());
        let at = u64::try_from(entry.created.unix_timestamp()).unwrap_or_default();
        if entry.operation != Operation::Put {
            if what == "order" {
                self.handle_removal(node, &stream, entry.operation, at);
            }
            return;
        }
        if what == "order" {
            self.markers.see(&stream, entry.operation, at);
        }
        let reading = self.streams.entry(stream.clone()).or_default();
        reading.written = at;
        reading.is_ordered |= what == "order";
        if let ("share", Some(name)) = (what, last) {
            return self.share(node, &stream, name, entry);
        }
        match (what, last, last.map(str::parse::<u32>)) {
            ("order", None, _) => match order::read(&self.bucket.charter, &stream, &entry.value, at) {
                // A stream's order never changes.
                Ok(_) if reading.order.is_some() => return,
                Ok(order) => {
                    reading.order = Some(order);
                    self.wait_for(&stream, entry.value.len());
                }
                Err(error) => return tracing::warn!("stream {stream}: {error}"),
            },
            ("hosts", _, Some(Ok(part))) if usize::try_from(part).is_ok_and(|part| part < MOST_PARTS) => {
                if reading.hosts.is_some() {
                    return;
                }
                let part = usize::try_from(part).unwrap_or(usize::MAX);
                if let Some(before) = reading.parts.insert(part, entry.value.to_vec()) {
                    self.waiting.replace(&stream, before.len());
                }
                self.wait_for(&stream, entry.value.len());
            }
            ("cancel", Some(who), _) => {
                let Ok(cancel) = decode::<Signed>(&entry.value) else {
                    return;
                };
                return self.handle_cancel(node, &stream, who, cancel);
            }
            ("end", _, Some(Ok(host))) => {
                reading.ended.insert(host, at);
                return node.handle_stream_ended(&stream, host);
            }
            _ => return,
        }
        self.plan(now, node, &stream, allowed);
    }

    /// Handles the removal of a stream's order. A node removes it when the stream has ended everywhere. If the stream
    /// still runs, the removal is by another party and not signed, so it does not end the stream.
    fn handle_removal(&mut self, node: &mut Node, stream: &StreamId, operation: Operation, at: u64) {
        if self.streams.get(stream).is_some_and(Reading::is_under_way) {
            return tracing::warn!(
                "stream {stream} goes on: its order was removed from the bucket, which does not end it"
            );
        }
        self.markers.see(stream, operation, at);
        self.streams.remove(stream);
        self.waiting.remove(stream);
        node.handle_stream_gone(stream);
    }

    /// Counts bytes that are kept of an incomplete stream. Older ones may be dropped for it.
    fn wait_for(&mut self, stream: &StreamId, bytes: usize) {
        if self
            .streams
            .get(stream)
            .is_some_and(|reading| reading.hosts.is_some())
        {
            return;
        }
        for stream in self.waiting.add(stream, bytes) {
            self.streams.remove(&stream);
            tracing::warn!(
                "what there was of stream {stream} is let go of: too much waits for the rest of its stream"
            );
        }
    }

    /// Returns true if the allow list permits this key to cancel other submitters' streams.
    fn lets_cancel(&self, who: &str) -> bool {
        self.allow.current().is_ok_and(|list| list.lets_cancel(who))
    }

    /// Handles a cancellation. Without permission it is remembered: the order may come later, and the allow list may
    /// change.
    fn handle_cancel(&mut self, node: &mut Node, stream: &StreamId, who: &str, cancel: Signed) {
        if !order::is_cancel::<StreamTerms>(&self.bucket.charter, stream, who, &cancel) {
            return tracing::warn!("stream {stream}: {who} has not signed that it is to end");
        }
        let is_let = self.lets_cancel(who);
        let reading = self.streams.entry(stream.clone()).or_default();
        let is_own = reading.order.as_ref().map(|order| order.submitter == who);
        let is_known = reading.cancels.contains_key(who);
        let is_under_way = reading.is_under_way();
        if !is_known && (is_own == Some(true) || is_let || reading.cancels.len() < MOST_CANCELS) {
            let bytes = cancel.text.len() + cancel.signature.len();
            reading.cancels.insert(who.to_owned(), cancel);
            self.wait_for(stream, bytes);
        }
        if is_own == Some(false) && !is_let && is_under_way {
            tracing::warn!(
                "stream {stream} does not end for {who}, who has not submitted it and is not in `cancel` here"
            );
        }
        self.cancel(node, stream);
    }

    /// Handles a node's share of a stream.
    fn share(&mut self, node: &Node, stream: &StreamId, name: &str, entry: &kv::Entry) {
        let Some(reading) = self.streams.get_mut(stream).filter(|_| name == self.name) else {
            return;
        };
        let told: ToldShare = decode(&entry.value).unwrap_or_default();
        if told.incarnation != node.holder().incarnation {
            reading.told.restarts_before = told.share.restarts;
        }
        reading.told.standing = Some((entry.revision, told));
    }

    /// Reports this node's work for streams, if it has changed.
    pub(crate) fn tell_shares(&mut self, node: &Node) {
        let incarnation = node.holder().incarnation;
        for (stream, mut share) in node.stream_shares() {
            let Some(reading) = self.streams.get_mut(stream).filter(|one| one.order.is_some()) else {
                continue;
            };
            share.restarts += reading.told.restarts_before;
            let standing = reading.told.standing.as_ref();
            let is_told = match standing {
                Some((_, told)) => told.share == share,
                None => share == StreamShare::default(),
            };
            if is_told || std::mem::replace(&mut reading.told.is_under_way, true) {
                continue;
            }
            let expected = standing.map_or(0, |(revision, _)| *revision);
            let told = ToldShare { incarnation, share };
            let key = share_key(stream, &self.name);
            let (bucket, events, stream) = (self.bucket.clone(), self.events.clone(), stream.clone());
            tokio::spawn(async move {
                let revision = match encode(&told) {
                    Ok(bytes) => {
                        let writing = bucket.streams.update(&key, bytes.into(), expected);
                        tokio::time::timeout(ANSWER, writing)
                            .await
                            .ok()
                            .and_then(Result::ok)
                    }
                    Err(_) => None,
                };
                events(StreamEvent::ShareWritten(stream, told, revision));
            });
        }
    }

    /// Passes a complete stream to the node.
    fn plan(&mut self, now: Time, node: &mut Node, stream: &StreamId, allowed: &Allowed) {
        let Some(reading) = self.streams.get_mut(stream) else {
            return;
        };
        let Some(order) = reading.order.as_ref().filter(|_| reading.hosts.is_none()) else {
            return;
        };
        let parts = (0..order.parts()).map(|part| reading.parts.get(&part).cloned());
        let Some(parts) = parts.collect::<Option<Vec<_>>>() else {
            return;
        };
        match order.read_hosts(&parts) {
            Ok(hosts) => {
                let (name, prefix) = (&self.name, &self.bucket.prefix);
                let refused = |host: &OrderedHost| order.reason_to_refuse(allowed, name, prefix, host);
                let plan = order.plan(&hosts, &self.bucket.charter.zones, refused);
                reading.hosts = Some(Arc::new(hosts));
                reading.parts.clear();
                self.waiting.remove(stream);
                node.handle_stream(now, stream.clone(), plan);
                self.cancel(node, stream);
            }
            Err(error) => tracing::warn!("stream {stream}: {error}"),
        }
    }

    /// Cancels a stream if one of the signers has permission.
    fn cancel(&self, node: &mut Node, stream: &StreamId) {
        let Some((reading, order)) = self
            .streams
            .get(stream)
            .and_then(|reading| Some((reading, reading.order.as_ref()?)))
        else {
            return;
        };
        // All are signed.
        let mut all = reading.cancels.keys();
        if all.any(|who| order.submitter == *who || self.lets_cancel(who)) {
            node.handle_stream_cancelled(stream);
        }
    }

    /// Judges all streams again after a change of the allow list.
    pub(crate) fn judge(&self, node: &mut Node, allowed: &Allowed) {
        for (stream, reading) in &self.streams {
            let (Some(order), Some(hosts)) = (&reading.order, &reading.hosts) else {
                continue;
            };
            let (name, prefix) = (&self.name, &self.bucket.prefix);
            let refused = hosts
                .iter()
                .map(|host| order.reason_to_refuse(allowed, name, prefix, host));
            node.handle_stream_judged(stream, refused.collect());
            self.cancel(node, stream);
        }
    }

    pub(crate) fn event(&mut self, now: Time, node: &mut Node, event: StreamEvent) {
        match event {
            StreamEvent::RunEnded(run, end) => {
                self.stops.remove(&run);
                node.handle_run_ended(now, &run, end);
            }
            StreamEvent::EndWritten(stream, host, is_written) => {
                node.handle_end_written(now, &stream, host, is_written);
            }
            StreamEvent::ShareWritten(stream, told, revision) => {
                if let Some(reading) = self.streams.get_mut(&stream) {
                    reading.told.is_under_way = false;
                    // If it was not written, the watch reports the value, or the write is tried again.
                    let standing = revision.map(|revision| (revision, told));
                    let is_newer = |(revision, _): &(u64, ToldShare)| {
                        let seen = reading.told.standing.as_ref();
                        seen.is_none_or(|(seen, _)| seen < revision)
                    };
                    if let Some(standing) = standing.filter(is_newer) {
                        reading.told.standing = Some(standing);
                    }
                }
            }
            StreamEvent::Time(Some(time)) => self.time = Some((now, time)),
            // Requested again when it is needed next.
            StreamEvent::Time(None) => self.asked = None,
            StreamEvent::Forgotten(stream) => self.markers.forget(&stream),
        }
    }

    pub(crate) fn act(&mut self, action: StreamAction) {
        match action {
            StreamAction::Begin(run) => self.begin(run),
            StreamAction::Stop(run) => {
                if let Some(stop) = self.stops.get(&run) {
                    stop.notify_one();
                }
            }
            StreamAction::Refuse(run, why) => {
                tracing::warn!("stream {}: {why}", run.stream);
                if let Some((_, host)) = self.find(&run) {
                    let outlet = self.outlet(run, &host, None);
                    // Followers are told if NATS answers; otherwise the next check repeats it.
                    tokio::spawn(async move {
                        let _ = tokio::time::timeout(ANSWER, outlet.tell(What::Refused(why))).await;
                    });
                }
            }
            StreamAction::End(stream, host, end) => self.end(stream, host, &end),
        }
    }

    fn find(&self, run: &Run) -> Option<(StreamOrder, OrderedHost)> {
        let reading = self.streams.get(&run.stream)?;
        let host = reading.hosts.as_ref()?.get(usize::try_from(run.host).ok()?)?;
        Some((reading.order.clone()?, host.clone()))
    }

    fn outlet(&self, run: Run, host: &OrderedHost, subject: Option<String>) -> Outlet {
        Outlet {
            bucket: self.bucket.clone(),
            run,
            host: host.name.clone(),
            subject,
            sent: Arc::default(),
            handed_over: Arc::default(),
        }
    }

    fn begin(&mut self, run: Run) {
        let events = self.events.clone();
        let Some((order, host)) = self.find(&run) else {
            // Only planned hosts are started. If the stream is gone, nothing is needed.
            events(StreamEvent::RunEnded(run, RunEnd::Stopped));
            return;
        };
        let (name, prefix) = (self.name.clone(), &self.bucket.prefix);
        let refused = order.reason_to_refuse(&self.allow.current(), &name, prefix, &host);
        let outlet = self.outlet(run.clone(), &host, order.subject_of(&host));
        let stop = Arc::new(Notify::new());
        self.stops.insert(run.clone(), stop.clone());
        let cancelled = Arc::new(Notify::new());
        let work = StreamWork {
            stream: run.stream.clone(),
            submitter: order.submitter,
            host,
            cancelled: cancelled.clone(),
            outlet: outlet.clone(),
        };
        let (execute, bucket) = (self.execute.clone(), self.bucket.clone());
        let told_to_stop = Arc::new(AtomicBool::new(false));
        let is_stopping = told_to_stop.clone();
        let running = async move {
            // A watch is late: the host's former owner may have ended it.
            if has_ended(&bucket, &outlet.run).await {
                return RunEnd::HadEnded;
            }
            outlet.begin(&name).await;
            let exit = match refused {
                Some(message) => Exit::Failed {
                    kind: ErrorKind::Local,
                    message,
                    execution: Execution::DidNotStart,
                },
                None => execute(work).await,
            };
            if is_stopping.load(Ordering::Relaxed) {
                // Its end is then of no interest to followers.
                return RunEnd::Stopped;
            }
            let is_lost = matches!(&exit, Exit::Failed { kind, .. } if kind.may_pass());
            let (what, end) = match is_lost {
                true => (What::Lost(exit.clone()), RunEnd::Lost(exit)),
                false => (What::Ended(exit.clone()), RunEnd::Ended(exit)),
            };
            outlet.tell(what).await;
            end
        };
        tokio::spawn(async move {
            let end = stopping(running, &stop, &told_to_stop, &cancelled).await;
            events(StreamEvent::RunEnded(run, end));
        });
    }

    fn end(&self, stream: StreamId, host: u32, end: &StreamEnd) {
        let (bucket, events) = (self.bucket.clone(), self.events.clone());
        let bytes = encode(end);
        tokio::spawn(async move {
            let key = end_key(&stream, host);
            let is_written = match bytes {
                Ok(bytes) => {
                    let writing = bucket.streams.update(&key, bytes.into(), 0);
                    match tokio::time::timeout(ANSWER, writing).await {
                        Ok(Ok(_)) => true,
                        // It is in the bucket, by a write whose answer was lost, or by another owner.
                        Ok(Err(error)) => error.kind() == kv::UpdateErrorKind::WrongLastRevision,
                        Err(_) => false,
                    }
                }
                Err(_) => false,
            };
            events(StreamEvent::EndWritten(stream, host, is_written));
        });
    }

    /// Returns NATS's time in seconds since 1970, by its last answer and the time since. This machine's clock may be
    /// set arbitrarily.
    fn nats_time(&mut self, now: Time) -> Option<u64> {
        if self.asked.is_none_or(|asked| now >= asked + ASKING) {
            self.asked = Some(now);
            let (bucket, events) = (self.bucket.clone(), self.events.clone());
            tokio::spawn(async move { events(StreamEvent::Time(bucket.time().await.ok())) });
        }
        let (at, time) = self.time?;
        Some(u64::try_from(time).ok()? + now.saturating_sub(at).as_secs())
    }

    /// Removes streams from the bucket that have ended everywhere, after the retention time, and data that never became
    /// a stream. The node with a shard of a stream removes it: first its order, whose marker tells all nodes that it is
    /// over, and later the rest with one request. If ends were removed before the order, a node that starts meanwhile
    /// would start the stream again.
    pub(crate) fn tidy(&mut self, now: Time, node: &Node) {
        let keep = self.bucket.charter.keep.as_secs();
        let Some(time) = self.nats_time(now).filter(|_| keep > 0) else {
            return;
        };
        let zones = &self.bucket.charter.zones;
        let mine = |stream: &StreamId| node.owns(&zones.unit_of_job(&stream.0), now);
        for (stream, reading) in &self.streams {
            let over = match &reading.order {
                Some(order) if reading.ended.len() >= usize::try_from(order.hosts).unwrap_or(usize::MAX) => {
                    reading.ended.values().max().copied().unwrap_or(reading.written)
                }
                None if !reading.is_ordered => reading.written,
                _ => continue,
            };
            if time < over + keep || !mine(stream) {
                continue;
            }
            let (bucket, key) = (self.bucket.clone(), order_key(stream));
            tokio::spawn(async move {
                if let Err(error) = bucket.streams.delete(&key).await {
                    tracing::debug!("removing {key}: {error}");
                }
            });
        }
        let due = self.markers.due(time, keep, mine);
        if due.is_empty() {
            return;
        }
        let (bucket, events) = (self.bucket.clone(), self.events.clone());
        tokio::spawn(async move {
            for stream in due {
                if let Err(error) = bucket.forget_stream(&stream.0).await {
                    return tracing::debug!("removing stream {stream}: {error}");
                }
                events(StreamEvent::Forgotten(stream));
            }
        });
    }
}

/// Returns the key of a stream's order in the bucket.
fn order_key(stream: &StreamId) -> String {
    format!("{stream}.order")
}

/// Returns the key of the final end of a host.
fn end_key(stream: &StreamId, host: u32) -> String {
    format!("{stream}.end.{host}")
}

/// Returns the key of a node's share of a stream.
fn share_key(stream: &StreamId, node: &str) -> String {
    format!("{stream}.share.{node}")
}

/// Returns true if a host has ended for good, by asking the bucket until it answers.
async fn has_ended(bucket: &Bucket, run: &Run) -> bool {
    let key = end_key(&run.stream, run.host);
    loop {
        match tokio::time::timeout(ANSWER, bucket.streams.get(&key)).await {
            Ok(Ok(end)) => return end.is_some(),
            Ok(Err(error)) => tracing::warn!("asking for the end of stream {}: {error}", run.stream),
            Err(_) => tracing::warn!(
                "asking for the end of stream {}: NATS does not answer",
                run.stream
            ),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Waits for a command until it ends, or until it is told to stop and the time for that is over.
async fn stopping(
    running: impl Future<Output = RunEnd>,
    stop: &Notify,
    told: &AtomicBool,
    cancelled: &Notify,
) -> RunEnd {
    let mut running = std::pin::pin!(running);
    tokio::select! {
        end = &mut running => return end,
        () = stop.notified() => {
            told.store(true, Ordering::Relaxed);
            cancelled.notify_one();
        }
    }
    let _ = tokio::time::timeout(STOPPING, running).await;
    RunEnd::Stopped
}
