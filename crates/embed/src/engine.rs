//! An engine of a program's own, as far as config.toml allows it, and what is recorded of its work.

use std::ops::Deref;
use std::path::PathBuf;

use trunkline::{AuditMode, Engine, MemoryPlace, Settings};
use trunkline_audit::{Audit, Recorder};
use trunkline_control::place::Place;
use trunkline_request::failure::{ErrorKind, Failure};

/// An engine of a program's own. What is done with it over a [`Way`](crate::Way) is in the audit trail, where `config.toml` asks for that.
#[derive(Clone)]
pub struct ProgramEngine {
    engine: Engine,
    recorder: Recorder,
}

impl ProgramEngine {
    /// An engine with the program's settings and with what `config.toml` says of all programs: which hosts are shared or not
    /// reached (`strict_hosts`), and what is recorded (`audit`). Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// The file cannot be used, for which the daemon would not start either; the trail has no place, and must have one.
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

    /// The same, with these settings and the trail of this place.
    ///
    /// # Errors
    /// The trail has no place, and must have one.
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

    /// An engine of whose work nothing is recorded. Where the audit trail is strict, it reaches no host.
    pub fn without_record(engine: Engine) -> Self {
        Self {
            engine,
            recorder: Recorder::of_program(&Audit::none()),
        }
    }

    /// As [`Engine::isolate`].
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

    /// Waits until the audit trail has what was recorded so far, as far as it can be written.
    pub async fn flush_trail(&self) {
        self.recorder.flush().await;
    }

    /// The same, when the program ends: what has no end yet is recorded as ended with it.
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
