//! Streams in the simulated world: the nodes that run them at each time, and the ends that were written down.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::RngExt as _;

use super::{Event, Life, World};
use crate::state::{
    Exit, PlannedHost, Restart, Resuming, Run, RunEnd, RunNumber, StreamAction, StreamEnd, StreamId,
    StreamPlan,
};

/// The maximum time from when a stopped node continues until its commands have ended.
const COMING_TO: Duration = Duration::from_secs(4);

pub(super) enum StreamEvent {
    /// A command ends.
    Ends(Run, RunEnd),
    /// A node is told the content of the bucket.
    Tell,
    /// An end reaches the bucket.
    EndAtStore(StreamId, u32, StreamEnd),
    /// The write is answered, or not.
    EndWritten(StreamId, u32, bool),
}

#[derive(Default)]
pub(in crate::state::tests) struct Streams {
    hosts: BTreeMap<StreamId, u32>,
    cancelled: BTreeSet<StreamId>,
    pub(in crate::state::tests) ends: BTreeMap<(StreamId, u32), StreamEnd>,
    /// Running commands, and the processes that run them.
    active: Vec<(Life, Run)>,
    /// The last run of each host.
    latest: BTreeMap<(StreamId, u32), RunNumber>,
    /// The number of runs so far.
    pub(in crate::state::tests) begun: usize,
    /// The time when each stopped node last continued.
    pub(super) continued: BTreeMap<usize, Duration>,
}

impl World {
    pub(in crate::state::tests) fn stream(&mut self, stream: &str, hosts: u32) {
        self.streams.hosts.insert(StreamId(stream.to_owned()), hosts);
        self.tell_all();
    }

    pub(in crate::state::tests) fn cancel_stream(&mut self, stream: &str) {
        self.streams.cancelled.insert(StreamId(stream.to_owned()));
        self.tell_all();
    }

    /// Returns the number of running commands of a stream.
    pub(in crate::state::tests) fn streaming(&self, stream: &str) -> usize {
        let active = self.streams.active.iter();
        active.filter(|(_, run)| run.stream.0 == stream).count()
    }

    /// Returns the number of hosts on which a stream has ended.
    pub(in crate::state::tests) fn ended_hosts(&self, stream: &str) -> usize {
        let ends = self.streams.ends.keys();
        ends.filter(|(id, _)| id.0 == stream).count()
    }

    fn tell_all(&mut self) {
        for slot in 0..self.slots.len() {
            let life = (slot, self.slots[slot].life);
            let delay = self.delay();
            self.schedule(delay, Event::Stream(life, StreamEvent::Tell));
        }
    }

    /// Handles the end of a process: all of its runs end.
    pub(super) fn runs_end_with(&mut self, slot: usize) {
        self.streams.active.retain(|(life, _)| life.0 != slot);
    }

    pub(super) fn stream_happens(&mut self, life: Life, event: StreamEvent) {
        match event {
            StreamEvent::Ends(run, end) => {
                let active = &mut self.streams.active;
                let Some(place) = active.iter().position(|one| *one == (life, run.clone())) else {
                    return;
                };
                active.remove(place);
                self.step(life.0, |node, now| node.handle_run_ended(now, &run, end));
            }
            StreamEvent::Tell if self.slots[life.0].cut_off => {
                self.schedule(Duration::from_millis(500), Event::Stream(life, StreamEvent::Tell));
            }
            StreamEvent::Tell => self.tell_streams(life.0),
            StreamEvent::EndAtStore(stream, host, end) => {
                self.streams.ends.entry((stream.clone(), host)).or_insert(end);
                if !self.is_lost(life.0) {
                    let delay = self.delay();
                    let written = StreamEvent::EndWritten(stream, host, true);
                    self.schedule(delay, Event::Stream(life, written));
                }
                self.tell_all();
            }
            StreamEvent::EndWritten(stream, host, is_written) => {
                self.step(life.0, |node, now| {
                    node.handle_end_written(now, &stream, host, is_written);
                });
            }
        }
    }

    pub(super) fn tell_streams(&mut self, slot: usize) {
        let resuming = Resuming {
            restart: Restart::Lost,
            first: Duration::from_secs(1),
            longest: Duration::from_secs(10),
        };
        let streams = self.streams.hosts.clone();
        for (stream, hosts) in streams {
            let hosts = (0..hosts).map(|host| PlannedHost {
                unit: self.zones.unit_of(&format!("host{host}")),
                refused: None,
            });
            let plan = StreamPlan {
                hosts: hosts.collect(),
                resuming,
            };
            let is_cancelled = self.streams.cancelled.contains(&stream);
            self.step(slot, |node, now| {
                node.handle_stream(now, stream.clone(), plan);
                if is_cancelled {
                    node.handle_stream_cancelled(&stream);
                }
            });
        }
        let ends: Vec<_> = self.streams.ends.keys().cloned().collect();
        self.step(slot, |node, _| {
            for (stream, host) in &ends {
                node.handle_stream_ended(stream, *host);
            }
        });
    }

    pub(super) fn acts_for_stream(&mut self, life: Life, action: StreamAction) {
        match action {
            StreamAction::Begin(run) => self.begins(life, run),
            StreamAction::Stop(run) => {
                let takes = Duration::from_millis(self.random.random_range(1..2_000));
                self.schedule(
                    takes,
                    Event::Stream(life, StreamEvent::Ends(run, RunEnd::Stopped)),
                );
            }
            StreamAction::Refuse(..) => {}
            StreamAction::End(stream, host, end) => {
                if !self.is_lost(life.0) {
                    let delay = self.delay();
                    let at_store = StreamEvent::EndAtStore(stream.clone(), host, end);
                    self.schedule(delay, Event::Stream(life, at_store));
                }
                let lost = StreamEvent::EndWritten(stream, host, false);
                self.schedule(Duration::from_secs(2), Event::Stream(life, lost));
            }
        }
    }

    fn begins(&mut self, life: Life, run: Run) {
        let place = (run.stream.clone(), run.host);
        // A node asks the bucket, because the entries that it watches may not have arrived yet.
        if self.streams.ends.contains_key(&place) {
            let delay = self.delay();
            let ends = StreamEvent::Ends(run, RunEnd::HadEnded);
            return self.schedule(delay, Event::Stream(life, ends));
        }
        let is_coming_to = |slot: usize| {
            let continued = self.streams.continued.get(&slot);
            self.slots[slot].stopped || continued.is_some_and(|at| self.now < *at + COMING_TO)
        };
        if self.faults.skew < 0.1 {
            for (other, active) in &self.streams.active {
                assert!(
                    (active.stream != run.stream || active.host != run.host) || is_coming_to(other.0),
                    "{run:?} begins while another owner runs {active:?}"
                );
            }
            let latest = self.streams.latest.get(&place);
            assert!(
                latest.is_none_or(|latest| *latest < run.number),
                "{run:?} begins after {latest:?}"
            );
        }
        self.streams.latest.insert(place, run.number);
        self.streams.begun += 1;
        self.streams.active.push((life, run.clone()));
        // Most keep running for as long as they may.
        let failed = || Exit::Failed {
            kind: trunkline_request::failure::ErrorKind::Network,
            message: "the connection was lost".into(),
            execution: trunkline_request::failure::Execution::MayHaveStarted,
        };
        let end = match self.random.random_range(0..20) {
            0 => RunEnd::Ended(Exit::Status(0)),
            1..6 => RunEnd::Lost(failed()),
            _ => return,
        };
        let takes = Duration::from_millis(self.random.random_range(1..30_000));
        self.schedule(takes, Event::Stream(life, StreamEvent::Ends(run, end)));
    }
}
