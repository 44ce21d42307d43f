//! Commands on hosts. Each runs until it ends, whether or not a call waits for it, and its output is kept for a while.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use trunkline::ExitStatus;
use trunkline_audit::Entry;
use trunkline_control::protocol::Reply;
use trunkline_embed::{
    Control, ErrorKind, Execution, Failure, Input, Output, Program, Route, SessionOptions,
};

use crate::hosts::Host;
use crate::spool::Spool;

/// The time that the output of an ended command can be read.
const KEPT: Duration = Duration::from_secs(600);

/// The most commands that are remembered. The oldest ended ones go first.
const MOST: usize = 128;

/// The time limit for a command to end once it was told to.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// A command to run.
pub(crate) struct Order {
    pub(crate) host: Arc<Host>,
    /// The line for the remote shell.
    pub(crate) line: String,
    pub(crate) input: Bytes,
    /// The time limit.
    pub(crate) time: Duration,
    /// The most bytes of each output that are kept.
    pub(crate) output: u64,
    /// True if it continues after this program ends.
    pub(crate) keeps: bool,
}

/// A command.
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) host: String,
    keeps: bool,
    /// Standard output and standard error.
    outputs: [Mutex<Spool>; 2],
    state: watch::Sender<State>,
    /// Cancelled to stop it.
    stop: CancellationToken,
    /// Passes the stop on to the running command.
    control: Mutex<Option<Control>>,
}

/// The state of a command.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    /// The number of bytes printed, which shows waiters that there is more.
    pub(crate) printed: u64,
    /// The outcome and its time, once it has ended.
    pub(crate) end: Option<(Result<ExitStatus, Failure>, Instant)>,
}

/// All commands.
#[derive(Default)]
pub(crate) struct Jobs {
    jobs: Mutex<BTreeMap<String, Arc<Job>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Jobs {
    /// Starts a command. Its audit record ends with it.
    pub(crate) fn start(&self, order: Order, entry: Option<Entry>) -> Arc<Job> {
        let id = format!("{:016x}", rand::random::<u64>());
        let job = Arc::new(Job {
            id: id.clone(),
            host: order.host.destination.as_hop(),
            keeps: order.keeps,
            outputs: [
                Mutex::new(Spool::new(order.output)),
                Mutex::new(Spool::new(order.output)),
            ],
            state: watch::Sender::default(),
            stop: CancellationToken::new(),
            control: Mutex::new(None),
        });
        {
            let mut jobs = lock(&self.jobs);
            jobs.retain(|_, job| !job.has_expired());
            while jobs.len() >= MOST {
                let ended = jobs
                    .iter()
                    .filter_map(|(id, job)| Some((job.ended_at()?, id.clone())));
                let Some((_, oldest)) = ended.min() else { break };
                jobs.remove(&oldest);
            }
            jobs.insert(id, job.clone());
        }
        let running = job.clone();
        tokio::spawn(async move {
            let end = running.run(order).await;
            *lock(&running.control) = None;
            if let Some(entry) = entry {
                entry.end_by(&last_reply(&end));
            }
            running
                .state
                .send_modify(|state| state.end = Some((end, Instant::now())));
        });
        job
    }

    /// Finds a command that runs, or whose output is still kept.
    pub(crate) fn find(&self, id: &str) -> Option<Arc<Job>> {
        let mut jobs = lock(&self.jobs);
        jobs.retain(|_, job| !job.has_expired());
        jobs.get(id).cloned()
    }

    /// Forgets a command that has ended and whose output was returned completely.
    pub(crate) fn forget(&self, id: &str) {
        lock(&self.jobs).remove(id);
    }

    /// Ends running commands, or leaves them to the daemon if they are to continue. Returns when all have ended, or
    /// after two seconds.
    pub(crate) async fn close(&self) {
        let jobs: Vec<_> = lock(&self.jobs).values().cloned().collect();
        let mut closing = tokio::task::JoinSet::new();
        for job in jobs.into_iter().filter(|job| job.ended_at().is_none()) {
            closing.spawn(async move {
                let control = lock(&job.control).clone();
                match control {
                    Some(control) if job.keeps => drop(control.leave().await),
                    _ => {
                        job.stop();
                        job.wait_for_end().await;
                    }
                }
            });
        }
        let all = async { while closing.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_secs(2), all).await;
    }
}

impl Job {
    async fn run(&self, order: Order) -> Result<ExitStatus, Failure> {
        let deadline = Instant::now() + order.time;
        let busy = || {
            let message = format!(
                "{}: too much is being done there at once; the command did not start",
                self.host
            );
            Failure::new(ErrorKind::Limit, message)
        };
        let permit = tokio::select! {
            permit = order.host.at_once.clone().acquire_owned() => permit,
            () = self.stop.cancelled() => return Err(stopped_failure()),
            () = tokio::time::sleep_until(deadline) => return Err(busy()),
        };
        let _permit = permit.map_err(|_| busy())?;
        let way = order.host.way().await?;
        let options = SessionOptions::new(Program::Exec(order.line.into_bytes()));
        let input = if order.input.is_empty() {
            Route::Ignore
        } else {
            Route::Pipe
        };
        let limit = deadline.saturating_duration_since(Instant::now());
        let started = way
            .start(&options, [input, Route::Pipe, Route::Pipe], Some(limit))
            .await;
        let session = started.map_err(|failure| order.host.explain(failure))?;
        let control = session.control;
        *lock(&self.control) = Some(control.clone());
        let mut end = session.end;
        let input = order.input;
        let feed = async move {
            if let Input::Program(mut writer) = session.stdin {
                // A command that does not read its input is not an error.
                let _ = writer.send(input).await;
                writer.finish().await;
                std::future::pending::<()>().await;
            }
            std::future::pending::<()>().await;
        };
        let outputs = async {
            tokio::join!(self.collect(session.stdout, 0), self.collect(session.stderr, 1));
        };
        let work = async { tokio::join!(outputs, end.wait()).1 };
        tokio::pin!(work);
        let stopped = tokio::select! {
            biased;
            ended = &mut work => return ended.map_err(|failure| order.host.explain(failure)),
            () = feed => stopped_failure(),
            () = self.stop.cancelled() => stopped_failure(),
            // The daemon enforces the limit; this is for one that does not answer.
            () = tokio::time::sleep_until(deadline + LAST_WORDS) => timed_out(order.time),
        };
        control.terminate();
        match tokio::time::timeout(LAST_WORDS, work).await {
            Ok(ended) => ended,
            Err(_) => Err(stopped.after_start()),
        }
    }

    async fn collect(&self, output: Output, which: usize) {
        let Output::Program(mut reader) = output else {
            return;
        };
        let mut pieces: Vec<Bytes> = Vec::new();
        while reader.chunks(&mut pieces).await > 0 {
            let mut spool = lock(&self.outputs[which]);
            let mut count = 0;
            for piece in pieces.drain(..) {
                count += piece.len() as u64;
                spool.add(&piece);
            }
            drop(spool);
            self.state.send_modify(|state| state.printed += count);
        }
    }

    /// Ends the command, whatever its state is.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Returns the standard output (0) or standard error (1) so far.
    pub(crate) fn output(&self, which: usize) -> MutexGuard<'_, Spool> {
        lock(&self.outputs[which])
    }

    pub(crate) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Returns a receiver of all changes.
    pub(crate) fn changes(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    pub(crate) async fn wait_for_end(&self) {
        let mut changes = self.changes();
        // The sender is this job's own.
        let _ = changes.wait_for(|state| state.end.is_some()).await;
    }

    fn ended_at(&self) -> Option<Instant> {
        self.state.borrow().end.as_ref().map(|(_, at)| *at)
    }

    fn has_expired(&self) -> bool {
        self.ended_at().is_some_and(|at| at.elapsed() > KEPT)
    }
}

fn stopped_failure() -> Failure {
    Failure::new(ErrorKind::Local, "the command was stopped")
}

fn timed_out(after: Duration) -> Failure {
    let after = humantime::format_duration(after);
    Failure::new(
        ErrorKind::Timeout,
        format!("the command was not done after {after}"),
    )
}

/// Returns the daemon's last reply, for the audit trail.
fn last_reply(end: &Result<ExitStatus, Failure>) -> Reply {
    match end {
        Ok(exit) => Reply::Exit(exit.clone()),
        Err(failure) => Reply::Failed(failure.clone()),
    }
}

/// Returns the words for a command's state.
pub(crate) fn state_words(state: &State) -> &'static str {
    match &state.end {
        None => "running",
        Some((Ok(_), _)) => Execution::Finished.as_str(),
        Some((Err(failure), _)) => failure.execution.as_str(),
    }
}
