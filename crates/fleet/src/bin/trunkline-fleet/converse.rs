//! What `trunkline run --fleet` starts: hands over a job, and tells the client of it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;

use anyhow::Context as _;
use nkeys::KeyPair;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use trunkline_control::fleet::{FleetHost, FleetReply, FleetRequest, HOSTS_IN_A_FRAME, LONGEST_INPUT};
use trunkline_control::place::Place;
use trunkline_control::protocol::Exit as SessionExit;
use trunkline_control::socket::{FrameReader, FrameWriter, split};
use trunkline_fleet::bucket::{Bucket, BucketError};
use trunkline_fleet::input;
use trunkline_fleet::order::OrderedHost;
use trunkline_fleet::order::job::{JobTerms, OrderedInput};
use trunkline_fleet::running::Stream;
use trunkline_fleet::state::{Exit, Fate, JobId, Limits, Returned, StreamId};
use trunkline_fleet::submitting::{self, JobEvent, SubmitError};
use trunkline_request::failure::{ErrorKind, Execution, Failure};

use crate::settings::Settings;

/// Talks to the client at standard input until all is told, or it has gone.
pub(crate) async fn run(place: &Place, url: Option<String>) -> anyhow::Result<()> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    let socket = UnixStream::from_std(socket).context("this is started by `trunkline run --fleet`")?;
    let (mut requests, replies) = split(socket);
    let last = match talk(place, url, &mut requests, &replies).await {
        Ok(()) => FleetReply::Done,
        Err(failure) => FleetReply::Failed(failure),
    };
    // A client that has gone misses nothing.
    let _ = replies.send(&last).await;
    Ok(())
}

async fn talk(
    place: &Place,
    url: Option<String>,
    requests: &mut FrameReader,
    replies: &FrameWriter,
) -> Result<(), Failure> {
    let local = |error: anyhow::Error| Failure::new(ErrorKind::Configuration, format!("{error:#}"));
    let settings = match url {
        Some(url) => Settings::for_url(place, url),
        None => Settings::of_member(place),
    };
    let settings = settings.map_err(local)?;
    let access = settings.access(place).map_err(local)?;
    let bucket = Bucket::open(&access).await.map_err(|error| not_begun(&error))?;
    let (mut hosts, mut input) = (Vec::new(), Vec::new());
    let mut is_new = true;
    let job = loop {
        match next(requests).await? {
            FleetRequest::Hosts(more) => hosts.extend(more.into_iter().map(ordered)),
            FleetRequest::Input(more) => {
                if (input.len() + more.len()) as u64 > LONGEST_INPUT {
                    let words = format!("a job's input has at most {} MiB", LONGEST_INPUT >> 20);
                    return Err(Failure::new(ErrorKind::Configuration, words));
                }
                input.extend(more);
            }
            FleetRequest::Submit(limits) => {
                is_open(&bucket).await?;
                let terms = JobTerms {
                    limits: Limits {
                        at_once: limits.at_once.max(1),
                        batch: limits.batch.max(1),
                        failures: limits.failures,
                    },
                    limit: limits.limit,
                    retries: limits.retries,
                    input: upload(&bucket, std::mem::take(&mut input), requests).await?,
                };
                break submit(place, &settings, &bucket, &hosts, terms).await?;
            }
            FleetRequest::Attach(job) => {
                is_new = false;
                break JobId(job);
            }
            FleetRequest::RetryUnknown(job) => {
                let job = JobId(job);
                let order = submitting::order_of(&bucket, &job)
                    .await
                    .map_err(|error| of_submit(&error))?;
                hosts = submitting::unknown_of(&bucket, &job)
                    .await
                    .map_err(|error| of_submit(&error))?;
                if hosts.is_empty() {
                    let words = "of no host of that job is it unknown whether the command ran";
                    return Err(Failure::new(ErrorKind::Configuration, words));
                }
                is_open(&bucket).await?;
                // They hold for the hosts that are left as they did for all, which read the same.
                break submit(place, &settings, &bucket, &hosts, order.terms).await?;
            }
            FleetRequest::Stream(wanted) => {
                let stream =
                    crate::stream::submit(&bucket, &settings.key(place).map_err(local)?, &hosts, wanted)
                        .await?;
                return crate::stream::converse(place, &settings, &bucket, &stream, requests, replies).await;
            }
            FleetRequest::AttachStream(stream) => {
                let stream = StreamId(stream);
                return crate::stream::converse(place, &settings, &bucket, &stream, requests, replies).await;
            }
            FleetRequest::Cancel | FleetRequest::Follow { .. } | FleetRequest::Leave => return Ok(()),
        }
    };
    let missing = |error| match error {
        SubmitError::NoJob(job) if is_new => of_submit(&SubmitError::Lost(job)),
        error => of_submit(&error),
    };
    let all = submitting::hosts_of(&bucket, &job).await.map_err(missing)?;
    let order = submitting::order_of(&bucket, &job).await.map_err(missing)?;
    let canceller = Canceller {
        key: settings.key(place).map_err(local)?,
        submitter: order.submitter,
    };
    let hosts = u32::try_from(all.len()).unwrap_or(u32::MAX);
    let job_told = FleetReply::Job {
        job: job.0.clone(),
        hosts,
    };
    tell(replies, job_told).await?;
    for part in all.chunks(HOSTS_IN_A_FRAME) {
        let part = part
            .iter()
            .map(|host| (host.name.clone(), host.destination.clone()));
        tell(replies, FleetReply::Hosts(part.collect())).await?;
    }
    follow(&bucket, &job, hosts, &canceller, requests, replies).await
}

/// Hands an input over, if there is one, unless the client does not want that any more.
async fn upload(
    bucket: &Bucket,
    input: Vec<u8>,
    requests: &mut FrameReader,
) -> Result<Option<OrderedInput>, Failure> {
    if input.is_empty() {
        return Ok(None);
    }
    tokio::select! {
        uploaded = input::upload(bucket, &input) => {
            uploaded.map(Some).map_err(|error| Failure::new(ErrorKind::Network, error.to_string()))
        }
        // It says nothing else before it has an answer.
        _ = requests.next::<FleetRequest>() => {
            let words = "cancelled while the job's input was sent: the job did not start on any host";
            Err(Failure::new(ErrorKind::Local, words))
        }
    }
}

/// Whether somebody would begin a job.
async fn is_open(bucket: &Bucket) -> Result<(), Failure> {
    if let Some(why) = bucket.frozen().await.map_err(|error| not_begun(&error))? {
        let words = format!(
            "the fleet is frozen, and nothing was started: {why}. `trunkline fleet init --anew` puts a new one in its place"
        );
        return Err(Failure::new(ErrorKind::Configuration, words));
    }
    Ok(())
}

/// Hands a job over.
async fn submit(
    place: &Place,
    settings: &Settings,
    bucket: &Bucket,
    hosts: &[OrderedHost],
    terms: JobTerms,
) -> Result<JobId, Failure> {
    let key = settings
        .key(place)
        .map_err(|error| Failure::new(ErrorKind::Configuration, format!("{error:#}")))?;
    submitting::submit_with(bucket, &key, hosts, terms)
        .await
        .map_err(|error| of_submit(&error))
}

/// Tells what becomes of a job.
async fn follow(
    bucket: &Bucket,
    job: &JobId,
    hosts: u32,
    canceller: &Canceller,
    requests: &mut FrameReader,
    replies: &FrameWriter,
) -> Result<(), Failure> {
    let (sender, mut events) = mpsc::channel(64);
    let following = tokio::spawn({
        let (bucket, job) = (bucket.clone(), job.clone());
        async move { submitting::follow(&bucket, &job, sender).await }
    });
    let asking = tokio::spawn({
        let bucket = bucket.clone();
        async move { without_nodes(&bucket).await }
    });
    let mut asking = Some(asking);
    let mut telling = Telling::default();
    loop {
        let event = tokio::select! {
            event = events.recv() => event,
            request = requests.next::<FleetRequest>() => match request {
                Ok(Some(FleetRequest::Cancel)) => {
                    let cancelled = submitting::cancel(bucket, &canceller.key, job).await;
                    if let Err(error) = cancelled {
                        tell(replies, FleetReply::Notice(error.to_string())).await?;
                    } else if let Some(notice) = canceller.is_other() {
                        tell(replies, FleetReply::Notice(notice)).await?;
                    } else if without_nodes(bucket).await.is_some() {
                        // Nobody is there to say so, and whoever comes finds the job cancelled.
                        for reply in telling.given_up(hosts) {
                            tell(replies, reply).await?;
                        }
                        return Ok(());
                    }
                    continue;
                }
                Ok(Some(_)) => continue,
                // The client has gone; the job goes on.
                Ok(None) | Err(_) => return Ok(()),
            },
            Some(Ok(notice)) = async { Some(asking.as_mut()?.await) }, if asking.is_some() => {
                asking = None;
                if let Some(notice) = notice {
                    tell(replies, FleetReply::Notice(notice)).await?;
                }
                continue;
            }
        };
        let Some(event) = event else { break };
        for reply in telling.take(event) {
            tell(replies, reply).await?;
        }
    }
    let followed = following
        .await
        .unwrap_or_else(|error| Err(BucketError::Nats(error.to_string()).into()));
    for reply in telling.rest() {
        tell(replies, reply).await?;
    }
    followed.map_err(|error| {
        let words = format!("{error}; the job goes on, and `trunkline fleet attach {job}` shows it");
        Failure::new(ErrorKind::Network, words).after_start()
    })
}

/// Who may say that the job is to end.
struct Canceller {
    key: KeyPair,
    submitter: String,
}

impl Canceller {
    /// What is to be said where the job is somebody else's.
    fn is_other(&self) -> Option<String> {
        let me = self.key.public_key();
        (me != self.submitter).then(|| {
            format!(
                "{} has submitted this job: it is cancelled on the nodes whose fleet.toml has {me} in `cancel`, and goes on \
                 on others",
                self.submitter
            )
        })
    }
}

/// A host's end is told when its output has been.
#[derive(Debug, Default)]
struct Telling {
    got: BTreeMap<u32, u64>,
    ended: BTreeMap<u32, Returned>,
    /// Whose end is not known, and the node that has it or had it when it was lost.
    unknown: BTreeMap<u32, String>,
    /// Which a node has taken, or done with.
    taken: BTreeSet<u32>,
}

impl Telling {
    fn take(&mut self, event: JobEvent) -> Vec<FleetReply> {
        match event {
            JobEvent::Output(host, stream, data) => {
                *self.got.entry(host).or_default() += 1;
                let output = match stream {
                    Stream::Stdout => FleetReply::Output(host, data),
                    Stream::Stderr => FleetReply::ErrorOutput(host, data),
                };
                [output].into_iter().chain(self.whole(host)).collect()
            }
            JobEvent::Incomplete(host, messages) => {
                let end = self.ended.remove(&host).map(|returned| end(host, returned));
                [FleetReply::Incomplete(host, messages)]
                    .into_iter()
                    .chain(end)
                    .collect()
            }
            JobEvent::Fate(host, fate) => {
                self.taken.insert(host);
                self.fate(host, fate)
            }
        }
    }

    fn fate(&mut self, host: u32, fate: Fate) -> Vec<FleetReply> {
        match fate {
            Fate::Claimed(claim) => {
                self.unknown.insert(host, claim.holder.node);
                vec![FleetReply::Started(host)]
            }
            Fate::Ended { returned, .. } => {
                self.unknown.remove(&host);
                self.ended.insert(host, returned);
                self.whole(host).into_iter().collect()
            }
            Fate::NotStarted { why } => {
                self.unknown.remove(&host);
                vec![FleetReply::NotStarted(host, why)]
            }
            Fate::Unknown { claim } => {
                self.unknown.insert(host, claim.holder.node);
                Vec::new()
            }
        }
    }

    /// What is to be told of a job that was cancelled when no node was there.
    fn given_up(self, hosts: u32) -> Vec<FleetReply> {
        let free = (0..hosts).filter(|host| !self.taken.contains(host));
        let free = free.map(|host| FleetReply::NotStarted(host, "cancelled, and no node was there".into()));
        free.collect::<Vec<_>>().into_iter().chain(self.rest()).collect()
    }

    /// The end of a host whose output is all there.
    fn whole(&mut self, host: u32) -> Option<FleetReply> {
        let got = self.got.get(&host).copied().unwrap_or_default();
        let returned = self.ended.remove(&host)?;
        if got < returned.output {
            self.ended.insert(host, returned);
            return None;
        }
        Some(end(host, returned))
    }

    fn rest(self) -> impl Iterator<Item = FleetReply> {
        let ended = self.ended.into_iter().map(|(host, returned)| end(host, returned));
        let unknown = self.unknown.into_iter().map(|(host, node)| {
            let words = format!(
                "node {node} was lost while it had this host, and the command is not tried again by itself"
            );
            FleetReply::HostFailed(host, Failure::new(ErrorKind::Network, words).after_start())
        });
        ended.chain(unknown)
    }
}

fn end(host: u32, returned: Returned) -> FleetReply {
    match returned.exit {
        Exit::Status(status) => FleetReply::Ended(host, SessionExit::Status(status)),
        Exit::Signal(name) => FleetReply::Ended(host, SessionExit::Signal(name, false)),
        Exit::Failed {
            kind,
            message,
            execution,
        } => {
            let failure = Failure {
                execution,
                ..Failure::new(kind, message)
            };
            FleetReply::HostFailed(host, failure)
        }
    }
}

/// What is to be said where no node is there.
pub(crate) async fn without_nodes(bucket: &Bucket) -> Option<String> {
    let status = submitting::status(bucket).await.ok()?;
    let live = status
        .nodes
        .iter()
        .any(|(_, member, _, age)| member.holder.is_some() && *age < bucket.charter.terms.ttl.as_secs());
    (!live)
        .then(|| "no node of the fleet is there: the job waits for one (`trunkline fleet join`)".to_owned())
}

fn ordered(host: FleetHost) -> OrderedHost {
    OrderedHost {
        name: host.name,
        destination: host.destination,
        command: host.command,
    }
}

pub(crate) async fn next(requests: &mut FrameReader) -> Result<FleetRequest, Failure> {
    let request = requests.next().await;
    let gone = || Failure::new(ErrorKind::Local, "the client has gone");
    request.ok().flatten().ok_or_else(gone)
}

pub(crate) async fn tell(replies: &FrameWriter, reply: FleetReply) -> Result<(), Failure> {
    let sent = replies.send(&reply).await;
    sent.map_err(|error| Failure::new(ErrorKind::Local, error.to_string()).after_start())
}

fn not_begun(error: &BucketError) -> Failure {
    Failure::new(ErrorKind::Configuration, error.to_string())
}

fn of_submit(error: &SubmitError) -> Failure {
    let execution = match error {
        SubmitError::Unknown(_) | SubmitError::Lost(_) => Execution::MayHaveStarted,
        _ => Execution::DidNotStart,
    };
    Failure {
        execution,
        ..Failure::new(ErrorKind::Configuration, error.to_string())
    }
}
