//! The interface for owners of streams: submit them, follow their hosts from a position, and end them.

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

/// The pause before a request that NATS did not answer is repeated.
const AGAIN: Duration = Duration::from_secs(1);

/// The interval of looking for messages without a notification.
const LOOK: Duration = Duration::from_secs(5);

/// The reason why there is no stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// NATS failed.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// The order is invalid.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// It was not stored, so nothing has started.
    #[error(
        "the stream could not be written to NATS, and has not begun; check that this nkey may submit streams"
    )]
    NotWritten,
    /// There is no such stream, or it was dropped.
    #[error("there is no stream {0}, or it has ended and is older than what the fleet keeps")]
    NoStream(StreamId),
}

fn nats(error: &dyn std::fmt::Display) -> BucketError {
    BucketError::Nats(error.to_string())
}

/// Submits a stream to the fleet, and returns its name. The fleet continues by itself.
///
/// # Errors
/// Nothing has started, unless NATS did not answer the last write.
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
    // Without its order a stream has no effect.
    let put = bucket
        .streams
        .update(format!("{stream}.order"), written.order.into(), 0);
    put.await.map_err(|_| StreamError::NotWritten)?;
    Ok(stream)
}

/// Cancels a stream. Nodes accept that from its submitter, and from keys in their allow lists.
///
/// # Errors
/// NATS does not accept it.
pub async fn cancel(bucket: &Bucket, key: &KeyPair, stream: &StreamId) -> Result<(), StreamError> {
    let cancel = encode(&order::sign_cancel::<StreamTerms>(key, &bucket.charter, stream)?)?;
    let place = format!("{stream}.cancel.{}", key.public_key());
    let entry = bucket.streams.entry(&place).await.map_err(|error| nats(&error))?;
    let expected = entry.map_or(0, |entry| entry.revision);
    match bucket.streams.update(&place, cancel.into(), expected).await {
        Ok(_) => Ok(()),
        // The same cancellation was written a moment ago.
        Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => Ok(()),
        Err(error) => {
            let words = format!("stream {stream} could not be ended, and goes on: {error}");
            Err(BucketError::Nats(words).into())
        }
    }
}

/// Returns a stream with its hosts, in order.
///
/// # Errors
/// There is no such stream.
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
    /// The submitter's public nkey.
    pub submitter: String,
    /// The time of submission in seconds since 1970, by the submitter's clock.
    pub at: u64,
    /// All hosts.
    pub hosts: u32,
    /// Hosts on which it has ended for good.
    pub ended: u32,
    /// The share reported by each node, including nodes that are gone.
    pub shares: BTreeMap<String, StreamShare>,
}

/// Returns the streams that the fleet keeps, oldest first.
///
/// # Errors
/// NATS does not answer.
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
            // An invalid order is ignored.
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
    /// The sequence number to read next.
    pub next: u64,
    /// The run and number of the last message read.
    pub last: Option<(RunNumber, u64)>,
}

/// A message of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// A message, with the number of lost ones before it: the fleet had no space to keep them until they were read.
    Piece {
        /// The number of lost messages.
        lost: u64,
        /// The message.
        piece: Piece,
    },
    /// Nothing more comes.
    End(StreamEnd),
}

/// Follows a stream, with notifications about all of its hosts.
#[derive(Debug)]
pub struct Follower {
    bucket: Bucket,
    stream: StreamId,
    messages: Arc<stream::Stream>,
    /// For each host, a number that changes with news.
    news: Vec<watch::Sender<u64>>,
    ends: Vec<watch::Sender<Option<StreamEnd>>>,
}

impl Follower {
    /// Starts following a stream with this many hosts.
    ///
    /// # Errors
    /// NATS does not answer.
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

    /// Returns a reader of one host, from a position.
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

    /// Watches for news. Never returns, even if the connection to NATS is lost.
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
            // Readers fetch the content at their own speed.
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
        // Earlier messages are looked for at once.
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

/// Reads one host of a stream at its own speed. NATS keeps unread messages.
#[derive(Debug)]
pub struct HostReader {
    messages: Arc<stream::Stream>,
    subject: String,
    position: Position,
    news: watch::Receiver<u64>,
    ends: watch::Receiver<Option<StreamEnd>>,
}

impl HostReader {
    /// Returns the current position.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Returns the next message, waiting while NATS is unavailable.
    pub async fn next(&mut self) -> Read {
        loop {
            self.news.borrow_and_update();
            // Read before the messages, since an end is stored after the last one.
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

    /// Returns a message, unless it was read before or comes late from a former owner.
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
