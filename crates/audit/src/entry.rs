//! A requester and a request, until the end of the work.

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

/// One client, of which everything that it asks for is recorded.
#[derive(Clone)]
pub struct Recorder {
    audit: Arc<Audit>,
    asker: Option<Asker>,
    /// The engine that does the work.
    engine: Option<&'static str>,
}

impl Recorder {
    /// This process, for what it does with an engine of its own.
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

    /// Waits until all is written that was recorded so far and can be written.
    pub async fn flush(&self) {
        self.audit.write_all(None).await;
    }

    /// Records the end of all that has none yet, because this program ends, and waits as [`Self::flush`].
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

    /// Looks at the process that is at the other end, where that is recorded.
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

    /// Returns whether anything is recorded.
    pub fn is_on(&self) -> bool {
        self.audit.writer.is_some()
    }

    /// Something that it asks for, of which nothing has been handed to a server yet.
    pub fn entry(&self, subject: Subject) -> Entry {
        let work = Work::new(subject.with_engine(self.engine));
        Entry {
            recorder: self.clone(),
            written: OnceLock::new(),
            work: Arc::new(Mutex::new(self.audit.writer.is_some().then_some(work))),
        }
    }
}

/// Something that was asked for, from there to its end. Dropping it records an end that nobody knows more of.
pub struct Entry {
    recorder: Recorder,
    /// The fate of its beginning, once that was handed over to be written: the same for every caller, however often
    /// they ask.
    written: OnceLock<Written>,
    /// Guards it while it moves from one state to the next. `None` once the end is recorded, or where nothing is.
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

    /// Returns the recorder of its client's other requests.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Something else that the same client asks for.
    pub fn another(&self, subject: Subject) -> Self {
        self.recorder.entry(subject)
    }

    /// Records that it is about to be handed to a server; `refine` knows more of it by now. A second beginning is none, and has
    /// the outcome of the first: what was refused once stays refused.
    ///
    /// # Errors
    /// It cannot be recorded, and must not be done.
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
            // What did not happen is not in the trail. That its end could be written would be a contradiction.
            self.forget();
        }
        outcome.map_err(|source| writer.refusal(source))
    }

    /// Returns whether it could not be recorded, and must not be done by other ways either.
    pub fn is_refused(&self) -> bool {
        self.outcome().is_some_and(Result::is_err)
    }

    /// Returns the fate of its beginning, once that is known.
    fn outcome(&self) -> Option<&Result<(), Arc<io::Error>>> {
        self.written.get()?.peek()
    }

    /// Takes what is recorded of it, which has no end any more.
    fn forget(&self) -> Option<Work> {
        let work = self.work().take()?;
        if let (Some((id, _)), true) = (&work.begun, self.recorder.engine.is_some()) {
            self.recorder.audit.open.remove(id);
        }
        Some(work)
    }

    /// Sets the counter of its bytes from now on.
    pub fn carries(&self, carried: impl Fn() -> (u64, u64) + Send + Sync + 'static) {
        if let Some(work) = self.work().as_mut() {
            work.carried = Some(Box::new(carried));
        }
    }

    /// Says that it was carried over to a new connection.
    pub fn note_resumed(&self) {
        if let Some(work) = self.work().as_mut() {
            work.resumed += 1;
        }
    }

    /// Counts what a session carries.
    pub fn count_session(&self, session: &SessionControl) {
        let session = session.clone();
        self.carries(move || session.bytes_carried());
    }

    /// Says that whoever has it gives it up when they need it no longer: that is its end, and no failure.
    pub fn lasts(&self) {
        if let Some(work) = self.work().as_mut() {
            work.lasts = true;
        }
    }

    /// Says how its command has ended, whatever becomes of its session from now on.
    pub fn note_exit(&self, exit: &ExitStatus) {
        if let Some(work) = self.work().as_mut() {
            work.exit = Some(exit.clone());
        }
    }

    /// Returns its command's outcome, if one was reported.
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

    /// Records its end, by what a client was told last.
    pub fn end_by(&self, last: &Reply) {
        self.end(match last {
            Reply::Exit(exit) => of_exit(exit),
            Reply::Measured(_) | Reply::RemoteNames(_) => Outcome::new(Execution::Finished),
            // As `failed`.
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

    /// Records the end of a session. An end of the command that was told before counts for more than what became of the session.
    pub fn end_session(&self, ended: &Result<ExitStatus, Error>) {
        self.end(match (ended, self.reported_outcome()) {
            (Ok(exit), _) => of_exit(exit),
            (Err(_), Some(told)) => told,
            (Err(error), None) => Outcome::failure(error),
        });
    }

    /// Records the end of a copy, whose `progress` counts the names that failed.
    pub fn end_copy(&self, ended: &Result<Snapshot, Error>) {
        self.end(match ended {
            Ok(progress) => Outcome {
                failed_files: Some(progress.failed),
                ..Outcome::new(Execution::Finished)
            },
            Err(error) => Outcome::failure(error),
        });
    }

    /// Counts what a copy carries.
    pub fn counts_copy(&self, sources: &[Location], target: &Location, progress: &Arc<Progress>) {
        let (counting, uploads) = (progress.clone(), matches!(target, Location::Host(..)));
        let downloads = sources.iter().any(|source| matches!(source, Location::Host(..)));
        self.carries(move || {
            let bytes = counting.snapshot().bytes;
            (if uploads { bytes } else { 0 }, if downloads { bytes } else { 0 })
        });
    }

    /// Records that it failed. How its command had ended stays true.
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
            // Nothing is handed to a server before it is known that its beginning is written.
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
