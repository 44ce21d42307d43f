//! `trunkline top --fleet` and `trunkline serve-ui --fleet`: show the fleet in a terminal and on a web page, like
//! `trunkline-watch` shows the daemon.

mod model;
mod tables;

use std::process::ExitCode;
use std::time::Duration;

use tokio::sync::mpsc;
use trunkline_cli::watch::{ServeUiArgs, TopArgs};
use trunkline_control::place::Place;
use trunkline_fleet::bucket::Bucket;
use trunkline_fleet::report::FleetUpdate;
use trunkline_fleet::watching;
use trunkline_text::Printable;
use trunkline_watch::{News, Page};

use crate::keep_key;
use crate::settings::Settings;
use model::FleetModel;

const PAGE: Page = Page {
    body: include_str!("watch/page.html"),
    script: include_str!("watch/page.js"),
};

/// The delay after a failure before NATS is asked again.
const AGAIN: Duration = Duration::from_secs(2);

pub(crate) fn top(args: &TopArgs) -> anyhow::Result<ExitCode> {
    keep_key();
    trunkline_watch::run(async |place| {
        let follow = || follow(place.clone(), args.interval);
        let instead = "`trunkline fleet status --json` prints";
        trunkline_watch::top(&place, FleetModel::of_nobody_yet(), follow, instead).await
    })
}

pub(crate) fn serve_ui(args: &ServeUiArgs) -> anyhow::Result<ExitCode> {
    keep_key();
    let (every, port) = (args.interval, args.port);
    trunkline_watch::run(|place| {
        let follow = move || follow(place.clone(), every);
        trunkline_watch::serve(PAGE, follow, port)
    })
}

/// Follows the fleet that this machine belongs to.
fn follow(place: Place, every: Duration) -> mpsc::Receiver<News<FleetUpdate>> {
    trunkline_watch::follow(AGAIN, move |news| {
        let place = place.clone();
        async move {
            match watch(&place, every, &news).await {
                Ok(()) => "the fleet is no longer told of".to_owned(),
                Err(error) => Printable::line(format!("{error:#}")).into_string(),
            }
        }
    })
}

async fn watch(place: &Place, every: Duration, news: &mpsc::Sender<News<FleetUpdate>>) -> anyhow::Result<()> {
    let settings = Settings::of_member(place)?;
    let bucket = Bucket::open(&settings.access(place)?).await?;
    let (updates, mut changed) = mpsc::channel(2);
    let following = watching::follow(&bucket, &settings.url, every, updates);
    let telling = async {
        let mut is_first = true;
        while let Some(update) = changed.recv().await {
            if std::mem::take(&mut is_first) {
                news.send(News::Connected).await?;
            }
            news.send(News::Update(Box::new(update))).await?;
        }
        anyhow::Ok(())
    };
    tokio::pin!(following, telling);
    tokio::select! {
        followed = &mut following => Ok(followed?),
        told = &mut telling => told,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        assert_eq!(super::PAGE.check(), Ok(()));
    }
}
