//! The audit trail: a line for the beginning and one for the end of everything that clients have done on hosts, in
//! `audit/audit.jsonl` of the state folder, where config.toml asks for it.
//!
//! Each line holds the hash of the one before ([`chain`]), also across files ([`journal`]); [`verify`] checks that. One
//! thread writes. In the mode `strict` nothing is handed to a server before its beginning is on the disk; otherwise nobody
//! waits for the disk. Never recorded: environments, input and output.

mod chain;
mod hash;
mod journal;
mod record;
mod verify;

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use trunkline::config::{Forward, HostConfig};
use trunkline::{
    AuditMode as Mode, Error, Execution, ExitStatus, ForwardClient, Printable, SessionControl, Settings,
};

use crate::observed::asker::{self, login_of, parent_of, program_of};
use crate::place::{Place, make_private};
use crate::protocol::{CopyEnd, CopyPlace, CopyRequest, Exit, ForwardKind, OnBehalf, Program, Reply};
use crate::reports::unusable_folder;
use journal::Journal;
pub(crate) use record::Subject;
use record::{Asker, Daemon, Event, Exact, Outcome, Record};
pub(crate) use verify::verify;

/// Records that wait for the thread that writes. A session waits for room, if it has to.
const QUEUE: usize = 1024;
/// Records of one write.
const BATCH: usize = 256;
/// Ends that are kept while nothing can be written. Those beyond are counted.
const UNWRITTEN: usize = 1024;
/// Sources of a copy that are named. The number of all is in the last of them.
const MAX_SOURCES: usize = 32;

/// What writes the trail; nothing, where it is off.
pub(crate) struct Audit {
    writer: Option<Writer>,
    /// Of this process, in front of its records' numbers.
    prefix: String,
    next: AtomicU64,
}

struct Writer {
    mode: Mode,
    queue: mpsc::Sender<Message>,
    /// The current file, for messages.
    path: std::path::PathBuf,
    /// Records that found no room in the queue, of which the next line will tell.
    lost: Arc<AtomicU64>,
    counts: Arc<Counts>,
}

/// What is told of the trail as numbers.
#[derive(Debug, Default)]
struct Counts {
    /// Records that wait because they could not be written when they came.
    unwritten: AtomicU64,
    /// Records that were given up so far.
    lost: AtomicU64,
}

/// What the thread is asked to write.
struct Message {
    record: Option<Record>,
    /// Told when it is on the disk, or why it is not: it is not written later either.
    written: Option<oneshot::Sender<Result<(), Arc<io::Error>>>>,
}

impl Audit {
    /// None.
    pub(crate) fn off() -> Arc<Self> {
        Arc::new(Self {
            writer: None,
            prefix: String::new(),
            next: AtomicU64::new(0),
        })
    }

    /// The trail that the settings ask for, with a line that says that it begins.
    ///
    /// # Errors
    /// In the mode `strict`, the trail cannot be written.
    pub(crate) async fn start(place: &Place, settings: &Settings) -> Result<Arc<Self>, Error> {
        let mode = settings.audit;
        if mode == Mode::Off {
            return Ok(Self::off());
        }
        let folder = place.audit();
        let made = place.make_state().and_then(|()| make_private(&folder));
        if let Err(error) = made {
            let error = unusable_folder(error);
            if mode == Mode::Strict {
                return Err(error);
            }
            tracing::error!(%error, "nothing is recorded in the audit trail");
        }
        let mut seed = [0; 8];
        // A number that is used twice would only make two records harder to tell apart.
        let _ = aws_lc_rs::rand::fill(&mut seed);
        let prefix = seed.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        let journal = Journal::new(folder, settings.audit_file_size, settings.audit_files);
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
            .spawn(move || writing.run(messages))
            .map_err(|error| Error::local("starting the thread of the audit trail", error))?;
        let audit = Arc::new(Self {
            writer: Some(Writer {
                mode,
                queue,
                path,
                lost,
                counts,
            }),
            prefix,
            next: AtomicU64::new(1),
        });
        let mut start = Record::new(Event::Start);
        start.daemon = Some(Daemon {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION"),
            mode: if mode == Mode::Strict { "strict" } else { "on" },
        });
        audit.record(start).await?;
        Ok(audit)
    }

    /// Waits until all is written that can be, the end of this daemon last.
    pub(crate) async fn stop(&self) {
        let Some(writer) = &self.writer else { return };
        let (written, done) = oneshot::channel();
        let message = Message {
            record: Some(Record::new(Event::Stop)),
            written: Some(written),
        };
        if writer.queue.send(message).await.is_ok() {
            let _ = done.await;
        }
    }

    /// Records that are not written yet.
    pub(crate) fn waiting(&self) -> u64 {
        self.writer.as_ref().map_or(0, |writer| {
            let queued = writer.queue.max_capacity() - writer.queue.capacity();
            queued as u64 + writer.counts.unwritten.load(Ordering::Relaxed)
        })
    }

    /// Records that were given up so far.
    pub(crate) fn lost(&self) -> u64 {
        let counts = self.writer.as_ref().map(|writer| &writer.counts);
        counts.map_or(0, |counts| counts.lost.load(Ordering::Relaxed))
    }

    /// Records something that must not happen unrecorded in the mode `strict`.
    async fn record(&self, record: Record) -> Result<(), Error> {
        let Some(writer) = &self.writer else {
            return Ok(());
        };
        if writer.mode != Mode::Strict {
            writer.add(record);
            return Ok(());
        }
        let (written, done) = oneshot::channel();
        let message = Message {
            record: Some(record),
            written: Some(written),
        };
        let gone = || Arc::new(io::Error::other("the thread of the audit trail has ended"));
        let outcome = match writer.queue.send(message).await {
            Ok(()) => done.await.unwrap_or_else(|_| Err(gone())),
            Err(_) => Err(gone()),
        };
        outcome.map_err(|source| Error::Local {
            doing: format!(
                "nothing was run, because it cannot be recorded in {}",
                writer.path.display()
            ),
            source,
        })
    }
}

impl Writer {
    /// Has a record written some time, without waiting.
    fn add(&self, record: Record) {
        let message = Message {
            record: Some(record),
            written: None,
        };
        if self.queue.try_send(message).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The thread that writes.
struct Writing {
    journal: Journal,
    sync: bool,
    /// What could not be written when it came.
    unwritten: VecDeque<Record>,
    /// Records that were given up, of which the next line that can be written tells.
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
                    // Whoever waits is told that it did not happen.
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

/// One client, of which everything that it asks for is recorded.
#[derive(Clone)]
pub(crate) struct Recorder {
    audit: Arc<Audit>,
    asker: Option<Asker>,
}

impl Recorder {
    /// Looks at the process that is at the other end, where that is recorded.
    pub(crate) fn of(audit: &Arc<Audit>, stream: &UnixStream) -> Self {
        Self {
            audit: audit.clone(),
            asker: audit.writer.is_some().then(|| Asker::of(stream)).flatten(),
        }
    }

    /// Whether anything is recorded.
    pub(crate) fn is_on(&self) -> bool {
        self.audit.writer.is_some()
    }

    /// Something that it asks for, of which nothing has been handed to a server yet.
    pub(crate) fn entry(&self, subject: Subject) -> Entry {
        let work = Work {
            subject,
            begun: None,
            carried: None,
        };
        Entry {
            recorder: self.clone(),
            refused: AtomicBool::new(false),
            work: Mutex::new(self.audit.writer.is_some().then_some(work)),
        }
    }
}

/// Something that a client asked for, from there to its end. Dropping it records an end that nobody knows more of.
pub(crate) struct Entry {
    recorder: Recorder,
    refused: AtomicBool,
    /// Guards it while it moves from one state to the next. `None` once the end is recorded, or where nothing is.
    work: Mutex<Option<Work>>,
}

/// Bytes to the server and from it, so far.
type Carried = Box<dyn Fn() -> (u64, u64) + Send + Sync>;

struct Work {
    subject: Subject,
    /// Its number, and when it was begun.
    begun: Option<(String, Instant)>,
    carried: Option<Carried>,
}

impl Entry {
    fn work(&self) -> MutexGuard<'_, Option<Work>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What else its client asks for, is recorded by.
    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Something else that the same client asks for.
    pub(crate) fn beside(&self, subject: Subject) -> Self {
        self.recorder.entry(subject)
    }

    /// Records that it is about to be handed to a server; `refine` knows more of it by now. A second beginning is none.
    ///
    /// # Errors
    /// It cannot be recorded, and must not be done.
    pub(crate) async fn begin(&self, refine: impl FnOnce(Subject) -> Subject) -> Result<(), Error> {
        let record = {
            let mut work = self.work();
            let Some(work) = work.as_mut().filter(|work| work.begun.is_none()) else {
                return Ok(());
            };
            work.subject = refine(std::mem::take(&mut work.subject));
            let number = self.recorder.audit.next.fetch_add(1, Ordering::Relaxed);
            let id = format!("{}-{number}", self.recorder.audit.prefix);
            work.begun = Some((id, Instant::now()));
            work.record(Event::Begin, self.recorder.asker.clone())
        };
        let recorded = self.recorder.audit.record(record).await;
        if recorded.is_err() {
            // What did not happen is not in the trail. That its end could be written would be a contradiction.
            *self.work() = None;
            self.refused.store(true, Ordering::Relaxed);
        }
        recorded
    }

    /// Whether it could not be recorded, and must not be done by other ways either.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// What counts its bytes from now on.
    pub(crate) fn carries(&self, carried: impl Fn() -> (u64, u64) + Send + Sync + 'static) {
        if let Some(work) = self.work().as_mut() {
            work.carried = Some(Box::new(carried));
        }
    }

    /// Counts what a session carries.
    pub(crate) fn counted(&self, session: &SessionControl) -> SessionControl {
        let counting = session.clone();
        self.carries(move || counting.carried());
        session.clone()
    }

    /// Records its end.
    fn end(&self, outcome: Outcome) {
        let (Some(work), Some(writer)) = (self.work().take(), &self.recorder.audit.writer) else {
            return;
        };
        let (sent, received) = work.carried.as_ref().map(|carried| carried()).unzip();
        let mut record = work.record(Event::End, self.recorder.asker.clone());
        record.outcome = Some(Outcome {
            sent_bytes: outcome.sent_bytes.or(sent),
            received_bytes: outcome.received_bytes.or(received),
            seconds: work
                .begun
                .as_ref()
                .map(|(_, at)| (at.elapsed().as_secs_f64() * 1e3).round() / 1e3),
            ..outcome
        });
        writer.add(record);
    }

    /// Records its end, by what a client was told last.
    pub(crate) fn end_by(&self, last: &Reply) {
        self.end(match last {
            Reply::Exit(Exit::Status(status)) => Outcome::exited(*status),
            Reply::Exit(Exit::Signal(signal, _)) => Outcome::signalled(signal),
            Reply::Exit(Exit::Unknown) | Reply::Measured(_) | Reply::RemoteNames(_) => {
                Outcome::new(Execution::Finished)
            }
            Reply::Failed(failure) => Outcome {
                error: Some(failure.message.clone()),
                ..Outcome::new(failure.execution)
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

    /// Records the end of a session.
    pub(crate) fn end_session(&self, ended: &Result<ExitStatus, Error>) {
        self.end(match ended {
            Ok(ExitStatus::Exited(status)) => Outcome::exited(*status),
            Ok(ExitStatus::Signaled { signal, .. }) => Outcome::signalled(signal),
            Ok(ExitStatus::Unknown) => Outcome::new(Execution::Finished),
            Err(error) => Outcome::failed(error),
        });
    }

    /// Records that it failed.
    pub(crate) fn failed(&self, error: &Error) {
        self.end(Outcome::failed(error));
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let state = self
            .work()
            .as_ref()
            .map(|work| (work.begun.is_some(), work.subject.lasts()));
        let execution = match state {
            None => return,
            Some((true, true)) => return self.end(Outcome::new(Execution::Finished)),
            Some((true, false)) => Execution::MayHaveStarted,
            Some((false, _)) => Execution::DidNotStart,
        };
        self.end(Outcome {
            error: Some("its client left".into()),
            ..Outcome::new(execution)
        });
    }
}

impl Work {
    fn record(&self, event: Event, asker: Option<Asker>) -> Record {
        Record {
            id: self.begun.as_ref().map(|(id, _)| id.clone()),
            asker,
            subject: Some(self.subject.clone()),
            ..Record::new(event)
        }
    }
}

impl Outcome {
    fn new(execution: Execution) -> Self {
        Self {
            execution: execution.as_str(),
            status: None,
            signal: None,
            error: None,
            failed_files: None,
            sent_bytes: None,
            received_bytes: None,
            seconds: None,
        }
    }

    fn exited(status: u32) -> Self {
        Self {
            status: Some(status),
            ..Self::new(Execution::Finished)
        }
    }

    fn signalled(signal: &str) -> Self {
        Self {
            signal: Some(Printable::line(signal).into_string()),
            ..Self::new(Execution::Finished)
        }
    }

    fn failed(error: &Error) -> Self {
        Self {
            error: Some(error.to_string()),
            ..Self::new(error.execution())
        }
    }
}

impl Asker {
    /// The process at the other end, as far as it can be looked at.
    fn of(stream: &UnixStream) -> Option<Self> {
        let peer = stream.peer_cred().ok()?;
        let pid = asker::process_of(stream);
        let parent = pid.and_then(parent_of);
        Some(Self {
            uid: peer.uid(),
            pid,
            program: pid.and_then(program_of),
            started_by: parent.and_then(program_of),
            login_uid: pid.and_then(login_of),
        })
    }
}

impl Subject {
    /// Something at a host, of which only what was typed is known yet.
    pub(crate) fn of(kind: &'static str, host: &str) -> Self {
        Self {
            kind,
            host: Some(Printable::line(host).into_string()),
            ..Self::default()
        }
    }

    /// What a client's session is to run.
    pub(crate) fn session(host: &str, program: &Program) -> Self {
        Self::of("session", host).running(program)
    }

    /// The same, of what turned out to be meant.
    pub(crate) fn running(mut self, program: &Program) -> Self {
        let (kind, name, command) = match program {
            Program::Configured => ("session", Some("shell"), None),
            Program::Exec(command) => ("session", Some("command"), Some(Exact::new(command))),
            Program::Subsystem(name) => ("session", Some("subsystem"), Some(Exact::new(name.as_bytes()))),
            Program::Nothing => ("session", Some("none"), None),
            Program::Stdio(host, port) => ("tunnel", None, Some(target(format!("{host}:{port}")))),
            Program::StdioSocket(path) => ("tunnel", None, Some(target(path))),
            Program::Listen(host, port) => {
                let host = host.as_deref().unwrap_or("localhost");
                ("listener", None, Some(target(format!("{host}:{port}"))))
            }
            Program::ListenSocket(path) => ("listener", None, Some(target(path))),
            Program::Incoming(_) => ("tunnel", None, None),
        };
        (self.kind, self.program, self.command) = (kind, name, command);
        self
    }

    /// Whom it is done for.
    pub(crate) fn on_behalf(mut self, of: Option<&OnBehalf>) -> Self {
        self.submitter = of.map(|of| Printable::line(&of.submitter).into_string());
        self.job = of.map(|of| Printable::line(&of.job).into_string());
        self
    }

    /// What the destination means.
    pub(crate) fn at(mut self, host: &HostConfig) -> Self {
        self.host = Some(Printable::line(&host.original_host).into_string());
        self.user = Some(Printable::line(&host.user).into_string());
        self.hostname = Some(Printable::line(&host.hostname).into_string());
        self.port = Some(host.port);
        self
    }

    /// A single connection through a forwarding that listens here, and where it leads to.
    pub(crate) fn outgoing(host: &HostConfig, client: &ForwardClient) -> Self {
        Self::connection("tunnel", host, client)
    }

    /// A single connection through one that the server listens for, and where it leads to here.
    pub(crate) fn incoming(host: &HostConfig, client: &ForwardClient) -> Self {
        Self::connection("incoming", host, client)
    }

    fn connection(kind: &'static str, host: &HostConfig, client: &ForwardClient) -> Self {
        // The server says where its clients come from, and may say anything.
        let from = Printable::line(&client.from).into_string();
        Self {
            from: (!from.is_empty()).then_some(from),
            ..Self::of(kind, &host.original_host).at(host).to(&client.target)
        }
    }

    /// A forwarding, from where it listens to where it leads.
    pub(crate) fn forwarding(host: &HostConfig, kind: ForwardKind, forward: &Forward) -> Self {
        let way = format!("{} {} to {}", kind.option(), forward.listen, forward.target);
        Self::of("forwarding", &host.original_host).at(host).to(way)
    }

    /// Whether it is given up by whoever has it, and has no other end.
    fn lasts(&self) -> bool {
        matches!(self.kind, "forwarding" | "listener" | "tunnel" | "incoming")
    }

    pub(crate) fn on_terminal(mut self, terminal: bool) -> Self {
        self.terminal = Some(terminal);
        self
    }

    /// Where a tunnel or a forwarding leads to.
    pub(crate) fn to(mut self, place: impl AsRef<str>) -> Self {
        self.command = Some(target(place));
        self
    }

    pub(crate) fn through_ssh(mut self) -> Self {
        self.transport = Some("ssh");
        self
    }

    /// A copy.
    pub(crate) fn copy(request: &CopyRequest) -> Self {
        let mut sources: Vec<String> = request.sources.iter().take(MAX_SOURCES).map(copied).collect();
        if request.sources.len() > MAX_SOURCES {
            sources.push(format!("and others, {} in all", request.sources.len()));
        }
        let places = request.sources.iter().chain([&request.target]);
        let mut host = places.filter_map(|place| match place {
            CopyPlace::Host(host, _) => Some(Printable::line(&host.destination.host).into_string()),
            CopyPlace::Local(_) | CopyPlace::Passed(_) => None,
        });
        Self {
            kind: "copy",
            host: host.next_back(),
            sources,
            target: Some(copied(&request.target)),
            ..Self::default()
        }
    }
}

fn target(place: impl AsRef<str>) -> Exact {
    Exact::new(place.as_ref().as_bytes())
}

fn copied(place: &CopyPlace) -> String {
    match place {
        CopyPlace::Local(path) | CopyPlace::Passed(path) => {
            Printable::line(path.as_os_str().as_encoded_bytes()).into_string()
        }
        CopyPlace::Host(host, path) => {
            let mut text = host.destination.host.clone().into_bytes();
            text.push(b':');
            text.extend_from_slice(path);
            Printable::line(text).into_string()
        }
    }
}

#[cfg(test)]
mod tests;
