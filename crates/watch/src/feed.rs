//! The daemon's reports, for as long as somebody listens: when the daemon ends, the next one is waited for.

use std::time::Duration;

use tokio::sync::mpsc;
use trunkline_control::client::{Client, ClientError};
use trunkline_control::place::Place;
use trunkline_control::protocol::{HostReport, Reply, Request, Update};
use trunkline_text::Printable;

/// The delay after a failure before the daemon is looked for again.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) enum News {
    /// A daemon answers: what was known of another is over.
    Connected,
    /// The daemon says so.
    Update(Box<Update>),
    /// No daemon tells anything, because of this.
    Lost(String),
}

/// Follows the daemon of a place. It is over when nobody listens any more. A listener that is behind holds up the daemon's
/// telling, and nothing piles up.
pub(crate) fn follow(place: Place, every: Duration) -> mpsc::Receiver<News> {
    let (news, listener) = mpsc::channel(4);
    tokio::spawn(async move {
        loop {
            let failed = tokio::select! {
                failed = watch(&place, every, &news) => failed,
                () = news.closed() => return,
            };
            if let Some(error) = failed {
                let _ = news.send(News::Lost(words(&error))).await;
            }
            tokio::time::sleep(AGAIN).await;
        }
    });
    listener
}

/// Until the daemon is lost; nothing where nobody listens.
async fn watch(place: &Place, every: Duration, news: &mpsc::Sender<News>) -> Option<ClientError> {
    let mut client = match subscribe(place, every).await {
        Ok(client) => client,
        Err(error) => return Some(error),
    };
    news.send(News::Connected).await.ok()?;
    loop {
        match client.next().await {
            Ok(Reply::Update(mut update)) => {
                update.hosts.iter_mut().for_each(make_printable);
                news.send(News::Update(update)).await.ok()?;
            }
            Ok(_) => {}
            Err(error) => return Some(error),
        }
    }
}

async fn subscribe(place: &Place, every: Duration) -> Result<Client, ClientError> {
    let client = Client::connect_anywhere(place).await?;
    client.send(&Request::Subscribe { every }).await?;
    Ok(client)
}

fn words(error: &ClientError) -> String {
    match error {
        ClientError::NotRunning => {
            "the daemon is not running; the first command that needs it starts it".into()
        }
        ClientError::Gone => "the daemon has ended".into(),
        error => Printable::line(error.to_string()).into_string(),
    }
}

/// Closes the connections that share this, and returns how many that were.
pub(crate) async fn close(place: &Place, sharing: String, at_once: bool) -> anyhow::Result<usize> {
    let mut client = Client::connect_anywhere(place).await?;
    client.send(&Request::CloseShared { sharing, at_once }).await?;
    loop {
        match client.next().await? {
            Reply::Closed(count) => return Ok(count),
            Reply::Failed(failure) => anyhow::bail!(failure),
            _ => {}
        }
    }
}

/// The names of a host are as its user typed them, and what its server says is the server's.
fn make_printable(host: &mut HostReport) {
    let line = |text: &mut String| *text = Printable::line(&*text).into_string();
    line(&mut host.name);
    line(&mut host.address);
    for handshake in host
        .connections
        .iter_mut()
        .filter_map(|connection| connection.handshake.as_mut())
    {
        line(&mut handshake.server);
        line(&mut handshake.greeting);
    }
}
