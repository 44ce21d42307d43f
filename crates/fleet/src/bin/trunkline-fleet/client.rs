//! The conversation of this program with itself: one process displays a job, and starts another process, which has the
//! key and connects to NATS.

use anyhow::{Context as _, bail, ensure};
use trunkline_control::socket::{FrameReader, FrameWriter};
use trunkline_fleet::bucket::Bucket;
use trunkline_fleet::submitting;
use trunkline_fleet_client::{Fleet, FleetReply, FleetRequest};
use trunkline_request::failure::{ErrorKind, Failure};
use trunkline_request::hosts::Target;

/// Starts the other process.
pub(crate) fn start() -> anyhow::Result<Fleet> {
    let program = std::env::current_exe().context("cannot find this program's own path")?;
    Ok(Fleet::start(&[program.into(), "converse".into()])?)
}

/// Refuses ssh options, because each node has them in its own ssh_config.
pub(crate) fn refuse_ssh_options<'a>(
    are_given: bool,
    hosts: impl IntoIterator<Item = &'a Target>,
) -> anyhow::Result<()> {
    ensure!(
        !are_given,
        "--fleet takes no options of ssh: each node reaches its hosts by its own ssh_config"
    );
    if let Some(host) = hosts.into_iter().find(|host| !host.ssh_args.is_empty()) {
        bail!(
            "{} needs options of ssh, which its inventory names: --fleet reaches hosts by the nodes' own ssh_config",
            host.name
        );
    }
    Ok(())
}

pub(crate) async fn next(requests: &mut FrameReader) -> Result<FleetRequest, Failure> {
    let request = requests.next().await;
    let gone = || Failure::new(ErrorKind::Local, "the client has gone");
    request.ok().flatten().ok_or_else(gone)
}

pub(crate) async fn tell(replies: &FrameWriter, reply: FleetReply) -> Result<(), Failure> {
    let sent = replies.send(&reply).await;
    sent.map_err(|error| Failure::new(ErrorKind::Local, error.to_string()).after_start())
}

/// Returns a message if no node is present.
pub(crate) async fn without_nodes(bucket: &Bucket) -> Option<String> {
    let status = submitting::status(bucket).await.ok()?;
    let live = status
        .nodes
        .iter()
        .any(|(_, member, _, age)| member.holder.is_some() && *age < bucket.charter.terms.ttl.as_secs());
    (!live)
        .then(|| "no node of the fleet is there: the job waits for one (`trunkline fleet join`)".to_owned())
}
