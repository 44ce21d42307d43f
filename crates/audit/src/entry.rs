//! The record of a client's request, until the end of the work.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use tokio::net::UnixStream;
use trunkline::transfer::{Location, Progress, Snapshot};
use trunkline::{Error, Execution, ExitStatus, SessionControl};
use trunkline_control::protocol::{CopyEnd, Reply};

use crate::Audit;
use crate::asker::Asker;
use crate::record::Outcome;
use crate::subject::Subject;
use crate::work::{Unended, Work, lock_work};
use crate::writer::Written;

/// Records the requests of one client.
#[derive(Clone)]
pub struct Recorder {
    audit: Arc<Audit>,
    asker: Option<Asker>,
    /// The engine that does the work.
    engine: Option<&'static str>,
}

impl Recorder {
    /// Returns the recorder of this process, for the work of its own engine.
    pub fn of_program(audit: &Arc<Audit>) -> Self {
        let uid = rustix::process::getuid().as_raw();
        Self {
            audit: audit.clone(),
            asker: audit
                .writer
                .is_some()
                .then(|| Asker::looked_at(uid, Some(std::process::id()))),
            engine: Some("program"),
        }
    }

    /// Waits until everything recorded so far is written, if possible.
    pub async fn flush(&self) {
        self.audit.write_all(None).await;
    }

    /// Records the end of all open work, because this program ends, and waits as [`Self::flush`] does.
    pub async fn close(&self) {
        for work in self.audit.open.take() {
            let outcome = match (&work.exit, work.lasts) {
                (Some(exit), _) => of_exit(exit),
                (None, true) => Outcome::new(Execution::Finished),
                (None, false) => Outcome::abandoned_by("its program ended", Execution::MayHaveStarted),
            };
            self.end(&work, outcome);
        }
        self.flush().await;
    }

    fn end(&self, work: &Work, outcome: Outcome) {
        if let Some(writer) = &self.audit.writer {
            writer.add(work.end(self.asker.clone(), outcome));
        }
    }

    /// Returns the recorder of the client at the other end of a socket. Examines its process if the trail is on.
    pub fn for_stream(audit: &Arc<Audit>, stream: &UnixStream) -> Self {
        Self {
            audit: audit.clone(),
            asker: audit
                .writer
                .is_some()
                .then(|| Asker::from_stream(stream))
                .flatten(),
            engine: None,
        }
    }

    /// Returns true if the trail is on.
    pub fn is_on(&self) -> bool {
        self.audit.writer.is_some()
    }

    /// Returns an entry for a request for which nothing has been sent to a server yet.
    pub fn entry(&self, subject: Subject) -> Entry {
        let work = Work::new(subject.with_engine(self.engine));
        Entry {
            recorder: self.clone(),
            written: OnceLock::new(),
            work: Arc::new(Mutex::new(self.audit.writer.is_some().then_some(work))),
        }
    }
}

/// A request until its end. Dropping it records an end with an unknown outcome.
pub struct Entry {
    recorder: Recorder,
    /// The result of writing its beginning, once that was requested: the same for all callers.
    written: OnceLock<Written>,
    /// Locked while the state changes. `None` once the end is recorded, or if the trail is off.
    work: Arc<Unended>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").finish_non_exhaustive()
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl Entry {
    fn work(&self) -> MutexGuard<'_, Option<Work>> {
        lock_work(&self.work)
    }

    /// Returns the recorder of the same client.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Returns an entry for another request of the same client.
    pub fn another(&self, subject: Subject) -> Self {
        self.recorder.entry(subject)
    }

    /// Records the request before it is sent to a server, with details from `refine`. Later calls return the first
    /// result, so that a refusal is final.
    ///
    /// # Errors
    /// It cannot be recorded, so it must not be done.
    pub async fn begin(&self, refine: impl FnOnce(Subject) -> Subject) -> Result<(), Error> {
        let Some(writer) = &self.recorder.audit.writer else {
            return Ok(());
        };
        let written = match &mut *self.work() {
            Some(work) => self.written.get_or_init(|| {
                work.subject = refine(std::mem::take(&mut work.subject));
                work.lasts |= work.subject.lasts();
                let id = self.recorder.audit.open.number();
                if self.recorder.engine.is_some() {
                    self.recorder.audit.open.insert(id.clone(), &self.work);
                }
                work.begun = Some((id, Instant::now()));
                writer.record(work.begin(self.recorder.asker.clone()))
            }),
            None if self.is_refused() || !writer.is_strict() => match self.written.get() {
                Some(written) => written,
                None => return Ok(()),
            },
            None => return Err(Error::Bug("work was begun after its end was recorded")),
        };
        let outcome = written.clone().await;
        if outcome.is_err() {
            // Work that did not happen is not in the trail, so its end must not be, either.
            self.forget();
        }
        outcome.map_err(|source| writer.refusal(source))
    }

    /// Returns true if it could not be recorded, so it must not be done in other ways, either.
    pub fn is_refused(&self) -> bool {
        self.outcome().is_some_and(Result::is_err)
    }

    /// Returns the result of writing its beginning, once known.
    fn outcome(&self) -> Option<&Result<(), Arc<io::Error>>> {
        self.written.get()?.peek()
    }

    /// Takes the work, so that no end is recorded any more.
    fn forget(&self) -> Option<Work> {
        let work = self.work().take()?;
        if let (Some((id, _)), true) = (&work.begun, self.recorder.engine.is_some()) {
            self.recorder.audit.open.remove(id);
        }
        Some(work)
    }

    /// Sets the counter of its bytes.
    pub fn carries(&self, carried: impl Fn() -> (u64, u64) + Send + Sync + 'static) {
        if let Some(work) = self.work().as_mut() {
            work.carried = Some(Box::new(carried));
        }
    }

    /// Notes that it was resumed on a new connection.
    pub fn note_resumed(&self) {
        if let Some(work) = self.work().as_mut() {
            work.resumed += 1;
        }
    }

    /// Counts a session's bytes.
    pub fn count_session(&self, session: &SessionControl) {
        let session = session.clone();
        self.carries(move || session.bytes_carried());
    }

    /// Marks work that normally ends when its owner drops it, which is not a failure.
    pub fn lasts(&self) {
        if let Some(work) = self.work().as_mut() {
            work.lasts = true;
        }
    }

    /// Notes how its command ended, whatever becomes of its session.
    pub fn note_exit(&self, exit: &ExitStatus) {
        if let Some(work) = self.work().as_mut() {
            work.exit = Some(exit.clone());
        }
    }

    /// Returns its command's outcome, if reported.
    fn reported_outcome(&self) -> Option<Outcome> {
        self.work().as_ref()?.exit.as_ref().map(of_exit)
    }

    /// Records its end.
    fn end(&self, outcome: Outcome) {
        let Some(work) = self.forget() else { return };
        if !self.is_refused() {
            self.recorder.end(&work, outcome);
        }
    }

    /// Records its end, by the last reply to the client.
    pub fn end_by(&self, last: &Reply) {
        self.end(match last {
            Reply::Exit(exit) => of_exit(exit),
            Reply::Measured(_) | Reply::RemoteNames(_) => Outcome::new(Execution::Finished),
            // As in [`Self::fail`].
            Reply::Failed(failure) => Outcome {
                error: Some(failure.message.clone()),
                ..self
                    .reported_outcome()
                    .unwrap_or_else(|| Outcome::new(failure.execution))
            },
            Reply::Copied(CopyEnd { progress, .. }) => Outcome {
                failed_files: Some(progress.failed),
                ..Outcome::new(Execution::Finished)
            },
            Reply::UseSystemSsh { .. } => Outcome {
                execution: "not known",
                ..Outcome::new(Execution::MayHaveStarted)
            },
            _ => return,
        });
    }

    /// Records the end of a session. An earlier report about the command overrides the session's error.
    pub fn end_session(&self, ended: &Result<ExitStatus, Error>) {
        self.end(match (ended, self.reported_outcome()) {
            (Ok(exit), _) => of_exit(exit),
            (Err(_), Some(told)) => told,
            (Err(error), None) => Outcome::failure(error),
        });
    }

    /// Records the end of a copy, whose `progress` counts failed names.
    pub fn end_copy(&self, ended: &Result<Snapshot, Error>) {
        self.end(match ended {
            Ok(progress) => Outcome {
                failed_files: Some(progress.failed),
                ..Outcome::new(Execution::Finished)
            },
            Err(error) => Outcome::failure(error),
        });
    }

    /// Counts a copy's bytes.
    pub fn counts_copy(&self, sources: &[Location], target: &Location, progress: &Arc<Progress>) {
        let (counting, uploads) = (progress.clone(), matches!(target, Location::Host(..)));
        let downloads = sources.iter().any(|source| matches!(source, Location::Host(..)));
        self.carries(move || {
            let bytes = counting.snapshot().bytes;
            (if uploads { bytes } else { 0 }, if downloads { bytes } else { 0 })
        });
    }

    /// Records a failure. An earlier report about the command's end is kept.
    pub fn fail(&self, error: &Error) {
        self.end(Outcome {
            error: Some(error.to_string()),
            ..self
                .reported_outcome()
                .unwrap_or_else(|| Outcome::new(error.execution()))
        });
    }
}

fn of_exit(exit: &ExitStatus) -> Outcome {
    match exit {
        ExitStatus::Exited(status) => Outcome::exit_status(*status),
        ExitStatus::Signaled { signal, .. } => Outcome::signal(signal),
        ExitStatus::Unknown => Outcome::new(Execution::Finished),
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let state = self.work().as_ref().map(|work| {
            let exit = work.exit.as_ref().map(of_exit);
            // Nothing is sent to a server before the beginning is known to be written.
            (exit, self.outcome().is_some(), work.lasts)
        });
        let execution = match state {
            None => return,
            Some((Some(exit), ..)) => return self.end(exit),
            Some((None, true, true)) => return self.end(Outcome::new(Execution::Finished)),
            Some((None, true, false)) => Execution::MayHaveStarted,
            Some((None, false, _)) => Execution::DidNotStart,
        };
        let who = match self.recorder.engine {
            None => "its client left",
            Some(_) => "its program gave it up",
        };
        self.end(Outcome::abandoned_by(who, execution));
    }
}

#[cfg(test)]
mod tests;
