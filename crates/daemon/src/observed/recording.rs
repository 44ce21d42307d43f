//! Recordings of terminal sessions, as asciicast v3 (<https://docs.asciinema.org/manual/asciicast/v3/>), if config.toml
//! asks for them: the server's output and the terminal's size; never what was typed.
//!
//! One thread writes, and no session waits for it. Output beyond [`QUEUE`] is left out, and the recording says how
//! much. If writing fails (a full disk), the recording ends with its last whole line, and the session continues.

mod cast;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Instant, SystemTime};

use tokio::sync::oneshot;
use trunkline::config::HostConfig;
use trunkline::{Engine, Error, ExitStatus, Printable, TerminalSize};

use crate::place::{Place, make_private};
use crate::protocol::Program;
use cast::{Cast, Event, Header, Kind};

/// Bytes of all recordings that may wait for the thread.
const QUEUE: u64 = 8 * 1024 * 1024;
/// The size of an event in addition to its text.
const EVENT: u64 = 64;

/// The recorder; inactive if no sessions are recorded.
#[derive(Debug)]
pub(crate) struct Recordings {
    engine: Engine,
    writer: Option<Arc<Writer>>,
}

#[derive(Debug)]
struct Writer {
    directory: PathBuf,
    messages: mpsc::Sender<Message>,
    /// Bytes that wait for the thread.
    queued: Arc<AtomicU64>,
    /// Bytes of output that were left out so far.
    left_out: AtomicU64,
    next: AtomicU64,
}

enum Message {
    Begin(u64, Box<Cast>),
    Event(u64, Event),
    End(u64),
    /// Sent back once everything before is written.
    Written(oneshot::Sender<()>),
}

impl Recordings {
    /// Starts the thread, if the engine's settings name hosts.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(place: &Place, engine: &Engine) -> Result<Arc<Self>, Error> {
        let mut writer = None;
        if !engine.settings().record_hosts.is_empty() {
            let directory = place.recordings();
            if let Err(error) = place.make_state().and_then(|()| make_private(&directory)) {
                tracing::error!(%error, "no session is recorded");
            }
            let (messages, received) = mpsc::channel();
            let queued = Arc::<AtomicU64>::default();
            let written = queued.clone();
            std::thread::Builder::new()
                .name("recordings".into())
                .spawn(move || write(&received, &written))
                .map_err(|error| Error::local("starting the thread of the recordings", error))?;
            writer = Some(Arc::new(Writer {
                directory,
                messages,
                queued,
                left_out: AtomicU64::new(0),
                next: AtomicU64::new(1),
            }));
        }
        Ok(Arc::new(Self {
            engine: engine.clone(),
            writer,
        }))
    }

    /// Starts the recording of a session, if its host is recorded. The file is created at the server's first
    /// output.
    pub(crate) fn begin(
        &self,
        host: &HostConfig,
        (term, size): (&str, TerminalSize),
        program: &Program,
    ) -> Option<Recording> {
        let writer = self.writer.as_ref()?;
        if !self.engine.records(host) {
            return None;
        }
        let id = writer.next.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now();
        let command = match program {
            Program::Exec(command) => Some(Printable::line(command).into_string()),
            _ => None,
        };
        let title = Printable::line(format!("{}@{}", host.user, host.original_host)).into_string();
        let header = Header::new(now, (term, size), title, command);
        let name = cast::file_name(now, &host.original_host, id);
        let cast = Cast::new(writer.directory.join(name), header);
        writer.messages.send(Message::Begin(id, Box::new(cast))).ok()?;
        Some(Recording {
            writer: writer.clone(),
            id,
            begun: Instant::now(),
            left_out: AtomicU64::new(0),
        })
    }

    /// Returns the bytes that wait for the thread.
    pub(crate) fn waiting(&self) -> u64 {
        let writer = self.writer.as_ref();
        writer.map_or(0, |writer| writer.queued.load(Ordering::Relaxed))
    }

    /// Returns the bytes of output that were left out so far.
    pub(crate) fn left_out(&self) -> u64 {
        let writer = self.writer.as_ref();
        writer.map_or(0, |writer| writer.left_out.load(Ordering::Relaxed))
    }

    /// Waits until everything so far is written.
    pub(crate) async fn stop(&self) {
        let Some(writer) = &self.writer else { return };
        let (written, done) = oneshot::channel();
        if writer.messages.send(Message::Written(written)).is_ok() {
            let _ = done.await;
        }
    }
}

/// The recording of a session, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Recording {
    writer: Arc<Writer>,
    id: u64,
    begun: Instant,
    /// Bytes left out since the last recorded event.
    left_out: AtomicU64,
}

impl Recording {
    /// Records the server's output.
    pub(crate) fn output(&self, bytes: &[u8]) {
        if !self.add(Kind::Output(bytes.into()), bytes.len() as u64) {
            self.left_out.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            self.writer
                .left_out
                .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
    }

    /// Records a new size of the terminal.
    pub(crate) fn resize(&self, columns: u32, rows: u32) {
        self.add(Kind::Resize(columns, rows), 0);
    }

    /// Records the session's end.
    pub(crate) fn record_end(&self, ended: &Result<ExitStatus, Error>) {
        let kind = match ended {
            Ok(ExitStatus::Exited(status)) => Kind::Exit(*status),
            Ok(ExitStatus::Signaled { signal, .. }) => Kind::Marker(format!("ended by signal {signal}")),
            Ok(ExitStatus::Unknown) => return,
            Err(error) => Kind::Marker(error.to_string()),
        };
        self.add(kind, 0);
    }

    /// Queues an event. Returns false if there was no room.
    fn add(&self, kind: Kind, bytes: u64) -> bool {
        let cost = bytes + EVENT;
        let queued = &self.writer.queued;
        if queued.fetch_add(cost, Ordering::Relaxed) + cost > QUEUE {
            queued.fetch_sub(cost, Ordering::Relaxed);
            return false;
        }
        let event = Event {
            at: self.begun.elapsed(),
            left_out: self.left_out.swap(0, Ordering::Relaxed),
            kind,
            cost,
        };
        self.writer.messages.send(Message::Event(self.id, event)).is_ok()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.writer.messages.send(Message::End(self.id));
    }
}

/// Runs the thread that writes.
fn write(messages: &mpsc::Receiver<Message>, queued: &AtomicU64) {
    let mut casts = std::collections::HashMap::<u64, Box<Cast>>::new();
    while let Ok(mut message) = messages.recv() {
        // Messages that have arrived meanwhile are written together.
        let mut touched = Vec::new();
        loop {
            match message {
                Message::Begin(id, cast) => drop(casts.insert(id, cast)),
                Message::Event(id, event) => {
                    queued.fetch_sub(event.cost, Ordering::Relaxed);
                    if let Some(cast) = casts.get_mut(&id) {
                        cast.add(event);
                        touched.push(id);
                    }
                }
                Message::End(id) => {
                    if let Some(mut cast) = casts.remove(&id) {
                        cast.flush();
                    }
                }
                Message::Written(done) => {
                    casts.values_mut().for_each(|cast| cast.flush());
                    let _ = done.send(());
                }
            }
            match messages.try_recv() {
                Ok(next) => message = next,
                Err(_) => break,
            }
        }
        for id in touched {
            if let Some(cast) = casts.get_mut(&id) {
                cast.flush();
            }
        }
    }
}
