//! The fleet's place in NATS: a bucket for what must be agreed on, one for what it is, and a stream of output.

use std::path::PathBuf;
use std::time::Duration;

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::context::{CreateStreamErrorKind, KeyValueErrorKind};
use async_nats::jetstream::kv::{self, UpdateErrorKind};
use async_nats::jetstream::stream;
use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectOptions};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::state::{Entry, Key, Terms, Value, Written, Zones};

/// The version of what fleets write. Nodes do nothing in a fleet of another one.
pub const PROTOCOL: u32 = 1;

/// How long an answer of NATS is waited for. What has none by then may still be done.
const ANSWER: Duration = Duration::from_secs(3);

/// How to get into a fleet.
#[derive(Debug, Clone)]
pub struct Access {
    /// The servers: `nats://host:4222` or `tls://host:4222`, several with commas between them.
    pub servers: String,
    /// What all names in NATS begin with, so that several fleets can share an account.
    pub prefix: String,
    /// The seed of the nkey to log in with, if that is how.
    pub nkey: Option<String>,
    /// A file of credentials (JWT and seed), if that is how.
    pub credentials: Option<PathBuf>,
    /// Certificates of authorities to trust beside the system's.
    pub authorities: Option<PathBuf>,
}

/// What a fleet is, by whoever has made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charter {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// A random number: a fleet that is made anew in the place of another is another one.
    #[serde(default)]
    pub id: u64,
    /// How hosts are divided.
    pub zones: Zones,
    /// How long jobs, results and output are kept.
    pub keep: Duration,
    /// How long leases last.
    #[serde(default)]
    pub terms: Terms,
}

impl Charter {
    /// That of a new fleet.
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

/// What went wrong with the fleet's place in NATS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BucketError {
    /// No server answers, or it does not let us in.
    #[error(
        "cannot connect to NATS at {servers}: {why}; check the address, and that the nkey or credentials are those of this fleet"
    )]
    Connect {
        /// As they were given.
        servers: String,
        /// What NATS's client says.
        why: String,
    },
    /// The server has no JetStream, or the account may not use it.
    #[error(
        "NATS at {servers} has no JetStream for this account ({why}); nats-server 2.9 or later with `jetstream` in its configuration is needed"
    )]
    NoJetStream {
        /// As they were given.
        servers: String,
        /// What NATS says.
        why: String,
    },
    /// There is no fleet of this name.
    #[error("there is no fleet {prefix:?} at {servers}; `trunkline fleet init` makes one")]
    NoFleet {
        /// Its name.
        prefix: String,
        /// The servers.
        servers: String,
    },
    /// There is one already.
    #[error(
        "there is a fleet {0:?} already; `trunkline fleet join` joins it, and `trunkline fleet init --anew` puts a new one in its place"
    )]
    Exists(String),
    /// It is at work.
    #[error(
        "node {node} was heard of {seconds} s ago, and a fleet at work is not replaced: end its nodes first (`trunkline fleet leave` \
         on each), or wait for {ttl} s after they were killed"
    )]
    AtWork {
        /// One of its nodes.
        node: String,
        /// How long ago.
        seconds: u64,
        /// How long a node counts as being there.
        ttl: u64,
    },
    /// It was made by another version.
    #[error(
        "the fleet speaks protocol {theirs} and this program {PROTOCOL}; use the same version of trunkline on all machines"
    )]
    Protocol {
        /// The fleet's.
        theirs: u32,
    },
    /// NATS says so.
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
    pub(crate) prefix: String,
    /// What it is.
    pub charter: Charter,
}

/// Whether a name can be a part of the names in NATS: letters, digits, `-` and `_`.
pub fn is_plain(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !name.is_empty() && name.chars().all(is_plain)
}

impl Bucket {
    /// Makes a fleet.
    ///
    /// # Errors
    /// Where NATS cannot be reached or does not let us, and where there is one.
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
        jetstream
            .create_stream(output)
            .await
            .map_err(|error| nats(&error))?;
        // Last: a fleet is there when this is.
        let about = bucket_config(&charter_bucket(prefix), Duration::ZERO, replicas);
        jetstream
            .create_stream(about)
            .await
            .map_err(|error| nats(&error))?;
        let about = jetstream.get_key_value(charter_bucket(prefix)).await;
        let about = about.map_err(|error| nats(&error))?;
        let written = about.put("fleet", encode(&charter)?.into()).await;
        written.map_err(|error| nats(&error))?;
        drop(client);
        Self::open(access).await
    }

    /// The time by NATS's clock, which entries are dated by, in seconds since 1970.
    pub(crate) async fn time(&self) -> Result<i64, BucketError> {
        // What NATS dates, and forgets by itself.
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
    /// Where NATS cannot be reached or does not let us, and where there is none, or of another version.
    pub async fn open(access: &Access) -> Result<Self, BucketError> {
        let (client, jetstream) = connect(access).await?;
        let prefix = access.prefix.clone();
        let servers = access.servers.clone();
        let about = jetstream.get_key_value(charter_bucket(&prefix)).await;
        let about = about.map_err(|error| match error.kind() {
            KeyValueErrorKind::JetStream => BucketError::NoJetStream {
                servers: servers.clone(),
                why: error.to_string(),
            },
            _ => BucketError::NoFleet {
                prefix: prefix.clone(),
                servers: servers.clone(),
            },
        })?;
        let charter = about
            .get("fleet")
            .await
            .map_err(|error| BucketError::Nats(error.to_string()))?;
        let Some(charter) = charter else {
            return Err(BucketError::NoFleet { prefix, servers });
        };
        let charter: Charter = decode(&charter)?;
        if charter.protocol != PROTOCOL {
            return Err(BucketError::Protocol {
                theirs: charter.protocol,
            });
        }
        let state = jetstream.get_key_value(state_bucket(&prefix)).await;
        let state = state.map_err(|error| BucketError::Nats(error.to_string()))?;
        Ok(Self {
            client,
            jetstream,
            state,
            about,
            prefix,
            charter,
        })
    }

    /// Whether the fleet that was opened is the one that is there.
    pub(crate) async fn is_same(&self) -> Result<bool, BucketError> {
        let nats = |why: String| BucketError::Nats(why);
        let asking = tokio::time::timeout(ANSWER, self.about.get("fleet")).await;
        let charter = asking.map_err(|_| nats("no answer".into()))?;
        let charter = charter.map_err(|error| nats(error.to_string()))?;
        let charter = charter.ok_or_else(|| nats("the fleet is not there".into()))?;
        Ok(decode::<Charter>(&charter)?.id == self.charter.id)
    }

    /// Removes the fleet of this name, with its jobs, their results and their output; nothing where there is none.
    ///
    /// # Errors
    /// Where NATS cannot be reached or does not let us.
    pub(crate) async fn remove(access: &Access) -> Result<(), BucketError> {
        let (_, jetstream) = connect(access).await?;
        let prefix = &access.prefix;
        // First what says that there is a fleet: who asks later finds none, or the new one.
        let buckets = [charter_bucket(prefix), state_bucket(prefix)].map(|bucket| format!("KV_{bucket}"));
        for stream in buckets.into_iter().chain([output_stream(prefix)]) {
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

    /// Why nothing is started in the whole fleet, where that is so.
    ///
    /// # Errors
    /// Where NATS does not answer.
    pub async fn frozen(&self) -> Result<Option<String>, BucketError> {
        let standing = self.state.get(Key::Frozen.to_string()).await;
        let standing = standing.map_err(|error| BucketError::Nats(error.to_string()))?;
        Ok(match standing.map(|bytes| decode(&bytes)).transpose()? {
            Some(Value::Frozen(why)) => Some(why),
            _ => None,
        })
    }

    /// Writes a value if the key's last revision is this one (0: if there is none).
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
                tracing::debug!("writing {key_text}: {error}");
                Written::Lost
            }
            Err(_) => Written::Lost,
        }
    }

    /// What stands at a key, asked of the one who decides on writes: a copy may be behind.
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

    /// The last sequence number of the state, and how many entries it has, as the server says.
    pub(crate) async fn extent(&self) -> Result<(u64, u64), BucketError> {
        let stream = self
            .jetstream
            .get_stream(format!("KV_{}", state_bucket(&self.prefix)));
        let stream = stream
            .await
            .map_err(|error| BucketError::Nats(error.to_string()))?;
        let state = &stream.cached_info().state;
        Ok((state.last_sequence, state.messages))
    }

    /// Where the output of a host of a job goes.
    pub(crate) fn output_subject(&self, job: &str, host: &str) -> String {
        format!("{}.output.{job}.{host}", self.prefix)
    }

    pub(crate) fn output_stream(&self) -> String {
        output_stream(&self.prefix)
    }
}

async fn connect(access: &Access) -> Result<(Client, Context), BucketError> {
    let failed = |why: String| BucketError::Connect {
        servers: access.servers.clone(),
        why,
    };
    let mut options = ConnectOptions::new()
        .name("trunkline")
        .connection_timeout(ANSWER)
        .request_timeout(Some(ANSWER));
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
    let client = options
        .connect(servers)
        .await
        .map_err(|error| failed(error.to_string()))?;
    let jetstream = jetstream::new(client.clone());
    Ok((client, jetstream))
}

/// A KV bucket as the stream that it is. async-nats makes them only where the server tells more of the account than
/// nats-server 2.9 does. Without `allow_direct` reads are answered by whoever decides on writes, and never by a copy.
fn bucket_config(bucket: &str, keep: Duration, replicas: usize) -> stream::Config {
    stream::Config {
        name: format!("KV_{bucket}"),
        subjects: vec![format!("$KV.{bucket}.>")],
        max_messages_per_subject: 1,
        discard: stream::DiscardPolicy::New,
        allow_rollup: true,
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

fn output_stream(prefix: &str) -> String {
    format!("{prefix}-output")
}

/// A number that no other process has.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    // Fails only where the system has no randomness at all.
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
