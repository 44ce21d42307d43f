//! For those who have streams: to submit them, follow their hosts from where they were, and end them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::jetstream::consumer::{DeliverPolicy, push};
use async_nats::jetstream::kv::{self, Operation, UpdateErrorKind};
use async_nats::jetstream::stream::{self, LastRawMessageErrorKind};
use futures_util::StreamExt as _;
use nkeys::KeyPair;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::bucket::{Bucket, BucketError, decode, encode, standing};
use crate::order::stream::{StreamOrder, StreamTerms};
use crate::order::{self, OrderError, OrderedHost};
use crate::state::{Exit, Resuming, RunNumber, StreamEnd, StreamId, StreamShare};
use crate::streaming::{Piece, ToldShare};

/// The time limit for NATS, for each request.
const ANSWER: Duration = Duration::from_secs(5);

/// The delay after a request that NATS did not answer before another one is made.
const AGAIN: Duration = Duration::from_secs(1);

/// The interval at which messages without news are looked for.
const LOOK: Duration = Duration::from_secs(5);

/// The reason why there is no stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// NATS.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// The order.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// It was not written down, so nobody has begun it.
    #[error(
        "the stream could not be written to NATS, and has not begun; check that this nkey may submit streams"
    )]
    NotWritten,
    /// There is no such stream, or no more.
    #[error("there is no stream {0}, or it has ended and is older than what the fleet keeps")]
    NoStream(StreamId),
}

fn nats(error: &dyn std::fmt::Display) -> BucketError {
    BucketError::Nats(error.to_string())
}

/// Hands a stream to the fleet, and returns its name. Once this returns, the fleet goes on by itself.
///
/// # Errors
/// Nothing has begun, unless NATS did not answer in the last moment.
pub async fn submit(
    bucket: &Bucket,
    key: &KeyPair,
    hosts: &[OrderedHost],
    resuming: Resuming,
    subject: Option<&str>,
) -> Result<StreamId, StreamError> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let terms = StreamTerms {
        resuming,
        subject: subject.map(str::to_owned),
    };
    let written = order::sign(key, &bucket.charter, since.as_secs(), hosts, terms)?;
    let stream: StreamId = written.id;
    for (number, part) in written.parts.into_iter().enumerate() {
        let put = bucket
            .streams
            .update(format!("{stream}.hosts.{number}"), part.into(), 0);
        put.await.map_err(|_| StreamError::NotWritten)?;
    }
    // Without its order a stream is nothing to anybody.
    let put = bucket
        .streams
        .update(format!("{stream}.order"), written.order.into(), 0);
    put.await.map_err(|_| StreamError::NotWritten)?;
    Ok(stream)
}

/// Says that a stream is to end. Nodes take that from who submitted it, and from whom their allow lists let.
///
/// # Errors
/// Where NATS does not take it.
pub async fn cancel(bucket: &Bucket, key: &KeyPair, stream: &StreamId) -> Result<(), StreamError> {
    let cancel = encode(&order::sign_cancel::<StreamTerms>(key, &bucket.charter, stream)?)?;
    let place = format!("{stream}.cancel.{}", key.public_key());
    let entry = bucket.streams.entry(&place).await.map_err(|error| nats(&error))?;
    let expected = entry.map_or(0, |entry| entry.revision);
    match bucket.streams.update(&place, cancel.into(), expected).await {
        Ok(_) => Ok(()),
        // The same one, a moment ago.
        Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => Ok(()),
        Err(error) => {
            let words = format!("stream {stream} could not be ended, and goes on: {error}");
            Err(BucketError::Nats(words).into())
        }
    }
}

/// A stream with its hosts, in their order.
///
/// # Errors
/// Where there is no such stream.
pub async fn stream_of(
    bucket: &Bucket,
    stream: &StreamId,
) -> Result<(StreamOrder, Vec<OrderedHost>), StreamError> {
    let missing = || StreamError::NoStream(stream.clone());
    if !crate::bucket::is_plain(&stream.0) {
        return Err(missing());
    }
    let entry = bucket.streams.entry(format!("{stream}.order")).await;
    let entry = entry.map_err(|error| nats(&error))?;
    let entry = entry.filter(|entry| entry.operation == Operation::Put);
    let order = read(bucket, stream, &entry.ok_or_else(missing)?)?;
    let mut parts = Vec::new();
    for part in 0..order.parts() {
        let part = bucket.streams.get(format!("{stream}.hosts.{part}")).await;
        let part = part.map_err(|error| nats(&error))?.ok_or_else(missing)?;
        parts.push(part.to_vec());
    }
    let hosts = order.read_hosts(&parts)?;
    Ok((order, hosts))
}

fn read(bucket: &Bucket, stream: &StreamId, entry: &kv::Entry) -> Result<StreamOrder, OrderError> {
    let got = u64::try_from(entry.created.unix_timestamp()).unwrap_or_default();
    order::read(&bucket.charter, stream, &entry.value, got)
}

/// A stream at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamStatus {
    /// Its name.
    pub stream: StreamId,
    /// The public nkey of who submitted it.
    pub submitter: String,
    /// Seconds since 1970 when it was submitted, by the submitter's clock.
    pub at: u64,
    /// All of its hosts.
    pub hosts: u32,
    /// Those on which it has ended for good.
    pub ended: u32,
    /// The share that each node has reported, including nodes that are gone.
    pub shares: BTreeMap<String, StreamShare>,
}

/// The streams that the fleet keeps, the oldest first.
///
/// # Errors
/// Where NATS does not answer.
pub async fn streams(bucket: &Bucket) -> Result<Vec<StreamStatus>, BucketError> {
    let mut streams = BTreeMap::new();
    let mut ended: HashMap<StreamId, u32> = HashMap::new();
    let mut shares: HashMap<StreamId, BTreeMap<String, StreamShare>> = HashMap::new();
    for entry in standing(&bucket.streams, ">").await? {
        let (stream, what) = entry.key.split_once('.').unwrap_or_default();
        let stream = StreamId(stream.to_owned());
        if entry.operation != Operation::Put {
            continue;
        }
        if what == "order" {
            // What is not an order is none of ours.
            if let Ok(order) = read(bucket, &stream, &entry) {
                streams.insert(stream, order);
            }
        } else if what.starts_with("end.") {
            *ended.entry(stream).or_default() += 1;
        } else if let Some(node) = what.strip_prefix("share.")
            && let Ok(told) = decode::<ToldShare>(&entry.value)
        {
            let shares = shares.entry(stream).or_default();
            shares.insert(node.to_owned(), told.share);
        }
    }
    let statuses = streams.into_iter().map(|(stream, order)| StreamStatus {
        ended: ended.get(&stream).copied().unwrap_or_default(),
        shares: shares.remove(&stream).unwrap_or_default(),
        stream,
        submitter: order.submitter,
        at: order.at,
        hosts: order.hosts,
    });
    let mut statuses: Vec<_> = statuses.collect();
    statuses.sort_by_key(|status| status.at);
    Ok(statuses)
}

/// The position of a reader in a host's output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The sequence number that is read next.
    pub next: u64,
    /// The last message that was read: which of which run.
    pub last: Option<(RunNumber, u64)>,
}

/// A message of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// A message, with how many before it are lost: the fleet had no more room for them before they were read.
    Piece {
        /// Messages that are lost.
        lost: u64,
        /// The message.
        piece: Piece,
    },
    /// Nothing more comes.
    End(StreamEnd),
}

/// A follower of a stream, which keeps track of the news of all of its hosts.
#[derive(Debug)]
pub struct Follower {
    bucket: Bucket,
    stream: StreamId,
    messages: Arc<stream::Stream>,
    /// For each host: a number that changes when there is something new.
    news: Vec<watch::Sender<u64>>,
    ends: Vec<watch::Sender<Option<StreamEnd>>>,
}

impl Follower {
    /// Begins to follow a stream of so many hosts.
    ///
    /// # Errors
    /// Where NATS does not answer.
    pub async fn new(bucket: &Bucket, stream: &StreamId, hosts: usize) -> Result<Self, StreamError> {
        let messages = bucket.jetstream.get_stream(bucket.streamed_stream()).await;
        let messages = messages.map_err(|error| nats(&error))?;
        Ok(Self {
            bucket: bucket.clone(),
            stream: stream.clone(),
            messages: Arc::new(messages),
            news: (0..hosts).map(|_| watch::Sender::new(0)).collect(),
            ends: (0..hosts).map(|_| watch::Sender::new(None)).collect(),
        })
    }

    /// One of its hosts, from a position on.
    pub fn host(&self, host: u32, position: Position) -> HostReader {
        let place = usize::try_from(host).unwrap_or(usize::MAX);
        let news = self.news.get(place).map(watch::Sender::subscribe);
        let ends = self.ends.get(place).map(watch::Sender::subscribe);
        HostReader {
            messages: self.messages.clone(),
            subject: self.bucket.streamed_subject(&self.stream.0, &host.to_string()),
            position,
            news: news.unwrap_or_else(|| watch::channel(0).1),
            ends: ends.unwrap_or_else(|| watch::channel(None).1),
        }
    }

    /// Keeps track of what is new. Never returns, whatever becomes of the connection to NATS.
    pub async fn watch(&self) {
        loop {
            if let Err(error) = self.watch_once().await {
                tracing::debug!("following stream {}: {error}", self.stream);
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn watch_once(&self) -> Result<(), BucketError> {
        let consumer = self.messages.create_consumer(push::OrderedConfig {
            deliver_subject: self.bucket.client.new_inbox(),
            filter_subject: self.bucket.streamed_subject(&self.stream.0, "*"),
            // Readers fetch what they can take.
            headers_only: true,
            deliver_policy: DeliverPolicy::New,
            ..push::OrderedConfig::default()
        });
        let consumer = consumer.await.map_err(|error| nats(&error))?;
        let mut news = consumer.messages().await.map_err(|error| nats(&error))?;
        let ends = self
            .bucket
            .streams
            .watch_with_history(format!("{}.end.*", self.stream));
        let mut ends = ends.await.map_err(|error| nats(&error))?;
        // What has come before this is looked for at once.
        self.news
            .iter()
            .for_each(|news| news.send_modify(|count| *count += 1));
        loop {
            tokio::select! {
                message = news.next() => {
                    let message = message.ok_or_else(|| nats(&"no more news"))?;
                    let message = message.map_err(|error| nats(&error))?;
                    if let Some(news) = place_of(&message.subject).and_then(|host| self.news.get(host)) {
                        news.send_modify(|count| *count += 1);
                    }
                }
                entry = ends.next() => {
                    let entry = entry.ok_or_else(|| nats(&"no more news"))?;
                    let entry = entry.map_err(|error| nats(&error))?;
                    let Some(host) = place_of(&entry.key) else { continue };
                    let end = decode(&entry.value).unwrap_or_else(|_| StreamEnd::Ended(Exit::tampered_exit()));
                    if let Some(ends) = self.ends.get(host) {
                        ends.send_replace(Some(end));
                    }
                }
            }
        }
    }
}

fn place_of(subject: &str) -> Option<usize> {
    subject.rsplit('.').next()?.parse().ok()
}

/// Reads one host of a stream, as fast as its reader takes it: what is not read yet, NATS has.
#[derive(Debug)]
pub struct HostReader {
    messages: Arc<stream::Stream>,
    subject: String,
    position: Position,
    news: watch::Receiver<u64>,
    ends: watch::Receiver<Option<StreamEnd>>,
}

impl HostReader {
    /// Returns the position of its reading.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Returns the next message. Waits through whatever becomes of NATS.
    pub async fn next(&mut self) -> Read {
        loop {
            self.news.borrow_and_update();
            // Before it is looked: an end is written down after the last message.
            let end = self.ends.borrow_and_update().clone();
            let asking = self
                .messages
                .get_first_raw_message_by_subject(&self.subject, self.position.next.max(1));
            match tokio::time::timeout(ANSWER, asking).await {
                Ok(Ok(message)) => {
                    self.position.next = message.sequence + 1;
                    if let Some(read) = decode(&message.payload).ok().and_then(|piece| self.take(piece)) {
                        return read;
                    }
                }
                Ok(Err(error)) if error.kind() == LastRawMessageErrorKind::NoMessageFound => {
                    if let Some(end) = end {
                        return Read::End(end);
                    }
                    tokio::select! {
                        changed = self.news.changed() => { let _ = changed; }
                        changed = self.ends.changed() => { let _ = changed; }
                        () = tokio::time::sleep(LOOK) => {}
                    }
                }
                Ok(Err(error)) => {
                    tracing::debug!("reading {}: {error}", self.subject);
                    tokio::time::sleep(AGAIN).await;
                }
                Err(_) => {}
            }
        }
    }

    /// A message, unless it was read before, or is what a former owner says late.
    fn take(&mut self, piece: Piece) -> Option<Read> {
        take(&mut self.position.last, piece)
    }
}

fn take(last: &mut Option<(RunNumber, u64)>, piece: Piece) -> Option<Read> {
    let this = (piece.run, piece.number);
    if last.is_some_and(|last| this <= last) {
        return None;
    }
    let lost = match *last {
        Some((run, number)) if run == piece.run => piece.number - number - 1,
        _ => piece.number.saturating_sub(1),
    };
    *last = Some(this);
    Some(Read::Piece { lost, piece })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streaming::What;

    fn piece(fence: u64, number: u64) -> Piece {
        Piece {
            run: RunNumber { fence, count: 1 },
            number,
            what: What::Output(b"x".to_vec()),
        }
    }

    #[test]
    fn what_comes_twice_or_late_is_not_read_and_what_is_lost_is_counted() {
        let mut last = None;
        let mut lost = |fence, number| match take(&mut last, piece(fence, number)) {
            Some(Read::Piece { lost, .. }) => Some(lost),
            _ => None,
        };
        assert_eq!(lost(5, 3), Some(2));
        assert_eq!(lost(5, 3), None);
        assert_eq!(lost(5, 4), Some(0));
        assert_eq!(lost(5, 7), Some(2));
        assert_eq!(lost(9, 1), Some(0));
        // A former owner.
        assert_eq!(lost(5, 8), None);
        assert_eq!(lost(9, 2), Some(0));
        assert_eq!(lost(10, 2), Some(1));
    }
}
