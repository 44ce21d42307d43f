//! Reports for as long as somebody listens, and those of the daemon: when it ends, the next one is waited for.

use std::time::Duration;

use tokio::sync::mpsc;
use trunkline_control::client::{Client, ClientError};
use trunkline_control::place::Place;
use trunkline_control::protocol::{HostReport, Reply, Request, Update};
use trunkline_text::Printable;

/// The delay after a failure before the daemon is looked for again.
const AGAIN: Duration = Duration::from_secs(1);

/// A report about something that is watched.
#[derive(Debug)]
pub enum News<U> {
    /// It is told from the beginning: what was known is over.
    Connected,
    /// The changes.
    Update(Box<U>),
    /// Nothing is told, because of this.
    Lost(String),
}

/// Follows what `watch` tells until it is lost, and then anew after a while. It is over when nobody listens any more. A
/// listener that is behind holds up the telling, and nothing piles up.
pub fn follow<U: Send + 'static, F: Future<Output = String> + Send>(
    again: Duration,
    watch: impl Fn(mpsc::Sender<News<U>>) -> F + Send + 'static,
) -> mpsc::Receiver<News<U>> {
    let (news, listener) = mpsc::channel(4);
    tokio::spawn(async move {
        loop {
            let why = tokio::select! {
                why = watch(news.clone()) => why,
                () = news.closed() => return,
            };
            if news.send(News::Lost(why)).await.is_err() {
                return;
            }
            tokio::time::sleep(again).await;
        }
    });
    listener
}

/// Follows the daemon of a place.
pub(crate) fn follow_daemon(place: Place, every: Duration) -> mpsc::Receiver<News<Update>> {
    follow(AGAIN, move |news| {
        let place = place.clone();
        async move { words(&watch(&place, every, &news).await) }
    })
}

/// Until the daemon is lost.
async fn watch(place: &Place, every: Duration, news: &mpsc::Sender<News<Update>>) -> ClientError {
    let mut client = match subscribe(place, every).await {
        Ok(client) => client,
        Err(error) => return error,
    };
    let _ = news.send(News::Connected).await;
    loop {
        match client.next().await {
            Ok(Reply::Update(mut update)) => {
                update.hosts.iter_mut().for_each(make_printable);
                let _ = news.send(News::Update(update)).await;
            }
            Ok(_) => {}
            Err(error) => return error,
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
