//! The program behind `trunkline run --fleet`: submits a job, and reports its progress to the client.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;

use anyhow::Context as _;
use nkeys::KeyPair;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use trunkline_control::place::Place;
use trunkline_control::protocol::ExitStatus;
use trunkline_control::socket::{FrameReader, FrameWriter, split};
use trunkline_fleet::bucket::{Bucket, BucketError};
use trunkline_fleet::input;
use trunkline_fleet::order::job::{JobTerms, OrderedInput};
use trunkline_fleet::order::{OrderedHost, is_name};
use trunkline_fleet::running::Stream;
use trunkline_fleet::state::{Exit, Fate, JobId, Limits, Returned, StreamId};
use trunkline_fleet::submitting::{self, JobEvent, SubmitError, Wait};
use trunkline_fleet_client::{FleetHost, FleetReply, FleetRequest, HOSTS_IN_A_FRAME, LONGEST_INPUT};
use trunkline_request::failure::{ErrorKind, Execution, Failure};

use crate::client::{next, tell};
use crate::settings::Settings;

/// Serves the client on standard input until everything is reported, or it has left.
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
    // The client may have left.
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
            FleetRequest::Hosts(more) => hosts.extend(more.into_iter().map(order_host)),
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
                break parse_job(job)?;
            }
            FleetRequest::RetryUnknown(job) => {
                let job = parse_job(job)?;
                let me = settings.key(place).map_err(local)?.public_key();
                let order = submitting::own_order(&bucket, &me, &job)
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
                // The same terms as for all hosts apply to the remaining ones.
                break submit(place, &settings, &bucket, &hosts, order.terms).await?;
            }
            FleetRequest::Stream(wanted) => {
                let stream =
                    crate::stream::submit(&bucket, &settings.key(place).map_err(local)?, &hosts, wanted)
                        .await?;
                return crate::stream::converse(place, &settings, &bucket, &stream, requests, replies).await;
            }
            FleetRequest::AttachStream(stream) => {
                let stream = StreamId(parse_job(stream)?.0);
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
    follow(&bucket, &job, &all, &canceller, requests, replies).await
}

/// Parses the name of a job.
fn parse_job(job: String) -> Result<JobId, Failure> {
    match is_name(&job) {
        true => Ok(JobId(job)),
        false => Err(Failure::new(ErrorKind::Configuration, not_a_name(&job))),
    }
}

/// Returns the error for text that is not the name of a job or a stream.
pub(crate) fn not_a_name(typed: &str) -> String {
    format!(
        "{typed:?} is not the name of a job or a stream, which is 24 letters and digits: `trunkline fleet status` lists them"
    )
}

/// Uploads the input, if there is any, unless the client cancels.
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
        // Before the answer, the client can only cancel.
        _ = requests.next::<FleetRequest>() => {
            let words = "cancelled while the job's input was sent: the job did not start on any host";
            Err(Failure::new(ErrorKind::Local, words))
        }
    }
}

/// Checks that the fleet is not frozen.
async fn is_open(bucket: &Bucket) -> Result<(), Failure> {
    if let Some(why) = bucket.frozen().await.map_err(|error| not_begun(&error))? {
        let words = format!(
            "the fleet is frozen, and nothing was started: {why}. `trunkline fleet init --anew` puts a new one in its place"
        );
        return Err(Failure::new(ErrorKind::Configuration, words));
    }
    Ok(())
}

/// Submits a job.
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
    submitting::submit(bucket, &key, hosts, terms)
        .await
        .map_err(|error| of_submit(&error))
}

/// Reports the progress of a job.
async fn follow(
    bucket: &Bucket,
    job: &JobId,
    hosts: &[OrderedHost],
    canceller: &Canceller,
    requests: &mut FrameReader,
    replies: &FrameWriter,
) -> Result<(), Failure> {
    let (sender, mut events) = mpsc::channel(64);
    let following = tokio::spawn({
        let (bucket, job) = (bucket.clone(), job.clone());
        async move { submitting::follow(&bucket, &job, sender).await }
    });
    let mut looks = tokio::time::interval_at(tokio::time::Instant::now() + WAITING, WAITING);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut is_told, mut is_cancelled) = (false, false);
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
                    } else {
                        is_cancelled = true;
                        if give_up(bucket, job, hosts, &mut telling, replies).await? {
                            return Ok(());
                        }
                    }
                    continue;
                }
                Ok(Some(_)) => continue,
                // The client has left; the job continues.
                Ok(None) | Err(_) => return Ok(()),
            },
            _ = looks.tick(), if is_cancelled || !is_told => {
                if is_cancelled && give_up(bucket, job, hosts, &mut telling, replies).await? {
                    return Ok(());
                }
                if !is_told
                    && !is_cancelled
                    && let Ok(waits) = submitting::waits(bucket, hosts).await
                    && let Some(notice) = telling.waiting(hosts, &waits)
                {
                    is_told = true;
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

/// Reports as not started the hosts of a cancelled job that no node has taken and none will take: later nodes find the
/// job cancelled. Returns true if that completes the report.
async fn give_up(
    bucket: &Bucket,
    job: &JobId,
    hosts: &[OrderedHost],
    telling: &mut Telling,
    replies: &FrameWriter,
) -> Result<bool, Failure> {
    let Ok(waits) = submitting::waits(bucket, hosts).await else {
        return Ok(false);
    };
    if waits.iter().all(Option::is_none) {
        return Ok(false);
    }
    // Read after that: a host without a fate now is claimed only by a node that knows of the cancellation.
    let Ok(fates) = submitting::fates_of(bucket, job).await else {
        return Ok(false);
    };
    for reply in telling.given_up(&waits, &fates) {
        tell(replies, reply).await?;
    }
    if !telling.is_over(&waits) {
        return Ok(false);
    }
    for reply in std::mem::take(telling).rest() {
        tell(replies, reply).await?;
    }
    Ok(true)
}

/// The identity for cancelling the job.
struct Canceller {
    key: KeyPair,
    submitter: String,
}

impl Canceller {
    /// Returns the message if the job has another submitter.
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

/// The state of the reports. A host's end is reported after its output.
#[derive(Debug, Default)]
struct Telling {
    got: BTreeMap<u32, u64>,
    ended: BTreeMap<u32, Returned>,
    /// Hosts with an unknown end, and the node that has or had them.
    unknown: BTreeMap<u32, String>,
    /// Hosts that a node has taken, or settled.
    taken: BTreeSet<u32>,
    /// Hosts for which nothing more is expected, and those of them that no node has taken.
    settled: BTreeSet<u32>,
    given_up: BTreeSet<u32>,
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
                if fate.is_settled() {
                    self.settled.insert(host);
                }
                if self.given_up.contains(&host) {
                    return Vec::new();
                }
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

    /// Returns the replies about hosts of a cancelled job, given the waiting hosts and all fates.
    fn given_up(&mut self, waits: &[Option<Wait>], fates: &BTreeMap<u32, Fate>) -> Vec<FleetReply> {
        let mut replies = Vec::new();
        for (host, why) in (0..).zip(waits) {
            let is_free = !self.taken.contains(&host) && !fates.contains_key(&host);
            if let Some(why) = why
                && is_free
                && self.given_up.insert(host)
            {
                self.settled.insert(host);
                replies.push(FleetReply::NotStarted(host, format!("cancelled, and {why}")));
            }
        }
        replies
    }

    /// Returns true if nothing more is expected from any host. Unsettled ones wait for a node, which would only report
    /// that the last one was lost.
    fn is_over(&self, waits: &[Option<Wait>]) -> bool {
        let is_over = |(host, why): (u32, &Option<Wait>)| match why {
            _ if self.settled.contains(&host) => true,
            Some(Wait::Frozen(_)) | None => false,
            Some(Wait::NoNode(_) | Wait::Drained(_)) => true,
        };
        self.ended.is_empty() && (0..).zip(waits).all(is_over)
    }

    /// Returns the message about hosts that no node takes.
    fn waiting(&self, hosts: &[OrderedHost], waits: &[Option<Wait>]) -> Option<String> {
        let mut by_reason: BTreeMap<&Wait, Vec<&str>> = BTreeMap::new();
        for ((host, ordered), why) in (0..).zip(hosts).zip(waits) {
            if let Some(why) = why.as_ref().filter(|_| !self.taken.contains(&host)) {
                by_reason.entry(why).or_default().push(&ordered.name);
            }
        }
        let reasons = by_reason.into_iter().map(|(why, names)| {
            let first = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
            let more = match names.len().saturating_sub(SHOWN) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("{first}{more}: {why}")
        });
        let reasons: Vec<String> = reasons.collect();
        (!reasons.is_empty()).then(|| format!("the job waits for a node: {}", reasons.join("; ")))
    }

    /// Returns the end of a host whose output is complete.
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

/// The time after which, and the interval at which, a job is checked for hosts that no node takes.
const WAITING: std::time::Duration = std::time::Duration::from_secs(3);

/// The number of waiting hosts that are named.
const SHOWN: usize = 5;

fn end(host: u32, returned: Returned) -> FleetReply {
    match returned.exit {
        Exit::Status(status) => FleetReply::Ended(host, ExitStatus::Exited(status)),
        Exit::Signal(name) => FleetReply::Ended(
            host,
            ExitStatus::Signaled {
                signal: name,
                core_dumped: false,
            },
        ),
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

fn order_host(host: FleetHost) -> OrderedHost {
    OrderedHost {
        name: host.name,
        destination: host.destination,
        command: host.command,
    }
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

#[cfg(test)]
mod tests {
    use trunkline_fleet::state::{Claim, Holder};

    use super::*;

    fn claimed_fate() -> Fate {
        let holder = Holder {
            node: "a".into(),
            incarnation: 1,
        };
        Fate::Claimed(Claim {
            holder,
            intent: 1,
            fence: 1,
        })
    }

    #[test]
    fn what_no_node_has_taken_by_all_that_is_known_did_not_start() {
        let mut telling = Telling::default();
        telling.take(JobEvent::Fate(0, claimed_fate()));
        let drained = Some(Wait::Drained(None));
        // The claim of the second has not been reported, but is known.
        let (waits, fates) = (
            vec![drained.clone(); 4],
            BTreeMap::from([(0, claimed_fate()), (1, claimed_fate())]),
        );
        let replies = telling.given_up(&waits, &fates);
        assert_eq!(replies.len(), 2, "{replies:?}");
        for (reply, wanted) in replies.iter().zip([2, 3]) {
            assert!(
                matches!(reply, FleetReply::NotStarted(host, why) if *host == wanted && why.contains("all nodes are drained")),
                "{reply:?}"
            );
        }
        assert!(telling.given_up(&waits, &fates).is_empty(), "each is told once");
        assert!(telling.is_over(&waits));
        assert!(!telling.is_over(&[None, drained.clone(), drained.clone(), drained]));
        // Commands that run in a frozen fleet end.
        assert!(!telling.is_over(&[Some(Wait::Frozen("x".into()))]));
    }

    #[test]
    fn hosts_that_wait_are_named_by_reason() {
        let names = ["a", "b", "c"].map(|name| OrderedHost {
            name: name.into(),
            destination: trunkline_request::destination::Destination::parse_hop(name).unwrap(),
            command: Vec::new(),
        });
        let mut telling = Telling::default();
        let of_site = Some(Wait::NoNode(Some("eu".into())));
        assert_eq!(telling.waiting(&names, &[None, None, None]), None);
        let waits = [of_site.clone(), Some(Wait::Drained(None)), of_site];
        assert_eq!(
            telling.waiting(&names, &waits).unwrap(),
            "the job waits for a node: a, c: no node of the site eu is there; b: all nodes are drained"
        );
        telling.take(JobEvent::Fate(1, claimed_fate()));
        assert!(!telling.waiting(&names, &waits).unwrap().contains("drained"));
    }
}
