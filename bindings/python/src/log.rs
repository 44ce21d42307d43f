//! The engine's log on its way to `logging`. Engine threads never wait for the GIL: events go into a bounded queue, which
//! one thread reads once logging is switched on.

use std::fmt::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Events that wait to be read; more are dropped.
const WAITING: usize = 4096;

/// The least severe level of `logging` that is wanted: 5 for trace, 10 debug, 20 info, 30 warning, 40 error.
static LEVEL: AtomicU8 = AtomicU8::new(u8::MAX);

static FIRST: OnceLock<Queue> = OnceLock::new();

/// Level, target and text.
type Line = (u8, &'static str, String);

/// Events on their way in one process. A child that `fork` made has not the thread that reads its parent's, and may have
/// copied its locks as somebody held them: it gets a queue of its own, behind that.
struct Queue {
    pid: u32,
    lines: SyncSender<Line>,
    tell: Py<PyAny>,
    of_child: OnceLock<Box<Self>>,
}

impl Queue {
    /// Those of all processes from the first to this one, as far as they have one.
    fn all() -> impl Iterator<Item = &'static Self> {
        std::iter::successors(FIRST.get(), |queue| queue.of_child.get().map(Box::as_ref))
    }

    /// This process's.
    fn here() -> Option<&'static Self> {
        let pid = std::process::id();
        Self::all().find(|queue| queue.pid == pid)
    }

    /// Makes this process's, and starts the thread that reads it. To be called with the GIL held, without which nobody forks.
    fn start(tell: Py<PyAny>, py: Python<'_>) -> PyResult<()> {
        let (lines, reader) = sync_channel(WAITING);
        let queue = Self {
            pid: std::process::id(),
            lines,
            tell: tell.clone_ref(py),
            of_child: OnceLock::new(),
        };
        // Not Python's threading, which gevent replaces by something that must not block.
        std::thread::Builder::new()
            .name("trunkline-log".into())
            .spawn(move || read(&reader, tell))?;
        match Self::all().last() {
            Some(last) => drop(last.of_child.set(Box::new(queue))),
            None => drop(FIRST.set(queue)),
        }
        Ok(())
    }
}

fn read(lines: &Receiver<Line>, tell: Py<PyAny>) {
    while let Ok(line) = lines.recv() {
        let told = Python::try_attach(|py| {
            if let Err(error) = tell.call1(py, line) {
                error.write_unraisable(py, Some(tell.bind(py)));
            }
        });
        // The interpreter is ending.
        if told.is_none() {
            std::mem::forget(tell);
            return;
        }
    }
}

/// Takes the engine's events, where no other subscriber of this process does.
pub(crate) fn install() {
    let _ = tracing::subscriber::set_global_default(ToPython);
}

/// Hands events of `level` and above (255 for none) to `tell(level, target, text)`, in a thread of the engine's.
#[pyfunction]
pub(crate) fn log_to(level: u8, tell: Py<PyAny>, py: Python<'_>) -> PyResult<()> {
    LEVEL.store(level, Ordering::Relaxed);
    tracing::callsite::rebuild_interest_cache();
    match Queue::here() {
        Some(_) => Ok(()),
        None => Queue::start(tell, py),
    }
}

/// In a child that `fork` made, hands events to whom its parent's were handed, if to anybody.
pub(crate) fn go_on(py: Python<'_>) -> PyResult<()> {
    match FIRST.get() {
        Some(first) if Queue::here().is_none() => Queue::start(first.tell.clone_ref(py), py),
        _ => Ok(()),
    }
}

struct ToPython;

fn number(level: Level) -> u8 {
    match level {
        Level::TRACE => 5,
        Level::DEBUG => 10,
        Level::INFO => 20,
        Level::WARN => 30,
        Level::ERROR => 40,
    }
}

impl Subscriber for ToPython {
    /// The levels of this project's crates; what other crates say is for their authors.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        number(*metadata.level()) >= LEVEL.load(Ordering::Relaxed)
            && metadata.target().starts_with("trunkline")
    }

    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        if self.enabled(metadata) {
            tracing::subscriber::Interest::always()
        } else {
            tracing::subscriber::Interest::never()
        }
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let line = (
            number(*event.metadata().level()),
            event.metadata().target(),
            text.message + &text.fields,
        );
        if let Some(queue) = Queue::here() {
            // A full queue is a reader that has no time: the newest lines are lost.
            let (Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) =
                queue.lines.try_send(line);
        }
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// An event's message, and its fields as ` name=value`.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a String does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
