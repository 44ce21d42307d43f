//! The interface for submitters: submit jobs, follow them, cancel them, and see the fleet.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::jetstream::consumer::push;
use futures_util::StreamExt as _;
use nkeys::KeyPair;
use tokio::sync::mpsc;

use crate::bucket::{Access, Bucket, BucketError, decode, standing};
use crate::order::job::{JobOrder, JobTerms};
use crate::order::{self, OrderError, OrderedHost};
use crate::report::JobReport;
use crate::running::Stream;
use crate::state::{Claim, Exit, Fate, Holder, JobId, Key, Member, Returned, Value, Written};

/// The time limit for announced output to arrive once every host is settled.
const LATE_OUTPUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEvent {
    /// The fate of a host, by its index. A host that may have started can still turn out to have ended.
    Fate(u32, Fate),
    /// Output of a host.
    Output(u32, Stream, Vec<u8>),
    /// Some of a host's output is lost: this many messages.
    Incomplete(u32, u64),
}

/// The reason why there is no job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// NATS failed.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// The order is invalid.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// It was not stored, so nothing has started.
    #[error(
        "the job could not be written to NATS: it did not start on any host; check that this nkey may submit jobs"
    )]
    NotWritten,
    /// It may have been stored.
    #[error(
        "NATS did not answer while job {0} was being written: it may have started; `trunkline fleet attach {0}` shows it"
    )]
    Unknown(JobId),
    /// It was stored, but is gone.
    #[error(
        "NATS has taken job {0} and has lost it: the job may have started. NATS may be damaged (two servers that write to one directory?): \
         put that right, and make the fleet anew (`trunkline fleet init --anew`)"
    )]
    Lost(JobId),
    /// It belongs to another submitter.
    #[error(
        "job {job} is not this machine's: {submitter} has submitted it, and only there it is run again (`--retry-unknown` signs \
         its commands anew)"
    )]
    NotOwn {
        /// Its name.
        job: JobId,
        /// The public nkey of the submitter.
        submitter: String,
    },
    /// There is no such job, or it was dropped.
    #[error("there is no job {0}, or it is older than what the fleet keeps")]
    NoJob(JobId),
}

/// Submits a job to the fleet, and returns its name. The fleet continues by itself.
///
/// # Errors
/// Each says whether anything may have started.
pub async fn submit(
    bucket: &Bucket,
    key: &KeyPair,
    hosts: &[OrderedHost],
    terms: JobTerms,
) -> Result<JobId, SubmitError> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let written = order::sign(key, &bucket.charter, since.as_secs(), hosts, terms)?;
    let job = written.id;
    for (number, part) in written.parts.into_iter().enumerate() {
        let put = bucket
            .state
            .update(format!("job.{job}.hosts.{number}"), part.into(), 0);
        put.await.map_err(|_| SubmitError::NotWritten)?;
    }
    // Without its order a job has no effect.
    let put = bucket
        .state
        .update(format!("job.{job}.order"), written.order.into(), 0);
    match put.await {
        Ok(_) => Ok(job),
        Err(error) => {
            tracing::debug!("submitting: {error}");
            Err(SubmitError::Unknown(job))
        }
    }
}

/// Cancels a job: running commands are ended, and nothing more is started. Nodes accept that from the job's submitter,
/// and from keys in their allow lists.
///
/// # Errors
/// NATS does not accept it.
pub async fn cancel(bucket: &Bucket, key: &KeyPair, job: &JobId) -> Result<(), SubmitError> {
    let (who, charter) = (key.public_key(), &bucket.charter);
    let cancel = order::sign_cancel::<JobTerms>(key, charter, job)?;
    let (place, value) = (Key::Cancel(job.clone(), who.clone()), Value::Cancel(cancel));
    let mut expected = 0;
    // Data of others in this place is overwritten.
    for _ in 0..3 {
        match bucket.write(&place, expected, &value).await {
            Written::Done(_) => return Ok(()),
            Written::Refused(Some(standing)) => match &standing.value {
                Some(Value::Cancel(standing))
                    if order::is_cancel::<JobTerms>(charter, job, &who, standing) =>
                {
                    return Ok(());
                }
                _ => expected = standing.revision,
            },
            Written::Refused(None) | Written::Lost => {}
        }
    }
    let words = format!("job {job} could not be cancelled: NATS did not answer; it goes on");
    Err(BucketError::Nats(words).into())
}

/// Returns the order of a job.
///
/// # Errors
/// There is no such job.
pub async fn order_of(bucket: &Bucket, job: &JobId) -> Result<JobOrder, SubmitError> {
    let entry = bucket.state.entry(format!("job.{job}.order")).await;
    let entry = entry.map_err(|error| BucketError::Nats(error.to_string()))?;
    let entry = entry.ok_or_else(|| SubmitError::NoJob(job.clone()))?;
    let got = u64::try_from(entry.created.unix_timestamp()).unwrap_or_default();
    Ok(order::read(&bucket.charter, job, &entry.value, got)?)
}

/// Returns the order of a job that the key `who` has submitted.
///
/// # Errors
/// There is no such job, or it has another submitter.
pub async fn own_order(bucket: &Bucket, who: &str, job: &JobId) -> Result<JobOrder, SubmitError> {
    let order = order_of(bucket, job).await?;
    match order.submitter == who {
        true => Ok(order),
        false => Err(SubmitError::NotOwn {
            job: job.clone(),
            submitter: order.submitter,
        }),
    }
}

/// Returns the hosts of a job, in order.
///
/// # Errors
/// There is no such job.
pub async fn hosts_of(bucket: &Bucket, job: &JobId) -> Result<Vec<OrderedHost>, SubmitError> {
    let missing = || SubmitError::NoJob(job.clone());
    let nats = |error: &dyn std::fmt::Display| BucketError::Nats(error.to_string());
    let order = order_of(bucket, job).await?;
    let mut parts = Vec::new();
    for part in 0..order.parts() {
        let part = bucket.state.get(format!("job.{job}.hosts.{part}")).await;
        let part = part.map_err(|error| nats(&error))?.ok_or_else(missing)?;
        parts.push(part.to_vec());
    }
    Ok(order.read_hosts(&parts)?)
}

/// Reports everything about a job, from its beginning, until every host is settled and its output has arrived.
///
/// # Errors
/// There is no such job, or NATS cannot be asked. A temporary loss of the connection is waited out.
pub async fn follow(bucket: &Bucket, job: &JobId, events: mpsc::Sender<JobEvent>) -> Result<(), SubmitError> {
    let hosts = hosts_of(bucket, job).await?;
    let nats = |error: &dyn std::fmt::Display| BucketError::Nats(error.to_string());
    let fates = bucket.state.watch_with_history(format!("job.{job}.fate.>")).await;
    let mut fates = fates.map_err(|error| nats(&error))?;
    let stream = bucket.jetstream.get_stream(bucket.output_stream()).await;
    let stream = stream.map_err(|error| nats(&error))?;
    let consumer = stream.create_consumer(push::OrderedConfig {
        deliver_subject: bucket.client.new_inbox(),
        filter_subject: bucket.output_subject(&job.0, "*"),
        ..push::OrderedConfig::default()
    });
    let mut output = consumer
        .await
        .map_err(|error| nats(&error))?
        .messages()
        .await
        .map_err(|error| nats(&error))?;
    let mut following = Following {
        settled: BTreeMap::new(),
        got: HashMap::new(),
    };
    loop {
        let is_settled = following.settled.len() == hosts.len();
        if is_settled && following.missing().next().is_none() {
            return Ok(());
        }
        let event = tokio::select! {
            Some(entry) = fates.next() => {
                let Ok(entry) = entry else { continue };
                let Ok(Key::Fate(_, host)) = entry.key.parse() else { continue };
                let fate = fate_of(&entry.value);
                following.fate(host, &fate);
                JobEvent::Fate(host, fate)
            }
            Some(message) = output.next() => {
                let Ok(message) = message else { continue };
                let host = message.subject.rsplit('.').next().and_then(|host| host.parse().ok());
                let (Some(host), Some((stream, data))) = (host, message.payload.split_first()) else { continue };
                *following.got.entry(host).or_default() += 1;
                let stream = if *stream == 2 { Stream::Stderr } else { Stream::Stdout };
                JobEvent::Output(host, stream, data.to_vec())
            }
            () = tokio::time::sleep(LATE_OUTPUT), if is_settled => {
                for (host, messages) in following.missing() {
                    let _ = events.send(JobEvent::Incomplete(host, messages)).await;
                }
                return Ok(());
            }
        };
        if events.send(event).await.is_err() {
            return Ok(());
        }
    }
}

/// Decodes a host's fate. Nodes write only valid values, so an invalid one is reported as an end, and not waited for.
fn fate_of(bytes: &[u8]) -> Fate {
    match decode(bytes) {
        Ok(Value::Fate(fate)) => fate,
        _ => Fate::Ended {
            claim: Claim {
                holder: Holder {
                    node: String::new(),
                    incarnation: 0,
                },
                intent: 0,
                fence: 0,
            },
            returned: Returned {
                exit: Exit::tampered_exit(),
                output: 0,
            },
        },
    }
}

struct Following {
    /// The settled hosts, with the number of their messages of output.
    settled: BTreeMap<u32, u64>,
    got: HashMap<u32, u64>,
}

impl Following {
    fn fate(&mut self, host: u32, fate: &Fate) {
        let messages = match fate {
            Fate::Claimed(_) => return,
            Fate::Ended { returned, .. } => returned.output,
            Fate::NotStarted { .. } | Fate::Unknown { .. } => 0,
        };
        self.settled.insert(host, messages);
    }

    fn missing(&self) -> impl Iterator<Item = (u32, u64)> {
        self.settled.iter().filter_map(|(host, messages)| {
            let got = self.got.get(host).copied().unwrap_or_default();
            (got < *messages).then(|| (*host, messages - got))
        })
    }
}

/// Returns the current fates of a job's hosts, by index. Hosts without one have not been taken by a node.
///
/// # Errors
/// NATS does not return everything.
pub async fn fates_of(bucket: &Bucket, job: &JobId) -> Result<BTreeMap<u32, Fate>, SubmitError> {
    let entries = standing(&bucket.state, &format!("job.{job}.fate.*")).await?;
    let fates = entries.into_iter().filter_map(|entry| match entry.key.parse() {
        Ok(Key::Fate(_, host)) => Some((host, fate_of(&entry.value))),
        _ => None,
    });
    Ok(fates.collect())
}

/// Returns the hosts of a job for which it is unknown whether the command ran, in order.
///
/// # Errors
/// There is no such job, or NATS does not answer.
pub async fn unknown_of(bucket: &Bucket, job: &JobId) -> Result<Vec<OrderedHost>, SubmitError> {
    let hosts = hosts_of(bucket, job).await?;
    let fates = fates_of(bucket, job).await?;
    let unknown = fates
        .into_iter()
        .filter(|(_, fate)| matches!(fate, Fate::Unknown { .. }));
    let places = unknown
        .map(|(host, _)| host)
        .filter_map(|host| usize::try_from(host).ok());
    Ok(places.filter_map(|place| hosts.get(place).cloned()).collect())
}

/// Returns the jobs that the fleet keeps, the oldest first, without their cancellations and failures.
///
/// # Errors
/// NATS does not answer.
pub async fn jobs(bucket: &Bucket) -> Result<Vec<JobReport>, BucketError> {
    let mut jobs = BTreeMap::new();
    for entry in standing(&bucket.state, "job.*.order").await? {
        let Some(job) = entry.key.split('.').nth(1) else {
            continue;
        };
        let job = JobId(job.to_owned());
        let got = u64::try_from(entry.created.unix_timestamp()).unwrap_or_default();
        // An invalid order is ignored.
        let Ok(order) = order::read::<JobTerms>(&bucket.charter, &job, &entry.value, got) else {
            continue;
        };
        let report = JobReport {
            job: job.0.clone(),
            submitter: order.submitter,
            at: order.at,
            hosts: order.hosts,
            ..JobReport::default()
        };
        jobs.insert(job, report);
    }
    for entry in standing(&bucket.state, "job.*.fate.*").await? {
        let Ok(Key::Fate(job, _)) = entry.key.parse() else {
            continue;
        };
        let Some(job) = jobs.get_mut(&job) else { continue };
        *match fate_of(&entry.value) {
            Fate::Claimed(_) => &mut job.running,
            Fate::Ended { returned, .. } if returned.exit.is_success() => &mut job.succeeded,
            Fate::Ended { .. } => &mut job.failed,
            Fate::NotStarted { .. } => &mut job.not_started,
            Fate::Unknown { .. } => &mut job.unknown,
        } += 1;
    }
    let mut jobs: Vec<JobReport> = jobs.into_values().collect();
    jobs.sort_by_key(|job| job.at);
    Ok(jobs)
}

/// A fleet at a moment.
#[derive(Debug, Clone, Default)]
pub struct FleetStatus {
    /// Its nodes by name, including those not seen for a while, with the number of their shards and the seconds since
    /// NATS last heard of them.
    pub nodes: Vec<(String, Member, usize, u64)>,
    /// The reason why it is frozen, if it is.
    pub frozen: Option<String>,
}

/// Returns the current state of the fleet.
///
/// # Errors
/// NATS does not answer.
pub async fn status(bucket: &Bucket) -> Result<FleetStatus, BucketError> {
    let mut status = FleetStatus::default();
    let mut shards: HashMap<String, usize> = HashMap::new();
    let time = bucket.time().await?;
    let mut nodes = Vec::new();
    for pattern in ["member.*", "lease.>", "frozen"] {
        for entry in standing(&bucket.state, pattern).await? {
            match (entry.key.parse(), decode(&entry.value)) {
                (Ok(Key::Member(node)), Ok(Value::Member(member))) => {
                    nodes.push((node, member, entry.created.unix_timestamp()));
                }
                (Ok(Key::Lease(_)), Ok(Value::Lease(lease))) => {
                    if let Some(holder) = lease.holder {
                        *shards.entry(holder.node).or_default() += 1;
                    }
                }
                (Ok(Key::Frozen), Ok(Value::Frozen(why))) => status.frozen = Some(why),
                _ => {}
            }
        }
    }
    // NATS returns them in the order of their last write.
    nodes.sort_by(|(one, ..), (other, ..)| one.cmp(other));
    let nodes = nodes.into_iter().map(|(node, member, at)| {
        let own = shards.get(&node).copied().unwrap_or_default();
        (node, member, own, u64::try_from(time - at).unwrap_or_default())
    });
    status.nodes = nodes.collect();
    Ok(status)
}

/// The reason why no node takes a host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// The fleet is frozen, for this reason. Running commands continue.
    Frozen(String),
    /// There is no node, or none of the host's site if it has one.
    NoNode(Option<String>),
    /// All nodes are drained.
    Drained(Option<String>),
}

impl std::fmt::Display for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Frozen(why) => write!(f, "the fleet is frozen: {why}"),
            Self::NoNode(None) => f.write_str("no node of the fleet is there (`trunkline fleet join`)"),
            Self::NoNode(Some(site)) => write!(f, "no node of the site {site} is there"),
            Self::Drained(None) => f.write_str("all nodes are drained"),
            Self::Drained(Some(site)) => write!(f, "all nodes of the site {site} are drained"),
        }
    }
}

/// Returns for each host the reason why no node takes it, if there is one.
///
/// # Errors
/// NATS does not answer.
pub async fn waits(bucket: &Bucket, hosts: &[OrderedHost]) -> Result<Vec<Option<Wait>>, BucketError> {
    let frozen = bucket.frozen().await?.map(Wait::Frozen);
    let (ttl, zones) = (bucket.charter.terms.ttl.as_secs(), &bucket.charter.zones);
    let time = bucket.time().await?;
    let mut live = BTreeMap::new();
    for entry in standing(&bucket.state, "member.*").await? {
        let age = u64::try_from(time - entry.created.unix_timestamp()).unwrap_or_default();
        if let Ok(Value::Member(member)) = decode(&entry.value)
            && let Some(holder) = member.holder.clone().filter(|_| age < ttl)
        {
            live.insert(holder, member);
        }
    }
    let mut owners = HashMap::new();
    for entry in standing(&bucket.state, "lease.>").await? {
        if let (Ok(Key::Lease(unit)), Ok(Value::Lease(lease))) = (entry.key.parse(), decode(&entry.value)) {
            owners.extend(lease.holder.map(|holder| (unit, holder)));
        }
    }
    let why = |host: &OrderedHost| {
        let unit = zones.unit_of(&host.destination.host);
        let is_owned = owners.get(&unit).is_some_and(|owner| live.contains_key(owner));
        if frozen.is_some() || is_owned {
            return frozen.clone();
        }
        let is_of_site = |member: &&Member| unit.site.is_none() || member.site == unit.site;
        let of_site: Vec<&Member> = live.values().filter(is_of_site).collect();
        match of_site.iter().all(|member| member.draining) {
            true if of_site.is_empty() => Some(Wait::NoNode(unit.site)),
            true => Some(Wait::Drained(unit.site)),
            // A node will take it in a moment.
            false => None,
        }
    };
    Ok(hosts.iter().map(why).collect())
}

/// Removes the fleet of this name, with its jobs, results and output. Does nothing if there is none.
///
/// # Errors
/// NATS cannot be reached or refuses, or a node of the fleet is alive.
pub async fn remove(access: &Access) -> Result<(), BucketError> {
    match Bucket::open(access).await {
        Ok(bucket) => {
            let ttl = bucket.charter.terms.ttl.as_secs();
            let status = status(&bucket).await?;
            let at_work =
                |(_, member, _, age): &&(String, Member, usize, u64)| member.holder.is_some() && *age < ttl;
            if let Some((node, _, _, seconds)) = status.nodes.iter().find(at_work) {
                return Err(BucketError::AtWork {
                    node: node.clone(),
                    seconds: *seconds,
                    ttl,
                });
            }
        }
        // An incomplete fleet has no nodes.
        Err(BucketError::NoFleet { .. } | BucketError::Protocol { .. }) => {}
        Err(error) => return Err(error),
    }
    Bucket::remove(access).await
}
