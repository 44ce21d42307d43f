//! The engine's log on its way to `logging`. Engine threads never wait for the GIL: events go into a bounded queue, which
//! one thread reads once logging is switched on.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Events that wait to be read; more are dropped.
const WAITING: usize = 4096;

/// The least severe level of `logging` that is wanted: 5 for trace, 10 debug, 20 info, 30 warning, 40 error.
static LEVEL: AtomicU8 = AtomicU8::new(u8::MAX);

/// The process whose thread reads; a child that fork made has none.
static READER: AtomicU32 = AtomicU32::new(0);

static QUEUE: OnceLock<Queue> = OnceLock::new();

/// Level, target and text.
type Line = (u8, &'static str, String);

struct Queue {
    lines: SyncSender<Line>,
    /// Guards the reading end, which one thread waits on.
    reader: Mutex<Receiver<Line>>,
}

/// Takes the engine's events, where no other subscriber of this process does.
pub(crate) fn install() {
    let (lines, reader) = sync_channel(WAITING);
    let queue = Queue {
        lines,
        reader: Mutex::new(reader),
    };
    if QUEUE.set(queue).is_ok() {
        let _ = tracing::subscriber::set_global_default(ToPython);
    }
}

/// Hands events of `level` and above (255 for none) to `tell(level, target, text)`, in a thread of the engine's.
#[pyfunction]
pub(crate) fn log_to(level: u8, tell: Py<PyAny>) -> PyResult<()> {
    LEVEL.store(level, Ordering::Relaxed);
    tracing::callsite::rebuild_interest_cache();
    let (Some(queue), false) = (
        QUEUE.get(),
        READER.swap(std::process::id(), Ordering::AcqRel) == std::process::id(),
    ) else {
        return Ok(());
    };
    // Not Python's threading, which gevent replaces by something that must not block.
    std::thread::Builder::new()
        .name("trunkline-log".into())
        .spawn(move || {
            let reader = queue.reader.lock().unwrap_or_else(PoisonError::into_inner);
            while let Ok(line) = reader.recv() {
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
        })?;
    Ok(())
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
        if let Some(queue) = QUEUE.get() {
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
