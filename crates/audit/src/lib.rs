//! The audit trail: a line for the beginning and one for the end of everything that trunkline has done on hosts, in
//! `audit/audit.jsonl` of the state folder, where config.toml asks for it. The daemon writes what it does for its clients, and
//! a program what it does with an engine of its own: one trail, which any number of processes write.
//!
//! Each line holds the hash of the one before (`chain`), also across files (`journal`); [`verify`] checks that. One
//! thread of each process writes. In the mode `strict` nothing is handed to a server before its beginning is on the disk;
//! otherwise nobody waits for the disk. Never recorded: environments, input and output.

pub mod asker;
mod chain;
mod entry;
mod forwarding;
mod hash;
mod journal;
mod record;
mod subject;
mod verify;
mod work;
mod writer;

use std::io;
use std::sync::Arc;

use trunkline::{AuditMode as Mode, Error, Settings};
use trunkline_control::place::{Place, make_private};

pub use entry::{Entry, Recorder};
pub use forwarding::opened;
use journal::Journal;
use record::{Daemon, Event, Record};
pub use subject::Subject;
pub use verify::verify;
use work::OpenWork;
use writer::Writer;

/// What writes the trail; nothing, where it is off.
pub struct Audit {
    writer: Option<Writer>,
    open: OpenWork,
}

impl Audit {
    /// None.
    pub fn off() -> Arc<Self> {
        Arc::new(Self {
            writer: None,
            open: OpenWork::default(),
        })
    }

    /// The trail that the settings ask for. Nothing is written to it yet.
    ///
    /// # Errors
    /// In the mode `strict`, the trail has no place.
    pub fn open(place: &Place, settings: &Settings) -> Result<Arc<Self>, Error> {
        let mode = settings.audit;
        if mode == Mode::Off {
            return Ok(Self::off());
        }
        let folder = place.audit();
        let made = place.make_state().and_then(|()| make_private(&folder));
        if let Err(error) = made {
            let error = Error::local("making the folder of the audit trail", io::Error::other(error));
            if mode == Mode::Strict {
                return Err(error);
            }
            tracing::error!(%error, "nothing is recorded in the audit trail");
        }
        let journal = Journal::new(folder, settings.audit_file_size, settings.audit_files);
        let writer = Writer::start(journal, mode)
            .map_err(|error| Error::local("starting the thread of the audit trail", error))?;
        Ok(Arc::new(Self {
            writer: Some(writer),
            open: OpenWork::new(),
        }))
    }

    /// The same, of a daemon, with a line that says that it begins.
    ///
    /// # Errors
    /// In the mode `strict`, the trail cannot be written.
    pub async fn start(place: &Place, settings: &Settings) -> Result<Arc<Self>, Error> {
        let audit = Self::open(place, settings)?;
        let mut start = Record::new(Event::Start);
        start.daemon = Some(Daemon {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION"),
            mode: if settings.audit == Mode::Strict {
                "strict"
            } else {
                "on"
            },
        });
        audit.record(start).await?;
        Ok(audit)
    }

    /// Waits until all is written that can be, the end of this daemon last.
    pub async fn stop(&self) {
        self.written(Some(Record::new(Event::Stop))).await;
    }

    /// Records that are not written yet.
    pub fn waiting(&self) -> u64 {
        self.writer.as_ref().map_or(0, Writer::waiting)
    }

    /// Records that were given up so far.
    pub fn lost(&self) -> u64 {
        self.writer.as_ref().map_or(0, Writer::lost)
    }

    async fn written(&self, record: Option<Record>) {
        if let Some(writer) = &self.writer {
            writer.written(record).await;
        }
    }

    /// Records something that must not happen unrecorded in the mode `strict`.
    async fn record(&self, record: Record) -> Result<(), Error> {
        match &self.writer {
            Some(writer) => writer.record(record).await,
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
