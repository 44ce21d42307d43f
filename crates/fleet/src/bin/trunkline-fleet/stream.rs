//! The program behind `trunkline stream --fleet`: submits streams, and follows them into files, FIFOs and sockets.

mod position;
mod sink;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nkeys::KeyPair;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use trunkline_control::place::Place;
use trunkline_control::protocol::ExitStatus;
use trunkline_control::socket::{FrameReader, FrameWriter};
use trunkline_fleet::bucket::Bucket;
use trunkline_fleet::order::OrderedHost;
use trunkline_fleet::order::stream::wrong_subject;
use trunkline_fleet::state::{Exit, Restart, Resuming, StreamEnd, StreamId};
use trunkline_fleet::streaming::following::{self, Follower, HostReader, Read, StreamError};
use trunkline_fleet::streaming::{Piece, What};
use trunkline_fleet_client::{
    FleetReply, FleetRequest, FleetRestart, FleetStream, HOSTS_IN_A_FRAME, StreamNews,
};
use trunkline_request::failure::{ErrorKind, Failure};

use crate::client::{next, tell, without_nodes};
use crate::settings::Settings;
use position::{HostPosition, Positions};
use sink::HostSink;

/// The interval at which positions are stored.
const KEEP: Duration = Duration::from_millis(200);

/// The time for finishing the message that is being written when following ends: a FIFO may have no reader.
const LAST_MESSAGE: Duration = Duration::from_secs(1);

/// Submits a stream.
pub(crate) async fn submit(
    bucket: &Bucket,
    key: &KeyPair,
    hosts: &[OrderedHost],
    wanted: FleetStream,
) -> Result<StreamId, Failure> {
    let refused = |words: String| Failure::new(ErrorKind::Configuration, words);
    if let Some(why) = bucket
        .frozen()
        .await
        .map_err(|error| refused(error.to_string()))?
    {
        return Err(refused(format!(
            "the fleet is frozen, and nothing was begun: {why}. `trunkline fleet init --anew` puts a new one in its place"
        )));
    }
    if let Some(subject) = &wanted.subject {
        let example = subject.replace("{host}", "host");
        if let Some(why) = wrong_subject(&example, bucket.prefix()) {
            return Err(refused(why));
        }
    }
    let resuming = Resuming {
        restart: match wanted.restart {
            FleetRestart::Lost => Restart::Lost,
            FleetRestart::Always => Restart::Always,
            FleetRestart::Never => Restart::Never,
        },
        first: wanted.first,
        longest: wanted.longest,
    };
    let submitted = following::submit(bucket, key, hosts, resuming, wanted.subject.as_deref()).await;
    submitted.map_err(|error| stream_failure(&error))
}

/// Follows a stream until it has ended or the client leaves.
pub(crate) async fn converse(
    place: &Place,
    settings: &Settings,
    bucket: &Bucket,
    stream: &StreamId,
    requests: &mut FrameReader,
    replies: &FrameWriter,
) -> Result<(), Failure> {
    let (order, hosts) = following::stream_of(bucket, stream)
        .await
        .map_err(|error| stream_failure(&error))?;
    let told = FleetReply::Job {
        job: stream.0.clone(),
        hosts: order.hosts,
    };
    tell(replies, told).await?;
    for part in hosts.chunks(HOSTS_IN_A_FRAME) {
        let part = part
            .iter()
            .map(|host| (host.name.clone(), host.destination.clone()));
        tell(replies, FleetReply::Hosts(part.collect())).await?;
    }
    let FleetRequest::Follow { to, mark } = next(requests).await? else {
        return Ok(());
    };
    let follower = Follower::new(bucket, stream, hosts.len())
        .await
        .map_err(|error| stream_failure(&error))?;
    let local = |error: anyhow::Error| Failure::new(ErrorKind::Local, format!("{error:#}"));
    let positions = match &to {
        Some(to) => Some(Positions::open(place, stream, to).map_err(local)?),
        None => None,
    };
    let (news, told) = mpsc::channel(64);
    let mut following = Following {
        follower: Arc::new(follower),
        positions,
        tasks: JoinSet::new(),
        leaving: CancellationToken::new(),
        told,
        to,
        mark,
    };
    following.start(&hosts, news).await?;
    if let Some(notice) = without_nodes(bucket).await {
        tell(replies, FleetReply::Notice(notice)).await?;
    }
    let outcome = following.follow(requests, replies).await;
    following.end().await;
    if outcome? == Wish::Cancel {
        let key = settings.key(place).map_err(local)?;
        match following::cancel(bucket, &key, stream).await {
            Ok(()) if key.public_key() != order.submitter => {
                let notice = format!(
                    "{} has submitted this stream: it ends on the nodes whose fleet.toml has {} in `cancel`",
                    order.submitter,
                    key.public_key()
                );
                tell(replies, FleetReply::Notice(notice)).await?;
            }
            Ok(()) => {}
            Err(error) => tell(replies, FleetReply::Notice(error.to_string())).await?,
        }
    }
    Ok(())
}

/// The reason why it is no longer followed.
#[derive(Debug, PartialEq, Eq)]
enum Wish {
    /// It has ended, or the client has left.
    Nothing,
    Cancel,
}

struct Following {
    follower: Arc<Follower>,
    positions: Option<Positions>,
    tasks: JoinSet<()>,
    /// Ends the tasks between two messages.
    leaving: CancellationToken,
    /// The reports of tasks.
    told: mpsc::Receiver<FleetReply>,
    to: Option<String>,
    mark: Option<String>,
}

impl Following {
    async fn start(
        &mut self,
        hosts: &[OrderedHost],
        replies: mpsc::Sender<FleetReply>,
    ) -> Result<(), Failure> {
        for (place, host) in (0..).zip(hosts) {
            let kept = self.positions.as_mut().map(|positions| positions.left_at(place));
            let kept = kept.unwrap_or_default();
            let sink = match &self.to {
                Some(to) => HostSink::open(to, &host.name, self.mark_of(&host.name))
                    .await
                    .map_err(|error| Failure::new(ErrorKind::File, format!("{error:#}")))?,
                None => HostSink::Told(place, replies.clone()),
            };
            if let Some(positions) = &mut self.positions {
                positions.watch(place, sink.pipe());
            }
            let task = HostTask {
                place,
                name: host.name.clone(),
                mark: self.mark.clone(),
                gap: kept.is_unsure.then(|| {
                    "the program that wrote this ended in the middle: what it had written may come twice"
                        .to_owned()
                }),
                reader: self.follower.host(place, kept.position),
                has_output: kept.has_output,
                lost: None,
                sink,
                position: self.positions.as_ref().map(|positions| positions.host(place)),
                leaving: self.leaving.clone(),
                replies: replies.clone(),
            };
            self.tasks.spawn(async move {
                // If the client has left, there is no one to tell.
                let _: Option<()> = task.run().await;
            });
        }
        Ok(())
    }

    /// Returns the data for the next reader of a socket after one that left.
    fn mark_of(&self, name: &str) -> Option<Vec<u8>> {
        let reason = "a reader left before it had received everything; that data is lost";
        self.mark.as_ref().map(|mark| line(mark, name, reason))
    }

    async fn follow(&mut self, requests: &mut FrameReader, replies: &FrameWriter) -> Result<Wish, Failure> {
        let follower = self.follower.clone();
        let watching = follower.watch();
        let mut watching = std::pin::pin!(watching);
        let mut keep = tokio::time::interval(KEEP);
        keep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let mut is_told = false;
        loop {
            tokio::select! {
                () = &mut watching => {}
                Some(reply) = self.told.recv() => tell(replies, reply).await?,
                ended = self.tasks.join_next() => match ended {
                    Some(_) => {}
                    None => {
                        while let Ok(reply) = self.told.try_recv() {
                            tell(replies, reply).await?;
                        }
                        if let Some(positions) = &mut self.positions {
                            positions.remove();
                        }
                        return Ok(Wish::Nothing);
                    }
                },
                _ = keep.tick() => {
                    let kept = self.positions.as_mut().map_or(Ok(()), |positions| positions.keep(true));
                    if let Err(error) = kept
                        && !std::mem::replace(&mut is_told, true)
                    {
                        let words = format!("the position in the stream cannot be kept, and output may come twice: {error}");
                        tell(replies, FleetReply::Notice(words)).await?;
                    }
                }
                request = requests.next::<FleetRequest>() => match request {
                    Ok(Some(FleetRequest::Cancel)) => return Ok(Wish::Cancel),
                    // The client has left, or wants to: the stream continues.
                    Ok(None | Some(FleetRequest::Leave)) | Err(_) => return Ok(Wish::Nothing),
                    Ok(Some(_)) => {}
                },
            }
        }
    }

    async fn end(&mut self) {
        self.leaving.cancel();
        let ending = async { while self.tasks.join_next().await.is_some() {} };
        // What is written and not noted would be written twice.
        let _ = tokio::time::timeout(LAST_MESSAGE, ending).await;
        self.tasks.shutdown().await;
        if let Some(positions) = &mut self.positions {
            // Output after a lost position is repeated.
            let _ = positions.keep(false);
        }
    }
}

/// Moves one host's output from NATS to its sink.
struct HostTask {
    place: u32,
    name: String,
    mark: Option<String>,
    /// The reason to mark a gap before the next output: some may be missing or repeated.
    gap: Option<String>,
    reader: HostReader,
    /// True if there has been any output.
    has_output: bool,
    /// The reason why it no longer runs.
    lost: Option<String>,
    sink: HostSink,
    position: Option<Arc<HostPosition>>,
    leaving: CancellationToken,
    replies: mpsc::Sender<FleetReply>,
}

impl HostTask {
    /// Returns `None` if the client has left, or leaves.
    async fn run(mut self) -> Option<()> {
        if let Some(gap) = self.gap.clone() {
            self.news(StreamNews::Gap(gap)).await?;
        }
        let leaving = self.leaving.clone();
        while let Some(read) = leaving.run_until_cancelled(self.reader.next()).await {
            match read {
                Read::Piece { lost, piece } => {
                    if lost > 0 {
                        let words = format!(
                            "{lost} messages were dropped before they were read: the fleet had no more room"
                        );
                        self.gap = Some(words.clone());
                        self.news(StreamNews::Gap(words)).await?;
                    }
                    self.piece(piece).await?;
                }
                Read::End(end) => {
                    let is_success = matches!(end, StreamEnd::Ended(Exit::Status(0)));
                    if end == StreamEnd::Cancelled {
                        self.news(StreamNews::Failed("the stream was cancelled".into()))
                            .await?;
                    }
                    leaving.run_until_cancelled(self.sink.wait_until_taken()).await?;
                    return self.news(StreamNews::Over(is_success)).await;
                }
            }
        }
        None
    }

    async fn piece(&mut self, piece: Piece) -> Option<()> {
        let mut written = 0;
        if let Some(position) = &self.position {
            position.begin();
        }
        match piece.what {
            What::Begun(node) => {
                let lost = self.lost.take();
                let again = self.has_output || lost.is_some();
                let reason = again.then(|| {
                    lost.unwrap_or_else(|| {
                        "its node was lost, lost touch with the fleet, or gave the host away".into()
                    })
                });
                if let (Some(reason), true) = (&reason, self.has_output) {
                    self.gap
                        .get_or_insert_with(|| format!("begun again on node {node}: {reason}"));
                }
                self.news(StreamNews::Begun(node, reason)).await?;
            }
            What::Output(data) => {
                if let (Some(reason), Some(mark)) = (self.gap.take(), &self.mark) {
                    let line = line(mark, &self.name, &reason);
                    written += line.len();
                    self.write(&line).await?;
                }
                written += data.len();
                self.has_output = true;
                self.write(&data).await?;
            }
            What::ErrorOutput(data) => self
                .replies
                .send(FleetReply::ErrorOutput(self.place, data))
                .await
                .ok()?,
            What::Lost(exit) => {
                let reason = reason(&exit);
                self.lost = Some(reason.clone());
                self.news(StreamNews::Lost(reason)).await?;
            }
            What::Ended(exit) => {
                self.lost = Some("the command had ended".into());
                let news = match exit {
                    Exit::Status(status) => StreamNews::Ended(ExitStatus::Exited(status)),
                    Exit::Signal(name) => StreamNews::Ended(ExitStatus::Signaled {
                        signal: name,
                        core_dumped: false,
                    }),
                    Exit::Failed { message, .. } => StreamNews::Failed(message),
                };
                self.news(news).await?;
            }
            What::Refused(why) | What::Notice(why) => self.news(StreamNews::Waits(why)).await?,
        }
        if let Some(position) = &self.position {
            position.add(written, self.reader.position(), self.has_output);
        }
        Some(())
    }

    /// Writes, waiting as long as necessary: for a full disk, or a FIFO without a reader.
    async fn write(&mut self, data: &[u8]) -> Option<()> {
        let mut rest = data;
        let mut is_told = false;
        while let Err(error) = self.sink.write(&mut rest).await {
            if !std::mem::replace(&mut is_told, true) {
                self.news(StreamNews::Waits(format!(
                    "{error:#}; it is tried again, and nothing is lost"
                )))
                .await?;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Some(())
    }

    async fn news(&self, news: StreamNews) -> Option<()> {
        self.replies.send(FleetReply::Stream(self.place, news)).await.ok()
    }
}

/// Returns the line that marks a gap. It starts with a newline in case the output broke off within a line.
fn line(mark: &str, host: &str, reason: &str) -> Vec<u8> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let line = mark
        .replace("{host}", host)
        .replace("{time}", &since.as_secs().to_string())
        .replace("{reason}", &reason.replace('\n', " "));
    format!("\n{line}\n").into_bytes()
}

fn reason(exit: &Exit) -> String {
    match exit {
        Exit::Status(status) => format!("the command ended with status {status}"),
        Exit::Signal(name) => format!("the command was ended by SIG{name}"),
        Exit::Failed { message, .. } => message.clone(),
    }
}

fn stream_failure(error: &StreamError) -> Failure {
    Failure::new(ErrorKind::Configuration, error.to_string())
}
