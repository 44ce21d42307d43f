//! Forwardings, and their records, including one for each connection.

use std::sync::Arc;

use futures_util::FutureExt as _;
use trunkline::config::{Forward, HostConfig};
use trunkline::{Error, ForwardClient, ForwardHandle, Host, WhenOpened, Witness};
use trunkline_control::protocol::ForwardKind;

use crate::{Entry, Subject};

/// Opens a forwarding, and records it.
///
/// # Errors
/// It cannot be recorded or opened.
pub async fn open(
    host: &Host,
    kind: ForwardKind,
    forward: &Forward,
    entry: &Entry,
) -> Result<ForwardHandle, Error> {
    entry.begin(|subject| subject).await?;
    let outcome = match kind {
        ForwardKind::Local | ForwardKind::Dynamic if entry.recorder().is_on() => {
            host.forward_witnessed(forward, witness(host, entry, Subject::outgoing))
                .await
        }
        ForwardKind::Local => host.forward_local(forward).await,
        ForwardKind::Dynamic => host.forward_dynamic(&forward.listen).await,
        ForwardKind::Remote if entry.recorder().is_on() => {
            host.forward_remote_witnessed(forward, witness(host, entry, Subject::incoming))
                .await
        }
        ForwardKind::Remote => host.forward_remote(forward).await,
    };
    match &outcome {
        Ok(handle) => {
            let counting = handle.counting();
            entry.carries(move || {
                let counted = counting();
                (counted.bytes_sent, counted.bytes_received)
            });
        }
        Err(error) => entry.fail(error),
    }
    outcome
}

/// Returns a witness that records each connection of a forwarding.
fn witness(host: &Host, entry: &Entry, subject: fn(&HostConfig, &ForwardClient) -> Subject) -> Witness {
    let (config, recorder) = (host.config().clone(), entry.recorder().clone());
    Arc::new(move |client| {
        let entry = recorder.entry(subject(&config, &client));
        async move {
            entry.begin(|subject| subject).await?;
            let opened: WhenOpened = Box::new(move |opened| {
                match opened {
                    Ok(channel) => entry.carries(move || channel.bytes_carried()),
                    Err(error) => entry.fail(error),
                }
                Box::new(entry)
            });
            Ok(opened)
        }
        .boxed()
    })
}
