//! HTTP for programs of this machine: a few clients, one request each, answered from what is known.
//!
//! [`serve`] is how clients are accepted and what they may cost; [`metrics`] is what Prometheus reads.

pub mod metrics;

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
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
use tokio::sync::Semaphore;

/// What is answered with.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// How long a client may take to make its request.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// The longest head of a request.
const LONGEST_HEAD: usize = 16 * 1024;

/// Answers the clients that `accept` brings (`None` for one that may not ask), so many at once; others wait for their turn.
/// Each makes one request, and may take until `limit` for all of it. Does not end.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    accept: impl Fn(&mut Context<'_>) -> Poll<io::Result<Option<S>>>,
    clients: usize,
    limit: Option<Duration>,
    respond: impl Fn(&Request<Incoming>) -> Response<Body> + Send + Sync + 'static,
) {
    let respond = Arc::new(respond);
    let clients = Arc::new(Semaphore::new(clients));
    while let Ok(turn) = clients.clone().acquire_owned().await {
        match poll_fn(&accept).await {
            Ok(Some(stream)) => {
                let respond = respond.clone();
                tokio::spawn(async move {
                    answer(stream, limit, &*respond).await;
                    drop(turn);
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
pub fn said(status: StatusCode, kind: &str, text: impl Into<Bytes>) -> Response<Body> {
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
    let mut response = said(StatusCode::METHOD_NOT_ALLOWED, "text/plain", words);
    let headers = response.headers_mut();
    headers.insert(ALLOW, HeaderValue::from_static(allowed));
    response
}
