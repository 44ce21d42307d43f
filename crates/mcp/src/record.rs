//! The audit record of each call: the client, the host, the action, and the decision of the rules or the user.

use std::sync::Arc;

use tokio::sync::OnceCell;
use trunkline::{AuditMode, Settings};
use trunkline_audit::{Audit, Entry, Recorder, Subject};
use trunkline_control::protocol::Reply;
use trunkline_embed::{ErrorKind, Failure, OnBehalf, Place};

use crate::rules::Record;

/// The trail, opened by the first call.
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

    /// Records an action that is about to happen, or was refused.
    ///
    /// # Errors
    /// It cannot be recorded, so it must not happen.
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

    /// Waits until everything is written, at the end.
    pub(crate) async fn close(&self) {
        if let Some(recorder) = self.0.get() {
            recorder.close().await;
        }
    }
}

/// Records the end of an action other than a command.
pub(crate) fn end<T>(entry: &Entry, outcome: &Result<T, Failure>) {
    entry.end_by(&match outcome {
        Ok(_) => Reply::Exit(trunkline::ExitStatus::Unknown),
        Err(failure) => Reply::Failed(failure.clone()),
    });
}
