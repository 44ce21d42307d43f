//! Work that is recorded: what it is, and what of it has been begun and has not ended yet.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use trunkline::ExitStatus;

use crate::asker::Asker;
use crate::record::{Event, Outcome, Record};
use crate::subject::Subject;

/// Something that was asked for.
pub(crate) struct Work {
    pub(crate) subject: Subject,
    /// It is given up by whoever has it, and has no other end.
    pub(crate) lasts: bool,
    /// Its number, and when it was begun.
    pub(crate) begun: Option<(String, Instant)>,
    pub(crate) carried: Option<Carried>,
    /// Times that it was carried over to a new connection.
    pub(crate) resumed: u64,
    /// The outcome of its command, if that is known before its session's end.
    pub(crate) exit: Option<ExitStatus>,
}

/// Bytes to the server and from it, so far.
pub(crate) type Carried = Box<dyn Fn() -> (u64, u64) + Send + Sync>;

/// Work until its end is recorded; then `None`.
pub(crate) type Unended = Mutex<Option<Work>>;

pub(crate) fn lock_work(work: &Unended) -> MutexGuard<'_, Option<Work>> {
    work.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Work {
    /// Work of which nothing has been handed to a server yet.
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

    /// Its end, with what it has carried and how long it took.
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

/// The numbers of work, and what this program has begun with an engine of its own and has not ended yet.
#[derive(Default)]
pub(crate) struct OpenWork {
    /// Of this process, in front of its records' numbers.
    prefix: String,
    last: AtomicU64,
    /// Guarded for as long as a look-up takes.
    unended: Mutex<HashMap<String, Weak<Unended>>>,
}

impl OpenWork {
    /// Nothing yet, under numbers that no other process has.
    pub(crate) fn new() -> Self {
        let mut seed = [0; 8];
        // A number that is used twice would only make two records harder to tell apart.
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

    /// The next number.
    pub(crate) fn number(&self) -> String {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        format!("{}-{number}", self.prefix)
    }

    /// Notes that this has been begun.
    pub(crate) fn insert(&self, id: String, work: &Arc<Unended>) {
        self.all().insert(id, Arc::downgrade(work));
    }

    /// Forgets what has ended.
    pub(crate) fn remove(&self, id: &str) {
        self.all().remove(id);
    }

    /// All that has no end yet, which is forgotten.
    pub(crate) fn take(&self) -> Vec<Work> {
        let open = std::mem::take(&mut *self.all());
        let unended = open.into_values().filter_map(|work| work.upgrade());
        unended.filter_map(|work| lock_work(&work).take()).collect()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Weak<Unended>>> {
        self.unended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
