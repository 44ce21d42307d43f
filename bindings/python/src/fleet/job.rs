//! A job for a fleet: handed to the program that `trunkline run --fleet` uses, too, and what that tells of each host.

use std::ffi::OsString;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use trunkline::ExitStatus;
use trunkline_embed::Ran;
use trunkline_fleet_client::{
    Canceller, Fleet, FleetHost, FleetLimits, FleetReply, FleetRequest, HOSTS_IN_A_FRAME, LONGEST_INPUT,
};
use trunkline_request::failure::{ErrorKind, Execution, Failure};

/// The size of the part of an input in one frame.
const PIECE: usize = 256 * 1024;

/// A job for a fleet.
#[derive(Debug)]
pub(super) struct Job {
    /// The command that runs `trunkline-fleet converse`, and the fleet.
    pub(super) program: Vec<OsString>,
    /// The hosts, and what is run on each.
    pub(super) hosts: Vec<FleetHost>,
    /// The input of each command.
    pub(super) input: Bytes,
    /// The limits for all.
    pub(super) limits: FleetLimits,
}

/// The result of a host.
#[derive(Debug)]
pub(super) struct FleetRan {
    /// Its output, and how it ended.
    pub(super) ran: Ran,
    /// Whether it is the fleet that says why there is no end: no node began it, or none tells of it any more.
    pub(super) is_of_fleet: bool,
}

/// By which a job is cancelled at any time, also before it has begun.
#[derive(Debug, Default)]
pub(super) struct Cancel {
    is_told: AtomicBool,
    canceller: OnceLock<Canceller>,
}

impl Cancel {
    /// Ends the job: what runs is sent SIGTERM, and nothing more is started. When this returns, that happens whatever becomes
    /// of this process.
    pub(super) async fn cancel(&self) {
        self.is_told.store(true, Ordering::SeqCst);
        if let Some(canceller) = self.canceller.get() {
            // A program that has ended has told all.
            let _ = canceller.cancel().await;
        }
    }
}

impl Job {
    /// Has the fleet do it. Tells of each host once, by its place.
    pub(super) async fn run(self, cancel: &Cancel, ended: impl FnMut(usize, FleetRan)) {
        let mut following = Following {
            hosts: self.hosts.iter().map(|_| Some(Collected::default())).collect(),
            ended,
        };
        let failure = match self.hand_over(cancel).await {
            Ok(mut fleet) => following.follow(&mut fleet).await,
            Err(failure) => Err(failure),
        };
        let failure = failure.err().unwrap_or_else(|| {
            let words = "the fleet has told nothing of this host";
            Failure::new(ErrorKind::Local, words).after_start()
        });
        for host in 0..following.hosts.len() {
            following.note_failure(host, failure.clone(), true);
        }
    }

    async fn hand_over(&self, cancel: &Cancel) -> Result<Fleet, Failure> {
        if self.input.len() as u64 > LONGEST_INPUT {
            let words = format!(
                "the input is longer than {} MiB, the most that a fleet takes with a job",
                LONGEST_INPUT >> 20
            );
            return Err(Failure::new(ErrorKind::Configuration, words));
        }
        let mut fleet = Fleet::start(&self.program)?;
        let _ = cancel.canceller.set(fleet.canceller());
        match self.ask(&fleet, cancel).await {
            Ok(()) => Ok(fleet),
            // A program that reads no more has said why.
            Err(failure) => loop {
                match fleet.next().await {
                    Ok(Some(FleetReply::Failed(failure))) => return Err(failure),
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => return Err(failure),
                }
            },
        }
    }

    /// Says what is asked. Nobody has a job before the last word.
    async fn ask(&self, fleet: &Fleet, cancel: &Cancel) -> Result<(), Failure> {
        let local = |error: &dyn std::fmt::Display| Failure::new(ErrorKind::Local, error.to_string());
        for part in self.hosts.chunks(HOSTS_IN_A_FRAME) {
            let sent = fleet.send(&FleetRequest::Hosts(part.to_vec())).await;
            sent.map_err(|error| local(&error))?;
        }
        for part in self.input.chunks(PIECE) {
            let sent = fleet.send(&FleetRequest::Input(part.to_vec())).await;
            sent.map_err(|error| local(&error))?;
        }
        if cancel.is_told.load(Ordering::SeqCst) {
            // It says this of each host, where anybody still asks.
            let _ = fleet.send(&FleetRequest::Cancel).await;
            return Err(local(&"cancelled before the job was handed over"));
        }
        let sent = fleet.send(&FleetRequest::Submit(self.limits)).await;
        sent.map_err(|error| local(&error).after_start())
    }
}

/// The collected output of a host.
#[derive(Debug, Default)]
struct Collected {
    stdout: Vec<Bytes>,
    stderr: Vec<Bytes>,
    /// The number of lost messages.
    lost: u64,
}

struct Following<F> {
    /// Those that have not ended.
    hosts: Vec<Option<Collected>>,
    ended: F,
}

impl<F: FnMut(usize, FleetRan)> Following<F> {
    /// Until all is told.
    async fn follow(&mut self, fleet: &mut Fleet) -> Result<(), Failure> {
        let mut has_job = false;
        loop {
            let reply = fleet
                .next()
                .await
                .map_err(|error| Failure::new(ErrorKind::Local, error.to_string()).after_start())?;
            match reply {
                Some(FleetReply::Done) => return Ok(()),
                Some(FleetReply::Failed(failure)) if has_job => return Err(failure.after_start()),
                Some(FleetReply::Failed(failure)) => return Err(failure),
                Some(FleetReply::Job { .. }) => has_job = true,
                Some(reply) => self.take_reply(reply),
                None => {
                    let words = "trunkline-fleet has ended; the job goes on";
                    return Err(Failure::new(ErrorKind::Local, words).after_start());
                }
            }
        }
    }

    fn take_reply(&mut self, reply: FleetReply) {
        let place = |host: u32| usize::try_from(host).unwrap_or(usize::MAX);
        match reply {
            FleetReply::Output(host, data) => {
                if let Some(Some(collected)) = self.hosts.get_mut(place(host)) {
                    collected.stdout.push(data.into());
                }
            }
            FleetReply::ErrorOutput(host, data) => {
                if let Some(Some(collected)) = self.hosts.get_mut(place(host)) {
                    collected.stderr.push(data.into());
                }
            }
            FleetReply::Incomplete(host, messages) => {
                if let Some(Some(collected)) = self.hosts.get_mut(place(host)) {
                    collected.lost += messages;
                }
            }
            FleetReply::Ended(host, exit) => self.note_exit(place(host), exit),
            FleetReply::HostFailed(host, failure) => self.note_failure(place(host), failure, false),
            FleetReply::NotStarted(host, why) => {
                self.note_failure(place(host), Failure::new(ErrorKind::Configuration, why), true);
            }
            FleetReply::Notice(text) => tracing::warn!("{text}"),
            FleetReply::Job { .. }
            | FleetReply::Hosts(_)
            | FleetReply::Started(_)
            | FleetReply::Stream(..)
            | FleetReply::Done
            | FleetReply::Failed(_) => {}
        }
    }

    fn note_exit(&mut self, host: usize, exit: ExitStatus) {
        let lost = self.hosts.get(host).and_then(Option::as_ref);
        let lost = lost.map_or(0, |collected| collected.lost);
        if lost > 0 {
            let failure = Failure {
                execution: Execution::Finished,
                ..Failure::new(
                    ErrorKind::Network,
                    format!("{lost} parts of this host's output are lost"),
                )
            };
            return self.note_failure(host, failure, true);
        }
        self.end(host, Ok(exit), false);
    }

    fn note_failure(&mut self, host: usize, failure: Failure, is_of_fleet: bool) {
        self.end(host, Err(failure), is_of_fleet);
    }

    fn end(&mut self, host: usize, outcome: Result<ExitStatus, Failure>, is_of_fleet: bool) {
        let Some(collected) = self.hosts.get_mut(host).and_then(Option::take) else {
            return;
        };
        let ran = Ran {
            outcome,
            stdout: collected.stdout,
            stderr: collected.stderr,
        };
        (self.ended)(host, FleetRan { ran, is_of_fleet });
    }
}
