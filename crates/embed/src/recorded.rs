//! The audit record of one piece of work of this process's engine.

use trunkline::{Error, Host};
use trunkline_audit::{Entry, Recorder, Subject};

/// The audit record of one piece of work; `None` if nothing is recorded.
pub(crate) type Recorded = Option<Box<Entry>>;

/// Begins the record of an action on a host, before the action.
///
/// # Errors
/// It cannot be recorded, so the action must not happen.
pub(crate) async fn record(
    recorder: &Recorder,
    host: &Host,
    subject: impl FnOnce() -> Subject,
) -> Result<Recorded, Error> {
    if !recorder.is_on() {
        return Ok(None);
    }
    let entry = Box::new(recorder.entry(subject().with_host(host.config())));
    entry.begin(|subject| subject).await?;
    Ok(Some(entry))
}

pub(crate) fn unless_failed<T>(recorded: &Recorded, outcome: Result<T, Error>) -> Result<T, Error> {
    if let (Some(entry), Err(error)) = (recorded, &outcome) {
        entry.fail(error);
    }
    outcome
}
