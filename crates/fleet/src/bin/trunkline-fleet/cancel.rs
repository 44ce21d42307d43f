//! `trunkline fleet cancel`: ends a stream or a job.

use trunkline_control::place::Place;
use trunkline_fleet::bucket::Bucket;
use trunkline_fleet::order::is_name;
use trunkline_fleet::state::{JobId, StreamId};
use trunkline_fleet::streaming::following::{self, StreamError};
use trunkline_fleet::submitting::{self, SubmitError};

use crate::converse::not_a_name;
use crate::settings::Settings;

/// Arguments of `trunkline fleet cancel`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The stream or job, as `trunkline fleet status` lists it.
    #[arg(value_name = "ID")]
    id: String,
}

pub(crate) async fn run(place: &Place, args: Args) -> anyhow::Result<()> {
    anyhow::ensure!(is_name(&args.id), not_a_name(&args.id));
    let settings = Settings::of_member(place)?;
    let (key, me) = (settings.key(place)?, settings.key(place)?.public_key());
    let bucket = Bucket::open(&settings.access(place)?).await?;
    let stream = StreamId(args.id.clone());
    let submitter = match following::stream_of(&bucket, &stream).await {
        Ok((order, _)) => {
            following::cancel(&bucket, &key, &stream).await?;
            order.submitter
        }
        Err(StreamError::NoStream(_)) => {
            let job = JobId(args.id);
            let order = match submitting::order_of(&bucket, &job).await {
                Err(SubmitError::NoJob(job)) => {
                    anyhow::bail!("there is no stream and no job {job}: `trunkline fleet status` lists them")
                }
                other => other?,
            };
            submitting::cancel(&bucket, &key, &job).await?;
            order.submitter
        }
        Err(error) => return Err(error.into()),
    };
    if submitter != me {
        use std::io::Write as _;
        let _ = writeln!(
            std::io::stderr(),
            "trunkline: {submitter} has submitted this: it ends on the nodes whose fleet.toml has {me} in `cancel`, and goes on \
             on others"
        );
    }
    Ok(())
}
