//! The fleet's storage in NATS: a bucket for its state, one for its charter, and a stream of output.

pub(crate) mod markers;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::context::CreateStreamErrorKind;
use async_nats::jetstream::kv::{self, UpdateErrorKind};
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{self, LastRawMessageError};
use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectOptions};
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tracing::instrument::WithSubscriber as _;
use tracing::subscriber::NoSubscriber;
use trunkline_request::Backoff;
use trunkline_text::Printable;

use crate::state::{Entry, Key, Terms, Value, Written, Zones};

/// The version of the fleet's data. Nodes do nothing in a fleet of another version.
pub const PROTOCOL: u32 = 4;

/// The time limit for NATS's answer. The request may still be done afterwards.
const ANSWER: Duration = Duration::from_secs(3);

/// The time limit for an answer that is not urgent: NATS writes to a disk, which may be busy.
const PATIENCE: Duration = Duration::from_secs(10);

/// A bucket's entries are requested again after this long without one.
const LAPSE: Duration = Duration::from_secs(2);

/// The pauses before reconnecting to a server. The time until all nodes see each other's leases again is part of every
/// takeover.
const RECONNECTING: Backoff = Backoff::new(Duration::from_millis(4), Duration::from_secs(1));

/// The oldest nats-server with everything that a fleet needs: buckets with reads from the server that decides on
/// writes.
const NEEDED: (u64, u64) = (2, 9);

/// The oldest version whose clusters keep acknowledged data when one of their servers is killed. Of 76 courses with
/// such a cluster (`TRUNKLINE_FLEET_FAULTS=620-621`) 19 froze with 2.9.10 and 4 had a slow takeover; none of 40 did
/// with 2.10.29 and 2.11.10. With 2.9.10 a replica may miss entries that the others have, and count on from there when
/// it becomes the leader.
const NEEDED_IN_A_CLUSTER: (u64, u64) = (2, 10);

/// Returns advice about a missing connection, by the message of NATS's client.
fn advice(why: &str) -> &'static str {
    match () {
        () if why.contains("UnknownIssuer") => {
            "if the authority of its certificate is your own, name it: --ca FILE for `trunkline fleet init` and `join`, `ca` in \
             fleet.toml"
        }
        () if why.contains("certificate") => {
            "the certificate has to be valid now, for the name in the address, and of an authority that this machine trusts (`ca` in \
             fleet.toml)"
        }
        () if why.contains("authorization") => {
            "NATS's configuration has to have this machine's key, which `trunkline fleet key` prints, or fleet.toml the credentials \
             that it asks for"
        }
        () => "check the address and the firewall, and that the server is running",
    }
}

fn version_needed() -> String {
    let (major, minor) = NEEDED;
    format!("{major}.{minor}")
}

/// The space for the output of jobs, that of streams, and the input of jobs, each. The oldest is dropped first, and
/// readers that missed it are told. Unbounded output of one job would fill NATS, which then accepts no leases. NATS
/// reserves the space at once: if it has less, the smaller sizes are tried. The longest input fits into the smallest.
const ROOM: [i64; 3] = [1 << 30, 1 << 28, 3 << 25];

/// The access to a fleet.
#[derive(Debug, Clone)]
pub struct Access {
    /// The servers: `nats://host:4222` or `tls://host:4222`, comma-separated.
    pub servers: String,
    /// The prefix of all names in NATS, which lets several fleets share an account.
    pub prefix: String,
    /// The seed of the nkey for the log-in, if used.
    pub nkey: Option<String>,
    /// A file of credentials (JWT and seed), if used.
    pub credentials: Option<PathBuf>,
    /// Certificates of authorities to trust beside the system's.
    pub authorities: Option<PathBuf>,
}

/// The properties of a fleet, set when it is created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charter {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// A random number, which distinguishes a fleet from one that replaces it.
    #[serde(default)]
    pub id: u64,
    /// The division of hosts.
    pub zones: Zones,
    /// The time that jobs, results and output are kept.
    pub keep: Duration,
    /// The terms of leases.
    #[serde(default)]
    pub terms: Terms,
}

impl Charter {
    /// Returns the charter of a new fleet.
    pub fn new(zones: Zones, keep: Duration) -> Self {
        Self {
            protocol: PROTOCOL,
            id: random(),
            zones,
            keep,
            terms: Terms::default(),
        }
    }
}

/// An error with the fleet's place in NATS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BucketError {
    /// No server answers, or it refuses the log-in.
    #[error("cannot connect to NATS at {servers}: {why}; {}", advice(why))]
    Connect {
        /// As given.
        servers: String,
        /// The message of NATS's client.
        why: String,
    },
    /// The server is older than what a fleet needs.
    #[error(
        "NATS at {servers} is of version {version}; a fleet needs nats-server {} or later",
        version_needed()
    )]
    Old {
        /// As given.
        servers: String,
        /// The server's version.
        version: String,
    },
    /// The server has no JetStream, or the account may not use it.
    #[error(
        "NATS at {servers} has no JetStream for this account, or does not let this nkey do that ({why}); nats-server 2.9 or later \
         with `jetstream` in its configuration is needed, and `trunkline fleet init` needs a user with all permissions"
    )]
    NoJetStream {
        /// As given.
        servers: String,
        /// NATS's message.
        why: String,
    },
    /// Its configuration predates per-key inboxes.
    #[error(
        "NATS at {servers} does not let this machine's key read its answers: let it subscribe to \"{inbox}.>\" in the place of \
         \"_INBOX.>\" in NATS's configuration, as in deploy/nats-fleet.conf"
    )]
    Inbox {
        /// As given.
        servers: String,
        /// The prefix of the subjects for its answers.
        inbox: String,
    },
    /// There is no fleet of this name.
    #[error("there is no fleet {prefix:?} at {servers}; `trunkline fleet init` makes one")]
    NoFleet {
        /// Its name.
        prefix: String,
        servers: String,
    },
    /// The fleet already exists.
    #[error(
        "there is a fleet {0:?} already; `trunkline fleet join` joins it, and `trunkline fleet init --anew` puts a new one in its place"
    )]
    Exists(String),
    /// The fleet is in use.
    #[error(
        "node {node} was heard of {seconds} s ago, and a fleet at work is not replaced: end its nodes first (`trunkline fleet leave` \
         on each), or wait for {ttl} s after they were killed"
    )]
    AtWork {
        /// One of its nodes.
        node: String,
        /// The seconds since the node was last seen.
        seconds: u64,
        /// The seconds for which a node counts as alive.
        ttl: u64,
    },
    /// The fleet was created by another version.
    #[error(
        "the fleet speaks protocol {theirs} and this program {PROTOCOL}; use the same version of trunkline on all machines"
    )]
    Protocol {
        /// The fleet's.
        theirs: u32,
    },
    /// The value there was not written by this program.
    #[error("{0} in NATS cannot be read: somebody has overwritten it")]
    Tampered(&'static str),
    /// An error of NATS.
    #[error("NATS: {0}")]
    Nats(String),
}

/// An open fleet.
#[derive(Debug, Clone)]
pub struct Bucket {
    pub(crate) client: Client,
    pub(crate) jetstream: Context,
    pub(crate) state: kv::Store,
    about: kv::Store,
    /// Streams, whose entries do not expire.
    pub(crate) streams: kv::Store,
    pub(crate) prefix: String,
    pub charter: Charter,
}

/// The extent of the state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    /// The sequence number of the oldest entry.
    pub(crate) first: u64,
    /// The last sequence number.
    pub(crate) last: u64,
    /// The number of entries.
    pub(crate) entries: u64,
}

/// Returns true if a name can be used in the names in NATS: letters, digits, `-` and `_`.
pub fn is_plain(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !name.is_empty() && name.chars().all(is_plain)
}

impl Bucket {
    /// Creates a fleet.
    ///
    /// # Errors
    /// NATS cannot be reached or refuses, or the fleet exists.
    pub async fn create(access: &Access, charter: Charter, replicas: usize) -> Result<Self, BucketError> {
        let (client, jetstream) = connect(access).await?;
        let prefix = &access.prefix;
        let nats = |error: &dyn std::fmt::Display| BucketError::Nats(error.to_string());
        if jetstream.get_key_value(charter_bucket(prefix)).await.is_ok() {
            return Err(BucketError::Exists(prefix.clone()));
        }
        let state = bucket_config(&state_bucket(prefix), charter.keep, replicas);
        jetstream
            .create_stream(state)
            .await
            .map_err(|error| match error.kind() {
                CreateStreamErrorKind::JetStreamUnavailable | CreateStreamErrorKind::TimedOut => {
                    BucketError::NoJetStream {
                        servers: access.servers.clone(),
                        why: error.to_string(),
                    }
                }
                _ => nats(&error),
            })?;
        let output = stream::Config {
            name: output_stream(prefix),
            description: Some("trunkline: output of commands".into()),
            subjects: vec![format!("{prefix}.output.>")],
            max_age: charter.keep,
            num_replicas: replicas,
            ..stream::Config::default()
        };
        create_bounded(&jetstream, output).await?;
        let input = stream::Config {
            name: input_stream(prefix),
            description: Some("trunkline: what commands read".into()),
            subjects: vec![format!("{prefix}.input.>")],
            max_messages_per_subject: 1,
            max_age: charter.keep,
            num_replicas: replicas,
            ..stream::Config::default()
        };
        create_bounded(&jetstream, input).await?;
        let streams = bucket_config(&streams_bucket(prefix), Duration::ZERO, replicas);
        jetstream
            .create_stream(streams)
            .await
            .map_err(|error| nats(&error))?;
        let streamed = stream::Config {
            name: streamed_stream(prefix),
            description: Some("trunkline: output of streams".into()),
            subjects: vec![format!("{prefix}.streamed.>")],
            max_age: charter.keep,
            num_replicas: replicas,
            ..stream::Config::default()
        };
        create_bounded(&jetstream, streamed).await?;
        // Last, since this makes the fleet exist.
        let config = bucket_config(&charter_bucket(prefix), Duration::ZERO, replicas);
        let made = jetstream.create_stream(config.clone()).await;
        let made = made.map_err(|error| nats(&error))?;
        let about = jetstream.get_key_value(charter_bucket(prefix)).await;
        let about = about.map_err(|error| nats(&error))?;
        let written = about.put("fleet", encode(&charter)?.into()).await;
        written.map_err(|error| nats(&error))?;
        // Sealed, because a consumer delivers to any subject that its creator names, even one that the creator may not
        // write. Nothing can be written any more. A cluster of 2.9.10 does not start again after such an update; one of
        // 2.11.10 does.
        let is_new = is_of(NEEDED_IN_A_CLUSTER, &client.server_info().version);
        if is_new || made.cached_info().cluster.is_none() {
            let sealed = stream::Config {
                sealed: true,
                ..config
            };
            let sealed = jetstream.update_stream(sealed).await;
            sealed.map_err(|error| nats(&error))?;
        }
        drop(client);
        Self::open(access).await
    }

    /// Returns a warning if the fleet is on a cluster of a NATS that can lose data, as a sentence.
    pub fn cluster_warning(&self) -> Option<String> {
        let version = self.client.server_info().version;
        let (major, minor) = NEEDED_IN_A_CLUSTER;
        (!is_of(NEEDED_IN_A_CLUSTER, &version)).then(|| {
            format!(
                "a cluster of NATS {} can lose what it has acknowledged when one of its servers is killed, and the fleet freezes \
                 then: nats-server {major}.{minor} and later do not",
                Printable::text(version)
            )
        })
    }

    /// Returns the time by NATS's clock, which dates entries, in seconds since 1970.
    pub(crate) async fn time(&self) -> Result<i64, BucketError> {
        // A consumer is dated by NATS, and expires by itself.
        let consumer = pull::Config {
            filter_subject: format!("$KV.{}.frozen", self.state.name),
            inactive_threshold: Duration::from_secs(5),
            ..pull::Config::default()
        };
        let consumer = self.state.stream.create_consumer(consumer).await;
        let consumer = consumer.map_err(|error| BucketError::Nats(error.to_string()))?;
        Ok(consumer.cached_info().created.unix_timestamp())
    }

    /// Opens a fleet.
    ///
    /// # Errors
    /// NATS cannot be reached or refuses, or there is no fleet of this version.
    pub async fn open(access: &Access) -> Result<Self, BucketError> {
        let (client, jetstream) = connect(access).await?;
        let prefix = access.prefix.clone();
        let servers = access.servers.clone();
        let about = jetstream.get_key_value(charter_bucket(&prefix)).await;
        let Ok(about) = about else {
            // Without JetStream there are no buckets either.
            return Err(match without_jetstream(&jetstream).await {
                Some(why) => BucketError::NoJetStream { servers, why },
                None => BucketError::NoFleet { prefix, servers },
            });
        };
        let charter = about
            .get("fleet")
            .await
            .map_err(|error| BucketError::Nats(error.to_string()))?;
        let Some(charter) = charter else {
            return Err(BucketError::NoFleet { prefix, servers });
        };
        let charter: Charter = decode(&charter).map_err(|_| BucketError::Tampered("the fleet's charter"))?;
        if charter.protocol != PROTOCOL {
            return Err(BucketError::Protocol {
                theirs: charter.protocol,
            });
        }
        let state = jetstream.get_key_value(state_bucket(&prefix)).await;
        let state = state.map_err(|error| BucketError::Nats(error.to_string()))?;
        let streams = jetstream.get_key_value(streams_bucket(&prefix)).await;
        let streams = streams.map_err(|error| BucketError::Nats(error.to_string()))?;
        Ok(Self {
            client,
            jetstream,
            state,
            about,
            streams,
            prefix,
            charter,
        })
    }

    /// Returns true if the opened fleet has not been replaced.
    pub(crate) async fn is_same(&self) -> Result<bool, BucketError> {
        let nats = |why: String| BucketError::Nats(why);
        let asking = tokio::time::timeout(ANSWER, self.about.get("fleet")).await;
        let charter = asking.map_err(|_| nats("no answer".into()))?;
        let charter = charter.map_err(|error| nats(error.to_string()))?;
        let charter = charter.ok_or_else(|| nats("the fleet is not there".into()))?;
        let charter = decode::<Charter>(&charter);
        let charter = charter.map_err(|_| BucketError::Tampered("the fleet's charter"))?;
        Ok(charter.id == self.charter.id)
    }

    /// Removes the fleet of this name, with its jobs, results and output. Does nothing if there is none.
    ///
    /// # Errors
    /// NATS cannot be reached or refuses.
    pub(crate) async fn remove(access: &Access) -> Result<(), BucketError> {
        let (_, jetstream) = connect(access).await?;
        let prefix = &access.prefix;
        // The charter first, so that later requests find no fleet, or the new one.
        let buckets = [
            charter_bucket(prefix),
            state_bucket(prefix),
            streams_bucket(prefix),
        ];
        let buckets = buckets.map(|bucket| format!("KV_{bucket}"));
        let others = [
            output_stream(prefix),
            input_stream(prefix),
            streamed_stream(prefix),
        ];
        for stream in buckets.into_iter().chain(others) {
            match jetstream.delete_stream(&stream).await {
                Ok(_) => {}
                Err(error) if jetstream.get_stream(&stream).await.is_ok() => {
                    return Err(BucketError::Nats(error.to_string()));
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Returns the reason why the fleet is frozen, if it is.
    ///
    /// # Errors
    /// NATS does not answer.
    pub async fn frozen(&self) -> Result<Option<String>, BucketError> {
        let standing = self.state.get(Key::Frozen.to_string()).await;
        let standing = standing.map_err(|error| BucketError::Nats(error.to_string()))?;
        Ok(standing.map(|bytes| match decode(&bytes) {
            Ok(Value::Frozen(why)) => why,
            _ => BucketError::Tampered("why the fleet is frozen").to_string(),
        }))
    }

    /// Writes a value if the key's last revision is `expected` (0: if there is none).
    pub(crate) async fn write(&self, key: &Key, expected: u64, value: &Value) -> Written {
        let Ok(bytes) = encode(value) else {
            return Written::Lost;
        };
        let key_text = key.to_string();
        let writing = self.state.update(&key_text, bytes.into(), expected);
        match tokio::time::timeout(ANSWER, writing).await {
            Ok(Ok(revision)) => Written::Done(revision),
            Ok(Err(error)) if error.kind() == UpdateErrorKind::WrongLastRevision => self.standing(key).await,
            Ok(Err(error)) => {
                match error.to_string().contains("insufficient resources") {
                    true => tracing::warn!("NATS has no room left for {key_text}: {error}"),
                    false => tracing::debug!("writing {key_text}: {error}"),
                }
                Written::Lost
            }
            Err(_) => Written::Lost,
        }
    }

    /// Returns the value of a key from the server that decides on writes, since a replica may be behind.
    async fn standing(&self, key: &Key) -> Written {
        let subject = format!("{}{key}", self.state.prefix);
        let asking = self.state.stream.get_last_raw_message_by_subject(&subject);
        match tokio::time::timeout(ANSWER, asking).await {
            Ok(Ok(message)) => Written::Refused(Some(Entry {
                key: key.clone(),
                revision: message.sequence,
                value: decode(&message.payload).ok(),
            })),
            Ok(Err(error)) if error.kind() == stream::LastRawMessageErrorKind::NoMessageFound => {
                Written::Refused(None)
            }
            _ => Written::Lost,
        }
    }

    /// Returns the extent of the state, as the server reports it.
    pub(crate) async fn extent(&self) -> Result<Extent, BucketError> {
        let stream = self
            .jetstream
            .get_stream(format!("KV_{}", state_bucket(&self.prefix)));
        let stream = stream
            .await
            .map_err(|error| BucketError::Nats(error.to_string()))?;
        let state = &stream.cached_info().state;
        Ok(Extent {
            first: state.first_sequence,
            last: state.last_sequence,
            entries: state.messages,
        })
    }

    /// Removes everything about a stream without leaving a marker: watches do not report it.
    pub(crate) async fn forget_stream(&self, stream: &str) -> Result<(), BucketError> {
        debug_assert!(is_plain(stream), "{stream}");
        let subject = format!("{}{stream}.>", self.streams.prefix);
        let purge = self.streams.stream.purge().filter(subject);
        let removed = tokio::time::timeout(ANSWER, purge.into_future()).await;
        let removed = removed.map_err(|_| BucketError::Nats("no answer".into()))?;
        removed.map_err(|error| BucketError::Nats(error.to_string()))?;
        Ok(())
    }

    /// Returns the subject of a job's output of one host.
    pub(crate) fn output_subject(&self, job: &str, host: &str) -> String {
        format!("{}.output.{job}.{host}", self.prefix)
    }

    /// Returns the subject of a stream's output of one host.
    pub(crate) fn streamed_subject(&self, stream: &str, host: &str) -> String {
        format!("{}.streamed.{stream}.{host}", self.prefix)
    }

    pub(crate) fn streamed_stream(&self) -> String {
        streamed_stream(&self.prefix)
    }

    /// Returns the prefix of the fleet's names in NATS.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn output_stream(&self) -> String {
        output_stream(&self.prefix)
    }

    /// Returns the subject of a part of an input.
    pub(crate) fn input_subject(&self, input: &str, number: u32) -> String {
        format!("{}.input.{input}.{number}", self.prefix)
    }

    /// Returns the message from the server that decides on writes, since a replica may be behind.
    pub(crate) async fn input_message(
        &self,
        subject: &str,
    ) -> Result<Result<StreamMessage, LastRawMessageError>, BucketError> {
        let stream = self
            .jetstream
            .get_stream_no_info(input_stream(&self.prefix))
            .await;
        let stream = stream.map_err(|error| BucketError::Nats(error.to_string()))?;
        let asking = tokio::time::timeout(ANSWER, stream.get_last_raw_message_by_subject(subject)).await;
        asking.map_err(|_| BucketError::Nats("no answer".into()))
    }
}

/// Returns all current entries that match `pattern`.
///
/// # Errors
/// They cannot be read, or not completely.
pub(crate) async fn standing(store: &kv::Store, pattern: &str) -> Result<Vec<kv::Entry>, BucketError> {
    let late = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(entries) = standing_at_once(store, pattern).await? {
            return Ok(entries);
        }
        if tokio::time::Instant::now() >= late {
            let words = format!("not all of {pattern} has come within {} s", PATIENCE.as_secs());
            return Err(BucketError::Nats(words));
        }
    }
}

/// Returns `None` if entries stopped coming before the end: the last one may have been removed after counting.
async fn standing_at_once(store: &kv::Store, pattern: &str) -> Result<Option<Vec<kv::Entry>>, BucketError> {
    let nats = |error: &dyn std::fmt::Display| BucketError::Nats(error.to_string());
    // A watch of nothing reports nothing, not even its end.
    let counting = pull::Config {
        filter_subject: format!("{}{pattern}", store.prefix),
        inactive_threshold: Duration::from_secs(5),
        ..pull::Config::default()
    };
    let counting = store.stream.create_consumer(counting).await;
    if counting.map_err(|error| nats(&error))?.cached_info().num_pending == 0 {
        return Ok(Some(Vec::new()));
    }
    let info = store.stream.get_info().await.map_err(|error| nats(&error))?;
    let moment = info.state.last_sequence;
    let watch = store.watch_with_history(pattern).await;
    let mut watch = watch.map_err(|error| nats(&error))?;
    let mut entries = Vec::new();
    while let Ok(Some(entry)) = tokio::time::timeout(LAPSE, watch.next()).await {
        let entry = entry.map_err(|error| nats(&error))?;
        let is_all = is_all(&entry, moment);
        entries.push(entry);
        if is_all {
            return Ok(Some(entries));
        }
    }
    Ok(None)
}

/// Returns true if a watch has reported everything up to the bucket's last sequence number `moment`: entries are in the
/// order of writing. NATS's count of pending entries becomes wrong if one is overwritten before it is sent, and then
/// never reaches zero.
pub(crate) fn is_all(entry: &kv::Entry, moment: u64) -> bool {
    entry.delta == 0 || entry.revision >= moment
}

/// Creates a stream of output or input with the largest size for which there is space.
async fn create_bounded(jetstream: &Context, config: stream::Config) -> Result<(), BucketError> {
    let mut failed = None;
    for max_bytes in ROOM {
        let config = stream::Config {
            max_bytes,
            ..config.clone()
        };
        match jetstream.create_stream(config).await {
            Ok(_) => return Ok(()),
            Err(error) => failed = Some(BucketError::Nats(error.to_string())),
        }
    }
    failed.map_or(Ok(()), Err)
}

async fn connect(access: &Access) -> Result<(Client, Context), BucketError> {
    let failed = |why: String| BucketError::Connect {
        servers: access.servers.clone(),
        why,
    };
    let mut options = ConnectOptions::new()
        .name("trunkline")
        .connection_timeout(ANSWER)
        .request_timeout(Some(PATIENCE))
        .reconnect_delay_callback(|attempts| {
            let failures = attempts.saturating_sub(1);
            RECONNECTING.pause_after(failures.try_into().unwrap_or(u32::MAX))
        });
    // NATS's answers go to a subject that other machines' keys may not read.
    let inbox = access.nkey.as_deref().and_then(inbox_of);
    if let Some(inbox) = &inbox {
        options = options.custom_inbox_prefix(inbox);
    }
    let barred = Arc::new(Notify::new());
    let bars = barred.clone();
    options = options.event_callback(move |event| {
        let words = event.to_string().to_lowercase();
        if words.contains("permissions violation for subscription") {
            bars.notify_one();
        }
        async {}
    });
    if let Some(seed) = &access.nkey {
        options = options.nkey(seed.trim().to_owned());
    }
    if let Some(file) = &access.credentials {
        let with = options.credentials_file(file).await;
        options = with.map_err(|error| failed(format!("{}: {error}", file.display())))?;
    }
    if let Some(file) = &access.authorities {
        options = options.add_root_certificates(file.clone());
    }
    let servers: Vec<&str> = access.servers.split(',').map(str::trim).collect();
    // The error has everything that NATS's client would log.
    let connecting = options.connect(servers).with_subscriber(NoSubscriber::new());
    let client = connecting.await.map_err(|error| failed(error.to_string()))?;
    let version = client.server_info().version;
    if !is_of(NEEDED, &version) {
        return Err(BucketError::Old {
            servers: access.servers.clone(),
            version: Printable::text(version).to_string(),
        });
    }
    let jetstream = jetstream::new(client.clone());
    if let Some(inbox) = inbox {
        // The first answer: if it may not be read, it would be awaited in vain.
        tokio::select! {
            _ = jetstream.request::<_, _, serde_json::Value>("INFO", &()) => {}
            () = barred.notified() => {
                let servers = access.servers.clone();
                return Err(BucketError::Inbox { servers, inbox });
            }
        }
    }
    Ok((client, jetstream))
}

/// Returns the prefix of the subjects for answers to the owner of this seed.
fn inbox_of(seed: &str) -> Option<String> {
    let key = nkeys::KeyPair::from_seed(seed.trim()).ok()?;
    Some(format!("_INBOX_{}", key.public_key()))
}

/// Returns the reason why JetStream cannot be used, if any.
async fn without_jetstream(jetstream: &Context) -> Option<String> {
    match jetstream.request::<_, _, serde_json::Value>("INFO", &()).await {
        Ok(answer) => {
            let error = answer.get("error")?;
            let why = error.get("description").and_then(serde_json::Value::as_str);
            Some(Printable::text(why.unwrap_or("no reason is given")).to_string())
        }
        Err(error) => Some(error.to_string()),
    }
}

/// Returns true if a server has this version or a later one. A version that does not begin with two numbers is assumed
/// to be new.
fn is_of(needed: (u64, u64), version: &str) -> bool {
    let mut numbers = version.split('.').map(str::parse::<u64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= needed,
        _ => true,
    }
}

/// Returns a KV bucket as a stream. async-nats creates buckets only if the server reports more about the account than
/// nats-server 2.9 does. Without `allow_direct` only the server that decides on writes answers reads, never a replica.
/// Without `allow_rollup` a message replaces only the value of its own key, which matters because all submitters may
/// write messages.
fn bucket_config(bucket: &str, keep: Duration, replicas: usize) -> stream::Config {
    stream::Config {
        name: format!("KV_{bucket}"),
        subjects: vec![format!("$KV.{bucket}.>")],
        max_messages_per_subject: 1,
        discard: stream::DiscardPolicy::New,
        deny_delete: true,
        max_age: keep,
        num_replicas: replicas,
        ..stream::Config::default()
    }
}

fn state_bucket(prefix: &str) -> String {
    format!("{prefix}-state")
}

fn charter_bucket(prefix: &str) -> String {
    format!("{prefix}-charter")
}

fn streams_bucket(prefix: &str) -> String {
    format!("{prefix}-streams")
}

fn streamed_stream(prefix: &str) -> String {
    format!("{prefix}-streamed")
}

fn output_stream(prefix: &str) -> String {
    format!("{prefix}-output")
}

fn input_stream(prefix: &str) -> String {
    format!("{prefix}-input")
}

/// Returns a random number.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    // Fails only if the system has no randomness.
    if aws_lc_rs::rand::fill(&mut bytes).is_err() {
        tracing::warn!("no randomness");
    }
    u64::from_ne_bytes(bytes)
}

pub(crate) fn encode(value: &impl Serialize) -> Result<Vec<u8>, BucketError> {
    rmp_serde::to_vec_named(value).map_err(|error| BucketError::Nats(format!("cannot be written: {error}")))
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, BucketError> {
    rmp_serde::from_slice(bytes).map_err(|error| BucketError::Nats(format!("malformed: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_connect_is_told_where_to_look() {
        for (why, wanted) in [
            ("IO error: invalid peer certificate: UnknownIssuer", "--ca FILE"),
            (
                "IO error: invalid peer certificate: certificate not valid for name",
                "for the name in the address",
            ),
            ("authorization violation", "`trunkline fleet key` prints"),
            ("IO error: Connection refused", "check the address"),
        ] {
            let error = BucketError::Connect {
                servers: "tls://nats1".into(),
                why: why.into(),
            };
            let said = error.to_string();
            assert!(said.contains(why) && said.contains(wanted), "{said}");
        }
    }

    #[test]
    fn a_server_is_old_by_both_numbers_of_its_version() {
        for (version, is_new) in [
            ("2.9.10", true),
            ("2.10.0-beta.1", true),
            ("3.0.0", true),
            ("2.8.4", false),
            ("1.99.0", false),
            ("99999999999999999999.0", true),
            ("", true),
        ] {
            assert_eq!(is_of(NEEDED, version), is_new, "{version}");
        }
    }
}
