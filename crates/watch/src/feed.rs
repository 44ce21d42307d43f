//! Reports while someone listens, especially the daemon's: when it ends, waits for the next one.

use std::time::Duration;

use tokio::sync::mpsc;
use trunkline_control::client::{Client, ClientError};
use trunkline_control::place::Place;
use trunkline_control::protocol::{Closed, HostReport, Reply, Request, Update};
use trunkline_text::Printable;

/// The pause after a failure before the daemon is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// News about a subject.
#[derive(Debug)]
pub enum News<U> {
    /// The state follows from the beginning: earlier knowledge is void.
    Connected,
    /// The changes.
    Update(Box<U>),
    /// There are no updates, for this reason.
    Lost(String),
}

/// Runs `watch` until it fails, and again after a pause, until the receiver is dropped. A slow receiver delays `watch`;
/// nothing is queued.
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

/// Sends updates until the daemon is lost.
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

/// Closes the connections with this sharing key, and returns their number.
pub(crate) async fn close(place: &Place, sharing: String, at_once: bool) -> anyhow::Result<Closed> {
    let mut client = Client::connect_anywhere(place).await?;
    client.send(&Request::CloseShared { sharing, at_once }).await?;
    loop {
        match client.next().await? {
            Reply::Closed(closed) => return Ok(closed),
            Reply::Failed(failure) => anyhow::bail!(failure),
            _ => {}
        }
    }
}

/// Makes the texts of users and servers in a report printable.
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
