//! A program's own engine, restricted by config.toml, and its audit trail.

use std::ops::Deref;
use std::path::PathBuf;

use trunkline::{AuditMode, Engine, MemoryPlace, Settings};
use trunkline_audit::{Audit, Recorder};
use trunkline_control::place::Place;
use trunkline_request::failure::{ErrorKind, Failure};

/// A program's own engine. Its use through a [`Way`](crate::Way) is recorded in the audit trail if `config.toml` says
/// so.
#[derive(Clone)]
pub struct ProgramEngine {
    engine: Engine,
    recorder: Recorder,
}

impl ProgramEngine {
    /// Creates an engine with the program's settings and those in `config.toml` for all programs: which hosts may only
    /// be reached over shared connections (`strict_hosts`), and what is recorded (`audit`). Must be called inside a
    /// tokio runtime.
    ///
    /// # Errors
    /// The file is invalid, so the daemon would not start either; or the trail must be written and has no place.
    pub fn new(own: Settings, memory: MemoryPlace) -> Result<Self, Failure> {
        let place = Place::find(|name| std::env::var_os(name).map(PathBuf::from));
        // Without a home there are no settings.
        let Ok(place) = place else {
            return Ok(Self::without_record(Engine::new(own, memory)));
        };
        let everybodys = Settings::read(&place.config)
            .map_err(|error| Failure::new(ErrorKind::Configuration, error.to_string()))?;
        let settings = Settings {
            audit: everybodys.audit,
            audit_file_size: everybodys.audit_file_size,
            audit_files: everybodys.audit_files,
            strict_hosts: everybodys.strict_hosts,
            ..own
        };
        Self::recorded_at(&place, settings, memory)
    }

    /// Creates an engine with these settings and the trail of this place.
    ///
    /// # Errors
    /// The trail must be written and has no place.
    pub fn recorded_at(place: &Place, settings: Settings, memory: MemoryPlace) -> Result<Self, Failure> {
        let audit = Audit::open(place, &settings)?;
        let is_audited = settings.audit != AuditMode::Off;
        let engine = Engine::new(settings, memory);
        if is_audited {
            engine.mark_audited();
        }
        Ok(Self {
            engine,
            recorder: Recorder::of_program(&audit),
        })
    }

    /// Returns an engine without an audit trail. If the trail is strict, it reaches no host.
    pub fn without_record(engine: Engine) -> Self {
        Self {
            engine,
            recorder: Recorder::of_program(&Audit::none()),
        }
    }

    /// Returns a separate engine; see [`Engine::isolate`].
    #[must_use]
    pub fn isolate(&self, connections: Option<usize>) -> Self {
        Self {
            engine: self.engine.isolate(connections),
            recorder: self.recorder.clone(),
        }
    }

    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Waits until the audit trail has everything so far, if it can be written.
    pub async fn flush_trail(&self) {
        self.recorder.flush().await;
    }

    /// Writes the rest of the audit trail when the program ends: open records end with it.
    pub async fn close_trail(&self) {
        self.recorder.close().await;
    }
}

impl Deref for ProgramEngine {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}
