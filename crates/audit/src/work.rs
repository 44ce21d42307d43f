//! Recorded work: its subject and state.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use trunkline::ExitStatus;

use crate::asker::Asker;
use crate::record::{Event, Outcome, Record};
use crate::subject::Subject;

/// Requested work.
pub(crate) struct Work {
    pub(crate) subject: Subject,
    /// True if it normally ends when its owner drops it.
    pub(crate) lasts: bool,
    /// Its id, and when it began.
    pub(crate) begun: Option<(String, Instant)>,
    pub(crate) carried: Option<Carried>,
    /// The number of times that it was resumed on a new connection.
    pub(crate) resumed: u64,
    /// Its command's outcome, if known before its session's end.
    pub(crate) exit: Option<ExitStatus>,
}

/// Returns the bytes to the server and from it so far.
pub(crate) type Carried = Box<dyn Fn() -> (u64, u64) + Send + Sync>;

/// Work until its end is recorded; then `None`.
pub(crate) type Unended = Mutex<Option<Work>>;

pub(crate) fn lock_work(work: &Unended) -> MutexGuard<'_, Option<Work>> {
    work.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Work {
    /// Returns work for which nothing has been sent to a server yet.
    pub(crate) fn new(subject: Subject) -> Self {
        Self {
            lasts: subject.lasts(),
            subject,
            begun: None,
            carried: None,
            resumed: 0,
            exit: None,
        }
    }

    pub(crate) fn begin(&self, asker: Option<Asker>) -> Record {
        self.record(Event::Begin, asker)
    }

    /// Returns the record of its end, with its bytes and duration.
    pub(crate) fn end(&self, asker: Option<Asker>, outcome: Outcome) -> Record {
        let (sent, received) = self.carried.as_ref().map(|carried| carried()).unzip();
        let mut record = self.record(Event::End, asker);
        record.outcome = Some(Outcome {
            sent_bytes: outcome.sent_bytes.or(sent),
            received_bytes: outcome.received_bytes.or(received),
            resumed: (self.resumed > 0).then_some(self.resumed),
            seconds: self
                .begun
                .as_ref()
                .map(|(_, at)| (at.elapsed().as_secs_f64() * 1e3).round() / 1e3),
            ..outcome
        });
        record
    }

    fn record(&self, event: Event, asker: Option<Asker>) -> Record {
        Record {
            id: self.begun.as_ref().map(|(id, _)| id.clone()),
            asker,
            subject: Some(self.subject.clone()),
            ..Record::new(event)
        }
    }
}

/// The ids of work, and the unfinished work of this program's own engine.
#[derive(Default)]
pub(crate) struct OpenWork {
    /// The prefix of this process's ids.
    prefix: String,
    last: AtomicU64,
    /// The lock is held for a look-up.
    unended: Mutex<HashMap<String, Weak<Unended>>>,
}

impl OpenWork {
    /// Returns an empty table, with ids unique to this process.
    pub(crate) fn new() -> Self {
        let mut seed = [0; 8];
        // A duplicate id would only make two records harder to tell apart.
        let _ = aws_lc_rs::rand::fill(&mut seed);
        let prefix = seed.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        Self {
            prefix,
            ..Self::default()
        }
    }

    /// Returns the next id.
    pub(crate) fn number(&self) -> String {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        format!("{}-{number}", self.prefix)
    }

    /// Adds work that has started.
    pub(crate) fn insert(&self, id: String, work: &Arc<Unended>) {
        self.all().insert(id, Arc::downgrade(work));
    }

    /// Removes work that has ended.
    pub(crate) fn remove(&self, id: &str) {
        self.all().remove(id);
    }

    /// Takes all unfinished work out of the table.
    pub(crate) fn take(&self) -> Vec<Work> {
        let open = std::mem::take(&mut *self.all());
        let unended = open.into_values().filter_map(|work| work.upgrade());
        unended.filter_map(|work| lock_work(&work).take()).collect()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Weak<Unended>>> {
        self.unended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
