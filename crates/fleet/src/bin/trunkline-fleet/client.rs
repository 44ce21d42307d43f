//! The conversation with the client that started this program.

use trunkline_control::fleet::{FleetReply, FleetRequest};
use trunkline_control::socket::{FrameReader, FrameWriter};
use trunkline_fleet::bucket::Bucket;
use trunkline_fleet::submitting;
use trunkline_request::failure::{ErrorKind, Failure};

pub(crate) async fn next(requests: &mut FrameReader) -> Result<FleetRequest, Failure> {
    let request = requests.next().await;
    let gone = || Failure::new(ErrorKind::Local, "the client has gone");
    request.ok().flatten().ok_or_else(gone)
}

pub(crate) async fn tell(replies: &FrameWriter, reply: FleetReply) -> Result<(), Failure> {
    let sent = replies.send(&reply).await;
    sent.map_err(|error| Failure::new(ErrorKind::Local, error.to_string()).after_start())
}

/// Says that no node is there, if so.
pub(crate) async fn without_nodes(bucket: &Bucket) -> Option<String> {
    let status = submitting::status(bucket).await.ok()?;
    let live = status
        .nodes
        .iter()
        .any(|(_, member, _, age)| member.holder.is_some() && *age < bucket.charter.terms.ttl.as_secs());
    (!live)
        .then(|| "no node of the fleet is there: the job waits for one (`trunkline fleet join`)".to_owned())
}
