//! Each call in the audit trail: which client made it, on which host, with what, and what the rules or the person said.

use std::sync::Arc;

use tokio::sync::OnceCell;
use trunkline::{AuditMode, Settings};
use trunkline_audit::{Audit, Entry, Recorder, Subject};
use trunkline_control::protocol::Reply;
use trunkline_embed::{ErrorKind, Failure, OnBehalf, Place};

use crate::rules::Record;

/// The trail, which is opened by the first call.
#[derive(Default)]
pub(crate) struct Trail(OnceCell<Recorder>);

impl Trail {
    async fn recorder(&self, place: &Place, record: Record) -> Result<&Recorder, Failure> {
        let open = async || {
            let mut settings = Settings::read(&place.config)
                .map_err(|error| Failure::new(ErrorKind::Configuration, error.to_string()))?;
            if settings.audit == AuditMode::Off && record == Record::Always {
                settings.audit = AuditMode::On;
            }
            let audit: Arc<Audit> = Audit::open(place, &settings)?;
            Ok(Recorder::of_program(&audit))
        };
        self.0.get_or_try_init(open).await
    }

    /// Records that something is about to be done, or was decided not to be.
    ///
    /// # Errors
    /// It cannot be recorded, and must not be done.
    pub(crate) async fn begin(
        &self,
        place: &Place,
        record: Record,
        subject: Subject,
        client: &OnBehalf,
    ) -> Result<Entry, Failure> {
        let recorder = self.recorder(place, record).await?;
        let entry = recorder.entry(subject.on_behalf(Some(client)));
        entry.begin(|subject| subject).await?;
        Ok(entry)
    }

    /// Waits until all is written, at the end.
    pub(crate) async fn close(&self) {
        if let Some(recorder) = self.0.get() {
            recorder.close().await;
        }
    }
}

/// Records the end of something other than a command.
pub(crate) fn end<T>(entry: &Entry, outcome: &Result<T, Failure>) {
    entry.end_by(&match outcome {
        Ok(_) => Reply::Exit(trunkline::ExitStatus::Unknown),
        Err(failure) => Reply::Failed(failure.clone()),
    });
}
