//! The reports of `trunkline-fleet`, for as long as somebody listens: when it ends, it is started again.

use std::time::Duration;

use tokio::sync::mpsc;
use trunkline_control::fleet_view::{FleetUpdate, FleetView, ViewReply};
use trunkline_text::Printable;

/// The delay after a failure before it is tried again.
const AGAIN: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) enum FleetNews {
    /// It is told from the beginning: what was known is over.
    Connected,
    Update(Box<FleetUpdate>),
    /// Nothing is told, because of this.
    Lost(String),
}

/// Follows the fleet that this machine belongs to. It is over when nobody listens any more. A listener that is behind holds up
/// the telling, and nothing piles up.
pub(crate) fn follow(every: Duration) -> mpsc::Receiver<FleetNews> {
    let (news, listener) = mpsc::channel(4);
    tokio::spawn(async move {
        loop {
            let why = tokio::select! {
                why = watch(every, &news) => why,
                () = news.closed() => return,
            };
            if news.send(FleetNews::Lost(why)).await.is_err() {
                return;
            }
            tokio::time::sleep(AGAIN).await;
        }
    });
    listener
}

/// Until nothing more is told: why.
async fn watch(every: Duration, news: &mpsc::Sender<FleetNews>) -> String {
    let line = |error: &dyn std::fmt::Display| Printable::line(error.to_string()).into_string();
    let mut view = match FleetView::start(every) {
        Ok(view) => view,
        Err(error) => return line(&error),
    };
    let mut is_first = true;
    loop {
        match view.next().await {
            Ok(Some(ViewReply::Update(update))) => {
                if std::mem::take(&mut is_first) {
                    let _ = news.send(FleetNews::Connected).await;
                }
                let _ = news.send(FleetNews::Update(update)).await;
            }
            Ok(Some(ViewReply::Failed(why))) => return line(&why),
            Ok(None) => return "trunkline-fleet has ended".into(),
            Err(error) => return line(&error),
        }
    }
}
