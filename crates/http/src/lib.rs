//! HTTP for programs of this machine: a few clients, one request each, answered from what is known.
//!
//! [`serve`] is how clients are accepted and what they may cost; [`metrics`] is what Prometheus reads.

pub mod metrics;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The time limit for a client to make its request. It is on this machine, and has nothing else to do.
const REQUEST_LIMIT: Duration = Duration::from_secs(1);

/// The longest head of a request.
const LONGEST_HEAD: usize = 16 * 1024;

/// A client that was let in.
struct Client {
    task: AbortHandle,
    /// It has made its request.
    has_spoken: Arc<AtomicBool>,
}

/// The clients, oldest first.
struct Clients {
    most: usize,
    all: VecDeque<Client>,
}

impl Clients {
    /// Makes room for one more: who has said nothing for longest goes, or who is oldest where all have spoken. A client is never
    /// kept waiting by others that only hold their places.
    fn make_room(&mut self) {
        self.all.retain(|client| !client.task.is_finished());
        if self.all.len() < self.most {
            return;
        }
        let silent = |client: &Client| !client.has_spoken.load(Ordering::Relaxed);
        let leaves = self.all.iter().position(silent).unwrap_or(0);
        if let Some(client) = self.all.remove(leaves) {
            client.task.abort();
        }
    }
}

/// Answers the clients that `accept` brings (`None` for one that may not ask), so many at once; for others the oldest that has
/// not made its request leaves. Each makes one request, and may take until `limit` for all of it. Does not end.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    accept: impl Fn(&mut Context<'_>) -> Poll<io::Result<Option<S>>>,
    clients: usize,
    limit: Option<Duration>,
    respond: impl Fn(&Request<Incoming>) -> Response<Body> + Send + Sync + 'static,
) {
    let respond = Arc::new(respond);
    let mut clients = Clients {
        most: clients,
        all: VecDeque::new(),
    };
    loop {
        match poll_fn(&accept).await {
            Ok(Some(stream)) => {
                clients.make_room();
                let respond = respond.clone();
                let has_spoken = Arc::new(AtomicBool::new(false));
                let speaks = has_spoken.clone();
                let task = tokio::spawn(async move {
                    let respond = |request: &Request<Incoming>| {
                        speaks.store(true, Ordering::Relaxed);
                        respond(request)
                    };
                    answer(stream, limit, respond).await;
                });
                clients.all.push_back(Client {
                    task: task.abort_handle(),
                    has_spoken,
                });
            }
            Ok(None) => {}
            // Out of descriptors, most likely.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Answers one client's request.
async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    limit: Option<Duration>,
    respond: impl Fn(&Request<Incoming>) -> Response<Body>,
) {
    let service = service_fn(|request| {
        let response = respond(&request);
        async { Ok::<_, Infallible>(response) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_LIMIT)
        .keep_alive(false)
        .max_buf_size(LONGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let ended = match limit {
        Some(limit) => tokio::time::timeout(limit, served).await.unwrap_or(Ok(())),
        None => served.await,
    };
    // A client that leaves in the middle is none of anybody's business.
    if let Err(error) = ended {
        tracing::debug!("HTTP: {error}");
    }
}

/// An answer of this kind (a media type), in UTF-8.
pub fn response(status: StatusCode, kind: &str, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(text.into()).boxed_unsync());
    *response.status_mut() = status;
    if let Ok(kind) = HeaderValue::from_str(&format!("{kind}; charset=utf-8")) {
        response.headers_mut().insert(CONTENT_TYPE, kind);
    }
    response
}

/// That only these methods are known here.
pub fn other_method(allowed: &'static str) -> Response<Body> {
    let words = format!("{allowed}\n");
    let mut response = response(StatusCode::METHOD_NOT_ALLOWED, "text/plain", words);
    let headers = response.headers_mut();
    headers.insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::*;

    const MOST: usize = 4;

    /// A client that asks, or does not.
    async fn client(door: &mpsc::UnboundedSender<DuplexStream>, asks: bool) -> DuplexStream {
        let (mut ours, theirs) = duplex(4096);
        if asks {
            ours.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                .await
                .unwrap();
        }
        door.send(theirs).unwrap();
        ours
    }

    async fn said_to(mut client: DuplexStream) -> String {
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        text
    }

    /// The clock stands still for as long as anything can go on: what is answered at once has waited for nobody.
    #[tokio::test(start_paused = true)]
    async fn clients_that_say_nothing_keep_nobody_waiting() {
        let (door, entrance) = mpsc::unbounded_channel();
        let entrance = Mutex::new(entrance);
        let accept = move |cx: &mut Context<'_>| {
            let mut entrance = entrance.lock().unwrap();
            entrance.poll_recv(cx).map(|stream| Ok(Some(stream.unwrap())))
        };
        let answers = |_: &Request<Incoming>| response(StatusCode::OK, "text/plain", "here");
        let serving = tokio::spawn(serve(accept, MOST, None, answers));
        let begun = Instant::now();
        let mut silent = Vec::new();
        for _ in 0..3 * MOST {
            silent.push(client(&door, false).await);
            let asking = client(&door, true).await;
            assert!(said_to(asking).await.ends_with("here"));
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
        // The oldest have left, the others may still speak.
        let mut newest = silent.pop().unwrap();
        newest
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        assert!(said_to(newest).await.ends_with("here"));
        assert_eq!(said_to(silent.remove(0)).await, "");
        assert_eq!(begun.elapsed(), Duration::ZERO);
        // Who never speaks leaves in the end.
        assert_eq!(said_to(silent.pop().unwrap()).await, "");
        assert!(begun.elapsed() <= 2 * REQUEST_LIMIT, "{:?}", begun.elapsed());
        serving.abort();
    }
}
