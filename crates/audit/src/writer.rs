//! The thread that writes the trail, and its queue.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use tokio::sync::{mpsc, oneshot};
use trunkline::{AuditMode as Mode, Error};

use crate::journal::Journal;
use crate::record::Record;

/// Records that may wait for the thread. A session waits for room if necessary.
const QUEUE: usize = 1024;
/// The most records in one write.
const BATCH: usize = 256;
/// The result of writing a record, shared by all clones.
pub(crate) type Written = Shared<BoxFuture<'static, Result<(), Arc<io::Error>>>>;

/// The most ends that are kept while writing fails. Further ones are counted.
const UNWRITTEN: usize = 1024;
/// Sends records to the thread, which ends with it.
pub(crate) struct Writer {
    mode: Mode,
    queue: mpsc::Sender<Message>,
    /// The current file, for messages.
    path: std::path::PathBuf,
    /// Records that did not fit into the queue. The next line reports their number.
    lost: Arc<AtomicU64>,
    counts: Arc<Counts>,
}

/// Metrics of the trail.
#[derive(Debug, Default)]
struct Counts {
    /// Records that are kept because they could not be written.
    unwritten: AtomicU64,
    /// Records that were lost so far.
    lost: AtomicU64,
}

/// A request to the thread.
struct Message {
    record: Option<Record>,
    /// Told when it is on disk, or why it is not. In the latter case it is not written later, either.
    written: Option<oneshot::Sender<Result<(), Arc<io::Error>>>>,
}

impl Writer {
    /// Starts the thread, which writes to `journal`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(journal: Journal, mode: Mode) -> io::Result<Self> {
        let path = journal.current();
        let (queue, messages) = mpsc::channel(QUEUE);
        let lost = Arc::<AtomicU64>::default();
        let counts = Arc::<Counts>::default();
        let writing = Writing {
            journal,
            sync: mode == Mode::Strict,
            unwritten: VecDeque::new(),
            lost: lost.clone(),
            counts: counts.clone(),
            failing: AtomicBool::new(false),
        };
        std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || writing.run(messages))?;
        Ok(Self {
            mode,
            queue,
            path,
            lost,
            counts,
        })
    }

    /// Returns true if work without a record is forbidden.
    pub(crate) fn is_strict(&self) -> bool {
        self.mode == Mode::Strict
    }

    /// Records something. In mode `strict` the result must be awaited before it may happen.
    pub(crate) fn record(&self, record: Record) -> Written {
        if !self.is_strict() {
            self.add(record);
            return std::future::ready(Ok(())).boxed().shared();
        }
        let (written, done) = oneshot::channel();
        let message = Message {
            record: Some(record),
            written: Some(written),
        };
        let gone = || Arc::new(io::Error::other("the thread of the audit trail has ended"));
        let queue = self.queue.clone();
        let written = async move {
            match queue.send(message).await {
                Ok(()) => done.await.unwrap_or_else(|_| Err(gone())),
                Err(_) => Err(gone()),
            }
        };
        written.boxed().shared()
    }

    /// Returns the reason why work was refused.
    pub(crate) fn refusal(&self, source: Arc<io::Error>) -> Error {
        Error::Local {
            doing: format!(
                "nothing was run, because it cannot be recorded in {}",
                self.path.display()
            )
            .into(),
            source,
        }
    }

    /// Queues a record without waiting.
    pub(crate) fn add(&self, record: Record) {
        let message = Message {
            record: Some(record),
            written: None,
        };
        if self.queue.try_send(message).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until everything is written, if possible, with `record` last.
    pub(crate) async fn write_all(&self, record: Option<Record>) {
        let (written, done) = oneshot::channel();
        let message = Message {
            record,
            written: Some(written),
        };
        if self.queue.send(message).await.is_ok() {
            let _ = done.await;
        }
    }

    /// Returns the number of records that are not written yet.
    pub(crate) fn waiting(&self) -> u64 {
        let queued = self.queue.max_capacity() - self.queue.capacity();
        queued as u64 + self.counts.unwritten.load(Ordering::Relaxed)
    }

    /// Returns the number of records that were lost so far.
    pub(crate) fn lost_records(&self) -> u64 {
        self.counts.lost.load(Ordering::Relaxed)
    }
}

/// The thread that writes.
struct Writing {
    journal: Journal,
    sync: bool,
    /// Records that could not be written when they arrived.
    unwritten: VecDeque<Record>,
    /// Lost records. The next line that can be written reports their number.
    lost: Arc<AtomicU64>,
    counts: Arc<Counts>,
    failing: AtomicBool,
}

impl Writing {
    fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        let mut batch = Vec::with_capacity(BATCH);
        while messages.blocking_recv_many(&mut batch, BATCH) > 0 {
            self.write(&mut batch);
            let unwritten = self.unwritten.len() as u64;
            self.counts.unwritten.store(unwritten, Ordering::Relaxed);
        }
    }

    fn write(&mut self, batch: &mut Vec<Message>) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let mut records: Vec<Record> = self.unwritten.iter().cloned().collect();
        if lost > 0 {
            records.push(Record::note(format!(
                "{lost} records could not be written and were given up"
            )));
        }
        records.extend(batch.iter().filter_map(|message| message.record.clone()));
        match self.journal.append(&records, self.sync) {
            Ok(_) => {
                self.unwritten.clear();
                if self.failing.swap(false, Ordering::Relaxed) {
                    tracing::info!("the audit trail can be written again");
                }
                for message in batch.drain(..) {
                    message.answer(Ok(()));
                }
            }
            Err(error) => {
                if !self.failing.swap(true, Ordering::Relaxed) {
                    tracing::error!(file = %self.journal.current().display(), %error, "the audit trail cannot be written");
                }
                self.lost.fetch_add(lost, Ordering::Relaxed);
                let error = Arc::new(error);
                for mut message in batch.drain(..) {
                    // A waiting caller is told that it was not written.
                    if message.written.is_none()
                        && let Some(record) = message.record.take()
                    {
                        self.keep(record);
                    }
                    message.answer(Err(error.clone()));
                }
            }
        }
    }

    fn keep(&mut self, record: Record) {
        if self.unwritten.len() < UNWRITTEN {
            self.unwritten.push_back(record);
        } else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Message {
    fn answer(self, outcome: Result<(), Arc<io::Error>>) {
        if let Some(written) = self.written {
            let _ = written.send(outcome);
        }
    }
}
