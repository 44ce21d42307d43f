//! A client's tuning: measured by the daemon's engine, reported as it goes, and remembered for copies.

use std::convert::Infallible;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};
use trunkline::memory::HostId;
use trunkline::tune::{self, Choice, Step};
use trunkline::{Engine, Error, Interaction};

use crate::protocol::{HostRequest, Reply, TuneRequest};
use crate::reports::engine_request;

/// Measures a path until done or `stop` is notified. Returns the last frame.
pub(crate) async fn run(
    engine: &Engine,
    request: TuneRequest,
    interaction: &Interaction,
    stop: &Notify,
    replies: &mpsc::Sender<Reply>,
) -> Result<Reply, Error> {
    let (stopping, stopped) = oneshot::channel::<Infallible>();
    let (measured_by, interaction, replies) = (engine.clone(), interaction.clone(), replies.clone());
    // In a thread of its own: making and summing up its data must not delay other clients.
    let runtime = Handle::current();
    let mut measuring = tokio::task::spawn_blocking(move || {
        let asked = engine_request(&request.host);
        let watch = move |step: Step| {
            // A client that reads slowly misses some steps.
            let _ = replies.try_send(Reply::Tuning(step));
        };
        runtime.block_on(tune::tune(
            &measured_by,
            &asked,
            &interaction,
            &request.options,
            &watch,
            stopped.map(drop),
        ))
    });
    let report = tokio::select! {
        report = &mut measuring => report,
        () = stop.notified() => {
            drop(stopping);
            measuring.await
        }
    };
    // The choice may be stored by another process, which should find what the connections learned.
    flush(engine).await;
    let report = report.map_err(|error| Error::local("tuning", std::io::Error::other(error)))??;
    Ok(Reply::Measured(Box::new(report)))
}

/// Measures this machine.
pub(crate) async fn machine(each: Duration) -> Result<Reply, Error> {
    let measured = tokio::task::spawn_blocking(move || tune::measure_local(each)).await;
    let failed = |why: String| Error::local("measuring this machine", std::io::Error::other(why));
    let report = measured.map_err(|error| failed(error.to_string()))?;
    Ok(Reply::MachineMeasured(Box::new(
        report.map_err(|why| failed(why.to_owned()))?,
    )))
}

/// Remembers tuning's choice, and waits until it is on disk: this client may be the engine's last.
pub(crate) async fn remember(
    engine: &Engine,
    host: &HostRequest,
    choice: Option<&Choice>,
) -> Result<Reply, Error> {
    let config = engine.resolve(&engine_request(host)).await?;
    tune::remember(choice, engine.memory(), &config);
    flush(engine).await;
    Ok(Reply::Done)
}

/// Returns the remembered choices of all hosts.
pub(crate) async fn choices(engine: &Engine) -> Reply {
    let engine = engine.clone();
    let listed = tokio::task::spawn_blocking(move || engine.memory().list()).await;
    let choices = listed
        .unwrap_or_default()
        .into_iter()
        .filter_map(|(host, facts)| {
            let HostId { hostname, port, user } = host;
            Some((format!("{user}@{hostname}:{port}"), tune::from_facts(&facts)?))
        });
    Reply::Choices(choices.collect())
}

pub(crate) async fn flush(engine: &Engine) {
    let engine = engine.clone();
    // A panic of the memory's thread was reported when it happened.
    let _ = tokio::task::spawn_blocking(move || engine.memory().flush()).await;
}
