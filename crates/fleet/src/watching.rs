//! For those who watch a fleet: the content of its bucket, assembled, and the changes since the last report.

mod view;

use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_nats::connection::State;
use async_nats::jetstream::kv;
use futures_util::StreamExt as _;
use futures_util::stream::{SelectAll, Stream};
use tokio::sync::mpsc;

use crate::bucket::{Bucket, BucketError, is_all};
use crate::report::FleetUpdate;
use crate::running::now as boottime;
use crate::state::{JobId, Time};
use crate::submitting;
use view::{Moment, View};

/// The watched patterns, and their buckets. Lists of hosts are not watched: they are as long as the fleet.
const PATTERNS: [(In, &str); 10] = [
    (In::State, "member.*"),
    (In::State, "lease.>"),
    (In::State, "frozen"),
    (In::State, "job.*.order"),
    (In::State, "job.*.cancel.*"),
    (In::State, "job.*.fate.*"),
    (In::Streams, "*.order"),
    (In::Streams, "*.cancel.*"),
    (In::Streams, "*.end.*"),
    (In::Streams, "*.share.*"),
];

/// A bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum In {
    State,
    Streams,
}

/// The time to wait for existing values: if there are none, nothing arrives.
const QUIET: Duration = Duration::from_millis(300);

/// The total time to wait for existing values before the first report.
const STANDING: Duration = Duration::from_secs(3);

/// The interval between checks that NATS still has the same fleet. It may be silent on a connection that is up.
const LOOK: Duration = Duration::from_secs(5);

/// A seen entry, with the index of its pattern in [`PATTERNS`].
type Seen = Pin<Box<dyn Stream<Item = (usize, Result<kv::Entry, String>)> + Send>>;

/// Reports all of the fleet, and then the changes at each interval, for as long as somebody listens.
///
/// # Errors
/// If NATS cannot be asked at the beginning, or if another fleet has taken the place of this one. If the connection is
/// lost for a while, this is reported, and the connection is awaited.
pub async fn follow(
    bucket: &Bucket,
    servers: &str,
    every: Duration,
    updates: mpsc::Sender<FleetUpdate>,
) -> Result<(), BucketError> {
    let mut clock = Clock::new();
    let offset = clock.begun.0 - bucket.time().await?;
    let mut view = View::new(&bucket.charter, &bucket.prefix, servers, offset);
    let mut seen = SelectAll::new();
    for number in 0..PATTERNS.len() {
        seen.push(watch(bucket, number).await?);
    }
    let moment = bucket.extent().await?.last;
    settle(&mut seen, &mut view, &clock, moment).await;
    let (named, mut names) = mpsc::channel(1);
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut looks = tokio::time::interval(LOOK);
    let (looked, mut answers) = mpsc::channel(1);
    let mut is_answered = true;
    loop {
        tokio::select! {
            Some((number, entry)) = seen.next() => match entry {
                Ok(entry) => take(&mut view, &clock, moment, number, &entry),
                Err(_) => {
                    // The watch has ended. It is started again once NATS answers.
                    tokio::time::sleep(QUIET).await;
                    let again = watch(bucket, number).await;
                    seen.push(again.unwrap_or_else(|error| failed_stream(number, error.to_string())));
                }
            },
            Some((job, hosts)) = names.recv() => view.set_names(&job, hosts),
            Some(is_same) = answers.recv() => match is_same {
                Some(false) => {
                    let words = "another fleet has been made in the place of this one (`trunkline fleet init --anew`)";
                    return Err(BucketError::Nats(words.into()));
                }
                is_same => is_answered = is_same.is_some(),
            },
            _ = looks.tick() => look(bucket, &looked),
            _ = ticks.tick() => {
                let is_connected = is_answered && bucket.client.connection_state() == State::Connected;
                clock.pass(is_connected);
                let cut_off = clock.cut_off.map(|since| since.elapsed().as_secs());
                for update in view.updates(clock.moment(), cut_off) {
                    if updates.send(update).await.is_err() {
                        return Ok(());
                    }
                }
                if is_connected && let Some(job) = view.nameless() {
                    name(bucket, job, &named);
                }
            }
        }
    }
}

/// Takes in the existing values, before anything is reported.
async fn settle(seen: &mut SelectAll<Seen>, view: &mut View, clock: &Clock, moment: u64) {
    let end = Instant::now() + STANDING;
    let mut told = [false; PATTERNS.len()];
    while let Ok(Some((number, Ok(entry)))) = tokio::time::timeout(QUIET, seen.next()).await {
        told[number] |= is_all(&entry, moment);
        take(view, clock, moment, number, &entry);
        // The other patterns may have no values.
        if Instant::now() >= end || (told[0] && told[1] && told[3] && told[5]) {
            break;
        }
    }
}

fn take(view: &mut View, clock: &Clock, moment: u64, number: usize, entry: &kv::Entry) {
    match PATTERNS[number] {
        (In::Streams, _) => view.handle_stream(entry),
        (In::State, pattern) => {
            view.handle(clock.moment(), entry);
            if pattern == "lease.>" && is_all(entry, moment) {
                view.handle_synced();
            }
        }
    }
}

async fn watch(bucket: &Bucket, number: usize) -> Result<Seen, BucketError> {
    let (bucket, pattern) = match PATTERNS[number] {
        (In::State, pattern) => (&bucket.state, pattern),
        (In::Streams, pattern) => (&bucket.streams, pattern),
    };
    let watch = bucket.watch_with_history(pattern).await;
    let watch = watch.map_err(|error| BucketError::Nats(error.to_string()))?;
    let entries = watch.map(move |entry| (number, entry.map_err(|error| error.to_string())));
    let ended = futures_util::stream::once(async move { (number, Err("it has ended".to_owned())) });
    Ok(Box::pin(until_failed(entries.chain(ended))))
}

/// Makes a stream that only reports a failure.
fn failed_stream(number: usize, why: String) -> Seen {
    Box::pin(futures_util::stream::once(async move { (number, Err(why)) }))
}

/// Ends the stream at the first failure, so that each is started again once.
fn until_failed(
    entries: impl Stream<Item = (usize, Result<kv::Entry, String>)> + Send,
) -> impl Stream<Item = (usize, Result<kv::Entry, String>)> + Send {
    entries.scan(false, |has_failed, item| {
        let is_over = std::mem::replace(has_failed, item.1.is_err());
        std::future::ready((!is_over).then_some(item))
    })
}

/// Asks NATS if the fleet is still the one that was opened. `None`: there is no answer.
fn look(bucket: &Bucket, looked: &mpsc::Sender<Option<bool>>) {
    let (bucket, looked) = (bucket.clone(), looked.clone());
    tokio::spawn(async move {
        let _ = looked.send(bucket.is_same().await.ok()).await;
    });
}

/// Looks up the names of the hosts of a job.
fn name(bucket: &Bucket, job: JobId, named: &mpsc::Sender<(JobId, Vec<String>)>) {
    let (bucket, named) = (bucket.clone(), named.clone());
    tokio::spawn(async move {
        let hosts = submitting::hosts_of(&bucket, &job).await.unwrap_or_default();
        let names = hosts.into_iter().map(|host| host.name).collect();
        let _ = named.send((job, names)).await;
    });
}

/// Returns the current time in seconds since 1970.
fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or_default()
}

/// Two clocks: the machine's, as it was set when watching started, and one that stands still while no node can be
/// heard.
struct Clock {
    /// The time at the start, in seconds since 1970, and the moment when that was. If the machine's clock is set later,
    /// nodes, jobs and moves do not become older.
    begun: (i64, Time),
    heard: Duration,
    before: Instant,
    cut_off: Option<Instant>,
}

impl Clock {
    fn new() -> Self {
        Self {
            begun: (now(), boottime()),
            heard: view::BEGINNING,
            before: Instant::now(),
            cut_off: None,
        }
    }

    fn pass(&mut self, is_connected: bool) {
        let now = Instant::now();
        match (is_connected, self.cut_off) {
            (true, None) => self.heard += now - self.before,
            (true, Some(_)) => self.cut_off = None,
            (false, None) => self.cut_off = Some(now),
            (false, Some(_)) => {}
        }
        self.before = now;
    }

    fn moment(&self) -> Moment {
        let more = match self.cut_off {
            None => self.before.elapsed(),
            Some(_) => Duration::ZERO,
        };
        let (began, since) = self.begun;
        Moment {
            now: u64::try_from(began).unwrap_or_default() + (boottime() - since).as_secs(),
            heard: self.heard + more,
        }
    }
}
