//! The audit trail: a line for the beginning and one for the end of everything that trunkline has done on hosts, in
//! `audit/audit.jsonl` of the state directory, where config.toml asks for it. The daemon writes what it does for its clients, and
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
mod show;
mod subject;
mod verify;
mod work;
mod writer;

use std::sync::Arc;

use trunkline::{AuditMode as Mode, Error, Settings};
use trunkline_control::place::Place;

pub use entry::{Entry, Recorder};
pub use forwarding::open;
use journal::Journal;
use record::{Daemon, Event, Record};
pub use show::{Filter, show};
pub use subject::Subject;
pub use verify::verify;
use work::OpenWork;
use writer::Writer;

/// The writer of the trail, which does nothing if the trail is off.
pub struct Audit {
    writer: Option<Writer>,
    open: OpenWork,
}

impl Audit {
    /// None.
    pub fn none() -> Arc<Self> {
        Arc::new(Self {
            writer: None,
            open: OpenWork::default(),
        })
    }

    /// The trail that the settings ask for. Nothing is written to it yet: where its place cannot be used, that is told by
    /// whatever has to be recorded.
    ///
    /// # Errors
    /// There can be no further thread.
    pub fn open(place: &Place, settings: &Settings) -> Result<Arc<Self>, Error> {
        let mode = settings.audit;
        if mode == Mode::Off {
            return Ok(Self::none());
        }
        let journal = Journal::new(place.audit(), settings.audit_file_size, settings.audit_files);
        let writer = Writer::start(journal, mode)
            .map_err(|error| Error::local("starting the thread of the audit trail", error))?;
        Ok(Arc::new(Self {
            writer: Some(writer),
            open: OpenWork::new(),
        }))
    }

    /// The same, of a daemon, with a line that says that it begins. A daemon that cannot write the trail serves all the same: in
    /// the mode `strict` it refuses everything, where a stock ssh that found no daemon would run by itself.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn start(place: &Place, settings: &Settings) -> Result<Arc<Self>, Error> {
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
        if let Some(writer) = &audit.writer {
            writer.add(start);
        }
        Ok(audit)
    }

    /// Waits until all is written that can be, the end of this daemon last.
    pub async fn stop(&self) {
        self.write_all(Some(Record::new(Event::Stop))).await;
    }

    /// Records that are not written yet.
    pub fn waiting(&self) -> u64 {
        self.writer.as_ref().map_or(0, Writer::waiting)
    }

    /// Records that were given up so far.
    pub fn lost_records(&self) -> u64 {
        self.writer.as_ref().map_or(0, Writer::lost_records)
    }

    async fn write_all(&self, record: Option<Record>) {
        if let Some(writer) = &self.writer {
            writer.write_all(record).await;
        }
    }
}

#[cfg(test)]
mod tests;
