//! Streams: commands that run on their hosts until they are cancelled, each by the owner of its host's shard.
//!
//! As far as leases can ensure it, no two owners run the same host of a stream at once: an owner ends the command
//! before another can take the lease, and gives a shard back only when its commands have ended. Late messages of an
//! owner that was stopped are recognised by the run's number, which begins with the revision of the lease.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use trunkline_request::Backoff;

use super::Time;
use super::entry::Exit;
use super::job::PlannedHost;
use super::shard::Unit;

/// The delay after a write of unknown outcome before another one is tried.
const AGAIN: Time = Time::from_secs(1);

/// The name of a stream: lower-case letters and digits, derived from its order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamId(pub String);

impl From<String> for StreamId {
    fn from(name: String) -> Self {
        Self(name)
    }
}

impl std::fmt::Display for StreamId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The condition for starting a command again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Restart {
    /// When the connection was lost, or cannot be made for a temporary reason.
    Lost,
    /// Also when the command has ended.
    Always,
    /// Never, except that a new owner of a host starts the command.
    Never,
}

/// The condition for starting a command again, and the delays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resuming {
    /// The condition.
    pub restart: Restart,
    /// The pause after the first failure.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
}

/// A stream that this node has read and judged.
#[derive(Debug, Clone)]
pub struct StreamPlan {
    /// Its hosts, in their order.
    pub hosts: Vec<PlannedHost>,
    /// The conditions for starting their commands again.
    pub resuming: Resuming,
}

/// One run of a command on a host of a stream. Later runs of a host are greater, on any node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    pub stream: StreamId,
    /// The host's index in the stream, from 0.
    pub host: u32,
    pub number: RunNumber,
}

/// The number of a host's run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunNumber {
    /// The revision of the lease during which it was started: the fencing token.
    pub fence: u64,
    /// The number of the run in its process.
    pub count: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunEnd {
    /// The command has ended, or cannot be run.
    Ended(Exit),
    /// The connection was lost or could not be made, for a temporary reason.
    Lost(Exit),
    /// It was told to stop.
    Stopped,
    /// The bucket said that the host had ended before, so nothing has run.
    HadEnded,
}

/// The final end of a host of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamEnd {
    /// The command has ended, or cannot be run.
    Ended(Exit),
    /// The stream was cancelled.
    Cancelled,
}

/// A node's work for a stream, as it reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamShare {
    /// Hosts on which it runs the command.
    pub running: u32,
    /// Its hosts on which it may not run the command.
    pub refused: u32,
    /// The reason for the first of them.
    pub why: Option<String>,
    /// The number of times that it has started a command again.
    pub restarts: u64,
}

/// A node's action for its streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamAction {
    /// Start the command. Answered by `Node::handle_run_ended`.
    Begin(Run),
    /// End the command now, and answer when it is over.
    Stop(Run),
    /// Tell followers that this node does not run the command, with the reason.
    Refuse(Run, String),
    /// Store that a host has ended for good. Answered by `Node::handle_end_written`.
    End(StreamId, u32, StreamEnd),
}

/// All streams that a node knows.
#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: BTreeMap<StreamId, Stream>,
    /// Ends that were read before their streams.
    early: BTreeMap<StreamId, Vec<u32>>,
    pub(super) actions: VecDeque<StreamAction>,
    count: u64,
    /// True if something has happened since the last decision.
    pub(super) is_stirred: bool,
}

#[derive(Debug)]
struct Stream {
    resuming: Resuming,
    is_cancelled: bool,
    /// It was removed from the bucket.
    is_gone: bool,
    hosts: Vec<Host>,
    restarts: u64,
}

#[derive(Debug)]
struct Host {
    planned: PlannedHost,
    phase: Phase,
    failures: u32,
    /// The reported reason why it was refused.
    told: Option<String>,
    is_ended: bool,
    /// This process has started its command before.
    has_begun: bool,
}

#[derive(Debug)]
enum Phase {
    /// Nothing runs, until that time.
    Idle(Time),
    Running {
        number: RunNumber,
        since: Time,
        is_stopping: bool,
    },
    /// The fleet must be told that it has ended.
    Ending(StreamEnd),
    /// That was sent.
    Sent(StreamEnd),
    /// That will be sent again at that time.
    Again(StreamEnd, Time),
}

impl Streams {
    /// Returns true if no command runs and every end is reported.
    pub(super) fn is_idle(&self) -> bool {
        let mut hosts = self.streams.values().flat_map(|stream| &stream.hosts);
        hosts.all(|host| matches!(host.phase, Phase::Idle(_)))
    }

    /// Returns this node's share of each stream.
    pub(super) fn shares(&self) -> impl Iterator<Item = (&StreamId, StreamShare)> {
        self.streams.iter().map(|(id, stream)| (id, stream.share()))
    }

    /// Returns the units in which commands run.
    pub(super) fn units(&self) -> impl Iterator<Item = &Unit> {
        let hosts = self.streams.values().flat_map(|stream| &stream.hosts);
        hosts
            .filter(|host| host.is_running())
            .map(|host| &host.planned.unit)
    }

    pub(super) fn set_plan(&mut self, now: Time, id: StreamId, plan: StreamPlan) {
        let ended = self.early.remove(&id).unwrap_or_default();
        self.streams.entry(id).or_insert_with(|| Stream {
            resuming: plan.resuming,
            is_cancelled: false,
            is_gone: false,
            hosts: (0..)
                .zip(plan.hosts)
                .map(|(place, planned)| Host {
                    planned,
                    phase: Phase::Idle(now),
                    failures: 0,
                    told: None,
                    is_ended: ended.contains(&place),
                    has_begun: false,
                })
                .collect(),
            restarts: 0,
        });
    }

    pub(super) fn apply_judgement(&mut self, id: &StreamId, refused: Vec<Option<String>>) {
        let hosts = self.streams.get_mut(id).map(|stream| &mut stream.hosts);
        for (host, refused) in hosts.into_iter().flatten().zip(refused) {
            host.planned.refused = refused;
        }
    }

    pub(super) fn cancel(&mut self, id: &StreamId) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.is_cancelled = true;
        }
    }

    /// Notes that a host has ended, by the bucket.
    pub(super) fn saw_end(&mut self, id: &StreamId, host: u32) {
        match self.streams.contains_key(id) {
            true => {
                if let Some(host) = self.host(id, host) {
                    host.is_ended = true;
                }
            }
            false => self.early.entry(id.clone()).or_default().push(host),
        }
    }

    /// Notes that the stream was removed from the bucket.
    pub(super) fn forget(&mut self, id: &StreamId) {
        self.early.remove(id);
        if let Some(stream) = self.streams.get_mut(id) {
            stream.is_gone = true;
        }
    }

    pub(super) fn end_written(&mut self, now: Time, id: &StreamId, host: u32, is_written: bool) {
        let Some(host) = self.host(id, host) else { return };
        let phase = std::mem::replace(&mut host.phase, Phase::Idle(now));
        host.phase = match phase {
            Phase::Sent(end) if !is_written => Phase::Again(end, now + AGAIN),
            Phase::Sent(_) => {
                host.is_ended = true;
                Phase::Idle(now)
            }
            other => other,
        };
    }

    pub(super) fn run_ended(&mut self, now: Time, run: &Run, end: RunEnd) {
        let Some(stream) = self.streams.get_mut(&run.stream) else {
            return;
        };
        let (resuming, is_over) = (stream.resuming, stream.is_cancelled || stream.is_gone);
        let Some(host) = host_of(stream, run.host) else {
            return;
        };
        let Phase::Running {
            number,
            since,
            is_stopping,
        } = host.phase
        else {
            return;
        };
        if number != run.number {
            return;
        }
        let backoff = Backoff::new(resuming.first, resuming.longest);
        // A run that lasted longer than the next pause resets the backoff.
        if now.saturating_sub(since) > backoff.pause_after(host.failures.saturating_add(1)) {
            host.failures = 0;
        }
        if matches!(end, RunEnd::HadEnded) {
            host.is_ended = true;
        }
        let exit = match end {
            _ if is_over => None,
            RunEnd::Stopped | RunEnd::HadEnded => None,
            RunEnd::Lost(_) if is_stopping => None,
            RunEnd::Lost(exit) if resuming.restart == Restart::Never => Some(exit),
            RunEnd::Ended(exit) if resuming.restart != Restart::Always || is_final(&exit) => Some(exit),
            RunEnd::Lost(_) | RunEnd::Ended(_) => {
                host.failures = host.failures.saturating_add(1);
                None
            }
        };
        host.phase = match exit {
            Some(exit) => Phase::Ending(StreamEnd::Ended(exit)),
            None if is_stopping || is_over => Phase::Idle(now),
            None => {
                // Reduced by up to half, so that hosts that were lost together do not come back together.
                let part = u32::try_from(run.number.count.wrapping_mul(37) % 100).unwrap_or_default();
                let pause = backoff.pause_after(host.failures);
                Phase::Idle(now.saturating_add(pause - pause / 200 * part))
            }
        };
    }

    /// Starts commands that should run here, and stops others. `lease` returns the revision under which commands may
    /// run, and whether they may be started.
    pub(super) fn look_after(
        &mut self,
        now: Time,
        is_starting: bool,
        mut lease: impl FnMut(&Unit) -> Option<(u64, bool)>,
    ) {
        let Self {
            streams,
            actions,
            count,
            ..
        } = self;
        streams.retain(|_, stream| !stream.is_gone || stream.hosts.iter().any(Host::is_running));
        for (id, stream) in streams {
            let is_over = stream.is_cancelled || stream.is_gone;
            for (place, host) in (0..).zip(&mut stream.hosts) {
                let lease = lease(&host.planned.unit);
                let (fence, may_begin) = (lease.map(|(fence, _)| fence), lease.is_some_and(|(_, may)| may));
                let run = |number| Run {
                    stream: id.clone(),
                    host: place,
                    number,
                };
                let is_kept = fence.is_some() && !is_over && host.planned.refused.is_none() && !host.is_ended;
                match &mut host.phase {
                    Phase::Running {
                        number, is_stopping, ..
                    } => {
                        if !is_kept && !*is_stopping {
                            *is_stopping = true;
                            actions.push_back(StreamAction::Stop(run(*number)));
                        }
                        continue;
                    }
                    Phase::Again(end, at) if now >= *at => host.phase = Phase::Ending(end.clone()),
                    Phase::Sent(_) | Phase::Again(..) => continue,
                    // The new owner starts it again: the fleet does not know that it has ended.
                    Phase::Ending(_) if fence.is_none() || stream.is_gone => host.phase = Phase::Idle(now),
                    Phase::Idle(_) | Phase::Ending(_) => {}
                }
                let Some(fence) = fence.filter(|_| !host.is_ended && !stream.is_gone) else {
                    host.told = None;
                    continue;
                };
                if let Phase::Idle(_) = host.phase
                    && stream.is_cancelled
                {
                    host.phase = Phase::Ending(StreamEnd::Cancelled);
                }
                if let Phase::Ending(end) = &host.phase {
                    actions.push_back(StreamAction::End(id.clone(), place, end.clone()));
                    host.phase = Phase::Sent(end.clone());
                    continue;
                }
                let Phase::Idle(from) = host.phase else { continue };
                let mut next = || {
                    *count += 1;
                    RunNumber { fence, count: *count }
                };
                match &host.planned.refused {
                    Some(why) if host.told.as_ref() != Some(why) => {
                        host.told = Some(why.clone());
                        actions.push_back(StreamAction::Refuse(run(next()), why.clone()));
                    }
                    Some(_) => {}
                    None if now >= from && is_starting && may_begin => {
                        host.told = None;
                        stream.restarts += u64::from(std::mem::replace(&mut host.has_begun, true));
                        let number = next();
                        host.phase = Phase::Running {
                            number,
                            since: now,
                            is_stopping: false,
                        };
                        actions.push_back(StreamAction::Begin(run(number)));
                    }
                    None => {}
                }
            }
        }
    }

    fn host(&mut self, id: &StreamId, host: u32) -> Option<&mut Host> {
        host_of(self.streams.get_mut(id)?, host)
    }
}

fn host_of(stream: &mut Stream, host: u32) -> Option<&mut Host> {
    stream.hosts.get_mut(usize::try_from(host).ok()?)
}

/// Returns true for failures that another attempt would not fix, and that servers count: a wrong host key, a refused
/// key.
fn is_final(exit: &Exit) -> bool {
    matches!(exit, Exit::Failed { kind, .. } if !kind.may_pass())
}

impl Stream {
    fn share(&self) -> StreamShare {
        let mut share = StreamShare {
            restarts: self.restarts,
            ..StreamShare::default()
        };
        for host in &self.hosts {
            match &host.told {
                _ if host.is_running() => share.running += 1,
                Some(why) => {
                    share.refused += 1;
                    share.why.get_or_insert_with(|| why.clone());
                }
                None => {}
            }
        }
        share
    }
}

impl Host {
    fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running { .. })
    }
}
