//! The audit trail: a line for the beginning and one for the end of everything that trunkline does on hosts, in
//! `audit/audit.jsonl` of the state directory, if config.toml asks for it. The daemon records the work for its clients,
//! and programs that of their own engines: any number of processes write one trail.
//!
//! Each line contains the hash of the previous one (`chain`), also across files (`journal`), which [`verify`] checks.
//! One thread of each process writes. In mode `strict` nothing is sent to a server before its beginning is on disk;
//! otherwise nothing waits for the disk. Environments, input and output are never recorded.

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
    /// Returns a trail that is off.
    pub fn none() -> Arc<Self> {
        Arc::new(Self {
            writer: None,
            open: OpenWork::default(),
        })
    }

    /// Opens the trail according to the settings. Nothing is written yet: an unusable place is reported by the first
    /// record.
    ///
    /// # Errors
    /// The thread cannot be started.
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

    /// Opens a daemon's trail and records its start. A daemon that cannot write the trail still serves: in mode
    /// `strict` it refuses everything, whereas stock ssh without a daemon would run by itself.
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

    /// Waits until everything is written, if possible, with this daemon's end last.
    pub async fn stop(&self) {
        self.write_all(Some(Record::new(Event::Stop))).await;
    }

    /// Returns the number of records that are not written yet.
    pub fn waiting(&self) -> u64 {
        self.writer.as_ref().map_or(0, Writer::waiting)
    }

    /// Returns the number of records that were lost so far.
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
