//! The program that `trunkline top --fleet` and `trunkline serve-ui --fleet` start: reports the fleet's state and its
//! changes.

use std::os::fd::AsFd as _;
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use trunkline_control::fleet_view::ViewReply;
use trunkline_control::place::Place;
use trunkline_control::socket::{FrameWriter, split};
use trunkline_fleet::bucket::Bucket;
use trunkline_fleet::watching;
use trunkline_text::Printable;

use crate::settings::Settings;

/// Arguments of `trunkline fleet view`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The time between two updates.
    #[arg(long, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u64).range(100..=60_000))]
    interval_ms: u64,
}

/// Talks to the program at standard input until that has gone.
pub(crate) async fn run(place: &Place, args: Args) -> anyhow::Result<()> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    let socket = UnixStream::from_std(socket).context("this is started by `trunkline top --fleet`")?;
    let (mut requests, replies) = split(socket);
    let told = tell(place, Duration::from_millis(args.interval_ms), &replies);
    let told = tokio::select! {
        told = told => told,
        // Nothing is asked: it has gone.
        _ = requests.next::<ViewReply>() => return Ok(()),
    };
    if let Err(error) = told {
        let words = Printable::line(format!("{error:#}")).into_string();
        // Who has gone misses nothing.
        let _ = replies.send(&ViewReply::Failed(words)).await;
    }
    Ok(())
}

async fn tell(place: &Place, every: Duration, replies: &FrameWriter) -> anyhow::Result<()> {
    let settings = Settings::of_member(place)?;
    let bucket = Bucket::open(&settings.access(place)?).await?;
    let (updates, mut changed) = mpsc::channel(2);
    let following = watching::follow(&bucket, &settings.url, every, updates);
    let sending = async {
        while let Some(update) = changed.recv().await {
            replies.send(&ViewReply::Update(Box::new(update))).await?;
        }
        anyhow::Ok(())
    };
    tokio::pin!(following, sending);
    tokio::select! {
        followed = &mut following => Ok(followed?),
        sent = &mut sending => sent,
    }
}
